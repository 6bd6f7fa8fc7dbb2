/* Indices of slots and attributes of every operation: `assay certify --abi-header` writes this file from the table of operations
 * (core/model/ops.c), and a test holds the two equal.  A line: operation | inputs | updated | outputs | attributes; docs/OPS.md
 * says what each is. */
#ifndef ASSAY_KERNEL_OPS_H
#define ASSAY_KERNEL_OPS_H

/* clang-format off */

/* | `linear_fwd` | x act [T,K], weight par [N,K], bias? par [N] | | y =dtype [T,N] | dtype = act |
   sums: y: K */
enum {
    ASSAY_KERNEL_SLOT_LINEAR_FWD_X = 0,
    ASSAY_KERNEL_SLOT_LINEAR_FWD_WEIGHT = 1,
    ASSAY_KERNEL_SLOT_LINEAR_FWD_BIAS = 2,
    ASSAY_KERNEL_SLOT_LINEAR_FWD_Y = 3,
    ASSAY_KERNEL_ATTR_LINEAR_FWD_DTYPE = 0,
};

/* | `linear_bwd_input` | dy act [T,N], weight par [N,K] | | dx act [T,K] | |
   sums: dx: N */
enum {
    ASSAY_KERNEL_SLOT_LINEAR_BWD_INPUT_DY = 0,
    ASSAY_KERNEL_SLOT_LINEAR_BWD_INPUT_WEIGHT = 1,
    ASSAY_KERNEL_SLOT_LINEAR_BWD_INPUT_DX = 2,
};

/* | `linear_bwd_weight` | dy act [T,N], x act [T,K] | dweight F32 [N,K] | | gradient_accumulation_fusion = true, accumulate = true |
   sums: dweight: T */
enum {
    ASSAY_KERNEL_SLOT_LINEAR_BWD_WEIGHT_DY = 0,
    ASSAY_KERNEL_SLOT_LINEAR_BWD_WEIGHT_X = 1,
    ASSAY_KERNEL_SLOT_LINEAR_BWD_WEIGHT_DWEIGHT = 2,
    ASSAY_KERNEL_ATTR_LINEAR_BWD_WEIGHT_GRADIENT_ACCUMULATION_FUSION = 0,
    ASSAY_KERNEL_ATTR_LINEAR_BWD_WEIGHT_ACCUMULATE = 1,
};

/* | `linear_bwd_bias` | dy act [T,N] | dbias F32 [N] | | accumulate = true |
   sums: dbias: T */
enum {
    ASSAY_KERNEL_SLOT_LINEAR_BWD_BIAS_DY = 0,
    ASSAY_KERNEL_SLOT_LINEAR_BWD_BIAS_DBIAS = 1,
    ASSAY_KERNEL_ATTR_LINEAR_BWD_BIAS_ACCUMULATE = 0,
};

/* | `grouped_linear_fwd` | x act [R,K], weight par [El,N,K], tokens_per_expert I64 [El] | | y act [R,N] | |
   sums: y: K */
enum {
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_FWD_X = 0,
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_FWD_WEIGHT = 1,
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_FWD_TOKENS_PER_EXPERT = 2,
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_FWD_Y = 3,
};

/* | `grouped_linear_bwd_input` | dy act [R,N], weight par [El,N,K], tokens_per_expert I64 [El] | | dx act [R,K] | |
   sums: dx: N */
enum {
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_BWD_INPUT_DY = 0,
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_BWD_INPUT_WEIGHT = 1,
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_BWD_INPUT_TOKENS_PER_EXPERT = 2,
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_BWD_INPUT_DX = 3,
};

/* | `grouped_linear_bwd_weight` | dy act [R,N], x act [R,K], tokens_per_expert I64 [El] | dweight F32 [El,N,K] | | gradient_accumulation_fusion = true, accumulate = true |
   sums: dweight: R */
enum {
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_BWD_WEIGHT_DY = 0,
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_BWD_WEIGHT_X = 1,
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_BWD_WEIGHT_TOKENS_PER_EXPERT = 2,
    ASSAY_KERNEL_SLOT_GROUPED_LINEAR_BWD_WEIGHT_DWEIGHT = 3,
    ASSAY_KERNEL_ATTR_GROUPED_LINEAR_BWD_WEIGHT_GRADIENT_ACCUMULATION_FUSION = 0,
    ASSAY_KERNEL_ATTR_GROUPED_LINEAR_BWD_WEIGHT_ACCUMULATE = 1,
};

/* | `rmsnorm_fwd` | gamma par [H], x act [T,H] | | y act [T,H], rstd F32 [T] | eps |
   sums: y: H; rstd: H */
enum {
    ASSAY_KERNEL_SLOT_RMSNORM_FWD_GAMMA = 0,
    ASSAY_KERNEL_SLOT_RMSNORM_FWD_X = 1,
    ASSAY_KERNEL_SLOT_RMSNORM_FWD_Y = 2,
    ASSAY_KERNEL_SLOT_RMSNORM_FWD_RSTD = 3,
    ASSAY_KERNEL_ATTR_RMSNORM_FWD_EPS = 0,
};

/* | `add_rmsnorm_fwd` | gamma par [H], a act [T,H], b act [T,H] | | residual act [T,H], y act [T,H], rstd F32 [T] | eps |
   sums: y: H; rstd: H */
enum {
    ASSAY_KERNEL_SLOT_ADD_RMSNORM_FWD_GAMMA = 0,
    ASSAY_KERNEL_SLOT_ADD_RMSNORM_FWD_A = 1,
    ASSAY_KERNEL_SLOT_ADD_RMSNORM_FWD_B = 2,
    ASSAY_KERNEL_SLOT_ADD_RMSNORM_FWD_RESIDUAL = 3,
    ASSAY_KERNEL_SLOT_ADD_RMSNORM_FWD_Y = 4,
    ASSAY_KERNEL_SLOT_ADD_RMSNORM_FWD_RSTD = 5,
    ASSAY_KERNEL_ATTR_ADD_RMSNORM_FWD_EPS = 0,
};

/* | `rmsnorm_bwd` | gamma par [H], dy act [T,H], x act [T,H], rstd F32 [T] | dgamma? F32 [H] | dx act [T,H] | eps = 0 |
   sums: dx: H; dgamma: T */
enum {
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_GAMMA = 0,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_DY = 1,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_X = 2,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_RSTD = 3,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_DX = 4,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_DGAMMA = 5,
    ASSAY_KERNEL_ATTR_RMSNORM_BWD_EPS = 0,
};

/* | `rmsnorm_bwd_add` | gamma par [H], dy act [T,H], x act [T,H], rstd F32 [T], dresidual act [T,H] | dgamma? F32 [H] | dx? act [T,H], y act [T,H] | eps = 0 |
   sums: dx: H; dgamma: T; y: H */
enum {
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_ADD_GAMMA = 0,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_ADD_DY = 1,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_ADD_X = 2,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_ADD_RSTD = 3,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_ADD_DRESIDUAL = 4,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_ADD_DX = 5,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_ADD_Y = 6,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_ADD_DGAMMA = 7,
    ASSAY_KERNEL_ATTR_RMSNORM_BWD_ADD_EPS = 0,
};

/* | `rmsnorm_sumsq` | x act [T,H] | | y F32 [T] | columns (H) |
   sums: y: H */
enum {
    ASSAY_KERNEL_SLOT_RMSNORM_SUMSQ_X = 0,
    ASSAY_KERNEL_SLOT_RMSNORM_SUMSQ_Y = 1,
    ASSAY_KERNEL_ATTR_RMSNORM_SUMSQ_COLUMNS = 0,
};

/* | `rmsnorm_apply` | gamma par [H], x act [T,H], sumsq F32 [T] | | y act [T,H], rstd F32 [T] | eps, width |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_RMSNORM_APPLY_GAMMA = 0,
    ASSAY_KERNEL_SLOT_RMSNORM_APPLY_X = 1,
    ASSAY_KERNEL_SLOT_RMSNORM_APPLY_SUMSQ = 2,
    ASSAY_KERNEL_SLOT_RMSNORM_APPLY_Y = 3,
    ASSAY_KERNEL_SLOT_RMSNORM_APPLY_RSTD = 4,
    ASSAY_KERNEL_ATTR_RMSNORM_APPLY_EPS = 0,
    ASSAY_KERNEL_ATTR_RMSNORM_APPLY_WIDTH = 1,
};

/* | `rmsnorm_bwd_dot` | gamma par [H], dy act [T,H], x act [T,H], rstd F32 [T] | | y F32 [T] | |
   sums: y: H */
enum {
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_DOT_GAMMA = 0,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_DOT_DY = 1,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_DOT_X = 2,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_DOT_RSTD = 3,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_DOT_Y = 4,
};

/* | `rmsnorm_bwd_apply` | gamma par [H], dy act [T,H], x act [T,H], rstd F32 [T], dot F32 [T] | dgamma? F32 [H] | dx act [T,H] | width |
   sums: dgamma: T */
enum {
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_APPLY_GAMMA = 0,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_APPLY_DY = 1,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_APPLY_X = 2,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_APPLY_RSTD = 3,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_APPLY_DOT = 4,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_APPLY_DX = 5,
    ASSAY_KERNEL_SLOT_RMSNORM_BWD_APPLY_DGAMMA = 6,
    ASSAY_KERNEL_ATTR_RMSNORM_BWD_APPLY_WIDTH = 0,
};

/* | `layernorm_fwd` | gamma par [H], beta? par [H], x act [T,H] | | y act [T,H], mean F32 [T], rstd F32 [T] | eps |
   sums: y: H; mean: H; rstd: H */
enum {
    ASSAY_KERNEL_SLOT_LAYERNORM_FWD_GAMMA = 0,
    ASSAY_KERNEL_SLOT_LAYERNORM_FWD_BETA = 1,
    ASSAY_KERNEL_SLOT_LAYERNORM_FWD_X = 2,
    ASSAY_KERNEL_SLOT_LAYERNORM_FWD_Y = 3,
    ASSAY_KERNEL_SLOT_LAYERNORM_FWD_MEAN = 4,
    ASSAY_KERNEL_SLOT_LAYERNORM_FWD_RSTD = 5,
    ASSAY_KERNEL_ATTR_LAYERNORM_FWD_EPS = 0,
};

/* | `layernorm_bwd` | gamma par [H], dy act [T,H], x act [T,H], mean F32 [T], rstd F32 [T] | dgamma F32 [H], dbeta? F32 [H] | dx act [T,H] | eps = 0 |
   sums: dx: H; dgamma: T; dbeta: T */
enum {
    ASSAY_KERNEL_SLOT_LAYERNORM_BWD_GAMMA = 0,
    ASSAY_KERNEL_SLOT_LAYERNORM_BWD_DY = 1,
    ASSAY_KERNEL_SLOT_LAYERNORM_BWD_X = 2,
    ASSAY_KERNEL_SLOT_LAYERNORM_BWD_MEAN = 3,
    ASSAY_KERNEL_SLOT_LAYERNORM_BWD_RSTD = 4,
    ASSAY_KERNEL_SLOT_LAYERNORM_BWD_DX = 5,
    ASSAY_KERNEL_SLOT_LAYERNORM_BWD_DGAMMA = 6,
    ASSAY_KERNEL_SLOT_LAYERNORM_BWD_DBETA = 7,
    ASSAY_KERNEL_ATTR_LAYERNORM_BWD_EPS = 0,
};

/* | `rope_table` | | | cos F32 [P,R/2], sin F32 [P,R/2] | rope_type default/linear/llama3/yarn = default, rotary_dim (R), rotary_base, factor = 1, low_freq_factor = 1, high_freq_factor = 1, original_max_position_embeddings = 0, positions (P), beta_fast = 32, beta_slow = 1, truncate = true, attention_factor = 1 |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_ROPE_TABLE_COS = 0,
    ASSAY_KERNEL_SLOT_ROPE_TABLE_SIN = 1,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_ROPE_TYPE = 0,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_ROTARY_DIM = 1,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_ROTARY_BASE = 2,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_FACTOR = 3,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_LOW_FREQ_FACTOR = 4,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_HIGH_FREQ_FACTOR = 5,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_ORIGINAL_MAX_POSITION_EMBEDDINGS = 6,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_POSITIONS = 7,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_BETA_FAST = 8,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_BETA_SLOW = 9,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_TRUNCATE = 10,
    ASSAY_KERNEL_ATTR_ROPE_TABLE_ATTENTION_FACTOR = 11,
};

/* | `rope_fwd` | x act [T,A,D], cos F32 [P,h], sin F32 [P,h], position I64 [T] | | y act [T,A,D] | |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_ROPE_FWD_X = 0,
    ASSAY_KERNEL_SLOT_ROPE_FWD_COS = 1,
    ASSAY_KERNEL_SLOT_ROPE_FWD_SIN = 2,
    ASSAY_KERNEL_SLOT_ROPE_FWD_POSITION = 3,
    ASSAY_KERNEL_SLOT_ROPE_FWD_Y = 4,
};

/* | `rope_bwd` | dy act [T,A,D], cos F32 [P,h], sin F32 [P,h], position I64 [T] | | dx act [T,A,D] | |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_ROPE_BWD_DY = 0,
    ASSAY_KERNEL_SLOT_ROPE_BWD_COS = 1,
    ASSAY_KERNEL_SLOT_ROPE_BWD_SIN = 2,
    ASSAY_KERNEL_SLOT_ROPE_BWD_POSITION = 3,
    ASSAY_KERNEL_SLOT_ROPE_BWD_DX = 4,
};

/* | `kv_down_split_fwd` | kv_combined act [T,C+R] | | kv_compressed act [T,C], k_pos_emb act [T,R] | kv_lora_rank (C), qk_pos_emb_head_dim (R) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_KV_DOWN_SPLIT_FWD_KV_COMBINED = 0,
    ASSAY_KERNEL_SLOT_KV_DOWN_SPLIT_FWD_KV_COMPRESSED = 1,
    ASSAY_KERNEL_SLOT_KV_DOWN_SPLIT_FWD_K_POS_EMB = 2,
    ASSAY_KERNEL_ATTR_KV_DOWN_SPLIT_FWD_KV_LORA_RANK = 0,
    ASSAY_KERNEL_ATTR_KV_DOWN_SPLIT_FWD_QK_POS_EMB_HEAD_DIM = 1,
};

/* | `kv_down_split_bwd` | dkv_compressed act [T,C], dk_pos_emb act [T,R] | | dkv_combined act [T,C+R] | kv_lora_rank (C), qk_pos_emb_head_dim (R) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_KV_DOWN_SPLIT_BWD_DKV_COMPRESSED = 0,
    ASSAY_KERNEL_SLOT_KV_DOWN_SPLIT_BWD_DK_POS_EMB = 1,
    ASSAY_KERNEL_SLOT_KV_DOWN_SPLIT_BWD_DKV_COMBINED = 2,
    ASSAY_KERNEL_ATTR_KV_DOWN_SPLIT_BWD_KV_LORA_RANK = 0,
    ASSAY_KERNEL_ATTR_KV_DOWN_SPLIT_BWD_QK_POS_EMB_HEAD_DIM = 1,
};

/* | `mla_rope_q_fwd` | q act [T,A*D], cos F32 [P,h], sin F32 [P,h], position I64 [T] | | y act [T,A,D] | heads (A), head_dim (D) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_MLA_ROPE_Q_FWD_Q = 0,
    ASSAY_KERNEL_SLOT_MLA_ROPE_Q_FWD_COS = 1,
    ASSAY_KERNEL_SLOT_MLA_ROPE_Q_FWD_SIN = 2,
    ASSAY_KERNEL_SLOT_MLA_ROPE_Q_FWD_POSITION = 3,
    ASSAY_KERNEL_SLOT_MLA_ROPE_Q_FWD_Y = 4,
    ASSAY_KERNEL_ATTR_MLA_ROPE_Q_FWD_HEADS = 0,
    ASSAY_KERNEL_ATTR_MLA_ROPE_Q_FWD_HEAD_DIM = 1,
};

/* | `mla_rope_q_bwd` | dy act [T,A,D], cos F32 [P,h], sin F32 [P,h], position I64 [T] | | dx act [T,A*D] | heads (A), head_dim (D) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_MLA_ROPE_Q_BWD_DY = 0,
    ASSAY_KERNEL_SLOT_MLA_ROPE_Q_BWD_COS = 1,
    ASSAY_KERNEL_SLOT_MLA_ROPE_Q_BWD_SIN = 2,
    ASSAY_KERNEL_SLOT_MLA_ROPE_Q_BWD_POSITION = 3,
    ASSAY_KERNEL_SLOT_MLA_ROPE_Q_BWD_DX = 4,
    ASSAY_KERNEL_ATTR_MLA_ROPE_Q_BWD_HEADS = 0,
    ASSAY_KERNEL_ATTR_MLA_ROPE_Q_BWD_HEAD_DIM = 1,
};

/* | `mla_rope_kv_fwd` | kv act [T,A*(N+V)], k_pos_emb act [T,2*h], cos F32 [P,h], sin F32 [P,h], position I64 [T] | | k act [T,A,N+2*h], v act [T,A,V] | heads (A), qk_head_dim (N), v_head_dim (V) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_FWD_KV = 0,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_FWD_K_POS_EMB = 1,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_FWD_COS = 2,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_FWD_SIN = 3,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_FWD_POSITION = 4,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_FWD_K = 5,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_FWD_V = 6,
    ASSAY_KERNEL_ATTR_MLA_ROPE_KV_FWD_HEADS = 0,
    ASSAY_KERNEL_ATTR_MLA_ROPE_KV_FWD_QK_HEAD_DIM = 1,
    ASSAY_KERNEL_ATTR_MLA_ROPE_KV_FWD_V_HEAD_DIM = 2,
};

/* | `mla_rope_kv_bwd` | cos F32 [P,h], sin F32 [P,h], position I64 [T], dk act [T,A,N+2*h], dv act [T,A,V] | | dkv act [T,A*(N+V)], dk_pos_emb act [T,2*h] | heads (A), qk_head_dim (N), v_head_dim (V) |
   sums: dk_pos_emb: A */
enum {
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_BWD_COS = 0,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_BWD_SIN = 1,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_BWD_POSITION = 2,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_BWD_DK = 3,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_BWD_DV = 4,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_BWD_DKV = 5,
    ASSAY_KERNEL_SLOT_MLA_ROPE_KV_BWD_DK_POS_EMB = 6,
    ASSAY_KERNEL_ATTR_MLA_ROPE_KV_BWD_HEADS = 0,
    ASSAY_KERNEL_ATTR_MLA_ROPE_KV_BWD_QK_HEAD_DIM = 1,
    ASSAY_KERNEL_ATTR_MLA_ROPE_KV_BWD_V_HEAD_DIM = 2,
};

/* | `attention_fwd` | q act [Tq,A,D], k act [Tk,G,D], v act [Tk,G,Dv], q_position I64 [Tq], k_position I64 [Tk], first_key? I64 [Tq] | | o act [Tq,A,Dv], lse F32 [Tq,A] | batch (B), seq_q (Sq), seq_k (Sk), heads (A), groups (G), head_dim (D), head_dim_v (Dv) = head_dim, scale, window = 0, p_dtype = F32, dropout_p = 0, seed = 0, stream = 0, draw = 0, first_row = 0, all_rows = batch, first_head = 0, all_heads = heads, all_keys = seq_k |
   sums: o: D,Tk; lse: D,Tk */
enum {
    ASSAY_KERNEL_SLOT_ATTENTION_FWD_Q = 0,
    ASSAY_KERNEL_SLOT_ATTENTION_FWD_K = 1,
    ASSAY_KERNEL_SLOT_ATTENTION_FWD_V = 2,
    ASSAY_KERNEL_SLOT_ATTENTION_FWD_Q_POSITION = 3,
    ASSAY_KERNEL_SLOT_ATTENTION_FWD_K_POSITION = 4,
    ASSAY_KERNEL_SLOT_ATTENTION_FWD_FIRST_KEY = 5,
    ASSAY_KERNEL_SLOT_ATTENTION_FWD_O = 6,
    ASSAY_KERNEL_SLOT_ATTENTION_FWD_LSE = 7,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_BATCH = 0,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_SEQ_Q = 1,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_SEQ_K = 2,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_HEADS = 3,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_GROUPS = 4,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_HEAD_DIM = 5,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_HEAD_DIM_V = 6,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_SCALE = 7,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_WINDOW = 8,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_P_DTYPE = 9,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_DROPOUT_P = 10,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_SEED = 11,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_STREAM = 12,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_DRAW = 13,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_FIRST_ROW = 14,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_ALL_ROWS = 15,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_FIRST_HEAD = 16,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_ALL_HEADS = 17,
    ASSAY_KERNEL_ATTR_ATTENTION_FWD_ALL_KEYS = 18,
};

/* | `attention_bwd` | do act [Tq,A,Dv], q act [Tq,A,D], k act [Tk,G,D], v act [Tk,G,Dv], o act [Tq,A,Dv], lse F32 [Tq,A], q_position I64 [Tq], k_position I64 [Tk], first_key? I64 [Tq] | | dq act [Tq,A,D], dk act [Tk,G,D], dv act [Tk,G,Dv] | batch (B), seq_q (Sq), seq_k (Sk), heads (A), groups (G), head_dim (D), head_dim_v (Dv) = head_dim, scale, window = 0, p_dtype = F32, dropout_p = 0, seed = 0, stream = 0, draw = 0, first_row = 0, all_rows = batch, first_head = 0, all_heads = heads, all_keys = seq_k |
   sums: dq: D,Tk; dk: D,Tq; dv: D,Tq */
enum {
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_DO = 0,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_Q = 1,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_K = 2,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_V = 3,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_O = 4,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_LSE = 5,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_Q_POSITION = 6,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_K_POSITION = 7,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_FIRST_KEY = 8,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_DQ = 9,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_DK = 10,
    ASSAY_KERNEL_SLOT_ATTENTION_BWD_DV = 11,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_BATCH = 0,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_SEQ_Q = 1,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_SEQ_K = 2,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_HEADS = 3,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_GROUPS = 4,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_HEAD_DIM = 5,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_HEAD_DIM_V = 6,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_SCALE = 7,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_WINDOW = 8,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_P_DTYPE = 9,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_DROPOUT_P = 10,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_SEED = 11,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_STREAM = 12,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_DRAW = 13,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_FIRST_ROW = 14,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_ALL_ROWS = 15,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_FIRST_HEAD = 16,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_ALL_HEADS = 17,
    ASSAY_KERNEL_ATTR_ATTENTION_BWD_ALL_KEYS = 18,
};

/* | `qkv_split_fwd` | qkv act [T,(A+2*G)*D] | | q act [T,A,D], k act [T,G,D], v act [T,G,D] | heads (A), groups (G), head_dim (D) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_QKV_SPLIT_FWD_QKV = 0,
    ASSAY_KERNEL_SLOT_QKV_SPLIT_FWD_Q = 1,
    ASSAY_KERNEL_SLOT_QKV_SPLIT_FWD_K = 2,
    ASSAY_KERNEL_SLOT_QKV_SPLIT_FWD_V = 3,
    ASSAY_KERNEL_ATTR_QKV_SPLIT_FWD_HEADS = 0,
    ASSAY_KERNEL_ATTR_QKV_SPLIT_FWD_GROUPS = 1,
    ASSAY_KERNEL_ATTR_QKV_SPLIT_FWD_HEAD_DIM = 2,
};

/* | `qkv_split_bwd` | dq act [T,A,D], dk act [T,G,D], dv act [T,G,D] | | dqkv act [T,(A+2*G)*D] | heads (A), groups (G), head_dim (D) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_QKV_SPLIT_BWD_DQ = 0,
    ASSAY_KERNEL_SLOT_QKV_SPLIT_BWD_DK = 1,
    ASSAY_KERNEL_SLOT_QKV_SPLIT_BWD_DV = 2,
    ASSAY_KERNEL_SLOT_QKV_SPLIT_BWD_DQKV = 3,
    ASSAY_KERNEL_ATTR_QKV_SPLIT_BWD_HEADS = 0,
    ASSAY_KERNEL_ATTR_QKV_SPLIT_BWD_GROUPS = 1,
    ASSAY_KERNEL_ATTR_QKV_SPLIT_BWD_HEAD_DIM = 2,
};

/* | `qkv_rope_fwd` | qkv act [T,(A+2*G)*D], cos F32 [P,h], sin F32 [P,h], position I64 [T] | | q_raw? act [T,A,D], k_raw? act [T,G,D], q act [T,A,D], k act [T,G,D], v act [T,G,D] | heads (A), groups (G), head_dim (D) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_QKV_ROPE_FWD_QKV = 0,
    ASSAY_KERNEL_SLOT_QKV_ROPE_FWD_COS = 1,
    ASSAY_KERNEL_SLOT_QKV_ROPE_FWD_SIN = 2,
    ASSAY_KERNEL_SLOT_QKV_ROPE_FWD_POSITION = 3,
    ASSAY_KERNEL_SLOT_QKV_ROPE_FWD_Q_RAW = 4,
    ASSAY_KERNEL_SLOT_QKV_ROPE_FWD_K_RAW = 5,
    ASSAY_KERNEL_SLOT_QKV_ROPE_FWD_Q = 6,
    ASSAY_KERNEL_SLOT_QKV_ROPE_FWD_K = 7,
    ASSAY_KERNEL_SLOT_QKV_ROPE_FWD_V = 8,
    ASSAY_KERNEL_ATTR_QKV_ROPE_FWD_HEADS = 0,
    ASSAY_KERNEL_ATTR_QKV_ROPE_FWD_GROUPS = 1,
    ASSAY_KERNEL_ATTR_QKV_ROPE_FWD_HEAD_DIM = 2,
};

/* | `qkv_norm_rope_fwd` | q_gamma par [D], k_gamma par [D], qkv act [T,(A+2*G)*D], cos F32 [P,h], sin F32 [P,h], position I64 [T] | | q_raw act [T,A,D], k_raw act [T,G,D], q_norm? act [T,A,D], k_norm? act [T,G,D], q_rstd F32 [T,A], k_rstd F32 [T,G], q act [T,A,D], k act [T,G,D], v act [T,G,D] | heads (A), groups (G), head_dim (D), eps |
   sums: q_norm: D; k_norm: D; q_rstd: D; k_rstd: D; q: D; k: D */
enum {
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_Q_GAMMA = 0,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_K_GAMMA = 1,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_QKV = 2,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_COS = 3,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_SIN = 4,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_POSITION = 5,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_Q_RAW = 6,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_K_RAW = 7,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_Q_NORM = 8,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_K_NORM = 9,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_Q_RSTD = 10,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_K_RSTD = 11,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_Q = 12,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_K = 13,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_FWD_V = 14,
    ASSAY_KERNEL_ATTR_QKV_NORM_ROPE_FWD_HEADS = 0,
    ASSAY_KERNEL_ATTR_QKV_NORM_ROPE_FWD_GROUPS = 1,
    ASSAY_KERNEL_ATTR_QKV_NORM_ROPE_FWD_HEAD_DIM = 2,
    ASSAY_KERNEL_ATTR_QKV_NORM_ROPE_FWD_EPS = 3,
};

/* | `qkv_rope_bwd` | dq act [T,A,D], dk act [T,G,D], dv act [T,G,D], cos F32 [P,h], sin F32 [P,h], position I64 [T] | | dq_raw? act [T,A,D], dk_raw? act [T,G,D], dqkv act [T,(A+2*G)*D] | heads (A), groups (G), head_dim (D) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_QKV_ROPE_BWD_DQ = 0,
    ASSAY_KERNEL_SLOT_QKV_ROPE_BWD_DK = 1,
    ASSAY_KERNEL_SLOT_QKV_ROPE_BWD_DV = 2,
    ASSAY_KERNEL_SLOT_QKV_ROPE_BWD_COS = 3,
    ASSAY_KERNEL_SLOT_QKV_ROPE_BWD_SIN = 4,
    ASSAY_KERNEL_SLOT_QKV_ROPE_BWD_POSITION = 5,
    ASSAY_KERNEL_SLOT_QKV_ROPE_BWD_DQ_RAW = 6,
    ASSAY_KERNEL_SLOT_QKV_ROPE_BWD_DK_RAW = 7,
    ASSAY_KERNEL_SLOT_QKV_ROPE_BWD_DQKV = 8,
    ASSAY_KERNEL_ATTR_QKV_ROPE_BWD_HEADS = 0,
    ASSAY_KERNEL_ATTR_QKV_ROPE_BWD_GROUPS = 1,
    ASSAY_KERNEL_ATTR_QKV_ROPE_BWD_HEAD_DIM = 2,
};

/* | `qkv_norm_rope_bwd` | q_gamma par [D], k_gamma par [D], q_raw act [T,A,D], k_raw act [T,G,D], q_rstd F32 [T,A], k_rstd F32 [T,G], dq act [T,A,D], dk act [T,G,D], dv act [T,G,D], cos F32 [P,h], sin F32 [P,h], position I64 [T] | q_dgamma? F32 [D], k_dgamma? F32 [D] | dq_norm? act [T,A,D], dk_norm? act [T,G,D], dq_raw? act [T,A,D], dk_raw? act [T,G,D], dqkv act [T,(A+2*G)*D] | heads (A), groups (G), head_dim (D), eps = 0 |
   sums: dq_raw: D; dk_raw: D; dqkv: D; q_dgamma: T*A; k_dgamma: T*G */
enum {
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_Q_GAMMA = 0,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_K_GAMMA = 1,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_Q_RAW = 2,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_K_RAW = 3,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_Q_RSTD = 4,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_K_RSTD = 5,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_DQ = 6,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_DK = 7,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_DV = 8,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_COS = 9,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_SIN = 10,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_POSITION = 11,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_DQ_NORM = 12,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_DK_NORM = 13,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_DQ_RAW = 14,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_DK_RAW = 15,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_DQKV = 16,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_Q_DGAMMA = 17,
    ASSAY_KERNEL_SLOT_QKV_NORM_ROPE_BWD_K_DGAMMA = 18,
    ASSAY_KERNEL_ATTR_QKV_NORM_ROPE_BWD_HEADS = 0,
    ASSAY_KERNEL_ATTR_QKV_NORM_ROPE_BWD_GROUPS = 1,
    ASSAY_KERNEL_ATTR_QKV_NORM_ROPE_BWD_HEAD_DIM = 2,
    ASSAY_KERNEL_ATTR_QKV_NORM_ROPE_BWD_EPS = 3,
};

/* | `attention_merge` | o_a float [T,A,D], lse_a F32 [T,A], o_b act [T,A,D], lse_b F32 [T,A] | | o =dtype [T,A,D], lse F32 [T,A] | heads (A), head_dim (D), dtype = act |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_ATTENTION_MERGE_O_A = 0,
    ASSAY_KERNEL_SLOT_ATTENTION_MERGE_LSE_A = 1,
    ASSAY_KERNEL_SLOT_ATTENTION_MERGE_O_B = 2,
    ASSAY_KERNEL_SLOT_ATTENTION_MERGE_LSE_B = 3,
    ASSAY_KERNEL_SLOT_ATTENTION_MERGE_O = 4,
    ASSAY_KERNEL_SLOT_ATTENTION_MERGE_LSE = 5,
    ASSAY_KERNEL_ATTR_ATTENTION_MERGE_HEADS = 0,
    ASSAY_KERNEL_ATTR_ATTENTION_MERGE_HEAD_DIM = 1,
    ASSAY_KERNEL_ATTR_ATTENTION_MERGE_DTYPE = 2,
};

/* | `pack_heads` | x act [T,A,D] | | y act [P,T,A/P,D] | heads (A), head_dim (D), parts (P) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_PACK_HEADS_X = 0,
    ASSAY_KERNEL_SLOT_PACK_HEADS_Y = 1,
    ASSAY_KERNEL_ATTR_PACK_HEADS_HEADS = 0,
    ASSAY_KERNEL_ATTR_PACK_HEADS_HEAD_DIM = 1,
    ASSAY_KERNEL_ATTR_PACK_HEADS_PARTS = 2,
};

/* | `unpack_heads` | x act [P,T,A/P,D] | | y act [T,A,D] | heads (A), head_dim (D), parts (P) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_UNPACK_HEADS_X = 0,
    ASSAY_KERNEL_SLOT_UNPACK_HEADS_Y = 1,
    ASSAY_KERNEL_ATTR_UNPACK_HEADS_HEADS = 0,
    ASSAY_KERNEL_ATTR_UNPACK_HEADS_HEAD_DIM = 1,
    ASSAY_KERNEL_ATTR_UNPACK_HEADS_PARTS = 2,
};

/* | `add` | a act [n], b act [n] | | y act [n] | |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_ADD_A = 0,
    ASSAY_KERNEL_SLOT_ADD_B = 1,
    ASSAY_KERNEL_SLOT_ADD_Y = 2,
};

/* | `clamp_fwd` | x act [n] | | y act [n] | limit |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_CLAMP_FWD_X = 0,
    ASSAY_KERNEL_SLOT_CLAMP_FWD_Y = 1,
    ASSAY_KERNEL_ATTR_CLAMP_FWD_LIMIT = 0,
};

/* | `clamp_bwd` | dy act [n], x act [n] | | dx act [n] | limit |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_CLAMP_BWD_DY = 0,
    ASSAY_KERNEL_SLOT_CLAMP_BWD_X = 1,
    ASSAY_KERNEL_SLOT_CLAMP_BWD_DX = 2,
    ASSAY_KERNEL_ATTR_CLAMP_BWD_LIMIT = 0,
};

/* | `dropout_fwd` | x act [T,H], token I64 [T] | | y act [T,H] | p, seed, stream, draw |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_DROPOUT_FWD_X = 0,
    ASSAY_KERNEL_SLOT_DROPOUT_FWD_TOKEN = 1,
    ASSAY_KERNEL_SLOT_DROPOUT_FWD_Y = 2,
    ASSAY_KERNEL_ATTR_DROPOUT_FWD_P = 0,
    ASSAY_KERNEL_ATTR_DROPOUT_FWD_SEED = 1,
    ASSAY_KERNEL_ATTR_DROPOUT_FWD_STREAM = 2,
    ASSAY_KERNEL_ATTR_DROPOUT_FWD_DRAW = 3,
};

/* | `dropout_bwd` | dy act [T,H], token I64 [T] | | dx act [T,H] | p, seed, stream, draw |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_DROPOUT_BWD_DY = 0,
    ASSAY_KERNEL_SLOT_DROPOUT_BWD_TOKEN = 1,
    ASSAY_KERNEL_SLOT_DROPOUT_BWD_DX = 2,
    ASSAY_KERNEL_ATTR_DROPOUT_BWD_P = 0,
    ASSAY_KERNEL_ATTR_DROPOUT_BWD_SEED = 1,
    ASSAY_KERNEL_ATTR_DROPOUT_BWD_STREAM = 2,
    ASSAY_KERNEL_ATTR_DROPOUT_BWD_DRAW = 3,
};

/* | `swiglu_fwd` | x act [T,2*F], probs? F32 [T] | | y act [T,F] | |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_SWIGLU_FWD_X = 0,
    ASSAY_KERNEL_SLOT_SWIGLU_FWD_PROBS = 1,
    ASSAY_KERNEL_SLOT_SWIGLU_FWD_Y = 2,
};

/* | `swiglu_bwd` | dy act [T,F], x act [T,2*F], probs? F32 [T] | | dx act [T,2*F], dprobs? F32 [T] | |
   sums: dprobs: F */
enum {
    ASSAY_KERNEL_SLOT_SWIGLU_BWD_DY = 0,
    ASSAY_KERNEL_SLOT_SWIGLU_BWD_X = 1,
    ASSAY_KERNEL_SLOT_SWIGLU_BWD_PROBS = 2,
    ASSAY_KERNEL_SLOT_SWIGLU_BWD_DX = 3,
    ASSAY_KERNEL_SLOT_SWIGLU_BWD_DPROBS = 4,
};

/* | `sigmoid_gate_fwd` | x act [T,H], gate act [T] | | y act [T,H] | |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_SIGMOID_GATE_FWD_X = 0,
    ASSAY_KERNEL_SLOT_SIGMOID_GATE_FWD_GATE = 1,
    ASSAY_KERNEL_SLOT_SIGMOID_GATE_FWD_Y = 2,
};

/* | `sigmoid_gate_bwd` | dy act [T,H], x act [T,H], gate act [T] | | dx act [T,H], dgate act [T] | |
   sums: dgate: H */
enum {
    ASSAY_KERNEL_SLOT_SIGMOID_GATE_BWD_DY = 0,
    ASSAY_KERNEL_SLOT_SIGMOID_GATE_BWD_X = 1,
    ASSAY_KERNEL_SLOT_SIGMOID_GATE_BWD_GATE = 2,
    ASSAY_KERNEL_SLOT_SIGMOID_GATE_BWD_DX = 3,
    ASSAY_KERNEL_SLOT_SIGMOID_GATE_BWD_DGATE = 4,
};

/* | `cast` | x float [n] | | y =dtype [n] | dtype |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_CAST_X = 0,
    ASSAY_KERNEL_SLOT_CAST_Y = 1,
    ASSAY_KERNEL_ATTR_CAST_DTYPE = 0,
};

/* | `slice_rows` | x any [S,n] | | y as x [L,n] | start, length (L) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_SLICE_ROWS_X = 0,
    ASSAY_KERNEL_SLOT_SLICE_ROWS_Y = 1,
    ASSAY_KERNEL_ATTR_SLICE_ROWS_START = 0,
    ASSAY_KERNEL_ATTR_SLICE_ROWS_LENGTH = 1,
};

/* | `embedding_fwd` | ids I64 [T], weight par [V,H] | | y act [T,H] | vocab_start = 0 |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_EMBEDDING_FWD_IDS = 0,
    ASSAY_KERNEL_SLOT_EMBEDDING_FWD_WEIGHT = 1,
    ASSAY_KERNEL_SLOT_EMBEDDING_FWD_Y = 2,
    ASSAY_KERNEL_ATTR_EMBEDDING_FWD_VOCAB_START = 0,
};

/* | `embedding_bwd` | dy act [T,H], ids I64 [T] | dweight F32 [V,H] | | vocab_start = 0, padding_idx = -1 |
   sums: dweight: T */
enum {
    ASSAY_KERNEL_SLOT_EMBEDDING_BWD_DY = 0,
    ASSAY_KERNEL_SLOT_EMBEDDING_BWD_IDS = 1,
    ASSAY_KERNEL_SLOT_EMBEDDING_BWD_DWEIGHT = 2,
    ASSAY_KERNEL_ATTR_EMBEDDING_BWD_VOCAB_START = 0,
    ASSAY_KERNEL_ATTR_EMBEDDING_BWD_PADDING_IDX = 1,
};

/* | `sum` | x F32 [n] | | y F64 [1] | |
   sums: y: n */
enum {
    ASSAY_KERNEL_SLOT_SUM_X = 0,
    ASSAY_KERNEL_SLOT_SUM_Y = 1,
};

/* | `router_fwd` | logits float [T,E], expert_bias? F32 [E] | | indices I64 [T,K], probs F32 [T,K], scores F32 [T,E] | topk (K), score_function softmax/sigmoid = softmax, pre_softmax = false, norm_topk_prob = false, scaling_factor = 1, num_groups = 0, group_topk = 0 |
   sums: probs: E; scores: E */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_FWD_LOGITS = 0,
    ASSAY_KERNEL_SLOT_ROUTER_FWD_EXPERT_BIAS = 1,
    ASSAY_KERNEL_SLOT_ROUTER_FWD_INDICES = 2,
    ASSAY_KERNEL_SLOT_ROUTER_FWD_PROBS = 3,
    ASSAY_KERNEL_SLOT_ROUTER_FWD_SCORES = 4,
    ASSAY_KERNEL_ATTR_ROUTER_FWD_TOPK = 0,
    ASSAY_KERNEL_ATTR_ROUTER_FWD_SCORE_FUNCTION = 1,
    ASSAY_KERNEL_ATTR_ROUTER_FWD_PRE_SOFTMAX = 2,
    ASSAY_KERNEL_ATTR_ROUTER_FWD_NORM_TOPK_PROB = 3,
    ASSAY_KERNEL_ATTR_ROUTER_FWD_SCALING_FACTOR = 4,
    ASSAY_KERNEL_ATTR_ROUTER_FWD_NUM_GROUPS = 5,
    ASSAY_KERNEL_ATTR_ROUTER_FWD_GROUP_TOPK = 6,
};

/* | `router_bwd` | dprobs F32 [T,K], indices I64 [T,K], scores F32 [T,E], logits float [T,E] | | dlogits F32 [T,E] | topk (K), score_function softmax/sigmoid = softmax, pre_softmax = false, norm_topk_prob = false, scaling_factor = 1, num_groups = 0, group_topk = 0 |
   sums: dlogits: E */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_BWD_DPROBS = 0,
    ASSAY_KERNEL_SLOT_ROUTER_BWD_INDICES = 1,
    ASSAY_KERNEL_SLOT_ROUTER_BWD_SCORES = 2,
    ASSAY_KERNEL_SLOT_ROUTER_BWD_LOGITS = 3,
    ASSAY_KERNEL_SLOT_ROUTER_BWD_DLOGITS = 4,
    ASSAY_KERNEL_ATTR_ROUTER_BWD_TOPK = 0,
    ASSAY_KERNEL_ATTR_ROUTER_BWD_SCORE_FUNCTION = 1,
    ASSAY_KERNEL_ATTR_ROUTER_BWD_PRE_SOFTMAX = 2,
    ASSAY_KERNEL_ATTR_ROUTER_BWD_NORM_TOPK_PROB = 3,
    ASSAY_KERNEL_ATTR_ROUTER_BWD_SCALING_FACTOR = 4,
    ASSAY_KERNEL_ATTR_ROUTER_BWD_NUM_GROUPS = 5,
    ASSAY_KERNEL_ATTR_ROUTER_BWD_GROUP_TOPK = 6,
};

/* | `router_aux_fwd` | logits float [T,E] | | aux_scores F32 [T,E], aux_indices I64 [T,K], tokens_per_expert I64 [E], score_sums F32 [E], z_sum F32 [1] | topk (K), score_function softmax/sigmoid = softmax |
   sums: aux_scores: E; score_sums: T; z_sum: T */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_AUX_FWD_LOGITS = 0,
    ASSAY_KERNEL_SLOT_ROUTER_AUX_FWD_AUX_SCORES = 1,
    ASSAY_KERNEL_SLOT_ROUTER_AUX_FWD_AUX_INDICES = 2,
    ASSAY_KERNEL_SLOT_ROUTER_AUX_FWD_TOKENS_PER_EXPERT = 3,
    ASSAY_KERNEL_SLOT_ROUTER_AUX_FWD_SCORE_SUMS = 4,
    ASSAY_KERNEL_SLOT_ROUTER_AUX_FWD_Z_SUM = 5,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_FWD_TOPK = 0,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_FWD_SCORE_FUNCTION = 1,
};

/* | `router_balanced_fwd` | logits float [T,E], expert_bias? F32 [E] | | indices I64 [T,K], probs F32 [T,K], scores F32 [T,E], aux_scores F32 [T,E], aux_indices I64 [T,K], tokens_per_expert I64 [E], score_sums F32 [E], z_sum F32 [1] | topk (K), score_function softmax/sigmoid = softmax, pre_softmax = false, norm_topk_prob = false, scaling_factor = 1, num_groups = 0, group_topk = 0 |
   sums: probs: E; scores: E; aux_scores: E; score_sums: T; z_sum: T */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_FWD_LOGITS = 0,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_FWD_EXPERT_BIAS = 1,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_FWD_INDICES = 2,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_FWD_PROBS = 3,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_FWD_SCORES = 4,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_FWD_AUX_SCORES = 5,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_FWD_AUX_INDICES = 6,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_FWD_TOKENS_PER_EXPERT = 7,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_FWD_SCORE_SUMS = 8,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_FWD_Z_SUM = 9,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_FWD_TOPK = 0,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_FWD_SCORE_FUNCTION = 1,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_FWD_PRE_SOFTMAX = 2,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_FWD_NORM_TOPK_PROB = 3,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_FWD_SCALING_FACTOR = 4,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_FWD_NUM_GROUPS = 5,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_FWD_GROUP_TOPK = 6,
};

/* | `router_balanced_seq_fwd` | logits float [T,E], expert_bias? F32 [E] | | indices I64 [T,K], probs F32 [T,K], scores F32 [T,E], aux_scores F32 [T,E], aux_indices I64 [T,K], tokens_per_expert I64 [E], score_sums F32 [E], z_sum F32 [1], seq_tokens_per_expert I64 [B,E], seq_score_sums F32 [B,E] | topk (K), score_function softmax/sigmoid = softmax, pre_softmax = false, norm_topk_prob = false, scaling_factor = 1, num_groups = 0, group_topk = 0, rows (B) |
   sums: probs: E; scores: E; aux_scores: E; score_sums: T; z_sum: T; seq_score_sums: T */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_LOGITS = 0,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_EXPERT_BIAS = 1,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_INDICES = 2,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_PROBS = 3,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_SCORES = 4,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_AUX_SCORES = 5,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_AUX_INDICES = 6,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_TOKENS_PER_EXPERT = 7,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_SCORE_SUMS = 8,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_Z_SUM = 9,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_SEQ_TOKENS_PER_EXPERT = 10,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_SEQ_FWD_SEQ_SCORE_SUMS = 11,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_SEQ_FWD_TOPK = 0,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_SEQ_FWD_SCORE_FUNCTION = 1,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_SEQ_FWD_PRE_SOFTMAX = 2,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_SEQ_FWD_NORM_TOPK_PROB = 3,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_SEQ_FWD_SCALING_FACTOR = 4,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_SEQ_FWD_NUM_GROUPS = 5,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_SEQ_FWD_GROUP_TOPK = 6,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_SEQ_FWD_ROWS = 7,
};

/* | `router_aux_loss` | score_sums F32 [[B,]E], tokens_per_expert I64 [[B,]E], z_sum? F32 [1] | | losses F32 [2] | aux_coeff, z_coeff, topk, tokens, divisor = 1 |
   sums: losses: E */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_AUX_LOSS_SCORE_SUMS = 0,
    ASSAY_KERNEL_SLOT_ROUTER_AUX_LOSS_TOKENS_PER_EXPERT = 1,
    ASSAY_KERNEL_SLOT_ROUTER_AUX_LOSS_Z_SUM = 2,
    ASSAY_KERNEL_SLOT_ROUTER_AUX_LOSS_LOSSES = 3,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_LOSS_AUX_COEFF = 0,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_LOSS_Z_COEFF = 1,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_LOSS_TOPK = 2,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_LOSS_TOKENS = 3,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_LOSS_DIVISOR = 4,
};

/* | `router_aux_bwd` | logits float [T,E], tokens_per_expert I64 [[B,]E] | dlogits F32 [T,E] | | aux_coeff, z_coeff, topk, score_function softmax/sigmoid = softmax, tokens, divisor = 1, loss_scale = 1 |
   sums: dlogits: E */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_AUX_BWD_LOGITS = 0,
    ASSAY_KERNEL_SLOT_ROUTER_AUX_BWD_TOKENS_PER_EXPERT = 1,
    ASSAY_KERNEL_SLOT_ROUTER_AUX_BWD_DLOGITS = 2,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_BWD_AUX_COEFF = 0,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_BWD_Z_COEFF = 1,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_BWD_TOPK = 2,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_BWD_SCORE_FUNCTION = 3,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_BWD_TOKENS = 4,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_BWD_DIVISOR = 5,
    ASSAY_KERNEL_ATTR_ROUTER_AUX_BWD_LOSS_SCALE = 6,
};

/* | `router_balanced_bwd` | dprobs F32 [T,K], indices I64 [T,K], scores F32 [T,E], logits float [T,E], tokens_per_expert I64 [B,E] | | dlogits_0? F32 [T,E], dlogits F32 [T,E] | topk (K), score_function softmax/sigmoid = softmax, pre_softmax = false, norm_topk_prob = false, scaling_factor = 1, num_groups = 0, group_topk = 0, aux_coeff, z_coeff, tokens, divisor = 1, loss_scale = 1 |
   sums: dlogits_0: E; dlogits: E */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_DPROBS = 0,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_INDICES = 1,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_SCORES = 2,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_LOGITS = 3,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_TOKENS_PER_EXPERT = 4,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_DLOGITS_0 = 5,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_DLOGITS = 6,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TOPK = 0,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_SCORE_FUNCTION = 1,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_PRE_SOFTMAX = 2,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_NORM_TOPK_PROB = 3,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_SCALING_FACTOR = 4,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_NUM_GROUPS = 5,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_GROUP_TOPK = 6,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_AUX_COEFF = 7,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_Z_COEFF = 8,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TOKENS = 9,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_DIVISOR = 10,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_LOSS_SCALE = 11,
};

/* | `router_balanced_bwd_two` | dprobs F32 [T,K], indices I64 [T,K], scores F32 [T,E], logits float [T,E], tokens_per_expert I64 [B,E], tokens_per_expert_2 I64 [C,E] | | dlogits_0? F32 [T,E], dlogits_1? F32 [T,E], dlogits F32 [T,E] | topk (K), score_function softmax/sigmoid = softmax, pre_softmax = false, norm_topk_prob = false, scaling_factor = 1, num_groups = 0, group_topk = 0, aux_coeff, z_coeff, tokens, divisor = 1, loss_scale = 1, aux_coeff_2, z_coeff_2, tokens_2, divisor_2 = 1, loss_scale_2 = 1 |
   sums: dlogits_0: E; dlogits_1: E; dlogits: E */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_TWO_DPROBS = 0,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_TWO_INDICES = 1,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_TWO_SCORES = 2,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_TWO_LOGITS = 3,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_TWO_TOKENS_PER_EXPERT = 4,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_TWO_TOKENS_PER_EXPERT_2 = 5,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_TWO_DLOGITS_0 = 6,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_TWO_DLOGITS_1 = 7,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_TWO_DLOGITS = 8,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_TOPK = 0,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_SCORE_FUNCTION = 1,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_PRE_SOFTMAX = 2,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_NORM_TOPK_PROB = 3,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_SCALING_FACTOR = 4,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_NUM_GROUPS = 5,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_GROUP_TOPK = 6,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_AUX_COEFF = 7,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_Z_COEFF = 8,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_TOKENS = 9,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_DIVISOR = 10,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_LOSS_SCALE = 11,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_AUX_COEFF_2 = 12,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_Z_COEFF_2 = 13,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_TOKENS_2 = 14,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_DIVISOR_2 = 15,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_TWO_LOSS_SCALE_2 = 16,
};

/* | `router_balanced_bwd_three` | dprobs F32 [T,K], indices I64 [T,K], scores F32 [T,E], logits float [T,E], tokens_per_expert I64 [B,E], tokens_per_expert_2 I64 [C,E], tokens_per_expert_3 I64 [D,E] | | dlogits_0? F32 [T,E], dlogits_1? F32 [T,E], dlogits_2? F32 [T,E], dlogits F32 [T,E] | topk (K), score_function softmax/sigmoid = softmax, pre_softmax = false, norm_topk_prob = false, scaling_factor = 1, num_groups = 0, group_topk = 0, aux_coeff, z_coeff, tokens, divisor = 1, loss_scale = 1, aux_coeff_2, z_coeff_2, tokens_2, divisor_2 = 1, loss_scale_2 = 1, aux_coeff_3, z_coeff_3, tokens_3, divisor_3 = 1, loss_scale_3 = 1 |
   sums: dlogits_0: E; dlogits_1: E; dlogits_2: E; dlogits: E */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_DPROBS = 0,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_INDICES = 1,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_SCORES = 2,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_LOGITS = 3,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_TOKENS_PER_EXPERT = 4,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_TOKENS_PER_EXPERT_2 = 5,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_TOKENS_PER_EXPERT_3 = 6,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_DLOGITS_0 = 7,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_DLOGITS_1 = 8,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_DLOGITS_2 = 9,
    ASSAY_KERNEL_SLOT_ROUTER_BALANCED_BWD_THREE_DLOGITS = 10,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_TOPK = 0,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_SCORE_FUNCTION = 1,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_PRE_SOFTMAX = 2,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_NORM_TOPK_PROB = 3,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_SCALING_FACTOR = 4,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_NUM_GROUPS = 5,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_GROUP_TOPK = 6,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_AUX_COEFF = 7,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_Z_COEFF = 8,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_TOKENS = 9,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_DIVISOR = 10,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_LOSS_SCALE = 11,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_AUX_COEFF_2 = 12,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_Z_COEFF_2 = 13,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_TOKENS_2 = 14,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_DIVISOR_2 = 15,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_LOSS_SCALE_2 = 16,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_AUX_COEFF_3 = 17,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_Z_COEFF_3 = 18,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_TOKENS_3 = 19,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_DIVISOR_3 = 20,
    ASSAY_KERNEL_ATTR_ROUTER_BALANCED_BWD_THREE_LOSS_SCALE_3 = 21,
};

/* | `random_logits` | token I64 [T] | | y F32 [T,E] | experts (E), layer, draw, tokens (N) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_RANDOM_LOGITS_TOKEN = 0,
    ASSAY_KERNEL_SLOT_RANDOM_LOGITS_Y = 1,
    ASSAY_KERNEL_ATTR_RANDOM_LOGITS_EXPERTS = 0,
    ASSAY_KERNEL_ATTR_RANDOM_LOGITS_LAYER = 1,
    ASSAY_KERNEL_ATTR_RANDOM_LOGITS_DRAW = 2,
    ASSAY_KERNEL_ATTR_RANDOM_LOGITS_TOKENS = 3,
};

/* | `router_seq_aux_fwd` | aux_scores F32 [T,E], aux_indices I64 [T,K] | | tokens_per_expert I64 [B,E], score_sums F32 [B,E] | rows (B) |
   sums: score_sums: T */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_SEQ_AUX_FWD_AUX_SCORES = 0,
    ASSAY_KERNEL_SLOT_ROUTER_SEQ_AUX_FWD_AUX_INDICES = 1,
    ASSAY_KERNEL_SLOT_ROUTER_SEQ_AUX_FWD_TOKENS_PER_EXPERT = 2,
    ASSAY_KERNEL_SLOT_ROUTER_SEQ_AUX_FWD_SCORE_SUMS = 3,
    ASSAY_KERNEL_ATTR_ROUTER_SEQ_AUX_FWD_ROWS = 0,
};

/* | `running_counts` | tokens_per_expert I64 [E], previous? I64 [E] | | total I64 [E] | |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_RUNNING_COUNTS_TOKENS_PER_EXPERT = 0,
    ASSAY_KERNEL_SLOT_RUNNING_COUNTS_PREVIOUS = 1,
    ASSAY_KERNEL_SLOT_RUNNING_COUNTS_TOTAL = 2,
};

/* | `input_jitter` | x act [T,H], token I64 [T] | | y act [T,H] | eps, layer, draw, tokens (N) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_INPUT_JITTER_X = 0,
    ASSAY_KERNEL_SLOT_INPUT_JITTER_TOKEN = 1,
    ASSAY_KERNEL_SLOT_INPUT_JITTER_Y = 2,
    ASSAY_KERNEL_ATTR_INPUT_JITTER_EPS = 0,
    ASSAY_KERNEL_ATTR_INPUT_JITTER_LAYER = 1,
    ASSAY_KERNEL_ATTR_INPUT_JITTER_DRAW = 2,
    ASSAY_KERNEL_ATTR_INPUT_JITTER_TOKENS = 3,
};

/* | `router_drop` | all_indices I64 [n,K], all_probs? F32 [n,K], token I64 [n] | | routed I64 [T,K], tokens_per_expert I64 [E] | experts (E), capacity, start, length (T) |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_ROUTER_DROP_ALL_INDICES = 0,
    ASSAY_KERNEL_SLOT_ROUTER_DROP_ALL_PROBS = 1,
    ASSAY_KERNEL_SLOT_ROUTER_DROP_TOKEN = 2,
    ASSAY_KERNEL_SLOT_ROUTER_DROP_ROUTED = 3,
    ASSAY_KERNEL_SLOT_ROUTER_DROP_TOKENS_PER_EXPERT = 4,
    ASSAY_KERNEL_ATTR_ROUTER_DROP_EXPERTS = 0,
    ASSAY_KERNEL_ATTR_ROUTER_DROP_CAPACITY = 1,
    ASSAY_KERNEL_ATTR_ROUTER_DROP_START = 2,
    ASSAY_KERNEL_ATTR_ROUTER_DROP_LENGTH = 3,
};

/* | `permute_plan` | indices I64 [T,K] | | row_token I64 [R], row_entry I64 [R], tokens_per_expert I64 [E], token_row I64 [T,K] | experts (E), rows (R), first_expert = 0, local_experts = experts |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_PERMUTE_PLAN_INDICES = 0,
    ASSAY_KERNEL_SLOT_PERMUTE_PLAN_ROW_TOKEN = 1,
    ASSAY_KERNEL_SLOT_PERMUTE_PLAN_ROW_ENTRY = 2,
    ASSAY_KERNEL_SLOT_PERMUTE_PLAN_TOKENS_PER_EXPERT = 3,
    ASSAY_KERNEL_SLOT_PERMUTE_PLAN_TOKEN_ROW = 4,
    ASSAY_KERNEL_ATTR_PERMUTE_PLAN_EXPERTS = 0,
    ASSAY_KERNEL_ATTR_PERMUTE_PLAN_ROWS = 1,
    ASSAY_KERNEL_ATTR_PERMUTE_PLAN_FIRST_EXPERT = 2,
    ASSAY_KERNEL_ATTR_PERMUTE_PLAN_LOCAL_EXPERTS = 3,
};

/* | `gather_rows` | x any [m[,H]], index I64 [n] | | y as x [n[,H]] | |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_GATHER_ROWS_X = 0,
    ASSAY_KERNEL_SLOT_GATHER_ROWS_INDEX = 1,
    ASSAY_KERNEL_SLOT_GATHER_ROWS_Y = 2,
};

/* | `combine_rows` | x act [R,H], token_row I64 [T,K] | | y act [T,H] | |
   sums: y: K */
enum {
    ASSAY_KERNEL_SLOT_COMBINE_ROWS_X = 0,
    ASSAY_KERNEL_SLOT_COMBINE_ROWS_TOKEN_ROW = 1,
    ASSAY_KERNEL_SLOT_COMBINE_ROWS_Y = 2,
};

/* | `expert_bias_update` | tokens_per_expert I64 [E] | bias F32 [E] | | rate |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_EXPERT_BIAS_UPDATE_TOKENS_PER_EXPERT = 0,
    ASSAY_KERNEL_SLOT_EXPERT_BIAS_UPDATE_BIAS = 1,
    ASSAY_KERNEL_ATTR_EXPERT_BIAS_UPDATE_RATE = 0,
};

/* | `cross_entropy_stats` | logits F32 [T,V], targets I64 [T] | | stats F32 [3,T] | vocab_start = 0 |
   sums: stats: V */
enum {
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_STATS_LOGITS = 0,
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_STATS_TARGETS = 1,
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_STATS_STATS = 2,
    ASSAY_KERNEL_ATTR_CROSS_ENTROPY_STATS_VOCAB_START = 0,
};

/* | `cross_entropy_loss` | stats F32 [[tp,]3,T], targets I64 [T] | | lse F32 [T], loss F32 [T] | |
   sums: lse: tp; loss: tp */
enum {
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_LOSS_STATS = 0,
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_LOSS_TARGETS = 1,
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_LOSS_LSE = 2,
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_LOSS_LOSS = 3,
};

/* | `cross_entropy_bwd` | logits F32 [T,V], lse F32 [T], targets I64 [T] | | dlogits act [T,V] | vocab_start = 0, scale |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_BWD_LOGITS = 0,
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_BWD_LSE = 1,
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_BWD_TARGETS = 2,
    ASSAY_KERNEL_SLOT_CROSS_ENTROPY_BWD_DLOGITS = 3,
    ASSAY_KERNEL_ATTR_CROSS_ENTROPY_BWD_VOCAB_START = 0,
    ASSAY_KERNEL_ATTR_CROSS_ENTROPY_BWD_SCALE = 1,
};

/* | `sumsq` | x F32 [n] | | y F64 [1] | |
   sums: y: n */
enum {
    ASSAY_KERNEL_SLOT_SUMSQ_X = 0,
    ASSAY_KERNEL_SLOT_SUMSQ_Y = 1,
};

/* | `count_zeros` | x F32 [n] | | y I64 [1] | |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_COUNT_ZEROS_X = 0,
    ASSAY_KERNEL_SLOT_COUNT_ZEROS_Y = 1,
};

/* | `total` | x any [n] | | y as x [1] | |
   sums: y: n */
enum {
    ASSAY_KERNEL_SLOT_TOTAL_X = 0,
    ASSAY_KERNEL_SLOT_TOTAL_Y = 1,
};

/* | `clip_coefficient` | sumsq F64 [1] | | norm F64 [1], scale F64 [1] | clip_grad |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_CLIP_COEFFICIENT_SUMSQ = 0,
    ASSAY_KERNEL_SLOT_CLIP_COEFFICIENT_NORM = 1,
    ASSAY_KERNEL_SLOT_CLIP_COEFFICIENT_SCALE = 2,
    ASSAY_KERNEL_ATTR_CLIP_COEFFICIENT_CLIP_GRAD = 0,
};

/* | `adamw` | grad F32 [n], grad_scale? F64 [1] | main_param F32 [n], exp_avg F32 [n], exp_avg_sq F32 [n] | param? par [n] | lr, beta1, beta2, eps, weight_decay, step |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_ADAMW_GRAD = 0,
    ASSAY_KERNEL_SLOT_ADAMW_MAIN_PARAM = 1,
    ASSAY_KERNEL_SLOT_ADAMW_EXP_AVG = 2,
    ASSAY_KERNEL_SLOT_ADAMW_EXP_AVG_SQ = 3,
    ASSAY_KERNEL_SLOT_ADAMW_PARAM = 4,
    ASSAY_KERNEL_SLOT_ADAMW_GRAD_SCALE = 5,
    ASSAY_KERNEL_ATTR_ADAMW_LR = 0,
    ASSAY_KERNEL_ATTR_ADAMW_BETA1 = 1,
    ASSAY_KERNEL_ATTR_ADAMW_BETA2 = 2,
    ASSAY_KERNEL_ATTR_ADAMW_EPS = 3,
    ASSAY_KERNEL_ATTR_ADAMW_WEIGHT_DECAY = 4,
    ASSAY_KERNEL_ATTR_ADAMW_STEP = 5,
};

/* | `all_reduce` | send any [n] | | recv as send [n] | reduction sum/max/avg = sum, dtype = send, start = 0 |
   sums: recv: ranks */
enum {
    ASSAY_KERNEL_SLOT_ALL_REDUCE_SEND = 0,
    ASSAY_KERNEL_SLOT_ALL_REDUCE_RECV = 1,
    ASSAY_KERNEL_ATTR_ALL_REDUCE_REDUCTION = 0,
    ASSAY_KERNEL_ATTR_ALL_REDUCE_DTYPE = 1,
    ASSAY_KERNEL_ATTR_ALL_REDUCE_START = 2,
};

/* | `all_gather` | send? any [n] | | recv any [m] | dtype = send, counts = even |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_ALL_GATHER_SEND = 0,
    ASSAY_KERNEL_SLOT_ALL_GATHER_RECV = 1,
    ASSAY_KERNEL_ATTR_ALL_GATHER_DTYPE = 0,
    ASSAY_KERNEL_ATTR_ALL_GATHER_COUNTS = 1,
};

/* | `reduce_scatter` | send any [n] | | recv? as send [m] | reduction sum/max/avg = sum, dtype = send, counts = even |
   sums: recv: ranks */
enum {
    ASSAY_KERNEL_SLOT_REDUCE_SCATTER_SEND = 0,
    ASSAY_KERNEL_SLOT_REDUCE_SCATTER_RECV = 1,
    ASSAY_KERNEL_ATTR_REDUCE_SCATTER_REDUCTION = 0,
    ASSAY_KERNEL_ATTR_REDUCE_SCATTER_DTYPE = 1,
    ASSAY_KERNEL_ATTR_REDUCE_SCATTER_COUNTS = 2,
};

/* | `all_to_all` | send any [n] | | recv as send [m] | dtype = send, counts = even, recv_counts = even |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_ALL_TO_ALL_SEND = 0,
    ASSAY_KERNEL_SLOT_ALL_TO_ALL_RECV = 1,
    ASSAY_KERNEL_ATTR_ALL_TO_ALL_DTYPE = 0,
    ASSAY_KERNEL_ATTR_ALL_TO_ALL_COUNTS = 1,
    ASSAY_KERNEL_ATTR_ALL_TO_ALL_RECV_COUNTS = 2,
};

/* | `broadcast` | send any [n] | | recv as send [n] | root = 0, dtype = send |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_BROADCAST_SEND = 0,
    ASSAY_KERNEL_SLOT_BROADCAST_RECV = 1,
    ASSAY_KERNEL_ATTR_BROADCAST_ROOT = 0,
    ASSAY_KERNEL_ATTR_BROADCAST_DTYPE = 1,
};

/* | `send` | send any [n] | | | peer, dtype = send |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_SEND_SEND = 0,
    ASSAY_KERNEL_ATTR_SEND_PEER = 0,
    ASSAY_KERNEL_ATTR_SEND_DTYPE = 1,
};

/* | `recv` | | | recv =dtype [n] | peer, dtype, shape = even |
   sums: none */
enum {
    ASSAY_KERNEL_SLOT_RECV_RECV = 0,
    ASSAY_KERNEL_ATTR_RECV_PEER = 0,
    ASSAY_KERNEL_ATTR_RECV_DTYPE = 1,
    ASSAY_KERNEL_ATTR_RECV_SHAPE = 2,
};

/* clang-format on */

#endif
