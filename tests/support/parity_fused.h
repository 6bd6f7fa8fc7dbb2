/* Traces of operations that ran in one launch, in bf16, and what local says of them. */
#ifndef TESTS_SUPPORT_PARITY_FUSED_H
#define TESTS_SUPPORT_PARITY_FUSED_H

#include "ref/replay.h"
#include "tests/support/parity.h"
#include <math.h>

static inline float rounded(float x)
{
    return (float)ref_round((double)x, ASSAY_BF16);
}

/* Numbers that bf16 has. */
static inline int64_t put_bf16(assay_trace_writer *w, const char *name, int ndim, const int64_t *shape,
                               const float *data)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    uint16_t *half = malloc((size_t)n * sizeof *half + 1);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &data[i], sizeof bits);
        half[i] = (uint16_t)(bits >> 16);
    }
    assay_trace_tensor t = tensor_of(name, ASSAY_PHASE_FORWARD, ASSAY_BF16, ndim, shape);
    must(assay_trace_write_tensor(w, &t, half));
    free(half);
    return t.id;
}

/* An input, or that it stayed inside. */
static inline void op_reads(assay_trace_op *o, const char *slot, int64_t id, bool internal)
{
    if (internal)
        snprintf(o->internal[o->n_internal++], sizeof o->internal[0], "%s", slot);
    else
        op_in(o, slot, id);
}

/* A part of a launch, added in order. */
static inline void write_part(assay_trace_writer *w, assay_trace_op *o, const char *whole, int part)
{
    snprintf(o->fused, sizeof o->fused, "%s", whole);
    o->fused_part = part;
    o->arith.all.math_ulp = 2;
    o->arith.all.order = ASSAY_ORDER_SEQUENTIAL;
    o->arith.all.fma = true;
    must(assay_trace_write_op(w, o));
    json_decref(o->attrs);
}

static inline void expect_passed(parity_report *r, int64_t claims, size_t row)
{
    print_failures(r);
    cr_expect(n_passed(r) == claims && n_failed(r) == 0 && n_skipped(r) == 0, "row %zu: %lld passed", row,
              (long long)n_passed(r));
    parity_report_destroy(r);
}

/* words: in the message, or the name of the tensor that failed. */
static inline void expect_named(parity_report *r, const char *instance, const char *words, size_t row)
{
    const parity_claim *f = first_failure(r);
    cr_expect(f != NULL, "row %zu passes", row);
    if (f != NULL)
        cr_expect(strcmp(f->instance, instance) == 0 &&
                      (strstr(f->message, words) || strcmp(f->tensor, words) == 0),
                  "row %zu: %s %s: %s", row, f->instance, f->tensor, f->message);
    parity_report_destroy(r);
}

#endif
