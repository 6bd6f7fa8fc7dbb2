/* A wrong edge of the flow check in words: whose content was read instead, and where. */
#include "parity/checks/flow.h"

#include <stdlib.h>
#include <string.h>

/* Whether it is what the rank held before anything was written. */
static bool is_initial(const flow *f, const assay_trace_tensor *read)
{
    for (int64_t i = parity_map_get(f->seen, read->name); i >= 0; i = f->before[i])
        if (parity_same_shard(&f->records[i]->shard, &read->shard) &&
            strcmp(f->records[i]->hash, read->hash) == 0)
            return true;
    return false;
}

static void explain(const flow *f, const assay_trace_tensor *read, const assay_trace_tensor *written,
                    parity_result *r)
{
    const int64_t other = parity_map_get(f->content, read->hash);
    if (other >= 0 && strcmp(f->records[other]->name, read->name) == 0) {
        snprintf(r->diagnosis, sizeof r->diagnosis,
                 "stale: it is the value of step %lld, microbatch %lld, written by %s",
                 (long long)f->records[other]->step, (long long)f->records[other]->microbatch,
                 f->ops[other] ? f->ops[other]->instance : "nobody");
        return;
    }
    if (is_initial(f, read)) {
        snprintf(r->diagnosis, sizeof r->diagnosis, "stale: it is the initial value");
        return;
    }
    if (other >= 0) {
        snprintf(r->diagnosis, sizeof r->diagnosis, "it is the content of %s", f->records[other]->name);
        return;
    }
    double *found = NULL, *wanted = NULL;
    const int64_t count = assay_shard_count(&read->shard);
    if (flow_same_local_shape(read, written) &&
        parity_decode_all(read->data, count, read->dtype, &found) == ASSAY_OK &&
        parity_decode_all(written->data, count, written->dtype, &wanted) == ASSAY_OK)
        parity_diagnose(found, wanted, NULL, read->shard.local_shape, read->shard.ndim, read->dtype,
                        &f->scales, r->diagnosis);
    free(wanted);
    free(found);
}

static void put_end(parity_excerpt *e, parity_row_mark mark, const char *word, const assay_trace_op *op,
                    const char *slot, const assay_trace_tensor *t)
{
    if (!parity_excerpt_add(e, mark))
        return;
    parity_excerpt_cell(e, 0, "%s", word);
    if (op != NULL)
        parity_excerpt_cell(e, 1, "%s %s, %s", op->op, op->instance, slot);
    else
        parity_excerpt_cell(e, 1, "the first observation");
    parity_excerpt_cell(e, 2, "%s", t->name);
    parity_excerpt_cell(e, 3, "%lld", (long long)t->step);
    if (t->microbatch >= 0)
        parity_excerpt_cell(e, 4, "%lld", (long long)t->microbatch);
    parity_excerpt_cell(e, 5, "%.16s", t->hash);
}

static const char *slot_of(const assay_trace_op *op, const assay_trace_tensor *t)
{
    for (int i = 0; op != NULL && i < op->n_outputs; i++)
        if (op->outputs[i].tensor == t->id)
            return op->outputs[i].slot;
    return "";
}

/* The edge, and what has the content that was read; elements that differ as a picture. */
static assay_status draw_edge(const flow *f, const assay_trace_tensor *read, const assay_trace_op *reader,
                              int64_t number, parity_result *r)
{
    static const char *const heads[] = {"", "operation", "tensor", "step", "microbatch", "content", NULL};
    parity_gallery *g = parity_table_gallery(f->table);
    const assay_trace_tensor *written = f->records[number];
    const int64_t other = parity_map_get(f->content, read->hash);
    parity_excerpt *e = NULL;
    ASSAY_TRY(parity_gallery_excerpt(g, &e, &r->excerpt));
    if (e != NULL) {
        parity_excerpt_begin(e, heads, "What was written and what was read, on rank %d", f->rank);
        put_end(e, PARITY_ROW_SAME, "written by", f->ops[number], slot_of(f->ops[number], written), written);
        put_end(e, PARITY_ROW_WRONG, "read by", reader, r->tensor, read);
        if (other >= 0)
            put_end(e, PARITY_ROW_EXTRA, "it is what", f->ops[other],
                    slot_of(f->ops[other], f->records[other]), f->records[other]);
    }
    if (!flow_same_local_shape(read, written) || !read->data || !written->data)
        return ASSAY_OK;
    parity_result bits = *r;
    ASSAY_TRY(parity_compare_bits(read->data, written->data, read->shard.local_shape, read->shard.ndim,
                                  assay_shard_count(&read->shard), read->dtype, g, &bits));
    r->picture = bits.picture;
    return ASSAY_OK;
}

assay_status flow_tell(const flow *f, const assay_trace_op *reader, const assay_trace_tensor *read,
                       int64_t number, parity_result *r)
{
    explain(f, read, f->records[number], r);
    return draw_edge(f, read, reader, number, r);
}
