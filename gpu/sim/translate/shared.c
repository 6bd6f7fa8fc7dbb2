/* Shared memory: `__shared__ float a[4], b;` declares one guarded array for each name, `extern __shared__ float s[];` is the
 * block's dynamic memory.  The type of each name is that of the same declaration inside a made-up structure, which also
 * tells one array from another.  Outside functions, the name's uses are rewritten instead. */
#include "edits.h"

#include <string.h>

static bool declaration_stops(const tokens *l, size_t i)
{
    const char c = l->at[i].mark;
    if (l->at[i].kind == TOKEN_END || c == ';' || c == '{' || c == '(')
        return true;
    if (c == '}') /* a structure's body belongs to the declaration: struct {..} __shared__ s; */
        return true;
    if (c == ')') {
        const size_t before = token_before(l, l->at[i].match);
        return !takes_group(l, before);
    }
    if (c == ':') { /* a label, not :: */
        const size_t before = token_before(l, i), after = token_after(l, i);
        return l->at[before].mark != ':' && l->at[after].mark != ':';
    }
    return false;
}

static size_t declaration_begin(const tokens *l, size_t at)
{
    size_t start = at;
    for (size_t i = token_before(l, at); !declaration_stops(l, i); i = token_before(l, i)) {
        start = i;
        if (l->at[i].mark == ')')
            start = i = l->at[i].match;
    }
    return start;
}

typedef struct declarator {
    size_t from, to, name;
} declarator;

/* The next ',' or ';' outside brackets and template arguments. */
static size_t segment_end(const tokens *l, size_t i)
{
    for (;; i = token_after(l, i)) {
        const char c = l->at[i].mark;
        if (c == ',' || c == ';' || l->at[i].kind == TOKEN_END)
            return i;
        if (c == '(' || c == '[' || c == '{') {
            i = l->at[i].match;
        } else if (c == '<') {
            const size_t end = angle_end(l, i, l->count - 1);
            if (end != l->count - 1)
                i = end;
        }
    }
}

static bool is_storage(const tokens *l, size_t i)
{
    return token_is(l, i, "extern") || token_is(l, i, "static") || token_is(l, i, "__shared__") ||
           token_is(l, i, "inline");
}

static bool declarator_read(translation *t, size_t from, size_t to, bool first, declarator *d)
{
    const tokens *l = &t->list;
    const size_t nothing = l->count - 1;
    size_t last = nothing, begin = from;
    *d = (declarator){from, to, nothing};
    for (size_t i = from; i < to; i = token_after(l, i)) {
        const char c = l->at[i].mark;
        const size_t next = token_after(l, i);
        if (takes_group(l, i) && l->at[next].mark == '(') {
            i = l->at[next].match;
        } else if (c == '(') { /* (*name)[3] */
            for (size_t k = i + 1; k < l->at[i].match; ++k) {
                if (l->at[k].kind == TOKEN_WORD)
                    last = k;
            }
            if (last == nothing || last < i)
                return complain(t->why, l, i, "a __shared__ variable whose name is not seen");
            begin = first ? i : from;
            break;
        } else if (c == '[') {
            break;
        } else if (c == '{') {
            if (i > from && l->at[token_before(l, i)].mark == '=')
                break;
            i = l->at[i].match;
        } else if (c == '<') {
            i = angle_end(l, i, to);
            last = nothing;
        } else if (c == '=') {
            return complain(t->why, l, i, "a __shared__ variable with an initial value, which CUDA refuses");
        } else if (l->at[i].kind == TOKEN_WORD && !is_storage(l, i)) {
            last = i;
            begin = first ? i : from;
        }
    }
    if (last == nothing)
        return complain(t->why, l, from, "a __shared__ variable without a name");
    while (first && begin > from) { /* the stars belong to this name alone */
        const size_t before = token_before(l, begin);
        if (before < from ||
            !(l->at[before].mark == '*' || l->at[before].mark == '&' || token_is(l, before, "__restrict__")))
            break;
        begin = before;
    }
    d->name = last;
    d->from = begin;
    return true;
}

/* The token, behind a space where the source has one: `::` stays one. */
static void spaced(const translation *t, text *out, size_t i)
{
    const token *k = &t->list.at[i];
    if (i > 0 && k[-1].at + k[-1].bytes != k->at)
        text_append(out, " ", 1);
    text_append(out, t->list.source + k->at, k->bytes);
}

/* The declaration's own words, without those that say where it lies. */
static void specifiers(translation *t, text *out, size_t from, size_t to)
{
    const tokens *l = &t->list;
    for (size_t i = from; i < to; ++i) {
        if (l->at[i].kind == TOKEN_DIRECTIVE || is_storage(l, i))
            continue;
        spaced(t, out, i);
    }
    text_append(out, " ", 1);
}

/* Its type in a structure: `[]` becomes `[1]`. */
static bool member(translation *t, text *out, const declarator *d, bool dynamic)
{
    const tokens *l = &t->list;
    bool open_array = false;
    for (size_t i = d->from; i < d->to; ++i) {
        if (l->at[i].kind == TOKEN_DIRECTIVE)
            continue;
        if (i == d->from)
            flat_text(t, out, i, i + 1);
        else
            spaced(t, out, i);
        if (l->at[i].mark == '[' && l->at[i].match == token_after(l, i)) {
            text_append(out, "1", 1);
            open_array = true;
        }
    }
    if (dynamic && !open_array)
        return complain(t->why, l, d->name, "extern __shared__ that is no array of open length");
    if (!dynamic && open_array)
        return complain(t->why, l, d->name, "a __shared__ array of open length without extern");
    return true;
}

static void rename_from(translation *t, size_t name, size_t from, const char *with)
{
    t->names = list_room(t->names, &t->names_room, t->names_count, sizeof *t->names);
    renaming *r = &t->names[t->names_count++];
    *r = (renaming){.from = from};
    text_append(&r->word, t->list.source + t->list.at[name].at, t->list.at[name].bytes);
    text_add(&r->with, with);
}

bool translate_shared(translation *t, size_t at)
{
    const tokens *l = &t->list;
    const size_t begin = declaration_begin(l, at);
    const bool outside = at_file_scope(l, at);
    bool dynamic = false;
    for (size_t i = begin; i < at; ++i)
        dynamic = dynamic || token_is(l, i, "extern");
    size_t from = begin, end;
    text out = {0}, words = {0};
    bool good = true;
    for (bool first = true;; first = false) {
        declarator d;
        end = segment_end(l, from);
        for (size_t i = from; first && i < end; ++i)
            dynamic = dynamic || token_is(l, i, "extern");
        if (l->at[end].kind == TOKEN_END) {
            good = complain(t->why, l, at, "a __shared__ declaration without ';'");
            break;
        }
        if (!declarator_read(t, from, end, first, &d)) {
            good = false;
            break;
        }
        if (first)
            specifiers(t, &words, begin, d.from);
        text name = {0};
        flat_text(t, &name, d.name, d.name + 1);
        const int serial = ++t->serial, line = l->at[d.name].line;
        text_addf(&out, "struct assay_shared_%d {%s", serial, words.at ? words.at : "");
        good = member(t, &out, &d, dynamic);
        text_add(&out, "; };");
        text use = {0};
        if (dynamic) {
            text_addf(&use, "::assay_sim::dynamic_shared<decltype(assay_shared_%d::%s)>(%d)", serial, name.at,
                      line);
        } else {
            text_addf(&use,
                      "::assay_sim::shared_array<decltype(assay_shared_%d::%s), assay_shared_%d>(\"%s\", %d)",
                      serial, name.at, serial, name.at, line);
        }
        if (outside) {
            text called = {0};
            text_addf(&called, "(%s)", use.at);
            rename_from(t, d.name, end, called.at);
            text_free(&called);
        } else {
            text_addf(&out, " auto %s%s = %s;", dynamic ? "*" : "&", name.at, use.at);
        }
        text_free(&use);
        text_free(&name);
        *(dynamic ? &t->counts->dynamic_shared : &t->counts->shared) += 1;
        if (!good || l->at[end].mark == ';')
            break;
        from = token_after(l, end);
    }
    if (good)
        edit_replace(t, begin, end, out.at);
    text_free(&out);
    text_free(&words);
    return good;
}
