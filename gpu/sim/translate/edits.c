#include "edits.h"

#include <stdlib.h>
#include <string.h>

static edit *edit_make(translation *t, size_t at, size_t bytes)
{
    t->edits = list_room(t->edits, &t->edits_room, t->edits_count, sizeof *t->edits);
    edit *e = &t->edits[t->edits_count];
    *e = (edit){.at = at, .bytes = bytes, .order = t->edits_count};
    ++t->edits_count;
    return e;
}

void edit_before(translation *t, size_t at, const char *with)
{
    text_add(&edit_make(t, t->list.at[at].at, 0)->with, with);
}

void edit_behind(translation *t, size_t at, const char *with)
{
    text_add(&edit_make(t, t->list.at[at].at + t->list.at[at].bytes, 0)->with, with);
}

void edit_replace(translation *t, size_t from, size_t to, const char *with)
{
    const token *a = &t->list.at[from], *b = &t->list.at[to];
    edit *e = edit_make(t, a->at, b->at + b->bytes - a->at);
    text_add(&e->with, with);
    size_t next = from;
    for (size_t i = a->at; i < b->at + b->bytes;) {
        while (next <= to && t->list.at[next].at < i)
            ++next;
        const token *d = &t->list.at[next];
        if (next <= to && d->kind == TOKEN_DIRECTIVE && d->at == i) {
            text_append(&e->with, t->list.source + d->at, d->bytes);
            i += d->bytes;
        } else {
            if (t->list.source[i] == '\n')
                text_append(&e->with, "\n", 1);
            ++i;
        }
    }
}

static int by_place(const void *a, const void *b)
{
    const edit *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

void edits_apply(translation *t, text *out)
{
    const char *s = t->list.source;
    size_t done = 0;
    if (t->edits_count > 1)
        qsort(t->edits, t->edits_count, sizeof *t->edits, by_place);
    for (size_t k = 0; k < t->edits_count; ++k) {
        const edit *e = &t->edits[k];
        if (e->at < done) /* inside a piece that is gone */
            continue;
        text_append(out, s + done, e->at - done);
        text_append(out, e->with.at ? e->with.at : "", e->with.bytes);
        done = e->at + e->bytes;
    }
    text_append(out, s + done, t->list.source_bytes - done);
}

void flat_text(const translation *t, text *out, size_t from, size_t to)
{
    for (size_t i = from; i < to; ++i) {
        const token *k = &t->list.at[i];
        if (k->kind == TOKEN_DIRECTIVE)
            continue;
        if (i > from && t->list.at[i - 1].at + t->list.at[i - 1].bytes != k->at)
            text_append(out, " ", 1);
        text_append(out, t->list.source + k->at, k->bytes);
    }
}

void flat_string(const translation *t, text *out, size_t from, size_t to)
{
    text flat = {0};
    flat_text(t, &flat, from, to);
    text_append(out, "\"", 1);
    for (size_t i = 0; i < flat.bytes; ++i) {
        const char c = flat.at[i];
        if (c == '"' || c == '\\')
            text_append(out, "\\", 1);
        text_append(out, c == '\n' ? " " : &c, 1);
    }
    text_append(out, "\"", 1);
    text_free(&flat);
}

size_t angle_end(const tokens *list, size_t i, size_t end)
{
    size_t depth = 0;
    for (; i < end; ++i) {
        const char c = list->at[i].mark;
        if (c == '(' || c == '[' || c == '{') {
            i = list->at[i].match;
        } else if (c == '<') {
            ++depth;
        } else if (c == '>' &&
                   !(i > 0 && token_run(list, i - 1, '-', 1) && list->at[i - 1].at + 1 == list->at[i].at)) {
            if (--depth == 0)
                return i;
        } else if (c == ';' || c == ')' || c == '}') {
            return end;
        }
    }
    return end;
}

size_t angle_begin(const tokens *list, size_t i)
{
    const size_t nothing = list->count - 1;
    size_t depth = 0;
    for (; i != nothing; i = token_before(list, i)) {
        const char c = list->at[i].mark;
        if (c == ')' || c == ']' || c == '}') {
            i = list->at[i].match;
        } else if (c == '>') {
            ++depth;
        } else if (c == '<') {
            if (--depth == 0)
                return i;
        } else if (c == ';' || c == '(' || c == '{') {
            return nothing;
        }
    }
    return nothing;
}

bool takes_group(const tokens *list, size_t i)
{
    static const char *const words[] = {"__attribute__", "alignas", "decltype", "noexcept",
                                        "__declspec",    "sizeof",  "typeof",   "__typeof__"};
    for (size_t k = 0; k < sizeof words / sizeof *words; ++k) {
        if (token_is(list, i, words[k]))
            return true;
    }
    return false;
}

bool at_file_scope(const tokens *list, size_t i)
{
    const size_t nothing = list->count - 1;
    for (size_t open = list->at[i].within; open != nothing; open = list->at[open].within) {
        if (list->at[open].mark != '{')
            return false;
        size_t b = token_before(list, open);
        if (b != nothing && list->at[b].kind == TOKEN_STRING) /* extern "C" { */
            continue;
        while (b != nothing && (list->at[b].mark == ':' ||
                                (list->at[b].kind == TOKEN_WORD && !token_is(list, b, "namespace"))))
            b = token_before(list, b);
        if (b == nothing || !token_is(list, b, "namespace"))
            return false;
    }
    return true;
}
