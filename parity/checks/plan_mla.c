/* Mixer: MLA, its calls between ranks alone (docs/OPS.md 9.6).  No engine computes it and no file can ask for it, so that no
 * trace is ever judged by this; a dry run walks it. */
#include "parity/checks/plan.h"

typedef struct saved {
    plan_tensor q, kv, k_pos, o;
    plan_context context;
} saved;

/* Input of a column-parallel linear: what was compressed, or the layer's input where q is not. */
static const char *q_gather(const plan *p)
{
    return p->job->config->q_lora_rank > 0 ? "self_attention.q_up.gather" : "self_attention.q_proj.gather";
}

static plan_tensor forward(plan *p, plan_tensor x, void *kept)
{
    saved *s = kept;
    s->q = p->job->config->q_lora_rank > 0 ? plan_value(p, "self_attention.q_layernorm", "y", p->act) : x;
    s->kv = plan_value(p, "self_attention.kv_layernorm", "y", p->act);
    s->k_pos = plan_value(p, "self_attention.linear_kv_down_proj", "k_pos", p->act);
    s->o = plan_value(p, "self_attention.linear_proj", "y", p->act);
    (void)plan_column_input(p, q_gather(p), s->q);
    (void)plan_column_input(p, "self_attention.kv_up.gather", s->kv);
    (void)plan_column_input(p, "self_attention.k_pos.gather", s->k_pos);
    if (p->cp > 1)
        s->context = plan_context_forward(p, plan_value(p, "self_attention.rope_q", "y", p->act),
                                          plan_value(p, "self_attention.rope_k", "y", p->act),
                                          plan_value(p, "self_attention.linear_kv_up_proj", "v", p->act));
    return plan_row_output(p, "self_attention.reduce", s->o);
}

static plan_tensor backward(plan *p, plan_tensor dy, void *kept)
{
    saved *s = kept;
    const bool compressed = p->job->config->q_lora_rank > 0;
    (void)plan_row_output_backward(p, "self_attention.reduce", dy, s->o);
    if (p->cp > 1)
        (void)plan_context_backward(p, &s->context, plan_grad(p, s->context.o, p->act));
    (void)plan_column_input_backward(p, "self_attention.k_pos.gather", "self_attention.k_pos.reduce_grad",
                                     plan_grad(p, s->k_pos, p->act), s->k_pos);
    (void)plan_column_input_backward(p, "self_attention.kv_up.gather", "self_attention.kv_up.reduce_grad",
                                     plan_grad(p, s->kv, p->act), s->kv);
    return plan_column_input_backward(
        p, q_gather(p), compressed ? "self_attention.q_up.reduce_grad" : "self_attention.q_proj.reduce_grad",
        plan_grad(p, s->q, p->act), s->q);
}

const plan_kind plan_mla = {.saved = sizeof(saved), .forward = forward, .backward = backward};
