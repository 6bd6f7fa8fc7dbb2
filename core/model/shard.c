/* Local pieces of global tensors: segments. */
#include "core/model/shard.h"

#include "core/base/dtype.h"
#include "core/base/json_text.h"
#include <string.h>

void assay_shard_whole(assay_shard *s, const int64_t *shape, int ndim)
{
    memset(s, 0, sizeof *s);
    s->ndim = ndim;
    for (int d = 0; d < ndim; d++) {
        s->global_shape[d] = shape[d];
        s->local_shape[d] = shape[d];
        assay_shard_set(s, d, &(assay_segment){.start = 0, .length = shape[d]}, shape[d] > 0 ? 1 : 0);
    }
}

assay_status assay_shard_narrow(assay_shard *s, int dim, int64_t start, int64_t length)
{
    ASSAY_CHECK(dim >= 0 && dim < s->ndim, ASSAY_INVALID_ARGUMENT,
                "shard: dimension %d of a piece with %d dimensions", dim, s->ndim);
    const int64_t local = s->local_shape[dim];
    ASSAY_CHECK(start >= 0 && length >= 0 && start <= local && length <= local - start,
                ASSAY_INVALID_ARGUMENT, "shard: dimension %d: range [%lld, +%lld) of a piece of length %lld",
                dim, (long long)start, (long long)length, (long long)local);
    assay_segment kept[ASSAY_MAX_SEGMENTS];
    int n_kept = 0;
    int64_t skip = start, left = length;
    for (int i = 0; i < s->n_segments[dim] && left > 0; i++) {
        const assay_segment *from = &s->segments[dim][i];
        if (skip >= from->length) {
            skip -= from->length;
            continue;
        }
        const int64_t room = from->length - skip;
        const int64_t take = left < room ? left : room;
        kept[n_kept++] = (assay_segment){.start = from->start + skip, .length = take};
        skip = 0;
        left -= take;
    }
    assay_shard_set(s, dim, kept, n_kept);
    s->local_shape[dim] = length;
    return ASSAY_OK;
}

int64_t assay_shard_global_index(const assay_shard *s, int dim, int64_t local)
{
    for (int i = 0; i < s->n_segments[dim]; i++) {
        const assay_segment *segment = &s->segments[dim][i];
        if (local < segment->length)
            return segment->start + local;
        local -= segment->length;
    }
    return -1;
}

static assay_status check_dimension(const assay_shard *s, int d, const char *what)
{
    const int64_t extent = s->global_shape[d];
    ASSAY_CHECK(extent >= 0 && s->local_shape[d] >= 0, ASSAY_FORMAT,
                "%s: dimension %d: negative extent (global %lld, local %lld)", what, d, (long long)extent,
                (long long)s->local_shape[d]);
    ASSAY_CHECK(s->n_segments[d] >= 0 && s->n_segments[d] <= ASSAY_MAX_SEGMENTS, ASSAY_FORMAT,
                "%s: dimension %d: %d segments, at most %d are supported", what, d, s->n_segments[d],
                ASSAY_MAX_SEGMENTS);
    int64_t total = 0;
    for (int i = 0; i < s->n_segments[d]; i++) {
        const assay_segment a = s->segments[d][i];
        ASSAY_CHECK(a.start >= 0 && a.length > 0 && a.start <= extent && a.length <= extent - a.start,
                    ASSAY_FORMAT, "%s: dimension %d: segment [%lld, +%lld) is not inside [0, %lld)", what, d,
                    (long long)a.start, (long long)a.length, (long long)extent);
        for (int j = 0; j < i; j++) {
            const assay_segment b = s->segments[d][j];
            ASSAY_CHECK(a.start >= b.start + b.length || b.start >= a.start + a.length, ASSAY_FORMAT,
                        "%s: dimension %d: segments [%lld, +%lld) and [%lld, +%lld) overlap", what, d,
                        (long long)b.start, (long long)b.length, (long long)a.start, (long long)a.length);
        }
        total += a.length; /* disjoint parts of [0, extent): no overflow */
    }
    ASSAY_CHECK(total == s->local_shape[d], ASSAY_FORMAT,
                "%s: dimension %d: segments hold %lld, local shape says %lld", what, d, (long long)total,
                (long long)s->local_shape[d]);
    return ASSAY_OK;
}

assay_status assay_shard_check(const assay_shard *s, const char *what)
{
    ASSAY_CHECK(s->ndim >= 0 && s->ndim <= ASSAY_MAX_DIMS, ASSAY_FORMAT,
                "%s: %d dimensions, at most %d are supported", what, s->ndim, ASSAY_MAX_DIMS);
    for (int d = 0; d < s->ndim; d++)
        ASSAY_TRY(check_dimension(s, d, what));
    int64_t count;
    ASSAY_CHECK(assay_shape_count(s->global_shape, s->ndim, &count), ASSAY_LIMIT,
                "%s: the global shape has more than 2^63 - 1 elements", what);
    return ASSAY_OK;
}

int64_t assay_shard_count(const assay_shard *s)
{
    int64_t count = 1;
    for (int d = 0; d < s->ndim; d++)
        count *= s->local_shape[d];
    return count;
}

void assay_shard_put_segments(assay_json_text *t, const assay_shard *s)
{
    assay_json_text_open(t, '[');
    for (int d = 0; d < s->ndim; d++) {
        assay_json_text_open(t, '[');
        for (int i = 0; i < s->n_segments[d]; i++)
            assay_json_text_integers(t, (int64_t[]){s->segments[d][i].start, s->segments[d][i].length}, 2);
        assay_json_text_close(t, ']');
    }
    assay_json_text_close(t, ']');
}
