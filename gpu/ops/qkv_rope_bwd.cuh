/* The gradients of a token's heads on their way back through rope and norm: where those of queries, keys and values lie, and where one
 * head's row of dqkv finds what it is made of (gpu/ops/qkv_rope_bwd.cu). */
#ifndef GPU_OPS_QKV_ROPE_BWD_CUH
#define GPU_OPS_QKV_ROPE_BWD_CUH

#include "gpu/ops/qkv_rope.cuh"

/* Queries, or keys: rows = tokens x heads. */
template <class T> struct qkv_side {
    const T *dy, *x, *gamma; /* x, gamma, rstd: of the norm, where there is one */
    const float *rstd;
    T *turned, *dx;                  /* dy turned back; behind the norm: NULL where nobody wants it */
    float *dgamma, *partial;         /* partial [blocks,D]; both NULL: gamma is frozen */
    unsigned heads, of_group, place; /* heads of a group, and where the first stands among all of its group */
    int64_t rows;
    int blocks;
};

template <class T> struct qkv_back {
    qkv_side<T> q, k;
    const T *dv;
    T *dqkv;
    const float *cos, *sin;
    const int64_t *position;
    unsigned groups, in_group; /* in_group: query heads of a group, its key and its value */
    int64_t tokens;
    int d, pairs;
};

/* One head of one token, from its row of dqkv.  A value has dy and out alone. */
template <class T> struct qkv_grad {
    const T *dy, *x, *gamma;
    T *turned, *dx, *out;
    float rstd;
    const float *cos, *sin;
    bool turns;
};

template <class T, bool NORM>
__device__ static __forceinline__ qkv_grad<T> qkv_grad_of(const qkv_back<T> &a, qkv_place p)
{
    const unsigned group = p.group, head = p.head;
    const int64_t d = a.d;
    qkv_grad<T> h = {};
    h.out = a.dqkv + ((int64_t)group * a.in_group + head) * d;
    if (head == a.in_group - 1) {
        h.dy = a.dv + group * d;
        return h;
    }
    const qkv_side<T> &s = head < a.q.of_group ? a.q : a.k;
    const int64_t at = (int64_t)group * s.of_group + head - s.place,
                  entry = a.position[group / a.groups] * a.pairs;
    h.dy = s.dy + at * d;
    h.turned = qkv_row(s.turned, at, d);
    h.cos = a.cos + entry;
    h.sin = a.sin + entry;
    h.turns = true;
    if (NORM) {
        h.x = s.x + at * d;
        h.gamma = s.gamma;
        h.dx = qkv_row(s.dx, at, d);
        h.rstd = s.rstd[at];
    }
    return h;
}

#endif
