/* Token dispatch and combine. */
#include "gpu/parallel/expert.h"

#include <stdlib.h>
#include <string.h>

assay_status gpu_slot_host(gpu_model *m, gpu_slot_state *slot, size_t bytes, void **out)
{
    const size_t rounded = (bytes + 63) / 64 * 64;
    *out = NULL;
    if (!m->run->dry) {
        ASSAY_CHECK(rounded <= slot->host_capacity - slot->host_used, ASSAY_INTERNAL,
                    "host staging: asked %zu bytes, used %zu of %zu", bytes, slot->host_used,
                    slot->host_capacity);
        *out = slot->host + slot->host_used;
    }
    slot->host_used += rounded;
    return ASSAY_OK;
}

/* --- values of rows ----------------------------------------------------------------------------------------- */
/* [n] or [n, last], meaningful on this rank; I64 unless said otherwise. */
static assay_status local_value(gpu_model *m, gpu_arena *arena, gpu_value *v, const char *at,
                                const char *slot, int64_t n, int64_t last, assay_dtype dtype)
{
    memset(v, 0, sizeof *v);
    v->kind = ASSAY_PIECE_LOCAL;
    v->ndim = last > 0 ? 2 : 1;
    v->dim[0] = gpu_dim_whole(n);
    v->dim[1] = gpu_dim_whole(last);
    gpu_value_name(m->run, v, at, slot);
    return gpu_value_alloc(arena, v, dtype, -1);
}

static assay_status rows_value(gpu_model *m, gpu_arena *arena, gpu_value *v, const char *at, const char *slot,
                               const gpu_rows *rows, int64_t last, assay_dtype dtype)
{
    ASSAY_TRY(local_value(m, arena, v, at, slot, rows->n, last, dtype));
    v->kind = ASSAY_PIECE_ROWS;
    v->rows = rows;
    return ASSAY_OK;
}

/* Copies an index array from staging to the device; the staging outlives the copy. */
static assay_status upload_index(gpu_model *m, gpu_value *v, const int64_t *host)
{
    if (m->run->dry || gpu_tensor_count(v->t) == 0)
        return ASSAY_OK;
    CUDA_TRY(
        cudaMemcpyAsync(v->t.data, host, gpu_tensor_bytes(v->t), cudaMemcpyHostToDevice, m->run->ctx.stream));
    return ASSAY_OK;
}

static gpu_value flat_view(const gpu_value *v)
{
    gpu_value flat = *v;
    flat.t = gpu_tensor_1d(v->t.data, v->t.dtype, gpu_tensor_count(v->t));
    return flat;
}

/* --- all_to_all --------------------------------------------------------------------------------------------- */
static json_t *count_list(const int64_t *counts, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(counts[i]));
    return list;
}

/* Rows of `width` elements; drop: planted fault, the chunk of the last rank arrives as zeros. */
static assay_status all_to_all(gpu_model *m, const char *at, gpu_value *recv, const int64_t *recv_rows,
                               gpu_value *send, const int64_t *send_rows, bool drop)
{
    gpu_run *run = m->run;
    if (run->dry)
        return ASSAY_OK;
    const int64_t width = send->ndim > 1 ? send->dim[1].length : 1;
    int64_t *counts = calloc(2 * (size_t)m->ep, sizeof *counts);
    ASSAY_CHECK(counts, ASSAY_OUT_OF_MEMORY, "all_to_all: counts of %d ranks", m->ep);
    int64_t before_last = 0;
    for (int i = 0; i < m->ep; i++) {
        counts[i] = send_rows[i] * width;
        counts[m->ep + i] = recv_rows[i] * width;
        before_last += i + 1 < m->ep ? recv_rows[i] * width : 0;
    }
    const gpu_operand in[] = {{"send", send}}, out[] = {{"recv", recv}};
    gpu_record r;
    assay_status st = ASSAY_OK;
    json_t *attrs = NULL;
    ASSAY_TRY_GOTO(gpu_trace_begin(run, &r, "all_to_all", at, in, 1), st, done);
    ASSAY_TRY_GOTO(gpu_comm_all_to_all_v(&run->comm, ASSAY_GROUP_EP, send->t.data, counts, recv->t.data,
                                         counts + m->ep, send->t.dtype, run->ctx.stream),
                   st, done);
    if (drop && recv_rows[m->ep - 1] > 0) {
        const int64_t bytes = assay_dtype_bytes(recv->t.dtype);
        (void)cudaMemsetAsync((char *)recv->t.data + before_last * bytes, 0,
                              (size_t)(counts[2 * m->ep - 1] * bytes), run->ctx.stream);
    }
    if (run->trace)
        attrs = json_pack("{s:s, s:o, s:o}", "dtype", assay_dtype_name(send->t.dtype), "counts",
                          count_list(send_rows, m->ep), "recv_counts", count_list(recv_rows, m->ep));
    ASSAY_TRY_GOTO(gpu_trace_end_collective(run, &r, ASSAY_GROUP_EP, out, 1, attrs), st, done);
done:
    free(counts);
    return st;
}

/* --- dispatch ----------------------------------------------------------------------------------------------- */
/* Host copies of what the plan says, and the counts of every ep rank. */
typedef struct plan {
    int64_t rows;                  /* of this rank's tokens */
    int64_t *row_token, *row_slot; /* [rows] */
    int64_t *tokens_per_expert;    /* [ep][E]: row i is ep rank i's; ep = 1: one row */
    int64_t received;
} plan;

static assay_status permute_plan(gpu_model *m, gpu_slot_state *slot, gpu_layer_saved *saved, plan *p,
                                 gpu_value *row_slot)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    gpu_arena *keep = &slot->arena;
    const int64_t E = m->config->num_moe_experts, K = m->config->moe_router_topk, T = m->sl * m->B;
    p->rows = T * K;
    ASSAY_TRY(local_value(m, keep, &s->row_token, "mlp.permute_plan", "row_token", p->rows, 0, ASSAY_I64));
    ASSAY_TRY(local_value(m, &m->scratch, row_slot, "mlp.permute_plan", "row_slot", p->rows, 0, ASSAY_I64));
    ASSAY_TRY(local_value(m, keep, &s->tokens_per_expert, "mlp.permute_plan", "tokens_per_expert", E, 0,
                          ASSAY_I64));
    ASSAY_TRY(local_value(m, keep, &s->token_row, "mlp.permute_plan", "token_row", T, K, ASSAY_I64));
    ASSAY_TRY(gpu_run_permute_plan(run, "mlp.permute_plan", &s->row_token, row_slot, &s->tokens_per_expert,
                                   &s->token_row, &s->indices));
    return ASSAY_OK;
}

/* Counts of all ep ranks; then everything that the host needs arrives behind one wait. */
static assay_status fetch_plan(gpu_model *m, gpu_slot_state *slot, gpu_layer_saved *saved, plan *p,
                               gpu_value *row_slot)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    const int64_t E = m->config->num_moe_experts;
    const size_t row_bytes = (size_t)p->rows * sizeof(int64_t);
    const size_t count_bytes = (size_t)(m->ep * E) * sizeof(int64_t);
    ASSAY_TRY(gpu_slot_host(m, slot, row_bytes, (void **)&p->row_token));
    ASSAY_TRY(gpu_slot_host(m, slot, row_bytes, (void **)&p->row_slot));
    ASSAY_TRY(gpu_slot_host(m, slot, count_bytes, (void **)&p->tokens_per_expert));
    gpu_value gathered = s->tokens_per_expert;
    if (m->ep > 1) {
        ASSAY_TRY(local_value(m, &m->scratch, &gathered, "mlp.dispatch_counts", "recv", m->ep, E, ASSAY_I64));
        if (!run->dry) {
            const gpu_operand in[] = {{"send", &s->tokens_per_expert}}, out[] = {{"recv", &gathered}};
            const gpu_comm_call call = {.op = GPU_COMM_ALL_GATHER,
                                        .group = ASSAY_GROUP_EP,
                                        .send = s->tokens_per_expert.t.data,
                                        .recv = gathered.t.data,
                                        .count = E,
                                        .dtype = ASSAY_I64};
            gpu_record r;
            ASSAY_TRY(gpu_trace_begin(run, &r, "all_gather", "mlp.dispatch_counts", in, 1));
            ASSAY_TRY(gpu_comm_enqueue(&run->comm, &call, run->ctx.stream));
            ASSAY_TRY(gpu_trace_end_collective(run, &r, ASSAY_GROUP_EP, out, 1,
                                               GPU_ATTRS(run, "{s:s}", "dtype", "I64")));
        }
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
static assay_status exchange_counts(gpu_model *m, gpu_layer *l, gpu_layer_saved *saved, plan *p)
{
    gpu_moe_saved *s = &saved->moe;
    const int64_t E = m->config->num_moe_experts, K = m->config->moe_router_topk, El = m->local_experts;
    if (m->run->dry) {
        const int64_t longest = (m->S + m->tp - 1) / m->tp * m->B;
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
    for (int64_t e = 0; e < E; e++)
        l->tokens_per_expert[e] += mine[e];
    return ASSAY_OK;
}

/* Names of this rank's rows: token in the microbatch file-wide, times E, plus expert. */
static assay_status name_rows(gpu_model *m, gpu_slot_state *slot, gpu_layer_saved *saved, const plan *p)
{
    gpu_rows *rows = &saved->moe.rows;
    const int64_t E = m->config->num_moe_experts;
    *rows = (gpu_rows){.n = p->rows, .record = -1};
    if (m->run->trace == NULL)
        return ASSAY_OK;
    ASSAY_TRY(gpu_slot_host(m, slot, (size_t)p->rows * sizeof(int64_t), (void **)&rows->ids));
    if (m->run->dry)
        return ASSAY_OK;
    const int64_t *mine =
        p->tokens_per_expert + (m->ep > 1 ? m->run->comm.group[ASSAY_GROUP_EP].rank * E : 0);
    int64_t row = 0;
    for (int64_t e = 0; e < E; e++)
        for (int64_t i = 0; i < mine[e]; i++, row++) {
            const int64_t t = p->row_token[row];
            const int64_t s = assay_sequence_position(&m->sequence.shard, t / m->B);
            const int64_t token = s * m->B_global + m->row0 + t % m->B;
            rows->ids[row] = token * E + e;
        }
    return gpu_trace_rows(m->run, rows, "mlp.permute");
}

/* The same for the rows that arrive, and after sorting.  Rows of another microbatch are nobody's (-1). */
static assay_status name_received(gpu_model *m, gpu_slot_state *slot, gpu_layer_saved *saved, const plan *p,
                                  const int64_t *sort)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    s->dispatched_rows = s->expert_rows = (gpu_rows){.n = p->received, .record = -1};
    if (run->trace == NULL)
        return ASSAY_OK;
    const size_t mark = m->scratch.used, bytes = (size_t)p->received * sizeof(int64_t);
    gpu_value send, recv;
    ASSAY_TRY(local_value(m, &m->scratch, &send, "mlp.dispatch", "ids", p->rows, 0, ASSAY_I64));
    ASSAY_TRY(local_value(m, &m->scratch, &recv, "mlp.dispatch", "ids", p->received, 0, ASSAY_I64));
    ASSAY_TRY(gpu_slot_host(m, slot, bytes, (void **)&s->dispatched_rows.ids));
    ASSAY_TRY(gpu_slot_host(m, slot, bytes, (void **)&s->expert_rows.ids));
    gpu_arena_reset(&m->scratch, mark);
    if (run->dry)
        return ASSAY_OK;
    ASSAY_TRY(upload_index(m, &send, s->rows.ids));
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
static void sort_chunks(const gpu_model *m, const plan *p, int64_t *sort, int64_t *unsort)
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
static assay_status exchange_rows(gpu_model *m, gpu_slot_state *slot, gpu_layer_saved *saved, const plan *p)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    gpu_arena *keep = &slot->arena, *temp = &m->scratch;
    const int64_t H = m->config->hidden_size;
    const size_t bytes = (size_t)p->received * sizeof(int64_t);
    int64_t *sort, *unsort;
    ASSAY_TRY(gpu_slot_host(m, slot, bytes, (void **)&sort));
    ASSAY_TRY(gpu_slot_host(m, slot, bytes, (void **)&unsort));
    if (!run->dry)
        sort_chunks(m, p, sort, unsort);
    ASSAY_TRY(name_received(m, slot, saved, p, sort));
    ASSAY_TRY(local_value(m, keep, &s->sort_index, "mlp.sort", "index", p->received, 0, ASSAY_I64));
    ASSAY_TRY(local_value(m, keep, &s->unsort_index, "mlp.unsort", "index", p->received, 0, ASSAY_I64));
    ASSAY_TRY(upload_index(m, &s->sort_index, sort));
    ASSAY_TRY(upload_index(m, &s->unsort_index, unsort));
    ASSAY_TRY(rows_value(m, temp, &s->dispatched, "mlp.dispatch", "recv", &s->dispatched_rows, H, m->act));
    ASSAY_TRY(rows_value(m, temp, &s->dispatched_probs, "mlp.dispatch_probs", "recv", &s->dispatched_rows, 0,
                         ASSAY_F32));
    ASSAY_TRY(rows_value(m, keep, &s->expert_in, "mlp.sort", "y", &s->expert_rows, H, m->act));
    ASSAY_TRY(rows_value(m, keep, &s->expert_probs, "mlp.sort_probs", "y", &s->expert_rows, 0, ASSAY_F32));
    ASSAY_TRY(all_to_all(m, "mlp.dispatch", &s->dispatched, s->recv_counts, &s->permuted, s->send_counts,
                         m->fault == GPU_FAULT_MISSING_EP_CHUNK));
    ASSAY_TRY(all_to_all(m, "mlp.dispatch_probs", &s->dispatched_probs, s->recv_counts, &s->permuted_probs,
                         s->send_counts, false));
    ASSAY_TRY(gpu_run_gather_rows(run, "mlp.sort", &s->expert_in, &s->dispatched, &s->sort_index));
    return gpu_run_gather_rows(run, "mlp.sort_probs", &s->expert_probs, &s->dispatched_probs, &s->sort_index);
}

assay_status gpu_token_dispatch(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved)
{
    gpu_run *run = m->run;
    gpu_moe_saved *s = &saved->moe;
    gpu_arena *rows_arena = m->ep > 1 ? &m->scratch : &slot->arena;
    const int64_t H = m->config->hidden_size, K = m->config->moe_router_topk;
    plan p = {0};
    gpu_value row_slot, index;
    int64_t *host_index;
    ASSAY_TRY(permute_plan(m, slot, saved, &p, &row_slot));
    ASSAY_TRY(fetch_plan(m, slot, saved, &p, &row_slot));
    ASSAY_TRY(exchange_counts(m, l, saved, &p));
    ASSAY_TRY(name_rows(m, slot, saved, &p));
    ASSAY_TRY(gpu_slot_host(m, slot, (size_t)p.rows * sizeof(int64_t), (void **)&host_index));
    for (int64_t i = 0; !run->dry && i < p.rows; i++)
        host_index[i] = p.row_token[i] * K + p.row_slot[i];
    ASSAY_TRY(local_value(m, &m->scratch, &index, "mlp.permute_probs", "index", p.rows, 0, ASSAY_I64));
    ASSAY_TRY(upload_index(m, &index, host_index));
    ASSAY_TRY(rows_value(m, rows_arena, &s->permuted, "mlp.permute", "y", &s->rows, H, m->act));
    ASSAY_TRY(
        rows_value(m, rows_arena, &s->permuted_probs, "mlp.permute_probs", "y", &s->rows, 0, ASSAY_F32));
    ASSAY_TRY(gpu_run_gather_rows(run, "mlp.permute", &s->permuted, &s->tokens, &s->row_token));
    gpu_value probs = flat_view(&s->probs);
    ASSAY_TRY(gpu_run_gather_rows(run, "mlp.permute_probs", &s->permuted_probs, &probs, &index));
    if (m->ep > 1) {
        ASSAY_TRY(exchange_rows(m, slot, saved, &p));
    } else {
        s->expert_rows = s->rows;
        s->expert_in = s->permuted;
        s->expert_probs = s->permuted_probs;
    }
    ASSAY_TRY(local_value(m, &slot->arena, &s->local_counts, "mlp.experts", "tokens_per_expert",
                          m->local_experts, 0, ASSAY_I64));
    return upload_index(m, &s->local_counts, s->counts);
}

/* --- combine ------------------------------------------------------------------------------------------------ */
assay_status gpu_token_combine(gpu_model *m, gpu_layer_saved *saved, gpu_value *rows, gpu_value *y)
{
    gpu_moe_saved *s = &saved->moe;
    gpu_arena *temp = &m->scratch;
    const int64_t H = m->config->hidden_size;
    s->returned = *rows;
    if (m->ep > 1) {
        ASSAY_TRY(rows_value(m, temp, &s->unsorted, "mlp.unsort", "y", &s->dispatched_rows, H, m->act));
        ASSAY_TRY(gpu_run_gather_rows(m->run, "mlp.unsort", &s->unsorted, rows, &s->unsort_index));
        ASSAY_TRY(rows_value(m, temp, &s->returned, "mlp.combine", "recv", &s->rows, H, m->act));
        ASSAY_TRY(
            all_to_all(m, "mlp.combine", &s->returned, s->send_counts, &s->unsorted, s->recv_counts, false));
    }
    return gpu_run_combine_rows(m->run, "mlp.unpermute", y, &s->returned, &s->token_row);
}

assay_status gpu_token_combine_backward(gpu_model *m, gpu_layer_saved *saved, gpu_value *dy, gpu_value *drows)
{
    gpu_moe_saved *s = &saved->moe;
    gpu_arena *temp = &m->scratch;
    ASSAY_TRY(gpu_grad_value(m, temp, drows, &s->returned, m->act));
    ASSAY_TRY(gpu_run_gather_rows(m->run, "mlp.unpermute", drows, dy, &s->row_token));
    if (m->ep == 1)
        return ASSAY_OK;
    gpu_value dreturned = *drows, dunsorted;
    ASSAY_TRY(gpu_grad_value(m, temp, &dunsorted, &s->unsorted, m->act));
    ASSAY_TRY(all_to_all(m, "mlp.combine", &dunsorted, s->recv_counts, &dreturned, s->send_counts, false));
    ASSAY_TRY(gpu_grad_value(m, temp, drows, &s->fc2, m->act));
    return gpu_run_gather_rows(m->run, "mlp.unsort", drows, &dunsorted, &s->sort_index);
}

/* gradient of rows of the local experts -> gradient of the permuted rows */
static assay_status return_rows(gpu_model *m, gpu_layer_saved *saved, const char *sort_at,
                                const char *dispatch_at, gpu_value *out, const gpu_value *permuted,
                                const gpu_value *dispatched, gpu_value *drows)
{
    gpu_moe_saved *s = &saved->moe;
    gpu_value ddispatched;
    ASSAY_TRY(gpu_grad_value(m, &m->scratch, &ddispatched, dispatched, drows->t.dtype));
    ASSAY_TRY(gpu_run_gather_rows(m->run, sort_at, &ddispatched, drows, &s->unsort_index));
    ASSAY_TRY(gpu_grad_value(m, &m->scratch, out, permuted, drows->t.dtype));
    return all_to_all(m, dispatch_at, out, s->send_counts, &ddispatched, s->recv_counts, false);
}

assay_status gpu_token_dispatch_backward(gpu_model *m, gpu_layer_saved *saved, gpu_value *drows,
                                         gpu_value *dprobs_rows, gpu_value *dtokens, gpu_value *dprobs)
{
    gpu_moe_saved *s = &saved->moe;
    gpu_value dpermuted = *drows, dpermuted_probs = *dprobs_rows;
    if (m->ep > 1) {
        ASSAY_TRY(return_rows(m, saved, "mlp.sort", "mlp.dispatch", &dpermuted, &s->permuted, &s->dispatched,
                              drows));
        ASSAY_TRY(return_rows(m, saved, "mlp.sort_probs", "mlp.dispatch_probs", &dpermuted_probs,
                              &s->permuted_probs, &s->dispatched_probs, dprobs_rows));
    }
    ASSAY_TRY(gpu_token_value(m, &m->scratch, dtokens, "mlp.permute", "dx", true,
                              gpu_dim_whole(m->config->hidden_size), m->act));
    ASSAY_TRY(gpu_run_combine_rows(m->run, "mlp.permute", dtokens, &dpermuted, &s->token_row));
    ASSAY_TRY(gpu_grad_value(m, &m->scratch, dprobs, &s->probs, ASSAY_F32));
    gpu_value flat = flat_view(dprobs), index = flat_view(&s->token_row);
    return gpu_run_gather_rows(m->run, "mlp.permute_probs", &flat, &dpermuted_probs, &index);
}
