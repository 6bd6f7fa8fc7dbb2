/* Case files: model, data, layouts, training options, precision, checks.  docs/ADDING.md shows how to add
 * one. */
#ifndef PARITY_CASES_H
#define PARITY_CASES_H

#include "core/run/options.h"
#include "parity/parity.h"

enum {
    PARITY_MAX_LAYOUTS = 64,
    PARITY_MAX_DATA_PATHS = 16,
    PARITY_MAX_VARIANTS = 12,
    PARITY_VARIANT_TEXT = 64
};

typedef struct parity_case {
    char name[64];
    char file[ASSAY_PATH];      /* where it was read from */
    char model_dir[ASSAY_PATH]; /* Hugging Face folder, or "" when `model` is inline */
    json_t *model;              /* inline config, or NULL */
    int n_data_paths;
    char data_paths[PARITY_MAX_DATA_PATHS][ASSAY_PATH];
    int64_t steps, microbatches, micro_batch_size, seq_length;
    double mask_probability;
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
void parity_case_free(parity_case *c);

/* Folder of the cases that come with assay: ASSAY_CASES, beside the source tree of the build, or the
 * installed one. */
assay_status parity_cases_dir(char *out, size_t capacity);
/* Paths of *.json in a folder, sorted; free each and the array. */
assay_status parity_cases_list(const char *dir, char ***paths, int *n);

#endif
