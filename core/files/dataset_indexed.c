/* Megatron-LM indexed datasets: PREFIX.idx and PREFIX.bin.
 *
 *   idx: "MMIDIDX\0\0", u64 version 1, u8 dtype code, u64 sequences, u64 documents,
 *        i32 lengths[sequences], i64 pointers[sequences] (bytes into bin), i64 documents[documents]
 *
 * All little endian.  Document bounds are sequence numbers, from 0 to the number of sequences, ascending. The
 * trailing modes of multimodal datasets are refused.  Every bound is checked against the sizes of the files
 * before anything is read through it.  Source: Megatron-LM, indexed_dataset.py. */
#include "core/files/dataset_internal.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC_BYTES = 9, HEADER_BYTES = MAGIC_BYTES + 8 + 1 + 8 + 8 };
static const char MAGIC[MAGIC_BYTES] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};

enum { CODE_U8 = 1, CODE_I8, CODE_I16, CODE_I32, CODE_I64, CODE_F64, CODE_F32, CODE_U16, CODE_END };
static const int CODE_BYTES[CODE_END] = {0, 1, 1, 2, 4, 8, 8, 4, 2};

static uint64_t read_le(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static int64_t read_token(int code, const uint8_t *at)
{
    const uint64_t bits = read_le(at, CODE_BYTES[code]);
    switch (code) {
    case CODE_I8:
        return (int8_t)bits;
    case CODE_I16:
        return (int16_t)bits;
    case CODE_I32:
        return (int32_t)bits;
    default:
        return (int64_t)bits;
    }
}

static assay_status read_header(assay_indexed *x, const char *path, uint64_t *n_documents)
{
    const uint8_t *base = x->idx.base;
    ASSAY_CHECK(x->idx.bytes >= HEADER_BYTES, ASSAY_FORMAT,
                "%s: %zu bytes, expected at least the header of %d", path, x->idx.bytes, HEADER_BYTES);
    ASSAY_CHECK(memcmp(base, MAGIC, MAGIC_BYTES) == 0, ASSAY_FORMAT,
                "%s: does not begin with MMIDIDX: not an index of a Megatron-LM dataset", path);
    const uint64_t version = read_le(base + 9, 8);
    ASSAY_CHECK(version == 1, ASSAY_UNSUPPORTED, "%s: expected version 1, found %" PRIu64, path, version);
    x->code = base[17];
    ASSAY_CHECK(x->code != CODE_F64 && x->code != CODE_F32, ASSAY_UNSUPPORTED,
                "%s: dtype code %d is %s: tokens must be integers", path, x->code,
                x->code == CODE_F64 ? "float64" : "float32");
    ASSAY_CHECK(x->code >= 1 && x->code < CODE_END, ASSAY_FORMAT, "%s: unknown dtype code %d, expected 1...8",
                path, x->code);
    const uint64_t n = read_le(base + 18, 8);
    *n_documents = read_le(base + 26, 8);
    /* Each count is first held against the file, so that the sum below cannot overflow. */
    const uint64_t left = x->idx.bytes - HEADER_BYTES;
    ASSAY_CHECK(n <= left / 12 && *n_documents <= left / 8 && left == n * 12 + *n_documents * 8, ASSAY_FORMAT,
                "%s: %" PRIu64 " sequences and %" PRIu64 " documents do not fit the %" PRIu64
                " bytes behind the header",
                path, n, *n_documents, left);
    x->n_sequences = (int64_t)n;
    x->pointers = base + HEADER_BYTES + 4 * n;
    return ASSAY_OK;
}

static assay_status check_documents(const assay_indexed *x, const char *path, uint64_t n)
{
    const uint8_t *at = x->pointers + 8 * x->n_sequences;
    int64_t last = 0;
    for (uint64_t i = 0; i < n; i++) {
        const int64_t bound = (int64_t)read_le(at + 8 * i, 8);
        ASSAY_CHECK(bound >= last && bound <= x->n_sequences && (i > 0 || bound == 0), ASSAY_FORMAT,
                    "%s: document %" PRIu64 " begins at sequence %" PRId64 ", expected %" PRId64
                    "...%" PRId64,
                    path, i, bound, last, i > 0 ? x->n_sequences : 0);
        last = bound;
    }
    ASSAY_CHECK(n == 0 || last == x->n_sequences, ASSAY_FORMAT,
                "%s: the last document ends at sequence %" PRId64 ", expected %" PRId64, path, last,
                x->n_sequences);
    return ASSAY_OK;
}

static assay_status check_sequences(assay_indexed *x, const char *path, const char *bin)
{
    const uint8_t *lengths = (const uint8_t *)x->idx.base + HEADER_BYTES;
    const int64_t size = CODE_BYTES[x->code], bin_bytes = (int64_t)x->bin.bytes;
    x->starts = calloc((size_t)x->n_sequences + 1, sizeof *x->starts);
    ASSAY_CHECK(x->starts, ASSAY_OUT_OF_MEMORY, "%s: out of memory for %" PRId64 " sequences", path,
                x->n_sequences);
    for (int64_t i = 0; i < x->n_sequences; i++) {
        const int64_t length = (int32_t)read_le(lengths + 4 * i, 4);
        const int64_t pointer = (int64_t)read_le(x->pointers + 8 * i, 8);
        ASSAY_CHECK(length >= 0, ASSAY_FORMAT, "%s: sequence %" PRId64 " has length %" PRId64, path, i,
                    length);
        ASSAY_CHECK(pointer >= 0 && pointer <= bin_bytes && length <= (bin_bytes - pointer) / size,
                    ASSAY_FORMAT,
                    "%s: sequence %" PRId64 " is %" PRId64 " tokens at byte %" PRId64
                    " of %s, which has %" PRId64 " bytes",
                    path, i, length, pointer, bin, bin_bytes);
        /* At most 2^31 per sequence and 12 bytes of index for each: no overflow. */
        x->starts[i + 1] = x->starts[i] + length;
    }
    return ASSAY_OK;
}

static assay_status check_tokens(const assay_indexed *x, const char *bin, int64_t *largest)
{
    *largest = -1;
    for (int64_t i = 0; i < x->n_sequences; i++) {
        const uint8_t *at = (const uint8_t *)x->bin.base + (int64_t)read_le(x->pointers + 8 * i, 8);
        const int64_t n = x->starts[i + 1] - x->starts[i];
        for (int64_t k = 0; k < n; k++) {
            const int64_t token = read_token(x->code, at + k * CODE_BYTES[x->code]);
            ASSAY_CHECK(token >= 0 && token < INT32_MAX, ASSAY_FORMAT,
                        "%s: token %" PRId64 " of sequence %" PRId64 " is %" PRId64 ", expected 0...%d", bin,
                        k, i, token, INT32_MAX - 1);
            if (token > *largest)
                *largest = token;
        }
    }
    return ASSAY_OK;
}

static assay_status open_files(assay_indexed *x, const char *idx, const char *bin, int64_t *n_tokens,
                               int64_t *largest)
{
    uint64_t n_documents = 0;
    ASSAY_TRY(assay_mapped_open(&x->idx, idx));
    ASSAY_TRY(assay_mapped_open(&x->bin, bin));
    ASSAY_TRY(read_header(x, idx, &n_documents));
    ASSAY_TRY(check_documents(x, idx, n_documents));
    ASSAY_TRY(check_sequences(x, idx, bin));
    *n_tokens = x->starts[x->n_sequences];
    ASSAY_CHECK(*n_tokens > 0, ASSAY_INVALID_ARGUMENT, "%s: the token file is empty", bin);
    return check_tokens(x, bin, largest);
}

assay_status assay_indexed_open(assay_indexed *out, const char *prefix, int64_t *n_tokens, int64_t *largest)
{
    char idx[PATH_MAX], bin[PATH_MAX];
    const int n = snprintf(idx, sizeof idx, "%s.idx", prefix);
    snprintf(bin, sizeof bin, "%s.bin", prefix);
    *out = (assay_indexed){0};
    ASSAY_CHECK(n > 0 && (size_t)n < sizeof idx, ASSAY_LIMIT, "%.200s: the path is too long", prefix);
    const assay_status st = open_files(out, idx, bin, n_tokens, largest);
    if (st != ASSAY_OK)
        assay_indexed_close(out);
    return st;
}

void assay_indexed_close(assay_indexed *x)
{
    assay_mapped_close(&x->idx);
    assay_mapped_close(&x->bin);
    free(x->starts);
    *x = (assay_indexed){0};
}

/* The sequence that holds stream position `at`: the last one that starts at or before it and is not empty. */
static int64_t sequence_of(const assay_indexed *x, int64_t at)
{
    int64_t low = 0, high = x->n_sequences;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (x->starts[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void assay_indexed_read(const assay_indexed *x, int64_t start, int64_t n, int64_t *tokens)
{
    const int64_t size = CODE_BYTES[x->code];
    int64_t sequence = sequence_of(x, start);
    for (int64_t i = 0; i < n; i++) {
        while (start + i >= x->starts[sequence + 1])
            sequence++;
        const int64_t pointer = (int64_t)read_le(x->pointers + 8 * sequence, 8);
        const int64_t offset = pointer + (start + i - x->starts[sequence]) * size;
        tokens[i] = read_token(x->code, (const uint8_t *)x->bin.base + offset);
    }
}
