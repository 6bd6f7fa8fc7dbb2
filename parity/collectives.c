/* Collectives: one call is an operation whose inputs are the pieces of all ranks of its group.
 *
 * Copies (all_gather, all_to_all, broadcast, send, recv) are judged bit for bit; sums within the bound of
 * their declared order and wire type; maxima and integers exactly.  A rank of the group whose record of the
 * call is missing is a failure. */
#include "parity/judge.h"

#include "core/checkpoint.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CALL_KEY = 2 * ASSAY_NAME };

typedef struct call {
    int n; /* members */
    int *ranks;
    const assay_trace_op **members; /* [n], NULL: this rank has no record */
    bool judged;
} call;

struct parity_calls {
    const assay_trace *trace;
    parity_map *map;      /* key of a call -> its number */
    parity_map *ordinals; /* key of a call and rank -> calls so far */
    int64_t n, capacity;
    call *calls;
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

/* --- matching ----------------------------------------------------------------------------------------- */

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
        call *calls = realloc(c->calls, (size_t)capacity * sizeof *calls);
        ASSAY_CHECK(calls, ASSAY_OUT_OF_MEMORY, "%lld collective calls", (long long)capacity);
        c->calls = calls;
        c->capacity = capacity;
    }
    const bool pair = is_pair(op);
    call *k = &c->calls[c->n];
    *k = (call){.n = pair ? 2 : op->n_group_ranks};
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
static void join(call *k, const assay_trace_op *op)
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

/* --- judging ------------------------------------------------------------------------------------------ */

typedef struct judge {
    const assay_trace *trace;
    const call *k;
    const assay_trace_tensor **send, **recv; /* [n], NULL where a member has none */
    const parity_scales *scales;
    const parity_result *base;
    parity_table *table;
} judge;

static int64_t count_of(const assay_trace_tensor *t)
{
    return assay_shard_count(&t->shard);
}

static void start(const judge *j, int member, parity_result *r)
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

static assay_status fail_call(const judge *j, int member, const char *why)
{
    parity_result r;
    start(j, member, &r);
    parity_result_fail(&r, "%.480s", why);
    return parity_table_merge(j->table, &r);
}

static assay_status compare_bytes(const judge *j, int member, const void *wanted)
{
    const assay_trace_tensor *found = j->recv[member];
    parity_result r;
    parity_worst w;
    start(j, member, &r);
    parity_worst_init(&w);
    parity_worst_add_bits(&w, found->data, wanted, count_of(found), found->dtype);
    parity_worst_to_result(&w, found->shard.local_shape, found->shard.ndim, &r);
    if (r.verdict == PARITY_FAIL && parity_can_decode(found->dtype)) {
        double *f = NULL, *e = NULL;
        if (parity_decode_all(found->data, count_of(found), found->dtype, &f) == ASSAY_OK &&
            parity_decode_all(wanted, count_of(found), found->dtype, &e) == ASSAY_OK)
            parity_diagnose(f, e, NULL, found->shard.local_shape, found->shard.ndim, found->dtype, j->scales,
                            r.diagnosis);
        free(e);
        free(f);
    }
    return parity_table_merge(j->table, &r);
}

/* Bytes of all members' pieces one after the other. */
static assay_status concatenate(const judge *j, unsigned char **out, int64_t *count)
{
    int64_t total = 0;
    for (int i = 0; i < j->k->n; i++)
        total += count_of(j->send[i]);
    const size_t width = (size_t)assay_dtype_bytes(j->send[0]->dtype);
    *out = malloc((size_t)total * width + 1);
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "%lld gathered elements", (long long)total);
    size_t at = 0;
    for (int i = 0; i < j->k->n; i++) {
        const size_t bytes = (size_t)count_of(j->send[i]) * width;
        if (bytes > 0)
            memcpy(*out + at, j->send[i]->data, bytes);
        at += bytes;
    }
    *count = total;
    return ASSAY_OK;
}

static assay_status judge_all_gather(const judge *j)
{
    unsigned char *whole = NULL;
    int64_t count = 0;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(concatenate(j, &whole, &count));
    for (int i = 0; i < j->k->n && st == ASSAY_OK; i++)
        st = count_of(j->recv[i]) == count
                 ? compare_bytes(j, i, whole)
                 : fail_call(j, i, "all_gather: recv does not have the size of all pieces together");
    free(whole);
    return st;
}

static assay_status judge_broadcast(const judge *j)
{
    const json_t *value = json_object_get(j->k->members[0]->attrs, "root");
    const int64_t root = json_is_integer(value) ? json_integer_value(value) : 0;
    if (root < 0 || root >= j->k->n)
        return fail_call(j, 0, "broadcast: root is not a rank of the group");
    for (int i = 0; i < j->k->n; i++) {
        ASSAY_TRY(count_of(j->recv[i]) == count_of(j->send[root])
                      ? compare_bytes(j, i, j->send[root]->data)
                      : fail_call(j, i, "broadcast: recv does not have the size of the root's send"));
    }
    return ASSAY_OK;
}

/* Rows of `op`'s list `key` for member `index`: a JSON array, or an I64 input slot; -1 when absent. */
static int64_t listed_rows(const judge *j, const assay_trace_op *op, const char *key, int index)
{
    const json_t *list = json_object_get(op->attrs, key);
    if (json_is_array(list)) {
        const json_t *entry = json_array_get(list, (size_t)index);
        return json_is_integer(entry) && json_integer_value(entry) >= 0 ? json_integer_value(entry) : -1;
    }
    const assay_trace_tensor *t = assay_trace_op_tensor(j->trace, op, key);
    if (!t || t->dtype != ASSAY_I64 || !t->data || index >= count_of(t))
        return -1;
    return parity_decode_integer(t->data, index, ASSAY_I64);
}

/* Elements that member `from` sends to member `to` in an all_to_all; -1: nobody says and it is not even. */
static int64_t exchanged(const judge *j, int from, int to)
{
    const assay_trace_tensor *s = j->send[from];
    const int64_t rows_here = s->shard.ndim > 0 ? s->shard.local_shape[0] : 1;
    int64_t width = 1;
    for (int d = 1; d < s->shard.ndim; d++)
        width *= s->shard.local_shape[d];
    int64_t rows = listed_rows(j, j->k->members[from], "send_counts", to);
    if (rows < 0)
        rows = listed_rows(j, j->k->members[from], "counts", to);
    if (rows < 0)
        rows = listed_rows(j, j->k->members[to], "recv_counts", from);
    if (rows < 0 && rows_here % j->k->n == 0)
        rows = rows_here / j->k->n;
    int64_t elements;
    return rows >= 0 && assay_mul_i64(rows, width, &elements) ? elements : -1;
}

/* What member `to` must receive: its chunk of every member, in order. */
static assay_status exchange_for(const judge *j, int to, unsigned char *wanted, const char **problem)
{
    const size_t width = (size_t)assay_dtype_bytes(j->recv[to]->dtype);
    int64_t filled = 0;
    *problem = NULL;
    for (int from = 0; from < j->k->n; from++) {
        int64_t before = 0, length = 0;
        for (int k = 0; k <= to; k++) {
            before += length;
            length = exchanged(j, from, k);
            if (length < 0 || length > count_of(j->send[from]) - before) {
                *problem = "all_to_all: the counts do not fit the send buffers";
                return ASSAY_OK;
            }
        }
        if (filled + length > count_of(j->recv[to])) {
            *problem = "all_to_all: more is sent to the rank than its recv holds";
            return ASSAY_OK;
        }
        if (length > 0)
            memcpy(wanted + (size_t)filled * width,
                   (const char *)j->send[from]->data + (size_t)before * width, (size_t)length * width);
        filled += length;
    }
    if (filled != count_of(j->recv[to]))
        *problem = "all_to_all: less is sent to the rank than its recv holds";
    return ASSAY_OK;
}

static assay_status judge_all_to_all(const judge *j)
{
    for (int to = 0; to < j->k->n; to++) {
        const char *problem;
        unsigned char *wanted =
            calloc(1, (size_t)count_of(j->recv[to]) * (size_t)assay_dtype_bytes(j->recv[to]->dtype) + 1);
        ASSAY_CHECK(wanted, ASSAY_OUT_OF_MEMORY, "all_to_all");
        assay_status st = exchange_for(j, to, wanted, &problem);
        if (st == ASSAY_OK)
            st = problem ? fail_call(j, to, problem) : compare_bytes(j, to, wanted);
        free(wanted);
        ASSAY_TRY(st);
    }
    return ASSAY_OK;
}

/* --- sums --------------------------------------------------------------------------------------------- */

static bool is_max(const judge *j)
{
    const char *reduction = json_string_value(json_object_get(j->k->members[0]->attrs, "reduction"));
    return reduction && strcmp(reduction, "max") == 0;
}

static assay_dtype wire_dtype(const judge *j)
{
    const char *name = json_string_value(json_object_get(j->k->members[0]->attrs, "dtype"));
    assay_dtype dtype = j->send[0]->dtype;
    if (name && assay_dtype_from_name(name, &dtype) != ASSAY_OK)
        assay_error_clear();
    return dtype;
}

/* Sum or maximum of all pieces with its bound. */
static assay_status reduce_reals(const judge *j, double *y, double *bound, int64_t count)
{
    const int n = j->k->n;
    double **pieces = calloc((size_t)n, sizeof *pieces);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(pieces, ASSAY_OUT_OF_MEMORY, "reduction");
    for (int i = 0; i < n; i++)
        ASSAY_TRY_GOTO(parity_decode_all(j->send[i]->data, count, j->send[i]->dtype, &pieces[i]), st, done);
    if (is_max(j)) {
        for (int64_t e = 0; e < count; e++) {
            y[e] = pieces[0][e];
            for (int i = 1; i < n; i++)
                y[e] = isnan(y[e]) || pieces[i][e] <= y[e] ? y[e] : pieces[i][e];
            bound[e] = 0.0;
        }
    } else {
        ref_bound_sum(y, bound, (const double *const *)pieces, n, count, &j->k->members[0]->arith,
                      wire_dtype(j));
    }
done:
    for (int i = 0; i < n; i++)
        free(pieces[i]);
    free(pieces);
    return st;
}

static assay_status reduce_integers(const judge *j, int64_t *y, int64_t count)
{
    for (int i = 0; i < j->k->n; i++) {
        for (int64_t e = 0; e < count; e++) {
            const int64_t x = parity_decode_integer(j->send[i]->data, e, j->send[i]->dtype);
            if (i == 0)
                y[e] = x;
            else if (is_max(j))
                y[e] = x > y[e] ? x : y[e];
            else
                y[e] = (int64_t)((uint64_t)y[e] + (uint64_t)x);
        }
    }
    return ASSAY_OK;
}

static assay_status compare_record(const judge *j, int member, const assay_trace_tensor *recv,
                                   const ref_value *truth)
{
    parity_result r;
    ref_value found;
    start(j, member, &r);
    ASSAY_TRY(parity_value_of("recv", recv, &found));
    const assay_status st = parity_compare_value(truth, &found, j->scales, &r);
    parity_value_free(&found);
    ASSAY_TRY(st);
    return parity_table_merge(j->table, &r);
}

/* covered [of `whole`] = 1 where `part` holds an element. */
static void mark_covered(unsigned char *covered, const assay_shard *whole, const assay_shard *part)
{
    const int64_t count = assay_shard_count(part);
    unsigned char *ones = malloc((size_t)count + 1);
    if (!ones)
        return; /* stays uncovered: reported as missing */
    memset(ones, 1, (size_t)count);
    (void)assay_shard_copy(covered, whole, ones, part, 1, NULL, false, NULL);
    free(ones);
}

/* Elements [first, first+count) of the reduction against the member's recv. */
static assay_status compare_reduced(const judge *j, int member, const ref_value *whole, int64_t first)
{
    ref_value truth = *whole;
    truth.count = count_of(j->recv[member]);
    truth.value = whole->value ? whole->value + first : NULL;
    truth.bound = whole->bound ? whole->bound + first : NULL;
    truth.ivalue = whole->ivalue ? whole->ivalue + first : NULL;
    return compare_record(j, member, j->recv[member], &truth);
}

static assay_status compare_all_reduced(const judge *j, const ref_value *whole, int64_t count, bool scatter)
{
    int64_t first = 0;
    for (int i = 0; i < j->k->n; i++) {
        const int64_t mine = count_of(j->recv[i]);
        if (scatter ? first + mine > count : mine != count)
            ASSAY_TRY(fail_call(j, i, "recv does not have the size that the sends have"));
        else
            ASSAY_TRY(compare_reduced(j, i, whole, scatter ? first : 0));
        first += mine;
    }
    if (scatter && first != count)
        ASSAY_TRY(fail_call(j, 0, "reduce_scatter: all recvs together do not have the size of a send"));
    return ASSAY_OK;
}

static assay_status judge_reduction(const judge *j, bool scatter)
{
    const int64_t count = count_of(j->send[0]);
    for (int i = 1; i < j->k->n; i++) {
        if (count_of(j->send[i]) != count)
            return fail_call(j, i, "the ranks send different numbers of elements");
    }
    const bool integer = parity_is_integer(j->send[0]->dtype);
    ref_value whole = {.kind = REF_VALUE_REAL, .dominant = "rounding of the sum", .count = count};
    const size_t n = (size_t)count + 1;
    assay_status st = ASSAY_OK;
    whole.value = integer ? NULL : calloc(n, sizeof *whole.value);
    whole.bound = integer ? NULL : calloc(n, sizeof *whole.bound);
    whole.ivalue = integer ? calloc(n, sizeof *whole.ivalue) : NULL;
    ASSAY_CHECK_GOTO(integer ? whole.ivalue != NULL : whole.value && whole.bound, ASSAY_OUT_OF_MEMORY, st,
                     done, "reduction of %lld elements", (long long)count);
    st = integer ? reduce_integers(j, whole.ivalue, count) : reduce_reals(j, whole.value, whole.bound, count);
    if (st == ASSAY_OK)
        st = compare_all_reduced(j, &whole, count, scatter);
done:
    parity_value_free(&whole);
    return st;
}

/* --- one call ----------------------------------------------------------------------------------------- */

static assay_status judge_pair(const judge *j)
{
    if (count_of(j->recv[1]) != count_of(j->send[0]) || j->recv[1]->dtype != j->send[0]->dtype)
        return fail_call(j, 1, "recv and send differ in size or dtype");
    return compare_bytes(j, 1, j->send[0]->data);
}

/* --- pieces by their segments: a distributed optimizer's shards ----------------------------------------- */

/* Slots send / recv of a member: "recv", or "recv.0", "recv.1" ... */
static int slots_of(const judge *j, int member, const char *name, const assay_trace_tensor **out)
{
    const assay_trace_op *op = j->k->members[member];
    const bool inputs = strcmp(name, "send") == 0;
    const int n_slots = inputs ? op->n_inputs : op->n_outputs;
    const size_t length = strlen(name);
    int n = 0;
    for (int i = 0; i < n_slots; i++) {
        const assay_trace_slot *s = inputs ? &op->inputs[i] : &op->outputs[i];
        if (strncmp(s->slot, name, length) != 0 || (s->slot[length] != '\0' && s->slot[length] != '.'))
            continue;
        out[n] = assay_trace_tensor_by_id(j->trace, op->rank, s->tensor);
        n += out[n] != NULL;
    }
    return n;
}

static bool same_tensor(const assay_trace_tensor *a, const assay_trace_tensor *b)
{
    bool same = a->dtype == b->dtype && a->shard.ndim == b->shard.ndim && a->data && b->data;
    for (int d = 0; same && d < a->shard.ndim; d++)
        same = a->shard.global_shape[d] == b->shard.global_shape[d];
    return same;
}

/* Every recv of a reduce_scatter is its part of the sum of all sends. */
static assay_status scatter_by_segments(const judge *j, const ref_value *sum)
{
    const assay_trace_tensor *whole = j->send[0];
    const int64_t count = count_of(whole);
    unsigned char *covered = calloc(1, (size_t)count + 1);
    ASSAY_CHECK(covered, ASSAY_OUT_OF_MEMORY, "reduce_scatter");
    assay_status st = ASSAY_OK;
    for (int i = 0; i < j->k->n && st == ASSAY_OK; i++) {
        const assay_trace_tensor *recvs[ASSAY_MAX_SLOTS];
        const int n = slots_of(j, i, "recv", recvs);
        for (int k = 0; k < n && st == ASSAY_OK; k++) {
            const int64_t mine = count_of(recvs[k]);
            ref_value part = {.kind = REF_VALUE_REAL, .dominant = sum->dominant, .count = mine};
            part.value = calloc((size_t)mine + 1, sizeof *part.value);
            part.bound = calloc((size_t)mine + 1, sizeof *part.bound);
            if (!part.value || !part.bound)
                st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "reduce_scatter");
            else if (!same_tensor(recvs[k], whole) ||
                     assay_shard_copy(part.value, &recvs[k]->shard, sum->value, &whole->shard,
                                      (int64_t)sizeof(double), NULL, false, NULL) != mine)
                st = fail_call(j, i, "reduce_scatter: a recv is no part of what was sent");
            else {
                (void)assay_shard_copy(part.bound, &recvs[k]->shard, sum->bound, &whole->shard,
                                       (int64_t)sizeof(double), NULL, false, NULL);
                st = compare_record(j, i, recvs[k], &part);
                mark_covered(covered, &whole->shard, &recvs[k]->shard);
            }
            parity_value_free(&part);
        }
    }
    if (st == ASSAY_OK && memchr(covered, 0, (size_t)count))
        st = fail_call(j, 0, "reduce_scatter: no rank receives a part of the sum");
    free(covered);
    return st;
}

static assay_status judge_scatter_by_segments(judge *j)
{
    const int64_t count = count_of(j->send[0]);
    for (int i = 0; i < j->k->n; i++) {
        if (!j->send[i] || !same_tensor(j->send[i], j->send[0]) || count_of(j->send[i]) != count ||
            !parity_same_shard(&j->send[i]->shard, &j->send[0]->shard) ||
            parity_is_integer(j->send[i]->dtype))
            return fail_call(j, i, "reduce_scatter: the ranks send different pieces");
    }
    ref_value sum = {.kind = REF_VALUE_REAL, .dominant = "rounding of the sum", .count = count};
    sum.value = calloc((size_t)count + 1, sizeof *sum.value);
    sum.bound = calloc((size_t)count + 1, sizeof *sum.bound);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(sum.value && sum.bound, ASSAY_OUT_OF_MEMORY, st, done, "reduce_scatter");
    ASSAY_TRY_GOTO(reduce_reals(j, sum.value, sum.bound, count), st, done);
    st = scatter_by_segments(j, &sum);
done:
    parity_value_free(&sum);
    return st;
}

/* What a recv of an all_gather must hold: every send put in its place. */
static assay_status gather_for(const judge *j, int member)
{
    const assay_trace_tensor *recv = j->recv[member];
    const int64_t count = count_of(recv);
    unsigned char *wanted = calloc(1, recv->bytes + 1), *covered = calloc(1, (size_t)count + 1);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(wanted && covered, ASSAY_OUT_OF_MEMORY, st, done, "all_gather");
    for (int i = 0; i < j->k->n; i++) {
        const assay_trace_tensor *sends[ASSAY_MAX_SLOTS];
        const int n = slots_of(j, i, "send", sends);
        for (int k = 0; k < n; k++) {
            if (same_tensor(sends[k], recv))
                (void)assay_shard_copy(wanted, &recv->shard, sends[k]->data, &sends[k]->shard,
                                       assay_dtype_bytes(recv->dtype), covered, false, NULL);
        }
    }
    st = memchr(covered, 0, (size_t)count) ? fail_call(j, member, "all_gather: no rank sends a part of recv")
                                           : compare_bytes(j, member, wanted);
done:
    free(covered);
    free(wanted);
    return st;
}

static assay_status judge_gather_by_segments(judge *j)
{
    for (int i = 0; i < j->k->n; i++)
        ASSAY_TRY(j->recv[i] && j->recv[i]->data ? gather_for(j, i)
                                                 : fail_call(j, i, "the record has no slot recv"));
    return ASSAY_OK;
}

/* Whether some member has no or several slots of the name: pieces are then placed by their segments. */
static bool by_segments(const judge *j, const char *name)
{
    for (int i = 0; i < j->k->n; i++) {
        const assay_trace_tensor *slots[ASSAY_MAX_SLOTS];
        if (j->k->members[i] && slots_of(j, i, name, slots) != 1)
            return true;
    }
    return false;
}

static bool usable(const assay_trace_tensor *t)
{
    return t && (t->data || count_of(t) == 0) && parity_can_decode(t->dtype);
}

/* Every rank of the group has a record of the call; false when a finding was recorded instead. */
static assay_status find_members(const judge *j, bool *good)
{
    *good = false;
    for (int i = 0; i < j->k->n; i++) {
        if (!j->k->members[i]) {
            char why[160];
            snprintf(why, sizeof why, "rank %d of the group never joined this call", j->k->ranks[i]);
            return fail_call(j, i, why);
        }
    }
    *good = true;
    return ASSAY_OK;
}

/* Finds the slots; false when a finding was recorded instead. */
static assay_status find_slots(judge *j, bool *good)
{
    const bool pair = is_pair(j->k->members[0]);
    *good = false;
    for (int i = 0; i < j->k->n; i++) {
        const assay_trace_op *op = j->k->members[i];
        j->send[i] = assay_trace_op_tensor(j->trace, op, "send");
        j->recv[i] = assay_trace_op_tensor(j->trace, op, "recv");
        const bool need_send = !pair || i == 0, need_recv = !pair || i == 1;
        if ((need_send && !j->send[i]) || (need_recv && !j->recv[i]))
            return fail_call(j, i, "the record has no slot send or recv");
        if ((need_send && !usable(j->send[i])) || (need_recv && !usable(j->recv[i]))) {
            parity_result r;
            start(j, i, &r);
            parity_result_skip(&r, "no data of a comparable dtype");
            return parity_table_merge(j->table, &r);
        }
        if (!pair && (j->send[i]->dtype != j->send[0]->dtype || j->recv[i]->dtype != j->send[0]->dtype))
            return fail_call(j, i, "the ranks use different dtypes");
    }
    *good = true;
    return ASSAY_OK;
}

static assay_status judge_call(judge *j)
{
    bool good;
    ASSAY_TRY(find_members(j, &good));
    if (!good)
        return ASSAY_OK;
    const char *op = j->k->members[0]->op;
    const bool scatter = strcmp(op, "reduce_scatter") == 0 && by_segments(j, "recv");
    const bool gather = strcmp(op, "all_gather") == 0 && by_segments(j, "send");
    for (int i = 0; i < j->k->n && (scatter || gather); i++) {
        j->send[i] = assay_trace_op_tensor(j->trace, j->k->members[i], "send");
        j->recv[i] = assay_trace_op_tensor(j->trace, j->k->members[i], "recv");
    }
    if (scatter)
        return j->send[0] ? judge_scatter_by_segments(j) : fail_call(j, 0, "the record has no slot send");
    if (gather)
        return judge_gather_by_segments(j);
    ASSAY_TRY(find_slots(j, &good));
    if (!good)
        return ASSAY_OK;
    if (is_pair(j->k->members[0]))
        return judge_pair(j);
    if (strcmp(op, "all_gather") == 0)
        return judge_all_gather(j);
    if (strcmp(op, "all_to_all") == 0)
        return judge_all_to_all(j);
    if (strcmp(op, "broadcast") == 0)
        return judge_broadcast(j);
    return judge_reduction(j, strcmp(op, "reduce_scatter") == 0);
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
    call *k = &c->calls[number];
    if (k->judged)
        return ASSAY_OK;
    k->judged = true;
    judge j = {.trace = c->trace, .k = k, .scales = scales, .base = base, .table = table};
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
