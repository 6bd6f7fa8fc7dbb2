/* Shared by the checkpoint*.c files only: names, and the plan of the tensors in their files. */
#ifndef ASSAY_CORE_CHECKPOINT_INTERNAL_H
#define ASSAY_CORE_CHECKPOINT_INTERNAL_H

#include "core/base/json_text.h"
#include "core/files/checkpoint.h"
#include "core/files/tensorfile.h"
#include "core/model/optimizer.h"

ASSAY_BEGIN_DECLS

#define ASSAY_CHECKPOINT_FORMAT "assay-checkpoint"
enum { ASSAY_CHECKPOINT_VERSION = 4, ASSAY_CHECKPOINT_PATH = 1100, ASSAY_JOB_HEX = 17 };
/* Bytes of the tensors of one shard, as transformers cuts them. */
#define ASSAY_CHECKPOINT_SHARD ((int64_t)5000000000)

/* Kinds of files. */
typedef enum {
    ASSAY_STORED_MODEL,
    ASSAY_STORED_OPTIMIZER,
    ASSAY_STORED_MASTERS,
    ASSAY_STORED_COUNT
} assay_stored_kind;
/* "model", "optimizer", "master_weights" */
const char *assay_stored_word(assay_stored_kind kind);

/* Families of the plan: weights, masters, then the optimizer's states in their order. */
enum { ASSAY_FAMILY_WEIGHT, ASSAY_FAMILY_MAIN, ASSAY_FAMILY_STATE };

/* A tensor in its place. */
typedef struct assay_planned_tensor {
    assay_stored_kind kind;
    int family, part;
    int64_t param;
    char name[ASSAY_NAME + 32];
    assay_dtype dtype;
    int64_t bytes;
    int64_t shard;  /* of all shards */
    int64_t offset; /* in its file */
} assay_planned_tensor;
typedef struct assay_planned_shard {
    assay_stored_kind kind;
    char file[64];
    char *header; /* with its length in front */
    int64_t header_bytes, bytes;
} assay_planned_shard;
typedef struct assay_checkpoint_plan {
    assay_checkpoint_content content;
    int64_t n_tensors, n_shards;
    assay_planned_tensor *tensors; /* by kind, family, parameter, part */
    assay_planned_shard *shards;
    int64_t *first; /* [families, parameters]: the tensor of the first part, or -1 */
} assay_checkpoint_plan;

/* `content` of state.json: all but the model. */
typedef struct assay_state_words {
    char text[ASSAY_MAX_OPTIMIZER_STATES][32];
    const char *list[ASSAY_MAX_OPTIMIZER_STATES];
} assay_state_words;
json_t *assay_checkpoint_content_to_json(const assay_checkpoint_content *c);
/* Weights without masters and states: marks them in the model. */
assay_status assay_checkpoint_frozen_from_json(const json_t *content, const char *path,
                                               assay_model_spec *spec);
/* `words` must live as long as *out. */
assay_status assay_checkpoint_content_from_json(const json_t *content, const char *path,
                                                const assay_model_spec *spec, assay_state_words *words,
                                                assay_checkpoint_content *out);

assay_status assay_checkpoint_plan_make(assay_checkpoint_plan *p, const assay_checkpoint_content *content);
void assay_checkpoint_plan_free(assay_checkpoint_plan *p);
int assay_checkpoint_families(const assay_checkpoint_content *c);
/* Number of the family, -1: none of that name.  A buffer's is "expert_bias". */
int assay_checkpoint_family_of(const assay_checkpoint_content *c, const char *word);
/* The word of a family for this parameter, NULL where the parameter is not in it. */
const char *assay_checkpoint_family_word(const assay_checkpoint_content *c, int family,
                                         const assay_param_spec *param);
assay_dtype assay_checkpoint_dtype_of(const assay_checkpoint_content *c, int family,
                                      const assay_param_spec *param);
/* The family whose tensors hold it: masters of the weights' type are the weights. */
int assay_checkpoint_stored_family(const assay_checkpoint_content *c, int family);
/* Tensor of the first part; -1: the parameter is not in the family. */
int64_t assay_checkpoint_plan_find(const assay_checkpoint_plan *p, int family, int64_t param);
int64_t assay_checkpoint_find_param(const assay_checkpoint_content *c, const char *name);

/* "DIR/NAME" */
void assay_checkpoint_file(char *out, const char *dir, const char *name);
/* "DIR/rank-00003.json", which the folder has only while it is staged. */
void assay_checkpoint_rank_file(char *out, const char *dir, const char *word, int rank);
/* SHA-256 of the manifest without its member "sha256", in a form that does not depend on order or white space. */
assay_status assay_checkpoint_manifest_hash(const json_t *manifest, char out[ASSAY_SHA256_HEX]);
/* Reads and verifies DIR/manifest.json and, by it, every file of the folder; hashed are what assay_checkpoint_open_share says. */
assay_status assay_checkpoint_verify(const char *dir, int rank, int world, json_t **manifest);

typedef struct assay_open_shard {
    bool open;
    int fd;
} assay_open_shard;
struct assay_checkpoint_writer {
    char dir[ASSAY_CHECKPOINT_PATH];
    char tmp[ASSAY_CHECKPOINT_PATH];
    char job[ASSAY_JOB_HEX];
    int64_t step;
    int rank, world;
    assay_checkpoint_plan plan;
    assay_open_shard *files; /* [shards] */
    json_t *pieces;          /* of an asynchronous save */
    assay_json_text said;    /* else: the array of pieces that this rank has added */
    bool finished, sealed;
    int memory; /* file in memory that takes the pieces of an asynchronous save; -1: the shards do */
    int64_t memory_bytes; /* in it */
    bool attached;        /* in a writer process, to a folder that another process staged */
};
struct assay_checkpoint {
    char dir[ASSAY_CHECKPOINT_PATH];
    json_t *manifest, *state;
    assay_model_spec *spec;
    assay_state_words words;
    assay_checkpoint_plan plan;
    assay_checkpoint_ignore ignore;              /* borrowed texts */
    json_t *ignored;                             /* what was: texts */
    assay_tensorfile *files[ASSAY_STORED_COUNT]; /* NULL: none of the kind */
    const assay_tensor_info **infos;             /* [tensors of the plan] */
    int64_t n_items, *items;                     /* family * parameters + parameter, what callers may read */
};
/* What is wrong with a key, and whether it is to be ignored, which is noted then. */
typedef enum { ASSAY_KEY_MISSING, ASSAY_KEY_UNEXPECTED, ASSAY_KEY_MISMATCHED } assay_key_fault;
bool assay_checkpoint_ignores(assay_checkpoint *c, assay_key_fault fault, const char *key);

/* A writer of a folder that rank 0 staged under this job. */
assay_status assay_checkpoint_writer_attach(assay_checkpoint_writer **out, const char *dir, const char *job,
                                            int64_t step, int rank, int world,
                                            const assay_checkpoint_content *content);

/* What the ranks tell each other while it is staged (checkpoint_ranks.c). */
#define ASSAY_RANK_PIECES "pieces"
#define ASSAY_RANK_HASHES "hashes"
/* Of a piece, while it is staged: tells apart what nobody made to collide.  What is published has SHA-256. */
void assay_checkpoint_piece_hash(const void *data, int64_t bytes, char out[ASSAY_HASH_HEX]);
/* Complete when its name is there.  Ends the text. */
assay_status assay_checkpoint_rank_save(const assay_checkpoint_writer *w, const char *word,
                                        assay_json_text *said);
/* Its text, which is freed by the caller, or what it says as JSON.  ASSAY_NOT_FOUND: the rank has not said it. */
assay_status assay_checkpoint_rank_read(const assay_checkpoint_writer *w, const char *word, int rank,
                                        char **text, uint64_t *bytes);
assay_status assay_checkpoint_rank_load(const assay_checkpoint_writer *w, const char *word, int rank,
                                        json_t **said);
/* "DIR/writer-00003.lock": locked as long as the writer process of that rank lives. */
void assay_checkpoint_lock_file(char *out, const char *dir, int rank);

/* --- asynchronous saves: what a writer process is given (checkpoint_async.c, checkpoint_async_writer.c) --------- */
enum { ASSAY_WRITER_DATA = 3, ASSAY_WRITER_ORDER, ASSAY_WRITER_LOCK, ASSAY_WRITER_TALK, ASSAY_WRITER_REST };
#define ASSAY_WRITER_VERB "checkpoint-writer"
/* Copies a piece into memory. */
assay_status assay_checkpoint_keep(assay_checkpoint_writer *w, const char *family, const char *name,
                                   assay_dtype dtype, const assay_shard *shard, const void *data,
                                   int64_t bytes, bool writes);

ASSAY_END_DECLS

#endif
