/* CUDA's syntax, which no host compiler parses, rewritten into C++ against the simulator's headers (assay_sim_cc.h).
 *
 *   k<T><<<grid, block>>>(a, b);       (::assay_sim::configure("k<T>", 7, grid, block) ? (void)0 : (void)k<T>(a, b));
 *   __global__ void k(float *x) {..}   void k(float *x) { ::assay_sim::kernel("k", +[](float *x) {..}, x); }
 *   __shared__ float a[4], b;          one array with guards for each name
 *   extern __shared__ float s[];       the dynamic shared memory, in functions and outside
 *   asm volatile("...")                a refusal by name when a thread comes there
 *
 * A kernel remains a function of its name and type, so that C++ itself converts arguments, deduces templates and takes
 * addresses: called after `configure` it launches, called by a thread of the device it runs.  Every token stays in its line.
 * The input is preprocessed text; what stands in headers that the compiler calls its own is left alone. */
#ifndef ASSAY_SIM_TRANSLATE_H
#define ASSAY_SIM_TRANSLATE_H

#include "tokens.h"

typedef struct translate_counts {
    int kernels, launches, shared, dynamic_shared, assembly;
} translate_counts;

/* false: `why` says what could not be translated and where. */
bool translate(text *out, const char *source, size_t bytes, const char *name, translate_counts *counts,
               complaint *why);

#endif
