#include "edits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Functions that take a kernel as `const void *`: a cast would hide the kernel's type, which says how to copy its arguments. */
static bool takes_kernel(const tokens *l, size_t i)
{
    static const char *const words[] = {"cudaLaunchKernel",
                                        "cudaLaunchCooperativeKernel",
                                        "cudaFuncSetAttribute",
                                        "cudaFuncGetAttributes",
                                        "cudaFuncSetCacheConfig",
                                        "cudaFuncSetSharedMemConfig",
                                        "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
                                        "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
                                        "cudaOccupancyMaxPotentialBlockSize",
                                        "cudaOccupancyAvailableDynamicSMemPerBlock"};
    if (l->at[token_after(l, i)].mark != '(')
        return false;
    for (size_t k = 0; k < sizeof words / sizeof *words; ++k) {
        if (token_is(l, i, words[k]))
            return true;
    }
    return false;
}

/* (const void *)k and reinterpret_cast<const void *>(k), as an argument, lose the cast. */
static void drop_casts(translation *t, size_t open)
{
    const tokens *l = &t->list;
    const size_t close = l->at[open].match;
    for (size_t i = open; i < close; i = token_after(l, i)) {
        if (i != open && l->at[i].mark != ',') {
            if (l->at[i].mark == '(' || l->at[i].mark == '[' || l->at[i].mark == '{')
                i = l->at[i].match;
            continue;
        }
        const size_t from = token_after(l, i);
        size_t k = from;
        const bool named = token_is(l, k, "reinterpret_cast");
        if (named)
            k = token_after(l, k);
        if (l->at[k].mark != (named ? '<' : '('))
            continue;
        k = token_after(l, k);
        if (token_is(l, k, "const"))
            k = token_after(l, k);
        if (!token_is(l, k, "void"))
            continue;
        k = token_after(l, k);
        if (l->at[k].mark != '*')
            continue;
        k = token_after(l, k);
        if (l->at[k].mark == (named ? '>' : ')'))
            edit_replace(t, from, k, "");
    }
}

/* "mov.u32 %0, %laneid;" : "=r"(x)   and the other registers that say where a thread is: x = ...; false: something else. */
static bool special_register(translation *t, size_t at, size_t open, size_t text_at)
{
    static const char *const names[] = {"laneid",      "warpid",      "nwarpid",     "smid",
                                        "nsmid",       "lanemask_eq", "lanemask_lt", "lanemask_le",
                                        "lanemask_gt", "lanemask_ge", "globaltimer", "clock64"};
    const tokens *l = &t->list;
    const token *k = &l->at[text_at];
    char wanted[64];
    size_t colon = token_after(l, text_at), kind = token_after(l, colon), value = token_after(l, kind);
    if (!token_mark(l, colon, ':') || l->at[kind].kind != TOKEN_STRING || !token_mark(l, value, '(') ||
        token_after(l, l->at[value].match) != l->at[open].match)
        return false;
    for (int number = 0; number < (int)(sizeof names / sizeof *names); ++number) {
        for (int form = 0; form < 4; ++form) {
            snprintf(wanted, sizeof wanted, "\"mov.u%s %%0, %s%s;\"", form & 1 ? "64" : "32",
                     form & 2 ? "%%" : "%", names[number]);
            if (strlen(wanted) != k->bytes || memcmp(l->source + k->at, wanted, k->bytes) != 0)
                continue;
            text with = {0};
            flat_text(t, &with, value, l->at[value].match + 1);
            text_addf(&with, " = ::assay_sim::special_register(static_cast<::assay_sim::register_name>(%d))",
                      number);
            edit_replace(t, at, l->at[open].match, with.at);
            text_free(&with);
            return true;
        }
    }
    return false;
}

/* asm volatile("text" : outputs : inputs) as a statement; int f() __asm__("name") is none. */
static void translate_assembly(translation *t, size_t at)
{
    const tokens *l = &t->list;
    size_t open = token_after(l, at);
    while (l->at[open].kind == TOKEN_WORD)
        open = token_after(l, open);
    const size_t text_at = token_after(l, open), before = token_before(l, at);
    if (l->at[open].mark != '(' || l->at[text_at].kind != TOKEN_STRING || at_file_scope(l, at))
        return;
    const char b = l->at[before].mark;
    if (l->at[before].kind != TOKEN_DIRECTIVE && b != ';' && b != '{' && b != '}' && b != ')' && b != ':' &&
        !token_is(l, before, "else") && !token_is(l, before, "do"))
        return;
    if (special_register(t, at, open, text_at))
        return;
    size_t end = text_at;
    while (l->at[end].kind == TOKEN_STRING)
        end = token_after(l, end);
    text with = {0};
    text_add(&with, "::assay_sim::inline_assembly(");
    flat_text(t, &with, text_at, end);
    text_addf(&with, ", %d)", l->at[at].line);
    edit_replace(t, at, l->at[open].match, with.at);
    text_free(&with);
    ++t->counts->assembly;
}

static void rename_use(translation *t, size_t i)
{
    const tokens *l = &t->list;
    const token *k = &l->at[i];
    for (size_t n = t->names_count; n-- > 0;) {
        const renaming *r = &t->names[n];
        if (i <= r->from || k->bytes != r->word.bytes || memcmp(l->source + k->at, r->word.at, k->bytes) != 0)
            continue;
        const size_t p = token_before(l, i), q = token_before(l, p);
        if (l->at[p].mark == '.' || l->at[p].mark == ':' || (l->at[p].mark == '>' && l->at[q].mark == '-'))
            return;
        edit_replace(t, i, i, r->with.at);
        return;
    }
}

static bool translate_tokens(translation *t)
{
    const tokens *l = &t->list;
    for (size_t i = 0; i + 1 < l->count; ++i) {
        const token *k = &l->at[i];
        if (k->system)
            continue;
        if (k->mark == '<' && token_run(l, i, '<', 3) && !token_is(l, token_before(l, i), "operator")) {
            if (!translate_launch(t, i))
                return false;
            i += 2;
            continue;
        }
        if (k->kind != TOKEN_WORD)
            continue;
        if (token_is(l, i, "__global__")) {
            if (!translate_kernel(t, i))
                return false;
        } else if (token_is(l, i, "__shared__")) {
            if (!translate_shared(t, i))
                return false;
            while (l->at[i].mark != ';')
                i = l->at[i].mark == '{' ? l->at[i].match : i + 1;
        } else if (token_is(l, i, "asm") || token_is(l, i, "__asm__") || token_is(l, i, "__asm")) {
            translate_assembly(t, i);
        } else if (takes_kernel(l, i)) {
            drop_casts(t, token_after(l, i));
        } else if (t->names_count) {
            rename_use(t, i);
        }
    }
    return true;
}

bool translate(text *out, const char *source, size_t bytes, const char *name, translate_counts *counts,
               complaint *why)
{
    translation t = {.counts = counts, .why = why};
    *counts = (translate_counts){0};
    const bool good = tokens_read(&t.list, source, bytes, name, why) && translate_tokens(&t);
    if (good)
        edits_apply(&t, out);
    for (size_t i = 0; i < t.edits_count; ++i)
        text_free(&t.edits[i].with);
    for (size_t i = 0; i < t.names_count; ++i) {
        text_free(&t.names[i].word);
        text_free(&t.names[i].with);
    }
    free(t.edits);
    free(t.names);
    tokens_free(&t.list);
    return good;
}
