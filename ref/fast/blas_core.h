/* Which of its kernels OpenBLAS runs.
 *
 * A library with DYNAMIC_ARCH asks the CPU for its family and model; one that it does not know, because the CPU is newer
 * than the library, gets the oldest kernels (Prescott), in silence and several times slower.  What the CPU can do is no
 * secret, though: the type is chosen again from its features, and handed to the library in OPENBLAS_CORETYPE, which it
 * reads when it is loaded. */
#ifndef REF_FAST_BLAS_CORE_H
#define REF_FAST_BLAS_CORE_H

#include <stdbool.h>
#include <stddef.h>

/* What the CPU has and the system lets programs use. */
typedef struct ref_cpu {
    bool sse42, avx, avx2, fma;
    bool avx512; /* F, CD, BW, DQ and VL */
    bool avx512_bf16;
} ref_cpu;
ref_cpu ref_cpu_here(void);

/* The type in whose place `corename`, the library's own choice, is too old: the newest one that the CPU can do and that the
 * library has; NULL: the choice stands (as do types of other families, such as Zen, and names that are not known here). */
const char *ref_blas_core_choose(const ref_cpu *cpu, const char *corename,
                                 bool (*library_has)(const char *type));

/* Sets OPENBLAS_CORETYPE where the library's choice is too old, for the next start of this program (ref/fast/restart.h).  Never where the
 * user has set the variable.  false: there is nothing to tell. */
bool ref_blas_core_tell(void);
/* Takes back what it has set; nothing else. */
void ref_blas_core_untell(void);

/* "SkylakeX, chosen by assay (the library alone: Prescott)" */
void ref_blas_core_describe(char *out, size_t capacity);

#endif
