/* Token rows of an MoE layer on their way to the experts and back, by either dispatcher. */
#include "parity/checks/plan_moe.h"

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

/* --- rows to the experts and back --------------------------------------------------------------------------- */

static plan_tensor rows_tensor(plan *p, const plan_rows *r, const char *at, const char *slot,
                               const int64_t *values, int64_t n)
{
    const plan_tensor t = plan_value(p, at, slot, ASSAY_I64);
    return r->known ? plan_with_integers(t, values, n) : t;
}

void plan_permute(plan *p, plan_moe_saved *s)
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
    const plan_tensor row_entry = rows_tensor(p, r, at, "row_entry", r->row_entry, r->rows);
    plan_out(p, "row_entry", row_entry);
    plan_out(p, "tokens_per_expert", counts);
    plan_out(p, "token_row", s->token_row);
    plan_int(p, "experts", experts);
    if (r->known)
        plan_int(p, "rows", r->rows);
    else
        plan_any(p, "rows");
    plan_int(p, "first_expert", 0);
    plan_int(p, "local_experts", experts);
    if (exchanges_rows(p)) {
        plan_add_collective(p, "all_gather", "mlp.dispatch_counts", plan_exchange_group(p), ASSAY_I64);
        plan_in(p, "send", counts);
        plan_out(p, "recv",
                 rows_tensor(p, r, "mlp.dispatch_counts", "recv", r->all_counts, p->etp * p->ep * experts));
    }
    if (plan_gathers_tokens(p))
        plan_gather_rows(p, &s->rows);
    plan_make_row_ids(p, &s->rows);
    s->permuted = s->expert_in = plan_with_rows(plan_value(p, "mlp.permute", "y", p->act), r->mine);
    s->permuted_probs = s->expert_probs =
        plan_with_rows(plan_value(p, "mlp.permute_probs", "y", p->accumulated), r->mine);
    if (plan_gathers_tokens(p))
        return;
    gather_rows(p, "mlp.permute", s->tokens, s->row_token, s->permuted);
    gather_rows(p, "mlp.permute_probs", s->probs, row_entry, s->permuted_probs);
}

/* Permuted rows or their probs to the ranks of their experts. */
static void send_rows(plan *p, const plan_rows *r, const char *dispatch_at, const char *gather_at,
                      plan_tensor permuted, plan_tensor *dispatched, plan_tensor *gathered)
{
    *dispatched = permuted;
    if (p->ep > 1) {
        *dispatched = plan_with_rows(plan_value(p, dispatch_at, "recv", permuted.dtype), r->dispatched);
        all_to_all(p, dispatch_at, r, false, permuted, *dispatched);
    }
    *gathered = *dispatched;
    if (p->etp > 1) {
        *gathered = plan_with_rows(plan_value(p, gather_at, "recv", permuted.dtype), r->gathered_ids);
        move_over_etp(p, "all_gather", gather_at, r, *dispatched, *gathered);
    }
}

/* Tokens of this rank to those of all that exchange rows, and parts of the sums of all to this rank's. */
static void move_tokens(plan *p, const char *op, const char *at, const plan_rows *r, plan_tensor send,
                        plan_tensor recv)
{
    const int members = p->etp * p->ep;
    bool even = true;
    plan_add_collective(p, op, at, plan_exchange_group(p), send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
    for (int i = 0; i < members && r->token_counts != NULL; i++)
        even = even && r->token_counts[i] == r->token_counts[0];
    if (!even)
        plan_list(p, "counts", r->token_counts, members);
}

/* Rows as they arrive -> those that the experts compute. */
static void sort_rows(plan *p, plan_moe_saved *s)
{
    const plan_rows *r = &s->rows;
    s->sort = rows_tensor(p, r, "mlp.sort", "index", r->sort, r->padded);
    s->unsort = rows_tensor(p, r, "mlp.unsort", "index", r->unsort, r->gathered);
    s->expert_in = plan_with_rows(plan_value(p, "mlp.sort", "y", p->act), r->of_experts);
    s->expert_probs = plan_with_rows(plan_value(p, "mlp.sort_probs", "y", p->accumulated), r->of_experts);
    gather_rows(p, "mlp.sort", s->gathered, s->sort, s->expert_in);
    gather_rows(p, "mlp.sort_probs", s->gathered_probs, s->sort, s->expert_probs);
}

static void gather_dispatch(plan *p, plan_moe_saved *s)
{
    static const char at[] = "mlp.dispatch_plan";
    plan_rows *r = &s->rows;
    const assay_model_config *c = p->job->config;
    const int64_t experts = c->num_moe_experts, local = experts / p->ep, k = c->moe_router_topk;
    s->local_counts = rows_tensor(p, r, "mlp.experts", "tokens_per_expert", r->room, local);
    const plan_tensor indices = plan_value(p, "mlp.dispatch_indices", "recv", ASSAY_I64);
    s->dispatched = plan_value(p, "mlp.dispatch", "recv", p->act);
    s->dispatched_probs = plan_value(p, "mlp.dispatch_probs", "recv", p->accumulated);
    move_tokens(p, "all_gather", "mlp.dispatch", r, s->tokens, s->dispatched);
    move_tokens(p, "all_gather", "mlp.dispatch_indices", r, s->routed, indices);
    move_tokens(p, "all_gather", "mlp.dispatch_probs", r, s->probs, s->dispatched_probs);
    s->row_token = rows_tensor(p, r, at, "row_token", r->all_row_token, r->gathered);
    s->token_row = rows_tensor(p, r, at, "token_row", r->all_token_row, r->n_all * k);
    plan_add(p, "permute_plan", at);
    plan_in(p, "indices", indices);
    plan_out(p, "row_token", s->row_token);
    const plan_tensor row_entry = rows_tensor(p, r, at, "row_entry", r->all_row_entry, r->gathered);
    plan_out(p, "row_entry", row_entry);
    plan_out(p, "tokens_per_expert",
             rows_tensor(p, r, at, "tokens_per_expert", r->all_tokens_per_expert, experts));
    plan_out(p, "token_row", s->token_row);
    plan_int(p, "experts", experts);
    if (r->known)
        plan_int(p, "rows", r->gathered);
    else
        plan_any(p, "rows");
    plan_int(p, "first_expert", p->at.ep * local);
    plan_int(p, "local_experts", local);
    gather_rows(p, "mlp.permute", s->dispatched, s->row_token, s->permuted);
    gather_rows(p, "mlp.permute_probs", s->dispatched_probs, row_entry, s->permuted_probs);
    s->gathered = s->permuted;
    s->gathered_probs = s->permuted_probs;
    if (plan_pads_rows(p))
        sort_rows(p, s);
}

void plan_dispatch(plan *p, plan_moe_saved *s)
{
    if (plan_gathers_tokens(p)) {
        gather_dispatch(p, s);
        return;
    }
    const plan_rows *r = &s->rows;
    const int64_t local = p->job->config->num_moe_experts / p->ep;
    s->local_counts = rows_tensor(p, r, "mlp.experts", "tokens_per_expert", r->room, local);
    if (!plan_sorts_rows(p))
        return;
    send_rows(p, r, "mlp.dispatch", "mlp.experts.gather", s->permuted, &s->dispatched, &s->gathered);
    send_rows(p, r, "mlp.dispatch_probs", "mlp.experts.gather_probs", s->permuted_probs, &s->dispatched_probs,
              &s->gathered_probs);
    sort_rows(p, s);
}

/* What the experts made -> rows as they arrived. */
static plan_tensor unsort_rows(plan *p, plan_moe_saved *s)
{
    const plan_tensor y = plan_whole_rows(p, plan_value(p, "mlp.unsort", "y", p->act), s->rows.gathered_ids);
    gather_rows(p, "mlp.unsort", s->fc2, s->unsort, y);
    return y;
}

plan_tensor plan_combine(plan *p, plan_moe_saved *s)
{
    if (plan_gathers_tokens(p)) {
        const plan_tensor sums = plan_value(p, "mlp.combine", "recv", p->act);
        s->returned = plan_pads_rows(p) ? unsort_rows(p, s) : s->fc2;
        s->unsorted = plan_value(p, "mlp.unpermute", "y", p->act);
        combine_rows(p, "mlp.unpermute", s->returned, s->token_row, s->unsorted);
        move_tokens(p, "reduce_scatter", "mlp.combine", &s->rows, s->unsorted, sums);
        return sums;
    }
    s->returned = s->fc2;
    if (plan_sorts_rows(p)) {
        s->unsorted = unsort_rows(p, s);
        s->reduced = s->unsorted;
        if (p->etp > 1) {
            s->reduced =
                plan_with_rows(plan_value(p, "mlp.experts.reduce", "recv", p->act), s->rows.dispatched);
            move_over_etp(p, "reduce_scatter", "mlp.experts.reduce", &s->rows, s->unsorted, s->reduced);
        }
        s->returned = s->reduced;
        if (p->ep > 1) {
            s->returned = plan_with_rows(plan_value(p, "mlp.combine", "recv", p->act), s->rows.mine);
            all_to_all(p, "mlp.combine", &s->rows, true, s->reduced, s->returned);
        }
    }
    const plan_tensor y = plan_value(p, "mlp.unpermute", "y", p->act);
    combine_rows(p, "mlp.unpermute", s->returned, s->token_row, y);
    return y;
}

plan_tensor plan_combine_backward(plan *p, plan_moe_saved *s, plan_tensor dy)
{
    if (plan_gathers_tokens(p)) {
        const plan_tensor dall = plan_grad(p, s->unsorted, p->act);
        const plan_tensor drows = plan_grad(p, s->returned, p->act), dfc2 = plan_grad(p, s->fc2, p->act);
        move_tokens(p, "all_gather", "mlp.combine", &s->rows, dy, dall);
        gather_rows(p, "mlp.unpermute", dall, s->row_token, drows);
        if (plan_pads_rows(p))
            gather_rows(p, "mlp.unsort", drows, s->sort, dfc2);
        return dfc2;
    }
    const plan_tensor dreturned = plan_grad(p, s->returned, p->act);
    gather_rows(p, "mlp.unpermute", dy, s->row_token, dreturned);
    if (!plan_sorts_rows(p))
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
static plan_tensor return_rows(plan *p, plan_moe_saved *s, const return_way *w, plan_tensor drows)
{
    if (!plan_sorts_rows(p))
        return drows;
    const plan_tensor dgathered =
        plan_whole_rows(p, plan_grad(p, w->gathered, drows.dtype), w->gathered.rows);
    gather_rows(p, w->sort_at, drows, s->unsort, dgathered);
    plan_tensor ddispatched = dgathered;
    if (plan_gathers_tokens(p))
        return dgathered;
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

/* Gradients of the rows and of their probs -> those of the tokens and of the router's probs. */
plan_tensor plan_dispatch_backward(plan *p, plan_moe_saved *s, plan_tensor drows, plan_tensor dprobs_rows,
                                   plan_tensor *dprobs)
{
    const plan_tensor dpermute = plan_value(p, "mlp.permute", "dx", p->act);
    *dprobs = plan_grad(p, s->probs, p->accumulated);
    const return_way rows = {"mlp.sort",  "mlp.experts.gather", "mlp.dispatch",
                             s->permuted, s->dispatched,        s->gathered},
                     probs = {"mlp.sort_probs",  "mlp.experts.gather_probs", "mlp.dispatch_probs",
                              s->permuted_probs, s->dispatched_probs,        s->gathered_probs};
    const plan_tensor dpermuted = return_rows(p, s, &rows, drows);
    const plan_tensor dpermuted_probs = return_rows(p, s, &probs, dprobs_rows);
    if (plan_gathers_tokens(p)) {
        const plan_tensor dtokens = plan_value(p, "mlp.dispatch", "dx", p->act);
        const plan_tensor dall = plan_grad(p, s->dispatched_probs, p->accumulated);
        combine_rows(p, "mlp.permute", dpermuted, s->token_row, dpermute);
        move_tokens(p, "reduce_scatter", "mlp.dispatch", &s->rows, dpermute, dtokens);
        gather_rows(p, "mlp.permute_probs", dpermuted_probs, s->token_row, dall);
        move_tokens(p, "reduce_scatter", "mlp.dispatch_probs", &s->rows, dall, *dprobs);
        return dtokens;
    }
    combine_rows(p, "mlp.permute", dpermuted, s->token_row, dpermute);
    gather_rows(p, "mlp.permute_probs", dpermuted_probs, s->token_row, *dprobs);
    return dpermute;
}
