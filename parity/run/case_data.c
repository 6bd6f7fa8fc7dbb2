/* The batch file of a case: text, with token ids from the whole vocabulary among it.
 *
 * Text alone uses the ids below 257, mostly ASCII: a wrong piece of the embedding or of the loss would go unseen on most
 * of the vocabulary.  So a quarter of the tokens is drawn over all of it, and the ids on both sides of every boundary
 * between tensor-parallel pieces are present in every step, as input and as label.  All is a function of the seed and
 * of the position. */
#include "core/base/philox.h"
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

static assay_status draw(const parity_case *c, int64_t vocab, const int64_t *boundary, int64_t n_boundary,
                         int64_t *ids, int64_t *labels)
{
    const int64_t s = c->seq_length, rows = c->microbatches * c->micro_batch_size;
    const int64_t places = rows * (s - 1); /* the first label of a row never counts */
    const uint64_t which = assay_name_hash("case.drawn"), what = assay_name_hash("case.vocabulary");
    ASSAY_CHECK(places >= n_boundary, ASSAY_INVALID_ARGUMENT,
                "%s: data: a step has %" PRId64 " labels, fewer than the %" PRId64
                " ids at boundaries between pieces of the vocabulary",
                c->file, places, n_boundary);
    for (int64_t i = 0; i < batches_of(c) * rows * s; i++)
        if (c->n_data_paths == 0 ||
            assay_philox_below(c->options.seed, which, (uint64_t)i, DRAWN_ONE_IN) == 0)
            put(ids, labels, i,
                (int64_t)assay_philox_below(c->options.seed, what, (uint64_t)i, (uint64_t)vocab), false);
    for (int64_t step = 0; step < batches_of(c); step++)
        for (int64_t k = 0; k < n_boundary; k++) {
            const int64_t place = k * places / n_boundary;
            put(ids, labels, (step * rows + place / (s - 1)) * s + 1 + place % (s - 1), boundary[k], true);
        }
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

assay_status parity_case_write_batches(const parity_case *c, const assay_dataset *data, int64_t vocab,
                                       const char *path)
{
    const int64_t all[4] = {batches_of(c), c->microbatches, c->micro_batch_size, c->seq_length};
    const int64_t *shape = c->steps > 0 ? all : all + 2, s = c->seq_length;
    const int ndim = c->steps > 0 ? 4 : 2;
    int64_t count = 0, n_boundary = 0;
    int64_t *ids = NULL, *labels = NULL, *boundary = NULL;
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
    ASSAY_TRY_GOTO(parity_case_boundary_ids(c, vocab, &boundary, &n_boundary), st, done);
    ASSAY_TRY_GOTO(draw(c, vocab, boundary, n_boundary, ids, labels), st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_create(&w, path), st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "input_ids", ASSAY_I64, shape, ndim, ids), st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "labels", ASSAY_I64, shape, ndim, labels), st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_finish(w), st, done);
done:
    assay_tensorwriter_destroy(w);
    free(boundary);
    free(labels);
    free(ids);
    return st;
}
