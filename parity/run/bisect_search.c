/* The smallest set of elements that heals, by halving prefixes.
 *
 * Of the elements in order of execution the shortest prefix that heals ends with one that is needed: everything before it does not
 * heal without it, and nothing behind it is asked for help.  That one stays; what has to come before it is searched the same
 * way.  |set| * log2(n) tests where what heals still heals with more in it; where it does not, the last pass still leaves a set of
 * which no single element can be left out.
 *
 * A set of many elements (a precision, a kernel that is wrong in every layer) would cost that for each of them: groups of elements
 * are searched then, in the same way.  ddmin (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002) takes
 * five times the tests for 20 of 100 groups, and what it leaves may be what hides the mistake instead of what makes it. */
#include "parity/run/bisect.h"

#include <stdlib.h>
#include <string.h>

typedef struct prefix {
    bisect_search *s;
    int64_t n;            /* elements that may be replaced ... */
    const int64_t *index; /* ... [n], in order of execution */
    bool *needed, *asked; /* of all elements */
    bool dense;           /* the one before was needed, too */
} prefix;

void bisect_search_forget(bisect_search *s)
{
    free(s->asked);
    free(s->answers);
    s->asked = s->answers = NULL;
    s->n_answers = 0;
}

static assay_status remember(bisect_search *s, const bool *set, bool healed)
{
    const size_t n = (size_t)s->n, k = (size_t)s->n_answers;
    if ((k & (k - 1)) == 0) {
        const size_t room = k > 0 ? 2 * k : 1;
        bool *asked = realloc(s->asked, room * n + 1);
        s->asked = asked ? asked : s->asked;
        bool *answers = realloc(s->answers, room);
        s->answers = answers ? answers : s->answers;
        ASSAY_CHECK(asked && answers, ASSAY_OUT_OF_MEMORY, "%zu tests of %zu operations", room, n);
    }
    memcpy(s->asked + k * n, set, n);
    s->answers[s->n_answers++] = healed;
    return ASSAY_OK;
}

/* No set is run twice. */
static assay_status test(bisect_search *s, const bool *set, bool *healed)
{
    *healed = false;
    for (int64_t i = 0; i < s->n_answers; i++)
        if (memcmp(s->asked + i * s->n, set, (size_t)s->n) == 0) {
            *healed = s->answers[i];
            return ASSAY_OK;
        }
    s->stopped = s->tests >= s->limit;
    if (s->stopped)
        return ASSAY_OK;
    s->tests++;
    ASSAY_TRY(s->test(s->user, set, healed));
    return remember(s, set, *healed);
}

/* The needed ones, and the first `end` of those that may be replaced. */
static const bool *ask(const prefix *p, int64_t end)
{
    memcpy(p->asked, p->needed, (size_t)p->s->n * sizeof *p->asked);
    for (int64_t i = 0; i < end; i++)
        p->asked[p->index[i]] = true;
    return p->asked;
}

/* *end: a prefix that heals; becomes the shortest.  Its last element is needed then; so may be its neighbours (dense). */
static assay_status shorten(prefix *p, int64_t *end)
{
    int64_t fails = 0; /* without any it was not healed */
    const int64_t first = *end;
    bool next = p->dense;
    while (*end - fails > 1) {
        const int64_t middle = next ? *end - 1 : fails + (*end - fails) / 2;
        next = false;
        bool healed;
        ASSAY_TRY(test(p->s, ask(p, middle), &healed));
        if (p->s->stopped)
            break;
        *(healed ? end : &fails) = middle;
    }
    p->dense = *end == first;
    return ASSAY_OK;
}

assay_status bisect_thin_out(bisect_search *s, bool *set)
{
    int64_t size = 0;
    for (int64_t i = 0; i < s->n; i++)
        size += set[i];
    for (int64_t i = s->n - 1; i >= 0 && size > 1; i--) {
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

static assay_status search(prefix *p, bool *set)
{
    int64_t end = p->n, rest = p->n, needed = 0; /* rest: of the set asked for last */
    bool healed = p->n == 0;
    while (!healed) {
        ASSAY_TRY(shorten(p, &end));
        rest = end;
        if (p->s->stopped)
            break;
        if (needed++ == p->s->most) {
            p->s->many = true;
            return ASSAY_OK;
        }
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
    return p->s->stopped ? ASSAY_OK : bisect_thin_out(p->s, set);
}

assay_status bisect_smallest(bisect_search *s, bool *set)
{
    assay_status st = ASSAY_OK;
    s->many = false;
    bool *needed = calloc((size_t)s->n + 1, sizeof *needed), *asked = calloc((size_t)s->n + 1, sizeof *asked);
    int64_t *index = calloc((size_t)s->n + 1, sizeof *index);
    prefix p = {s, 0, index, needed, asked, false};
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

/* --- groups ------------------------------------------------------------------------------------------------- */
typedef struct groups {
    bisect_search *s;
    const int64_t *of; /* group of each element */
    const bool *may;   /* elements that may be replaced */
    bool *asked;       /* [elements] */
} groups;

static const bool *expand(const groups *g, const bool *set)
{
    for (int64_t i = 0; i < g->s->n; i++)
        g->asked[i] = g->may[i] && set[g->of[i]];
    return g->asked;
}

static assay_status test_groups(void *user, const bool *set, bool *healed)
{
    const groups *g = user;
    return test(g->s, expand(g, set), healed);
}

assay_status bisect_fewest_groups(bisect_search *s, const int64_t *group, int64_t n_groups, bool *set)
{
    assay_status st = ASSAY_OK;
    bool *in = calloc((size_t)n_groups + 1, sizeof *in), *asked = calloc((size_t)s->n + 1, sizeof *asked);
    bool *may = calloc((size_t)s->n + 1, sizeof *may);
    groups g = {s, group, may, asked};
    bisect_search of_groups = {
        .test = test_groups, .user = &g, .n = n_groups, .limit = s->limit - s->tests, .most = n_groups};
    ASSAY_CHECK_GOTO(in && asked && may, ASSAY_OUT_OF_MEMORY, st, done, "%lld operations", (long long)s->n);
    memcpy(may, set, (size_t)s->n * sizeof *may);
    for (int64_t i = 0; i < s->n; i++)
        in[group[i]] = in[group[i]] || set[i];
    ASSAY_TRY_GOTO(bisect_smallest(&of_groups, in), st, done);
    s->stopped = of_groups.stopped;
    memcpy(set, expand(&g, in), (size_t)s->n * sizeof *set);
done:
    bisect_search_forget(&of_groups);
    free(may);
    free(asked);
    free(in);
    return st;
}
