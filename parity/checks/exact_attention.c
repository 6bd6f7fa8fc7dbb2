/* Attention of the lattice request: key j is 64 e_(j mod D), query i asks for one visible key; all other scores are 4096
 * less. */
#include "core/base/philox.h"
#include "parity/checks/request.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_DIM = 8 };

/* The key that query position p asks for. */
static int64_t wanted_key(int64_t p, int64_t window)
{
    const int64_t back = window > 0 ? p % window : p / 2;
    return p - (back > p ? p : back);
}

static void fill_one_hot(float *x, int64_t batch, int64_t heads, int64_t n, bool query, int64_t window)
{
    for (int64_t s = 0; s < n; s++) {
        const int64_t hot = query ? wanted_key(s, window) : s;
        for (int64_t r = 0; r < batch * heads; r++)
            x[(s * batch * heads + r) * HEAD_DIM + hot % HEAD_DIM] = 64.0f;
    }
}

static void attention_attrs(parity_ask *q, int64_t batch, int64_t seq_q, int64_t seq_k, int64_t heads,
                            int64_t groups, int64_t window)
{
    parity_ask_int(q, "batch", batch);
    parity_ask_int(q, "seq_q", seq_q);
    parity_ask_int(q, "seq_k", seq_k);
    parity_ask_int(q, "heads", heads);
    parity_ask_int(q, "groups", groups);
    parity_ask_int(q, "head_dim", HEAD_DIM);
    parity_ask_int(q, "head_dim_v", HEAD_DIM);
    parity_ask_int(q, "window", window);
    parity_ask_real_attr(q, "scale", 1.0);
}

static void add_one_hot(parity_ask *q, int64_t batch, int64_t n, int64_t heads, int64_t groups,
                        int64_t window)
{
    enum { MAX = HEAD_DIM * 2 * 8 * HEAD_DIM };
    static const float nothing[MAX] = {0};
    float query[MAX], key[MAX];
    int64_t position[HEAD_DIM * 2];
    memcpy(query, nothing, sizeof query);
    memcpy(key, nothing, sizeof key);
    fill_one_hot(query, batch, heads, n, true, window);
    fill_one_hot(key, batch, groups, n, false, window);
    for (int64_t i = 0; i < n * batch; i++)
        position[i] = i / batch;
    parity_ask_begin(q, "attention_fwd");
    parity_ask_floats(q, "q", 3, (int64_t[]){n * batch, heads, HEAD_DIM}, query);
    parity_ask_floats(q, "k", 3, (int64_t[]){n * batch, groups, HEAD_DIM}, key);
    parity_ask_real(q, "v", q->act, 3, (int64_t[]){n * batch, groups, HEAD_DIM}, parity_unique);
    parity_ask_i64(q, "q_position", n * batch, position);
    parity_ask_i64(q, "k_position", n * batch, position);
    attention_attrs(q, batch, n, n, heads, groups, window);
    parity_ask_finish(q);
}

/* Equal scores over 1, 2, 4 and 8 visible keys: exact means of multiples of 8. */
static double eights(const parity_ask *q, int64_t i)
{
    return 8.0 * parity_lattice(q, i);
}

static void add_uniform(parity_ask *q, int64_t heads, int64_t groups)
{
    static const int64_t asks[4] = {0, 1, 3, 7}, keys[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    parity_ask_begin(q, "attention_fwd");
    parity_ask_real(q, "q", q->act, 3, (int64_t[]){4, heads, HEAD_DIM}, parity_zero);
    parity_ask_real(q, "k", q->act, 3, (int64_t[]){8, groups, HEAD_DIM}, parity_lattice);
    parity_ask_real(q, "v", q->act, 3, (int64_t[]){8, groups, HEAD_DIM}, eights);
    parity_ask_i64(q, "q_position", 4, asks);
    parity_ask_i64(q, "k_position", 8, keys);
    attention_attrs(q, 1, 4, 8, heads, groups, 0);
    parity_ask_finish(q);
}

void parity_ask_lattice_attention(parity_ask *q)
{
    add_one_hot(q, 2, 8, 4, 2, 0);
    add_one_hot(q, 1, 8, 8, 1, 3);
    add_one_hot(q, 1, 1, 2, 2, 0);
    add_one_hot(q, 2, 5, 3, 3, 1);
    add_uniform(q, 4, 2);
}
