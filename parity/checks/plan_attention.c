/* Mixer: self attention with grouped queries and rotary positions. */
#include "parity/checks/plan.h"

typedef struct saved {
    plan_tensor norm, x, qkv, q_raw, k_raw, v_raw, q_in, k_in, q_clip, k_clip, q_rotated, k_rotated, v, proj,
        positions;
    plan_context context;
    plan_norm q_norm, k_norm;
} saved;

/* Groups and heads of this tp rank; one that shares its group has a part of its A/G heads. */
int64_t plan_local_groups(const plan *p)
{
    const int64_t groups = p->job->config->num_query_groups;
    return groups < p->tp ? 1 : plan_piece(groups, p->tp, p->at.tp, NULL);
}

int64_t plan_local_heads(const plan *p)
{
    return plan_piece(p->job->config->num_attention_heads, p->tp, p->at.tp, NULL);
}

static void split_attrs(plan *p)
{
    plan_int(p, "heads", plan_local_heads(p));
    plan_int(p, "groups", plan_local_groups(p));
    plan_int(p, "head_dim", p->job->config->kv_channels);
}

void plan_rotation(plan *p, plan_tensor position)
{
    const plan_tensor table = {.phase = ASSAY_PHASE_FORWARD, .microbatch = -1, .dtype = p->accumulated};
    plan_tensor cos_table = table, sin_table = table;
    cos_table.name = "rope.cos";
    sin_table.name = "rope.sin";
    plan_in(p, "cos", cos_table);
    plan_in(p, "sin", sin_table);
    plan_in(p, "position", position);
}

static void rope(plan *p, bool backward, const char *at, plan_tensor in, plan_tensor out,
                 plan_tensor position)
{
    plan_add(p, backward ? "rope_bwd" : "rope_fwd", at);
    plan_in(p, backward ? "dy" : "x", in);
    plan_rotation(p, position);
    plan_out(p, backward ? "dx" : "y", out);
}

static plan_tensor clamp(plan *p, const char *at, plan_tensor x)
{
    const plan_tensor y = plan_value(p, at, "y", p->act);
    plan_add(p, "clamp_fwd", at);
    plan_in(p, "x", x);
    plan_out(p, "y", y);
    plan_real(p, "limit", p->job->config->clip_qkv, 0.0);
    return y;
}

/* Gradient of x, the clamp's input. */
static plan_tensor clamp_backward(plan *p, const char *at, plan_tensor dy, plan_tensor x)
{
    const plan_tensor dx = plan_grad(p, x, p->act);
    plan_add(p, "clamp_bwd", at);
    plan_in(p, "dy", dy);
    plan_in(p, "x", x);
    plan_out(p, "dx", dx);
    plan_real(p, "limit", p->job->config->clip_qkv, 0.0);
    return dx;
}

/* qkv -> q and k after norm, clamp and rotation, v after its clamp */
static void heads_forward(plan *p, saved *s)
{
    const bool norm = p->job->config->qk_layernorm, clip = p->job->config->clip_qkv > 0.0;
    s->q_raw = plan_value(p, "self_attention.qkv_split", "q", p->act);
    s->k_raw = plan_value(p, "self_attention.qkv_split", "k", p->act);
    s->v_raw = plan_value(p, "self_attention.qkv_split", "v", p->act);
    plan_add(p, "qkv_split_fwd", "self_attention.qkv_split");
    plan_in(p, "qkv", s->qkv);
    plan_out(p, "q", s->q_raw);
    plan_out(p, "k", s->k_raw);
    plan_out(p, "v", s->v_raw);
    split_attrs(p);
    s->v = s->v_raw;
    plan_tensor q = s->q_raw, k = s->k_raw;
    if (norm) {
        s->q_norm = plan_qk_layernorm(p, "self_attention.q_layernorm", false, q);
        s->k_norm = plan_qk_layernorm(p, "self_attention.k_layernorm", true, k);
        q = s->q_norm.y;
        k = s->k_norm.y;
    }
    s->q_in = s->q_clip = q;
    s->k_in = s->k_clip = k;
    if (clip) {
        s->q_clip = clamp(p, "self_attention.clip_q", q);
        s->k_clip = clamp(p, "self_attention.clip_k", k);
        s->v = clamp(p, "self_attention.clip_v", s->v_raw);
    }
    s->q_rotated = plan_value(p, "self_attention.rope_q", "y", p->act);
    s->k_rotated = plan_value(p, "self_attention.rope_k", "y", p->act);
    rope(p, false, "self_attention.rope_q", s->q_clip, s->q_rotated, s->positions);
    rope(p, false, "self_attention.rope_k", s->k_clip, s->k_rotated, s->positions);
}

static plan_tensor forward(plan *p, plan_tensor x, void *kept)
{
    saved *s = kept;
    const assay_model_config *c = p->job->config;
    s->norm = x;
    s->positions = plan_positions(p);
    s->x = plan_column_input(p, "self_attention.gather", x);
    s->qkv = plan_linear(p, "self_attention.linear_qkv", s->x, "self_attention.linear_qkv.weight",
                         c->add_qkv_bias ? "self_attention.linear_qkv.bias" : NULL, p->act);
    heads_forward(p, s);
    s->context = plan_context_forward(p, s->q_rotated, s->k_rotated, s->v);
    /* The sum over tp holds the bias once. */
    s->proj =
        plan_linear(p, "self_attention.linear_proj", s->context.o, "self_attention.linear_proj.weight",
                    c->add_proj_bias && p->at.tp == 0 ? "self_attention.linear_proj.bias" : NULL, p->act);
    return plan_row_output(p, "self_attention.reduce", s->proj);
}

/* Gradients of q and k after rotation -> gradient of qkv */
static plan_tensor heads_backward(plan *p, saved *s, plan_tensor dq, plan_tensor dk, plan_tensor dv)
{
    const bool norm = p->job->config->qk_layernorm, clip = p->job->config->clip_qkv > 0.0;
    const plan_tensor dq_raw = plan_grad(p, s->q_raw, p->act), dk_raw = plan_grad(p, s->k_raw, p->act);
    const plan_tensor dqkv = plan_grad(p, s->qkv, p->act);
    plan_tensor dq_in = plan_grad(p, s->q_clip, p->act), dk_in = plan_grad(p, s->k_clip, p->act);
    rope(p, true, "self_attention.rope_q", dq, dq_in, s->positions);
    rope(p, true, "self_attention.rope_k", dk, dk_in, s->positions);
    if (clip) {
        dq_in = clamp_backward(p, "self_attention.clip_q", dq_in, s->q_in);
        dk_in = clamp_backward(p, "self_attention.clip_k", dk_in, s->k_in);
        dv = clamp_backward(p, "self_attention.clip_v", dv, s->v_raw);
    }
    if (norm) {
        plan_qk_layernorm_backward(p, "self_attention.q_layernorm", false, &s->q_norm, dq_in, dq_raw);
        plan_qk_layernorm_backward(p, "self_attention.k_layernorm", true, &s->k_norm, dk_in, dk_raw);
    }
    plan_add(p, "qkv_split_bwd", "self_attention.qkv_split");
    plan_in(p, "dq", dq_raw);
    plan_in(p, "dk", dk_raw);
    plan_in(p, "dv", dv);
    plan_out(p, "dqkv", dqkv);
    split_attrs(p);
    return dqkv;
}

static plan_tensor backward(plan *p, plan_tensor dy, void *kept)
{
    saved *s = kept;
    const assay_model_config *c = p->job->config;
    const plan_tensor dproj = plan_row_output_backward(p, "self_attention.reduce", dy, s->proj);
    const plan_tensor d_o = plan_grad(p, s->context.o, p->act), dx = plan_grad(p, s->x, p->act);
    plan_linear_backward(p, "self_attention.linear_proj", dproj, s->context.o,
                         "self_attention.linear_proj.weight",
                         c->add_proj_bias ? "self_attention.linear_proj.bias" : NULL, d_o);
    const plan_qkv d = plan_context_backward(p, &s->context, d_o);
    const plan_tensor dqkv = heads_backward(p, s, d.q, d.k, d.v);
    plan_linear_backward(p, "self_attention.linear_qkv", dqkv, s->x, "self_attention.linear_qkv.weight",
                         c->add_qkv_bias ? "self_attention.linear_qkv.bias" : NULL, dx);
    return plan_column_input_backward(p, "self_attention.gather", "self_attention.reduce_grad", dx, s->norm);
}

static void again(plan *p, plan_tensor x, void *kept)
{
    saved *s = kept;
    if (p->again.modules & ASSAY_RECOMPUTE_LAYERNORM)
        (void)plan_column_input(p, "self_attention.gather", x);
    if (p->again.modules & ASSAY_RECOMPUTE_CORE_ATTN)
        (void)plan_context_forward(p, s->q_rotated, s->k_rotated, s->v);
}

const plan_kind plan_self_attention = {
    .saved = sizeof(saved), .forward = forward, .backward = backward, .again = again};
