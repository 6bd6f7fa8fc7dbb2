/* Python's regular expressions by POSIX's. */
#include "core/base/pattern.h"

#include <regex.h>
#include <string.h>

/* glibc compiles x+ as xx*, so nested ones double what they hold, and takes exponential time for a loop over what can be empty.  Names of
 * modules need neither. */
enum { MOST = 1024, MOST_GROUPS = 64, MOST_NESTED = 3, MOST_REPEATS = 128 };

typedef struct buffer {
    char at[2 * MOST + 16];
    size_t n;
} buffer;

static bool put(buffer *t, const char *s)
{
    const size_t n = strlen(s);
    if (n >= sizeof t->at - t->n)
        return false;
    memcpy(t->at + t->n, s, n + 1);
    t->n += n;
    return true;
}

/* One element of the pattern from p on; NULL: not one that POSIX has. */
static const char *translate(buffer *t, const char *p)
{
    char one[3] = {p[0], '\0', '\0'};
    if (p[0] == '\\')
        one[1] = p[1];
    switch (p[0]) {
    case '\\':
        if (p[1] == 'd')
            return put(t, "[0-9]") ? p + 2 : NULL;
        if (p[1] == 'w')
            return put(t, "[A-Za-z0-9_]") ? p + 2 : NULL;
        return p[1] != '\0' && strchr(".^$*+?()[]{}|\\-_", p[1]) != NULL &&
                       put(t, p[1] == '_' || p[1] == '-' ? one + 1 : one)
                   ? p + 2
                   : NULL;
    case '(':
        if (p[1] == '?')
            return p[2] == ':' && put(t, "(") ? p + 3 : NULL;
        break;
    case '*':
    case '+':
    case '?':
        /* Greedy or not decides nothing where the whole text must match; possessive would. */
        if (p[1] == '+' || p[1] == '*')
            return NULL;
        return put(t, one) ? p + (p[1] == '?' ? 2 : 1) : NULL;
    case '{':
        return NULL;
    case '[': {
        const char *end = strchr(p + (p[1] == '^' ? 3 : 2), ']');
        if (p[1] == '\0' || (p[1] == '^' && p[2] == '\0') || end == NULL)
            return NULL;
        for (; p <= end; p++)
            if (*p == '\\' || !put(t, (const char[]){*p, '\0'}))
                return NULL;
        return p;
    }
    default:
        break;
    }
    return put(t, one) ? p + 1 : NULL;
}

/* --- what glibc would make of it ----------------------------------------------------------------------------- */

/* Some part of the pattern: its repetitions as often as they are copied, how deep they are nested, and whether no character at all
 * matches it. */
typedef struct part {
    int repeats, nested;
    bool empty;
} part;

/* An open group: its alternatives before this one, and this one so far. */
typedef struct group {
    part before, now;
} group;

typedef struct shape {
    group open[MOST_GROUPS];
    int depth;
    part last; /* element, to which a repetition may belong */
    bool has_last, repeated;
} shape;

static void add_last(shape *s)
{
    part *now = &s->open[s->depth].now;
    if (!s->has_last)
        return;
    now->repeats += s->last.repeats;
    now->nested = s->last.nested > now->nested ? s->last.nested : now->nested;
    now->empty = now->empty && s->last.empty;
    s->has_last = false;
}

static void end_alternative(shape *s)
{
    add_last(s);
    group *g = &s->open[s->depth];
    const bool nothing = g->now.empty && g->now.repeats == 0; /* (a|) is as a? */
    g->before.repeats += g->now.repeats + nothing;
    g->before.nested = g->now.nested > g->before.nested ? g->now.nested : g->before.nested;
    g->before.empty = g->before.empty || g->now.empty;
    g->now = (part){.empty = true};
}

static const char *repeat(shape *s, char how)
{
    if (!s->has_last || s->repeated)
        return "there is nothing that it could repeat";
    if (how != '?' && s->last.empty)
        return "it repeats what may be empty";
    s->last.repeats = (how == '+' ? 2 : 1) * s->last.repeats + 1;
    s->last.empty = s->last.empty || how != '+';
    s->repeated = true;
    if (++s->last.nested > MOST_NESTED)
        return "repetitions are nested deeper than 3";
    return s->last.repeats > MOST_REPEATS ? "more than 128 repetitions" : NULL;
}

/* The element at p; what is wrong with it, or NULL. */
static const char *follow(shape *s, const char *p)
{
    if (*p == '+' || *p == '*' || *p == '?')
        return repeat(s, *p);
    if (*p == '|') {
        end_alternative(s);
        return NULL;
    }
    if (*p == ')') {
        if (s->depth == 0)
            return "no group is open";
        end_alternative(s);
        s->last = s->open[s->depth--].before;
    } else if (*p == '(') {
        add_last(s);
        if (++s->depth == MOST_GROUPS)
            return "groups are nested deeper than 63";
        s->open[s->depth] = (group){.now.empty = true};
        return NULL;
    } else {
        add_last(s);
        s->last = (part){.empty = *p == '^' || *p == '$'};
    }
    s->has_last = true;
    s->repeated = false;
    return NULL;
}

/* What is wrong with the whole, at its end. */
static const char *finish(shape *s)
{
    end_alternative(s);
    if (s->depth > 0)
        return "a group is open";
    return s->open[0].before.repeats > MOST_REPEATS ? "more than 128 repetitions" : NULL;
}

assay_status assay_pattern_match(const char *pattern, const char *text, const char *what, bool *matches)
{
    buffer t = {.n = 0};
    regex_t compiled;
    shape s = {.open[0].now.empty = true};
    ASSAY_CHECK(strlen(pattern) <= MOST && pattern[0] != '\0', ASSAY_LIMIT,
                "%s: expected a pattern of 1 to %d characters", what, (int)MOST);
    (void)put(&t, "^(");
    for (const char *p = pattern; *p != '\0';) {
        const char *wrong = follow(&s, p);
        ASSAY_CHECK(wrong == NULL, ASSAY_UNSUPPORTED,
                    "%s: the pattern %.100s is not read from '%.20s' on: %s", what, pattern, p, wrong);
        const char *next = translate(&t, p);
        ASSAY_CHECK(next != NULL, ASSAY_UNSUPPORTED, "%s: the pattern %.100s is not read from '%.20s' on",
                    what, pattern, p);
        p = next;
    }
    const char *wrong = finish(&s);
    ASSAY_CHECK(wrong == NULL, ASSAY_UNSUPPORTED, "%s: the pattern %.100s is not read: %s", what, pattern,
                wrong);
    ASSAY_CHECK(put(&t, ")$") && regcomp(&compiled, t.at, REG_EXTENDED | REG_NOSUB) == 0, ASSAY_FORMAT,
                "%s: %.100s is no pattern", what, pattern);
    *matches = regexec(&compiled, text, 0, NULL, 0) == 0;
    regfree(&compiled);
    return ASSAY_OK;
}
