/* Memory of OpenBLAS.
 *
 * Each call that multiplies takes one of the library's buffers, of 128 MiB of address space on x86-64, and maps it where none is free.
 * Where the system gives no more (ulimit -v), the library asks again, for ever, in silence: the program hangs. */
#ifndef REF_FAST_BLAS_MEMORY_H
#define REF_FAST_BLAS_MEMORY_H

#include "core/base/status.h"

/* Before the first product of this process, and of a child that is forked: one buffer for each of `threads` threads that call at the same
 * time is mapped, if that is possible, and stays the library's.  ASSAY_OUT_OF_MEMORY: it is not. */
assay_status ref_blas_reserve(int threads);

#endif
