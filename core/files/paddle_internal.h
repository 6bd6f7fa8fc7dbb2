/* Shared by the paddle_*.c files only: tensors of a folder of PaddleNLP's, and the names they have there. */
#ifndef ASSAY_CORE_PADDLE_INTERNAL_H
#define ASSAY_CORE_PADDLE_INTERNAL_H

#include "core/files/paddle.h"
#include "core/files/tensorfile.h"

ASSAY_BEGIN_DECLS

enum { ASSAY_PADDLE_PATH = 1100, ASSAY_PADDLE_MAX_PIECES = 1024, ASSAY_PADDLE_TEXT = 1024 };

typedef enum {
    ASSAY_PADDLE_FILES_MODEL,
    ASSAY_PADDLE_FILES_OPTIMIZER,
    ASSAY_PADDLE_FILES_MASTERS,
    ASSAY_PADDLE_FILES_COUNT
} assay_paddle_files;
/* "model", "optimizer", "master_weights" */
extern const char *const assay_paddle_words[ASSAY_PADDLE_FILES_COUNT];
/* Of optimizer states, behind the slash: "moment1_0".  NULL for weights and masters. */
extern const char *const assay_paddle_suffixes[ASSAY_PADDLE_ROLES];

/* A tensor that a model has in PaddleNLP: one part of a parameter, or (fused) the parameter itself. */
typedef struct assay_paddle_slot {
    int64_t param;
    int part; /* -1: the canonical parameter, fused */
    char name[ASSAY_NAME];
    char alias[ASSAY_NAME]; /* the head of a model whose head is tied; else empty */
    bool transposed;        /* [in, out] */
    int blocks;             /* [gate, up] fused: each half is cut over tp by itself */
    int ndim;
    int64_t shape[2]; /* as PaddleNLP has it */
} assay_paddle_slot;
typedef struct assay_paddle_slots {
    int64_t n;
    assay_paddle_slot *slots; /* by parameter, then part */
    struct assay_paddle_name {
        const char *name;
        int64_t slot;
    } * by_name; /* [n_names] names and aliases, sorted */
    int64_t n_names;
} assay_paddle_slots;

/* The model of PaddleNLP's config.json; class defaults are PaddleNLP's where they differ from transformers'. */
assay_status assay_paddle_config(const json_t *root, const char *what, assay_model_config *out);
/* PaddleNLP's config.json of a model.  ASSAY_UNSUPPORTED: its class there cannot say it. */
assay_status assay_paddle_config_to_json(const assay_model_config *c, assay_dtype weight, json_t **out);
/* fused_qkv, fused_ffn: how attention and dense MLPs are kept. */
assay_status assay_paddle_slots_make(assay_paddle_slots *s, const assay_model_spec *spec, bool fused_qkv,
                                     bool fused_ffn);
void assay_paddle_slots_free(assay_paddle_slots *s);
/* -1: none.  *alias: whether it is the tied head's name. */
int64_t assay_paddle_slot_find(const assay_paddle_slots *s, const char *name, bool *alias);

/* A tensor of a role and slot: one, or the slices of ranks that are joined along dim. */
typedef struct assay_paddle_tensor {
    int n;
    int dim;
    bool bad; /* said already */
    const assay_tensor_info **pieces;
} assay_paddle_tensor;

/* A file of tensors. */
typedef struct assay_paddle_file {
    assay_paddle_files kind;
    char name[256];
    int tp;                 /* of an unmerged one; -1 */
    assay_tensorfile *file; /* NULL: cannot be read, said already */
} assay_paddle_file;

struct assay_paddle {
    char dir[ASSAY_PADDLE_PATH];
    assay_paddle_finding sink;
    void *user;
    assay_model_spec *spec;
    assay_paddle_facts facts;
    assay_paddle_slots slots;
    assay_paddle_tensor *tensors; /* [roles, slots] */
    json_t *index[ASSAY_PADDLE_FILES_COUNT];
    char **listing; /* names in the folder, sorted */
    int64_t n_listing;
    assay_paddle_file *files;
    int64_t n_files;
    json_t *by_name[ASSAY_PADDLE_FILES_COUNT]; /* a name's number in `files` */
    bool bf16;                                 /* the configuration's dtype: what U16 means */
};

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void assay_paddle_say(const assay_paddle *p, bool wrong, const char *format, ...);
/* What is pending as an error becomes a finding. */
void assay_paddle_say_error(const assay_paddle *p);
assay_status assay_paddle_path(const assay_paddle *p, const char *name, char out[ASSAY_PADDLE_PATH + 300]);
/* A file by its name; NULL: none (or no name). */
assay_paddle_file *assay_paddle_file_named(const assay_paddle *p, assay_paddle_files kind, const char *name);
bool assay_paddle_listed(const assay_paddle *p, const char *name);

/* The three steps of opening: names in the folder and its indexes with the files they name; tensors to slots; what the trainer wrote. */
assay_status assay_paddle_find_files(assay_paddle *p);
assay_status assay_paddle_place(assay_paddle *p);
assay_status assay_paddle_read_trainer(assay_paddle *p);

ASSAY_END_DECLS

#endif
