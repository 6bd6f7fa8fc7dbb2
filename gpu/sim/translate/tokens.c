#include "tokens.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    tokens *list;
    const char *s;
    size_t n, i;
    int line, file;
    bool system;
    complaint *why;
} reader;

static int name_index(tokens *list, const char *name, size_t bytes)
{
    for (size_t k = list->names_count; k-- > 0;) {
        if (strlen(list->names[k]) == bytes && memcmp(list->names[k], name, bytes) == 0)
            return (int)k;
    }
    list->names = list_room(list->names, &list->names_room, list->names_count, sizeof *list->names);
    text t = {0};
    text_append(&t, name, bytes);
    list->names[list->names_count] = t.at;
    return (int)list->names_count++;
}

/* The i-th character, or the one that ends the text. */
static char char_at(const reader *r, size_t i)
{
    if (i < r->n)
        return r->s[i];
    return '\0';
}

static bool fail(reader *r, int line, const char *what)
{
    snprintf(r->why->file, sizeof r->why->file, "%s", r->list->names[r->file]);
    r->why->line = line;
    snprintf(r->why->text, sizeof r->why->text, "%s", what);
    return false;
}

static void push(reader *r, token_kind kind, size_t at, int line)
{
    tokens *l = r->list;
    l->at = list_room(l->at, &l->room, l->count, sizeof *l->at);
    l->at[l->count++] = (token){.kind = (unsigned char)kind,
                                .system = r->system,
                                .mark = '\0',
                                .line = line,
                                .file = r->file,
                                .at = at,
                                .bytes = r->i - at};
    if (kind == TOKEN_MARK)
        l->at[l->count - 1].mark = r->s[at];
}

static bool word_start(char c)
{
    return isalpha((unsigned char)c) || c == '_' || c == '$' || (unsigned char)c >= 0x80;
}

static bool word_part(char c)
{
    return word_start(c) || isdigit((unsigned char)c);
}

/* i stands on the quote. */
static bool read_quoted(reader *r, char quote)
{
    const int line = r->line;
    ++r->i;
    while (r->i < r->n && r->s[r->i] != quote && r->s[r->i] != '\n') {
        if (r->s[r->i] == '\\' && r->i + 1 < r->n) {
            ++r->i;
            r->line += r->s[r->i] == '\n';
        }
        ++r->i;
    }
    if (r->i >= r->n || r->s[r->i] != quote)
        return fail(r, line, quote == '"' ? "a string that does not end" : "a character that does not end");
    ++r->i;
    return true;
}

/* i stands on the quote of R"word( ... )word". */
static bool read_raw(reader *r)
{
    const int line = r->line;
    const size_t word = ++r->i;
    while (r->i < r->n && r->s[r->i] != '(' && r->i - word <= 16)
        ++r->i;
    const size_t bytes = r->i - word;
    if (r->i >= r->n || bytes > 16)
        return fail(r, line, "a raw string without its '('");
    for (; r->i < r->n; ++r->i) {
        r->line += r->s[r->i] == '\n';
        if (r->s[r->i] == ')' && r->n - r->i > bytes + 1 &&
            memcmp(r->s + r->i + 1, r->s + word, bytes) == 0 && r->s[r->i + 1 + bytes] == '"') {
            r->i += bytes + 2;
            return true;
        }
    }
    return fail(r, line, "a raw string that does not end");
}

static bool read_comment(reader *r)
{
    const int line = r->line;
    for (r->i += 2; r->i + 1 < r->n; ++r->i) {
        r->line += r->s[r->i] == '\n';
        if (r->s[r->i] == '*' && r->s[r->i + 1] == '/') {
            r->i += 2;
            return true;
        }
    }
    return fail(r, line, "a comment that does not end");
}

/* # 12 "name" 1 3   or   #line 12 "name": what follows is line 12 of that file. */
static void read_marker(reader *r, size_t at)
{
    size_t i = at + 1;
    const size_t end = r->i;
    while (i < end && (r->s[i] == ' ' || r->s[i] == '\t'))
        ++i;
    const bool named = end - i > 5 && memcmp(r->s + i, "line", 4) == 0 && isspace((unsigned char)r->s[i + 4]);
    if (named)
        i += 5;
    if (i >= end || !isdigit((unsigned char)r->s[i]))
        return;
    long line = 0;
    for (; i < end && isdigit((unsigned char)r->s[i]); ++i)
        line = line < 100000000 ? 10 * line + (r->s[i] - '0') : line;
    while (i < end && r->s[i] != '"')
        ++i;
    if (i < end) {
        const size_t name = ++i;
        while (i < end && r->s[i] != '"')
            ++i;
        r->file = name_index(r->list, r->s + name, i - name);
        if (!named) {
            r->system = false;
            for (; i < end; ++i)
                r->system = r->system || r->s[i] == '3';
        }
    }
    r->line = (int)line - 1; /* the newline that ends the marker */
}

static bool read_directive(reader *r)
{
    const size_t at = r->i;
    const int line = r->line;
    while (r->i < r->n && r->s[r->i] != '\n') {
        if (r->s[r->i] == '\\' && r->i + 1 < r->n && r->s[r->i + 1] == '\n') {
            r->i += 2;
            ++r->line;
        } else if (r->s[r->i] == '/' && r->i + 1 < r->n && r->s[r->i + 1] == '*') {
            if (!read_comment(r))
                return false;
        } else {
            ++r->i;
        }
    }
    push(r, TOKEN_DIRECTIVE, at, line);
    read_marker(r, at);
    return true;
}

static bool read_word(reader *r)
{
    const size_t at = r->i;
    const int line = r->line;
    while (r->i < r->n && word_part(r->s[r->i]))
        ++r->i;
    const char next = char_at(r, r->i);
    const size_t bytes = r->i - at;
    if (bytes <= 3 && (next == '"' || next == '\'')) { /* L"", u8R"()", u'' */
        const char *prefixes[] = {"L", "u", "U", "u8", "R", "LR", "uR", "UR", "u8R"};
        for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; ++k) {
            if (strlen(prefixes[k]) != bytes || memcmp(prefixes[k], r->s + at, bytes) != 0)
                continue;
            const bool raw = r->s[r->i - 1] == 'R';
            if (raw && next == '\'')
                break;
            if (!(raw ? read_raw(r) : read_quoted(r, next)))
                return false;
            push(r, next == '"' ? TOKEN_STRING : TOKEN_CHARACTER, at, line);
            return true;
        }
    }
    push(r, TOKEN_WORD, at, line);
    return true;
}

static void read_number(reader *r)
{
    const size_t at = r->i;
    while (r->i < r->n) {
        const char c = r->s[r->i], before = r->s[r->i - (r->i > at)];
        const bool sign = (c == '+' || c == '-') && r->i > at && strchr("eEpP", before) != NULL;
        const bool separator = c == '\'' && r->i + 1 < r->n && isalnum((unsigned char)r->s[r->i + 1]);
        if (!word_part(c) && c != '.' && !sign && !separator)
            break;
        ++r->i;
    }
    push(r, TOKEN_NUMBER, at, r->line);
}

static bool read_all(reader *r)
{
    bool fresh = true; /* nothing but space in this line yet */
    while (r->i < r->n) {
        const char c = r->s[r->i], next = char_at(r, r->i + 1);
        if (c == '\n') {
            ++r->line;
            ++r->i;
            fresh = true;
        } else if (c == '\\' && next == '\n') {
            ++r->line;
            r->i += 2;
        } else if (isspace((unsigned char)c) || c == 0) {
            ++r->i;
        } else if (c == '/' && next == '/') {
            while (r->i < r->n && r->s[r->i] != '\n') {
                if (r->s[r->i] == '\\' && r->i + 1 < r->n && r->s[r->i + 1] == '\n') {
                    ++r->line;
                    ++r->i;
                }
                ++r->i;
            }
        } else if (c == '/' && next == '*') {
            if (!read_comment(r))
                return false;
        } else if (c == '#' && fresh) {
            if (!read_directive(r))
                return false;
        } else {
            fresh = false;
            const size_t at = r->i;
            const int line = r->line;
            if (word_start(c)) {
                if (!read_word(r))
                    return false;
            } else if (isdigit((unsigned char)c) || (c == '.' && isdigit((unsigned char)next))) {
                read_number(r);
            } else if (c == '"' || c == '\'') {
                if (!read_quoted(r, c))
                    return false;
                push(r, c == '"' ? TOKEN_STRING : TOKEN_CHARACTER, at, line);
            } else {
                ++r->i;
                push(r, TOKEN_MARK, at, line);
            }
        }
    }
    push(r, TOKEN_END, r->i, r->line);
    return true;
}

static bool match_brackets(tokens *list, complaint *why)
{
    const size_t nothing = list->count - 1;
    size_t open = nothing; /* the innermost; its `within` leads outwards */
    for (size_t i = 0; i < list->count; ++i) {
        token *t = &list->at[i];
        const char c = t->mark;
        t->match = nothing;
        t->within = open;
        if (c == '(' || c == '[' || c == '{') {
            open = i;
        } else if (c == ')' || c == ']' || c == '}') {
            if (open == nothing)
                return complain(why, list, i, "'%c' closes nothing", c);
            const char want = list->at[open].mark;
            if (want != (c == ')' ? '(' : c == ']' ? '[' : '{')) {
                return complain(why, list, i, "'%c' closes the '%c' of line %d", c, want,
                                list->at[open].line);
            }
            t->match = open;
            t->within = list->at[open].within;
            list->at[open].match = i;
            open = t->within;
        }
    }
    return open == nothing || complain(why, list, open, "this '%c' is never closed", list->at[open].mark);
}

bool tokens_read(tokens *list, const char *source, size_t bytes, const char *name, complaint *why)
{
    *list = (tokens){.source = source, .source_bytes = bytes};
    reader r = {.list = list, .s = source, .n = bytes, .line = 1, .why = why};
    r.file = name_index(list, name, strlen(name));
    return read_all(&r) && match_brackets(list, why);
}

void tokens_free(tokens *list)
{
    for (size_t i = 0; i < list->names_count; ++i)
        free(list->names[i]);
    free(list->names);
    free(list->at);
    *list = (tokens){0};
}

bool token_is(const tokens *list, size_t i, const char *word)
{
    const token *t = &list->at[i];
    return t->kind == TOKEN_WORD && strlen(word) == t->bytes &&
           memcmp(list->source + t->at, word, t->bytes) == 0;
}

bool token_mark(const tokens *list, size_t i, char mark)
{
    return list->at[i].mark == mark;
}

bool token_run(const tokens *list, size_t i, char mark, size_t run)
{
    for (size_t k = 0; k < run; ++k) {
        if (i + k >= list->count || list->at[i + k].mark != mark)
            return false;
    }
    return true;
}

size_t token_after(const tokens *list, size_t i)
{
    while (i + 1 < list->count && list->at[++i].kind == TOKEN_DIRECTIVE)
        continue;
    return i;
}

size_t token_before(const tokens *list, size_t i)
{
    while (i > 0) {
        if (list->at[--i].kind != TOKEN_DIRECTIVE)
            return i;
    }
    return list->count - 1;
}

bool complain(complaint *why, const tokens *list, size_t i, const char *format, ...)
{
    const token *t = &list->at[i];
    va_list args;
    va_start(args, format);
    snprintf(why->file, sizeof why->file, "%s", list->names[t->file]);
    why->line = t->line;
    vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return false;
}
