/* A text to tokens and back: added tokens, normalizer, words, merges. */
#include "core/files/bpe_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* --- open and close ----------------------------------------------------------------------------------------- */

static int by_first_byte(const void *a, const void *b)
{
    const assay_bpe_added_token *x = a, *y = b;
    const unsigned char p = (unsigned char)x->content[0], q = (unsigned char)y->content[0];
    if (p != q)
        return p < q ? -1 : 1;
    return x->length != y->length ? (x->length > y->length ? -1 : 1) : strcmp(x->content, y->content);
}

static assay_status index_added(assay_bpe *t, const char *path)
{
    int64_t at = 0;
    if (t->n_added > 0)
        qsort(t->added, (size_t)t->n_added, sizeof *t->added, by_first_byte);
    for (int b = 0; b <= 256; b++) {
        while (at < t->n_added && (unsigned char)t->added[at].content[0] < b)
            at++;
        t->first_added[b] = at;
    }
    for (int64_t i = 1; i < t->n_added; i++)
        ASSAY_CHECK(strcmp(t->added[i].content, t->added[i - 1].content) != 0, ASSAY_FORMAT,
                    "%s: added_tokens: '%.64s' is there twice, as ids %lld and %lld", path,
                    t->added[i].content, (long long)t->added[i - 1].id, (long long)t->added[i].id);
    return ASSAY_OK;
}

assay_status assay_bpe_open(assay_bpe **out, const char *path)
{
    *out = NULL;
    assay_bpe *t = calloc(1, sizeof *t);
    ASSAY_CHECK(t != NULL, ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(assay_bpe_read(t, path), st, fail);
    ASSAY_TRY_GOTO(index_added(t, path), st, fail);
    *out = t;
    return ASSAY_OK;
fail:
    assay_bpe_close(t);
    return st;
}

void assay_bpe_close(assay_bpe *t)
{
    if (t == NULL)
        return;
    for (int64_t i = 0; i < t->n_tokens; i++)
        free(t->tokens[i].bytes);
    for (int64_t i = 0; i < t->n_added; i++)
        free((char *)(uintptr_t)t->added[i].content);
    free(t->tokens);
    free(t->added);
    free(t->by_bytes);
    free(t->merges);
    free(t);
}

int64_t assay_bpe_vocab(const assay_bpe *t)
{
    return t->tokens[t->n_tokens - 1].id + 1;
}

int64_t assay_bpe_added(const assay_bpe *t, const char *content)
{
    for (int64_t i = 0; i < t->n_added; i++)
        if (strcmp(t->added[i].content, content) == 0)
            return t->added[i].id;
    return -1;
}

/* --- encode ------------------------------------------------------------------------------------------------- */

/* A word of Split, as ByteLevel goes on with it. */
static assay_status encode_word(const assay_bpe *t, const char *word, size_t n, assay_tokens *out)
{
    char *prefixed = NULL;
    assay_status st = ASSAY_OK;
    if (t->add_prefix_space && word[0] != ' ') {
        prefixed = malloc(n + 1);
        ASSAY_CHECK(prefixed != NULL, ASSAY_OUT_OF_MEMORY, "a word of %zu bytes", n);
        prefixed[0] = ' ';
        memcpy(prefixed + 1, word, n++);
        word = prefixed;
    }
    for (size_t at = 0, length; at < n; at += length) {
        length = assay_bpe_split_next(t->use_regex ? ASSAY_SPLIT_GPT2 : ASSAY_SPLIT_NONE, word, n, at);
        ASSAY_TRY_GOTO(assay_bpe_word(t, word + at, length, out), st, done);
    }
done:
    free(prefixed);
    return st;
}

static assay_status encode_plain(const assay_bpe *t, const char *text, size_t n, assay_tokens *out)
{
    for (size_t at = 0, length; at < n; at += length) {
        length = assay_bpe_split_next(t->split, text, n, at);
        ASSAY_TRY(encode_word(t, text + at, length, out));
    }
    return ASSAY_OK;
}

/* The added token at `at`, of those that are looked for before or behind the normalizer: the longest. */
static const assay_bpe_added_token *added_at(const assay_bpe *t, const char *text, size_t n, size_t at,
                                             bool normalized)
{
    const unsigned char first = (unsigned char)text[at];
    for (int64_t i = t->first_added[first]; i < t->first_added[first + 1]; i++) {
        const assay_bpe_added_token *a = &t->added[i];
        if (a->normalized == normalized && a->length <= n - at &&
            memcmp(a->content, text + at, a->length) == 0)
            return a;
    }
    return NULL;
}

/* Begin of the white space that ends at `end`, not before `from`. */
static size_t strip_left(const char *text, size_t from, size_t end)
{
    size_t begin = end;
    for (size_t at = from, length; at < end; at += length) {
        uint32_t c;
        length = assay_point_at(text, end, at, &c);
        if (length == 0)
            break;
        if (!assay_is_white_space(c))
            begin = end;
        else if (begin == end)
            begin = at;
    }
    return begin;
}

static size_t strip_right(const char *text, size_t n, size_t at)
{
    uint32_t c;
    size_t length;
    while ((length = assay_point_at(text, n, at, &c)) > 0 && assay_is_white_space(c))
        at += length;
    return at;
}

typedef assay_status (*encode_part)(const assay_bpe *t, const char *text, size_t n, assay_tokens *out);

/* Cuts added tokens out; what is between them goes to `rest`. */
static assay_status cut_added(const assay_bpe *t, const char *text, size_t n, bool normalized,
                              encode_part rest, assay_tokens *out)
{
    size_t done = 0;
    for (size_t at = 0; at < n && t->n_added > 0;) {
        const assay_bpe_added_token *a = added_at(t, text, n, at, normalized);
        if (a == NULL) {
            at++;
            continue;
        }
        size_t begin = a->lstrip && at > done ? strip_left(text, done, at) : at;
        if (begin < done)
            begin = done;
        if (begin > done)
            ASSAY_TRY(rest(t, text + done, begin - done, out));
        ASSAY_TRY(assay_tokens_push(out, a->id));
        at += a->length;
        done = at = a->rstrip ? strip_right(text, n, at) : at;
    }
    return done < n ? rest(t, text + done, n - done, out) : ASSAY_OK;
}

static assay_status encode_normalized(const assay_bpe *t, const char *text, size_t n, assay_tokens *out)
{
    return cut_added(t, text, n, true, encode_plain, out);
}

static assay_status encode_raw(const assay_bpe *t, const char *text, size_t n, assay_tokens *out)
{
    utf8proc_uint8_t *composed = NULL;
    if (!t->nfc)
        return encode_normalized(t, text, n, out);
    const utf8proc_ssize_t length =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &composed,
                     (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    ASSAY_CHECK(length >= 0, ASSAY_OUT_OF_MEMORY, "NFC of %zu bytes: %s", n, utf8proc_errmsg(length));
    const assay_status st = encode_normalized(t, (const char *)composed, (size_t)length, out);
    free(composed);
    return st;
}

assay_status assay_bpe_encode(const assay_bpe *t, const char *text, size_t bytes, bool special,
                              assay_tokens *out)
{
    const size_t valid = assay_utf8_valid(text, bytes);
    ASSAY_CHECK(valid == bytes, ASSAY_FORMAT, "byte %zu: expected UTF-8, found 0x%02x", valid,
                (unsigned)(unsigned char)text[valid]);
    for (int i = 0; special && i < t->n_before; i++)
        ASSAY_TRY(assay_tokens_push(out, t->before[i]));
    ASSAY_TRY(cut_added(t, text, bytes, false, encode_raw, out));
    for (int i = 0; special && i < t->n_behind; i++)
        ASSAY_TRY(assay_tokens_push(out, t->behind[i]));
    return ASSAY_OK;
}

/* --- decode ------------------------------------------------------------------------------------------------- */

assay_status assay_bpe_decode(const assay_bpe *t, const int64_t *ids, int64_t n, bool skip_special,
                              char **text, size_t *bytes)
{
    size_t total = 0, used = 0;
    *text = NULL;
    *bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        const assay_bpe_token *k = assay_bpe_find_id(t, ids[i]);
        ASSAY_CHECK(k != NULL, ASSAY_INVALID_ARGUMENT, "token %lld at %lld is not in the vocabulary",
                    (long long)ids[i], (long long)i);
        total += k->special && skip_special ? 0 : k->length;
    }
    char *out = malloc(total + 1);
    ASSAY_CHECK(out != NULL, ASSAY_OUT_OF_MEMORY, "a text of %zu bytes", total);
    for (int64_t i = 0; i < n; i++) {
        const assay_bpe_token *k = assay_bpe_find_id(t, ids[i]);
        if (k == NULL || (k->special && skip_special))
            continue;
        memcpy(out + used, k->bytes, k->length);
        used += k->length;
    }
    out[used] = '\0';
    *text = out;
    *bytes = used;
    return ASSAY_OK;
}
