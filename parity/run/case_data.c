/* The batch file of a case: text, with token ids from the whole vocabulary among it.
 *
 * Text alone uses the ids below 257, mostly ASCII: a wrong piece of the embedding or of the loss would go unseen on most
 * of the vocabulary.  So a quarter of the tokens is drawn over all of it, and the ids on both sides of every boundary
 * between tensor-parallel pieces are present in every step, as input and as label.  All is a function of the seed and
 * of the position. */
#include "core/base/philox.h"
#include "core/files/documents.h"
#include "core/files/tensorwriter.h"
#include "parity/run/cases.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWN_ONE_IN = 4, SMALL_TP = 4, MAX_BOUNDARY_IDS = 4096 };

static bool is_known(const int64_t *ids, int64_t n, int64_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static assay_status add_id(int64_t *ids, int64_t *n, int64_t id, int64_t vocab)
{
    if (id < 0 || id >= vocab || is_known(ids, *n, id))
        return ASSAY_OK;
    ASSAY_CHECK(*n < MAX_BOUNDARY_IDS, ASSAY_LIMIT, "more than %d boundaries of the vocabulary",
                MAX_BOUNDARY_IDS);
    ids[(*n)++] = id;
    return ASSAY_OK;
}

assay_status parity_case_boundary_ids(const parity_case *c, int64_t vocab, int64_t **ids, int64_t *n)
{
    *n = 0;
    *ids = malloc(MAX_BOUNDARY_IDS * sizeof **ids);
    ASSAY_CHECK(*ids != NULL, ASSAY_OUT_OF_MEMORY, "%s: boundaries of the vocabulary", c->file);
    ASSAY_TRY(add_id(*ids, n, 0, vocab));
    ASSAY_TRY(add_id(*ids, n, vocab - 1, vocab));
    for (int i = -SMALL_TP; i < c->n_layouts; i++) {
        assay_parallel_config p = {.tensor_model_parallel_size = i + SMALL_TP + 1};
        if (i >= 0)
            ASSAY_TRY(assay_layout_parse(c->layouts[i], &p));
        for (int r = 1; r < p.tensor_model_parallel_size; r++) {
            int64_t start, length;
            assay_split(vocab, p.tensor_model_parallel_size, r, &start, &length);
            ASSAY_TRY(add_id(*ids, n, start - 1, vocab));
            ASSAY_TRY(add_id(*ids, n, start, vocab));
        }
    }
    return ASSAY_OK;
}

/* Replaces the token at flat position `at`; a masked label stays masked unless it must count. */
static void put(int64_t *ids, int64_t *labels, int64_t at, int64_t id, bool counts)
{
    ids[at] = id;
    if (counts || labels[at] != ASSAY_IGNORE_INDEX)
        labels[at] = id;
}

/* Steps, or one batch [b,s]. */
static int64_t batches_of(const parity_case *c)
{
    return c->steps > 0 ? c->steps : 1;
}

/* Whether a token of a step belongs to the microbatch that has no target. */
static bool is_without_targets(const parity_case *c, int64_t i)
{
    return i / (c->micro_batch_size * c->seq_length) % c->microbatches == c->masked_microbatch;
}

/* Where a label can count in a step: not at the first token of a document, which no token of it comes before.  positions NULL:
 * a row is one document. */
static int64_t find_places(const parity_case *c, const int64_t *positions, int64_t *places)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->microbatches * c->micro_batch_size * c->seq_length; i++)
        if ((positions != NULL ? positions[i] : i % c->seq_length) > 0 && !is_without_targets(c, i))
            places[n++] = i;
    return n;
}

static assay_status put_boundaries(const parity_case *c, const int64_t *boundary, int64_t n_boundary,
                                   const int64_t *positions, int64_t *ids, int64_t *labels)
{
    const int64_t tokens = c->microbatches * c->micro_batch_size * c->seq_length;
    assay_status st = ASSAY_OK;
    int64_t *places = malloc((size_t)tokens * sizeof *places);
    ASSAY_CHECK(places != NULL, ASSAY_OUT_OF_MEMORY, "%s: %" PRId64 " tokens", c->file, tokens);
    for (int64_t step = 0; step < batches_of(c); step++) {
        const int64_t n = find_places(c, positions != NULL ? positions + step * tokens : NULL, places);
        ASSAY_CHECK_GOTO(n >= n_boundary, ASSAY_INVALID_ARGUMENT, st, done,
                         "%s: data: a step has %" PRId64 " labels, fewer than the %" PRId64
                         " ids at boundaries between pieces of the vocabulary",
                         c->file, n, n_boundary);
        for (int64_t k = 0; k < n_boundary; k++)
            put(ids, labels, step * tokens + places[k * n / n_boundary], boundary[k], true);
    }
done:
    free(places);
    return st;
}

static void draw_vocabulary(const parity_case *c, int64_t vocab, int64_t *ids, int64_t *labels)
{
    const uint64_t which = assay_name_hash("case.drawn"), what = assay_name_hash("case.vocabulary");
    for (int64_t i = 0; i < batches_of(c) * c->microbatches * c->micro_batch_size * c->seq_length; i++)
        if (c->n_data_paths == 0 ||
            assay_philox_below(c->options.seed, which, (uint64_t)i, DRAWN_ONE_IN) == 0)
            put(ids, labels, i,
                (int64_t)assay_philox_below(c->options.seed, what, (uint64_t)i, (uint64_t)vocab), false);
}

/* The documents of every row; the first token of one is no target. */
static assay_status pack(const parity_case *c, int64_t rows, int64_t *labels, int64_t **positions)
{
    const int64_t s = c->seq_length;
    *positions = malloc((size_t)(rows * s) * sizeof **positions);
    ASSAY_CHECK(*positions != NULL, ASSAY_OUT_OF_MEMORY, "%s: %" PRId64 " tokens", c->file, rows * s);
    for (int64_t row = 0; row < rows; row++)
        assay_documents_draw(c->options.seed, row, s, c->pad_seq_to_mult, *positions + row * s);
    for (int64_t i = 0; i < rows * s; i++)
        if ((*positions)[i] == 0)
            labels[i] = ASSAY_IGNORE_INDEX;
    return ASSAY_OK;
}

static void mask_or_not(const parity_case *c, int64_t i, int64_t *ids, int64_t *labels)
{
    const uint64_t masked = (uint64_t)(c->mask_probability * 0x1p32);
    ids[i] = 0;
    labels[i] = assay_philox_below(c->options.seed, assay_name_hash("case.mask"), (uint64_t)i,
                                   (uint64_t)1 << 32) < masked
                    ? ASSAY_IGNORE_INDEX
                    : 0;
}

/* Megatron-LM's form has a mask beside the labels, which are ids everywhere. */
static assay_status take_mask(const parity_case *c, int64_t count, int64_t *labels, int64_t **mask)
{
    *mask = malloc((size_t)count * sizeof **mask);
    ASSAY_CHECK(*mask != NULL, ASSAY_OUT_OF_MEMORY, "%s: %" PRId64 " tokens", c->file, count);
    for (int64_t i = 0; i < count; i++) {
        (*mask)[i] = labels[i] != ASSAY_IGNORE_INDEX;
        labels[i] = (*mask)[i] ? labels[i] : 0;
    }
    return ASSAY_OK;
}

assay_status parity_case_write_batches(const parity_case *c, const assay_dataset *data, int64_t vocab,
                                       const char *path)
{
    const int64_t all[4] = {batches_of(c), c->microbatches, c->micro_batch_size, c->seq_length};
    const int64_t *shape = c->steps > 0 ? all : all + 2, s = c->seq_length;
    const int ndim = c->steps > 0 ? 4 : 2;
    int64_t count = 0, n_boundary = 0;
    int64_t *ids = NULL, *labels = NULL, *boundary = NULL, *positions = NULL, *mask = NULL;
    assay_tensorwriter *w = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(assay_shape_count(shape, ndim, &count) && count < INT64_MAX / 16, ASSAY_INVALID_ARGUMENT,
                "%s: data: the number of tokens overflows 64 bits", c->file);
    ids = malloc((size_t)count * sizeof *ids);
    labels = malloc((size_t)count * sizeof *labels);
    ASSAY_CHECK_GOTO(ids != NULL && labels != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s: %" PRId64 " tokens",
                     c->file, count);
    for (int64_t i = 0; i < count && data == NULL; i++) /* draw() replaces the zeros */
        mask_or_not(c, i, ids, labels);
    for (int64_t i = 0; i < count / s && data != NULL; i++)
        ASSAY_TRY_GOTO(assay_dataset_sample(data, c->options.seed, i, s, c->mask_probability, ids + i * s,
                                            labels + i * s),
                       st, done);
    if (c->packing)
        ASSAY_TRY_GOTO(pack(c, count / s, labels, &positions), st, done);
    ASSAY_TRY_GOTO(parity_case_boundary_ids(c, vocab, &boundary, &n_boundary), st, done);
    draw_vocabulary(c, vocab, ids, labels);
    for (int64_t i = 0; i < count; i++)
        if (is_without_targets(c, i))
            labels[i] = ASSAY_IGNORE_INDEX;
    ASSAY_TRY_GOTO(put_boundaries(c, boundary, n_boundary, positions, ids, labels), st, done);
    if (c->shifted)
        ASSAY_TRY_GOTO(take_mask(c, count, labels, &mask), st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_create(&w, path), st, done);
    ASSAY_TRY_GOTO(
        assay_tensorwriter_add_ref(w, c->shifted ? "tokens" : "input_ids", ASSAY_I64, shape, ndim, ids), st,
        done);
    if (mask != NULL)
        ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "loss_mask", ASSAY_I64, shape, ndim, mask), st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "labels", ASSAY_I64, shape, ndim, labels), st, done);
    if (positions != NULL)
        ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "position_ids", ASSAY_I64, shape, ndim, positions), st,
                       done);
    ASSAY_TRY_GOTO(assay_tensorwriter_finish(w), st, done);
done:
    assay_tensorwriter_destroy(w);
    free(boundary);
    free(mask);
    free(positions);
    free(labels);
    free(ids);
    return st;
}
