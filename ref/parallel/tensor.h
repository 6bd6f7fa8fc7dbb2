/* Tensor and sequence parallelism: the regions of Megatron-LM's tensor_parallel/mappings.py, by the same names.
 *
 * A shard is this tp rank's rows of the sequence (core/model/sequence.h); whole is all tokens of the region.  With
 * tp = 1 the column- and row-parallel functions hand their input on. */
#ifndef REF_PARALLEL_TENSOR_H
#define REF_PARALLEL_TENSOR_H

#include "ref/engine.h"

/* whole = all_gather(shard) over tp; backward: dshard = own rows of the sum over tp of dwhole */
assay_status ref_gather_from_sequence_parallel_region(ref_pass *p, ref_tensor *whole, const ref_tensor *shard,
                                                      const char *instance);
assay_status ref_gather_from_sequence_parallel_region_bwd(ref_pass *p, ref_tensor *dshard,
                                                          const ref_tensor *dwhole, const char *instance);
/* shard = own rows of the sum over tp of partial; backward: dpartial = all_gather(dshard) */
assay_status ref_reduce_scatter_to_sequence_parallel_region(ref_pass *p, ref_tensor *shard,
                                                            const ref_tensor *partial, const char *instance);
assay_status ref_reduce_scatter_to_sequence_parallel_region_bwd(ref_pass *p, ref_tensor *dpartial,
                                                                const ref_tensor *dshard,
                                                                const char *instance);
/* shard = own rows of whole (every rank has the same); backward: all_gather */
assay_status ref_scatter_to_sequence_parallel_region(ref_pass *p, ref_tensor *shard, const ref_tensor *whole,
                                                     const char *instance);
assay_status ref_scatter_to_sequence_parallel_region_bwd(ref_pass *p, ref_tensor *dwhole,
                                                         const ref_tensor *dshard, const char *instance);
/* whole = x; backward: dx = sum over tp of dwhole */
assay_status ref_copy_to_tensor_parallel_region(ref_pass *p, ref_tensor *whole, const ref_tensor *x);
assay_status ref_copy_to_tensor_parallel_region_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dwhole,
                                                    const char *instance);
/* whole = sum over tp of partial; backward: dpartial = dwhole */
assay_status ref_reduce_from_tensor_parallel_region(ref_pass *p, ref_tensor *whole, const ref_tensor *partial,
                                                    const char *instance);
assay_status ref_reduce_from_tensor_parallel_region_bwd(ref_pass *p, ref_tensor *dpartial,
                                                        const ref_tensor *dwhole);

/* Into a column-parallel linear: gather_from_sequence_parallel_region with sp, else
 * copy_to_tensor_parallel_region.  The backward is called "<instance>.gather.grad" or "<instance>.reduce_grad". */
assay_status ref_column_parallel_input(ref_pass *p, ref_tensor *whole, const ref_tensor *x, bool sp,
                                       const char *instance);
assay_status ref_column_parallel_input_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dwhole, bool sp,
                                           const char *instance);
/* Out of a row-parallel linear: reduce_scatter_to_sequence_parallel_region with sp, else
 * reduce_from_tensor_parallel_region. */
assay_status ref_row_parallel_output(ref_pass *p, ref_tensor *y, const ref_tensor *partial, bool sp,
                                     const char *instance);
assay_status ref_row_parallel_output_bwd(ref_pass *p, ref_tensor *dpartial, const ref_tensor *dy, bool sp,
                                         const char *instance);

#endif
