/* Requests of collectives.  Values of neighbouring ranks at one place are neighbours in the draw, so that what cancels, cancels between
 * ranks; a scale of 1/3 leaves no last bit empty, so that the order of a sum can be seen. */
#include "parity/certify/ranks.h"

#include "core/base/philox.h"
#include "parity/checks/request.h"
#include <stdlib.h>
#include <string.h>

const int certify_ranks[] = {1, 2, 3, 4, 5, 8, 0};
/* Elements of a rank's piece, and what random data beyond the first two modes get of them. */
static const int64_t elements[] = {0, 1, 2, 3, 7, 8, 13, 64, 257, 1009, -1};
static const int64_t elements_of_modes[] = {13, 257, -1};
enum { SEED_STRIDE = 10000000, RANKS = 8 };

typedef struct asking {
    parity_ask q;
    const char *op;
    assay_dtype dtype;
    parity_data_mode mode;
    bool random;
    int64_t n;     /* elements of a piece */
    int64_t calls; /* so far */
    char tier[64];
} asking;

void certify_ranks_path(char out[ASSAY_PATH], const char *work, int n)
{
    snprintf(out, ASSAY_PATH, "%.900s/ranks%d", work, n);
}

/* --- values ------------------------------------------------------------------------------------------------- */
static bool sums(const asking *a)
{
    return strcmp(a->op, "all_reduce") == 0 || strcmp(a->op, "reduce_scatter") == 0;
}

static double value_of(const asking *a, int64_t i, int64_t count)
{
    const int64_t place = i * a->q.world + a->q.rank, all = count * a->q.world;
    const parity_draws d = {.seed = (uint64_t)a->q.n, .input = 0};
    if (a->random)
        return parity_mode_value(a->mode, &d, place, 1.0 / 3.0,
                                 place == (a->q.n * 7 + 3) % (all > 0 ? all : 1));
    /* sums are small integers; a copy shows whose element it is */
    return sums(a) ? (double)((int64_t)assay_philox_below((uint64_t)a->q.n, 1, (uint64_t)place, 9) - 4)
                   : (double)(place % 251 + 1);
}

static void encode(const asking *a, int64_t i, int64_t count, unsigned char *out)
{
    const double x = value_of(a, i, count);
    const int64_t place = i * a->q.world + a->q.rank;
    if (a->dtype == ASSAY_I64) { /* eight of them can be added */
        const int64_t v =
            (int64_t)assay_philox_below((uint64_t)a->q.n, 3, (uint64_t)place, (uint64_t)1 << 59);
        memcpy(out, &v, sizeof v);
        return;
    }
    if (a->dtype == ASSAY_F64) {
        memcpy(out, &x, sizeof x);
        return;
    }
    const float f = (float)ref_round(x, a->dtype);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t upper = (uint16_t)(bits >> 16);
    memcpy(out, a->dtype == ASSAY_BF16 ? (const void *)&upper : (const void *)&bits,
           a->dtype == ASSAY_BF16 ? 2 : 4);
}

static void put_send(asking *a, int64_t count)
{
    const size_t width = (size_t)assay_dtype_bytes(a->dtype);
    unsigned char *bytes = calloc((size_t)count + 1, width);
    if (bytes == NULL) {
        a->q.st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s: %lld elements", a->op, (long long)count);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        encode(a, i, count, bytes + (size_t)i * width);
    parity_ask_bytes(&a->q, "send", a->dtype, 1, &count, bytes);
    free(bytes);
}

/* --- calls -------------------------------------------------------------------------------------------------- */
static void put_list(asking *a, const char *key, const int64_t *values, int n)
{
    json_t *list = json_array();
    for (int r = 0; r < n; r++)
        json_array_append_new(list, json_integer(values[r]));
    json_object_set_new(a->q.attrs, key, list);
}

static void finish(asking *a)
{
    snprintf(a->q.op.group, sizeof a->q.op.group, "world");
    a->q.op.n_group_ranks = a->q.world;
    a->q.op.group_ranks = a->q.ranks;
    parity_ask_text(&a->q, "dtype", assay_dtype_name(a->dtype));
    parity_ask_finish(&a->q);
    a->calls++;
}

/* Pieces of the ranks that are not equal: none for some. */
static int64_t uneven(const asking *a, int rank)
{
    return rank % 3 == 0 ? a->n : rank % 3 == 1 ? 0 : a->n / 2 + 1;
}

static void ask_gather_or_scatter(asking *a, bool scatter, bool is_uneven, const char *reduction)
{
    int64_t counts[RANKS], all = 0;
    for (int r = 0; r < a->q.world; r++) {
        counts[r] = is_uneven ? uneven(a, r) : a->n;
        all += counts[r];
    }
    parity_ask_begin(&a->q, a->op);
    put_send(a, scatter ? all : counts[a->q.rank]);
    if (is_uneven)
        put_list(a, "counts", counts, a->q.world);
    if (reduction != NULL)
        parity_ask_text(&a->q, "reduction", reduction);
    finish(a);
}

static int64_t chunk(const asking *a, int from, int to)
{
    return (from + 2 * to) % 3 * a->n;
}

static void ask_all_to_all(asking *a, bool is_uneven)
{
    int64_t counts[RANKS], recv_counts[RANKS], rows = 0;
    for (int r = 0; r < a->q.world; r++) {
        counts[r] = is_uneven ? chunk(a, a->q.rank, r) : a->n;
        recv_counts[r] = is_uneven ? chunk(a, r, a->q.rank) : a->n;
        rows += counts[r];
    }
    parity_ask_begin(&a->q, a->op);
    put_send(a, rows);
    if (is_uneven) {
        put_list(a, "counts", counts, a->q.world);
        put_list(a, "recv_counts", recv_counts, a->q.world);
    }
    finish(a);
}

static void ask_broadcast(asking *a, int root)
{
    parity_ask_begin(&a->q, a->op);
    put_send(a, a->n);
    parity_ask_int(&a->q, "root", root);
    finish(a);
}

/* From one rank to another; the others have no part in it, but count it. */
static void ask_message(asking *a, int from, int to)
{
    const int64_t next = a->q.n + 1;
    if (a->q.rank == from || a->q.rank == to) {
        const bool sends = a->q.rank == from;
        if (!sends)
            a->q.only = "recv";
        parity_ask_begin(&a->q, sends ? "send" : "recv");
        if (sends)
            put_send(a, a->n);
        else
            put_list(a, "shape", &a->n, 1);
        parity_ask_int(&a->q, "peer", sends ? to : from);
        finish(a);
        a->q.only = "send";
    }
    a->q.n = next;
}

/* Sums, maxima and, where they are defined and not exact on purpose, means. */
static void ask_reductions(asking *a)
{
    static const char *const reductions[] = {"sum", "max", "avg"};
    const bool scatter = strcmp(a->op, "reduce_scatter") == 0;
    for (int k = 0; k < 3; k++) {
        if (k == 2 && !a->random)
            continue;
        if (scatter) {
            ask_gather_or_scatter(a, true, false, reductions[k]);
            if (a->n % 2 == 1)
                ask_gather_or_scatter(a, true, true, reductions[k]);
            continue;
        }
        for (int start = 0; start < (k == 0 && a->n > 2 ? 2 : 1); start++) {
            parity_ask_begin(&a->q, a->op);
            put_send(a, a->n);
            parity_ask_text(&a->q, "reduction", reductions[k]);
            if (start > 0)
                parity_ask_int(&a->q, "start", a->n / 3 + 1);
            finish(a);
        }
    }
}

static void ask_call(asking *a)
{
    if (sums(a)) {
        ask_reductions(a);
    } else if (strcmp(a->op, "all_gather") == 0) {
        ask_gather_or_scatter(a, false, false, NULL);
        if (a->n % 2 == 1)
            ask_gather_or_scatter(a, false, true, NULL);
    } else if (strcmp(a->op, "all_to_all") == 0) {
        ask_all_to_all(a, false);
        if (a->n % 2 == 1)
            ask_all_to_all(a, true);
    } else if (strcmp(a->op, "broadcast") == 0) {
        for (int root = 0; root < a->q.world; root += root == 1 && a->q.world > 3 ? a->q.world - 2 : 1)
            ask_broadcast(a, root); /* the first, the second and the last */
    } else if (a->q.world > 1) {
        ask_message(a, 0, a->q.world - 1);
        ask_message(a, a->q.world - 1, 0);
        if (a->q.world > 2) { /* a peer is more than the rank at the other end */
            ask_message(a, 0, 1);
            ask_message(a, 1, 0);
            ask_message(a, 1, 2);
        }
    }
}

/* --- sizes of a call ---------------------------------------------------------------------------------------- */

/* Elements that a rank receives: the row of the table does not say it, the ranks and `counts` do. */
static int64_t received(const assay_trace_op *asked, int rank, int n, int64_t sent)
{
    const json_t *counts = json_object_get(asked->attrs, "counts");
    int64_t sum = 0;
    if (strcmp(asked->op, "recv") == 0)
        counts = json_object_get(asked->attrs, "shape");
    if (strcmp(asked->op, "all_to_all") == 0)
        counts = json_object_get(asked->attrs, "recv_counts");
    for (size_t i = 0; i < json_array_size(counts); i++)
        sum += json_integer_value(json_array_get(counts, i));
    if (strcmp(asked->op, "reduce_scatter") == 0)
        return counts != NULL ? json_integer_value(json_array_get(counts, (size_t)rank)) : sent / n;
    if (counts != NULL)
        return sum;
    return strcmp(asked->op, "all_gather") == 0 ? sent * n : sent;
}

assay_status certify_bind_received(assay_op_binding *binding, const assay_trace_op *asked, int rank, int n,
                                   int64_t sent)
{
    if (sent >= 0) /* a slot that may be numbered binds no symbol */
        (void)assay_op_bind(binding, "n", sent);
    ASSAY_CHECK(assay_op_bind(binding, strcmp(asked->op, "recv") == 0 ? "n" : "m",
                              received(asked, rank, n, sent > 0 ? sent : 0)),
                ASSAY_INTERNAL, "%s: elements", asked->instance);
    return ASSAY_OK;
}

/* --- the plan ------------------------------------------------------------------------------------------------- */
static void ask_all(asking *a, int64_t seeds)
{
    a->random = false;
    snprintf(a->tier, sizeof a->tier, "exact");
    a->q.tier = a->tier;
    for (const int64_t *n = elements; *n >= 0; n++) {
        a->n = *n;
        ask_call(a);
    }
    a->random = true;
    /* integers have one kind of data */
    for (int64_t s = 1; s <= seeds && a->dtype != ASSAY_I64; s++) {
        a->q.n = s * SEED_STRIDE;
        for (int m = 0; m < PARITY_MODE_COUNT; m++) {
            a->mode = (parity_data_mode)m;
            snprintf(a->tier, sizeof a->tier, "local.%s", parity_data_mode_name(a->mode));
            for (const int64_t *n = m < PARITY_MODE_RUN ? elements : elements_of_modes; *n >= 0; n++) {
                a->n = *n;
                ask_call(a);
            }
        }
    }
}

static assay_status write_rank(const char *dir, asking *a, int64_t seeds)
{
    json_t *header =
        json_pack("{s:s, s:s}", "engine", "request", "precision", a->dtype == ASSAY_BF16 ? "bf16" : "fp32");
    assay_status st = assay_trace_writer_open(&a->q.w, dir, a->q.rank, a->q.world, header, false);
    json_decref(header);
    a->q.st = st;
    if (st == ASSAY_OK)
        ask_all(a, seeds);
    st = a->q.st == ASSAY_OK ? assay_trace_end_step(a->q.w) : a->q.st;
    st = st == ASSAY_OK ? assay_trace_writer_close(a->q.w) : st;
    assay_trace_writer_destroy(a->q.w);
    json_decref(a->q.attrs);
    return st;
}

assay_status certify_ranks_request(const char *work, assay_dtype dtype, int n, const certify_plan *plan,
                                   int64_t *n_calls)
{
    char folder[ASSAY_PATH], dir[ASSAY_PATH + 32];
    int ranks[RANKS];
    certify_ranks_path(folder, work, n);
    snprintf(dir, sizeof dir, "%s/request.%s", folder, assay_dtype_name(dtype));
    for (int r = 0; r < n; r++)
        ranks[r] = r;
    for (int r = 0; r < n; r++) {
        asking a = {.op = plan->op,
                    .dtype = dtype,
                    .q = {.act = dtype, .rank = r, .world = n, .ranks = ranks, .only = plan->op}};
        ASSAY_TRY(write_rank(dir, &a, plan->seeds));
        if (r == 0)
            *n_calls += a.calls;
    }
    return ASSAY_OK;
}

static void put_integers(json_t *plan, const char *key, const int64_t *values)
{
    json_t *list = json_array();
    for (; *values >= 0; values++)
        json_array_append_new(list, json_integer(*values));
    json_object_set_new(plan, key, list);
}

void certify_ranks_plan(json_t *plan)
{
    json_t *list = json_array();
    for (const int *n = certify_ranks; *n > 0; n++)
        json_array_append_new(list, json_integer(*n));
    json_object_set_new(plan, "ranks", list);
    put_integers(plan, "elements", elements);
    put_integers(plan, "elements_of_other_data", elements_of_modes);
    json_object_set_new(plan, "boundaries", json_array());
}
