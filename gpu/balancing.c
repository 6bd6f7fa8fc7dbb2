/* Balancing losses of a router and its z-loss: of a microbatch (aux_loss), of every sequence (seq_aux_loss), of the step so
 * far (global_aux_loss).  docs/SEMANTICS.md, docs/OPS.md sections 7 and 9. */
#include "gpu/layer.h"
#include "gpu/parallel/tensor.h"

static double coeff_of(const gpu_model *m, assay_load_balancing type)
{
    return assay_balancing_coeff(m->options, type);
}

static bool has_aux(const gpu_model *m)
{
    return coeff_of(m, ASSAY_BALANCING_AUX) > 0.0 || m->options->moe_z_loss_coeff > 0.0;
}

static bool has_seq(const gpu_model *m)
{
    return coeff_of(m, ASSAY_BALANCING_SEQ_AUX) > 0.0;
}

static bool has_global(const gpu_model *m)
{
    return coeff_of(m, ASSAY_BALANCING_GLOBAL_AUX) > 0.0;
}

bool gpu_has_balancing(const gpu_model *m)
{
    return has_aux(m) || has_seq(m) || has_global(m);
}

assay_group gpu_sharing_group(const gpu_model *m)
{
    return m->rows_split ? ASSAY_GROUP_TP_DP_CP : ASSAY_GROUP_TP_CP;
}

/* --- the losses as the operations take them ------------------------------------------------------------------- */
typedef struct balance {
    double aux_coeff, z_coeff;
    int64_t tokens, divisor;
} balance;
#define BALANCE_ATTRS(m, b)                                                                                  \
    GPU_F("aux_coeff", (b)->aux_coeff), GPU_F("z_coeff", (b)->z_coeff),                                      \
        GPU_I("topk", (m)->config->moe_router_topk), GPU_I("tokens", (b)->tokens),                           \
        GPU_I("divisor", (b)->divisor)

static balance balance_aux(const gpu_model *m)
{
    return (balance){coeff_of(m, ASSAY_BALANCING_AUX), m->options->moe_z_loss_coeff, m->S * m->B_global, 1};
}

/* The mean over all rows of the microbatch. */
static balance balance_seq(const gpu_model *m)
{
    return (balance){coeff_of(m, ASSAY_BALANCING_SEQ_AUX), 0.0, m->S, m->B_global};
}

/* Tokens of all data-parallel ranks: rows of one microbatch, or a microbatch of each. */
static balance balance_global(const gpu_model *m, const gpu_moe_acts *a)
{
    return (balance){coeff_of(m, ASSAY_BALANCING_GLOBAL_AUX), 0.0,
                     m->S * m->B * m->grid->p.data_parallel_size, a->global_microbatches};
}

/* --- forward -------------------------------------------------------------------------------------------------- */

/* Described: n elements, a part of the sum over the ranks that share a microbatch. */
static gpu_value vector(const gpu_model *m, gpu_arena *arena, int64_t n)
{
    const gpu_dim dim[1] = {gpu_dim_whole(n)};
    return gpu_partial(m, gpu_value_describe(arena, 1, dim, -1), gpu_sharing_group(m));
}

/* Described: [B,E] of the sequences of this rank, a part of the sum over the ranks that share them. */
static gpu_value sequences(const gpu_model *m, gpu_arena *arena)
{
    const gpu_dim dim[2] = {gpu_dim_piece(m->B_global, m->row0, m->B),
                            gpu_dim_whole(m->config->num_moe_experts)};
    return gpu_partial(m, gpu_value_describe(arena, 2, dim, -1), ASSAY_GROUP_TP_CP);
}

/* *sum = mine over the group, in memory as `described`; mine itself for one rank. */
static assay_status sum_counts(gpu_model *m, const char *at, assay_group group, gpu_value *sum,
                               gpu_value described, gpu_value *mine)
{
    *sum = *mine;
    if (m->run->comm.group[group].size == 1)
        return ASSAY_OK;
    *sum = described;
    sum->kind = ASSAY_PIECE_SHARD;
    return gpu_all_reduce(m, at, group, sum, mine);
}

/* The first n losses of a call, for the end of the step; a forward that runs again writes the same. */
static assay_status keep(gpu_model *m, const gpu_microbatch_state *mb, const gpu_layer *l, int first,
                         size_t n, const gpu_value *losses)
{
    if (m->run->dry)
        return ASSAY_OK;
    CUDA_TRY(cudaMemcpyAsync(l->aux_losses + GPU_LOSSES * mb->index + first, losses->t.data,
                             n * sizeof(float), cudaMemcpyDeviceToDevice, m->run->ctx.stream));
    return ASSAY_OK;
}

static assay_status loss_of(gpu_model *m, const char *at, gpu_value *losses, gpu_value *sums,
                            gpu_value *counts, gpu_value *z, const balance *b)
{
    return GPU_CALL(m->run, "router_aux_loss", at, GPU_T("score_sums", sums),
                    GPU_T("tokens_per_expert", counts), GPU_T("z_sum", z), BALANCE_ATTRS(m, b),
                    GPU_NEW("losses", losses, vector(m, &m->scratch, 2)));
}

static assay_status seq_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_layer *l, gpu_moe_acts *a,
                            gpu_value *counts, gpu_value *sums)
{
    gpu_value losses;
    const balance b = balance_seq(m);
    ASSAY_TRY(sum_counts(m, "mlp.router.seq_aux_counts", ASSAY_GROUP_TP_CP, &a->seq_counts,
                         sequences(m, &mb->arena), counts));
    ASSAY_TRY(loss_of(m, "mlp.router.seq_aux_loss", &losses, sums, &a->seq_counts, NULL, &b));
    return keep(m, mb, l, GPU_LOSS_SEQ_AUX, 1, &losses);
}

void gpu_balancing_at(const gpu_model *m, const gpu_layer *l, gpu_moe_acts *a, int64_t index)
{
    const int64_t E = m->config->num_moe_experts;
    if (!has_global(m))
        return;
    a->global_counts.t = gpu_tensor_1d(l->global_counts + index * E, ASSAY_I64, E);
    a->global_microbatches = index + 1;
}

static assay_status global_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_layer *l, gpu_moe_acts *a,
                               gpu_value *counts, gpu_value *sums)
{
    const int64_t E = m->config->num_moe_experts;
    const gpu_dim dim[1] = {gpu_dim_whole(E)};
    gpu_value all, previous, losses;
    ASSAY_TRY(sum_counts(m, "mlp.router.global_aux_counts", ASSAY_GROUP_TP_DP_CP, &all,
                         vector(m, &m->scratch, E), counts));
    a->global_counts = gpu_named(m, gpu_value_describe(NULL, 1, dim, -1), "mlp.router.global_aux", "total");
    gpu_balancing_at(m, l, a, mb->index);
    previous = a->global_counts;
    if (mb->index > 0) {
        previous.microbatch--;
        previous.t = gpu_tensor_1d(l->global_counts + (mb->index - 1) * E, ASSAY_I64, E);
    }
    ASSAY_TRY(GPU_CALL(m->run, "running_counts", "mlp.router.global_aux", GPU_T("tokens_per_expert", &all),
                       GPU_T("previous", mb->index > 0 ? &previous : NULL),
                       GPU_T("total", &a->global_counts)));
    const balance b = balance_global(m, a);
    ASSAY_TRY(loss_of(m, "mlp.router.global_aux_loss", &losses, sums, &a->global_counts, NULL, &b));
    return keep(m, mb, l, GPU_LOSS_GLOBAL_AUX, 1, &losses);
}

int gpu_balancing_statistics(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *a, gpu_balancing *b,
                             gpu_call_args part[GPU_STATISTICS])
{
    gpu_arena *temp = &m->scratch;
    const int64_t E = m->config->num_moe_experts, K = m->config->moe_router_topk;
    part[0] = (gpu_call_args){
        .op = "router_aux_fwd",
        .at = "mlp.router.aux",
        .arg = {GPU_T("logits", &a->logits), GPU_I("topk", K), GPU_W("score_function", gpu_score_word(m)),
                GPU_NEW("aux_scores", &b->scores, gpu_tokens(m, temp, true, gpu_dim_whole(E))),
                GPU_NEW("aux_indices", &b->indices, gpu_tokens(m, temp, true, gpu_dim_whole(K))),
                GPU_NEW("tokens_per_expert", &b->counts, vector(m, &mb->arena, E)),
                GPU_NEW("score_sums", &b->sums, vector(m, temp, E)),
                GPU_NEW("z_sum", &b->z, vector(m, temp, 1))}};
    if (!has_seq(m))
        return 1;
    part[1] = (gpu_call_args){.op = "router_seq_aux_fwd",
                              .at = "mlp.router.seq_aux",
                              .arg = {GPU_T("aux_scores", &b->scores), GPU_T("aux_indices", &b->indices),
                                      GPU_I("rows", m->B),
                                      GPU_NEW("tokens_per_expert", &b->seq_counts, sequences(m, &mb->arena)),
                                      GPU_NEW("score_sums", &b->seq_sums, sequences(m, temp))}};
    return 2;
}

assay_status gpu_balancing_fwd(gpu_model *m, gpu_microbatch_state *mb, const gpu_layer *l, gpu_moe_acts *a,
                               gpu_balancing *s)
{
    const int64_t E = m->config->num_moe_experts;
    const balance b = balance_aux(m);
    gpu_value losses;
    if (has_aux(m)) {
        ASSAY_TRY(sum_counts(m, "mlp.router.aux_counts", gpu_sharing_group(m), &a->aux_counts,
                             vector(m, &mb->arena, E), &s->counts));
        ASSAY_TRY(loss_of(m, "mlp.router.aux_loss", &losses, &s->sums, &a->aux_counts, &s->z, &b));
        ASSAY_TRY(keep(m, mb, l, GPU_LOSS_AUX, 2, &losses));
    }
    if (has_seq(m))
        ASSAY_TRY(seq_fwd(m, mb, l, a, &s->seq_counts, &s->seq_sums));
    return has_global(m) ? global_fwd(m, mb, l, a, &s->counts, &s->sums) : ASSAY_OK;
}

/* --- backward ------------------------------------------------------------------------------------------------- */

/* The weight of a microbatch's losses in the objective.  Megatron-LM multiplies them by the tokens of the rank (seq: of a
 * sequence on the rank) where the gradients are divided by the targets of the step. */
static double weight_of(const gpu_model *m, bool seq)
{
    const assay_train_options *o = m->options;
    return o->semantics == ASSAY_SEMANTICS_MEGATRON && o->calculate_per_token_loss
               ? (double)(seq ? m->sl : m->sl * m->B) / (double)m->targets
               : 1.0 / (double)m->step_microbatches;
}

int gpu_balancing_bwd(gpu_model *m, gpu_moe_acts *a, gpu_call_args part[GPU_BALANCINGS],
                      gpu_value dlogits[GPU_BALANCINGS + 1])
{
    const struct {
        bool on, seq;
        const char *at;
        balance b;
        gpu_value *counts;
    } losses[GPU_BALANCINGS] = {
        {has_aux(m), false, "mlp.router.aux", balance_aux(m), &a->aux_counts},
        {has_seq(m), true, "mlp.router.seq_aux", balance_seq(m), &a->seq_counts},
        {has_global(m), false, "mlp.router.global_aux", balance_global(m, a), &a->global_counts}};
    int n = 0;
    for (int i = 0; i < GPU_BALANCINGS; i++) {
        if (!losses[i].on)
            continue;
        const balance *b = &losses[i].b;
        dlogits[n + 1] = gpu_grad_of(m, &a->gating);
        gpu_value_name(m->run, &dlogits[n + 1], losses[i].at, "dlogits");
        part[n] = (gpu_call_args){
            .op = "router_aux_bwd",
            .at = losses[i].at,
            .arg = {GPU_T("logits", &a->logits), GPU_T("tokens_per_expert", losses[i].counts),
                    GPU_T("dlogits_in", &dlogits[n]), BALANCE_ATTRS(m, b),
                    GPU_W("score_function", gpu_score_word(m)),
                    GPU_F("loss_scale", weight_of(m, losses[i].seq)), GPU_T("dlogits", &dlogits[n + 1])}};
        n++;
    }
    if (n > 0)
        gpu_value_grad(m->run, &dlogits[n], &a->gating);
    return n;
}
