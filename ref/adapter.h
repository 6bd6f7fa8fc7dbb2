/* What an adapter makes of a weight, in double (docs/CHECKPOINT.md). */
#ifndef REF_ADAPTER_H
#define REF_ADAPTER_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stdint.h>

/* alpha / r, with use_rslora alpha / sqrt(r). */
double ref_lora_scale(double alpha, int64_t r, bool use_rslora);
/* delta [out,in] = scale * B A; a [r,in], b [out,r]. */
void ref_lora_delta(double *delta, const double *a, const double *b, int64_t out, int64_t in, int64_t r,
                    double scale);
/* Of an embedding: delta [V,H] = scale * (B A)^T; a [r,V], b [H,r]. */
void ref_lora_delta_embedding(double *delta, const double *a, const double *b, int64_t vocab, int64_t hidden,
                              int64_t r, double scale);
/* w [out,in] = (w + delta) * m / |w + delta|, row by row; m [out].  *row: the first row without a length, -1: none. */
void ref_dora_merge(double *w, const double *delta, const double *m, int64_t out, int64_t in, int64_t *row);

#endif
