/* Shards: which piece of a global tensor a rank holds.  Index geometry and names, never element values. */
#ifndef ASSAY_CORE_SHARD_H
#define ASSAY_CORE_SHARD_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

struct assay_json_text; /* core/base/json_text.h */

/* Capacity of a canonical name, with its NUL; most dimensions; most segments of one dimension. */
enum { ASSAY_NAME = 160, ASSAY_MAX_DIMS = 4, ASSAY_MAX_SEGMENTS = 256 };

/* A local piece of a global tensor: for each dimension an ordered list of [start, start+length) segments of
 * the global index range; the local index runs through them in order.  Zig-zag context parallelism and [gate;
 * up] halves are lists of two.  A dimension may have zero segments (an empty piece). */
typedef struct assay_segment {
    int64_t start, length;
} assay_segment;
typedef struct assay_shard {
    int ndim;
    int64_t global_shape[ASSAY_MAX_DIMS];
    int64_t local_shape[ASSAY_MAX_DIMS];
    int n_segments[ASSAY_MAX_DIMS];
    const assay_segment *segments[ASSAY_MAX_DIMS]; /* assay_shard_set */
} assay_shard;

/* The list of one dimension, copied (segments.c: equal lists are one, for ever).  local_shape is the caller's. */
void assay_shard_set(assay_shard *s, int dim, const assay_segment *list, int n);

/* The whole tensor as one piece. */
void assay_shard_whole(assay_shard *s, const int64_t *shape, int ndim);
/* Restricts dimension `dim` of `s` to local range [start, start+length) (a piece of a piece: ZeRO, row
 * ranges). */
assay_status assay_shard_narrow(assay_shard *s, int dim, int64_t start, int64_t length);
/* Local index -> global index along one dimension. */
int64_t assay_shard_global_index(const assay_shard *s, int dim, int64_t local);
/* Validates: segments inside the global range, not overlapping, lengths adding up to local_shape. */
assay_status assay_shard_check(const assay_shard *s, const char *what);
int64_t assay_shard_count(const assay_shard *s);
/* [[[start,length],...],...]: a list for each dimension. */
void assay_shard_put_segments(struct assay_json_text *t, const assay_shard *s);

/* Copies the elements that both pieces hold: dst (piece `to`) from src (piece `from`) of one global tensor;
 * elements are `element_bytes` wide.  Returns the number of elements copied; `covered` (may be NULL, one byte
 * per element of dst) is set to 1 where an element was written.  check_equal: elements already covered are
 * compared instead, *differs gets the first local index that differs (-1 none). */
int64_t assay_shard_copy(void *dst, const assay_shard *to, const void *src, const assay_shard *from,
                         int64_t element_bytes, unsigned char *covered, bool check_equal, int64_t *differs);

ASSAY_END_DECLS

#endif
