/* The contents of a step, found by their hash, or by a mark of some of their bytes before they are hashed. */
#include "core/files/trace_contents.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mixed(uint64_t mark, uint64_t word)
{
    mark = (mark ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return mark ^ mark >> 32;
}

/* Equal contents have equal marks; others differ in them often enough. */
static uint64_t mark_of(const assay_trace_tensor *t, const unsigned char *data)
{
    enum { WORDS = 32 };
    uint64_t mark = mixed((uint64_t)t->dtype, t->bytes), word;
    for (int i = 0; i < t->shard.ndim; i++)
        mark = mixed(mark, (uint64_t)t->shard.local_shape[i]);
    const size_t last = t->bytes >= sizeof word ? t->bytes - sizeof word : 0;
    for (size_t i = 0; i < WORDS && t->bytes >= sizeof word; i++) {
        memcpy(&word, data + last / (WORDS - 1) * i, sizeof word);
        mark = mixed(mark, word);
    }
    return mark;
}

static bool same(const assay_trace_content *c, const assay_trace_tensor *t, const void *data)
{
    return c->dtype == t->dtype && c->ndim == t->shard.ndim && c->bytes == t->bytes &&
           memcmp(c->shape, t->shard.local_shape, (size_t)c->ndim * sizeof c->shape[0]) == 0 &&
           (c->bytes == 0 || memcmp(c->data, data, c->bytes) == 0);
}

static int64_t next(const assay_trace_contents *c, int64_t at)
{
    return (at + 1) & (c->n_buckets - 1);
}

static int64_t bucket_of_hash(const assay_trace_contents *c, const char *hash)
{
    uint64_t bits = 0;
    for (int i = 0; i < 16; i++)
        bits = bits << 4 | (uint64_t)(hash[i] <= '9' ? hash[i] - '0' : hash[i] - 'a' + 10);
    int64_t at = (int64_t)(bits & (uint64_t)(c->n_buckets - 1));
    while (c->by_hash[at] >= 0 && strcmp(c->content[c->by_hash[at]].hash, hash) != 0)
        at = next(c, at);
    return at;
}

static int64_t free_bucket_of_mark(const assay_trace_contents *c, uint64_t mark)
{
    int64_t at = (int64_t)(mark & (uint64_t)(c->n_buckets - 1));
    while (c->by_mark[at] >= 0)
        at = next(c, at);
    return at;
}

bool assay_trace_contents_find(const assay_trace_contents *c, assay_trace_tensor *t, const void *data)
{
    if (c->n == 0)
        return false;
    const uint64_t mark = mark_of(t, data);
    for (int64_t at = (int64_t)(mark & (uint64_t)(c->n_buckets - 1)); c->by_mark[at] >= 0; at = next(c, at)) {
        const assay_trace_content *found = &c->content[c->by_mark[at]];
        if (found->mark == mark && same(found, t, data)) {
            memcpy(t->hash, found->hash, sizeof t->hash);
            return true;
        }
    }
    return false;
}

static void clear_buckets(assay_trace_contents *c)
{
    for (int64_t i = 0; i < c->n_buckets; i++)
        c->by_hash[i] = c->by_mark[i] = -1;
}

static assay_status grow(assay_trace_contents *c, const char *where)
{
    const int64_t capacity = c->capacity ? 2 * c->capacity : 256;
    assay_trace_content *content = realloc(c->content, (size_t)capacity * sizeof *content);
    ASSAY_CHECK(content, ASSAY_OUT_OF_MEMORY, "%s: out of memory", where);
    c->content = content;
    int64_t *by_hash = realloc(c->by_hash, (size_t)(4 * capacity) * sizeof *by_hash);
    ASSAY_CHECK(by_hash, ASSAY_OUT_OF_MEMORY, "%s: out of memory", where);
    c->by_hash = by_hash;
    int64_t *by_mark = realloc(c->by_mark, (size_t)(4 * capacity) * sizeof *by_mark);
    ASSAY_CHECK(by_mark, ASSAY_OUT_OF_MEMORY, "%s: out of memory", where);
    c->by_mark = by_mark;
    c->capacity = capacity;
    c->n_buckets = 4 * capacity;
    clear_buckets(c);
    for (int64_t i = 0; i < c->n; i++) {
        c->by_hash[bucket_of_hash(c, c->content[i].hash)] = i;
        c->by_mark[free_bucket_of_mark(c, c->content[i].mark)] = i;
    }
    return ASSAY_OK;
}

assay_status assay_trace_contents_keep(assay_trace_contents *c, const assay_trace_tensor *t, const void *data,
                                       const char *where)
{
    if (c->n == c->capacity)
        ASSAY_TRY(grow(c, where));
    const int64_t at = bucket_of_hash(c, t->hash);
    if (c->by_hash[at] >= 0)
        return ASSAY_OK;
    assay_trace_content *kept = &c->content[c->n];
    *kept = (assay_trace_content){
        .dtype = t->dtype, .ndim = t->shard.ndim, .bytes = t->bytes, .mark = mark_of(t, data)};
    memcpy(kept->hash, t->hash, sizeof kept->hash);
    memcpy(kept->shape, t->shard.local_shape, sizeof kept->shape);
    kept->data = malloc(t->bytes > 0 ? t->bytes : 1);
    ASSAY_CHECK(kept->data, ASSAY_OUT_OF_MEMORY, "%s: %s: out of memory for %zu bytes", where, t->name,
                t->bytes);
    if (t->bytes > 0)
        memcpy(kept->data, data, t->bytes);
    c->by_mark[free_bucket_of_mark(c, kept->mark)] = c->n;
    c->by_hash[at] = c->n++;
    return ASSAY_OK;
}

void assay_trace_contents_drop(assay_trace_contents *c)
{
    for (int64_t i = 0; i < c->n; i++)
        free(c->content[i].data);
    c->n = 0;
    clear_buckets(c);
}

void assay_trace_contents_free(assay_trace_contents *c)
{
    assay_trace_contents_drop(c);
    free(c->content);
    free(c->by_hash);
    free(c->by_mark);
}
