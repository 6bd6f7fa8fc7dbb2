/* Shared by bpe*.c only. */
#ifndef ASSAY_CORE_BPE_INTERNAL_H
#define ASSAY_CORE_BPE_INTERNAL_H

#include "core/files/bpe.h"

typedef enum {
    ASSAY_SPLIT_NONE,
    ASSAY_SPLIT_GPT2,
    ASSAY_SPLIT_LLAMA3,
    ASSAY_SPLIT_QWEN2,
    ASSAY_SPLIT_O200K
} assay_bpe_split;

/* One token of the vocabulary, or an added one. */
typedef struct assay_bpe_token {
    int64_t id;
    char *bytes; /* what it stands for, NUL behind it */
    size_t length;
    bool mapped;  /* of the model: made of bytes, so that merges can reach it */
    bool special; /* an added token that decoding may leave out */
} assay_bpe_token;

typedef struct assay_bpe_added_token {
    int64_t id;
    const char *content; /* as a text has it */
    size_t length;
    bool normalized; /* looked for behind the normalizer, not before it */
    bool lstrip, rstrip;
    bool special;
} assay_bpe_added_token;

typedef struct assay_bpe_merge {
    uint64_t pair; /* left id << 32 | right id */
    int64_t rank;  /* -1: an empty place of the table */
    int64_t id;
} assay_bpe_merge;

enum { ASSAY_BPE_TEMPLATE = 16 };
struct assay_bpe {
    /* sorted by id */
    assay_bpe_token *tokens;
    int64_t n_tokens;
    /* places of tokens by their bytes, open addressing; -1: empty */
    int32_t *by_bytes;
    size_t n_by_bytes; /* a power of two */
    assay_bpe_merge *merges;
    size_t n_merges; /* places, a power of two */
    int64_t byte_id[256];
    bool ignore_merges;
    bool nfc;
    assay_bpe_split split;
    bool add_prefix_space, use_regex; /* of ByteLevel */
    assay_bpe_added_token *added;     /* by first byte, longest first */
    int64_t n_added;
    int64_t first_added[257]; /* of each first byte */
    int64_t before[ASSAY_BPE_TEMPLATE], behind[ASSAY_BPE_TEMPLATE];
    int n_before, n_behind;
    uint8_t key[16]; /* of the hashes: drawn, so that no file can choose what collides */
};

/* bpe_read.c: fills all but the tables. */
assay_status assay_bpe_read(assay_bpe *t, const char *path);

/* bpe_table.c */
assay_status assay_bpe_tables_make(assay_bpe *t, const char *path);
const assay_bpe_token *assay_bpe_find_id(const assay_bpe *t, int64_t id);
/* A token of the model by its bytes; NULL: none. */
const assay_bpe_token *assay_bpe_find_bytes(const assay_bpe *t, const char *bytes, size_t length);
/* ASSAY_FORMAT: the pair is there already. */
assay_status assay_bpe_merge_add(assay_bpe *t, int64_t left, int64_t right, int64_t rank, int64_t id);
const assay_bpe_merge *assay_bpe_merge_find(const assay_bpe *t, int64_t left, int64_t right);
assay_status assay_tokens_push(assay_tokens *t, int64_t id);

/* bpe_merge.c: appends the tokens of one word. */
assay_status assay_bpe_word(const assay_bpe *t, const char *word, size_t length, assay_tokens *out);

/* bpe_split.c */
/* The pattern of that name; ASSAY_UNSUPPORTED shows it. */
assay_status assay_bpe_split_of(const char *pattern, const char *path, assay_bpe_split *out);
/* Bytes of the word that begins at `at` < n of a text that is UTF-8. */
size_t assay_bpe_split_next(assay_bpe_split kind, const char *text, size_t n, size_t at);
/* White space as Unicode has it. */
bool assay_is_white_space(uint32_t point);
/* The code point at `at`, and its bytes; 0 at the end. */
size_t assay_point_at(const char *text, size_t n, size_t at, uint32_t *point);
/* Bytes of the longest beginning of the text that is UTF-8. */
size_t assay_utf8_valid(const char *text, size_t n);

#endif
