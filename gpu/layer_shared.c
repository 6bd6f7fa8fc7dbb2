/* Shared expert: a dense MLP on the token shard, cut over tp in the sequence parallel form whether sp is on
 * or not. */
#include "gpu/layer.h"
#include "gpu/parallel/tensor.h"

assay_status gpu_shared_forward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved,
                                gpu_value *out)
{
    gpu_run *run = m->run;
    gpu_moe_saved *moe = &saved->moe;
    gpu_shared_saved *s = &moe->shared;
    gpu_arena *keep = &slot->arena;
    const gpu_dim H = gpu_dim_whole(m->config->hidden_size);
    const int64_t F = m->config->moe_shared_expert_intermediate_size;
    gpu_value *x = &moe->tokens;
    if (m->tp > 1) {
        x = &s->gathered;
        ASSAY_TRY(gpu_token_value(m, keep, x, "mlp.shared_experts.gather", "recv", false, H, m->act));
        ASSAY_TRY(gpu_gather_from_sequence_parallel_region(m, "mlp.shared_experts.gather", x, &moe->tokens));
    }
    ASSAY_TRY(gpu_token_value(m, keep, &s->fc1, "mlp.shared_experts.linear_fc1", "y", false,
                              gpu_dim_split(2 * F, 2, m->tp, m->at.tp), m->act));
    ASSAY_TRY(gpu_run_linear_fwd(run, "mlp.shared_experts.linear_fc1", &s->fc1, x,
                                 gpu_param_use(m, l->shared_fc1), NULL));
    ASSAY_TRY(gpu_token_value(m, keep, &s->act, "mlp.shared_experts.activation", "y", false,
                              gpu_dim_split(F, 1, m->tp, m->at.tp), m->act));
    ASSAY_TRY(gpu_run_swiglu_fwd(run, "mlp.shared_experts.activation", &s->act, &s->fc1, NULL));
    ASSAY_TRY(gpu_token_value(m, keep, &s->fc2, "mlp.shared_experts.linear_fc2", "y", false, H, m->act));
    gpu_value_partial(m, &s->fc2, ASSAY_GROUP_TP);
    ASSAY_TRY(gpu_run_linear_fwd(run, "mlp.shared_experts.linear_fc2", &s->fc2, &s->act,
                                 gpu_param_use(m, l->shared_fc2), NULL));
    s->out = s->fc2;
    if (m->tp > 1) {
        ASSAY_TRY(gpu_token_value(m, keep, &s->out, "mlp.shared_experts.reduce", "recv", true, H, m->act));
        ASSAY_TRY(gpu_reduce_scatter_to_sequence_parallel_region(m, "mlp.shared_experts.reduce", &s->out,
                                                                 &s->fc2, false));
    }
    *out = s->out;
    if (l->shared_gate == NULL)
        return ASSAY_OK;
    ASSAY_TRY(
        gpu_token_value(m, keep, &s->gate, "mlp.shared_experts.gating", "y", true, gpu_dim_whole(1), m->act));
    ASSAY_TRY(gpu_run_linear_fwd(run, "mlp.shared_experts.gating", &s->gate, &moe->tokens,
                                 gpu_param_use(m, l->shared_gate), NULL));
    ASSAY_TRY(gpu_token_value(m, &m->scratch, out, "mlp.shared_experts.gate", "y", true, H, m->act));
    return gpu_run_sigmoid_gate_fwd(run, "mlp.shared_experts.gate", out, &s->out, &s->gate);
}

/* dy -> gradient of the shared expert's output before the gate (*dout) and of the tokens through the gate */
static assay_status gate_backward(gpu_model *m, gpu_layer *l, gpu_layer_saved *saved, gpu_value *dy,
                                  gpu_value *dout, gpu_value *dtokens)
{
    gpu_run *run = m->run;
    gpu_moe_saved *moe = &saved->moe;
    gpu_shared_saved *s = &moe->shared;
    gpu_value dgate;
    ASSAY_TRY(gpu_grad_value(m, &m->scratch, dout, &s->out, m->act));
    ASSAY_TRY(gpu_grad_value(m, &m->scratch, &dgate, &s->gate, m->act));
    ASSAY_TRY(gpu_run_sigmoid_gate_bwd(run, "mlp.shared_experts.gate", dout, &dgate, dy, &s->out, &s->gate));
    ASSAY_TRY(gpu_run_linear_bwd_weight(run, "mlp.shared_experts.gating", gpu_param_grad(m, l->shared_gate),
                                        &dgate, &moe->tokens, false));
    ASSAY_TRY(gpu_token_value(m, &m->scratch, dtokens, "mlp.shared_experts.gating", "dx", true,
                              moe->tokens.dim[2], m->act));
    return gpu_run_linear_bwd_input(run, "mlp.shared_experts.gating", dtokens, &dgate,
                                    gpu_param_use(m, l->shared_gate));
}

assay_status gpu_shared_backward(gpu_model *m, gpu_layer *l, gpu_layer_saved *saved, gpu_value *dy,
                                 gpu_value *dtokens)
{
    gpu_run *run = m->run;
    gpu_moe_saved *moe = &saved->moe;
    gpu_shared_saved *s = &moe->shared;
    gpu_arena *temp = &m->scratch;
    const gpu_dim H = moe->tokens.dim[2];
    gpu_value dout = *dy, dgated, dfc2, dact, dfc1, dx, dmlp;
    if (l->shared_gate)
        ASSAY_TRY(gate_backward(m, l, saved, dy, &dout, &dgated));
    dfc2 = dout;
    if (m->tp > 1) {
        ASSAY_TRY(gpu_grad_value(m, temp, &dfc2, &s->fc2, m->act));
        ASSAY_TRY(gpu_gather_from_sequence_parallel_region(m, "mlp.shared_experts.reduce", &dfc2, &dout));
    }
    ASSAY_TRY(gpu_run_linear_bwd_weight(run, "mlp.shared_experts.linear_fc2",
                                        gpu_param_grad(m, l->shared_fc2), &dfc2, &s->act, false));
    ASSAY_TRY(gpu_grad_value(m, temp, &dact, &s->act, m->act));
    ASSAY_TRY(gpu_run_linear_bwd_input(run, "mlp.shared_experts.linear_fc2", &dact, &dfc2,
                                       gpu_param_use(m, l->shared_fc2)));
    ASSAY_TRY(gpu_grad_value(m, temp, &dfc1, &s->fc1, m->act));
    ASSAY_TRY(gpu_run_swiglu_bwd(run, "mlp.shared_experts.activation", &dfc1, NULL, &dact, &s->fc1, NULL));
    gpu_value *x = m->tp > 1 ? &s->gathered : &moe->tokens;
    ASSAY_TRY(gpu_run_linear_bwd_weight(run, "mlp.shared_experts.linear_fc1",
                                        gpu_param_grad(m, l->shared_fc1), &dfc1, x, false));
    ASSAY_TRY(gpu_token_value(m, temp, &dx, "mlp.shared_experts.linear_fc1", "dx", false, H, m->act));
    gpu_value_partial(m, &dx, ASSAY_GROUP_TP);
    ASSAY_TRY(gpu_run_linear_bwd_input(run, "mlp.shared_experts.linear_fc1", &dx, &dfc1,
                                       gpu_param_use(m, l->shared_fc1)));
    dmlp = dx;
    if (m->tp > 1) {
        ASSAY_TRY(gpu_token_value(m, temp, &dmlp, "mlp.shared_experts.gather", "dx", true, H, m->act));
        ASSAY_TRY(gpu_reduce_scatter_to_sequence_parallel_region(m, "mlp.shared_experts.gather", &dmlp, &dx,
                                                                 false));
    }
    *dtokens = dmlp;
    if (l->shared_gate == NULL)
        return ASSAY_OK;
    ASSAY_TRY(gpu_token_value(m, temp, dtokens, "mlp.shared_experts.gate_grad", "y", true, H, m->act));
    return gpu_run_add(run, "mlp.shared_experts.gate_grad", dtokens, &dmlp, &dgated);
}
