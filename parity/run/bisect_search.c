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
    const bool *allowed;
    bool *needed, *asked;
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

/* The needed ones and those allowed below `end`. */
static const bool *ask(const prefix *p, int64_t end)
{
    for (int64_t i = 0; i < p->s->n; i++)
        p->asked[i] = p->needed[i] || (i < end && p->allowed[i]);
    return p->asked;
}

/* *end: a prefix that heals; becomes the shortest.  Its last element is needed then. */
static assay_status shorten(const prefix *p, int64_t *end)
{
    int64_t fails = 0;
    while (*end - fails > 1 && !p->s->stopped) {
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

assay_status bisect_smallest(bisect_search *s, bool *set)
{
    assay_status st = ASSAY_OK;
    bool *needed = calloc((size_t)s->n + 1, sizeof *needed), *asked = calloc((size_t)s->n + 1, sizeof *asked);
    const prefix p = {s, set, needed, asked};
    bool healed = false;
    int64_t end = s->n;
    ASSAY_CHECK_GOTO(needed && asked, ASSAY_OUT_OF_MEMORY, st, done, "%lld operations", (long long)s->n);
    while (!healed && end > 0) {
        ASSAY_TRY_GOTO(shorten(&p, &end), st, done);
        if (s->stopped)
            break;
        needed[--end] = true;
        ASSAY_TRY_GOTO(test(s, ask(&p, 0), &healed), st, done);
        if (s->stopped)
            break;
    }
    memcpy(set, ask(&p, healed ? 0 : end), (size_t)s->n * sizeof *set);
    if (!s->stopped)
        st = thin_out(s, set);
done:
    free(asked);
    free(needed);
    return st;
}
