/* What the two directions of split, norm and rope in one launch share: numbers as they are stored, and what a call is held to. */
#ifndef GPU_OPS_QKV_ROPE_CUH
#define GPU_OPS_QKV_ROPE_CUH

#include "gpu/ops/norm.cuh"
#include "gpu/ops/rope.cuh"

template <class T> __device__ static __forceinline__ T *qkv_row(T *p, int64_t row, int64_t d)
{
    return p ? p + row * d : nullptr;
}

/* What T stores of v. */
__device__ static __forceinline__ float qkv_as_stored(float v, const float *)
{
    return v;
}
__device__ static __forceinline__ float qkv_as_stored(float v, const bf16 *)
{
    return __bfloat162float(__float2bfloat16_rn(v));
}

/* A head of a token: its group, counted over all tokens, and its number there; row = group in_group + head < 2^31. */
typedef struct qkv_place {
    unsigned group, head;
} qkv_place;

__device__ static __forceinline__ qkv_place qkv_place_of(int64_t row, unsigned in_group)
{
    return {(unsigned)row / in_group, (unsigned)row % in_group};
}

/* k1 has the same columns of four heads of a token under way: cosines and sines are read once for all of them, and a thread that waits has
 * asked for 128 bytes (in bf16) instead of 32. */
enum { QKV_TOGETHER = 4 };

typedef struct qkv_part {
    unsigned token, heads; /* heads: how many there are, at most QKV_TOGETHER */
    qkv_place first;
} qkv_part;

/* Parts of a token of that many heads. */
__host__ __device__ static inline unsigned qkv_parts(unsigned of_token)
{
    return (of_token + QKV_TOGETHER - 1) / QKV_TOGETHER;
}

__device__ static __forceinline__ qkv_part qkv_part_of(int64_t number, unsigned parts, unsigned of_token,
                                                       unsigned in_group)
{
    const unsigned token = (unsigned)number / parts, head = (unsigned)number % parts * QKV_TOGETHER;
    return {token, min(of_token - head, (unsigned)QKV_TOGETHER),
            qkv_place_of((int64_t)token * of_token + head, in_group)};
}

__device__ static __forceinline__ qkv_place qkv_behind(qkv_place p, unsigned in_group)
{
    return p.head + 1 == in_group ? qkv_place{p.group + 1, 0} : qkv_place{p.group, p.head + 1};
}

/* each(number, place) for the heads of a part */
template <class F>
__device__ static __forceinline__ void qkv_each_head(const qkv_part &part, unsigned in_group, F each)
{
    qkv_place p = part.first;
    GPU_UNROLL
    for (int n = 0; n < QKV_TOGETHER; ++n, p = qkv_behind(p, in_group))
        if (n < (int)part.heads)
            each(n, p);
}

/* Cosines and sines of eight pairs of a token; none behind the last pair. */
typedef struct qkv_angles {
    float cos[GPU_EIGHT], sin[GPU_EIGHT];
    __device__ __forceinline__ void load(const float *of_cos, const float *of_sin, int64_t position, int i,
                                         int pairs)
    {
        if (i >= pairs)
            return;
        gpu_load_n(cos, of_cos + position * pairs + i);
        gpu_load_n(sin, of_sin + position * pairs + i);
    }
} qkv_angles;

/* Eight pairs of a head as they are stored: elements i ... i+7 and their partners; behind the last pair the eight that pass alone. */
template <class T> struct qkv_pairs {
    norm_eight<T> first, second;
    __device__ __forceinline__ void load(const T *x, int i, int pairs)
    {
        second.load(x + i + pairs);
        if (i < pairs)
            first.load(x + i);
    }
    /* Added in this order, as rmsnorm's k2 does. */
    __device__ __forceinline__ float squares(void) const
    {
        float v[GPU_EIGHT], sum = 0.0f;
        first.get(v);
        for (int j = 0; j < GPU_EIGHT; ++j)
            sum = fmaf(v[j], v[j], sum);
        second.get(v);
        for (int j = 0; j < GPU_EIGHT; ++j)
            sum = fmaf(v[j], v[j], sum);
        return sum;
    }
};

typedef struct qkv_sizes {
    int64_t tokens, heads, groups, d;
    assay_dtype act;
} qkv_sizes;

/* Sizes from q [T,A,D] and k [T,G,D], the attributes and the packed tensor held to them. */
static inline assay_status qkv_check_sizes(const gpu_operands *o, const char *q_name, const char *k_name,
                                           const char *packed, qkv_sizes *s)
{
    const char *op = o->op->name;
    const gpu_tensor qkv = gpu_operand(o, packed), q = gpu_operand(o, q_name), k = gpu_operand(o, k_name);
    ASSAY_TRY(gpu_check_act(op, packed, qkv));
    ASSAY_CHECK(q.ndim == 3 && k.ndim == 3, ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected 3 dimensions [T,heads,D], found %d", op, q.ndim == 3 ? k_name : q_name,
                q.ndim == 3 ? k.ndim : q.ndim);
    *s = {k.shape[0], q.shape[1], k.shape[1], k.shape[2], qkv.dtype};
    ASSAY_CHECK(s->tokens >= 0, ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected a number of tokens that is not negative, found %" PRId64, op, k_name,
                s->tokens);
    ASSAY_CHECK(s->groups >= 1 && s->heads % s->groups == 0, ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected a multiple of %" PRId64 " heads, found %" PRId64, op, q_name, s->groups,
                s->heads);
    ASSAY_CHECK(gpu_operand_int(o, "head_dim") == s->d, ASSAY_INVALID_ARGUMENT,
                "%s: head_dim: expected %" PRId64 " (columns of %s), found %" PRId64, op, s->d, k_name,
                gpu_operand_int(o, "head_dim"));
    const int64_t rows = s->tokens * (s->heads + 2 * s->groups);
    ASSAY_CHECK(rows < INT_MAX, ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected fewer than 2^31 heads, found %" PRId64, op, packed, rows);
    return gpu_check_count(op, packed, qkv, rows * s->d);
}

/* Slots of that many heads, those that the row has; what may be absent is checked where it is there. */
static inline assay_status qkv_check_heads(const gpu_operands *o, const qkv_sizes *s,
                                           const char *const *names, int64_t heads)
{
    for (; *names; ++names) {
        const int index = gpu_operands_index(o, *names);
        if (index < 0 || (o->op->slots[index].optional && !gpu_tensor_present(o->slot[index])))
            continue;
        ASSAY_TRY(gpu_check_tensor(o->op->name, *names, o->slot[index], s->act, s->act));
        ASSAY_TRY(gpu_check_shape2(o->op->name, *names, o->slot[index], s->tokens * heads, s->d));
    }
    return ASSAY_OK;
}

static inline assay_status qkv_check_norm(const gpu_operands *o, const qkv_sizes *s)
{
    static const char *const gamma[] = {"q_gamma", "k_gamma"}, *const rstd[] = {"q_rstd", "k_rstd"};
    const char *op = o->op->name;
    for (int i = 0; i < 2; ++i) {
        ASSAY_TRY(gpu_check_tensor(op, gamma[i], gpu_operand(o, gamma[i]), s->act, s->act));
        ASSAY_TRY(gpu_check_count(op, gamma[i], gpu_operand(o, gamma[i]), s->d));
        ASSAY_TRY(gpu_check_tensor(op, rstd[i], gpu_operand(o, rstd[i]), ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_count(op, rstd[i], gpu_operand(o, rstd[i]),
                                  s->tokens * (i == 0 ? s->heads : s->groups)));
    }
    return ASSAY_OK;
}

static inline assay_status qkv_check_turn(const gpu_operands *o, const qkv_sizes *sizes)
{
    const char *op = o->op->name;
    const gpu_tensor c = gpu_operand(o, "cos"), s = gpu_operand(o, "sin"),
                     position = gpu_operand(o, "position");
    ASSAY_TRY(gpu_check_tensor(op, "cos", c, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "sin", s, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "sin", s, gpu_tensor_row_count(c), gpu_tensor_cols(c)));
    ASSAY_CHECK(2 * gpu_tensor_cols(c) <= sizes->d, ASSAY_INVALID_ARGUMENT,
                "%s: cos: expected at most %" PRId64 " columns (half the head dimension), found %" PRId64, op,
                sizes->d / 2, gpu_tensor_cols(c));
    ASSAY_TRY(gpu_check_tensor(op, "position", position, ASSAY_I64, ASSAY_I64));
    return gpu_check_count(op, "position", position, sizes->tokens);
}

static inline bool qkv_pairs_of_eights(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_tensor_cols(gpu_operand(o, "cos")) % GPU_EIGHT == 0 &&
           gpu_eights(o, gpu_operand_int(o, "head_dim"));
}

#endif
