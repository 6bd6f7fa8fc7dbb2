/* Lists of segments, each once: a piece of a tensor points to its lists and is copied like a number, however many segments a
 * dimension has.  What was named once stays until the process ends; there are as many lists as there are different pieces. */
#include "core/model/shard.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    struct entry *next;
    uint64_t hash;
    int n;
    assay_segment list[];
} entry;

enum { BUCKETS = 1 << 14, CACHED = 1 << 8 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *table[BUCKETS];
static _Thread_local const entry *cache[CACHED]; /* what this thread asked for last: no lock */

static uint64_t hash_of(const assay_segment *list, int n)
{
    uint64_t h = 0x9e3779b97f4a7c15u + (uint64_t)n;
    for (int i = 0; i < n; i++) {
        h = (h ^ (uint64_t)list[i].start) * 0xbf58476d1ce4e5b9u;
        h = (h ^ h >> 29 ^ (uint64_t)list[i].length) * 0x94d049bb133111ebu;
        h ^= h >> 32;
    }
    return h;
}

static bool is(const entry *e, uint64_t hash, const assay_segment *list, int n)
{
    return e->hash == hash && e->n == n && memcmp(e->list, list, (size_t)n * sizeof *list) == 0;
}

static const entry *find_or_add(uint64_t hash, const assay_segment *list, int n)
{
    entry **bucket = &table[hash % BUCKETS], *e = *bucket;
    while (e && !is(e, hash, list, n))
        e = e->next;
    if (e)
        return e;
    e = malloc(sizeof *e + (size_t)n * sizeof *list);
    if (!e) { /* a piece has no way to say so, and a wrong one would be worse */
        fprintf(stderr, "assay: out of memory for a list of %d segments\n", n);
        abort();
    }
    e->next = *bucket;
    e->hash = hash;
    e->n = n;
    memcpy(e->list, list, (size_t)n * sizeof *list);
    *bucket = e;
    return e;
}

static const assay_segment *list_of(const assay_segment *list, int n)
{
    static const assay_segment none = {0, 0};
    if (n <= 0)
        return &none;
    const uint64_t hash = hash_of(list, n);
    const entry **mine = &cache[hash / BUCKETS % CACHED];
    if (*mine && is(*mine, hash, list, n))
        return (*mine)->list;
    pthread_mutex_lock(&lock);
    *mine = find_or_add(hash, list, n);
    pthread_mutex_unlock(&lock);
    return (*mine)->list;
}

void assay_shard_set(assay_shard *s, int dim, const assay_segment *list, int n)
{
    s->n_segments[dim] = n;
    s->segments[dim] = list_of(list, n);
}
