/* The list of names: rows, looked up by the other framework's name. */
#include "core/model/names_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *const axes_words[ASSAY_AXES_COUNT] = {"same", "batch_first", "heads_first"};
static const char *const relation_words[ASSAY_RELATION_COUNT] = {"equal", "sorted_rows", "mean"};

const char *assay_name_axes_word(assay_name_axes axes)
{
    return axes_words[axes];
}

const char *assay_name_relation_word(assay_name_relation relation)
{
    return relation_words[relation];
}

/* Hugging Face's gradient at the end of a step has been reduced; states before a step are ours of the one before. */
const assay_name_state *assay_name_states(void)
{
    static const assay_name_state states[] = {
        {"", "", ASSAY_PHASE_FORWARD, ASSAY_PHASE_FORWARD},
        {".grad", ".main_grad", ASSAY_PHASE_GRAD, ASSAY_PHASE_REDUCED_GRAD},
        {".grad", ".main_grad", ASSAY_PHASE_REDUCED_GRAD,
         ASSAY_PHASE_REDUCED_GRAD}, /* of data-parallel ranks */
        {".main_param_in", ".main_param", ASSAY_PHASE_OPTIMIZER, ASSAY_PHASE_FORWARD},
        {".exp_avg_in", ".exp_avg", ASSAY_PHASE_OPTIMIZER, ASSAY_PHASE_FORWARD},
        {".exp_avg_sq_in", ".exp_avg_sq", ASSAY_PHASE_OPTIMIZER, ASSAY_PHASE_FORWARD},
        {".main_param", ".main_param", ASSAY_PHASE_OPTIMIZER, ASSAY_PHASE_OPTIMIZER},
        {".exp_avg", ".exp_avg", ASSAY_PHASE_OPTIMIZER, ASSAY_PHASE_OPTIMIZER},
        {".exp_avg_sq", ".exp_avg_sq", ASSAY_PHASE_OPTIMIZER, ASSAY_PHASE_OPTIMIZER},
        {NULL, NULL, ASSAY_PHASE_FORWARD, ASSAY_PHASE_FORWARD}};
    return states;
}

assay_status assay_names_add(assay_names *n, const assay_name_row *row)
{
    if (n->n == n->capacity) {
        const int64_t capacity = n->capacity > 0 ? 2 * n->capacity : 256;
        assay_name_row *rows = realloc(n->rows, (size_t)capacity * sizeof *rows);
        ASSAY_CHECK(rows != NULL, ASSAY_OUT_OF_MEMORY, "%lld names", (long long)capacity);
        n->rows = rows;
        n->capacity = capacity;
    }
    n->rows[n->n++] = *row;
    free(n->order);
    n->order = NULL;
    return ASSAY_OK;
}

/* The rows that a sort compares; one list is sorted at a time by a thread. */
static _Thread_local const assay_name_row *sorted;

static int compare_rows(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    const int c = strcmp(sorted[x].theirs, sorted[y].theirs);
    return c != 0 ? c : (x > y) - (x < y);
}

assay_status assay_names_own(assay_names *n, int64_t count, assay_hf_piece **out)
{
    assay_hf_piece **owned = realloc(n->owned, (size_t)(n->n_owned + 1) * sizeof *owned);
    ASSAY_CHECK(owned != NULL, ASSAY_OUT_OF_MEMORY, "pieces of a name");
    n->owned = owned;
    *out = calloc((size_t)count, sizeof **out);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "pieces of a name");
    n->owned[n->n_owned++] = *out;
    return ASSAY_OK;
}

assay_status assay_names_sort(assay_names *n)
{
    free(n->order);
    n->order = malloc(((size_t)n->n + 1) * sizeof *n->order);
    ASSAY_CHECK(n->order != NULL, ASSAY_OUT_OF_MEMORY, "%lld names", (long long)n->n);
    for (int64_t i = 0; i < n->n; i++)
        n->order[i] = i;
    sorted = n->rows;
    qsort(n->order, (size_t)n->n, sizeof *n->order, compare_rows);
    sorted = NULL;
    return ASSAY_OK;
}

assay_status assay_names_build(const assay_model_spec *spec, assay_names **out)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    ASSAY_CHECK(spec->config.arch != ASSAY_ARCH_MEGATRON, ASSAY_UNSUPPORTED,
                "names: expected a Hugging Face class, found a model in Megatron-LM's form, whose names are "
                "the canonical ones");
    assay_names *n = calloc(1, sizeof *n);
    ASSAY_CHECK(n != NULL, ASSAY_OUT_OF_MEMORY, "names");
    n->spec = spec;
    ASSAY_TRY_GOTO(assay_names_fill(n), st, fail);
    ASSAY_TRY_GOTO(assay_names_sort(n), st, fail);
    *out = n;
    return ASSAY_OK;
fail:
    assay_names_destroy(n);
    return st;
}

void assay_names_destroy(assay_names *n)
{
    if (n == NULL)
        return;
    for (int64_t i = 0; i < n->n_owned; i++)
        free(n->owned[i]);
    free(n->owned);
    free(n->order);
    free(n->rows);
    free(n);
}

int64_t assay_names_count(const assay_names *n)
{
    return n->n;
}

const assay_name_row *assay_names_at(const assay_names *n, int64_t i)
{
    return &n->rows[i];
}

/* First place in the order whose row is not before `theirs`. */
static int64_t lower_bound(const assay_names *n, const char *theirs)
{
    int64_t from = 0, to = n->n;
    while (from < to) {
        const int64_t middle = from + (to - from) / 2;
        if (strcmp(n->rows[n->order[middle]].theirs, theirs) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Rows of that very name: parameters with the state, or (state NULL) others of the phase. */
static int find_exact(const assay_names *n, const char *theirs, const assay_name_state *state,
                      assay_phase their_phase, assay_name_match *out, int found)
{
    for (int64_t i = lower_bound(n, theirs); i < n->n && found < ASSAY_NAME_MATCHES; i++) {
        const assay_name_row *row = &n->rows[n->order[i]];
        if (strcmp(row->theirs, theirs) != 0)
            break;
        if (row->parameter != (state != NULL) || (!row->parameter && row->their_phase != their_phase))
            continue;
        assay_name_match *m = &out[found++];
        m->row = row;
        m->phase = state != NULL ? state->phase : row->phase;
        snprintf(m->ours, sizeof m->ours, "%s%s", row->ours, state != NULL ? state->ours : "");
    }
    return found;
}

int assay_names_find(const assay_names *n, const char *theirs, assay_phase their_phase,
                     assay_name_match out[ASSAY_NAME_MATCHES])
{
    int found = find_exact(n, theirs, NULL, their_phase, out, 0);
    for (const assay_name_state *s = assay_name_states(); s->theirs != NULL; s++) {
        const size_t length = strlen(theirs), suffix = strlen(s->theirs);
        char base[ASSAY_NAME];
        if (s->their_phase != their_phase || length <= suffix || length - suffix >= sizeof base ||
            strcmp(theirs + length - suffix, s->theirs) != 0)
            continue;
        memcpy(base, theirs, length - suffix);
        base[length - suffix] = '\0';
        found = find_exact(n, base, s, their_phase, out, found);
    }
    return found;
}
