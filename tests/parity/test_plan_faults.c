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
    {"attr", "linear_fwd", "output_layer", "dtype", "\"F16\"", false, 1, 1, 0, NULL},
    {"attr", "adamw", L1 "mlp.router.weight", "lr", "0.002001", false, 0, 0, -1, NULL},
    {"attr", "adamw", "decoder.final_layernorm.weight", "step", "1", false, 1, 1, -1, NULL},
    {"attr", "adamw", "decoder.final_layernorm.weight", "weight_decay", "0.1", false, 0, 1, -1, NULL},
    {"attr", "adamw", A0 "linear_qkv.weight", "grad_scale", "1.0", false, 1, 0, -1, NULL},
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
    {"row_local", "all_to_all", M1 "combine", "recv", "", false, 0, 0, 0, NULL},
    {"row_other_rank", "gather_rows", M1 "sort", "y", "", false, 1, 0, 0, NULL},
    {"value", "grouped_linear_fwd", M1 "experts.linear_fc1", "tokens_per_expert", "", INPUT, 0, 0, 1, NULL},
    {"value", "permute_plan", M1 "permute_plan", "row_slot", "", false, 1, 0, 0, NULL},
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
    {"value", "all_reduce", "grad_norm.reduce", "send", "", INPUT, 1, 0, -1, NULL},
    {"value", "all_reduce", "loss.reduce", "send", "", INPUT, 2, 1, -1, NULL},
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

/* Context parallelism: S = 7 is cut in chunks of 2, 2, 2, 1; rank 0 of cp has 3 positions, rank 1 has 4. */
static const fault gathered_keys[] = {
    {"attr", "all_gather", A0 "gather_k", "counts", "[4, 3]", false, 2, 0, 0, NULL},
    {"attr", "reduce_scatter", A0 "gather_v", "counts", "[4, 3]", false, 1, 1, 1, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "seq_q", "7", false, 0, 0, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "seq_k", "3", false, 0, 1, 0, NULL},
    {"attr", "all_gather", A0 "gather", "counts", "[1, 2]", false, 0, 0, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.aux", "tokens", "6", false, 3, 0, 1, NULL},
    {"attr", "cross_entropy_bwd", "loss", "scale", "0.0625", false, 2, 1, 0, NULL},
    {"group", "all_gather", A0 "gather_v", "", "tp", false, 3, 1, 0, "group"},
    {"group", "reduce_scatter", A0 "gather_k", "", "world", false, 0, 0, 1, "group"},
    {"group", "all_reduce", M1 "router.aux_counts", "", "tp", false, 2, 1, 1, "group"},
    {"group", "all_reduce", A0 "linear_qkv.weight", "", "dp", false, 1, 1, -1, "group"},
    {"rewire", "attention_bwd", A0 "core_attention", "k", "", INPUT, 1, 0, 1, NULL},
    {"shift", "attention_fwd", A0 "core_attention", "k_position", "", INPUT, 2, 0, 1, NULL},
    {"shift", "attention_bwd", A0 "core_attention", "q_position", "", INPUT, 3, 1, 0, NULL},
    {"shift", "rope_fwd", A0 "rope_k", "position", "", INPUT, 0, 1, 1, NULL},
    {"shift", "embedding_fwd", "embedding", "ids", "", INPUT, 2, 1, 0, NULL},
    {"drop_op", "reduce_scatter", A0 "gather_k", "", "", false, 1, 0, 0, "operation"},
    {"repeat_op", "reduce_scatter", A0 "gather_v", "", "", false, 2, 1, 1, "operation"},
    {"drop_op", "all_gather", L1 "self_attention.gather_v", "", "", false, 3, 0, 1, "operation"},
    {"drop_op", "all_reduce", A0 "linear_proj.weight", "", "", false, 0, 1, -1, "operation"},
};

/* Heads dealt out over two ranks. */
static const fault dealt_heads[] = {
    {"attr", "all_to_all", A0 "a2a_q", "recv_counts", "[4, 3]", false, 0, 0, 1, NULL},
    {"attr", "all_to_all", A0 "a2a_o", "counts", "[4, 3]", false, 1, 1, 0, NULL},
    {"attr", "pack_heads", A0 "pack_k", "heads", "4", false, 0, 1, 1, NULL},
    {"attr", "unpack_heads", A0 "unpack_o", "parts", "1", false, 1, 0, 0, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "heads", "4", false, 1, 1, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "seq_q", "3", false, 0, 0, 0, NULL},
    {"group", "all_to_all", A0 "a2a_v", "", "tp", false, 1, 0, 1, "group"},
    {"rewire", "attention_bwd", A0 "core_attention", "v", "", INPUT, 0, 1, 1, NULL},
    {"rewire", "linear_fwd", A0 "linear_proj", "x", A0 "core_attention.o", INPUT, 1, 0, 0, NULL},
    {"shift", "attention_fwd", A0 "core_attention", "q_position", "", INPUT, 0, 0, 0, NULL},
    {"drop_op", "all_to_all", A0 "a2a_k", "", "", false, 1, 1, 0, "operation"},
    {"repeat_op", "unpack_heads", A0 "pack_v", "", "", false, 0, 0, 1, "operation"},
};

/* A ring of three: S = 7 is cut in chunks of 2, 1, 1, 1, 1, 1. */
static const fault ring[] = {
    {"attr", "send", A0 "ring.1.send_k", "peer", "2", false, 0, 0, 1, NULL},
    {"attr", "recv", A0 "ring.2.recv_v", "peer", "2", false, 2, 1, 0, NULL},
    {"attr", "send", A0 "ring.3.send_dv", "peer", "1", false, 1, 0, 0, NULL},
    {"attr", "attention_fwd", A0 "core_attention.1", "seq_k", "2", false, 1, 1, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention.2", "window", "0", false, 2, 0, 1, NULL},
    {"attr", "attention_merge", A0 "merge.1", "dtype", "\"BF16\"", false, 0, 1, 0, NULL},
    {"group", "recv", A0 "ring.1.recv_dk", "", "tp", false, 1, 1, 1, "group"},
    {"rewire", "attention_merge", A0 "core_attention", "lse_a", A0 "core_attention.0.lse", INPUT, 2, 0, 0,
     NULL},
    {"rewire", "attention_bwd", A0 "core_attention.1", "lse", A0 "core_attention.1.lse", INPUT, 0, 1, 1,
     NULL},
    {"rewire", "attention_bwd", A0 "core_attention.2", "o", A0 "core_attention.2.o", INPUT, 1, 0, 1, NULL},
    {"rewire", "attention_fwd", A0 "core_attention.2", "k", A0 "ring.1.k", INPUT, 2, 1, 0, NULL},
    {"rewire", "add", A0 "ring.1.add_dq", "b", A0 "core_attention.0.dq", INPUT, 0, 0, 1, NULL},
    {"shift", "attention_fwd", A0 "core_attention.2", "k_position", "", INPUT, 0, 0, 1, NULL},
    {"drop_op", "attention_merge", A0 "merge.1", "", "", false, 1, 0, 1, "operation"},
    {"drop_op", "add", A0 "ring.2.add_dv", "", "", false, 2, 1, 1, "operation"},
    {"repeat_op", "send", A0 "ring.3.send_dk", "", "", false, 0, 0, 0, "operation"},
    {"late_op", "attention_merge", A0 "merge.1", "", "", false, 2, 1, 0, "order"},
};

/* Documents packed in rows, on ranks that share the sequence over cp, and over tp. */
static const fault packed_keys[] = {
    {"shift", "rope_fwd", A0 "rope_q", "position", "", INPUT, 3, 1, 0, NULL},
    {"shift", "attention_fwd", A0 "core_attention", "first_key", "", INPUT, 0, 1, 0, NULL},
    {"value", "attention_bwd", A0 "core_attention", "first_key", "", INPUT, 3, 0, 1, NULL},
    {"rewire", "rope_fwd", L1 "self_attention.rope_k", "position", "document_start", INPUT, 1, 1, 1, NULL},
    {"rewire", "rope_bwd", A0 "rope_k", "position", "query_position_ids", INPUT, 2, 1, 1, NULL},
    {"rewire", "attention_fwd", A0 "core_attention", "q_position", "position_ids", INPUT, 0, 0, 0, NULL},
    {"rewire", "attention_fwd", L1 "self_attention.core_attention", "first_key", "query_position_ids", INPUT,
     3, 0, 0, NULL},
    {"rewire", "attention_bwd", L1 "self_attention.core_attention", "first_key", "", INPUT, 2, 0, 1, NULL},
    {"shift", "attention_fwd", A0 "core_attention", "q_position", "", INPUT, 1, 0, 0, NULL},
};

static const fault packed_heads[] = {
    {"shift", "attention_fwd", A0 "core_attention", "first_key", "", INPUT, 1, 0, 1, NULL},
    {"value", "attention_bwd", L1 "self_attention.core_attention", "first_key", "", INPUT, 0, 1, 0, NULL},
    {"rewire", "attention_fwd", A0 "core_attention", "q_position", "position_ids", INPUT, 1, 1, 1, NULL},
};

static const fault packed_ring[] = {
    {"shift", "attention_fwd", A0 "core_attention.0", "first_key", "", INPUT, 2, 0, 1, NULL},
    {"shift", "attention_fwd", A0 "core_attention.2", "first_key", "", INPUT, 1, 1, 0, NULL},
    {"rewire", "attention_bwd", A0 "core_attention.1", "first_key", "", INPUT, 0, 1, 1, NULL},
    {"rewire", "attention_bwd", A0 "core_attention.1", "k_position", "position_ids", INPUT, 0, 0, 1, NULL},
};

/* All balancing losses over two sequence pieces of two context-parallel ranks each. */
static const fault balancing[] = {
    {"attr", "router_aux_loss", M1 "router.seq_aux_loss", "aux_coeff", "0.01", false, 1, 0, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.global_aux", "aux_coeff", "0.01", false, 2, 1, 0, NULL},
    {"attr", "router_aux_bwd", M1 "router.seq_aux", "loss_scale", "1.0", false, 3, 0, 1, NULL}, /* tp-fold */
    {"attr", "router_aux_bwd", M1 "router.global_aux", "loss_scale", "1.0", false, 0, 1, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.seq_aux", "divisor", "1", false, 1, 1, 0, NULL},
    {"attr", "router_aux_bwd", M1 "router.seq_aux", "tokens", "14", false, 2, 0, 0, NULL},
    {"attr", "router_aux_loss", M1 "router.global_aux_loss", "divisor", "1", false, 3, 1, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.global_aux", "z_coeff", "0.001", false, 0, 0, 0, NULL},
    {"attr", "router_seq_aux_fwd", M1 "router.seq_aux", "rows", "1", false, 1, 0, 0, NULL},
    {"unreduced", "all_reduce", M1 "router.seq_aux_counts", "recv", "", false, 1, 0, 1, NULL},
    {"unreduced", "all_reduce", M1 "router.global_aux_counts", "recv", "", false, 2, 1, 0, NULL},
    {"group", "all_reduce", M1 "router.seq_aux_counts", "", "tp", false, 2, 1, 1, "group"}, /* not over cp */
    {"group", "all_reduce", M1 "router.global_aux_counts", "", "cp", false, 3, 0, 0, "group"},
    {"shift", "router_aux_bwd", M1 "router.seq_aux", "tokens_per_expert", "", INPUT, 0, 0, 1, NULL},
    {"value", "router_seq_aux_fwd", M1 "router.seq_aux", "tokens_per_expert", "", false, 1, 1, 0, NULL},
    {"value", "running_counts", M1 "router.global_aux", "total", "", false, 3, 0, 1, NULL},
    {"rewire", "router_aux_bwd", M1 "router.global_aux", "tokens_per_expert", M1 "router.aux_counts.recv",
     INPUT, 2, 0, 1, NULL},
    {"rewire", "router_aux_loss", M1 "router.seq_aux_loss", "score_sums", M1 "router.aux.score_sums", INPUT,
     1, 1, 1, NULL},
    {"rewire", "router_aux_bwd", M1 "router.global_aux", "dlogits_in", M1 "router.dlogits", INPUT, 0, 1, 0,
     NULL},
    {"drop_op", "router_aux_bwd", M1 "router.seq_aux", "", "", false, 2, 0, 1, "operation"},
    {"drop_op", "all_reduce", M1 "router.seq_aux_counts", "", "", false, 0, 1, 1, "operation"},
    {"repeat_op", "running_counts", M1 "router.global_aux", "", "", false, 3, 1, 0, "operation"},
};

/* Rows of every microbatch on two data-parallel ranks. */
static const fault balancing_rows[] = {
    {"group", "all_reduce", M1 "router.aux_counts", "", "tp_cp", false, 1, 0, 1, "group"},
    {"group", "all_reduce", M1 "router.global_aux_counts", "", "ep", false, 0, 1, 0, "group"},
    {"attr", "router_aux_bwd", M1 "router.seq_aux", "divisor", "1", false, 1, 1, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.global_aux", "tokens", "7", false, 0, 0, 1, NULL},
    {"unreduced", "all_reduce", M1 "router.global_aux_counts", "recv", "", false, 1, 0, 0, NULL},
};

/* Whole microbatches on two data-parallel ranks, as Megatron-LM has them: microbatch 1 is rank 1's first. */
static const fault balancing_megatron[] = {
    {"attr", "router_aux_bwd", M1 "router.global_aux", "tokens", "14", false, 0, 1, 0, NULL},
    {"attr", "router_aux_bwd", M1 "router.seq_aux", "loss_scale", "0.5", false, 1, 0, 1, NULL},
    {"attr", "router_aux_loss", M1 "router.global_aux_loss", "divisor", "2", false, 1, 1, 1, NULL},
    {"group", "all_reduce", M1 "router.global_aux_counts", "", "tp_cp", false, 0, 0, 0, "group"},
    {"unreduced", "all_reduce", M1 "router.global_aux_counts", "recv", "", false, 1, 1, 1, NULL},
};

static void expect_all_of(const char *model, const char *layout, assay_precision precision,
                          const fault *faults, size_t n)
{
    expect_faults(model, layout, precision, faults == capacities ? 0.5 : 0.0,
                  faults == gathered_tokens ? ASSAY_DISPATCHER_ALLGATHER : ASSAY_DISPATCHER_ALLTOALL, faults,
                  n);
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
    const parity_result *f = first_failure(r);
    cr_assert(f != NULL, "%s: not caught", layout);
    cr_expect(strcmp(f->tensor, "order") == 0 && f->rank == rank, "%s: rank %d, %s %s: %s", layout, f->rank,
              f->instance, f->tensor, f->message);
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_result *one = parity_report_at(r, i);
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

Test(parity_plan_faults, capacities_fp32)
{
    expect_all("tp2,sp,etp2", ASSAY_PRECISION_FP32, TABLE(capacities));
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

Test(parity_plan_faults, gathered_keys_fp32)
{
    expect_all("tp2,sp,cp2", ASSAY_PRECISION_FP32, TABLE(gathered_keys));
}

Test(parity_plan_faults, gathered_keys_bf16)
{
    expect_all("tp2,sp,cp2", ASSAY_PRECISION_BF16, TABLE(gathered_keys));
}

Test(parity_plan_faults, dealt_heads_fp32)
{
    expect_all("cp2,a2a", ASSAY_PRECISION_FP32, TABLE(dealt_heads));
}

Test(parity_plan_faults, dealt_heads_bf16)
{
    expect_all("cp2,a2a", ASSAY_PRECISION_BF16, TABLE(dealt_heads));
}

Test(parity_plan_faults, ring_fp32)
{
    expect_all("cp3,p2p", ASSAY_PRECISION_FP32, TABLE(ring));
}

Test(parity_plan_faults, ring_bf16)
{
    expect_all("cp3,p2p", ASSAY_PRECISION_BF16, TABLE(ring));
}

Test(parity_plan_faults, packed_documents_fp32)
{
    expect_all("tp2,sp,cp2 packed", ASSAY_PRECISION_FP32, TABLE(packed_keys));
    expect_all("cp2,a2a packed", ASSAY_PRECISION_FP32, TABLE(packed_heads));
    expect_all("cp3,p2p packed", ASSAY_PRECISION_FP32, TABLE(packed_ring));
}

Test(parity_plan_faults, packed_documents_bf16)
{
    expect_all("tp2,sp,cp2 packed", ASSAY_PRECISION_BF16, TABLE(packed_keys));
    expect_all("cp2,a2a packed", ASSAY_PRECISION_BF16, TABLE(packed_heads));
    expect_all("cp3,p2p packed", ASSAY_PRECISION_BF16, TABLE(packed_ring));
}

/* The engine itself takes other documents than the file has: positions go on through the row, attention sees the document
 * before, on every rank or in one step of a ring alone, or the stages of a pipeline keep those of another microbatch. */
static void expect_documents(assay_precision precision)
{
    static const struct {
        const char *layout, *planted, *op, *instance, *item;
    } rows[] = {
        {"1 packed", "positions_not_reset", "rope_fwd", A0 "rope_q", "position"},
        {"cp2 packed", "positions_not_reset", "rope_fwd", A0 "rope_q", "position"},
        {"cp2 packed", "documents_not_masked", "attention_fwd", A0 "core_attention", "first_key"},
        {"cp2,a2a packed", "documents_not_masked", "attention_fwd", A0 "core_attention", "first_key"},
        {"cp2 packed", "leaf:document_start:order", "attention_fwd", A0 "core_attention", "first_key"},
        {"tp2 packed", "shifted_documents", "attention_fwd", A0 "core_attention", "first_key"},
        {"cp2,p2p packed", "drop:" A0 "core_attention.1:first_key,phase=forward", "attention_fwd",
         A0 "core_attention.1", "first_key"},
        {"pp2 packed", "input:" L1 "self_attention.core_attention:first_key@microbatch-1,op=attention_fwd",
         "attention_fwd", L1 "self_attention.core_attention", "first_key"},
        {"dp2 packed", "leaf:position_ids:shift", "rope_fwd", A0 "rope_q", "position"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        plan_cell c;
        plan_cell_run(&c, plan_model, rows[i].layout, precision, rows[i].planted);
        parity_report *r = plan_judge(&c, c.trace);
        const parity_result *f = first_failure(r);
        cr_assert(f != NULL, "%s: %s: not caught", rows[i].layout, rows[i].planted);
        cr_expect(strcmp(f->op, rows[i].op) == 0 && strcmp(f->instance, rows[i].instance) == 0 &&
                      strcmp(f->tensor, rows[i].item) == 0,
                  "%s: %s: named at %s %s %s: %s", rows[i].layout, rows[i].planted, f->op, f->instance,
                  f->tensor, f->message);
        parity_report_destroy(r);
        plan_cell_free(&c);
    }
}

Test(parity_plan_faults, documents_of_the_engine_fp32)
{
    expect_documents(ASSAY_PRECISION_FP32);
}

Test(parity_plan_faults, documents_of_the_engine_bf16)
{
    expect_documents(ASSAY_PRECISION_BF16);
}

Test(parity_plan_faults, balancing_fp32)
{
    expect_all("tp2,sp,cp2 balancing", ASSAY_PRECISION_FP32, TABLE(balancing));
}

Test(parity_plan_faults, balancing_bf16)
{
    expect_all("tp2,sp,cp2 balancing", ASSAY_PRECISION_BF16, TABLE(balancing));
}

Test(parity_plan_faults, balancing_over_rows_fp32)
{
    expect_all("ep2 balancing", ASSAY_PRECISION_FP32, TABLE(balancing_rows));
}

Test(parity_plan_faults, balancing_over_rows_bf16)
{
    expect_all("ep2 balancing", ASSAY_PRECISION_BF16, TABLE(balancing_rows));
}

Test(parity_plan_faults, balancing_megatron_fp32)
{
    expect_all("dp2 balancing megatron", ASSAY_PRECISION_FP32, TABLE(balancing_megatron));
}

Test(parity_plan_faults, balancing_megatron_bf16)
{
    expect_all("dp2 balancing megatron", ASSAY_PRECISION_BF16, TABLE(balancing_megatron));
}

/* The engine itself: a coefficient, a scale, a group, counts without the microbatch before, a kind that is left out. */
static void expect_engine_balancing(assay_precision precision)
{
    static const char *const planted[][4] = {
        {"attr:" M1 "router.seq_aux_loss:aux_coeff=2", "router_aux_loss", M1 "router.seq_aux_loss",
         "aux_coeff"},
        {"attr:" M1 "router.seq_aux:loss_scale=2,phase=backward", "router_aux_bwd", M1 "router.seq_aux",
         "loss_scale"},
        {"group:" M1 "router.seq_aux_counts:tp", "all_reduce", M1 "router.seq_aux_counts", "group"},
        {"drop:" M1 "router.global_aux:previous", "running_counts", M1 "router.global_aux", "previous"},
        {"omit:" M1 "router.global_aux,phase=backward", "router_aux_bwd", M1 "router.global_aux",
         "operation"},
    };
    for (size_t i = 0; i < sizeof planted / sizeof planted[0]; i++) {
        plan_cell c;
        plan_cell_run(&c, plan_model, "tp2,sp,cp2 balancing", precision, planted[i][0]);
        parity_report *r = plan_judge(&c, c.trace);
        const parity_result *f = first_failure(r);
        cr_assert(f != NULL, "%s: not caught", planted[i][0]);
        cr_expect(strcmp(f->op, planted[i][1]) == 0 && strcmp(f->instance, planted[i][2]) == 0 &&
                      strcmp(f->tensor, planted[i][3]) == 0,
                  "%s: named at %s %s %s: %s", planted[i][0], f->op, f->instance, f->tensor, f->message);
        parity_report_destroy(r);
        plan_cell_free(&c);
    }
}

Test(parity_plan_faults, balancing_in_the_engine_fp32)
{
    expect_engine_balancing(ASSAY_PRECISION_FP32);
}

Test(parity_plan_faults, balancing_in_the_engine_bf16)
{
    expect_engine_balancing(ASSAY_PRECISION_BF16);
}

/* The engine itself gives the tokens positions, or the keys of attention, as if cp cut the sequence in plain order. */
static void expect_plain_order(assay_precision precision)
{
    static const char *const planted[][3] = {{"plain_positions", "rope_fwd", "position"},
                                             {"plain_keys", "attention_fwd", "k_position"}};
    for (int i = 0; i < 2; i++) {
        plan_cell c;
        plan_cell_run(&c, plan_model, "cp2", precision, planted[i][0]);
        parity_report *r = plan_judge(&c, c.trace);
        const parity_result *f = first_failure(r);
        cr_assert(f != NULL, "%s: not caught", planted[i][0]);
        cr_expect(strcmp(f->op, planted[i][1]) == 0 && strcmp(f->tensor, planted[i][2]) == 0,
                  "%s: named at %s %s %s: %s", planted[i][0], f->op, f->instance, f->tensor, f->message);
        parity_report_destroy(r);
        plan_cell_free(&c);
    }
}

Test(parity_plan_faults, positions_of_a_plain_cut_fp32)
{
    expect_plain_order(ASSAY_PRECISION_FP32);
}

Test(parity_plan_faults, positions_of_a_plain_cut_bf16)
{
    expect_plain_order(ASSAY_PRECISION_BF16);
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
    const parity_result *f = first_failure(r);
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
