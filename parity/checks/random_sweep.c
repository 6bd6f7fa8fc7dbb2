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
    {"linear_fwd", {"T", "N", "K"}},
    {"linear_bwd_input", {"T", "N", "K"}},
    {"linear_bwd_weight", {"T", "N", "K"}},
    {"linear_bwd_bias", {"T", "N"}},
    {"grouped_linear_fwd", {"R", "N", "K"}},
    {"grouped_linear_bwd_input", {"R", "N", "K"}},
    {"grouped_linear_bwd_weight", {"R", "N", "K"}},
    {"rmsnorm_fwd", {"T", "+H"}},
    {"add_rmsnorm_fwd", {"T", "+H"}},
    {"rmsnorm_bwd", {"T", "+H"}},
    {"rmsnorm_bwd_add", {"T", "+H"}},
    {"rmsnorm_sumsq", {"T"}},
    {"rmsnorm_apply", {"T"}},
    {"rmsnorm_bwd_dot", {"T", "H"}},
    {"rmsnorm_bwd_apply", {"T"}},
    {"layernorm_fwd", {"T", "+H"}},
    {"layernorm_bwd", {"T", "+H"}},
    {"rope_fwd", {"T", "+A"}},
    {"rope_bwd", {"T", "+A"}},
    {"attention_fwd", {"Sq,Sk", "-D,Dv"}},
    {"attention_bwd", {"Sq,Sk", "-D,Dv"}},
    {"qkv_split_fwd", {"T", "+D"}},
    {"qkv_split_bwd", {"T", "+D"}},
    {"qkv_rope_fwd", {"T", "+A", "+A,G"}},
    {"qkv_norm_rope_fwd", {"T", "+A", "+A,G"}},
    {"qkv_rope_bwd", {"T", "+A", "+A,G"}},
    {"qkv_norm_rope_bwd", {"T", "+A", "+A,G"}},
    {"attention_merge", {"T", "+D"}},
    {"pack_heads", {"T", "+D"}},
    {"unpack_heads", {"T", "+D"}},
    {"add", {"n"}},
    {"clamp_fwd", {"n"}},
    {"clamp_bwd", {"n"}},
    {"dropout_fwd", {"T", "H"}},
    {"dropout_bwd", {"T", "H"}},
    {"swiglu_fwd", {"T", "F"}},
    {"swiglu_bwd", {"T", "F"}},
    {"sigmoid_gate_fwd", {"T", "H"}},
    {"sigmoid_gate_bwd", {"T", "H"}},
    {"cast", {"n"}},
    {"slice_rows", {"n"}},
    {"embedding_fwd", {"T", "V", "H"}},
    {"embedding_bwd", {"T", "V", "H"}},
    {"sum", {"n"}},
    {"sumsq", {"n"}},
    {"count_zeros", {"n"}},
    {"total", {"n"}},
    {"router_fwd", {"T"}},
    {"router_bwd", {"T"}},
    {"router_aux_fwd", {"T"}},
    {"router_balanced_fwd", {"T"}},
    {"running_counts", {"E"}},
    {"random_logits", {"T", "+E"}},
    {"input_jitter", {"T", "H"}},
    {"gather_rows", {"n", "H"}},
    {"combine_rows", {"H"}},
    {"cross_entropy_stats", {"T", "V"}},
    {"cross_entropy_loss", {"T", "V"}},
    {"cross_entropy_bwd", {"T", "V"}},
    {"adamw", {"n"}},
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
