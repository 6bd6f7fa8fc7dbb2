/* Exact requests of what a query of attention sees of its keys, forward and backward: windows, documents, positions that an int does not hold, keys out of
 * order, rows that see nothing, tiles seen by all or by none, values that are infinite. */
#include "parity/checks/request.h"

#include <math.h>
#include <stdlib.h>

#define FAR ((int64_t)1 << 40)

/* First keys of queries: none; such that a query sees a power of two of keys; the key of its own position. */
enum firsts { NO_FIRST, POWERS, OWN };

/* Query i stands at q_from + i q_step, key j at k_from + j.  counted > 0: keys from there on have scores so low that they weigh
 * nothing, whatever their values; < 0: those before -counted. */
typedef struct sight {
    int64_t queries, q_from, keys, k_from, q_step, window, counted;
    double scale;
    enum firsts first;
    bool shuffled; /* keys in another order */
} sight;

/* Equal scores over 1, 2, 4, ... keys: exact means. */
static const sight means[] = {
    {70, 0, 70, 0, 1, 0, 0, 1.0, POWERS, false},
    {9, 60, 128, 0, 8, 0, 0, 1.0, POWERS, true},
    {33, 0, 66, 0, 2, 16, 0, -1.0, POWERS, false},
    {37, 3, 150, 0, 4, 0, 0, 0.5, POWERS, false},
    /* all see all: in whole tiles of queries; in whole tiles of keys and a part of one, of which the first ones weigh nothing */
    {70, 200, 64, 0, 1, 0, 0, 1.0, NO_FIRST, false},
    {12, 300, 264, 0, 1, 0, -136, 1.0, NO_FIRST, false},
    {12, 0, 64, 100, 1, 0, 0, 1.0, POWERS, false}, /* none sees any */
    /* beyond an int: documents and a window; neither; a part of a tile; queries or keys alone, or a document's first key */
    {36, FAR, 136, FAR - 100, 1, 16, 0, 1.0, POWERS, false},
    {12, FAR + 200, 136, FAR, 1, 0, 128, 1.0, NO_FIRST, false},
    {9, FAR, 40, FAR - 20, 1, 0, 0, 1.0, POWERS, false},
    {8, FAR, 128, 0, 1, 0, 0, 1.0, POWERS, false},
    {8, 0, 128, -FAR, 1, 0, 0, 1.0, POWERS, false},
    {1, 300, 64, 0, 1, 0, 0, 1.0, POWERS, false},
    /* of a block's queries one is near the keys, the others far before and behind */
    {24, 140 - 12 * FAR, 144, 0, FAR, 16, 0, 1.0, NO_FIRST, false},
    {12, 100, 60, 0, 1, 0, 0, 1.0, POWERS, false}, /* all keys are in the past, documents hide some */
    /* up to here WIDE_MEANS */
    {12, 40, 16, 0, 1, 0, 0, 1.0, NO_FIRST, false}, /* all see all, in one tile */
    {24, INT32_MAX - 12, 64, INT32_MAX - 76, 1, 0, 0, 1.0, POWERS, false},
    {24, INT32_MAX - 12, 128, 0, 1, 0, 0, 1.0, POWERS, false},
    {8, -FAR, 128, 0, 1, 0, 0, 1.0, POWERS, false},
    {24, INT32_MAX - 12, 64, 0, 1, 0, 0, 1.0, NO_FIRST, false},
    {8, 128, 128, 0, 1, FAR, 0, 1.0, NO_FIRST, false},
};

/* Head dimensions of q and v, heads, groups, batch: every tile on matrix units, and what they refuse.  Above 128 a
 * request takes longer: the first ones of `means`, with which each kernel takes both sides of what it decides about a tile. */
typedef struct heads {
    int64_t d, dv, heads, groups, batch;
} heads;
static const heads widths[] = {
    {8, 16, 4, 2, 2},   {40, 56, 3, 1, 1},   {88, 72, 2, 2, 2}, {120, 104, 4, 1, 1},
    {96, 128, 2, 1, 1}, {192, 128, 2, 1, 1}, {8, 136, 1, 1, 2}, {256, 216, 1, 1, 1},
};
enum { WIDE_MEANS = 15 };

static size_t means_of(const heads *h)
{
    return h->d > 128 || h->dv > 128 ? WIDE_MEANS : sizeof means / sizeof *means;
}

static const heads refused[] = {{12, 12, 2, 1, 1}, {8, 12, 2, 2, 1}, {132, 8, 2, 1, 1}, {8, 132, 2, 1, 2}};

/* A window or a document of one key: a query has the values of its own, whatever the others hold. */
static const sight alone[] = {
    {70, 0, 70, 0, 1, 1, 0, 1.0, NO_FIRST, false},
    {37, 0, 75, 0, 2, 0, 0, 1.0, OWN, true},
    {20, 130, 160, 0, 1, 1, 0, 1.0, NO_FIRST, false},
    {20, 118, 160, 0, 1, 4, 0, 1.0, OWN, false}, /* on both sides of a tile's end */
};
static const sight no_scale = {9, 0, 17, 0, 1, 0, 0, 0.0, POWERS, false};

static double eights(const parity_ask *q, int64_t i)
{
    return 8.0 * parity_lattice(q, i);
}

/* Infinite in odd and in even places, of both signs, and numbers. */
static double unbounded(const parity_ask *q, int64_t i)
{
    return i % 11 == 5 ? HUGE_VAL : i % 13 == 8 ? -HUGE_VAL : parity_lattice(q, i);
}

static bool counts(const sight *s, int64_t j)
{
    return s->counted == 0 || (s->counted > 0 ? j < s->counted : j >= -s->counted);
}

static int64_t key_position(const sight *s, int64_t j)
{
    return s->k_from + (s->shuffled ? (j * 7 + 3) % s->keys : j); /* no number of keys is a multiple of 7 */
}

/* The first key of query i.  POWERS: and all of the keys now and then. */
static int64_t first_key(const sight *s, int64_t i, int64_t position)
{
    const int64_t last_key = s->k_from + s->keys - 1, last = position < last_key ? position : last_key;
    const int64_t keys = last - s->k_from + 1;
    int64_t seen = (int64_t)1 << i % 8;
    if (s->first == OWN)
        return position;
    if (keys > 0 && (keys & (keys - 1)) == 0 && i % 3 == 0)
        return -FAR;
    while (seen > keys && seen > 1)
        seen /= 2;
    return last + 1 - seen;
}

static void ask_positions(parity_ask *q, const sight *s, int64_t batch)
{
    const int64_t tq = batch * s->queries, tk = batch * s->keys;
    int64_t *query = calloc((size_t)tq, sizeof *query), *first = calloc((size_t)tq, sizeof *first),
            *key = calloc((size_t)tk, sizeof *key);
    if (!query || !first || !key)
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: attention");
    for (int64_t t = 0; t < tk && q->st == ASSAY_OK; t++)
        key[t] = key_position(s, t / batch);
    for (int64_t t = 0; t < tq && q->st == ASSAY_OK; t++) {
        query[t] = s->q_from + t / batch * s->q_step;
        first[t] = first_key(s, t, query[t]);
    }
    parity_ask_i64(q, "q_position", tq, query);
    parity_ask_i64(q, "k_position", tk, key);
    if (s->first != NO_FIRST)
        parity_ask_i64(q, "first_key", tq, first);
    free(key);
    free(first);
    free(query);
}

/* Queries look at dimension 0, where keys that do not count are -64. */
static void ask_scores(parity_ask *q, const sight *s, const heads *h)
{
    const int64_t tq = h->batch * s->queries, tk = h->batch * s->keys;
    float *query = calloc((size_t)(tq * h->heads * h->d), sizeof *query),
          *key = calloc((size_t)(tk * h->groups * h->d), sizeof *key);
    if (!query || !key)
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: attention");
    for (int64_t r = 0; r < tq * h->heads && q->st == ASSAY_OK; r++)
        query[r * h->d] = s->counted != 0 ? 64.0f : 0.0f;
    for (int64_t i = 0; i < tk * h->groups * h->d && q->st == ASSAY_OK; i++)
        key[i] = i % h->d > 0 || s->counted == 0                ? (float)parity_lattice(q, i)
                 : counts(s, i / (h->batch * h->groups * h->d)) ? 0.0f
                                                                : -64.0f;
    parity_ask_floats(q, "q", 3, (int64_t[]){tq, h->heads, h->d}, query);
    parity_ask_floats(q, "k", 3, (int64_t[]){tk, h->groups, h->d}, key);
    free(key);
    free(query);
}

/* Those of keys that do not count are so large that a weight of 2^-100 would be seen. */
static void ask_values(parity_ask *q, const sight *s, const heads *h, parity_fill value)
{
    const int64_t of_key = h->batch * h->groups * h->dv;
    float *x = calloc((size_t)(s->keys * of_key), sizeof *x);
    if (!x)
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: attention");
    for (int64_t i = 0; i < s->keys * of_key && q->st == ASSAY_OK; i++)
        x[i] = (float)(value(q, i) * (counts(s, i / of_key) ? 1.0 : 0x1p100));
    parity_ask_floats(q, "v", 3, (int64_t[]){h->batch * s->keys, h->groups, h->dv}, x);
    free(x);
}

static void ask_attrs(parity_ask *q, const sight *s, const heads *h)
{
    const struct {
        const char *name;
        int64_t value;
    } attrs[] = {{"batch", h->batch},   {"seq_q", s->queries}, {"seq_k", s->keys},    {"heads", h->heads},
                 {"groups", h->groups}, {"head_dim", h->d},    {"head_dim_v", h->dv}, {"window", s->window}};
    ask_positions(q, s, h->batch);
    for (size_t i = 0; i < sizeof attrs / sizeof *attrs; i++)
        parity_ask_int(q, attrs[i].name, attrs[i].value);
    parity_ask_real_attr(q, "scale", s->scale);
    parity_ask_finish(q);
}

static void ask(parity_ask *q, const sight *s, const heads *h, parity_fill value)
{
    parity_ask_begin(q, "attention_fwd");
    if (q->off) /* who asks for another operation does not wait for these numbers */
        return;
    ask_scores(q, s, h);
    ask_values(q, s, h, value);
    ask_attrs(q, s, h);
}

/* --- backward ------------------------------------------------------------------------------------------------ */

enum input { DOUT, QUERY, KEY, VALUE, OUT };
enum { LOW = -128 }; /* minus a power of two: LOW - lse is 0 whatever it is multiplied with on the way */

static double low(const parity_ask *q, int64_t i)
{
    (void)q;
    (void)i;
    return LOW;
}

static double power(int64_t row, int64_t pair)
{
    return (double)(1 << (row * 5 + pair * 2) % 3);
}

/* Columns 2 m and 2 m + 1 of queries are equal, those of keys have opposite signs: a score is 0 and a probability exp(0 - lse) = 1 for
 * every pair that is seen.  But columns 0 and 1 of some queries meet -4096 of some keys, whose probability is 0.  dO has eight
 * numbers a row: dS is an integer of at most 256, which bf16 holds where a kernel rounds it for a product.
 * Where not all keys count in the forward (`counted`), columns 0 and 1 are one score for all pairs, LOW, and lse is as low: so low that
 * a key of zeros behind the last one has the probability +inf. */
static double bounded(const parity_ask *q, const sight *s, enum input what, int64_t row, int64_t width,
                      int64_t c)
{
    const double drawn = parity_lattice(q, row * width + c);
    switch (what) {
    case DOUT:
        return (row + c) % ((width + 7) / 8) == 0 ? drawn : 0.0;
    case QUERY:
        return c > 1 ? power(row, c / 2) : row % 3 == 0 || s->counted != 0 ? 64.0 : 0.0;
    case KEY:
        return c > 1             ? (c % 2 == 0 ? power(row, c / 2) : -power(row, c / 2))
               : s->counted != 0 ? LOW / (2.0 * 64.0)
               : row % 4 == 0    ? (s->scale > 0.0 ? -32.0 : 32.0)
                                 : 0.0;
    default:
        return drawn;
    }
}

/* Of a query that sees the key of its position alone: one number of every row is infinite, of one input in turn, such that no NaN
 * arises: dO v and -dO o have the same sign, what an infinity is multiplied with is not 0.  dS has few bits. */
static double infinite(enum input what, int64_t position, int64_t row, int64_t width, int64_t c)
{
    /* a query's where keys are positive: its score is +inf */
    const int64_t place = row * 5 % width, even = place / 2 * 2;
    const bool here = position % 5 == (int64_t)what && c == (what == QUERY ? even : place);
    const double sign = position / 5 % 2 == 0 || what == QUERY || what == KEY ? 1.0 : -1.0;
    const double finite = what == QUERY || (what == KEY && c % 2 == 0) ? power(row, c / 2)
                          : what == KEY                                ? -power(row, c / 2)
                                                                       : power(row, 0);
    return what == OUT ? -power(row, 0) : here ? sign * HUGE_VAL : finite;
}

/* Input `what` [rows of_token, width]. */
static void ask_input(parity_ask *q, const sight *s, const heads *h, enum input what, bool unbound)
{
    static const char *const slots[] = {"do", "q", "k", "v", "o"};
    const bool of_keys = what == KEY || what == VALUE;
    const int64_t of_token = of_keys ? h->groups : h->heads,
                  width = what == QUERY || what == KEY ? h->d : h->dv;
    const int64_t tokens = h->batch * (of_keys ? s->keys : s->queries), n = tokens * of_token * width;
    float *x = calloc((size_t)n, sizeof *x);
    if (!x) {
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: attention");
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = i / width, token = row / of_token / h->batch;
        const int64_t position = of_keys ? key_position(s, token) : s->q_from + token * s->q_step;
        x[i] = (float)(unbound ? infinite(what, position, row, width, i % width)
                               : bounded(q, s, what, row, width, i % width));
    }
    parity_ask_floats(q, slots[what], 3, (int64_t[]){tokens, of_token, width}, x);
    free(x);
}

static void ask_backward(parity_ask *q, const sight *s, const heads *h, bool unbound)
{
    static const enum input inputs[] = {DOUT, QUERY, KEY, VALUE, OUT};
    parity_ask_begin(q, "attention_bwd");
    if (q->off)
        return;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        ask_input(q, s, h, inputs[i], unbound);
    parity_ask_real(q, "lse", ASSAY_F32, 2, (int64_t[]){h->batch * s->queries, h->heads},
                    s->counted != 0 ? low : parity_zero);
    ask_attrs(q, s, h);
}

void parity_ask_lattice_sights(parity_ask *q)
{
    q->tier = "exact";
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        for (size_t i = 0; i < means_of(&widths[w]); i++)
            ask(q, &means[i], &widths[w], eights);
        for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
            ask(q, &alone[i], &widths[w], unbounded);
        ask(q, &no_scale, &widths[w], eights);
    }
    for (size_t w = 0; w < sizeof refused / sizeof *refused; w++)
        ask(q, &means[0], &refused[w], eights);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        for (size_t i = 0; i < means_of(&widths[w]); i++)
            ask_backward(q, &means[i], &widths[w], false);
        for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
            ask_backward(q, &alone[i], &widths[w], true);
        ask_backward(q, &no_scale, &widths[w], false);
    }
    for (size_t w = 0; w < sizeof refused / sizeof *refused; w++)
        ask_backward(q, &means[0], &refused[w], false);
}
