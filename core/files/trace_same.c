/* Whether two records, of one trace or of two, have the same content. */
#include "core/files/trace.h"

#include <string.h>

static void hash_as(assay_hash_kind kind, const assay_trace_tensor *t, char out[ASSAY_HASH_HEX])
{
    assay_hash_tensor_as(kind, t->dtype, t->shard.local_shape, t->shard.ndim, t->data, t->bytes, out);
}

bool assay_trace_content_comparable(const assay_trace_tensor *a, const assay_trace_tensor *b)
{
    return a->hash_kind == b->hash_kind || a->data != NULL || b->data != NULL;
}

bool assay_trace_same_content(const assay_trace_tensor *a, const assay_trace_tensor *b)
{
    char hash[ASSAY_HASH_HEX] = "";
    if (a->hash_kind == b->hash_kind)
        return strcmp(a->hash, b->hash) == 0;
    if (a->data == NULL && b->data == NULL)
        return false;
    const assay_trace_tensor *bytes = a->data != NULL ? a : b, *other = bytes == a ? b : a;
    hash_as(other->hash_kind, bytes, hash);
    return strcmp(hash, other->hash) == 0;
}
