/* Options of `assay ckpt`, and which of its verbs uses which. */
#ifndef ASSAY_PARITY_CKPT_OPTIONS_H
#define ASSAY_PARITY_CKPT_OPTIONS_H

#include "parity/weights/weights.h"

typedef struct ckpt_options {
    char paths[PARITY_MERGED + 2][ASSAY_PATH]; /* the verb and what it works on */
    int n_paths;
    bool tensors;
    char weights[16];                                    /* of convert; "": not given */
    bool paddle;                                         /* --form paddle */
    char missing[256], unexpected[256], mismatched[256]; /* keys that verify ignores */
    int64_t max_shard_size;
    parity_weights_options tools;
    uint64_t given; /* bits of the rows of the table of uses */
} ckpt_options;

/* What a verb works on decides which options it uses: a use is a verb, or a verb of one kind of folder. */
typedef enum {
    CKPT_INSPECT,
    CKPT_VERIFY,
    CKPT_VERIFY_PADDLE,
    CKPT_DIFF,
    CKPT_RESHARD,
    CKPT_CONVERT,        /* a checkpoint */
    CKPT_CONVERT_MODEL,  /* a model folder */
    CKPT_CONVERT_PADDLE, /* a folder of PaddleNLP's */
    CKPT_EXPORT_PADDLE,  /* a checkpoint, --form paddle */
    CKPT_MERGE,
    CKPT_LORA_MERGE,
    CKPT_LORA_SAVE,
    CKPT_USES
} ckpt_use;
/* For assay_options_parse; user is a ckpt_options. */
assay_status ckpt_option(void *user, const char *name, const char *text);
/* ASSAY_INVALID_ARGUMENT names an option that was given and that this use would not look at, and the uses that do. */
assay_status ckpt_options_check(const ckpt_options *o, ckpt_use use);

/* --- reshard, convert of a checkpoint (ckpt_copy.c): paths[1] as paths[2]; convert: weights alone. */
assay_status ckpt_copy(const ckpt_options *o, bool convert);

#endif
