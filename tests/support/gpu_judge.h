/* An operation of the engine under the reference: inputs are drawn, gpu_execute runs the kernel in three thread
 * orders, ref_replay computes the same operation in double with a bound for each element from the arithmetic
 * that the kernel declares, and every element must lie inside.  No formula and no tolerance is written here. */
#ifndef TESTS_GPU_JUDGE_H
#define TESTS_GPU_JUDGE_H

#include "ref/replay.h"
#include "tests/support/gpu_ops.h"

/* Zero-mean data shows a missing term, one-signed data a wrong accumulation. */
typedef enum { ZERO_MEAN, ONE_SIGNED, DATA_MODES } data_mode;

enum { MAX_SIZES = 12 };
typedef struct op_sizes {
    int64_t d[MAX_SIZES];
} op_sizes;

/* Fills slots and attributes of one call. */
typedef void (*op_build)(op_call *c, assay_dtype act, data_mode mode, const int64_t *d);

/* One operation: every variant x activation dtype x data mode x row of sizes. */
typedef struct op_law {
    const char *op;
    const char *family; /* of --variant */
    int variants;
    bool one_act; /* the operation knows F32 only */
    op_build build;
    int n;
    const op_sizes *sizes;
} op_law;
#define OP_SIZES(table) (int)(sizeof(table) / sizeof(table)[0]), table

/* Values of magnitude up to `size`. */
#define DRAW(c, slot, dtype, mode, size, ...)                                                                \
    put(c, slot, dtype, (mode) == ONE_SIGNED ? 0.125 * (size) : -(size), size, __VA_ARGS__)

/* The output of another call becomes the input of this one. */
static inline void feed(op_call *c, const char *slot, const op_call *from, const char *from_slot)
{
    for (int i = 0; i < from->n_out; ++i)
        if (strcmp(from->out[i].slot, from_slot) == 0) {
            gpu_slot *s = new_slot(c, slot, from->out[i].dtype, from->out[i].ndim, from->out[i].shape);
            memcpy(s->data, from->out[i].data, (size_t)(slot_count(s) * assay_dtype_bytes(s->dtype)));
            memcpy(c->value[c->n_in - 1], from->result[i], (size_t)slot_count(s) * sizeof(double));
            return;
        }
    cr_assert_fail("no output %s", from_slot);
}

/* NULL: it has none of that name. */
static inline const gpu_slot *output_of(const op_call *c, const char *slot)
{
    for (int i = 0; i < c->n_out; i++)
        if (strcmp(c->out[i].slot, slot) == 0)
            return &c->out[i];
    return NULL;
}

/* A fused operation's output beside that of the operation by itself. */
static inline void expect_same_bits(const op_call *whole, const char *slot, const op_call *part,
                                    const char *other, int64_t columns)
{
    const gpu_slot *x = output_of(whole, slot), *y = output_of(part, other);
    cr_assert(x && y, "no output %s, or no %s", slot, other);
    cr_assert_eq(slot_count(x), slot_count(y));
    cr_expect(memcmp(x->data, y->data, (size_t)(slot_count(x) * assay_dtype_bytes(x->dtype))) == 0,
              "%s of %lld columns in %s: other bits than the operation by itself", slot, (long long)columns,
              assay_dtype_name(x->dtype));
}

/* A view of a slot as the reference takes it; integers go to *ints, freed by the caller. */
static inline ref_value as_value(const gpu_slot *s, double *value, int64_t **ints)
{
    ref_value v = {.dtype = s->dtype, .ndim = s->ndim, .count = slot_count(s), .value = value};
    snprintf(v.slot, sizeof v.slot, "%s", s->slot);
    memcpy(v.shape, s->shape, (size_t)s->ndim * sizeof s->shape[0]);
    *ints = NULL;
    if (s->dtype != ASSAY_I64)
        return v;
    *ints = malloc((size_t)v.count * sizeof **ints + 8);
    for (int64_t i = 0; i < v.count; ++i)
        (*ints)[i] = (int64_t)value[i];
    v.value = NULL;
    v.ivalue = *ints;
    return v;
}

static inline bool element_admissible(const ref_value *truth, const ref_value *got, int64_t i)
{
    double ratio;
    if (truth->ivalue)
        return truth->ivalue[i] == got->ivalue[i];
    if (truth->kind == REF_VALUE_EXACT) {
        const double want = ref_round(truth->value[i], got->dtype);
        return got->value[i] == want || (isnan(want) && isnan(got->value[i]));
    }
    return ref_admissible(got->value[i], truth->value[i], truth->bound ? truth->bound[i] : 0.0, got->dtype,
                          &ratio);
}

/* Compares the outputs of the replay with the candidate's; a message in `why` when one is wrong. */
static inline bool compare_outputs(const ref_replay_result *r, const ref_value *got, int n, char why[256])
{
    if (r->n_outputs != n || r->n_inadmissible != 0) {
        snprintf(why, 256, "%d outputs, the reference has %d; %lld inadmissible choices", n, r->n_outputs,
                 (long long)r->n_inadmissible);
        return false;
    }
    for (int k = 0; k < r->n_outputs; ++k) {
        const ref_value *truth = &r->outputs[k], *g = NULL;
        for (int i = 0; i < n; ++i)
            if (strcmp(got[i].slot, truth->slot) == 0)
                g = &got[i];
        if (g == NULL || g->count != truth->count || (g->ivalue == NULL) != (truth->ivalue == NULL)) {
            snprintf(why, 256, "%s: missing, or of another size", truth->slot);
            return false;
        }
        for (int64_t i = 0; truth->kind != REF_VALUE_CHOICE && i < truth->count; ++i)
            if (!element_admissible(truth, g, i)) {
                snprintf(why, 256, "%s[%lld]: expected %.9g +- %.3g, found %.9g", truth->slot, (long long)i,
                         truth->ivalue ? (double)truth->ivalue[i] : truth->value[i],
                         truth->bound ? truth->bound[i] : 0.0,
                         g->ivalue ? (double)g->ivalue[i] : g->value[i]);
                return false;
            }
    }
    return true;
}

/* Whether the reference admits the results of c.  `why` holds the first wrong element. */
static inline bool admitted(const op_call *c, const char *op, char why[256])
{
    ref_value in[ASSAY_MAX_SLOTS], out[ASSAY_MAX_SLOTS];
    int64_t *ints[2 * ASSAY_MAX_SLOTS];
    ref_replay_result r;
    for (int i = 0; i < c->n_in; ++i)
        in[i] = as_value(&c->in[i], c->value[i], &ints[i]);
    for (int i = 0; i < c->n_out; ++i)
        out[i] = as_value(&c->out[i], c->result[i], &ints[c->n_in + i]);
    if (c->declared.p_dtype)
        json_object_set_new(c->attrs, "p_dtype", json_string(c->declared.p_dtype));
    else
        json_object_del(c->attrs, "p_dtype");
    const assay_status st = ref_replay(op, c->attrs, &c->declared.arith, in, c->n_in, out, c->n_out, &r);
    cr_assert_eq(st, ASSAY_OK, "%s: %s", op, assay_error_message());
    const bool ok = compare_outputs(&r, out, c->n_out, why);
    ref_replay_free(&r);
    for (int i = 0; i < c->n_in + c->n_out; ++i)
        free(ints[i]);
    return ok;
}

/* The reference must refuse the same results with one element of one output changed, and with a NaN. */
static inline void must_refuse_changes(op_call *c, const char *op)
{
    char why[256];
    for (int i = 0; i < c->n_out; ++i) {
        if (slot_count(&c->out[i]) == 0)
            continue;
        const int64_t at = slot_count(&c->out[i]) / 2;
        const double kept = c->result[i][at];
        const bool integer = c->out[i].dtype == ASSAY_I64;
        c->result[i][at] = integer ? kept + 1 : isinf(kept) ? 1.0 : kept + 1 + 2 * fabs(kept);
        cr_assert(!admitted(c, op, why), "%s: a changed element of %s passed", op, c->out[i].slot);
        c->result[i][at] = integer ? -7 : (double)NAN;
        cr_assert(!admitted(c, op, why), "%s: a NaN in %s passed", op, c->out[i].slot);
        c->result[i][at] = kept;
    }
}

static inline void hold_case(gpu_ctx *ctx, const op_law *l, const char *variant, assay_dtype act,
                             data_mode mode, int row)
{
    char why[256] = "";
    op_call c;
    call_begin(&c, ctx, (uint64_t)(row * 17 + 3));
    l->build(&c, act, mode, l->sizes[row].d);
    run_op(&c, l->op, act);
    cr_assert(admitted(&c, l->op, why), "%s %s %s, %s data, sizes row %d: %s", l->op, variant,
              assay_dtype_name(act), mode == ZERO_MEAN ? "zero-mean" : "one-signed", row, why);
    must_refuse_changes(&c, l->op);
    call_end(&c);
}

/* Under the address sanitizer rows take turns: it looks for accesses, which the sign of the data does not change, and a case takes ten times
 * as long.  Other builds judge every row with all data. */
static inline bool takes(int row, int mode)
{
#if defined(__SANITIZE_ADDRESS__)
    return row % DATA_MODES == mode;
#else
    (void)row;
    (void)mode;
    return true;
#endif
}

/* The whole table of one law. */
static inline void hold(const op_law *l)
{
    static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < l->variants; ++k) {
        char variant[48];
        snprintf(variant, sizeof variant, "%s=k%d", l->family, k);
        set_variants(&ctx, variant);
        for (int a = 0; a < (l->one_act ? 1 : 2); ++a)
            for (int m = 0; m < DATA_MODES; ++m)
                for (int i = 0; i < l->n; ++i)
                    if (takes(i, m))
                        hold_case(&ctx, l, variant, acts[a], (data_mode)m, i);
    }
    gpu_ctx_destroy(&ctx);
}

/* The rung that takes such a call. */
static inline int rung_of(gpu_ctx *ctx, const op_law *l, assay_dtype act, const int64_t *d)
{
    op_call c;
    call_begin(&c, ctx, 5);
    l->build(&c, act, ZERO_MEAN, d);
    run_op(&c, l->op, act);
    const int rung = c.declared.variant;
    call_end(&c);
    return rung;
}

/* The whole table of one law in bf16 at one rung, which takes every row. */
static inline void hold_rung(const op_law *l, int rung)
{
    char variant[48];
    gpu_ctx ctx;
    open_ctx(&ctx);
    snprintf(variant, sizeof variant, "%s=k%d", l->family, rung);
    set_variants(&ctx, variant);
    for (int i = 0; i < l->n; ++i) {
        cr_assert_eq(rung_of(&ctx, l, ASSAY_BF16, l->sizes[i].d), rung, "%s, row %d", l->op, i);
        for (int m = 0; m < DATA_MODES; ++m)
            if (takes(i, m))
                hold_case(&ctx, l, variant, ASSAY_BF16, (data_mode)m, i);
    }
    gpu_ctx_destroy(&ctx);
}

#endif
