/* Dry run: do all calls meet?  Every actor goes through its list.  A collective is done when all members of its group stand at
 * the same one.  The sends of a round and the receives of the next are one exchange, as the engine groups them: it is
 * posted at once and done when each of its transfers has met its other half, so nothing relies on a buffer.  Who can
 * never go on is named. */
#include "parity/dry/dry.h"

#include <stdlib.h>
#include <string.h>

/* Transfers from one actor to another in the order in which they were posted. */
typedef struct queue {
    int64_t n, capacity;
    const dry_call **calls;
} queue;

/* To and from the stage ahead [0], behind [1]; around the ring of cp to the rank ahead [2], from the one behind [3]. */
enum { SIDES = 4, RING = 2 };

typedef struct actor {
    int rank;
    const dry_list *list;
    int64_t at, end; /* next call; of an exchange, its end */
    bool posted;
    int64_t sent[SIDES], received[SIDES]; /* transfers of earlier exchanges */
} actor;

typedef struct match {
    dry *d;
    int n;
    bool exact;
    actor *actors;
    queue *sends, *recvs; /* [n][SIDES]: what an actor posted */
    bool wrong;
} match;

static bool is_transfer(const dry_call *c)
{
    return c->op == DRY_SEND || c->op == DRY_RECV;
}

/* Position of an actor's group member `index`. */
static int actor_of(const match *m, int rank)
{
    return m->exact ? rank : rank / m->d->stage_ranks;
}

static int stage_of(const match *m, const actor *a)
{
    return a->rank / m->d->stage_ranks;
}

/* The same transfer seen from its other end. */
static int other_side(int side)
{
    return side ^ 1;
}

/* Of a transfer: towards the next stage (0) or the one before (1).  With two stages both are the same peer: then forward
 * goes ahead and backward comes from there. */
static int side_of(const match *m, const actor *a, const dry_call *c)
{
    const int ahead = (stage_of(m, a) + 1) % m->d->stages;
    if (c->group == ASSAY_GROUP_CP)
        return RING + (c->op == DRY_SEND ? 0 : 1);
    if (m->d->stages > 2)
        return c->peer == ahead ? 0 : 1;
    return (c->op == DRY_SEND) == (c->phase == ASSAY_PHASE_FORWARD) ? 0 : 1;
}

static actor *peer_of(match *m, const actor *a, const dry_call *c)
{
    const assay_group_shape g = assay_grid_group_shape(&m->d->grid, c->group, a->rank);
    const int cp = assay_grid_coord(&m->d->grid, ASSAY_AXIS_CP, a->rank);
    const int index = c->group == ASSAY_GROUP_CP ? (cp + c->peer) % g.size : c->peer;
    return &m->actors[actor_of(m, assay_group_member(&g, index))];
}

static assay_status post(queue *q, const dry_call *c)
{
    if (q->n == q->capacity) {
        const int64_t more = q->capacity > 0 ? 2 * q->capacity : 64;
        const dry_call **grown = realloc((void *)q->calls, (size_t)more * sizeof *grown);
        ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "%lld transfers", (long long)more);
        q->calls = grown;
        q->capacity = more;
    }
    q->calls[q->n++] = c;
    return ASSAY_OK;
}

/* --- exchanges ---------------------------------------------------------------------------------------------- */

/* "pipeline.send_forward" and "pipeline.recv_forward" carry one tensor. */
static bool same_transfer(const dry *d, const dry_call *send, const dry_call *recv)
{
    const char *a = strrchr(d->names.text[send->name], '_'), *b = strrchr(d->names.text[recv->name], '_');
    return a != NULL && b != NULL && strcmp(a, b) == 0 && send->phase == recv->phase &&
           send->microbatch == recv->microbatch && send->dtype == recv->dtype;
}

/* Whether transfer number `index` of its direction has met its other half; wrong: they are not one tensor. */
static bool met(match *m, const actor *a, const dry_call *c, int64_t index)
{
    const actor *other = peer_of(m, a, c);
    const int64_t at = other - m->actors;
    const int side = other_side(side_of(m, a, c));
    const queue *q = c->op == DRY_SEND ? &m->recvs[SIDES * at + side] : &m->sends[SIDES * at + side];
    char mine[DRY_TEXT / 2], theirs[DRY_TEXT / 2];
    if (index >= q->n)
        return false;
    const dry_call *half = q->calls[index];
    if (!same_transfer(m->d, c->op == DRY_SEND ? c : half, c->op == DRY_SEND ? half : c) && !m->wrong) {
        dry_call_text(m->d, c, mine);
        dry_call_text(m->d, half, theirs);
        dry_fails(m->d, DRY_CALLS, "rank %d's %.180s meets rank %d's %.180s", a->rank, mine, other->rank,
                  theirs);
        m->wrong = true;
    }
    return true;
}

/* Whether the next call belongs to the exchange that begins at a->at.  A journey around the ring is sends, then receives. */
static bool continues(const actor *a)
{
    const dry_call *next = &a->list->calls[a->end];
    if (a->end >= a->list->n || !is_transfer(next))
        return false;
    if (a->end == a->at)
        return true;
    const dry_call *last = next - 1;
    if (next->group == ASSAY_GROUP_CP || last->group == ASSAY_GROUP_CP)
        return next->group == last->group && !(last->op == DRY_RECV && next->op == DRY_SEND);
    return next->block - last->block <= 1;
}

static assay_status open_exchange(match *m, actor *a)
{
    const int64_t self = a - m->actors;
    a->end = a->at;
    while (continues(a)) {
        const dry_call *c = &a->list->calls[a->end++];
        const int64_t at = SIDES * self + side_of(m, a, c);
        ASSAY_TRY(post(c->op == DRY_SEND ? &m->sends[at] : &m->recvs[at], c));
    }
    a->posted = true;
    return ASSAY_OK;
}

static bool try_exchange(match *m, actor *a)
{
    int64_t sent[SIDES], received[SIDES];
    memcpy(sent, a->sent, sizeof sent);
    memcpy(received, a->received, sizeof received);
    for (int64_t i = a->at; i < a->end; i++) {
        const dry_call *c = &a->list->calls[i];
        int64_t *count = c->op == DRY_SEND ? sent : received;
        if (!met(m, a, c, count[side_of(m, a, c)]++))
            return false;
    }
    memcpy(a->sent, sent, sizeof sent);
    memcpy(a->received, received, sizeof received);
    dry_holds(m->d, DRY_CALLS, a->end - a->at);
    a->at = a->end;
    a->posted = false;
    return true;
}

/* --- collectives -------------------------------------------------------------------------------------------- */

/* The actors of a group, each once, ascending. */
static int members_of(const match *m, const actor *a, assay_group kind, int *out)
{
    const assay_group_shape s = assay_grid_group_shape(&m->d->grid, kind, a->rank);
    int n = 0;
    for (int i = 0; i < s.size; i++) {
        const int at = actor_of(m, assay_group_member(&s, i));
        if (n == 0 || out[n - 1] < at)
            out[n++] = at;
    }
    return n;
}

static bool try_collective(match *m, actor *a, int *members)
{
    const dry_call *c = &a->list->calls[a->at];
    const int n = members_of(m, a, c->group, members);
    char mine[DRY_TEXT / 2], theirs[DRY_TEXT / 2];
    for (int i = 0; i < n; i++) {
        const actor *b = &m->actors[members[i]];
        if (b->at >= b->list->n || is_transfer(&b->list->calls[b->at]))
            return false;
        const dry_call *other = &b->list->calls[b->at];
        if (other->op == c->op && other->name == c->name && other->phase == c->phase &&
            other->group == c->group && other->dtype == c->dtype && other->microbatch == c->microbatch)
            continue;
        if (other->group == c->group && !m->wrong) {
            dry_call_text(m->d, c, mine);
            dry_call_text(m->d, other, theirs);
            dry_fails(m->d, DRY_CALLS, "in one %s group rank %d calls %.180s while rank %d calls %.180s",
                      assay_group_name(c->group), a->rank, mine, b->rank, theirs);
            m->wrong = true;
        }
        return false;
    }
    for (int i = 0; i < n; i++)
        m->actors[members[i]].at++;
    dry_holds(m->d, DRY_CALLS, n);
    return true;
}

/* --- the walk ----------------------------------------------------------------------------------------------- */

static assay_status walk(match *m, int *members)
{
    bool moved = true;
    while (moved && !m->wrong) {
        moved = false;
        for (int i = 0; i < m->n; i++) {
            actor *a = &m->actors[i];
            bool on = true;
            while (on && !m->wrong && a->at < a->list->n) {
                if (is_transfer(&a->list->calls[a->at])) {
                    if (!a->posted) {
                        ASSAY_TRY(open_exchange(m, a));
                        moved = true;
                    }
                    on = try_exchange(m, a);
                } else {
                    on = try_collective(m, a, members);
                }
                moved = moved || on;
            }
        }
    }
    return ASSAY_OK;
}

/* What an actor waits for: of an exchange the first transfer that has not met its other half. */
static void describe(match *m, const actor *a, char out[DRY_TEXT / 2])
{
    int64_t sent[SIDES], received[SIDES], i = a->at;
    memcpy(sent, a->sent, sizeof sent);
    memcpy(received, a->received, sizeof received);
    for (; a->posted && i + 1 < a->end; i++) {
        const dry_call *c = &a->list->calls[i];
        int64_t *count = c->op == DRY_SEND ? sent : received;
        if (!met(m, a, c, count[side_of(m, a, c)]++))
            break;
    }
    dry_call_text(m->d, &a->list->calls[i], out);
}

/* Everybody who waits: the first few by name. */
static void report_waiting(match *m)
{
    char text[DRY_TEXT] = "", one[DRY_TEXT / 2];
    size_t used = 0;
    int waiting = 0, left = 0;
    for (int i = 0; i < m->n; i++) {
        const actor *a = &m->actors[i];
        if (a->at == a->list->n)
            continue;
        describe(m, a, one);
        if (waiting++ < 3 && used + 160 < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s rank %d in %.120s",
                                     waiting > 1 ? ";" : "", a->rank, one);
        else
            left++;
    }
    if (waiting > 0 && !m->wrong)
        dry_fails(m->d, DRY_CALLS, "deadlock: %d wait for ever:%.400s%s", waiting, text,
                  left > 0 ? " ..." : "");
}

assay_status dry_match(dry *d, int n, const int *ranks, const dry_list *const *lists)
{
    match m = {.d = d, .n = n, .exact = n == d->grid.world};
    assay_status st = ASSAY_OK;
    m.actors = calloc((size_t)n, sizeof *m.actors);
    m.sends = calloc(SIDES * (size_t)n, sizeof *m.sends);
    m.recvs = calloc(SIDES * (size_t)n, sizeof *m.recvs);
    int *members = calloc((size_t)d->grid.world, sizeof *members);
    ASSAY_CHECK_GOTO(m.actors && m.sends && m.recvs && members, ASSAY_OUT_OF_MEMORY, st, done, "%d actors",
                     n);
    for (int i = 0; i < n; i++)
        m.actors[i] = (actor){.rank = ranks[i], .list = lists[i]};
    st = walk(&m, members);
    if (st == ASSAY_OK)
        report_waiting(&m);
done:
    for (int i = 0; i < SIDES * n; i++) {
        free(m.sends != NULL ? (void *)m.sends[i].calls : NULL);
        free(m.recvs != NULL ? (void *)m.recvs[i].calls : NULL);
    }
    free(m.sends);
    free(m.recvs);
    free(m.actors);
    free(members);
    return st;
}
