/* Heads of one product: split, norm of each head of q and k where the model has one, rope, in one launch.  docs/OPS.md 10.
 *
 *   k0  one thread for each head of a token                             fp32, sequential fma; rope element-wise
 *   k1  without a norm eight pairs of four heads a thread, tokens along  fp32, tree of that many lanes; rope element-wise
 *       the grid; with one the lanes of rmsnorm's k2 for each head,
 *       several heads a warp.  128-bit accesses
 *
 * qkv is read from memory once; what stays inside is rounded to its type in registers, and stored where somebody wants it.  k1 has the bits
 * of the highest rungs of qkv_split_fwd, rmsnorm_fwd and rope_fwd (tests/gpu/test_qkv_rope.c).  With a norm a lane takes its pairs behind
 * the sum, and finds them in the cache; of heads of 128 columns, all of which turn, the pairs are the columns of its sum: it keeps those of
 * four heads. */
#include "gpu/ops/norm.cuh"
#include "gpu/ops/qkv_rope.cuh"

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

template <class T>
__device__ static __forceinline__ qkv_head<T> qkv_head_of(const qkv_heads<T> &a, qkv_place p)
{
    const unsigned group = p.group, head = p.head, per_group = a.in_group - 2;
    const int64_t row = (int64_t)group * a.in_group + head;
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
        const qkv_head<T> h = qkv_head_of(a, qkv_place_of(row, a.in_group));
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
/* Elements i ... i+7 of a head before they turn. */
template <class T, bool NORM>
__device__ static __forceinline__ void qkv_eight(float (&v)[GPU_EIGHT], const norm_eight<T> &kept,
                                                 const qkv_head<T> &h, int i, float r)
{
    kept.get(v);
    if (h.raw)
        gpu_store_n(h.raw + i, v);
    if (NORM && h.turns) {
        float g[GPU_EIGHT];
        gpu_load_n(g, h.gamma + i);
        for (int j = 0; j < GPU_EIGHT; ++j)
            v[j] = v[j] * r * g[j];
        norm_eight<T> stored;
        stored.round(v);
        stored.get(v);
        if (h.norm)
            gpu_store_n(h.norm + i, v);
    }
}

/* Eight pairs of a head from i on, and what they become. */
template <class T, bool NORM>
__device__ static __forceinline__ void qkv_pairs_out(const qkv_head<T> &h, const qkv_pairs<T> &kept,
                                                     const qkv_angles &angle, int i, int pairs, float r)
{
    float first[GPU_EIGHT], second[GPU_EIGHT];
    qkv_eight<T, NORM>(second, kept.second, h, i + pairs, r);
    if (i < pairs) {
        qkv_eight<T, NORM>(first, kept.first, h, i, r);
        for (int j = 0; h.turns && j < GPU_EIGHT; ++j)
            rope_turn(first[j], second[j], angle.cos[j], angle.sin[j]);
        gpu_store_n(h.out + i, first);
    }
    gpu_store_n(h.out + i + pairs, second);
}

template <class T> __global__ void __launch_bounds__(GPU_BLOCK) qkv_rope_fwd_k1(qkv_heads<T> a)
{
    const int pairs = (int)a.pairs, columns = (int)a.d - pairs;
    const unsigned of_token = a.groups * a.in_group, parts = qkv_parts(of_token);
    GPU_EACH_EIGHT(number, i, a.tokens * parts, columns)
    {
        const qkv_part part = qkv_part_of(number, parts, of_token, a.in_group);
        const int64_t position = a.position[part.token]; /* first: cosines wait for it */
        qkv_pairs<T> kept[QKV_TOGETHER] = {};
        qkv_each_head(part, a.in_group,
                      [&](int n, qkv_place p) { kept[n].load(qkv_head_of(a, p).x, i, pairs); });
        qkv_angles angle = {};
        angle.load(a.cos, a.sin, position, i, pairs);
        qkv_each_head(part, a.in_group, [&](int n, qkv_place p) {
            qkv_pairs_out<T, false>(qkv_head_of(a, p), kept[n], angle, i, pairs, 0.0f);
        });
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
            h = qkv_head_of(a, qkv_place_of(row, a.in_group));
        const float sum = gpu_lanes_sum<LANES>(h.turns ? qkv_squares<T, LANES>(h.x, lane, d) : 0.0f);
        if (row >= rows)
            continue;
        const float r = 1.0f / sqrtf(sum / (float)d + a.eps);
        const int64_t position = a.position[(unsigned)row / (a.groups * a.in_group)];
        for (int i = lane * GPU_EIGHT; i < d - pairs; i += LANES * GPU_EIGHT) {
            qkv_pairs<T> kept = {};
            qkv_angles angle = {};
            kept.load(h.x, i, pairs);
            if (h.turns)
                angle.load(a.cos, a.sin, position, i, pairs);
            qkv_pairs_out<T, true>(h, kept, angle, i, pairs, r);
        }
        if (h.turns && lane == 0)
            *h.rstd = r;
    }
}

/* Heads of 2 x 8 LANES columns, all of which turn: a lane's pairs are the columns of its sum. */
template <class T, int LANES> __global__ void qkv_norm_rope_fwd_k1_kept(qkv_heads<T> a)
{
    constexpr int pairs = LANES * GPU_EIGHT;
    const int i = gpu_lane<LANES>() * GPU_EIGHT;
    const unsigned of_token = a.groups * a.in_group, parts = qkv_parts(of_token);
    for (int64_t first = gpu_lanes_first<LANES>(); first < a.tokens * parts;
         first += gpu_lanes_step<LANES>()) {
        const int64_t number = first + gpu_lanes_group<LANES>();
        qkv_part part = qkv_part_of(number, parts, of_token, a.in_group);
        if (number >= a.tokens * parts)
            part.heads = 0;
        const int64_t position = part.heads > 0 ? a.position[part.token] : 0;
        qkv_pairs<T> kept[QKV_TOGETHER] = {};
        qkv_angles angle = {};
        float r[QKV_TOGETHER];
        qkv_each_head(part, a.in_group,
                      [&](int n, qkv_place p) { kept[n].load(qkv_head_of(a, p).x, i, pairs); });
        if (part.heads > 0)
            angle.load(a.cos, a.sin, position, i, pairs);
        GPU_UNROLL
        for (int n = 0; n < QKV_TOGETHER; ++n)
            r[n] = 1.0f / sqrtf(gpu_lanes_sum<LANES>(kept[n].squares()) / (float)(2 * pairs) + a.eps);
        qkv_each_head(part, a.in_group, [&](int n, qkv_place p) {
            const qkv_head<T> h = qkv_head_of(a, p);
            qkv_pairs_out<T, true>(h, kept[n], angle, i, pairs, r[n]);
            if (h.turns && i == 0)
                *h.rstd = r[n];
        });
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
    if constexpr (LANES == 8) {
        if (a.pairs == LANES * GPU_EIGHT && a.d == 2 * a.pairs)
            return GPU_LAUNCH((qkv_norm_rope_fwd_k1_kept<T, LANES>),
                              gpu_grid(a.tokens * qkv_parts(a.groups * a.in_group), GPU_ROW_BLOCK / LANES),
                              dim3(GPU_ROW_BLOCK), 0, stream, a);
    }
    return GPU_LAUNCH((qkv_norm_rope_fwd_k1<T, LANES>),
                      gpu_grid(a.tokens * a.groups * a.in_group, GPU_ROW_BLOCK / LANES), dim3(GPU_ROW_BLOCK),
                      0, stream, a);
}

template <class T> static cudaError_t launch(const gpu_work *w, bool norm)
{
    const qkv_heads<T> a = heads_of<T>(w->o);
    const int64_t rows = a.tokens * a.groups * a.in_group;
    const gpu_pieces_launch eights =
        gpu_pieces_of(a.tokens * qkv_parts(a.groups * a.in_group), (a.d - a.pairs) / GPU_EIGHT);
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

static assay_status qkv_rope(const gpu_work *w, bool norm)
{
    static const char *const of_q[] = {"q", "q_raw", "q_norm", NULL}, *const of_k[] = {"k", "k_raw", "k_norm",
                                                                                       "v", NULL};
    const gpu_operands *o = w->o;
    const char *op = o->op->name;
    const gpu_tensor qkv = gpu_operand(o, "qkv");
    qkv_sizes s;
    ASSAY_TRY(qkv_check_sizes(o, "q", "k", "qkv", &s));
    ASSAY_TRY(qkv_check_heads(o, &s, of_q, s.heads));
    ASSAY_TRY(qkv_check_heads(o, &s, of_k, s.groups));
    ASSAY_TRY(qkv_check_turn(o, &s));
    if (norm) {
        const double eps = gpu_operand_double(o, "eps");
        ASSAY_TRY(qkv_check_norm(o, &s));
        ASSAY_CHECK(eps >= 0.0, ASSAY_INVALID_ARGUMENT,
                    "%s: eps: expected a number that is not negative, found %g", op, eps);
    }
    ASSAY_TRY(rope_check_apart(o));
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
    GPU_RUNG_IF("eight pairs of four heads a thread", qkv_rope_fwd, NULL, qkv_pairs_of_eights, NULL,
                GPU_SM_80, GPU_DECLARES(COPIED " q k", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(qkv_norm_rope_fwd) = {
    GPU_RUNG("one thread a head", qkv_norm_rope_fwd, GPU_DECLARES(COPIED, GPU_ELEMENTWISE(0)),
             GPU_DECLARES(NORMED, GPU_SEQUENTIAL(2)), TURNED),
    GPU_RUNG_IF("lanes a head, several heads a warp, eight pairs at a time", qkv_norm_rope_fwd, NULL,
                qkv_pairs_of_eights, NULL, GPU_SM_80, GPU_DECLARES(COPIED, GPU_ELEMENTWISE(0)),
                GPU_ADAPTS(NORMED, GPU_TREE(32, 2), head_lanes, "4 lanes up to D = 32, 8 up to 128"), TURNED),
    GPU_LADDER_END,
};
