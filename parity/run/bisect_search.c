/* The smallest set of elements that heals, by halving prefixes.
 *
 * Of the elements in order of execution the shortest prefix that heals ends with one that is needed: everything before it does not
 * heal without it, and nothing behind it is asked for help.  That one stays; what has to come before it is searched the same
 * way.  |set| * log2(n) tests where what heals still heals with more in it; where it does not, the last pass still leaves a set of
 * which no single element can be left out. */
#include "parity/run/bisect.h"

#include <stdlib.h>
#include <string.h>

typedef struct prefix {
    bisect_search *s;
    int64_t n;            /* elements that may be replaced ... */
    const int64_t *index; /* ... [n], in order of execution */
    bool *needed, *asked; /* of all elements */
} prefix;

static assay_status test(bisect_search *s, const bool *set, bool *healed)
{
    *healed = false;
    s->stopped = s->tests >= s->limit;
    if (s->stopped)
        return ASSAY_OK;
    s->tests++;
    return s->test(s->user, set, healed);
}

/* The needed ones, and the first `end` of those that may be replaced. */
static const bool *ask(const prefix *p, int64_t end)
{
    memcpy(p->asked, p->needed, (size_t)p->s->n * sizeof *p->asked);
    for (int64_t i = 0; i < end; i++)
        p->asked[p->index[i]] = true;
    return p->asked;
}

/* *end: a prefix that heals; becomes the shortest.  Its last element is needed then. */
static assay_status shorten(const prefix *p, int64_t *end)
{
    int64_t fails = 0; /* without any it was not healed */
    while (*end - fails > 1) {
        const int64_t middle = fails + (*end - fails) / 2;
        bool healed;
        ASSAY_TRY(test(p->s, ask(p, middle), &healed));
        if (p->s->stopped)
            break;
        *(healed ? end : &fails) = middle;
    }
    return ASSAY_OK;
}

/* Whether one of them can be left out after all. */
static assay_status thin_out(bisect_search *s, bool *set)
{
    int64_t size = 0;
    for (int64_t i = 0; i < s->n; i++)
        size += set[i];
    for (int64_t i = 0; i < s->n && size > 1; i++) {
        bool healed;
        if (!set[i])
            continue;
        set[i] = false;
        ASSAY_TRY(test(s, set, &healed));
        set[i] = !healed;
        size -= healed;
    }
    return ASSAY_OK;
}

static assay_status search(const prefix *p, bool *set)
{
    int64_t end = p->n, rest = p->n; /* rest: of the set asked for last */
    bool healed = p->n == 0;
    while (!healed) {
        ASSAY_TRY(shorten(p, &end));
        rest = end;
        if (p->s->stopped)
            break;
        p->needed[p->index[--end]] = true;
        if (end == 0) { /* what is needed is the prefix that heals */
            rest = 0;
            break;
        }
        ASSAY_TRY(test(p->s, ask(p, 0), &healed));
        rest = healed ? 0 : end;
        if (p->s->stopped)
            break;
    }
    memcpy(set, ask(p, rest), (size_t)p->s->n * sizeof *set);
    return p->s->stopped ? ASSAY_OK : thin_out(p->s, set);
}

assay_status bisect_smallest(bisect_search *s, bool *set)
{
    assay_status st = ASSAY_OK;
    bool *needed = calloc((size_t)s->n + 1, sizeof *needed), *asked = calloc((size_t)s->n + 1, sizeof *asked);
    int64_t *index = calloc((size_t)s->n + 1, sizeof *index);
    prefix p = {s, 0, index, needed, asked};
    ASSAY_CHECK_GOTO(needed && asked && index, ASSAY_OUT_OF_MEMORY, st, done, "%lld operations",
                     (long long)s->n);
    for (int64_t i = 0; i < s->n; i++)
        if (set[i])
            index[p.n++] = i;
    st = search(&p, set);
done:
    free(index);
    free(asked);
    free(needed);
    return st;
}
