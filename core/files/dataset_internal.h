/* Shared by dataset.c, dataset_text.c and dataset_indexed.c only. */
#ifndef ASSAY_CORE_DATASET_INTERNAL_H
#define ASSAY_CORE_DATASET_INTERNAL_H

#include "core/base/mapped.h"
#include "core/files/dataset.h"

/* One Megatron-LM indexed dataset: sequences in index order, one after the other. */
typedef struct assay_indexed {
    assay_mapped idx, bin;
    int code; /* element type of .bin, as .idx says */
    int64_t n_sequences;
    int64_t *starts;         /* [n_sequences+1] position of each sequence in this token stream */
    const uint8_t *pointers; /* [n_sequences] I64 in idx: byte offsets into bin */
} assay_indexed;

struct assay_dataset {
    int64_t n_tokens;
    int64_t vocab;
    int64_t n_documents;
    /* text: everything in memory */
    assay_text_tokens how;
    int32_t *text;
    int64_t text_capacity;
    /* or indexed datasets, concatenated */
    int n_indexed;
    assay_indexed *indexed;
    int64_t *indexed_starts; /* [n_indexed+1] */
};

/* Appends one text file, or every text file below a folder, each document followed by an EOD token. */
assay_status assay_dataset_add_text(assay_dataset *d, const char *path);
assay_status assay_dataset_add_text_folder(assay_dataset *d, const char *folder);

/* Opens PREFIX.idx and PREFIX.bin, checks every bound and every token; *largest is the largest token. */
assay_status assay_indexed_open(assay_indexed *out, const char *prefix, int64_t *n_tokens, int64_t *largest);
void assay_indexed_close(assay_indexed *x);
/* Tokens [start, start+n) of the stream. */
void assay_indexed_read(const assay_indexed *x, int64_t start, int64_t n, int64_t *tokens);

#endif
