/* Byte-level tokenizer: token = byte value, plus one end-of-document token 256; vocabulary 257. */
#ifndef ASSAY_CORE_TOKENIZER_H
#define ASSAY_CORE_TOKENIZER_H

#include "core/base/status.h"
#include <stddef.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

enum { ASSAY_BYTE_VOCAB = 257, ASSAY_BYTE_EOD = 256 };
/* tokens must hold `bytes` entries. */
void assay_tokenize_bytes(const void *text, size_t bytes, int64_t *tokens);
/* Inverse; ASSAY_INVALID_ARGUMENT names the first token outside 0..255 (EOD is skipped). */
assay_status assay_detokenize_bytes(const int64_t *tokens, int64_t n, char *out, size_t capacity,
                                    size_t *bytes);

ASSAY_END_DECLS

#endif
