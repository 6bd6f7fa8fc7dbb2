/* Exact requests of what a query of attention sees of its keys: windows, documents, positions that an int does not hold, keys out of
 * order, rows that see nothing, tiles seen by all or by none, values that are infinite. */
#include "parity/checks/request.h"

#include <math.h>
#include <stdlib.h>

#define FAR ((int64_t)1 << 40)

typedef struct sight {
    int64_t d, dv, heads, groups, batch;
    int64_t queries, q_from, keys, k_from; /* positions q_from.. and k_from.. */
    int64_t q_step, window;
    double scale;
    bool documents, shuffled; /* a first key for each query; keys in another order */
} sight;

/* Equal scores over 1, 2, 4, ... keys: exact means.  The widths are those of the tiles on matrix units, and what they refuse. */
static const sight means[] = {
    {8, 8, 4, 2, 2, 70, 0, 70, 0, 1, 0, 1.0, true, false},
    {32, 16, 2, 2, 1, 9, 60, 128, 0, 8, 0, 1.0, true, true},
    {16, 40, 3, 1, 2, 33, 0, 66, 0, 2, 16, 1.0, true, false},
    {72, 96, 4, 1, 1, 17, 3, 150, 0, 8, 0, -1.0, true, false},
    {96, 72, 2, 1, 2, 20, 0, 40, 0, 2, 8, 1.0, true, true},
    {128, 128, 8, 2, 1, 40, 0, 130, 0, 3, 0, 0.5, true, false},
    {128, 104, 2, 2, 2, 12, 100, 64, 0, 1, 0, 1.0, false, false},       /* all see all */
    {64, 64, 2, 1, 1, 12, 0, 64, 100, 1, 0, 1.0, true, false},          /* none sees any */
    {64, 64, 2, 1, 1, 40, FAR, 128, FAR - 100, 1, 0, 1.0, true, false}, /* beyond an int */
    {64, 64, 2, 1, 2, 24, INT32_MAX - 12, 64, INT32_MAX - 64 - 12, 1, 0, 1.0, true, false},
    {64, 64, 2, 1, 1, 24, INT32_MAX - 12, 64, 0, 1, 0, 1.0, true, false},
    {64, 64, 2, 1, 1, 8, FAR, 64, 0, 1, 0, 1.0, true, false},
    {64, 64, 2, 1, 1, 8, 0, 64, -FAR, 1, 0, 1.0, true, false},
    {8, 8, 2, 1, 1, 8, 64, 32, 0, 1, FAR << 20, 1.0, false, false},
    {12, 12, 2, 1, 1, 9, 0, 17, 0, 1, 0, 1.0, true, false}, /* not on matrix units */
    {8, 12, 2, 2, 1, 9, 0, 17, 0, 1, 0, 1.0, true, false},
    {136, 8, 2, 1, 1, 9, 0, 17, 0, 1, 0, 1.0, true, false},
    {8, 136, 2, 1, 2, 9, 0, 17, 0, 1, 0, 1.0, true, false},
    {16, 16, 2, 1, 1, 9, 0, 17, 0, 1, 0, 0.0, true, false},
};

/* A window of one key: a query has the values of its own, whatever the others hold. */
static const sight alone[] = {
    {8, 8, 4, 2, 2, 70, 0, 70, 0, 1, 1, 1.0, false, false},
    {48, 40, 3, 1, 1, 37, 0, 75, 0, 2, 1, 1.0, false, true},
    {88, 96, 2, 2, 2, 20, 30, 40, 0, 1, 1, 1.0, false, false},
    {128, 120, 4, 1, 1, 33, 0, 65, 0, 2, 1, 1.0, false, false},
};

static double eights(const parity_ask *q, int64_t i)
{
    return 8.0 * parity_lattice(q, i);
}

/* Infinite in odd and in even places, of both signs, and numbers. */
static double unbounded(const parity_ask *q, int64_t i)
{
    return i % 37 == 5 ? HUGE_VAL : i % 41 == 8 ? -HUGE_VAL : parity_lattice(q, i);
}

static int64_t key_position(const sight *s, int64_t j)
{
    return s->k_from + (s->shuffled ? (j * 7 + 3) % s->keys : j); /* no number of keys is a multiple of 7 */
}

/* The first key of query i: it sees a power of two of keys, and all of them now and then. */
static int64_t first_key(const sight *s, int64_t i, int64_t position)
{
    const int64_t last_key = s->k_from + s->keys - 1, last = position < last_key ? position : last_key;
    const int64_t keys = last - s->k_from + 1;
    int64_t seen = (int64_t)1 << i % 8;
    if (keys > 0 && (keys & (keys - 1)) == 0 && i % 3 == 0)
        return -FAR;
    while (seen > keys && seen > 1)
        seen /= 2;
    return last + 1 - seen;
}

static void ask_positions(parity_ask *q, const sight *s)
{
    const int64_t tq = s->batch * s->queries, tk = s->batch * s->keys;
    int64_t *query = calloc((size_t)tq, sizeof *query), *first = calloc((size_t)tq, sizeof *first),
            *key = calloc((size_t)tk, sizeof *key);
    if (!query || !first || !key)
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: attention");
    for (int64_t t = 0; t < tk && q->st == ASSAY_OK; t++)
        key[t] = key_position(s, t / s->batch);
    for (int64_t t = 0; t < tq && q->st == ASSAY_OK; t++) {
        query[t] = s->q_from + t / s->batch * s->q_step;
        first[t] = first_key(s, t, query[t]);
    }
    parity_ask_i64(q, "q_position", tq, query);
    parity_ask_i64(q, "k_position", tk, key);
    if (s->documents)
        parity_ask_i64(q, "first_key", tq, first);
    free(key);
    free(first);
    free(query);
}

static void ask(parity_ask *q, const sight *s, parity_fill query, parity_fill value)
{
    const struct {
        const char *name;
        int64_t value;
    } attrs[] = {{"batch", s->batch},   {"seq_q", s->queries}, {"seq_k", s->keys},    {"heads", s->heads},
                 {"groups", s->groups}, {"head_dim", s->d},    {"head_dim_v", s->dv}, {"window", s->window}};
    const int64_t tq = s->batch * s->queries, tk = s->batch * s->keys;
    parity_ask_begin(q, "attention_fwd");
    parity_ask_real(q, "q", q->act, 3, (int64_t[]){tq, s->heads, s->d}, query);
    parity_ask_real(q, "k", q->act, 3, (int64_t[]){tk, s->groups, s->d}, parity_lattice);
    parity_ask_real(q, "v", q->act, 3, (int64_t[]){tk, s->groups, s->dv}, value);
    ask_positions(q, s);
    for (size_t i = 0; i < sizeof attrs / sizeof *attrs; i++)
        parity_ask_int(q, attrs[i].name, attrs[i].value);
    parity_ask_real_attr(q, "scale", s->scale);
    parity_ask_finish(q);
}

void parity_ask_lattice_sights(parity_ask *q)
{
    q->tier = "exact";
    for (size_t i = 0; i < sizeof means / sizeof *means; i++)
        ask(q, &means[i], parity_zero, eights);
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        ask(q, &alone[i], parity_lattice, unbounded);
}
