/* `assay ckpt` on folders of PaddleNLP's (parity/run/ckpt_paddle.c, ckpt_paddle_convert.c).  docs/PADDLE.md. */
#ifndef ASSAY_PARITY_CKPT_PADDLE_H
#define ASSAY_PARITY_CKPT_PADDLE_H

#include "core/files/checkpoint.h"
#include "core/files/paddle.h"

assay_status parity_paddle_inspect(const char *dir, bool tensors);
/* A line for everything that is wrong, and for what is lost although the folder is whole; *code 1 where something is wrong. */
assay_status parity_paddle_verify(const char *dir, int *code);
/* Opens; ASSAY_MISMATCH, with the first finding, where something is wrong. */
assay_status parity_paddle_open_whole(assay_paddle **out, const char *dir);
/* weights: NULL, a checkpoint with states; "model" or "masters", these alone. */
assay_status parity_paddle_import(const char *from, const char *to, const char *weights, int64_t max_shard_size);
/* A checkpoint as a folder of PaddleNLP's. */
assay_status parity_paddle_export(const assay_checkpoint *c, const char *to);

#endif
