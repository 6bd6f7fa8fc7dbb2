/* Checkpoints: one format for both engines, whatever layout wrote them.
 *
 * DIR/manifest.json    format "assay-checkpoint", version, job, for every other file its size and SHA-256, the SHA-256 of the
 *                      bytes of every tensor, and the SHA-256 of all this; written last: a folder without it is not a checkpoint
 * DIR/state.json       everything that is no tensor: step, scheduler, loss scaler, random numbers, data read, options, layout
 *                      that saved, model
 * DIR/config.json      the model's, as transformers (or, for Megatron-LM's form, assay) reads it
 * DIR/model-00001-of-0000N.safetensors, model.safetensors.index.json            parameters as the products read them
 * DIR/master_weights-*, master_weights.safetensors.index.json     their masters, where these are of another type
 * DIR/optimizer-*, optimizer.safetensors.index.json               the optimizer's states, NAME/exp_avg and so on
 *
 * Tensors have the names, shapes and orientation of the model's folder (the parts of the parameter table), each is stored once,
 * and which file holds it where is a function of the model and the precision alone: every layout writes the same bytes.  Each
 * rank writes its pieces into their places in the shards, so nothing is gathered; then the ranks share out the tensors, and of
 * each one checks that no element is missing and that every rank's piece, replicas too, is what the file holds.
 *
 * Callers speak of canonical parameters and families: "weight" (model-*), "main_param", the optimizer's states, and for a buffer
 * "expert_bias", which model-* holds, too.  Everything is written into DIR.tmp-JOB, a folder that no other job has, and renamed:
 * a reader never sees half a checkpoint; an existing DIR is refused.  docs/CHECKPOINT.md. */
#ifndef ASSAY_CORE_CHECKPOINT_H
#define ASSAY_CORE_CHECKPOINT_H

#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/model/spec.h"

ASSAY_BEGIN_DECLS

/* What a checkpoint of a run holds; all ranks say the same. */
typedef struct assay_checkpoint_content {
    const assay_model_spec *spec; /* borrowed */
    assay_dtype weight;           /* of parameters in model-*, but buffers are of `state` */
    assay_dtype state;            /* of masters, optimizer states and buffers */
    int n_states;                 /* 0: no optimizer-* */
    const char *const *state_names;
    int64_t max_shard_size; /* bytes of the tensors of a shard, where more than one is in it; 0: 5 GB */
    bool weights_only;      /* no masters, either, where they are of another type */
    bool
        keep_differing; /* ranks whose pieces are not what the file holds are named in the manifest: no error */
} assay_checkpoint_content;

typedef struct assay_checkpoint_writer assay_checkpoint_writer;
/* A job id: random, of 53 bits, so that it travels in a double.  One rank draws it, all ranks use it. */
uint64_t assay_checkpoint_job(void);
/* Every rank calls with the same dir, job, step (optimizer steps done) and content; files go to DIR.tmp-JOB, which rank 0 makes
 * (it must not exist) with all shards in their full size, so that a full disk is known now; the others open after rank 0 has. */
assay_status assay_checkpoint_writer_open(assay_checkpoint_writer **out, const char *dir, uint64_t job,
                                          int64_t step, int rank, int world,
                                          const assay_checkpoint_content *content);
/* A piece that this rank holds.  writes: it goes to the file; otherwise another rank's does, and this one must be equal.  Ranks
 * may write the same elements, if they are equal.  Pieces of 0 elements are legal and skipped.  Where masters are of the
 * weights' type both are one tensor, and "weight" of a trained parameter is compared with "main_param". */
assay_status assay_checkpoint_add(assay_checkpoint_writer *w, const char *family, const char *name,
                                  assay_dtype dtype, const assay_shard *shard, const void *data, bool writes);
/* This rank's pieces are on disk.  Then all ranks must synchronize. */
assay_status assay_checkpoint_writer_finish(assay_checkpoint_writer *w);
/* Every rank, after all finished: reads its share of the tensors again and hashes them.  ASSAY_FORMAT: an element that no rank
 * wrote; ASSAY_MISMATCH: a rank's piece that is not what the file holds, unless the content keeps such.  Then all ranks must
 * synchronize. */
assay_status assay_checkpoint_seal(assay_checkpoint_writer *w);
/* Rank 0 only, after every rank sealed: writes state.json (`state`, to which format, version, job, step and content are added),
 * config.json, the indexes and the manifest, renames the folder unless something is there meanwhile: then the staged folder
 * stays and the error names it. */
assay_status assay_checkpoint_publish(assay_checkpoint_writer *w, json_t *state);
void assay_checkpoint_writer_destroy(assay_checkpoint_writer *w);
/* finish, seal and publish of a world of 1. */
assay_status assay_checkpoint_write_alone(assay_checkpoint_writer *w, json_t *state);

typedef struct assay_checkpoint assay_checkpoint;
/* Verifies the manifest (its own hash, the exact set of files, sizes, hashes) and that the tensors are those of the model and
 * the content that state.json names: none missing, none unexpected, dtypes and shapes. */
assay_status assay_checkpoint_open(assay_checkpoint **out, const char *dir);
void assay_checkpoint_close(assay_checkpoint *c);
/* Keys (names of stored tensors) that may be missing, unexpected, or of another shape or type: patterns of fnmatch, "lm_head.*,*.bias";
 * NULL or "": none.  A tensor's pattern covers its optimizer states.  The texts must live as long as the checkpoint. */
typedef struct assay_checkpoint_ignore {
    const char *missing, *unexpected, *mismatched;
} assay_checkpoint_ignore;
assay_status assay_checkpoint_open_ignoring(assay_checkpoint **out, const char *dir,
                                            const assay_checkpoint_ignore *ignore);
/* One of `world` readers of one checkpoint: this one hashes every world-th file, of which the manifest is the last, and nobody reads
 * before all have opened it.  Rank ASSAY_CHECKPOINT_HASHED: the caller knows the files by their hashes already; the manifest is hashed. */
enum { ASSAY_CHECKPOINT_HASHED = -1 };
assay_status assay_checkpoint_open_share(assay_checkpoint **out, const char *dir,
                                         const assay_checkpoint_ignore *ignore, int rank, int world);
/* Holds its keys to those of the model that loads it; behind this assay_checkpoint_has says what is there to read. */
assay_status assay_checkpoint_match(assay_checkpoint *c, const assay_model_spec *here);
bool assay_checkpoint_has(const assay_checkpoint *c, const char *family, const assay_param_spec *here);
/* Of a tensor that it has. */
assay_dtype assay_checkpoint_stored_dtype(const assay_checkpoint *c, const char *family, const char *name);
/* Array of texts: "missing lm_head.weight". */
const json_t *assay_checkpoint_ignored(const assay_checkpoint *c);
/* state.json */
const json_t *assay_checkpoint_header(const assay_checkpoint *c);
const assay_checkpoint_content *assay_checkpoint_content_of(const assay_checkpoint *c);
/* Fills dst (piece `want` of a canonical parameter).  ASSAY_NOT_FOUND: no such tensor; ASSAY_MISMATCH: another global shape or
 * dtype, replicas that differed when it was saved. */
assay_status assay_checkpoint_read(const assay_checkpoint *c, const char *family, const char *name,
                                   assay_dtype dtype, const assay_shard *want, void *dst);
/* Distinct (family, canonical parameter), in order of family and name. */
int64_t assay_checkpoint_count(const assay_checkpoint *c);
void assay_checkpoint_at(const assay_checkpoint *c, int64_t index, const char **family, const char **name,
                         assay_dtype *dtype, assay_shard *whole);

/* A tensor as it is stored: "model", "optimizer" or "master_weights", its name there, and what the manifest says of it. */
typedef struct assay_checkpoint_stored {
    const char *kind, *name, *file, *sha256;
    assay_dtype dtype;
    int ndim;
    int64_t shape[3];
    size_t bytes;
    const void *data;
} assay_checkpoint_stored;
int64_t assay_checkpoint_stored_count(const assay_checkpoint *c);
assay_status assay_checkpoint_stored_at(const assay_checkpoint *c, int64_t index,
                                        assay_checkpoint_stored *out);

/* Everything that is wrong with the folder, a text for each: the manifest, else each file, else each tensor.  ASSAY_NOT_FOUND,
 * ASSAY_UNSUPPORTED: it is no checkpoint. */
typedef void (*assay_checkpoint_finding)(void *user, const char *text);
assay_status assay_checkpoint_verify_each(const char *dir, const assay_checkpoint_ignore *ignore,
                                          assay_checkpoint_finding sink, void *user, int64_t *found);
/* The name of each file that is no part of the checkpoint and harms it not: a tokenizer, a README.md.  Nothing says what they should be. */
assay_status assay_checkpoint_extras(const char *dir, assay_checkpoint_finding sink, void *user);

ASSAY_END_DECLS

#endif
