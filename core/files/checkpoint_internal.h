/* Names shared by the checkpoint writer and reader. */
#ifndef ASSAY_CORE_CHECKPOINT_INTERNAL_H
#define ASSAY_CORE_CHECKPOINT_INTERNAL_H

#include "core/files/checkpoint.h"

#define ASSAY_CHECKPOINT_FORMAT "assay-checkpoint"
enum { ASSAY_CHECKPOINT_VERSION = 3, ASSAY_CHECKPOINT_PATH = 1100, ASSAY_FAMILY = 32, ASSAY_JOB_HEX = 17 };

/* "DIR/rank-00003.json" */
void assay_checkpoint_rank_file(char *out, const char *dir, int rank, const char *extension);
/* SHA-256 of the manifest without its member "sha256", in a form that does not depend on order or white space. */
assay_status assay_checkpoint_manifest_hash(const json_t *manifest, char out[ASSAY_SHA256_HEX]);
json_t *assay_shard_to_json(const assay_shard *s);
assay_status assay_shard_from_json(const json_t *object, const char *what, assay_shard *out);

#endif
