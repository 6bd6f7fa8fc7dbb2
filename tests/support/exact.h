/* Answers of the reference to requests of single operations, with one element changed where a test asks for it. */
#ifndef TESTS_SUPPORT_EXACT_H
#define TESTS_SUPPORT_EXACT_H

#include "ref/ops.h"
#include "tests/support/parity.h"

static inline void decode(const assay_trace_tensor *t, const char *slot, ref_value *v)
{
    memset(v, 0, sizeof *v);
    snprintf(v->slot, sizeof v->slot, "%s", slot);
    v->dtype = t->dtype;
    v->ndim = t->shard.ndim;
    memcpy(v->shape, t->shard.local_shape, sizeof v->shape);
    v->count = assay_shard_count(&t->shard);
    if (t->dtype == ASSAY_I64) {
        v->ivalue = malloc((size_t)v->count * 8 + 8);
        if (v->count)
            memcpy(v->ivalue, t->data, (size_t)v->count * 8);
        return;
    }
    v->value = malloc((size_t)v->count * 8 + 8);
    for (int64_t i = 0; i < v->count; i++) {
        float f;
        if (t->dtype == ASSAY_F64) {
            memcpy(&v->value[i], (const char *)t->data + 8 * i, 8);
            continue;
        }
        memcpy(&f, (const char *)t->data + 4 * i, 4);
        v->value[i] = (double)f;
    }
}

/* Stored dtype of an output: sums in double, integers and what a collective moves as they are, the rest F32. */
static inline assay_dtype stored(const char *op, const ref_value *v)
{
    if (v->ivalue)
        return ASSAY_I64;
    if (!ref_replay_knows(op))
        return v->dtype;
    static const char *const in_double[] = {"sumsq", "sum", "total", "clip_coefficient"};
    for (size_t i = 0; i < sizeof in_double / sizeof *in_double; i++)
        if (strcmp(op, in_double[i]) == 0)
            return ASSAY_F64;
    return ASSAY_F32;
}

static inline int64_t write_output(assay_trace_writer *w, const assay_trace_op *op, const ref_value *v,
                                   bool change)
{
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "%.100s.%s", op->instance, v->slot);
    const assay_dtype dtype = stored(op->op, v);
    assay_trace_tensor t = tensor_of(name, ASSAY_PHASE_FORWARD, dtype, v->ndim, v->shape);
    t.microbatch = -1;
    char *bytes = calloc((size_t)v->count + 1, 8);
    for (int64_t i = 0; i < v->count; i++) {
        const float f = v->value ? (float)v->value[i] : 0;
        if (dtype == ASSAY_F32)
            memcpy(bytes + 4 * i, &f, 4);
        else
            memcpy(bytes + 8 * i,
                   dtype == ASSAY_I64 ? (const void *)&v->ivalue[i] : (const void *)&v->value[i], 8);
    }
    if (change && v->count > 0 && dtype == ASSAY_F32) {
        const int64_t at = v->count / 2; /* far beyond every bound of random inputs */
        float f;
        memcpy(&f, bytes + 4 * at, 4);
        f = 1000.5f - 3.0f * f; /* also where the truth is a residue near 0 */
        memcpy(bytes + 4 * at, &f, 4);
    } else if (change && v->count > 0)
        bytes[dtype == ASSAY_F32   ? 4 * (v->count / 2) + 2
              : dtype == ASSAY_F64 ? 8 * (v->count / 2) + 6
                                   : 8 * (v->count / 2)] ^= 0x20;
    must(assay_trace_write_tensor(w, &t, bytes));
    free(bytes);
    return t.id;
}

/* Answers one operation with the reference, as kernel k`variant`; returns whether something could be changed. */
static inline bool answer_as(assay_trace_writer *w, const assay_trace *request, const assay_trace_op *asked,
                             int variant, bool change)
{
    ref_value inputs[ASSAY_MAX_SLOTS];
    assay_trace_op op = *asked;
    op.n_inputs = op.n_outputs = 0;
    op.variant = variant;
    for (int i = 0; i < asked->n_inputs; i++) {
        const assay_trace_tensor *from = assay_trace_op_tensor(request, asked, asked->inputs[i].slot);
        assay_trace_tensor t = *from;
        decode(from, asked->inputs[i].slot, &inputs[i]);
        must(assay_trace_write_tensor(w, &t, from->data));
        op_in(&op, asked->inputs[i].slot, t.id);
    }
    bool changed = false;
    if (ref_replay_knows(asked->op)) {
        ref_replay_result result;
        must(ref_replay(asked->op, asked->attrs, &asked->arith, inputs, asked->n_inputs, NULL, 0, &result));
        for (int i = 0; i < result.n_outputs; i++) {
            ref_value *v = &result.outputs[i];
            op_out(&op, v->slot, write_output(w, asked, v, change && i == 0));
            changed = changed || (change && i == 0 && v->count > 0);
        }
        ref_replay_free(&result);
    } else { /* a collective of one rank is a copy */
        op_out(&op, "recv", write_output(w, asked, &inputs[0], change));
        snprintf(op.outputs[0].slot, ASSAY_SLOT_NAME, "recv");
        changed = change && inputs[0].count > 0;
    }
    for (int i = 0; i < asked->n_inputs; i++) {
        free(inputs[i].value);
        free(inputs[i].ivalue);
    }
    must(assay_trace_write_op(w, &op));
    return changed;
}

#endif
