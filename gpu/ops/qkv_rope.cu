/* Heads of one product: split, norm of each head of q and k where the model has one, rope, in one launch.  docs/OPS.md 10.
 *
 *   k0  one thread for each head of a token                             fp32, sequential fma; rope element-wise
 *   k1  without a norm eight pairs a thread, rows along the grid;        fp32, tree of that many lanes; rope element-wise
 *       with one the lanes of rmsnorm's k2 for each head, several heads
 *       a warp.  128-bit accesses
 *
 * qkv is read from memory once; what stays inside is rounded to its type in registers, and stored where somebody wants it.  k1 has the bits
 * of the highest rungs of qkv_split_fwd, rmsnorm_fwd and rope_fwd (tests/gpu/test_qkv_rope.c).  With a norm a lane takes its pairs behind
 * the sum, and finds them in the cache. */
#include "gpu/ops/norm.cuh"
#include "gpu/ops/rope.cuh"
#include "gpu/vector.cuh"

/* Everything of a call; raw and norm may be NULL, gamma and rstd are where there is no norm. */
template <class T> struct qkv_heads {
    const T *qkv, *q_gamma, *k_gamma;
    T *q_raw, *k_raw, *q_norm, *k_norm, *q, *k, *v;
    float *q_rstd, *k_rstd;
    const float *cos, *sin;
    const int64_t *position;
    float eps;
    unsigned groups, in_group; /* in_group: query heads of a group, its key and its value */
    int64_t tokens;
    int64_t d, pairs;
};

/* One head of one token: a row of qkv, and where it goes.  A value has an output alone. */
template <class T> struct qkv_head {
    const T *x, *gamma;
    T *raw, *norm, *out;
    float *rstd;
    const float *cos, *sin;
    bool turns;
};

template <class T> __device__ static __forceinline__ T *qkv_row(T *p, int64_t row, int64_t d)
{
    return p ? p + row * d : nullptr;
}

/* row < 2^31: (token groups + group) in_group + head */
template <class T>
__device__ static __forceinline__ qkv_head<T> qkv_head_of(const qkv_heads<T> &a, int64_t row)
{
    const unsigned group = (unsigned)row / a.in_group, head = (unsigned)row % a.in_group,
                   per_group = a.in_group - 2;
    qkv_head<T> h = {a.qkv + row * a.d, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, true};
    if (head < per_group) {
        const int64_t at = (int64_t)group * per_group + head;
        h.gamma = a.q_gamma;
        h.raw = qkv_row(a.q_raw, at, a.d);
        h.norm = qkv_row(a.q_norm, at, a.d);
        h.rstd = qkv_row(a.q_rstd, at, 1);
        h.out = a.q + at * a.d;
    } else if (head == per_group) {
        h.gamma = a.k_gamma;
        h.raw = qkv_row(a.k_raw, group, a.d);
        h.norm = qkv_row(a.k_norm, group, a.d);
        h.rstd = qkv_row(a.k_rstd, group, 1);
        h.out = a.k + group * a.d;
    } else {
        h.out = a.v + group * a.d;
        h.turns = false;
        return h;
    }
    const int64_t entry = a.position[group / a.groups] * a.pairs;
    h.cos = a.cos + entry;
    h.sin = a.sin + entry;
    return h;
}

/* --- k0 ----------------------------------------------------------------------------------------------------- */
__device__ static __forceinline__ float qkv_as_stored(float v, const float *)
{
    return v;
}
__device__ static __forceinline__ float qkv_as_stored(float v, const bf16 *)
{
    return __bfloat162float(__float2bfloat16_rn(v));
}

/* Element i of a head before it turns. */
template <class T, bool NORM>
__device__ static __forceinline__ float qkv_element(const qkv_head<T> &h, int64_t i, float r)
{
    float v = gpu_load(h.x + i);
    if (h.raw)
        gpu_store(h.raw + i, v);
    if (NORM && h.turns) {
        v = qkv_as_stored(v * r * gpu_load(h.gamma + i), h.x);
        if (h.norm)
            gpu_store(h.norm + i, v);
    }
    return v;
}

template <class T, bool NORM> __global__ void qkv_rope_fwd_k0(qkv_heads<T> a)
{
    for (int64_t row = gpu_thread(); row < a.tokens * a.groups * a.in_group; row += gpu_threads()) {
        const qkv_head<T> h = qkv_head_of(a, row);
        float r = 0.0f;
        if (NORM && h.turns) {
            float sum = 0.0f;
            for (int64_t i = 0; i < a.d; ++i)
                sum = fmaf(gpu_load(h.x + i), gpu_load(h.x + i), sum);
            r = 1.0f / sqrtf(sum / (float)a.d + a.eps);
            *h.rstd = r;
        }
        for (int64_t i = 0; i < a.d - a.pairs; ++i) {
            float second = qkv_element<T, NORM>(h, i + a.pairs, r);
            if (i < a.pairs) {
                float first = qkv_element<T, NORM>(h, i, r);
                if (h.turns)
                    rope_turn(first, second, h.cos[i], h.sin[i]);
                gpu_store(h.out + i, first);
            }
            gpu_store(h.out + i + a.pairs, second);
        }
    }
}

/* --- k1 ----------------------------------------------------------------------------------------------------- */
__device__ static __forceinline__ void qkv_round(float (&)[GPU_EIGHT], const float *)
{
}
__device__ static __forceinline__ void qkv_round(float (&v)[GPU_EIGHT], const bf16 *)
{
    for (int j = 0; j < GPU_EIGHT; j += 2)
        gpu_halves(v + j, gpu_pair(v[j], v[j + 1]));
}

/* Elements i ... i+7 of a head before they turn. */
template <class T, bool NORM>
__device__ static __forceinline__ void qkv_eight(float (&v)[GPU_EIGHT], const qkv_head<T> &h, int i, float r)
{
    gpu_load_n(v, h.x + i);
    if (h.raw)
        gpu_store_n(h.raw + i, v);
    if (NORM && h.turns) {
        float g[GPU_EIGHT];
        gpu_load_n(g, h.gamma + i);
        for (int j = 0; j < GPU_EIGHT; ++j)
            v[j] = v[j] * r * g[j];
        qkv_round(v, h.x);
        if (h.norm)
            gpu_store_n(h.norm + i, v);
    }
}

/* Eight pairs from i on; behind the last pair the eight that pass. */
template <class T, bool NORM>
__device__ static __forceinline__ void qkv_pairs(const qkv_head<T> &h, int i, int pairs, float r)
{
    float first[GPU_EIGHT], second[GPU_EIGHT], c[GPU_EIGHT], s[GPU_EIGHT];
    qkv_eight<T, NORM>(second, h, i + pairs, r);
    if (i < pairs) {
        qkv_eight<T, NORM>(first, h, i, r);
        if (h.turns) {
            gpu_load_n(c, h.cos + i);
            gpu_load_n(s, h.sin + i);
            for (int j = 0; j < GPU_EIGHT; ++j)
                rope_turn(first[j], second[j], c[j], s[j]);
        }
        gpu_store_n(h.out + i, first);
    }
    gpu_store_n(h.out + i + pairs, second);
}

template <class T> __global__ void qkv_rope_fwd_k1(qkv_heads<T> a)
{
    const int pairs = (int)a.pairs, columns = (int)a.d - pairs;
    GPU_EACH_EIGHT(row, i, a.tokens * a.groups * a.in_group, columns)
    {
        qkv_pairs<T, false>(qkv_head_of(a, row), i, pairs, 0.0f);
    }
}

/* The sum of squares goes by rmsnorm's k2: pieces of whole turns of the lanes, then the columns that are left one by one. */
template <class T, int LANES> __device__ static __forceinline__ float qkv_squares(const T *x, int lane, int d)
{
    const int whole = d / (GPU_EIGHT * LANES) * (GPU_EIGHT * LANES);
    float v[GPU_EIGHT], sum = 0.0f;
    for (int i = lane * GPU_EIGHT; i < whole; i += LANES * GPU_EIGHT) {
        gpu_load_n(v, x + i);
        for (int j = 0; j < GPU_EIGHT; ++j)
            sum = fmaf(v[j], v[j], sum);
    }
    for (int i = whole + lane; i < d; i += LANES)
        sum = fmaf(gpu_load(x + i), gpu_load(x + i), sum);
    return sum;
}

template <class T, int LANES> __global__ void qkv_norm_rope_fwd_k1(qkv_heads<T> a)
{
    const int lane = gpu_lane<LANES>(), d = (int)a.d, pairs = (int)a.pairs;
    const int64_t rows = a.tokens * a.groups * a.in_group;
    for (int64_t first = gpu_lanes_first<LANES>(); first < rows; first += gpu_lanes_step<LANES>()) {
        const int64_t row = first + gpu_lanes_group<LANES>();
        qkv_head<T> h = {};
        if (row < rows)
            h = qkv_head_of(a, row);
        const float sum = gpu_lanes_sum<LANES>(h.turns ? qkv_squares<T, LANES>(h.x, lane, d) : 0.0f);
        if (row >= rows)
            continue;
        const float r = 1.0f / sqrtf(sum / (float)d + a.eps);
        for (int i = lane * GPU_EIGHT; i < d - pairs; i += LANES * GPU_EIGHT)
            qkv_pairs<T, true>(h, i, pairs, r);
        if (h.turns && lane == 0)
            *h.rstd = r;
    }
}

/* --- the call ----------------------------------------------------------------------------------------------- */
template <class T> static qkv_heads<T> heads_of(const gpu_operands *o)
{
    const gpu_tensor k = gpu_operand(o, "k"), q = gpu_operand(o, "q");
    qkv_heads<T> a;
    a.qkv = (const T *)gpu_operand(o, "qkv").data;
    a.q_gamma = (const T *)gpu_operand(o, "q_gamma").data;
    a.k_gamma = (const T *)gpu_operand(o, "k_gamma").data;
    a.q_raw = (T *)gpu_operand(o, "q_raw").data;
    a.k_raw = (T *)gpu_operand(o, "k_raw").data;
    a.q_norm = (T *)gpu_operand(o, "q_norm").data;
    a.k_norm = (T *)gpu_operand(o, "k_norm").data;
    a.q = (T *)q.data;
    a.k = (T *)k.data;
    a.v = (T *)gpu_operand(o, "v").data;
    a.q_rstd = (float *)gpu_operand(o, "q_rstd").data;
    a.k_rstd = (float *)gpu_operand(o, "k_rstd").data;
    a.cos = (const float *)gpu_operand(o, "cos").data;
    a.sin = (const float *)gpu_operand(o, "sin").data;
    a.position = (const int64_t *)gpu_operand(o, "position").data;
    a.eps = (float)gpu_operand_double(o, "eps");
    a.groups = (unsigned)k.shape[1];
    a.in_group = (unsigned)(q.shape[1] / k.shape[1] + 2);
    a.tokens = k.shape[0];
    a.d = k.shape[2];
    a.pairs = gpu_tensor_cols(gpu_operand(o, "cos"));
    return a;
}

template <class T, int LANES> static cudaError_t launch_lanes(const qkv_heads<T> &a, cudaStream_t stream)
{
    return GPU_LAUNCH((qkv_norm_rope_fwd_k1<T, LANES>),
                      gpu_grid(a.tokens * a.groups * a.in_group, GPU_ROW_BLOCK / LANES), dim3(GPU_ROW_BLOCK),
                      0, stream, a);
}

template <class T> static cudaError_t launch(const gpu_work *w, bool norm)
{
    const qkv_heads<T> a = heads_of<T>(w->o);
    const int64_t rows = a.tokens * a.groups * a.in_group;
    const gpu_pieces_launch eights = gpu_pieces_of(rows, (a.d - a.pairs) / GPU_EIGHT);
    if (w->variant > 0 && norm)
        return GPU_BY_LANES(gpu_row_lanes(a.d), launch_lanes, T, a, w->stream);
    if (w->variant > 0)
        return GPU_LAUNCH_NO_BARRIER(qkv_rope_fwd_k1<T>, eights.grid, eights.block, 0, w->stream, a);
    if (norm)
        return GPU_LAUNCH_NO_BARRIER((qkv_rope_fwd_k0<T, true>), gpu_grid(rows, GPU_BLOCK), dim3(GPU_BLOCK),
                                     0, w->stream, a);
    return GPU_LAUNCH_NO_BARRIER((qkv_rope_fwd_k0<T, false>), gpu_grid(rows, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 w->stream, a);
}

/* Outputs are memory of their own: a head is read behind the stores of others. */
static assay_status check_apart(const gpu_operands *o)
{
    for (int i = 0; i < assay_op_n_slots(o->op); ++i) {
        const assay_op_slot *row = &o->op->slots[i];
        for (int k = 0; k < i && row->role == ASSAY_SLOT_OUT && gpu_tensor_bytes(o->slot[i]) > 0; ++k)
            ASSAY_CHECK(gpu_tensor_bytes(o->slot[k]) == 0 || o->slot[k].data != o->slot[i].data,
                        ASSAY_INVALID_ARGUMENT, "%s: %s: expected memory of its own, found that of %s",
                        o->op->name, row->name, o->op->slots[k].name);
    }
    return ASSAY_OK;
}

/* q_*, k_*, v: [T,heads,D]; those that may be absent are checked where they are there. */
static assay_status check_heads(const gpu_operands *o, int64_t tokens, int64_t heads, int64_t groups,
                                int64_t d)
{
    static const char *const names[] = {"q", "q_raw", "q_norm", "k", "k_raw", "k_norm", "v"};
    const assay_dtype act = gpu_operand(o, "qkv").dtype;
    for (int i = 0; i < 7; ++i) {
        const assay_op_slot *row = assay_op_slot_find(o->op, names[i], true);
        const gpu_tensor t = gpu_operand(o, names[i]);
        if (row == NULL || (row->optional && !gpu_tensor_present(t)))
            continue;
        ASSAY_TRY(gpu_check_tensor(o->op->name, names[i], t, act, act));
        ASSAY_TRY(gpu_check_shape2(o->op->name, names[i], t, tokens * (i < 3 ? heads : groups), d));
    }
    return ASSAY_OK;
}

static assay_status check_norm(const gpu_operands *o, int64_t tokens, int64_t heads, int64_t groups,
                               int64_t d)
{
    static const char *const gamma[] = {"q_gamma", "k_gamma"}, *const rstd[] = {"q_rstd", "k_rstd"};
    const char *op = o->op->name;
    const assay_dtype act = gpu_operand(o, "qkv").dtype;
    const double eps = gpu_operand_double(o, "eps");
    for (int i = 0; i < 2; ++i) {
        ASSAY_TRY(gpu_check_tensor(op, gamma[i], gpu_operand(o, gamma[i]), act, act));
        ASSAY_TRY(gpu_check_count(op, gamma[i], gpu_operand(o, gamma[i]), d));
        ASSAY_TRY(gpu_check_tensor(op, rstd[i], gpu_operand(o, rstd[i]), ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_count(op, rstd[i], gpu_operand(o, rstd[i]), tokens * (i == 0 ? heads : groups)));
    }
    ASSAY_CHECK(eps >= 0.0, ASSAY_INVALID_ARGUMENT,
                "%s: eps: expected a number that is not negative, found %g", op, eps);
    return ASSAY_OK;
}

static assay_status check_turn(const gpu_operands *o, int64_t tokens, int64_t d)
{
    const char *op = o->op->name;
    const gpu_tensor c = gpu_operand(o, "cos"), s = gpu_operand(o, "sin"),
                     position = gpu_operand(o, "position");
    ASSAY_TRY(gpu_check_tensor(op, "cos", c, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "sin", s, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "sin", s, gpu_tensor_row_count(c), gpu_tensor_cols(c)));
    ASSAY_CHECK(2 * gpu_tensor_cols(c) <= d, ASSAY_INVALID_ARGUMENT,
                "%s: cos: expected at most %" PRId64 " columns (half the head dimension), found %" PRId64, op,
                d / 2, gpu_tensor_cols(c));
    ASSAY_TRY(gpu_check_tensor(op, "position", position, ASSAY_I64, ASSAY_I64));
    return gpu_check_count(op, "position", position, tokens);
}

static assay_status qkv_rope(const gpu_work *w, bool norm)
{
    const gpu_operands *o = w->o;
    const char *op = o->op->name;
    const gpu_tensor qkv = gpu_operand(o, "qkv"), q = gpu_operand(o, "q"), k = gpu_operand(o, "k");
    ASSAY_TRY(gpu_check_act(op, "qkv", qkv));
    ASSAY_CHECK(q.ndim == 3 && k.ndim == 3, ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected 3 dimensions [T,heads,D], found %d", op, q.ndim == 3 ? "k" : "q",
                q.ndim == 3 ? k.ndim : q.ndim);
    ASSAY_TRY(gpu_check_tensor(op, "q", q, qkv.dtype, qkv.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "k", k, qkv.dtype, qkv.dtype));
    const int64_t tokens = k.shape[0], groups = k.shape[1], d = k.shape[2], heads = q.shape[1];
    ASSAY_CHECK(groups >= 1 && heads % groups == 0, ASSAY_INVALID_ARGUMENT,
                "%s: q: expected a multiple of %" PRId64 " heads, found %" PRId64, op, groups, heads);
    ASSAY_CHECK(gpu_operand_int(o, "head_dim") == d, ASSAY_INVALID_ARGUMENT,
                "%s: head_dim: expected %" PRId64 " (columns of k), found %" PRId64, op, d,
                gpu_operand_int(o, "head_dim"));
    ASSAY_CHECK(tokens * (heads + 2 * groups) < INT_MAX, ASSAY_INVALID_ARGUMENT,
                "%s: qkv: expected fewer than 2^31 heads, found %" PRId64, op, tokens * (heads + 2 * groups));
    ASSAY_TRY(check_heads(o, tokens, heads, groups, d));
    ASSAY_TRY(gpu_check_count(op, "qkv", qkv, tokens * (heads + 2 * groups) * d));
    ASSAY_TRY(check_turn(o, tokens, d));
    if (norm)
        ASSAY_TRY(check_norm(o, tokens, heads, groups, d));
    ASSAY_TRY(check_apart(o));
    if (gpu_tensor_count(qkv) > 0)
        GPU_LAUNCHED(GPU_BY_ACT(qkv.dtype, launch, w, norm), op);
    return ASSAY_OK;
}

static assay_status qkv_rope_fwd(const gpu_work *w)
{
    return qkv_rope(w, false);
}

static assay_status qkv_norm_rope_fwd(const gpu_work *w)
{
    return qkv_rope(w, true);
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static bool pairs_of_eights(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_tensor_cols(gpu_operand(o, "cos")) % GPU_EIGHT == 0 &&
           gpu_eights(o, gpu_operand_int(o, "head_dim"));
}

static void turns_stored(assay_arith *a, const gpu_ctx *, const gpu_operands *)
{
    a->rounding = ASSAY_ROUND_NORM;
}

static void head_lanes(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->lanes = gpu_row_lanes(gpu_tensor_count(gpu_operand(o, "q_gamma")));
}

#define COPIED "q_raw k_raw v"
#define NORMED "q_norm k_norm q_rstd k_rstd"
#define TURNED GPU_ADAPTS("q k", GPU_ELEMENTWISE(0), turns_stored, "what turns is the norm as it is stored")
GPU_LADDER(qkv_rope_fwd) = {
    GPU_RUNG("one thread a head", qkv_rope_fwd, GPU_DECLARES(COPIED " q k", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("eight pairs a thread, rows along the grid", qkv_rope_fwd, NULL, pairs_of_eights, NULL,
                GPU_SM_80, GPU_DECLARES(COPIED " q k", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(qkv_norm_rope_fwd) = {
    GPU_RUNG("one thread a head", qkv_norm_rope_fwd, GPU_DECLARES(COPIED, GPU_ELEMENTWISE(0)),
             GPU_DECLARES(NORMED, GPU_SEQUENTIAL(2)), TURNED),
    GPU_RUNG_IF("lanes a head, several heads a warp, eight pairs at a time", qkv_norm_rope_fwd, NULL,
                pairs_of_eights, NULL, GPU_SM_80, GPU_DECLARES(COPIED, GPU_ELEMENTWISE(0)),
                GPU_ADAPTS(NORMED, GPU_TREE(32, 2), head_lanes, "4 lanes up to D = 32, 8 up to 128"), TURNED),
    GPU_LADDER_END,
};
