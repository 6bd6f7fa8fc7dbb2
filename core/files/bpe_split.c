/* Pre-tokenizers: cutting a text into words that BPE merges within.  The regular expressions of the model families are told by
 * their text and matched by hand: a file brings no pattern of its own to run.  Categories are utf8proc's (Unicode 15). */
#include "core/files/bpe_internal.h"

#include <string.h>
#include <utf8proc.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const struct {
    const char *pattern;
    assay_bpe_split kind;
} PATTERNS[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", ASSAY_SPLIT_GPT2},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" REST, ASSAY_SPLIT_LLAMA3},
    /* cl100k as OpenAI writes it: the same words */
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
     ASSAY_SPLIT_LLAMA3},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" REST, ASSAY_SPLIT_QWEN2},
    {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
     "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     ASSAY_SPLIT_O200K},
};

assay_status assay_bpe_split_of(const char *pattern, const char *path, assay_bpe_split *out)
{
    for (size_t i = 0; i < sizeof PATTERNS / sizeof *PATTERNS; i++)
        if (strcmp(pattern, PATTERNS[i].pattern) == 0) {
            *out = PATTERNS[i].kind;
            return ASSAY_OK;
        }
    ASSAY_FAIL(ASSAY_UNSUPPORTED,
               "%s: pre_tokenizer: Split by the pattern '%.200s': expected that of GPT-2, Llama 3, Qwen 2 or "
               "o200k",
               path, pattern);
}

/* --- characters --------------------------------------------------------------------------------------------- */

size_t assay_point_at(const char *text, size_t n, size_t at, uint32_t *point)
{
    const unsigned char *c = (const unsigned char *)text + at;
    *point = 0;
    if (at >= n)
        return 0;
    if (c[0] < 0x80) {
        *point = c[0];
        return 1;
    }
    utf8proc_int32_t found;
    const utf8proc_ssize_t length = utf8proc_iterate(c, (utf8proc_ssize_t)(n - at), &found);
    if (length <= 0)
        return 0;
    *point = (uint32_t)found;
    return (size_t)length;
}

size_t assay_utf8_valid(const char *text, size_t n)
{
    size_t at = 0, length;
    uint32_t point;
    while (at < n && (length = assay_point_at(text, n, at, &point)) > 0)
        at += length;
    return at;
}

bool assay_is_white_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

typedef enum { SPACE, LETTER, NUMBER, OTHER } kind_of_point;

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

static kind_of_point kind_of(uint32_t c)
{
    if (assay_is_white_space(c))
        return SPACE;
    const utf8proc_category_t k = category(c);
    if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO)
        return LETTER;
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO ? NUMBER : OTHER;
}

/* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
static bool is_upper(uint32_t c)
{
    const utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_LU || (k >= UTF8PROC_CATEGORY_LT && k <= UTF8PROC_CATEGORY_ME);
}

static bool is_lower(uint32_t c)
{
    const utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_LL || (k >= UTF8PROC_CATEGORY_LM && k <= UTF8PROC_CATEGORY_ME);
}

/* --- parts of the patterns: each returns the place behind what it matches from `at`, `at` itself for nothing --- */

typedef struct text_view {
    const char *text;
    size_t n;
} text_view;

static size_t run_of(text_view v, size_t at, kind_of_point kind, int64_t most)
{
    uint32_t c;
    size_t length;
    for (int64_t i = 0; i < most && (length = assay_point_at(v.text, v.n, at, &c)) > 0 && kind_of(c) == kind;
         i++)
        at += length;
    return at;
}

static size_t run_if(text_view v, size_t at, bool (*is)(uint32_t))
{
    uint32_t c;
    size_t length;
    while ((length = assay_point_at(v.text, v.n, at, &c)) > 0 && is(c))
        at += length;
    return at;
}

/* An ASCII letter of any case, and the long s, which folds to s. */
static size_t letter_at(text_view v, size_t at, bool fold, char *out)
{
    uint32_t c;
    const size_t length = assay_point_at(v.text, v.n, at, &c);
    if (fold && c == 0x17f)
        c = 's';
    if (fold && c >= 'A' && c <= 'Z')
        c += 'a' - 'A';
    *out = (char)(signed char)(c < 128 ? c : 0);
    return length;
}

static size_t contraction(text_view v, size_t at, bool fold)
{
    char a, b;
    if (at >= v.n || v.text[at] != '\'')
        return at;
    const size_t first = letter_at(v, at + 1, fold, &a), second = letter_at(v, at + 1 + first, fold, &b);
    if (first > 0 && (a == 's' || a == 't' || a == 'm' || a == 'd'))
        return at + 1 + first;
    if (first > 0 && second > 0 &&
        ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')))
        return at + 1 + first + second;
    return at;
}

/* ` ?X+`; behind it any of `tail`. */
static size_t spaced_run(text_view v, size_t at, kind_of_point kind, const char *tail)
{
    const size_t begin = at + (v.text[at] == ' ');
    size_t end = run_of(v, begin, kind, INT64_MAX);
    if (end == begin)
        return at;
    while (end < v.n && v.text[end] != '\0' && strchr(tail, v.text[end]) != NULL)
        end++;
    return end;
}

/* `[^\r\n\p{L}\p{N}]?`, taken if it can be. */
static size_t one_before(text_view v, size_t at)
{
    uint32_t c;
    const size_t length = assay_point_at(v.text, v.n, at, &c);
    const kind_of_point kind = kind_of(c);
    return length == 0 || c == '\r' || c == '\n' || kind == LETTER || kind == NUMBER ? at : at + length;
}

static size_t letters_with_one_before(text_view v, size_t at)
{
    const size_t begin = one_before(v, at), end = run_of(v, begin, LETTER, INT64_MAX);
    return end > begin ? end : at;
}

/* `\s*[\r\n]+|\s+(?!\S)|\s+`; newlines: whether the first of them is there. */
static size_t white_space(text_view v, size_t at, bool newlines)
{
    uint32_t c;
    size_t length, end = at, last = at, behind_newline = at;
    while ((length = assay_point_at(v.text, v.n, end, &c)) > 0 && assay_is_white_space(c)) {
        last = end;
        end += length;
        if (c == '\r' || c == '\n')
            behind_newline = end;
    }
    if (newlines && behind_newline > at)
        return behind_newline;
    /* All but the last, which goes with the word behind it: unless nothing is behind it, or it is the only one. */
    return end == v.n || last == at ? end : last;
}

/* `UPPER*LOWER+` from begin: the upper run gives letters of both classes back until there is a lower one. */
static size_t upper_then_lower(text_view v, size_t begin)
{
    const size_t end = run_if(v, begin, is_upper);
    const size_t behind = run_if(v, end, is_lower);
    if (behind > end)
        return behind;
    size_t found = begin;
    uint32_t c;
    for (size_t at = begin, length; at < end && (length = assay_point_at(v.text, v.n, at, &c)) > 0;
         at += length)
        if (is_lower(c))
            found = at + length;
    return found;
}

static size_t upper_or_more(text_view v, size_t begin)
{
    const size_t end = run_if(v, begin, is_upper);
    return end > begin ? run_if(v, end, is_lower) : begin;
}

/* The two cased alternatives of o200k. */
static size_t cased_word(text_view v, size_t at)
{
    size_t (*const parts[])(text_view, size_t) = {upper_then_lower, upper_or_more};
    for (size_t i = 0; i < 2; i++) {
        const size_t with = one_before(v, at);
        size_t end = parts[i](v, with);
        if (end == with && with > at)
            end = parts[i](v, at);
        else if (end == with)
            end = at;
        if (end > at)
            return contraction(v, end, true);
    }
    return at;
}

/* --- the patterns ------------------------------------------------------------------------------------------- */

static size_t gpt2_word(text_view v, size_t at)
{
    const kind_of_point order[] = {LETTER, NUMBER, OTHER};
    size_t end = contraction(v, at, false);
    for (size_t i = 0; i < 3 && end == at; i++)
        end = spaced_run(v, at, order[i], "");
    return end > at ? end : white_space(v, at, false);
}

static size_t llama3_word(text_view v, size_t at, int64_t digits)
{
    size_t end = contraction(v, at, true);
    if (end == at)
        end = letters_with_one_before(v, at);
    if (end == at)
        end = run_of(v, at, NUMBER, digits);
    if (end == at)
        end = spaced_run(v, at, OTHER, "\r\n");
    return end > at ? end : white_space(v, at, true);
}

static size_t o200k_word(text_view v, size_t at)
{
    size_t end = cased_word(v, at);
    if (end == at)
        end = run_of(v, at, NUMBER, 3);
    if (end == at)
        end = spaced_run(v, at, OTHER, "\r\n/");
    return end > at ? end : white_space(v, at, true);
}

size_t assay_bpe_split_next(assay_bpe_split kind, const char *text, size_t n, size_t at)
{
    const text_view v = {text, n};
    switch (kind) {
    case ASSAY_SPLIT_GPT2:
        return gpt2_word(v, at) - at;
    case ASSAY_SPLIT_LLAMA3:
        return llama3_word(v, at, 3) - at;
    case ASSAY_SPLIT_QWEN2:
        return llama3_word(v, at, 1) - at;
    case ASSAY_SPLIT_O200K:
        return o200k_word(v, at) - at;
    case ASSAY_SPLIT_NONE:
        break;
    }
    return n - at;
}
