/* The table of operations.  The order is that of docs/OPS.md. */
#include "core/model/ops.h"

#include <string.h>

#define IN(slot, class_, text)                                                                               \
    .name = slot, .role = ASSAY_SLOT_IN, .dtype = ASSAY_CLASS_##class_, .shape = text
#define OUT(slot, class_, text)                                                                              \
    .name = slot, .role = ASSAY_SLOT_OUT, .dtype = ASSAY_CLASS_##class_, .shape = text
#define INOUT(slot, class_, text)                                                                            \
    .name = slot, .role = ASSAY_SLOT_INOUT, .dtype = ASSAY_CLASS_##class_, .shape = text
#define SPLIT .split = true
#define OPT .optional = true
#define INT(key) .name = key, .type = ASSAY_ATTR_INT
#define DOUBLE(key) .name = key, .type = ASSAY_ATTR_DOUBLE
#define BOOL(key) .name = key, .type = ASSAY_ATTR_BOOL
#define WORD(key) .name = key, .type = ASSAY_ATTR_WORD
#define DTYPE(key) .name = key, .type = ASSAY_ATTR_DTYPE
#define INTS(key) .name = key, .type = ASSAY_ATTR_INTS

enum { SIZE_MAX_ATTR = 1 << 30 };
#define RANGE(low, high) .min = (low), .max = (high)
#define SIZE(low) RANGE(low, SIZE_MAX_ATTR)
#define COUNT RANGE(0.0, 0x1p60)
#define SHARE RANGE(0.0, 0x1.ffffffffp-1) /* less than 1 */

#define ROPE_ATTRS                                                                                           \
    {WORD("rope_type"), .otherwise = "default", .words = "default|linear|llama3|yarn"},                      \
        {INT("rotary_dim"), SIZE(0), .symbol = "R"}, {DOUBLE("rotary_base"), RANGE(0x1p-100, 0x1p100)},      \
        {DOUBLE("factor"), .otherwise = "1"}, {DOUBLE("low_freq_factor"), .otherwise = "1"},                 \
        {DOUBLE("high_freq_factor"), .otherwise = "1"},                                                      \
        {INT("original_max_position_embeddings"), .otherwise = "0", COUNT},                                  \
        {INT("positions"), SIZE(0), .symbol = "P"}, {DOUBLE("beta_fast"), .otherwise = "32"},                \
        {DOUBLE("beta_slow"), .otherwise = "1"}, {BOOL("truncate"), .otherwise = "true"},                    \
    {                                                                                                        \
        DOUBLE("attention_factor"), .otherwise = "1"                                                         \
    }
#define ATTENTION_ATTRS                                                                                      \
    {INT("batch"), SIZE(0), .symbol = "B"}, {INT("seq_q"), SIZE(0), .symbol = "Sq"},                         \
        {INT("seq_k"), SIZE(0), .symbol = "Sk"}, {INT("heads"), SIZE(1), .symbol = "A"},                     \
        {INT("groups"), SIZE(1), .symbol = "G"}, {INT("head_dim"), SIZE(0), .symbol = "D"},                  \
        {INT("head_dim_v"), .otherwise = "head_dim", SIZE(0), .symbol = "Dv"}, {DOUBLE("scale")},            \
        {INT("window"), .otherwise = "0", COUNT}, {DTYPE("p_dtype"), .otherwise = "F32"},                    \
        {DOUBLE("dropout_p"), .otherwise = "0", SHARE}, {INT("seed"), .otherwise = "0"},                     \
        {INT("stream"), .otherwise = "0", SIZE(0)}, {INT("draw"), .otherwise = "0", SIZE(0)},                \
        {INT("first_row"), .otherwise = "0", SIZE(0)}, {INT("all_rows"), .otherwise = "batch", SIZE(0)},     \
        {INT("first_head"), .otherwise = "0", SIZE(0)}, {INT("all_heads"), .otherwise = "heads", SIZE(0)},   \
    {                                                                                                        \
        INT("all_keys"), .otherwise = "seq_k", SIZE(0)                                                       \
    }
#define DROPOUT_ATTRS                                                                                        \
    {DOUBLE("p"), SHARE}, {INT("seed")}, {INT("stream"), SIZE(0)},                                           \
    {                                                                                                        \
        INT("draw"), SIZE(0)                                                                                 \
    }
#define SPLIT_ATTRS                                                                                          \
    {INT("heads"), SIZE(1), .symbol = "A"}, {INT("groups"), SIZE(1), .symbol = "G"},                         \
    {                                                                                                        \
        INT("head_dim"), SIZE(0), .symbol = "D"                                                              \
    }
#define LATENT_ATTRS                                                                                         \
    {INT("kv_lora_rank"), SIZE(0), .symbol = "C"},                                                           \
    {                                                                                                        \
        INT("qk_pos_emb_head_dim"), SIZE(0), .symbol = "R"                                                   \
    }
#define HEAD_ATTRS                                                                                           \
    {INT("heads"), SIZE(1), .symbol = "A"},                                                                  \
    {                                                                                                        \
        INT("head_dim"), SIZE(0), .symbol = "D"                                                              \
    }
#define MLA_ATTRS                                                                                            \
    {INT("heads"), SIZE(1), .symbol = "A"}, {INT("qk_head_dim"), SIZE(0), .symbol = "N"},                    \
    {                                                                                                        \
        INT("v_head_dim"), SIZE(0), .symbol = "V"                                                            \
    }
#define PACK_ATTRS                                                                                           \
    {INT("heads"), SIZE(1), .symbol = "A"}, {INT("head_dim"), SIZE(0), .symbol = "D"},                       \
    {                                                                                                        \
        INT("parts"), SIZE(1), .symbol = "P"                                                                 \
    }
#define SCORE_ATTRS                                                                                          \
    {INT("topk"), SIZE(1), .symbol = "K"},                                                                   \
    {                                                                                                        \
        WORD("score_function"), .otherwise = "softmax", .words = "softmax|sigmoid"                           \
    }
/* Of the second and third loss in one launch. */
#define LOSS_ATTRS(suffix)                                                                                   \
    {DOUBLE("aux_coeff" suffix)}, {DOUBLE("z_coeff" suffix)}, {INT("tokens" suffix), COUNT},                 \
        {INT("divisor" suffix), .otherwise = "1", SIZE(1)},                                                  \
    {                                                                                                        \
        DOUBLE("loss_scale" suffix), .otherwise = "1"                                                        \
    }
#define LOSS_NAMES(suffix)                                                                                   \
    "tokens_per_expert=tokens_per_expert" suffix " aux_coeff=aux_coeff" suffix " z_coeff=z_coeff" suffix     \
    " tokens=tokens" suffix " divisor=divisor" suffix " loss_scale=loss_scale" suffix
/* What a router's choice, its balancing statistics and the gradient of the choice have alone and with others in one launch. */
#define CHOICE_SLOTS                                                                                         \
    {IN("logits", FLOAT, "T,E")}, {IN("expert_bias", F32, "E"), OPT},                                        \
        {OUT("indices", I64, "T,K"), .below = "E"}, {OUT("probs", F32, "T,K")},                              \
    {                                                                                                        \
        OUT("scores", F32, "T,E")                                                                            \
    }
#define AUX_SLOTS                                                                                            \
    {OUT("aux_scores", F32, "T,E")}, {OUT("aux_indices", I64, "T,K"), .below = "E"},                         \
        {OUT("tokens_per_expert", I64, "E")}, {OUT("score_sums", F32, "E")},                                 \
    {                                                                                                        \
        OUT("z_sum", F32, "1")                                                                               \
    }
#define CHOICE_GRAD_SLOTS                                                                                    \
    {IN("dprobs", F32, "T,K")}, {IN("indices", I64, "T,K"), .below = "E"}, {IN("scores", F32, "T,E")},       \
    {                                                                                                        \
        IN("logits", FLOAT, "T,E")                                                                           \
    }
#define ROUTER_ATTRS                                                                                         \
    SCORE_ATTRS, {BOOL("pre_softmax"), .otherwise = "false"},                                                \
        {BOOL("norm_topk_prob"), .otherwise = "false"}, {DOUBLE("scaling_factor"), .otherwise = "1"},        \
        {INT("num_groups"), .otherwise = "0", SIZE(0)},                                                      \
    {                                                                                                        \
        INT("group_topk"), .otherwise = "0", SIZE(0)                                                         \
    }
#define VOCABULARY                                                                                           \
    {                                                                                                        \
        INT("vocab_start"), .otherwise = "0", COUNT                                                          \
    }
#define WIRE                                                                                                 \
    {                                                                                                        \
        DTYPE("dtype"), .otherwise = "send"                                                                  \
    }
#define REDUCTION                                                                                            \
    {                                                                                                        \
        WORD("reduction"), .otherwise = "sum", .words = "sum|max|avg"                                        \
    }

#define FUSION                                                                                               \
    {                                                                                                        \
        BOOL("gradient_accumulation_fusion"), .otherwise = "true"                                            \
    }
/* false: the first product of a step, which overwrites what the memory held. */
#define ACCUMULATE                                                                                           \
    {                                                                                                        \
        BOOL("accumulate"), .otherwise = "true"                                                              \
    }

static const assay_op table[] = {
    /* --- 1. linear --- */
    {"linear_fwd", "linear", .sums = "y: K", .flops = "2*T*N*K", .model_flops = "2*T*N*K",
     .slots = {{IN("x", ACT, "T,K")},
               {IN("weight", PAR, "N,K")},
               {IN("bias", PAR, "N"), OPT},
               {OUT("y", ATTR, "T,N"), .like = "dtype"}},
     .attrs = {{DTYPE("dtype"), .otherwise = "act"}}},
    {"linear_bwd_input", "linear", .sums = "dx: N", .flops = "2*T*N*K", .model_flops = "2*T*N*K",
     .slots = {{IN("dy", ACT, "T,N")}, {IN("weight", PAR, "N,K")}, {OUT("dx", ACT, "T,K")}}},
    {"linear_bwd_weight", "linear", .sums = "dweight: T", .flops = "2*T*N*K", .model_flops = "2*T*N*K",
     .slots = {{IN("dy", ACT, "T,N")}, {IN("x", ACT, "T,K")}, {INOUT("dweight", F32, "N,K")}},
     .attrs = {FUSION, ACCUMULATE}},
    {"linear_bwd_bias", "linear", .sums = "dbias: T", .flops = "T*N",
     .slots = {{IN("dy", ACT, "T,N")}, {INOUT("dbias", F32, "N")}}, .attrs = {ACCUMULATE}},
    /* --- 2. grouped linear --- */
    {"grouped_linear_fwd", "linear", .sums = "y: K", .flops = "2*R*N*K", .model_flops = "2*R*N*K",
     .slots = {{IN("x", ACT, "R,K")},
               {IN("weight", PAR, "El,N,K")},
               {IN("tokens_per_expert", I64, "El")},
               {OUT("y", ACT, "R,N")}}},
    {"grouped_linear_bwd_input", "linear", .sums = "dx: N", .flops = "2*R*N*K", .model_flops = "2*R*N*K",
     .slots = {{IN("dy", ACT, "R,N")},
               {IN("weight", PAR, "El,N,K")},
               {IN("tokens_per_expert", I64, "El")},
               {OUT("dx", ACT, "R,K")}}},
    {"grouped_linear_bwd_weight", "linear", .sums = "dweight: R", .flops = "2*R*N*K",
     .model_flops = "2*R*N*K",
     .slots = {{IN("dy", ACT, "R,N")},
               {IN("x", ACT, "R,K")},
               {IN("tokens_per_expert", I64, "El")},
               {INOUT("dweight", F32, "El,N,K")}},
     .attrs = {FUSION, ACCUMULATE}},
    /* --- 3. rmsnorm --- */
    /* gamma first: it says how wide a row is, one head or all of them */
    {"rmsnorm_fwd", "rmsnorm", .sums = "y: H; rstd: H", .flops = "4*T*H",
     .slots = {{IN("gamma", PAR, "H")},
               {IN("x", ACT, "T,H"), SPLIT},
               {OUT("y", ACT, "T,H"), SPLIT},
               {OUT("rstd", F32, "T")}},
     .attrs = {{DOUBLE("eps"), RANGE(0.0, 0x1p100)}}},
    {"add_rmsnorm_fwd", "residual_norm", .sums = "y: H; rstd: H", .flops = "5*T*H",
     .slots = {{IN("gamma", PAR, "H")},
               {IN("a", ACT, "T,H"), SPLIT},
               {IN("b", ACT, "T,H"), SPLIT},
               {OUT("residual", ACT, "T,H"), SPLIT},
               {OUT("y", ACT, "T,H"), SPLIT},
               {OUT("rstd", F32, "T")}},
     .attrs = {{DOUBLE("eps"), RANGE(0.0, 0x1p100)}},
     .parts = {{"add", "y=residual"}, {"rmsnorm_fwd", "x=residual"}}},
    {"rmsnorm_bwd", "rmsnorm", .sums = "dx: H; dgamma: T", .flops = "9*T*H",
     .slots = {{IN("gamma", PAR, "H")},
               {IN("dy", ACT, "T,H"), SPLIT},
               {IN("x", ACT, "T,H"), SPLIT},
               {IN("rstd", F32, "T")},
               {OUT("dx", ACT, "T,H"), SPLIT},
               {INOUT("dgamma", F32, "H"), OPT}},
     .attrs = {{DOUBLE("eps"), .otherwise = "0", RANGE(0.0, 0x1p100)}}},
    {"rmsnorm_bwd_add", "residual_norm", .sums = "dx: H; dgamma: T; y: H", .flops = "10*T*H",
     .slots = {{IN("gamma", PAR, "H")},
               {IN("dy", ACT, "T,H"), SPLIT},
               {IN("x", ACT, "T,H"), SPLIT},
               {IN("rstd", F32, "T")},
               {IN("dresidual", ACT, "T,H"), SPLIT},
               {OUT("dx", ACT, "T,H"), SPLIT, OPT},
               {OUT("y", ACT, "T,H"), SPLIT},
               {INOUT("dgamma", F32, "H"), OPT}},
     .attrs = {{DOUBLE("eps"), .otherwise = "0", RANGE(0.0, 0x1p100)}},
     .parts = {{"rmsnorm_bwd", ""}, {"add", "a=dresidual b=dx"}}},
    {"rmsnorm_sumsq", "rmsnorm", .sums = "y: H", .flops = "2*T*H",
     .slots = {{IN("x", ACT, "T,H"), SPLIT}, {OUT("y", F32, "T")}},
     .attrs = {{INT("columns"), SIZE(1), .symbol = "H"}}},
    {"rmsnorm_apply", "rmsnorm", .sums = "", .flops = "2*T*H",
     .slots = {{IN("gamma", PAR, "H")},
               {IN("x", ACT, "T,H"), SPLIT},
               {IN("sumsq", F32, "T")},
               {OUT("y", ACT, "T,H"), SPLIT},
               {OUT("rstd", F32, "T")}},
     .attrs = {{DOUBLE("eps"), RANGE(0.0, 0x1p100)}, {INT("width"), SIZE(1)}}},
    {"rmsnorm_bwd_dot", "rmsnorm", .sums = "y: H", .flops = "4*T*H",
     .slots = {{IN("gamma", PAR, "H")},
               {IN("dy", ACT, "T,H"), SPLIT},
               {IN("x", ACT, "T,H"), SPLIT},
               {IN("rstd", F32, "T")},
               {OUT("y", F32, "T")}}},
    {"rmsnorm_bwd_apply", "rmsnorm", .sums = "dgamma: T", .flops = "7*T*H",
     .slots = {{IN("gamma", PAR, "H")},
               {IN("dy", ACT, "T,H"), SPLIT},
               {IN("x", ACT, "T,H"), SPLIT},
               {IN("rstd", F32, "T")},
               {IN("dot", F32, "T")},
               {OUT("dx", ACT, "T,H"), SPLIT},
               {INOUT("dgamma", F32, "H"), OPT}},
     .attrs = {{INT("width"), SIZE(1)}}},
    {"layernorm_fwd", "layernorm", .foreign = true, .sums = "y: H; mean: H; rstd: H", .flops = "7*T*H",
     .slots = {{IN("gamma", PAR, "H")},
               {IN("beta", PAR, "H"), OPT},
               {IN("x", ACT, "T,H"), SPLIT},
               {OUT("y", ACT, "T,H"), SPLIT},
               {OUT("mean", F32, "T")},
               {OUT("rstd", F32, "T")}},
     .attrs = {{DOUBLE("eps"), RANGE(0.0, 0x1p100)}}},
    {"layernorm_bwd", "layernorm", .foreign = true, .sums = "dx: H; dgamma: T; dbeta: T", .flops = "14*T*H",
     .slots = {{IN("gamma", PAR, "H")},
               {IN("dy", ACT, "T,H"), SPLIT},
               {IN("x", ACT, "T,H"), SPLIT},
               {IN("mean", F32, "T")},
               {IN("rstd", F32, "T")},
               {OUT("dx", ACT, "T,H"), SPLIT},
               {INOUT("dgamma", F32, "H")},
               {INOUT("dbeta", F32, "H"), OPT}},
     .attrs = {{DOUBLE("eps"), .otherwise = "0", RANGE(0.0, 0x1p100)}}},
    /* --- 4. rope --- */
    {"rope_table", "elementwise", .sums = "", .flops = "3*P*(R/2)",
     .slots = {{OUT("cos", F32, "P,R/2")}, {OUT("sin", F32, "P,R/2")}}, .attrs = {ROPE_ATTRS}},
    {"rope_fwd", "elementwise", .sums = "", .flops = "6*T*A*h",
     .slots = {{IN("x", ACT, "T,A,D")},
               {IN("cos", F32, "P,h")},
               {IN("sin", F32, "P,h")},
               {IN("position", I64, "T"), .below = "P"},
               {OUT("y", ACT, "T,A,D")}}},
    {"rope_bwd", "elementwise", .sums = "", .flops = "6*T*A*h",
     .slots = {{IN("dy", ACT, "T,A,D")},
               {IN("cos", F32, "P,h")},
               {IN("sin", F32, "P,h")},
               {IN("position", I64, "T"), .below = "P"},
               {OUT("dx", ACT, "T,A,D")}}},
    {"kv_down_split_fwd", "elementwise", .sums = "", .flops = "0",
     .slots = {{IN("kv_combined", ACT, "T,C+R")},
               {OUT("kv_compressed", ACT, "T,C")},
               {OUT("k_pos_emb", ACT, "T,R")}},
     .attrs = {LATENT_ATTRS}},
    {"kv_down_split_bwd", "elementwise", .sums = "", .flops = "0",
     .slots = {{IN("dkv_compressed", ACT, "T,C")},
               {IN("dk_pos_emb", ACT, "T,R")},
               {OUT("dkv_combined", ACT, "T,C+R")}},
     .attrs = {LATENT_ATTRS}},
    {"mla_rope_q_fwd", "mla_rope", .sums = "", .flops = "6*T*A*h",
     .slots = {{IN("q", ACT, "T,A*D")},
               {IN("cos", F32, "P,h")},
               {IN("sin", F32, "P,h")},
               {IN("position", I64, "T"), .below = "P"},
               {OUT("y", ACT, "T,A,D")}},
     .attrs = {HEAD_ATTRS}},
    {"mla_rope_q_bwd", "mla_rope", .sums = "", .flops = "6*T*A*h",
     .slots = {{IN("dy", ACT, "T,A,D")},
               {IN("cos", F32, "P,h")},
               {IN("sin", F32, "P,h")},
               {IN("position", I64, "T"), .below = "P"},
               {OUT("dx", ACT, "T,A*D")}},
     .attrs = {HEAD_ATTRS}},
    {"mla_rope_kv_fwd", "mla_rope", .sums = "", .flops = "6*T*h",
     .slots = {{IN("kv", ACT, "T,A*(N+V)")},
               {IN("k_pos_emb", ACT, "T,2*h")},
               {IN("cos", F32, "P,h")},
               {IN("sin", F32, "P,h")},
               {IN("position", I64, "T"), .below = "P"},
               {OUT("k", ACT, "T,A,N+2*h")},
               {OUT("v", ACT, "T,A,V")}},
     .attrs = {MLA_ATTRS}},
    /* cos first: it says how much of a head has turned */
    {"mla_rope_kv_bwd", "mla_rope", .sums = "dk_pos_emb: A", .flops = "6*T*h+2*T*A*h",
     .slots = {{IN("cos", F32, "P,h")},
               {IN("sin", F32, "P,h")},
               {IN("position", I64, "T"), .below = "P"},
               {IN("dk", ACT, "T,A,N+2*h")},
               {IN("dv", ACT, "T,A,V")},
               {OUT("dkv", ACT, "T,A*(N+V)")},
               {OUT("dk_pos_emb", ACT, "T,2*h")}},
     .attrs = {MLA_ATTRS}},
    /* --- 5. attention --- */
    {"attention_fwd", "attention", .sums = "o: D,Tk; lse: D,Tk", .flops = "2*(D+Dv)*A*pairs",
     .model_flops = "2*(D+Dv)*A*pairs", .where = "Tq=B*Sq;Tk=B*Sk",
     .slots = {{IN("q", ACT, "Tq,A,D")},
               {IN("k", ACT, "Tk,G,D")},
               {IN("v", ACT, "Tk,G,Dv")},
               {IN("q_position", I64, "Tq")},
               {IN("k_position", I64, "Tk")},
               {IN("first_key", I64, "Tq"), OPT},
               {OUT("o", ACT, "Tq,A,Dv")},
               {OUT("lse", F32, "Tq,A")}},
     .attrs = {ATTENTION_ATTRS}},
    {"attention_bwd", "attention", .sums = "dq: D,Tk; dk: D,Tq; dv: D,Tq", .flops = "2*(3*D+2*Dv)*A*pairs",
     .model_flops = "4*(D+Dv)*A*pairs", .where = "Tq=B*Sq;Tk=B*Sk",
     .slots = {{IN("do", ACT, "Tq,A,Dv")},
               {IN("q", ACT, "Tq,A,D")},
               {IN("k", ACT, "Tk,G,D")},
               {IN("v", ACT, "Tk,G,Dv")},
               {IN("o", ACT, "Tq,A,Dv")},
               {IN("lse", F32, "Tq,A")},
               {IN("q_position", I64, "Tq")},
               {IN("k_position", I64, "Tk")},
               {IN("first_key", I64, "Tq"), OPT},
               {OUT("dq", ACT, "Tq,A,D")},
               {OUT("dk", ACT, "Tk,G,D")},
               {OUT("dv", ACT, "Tk,G,Dv")}},
     .attrs = {ATTENTION_ATTRS}},
    {"qkv_split_fwd", "attention", .sums = "", .flops = "0",
     .slots = {{IN("qkv", ACT, "T,(A+2*G)*D")},
               {OUT("q", ACT, "T,A,D")},
               {OUT("k", ACT, "T,G,D")},
               {OUT("v", ACT, "T,G,D")}},
     .attrs = {SPLIT_ATTRS}},
    {"qkv_split_bwd", "attention", .sums = "", .flops = "0",
     .slots = {{IN("dq", ACT, "T,A,D")},
               {IN("dk", ACT, "T,G,D")},
               {IN("dv", ACT, "T,G,D")},
               {OUT("dqkv", ACT, "T,(A+2*G)*D")}},
     .attrs = {SPLIT_ATTRS}},
    /* what nobody but the launch itself reads need not be stored: heads before they turn, and before a norm's backward */
    {"qkv_rope_fwd", "qkv_rope", .sums = "", .flops = "6*T*(A+G)*h",
     .slots = {{IN("qkv", ACT, "T,(A+2*G)*D")},
               {IN("cos", F32, "P,h")},
               {IN("sin", F32, "P,h")},
               {IN("position", I64, "T"), .below = "P"},
               {OUT("q_raw", ACT, "T,A,D"), OPT},
               {OUT("k_raw", ACT, "T,G,D"), OPT},
               {OUT("q", ACT, "T,A,D")},
               {OUT("k", ACT, "T,G,D")},
               {OUT("v", ACT, "T,G,D")}},
     .attrs = {SPLIT_ATTRS},
     .parts = {{"qkv_split_fwd", "q=q_raw k=k_raw"},
               {"rope_fwd", "x=q_raw y=q"},
               {"rope_fwd", "x=k_raw y=k"}}},
    {"qkv_norm_rope_fwd", "qkv_rope", .sums = "q_norm: D; k_norm: D; q_rstd: D; k_rstd: D; q: D; k: D",
     .flops = "4*T*(A+G)*D+6*T*(A+G)*h",
     .slots = {{IN("q_gamma", PAR, "D")},
               {IN("k_gamma", PAR, "D")},
               {IN("qkv", ACT, "T,(A+2*G)*D")},
               {IN("cos", F32, "P,h")},
               {IN("sin", F32, "P,h")},
               {IN("position", I64, "T"), .below = "P"},
               {OUT("q_raw", ACT, "T,A,D")},
               {OUT("k_raw", ACT, "T,G,D")},
               {OUT("q_norm", ACT, "T,A,D"), OPT},
               {OUT("k_norm", ACT, "T,G,D"), OPT},
               {OUT("q_rstd", F32, "T,A")},
               {OUT("k_rstd", F32, "T,G")},
               {OUT("q", ACT, "T,A,D")},
               {OUT("k", ACT, "T,G,D")},
               {OUT("v", ACT, "T,G,D")}},
     .attrs = {SPLIT_ATTRS, {DOUBLE("eps"), RANGE(0.0, 0x1p100)}},
     .parts = {{"qkv_split_fwd", "q=q_raw k=k_raw"},
               {"rmsnorm_fwd", "gamma=q_gamma x=q_raw y=q_norm rstd=q_rstd"},
               {"rmsnorm_fwd", "gamma=k_gamma x=k_raw y=k_norm rstd=k_rstd"},
               {"rope_fwd", "x=q_norm y=q"},
               {"rope_fwd", "x=k_norm y=k"}}},
    /* the way back; gradients of heads that are not stored by themselves stand in dqkv */
    {"qkv_rope_bwd", "qkv_rope", .sums = "", .flops = "6*T*(A+G)*h",
     .slots = {{IN("dq", ACT, "T,A,D")},
               {IN("dk", ACT, "T,G,D")},
               {IN("dv", ACT, "T,G,D")},
               {IN("cos", F32, "P,h")},
               {IN("sin", F32, "P,h")},
               {IN("position", I64, "T"), .below = "P"},
               {OUT("dq_raw", ACT, "T,A,D"), OPT},
               {OUT("dk_raw", ACT, "T,G,D"), OPT},
               {OUT("dqkv", ACT, "T,(A+2*G)*D")}},
     .attrs = {SPLIT_ATTRS},
     .parts = {{"rope_bwd", "dy=dq dx=dq_raw"},
               {"rope_bwd", "dy=dk dx=dk_raw"},
               {"qkv_split_bwd", "dq=dq_raw dk=dk_raw"}}},
    {"qkv_norm_rope_bwd", "qkv_rope", .sums = "dq_raw: D; dk_raw: D; dqkv: D; q_dgamma: T*A; k_dgamma: T*G",
     .flops = "10*T*(A+G)*D+6*T*(A+G)*h",
     .slots = {{IN("q_gamma", PAR, "D")},
               {IN("k_gamma", PAR, "D")},
               {IN("q_raw", ACT, "T,A,D")},
               {IN("k_raw", ACT, "T,G,D")},
               {IN("q_rstd", F32, "T,A")},
               {IN("k_rstd", F32, "T,G")},
               {IN("dq", ACT, "T,A,D")},
               {IN("dk", ACT, "T,G,D")},
               {IN("dv", ACT, "T,G,D")},
               {IN("cos", F32, "P,h")},
               {IN("sin", F32, "P,h")},
               {IN("position", I64, "T"), .below = "P"},
               {OUT("dq_norm", ACT, "T,A,D"), OPT},
               {OUT("dk_norm", ACT, "T,G,D"), OPT},
               {OUT("dq_raw", ACT, "T,A,D"), OPT},
               {OUT("dk_raw", ACT, "T,G,D"), OPT},
               {OUT("dqkv", ACT, "T,(A+2*G)*D")},
               {INOUT("q_dgamma", F32, "D"), OPT},
               {INOUT("k_dgamma", F32, "D"), OPT}},
     .attrs = {SPLIT_ATTRS, {DOUBLE("eps"), .otherwise = "0", RANGE(0.0, 0x1p100)}},
     .parts = {{"rope_bwd", "dy=dq dx=dq_norm"},
               {"rope_bwd", "dy=dk dx=dk_norm"},
               {"rmsnorm_bwd", "gamma=q_gamma dy=dq_norm x=q_raw rstd=q_rstd dx=dq_raw dgamma=q_dgamma"},
               {"rmsnorm_bwd", "gamma=k_gamma dy=dk_norm x=k_raw rstd=k_rstd dx=dk_raw dgamma=k_dgamma"},
               {"qkv_split_bwd", "dq=dq_raw dk=dk_raw"}}},
    {"attention_merge", "attention", .sums = "", .flops = "5*T*A*D+8*T*A",
     .slots = {{IN("o_a", FLOAT, "T,A,D")},
               {IN("lse_a", F32, "T,A")},
               {IN("o_b", ACT, "T,A,D")},
               {IN("lse_b", F32, "T,A")},
               {OUT("o", ATTR, "T,A,D"), .like = "dtype"},
               {OUT("lse", F32, "T,A")}},
     .attrs = {{INT("heads"), SIZE(1), .symbol = "A"},
               {INT("head_dim"), SIZE(0), .symbol = "D"},
               {DTYPE("dtype"), .otherwise = "act"}}},
    {"pack_heads", "attention", .sums = "", .flops = "0",
     .slots = {{IN("x", ACT, "T,A,D")}, {OUT("y", ACT, "P,T,A/P,D")}}, .attrs = {PACK_ATTRS}},
    {"unpack_heads", "attention", .sums = "", .flops = "0",
     .slots = {{IN("x", ACT, "P,T,A/P,D")}, {OUT("y", ACT, "T,A,D")}}, .attrs = {PACK_ATTRS}},
    /* --- 6. element-wise --- */
    {"add", "elementwise", .sums = "", .flops = "n",
     .slots = {{IN("a", ACT, "n")}, {IN("b", ACT, "n")}, {OUT("y", ACT, "n")}}},
    {"clamp_fwd", "elementwise", .sums = "", .flops = "2*n",
     .slots = {{IN("x", ACT, "n")}, {OUT("y", ACT, "n")}},
     .attrs = {{DOUBLE("limit"), RANGE(0x1p-100, 0x1p100)}}},
    {"clamp_bwd", "elementwise", .sums = "", .flops = "2*n",
     .slots = {{IN("dy", ACT, "n")}, {IN("x", ACT, "n")}, {OUT("dx", ACT, "n")}},
     .attrs = {{DOUBLE("limit"), RANGE(0x1p-100, 0x1p100)}}},
    {"dropout_fwd", "elementwise", .sums = "", .flops = "T*H",
     .slots = {{IN("x", ACT, "T,H")}, {IN("token", I64, "T")}, {OUT("y", ACT, "T,H")}},
     .attrs = {DROPOUT_ATTRS}},
    {"dropout_bwd", "elementwise", .sums = "", .flops = "T*H",
     .slots = {{IN("dy", ACT, "T,H")}, {IN("token", I64, "T")}, {OUT("dx", ACT, "T,H")}},
     .attrs = {DROPOUT_ATTRS}},
    {"swiglu_fwd", "elementwise", .sums = "", .flops = "5*T*F",
     .slots = {{IN("x", ACT, "T,2*F")}, {IN("probs", F32, "T"), OPT}, {OUT("y", ACT, "T,F")}}},
    {"swiglu_bwd", "elementwise", .sums = "dprobs: F", .flops = "12*T*F",
     .slots = {{IN("dy", ACT, "T,F")},
               {IN("x", ACT, "T,2*F")},
               {IN("probs", F32, "T"), OPT},
               {OUT("dx", ACT, "T,2*F")},
               {OUT("dprobs", F32, "T"), OPT, .like = "probs"}}},
    {"sigmoid_gate_fwd", "elementwise", .sums = "", .flops = "T*H+3*T",
     .slots = {{IN("x", ACT, "T,H")}, {IN("gate", ACT, "T")}, {OUT("y", ACT, "T,H")}}},
    {"sigmoid_gate_bwd", "elementwise", .sums = "dgate: H", .flops = "3*T*H+6*T",
     .slots = {{IN("dy", ACT, "T,H")},
               {IN("x", ACT, "T,H")},
               {IN("gate", ACT, "T")},
               {OUT("dx", ACT, "T,H")},
               {OUT("dgate", ACT, "T")}}},
    {"cast", "elementwise", .sums = "", .flops = "0",
     .slots = {{IN("x", FLOAT, "n")}, {OUT("y", ATTR, "n"), .like = "dtype"}}, .attrs = {{DTYPE("dtype")}}},
    {"slice_rows", "elementwise", .sums = "", .flops = "0", .touches = "x: L*n",
     .slots = {{IN("x", ANY, "S,n")}, {OUT("y", SAME, "L,n"), .like = "x", .alias = "x"}},
     .attrs = {{INT("start"), COUNT}, {INT("length"), COUNT, .symbol = "L"}}},
    {"embedding_fwd", "elementwise", .sums = "", .flops = "0", .touches = "weight: T*H",
     .slots = {{IN("ids", I64, "T")}, {IN("weight", PAR, "V,H")}, {OUT("y", ACT, "T,H")}},
     .attrs = {VOCABULARY}},
    {"embedding_bwd", "elementwise", .sums = "dweight: T", .flops = "T*H", .touches = "dweight: T*H",
     .slots = {{IN("dy", ACT, "T,H")}, {IN("ids", I64, "T")}, {INOUT("dweight", F32, "V,H")}},
     .attrs = {VOCABULARY, {INT("padding_idx"), .otherwise = "-1", RANGE(-1.0, 0x1p60)}}},
    {"sum", "elementwise", .sums = "y: n", .flops = "n",
     .slots = {{IN("x", F32, "n")}, {OUT("y", F64, "1")}}},
    /* --- 7. mixture of experts --- */
    {"router_fwd", "router", .sums = "probs: E; scores: E", .flops = "4*T*E+T*E*K", .slots = {CHOICE_SLOTS},
     .attrs = {ROUTER_ATTRS}},
    {"router_bwd", "router", .sums = "dlogits: E", .flops = "4*T*E",
     .slots = {CHOICE_GRAD_SLOTS, {OUT("dlogits", F32, "T,E")}}, .attrs = {ROUTER_ATTRS}},
    {"router_aux_fwd", "router", .sums = "aux_scores: E; score_sums: T; z_sum: T", .flops = "6*T*E+T*E*K",
     .slots = {{IN("logits", FLOAT, "T,E")}, AUX_SLOTS}, .attrs = {SCORE_ATTRS}},
    {"router_balanced_fwd", "router_balanced",
     .sums = "probs: E; scores: E; aux_scores: E; score_sums: T; z_sum: T", .flops = "10*T*E+2*T*E*K",
     .slots = {CHOICE_SLOTS, AUX_SLOTS}, .attrs = {ROUTER_ATTRS},
     .parts = {{"router_fwd", ""}, {"router_aux_fwd", ""}}},
    {"router_balanced_seq_fwd", "router_balanced",
     .sums = "probs: E; scores: E; aux_scores: E; score_sums: T; z_sum: T; seq_score_sums: T",
     .flops = "11*T*E+2*T*E*K",
     .slots = {CHOICE_SLOTS,
               AUX_SLOTS,
               {OUT("seq_tokens_per_expert", I64, "B,E")},
               {OUT("seq_score_sums", F32, "B,E")}},
     .attrs = {ROUTER_ATTRS, {INT("rows"), SIZE(1), .symbol = "B"}},
     .parts = {{"router_fwd", ""},
               {"router_aux_fwd", ""},
               {"router_seq_aux_fwd", "tokens_per_expert=seq_tokens_per_expert score_sums=seq_score_sums"}}},
    {"router_aux_loss", "router", .sums = "losses: E", .flops = "2*E",
     .slots = {{IN("score_sums", F32, "[B,]E")},
               {IN("tokens_per_expert", I64, "[B,]E")},
               {IN("z_sum", F32, "1"), OPT},
               {OUT("losses", F32, "2")}},
     .attrs = {{DOUBLE("aux_coeff")},
               {DOUBLE("z_coeff")},
               {INT("topk"), SIZE(1)},
               {INT("tokens"), COUNT},
               {INT("divisor"), .otherwise = "1", SIZE(1)}}},
    {"router_aux_bwd", "router", .sums = "dlogits: E", .flops = "8*T*E",
     .slots = {{IN("logits", FLOAT, "T,E")},
               {IN("tokens_per_expert", I64, "[B,]E")},
               {INOUT("dlogits", F32, "T,E")}},
     .attrs = {{DOUBLE("aux_coeff")},
               {DOUBLE("z_coeff")},
               {INT("topk"), SIZE(1)},
               {WORD("score_function"), .otherwise = "softmax", .words = "softmax|sigmoid"},
               {INT("tokens"), COUNT},
               {INT("divisor"), .otherwise = "1", SIZE(1)},
               {DOUBLE("loss_scale"), .otherwise = "1"}}},
    /* dlogits of each part, where somebody looks at it; B, C, D: rows of counts, 1 for those of a microbatch or a step */
    {"router_balanced_bwd", "router_balanced", .sums = "dlogits_0: E; dlogits: E", .flops = "12*T*E",
     .slots = {CHOICE_GRAD_SLOTS,
               {IN("tokens_per_expert", I64, "B,E")},
               {OUT("dlogits_0", F32, "T,E"), OPT},
               {OUT("dlogits", F32, "T,E")}},
     .attrs = {ROUTER_ATTRS, LOSS_ATTRS("")},
     .parts = {{"router_bwd", "dlogits=dlogits_0"}, {"router_aux_bwd", "dlogits_in=dlogits_0"}}},
    {"router_balanced_bwd_two", "router_balanced", .sums = "dlogits_0: E; dlogits_1: E; dlogits: E",
     .flops = "20*T*E",
     .slots = {CHOICE_GRAD_SLOTS,
               {IN("tokens_per_expert", I64, "B,E")},
               {IN("tokens_per_expert_2", I64, "C,E")},
               {OUT("dlogits_0", F32, "T,E"), OPT},
               {OUT("dlogits_1", F32, "T,E"), OPT},
               {OUT("dlogits", F32, "T,E")}},
     .attrs = {ROUTER_ATTRS, LOSS_ATTRS(""), LOSS_ATTRS("_2")},
     .parts = {{"router_bwd", "dlogits=dlogits_0"},
               {"router_aux_bwd", "dlogits_in=dlogits_0 dlogits=dlogits_1"},
               {"router_aux_bwd", "dlogits_in=dlogits_1 " LOSS_NAMES("_2")}}},
    {"router_balanced_bwd_three", "router_balanced",
     .sums = "dlogits_0: E; dlogits_1: E; dlogits_2: E; dlogits: E", .flops = "28*T*E",
     .slots = {CHOICE_GRAD_SLOTS,
               {IN("tokens_per_expert", I64, "B,E")},
               {IN("tokens_per_expert_2", I64, "C,E")},
               {IN("tokens_per_expert_3", I64, "D,E")},
               {OUT("dlogits_0", F32, "T,E"), OPT},
               {OUT("dlogits_1", F32, "T,E"), OPT},
               {OUT("dlogits_2", F32, "T,E"), OPT},
               {OUT("dlogits", F32, "T,E")}},
     .attrs = {ROUTER_ATTRS, LOSS_ATTRS(""), LOSS_ATTRS("_2"), LOSS_ATTRS("_3")},
     .parts = {{"router_bwd", "dlogits=dlogits_0"},
               {"router_aux_bwd", "dlogits_in=dlogits_0 dlogits=dlogits_1"},
               {"router_aux_bwd", "dlogits_in=dlogits_1 dlogits=dlogits_2 " LOSS_NAMES("_2")},
               {"router_aux_bwd", "dlogits_in=dlogits_2 " LOSS_NAMES("_3")}}},
    {"random_logits", "router", .sums = "", .flops = "0",
     .slots = {{IN("token", I64, "T"), .below = "N"}, {OUT("y", F32, "T,E")}},
     .attrs = {{INT("experts"), SIZE(1), .symbol = "E"},
               {INT("layer"), COUNT},
               {INT("draw"), COUNT},
               {INT("tokens"), COUNT, .symbol = "N"}}},
    {"router_seq_aux_fwd", "router", .sums = "score_sums: T", .flops = "T*E",
     .slots = {{IN("aux_scores", F32, "T,E")},
               {IN("aux_indices", I64, "T,K"), .below = "E"},
               {OUT("tokens_per_expert", I64, "B,E")},
               {OUT("score_sums", F32, "B,E")}},
     .attrs = {{INT("rows"), SIZE(1), .symbol = "B"}}},
    {"running_counts", "router", .sums = "", .flops = "0",
     .slots = {{IN("tokens_per_expert", I64, "E")},
               {IN("previous", I64, "E"), OPT},
               {OUT("total", I64, "E")}}},
    {"input_jitter", "router", .sums = "", .flops = "T*H",
     .slots = {{IN("x", ACT, "T,H")}, {IN("token", I64, "T"), .below = "N"}, {OUT("y", ACT, "T,H")}},
     .attrs = {{DOUBLE("eps"), RANGE(0.0, 1.0)},
               {INT("layer"), COUNT},
               {INT("draw"), COUNT},
               {INT("tokens"), COUNT, .symbol = "N"}}},
    {"router_drop", "router", .sums = "", .flops = "0",
     .slots = {{IN("all_indices", I64, "n,K"), .below = "E"},
               {IN("all_probs", F32, "n,K"), OPT},
               {IN("token", I64, "n")},
               {OUT("routed", I64, "T,K"), .below = "E", .or_minus_one = true},
               {OUT("tokens_per_expert", I64, "E")}},
     .attrs = {{INT("experts"), SIZE(1), .symbol = "E"},
               {INT("capacity"), COUNT},
               {INT("start"), COUNT},
               {INT("length"), COUNT, .symbol = "T"}}},
    {"permute_plan", "router", .sums = "", .flops = "0",
     .slots = {{IN("indices", I64, "T,K"), .below = "E", .or_minus_one = true},
               {OUT("row_token", I64, "R"), .below = "T"},
               {OUT("row_entry", I64, "R")},
               {OUT("tokens_per_expert", I64, "E")},
               {OUT("token_row", I64, "T,K"), .below = "R", .or_minus_one = true}},
     .attrs = {{INT("experts"), SIZE(1), .symbol = "E"},
               {INT("rows"), COUNT, .symbol = "R"},
               {INT("first_expert"), .otherwise = "0", COUNT},
               {INT("local_experts"), .otherwise = "experts", COUNT}}},
    {"gather_rows", "router", .sums = "", .flops = "0", .touches = "x: n*H",
     .slots = {{IN("x", ANY, "m[,H]")},
               {IN("index", I64, "n"), .below = "m", .or_minus_one = true},
               {OUT("y", SAME, "n[,H]"), .like = "x"}}},
    {"combine_rows", "router", .sums = "y: K", .flops = "T*K*H", .touches = "x: T*K*H",
     .slots = {{IN("x", ACT, "R,H")},
               {IN("token_row", I64, "T,K"), .below = "R", .or_minus_one = true},
               {OUT("y", ACT, "T,H")}}},
    {"expert_bias_update", "router", .sums = "", .flops = "3*E",
     .slots = {{IN("tokens_per_expert", I64, "E")}, {INOUT("bias", F32, "E")}}, .attrs = {{DOUBLE("rate")}}},
    /* --- 8. loss, optimizer, collectives --- */
    {"cross_entropy_stats", "cross_entropy", .sums = "stats: V", .flops = "4*T*V",
     .slots = {{IN("logits", F32, "T,V")}, {IN("targets", I64, "T")}, {OUT("stats", F32, "3,T")}},
     .attrs = {VOCABULARY}},
    {"cross_entropy_loss", "cross_entropy", .sums = "lse: tp; loss: tp", .flops = "8*T",
     .slots = {{IN("stats", F32, "[tp,]3,T")},
               {IN("targets", I64, "T")},
               {OUT("lse", F32, "T")},
               {OUT("loss", F32, "T")}}},
    {"cross_entropy_bwd", "cross_entropy", .sums = "", .flops = "4*T*V",
     .slots = {{IN("logits", F32, "T,V")},
               {IN("lse", F32, "T")},
               {IN("targets", I64, "T")},
               {OUT("dlogits", ACT, "T,V")}},
     .attrs = {VOCABULARY, {DOUBLE("scale")}}},
    {"sumsq", "elementwise", .sums = "y: n", .flops = "2*n",
     .slots = {{IN("x", F32, "n")}, {OUT("y", F64, "1")}}},
    {"count_zeros", "elementwise", .sums = "", .flops = "n",
     .slots = {{IN("x", F32, "n")}, {OUT("y", I64, "1")}}},
    {"total", "elementwise", .sums = "y: n", .flops = "n",
     .slots = {{IN("x", ANY, "n")}, {OUT("y", SAME, "1"), .like = "x"}}},
    {"clip_coefficient", "elementwise", .sums = "", .flops = "4",
     .slots = {{IN("sumsq", F64, "1")}, {OUT("norm", F64, "1")}, {OUT("scale", F64, "1")}},
     .attrs = {{DOUBLE("clip_grad"), RANGE(0.0, 0x1p1000)}}},
    {"adamw", "adamw", .sums = "", .flops = "16*n",
     .slots = {{IN("grad", F32, "n")},
               {INOUT("main_param", F32, "n")},
               {INOUT("exp_avg", F32, "n")},
               {INOUT("exp_avg_sq", F32, "n")},
               {OUT("param", PAR, "n"), OPT},
               {IN("grad_scale", F64, "1"), OPT}},
     .attrs = {{DOUBLE("lr")},
               {DOUBLE("beta1"), RANGE(0.0, 1.0)},
               {DOUBLE("beta2"), RANGE(0.0, 1.0)},
               {DOUBLE("eps"), RANGE(0.0, 0x1p100)},
               {DOUBLE("weight_decay")},
               {INT("step"), RANGE(1.0, 0x1p60)}}},
    {"all_reduce", "nccl", .collective = true, .sums = "recv: ranks", .flops = "0",
     .slots = {{IN("send", ANY, "n")}, {OUT("recv", SAME, "n"), .like = "send", .alias = "send"}},
     .attrs = {REDUCTION, WIRE, {INT("start"), .otherwise = "0", RANGE(0.0, 0x1p60)}}},
    {"all_gather", "nccl", .collective = true, .sums = "", .flops = "0",
     .slots = {{IN("send", ANY, "n"), OPT, .numbered = true},
               {OUT("recv", ANY, "m"), .like = "send", .alias = "send"}},
     .attrs = {WIRE, {INTS("counts"), .otherwise = "even"}}},
    {"reduce_scatter", "nccl", .collective = true, .sums = "recv: ranks", .flops = "0",
     .slots = {{IN("send", ANY, "n")},
               {OUT("recv", SAME, "m"), OPT, .numbered = true, .like = "send", .alias = "send"}},
     .attrs = {REDUCTION, WIRE, {INTS("counts"), .otherwise = "even"}}},
    {"all_to_all", "nccl", .collective = true, .sums = "", .flops = "0",
     .slots = {{IN("send", ANY, "n")}, {OUT("recv", SAME, "m"), .like = "send"}},
     .attrs = {WIRE, {INTS("counts"), .otherwise = "even"}, {INTS("recv_counts"), .otherwise = "even"}}},
    {"broadcast", "nccl", .collective = true, .sums = "", .flops = "0",
     .slots = {{IN("send", ANY, "n")}, {OUT("recv", SAME, "n"), .like = "send", .alias = "send"}},
     .attrs = {{INT("root"), .otherwise = "0", SIZE(0)}, WIRE}},
    {"send", "nccl", .collective = true, .sums = "", .flops = "0", .slots = {{IN("send", ANY, "n")}},
     .attrs = {{INT("peer"), SIZE(0)}, WIRE}},
    {"recv", "nccl", .collective = true, .sums = "", .flops = "0",
     .slots = {{OUT("recv", ATTR, "n"), .like = "dtype"}},
     .attrs = {{INT("peer"), SIZE(0)}, {DTYPE("dtype")}, {INTS("shape"), .otherwise = "even"}}},
};
enum { N_OPS = sizeof table / sizeof table[0] };

/* Rows are looked for with every call and every record: most differ in the first letter. */
static bool same_word(const char *a, const char *b)
{
    return a[0] == b[0] && strcmp(a, b) == 0;
}

const assay_op *assay_op_find(const char *name)
{
    for (int i = 0; name && i < N_OPS; i++)
        if (same_word(table[i].name, name))
            return &table[i];
    return NULL;
}

const assay_op *assay_op_at(int index)
{
    return index >= 0 && index < N_OPS ? &table[index] : NULL;
}

assay_op_class assay_op_class_of(const assay_op *op)
{
    static const struct {
        const char *word; /* a name, or a family */
        assay_op_class class;
    } rows[] = {
        {"gather_rows", ASSAY_OPS_ELEMENTWISE},
        {"combine_rows", ASSAY_OPS_ELEMENTWISE},
        {"expert_bias_update", ASSAY_OPS_OPTIMIZER},
        {"sumsq", ASSAY_OPS_OPTIMIZER},
        {"count_zeros", ASSAY_OPS_OPTIMIZER},
        {"total", ASSAY_OPS_OPTIMIZER},
        {"clip_coefficient", ASSAY_OPS_OPTIMIZER},
        {"linear", ASSAY_OPS_LINEAR},
        {"attention", ASSAY_OPS_ATTENTION},
        {"router", ASSAY_OPS_ROUTER},
        {"router_balanced", ASSAY_OPS_ROUTER},
        {"cross_entropy", ASSAY_OPS_LOSS},
        {"adamw", ASSAY_OPS_OPTIMIZER},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].word, op->name) == 0 || strcmp(rows[i].word, op->family) == 0)
            return rows[i].class;
    return ASSAY_OPS_ELEMENTWISE;
}

assay_dtype assay_op_dtype(const assay_op *op, const assay_recipe *r, assay_slot_class slot, bool backward)
{
    const assay_op_class own = assay_op_class_of(op);
    const bool keeps = own == ASSAY_OPS_ROUTER || own == ASSAY_OPS_LOSS || own == ASSAY_OPS_OPTIMIZER;
    const assay_op_recipe *operand = &r->op[keeps ? ASSAY_OPS_LINEAR : own];
    if (slot == ASSAY_CLASS_F32)
        return r->op[own].accumulate;
    if (slot == ASSAY_CLASS_PAR)
        return r->op[ASSAY_OPS_LINEAR].weight;
    return backward ? operand->grad : operand->act;
}

int assay_op_n_slots(const assay_op *op)
{
    int n = 0;
    while (n < ASSAY_OP_SLOTS && op->slots[n].name)
        n++;
    return n;
}

int assay_op_n_attrs(const assay_op *op)
{
    int n = 0;
    while (n < ASSAY_OP_ATTRS && op->attrs[n].name)
        n++;
    return n;
}

/* Whether `recorded` names the slot: itself, with ".2" behind a numbered one, with "_in" behind an updated one. */
static bool names(const assay_op_slot *s, const char *recorded, bool output)
{
    const size_t n = strlen(s->name);
    if (recorded[0] != s->name[0] || strncmp(recorded, s->name, n) != 0 ||
        (s->role == ASSAY_SLOT_IN && output) || (s->role == ASSAY_SLOT_OUT && !output))
        return false;
    const char *rest = recorded + n;
    if (s->role == ASSAY_SLOT_INOUT && !output)
        return strcmp(rest, "_in") == 0;
    if (s->numbered && rest[0] == '.')
        return rest[1] != '\0' && strspn(rest + 1, "0123456789") == strlen(rest + 1);
    return rest[0] == '\0';
}

const assay_op_slot *assay_op_slot_find(const assay_op *op, const char *recorded, bool output)
{
    for (int i = 0; i < ASSAY_OP_SLOTS && op->slots[i].name; i++)
        if (names(&op->slots[i], recorded, output))
            return &op->slots[i];
    return NULL;
}

const assay_op_attr *assay_op_attr_find(const assay_op *op, const char *name)
{
    for (int i = 0; i < ASSAY_OP_ATTRS && op->attrs[i].name; i++)
        if (same_word(op->attrs[i].name, name))
            return &op->attrs[i];
    return NULL;
}
