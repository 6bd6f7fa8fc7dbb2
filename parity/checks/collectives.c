/* Collectives: one call is an operation whose inputs are the pieces of all ranks of its group.
 *
 * Copies (all_gather, all_to_all, broadcast, send, recv) are judged bit for bit; sums within the bound of
 * their declared order and wire type; maxima and integers exactly.  A rank of the group whose record of the
 * call is missing is a failure. */
#include "parity/checks/collectives.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CALL_KEY = 2 * ASSAY_NAME };

struct parity_calls {
    const assay_trace *trace;
    parity_map *map;      /* key of a call -> its number */
    parity_map *ordinals; /* key of a call and rank -> calls so far */
    int64_t n, capacity;
    parity_call *calls;
    int64_t *first_of_rank; /* number of (rank, op index) in call_of */
    int64_t *call_of;       /* [all ops], -1: no collective */
};

bool parity_is_collective(const char *op)
{
    static const char *const names[] = {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(op, names[i]) == 0)
            return true;
    }
    return false;
}

/* --- matching ----------------------------------------------------------------------------------------------- */

static bool is_pair(const assay_trace_op *op)
{
    return strcmp(op->op, "send") == 0 || strcmp(op->op, "recv") == 0;
}

/* Global rank at the other end of a send or recv: the attribute counts within the group. */
static int peer_of(const assay_trace_op *op)
{
    const json_t *peer = json_object_get(op->attrs, "peer");
    const int64_t index = json_is_integer(peer) ? json_integer_value(peer) : -1;
    return index >= 0 && index < op->n_group_ranks ? op->group_ranks[index] : -1;
}

static uint64_t group_hash(const assay_trace_op *op)
{
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < op->n_group_ranks; i++)
        h = (h ^ (uint64_t)op->group_ranks[i]) * 1099511628211u;
    return h;
}

/* What all members of a call have in common, without its number among equals. */
static void call_key(const assay_trace_op *op, char out[CALL_KEY])
{
    if (is_pair(op)) {
        const bool sends = strcmp(op->op, "send") == 0;
        snprintf(out, CALL_KEY, "pair|%d|%d|%lld|%lld", sends ? op->rank : peer_of(op),
                 sends ? peer_of(op) : op->rank, (long long)op->step, (long long)op->microbatch);
        return;
    }
    /* Without the microbatch: data-parallel ranks of an expert group exchange different ones in one call. */
    snprintf(out, CALL_KEY, "%s|%s|%d|%lld|%llx", op->op, op->instance, (int)op->phase, (long long)op->step,
             (unsigned long long)group_hash(op));
}

static assay_status new_call(parity_calls *c, const assay_trace_op *op, int64_t *out)
{
    if (c->n == c->capacity) {
        const int64_t capacity = c->capacity ? 2 * c->capacity : 256;
        parity_call *calls = realloc(c->calls, (size_t)capacity * sizeof *calls);
        ASSAY_CHECK(calls, ASSAY_OUT_OF_MEMORY, "%lld collective calls", (long long)capacity);
        c->calls = calls;
        c->capacity = capacity;
    }
    const bool pair = is_pair(op);
    parity_call *k = &c->calls[c->n];
    *k = (parity_call){.n = pair ? 2 : op->n_group_ranks};
    k->ranks = calloc((size_t)k->n + 1, sizeof *k->ranks);
    k->members = calloc((size_t)k->n + 1, sizeof *k->members);
    c->n++;
    ASSAY_CHECK(k->ranks && k->members, ASSAY_OUT_OF_MEMORY, "collective call of %d ranks", k->n);
    if (pair) {
        const bool sends = strcmp(op->op, "send") == 0;
        k->ranks[0] = sends ? op->rank : peer_of(op);
        k->ranks[1] = sends ? peer_of(op) : op->rank;
    } else {
        memcpy(k->ranks, op->group_ranks, (size_t)k->n * sizeof *k->ranks);
    }
    *out = c->n - 1;
    return ASSAY_OK;
}

/* Members of a pair are [sender, receiver]; of the others the ranks of the group. */
static void join(parity_call *k, const assay_trace_op *op)
{
    if (is_pair(op)) {
        k->members[strcmp(op->op, "send") == 0 ? 0 : 1] = op;
        return;
    }
    for (int i = 0; i < k->n; i++) {
        if (k->ranks[i] == op->rank)
            k->members[i] = op;
    }
}

static assay_status match(parity_calls *c, const assay_trace_op *op, int64_t *number)
{
    char common[CALL_KEY], mine[CALL_KEY + 80], key[CALL_KEY + 32];
    call_key(op, common);
    snprintf(mine, sizeof mine, "%s|%s|%d", common, op->op, op->rank);
    const int64_t seen = parity_map_get(c->ordinals, mine);
    const int64_t ordinal = seen < 0 ? 0 : seen;
    ASSAY_TRY(parity_map_put(c->ordinals, mine, ordinal + 1));
    snprintf(key, sizeof key, "%s|%lld", common, (long long)ordinal);
    *number = parity_map_get(c->map, key);
    if (*number < 0) {
        ASSAY_TRY(new_call(c, op, number));
        ASSAY_TRY(parity_map_put(c->map, key, *number));
    }
    join(&c->calls[*number], op);
    return ASSAY_OK;
}

static assay_status match_all(parity_calls *c)
{
    const int world = assay_trace_world(c->trace);
    int64_t total = 0;
    c->first_of_rank = calloc((size_t)world + 1, sizeof *c->first_of_rank);
    ASSAY_CHECK(c->first_of_rank, ASSAY_OUT_OF_MEMORY, "collective calls");
    for (int rank = 0; rank < world; rank++) {
        c->first_of_rank[rank] = total;
        total += assay_trace_n_ops(c->trace, rank);
    }
    c->call_of = malloc(((size_t)total + 1) * sizeof *c->call_of);
    ASSAY_CHECK(c->call_of, ASSAY_OUT_OF_MEMORY, "collective calls");
    for (int rank = 0; rank < world; rank++) {
        for (int64_t i = 0; i < assay_trace_n_ops(c->trace, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(c->trace, rank, i);
            int64_t *number = &c->call_of[c->first_of_rank[rank] + i];
            *number = -1;
            if (parity_is_collective(op->op) && op->n_group_ranks > 0)
                ASSAY_TRY(match(c, op, number));
        }
    }
    return ASSAY_OK;
}

assay_status parity_calls_create(parity_calls **out, const assay_trace *t)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    parity_calls *c = calloc(1, sizeof *c);
    ASSAY_CHECK(c, ASSAY_OUT_OF_MEMORY, "collective calls");
    c->trace = t;
    ASSAY_TRY_GOTO(parity_map_create(&c->map), st, fail);
    ASSAY_TRY_GOTO(parity_map_create(&c->ordinals), st, fail);
    ASSAY_TRY_GOTO(match_all(c), st, fail);
    *out = c;
    return ASSAY_OK;
fail:
    parity_calls_destroy(c);
    return st;
}

void parity_calls_destroy(parity_calls *c)
{
    if (!c)
        return;
    for (int64_t i = 0; i < c->n; i++) {
        free(c->calls[i].ranks);
        free(c->calls[i].members);
    }
    free(c->calls);
    free(c->call_of);
    free(c->first_of_rank);
    parity_map_destroy(c->ordinals);
    parity_map_destroy(c->map);
    free(c);
}

/* --- one call ----------------------------------------------------------------------------------------------- */

int64_t parity_call_count(const assay_trace_tensor *t)
{
    return assay_shard_count(&t->shard);
}

void parity_call_start(const parity_call_judge *j, int member, parity_result *r)
{
    *r = *j->base;
    const assay_trace_op *op = j->k->members[member];
    for (int i = 0; !op && i < j->k->n; i++)
        op = j->k->members[i];
    parity_result_from_op(r, op);
    r->rank = j->k->ranks[member];
    r->verdict = PARITY_PASS;
    snprintf(r->tensor, sizeof r->tensor, "recv");
}

assay_status parity_call_fail(const parity_call_judge *j, int member, const char *why)
{
    parity_result r;
    parity_call_start(j, member, &r);
    parity_result_fail(&r, "%.480s", why);
    return parity_table_merge(j->table, &r);
}

assay_status parity_call_compare_bytes(const parity_call_judge *j, int member, const void *wanted)
{
    const assay_trace_tensor *found = j->recv[member];
    parity_result r;
    parity_call_start(j, member, &r);
    ASSAY_TRY(parity_compare_bits(found->data, wanted, found->shard.local_shape, found->shard.ndim,
                                  parity_call_count(found), found->dtype, parity_table_gallery(j->table),
                                  &r));
    if (r.verdict == PARITY_FAIL && parity_can_decode(found->dtype)) {
        double *f = NULL, *e = NULL;
        if (parity_decode_all(found->data, parity_call_count(found), found->dtype, &f) == ASSAY_OK &&
            parity_decode_all(wanted, parity_call_count(found), found->dtype, &e) == ASSAY_OK)
            parity_diagnose(f, e, NULL, found->shard.local_shape, found->shard.ndim, found->dtype, j->scales,
                            r.diagnosis);
        free(e);
        free(f);
    }
    return parity_table_merge(j->table, &r);
}

static assay_status judge_pair(const parity_call_judge *j)
{
    if (parity_call_count(j->recv[1]) != parity_call_count(j->send[0]) ||
        j->recv[1]->dtype != j->send[0]->dtype)
        return parity_call_fail(j, 1, "recv and send differ in size or dtype");
    return parity_call_compare_bytes(j, 1, j->send[0]->data);
}

static bool usable(const assay_trace_tensor *t)
{
    return t && (t->data || parity_call_count(t) == 0) && parity_can_decode(t->dtype);
}

/* Every rank of the group has a record of the call; false when a finding was recorded instead. */
static assay_status find_members(const parity_call_judge *j, bool *good)
{
    *good = false;
    for (int i = 0; i < j->k->n; i++) {
        if (!j->k->members[i]) {
            char why[160];
            snprintf(why, sizeof why, "rank %d of the group never joined this call", j->k->ranks[i]);
            return parity_call_fail(j, i, why);
        }
    }
    *good = true;
    return ASSAY_OK;
}

/* Finds the slots; false when a finding was recorded instead. */
static assay_status find_slots(parity_call_judge *j, bool *good)
{
    const bool pair = is_pair(j->k->members[0]);
    *good = false;
    for (int i = 0; i < j->k->n; i++) {
        const assay_trace_op *op = j->k->members[i];
        j->send[i] = assay_trace_op_tensor(j->trace, op, "send");
        j->recv[i] = assay_trace_op_tensor(j->trace, op, "recv");
        const bool need_send = !pair || i == 0, need_recv = !pair || i == 1;
        if ((need_send && !j->send[i]) || (need_recv && !j->recv[i]))
            return parity_call_fail(j, i, "the record has no slot send or recv");
        if ((need_send && !usable(j->send[i])) || (need_recv && !usable(j->recv[i]))) {
            parity_result r;
            parity_call_start(j, i, &r);
            parity_result_skip(&r, "no data of a comparable dtype");
            return parity_table_merge(j->table, &r);
        }
        if (!pair && (j->send[i]->dtype != j->send[0]->dtype || j->recv[i]->dtype != j->send[0]->dtype))
            return parity_call_fail(j, i, "the ranks use different dtypes");
    }
    *good = true;
    return ASSAY_OK;
}

static assay_status judge_call(parity_call_judge *j)
{
    bool good;
    ASSAY_TRY(find_members(j, &good));
    if (!good)
        return ASSAY_OK;
    const char *op = j->k->members[0]->op;
    const bool scatter = strcmp(op, "reduce_scatter") == 0 && parity_call_by_segments(j, "recv");
    const bool gather = strcmp(op, "all_gather") == 0 && parity_call_by_segments(j, "send");
    for (int i = 0; i < j->k->n && (scatter || gather); i++) {
        j->send[i] = assay_trace_op_tensor(j->trace, j->k->members[i], "send");
        j->recv[i] = assay_trace_op_tensor(j->trace, j->k->members[i], "recv");
    }
    if (scatter)
        return j->send[0] ? parity_call_scatter_by_segments(j)
                          : parity_call_fail(j, 0, "the record has no slot send");
    if (gather)
        return parity_call_gather_by_segments(j);
    ASSAY_TRY(find_slots(j, &good));
    if (!good)
        return ASSAY_OK;
    if (is_pair(j->k->members[0]))
        return judge_pair(j);
    if (strcmp(op, "all_gather") == 0)
        return parity_call_all_gather(j);
    if (strcmp(op, "all_to_all") == 0)
        return parity_call_all_to_all(j);
    if (strcmp(op, "broadcast") == 0)
        return parity_call_broadcast(j);
    return parity_call_reduction(j, strcmp(op, "reduce_scatter") == 0);
}

static int64_t index_of(const parity_calls *c, const assay_trace_op *op)
{
    /* Operations of a rank ascend by sequence. */
    int64_t low = 0, high = assay_trace_n_ops(c->trace, op->rank) - 1;
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        if (assay_trace_op_at(c->trace, op->rank, mid)->sequence < op->sequence)
            low = mid + 1;
        else
            high = mid;
    }
    return c->first_of_rank[op->rank] + low;
}

assay_status parity_calls_judge(parity_calls *c, const assay_trace_op *op, const parity_result *base,
                                const parity_scales *scales, parity_table *table)
{
    const int64_t number = c->call_of[index_of(c, op)];
    if (number < 0) {
        parity_result r = *base;
        parity_result_from_op(&r, op);
        parity_result_fail(&r, "a collective without its group");
        return parity_table_merge(table, &r);
    }
    parity_call *k = &c->calls[number];
    if (k->judged)
        return ASSAY_OK;
    k->judged = true;
    parity_call_judge j = {.trace = c->trace, .k = k, .scales = scales, .base = base, .table = table};
    j.send = calloc((size_t)k->n + 1, sizeof *j.send);
    j.recv = calloc((size_t)k->n + 1, sizeof *j.recv);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(j.send && j.recv, ASSAY_OUT_OF_MEMORY, st, done, "collective call");
    st = judge_call(&j);
    if (st == ASSAY_UNSUPPORTED || st == ASSAY_NOT_FOUND) {
        parity_result r = *base;
        parity_result_from_op(&r, op);
        parity_result_skip(&r, "%.480s", assay_error_message());
        st = parity_table_merge(table, &r);
    }
done:
    free(j.recv);
    free(j.send);
    return st;
}
