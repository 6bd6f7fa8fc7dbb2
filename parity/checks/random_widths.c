/* Single operations at the widths of real models: every sum is as long as there, the other sizes are small.  Llama-3.1-405B:
 * hidden 16384, 128 heads of 128 in 8 groups, ffn 53248, vocabulary 128256; Llama-3.2-1B: hidden 2048, heads of 64; Qwen3-30B-A3B: 128 experts of 768, top 8, vocabulary 151936;
 * DeepSeek-V3: hidden 7168, 128 heads of 128 and 64 that turn, latent 512, 256 experts of 2048 in 8 groups, top 8 of 4 groups. */
#include "parity/checks/random_request.h"

#define HEADS "batch=B seq_q=Sq seq_k=Sk heads=A groups=G head_dim=D head_dim_v=Dv"
#define ATTENTION_WIDTHS                                                                                     \
    {                                                                                                        \
        "B=1 Sq=64 Sk=64 A=128 G=8 D=128 Dv=128 first=0 | " HEADS " scale=0.08838834764831845 window=0",     \
            "B=2 Sq=16 Sk=32 A=32 G=8 D=64 Dv=64 first=1 | " HEADS " scale=0.125 window=0",                  \
            "B=1 Sq=16 Sk=4096 A=2 G=1 D=128 Dv=128 first=0 | " HEADS " scale=0.08838834764831845 window=0"  \
    }
#define ROUTER "topk=K scaling_factor="
#define ROUTER_WIDTHS                                                                                        \
    {                                                                                                        \
        "T=64 E=256 K=8 bias=1 | " ROUTER                                                                    \
        "2.5 score_function=sigmoid pre_softmax=false norm_topk_prob=true num_groups=8 group_topk=4",        \
            "T=64 E=128 K=8 bias=0 | " ROUTER                                                                \
            "1.0 score_function=softmax pre_softmax=true norm_topk_prob=true num_groups=0 group_topk=0"      \
    }

const parity_ask_widths_row parity_ask_widths_table[] = {
    /* y sums over K, dx over N, dweight and dbias over T */
    {"linear_fwd", {"T=16 N=40 K=16384 bias=0", "T=16 N=24 K=53248 bias=0", "T=64 N=40 K=2048 bias=1"}},
    {"linear_bwd_input",
     {"T=16 N=53248 K=24 bias=0", "T=16 N=151936 K=8 bias=0", "T=32 N=18432 K=40 bias=0"}},
    {"linear_bwd_weight", {"T=64 N=24 K=53248 bias=0", "T=4096 N=40 K=24 bias=0"}},
    {"linear_bwd_bias", {"T=64 N=53248", "T=4096 N=40"}},
    {"grouped_linear_fwd", {"R=64 El=128 N=48 K=2048", "R=48 El=256 N=8 K=7168"}},
    {"grouped_linear_bwd_input", {"R=48 El=256 N=4096 K=8", "R=64 El=128 N=1536 K=24"}},
    {"grouped_linear_bwd_weight", {"R=512 El=8 N=40 K=2048", "R=64 El=256 N=16 K=768"}},
    {"rmsnorm_fwd", {"T=16 H=16384 | eps=1e-5", "T=64 H=7168 | eps=1e-6"}},
    {"rmsnorm_bwd", {"T=16 H=16384 trained=1 | eps=1e-5", "T=4096 H=128 trained=1 | eps=1e-6"}},
    {"rmsnorm_sumsq", {"T=16 H=16384 | columns=H"}},
    {"rmsnorm_bwd_dot", {"T=16 H=16384"}},
    {"rope_fwd", {"T=16 A=128 D=128 P=64 h=64"}},
    {"mla_rope_q_fwd", {"T=16 A=128 D=192 P=64 h=32 | heads=A head_dim=D"}},
    {"mla_rope_q_bwd", {"T=16 A=128 D=192 P=64 h=32 | heads=A head_dim=D"}},
    {"mla_rope_kv_fwd", {"T=16 A=128 N=128 V=128 P=64 h=32 | heads=A qk_head_dim=N v_head_dim=V"}},
    {"mla_rope_kv_bwd", {"T=16 A=128 N=128 V=128 P=64 h=32 | heads=A qk_head_dim=N v_head_dim=V"}},
    {"qkv_norm_rope_bwd", {"T=512 A=8 G=1 D=128 P=64 h=64 trained=1 | heads=A groups=G head_dim=D"}},
    {"attention_fwd", ATTENTION_WIDTHS},
    {"attention_bwd", ATTENTION_WIDTHS},
    {"swiglu_fwd", {"T=16 F=53248 probs=0"}},
    {"swiglu_bwd", {"T=16 F=53248 probs=0", "T=64 F=2048 probs=1"}},
    {"embedding_fwd", {"T=32 V=128256 H=16 | vocab_start=0"}},
    {"embedding_bwd",
     {"T=64 V=1024 H=16384 | vocab_start=0", "T=4096 V=4 H=40 | vocab_start=2",
      "T=4096 V=4 H=40 | vocab_start=2 padding_idx=3"}},
    {"sum", {"n=4000000"}},
    {"sumsq", {"n=4000000"}},
    {"router_fwd", ROUTER_WIDTHS},
    {"router_bwd", ROUTER_WIDTHS},
    {"cross_entropy_stats",
     {"T=16 V=151936 tp=1 | vocab_start=0", "T=16 V=64128 tp=1 | vocab_start=64128",
      "T=64 V=128256 tp=1 | vocab_start=0"}},
    {"cross_entropy_loss", {"T=16 V=151936 tp=1 | vocab_start=0"}},
    {"cross_entropy_bwd", {"T=16 V=151936 tp=1 | scale=0.0625 vocab_start=0"}},
    {.op = NULL},
};
