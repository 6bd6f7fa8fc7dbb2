/* A kernel's definition becomes a function of the same name and type whose body is handed on:
 *
 *   void k(float *x, int n) { ::assay_sim::kernel("k", +[](float *x, int n) { .. }, x, n); }
 */
#include "edits.h"

typedef struct parameter {
    size_t from, to; /* without the default value */
    size_t name;     /* the list's end: it has none */
    bool pack;
} parameter;

static bool type_word(const tokens *l, size_t i)
{
    static const char *const words[] = {"int",     "unsigned", "signed",       "long",     "short",
                                        "char",    "float",    "double",       "bool",     "void",
                                        "const",   "volatile", "auto",         "wchar_t",  "char16_t",
                                        "char8_t", "char32_t", "__restrict__", "struct",   "class",
                                        "enum",    "union",    "__restrict",   "typename", "__int128"};
    for (size_t k = 0; k < sizeof words / sizeof *words; ++k) {
        if (token_is(l, i, words[k]))
            return true;
    }
    return false;
}

/* Could the token before a word be the end of a type, so that the word is the parameter's name? */
static bool ends_type(const tokens *l, size_t i)
{
    const char c = l->at[i].mark;
    if (l->at[i].kind == TOKEN_WORD)
        return !token_is(l, i, "struct") && !token_is(l, i, "class") && !token_is(l, i, "enum") &&
               !token_is(l, i, "union") && !token_is(l, i, "typename");
    return c == '>' || c == '*' || c == '&' || c == '.' || c == ')';
}

static bool parameter_read(translation *t, size_t from, size_t to, parameter *p)
{
    const tokens *l = &t->list;
    const size_t nothing = l->count - 1;
    size_t last = nothing, before = nothing, group = nothing, words = 0;
    *p = (parameter){.from = from, .to = to, .name = nothing};
    for (size_t i = from; i < to; i = token_after(l, i)) {
        const char c = l->at[i].mark;
        if (l->at[i].kind == TOKEN_DIRECTIVE || token_is(l, i, "const") || token_is(l, i, "volatile"))
            continue; /* `const T` has no name, `T *const x` has one */
        if (c == '=') {
            p->to = i;
            break;
        }
        if (takes_group(l, i) && l->at[token_after(l, i)].mark == '(') {
            i = l->at[token_after(l, i)].match;
            before = i;
            continue;
        }
        if (c == '(' && group == nothing)
            group = i;
        if (c == '[' && group == nothing) {
            group = i; /* an array: its name stands before */
            if (last == nothing)
                return complain(t->why, l, i, "a kernel's parameter is an array without a name");
        }
        if (c == '(' || c == '[' || c == '{') {
            i = l->at[i].match;
        } else if (c == '<') {
            i = angle_end(l, i, to);
            before = i;
            last = nothing;
        } else if (c == '.') {
            p->pack = true;
            before = i;
        } else if (l->at[i].kind == TOKEN_WORD && group == nothing) {
            ++words;
            last = before != nothing && ends_type(l, before) && !type_word(l, i) ? i : nothing;
            before = i;
        } else {
            if (c == '*' || c == '&' || c == ':')
                last = nothing;
            before = i;
        }
    }
    if (p->to == from)
        return complain(t->why, l, from, "a kernel's parameter without a type");
    if (group != nothing && l->at[group].mark == '(') { /* void (*f)(int) */
        last = nothing;
        for (size_t i = group + 1; i < l->at[group].match; ++i) {
            if (l->at[i].kind == TOKEN_WORD)
                last = i;
        }
        if (last == nothing)
            return complain(t->why, l, group, "a kernel's parameter whose name is not seen");
    }
    p->name = last;
    return words > 0 || last != nothing || before != nothing;
}

static bool parameters_read(translation *t, size_t open, text *list, text *arguments)
{
    const tokens *l = &t->list;
    const size_t close = l->at[open].match, nothing = l->count - 1;
    size_t from = token_after(l, open);
    int number = 0;
    if (from == close || (token_is(l, from, "void") && token_after(l, from) == close))
        return true;
    while (from <= close && from != nothing) {
        size_t to = from;
        bool value = false; /* a default value: `<` compares there */
        while (to != close && l->at[to].mark != ',') {
            const char c = l->at[to].mark;
            value = value || c == '=';
            if (c == '(' || c == '[' || c == '{')
                to = l->at[to].match;
            else if (c == '<' && !value)
                to = angle_end(l, to, close);
            if (to == close)
                return complain(t->why, l, from, "a kernel's parameters: '<' without '>'");
            to = token_after(l, to);
        }
        parameter p;
        if (from == to)
            return complain(t->why, l, from, "a kernel's parameter without a type");
        if (!parameter_read(t, from, to, &p))
            return false;
        text_add(list, number ? ", " : "");
        flat_text(t, list, p.from, p.to);
        text_add(arguments, ", ");
        if (p.name == nothing) {
            text made = {0};
            if (p.pack)
                return complain(t->why, l, from, "a kernel's pack of parameters without a name");
            text_addf(&made, " assay_argument_%d", number);
            size_t behind = p.to;
            do
                behind = token_before(l, behind);
            while (behind > p.from && l->at[behind].kind == TOKEN_DIRECTIVE);
            edit_behind(t, behind, made.at);
            text_add(arguments, made.at);
            text_free(&made);
        } else {
            flat_text(t, arguments, p.name, p.name + 1);
            text_add(arguments, p.pack ? "..." : "");
        }
        ++number;
        if (to == close)
            return true;
        from = token_after(l, to);
    }
    return true;
}

bool kernel_name(translation *t, size_t at, size_t *name_at, size_t *open_at)
{
    const tokens *l = &t->list;
    size_t i = token_after(l, at), open = 0;
    while (open == 0) {
        const char c = l->at[i].mark;
        if (takes_group(l, i) && l->at[token_after(l, i)].mark == '(') {
            i = l->at[token_after(l, i)].match;
        } else if (c == '(') {
            open = i;
            break;
        } else if (c == '<') {
            const size_t end = angle_end(l, i, l->count - 1);
            if (end == l->count - 1)
                return complain(t->why, l, i, "a __global__ function's name: '<' without '>'");
            i = end;
        } else if (c == ';' || c == '{' || c == '}' || c == ')' || l->at[i].kind == TOKEN_END) {
            return complain(t->why, l, at, "__global__ without a function");
        }
        i = token_after(l, i);
    }
    size_t name = token_before(l, open);
    if (l->at[name].mark == '>')
        name = token_before(l, angle_begin(l, name));
    if (l->at[name].kind != TOKEN_WORD || type_word(l, name))
        return complain(t->why, l, at, "__global__ without a function's name");
    *name_at = name;
    *open_at = open;
    return true;
}

bool translate_kernel(translation *t, size_t at)
{
    const tokens *l = &t->list;
    size_t name = 0, open = 0;
    if (!kernel_name(t, at, &name, &open))
        return false;
    edit_replace(t, at, at, "");
    size_t body = token_after(l, l->at[open].match);
    while (l->at[body].mark != '{' && l->at[body].mark != ';' && l->at[body].mark != '=' &&
           l->at[body].mark != ',') {
        if (l->at[body].kind == TOKEN_END || l->at[body].mark == '}' || l->at[body].mark == ')')
            return complain(t->why, l, at, "a __global__ function without a body or ';'");
        body = l->at[body].mark == '(' || l->at[body].mark == '[' ? token_after(l, l->at[body].match)
                                                                  : token_after(l, body);
    }
    if (l->at[body].mark != '{')
        return true; /* a declaration */
    ++t->counts->kernels;
    text list = {0}, arguments = {0}, with = {0};
    text_add(&list, "");
    text_add(&arguments, "");
    const bool good = parameters_read(t, open, &list, &arguments);
    if (good) {
        text_add(&with, " ::assay_sim::kernel(");
        flat_string(t, &with, name, name + 1);
        text_addf(&with, ", +[](%s) {", list.at);
        edit_behind(t, body, with.at);
        text end = {0};
        text_addf(&end, "}%s); ", arguments.at);
        edit_before(t, l->at[body].match, end.at);
        text_free(&end);
    }
    text_free(&list);
    text_free(&arguments);
    text_free(&with);
    return good;
}
