/* Lists of segments, each once: a piece of a tensor points to its lists and is copied like a number, however many segments a
 * dimension has.  What was named once stays until the process ends; there are as many lists as there are different pieces. */
#include "core/model/shard.h"

#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    struct entry *next;
    uint64_t hash;
    int n;
    assay_segment list[];
} entry;

enum { FIRST = 1 << 10, CACHED = 1 << 8 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry **table; /* [places], a power of two; as many as entries or more */
static size_t places, n_entries;
static _Thread_local const entry *cache[CACHED]; /* what this thread asked for last: no lock */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint8_t key[crypto_shorthash_KEYBYTES]; /* drawn, so that no file can choose what collides */

/* A piece has no way to say so, and a wrong one would be worse. */
static void give_up(int n)
{
    fprintf(stderr, "assay: out of memory for a list of %d segments\n", n);
    abort();
}

static void draw_key(void)
{
    if (sodium_init() < 0)
        abort();
    randombytes_buf(key, sizeof key);
}

static uint64_t hash_of(const assay_segment *list, int n)
{
    uint64_t h;
    _Static_assert(sizeof *list == 2 * sizeof(int64_t), "nothing but two numbers is hashed");
    pthread_once(&once, draw_key);
    crypto_shorthash((unsigned char *)&h, (const unsigned char *)list, (size_t)n * sizeof *list, key);
    return h;
}

static bool is(const entry *e, uint64_t hash, const assay_segment *list, int n)
{
    return e->hash == hash && e->n == n && memcmp(e->list, list, (size_t)n * sizeof *list) == 0;
}

/* Room for one entry more; without memory chains become longer. */
static void grow(int n)
{
    const size_t wanted = places > 0 ? 2 * places : FIRST;
    if (n_entries < places)
        return;
    entry **more = calloc(wanted, sizeof *more);
    if (more == NULL && places == 0)
        give_up(n);
    if (more == NULL)
        return;
    for (size_t i = 0; i < places; i++)
        for (entry *e = table[i], *next; e != NULL; e = next) {
            next = e->next;
            e->next = more[e->hash & (wanted - 1)];
            more[e->hash & (wanted - 1)] = e;
        }
    free((void *)table);
    table = more;
    places = wanted;
}

static const entry *find_or_add(uint64_t hash, const assay_segment *list, int n)
{
    entry *e = places > 0 ? table[hash & (places - 1)] : NULL;
    while (e && !is(e, hash, list, n))
        e = e->next;
    if (e)
        return e;
    grow(n);
    e = malloc(sizeof *e + (size_t)n * sizeof *list);
    if (!e)
        give_up(n);
    entry **bucket = &table[hash & (places - 1)];
    e->next = *bucket;
    e->hash = hash;
    e->n = n;
    memcpy(e->list, list, (size_t)n * sizeof *list);
    *bucket = e;
    n_entries++;
    return e;
}

static const assay_segment *list_of(const assay_segment *list, int n)
{
    static const assay_segment none = {0, 0};
    if (n <= 0)
        return &none;
    const uint64_t hash = hash_of(list, n);
    const entry **mine = &cache[hash >> 32 & (CACHED - 1)];
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
