#include "edits.h"

#include <stdlib.h>
#include <string.h>

/* A cast to `void *` that begins at token i: the token behind it; 0: it is none. */
static size_t void_cast(const tokens *l, size_t i)
{
    const bool named = token_is(l, i, "reinterpret_cast") || token_is(l, i, "static_cast");
    size_t k = named ? token_after(l, i) : i;
    if (!token_mark(l, k, named ? '<' : '('))
        return 0;
    bool is_void = false;
    for (k = token_after(l, k); l->at[k].kind == TOKEN_WORD; k = token_after(l, k)) {
        if (!token_is(l, k, "const") && !token_is(l, k, "void"))
            return 0;
        is_void = is_void || token_is(l, k, "void");
    }
    if (!is_void || !token_mark(l, k, '*'))
        return 0;
    k = token_after(l, k);
    return token_mark(l, k, named ? '>' : ')') ? token_after(l, k) : 0;
}

static bool names_kernel(const translation *t, size_t i)
{
    const token *k = &t->list.at[i];
    for (size_t n = 0; n < t->kernels_count && k->kind == TOKEN_WORD; ++n) {
        const token *name = &t->list.at[t->kernels[n]];
        if (name->bytes == k->bytes &&
            memcmp(t->list.source + name->at, t->list.source + k->at, k->bytes) == 0)
            return true;
    }
    return false;
}

/* (const void *)&n::k<T>: the address, and the kernel's type with it. */
static void translate_address(translation *t, size_t at)
{
    const tokens *l = &t->list;
    size_t i = void_cast(l, at);
    if (i == 0)
        return;
    const size_t from = i, behind = token_before(l, from);
    if (token_mark(l, i, '(') || token_mark(l, i, '&'))
        i = token_after(l, i);
    while (l->at[i].kind == TOKEN_WORD || token_mark(l, i, ':')) {
        size_t next = token_after(l, i);
        if (names_kernel(t, i) && !token_mark(l, next, ':')) {
            size_t end = i;
            if (token_mark(l, next, '<')) {
                end = angle_end(l, next, l->count - 1);
                if (end == l->count - 1)
                    return;
            }
            if (token_mark(l, from, '('))
                end = l->at[from].match;
            edit_replace(t, at, behind, "::assay_sim::address_of(");
            edit_behind(t, end, ")");
            return;
        }
        i = next;
    }
}

/* Instructions that are computed; $0, $1 are the operands. */
typedef struct instruction {
    const char *text, *with;
} instruction;
static const instruction instructions[] = {
    {"red.global.add.u32 [%0],%1;", "(void)atomicAdd(reinterpret_cast<unsigned *>($0), $1)"},
    {"red.global.add.u64 [%0],%1;", "(void)atomicAdd(reinterpret_cast<unsigned long long *>($0), $1)"},
    {"bfind.u32 %0,%1;", "$0 = 31 - __clz($1)"},
    {"mov.u32 %0,%laneid;", "$0 = ::assay_sim::special_register(::assay_sim::LANEID)"},
    {"mov.u32 %0,%warpid;", "$0 = ::assay_sim::special_register(::assay_sim::WARPID)"},
    {"mov.u32 %0,%nwarpid;", "$0 = ::assay_sim::special_register(::assay_sim::NWARPID)"},
    {"mov.u32 %0,%smid;", "$0 = ::assay_sim::special_register(::assay_sim::SMID)"},
    {"mov.u32 %0,%nsmid;", "$0 = ::assay_sim::special_register(::assay_sim::NSMID)"},
    {"mov.u32 %0,%lanemask_eq;", "$0 = ::assay_sim::special_register(::assay_sim::LANEMASK_EQ)"},
    {"mov.u32 %0,%lanemask_lt;", "$0 = ::assay_sim::special_register(::assay_sim::LANEMASK_LT)"},
    {"mov.u32 %0,%lanemask_le;", "$0 = ::assay_sim::special_register(::assay_sim::LANEMASK_LE)"},
    {"mov.u32 %0,%lanemask_gt;", "$0 = ::assay_sim::special_register(::assay_sim::LANEMASK_GT)"},
    {"mov.u32 %0,%lanemask_ge;", "$0 = ::assay_sim::special_register(::assay_sim::LANEMASK_GE)"},
    {"mov.u64 %0,%globaltimer;", "$0 = ::assay_sim::special_register(::assay_sim::GLOBALTIMER)"},
    {"mov.u64 %0,%clock64;", "$0 = ::assay_sim::special_register(::assay_sim::CLOCK64)"},
};

/* A string's text without its quotes, spaces behind a comma, and the second of two '%'. */
static void plain_text(const tokens *l, size_t at, text *out)
{
    const char *s = l->source + l->at[at].at;
    text_append(out, "", 0);
    for (size_t i = 1; i + 1 < l->at[at].bytes; ++i) {
        if ((s[i] == ' ' && s[i - 1] == ',') || (s[i] == '%' && s[i - 1] == '%'))
            continue;
        text_append(out, s + i, 1);
    }
}

static bool computed(translation *t, size_t at, size_t open, size_t text_at)
{
    const tokens *l = &t->list;
    size_t operand[4], operands = 0;
    text plain = {0}, with = {0};
    const instruction *found = NULL;
    for (size_t i = token_after(l, text_at); i < l->at[open].match; i = token_after(l, i)) {
        if (token_mark(l, i, '(')) {
            if (operands < sizeof operand / sizeof *operand)
                operand[operands++] = i;
            i = l->at[i].match;
        }
    }
    plain_text(l, text_at, &plain);
    for (size_t k = 0; k < sizeof instructions / sizeof *instructions && found == NULL; ++k) {
        if (strcmp(plain.at, instructions[k].text) == 0)
            found = &instructions[k];
    }
    for (const char *c = found ? found->with : ""; *c; ++c) {
        if (*c != '$') {
            text_append(&with, c, 1);
            continue;
        }
        const size_t number = (size_t)(*++c - '0');
        if (number >= operands) {
            found = NULL;
            break;
        }
        flat_text(t, &with, operand[number], l->at[operand[number]].match + 1);
    }
    if (found)
        edit_replace(t, at, l->at[open].match, with.at);
    text_free(&plain);
    text_free(&with);
    return found != NULL;
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
    if (computed(t, at, open, text_at))
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
        size_t open;
        if (l->at[i].system || !token_is(l, i, "__global__"))
            continue;
        t->kernels = list_room(t->kernels, &t->kernels_room, t->kernels_count, sizeof *t->kernels);
        if (!kernel_name(t, i, &t->kernels[t->kernels_count], &open))
            return false;
        ++t->kernels_count;
    }
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
        if (token_mark(l, i, '(') && t->kernels_count)
            translate_address(t, i);
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
        } else if (token_is(l, i, "reinterpret_cast") || token_is(l, i, "static_cast")) {
            translate_address(t, i);
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
    free(t.kernels);
    tokens_free(&t.list);
    return good;
}
