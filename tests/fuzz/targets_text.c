/* Text and what is made of it: tokenizer.json, texts, indexed datasets. */
#include "core/files/bpe_internal.h"
#include "core/files/dataset.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens are of the vocabulary and stand for the text, where nothing may change it. */
static void encode(const assay_bpe *t, const char *text, size_t n)
{
    bool keeps = !t->nfc && !t->add_prefix_space;
    assay_tokens tokens = {0};
    char *back = NULL;
    size_t length = 0;
    for (int64_t i = 0; i < t->n_added; i++)
        keeps = keeps && !t->added[i].lstrip && !t->added[i].rstrip;
    const bool valid = assay_utf8_valid(text, n) == n;
    const assay_status st = assay_bpe_encode(t, text, n, false, &tokens);
    FUZZ_LAW((st == ASSAY_OK) == valid, "UTF-8 %d, encoded %d: %s", valid, st == ASSAY_OK,
             st == ASSAY_OK ? "" : assay_error_message());
    for (int64_t i = 0; i < tokens.n; i++)
        FUZZ_LAW(assay_bpe_find_id(t, tokens.ids[i]) != NULL, "token %lld", (long long)tokens.ids[i]);
    if (st == ASSAY_OK) {
        fuzz_must(assay_bpe_decode(t, tokens.ids, tokens.n, false, &back, &length));
        FUZZ_LAW(!keeps || (length == n && memcmp(back, text, n) == 0), "%zu bytes came back as %zu", n,
                 length);
        free(back);
    }
    assay_tokens_free(&tokens);
}

void fuzz_tokenizer(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"tokenizer.json", "text", NULL};
    static const char fixed[] =
        "The  cat's 12345 na\xc3\xafve caf\xc3\xa9s\n\n\t<|endoftext|> \xe4\xbd\xa0\xe5\xa5\xbd";
    fuzz_section sections[FUZZ_SECTIONS];
    assay_bpe *t;
    const int n = fuzz_sections(data, bytes, names, sections);
    if (n == 0)
        return;
    fuzz_write_sections(sections, n);
    if (assay_bpe_open(&t, fuzz_path("tokenizer.json")) != ASSAY_OK)
        return;
    encode(t, fixed, sizeof fixed - 1);
    for (int i = 0; i < n; i++)
        if (strcmp(sections[i].name, "text") == 0)
            encode(t, (const char *)sections[i].data, sections[i].bytes);
    assay_bpe_close(t);
}

/* The first byte chooses the tokenizer. */
void fuzz_text(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"gpt2", "llama3", "qwen2", "o200k", "cl100k", "prefix"};
    static assay_bpe *tokenizers[6];
    if (bytes == 0)
        return;
    const int which = data[0] % 6;
    if (tokenizers[which] == NULL) {
        char path[512];
        snprintf(path, sizeof path, ASSAY_SOURCE_DIR "/golden/tokenizers/%s.json", names[which]);
        fuzz_must(assay_bpe_open(&tokenizers[which], path));
    }
    encode(tokenizers[which], (const char *)data + 1, bytes - 1);
}

static void sample(const assay_dataset *d)
{
    int64_t ids[8], labels[8];
    FUZZ_LAW(assay_dataset_n_tokens(d) >= 0 && assay_dataset_vocab(d) > 0, "%lld tokens",
             (long long)assay_dataset_n_tokens(d));
    for (int64_t i = 0; i < 6; i++) {
        if (assay_dataset_sample(d, 7, i * i * i, 8, 0.25, ids, labels) != ASSAY_OK)
            return;
        for (int k = 0; k < 8; k++)
            FUZZ_LAW(ids[k] >= 0 && ids[k] < assay_dataset_vocab(d), "token %lld", (long long)ids[k]);
    }
}

void fuzz_dataset(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"x.idx", "x.bin", "text", NULL};
    fuzz_section sections[FUZZ_SECTIONS];
    assay_dataset *d;
    const int n = fuzz_sections(data, bytes, names, sections);
    if (n == 0)
        return;
    fuzz_write_sections(sections, n);
    for (int text = 0; text < 2; text++) {
        char path[160];
        snprintf(path, sizeof path, "%s", fuzz_path(text ? "text" : "x"));
        const char *const paths[] = {path};
        if (assay_dataset_open(&d, paths, 1) != ASSAY_OK)
            continue;
        sample(d);
        assay_dataset_close(d);
    }
}
