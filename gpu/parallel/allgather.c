/* The all-gather dispatcher of an MoE layer. */
#include "gpu/parallel/allgather.h"

#include "gpu/call.h"
#include "gpu/describe.h"
#include "gpu/parallel/padding.h"

/* tokens of this rank -> those of all */
static assay_status gather(gpu_model *m, const char *at, const gpu_moe_acts *s, gpu_value *whole,
                           gpu_value *mine)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "all_gather",
                                             .at = at,
                                             .group = gpu_exchange_group(m),
                                             .counts = s->token_counts,
                                             .arg = {GPU_T("send", mine), GPU_T("recv", whole)}});
}

/* parts of all tokens -> the sums of this rank's */
static assay_status reduce(gpu_model *m, const char *at, const gpu_moe_acts *s, gpu_value *mine,
                           gpu_value *part)
{
    return gpu_call(m->run, &(gpu_call_args){.op = "reduce_scatter",
                                             .at = at,
                                             .group = gpu_exchange_group(m),
                                             .counts = s->token_counts,
                                             .arg = {GPU_T("send", part), GPU_W("reduction", "sum"),
                                                     GPU_T("recv", mine)}});
}

/* Tokens of every rank of the group.  Dry mode: the most there can be. */
static assay_status count_tokens(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s)
{
    const int members = m->ep * m->etp;
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)members * sizeof(int64_t), (void **)&s->token_counts));
    if (m->run->dry) {
        const int64_t chunk = (m->S + 2 * m->cp - 1) / (2 * m->cp);
        s->all_tokens = (2 * chunk + m->tp - 1) / m->tp * m->B * members;
        return ASSAY_OK;
    }
    s->all_tokens = 0;
    for (int i = 0; i < members; i++) {
        assay_sequence_map map;
        ASSAY_TRY(
            assay_sequence_map_make(m->grid, m->run->comm.group[gpu_exchange_group(m)].ranks[i], m->S, &map));
        s->token_counts[i] = map.shard.length * m->B;
        s->all_tokens += s->token_counts[i];
    }
    return ASSAY_OK;
}

/* Names of the rows: of which token of which rank, at which expert; nobody's (-1) when it is of another microbatch. */
static assay_status name_rows(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, const int64_t *token)
{
    gpu_rows *rows = &s->gathered_rows;
    const int64_t E = m->config->num_moe_experts;
    int64_t row = 0;
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)rows->n * sizeof(int64_t), (void **)&rows->ids));
    for (int64_t e = 0; e < m->local_experts && !m->run->dry; e++)
        for (int64_t i = 0; i < s->counts[e]; i++, row++) {
            assay_sequence_map map;
            assay_coords at;
            int64_t t = token[row];
            int member = 0;
            while (t >= s->token_counts[member])
                t -= s->token_counts[member++];
            const int rank = m->run->comm.group[gpu_exchange_group(m)].ranks[member];
            assay_grid_coords(m->grid, rank, &at);
            ASSAY_TRY(assay_sequence_map_make(m->grid, rank, m->S, &map));
            const int64_t first = m->rows_split ? at.dp * m->B : 0;
            const int64_t place =
                assay_sequence_position(&map.shard, t / m->B) * m->B_global + first + t % m->B;
            const bool foreign = at.dp != m->at.dp && !m->rows_split;
            rows->ids[row] = foreign ? -1 : place * E + m->at.ep * m->local_experts + e;
        }
    return m->run->dry ? ASSAY_OK : gpu_trace_rows(m->run, rows, "mlp.permute");
}

/* Behind the rows of an expert those of zeros, which have no name. */
static assay_status pad_names(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, const gpu_exchange *x)
{
    s->expert_rows = (gpu_rows){.n = x->padded, .record = -1};
    if (m->run->trace == NULL)
        return ASSAY_OK;
    ASSAY_TRY(gpu_arena_take(&mb->host, (size_t)x->padded * sizeof(int64_t), (void **)&s->expert_rows.ids));
    if (m->run->dry)
        return ASSAY_OK;
    for (int64_t i = 0; i < x->padded; i++)
        s->expert_rows.ids[i] = s->sort_index.host[i] < 0 ? -1 : s->gathered_rows.ids[s->sort_index.host[i]];
    return gpu_trace_rows(m->run, &s->expert_rows, "mlp.sort");
}

static gpu_value rows_of(gpu_arena *arena, const gpu_rows *rows, int64_t last)
{
    gpu_value v = gpu_local(arena, rows->n, last);
    v.kind = ASSAY_PIECE_ROWS;
    v.rows = rows;
    return v;
}

/* The rows of the local experts among all tokens: row_token, token_row, and probs' entries. */
static assay_status plan_rows(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, const gpu_exchange *x,
                              gpu_value *all_indices, gpu_value *row_entry)
{
    gpu_run *run = m->run;
    gpu_arena *keep = &mb->arena, *temp = &m->scratch;
    const int64_t E = m->config->num_moe_experts, K = m->config->moe_router_topk, R = x->gathered;
    const size_t bytes = (size_t)R * sizeof(int64_t);
    gpu_value counts;
    int64_t *token;
    ASSAY_TRY(GPU_CALL(
        run, "permute_plan", "mlp.dispatch_plan", GPU_T("indices", all_indices), GPU_I("experts", E),
        GPU_I("rows", R), GPU_I("first_expert", m->at.ep * m->local_experts),
        GPU_I("local_experts", m->local_experts), GPU_NEW("row_token", &s->row_token, gpu_local(keep, R, 0)),
        GPU_NEW("row_entry", row_entry, gpu_local(temp, R, 0)),
        GPU_NEW("tokens_per_expert", &counts, gpu_local(temp, E, 0)),
        GPU_NEW("token_row", &s->token_row, gpu_local(keep, s->all_tokens, K))));
    if (run->trace == NULL)
        return ASSAY_OK;
    ASSAY_TRY(gpu_arena_take(&mb->host, bytes, (void **)&token));
    if (!run->dry)
        ASSAY_TRY(gpu_run_download(run, token, s->row_token.t.data, bytes, "rows of experts"));
    return name_rows(m, mb, s, token);
}

assay_status gpu_gather_dispatch_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                     const gpu_exchange *x)
{
    gpu_run *run = m->run;
    gpu_arena *keep = &mb->arena, *temp = &m->scratch;
    gpu_arena *rows_arena = gpu_pads_rows(m) ? temp : keep;
    const int64_t H = m->config->hidden_size, K = m->config->moe_router_topk, R = x->gathered;
    gpu_value all_indices, row_entry;
    s->gathered_rows = (gpu_rows){.n = R, .record = -1};
    ASSAY_TRY(count_tokens(m, mb, s));
    s->dispatched = gpu_local(temp, s->all_tokens, H);
    all_indices = gpu_local(temp, s->all_tokens, K);
    s->dispatched_probs = gpu_local(temp, s->all_tokens, K);
    ASSAY_TRY(gather(m, "mlp.dispatch", s, &s->dispatched, &s->tokens));
    ASSAY_TRY(gather(m, "mlp.dispatch_indices", s, &all_indices, &s->routed));
    ASSAY_TRY(gather(m, "mlp.dispatch_probs", s, &s->dispatched_probs, &s->probs));
    ASSAY_TRY(plan_rows(m, mb, s, x, &all_indices, &row_entry));
    ASSAY_TRY(GPU_CALL(run, "gather_rows", "mlp.permute", GPU_T("x", &s->dispatched),
                       GPU_T("index", &s->row_token),
                       GPU_NEW("y", &s->permuted, rows_of(rows_arena, &s->gathered_rows, H))));
    gpu_value probs = gpu_value_flat(&s->dispatched_probs);
    ASSAY_TRY(GPU_CALL(run, "gather_rows", "mlp.permute_probs", GPU_T("x", &probs),
                       GPU_T("index", &row_entry),
                       GPU_NEW("y", &s->permuted_probs, rows_of(rows_arena, &s->gathered_rows, 0))));
    s->expert_rows = s->gathered_rows;
    s->expert_in = s->permuted;
    s->expert_probs = s->permuted_probs;
    if (!gpu_pads_rows(m))
        return ASSAY_OK;
    if (m->ep > 1)
        ASSAY_TRY(gpu_pad_sort(m, mb, s, x));
    ASSAY_TRY(pad_names(m, mb, s, x));
    return gpu_sort_rows(m, mb, s, &s->permuted, &s->permuted_probs);
}

assay_status gpu_gather_combine_fwd(gpu_model *m, gpu_moe_acts *s, gpu_value *y, gpu_value *rows)
{
    gpu_arena *temp = &m->scratch;
    s->returned = *rows;
    if (gpu_pads_rows(m)) {
        s->returned = rows_of(temp, &s->gathered_rows, m->config->hidden_size);
        if (m->etp > 1)
            s->returned.kind = ASSAY_PIECE_LOCAL; /* parts of sums over etp */
        ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.unsort", GPU_T("x", rows),
                           GPU_T("index", &s->unsort_index), GPU_T("y", &s->returned)));
    }
    ASSAY_TRY(GPU_CALL(m->run, "combine_rows", "mlp.unpermute", GPU_T("x", &s->returned),
                       GPU_T("token_row", &s->token_row),
                       GPU_NEW("y", &s->unsorted, gpu_local(temp, s->all_tokens, m->config->hidden_size))));
    *y = gpu_tokens(m, temp, true, gpu_dim_hidden(m));
    return reduce(m, "mlp.combine", s, y, &s->unsorted);
}

assay_status gpu_gather_combine_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *drows, gpu_value *dy)
{
    gpu_value dall = gpu_grad_of(m, &s->unsorted);
    ASSAY_TRY(gather(m, "mlp.combine", s, &dall, dy));
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.unpermute", GPU_T("x", &dall),
                       GPU_T("index", &s->row_token), GPU_NEW("y", drows, gpu_grad_of(m, &s->returned))));
    if (!gpu_pads_rows(m))
        return ASSAY_OK;
    gpu_value dreturned = *drows;
    return GPU_CALL(m->run, "gather_rows", "mlp.unsort", GPU_T("x", &dreturned),
                    GPU_T("index", &s->sort_index), GPU_NEW("y", drows, gpu_grad_of(m, &s->fc2)));
}

/* Gradient of the sorted rows -> of the permuted ones; every slice of an expert gives a part. */
static assay_status unsort_grad(gpu_model *m, const char *at, gpu_moe_acts *s, gpu_value *out,
                                const gpu_value *permuted, gpu_value *drows)
{
    *out = gpu_grad_of(m, permuted);
    if (m->etp > 1)
        out->kind = ASSAY_PIECE_LOCAL;
    return GPU_CALL(m->run, "gather_rows", at, GPU_T("x", drows), GPU_T("index", &s->unsort_index),
                    GPU_T("y", out));
}

assay_status gpu_gather_dispatch_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *dtokens, gpu_value *dprobs,
                                     gpu_value *drows, gpu_value *dprobs_rows)
{
    gpu_arena *temp = &m->scratch;
    gpu_value dpermuted = *drows, dpermuted_probs = *dprobs_rows;
    if (gpu_pads_rows(m)) {
        ASSAY_TRY(unsort_grad(m, "mlp.sort", s, &dpermuted, &s->permuted, drows));
        ASSAY_TRY(unsort_grad(m, "mlp.sort_probs", s, &dpermuted_probs, &s->permuted_probs, dprobs_rows));
    }
    gpu_value part =
        gpu_named(m, gpu_local(temp, s->all_tokens, m->config->hidden_size), "mlp.permute", "dx");
    ASSAY_TRY(GPU_CALL(m->run, "combine_rows", "mlp.permute", GPU_T("x", &dpermuted),
                       GPU_T("token_row", &s->token_row), GPU_T("y", &part)));
    *dtokens = gpu_named(m, gpu_tokens(m, temp, true, gpu_dim_hidden(m)), "mlp.dispatch", "dx");
    ASSAY_TRY(reduce(m, "mlp.dispatch", s, dtokens, &part));
    gpu_value dall = gpu_grad_of(m, &s->dispatched_probs);
    ASSAY_TRY(gpu_value_make(&dall, ASSAY_F32));
    gpu_value flat = gpu_value_flat(&dall), index = gpu_value_flat(&s->token_row);
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.permute_probs", GPU_T("x", &dpermuted_probs),
                       GPU_T("index", &index), GPU_T("y", &flat)));
    *dprobs = gpu_grad_of(m, &s->probs);
    return reduce(m, "mlp.dispatch_probs", s, dprobs, &dall);
}
