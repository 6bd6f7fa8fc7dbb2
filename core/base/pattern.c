/* Python's regular expressions by POSIX's. */
#include "core/base/pattern.h"

#include <regex.h>
#include <string.h>

enum { MOST = 1024 };

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

assay_status assay_pattern_match(const char *pattern, const char *text, const char *what, bool *matches)
{
    buffer t = {.n = 0};
    regex_t compiled;
    ASSAY_CHECK(strlen(pattern) <= MOST && pattern[0] != '\0', ASSAY_LIMIT,
                "%s: expected a pattern of 1 to %d characters", what, (int)MOST);
    (void)put(&t, "^(");
    for (const char *p = pattern; *p != '\0';) {
        const char *next = translate(&t, p);
        ASSAY_CHECK(next != NULL, ASSAY_UNSUPPORTED, "%s: the pattern %.100s is not read from '%.20s' on",
                    what, pattern, p);
        p = next;
    }
    ASSAY_CHECK(put(&t, ")$") && regcomp(&compiled, t.at, REG_EXTENDED | REG_NOSUB) == 0, ASSAY_FORMAT,
                "%s: %.100s is no pattern", what, pattern);
    *matches = regexec(&compiled, text, 0, NULL, 0) == 0;
    regfree(&compiled);
    return ASSAY_OK;
}
