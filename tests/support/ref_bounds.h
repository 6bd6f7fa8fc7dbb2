/* An honest kernel in single precision, operation by operation, and its trial by ref_replay.
 *
 * The emulated sums follow the declared order to the letter (chains with and without fused products, split
 * chains, lanes joined by a tree, the tensor-core model with alignment and truncation, a shuffled order). */
#ifndef TESTS_TEST_REF_BOUNDS_SUPPORT_H
#define TESTS_TEST_REF_BOUNDS_SUPPORT_H

#include "ref/bounds/bounds.h"
#include "ref/replay.h"
#include "tests/support/ref.h"

/* ---- data */
enum { MODE_GAUSSIAN, MODE_POSITIVE, MODE_HEAVY, MODE_SIGNED_HALVES, MODE_CONSTANT, N_MODES };

static inline double mode_value(test_rng *r, int mode, int64_t i, int64_t n)
{
    const double z = rng_normal(r);
    switch (mode) {
    case MODE_GAUSSIAN:
        return z;
    case MODE_POSITIVE:
        return fabs(z) + 0.1;
    case MODE_HEAVY:
        return rng_below(r, 50) == 0 ? 100.0 * z : z * z * z * 0.2;
    case MODE_SIGNED_HALVES:
        return (i % n < n / 2 ? 1.0 : -1.0) * (fabs(z) + 0.1);
    default:
        return 0.7;
    }
}

/* n numbers of a mode in rows of `row`, exact in dtype. */
static inline double *mode_data(test_rng *r, int mode, int64_t n, int64_t row, assay_dtype dtype,
                                double scale)
{
    double *x = calloc((size_t)n + 1, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = ref_round(scale * mode_value(r, mode, i, row > 0 ? row : 1), dtype);
    return x;
}

/* ---- a trial */
typedef struct trial {
    const char *op;
    json_t *attrs;
    assay_arith arith;
    ref_value in[16], out[16];
    int n_in, n_out;
    ref_replay_result result;
    double worst;  /* largest ratio of the last judgement */
    int64_t n_bad; /* elements that failed */
    const char *worst_slot;
} trial;

static inline trial trial_new(const char *op, assay_arith arith)
{
    trial t = {.op = op, .attrs = json_object(), .arith = arith};
    return t;
}

static inline ref_value trial_value(const char *slot, assay_dtype dtype, int ndim, const int64_t *shape)
{
    ref_value v = {.dtype = dtype, .ndim = ndim, .count = 1};
    snprintf(v.slot, sizeof v.slot, "%s", slot);
    for (int i = 0; i < ndim; i++) {
        v.shape[i] = shape[i];
        v.count *= shape[i];
    }
    return v;
}

#define SHAPE(...)                                                                                           \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])                             \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

/* Takes over x. */
static inline double *trial_in(trial *t, const char *slot, assay_dtype dtype, double *x, int ndim,
                               const int64_t *shape)
{
    ref_value *v = &t->in[t->n_in++];
    *v = trial_value(slot, dtype, ndim, shape);
    v->value = x;
    return x;
}

static inline int64_t *trial_in_int(trial *t, const char *slot, int64_t *x, int ndim, const int64_t *shape)
{
    ref_value *v = &t->in[t->n_in++];
    *v = trial_value(slot, ASSAY_I64, ndim, shape);
    v->ivalue = x;
    return x;
}

static inline double *trial_out(trial *t, const char *slot, assay_dtype dtype, int ndim, const int64_t *shape)
{
    ref_value *v = &t->out[t->n_out++];
    *v = trial_value(slot, dtype, ndim, shape);
    v->value = new_real(v->count);
    return v->value;
}

static inline int64_t *trial_out_int(trial *t, const char *slot, int ndim, const int64_t *shape)
{
    ref_value *v = &t->out[t->n_out++];
    *v = trial_value(slot, ASSAY_I64, ndim, shape);
    v->ivalue = new_int(v->count);
    return v->ivalue;
}

/* Stored numbers are rounded into the dtype of their slot: emulated kernels write single-precision results.
 */
static inline void trial_store(trial *t)
{
    for (int i = 0; i < t->n_out; i++)
        for (int64_t k = 0; t->out[i].value && k < t->out[i].count; k++)
            t->out[i].value[k] = ref_round(t->out[i].value[k], t->out[i].dtype);
}

static inline const ref_value *trial_candidate(const trial *t, const char *slot)
{
    for (int i = 0; i < t->n_out; i++)
        if (strcmp(t->out[i].slot, slot) == 0)
            return &t->out[i];
    return NULL;
}

/* Replays and compares everything; fills worst, n_bad. */
static inline void trial_judge(trial *t)
{
    const assay_declaration declared = assay_declaration_make(t->arith);
    ref_replay_free(&t->result);
    cr_assert(ref_replay(t->op, t->attrs, &declared, t->in, t->n_in, t->out, t->n_out, &t->result) ==
                  ASSAY_OK,
              "%s", assay_error_message());
    t->worst = 0.0;
    t->n_bad = t->result.n_inadmissible;
    t->worst_slot = "";
    cr_assert(t->result.n_outputs == t->n_out, "%s: %d outputs, %d expected", t->op, t->result.n_outputs,
              t->n_out);
    for (int i = 0; i < t->result.n_outputs; i++) {
        const ref_value *v = &t->result.outputs[i], *c = trial_candidate(t, v->slot);
        cr_assert(c != NULL, "%s: no candidate for %s", t->op, v->slot);
        for (int64_t k = 0; k < v->count; k++) {
            double ratio = 0.0;
            bool pass = true;
            if (v->kind == REF_VALUE_REAL)
                pass = ref_admissible(c->value[k], v->value[k], v->bound[k], c->dtype, &ratio);
            else if (v->kind == REF_VALUE_EXACT)
                pass = c->value[k] == ref_round(v->value[k], c->dtype);
            else if (v->kind == REF_VALUE_INTEGER)
                pass = c->ivalue[k] == v->ivalue[k];
            t->n_bad += !pass;
            if (!(ratio <= t->worst)) {
                t->worst = ratio;
                t->worst_slot = v->slot;
            }
        }
    }
}

static inline void trial_expect_pass(trial *t, const char *what)
{
    trial_store(t);
    trial_judge(t);
    cr_expect(t->n_bad == 0 && t->worst <= 1.0, "%s %s: %lld elements outside their bound, worst %s at %.3g",
              t->op, what, (long long)t->n_bad, t->worst_slot, t->worst);
}

static inline void trial_free(trial *t)
{
    for (int i = 0; i < t->n_in; i++) {
        free(t->in[i].value);
        free(t->in[i].ivalue);
    }
    for (int i = 0; i < t->n_out; i++) {
        free(t->out[i].value);
        free(t->out[i].ivalue);
    }
    ref_replay_free(&t->result);
    json_decref(t->attrs);
}

/* ---- declared arithmetics */
static inline assay_arith arith_of(assay_order order)
{
    assay_arith a = assay_arith_elementwise();
    a.order = order;
    a.lanes = order == ASSAY_ORDER_TREE ? 32 : 1;
    a.k_step = order == ASSAY_ORDER_TENSOR_CORE ? 16 : 1;
    a.guard_bits = order == ASSAY_ORDER_TENSOR_CORE ? 2 : 0;
    a.math_ulp = 2;
    return a;
}

enum { N_ARITHS = 7 };
static inline assay_arith arith_case(int i)
{
    static const assay_order orders[N_ARITHS] = {
        ASSAY_ORDER_SEQUENTIAL, ASSAY_ORDER_SEQUENTIAL,  ASSAY_ORDER_SEQUENTIAL, ASSAY_ORDER_TREE,
        ASSAY_ORDER_TREE,       ASSAY_ORDER_TENSOR_CORE, ASSAY_ORDER_UNKNOWN};
    assay_arith a = arith_of(orders[i]);
    a.fma = i == 1 || i == 4;
    a.split = i == 2 ? 3 : 1;
    if (i == 4)
        a.lanes = 8;
    return a;
}

/* ---- sums as the kernel makes them.  a NULL: a plain sum.  Strides in elements. */
static inline float emulate_chain(const float *a, const float *b, int64_t k0, int64_t k1, int64_t step,
                                  bool fma)
{
    float s = 0.0f;
    for (int64_t k = k0; k < k1; k += step)
        s = !a ? s + b[k] : fma ? fmaf(a[k], b[k], s) : s + a[k] * b[k];
    return s;
}

static inline float emulate_tree(const float *a, const float *b, int64_t n, int lanes, bool fma)
{
    float lane[1024];
    for (int l = 0; l < lanes; l++)
        lane[l] = emulate_chain(a, b, l, n, lanes, fma);
    for (int width = lanes / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

/* Toward zero at a multiple of q. */
static inline double truncate_to(double x, double q)
{
    return trunc(x / q) * q;
}

static inline float emulate_tensor(const float *a, const float *b, int64_t n, int k_step, int guard)
{
    float s = 0.0f;
    for (int64_t k = 0; k < n; k += k_step) {
        double largest = fabs((double)s), total;
        const int64_t end = k + k_step < n ? k + k_step : n;
        for (int64_t i = k; i < end; i++)
            largest = fmax(largest, fabs((a ? (double)a[i] : 1.0) * (double)b[i]));
        if (largest == 0.0)
            continue;
        int e;
        frexp(largest, &e);
        const double q = ldexp(1.0, e - 1 - 23 - guard);
        total = truncate_to((double)s, q);
        for (int64_t i = k; i < end; i++)
            total += truncate_to((a ? (double)a[i] : 1.0) * (double)b[i], q);
        if (total == 0.0) {
            s = 0.0f;
            continue;
        }
        frexp(total, &e);
        s = (float)truncate_to(total, ldexp(1.0, e - 24));
    }
    return s;
}

/* A random binary tree: any order. */
static inline float emulate_any(const float *a, const float *b, int64_t n, test_rng *r)
{
    float *x = malloc(((size_t)n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = a ? a[i] * b[i] : b[i];
    for (int64_t left = n; left > 1; left--) {
        const int64_t i = rng_below(r, left);
        const float v = x[i];
        x[i] = x[left - 1];
        const int64_t j = rng_below(r, left - 1);
        x[j] += v;
    }
    const float s = n > 0 ? x[0] : 0.0f;
    free(x);
    return s;
}

static inline float emulate_dot(const float *a, const float *b, int64_t n, const assay_arith *arith,
                                test_rng *r)
{
    switch (arith->order) {
    case ASSAY_ORDER_SEQUENTIAL: {
        const int64_t length = (n + arith->split - 1) / (arith->split > 0 ? arith->split : 1);
        float s = 0.0f;
        for (int64_t k = 0; k < n; k += length) {
            const float piece = emulate_chain(a, b, k, k + length < n ? k + length : n, 1, arith->fma);
            s = k == 0 ? piece : s + piece;
        }
        return s;
    }
    case ASSAY_ORDER_TREE:
        return emulate_tree(a, b, n, arith->lanes, arith->fma);
    case ASSAY_ORDER_TENSOR_CORE:
        return emulate_tensor(a, b, n, arith->k_step, arith->guard_bits);
    default:
        return emulate_any(a, b, n, r);
    }
}

/* Column c of a [n, columns] matrix of doubles as floats. */
static inline void column_to_float(float *out, const double *x, int64_t n, int64_t columns, int64_t c)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)x[i * columns + c];
}

#endif
