/* Tensor and sequence parallelism on lockstep tensors. */
#include "ref/parallel/tensor.h"

#include "ref/lockstep.h"
#include "ref/parallel/collectives.h"

#include <string.h>

static int tp_size(const ref_pass *p)
{
    return p->e->grid.p.tensor_model_parallel_size;
}

/* --- collectives over tp ------------------------------------------------------------------------------------- */

typedef enum { GATHER, REDUCE_SCATTER, ALL_REDUCE } tp_collective;

/* Runs the collective on every tp group: from[i], to[i], and the elements of every member's shard. */
static void run_groups(ref_pass *p, tp_collective what, ref_tensor *to, const ref_tensor *from)
{
    double **send = p->e->send, **recv = p->e->recv;
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, ASSAY_GROUP_TP, r);
        for (int i = 0; i < g.size; i++) {
            const int member = assay_group_member(&g, i);
            send[i] = from->at[member].x;
            recv[i] = to->at[member].x;
            p->e->counts[i] = ref_pass_shard_tokens(p, member) * from->at[member].cols;
        }
        if (g.size > 0 && what == GATHER)
            ref_all_gather(recv, send, p->e->counts, g.size);
        else if (g.size > 0 && what == REDUCE_SCATTER)
            ref_reduce_scatter(recv, send, p->e->counts, g.size);
        else if (g.size > 0)
            ref_all_reduce(recv, g.size, to->at[r].rows * to->at[r].cols);
    }
}

static assay_status new_like(ref_pass *p, ref_tensor *to, const ref_tensor *from, bool whole,
                             const char *instance)
{
    ASSAY_TRY(ref_new(p, to, instance, "recv"));
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(ref_piece_new(&p->arena, &to->at[r],
                                whole ? ref_pass_region_tokens(p, r) : ref_pass_shard_tokens(p, r),
                                from->at[r].cols));
    return ASSAY_OK;
}

static assay_status all_gather(ref_pass *p, ref_tensor *whole, const ref_tensor *shard, const char *instance)
{
    ASSAY_TRY(new_like(p, whole, shard, true, instance));
    run_groups(p, GATHER, whole, shard);
    return ref_store(p, whole, REF_STORE_EXACT);
}

static assay_status reduce_scatter(ref_pass *p, ref_tensor *shard, const ref_tensor *partial,
                                   const char *instance)
{
    ASSAY_TRY(new_like(p, shard, partial, false, instance));
    run_groups(p, REDUCE_SCATTER, shard, partial);
    return ref_store(p, shard, REF_STORE_ACT);
}

static assay_status all_reduce(ref_pass *p, ref_tensor *whole, const ref_tensor *partial,
                               const char *instance)
{
    ASSAY_TRY(new_like(p, whole, partial, true, instance));
    for (int r = 0; r < p->n; r++)
        memcpy(whole->at[r].x, partial->at[r].x,
               (size_t)(partial->at[r].rows * partial->at[r].cols) * sizeof(double));
    run_groups(p, ALL_REDUCE, whole, whole);
    return ref_store(p, whole, REF_STORE_ACT);
}

/* --- regions -------------------------------------------------------------------------------------------------- */

assay_status ref_gather_from_sequence_parallel_region(ref_pass *p, ref_tensor *whole, const ref_tensor *shard,
                                                      const char *instance)
{
    return all_gather(p, whole, shard, instance);
}

assay_status ref_gather_from_sequence_parallel_region_bwd(ref_pass *p, ref_tensor *dshard,
                                                          const ref_tensor *dwhole, const char *instance)
{
    return reduce_scatter(p, dshard, dwhole, instance);
}

assay_status ref_reduce_scatter_to_sequence_parallel_region(ref_pass *p, ref_tensor *shard,
                                                            const ref_tensor *partial, const char *instance)
{
    return reduce_scatter(p, shard, partial, instance);
}

assay_status ref_reduce_scatter_to_sequence_parallel_region_bwd(ref_pass *p, ref_tensor *dpartial,
                                                                const ref_tensor *dshard,
                                                                const char *instance)
{
    return all_gather(p, dpartial, dshard, instance);
}

assay_status ref_scatter_to_sequence_parallel_region(ref_pass *p, ref_tensor *shard, const ref_tensor *whole,
                                                     const char *instance)
{
    ASSAY_TRY(new_like(p, shard, whole, false, instance));
    for (int r = 0; r < p->n; r++) {
        const int64_t cols = whole->at[r].cols;
        const int64_t first = p->ranks[r].sequence.shard_first * p->e->batch;
        const int64_t count = shard->at[r].rows * cols;
        if (count > 0)
            memcpy(shard->at[r].x, whole->at[r].x + first * cols, (size_t)count * sizeof(double));
    }
    return ref_store(p, shard, REF_STORE_EXACT);
}

assay_status ref_scatter_to_sequence_parallel_region_bwd(ref_pass *p, ref_tensor *dwhole,
                                                         const ref_tensor *dshard, const char *instance)
{
    return all_gather(p, dwhole, dshard, instance);
}

assay_status ref_copy_to_tensor_parallel_region(ref_pass *p, ref_tensor *whole, const ref_tensor *x)
{
    (void)p;
    *whole = *x;
    return ASSAY_OK;
}

assay_status ref_copy_to_tensor_parallel_region_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dwhole,
                                                    const char *instance)
{
    return all_reduce(p, dx, dwhole, instance);
}

assay_status ref_reduce_from_tensor_parallel_region(ref_pass *p, ref_tensor *whole, const ref_tensor *partial,
                                                    const char *instance)
{
    return all_reduce(p, whole, partial, instance);
}

assay_status ref_reduce_from_tensor_parallel_region_bwd(ref_pass *p, ref_tensor *dpartial,
                                                        const ref_tensor *dwhole)
{
    (void)p;
    *dpartial = *dwhole;
    return ASSAY_OK;
}

/* --- parallel linears ----------------------------------------------------------------------------------------- */

assay_status ref_column_parallel_input(ref_pass *p, ref_tensor *whole, const ref_tensor *x, bool sp,
                                       const char *instance)
{
    if (sp && tp_size(p) > 1)
        return ref_gather_from_sequence_parallel_region(p, whole, x, instance);
    return ref_copy_to_tensor_parallel_region(p, whole, x);
}

assay_status ref_column_parallel_input_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dwhole, bool sp,
                                           const char *instance)
{
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "%s.%s", instance, sp ? "gather.grad" : "reduce_grad");
    if (tp_size(p) > 1)
        return sp ? ref_gather_from_sequence_parallel_region_bwd(p, dx, dwhole, name)
                  : ref_copy_to_tensor_parallel_region_bwd(p, dx, dwhole, name);
    *dx = *dwhole;
    return ASSAY_OK;
}

assay_status ref_row_parallel_output(ref_pass *p, ref_tensor *y, const ref_tensor *partial, bool sp,
                                     const char *instance)
{
    if (tp_size(p) > 1)
        return sp ? ref_reduce_scatter_to_sequence_parallel_region(p, y, partial, instance)
                  : ref_reduce_from_tensor_parallel_region(p, y, partial, instance);
    *y = *partial;
    return ASSAY_OK;
}

assay_status ref_row_parallel_output_bwd(ref_pass *p, ref_tensor *dpartial, const ref_tensor *dy, bool sp,
                                         const char *instance)
{
    if (sp && tp_size(p) > 1)
        return ref_reduce_scatter_to_sequence_parallel_region_bwd(p, dpartial, dy, instance);
    return ref_reduce_from_tensor_parallel_region_bwd(p, dpartial, dy);
}
