/* AdamW with fp32 masters.  docs/OPS.md 8; Loshchilov & Hutter 2019; torch.optim.AdamW.
 *
 *   k0  one launch for each tensor, one thread for each element                  fp32, element-wise
 *   k1  multi-tensor: one launch for up to 48 tensors, their table travels in    the same arithmetic
 *       the kernel's parameters, a block works on one chunk of one tensor,
 *       a thread on four elements where addresses allow
 *
 * The constants of a step are made in double and rounded once: on the host, but for the two that grad_scale is folded into, which
 * a thread makes of the number that it finds on the device:
 *   m = b1 m + (1-b1) gs g;   v = b2 v + (1-b2) gs^2 g^2;   p -= lr ((m/c1) / (sqrt(v/c2) + eps) + wd p). */
#include "gpu/vector.cuh"

enum { ADAMW_TABLE = 48, ADAMW_BLOCK = 256, ADAMW_CHUNK = 4 * ADAMW_BLOCK };

typedef struct adamw_constants {
    const double *grad_scale; /* NULL: 1 */
    double r1, r2;            /* 1 - b1, 1 - b2 */
    float b1, b2, c1, c2, eps, lr;
} adamw_constants;

/* What gradients and their squares are multiplied by. */
typedef struct adamw_scale {
    float g1, g2;
} adamw_scale;

typedef struct adamw_tensor {
    float *main_param, *exp_avg, *exp_avg_sq;
    void *param; /* bf16 or float, or NULL */
    const float *grad;
    int64_t n;
    float weight_decay;
    bool param_is_bf16, by_four;
} adamw_tensor;

typedef struct adamw_table {
    adamw_tensor tensor[ADAMW_TABLE];
    unsigned first_block[ADAMW_TABLE + 1];
    int n_tensors;
} adamw_table;
static_assert(sizeof(adamw_table) + sizeof(adamw_constants) <= 4000, "kernel parameters end at 4096 bytes");

typedef struct adamw_state {
    float p, m, v;
} adamw_state;

__device__ static __forceinline__ adamw_scale adamw_scale_of(const adamw_constants &c)
{
    const double scale = c.grad_scale != nullptr ? *c.grad_scale : 1.0;
    adamw_scale s;
    s.g1 = (float)(c.r1 * scale);
    s.g2 = (float)(c.r2 * scale * scale);
    return s;
}

__device__ static __forceinline__ adamw_state adamw_next(const adamw_constants &c, const adamw_scale &s,
                                                         float weight_decay, float p, float m, float v,
                                                         float g)
{
    adamw_state next;
    next.m = fmaf(c.b1, m, s.g1 * g);
    next.v = fmaf(c.b2, v, s.g2 * g * g);
    const float update = next.m / c.c1 / (sqrtf(next.v / c.c2) + c.eps);
    next.p = fmaf(-c.lr, fmaf(weight_decay, p, update), p);
    return next;
}

__device__ static __forceinline__ void adamw_element(const adamw_tensor &t, const adamw_constants &c,
                                                     const adamw_scale &s, int64_t i)
{
    const adamw_state next =
        adamw_next(c, s, t.weight_decay, t.main_param[i], t.exp_avg[i], t.exp_avg_sq[i], t.grad[i]);
    t.exp_avg[i] = next.m;
    t.exp_avg_sq[i] = next.v;
    t.main_param[i] = next.p;
    if (t.param != nullptr) {
        if (t.param_is_bf16)
            gpu_store((bf16 *)t.param + i, next.p);
        else
            gpu_store((float *)t.param + i, next.p);
    }
}

__device__ static __forceinline__ void adamw_four(const adamw_tensor &t, const adamw_constants &c,
                                                  const adamw_scale &s, int64_t i)
{
    float p[4], m[4], v[4], g[4];
    gpu_load_n(p, t.main_param + i);
    gpu_load_n(m, t.exp_avg + i);
    gpu_load_n(v, t.exp_avg_sq + i);
    gpu_load_n(g, t.grad + i);
    for (int j = 0; j < 4; ++j) {
        const adamw_state next = adamw_next(c, s, t.weight_decay, p[j], m[j], v[j], g[j]);
        p[j] = next.p;
        m[j] = next.m;
        v[j] = next.v;
    }
    gpu_store_n(t.exp_avg + i, m);
    gpu_store_n(t.exp_avg_sq + i, v);
    gpu_store_n(t.main_param + i, p);
    if (t.param != nullptr) {
        if (t.param_is_bf16)
            gpu_store_n((bf16 *)t.param + i, p);
        else
            gpu_store_n((float *)t.param + i, p);
    }
}

__global__ void adamw_k0(adamw_tensor t, adamw_constants c)
{
    const adamw_scale s = adamw_scale_of(c);
    for (int64_t i = gpu_thread(); i < t.n; i += gpu_threads())
        adamw_element(t, c, s, i);
}

__global__ void adamw_k1(GPU_PARAMETER(adamw_table) table, adamw_constants c)
{
    int which = 0;
    while (which + 1 < table.n_tensors && blockIdx.x >= table.first_block[which + 1])
        ++which;
    const adamw_tensor &t = table.tensor[which];
    const adamw_scale s = adamw_scale_of(c);
    const unsigned blocks = table.first_block[which + 1] - table.first_block[which];
    const int64_t step = (int64_t)blocks * ADAMW_BLOCK, fours = t.by_four ? t.n / 4 : 0;
    const int64_t first = (int64_t)(blockIdx.x - table.first_block[which]) * ADAMW_BLOCK + threadIdx.x;
    for (int64_t i = first; i < fours; i += step)
        adamw_four(t, c, s, 4 * i);
    for (int64_t i = 4 * fours + first; i < t.n; i += step)
        adamw_element(t, c, s, i);
}

typedef struct adamw_desc {
    double lr, beta1, beta2, eps, weight_decay;
    const double *grad_scale; /* on the device; NULL: 1 */
    int64_t step;             /* from 1 */
} adamw_desc;

static adamw_desc desc_of(const gpu_operands *o)
{
    adamw_desc d;
    d.lr = gpu_operand_double(o, "lr");
    d.beta1 = gpu_operand_double(o, "beta1");
    d.beta2 = gpu_operand_double(o, "beta2");
    d.eps = gpu_operand_double(o, "eps");
    d.weight_decay = gpu_operand_double(o, "weight_decay");
    d.grad_scale = (const double *)gpu_operand(o, "grad_scale").data;
    d.step = gpu_operand_int(o, "step");
    return d;
}

static adamw_constants constants_of(const adamw_desc *d)
{
    adamw_constants c;
    c.b1 = (float)d->beta1;
    c.r1 = 1.0 - d->beta1;
    c.b2 = (float)d->beta2;
    c.r2 = 1.0 - d->beta2;
    c.grad_scale = d->grad_scale;
    c.c1 = (float)(1.0 - pow(d->beta1, (double)d->step));
    c.c2 = (float)(1.0 - pow(d->beta2, (double)d->step));
    c.eps = (float)d->eps;
    c.lr = (float)d->lr;
    return c;
}

static adamw_tensor tensor_of(const gpu_operands *o)
{
    const gpu_tensor param = gpu_operand(o, "param"), main_param = gpu_operand(o, "main_param");
    adamw_tensor t;
    t.main_param = (float *)main_param.data;
    t.exp_avg = (float *)gpu_operand(o, "exp_avg").data;
    t.exp_avg_sq = (float *)gpu_operand(o, "exp_avg_sq").data;
    t.param = param.data;
    t.grad = (const float *)gpu_operand(o, "grad").data;
    t.n = gpu_tensor_count(main_param);
    t.weight_decay = (float)gpu_operand_double(o, "weight_decay");
    t.param_is_bf16 = param.dtype == ASSAY_BF16;
    t.by_four = ((uintptr_t)t.main_param | (uintptr_t)t.exp_avg | (uintptr_t)t.exp_avg_sq |
                 (uintptr_t)t.grad | (uintptr_t)t.param) %
                    GPU_VECTOR_BYTES ==
                0;
    return t;
}

static assay_status check_desc(const char *op, const adamw_desc *d, const adamw_desc *first)
{
    ASSAY_CHECK(d->step >= 1, ASSAY_INVALID_ARGUMENT, "%s: step: expected 1 or more, found %" PRId64, op,
                d->step);
    ASSAY_CHECK(d->beta1 >= 0.0 && d->beta1 < 1.0 && d->beta2 >= 0.0 && d->beta2 < 1.0,
                ASSAY_INVALID_ARGUMENT, "%s: beta1, beta2: expected numbers in [0, 1), found %g and %g", op,
                d->beta1, d->beta2);
    ASSAY_CHECK(d->eps >= 0.0 && isfinite(d->lr) && isfinite(d->weight_decay), ASSAY_INVALID_ARGUMENT,
                "%s: expected eps of 0 or more, finite lr and weight_decay, found %g, %g, %g", op, d->eps,
                d->lr, d->weight_decay);
    ASSAY_CHECK(d->step == first->step && d->beta1 == first->beta1 && d->beta2 == first->beta2 &&
                    d->eps == first->eps && d->lr == first->lr && d->grad_scale == first->grad_scale,
                ASSAY_INVALID_ARGUMENT,
                "%s: expected descriptors that differ only in weight_decay, and one grad_scale", op);
    return ASSAY_OK;
}

static assay_status check_tensors(const char *op, const gpu_operands *o)
{
    static const char *const states[] = {"main_param", "exp_avg", "exp_avg_sq", "grad"};
    const gpu_tensor param = gpu_operand(o, "param"), scale = gpu_operand(o, "grad_scale");
    const int64_t n = gpu_tensor_count(gpu_operand(o, "main_param"));
    if (gpu_tensor_present(scale)) {
        ASSAY_TRY(gpu_check_tensor(op, "grad_scale", scale, ASSAY_F64, ASSAY_F64));
        ASSAY_TRY(gpu_check_count(op, "grad_scale", scale, 1));
    }
    for (int i = 0; i < 4; ++i) {
        ASSAY_TRY(gpu_check_tensor(op, states[i], gpu_operand(o, states[i]), ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_count(op, states[i], gpu_operand(o, states[i]), n));
    }
    if (gpu_tensor_present(param)) {
        ASSAY_TRY(gpu_check_act(op, "param", param));
        ASSAY_TRY(gpu_check_count(op, "param", param, n));
    }
    return ASSAY_OK;
}

/* Blocks for a tensor: a chunk each, at most 1024; the loop takes the rest. */
static unsigned blocks_of(int64_t n)
{
    const int64_t blocks = (n + ADAMW_CHUNK - 1) / ADAMW_CHUNK;
    return (unsigned)(blocks > 1024 ? 1024 : blocks);
}

/* The list's descriptors differ only in weight_decay. */
static assay_status check_list(const gpu_work *w, adamw_constants *c)
{
    const adamw_desc first = desc_of(w->o);
    for (int64_t i = 0; i < w->n; ++i) {
        const adamw_desc d = desc_of(&w->o[i]);
        ASSAY_TRY(check_tensors("adamw", &w->o[i]));
        ASSAY_TRY(check_desc("adamw", &d, &first));
    }
    *c = constants_of(&first);
    return ASSAY_OK;
}

static assay_status adamw_each(const gpu_work *w)
{
    adamw_constants c;
    ASSAY_TRY(check_list(w, &c));
    for (int64_t i = 0; i < w->n; ++i) {
        const adamw_tensor t = tensor_of(&w->o[i]);
        if (t.n > 0)
            GPU_LAUNCHED(GPU_LAUNCH_NO_BARRIER(adamw_k0, gpu_grid(t.n, ADAMW_BLOCK), dim3(ADAMW_BLOCK), 0,
                                               w->stream, t, c),
                         "adamw");
    }
    return ASSAY_OK;
}

static assay_status adamw_list(const gpu_work *w)
{
    adamw_constants c;
    adamw_table table;
    table.n_tensors = 0;
    table.first_block[0] = 0;
    ASSAY_TRY(check_list(w, &c));
    for (int64_t i = 0; i < w->n; ++i) {
        const adamw_tensor t = tensor_of(&w->o[i]);
        if (t.n > 0) {
            const int slot = table.n_tensors++;
            table.tensor[slot] = t;
            table.first_block[slot + 1] = table.first_block[slot] + blocks_of(t.n);
        }
        if (table.n_tensors == ADAMW_TABLE || (i + 1 == w->n && table.n_tensors > 0)) {
            const unsigned blocks = table.first_block[table.n_tensors];
            GPU_LAUNCHED(
                GPU_LAUNCH_NO_BARRIER(adamw_k1, dim3(blocks), dim3(ADAMW_BLOCK), 0, w->stream, table, c),
                "adamw");
            table.n_tensors = 0;
        }
    }
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
/* Moments are made without an elementary function; param is the rounded master. */
#define ADAMW_DECLARES                                                                                       \
    GPU_DECLARES("main_param", GPU_ARITH(F32, NONE, 1, true, 1, 0)),                                         \
        GPU_DECLARES("exp_avg exp_avg_sq", GPU_ARITH(F32, NONE, 1, true, 0, 0)),                             \
        GPU_DECLARES("param", GPU_ELEMENTWISE(0))
GPU_LADDER(adamw) = {
    GPU_RUNG("one launch a tensor", adamw_each, ADAMW_DECLARES),
    GPU_RUNG("one launch for up to 48 tensors, four elements a thread", adamw_list, ADAMW_DECLARES),
    GPU_LADDER_END,
};
