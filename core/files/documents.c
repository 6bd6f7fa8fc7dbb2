/* Documents packed in the rows of a batch: what a file says of them, and made-up ones. */
#include "core/files/documents.h"

#include "core/base/hash.h"
#include "core/base/philox.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* "[2,0,1,7]" or "[1,7]": where token `at` lies. */
static const char *index_of(const assay_batches *b, int64_t at, char out[96])
{
    const int64_t col = at % b->s, row = at / b->s % b->b, microbatch = at / (b->s * b->b);
    if (b->training)
        snprintf(out, 96, "[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", microbatch / b->microbatches,
                 microbatch % b->microbatches, row, col);
    else
        snprintf(out, 96, "[%" PRId64 ",%" PRId64 "]", row, col);
    return out;
}

/* --- position_ids ------------------------------------------------------------------------------------------- */

static int64_t stored_position(const assay_tensor_info *t, int64_t i)
{
    int64_t value;
    memcpy(&value, (const char *)t->data + i * 8, sizeof value);
    return value;
}

/* 0, and then one more than before or 0 again. */
static assay_status take_positions(assay_batches *b, const char *path, const assay_tensor_info *stored)
{
    for (int64_t i = 0; i < stored->count; i++) {
        char at[96];
        const int64_t found = stored_position(stored, i),
                      next = i % b->s > 0 ? b->position_ids[i - 1] + 1 : 0;
        if (next == 0)
            ASSAY_CHECK(found == 0, ASSAY_UNSUPPORTED,
                        "%s: position_ids%s: expected 0, found %" PRId64 ": a row begins with a document",
                        path, index_of(b, i, at), found);
        else
            ASSAY_CHECK(found == next || found == 0, ASSAY_UNSUPPORTED,
                        "%s: position_ids%s: expected %" PRId64
                        ", or 0 where a document begins, found %" PRId64,
                        path, index_of(b, i, at), next, found);
        b->position_ids[i] = found;
    }
    return ASSAY_OK;
}

/* A token of padding, until all is read: then it is at position 0 of a document of its own. */
enum { PADDING = -1 };

/* --- cu_seqlens --------------------------------------------------------------------------------------------- */

/* The cumulative lengths of one microbatch: n documents, n + 1 numbers, those behind the end repeat it. */
typedef struct bounds {
    const char *path, *name;
    int64_t n, *at;
} bounds;

static assay_status read_bounds(const assay_batches *b, const char *path, const char *name,
                                int64_t microbatch, bounds *out)
{
    const assay_tensor_info *t;
    const int64_t shape[3] = {b->steps, b->microbatches, -1};
    *out = (bounds){.path = path, .name = name};
    ASSAY_TRY(assay_tensorfile_get(b->file, name, ASSAY_DTYPE_COUNT, b->training ? shape : shape + 2,
                                   b->training ? 3 : 1, &t));
    ASSAY_CHECK(t->dtype == ASSAY_I32 || t->dtype == ASSAY_I64, ASSAY_UNSUPPORTED,
                "%s: tensor '%s': expected I32 or I64, found %s", path, name, assay_dtype_name(t->dtype));
    const int64_t entries = t->shape[t->ndim - 1];
    ASSAY_CHECK(entries >= 2, ASSAY_MISMATCH,
                "%s: tensor '%s' has %" PRId64 " numbers, expected 0, ..., %" PRId64, path, name, entries,
                b->b * b->s);
    out->at = malloc((size_t)entries * sizeof *out->at);
    ASSAY_CHECK(out->at, ASSAY_OUT_OF_MEMORY, "%s: %s: out of memory for %" PRId64 " documents", path, name,
                entries - 1);
    out->n = entries - 1;
    for (int64_t i = 0; i < entries; i++) {
        const char *from = (const char *)t->data;
        int32_t narrow;
        if (t->dtype == ASSAY_I64) {
            memcpy(&out->at[i], from + (microbatch * entries + i) * 8, 8);
        } else {
            memcpy(&narrow, from + (microbatch * entries + i) * 4, 4);
            out->at[i] = narrow;
        }
    }
    return ASSAY_OK;
}

/* Rises from 0 to `end` (-1: any), and repeats the end at most. */
static assay_status check_bounds(const bounds *u, int64_t microbatch, int64_t end)
{
    int64_t n = u->n;
    while (n > 0 && u->at[n] == u->at[n - 1])
        n--;
    ASSAY_CHECK(u->at[0] == 0, ASSAY_INVALID_ARGUMENT,
                "%s: %s[0] of microbatch %" PRId64 ": expected 0, found %" PRId64, u->path, u->name,
                microbatch, u->at[0]);
    for (int64_t i = 0; i < n; i++)
        ASSAY_CHECK(u->at[i + 1] > u->at[i], ASSAY_INVALID_ARGUMENT,
                    "%s: %s[%" PRId64 "] of microbatch %" PRId64 ": expected more than %" PRId64
                    ", found %" PRId64,
                    u->path, u->name, i + 1, microbatch, u->at[i], u->at[i + 1]);
    ASSAY_CHECK(end < 0 || u->at[u->n] == end, ASSAY_INVALID_ARGUMENT,
                "%s: %s of microbatch %" PRId64 ": expected to end at its %" PRId64 " tokens, found %" PRId64,
                u->path, u->name, microbatch, end, u->at[u->n]);
    return ASSAY_OK;
}

/* Document i of a microbatch that begins at token `first`: its length, and its place with the padding behind it. */
static assay_status place_document(assay_batches *b, int64_t first, const bounds *cu, const bounds *padded,
                                   int64_t i)
{
    const int64_t length = cu->at[i + 1] - cu->at[i], begin = padded->at[i], end = padded->at[i + 1];
    const int64_t microbatch = first / (b->b * b->s);
    ASSAY_CHECK(length >= 1 && end - begin >= length, ASSAY_INVALID_ARGUMENT,
                "%s: document %" PRId64 " of microbatch %" PRId64 " has %" PRId64
                " tokens in cu_seqlens and room for %" PRId64 " in %s",
                cu->path, i, microbatch, length, end - begin, padded->name);
    ASSAY_CHECK(begin / b->s == (end - 1) / b->s, ASSAY_INVALID_ARGUMENT,
                "%s: %s: document %" PRId64 " of microbatch %" PRId64 " is tokens %" PRId64 " to %" PRId64
                ", across the end of a row of %" PRId64,
                cu->path, padded->name, i, microbatch, begin, end - 1, b->s);
    for (int64_t t = begin; t < end; t++) {
        char at[96];
        b->position_ids[first + t] = t < begin + length ? t - begin : PADDING;
        ASSAY_CHECK(t < begin + length || b->labels[first + t] == ASSAY_IGNORE_INDEX, ASSAY_INVALID_ARGUMENT,
                    "%s: labels%s: expected -100 or a loss_mask of 0 at a token of padding, found %" PRId64,
                    cu->path, index_of(b, first + t, at), b->labels[first + t]);
    }
    return ASSAY_OK;
}

static assay_status place_documents(assay_batches *b, int64_t microbatch, const bounds *cu,
                                    const bounds *padded)
{
    const int64_t tokens = b->b * b->s;
    int64_t n = padded->n;
    ASSAY_CHECK(cu->n == padded->n, ASSAY_MISMATCH,
                "%s: cu_seqlens has %" PRId64 " numbers, cu_seqlens_padded %" PRId64, cu->path, cu->n + 1,
                padded->n + 1);
    ASSAY_TRY(check_bounds(padded, microbatch, tokens));
    ASSAY_TRY(check_bounds(cu, microbatch, -1));
    while (n > 0 && padded->at[n] == padded->at[n - 1] && cu->at[n] == cu->at[n - 1])
        n--;
    for (int64_t i = 0; i < n; i++)
        ASSAY_TRY(place_document(b, microbatch * tokens, cu, padded, i));
    return ASSAY_OK;
}

static assay_status take_cu_seqlens(assay_batches *b, const char *path)
{
    assay_status st = ASSAY_OK;
    const bool padding = assay_tensorfile_find(b->file, "cu_seqlens_padded") != NULL;
    for (int64_t m = 0; m < b->steps * b->microbatches && st == ASSAY_OK; m++) {
        bounds cu, padded = {0};
        st = read_bounds(b, path, "cu_seqlens", m, &cu);
        if (st == ASSAY_OK && padding)
            st = read_bounds(b, path, "cu_seqlens_padded", m, &padded);
        if (st == ASSAY_OK)
            st = place_documents(b, m, &cu, padding ? &padded : &cu);
        free(cu.at);
        free(padded.at);
    }
    return st;
}

/* What position_ids say beside cu_seqlens: the same; tokens of padding may go on counting, as Megatron-LM lets them. */
static assay_status compare_positions(const assay_batches *b, const char *path,
                                      const assay_tensor_info *stored)
{
    for (int64_t i = 0; i < stored->count; i++) {
        char at[96];
        const int64_t found = stored_position(stored, i), expected = b->position_ids[i];
        const bool counts_on = expected == PADDING && found == stored_position(stored, i - 1) + 1;
        ASSAY_CHECK(counts_on || found == (expected == PADDING ? 0 : expected), ASSAY_MISMATCH,
                    "%s: position_ids%s: expected %" PRId64 " as cu_seqlens has it, found %" PRId64, path,
                    index_of(b, i, at), expected == PADDING ? 0 : expected, found);
    }
    return ASSAY_OK;
}

/* --- a batch ------------------------------------------------------------------------------------------------ */

/* Hugging Face's labels are shifted by the model: the first token of a document must not be a target of the one before. */
static assay_status check_labels(const assay_batches *b, const char *path, int64_t tokens)
{
    for (int64_t i = 0; i < tokens && !b->shifted; i++) {
        char at[96];
        ASSAY_CHECK(i % b->s == 0 || b->position_ids[i] > 0 || b->labels[i] == ASSAY_IGNORE_INDEX,
                    ASSAY_INVALID_ARGUMENT,
                    "%s: labels%s: expected -100 at the first token of a document, found %" PRId64
                    ": it would be the target of the document before",
                    path, index_of(b, i, at), b->labels[i]);
    }
    return ASSAY_OK;
}

static bool is_packed(const assay_batches *b, int64_t tokens)
{
    for (int64_t i = 0; i < tokens; i++)
        if (b->position_ids[i] != i % b->s)
            return true;
    return false;
}

assay_status assay_documents_read(assay_batches *b, const char *path, const assay_tensor_info *ids)
{
    const assay_tensor_info *stored = NULL;
    const bool lengths = assay_tensorfile_find(b->file, "cu_seqlens") != NULL;
    ASSAY_CHECK(lengths || assay_tensorfile_find(b->file, "cu_seqlens_padded") == NULL, ASSAY_MISMATCH,
                "%s: cu_seqlens_padded without cu_seqlens", path);
    if (assay_tensorfile_find(b->file, "position_ids") != NULL)
        ASSAY_TRY(assay_tensorfile_get(b->file, "position_ids", ASSAY_I64, ids->shape, ids->ndim, &stored));
    if (stored == NULL && !lengths)
        return ASSAY_OK;
    b->position_ids = calloc((size_t)ids->count, sizeof *b->position_ids);
    ASSAY_CHECK(b->position_ids, ASSAY_OUT_OF_MEMORY, "%s: out of memory for %" PRId64 " positions", path,
                ids->count);
    if (lengths)
        ASSAY_TRY(take_cu_seqlens(b, path));
    if (stored != NULL)
        ASSAY_TRY(lengths ? compare_positions(b, path, stored) : take_positions(b, path, stored));
    for (int64_t i = 0; i < ids->count; i++)
        b->position_ids[i] = b->position_ids[i] == PADDING ? 0 : b->position_ids[i];
    ASSAY_TRY(check_labels(b, path, ids->count));
    if (!is_packed(b, ids->count)) {
        free(b->position_ids);
        b->position_ids = NULL;
    }
    return ASSAY_OK;
}

/* --- made-up documents -------------------------------------------------------------------------------------- */

void assay_documents_draw(uint64_t seed, int64_t row, int64_t s, int64_t multiple, int64_t *position_ids)
{
    const uint64_t stream = assay_name_hash("documents");
    int64_t at = 0;
    memset(position_ids, 0, (size_t)s * sizeof *position_ids);
    for (uint64_t n = 0; at < s; n++) {
        const uint64_t counter = (uint64_t)row << 24 | n << 1;
        const uint64_t kind = assay_philox_below(seed, stream, counter, 4);
        /* most documents are short, a few are longer than half a row: they reach over any piece of it */
        const int64_t longest = kind == 0 ? 1 : kind < 3 ? (s + 3) / 4 : (3 * s + 3) / 4;
        int64_t length = 1 + (int64_t)assay_philox_below(seed, stream, counter | 1, (uint64_t)longest);
        if (length > s - at)
            length = s - at;
        for (int64_t i = 0; i < length; i++)
            position_ids[at + i] = i;
        at += length + (multiple - length % multiple) % multiple;
    }
}
