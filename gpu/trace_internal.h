/* Shared by the files of operation calls. */
#ifndef GPU_TRACE_INTERNAL_H
#define GPU_TRACE_INTERNAL_H

#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

/* Dry mode: an operation would need this much of the call arena. */
void gpu_run_need(gpu_run *run, size_t bytes);
/* An accumulated target was written: its record now belongs to the present phase and microbatch. */
void gpu_value_touch(const gpu_run *run, gpu_value *v);

ASSAY_END_DECLS

#endif
