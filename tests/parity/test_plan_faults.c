/* Laws: an honest run holds the plan; every fault of the tables is named where it was planted, in fp32 and in
 * bf16: operation, instance, slot or attribute, rank, step and microbatch. */
#include "tests/support/plan_faults.h"

/* Wrong attributes, inputs and integers of two tensor-parallel ranks that share the experts. */
static const fault tensor_parallel[] = {
    {"attr", "attention_fwd", A0 "core_attention", "scale", "0.5", false, 1, 1, 0, NULL},
    {"attr", "linear_bwd_weight", A0 "linear_qkv", "gradient_accumulation_fusion", "false", false, 1, 0, 1,
     NULL},
    {"attr", "grouped_linear_bwd_weight", M1 "experts.linear_fc1", "gradient_accumulation_fusion", "null",
     false, 0, 1, 0, NULL},
    {"attr", "linear_bwd_weight", A0 "linear_qkv", "accumulate", "true", false, 0, 1, 0, NULL},
    {"attr", "linear_bwd_weight", A0 "linear_qkv", "accumulate", "false", false, 1, 1, 1, NULL},
    {"attr", "grouped_linear_bwd_weight", M1 "experts.linear_fc2", "accumulate", "null", false, 1, 0, 0,
     NULL},
    {"attr", "linear_bwd_bias", A0 "linear_proj", "accumulate", "true", false, 1, 0, 0, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "window", "0", false, 0, 0, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "heads", "4", false, 1, 0, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "window", "4", false, 0, 1, 0, NULL},
    {"attr", "qkv_split_fwd", A0 "qkv_split", "groups", "2", false, 0, 1, 1, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "first_token", "1", false, 0, 0, 0, NULL},
    {"attr", "rmsnorm_fwd", L0 "input_layernorm", "eps", "1e-6", false, 1, 0, 0, NULL},
    {"attr", "rmsnorm_fwd", A0 "q_layernorm", "eps", "1e-5", false, 0, 1, 1, NULL},
    {"attr", "clamp_fwd", A0 "clip_q", "limit", "0.25", false, 1, 0, 1, NULL},
    {"attr", "clamp_bwd", A0 "clip_v", "limit", "null", false, 0, 1, 0, NULL},
    {"attr", "rmsnorm_bwd", "decoder.final_layernorm", "eps", "null", false, 1, 1, 1, NULL},
    {"attr", "rope_table", "rope", "rotary_base", "500000.0", false, 0, 1, -1, NULL},
    {"attr", "rope_table", "rope", "rope_type", "\"default\"", false, 1, 0, -1, NULL},
    {"attr", "rope_table", "rope", "factor", "4.0", false, 0, 0, -1, NULL},
    {"attr", "rope_table", "rope", "positions", "8", false, 1, 1, -1, NULL},
    {"attr", "router_fwd", M1 "router", "topk", "1", false, 0, 0, 0, NULL},
    {"attr", "router_fwd", M1 "router", "scaling_factor", "1.0", false, 1, 1, 1, NULL},
    {"attr", "router_bwd", M1 "router", "pre_softmax", "true", false, 0, 1, 0, NULL},
    {"attr", "router_bwd", M1 "router", "num_groups", "0", false, 1, 0, 1, NULL},
    {"attr", "router_aux_loss", M1 "router.aux_loss", "aux_coeff", "0.1", false, 0, 1, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.aux", "z_coeff", "0.0", false, 1, 0, 0, NULL},
    {"attr", "router_aux_bwd", M1 "router.aux", "tokens", "7", false, 0, 0, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.aux", "loss_scale", "1.0", false, 1, 1, 0, NULL},
    {"attr", "cross_entropy_bwd", "loss", "scale", "0.5", false, 0, 1, 0, NULL},
    {"attr", "cross_entropy_bwd", "loss", "vocab_start", "20", false, 1, 0, 1, NULL},
    {"attr", "cross_entropy_stats", "loss.stats", "vocab_start", "1", false, 0, 0, 0, NULL},
    {"attr", "embedding_bwd", "embedding", "vocab_start", "0", false, 1, 1, 1, NULL},
    {"attr", "embedding_bwd", "embedding", "padding_idx", "0", false, 0, 1, 0, NULL},
    {"attr", "linear_fwd", "output_layer", "dtype", "\"F16\"", false, 1, 1, 0, NULL},
    {"attr", "adamw", L1 "mlp.router.weight", "lr", "0.002001", false, 0, 0, -1, NULL},
    {"attr", "adamw", "decoder.final_layernorm.weight", "step", "1", false, 1, 1, -1, NULL},
    {"attr", "adamw", "decoder.final_layernorm.weight", "weight_decay", "0.1", false, 0, 1, -1, NULL},
    {"rewire", "adamw", A0 "linear_qkv.weight", "grad_scale", "grad_norm", INPUT, 1, 0, -1, NULL},
    {"attr", "clip_coefficient", "grad_norm", "clip_grad", "0.5", false, 0, 1, -1, NULL},
    {"attr", "expert_bias_update", M1 "router.expert_bias", "rate", "0.01", false, 0, 0, -1, NULL},
    {"as_bf16", "router_fwd", M1 "router", "expert_bias", "", INPUT, 1, 0, 1, NULL},
    {"as_bf16", "expert_bias_update", M1 "router.expert_bias", "bias", "", false, 0, 1, -1, NULL},
    {"attr", "all_gather", A0 "gather", "counts", "[3, 4]", false, 1, 0, 0, NULL},
    {"attr", "reduce_scatter", A0 "reduce", "reduction", "\"max\"", false, 0, 1, 1, NULL},
    {"attr", "reduce_scatter", "embedding.reduce", "dtype", "\"F64\"", false, 1, 1, 0, NULL},
    {"attr", "all_to_all", M1 "dispatch", "counts", "[1, 1]", false, 0, 0, 1, NULL},
    {"group", "all_reduce", "grad_norm.reduce", "", "dp_cp", false, 1, 1, -1, "group"},
    {"group", "all_to_all", M1 "combine", "", "tp", false, 0, 1, 0, "group"},
    {"group", "all_reduce", L0 "input_layernorm.weight", "", "model", false, 1, 0, -1, "group"},
    {"rewire", "linear_bwd_weight", A0 "linear_qkv", "x", "", INPUT, 0, 1, 1, NULL},
    {"rewire", "clamp_bwd", A0 "clip_k", "x", "", INPUT, 1, 1, 1, NULL},
    {"rewire", "attention_bwd", A0 "core_attention", "k", "", INPUT, 1, 0, 1, NULL},
    {"rewire", "rmsnorm_bwd", "decoder.final_layernorm", "rstd", "", INPUT, 0, 0, 1, NULL},
    {"rewire", "rmsnorm_fwd", L0 "pre_mlp_layernorm", "x", L0 "input_layernorm.y", INPUT, 1, 1, 0, NULL},
    {"rewire", "linear_fwd", A0 "linear_proj", "bias", A0 "linear_proj.bias", INPUT, 1, 1, 0, NULL},
    {"rewire", "router_aux_bwd", M1 "router.aux", "tokens_per_expert", M1 "router.aux.tokens_per_expert",
     INPUT, 0, 1, 1, NULL},
    {"unreduced", "all_reduce", M1 "router.aux_counts", "recv", "", false, 1, 0, 1, NULL},
    {"unreduced", "all_reduce", M1 "router.expert_counts", "recv", "", false, 0, 1, -1, NULL},
    {"shift", "embedding_fwd", "embedding", "ids", "", INPUT, 0, 1, 1, NULL},
    {"shift", "cross_entropy_bwd", "loss", "targets", "", INPUT, 1, 0, 0, NULL},
    {"shift", "attention_fwd", A0 "core_attention", "k_position", "", INPUT, 0, 0, 1, NULL},
    {"shift", "rope_bwd", A0 "rope_q", "position", "", INPUT, 1, 1, 0, NULL},
    {"shift", "gather_rows", M1 "sort", "index", "", INPUT, 0, 0, 0, NULL},
    {"shift", "gather_rows", M1 "unsort", "index", "", INPUT, 1, 0, 1, NULL},
    {"shift", "combine_rows", M1 "unpermute", "token_row", "", INPUT, 0, 1, 0, NULL},
    {"value", "gather_rows", M1 "permute_probs", "index", "", INPUT, 1, 1, 1, NULL},
    {"row_shift", "gather_rows", M1 "permute", "y", "", false, 1, 0, 1, NULL},
    {"row_other_rank", "gather_rows", M1 "permute", "y", "", false, 0, 1, 0, NULL},
    {"row_shift", "all_to_all", M1 "dispatch", "recv", "", false, 0, 0, 1, NULL},
    {"row_other_rank", "all_to_all", M1 "dispatch", "recv", "", false, 1, 1, 0, NULL},
    {"row_shift", "gather_rows", M1 "sort", "y", "", false, 0, 1, 1, NULL},
    {"row_local", "gather_rows", M1 "sort", "y", "", false, 1, 1, 0, NULL},
    {"local", "rmsnorm_fwd", L0 "input_layernorm", "y", "", false, 1, 1, 0, NULL},
    {"local", "linear_fwd", A0 "linear_qkv", "y", "", false, 0, 0, 1, NULL},
    {"local", "add", L0 "mlp.residual", "y", "", false, 1, 0, 1, NULL},
    {"local", "router_fwd", M1 "router", "indices", "", false, 0, 1, 1, NULL},
    {"local", "cross_entropy_bwd", "loss", "dlogits", "", false, 1, 1, 0, NULL},
    {"local", "grouped_linear_fwd", M1 "experts.linear_fc1", "y", "", false, 0, 0, 1, NULL},
    {"row_local", "all_to_all", M1 "combine", "recv", "", false, 0, 0, 0, NULL},
    {"row_other_rank", "gather_rows", M1 "sort", "y", "", false, 1, 0, 0, NULL},
    {"value", "grouped_linear_fwd", M1 "experts.linear_fc1", "tokens_per_expert", "", INPUT, 0, 0, 1, NULL},
    {"value", "permute_plan", M1 "permute_plan", "row_entry", "", false, 1, 0, 0, NULL},
    {"value", "all_gather", M1 "dispatch_counts", "recv", "", false, 0, 1, 1, NULL},
    {"value", "router_aux_fwd", M1 "router.aux", "tokens_per_expert", "", false, 1, 1, 0, NULL},
    {"drop_op", "all_reduce", A0 "q_layernorm.weight", "", "", false, 1, 1, -1, "operation"},
    {"repeat_op", "all_reduce", L1 "mlp.router.weight", "", "", false, 0, 0, -1, "operation"},
    {"repeat_op", "linear_bwd_bias", A0 "linear_proj", "", "", false, 1, 0, 1, "operation"},
    {"drop_op", "sumsq", A0 "linear_qkv.weight", "", "", false, 1, 0, -1, "operation"},
    {"recompute", "linear_fwd", A0 "linear_qkv", "", "", false, 1, 0, 1, "recompute"},
    {"late_op", "all_gather", A0 "reduce", "", "", false, 0, 1, 1, "order"},
};

/* Stages and a distributed optimizer. */
static const fault pipeline[] = {
    {"attr", "send", "pipeline.send_forward", "peer", "0", false, 0, 0, 0, NULL},
    {"attr", "recv", "pipeline.recv_backward", "peer", "0", false, 1, 1, 1, NULL},
    {"attr", "recv", "pipeline.recv_forward", "dtype", "\"F64\"", false, 3, 0, 1, NULL},
    {"group", "send", "pipeline.send_backward", "", "world", false, 2, 0, 0, "group"},
    {"late_op", "embedding_bwd", "embedding", "", "", false, 0, 1, 0, "order"},
    {"other_rank", "embedding_fwd", "embedding", "ids", "", INPUT, 0, 1, 0, NULL},
    {"other_rank", "cross_entropy_loss", "loss", "targets", "", INPUT, 2, 0, 0, NULL},
    {"group", "reduce_scatter", A0 "linear_qkv.weight", "", "tp", false, 1, 1, -1, "group"},
    {"drop_op", "all_reduce", "embedding.word_embeddings.weight", "", "", false, 2, 0, -1, "operation"},
    {"drop_op", "all_gather", L1 "mlp.shared_experts.linear_fc1.weight", "", "", false, 3, 1, -1,
     "operation"},
    {"repeat_op", "sumsq", "embedding.word_embeddings.weight", "", "", false, 0, 1, -1, "operation"},
    {"attr", "adamw", "embedding.word_embeddings.weight", "step", "3", false, 0, 1, -1, NULL},
    {"value", "total", "grad_norm.total", "x", "", INPUT, 1, 0, -1, NULL},
    {"value", "total", "loss.total", "x", "", INPUT, 2, 1, -1, NULL},
    {"rewire", "all_reduce", "grad_norm.reduce", "send", "loss.total.y", INPUT, 1, 0, -1, NULL},
    {"rewire", "clip_coefficient", "grad_norm", "sumsq", "grad_norm.total.y", INPUT, 2, 1, -1, NULL},
    {"drop_op", "clip_coefficient", "grad_norm", "", "", false, 3, 0, -1, "operation"},
    {"group", "all_reduce", "grad_norm.reduce", "", "model", false, 3, 0, -1, "group"},
};

/* Chunks: layers 0 and 2 on stage 0, 1 and 3 on stage 1. */
static const fault chunks[] = {
    {"attr", "send", "pipeline.send_forward", "peer", "1", false, 1, 0, 0, NULL}, /* the ring is closed */
    {"attr", "recv", "pipeline.recv_forward", "peer", "0", false, 0, 1, 1, NULL},
    {"attr", "send", "pipeline.send_backward", "peer", "0", false, 0, 1, 0, NULL},
    {"attr", "recv", "pipeline.recv_backward", "peer", "1", false, 1, 0, 1, NULL},
    {"rewire", "rmsnorm_fwd", "decoder.layers.2.input_layernorm", "x", L0 "mlp.residual.y", INPUT, 0, 1, 1,
     NULL},
    {"rewire", "rmsnorm_bwd", "decoder.layers.3.input_layernorm", "rstd", L1 "input_layernorm.rstd", INPUT, 1,
     0, 1, NULL},
    {"late_op", "rmsnorm_fwd", "decoder.layers.2.input_layernorm", "", "", false, 0, 0, 0, "order"},
    {"late_op", "send", "pipeline.send_backward", "", "", false, 1, 1, 0, "order"},
    {"drop_op", "recv", "pipeline.recv_forward", "", "", false, 0, 0, 1, "operation"},
    {"repeat_op", "send", "pipeline.send_forward", "", "", false, 1, 1, 1, "operation"},
    {"drop_op", "all_reduce", "embedding.word_embeddings.weight", "", "", false, 1, 0, -1, "operation"},
    {"attr", "expert_bias_update", "decoder.layers.3.mlp.router.expert_bias", "rate", "0.01", false, 1, 0, -1,
     NULL},
};

/* The loss of positions 0-2, 3-5 and 6 one after the other; a fault without a part is planted in the first. */
static const fault loss_parts[] = {
    {"attr", "cross_entropy_bwd", "loss", "scale", "0.5", false, 0, 1, 0, NULL},
    {"attr", "cross_entropy_stats", "loss.stats", "vocab_start", "1", false, 1, 0, 1, NULL},
    {"attr", "linear_bwd_weight", "output_layer", "accumulate", "true", false, 0, 0, 0, NULL},
    {"shift", "cross_entropy_bwd", "loss", "targets", "", INPUT, 1, 0, 0, NULL},
    {"shift", "cross_entropy_loss", "loss", "targets", "", INPUT, 0, 1, 1, NULL},
    {"rewire", "linear_bwd_weight", "output_layer", "x", "", INPUT, 0, 1, 1, NULL},
    {"drop_op", "sum", "loss.sum", "", "", false, 1, 0, 1, "operation"},
    {"repeat_op", "all_gather", "loss.gather", "", "", false, 0, 1, 0, "operation"},
    {"recompute", "linear_fwd", "output_layer", "", "", false, 1, 0, 1, "recompute"},
};

/* tp without sp: an MoE layer cuts its tokens itself. */
static const fault scattered[] = {
    {"attr", "slice_rows", M1 "scatter", "start", "1", false, 1, 0, 1, NULL},
    {"attr", "slice_rows", M1 "scatter", "length", "7", false, 0, 1, 0, NULL},
    {"attr", "slice_rows", M1 "gather_tokens", "start", "0", false, 1, 1, 1, NULL},
    {"attr", "all_reduce", A0 "reduce", "dtype", "\"F64\"", false, 0, 0, 0, NULL},
    {"group", "all_reduce", A0 "reduce_grad", "", "world", false, 1, 0, 1, "group"},
    {"drop_op", "all_reduce", L0 "mlp.reduce_grad", "", "", false, 0, 1, 1, "operation"},
    {"repeat_op", "all_reduce", L0 "mlp.reduce", "", "", false, 1, 1, 0, "operation"},
    {"drop_op", "all_gather", M1 "shared_experts.gather", "", "", false, 0, 0, 1, "operation"},
};

/* Experts cut over etp and dealt out over ep, on four ranks; ranks 0 and 1 run microbatch 0, the others 1. */
static const fault expert_slices[] = {
    {"group", "all_gather", M1 "dispatch_counts", "", "ep", false, 1, 0, 0, "group"},
    {"group", "all_gather", M1 "experts.gather", "", "ep", false, 2, 1, 1, "group"},
    {"group", "all_gather", M1 "experts.gather_probs", "", "tp_dp_cp", false, 3, 0, 1, "group"},
    {"group", "reduce_scatter", M1 "experts.reduce", "", "ep", false, 0, 1, 0, "group"},
    {"attr", "all_gather", M1 "experts.gather", "counts", "[1, 1]", false, 1, 1, 0, NULL},
    {"attr", "reduce_scatter", M1 "experts.reduce", "counts", "[1, 1]", false, 2, 0, 1, NULL},
    {"attr", "reduce_scatter", M1 "experts.reduce", "reduction", "\"max\"", false, 3, 0, 1, NULL},
    {"attr", "reduce_scatter", M1 "experts.gather_probs", "dtype", "\"F64\"", false, 0, 0, 0, NULL},
    {"attr", "all_to_all", M1 "dispatch", "counts", "[1, 1]", false, 3, 1, 1, NULL},
    {"drop_op", "reduce_scatter", M1 "experts.reduce", "", "", false, 1, 0, 0, "operation"},
    {"repeat_op", "reduce_scatter", M1 "experts.reduce", "", "", false, 2, 1, 1, "operation"},
    {"drop_op", "reduce_scatter", M1 "experts.gather", "", "", false, 0, 1, 0, "operation"},
    {"repeat_op", "reduce_scatter", M1 "experts.gather_probs", "", "", false, 3, 0, 1, "operation"},
    {"drop_op", "all_gather", M1 "experts.reduce", "", "", false, 2, 0, 1, "operation"},
    {"rewire", "all_to_all", M1 "combine", "send", M1 "dispatch.recv", INPUT, 1, 1, 0, NULL},
    {"shift", "gather_rows", M1 "sort", "index", "", INPUT, 2, 0, 1, NULL},
    {"shift", "gather_rows", M1 "unsort", "index", "", INPUT, 3, 1, 1, NULL},
    {"row_shift", "gather_rows", M1 "permute", "y", "", false, 3, 0, 1, NULL},
    {"row_other_rank", "all_to_all", M1 "dispatch", "recv", "", false, 2, 1, 1, NULL},
    {"row_shift", "all_gather", M1 "experts.gather", "recv", "", false, 0, 0, 0, NULL},
    {"row_other_rank", "all_gather", M1 "experts.gather", "recv", "", false, 1, 1, 0, NULL},
    {"row_shift", "gather_rows", M1 "sort", "y", "", false, 2, 0, 1, NULL},
    {"value", "all_gather", M1 "dispatch_counts", "recv", "", false, 0, 0, 0, NULL},
    {"value", "grouped_linear_fwd", M1 "experts.linear_fc2", "tokens_per_expert", "", INPUT, 1, 1, 0, NULL},
    {"drop_op", "sumsq", M1 "experts.linear_fc1.weight", "", "", false, 1, 0, -1, "operation"},
};

/* The all-gather dispatcher on four ranks; ranks 0 and 1 run microbatch 0, the others 1. */
static const fault gathered_tokens[] = {
    {"group", "all_gather", M1 "dispatch", "", "etp", false, 1, 0, 0, "group"},
    {"group", "all_gather", M1 "dispatch_indices", "", "world", false, 2, 1, 1, "group"},
    {"group", "reduce_scatter", M1 "combine", "", "ep", false, 3, 0, 1, "group"},
    {"group", "reduce_scatter", M1 "dispatch_probs", "", "etp", false, 0, 1, 0, "group"},
    {"attr", "reduce_scatter", M1 "dispatch", "counts", "[7, 7, 7, 7]", false, 1, 1, 0, NULL},
    {"attr", "permute_plan", M1 "dispatch_plan", "first_expert", "1", false, 2, 0, 1, NULL},
    {"attr", "permute_plan", M1 "dispatch_plan", "local_experts", "4", false, 3, 1, 1, NULL},
    {"attr", "permute_plan", M1 "dispatch_plan", "rows", "1", false, 0, 0, 0, NULL},
    {"rewire", "permute_plan", M1 "dispatch_plan", "indices", M1 "router.indices", INPUT, 1, 1, 0, NULL},
    {"value", "permute_plan", M1 "dispatch_plan", "token_row", "", false, 2, 1, 1, NULL},
    {"value", "permute_plan", M1 "dispatch_plan", "row_token", "", false, 0, 0, 0, NULL},
    {"shift", "gather_rows", M1 "permute", "index", "", INPUT, 1, 1, 0, NULL},
    {"value", "gather_rows", M1 "permute_probs", "index", "", INPUT, 3, 0, 1, NULL},
    {"drop_op", "reduce_scatter", M1 "combine", "", "", false, 0, 1, 0, "operation"},
    {"repeat_op", "reduce_scatter", M1 "dispatch", "", "", false, 1, 0, 0, "operation"},
    {"drop_op", "reduce_scatter", M1 "dispatch_probs", "", "", false, 2, 0, 1, "operation"},
    {"drop_op", "all_gather", M1 "combine", "", "", false, 3, 1, 1, "operation"},
    {"row_shift", "gather_rows", M1 "permute", "y", "", false, 2, 0, 1, NULL},
    {"row_local", "gather_rows", M1 "permute_probs", "y", "", false, 1, 0, 0, NULL},
};
/* The same without etp: what the experts make is whole, too. */
static const fault gathered_whole_rows[] = {
    {"row_shift", "gather_rows", M1 "permute", "y", "", false, 1, 1, 1, NULL},
    {"row_local", "grouped_linear_fwd", M1 "experts.linear_fc1", "y", "", false, 0, 0, 0, NULL},
    {"row_local", "swiglu_bwd", M1 "experts.activation", "dprobs", "", false, 1, 0, 1, NULL},
};

/* Experts with a capacity, decided over two tp ranks. */
static const fault capacities[] = {
    {"attr", "router_drop", M1 "router.drop", "capacity", "3", false, 0, 0, 1, NULL},
    {"attr", "router_drop", M1 "router.drop", "start", "1", false, 1, 1, 0, NULL},
    {"attr", "permute_plan", M1 "permute_plan", "rows", "1", false, 0, 1, 1, NULL},
    {"shift", "router_drop", M1 "router.drop", "token", "", INPUT, 1, 0, 0, NULL},
    {"rewire", "router_drop", M1 "router.drop", "all_probs", M1 "router.probs", INPUT, 0, 0, 0, NULL},
    {"rewire", "permute_plan", M1 "permute_plan", "indices", M1 "router.indices", INPUT, 1, 1, 1, NULL},
    {"group", "all_gather", M1 "router.drop_indices", "", "world", false, 1, 0, 1, "group"},
    {"group", "all_gather", M1 "router.drop_probs", "", "world", false, 0, 1, 0, "group"},
    {"drop_op", "all_gather", M1 "router.drop_probs", "", "", false, 1, 1, 0, "operation"},
    {"value", "router_drop", M1 "router.drop", "tokens_per_expert", "", false, 0, 0, 1, NULL},
    {"value", "permute_plan", M1 "permute_plan", "token_row", "", false, 1, 0, 0, NULL},
    {"row_shift", "gather_rows", M1 "permute", "y", "", false, 1, 1, 1, NULL},
    {"row_other_rank", "gather_rows", M1 "permute", "y", "", false, 0, 0, 1, NULL},
    {"row_shift", "all_gather", M1 "experts.gather", "recv", "", false, 1, 0, 0, NULL},
    {"row_shift", "gather_rows", M1 "sort", "y", "", false, 0, 1, 0, NULL},
    {"value", "expert_bias_update", M1 "router.expert_bias", "tokens_per_expert", "", INPUT, 0, 1, -1, NULL},
};

/* Experts padded to their capacity, or to multiples of 16: rows, their order and their ids. */
static const fault padded[] = {
    {"value", "grouped_linear_fwd", M1 "experts.linear_fc1", "tokens_per_expert", "", INPUT, 0, 0, 0, NULL},
    {"value", "grouped_linear_bwd_weight", M1 "experts.linear_fc2", "tokens_per_expert", "", INPUT, 1, 1, 1,
     NULL},
    {"shift", "gather_rows", M1 "sort", "index", "", INPUT, 1, 0, 1, NULL},
    {"shift", "gather_rows", M1 "sort_probs", "index", "", INPUT, 0, 1, 0, NULL},
    {"shift", "gather_rows", M1 "unsort", "index", "", INPUT, 0, 1, 0, NULL},
    {"row_shift", "gather_rows", M1 "sort", "y", "", false, 1, 1, 1, NULL},
    {"row_local", "gather_rows", M1 "sort_probs", "y", "", false, 0, 0, 0, NULL},
    {"rewire", "grouped_linear_fwd", M1 "experts.linear_fc1", "x", M1 "permute.y", INPUT, 1, 0, 1, NULL},
    {"rewire", "swiglu_fwd", M1 "experts.activation", "probs", M1 "permute_probs.y", INPUT, 0, 1, 0, NULL},
    {"drop_op", "gather_rows", M1 "sort_probs", "", "", false, 1, 1, 1, "operation"},
    {"repeat_op", "gather_rows", M1 "unsort", "", "", false, 0, 0, 0, "operation"},
};

/* Experts chosen by random logits. */
static const fault forced[] = {
    {"attr", "random_logits", M1 "router.random_logits", "draw", "0", false, 0, 0, 1, NULL},
    {"attr", "random_logits", M1 "router.random_logits", "draw", "1", false, 1, 1, 0, NULL},
    {"attr", "random_logits", M1 "router.random_logits", "layer", "0", false, 1, 0, 0, NULL},
    {"attr", "random_logits", M1 "router.random_logits", "tokens", "7", false, 0, 1, 1, NULL},
    {"shift", "random_logits", M1 "router.random_logits", "token", "", INPUT, 1, 1, 1, NULL},
    {"rewire", "router_fwd", M1 "router", "logits", M1 "router.gating.y", INPUT, 0, 0, 0, NULL},
    {"rewire", "router_aux_fwd", M1 "router.aux", "logits", M1 "router.gating.y", INPUT, 1, 0, 1, NULL},
    {"rewire", "router_bwd", M1 "router", "logits", M1 "router.gating.y", INPUT, 0, 1, 0, NULL},
    {"rewire", "router_aux_bwd", M1 "router.aux", "logits", M1 "router.gating.y", INPUT, 1, 1, 1, NULL},
    {"drop_op", "random_logits", M1 "router.random_logits", "", "", false, 1, 0, 0, "operation"},
    {"repeat_op", "random_logits", M1 "router.random_logits", "", "", false, 0, 1, 0, "operation"},
};

static void expect_all_of(const char *model, const char *layout, assay_precision precision,
                          const fault *faults, size_t n)
{
    const bool gathers =
        faults == gathered_tokens || faults == gathered_whole_rows || strstr(layout, " allgather");
    const bool drops = faults == capacities || strstr(layout, " padded");
    expect_faults(model, layout, precision, drops ? 0.5 : 0.0,
                  gathers ? ASSAY_DISPATCHER_ALLGATHER : ASSAY_DISPATCHER_ALLTOALL, faults, n);
}

static void expect_all(const char *layout, assay_precision precision, const fault *faults, size_t n)
{
    expect_all_of(plan_model, layout, precision, faults, n);
}

/* An engine whose stages agree on another order: no number differs, and the plan names the first pass out of place. */
static void expect_order(const char *model, const char *layout, int rank, assay_precision precision)
{
    plan_cell c;
    plan_cell_run(&c, model, layout, precision, "forwards_first");
    parity_report *r = plan_judge(&c, c.trace);
    const parity_claim *f = first_failure(r);
    cr_assert(f != NULL, "%s: not caught", layout);
    cr_expect(strcmp(f->tensor, "order") == 0 && f->rank == rank, "%s: rank %d, %s %s: %s", layout, f->rank,
              f->instance, f->tensor, f->message);
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *one = parity_report_at(r, i);
        cr_expect(one->verdict != PARITY_FAIL || strcmp(one->tensor, "order") == 0, "%s: %s", one->instance,
                  one->message);
    }
    parity_report_destroy(r);
    plan_cell_free(&c);
}

Test(parity_plan_faults, tensor_parallel_fp32)
{
    expect_all("tp2,sp,ep2", ASSAY_PRECISION_FP32, TABLE(tensor_parallel));
}

Test(parity_plan_faults, tensor_parallel_bf16)
{
    expect_all("tp2,sp,ep2", ASSAY_PRECISION_BF16, TABLE(tensor_parallel));
}

Test(parity_plan_faults, loss_in_parts_fp32)
{
    expect_all("tp2,sp parts", ASSAY_PRECISION_FP32, TABLE(loss_parts));
}

Test(parity_plan_faults, loss_in_parts_bf16)
{
    expect_all("tp2,sp parts", ASSAY_PRECISION_BF16, TABLE(loss_parts));
}

Test(parity_plan_faults, stages_and_distributed_optimizer_fp32)
{
    expect_all("pp2,dp2,zero1", ASSAY_PRECISION_FP32, TABLE(pipeline));
}

Test(parity_plan_faults, stages_and_distributed_optimizer_bf16)
{
    expect_all("pp2,dp2,zero1", ASSAY_PRECISION_BF16, TABLE(pipeline));
}

Test(parity_plan_faults, scattered_tokens_fp32)
{
    expect_all("tp2", ASSAY_PRECISION_FP32, TABLE(scattered));
}

Test(parity_plan_faults, scattered_tokens_bf16)
{
    expect_all("tp2", ASSAY_PRECISION_BF16, TABLE(scattered));
}

Test(parity_plan_faults, slices_of_experts_fp32)
{
    expect_all("tp2,sp,etp2,ep2,dp2", ASSAY_PRECISION_FP32, TABLE(expert_slices));
}

Test(parity_plan_faults, slices_of_experts_bf16)
{
    expect_all("tp2,sp,etp2,ep2,dp2", ASSAY_PRECISION_BF16, TABLE(expert_slices));
}

Test(parity_plan_faults, gathered_tokens_fp32)
{
    expect_all("tp2,sp,etp2,ep2,dp2", ASSAY_PRECISION_FP32, TABLE(gathered_tokens));
}

Test(parity_plan_faults, gathered_tokens_bf16)
{
    expect_all("tp2,sp,etp2,ep2,dp2", ASSAY_PRECISION_BF16, TABLE(gathered_tokens));
}

Test(parity_plan_faults, gathered_whole_rows_fp32)
{
    expect_all("dp2,ep2", ASSAY_PRECISION_FP32, TABLE(gathered_whole_rows));
}

/* Without an exchange, where rows are sent, and among gathered tokens. */
Test(parity_plan_faults, padded_experts_fp32)
{
    expect_all("dp2 padded", ASSAY_PRECISION_FP32, TABLE(padded));
    expect_all("tp2,sp fp8", ASSAY_PRECISION_FP32, TABLE(padded));
    expect_all("dp2,ep2 padded allgather", ASSAY_PRECISION_FP32, TABLE(padded));
}

Test(parity_plan_faults, forced_balancing_fp32)
{
    expect_all("tp2,sp,ep2 forced", ASSAY_PRECISION_FP32, TABLE(forced));
}

Test(parity_plan_faults, capacities_fp32)
{
    expect_all("tp2,sp,etp2", ASSAY_PRECISION_FP32, TABLE(capacities));
}

Test(parity_plan_faults, gathered_whole_rows_bf16)
{
    expect_all("dp2,ep2", ASSAY_PRECISION_BF16, TABLE(gathered_whole_rows));
}

/* Without an exchange, where rows are sent, and among gathered tokens. */
Test(parity_plan_faults, padded_experts_bf16)
{
    expect_all("dp2 padded", ASSAY_PRECISION_BF16, TABLE(padded));
    expect_all("tp2,sp fp8", ASSAY_PRECISION_BF16, TABLE(padded));
    expect_all("dp2,ep2 padded allgather", ASSAY_PRECISION_BF16, TABLE(padded));
}

Test(parity_plan_faults, forced_balancing_bf16)
{
    expect_all("tp2,sp,ep2 forced", ASSAY_PRECISION_BF16, TABLE(forced));
}

Test(parity_plan_faults, capacities_bf16)
{
    expect_all("tp2,sp,etp2", ASSAY_PRECISION_BF16, TABLE(capacities));
}

Test(parity_plan_faults, interleaved_chunks_fp32)
{
    expect_all_of(plan_deep_model, "pp2,vpp2", ASSAY_PRECISION_FP32, TABLE(chunks));
}

Test(parity_plan_faults, interleaved_chunks_bf16)
{
    expect_all_of(plan_deep_model, "pp2,vpp2", ASSAY_PRECISION_BF16, TABLE(chunks));
}

Test(parity_plan_faults, stages_in_another_order_fp32)
{
    expect_order(plan_model, "pp2", 1, ASSAY_PRECISION_FP32);
    expect_order(plan_deep_model, "pp2,vpp2", 1, ASSAY_PRECISION_FP32);
}

Test(parity_plan_faults, stages_in_another_order_bf16)
{
    expect_order(plan_model, "pp2", 1, ASSAY_PRECISION_BF16);
    expect_order(plan_deep_model, "pp2,vpp2", 1, ASSAY_PRECISION_BF16);
}

/* The trace says that it is of this layout. */
static void say_layout(plan_cell *c, const char *layout)
{
    char path[400];
    snprintf(path, sizeof path, "%s/index.json", c->trace_dir);
    assay_trace_close(c->trace);
    json_t *index = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    cr_assert_not_null(index);
    cr_assert_eq(json_object_set_new(index, "layout", json_string(layout)), 0);
    cr_assert_eq(json_dump_file(index, path, 0), 0);
    json_decref(index);
    c->trace = open_trace(c->trace_dir);
}

/* An engine that cuts the layers elsewhere: every stage's numbers are right, and the plan names the first pass that has a
 * layer too many or too few. */
static void expect_boundary(const char *layout, const char *planted, const char *instance, int rank,
                            assay_precision precision)
{
    assay_parallel_config p;
    plan_cell c;
    plan_cell_run(&c, plan_deep_model, planted, precision, "");
    must(assay_layout_parse(layout, &p));
    must(assay_grid_make(&p, &c.grid));
    say_layout(&c, layout);
    parity_report *r = plan_judge(&c, c.trace);
    const parity_claim *f = first_failure(r);
    cr_assert(f != NULL, "%s as %s: not caught", layout, planted);
    cr_expect(strcmp(f->instance, instance) == 0 && f->rank == rank && f->step == 0 && f->microbatch == 0,
              "%s as %s: rank %d, %s %s: %s", layout, planted, f->rank, f->instance, f->tensor, f->message);
    parity_report_destroy(r);
    plan_cell_free(&c);
}

static void expect_boundaries(assay_precision precision)
{
    expect_boundary("pp2,first1", "pp2", L1 "input_layernorm", 0, precision);
    expect_boundary("pp2,last1", "pp2", "decoder.layers.2.input_layernorm", 0, precision);
    expect_boundary("pp3,stages=E|t*4|L", "pp3,stages=Et|t*3|L", L0 "input_layernorm", 0, precision);
    expect_boundary("pp2,stages=Et|t|t*2|L", "pp2,vpp2", "decoder.layers.3.input_layernorm", 0, precision);
}

Test(parity_plan_faults, stages_cut_elsewhere_fp32)
{
    expect_boundaries(ASSAY_PRECISION_FP32);
}

Test(parity_plan_faults, stages_cut_elsewhere_bf16)
{
    expect_boundaries(ASSAY_PRECISION_BF16);
}

/* Two query groups on four ranks: ranks 0 and 1 hold the same key and value head. */
static const fault shared_heads[] = {
    {"drop_op", "all_reduce", A0 "linear_qkv.weight", "", "", false, 1, 0, -1, "operation"},
    {"repeat_op", "all_reduce", A0 "linear_qkv.weight", "", "", false, 2, 1, -1, "operation"},
    {"drop_op", "all_reduce", L1 "self_attention.linear_qkv.bias", "", "", false, 3, 1, -1, "operation"},
    {"group", "all_reduce", A0 "linear_qkv.weight", "", "tp", false, 0, 1, -1, "group"},
    {"group", "all_reduce", L1 "self_attention.linear_qkv.bias", "", "kv_head", false, 1, 0, -1, "group"},
    {"attr", "all_reduce", A0 "linear_qkv.weight", "start", "0", false, 3, 0, -1, NULL},
    {"attr", "all_reduce", L1 "self_attention.linear_qkv.bias", "start", "null", false, 2, 1, -1, NULL},
    {"repeat_op", "sumsq", A0 "linear_qkv.weight", "", "", false, 1, 0, -1, "operation"},
    {"attr", "adamw", A0 "linear_qkv.weight", "weight_decay", "0.0", false, 3, 1, -1, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "heads", "2", false, 1, 0, 1, NULL},
    {"attr", "qkv_split_bwd", A0 "qkv_split", "groups", "2", false, 2, 1, 0, NULL},
};

Test(parity_plan_faults, shared_key_and_value_heads_fp32)
{
    expect_all("tp4,sp", ASSAY_PRECISION_FP32, TABLE(shared_heads));
}

Test(parity_plan_faults, shared_key_and_value_heads_bf16)
{
    expect_all("tp4,sp", ASSAY_PRECISION_BF16, TABLE(shared_heads));
}
