/* Mixer: MLA (multi-latent attention), docs/OPS.md 9.6. */
#include "parity/checks/plan.h"

typedef struct saved {
    plan_tensor x, positions;
    plan_tensor q_compressed, q_normed, q_whole, q, q_rotated;
    plan_tensor kv_combined, kv_compressed, k_pos, k_pos_whole, kv_whole, kv, k, v, proj;
    plan_norm q_norm, kv_norm;
    plan_context context;
} saved;

static bool compressed(const plan *p)
{
    return p->job->config->q_lora_rank > 0;
}

/* The linear that makes q of every head, and where what it reads is gathered and its gradient summed. */
typedef struct q_names {
    const char *linear, *weight, *gather, *reduce;
} q_names;
static q_names q_names_of(const plan *p)
{
    static const q_names up = {"self_attention.linear_q_up_proj", "self_attention.linear_q_up_proj.weight",
                               "self_attention.q_up.gather", "self_attention.q_up.reduce_grad"},
                         whole = {"self_attention.linear_q_proj", "self_attention.linear_q_proj.weight",
                                  "self_attention.q_proj.gather", "self_attention.q_proj.reduce_grad"};
    return compressed(p) ? up : whole;
}

static plan_norm inner_norm(plan *p, const char *at, plan_tensor x)
{
    return plan_rmsnorm_of(p, at, x, p->job->config->mla_layernorm_epsilon);
}

static plan_tensor down(plan *p, const char *at, plan_tensor x)
{
    return plan_linear(p, at, x, plan_text(p, "%s.weight", at), NULL, p->act);
}

/* One contribution to the gradient of the layer's input. */
static plan_tensor down_backward(plan *p, const char *at, plan_tensor dy, plan_tensor x)
{
    const plan_tensor dx = plan_value(p, at, "dx", p->act);
    plan_linear_backward(p, at, dy, x, plan_text(p, "%s.weight", at), NULL, dx);
    return dx;
}

static void q_attrs(plan *p)
{
    plan_int(p, "heads", plan_local_heads(p));
    plan_int(p, "head_dim", p->job->config->kv_channels);
}

static void latent_attrs(plan *p)
{
    plan_int(p, "kv_lora_rank", p->job->config->kv_lora_rank);
    plan_int(p, "qk_pos_emb_head_dim", p->job->config->qk_pos_emb_head_dim);
}

static void kv_attrs(plan *p)
{
    plan_int(p, "heads", plan_local_heads(p));
    plan_int(p, "qk_head_dim", p->job->config->qk_head_dim);
    plan_int(p, "v_head_dim", p->job->config->v_head_dim);
}

/* --- forward ------------------------------------------------------------------------------------------------ */

static void q_forward(plan *p, saved *s)
{
    const q_names n = q_names_of(p);
    s->q_normed = s->x;
    if (compressed(p)) {
        s->q_compressed = down(p, "self_attention.linear_q_down_proj", s->x);
        s->q_norm = inner_norm(p, "self_attention.q_layernorm", s->q_compressed);
        s->q_normed = s->q_norm.y;
    }
    s->q_whole = plan_column_input(p, n.gather, s->q_normed);
    s->q = plan_linear(p, n.linear, s->q_whole, n.weight, NULL, p->act);
}

static void kv_forward(plan *p, saved *s)
{
    static const char split[] = "self_attention.kv_down_split";
    s->kv_combined = down(p, "self_attention.linear_kv_down_proj", s->x);
    s->kv_compressed = plan_value(p, split, "kv_compressed", p->act);
    s->k_pos = plan_value(p, split, "k_pos_emb", p->act);
    plan_add(p, "kv_down_split_fwd", split);
    plan_in(p, "kv_combined", s->kv_combined);
    plan_out(p, "kv_compressed", s->kv_compressed);
    plan_out(p, "k_pos_emb", s->k_pos);
    latent_attrs(p);
    s->kv_norm = inner_norm(p, "self_attention.kv_layernorm", s->kv_compressed);
    s->kv_whole = plan_column_input(p, "self_attention.kv_up.gather", s->kv_norm.y);
    s->kv = plan_linear(p, "self_attention.linear_kv_up_proj", s->kv_whole,
                        "self_attention.linear_kv_up_proj.weight", NULL, p->act);
    s->k_pos_whole = plan_column_input(p, "self_attention.k_pos.gather", s->k_pos);
}

static void heads_forward(plan *p, saved *s)
{
    s->q_rotated = plan_value(p, "self_attention.rope_q", "y", p->act);
    s->k = plan_value(p, "self_attention.rope_kv", "k", p->act);
    s->v = plan_value(p, "self_attention.rope_kv", "v", p->act);
    plan_add(p, "mla_rope_q_fwd", "self_attention.rope_q");
    plan_in(p, "q", s->q);
    plan_rotation(p, s->positions);
    plan_out(p, "y", s->q_rotated);
    q_attrs(p);
    plan_add(p, "mla_rope_kv_fwd", "self_attention.rope_kv");
    plan_in(p, "kv", s->kv);
    plan_in(p, "k_pos_emb", s->k_pos_whole);
    plan_rotation(p, s->positions);
    plan_out(p, "k", s->k);
    plan_out(p, "v", s->v);
    kv_attrs(p);
}

static plan_tensor forward(plan *p, plan_tensor x, void *kept)
{
    saved *s = kept;
    s->x = x;
    s->positions = plan_positions(p);
    q_forward(p, s);
    kv_forward(p, s);
    heads_forward(p, s);
    s->context = plan_context_forward(p, s->q_rotated, s->k, s->v);
    s->proj = plan_linear(p, "self_attention.linear_proj", s->context.o, "self_attention.linear_proj.weight",
                          NULL, p->act);
    return plan_row_output(p, "self_attention.reduce", s->proj);
}

/* --- backward ----------------------------------------------------------------------------------------------- */

static plan_tensor kv_backward(plan *p, saved *s, plan_tensor dk, plan_tensor dv)
{
    const plan_tensor dkv = plan_grad(p, s->kv, p->act), dpos_whole = plan_grad(p, s->k_pos_whole, p->act),
                      dwhole = plan_grad(p, s->kv_whole, p->act),
                      dcompressed = plan_grad(p, s->kv_compressed, p->act),
                      dcombined = plan_grad(p, s->kv_combined, p->act);
    plan_add(p, "mla_rope_kv_bwd", "self_attention.rope_kv");
    plan_in(p, "dk", dk);
    plan_in(p, "dv", dv);
    plan_rotation(p, s->positions);
    plan_out(p, "dkv", dkv);
    plan_out(p, "dk_pos_emb", dpos_whole);
    kv_attrs(p);
    const plan_tensor dpos = plan_column_input_backward(
        p, "self_attention.k_pos.gather", "self_attention.k_pos.reduce_grad", dpos_whole, s->k_pos);
    plan_linear_backward(p, "self_attention.linear_kv_up_proj", dkv, s->kv_whole,
                         "self_attention.linear_kv_up_proj.weight", NULL, dwhole);
    const plan_tensor dnormed = plan_column_input_backward(
        p, "self_attention.kv_up.gather", "self_attention.kv_up.reduce_grad", dwhole, s->kv_norm.y);
    plan_rmsnorm_backward(p, "self_attention.kv_layernorm", &s->kv_norm, dnormed, dcompressed);
    plan_add(p, "kv_down_split_bwd", "self_attention.kv_down_split");
    plan_in(p, "dkv_compressed", dcompressed);
    plan_in(p, "dk_pos_emb", dpos);
    plan_out(p, "dkv_combined", dcombined);
    latent_attrs(p);
    return down_backward(p, "self_attention.linear_kv_down_proj", dcombined, s->x);
}

/* Of a gathered input that has other gradients, too: "<gather>.dx" is this one's piece. */
static plan_tensor contribution(plan *p, const q_names *n, plan_tensor dwhole)
{
    if (p->tp == 1)
        return dwhole;
    if (!p->sp)
        return plan_column_input_backward(p, n->gather, n->reduce, dwhole, dwhole);
    const plan_tensor dx = plan_value(p, n->gather, "dx", p->act);
    plan_scatter_sequence(p, n->gather, dwhole, dx);
    return dx;
}

static plan_tensor q_backward(plan *p, saved *s, plan_tensor drotated)
{
    const q_names n = q_names_of(p);
    const plan_tensor dq = plan_grad(p, s->q, p->act), dwhole = compressed(p)
                                                                    ? plan_grad(p, s->q_whole, p->act)
                                                                    : plan_value(p, n.linear, "dx", p->act);
    plan_add(p, "mla_rope_q_bwd", "self_attention.rope_q");
    plan_in(p, "dy", drotated);
    plan_rotation(p, s->positions);
    plan_out(p, "dx", dq);
    q_attrs(p);
    plan_linear_backward(p, n.linear, dq, s->q_whole, n.weight, NULL, dwhole);
    if (!compressed(p))
        return contribution(p, &n, dwhole);
    const plan_tensor dnormed = plan_column_input_backward(p, n.gather, n.reduce, dwhole, s->q_normed),
                      dcompressed = plan_grad(p, s->q_compressed, p->act);
    plan_rmsnorm_backward(p, "self_attention.q_layernorm", &s->q_norm, dnormed, dcompressed);
    return down_backward(p, "self_attention.linear_q_down_proj", dcompressed, s->x);
}

static plan_tensor backward(plan *p, plan_tensor dy, void *kept)
{
    saved *s = kept;
    const plan_tensor dproj = plan_row_output_backward(p, "self_attention.reduce", dy, s->proj),
                      d_o = plan_grad(p, s->context.o, p->act);
    plan_linear_backward(p, "self_attention.linear_proj", dproj, s->context.o,
                         "self_attention.linear_proj.weight", NULL, d_o);
    const plan_qkv d = plan_context_backward(p, &s->context, d_o);
    const plan_tensor of_kv = kv_backward(p, s, d.k, d.v), of_q = q_backward(p, s, d.q);
    return plan_add_op(p, "self_attention.input_grad", of_q, of_kv, plan_grad(p, s->x, p->act));
}

static void again(plan *p, plan_tensor x, void *kept)
{
    saved *s = kept;
    if (p->again.modules & ASSAY_RECOMPUTE_LAYERNORM) {
        plan_tensor q = x;
        if (compressed(p))
            q = inner_norm(p, "self_attention.q_layernorm", s->q_compressed).y;
        (void)plan_column_input(p, q_names_of(p).gather, q);
        const plan_norm kv = inner_norm(p, "self_attention.kv_layernorm", s->kv_compressed);
        (void)plan_column_input(p, "self_attention.kv_up.gather", kv.y);
    }
    if (p->again.modules & ASSAY_RECOMPUTE_CORE_ATTN)
        (void)plan_context_forward(p, s->q_rotated, s->k, s->v);
}

const plan_kind plan_mla = {.saved = sizeof(saved), .forward = forward, .backward = backward, .again = again};
