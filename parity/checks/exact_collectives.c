/* Collectives of the lattice request: every rank of the world has its part in them. */
#include "core/base/philox.h"
#include "parity/checks/request.h"

#include <stdlib.h>
#include <string.h>

static void call_world(parity_ask *q, bool sums, assay_dtype dtype)
{
    snprintf(q->op.group, sizeof q->op.group, "world");
    q->op.n_group_ranks = q->world;
    q->op.group_ranks = q->ranks;
    parity_ask_text(q, "dtype", assay_dtype_name(dtype));
    if (sums)
        parity_ask_text(q, "reduction", "sum");
    parity_ask_finish(q);
}

/* Rows that rank a sends to rank b, none for some pairs. */
static int64_t chunk(int a, int b)
{
    return (a + 2 * b) % 3;
}

static void add_all_to_all(parity_ask *q, int64_t h)
{
    json_t *counts = json_array(), *recv_counts = json_array();
    int64_t rows = 0;
    for (int r = 0; r < q->world; r++) {
        rows += chunk(q->rank, r);
        json_array_append_new(counts, json_integer(chunk(q->rank, r)));
        json_array_append_new(recv_counts, json_integer(chunk(r, q->rank)));
    }
    parity_ask_begin(q, "all_to_all");
    json_object_set_new(q->attrs, "counts", counts);
    json_object_set_new(q->attrs, "recv_counts", recv_counts);
    parity_ask_2d(q, "send", q->act, rows, h, parity_unique);
    call_world(q, false, q->act);
}

/* A chain: every rank hands its own rows to the next. */
static void add_pairs(parity_ask *q, int64_t rows, int64_t h)
{
    const int64_t next =
        q->n + 2; /* the ends of the chain ask for less: numbers stay the same on every rank */
    for (int back = 1; back >= 0; back--) {
        const int peer = back ? q->rank - 1 : q->rank + 1;
        if (peer < 0 || peer >= q->world)
            continue;
        parity_ask_begin(q, back ? "recv" : "send");
        if (back)
            json_object_set_new(q->attrs, "shape", json_pack("[I,I]", (json_int_t)rows, (json_int_t)h));
        else
            parity_ask_2d(q, "send", q->act, rows, h, parity_unique);
        parity_ask_int(q, "peer", peer);
        call_world(q, false, q->act);
    }
    q->n = next;
}

/* Rank r gives rows + r rows. */
static void add_uneven_gather(parity_ask *q, int64_t rows, int64_t h)
{
    json_t *counts = json_array();
    for (int r = 0; r < q->world; r++)
        json_array_append_new(counts, json_integer(rows + r));
    parity_ask_begin(q, "all_gather");
    json_object_set_new(q->attrs, "counts", counts);
    parity_ask_2d(q, "send", q->act, rows + q->rank, h, parity_unique);
    call_world(q, false, q->act);
}

void parity_ask_collectives(parity_ask *q, int64_t rows)
{
    const int64_t h = 3, vector[2] = {5 + q->rank, 7};
    parity_ask_begin(q, "all_reduce");
    parity_ask_2d(q, "send", ASSAY_F32, rows, h, parity_unique);
    call_world(q, true, ASSAY_F32);
    parity_ask_begin(q, "all_reduce");
    parity_ask_i64(q, "send", 2, vector);
    call_world(q, true, ASSAY_I64);
    parity_ask_begin(q, "all_reduce");
    parity_ask_bytes(q, "send", ASSAY_F64, 1, (int64_t[]){2}, (double[]){0x1p-40 + q->rank, 7.0});
    call_world(q, true, ASSAY_F64);
    parity_ask_begin(q, "all_gather");
    parity_ask_2d(q, "send", q->act, rows, h, parity_unique);
    call_world(q, false, q->act);
    add_uneven_gather(q, rows, h);
    parity_ask_begin(q, "reduce_scatter");
    parity_ask_2d(q, "send", ASSAY_F32, rows * q->world, h, parity_unique);
    call_world(q, true, ASSAY_F32);
    parity_ask_begin(q, "broadcast");
    parity_ask_2d(q, "send", q->act, rows, h, parity_unique);
    parity_ask_int(q, "root", q->world - 1);
    call_world(q, false, q->act);
    add_all_to_all(q, h);
    add_pairs(q, rows, h);
}
