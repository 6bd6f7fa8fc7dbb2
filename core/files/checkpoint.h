/* Checkpoints: save in layout A, load in layout B.
 *
 * DIR/manifest.json            format "assay-checkpoint", version, job, step, layout, precision, training
 * recipe, model config, for every file its size and SHA-256, and the SHA-256 of all this; written last: a folder without it
 * is not a checkpoint
 * DIR/rank-00000.safetensors   this rank's pieces; DIR/rank-00000.json  job, step, and which piece of which
 * global tensor each key is
 *
 * A tensor is named by family and canonical name ("main_param", "decoder.layers.0...").  Pieces carry their
 * segments, so a reader assembles any piece of any layout from them.  Replicas may be written once or several
 * times; copies that differ, gaps, and a manifest that does not verify are errors; so are files of another job
 * or step, and files that the manifest does not name.  Everything is written into DIR.tmp-JOB, a folder that
 * no other job has, and renamed: a reader never sees half a checkpoint; an existing DIR is refused.
 * docs/CHECKPOINT.md. */
#ifndef ASSAY_CORE_CHECKPOINT_H
#define ASSAY_CORE_CHECKPOINT_H

#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/model/shard.h"

ASSAY_BEGIN_DECLS

typedef struct assay_checkpoint_writer assay_checkpoint_writer;
/* A job id: random, of 53 bits, so that it travels in a double.  One rank draws it, all ranks use it. */
uint64_t assay_checkpoint_job(void);
/* Every rank calls with the same dir, job and step (optimizer steps done); files go to DIR.tmp-JOB, which rank 0 makes (it
 * must not exist) and the others find: they open after rank 0 has. */
assay_status assay_checkpoint_writer_open(assay_checkpoint_writer **out, const char *dir, uint64_t job,
                                          int64_t step, int rank, int world);
/* Data is copied.  Pieces of 0 elements are legal and skipped. */
assay_status assay_checkpoint_add(assay_checkpoint_writer *w, const char *family, const char *name,
                                  assay_dtype dtype, const assay_shard *shard, const void *data);
/* Writes this rank's files (fsynced).  Then all ranks must synchronize, then rank 0 publishes. */
assay_status assay_checkpoint_writer_finish(assay_checkpoint_writer *w);
/* Rank 0 only, after every rank finished: hashes the files, writes the manifest with `header` (layout,
 * precision, model, scalars; step is added), renames the folder unless something is there meanwhile: then the
 * staged folder stays and the error names it. */
assay_status assay_checkpoint_publish(assay_checkpoint_writer *w, json_t *header);
void assay_checkpoint_writer_destroy(assay_checkpoint_writer *w);

typedef struct assay_checkpoint assay_checkpoint;
/* Verifies the manifest (its own hash, the exact set of files, sizes, hashes), reads the index of every rank. */
assay_status assay_checkpoint_open(assay_checkpoint **out, const char *dir);
void assay_checkpoint_close(assay_checkpoint *c);
const json_t *assay_checkpoint_header(const assay_checkpoint *c);
/* Fills dst (piece `want`) from whatever pieces hold it.  ASSAY_NOT_FOUND: no such tensor; ASSAY_MISMATCH:
 * another global shape or dtype, replicas that differ; ASSAY_FORMAT: elements that no piece holds (the first
 * global index is named). */
assay_status assay_checkpoint_read(const assay_checkpoint *c, const char *family, const char *name,
                                   assay_dtype dtype, const assay_shard *want, void *dst);
/* Distinct (family, name) tensors, in order of family and name. */
int64_t assay_checkpoint_count(const assay_checkpoint *c);
void assay_checkpoint_at(const assay_checkpoint *c, int64_t index, const char **family, const char **name,
                         assay_dtype *dtype, assay_shard *whole);

ASSAY_END_DECLS

#endif
