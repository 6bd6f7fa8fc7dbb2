/* The gradients of a token's heads on their way back through rope and norm: where those of queries, keys and values lie, where one
 * head's row of dqkv finds what it is made of, and what a thread holds of a head with a norm (gpu/ops/qkv_rope_bwd.cu). */
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

/* Eight columns of a head, from i on: what a thread reads of it. */
template <class T> struct qkv_normed {
    norm_eight<T> dy, other, x; /* other: of dy, the partners of the eight */
    qkv_angles angle;
    float rstd;
    bool mine; /* there is such a head */

    __device__ __forceinline__ void load(const qkv_back<T> &a, const qkv_side<T> &s, int64_t row,
                                         int64_t position, int i)
    {
        mine = row < s.rows && i < a.d;
        if (!mine)
            return;
        const int64_t at = row * a.d + i;
        dy.load(s.dy + at);
        x.load(s.x + at);
        rstd = s.rstd[row];
        if (i < 2 * a.pairs) {
            other.load(s.dy + (i < a.pairs ? at + a.pairs : at - a.pairs));
            angle.load(a.cos, a.sin, position, i < a.pairs ? i : i - a.pairs, a.pairs);
        }
    }
    /* Turned back, as they are stored. */
    __device__ __forceinline__ void turned_back(float (&v)[GPU_EIGHT], int i, int pairs) const
    {
        dy.get(v);
        if (i >= 2 * pairs)
            return;
        const bool second = i >= pairs;
        float partner[GPU_EIGHT];
        other.get(partner);
        for (int j = 0; j < GPU_EIGHT; ++j) {
            float a = second ? partner[j] : v[j], b = second ? v[j] : partner[j];
            rope_turn(a, b, angle.cos[j], -angle.sin[j]);
            v[j] = second ? b : a;
        }
        norm_eight<T> stored;
        stored.round(v);
        stored.get(v);
    }
};

/* Of a row of queries or keys; 0 behind the last one. */
template <class T>
__device__ static __forceinline__ int64_t qkv_position(const qkv_back<T> &a, const qkv_side<T> &s,
                                                       int64_t row)
{
    return row < s.rows ? a.position[(unsigned)row / s.heads] : 0;
}

#endif
