/* __pipeline_memcpy_async and its kin: copies of 4, 8 or 16 bytes to shared memory, which arrive when the calling thread waits for their
 * batch (assay_sim_late.h).  __pipeline_arrive_on is not modelled; it is not declared. */
#ifndef ASSAY_SIM_CUDA_PIPELINE_PRIMITIVES_H
#define ASSAY_SIM_CUDA_PIPELINE_PRIMITIVES_H

#include "assay_sim_late.h"

/* The last `zeros` of the bytes are 0 and not read. */
ASSAY_SIM_LATE_INLINE void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros = 0,
                                                   int line = ASSAY_SIM_HERE)
{
    if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes)
        assay_sim_misuse(
            "wrong pipeline",
            "__pipeline_memcpy_async of other than 4, 8 or 16 bytes, or of more zeros than bytes", line);
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes != 0)
        assay_sim_misuse("misaligned", "__pipeline_memcpy_async: a pointer is no multiple of the size", line);
    if (!assay_sim_is_shared(to))
        assay_sim_misuse("wrong pipeline", "__pipeline_memcpy_async to something else than shared memory",
                         line);
    assay_sim_late_copy(ASSAY_SIM_LATE_PRIMITIVES, assay_sim_late_stage(ASSAY_SIM_LATE_PRIMITIVES, 0), to,
                        from, bytes - zeros, zeros, line);
}
static inline void __pipeline_commit()
{
    assay_sim_late_stage(ASSAY_SIM_LATE_PRIMITIVES, 1);
}
/* All batches of this thread but the last n. */
static inline void __pipeline_wait_prior(size_t n, int line = ASSAY_SIM_HERE)
{
    const uint64_t open = assay_sim_late_stage(ASSAY_SIM_LATE_PRIMITIVES, 0);
    assay_sim_late_complete(ASSAY_SIM_LATE_PRIMITIVES, open > n ? open - n : 0, 0, line);
}

#endif
