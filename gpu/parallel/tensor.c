/* Tensor and sequence parallel collectives. */
#include "gpu/parallel/tensor.h"

assay_status gpu_all_reduce(gpu_model *m, const char *at, assay_group group, gpu_value *recv, gpu_value *send)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_reduce",
                                             .at = at,
                                             .group = group,
                                             .arg = {GPU_T("send", send), GPU_W("reduction", "sum"),
                                                     GPU_T("recv", recv)}});
}

assay_status gpu_gather_from_sequence_parallel_region(gpu_model *m, const char *at, gpu_value *recv,
                                                      gpu_value *send)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_gather",
                                             .at = at,
                                             .group = ASSAY_GROUP_TP,
                                             .counts = m->sequence_rows,
                                             .arg = {GPU_T("send", send), GPU_T("recv", recv)}});
}

assay_status gpu_reduce_scatter_to_sequence_parallel_region(gpu_model *m, const char *at, gpu_value *recv,
                                                            gpu_value *send)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "reduce_scatter",
                                             .at = at,
                                             .group = ASSAY_GROUP_TP,
                                             .counts = m->sequence_rows,
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
