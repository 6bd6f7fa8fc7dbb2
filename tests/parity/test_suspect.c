/* Laws: a record that was made with one thing changed is outside its bounds, and what was changed is named; noise has no name. */
#include "tests/support/suspect_plants.h"

/* --- rows --------------------------------------------------------------------------------------------------- */

#define F32 .act = ASSAY_F32
#define BF16 .act = ASSAY_BF16
#define NORM "gamma:w:16 x:a:6,16"
#define NORM_BWD "gamma:w:16 dy:a:6,16 x:a:6,16 rstd:w:6 dgamma_in:f:16"
#define LAYERNORM_BWD "gamma:w:16 dy:a:6,16 x:a:6,16 dgamma_in:f:16"
#define EPS "{\"eps\": 1e-6}"
#define TABLE "\"rotary_dim\": 16, \"rotary_base\": 10000.0, \"positions\": 24"
#define YARN                                                                                                 \
    "{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 64, \"beta_fast\": "   \
    "32.0, "                                                                                                 \
    "\"beta_slow\": 1.0, \"truncate\": true, \"attention_factor\": 1.25, " TABLE "}"
#define ROPE "x:a:9,2,8 cos:c:16,4 sin:s:16,4 position:p11:9"
#define ROPE_4 "x:a:9,2,4 cos:c:16,2 sin:s:16,2 position:p11:9"
#define MLA_Q "q:a:9,24 cos:c:16,4 sin:s:16,4 position:p11:9"
#define MLA_KV "kv:a:9,20 k_pos_emb:a:9,8 cos:c:16,4 sin:s:16,4 position:p11:9"
#define Q_ATTRS "{\"heads\": 2, \"head_dim\": 12}"
#define KV_ATTRS "{\"heads\": 2, \"qk_head_dim\": 4, \"v_head_dim\": 6}"
#define QKV "q:a:18,4,8 k:a:18,2,8 v:a:18,2,8 q_position:d2:18 k_position:d2:18"
#define HEADS                                                                                                \
    "\"batch\": 2, \"seq_q\": 9, \"seq_k\": 9, \"heads\": 4, \"groups\": 2, \"head_dim\": 8, "               \
    "\"head_dim_v\": 8"
#define ATTENTION "{" HEADS ", \"scale\": 0.3535533905932738, \"window\": 0}"
#define SCALED "{" HEADS ", \"scale\": 0.5, \"window\": 0}"
#define SLIDING "{" HEADS ", \"scale\": 0.3535533905932738, \"window\": 4}"
#define ADD "a:a:32,32 b:a:32,32"
#define ROUNDS(word)                                                                                         \
    "it rounds an intermediate result where it does not say so; declared as \"rounding\": [\"" word          \
    "\"] it is within "                                                                                      \
    "its bound (no error, once declared)"
#define OFF_BY(n) "positions are off by " n
#define AHEAD(x) x " cos:c:16,4 sin:s:16,4 position:n11:9" /* no position is 0 */
#define DROPPED(p)                                                                                           \
    "{\"dropout_p\": " p ", \"seed\": 5, \"stream\": 0, \"draw\": 1, \"first_row\": 0, \"all_rows\": 2, "    \
    "\"first_head\": 0, \"all_heads\": 4, \"all_keys\": 9}"
#define LOST(p, lost, all, kept)                                                                             \
    "dropout is on (p " p "): " lost " of " all " elements of the block are lost, the others " kept          \
    " times themselves"
#define ROUTER(norm, pre)                                                                                    \
    "{\"topk\": 2, \"score_function\": \"softmax\", \"pre_softmax\": " pre ", \"norm_topk_prob\": " norm     \
    ", \"scaling_factor\": 1.0, \"num_groups\": 0, \"group_topk\": 0}"

static void expect_all(const planted *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect_cause(&rows[i], (int)i);
}
#define EXPECT_ALL(rows) expect_all(rows, sizeof(rows) / sizeof *(rows))

Test(parity_suspect, norms)
{
    static const planted rows[] = {
        {"rmsnorm_fwd", EPS, NORM, F32, .actual = "{\"eps\": 0.03}",
         .expected = "the norm adds eps 0.03 where 1e-06 is expected"},
        {"rmsnorm_fwd", EPS, NORM, F32, .actual = "{\"eps\": 1e-5}",
         .expected = "the norm adds eps 1e-05 where 1e-06 is expected"},
        {"rmsnorm_fwd", EPS, NORM, BF16, .actual = "{\"eps\": 1e-2}",
         .expected = "the norm adds eps 0.01 where 1e-06 is expected"},
        {"rmsnorm_fwd", EPS, NORM, F32, .plant = gamma_one,
         .expected = "the norm does not multiply by its weight"},
        {"rmsnorm_fwd", EPS, NORM, F32, .plant = gamma_plus_one,
         .expected = "the norm multiplies by 1 + weight"},
        {"rmsnorm_fwd", EPS, NORM, F32, .plant = no_mean,
         .expected = "the norm subtracts the mean of a row: a LayerNorm in place of an RMSNorm"},
        {"layernorm_fwd", EPS, NORM " beta:a:16", F32, .actual = "{\"eps\": 1e-3}",
         .expected = "the norm adds eps 0.001 where 1e-06 is expected"},
        {"layernorm_bwd", EPS, LAYERNORM_BWD, F32, .actual = "{\"eps\": 1e-5}",
         .expected = "the norm adds eps 1e-05 where 1e-06 is expected"},
    };
    EXPECT_ALL(rows);
}

Test(parity_suspect, tables_of_rope)
{
    static const planted rows[] = {
        {"rope_table", "{" TABLE "}", "", F32, .actual = "{\"rotary_base\": 500000.0}",
         .expected = "rope's theta is 500000 where 10000 is expected"},
        {"rope_table", "{" TABLE "}", "", F32, .actual = "{\"rotary_base\": 12345.0}",
         .expected = "rope's theta is 12345 where 10000 is expected"},
        {"rope_table", "{\"rope_type\": \"linear\", \"factor\": 4.0, " TABLE "}", "", F32,
         .actual = "{\"rope_type\": \"default\"}",
         .expected = "rope is not scaled, where rope_type linear is expected"},
        {"rope_table",
         "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
         "\"original_max_position_embeddings\": 64, " TABLE "}",
         "", F32, .actual = "{\"rope_type\": \"default\"}",
         .expected = "rope is not scaled, where rope_type llama3 is expected"},
        {"rope_table", YARN, "", F32, .actual = "{\"rope_type\": \"default\"}",
         .expected = "rope is not scaled, where rope_type yarn is expected"},
        {"rope_table", YARN, "", F32, .actual = "{\"attention_factor\": 1.0}",
         .expected = "attention_factor is missing: yarn's cos and sin are not multiplied by 1.25"},
        {"rope_table", YARN, "", F32, .actual = "{\"factor\": 1.0}",
         .expected =
             "only attention_factor is applied: rope's frequencies are not scaled, where rope_type yarn is "
             "expected"},
        {"rope_table", YARN, "", F32, .actual = "{\"attention_factor\": 1.1}",
         .expected = "attention_factor is 1.1 where 1.25 is expected"},
        {"rope_table", YARN, "", F32, .actual = "{\"rotary_base\": 50000.0}",
         .expected = "rope's theta is 50000 where 10000 is expected"},
    };
    EXPECT_ALL(rows);
}

Test(parity_suspect, rotations)
{
    static const planted rows[] = {
        {"rope_fwd", "{}", ROPE, F32, .plant = other_sign,
         .expected = "the rotation turns the other way: the sign of sin"},
        {"rope_fwd", "{}", ROPE, F32, .plant = not_turned, .expected = "the rotation is not applied"},
        {"rope_fwd", "{}", ROPE, F32, .plant = next_position, .expected = OFF_BY("+1")},
        {"rope_fwd", "{}", AHEAD("x:a:9,2,8"), F32, .plant = last_position, .expected = OFF_BY("-1")},
        {"rope_fwd", "{}", ROPE, F32, .plant = to_halves, .after = results_neighbours,
         .expected = "rope turns neighbours (2i, 2i + 1) where halves (i, i + 4) are expected"},
        {"rope_fwd", "{}", ROPE, F32, .after = mixed_pairs,
         .expected = "rope turns neighbours (2i, 2i + 1) where halves (i, i + 4) are expected by angles that "
                     "are made "
                     "for halves: rotate_half and the table do not belong together"},
        {"rope_fwd", "{}", ROPE, F32, .plant = to_halves,
         .expected =
             "rope turns neighbours (2i, 2i + 1) where halves (i, i + 4) are expected, left as halves"},
        {"rope_fwd", "{}", ROPE, F32, .plant = to_neighbours,
         .expected = "rope turns halves (i, i + 4) where neighbours (2i, 2i + 1) are expected "
                     "(rope_interleave), left "
                     "as halves"},
        {"rope_fwd", "{}", ROPE, BF16, .plant = to_neighbours, .after = results_halves,
         .expected =
             "rope turns halves (i, i + 4) where neighbours (2i, 2i + 1) are expected (rope_interleave)"},
        {"rope_fwd", "{}", ROPE_4, F32, .plant = to_neighbours,
         .expected = "rope turns neighbours (2i, 2i + 1) where halves (i, i + 2) are expected, left as "
                     "halves; or the "
                     "other way round (of four columns both are one)"},
        {"rope_fwd", "{}", ROPE_4, F32, .plant = to_neighbours, .after = results_halves,
         .expected = "rope turns neighbours (2i, 2i + 1) where halves (i, i + 2) are expected; or the other "
                     "way round "
                     "(of four columns both are one)"},
        {"mla_rope_q_fwd", Q_ATTRS, MLA_Q, F32, .plant = other_sign,
         .expected = "the rotation turns the other way: the sign of sin"},
        {"mla_rope_q_fwd", Q_ATTRS, MLA_Q, F32, .plant = not_turned,
         .expected = "the rotation is not applied"},
        {"mla_rope_q_fwd", Q_ATTRS, MLA_Q, BF16, .plant = next_position, .expected = OFF_BY("+1")},
        {"mla_rope_q_fwd", Q_ATTRS, AHEAD("q:a:9,24"), F32, .plant = last_position, .expected = OFF_BY("-1")},
        {"mla_rope_q_fwd", Q_ATTRS, MLA_Q, F32, .plant = q_halves,
         .expected =
             "rope turns halves (i, i + 4) where neighbours (2i, 2i + 1) are expected (rope_interleave)"},
        {"mla_rope_q_fwd", Q_ATTRS, MLA_Q, F32, .after = q_neighbours,
         .expected = "rope leaves what it turned as neighbours where halves (i, i + 4) are expected"},
        {"mla_rope_kv_fwd", KV_ATTRS, MLA_KV, F32, .plant = other_sign,
         .expected = "the rotation turns the other way: the sign of sin"},
        {"mla_rope_kv_fwd", KV_ATTRS, MLA_KV, F32, .plant = not_turned,
         .expected = "the rotation is not applied"},
        {"mla_rope_kv_fwd", KV_ATTRS, MLA_KV, F32, .plant = next_position, .expected = OFF_BY("+1")},
        {"mla_rope_kv_fwd", KV_ATTRS, AHEAD("kv:a:9,20 k_pos_emb:a:9,8"), F32, .plant = last_position,
         .expected = OFF_BY("-1")},
        {"mla_rope_kv_fwd", KV_ATTRS, MLA_KV, F32, .plant = k_halves,
         .expected =
             "rope turns halves (i, i + 4) where neighbours (2i, 2i + 1) are expected (rope_interleave)"},
        {"mla_rope_kv_fwd", KV_ATTRS, MLA_KV, F32, .after = k_neighbours,
         .expected = "rope leaves what it turned as neighbours where halves (i, i + 4) are expected"},
    };
    EXPECT_ALL(rows);
}

Test(parity_suspect, attention)
{
    static const planted rows[] = {
        {"attention_fwd", ATTENTION, QKV, F32, .plant = dealt_queries, .after = dealt_results,
         .expected = "query head h reads key group h mod 2 where h / 2 is expected: GQA heads are repeated "
                     "in another "
                     "order (repeat in place of repeat_interleave)"},
        {"attention_fwd", ATTENTION, QKV, F32, .plant = sees_less,
         .expected = "the causal mask is off by one: a query does not see its own key"},
        {"attention_fwd", ATTENTION, QKV, F32, .plant = sees_more,
         .expected = "the causal mask is off by one: a query sees the key behind it"},
        {"attention_fwd", ATTENTION, QKV, F32, .plant = sees_all,
         .expected = "there is no causal mask: every query sees every key"},
        {"attention_fwd", ATTENTION, QKV, F32, .actual = "{\"scale\": 0.125}",
         .expected =
             "scores are scaled twice, or divided by the head dimension, not its root: scale 0.125 where "
             "0.353553 is expected"},
        {"attention_fwd", SCALED, QKV, F32, .actual = "{\"scale\": 0.25}",
         .expected = "scores are scaled twice: scale 0.25 where 0.5 is expected"},
        {"attention_fwd", SCALED, QKV, F32, .actual = "{\"scale\": 0.125}",
         .expected =
             "scores are divided by the head dimension, not its root: scale 0.125 where 0.5 is expected"},
        {"attention_fwd", ATTENTION, QKV, BF16, .actual = "{\"scale\": 1.0}",
         .expected = "scores are not scaled: scale 1 where 0.353553 is expected"},
        {"attention_fwd", ATTENTION, QKV, F32, .actual = "{\"scale\": 0.17677669529663687}",
         .expected =
             "scores are divided by the root of the hidden size: scale 0.176777 where 0.353553 is expected"},
        {"attention_fwd", SCALED, QKV, F32, .actual = "{\"scale\": 0.3535533905932738}",
         .expected =
             "scores are divided by the root of the head dimension: scale 0.353553 where 0.5 is expected"},
        {"attention_fwd", ATTENTION, QKV, F32, .actual = "{\"scale\": 0.4472135954999579}",
         .expected =
             "scores are divided by the root of 5, less than the head dimension (of multi-latent attention: "
             "only of the columns that rope does not turn): scale 0.447214 where 0.353553 is expected"},
        {"attention_fwd", ATTENTION, QKV, F32, .actual = "{\"scale\": 0.2886751345948129}",
         .expected = "scores are divided by the root of 12: scale 0.288675 where 0.353553 is expected"},
        {"attention_fwd", ATTENTION, QKV, F32, .actual = "{\"scale\": 0.7}",
         .expected = "scores have another scale: 0.7 where 0.353553 is expected"},
        {"attention_fwd", ATTENTION, QKV, F32, .actual = "{\"scale\": 0.612345}",
         .expected = "scores have another scale: 0.612345 where 0.353553 is expected"},
        {"attention_fwd", SLIDING, QKV, F32, .actual = "{\"window\": 0}",
         .expected = "the sliding window of 4 is not applied"},
        {"attention_fwd", SLIDING, QKV, F32, .actual = "{\"window\": 5}",
         .expected = "the sliding window is 5 where 4 is expected: off by one"},
        {"attention_fwd", SLIDING, QKV, F32, .actual = "{\"window\": 3}",
         .expected = "the sliding window is 3 where 4 is expected: off by one"},
        {"attention_fwd", ATTENTION, QKV, F32, .actual = DROPPED("0.1"),
         .expected =
             "dropout is on in attention (p 0.1): 38 of 360 probabilities are lost, the others 1.11 times "
             "themselves"},
        {"attention_fwd", SLIDING, QKV, F32, .actual = DROPPED("0.25"),
         .expected =
             "dropout is on in attention (p 0.25): 60 of 240 probabilities are lost, the others 1.33 times "
             "themselves"},
    };
    EXPECT_ALL(rows);
}

Test(parity_suspect, sums_products_and_the_rest)
{
    static const planted rows[] = {
        {"add", "{}", ADD, F32, .plant = only_b,
         .expected = "the residual is not added: the sum is its second term alone"},
        {"add", "{}", ADD, F32, .plant = only_a,
         .expected = "the sum is its first term alone: what the block computed is lost"},
        {"add", "{}", ADD, F32, .plant = twice_a, .expected = "the residual is added twice"},
        {"add", "{}", ADD, BF16, .plant = twice_b, .expected = "what the block computed is added twice"},
        {"add", "{}", ADD, F32, .plant = minus_b, .expected = "what the block computed is subtracted"},
        {"add", "{}", ADD, F32, .plant = half_b, .expected = "what the block computed is halved"},
        {"add", "{}", ADD, F32, .after = drop_10, .expected = LOST("0.1", "118", "1024", "1.11")},
        {"add", "{}", ADD, F32, .after = drop_20, .expected = LOST("0.2", "221", "1024", "1.25")},
        {"add", "{}", ADD, F32, .after = drop_25, .expected = LOST("0.25", "286", "1024", "1.33")},
        {"add", "{}", ADD, BF16, .after = drop_10, .expected = LOST("0.1", "117", "1007", "1.11")},
        {"add", "{}", ADD, F32, .after = drop_50, .expected = LOST("0.5", "540", "1024", "2")},
        {"linear_fwd", "{}", "x:a:6,8 weight:a:8,8 bias:a:8", F32, .plant = no_bias,
         .expected = "the bias is not added"},
        {"linear_fwd", "{}", "x:a:6,8 weight:a:8,8 bias:a:8", F32, .plant = twice_bias,
         .expected = "the bias is added twice"},
        {"linear_fwd", "{}", "x:a:6,8 weight:a:8,8", F32, .plant = transposed,
         .expected = "the weight is transposed"},
        {"linear_fwd", "{}", "x:a:6,8 weight:a:4,8", F32, .plant = autocast,
         .expected = "the operands are rounded to BF16 (autocast)"},
        {"linear_fwd", "{}", "x:a:6,8 weight:a:4,8", F32, .plant = other_weight,
         .expected = "the product is with another weight: other.weight"},
        {"swiglu_fwd", "{}", "x:a:6,16", F32, .plant = exchanged, .expected = "gate and up are exchanged"},
        {"router_fwd", ROUTER("true", "true"), "logits:f:9,6", F32, .actual = "{\"norm_topk_prob\": false}",
         .expected =
             "norm_topk_prob is false where true is expected: the chosen probabilities are not divided by "
             "their sum"},
        {"router_fwd", ROUTER("false", "true"), "logits:f:9,6", F32, .actual = "{\"norm_topk_prob\": true}",
         .expected =
             "norm_topk_prob is true where false is expected: the chosen probabilities are divided by their "
             "sum"},
        {"router_fwd", ROUTER("false", "true"), "logits:f:9,6", F32, .actual = "{\"pre_softmax\": false}",
         .expected = "pre_softmax is false where true is expected"},
        {"cross_entropy_bwd", "{\"vocab_start\": 0, \"scale\": 0.25}", "logits:f:6,9 lse:w:6 targets:p9:6",
         F32, .actual = "{\"scale\": 0.5}",
         .expected = "the gradient of the loss is scaled by 0.5 where 0.25 is expected"},
        {"cross_entropy_bwd", "{\"vocab_start\": 0, \"scale\": 0.25}", "logits:f:6,9 lse:w:6 targets:p9:6",
         F32, .actual = "{\"scale\": 0.125}",
         .expected = "the gradient of the loss is scaled by 0.125 where 0.25 is expected"},
    };
    EXPECT_ALL(rows);
}

/* Results that are as far off as one place of rounding allows. */
Test(parity_suspect, places_of_rounding)
{
    static const char backward[] = "do:a:18,4,8 q:a:18,4,8 k:a:18,2,8 v:a:18,2,8 o:a:18,4,8 q_position:d2:18 "
                                   "k_position:d2:18";
    static const planted rows[] = {
        {"rmsnorm_fwd", EPS, NORM, BF16, .rounding = ASSAY_ROUND_BEFORE_GAMMA,
         .expected = ROUNDS("before_gamma")},
        {"rmsnorm_bwd", EPS, NORM_BWD, BF16, .rounding = ASSAY_ROUND_BEFORE_GAMMA,
         .expected = ROUNDS("before_gamma")},
        {"layernorm_bwd", EPS, LAYERNORM_BWD, BF16, .rounding = ASSAY_ROUND_PARTIAL_SUMS,
         .expected = ROUNDS("partial_sums")},
        {"layernorm_bwd", EPS, LAYERNORM_BWD, BF16, .rounding = ASSAY_ROUND_STATISTICS,
         .expected = ROUNDS("statistics")},
        {"rope_table", "{" TABLE "}", "", F32, .rounding = ASSAY_ROUND_ANGLES, .expected = ROUNDS("angles")},
        {"rope_fwd", "{}", ROPE, BF16, .rounding = ASSAY_ROUND_PRODUCTS, .expected = ROUNDS("products")},
        {"rope_bwd", "{}", "dy:a:9,2,8 cos:c:16,4 sin:s:16,4 position:p11:9", BF16,
         .rounding = ASSAY_ROUND_PRODUCTS, .expected = ROUNDS("products")},
        {"mla_rope_q_fwd", Q_ATTRS, MLA_Q, BF16, .rounding = ASSAY_ROUND_PRODUCTS,
         .expected = ROUNDS("products")},
        {"mla_rope_q_bwd", Q_ATTRS, "dy:a:9,2,12 cos:c:16,4 sin:s:16,4 position:p11:9", BF16,
         .rounding = ASSAY_ROUND_PRODUCTS, .expected = ROUNDS("products")},
        {"mla_rope_kv_fwd", KV_ATTRS, MLA_KV, BF16, .rounding = ASSAY_ROUND_PRODUCTS,
         .expected = ROUNDS("products")},
        {"mla_rope_kv_bwd", KV_ATTRS, "cos:c:16,4 sin:s:16,4 position:p11:9 dk:a:9,2,12 dv:a:9,2,6", BF16,
         .rounding = ASSAY_ROUND_PRODUCTS, .expected = ROUNDS("products")},
        {"attention_fwd", ATTENTION, QKV, BF16, .rounding = ASSAY_ROUND_SCORES, .expected = ROUNDS("scores")},
        {"attention_bwd", ATTENTION, backward, BF16, .rounding = ASSAY_ROUND_SCORES,
         .expected = ROUNDS("scores")},
        {"attention_bwd", ATTENTION, backward, BF16, .rounding = ASSAY_ROUND_HEADS,
         .expected = ROUNDS("heads")},
        {"swiglu_fwd", "{}", "x:a:6,16", BF16, .rounding = ASSAY_ROUND_BEFORE_UP,
         .expected = ROUNDS("before_up")},
        {"swiglu_bwd", "{}", "dy:a:6,8 x:a:6,16", BF16, .rounding = ASSAY_ROUND_BEFORE_UP,
         .expected = ROUNDS("before_up")},
        {"embedding_bwd", "{\"vocab_start\": 0}", "dy:a:12,8 ids:p5:12 dweight_in:a:5,8", BF16,
         .narrow = true, .rounding = ASSAY_ROUND_PARTIAL_SUMS, .expected = ROUNDS("partial_sums")},
        {"weighted_combine_fwd", "{}", "x:a:12,8 probs:a:4,3 token_row:p11:4,3", BF16,
         .rounding = ASSAY_ROUND_PRODUCTS, .expected = ROUNDS("products")},
        {"weighted_combine_fwd", "{}", "x:a:12,8 probs:a:4,3 token_row:p11:4,3", BF16,
         .rounding = ASSAY_ROUND_PARTIAL_SUMS, .expected = ROUNDS("partial_sums")},
        {"weighted_combine_bwd", "{}", "x:a:12,8 probs:a:4,3 token_row:p11:4,3 dy:a:4,8", BF16,
         .rounding = ASSAY_ROUND_PRODUCTS, .expected = ROUNDS("products")},
        {"adamw",
         "{\"lr\": 0.01, \"beta1\": 0.9, \"beta2\": 0.95, \"eps\": 1e-8, \"weight_decay\": 0.1, \"step\": 3}",
         "grad:a:40 main_param_in:a:40 exp_avg_in:a:40 exp_avg_sq_in:w:40", BF16, .narrow = true,
         .rounding = ASSAY_ROUND_EVERY, .expected = ROUNDS("every")},
    };
    EXPECT_ALL(rows);
}

Test(parity_suspect, noise_has_no_cause)
{
    static const planted rows[] = {
        {"rmsnorm_fwd", EPS, NORM, F32, .after = noise},
        {"layernorm_fwd", EPS, NORM " beta:a:16", BF16, .after = noise},
        {"rope_table", YARN, "", F32, .after = noise},
        {"rope_fwd", "{}", ROPE, F32, .after = noise},
        {"mla_rope_q_fwd", Q_ATTRS, MLA_Q, F32, .after = noise},
        {"attention_fwd", ATTENTION, QKV, F32, .after = noise},
        {"attention_fwd", ATTENTION, QKV, BF16, .after = noise},
        {"attention_fwd", SLIDING, QKV, F32, .after = noise},
        {"add", "{}", ADD, F32, .after = noise},
        {"add", "{}", ADD, F32, .after = drop_more},
        {"linear_fwd", "{}", "x:a:6,8 weight:a:8,8 bias:a:8", F32, .after = noise},
        {"swiglu_fwd", "{}", "x:a:6,16", F32, .after = noise},
        {"cross_entropy_bwd", "{\"vocab_start\": 0, \"scale\": 0.25}", "logits:f:6,9 lse:w:6 targets:p9:6",
         F32, .after = noise},
        {"adamw",
         "{\"lr\": 0.01, \"beta1\": 0.9, \"beta2\": 0.95, \"eps\": 1e-8, \"weight_decay\": 0.1, \"step\": 3}",
         "grad:f:40 main_param_in:f:40 exp_avg_in:f:40 exp_avg_sq_in:w:40", F32, .after = noise},
    };
    EXPECT_ALL(rows);
}

/* What the local check refuses has no numbers to explain. */
Test(parity_suspect, records_that_are_not_legal_are_left)
{
    static const int64_t wide[2] = {2, 3}, h = 3, one = 1;
    static const float x[6] = {1, 2, 3, 4, 5, 6}, gamma[3] = {1, 1, 1};
    static const int64_t integers[6] = {1, 2, 3, 4, 5, 6};
    for (int row = 0; row < 2; row++) { /* y of integers; beta shorter than gamma */
        char dir[256], why[PARITY_TEXT] = "?";
        assay_trace_writer *w = open_writer(fresh_path(dir, "t"), 0, 1, NULL);
        assay_trace_op o = op_of(row == 0 ? "rmsnorm_fwd" : "layernorm_fwd", "norm", ASSAY_PHASE_FORWARD);
        assay_trace_tensor y = tensor_of("y", ASSAY_PHASE_FORWARD, row == 0 ? ASSAY_I64 : ASSAY_F32, 2, wide);
        op_in(&o, "x", put_f32(w, "x", ASSAY_PHASE_FORWARD, 2, 3, x));
        op_in(&o, "gamma", put_vector_f32(w, "gamma", h, gamma));
        if (row == 1)
            op_in(&o, "beta", put_vector_f32(w, "beta", one, gamma));
        must(assay_trace_write_tensor(w, &y, row == 0 ? (const void *)integers : (const void *)x));
        op_out(&o, "y", y.id);
        o.attrs = json_pack("{s:f}", "eps", 1e-6);
        must(assay_trace_write_op(w, &o));
        json_decref(o.attrs);
        close_writer(w);
        assay_trace *t = open_trace(dir);
        must(parity_suspect(t, assay_trace_op_at(t, 0, 0), why));
        cr_expect_str_eq(why, "");
        assay_trace_close(t);
        remove_path(dir);
    }
}
