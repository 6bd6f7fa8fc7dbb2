/* Ranks that take turns, their messages and barriers. */
#include "parity/certify/comm.h"

#include "core/base/philox.h"
#include "parity/certify/guard.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef enum { IDLE, READY, IN_RECV, IN_BARRIER } comm_state;

typedef struct message {
    struct message *next;
    size_t bytes;
    void *handle; /* the carrier's */
    unsigned char data[];
} message;

typedef struct member {
    comm_world *w;
    pthread_t thread;
    pthread_cond_t turn;
    comm_state state;
    int from; /* IN_RECV: whose message */
    assay_kernel_comm comm;
    bool takes_part, started;
} member;

struct comm_world {
    int n, running; /* whose turn it is; -1: nobody's */
    pthread_mutex_t lock;
    pthread_cond_t all_done;
    member rank[COMM_RANKS];
    void *workspace[COMM_RANKS];
    message *first[COMM_RANKS][COMM_RANKS]; /* [to][from] */
    comm_order order;
    uint64_t seed, turns;
    const comm_carrier *carrier;
    bool broken, ends;
    char finding[256];
    void (*body)(void *user, int rank);
    void *user;
};

static void find(comm_world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void find(comm_world *w, const char *fmt, ...)
{
    va_list args;
    w->broken = true;
    if (w->finding[0] != '\0')
        return;
    va_start(args, fmt);
    (void)vsnprintf(w->finding, sizeof w->finding, fmt, args);
    va_end(args);
}

/* --- turns; the lock is held -------------------------------------------------------------------------------- */
static int next_rank(comm_world *w)
{
    int ready[COMM_RANKS], n = 0;
    for (int r = 0; r < w->n; r++)
        if (w->rank[r].state == READY)
            ready[n++] = r;
    if (n == 0)
        return -1;
    if (w->order == COMM_SHUFFLED)
        return ready[assay_philox_below(w->seed, 99, w->turns++, (uint64_t)n)];
    return w->order == COMM_ASCENDING ? ready[0] : ready[n - 1];
}

static void say_circle(comm_world *w)
{
    char text[200] = "";
    size_t used = 0;
    for (int r = 0; r < w->n && used + 48 < sizeof text; r++)
        if (w->rank[r].state == IN_RECV)
            used += (size_t)snprintf(text + used, sizeof text - used, "%srank %d for a message of rank %d",
                                     used > 0 ? ", " : "", r, w->rank[r].from);
        else if (w->rank[r].state == IN_BARRIER)
            used += (size_t)snprintf(text + used, sizeof text - used, "%srank %d in a barrier",
                                     used > 0 ? ", " : "", r);
    find(w, "ranks wait and nobody can go on: %s", text);
}

/* Gives the turn away.  Where everybody waits, that is the finding, and all go on with an error. */
static void pass_turn(comm_world *w)
{
    int waiting = 0;
    w->running = next_rank(w);
    for (int r = 0; r < w->n; r++)
        waiting += w->rank[r].state == IN_RECV || w->rank[r].state == IN_BARRIER;
    if (w->running < 0 && waiting > 0) {
        say_circle(w);
        for (int r = 0; r < w->n; r++)
            if (w->rank[r].state != IDLE)
                w->rank[r].state = READY;
        w->running = next_rank(w);
    }
    if (w->running >= 0)
        (void)pthread_cond_signal(&w->rank[w->running].turn);
    else
        (void)pthread_cond_signal(&w->all_done);
}

static void await_turn(comm_world *w, int me)
{
    while (w->running != me)
        (void)pthread_cond_wait(&w->rank[me].turn, &w->lock);
}

static void yield(comm_world *w, int me)
{
    pass_turn(w);
    await_turn(w, me);
}

/* --- what a kernel calls ------------------------------------------------------------------------------------ */
static bool is_peer(comm_world *w, const assay_kernel_comm *c, int32_t other, const char *what)
{
    if (other >= 0 && other < w->n && w->rank[other].takes_part)
        return true;
    find(w, "rank %d: %s: expected a rank that takes part, found %d", c->rank, what, other);
    return false;
}

/* What the runtime says of a message or barrier on a device; the lock is held. */
static void check_carrier(comm_world *w, const assay_kernel_comm *c, const char *what, size_t bytes,
                          int error)
{
    if (error != 0)
        find(w, "rank %d: %s of %zu bytes on the device: %s", c->rank, what, bytes,
             w->carrier->error_name(w->carrier->user, error));
}

static int32_t send_message(const assay_kernel_comm *c, int32_t to, const void *data, size_t bytes)
{
    comm_world *w = c->context;
    const comm_carrier *carrier = w->carrier;
    message *m = malloc(sizeof *m + (carrier == NULL ? bytes : 0));
    if (m != NULL && bytes > 0 && carrier == NULL)
        memcpy(m->data, data, bytes);
    (void)pthread_mutex_lock(&w->lock);
    if (m != NULL && carrier != NULL)
        check_carrier(w, c, "send", bytes, carrier->post(carrier->user, c->rank, data, bytes, &m->handle));
    if (m == NULL || !is_peer(w, c, to, "send")) {
        w->broken = true;
        free(m);
    } else {
        message **last = &w->first[to][c->rank];
        while (*last != NULL)
            last = &(*last)->next;
        m->next = NULL;
        m->bytes = bytes;
        *last = m;
        if (w->rank[to].state == IN_RECV && w->rank[to].from == c->rank)
            w->rank[to].state = READY;
        yield(w, c->rank);
    }
    const int32_t code = w->broken;
    (void)pthread_mutex_unlock(&w->lock);
    return code;
}

static int32_t recv_message(const assay_kernel_comm *c, int32_t from, void *data, size_t bytes)
{
    comm_world *w = c->context;
    message *m = NULL;
    (void)pthread_mutex_lock(&w->lock);
    if (is_peer(w, c, from, "recv")) {
        if (w->first[c->rank][from] == NULL) {
            w->rank[c->rank].state = IN_RECV;
            w->rank[c->rank].from = from;
        }
        yield(w, c->rank);
        m = w->first[c->rank][from];
        if (m != NULL)
            w->first[c->rank][from] = m->next;
        if (m != NULL && m->bytes != bytes)
            find(w, "rank %d sends %zu bytes, rank %d expects %zu", from, m->bytes, c->rank, bytes);
        if (m != NULL && w->carrier != NULL && !w->broken)
            check_carrier(w, c, "recv", bytes,
                          w->carrier->take(w->carrier->user, c->rank, m->handle, data, bytes));
    }
    const int32_t code = w->broken || m == NULL;
    (void)pthread_mutex_unlock(&w->lock);
    if (code == 0 && bytes > 0 && w->carrier == NULL)
        memcpy(data, m->data, bytes);
    free(m);
    return code;
}

static int32_t pass_barrier(const assay_kernel_comm *c)
{
    comm_world *w = c->context;
    int missing = 0;
    (void)pthread_mutex_lock(&w->lock);
    if (w->carrier != NULL)
        check_carrier(w, c, "barrier", 0, w->carrier->arrive(w->carrier->user, c->rank));
    w->rank[c->rank].state = IN_BARRIER;
    for (int r = 0; r < w->n; r++)
        missing += w->rank[r].takes_part && w->rank[r].state != IN_BARRIER;
    for (int r = 0; r < w->n && missing == 0; r++)
        if (w->rank[r].takes_part)
            w->rank[r].state = READY;
    yield(w, c->rank);
    if (w->carrier != NULL && !w->broken)
        check_carrier(w, c, "barrier", 0, w->carrier->leave(w->carrier->user, c->rank));
    const int32_t code = w->broken;
    (void)pthread_mutex_unlock(&w->lock);
    return code;
}

/* --- threads ------------------------------------------------------------------------------------------------ */
static void take_turns(void *user)
{
    member *m = user;
    comm_world *w = m->w;
    const int me = m->comm.rank;
    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->running != me && !w->ends)
            (void)pthread_cond_wait(&m->turn, &w->lock);
        if (w->ends)
            break;
        (void)pthread_mutex_unlock(&w->lock);
        w->body(w->user, me);
        (void)pthread_mutex_lock(&w->lock);
        m->state = IDLE;
        pass_turn(w);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

static void *rank_thread(void *arg)
{
    guard_thread(take_turns, arg);
    return NULL;
}

static void forget_messages(comm_world *w)
{
    for (int to = 0; to < COMM_RANKS; to++)
        for (int from = 0; from < COMM_RANKS; from++)
            while (w->first[to][from] != NULL) {
                message *m = w->first[to][from];
                w->first[to][from] = m->next;
                free(m);
            }
}

assay_status comm_create(comm_world **out, int n)
{
    *out = NULL;
    ASSAY_CHECK(n >= 1 && n <= COMM_RANKS, ASSAY_INVALID_ARGUMENT, "ranks: expected 1 to %d, found %d",
                COMM_RANKS, n);
    comm_world *w = calloc(1, sizeof *w);
    ASSAY_CHECK(w != NULL, ASSAY_OUT_OF_MEMORY, "%d ranks", n);
    w->n = n;
    w->running = -1;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->all_done, NULL);
    for (int r = 0; r < n; r++) {
        member *m = &w->rank[r];
        *m = (member){.w = w};
        m->comm = (assay_kernel_comm){.size = sizeof m->comm,
                                      .rank = r,
                                      .n_ranks = n,
                                      .context = w,
                                      .send = send_message,
                                      .recv = recv_message,
                                      .barrier = pass_barrier,
                                      .workspace = w->workspace};
        (void)pthread_cond_init(&m->turn, NULL);
        m->started = pthread_create(&m->thread, NULL, rank_thread, m) == 0;
        if (!m->started) {
            comm_destroy(w);
            ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "a thread for rank %d of %d", r, n);
        }
    }
    *out = w;
    return ASSAY_OK;
}

void comm_destroy(comm_world *w)
{
    if (w == NULL)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->ends = true;
    for (int r = 0; r < w->n; r++)
        if (w->rank[r].started)
            (void)pthread_cond_signal(&w->rank[r].turn);
    (void)pthread_mutex_unlock(&w->lock);
    for (int r = 0; r < w->n; r++)
        if (w->rank[r].started)
            (void)pthread_join(w->rank[r].thread, NULL);
    forget_messages(w);
    free(w);
}

void comm_carry(comm_world *w, const comm_carrier *carrier)
{
    w->carrier = carrier;
}

const assay_kernel_comm *comm_of(comm_world *w, int rank)
{
    return &w->rank[rank].comm;
}

void comm_begin(comm_world *w, const bool *takes_part, void *const *workspace, comm_order order,
                uint64_t seed)
{
    forget_messages(w);
    w->order = order;
    w->seed = seed;
    w->turns = 0;
    w->broken = false;
    w->finding[0] = '\0';
    for (int r = 0; r < w->n; r++) {
        w->rank[r].takes_part = takes_part[r];
        w->workspace[r] = takes_part[r] ? workspace[r] : NULL;
    }
}

void comm_run(comm_world *w, int only, void (*body)(void *user, int rank), void *user)
{
    (void)pthread_mutex_lock(&w->lock);
    w->body = body;
    w->user = user;
    for (int r = 0; r < w->n; r++)
        w->rank[r].state = w->rank[r].takes_part && (only < 0 || only == r) ? READY : IDLE;
    pass_turn(w);
    while (w->running >= 0)
        (void)pthread_cond_wait(&w->all_done, &w->lock);
    for (int to = 0; to < w->n; to++)
        for (int from = 0; from < w->n; from++)
            if (w->first[to][from] != NULL)
                find(w, "a message of rank %d to rank %d is never received (%zu bytes)", from, to,
                     w->first[to][from]->bytes);
    (void)pthread_mutex_unlock(&w->lock);
}

const char *comm_finding(const comm_world *w)
{
    return w->finding[0] != '\0' ? w->finding : NULL;
}
