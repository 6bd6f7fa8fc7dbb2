/* Token dispatch and combine. */
#include "gpu/parallel/expert.h"

#include "gpu/call.h"
#include "gpu/describe.h"
#include "gpu/parallel/tensor.h"
#include <stdlib.h>
#include <string.h>

/* --- values of rows ----------------------------------------------------------------------------------------- */
static gpu_value rows_of(gpu_arena *arena, const gpu_rows *rows, int64_t last)
{
    gpu_value v = gpu_local(arena, rows->n, last);
    v.kind = ASSAY_PIECE_ROWS;
    v.rows = rows;
    return v;
}

/* An index array of n on the device under instance and slot, filled from staging (which outlives the copy). */
static assay_status index_value(gpu_model *m, gpu_arena *arena, gpu_value *v, const char *at,
                                const char *slot, int64_t n, const int64_t *host)
{
    *v = gpu_named(m, gpu_local(arena, n, 0), at, slot);
    ASSAY_TRY(gpu_value_make(v, ASSAY_I64));
    v->host = host;
    if (m->run->dry || n == 0)
        return ASSAY_OK;
    CUDA_TRY(
        cudaMemcpyAsync(v->t.data, host, gpu_tensor_bytes(v->t), cudaMemcpyHostToDevice, m->run->ctx.stream));
    return ASSAY_OK;
}

/* --- all_to_all --------------------------------------------------------------------------------------------- */
static assay_status all_to_all(gpu_model *m, const char *at, gpu_value *recv, const int64_t *recv_rows,
                               gpu_value *send, const int64_t *send_rows)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_to_all",
                                             .at = at,
                                             .group = ASSAY_GROUP_EP,
                                             .counts = send_rows,
                                             .recv_counts = recv_rows,
                                             .arg = {GPU_T("send", send), GPU_T("recv", recv)}});
}

/* --- dispatch ----------------------------------------------------------------------------------------------- */
/* Host copies of what the permutation says, and the counts of every ep rank. */
typedef struct permutation {
    int64_t rows;                  /* of this rank's tokens */
    int64_t *row_token, *row_slot; /* [rows] */
    int64_t *tokens_per_expert;    /* [ep][E]: row i is ep rank i's; ep = 1: one row */
    int64_t received;
} permutation;

/* The counts lie in the step's table, in the row of this microbatch: written, never added to, so that a forward that runs
 * again changes nothing. */
static assay_status permute_rows(gpu_model *m, gpu_microbatch_state *mb, const gpu_layer *l, gpu_moe_acts *s,
                                 permutation *p, gpu_value *row_slot)
{
    gpu_arena *keep = &mb->arena;
    const int64_t E = m->config->num_moe_experts, K = m->config->moe_router_topk, T = m->sl * m->B;
    p->rows = T * K;
    s->tokens_per_expert = gpu_named(m, gpu_local(NULL, E, 0), "mlp.permute_plan", "tokens_per_expert");
    s->tokens_per_expert.t = gpu_tensor_1d(l->tokens_per_expert + mb->index * E, ASSAY_I64, E);
    return GPU_CALL(m->run, "permute_plan", "mlp.permute_plan", GPU_T("indices", &s->indices),
                    GPU_I("experts", E), GPU_NEW("row_token", &s->row_token, gpu_local(keep, p->rows, 0)),
                    GPU_NEW("row_slot", row_slot, gpu_local(&m->scratch, p->rows, 0)),
                    GPU_T("tokens_per_expert", &s->tokens_per_expert),
                    GPU_NEW("token_row", &s->token_row, gpu_local(keep, T, K)));
}

/* Counts of all ep ranks; then everything that the host needs arrives behind one wait. */
static assay_status fetch_permutation(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, permutation *p,
                                      gpu_value *row_slot)
{
    gpu_run *run = m->run;
    const int64_t E = m->config->num_moe_experts;
    const size_t row_bytes = (size_t)p->rows * sizeof(int64_t);
    const size_t count_bytes = (size_t)(m->ep * E) * sizeof(int64_t);
    ASSAY_TRY(gpu_arena_take(&mb->host, row_bytes, (void **)&p->row_token));
    ASSAY_TRY(gpu_arena_take(&mb->host, row_bytes, (void **)&p->row_slot));
    ASSAY_TRY(gpu_arena_take(&mb->host, count_bytes, (void **)&p->tokens_per_expert));
    gpu_value gathered = s->tokens_per_expert;
    if (m->ep > 1) {
        gathered = gpu_local(&m->scratch, m->ep, E);
        ASSAY_TRY(gpu_all_gather(m, "mlp.dispatch_counts", ASSAY_GROUP_EP, &gathered, &s->tokens_per_expert));
    }
    if (run->dry)
        return ASSAY_OK;
    const cudaStream_t stream = run->ctx.stream;
    if (p->rows > 0) {
        CUDA_TRY(
            cudaMemcpyAsync(p->row_token, s->row_token.t.data, row_bytes, cudaMemcpyDeviceToHost, stream));
        CUDA_TRY(cudaMemcpyAsync(p->row_slot, row_slot->t.data, row_bytes, cudaMemcpyDeviceToHost, stream));
    }
    return gpu_run_download(run, p->tokens_per_expert, gathered.t.data, count_bytes, "token counts");
}

/* Send and receive rows of every ep rank, rows of every local expert.  Dry mode: the most that can arrive. */
static assay_status exchange_counts(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, permutation *p)
{
    const int64_t E = m->config->num_moe_experts, K = m->config->moe_router_topk, El = m->local_experts;
    const size_t ranks = (size_t)m->ep * sizeof(int64_t);
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)El * sizeof(int64_t), (void **)&s->counts));
    ASSAY_TRY(gpu_arena_take(&mb->host, ranks, (void **)&s->send_counts));
    ASSAY_TRY(gpu_arena_take(&mb->host, ranks, (void **)&s->recv_counts));
    if (m->run->dry) {
        const int64_t chunk = (m->S + 2 * m->cp - 1) / (2 * m->cp); /* the longest of the sequence's */
        const int64_t longest = (2 * chunk + m->tp - 1) / m->tp * m->B;
        p->received = m->ep == 1 ? p->rows : longest * m->ep * (K < El ? K : El);
        return ASSAY_OK;
    }
    const gpu_comm_group *g = &m->run->comm.group[ASSAY_GROUP_EP];
    const int64_t *mine = p->tokens_per_expert + (m->ep > 1 ? g->rank * E : 0);
    memset(s->counts, 0, (size_t)El * sizeof *s->counts);
    p->received = 0;
    for (int i = 0; i < m->ep; i++) {
        const int64_t *theirs = p->tokens_per_expert + i * E;
        s->send_counts[i] = s->recv_counts[i] = 0;
        for (int64_t e = 0; e < El; e++) {
            s->send_counts[i] += mine[i * El + e];
            s->recv_counts[i] += theirs[m->at.ep * El + e];
            s->counts[e] += theirs[m->at.ep * El + e];
        }
        p->received += s->recv_counts[i];
    }
    return ASSAY_OK;
}

/* Names of this rank's rows: token in the microbatch file-wide, times E, plus expert. */
static assay_status name_rows(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, const permutation *p)
{
    gpu_rows *rows = &s->rows;
    const int64_t E = m->config->num_moe_experts;
    *rows = (gpu_rows){.n = p->rows, .record = -1};
    if (m->run->trace == NULL)
        return ASSAY_OK;
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)p->rows * sizeof(int64_t), (void **)&rows->ids));
    if (m->run->dry)
        return ASSAY_OK;
    const int64_t *mine =
        p->tokens_per_expert + (m->ep > 1 ? m->run->comm.group[ASSAY_GROUP_EP].rank * E : 0);
    int64_t row = 0;
    for (int64_t e = 0; e < E; e++)
        for (int64_t i = 0; i < mine[e]; i++, row++) {
            const int64_t t = p->row_token[row];
            const int64_t position = assay_sequence_position(&m->sequence.shard, t / m->B);
            const int64_t token = position * m->B_global + m->row0 + t % m->B;
            rows->ids[row] = token * E + e;
        }
    return gpu_trace_rows(m->run, rows, "mlp.permute");
}

/* The same for the rows that arrive, and after sorting.  Rows of another microbatch are nobody's (-1). */
static assay_status name_received(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                  const permutation *p, const int64_t *sort)
{
    gpu_run *run = m->run;
    s->dispatched_rows = s->expert_rows = (gpu_rows){.n = p->received, .record = -1};
    if (run->trace == NULL)
        return ASSAY_OK;
    const size_t mark = m->scratch.used, bytes = (size_t)p->received * sizeof(int64_t);
    gpu_value send, recv;
    ASSAY_TRY(index_value(m, &m->scratch, &send, "mlp.dispatch", "ids", p->rows, s->rows.ids));
    recv = gpu_local(&m->scratch, p->received, 0);
    ASSAY_TRY(gpu_value_make(&recv, ASSAY_I64));
    ASSAY_TRY(gpu_arena_take(&mb->host, bytes, (void **)&s->dispatched_rows.ids));
    ASSAY_TRY(gpu_arena_take(&mb->host, bytes, (void **)&s->expert_rows.ids));
    gpu_arena_reset(&m->scratch, mark);
    if (run->dry)
        return ASSAY_OK;
    ASSAY_TRY(gpu_comm_all_to_all_v(&run->comm, ASSAY_GROUP_EP, send.t.data, s->send_counts, recv.t.data,
                                    s->recv_counts, ASSAY_I64, run->ctx.stream));
    ASSAY_TRY(gpu_run_download(run, s->dispatched_rows.ids, recv.t.data, bytes, "row ids"));
    int64_t row = 0;
    for (int i = 0; i < m->ep; i++) {
        assay_coords source;
        assay_grid_coords(m->grid, run->comm.group[ASSAY_GROUP_EP].ranks[i], &source);
        const bool foreign = source.dp != m->at.dp && !m->rows_split;
        for (int64_t k = 0; k < s->recv_counts[i]; k++, row++)
            if (foreign)
                s->dispatched_rows.ids[row] = -1;
    }
    for (int64_t i = 0; i < p->received; i++)
        s->expert_rows.ids[i] = s->dispatched_rows.ids[sort[i]];
    ASSAY_TRY(gpu_trace_rows(run, &s->dispatched_rows, "mlp.dispatch"));
    return gpu_trace_rows(run, &s->expert_rows, "mlp.sort");
}

/* sort[new] = old: from [source, local expert] to [local expert, source]; unsort is its inverse. */
static void sort_chunks(const gpu_model *m, const permutation *p, int64_t *sort, int64_t *unsort)
{
    const int64_t E = m->config->num_moe_experts, El = m->local_experts;
    int64_t row = 0;
    for (int64_t e = 0; e < El; e++) {
        int64_t source_start = 0;
        for (int i = 0; i < m->ep; i++) {
            const int64_t *theirs = p->tokens_per_expert + i * E + m->at.ep * El;
            int64_t start = source_start;
            for (int64_t before = 0; before < El; before++) {
                start += before < e ? theirs[before] : 0;
                source_start += theirs[before];
            }
            for (int64_t k = 0; k < theirs[e]; k++, row++) {
                sort[row] = start + k;
                unsort[start + k] = row;
            }
        }
    }
}

/* permuted rows -> rows of the local experts */
static assay_status exchange_rows(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                  const permutation *p)
{
    gpu_run *run = m->run;
    gpu_arena *keep = &mb->arena, *temp = &m->scratch;
    const int64_t H = m->config->hidden_size;
    const size_t bytes = (size_t)p->received * sizeof(int64_t);
    int64_t *sort, *unsort;
    ASSAY_TRY(gpu_arena_take(&mb->host, bytes, (void **)&sort));
    ASSAY_TRY(gpu_arena_take(&mb->host, bytes, (void **)&unsort));
    if (!run->dry)
        sort_chunks(m, p, sort, unsort);
    ASSAY_TRY(name_received(m, mb, s, p, sort));
    ASSAY_TRY(index_value(m, keep, &s->sort_index, "mlp.sort", "index", p->received, sort));
    ASSAY_TRY(index_value(m, keep, &s->unsort_index, "mlp.unsort", "index", p->received, unsort));
    s->dispatched = rows_of(temp, &s->dispatched_rows, H);
    s->dispatched_probs = rows_of(temp, &s->dispatched_rows, 0);
    ASSAY_TRY(all_to_all(m, "mlp.dispatch", &s->dispatched, s->recv_counts, &s->permuted, s->send_counts));
    ASSAY_TRY(all_to_all(m, "mlp.dispatch_probs", &s->dispatched_probs, s->recv_counts, &s->permuted_probs,
                         s->send_counts));
    ASSAY_TRY(GPU_CALL(run, "gather_rows", "mlp.sort", GPU_T("x", &s->dispatched),
                       GPU_T("index", &s->sort_index),
                       GPU_NEW("y", &s->expert_in, rows_of(keep, &s->expert_rows, H))));
    return GPU_CALL(run, "gather_rows", "mlp.sort_probs", GPU_T("x", &s->dispatched_probs),
                    GPU_T("index", &s->sort_index),
                    GPU_NEW("y", &s->expert_probs, rows_of(keep, &s->expert_rows, 0)));
}

assay_status gpu_token_dispatch_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *s)
{
    gpu_run *run = m->run;
    gpu_arena *rows_arena = m->ep > 1 ? &m->scratch : &mb->arena;
    const int64_t H = m->config->hidden_size, K = m->config->moe_router_topk;
    permutation p = {0};
    gpu_value row_slot, index;
    int64_t *host_index;
    ASSAY_TRY(permute_rows(m, mb, l, s, &p, &row_slot));
    ASSAY_TRY(fetch_permutation(m, mb, s, &p, &row_slot));
    ASSAY_TRY(exchange_counts(m, mb, s, &p));
    ASSAY_TRY(name_rows(m, mb, s, &p));
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)p.rows * sizeof(int64_t), (void **)&host_index));
    for (int64_t i = 0; !run->dry && i < p.rows; i++)
        host_index[i] = p.row_token[i] * K + p.row_slot[i];
    ASSAY_TRY(index_value(m, &m->scratch, &index, "mlp.permute_probs", "index", p.rows, host_index));
    ASSAY_TRY(GPU_CALL(run, "gather_rows", "mlp.permute", GPU_T("x", &s->tokens),
                       GPU_T("index", &s->row_token),
                       GPU_NEW("y", &s->permuted, rows_of(rows_arena, &s->rows, H))));
    gpu_value probs = gpu_value_flat(&s->probs);
    ASSAY_TRY(GPU_CALL(run, "gather_rows", "mlp.permute_probs", GPU_T("x", &probs), GPU_T("index", &index),
                       GPU_NEW("y", &s->permuted_probs, rows_of(rows_arena, &s->rows, 0))));
    if (m->ep > 1) {
        ASSAY_TRY(exchange_rows(m, mb, s, &p));
    } else {
        s->expert_rows = s->rows;
        s->expert_in = s->permuted;
        s->expert_probs = s->permuted_probs;
    }
    return index_value(m, &mb->arena, &s->local_counts, "mlp.experts", "tokens_per_expert", m->local_experts,
                       s->counts);
}

/* --- combine ------------------------------------------------------------------------------------------------ */
assay_status gpu_token_combine_fwd(gpu_model *m, gpu_moe_acts *s, gpu_value *y, gpu_value *rows)
{
    gpu_arena *temp = &m->scratch;
    const int64_t H = m->config->hidden_size;
    s->returned = *rows;
    if (m->ep > 1) {
        ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.unsort", GPU_T("x", rows),
                           GPU_T("index", &s->unsort_index),
                           GPU_NEW("y", &s->unsorted, rows_of(temp, &s->dispatched_rows, H))));
        s->returned = rows_of(temp, &s->rows, H);
        ASSAY_TRY(all_to_all(m, "mlp.combine", &s->returned, s->send_counts, &s->unsorted, s->recv_counts));
    }
    return GPU_CALL(m->run, "combine_rows", "mlp.unpermute", GPU_T("x", &s->returned),
                    GPU_T("token_row", &s->token_row),
                    GPU_NEW("y", y, gpu_tokens(m, temp, true, gpu_dim_hidden(m))));
}

assay_status gpu_token_combine_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *drows, gpu_value *dy)
{
    gpu_value dreturned, dunsorted;
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.unpermute", GPU_T("x", dy), GPU_T("index", &s->row_token),
                       GPU_NEW("y", drows, gpu_grad_of(m, &s->returned))));
    if (m->ep == 1)
        return ASSAY_OK;
    dreturned = *drows;
    dunsorted = gpu_grad_of(m, &s->unsorted);
    ASSAY_TRY(all_to_all(m, "mlp.combine", &dunsorted, s->recv_counts, &dreturned, s->send_counts));
    return GPU_CALL(m->run, "gather_rows", "mlp.unsort", GPU_T("x", &dunsorted),
                    GPU_T("index", &s->sort_index), GPU_NEW("y", drows, gpu_grad_of(m, &s->fc2)));
}

/* gradient of rows of the local experts -> gradient of the permuted rows */
static assay_status return_rows(gpu_model *m, gpu_moe_acts *s, const char *sort_at, const char *dispatch_at,
                                gpu_value *out, const gpu_value *permuted, const gpu_value *dispatched,
                                gpu_value *drows)
{
    gpu_value ddispatched;
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", sort_at, GPU_T("x", drows), GPU_T("index", &s->unsort_index),
                       GPU_NEW("y", &ddispatched, gpu_grad_of(m, dispatched))));
    *out = gpu_grad_of(m, permuted);
    return all_to_all(m, dispatch_at, out, s->send_counts, &ddispatched, s->recv_counts);
}

assay_status gpu_token_dispatch_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *dtokens, gpu_value *dprobs,
                                    gpu_value *drows, gpu_value *dprobs_rows)
{
    gpu_value dpermuted = *drows, dpermuted_probs = *dprobs_rows;
    if (m->ep > 1) {
        ASSAY_TRY(
            return_rows(m, s, "mlp.sort", "mlp.dispatch", &dpermuted, &s->permuted, &s->dispatched, drows));
        ASSAY_TRY(return_rows(m, s, "mlp.sort_probs", "mlp.dispatch_probs", &dpermuted_probs,
                              &s->permuted_probs, &s->dispatched_probs, dprobs_rows));
    }
    *dtokens = gpu_named(m, gpu_tokens(m, &m->scratch, true, gpu_dim_hidden(m)), "mlp.permute", "dx");
    ASSAY_TRY(GPU_CALL(m->run, "combine_rows", "mlp.permute", GPU_T("x", &dpermuted),
                       GPU_T("token_row", &s->token_row), GPU_T("y", dtokens)));
    *dprobs = gpu_grad_of(m, &s->probs);
    ASSAY_TRY(gpu_value_make(dprobs, ASSAY_F32));
    gpu_value flat = gpu_value_flat(dprobs), index = gpu_value_flat(&s->token_row);
    return GPU_CALL(m->run, "gather_rows", "mlp.permute_probs", GPU_T("x", &dpermuted_probs),
                    GPU_T("index", &index), GPU_T("y", &flat));
}
