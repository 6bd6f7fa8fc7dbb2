/* Parts of a parameter straight from a mapped safetensors file: what a rank reads, and allocates, is what it keeps. */
#ifndef GPU_WEIGHTS_READ_H
#define GPU_WEIGHTS_READ_H

#include "core/files/tensorfile.h"
#include "core/model/quantization.h"
#include "core/run/inputs.h"
#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* A parameter of the table and the tensors of an open file that it is made of. */
typedef struct gpu_stored_param {
    const assay_param_spec *spec;
    struct gpu_stored_run *runs; /* in the order of the canonical tensor */
    int64_t n_runs;
    const assay_tensor_info **tensors; /* of each part */
    assay_block_scales *scales;        /* of each part */
    assay_not_finite *not_finite;      /* of each part, in what was read */
} gpu_stored_param;

/* ASSAY_NOT_FOUND, ASSAY_MISMATCH: a tensor is missing or of another shape. */
assay_status gpu_stored_param_open(gpu_stored_param *s, const assay_tensorfile *file,
                                   const assay_quantization *q, const assay_param_spec *spec);
void gpu_stored_param_close(gpu_stored_param *s);
/* out [n] = the local elements [first, first + n) of a piece; touches no other bytes of the file. */
assay_status gpu_stored_param_read(gpu_stored_param *s, const assay_shard *piece, int64_t first, int64_t n,
                                   float *out);
/* Whether something that was read is not finite; says so where `speaks`. */
bool gpu_stored_param_warn(const gpu_stored_param *s, const char *folder, bool speaks);

ASSAY_END_DECLS

#endif
