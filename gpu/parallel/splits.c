/* Collectives over tp of some rows of the tokens at a time. */
#include "gpu/parallel/splits.h"

#include "gpu/beside.h"
#include "gpu/call.h"
#include "gpu/check.h"
#include "gpu/fault.h"
#include "gpu/parallel/tensor.h"

bool gpu_tp_beside(const gpu_model *m)
{
    return m->tp > 1 && (m->run->dry || m->run->beside.own.stream != NULL) && !gpu_run_is_watched(m->run);
}

bool gpu_has_splits(const gpu_model *m)
{
    return m->options->tp_comm_overlap && gpu_tp_beside(m);
}

/* --- which rows --------------------------------------------------------------------------------------------- */
int gpu_splits_count(const gpu_model *m, bool sp)
{
    const int n = sp ? 2 * GPU_SPLITS / m->tp : GPU_SPLITS;
    return n < 2 ? 2 : n;
}

int gpu_split_stretches(const gpu_model *m, bool sp)
{
    return sp ? m->tp : 1;
}

gpu_stretch gpu_split_stretch(const gpu_model *m, bool sp, int c, int r)
{
    gpu_stretch s = {0};
    const int64_t rows = (sp ? m->sequence_rows[r] : m->sequence.region.length) * m->B;
    assay_split(rows, gpu_splits_count(m, sp), c, &s.piece, &s.rows);
    s.whole = s.piece;
    for (int before = 0; before < r; before++)
        s.whole += m->sequence_rows[before] * m->B;
    return s;
}

gpu_value gpu_split_rows(const gpu_value *v, int64_t first, int64_t rows)
{
    gpu_value some = *v;
    some.t = gpu_tensor_rows(v->t, first, rows);
    return some;
}

/* --- gathers ------------------------------------------------------------------------------------------------ */
/* Each rank's rows go to the same place of `whole` everywhere: messages, because an all-gather would lay them one behind the other. */
static assay_status exchange(gpu_model *m, int c, const gpu_value *whole, const gpu_value *piece)
{
    gpu_run *run = m->run;
    const int64_t columns = gpu_tensor_cols(piece->t);
    const gpu_stretch here = gpu_split_stretch(m, true, c, m->at.tp);
    const gpu_tensor mine = gpu_tensor_rows(piece->t, here.piece, here.rows);
    ASSAY_TRY(gpu_comm_group_start(&run->comm));
    for (int r = 0; r < m->tp; r++) {
        const gpu_stretch theirs = gpu_split_stretch(m, true, c, r);
        const gpu_comm_call send = {.op = GPU_COMM_SEND,
                                    .group = ASSAY_GROUP_TP,
                                    .send = mine.data,
                                    .count = here.rows * columns,
                                    .dtype = mine.dtype,
                                    .root = r},
                            recv = {.op = GPU_COMM_RECV,
                                    .group = ASSAY_GROUP_TP,
                                    .recv = gpu_tensor_rows(whole->t, theirs.whole, theirs.rows).data,
                                    .count = theirs.rows * columns,
                                    .dtype = mine.dtype,
                                    .root = r};
        if (send.count > 0)
            ASSAY_TRY(gpu_comm_enqueue(&run->comm, &send, run->ctx.stream));
        if (recv.count > 0)
            ASSAY_TRY(gpu_comm_enqueue(&run->comm, &recv, run->ctx.stream));
    }
    return gpu_comm_group_end(&run->comm);
}

assay_status gpu_splits_gather(gpu_model *m, gpu_value *whole, const gpu_value *piece)
{
    if (m->run->dry)
        return ASSAY_OK;
    ASSAY_TRY(gpu_beside_begin(m->run, GPU_BESIDE_FIRST_SPLIT, GPU_SWITCH_UNWAITED_PIECE));
    for (int c = 0; c < gpu_splits_count(m, true); c++) {
        ASSAY_TRY(exchange(m, c, whole, piece));
        ASSAY_TRY(gpu_beside_mark(m->run, GPU_BESIDE_FIRST_SPLIT + c));
    }
    return gpu_beside_end(m->run);
}

assay_status gpu_splits_arrive(gpu_model *m, int c)
{
    return m->run->dry ? ASSAY_OK
                       : gpu_beside_join(m->run, GPU_BESIDE_FIRST_SPLIT + c, GPU_SWITCH_UNWAITED_SPLIT);
}

/* --- sums --------------------------------------------------------------------------------------------------- */
static assay_status scatter(gpu_model *m, const char *at, int c, gpu_value *piece, gpu_value *rows)
{
    for (int r = 0; r < m->tp; r++)
        m->split_rows[r] = gpu_split_stretch(m, true, c, r).rows;
    const gpu_stretch mine = gpu_split_stretch(m, true, c, m->at.tp);
    gpu_value sum = gpu_split_rows(piece, mine.piece, mine.rows);
    return gpu_call(m->run, &(gpu_call_args){.op = "reduce_scatter",
                                             .at = at,
                                             .group = ASSAY_GROUP_TP,
                                             .counts = m->split_rows,
                                             .arg = {GPU_T("send", rows), GPU_W("reduction", "sum"),
                                                     GPU_T("recv", &sum)}});
}

assay_status gpu_splits_reduce(gpu_model *m, bool sp, const char *at, int c, gpu_value *sum, gpu_value *rows)
{
    if (m->run->dry)
        return ASSAY_OK;
    ASSAY_TRY(gpu_beside_begin(m->run, GPU_BESIDE_SUM, GPU_SWITCH_UNWAITED_PARTIAL));
    if (sp) {
        ASSAY_TRY(scatter(m, at, c, sum, rows));
    } else {
        const gpu_stretch s = gpu_split_stretch(m, false, c, 0);
        gpu_value here = gpu_split_rows(sum, s.whole, s.rows);
        ASSAY_TRY(gpu_all_reduce(m, at, ASSAY_GROUP_TP, &here, rows));
    }
    ASSAY_TRY(gpu_beside_mark(m->run, GPU_BESIDE_SUM));
    return gpu_beside_end(m->run);
}

assay_status gpu_splits_join(gpu_model *m)
{
    return m->run->dry ? ASSAY_OK : gpu_beside_join(m->run, GPU_BESIDE_SUM, GPU_SWITCH_UNWAITED_SPLIT_SUM);
}
