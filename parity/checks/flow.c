/* The flow check: every operation read exactly what its producer wrote.
 *
 * Edges are content hashes.  The producer of an input is the last operation before it on the rank that wrote
 * the same name in the same step and microbatch; parameters, gradients and optimizer states live longer, so
 * that theirs is the last writer at all, and a parameter that no operation has written yet must be what it
 * was at first.  A gradient buffer enters a step as zeros, but for what a product overwrites: nobody reads that.  Real values that nobody wrote are a failure.
 *
 * Whether these are the operations that the run had to execute is the plan's question: plan.c. */
#include "parity/judge/judge.h"

#include "core/base/text.h"
#include "core/files/checkpoint.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_KEY = ASSAY_NAME + 512 };

typedef struct flow {
    const assay_trace *trace;
    const assay_model_spec *spec;
    int rank;
    parity_map *last;    /* name -> number of its last writer */
    parity_map *exact;   /* name, step, microbatch -> number of its last writer */
    parity_map *content; /* hash -> number of the first record with that content that was written */
    parity_map *initial; /* name -> number of the first observation of a parameter */
    int64_t n, capacity;
    const assay_trace_tensor **records; /* what the numbers mean */
    const assay_trace_op **writers;     /* NULL: an observation, nobody's output */
    int64_t *before;                    /* number of the writer before it of the same place, -1: none */
    parity_scales scales;
    parity_result base;
    parity_table *table;
} flow;

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Whether the tensor lives longer than a microbatch. */
static bool is_state(const flow *f, const char *name)
{
    const char *const *states, *last = strrchr(name, '.');
    bool state = ends_with(name, ".main_grad") || ends_with(name, ".main_param");
    for (int o = 0; o < ASSAY_OPTIMIZER_COUNT; o++)
        for (int k = assay_optimizer_states((assay_optimizer)o, &states) - 1; k >= 0; k--)
            state = state || (last && strcmp(last + 1, states[k]) == 0);
    return state || (f->spec && assay_spec_find(f->spec, name) != NULL);
}

/* A gradient on its way through several sums; a rank may hold several pieces of it. */
static bool is_part(const char *name)
{
    return ends_with(name, ".main_grad.shard") || ends_with(name, ".main_grad.sum") ||
           ends_with(name, ".main_grad.dp_sum");
}

/* Whether an accumulation begins here: in a step, or where the record says so in a microbatch. */
static bool begins(const flow *f, const assay_trace_tensor *read, const char *slot, int64_t producer,
                   int64_t step)
{
    if (ends_with(read->name, ".main_grad.sum"))
        return read->microbatch < 0;
    return ends_with(read->name, ".main_grad") && ends_with(slot, "_in") &&
           (read->microbatch < 0 || producer < 0 || f->records[producer]->step != step);
}

static assay_status remember(flow *f, const assay_trace_tensor *record, const assay_trace_op *writer,
                             int64_t *number)
{
    if (f->n == f->capacity) {
        const int64_t capacity = f->capacity ? 2 * f->capacity : 1024;
        const assay_trace_tensor **records = realloc(f->records, (size_t)capacity * sizeof *records);
        ASSAY_CHECK(records, ASSAY_OUT_OF_MEMORY, "%lld records", (long long)capacity);
        f->records = records;
        const assay_trace_op **writers = realloc(f->writers, (size_t)capacity * sizeof *writers);
        ASSAY_CHECK(writers, ASSAY_OUT_OF_MEMORY, "%lld records", (long long)capacity);
        f->writers = writers;
        int64_t *before = realloc(f->before, (size_t)capacity * sizeof *before);
        ASSAY_CHECK(before, ASSAY_OUT_OF_MEMORY, "%lld records", (long long)capacity);
        f->before = before;
        f->capacity = capacity;
    }
    f->records[f->n] = record;
    f->writers[f->n] = writer;
    f->before[f->n] = -1;
    *number = f->n++;
    return ASSAY_OK;
}

/* Name and place of a piece: a rank may hold several pieces of one state. */
static void piece_key(char out[PIECE_KEY], const assay_trace_tensor *t)
{
    parity_key k = parity_key_begin(out, PIECE_KEY);
    parity_key_text(&k, t->name);
    for (int d = 0; d < t->shard.ndim; d++) {
        for (int i = 0; i < t->shard.n_segments[d]; i++) {
            parity_key_number(&k, d);
            parity_key_number(&k, t->shard.segments[d][i].start);
            parity_key_number(&k, t->shard.segments[d][i].length);
        }
    }
}

static void place_key(char *out, size_t capacity, const char *name, int64_t step, int64_t microbatch)
{
    parity_key k = parity_key_begin(out, capacity);
    parity_key_text(&k, name);
    parity_key_number(&k, step);
    parity_key_number(&k, microbatch);
}

static assay_status register_output(flow *f, const assay_trace_op *op, const assay_trace_tensor *record)
{
    char key[ASSAY_NAME + 64], piece[PIECE_KEY];
    int64_t number;
    ASSAY_TRY(remember(f, record, op, &number));
    ASSAY_TRY(parity_map_put(f->last, record->name, number));
    piece_key(piece, record);
    ASSAY_TRY(parity_map_put(f->last, piece, number));
    place_key(key, sizeof key, record->name, record->step, record->microbatch);
    if (!is_state(f, record->name) && !is_part(record->name))
        f->before[number] = parity_map_get(f->exact, key);
    ASSAY_TRY(parity_map_put(f->exact, key, number));
    if (parity_map_get(f->content, record->hash) < 0)
        ASSAY_TRY(parity_map_put(f->content, record->hash, number));
    return ASSAY_OK;
}

/* Whether the written piece holds every element of the read one. */
static bool covers(const assay_trace_tensor *written, const assay_trace_tensor *read)
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

/* Whether no element of the written piece is one of the read one: two rectangles of a state. */
static bool apart(const assay_trace_tensor *written, const assay_trace_tensor *read)
{
    bool meet = true;
    if (written->kind != ASSAY_PIECE_SHARD || read->kind != ASSAY_PIECE_SHARD ||
        written->shard.ndim != read->shard.ndim)
        return false;
    for (int d = 0; meet && d < read->shard.ndim; d++)
        meet = segments_meet(&written->shard, &read->shard, d);
    return !meet;
}

/* Number of the producer of an input, -1 when nobody wrote it. */
static int64_t producer_of(const flow *f, const assay_trace_tensor *read, const assay_trace_op *op)
{
    char key[ASSAY_NAME + 64];
    if (is_state(f, read->name) || is_part(read->name)) {
        /* The last writer of exactly this piece, unless the whole was written after it. */
        char piece[PIECE_KEY];
        piece_key(piece, read);
        const int64_t same = parity_map_get(f->last, piece), any = parity_map_get(f->last, read->name);
        const bool newer = any > same && covers(f->records[any], read);
        if (same >= 0 && !newer)
            return same;
        return any >= 0 && assay_shard_count(&read->shard) > 0 && apart(f->records[any], read) ? -1 : any;
    }
    const int64_t places[4][2] = {{read->step, read->microbatch},
                                  {op->step, op->microbatch},
                                  {op->step, -1},
                                  {0, -1}}; /* tables made once */
    for (int i = 0; i < 4; i++) {
        place_key(key, sizeof key, read->name, places[i][0], places[i][1]);
        const int64_t number = parity_map_get(f->exact, key);
        if (number >= 0)
            return number;
    }
    return -1;
}

/* --- judging one edge --------------------------------------------------------------------------------------- */

static bool same_local_shape(const assay_trace_tensor *a, const assay_trace_tensor *b)
{
    bool same = a->dtype == b->dtype && a->shard.ndim == b->shard.ndim;
    for (int d = 0; same && d < a->shard.ndim; d++)
        same = a->shard.local_shape[d] == b->shard.local_shape[d];
    return same;
}

/* Whether two records can be pieces of one tensor, or of this rank's part of one sum. */
static bool same_tensor(const assay_trace_tensor *a, const assay_trace_tensor *b)
{
    bool same = a->dtype == b->dtype && a->shard.ndim == b->shard.ndim && a->kind == b->kind &&
                (a->kind == ASSAY_PIECE_SHARD ||
                 (a->kind == ASSAY_PIECE_PARTIAL && strcmp(a->partial_group, b->partial_group) == 0));
    for (int d = 0; same && d < a->shard.ndim; d++)
        same = a->shard.global_shape[d] == b->shard.global_shape[d];
    return same;
}

/* Puts what record `number` and those before it wrote over `copy`, the oldest first; *n: elements of `read` that were. */
static bool write_over(const flow *f, int64_t number, const assay_trace_tensor *read, void *copy,
                       unsigned char *covered, int64_t *n)
{
    int64_t oldest = number, newer;
    bool all = true;
    while (f->before[oldest] >= 0)
        oldest = f->before[oldest];
    for (int64_t i = oldest; all; i = newer) {
        const assay_trace_tensor *w = f->records[i];
        all = same_tensor(w, read) && w->data != NULL;
        if (all)
            (void)assay_shard_copy(copy, &read->shard, w->data, &w->shard, assay_dtype_bytes(read->dtype),
                                   covered, false, NULL);
        if (i == number)
            break;
        for (newer = number; f->before[newer] != i; newer = f->before[newer])
            continue;
    }
    *n = 0;
    for (int64_t i = 0; i < assay_shard_count(&read->shard); i++)
        *n += covered[i];
    return all;
}

/* Whether the elements that were written are equal: a rank may read less than it wrote, or more than it wrote itself; what
 * several operations wrote part by part must be all of it. */
static assay_status written_part_equal(const flow *f, int64_t number, const assay_trace_tensor *read,
                                       bool *equal)
{
    const int64_t count = assay_shard_count(&read->shard);
    int64_t n = 0;
    if (!read->data)
        return ASSAY_OK;
    void *copy = malloc(read->bytes + 1);
    unsigned char *covered = calloc((size_t)count + 1, 1);
    if (!copy || !covered) {
        free(copy);
        free(covered);
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s", read->name);
    }
    memcpy(copy, read->data, read->bytes);
    *equal = write_over(f, number, read, copy, covered, &n) && memcmp(copy, read->data, read->bytes) == 0 &&
             (n == count || (f->before[number] < 0 && !same_local_shape(read, f->records[number])));
    free(copy);
    free(covered);
    return ASSAY_OK;
}

/* Says what the wrong content is: an older value of the same tensor, or another tensor. */
static void explain(const flow *f, const assay_trace_tensor *read, const assay_trace_tensor *written,
                    parity_result *r)
{
    const int64_t other = parity_map_get(f->content, read->hash);
    if (other >= 0 && strcmp(f->records[other]->name, read->name) == 0) {
        snprintf(r->diagnosis, sizeof r->diagnosis,
                 "stale: it is the value of step %lld, microbatch %lld, written by %s",
                 (long long)f->records[other]->step, (long long)f->records[other]->microbatch,
                 f->writers[other] ? f->writers[other]->instance : "nobody");
        return;
    }
    char piece[PIECE_KEY];
    piece_key(piece, read);
    const int64_t first = parity_map_get(f->initial, piece);
    if (first >= 0 && strcmp(f->records[first]->hash, read->hash) == 0) {
        snprintf(r->diagnosis, sizeof r->diagnosis, "stale: it is the initial value");
        return;
    }
    if (other >= 0) {
        snprintf(r->diagnosis, sizeof r->diagnosis, "it is the content of %s", f->records[other]->name);
        return;
    }
    double *found = NULL, *wanted = NULL;
    const int64_t count = assay_shard_count(&read->shard);
    if (same_local_shape(read, written) &&
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
        put_end(e, PARITY_ROW_SAME, "written by", f->writers[number], slot_of(f->writers[number], written),
                written);
        put_end(e, PARITY_ROW_WRONG, "read by", reader, r->tensor, read);
        if (other >= 0)
            put_end(e, PARITY_ROW_EXTRA, "it is what", f->writers[other],
                    slot_of(f->writers[other], f->records[other]), f->records[other]);
    }
    if (!same_local_shape(read, written) || !read->data || !written->data)
        return ASSAY_OK;
    parity_result bits = *r;
    ASSAY_TRY(parity_compare_bits(read->data, written->data, read->shard.local_shape, read->shard.ndim,
                                  assay_shard_count(&read->shard), read->dtype, g, &bits));
    r->picture = bits.picture;
    return ASSAY_OK;
}

static assay_status judge_edge(const flow *f, const assay_trace_op *reader, const assay_trace_tensor *read,
                               int64_t number, parity_result *r)
{
    const assay_trace_tensor *written = f->records[number];
    const assay_trace_op *writer = f->writers[number];
    bool equal = strcmp(read->hash, written->hash) == 0;
    if (!equal && !parity_same_shard(&written->shard, &read->shard))
        ASSAY_TRY(written_part_equal(f, number, read, &equal));
    if (equal)
        return ASSAY_OK;
    parity_result_fail(r, "%s is not what %s %s wrote in step %lld, microbatch %lld on rank %d", read->name,
                       writer ? writer->op : "the first observation of", writer ? writer->instance : "",
                       (long long)written->step, (long long)written->microbatch, f->rank);
    explain(f, read, written, r);
    return draw_edge(f, read, reader, number, r);
}

static bool all_zero(const assay_trace_tensor *t)
{
    for (size_t i = 0; t->data && i < t->bytes; i++) {
        if (((const unsigned char *)t->data)[i] != 0)
            return false;
    }
    return t->data != NULL || t->bytes == 0;
}

/* What an engine is given, or adds up on the host: token ids, positions, counts, one F64 number.  What total adds up was written
 * number by number; the plan holds the list to it. */
static bool may_be_leaf(const flow *f, const assay_trace_op *reader, const assay_trace_tensor *read)
{
    return parity_is_integer(read->dtype) || is_state(f, read->name) || strcmp(reader->op, "total") == 0 ||
           (read->dtype == ASSAY_F64 && assay_shard_count(&read->shard) == 1);
}

/* A parameter or state that no operation has written: it must stay what it was at first. */
static assay_status judge_leaf(flow *f, const assay_trace_op *reader, const assay_trace_tensor *read,
                               parity_result *r)
{
    if (!may_be_leaf(f, reader, read)) {
        parity_result_fail(r, "no operation of rank %d wrote %s before it was read", f->rank, read->name);
        return ASSAY_OK;
    }
    if (!is_state(f, read->name) || ends_with(read->name, ".main_grad"))
        return ASSAY_OK;
    char piece[PIECE_KEY];
    piece_key(piece, read);
    int64_t number = parity_map_get(f->initial, piece);
    if (number >= 0)
        return judge_edge(f, reader, read, number, r);
    ASSAY_TRY(remember(f, read, NULL, &number));
    return parity_map_put(f->initial, piece, number);
}

/* What a product's gradient held before, where the product does not add to it. */
static bool is_unread(const assay_trace_op *op, const char *slot)
{
    return json_is_false(json_object_get(op->attrs, "accumulate")) && ends_with(slot, "_in");
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
    const int64_t number = producer_of(f, read, op);
    if (begins(f, read, slot->slot, number, op->step) && read->data) {
        if (!all_zero(read))
            parity_result_fail(&r, "%s enters step %lld with values: expected zeros", read->name,
                               (long long)op->step);
    } else if (number >= 0) {
        ASSAY_TRY(judge_edge(f, op, read, number, &r));
    } else {
        ASSAY_TRY(judge_leaf(f, op, read, &r));
    }
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
                ASSAY_TRY(register_output(f, op, t));
        }
    }
    return ASSAY_OK;
}

static void free_maps(flow *f)
{
    parity_map_destroy(f->last);
    parity_map_destroy(f->exact);
    parity_map_destroy(f->content);
    parity_map_destroy(f->initial);
    free(f->records);
    free(f->writers);
    free(f->before);
    f->before = NULL;
    f->last = f->exact = f->content = f->initial = NULL;
    f->records = NULL;
    f->writers = NULL;
    f->n = f->capacity = 0;
}

static assay_status check_rank(flow *f, int rank)
{
    assay_status st = ASSAY_OK;
    f->rank = rank;
    ASSAY_TRY_GOTO(parity_map_create(&f->last), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&f->exact), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&f->content), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&f->initial), st, done);
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
