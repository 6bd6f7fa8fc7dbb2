/* Units whose parameters and gradients are whole only while they are used (ZeRO-2, ZeRO-3).
 *
 * A unit is a layer, the embedding, or the output.  Before a pass through it its parameters are gathered into a slot
 * (ZeRO-3); after the pass the slot is poisoned (in the simulator and in traced runs) and serves the next unit.  Before
 * its backward a slot of gradients is cleared (ZeRO-2, 3); behind the backward of every microbatch the gradients are
 * reduce-scattered and added to this rank's parts.  With --overlap-param-gather the next unit is
 * gathered, with --overlap-grad-reduce a unit is scattered, on the communication stream while the compute stream goes on.
 * A run that looks at results at once (trace, faults, substitutes, observer) waits where it looks.  docs/LAYOUTS.md 5. */
#ifndef GPU_PARALLEL_FSDP_H
#define GPU_PARALLEL_FSDP_H

#include "gpu/optimizer.h"

ASSAY_BEGIN_DECLS

/* gpu_param_hooks; the user is the optimizer. */
assay_status gpu_unit_before(void *optimizer, const gpu_param_unit *unit, const gpu_param_unit *next,
                             bool reads, bool backward);
assay_status gpu_unit_after(void *optimizer, const gpu_param_unit *unit);
assay_status gpu_unit_reduce(void *optimizer, const gpu_param_unit *unit);
/* After the last backward: the parts are there, summed over the copies (HSDP). */
assay_status gpu_finish_parts(gpu_optimizer *o, gpu_grad_buffer *b);

ASSAY_END_DECLS

#endif
