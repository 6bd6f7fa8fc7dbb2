/* Tensor and sequence parallel collectives and regions. */
#include "gpu/parallel/tensor.h"

#include "gpu/fault.h"

/* --- collectives -------------------------------------------------------------------------------------------- */
assay_status gpu_all_reduce(gpu_model *m, const char *at, assay_group group, gpu_value *recv, gpu_value *send)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_reduce",
                                             .at = at,
                                             .group = group,
                                             .arg = {GPU_T("send", send), GPU_W("reduction", "sum"),
                                                     GPU_T("recv", recv)}});
}

assay_status gpu_all_gather(gpu_model *m, const char *at, assay_group group, gpu_value *recv, gpu_value *send)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_gather",
                                             .at = at,
                                             .group = group,
                                             .arg = {GPU_T("send", send), GPU_T("recv", recv)}});
}

/* --- collectives over tp, in pieces of the sequence --------------------------------------------------------- */
static assay_status gather_pieces(gpu_model *m, const char *at, gpu_value *whole, gpu_value *piece)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_gather",
                                             .at = at,
                                             .group = ASSAY_GROUP_TP,
                                             .counts = m->sequence_rows,
                                             .arg = {GPU_T("send", piece), GPU_T("recv", whole)}});
}

static assay_status reduce_pieces(gpu_model *m, const char *at, gpu_value *piece, gpu_value *partial)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "reduce_scatter",
                                             .at = at,
                                             .group = ASSAY_GROUP_TP,
                                             .counts = m->sequence_rows,
                                             .arg = {GPU_T("send", partial), GPU_W("reduction", "sum"),
                                                     GPU_T("recv", piece)}});
}

/* --- regions ------------------------------------------------------------------------------------------------ */
assay_status gpu_gather_from_sequence_parallel_region(gpu_model *m, const char *at, gpu_value *whole,
                                                      gpu_value *piece)
{
    return gather_pieces(m, at, whole, piece);
}

assay_status gpu_gather_from_sequence_parallel_region_bwd(gpu_model *m, const char *at, gpu_value *dpiece,
                                                          gpu_value *dwhole)
{
    return reduce_pieces(m, at, dpiece, dwhole);
}

assay_status gpu_reduce_scatter_to_sequence_parallel_region(gpu_model *m, const char *at, gpu_value *piece,
                                                            gpu_value *partial)
{
    return reduce_pieces(m, at, piece, partial);
}

assay_status gpu_reduce_scatter_to_sequence_parallel_region_bwd(gpu_model *m, const char *at,
                                                                gpu_value *dpartial, gpu_value *dpiece)
{
    return gather_pieces(m, at, dpartial, dpiece);
}

assay_status gpu_scatter_to_sequence_parallel_region(gpu_model *m, const char *at, const char *slot,
                                                     gpu_value *piece, gpu_value *whole)
{
    *piece = *whole;
    piece->dim[0] = gpu_dim_sequence(m, true);
    piece->t = gpu_tensor_rows(whole->t, m->s0 * m->B, m->sl * m->B);
    gpu_value_name(m->run, piece, at, slot);
    return GPU_CALL(m->run, "slice_rows", at, GPU_T("x", whole), GPU_I("start", m->s0),
                    GPU_I("length", m->sl), GPU_T("y", piece));
}

assay_status gpu_scatter_to_sequence_parallel_region_bwd(gpu_model *m, const char *at, gpu_value *dwhole,
                                                         gpu_value *dpiece)
{
    return gather_pieces(m, at, dwhole, dpiece);
}

void gpu_copy_to_tensor_parallel_region(gpu_value *whole, const gpu_value *x)
{
    *whole = *x;
}

assay_status gpu_copy_to_tensor_parallel_region_bwd(gpu_model *m, const char *at, gpu_value *dx,
                                                    gpu_value *dwhole)
{
    return gpu_all_reduce(m, at, ASSAY_GROUP_TP, dx, dwhole);
}

assay_status gpu_reduce_from_tensor_parallel_region(gpu_model *m, const char *at, gpu_value *whole,
                                                    gpu_value *partial)
{
    return gpu_all_reduce(m, at, ASSAY_GROUP_TP, whole, partial);
}

void gpu_reduce_from_tensor_parallel_region_bwd(gpu_value *dpartial, const gpu_value *dwhole)
{
    *dpartial = *dwhole;
}

/* --- parallel linears --------------------------------------------------------------------------------------- */
assay_status gpu_column_parallel_input(gpu_model *m, gpu_arena *arena, bool sp, const char *at,
                                       gpu_value *whole, gpu_value *x)
{
    if (sp && m->tp > 1) {
        *whole = gpu_tokens(m, arena, false, x->dim[2]);
        return gpu_gather_from_sequence_parallel_region(m, at, whole, x);
    }
    gpu_copy_to_tensor_parallel_region(whole, x);
    return ASSAY_OK;
}

gpu_value gpu_column_parallel_input_grad(gpu_model *m, bool sp, const char *at_gather, gpu_dim last,
                                         const gpu_value *x)
{
    if (!sp)
        return gpu_tokens(m, &m->scratch, false, last);
    return x ? gpu_grad_of(m, x) : gpu_named(m, gpu_tokens(m, &m->scratch, true, last), at_gather, "dx");
}

assay_status gpu_column_parallel_input_bwd(gpu_model *m, bool sp, const char *at_reduce,
                                           const char *at_gather, gpu_value *dx, gpu_value *dwhole,
                                           const gpu_value *x)
{
    if (m->tp == 1) {
        *dx = *dwhole;
        return ASSAY_OK;
    }
    *dx = gpu_column_parallel_input_grad(m, sp, at_gather, dwhole->dim[2], x);
    return sp ? gpu_gather_from_sequence_parallel_region_bwd(m, at_gather, dx, dwhole)
              : gpu_copy_to_tensor_parallel_region_bwd(m, at_reduce, dx, dwhole);
}

assay_status gpu_row_parallel_output(gpu_model *m, gpu_arena *arena, bool sp, const char *at, gpu_value *y,
                                     gpu_value *partial)
{
    if (m->tp == 1) {
        *y = *partial;
        return ASSAY_OK;
    }
    *y = gpu_tokens(m, arena, sp, partial->dim[2]);
    return sp ? gpu_reduce_scatter_to_sequence_parallel_region(m, at, y, partial)
              : gpu_reduce_from_tensor_parallel_region(m, at, y, partial);
}

assay_status gpu_row_parallel_output_bwd(gpu_model *m, bool sp, const char *at, gpu_value *dpartial,
                                         gpu_value *dy, const gpu_value *partial)
{
    if (sp && m->tp > 1) {
        *dpartial = gpu_grad_of(m, partial);
        return gpu_reduce_scatter_to_sequence_parallel_region_bwd(m, at, dpartial, dy);
    }
    gpu_reduce_from_tensor_parallel_region_bwd(dpartial, dy);
    return ASSAY_OK;
}

gpu_value *gpu_row_parallel_bias(gpu_model *m, gpu_param *bias)
{
    if (bias == NULL)
        return NULL;
    return m->at.tp == 0 || gpu_fault_switch(m->run, GPU_SWITCH_BIAS_EVERYWHERE) ? gpu_param_use(m, bias)
                                                                                 : NULL;
}
