/* Byte-level tokenizer: a token is a byte value; ASSAY_BYTE_EOD stands between documents and has no byte. */
#include "core/files/tokenizer.h"

void assay_tokenize_bytes(const void *text, size_t bytes, int64_t *tokens)
{
    const uint8_t *in = text;
    for (size_t i = 0; i < bytes; i++)
        tokens[i] = in[i];
}

assay_status assay_detokenize_bytes(const int64_t *tokens, int64_t n, char *out, size_t capacity,
                                    size_t *bytes)
{
    size_t used = 0;
    *bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] == ASSAY_BYTE_EOD)
            continue;
        ASSAY_CHECK(tokens[i] >= 0 && tokens[i] <= 255, ASSAY_INVALID_ARGUMENT,
                    "token %lld at position %lld is not a byte, expected 0...255 or %d", (long long)tokens[i],
                    (long long)i, ASSAY_BYTE_EOD);
        ASSAY_CHECK(used < capacity, ASSAY_LIMIT, "the text does not fit in %zu bytes", capacity);
        out[used++] = (char)(uint8_t)tokens[i];
    }
    *bytes = used;
    return ASSAY_OK;
}
