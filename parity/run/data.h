/* Batch files from text: what `assay batch` and `assay train` share. */
#ifndef PARITY_DATA_H
#define PARITY_DATA_H

#include "core/run/options.h"

enum { PARITY_DATA_PATHS = 64 };
typedef struct parity_data_options {
    char data[PARITY_DATA_PATHS][ASSAY_PATH];
    int n_data;
    char tokenizer[ASSAY_PATH]; /* "bytes" or a tokenizer.json */
    char eod_token[128];        /* the added token that ends a document; "": the first known name */
    int64_t seq_length, micro_batch_size, global_batch_size;
    double mask_probability;
    bool pack;
    unsigned given; /* which of the options below it were set, as bits of their places */
} parity_data_options;

#define PARITY_DATA_OPTION_ROWS                                                                              \
    {"data", "PATH...",                                                                                      \
     "text file, folder of text files, or PREFIX of a Megatron-LM indexed dataset; may be repeated"},        \
        {"tokenizer", "bytes|FILE", "bytes (default), or a tokenizer.json of Hugging Face (docs/TRAIN.md)"}, \
        {"eod_token", "TOKEN",                                                                               \
         "added token that ends a document (default: <|endoftext|>, <|end_of_text|> or </s>)"},              \
        {"seq_length", "N", "tokens of a row"},                                                              \
        {"micro_batch_size", "N", "rows of a microbatch (default 1)"},                                       \
        {"global_batch_size", "N", "rows of a step, a multiple of --micro-batch-size (default that)"},       \
        {"mask_probability", "P", "share of labels that do not count (default 0)"},                          \
    {                                                                                                        \
        "pack", NULL, "documents of a row do not see each other"                                             \
    }

void parity_data_default(parity_data_options *d);
/* Takes one option; *mine: whether it is one of the rows above. */
assay_status parity_data_option(parity_data_options *d, const char *name, const char *text, bool *mine);
/* What it made, for whoever prints it. */
typedef struct parity_data_made {
    int64_t tokens, documents, vocab, steps, microbatches;
    char sha256[65];
} parity_data_made;
/* Writes `steps` steps to `path`, which must not exist.  vocab: of the model, 0 where there is none: every token is below it. */
assay_status parity_data_write(const parity_data_options *d, uint64_t seed, int64_t steps, int64_t vocab,
                               const char *path, parity_data_made *made);
void parity_data_say(const parity_data_options *d, const parity_data_made *made, FILE *out);

#endif
