/* Weights into F8_E4M3 with a scale for each block: what folders of DeepSeek-V3's form hold (ref/weights_read.h reads it again). */
#ifndef REF_WEIGHTS_QUANTIZE_H
#define REF_WEIGHTS_QUANTIZE_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct ref_fp8_blocks {
    int64_t height, width; /* of the weight */
    int64_t rows, columns; /* of a block; the last ones may be smaller */
    bool power_of_two;     /* scales are F8_E8M0, else F32 */
} ref_fp8_blocks;

/* Blocks from top to bottom and from left to right. */
static inline int64_t ref_fp8_grid_rows(const ref_fp8_blocks *b)
{
    return b->height / b->rows + (b->height % b->rows != 0);
}
static inline int64_t ref_fp8_grid_columns(const ref_fp8_blocks *b)
{
    return b->width / b->columns + (b->width % b->columns != 0);
}

/* The code of E4M3 next to x, of two the even one; beyond 448, which is the greatest, 448.  x is finite. */
uint8_t ref_e4m3_code(double x);
/* With a = the greatest magnitude of a block: scale = a / 448 rounded to F32, or the least power of two that is not below a / 448
 * (at least 2^-126, 1 where all elements are 0); code = E4M3(x / scale) of the quotient in double.
 * x [height,width]; codes [height,width]; scales [grid rows, grid columns] of float, or of bytes with power_of_two.
 * ASSAY_LIMIT: an element is not finite, or more than 448 times the greatest scale.  Source: OCP OFP8 and MX; DeepSeek-V3's weights. */
assay_status ref_fp8_quantize(const double *x, const ref_fp8_blocks *b, uint8_t *codes, void *scales);

#endif
