/* Parameters and gradients that are whole only while they are used (ZeRO-2, ZeRO-3; FSDP's units).
 *
 * A unit is a layer, the embedding, or the output (final norm and output layer).  Around each pass through a unit its
 * weights are gathered and thrown away again (ZeRO-3); behind its backward the gradients of this microbatch are summed
 * over tp, reduce-scattered, added to the range that each rank keeps, and thrown away (ZeRO-2, ZeRO-3).  Nothing happens
 * in other layouts.  docs/LAYOUTS.md 5. */
#ifndef REF_PARALLEL_FSDP_H
#define REF_PARALLEL_FSDP_H

#include "ref/engine.h"

/* A layer's number, or one of these. */
enum { REF_UNIT_EMBEDDING = -1, REF_UNIT_OUTPUT = -2 };

/* On every rank of the pass: whole weights; in a backward whole gradients of zeros, too.  In pairs. */
assay_status ref_unit_acquire(ref_pass *p, int64_t unit);
assay_status ref_unit_release(ref_pass *p, int64_t unit);

#endif
