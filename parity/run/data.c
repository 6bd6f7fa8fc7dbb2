/* Batch files from text. */
#include "parity/run/data.h"

#include "core/base/hash.h"
#include "core/files/dataset.h"
#include "core/files/tokenizer.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ROWS_MAX ((int64_t)1 << 32)

void parity_data_default(parity_data_options *d)
{
    memset(d, 0, sizeof *d);
    snprintf(d->tokenizer, sizeof d->tokenizer, "bytes");
    d->micro_batch_size = 1;
}

static assay_status take_probability(parity_data_options *d, const char *text)
{
    char *end = NULL;
    d->mask_probability = strtod(text, &end);
    ASSAY_CHECK(end != text && *end == '\0' && d->mask_probability >= 0.0 && d->mask_probability < 1.0,
                ASSAY_INVALID_ARGUMENT, "--mask-probability: expected 0 <= P < 1, found %.64s", text);
    return ASSAY_OK;
}

static assay_status take(parity_data_options *d, size_t row, const char *name, const char *text)
{
    switch (row) {
    case 0:
        ASSAY_CHECK(d->n_data < PARITY_DATA_PATHS, ASSAY_LIMIT, "--data: at most %d", PARITY_DATA_PATHS);
        return assay_option_text(name, text, d->data[d->n_data++], sizeof d->data[0]);
    case 1:
        return assay_option_text(name, text, d->tokenizer, sizeof d->tokenizer);
    case 2:
        return assay_option_text(name, text, d->eod_token, sizeof d->eod_token);
    case 3:
        return assay_option_count("seq-length", text, 2, ROWS_MAX, &d->seq_length);
    case 4:
        return assay_option_count("micro-batch-size", text, 1, ROWS_MAX, &d->micro_batch_size);
    case 5:
        return assay_option_count("global-batch-size", text, 1, ROWS_MAX, &d->global_batch_size);
    case 6:
        return take_probability(d, text);
    default:
        d->pack = true;
        return ASSAY_OK;
    }
}

assay_status parity_data_option(parity_data_options *d, const char *name, const char *text, bool *mine)
{
    static const assay_extra_option rows[] = {PARITY_DATA_OPTION_ROWS};
    *mine = false;
    for (size_t i = 0; name != NULL && i < sizeof rows / sizeof *rows && !*mine; i++)
        if (strcmp(name, rows[i].name) == 0) {
            *mine = true;
            d->given |= 1u << i;
            ASSAY_TRY(take(d, i, name, text));
        }
    return ASSAY_OK;
}

static assay_status find_eod(const parity_data_options *d, assay_text_tokens *how)
{
    static const char *const known[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    how->eod = d->eod_token[0] != '\0' ? assay_bpe_added(how->bpe, d->eod_token) : -1;
    ASSAY_CHECK(d->eod_token[0] == '\0' || how->eod >= 0, ASSAY_NOT_FOUND,
                "--eod-token: '%s' is no added token of %s", d->eod_token, d->tokenizer);
    for (size_t i = 0; i < sizeof known / sizeof *known && how->eod < 0; i++)
        how->eod = assay_bpe_added(how->bpe, known[i]);
    ASSAY_CHECK(
        how->eod >= 0, ASSAY_NOT_FOUND,
        "%s: no added token <|endoftext|>, <|end_of_text|> or </s>: name the one that ends a document with "
        "--eod-token",
        d->tokenizer);
    return ASSAY_OK;
}

static assay_status check(const parity_data_options *d, int64_t steps, const char *path)
{
    const int64_t global = d->global_batch_size > 0 ? d->global_batch_size : d->micro_batch_size;
    struct stat sb;
    ASSAY_CHECK(d->n_data > 0, ASSAY_INVALID_ARGUMENT,
                "--data: expected a text file, a folder or the prefix of an indexed dataset, found nothing");
    ASSAY_CHECK(d->seq_length > 0, ASSAY_INVALID_ARGUMENT,
                "--seq-length: expected the tokens of a row, found nothing");
    ASSAY_CHECK(steps >= 1, ASSAY_INVALID_ARGUMENT, "--train-iters: expected at least 1 step, found %lld",
                (long long)steps);
    ASSAY_CHECK(global % d->micro_batch_size == 0, ASSAY_INVALID_ARGUMENT,
                "--global-batch-size %lld: expected a multiple of --micro-batch-size %lld", (long long)global,
                (long long)d->micro_batch_size);
    ASSAY_CHECK(lstat(path, &sb) != 0, ASSAY_INVALID_ARGUMENT, "%s: exists; nothing is overwritten", path);
    return ASSAY_OK;
}

static assay_status open_dataset(const parity_data_options *d, assay_bpe **bpe, assay_text_tokens *how,
                                 assay_dataset **out)
{
    const char *paths[PARITY_DATA_PATHS];
    for (int i = 0; i < d->n_data; i++)
        paths[i] = d->data[i];
    *how = (assay_text_tokens){NULL, ASSAY_BYTE_EOD};
    if (strcmp(d->tokenizer, "bytes") == 0) {
        ASSAY_CHECK(d->eod_token[0] == '\0', ASSAY_INVALID_ARGUMENT,
                    "--eod-token has no meaning with the tokenizer bytes");
    } else {
        ASSAY_TRY(assay_bpe_open(bpe, d->tokenizer));
        how->bpe = *bpe;
        ASSAY_TRY(find_eod(d, how));
    }
    return assay_dataset_open_tokens(out, paths, d->n_data, how);
}

assay_status parity_data_write(const parity_data_options *d, uint64_t seed, int64_t steps, int64_t vocab,
                               const char *path, parity_data_made *made)
{
    assay_bpe *bpe = NULL;
    assay_dataset *set = NULL;
    assay_text_tokens how;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(check(d, steps, path));
    ASSAY_TRY(assay_hash_init());
    ASSAY_TRY_GOTO(open_dataset(d, &bpe, &how, &set), st, done);
    const int64_t global = d->global_batch_size > 0 ? d->global_batch_size : d->micro_batch_size;
    *made = (parity_data_made){.tokens = assay_dataset_n_tokens(set),
                               .documents = assay_dataset_n_documents(set),
                               .vocab = assay_dataset_vocab(set),
                               .steps = steps,
                               .microbatches = global / d->micro_batch_size};
    ASSAY_CHECK_GOTO(vocab == 0 || made->vocab <= vocab, ASSAY_MISMATCH, st, done,
                     "%s: tokens up to %lld, the model's vocabulary has %lld",
                     bpe ? d->tokenizer : d->data[0], (long long)made->vocab - 1, (long long)vocab);
    ASSAY_TRY_GOTO(assay_dataset_write_batches(set, path, seed, steps, made->microbatches,
                                               d->micro_batch_size, d->seq_length, d->mask_probability,
                                               d->pack),
                   st, done);
    ASSAY_TRY_GOTO(assay_sha256_file(path, made->sha256), st, done);
done:
    assay_dataset_close(set);
    assay_bpe_close(bpe);
    return st;
}

void parity_data_say(const parity_data_options *d, const parity_data_made *made, FILE *out)
{
    const int64_t used = made->steps * made->microbatches * d->micro_batch_size * d->seq_length;
    fprintf(out, "%lld documents, %lld tokens, vocabulary %lld (tokenizer %s)\n", (long long)made->documents,
            (long long)made->tokens, (long long)made->vocab, d->tokenizer);
    fprintf(
        out,
        "[%lld,%lld,%lld,%lld] steps, microbatches, rows, tokens: %lld tokens, %.3g passes over the data\n",
        (long long)made->steps, (long long)made->microbatches, (long long)d->micro_batch_size,
        (long long)d->seq_length, (long long)used, (double)used / (double)made->tokens);
}
