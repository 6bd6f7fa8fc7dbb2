/* Tensor and sequence parallelism: the regions of Megatron-LM's tensor_parallel/mappings.py, by the same names; same names
 * as in ref/parallel/tensor.h.
 *
 * A piece is this tp rank's rows of the sequence, whole is all of them.  Every collective is an operation of its own on the
 * run's stream, recorded under instance `at` with its group; recv is made by the call when it is only described.  Uneven
 * pieces are legal.  With tp = 1 the column- and row-parallel functions hand their input on. */
#ifndef GPU_PARALLEL_TENSOR_H
#define GPU_PARALLEL_TENSOR_H

#include "gpu/call.h"
#include "gpu/describe.h"

ASSAY_BEGIN_DECLS

/* --- collectives -------------------------------------------------------------------------------------------- */
/* recv = sum of send over the group; both of one size, may be the same memory. */
assay_status gpu_all_reduce(gpu_model *m, const char *at, assay_group group, gpu_value *recv,
                            gpu_value *send);
/* Equal pieces of `group` one after the other in recv. */
assay_status gpu_all_gather(gpu_model *m, const char *at, assay_group group, gpu_value *recv,
                            gpu_value *send);

/* --- regions ------------------------------------------------------------------------------------------------ */
/* Pieces [s_r, B, ...] of the tp ranks -> whole [S, B, ...]; backward: this rank's piece of the sum over tp of dwhole. */
assay_status gpu_gather_from_sequence_parallel_region(gpu_model *m, const char *at, gpu_value *whole,
                                                      gpu_value *piece);
assay_status gpu_gather_from_sequence_parallel_region_bwd(gpu_model *m, const char *at, gpu_value *dpiece,
                                                          gpu_value *dwhole);
/* Whole partial sums [S, B, ...] -> this rank's piece of the sum; backward: gathered. */
assay_status gpu_reduce_scatter_to_sequence_parallel_region(gpu_model *m, const char *at, gpu_value *piece,
                                                            gpu_value *partial);
assay_status gpu_reduce_scatter_to_sequence_parallel_region_bwd(gpu_model *m, const char *at,
                                                                gpu_value *dpartial, gpu_value *dpiece);
/* This rank's piece of whole (every rank has the same), a view under `slot`: no communication; backward: gathered. */
assay_status gpu_scatter_to_sequence_parallel_region(gpu_model *m, const char *at, const char *slot,
                                                     gpu_value *piece, gpu_value *whole);
assay_status gpu_scatter_to_sequence_parallel_region_bwd(gpu_model *m, const char *at, gpu_value *dwhole,
                                                         gpu_value *dpiece);
/* whole = x; backward: dx = sum over tp of dwhole. */
void gpu_copy_to_tensor_parallel_region(gpu_value *whole, const gpu_value *x);
assay_status gpu_copy_to_tensor_parallel_region_bwd(gpu_model *m, const char *at, gpu_value *dx,
                                                    gpu_value *dwhole);
/* whole = sum over tp of partial; backward: dpartial = dwhole. */
assay_status gpu_reduce_from_tensor_parallel_region(gpu_model *m, const char *at, gpu_value *whole,
                                                    gpu_value *partial);
void gpu_reduce_from_tensor_parallel_region_bwd(gpu_value *dpartial, const gpu_value *dwhole);

/* --- parallel linears --------------------------------------------------------------------------------------- */
/* What a column-parallel linear reads: x itself, or with sp whole tokens gathered from the pieces. */
assay_status gpu_column_parallel_input(gpu_model *m, gpu_arena *arena, bool sp, const char *at,
                                       gpu_value *whole, gpu_value *x);
/* Its gradient, partial over tp, becomes whole (tp without sp; instance at_reduce) or a piece (sp; instance at_gather).
 * x: the value whose gradient comes out; NULL: one contribution of several, `<at_gather>.dx`. */
assay_status gpu_column_parallel_input_bwd(gpu_model *m, bool sp, const char *at_reduce,
                                           const char *at_gather, gpu_value *dx, gpu_value *dwhole,
                                           const gpu_value *x);
/* That dx as a description, tp > 1. */
gpu_value gpu_column_parallel_input_grad(gpu_model *m, bool sp, const char *at_gather, gpu_dim last,
                                         const gpu_value *x);
/* Output of a row-parallel linear: *y is `partial` itself (tp 1), its sum, or with sp a piece of the sum. */
assay_status gpu_row_parallel_output(gpu_model *m, gpu_arena *arena, bool sp, const char *at, gpu_value *y,
                                     gpu_value *partial);
/* Gradient of `partial`: dy itself, or with sp gathered from the pieces. */
assay_status gpu_row_parallel_output_bwd(gpu_model *m, bool sp, const char *at, gpu_value *dpartial,
                                         gpu_value *dy, const gpu_value *partial);
/* A row-parallel bias is added on one tp rank, so that the sum holds it once. */
gpu_value *gpu_row_parallel_bias(gpu_model *m, gpu_param *bias);

ASSAY_END_DECLS

#endif
