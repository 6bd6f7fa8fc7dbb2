/* Messages and barriers of ranks on one device, and their calls. */
#include "parity/certify/device_group.h"

#include <stdlib.h>
#include <string.h>

enum { NO_TIMING = 2, NON_BLOCKING = 1, ROOM = 1 << 20 };

/* Device memory for the messages of a call, and an event for each.  Kept from call to call: memory that is made or freed could wait for the
 * device. */
typedef struct room {
    struct room *next;
    void *memory;
    size_t bytes, used;
} room;
typedef struct parcel {
    struct parcel *next;
    void *memory, *event;
    bool used; /* by this call */
} parcel;

struct device_group {
    certify_device *d;
    certify_board *board;
    comm_world *w;
    comm_carrier carrier;
    void *arrived[COMM_RANKS][2]; /* events: of this barrier and of the last one */
    unsigned barriers[COMM_RANKS];
    room *rooms;
    parcel *parcels;
    device_call call[COMM_RANKS], *added[COMM_RANKS];
    int rank_of[COMM_RANKS], n, only;
    void (*name)(void *user, int rank);
    void *user;
};

/* Of the ranks, for all groups of the process. */
static void *streams[COMM_RANKS];

/* --- messages ----------------------------------------------------------------------------------------------- */
static void *stream_of(const device_group *g, int rank)
{
    return g->call[rank].call.stream;
}

static int make_room(device_group *g, size_t bytes, room **out)
{
    size_t before = 0, behind = 0, all;
    room *r = calloc(1, sizeof *r);
    if (r == NULL)
        return -1;
    r->bytes = bytes > ROOM ? bytes : ROOM;
    r->next = g->rooms;
    g->rooms = *out = r;
    (void)g->d->memory(&before, &all);
    const int error = g->d->allocate(&r->memory, r->bytes);
    (void)g->d->memory(&behind, &all);
    g->d->kept += before - behind;
    return error;
}

static int find_room(device_group *g, size_t bytes, void **out)
{
    const size_t whole = (bytes + 255) / 256 * 256;
    room *r = g->rooms;
    int error = 0;
    while (r != NULL && r->bytes - r->used < whole)
        r = r->next;
    if (r == NULL)
        error = make_room(g, whole, &r);
    if (error != 0)
        return error;
    *out = (char *)r->memory + r->used;
    r->used += whole;
    return 0;
}

static int make_parcel(device_group *g, parcel **out)
{
    parcel *p = calloc(1, sizeof *p);
    if (p == NULL)
        return -1;
    p->next = g->parcels;
    g->parcels = *out = p;
    return g->d->event_create(&p->event, NO_TIMING);
}

static int post(void *user, int from, const void *data, size_t bytes, void **handle)
{
    device_group *g = user;
    parcel *p = g->parcels;
    while (p != NULL && p->used)
        p = p->next;
    int error = p == NULL ? make_parcel(g, &p) : 0;
    if (error == 0)
        error = find_room(g, bytes, &p->memory);
    if (error != 0)
        return error;
    p->used = true;
    *handle = p;
    if (bytes > 0)
        error = g->d->copy_async(p->memory, data, bytes, ON_DEVICE, stream_of(g, from));
    return error != 0 ? error : g->d->event_record(p->event, stream_of(g, from));
}

static int take(void *user, int to, void *handle, void *data, size_t bytes)
{
    device_group *g = user;
    const parcel *p = handle;
    const int error = g->d->stream_wait_event(stream_of(g, to), p->event, 0);
    if (error != 0 || bytes == 0)
        return error;
    return g->d->copy_async(data, p->memory, bytes, ON_DEVICE, stream_of(g, to));
}

/* --- barriers ----------------------------------------------------------------------------------------------- */

/* A rank is at most one barrier ahead of another: two events by turns are never those of the next but one. */
static int arrive(void *user, int rank)
{
    device_group *g = user;
    return g->d->event_record(g->arrived[rank][g->barriers[rank] % 2], stream_of(g, rank));
}

static int leave(void *user, int rank)
{
    device_group *g = user;
    const unsigned turn = g->barriers[rank]++ % 2;
    int error = 0;
    for (int i = 0; i < g->n && error == 0; i++)
        if (g->rank_of[i] != rank)
            error = g->d->stream_wait_event(stream_of(g, rank), g->arrived[g->rank_of[i]][turn], 0);
    return error;
}

static const char *error_name(void *user, int error)
{
    const device_group *g = user;
    return error < 0 ? "no memory" : g->d->error_name(error);
}

/* --- a group ------------------------------------------------------------------------------------------------ */
assay_status device_group_create(device_group **out, certify_device *d, certify_board *board,
                                 void (*name)(void *user, int rank), void *user)
{
    device_group *g = calloc(1, sizeof *g);
    int error = 0;
    *out = g;
    ASSAY_CHECK(g != NULL, ASSAY_OUT_OF_MEMORY, "ranks on a device");
    *g = (device_group){.d = d, .board = board, .name = name, .user = user};
    g->carrier = (comm_carrier){
        .user = g, .post = post, .take = take, .arrive = arrive, .leave = leave, .error_name = error_name};
    for (int r = 0; r < COMM_RANKS && error == 0; r++) {
        if (streams[r] == NULL)
            error = d->stream_create(&streams[r], NON_BLOCKING);
        for (int k = 0; k < 2 && error == 0; k++)
            error = d->event_create(&g->arrived[r][k], NO_TIMING);
    }
    ASSAY_CHECK(error == 0, ASSAY_UNSUPPORTED, "memory: device: streams of %d ranks: %s", COMM_RANKS,
                d->error_name(error));
    return ASSAY_OK;
}

void device_group_destroy(device_group *g)
{
    while (g != NULL && g->parcels != NULL) {
        parcel *p = g->parcels;
        g->parcels = p->next;
        if (p->event != NULL)
            (void)g->d->event_destroy(p->event);
        free(p);
    }
    while (g != NULL && g->rooms != NULL) {
        room *r = g->rooms;
        g->rooms = r->next;
        if (r->memory != NULL)
            (void)g->d->release(r->memory);
        free(r);
    }
    for (int r = 0; g != NULL && r < COMM_RANKS; r++)
        for (int k = 0; k < 2; k++)
            if (g->arrived[r][k] != NULL)
                (void)g->d->event_destroy(g->arrived[r][k]);
    free(g);
}

const comm_carrier *device_group_carrier(device_group *g)
{
    return &g->carrier;
}

void device_group_begin(device_group *g)
{
    g->n = 0;
    memset(g->barriers, 0, sizeof g->barriers);
    for (parcel *p = g->parcels; p != NULL; p = p->next)
        p->used = false;
    for (room *r = g->rooms; r != NULL; r = r->next)
        r->used = 0;
}

void *device_group_add(device_group *g, int rank, const call_record *r, const call_ready *c)
{
    device_make(&g->call[rank], r, c, g->board, streams[rank]);
    g->rank_of[g->n] = rank;
    g->added[g->n++] = &g->call[rank];
    return g->call[rank].call.workspace;
}

/* --- calls -------------------------------------------------------------------------------------------------- */
typedef struct turn {
    device_group *g;
    bool synchronize;
} turn;

static void body(void *user, int rank)
{
    const turn *t = user;
    device_kernel(&t->g->call[rank], t->synchronize);
}

static void run(void *user, bool synchronize)
{
    device_group *g = user;
    turn t = {g, synchronize};
    comm_run(g->w, g->only, body, &t);
}

static void name_call(void *user, int i)
{
    const device_group *g = user;
    g->name(g->user, g->rank_of[i]);
}

void device_group_run(device_group *g, comm_world *w, int only, int32_t *code)
{
    const device_set s = {
        .d = g->d, .board = g->board, .n = g->n, .call = g->added, .run = run, .name = name_call, .user = g};
    g->w = w;
    g->only = only;
    device_run_set(&s);
    for (int i = 0; i < g->n; i++)
        code[g->rank_of[i]] = g->call[g->rank_of[i]].code;
}
