/* Exact requests of what attention over several ranks is made of: merged results and packed heads. */
#include "parity/checks/exact.h"

#include "parity/checks/request.h"
#include <math.h>

/* A side that sees no key adds nothing: the other comes out as it is.  Row by row: a sees keys, b does, neither. */
static double merged_a(const parity_ask *q, int64_t i)
{
    (void)q;
    return i % 3 == 0 ? (double)(i - 7) : -HUGE_VAL;
}

static double merged_b(const parity_ask *q, int64_t i)
{
    (void)q;
    return i % 3 == 1 ? (double)(5 - i) : -HUGE_VAL;
}

static double weighted(double lse, const parity_ask *q, int64_t i)
{
    return lse == -HUGE_VAL ? 0.0 : parity_unique(q, i);
}

enum { WIDTH = 3 };

static double result_a(const parity_ask *q, int64_t i)
{
    return weighted(merged_a(q, i / WIDTH), q, i);
}

static double result_b(const parity_ask *q, int64_t i)
{
    return weighted(merged_b(q, i / WIDTH), q, i);
}

static void add_merge(parity_ask *q, int64_t t, int64_t heads)
{
    const int64_t o[3] = {t, heads, WIDTH};
    parity_ask_begin(q, "attention_merge");
    parity_ask_int(q, "heads", heads);
    parity_ask_int(q, "head_dim", WIDTH);
    parity_ask_real(q, "o_a", q->act, 3, o, result_a);
    parity_ask_2d(q, "lse_a", ASSAY_F32, t, heads, merged_a);
    parity_ask_real(q, "o_b", q->act, 3, o, result_b);
    parity_ask_2d(q, "lse_b", ASSAY_F32, t, heads, merged_b);
    parity_ask_finish(q);
}

static void add_pack(parity_ask *q, int64_t t, int64_t heads, int64_t parts, int64_t d)
{
    for (int back = 0; back < 2; back++) {
        parity_ask_begin(q, back ? "unpack_heads" : "pack_heads");
        parity_ask_int(q, "heads", heads);
        parity_ask_int(q, "head_dim", d);
        parity_ask_int(q, "parts", parts);
        if (back)
            parity_ask_real(q, "x", q->act, 4, (int64_t[]){parts, t, heads / parts, d}, parity_unique);
        else
            parity_ask_real(q, "x", q->act, 3, (int64_t[]){t, heads, d}, parity_unique);
        parity_ask_finish(q);
    }
}

void parity_ask_lattice_context(parity_ask *q)
{
    add_merge(q, 7, 2);
    add_merge(q, 1, 1);
    add_merge(q, 0, 2);
    add_pack(q, 5, 4, 2, 3);
    add_pack(q, 3, 6, 3, 1);
    add_pack(q, 4, 3, 1, 2);
    add_pack(q, 0, 2, 2, 4);
    add_pack(q, 5, 4, 2, 8); /* 16 bytes at a time */
    add_pack(q, 3, 6, 3, 24);
}
