/* core/files/bpe: equal to Hugging Face's tokenizers on golden/tokenizers (golden/make_tokenizers.py); every other kind of
 * tokenizer.json is refused by name, a damaged one with its place. */
#include "core/base/json.h"
#include "core/files/bpe.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN ASSAY_SOURCE_DIR "/golden/tokenizers/"

static char *from_hex(const char *hex, size_t *n)
{
    *n = strlen(hex) / 2;
    char *out = malloc(*n + 1);
    for (size_t i = 0; i < *n; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (char)byte;
    }
    out[*n] = '\0';
    return out;
}

static void check_ids(const assay_tokens *t, const json_t *expected, const char *name, const char *hex)
{
    bool same = (size_t)t->n == json_array_size(expected);
    for (int64_t i = 0; same && i < t->n; i++)
        same = t->ids[i] == json_integer_value(json_array_get(expected, (size_t)i));
    if (same)
        return;
    char *want = json_dumps(expected, JSON_COMPACT);
    fprintf(stderr, "%s: %s: expected %s, found", name, hex, want);
    for (int64_t i = 0; i < t->n; i++)
        fprintf(stderr, " %lld", (long long)t->ids[i]);
    fprintf(stderr, "\n");
    free(want);
    cr_expect_fail("%s: text %s", name, hex);
}

static void check_row(const assay_bpe *t, const json_t *row, const char *name)
{
    const char *hex = json_string_value(json_object_get(row, "text"));
    size_t n, n_decoded, n_found;
    char *text = from_hex(hex, &n),
         *decoded = from_hex(json_string_value(json_object_get(row, "decoded")), &n_decoded), *found = NULL;
    assay_tokens plain = {0}, special = {0};
    cr_expect_eq(assay_bpe_encode(t, text, n, false, &plain), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(assay_bpe_encode(t, text, n, true, &special), ASSAY_OK);
    check_ids(&plain, json_object_get(row, "ids"), name, hex);
    check_ids(&special, json_object_get(row, "special"), name, hex);
    cr_expect_eq(assay_bpe_decode(t, plain.ids, plain.n, false, &found, &n_found), ASSAY_OK);
    cr_expect(n_found == n_decoded && memcmp(found, decoded, n_found) == 0, "%s: %s decodes to '%s'", name,
              hex, found);
    free(found);
    free(text);
    free(decoded);
    assay_tokens_free(&plain);
    assay_tokens_free(&special);
}

Test(bpe, every_text_gives_the_ids_of_hugging_face)
{
    json_t *expected = NULL, *rows;
    const char *name;
    int64_t seen = 0;
    cr_assert_eq(assay_json_load(&expected, GOLDEN "expected.json"), ASSAY_OK, "%s", assay_error_message());
    json_object_foreach(expected, name, rows)
    {
        char path[512];
        assay_bpe *t;
        snprintf(path, sizeof path, GOLDEN "%s.json", name);
        cr_assert_eq(assay_bpe_open(&t, path), ASSAY_OK, "%s", assay_error_message());
        for (size_t i = 0; i < json_array_size(rows); i++, seen++)
            check_row(t, json_array_get(rows, i), name);
        assay_bpe_close(t);
    }
    cr_assert(seen > 1000, "only %lld texts", (long long)seen);
    json_decref(expected);
}

Test(bpe, what_is_no_utf8_is_refused_with_its_place)
{
    static const char *const wrong[] = {"ab\xff",         "ab\xc3",     "ab\xc3(",
                                        "ab\xed\xa0\x80", "ab\xc0\x80", "ab\xf4\x90\x80\x80"};
    assay_bpe *t;
    cr_assert_eq(assay_bpe_open(&t, GOLDEN "gpt2.json"), ASSAY_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assay_tokens out = {0};
        cr_expect_eq(assay_bpe_encode(t, wrong[i], strlen(wrong[i]), true, &out), ASSAY_FORMAT);
        cr_expect(strstr(assay_error_message(), "byte 2: expected UTF-8") != NULL, "%s",
                  assay_error_message());
        assay_tokens_free(&out);
    }
    char *text;
    size_t n;
    cr_expect_eq(assay_bpe_decode(t, (const int64_t[]){1, 99999}, 2, false, &text, &n),
                 ASSAY_INVALID_ARGUMENT);
    cr_expect(strstr(assay_error_message(), "99999 at 1") != NULL);
    assay_bpe_close(t);
}

Test(bpe, special_tokens_can_be_left_out_and_found_by_name)
{
    assay_bpe *t;
    assay_tokens out = {0};
    char *text;
    size_t n;
    cr_assert_eq(assay_bpe_open(&t, GOLDEN "llama3.json"), ASSAY_OK);
    cr_assert_eq(assay_bpe_encode(t, "a<|eot_id|>b", 12, true, &out), ASSAY_OK);
    cr_expect_eq(out.ids[2], assay_bpe_added(t, "<|eot_id|>"));
    cr_expect_eq(assay_bpe_added(t, "<|eot_id|>") + 1, assay_bpe_vocab(t));
    cr_expect_eq(assay_bpe_added(t, "river"), -1);
    cr_assert_eq(assay_bpe_decode(t, out.ids, out.n, true, &text, &n), ASSAY_OK);
    cr_expect_str_eq(text, "ab");
    free(text);
    assay_tokens_free(&out);
    assay_bpe_close(t);
}

/* --- files that are not read --------------------------------------------------------------------------------- */

static json_t *load(const char *name)
{
    char path[512];
    json_t *root = NULL;
    snprintf(path, sizeof path, GOLDEN "%s.json", name);
    cr_assert_eq(assay_json_load(&root, path), ASSAY_OK);
    return root;
}

static void refused(json_t *root, const char *words)
{
    char path[] = "/tmp/assay-bpe-XXXXXX";
    assay_bpe *t = NULL;
    close(mkstemp(path));
    cr_assert_eq(json_dump_file(root, path, JSON_COMPACT), 0);
    cr_expect_neq(assay_bpe_open(&t, path), ASSAY_OK, "expected a refusal: %s", words);
    cr_expect_null(t);
    cr_expect(strstr(assay_error_message(), words) != NULL, "expected '%s', found '%s'", words,
              assay_error_message());
    unlink(path);
    json_decref(root);
}

/* A tokenizer with the member at "a.b" replaced (text NULL: removed). */
static json_t *with(const char *name, const char *object, const char *key, const char *text)
{
    json_t *root = load(name), *in = object[0] != '\0' ? json_object_get(root, object) : root;
    json_t *value = NULL;
    if (text != NULL)
        cr_assert_eq(assay_json_parse(&value, text, strlen(text), "test"), ASSAY_OK, "%s",
                     assay_error_message());
    if (value != NULL)
        json_object_set_new(in, key, value);
    else
        json_object_del(in, key);
    return root;
}

Test(bpe, other_kinds_are_refused_by_name)
{
    static const struct {
        const char *object, *key, *value, *words;
    } rows[] = {
        {"model", "type", "\"Unigram\"", "model 'Unigram': expected BPE"},
        {"model", "type", "\"WordPiece\"", "model 'WordPiece': expected BPE"},
        {"model", "dropout", "0.1", "model.dropout"},
        {"model", "byte_fallback", "true", "model.byte_fallback"},
        {"model", "end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
        {"model", "continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix"},
        {"model", "novel", "1", "novel"},
        {"", "normalizer", "{\"type\":\"NFKC\"}", "normalizer 'NFKC': expected NFC or none"},
        {"", "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}",
         "normalizer 'Lowercase'"},
        {"", "pre_tokenizer", "{\"type\":\"Whitespace\"}", "pre_tokenizer 'Whitespace'"},
        {"", "pre_tokenizer", "null", "pre_tokenizer ''"},
        {"", "pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},"
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}",
         "(Digits, ByteLevel)"},
        {"", "pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+\"},"
         "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}",
         "Split by the pattern '(a+)+'"},
        {"", "post_processor", "{\"type\":\"BertProcessing\"}", "post_processor 'BertProcessing'"},
        {"", "post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}",
         "a template without the text"},
        {"", "decoder", "{\"type\":\"Metaspace\"}", "decoder 'Metaspace'"},
        {"", "truncation", "{\"max_length\":5}", "truncation"},
        {"", "padding", "{\"strategy\":\"x\"}", "padding"},
        {"", "model", NULL, "expected a model"},
        {"model", "vocab", "{}", "model.vocab"},
        {"model", "vocab", "{\"a\":0}", "is no token of the vocabulary"},
        {"model", "merges", "[\"a\"]", "model.merges: 0: expected two tokens"},
        {"model", "merges", "[[\"a\",\"b\",\"c\"]]", "model.merges: 0: expected two tokens"},
        {"model", "merges", "[\"a b c\"]", "model.merges: 0: expected two tokens"},
        {"model", "merges", "[\"! \\u0120\"]", "is no token of the vocabulary"},
        {"model", "merges", "7", "model.merges: expected a list"},
        {"", "added_tokens", "[{\"id\":-1,\"content\":\"x\"}]", "id"},
        {"", "added_tokens", "[{\"id\":5,\"content\":\"<new>\"}]", "id 5 is that of two tokens"},
        {"", "added_tokens", "[{\"id\":9999,\"content\":\"a\"}]", "has id 9999, the vocabulary another"},
        {"", "added_tokens", "[{\"id\":9999,\"content\":\"<n>\",\"single_word\":true}]", "single_word"},
        {"", "added_tokens", "[{\"id\":9999,\"content\":\"\"}]", "expected a content"},
        {"", "added_tokens",
         "[{\"id\":9999,\"content\":\"<n>\"},{\"id\":9997,\"content\":\"<m>\"},{\"id\":9998,\"content\":\"<n>"
         "\"}]",
         "added_tokens: '<n>' is there twice, as ids 999"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(with("gpt2", rows[i].object, rows[i].key, rows[i].value), rows[i].words);
}

Test(bpe, a_vocabulary_that_loses_bytes_or_names_an_id_twice_is_refused)
{
    json_t *root = with("gpt2", "model", "merges", "[]");
    json_object_del(json_object_get(json_object_get(root, "model"), "vocab"), "Ġ");
    refused(root, "no token for byte 32");
    root = load("gpt2");
    json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), "zzzz", json_integer(7));
    refused(root, "id 7 is that of two tokens");
    root = load("gpt2");
    json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), "zzzz",
                        json_integer(INT64_MAX));
    refused(root, "expected an id from 0");
    root = load("gpt2");
    json_array_append(json_object_get(json_object_get(root, "model"), "merges"),
                      json_array_get(json_object_get(json_object_get(root, "model"), "merges"), 0));
    refused(root, "join the same tokens");
    root = with("qwen2", "post_processor", "special_tokens", "{\"<|endoftext|>\":{\"ids\":[123456]}}");
    refused(root, "id 123456 is no token");
}

/* An added token that the vocabulary has, too: decoding leaves that entry out. */
Test(bpe, a_token_of_the_vocabulary_can_be_special)
{
    static const struct {
        const char *special, *decoded;
    } rows[] = {{"true", "bb"}, {"false", "bab"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char added[128], path[] = "/tmp/assay-bpe-XXXXXX", *text = NULL;
        assay_bpe *t;
        assay_tokens out = {0};
        size_t n;
        json_t *root = load("gpt2");
        const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
        snprintf(added, sizeof added, "[{\"id\":%lld,\"content\":\"a\",\"special\":%s}]",
                 (long long)json_integer_value(json_object_get(vocab, "a")), rows[i].special);
        json_decref(root);
        root = with("gpt2", "", "added_tokens", added);
        close(mkstemp(path));
        cr_assert_eq(json_dump_file(root, path, JSON_COMPACT), 0);
        cr_assert_eq(assay_bpe_open(&t, path), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(assay_bpe_encode(t, "bab", 3, false, &out), ASSAY_OK);
        cr_assert_eq(assay_bpe_decode(t, out.ids, out.n, true, &text, &n), ASSAY_OK);
        cr_expect_str_eq(text, rows[i].decoded);
        free(text);
        assay_tokens_free(&out);
        assay_bpe_close(t);
        unlink(path);
        json_decref(root);
    }
}

/* The time for many of them is not that of each by each: 2^16 in 2^20 were 7 10^10 comparisons. */
Test(bpe, many_special_tokens_of_the_vocabulary_are_no_trap, .timeout = 200)
{
    enum { ADDED = 1 << 16, MORE = 1 << 20 };
    char path[] = "/tmp/assay-bpe-XXXXXX", name[32];
    json_t *root = load("gpt2"), *vocab = json_object_get(json_object_get(root, "model"), "vocab"),
           *added = json_array();
    for (int i = 0; i < MORE; i++) {
        snprintf(name, sizeof name, "~%d~", i);
        json_object_set_new(vocab, name, json_integer(100000 + i));
        if (i < ADDED)
            json_array_append_new(
                added, json_pack("{s:i,s:s,s:b}", "id", 100000 + i, "content", name, "special", 1));
    }
    json_object_set_new(root, "added_tokens", added);
    close(mkstemp(path));
    cr_assert_eq(json_dump_file(root, path, JSON_COMPACT), 0);
    json_decref(root);
    assay_bpe *t;
    cr_assert_eq(assay_bpe_open(&t, path), ASSAY_OK, "%s", assay_error_message());
    assay_bpe_close(t);
    unlink(path);
}

/* A word of a megabyte takes n log n. */
Test(bpe, long_words_are_no_trap, .timeout = 200)
{
    const size_t n = 1 << 20;
    char *text = malloc(n), *back;
    size_t n_back;
    assay_bpe *t;
    assay_tokens out = {0};
    memset(text, 'e', n);
    cr_assert_eq(assay_bpe_open(&t, GOLDEN "o200k.json"), ASSAY_OK);
    cr_assert_eq(assay_bpe_encode(t, text, n, false, &out), ASSAY_OK);
    cr_assert_eq(assay_bpe_decode(t, out.ids, out.n, false, &back, &n_back), ASSAY_OK);
    cr_expect(n_back == n && memcmp(back, text, n) == 0);
    free(back);
    free(text);
    assay_tokens_free(&out);
    assay_bpe_close(t);
}
