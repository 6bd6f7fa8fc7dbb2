/* Sizes at which a kernel is timed: those of models of 1 to 70 billion parameters, with operands beyond any cache and within a few hundred
 * megabytes.  Data are made by the reference where an operation needs another's results, so attention's backward stays short. */
#include "parity/checks/random_request.h"
#include <stdlib.h>
#include <string.h>

#define LINEAR                                                                                               \
    {                                                                                                        \
        "T=4096 N=4096 K=4096 bias=0", "T=8192 N=1024 K=4096 bias=0", "T=2048 N=8192 K=2048 bias=0"          \
    }
#define GROUPED                                                                                              \
    {                                                                                                        \
        "R=8192 El=8 N=2048 K=2048", "R=4096 El=32 N=1024 K=1024", "R=16384 El=64 N=512 K=1024"              \
    }
#define NORM(more)                                                                                           \
    {                                                                                                        \
        "T=4096 H=4096 " more "| eps=1e-5", "T=8192 H=2048 " more "| eps=1e-5",                              \
            "T=65536 H=128 " more "| eps=1e-5"                                                               \
    }
#define ROWS                                                                                                 \
    {                                                                                                        \
        "T=4096 H=4096", "T=8192 H=2048", "T=2048 H=8192"                                                    \
    }
#define ROPE                                                                                                 \
    {                                                                                                        \
        "T=4096 A=32 D=128 P=4096 h=64", "T=8192 A=8 D=128 P=8192 h=64", "T=8192 A=16 D=64 P=8192 h=32"      \
    }
#define HEADS " | batch=B seq_q=Sq seq_k=Sk heads=A groups=G head_dim=D head_dim_v=Dv window=0 scale="
#define SPLIT                                                                                                \
    {                                                                                                        \
        "T=4096 A=32 G=8 D=128 | heads=A groups=G head_dim=D",                                               \
            "T=8192 A=16 G=16 D=64 | heads=A groups=G head_dim=D"                                            \
    }
/* DeepSeek-V3, DeepSeek-V2-Lite, and a quarter of the first one's heads. */
#define LATENT                                                                                               \
    {                                                                                                        \
        "T=8192 C=512 R=64 | kv_lora_rank=C qk_pos_emb_head_dim=R",                                          \
            "T=32768 C=512 R=64 | kv_lora_rank=C qk_pos_emb_head_dim=R"                                      \
    }
#define MLA_HEADS " | heads=A head_dim=D"
#define MLA_Q                                                                                                \
    {                                                                                                        \
        "T=2048 A=128 D=192 P=2048 h=32" MLA_HEADS, "T=4096 A=16 D=192 P=4096 h=32" MLA_HEADS,               \
            "T=4096 A=32 D=192 P=4096 h=32" MLA_HEADS                                                        \
    }
#define MLA " | heads=A qk_head_dim=N v_head_dim=V"
#define MLA_KV                                                                                               \
    {                                                                                                        \
        "T=2048 A=128 N=128 V=128 P=2048 h=32" MLA, "T=4096 A=16 N=128 V=128 P=4096 h=32" MLA,               \
            "T=4096 A=32 N=128 V=128 P=4096 h=32" MLA                                                        \
    }
#define PACK                                                                                                 \
    {                                                                                                        \
        "T=4096 A=32 P=2 D=128 | heads=A head_dim=D parts=P",                                                \
            "T=8192 A=16 P=4 D=64 | heads=A head_dim=D parts=P"                                              \
    }
#define PLAIN                                                                                                \
    {                                                                                                        \
        "n=16777216", "n=4194304", "n=1048576"                                                               \
    }
#define CLAMP                                                                                                \
    {                                                                                                        \
        "n=16777216 | limit=0.7", "n=4194304 | limit=0.7", "n=1048576 | limit=0.7"                           \
    }
#define DROPOUT                                                                                              \
    {                                                                                                        \
        "T=4096 H=4096 N=4096 | p=0.1 seed=1234 stream=3 draw=0"                                             \
    }
#define SWIGLU                                                                                               \
    {                                                                                                        \
        "T=4096 F=4096 probs=0", "T=8192 F=2048 probs=0", "T=2048 F=8192 probs=0"                            \
    }
#define ROUTER                                                                                               \
    {                                                                                                        \
        "T=16384 E=64 K=8 bias=0 | topk=K scaling_factor=1.5 score_function=softmax pre_softmax=true "       \
        "norm_topk_prob=true num_groups=0 group_topk=0",                                                     \
            "T=8192 E=256 K=8 bias=1 | topk=K scaling_factor=1.5 score_function=sigmoid pre_softmax=false "  \
            "norm_topk_prob=true num_groups=8 group_topk=4"                                                  \
    }
#define COMBINE                                                                                              \
    {                                                                                                        \
        "T=8192 K=8 R=65536 H=256", "T=4096 K=2 R=8192 H=2048"                                               \
    }

const parity_ask_large_row parity_ask_large_table[] = {
    {"linear_fwd", LINEAR},
    {"linear_bwd_input", LINEAR},
    {"linear_bwd_weight", LINEAR},
    {"linear_bwd_bias", LINEAR},
    {"grouped_linear_fwd", GROUPED},
    {"grouped_linear_bwd_input", GROUPED},
    {"grouped_linear_bwd_weight", GROUPED},
    {"rmsnorm_fwd", NORM("")},
    {"rmsnorm_bwd", NORM("trained=1 ")},
    {"rmsnorm_sumsq", {"T=4096 H=4096 | columns=H", "T=8192 H=2048 | columns=H"}},
    {"rmsnorm_apply", {"T=4096 H=2048 | eps=1e-5 width=4096"}},
    {"rmsnorm_bwd_dot", ROWS},
    {"rmsnorm_bwd_apply", {"T=4096 H=2048 trained=1 | width=4096"}},
    {"layernorm_fwd", NORM("beta=1 ")},
    {"layernorm_bwd", NORM("beta=1 ")},
    {"rope_fwd", ROPE},
    {"rope_bwd", ROPE},
    {"kv_down_split_fwd", LATENT},
    {"kv_down_split_bwd", LATENT},
    {"mla_rope_q_fwd", MLA_Q},
    {"mla_rope_q_bwd", MLA_Q},
    {"mla_rope_kv_fwd", MLA_KV},
    {"mla_rope_kv_bwd", MLA_KV},
    {"attention_fwd",
     {"B=1 Sq=4096 Sk=4096 A=32 G=8 D=128 Dv=128 first=0" HEADS "0.0884",
      "B=4 Sq=1024 Sk=1024 A=32 G=8 D=128 Dv=128 first=0" HEADS "0.0884",
      "B=2 Sq=2048 Sk=2048 A=16 G=16 D=64 Dv=64 first=0" HEADS "0.125"}},
    {"attention_bwd",
     {"B=1 Sq=1024 Sk=1024 A=16 G=4 D=128 Dv=128 first=0" HEADS "0.0884",
      "B=1 Sq=1024 Sk=1024 A=16 G=16 D=64 Dv=64 first=0" HEADS "0.125"}},
    {"qkv_split_fwd", SPLIT},
    {"qkv_split_bwd", SPLIT},
    {"attention_merge", {"T=4096 A=32 D=128 | heads=A head_dim=D", "T=8192 A=16 D=64 | heads=A head_dim=D"}},
    {"pack_heads", PACK},
    {"unpack_heads", PACK},
    {"add", PLAIN},
    {"clamp_fwd", CLAMP},
    {"clamp_bwd", CLAMP},
    {"dropout_fwd", DROPOUT},
    {"dropout_bwd", DROPOUT},
    {"swiglu_fwd", SWIGLU},
    {"swiglu_bwd", SWIGLU},
    {"sigmoid_gate_fwd", ROWS},
    {"sigmoid_gate_bwd", ROWS},
    {"cast", {"n=16777216 | dtype=BF16", "n=4194304 | dtype=BF16"}},
    {"slice_rows", {"S=8192 n=4096 | start=1024 length=4096"}},
    {"embedding_fwd", {"T=8192 V=32000 H=1024 | vocab_start=0", "T=16384 V=16384 H=512 | vocab_start=0"}},
    {"embedding_bwd", {"T=8192 V=32000 H=1024 | vocab_start=0", "T=16384 V=16384 H=512 | vocab_start=0"}},
    {"sum", PLAIN},
    {"sumsq", PLAIN},
    {"count_zeros", PLAIN},
    {"router_fwd", ROUTER},
    {"router_bwd", ROUTER},
    {"router_aux_fwd", {"T=16384 E=64 K=8 | topk=K score_function=softmax"}},
    {"router_balanced_seq_fwd",
     {"T=12288 E=16 K=2 B=6 bias=0 | rows=B topk=K score_function=softmax pre_softmax=true "
      "norm_topk_prob=true scaling_factor=1.0 num_groups=0 group_topk=0"}},
    {"permute_plan", {"T=16384 K=8 E=64 R=131072 | experts=E rows=R"}},
    {"gather_rows", {"m=8192 n=65536 H=256", "m=4096 n=8192 H=2048"}},
    {"combine_rows", COMBINE},
    {"cross_entropy_stats", {"T=1024 V=32000 tp=1 | vocab_start=0"}},
    {"cross_entropy_bwd", {"T=1024 V=32000 tp=1 | scale=0.125 vocab_start=0"}},
    {"adamw",
     {"n=16777216 | lr=1e-3 beta1=0.9 eps=1e-8 beta2=0.95 weight_decay=0.1 step=7 grad_scale=1.0",
      "n=4194304 | lr=1e-3 beta1=0.9 eps=1e-8 beta2=0.95 weight_decay=0.1 step=7 grad_scale=1.0"}},
    {.op = NULL},
};

assay_status parity_ask_bind(const assay_op *op, const char *sizes, assay_op_binding *out)
{
    return parity_ask_bind_swept(op, sizes, NULL, 0, out);
}

assay_status parity_ask_bind_swept(const assay_op *op, const char *sizes, const char *symbols, int64_t value,
                                   assay_op_binding *out)
{
    memset(out, 0, sizeof *out);
    for (const char *p = sizes; *p != '\0' && *p != '|'; p += strspn(p, " ")) {
        char key[16];
        const size_t length = strcspn(p, " ");
        const char *equals = memchr(p, '=', length);
        ASSAY_CHECK(equals != NULL && (size_t)(equals - p) < sizeof key, ASSAY_INTERNAL, "sizes: %s", p);
        snprintf(key, sizeof key, "%.*s", (int)(equals - p), p);
        const int64_t here = parity_ask_is_swept(symbols, key) ? value : strtoll(equals + 1, NULL, 10);
        ASSAY_CHECK(assay_op_bind(out, key, here), ASSAY_INTERNAL, "sizes: %s", p);
        p += length;
    }
    return assay_op_bind_where(op, out);
}
