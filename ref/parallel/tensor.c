/* Tensor and sequence parallelism on lockstep tensors. */
#include "ref/parallel/tensor.h"

#include "ref/lockstep.h"
#include "ref/parallel/collectives.h"

#include <string.h>

static int tp_size(const ref_pass *p)
{
    return p->e->grid.p.tensor_model_parallel_size;
}

/* Token rows of rank r's piece of the sequence. */
static int64_t piece_rows(const ref_pass *p, int r)
{
    return p->ranks[r].seq_rows * p->e->batch;
}

typedef enum { GATHER, REDUCE_SCATTER, ALL_REDUCE } tp_collective;

/* Runs the collective on every tp group: from[i], to[i], and the elements of every member's piece. */
static void run_groups(ref_pass *p, tp_collective what, ref_tensor *to, const ref_tensor *from)
{
    int members[ASSAY_MAX_WORLD];
    double *send[ASSAY_MAX_WORLD], *recv[ASSAY_MAX_WORLD];
    int64_t counts[ASSAY_MAX_WORLD];
    for (int r = 0; r < p->n; r++) {
        const int n = ref_pass_group(p, ASSAY_GROUP_TP, r, members);
        for (int i = 0; i < n; i++) {
            send[i] = from->at[members[i]].x;
            recv[i] = to->at[members[i]].x;
            counts[i] = piece_rows(p, members[i]) * from->at[members[i]].cols;
        }
        if (n > 0 && what == GATHER)
            ref_all_gather(recv, send, counts, n);
        else if (n > 0 && what == REDUCE_SCATTER)
            ref_reduce_scatter(recv, send, counts, n);
        else if (n > 0)
            ref_all_reduce(recv, n, to->at[r].rows * to->at[r].cols);
    }
}

static assay_status new_like(ref_pass *p, ref_tensor *to, const ref_tensor *from, bool whole,
                             const char *instance)
{
    ASSAY_TRY(ref_new(p, to, instance, "recv"));
    for (int r = 0; r < p->n; r++)
        ASSAY_TRY(ref_piece_new(&p->arena, &to->at[r], whole ? p->e->seq * p->e->batch : piece_rows(p, r),
                                from->at[r].cols));
    return ASSAY_OK;
}

assay_status ref_tp_all_gather(ref_pass *p, ref_tensor *whole, const ref_tensor *piece, const char *instance)
{
    ASSAY_TRY(new_like(p, whole, piece, true, instance));
    run_groups(p, GATHER, whole, piece);
    return ref_store(p, whole, REF_STORE_EXACT);
}

assay_status ref_tp_slice(ref_pass *p, ref_tensor *piece, const ref_tensor *whole, const char *instance)
{
    ASSAY_TRY(new_like(p, piece, whole, false, instance));
    for (int r = 0; r < p->n; r++) {
        const int64_t cols = whole->at[r].cols, first = p->ranks[r].seq_start * p->e->batch;
        const int64_t count = piece->at[r].rows * cols;
        if (count > 0)
            memcpy(piece->at[r].x, whole->at[r].x + first * cols, (size_t)count * sizeof(double));
    }
    return ref_store(p, piece, REF_STORE_EXACT);
}

assay_status ref_tp_reduce_scatter(ref_pass *p, ref_tensor *piece, const ref_tensor *partial,
                                   const char *instance)
{
    ASSAY_TRY(new_like(p, piece, partial, false, instance));
    run_groups(p, REDUCE_SCATTER, piece, partial);
    return ref_store(p, piece, REF_STORE_ACT);
}

assay_status ref_tp_all_reduce(ref_pass *p, ref_tensor *whole, const ref_tensor *partial,
                               const char *instance)
{
    ASSAY_TRY(new_like(p, whole, partial, true, instance));
    for (int r = 0; r < p->n; r++)
        memcpy(whole->at[r].x, partial->at[r].x,
               (size_t)(partial->at[r].rows * partial->at[r].cols) * sizeof(double));
    run_groups(p, ALL_REDUCE, whole, whole);
    return ref_store(p, whole, REF_STORE_ACT);
}

assay_status ref_tp_enter(ref_pass *p, ref_tensor *whole, const ref_tensor *x, bool sp, const char *instance)
{
    if (sp && tp_size(p) > 1)
        return ref_tp_all_gather(p, whole, x, instance);
    *whole = *x;
    return ASSAY_OK;
}

assay_status ref_tp_enter_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dwhole, bool sp,
                              const char *instance)
{
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "%s.%s", instance, sp ? "gather.grad" : "reduce_grad");
    if (tp_size(p) > 1)
        return sp ? ref_tp_reduce_scatter(p, dx, dwhole, name) : ref_tp_all_reduce(p, dx, dwhole, name);
    *dx = *dwhole;
    return ASSAY_OK;
}

assay_status ref_tp_leave(ref_pass *p, ref_tensor *y, const ref_tensor *partial, bool sp,
                          const char *instance)
{
    if (tp_size(p) > 1)
        return sp ? ref_tp_reduce_scatter(p, y, partial, instance)
                  : ref_tp_all_reduce(p, y, partial, instance);
    *y = *partial;
    return ASSAY_OK;
}

assay_status ref_tp_leave_bwd(ref_pass *p, ref_tensor *dpartial, const ref_tensor *dy, bool sp,
                              const char *instance)
{
    if (sp && tp_size(p) > 1)
        return ref_tp_all_gather(p, dpartial, dy, instance);
    *dpartial = *dy;
    return ASSAY_OK;
}
