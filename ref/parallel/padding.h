/* Rows of zeros beside those of tokens: every expert computes as many rows as its capacity, or a multiple of what products of
 * a quantized format need (docs/OPS.md 9.9). */
#ifndef REF_PARALLEL_PADDING_H
#define REF_PARALLEL_PADDING_H

#include "ref/parallel/expert.h"

bool ref_pads_rows(const ref_pass *p);
/* sort, unsort and rows_per_expert of rows that lie as the experts compute them, or as sort says when they arrive from several
 * ranks -> the same with the missing rows behind those of each expert, -1 in sort. */
assay_status ref_pad_rows(ref_pass *p, ref_dispatch *d);

#endif
