/* Dense MLP of a layer, and the shared expert, which is one on the token shard.  docs/OPS.md section 9. */
#include "gpu/layer.h"
#include "gpu/parallel/tensor.h"

/* --- dense -------------------------------------------------------------------------------------------------- */
assay_status gpu_mlp_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *acts,
                         gpu_value *branch)
{
    gpu_run *run = m->run;
    gpu_mlp_acts *a = &acts->mlp;
    gpu_arena *keep = &mb->arena, *temp = &m->scratch;
    const int64_t F = m->config->ffn_hidden_size;
    const gpu_dim H = gpu_dim_hidden(m);
    gpu_value *x = &acts->norm;
    if (m->sp) {
        x = gpu_value_set(&a->gathered, gpu_tokens(m, keep, false, H));
        ASSAY_TRY(gpu_gather_from_sequence_parallel_region(m, "mlp.gather", x, &acts->norm));
    }
    ASSAY_TRY(GPU_CALL(run, "linear_fwd", "mlp.linear_fc1", GPU_T("x", x),
                       GPU_T("weight", gpu_param_use(m, l->linear_fc1)),
                       GPU_T("bias", gpu_param_use(m, l->linear_fc1_bias)),
                       GPU_NEW("y", &a->fc1, gpu_tokens(m, keep, false, gpu_dim_tp(m, 2 * F, 2)))));
    ASSAY_TRY(GPU_CALL(run, "swiglu_fwd", "mlp.activation", GPU_T("x", &a->fc1),
                       GPU_NEW("y", &a->act, gpu_tokens(m, keep, false, gpu_dim_tp(m, F, 1)))));
    ASSAY_TRY(GPU_CALL(run, "linear_fwd", "mlp.linear_fc2", GPU_T("x", &a->act),
                       GPU_T("weight", gpu_param_use(m, l->linear_fc2)),
                       GPU_T("bias", gpu_row_bias(m, l->linear_fc2_bias)),
                       GPU_NEW("y", &a->fc2, gpu_partial(m, gpu_tokens(m, temp, false, H), ASSAY_GROUP_TP))));
    return gpu_reduce_output(m, temp, "mlp.reduce", branch, &a->fc2);
}

assay_status gpu_mlp_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *acts, gpu_value *dy, gpu_value *dnorm)
{
    gpu_run *run = m->run;
    gpu_mlp_acts *a = &acts->mlp;
    gpu_value dfc2, dact, dfc1, dx, *x = m->sp ? &a->gathered : &acts->norm;
    ASSAY_TRY(gpu_gather_output_grad(m, "mlp.reduce", &dfc2, dy, &a->fc2));
    if (l->linear_fc2_bias)
        ASSAY_TRY(GPU_CALL(run, "linear_bwd_bias", "mlp.linear_fc2", GPU_T("dy", &dfc2),
                           GPU_T("dbias", gpu_param_grad(m, l->linear_fc2_bias))));
    ASSAY_TRY(GPU_CALL(run, "linear_bwd_weight", "mlp.linear_fc2", GPU_T("dy", &dfc2), GPU_T("x", &a->act),
                       GPU_T("dweight", gpu_param_grad(m, l->linear_fc2))));
    ASSAY_TRY(GPU_CALL(run, "linear_bwd_input", "mlp.linear_fc2", GPU_T("dy", &dfc2),
                       GPU_T("weight", gpu_param_use(m, l->linear_fc2)),
                       GPU_NEW("dx", &dact, gpu_grad_of(m, &a->act))));
    ASSAY_TRY(GPU_CALL(run, "swiglu_bwd", "mlp.activation", GPU_T("dy", &dact), GPU_T("x", &a->fc1),
                       GPU_NEW("dx", &dfc1, gpu_grad_of(m, &a->fc1))));
    if (l->linear_fc1_bias)
        ASSAY_TRY(GPU_CALL(run, "linear_bwd_bias", "mlp.linear_fc1", GPU_T("dy", &dfc1),
                           GPU_T("dbias", gpu_param_grad(m, l->linear_fc1_bias))));
    ASSAY_TRY(GPU_CALL(run, "linear_bwd_weight", "mlp.linear_fc1", GPU_T("dy", &dfc1), GPU_T("x", x),
                       GPU_T("dweight", gpu_param_grad(m, l->linear_fc1))));
    ASSAY_TRY(GPU_CALL(run, "linear_bwd_input", "mlp.linear_fc1", GPU_T("dy", &dfc1),
                       GPU_T("weight", gpu_param_use(m, l->linear_fc1)),
                       GPU_NEW("dx", &dx, gpu_partial(m, gpu_grad_of(m, x), ASSAY_GROUP_TP))));
    return gpu_reduce_input_grad(m, "mlp.reduce_grad", "mlp.gather", dnorm, &dx, &acts->norm);
}

/* --- shared expert ------------------------------------------------------------------------------------------ */
assay_status gpu_shared_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *acts,
                            gpu_value *y)
{
    gpu_run *run = m->run;
    gpu_moe_acts *moe = &acts->moe;
    gpu_shared_acts *a = &moe->shared;
    gpu_arena *keep = &mb->arena;
    const gpu_dim H = gpu_dim_hidden(m);
    const int64_t F = m->config->moe_shared_expert_intermediate_size;
    gpu_value *x = &moe->tokens;
    if (m->tp > 1) {
        x = gpu_value_set(&a->gathered, gpu_tokens(m, keep, false, H));
        ASSAY_TRY(gpu_gather_from_sequence_parallel_region(m, "mlp.shared_experts.gather", x, &moe->tokens));
    }
    ASSAY_TRY(GPU_CALL(run, "linear_fwd", "mlp.shared_experts.linear_fc1", GPU_T("x", x),
                       GPU_T("weight", gpu_param_use(m, l->shared_fc1)),
                       GPU_NEW("y", &a->fc1, gpu_tokens(m, keep, false, gpu_dim_tp(m, 2 * F, 2)))));
    ASSAY_TRY(GPU_CALL(run, "swiglu_fwd", "mlp.shared_experts.activation", GPU_T("x", &a->fc1),
                       GPU_NEW("y", &a->act, gpu_tokens(m, keep, false, gpu_dim_tp(m, F, 1)))));
    ASSAY_TRY(GPU_CALL(run, "linear_fwd", "mlp.shared_experts.linear_fc2", GPU_T("x", &a->act),
                       GPU_T("weight", gpu_param_use(m, l->shared_fc2)),
                       GPU_NEW("y", &a->fc2, gpu_partial(m, gpu_tokens(m, keep, false, H), ASSAY_GROUP_TP))));
    a->out = a->fc2;
    if (m->tp > 1) {
        a->out = gpu_tokens(m, keep, true, H);
        ASSAY_TRY(
            gpu_reduce_scatter_to_sequence_parallel_region(m, "mlp.shared_experts.reduce", &a->out, &a->fc2));
    }
    *y = a->out;
    if (l->shared_gate == NULL)
        return ASSAY_OK;
    ASSAY_TRY(GPU_CALL(run, "linear_fwd", "mlp.shared_experts.gating", GPU_T("x", &moe->tokens),
                       GPU_T("weight", gpu_param_use(m, l->shared_gate)),
                       GPU_NEW("y", &a->gate, gpu_tokens(m, keep, true, gpu_dim_whole(1)))));
    return GPU_CALL(run, "sigmoid_gate_fwd", "mlp.shared_experts.gate", GPU_T("x", &a->out),
                    GPU_T("gate", &a->gate), GPU_NEW("y", y, gpu_tokens(m, &m->scratch, true, H)));
}

/* dy -> gradient of the shared expert's output before the gate (*dout) and of the tokens through the gate */
static assay_status gate_bwd(gpu_model *m, gpu_layer *l, gpu_moe_acts *moe, gpu_value *dy, gpu_value *dout,
                             gpu_value *dtokens)
{
    gpu_run *run = m->run;
    gpu_shared_acts *a = &moe->shared;
    gpu_value dgate;
    ASSAY_TRY(GPU_CALL(run, "sigmoid_gate_bwd", "mlp.shared_experts.gate", GPU_T("dy", dy),
                       GPU_T("x", &a->out), GPU_T("gate", &a->gate),
                       GPU_NEW("dx", dout, gpu_grad_of(m, &a->out)),
                       GPU_NEW("dgate", &dgate, gpu_grad_of(m, &a->gate))));
    ASSAY_TRY(GPU_CALL(run, "linear_bwd_weight", "mlp.shared_experts.gating", GPU_T("dy", &dgate),
                       GPU_T("x", &moe->tokens), GPU_T("dweight", gpu_param_grad(m, l->shared_gate))));
    return GPU_CALL(run, "linear_bwd_input", "mlp.shared_experts.gating", GPU_T("dy", &dgate),
                    GPU_T("weight", gpu_param_use(m, l->shared_gate)),
                    GPU_NEW("dx", dtokens, gpu_tokens(m, &m->scratch, true, moe->tokens.dim[2])));
}

assay_status gpu_shared_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *acts, gpu_value *dy,
                            gpu_value *dtokens)
{
    gpu_run *run = m->run;
    gpu_moe_acts *moe = &acts->moe;
    gpu_shared_acts *a = &moe->shared;
    gpu_arena *temp = &m->scratch;
    const gpu_dim H = gpu_dim_hidden(m);
    gpu_value dout = *dy, dgated, dfc2, dact, dfc1, dx, dmlp, *x = m->tp > 1 ? &a->gathered : &moe->tokens;
    if (l->shared_gate)
        ASSAY_TRY(gate_bwd(m, l, moe, dy, &dout, &dgated));
    dfc2 = dout;
    if (m->tp > 1) {
        dfc2 = gpu_grad_of(m, &a->fc2);
        ASSAY_TRY(gpu_gather_from_sequence_parallel_region(m, "mlp.shared_experts.reduce", &dfc2, &dout));
    }
    ASSAY_TRY(GPU_CALL(run, "linear_bwd_weight", "mlp.shared_experts.linear_fc2", GPU_T("dy", &dfc2),
                       GPU_T("x", &a->act), GPU_T("dweight", gpu_param_grad(m, l->shared_fc2))));
    ASSAY_TRY(GPU_CALL(run, "linear_bwd_input", "mlp.shared_experts.linear_fc2", GPU_T("dy", &dfc2),
                       GPU_T("weight", gpu_param_use(m, l->shared_fc2)),
                       GPU_NEW("dx", &dact, gpu_grad_of(m, &a->act))));
    ASSAY_TRY(GPU_CALL(run, "swiglu_bwd", "mlp.shared_experts.activation", GPU_T("dy", &dact),
                       GPU_T("x", &a->fc1), GPU_NEW("dx", &dfc1, gpu_grad_of(m, &a->fc1))));
    ASSAY_TRY(GPU_CALL(run, "linear_bwd_weight", "mlp.shared_experts.linear_fc1", GPU_T("dy", &dfc1),
                       GPU_T("x", x), GPU_T("dweight", gpu_param_grad(m, l->shared_fc1))));
    ASSAY_TRY(GPU_CALL(run, "linear_bwd_input", "mlp.shared_experts.linear_fc1", GPU_T("dy", &dfc1),
                       GPU_T("weight", gpu_param_use(m, l->shared_fc1)),
                       GPU_NEW("dx", &dx, gpu_partial(m, gpu_tokens(m, temp, false, H), ASSAY_GROUP_TP))));
    dmlp = dx;
    if (m->tp > 1) {
        dmlp = gpu_named(m, gpu_tokens(m, temp, true, H), "mlp.shared_experts.gather", "dx");
        ASSAY_TRY(gpu_reduce_scatter_to_sequence_parallel_region(m, "mlp.shared_experts.gather", &dmlp, &dx));
    }
    *dtokens = dmlp;
    if (l->shared_gate == NULL)
        return ASSAY_OK;
    return GPU_CALL(run, "add", "mlp.shared_experts.gate_grad", GPU_T("a", &dmlp), GPU_T("b", &dgated),
                    GPU_NEW("y", dtokens, gpu_tokens(m, temp, true, H)));
}
