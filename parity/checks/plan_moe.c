/* MLP kind: mixture of experts on token shards. */
#include "parity/checks/plan_moe.h"

static bool has_shared(const plan *p)
{
    return p->job->config->moe_shared_expert_intermediate_size > 0;
}

static void router_attrs(plan *p)
{
    const assay_model_config *c = p->job->config;
    plan_choice_attrs(p);
    plan_bool(p, "pre_softmax", c->moe_router_pre_softmax);
    plan_bool(p, "norm_topk_prob", c->norm_topk_prob);
    plan_f32(p, "scaling_factor", c->moe_router_topk_scaling_factor);
    plan_int(p, "num_groups", c->moe_router_num_groups);
    plan_int(p, "group_topk", c->moe_router_group_topk);
}

static void slice_rows(plan *p, const char *at, plan_tensor x, plan_tensor y)
{
    plan_add(p, "slice_rows", at);
    plan_in(p, "x", x);
    plan_out(p, "y", y);
    plan_int(p, "start", p->sequence.shard_first);
    plan_int(p, "length", p->sequence.shard.length);
}

/* --- router ------------------------------------------------------------------------------------------------- */

/* Numbers of the rank's tokens in the whole microbatch. */
static plan_tensor token_numbers(plan *p, const char *at, assay_phase phase)
{
    const int64_t rows = p->job->batches->b, n = plan_tokens_of(p, p->rank);
    int64_t *numbers = plan_integers(p, n);
    for (int64_t t = 0; numbers != NULL && t < n; t++)
        numbers[t] =
            assay_sequence_position(&p->sequence.shard, t / p->B) * rows + p->share.first_row + t % p->B;
    plan_tensor token = plan_value(p, at, "token", ASSAY_I64);
    token.phase = phase;
    return plan_with_integers(token, numbers, n);
}

/* What a router reads, or its gradient, times numbers that depend on step, microbatch, layer, token and column alone. */
static plan_tensor jitter(plan *p, plan_tensor x, const char *slot)
{
    static const char at[] = "mlp.router.input_jitter";
    const plan_tensor y = plan_value(p, at, slot, p->act);
    if (!(p->job->options->moe_input_jitter_eps > 0.0))
        return x;
    const plan_tensor token = token_numbers(p, at, ASSAY_PHASE_FORWARD);
    plan_add(p, "input_jitter", at);
    plan_in(p, "x", x);
    plan_in(p, "token", token);
    plan_out(p, "y", y);
    plan_f32(p, "eps", p->job->options->moe_input_jitter_eps);
    plan_int(p, "layer", p->layer);
    plan_int(p, "draw", p->step * p->job->batches->microbatches + p->microbatch);
    plan_int(p, "tokens", p->S * p->job->batches->b);
    return y;
}

/* Logits that depend on step, microbatch, layer, token and expert alone. */
static plan_tensor random_logits(plan *p)
{
    static const char at[] = "mlp.router.random_logits";
    const int64_t rows = p->job->batches->b;
    const plan_tensor y = plan_value(p, at, "y", p->accumulated),
                      token = token_numbers(p, at, ASSAY_PHASE_FORWARD);
    plan_add(p, "random_logits", at);
    plan_in(p, "token", token);
    plan_out(p, "y", y);
    plan_int(p, "experts", p->job->config->num_moe_experts);
    plan_int(p, "layer", p->layer);
    plan_int(p, "draw", p->step * p->job->batches->microbatches + p->microbatch);
    plan_int(p, "tokens", p->S * rows);
    return y;
}

static void router_forward(plan *p, plan_moe_saved *s)
{
    const assay_model_config *c = p->job->config;
    s->jittered = jitter(p, s->tokens, "y");
    s->gating =
        plan_linear(p, "mlp.router.gating", s->jittered, "mlp.router.weight", NULL,
                    p->job->options->moe_router_dtype == ASSAY_ROUTER_MODEL ? p->act : p->accumulated);
    s->logits = p->job->options->moe_router_force_load_balancing ? random_logits(p) : s->gating;
    s->indices = plan_value(p, "mlp.router", "indices", ASSAY_I64);
    s->indices.experts = c->num_moe_experts;
    s->indices.topk = c->moe_router_topk;
    s->probs = plan_value(p, "mlp.router", "probs", p->accumulated);
    s->scores = plan_value(p, "mlp.router", "scores", p->accumulated);
    plan_add(p, "router_fwd", "mlp.router");
    plan_in(p, "logits", s->logits);
    if (c->moe_router_enable_expert_bias) {
        plan_tensor bias = plan_param(p, "mlp.router.expert_bias");
        bias.dtype = p->accumulated;
        plan_in(p, "expert_bias", bias);
    }
    plan_out(p, "indices", s->indices);
    plan_out(p, "probs", s->probs);
    plan_out(p, "scores", s->scores);
    router_attrs(p);
    s->routed = s->indices;
    if (plan_has_capacity(p))
        s->routed = plan_drop(p, plan_sharing_group(p), s->indices, s->probs);
    if (plan_has_balancing(p))
        plan_balancing_forward(p, s);
}

/* Gradient of probs -> gradient of the tokens through the router. */
static plan_tensor router_backward(plan *p, plan_moe_saved *s, plan_tensor dprobs)
{
    const plan_tensor total = plan_grad(p, s->gating, p->accumulated);
    const plan_tensor dlogits =
        plan_has_balancing(p) ? plan_value(p, "mlp.router", "dlogits", p->accumulated) : total;
    plan_add(p, "router_bwd", "mlp.router");
    plan_in(p, "dprobs", dprobs);
    plan_in(p, "indices", s->indices);
    plan_in(p, "scores", s->scores);
    plan_in(p, "logits", s->logits);
    plan_out(p, "dlogits", dlogits);
    router_attrs(p);
    if (plan_has_balancing(p))
        plan_balancing_backward(p, s, dlogits, total);
    plan_tensor dy = total;
    if (p->act != p->accumulated) {
        dy = plan_value(p, "mlp.router.gating_cast", "y", p->act);
        plan_add(p, "cast", "mlp.router.gating_cast");
        plan_in(p, "x", total);
        plan_out(p, "y", dy);
        plan_word(p, "dtype", assay_dtype_name(p->act));
    }
    const plan_tensor dx = plan_value(p, "mlp.router.gating", "dx", p->act);
    plan_linear_backward(p, "mlp.router.gating", dy, s->jittered, "mlp.router.weight", NULL, dx);
    return jitter(p, dx, "dx");
}

/* --- experts ------------------------------------------------------------------------------------------------ */

static plan_tensor grouped_linear(plan *p, const plan_moe_saved *s, const char *at, const char *weight,
                                  plan_tensor x)
{
    const plan_tensor y = plan_whole_rows(p, plan_value(p, at, "y", p->act), s->rows.of_experts);
    plan_add(p, "grouped_linear_fwd", at);
    plan_in(p, "x", x);
    plan_in(p, "weight", plan_param(p, weight));
    plan_in(p, "tokens_per_expert", s->local_counts);
    plan_out(p, "y", y);
    return y;
}

static plan_tensor grouped_linear_backward(plan *p, const plan_moe_saved *s, const char *at,
                                           const char *weight, plan_tensor dy, plan_tensor x)
{
    const plan_tensor dx = plan_whole_rows(p, plan_grad(p, x, p->act), x.rows);
    if (!plan_is_frozen(p, weight)) {
        plan_add(p, "grouped_linear_bwd_weight", at);
        plan_in(p, "dy", dy);
        plan_in(p, "x", x);
        plan_in(p, "tokens_per_expert", s->local_counts);
        plan_accumulate_product(p, "dweight", weight);
        plan_bool(p, "gradient_accumulation_fusion", p->job->options->gradient_accumulation_fusion);
    }
    plan_add(p, "grouped_linear_bwd_input", at);
    plan_in(p, "dy", dy);
    plan_in(p, "weight", plan_param(p, weight));
    plan_in(p, "tokens_per_expert", s->local_counts);
    plan_out(p, "dx", dx);
    return dx;
}

static void activation_forward(plan *p, plan_moe_saved *s)
{
    s->act = plan_whole_rows(p, plan_value(p, "mlp.experts.activation", "y", p->act), s->rows.of_experts);
    plan_add(p, "swiglu_fwd", "mlp.experts.activation");
    plan_in(p, "x", s->fc1);
    plan_in(p, "probs", s->expert_probs);
    plan_out(p, "y", s->act);
}

static void experts_forward(plan *p, plan_moe_saved *s)
{
    s->fc1 = grouped_linear(p, s, "mlp.experts.linear_fc1", "mlp.experts.linear_fc1.weight", s->expert_in);
    activation_forward(p, s);
    s->fc2 = grouped_linear(p, s, "mlp.experts.linear_fc2", "mlp.experts.linear_fc2.weight", s->act);
}

static plan_tensor experts_backward(plan *p, const plan_moe_saved *s, plan_tensor dfc2, plan_tensor *dprobs)
{
    const plan_tensor dact = grouped_linear_backward(p, s, "mlp.experts.linear_fc2",
                                                     "mlp.experts.linear_fc2.weight", dfc2, s->act);
    const plan_tensor dfc1 = plan_grad(p, s->fc1, p->act);
    *dprobs = plan_whole_rows(p, plan_grad(p, s->expert_probs, p->accumulated), s->expert_probs.rows);
    plan_add(p, "swiglu_bwd", "mlp.experts.activation");
    plan_in(p, "dy", dact);
    plan_in(p, "x", s->fc1);
    plan_in(p, "probs", s->expert_probs);
    plan_out(p, "dx", dfc1);
    plan_out(p, "dprobs", *dprobs);
    return grouped_linear_backward(p, s, "mlp.experts.linear_fc1", "mlp.experts.linear_fc1.weight", dfc1,
                                   s->expert_in);
}

/* --- the kind ----------------------------------------------------------------------------------------------- */

/* The token shard of this rank. */
static void tokens_forward(plan *p, plan_moe_saved *s, plan_tensor x)
{
    s->cut = p->tp > 1 && !p->sp;
    s->norm = s->tokens = x;
    if (s->cut) {
        s->tokens = plan_value(p, "mlp.scatter", "y", p->act);
        slice_rows(p, "mlp.scatter", x, s->tokens);
    }
}

static plan_tensor forward(plan *p, plan_tensor x, void *kept)
{
    plan_moe_saved *s = kept;
    tokens_forward(p, s, x);
    router_forward(p, s);
    plan_make_rows(p, &s->rows);
    plan_permute(p, s);
    plan_dispatch(p, s);
    experts_forward(p, s);
    plan_tensor y = plan_combine(p, s);
    if (has_shared(p)) {
        const plan_tensor shared = plan_shared_forward(p, s->tokens, &s->shared);
        y = plan_add_op(p, "mlp.shared_experts.add", y, shared,
                        plan_value(p, "mlp.shared_experts.add", "y", p->act));
    }
    if (!s->cut)
        return y;
    const plan_tensor whole = plan_value(p, "mlp.gather_tokens", "recv", p->act);
    plan_gather_sequence(p, "mlp.gather_tokens", y, whole);
    return whole;
}

static plan_tensor backward(plan *p, plan_tensor dy, void *kept)
{
    plan_moe_saved *s = kept;
    plan_tensor dtoken = dy, dprobs_rows;
    if (s->cut) {
        dtoken = plan_value(p, "mlp.gather_tokens", "send.grad", p->act);
        slice_rows(p, "mlp.gather_tokens", dy, dtoken);
    }
    const plan_tensor dfc2 = plan_combine_backward(p, s, dtoken);
    const plan_tensor drows = experts_backward(p, s, dfc2, &dprobs_rows);
    plan_tensor dprobs;
    const plan_tensor dpermute = plan_dispatch_backward(p, s, drows, dprobs_rows, &dprobs);
    const plan_tensor dgating = router_backward(p, s, dprobs);
    const plan_tensor total = plan_grad(p, s->tokens, p->act);
    const plan_tensor sum = has_shared(p) ? plan_value(p, "mlp.router.input_grad", "y", p->act) : total;
    plan_add_op(p, "mlp.router.input_grad", dpermute, dgating, sum);
    if (has_shared(p)) {
        const plan_tensor dshared = plan_shared_backward(p, dtoken, &s->shared);
        plan_add_op(p, "mlp.shared_experts.input_grad", sum, dshared, total);
    }
    if (!s->cut)
        return total;
    const plan_tensor whole = plan_grad(p, s->norm, p->act);
    plan_gather_sequence(p, "mlp.scatter", total, whole);
    return whole;
}

static void again(plan *p, plan_tensor x, void *kept)
{
    plan_moe_saved *s = kept;
    plan_shared_saved unused;
    const unsigned modules = p->again.modules;
    if (modules & ASSAY_RECOMPUTE_LAYERNORM)
        tokens_forward(p, s, x);
    if (modules & ASSAY_RECOMPUTE_MOE_ACT)
        activation_forward(p, s);
    if (!has_shared(p))
        return;
    if (modules & ASSAY_RECOMPUTE_SHARED_EXPERTS)
        (void)plan_shared_forward(p, s->tokens, &unused);
    else if (modules & ASSAY_RECOMPUTE_LAYERNORM)
        (void)plan_shared_input(p, s->tokens);
}

const plan_kind plan_moe_mlp = {
    .saved = sizeof(plan_moe_saved), .forward = forward, .backward = backward, .again = again};
