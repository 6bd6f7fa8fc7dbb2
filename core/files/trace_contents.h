/* What tensors of a trace's open step hold, each content once. */
#ifndef ASSAY_CORE_TRACE_CONTENTS_H
#define ASSAY_CORE_TRACE_CONTENTS_H

#include "core/files/trace.h"

typedef struct assay_trace_content {
    char hash[ASSAY_HASH_HEX];
    uint64_t mark; /* of dtype, shape and some of the bytes */
    assay_dtype dtype;
    int ndim;
    int64_t shape[ASSAY_MAX_DIMS];
    size_t bytes;
    void *data;
} assay_trace_content;

typedef struct assay_trace_contents {
    int64_t n, capacity;
    assay_trace_content *content;
    int64_t n_buckets; /* a power of two, more than twice n */
    int64_t *by_hash;  /* index into content, -1 free */
    int64_t *by_mark;  /* the same of the marks */
} assay_trace_contents;

/* A content that is kept already and equal, every byte, is not hashed again: t->hash becomes its hash.  Most inputs are what
 * an earlier operation wrote, and comparing costs a tenth of hashing. */
bool assay_trace_contents_find(const assay_trace_contents *c, assay_trace_tensor *t, const void *data);
/* Keeps a copy under t->hash, unless one is there; `where` for errors. */
assay_status assay_trace_contents_keep(assay_trace_contents *c, const assay_trace_tensor *t, const void *data,
                                       const char *where);
void assay_trace_contents_drop(assay_trace_contents *c);
void assay_trace_contents_free(assay_trace_contents *c);

#endif
