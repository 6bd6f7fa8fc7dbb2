/* Executed operations against expected ones. */
#include "parity/checks/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- attributes --------------------------------------------------------------------------------------------- */

static void attr_text(const plan_attr *a, char *out, size_t capacity)
{
    switch (a->type) {
    case PLAN_ANY:
        snprintf(out, capacity, "an integer");
        return;
    case PLAN_INT:
        snprintf(out, capacity, "%lld", (long long)a->integer);
        return;
    case PLAN_REAL:
        snprintf(out, capacity, "%.17g", a->real);
        return;
    case PLAN_TEXT:
        snprintf(out, capacity, "%s", a->text);
        return;
    case PLAN_BOOL:
        snprintf(out, capacity, "%s", a->integer != 0 ? "true" : "false");
        return;
    case PLAN_LIST:
        break;
    }
    size_t used = (size_t)snprintf(out, capacity, "[");
    for (int64_t i = 0; i < a->integer && used < capacity; i++)
        used +=
            (size_t)snprintf(out + used, capacity - used, "%s%lld", i > 0 ? ", " : "", (long long)a->list[i]);
    if (used < capacity)
        snprintf(out + used, capacity - used, "]");
}

static void json_text(const json_t *found, char *out, size_t capacity)
{
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) : NULL;
    snprintf(out, capacity, "%s", text ? text : "none");
    free(text);
}

static bool attr_holds(const plan_attr *a, const json_t *found)
{
    switch (a->type) {
    case PLAN_ANY: /* the choice of experts has failed by itself */
        return json_is_integer(found);
    case PLAN_INT:
        return json_is_integer(found) && json_integer_value(found) == a->integer;
    case PLAN_REAL:
        return json_is_number(found) && fabs(json_number_value(found) - a->real) <= a->slack;
    case PLAN_TEXT:
        return json_is_string(found) && strcmp(json_string_value(found), a->text) == 0;
    case PLAN_BOOL:
        return json_is_boolean(found) && json_is_true(found) == (a->integer != 0);
    case PLAN_LIST:
        break;
    }
    if (a->integer < 0) /* of a choice of experts that is not known: that has failed by itself */
        return json_is_array(found);
    bool same = json_is_array(found) && (int64_t)json_array_size(found) == a->integer;
    for (int64_t i = 0; same && i < a->integer; i++) {
        const json_t *one = json_array_get(found, (size_t)i);
        same = json_is_integer(one) && json_integer_value(one) == a->list[i];
    }
    return same;
}

/* What an operation may say of itself beside the plan: the format of attention's probabilities. */
static bool may_declare(const plan *p, const char *op, const char *name, const json_t *value)
{
    const char *text = json_string_value(value);
    const bool attention = strcmp(op, "attention_fwd") == 0 || strcmp(op, "attention_bwd") == 0;
    return attention && strcmp(name, "p_dtype") == 0 && text != NULL &&
           (strcmp(text, assay_dtype_name(p->accumulated)) == 0 ||
            strcmp(text, assay_dtype_name(p->act)) == 0);
}

static assay_status compare_attrs(plan_findings *f, const plan *p, const plan_op *wanted,
                                  const assay_trace_op *found, const plan_place *at)
{
    char want[160], have[160];
    for (int64_t i = 0; i < wanted->n_attrs; i++) {
        const plan_attr *a = &p->attrs[wanted->first_attr + i];
        const json_t *value = json_object_get(found->attrs, a->name);
        if (attr_holds(a, value)) {
            ASSAY_TRY(plan_holds(f, at));
            continue;
        }
        attr_text(a, want, sizeof want);
        json_text(value, have, sizeof have);
        ASSAY_TRY(plan_fails(f, at, a->name, "attribute %s: expected %s, found %s", a->name, want, have));
    }
    const char *name;
    json_t *value;
    json_object_foreach(found->attrs, name, value)
    {
        bool planned = may_declare(p, found->op, name, value);
        for (int64_t i = 0; i < wanted->n_attrs && !planned; i++)
            planned = strcmp(p->attrs[wanted->first_attr + i].name, name) == 0;
        if (planned)
            continue;
        json_text(value, have, sizeof have);
        ASSAY_TRY(plan_fails(f, at, name, "attribute %.60s: expected none, found %s", name, have));
    }
    return ASSAY_OK;
}

/* --- slots -------------------------------------------------------------------------------------------------- */

/* First number that differs, -1 when all are equal; a record without data is compared by its hash. */
static int64_t first_difference(const plan_tensor *w, const assay_trace_tensor *t)
{
    if (t->data == NULL && w->count > 0) {
        char hash[ASSAY_HASH_HEX];
        assay_hash_tensor_as(t->hash_kind, ASSAY_I64, t->shard.local_shape, t->shard.ndim, w->integers,
                             (size_t)w->count * sizeof *w->integers, hash);
        return strcmp(hash, t->hash) == 0 ? -1 : 0;
    }
    if (w->count > 0 && memcmp(t->data, w->integers, (size_t)w->count * sizeof *w->integers) == 0)
        return -1;
    for (int64_t i = 0; i < w->count; i++) {
        if (parity_decode_integer(t->data, i, ASSAY_I64) != w->integers[i])
            return i;
    }
    return -1;
}

/* The same of real numbers, whose bits count. */
static int64_t first_other_real(const plan_tensor *w, const assay_trace_tensor *t)
{
    const size_t width = sizeof *w->reals;
    if (t->data == NULL && w->count > 0) {
        char hash[ASSAY_HASH_HEX];
        assay_hash_tensor_as(t->hash_kind, ASSAY_F64, t->shard.local_shape, t->shard.ndim, w->reals,
                             (size_t)w->count * width, hash);
        return strcmp(hash, t->hash) == 0 ? -1 : 0;
    }
    const unsigned char *found = t->data, *expected = (const unsigned char *)w->reals;
    for (int64_t i = 0; i < w->count; i++)
        if (memcmp(found + (size_t)i * width, expected + (size_t)i * width, width) != 0)
            return i;
    return -1;
}

/* A choice of experts: rows of topk ascending numbers. */
static int64_t first_malformed(const plan_tensor *w, const assay_trace_tensor *t)
{
    const int64_t n = assay_shard_count(&t->shard);
    for (int64_t i = 0; i < n && t->data != NULL; i++) {
        const int64_t e = parity_decode_integer(t->data, i, ASSAY_I64);
        if (e < 0 || e >= w->experts ||
            (i % w->topk > 0 && e <= parity_decode_integer(t->data, i - 1, ASSAY_I64)))
            return i;
    }
    return t->data != NULL || n == 0 ? -1 : 0;
}

/* An output that claims to be of kind rows, or not to be, against the plan, and what claims to be a piece of nothing: written into
 * `text`. */
static bool wrong_kind(const plan *p, const plan_slot *s, const assay_trace_tensor *t, char *text,
                       size_t capacity)
{
    const bool wanted = s->tensor.rows != NULL, found = t->kind == ASSAY_PIECE_ROWS;
    if (s->output && wanted != found)
        snprintf(text, capacity, "expected %s, found kind %s",
                 wanted ? "kind rows" : "another kind than rows", assay_piece_kind_name(t->kind));
    else if (t->kind == ASSAY_PIECE_LOCAL && !plan_may_be_local(p, t->name, t->phase))
        snprintf(text, capacity, "expected a piece of the whole tensor, found kind local");
    else
        return false;
    return true;
}

/* A record of kind rows whose ids are not those of the plan.  Ids that many tensors name are reported where they are
 * named first. */
static bool wrong_rows(const plan_tensor *w, const assay_trace *trace, const assay_trace_tensor *t,
                       char *text, size_t capacity)
{
    if (t->kind != ASSAY_PIECE_ROWS || w->rows == NULL || w->rows->any || w->rows->failed == t->rows_id)
        return false;
    const plan_tensor ids = {.integers = w->rows->ids, .count = w->rows->n};
    const assay_trace_tensor *named = assay_trace_tensor_by_id(trace, t->rank, t->rows_id);
    const int64_t n = named ? assay_shard_count(&named->shard) : -1;
    const bool as_many = named && n == ids.count;
    const int64_t i = as_many ? first_difference(&ids, named) : 0;
    if (i < 0)
        return false;
    if (as_many)
        snprintf(text, capacity, "row %lld: expected row id %lld, found %lld", (long long)i,
                 (long long)ids.integers[i],
                 named->data ? (long long)parity_decode_integer(named->data, i, ASSAY_I64) : -1LL);
    else
        snprintf(text, capacity, "expected %lld rows, found %lld", (long long)ids.count, (long long)n);
    w->rows->failed = t->rows_id;
    return true;
}

/* What is wrong with the content of a record, written into `text`; false when nothing is. */
static bool wrong_value(const plan_tensor *w, const assay_trace_tensor *t, char *text, size_t capacity)
{
    const int64_t n = assay_shard_count(&t->shard);
    if (w->shard != NULL && !parity_same_shard(w->shard, &t->shard)) {
        snprintf(text, capacity, "expected the piece of %s that this rank owns, found another", w->name);
        return true;
    }
    if (w->reals != NULL) {
        snprintf(text, capacity, "expected %lld numbers, found %lld", (long long)w->count, (long long)n);
        if (n != w->count || t->dtype != ASSAY_F64)
            return true;
        const int64_t i = first_other_real(w, t);
        if (i >= 0)
            snprintf(text, capacity, "element %lld: expected %.17g, found %.17g", (long long)i, w->reals[i],
                     t->data ? parity_decode(t->data, i, ASSAY_F64) : (double)NAN);
        return i >= 0;
    }
    if (w->integers != NULL) {
        snprintf(text, capacity, "expected %lld numbers, found %lld", (long long)w->count, (long long)n);
        if (n != w->count)
            return true;
        const int64_t i = first_difference(w, t);
        if (i >= 0)
            snprintf(text, capacity, "element %lld: expected %lld, found %lld", (long long)i,
                     (long long)w->integers[i],
                     t->data ? (long long)parity_decode_integer(t->data, i, ASSAY_I64) : -1LL);
        return i >= 0;
    }
    if (w->experts > 0) {
        const int64_t i = first_malformed(w, t);
        snprintf(text, capacity, "element %lld is no expert that ascends below %lld, or is not recorded",
                 (long long)i, (long long)w->experts);
        return i >= 0;
    }
    return false;
}

static assay_status compare_tensor(plan_findings *f, const plan *p, const plan_slot *s,
                                   const assay_trace *trace, const assay_trace_tensor *t,
                                   const plan_place *at)
{
    const plan_tensor *w = &s->tensor;
    const char *word = s->output ? "output" : "input";
    char text[200];
    if (t == NULL)
        return plan_fails(f, at, s->slot, "%s %s: expected %s, found none", word, s->slot, w->name);
    if (strcmp(t->name, w->name) != 0 || t->phase != w->phase || t->microbatch != w->microbatch)
        return plan_fails(f, at, s->slot,
                          "%s %s: expected %.100s (%s, microbatch %lld), found %.100s (%s, microbatch %lld)",
                          word, s->slot, w->name, assay_phase_name(w->phase), (long long)w->microbatch,
                          t->name, assay_phase_name(t->phase), (long long)t->microbatch);
    if (t->step != at->step)
        return plan_fails(f, at, s->slot, "%s %s, %s: expected step %lld, found step %lld", word, s->slot,
                          w->name, (long long)at->step, (long long)t->step);
    if (t->dtype != w->dtype)
        return plan_fails(f, at, s->slot, "%s %s, %s: expected dtype %s, found %s", word, s->slot, w->name,
                          assay_dtype_name(w->dtype), assay_dtype_name(t->dtype));
    if (wrong_value(w, t, text, sizeof text) || wrong_kind(p, s, t, text, sizeof text) ||
        wrong_rows(w, trace, t, text, sizeof text))
        return plan_fails(f, at, s->slot, "%s %s, %.120s: %s", word, s->slot, w->name, text);
    return plan_holds(f, at);
}

static assay_status compare_slots(plan_findings *f, const plan *p, const plan_op *wanted,
                                  const assay_trace *t, const assay_trace_op *found, const plan_place *at)
{
    bool planned[2][ASSAY_MAX_SLOTS] = {{false}};
    for (int64_t i = 0; i < wanted->n_slots; i++) {
        const plan_slot *s = &p->slots[wanted->first_slot + i];
        const assay_trace_slot *slots = s->output ? found->outputs : found->inputs;
        const int n = s->output ? found->n_outputs : found->n_inputs;
        const assay_trace_tensor *record = NULL;
        for (int k = 0; k < n && record == NULL; k++) {
            if (strcmp(slots[k].slot, s->slot) != 0)
                continue;
            planned[s->output][k] = true;
            record = assay_trace_tensor_by_id(t, p->rank, slots[k].tensor);
        }
        ASSAY_TRY(compare_tensor(f, p, s, t, record, at));
    }
    for (int output = 0; output < 2; output++) {
        const assay_trace_slot *slots = output ? found->outputs : found->inputs;
        for (int k = 0; k < (output ? found->n_outputs : found->n_inputs); k++) {
            const assay_trace_tensor *record = assay_trace_tensor_by_id(t, p->rank, slots[k].tensor);
            if (!planned[output][k])
                ASSAY_TRY(plan_fails(f, at, slots[k].slot, "%s %s: expected none, found %.120s",
                                     output ? "output" : "input", slots[k].slot,
                                     record ? record->name : "nothing"));
        }
    }
    return ASSAY_OK;
}

/* --- groups ------------------------------------------------------------------------------------------------- */

static size_t ranks_text(const int *ranks, int n, char *out, size_t capacity)
{
    size_t used = (size_t)snprintf(out, capacity, "[");
    for (int i = 0; i < n && used < capacity; i++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%d", i > 0 ? ", " : "", ranks[i]);
    return used < capacity ? used + (size_t)snprintf(out + used, capacity - used, "]") : used;
}

static assay_status compare_group(plan_findings *f, const plan *p, const plan_op *wanted,
                                  const assay_trace_op *found, const plan_place *at)
{
    char want[120], have[120];
    if (wanted->group < 0) {
        if (found->group[0] == '\0')
            return ASSAY_OK;
        return plan_fails(f, at, "group", "group: expected none, found %s", found->group);
    }
    const assay_group kind = (assay_group)wanted->group;
    const int n = assay_grid_group(p->job->grid, kind, p->rank, NULL, NULL);
    int *ranks = calloc((size_t)n + 1, sizeof *ranks);
    ASSAY_CHECK(ranks, ASSAY_OUT_OF_MEMORY, "group of %d ranks", n);
    (void)assay_grid_group(p->job->grid, kind, p->rank, ranks, NULL);
    const bool same = strcmp(found->group, assay_group_name(kind)) == 0 && found->n_group_ranks == n &&
                      memcmp(found->group_ranks, ranks, (size_t)n * sizeof *ranks) == 0;
    assay_status st;
    if (same) {
        st = plan_holds(f, at);
    } else {
        ranks_text(ranks, n, want, sizeof want);
        ranks_text(found->group_ranks, found->n_group_ranks, have, sizeof have);
        st = plan_fails(f, at, "group", "group: expected %s %s, found %s %s", assay_group_name(kind), want,
                        found->group[0] != '\0' ? found->group : "none", have);
    }
    free(ranks);
    return st;
}

assay_status plan_compare_op(plan_findings *f, const plan *p, const plan_op *wanted, const assay_trace *t,
                             const assay_trace_op *found, const plan_place *at)
{
    ASSAY_TRY(plan_holds(f, at)); /* it is there */
    ASSAY_TRY(compare_group(f, p, wanted, found, at));
    ASSAY_TRY(compare_attrs(f, p, wanted, found, at));
    return compare_slots(f, p, wanted, t, found, at);
}
