/* Counts, orders and names of exchanged token rows. */
#include "gpu/parallel/exchange.h"

#include "gpu/describe.h"
#include <math.h>
#include <string.h>

bool gpu_exchanges_rows(const gpu_model *m)
{
    return m->ep > 1 || m->etp > 1;
}

bool gpu_gathers_tokens(const gpu_model *m)
{
    return m->options->moe_token_dispatcher_type == ASSAY_DISPATCHER_ALLGATHER && gpu_exchanges_rows(m);
}

bool gpu_has_exact_rows(const gpu_model *m)
{
    return m->run->trace || m->run->rules || m->run->counted;
}

bool gpu_knows_rows(const gpu_model *m)
{
    const bool sends_what_is_left =
        m->etp > 1 && m->options->moe_expert_capacity_factor > 0.0 && !gpu_gathers_tokens(m);
    return m->ep > 1 || sends_what_is_left || gpu_has_exact_rows(m) ||
           gpu_ctx_variant(&m->run->ctx, "linear") == 1; /* cuBLASLt: gpu/ops/grouped.cu */
}

int64_t gpu_expert_capacity(const gpu_model *m, int64_t n)
{
    const double share = (double)(n * m->config->moe_router_topk) / (double)m->config->num_moe_experts;
    const int64_t capacity = (int64_t)ceil(share * m->options->moe_expert_capacity_factor);
    return capacity < n ? capacity : n;
}

int64_t gpu_most_rows_to(const gpu_model *m, int64_t n, int64_t experts)
{
    const bool own =
        m->options->semantics == ASSAY_SEMANTICS_MEGATRON; /* capacities of a rank's own tokens */
    const int64_t k = m->config->moe_router_topk, all = n * (k < experts ? k : experts);
    if (!(m->options->moe_expert_capacity_factor > 0.0))
        return all;
    const int64_t capacity = gpu_expert_capacity(m, own ? n : m->S * m->B_global);
    const int64_t most = experts * (capacity < n ? capacity : n);
    return most < all ? most : all;
}

int64_t gpu_most_rows(const gpu_model *m, int64_t n)
{
    return gpu_most_rows_to(m, n, m->config->num_moe_experts);
}

assay_group gpu_exchange_group(const gpu_model *m)
{
    return m->etp > 1 ? ASSAY_GROUP_ETP_EP : ASSAY_GROUP_EP;
}

const int64_t *gpu_exchange_counts_of(const gpu_model *m, const gpu_exchange *x, int t, int i)
{
    return x->tokens_per_expert + (t + m->etp * i) * m->config->num_moe_experts;
}

/* The counts of member (t, i) for x's experts of ep rank `to`. */
static const int64_t *counts_to(const gpu_model *m, const gpu_exchange *x, int t, int i, int to)
{
    return gpu_exchange_counts_of(m, x, t, i) + to * m->local_experts + x->first;
}

/* Rows that member (t, i) sends to x's experts of this rank. */
static int64_t rows_from(const gpu_model *m, const gpu_exchange *x, int t, int i)
{
    const int64_t *theirs = counts_to(m, x, t, i, m->at.ep);
    int64_t rows = 0;
    for (int64_t e = 0; e < x->experts; e++)
        rows += theirs[e];
    return rows;
}

/* Without ep a rank's tokens say how many rows it has, or what a capacity leaves of them at most. */
static assay_status count_unknown(const gpu_model *m, gpu_moe_acts *s, gpu_exchange *x)
{
    const assay_group_shape g = assay_grid_group_shape(m->grid, gpu_exchange_group(m), m->run->comm.rank);
    x->gathered = 0;
    for (int t = 0; t < m->etp; t++) {
        assay_sequence_map map;
        ASSAY_TRY(assay_sequence_map_make(m->grid, assay_group_member(&g, t), m->S, &map));
        s->etp_counts[t] = gpu_most_rows(m, map.shard.length * m->B);
        x->gathered += s->etp_counts[t];
    }
    x->received = s->etp_counts[m->at.etp];
    return ASSAY_OK;
}

/* Rows that a rank's memory has room for.  A router may send every token of every rank to one rank's experts; an even share is as many rows
 * as a rank's own tokens have. */
static int64_t planned_rows(const gpu_model *m)
{
    const int64_t chunk = (m->S + 2 * m->cp - 1) / (2 * m->cp); /* the longest of the sequence's */
    const int64_t longest = (2 * chunk + m->tp - 1) / m->tp * m->B;
    if (m->ep == 1)
        return gpu_most_rows(m, longest);
    const int64_t worst = m->ep * gpu_most_rows_to(m, longest, m->local_experts);
    const double some =
        ceil(m->options->moe_expert_rank_capacity_factor * (double)(longest * m->config->moe_router_topk));
    return some > 0.0 && some < (double)worst ? (int64_t)some : worst;
}

/* Every rank of the exchange knows all counts: they end together. */
static assay_status check_planned(const gpu_model *m, const gpu_exchange *x)
{
    const double factor = m->options->moe_expert_rank_capacity_factor;
    const int64_t planned = planned_rows(m);
    int64_t most = 0;
    int to = 0;
    for (int k = 0; k < m->ep * m->etp && factor > 0.0; k++) {
        int64_t rows = 0;
        for (int i = 0; i < m->ep; i++)
            for (int64_t e = 0; e < m->local_experts; e++)
                rows += gpu_exchange_counts_of(m, x, k % m->etp, i)[k / m->etp * m->local_experts + e];
        to = rows > most ? k / m->etp : to;
        most = rows > most ? rows : most;
    }
    ASSAY_CHECK(most <= planned, ASSAY_LIMIT,
                "ep rank %d receives %lld rows of experts; moe_expert_rank_capacity_factor %g has memory for "
                "%lld: expected %.4g or more",
                to, (long long)most, factor, (long long)planned,
                ceil(1e3 * factor * (double)most / (double)planned) / 1e3);
    return ASSAY_OK;
}

assay_status gpu_exchange_count(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, gpu_exchange *x)
{
    const int64_t El = x->experts;
    const size_t word = sizeof(int64_t);
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)El * word, (void **)&s->counts));
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)m->ep * word, (void **)&s->send_counts));
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)m->ep * word, (void **)&s->recv_counts));
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)m->etp * word, (void **)&s->etp_counts));
    if (m->run->dry) {
        x->received = planned_rows(m);
        x->gathered = x->received * m->etp;
        return ASSAY_OK;
    }
    if (!x->known)
        return count_unknown(m, s, x);
    ASSAY_TRY(check_planned(m, x));
    memset(s->counts, 0, (size_t)El * word);
    x->gathered = 0;
    for (int t = 0; t < m->etp; t++) {
        s->etp_counts[t] = 0;
        for (int i = 0; i < m->ep; i++) {
            const int64_t *theirs = counts_to(m, x, t, i, m->at.ep);
            s->etp_counts[t] += rows_from(m, x, t, i);
            for (int64_t e = 0; e < El; e++)
                s->counts[e] += theirs[e];
        }
        x->gathered += s->etp_counts[t];
    }
    x->received = s->etp_counts[m->at.etp];
    for (int i = 0; i < m->ep; i++) {
        const int64_t *mine = counts_to(m, x, m->at.etp, m->at.ep, i);
        s->recv_counts[i] = rows_from(m, x, m->at.etp, i);
        s->send_counts[i] = 0;
        for (int64_t e = 0; e < El; e++)
            s->send_counts[i] += mine[e];
    }
    return ASSAY_OK;
}

void gpu_exchange_sort(const gpu_model *m, const gpu_exchange *x, int64_t *sort, int64_t *unsort)
{
    int64_t row = 0, end = 0;
    for (int64_t e = 0; e < x->experts; e++) {
        int64_t source_start = 0;
        end += x->room[e];
        for (int k = 0; k < m->etp * m->ep; k++) {
            const int64_t *theirs = counts_to(m, x, k / m->ep, k % m->ep, m->at.ep);
            int64_t start = source_start;
            for (int64_t before = 0; before < x->experts; before++) {
                start += before < e ? theirs[before] : 0;
                source_start += theirs[before];
            }
            for (int64_t i = 0; i < theirs[e]; i++, row++) {
                sort[row] = start + i;
                unsort[start + i] = row;
            }
        }
        while (row < end)
            sort[row++] = -1;
    }
}

assay_status gpu_index_value(gpu_model *m, gpu_arena *arena, gpu_value *v, const char *at, const char *slot,
                             int64_t n, const int64_t *host)
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

/* --- names -------------------------------------------------------------------------------------------------- */
/* Token in the microbatch file-wide, times E, plus expert. */
assay_status gpu_exchange_name_rows(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                    const gpu_exchange *x)
{
    gpu_rows *rows = &s->rows;
    const int64_t E = m->config->num_moe_experts;
    *rows = (gpu_rows){.n = x->rows, .record = -1};
    if (m->run->trace == NULL)
        return ASSAY_OK;
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)x->rows * sizeof(int64_t), (void **)&rows->ids));
    if (m->run->dry)
        return ASSAY_OK;
    const int64_t *mine = gpu_exchange_counts_of(m, x, m->at.etp, m->at.ep);
    int64_t row = 0;
    for (int64_t e = 0; e < E; e++)
        for (int64_t i = 0; i < mine[e]; i++, row++) {
            const int64_t t = x->row_token[row];
            const int64_t position = assay_sequence_position(&m->sequence.shard, t / m->B);
            const int64_t token = position * m->B_global + m->row0 + t % m->B;
            rows->ids[row] = token * E + e;
        }
    return gpu_trace_rows(m->run, rows, "mlp.permute");
}

/* Room for ids on the device and, of what arrives, on the host. */
static assay_status ids_value(gpu_model *m, gpu_value *v, int64_t n)
{
    *v = gpu_local(&m->scratch, n, 0);
    return gpu_value_make(v, ASSAY_I64);
}

static assay_status host_ids(gpu_microbatch_state *mb, gpu_rows *rows, int64_t n)
{
    *rows = (gpu_rows){.n = n, .record = -1};
    return gpu_arena_take(&mb->host, (size_t)n * sizeof(int64_t), (void **)&rows->ids);
}

/* The rows that member (t, i) sent are nobody's (-1) when they are of another microbatch. */
static void hide_foreign(const gpu_model *m, int t, int i, int64_t *ids, int64_t n)
{
    assay_coords source;
    assay_grid_coords(m->grid, m->run->comm.group[gpu_exchange_group(m)].ranks[t + m->etp * i], &source);
    for (int64_t k = 0; k < n && source.dp != m->at.dp && !m->rows_split; k++)
        ids[k] = -1;
}

/* The names travel as the rows do. */
static assay_status fetch_ids(gpu_model *m, gpu_moe_acts *s, const gpu_exchange *x, gpu_value *sent,
                              gpu_value *received, gpu_value *gathered)
{
    gpu_run *run = m->run;
    const cudaStream_t stream = run->ctx.stream;
    const size_t word = sizeof(int64_t);
    if (x->rows > 0)
        CUDA_TRY(cudaMemcpyAsync(sent->t.data, s->rows.ids, (size_t)x->rows * word, cudaMemcpyHostToDevice,
                                 stream));
    gpu_value *arrived = m->ep > 1 ? received : sent;
    if (m->ep > 1)
        ASSAY_TRY(gpu_comm_all_to_all_v(&run->comm, ASSAY_GROUP_EP, sent->t.data, s->send_counts,
                                        received->t.data, s->recv_counts, ASSAY_I64, stream));
    if (m->etp > 1)
        ASSAY_TRY(gpu_comm_all_gather_v(&run->comm, ASSAY_GROUP_ETP, arrived->t.data, gathered->t.data,
                                        s->etp_counts, ASSAY_I64, stream));
    ASSAY_TRY(gpu_run_download(run, s->dispatched_rows.ids, arrived->t.data, (size_t)x->received * word,
                               "row ids"));
    return gpu_run_download(run, s->gathered_rows.ids, m->etp > 1 ? gathered->t.data : arrived->t.data,
                            (size_t)x->gathered * word, "row ids");
}

assay_status gpu_exchange_name_received(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                        const gpu_exchange *x, const int64_t *sort)
{
    gpu_run *run = m->run;
    s->dispatched_rows = s->gathered_rows = s->expert_rows = (gpu_rows){.n = x->gathered, .record = -1};
    s->dispatched_rows.n = x->received;
    s->expert_rows.n = x->padded;
    if (run->trace == NULL)
        return ASSAY_OK;
    const size_t mark = m->scratch.used;
    gpu_value sent, received, gathered;
    ASSAY_TRY(ids_value(m, &sent, x->rows));
    ASSAY_TRY(ids_value(m, &received, x->received));
    ASSAY_TRY(ids_value(m, &gathered, x->gathered));
    ASSAY_TRY(host_ids(mb, &s->dispatched_rows, x->received));
    ASSAY_TRY(host_ids(mb, &s->gathered_rows, x->gathered));
    ASSAY_TRY(host_ids(mb, &s->expert_rows, x->padded));
    gpu_arena_reset(&m->scratch, mark);
    if (run->dry)
        return ASSAY_OK;
    ASSAY_TRY(fetch_ids(m, s, x, &sent, &received, &gathered));
    int64_t at = 0, here = 0;
    for (int k = 0; k < m->etp * m->ep; k++) {
        const int t = k / m->ep, i = k % m->ep;
        const int64_t n = rows_from(m, x, t, i);
        hide_foreign(m, t, i, s->gathered_rows.ids + at, n);
        if (t == m->at.etp) {
            hide_foreign(m, t, i, s->dispatched_rows.ids + here, n);
            here += n;
        }
        at += n;
    }
    for (int64_t i = 0; i < x->padded; i++)
        s->expert_rows.ids[i] = sort[i] < 0 ? -1 : s->gathered_rows.ids[sort[i]];
    if (m->ep > 1)
        ASSAY_TRY(gpu_trace_rows(run, &s->dispatched_rows, "mlp.dispatch"));
    else
        s->dispatched_rows = s->rows;
    if (m->etp > 1)
        ASSAY_TRY(gpu_trace_rows(run, &s->gathered_rows, "mlp.experts.gather"));
    else
        s->gathered_rows = s->dispatched_rows;
    return gpu_trace_rows(run, &s->expert_rows, "mlp.sort");
}
