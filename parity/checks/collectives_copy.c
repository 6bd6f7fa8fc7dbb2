/* Collectives that copy: all_gather, broadcast, all_to_all. */
#include "parity/checks/collectives.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of all members' pieces one after the other. */
static assay_status concatenate(const parity_call_judge *j, unsigned char **out, int64_t *count)
{
    int64_t total = 0;
    for (int i = 0; i < j->k->n; i++)
        total += parity_call_count(j->send[i]);
    const size_t width = (size_t)assay_dtype_bytes(j->send[0]->dtype);
    *out = malloc((size_t)total * width + 1);
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "%lld gathered elements", (long long)total);
    size_t at = 0;
    for (int i = 0; i < j->k->n; i++) {
        const size_t bytes = (size_t)parity_call_count(j->send[i]) * width;
        if (bytes > 0)
            memcpy(*out + at, j->send[i]->data, bytes);
        at += bytes;
    }
    *count = total;
    return ASSAY_OK;
}

assay_status parity_call_all_gather(const parity_call_judge *j)
{
    unsigned char *whole = NULL;
    int64_t count = 0;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(concatenate(j, &whole, &count));
    for (int i = 0; i < j->k->n && st == ASSAY_OK; i++)
        st = parity_call_count(j->recv[i]) == count
                 ? parity_call_compare_bytes(j, i, whole)
                 : parity_call_fail(j, i, "all_gather: recv does not have the size of all pieces together");
    free(whole);
    return st;
}

assay_status parity_call_broadcast(const parity_call_judge *j)
{
    const json_t *value = json_object_get(j->k->members[0]->attrs, "root");
    const int64_t root = json_is_integer(value) ? json_integer_value(value) : 0;
    if (root < 0 || root >= j->k->n)
        return parity_call_fail(j, 0, "broadcast: root is not a rank of the group");
    for (int i = 0; i < j->k->n; i++) {
        ASSAY_TRY(parity_call_count(j->recv[i]) == parity_call_count(j->send[root])
                      ? parity_call_compare_bytes(j, i, j->send[root]->data)
                      : parity_call_fail(j, i, "broadcast: recv does not have the size of the root's send"));
    }
    return ASSAY_OK;
}

/* Rows of `op`'s list `key` for member `index`: a JSON array, or an I64 input slot; -1 when absent. */
static int64_t listed_rows(const parity_call_judge *j, const assay_trace_op *op, const char *key, int index)
{
    const json_t *list = json_object_get(op->attrs, key);
    if (json_is_array(list)) {
        const json_t *entry = json_array_get(list, (size_t)index);
        return json_is_integer(entry) && json_integer_value(entry) >= 0 ? json_integer_value(entry) : -1;
    }
    const assay_trace_tensor *t = assay_trace_op_tensor(j->trace, op, key);
    if (!t || t->dtype != ASSAY_I64 || !t->data || index >= parity_call_count(t))
        return -1;
    return parity_decode_integer(t->data, index, ASSAY_I64);
}

/* Elements that member `from` sends to member `to` in an all_to_all; -1: nobody says and it is not even. */
static int64_t exchanged(const parity_call_judge *j, int from, int to)
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
static assay_status exchange_for(const parity_call_judge *j, int to, unsigned char *wanted,
                                 const char **problem)
{
    const size_t width = (size_t)assay_dtype_bytes(j->recv[to]->dtype);
    int64_t filled = 0;
    *problem = NULL;
    for (int from = 0; from < j->k->n; from++) {
        int64_t before = 0, length = 0;
        for (int k = 0; k <= to; k++) {
            before += length;
            length = exchanged(j, from, k);
            if (length < 0 || length > parity_call_count(j->send[from]) - before) {
                *problem = "all_to_all: the counts do not fit the send buffers";
                return ASSAY_OK;
            }
        }
        if (filled + length > parity_call_count(j->recv[to])) {
            *problem = "all_to_all: more is sent to the rank than its recv holds";
            return ASSAY_OK;
        }
        if (length > 0)
            memcpy(wanted + (size_t)filled * width,
                   (const char *)j->send[from]->data + (size_t)before * width, (size_t)length * width);
        filled += length;
    }
    if (filled != parity_call_count(j->recv[to]))
        *problem = "all_to_all: less is sent to the rank than its recv holds";
    return ASSAY_OK;
}

assay_status parity_call_all_to_all(const parity_call_judge *j)
{
    for (int to = 0; to < j->k->n; to++) {
        const char *problem;
        unsigned char *wanted = calloc(
            1, (size_t)parity_call_count(j->recv[to]) * (size_t)assay_dtype_bytes(j->recv[to]->dtype) + 1);
        ASSAY_CHECK(wanted, ASSAY_OUT_OF_MEMORY, "all_to_all");
        assay_status st = exchange_for(j, to, wanted, &problem);
        if (st == ASSAY_OK)
            st = problem ? parity_call_fail(j, to, problem) : parity_call_compare_bytes(j, to, wanted);
        free(wanted);
        ASSAY_TRY(st);
    }
    return ASSAY_OK;
}
