/* Attention over the keys of a context-parallel group: docs/OPS.md 9.5. */
#include "parity/checks/plan.h"

#include <math.h>

static plan_tensor position_leaf(plan *p, const char *name, const assay_sequence *sequence)
{
    const int64_t n = sequence->length * p->B;
    int64_t *value = plan_integers(p, n);
    for (int64_t t = 0; value != NULL && t < n; t++)
        value[t] = assay_sequence_position(sequence, t / p->B);
    const plan_tensor out = {
        .name = name, .phase = ASSAY_PHASE_FORWARD, .microbatch = -1, .dtype = ASSAY_I64};
    return plan_with_integers(out, value, n);
}

plan_tensor plan_positions(plan *p)
{
    return position_leaf(p, "position_ids", &p->sequence.region);
}

static plan_tensor key_positions(plan *p)
{
    return p->cp == 1 ? plan_positions(p) : position_leaf(p, "key_position_ids", &p->gathered);
}

static void attention_attrs(plan *p)
{
    const assay_model_config *c = p->job->config;
    plan_int(p, "batch", p->B);
    plan_int(p, "seq_q", p->sequence.region.length);
    plan_int(p, "seq_k", p->S);
    plan_int(p, "heads", plan_local_heads(p));
    plan_int(p, "groups", plan_local_groups(p));
    plan_int(p, "head_dim", c->kv_channels);
    plan_int(p, "head_dim_v", c->kv_channels);
    plan_f32(p, "scale", 1.0 / sqrt((double)c->kv_channels));
    plan_int(p, "window", c->window[p->layer]);
}

/* --- all_gather --------------------------------------------------------------------------------------------- */

/* Rows of s of every cp rank, where they are not equal. */
static void uneven_counts(plan *p)
{
    int64_t *counts = plan_integers(p, p->cp);
    bool even = true;
    for (int r = 0; counts != NULL && r < p->cp; r++) {
        counts[r] = assay_sequence_region_length(p->job->grid, p->S, r);
        even = even && counts[r] == counts[0];
    }
    if (!even)
        plan_list(p, "counts", counts, p->cp);
}

static void over_cp(plan *p, const char *op, const char *at, plan_tensor send, plan_tensor recv)
{
    plan_add_collective(p, op, at, ASSAY_GROUP_CP, send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
    uneven_counts(p);
}

static plan_tensor gather(plan *p, const char *at, plan_tensor piece)
{
    const plan_tensor whole = plan_value(p, at, "recv", piece.dtype);
    over_cp(p, "all_gather", at, piece, whole);
    return whole;
}

/* --- attention ---------------------------------------------------------------------------------------------- */

plan_context plan_context_forward(plan *p, plan_tensor q, plan_tensor k, plan_tensor v)
{
    plan_context c = {.q = q, .own_k = k, .own_v = v, .k = k, .v = v};
    if (p->cp > 1) {
        c.k = gather(p, "self_attention.gather_k", k);
        c.v = gather(p, "self_attention.gather_v", v);
    }
    c.o = plan_value(p, "self_attention.core_attention", "o", p->act);
    c.lse = plan_value(p, "self_attention.core_attention", "lse", p->accumulated);
    plan_add(p, "attention_fwd", "self_attention.core_attention");
    plan_in(p, "q", c.q);
    plan_in(p, "k", c.k);
    plan_in(p, "v", c.v);
    plan_in(p, "q_position", plan_positions(p));
    plan_in(p, "k_position", key_positions(p));
    plan_out(p, "o", c.o);
    plan_out(p, "lse", c.lse);
    attention_attrs(p);
    return c;
}

plan_qkv plan_context_backward(plan *p, const plan_context *c, plan_tensor d_o)
{
    const plan_qkv own = {.q = plan_grad(p, c->q, p->act),
                          .k = plan_grad(p, c->own_k, p->act),
                          .v = plan_grad(p, c->own_v, p->act)};
    const plan_tensor dk = plan_grad(p, c->k, p->act), dv = plan_grad(p, c->v, p->act);
    plan_add(p, "attention_bwd", "self_attention.core_attention");
    plan_in(p, "do", d_o);
    plan_in(p, "q", c->q);
    plan_in(p, "k", c->k);
    plan_in(p, "v", c->v);
    plan_in(p, "o", c->o);
    plan_in(p, "lse", c->lse);
    plan_in(p, "q_position", plan_positions(p));
    plan_in(p, "k_position", key_positions(p));
    plan_out(p, "dq", own.q);
    plan_out(p, "dk", dk);
    plan_out(p, "dv", dv);
    attention_attrs(p);
    if (p->cp > 1) {
        over_cp(p, "reduce_scatter", "self_attention.gather_k", dk, own.k);
        over_cp(p, "reduce_scatter", "self_attention.gather_v", dv, own.v);
    }
    return own;
}
