/* `assay ckpt` on folders of PaddleNLP's (parity/run/ckpt_paddle.c, ckpt_paddle_convert.c).  docs/PADDLE.md. */
#ifndef ASSAY_PARITY_CKPT_PADDLE_H
#define ASSAY_PARITY_CKPT_PADDLE_H

#include "core/files/checkpoint.h"
#include "core/files/paddle.h"

/* The bits of the BF16 weight whose master this is: rounded to nearest even. */
static inline uint16_t parity_paddle_rounded(uint32_t bits)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u) /* NaN stays one */
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
/* What the folder holds for a role of parameter i, and in which type (ASSAY_DTYPE_COUNT: nothing): masters of F32 weights are these, and the weights
 * of a folder that has masters in their place are those, rounded. */
assay_dtype parity_paddle_type(const assay_paddle *p, assay_paddle_role role, int64_t i);
/* Its values in that type, or in F32 for a weight of which the folder has that; the caller frees. */
assay_status parity_paddle_values(const assay_paddle *p, assay_paddle_role role, int64_t i, assay_dtype want,
                                  void **out);

assay_status parity_paddle_inspect(const char *dir, bool tensors);
/* A line for everything that is wrong, and for what is lost although the folder is whole; *code 1 where something is wrong. */
assay_status parity_paddle_verify(const char *dir, int *code);
/* Opens; ASSAY_MISMATCH, with the first finding, where something is wrong. */
assay_status parity_paddle_open_whole(assay_paddle **out, const char *dir);
/* weights: NULL, a checkpoint with states; "model" or "masters", these alone. */
assay_status parity_paddle_import(const char *from, const char *to, const char *weights,
                                  int64_t max_shard_size);
/* Two folders, one of them or both PaddleNLP's: lines about what differs, *code 1 where something does. */
assay_status parity_paddle_diff(const char *a, const char *b, int *code);
/* A checkpoint as a folder of PaddleNLP's. */
assay_status parity_paddle_export(const assay_checkpoint *c, const char *to);

#endif
