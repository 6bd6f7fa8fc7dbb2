/* MLP kind: mixture of experts on token shards. */
#include "parity/checks/plan.h"

typedef struct saved {
    bool cut; /* tp without sp: the layer takes and gives back whole sequences */
    plan_tensor norm, tokens, logits, indices, routed, probs, scores, aux_counts;
    plan_rows rows;
    plan_tensor row_token, token_row, sort, unsort, local_counts;
    plan_tensor permuted, permuted_probs, dispatched, dispatched_probs, gathered, gathered_probs;
    plan_tensor expert_in, expert_probs, fc1, act, fc2, unsorted, reduced, returned;
    plan_shared_saved shared;
} saved;

static bool has_aux(const plan *p)
{
    return p->job->options->moe_aux_loss_coeff != 0.0 || p->job->options->moe_z_loss_coeff != 0.0;
}

static bool has_shared(const plan *p)
{
    return p->job->config->moe_shared_expert_intermediate_size > 0;
}

static const char *score_function(const plan *p)
{
    return p->job->config->moe_router_score_function == ASSAY_SCORE_SIGMOID ? "sigmoid" : "softmax";
}

/* What the choice of the auxiliary map depends on. */
static void choice_attrs(plan *p)
{
    plan_int(p, "topk", p->job->config->moe_router_topk);
    plan_word(p, "score_function", score_function(p));
}

static void router_attrs(plan *p)
{
    const assay_model_config *c = p->job->config;
    choice_attrs(p);
    plan_bool(p, "pre_softmax", c->moe_router_pre_softmax);
    plan_bool(p, "norm_topk_prob", c->norm_topk_prob);
    plan_f32(p, "scaling_factor", c->moe_router_topk_scaling_factor);
    plan_int(p, "num_groups", c->moe_router_num_groups);
    plan_int(p, "group_topk", c->moe_router_group_topk);
}

static void aux_loss_attrs(plan *p)
{
    const assay_train_options *o = p->job->options;
    plan_real(p, "aux_coeff", o->moe_aux_loss_coeff, 0.0);
    plan_real(p, "z_coeff", o->moe_z_loss_coeff, 0.0);
    plan_int(p, "tokens", p->S * p->job->batches->b);
}

/* The weight of a microbatch's auxiliary losses in the objective. */
static double aux_weight(const plan *p)
{
    const assay_train_options *o = p->job->options;
    return o->semantics == ASSAY_SEMANTICS_MEGATRON && o->calculate_per_token_loss
               ? (double)(p->sequence.shard.length * p->B) / (double)p->n_targets
               : 1.0 / (double)p->job->batches->microbatches;
}

static void slice_rows(plan *p, const char *at, plan_tensor x, plan_tensor y)
{
    plan_add(p, "slice_rows", at);
    plan_in(p, "x", x);
    plan_out(p, "y", y);
    plan_int(p, "start", p->sequence.shard_first);
    plan_int(p, "length", p->sequence.shard.length);
}

static void gather_rows(plan *p, const char *at, plan_tensor x, plan_tensor index, plan_tensor y)
{
    plan_add(p, "gather_rows", at);
    plan_in(p, "x", x);
    plan_in(p, "index", index);
    plan_out(p, "y", y);
}

static void combine_rows(plan *p, const char *at, plan_tensor x, plan_tensor token_row, plan_tensor y)
{
    plan_add(p, "combine_rows", at);
    plan_in(p, "x", x);
    plan_in(p, "token_row", token_row);
    plan_out(p, "y", y);
}

/* back: from the experts' rank to the tokens'. */
static void all_to_all(plan *p, const char *at, const plan_rows *r, bool back, plan_tensor send,
                       plan_tensor recv)
{
    plan_add_collective(p, "all_to_all", at, ASSAY_GROUP_EP, send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
    plan_list(p, "counts", back ? r->recv_counts : r->send_counts, p->ep);
    plan_list(p, "recv_counts", back ? r->send_counts : r->recv_counts, p->ep);
}

/* Rows of this rank to those of all etp ranks, and parts of the sums of all to this rank's. */
static void move_over_etp(plan *p, const char *op, const char *at, const plan_rows *r, plan_tensor send,
                          plan_tensor recv)
{
    plan_add_collective(p, op, at, ASSAY_GROUP_ETP, send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
    plan_list(p, "counts", r->etp_counts, p->etp);
}

static bool exchanges_rows(const plan *p)
{
    return p->ep > 1 || p->etp > 1;
}

/* --- router ------------------------------------------------------------------------------------------------- */

/* The ranks that share the tokens of a microbatch. */
static assay_group aux_group(const plan *p)
{
    return p->share.rows_split ? ASSAY_GROUP_TP_DP_CP : ASSAY_GROUP_TP_CP;
}

static void sum_aux_counts(plan *p, saved *s, plan_tensor counts)
{
    const int64_t experts = p->job->config->num_moe_experts;
    int members = assay_grid_group(p->job->grid, aux_group(p), p->rank, NULL, NULL);
    s->aux_counts = counts;
    if (members <= 1)
        return;
    int *ranks = plan_alloc(p, (size_t)members * sizeof *ranks);
    int64_t *sum = plan_integers(p, experts), *one = plan_integers(p, experts);
    if (ranks == NULL || sum == NULL || one == NULL)
        return;
    members = assay_grid_group(p->job->grid, aux_group(p), p->rank, ranks, NULL);
    bool known = true;
    for (int i = 0; i < members; i++) {
        known = plan_choice_counts(p, ranks[i], p->microbatch, p->layer, PLAN_AUX, one) && known;
        for (int64_t e = 0; e < experts; e++)
            sum[e] += one[e];
    }
    s->aux_counts = plan_value(p, "mlp.router.aux_counts", "recv", ASSAY_I64);
    if (known)
        s->aux_counts = plan_with_integers(s->aux_counts, sum, experts);
    plan_add_collective(p, "all_reduce", "mlp.router.aux_counts", aux_group(p), ASSAY_I64);
    plan_in(p, "send", counts);
    plan_out(p, "recv", s->aux_counts);
}

static void aux_forward(plan *p, saved *s)
{
    static const char at[] = "mlp.router.aux";
    const int64_t experts = p->job->config->num_moe_experts;
    const plan_tensor sums = plan_value(p, at, "score_sums", p->accumulated);
    const plan_tensor z = plan_value(p, at, "z_sum", p->accumulated);
    plan_tensor counts = plan_value(p, at, "tokens_per_expert", ASSAY_I64);
    plan_tensor indices = plan_value(p, at, "aux_indices", ASSAY_I64);
    int64_t *mine = plan_integers(p, experts);
    if (mine != NULL && plan_choice_counts(p, p->rank, p->microbatch, p->layer, PLAN_AUX, mine))
        counts = plan_with_integers(counts, mine, experts);
    indices.experts = experts;
    indices.topk = p->job->config->moe_router_topk;
    plan_add(p, "router_aux_fwd", at);
    plan_in(p, "logits", s->logits);
    plan_out(p, "aux_scores", plan_value(p, at, "aux_scores", p->accumulated));
    plan_out(p, "aux_indices", indices);
    plan_out(p, "tokens_per_expert", counts);
    plan_out(p, "score_sums", sums);
    plan_out(p, "z_sum", z);
    choice_attrs(p);
    sum_aux_counts(p, s, counts);
    plan_add(p, "router_aux_loss", "mlp.router.aux_loss");
    plan_in(p, "score_sums", sums);
    plan_in(p, "tokens_per_expert", s->aux_counts);
    plan_in(p, "z_sum", z);
    plan_out(p, "losses", plan_value(p, "mlp.router.aux_loss", "losses", p->accumulated));
    aux_loss_attrs(p);
    plan_int(p, "topk", p->job->config->moe_router_topk);
}

static void router_forward(plan *p, saved *s)
{
    const assay_model_config *c = p->job->config;
    s->logits = plan_linear(p, "mlp.router.gating", s->tokens, "mlp.router.weight", NULL, p->accumulated);
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
        s->routed = plan_drop(p, aux_group(p), s->indices, s->probs);
    if (has_aux(p))
        aux_forward(p, s);
}

/* Gradient of probs -> gradient of the tokens through the router. */
static plan_tensor router_backward(plan *p, saved *s, plan_tensor dprobs)
{
    const plan_tensor total = plan_grad(p, s->logits, p->accumulated);
    const plan_tensor dlogits = has_aux(p) ? plan_value(p, "mlp.router", "dlogits", p->accumulated) : total;
    plan_add(p, "router_bwd", "mlp.router");
    plan_in(p, "dprobs", dprobs);
    plan_in(p, "indices", s->indices);
    plan_in(p, "scores", s->scores);
    plan_in(p, "logits", s->logits);
    plan_out(p, "dlogits", dlogits);
    router_attrs(p);
    if (has_aux(p)) {
        plan_add(p, "router_aux_bwd", "mlp.router.aux");
        plan_in(p, "logits", s->logits);
        plan_in(p, "tokens_per_expert", s->aux_counts);
        plan_in(p, "dlogits_in", dlogits);
        plan_out(p, "dlogits", total);
        aux_loss_attrs(p);
        choice_attrs(p);
        plan_real(p, "loss_scale", aux_weight(p), 0.0);
    }
    plan_tensor dy = total;
    if (p->act != p->accumulated) {
        dy = plan_value(p, "mlp.router.gating_cast", "y", p->act);
        plan_add(p, "cast", "mlp.router.gating_cast");
        plan_in(p, "x", total);
        plan_out(p, "y", dy);
        plan_word(p, "dtype", assay_dtype_name(p->act));
    }
    const plan_tensor dx = plan_value(p, "mlp.router.gating", "dx", p->act);
    plan_linear_backward(p, "mlp.router.gating", dy, s->tokens, "mlp.router.weight", NULL, dx);
    return dx;
}

/* --- rows to the experts and back --------------------------------------------------------------------------- */

static plan_tensor rows_tensor(plan *p, const plan_rows *r, const char *at, const char *slot,
                               const int64_t *values, int64_t n)
{
    const plan_tensor t = plan_value(p, at, slot, ASSAY_I64);
    return r->known ? plan_with_integers(t, values, n) : t;
}

static void permute(plan *p, saved *s)
{
    const plan_rows *r = &s->rows;
    const int64_t experts = p->job->config->num_moe_experts;
    static const char at[] = "mlp.permute_plan";
    const plan_tensor counts = rows_tensor(p, r, at, "tokens_per_expert", r->tokens_per_expert, experts);
    s->row_token = rows_tensor(p, r, at, "row_token", r->row_token, r->rows);
    s->token_row = rows_tensor(p, r, at, "token_row", r->token_row, r->entries);
    plan_add(p, "permute_plan", at);
    plan_in(p, "indices", s->routed);
    plan_out(p, "row_token", s->row_token);
    plan_out(p, "row_slot", rows_tensor(p, r, at, "row_slot", r->row_slot, r->rows));
    plan_out(p, "tokens_per_expert", counts);
    plan_out(p, "token_row", s->token_row);
    plan_int(p, "experts", experts);
    if (r->known)
        plan_int(p, "rows", r->rows);
    else
        plan_any(p, "rows");
    if (exchanges_rows(p)) {
        plan_add_collective(p, "all_gather", "mlp.dispatch_counts", plan_exchange_group(p), ASSAY_I64);
        plan_in(p, "send", counts);
        plan_out(p, "recv",
                 rows_tensor(p, r, "mlp.dispatch_counts", "recv", r->all_counts, p->etp * p->ep * experts));
    }
    s->permuted = s->expert_in = plan_value(p, "mlp.permute", "y", p->act);
    s->permuted_probs = s->expert_probs = plan_value(p, "mlp.permute_probs", "y", p->accumulated);
    gather_rows(p, "mlp.permute", s->tokens, s->row_token, s->permuted);
    gather_rows(p, "mlp.permute_probs", s->probs,
                rows_tensor(p, r, "mlp.permute_probs", "index", r->probs_index, r->rows), s->permuted_probs);
}

/* Permuted rows or their probs to the ranks of their experts. */
static void send_rows(plan *p, const plan_rows *r, const char *dispatch_at, const char *gather_at,
                      plan_tensor permuted, plan_tensor *dispatched, plan_tensor *gathered)
{
    *dispatched = permuted;
    if (p->ep > 1) {
        *dispatched = plan_value(p, dispatch_at, "recv", permuted.dtype);
        all_to_all(p, dispatch_at, r, false, permuted, *dispatched);
    }
    *gathered = *dispatched;
    if (p->etp > 1) {
        *gathered = plan_value(p, gather_at, "recv", permuted.dtype);
        move_over_etp(p, "all_gather", gather_at, r, *dispatched, *gathered);
    }
}

static void dispatch(plan *p, saved *s)
{
    const plan_rows *r = &s->rows;
    const int64_t local = p->job->config->num_moe_experts / p->ep;
    s->local_counts = rows_tensor(p, r, "mlp.experts", "tokens_per_expert", r->local_counts, local);
    if (!exchanges_rows(p))
        return;
    s->sort = rows_tensor(p, r, "mlp.sort", "index", r->sort, r->gathered);
    s->unsort = rows_tensor(p, r, "mlp.unsort", "index", r->unsort, r->gathered);
    s->expert_in = plan_value(p, "mlp.sort", "y", p->act);
    s->expert_probs = plan_value(p, "mlp.sort_probs", "y", p->accumulated);
    send_rows(p, r, "mlp.dispatch", "mlp.experts.gather", s->permuted, &s->dispatched, &s->gathered);
    send_rows(p, r, "mlp.dispatch_probs", "mlp.experts.gather_probs", s->permuted_probs, &s->dispatched_probs,
              &s->gathered_probs);
    gather_rows(p, "mlp.sort", s->gathered, s->sort, s->expert_in);
    gather_rows(p, "mlp.sort_probs", s->gathered_probs, s->sort, s->expert_probs);
}

static plan_tensor combine(plan *p, saved *s)
{
    s->returned = s->fc2;
    if (exchanges_rows(p)) {
        s->unsorted = plan_value(p, "mlp.unsort", "y", p->act);
        gather_rows(p, "mlp.unsort", s->fc2, s->unsort, s->unsorted);
        s->reduced = s->unsorted;
        if (p->etp > 1) {
            s->reduced = plan_value(p, "mlp.experts.reduce", "recv", p->act);
            move_over_etp(p, "reduce_scatter", "mlp.experts.reduce", &s->rows, s->unsorted, s->reduced);
        }
        s->returned = s->reduced;
        if (p->ep > 1) {
            s->returned = plan_value(p, "mlp.combine", "recv", p->act);
            all_to_all(p, "mlp.combine", &s->rows, true, s->reduced, s->returned);
        }
    }
    const plan_tensor y = plan_value(p, "mlp.unpermute", "y", p->act);
    combine_rows(p, "mlp.unpermute", s->returned, s->token_row, y);
    return y;
}

static plan_tensor combine_backward(plan *p, saved *s, plan_tensor dy)
{
    const plan_tensor dreturned = plan_grad(p, s->returned, p->act);
    gather_rows(p, "mlp.unpermute", dy, s->row_token, dreturned);
    if (!exchanges_rows(p))
        return dreturned;
    plan_tensor dreduced = dreturned, dunsorted;
    if (p->ep > 1) {
        dreduced = plan_grad(p, s->reduced, p->act);
        all_to_all(p, "mlp.combine", &s->rows, false, dreturned, dreduced);
    }
    dunsorted = dreduced;
    if (p->etp > 1) {
        dunsorted = plan_grad(p, s->unsorted, p->act);
        move_over_etp(p, "all_gather", "mlp.experts.reduce", &s->rows, dreduced, dunsorted);
    }
    const plan_tensor dfc2 = plan_grad(p, s->fc2, p->act);
    gather_rows(p, "mlp.unsort", dunsorted, s->sort, dfc2);
    return dfc2;
}

/* Instances and forward tensors of one way back: of the rows, or of their probs. */
typedef struct return_way {
    const char *sort_at, *gather_at, *dispatch_at;
    plan_tensor permuted, dispatched, gathered;
} return_way;

/* Rows of the local experts -> permuted rows. */
static plan_tensor return_rows(plan *p, saved *s, const return_way *w, plan_tensor drows)
{
    if (!exchanges_rows(p))
        return drows;
    const plan_tensor dgathered = plan_grad(p, w->gathered, drows.dtype);
    gather_rows(p, w->sort_at, drows, s->unsort, dgathered);
    plan_tensor ddispatched = dgathered;
    if (p->etp > 1) {
        ddispatched = plan_grad(p, w->dispatched, drows.dtype);
        move_over_etp(p, "reduce_scatter", w->gather_at, &s->rows, dgathered, ddispatched);
    }
    if (p->ep == 1)
        return ddispatched;
    const plan_tensor dpermuted = plan_grad(p, w->permuted, drows.dtype);
    all_to_all(p, w->dispatch_at, &s->rows, true, ddispatched, dpermuted);
    return dpermuted;
}

/* --- experts ------------------------------------------------------------------------------------------------ */

static plan_tensor grouped_linear(plan *p, const saved *s, const char *at, const char *weight, plan_tensor x)
{
    const plan_tensor y = plan_value(p, at, "y", p->act);
    plan_add(p, "grouped_linear_fwd", at);
    plan_in(p, "x", x);
    plan_in(p, "weight", plan_param(p, weight));
    plan_in(p, "tokens_per_expert", s->local_counts);
    plan_out(p, "y", y);
    return y;
}

static plan_tensor grouped_linear_backward(plan *p, const saved *s, const char *at, const char *weight,
                                           plan_tensor dy, plan_tensor x)
{
    const plan_tensor dx = plan_grad(p, x, p->act);
    plan_add(p, "grouped_linear_bwd_weight", at);
    plan_in(p, "dy", dy);
    plan_in(p, "x", x);
    plan_in(p, "tokens_per_expert", s->local_counts);
    plan_accumulate(p, "dweight", weight);
    plan_add(p, "grouped_linear_bwd_input", at);
    plan_in(p, "dy", dy);
    plan_in(p, "weight", plan_param(p, weight));
    plan_in(p, "tokens_per_expert", s->local_counts);
    plan_out(p, "dx", dx);
    return dx;
}

static void experts_forward(plan *p, saved *s)
{
    s->fc1 = grouped_linear(p, s, "mlp.experts.linear_fc1", "mlp.experts.linear_fc1.weight", s->expert_in);
    s->act = plan_value(p, "mlp.experts.activation", "y", p->act);
    plan_add(p, "swiglu_fwd", "mlp.experts.activation");
    plan_in(p, "x", s->fc1);
    plan_in(p, "probs", s->expert_probs);
    plan_out(p, "y", s->act);
    s->fc2 = grouped_linear(p, s, "mlp.experts.linear_fc2", "mlp.experts.linear_fc2.weight", s->act);
}

static plan_tensor experts_backward(plan *p, const saved *s, plan_tensor dfc2, plan_tensor *dprobs)
{
    const plan_tensor dact = grouped_linear_backward(p, s, "mlp.experts.linear_fc2",
                                                     "mlp.experts.linear_fc2.weight", dfc2, s->act);
    const plan_tensor dfc1 = plan_grad(p, s->fc1, p->act);
    *dprobs = plan_grad(p, s->expert_probs, p->accumulated);
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

static plan_tensor forward(plan *p, plan_tensor x, void *kept)
{
    saved *s = kept;
    s->cut = p->tp > 1 && !p->sp;
    s->norm = s->tokens = x;
    if (s->cut) {
        s->tokens = plan_value(p, "mlp.scatter", "y", p->act);
        slice_rows(p, "mlp.scatter", x, s->tokens);
    }
    router_forward(p, s);
    plan_make_rows(p, &s->rows);
    permute(p, s);
    dispatch(p, s);
    experts_forward(p, s);
    plan_tensor y = combine(p, s);
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
    saved *s = kept;
    plan_tensor dtoken = dy, dprobs_rows;
    if (s->cut) {
        dtoken = plan_value(p, "mlp.gather_tokens", "send.grad", p->act);
        slice_rows(p, "mlp.gather_tokens", dy, dtoken);
    }
    const plan_tensor dfc2 = combine_backward(p, s, dtoken);
    const plan_tensor drows = experts_backward(p, s, dfc2, &dprobs_rows);
    const return_way rows = {"mlp.sort",  "mlp.experts.gather", "mlp.dispatch",
                             s->permuted, s->dispatched,        s->gathered},
                     probs = {"mlp.sort_probs",  "mlp.experts.gather_probs", "mlp.dispatch_probs",
                              s->permuted_probs, s->dispatched_probs,        s->gathered_probs};
    const plan_tensor dpermuted = return_rows(p, s, &rows, drows);
    const plan_tensor dpermuted_probs = return_rows(p, s, &probs, dprobs_rows);
    const plan_tensor dpermute = plan_value(p, "mlp.permute", "dx", p->act);
    const plan_tensor dprobs = plan_grad(p, s->probs, p->accumulated);
    combine_rows(p, "mlp.permute", dpermuted, s->token_row, dpermute);
    gather_rows(p, "mlp.permute_probs", dpermuted_probs, s->token_row, dprobs);
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

const plan_kind plan_moe_mlp = {.saved = sizeof(saved), .forward = forward, .backward = backward};
