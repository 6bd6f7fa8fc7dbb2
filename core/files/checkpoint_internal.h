/* Shared by the checkpoint*.c files only: names, and the plan of the tensors in their files. */
#ifndef ASSAY_CORE_CHECKPOINT_INTERNAL_H
#define ASSAY_CORE_CHECKPOINT_INTERNAL_H

#include "core/files/checkpoint.h"

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
/* Reads and verifies DIR/manifest.json and, by it, every file of the folder. */
assay_status assay_checkpoint_verify(const char *dir, json_t **manifest);
json_t *assay_shard_to_json(const assay_shard *s);
/* Of a parameter's piece: extents are the table's. */
assay_status assay_shard_from_json(const json_t *segments, const assay_param_spec *p, const char *what,
                                   assay_shard *out);

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
    json_t *pieces;
    bool finished, sealed;
};
/* Publishing of what is sealed (checkpoint_publish.c) needs names of the files that only ranks read. */
#define ASSAY_RANK_PIECES "pieces"
#define ASSAY_RANK_HASHES "hashes"

ASSAY_END_DECLS

#endif
