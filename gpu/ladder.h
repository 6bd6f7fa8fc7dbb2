/* The ladder: the rungs (gpu/rung.h) of every operation together.  The call chooses and declares from these rows, the trace
 * records what was declared, `assay doctor --ops` prints them: there is no second list. */
#ifndef GPU_LADDER_H
#define GPU_LADDER_H

#include "gpu/rung.h"
#include <jansson.h>

ASSAY_BEGIN_DECLS

/* The rungs of an operation; NULL: the engine has none (collectives: gpu/call.c). */
const gpu_rung *gpu_ladder(const char *op);
/* NULL: the operation has no such variant. */
const gpu_rung *gpu_ladder_find(const char *op, int variant);
/* Highest variant of any operation of the family; -1: no such family. */
int gpu_ladder_highest(const char *family);

/* Bytes of the call arena for whichever rung will run. */
size_t gpu_ladder_workspace(const gpu_ctx *ctx, const gpu_operands *o);
/* Highest rung that device and calls allow, not above the variant that was asked for. */
int gpu_ladder_choose(const gpu_rung *rungs, const gpu_ctx *ctx, const gpu_operands *o, int64_t n);
/* The slot whose integers a higher rung would read in host memory, where they are not known; NULL: none is passed over for that.
 * Whether that rung would take the call is known when they are there. */
const char *gpu_ladder_misses(const gpu_ctx *ctx, const gpu_operands *o);
/* Enqueues n calls of one operation on that rung; *variant says which.  ASSAY_UNSUPPORTED: no such operation. */
assay_status gpu_ladder_run(gpu_ctx *ctx, const gpu_operands *o, int64_t n, cudaStream_t stream,
                            int *variant);
/* N of a kernel whose source calls it NAME_kN; -1: nothing of the kind.  In the simulator a call fails whose highest such kernel is not that
 * of the rung that was chosen (ASSAY_INTERNAL). */
int gpu_ladder_rung_of(const char *kernel);
/* What that rung declares for this call: the arithmetic of each output that is there. */
assay_status gpu_ladder_declare(const gpu_ctx *ctx, const gpu_operands *o, int variant, gpu_declared *out);

/* For which CPU the simulator's device code was compiled that runs here: "baseline" or "avx2". */
const char *gpu_ladder_target(void);

/* [{"op":..., "family":..., "sums":..., "variants":[{"name":"k0", "buys":..., "least_capability":..., ["most_capability":90,] ["act":"BF16",] "by_library":false, ["reads_host":"tokens_per_expert",] "outputs":[{"outputs":"dx",
 *   "arith":{...}, "how":"..."}]}]}] */
json_t *gpu_ladder_json(void);

ASSAY_END_DECLS

#endif
