/* Byte-level BPE: Hugging Face's tokenizer.json of the families of GPT-2, Llama 3, Qwen 2 and o200k.
 *
 * Read: model BPE over all 256 bytes (merges as "a b" or ["a", "b"], ignore_merges); pre-tokenizer ByteLevel, or Split by one
 * of the patterns of bpe_split.c and ByteLevel; normalizer NFC or none; post-processor ByteLevel, TemplateProcessing or both;
 * added tokens.  Everything else (Unigram, WordPiece, dropout, other patterns ...) is refused by name.  docs/TRAIN.md. */
#ifndef ASSAY_CORE_BPE_H
#define ASSAY_CORE_BPE_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

typedef struct assay_bpe assay_bpe;

/* A list of tokens that grows; zeroed to begin with. */
typedef struct assay_tokens {
    int64_t *ids;
    int64_t n, capacity;
} assay_tokens;
void assay_tokens_free(assay_tokens *t);

/* Everything is checked here: what is opened encodes every text. */
assay_status assay_bpe_open(assay_bpe **out, const char *path);
void assay_bpe_close(assay_bpe *t);
/* 1 + largest id. */
int64_t assay_bpe_vocab(const assay_bpe *t);
/* The id of an added token by its text; -1: there is none. */
int64_t assay_bpe_added(const assay_bpe *t, const char *content);
/* Appends the tokens of a text; with `special`, what the post-processor puts before and behind it, too.  ASSAY_FORMAT: no UTF-8,
 * with the place of the first wrong byte. */
assay_status assay_bpe_encode(const assay_bpe *t, const char *text, size_t bytes, bool special,
                              assay_tokens *out);
/* The bytes of tokens, which need not be whole characters.  skip_special: without special added tokens.  *text is
 * NUL-terminated, the caller frees it.  ASSAY_INVALID_ARGUMENT names the first token that is none. */
assay_status assay_bpe_decode(const assay_bpe *t, const int64_t *ids, int64_t n, bool skip_special,
                              char **text, size_t *bytes);

ASSAY_END_DECLS

#endif
