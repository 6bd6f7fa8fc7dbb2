/* Inputs and sizes of every operation for the random requests.  Sizes: 0, 1, odd ones, on both sides of a warp, of a tile
 * and of every limit that selects another kernel.  docs/OPS.md says what the slots are. */
#include "parity/checks/random_request.h"

#define SLOT(name_, fill_) .name = name_, .fill = ASK_##fill_
#define LINEAR_SIZES                                                                                         \
    {                                                                                                        \
        "T=7 N=5 K=33 bias=1", "T=1 N=1 K=1 bias=0", "T=17 N=40 K=64 bias=1", "T=0 N=3 K=4 bias=1",          \
            "T=3 N=4 K=0 bias=1", "T=70 N=3 K=129 bias=0"                                                    \
    }
#define GROUPED_SIZES                                                                                        \
    {                                                                                                        \
        "R=9 El=4 N=5 K=17", "R=0 El=2 N=3 K=4", "R=70 El=40 N=8 K=16", "R=33 El=1 N=3 K=40",                \
            "R=150 El=3 N=136 K=72"                                                                          \
    }
#define NORM_SIZES                                                                                           \
    {                                                                                                        \
        "T=5 H=3 | eps=1e-5", "T=1 H=1 | eps=1e-6", "T=37 H=32 | eps=1e-6", "T=9 H=48 | eps=1e-5",           \
            "T=0 H=8 | eps=1e-5", "T=3 H=129 | eps=0.5", "T=70 H=64 | eps=1e-6", "T=300 H=264 | eps=1e-6",   \
            "T=265 H=24 | eps=1e-5", "T=3 H=1800 | eps=1e-5", "T=2 H=3000 | eps=1e-6",                       \
            "T=2 H=4104 | eps=1e-5", "T=2 H=8456 | eps=1e-6"                                                 \
    }
/* Rows of every number of registers, and more columns than they hold. */
#define RESIDUAL_NORM_SIZES                                                                                  \
    {                                                                                                        \
        "T=5 H=3 | eps=1e-5", "T=1 H=1 | eps=1e-6", "T=37 H=32 | eps=1e-6", "T=9 H=48 | eps=1e-5",           \
            "T=0 H=8 | eps=1e-5", "T=265 H=24 | eps=1e-5", "T=3 H=129 | eps=0.5", "T=70 H=128 | eps=1e-6",   \
            "T=6 H=264 | eps=1e-6", "T=5 H=1024 | eps=1e-6", "T=3 H=1800 | eps=1e-5",                        \
            "T=2 H=4096 | eps=1e-5", "T=2 H=4104 | eps=1e-5", "T=1 H=8192 | eps=1e-6",                       \
            "T=1 H=8200 | eps=1e-6"                                                                          \
    }
/* Rows of every number of threads and of registers, one block and several, and more rows than the 256 blocks of gpu/ops/norm_once.cuh take at
 * once: with 16 threads a row 4,096, with 32 2,048, with 128 512 (of 264 columns, below), with 256 as many as blocks. */
#define ONE_PASS_SIZES                                                                                       \
    "T=17 H=128 trained=1 | eps=1e-6", "T=6 H=200 trained=1 | eps=1e-6", "T=5 H=1024 trained=1 | eps=1e-6",  \
        "T=3 H=1800 trained=1 | eps=1e-5", "T=3 H=3000 trained=1 | eps=1e-6",                                \
        "T=2 H=4104 trained=1 | eps=1e-5", "T=2 H=8192 trained=0 | eps=1e-5",                                \
        "T=1 H=8200 trained=1 | eps=1e-6", "T=4100 H=8 trained=1 | eps=1e-6",                                \
        "T=2052 H=136 trained=1 | eps=1e-6", "T=257 H=1032 trained=1 | eps=1e-6"
#define RESIDUAL_NORM_BWD_SIZES                                                                              \
    {                                                                                                        \
        "T=5 H=3 trained=1 | eps=1e-5", "T=1 H=1 trained=1 | eps=1e-6", "T=37 H=32 trained=1 | eps=1e-6",    \
            "T=9 H=48 trained=0 | eps=1e-5", "T=0 H=8 trained=1 | eps=1e-5",                                 \
            "T=3 H=129 trained=1 | eps=0.5", "T=515 H=264 trained=1 | eps=1e-6",                             \
            "T=265 H=24 trained=1 | eps=1e-5", ONE_PASS_SIZES                                                \
    }
/* trained=0: gamma is frozen, no dgamma is asked. */
#define NORM_BWD_SIZES                                                                                       \
    {                                                                                                        \
        "T=5 H=3 trained=1 | eps=1e-5", "T=1 H=1 trained=1 | eps=1e-6", "T=37 H=32 trained=1 | eps=1e-6",    \
            "T=9 H=48 trained=1 | eps=1e-5", "T=0 H=8 trained=1 | eps=1e-5",                                 \
            "T=3 H=129 trained=1 | eps=0.5", "T=70 H=64 trained=1 | eps=1e-6",                               \
            "T=37 H=32 trained=0 | eps=1e-6", "T=3 H=129 trained=0 | eps=1e-5",                              \
            "T=515 H=264 trained=1 | eps=1e-6", "T=265 H=24 trained=1 | eps=1e-5",                           \
            "T=260 H=40 trained=0 | eps=1e-5", ONE_PASS_SIZES                                                \
    }
#define LAYERNORM_SIZES                                                                                      \
    {                                                                                                        \
        "T=5 H=3 beta=1 | eps=1e-5", "T=1 H=1 beta=1 | eps=1e-6", "T=37 H=32 beta=0 | eps=1e-6",             \
            "T=9 H=48 beta=1 | eps=1e-5", "T=0 H=8 beta=1 | eps=1e-5", "T=3 H=129 beta=1 | eps=0.5",         \
            "T=70 H=64 beta=0 | eps=1e-6"                                                                    \
    }
#define CUT_BWD_SIZES                                                                                        \
    {                                                                                                        \
        "T=5 H=3 trained=1 | width=12", "T=1 H=1 trained=1 | width=2", "T=37 H=32 trained=1 | width=64",     \
            "T=9 H=48 trained=1 | width=96", "T=0 H=8 trained=1 | width=16",                                 \
            "T=3 H=129 trained=1 | width=1032", "T=70 H=64 trained=1 | width=64",                            \
            "T=9 H=48 trained=0 | width=96"                                                                  \
    }
/* A part of 3 of a row's columns and more. */
#define CUT_SIZES                                                                                            \
    {                                                                                                        \
        "T=5 H=3 | eps=1e-5 width=12", "T=1 H=1 | eps=0.5 width=2", "T=37 H=32 | eps=1e-6 width=64",         \
            "T=9 H=48 | eps=0.25 width=96", "T=0 H=8 | eps=1e-5 width=16", "T=3 H=129 | eps=0.5 width=1032", \
            "T=70 H=64 | eps=1e-5 width=64"                                                                  \
    }
#define SUMSQ_SIZES                                                                                          \
    {                                                                                                        \
        "T=5 H=3 | columns=H", "T=1 H=1 | columns=H", "T=37 H=32 | columns=H", "T=9 H=48 | columns=H",       \
            "T=0 H=8 | columns=H", "T=3 H=129 | columns=H", "T=70 H=64 | columns=H"                          \
    }
#define DOT_SIZES                                                                                            \
    {                                                                                                        \
        "T=5 H=3", "T=1 H=1", "T=37 H=32", "T=9 H=48", "T=0 H=8", "T=3 H=129", "T=70 H=64"                   \
    }
#define ROPE_SIZES                                                                                           \
    {                                                                                                        \
        "T=5 A=3 D=8 P=11 h=4", "T=7 A=1 D=40 P=9 h=8", "T=0 A=2 D=4 P=3 h=2", "T=3 A=2 D=80 P=64 h=40"      \
    }
/* Heads of every number of lanes, rotated whole and in part; pairs that are no multiple of eight. */
#define QKV_ROPE_SIZES(symbols, more, other)                                                                 \
    {                                                                                                        \
        "T=7 A=3 G=1 D=16 P=9 h=8" symbols " | " SPLIT more,                                                 \
            "T=5 A=4 G=2 D=3 P=11 h=1" symbols " | " SPLIT other,                                            \
            "T=7 A=3 G=1 D=32 P=9 h=8" symbols " | " SPLIT more,                                             \
            "T=9 A=6 G=3 D=40 P=9 h=8" symbols " | " SPLIT other,                                            \
            "T=5 A=6 G=3 D=40 P=9 h=20" symbols " | " SPLIT more,                                            \
            "T=17 A=4 G=2 D=64 P=33 h=32" symbols " | " SPLIT other,                                         \
            "T=6 A=2 G=2 D=96 P=7 h=48" symbols " | " SPLIT more,                                            \
            "T=5 A=5 G=1 D=128 P=20 h=64" symbols " | " SPLIT other,                                         \
            "T=3 A=2 G=1 D=256 P=64 h=64" symbols " | " SPLIT more,                                          \
            "T=3 A=2 G=1 D=264 P=5 h=128" symbols " | " SPLIT other,                                         \
            "T=0 A=2 G=1 D=16 P=3 h=8" symbols " | " SPLIT more                                              \
    }
/* Sums over more rows than a block of the kernel has, and than all its blocks have; frozen gammas. */
#define QKV_NORM_ROWS                                                                                        \
    {                                                                                                        \
        "T=70 A=6 G=2 D=16 P=9 h=8 trained=1 | " SPLIT, "T=41 A=4 G=4 D=32 P=9 h=8 trained=0 | " SPLIT,      \
            "T=19 A=8 G=2 D=136 P=9 h=64 trained=1 | " SPLIT,                                                \
            "T=26 A=80 G=1 D=136 P=9 h=8 trained=1 | " SPLIT,                                                \
            "T=700 A=12 G=1 D=24 P=9 h=8 trained=1 | " SPLIT                                                 \
    }
#define TURN_SLOTS                                                                                           \
    {SLOT("cos", TURN_COS)}, {SLOT("sin", TURN_SIN)},                                                        \
    {                                                                                                        \
        SLOT("position", BELOW), .of = "P"                                                                   \
    }
#define QKV_NORM_BWD_SLOTS                                                                                   \
    {.name = "q_raw"}, {.name = "k_raw"}, {.name = "q_gamma"}, {.name = "k_gamma"},                          \
        {SLOT("q_rstd", POSITIVE)}, {SLOT("k_rstd", POSITIVE)}, {.name = "dq"}, {.name = "dk"},              \
        {.name = "dv"}, TURN_SLOTS
#define QKV_NORM_BWD_GAMMAS                                                                                  \
    {.name = "q_dgamma_in", .when = "trained"},                                                              \
    {                                                                                                        \
        .name = "k_dgamma_in", .when = "trained"                                                             \
    }
/* Rows of one block of four columns and others; one mask after 2^20 steps. */
#define DROPOUT_SIZES                                                                                        \
    {                                                                                                        \
        "T=5 H=3 N=9 | p=0.5 seed=1234 stream=3 draw=0", "T=1 H=1 N=1 | p=0.1 seed=1 stream=0 draw=7",       \
            "T=37 H=32 N=40 | p=0.3 seed=-5 stream=247 draw=1048576",                                        \
            "T=9 H=70 N=1000003 | p=0.75 seed=0 stream=9 draw=3",                                            \
            "T=0 H=8 N=2 | p=0.5 seed=1 stream=1 draw=1", "T=3 H=129 N=3 | p=0.0 seed=1 stream=2 draw=5"     \
    }
#define HEADS "batch=B seq_q=Sq seq_k=Sk heads=A groups=G head_dim=D head_dim_v=Dv"
/* Documents and windows in kernels of every width; heads narrower than their tiles; rows that see no key; no rows, no keys; values wider
 * and narrower than keys. */
#define ATTENTION_SIZES                                                                                      \
    {                                                                                                        \
        "B=2 Sq=5 Sk=5 A=4 G=2 D=8 Dv=8 first=0 | " HEADS " scale=0.35 window=0",                            \
            "B=1 Sq=1 Sk=1 A=1 G=1 D=1 Dv=1 first=0 | " HEADS " scale=1.0 window=0",                         \
            "B=1 Sq=70 Sk=70 A=2 G=1 D=40 Dv=40 first=0 | " HEADS " scale=0.158 window=9",                   \
            "B=3 Sq=9 Sk=40 A=3 G=3 D=33 Dv=33 first=0 | " HEADS " scale=0.17 window=0",                     \
            "B=2 Sq=33 Sk=33 A=6 G=2 D=64 Dv=64 first=1 | " HEADS " scale=0.125 window=0",                   \
            "B=1 Sq=20 Sk=20 A=2 G=2 D=80 Dv=80 first=1 | " HEADS " scale=0.11 window=4",                    \
            "B=1 Sq=18 Sk=18 A=1 G=1 D=128 Dv=128 first=0 | " HEADS " scale=0.088 window=0",                 \
            "B=1 Sq=9 Sk=9 A=2 G=1 D=160 Dv=160 first=0 | " HEADS " scale=0.079 window=0",                   \
            "B=1 Sq=9 Sk=4 A=2 G=1 D=8 Dv=8 first=0 | " HEADS " scale=0.35 window=0",                        \
            "B=2 Sq=0 Sk=3 A=2 G=1 D=8 Dv=8 first=0 | " HEADS " scale=0.35 window=0",                        \
            "B=2 Sq=3 Sk=0 A=2 G=1 D=8 Dv=8 first=0 | " HEADS " scale=0.35 window=0",                        \
            "B=1 Sq=0 Sk=0 A=1 G=1 D=4 Dv=4 first=0 | " HEADS " scale=0.5 window=0",                         \
            "B=1 Sq=7 Sk=7 A=2 G=1 D=16 Dv=16 first=1 | " HEADS " scale=0.25 window=2",                      \
            "B=1 Sq=7 Sk=7 A=2 G=1 D=24 Dv=40 first=1 | " HEADS " scale=0.2 window=3",                       \
            "B=1 Sq=7 Sk=7 A=2 G=2 D=100 Dv=16 first=1 | " HEADS " scale=0.1 window=3",                      \
            "B=1 Sq=7 Sk=7 A=1 G=1 D=136 Dv=192 first=1 | " HEADS " scale=0.085 window=2",                   \
            "B=1 Sq=10 Sk=35 A=2 G=1 D=168 Dv=104 first=1 | " HEADS " scale=0.077 window=0",                 \
            "B=1 Sq=9 Sk=35 A=1 G=1 D=248 Dv=256 first=0 | " HEADS " scale=0.063 window=11",                 \
            "B=2 Sq=9 Sk=40 A=4 G=2 D=8 Dv=8 first=0 | " HEADS " scale=0.35 window=0 dropout_p=0.3 "         \
            "seed=9 stream=4 draw=2 first_row=1 all_rows=5 first_head=4 all_heads=12 all_keys=64",           \
            "B=1 Sq=37 Sk=37 A=3 G=3 D=40 Dv=24 first=1 | " HEADS " scale=0.16 window=9 dropout_p=0.7 "      \
            "seed=1234 stream=0 draw=0 first_row=0 all_rows=1 first_head=0 all_heads=3 all_keys=37",         \
            "B=1 Sq=9 Sk=9 A=2 G=1 D=64 Dv=64 first=0 | " HEADS " scale=0.11 window=0 dropout_p=0.5 "        \
            "seed=7 stream=8 draw=3 first_row=0 all_rows=1 first_head=0 all_heads=2 all_keys=9",             \
            "B=1 Sq=9 Sk=9 A=2 G=1 D=128 Dv=128 first=0 | " HEADS " scale=0.09 window=0 dropout_p=0.2 "      \
            "seed=8 stream=12 draw=4 first_row=2 all_rows=3 first_head=2 all_heads=4 all_keys=18",           \
            "B=1 Sq=9 Sk=9 A=1 G=1 D=160 Dv=192 first=0 | " HEADS " scale=0.08 window=0 dropout_p=0.4 "      \
            "seed=9 stream=16 draw=5 first_row=0 all_rows=1 first_head=0 all_heads=1 all_keys=9"             \
    }
#define ATTENTION_SLOTS                                                                                      \
    {.name = "q", .scale = 2}, {.name = "k", .scale = 2}, {.name = "v"},                                     \
        {SLOT("q_position", QUERY_POSITION)}, {SLOT("k_position", KEY_POSITION)},                            \
    {                                                                                                        \
        SLOT("first_key", FIRST_KEY), .when = "first"                                                        \
    }
#define SPLIT "heads=A groups=G head_dim=D"
#define SPLIT_SIZES                                                                                          \
    {                                                                                                        \
        "T=5 A=4 G=2 D=3 | " SPLIT, "T=9 A=3 G=1 D=40 | " SPLIT, "T=0 A=2 G=2 D=4 | " SPLIT                  \
    }
#define LATENT "kv_lora_rank=C qk_pos_emb_head_dim=R"
#define LATENT_SIZES                                                                                         \
    {                                                                                                        \
        "T=5 C=7 R=3 | " LATENT, "T=9 C=40 R=8 | " LATENT, "T=0 C=4 R=2 | " LATENT,                          \
            "T=3 C=0 R=16 | " LATENT, "T=2 C=512 R=64 | " LATENT, "T=3 C=16 R=0 | " LATENT                   \
    }
/* D - 2h columns pass */
#define MLA_HEADS "heads=A head_dim=D"
#define MLA_Q_SIZES                                                                                          \
    {                                                                                                        \
        "T=5 A=3 D=11 P=11 h=4 | " MLA_HEADS, "T=7 A=1 D=40 P=9 h=8 | " MLA_HEADS,                           \
            "T=0 A=2 D=5 P=3 h=2 | " MLA_HEADS, "T=9 A=3 D=2 P=3 h=1 | " MLA_HEADS,                          \
            "T=3 A=2 D=16 P=5 h=8 | " MLA_HEADS, "T=3 A=1 D=8 P=5 h=0 | " MLA_HEADS,                         \
            "T=4 A=3 D=72 P=64 h=32 | " MLA_HEADS, "T=3 A=2 D=21 P=5 h=8 | " MLA_HEADS                       \
    }
#define MLA "heads=A qk_head_dim=N v_head_dim=V"
#define MLA_KV_SIZES                                                                                         \
    {                                                                                                        \
        "T=5 A=3 N=3 V=5 P=11 h=4 | " MLA, "T=7 A=1 N=24 V=8 P=9 h=8 | " MLA,                                \
            "T=0 A=2 N=4 V=2 P=3 h=2 | " MLA, "T=9 A=3 N=0 V=1 P=3 h=1 | " MLA,                              \
            "T=3 A=5 N=0 V=16 P=5 h=8 | " MLA, "T=3 A=2 N=8 V=0 P=5 h=8 | " MLA,                             \
            "T=2 A=3 N=16 V=24 P=5 h=0 | " MLA, "T=2 A=128 N=8 V=8 P=5 h=8 | " MLA,                          \
            "T=2 A=131 N=1 V=2 P=5 h=3 | " MLA, "T=4 A=3 N=16 V=8 P=64 h=32 | " MLA,                         \
            "T=3 A=2 N=0 V=0 P=5 h=0 | " MLA, "T=3 A=2 N=8 V=5 P=5 h=8 | " MLA,                              \
            "T=3 A=2 N=8 V=16 P=5 h=3 | " MLA                                                                \
    }
#define MERGE "heads=A head_dim=D"
#define PACK MERGE " parts=P"
#define PACK_SIZES                                                                                           \
    {                                                                                                        \
        "T=5 A=4 P=2 D=3 | " PACK, "T=9 A=3 P=1 D=40 | " PACK, "T=3 A=6 P=3 D=1 | " PACK,                    \
            "T=0 A=2 P=2 D=4 | " PACK                                                                        \
    }
#define ROUTER_BY(factor) "topk=K scaling_factor=" factor " score_function="
#define ROUTER ROUTER_BY("1.5")
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
            "T=33 E=40 K=4 bias=0 | " ROUTER_BY(                                                             \
                "0.375") "softmax pre_softmax=false norm_topk_prob=false num_groups=0 group_topk=0",         \
            "T=6 E=70 K=4 bias=1 | " ROUTER                                                                  \
            "sigmoid pre_softmax=false norm_topk_prob=true num_groups=5 group_topk=2",                       \
            "T=20 E=130 K=6 bias=0 | " ROUTER                                                                \
            "softmax pre_softmax=false norm_topk_prob=false num_groups=13 group_topk=3",                     \
            "T=3 E=300 K=8 bias=1 | " ROUTER_BY(                                                             \
                "0.375") "sigmoid pre_softmax=false norm_topk_prob=false num_groups=0 group_topk=0",         \
            "T=2 E=80 K=2 bias=0 | " ROUTER                                                                  \
            "softmax pre_softmax=true norm_topk_prob=true num_groups=40 group_topk=2",                       \
            MODES("E=12", "num_groups=3 group_topk=2"), MODES("E=48", "num_groups=6 group_topk=2"),          \
            MODES("E=96", "num_groups=0 group_topk=0"), MODES("E=160", "num_groups=0 group_topk=0"),         \
            MODES("E=320", "num_groups=20 group_topk=2"),                                                    \
            "T=0 E=4 K=2 bias=0 | " ROUTER                                                                   \
            "softmax pre_softmax=true norm_topk_prob=true num_groups=0 group_topk=0"                         \
    }
#define FAR_BELOW                                                                                            \
    {                                                                                                        \
        .name = "logits", .scale = -800                                                                      \
    }
#define FAR_BELOW_SIZES                                                                                      \
    "T=3 E=12 K=4 bias=1 | " ROUTER "sigmoid pre_softmax=false norm_topk_prob=true num_groups=0 "            \
    "group_topk=0"
/* Of interleaved sequences: fewer and more tokens than a block has, an odd number of rows, more sums than one block ends. */
#define SEQ_ROUTER_SIZES                                                                                     \
    {                                                                                                        \
        "T=9 E=7 K=3 B=3 bias=0 | rows=B " ROUTER                                                            \
        "softmax pre_softmax=true norm_topk_prob=true num_groups=0 group_topk=0",                            \
            "T=70 E=40 K=4 B=2 bias=0 | rows=B " ROUTER_BY(                                                  \
                "0.375") "softmax pre_softmax=false norm_topk_prob=false num_groups=0 group_topk=0",         \
            "T=35 E=70 K=4 B=5 bias=1 | rows=B " ROUTER                                                      \
            "sigmoid pre_softmax=false norm_topk_prob=true num_groups=5 group_topk=2",                       \
            "T=8 E=130 K=6 B=8 bias=0 | rows=B " ROUTER_BY(                                                  \
                "0.375") "softmax pre_softmax=false norm_topk_prob=false num_groups=13 group_topk=3",        \
            "T=4 E=160 K=3 B=1 bias=1 | rows=B " ROUTER                                                      \
            "sigmoid pre_softmax=false norm_topk_prob=false num_groups=0 group_topk=0",                      \
            "T=6 E=300 K=8 B=2 bias=0 | rows=B " ROUTER                                                      \
            "softmax pre_softmax=true norm_topk_prob=false num_groups=0 group_topk=0",                       \
            "T=4230 E=4 K=1 B=2 bias=0 | rows=B " ROUTER                                                     \
            "softmax pre_softmax=true norm_topk_prob=true num_groups=0 group_topk=0",                        \
            "T=0 E=4 K=2 B=2 bias=0 | rows=B " ROUTER                                                        \
            "softmax pre_softmax=true norm_topk_prob=true num_groups=0 group_topk=0"                         \
    }
#define AUX "topk=K score_function="
/* Each function of the scores in a kernel of each width; 4,230 tokens are more than the 128 tiles of 32 that are summed at once. */
#define AUX_SIZES                                                                                            \
    {                                                                                                        \
        "T=9 E=7 K=3 | " AUX "softmax", "T=33 E=40 K=2 | " AUX "sigmoid", "T=6 E=70 K=4 | " AUX "softmax",   \
            "T=40 E=130 K=1 | " AUX "sigmoid", "T=3 E=300 K=8 | " AUX "softmax",                             \
            "T=20 E=7 K=3 | " AUX "sigmoid", "T=20 E=40 K=2 | " AUX "softmax",                               \
            "T=20 E=70 K=4 | " AUX "sigmoid", "T=20 E=130 K=1 | " AUX "softmax",                             \
            "T=3 E=300 K=8 | " AUX "sigmoid", "T=4230 E=4 K=1 | " AUX "softmax",                             \
            "T=0 E=4 K=2 | " AUX "softmax"                                                                   \
    }
#define AUX_LOSS_SIZES                                                                                       \
    {                                                                                                        \
        "T=9 E=7 K=3 | " AUX "softmax aux_coeff=0.01 z_coeff=0.001 loss_scale=0.25 tokens=9",                \
            "T=33 E=40 K=2 | " AUX "sigmoid aux_coeff=0.02 z_coeff=0.0 loss_scale=1.0 tokens=66",            \
            "T=6 E=70 K=4 | " AUX "softmax aux_coeff=0.0 z_coeff=0.003 loss_scale=0.5 tokens=6",             \
            "T=40 E=130 K=1 | " AUX "sigmoid aux_coeff=0.5 z_coeff=0.1 loss_scale=0.5 tokens=40",            \
            "T=3 E=300 K=8 | " AUX "softmax aux_coeff=1.0 z_coeff=0.5 loss_scale=0.125 tokens=3",            \
            "T=0 E=4 K=2 | " AUX "softmax aux_coeff=1.0 z_coeff=0.5 loss_scale=1.0 tokens=0"                 \
    }
/* The attributes of a loss: `of` ends the names of the second and the third. */
#define LOSS(of, aux, z, n, among, scale)                                                                    \
    " aux_coeff" of "=" aux " z_coeff" of "=" z " tokens" of "=" n " divisor" of "=" among " loss_scale" of  \
    "=" scale
#define FIRST LOSS("", "0.02", "0.003", "66", "1", "0.25")
#define SECOND LOSS("_2", "0.3", "0.0", "11", "6", "0.125")
#define THIRD LOSS("_3", "0.5", "0.0", "132", "3", "0.25")
/* Other numbers for all of them. */
#define FIRST_B LOSS("", "0.5", "0.01", "13", "5", "0.75")
#define SECOND_B LOSS("_2", "0.04", "0.02", "90", "2", "0.5")
#define THIRD_B LOSS("_3", "0.07", "0.001", "7", "8", "0.0625")
/* One number of experts for each number of registers, each way to choose, rows of counts for each loss. */
#define BALANCED_BWD_SIZES(losses, others)                                                                   \
    {                                                                                                        \
        "T=12 E=7 K=3 bias=0 N=9 B=1 C=3 D=1 | " ROUTER                                                      \
        "softmax pre_softmax=true norm_topk_prob=true" losses,                                               \
            "T=33 E=40 K=4 bias=0 N=9 B=1 C=3 D=1 | " ROUTER_BY(                                             \
                "0.375") "softmax pre_softmax=false norm_topk_prob=false" others,                            \
            "T=6 E=70 K=4 bias=1 N=9 B=3 C=1 D=2 | " ROUTER                                                  \
            "sigmoid pre_softmax=false norm_topk_prob=true num_groups=5 group_topk=2" losses,                \
            "T=4 E=130 K=6 bias=0 N=50 B=1 C=2 D=1 | " ROUTER                                                \
            "softmax pre_softmax=true norm_topk_prob=false" others,                                          \
            "T=3 E=300 K=8 bias=1 N=5 B=1 C=3 D=1 | " ROUTER                                                 \
            "sigmoid pre_softmax=false norm_topk_prob=false" losses,                                         \
            "T=2 E=64 K=1 bias=0 N=5 B=2 C=2 D=1 | " ROUTER_BY(                                              \
                "0.375") "sigmoid pre_softmax=false norm_topk_prob=true" others,                             \
            "T=0 E=4 K=2 bias=0 N=5 B=1 C=2 D=1 | " ROUTER                                                   \
            "softmax pre_softmax=true norm_topk_prob=true" losses                                            \
    }
/* Every way to choose in a kernel of one width, with one loss. */
#define BALANCED_MODE(e, k, bias, mode)                                                                      \
    "T=2 E=" e " K=" k " bias=" bias " N=9 B=2 C=1 D=1 | " ROUTER mode FIRST
#define BALANCED_MODES(e)                                                                                    \
    BALANCED_MODE(e, "4", "0", "softmax pre_softmax=true norm_topk_prob=true"),                              \
        BALANCED_MODE(e, "4", "0", "softmax pre_softmax=true norm_topk_prob=false"),                         \
        BALANCED_MODE(e, "4", "0", "softmax pre_softmax=false norm_topk_prob=false"),                        \
        BALANCED_MODE(e, "4", "1", "sigmoid pre_softmax=false norm_topk_prob=true"),                         \
        BALANCED_MODE(e, "1", "0", "sigmoid pre_softmax=false norm_topk_prob=true")
#define BALANCED_BWD_MODES                                                                                   \
    {                                                                                                        \
        BALANCED_MODES("12"), BALANCED_MODES("48"), BALANCED_MODES("96"), BALANCED_MODES("160"),             \
            BALANCED_MODES("320")                                                                            \
    }
#define BALANCED_BWD_SLOTS                                                                                   \
    {SLOT("indices", FROM), .of = "router_fwd.indices"}, {SLOT("scores", FROM), .of = "router_fwd.scores"},  \
        {.name = "dprobs"},                                                                                  \
    {                                                                                                        \
        SLOT("tokens_per_expert", BELOW), .of = "N"                                                          \
    }
#define ROWS_SIZES                                                                                           \
    {                                                                                                        \
        "T=7 K=2 R=14 H=5", "T=1 K=1 R=1 H=1", "T=0 K=2 R=0 H=3", "T=13 K=3 R=39 H=70", "T=13 K=3 R=39 H=72" \
    }
#define LOSS_SIZES                                                                                           \
    {                                                                                                        \
        "T=7 V=5 tp=1 | vocab_start=3", "T=5 V=33 tp=1 | vocab_start=0",                                     \
            "T=3 V=4103 tp=1 | vocab_start=4000", "T=0 V=4 tp=1 | vocab_start=0",                            \
            "T=4 V=300 tp=1 | vocab_start=0"                                                                 \
    }
#define ADAM "beta1=0.9 eps=1e-8 "

const parity_ask_row parity_ask_table[] = {
    {"linear_fwd", {{.name = "x"}, {.name = "weight"}, {.name = "bias", .when = "bias"}}, LINEAR_SIZES},
    {"linear_fwd", /* router and output layer: an F32 result of activations */
     {{.name = "x"}, {.name = "weight"}, {.name = "bias", .when = "bias"}},
     {"T=7 N=5 K=33 bias=1 | dtype=F32", "T=17 N=40 K=64 bias=0 | dtype=F32"}},
    {"linear_bwd_input", .sizes = LINEAR_SIZES},
    {"linear_bwd_weight", .sizes = LINEAR_SIZES},
    {"linear_bwd_weight", /* stored before it is added */
     .sizes = {"T=7 N=5 K=33 bias=0 | gradient_accumulation_fusion=false",
               "T=70 N=40 K=64 bias=0 | gradient_accumulation_fusion=false",
               "T=0 N=3 K=4 bias=0 | gradient_accumulation_fusion=false"}},
    {"linear_bwd_weight",
     {{.name = "dy"}, {.name = "x"}, {SLOT("dweight_in", UNREAD)}},
     {"T=7 N=5 K=33 | accumulate=false",
      "T=70 N=40 K=64 | accumulate=false gradient_accumulation_fusion=false",
      "T=0 N=3 K=4 | accumulate=false"}},
    {"linear_bwd_bias", .sizes = LINEAR_SIZES},
    {"linear_bwd_bias",
     {{.name = "dy"}, {SLOT("dbias_in", UNREAD)}},
     {"T=70 N=33 | accumulate=false", "T=0 N=5 | accumulate=false"}},
    {"grouped_linear_fwd",
     {{.name = "x"}, {.name = "weight"}, {SLOT("tokens_per_expert", COUNTS), .of = "R"}},
     GROUPED_SIZES},
    {"grouped_linear_bwd_input",
     {{.name = "dy"}, {.name = "weight"}, {SLOT("tokens_per_expert", COUNTS), .of = "R"}},
     GROUPED_SIZES},
    {"grouped_linear_bwd_weight",
     {{.name = "dy"}, {.name = "x"}, {SLOT("tokens_per_expert", COUNTS), .of = "R"}, {.name = "dweight_in"}},
     GROUPED_SIZES},
    {"grouped_linear_bwd_weight",
     {{.name = "dy"}, {.name = "x"}, {SLOT("tokens_per_expert", COUNTS), .of = "R"}, {.name = "dweight_in"}},
     {"R=9 El=4 N=5 K=17 | gradient_accumulation_fusion=false",
      "R=33 El=1 N=3 K=40 | gradient_accumulation_fusion=false",
      "R=70 El=3 N=40 K=72 | gradient_accumulation_fusion=false",
      "R=150 El=3 N=72 K=136 | gradient_accumulation_fusion=false"}},
    {"grouped_linear_bwd_weight", /* experts without rows become zero */
     {{.name = "dy"},
      {.name = "x"},
      {SLOT("tokens_per_expert", COUNTS), .of = "R"},
      {SLOT("dweight_in", UNREAD)}},
     {"R=9 El=4 N=5 K=17 | accumulate=false", "R=70 El=40 N=8 K=16 | accumulate=false",
      "R=150 El=3 N=72 K=136 | accumulate=false gradient_accumulation_fusion=false",
      "R=0 El=2 N=8 K=8 | accumulate=false"}},
    {"rmsnorm_fwd", .sizes = NORM_SIZES},
    {"add_rmsnorm_fwd", .sizes = RESIDUAL_NORM_SIZES},
    {"rmsnorm_bwd",
     {{.name = "x"},
      {.name = "gamma"},
      {SLOT("rstd", FROM), .of = "rmsnorm_fwd.rstd"},
      {.name = "dy"},
      {.name = "dgamma_in", .when = "trained"}},
     NORM_BWD_SIZES},
    {"rmsnorm_bwd_add",
     {{.name = "x"},
      {.name = "gamma"},
      {SLOT("rstd", FROM), .of = "rmsnorm_fwd.rstd"},
      {.name = "dy"},
      {.name = "dresidual"},
      {.name = "dgamma_in", .when = "trained"}},
     RESIDUAL_NORM_BWD_SIZES},
    {"rmsnorm_sumsq", .sizes = SUMSQ_SIZES},
    {"rmsnorm_apply", {{.name = "x"}, {.name = "gamma"}, {SLOT("sumsq", POSITIVE)}}, CUT_SIZES},
    {"rmsnorm_bwd_dot",
     {{.name = "x"}, {.name = "gamma"}, {SLOT("rstd", POSITIVE)}, {.name = "dy"}},
     DOT_SIZES},
    {"rmsnorm_bwd_apply",
     {{.name = "x"},
      {.name = "gamma"},
      {SLOT("rstd", POSITIVE)},
      {.name = "dot"},
      {.name = "dy"},
      {.name = "dgamma_in", .when = "trained"}},
     CUT_BWD_SIZES},
    {"layernorm_fwd", {{.name = "x"}, {.name = "gamma"}, {.name = "beta", .when = "beta"}}, LAYERNORM_SIZES},
    {"layernorm_bwd",
     {{.name = "x"},
      {.name = "gamma"},
      {SLOT("mean", FROM), .of = "layernorm_fwd.mean"},
      {SLOT("rstd", FROM), .of = "layernorm_fwd.rstd"},
      {.name = "dy"},
      {.name = "dgamma_in"},
      {.name = "dbeta_in", .when = "beta"}},
     LAYERNORM_SIZES},
    {"rope_table",
     {{.name = NULL}},
     {"| rope_type=default rotary_dim=16 rotary_base=10000.0 positions=40",
      "| rope_type=linear rotary_dim=6 rotary_base=1000000.0 factor=2.5 positions=9",
      "| rope_type=llama3 rotary_dim=32 rotary_base=500000.0 factor=4.0 low_freq_factor=1.0 "
      "high_freq_factor=4.0 original_max_position_embeddings=32 positions=70",
      "| rope_type=yarn rotary_dim=32 rotary_base=500.0 factor=4.0 original_max_position_embeddings=32 "
      "positions=70",
      "| rope_type=yarn rotary_dim=16 rotary_base=10000.0 factor=40.0 original_max_position_embeddings=4096 "
      "beta_fast=16.5 "
      "beta_slow=0.75 truncate=false attention_factor=1.375 positions=9",
      /* ends beyond the last pair, and at one place */
      "| rope_type=yarn rotary_dim=4 rotary_base=2.0 factor=2.0 original_max_position_embeddings=4096 "
      "beta_fast=388.0 beta_slow=0.001 positions=9",
      "| rope_type=yarn rotary_dim=4 rotary_base=2.0 factor=2.0 original_max_position_embeddings=4096 "
      "beta_fast=215.0 beta_slow=0.001 positions=9",
      "| rope_type=default rotary_dim=2 rotary_base=10000.0 positions=0"}},
    {"rope_fwd",
     {{.name = "x"}, {SLOT("cos", TURN_COS)}, {SLOT("sin", TURN_SIN)}, {SLOT("position", BELOW), .of = "P"}},
     ROPE_SIZES},
    {"rope_bwd",
     {{.name = "dy"}, {SLOT("cos", TURN_COS)}, {SLOT("sin", TURN_SIN)}, {SLOT("position", BELOW), .of = "P"}},
     ROPE_SIZES},
    {"attention_fwd", {ATTENTION_SLOTS}, ATTENTION_SIZES},
    {"attention_bwd",
     {ATTENTION_SLOTS,
      {SLOT("o", FROM), .of = "attention_fwd.o"},
      {SLOT("lse", FROM), .of = "attention_fwd.lse"},
      {.name = "do"}},
     ATTENTION_SIZES},
    {"qkv_split_fwd", .sizes = SPLIT_SIZES},
    {"qkv_split_bwd", .sizes = SPLIT_SIZES},
    {"qkv_rope_fwd", {{.name = "qkv"}, TURN_SLOTS}, QKV_ROPE_SIZES("", "", "")},
    {"qkv_norm_rope_fwd",
     {{.name = "q_gamma"}, {.name = "k_gamma"}, {.name = "qkv"}, TURN_SLOTS},
     QKV_ROPE_SIZES("", " eps=1e-5", " eps=0.5")},
    {"qkv_rope_bwd",
     {{.name = "dq"}, {.name = "dk"}, {.name = "dv"}, TURN_SLOTS},
     QKV_ROPE_SIZES("", "", "")},
    {"qkv_norm_rope_bwd",
     {QKV_NORM_BWD_SLOTS, QKV_NORM_BWD_GAMMAS},
     QKV_ROPE_SIZES(" trained=1", "", " eps=0.5")},
    {"qkv_norm_rope_bwd", {QKV_NORM_BWD_SLOTS, QKV_NORM_BWD_GAMMAS}, QKV_NORM_ROWS},
    {"qkv_norm_rope_bwd", /* one of both gammas is frozen */
     {QKV_NORM_BWD_SLOTS, {.name = "q_dgamma_in"}},
     {"T=7 A=3 G=1 D=16 P=9 h=8 | " SPLIT}},
    {"qkv_norm_rope_bwd",
     {QKV_NORM_BWD_SLOTS, {.name = "k_dgamma_in"}},
     {"T=7 A=3 G=1 D=16 P=9 h=8 | " SPLIT}},
    {"attention_merge",
     {{SLOT("o_a", F32)}, {.name = "lse_a", .scale = 4}, {.name = "o_b"}, {.name = "lse_b", .scale = 4}},
     {"T=5 A=3 D=8 | " MERGE, "T=1 A=1 D=1 | " MERGE " dtype=F32", "T=9 A=2 D=40 | " MERGE " dtype=F32",
      "T=0 A=2 D=4 | " MERGE}},
    {"attention_merge",
     {{.name = "o_a"}, {.name = "lse_a", .scale = 40}, {.name = "o_b"}, {.name = "lse_b", .scale = 40}},
     {"T=7 A=2 D=33 | " MERGE, "T=33 A=4 D=16 | " MERGE " dtype=F32"}},
    {"pack_heads", .sizes = PACK_SIZES},
    {"unpack_heads", .sizes = PACK_SIZES},
    {"add", .sizes = {"n=1", "n=35", "n=576", "n=0"}},
    {"clamp_fwd",
     {{.name = "x", .scale = 2}},
     {"n=1 | limit=0.5", "n=35 | limit=1.25", "n=576 | limit=0.7", "n=0 | limit=1.0"}},
    {"clamp_bwd",
     {{.name = "dy"}, {.name = "x", .scale = 2}},
     {"n=1 | limit=0.5", "n=35 | limit=1.25", "n=576 | limit=0.7", "n=0 | limit=1.0"}},
    {"dropout_fwd", {{.name = "x"}, {SLOT("token", BELOW), .of = "N"}}, DROPOUT_SIZES},
    {"dropout_bwd", {{.name = "dy"}, {SLOT("token", BELOW), .of = "N"}}, DROPOUT_SIZES},
    {"swiglu_fwd",
     {{.name = "x", .scale = 3}, {SLOT("probs", POSITIVE), .when = "probs"}},
     {"T=5 F=3 probs=0", "T=9 F=40 probs=1", "T=0 F=2 probs=1", "T=3 F=129 probs=0", "T=3 F=0 probs=1"}},
    {"swiglu_bwd",
     {{.name = "dy"}, {.name = "x", .scale = 3}, {SLOT("probs", POSITIVE), .when = "probs"}},
     {"T=5 F=3 probs=0", "T=9 F=40 probs=1", "T=0 F=2 probs=1", "T=3 F=129 probs=1", "T=3 F=0 probs=0",
      "T=3 F=0 probs=1", "T=5 F=32 probs=1", "T=6 F=128 probs=1", "T=3 F=512 probs=1", "T=5 F=264 probs=1",
      "T=3 F=264 probs=0"}},
    {"sigmoid_gate_fwd",
     {{.name = "x"}, {.name = "gate", .scale = 3}},
     {"T=5 H=3", "T=1 H=1", "T=37 H=70", "T=0 H=4", "T=6 H=64"}},
    {"sigmoid_gate_bwd",
     {{.name = "dy"}, {.name = "x"}, {.name = "gate", .scale = 3}},
     {"T=5 H=3", "T=1 H=1", "T=37 H=70", "T=0 H=4", "T=6 H=64"}},
    {"cast", {{SLOT("x", F32)}}, {"n=300 | dtype=BF16", "n=5 | dtype=F32", "n=0 | dtype=BF16"}},
    {"cast",
     {{.name = "x"}},
     {"n=9 | dtype=BF16", "n=304 | dtype=BF16", "n=300 | dtype=F32"}}, /* F32 to F32 or BF16 to BF16, too */
    {"slice_rows", {{.name = "x"}}, {"S=9 n=5 | start=2 length=4", "S=3 n=7 | start=3 length=0"}},
    {"embedding_fwd",
     {{SLOT("ids", IDS)}, {.name = "weight"}},
     {"T=9 V=11 H=5 | vocab_start=4", "T=30 V=300 H=40 | vocab_start=0", "T=0 V=3 H=2 | vocab_start=0"}},
    {"embedding_bwd",
     {{.name = "dy"}, {SLOT("ids", IDS)}, {.name = "dweight_in"}},
     {"T=9 V=11 H=5 | vocab_start=4", "T=90 V=7 H=40 | vocab_start=2", "T=0 V=3 H=2 | vocab_start=0",
      "T=1100 V=1 H=3 | vocab_start=0", "T=160 V=260 H=8 | vocab_start=1", "T=3 V=4 H=0 | vocab_start=0",
      "T=9 V=11 H=5 | vocab_start=4 padding_idx=-1", "T=9 V=11 H=5 | vocab_start=4 padding_idx=4",
      "T=90 V=7 H=40 | vocab_start=2 padding_idx=8", "T=1100 V=2 H=3 | vocab_start=0 padding_idx=0"}},
    {"sum", .sizes = {"n=1", "n=0", "n=5000"}},
    {"sumsq", .sizes = {"n=1", "n=0", "n=5000"}},
    {"count_zeros", .sizes = {"n=1", "n=0", "n=5000"}},
    {"total", {{SLOT("x", F64)}}, {"n=7", "n=1", "n=0", "n=5000"}},
    {"total", {{SLOT("x", BELOW), .of = "V"}}, {"n=300 V=1000000", "n=0 V=2"}},
    {"clip_coefficient",
     {{SLOT("sumsq", POSITIVE), .scale = 4}},
     {"| clip_grad=0.5", "| clip_grad=3.0", "| clip_grad=0.0", "| clip_grad=1e-3"}},
    {"router_fwd",
     {{.name = "logits", .scale = 3}, {.name = "expert_bias", .when = "bias", .scale = 0.1}},
     ROUTER_SIZES}, /* logits as activations; then F32 */
    {"router_fwd",
     {{SLOT("logits", F32), .scale = 3}, {.name = "expert_bias", .when = "bias", .scale = 0.1}},
     ROUTER_SIZES},
    {"router_bwd",
     {{.name = "logits", .scale = 3},
      {SLOT("expert_bias", F32), .when = "bias", .shape = "E", .scale = 0.1, .hidden = true},
      {SLOT("indices", FROM), .of = "router_fwd.indices"},
      {SLOT("scores", FROM), .of = "router_fwd.scores"},
      {.name = "dprobs"}},
     ROUTER_SIZES},
    {"router_aux_fwd", {{.name = "logits", .scale = 3}}, AUX_SIZES},
    {"router_aux_fwd", {{SLOT("logits", F32), .scale = 3}}, AUX_SIZES},
    {"router_balanced_fwd",
     {{.name = "logits", .scale = 3}, {.name = "expert_bias", .when = "bias", .scale = 0.1}},
     ROUTER_SIZES},
    {"router_balanced_fwd",
     {{SLOT("logits", F32), .scale = 3}, {.name = "expert_bias", .when = "bias", .scale = 0.1}},
     ROUTER_SIZES},
    {"router_balanced_seq_fwd",
     {{.name = "logits", .scale = 3}, {.name = "expert_bias", .when = "bias", .scale = 0.1}},
     SEQ_ROUTER_SIZES},
    {"router_balanced_seq_fwd",
     {{SLOT("logits", F32), .scale = 3}, {.name = "expert_bias", .when = "bias", .scale = 0.1}},
     SEQ_ROUTER_SIZES},
    {"router_aux_loss",
     {{SLOT("logits", F32), .shape = "T,E", .scale = 3, .hidden = true},
      {SLOT("score_sums", FROM), .of = "router_aux_fwd.score_sums", .shape = "E"},
      {SLOT("tokens_per_expert", FROM), .of = "router_aux_fwd.tokens_per_expert", .shape = "E"},
      {SLOT("z_sum", FROM), .of = "router_aux_fwd.z_sum"}},
     AUX_LOSS_SIZES},
    {"router_aux_bwd",
     {{.name = "logits", .scale = 3},
      {SLOT("tokens_per_expert", FROM), .of = "router_aux_fwd.tokens_per_expert", .shape = "E"},
      {.name = "dlogits_in", .scale = 0.01}},
     AUX_LOSS_SIZES},
    {"router_aux_bwd",
     {{SLOT("logits", F32), .scale = 3},
      {SLOT("tokens_per_expert", FROM), .of = "router_aux_fwd.tokens_per_expert", .shape = "E"},
      {.name = "dlogits_in", .scale = 0.01}},
     AUX_LOSS_SIZES},
    {"router_balanced_bwd",
     {{.name = "logits", .scale = 3},
      {SLOT("expert_bias", F32), .when = "bias", .shape = "E", .scale = 0.1, .hidden = true},
      BALANCED_BWD_SLOTS},
     BALANCED_BWD_SIZES(FIRST, FIRST_B)},
    {"router_balanced_bwd",
     {{SLOT("logits", F32), .scale = 3},
      {SLOT("expert_bias", F32), .when = "bias", .shape = "E", .scale = 0.1, .hidden = true},
      BALANCED_BWD_SLOTS},
     BALANCED_BWD_SIZES(FIRST, FIRST_B)},
    {"router_balanced_bwd",
     {{.name = "logits", .scale = 3},
      {SLOT("expert_bias", F32), .when = "bias", .shape = "E", .scale = 0.1, .hidden = true},
      BALANCED_BWD_SLOTS},
     BALANCED_BWD_MODES},
    {"router_balanced_bwd",
     {{SLOT("logits", F32), .scale = 3},
      {SLOT("expert_bias", F32), .when = "bias", .shape = "E", .scale = 0.1, .hidden = true},
      BALANCED_BWD_SLOTS},
     BALANCED_BWD_MODES},
    {"router_balanced_bwd_two",
     {{.name = "logits", .scale = 3},
      {SLOT("expert_bias", F32), .when = "bias", .shape = "E", .scale = 0.1, .hidden = true},
      BALANCED_BWD_SLOTS,
      {SLOT("tokens_per_expert_2", BELOW), .of = "N"}},
     BALANCED_BWD_SIZES(FIRST SECOND, FIRST_B SECOND_B)},
    {"router_balanced_bwd_two",
     {{SLOT("logits", F32), .scale = 3},
      {SLOT("expert_bias", F32), .when = "bias", .shape = "E", .scale = 0.1, .hidden = true},
      BALANCED_BWD_SLOTS,
      {SLOT("tokens_per_expert_2", BELOW), .of = "N"}},
     BALANCED_BWD_SIZES(FIRST SECOND, FIRST_B SECOND_B)},
    {"router_balanced_bwd_three",
     {{.name = "logits", .scale = 3},
      {SLOT("expert_bias", F32), .when = "bias", .shape = "E", .scale = 0.1, .hidden = true},
      BALANCED_BWD_SLOTS,
      {SLOT("tokens_per_expert_2", BELOW), .of = "N"},
      {SLOT("tokens_per_expert_3", BELOW), .of = "N"}},
     BALANCED_BWD_SIZES(FIRST SECOND THIRD, FIRST_B SECOND_B THIRD_B)},
    {"router_balanced_bwd_three",
     {{SLOT("logits", F32), .scale = 3},
      {SLOT("expert_bias", F32), .when = "bias", .shape = "E", .scale = 0.1, .hidden = true},
      BALANCED_BWD_SLOTS,
      {SLOT("tokens_per_expert_2", BELOW), .of = "N"},
      {SLOT("tokens_per_expert_3", BELOW), .of = "N"}},
     BALANCED_BWD_SIZES(FIRST SECOND THIRD, FIRST_B SECOND_B THIRD_B)},
    /* of interleaved sequences */
    {"router_seq_aux_fwd",
     {{SLOT("aux_scores", POSITIVE)}, {SLOT("aux_indices", CHOICE), .of = "E"}},
     {"T=12 E=7 K=3 B=3 | rows=B", "T=66 E=40 K=2 B=2 | rows=B", "T=130 E=5 K=1 B=1 | rows=B",
      "T=4230 E=4 K=1 B=2 | rows=B", "T=12 E=2060 K=3 B=3 | rows=B", "T=0 E=4 K=1 B=2 | rows=B"}},
    {"router_aux_loss",
     {{SLOT("score_sums", POSITIVE), .shape = "B,E"},
      {SLOT("tokens_per_expert", BELOW), .of = "N", .shape = "B,E"}},
     {"B=3 E=7 N=9 | aux_coeff=0.3 z_coeff=0.0 topk=2 tokens=11 divisor=6",
      "B=1 E=40 N=70 | aux_coeff=0.02 z_coeff=0.5 topk=3 tokens=64 divisor=2"}},
    {"router_aux_bwd",
     {{.name = "logits", .scale = 3},
      {SLOT("tokens_per_expert", BELOW), .of = "N", .shape = "B,E"},
      {.name = "dlogits_in", .scale = 0.01}},
     {"T=12 E=7 B=3 N=9 | aux_coeff=0.3 z_coeff=0.0 topk=2 tokens=4 divisor=3 loss_scale=0.25 "
      "score_function=softmax",
      "T=66 E=40 B=2 N=50 | aux_coeff=0.3 z_coeff=0.0 topk=2 tokens=33 divisor=8 loss_scale=0.125 "
      "score_function=sigmoid",
      "T=0 E=4 B=2 N=5 | aux_coeff=0.3 z_coeff=0.1 topk=2 tokens=7 divisor=1 loss_scale=0.5 "
      "score_function=softmax"}},
    {"running_counts",
     {{SLOT("tokens_per_expert", BELOW), .of = "N"}, {SLOT("previous", BELOW), .of = "N", .when = "before"}},
     {"E=7 N=1000 before=1", "E=300 N=5 before=0", "E=1 N=1000000 before=1", "E=0 N=1 before=1"}},
    {"permute_plan",
     {{SLOT("indices", CHOICE), .of = "E"}},
     {"T=9 K=3 E=7 R=27 | experts=E rows=R", "T=33 K=2 E=40 R=66 | experts=E rows=R",
      "T=5 K=4 E=300 R=20 | experts=E rows=R", "T=1101 K=2 E=33 R=2202 | experts=E rows=R",
      "T=0 K=2 E=4 R=0 | experts=E rows=R"}},
    {"random_logits",
     {{SLOT("token", BELOW), .of = "N"}},
     {"T=9 E=7 N=40 | experts=E layer=1 draw=5 tokens=N",
      "T=33 E=40 N=33 | experts=E layer=0 draw=0 tokens=N",
      "T=2 E=300 N=1000003 | experts=E layer=61 draw=1000003 tokens=N",
      "T=0 E=4 N=1 | experts=E layer=3 draw=1 tokens=N"}},
    {"input_jitter",
     {{.name = "x"}, {SLOT("token", BELOW), .of = "N"}},
     {"T=9 H=7 N=40 | eps=0.125 layer=1 draw=5 tokens=N", "T=33 H=40 N=33 | eps=0.5 layer=0 draw=0 tokens=N",
      "T=2 H=1 N=1003 | eps=1.0 layer=61 draw=1000003 tokens=N",
      "T=0 H=4 N=1 | eps=0.01 layer=3 draw=1 tokens=N"}},
    {"router_drop",
     {{SLOT("all_indices", CHOICE), .of = "E"}, {.name = "all_probs"}, {SLOT("token", SHUFFLE)}},
     {"n=9 K=3 E=7 T=4 | experts=E capacity=2 start=3 length=T",
      "n=33 K=2 E=3 T=33 | experts=E capacity=11 start=0 length=T",
      "n=5 K=2 E=40 T=0 | experts=E capacity=1 start=5 length=T",
      "n=0 K=2 E=4 T=0 | experts=E capacity=0 start=0 length=T"}},
    {"router_drop", /* by position */
     {{SLOT("all_indices", CHOICE), .of = "E"},
      {.name = "all_probs", .when = "probs"},
      {SLOT("token", SHUFFLE)}},
     {"n=33 K=2 E=3 T=12 | experts=E capacity=5 start=21 length=T"}},
    {"gather_rows",
     {{.name = "x"}, {SLOT("index", BELOW), .of = "m", .absent = true}},
     {"m=7 n=14 H=5", "m=1 n=1 H=1", "m=0 n=0 H=3", "m=13 n=39 H=70", "m=13 n=39 H=72"}},
    {"gather_rows", /* rows of integers */
     {{SLOT("x", BELOW), .of = "N"}, {SLOT("index", BELOW), .of = "m"}},
     {"m=7 n=14 H=5 N=1000000"}},
    {"combine_rows", {{.name = "x"}, {SLOT("token_row", SHUFFLE), .absent = true}}, ROWS_SIZES},
    {"expert_bias_update",
     {{.name = "bias_in"}, {SLOT("tokens_per_expert", COUNTS), .of = "R"}},
     {"E=8 R=40 | rate=0.001", "E=70 R=70 | rate=0.05", "E=1 R=3 | rate=1.0", "E=0 R=0 | rate=1.0"}},
    {"cross_entropy_stats", {{.name = "logits", .scale = 4}, {SLOT("targets", TARGETS)}}, LOSS_SIZES},
    {"cross_entropy_stats", /* a rank that holds no piece of the vocabulary */
     {{.name = "logits"}, {SLOT("targets", TARGETS)}},
     {"T=3 V=0 | vocab_start=4"}},
    {"cross_entropy_loss",
     {{SLOT("logits", F32), .shape = "T,V", .scale = 4, .hidden = true},
      {SLOT("targets", TARGETS)},
      {SLOT("stats", FROM), .of = "cross_entropy_stats.stats"}},
     {"T=7 V=5 tp=1 | vocab_start=0", "T=5 V=33 tp=1 | vocab_start=0", "T=0 V=4 tp=1 | vocab_start=0"}},
    {"cross_entropy_bwd",
     {{.name = "logits", .scale = 4},
      {SLOT("targets", TARGETS)},
      {SLOT("stats", FROM), .of = "cross_entropy_stats.stats", .shape = "tp,3,T", .hidden = true},
      {SLOT("lse", FROM), .of = "cross_entropy_loss.lse"}},
     {"T=7 V=5 tp=1 | scale=0.125 vocab_start=0", "T=5 V=33 tp=1 | scale=0.0625 vocab_start=7",
      "T=3 V=4103 tp=1 | scale=0.3 vocab_start=0", "T=3 V=40 tp=1 | scale=0.125 vocab_start=0",
      "T=3 V=4104 tp=1 | scale=0.25 vocab_start=4000", "T=0 V=4 tp=1 | scale=1.0 vocab_start=0"}},
    {"adamw",
     {{.name = "main_param_in"},
      {.name = "exp_avg_in", .scale = 0.1},
      {SLOT("exp_avg_sq_in", POSITIVE), .scale = 0.01},
      {.name = "grad"},
      {SLOT("grad_scale", POSITIVE), .when = "clipped"}},
     {"n=5 clipped=1 | lr=1e-3 " ADAM "beta2=0.95 weight_decay=0.1 step=7",
      "n=0 clipped=1 | lr=1e-3 " ADAM "beta2=0.999 weight_decay=0.0 step=1",
      "n=2500 clipped=0 | lr=2e-2 " ADAM "beta2=0.999 weight_decay=0.01 step=1000"}},
    /* last: what stands before keeps its values */
    {"kv_down_split_fwd", .sizes = LATENT_SIZES},
    {"kv_down_split_bwd", .sizes = LATENT_SIZES},
    {"mla_rope_q_fwd", {{.name = "q"}, TURN_SLOTS}, MLA_Q_SIZES},
    {"mla_rope_q_bwd", {{.name = "dy"}, TURN_SLOTS}, MLA_Q_SIZES},
    {"mla_rope_kv_fwd", {{.name = "kv"}, {.name = "k_pos_emb"}, TURN_SLOTS}, MLA_KV_SIZES},
    {"mla_rope_kv_bwd", {{.name = "dk"}, {.name = "dv"}, TURN_SLOTS}, MLA_KV_SIZES},
    {"adamw", /* first steps: both corrections are far from 1, and eps is of the size of what it is added to */
     {{.name = "main_param_in"},
      {.name = "exp_avg_in", .scale = 1e-3},
      {SLOT("exp_avg_sq_in", POSITIVE), .scale = 1e-6},
      {.name = "grad", .scale = 1e-2},
      {SLOT("grad_scale", POSITIVE), .when = "clipped"}},
     {"n=300 clipped=0 | lr=1e-2 beta1=0.9 eps=1e-3 beta2=0.999 weight_decay=0.1 step=1",
      "n=35 clipped=1 | lr=1e-2 beta1=0.75 eps=1e-8 beta2=0.999 weight_decay=0.0 step=1",
      "n=35 clipped=0 | lr=1e-2 beta1=0.95 eps=1e-3 beta2=0.999 weight_decay=0.0 step=2"}},
    /* one-signed logits so far below zero that every score is 0: the sum that divides them is 1e-20 */
    {"router_fwd", {FAR_BELOW, {.name = "expert_bias", .scale = 0.1}}, {FAR_BELOW_SIZES}},
    {"router_balanced_fwd", {FAR_BELOW, {.name = "expert_bias", .scale = 0.1}}, {FAR_BELOW_SIZES}},
    {"router_bwd",
     {FAR_BELOW,
      {SLOT("expert_bias", F32), .shape = "E", .scale = 0.1, .hidden = true},
      {SLOT("indices", FROM), .of = "router_fwd.indices"},
      {SLOT("scores", FROM), .of = "router_fwd.scores"},
      {.name = "dprobs"}},
     {FAR_BELOW_SIZES}},
    {.op = NULL},
};
