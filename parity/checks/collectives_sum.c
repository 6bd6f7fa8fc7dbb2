/* Collectives that add: all_reduce, reduce_scatter, and pieces that are placed by their segments. */
#include "parity/checks/collectives.h"

#include "core/files/checkpoint.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool reduces_by(const parity_call_judge *j, const char *word)
{
    const char *reduction = json_string_value(json_object_get(j->k->members[0]->attrs, "reduction"));
    return reduction && strcmp(reduction, word) == 0;
}

static bool is_max(const parity_call_judge *j)
{
    return reduces_by(j, "max");
}

/* The mean of n pieces: their sum divided at the end, or each piece before, by n or times 1/n rounded. */
static void divide(double *y, double *bound, const double *const *pieces, int n, int64_t count, double u)
{
    const double each = 2.0 * u + u * u; /* of a product with 1/n that was rounded */
    const double least = 0x1p-149;
    for (int64_t e = 0; e < count; e++) {
        double g = 0.0;
        for (int i = 0; i < n; i++)
            g += fabs(pieces[i][e]);
        bound[e] = (bound[e] + (1.0 + n * u) * each * (g + bound[e])) / n + n * least;
        y[e] /= n;
    }
}

static assay_dtype wire_dtype(const parity_call_judge *j)
{
    const char *name = json_string_value(json_object_get(j->k->members[0]->attrs, "dtype"));
    assay_dtype dtype = j->send[0]->dtype;
    if (name && assay_dtype_from_name(name, &dtype) != ASSAY_OK)
        assay_error_clear();
    return dtype;
}

/* Sum or maximum of all pieces with its bound. */
static assay_status reduce_reals(const parity_call_judge *j, double *y, double *bound, int64_t count)
{
    const int n = j->k->n;
    double **pieces = calloc((size_t)n, sizeof *pieces);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(pieces, ASSAY_OUT_OF_MEMORY, "reduction");
    for (int i = 0; i < n; i++)
        ASSAY_TRY_GOTO(parity_decode_all(j->send[i]->data, count, j->send[i]->dtype, &pieces[i]), st, done);
    if (is_max(j)) {
        for (int64_t e = 0; e < count; e++) {
            y[e] = -(double)INFINITY;
            for (int i = 0; i < n; i++)
                y[e] = isnan(y[e]) || pieces[i][e] <= y[e] ? y[e] : pieces[i][e];
            bound[e] = 0.0;
        }
    } else {
        /* sums in double are added in double, whatever is declared */
        assay_arith declared = *assay_declaration_of(&j->k->members[0]->arith, "recv");
        if (j->send[0]->dtype == ASSAY_F64)
            declared.accumulate = ASSAY_F64;
        ref_bound_sum(y, bound, (const double *const *)pieces, n, count, &declared, wire_dtype(j));
        if (reduces_by(j, "avg"))
            divide(y, bound, (const double *const *)pieces, n, count,
                   declared.accumulate == ASSAY_F64 ? 0x1p-53 : 0x1p-24);
    }
done:
    for (int i = 0; i < n; i++)
        free(pieces[i]);
    free(pieces);
    return st;
}

static assay_status reduce_integers(const parity_call_judge *j, int64_t *y, int64_t count)
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

static assay_status compare_record(const parity_call_judge *j, int member, const assay_trace_tensor *recv,
                                   const ref_value *truth)
{
    parity_result r;
    ref_value found;
    parity_call_start(j, member, &r);
    ASSAY_TRY(parity_value_of("recv", recv, &found));
    const assay_status st =
        parity_compare_value(truth, &found, j->scales, parity_table_gallery(j->table), &r);
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
static assay_status compare_reduced(const parity_call_judge *j, int member, const ref_value *whole,
                                    int64_t first)
{
    ref_value truth = *whole;
    truth.count = parity_call_count(j->recv[member]);
    truth.value = whole->value ? whole->value + first : NULL;
    truth.bound = whole->bound ? whole->bound + first : NULL;
    truth.ivalue = whole->ivalue ? whole->ivalue + first : NULL;
    return compare_record(j, member, j->recv[member], &truth);
}

/* Elements before attribute `start` of an all_reduce stay what the member sent. */
static assay_status check_head(const parity_call_judge *j, int64_t start)
{
    for (int i = 0; i < j->k->n; i++) {
        const size_t bytes = (size_t)(start * assay_dtype_bytes(j->send[i]->dtype));
        if (!j->send[i]->data || !j->recv[i]->data || j->recv[i]->bytes < bytes ||
            memcmp(j->send[i]->data, j->recv[i]->data, bytes) != 0)
            ASSAY_TRY(parity_call_fail(j, i, "an element before `start` is not what was sent"));
    }
    return ASSAY_OK;
}

/* The member's recv without those elements. */
static assay_status compare_tail(const parity_call_judge *j, const ref_value *whole, int64_t start)
{
    for (int i = 0; i < j->k->n; i++) {
        assay_trace_tensor tail = *j->recv[i];
        const int64_t count = parity_call_count(&tail) - start, one = 1;
        const int64_t shape[2] = {count, one};
        ref_value truth = *whole;
        if (parity_call_count(&tail) != whole->count) {
            ASSAY_TRY(parity_call_fail(j, i, "recv does not have the size that the sends have"));
            continue;
        }
        truth.count = count;
        truth.value = whole->value ? whole->value + start : NULL;
        truth.bound = whole->bound ? whole->bound + start : NULL;
        truth.ivalue = whole->ivalue ? whole->ivalue + start : NULL;
        assay_shard_whole(&tail.shard, shape, 1);
        tail.data = (const char *)tail.data + start * assay_dtype_bytes(tail.dtype);
        tail.bytes -= (size_t)(start * assay_dtype_bytes(tail.dtype));
        ASSAY_TRY(compare_record(j, i, &tail, &truth));
    }
    return ASSAY_OK;
}

static assay_status compare_all_reduced(const parity_call_judge *j, const ref_value *whole, int64_t count,
                                        bool scatter)
{
    int64_t first = 0;
    const int64_t start = json_integer_value(json_object_get(j->k->members[0]->attrs, "start"));
    if (!scatter && start > 0) {
        if (start > count)
            return parity_call_fail(j, 0, "start: expected at most the number of elements");
        ASSAY_TRY(check_head(j, start));
        return compare_tail(j, whole, start);
    }
    for (int i = 0; i < j->k->n; i++) {
        const int64_t mine = parity_call_count(j->recv[i]);
        if (scatter ? first + mine > count : mine != count)
            ASSAY_TRY(parity_call_fail(j, i, "recv does not have the size that the sends have"));
        else
            ASSAY_TRY(compare_reduced(j, i, whole, scatter ? first : 0));
        first += mine;
    }
    if (scatter && first != count)
        ASSAY_TRY(
            parity_call_fail(j, 0, "reduce_scatter: all recvs together do not have the size of a send"));
    return ASSAY_OK;
}

assay_status parity_call_reduction(const parity_call_judge *j, bool scatter)
{
    const int64_t count = parity_call_count(j->send[0]);
    for (int i = 1; i < j->k->n; i++) {
        if (parity_call_count(j->send[i]) != count)
            return parity_call_fail(j, i, "the ranks send different numbers of elements");
    }
    const bool integer = parity_is_integer(j->send[0]->dtype);
    if (integer && reduces_by(j, "avg"))
        return parity_call_fail(j, 0, "the mean of integers is not defined");
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

/* --- pieces by their segments: a distributed optimizer's shards --------------------------------------------- */

/* Slots send / recv of a member: "recv", or "recv.0", "recv.1" ... */
static int slots_of(const parity_call_judge *j, int member, const char *name, const assay_trace_tensor **out)
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

/* *part = the elements of the sum that `recv` holds.  A send without a place (kind LOCAL) is cut in the order of the ranks:
 * *at counts what was dealt.  False: it holds others. */
static bool part_of(const assay_trace_tensor *whole, const ref_value *sum, const assay_trace_tensor *recv,
                    int64_t *at, ref_value *part)
{
    const int64_t n = part->count, first = *at;
    *at += n;
    if (whole->kind == ASSAY_PIECE_LOCAL) {
        if (recv->dtype != whole->dtype || recv->data == NULL || first + n > sum->count)
            return false;
        memcpy(part->value, sum->value + first, (size_t)n * sizeof *part->value);
        memcpy(part->bound, sum->bound + first, (size_t)n * sizeof *part->bound);
        return true;
    }
    const int64_t size = (int64_t)sizeof(double);
    return same_tensor(recv, whole) &&
           assay_shard_copy(part->value, &recv->shard, sum->value, &whole->shard, size, NULL, false, NULL) ==
               n &&
           assay_shard_copy(part->bound, &recv->shard, sum->bound, &whole->shard, size, NULL, false, NULL) ==
               n;
}

/* Every recv of a reduce_scatter is its part of the sum of all sends. */
static assay_status scatter_by_segments(const parity_call_judge *j, const ref_value *sum)
{
    const assay_trace_tensor *whole = j->send[0];
    const int64_t count = parity_call_count(whole);
    unsigned char *covered = calloc(1, (size_t)count + 1);
    ASSAY_CHECK(covered, ASSAY_OUT_OF_MEMORY, "reduce_scatter");
    assay_status st = ASSAY_OK;
    int64_t at = 0;
    for (int i = 0; i < j->k->n && st == ASSAY_OK; i++) {
        const assay_trace_tensor *recvs[ASSAY_MAX_SLOTS];
        const int n = slots_of(j, i, "recv", recvs);
        for (int k = 0; k < n && st == ASSAY_OK; k++) {
            const int64_t mine = parity_call_count(recvs[k]);
            ref_value part = {.kind = REF_VALUE_REAL, .dominant = sum->dominant, .count = mine};
            part.value = calloc((size_t)mine + 1, sizeof *part.value);
            part.bound = calloc((size_t)mine + 1, sizeof *part.bound);
            if (!part.value || !part.bound)
                st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "reduce_scatter");
            else if (!part_of(whole, sum, recvs[k], &at, &part))
                st = parity_call_fail(j, i, "reduce_scatter: a recv is no part of what was sent");
            else {
                st = compare_record(j, i, recvs[k], &part);
                if (whole->kind == ASSAY_PIECE_LOCAL)
                    memset(covered + at - mine, 1, (size_t)mine);
                else
                    mark_covered(covered, &whole->shard, &recvs[k]->shard);
            }
            parity_value_free(&part);
        }
    }
    if (st == ASSAY_OK && memchr(covered, 0, (size_t)count))
        st = parity_call_fail(j, 0, "reduce_scatter: no rank receives a part of the sum");
    free(covered);
    return st;
}

assay_status parity_call_scatter_by_segments(parity_call_judge *j)
{
    const int64_t count = parity_call_count(j->send[0]);
    for (int i = 0; i < j->k->n; i++) {
        if (!j->send[i] || !same_tensor(j->send[i], j->send[0]) || parity_call_count(j->send[i]) != count ||
            !parity_same_shard(&j->send[i]->shard, &j->send[0]->shard) ||
            parity_is_integer(j->send[i]->dtype))
            return parity_call_fail(j, i, "reduce_scatter: the ranks send different pieces");
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
static assay_status gather_for(const parity_call_judge *j, int member)
{
    const assay_trace_tensor *recv = j->recv[member];
    const int64_t count = parity_call_count(recv);
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
    st = memchr(covered, 0, (size_t)count)
             ? parity_call_fail(j, member, "all_gather: no rank sends a part of recv")
             : parity_call_compare_bytes(j, member, wanted);
done:
    free(covered);
    free(wanted);
    return st;
}

assay_status parity_call_gather_by_segments(parity_call_judge *j)
{
    for (int i = 0; i < j->k->n; i++)
        ASSAY_TRY(j->recv[i] && j->recv[i]->data ? gather_for(j, i)
                                                 : parity_call_fail(j, i, "the record has no slot recv"));
    return ASSAY_OK;
}

/* Whether some member has no or several slots of the name: pieces are then placed by their segments. */
bool parity_call_by_segments(const parity_call_judge *j, const char *name)
{
    for (int i = 0; i < j->k->n; i++) {
        const assay_trace_tensor *slots[ASSAY_MAX_SLOTS];
        if (j->k->members[i] && slots_of(j, i, name, slots) != 1)
            return true;
    }
    return false;
}
