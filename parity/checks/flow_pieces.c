/* Who wrote which elements of a tensor on a rank: the flow check's memory. */
#include "parity/checks/flow.h"

#include <stdlib.h>
#include <string.h>

/* A gradient on its way through several sums; a rank may hold several pieces of it. */
static bool is_part(const char *name)
{
    return flow_ends_with(name, ".main_grad.shard") || flow_ends_with(name, ".main_grad.sum") ||
           flow_ends_with(name, ".main_grad.dp_sum");
}

static assay_status remember(flow *f, const assay_trace_tensor *record, const assay_trace_op *op,
                             int64_t *number)
{
    if (f->n == f->capacity) {
        const int64_t capacity = f->capacity ? 2 * f->capacity : 1024;
        const assay_trace_tensor **records = realloc(f->records, (size_t)capacity * sizeof *records);
        ASSAY_CHECK(records, ASSAY_OUT_OF_MEMORY, "%lld records", (long long)capacity);
        f->records = records;
        const assay_trace_op **ops = realloc(f->ops, (size_t)capacity * sizeof *ops);
        ASSAY_CHECK(ops, ASSAY_OUT_OF_MEMORY, "%lld records", (long long)capacity);
        f->ops = ops;
        int64_t *before = realloc(f->before, (size_t)capacity * sizeof *before);
        ASSAY_CHECK(before, ASSAY_OUT_OF_MEMORY, "%lld records", (long long)capacity);
        f->before = before;
        f->capacity = capacity;
    }
    f->records[f->n] = record;
    f->ops[f->n] = op;
    f->before[f->n] = -1;
    *number = f->n++;
    return ASSAY_OK;
}

static void place_key(char *out, size_t capacity, const char *name, int64_t step, int64_t microbatch)
{
    parity_key k = parity_key_begin(out, capacity);
    parity_key_text(&k, name);
    parity_key_number(&k, step);
    parity_key_number(&k, microbatch);
}

bool flow_covers(const assay_trace_tensor *written, const assay_trace_tensor *read)
{
    bool all = written->shard.ndim == read->shard.ndim;
    for (int d = 0; all && d < read->shard.ndim; d++)
        all = written->shard.local_shape[d] == written->shard.global_shape[d] ||
              (written->shard.n_segments[d] == read->shard.n_segments[d] &&
               memcmp(written->shard.segments[d], read->shard.segments[d],
                      (size_t)read->shard.n_segments[d] * sizeof(assay_segment)) == 0);
    return all;
}

static bool segments_meet(const assay_shard *a, const assay_shard *b, int d)
{
    for (int i = 0; i < a->n_segments[d]; i++)
        for (int k = 0; k < b->n_segments[d]; k++)
            if (a->segments[d][i].start < b->segments[d][k].start + b->segments[d][k].length &&
                b->segments[d][k].start < a->segments[d][i].start + a->segments[d][i].length)
                return true;
    return false;
}

/* Pieces of other kinds, and of other numbers of dimensions, are taken to. */
bool flow_meets(const assay_trace_tensor *written, const assay_trace_tensor *read)
{
    bool meet = true;
    if (written->kind != read->kind || written->shard.ndim != read->shard.ndim ||
        (read->kind != ASSAY_PIECE_SHARD && read->kind != ASSAY_PIECE_PARTIAL))
        return true;
    for (int d = 0; meet && d < read->shard.ndim; d++)
        meet = segments_meet(&written->shard, &read->shard, d);
    return meet;
}

bool flow_same_local_shape(const assay_trace_tensor *a, const assay_trace_tensor *b)
{
    bool same = a->dtype == b->dtype && a->shard.ndim == b->shard.ndim;
    for (int d = 0; same && d < a->shard.ndim; d++)
        same = a->shard.local_shape[d] == b->shard.local_shape[d];
    return same;
}

bool flow_same_tensor(const assay_trace_tensor *a, const assay_trace_tensor *b)
{
    bool same = a->dtype == b->dtype && a->shard.ndim == b->shard.ndim && a->kind == b->kind &&
                (a->kind == ASSAY_PIECE_SHARD ||
                 (a->kind == ASSAY_PIECE_PARTIAL && strcmp(a->partial_group, b->partial_group) == 0));
    for (int d = 0; same && d < a->shard.ndim; d++)
        same = a->shard.global_shape[d] == b->shard.global_shape[d];
    return same;
}

/* Nothing of what lies wholly under the newest record is ever read again. */
static void forget_covered(flow *f, int64_t newest)
{
    int64_t *link = &f->before[newest];
    while (*link >= 0) {
        if (flow_covers(f->records[newest], f->records[*link]))
            *link = f->before[*link];
        else
            link = &f->before[*link];
    }
}

assay_status flow_chain(flow *f, parity_map *heads, const assay_trace_tensor *record,
                        const assay_trace_op *op)
{
    const int64_t head = parity_map_get(heads, record->name);
    int64_t number;
    ASSAY_TRY(remember(f, record, op, &number));
    f->before[number] = head;
    forget_covered(f, number);
    return parity_map_put(heads, record->name, number);
}

/* A gradient begins anew in every step, and with another type or kind it is another tensor. */
static assay_status chain_write(flow *f, const assay_trace_op *op, const assay_trace_tensor *record)
{
    const int64_t head = parity_map_get(f->last, record->name);
    const bool gradient = is_part(record->name) || flow_ends_with(record->name, ".main_grad");
    ASSAY_TRY(flow_chain(f, f->last, record, op));
    if (head >= 0 &&
        (!flow_same_tensor(f->records[head], record) || (gradient && f->records[head]->step != record->step)))
        f->before[f->n - 1] = -1;
    return ASSAY_OK;
}

assay_status flow_register_output(flow *f, const assay_trace_op *op, const assay_trace_tensor *record)
{
    char key[ASSAY_NAME + 64];
    int64_t number;
    if (flow_is_state(f, record->name) || is_part(record->name)) {
        ASSAY_TRY(chain_write(f, op, record));
        number = f->n - 1;
    } else {
        place_key(key, sizeof key, record->name, record->step, record->microbatch);
        ASSAY_TRY(remember(f, record, op, &number));
        f->before[number] = parity_map_get(f->exact, key);
        ASSAY_TRY(parity_map_put(f->exact, key, number));
    }
    if (parity_map_get(f->content, record->hash) < 0)
        ASSAY_TRY(parity_map_put(f->content, record->hash, number));
    return ASSAY_OK;
}

int64_t flow_head(const flow *f, const assay_trace_tensor *read)
{
    char key[ASSAY_NAME + 64];
    if (flow_is_state(f, read->name) || is_part(read->name))
        return parity_map_get(f->last, read->name);
    place_key(key, sizeof key, read->name, read->step, read->microbatch);
    return parity_map_get(f->exact, key);
}

int64_t flow_newest(const flow *f, int64_t head, const assay_trace_tensor *read)
{
    while (head >= 0 && !flow_meets(f->records[head], read))
        head = f->before[head];
    return head;
}

assay_status flow_lay_begin(flow_laid *l, const assay_trace_tensor *read)
{
    *l = (flow_laid){
        .read = read, .count = assay_shard_count(&read->shard), .wrong = -1, .update = -1, .outdated = -1};
    l->data = malloc(read->bytes + 1);
    l->covered = calloc((size_t)l->count + 1, 1);
    if (l->data == NULL || l->covered == NULL) {
        flow_lay_end(l);
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s", read->name);
    }
    return ASSAY_OK;
}

void flow_lay_end(flow_laid *l)
{
    free(l->data);
    free(l->covered);
    l->data = NULL;
    l->covered = NULL;
}

/* Whether what is laid is what was read. */
static bool laid_equal(flow_laid *l)
{
    const size_t width = (size_t)assay_dtype_bytes(l->read->dtype);
    const char *read = l->read->data;
    bool equal = true;
    l->n = 0;
    for (int64_t i = 0; i < l->count; i++) {
        l->n += l->covered[i];
        equal = equal &&
                (!l->covered[i] || memcmp(l->data + (size_t)i * width, read + (size_t)i * width, width) == 0);
    }
    return equal;
}

/* What ranks gathered before one of them wrote a part of it anew is of before, whoever's the other parts are. */
static void note_part(const flow *f, int64_t i, flow_laid *l)
{
    const bool collective = f->ops[i] != NULL && parity_is_collective(f->ops[i]->op);
    if (collective && l->update >= 0 && l->outdated < 0)
        l->outdated = i;
    if (!collective && f->ops[i] != NULL && l->update < 0)
        l->update = i;
}

void flow_lay(const flow *f, int64_t head, flow_laid *l)
{
    for (int64_t i = head; i >= 0 && l->n < l->count && l->wrong < 0; i = f->before[i]) {
        const assay_trace_tensor *w = f->records[i];
        if (!flow_meets(w, l->read))
            continue;
        bool equal = flow_same_tensor(w, l->read) && w->data != NULL && l->read->data != NULL;
        if (equal) /* what newer records laid stays: it would be compared, and nobody asks for that */
            (void)assay_shard_copy(l->data, &l->read->shard, w->data, &w->shard,
                                   assay_dtype_bytes(l->read->dtype), l->covered, true, NULL);
        const int64_t before = l->n;
        equal = equal && laid_equal(l);
        if (l->n > before)
            note_part(f, i, l);
        if (!equal)
            l->wrong = i;
    }
}
