/* `bench`: how long a step and its operations take on this rank, beside what the device can do.  docs/BENCH.md. */
#ifndef GPU_BENCH_H
#define GPU_BENCH_H

#include "core/run/options.h"
#include "gpu/gpu.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_bench_options {
    int64_t warmup;       /* steps before the measured ones, at least 1 */
    int64_t steps;        /* measured without events, and as many with */
    bool instances;       /* a line for each instance of an operation */
    char out[ASSAY_PATH]; /* folder that takes rank-00000.json ... */
} gpu_bench_options;

/* Trains warmup + 2 * steps steps (the batch file's steps again and again) and writes what was measured to
 * OUT/rank-RRRRR.json.  ASSAY_INVALID_ARGUMENT: no steps, no folder. */
assay_status gpu_bench_verb(const assay_train_options *options, const gpu_bench_options *bench);

/* What the device does, measured here and now: one large product of `dtype` through linear_fwd, and one copy on the device. */
typedef struct gpu_bench_peak {
    assay_dtype dtype;
    int64_t size;            /* the product is [size,size] x [size,size] */
    int64_t copy_bytes;      /* of the copy's source */
    double flops_per_s;      /* 2 size^3 over the median */
    double copy_bytes_per_s; /* read and written, over the median */
} gpu_bench_peak;
/* size and copy_bytes 0: as large as the tier asks for.  Waits for the stream. */
assay_status gpu_bench_measure_peak(gpu_ctx *ctx, assay_dtype dtype, int64_t size, int64_t copy_bytes,
                                    gpu_bench_peak *out);
/* Sorts; the middle of n > 0 values, of two the mean. */
double gpu_bench_median(double *values, int64_t n);

ASSAY_END_DECLS

#endif
