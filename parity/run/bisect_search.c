/* The smallest set of elements that heals: by halving prefixes where it has few, by delta debugging over groups where it has many.
 *
 * Of the elements in order of execution the shortest prefix that heals ends with one that is needed: everything before it does not
 * heal without it, and nothing behind it is asked for help.  That one stays; what has to come before it is searched the same
 * way.  |set| * log2(n) tests where what heals still heals with more in it; where it does not, the last pass still leaves a set of
 * which no single element can be left out.
 *
 * A set of many elements (a precision, a kernel that is wrong in every layer) would cost that for each of them.  Groups of elements are
 * tried then by ddmin (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002): parts, what is left without
 * a part, then smaller parts. */
#include "parity/run/bisect.h"

#include <stdlib.h>
#include <string.h>

typedef struct prefix {
    bisect_search *s;
    int64_t n;            /* elements that may be replaced ... */
    const int64_t *index; /* ... [n], in order of execution */
    bool *needed, *asked; /* of all elements */
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

assay_status bisect_thin_out(bisect_search *s, bool *set)
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

/* --- groups ------------------------------------------------------------------------------------------------- */
typedef struct groups {
    bisect_search *s;
    const int64_t *of; /* group of each element */
    const bool *may;   /* elements that may be replaced */
    bool *in, *asked;  /* [groups], [elements] */
    int64_t n, *left;  /* groups that are left, in order */
} groups;

/* Tests the groups [first, last) of those that are left, or all others; keeps them when they heal. */
static assay_status try_part(groups *g, int64_t first, int64_t last, bool others, bool *healed)
{
    int64_t n = 0;
    for (int64_t i = 0; i < g->n; i++)
        g->in[g->left[i]] = (i >= first && i < last) != others;
    for (int64_t i = 0; i < g->s->n; i++)
        g->asked[i] = g->may[i] && g->in[g->of[i]];
    ASSAY_TRY(test(g->s, g->asked, healed));
    for (int64_t i = 0; *healed && i < g->n; i++)
        if (g->in[g->left[i]])
            g->left[n++] = g->left[i];
    g->n = *healed ? n : g->n;
    return ASSAY_OK;
}

static assay_status ddmin(groups *g)
{
    int64_t parts = 2;
    while (g->n > 1 && !g->s->stopped) {
        bool healed = false;
        for (int64_t i = 0; i < parts && !healed && !g->s->stopped; i++)
            ASSAY_TRY(try_part(g, i * g->n / parts, (i + 1) * g->n / parts, false, &healed));
        if (healed) {
            parts = 2;
            continue;
        }
        for (int64_t i = 0; i < parts && parts > 2 && !healed && !g->s->stopped; i++)
            ASSAY_TRY(try_part(g, i * g->n / parts, (i + 1) * g->n / parts, true, &healed));
        if (!healed && parts >= g->n)
            break;
        parts = healed ? parts - 1 : 2 * parts;
        parts = parts < g->n ? parts : g->n;
    }
    return ASSAY_OK;
}

assay_status bisect_fewest_groups(bisect_search *s, const int64_t *group, int64_t n_groups, bool *set)
{
    assay_status st = ASSAY_OK;
    bool *in = calloc((size_t)n_groups + 1, sizeof *in), *asked = calloc((size_t)s->n + 1, sizeof *asked);
    bool *may = calloc((size_t)s->n + 1, sizeof *may);
    int64_t *left = calloc((size_t)n_groups + 1, sizeof *left);
    groups g = {.s = s, .of = group, .may = may, .in = in, .asked = asked, .left = left};
    ASSAY_CHECK_GOTO(in && asked && may && left, ASSAY_OUT_OF_MEMORY, st, done, "%lld operations",
                     (long long)s->n);
    memcpy(may, set, (size_t)s->n * sizeof *may);
    for (int64_t i = 0; i < s->n; i++)
        in[group[i]] = in[group[i]] || set[i];
    for (int64_t k = 0; k < n_groups; k++)
        if (in[k])
            left[g.n++] = k;
    ASSAY_TRY_GOTO(ddmin(&g), st, done);
    memset(in, 0, (size_t)n_groups * sizeof *in);
    for (int64_t i = 0; i < g.n; i++)
        in[left[i]] = true;
    for (int64_t i = 0; i < s->n; i++)
        set[i] = may[i] && in[group[i]];
done:
    free(left);
    free(may);
    free(asked);
    free(in);
    return st;
}
