/* The sequence map: zig-zag pieces over cp, then pieces over tp. */
#include "core/model/sequence.h"

static void append(assay_sequence *q, int64_t start, int64_t length)
{
    if (length == 0)
        return;
    q->length += length;
    if (q->n_segments > 0) {
        assay_segment *last = &q->segments[q->n_segments - 1];
        if (last->start + last->length == start) {
            last->length += length;
            return;
        }
    }
    q->segments[q->n_segments++] = (assay_segment){.start = start, .length = length};
}

void assay_sequence_cut(const assay_sequence *q, int64_t first, int64_t length, assay_sequence *out)
{
    *out = (assay_sequence){.n_segments = 0};
    for (int i = 0; i < q->n_segments && length > 0; i++) {
        const assay_segment s = q->segments[i];
        if (first >= s.length) {
            first -= s.length;
            continue;
        }
        const int64_t take = length < s.length - first ? length : s.length - first;
        append(out, s.start + first, take);
        first = 0;
        length -= take;
    }
}

/* The two chunks of cp rank `cp`, behind what `out` has. */
static void append_region(assay_sequence *out, const assay_grid *g, int64_t s, int cp)
{
    const int chunks = 2 * g->size[ASSAY_AXIS_CP];
    const int mine[2] = {cp, chunks - 1 - cp};
    for (int i = 0; i < 2; i++) {
        int64_t start, length;
        assay_split(s, chunks, mine[i], &start, &length);
        append(out, start, length);
    }
}

assay_status assay_sequence_gathered(const assay_grid *g, int64_t s, assay_sequence *out)
{
    const int cp = g->size[ASSAY_AXIS_CP];
    ASSAY_CHECK(2 * (int64_t)cp - 1 <= ASSAY_MAX_SEGMENTS, ASSAY_UNSUPPORTED,
                "layout: cp%d: %d ranks at most gather a sequence in this version", cp,
                (ASSAY_MAX_SEGMENTS + 1) / 2);
    *out = (assay_sequence){.n_segments = 0};
    for (int i = 0; i < cp; i++)
        append_region(out, g, s, i);
    return ASSAY_OK;
}

int64_t assay_sequence_region_length(const assay_grid *g, int64_t s, int cp)
{
    assay_sequence region = {.n_segments = 0};
    append_region(&region, g, s, cp);
    return region.length;
}

assay_status assay_sequence_map_make(const assay_grid *g, int rank, int64_t s, assay_sequence_map *out)
{
    ASSAY_CHECK(rank >= 0 && rank < g->world, ASSAY_INVALID_ARGUMENT, "sequence: rank %d of a world of %d",
                rank, g->world);
    ASSAY_CHECK(s >= 0, ASSAY_INVALID_ARGUMENT, "sequence: %lld positions, expected at least 0",
                (long long)s);
    *out = (assay_sequence_map){.global_length = s};
    append_region(&out->region, g, s, assay_grid_coord(g, ASSAY_AXIS_CP, rank));
    int64_t length;
    assay_split(out->region.length, g->size[ASSAY_AXIS_TP], assay_grid_coord(g, ASSAY_AXIS_TP, rank),
                &out->shard_first, &length);
    assay_sequence_cut(&out->region, out->shard_first, length, &out->shard);
    return ASSAY_OK;
}

int64_t assay_sequence_position(const assay_sequence *q, int64_t i)
{
    for (int k = 0; k < q->n_segments && i >= 0; k++) {
        if (i < q->segments[k].length)
            return q->segments[k].start + i;
        i -= q->segments[k].length;
    }
    return -1;
}

int64_t assay_sequence_row(const assay_sequence *q, int64_t position)
{
    int64_t before = 0;
    for (int k = 0; k < q->n_segments; k++) {
        const assay_segment s = q->segments[k];
        if (position >= s.start && position < s.start + s.length)
            return before + position - s.start;
        before += s.length;
    }
    return -1;
}

void assay_sequence_place(const assay_sequence *q, int64_t global_length, assay_shard *shard, int dim)
{
    shard->global_shape[dim] = global_length;
    shard->local_shape[dim] = q->length;
    assay_shard_set(shard, dim, q->segments, q->n_segments);
}
