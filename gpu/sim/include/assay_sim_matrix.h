/* Matrix units and asynchronous copies of a block, for the wrappers of a program (its inline PTX is not compiled here).  Not CUDA's:
 * the unit is the product of tiles by one warp, whose 32 lanes hold the first operand and the result in the registers of
 * mma.m16n8k16 (PTX ISA, section "Matrix Fragments for mma.m16n8k16 with floating point type"), the second in shared memory. */
#ifndef ASSAY_SIM_MATRIX_H
#define ASSAY_SIM_MATRIX_H

#include "assay_sim_device.h"

extern "C" {

/* The address of the 8 bf16 numbers that begin at column 8 c of row r of a tile. */
typedef const void *assay_sim_chunk(const void *tile, int row, int c);

/* One lane's registers of rows [16 mt][16 ks]; loaded only by assay_sim_tile_load.  In the simulator they know who loaded them. */
typedef struct assay_sim_fragment_owner {
    unsigned magic, block, thread;
} assay_sim_fragment_owner;

/* c [16 mt][8 nt] += A B^T with B [8 nt][k] in shared memory (transposed = 0), or c += A B with B [k][8 nt], which are columns
 * first_column, ... of a tile (transposed = 1).  A [16 mt][k] is of fragments, or the registers of a result, p, which are rounded. */
typedef struct assay_sim_tile_product {
    float *c;                              /* [mt][nt][4] */
    const unsigned *a;                     /* [mt][k / 16][4]; NULL: p */
    const assay_sim_fragment_owner *owner; /* of a */
    const float *p;                        /* [mt][k / 8][4] */
    const void *b;
    assay_sim_chunk *chunk;
    int mt, nt, k, transposed, first_column;
} assay_sim_tile_product;

/* A's registers from a tile in shared memory (ldmatrix): rows first, ... of it, or its columns (columns = 1). */
typedef struct assay_sim_tile_load {
    unsigned *a;
    assay_sim_fragment_owner *owner;
    const void *tile;
    assay_sim_chunk *chunk;
    int first, mt, k, columns;
} assay_sim_tile_load;

void assay_sim_matrix_load(const assay_sim_tile_load *load, int line);
void assay_sim_matrix_product(const assay_sim_tile_product *product, int line);

/* 16 bytes from global to shared memory, or zeros.  Until the thread waits for the group of the copy, the destination is poisoned
 * (or holds the bytes already, by the order's seed), and a tile that is read there is reported. */
void assay_sim_async_copy16(void *to, const void *from, int valid, int line);
void assay_sim_async_commit(int line);
/* All but the last n groups. */
void assay_sim_async_wait(int n, int line);

/* How a step of 16 products enters the sum: 0 exactly, rounded once; 1 the truncating model of the published measurements
 * (aligned to the largest exponent, two guard bits, everything truncated).  ASSAY_SIM_MATRIX_TRUNCATES. */
void assay_sim_set_matrix_truncates(int truncates);
}

#endif
