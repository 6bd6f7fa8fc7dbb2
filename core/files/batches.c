/* Batch files: token ids and labels of one forward and backward, or of a few optimizer steps. */
#include "core/files/batches.h"

#include "core/files/documents.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* "[2,0,1,7]" or "[1,7]": where element `at` lies. */
static void format_index(const assay_batches *b, int64_t at, char *out, size_t capacity)
{
    const int64_t col = at % b->s, row = at / b->s % b->b;
    const int64_t microbatch = at / (b->s * b->b) % b->microbatches;
    const int64_t step = at / (b->s * b->b * b->microbatches);
    if (b->training)
        snprintf(out, capacity, "[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", step, microbatch, row,
                 col);
    else
        snprintf(out, capacity, "[%" PRId64 ",%" PRId64 "]", row, col);
}

static const char *ids_name(const assay_batches *b)
{
    return b->shifted ? "tokens" : "input_ids";
}

static assay_status check_only_known(const assay_tensorfile *file, const char *path, bool shifted)
{
    enum { MOST = 6 };
    static const char *const known[2][MOST] = {
        {"input_ids", "labels", "position_ids"},
        {"tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "cu_seqlens_padded"}};
    for (int64_t i = 0; i < assay_tensorfile_count(file); i++) {
        const char *name = assay_tensorfile_at(file, i)->name;
        bool found = false;
        for (int k = 0; k < MOST && known[shifted][k] != NULL; k++)
            found = found || strcmp(name, known[shifted][k]) == 0;
        ASSAY_CHECK(found, ASSAY_UNSUPPORTED,
                    "%s: tensor '%.160s' is not supported in a batch file, expected %s only", path, name,
                    shifted ? "tokens, labels, loss_mask, position_ids, cu_seqlens and cu_seqlens_padded"
                            : "input_ids, labels and position_ids");
    }
    return ASSAY_OK;
}

static assay_status read_shapes(assay_batches *b, const char *path, const assay_tensor_info **ids,
                                const assay_tensor_info **labels)
{
    b->shifted = assay_tensorfile_find(b->file, "tokens") != NULL;
    const char *name = ids_name(b);
    ASSAY_TRY(assay_tensorfile_get(b->file, name, ASSAY_I64, NULL, -1, ids));
    const assay_tensor_info *t = *ids;
    ASSAY_CHECK(t->ndim == 2 || t->ndim == 4, ASSAY_MISMATCH,
                "%s: tensor '%s' has %d dimensions, expected [b,s] or [steps,microbatches,b,s]", path, name,
                t->ndim);
    for (int i = 0; i < t->ndim; i++)
        ASSAY_CHECK(t->shape[i] >= 1, ASSAY_MISMATCH, "%s: tensor '%s': dimension %d is 0", path, name, i);
    ASSAY_TRY(assay_tensorfile_get(b->file, "labels", ASSAY_I64, t->shape, t->ndim, labels));
    b->training = t->ndim == 4;
    b->steps = b->training ? t->shape[0] : 1;
    b->microbatches = b->training ? t->shape[1] : 1;
    b->b = t->shape[t->ndim - 2];
    b->s = t->shape[t->ndim - 1];
    return ASSAY_OK;
}

static assay_status check_tokens(const assay_batches *b, const char *path, const char *name,
                                 const int64_t *tokens, int64_t n, int64_t vocab, bool may_ignore)
{
    for (int64_t i = 0; i < n; i++) {
        if ((tokens[i] >= 0 && tokens[i] < vocab) || (may_ignore && tokens[i] == ASSAY_IGNORE_INDEX))
            continue;
        char index[96];
        format_index(b, i, index, sizeof index);
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT,
                   "%s: %s%s is %" PRId64 ", outside the vocabulary 0...%" PRId64 "%s", path, name, index,
                   tokens[i], vocab - 1, may_ignore ? " and not -100" : "");
    }
    return ASSAY_OK;
}

/* --- Megatron-LM's form ------------------------------------------------------------------------------------- */

/* Whether element i of stored data is the number `value`, 0 or 1; the caller knows the dtype. */
static bool is_flag(const assay_tensor_info *t, int64_t i, int value)
{
    const float single = (float)value;
    const double real = (double)value;
    const int64_t integer = value;
    const uint8_t byte = (uint8_t)value;
    const void *expected = t->dtype == ASSAY_F32   ? (const void *)&single
                           : t->dtype == ASSAY_F64 ? (const void *)&real
                           : t->dtype == ASSAY_I64 ? (const void *)&integer
                                                   : (const void *)&byte;
    const size_t size = t->dtype == ASSAY_F32 ? 4 : t->dtype == ASSAY_BOOL ? 1 : 8;
    return memcmp((const char *)t->data + (size_t)i * size, expected, size) == 0;
}

/* A position that does not count has no target. */
static assay_status apply_mask(assay_batches *b, const char *path, const assay_tensor_info *labels)
{
    const assay_tensor_info *mask;
    if (assay_tensorfile_find(b->file, "loss_mask") == NULL)
        return ASSAY_OK;
    ASSAY_TRY(
        assay_tensorfile_get(b->file, "loss_mask", ASSAY_DTYPE_COUNT, labels->shape, labels->ndim, &mask));
    ASSAY_CHECK(mask->dtype == ASSAY_BOOL || mask->dtype == ASSAY_I64 || mask->dtype == ASSAY_F32 ||
                    mask->dtype == ASSAY_F64,
                ASSAY_UNSUPPORTED, "%s: tensor 'loss_mask': expected BOOL, I64, F32 or F64, found %s", path,
                assay_dtype_name(mask->dtype));
    for (int64_t i = 0; i < labels->count; i++) {
        char index[96];
        if (is_flag(mask, i, 1))
            continue;
        format_index(b, i, index, sizeof index);
        ASSAY_CHECK(is_flag(mask, i, 0), ASSAY_UNSUPPORTED,
                    "%s: loss_mask%s: expected 0 or 1; weights of targets between them are not supported",
                    path, index);
        b->labels[i] = ASSAY_IGNORE_INDEX;
    }
    return ASSAY_OK;
}

/* --- targets ------------------------------------------------------------------------------------------------ */

/* Hugging Face: the model shifts, the label at position 0 is never a target. */
static bool has_target(const assay_batches *b, int64_t step)
{
    const int64_t *labels = assay_batches_labels(b, step, 0);
    for (int64_t i = 0; i < b->microbatches * b->b * b->s; i++)
        if ((b->shifted || i % b->s > 0) && labels[i] != ASSAY_IGNORE_INDEX)
            return true;
    return false;
}

/* The loss of a step is a mean over its targets: without one it is 0/0. */
static assay_status check_targets(const assay_batches *b, const char *path)
{
    for (int64_t step = 0; step < b->steps; step++) {
        const bool found = has_target(b, step);
        if (b->training)
            ASSAY_CHECK(found, ASSAY_INVALID_ARGUMENT,
                        "%s: step %" PRId64 ": all labels are masked: the loss is undefined", path, step);
        else
            ASSAY_CHECK(found, ASSAY_INVALID_ARGUMENT, "%s: all labels are masked: the loss is undefined",
                        path);
    }
    return ASSAY_OK;
}

assay_status assay_batches_open(assay_batches *out, const char *path, int64_t vocab)
{
    assay_status st = ASSAY_OK;
    const assay_tensor_info *ids = NULL, *labels = NULL;
    *out = (assay_batches){0};
    ASSAY_CHECK(vocab >= 1, ASSAY_INVALID_ARGUMENT, "%s: the vocabulary has %" PRId64 " entries", path,
                vocab);
    ASSAY_TRY_GOTO(assay_tensorfile_open(&out->file, path), st, fail);
    ASSAY_TRY_GOTO(read_shapes(out, path, &ids, &labels), st, fail);
    ASSAY_TRY_GOTO(check_only_known(out->file, path, out->shifted), st, fail);
    out->input_ids = malloc(ids->bytes);
    out->labels = malloc(labels->bytes);
    ASSAY_CHECK_GOTO(out->input_ids && out->labels, ASSAY_OUT_OF_MEMORY, st, fail,
                     "%s: out of memory for %zu bytes", path, 2 * ids->bytes);
    memcpy(out->input_ids, ids->data, ids->bytes);
    memcpy(out->labels, labels->data, labels->bytes);
    ASSAY_TRY_GOTO(check_tokens(out, path, ids_name(out), out->input_ids, ids->count, vocab, false), st,
                   fail);
    ASSAY_TRY_GOTO(check_tokens(out, path, "labels", out->labels, ids->count, vocab, true), st, fail);
    if (out->shifted)
        ASSAY_TRY_GOTO(apply_mask(out, path, labels), st, fail);
    ASSAY_TRY_GOTO(assay_documents_read(out, path, ids), st, fail);
    ASSAY_TRY_GOTO(check_targets(out, path), st, fail);
    return ASSAY_OK;
fail:
    assay_batches_close(out);
    return st;
}

void assay_batches_close(assay_batches *b)
{
    assay_tensorfile_close(b->file);
    free(b->input_ids);
    free(b->labels);
    free(b->position_ids);
    *b = (assay_batches){0};
}

const int64_t *assay_batches_ids(const assay_batches *b, int64_t step, int64_t microbatch)
{
    return b->input_ids + (step * b->microbatches + microbatch) * b->b * b->s;
}

const int64_t *assay_batches_labels(const assay_batches *b, int64_t step, int64_t microbatch)
{
    return b->labels + (step * b->microbatches + microbatch) * b->b * b->s;
}

const int64_t *assay_batches_positions(const assay_batches *b, int64_t step, int64_t microbatch)
{
    return b->position_ids ? b->position_ids + (step * b->microbatches + microbatch) * b->b * b->s : NULL;
}

assay_status assay_batch_share_make(bool all_rows, int64_t microbatches, int64_t b, int dp, int dp_rank,
                                    assay_batch_share *out)
{
    ASSAY_CHECK(microbatches >= 1 && b >= 1 && dp >= 1 && dp_rank >= 0 && dp_rank < dp,
                ASSAY_INVALID_ARGUMENT,
                "%" PRId64 " microbatches of %" PRId64 " rows for data-parallel rank %d of %d", microbatches,
                b, dp_rank, dp);
    ASSAY_CHECK(microbatches % dp == 0 || b % dp == 0, ASSAY_INVALID_ARGUMENT,
                "data_parallel_size %d divides neither the %" PRId64
                " microbatches of a step nor the %" PRId64 " rows of a microbatch",
                dp, microbatches, b);
    ASSAY_CHECK(
        !all_rows || b % dp == 0, ASSAY_INVALID_ARGUMENT,
        "global_aux_loss: data_parallel_size %d does not divide the %" PRId64
        " rows of a microbatch: every rank must run some rows of each, or the layout would change what "
        "is counted (Megatron-LM's counts of whole microbatches: --semantics megatron)",
        dp, b);
    *out = (assay_batch_share){.n_microbatches = microbatches, .n_rows = b};
    if (microbatches % dp == 0 && (!all_rows || dp == 1)) {
        out->n_microbatches = microbatches / dp;
        out->first_microbatch = dp_rank * out->n_microbatches;
    } else {
        out->rows_split = true;
        out->n_rows = b / dp;
        out->first_row = dp_rank * out->n_rows;
    }
    return ASSAY_OK;
}
