/* What mma.h (nvcuda::wmma) calls.  Not CUDA's. */
#ifndef ASSAY_SIM_WMMA_H
#define ASSAY_SIM_WMMA_H

#include "assay_sim_device.h"

extern "C" {

enum assay_sim_wmma_type {
    ASSAY_SIM_WMMA_F16,
    ASSAY_SIM_WMMA_BF16,
    ASSAY_SIM_WMMA_TF32,
    ASSAY_SIM_WMMA_F32,
    ASSAY_SIM_WMMA_F64,
    ASSAY_SIM_WMMA_S8,
    ASSAY_SIM_WMMA_U8,
    ASSAY_SIM_WMMA_S32
};

/* One lane's part of a matrix [rows][columns]: `count` elements at x. */
typedef struct assay_sim_wmma_part {
    void *x;
    int count, rows, columns;
    enum assay_sim_wmma_type type;
    int written; /* by a load, a fill or a product; else by the kernel itself, element by element, or not at all */
} assay_sim_wmma_part;

/* What a lane asks of the warp: to meet for a load or a store, which it does itself behind it. */
typedef struct assay_sim_wmma_access {
    assay_sim_wmma_part part;
    const void *memory;
    unsigned ldm;
    int column_major, store;
} assay_sim_wmma_access;

/* d [m][n] = a [m][k] b [k][n] + c [m][n] */
typedef struct assay_sim_wmma_product {
    assay_sim_wmma_part d, a, b, c;
    int saturate;
} assay_sim_wmma_product;

void assay_sim_wmma_meet(const assay_sim_wmma_access *access, int line);
void assay_sim_wmma_multiply(const assay_sim_wmma_product *product, int line);
}

/* Which element of its matrix, counted row by row, a lane's e-th one is.  CUDA leaves it open, and so a kernel must not know it: it is
 * another one than on any device, and another one for accumulators of half than for those of float.  Where a fragment has room for
 * several copies of an element, as those of half have on a device, other lanes hold them. */
static inline int assay_sim_wmma_index(int half_accumulator, int count, int elements, int lane, int e)
{
    const int at = half_accumulator ? lane * count + e : e * 32 + lane, copy = at / elements;
    return half_accumulator ? at : e * 32 % elements + (lane + 7 * copy) % 32;
}

#endif
