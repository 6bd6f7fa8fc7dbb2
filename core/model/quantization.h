/* Weights stored in fp8 with scales, as Hugging Face folders hold them (DeepSeek-V3 and those after it): F8_E4M3 elements and beside
 * `X.weight` a tensor `X.weight_scale_inv` with one scale for each block of weight_block_size rows and columns (the last ones
 * may be smaller), or one scale of the whole tensor, `X.weight_scale`.  The weight is element * scale, whatever the name says.
 * Words and places only: each engine multiplies by itself. */
#ifndef ASSAY_CORE_QUANTIZATION_H
#define ASSAY_CORE_QUANTIZATION_H

#include "core/base/json.h"
#include "core/files/tensorfile.h"

ASSAY_BEGIN_DECLS

typedef struct assay_quantization {
    bool fp8;
    bool static_activations; /* X.input_scale or X.activation_scale lie beside: no part of a weight */
    int64_t block[2];        /* of X.weight_scale_inv: rows and columns; 0: one scale of the whole tensor */
} assay_quantization;

/* quantization_config of a config.json; absent or null: none.  Another method (compressed-tensors, awq, ...) is refused by name. */
assay_status assay_quantization_read(const json_t *config, const char *what, assay_quantization *out);
/* Of folder/config.json; a folder without one has none. */
assay_status assay_quantization_of_folder(const char *folder, assay_quantization *out);

typedef struct assay_block_scales {
    const assay_tensor_info *scale; /* NULL: elements are the weight; F32, BF16 or F8_E8M0 */
    int64_t rows, columns;          /* of a block */
    int64_t width, per_row;         /* columns of the weight, scales in a row of the grid */
} assay_block_scales;

/* The scales of a tensor of the file, checked: an F8_E4M3 tensor has exactly one of both kinds and of the right shape, another has none. */
assay_status assay_block_scales_of(const assay_tensorfile *f, const assay_quantization *q,
                                   const assay_tensor_info *weight, assay_block_scales *out);
static inline int64_t assay_block_scale_at(const assay_block_scales *s, int64_t element)
{
    return element / s->width / s->rows * s->per_row + element % s->width / s->columns;
}
/* Whether a tensor is a scale of a tensor that the file holds, and not one of the model. */
bool assay_is_block_scale(const assay_tensorfile *f, const assay_quantization *q, const char *name);

ASSAY_END_DECLS

#endif
