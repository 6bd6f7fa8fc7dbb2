/* MLP kind: dense, gated. */
#include "parity/checks/plan.h"

typedef struct saved {
    plan_tensor norm, x, fc1, act, fc2;
} saved;

static plan_tensor forward(plan *p, plan_tensor x, void *kept)
{
    saved *s = kept;
    const bool bias = p->job->config->add_mlp_bias;
    s->norm = x;
    s->x = plan_column_input(p, "mlp.gather", x);
    s->fc1 = plan_linear(p, "mlp.linear_fc1", s->x, "mlp.linear_fc1.weight",
                         bias ? "mlp.linear_fc1.bias" : NULL, p->act);
    s->act = plan_value(p, "mlp.activation", "y", p->act);
    plan_add(p, "swiglu_fwd", "mlp.activation");
    plan_in(p, "x", s->fc1);
    plan_out(p, "y", s->act);
    s->fc2 = plan_linear(p, "mlp.linear_fc2", s->act, "mlp.linear_fc2.weight",
                         bias && p->at.tp == 0 ? "mlp.linear_fc2.bias" : NULL, p->act);
    return plan_row_output(p, "mlp.reduce", s->fc2);
}

static plan_tensor backward(plan *p, plan_tensor dy, void *kept)
{
    saved *s = kept;
    const bool bias = p->job->config->add_mlp_bias;
    const plan_tensor dfc2 = plan_row_output_backward(p, "mlp.reduce", dy, s->fc2);
    const plan_tensor dact = plan_grad(p, s->act, p->act), dfc1 = plan_grad(p, s->fc1, p->act);
    const plan_tensor dx = plan_grad(p, s->x, p->act);
    plan_linear_backward(p, "mlp.linear_fc2", dfc2, s->act, "mlp.linear_fc2.weight",
                         bias ? "mlp.linear_fc2.bias" : NULL, dact);
    plan_add(p, "swiglu_bwd", "mlp.activation");
    plan_in(p, "dy", dact);
    plan_in(p, "x", s->fc1);
    plan_out(p, "dx", dfc1);
    plan_linear_backward(p, "mlp.linear_fc1", dfc1, s->x, "mlp.linear_fc1.weight",
                         bias ? "mlp.linear_fc1.bias" : NULL, dx);
    return plan_column_input_backward(p, "mlp.gather", "mlp.reduce_grad", dx, s->norm);
}

static void again(plan *p, plan_tensor x, void *kept)
{
    (void)kept;
    if (p->again.modules & ASSAY_RECOMPUTE_LAYERNORM)
        (void)plan_column_input(p, "mlp.gather", x);
}

const plan_kind plan_dense_mlp = {
    .saved = sizeof(saved), .forward = forward, .backward = backward, .again = again};
