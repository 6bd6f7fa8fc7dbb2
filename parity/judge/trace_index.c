/* Index of a trace: which rank holds what of every (name, phase, step, microbatch). */
#include "parity/judge/judge.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_TEXT = ASSAY_NAME + 80 };

static void entry_key(char out[KEY_TEXT], const char *name, assay_phase phase, int64_t step,
                      int64_t microbatch)
{
    parity_key k = parity_key_begin(out, KEY_TEXT);
    parity_key_text(&k, name);
    parity_key_number(&k, (int64_t)phase);
    parity_key_number(&k, step);
    parity_key_number(&k, microbatch);
}

static int compare_ids(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Ascending ids of the rank's records that are outputs of operations. */
static assay_status output_ids(const assay_trace *t, int rank, int64_t **ids, int64_t *n)
{
    int64_t total = 0;
    for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++)
        total += assay_trace_op_at(t, rank, i)->n_outputs;
    *ids = malloc(((size_t)total + 1) * sizeof **ids);
    ASSAY_CHECK(*ids, ASSAY_OUT_OF_MEMORY, "rank %d: %lld outputs", rank, (long long)total);
    *n = 0;
    for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, rank, i);
        for (int s = 0; s < op->n_outputs; s++)
            (*ids)[(*n)++] = op->outputs[s].tensor;
    }
    qsort(*ids, (size_t)*n, sizeof **ids, compare_ids);
    return ASSAY_OK;
}

static assay_status entry_of(parity_index *x, const assay_trace_tensor *record, int64_t *out)
{
    char key[KEY_TEXT];
    entry_key(key, record->name, record->phase, record->step, record->microbatch);
    *out = parity_map_get(x->map, key);
    if (*out >= 0)
        return ASSAY_OK;
    if (x->n == x->capacity) {
        const int64_t capacity = x->capacity ? 2 * x->capacity : 1024;
        parity_entry *entries = realloc(x->entries, (size_t)capacity * sizeof *entries);
        ASSAY_CHECK(entries, ASSAY_OUT_OF_MEMORY, "index of %lld tensors", (long long)capacity);
        x->entries = entries;
        x->capacity = capacity;
    }
    ASSAY_TRY(parity_map_put(x->map, key, x->n));
    x->entries[x->n] = (parity_entry){
        .name = record->name, .phase = record->phase, .step = record->step, .microbatch = record->microbatch};
    *out = x->n++;
    return ASSAY_OK;
}

bool parity_same_shard(const assay_shard *a, const assay_shard *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++) {
        if (a->global_shape[d] != b->global_shape[d] || a->local_shape[d] != b->local_shape[d] ||
            a->n_segments[d] != b->n_segments[d])
            return false;
        for (int i = 0; i < a->n_segments[d]; i++) {
            if (a->segments[d][i].start != b->segments[d][i].start ||
                a->segments[d][i].length != b->segments[d][i].length)
                return false;
        }
    }
    return true;
}

static bool dimensions_meet(const assay_shard *a, const assay_shard *b, int d)
{
    for (int i = 0; i < a->n_segments[d]; i++) {
        for (int j = 0; j < b->n_segments[d]; j++) {
            const assay_segment x = a->segments[d][i], y = b->segments[d][j];
            if (x.start < y.start + y.length && y.start < x.start + x.length)
                return true;
        }
    }
    return false;
}

/* Whether two pieces of one global tensor have an element in common. */
static bool shards_meet(const assay_shard *a, const assay_shard *b)
{
    bool meet = a->ndim == b->ndim;
    for (int d = 0; meet && d < a->ndim; d++)
        meet = a->global_shape[d] == b->global_shape[d] && dimensions_meet(a, b, d);
    return meet;
}

static assay_status append_piece(parity_entry *e, const parity_piece *piece)
{
    if (e->n == e->capacity) {
        const int64_t capacity = e->capacity ? 2 * e->capacity : 1;
        parity_piece *pieces = realloc(e->pieces, (size_t)capacity * sizeof *pieces);
        ASSAY_CHECK(pieces, ASSAY_OUT_OF_MEMORY, "%s: %lld pieces", e->name, (long long)capacity);
        e->pieces = pieces;
        e->capacity = capacity;
    }
    e->pieces[e->n++] = *piece;
    return ASSAY_OK;
}

/* Adds an observation of a rank.  Outputs replace inputs, later replaces earlier of the same sort; a rank may
 * hold several disjoint pieces, and an output takes the place of every piece that it meets (a whole parameter
 * that was gathered from pieces). */
static assay_status entry_add(parity_entry *e, const parity_piece *piece, bool rank_has_ops, bool foreign)
{
    const int rank = piece->record->rank;
    int64_t first = e->n, kept;
    while (first > 0 && e->pieces[first - 1].record->rank == rank)
        first--;
    parity_piece added = *piece;
    kept = first;
    for (int64_t i = first; i < e->n; i++) {
        const parity_piece old = e->pieces[i];
        const bool same = parity_same_shard(&old.record->shard, &piece->record->shard);
        if (!same && !shards_meet(&old.record->shard, &piece->record->shard)) {
            e->pieces[kept++] = old;
            continue;
        }
        if (!rank_has_ops && strcmp(old.record->hash, piece->record->hash) != 0)
            added.conflict = true;
        if (old.is_output && !piece->is_output) { /* what was written stays */
            e->pieces[i].conflict = old.conflict || added.conflict;
            if (same && foreign && assay_trace_content_comparable(old.record, piece->record) &&
                !assay_trace_same_content(old.record, piece->record))
                e->pieces[i].later = piece->record;
            for (int64_t k = i; k < e->n; k++)
                e->pieces[kept++] = e->pieces[k];
            e->n = kept;
            return ASSAY_OK;
        }
        added.conflict = added.conflict || old.conflict;
    }
    e->n = kept;
    return append_piece(e, &added);
}

static assay_status index_rank(parity_index *x, int rank)
{
    int64_t *ids = NULL, n_ids = 0;
    ASSAY_TRY(output_ids(x->trace, rank, &ids, &n_ids));
    const bool has_ops = assay_trace_n_ops(x->trace, rank) > 0, foreign = assay_trace_is_foreign(x->trace);
    assay_status st = ASSAY_OK;
    for (int64_t i = 0; i < assay_trace_n_tensors(x->trace, rank) && st == ASSAY_OK; i++) {
        const assay_trace_tensor *record = assay_trace_tensor_at(x->trace, rank, i);
        if (record->has_scale) {
            st = ASSAY_ERROR(ASSAY_UNSUPPORTED,
                             "%s: record %lld on rank %d is scaled by record %lld; this judge reads unscaled "
                             "values only",
                             record->name, (long long)record->id, rank, (long long)record->scale_id);
            break;
        }
        const bool is_output = bsearch(&record->id, ids, (size_t)n_ids, sizeof *ids, compare_ids) != NULL;
        const parity_piece piece = {.record = record, .is_output = is_output, .order = i};
        int64_t at = -1;
        st = entry_of(x, record, &at);
        if (st == ASSAY_OK)
            st = entry_add(&x->entries[at], &piece, has_ops, foreign);
    }
    free(ids);
    return st;
}

/* A module may be wrapped: what its operation made is then not what the next one reads. */
static assay_status add_later(parity_entry *e)
{
    bool any = false;
    for (int64_t i = 0; i < e->n; i++)
        any = any || e->pieces[i].later != NULL;
    if (!any)
        return ASSAY_OK;
    parity_entry *later = malloc(sizeof *later);
    ASSAY_CHECK(later, ASSAY_OUT_OF_MEMORY, "%s", e->name);
    *later = *e;
    later->pieces = malloc((size_t)e->n * sizeof *later->pieces);
    later->later = NULL;
    later->capacity = e->n;
    e->later = later;
    ASSAY_CHECK(later->pieces, ASSAY_OUT_OF_MEMORY, "%s: %lld pieces", e->name, (long long)e->n);
    for (int64_t i = 0; i < e->n; i++) {
        later->pieces[i] = e->pieces[i];
        if (e->pieces[i].later != NULL)
            later->pieces[i].record = e->pieces[i].later;
        later->pieces[i].later = NULL;
        later->pieces[i].is_output = false;
    }
    return ASSAY_OK;
}

assay_status parity_index_create(parity_index **out, const assay_trace *t)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    parity_index *x = calloc(1, sizeof *x);
    ASSAY_CHECK(x, ASSAY_OUT_OF_MEMORY, "trace index");
    x->trace = t;
    x->has_grid = parity_grid_from_trace(t, &x->grid);
    ASSAY_TRY_GOTO(parity_map_create(&x->map), st, fail);
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        ASSAY_TRY_GOTO(index_rank(x, rank), st, fail);
    for (int64_t i = 0; i < x->n; i++)
        ASSAY_TRY_GOTO(add_later(&x->entries[i]), st, fail);
    *out = x;
    return ASSAY_OK;
fail:
    parity_index_destroy(x);
    return st;
}

void parity_index_destroy(parity_index *x)
{
    if (!x)
        return;
    for (int64_t i = 0; i < x->n; i++) {
        free(x->entries[i].pieces);
        if (x->entries[i].later != NULL)
            free(x->entries[i].later->pieces);
        free(x->entries[i].later);
    }
    free(x->entries);
    parity_map_destroy(x->map);
    free(x);
}

const parity_entry *parity_index_find(const parity_index *x, const char *name, assay_phase phase,
                                      int64_t step, int64_t microbatch)
{
    char key[KEY_TEXT];
    entry_key(key, name, phase, step, microbatch);
    const int64_t at = parity_map_get(x->map, key);
    return at >= 0 ? &x->entries[at] : NULL;
}

bool parity_entry_assembles(const parity_entry *e)
{
    for (int64_t i = 0; i < e->n; i++) {
        if (e->pieces[i].record->kind != ASSAY_PIECE_LOCAL)
            return true;
    }
    return false;
}
