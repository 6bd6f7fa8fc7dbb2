/* Which sizes of which operation are tried at every boundary, and which data an operation has no meaning for. */
#include "parity/checks/random_request.h"

#include <string.h>

#define OF_ORDER                                                                                             \
    "an order of scores among which one is no number is not defined (a softmax of an infinity has such)"
#define OF_EXP "exponentials of numbers so large: the bound is not finite and would decide nothing"

const int64_t parity_ask_boundaries[] = {0,  1,  2,  3,  7,  8,   13,  15,  16,  17,  31,
                                         32, 33, 63, 64, 65, 127, 128, 129, 256, 257, -1};

/* Left out are sizes that others follow from (rows of a permutation, a table's columns under a width in the attributes). */
const parity_ask_sweep_row parity_ask_sweep_table[] = {
    {"linear_fwd", {"T", "N", "K"}, NULL},
    {"linear_bwd_input", {"T", "N", "K"}, NULL},
    {"linear_bwd_weight", {"T", "N", "K"}, NULL},
    {"linear_bwd_bias", {"T", "N"}, NULL},
    {"grouped_linear_fwd", {"R", "N", "K"}, NULL},
    {"grouped_linear_bwd_input", {"R", "N", "K"}, NULL},
    {"grouped_linear_bwd_weight", {"R", "N", "K"}, NULL},
    {"rmsnorm_fwd", {"T", "+H"}, NULL},
    {"add_rmsnorm_fwd", {"T", "+H"}, NULL},
    {"rmsnorm_bwd", {"T", "+H"}, NULL},
    {"rmsnorm_bwd_add", {"T", "+H"}, NULL},
    {"rmsnorm_sumsq", {"T"}, NULL},
    {"rmsnorm_apply", {"T"}, NULL},
    {"rmsnorm_bwd_dot", {"T", "H"}, NULL},
    {"rmsnorm_bwd_apply", {"T"}, NULL},
    {"layernorm_fwd", {"T", "+H"}, NULL},
    {"layernorm_bwd", {"T", "+H"}, NULL},
    {"rope_fwd", {"T", "+A"}, NULL},
    {"rope_bwd", {"T", "+A"}, NULL},
    {"kv_down_split_fwd", {"T", "C", "+R"}, NULL},
    {"kv_down_split_bwd", {"T", "+C", "R"}, NULL},
    {"mla_rope_q_fwd", {"T", "+A"}, NULL},
    {"mla_rope_q_bwd", {"T", "+A"}, NULL},
    {"mla_rope_kv_fwd", {"T", "+A", "N", "V"}, NULL},
    {"mla_rope_kv_bwd", {"T", "+A", "N", "V"}, NULL},
    {"attention_fwd", {"Sq,Sk", "-D,Dv"}, NULL},
    {"attention_bwd", {"Sq,Sk", "-D,Dv"}, NULL},
    {"qkv_split_fwd", {"T", "+D"}, NULL},
    {"qkv_split_bwd", {"T", "+D"}, NULL},
    {"qkv_rope_fwd", {"T", "+A", "+A,G"}, NULL},
    {"qkv_norm_rope_fwd", {"T", "+A", "+A,G"}, NULL},
    {"qkv_rope_bwd", {"T", "+A", "+A,G"}, NULL},
    {"qkv_norm_rope_bwd", {"T", "+A", "+A,G"}, NULL},
    {"attention_merge", {"T", "+D"}, NULL},
    {"pack_heads", {"T", "+D"}, NULL},
    {"unpack_heads", {"T", "+D"}, NULL},
    {"add", {"n"}, NULL},
    {"clamp_fwd", {"n"}, NULL},
    {"clamp_bwd", {"n"}, NULL},
    {"dropout_fwd", {"T", "H"}, NULL},
    {"dropout_bwd", {"T", "H"}, NULL},
    {"swiglu_fwd", {"T", "F"}, NULL},
    {"swiglu_bwd", {"T", "F"}, NULL},
    {"sigmoid_gate_fwd", {"T", "H"}, NULL},
    {"sigmoid_gate_bwd", {"T", "H"}, NULL},
    {"cast", {"n"}, NULL},
    {"slice_rows", {"n"}, NULL},
    {"embedding_fwd", {"T", "V", "H"}, NULL},
    {"embedding_bwd", {"T", "V", "H"}, NULL},
    {"sum", {"n"}, NULL},
    {"sumsq", {"n"}, NULL},
    {"count_zeros", {"n"}, NULL},
    {"total", {"n"}, NULL},
    {"router_fwd", {"T"}, NULL},
    {"router_bwd", {"T"}, NULL},
    {"router_aux_fwd", {"T"}, NULL},
    {"router_balanced_fwd", {"T"}, NULL},
    {"router_balanced_seq_fwd", {"+T,B"}, NULL},
    {"router_balanced_bwd", {"T"}, NULL},
    {"running_counts", {"E"}, NULL},
    {"random_logits", {"T", "+E"}, NULL},
    {"input_jitter", {"T", "H"}, NULL},
    {"gather_rows", {"n", "H"}, NULL},
    {"combine_rows", {"H"}, NULL},
    {"cross_entropy_stats", {"T", "V"}, NULL},
    {"cross_entropy_loss", {"T", "V"}, NULL},
    {"cross_entropy_bwd", {"T", "V"}, NULL},
    {"adamw", {"n"}, NULL},
    {.op = NULL},
};

/* The same on the other side of what a kernel of matrix units takes: rows of 16 bytes, heads of its widths. */
#define TILE_HEADS(d)                                                                                        \
    "B=1 Sq=7 Sk=7 A=2 G=1 D=" d " Dv=" d                                                                    \
    " first=1 | batch=B seq_q=Sq seq_k=Sk heads=A groups=G head_dim=D head_dim_v=Dv scale=0.125 window=0"
#define TILE_GROUPED "R=70 El=5 N=72 K=40"
#define TILE_ROUTER                                                                                          \
    "T=5 E=64 K=4 bias=0 | topk=K scaling_factor=1.5 score_function=softmax pre_softmax=true "               \
    "norm_topk_prob=true num_groups=0 group_topk=0"

const parity_ask_sweep_row parity_ask_tile_table[] = {
    {"grouped_linear_fwd", {"R", "N", "K", "+El"}, TILE_GROUPED},
    {"grouped_linear_bwd_input", {"R", "N", "K", "+El"}, TILE_GROUPED},
    {"grouped_linear_bwd_weight", {"R", "N", "K", "+El"}, TILE_GROUPED},
    {"attention_fwd", {"Sq", "Sk", "Sq,Sk"}, TILE_HEADS("64")},
    {"attention_fwd", {"Sq,Sk"}, TILE_HEADS("128")},
    {"attention_bwd", {"Sq", "Sk", "Sq,Sk"}, TILE_HEADS("64")},
    {"attention_bwd", {"Sq,Sk"}, TILE_HEADS("128")},
    {"rmsnorm_fwd", {"T"}, "T=5 H=264 | eps=1e-6"},
    {"rmsnorm_bwd", {"T"}, "T=5 H=264 trained=1 | eps=1e-6"},
    {"add_rmsnorm_fwd", {"T"}, "T=5 H=264 | eps=1e-6"},
    {"rmsnorm_bwd_add", {"T"}, "T=5 H=264 trained=1 | eps=1e-6"},
    {"swiglu_bwd", {"T"}, "T=5 F=264 probs=1"},
    {"embedding_bwd", {"T", "V"}, "T=70 V=65 H=8 | vocab_start=1"},
    {"embedding_bwd", {"T"}, "T=70 V=65 H=8 | vocab_start=1 padding_idx=9"},
    {"router_fwd", {"T"}, TILE_ROUTER},
    {"router_bwd", {"T"}, TILE_ROUTER},
    {"router_balanced_fwd", {"T"}, TILE_ROUTER},
    {"rope_fwd", {"T"}, "T=5 A=3 D=64 P=33 h=32"},
    {"rope_bwd", {"T"}, "T=5 A=3 D=64 P=33 h=32"},
    {"kv_down_split_fwd", {"T"}, "T=5 C=40 R=8 | kv_lora_rank=C qk_pos_emb_head_dim=R"},
    {"kv_down_split_bwd", {"T"}, "T=5 C=40 R=8 | kv_lora_rank=C qk_pos_emb_head_dim=R"},
    {"mla_rope_q_fwd", {"T"}, "T=5 A=3 D=72 P=33 h=32 | heads=A head_dim=D"},
    {"mla_rope_q_bwd", {"T"}, "T=5 A=3 D=72 P=33 h=32 | heads=A head_dim=D"},
    {"mla_rope_kv_fwd", {"T", "+A"}, "T=5 A=3 N=16 V=8 P=33 h=32 | heads=A qk_head_dim=N v_head_dim=V"},
    {"mla_rope_kv_bwd", {"T", "+A"}, "T=5 A=3 N=16 V=8 P=33 h=32 | heads=A qk_head_dim=N v_head_dim=V"},
    {"qkv_rope_fwd", {"T"}, "T=5 A=4 G=2 D=64 P=33 h=32 | heads=A groups=G head_dim=D"},
    {"qkv_norm_rope_fwd", {"T"}, "T=5 A=4 G=2 D=64 P=33 h=32 | heads=A groups=G head_dim=D eps=1e-5"},
    {"qkv_rope_bwd", {"T"}, "T=5 A=4 G=2 D=64 P=33 h=32 | heads=A groups=G head_dim=D"},
    {"qkv_norm_rope_bwd", {"T"}, "T=5 A=4 G=2 D=64 P=33 h=32 trained=1 | heads=A groups=G head_dim=D"},
    {"swiglu_fwd", {"T"}, "T=5 F=264 probs=1"},
    {"gather_rows", {"n"}, "m=13 n=39 H=72"},
    {"permute_plan", {"+E"}, "T=70 K=1 E=5 R=70 | experts=E rows=R"},
    {.op = NULL},
};

const char *parity_data_mode_refusal(const char *op, parity_data_mode mode)
{
    static const struct {
        const char *op;
        unsigned modes;
        const char *why;
    } rows[] = {
        {"attention_fwd", 1u << PARITY_HUGE, OF_EXP},
        {"attention_fwd", 1u << PARITY_INFINITY,
         "a row all of whose scores are minus infinity has no value by the formula and none of a row without "
         "keys"},
        {"attention_bwd", 1u << PARITY_HUGE, OF_EXP},
        {"layernorm_fwd", 1u << PARITY_INFINITY,
         "the mean of a row with an infinity is infinite, or no number where it is updated value by value"},
        {"attention_merge", 1u << PARITY_HUGE, OF_EXP},
        {"router_fwd", 1u << PARITY_HUGE, OF_EXP},
        {"router_fwd", 1u << PARITY_NAN | 1u << PARITY_INFINITY, OF_ORDER},
        {"router_aux_fwd", 1u << PARITY_HUGE, OF_EXP},
        {"router_aux_fwd", 1u << PARITY_NAN | 1u << PARITY_INFINITY, OF_ORDER},
        {"router_balanced_fwd", 1u << PARITY_HUGE, OF_EXP},
        {"router_balanced_fwd", 1u << PARITY_NAN | 1u << PARITY_INFINITY, OF_ORDER},
        {"router_balanced_seq_fwd", 1u << PARITY_HUGE, OF_EXP},
        {"router_balanced_seq_fwd", 1u << PARITY_NAN | 1u << PARITY_INFINITY, OF_ORDER},
        {"router_aux_bwd", 1u << PARITY_HUGE, OF_EXP},
        {"router_balanced_bwd", 1u << PARITY_HUGE, OF_EXP},
        {"router_balanced_bwd_two", 1u << PARITY_HUGE, OF_EXP},
        {"router_balanced_bwd_three", 1u << PARITY_HUGE, OF_EXP},
        {"cross_entropy_stats", 1u << PARITY_NAN,
         "the maximum of a row may leave a NaN out, which the row's sum of exponentials then has"},
        {"cross_entropy_bwd", 1u << PARITY_HUGE, OF_EXP},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].op, op) == 0 && (rows[i].modes >> mode & 1u) != 0)
            return rows[i].why;
    return NULL;
}
