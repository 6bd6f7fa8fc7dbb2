/* What operations of two runs were called with.  An attribute that differs (a learning rate, an epsilon, a seed) explains the values
 * that it makes, which are all that a comparison of tensors shows.
 *
 * Sizes, counts and places follow from the data or the layout and show as tensors of other shapes: they are not compared.  Of two
 * engines or layouts neither are what belongs to one rank, what is divided by the number of microbatches, and dtypes. */
#include "core/base/text.h"
#include "core/model/ops.h"
#include "parity/run/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEY = 2 * ASSAY_NAME + 96 };

typedef struct walk {
    const diff_compare *d;
    parity_map *seen[2], *places; /* how often an operation ran; which one of the other trace it was */
    const assay_trace_op **ops;
    int64_t n;
} walk;

static bool is_one_of(const char *key, const char *const *list)
{
    while (*list != NULL && strcmp(*list, key) != 0)
        list++;
    return *list != NULL;
}

static bool is_compared(const diff_compare *d, const assay_trace_op *op, const char *key, const json_t *x)
{
    static const char *const integers[] = {"step",       "seed",   "stream",
                                           "draw",       "topk",   "num_groups",
                                           "group_topk", "window", "original_max_position_embeddings",
                                           NULL};
    static const char *const dtypes[] = {"dtype", "p_dtype", NULL};
    static const char *const own[] = {"seed", "stream", "draw", "reduction", "loss_scale", NULL};
    static const char *const stored[] = {"accumulate", "gradient_accumulation_fusion",
                                         NULL}; /* how a sum is kept, not what */
    const bool bits = d->alike && d->tolerance < 0.0 && d->noise == NULL;
    if (parity_is_collective(op->op) || is_one_of(key, stored) || (!bits && is_one_of(key, dtypes)))
        return false;
    if (!d->alike && (is_one_of(key, own) ||
                      (strcmp(key, "scale") == 0 && strncmp(op->op, "attention", strlen("attention")) != 0)))
        return false;
    if (json_is_integer(x)) { /* a real attribute may be written without a point */
        const assay_op *row = assay_op_find(op->op);
        const assay_op_attr *a = row != NULL ? assay_op_attr_find(row, key) : NULL;
        return is_one_of(key, integers) || (a != NULL && a->type == ASSAY_ATTR_DOUBLE);
    }
    return json_is_real(x) || json_is_boolean(x) || json_is_string(x);
}

/* Doubles that another engine derives may differ in their last bits (docs/OPS.md 9). */
static bool are_equal(const diff_compare *d, const json_t *x, const json_t *y)
{
    if (!json_is_number(x) || !json_is_number(y))
        return x != NULL && y != NULL && json_equal(x, y);
    const double a = json_number_value(x), b = json_number_value(y);
    const double share = fmax(d->tolerance, d->alike ? 0.0 : 0x1p-48);
    return a == b || fabs(a - b) <= share * fmax(fabs(a), fabs(b));
}

static void value_text(const json_t *x, char out[DIFF_VALUE])
{
    if (x == NULL)
        snprintf(out, DIFF_VALUE, "none");
    else if (json_is_number(x))
        snprintf(out, DIFF_VALUE, "%.15g", json_number_value(x));
    else if (json_is_boolean(x))
        snprintf(out, DIFF_VALUE, "%s", json_is_true(x) ? "true" : "false");
    else
        snprintf(out, DIFF_VALUE, "%.*s", DIFF_VALUE - 1,
                 json_string_value(x) != NULL ? json_string_value(x) : "?");
    assay_clean_text(out);
}

/* One that is not recorded is what docs/OPS.md says it is then. */
static bool is_default(const assay_trace_op *op, const char *key, const json_t *x)
{
    const assay_op *row = assay_op_find(op->op);
    const assay_op_attr *a = row != NULL ? assay_op_attr_find(row, key) : NULL;
    char text[DIFF_VALUE];
    value_text(x, text);
    return a != NULL && a->otherwise != NULL && strcmp(text, a->otherwise) == 0;
}

/* Of two numbers that look alike, all digits. */
static void values_text(const json_t *x, const json_t *y, diff_attribute *a)
{
    value_text(x, a->first);
    value_text(y, a->second);
    if (strcmp(a->first, a->second) == 0 && json_is_number(x) && json_is_number(y)) {
        snprintf(a->first, sizeof a->first, "%.17g", json_number_value(x));
        snprintf(a->second, sizeof a->second, "%.17g", json_number_value(y));
    }
}

static void key_of(const walk *w, const assay_trace_op *op, int64_t nth, char out[KEY])
{
    parity_key k = parity_key_begin(out, KEY);
    parity_key_text(&k, op->op);
    parity_key_text(&k, op->instance);
    parity_key_number(&k, (int64_t)op->phase);
    parity_key_number(&k, op->step);
    parity_key_number(&k, op->microbatch);
    parity_key_number(&k, w->d->alike ? op->rank : 0);
    parity_key_number(&k, nth);
}

/* The nth run of an operation in its trace; of other layouts the first of any rank stands for all. */
static assay_status next_key(walk *w, int trace, const assay_trace_op *op, char out[KEY], bool *first)
{
    key_of(w, op, -1, out);
    const int64_t n = parity_map_get(w->seen[trace], out) + 1;
    ASSAY_TRY(parity_map_put(w->seen[trace], out, n));
    key_of(w, op, w->d->alike ? n : 0, out);
    *first = w->d->alike || n == 0;
    return ASSAY_OK;
}

static assay_status note_other(walk *w)
{
    const assay_trace *t = w->d->other->trace;
    int64_t total = 0;
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        total += assay_trace_n_ops(t, rank);
    w->ops = malloc(((size_t)total + 1) * sizeof *w->ops);
    ASSAY_CHECK(w->ops != NULL, ASSAY_OUT_OF_MEMORY, "%lld operations", (long long)total);
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            char key[KEY];
            bool first;
            w->ops[w->n] = assay_trace_op_at(t, rank, i);
            ASSAY_TRY(next_key(w, 1, w->ops[w->n], key, &first));
            if (first)
                ASSAY_TRY(parity_map_put(w->places, key, w->n));
            w->n++;
        }
    return ASSAY_OK;
}

/* Where the first of its outputs stands in order of execution. */
static int64_t position_of(const walk *w, const assay_trace_op *op, const int64_t *positions)
{
    const parity_index *x = w->d->walked;
    int64_t least = INT64_MAX;
    for (int i = 0; i < op->n_outputs; i++) {
        const assay_trace_tensor *t = assay_trace_tensor_by_id(x->trace, op->rank, op->outputs[i].tensor);
        const parity_entry *e =
            t != NULL ? parity_index_find(x, t->name, t->phase, t->step, t->microbatch) : NULL;
        if (e != NULL && positions[e - x->entries] < least)
            least = positions[e - x->entries];
    }
    return least;
}

static void note(diff_attributes *out, const assay_trace_op *op, const char *key, const json_t *x,
                 const json_t *y, int64_t position)
{
    diff_attribute *a = out->row;
    const diff_attribute *end = a + out->n;
    out->total++;
    while (a < end && (strcmp(a->op->op, op->op) != 0 || strcmp(a->name, key) != 0))
        a++;
    if (a == end && out->n == DIFF_ATTRIBUTES) {
        out->more++;
        return;
    }
    const int64_t count = a == end ? 1 : a->count + 1;
    out->n += a == end;
    if (count == 1 || position < a->position) {
        *a = (diff_attribute){.op = op, .position = position};
        snprintf(a->name, sizeof a->name, "%s", key);
        assay_clean_text(a->name);
        values_text(x, y, a);
    }
    a->count = count;
}

static void compare(const walk *w, const assay_trace_op *a, const assay_trace_op *b, const int64_t *positions,
                    diff_attributes *out)
{
    const char *key;
    json_t *x, *y;
    int64_t position = -1;
    out->compared++;
    json_object_foreach(a->attrs, key, x)
    {
        y = json_object_get(b->attrs, key);
        if (!is_compared(w->d, a, key, x) || are_equal(w->d, x, y) ||
            (y == NULL && (!w->d->alike || is_default(a, key, x))))
            continue;
        position = position < 0 ? position_of(w, a, positions) : position;
        note(out, a, key, x, y, position);
    }
    json_object_foreach(b->attrs, key, y)
    {
        if (!w->d->alike || json_object_get(a->attrs, key) != NULL || !is_compared(w->d, b, key, y) ||
            is_default(b, key, y))
            continue;
        position = position < 0 ? position_of(w, a, positions) : position;
        note(out, a, key, NULL, y, position);
    }
}

static int by_position(const void *p, const void *q)
{
    const diff_attribute *x = p, *y = q;
    return (x->position > y->position) - (x->position < y->position);
}

assay_status diff_compare_attributes(const diff_compare *d, const int64_t *positions, diff_attributes *out)
{
    walk w = {.d = d};
    const assay_trace *t = d->walked->trace;
    assay_status st = ASSAY_OK;
    for (int k = 0; k < 2; k++)
        ASSAY_TRY_GOTO(parity_map_create(&w.seen[k]), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&w.places), st, done);
    ASSAY_TRY_GOTO(note_other(&w), st, done);
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(t, rank, i);
            char key[KEY];
            bool first;
            ASSAY_TRY_GOTO(next_key(&w, 0, op, key, &first), st, done);
            const int64_t at = first ? parity_map_get(w.places, key) : -1;
            if (at >= 0)
                compare(&w, op, w.ops[at], positions, out);
        }
    qsort(out->row, (size_t)out->n, sizeof *out->row, by_position);
done:
    free(w.ops);
    parity_map_destroy(w.places);
    parity_map_destroy(w.seen[1]);
    parity_map_destroy(w.seen[0]);
    return st;
}

void diff_attribute_text(const diff_attribute *a, char *out, size_t capacity)
{
    snprintf(out, capacity,
             "%s of %.200s (phase %s, step %lld): attribute %s is %s in the first run, %s in the second",
             a->op->op, a->op->instance, assay_phase_name(a->op->phase), (long long)a->op->step, a->name,
             a->first, a->second);
    assay_clean_text(out);
}

void diff_print_attributes(const diff_attributes *list, FILE *out)
{
    for (int i = 0; i < list->n; i++) {
        const diff_attribute *a = &list->row[i];
        char line[PARITY_TEXT], more[64] = "";
        diff_attribute_text(a, line, sizeof line);
        if (a->count > 1)
            snprintf(more, sizeof more, " (and of %lld more operations)", (long long)a->count - 1);
        fprintf(out, "%s%s%s\n", i == 0 ? "first attribute that differs: " : "  then: ", line, more);
    }
    if (list->more > 0)
        fprintf(out, "  and %lld more attributes\n", (long long)list->more);
}

json_t *diff_attributes_json(const diff_attributes *list)
{
    json_t *rows = json_array();
    for (int i = 0; i < list->n; i++) {
        const diff_attribute *a = &list->row[i];
        char instance[ASSAY_NAME];
        snprintf(instance, sizeof instance, "%s", a->op->instance);
        assay_clean_text(instance);
        json_array_append_new(rows,
                              json_pack("{s:s,s:s,s:s,s:I,s:s,s:s,s:s,s:I}", "op", a->op->op, "instance",
                                        instance, "phase", assay_phase_name(a->op->phase), "step",
                                        (json_int_t)a->op->step, "attribute", a->name, "first", a->first,
                                        "second", a->second, "operations", (json_int_t)a->count));
    }
    return rows;
}
