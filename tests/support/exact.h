/* Answers of the reference to requests of single operations, with one element changed where a test asks for it. */
#ifndef TESTS_SUPPORT_EXACT_H
#define TESTS_SUPPORT_EXACT_H

#include "core/model/ops.h"
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

/* What an engine that stores its floats otherwise would answer. */
static assay_dtype stored_floats = ASSAY_F32;

/* Stored dtype of an output: sums in double, integers and what a collective moves as they are, what an attribute says, the rest F32. */
static inline assay_dtype stored(const assay_trace_op *asked, const ref_value *v)
{
    const char *op = asked->op, *said = json_string_value(json_object_get(asked->attrs, "dtype"));
    if (v->ivalue)
        return ASSAY_I64;
    if (!ref_replay_knows(op))
        return v->dtype;
    static const char *const in_double[] = {"sumsq", "sum", "total", "clip_coefficient"};
    for (size_t i = 0; i < sizeof in_double / sizeof *in_double; i++)
        if (strcmp(op, in_double[i]) == 0)
            return ASSAY_F64;
    return said && strcmp(said, "BF16") == 0 ? ASSAY_BF16 : stored_floats;
}

/* An output's shape by the table: the reference's values may be flat. */
static inline void shape_of(const assay_trace *request, const assay_trace_op *asked, const ref_value *v,
                            int *ndim, int64_t shape[ASSAY_OP_DIMS])
{
    const assay_op *row = assay_op_find(asked->op);
    const assay_op_slot *slot = row ? assay_op_slot_find(row, v->slot, true) : NULL;
    assay_op_operand in[ASSAY_MAX_SLOTS];
    assay_op_binding binding;
    assay_dtype dtype;
    *ndim = v->ndim;
    memcpy(shape, v->shape, (size_t)v->ndim * sizeof *shape);
    if (!slot || row->collective)
        return;
    for (int i = 0; i < asked->n_inputs; i++) {
        const assay_trace_tensor *x = assay_trace_op_tensor(request, asked, asked->inputs[i].slot);
        in[i] = (assay_op_operand){asked->inputs[i].slot, x->dtype, x->shard.ndim, x->shard.local_shape};
    }
    must(assay_op_check(row, asked->attrs, ASSAY_F32, ASSAY_F32, in, asked->n_inputs, NULL, -1, &binding));
    must(assay_op_output(row, slot, asked->attrs, in, asked->n_inputs, &binding, &dtype, ndim, shape));
}

static inline int64_t write_output(assay_trace_writer *w, const assay_trace *request,
                                   const assay_trace_op *op, const ref_value *v, bool change)
{
    char name[ASSAY_NAME];
    int64_t shape[ASSAY_OP_DIMS];
    int ndim;
    snprintf(name, sizeof name, "%.100s.%s", op->instance, v->slot);
    const assay_dtype dtype = stored(op, v);
    shape_of(request, op, v, &ndim, shape);
    assay_trace_tensor t = tensor_of(name, ASSAY_PHASE_FORWARD, dtype, ndim, shape);
    t.microbatch = -1;
    char *bytes = calloc((size_t)v->count + 1, 8);
    for (int64_t i = 0; i < v->count; i++) {
        const float f = v->value ? (float)ref_round(v->value[i], dtype == ASSAY_BF16 ? dtype : ASSAY_F32) : 0;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        if (dtype == ASSAY_BF16)
            memcpy(bytes + 2 * i, (const char *)&bits + 2, 2);
        else if (dtype == ASSAY_F32)
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
        bytes[dtype == ASSAY_BF16  ? 2 * (v->count / 2) + 1
              : dtype == ASSAY_F32 ? 4 * (v->count / 2) + 2
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
            op_out(&op, v->slot, write_output(w, request, asked, v, change && i == 0));
            changed = changed || (change && i == 0 && v->count > 0);
        }
        ref_replay_free(&result);
        /* what the reference judges where an answer has it, and an answer must have */
        if (strcmp(asked->op, "qkv_norm_rope_fwd") == 0) {
            must(ref_replay("qkv_split_fwd", asked->attrs, &asked->arith, inputs, asked->n_inputs, NULL, 0,
                            &result));
            for (int i = 0; i < 2; i++) {
                snprintf(result.outputs[i].slot, sizeof result.outputs[i].slot, "%s",
                         i == 0 ? "q_raw" : "k_raw");
                op_out(&op, result.outputs[i].slot,
                       write_output(w, request, asked, &result.outputs[i], false));
            }
            ref_replay_free(&result);
        }
    } else { /* a collective of one rank is a copy */
        op_out(&op, "recv", write_output(w, request, asked, &inputs[0], change));
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
