/* k<T><<<grid, block, bytes, stream>>>(a, b): the configuration moves in front, the kernel and its arguments stay. */
#include "edits.h"

/* Words that stand in front of a statement or a condition, not of a call's arguments. */
static bool is_keyword(const tokens *l, size_t i)
{
    static const char *const words[] = {"return", "else", "do", "if", "while", "for", "switch", "case"};
    for (size_t k = 0; k < sizeof words / sizeof *words; ++k) {
        if (token_is(l, i, words[k]))
            return true;
    }
    return false;
}

/* Where the expression that names the kernel begins: k, ns::k<T>, table[i], s.kernel, p->kernel, (*f), choose(x). */
static size_t kernel_begin(const tokens *l, size_t at)
{
    const size_t nothing = l->count - 1;
    size_t p = token_before(l, at), start = nothing;
    while (p != nothing) {
        const char c = l->at[p].mark;
        if (c == '>') {
            p = angle_begin(l, p);
            if (p == nothing)
                return nothing;
            p = token_before(l, p);
            if (p == nothing || l->at[p].kind != TOKEN_WORD)
                return nothing;
            continue;
        }
        if (c == ']') {
            p = token_before(l, l->at[p].match);
            continue;
        }
        if (c == ')') {
            start = l->at[p].match;
            p = token_before(l, start);
            if (p == nothing || (l->at[p].mark != ']' && l->at[p].kind != TOKEN_WORD) || is_keyword(l, p))
                return start;
            continue; /* a call */
        }
        if (l->at[p].kind != TOKEN_WORD)
            return start;
        start = p;
        p = token_before(l, p);
        if (p == nothing)
            return start;
        if (token_is(l, p, "template")) {
            start = p;
            p = token_before(l, p);
        }
        const size_t q = p == nothing ? nothing : token_before(l, p);
        if (p != nothing && q != nothing && l->at[p].mark == ':' && l->at[q].mark == ':') {
            start = q;
            p = token_before(l, q);
            if (p == nothing || (l->at[p].mark != '>' && (l->at[p].kind != TOKEN_WORD || is_keyword(l, p))))
                return start; /* ::k */
        } else if (p != nothing && l->at[p].mark == '.') {
            p = token_before(l, p);
        } else if (p != nothing && q != nothing && l->at[p].mark == '>' && l->at[q].mark == '-' &&
                   l->at[q].at + 1 == l->at[p].at) {
            p = token_before(l, q);
        } else {
            return start;
        }
    }
    return start;
}

bool translate_launch(translation *t, size_t at)
{
    const tokens *l = &t->list;
    const size_t nothing = l->count - 1, kernel = kernel_begin(l, at);
    if (kernel == nothing)
        return complain(t->why, l, at, "'<<<' without a kernel's name in front of it");
    size_t close = at + 3;
    while (!token_run(l, close, '>', 3)) {
        const char c = l->at[close].mark;
        if (close == nothing || c == ';' || c == ')' || c == '}' || c == ']')
            return complain(t->why, l, at, "a launch's '<<<' without its '>>>'");
        close = c == '(' || c == '[' || c == '{' ? l->at[close].match + 1 : close + 1;
    }
    while (token_run(l, close, '>', 4)) /* the first of four closes a template */
        ++close;
    const size_t open = token_after(l, close + 2);
    if (l->at[open].mark != '(')
        return complain(t->why, l, at, "a launch without the kernel's arguments behind '>>>'");
    if (token_after(l, at + 2) == close)
        return complain(t->why, l, at, "a launch without grid and block between '<<<' and '>>>'");
    text with = {0};
    text_add(&with, "(::assay_sim::configure(");
    flat_string(t, &with, kernel, at);
    text_addf(&with, ", %d, ", l->at[at].line);
    flat_text(t, &with, at + 3, close);
    text_add(&with, ") ? (void)0 : (void)");
    edit_before(t, kernel, with.at);
    edit_replace(t, at, close + 2, "");
    edit_behind(t, l->at[open].match, ")");
    text_free(&with);
    ++t->counts->launches;
    return true;
}
