/* The way back of split, norm and rope in one launch: gradients of turned heads -> that of the product.  docs/OPS.md 10.
 *
 *   k0  one thread for each head of a token; dgamma: one for each      fp32, sequential fma; rope element-wise
 *       column
 *   k1  without a norm eight pairs of four heads a thread, tokens      fp32, trees; rope element-wise
 *       along the grid; with one 16 threads a head (up to D = 128)
 *       or 32, eight columns each, dgamma in registers beside dx:
 *       rmsnorm_bwd's k3 (gpu/ops/norm_once.cuh) on what turned
 *       back, the next head asked for before this one's sum.
 *       Blocks for queries, keys and values.  Up to D = 256.
 *
 * What the norm reads is rounded to its type in registers, and stored where somebody wants it: k1 has the bits of the highest rungs of
 * rope_bwd, rmsnorm_bwd and qkv_split_bwd (tests/gpu/test_qkv_rope_bwd.c).  A head is read twice with its partner's half, the second
 * time from the cache. */
#include "gpu/ops/norm_once.cuh"
#include "gpu/ops/qkv_rope_bwd.cuh"

/* --- k0 ----------------------------------------------------------------------------------------------------- */
/* Element i of a head, turned back, as it is stored. */
template <class T>
__device__ static __forceinline__ float qkv_turned_back(const T *dy, const float *cos_row,
                                                        const float *sin_row, int i, int pairs)
{
    if (i >= 2 * pairs)
        return gpu_load(dy + i);
    const int j = i < pairs ? i : i - pairs;
    float first = gpu_load(dy + j), second = gpu_load(dy + j + pairs);
    rope_turn(first, second, cos_row[j], -sin_row[j]);
    return qkv_as_stored(i < pairs ? first : second, dy);
}

template <class T, bool NORM> __global__ void qkv_rope_bwd_k0(qkv_back<T> a)
{
    for (int64_t row = gpu_thread(); row < a.tokens * a.groups * a.in_group; row += gpu_threads()) {
        const qkv_grad<T> h = qkv_grad_of<T, NORM>(a, qkv_place_of(row, a.in_group));
        const int pairs = h.turns ? a.pairs : 0;
        float sum = 0.0f;
        for (int i = 0; NORM && h.turns && i < a.d; ++i)
            sum = fmaf(qkv_turned_back(h.dy, h.cos, h.sin, i, pairs) * gpu_load(h.gamma + i),
                       gpu_load(h.x + i) * h.rstd, sum);
        const float mean = sum / (float)a.d;
        for (int i = 0; i < a.d; ++i) {
            float v = qkv_turned_back(h.dy, h.cos, h.sin, i, pairs);
            if (h.turned)
                gpu_store(h.turned + i, v);
            if (NORM && h.turns)
                v = norm_dx(v, gpu_load(h.x + i), gpu_load(h.gamma + i), h.rstd, mean);
            if (h.dx)
                gpu_store(h.dx + i, v);
            gpu_store(h.out + i, v);
        }
    }
}

/* Columns of the queries' gamma, then of the keys'. */
template <class T> __global__ void qkv_norm_rope_bwd_gamma_k0(qkv_back<T> a)
{
    for (int64_t e = gpu_thread(); e < 2 * (int64_t)a.d; e += gpu_threads()) {
        const qkv_side<T> &s = e < a.d ? a.q : a.k;
        const int j = (int)(e % a.d);
        float sum = 0.0f;
        for (int64_t row = 0; s.dgamma && row < s.rows; ++row) {
            const int64_t at = row * a.d, entry = a.position[(unsigned)row / s.heads] * a.pairs;
            sum = fmaf(qkv_turned_back(s.dy + at, a.cos + entry, a.sin + entry, j, a.pairs),
                       gpu_load(s.x + at + j) * s.rstd[row], sum);
        }
        if (s.dgamma)
            s.dgamma[j] = sum + s.dgamma[j];
    }
}

/* --- k1 ----------------------------------------------------------------------------------------------------- */
template <class T>
__device__ static __forceinline__ void qkv_pairs_back(const qkv_grad<T> &h, const qkv_pairs<T> &kept,
                                                      const qkv_angles &angle, int i, int pairs)
{
    float first[GPU_EIGHT], second[GPU_EIGHT];
    kept.second.get(second);
    if (i < pairs) {
        kept.first.get(first);
        for (int j = 0; h.turns && j < GPU_EIGHT; ++j)
            rope_turn(first[j], second[j], angle.cos[j], -angle.sin[j]);
        if (h.turned)
            gpu_store_n(h.turned + i, first);
        gpu_store_n(h.out + i, first);
    }
    if (h.turned)
        gpu_store_n(h.turned + i + pairs, second);
    gpu_store_n(h.out + i + pairs, second);
}

template <class T> __global__ void __launch_bounds__(GPU_BLOCK) qkv_rope_bwd_k1(qkv_back<T> a)
{
    const int pairs = a.pairs;
    const unsigned of_token = a.groups * a.in_group, parts = qkv_parts(of_token);
    GPU_EACH_EIGHT(number, i, a.tokens * parts, a.d - pairs)
    {
        const qkv_part part = qkv_part_of(number, parts, of_token, a.in_group);
        const int64_t position = a.position[part.token]; /* first: cosines wait for it */
        qkv_pairs<T> kept[QKV_TOGETHER] = {};
        qkv_each_head(part, a.in_group,
                      [&](int n, qkv_place p) { kept[n].load(qkv_grad_of<T, false>(a, p).dy, i, pairs); });
        qkv_angles angle = {};
        angle.load(a.cos, a.sin, position, i, pairs);
        qkv_each_head(part, a.in_group, [&](int n, qkv_place p) {
            qkv_pairs_back(qkv_grad_of<T, false>(a, p), kept[n], angle, i, pairs);
        });
    }
}

/* Values as they are, in pieces of 16 bytes; block of blocks. */
template <class T, int LANES>
__device__ static __forceinline__ void qkv_values_back(const qkv_back<T> &a, int64_t block, int64_t blocks)
{
    constexpr int rows = GPU_BLOCK / LANES;
    const int pieces = a.d * (int)sizeof(T) / GPU_VECTOR_BYTES;
    const uint4 *from = reinterpret_cast<const uint4 *>(a.dv);
    uint4 *to = reinterpret_cast<uint4 *>(a.dqkv);
    for (int64_t row = block * rows + threadIdx.x / LANES; row < a.tokens * a.groups; row += blocks * rows)
        for (int e = gpu_lane<LANES>(); e < pieces; e += LANES)
            to[((row + 1) * a.in_group - 1) * pieces + e] = from[row * pieces + e];
}

/* Blocks of the queries, of the keys, of the values.  One piece of eight a lane.  The positions are asked for one head further ahead than
 * the rest, or a thread would wait for one before it could ask for cosines. */
template <class T, int LANES> __global__ void __launch_bounds__(GPU_BLOCK) qkv_norm_rope_bwd_k1(qkv_back<T> a)
{
    constexpr int rows = GPU_BLOCK / LANES;
    const int normed = a.q.blocks + a.k.blocks, d = a.d, i = gpu_lane<LANES>() * GPU_EIGHT;
    if ((int)blockIdx.x >= normed) {
        qkv_values_back<T, LANES>(a, (int)blockIdx.x - normed, (int)gridDim.x - normed);
        return;
    }
    const bool key = (int)blockIdx.x >= a.q.blocks;
    const qkv_side<T> s = key ? a.k : a.q;
    const int block = (int)blockIdx.x - (key ? a.q.blocks : 0);
    const int64_t step = (int64_t)s.blocks * rows;
    float dgamma[1][GPU_EIGHT] = {}, g[GPU_EIGHT] = {};
    if (i < d)
        gpu_load_n(g, s.gamma + i);
    int64_t row = (int64_t)block * rows + threadIdx.x / LANES;
    qkv_normed<T> next = {};
    next.load(a, s, row, qkv_position(a, s, row), i);
    int64_t position = qkv_position(a, s, row + step);
    for (int64_t first = (int64_t)block * rows; first < s.rows; first += step, row += step) {
        const qkv_normed<T> head = next;
        next.load(a, s, row + step, position, i);
        position = qkv_position(a, s, row + 2 * step);
        float dy[GPU_EIGHT], x[GPU_EIGHT], sum = 0.0f;
        head.turned_back(dy, i, a.pairs);
        head.x.get(x);
        if (head.mine)
            sum = norm_once_terms(sum, dgamma[0], dy, x, g, head.rstd);
        const float mean = gpu_lanes_sum<LANES>(sum) / (float)d;
        if (!head.mine)
            continue;
        const int64_t at = row * d + i;
        if (s.turned)
            gpu_store_n(s.turned + at, dy);
        for (int j = 0; j < GPU_EIGHT; ++j)
            dy[j] = norm_dx(dy[j], x[j], g[j], head.rstd, mean);
        if (s.dx)
            gpu_store_n(s.dx + at, dy);
        const unsigned group = (unsigned)row / s.of_group, of = s.place + (unsigned)row % s.of_group;
        gpu_store_n(a.dqkv + ((int64_t)group * a.in_group + of) * d + i, dy);
    }
    if (s.partial)
        norm_once_join<LANES>(s.partial + (int64_t)block * d, dgamma, d);
}

/* --- the call ----------------------------------------------------------------------------------------------- */
/* Names of a side's slots; without a norm what turned back is dq_raw. */
typedef struct qkv_names {
    const char *dy, *x, *gamma, *rstd, *norm, *raw, *dgamma;
} qkv_names;
static const qkv_names names_of[2] = {{"dq", "q_raw", "q_gamma", "q_rstd", "dq_norm", "dq_raw", "q_dgamma"},
                                      {"dk", "k_raw", "k_gamma", "k_rstd", "dk_norm", "dk_raw", "k_dgamma"}};

/* Floats of the workspace that the sums of a side's gamma need. */
static int64_t partial_floats(const gpu_operands *o, const qkv_names *n)
{
    const gpu_tensor dy = gpu_operand(o, n->dy);
    return gpu_tensor_present(gpu_operand(o, n->dgamma))
               ? norm_once_blocks(dy.shape[0] * dy.shape[1], dy.shape[2]) * dy.shape[2]
               : 0;
}
static size_t partial_bytes(const gpu_ctx *, const gpu_operands *o)
{
    return sizeof(float) * (size_t)(partial_floats(o, &names_of[0]) + partial_floats(o, &names_of[1]));
}

template <class T>
static qkv_side<T> side_of(const gpu_operands *o, bool norm, const qkv_names *n, int64_t groups,
                           float *partial)
{
    const gpu_tensor dy = gpu_operand(o, n->dy);
    qkv_side<T> s = {};
    s.dy = (const T *)dy.data;
    s.x = (const T *)gpu_operand(o, n->x).data;
    s.gamma = (const T *)gpu_operand(o, n->gamma).data;
    s.rstd = (const float *)gpu_operand(o, n->rstd).data;
    s.turned = (T *)gpu_operand(o, norm ? n->norm : n->raw).data;
    s.dx = norm ? (T *)gpu_operand(o, n->raw).data : nullptr;
    s.dgamma = (float *)gpu_operand(o, n->dgamma).data;
    s.partial = s.dgamma ? partial : nullptr;
    s.heads = (unsigned)dy.shape[1];
    s.of_group = (unsigned)(dy.shape[1] / groups);
    s.rows = dy.shape[0] * dy.shape[1];
    s.blocks = norm_once_blocks(s.rows, dy.shape[2]);
    return s;
}

template <class T> static qkv_back<T> back_of(const gpu_work *w, bool norm)
{
    const gpu_operands *o = w->o;
    const gpu_tensor dk = gpu_operand(o, "dk");
    float *partial = (float *)w->ctx->workspace;
    qkv_back<T> a;
    a.q = side_of<T>(o, norm, &names_of[0], dk.shape[1], partial);
    a.k = side_of<T>(o, norm, &names_of[1], dk.shape[1], partial + partial_floats(o, &names_of[0]));
    a.k.place = a.q.of_group;
    a.dv = (const T *)gpu_operand(o, "dv").data;
    a.dqkv = (T *)gpu_operand(o, "dqkv").data;
    a.cos = (const float *)gpu_operand(o, "cos").data;
    a.sin = (const float *)gpu_operand(o, "sin").data;
    a.position = (const int64_t *)gpu_operand(o, "position").data;
    a.groups = (unsigned)dk.shape[1];
    a.in_group = a.q.of_group + 2;
    a.tokens = dk.shape[0];
    a.d = (int)dk.shape[2];
    a.pairs = (int)gpu_tensor_cols(gpu_operand(o, "cos"));
    return a;
}

template <class T, int LANES> static cudaError_t launch_lanes(const qkv_back<T> &a, cudaStream_t stream)
{
    const int64_t pieces = a.tokens * a.groups * a.d * (int64_t)sizeof(T) / GPU_VECTOR_BYTES,
                  values = (pieces + GPU_BLOCK - 1) / GPU_BLOCK;
    const int64_t blocks =
        a.q.blocks + a.k.blocks + (values < NORM_ONCE_BLOCKS ? values : (int64_t)NORM_ONCE_BLOCKS);
    const cudaError_t e =
        GPU_LAUNCH((qkv_norm_rope_bwd_k1<T, LANES>), dim3((unsigned)blocks), dim3(GPU_BLOCK), 0, stream, a);
    if (e != cudaSuccess || (a.q.dgamma == nullptr && a.k.dgamma == nullptr))
        return e;
    return norm_once_gammas(norm_once_sums{a.q.dgamma, a.q.partial, a.q.blocks},
                            norm_once_sums{a.k.dgamma, a.k.partial, a.k.blocks}, a.d, stream);
}

template <class T> static cudaError_t launch_k0(const qkv_back<T> &a, bool norm, cudaStream_t stream)
{
    const dim3 grid = gpu_grid(a.tokens * a.groups * a.in_group, GPU_BLOCK);
    if (!norm)
        return GPU_LAUNCH_NO_BARRIER((qkv_rope_bwd_k0<T, false>), grid, dim3(GPU_BLOCK), 0, stream, a);
    const cudaError_t e = GPU_LAUNCH_NO_BARRIER(qkv_norm_rope_bwd_gamma_k0<T>, gpu_grid(2 * a.d, GPU_BLOCK),
                                                dim3(GPU_BLOCK), 0, stream, a);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH_NO_BARRIER((qkv_rope_bwd_k0<T, true>), grid, dim3(GPU_BLOCK), 0, stream, a);
}

template <class T> static cudaError_t launch(const gpu_work *w, bool norm)
{
    const qkv_back<T> a = back_of<T>(w, norm);
    if (w->variant == 0)
        return launch_k0<T>(a, norm, w->stream);
    if (norm)
        return norm_once_lanes(a.d) == GPU_WARP ? launch_lanes<T, GPU_WARP>(a, w->stream)
                                                : launch_lanes<T, 16>(a, w->stream);
    const gpu_pieces_launch eights =
        gpu_pieces_of(a.tokens * qkv_parts(a.groups * a.in_group), (a.d - a.pairs) / GPU_EIGHT);
    return GPU_LAUNCH_NO_BARRIER(qkv_rope_bwd_k1<T>, eights.grid, eights.block, 0, w->stream, a);
}

static assay_status check_dgamma(const gpu_operands *o, int64_t d)
{
    for (int i = 0; i < 2; ++i) {
        const char *slot = names_of[i].dgamma;
        const gpu_tensor t = gpu_operand(o, slot);
        if (!gpu_tensor_present(t))
            continue;
        ASSAY_TRY(gpu_check_tensor(o->op->name, slot, t, ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_count(o->op->name, slot, t, d));
    }
    return ASSAY_OK;
}

static assay_status back(const gpu_work *w, bool norm)
{
    static const char *const of_q[] = {"dq", "q_raw", "dq_norm", "dq_raw", NULL}, *const of_k[] = {
                                                                                      "dk",     "dv",
                                                                                      "k_raw",  "dk_norm",
                                                                                      "dk_raw", NULL};
    const gpu_operands *o = w->o;
    qkv_sizes s;
    ASSAY_TRY(qkv_check_sizes(o, "dq", "dk", "dqkv", &s));
    ASSAY_TRY(qkv_check_heads(o, &s, of_q, s.heads));
    ASSAY_TRY(qkv_check_heads(o, &s, of_k, s.groups));
    ASSAY_TRY(qkv_check_turn(o, &s));
    if (norm) {
        ASSAY_TRY(qkv_check_norm(o, &s));
        ASSAY_TRY(check_dgamma(o, s.d));
    }
    ASSAY_TRY(rope_check_apart(o));
    if (norm && w->variant > 0)
        ASSAY_TRY(gpu_check_workspace(o->op->name, w->ctx, partial_bytes(w->ctx, o)));
    if (gpu_tensor_count(gpu_operand(o, "dqkv")) > 0)
        GPU_LAUNCHED(GPU_BY_ACT(s.act, launch, w, norm), o->op->name);
    return ASSAY_OK;
}

static assay_status qkv_rope_bwd(const gpu_work *w)
{
    return back(w, false);
}

static assay_status qkv_norm_rope_bwd(const gpu_work *w)
{
    return back(w, true);
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
/* Lanes that have one piece of a head: more would share none. */
static bool heads_of_lanes(const gpu_ctx *ctx, const gpu_operands *o)
{
    return gpu_operand_int(o, "head_dim") <= (int64_t)GPU_WARP * GPU_EIGHT && qkv_pairs_of_eights(ctx, o);
}

static void reads_stored(assay_arith *a, const gpu_ctx *, const gpu_operands *)
{
    a->rounding = ASSAY_ROUND_NORM;
}
static void lanes_read_stored(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    const int64_t lanes = gpu_operand_int(o, "head_dim") / GPU_EIGHT;
    reads_stored(a, ctx, o);
    a->lanes = lanes > 1 ? (int)lanes : 1;
}
static void columns_of(assay_arith *a, const gpu_operands *o, const qkv_names *n)
{
    const gpu_tensor dy = gpu_operand(o, n->dy);
    const int64_t d = dy.shape[2];
    a->rounding = ASSAY_ROUND_NORM;
    a->lanes = norm_once_blocks(dy.shape[0] * dy.shape[1], d) * (GPU_BLOCK / norm_once_lanes(d));
}
static void query_columns(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    columns_of(a, o, &names_of[0]);
}
static void key_columns(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    columns_of(a, o, &names_of[1]);
}

#define STORED "the norm reads the gradient as it is stored"
#define COLUMNS                                                                                              \
    STORED "; as many chains as rows up to those of 256 blocks, 16 in each up to D = 128, 8 up to 256"
GPU_LADDER(qkv_rope_bwd) = {
    GPU_RUNG("one thread a head", qkv_rope_bwd, GPU_DECLARES("dq_raw dk_raw dqkv", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("eight pairs of four heads a thread", qkv_rope_bwd, NULL, qkv_pairs_of_eights, NULL,
                GPU_SM_80, GPU_DECLARES("dq_raw dk_raw dqkv", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(qkv_norm_rope_bwd) = {
    GPU_RUNG("one thread a head, one a column", qkv_norm_rope_bwd,
             GPU_DECLARES("dq_norm dk_norm", GPU_ELEMENTWISE(0)),
             GPU_ADAPTS("dq_raw dk_raw dqkv q_dgamma k_dgamma", GPU_SEQUENTIAL(0), reads_stored, STORED)),
    GPU_RUNG_IF("lanes a head; heads are read once, dgamma in registers beside dx", qkv_norm_rope_bwd,
                partial_bytes, heads_of_lanes, NULL, GPU_SM_80,
                GPU_DECLARES("dq_norm dk_norm", GPU_ELEMENTWISE(0)),
                GPU_ADAPTS("dq_raw dk_raw dqkv", GPU_TREE(32, 0), lanes_read_stored, STORED "; D / 8 lanes"),
                GPU_ADAPTS("q_dgamma", GPU_TREE(4096, 0), query_columns, COLUMNS),
                GPU_ADAPTS("k_dgamma", GPU_TREE(4096, 0), key_columns, COLUMNS)),
    GPU_LADDER_END,
};
