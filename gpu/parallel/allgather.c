/* The all-gather dispatcher of an MoE layer. */
#include "gpu/parallel/allgather.h"

#include "gpu/call.h"
#include "gpu/describe.h"

bool gpu_gathers_tokens(const gpu_model *m)
{
    return m->options->moe_token_dispatcher_type == ASSAY_DISPATCHER_ALLGATHER && gpu_exchanges_rows(m);
}

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

/* The rows of the local experts among all tokens: row_token, token_row, and probs' entries. */
static assay_status plan_rows(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, const gpu_exchange *x,
                              gpu_value *all_indices, gpu_value *entries)
{
    gpu_run *run = m->run;
    gpu_arena *keep = &mb->arena, *temp = &m->scratch;
    const int64_t E = m->config->num_moe_experts, K = m->config->moe_router_topk, R = x->gathered;
    const size_t bytes = (size_t)R * sizeof(int64_t);
    gpu_value row_slot, counts;
    int64_t *token, *slot;
    ASSAY_TRY(GPU_CALL(
        run, "permute_plan", "mlp.dispatch_plan", GPU_T("indices", all_indices), GPU_I("experts", E),
        GPU_I("rows", R), GPU_I("first_expert", m->at.ep * m->local_experts),
        GPU_I("local_experts", m->local_experts), GPU_NEW("row_token", &s->row_token, gpu_local(keep, R, 0)),
        GPU_NEW("row_slot", &row_slot, gpu_local(temp, R, 0)),
        GPU_NEW("tokens_per_expert", &counts, gpu_local(temp, E, 0)),
        GPU_NEW("token_row", &s->token_row, gpu_local(keep, s->all_tokens, K))));
    ASSAY_TRY(gpu_arena_take(&mb->host, bytes, (void **)&token));
    ASSAY_TRY(gpu_arena_take(&mb->host, bytes, (void **)&slot));
    if (!run->dry) {
        ASSAY_TRY(gpu_run_download(run, token, s->row_token.t.data, bytes, "rows of experts"));
        ASSAY_TRY(gpu_run_download(run, slot, row_slot.t.data, bytes, "rows of experts"));
        for (int64_t i = 0; i < R; i++)
            token[i] = token[i] * K + slot[i];
    }
    return gpu_index_value(m, temp, entries, "mlp.permute_probs", "index", R, token);
}

assay_status gpu_gather_dispatch_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                     const gpu_exchange *x)
{
    gpu_run *run = m->run;
    gpu_arena *keep = &mb->arena, *temp = &m->scratch;
    const int64_t H = m->config->hidden_size, K = m->config->moe_router_topk, R = x->gathered;
    gpu_value all_indices, entries;
    s->expert_rows = (gpu_rows){.n = R, .record = -1};
    ASSAY_TRY(count_tokens(m, mb, s));
    s->dispatched = gpu_local(temp, s->all_tokens, H);
    all_indices = gpu_local(temp, s->all_tokens, K);
    s->dispatched_probs = gpu_local(temp, s->all_tokens, K);
    ASSAY_TRY(gather(m, "mlp.dispatch", s, &s->dispatched, &s->tokens));
    ASSAY_TRY(gather(m, "mlp.dispatch_indices", s, &all_indices, &s->routed));
    ASSAY_TRY(gather(m, "mlp.dispatch_probs", s, &s->dispatched_probs, &s->probs));
    ASSAY_TRY(plan_rows(m, mb, s, x, &all_indices, &entries));
    ASSAY_TRY(GPU_CALL(run, "gather_rows", "mlp.permute", GPU_T("x", &s->dispatched),
                       GPU_T("index", &s->row_token), GPU_NEW("y", &s->expert_in, gpu_local(keep, R, H))));
    gpu_value probs = gpu_value_flat(&s->dispatched_probs);
    return GPU_CALL(run, "gather_rows", "mlp.permute_probs", GPU_T("x", &probs), GPU_T("index", &entries),
                    GPU_NEW("y", &s->expert_probs, gpu_local(keep, R, 0)));
}

assay_status gpu_gather_combine_fwd(gpu_model *m, gpu_moe_acts *s, gpu_value *y, gpu_value *rows)
{
    gpu_arena *temp = &m->scratch;
    ASSAY_TRY(GPU_CALL(m->run, "combine_rows", "mlp.unpermute", GPU_T("x", rows),
                       GPU_T("token_row", &s->token_row),
                       GPU_NEW("y", &s->unsorted, gpu_local(temp, s->all_tokens, m->config->hidden_size))));
    *y = gpu_tokens(m, temp, true, gpu_dim_hidden(m));
    return reduce(m, "mlp.combine", s, y, &s->unsorted);
}

assay_status gpu_gather_combine_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *drows, gpu_value *dy)
{
    gpu_value dall = gpu_grad_of(m, &s->unsorted);
    ASSAY_TRY(gather(m, "mlp.combine", s, &dall, dy));
    return GPU_CALL(m->run, "gather_rows", "mlp.unpermute", GPU_T("x", &dall), GPU_T("index", &s->row_token),
                    GPU_NEW("y", drows, gpu_grad_of(m, &s->fc2)));
}

assay_status gpu_gather_dispatch_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *dtokens, gpu_value *dprobs,
                                     gpu_value *drows, gpu_value *dprobs_rows)
{
    gpu_arena *temp = &m->scratch;
    gpu_value part =
        gpu_named(m, gpu_local(temp, s->all_tokens, m->config->hidden_size), "mlp.permute", "dx");
    ASSAY_TRY(GPU_CALL(m->run, "combine_rows", "mlp.permute", GPU_T("x", drows),
                       GPU_T("token_row", &s->token_row), GPU_T("y", &part)));
    *dtokens = gpu_named(m, gpu_tokens(m, temp, true, gpu_dim_hidden(m)), "mlp.dispatch", "dx");
    ASSAY_TRY(reduce(m, "mlp.dispatch", s, dtokens, &part));
    gpu_value dall = gpu_grad_of(m, &s->dispatched_probs);
    ASSAY_TRY(gpu_value_make(&dall, ASSAY_F32));
    gpu_value flat = gpu_value_flat(&dall), index = gpu_value_flat(&s->token_row);
    ASSAY_TRY(GPU_CALL(m->run, "gather_rows", "mlp.permute_probs", GPU_T("x", dprobs_rows),
                       GPU_T("index", &index), GPU_T("y", &flat)));
    *dprobs = gpu_grad_of(m, &s->probs);
    return reduce(m, "mlp.dispatch_probs", s, dprobs, &dall);
}
