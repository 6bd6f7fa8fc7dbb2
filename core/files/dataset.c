/* Token streams and their order.
 *
 * The stream is cut into floor(n_tokens / seq_length) windows of seq_length tokens; an epoch visits each of
 * them once.  The windows of an epoch begin at an offset drawn from 0...(n_tokens mod seq_length), so that
 * the tokens at the end are not left out for ever.  Which window comes when is a permutation computed from
 * the index alone, without a table: a Feistel network over the smallest even number of bits that holds the
 * number of windows, its round function drawn from Philox, walked until the value falls inside (Black and
 * Rogaway 2002).  So sample `index` costs the same everywhere and no layout, batch size or restart can change
 * it. */
#include "core/files/dataset_internal.h"

#include "core/base/hash.h"
#include "core/base/philox.h"
#include "core/files/batches.h"
#include "core/files/tensorwriter.h"
#include "core/files/tokenizer.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FEISTEL_ROUNDS = 6 };

/* --- opening -----------------------------------------------------------------------------------------------
 */

static assay_status add_indexed(assay_dataset *d, const char *prefix)
{
    int64_t n_tokens = 0, largest = 0;
    const size_t n = (size_t)d->n_indexed + 1;
    assay_indexed *indexed = realloc(d->indexed, n * sizeof *indexed);
    ASSAY_CHECK(indexed, ASSAY_OUT_OF_MEMORY, "%s: out of memory", prefix);
    d->indexed = indexed;
    int64_t *starts = realloc(d->indexed_starts, (n + 1) * sizeof *starts);
    ASSAY_CHECK(starts, ASSAY_OUT_OF_MEMORY, "%s: out of memory", prefix);
    d->indexed_starts = starts;
    starts[0] = 0;
    ASSAY_TRY(assay_indexed_open(&d->indexed[d->n_indexed], prefix, &n_tokens, &largest));
    d->n_documents += d->indexed[d->n_indexed].n_sequences;
    d->n_indexed++;
    ASSAY_CHECK(assay_add_i64(d->n_tokens, n_tokens, &d->n_tokens), ASSAY_LIMIT, "%s: too many tokens",
                prefix);
    starts[d->n_indexed] = d->n_tokens;
    if (largest + 1 > d->vocab)
        d->vocab = largest + 1;
    return ASSAY_OK;
}

/* PREFIX itself, PREFIX.idx and PREFIX.bin all name the indexed dataset. */
static bool indexed_prefix(const char *path, char *prefix, size_t capacity)
{
    char idx[PATH_MAX + 8];
    struct stat sb;
    size_t n = strlen(path);
    if (n > 4 && (strcmp(path + n - 4, ".idx") == 0 || strcmp(path + n - 4, ".bin") == 0))
        n -= 4;
    else if (stat(path, &sb) == 0)
        return false; /* a text file or a folder of that very name comes first */
    if (n >= capacity)
        return false;
    memcpy(prefix, path, n);
    prefix[n] = '\0';
    snprintf(idx, sizeof idx, "%s.idx", prefix);
    return stat(idx, &sb) == 0;
}

static assay_status add_source(assay_dataset *d, const char *path)
{
    char prefix[PATH_MAX];
    struct stat sb;
    const bool indexed = indexed_prefix(path, prefix, sizeof prefix);
    ASSAY_CHECK(indexed ? !d->text : d->n_indexed == 0, ASSAY_INVALID_ARGUMENT,
                "%s: text and indexed datasets cannot be mixed: their tokens mean different things", path);
    ASSAY_CHECK(!indexed || d->how.bpe == NULL, ASSAY_INVALID_ARGUMENT,
                "%s: an indexed dataset holds tokens already: a tokenizer has no meaning", path);
    if (indexed)
        return add_indexed(d, prefix);
    ASSAY_CHECK(stat(path, &sb) == 0, errno == ENOENT ? ASSAY_NOT_FOUND : ASSAY_IO,
                "%s: neither a text file, a folder nor the prefix of an indexed dataset: %s", path,
                strerror(errno));
    return S_ISDIR(sb.st_mode) ? assay_dataset_add_text_folder(d, path) : assay_dataset_add_text(d, path);
}

assay_status assay_dataset_open_tokens(assay_dataset **out, const char *const *paths, int n_paths,
                                       const assay_text_tokens *how)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    ASSAY_CHECK(n_paths >= 1, ASSAY_INVALID_ARGUMENT, "expected at least one path of a dataset");
    assay_dataset *d = calloc(1, sizeof *d);
    ASSAY_CHECK(d, ASSAY_OUT_OF_MEMORY, "dataset: out of memory");
    d->how = *how;
    for (int i = 0; i < n_paths; i++)
        ASSAY_TRY_GOTO(add_source(d, paths[i]), st, fail);
    *out = d;
    return ASSAY_OK;
fail:
    assay_dataset_close(d);
    return st;
}

assay_status assay_dataset_open(assay_dataset **out, const char *const *paths, int n_paths)
{
    const assay_text_tokens bytes = {NULL, ASSAY_BYTE_EOD};
    return assay_dataset_open_tokens(out, paths, n_paths, &bytes);
}

void assay_dataset_close(assay_dataset *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_indexed; i++)
        assay_indexed_close(&d->indexed[i]);
    free(d->indexed);
    free(d->indexed_starts);
    free(d->text);
    free(d);
}

int64_t assay_dataset_n_tokens(const assay_dataset *d)
{
    return d->n_tokens;
}

int64_t assay_dataset_n_documents(const assay_dataset *d)
{
    return d->n_documents;
}

int64_t assay_dataset_vocab(const assay_dataset *d)
{
    return d->vocab;
}

/* --- order -------------------------------------------------------------------------------------------------
 */

/* Bijection of [0, n): position of an epoch -> window. */
static int64_t permute(uint64_t seed, int64_t epoch, int64_t n, int64_t position)
{
    const uint64_t stream = assay_name_hash("dataset.order") + (uint64_t)epoch;
    int half = 1;
    while (half < 31 && ((int64_t)1 << (2 * half)) < n)
        half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t value = (uint64_t)position;
    do {
        uint64_t left = value >> half, right = value & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint32_t word[4];
            assay_philox(seed, stream, round << 32 | right, word);
            const uint64_t next = left ^ (word[0] & mask);
            left = right;
            right = next;
        }
        value = left << half | right;
    } while (value >= (uint64_t)n); /* stays on the cycle of `position`, which begins inside */
    return (int64_t)value;
}

static void read_tokens(const assay_dataset *d, int64_t start, int64_t n, int64_t *tokens)
{
    if (d->text) {
        for (int64_t i = 0; i < n; i++)
            tokens[i] = d->text[start + i];
        return;
    }
    for (int k = 0; k < d->n_indexed && n > 0; k++) {
        if (start >= d->indexed_starts[k + 1])
            continue;
        const int64_t left = d->indexed_starts[k + 1] - start, take = n < left ? n : left;
        assay_indexed_read(&d->indexed[k], start - d->indexed_starts[k], take, tokens);
        tokens += take;
        start += take;
        n -= take;
    }
}

/* The last label of a sample always counts, so that a sample of two or more tokens has a target. */
static void mask_labels(uint64_t seed, int64_t first, int64_t seq_length, double probability, int64_t *labels)
{
    const uint64_t stream = assay_name_hash("dataset.mask");
    const uint64_t threshold = (uint64_t)(probability * 0x1p32);
    for (int64_t i = 0; i + 1 < seq_length; i++) {
        uint32_t word[4];
        assay_philox(seed, stream, (uint64_t)(first + i), word);
        if (word[0] < threshold)
            labels[i] = ASSAY_IGNORE_INDEX;
    }
}

assay_status assay_dataset_sample(const assay_dataset *d, uint64_t seed, int64_t index, int64_t seq_length,
                                  double mask_probability, int64_t *input_ids, int64_t *labels)
{
    int64_t first = 0;
    ASSAY_CHECK(index >= 0 && seq_length >= 1 && assay_mul_i64(index, seq_length, &first) &&
                    first <= INT64_MAX - seq_length,
                ASSAY_INVALID_ARGUMENT, "sample %" PRId64 " of %" PRId64 " tokens", index, seq_length);
    ASSAY_CHECK(mask_probability >= 0.0 && mask_probability < 1.0, ASSAY_INVALID_ARGUMENT,
                "mask_probability is %g, expected 0 <= p < 1", mask_probability);
    ASSAY_CHECK(d->n_tokens >= seq_length, ASSAY_INVALID_ARGUMENT,
                "the dataset has %" PRId64 " tokens, fewer than seq_length %" PRId64, d->n_tokens,
                seq_length);
    const int64_t n = d->n_tokens / seq_length;
    ASSAY_CHECK(n <= (int64_t)1 << 62, ASSAY_LIMIT, "too many windows");
    const int64_t epoch = index / n;
    const int64_t slack = d->n_tokens - n * seq_length;
    const uint64_t offset =
        assay_philox_below(seed, assay_name_hash("dataset.offset"), (uint64_t)epoch, (uint64_t)slack + 1);
    const int64_t start = (int64_t)offset + permute(seed, epoch, n, index % n) * seq_length;
    read_tokens(d, start, seq_length, input_ids);
    memcpy(labels, input_ids, (size_t)seq_length * sizeof *labels);
    mask_labels(seed, first, seq_length, mask_probability, labels);
    return ASSAY_OK;
}

/* The place of every token in its document, or in the part of it that the row has: an EOD token ends one.  The first of a document is no
 * target: the document before would be asked to say it (labels are shifted by who reads them).  The last that is one always counts. */
static void number_documents(const assay_dataset *d, int64_t count, int64_t s, const int64_t *ids,
                             int64_t *labels, int64_t *positions)
{
    for (int64_t i = 0; i < count; i++) {
        positions[i] = i % s == 0 || ids[i - 1] == d->how.eod ? 0 : positions[i - 1] + 1;
        if (i % s != 0 && positions[i] == 0)
            labels[i] = ASSAY_IGNORE_INDEX;
    }
    for (int64_t last = s - 1; last < count; last += s) {
        int64_t i = last;
        while (i > last - s && positions[i] == 0)
            i--;
        if (i > last - s)
            labels[i] = ids[i];
    }
}

assay_status assay_dataset_write_batches(const assay_dataset *d, const char *path, uint64_t seed,
                                         int64_t steps, int64_t microbatches, int64_t b, int64_t s,
                                         double mask_probability, bool pack)
{
    const int64_t shape[4] = {steps, microbatches, b, s};
    int64_t count = 0, bytes = 0;
    assay_status st = ASSAY_OK;
    assay_tensorwriter *w = NULL;
    ASSAY_CHECK(steps >= 1 && microbatches >= 1 && b >= 1 && s >= 2, ASSAY_INVALID_ARGUMENT,
                "%s: [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]: expected at least 1 step, microbatch and row, and 2 tokens",
                path, steps, microbatches, b, s);
    ASSAY_CHECK(assay_shape_count(shape, 4, &count) && assay_mul_i64(count, 8, &bytes),
                ASSAY_INVALID_ARGUMENT, "%s: the number of tokens overflows 64 bits", path);
    ASSAY_CHECK(d->n_tokens >= s, ASSAY_INVALID_ARGUMENT,
                "the dataset has %" PRId64 " tokens, fewer than seq_length %" PRId64, d->n_tokens, s);
    ASSAY_CHECK(!pack || d->n_indexed == 0, ASSAY_UNSUPPORTED,
                "%s: pack: the ends of documents are known for text, not in an indexed dataset", path);
    int64_t *ids = calloc((size_t)count, sizeof *ids), *labels = malloc((size_t)bytes),
            *positions = pack ? malloc((size_t)bytes) : NULL;
    ASSAY_CHECK_GOTO(ids && labels && (positions || !pack), ASSAY_OUT_OF_MEMORY, st, done,
                     "%s: out of memory for %" PRId64 " tokens", path, count);
    for (int64_t i = 0; i < count / s; i++)
        ASSAY_TRY_GOTO(assay_dataset_sample(d, seed, i, s, mask_probability, ids + i * s, labels + i * s), st,
                       done);
    ASSAY_TRY_GOTO(assay_tensorwriter_create(&w, path), st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "input_ids", ASSAY_I64, shape, 4, ids), st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "labels", ASSAY_I64, shape, 4, labels), st, done);
    if (pack) {
        number_documents(d, count, s, ids, labels, positions);
        ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "position_ids", ASSAY_I64, shape, 4, positions), st,
                       done);
    }
    ASSAY_TRY_GOTO(assay_tensorwriter_finish(w), st, done);
done:
    assay_tensorwriter_destroy(w);
    free(ids);
    free(labels);
    free(positions);
    return st;
}
