/* The merges of one word: always the pair of the lowest rank, of several the leftmost, until none is left.  A heap holds the
 * pairs that may be merged, so that a word of n bytes costs n log n: no text makes it quadratic. */
#include "core/files/bpe_internal.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT = 256 };

/* A token of the word; those that are merged away are passed over by `next`. */
typedef struct symbol {
    int64_t id; /* -1: merged into the one before */
    int32_t before, next;
} symbol;

typedef struct candidate {
    int64_t rank, left, right, id;
    int32_t at;
} candidate;

typedef struct heap {
    candidate *of;
    size_t n;
} heap;

static bool less(const candidate *a, const candidate *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->at < b->at);
}

static void push(heap *h, candidate c)
{
    size_t i = h->n++;
    for (; i > 0 && less(&c, &h->of[(i - 1) / 2]); i = (i - 1) / 2)
        h->of[i] = h->of[(i - 1) / 2];
    h->of[i] = c;
}

static candidate pop(heap *h)
{
    const candidate top = h->of[0], last = h->of[--h->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n && less(&h->of[child + 1], &h->of[child]))
            child++;
        if (!less(&h->of[child], &last))
            break;
        h->of[i] = h->of[child];
        i = child;
    }
    h->of[i] = last;
    return top;
}

static void offer(const assay_bpe *t, const symbol *s, heap *h, int32_t at)
{
    if (at < 0 || s[at].next < 0)
        return;
    const int64_t left = s[at].id, right = s[s[at].next].id;
    const assay_bpe_merge *m = assay_bpe_merge_find(t, left, right);
    if (m != NULL)
        push(h, (candidate){m->rank, left, right, m->id, at});
}

static void merge_all(const assay_bpe *t, symbol *s, int32_t n, heap *h)
{
    for (int32_t i = 0; i + 1 < n; i++)
        offer(t, s, h, i);
    while (h->n > 0) {
        const candidate c = pop(h);
        const int32_t next = s[c.at].next;
        if (s[c.at].id != c.left || next < 0 || s[next].id != c.right)
            continue; /* one of the two is no longer what it was */
        s[c.at].id = c.id;
        s[c.at].next = s[next].next;
        s[next].id = -1;
        if (s[c.at].next >= 0)
            s[s[c.at].next].before = c.at;
        offer(t, s, h, s[c.at].before);
        offer(t, s, h, c.at);
    }
}

assay_status assay_bpe_word(const assay_bpe *t, const char *word, size_t length, assay_tokens *out)
{
    symbol few[SHORT];
    candidate some[3 * SHORT];
    symbol *s = few;
    heap h = {some, 0};
    assay_status st = ASSAY_OK;
    if (length == 0)
        return ASSAY_OK;
    const assay_bpe_token *whole = t->ignore_merges ? assay_bpe_find_bytes(t, word, length) : NULL;
    if (whole != NULL)
        return assay_tokens_push(out, whole->id);
    ASSAY_CHECK(length < INT32_MAX, ASSAY_LIMIT, "a word of %zu bytes, at most %d", length, INT32_MAX - 1);
    if (length > SHORT) { /* every merge takes one pair away and offers at most two: 3 n at most */
        s = malloc(length * sizeof *s);
        h.of = malloc(3 * length * sizeof *h.of);
    }
    ASSAY_CHECK_GOTO(s != NULL && h.of != NULL, ASSAY_OUT_OF_MEMORY, st, done, "a word of %zu bytes", length);
    for (size_t i = 0; i < length; i++)
        s[i] = (symbol){t->byte_id[(unsigned char)word[i]], (int32_t)i - 1,
                        i + 1 < length ? (int32_t)i + 1 : -1};
    merge_all(t, s, (int32_t)length, &h);
    for (int32_t i = 0; i >= 0; i = s[i].next)
        ASSAY_TRY_GOTO(assay_tokens_push(out, s[i].id), st, done);
done:
    if (s != few)
        free(s);
    if (h.of != some)
        free(h.of);
    return st;
}
