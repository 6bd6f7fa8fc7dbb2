/* Collectives: one honest library of each, and what differs from it in one way. */
#include "kernels.h"

#include <stdlib.h>

#define ALL_DTYPES                                                                                           \
    (ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16) |                              \
     ASSAY_KERNEL_SET(ASSAY_KERNEL_F64) | ASSAY_KERNEL_SET(ASSAY_KERNEL_I64))
#define JUST(dtype) .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_##dtype)

enum { SEND = ASSAY_KERNEL_SLOT_ALL_REDUCE_SEND, RECV = ASSAY_KERNEL_SLOT_ALL_REDUCE_RECV };
enum { SUM, MAX, AVG };

static const assay_kernel_output copied[] = {
    {.size = sizeof(assay_kernel_output), .slot = RECV, .arith = ELEMENTWISE(0)}};
static const assay_kernel_output in_rank_order[] = {
    {.size = sizeof(assay_kernel_output), .slot = RECV, .arith = SEQUENTIAL(0)}};
static const assay_kernel_output in_any_order[] = {{.size = sizeof(assay_kernel_output),
                                                    .slot = RECV,
                                                    .arith = {.size = sizeof(assay_kernel_arith),
                                                              .accumulate = ASSAY_KERNEL_F32,
                                                              .order = ASSAY_KERNEL_ORDER_UNKNOWN}}};

static size_t width_of(int32_t dtype)
{
    return dtype == ASSAY_KERNEL_BF16 ? 2 : dtype == ASSAY_KERNEL_F32 ? 4 : 8;
}

static int64_t count_of(const assay_kernel_call *c, int slot)
{
    return c->slot[slot]->shape[0];
}

static int32_t check(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || c->size < offsetof(assay_kernel_call, comm) + sizeof c->comm || c->comm == NULL ||
        c->slot[SEND] == NULL || c->slot[RECV] == NULL)
        return code;
    const int32_t dtype = c->slot[SEND]->dtype;
    if ((code = check_tensor(c->slot[SEND], dtype, 1)) != 0)
        return code;
    return check_tensor(c->slot[RECV], dtype, 1);
}

/* Elements of the ranks' pieces: `even` each, or a list, which has to sum to `all`. */
static int32_t read_counts(const assay_kernel_call *c, int attr, int64_t even, int64_t all, int64_t *counts)
{
    const assay_kernel_attr *a = c->attr[attr];
    const int32_t n = c->comm->n_ranks;
    int64_t sum = 0;
    if (a->list != NULL && a->n_list != n)
        return ASSAY_KERNEL_INVALID;
    for (int32_t r = 0; r < n; r++) {
        counts[r] = a->list != NULL ? a->list[r] : even;
        sum += counts[r];
    }
    return sum == all ? ASSAY_KERNEL_OK : ASSAY_KERNEL_INVALID;
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        memmove(to, from, bytes);
}

/* --- all_gather by messages ------------------------------------------------------------------------------------- */
typedef enum {
    HONEST,
    OTHER_ORDER,
    LAST_MISSING,
    PAST_END,
    ALWAYS_EVEN,
    RECEIVES_FIRST,
    SENDS_TWICE,
    HALF_A_MESSAGE,
    NOT_ALONE,
    UNCHECKED
} gather_fault;

static int32_t gather(const assay_kernel_call *c, gather_fault fault)
{
    int64_t counts[8], before = 0;
    int32_t code = check(c);
    if (code != 0)
        return code;
    const int32_t n = c->comm->n_ranks, me = c->comm->rank;
    const size_t width = width_of(c->slot[SEND]->dtype);
    const int64_t mine = count_of(c, SEND), all = count_of(c, RECV);
    code = read_counts(c, ASSAY_KERNEL_ATTR_ALL_GATHER_COUNTS, all / n, all, counts);
    if (fault != UNCHECKED && (code != 0 || counts[me] != mine))
        return ASSAY_KERNEL_INVALID;
    for (int32_t r = 0; r < n && fault == ALWAYS_EVEN; r++)
        counts[r] = all / n;
    if (n == 1 && fault == NOT_ALONE)
        return ASSAY_KERNEL_OK;
    for (int32_t r = 0; r < n && fault != RECEIVES_FIRST; r++)
        for (int k = 0; k < (fault == SENDS_TWICE ? 2 : 1) && r != me; k++)
            if (c->comm->send(c->comm, r, c->slot[SEND]->data,
                              (size_t)(fault == HALF_A_MESSAGE ? mine / 2 : counts[me]) * width) != 0)
                return ASSAY_KERNEL_INTERNAL;
    for (int32_t k = 0; k < n; k++) {
        const int32_t r = fault == OTHER_ORDER ? (k + me) % n : k; /* begins with its own */
        char *place = (char *)c->slot[RECV]->data + (size_t)before * width;
        const int64_t count = counts[r] - (fault == LAST_MISSING && k == n - 1 && counts[r] > 0);
        if (r == me)
            copy(place, c->slot[SEND]->data, (size_t)count * width);
        else if (fault == LAST_MISSING) {
            char bytes[8 * 1024 * 8];
            if (c->comm->recv(c->comm, r, bytes, (size_t)counts[r] * width) != 0)
                return ASSAY_KERNEL_INTERNAL;
            copy(place, bytes, (size_t)count * width);
        } else if (c->comm->recv(c->comm, r, place, (size_t)count * width) != 0)
            return ASSAY_KERNEL_INTERNAL;
        before += counts[r];
    }
    for (int32_t r = 0; r < n && fault == RECEIVES_FIRST; r++)
        if (r != me && c->comm->send(c->comm, r, c->slot[SEND]->data, (size_t)mine * width) != 0)
            return ASSAY_KERNEL_INTERNAL;
    if (fault == PAST_END && before > 2)
        memset((char *)c->slot[RECV]->data + (size_t)before * width, 1, 1);
    return ASSAY_KERNEL_OK;
}
#define GATHER(symbol, fault, ...)                                                                           \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return gather(c, fault);                                                                             \
    }                                                                                                        \
    DESCRIBE(symbol, "all_gather", ASSAY_KERNEL_DETERMINISTIC, run_##symbol, copied, 1,                      \
             .in_place = "recv=send", __VA_ARGS__)
GATHER(gather_by_messages, HONEST, .dtypes = ALL_DTYPES)
GATHER(gather_of_few_elements, HONEST, JUST(F32), .shapes = "m<=13")
GATHER(gather_of_what_is_not_tried, HONEST, JUST(F32), .shapes = "m>=100000")
GATHER(gather_begins_with_its_own, OTHER_ORDER, JUST(F32))
GATHER(gather_without_last_element, LAST_MISSING, JUST(F32))
GATHER(gather_past_the_end, PAST_END, JUST(F32))
GATHER(gather_ignores_counts, ALWAYS_EVEN, JUST(F32))
GATHER(gather_waits_in_a_circle, RECEIVES_FIRST, JUST(F32))
GATHER(gather_sends_twice, SENDS_TWICE, JUST(F32))
GATHER(gather_sends_half, HALF_A_MESSAGE, JUST(F32))
GATHER(gather_not_of_one_rank, NOT_ALONE, JUST(F32))
GATHER(gather_checks_no_counts, UNCHECKED, JUST(F32))

/* --- sums through the ranks' memory ------------------------------------------------------------------------------ */
typedef enum {
    GOOD,
    NO_DIVISION,
    NO_BARRIER,
    OWN_FIRST,
    NAN_SWALLOWED,
    NARROW,
    NO_START,
    SCRATCH_IN_SEND,
    WRITES_FIRST,
    BY_ARRIVAL,
    ONE_RANK_LESS
} sum_fault;

static size_t whole_workspace(const assay_kernel_call *c)
{
    return c->slot[SEND] != NULL && c->slot[SEND]->shape[0] > 0
               ? 8 + (size_t)c->slot[SEND]->shape[0] * width_of(c->slot[SEND]->dtype)
               : 8;
}

static float reduce(float a, float b, int64_t reduction, sum_fault fault)
{
    if (reduction == MAX)
        return fault == NAN_SWALLOWED ? (a > b ? a : b) : a != a || b <= a ? a : b;
    const float sum = a + b;
    float rounded;
    char half[2];
    if (fault != NARROW)
        return sum;
    store(half, 0, ASSAY_KERNEL_BF16, sum);
    rounded = load(half, 0, ASSAY_KERNEL_BF16);
    return rounded;
}

/* Whoever comes first is added first: tickets in the memory of rank 0. */
static int32_t add_by_arrival(const assay_kernel_call *c, int64_t first, int64_t count, int64_t of)
{
    char *all = c->comm->workspace[0];
    int64_t arrived;
    if (c->comm->rank == 0)
        memset(all, 0, 8);
    if (c->comm->barrier(c->comm) != 0)
        return ASSAY_KERNEL_INTERNAL;
    memcpy(&arrived, all, 8);
    for (int64_t i = 0; i < of; i++) {
        const float mine = load(c->slot[SEND]->data, i, ASSAY_KERNEL_F32);
        store(all + 8, i, ASSAY_KERNEL_F32,
              arrived == 0 ? mine : reduce(load(all + 8, i, ASSAY_KERNEL_F32), mine, SUM, GOOD));
    }
    arrived++;
    memcpy(all, &arrived, 8);
    if (c->comm->barrier(c->comm) != 0)
        return ASSAY_KERNEL_INTERNAL;
    copy(c->slot[RECV]->data, all + 8 + 4 * (size_t)first, 4 * (size_t)count);
    return ASSAY_KERNEL_OK;
}

/* Elements [first, first + count) of the sum of all ranks' pieces. */
static int32_t add(const assay_kernel_call *c, int64_t first, int64_t count, int64_t reduction,
                   sum_fault fault)
{
    const int32_t n = c->comm->n_ranks, me = c->comm->rank, dtype = c->slot[SEND]->dtype;
    const int64_t of = count_of(c, SEND);
    if (c->workspace_bytes < whole_workspace(c))
        return ASSAY_KERNEL_WORKSPACE;
    if (fault == BY_ARRIVAL && reduction == SUM)
        return add_by_arrival(c, first, count, of);
    if (fault == WRITES_FIRST)
        memset(c->slot[RECV]->data, 0, (size_t)count * width_of(dtype));
    copy((char *)c->workspace + 8, c->slot[SEND]->data, (size_t)of * width_of(dtype));
    if (fault != NO_BARRIER && c->comm->barrier(c->comm) != 0)
        return ASSAY_KERNEL_INTERNAL;
    for (int64_t i = 0; i < count; i++) {
        float x = 0.0f;
        for (int32_t k = 0; k < n - (fault == ONE_RANK_LESS && n == 5 && i == 12); k++) {
            const int32_t r = fault == OWN_FIRST ? (me + k) % n : k;
            const float y = load((const char *)c->comm->workspace[r] + 8, first + i, dtype);
            x = k == 0 ? y : reduce(x, y, reduction, fault);
        }
        if (reduction == AVG && fault != NO_DIVISION)
            x /= (float)n;
        if (fault == SCRATCH_IN_SEND && n == 8)
            store(c->slot[SEND]->data, first + i, dtype, x);
        store(c->slot[RECV]->data, i, dtype, x);
    }
    return ASSAY_KERNEL_OK;
}

static int32_t scatter(const assay_kernel_call *c, sum_fault fault)
{
    int64_t counts[8], first = 0;
    const int32_t code = check(c);
    if (code != 0)
        return code;
    if (read_counts(c, ASSAY_KERNEL_ATTR_REDUCE_SCATTER_COUNTS, count_of(c, SEND) / c->comm->n_ranks,
                    count_of(c, SEND), counts) != 0 ||
        counts[c->comm->rank] != count_of(c, RECV))
        return ASSAY_KERNEL_INVALID;
    for (int32_t r = 0; r < c->comm->rank; r++)
        first += counts[r];
    return add(c, first, count_of(c, RECV), c->attr[ASSAY_KERNEL_ATTR_REDUCE_SCATTER_REDUCTION]->integer,
               fault);
}
#define SCATTER(symbol, fault, outputs, ...)                                                                 \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return scatter(c, fault);                                                                            \
    }                                                                                                        \
    DESCRIBE(symbol, "reduce_scatter", ASSAY_KERNEL_DETERMINISTIC, run_##symbol, outputs, 1,                 \
             .workspace = whole_workspace, .in_place = "recv=send", __VA_ARGS__)
SCATTER(scatter_in_rank_order, GOOD, in_rank_order, )
SCATTER(mean_without_division, NO_DIVISION, in_rank_order, JUST(F32))
SCATTER(scatter_without_barrier, NO_BARRIER, in_rank_order, JUST(F32))
SCATTER(scatter_not_in_rank_order, OWN_FIRST, in_rank_order, JUST(F32))
SCATTER(scatter_of_narrow_sums, NARROW, in_rank_order, JUST(F32))
SCATTER(scatter_overwrites_in_place, WRITES_FIRST, in_rank_order, JUST(F32))
SCATTER(scatter_changes_send, SCRATCH_IN_SEND, in_rank_order, JUST(F32), .in_place = NULL)
SCATTER(scatter_by_arrival, BY_ARRIVAL, in_any_order, JUST(F32), .in_place = NULL)
SCATTER(scatter_forgets_a_rank, ONE_RANK_LESS, in_rank_order, JUST(F32))

static int32_t sum_all(const assay_kernel_call *c, sum_fault fault)
{
    const int32_t code = check(c);
    if (code != 0)
        return code;
    const int64_t start = c->attr[ASSAY_KERNEL_ATTR_ALL_REDUCE_START]->integer, count = count_of(c, SEND);
    const size_t width = width_of(c->slot[SEND]->dtype);
    if (count_of(c, RECV) != count || start < 0 || start > count)
        return ASSAY_KERNEL_INVALID;
    char *head = malloc((size_t)start * width + 1);
    if (head == NULL)
        return ASSAY_KERNEL_INTERNAL;
    copy(head, c->slot[SEND]->data, (size_t)start * width);
    const int32_t done = add(c, 0, count, c->attr[ASSAY_KERNEL_ATTR_ALL_REDUCE_REDUCTION]->integer, fault);
    if (fault != NO_START && done == 0)
        copy(c->slot[RECV]->data, head, (size_t)start * width);
    free(head);
    return done;
}
#define REDUCE(symbol, fault, outputs, ...)                                                                  \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return sum_all(c, fault);                                                                            \
    }                                                                                                        \
    DESCRIBE(symbol, "all_reduce", ASSAY_KERNEL_DETERMINISTIC, run_##symbol, outputs, 1,                     \
             .workspace = whole_workspace, __VA_ARGS__)
REDUCE(sum_in_rank_order, GOOD, in_rank_order, )
REDUCE(ranks_that_drift_apart, OWN_FIRST, in_any_order, JUST(F32))
REDUCE(maximum_without_nan, NAN_SWALLOWED, in_rank_order, JUST(F32))
REDUCE(sum_from_the_start, NO_START, in_rank_order, JUST(F32))

/* --- all_to_all, broadcast, send: by messages -------------------------------------------------------------------- */
static int32_t exchange(const assay_kernel_call *c, bool transposed)
{
    int64_t out[8], in[8], at = 0;
    int32_t code = check(c);
    if (code != 0)
        return code;
    const int32_t n = c->comm->n_ranks;
    const size_t width = width_of(c->slot[SEND]->dtype);
    if (read_counts(c, ASSAY_KERNEL_ATTR_ALL_TO_ALL_COUNTS, count_of(c, SEND) / n, count_of(c, SEND), out) !=
            0 ||
        read_counts(c, ASSAY_KERNEL_ATTR_ALL_TO_ALL_RECV_COUNTS, count_of(c, RECV) / n, count_of(c, RECV),
                    in) != 0)
        return ASSAY_KERNEL_INVALID;
    for (int32_t r = 0; r < n && code == 0; at += out[r++]) {
        /* transposed: the chunks of the first two ranks change places where they are as large */
        const bool swap = transposed && n > 1 && r < 2 && out[0] == out[1];
        const int64_t from = swap ? (r == 0 ? out[0] : 0) : at;
        code = c->comm->send(c->comm, r, (const char *)c->slot[SEND]->data + (size_t)from * width,
                             (size_t)out[r] * width);
    }
    at = 0;
    for (int32_t r = 0; r < n && code == 0; at += in[r++])
        code = c->comm->recv(c->comm, r, (char *)c->slot[RECV]->data + (size_t)at * width,
                             (size_t)in[r] * width);
    return code == 0 ? ASSAY_KERNEL_OK : ASSAY_KERNEL_INTERNAL;
}
static int32_t run_exchange(const assay_kernel_call *c)
{
    return exchange(c, false);
}
static int32_t run_transposed(const assay_kernel_call *c)
{
    return exchange(c, true);
}
DESCRIBE(exchange_by_messages, "all_to_all", ASSAY_KERNEL_DETERMINISTIC, run_exchange, copied, 1,
         .dtypes = ALL_DTYPES)
DESCRIBE(exchange_transposed, "all_to_all", ASSAY_KERNEL_DETERMINISTIC, run_transposed, copied, 1, JUST(F32))

static int32_t tell(const assay_kernel_call *c, bool from_first, bool any_root)
{
    int32_t code = check(c);
    if (code != 0)
        return code;
    const int64_t asked = c->attr[ASSAY_KERNEL_ATTR_BROADCAST_ROOT]->integer,
                  root = any_root ? asked % c->comm->n_ranks : asked;
    const int32_t n = c->comm->n_ranks, me = c->comm->rank, source = from_first ? 0 : (int32_t)root;
    const size_t bytes = (size_t)count_of(c, SEND) * width_of(c->slot[SEND]->dtype);
    if (root < 0 || root >= n || count_of(c, RECV) != count_of(c, SEND))
        return ASSAY_KERNEL_INVALID;
    for (int32_t r = 0; r < n && me == source && code == 0; r++)
        code = c->comm->send(c->comm, r, c->slot[SEND]->data, bytes);
    code = code == 0 ? c->comm->recv(c->comm, source, c->slot[RECV]->data, bytes) : code;
    return code == 0 ? ASSAY_KERNEL_OK : ASSAY_KERNEL_INTERNAL;
}
static int32_t run_broadcast(const assay_kernel_call *c)
{
    return tell(c, false, false);
}
static int32_t run_from_first(const assay_kernel_call *c)
{
    return tell(c, true, false);
}
DESCRIBE(broadcast_by_messages, "broadcast", ASSAY_KERNEL_DETERMINISTIC, run_broadcast, copied, 1,
         .dtypes = ALL_DTYPES, .in_place = "recv=send")
DESCRIBE(broadcast_from_rank_0, "broadcast", ASSAY_KERNEL_DETERMINISTIC, run_from_first, copied, 1, JUST(F32))

static int32_t run_any_root(const assay_kernel_call *c)
{
    return tell(c, false, true);
}
DESCRIBE(broadcast_of_any_root, "broadcast", ASSAY_KERNEL_DETERMINISTIC, run_any_root, copied, 1, JUST(F32))

/* Both ends: in pieces of 100 bytes, the last one shorter. */
static int32_t message(const assay_kernel_call *c, bool whole_pieces)
{
    const bool sends = check_call(c) && strcmp(c->operation, "send") == 0;
    if (!check_call(c) || c->comm == NULL || c->slot[0] == NULL)
        return ASSAY_KERNEL_INVALID;
    const int32_t code = check_tensor(c->slot[0], c->slot[0]->dtype, 1);
    const int64_t peer = c->attr[sends ? ASSAY_KERNEL_ATTR_SEND_PEER : ASSAY_KERNEL_ATTR_RECV_PEER]->integer;
    if (code != 0 || c->slot[0]->dtype != c->act)
        return code != 0 ? code : ASSAY_KERNEL_UNSUPPORTED;
    if (peer < 0 || peer >= c->comm->n_ranks)
        return ASSAY_KERNEL_INVALID;
    const size_t bytes = (size_t)count_of(c, 0) * width_of(c->slot[0]->dtype);
    for (size_t at = 0; at < bytes; at += 100) {
        char *data = (char *)c->slot[0]->data + at;
        const size_t piece = bytes - at < 100 ? bytes - at : 100;
        if (whole_pieces && piece < 100 && at > 0)
            break;
        if ((sends ? c->comm->send(c->comm, (int32_t)peer, data, piece)
                   : c->comm->recv(c->comm, (int32_t)peer, data, piece)) != 0)
            return ASSAY_KERNEL_INTERNAL;
    }
    return ASSAY_KERNEL_OK;
}
static int32_t run_message(const assay_kernel_call *c)
{
    return message(c, false);
}
static int32_t run_whole_pieces(const assay_kernel_call *c)
{
    return message(c, true);
}
/* The rank at the other end of the world, whoever was named. */
static int32_t run_other_end(const assay_kernel_call *c)
{
    if (!check_call(c) || c->comm == NULL || c->slot[0] == NULL)
        return ASSAY_KERNEL_INVALID;
    assay_kernel_call other = *c;
    const assay_kernel_attr *attrs[8];
    assay_kernel_attr peer;
    const int at =
        strcmp(c->operation, "send") == 0 ? ASSAY_KERNEL_ATTR_SEND_PEER : ASSAY_KERNEL_ATTR_RECV_PEER;
    if (c->attr[at]->integer < 0 || c->attr[at]->integer >= c->comm->n_ranks)
        return ASSAY_KERNEL_INVALID;
    memcpy(attrs, c->attr, (size_t)c->n_attrs * sizeof *attrs);
    peer = *c->attr[at];
    peer.integer = c->comm->n_ranks - 1 - c->comm->rank;
    attrs[at] = &peer;
    other.attr = attrs;
    return message(&other, false);
}
DESCRIBE(message_to_the_other_end, "send", ASSAY_KERNEL_DETERMINISTIC, run_other_end, NULL, 0, JUST(F32))
DESCRIBE(message_in_pieces, "send", ASSAY_KERNEL_DETERMINISTIC, run_message, NULL, 0, .dtypes = ALL_DTYPES)
DESCRIBE(message_of_whole_pieces, "send", ASSAY_KERNEL_DETERMINISTIC, run_whole_pieces, NULL, 0, JUST(F32))

/* --- integers ------------------------------------------------------------------------------------------------------ */
static int32_t run_integers(const assay_kernel_call *c)
{
    const int32_t code = check(c);
    if (code != 0 || c->slot[SEND]->dtype != ASSAY_KERNEL_I64)
        return code != 0 ? code : ASSAY_KERNEL_UNSUPPORTED;
    const int64_t count = count_of(c, SEND), start = c->attr[ASSAY_KERNEL_ATTR_ALL_REDUCE_START]->integer;
    if (count_of(c, RECV) != count || start < 0 || start > count)
        return ASSAY_KERNEL_INVALID;
    if (c->workspace_bytes < whole_workspace(c))
        return ASSAY_KERNEL_WORKSPACE;
    copy((char *)c->workspace + 8, c->slot[SEND]->data, (size_t)count * 8);
    if (c->comm->barrier(c->comm) != 0)
        return ASSAY_KERNEL_INTERNAL;
    for (int64_t i = 0; i < count; i++) {
        int64_t x = 0;
        for (int32_t r = 0; r < c->comm->n_ranks; r++) {
            int64_t y;
            memcpy(&y, (const char *)c->comm->workspace[i < start ? c->comm->rank : r] + 8 + 8 * i, 8);
            if (c->attr[ASSAY_KERNEL_ATTR_ALL_REDUCE_REDUCTION]->integer == MAX || i < start)
                x = r == 0 || y > x ? y : x;
            else
                x += y;
        }
        memcpy((char *)c->slot[RECV]->data + 8 * i, &x, 8);
    }
    return ASSAY_KERNEL_OK;
}
DESCRIBE(sum_of_integers, "all_reduce", ASSAY_KERNEL_DETERMINISTIC, run_integers, in_rank_order, 1, JUST(I64),
         .workspace = whole_workspace)
