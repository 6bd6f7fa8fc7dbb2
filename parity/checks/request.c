/* Building the request of the operations alone: one record after the other, inputs only. */
#include "parity/checks/request.h"
#include "core/model/ops.h"

#include "core/base/philox.h"
#include <stdlib.h>
#include <string.h>

bool parity_asked_on_lattice(const assay_trace_op *op)
{
    return strncmp(op->instance, "exact.", 6) == 0;
}

bool parity_ask_wants(const parity_ask *q, const char *op)
{
    return q->only != NULL ? strcmp(q->only, op) == 0 : !assay_op_find(op)->foreign;
}

void parity_ask_begin(parity_ask *q, const char *op)
{
    memset(&q->op, 0, sizeof q->op);
    q->off = !parity_ask_wants(q, op);
    snprintf(q->op.op, sizeof q->op.op, "%s", op);
    snprintf(q->op.instance, sizeof q->op.instance, "%s.%s.%lld", q->tier, op, (long long)q->n);
    q->op.phase = ASSAY_PHASE_FORWARD;
    q->op.microbatch = -1;
    q->op.arith = assay_declaration_make(assay_arith_elementwise());
    json_decref(q->attrs);
    q->attrs = json_object();
    json_object_set_new(q->attrs, "act", json_string(assay_dtype_name(q->act)));
}

void parity_ask_int(parity_ask *q, const char *key, int64_t value)
{
    json_object_set_new(q->attrs, key, json_integer(value));
}

void parity_ask_text(parity_ask *q, const char *key, const char *value)
{
    json_object_set_new(q->attrs, key, json_string(value));
}

void parity_ask_bytes(parity_ask *q, const char *slot, assay_dtype dtype, int ndim, const int64_t *shape,
                      const void *data)
{
    assay_trace_tensor t;
    memset(&t, 0, sizeof t);
    if (q->st != ASSAY_OK || q->off)
        return;
    snprintf(t.name, sizeof t.name, "%.120s.%s", q->op.instance, slot);
    t.phase = q->op.phase;
    t.microbatch = -1;
    t.dtype = dtype;
    t.kind = ASSAY_PIECE_LOCAL;
    t.rows_id = -1;
    assay_shard_whole(&t.shard, shape, ndim);
    q->st = assay_trace_write_tensor(q->w, &t, data);
    const int i = q->op.n_inputs++;
    snprintf(q->op.inputs[i].slot, ASSAY_SLOT_NAME, "%s", slot);
    q->op.inputs[i].tensor = t.id;
    memcpy(q->shapes[i], shape, (size_t)ndim * sizeof *shape);
    q->operands[i] = (assay_op_operand){q->op.inputs[i].slot, dtype, ndim, q->shapes[i]};
}

void parity_ask_real(parity_ask *q, const char *slot, assay_dtype dtype, int ndim, const int64_t *shape,
                     parity_fill value)
{
    int64_t count = 1;
    if (q->off)
        return;
    for (int d = 0; d < ndim; d++)
        count *= shape[d];
    const size_t width = (size_t)assay_dtype_bytes(dtype);
    unsigned char *bytes = calloc((size_t)count + 1, width);
    if (!bytes) {
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: %lld elements", (long long)count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const double x = ref_round(value(q, i), dtype);
        const float f = (float)x;
        uint32_t bits;
        if (dtype == ASSAY_F64) {
            memcpy(bytes + (size_t)i * width, &x, width);
            continue;
        }
        memcpy(&bits, &f, sizeof bits);
        const uint16_t upper = (uint16_t)(bits >> 16); /* a BF16 value is the upper half of its F32 value */
        memcpy(bytes + (size_t)i * width, dtype == ASSAY_BF16 ? (const void *)&upper : (const void *)&bits,
               width);
    }
    parity_ask_bytes(q, slot, dtype, ndim, shape, bytes);
    free(bytes);
}

void parity_ask_2d(parity_ask *q, const char *slot, assay_dtype dtype, int64_t rows, int64_t columns,
                   parity_fill value)
{
    parity_ask_real(q, slot, dtype, 2, (int64_t[]){rows, columns}, value);
}

void parity_ask_i64(parity_ask *q, const char *slot, int64_t n, const int64_t *values)
{
    parity_ask_bytes(q, slot, ASSAY_I64, 1, &n, values);
}

void parity_ask_finish(parity_ask *q)
{
    if (q->st != ASSAY_OK || q->off)
        return;
    const assay_op *row = assay_op_find(q->op.op);
    q->op.attrs = q->attrs;
    q->st = row == NULL
                ? ASSAY_ERROR(ASSAY_INTERNAL, "%s: no row of docs/OPS.md", q->op.op)
                : assay_op_check(row, q->attrs, q->act, q->act, q->operands, q->op.n_inputs, NULL, -1, NULL);
    if (q->st == ASSAY_OK)
        q->st = assay_trace_write_op(q->w, &q->op);
    else
        assay_context(q->st, "the call that is asked as %s", q->op.instance);
    q->n++;
}

void parity_ask_floats(parity_ask *q, const char *slot, int ndim, const int64_t *shape, const float *values)
{
    int64_t count = 1;
    for (int d = 0; d < ndim; d++)
        count *= shape[d];
    if (q->act == ASSAY_F32) {
        parity_ask_bytes(q, slot, ASSAY_F32, ndim, shape, values);
        return;
    }
    uint16_t *narrow = calloc((size_t)count + 1, sizeof *narrow);
    for (int64_t i = 0; narrow && i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        narrow[i] = (uint16_t)(bits >> 16);
    }
    if (narrow)
        parity_ask_bytes(q, slot, ASSAY_BF16, ndim, shape, narrow);
    else
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request");
    free(narrow);
}

void parity_ask_real_attr(parity_ask *q, const char *key, double value)
{
    json_object_set_new(q->attrs, key, json_real(value));
}

/* --- values ------------------------------------------------------------------------------------------------- */

double parity_lattice(const parity_ask *q, int64_t i)
{
    return (double)assay_philox_below((uint64_t)q->n, (uint64_t)q->op.n_inputs, (uint64_t)i, 9) - 4.0;
}

double parity_unique(const parity_ask *q, int64_t i)
{
    const int64_t base = 1 + i + 4096 * (int64_t)q->rank;
    if (i % 29 == 13) /* a copy keeps the sign of a zero */
        return -0.0;
    return q->act == ASSAY_BF16 ? (double)(base % 251 + 1) : (double)base;
}

double parity_zeros(const parity_ask *q, int64_t i)
{
    return parity_lattice(q, i) > 0.0 ? parity_lattice(q, i) : i % 3 == 0 ? -0.0 : 0.0;
}

double parity_sign(const parity_ask *q, int64_t i)
{
    return parity_lattice(q, i) > 0.0 ? 1.0 : -1.0;
}

double parity_zero(const parity_ask *q, int64_t i)
{
    (void)q;
    (void)i;
    return 0.0;
}
