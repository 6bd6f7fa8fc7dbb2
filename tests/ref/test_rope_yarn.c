/* Yarn: frequencies against numbers of transformers' own function, the bound of its table, and the factors that words of Hugging
 * Face's and of Megatron-LM's make, written out from the rules of both. */
#include "ref/yarn.h"
#include "tests/support/ref_bounds.h"

/* transformers 5.24, ROPE_INIT_FUNCTIONS["yarn"] with float32 meaning float64 (golden/double.py). */
static const struct {
    const char *name;
    ref_rope_desc d;
    double factor; /* on cos and sin, as that function gives it */
    double frequency[32];
} known[] = {
    {"deepseek_v3",
     {.rotary_dim = 64,
      .base = 1e4,
      .factor = 40.0,
      .original_max_position_embeddings = 4096,
      .beta_fast = 32.0,
      .beta_slow = 1.0,
      .truncate = true},
     1.0,
     {1.0,
      0.7498942093324559,
      0.5623413251903491,
      0.4216965034285823,
      0.31622776601683794,
      0.23713737056616555,
      0.17782794100389226,
      0.1333521432163324,
      0.1,
      0.07498942093324558,
      0.056234132519034905,
      0.03900692656714386,
      0.026879360111431223,
      0.018378146218877827,
      0.01244795587027246,
      0.008334508951020777,
      0.0055,
      0.0035619974943291656,
      0.002249365300761396,
      0.0013705136361428923,
      0.0007905694150420945,
      0.00041499039849078964,
      0.0001778279410038922,
      3.33380358040831e-05,
      2.5e-05,
      1.8747355233311396e-05,
      1.4058533129758728e-05,
      1.0542412585714557e-05,
      7.905694150420947e-06,
      5.9284342641541385e-06,
      4.445698525097307e-06,
      3.33380358040831e-06}},
    {"gpt_oss",
     {.rotary_dim = 64,
      .base = 150000.0,
      .factor = 32.0,
      .original_max_position_embeddings = 4096,
      .beta_fast = 32.0,
      .beta_slow = 1.0},
     1.3465735902799727,
     {1.0,
      0.6890443058881633,
      0.4747820554769007,
      0.3271458718642365,
      0.2254180002028708,
      0.15532298948448497,
      0.10702442147781144,
      0.07374456821026082,
      0.050813274815461475,
      0.03170569618466377,
      0.019335001126540362,
      0.011592049256286924,
      0.006794959489732219,
      0.0038603593171920685,
      0.0020937923789696887,
      0.0010526021013863359,
      0.00045648391922324086,
      0.00012931870124506317,
      3.8308812373753384e-05,
      2.6396469031472782e-05,
      1.818833668168956e-05,
      1.2532569824095001e-05,
      8.63549587543848e-06,
      5.950239261491605e-06,
      4.0999784818029795e-06,
      2.8250668271503398e-06,
      1.9465962110014815e-06,
      1.3412910350540445e-06,
      9.242089502428301e-07,
      6.36820914615699e-07,
      4.387978250864396e-07,
      3.0235114281192144e-07}},
    {"qwen",
     {.rotary_dim = 16,
      .base = 1e6,
      .factor = 4.0,
      .original_max_position_embeddings = 32768,
      .beta_fast = 32.0,
      .beta_slow = 1.0,
      .truncate = true},
     1.138629436111989,
     {1.0, 0.17782794100389226, 0.03162277660168379, 0.004217559938927618, 0.0005, 4.445698525097307e-05,
      7.905694150420949e-06, 1.4058533129758728e-06}},
    {"both ends before the first pair",
     {.rotary_dim = 8,
      .base = 500.0,
      .factor = 2.5,
      .original_max_position_embeddings = 4,
      .beta_fast = 32.0,
      .beta_slow = 1.0,
      .truncate = true},
     0.983070311834849,
     {1.0, 0.08458970107524513, 0.01788854381999832, 0.003782966436012704}},
    {"one pair for both ends",
     {.rotary_dim = 12,
      .base = 1e4,
      .factor = 8.0,
      .original_max_position_embeddings = 4096,
      .beta_fast = 3.0,
      .beta_slow = 3.0},
     1.25,
     {1.0, 0.2154434690031884, 0.0464158883361278, 0.01, 0.00026930433625398553, 5.801986042015971e-05}},
    {"both ends behind the last",
     {.rotary_dim = 4,
      .base = 10.0,
      .factor = 4.0,
      .original_max_position_embeddings = 1000000,
      .beta_fast = 32.0,
      .beta_slow = 1.0,
      .truncate = true},
     1.138629436111989,
     {0.25, 0.07905694150420949}},
    {"an end between the last pair and the last column",
     {.rotary_dim = 8,
      .base = 10.0,
      .factor = 4.0,
      .original_max_position_embeddings = 100,
      .beta_fast = 4.0,
      .beta_slow = 1.0,
      .truncate = true},
     1.138629436111989,
     {1.0, 0.5623413251903491, 0.31622776601683794, 0.1333709557529192}},
    {"an end behind the last column",
     {.rotary_dim = 8,
      .base = 10.0,
      .factor = 4.0,
      .original_max_position_embeddings = 4000,
      .beta_fast = 200.0,
      .beta_slow = 1.0,
      .truncate = true},
     1.138629436111989,
     {1.0, 0.5623413251903491, 0.31622776601683794, 0.15115374985330843}},
    /* equal ends are a thousandth apart: pair 3 lies between them, where an ulp of a logarithm is 1e-12 */
    {"between equal ends",
     {.rotary_dim = 12,
      .base = 1e4,
      .factor = 8.0,
      .original_max_position_embeddings = 4096,
      .beta_fast = 6.523991897,
      .beta_slow = 6.523991897},
     1.25,
     {1.0, 0.2154434690031884, 0.0464158883361278, 0.0056249997587260545, 0.00026930433625398553,
      5.801986042015971e-05}},
};

Test(ref_rope_yarn, frequencies_are_those_of_transformers)
{
    for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
        ref_rope_desc d = known[n].d;
        double c[64], s[64];
        const int64_t half = d.rotary_dim / 2;
        d.type = ASSAY_ROPE_YARN;
        d.attention_factor = known[n].factor;
        ref_rope_table(c, s, &d, 2);
        for (int64_t i = 0; i < half; i++) {
            const double f = atan2(s[half + i], c[half + i]), wanted = known[n].frequency[i];
            cr_expect(fabs(f - wanted) <=
                          (strcmp(known[n].name, "between equal ends") == 0 ? 4e-12 : 4e-15) * wanted,
                      "%s: pair %d: %.17g, transformers has %.17g", known[n].name, (int)i, f, wanted);
            cr_expect(fabs(hypot(s[half + i], c[half + i]) - known[n].factor) <= 1e-15 * known[n].factor);
            cr_expect(c[i] == known[n].factor && s[i] == 0.0, "position 0");
        }
    }
}

enum { R = 16, P = 60 };

/* The same in single precision, as a module of PyTorch computes it; `share` < 0: the share as it should be. */
static void single_precision(const ref_rope_desc *d, double share, double times, double *c, double *s)
{
    double low, high;
    ref_rope_yarn_range(d, &low, &high);
    for (int i = 0; i < R / 2; i++) {
        const float power = powf((float)d->base, (float)(2 * i) / (float)R), keep = 1.0f / power,
                    divided = 1.0f / ((float)d->factor * power);
        float ramp = ((float)i - (float)low) / ((float)high - (float)low);
        ramp = share >= 0.0 ? (float)share : fminf(fmaxf(ramp, 0.0f), 1.0f);
        const float mask = 1.0f - ramp, f = divided * (1.0f - mask) + keep * mask;
        for (int p = 0; p < P; p++) {
            c[p * (R / 2) + i] = (double)(cosf((float)p * f) * (float)times);
            s[p * (R / 2) + i] = (double)(sinf((float)p * f) * (float)times);
        }
    }
}

/* kind 0: honest; 1: without the factor on cos and sin; 2: every frequency divided, as with linear. */
static void table_trial(const ref_rope_desc *d, int kind, bool angles)
{
    trial t = trial_new("rope_table", assay_arith_elementwise());
    if (angles)
        t.arith.rounding |= ASSAY_ROUND_ANGLES, t.arith.math_ulp = 1;
    json_object_update_new(t.attrs, json_pack("{s:s,s:i,s:f,s:f,s:I,s:f,s:f,s:b,s:f}", "rope_type", "yarn",
                                              "rotary_dim", R, "rotary_base", d->base, "factor", d->factor,
                                              "original_max_position_embeddings",
                                              (json_int_t)d->original_max_position_embeddings, "beta_fast",
                                              d->beta_fast, "beta_slow", d->beta_slow, "truncate",
                                              (int)d->truncate, "attention_factor", d->attention_factor));
    double *c = trial_out(&t, "cos", ASSAY_F32, SHAPE(P, R / 2)),
           *s = trial_out(&t, "sin", ASSAY_F32, SHAPE(P, R / 2));
    ref_rope_desc used = *d;
    if (kind == 1)
        used.attention_factor = 1.0;
    if (kind == 2)
        used.beta_fast = used.beta_slow = 1e-9; /* as the formula has it: every pair is behind the range */
    if (angles)
        single_precision(d, kind == 2 ? 1.0 : -1.0, used.attention_factor, c, s);
    else
        ref_rope_table(c, s, &used, P);
    if (kind == 0) {
        trial_expect_pass(&t, angles ? "single precision" : "double");
    } else {
        trial_store(&t);
        trial_judge(&t);
        cr_expect(t.n_bad > P, "kind %d: %lld elements fail", kind, (long long)t.n_bad);
    }
    trial_free(&t);
}

Test(ref_rope_yarn, tables_within_their_bound)
{
    const ref_rope_desc rows[] = {
        {.base = 500.0,
         .factor = 4.0,
         .original_max_position_embeddings = 32,
         .truncate = true,
         .beta_fast = 32.0,
         .beta_slow = 1.0,
         .attention_factor = 1.138629436111989},
        {.base = 1e4,
         .factor = 40.0,
         .original_max_position_embeddings = 4096,
         .beta_fast = 32.0,
         .beta_slow = 1.0,
         .attention_factor = 0.75},
        {.base = 1e4,
         .factor = 40.0,
         .original_max_position_embeddings = 4096,
         .beta_fast = 206.2, /* pair 1 between ends that are close */
         .beta_slow = 206.1,
         .attention_factor = 1.5000001},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        for (int kind = 0; kind < 3; kind++)
            for (int angles = 0; angles < 2; angles++) {
                ref_rope_desc d = rows[n];
                d.type = ASSAY_ROPE_YARN;
                d.rotary_dim = R;
                table_trial(&d, kind, angles);
            }
}

/* --- factors ------------------------------------------------------------------------------------------------ */

#define DEEPSEEK                                                                                             \
    "{\"model_type\":\"deepseek_v3\",\"hidden_size\":20,\"num_hidden_layers\":2,\"num_attention_heads\":3,"  \
    "\"num_key_value_heads\":3,\"vocab_size\":31,\"intermediate_size\":14,\"q_lora_rank\":12,"               \
    "\"kv_lora_rank\":8,\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":4,\"v_head_dim\":10,"                    \
    "\"n_routed_experts\":8,\"num_experts_per_tok\":4,\"moe_intermediate_size\":7,\"n_group\":4,"            \
    "\"topk_group\":2,\"max_position_embeddings\":256,\"rope_scaling\":{\"type\":\"yarn\","
#define LLAMA                                                                                                \
    "{\"model_type\":\"llama\",\"hidden_size\":40,\"num_hidden_layers\":2,\"num_attention_heads\":4,"        \
    "\"num_key_value_heads\":2,\"vocab_size\":31,\"intermediate_size\":14,\"max_position_embeddings\":256,"  \
    "\"rope_scaling\":{\"type\":\"yarn\","
/* Megatron-LM's form; its default of rope_type is yarn there. */
#define MEGATRON                                                                                             \
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":20,\"ffn_hidden_size\":14,"               \
    "\"num_attention_heads\":3,\"vocab_size\":31,\"multi_latent_attention\":true,\"q_lora_rank\":12,"        \
    "\"kv_lora_rank\":8,\"qk_head_dim\":6,\"qk_pos_emb_head_dim\":4,\"v_head_dim\":10,"                      \
    "\"qk_layernorm\":true,\"normalization\":\"RMSNorm\",\"gated_linear_unit\":true,"                        \
    "\"activation_func\":\"silu\",\"position_embedding_type\":\"rope\",\"hidden_dropout\":0.0,"              \
    "\"attention_dropout\":0.0,\"add_bias_linear\":false,\"untie_embeddings_and_output_weights\":true"

static double m(double factor, double mscale)
{
    return 0.1 * mscale * log(factor) + 1.0;
}

/* Heads are 10 wide everywhere. */
Test(ref_rope_yarn, factors_on_cos_and_on_scores)
{
    const double m7 = m(4.0, 0.7), m9 = m(4.0, 0.9), m1 = m(4.0, 1.0);
    const struct {
        const char *config;
        double cosine, scores;
    } rows[] = {
        {LLAMA "\"factor\":4}}", m1, 1.0},
        {LLAMA "\"factor\":0.5}}", 1.0, 1.0},
        {LLAMA "\"factor\":1}}", 1.0, 1.0},
        {LLAMA "\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.9}}", m7 / m9, 1.0},
        {LLAMA "\"factor\":0.5,\"mscale\":0.7,\"mscale_all_dim\":0.9}}", 1.0, 1.0},
        {LLAMA "\"factor\":4,\"mscale\":0.7}}", m1, 1.0},
        {LLAMA "\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0}}", m1, 1.0},
        {LLAMA "\"factor\":4,\"mscale_all_dim\":0.9}}", m1, 1.0},
        {LLAMA "\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.9,\"attention_factor\":null}}", m7 / m9,
         1.0},
        {LLAMA "\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.9,\"attention_factor\":2.5}}", 2.5, 1.0},
        {LLAMA "\"factor\":null,\"original_max_position_embeddings\":32}}", m(8.0, 1.0), 1.0},
        {DEEPSEEK "\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0}}", 1.0, m(40.0, 1.0) * m(40.0, 1.0)},
        {DEEPSEEK "\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.9}}", m7 / m9, m9 * m9},
        {DEEPSEEK "\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.9,\"attention_factor\":2}}", 2.0,
         m9 * m9},
        {DEEPSEEK "\"factor\":4,\"mscale_all_dim\":0.9,\"attention_factor\":2}}", 2.0, m9 * m9},
        {DEEPSEEK "\"factor\":4,\"mscale\":0.7}}", m1, 1.0},
        {DEEPSEEK "\"factor\":0.5,\"mscale\":0.7,\"mscale_all_dim\":0.9}}", 1.0, 1.0},
        {MEGATRON ",\"rotary_scaling_factor\":40}", m(40.0, 1.0), 1.0},
        {MEGATRON ",\"rotary_scaling_factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.9}", m7 / m9, m9 * m9},
        /* unlike Hugging Face's, each counts without the other */
        {MEGATRON ",\"rotary_scaling_factor\":4,\"mscale\":0.7}", m7, 1.0},
        {MEGATRON ",\"rotary_scaling_factor\":4,\"mscale\":0,\"mscale_all_dim\":0.9}", 1.0 / m9, m9 * m9},
        /* scores ask for no yarn */
        {MEGATRON ",\"rope_type\":\"rope\",\"rotary_scaling_factor\":40,\"mscale_all_dim\":0.9}", 1.0,
         m(40.0, 0.9) * m(40.0, 0.9)},
        {MEGATRON ",\"rope_type\":\"rope\",\"rotary_scaling_factor\":4}", 1.0, 1.0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_model_config c;
        json_t *root = json_loads(rows[i].config, 0, NULL);
        cr_assert_not_null(root, "%s", rows[i].config);
        cr_assert_eq(assay_config_from_json(root, "config.json", &c), ASSAY_OK, "%s", assay_error_message());
        json_decref(root);
        const double scores = rows[i].scores / sqrt(10.0);
        cr_expect(fabs(ref_yarn_attention_factor(&c) - rows[i].cosine) <= 4e-16 * rows[i].cosine,
                  "%s: cos and sin times %.17g, expected %.17g", rows[i].config,
                  ref_yarn_attention_factor(&c), rows[i].cosine);
        cr_expect(fabs(ref_yarn_softmax_scale(&c) - scores) <= 6e-16 * scores,
                  "%s: scores times %.17g, expected %.17g", rows[i].config, ref_yarn_softmax_scale(&c),
                  scores);
    }
    cr_expect(fabs(m(40.0, 1.0) * m(40.0, 1.0) - 1.87385) < 5e-6, "DeepSeek-V3's own");
}
