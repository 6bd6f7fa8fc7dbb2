/* Tensor and sequence parallelism: how a tensor enters and leaves the region where weights are cut over tp.
 *
 * A "piece" is this tp rank's rows of the sequence (assay_split over S, whole s rows: S_r*B tokens); "whole"
 * is all tokens.  With tp = 1 every function hands its input on. */
#ifndef REF_PARALLEL_TENSOR_H
#define REF_PARALLEL_TENSOR_H

#include "ref/engine.h"

/* whole = all_gather(piece) over tp */
assay_status ref_tp_all_gather(ref_pass *p, ref_tensor *whole, const ref_tensor *piece, const char *instance);
/* piece = own rows of whole */
assay_status ref_tp_slice(ref_pass *p, ref_tensor *piece, const ref_tensor *whole, const char *instance);
/* piece = own rows of the sum over tp */
assay_status ref_tp_reduce_scatter(ref_pass *p, ref_tensor *piece, const ref_tensor *partial,
                                   const char *instance);
/* whole = sum over tp */
assay_status ref_tp_all_reduce(ref_pass *p, ref_tensor *whole, const ref_tensor *partial,
                               const char *instance);

/* Into a column-parallel linear: sp: all_gather; else the identity.  Backward: reduce_scatter; else
 * all_reduce (instance "<instance>.reduce_grad"). */
assay_status ref_tp_enter(ref_pass *p, ref_tensor *whole, const ref_tensor *x, bool sp, const char *instance);
assay_status ref_tp_enter_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dwhole, bool sp,
                              const char *instance);
/* Out of a row-parallel linear: sp: reduce_scatter; else all_reduce.  Backward: all_gather; else the
 * identity. */
assay_status ref_tp_leave(ref_pass *p, ref_tensor *y, const ref_tensor *partial, bool sp,
                          const char *instance);
assay_status ref_tp_leave_bwd(ref_pass *p, ref_tensor *dpartial, const ref_tensor *dy, bool sp,
                              const char *instance);

#endif
