/* Case files: model, data, layouts, training options, precision, checks.  docs/ADDING.md shows how to add
 * one. */
#ifndef PARITY_CASES_H
#define PARITY_CASES_H

#include "core/files/dataset.h"
#include "core/run/options.h"
#include "parity/parity.h"
#include <stdio.h>

enum {
    PARITY_MAX_LAYOUTS = 64,
    PARITY_MAX_DATA_PATHS = 16,
    PARITY_MAX_VARIANTS = 12,
    PARITY_VARIANT_TEXT = 64
};

typedef struct parity_case {
    char name[64];
    char file[ASSAY_PATH]; /* where it was read from, for messages */
    bool is_folder;        /* from --model: there is no case file */
    bool full_matrix;      /* runs where its file or name is given, and with --matrix full; not by default */
    char model_dir[ASSAY_PATH];  /* Hugging Face folder, or "" when `model` is inline */
    json_t *model;               /* inline config, or NULL */
    char batch_file[ASSAY_PATH]; /* a batch file that is there already, or "" */
    int n_data_paths;
    char data_paths[PARITY_MAX_DATA_PATHS][ASSAY_PATH];
    int64_t steps, microbatches, micro_batch_size, seq_length;
    double mask_probability;
    int64_t masked_microbatch; /* of every step, without any target; -1: none */
    bool packing;              /* rows of several documents */
    int64_t pad_seq_to_mult;   /* each with padding behind it up to a multiple of this */
    bool shifted;              /* Megatron-LM's form: tokens, targets where they stand, loss_mask */
    int n_layouts;
    char layouts[PARITY_MAX_LAYOUTS][ASSAY_LAYOUT_TEXT];
    int n_precisions;
    assay_precision precisions[2];
    int n_variants; /* kernel variants: "fastest", "k0", "attention=k0" */
    char variants[PARITY_MAX_VARIANTS][PARITY_VARIANT_TEXT];
    assay_train_options options; /* training */
    bool checks[PARITY_CHECK_COUNT];
} parity_case;

/* Reads one case file.  Relative paths in it are relative to the file's folder.  Unknown members are errors.
 */
assay_status parity_case_load(const char *path, parity_case *out);
/* The same of an object that is no file; path: for messages. */
assay_status parity_case_read(const json_t *root, const char *path, parity_case *out);
/* A case that is drawn from a number (random_case.c): it can be read, its layouts cut it.  json_decref(). */
assay_status parity_case_random(uint64_t number, json_t **out);
/* case_members.c: every member of an inline model is one that configurations have.  ASSAY_FORMAT names the nearest. */
assay_status parity_case_members(const json_t *model, const char *what);
void parity_case_free(parity_case *c);
/* The case's model configuration: its inline one or its folder's. */
assay_status parity_case_config(const parity_case *c, assay_model_config *config);
/* Where the case's weights come from, once every option is known: an inline configuration without draw_weights takes the
 * case's seed; a folder is held to core/run/inputs.h.  ASSAY_INVALID_ARGUMENT names the case. */
assay_status parity_case_weights(parity_case *c);
/* A case of a Hugging Face folder (case_folder.c): both precisions, fastest and plain kernels, every layout of a fixed list
 * that model and data can be cut into; one that they cannot is named in `log`.  batch: training [steps,microbatches,b,s],
 * or [b,s], which is one step of one microbatch; "": tokens are drawn over the vocabulary. */
assay_status parity_case_from_folder(const char *model, const char *batch, FILE *log, parity_case *out);
/* The first c->steps steps of c->batch_file, as the batch file of the case. */
assay_status parity_case_copy_batches(const parity_case *c, int64_t vocab, const char *path);

/* Ids on both sides of every boundary between tensor-parallel pieces of the vocabulary, in the case's layouts and in tp 2 to
 * 4; the first and the last id.  ids: free(). */
assay_status parity_case_boundary_ids(const parity_case *c, int64_t vocab, int64_t **ids, int64_t *n);
/* Writes the batch file [steps,microbatches,b,s] ([b,s] where steps is 0), with documents packed in rows if the case says so: windows of the text, a quarter of the tokens drawn over the whole
 * vocabulary (all of them where data is NULL: a case without text), and every boundary id in every step as input and as label that counts.  ASSAY_INVALID_ARGUMENT: a step has
 * fewer labels than there are such ids. */
assay_status parity_case_write_batches(const parity_case *c, const assay_dataset *data, int64_t vocab,
                                       const char *path);

/* Folder of the cases that come with assay: ASSAY_CASES, beside the source tree of the build, or the
 * installed one. */
assay_status parity_cases_dir(char *out, size_t capacity);
/* Paths of *.json in a folder, sorted; free each and the array. */
assay_status parity_cases_list(const char *dir, char ***paths, int *n);

/* case_select.c: names of cases on a command line; none: all.  others: words that are no cases and legal, too; NULL: none. */
enum { PARITY_MAX_CASE_NAMES = 64 };
typedef struct parity_case_choice {
    const char *names[PARITY_MAX_CASE_NAMES];
    int n;
    const char *others[2];
} parity_case_choice;
bool parity_case_chosen(const parity_case_choice *choice, const char *name);
/* Reads n case files and keeps those that are chosen, at cases[*n_cases] and behind it (at most n), also when it fails.  ASSAY_NOT_FOUND: a
 * name that none has; ASSAY_INVALID_ARGUMENT: two of one name. */
assay_status parity_cases_select(char *const *paths, int n, const parity_case_choice *choice,
                                 parity_case *cases, int *n_cases);
/* The case of this name among those that come with assay. */
assay_status parity_case_named(const char *name, parity_case *out);

#endif
