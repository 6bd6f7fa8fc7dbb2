/* Shared expert of an MoE layer: a dense MLP on the token shard, in the sequence-parallel form over tp. */
#include "parity/checks/plan.h"

plan_tensor plan_shared_input(plan *p, plan_tensor tokens)
{
    if (p->tp == 1)
        return tokens;
    const plan_tensor x = plan_value(p, "mlp.shared_experts.gather", "recv", p->act);
    plan_gather_sequence(p, "mlp.shared_experts.gather", tokens, x);
    return x;
}

plan_tensor plan_shared_forward(plan *p, plan_tensor tokens, plan_shared_saved *s)
{
    s->tokens = tokens;
    s->x = plan_shared_input(p, tokens);
    s->fc1 = plan_linear(p, "mlp.shared_experts.linear_fc1", s->x, "mlp.shared_experts.linear_fc1.weight",
                         NULL, p->act);
    s->act = plan_value(p, "mlp.shared_experts.activation", "y", p->act);
    plan_add(p, "swiglu_fwd", "mlp.shared_experts.activation");
    plan_in(p, "x", s->fc1);
    plan_out(p, "y", s->act);
    s->fc2 = plan_linear(p, "mlp.shared_experts.linear_fc2", s->act, "mlp.shared_experts.linear_fc2.weight",
                         NULL, p->act);
    s->out = s->fc2;
    if (p->tp > 1) {
        s->out = plan_value(p, "mlp.shared_experts.reduce", "recv", p->act);
        plan_scatter_sequence(p, "mlp.shared_experts.reduce", s->fc2, s->out);
    }
    if (!p->job->config->moe_shared_expert_gate)
        return s->out;
    s->gate =
        plan_linear(p, "mlp.shared_experts.gating", tokens, "mlp.shared_experts.gate_weight", NULL, p->act);
    const plan_tensor y = plan_value(p, "mlp.shared_experts.gate", "y", p->act);
    plan_add(p, "sigmoid_gate_fwd", "mlp.shared_experts.gate");
    plan_in(p, "x", s->out);
    plan_in(p, "gate", s->gate);
    plan_out(p, "y", y);
    return y;
}

/* dy -> gradient before the gate; *dtokens gets the gradient of the tokens through the gate. */
static plan_tensor gate_backward(plan *p, plan_tensor dy, plan_shared_saved *s, plan_tensor *dtokens)
{
    const plan_tensor dout = plan_grad(p, s->out, p->act), dgate = plan_grad(p, s->gate, p->act);
    plan_add(p, "sigmoid_gate_bwd", "mlp.shared_experts.gate");
    plan_in(p, "dy", dy);
    plan_in(p, "x", s->out);
    plan_in(p, "gate", s->gate);
    plan_out(p, "dx", dout);
    plan_out(p, "dgate", dgate);
    *dtokens = plan_value(p, "mlp.shared_experts.gating", "dx", p->act);
    plan_linear_backward(p, "mlp.shared_experts.gating", dgate, s->tokens, "mlp.shared_experts.gate_weight",
                         NULL, *dtokens);
    return dout;
}

plan_tensor plan_shared_backward(plan *p, plan_tensor dy, plan_shared_saved *s)
{
    const bool gate = p->job->config->moe_shared_expert_gate;
    plan_tensor dgated = {0};
    const plan_tensor dout = gate ? gate_backward(p, dy, s, &dgated) : dy;
    plan_tensor dfc2 = dout;
    if (p->tp > 1) {
        dfc2 = plan_grad(p, s->fc2, p->act);
        plan_gather_sequence(p, "mlp.shared_experts.reduce", dout, dfc2);
    }
    const plan_tensor dact = plan_grad(p, s->act, p->act), dfc1 = plan_grad(p, s->fc1, p->act);
    plan_linear_backward(p, "mlp.shared_experts.linear_fc2", dfc2, s->act,
                         "mlp.shared_experts.linear_fc2.weight", NULL, dact);
    plan_add(p, "swiglu_bwd", "mlp.shared_experts.activation");
    plan_in(p, "dy", dact);
    plan_in(p, "x", s->fc1);
    plan_out(p, "dx", dfc1);
    plan_tensor dx = plan_value(p, "mlp.shared_experts.linear_fc1", "dx", p->act);
    plan_linear_backward(p, "mlp.shared_experts.linear_fc1", dfc1, s->x,
                         "mlp.shared_experts.linear_fc1.weight", NULL, dx);
    if (p->tp > 1) {
        const plan_tensor piece = plan_value(p, "mlp.shared_experts.gather", "dx", p->act);
        plan_scatter_sequence(p, "mlp.shared_experts.gather", dx, piece);
        dx = piece;
    }
    if (!gate)
        return dx;
    return plan_add_op(p, "mlp.shared_experts.gate_grad", dx, dgated,
                       plan_value(p, "mlp.shared_experts.gate_grad", "y", p->act));
}
