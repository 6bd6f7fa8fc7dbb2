/* Copying between pieces of one global tensor: index geometry and memcpy, never element values. */
#include "core/model/shard.h"

#include <assert.h>
#include <string.h>

/* A run of consecutive global indices that both pieces hold, in local indices of each. */
typedef struct run {
    int64_t dst, src, length;
} run;

typedef struct copy_state {
    char *dst;
    const char *src;
    int64_t element_bytes;
    unsigned char *covered;
    bool check_equal;
    int64_t *differs;
    int ndim;
    int n_runs[ASSAY_MAX_DIMS];
    run runs[ASSAY_MAX_DIMS][2 * ASSAY_MAX_SEGMENTS]; /* disjoint ranges meet disjoint ranges no more often */
    int64_t dst_stride[ASSAY_MAX_DIMS], src_stride[ASSAY_MAX_DIMS];
    int64_t copied;
} copy_state;

static void find_runs(copy_state *c, int dim, const assay_shard *to, const assay_shard *from)
{
    int64_t dst0 = 0;
    for (int i = 0; i < to->n_segments[dim]; i++) {
        const assay_segment a = to->segments[dim][i];
        int64_t src0 = 0;
        for (int j = 0; j < from->n_segments[dim]; j++) {
            const assay_segment b = from->segments[dim][j];
            const int64_t start = a.start > b.start ? a.start : b.start;
            const int64_t end_a = a.start + a.length, end_b = b.start + b.length;
            const int64_t end = end_a < end_b ? end_a : end_b;
            if (start < end)
                c->runs[dim][c->n_runs[dim]++] =
                    (run){dst0 + start - a.start, src0 + start - b.start, end - start};
            src0 += b.length;
        }
        dst0 += a.length;
    }
}

/* One contiguous run of elements in both pieces. */
static void copy_elements(copy_state *c, int64_t dst, int64_t src, int64_t length)
{
    const size_t width = (size_t)c->element_bytes;
    char *to = c->dst + dst * c->element_bytes;
    const char *from = c->src + src * c->element_bytes;
    c->copied += length;
    if (c->covered == NULL) {
        memcpy(to, from, (size_t)length * width);
        return;
    }
    for (int64_t i = 0; i < length; i++) {
        char *e = to + i * c->element_bytes;
        const char *f = from + i * c->element_bytes;
        if (c->covered[dst + i] && c->check_equal) {
            if (memcmp(e, f, width) != 0 && c->differs != NULL && *c->differs < 0)
                *c->differs = dst + i;
            continue;
        }
        memcpy(e, f, width);
        c->covered[dst + i] = 1;
    }
}

static void copy_dim(copy_state *c, int dim, int64_t dst, int64_t src)
{
    if (dim == c->ndim) {
        copy_elements(c, dst, src, 1);
        return;
    }
    for (int r = 0; r < c->n_runs[dim]; r++) {
        const run u = c->runs[dim][r];
        if (dim == c->ndim - 1) {
            copy_elements(c, dst + u.dst, src + u.src, u.length);
            continue;
        }
        for (int64_t i = 0; i < u.length; i++)
            copy_dim(c, dim + 1, dst + (u.dst + i) * c->dst_stride[dim],
                     src + (u.src + i) * c->src_stride[dim]);
    }
}

int64_t assay_shard_copy(void *dst, const assay_shard *to, const void *src, const assay_shard *from,
                         int64_t element_bytes, unsigned char *covered, bool check_equal, int64_t *differs)
{
    assert(to->ndim == from->ndim && to->ndim <= ASSAY_MAX_DIMS && element_bytes > 0);
    copy_state c = {.dst = dst,
                    .src = src,
                    .element_bytes = element_bytes,
                    .covered = covered,
                    .check_equal = check_equal,
                    .differs = differs,
                    .ndim = to->ndim};
    if (differs != NULL)
        *differs = -1;
    int64_t ds = 1, ss = 1;
    for (int d = to->ndim - 1; d >= 0; d--) {
        c.dst_stride[d] = ds;
        c.src_stride[d] = ss;
        ds *= to->local_shape[d];
        ss *= from->local_shape[d];
        find_runs(&c, d, to, from);
    }
    copy_dim(&c, 0, 0, 0);
    return c.copied;
}
