/* Inputs and sizes of every operation for the random requests.  Sizes: 0, 1, odd ones, on both sides of a warp, of a tile
 * and of every limit that selects another kernel.  docs/OPS.md says what the slots are. */
#include "parity/checks/random_request.h"

#define SLOT(name_, fill_, shape_) .name = name_, .fill = ASK_##fill_, .shape = shape_
#define LINEAR_SIZES                                                                                         \
    {                                                                                                        \
        "T=7 N=5 K=33 bias=1", "T=1 N=1 K=1 bias=0", "T=17 N=40 K=64 bias=1", "T=0 N=3 K=4 bias=1",          \
            "T=3 N=4 K=0 bias=1", "T=70 N=3 K=129 bias=0"                                                    \
    }
#define GROUPED_SIZES                                                                                        \
    {                                                                                                        \
        "R=9 E=4 N=5 K=17", "R=0 E=2 N=3 K=4", "R=70 E=40 N=8 K=16", "R=33 E=1 N=3 K=40"                     \
    }
#define NORM_SIZES                                                                                           \
    {                                                                                                        \
        "T=5 H=3 | eps=1e-5", "T=1 H=1 | eps=1e-6", "T=37 H=32 | eps=1e-6", "T=9 H=48 | eps=1e-5",           \
            "T=0 H=8 | eps=1e-5", "T=3 H=129 | eps=0.5", "T=70 H=64 | eps=1e-6"                              \
    }
#define ROPE_SIZES                                                                                           \
    {                                                                                                        \
        "T=5 A=3 D=8 P=11 h=4", "T=7 A=1 D=40 P=9 h=8", "T=0 A=2 D=4 P=3 h=2", "T=3 A=2 D=80 P=64 h=40"      \
    }
#define HEADS "batch=B seq_q=Sq seq_k=Sk heads=A groups=G head_dim=D head_dim_v=E"
/* Documents and windows in kernels of every width; rows that see no key; no rows, no keys; values wider and narrower than keys. */
#define ATTENTION_SIZES                                                                                      \
    {                                                                                                        \
        "B=2 Sq=5 Sk=5 T=10 U=10 A=4 G=2 D=8 E=8 first=0 | " HEADS " scale=0.35 window=0",                   \
            "B=1 Sq=1 Sk=1 T=1 U=1 A=1 G=1 D=1 E=1 first=0 | " HEADS " scale=1.0 window=0",                  \
            "B=1 Sq=70 Sk=70 T=70 U=70 A=2 G=1 D=40 E=40 first=0 | " HEADS " scale=0.158 window=9",          \
            "B=3 Sq=9 Sk=40 T=27 U=120 A=3 G=3 D=33 E=33 first=0 | " HEADS " scale=0.17 window=0",           \
            "B=2 Sq=33 Sk=33 T=66 U=66 A=6 G=2 D=64 E=64 first=1 | " HEADS " scale=0.125 window=0",          \
            "B=1 Sq=20 Sk=20 T=20 U=20 A=2 G=2 D=80 E=80 first=1 | " HEADS " scale=0.11 window=4",           \
            "B=1 Sq=18 Sk=18 T=18 U=18 A=1 G=1 D=128 E=128 first=0 | " HEADS " scale=0.088 window=0",        \
            "B=1 Sq=9 Sk=9 T=9 U=9 A=2 G=1 D=160 E=160 first=0 | " HEADS " scale=0.079 window=0",            \
            "B=1 Sq=9 Sk=4 T=9 U=4 A=2 G=1 D=8 E=8 first=0 | " HEADS " scale=0.35 window=0",                 \
            "B=2 Sq=0 Sk=3 T=0 U=6 A=2 G=1 D=8 E=8 first=0 | " HEADS " scale=0.35 window=0",                 \
            "B=2 Sq=3 Sk=0 T=6 U=0 A=2 G=1 D=8 E=8 first=0 | " HEADS " scale=0.35 window=0",                 \
            "B=1 Sq=0 Sk=0 T=0 U=0 A=1 G=1 D=4 E=4 first=0 | " HEADS " scale=0.5 window=0",                  \
            "B=1 Sq=7 Sk=7 T=7 U=7 A=2 G=1 D=16 E=16 first=1 | " HEADS " scale=0.25 window=2",               \
            "B=1 Sq=7 Sk=7 T=7 U=7 A=2 G=1 D=24 E=40 first=1 | " HEADS " scale=0.2 window=3",                \
            "B=1 Sq=7 Sk=7 T=7 U=7 A=2 G=2 D=100 E=16 first=1 | " HEADS " scale=0.1 window=3",               \
            "B=1 Sq=7 Sk=7 T=7 U=7 A=1 G=1 D=136 E=192 first=1 | " HEADS " scale=0.085 window=2"             \
    }
#define ATTENTION_SLOTS                                                                                      \
    {SLOT("q", ACT, "T,A,D"), .scale = 2}, {SLOT("k", ACT, "U,G,D"), .scale = 2}, {SLOT("v", ACT, "U,G,E")}, \
        {SLOT("q_position", QUERY_POSITION, "T")}, {SLOT("k_position", KEY_POSITION, "U")},                  \
    {                                                                                                        \
        "first_key", ASK_FIRST_KEY, "T", .when = "first"                                                     \
    }
#define SPLIT "heads=A groups=G head_dim=D"
#define SPLIT_SIZES                                                                                          \
    {                                                                                                        \
        "T=5 A=4 G=2 D=3 W=24 | " SPLIT, "T=9 A=3 G=1 D=40 W=200 | " SPLIT, "T=0 A=2 G=2 D=4 W=24 | " SPLIT  \
    }
#define ROUTER "topk=K scaling_factor=1.5 score_function="
/* Every mode of the router for a number of experts, that is, in a kernel of one width. */
#define MODES(sizes, groups)                                                                                 \
    "T=2 K=4 bias=0 " sizes " | " ROUTER "softmax pre_softmax=true norm_topk_prob=true " groups,             \
        "T=2 K=4 bias=0 " sizes " | " ROUTER "softmax pre_softmax=true norm_topk_prob=false " groups,        \
        "T=2 K=4 bias=0 " sizes " | " ROUTER "softmax pre_softmax=false norm_topk_prob=true " groups,        \
        "T=2 K=4 bias=1 " sizes " | " ROUTER "sigmoid pre_softmax=false norm_topk_prob=true " groups,        \
        "T=2 K=4 bias=0 " sizes " | " ROUTER "sigmoid pre_softmax=false norm_topk_prob=false " groups,       \
        "T=2 K=1 bias=1 " sizes " | " ROUTER                                                                 \
        "sigmoid pre_softmax=false norm_topk_prob=true num_groups=0 group_topk=0"
#define ROUTER_SIZES                                                                                         \
    {                                                                                                        \
        "T=9 E=7 K=3 bias=0 | " ROUTER                                                                       \
        "softmax pre_softmax=true norm_topk_prob=true num_groups=0 group_topk=0",                            \
            "T=5 E=8 K=1 bias=0 | " ROUTER                                                                   \
            "softmax pre_softmax=true norm_topk_prob=false num_groups=0 group_topk=0",                       \
            "T=33 E=40 K=4 bias=0 | " ROUTER                                                                 \
            "softmax pre_softmax=false norm_topk_prob=false num_groups=0 group_topk=0",                      \
            "T=6 E=70 K=4 bias=1 | " ROUTER                                                                  \
            "sigmoid pre_softmax=false norm_topk_prob=true num_groups=5 group_topk=2",                       \
            "T=4 E=130 K=6 bias=0 | " ROUTER                                                                 \
            "softmax pre_softmax=false norm_topk_prob=false num_groups=13 group_topk=3",                     \
            "T=3 E=300 K=8 bias=1 | " ROUTER                                                                 \
            "sigmoid pre_softmax=false norm_topk_prob=false num_groups=0 group_topk=0",                      \
            "T=2 E=80 K=2 bias=0 | " ROUTER                                                                  \
            "softmax pre_softmax=true norm_topk_prob=true num_groups=40 group_topk=2",                       \
            MODES("E=12", "num_groups=3 group_topk=2"), MODES("E=48", "num_groups=6 group_topk=2"),          \
            MODES("E=96", "num_groups=0 group_topk=0"), MODES("E=160", "num_groups=0 group_topk=0"),         \
            MODES("E=320", "num_groups=20 group_topk=2"),                                                    \
            "T=0 E=4 K=2 bias=0 | " ROUTER                                                                   \
            "softmax pre_softmax=true norm_topk_prob=true num_groups=0 group_topk=0"                         \
    }
#define AUX "topk=K score_function="
#define AUX_SIZES                                                                                            \
    {                                                                                                        \
        "T=9 E=7 K=3 one=1 | " AUX "softmax", "T=33 E=40 K=2 one=1 | " AUX "sigmoid",                        \
            "T=6 E=70 K=4 one=1 | " AUX "softmax", "T=40 E=130 K=1 one=1 | " AUX "sigmoid",                  \
            "T=3 E=300 K=8 one=1 | " AUX "softmax", "T=0 E=4 K=2 one=1 | " AUX "softmax"                     \
    }
#define AUX_LOSS_SIZES                                                                                       \
    {                                                                                                        \
        "T=9 E=7 K=3 one=1 | " AUX "softmax aux_coeff=0.01 z_coeff=0.001 loss_scale=0.25 tokens=9",          \
            "T=33 E=40 K=2 one=1 | " AUX "sigmoid aux_coeff=0.02 z_coeff=0.0 loss_scale=1.0 tokens=66",      \
            "T=6 E=70 K=4 one=1 | " AUX "softmax aux_coeff=0.0 z_coeff=0.003 loss_scale=0.5 tokens=6",       \
            "T=40 E=130 K=1 one=1 | " AUX "sigmoid aux_coeff=0.5 z_coeff=0.1 loss_scale=0.5 tokens=40",      \
            "T=3 E=300 K=8 one=1 | " AUX "softmax aux_coeff=1.0 z_coeff=0.5 loss_scale=0.125 tokens=3",      \
            "T=0 E=4 K=2 one=1 | " AUX "softmax aux_coeff=1.0 z_coeff=0.5 loss_scale=1.0 tokens=0"           \
    }
#define ROWS_SIZES                                                                                           \
    {                                                                                                        \
        "T=7 K=2 R=14 H=5", "T=1 K=1 R=1 H=1", "T=0 K=2 R=0 H=3", "T=13 K=3 R=39 H=70"                       \
    }
#define LOSS_SIZES                                                                                           \
    {                                                                                                        \
        "T=7 V=5 one=1 three=3 | vocab_start=3", "T=5 V=33 one=1 three=3 | vocab_start=0",                   \
            "T=3 V=4103 one=1 three=3 | vocab_start=4000", "T=0 V=4 one=1 three=3 | vocab_start=0",          \
            "T=4 V=300 one=1 three=3 | vocab_start=0"                                                        \
    }
#define ADAM "beta1=0.9 eps=1e-8 "

const parity_ask_row parity_ask_table[] = {
    {"linear_fwd",
     {{SLOT("x", ACT, "T,K")}, {SLOT("weight", ACT, "N,K")}, {SLOT("bias", ACT, "N"), .when = "bias"}},
     LINEAR_SIZES},
    {"linear_fwd", /* router and output layer: an F32 result of activations */
     {{SLOT("x", ACT, "T,K")}, {SLOT("weight", ACT, "N,K")}, {SLOT("bias", ACT, "N"), .when = "bias"}},
     {"T=7 N=5 K=33 bias=1 | dtype=F32", "T=17 N=40 K=64 bias=0 | dtype=F32"}},
    {"linear_bwd_input", {{SLOT("dy", ACT, "T,N")}, {SLOT("weight", ACT, "N,K")}}, LINEAR_SIZES},
    {"linear_bwd_weight",
     {{SLOT("dy", ACT, "T,N")}, {SLOT("x", ACT, "T,K")}, {SLOT("dweight_in", F32, "N,K")}},
     LINEAR_SIZES},
    {"linear_bwd_bias", {{SLOT("dy", ACT, "T,N")}, {SLOT("dbias_in", F32, "N")}}, LINEAR_SIZES},
    {"grouped_linear_fwd",
     {{SLOT("x", ACT, "R,K")},
      {SLOT("weight", ACT, "E,N,K")},
      {SLOT("tokens_per_expert", COUNTS, "E"), .of = "R"}},
     GROUPED_SIZES},
    {"grouped_linear_bwd_input",
     {{SLOT("dy", ACT, "R,N")},
      {SLOT("weight", ACT, "E,N,K")},
      {SLOT("tokens_per_expert", COUNTS, "E"), .of = "R"}},
     GROUPED_SIZES},
    {"grouped_linear_bwd_weight",
     {{SLOT("dy", ACT, "R,N")},
      {SLOT("x", ACT, "R,K")},
      {SLOT("tokens_per_expert", COUNTS, "E"), .of = "R"},
      {SLOT("dweight_in", F32, "E,N,K")}},
     GROUPED_SIZES},
    {"rmsnorm_fwd", {{SLOT("x", ACT, "T,H")}, {SLOT("gamma", ACT, "H")}}, NORM_SIZES},
    {"rmsnorm_bwd",
     {{SLOT("x", ACT, "T,H")},
      {SLOT("gamma", ACT, "H")},
      {SLOT("rstd", FROM, "T"), .of = "rmsnorm_fwd.rstd"},
      {SLOT("dy", ACT, "T,H")},
      {SLOT("dgamma_in", F32, "H")}},
     NORM_SIZES},
    {"rope_table",
     {{.name = NULL}},
     {"| rope_type=default rotary_dim=16 rotary_base=10000.0 positions=40",
      "| rope_type=linear rotary_dim=6 rotary_base=1000000.0 factor=2.5 positions=9",
      "| rope_type=llama3 rotary_dim=32 rotary_base=500000.0 factor=4.0 low_freq_factor=1.0 "
      "high_freq_factor=4.0 original_max_position_embeddings=32 positions=70",
      "| rope_type=default rotary_dim=2 rotary_base=10000.0 positions=0"}},
    {"rope_fwd",
     {{SLOT("x", ACT, "T,A,D")},
      {SLOT("cos", TURN_COS, "P,h")},
      {SLOT("sin", TURN_SIN, "P,h")},
      {SLOT("position", BELOW, "T"), .of = "P"}},
     ROPE_SIZES},
    {"rope_bwd",
     {{SLOT("dy", ACT, "T,A,D")},
      {SLOT("cos", TURN_COS, "P,h")},
      {SLOT("sin", TURN_SIN, "P,h")},
      {SLOT("position", BELOW, "T"), .of = "P"}},
     ROPE_SIZES},
    {"attention_fwd", {ATTENTION_SLOTS}, ATTENTION_SIZES},
    {"attention_bwd",
     {ATTENTION_SLOTS,
      {SLOT("o", FROM, "T,A,E"), .of = "attention_fwd.o"},
      {SLOT("lse", FROM, "T,A"), .of = "attention_fwd.lse"},
      {SLOT("do", ACT, "T,A,E")}},
     ATTENTION_SIZES},
    {"qkv_split_fwd", {{SLOT("qkv", ACT, "T,W")}}, SPLIT_SIZES},
    {"qkv_split_bwd",
     {{SLOT("dq", ACT, "T,A,D")}, {SLOT("dk", ACT, "T,G,D")}, {SLOT("dv", ACT, "T,G,D")}},
     SPLIT_SIZES},
    {"add",
     {{SLOT("a", ACT, "T,H")}, {SLOT("b", ACT, "T,H")}},
     {"T=1 H=1", "T=7 H=5", "T=9 H=64", "T=0 H=3"}},
    {"clamp_fwd",
     {{SLOT("x", ACT, "T,H"), .scale = 2}},
     {"T=1 H=1 | limit=0.5", "T=7 H=5 | limit=1.25", "T=9 H=64 | limit=0.7", "T=0 H=3 | limit=1.0"}},
    {"clamp_bwd",
     {{SLOT("dy", ACT, "T,H")}, {SLOT("x", ACT, "T,H"), .scale = 2}},
     {"T=1 H=1 | limit=0.5", "T=7 H=5 | limit=1.25", "T=9 H=64 | limit=0.7", "T=0 H=3 | limit=1.0"}},
    {"swiglu_fwd",
     {{SLOT("x", ACT, "T,W"), .scale = 3}, {SLOT("probs", POSITIVE, "T"), .when = "probs"}},
     {"T=5 W=6 probs=0", "T=9 W=80 probs=1", "T=0 W=4 probs=1", "T=3 W=258 probs=0", "T=3 W=0 probs=1"}},
    {"swiglu_bwd",
     {{SLOT("dy", ACT, "T,F")},
      {SLOT("x", ACT, "T,W"), .scale = 3},
      {SLOT("probs", POSITIVE, "T"), .when = "probs"}},
     {"T=5 F=3 W=6 probs=0", "T=9 F=40 W=80 probs=1", "T=0 F=2 W=4 probs=1", "T=3 F=129 W=258 probs=1",
      "T=3 F=0 W=0 probs=0", "T=3 F=0 W=0 probs=1"}},
    {"sigmoid_gate_fwd",
     {{SLOT("x", ACT, "T,H")}, {SLOT("gate", ACT, "T"), .scale = 3}},
     {"T=5 H=3", "T=1 H=1", "T=37 H=70", "T=0 H=4"}},
    {"sigmoid_gate_bwd",
     {{SLOT("dy", ACT, "T,H")}, {SLOT("x", ACT, "T,H")}, {SLOT("gate", ACT, "T"), .scale = 3}},
     {"T=5 H=3", "T=1 H=1", "T=37 H=70", "T=0 H=4"}},
    {"cast", {{SLOT("x", F32, "n")}}, {"n=300 | dtype=BF16", "n=5 | dtype=F32", "n=0 | dtype=BF16"}},
    {"cast",
     {{SLOT("x", ACT, "n")}},
     {"n=9 | dtype=BF16", "n=300 | dtype=F32"}}, /* F32 to F32 or BF16 to BF16, too */
    {"slice_rows", {{SLOT("x", ACT, "T,H")}}, {"T=9 H=5 | start=2 length=4", "T=3 H=7 | start=3 length=0"}},
    {"embedding_fwd",
     {{SLOT("ids", IDS, "T")}, {SLOT("weight", ACT, "V,H")}},
     {"T=9 V=11 H=5 | vocab_start=4", "T=30 V=300 H=40 | vocab_start=0", "T=0 V=3 H=2 | vocab_start=0"}},
    {"embedding_bwd",
     {{SLOT("dy", ACT, "T,H")}, {SLOT("ids", IDS, "T")}, {SLOT("dweight_in", F32, "V,H")}},
     {"T=9 V=11 H=5 | vocab_start=4", "T=90 V=7 H=40 | vocab_start=2", "T=0 V=3 H=2 | vocab_start=0",
      "T=3 V=4 H=0 | vocab_start=0"}},
    {"sum", {{SLOT("x", F32, "n")}}, {"n=1", "n=0", "n=5000"}},
    {"sumsq", {{SLOT("x", F32, "n")}}, {"n=1", "n=0", "n=5000"}},
    {"router_fwd",
     {{SLOT("logits", F32, "T,E"), .scale = 3},
      {SLOT("expert_bias", F32, "E"), .when = "bias", .scale = 0.1}},
     ROUTER_SIZES},
    {"router_bwd",
     {{SLOT("logits", F32, "T,E"), .scale = 3},
      {SLOT("expert_bias", F32, "E"), .when = "bias", .scale = 0.1, .hidden = true},
      {SLOT("indices", FROM, "T,K"), .of = "router_fwd.indices"},
      {SLOT("scores", FROM, "T,E"), .of = "router_fwd.scores"},
      {SLOT("dprobs", F32, "T,K")}},
     ROUTER_SIZES},
    {"router_aux_fwd", {{SLOT("logits", F32, "T,E"), .scale = 3}}, AUX_SIZES},
    {"router_aux_loss",
     {{SLOT("logits", F32, "T,E"), .scale = 3, .hidden = true},
      {SLOT("score_sums", FROM, "E"), .of = "router_aux_fwd.score_sums"},
      {SLOT("tokens_per_expert", FROM, "E"), .of = "router_aux_fwd.tokens_per_expert"},
      {SLOT("z_sum", FROM, "one"), .of = "router_aux_fwd.z_sum"}},
     AUX_LOSS_SIZES},
    {"router_aux_bwd",
     {{SLOT("logits", F32, "T,E"), .scale = 3},
      {SLOT("tokens_per_expert", FROM, "E"), .of = "router_aux_fwd.tokens_per_expert"},
      {SLOT("dlogits_in", F32, "T,E"), .scale = 0.01}},
     AUX_LOSS_SIZES},
    {"permute_plan",
     {{SLOT("indices", CHOICE, "T,K"), .of = "E"}},
     {"T=9 K=3 E=7 | experts=E", "T=33 K=2 E=40 | experts=E", "T=5 K=4 E=300 | experts=E",
      "T=0 K=2 E=4 | experts=E"}},
    {"gather_rows", {{SLOT("x", ACT, "T,H")}, {SLOT("index", BELOW, "R"), .of = "T"}}, ROWS_SIZES},
    {"gather_rows", /* rows of integers */
     {{SLOT("x", BELOW, "T,H"), .of = "N"}, {SLOT("index", BELOW, "R"), .of = "T"}},
     {"T=7 R=14 H=5 N=1000000"}},
    {"combine_rows", {{SLOT("x", ACT, "R,H")}, {SLOT("token_row", SHUFFLE, "T,K")}}, ROWS_SIZES},
    {"expert_bias_update",
     {{SLOT("bias_in", F32, "E")}, {SLOT("tokens_per_expert", COUNTS, "E"), .of = "R"}},
     {"E=8 R=40 | rate=0.001", "E=70 R=70 | rate=0.05", "E=1 R=3 | rate=1.0", "E=0 R=0 | rate=1.0"}},
    {"cross_entropy_stats",
     {{SLOT("logits", F32, "T,V"), .scale = 4}, {SLOT("targets", TARGETS, "T")}},
     LOSS_SIZES},
    {"cross_entropy_stats", /* a rank that holds no piece of the vocabulary */
     {{SLOT("logits", F32, "T,V")}, {SLOT("targets", TARGETS, "T")}},
     {"T=3 V=0 | vocab_start=4"}},
    {"cross_entropy_loss",
     {{SLOT("logits", F32, "T,V"), .scale = 4, .hidden = true},
      {SLOT("targets", TARGETS, "T")},
      {SLOT("stats", FROM, "one,three,T"), .of = "cross_entropy_stats.stats"}},
     {"T=7 V=5 one=1 three=3 | vocab_start=0", "T=5 V=33 one=1 three=3 | vocab_start=0",
      "T=0 V=4 one=1 three=3 | vocab_start=0"}},
    {"cross_entropy_bwd",
     {{SLOT("logits", F32, "T,V"), .scale = 4},
      {SLOT("targets", TARGETS, "T")},
      {SLOT("stats", FROM, "one,three,T"), .of = "cross_entropy_stats.stats", .hidden = true},
      {SLOT("lse", FROM, "T"), .of = "cross_entropy_loss.lse"}},
     {"T=7 V=5 one=1 three=3 | scale=0.125 vocab_start=0",
      "T=5 V=33 one=1 three=3 | scale=0.0625 vocab_start=0",
      "T=3 V=4103 one=1 three=3 | scale=0.3 vocab_start=0",
      "T=0 V=4 one=1 three=3 | scale=1.0 vocab_start=0"}},
    {"adamw",
     {{SLOT("main_param_in", F32, "n")},
      {SLOT("exp_avg_in", F32, "n"), .scale = 0.1},
      {SLOT("exp_avg_sq_in", POSITIVE, "n"), .scale = 0.01},
      {SLOT("grad", F32, "n")}},
     {"n=5 | lr=1e-3 " ADAM "beta2=0.95 weight_decay=0.1 step=7 grad_scale=0.3",
      "n=0 | lr=1e-3 " ADAM "beta2=0.999 weight_decay=0.0 step=1 grad_scale=1.0",
      "n=2500 | lr=2e-2 " ADAM "beta2=0.999 weight_decay=0.01 step=1000 grad_scale=1.0"}},
    {.op = NULL},
};
