/* What sm_90a adds, for the wrappers of a program (gpu/wgmma.cuh; its inline PTX is not compiled here): products of tiles by a warpgroup,
 * copies by tensor maps, mbarriers with transactions, named barriers.  Not CUDA's.  docs/SIMULATOR.md says what is reported. */
#ifndef ASSAY_SIM_WGMMA_H
#define ASSAY_SIM_WGMMA_H

#include "assay_sim_device.h"

extern "C" {

/* --- tensor maps ------------------------------------------------------------------------------------------------ */

enum { ASSAY_SIM_TENSOR_RANK = 5 };
typedef struct assay_sim_tensor_map {
    unsigned magic;
    int rank, element_bytes, swizzle; /* bytes of the swizzle's row: 0 or 128 */
    unsigned char *data;
    uint64_t size[ASSAY_SIM_TENSOR_RANK], stride[ASSAY_SIM_TENSOR_RANK]; /* stride[0]: of an element; bytes */
    uint32_t box[ASSAY_SIM_TENSOR_RANK];
} assay_sim_tensor_map;

/* As cuTensorMapEncodeTiled: strides in bytes, of dimensions 1, ...  cudaErrorInvalidValue, and a report, where that refuses; stricter:
 * all that the map names must be one allocation of the device. */
cudaError_t assay_sim_tensor_map_make(assay_sim_tensor_map *map, const void *data, int element_bytes,
                                      int rank, const uint64_t *sizes, const uint64_t *strides,
                                      const uint32_t *box, int swizzle);

/* --- mbarriers -------------------------------------------------------------------------------------------------- */

typedef struct assay_sim_mbarrier {
    uint64_t word;
} assay_sim_mbarrier;

void assay_sim_mbarrier_init(assay_sim_mbarrier *bar, int arrivals, int line);
void assay_sim_mbarrier_fence_init(int line);
void assay_sim_mbarrier_arrive(assay_sim_mbarrier *bar, int bytes, int line);
void assay_sim_mbarrier_wait(assay_sim_mbarrier *bar, int parity, int line);
/* p: NULL for all of the dynamic shared memory. */
void assay_sim_proxy_fence(const void *p, size_t bytes, int line);

/* --- copies: what arrives is poison until a wait for the barrier needs it, or, by the order's seed, is there at once - */

void assay_sim_tensor_load(void *to, const assay_sim_tensor_map *map, assay_sim_mbarrier *bar, const int *at,
                           int rank, int line);
void assay_sim_tensor_store(const assay_sim_tensor_map *map, const void *from, const int *at, int rank,
                            int line);
void assay_sim_tensor_store_commit(int line);
/* All but the last n groups of the thread; read: until they have read, what they write may come later. */
void assay_sim_tensor_store_wait(int n, int read, int line);

/* --- products of a warpgroup ------------------------------------------------------------------------------------ */

/* c [64][n] (+)= A B^T over 64 terms, n 64 or 128; tiles of rows of 128 bytes, swizzled. */
typedef struct assay_sim_wgmma {
    float *c; /* [n / 8][4], of this thread */
    const void *a, *b;
    int n, a_columns, b_columns, add;
    const unsigned *a_registers; /* [4][4], of this thread, in place of a tile: pairs of bf16; NULL: a */
} assay_sim_wgmma;

void assay_sim_wgmma_fence(int line);
void assay_sim_wgmma_product(const assay_sim_wgmma *product, int line);
void assay_sim_wgmma_commit(int line);
void assay_sim_wgmma_wait(int n, int line);

/* --- warps ------------------------------------------------------------------------------------------------------ */

void assay_sim_named_barrier(int id, int threads, int waits, int line);
void assay_sim_set_registers(int registers, int more, int line);
int assay_sim_elect(int line);
}

#endif
