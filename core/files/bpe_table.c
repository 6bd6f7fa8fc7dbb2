/* Tables of a byte-level BPE tokenizer: tokens by id and by bytes, merges by pair. */
#include "core/files/bpe_internal.h"

#include "core/base/hash.h"
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

void assay_tokens_free(assay_tokens *t)
{
    free(t->ids);
    *t = (assay_tokens){0};
}

assay_status assay_tokens_push(assay_tokens *t, int64_t id)
{
    if (t->n == t->capacity) {
        const int64_t capacity = t->capacity > 0 ? 2 * t->capacity : 1024;
        int64_t *grown = realloc(t->ids, (size_t)capacity * sizeof *grown);
        ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "out of memory for %lld tokens", (long long)capacity);
        t->ids = grown;
        t->capacity = capacity;
    }
    t->ids[t->n++] = id;
    return ASSAY_OK;
}

static int by_id(const void *a, const void *b)
{
    const assay_bpe_token *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static size_t hash_of(const assay_bpe *t, const void *bytes, size_t length)
{
    uint64_t hash;
    crypto_shorthash((unsigned char *)&hash, bytes, length, t->key);
    return (size_t)hash;
}

/* At least twice as many places as entries. */
static size_t places(size_t entries)
{
    size_t n = 16;
    while (n < 2 * entries)
        n *= 2;
    return n;
}

static assay_status index_bytes(assay_bpe *t, const char *path)
{
    t->n_by_bytes = places((size_t)t->n_tokens);
    t->by_bytes = malloc(t->n_by_bytes * sizeof *t->by_bytes);
    ASSAY_CHECK(t->by_bytes != NULL, ASSAY_OUT_OF_MEMORY, "%s: out of memory for %lld tokens", path,
                (long long)t->n_tokens);
    for (size_t i = 0; i < t->n_by_bytes; i++)
        t->by_bytes[i] = -1;
    for (int64_t i = 0; i < t->n_tokens; i++) {
        const assay_bpe_token *k = &t->tokens[i];
        if (!k->mapped)
            continue;
        size_t at = hash_of(t, k->bytes, k->length) & (t->n_by_bytes - 1);
        while (t->by_bytes[at] >= 0)
            at = (at + 1) & (t->n_by_bytes - 1);
        t->by_bytes[at] = (int32_t)i;
    }
    return ASSAY_OK;
}

assay_status assay_bpe_tables_make(assay_bpe *t, const char *path)
{
    ASSAY_TRY(assay_hash_init());
    randombytes_buf(t->key, sizeof t->key);
    qsort(t->tokens, (size_t)t->n_tokens, sizeof *t->tokens, by_id);
    for (int64_t i = 1; i < t->n_tokens; i++)
        ASSAY_CHECK(t->tokens[i].id != t->tokens[i - 1].id, ASSAY_FORMAT,
                    "%s: id %lld is that of two tokens, '%.64s' and '%.64s'", path,
                    (long long)t->tokens[i].id, t->tokens[i - 1].bytes, t->tokens[i].bytes);
    return index_bytes(t, path);
}

const assay_bpe_token *assay_bpe_find_id(const assay_bpe *t, int64_t id)
{
    const assay_bpe_token wanted = {.id = id};
    return bsearch(&wanted, t->tokens, (size_t)t->n_tokens, sizeof *t->tokens, by_id);
}

const assay_bpe_token *assay_bpe_find_bytes(const assay_bpe *t, const char *bytes, size_t length)
{
    size_t at = hash_of(t, bytes, length) & (t->n_by_bytes - 1);
    for (; t->by_bytes[at] >= 0; at = (at + 1) & (t->n_by_bytes - 1)) {
        const assay_bpe_token *k = &t->tokens[t->by_bytes[at]];
        if (k->length == length && memcmp(k->bytes, bytes, length) == 0)
            return k;
    }
    return NULL;
}

/* The place of a pair, or the empty one where it belongs. */
static assay_bpe_merge *merge_place(const assay_bpe *t, int64_t left, int64_t right)
{
    const uint64_t pair = (uint64_t)left << 32 | (uint64_t)right;
    size_t at = hash_of(t, &pair, sizeof pair) & (t->n_merges - 1);
    while (t->merges[at].rank >= 0 && t->merges[at].pair != pair)
        at = (at + 1) & (t->n_merges - 1);
    return &t->merges[at];
}

assay_status assay_bpe_merge_add(assay_bpe *t, int64_t left, int64_t right, int64_t rank, int64_t id)
{
    assay_bpe_merge *m = merge_place(t, left, right);
    ASSAY_CHECK(m->rank < 0, ASSAY_FORMAT, "merges %lld and %lld join the same tokens", (long long)m->rank,
                (long long)rank);
    *m = (assay_bpe_merge){(uint64_t)left << 32 | (uint64_t)right, rank, id};
    return ASSAY_OK;
}

const assay_bpe_merge *assay_bpe_merge_find(const assay_bpe *t, int64_t left, int64_t right)
{
    const assay_bpe_merge *m = merge_place(t, left, right);
    return m->rank >= 0 ? m : NULL;
}
