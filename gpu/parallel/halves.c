/* Token rows exchanged in halves of the experts. */
#include "gpu/parallel/halves.h"

#include "gpu/beside.h"
#include "gpu/call.h"
#include "gpu/check.h"
#include "gpu/describe.h"
#include "gpu/fault.h"
#include "gpu/parallel/padding.h"
#include <string.h>

bool gpu_has_halves(const gpu_model *m)
{
    return m->options->moe_alltoall_halves && !gpu_run_is_watched(m->run);
}

/* --- counts and orders -------------------------------------------------------------------------------------- */
/* Where the rows for the half's experts of every rank begin among those of this one. */
static assay_status find_starts(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *half,
                                const gpu_exchange *x)
{
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)m->ep * sizeof(int64_t), (void **)&half->send_start));
    if (m->run->dry)
        return ASSAY_OK;
    const int64_t *mine = gpu_exchange_counts_of(m, x, m->at.etp, m->at.ep);
    int64_t at = 0;
    for (int64_t e = 0; e < m->config->num_moe_experts; at += mine[e++])
        if (e % m->local_experts == half->first_expert)
            half->send_start[e / m->local_experts] = at;
    return ASSAY_OK;
}

/* In dry mode all rows may be the first half's; that a piece of each half begins on a unit of the arena takes no more than a row of
 * the second. */
static assay_status create(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, const gpu_exchange *all,
                           int h)
{
    gpu_moe_acts *half = &s->half[h];
    const bool dry = m->run->dry;
    const int64_t El = m->local_experts, first_half = El - El / GPU_HALVES;
    gpu_exchange x = *all;
    memset(half, 0, sizeof *half);
    x.first = h == 0 ? 0 : first_half;
    x.experts = h == 0 ? (dry ? El : first_half) : (dry ? 1 : El - first_half);
    half->first_expert = x.first;
    half->n_experts = x.experts;
    ASSAY_TRY(gpu_exchange_count(m, mb, half, &x));
    if (dry && h > 0)
        x.received = x.gathered = 1;
    ASSAY_TRY(gpu_pad_count(m, mb, half, &x));
    ASSAY_TRY(gpu_index_value(m, &mb->arena, &half->local_counts, "mlp.experts", "tokens_per_expert",
                              x.experts, x.room));
    half->dispatched_rows = half->gathered_rows = half->expert_rows =
        (gpu_rows){.n = x.received, .record = -1};
    half->expert_rows.n = x.padded;
    ASSAY_TRY(find_starts(m, mb, half, all));
    return gpu_pad_sort(m, mb, half, &x);
}

/* --- rows on their way -------------------------------------------------------------------------------------- */
/* A described value of rows with memory, of the type of `like`. */
static assay_status make_rows(gpu_model *m, gpu_value *v, const gpu_rows *rows, int64_t last,
                              const gpu_value *like)
{
    *v = gpu_local(&m->scratch, rows->n, last);
    v->kind = ASSAY_PIECE_ROWS;
    v->rows = rows;
    return gpu_value_make(v, like->t.dtype);
}

/* Rows of this rank go to the ranks of their experts: from `mine` to `theirs`; or back. */
static assay_status exchange(gpu_model *m, const gpu_moe_acts *half, gpu_tensor mine, gpu_tensor theirs,
                             bool back)
{
    gpu_run *run = m->run;
    const int64_t columns = mine.ndim > 1 ? gpu_tensor_cols(mine) : 1;
    const int64_t row_bytes = columns * assay_dtype_bytes(mine.dtype);
    int64_t arrived = 0;
    ASSAY_TRY(gpu_comm_group_start(&run->comm));
    for (int i = 0; i < m->ep; i++) {
        char *here = (char *)mine.data + half->send_start[i] * row_bytes,
             *there = (char *)theirs.data + arrived * row_bytes;
        const int64_t out = half->send_counts[i] * columns, in = half->recv_counts[i] * columns;
        const gpu_comm_call send = {.op = GPU_COMM_SEND,
                                    .group = ASSAY_GROUP_EP,
                                    .send = back ? there : here,
                                    .count = back ? in : out,
                                    .dtype = mine.dtype,
                                    .root = i},
                            recv = {.op = GPU_COMM_RECV,
                                    .group = ASSAY_GROUP_EP,
                                    .recv = back ? here : there,
                                    .count = back ? out : in,
                                    .dtype = mine.dtype,
                                    .root = i};
        if (send.count > 0)
            ASSAY_TRY(gpu_comm_enqueue(&run->comm, &send, run->ctx.stream));
        if (recv.count > 0)
            ASSAY_TRY(gpu_comm_enqueue(&run->comm, &recv, run->ctx.stream));
        arrived += half->recv_counts[i];
    }
    return gpu_comm_group_end(&run->comm);
}

/* One tensor of rows, or of rows and probs. */
typedef struct rows_pair {
    const gpu_value *mine, *theirs;
} rows_pair;

static assay_status issue(gpu_model *m, const gpu_moe_acts *half, const rows_pair *pair, int n, bool back,
                          int slot)
{
    for (int i = 0; i < n; i++)
        ASSAY_TRY(exchange(m, half, pair[i].mine->t, pair[i].theirs->t, back));
    return gpu_beside_mark(m->run, slot);
}

static int slot_of(int h)
{
    return GPU_BESIDE_FIRST_HALF + h;
}

/* --- forward ------------------------------------------------------------------------------------------------ */
assay_status gpu_halves_dispatch_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                     const gpu_exchange *x)
{
    const int64_t H = m->config->hidden_size;
    for (int h = 0; h < GPU_HALVES; h++) {
        gpu_moe_acts *half = &s->half[h];
        ASSAY_TRY(create(m, mb, s, x, h));
        ASSAY_TRY(make_rows(m, &half->dispatched, &half->dispatched_rows, H, &s->permuted));
        ASSAY_TRY(make_rows(m, &half->dispatched_probs, &half->dispatched_rows, 0, &s->permuted_probs));
    }
    if (m->run->dry)
        return ASSAY_OK;
    ASSAY_TRY(gpu_beside_begin(m->run, GPU_BESIDE_FIRST_HALF, GPU_SWITCH_UNWAITED_ROWS));
    for (int h = 0; h < GPU_HALVES; h++) {
        const gpu_moe_acts *half = &s->half[h];
        const rows_pair pair[2] = {{&s->permuted, &half->dispatched},
                                   {&s->permuted_probs, &half->dispatched_probs}};
        ASSAY_TRY(issue(m, half, pair, 2, false, slot_of(h)));
    }
    return gpu_beside_end(m->run);
}

static assay_status join_half(gpu_model *m, int h)
{
    return m->run->dry ? ASSAY_OK : gpu_beside_join(m->run, slot_of(h), GPU_SWITCH_UNWAITED_HALF);
}

assay_status gpu_halves_arrive_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, int h)
{
    gpu_moe_acts *half = &s->half[h];
    ASSAY_TRY(join_half(m, h));
    return gpu_sort_rows(m, mb, half, &half->dispatched, &half->dispatched_probs);
}

assay_status gpu_halves_open_fwd(gpu_model *m, gpu_moe_acts *s)
{
    return make_rows(m, &s->returned, &s->rows, m->config->hidden_size, &s->permuted);
}

/* n tensors of half h go back behind what the compute stream has. */
static assay_status go_back(gpu_model *m, const gpu_moe_acts *half, const rows_pair *pair, int n)
{
    if (m->run->dry)
        return ASSAY_OK;
    ASSAY_TRY(gpu_beside_begin(m->run, GPU_BESIDE_RETURNED, GPU_SWITCH_UNWAITED_ROWS));
    ASSAY_TRY(issue(m, half, pair, n, true, GPU_BESIDE_RETURNED));
    return gpu_beside_end(m->run);
}

assay_status gpu_halves_leave_fwd(gpu_model *m, gpu_moe_acts *s, int h)
{
    gpu_moe_acts *half = &s->half[h];
    ASSAY_TRY(make_rows(m, &half->unsorted, &half->gathered_rows, m->config->hidden_size, &half->fc2));
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.unsort", GPU_T("x", &half->fc2),
                       GPU_T("index", &half->unsort_index), GPU_T("y", &half->unsorted)));
    const rows_pair pair = {&s->returned, &half->unsorted};
    return go_back(m, half, &pair, 1);
}

assay_status gpu_halves_join(gpu_model *m)
{
    return m->run->dry ? ASSAY_OK : gpu_beside_join(m->run, GPU_BESIDE_RETURNED, GPU_SWITCH_UNWAITED_RETURN);
}

/* --- backward ----------------------------------------------------------------------------------------------- */
assay_status gpu_halves_combine_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value arrived[GPU_HALVES],
                                    gpu_value *dreturned)
{
    for (int h = 0; h < GPU_HALVES; h++)
        ASSAY_TRY(make_rows(m, &arrived[h], &s->half[h].gathered_rows, m->config->hidden_size, dreturned));
    if (m->run->dry)
        return ASSAY_OK;
    ASSAY_TRY(gpu_beside_begin(m->run, GPU_BESIDE_FIRST_HALF, GPU_SWITCH_UNWAITED_ROWS));
    for (int h = 0; h < GPU_HALVES; h++) {
        const rows_pair pair = {dreturned, &arrived[h]};
        ASSAY_TRY(issue(m, &s->half[h], &pair, 1, false, slot_of(h)));
    }
    return gpu_beside_end(m->run);
}

assay_status gpu_halves_arrive_bwd(gpu_model *m, gpu_moe_acts *s, int h, gpu_value *dfc2, gpu_value *arrived)
{
    gpu_moe_acts *half = &s->half[h];
    ASSAY_TRY(join_half(m, h));
    return GPU_CALL(m->run, "gather_rows", "mlp.unsort", GPU_T("x", arrived),
                    GPU_T("index", &half->sort_index), GPU_NEW("y", dfc2, gpu_grad_of(m, &half->fc2)));
}

assay_status gpu_halves_open_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *dpermuted, gpu_value *dprobs)
{
    ASSAY_TRY(make_rows(m, dpermuted, &s->rows, m->config->hidden_size, &s->permuted));
    return make_rows(m, dprobs, &s->rows, 0, &s->permuted_probs);
}

assay_status gpu_halves_leave_bwd(gpu_model *m, gpu_moe_acts *s, int h, gpu_value *dpermuted,
                                  gpu_value *dprobs, gpu_value *drows, gpu_value *dprobs_rows)
{
    gpu_moe_acts *half = &s->half[h];
    gpu_value rows, probs;
    ASSAY_TRY(make_rows(m, &rows, &half->gathered_rows, m->config->hidden_size, dpermuted));
    ASSAY_TRY(make_rows(m, &probs, &half->gathered_rows, 0, dprobs));
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.sort", GPU_T("x", drows),
                       GPU_T("index", &half->unsort_index), GPU_T("y", &rows)));
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.sort_probs", GPU_T("x", dprobs_rows),
                       GPU_T("index", &half->unsort_index), GPU_T("y", &probs)));
    const rows_pair pair[2] = {{dpermuted, &rows}, {dprobs, &probs}};
    return go_back(m, half, pair, 2);
}
