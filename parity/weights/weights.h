/* Tools on model folders (`assay ckpt`): merging models and adapters, another type, without keys.  Files and words are here, the
 * arithmetic is the reference's (ref/merge.h, ref/adapter.h, ref/weights_read.h).  docs/CHECKPOINT.md. */
#ifndef PARITY_WEIGHTS_H
#define PARITY_WEIGHTS_H

#include "core/base/json.h"
#include "core/model/quantization.h"
#include "core/model/spec.h"
#include "core/run/options.h"
#include "ref/merge.h"
#include "ref/weights_quantize.h"

/* --- what was asked for (options.c) -------------------------------------------------------------------------- */
enum { PARITY_MERGED = 16, PARITY_PATTERNS = 16, PARITY_MERGE_TEXT = 256, PARITY_BLOCK_MOST = 1 << 20 };
typedef enum {
    PARITY_MERGE_LINEAR,
    PARITY_MERGE_SLERP,
    PARITY_MERGE_TASK_ARITHMETIC,
    PARITY_MERGE_TIES,
    PARITY_MERGE_DARE_LINEAR,
    PARITY_MERGE_DARE_TIES,
    PARITY_MERGE_COUNT
} parity_merge_method;
typedef struct parity_patterns {
    char text[PARITY_PATTERNS][PARITY_MERGE_TEXT];
    int n;
} parity_patterns;
typedef struct parity_weights_options {
    parity_merge_method method;
    char base[ASSAY_PATH];
    double weight[PARITY_MERGED], density[PARITY_MERGED];
    int n_weights, n_densities; /* 0: 1.0 for each; 1: the same for each */
    double t, lambda;
    int normalize; /* -1: what the method does */
    ref_merge_election election;
    uint64_t seed;
    bool t_given, lambda_given, election_given, seed_given;
    parity_patterns include, exclude;
    assay_dtype
        dtype; /* ASSAY_DTYPE_COUNT: as it is stored, fp8 as BF16; F8_E4M3: the linear layers, else as it is stored */
    int64_t block[2];  /* fp8: rows and columns; 0: not given, 128 x 128 */
    char scale_fmt[8]; /* fp8: "float" or "ue8m0"; empty: not given, float */
    int64_t max_shard_size;
} parity_weights_options;
/* Rows for a program's options, ended by one of name NULL. */
#define PARITY_WEIGHTS_OPTIONS                                                                               \
    {"method", "NAME", "merge: linear (default), slerp, task_arithmetic, ties, dare_linear, dare_ties"},     \
        {"base", "DIR", "merge: the model that the others were trained from"},                               \
        {"weight", "W,...", "merge: of each model (default 1)"},                                             \
        {"density", "P,...", "merge: share of each difference that ties and dare keep (default 1)"},         \
        {"t", "T", "merge: slerp's way from the first model (0) to the second (1), default 0.5"},            \
        {"lambda", "X", "merge: factor of the merged difference (default 1)"},                               \
        {"normalize", "true|false", "merge: divide by the sum of weights (default: linear and ties do)"},    \
        {"majority_sign_method", "total|frequency", "merge: how ties elects a sign (default total)"},        \
        {"merge_seed", "N", "merge: seed of what dare drops (default 0)"},                                   \
        {"include", "PATTERN...", "merge, convert: only these tensors; may be repeated"},                    \
        {"exclude", "PATTERN...", "merge, convert: without these tensors; may be repeated"},                 \
        {"dtype", "TYPE",                                                                                    \
         "merge, lora-merge, lora-save, convert of a model folder: fp64, fp32, bf16 or fp16; fp8 (not of "   \
         "lora-save): the linear layers"},                                                                   \
        {"weight_block_size", "R,C", "dtype fp8: rows and columns that share a scale (default 128,128)"},    \
    {                                                                                                        \
        "scale_fmt", "FORMAT", "dtype fp8: float (default), or ue8m0: powers of two"                         \
    }
/* Options of fp8 are of --dtype fp8 alone. */
assay_status parity_weights_options_fp8(const parity_weights_options *o);
void parity_weights_options_init(parity_weights_options *o);
/* *known: whether it is one of them. */
assay_status parity_weights_option(parity_weights_options *o, const char *name, const char *text,
                                   bool *known);
const char *parity_merge_word(parity_merge_method method);

/* --- a model folder (model.c) -------------------------------------------------------------------------------- */
/* Hugging Face's or a checkpoint's (whose manifest is verified then).  What is read is a tensor at a time. */
typedef struct parity_model {
    char dir[ASSAY_PATH];
    json_t *config;
    assay_quantization quantization;
    assay_tensorfile *file;
    assay_model_spec *spec; /* NULL: of a class that is not read */
    int64_t n_linear;
    const char **
        linear; /* [n_linear], sorted: tensors of linear layers; NULL: not looked for, or a class that is not read */
} parity_model;
assay_status parity_model_open(parity_model *m, const char *dir);
/* Finds the linear layers in the parameter table of its configuration, for --dtype fp8. */
assay_status parity_model_linear(parity_model *m);
/* Safe on a zeroed object. */
void parity_model_close(parity_model *m);
/* Whether tensor t belongs to the model: scales of fp8 weights do not. */
bool parity_model_has(const parity_model *m, const assay_tensor_info *t);
/* Whether the tensors that include and exclude take are all there, in their shapes, as its configuration says; of a class that is not read
 * anything is.  Others may lie beside. */
assay_status parity_model_complete(const parity_model *m, const parity_weights_options *o);
/* Whether both are one model with other weights, as their configurations are understood here (family.c).  Members that differ and
 * change no number are warned about. */
assay_status parity_model_same(const parity_model *a, const parity_model *b);
/* Whether its configuration ties embedding and head, and the files hold a head all the same: the same one, or an error. */
assay_status parity_model_two_heads(const parity_model *m, bool *out);
/* *out is freed by the caller. */
assay_status parity_model_read(const parity_model *m, const assay_tensor_info *t, double **out);

/* Whether include and exclude take it.  seen [2][PARITY_PATTERNS] counts what each pattern met. */
bool parity_patterns_take(const parity_weights_options *o, const char *name,
                          int64_t seen[2][PARITY_PATTERNS]);
/* A pattern that met nothing is an error. */
assay_status parity_patterns_met(const parity_weights_options *o, int64_t seen[2][PARITY_PATTERNS],
                                 const char *dir);

/* --- a new one (folder.c) ------------------------------------------------------------------------------------ */
typedef struct parity_made {
    const char *name; /* borrowed */
    assay_dtype dtype;
    int ndim;
    int64_t shape[ASSAY_TENSOR_MAX_DIMS], count;
    int64_t block[2]; /* F8_E4M3: its scales are written beside it, `<name>_scale_inv` */
    assay_dtype scale;
} parity_made;
/* The tensor that is written for t of m, in the type that was asked for. */
parity_made parity_made_of(const parity_weights_options *o, const parity_model *m,
                           const assay_tensor_info *t);
/* *out [count]: values of one tensor, freed by the caller. */
typedef assay_status (*parity_maker)(void *user, const parity_made *t, double **out);
typedef struct parity_folder {
    const char *dir;      /* made; never one that exists */
    const char *like;     /* tokenizer files and their like are copied from here; NULL: none */
    const char *word;     /* "model" or "adapter_model" */
    const json_t *config; /* written as config_name */
    const char *config_name;
    const json_t *origin; /* written as assay_origin.json; NULL: nothing */
    const parity_made *tensors;
    int64_t n;
    int64_t max_shard_size; /* 0: 5 GB; adapters are one file */
    parity_maker make;
    void *user;
} parity_folder;
/* One tensor at a time in memory; files beside in `dir.tmp-N`, synced, then the folder is renamed.  On an error nothing is left. */
assay_status parity_folder_write(const parity_folder *f);
/* Tokenizer, templates, processors and code from one model folder into another; what else lies there and is no weights is named in a warning
 * (beside.c). */
assay_status parity_folder_copy(const char *from, const char *to);
/* Scales of an F8_E4M3 tensor, and their name. */
enum { PARITY_TENSOR_NAME = 1024 + 16 };
void parity_scale_name(const parity_made *t, char out[PARITY_TENSOR_NAME]);
ref_fp8_blocks parity_made_blocks(const parity_made *t);
/* A copy of a model's configuration, with the type of what is written; quantization_config says where there are scales (config.c). */
assay_status parity_weights_config(const parity_weights_options *o, const parity_model *m,
                                   const parity_made *tensors, int64_t n, json_t **out);

/* --- verbs --------------------------------------------------------------------------------------------------- */
/* paths [n]: models and, last, the folder to be made. */
assay_status parity_merge(const parity_weights_options *o, const char *const *paths, int n);
assay_status parity_weights_convert(const parity_weights_options *o, const char *from, const char *to);
assay_status parity_lora_merge(const parity_weights_options *o, const char *model, const char *adapter,
                               const char *to);
assay_status parity_lora_save(const parity_weights_options *o, const char *adapter, const char *to);

#endif
