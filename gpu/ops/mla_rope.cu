/* Multi-latent attention: rope of interleaved pairs whose results lie in halves, of the last columns of heads and of the key part that
 * all heads share.  docs/OPS.md 4; DeepSeek-V2 2024, DeepSeek-V3 2024.
 *
 *   k0  one thread for each element that passes and each pair       fp32, element-wise; the heads of dk_pos_emb as one chain
 *   k1  eight of them for each thread; the same arithmetic */
#include "gpu/ops/rope.cuh"
#include "gpu/vector.cuh"

/* --- rotation ----------------------------------------------------------------------------------------------- */
/* What all four have: tables, positions, and the sizes of a head. */
struct mla_turn {
    const float *cos, *sin;
    const int64_t *position;
    int64_t tokens, heads, nope, pairs, value; /* N, h, V */
};

/* Pair j of a token: neighbours of x to the halves of y, and back. */
template <class T>
__device__ static __forceinline__ void mla_pair(T *y, const T *x, const mla_turn &m, int64_t token, int64_t j)
{
    const int64_t entry = m.position[token] * m.pairs + j;
    float a = gpu_load(x + 2 * j), b = gpu_load(x + 2 * j + 1);
    rope_turn(a, b, m.cos[entry], m.sin[entry]);
    gpu_store(y + j, a);
    gpu_store(y + m.pairs + j, b);
}
template <class T>
__device__ static __forceinline__ void mla_pair_back(T *dx, float a, float b, const mla_turn &m,
                                                     int64_t token, int64_t j)
{
    const int64_t entry = m.position[token] * m.pairs + j;
    rope_turn(a, b, m.cos[entry], -m.sin[entry]);
    gpu_store(dx + 2 * j, a);
    gpu_store(dx + 2 * j + 1, b);
}

template <class T, bool BACK> __global__ void mla_rope_q_k0(T *y, const T *x, mla_turn m)
{
    const int64_t width = m.nope + m.pairs, d = width + m.pairs; /* elements that pass, then pairs */
    for (int64_t e = gpu_thread(); e < m.tokens * m.heads * width; e += gpu_threads()) {
        const int64_t row = e / width, i = e % width, j = i - m.nope;
        const T *from = x + row * d + m.nope;
        T *to = y + row * d + m.nope;
        if (j < 0)
            to[j] = from[j];
        else if (BACK)
            mla_pair_back(to, gpu_load(from + j), gpu_load(from + m.pairs + j), m, row / m.heads, j);
        else
            mla_pair(to, from, m, row / m.heads, j);
    }
}

template <class T> __global__ void mla_rope_kv_fwd_k0(T *k, T *v, const T *kv, const T *pos, mla_turn m)
{
    const int64_t packed = m.nope + m.value, width = packed + m.pairs, d = m.nope + 2 * m.pairs;
    for (int64_t e = gpu_thread(); e < m.tokens * m.heads * width; e += gpu_threads()) {
        const int64_t row = e / width, i = e % width, token = row / m.heads;
        if (i < m.nope)
            k[row * d + i] = kv[row * packed + i];
        else if (i < packed)
            v[row * m.value + i - m.nope] = kv[row * packed + i];
        else
            mla_pair(k + row * d + m.nope, pos + token * 2 * m.pairs, m, token, i - packed);
    }
}

template <class T> __global__ void mla_rope_kv_bwd_k0(T *dkv, T *dpos, const T *dk, const T *dv, mla_turn m)
{
    const int64_t packed = m.nope + m.value, d = m.nope + 2 * m.pairs, width = m.heads * packed + m.pairs;
    for (int64_t e = gpu_thread(); e < m.tokens * width; e += gpu_threads()) {
        const int64_t token = e / width, j = e % width, c = j - m.pairs; /* pairs, then the heads' rows */
        if (c < 0) {
            float first = 0.0f, second = 0.0f;
            for (int64_t row = token * m.heads; row < (token + 1) * m.heads; ++row) {
                first += gpu_load(dk + row * d + m.nope + j);
                second += gpu_load(dk + row * d + m.nope + m.pairs + j);
            }
            mla_pair_back(dpos + token * 2 * m.pairs, first, second, m, token, j);
            continue;
        }
        const int64_t row = token * m.heads + c / packed, i = c % packed;
        dkv[row * packed + i] = i < m.nope ? dk[row * d + i] : dv[row * m.value + i - m.nope];
    }
}

/* --- by eights; rows are below 2^31 ------------------------------------------------------------------------- */
template <class T> __device__ static __forceinline__ void mla_copy_eight(T *y, const T *x)
{
    if constexpr (sizeof(T) == sizeof(float)) {
        float v[GPU_EIGHT];
        gpu_load_n(v, x);
        gpu_store_n(y, v);
    } else {
        gpu_write_words(y, gpu_read_words<uint4>(x)); /* bits: a NaN keeps its own */
    }
}

/* Cosines and sines of eight pairs from j on. */
struct mla_angles {
    float cos[GPU_EIGHT], sin[GPU_EIGHT];
    __device__ __forceinline__ mla_angles(const mla_turn &m, int64_t token, int j)
    {
        const int64_t entry = m.position[token] * m.pairs + j;
        gpu_load_n(cos, m.cos + entry);
        gpu_load_n(sin, m.sin + entry);
    }
};

template <class T>
__device__ static __forceinline__ void mla_eight(T *y, const T *x, const mla_turn &m, int64_t token, int j)
{
    float low[GPU_EIGHT], high[GPU_EIGHT], a[GPU_EIGHT], b[GPU_EIGHT];
    gpu_load_n(low, x + 2 * j);
    gpu_load_n(high, x + 2 * j + GPU_EIGHT);
    const mla_angles angle(m, token, j);
    GPU_UNROLL
    for (int n = 0; n < GPU_EIGHT; ++n) {
        const float *from = n < GPU_EIGHT / 2 ? low + 2 * n : high + 2 * n - GPU_EIGHT;
        a[n] = from[0];
        b[n] = from[1];
        rope_turn(a[n], b[n], angle.cos[n], angle.sin[n]);
    }
    gpu_store_n(y + j, a);
    gpu_store_n(y + m.pairs + j, b);
}

template <class T>
__device__ static __forceinline__ void mla_eight_back(T *dx, float (&a)[GPU_EIGHT], float (&b)[GPU_EIGHT],
                                                      const mla_turn &m, int64_t token, int j)
{
    float low[GPU_EIGHT], high[GPU_EIGHT];
    const mla_angles angle(m, token, j);
    GPU_UNROLL
    for (int n = 0; n < GPU_EIGHT; ++n) {
        float *to = n < GPU_EIGHT / 2 ? low + 2 * n : high + 2 * n - GPU_EIGHT;
        rope_turn(a[n], b[n], angle.cos[n], -angle.sin[n]);
        to[0] = a[n];
        to[1] = b[n];
    }
    gpu_store_n(dx + 2 * j, low);
    gpu_store_n(dx + 2 * j + GPU_EIGHT, high);
}

template <class T, bool BACK> __global__ void mla_rope_q_k1(T *y, const T *x, mla_turn m)
{
    const int nope = (int)m.nope, pairs = (int)m.pairs, d = nope + 2 * pairs;
    GPU_EACH_EIGHT(row, i, m.tokens * m.heads, nope + pairs)
    {
        const T *from = x + row * d;
        T *to = y + row * d;
        const int64_t token = (unsigned)row / (unsigned)m.heads;
        if (i < nope) {
            mla_copy_eight(to + i, from + i);
        } else if (BACK) {
            float a[GPU_EIGHT], b[GPU_EIGHT];
            gpu_load_n(a, from + i);
            gpu_load_n(b, from + i + pairs);
            mla_eight_back(to + nope, a, b, m, token, i - nope);
        } else {
            mla_eight(to + nope, from + nope, m, token, i - nope);
        }
    }
}

template <class T> __global__ void mla_rope_kv_fwd_k1(T *k, T *v, const T *kv, const T *pos, mla_turn m)
{
    const int nope = (int)m.nope, pairs = (int)m.pairs, packed = nope + (int)m.value;
    GPU_EACH_EIGHT(row, i, m.tokens * m.heads, packed + pairs)
    {
        const int64_t token = (unsigned)row / (unsigned)m.heads;
        T *to = k + row * (nope + 2 * pairs);
        if (i < nope)
            mla_copy_eight(to + i, kv + row * packed + i);
        else if (i < packed)
            mla_copy_eight(v + row * (packed - nope) + i - nope, kv + row * packed + i);
        else
            mla_eight(to + nope, pos + token * 2 * pairs, m, token, i - packed);
    }
}

/* A row is a token: its eights of pairs first, whose threads walk the heads, then the heads' rows of dkv. */
template <class T> __global__ void mla_rope_kv_bwd_k1(T *dkv, T *dpos, const T *dk, const T *dv, mla_turn m)
{
    const int nope = (int)m.nope, pairs = (int)m.pairs, packed = nope + (int)m.value, heads = (int)m.heads;
    const int d = nope + 2 * pairs;
    GPU_EACH_EIGHT(token, i, m.tokens, pairs + heads * packed)
    {
        if (i >= pairs) {
            const int head = (i - pairs) / packed, c = (i - pairs) % packed;
            const int64_t row = token * heads + head;
            mla_copy_eight(dkv + row * packed + c,
                           c < nope ? dk + row * d + c : dv + row * (packed - nope) + c - nope);
            continue;
        }
        float a[GPU_EIGHT] = {}, b[GPU_EIGHT] = {};
        const T *from = dk + token * heads * d + nope + i;
        for (int head = 0; head < heads; ++head, from += d) {
            float first[GPU_EIGHT], second[GPU_EIGHT];
            gpu_load_n(first, from);
            gpu_load_n(second, from + pairs);
            for (int n = 0; n < GPU_EIGHT; ++n) {
                a[n] += first[n];
                b[n] += second[n];
            }
        }
        mla_eight_back(dpos + token * 2 * pairs, a, b, m, token, i);
    }
}

/* --- the calls ---------------------------------------------------------------------------------------------- */
/* Tables and positions, and the memory of outputs. */
static assay_status check_turn(const gpu_operands *o, mla_turn *m)
{
    const char *op = o->op->name;
    const gpu_tensor c = gpu_operand(o, "cos"), s = gpu_operand(o, "sin"),
                     position = gpu_operand(o, "position");
    ASSAY_TRY(gpu_check_tensor(op, "cos", c, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "sin", s, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "sin", s, gpu_tensor_row_count(c), gpu_tensor_cols(c)));
    ASSAY_TRY(gpu_check_tensor(op, "position", position, ASSAY_I64, ASSAY_I64));
    m->cos = (const float *)c.data;
    m->sin = (const float *)s.data;
    m->position = (const int64_t *)position.data;
    m->pairs = gpu_tensor_cols(c);
    m->tokens = gpu_tensor_count(position);
    return rope_check_apart(o);
}

/* One of a call's tensors: so many columns for each row. */
static assay_status check_rows(const gpu_operands *o, const char *name, assay_dtype act, int64_t rows,
                               int64_t columns)
{
    const gpu_tensor t = gpu_operand(o, name);
    int64_t count;
    ASSAY_TRY(gpu_check_tensor(o->op->name, name, t, act, act));
    ASSAY_CHECK(assay_mul_i64(rows, columns, &count), ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected elements that an int64 counts", o->op->name, name);
    return gpu_check_count(o->op->name, name, t, count);
}

template <class T>
static cudaError_t launch_q(const gpu_work *w, bool back, gpu_tensor y, gpu_tensor x, const mla_turn &m)
{
    const int64_t rows = m.tokens * m.heads, width = m.nope + m.pairs;
    const gpu_pieces_launch eights = gpu_pieces_of(rows, width / GPU_EIGHT);
    const dim3 grid = gpu_grid(rows * width, GPU_BLOCK);
    if (w->variant > 0 && back)
        return GPU_LAUNCH_NO_BARRIER((mla_rope_q_k1<T, true>), eights.grid, eights.block, 0, w->stream,
                                     (T *)y.data, (const T *)x.data, m);
    if (w->variant > 0)
        return GPU_LAUNCH_NO_BARRIER((mla_rope_q_k1<T, false>), eights.grid, eights.block, 0, w->stream,
                                     (T *)y.data, (const T *)x.data, m);
    if (back)
        return GPU_LAUNCH_NO_BARRIER((mla_rope_q_k0<T, true>), grid, dim3(GPU_BLOCK), 0, w->stream,
                                     (T *)y.data, (const T *)x.data, m);
    return GPU_LAUNCH_NO_BARRIER((mla_rope_q_k0<T, false>), grid, dim3(GPU_BLOCK), 0, w->stream, (T *)y.data,
                                 (const T *)x.data, m);
}

static assay_status mla_rope_q(const gpu_work *w, bool back)
{
    const char *op = w->o->op->name, *x_name = back ? "dy" : "q", *y_name = back ? "dx" : "y";
    const gpu_tensor x = gpu_operand(w->o, x_name), y = gpu_operand(w->o, y_name);
    const int64_t dim = gpu_operand_int(w->o, "head_dim");
    int64_t rows;
    mla_turn m = {};
    ASSAY_TRY(gpu_check_act(op, x_name, x));
    ASSAY_TRY(check_turn(w->o, &m));
    m.heads = gpu_operand_int(w->o, "heads");
    ASSAY_CHECK(m.heads >= 1 && dim >= 0 && assay_mul_i64(m.tokens, m.heads, &rows), ASSAY_INVALID_ARGUMENT,
                "%s: heads: expected at least 1 and rows that an int64 counts, found %" PRId64, op, m.heads);
    ASSAY_CHECK(m.pairs <= dim / 2, ASSAY_INVALID_ARGUMENT,
                "%s: cos: expected at most %" PRId64 " columns (half the head dimension), found %" PRId64, op,
                dim / 2, m.pairs);
    ASSAY_TRY(check_rows(w->o, x_name, x.dtype, rows, dim));
    ASSAY_TRY(check_rows(w->o, y_name, x.dtype, rows, dim));
    m.nope = dim - 2 * m.pairs;
    if (gpu_tensor_count(x) > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_q, w, back, y, x, m), op);
    return ASSAY_OK;
}

template <class T> static T *data_of(const gpu_work *w, const char *slot)
{
    return (T *)gpu_operand(w->o, slot).data;
}

template <class T> static cudaError_t launch_kv_fwd(const gpu_work *w, const mla_turn &m)
{
    T *k = data_of<T>(w, "k"), *v = data_of<T>(w, "v");
    const T *kv = data_of<T>(w, "kv"), *pos = data_of<T>(w, "k_pos_emb");
    const int64_t rows = m.tokens * m.heads, width = m.nope + m.value + m.pairs;
    const gpu_pieces_launch eights = gpu_pieces_of(rows, width / GPU_EIGHT);
    if (w->variant > 0)
        return GPU_LAUNCH_NO_BARRIER(mla_rope_kv_fwd_k1<T>, eights.grid, eights.block, 0, w->stream, k, v, kv,
                                     pos, m);
    return GPU_LAUNCH_NO_BARRIER(mla_rope_kv_fwd_k0<T>, gpu_grid(rows * width, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 w->stream, k, v, kv, pos, m);
}

template <class T> static cudaError_t launch_kv_bwd(const gpu_work *w, const mla_turn &m)
{
    T *dkv = data_of<T>(w, "dkv"), *dpos = data_of<T>(w, "dk_pos_emb");
    const T *dk = data_of<T>(w, "dk"), *dv = data_of<T>(w, "dv");
    const int64_t width = m.heads * (m.nope + m.value) + m.pairs;
    const gpu_pieces_launch eights = gpu_pieces_of(m.tokens, width / GPU_EIGHT);
    if (w->variant > 0)
        return GPU_LAUNCH_NO_BARRIER(mla_rope_kv_bwd_k1<T>, eights.grid, eights.block, 0, w->stream, dkv,
                                     dpos, dk, dv, m);
    return GPU_LAUNCH_NO_BARRIER(mla_rope_kv_bwd_k0<T>, gpu_grid(m.tokens * width, GPU_BLOCK),
                                 dim3(GPU_BLOCK), 0, w->stream, dkv, dpos, dk, dv, m);
}

static assay_status mla_rope_kv(const gpu_work *w, bool back)
{
    static const char *const names[2][4] = {{"kv", "k_pos_emb", "k", "v"}, {"dkv", "dk_pos_emb", "dk", "dv"}};
    const char *op = w->o->op->name, *const *name = names[back];
    const assay_dtype act = gpu_operand(w->o, name[0]).dtype;
    mla_turn m = {};
    ASSAY_TRY(gpu_check_act(op, name[0], gpu_operand(w->o, name[0])));
    ASSAY_TRY(check_turn(w->o, &m));
    m.heads = gpu_operand_int(w->o, "heads");
    m.nope = gpu_operand_int(w->o, "qk_head_dim");
    m.value = gpu_operand_int(w->o, "v_head_dim");
    ASSAY_CHECK(m.heads >= 1 && m.nope >= 0 && m.value >= 0 && m.heads <= INT_MAX && m.nope <= INT_MAX &&
                    m.value <= INT_MAX && m.pairs <= INT_MAX,
                ASSAY_INVALID_ARGUMENT,
                "%s: heads: expected at least 1 with sizes that an int holds, found %" PRId64, op, m.heads);
    int64_t rows;
    ASSAY_CHECK(assay_mul_i64(m.tokens, m.heads, &rows), ASSAY_INVALID_ARGUMENT,
                "%s: heads: expected rows that an int64 counts, found %" PRId64 " heads", op, m.heads);
    ASSAY_TRY(check_rows(w->o, name[0], act, rows, m.nope + m.value));
    ASSAY_TRY(check_rows(w->o, name[1], act, m.tokens, 2 * m.pairs));
    ASSAY_TRY(check_rows(w->o, name[2], act, rows, m.nope + 2 * m.pairs));
    ASSAY_TRY(check_rows(w->o, name[3], act, rows, m.value));
    if (m.tokens > 0 && m.nope + m.value + m.pairs > 0)
        GPU_LAUNCHED(back ? GPU_BY_ACT(act, launch_kv_bwd, w, m) : GPU_BY_ACT(act, launch_kv_fwd, w, m), op);
    return ASSAY_OK;
}

static assay_status mla_rope_q_fwd(const gpu_work *w)
{
    return mla_rope_q(w, false);
}

static assay_status mla_rope_q_bwd(const gpu_work *w)
{
    return mla_rope_q(w, true);
}

static assay_status mla_rope_kv_fwd(const gpu_work *w)
{
    return mla_rope_kv(w, false);
}

static assay_status mla_rope_kv_bwd(const gpu_work *w)
{
    return mla_rope_kv(w, true);
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static bool q_by_eights(const gpu_ctx *, const gpu_operands *o)
{
    const int64_t heads = gpu_operand_int(o, "heads");
    return gpu_tensor_cols(gpu_operand(o, "cos")) % GPU_EIGHT == 0 && heads >= 1 &&
           gpu_tensor_count(gpu_operand(o, "position")) < INT_MAX / heads &&
           gpu_eights(o, gpu_operand_int(o, "head_dim"));
}
static bool kv_by_eights(const gpu_ctx *, const gpu_operands *o)
{
    const int64_t heads = gpu_operand_int(o, "heads"), nope = gpu_operand_int(o, "qk_head_dim"),
                  value = gpu_operand_int(o, "v_head_dim"), pairs = gpu_tensor_cols(gpu_operand(o, "cos")),
                  most = INT_MAX;
    return nope % GPU_EIGHT == 0 && value % GPU_EIGHT == 0 && nope <= most && value <= most &&
           pairs <= most && heads >= 1 && heads <= most / 4 / (nope + value + 2 * pairs + 1) &&
           gpu_tensor_count(gpu_operand(o, "position")) < most / heads && gpu_eights(o, pairs);
}

#define MLA_RUNGS(run, accepts, ...)                                                                         \
    GPU_RUNG("one thread an element or pair", run, __VA_ARGS__),                                             \
        GPU_RUNG_IF("eight elements or pairs a thread", run, NULL, accepts, NULL, GPU_SM_80, __VA_ARGS__),   \
        GPU_LADDER_END
GPU_LADDER(mla_rope_q_fwd) = {MLA_RUNGS(mla_rope_q_fwd, q_by_eights, GPU_DECLARES("y", GPU_ELEMENTWISE(0)))};
GPU_LADDER(mla_rope_q_bwd) = {MLA_RUNGS(mla_rope_q_bwd, q_by_eights, GPU_DECLARES("dx", GPU_ELEMENTWISE(0)))};
GPU_LADDER(mla_rope_kv_fwd) = {
    MLA_RUNGS(mla_rope_kv_fwd, kv_by_eights, GPU_DECLARES("k v", GPU_ELEMENTWISE(0)))};
GPU_LADDER(mla_rope_kv_bwd) = {MLA_RUNGS(mla_rope_kv_bwd, kv_by_eights,
                                         GPU_DECLARES("dkv", GPU_ELEMENTWISE(0)),
                                         GPU_DECLARES("dk_pos_emb", GPU_SEQUENTIAL(0)))};
