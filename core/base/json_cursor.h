/* JSON as our own writers put it (core/base/json_text.h), read without a tree where there are thousands of values: no blanks, members in
 * one order, plain strings.  A cursor that has met anything else stays where nothing is good any more, and its caller leaves the text to
 * the JSON reader, which knows what else is legal and says what is not. */
#ifndef ASSAY_CORE_JSON_CURSOR_H
#define ASSAY_CORE_JSON_CURSOR_H

#include "core/base/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

ASSAY_BEGIN_DECLS

typedef struct assay_cursor {
    const char *at, *end;
    bool good; /* so far it is what the writer writes */
} assay_cursor;

/* Takes `word` if it comes next. */
static inline bool assay_cursor_is(assay_cursor *c, const char *word)
{
    const size_t n = strlen(word);
    if (!c->good || (size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    c->at += n;
    return true;
}

static inline void assay_cursor_expect(assay_cursor *c, const char *word)
{
    c->good = assay_cursor_is(c, word);
}

/* A number of at most 18 digits, as JSON writes it. */
static inline int64_t assay_cursor_integer(assay_cursor *c)
{
    const bool minus = assay_cursor_is(c, "-");
    const char *first = c->at;
    int64_t value = 0;
    while (c->good && c->at < c->end && *c->at >= '0' && *c->at <= '9' && c->at - first < 18)
        value = 10 * value + (*c->at++ - '0');
    c->good = c->good && c->at > first && (*first != '0' || (c->at == first + 1 && !minus));
    return minus ? -value : value;
}

/* The rest of a string, printable ASCII without an escape. */
static inline void assay_cursor_string(assay_cursor *c, char *out, size_t capacity)
{
    size_t n = 0;
    while (c->good && c->at < c->end && *c->at >= ' ' && *c->at <= '~' && *c->at != '"' && *c->at != '\\' &&
           n + 1 < capacity)
        out[n++] = *c->at++;
    out[n] = '\0';
    assay_cursor_expect(c, "\"");
}

/* "[1,2]" */
static inline int assay_cursor_integers(assay_cursor *c, int64_t *out, int capacity)
{
    int n = 0;
    assay_cursor_expect(c, "[");
    while (c->good && !assay_cursor_is(c, "]")) {
        if (n > 0)
            assay_cursor_expect(c, ",");
        if (n == capacity)
            c->good = false;
        else
            out[n++] = assay_cursor_integer(c);
    }
    return n;
}

static inline void assay_cursor_dtype(assay_cursor *c, assay_dtype *out)
{
    char text[32];
    assay_cursor_string(c, text, sizeof text);
    int k = 0;
    while (k < ASSAY_DTYPE_COUNT && strcmp(text, assay_dtype_name((assay_dtype)k)) != 0)
        k++;
    c->good = c->good && k < ASSAY_DTYPE_COUNT;
    *out = (assay_dtype)k;
}

ASSAY_END_DECLS

#endif
