/* Two collectives: all_reduce as a ring of messages, in place where the caller wants, and reduce_scatter through the memory of the other
 * ranks, which adds in the order of the ranks. */
#include "check.h"

/* in both operations */
enum { SEND = ASSAY_KERNEL_SLOT_ALL_REDUCE_SEND, RECV = ASSAY_KERNEL_SLOT_ALL_REDUCE_RECV };
enum { SUM, MAX, AVG };

static int32_t check(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || c->size < offsetof(assay_kernel_call, comm) + sizeof c->comm || c->comm == NULL)
        return code;
    if (c->slot[SEND] == NULL || c->slot[RECV] == NULL)
        return code;
    const int32_t dtype = c->slot[SEND]->dtype;
    if (dtype != ASSAY_KERNEL_F32 && dtype != ASSAY_KERNEL_BF16)
        return ASSAY_KERNEL_UNSUPPORTED;
    if ((code = check_tensor(c->slot[SEND], dtype, 1)) != 0)
        return code;
    return check_tensor(c->slot[RECV], dtype, 1);
}

static float reduce(float a, float b, int64_t reduction)
{
    if (reduction != MAX)
        return a + b;
    return a != a || b <= a ? a : b; /* a NaN stays */
}

/* --- all_reduce: a ring ----------------------------------------------------------------------------------------- */

/* Elements [first, end) of chunk k of `count` elements in n chunks. */
static int64_t first_of(int64_t count, int32_t n, int32_t k)
{
    return count / n * k + (count % n < k ? count % n : k);
}

typedef struct ring {
    const assay_kernel_comm *comm;
    char *data; /* recv, from `start` on */
    int64_t count, reduction;
    int32_t dtype;
    size_t width;
    char *arrived; /* workspace: one chunk */
} ring;

/* Chunk `out` goes to the next rank, chunk `in` comes from the one before. */
static int32_t pass_on(const ring *r, int32_t out, int32_t in, char *to)
{
    const int32_t n = r->comm->n_ranks, me = r->comm->rank;
    const int64_t a = first_of(r->count, n, out), b = first_of(r->count, n, out + 1);
    const int64_t c = first_of(r->count, n, in), d = first_of(r->count, n, in + 1);
    if (r->comm->send(r->comm, (me + 1) % n, r->data + (size_t)a * r->width, (size_t)(b - a) * r->width) != 0)
        return ASSAY_KERNEL_INTERNAL;
    return r->comm->recv(r->comm, (me + n - 1) % n, to, (size_t)(d - c) * r->width) == 0
               ? ASSAY_KERNEL_OK
               : ASSAY_KERNEL_INTERNAL;
}

static void add_chunk(const ring *r, int32_t k, bool is_last)
{
    const int64_t first = first_of(r->count, r->comm->n_ranks, k),
                  end = first_of(r->count, r->comm->n_ranks, k + 1);
    for (int64_t i = first; i < end; i++) {
        float x = reduce(load(r->arrived, i - first, r->dtype), load(r->data, i, r->dtype), r->reduction);
        if (is_last && r->reduction == AVG)
            x /= (float)r->comm->n_ranks;
        store(r->data, i, r->dtype, x);
    }
}

static int32_t run_ring(const ring *r)
{
    const int32_t n = r->comm->n_ranks, me = r->comm->rank;
    int32_t code = ASSAY_KERNEL_OK;
    for (int32_t step = 0; step + 1 < n && code == 0; step++) {
        const int32_t in = (me - step - 1 + 2 * n) % n;
        code = pass_on(r, (me - step + n) % n, in, r->arrived);
        if (code == 0)
            add_chunk(r, in, step + 2 == n);
    }
    for (int32_t step = 0; step + 1 < n && code == 0; step++) {
        const int32_t in = (me - step + n) % n;
        code =
            pass_on(r, (me + 1 - step + n) % n, in, r->data + (size_t)first_of(r->count, n, in) * r->width);
    }
    return code;
}

static size_t width_of(int32_t dtype)
{
    return dtype == ASSAY_KERNEL_F32 ? 4 : 2;
}

static size_t ring_workspace(const assay_kernel_call *c)
{
    if (c->comm == NULL || c->slot[SEND] == NULL || c->slot[SEND]->shape[0] < 0)
        return 0;
    return (size_t)(c->slot[SEND]->shape[0] / c->comm->n_ranks + 1) * width_of(c->slot[SEND]->dtype);
}

static int32_t run_all_reduce(const assay_kernel_call *c)
{
    const int32_t code = check(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    const int64_t count = c->slot[SEND]->shape[0],
                  start = c->attr[ASSAY_KERNEL_ATTR_ALL_REDUCE_START]->integer;
    if (c->slot[RECV]->shape[0] != count || start < 0 || start > count)
        return ASSAY_KERNEL_INVALID;
    if (c->workspace_bytes < ring_workspace(c))
        return ASSAY_KERNEL_WORKSPACE;
    const size_t width = width_of(c->slot[SEND]->dtype);
    if (count > 0 && c->slot[RECV]->data != c->slot[SEND]->data)
        memcpy(c->slot[RECV]->data, c->slot[SEND]->data, (size_t)count * width);
    const ring r = {.comm = c->comm,
                    .data = (char *)c->slot[RECV]->data + (size_t)start * width,
                    .count = count - start,
                    .reduction = c->attr[ASSAY_KERNEL_ATTR_ALL_REDUCE_REDUCTION]->integer,
                    .dtype = c->slot[SEND]->dtype,
                    .width = width,
                    .arrived = c->workspace};
    return run_ring(&r);
}

/* --- reduce_scatter: everybody's pieces lie where all can read them ----------------------------------------------- */
static size_t scatter_workspace(const assay_kernel_call *c)
{
    if (c->slot[SEND] == NULL || c->slot[SEND]->shape[0] < 0)
        return 0;
    return (size_t)c->slot[SEND]->shape[0] * width_of(c->slot[SEND]->dtype);
}

/* Where the rank's piece begins; -1: counts that do not fit. */
static int64_t piece_of(const assay_kernel_call *c)
{
    const assay_kernel_attr *counts = c->attr[ASSAY_KERNEL_ATTR_REDUCE_SCATTER_COUNTS];
    const int64_t all = c->slot[SEND]->shape[0], mine = c->slot[RECV]->shape[0];
    const int32_t n = c->comm->n_ranks, me = c->comm->rank;
    int64_t start = 0, sum = 0;
    if (counts->list == NULL)
        return mine * n == all ? mine * me : -1;
    for (int32_t r = 0; r < n && counts->n_list == n; r++) {
        start += r < me ? counts->list[r] : 0;
        sum += counts->list[r];
    }
    return counts->n_list == n && sum == all && counts->list[me] == mine ? start : -1;
}

static int32_t run_reduce_scatter(const assay_kernel_call *c)
{
    const int32_t code = check(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    const int64_t start = piece_of(c),
                  reduction = c->attr[ASSAY_KERNEL_ATTR_REDUCE_SCATTER_REDUCTION]->integer;
    const int32_t dtype = c->slot[SEND]->dtype;
    if (start < 0)
        return ASSAY_KERNEL_INVALID;
    if (c->workspace_bytes < scatter_workspace(c))
        return ASSAY_KERNEL_WORKSPACE;
    if (c->workspace_bytes > 0 && c->slot[SEND]->shape[0] > 0)
        memcpy(c->workspace, c->slot[SEND]->data, scatter_workspace(c));
    if (c->comm->barrier(c->comm) != 0)
        return ASSAY_KERNEL_INTERNAL;
    for (int64_t i = 0; i < c->slot[RECV]->shape[0]; i++) {
        float x = load(c->comm->workspace[0], start + i, dtype);
        for (int32_t r = 1; r < c->comm->n_ranks; r++)
            x = reduce(x, load(c->comm->workspace[r], start + i, dtype), reduction);
        store(c->slot[RECV]->data, i, dtype, reduction == AVG ? x / (float)c->comm->n_ranks : x);
    }
    return ASSAY_KERNEL_OK;
}

/* --- descriptions ----------------------------------------------------------------------------------------------- */
static const assay_kernel_output any_order[] = {
    {.size = sizeof(assay_kernel_output),
     .slot = RECV,
     .arith = {.size = sizeof(assay_kernel_arith),
               .accumulate = ASSAY_KERNEL_F32,
               .order = ASSAY_KERNEL_ORDER_UNKNOWN}}}; /* every chunk begins at another rank */
static const assay_kernel_output rank_order[] = {{.size = sizeof(assay_kernel_output),
                                                  .slot = RECV,
                                                  .arith = {.size = sizeof(assay_kernel_arith),
                                                            .accumulate = ASSAY_KERNEL_F32,
                                                            .order = ASSAY_KERNEL_ORDER_SEQUENTIAL}}};
static const assay_kernel all_reduce = {
    .size = sizeof all_reduce,
    .abi = ASSAY_KERNEL_ABI,
    .name = "example ring all_reduce",
    .version = "1",
    .operation = "all_reduce",
    .built = "C17 -O2",
    .memory = ASSAY_KERNEL_MEMORY_HOST,
    .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16),
    .flags = ASSAY_KERNEL_DETERMINISTIC,
    .in_place = "recv=send",
    .n_outputs = 1,
    .outputs = any_order,
    .workspace = ring_workspace,
    .run = run_all_reduce,
};
static const assay_kernel reduce_scatter = {
    .size = sizeof reduce_scatter,
    .abi = ASSAY_KERNEL_ABI,
    .name = "example reduce_scatter through the ranks' memory",
    .version = "1",
    .operation = "reduce_scatter",
    .built = "C17 -O2",
    .memory = ASSAY_KERNEL_MEMORY_HOST,
    .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16),
    .flags = ASSAY_KERNEL_DETERMINISTIC,
    .in_place = "recv=send",
    .n_outputs = 1,
    .outputs = rank_order,
    .workspace = scatter_workspace,
    .run = run_reduce_scatter,
};

const assay_kernel *example_all_reduce(uint32_t abi);
const assay_kernel *example_all_reduce(uint32_t abi)
{
    return abi == ASSAY_KERNEL_ABI ? &all_reduce : NULL;
}

const assay_kernel *example_reduce_scatter(uint32_t abi);
const assay_kernel *example_reduce_scatter(uint32_t abi)
{
    return abi == ASSAY_KERNEL_ABI ? &reduce_scatter : NULL;
}
