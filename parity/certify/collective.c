/* The trial of a collective: every record is a call of all ranks, in three orders of who goes on. */
#include "parity/certify/trial.h"

#include "parity/certify/device_group.h"
#include "parity/certify/ranks.h"
#include "parity/checks/request.h"
#include <stdlib.h>
#include <string.h>

typedef struct group {
    trial *t;
    int n;
    certify_kernel receiver; /* of send: the other end */
    const assay_trace *request;
    assay_dtype dtype;
    bool lattice;                       /* the call's inputs */
    int64_t cursor[COMM_RANKS], number; /* records behind; the number of this call */
    call_record record[COMM_RANKS];
    call_ready ready[COMM_RANKS];
    int32_t code[COMM_RANKS];
    assay_trace_writer *answer[COMM_RANKS], *second[COMM_RANKS];
} group;

static device_group *on_device; /* NULL: host memory */

static guard_arena arenas[COMM_RANKS], shadows[COMM_RANKS];

/* --- one call of all ranks ---------------------------------------------------------------------------------- */
static void body(void *user, int rank)
{
    group *g = user;
    g->code[rank] = call_kernel(&g->record[rank], &g->ready[rank]);
}

static int first_of(const group *g)
{
    int r = 0;
    while (r + 1 < g->n && !g->t->takes_part[r])
        r++;
    return r;
}

/* The elements of a rank's piece in the larger tensor, before it. */
static int64_t piece_start(const group *g, int rank, int slot)
{
    int64_t start = 0;
    for (int r = 0; r < rank; r++)
        start += g->record[r].slot[slot].shape[0];
    return start;
}

/* send and recv in the same memory: the smaller lies in the larger one, where the rank's piece is. */
static void join_tensors(group *g, int rank)
{
    call_ready *c = &g->ready[rank];
    const call_record *r = &g->record[rank];
    const size_t width = (size_t)assay_dtype_bytes(g->dtype);
    const char *op = r->kernel->op->name;
    if (strcmp(op, "all_gather") == 0) {
        unsigned char *place = (unsigned char *)c->tensor[1].data + (size_t)piece_start(g, rank, 0) * width;
        if (r->slot[0].bytes > 0)
            memcpy(place, c->tensor[0].data, r->slot[0].bytes);
        c->tensor[0].data = place;
    } else {
        const size_t start = strcmp(op, "reduce_scatter") == 0 ? (size_t)piece_start(g, rank, 1) * width : 0;
        c->tensor[1].data = (unsigned char *)c->tensor[0].data + start;
    }
}

static assay_status prepare(group *g, call_form form, comm_order order)
{
    void *workspace[COMM_RANKS] = {NULL};
    if (on_device != NULL)
        device_group_begin(on_device);
    for (int r = 0; r < g->n; r++) {
        if (!g->t->takes_part[r])
            continue;
        ASSAY_TRY(call_prepare(&g->record[r], form, &arenas[r], &shadows[r], &g->ready[r]));
        workspace[r] = g->ready[r].call.workspace;
        if (form.pieces)
            join_tensors(g, r);
        if (on_device != NULL)
            workspace[r] = device_group_add(on_device, r, &g->record[r], &g->ready[r]);
    }
    comm_begin(g->t->world, g->t->takes_part, workspace, order, (uint64_t)g->number);
    return ASSAY_OK;
}

static void look_around(group *g, const char *what)
{
    certify_board *b = g->t->board;
    const char *finding = comm_finding(g->t->world);
    b->trial[CERTIFY_MESSAGES].calls++;
    if (finding != NULL)
        certify_bad(b, CERTIFY_MESSAGES, "%s, in %s", finding, b->now);
    for (int r = 0; r < g->n; r++) {
        if (!g->t->takes_part[r])
            continue;
        trial_now(g->t, &g->record[r], what);
        call_inspect(&g->record[r], &g->ready[r], b);
    }
}

/* run() of every rank. */
static void run_all(group *g)
{
    guard_limit(g->t->limit);
    if (on_device != NULL) {
        device_group_run(on_device, g->t->world, -1, g->code);
    } else {
        guard_inside(true);
        comm_run(g->t->world, -1, body, g);
        guard_inside(false);
    }
    guard_limit(0);
}

static void lock_all(group *g, bool locked)
{
    for (int r = 0; r < g->n; r++)
        if (g->t->takes_part[r] && on_device == NULL)
            call_lock(&g->record[r], &g->ready[r], locked);
}

/* *good: every rank succeeded. */
static assay_status call_all(group *g, call_form form, comm_order order, certify_trial which,
                             const char *what, bool *good)
{
    certify_board *b = g->t->board;
    trial_now(g->t, &g->record[first_of(g)], what);
    ASSAY_TRY(prepare(g, form, order));
    for (int r = 0; r < g->n; r++)
        b->runs += g->t->takes_part[r];
    lock_all(g, true);
    run_all(g);
    b->trial[CERTIFY_CRASH].calls++;
    b->trial[CERTIFY_TIME].calls++;
    *good = true;
    lock_all(g, false);
    look_around(g, what);
    for (int r = 0; r < g->n; r++) {
        if (!g->t->takes_part[r] || g->code[r] == ASSAY_KERNEL_OK)
            continue;
        *good = false;
        trial_now(g->t, &g->record[r], what);
        certify_bad(b, which, "error code %d for a call that the description takes: %s", g->code[r], b->now);
    }
    b->trial[which].calls++;
    return ASSAY_OK;
}

/* --- what is looked at -------------------------------------------------------------------------------------- */

/* Replicas that are added up on every rank stay replicas. */
static void compare_ranks(group *g)
{
    const call_record *a = &g->record[0];
    if (strcmp(g->t->kernel.op->name, "all_reduce") != 0 || g->n < 2) /* rank 0 may have no part in others */
        return;
    const size_t width = (size_t)assay_dtype_bytes(g->dtype),
                 start = (size_t)json_integer_value(json_object_get(a->asked->attrs, "start")) * width;
    g->t->board->trial[CERTIFY_RANKS].calls++;
    for (int r = 1; r < g->n; r++)
        for (size_t k = start; k < a->slot[1].bytes; k++) {
            if (a->slot[1].after[k] == g->record[r].slot[1].after[k])
                continue;
            trial_now(g->t, a, "");
            certify_bad(g->t->board, CERTIFY_RANKS,
                        "element %zu has other bits on rank %d than on rank 0, in %s", k / width, r,
                        g->t->board->now);
            return;
        }
}

static assay_status write_answers(group *g, assay_trace_writer *const *w)
{
    for (int r = 0; r < g->n; r++)
        if (g->t->takes_part[r])
            ASSAY_TRY(trial_write(w[r], g->request, &g->record[r], &g->ready[r], false));
    return ASSAY_OK;
}

static void compare_all(group *g, certify_trial which, const char *what)
{
    for (int r = 0; r < g->n; r++)
        if (g->t->takes_part[r]) {
            trial_now(g->t, &g->record[r], what);
            trial_compare(g->t, &g->record[r], &g->ready[r], which);
        }
}

static assay_status try_again(group *g)
{
    trial *t = g->t;
    bool good;
    call_form form = call_plain(GUARD_START, FILL_ODD);
    form.data_absent = true;
    for (int r = 0; r < g->n; r++)
        if (t->takes_part[r]) {
            trial_now(t, &g->record[r], "");
            trial_workspace(t, &g->record[r], &g->ready[r]);
        }
    ASSAY_TRY(call_all(g, form, COMM_DESCENDING, CERTIFY_REPEAT, "from the last rank to the first: ", &good));
    for (int r = 0; r < g->n && good; r++)
        if (t->takes_part[r])
            trial_written(t, &g->record[r], &g->ready[r]);
    if (good && t->deterministic)
        compare_all(g, CERTIFY_REPEAT, "from the last rank to the first: ");
    if (g->second[0] != NULL)
        ASSAY_TRY(write_answers(g, g->second));
    form = call_plain(GUARD_END, FILL_ZERO);
    ASSAY_TRY(call_all(g, form, COMM_SHUFFLED, CERTIFY_REPEAT, "ranks in any order: ", &good));
    if (good && t->deterministic)
        compare_all(g, CERTIFY_REPEAT, "ranks in any order: ");
    if (on_device != NULL) {
        form = call_plain(GUARD_END, FILL_ODD);
        form.late = true;
        ASSAY_TRY(call_all(g, form, COMM_SHUFFLED, CERTIFY_STREAM,
                           "inputs that arrive late on the streams: ", &good));
        if (good && t->deterministic)
            compare_all(g, CERTIFY_STREAM, "inputs that arrive late on the streams: ");
    }
    if (t->kernel.k->in_place == NULL || t->kernel.k->in_place[0] == '\0')
        return ASSAY_OK;
    form = call_plain(GUARD_END, FILL_ODD);
    form.pieces = true;
    ASSAY_TRY(call_all(g, form, COMM_SHUFFLED, CERTIFY_IN_PLACE, "in place: ", &good));
    if (good)
        compare_all(g, CERTIFY_IN_PLACE, "in place: ");
    return ASSAY_OK;
}

static assay_status try_group(group *g)
{
    bool good, taken = true;
    call_form form = call_plain(GUARD_END, FILL_ONES);
    form.locked = true;
    for (int r = 0; r < g->n; r++)
        taken = taken && (!g->t->takes_part[r] || g->record[r].taken);
    if (taken && g->t->exact) /* for a tool that watches the process */
        return g->lattice
                   ? call_all(g, call_plain(GUARD_END, FILL_ONES), COMM_ASCENDING, CERTIFY_ACCEPTS, "", &good)
                   : ASSAY_OK;
    if (!taken) { /* a rank that refuses leaves the others alone: nothing to be tried */
        g->t->board->refused++;
        return ASSAY_OK;
    }
    ASSAY_TRY(call_all(g, form, COMM_ASCENDING, CERTIFY_ACCEPTS, "", &good));
    if (!good)
        return ASSAY_OK;
    for (int r = 0; r < g->n; r++)
        for (int i = 0; i < ASSAY_OP_SLOTS && g->t->takes_part[r]; i++)
            if (call_is_output(&g->record[r], i))
                call_collect(&g->record[r], &g->ready[r], i, g->record[r].slot[i].after);
    compare_ranks(g);
    ASSAY_TRY(write_answers(g, g->answer));
    return g->t->once ? ASSAY_OK : try_again(g);
}

/* --- records ------------------------------------------------------------------------------------------------ */
static int64_t number_of(const assay_trace_op *op)
{
    const char *dot = op != NULL ? strrchr(op->instance, '.') : NULL;
    return dot != NULL ? strtoll(dot + 1, NULL, 10) : INT64_MAX;
}

/* Reads the records of the next call; false: there is none. */
static assay_status read_group(group *g, bool *more)
{
    const assay_trace_op *op[COMM_RANKS];
    g->number = INT64_MAX;
    for (int r = 0; r < g->n; r++) {
        op[r] = g->cursor[r] < assay_trace_n_ops(g->request, r)
                    ? assay_trace_op_at(g->request, r, g->cursor[r])
                    : NULL;
        g->number = number_of(op[r]) < g->number ? number_of(op[r]) : g->number;
    }
    *more = g->number != INT64_MAX;
    for (int r = 0; r < g->n && *more; r++) {
        g->t->takes_part[r] = number_of(op[r]) == g->number;
        if (!g->t->takes_part[r])
            continue;
        const bool receives = strcmp(op[r]->op, "recv") == 0;
        ASSAY_TRY(call_read(&g->record[r], receives ? &g->receiver : &g->t->kernel, g->request, op[r],
                            g->dtype, comm_of(g->t->world, r)));
        g->cursor[r]++;
        g->lattice = parity_asked_on_lattice(op[r]);
    }
    return ASSAY_OK;
}

static void forget_group(group *g)
{
    for (int r = 0; r < g->n; r++)
        if (g->t->takes_part[r])
            call_forget(&g->record[r]);
}

/* Illegal calls are a rank's own: of one rank, where a kernel that does not look can go on; of a pair for send. */
static assay_status try_illegal(group *g)
{
    const bool pair = strcmp(g->t->kernel.op->name, "send") == 0;
    if (g->t->once || g->n != (pair ? 2 : 1) || g->t->legal >= 6)
        return ASSAY_OK;
    for (int r = 0; r < g->n; r++)
        if (g->t->takes_part[r] && g->record[r].taken)
            ASSAY_TRY(trial_illegal(g->t, &g->record[r]));
    return ASSAY_OK;
}

typedef struct solo {
    const call_record *r;
    const call_ready *c;
    int32_t code;
} solo;

static void alone(void *user, int rank)
{
    solo *s = user;
    (void)rank;
    s->code = call_kernel(s->r, s->c);
}

int32_t trial_alone(trial *t, const call_record *r, const call_ready *c)
{
    void *workspace[COMM_RANKS] = {NULL};
    solo s = {.r = r, .c = c};
    const int rank = r->comm->rank;
    workspace[rank] = c->call.workspace;
    if (on_device != NULL) {
        device_group_begin(on_device);
        workspace[rank] = device_group_add(on_device, rank, r, c);
    }
    comm_begin(t->world, t->takes_part, workspace, COMM_ASCENDING, 0);
    t->board->runs++;
    if (on_device != NULL) {
        int32_t code[COMM_RANKS];
        device_group_run(on_device, t->world, rank, code);
        return code[rank];
    }
    guard_inside(true);
    comm_run(t->world, r->comm->rank, alone, &s);
    guard_inside(false);
    return s.code;
}

static assay_status try_records(group *g)
{
    for (;;) {
        bool more;
        assay_status st = read_group(g, &more);
        if (st == ASSAY_OK && more)
            st = try_group(g);
        if (st == ASSAY_OK && more)
            st = try_illegal(g);
        forget_group(g);
        ASSAY_TRY(st);
        if (!more || trial_stops(g->t))
            return ASSAY_OK;
    }
}

/* --- a dtype, over all numbers of ranks ----------------------------------------------------------------------- */
static assay_status open_all(group *g, assay_trace_writer **w, const char *dir, const char *what)
{
    for (int r = 0; r < g->n; r++)
        ASSAY_TRY(trial_open(&w[r], dir, what, assay_dtype_name(g->dtype), r, g->n));
    return ASSAY_OK;
}

static void name_rank(void *user, int rank)
{
    group *g = user;
    trial_now(g->t, &g->record[rank], "");
}

static assay_status try_ranks(trial *t, const char *dir, assay_dtype dtype, int n)
{
    char path[ASSAY_PATH], request[ASSAY_PATH];
    const assay_op *recv = assay_op_find("recv");
    group *g = calloc(1, sizeof *g);
    assay_trace *trace = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(g != NULL, ASSAY_OUT_OF_MEMORY, "%d ranks", n);
    *g = (group){.t = t, .n = n, .dtype = dtype, .receiver = t->kernel};
    g->receiver.op = recv;
    certify_ranks_path(path, dir, n);
    snprintf(request, sizeof request, "%.1000s/request.%s", path, assay_dtype_name(dtype));
    ASSAY_TRY_GOTO(comm_create(&t->world, n), st, done);
    if (t->kernel.device != NULL)
        ASSAY_TRY_GOTO(device_group_create(&on_device, t->kernel.device, t->board, name_rank, g), st, done);
    if (on_device != NULL)
        comm_carry(t->world, device_group_carrier(on_device));
    ASSAY_TRY_GOTO(assay_trace_open(&trace, request, false), st, done);
    g->request = trace;
    if (!t->exact)
        ASSAY_TRY_GOTO(open_all(g, g->answer, path, t->answers), st, done);
    if (!t->once && !t->deterministic)
        ASSAY_TRY_GOTO(open_all(g, g->second, path, "second"), st, done);
    ASSAY_TRY_GOTO(try_records(g), st, done);
done:
    for (int r = 0; r < n; r++) {
        const assay_status first = st == ASSAY_OK ? trial_close(&g->answer[r]) : st;
        st = first == ASSAY_OK ? trial_close(&g->second[r]) : first;
        assay_trace_writer_destroy(g->answer[r]);
        assay_trace_writer_destroy(g->second[r]);
    }
    assay_trace_close(trace);
    comm_destroy(t->world);
    t->world = NULL;
    device_group_destroy(on_device);
    on_device = NULL;
    free(g);
    return st;
}

assay_status trial_collective(trial *t, const char *dir, assay_dtype dtype)
{
    for (int r = 0; r < COMM_RANKS && arenas[0].of[0] == '\0'; r++)
        guard_add(&arenas[r]);
    for (int r = 0; r < COMM_RANKS; r++) {
        arenas[r].on_device = shadows[r].on_device = t->arena.on_device;
        arenas[r].ends_guarded = shadows[r].ends_guarded = t->arena.ends_guarded;
    }
    for (int r = 0; r < COMM_RANKS; r++)
        snprintf(arenas[r].of, sizeof arenas[r].of, " of rank %d", r);
    t->legal = 0;
    for (const int *n = certify_ranks; *n > 0 && !trial_stops(t); n++)
        if (*n > 1 || strcmp(t->kernel.op->name, "send") != 0)
            ASSAY_TRY(try_ranks(t, dir, dtype, *n));
    return ASSAY_OK;
}
