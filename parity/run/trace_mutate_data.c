/* Planting faults in what the records of a copied trace hold. */
#include "parity/run/trace_copier.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static assay_status put(void *data, int64_t index, assay_dtype dtype, double x)
{
    char *p = (char *)data + index * assay_dtype_bytes(dtype);
    const float f = (float)ref_round(x, dtype == ASSAY_BF16 ? ASSAY_BF16 : ASSAY_F32);
    const int64_t n = parity_is_integer(dtype) ? (int64_t)x : 0;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t upper = (uint16_t)(bits >> 16);
    switch (dtype) {
    case ASSAY_F64:
        memcpy(p, &x, sizeof x);
        return ASSAY_OK;
    case ASSAY_F32:
        memcpy(p, &f, sizeof f);
        return ASSAY_OK;
    case ASSAY_BF16:
        memcpy(p, &upper, sizeof upper);
        return ASSAY_OK;
    case ASSAY_I64:
        memcpy(p, &n, sizeof n);
        return ASSAY_OK;
    default:
        ASSAY_FAIL(ASSAY_UNSUPPORTED, "a fault in values of dtype %s", assay_dtype_name(dtype));
    }
}

/* A value whose distance from the truth is twice the bound and an ulp more. */
static assay_status beyond_bound(const parity_copier *c, int64_t index, double *out)
{
    ref_value inputs[ASSAY_MAX_SLOTS], found[ASSAY_MAX_SLOTS];
    int n_inputs = 0, n_found = 0;
    parity_result problem;
    ref_replay_result result;
    assay_status st = ASSAY_OK;
    parity_result_init(&problem);
    memset(&result, 0, sizeof result);
    ASSAY_TRY_GOTO(parity_read_slots(c->from, c->target, true, inputs, &n_inputs, &problem), st, done);
    ASSAY_TRY_GOTO(parity_read_slots(c->from, c->target, false, found, &n_found, &problem), st, done);
    ASSAY_TRY_GOTO(ref_replay(c->target->op, c->target->attrs, &c->target->arith, inputs, n_inputs, found,
                              n_found, &result),
                   st, done);
    const ref_value *truth = parity_find_value(result.outputs, result.n_outputs, c->m->slot);
    ASSAY_CHECK_GOTO(truth && truth->value && index < truth->count, ASSAY_NOT_FOUND, st, done,
                     "%s has no real output %s", c->target->op, c->m->slot);
    const double bound = truth->bound ? truth->bound[index] : 0.0;
    *out = truth->value[index] +
           2.0 * (bound + ref_ulp(fabs(truth->value[index]) + bound, c->target_tensor->dtype));
done:
    ref_replay_free(&result);
    parity_free_slots(inputs, n_inputs);
    parity_free_slots(found, n_found);
    return st;
}

static assay_status swap_rows(const assay_trace_tensor *t, char *data)
{
    const int64_t rows = t->shard.ndim > 0 ? t->shard.local_shape[0] : 0;
    const size_t bytes = rows >= 2 ? t->bytes / (size_t)rows : 0;
    ASSAY_CHECK(bytes > 0 && memcmp(data, data + bytes, bytes) != 0, ASSAY_NOT_FOUND,
                "%s: no two different rows to swap", t->name);
    for (size_t i = 0; i < bytes; i++) {
        const char x = data[i];
        data[i] = data[bytes + i];
        data[bytes + i] = x;
    }
    return ASSAY_OK;
}

/* One expert of the first row becomes the lowest one that was not chosen; the row stays ascending. */
static assay_status change_expert(const assay_trace_tensor *t, char *data)
{
    const int64_t k = t->shard.ndim > 0 ? t->shard.local_shape[t->shard.ndim - 1] : 0;
    ASSAY_CHECK(t->dtype == ASSAY_I64 && k > 0 && assay_shard_count(&t->shard) >= k, ASSAY_NOT_FOUND,
                "%s: no choice of experts", t->name);
    int64_t unused = 0;
    while (unused < k && parity_decode_integer(data, unused, ASSAY_I64) == unused)
        unused++;
    return put(data, unused < k ? unused : k - 1, ASSAY_I64, (double)(unused < k ? unused : k));
}

/* Every number takes the place of the one before it, the first the last one's. */
static void shift(const assay_trace_tensor *t, char *data)
{
    const size_t width = (size_t)assay_dtype_bytes(t->dtype);
    const char *from = t->data;
    memcpy(data, from + width, t->bytes - width);
    memcpy(data + t->bytes - width, from, width);
}

static assay_status take_content(const assay_trace_tensor *from, const assay_trace_tensor *t, char *data)
{
    ASSAY_CHECK(from && from->data && from->bytes == t->bytes && from->dtype == t->dtype &&
                    memcmp(from->data, t->data, t->bytes) != 0,
                ASSAY_NOT_FOUND, "%s: nothing of its size that differs", t->name);
    memcpy(data, from->data, t->bytes);
    return ASSAY_OK;
}

static assay_status change_all(const assay_trace_tensor *t, char *data, double factor)
{
    for (int64_t i = 0; i < assay_shard_count(&t->shard); i++)
        ASSAY_TRY(put(data, i, t->dtype, factor * parity_decode(t->data, i, t->dtype)));
    return ASSAY_OK;
}

assay_status parity_copier_change(parity_copier *c, const assay_trace_tensor *t, char *data)
{
    const int64_t at = assay_shard_count(&t->shard) / 2;
    ASSAY_CHECK(assay_shard_count(&t->shard) > 0 && t->data, ASSAY_NOT_FOUND, "%s: nothing to change",
                t->name);
    double x = 1.5 * parity_decode(t->data, at, t->dtype) + 1.0;
    const uint32_t poison = 0x7fa5a5a5u;
    const uint16_t narrow_poison = 0x7fa5u;
    c->planted = true;
    if (parity_copier_is(c, "swap_rows"))
        return swap_rows(t, data);
    if (parity_copier_is(c, "expert"))
        return change_expert(t, data);
    if (parity_copier_is(c, "row_other_rank"))
        return parity_mutate_row_ids(c->from, c->target, c->m, t, data);
    if (parity_copier_is(c, "shift") || parity_copier_is(c, "row_shift")) {
        shift(t, data);
        return ASSAY_OK;
    }
    if (parity_copier_is(c, "other_rank"))
        return take_content(parity_mutate_twin(c->from, c->target, c->m), t, data);
    if (parity_copier_is(c, "unreduced"))
        return take_content(assay_trace_tensor_by_id(c->from, c->rank, c->target->inputs[0].tensor), t, data);
    if (parity_copier_is(c, "sign"))
        return change_all(t, data, -1.0);
    if (parity_copier_is(c, "double"))
        return change_all(t, data, 2.0);
    if (parity_copier_is(c, "element"))
        ASSAY_TRY(beyond_bound(c, at, &x));
    if (parity_copier_is(c, "nan"))
        x = (double)NAN;
    if (parity_copier_is(c, "poison") && (t->dtype == ASSAY_F32 || t->dtype == ASSAY_BF16)) {
        const bool wide = t->dtype == ASSAY_F32;
        memcpy(data + at * (wide ? 4 : 2), wide ? (const void *)&poison : (const void *)&narrow_poison,
               wide ? 4 : 2);
        return ASSAY_OK;
    }
    return put(data, at, t->dtype, x);
}

assay_status parity_copier_store_as(assay_dtype dtype, assay_trace_tensor *t, char *data)
{
    const assay_dtype old = dtype == ASSAY_F32 ? ASSAY_BF16 : ASSAY_F32;
    ASSAY_CHECK(t->dtype == old, ASSAY_NOT_FOUND, "%s: not %s", t->name, assay_dtype_name(old));
    for (int64_t i = 0; i < assay_shard_count(&t->shard); i++)
        ASSAY_TRY(put(data, i, dtype, parity_decode(t->data, i, old)));
    t->dtype = dtype;
    return ASSAY_OK;
}
