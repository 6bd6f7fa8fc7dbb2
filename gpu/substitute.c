/* Values of --substitute: found in the reference's trace, cut, rounded, put in place of a result. */
#include "gpu/substitute.h"

#include "gpu/rules.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "X" is a name of this layout alone; the trace calls the same tensor "Y". */
typedef struct alias {
    char name[ASSAY_NAME], target[ASSAY_NAME];
} alias;

typedef struct values {
    const gpu_model *model;
    assay_trace *trace;
    int64_t n;
    const assay_trace_tensor **sorted; /* by name, phase, step, microbatch, then as recorded */
    int64_t n_aliases, alias_capacity;
    alias *aliases;
} values;

/* --- the trace ---------------------------------------------------------------------------------------------- */
static int compare_keys(const assay_trace_tensor *a, const assay_trace_tensor *b)
{
    const int names = strcmp(a->name, b->name);
    if (names != 0)
        return names;
    if (a->phase != b->phase)
        return a->phase < b->phase ? -1 : 1;
    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    return (a->microbatch > b->microbatch) - (a->microbatch < b->microbatch);
}

static int compare_records(const void *a, const void *b)
{
    const assay_trace_tensor *x = *(const assay_trace_tensor *const *)a,
                             *y = *(const assay_trace_tensor *const *)b;
    const int keys = compare_keys(x, y);
    return keys != 0 ? keys : (x->id > y->id) - (x->id < y->id);
}

/* The last record of that key; NULL: none. */
static const assay_trace_tensor *find(const values *s, const char *name, assay_phase phase, int64_t step,
                                      int64_t microbatch)
{
    assay_trace_tensor key = {.phase = phase, .step = step, .microbatch = microbatch};
    int64_t low = 0, high = s->n;
    snprintf(key.name, sizeof key.name, "%s", name);
    while (low < high) { /* the first that lies behind the key */
        const int64_t middle = low + (high - low) / 2;
        if (compare_keys(s->sorted[middle], &key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && compare_keys(s->sorted[low - 1], &key) == 0 ? s->sorted[low - 1] : NULL;
}

static bool has_name(const values *s, const char *name)
{
    int64_t low = 0, high = s->n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (strcmp(s->sorted[middle]->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < s->n && strcmp(s->sorted[low]->name, name) == 0;
}

static assay_status read_trace(values *s, const char *dir)
{
    ASSAY_TRY(assay_trace_open(&s->trace, dir, false));
    const char *engine = assay_trace_header_text(s->trace, "engine");
    ASSAY_CHECK(
        assay_trace_world(s->trace) == 1 && (strcmp(engine, "ref") == 0 || strcmp(engine, "assembled") == 0),
        ASSAY_INVALID_ARGUMENT,
        "--substitute-values %s: expected the trace of assay step --engine ref, or one that assay bisect "
        "assembled, found one of engine %s with %d ranks",
        dir, engine, assay_trace_world(s->trace));
    const int64_t n = assay_trace_n_tensors(s->trace, 0);
    s->sorted = calloc((size_t)n + 1, sizeof(const assay_trace_tensor *));
    ASSAY_CHECK(s->sorted, ASSAY_OUT_OF_MEMORY, "%s: %lld tensors", dir, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const assay_trace_tensor *t = assay_trace_tensor_at(s->trace, 0, i);
        ASSAY_CHECK(t->data || t->bytes == 0, ASSAY_INVALID_ARGUMENT,
                    "--substitute-values %s: hashes alone, no values", dir);
        if (t->dtype == ASSAY_F64 || t->dtype == ASSAY_I64)
            s->sorted[s->n++] = t;
    }
    qsort(s->sorted, (size_t)s->n, sizeof(const assay_trace_tensor *), compare_records);
    return ASSAY_OK;
}

/* --- names -------------------------------------------------------------------------------------------------- */
static const char *alias_of(const values *s, const char *name)
{
    for (int64_t i = s->n_aliases - 1; i >= 0; i--)
        if (strcmp(s->aliases[i].name, name) == 0)
            return s->aliases[i].target;
    return NULL;
}

/* "X.main_grad.tp_sum" -> "X.main_grad"; "gather.recv.grad" -> the gradient of what was gathered. */
static void plain_name(const values *s, const char *name, char out[ASSAY_NAME])
{
    static const char grad[] = ".grad", main_grad[] = ".main_grad.";
    const size_t n = strlen(name);
    char base[ASSAY_NAME];
    const char *target = has_name(s, name) ? name : alias_of(s, name), *sum = strstr(name, main_grad);
    snprintf(out, ASSAY_NAME, "%s", target ? target : name);
    if (target)
        return;
    if (sum) {
        out[(size_t)(sum - name) + sizeof main_grad - 2] = '\0';
    } else if (n > sizeof grad - 1 && strcmp(name + n - (sizeof grad - 1), grad) == 0) {
        snprintf(base, sizeof base, "%.*s", (int)(n - (sizeof grad - 1)), name);
        target = alias_of(s, base);
        if (target)
            snprintf(out, ASSAY_NAME, "%.*s%s", ASSAY_NAME - (int)sizeof grad, target, grad);
    }
}

static assay_status note_alias(values *s, const char *name, const char *moved)
{
    char target[ASSAY_NAME];
    plain_name(s, moved, target);
    if (has_name(s, name) || alias_of(s, name) || strcmp(name, target) == 0)
        return ASSAY_OK;
    if (s->n_aliases == s->alias_capacity) {
        const int64_t capacity = s->alias_capacity ? 2 * s->alias_capacity : 64;
        alias *grown = realloc(s->aliases, (size_t)capacity * sizeof *grown);
        ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "names of %lld tensors", (long long)capacity);
        s->aliases = grown;
        s->alias_capacity = capacity;
    }
    alias *a = &s->aliases[s->n_aliases++];
    snprintf(a->name, sizeof a->name, "%s", name);
    snprintf(a->target, sizeof a->target, "%s", target);
    return ASSAY_OK;
}

/* --- pieces ------------------------------------------------------------------------------------------------- */
/* Elements of the piece that this rank contributes to a sum: [first, last) of them the whole value, the others zeros. */
typedef struct contribution {
    int64_t first, last;
} contribution;

static bool is_first(const gpu_run *run, assay_group group)
{
    return run->comm.group[group].rank == 0;
}

/* A parameter's gradient: what the sums of phase grad will add up.  false: no value of the trace is the same. */
static bool gradient_share(const values *s, const gpu_run *run, const char *name, int64_t count,
                           contribution *out)
{
    const gpu_model *m = s->model;
    const size_t n = strlen(name), suffix = strlen(".main_grad");
    char parameter[ASSAY_NAME];
    if (n <= suffix || strcmp(name + n - suffix, ".main_grad") != 0 || m->grid->p.zero_stage >= 2)
        return false;
    snprintf(parameter, sizeof parameter, "%.*s", (int)(n - suffix), name);
    const assay_param_spec *p = assay_spec_find(m->spec, parameter);
    if (p == NULL)
        return false;
    const bool tied = m->config->tie_word_embeddings && m->word_embeddings && p == m->word_embeddings->spec;
    const bool whole = (!assay_param_sum_over_tp(p, m->grid) || is_first(run, ASSAY_GROUP_TP)) &&
                       is_first(run, assay_param_reduce_group(p)) &&
                       (!tied || is_first(run, ASSAY_GROUP_EMBEDDING));
    const int64_t shared = assay_param_shared_from(p, m->grid, count);
    *out = (contribution){0, !whole ? 0 : is_first(run, ASSAY_GROUP_KV) ? count : shared};
    return true;
}

/* The experts that the reference chose in the layer of `name`: I64 [...,K]; NULL: not recorded. */
static const assay_trace_tensor *choice_of(const values *s, const char *name, int64_t step,
                                           int64_t microbatch)
{
    char indices[ASSAY_NAME];
    const char *at = strstr(name, ".mlp.");
    if (at == NULL)
        return NULL;
    snprintf(indices, sizeof indices, "%.*s.mlp.router.indices", (int)(at - name), name);
    return find(s, indices, ASSAY_PHASE_FORWARD, step, microbatch);
}

/* The reference's rows, which lie by expert and then by token: chosen [n] has the expert of each choice, place [n] its row. */
static bool place_rows(const assay_trace_tensor *choice, int64_t n, int64_t experts, int64_t *chosen,
                       int64_t *place)
{
    int64_t *next = calloc((size_t)experts + 1, sizeof *next);
    bool legal = next != NULL;
    for (int64_t i = 0; legal && i < n; i++) {
        memcpy(&chosen[i], (const char *)choice->data + (size_t)i * sizeof *chosen, sizeof *chosen);
        legal = chosen[i] >= 0 && chosen[i] < experts;
        if (legal)
            next[chosen[i] + 1]++;
    }
    for (int64_t e = 0; legal && e < experts; e++)
        next[e + 1] += next[e];
    for (int64_t i = 0; legal && i < n; i++)
        place[i] = next[chosen[i]]++;
    free(next);
    return legal;
}

/* Rows of the piece by their names; padding gets zeros.  false: the reference has other rows. */
static bool take_rows(const values *s, const gpu_run *run, const gpu_value *v, const assay_trace_tensor *t,
                      double *out)
{
    const assay_trace_tensor *choice = choice_of(s, t->name, run->step, v->microbatch);
    const int64_t rows = v->rows ? v->rows->n : 0, count = gpu_tensor_count(v->t);
    const int64_t width = rows > 0 ? count / rows : 0, experts = s->model->config->num_moe_experts;
    const int64_t n = choice ? assay_shard_count(&choice->shard) : 0;
    if (count == 0)
        return true;
    if (n == 0 || choice->dtype != ASSAY_I64 || n * width != assay_shard_count(&t->shard))
        return false;
    const int64_t k = choice->shard.local_shape[choice->shard.ndim - 1];
    int64_t *chosen = calloc((size_t)n, sizeof *chosen), *place = calloc((size_t)n, sizeof *place);
    bool all = chosen && place && place_rows(choice, n, experts, chosen, place);
    for (int64_t i = 0; all && i < rows; i++) {
        const int64_t id = v->rows->ids[i], token = id / experts;
        int64_t at = id < 0 || (token + 1) * k > n ? -1 : token * k;
        const int64_t end = at + k;
        while (at >= 0 && at < end && chosen[at] != id % experts)
            at++;
        all = id < 0 || (at >= 0 && at < end);
        memset(out + i * width, 0, (size_t)width * sizeof *out);
        if (all && id >= 0)
            memcpy(out + i * width, (const char *)t->data + (size_t)(place[at] * width) * sizeof *out,
                   (size_t)width * sizeof *out);
    }
    free(place);
    free(chosen);
    return all;
}

static bool same_shape(const assay_shard *a, const assay_shard *b)
{
    bool same = a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->global_shape[d] == b->global_shape[d];
    return same;
}

/* Values of the piece [count]; false: the trace does not have them. */
static bool take_piece(const values *s, const gpu_run *run, const gpu_value *v, double *out)
{
    const int64_t n = gpu_tensor_count(v->t);
    char name[ASSAY_NAME];
    contribution part = {0, n};
    assay_shard piece;
    plain_name(s, v->name, name);
    const bool gradient = v->kind == ASSAY_PIECE_LOCAL;
    if (gradient && !gradient_share(s, run, name, n, &part))
        return false;
    const assay_trace_tensor *t = gradient ? find(s, name, ASSAY_PHASE_GRAD, run->step, -1)
                                           : find(s, name, v->phase, run->step, v->microbatch);
    if (t == NULL || t->dtype != ASSAY_F64)
        return false;
    if (v->kind == ASSAY_PIECE_ROWS)
        return take_rows(s, run, v, t, out);
    gpu_value_shard(v, &piece);
    if (t->kind != ASSAY_PIECE_SHARD || !same_shape(&piece, &t->shard) ||
        assay_shard_copy(out, &piece, t->data, &t->shard, sizeof *out, NULL, false, NULL) != n)
        return false;
    if (v->kind == ASSAY_PIECE_PARTIAL && !is_first(run, v->partial))
        part.last = 0;
    for (int64_t i = part.last; i < n; i++)
        out[i] = 0.0;
    return true;
}

/* --- rounding ----------------------------------------------------------------------------------------------- */
uint16_t gpu_round_bf16(double x)
{
    float f = (float)x;
    uint32_t bits;
    if (f != f)
        return 0x7FC0;
    memcpy(&bits, &f, sizeof bits);
    /* to odd first: the second rounding then sees on which side of the middle x lies */
    if ((double)f != x) {
        const double magnitude = x < 0.0 ? -x : x, found = f < 0.0f ? -(double)f : (double)f;
        bits -= found > magnitude;
        bits |= 1;
    }
    if ((bits & 0x7FFFFFFFu) == 0x7F800000u)
        return (uint16_t)(bits >> 16);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

static void store(const double *x, int64_t n, assay_dtype dtype, char *out)
{
    for (int64_t i = 0; i < n; i++) {
        const float f = (float)x[i];
        const uint16_t b = gpu_round_bf16(x[i]);
        if (dtype == ASSAY_F64)
            memcpy(out + (size_t)i * sizeof x[i], &x[i], sizeof x[i]);
        else if (dtype == ASSAY_F32)
            memcpy(out + (size_t)i * sizeof f, &f, sizeof f);
        else
            memcpy(out + (size_t)i * sizeof b, &b, sizeof b);
    }
}

static assay_status replace(values *s, gpu_run *run, gpu_value *v, bool *replaced)
{
    const int64_t n = gpu_tensor_count(v->t);
    assay_status st = ASSAY_OK;
    if (v->t.dtype != ASSAY_F32 && v->t.dtype != ASSAY_BF16 && v->t.dtype != ASSAY_F64)
        return ASSAY_OK; /* choices and counts stay the run's own */
    double *x = calloc((size_t)n + 1, sizeof *x);
    void *stored = calloc((size_t)n + 1, sizeof(double));
    ASSAY_CHECK_GOTO(x && stored, ASSAY_OUT_OF_MEMORY, st, done, "%s: %lld values", v->name, (long long)n);
    if (!take_piece(s, run, v, x))
        goto done;
    store(x, n, v->t.dtype, stored);
    *replaced = true;
    st = gpu_run_upload(run, v->t.data, stored, gpu_tensor_bytes(v->t), "substitute");
done:
    free(stored);
    free(x);
    return st;
}

/* --- the seam ----------------------------------------------------------------------------------------------- */
static assay_status substitute(void *user, gpu_run *run, const char *op, const char *instance,
                               const char *slot, const gpu_value *moved, gpu_value *output, bool *replaced)
{
    values *s = user;
    if (moved && moved->phase == output->phase)
        ASSAY_TRY(note_alias(s, output->name, moved->name));
    gpu_rule *rule = gpu_rules_values(run, op, instance, slot);
    if (rule == NULL)
        return ASSAY_OK;
    ASSAY_TRY(replace(s, run, output, replaced));
    rule->met += *replaced;
    return ASSAY_OK;
}

static assay_status open_values(gpu_model *m, const assay_train_options *o)
{
    gpu_run *run = m->run;
    ASSAY_CHECK(run->trace, ASSAY_INVALID_ARGUMENT,
                "--substitute %s: rules for values need --trace DIR, which says what was replaced",
                o->substitute);
    values *s = calloc(1, sizeof *s);
    ASSAY_CHECK(s, ASSAY_OUT_OF_MEMORY, "substitute");
    s->model = m;
    run->substitute = substitute;
    run->substitute_user = s;
    return read_trace(s, o->substitute_values);
}

static assay_status open_rules(gpu_model *m, const assay_train_options *o, bool first_rank)
{
    gpu_run *run = m->run;
    ASSAY_CHECK(o->substitute[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "--substitute-values: has no meaning without --substitute");
    ASSAY_TRY(gpu_rules_read(o->substitute, &run->rules));
    const bool wanted = run->rules->values;
    ASSAY_CHECK(wanted == (o->substitute_values[0] != '\0'), ASSAY_INVALID_ARGUMENT, "--substitute %s: %s",
                o->substitute,
                wanted ? "its rules for values need --substitute-values DIR"
                       : "none of its rules is for values, --substitute-values has no meaning");
    if (first_rank)
        fprintf(stderr, "WARNING: %lld rules of %s change what operations run or leave: for debugging\n",
                (long long)run->rules->n, o->substitute);
    return wanted ? open_values(m, o) : ASSAY_OK;
}

assay_status gpu_substitute_open(gpu_model *m, const assay_train_options *o, bool first_rank)
{
    const bool asked = o->substitute[0] != '\0' || o->substitute_values[0] != '\0';
    return asked ? open_rules(m, o, first_rank) : ASSAY_OK;
}

static void close_values(values *s)
{
    assay_trace_close(s->trace);
    free(s->sorted);
    free(s->aliases);
    free(s);
}

void gpu_substitute_close(gpu_run *run)
{
    gpu_rules_destroy(run->rules);
    run->rules = NULL;
    if (run->substitute == substitute)
        close_values(run->substitute_user);
    run->substitute = NULL;
}
