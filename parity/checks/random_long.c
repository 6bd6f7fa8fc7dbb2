/* Sizes that are long in one direction and small in the others, for `assay certify`: what a grid covers, a table holds or a loop ends at.
 * Each is asked once a seed, in one data mode; random_table.c has the sizes that are asked in all of them.  Widths are multiples of 64, which
 * kernels of vectors and tiles take, too. */
#include "parity/checks/random_request.h"

#include <stdlib.h>
#include <string.h>

#define HEADS "batch=B seq_q=Sq seq_k=Sk heads=A groups=G head_dim=D head_dim_v=Dv scale=0.125 window=0"
/* More keys, more queries, more heads, more rows of a batch. */
#define ATTENTION(op)                                                                                        \
    {op, "B=1 Sq=2 Sk=4097 A=1 G=1 D=64 Dv=64 first=0 | " HEADS, {NULL}},                                    \
        {op, "B=1 Sq=513 Sk=513 A=1 G=1 D=64 Dv=64 first=0 | " HEADS, {NULL}},                               \
        {op, "B=1 Sq=3 Sk=3 A=130 G=65 D=64 Dv=64 first=0 | " HEADS, {NULL}},                                \
    {                                                                                                        \
        op, "B=257 Sq=2 Sk=2 A=1 G=1 D=64 Dv=64 first=0 | " HEADS,                                           \
        {                                                                                                    \
            NULL                                                                                             \
        }                                                                                                    \
    }
#define GROUPED(op)                                                                                          \
    {op, "R=5 El=2 N=64 K=64", {"R=513", "N=2112", "K=2112"}}, {op, "R=4097 El=3 N=8 K=8", {NULL}},          \
    {                                                                                                        \
        op, "R=70 El=513 N=16 K=16",                                                                         \
        {                                                                                                    \
            NULL                                                                                             \
        }                                                                                                    \
    }
#define CHOICE "topk=K scaling_factor=1.5 score_function="
#define WHOLE "pre_softmax=true norm_topk_prob=true num_groups=0 group_topk=0"
#define ROUTER(op)                                                                                           \
    {op, "T=5 E=64 K=4 bias=0 | " CHOICE "softmax " WHOLE, {"T=1025"}},                                      \
        {op, "T=3 E=512 K=8 bias=0 | " CHOICE "softmax " WHOLE, {NULL}},                                     \
    {                                                                                                        \
        op,                                                                                                  \
            "T=2 E=512 K=8 bias=1 | " CHOICE                                                                 \
            "sigmoid pre_softmax=false norm_topk_prob=true num_groups=8 group_topk=4",                       \
        {                                                                                                    \
            NULL                                                                                             \
        }                                                                                                    \
    }
#define AUX " | topk=K score_function=softmax"
#define LOSS AUX " aux_coeff=0.02 z_coeff=0.003 loss_scale=0.25 tokens=9"
#define SPLIT "heads=A groups=G head_dim=D"
#define QKV "T=2 A=2 G=1 D=64 P=9 h=32"
#define PACK "T=2 A=2 P=2 D=64 | heads=A head_dim=D parts=P"
#define LATENT(d) "T=2 C=" d " R=" d " | kv_lora_rank=C qk_pos_emb_head_dim=R"
#define MLA_Q "T=2 A=1 D=192 P=11 h=32 | heads=A head_dim=D"
#define MLA_KV "T=2 A=1 N=64 V=64 P=11 h=32 | heads=A qk_head_dim=N v_head_dim=V"
#define DROPOUT "T=5 H=64 N=9 | p=0.5 seed=1234 stream=3 draw=0"

const parity_ask_long_row parity_ask_long_table[] = {
    {"linear_fwd", "T=3 N=64 K=64 bias=1", {"T=513", "N=2112", "K=4224"}},
    {"linear_fwd", "T=4097 N=8 K=8 bias=0", {NULL}},
    {"linear_bwd_input", "T=3 N=64 K=64 bias=0", {"T=513", "N=2112", "K=4224"}},
    {"linear_bwd_input", "T=4097 N=8 K=8 bias=0", {NULL}},
    {"linear_bwd_weight", "T=3 N=64 K=64 bias=0", {"T=513", "N=2112", "K=4224"}},
    {"linear_bwd_weight", "T=4097 N=8 K=8 bias=0", {NULL}},
    {"linear_bwd_bias", "T=7 N=64", {"T=4097", "N=4224"}},
    GROUPED("grouped_linear_fwd"),
    GROUPED("grouped_linear_bwd_input"),
    GROUPED("grouped_linear_bwd_weight"),
    {"rmsnorm_fwd", "T=2 H=64 | eps=1e-5", {"T=513", "H=4224"}},
    {"rmsnorm_fwd", "T=4097 H=8 | eps=1e-5", {NULL}},
    {"add_rmsnorm_fwd", "T=2 H=64 | eps=1e-5", {"T=513", "H=4224"}},
    {"add_rmsnorm_fwd", "T=4097 H=8 | eps=1e-5", {NULL}},
    {"rmsnorm_bwd", "T=2 H=64 trained=1 | eps=1e-5", {"T=513", "H=4224"}},
    {"rmsnorm_bwd", "T=4097 H=8 trained=1 | eps=1e-5", {NULL}},
    {"rmsnorm_bwd_add", "T=2 H=64 trained=1 | eps=1e-5", {"T=513", "H=4224"}},
    {"rmsnorm_bwd_add", "T=4097 H=8 trained=1 | eps=1e-5", {NULL}},
    {"rmsnorm_sumsq", "T=2 H=64 | columns=H", {"T=513", "H=4224"}},
    {"rmsnorm_sumsq", "T=4097 H=8 | columns=H", {NULL}},
    {"rmsnorm_apply", "T=4097 H=8 | eps=1e-5 width=16", {NULL}},
    {"rmsnorm_apply", "T=2 H=4224 | eps=1e-5 width=8448", {NULL}},
    {"rmsnorm_bwd_dot", "T=2 H=64", {"T=513", "H=4224"}},
    {"rmsnorm_bwd_dot", "T=4097 H=8", {NULL}},
    {"rmsnorm_bwd_apply", "T=4097 H=8 trained=1 | width=16", {NULL}},
    {"rmsnorm_bwd_apply", "T=2 H=4224 trained=1 | width=8448", {NULL}},
    {"layernorm_fwd", "T=2 H=64 beta=1 | eps=1e-5", {"T=513", "H=4224"}},
    {"layernorm_fwd", "T=4097 H=8 beta=1 | eps=1e-5", {NULL}},
    {"layernorm_bwd", "T=2 H=64 beta=1 | eps=1e-5", {"T=513", "H=4224"}},
    {"layernorm_bwd", "T=4097 H=8 beta=1 | eps=1e-5", {NULL}},
    {"rope_table", "| rope_type=default rotary_dim=16 rotary_base=10000.0 positions=4097", {NULL}},
    {"rope_fwd", "T=3 A=1 D=64 P=11 h=32", {"T=513", "A=513", "P=4097"}},
    {"rope_fwd", "T=4097 A=1 D=16 P=11 h=8", {NULL}},
    {"rope_bwd", "T=3 A=1 D=64 P=11 h=32", {"T=513", "A=513", "P=4097"}},
    {"rope_bwd", "T=4097 A=1 D=16 P=11 h=8", {NULL}},
    {"kv_down_split_fwd", LATENT("64"), {"T=513", "C=4224", "R=1088"}},
    {"kv_down_split_fwd", LATENT("8"), {"T=4097"}},
    {"kv_down_split_bwd", LATENT("64"), {"T=513", "C=4224", "R=1088"}},
    {"kv_down_split_bwd", LATENT("8"), {"T=4097"}},
    {"mla_rope_q_fwd", MLA_Q, {"T=513", "A=513", "P=4097"}},
    {"mla_rope_q_bwd", MLA_Q, {"T=513", "A=513", "P=4097"}},
    {"mla_rope_kv_fwd", MLA_KV, {"T=513", "A=513", "P=4097"}},
    {"mla_rope_kv_bwd", MLA_KV, {"T=513", "A=513", "P=4097"}},
    ATTENTION("attention_fwd"),
    ATTENTION("attention_bwd"),
    {"qkv_split_fwd", "T=2 A=2 G=1 D=64 | " SPLIT, {"T=513", "A=514"}},
    {"qkv_split_bwd", "T=2 A=2 G=1 D=64 | " SPLIT, {"T=513", "A=514"}},
    {"qkv_rope_fwd", QKV " | " SPLIT, {"T=513", "A=514", "P=4097"}},
    {"qkv_norm_rope_fwd", QKV " | " SPLIT " eps=1e-5", {"T=513", "A=514", "P=4097"}},
    {"qkv_rope_bwd", QKV " | " SPLIT, {"T=513", "A=514", "P=4097"}},
    {"qkv_norm_rope_bwd", QKV " trained=1 | " SPLIT, {"T=513", "A=514", "P=4097"}},
    {"attention_merge", "T=2 A=1 D=64 | heads=A head_dim=D", {"T=1025", "A=513"}},
    {"pack_heads", PACK, {"T=1025", "A=514"}},
    {"unpack_heads", PACK, {"T=1025", "A=514"}},
    {"add", NULL, {"n=4097", "n=17024"}},
    {"clamp_fwd", NULL, {"n=4097", "n=17024"}},
    {"clamp_bwd", NULL, {"n=4097", "n=17024"}},
    {"dropout_fwd", DROPOUT, {"T=1025", "H=4224", "N=70000"}},
    {"dropout_bwd", DROPOUT, {"T=1025", "H=4224", "N=70000"}},
    {"swiglu_fwd", "T=2 F=64 probs=1", {"T=513", "F=4224"}},
    {"swiglu_fwd", "T=4097 F=8 probs=0", {NULL}},
    {"swiglu_bwd", "T=2 F=64 probs=1", {"T=513", "F=4224"}},
    {"swiglu_bwd", "T=4097 F=8 probs=0", {NULL}},
    {"sigmoid_gate_fwd", "T=2 H=64", {"T=513", "H=4224"}},
    {"sigmoid_gate_fwd", "T=4097 H=8", {NULL}},
    {"sigmoid_gate_bwd", "T=2 H=64", {"T=513", "H=4224"}},
    {"sigmoid_gate_bwd", "T=4097 H=8", {NULL}},
    {"cast", NULL, {"n=4097", "n=17024"}},
    {"slice_rows", "S=9 n=64 | start=2 length=4", {"n=4224", "S=1025"}},
    {"slice_rows", "S=4100 n=8 | start=2 length=4097", {NULL}},
    {"embedding_fwd", "T=3 V=5 H=64 | vocab_start=4", {"T=1025", "V=1025", "H=4224"}},
    {"embedding_fwd", "T=4097 V=4097 H=8 | vocab_start=4", {NULL}},
    {"embedding_bwd", "T=3 V=5 H=64 | vocab_start=4", {"T=1025", "V=1025", "H=4224"}},
    {"embedding_bwd", "T=4097 V=4097 H=8 | vocab_start=4", {NULL}},
    {"sum", NULL, {"n=17024"}},
    {"sumsq", NULL, {"n=17024"}},
    {"count_zeros", NULL, {"n=17024"}},
    {"total", NULL, {"n=17024"}},
    ROUTER("router_fwd"),
    ROUTER("router_bwd"),
    ROUTER("router_balanced_fwd"),
    {"router_balanced_seq_fwd", NULL, {"T=1026"}},
    {"router_balanced_seq_fwd", "T=2 E=512 K=8 B=2 bias=0 | rows=B " CHOICE "softmax " WHOLE, {NULL}},
    {"router_aux_fwd", "T=3 E=512 K=8" AUX, {NULL}},
    {"router_aux_loss", "T=3 E=512 K=8" LOSS, {NULL}},
    {"router_aux_bwd", NULL, {"T=1025"}},
    {"router_aux_bwd", "T=3 E=512 K=8" LOSS, {NULL}},
    {"router_balanced_bwd", NULL, {"T=1025"}},
    {"router_seq_aux_fwd", "T=6 E=4096 K=2 B=2 | rows=B", {NULL}},
    {"running_counts", NULL, {"E=4097"}},
    {"permute_plan", "T=4097 K=2 E=512 R=8194 | experts=E rows=R", {NULL}},
    {"random_logits", NULL, {"T=1025", "E=512"}},
    {"input_jitter", "T=2 H=64 N=40 | eps=0.125 layer=1 draw=5 tokens=N", {"T=1025", "H=4224"}},
    {"router_drop", "n=1025 K=2 E=7 T=1025 | experts=E capacity=200 start=0 length=T", {NULL}},
    {"router_drop", "n=9 K=8 E=512 T=4 | experts=E capacity=2 start=3 length=T", {NULL}},
    {"gather_rows", "m=3 n=5 H=64", {"n=1025", "H=4224", "m=1025"}},
    {"gather_rows", "m=4097 n=4097 H=8", {NULL}},
    {"combine_rows", "T=13 K=3 R=39 H=64", {"H=4224"}},
    {"combine_rows", "T=4097 K=2 R=8194 H=8", {NULL}},
    {"expert_bias_update", NULL, {"E=512"}},
    {"cross_entropy_stats", "T=2 V=64 tp=1 | vocab_start=3", {"T=1025"}},
    {"cross_entropy_stats", "T=4097 V=8 tp=1 | vocab_start=3", {NULL}},
    {"cross_entropy_stats", "T=2 V=70016 tp=1 | vocab_start=0", {NULL}},
    {"cross_entropy_loss", NULL, {"T=4097"}},
    {"cross_entropy_bwd", "T=2 V=64 tp=1 | scale=0.125 vocab_start=0", {"T=1025"}},
    {"cross_entropy_bwd", "T=4097 V=8 tp=1 | scale=0.125 vocab_start=0", {NULL}},
    {"cross_entropy_bwd", "T=2 V=70016 tp=1 | scale=0.125 vocab_start=0", {NULL}},
    {"adamw", NULL, {"n=4097", "n=17024"}},
    {.op = NULL},
};

void parity_ask_each_long(const parity_ask_long_row *row, parity_on_shape on, void *user)
{
    enum { MOST = sizeof row->swept / sizeof *row->swept };
    const char *sizes = row->sizes != NULL ? row->sizes : parity_ask_first_sizes(row->op);
    if (row->swept[0] == NULL)
        on(user, sizes, NULL, 0);
    for (int i = 0; i < MOST && row->swept[i] != NULL; i++) {
        char symbol[16];
        const char *equals = strchr(row->swept[i], '=');
        snprintf(symbol, sizeof symbol, "%.*s", (int)(equals - row->swept[i]), row->swept[i]);
        on(user, sizes, symbol, strtoll(equals + 1, NULL, 10));
    }
}

typedef struct turn {
    parity_ask *q;
    const char *op;
    int64_t n; /* turns the mode */
} turn;

/* Sums that nearly cancel and sums that grow, in turn. */
static void ask_long(void *user, const char *sizes, const char *symbols, int64_t value)
{
    turn *t = user;
    const parity_data_mode mode = t->n++ % 2 == 0 ? PARITY_ZERO_MEAN : PARITY_ONE_SIGNED;
    parity_ask_one(t->q, mode, t->op, sizes, symbols, value);
}

void parity_ask_long(parity_ask *q, int64_t seed)
{
    for (const parity_ask_long_row *row = parity_ask_long_table; row->op != NULL; row++) {
        turn t = {q, row->op, row - parity_ask_long_table + seed};
        parity_ask_each_long(row, ask_long, &t);
    }
}
