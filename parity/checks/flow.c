/* The flow check: every operation read exactly what its producers wrote.
 *
 * Edges are content hashes, and elements where several records have a part in one.  What an input must hold is what the operations
 * before it on the rank wrote under the same name in the same step and microbatch, the last write of each element; parameters,
 * gradients and optimizer states live longer, and elements of a parameter that no operation has written yet must be what they
 * were at first.  A gradient buffer enters a step as zeros, but for what a product overwrites: nobody reads that; and what a step's
 * sums over ranks begin with is not written by its backward any more.  Real values that nobody wrote are a failure.
 *
 * Whether these are the operations that the run had to execute is the plan's question: plan.c. */
#include "parity/checks/flow.h"

#include "core/base/text.h"
#include "core/files/checkpoint.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool flow_ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

bool flow_is_state(const flow *f, const char *name)
{
    const char *const *states, *last = strrchr(name, '.');
    bool state = flow_ends_with(name, ".main_grad") || flow_ends_with(name, ".main_param");
    for (int o = 0; o < ASSAY_OPTIMIZER_COUNT; o++)
        for (int k = assay_optimizer_states((assay_optimizer)o, &states) - 1; k >= 0; k--)
            state = state || (last && strcmp(last + 1, states[k]) == 0);
    return state || (f->spec && assay_spec_find(f->spec, name) != NULL);
}

/* Whether an accumulation begins here: in a step, or where the record says so in a microbatch. */
static bool begins(const flow *f, const assay_trace_tensor *read, const char *slot, int64_t producer,
                   int64_t step)
{
    if (flow_ends_with(read->name, ".main_grad.sum"))
        return read->microbatch < 0;
    return flow_ends_with(read->name, ".main_grad") && flow_ends_with(slot, "_in") &&
           (read->microbatch < 0 || producer < 0 || f->records[producer]->step != step);
}

static bool all_zero(const assay_trace_tensor *t)
{
    for (size_t i = 0; t->data && i < t->bytes; i++) {
        if (((const unsigned char *)t->data)[i] != 0)
            return false;
    }
    return t->data != NULL || t->bytes == 0;
}

/* --- judging one edge --------------------------------------------------------------------------------------- */

static assay_status fail_edge(const flow *f, const assay_trace_op *reader, const assay_trace_tensor *read,
                              int64_t number, parity_result *r)
{
    const assay_trace_tensor *written = f->records[number];
    const assay_trace_op *writer = f->ops[number];
    parity_result_fail(r, "%s is not what %s %s wrote in step %lld, microbatch %lld on rank %d", read->name,
                       writer ? writer->op : "the first observation of", writer ? writer->instance : "",
                       (long long)written->step, (long long)written->microbatch, f->rank);
    return flow_tell(f, reader, read, number, r);
}

/* Newest of the chain that is exactly this piece: all that can be said of records that hold hashes alone. */
static int64_t same_piece(const flow *f, int64_t head, const assay_trace_tensor *read)
{
    while (head >= 0 && !parity_same_shard(&f->records[head]->shard, &read->shard))
        head = f->before[head];
    return head;
}

static bool same_hash(const flow *f, int64_t number, const assay_trace_tensor *read)
{
    return number >= 0 && strcmp(f->records[number]->hash, read->hash) == 0;
}

/* Elements that nobody wrote: zeros of a gradient; of a state that only ever was read what it was at first; else nothing may
 * be read. */
static assay_status judge_rest(flow *f, const assay_trace_op *reader, flow_laid *l, parity_result *r)
{
    const assay_trace_tensor *read = l->read;
    const int64_t written = l->n, width = assay_dtype_bytes(read->dtype);
    if (flow_ends_with(read->name, ".main_grad")) {
        for (int64_t i = 0; read->data != NULL && i < l->count * width && r->verdict == PARITY_PASS; i++)
            if (!l->covered[i / width] && ((const char *)read->data)[i] != 0)
                parity_result_fail(r, "%s holds values that no operation of rank %d wrote: expected zeros",
                                   read->name, f->rank);
        return ASSAY_OK;
    }
    if (flow_is_state(f, read->name)) {
        const int64_t seen = parity_map_get(f->seen, read->name), piece = same_piece(f, seen, read);
        if (read->data != NULL)
            flow_lay(f, seen, l);
        else if (same_hash(f, piece, read))
            return ASSAY_OK;
        else
            l->wrong = piece;
        if (l->wrong >= 0)
            return fail_edge(f, reader, read, l->wrong, r);
    }
    if (l->n == l->count)
        return ASSAY_OK;
    if (flow_is_state(f, read->name) && written == 0)
        return flow_chain(f, f->seen, read, NULL);
    parity_result_fail(r, "%s: of %lld elements that were read no operation of rank %d wrote %lld",
                       read->name, (long long)l->count, f->rank, (long long)(l->count - l->n));
    return ASSAY_OK;
}

/* Element by element. */
static assay_status judge_laid(flow *f, const assay_trace_op *reader, const assay_trace_tensor *read,
                               int64_t head, parity_result *r)
{
    flow_laid l;
    ASSAY_TRY(flow_lay_begin(&l, read));
    flow_lay(f, head, &l);
    assay_status st = ASSAY_OK;
    if (l.wrong >= 0)
        st = fail_edge(f, reader, read, l.wrong, r);
    else if (l.outdated >= 0 && flow_is_state(f, read->name) && !flow_ends_with(read->name, ".main_grad"))
        parity_result_fail(r, "%s is what %s gathered, and %s %s of rank %d wrote a part of it after that",
                           read->name, f->ops[l.outdated]->op, f->ops[l.update]->op,
                           f->ops[l.update]->instance, f->rank);
    else if (l.n < l.count)
        st = judge_rest(f, reader, &l, r);
    flow_lay_end(&l);
    return st;
}

static assay_status judge_edge(flow *f, const assay_trace_op *reader, const assay_trace_tensor *read,
                               int64_t head, parity_result *r)
{
    const int64_t newest = flow_newest(f, head, read);
    if (newest < 0)
        return judge_laid(f, reader, read, -1, r);
    const assay_trace_tensor *written = f->records[newest];
    const bool same = parity_same_shard(&written->shard, &read->shard),
               whole = !flow_same_tensor(written, read) || flow_covers(written, read);
    if (same_hash(f, newest, read) && whole)
        return ASSAY_OK;
    if (read->data == NULL && same_hash(f, same_piece(f, newest, read), read))
        return ASSAY_OK;
    return same || read->data == NULL ? fail_edge(f, reader, read, newest, r)
                                      : judge_laid(f, reader, read, newest, r);
}

/* What an engine is given, or adds up on the host: token ids, positions, counts.  What total adds up was written number by
 * number; the plan holds the list to it. */
static bool may_be_leaf(const flow *f, const assay_trace_op *reader, const assay_trace_tensor *read)
{
    return parity_is_integer(read->dtype) || flow_is_state(f, read->name) || strcmp(reader->op, "total") == 0;
}

static assay_status judge_leaf(flow *f, const assay_trace_op *reader, const assay_trace_tensor *read,
                               parity_result *r)
{
    if (flow_is_state(f, read->name))
        return judge_laid(f, reader, read, -1, r);
    if (!may_be_leaf(f, reader, read))
        parity_result_fail(r, "no operation of rank %d wrote %s before it was read", f->rank, read->name);
    return ASSAY_OK;
}

/* What a product's gradient held before, where the product does not add to it. */
static bool is_unread(const assay_trace_op *op, const char *slot)
{
    return json_is_false(json_object_get(op->attrs, "accumulate")) && flow_ends_with(slot, "_in");
}

/* Sums over ranks take a step's gradient as it is: a backward that writes it afterwards comes too late. */
static assay_status take_gradient(flow *f, const assay_trace_op *op, const assay_trace_tensor *read)
{
    if (op->phase == ASSAY_PHASE_BACKWARD || !flow_ends_with(read->name, ".main_grad"))
        return ASSAY_OK;
    return flow_chain(f, f->taken, read, op);
}

static assay_status judge_late(flow *f, const assay_trace_op *op, const assay_trace_slot *slot,
                               const assay_trace_tensor *written)
{
    if (op->phase != ASSAY_PHASE_BACKWARD || !flow_ends_with(written->name, ".main_grad"))
        return ASSAY_OK;
    for (int64_t i = parity_map_get(f->taken, written->name); i >= 0; i = f->before[i]) {
        const assay_trace_op *reader = f->ops[i];
        if (reader->step != op->step || !flow_meets(f->records[i], written) ||
            (reader->microbatch >= 0 && reader->microbatch != op->microbatch))
            continue;
        parity_result r = f->base;
        parity_result_from_op(&r, op);
        r.count = 1;
        assay_copy_text(r.tensor, sizeof r.tensor, slot->slot);
        parity_result_fail(&r, "%s is written after %s %s has read it in step %lld on rank %d", written->name,
                           reader->op, reader->instance, (long long)op->step, f->rank);
        return parity_table_merge(f->table, &r);
    }
    return ASSAY_OK;
}

static assay_status judge_input(flow *f, const assay_trace_op *op, const assay_trace_slot *slot)
{
    if (is_unread(op, slot->slot))
        return ASSAY_OK;
    const assay_trace_tensor *read = assay_trace_tensor_by_id(f->trace, f->rank, slot->tensor);
    parity_result r = f->base;
    parity_result_from_op(&r, op);
    r.verdict = PARITY_PASS;
    r.count = 1;
    assay_copy_text(r.tensor, sizeof r.tensor, slot->slot);
    if (!read) {
        parity_result_fail(&r, "slot %s names no record", slot->slot);
        return parity_table_merge(f->table, &r);
    }
    const int64_t number = flow_head(f, read);
    if (begins(f, read, slot->slot, number, op->step) && read->data) {
        if (!all_zero(read))
            parity_result_fail(&r, "%s enters step %lld with values: expected zeros", read->name,
                               (long long)op->step);
    } else if (number >= 0) {
        ASSAY_TRY(judge_edge(f, op, read, number, &r));
    } else {
        ASSAY_TRY(judge_leaf(f, op, read, &r));
    }
    ASSAY_TRY(take_gradient(f, op, read));
    return parity_table_merge(f->table, &r);
}

static assay_status follow_rank(flow *f)
{
    for (int64_t i = 0; i < assay_trace_n_ops(f->trace, f->rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(f->trace, f->rank, i);
        for (int s = 0; s < op->n_inputs; s++)
            ASSAY_TRY(judge_input(f, op, &op->inputs[s]));
        for (int s = 0; s < op->n_outputs; s++) {
            const assay_trace_tensor *t = assay_trace_tensor_by_id(f->trace, f->rank, op->outputs[s].tensor);
            if (t)
                ASSAY_TRY(judge_late(f, op, &op->outputs[s], t));
            if (t)
                ASSAY_TRY(flow_register_output(f, op, t));
        }
    }
    return ASSAY_OK;
}

static void free_maps(flow *f)
{
    parity_map_destroy(f->last);
    parity_map_destroy(f->exact);
    parity_map_destroy(f->content);
    parity_map_destroy(f->seen);
    parity_map_destroy(f->taken);
    free(f->records);
    free(f->ops);
    free(f->before);
    f->before = NULL;
    f->last = f->exact = f->content = f->seen = f->taken = NULL;
    f->records = NULL;
    f->ops = NULL;
    f->n = f->capacity = 0;
}

static assay_status check_rank(flow *f, int rank)
{
    assay_status st = ASSAY_OK;
    f->rank = rank;
    ASSAY_TRY_GOTO(parity_map_create(&f->last), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&f->exact), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&f->content), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&f->seen), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&f->taken), st, done);
    ASSAY_TRY_GOTO(follow_rank(f), st, done);
done:
    free_maps(f);
    return st;
}

assay_status parity_check_flow(const assay_trace *t, const assay_model_spec *spec, parity_report *report)
{
    assay_status st = ASSAY_OK;
    flow f = {.trace = t, .spec = spec};
    parity_result_init(&f.base);
    f.base.check = PARITY_CHECK_FLOW;
    parity_result_from_trace(&f.base, t);
    parity_scales_from_trace(t, &f.scales);
    ASSAY_TRY_GOTO(parity_table_create(&f.table, PARITY_CHECK_FLOW), st, done);
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        ASSAY_TRY_GOTO(check_rank(&f, rank), st, done);
    ASSAY_TRY_GOTO(parity_table_flush_ordered(f.table, NULL, NULL, report), st, done);
done:
    parity_table_destroy(f.table);
    return st;
}
