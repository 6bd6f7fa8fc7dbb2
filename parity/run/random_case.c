/* A case drawn from a number: a model, training options, data and layouts that nobody thought of together.  The number says all of it, in
 * this version; what the configuration, the options or a layout refuse is drawn again. */
#include "core/base/philox.h"
#include "core/run/inputs.h"
#include "parity/run/cases.h"
#include "parity/run/run.h"
#include <stdlib.h>
#include <string.h>

enum { ATTEMPTS = 200, LAYOUTS = 4, LAYOUT_TRIES = 100, MAX_RANKS = 12, MAX_LAYERS = 5 };

typedef struct draws {
    uint64_t number, attempt, used;
    bool failed; /* an object that could not be made */
} draws;

/* --- numbers and words ---------------------------------------------------------------------------------------------- */

static int64_t below(draws *d, int64_t n)
{
    return (int64_t)assay_philox_below(d->number, d->attempt, d->used++, (uint64_t)n);
}

static int64_t between(draws *d, int64_t least, int64_t most)
{
    return least + below(d, most - least + 1);
}

static bool chance(draws *d, int percent)
{
    return below(d, 100) < percent;
}

#define ONE_OF(d, ...)                                                                                       \
    ((const int64_t[]){                                                                                      \
        __VA_ARGS__}[below(d, (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))])
#define WORD_OF(d, ...)                                                                                      \
    ((const char *const[]){                                                                                  \
        __VA_ARGS__}[below(d, (int64_t)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))])
#define REAL_OF(d, ...)                                                                                      \
    ((const double[]){                                                                                       \
        __VA_ARGS__}[below(d, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))])

static void put(draws *d, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        d->failed = true;
}

static void put_int(draws *d, json_t *object, const char *key, int64_t value)
{
    put(d, object, key, json_integer(value));
}

static void put_real(draws *d, json_t *object, const char *key, double value)
{
    put(d, object, key, json_real(value));
}

static void put_word(draws *d, json_t *object, const char *key, const char *value)
{
    put(d, object, key, json_string(value));
}

static void put_flag(draws *d, json_t *object, const char *key, int percent)
{
    if (chance(d, percent))
        put(d, object, key, json_true());
}

static int64_t int_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* --- the model ------------------------------------------------------------------------------------------------------ */

/* Any width, or one that kernels take eight at a time. */
static int64_t width(draws *d, bool wide)
{
    return wide ? 8 * between(d, 1, 17) : chance(d, 50) ? 2 * between(d, 2, 20) : between(d, 3, 40);
}

/* Short lengths, so that the positions of a case meet frequencies of every kind. */
static void draw_yarn(draws *d, bool mla, json_t *model)
{
    put_word(d, model, "rope_type", "yarn");
    put_real(d, model, "rope_factor", REAL_OF(d, 0.5, 2.0, 4.0));
    put_int(d, model, "rope_original_max_position_embeddings", ONE_OF(d, 4, 8, 16, 64));
    put_real(d, model, "rotary_base", REAL_OF(d, 20.0, 500.0, 10000.0));
    put_real(d, model, "rope_beta_fast", REAL_OF(d, 1.0, 4.0, 32.0));
    put_real(d, model, "rope_beta_slow", REAL_OF(d, 0.25, 0.5, 1.0));
    put(d, model, "rope_truncate", json_boolean(chance(d, 70)));
    if (chance(d, 30))
        put_real(d, model, "rope_attention_factor", 1.25);
    else
        put_real(d, model, "rope_mscale", REAL_OF(d, 0.7, 1.0));
    if (mla || chance(d, 40))
        put_real(d, model, "rope_mscale_all_dim", REAL_OF(d, 0.9, 1.0));
}

static void draw_mla(draws *d, bool wide, json_t *model)
{
    const int64_t rotated = wide ? ONE_OF(d, 16, 32, 64) : 2 * between(d, 1, 5);
    const int64_t plain = wide ? 8 * between(d, 2, 16) : between(d, 1, 20);
    put(d, model, "multi_latent_attention", json_true());
    put_int(d, model, "num_attention_heads", ONE_OF(d, 1, 2, 2, 3, 4, 6));
    if (chance(d, 60))
        put_int(d, model, "q_lora_rank", width(d, wide));
    else
        put(d, model, "q_lora_rank", json_null());
    put_int(d, model, "kv_lora_rank", width(d, wide));
    put_int(d, model, "qk_head_dim", plain);
    put_int(d, model, "qk_pos_emb_head_dim", rotated);
    put_int(d, model, "v_head_dim", wide ? 8 * between(d, 2, 16) : between(d, 1, 24));
    if (chance(d, 50))
        draw_yarn(d, true, model);
}

static void draw_attention(draws *d, bool wide, json_t *model)
{
    if (chance(d, 20)) {
        draw_mla(d, wide, model);
        return;
    }
    const int64_t layers = int_of(model, "num_layers"), groups = ONE_OF(d, 1, 1, 2, 2, 3, 4),
                  heads = groups * (wide ? between(d, 1, 2) : between(d, 1, 4));
    put_int(d, model, "num_attention_heads", heads);
    put_int(d, model, "num_query_groups", groups);
    put_int(d, model, "kv_channels",
            wide ? ONE_OF(d, 32, 64, 64, 96, 128) : ONE_OF(d, 2, 4, 6, 8, 8, 10, 16, 18, 32));
    put_flag(d, model, "qk_layernorm", 50);
    if (json_is_true(json_object_get(model, "qk_layernorm")))
        put_flag(d, model, "qk_layernorm_full_width", 25);
    put_flag(d, model, "add_qkv_bias", 40);
    put_flag(d, model, "add_proj_bias", 25);
    if (chance(d, 15))
        put_real(d, model, "clip_qkv", REAL_OF(d, 0.3, 0.7, 2.0));
    if (chance(d, 15)) {
        put_word(d, model, "rope_type", "llama3");
        put_real(d, model, "rope_factor", 8.0);
        put_real(d, model, "rope_low_freq_factor", 1.0);
        put_real(d, model, "rope_high_freq_factor", 4.0);
        put_int(d, model, "rope_original_max_position_embeddings", 16);
    } else if (chance(d, 15)) {
        put_word(d, model, "rope_type", "linear");
        put_real(d, model, "rope_factor", 2.0);
    } else if (chance(d, 15)) {
        draw_yarn(d, false, model);
    }
    if (chance(d, 35)) {
        json_t *window = json_array();
        for (int64_t l = 0; l < layers; l++)
            json_array_append_new(
                window, json_integer(wide ? ONE_OF(d, 0, 3, 17, 40, 64) : ONE_OF(d, 0, 1, 2, 3, 5, 9)));
        put(d, model, "window", window);
    }
}

static void draw_router_losses(draws *d, json_t *training)
{
    static const char *const types[] = {"aux_loss", "seq_aux_loss", "global_aux_loss"};
    json_t *words = json_array(), *weights = json_array();
    const int64_t chosen = between(d, 0, 7);
    for (int k = 0; k < 3; k++)
        if ((chosen >> k & 1) != 0) {
            json_array_append_new(words, json_string(types[k]));
            json_array_append_new(weights, json_real(REAL_OF(d, 0.01, 0.02, 0.05)));
        }
    if (json_array_size(words) > 0) {
        put(d, training, "moe_router_load_balancing_type", json_incref(words));
        put(d, training, "moe_aux_loss_coeff", json_incref(weights));
    }
    json_decref(words);
    json_decref(weights);
    if (chance(d, 40))
        put_real(d, training, "moe_z_loss_coeff", 0.002);
}

static void draw_experts(draws *d, bool wide, json_t *model, json_t *training)
{
    const int64_t layers = int_of(model, "num_layers"), experts = ONE_OF(d, 3, 4, 4, 6, 8, 8, 12, 16),
                  topk = between(d, 1, experts < 4 ? experts : 4), dense = below(d, layers);
    const bool sigmoid = chance(d, 40);
    json_t *moe = json_array();
    for (int64_t l = 0; l < layers; l++)
        json_array_append_new(moe, json_boolean(l == dense || chance(d, 60)));
    put(d, model, "layer_is_moe", moe);
    put_int(d, model, "num_moe_experts", experts);
    put_int(d, model, "moe_router_topk", topk);
    put_int(d, model, "moe_ffn_hidden_size", wide ? 8 * between(d, 1, 9) : between(d, 1, 24));
    put_word(d, model, "moe_router_score_function", sigmoid ? "sigmoid" : "softmax");
    if (topk == 1 && !sigmoid)
        put(d, model, "moe_router_pre_softmax", json_true());
    put_flag(d, model, "norm_topk_prob", 50);
    if (sigmoid && chance(d, 60)) {
        put(d, model, "moe_router_enable_expert_bias", json_true());
        put_real(d, training, "moe_router_bias_update_rate", REAL_OF(d, 0.001, 0.05));
    }
    const int64_t groups = between(d, 2, experts), most = between(d, 1, groups);
    if (chance(d, 30) && experts % groups == 0 && most <= topk && topk <= most * (experts / groups)) {
        put_int(d, model, "moe_router_num_groups", groups);
        put_int(d, model, "moe_router_group_topk", most);
    }
    if (chance(d, 30))
        put_real(d, model, "moe_router_topk_scaling_factor", 2.5);
    if (chance(d, 35)) {
        put_int(d, model, "moe_shared_expert_intermediate_size", width(d, wide));
        put_flag(d, model, "moe_shared_expert_gate", 40);
        put_flag(d, training, "moe_shared_expert_overlap", 30);
    }
    draw_router_losses(d, training);
}

static void draw_dispatch(draws *d, json_t *training)
{
    if (chance(d, 25)) {
        put_real(d, training, "moe_expert_capacity_factor", REAL_OF(d, 0.5, 1.0, 1.25));
        put_flag(d, training, "moe_pad_expert_input_to_capacity", 40);
        if (chance(d, 30))
            put_word(d, training, "moe_token_drop_policy", "position");
    }
    if (chance(d, 15))
        put_real(d, training, "moe_input_jitter_eps", 0.1);
    if (chance(d, 20))
        put_word(d, training, "moe_token_dispatcher_type", "allgather");
    if (chance(d, 15))
        put_word(d, training, "moe_router_dtype", "model");
    if (chance(d, 15))
        put_word(d, training, "moe_router_padding_for_quantization", WORD_OF(d, "fp8", "mxfp8"));
    put_flag(d, training, "moe_alltoall_halves", 15);
    put_flag(d, training, "moe_router_force_load_balancing", 8);
}

static void draw_model(draws *d, bool wide, json_t *model, json_t *training)
{
    const int64_t layers = between(d, 1, wide ? 2 : MAX_LAYERS);
    put_word(d, model, "model_type", "megatron");
    put_int(d, model, "num_layers", layers);
    put_int(d, model, "hidden_size", width(d, wide));
    put_int(d, model, "ffn_hidden_size", width(d, wide));
    put_int(d, model, "vocab_size", ONE_OF(d, 61, 67, 128, 151, 257, 259));
    put_int(d, model, "max_position_embeddings", 256);
    put_real(d, model, "layernorm_epsilon", REAL_OF(d, 1e-5, 1e-6));
    put_real(d, model, "init_method_std", REAL_OF(d, 0.05, 0.08, 0.15));
    put_real(d, model, "init_constant_std", REAL_OF(d, 0.0, 0.05, 0.2));
    put_flag(d, model, "tie_word_embeddings", 40);
    put_flag(d, model, "add_mlp_bias", 25);
    draw_attention(d, wide, model);
    if (chance(d, 60)) {
        draw_experts(d, wide, model, training);
        draw_dispatch(d, training);
    }
}

/* --- training and data ---------------------------------------------------------------------------------------------- */

static void draw_recompute(draws *d, bool experts, int64_t layers, json_t *training)
{
    if (chance(d, 50)) {
        put_word(d, training, "recompute_granularity", "full");
        if (chance(d, 50)) {
            put_word(d, training, "recompute_method", WORD_OF(d, "uniform", "block"));
            put_int(d, training, "recompute_num_layers", between(d, 1, layers));
        }
        return;
    }
    put_word(d, training, "recompute_granularity", "selective");
    put_word(d, training, "recompute_modules",
             experts ? WORD_OF(d, "core_attn", "moe_act", "moe", "mlp,layernorm", "core_attn,moe_act")
                     : WORD_OF(d, "core_attn", "layernorm", "mlp", "core_attn,mlp"));
}

static void draw_training(draws *d, const json_t *model, json_t *training)
{
    put_int(d, training, "seed", below(d, 10000));
    put_real(d, training, "lr", 0.002);
    put_real(d, training, "weight_decay", REAL_OF(d, 0.0, 0.1));
    put_real(d, training, "clip_grad", REAL_OF(d, 0.0, 0.1, 1.0));
    if (chance(d, 20))
        draw_recompute(d, int_of(model, "num_moe_experts") > 0, int_of(model, "num_layers"), training);
    if (chance(d, 20))
        put_int(d, training, "loss_subbatch_sequence_length", between(d, 1, 9));
    if (chance(d, 15))
        put(d, training, "gradient_accumulation_fusion", json_false());
    put_flag(d, training, "calculate_per_token_loss", 15);
    if (chance(d, 15)) {
        put_word(d, training, "semantics", "megatron");
    } else {
        put_int(d, training, "dropout_seed", below(d, 100));
        if (chance(d, 15))
            put_real(d, training, "hidden_dropout", 0.15);
        if (chance(d, 10))
            put_real(d, training, "attention_dropout", 0.2);
    }
    put_flag(d, training, "log_num_zeros_in_grad", 30);
    if (chance(d, 25))
        put_int(d, training, "ddp_bucket_size", ONE_OF(d, 100, 500, 3000));
    put_flag(d, training, "overlap_grad_reduce", 25);
    put_flag(d, training, "async_tensor_model_parallel_allreduce", 10);
    if (chance(d, 12))
        put_word(d, training, "freeze",
                 WORD_OF(d, "embedding.*", "decoder.layers.0.*", "*layernorm*", "decoder.layers.0.mlp.*",
                         json_is_true(json_object_get(model, "multi_latent_attention"))
                             ? "*.linear_kv_down_proj.*"
                             : "*.linear_qkv.*"));
}

/* Every boundary between pieces of the vocabulary is a label: a step has enough of them. */
static void draw_data(draws *d, bool wide, const json_t *training, json_t *data)
{
    const int64_t microbatches = wide ? between(d, 1, 2) : between(d, 1, 6),
                  rows = between(d, 1, wide ? 2 : 3), counted = microbatches > 1 ? microbatches - 1 : 1,
                  least = 1 + (32 + counted * rows - 1) / (counted * rows),
                  sequence = wide ? between(d, 33, 131) : between(d, 7, 23);
    put(d, data, "paths", json_array());
    put_int(d, data, "steps", wide ? 2 : ONE_OF(d, 1, 2, 2, 3));
    put_int(d, data, "microbatches", microbatches);
    put_int(d, data, "micro_batch_size", rows);
    put_int(d, data, "seq_length", sequence < least ? least : sequence);
    put_real(d, data, "mask_probability", REAL_OF(d, 0.0, 0.1, 0.3, 0.6, 0.8));
    const bool drops = json_object_get(training, "moe_expert_capacity_factor") != NULL;
    if (chance(d, 25) && !drops) { /* Megatron-LM decides over a rank's tokens: refused with cp */
        put(d, data, "packing", json_true());
        if (chance(d, 40))
            put_int(d, data, "pad_seq_to_mult", 2);
    } else if (microbatches > 1 && chance(d, 10)) {
        put_int(d, data, "masked_microbatch", below(d, microbatches));
    }
}

/* --- layouts -------------------------------------------------------------------------------------------------------- */

static void add_word(char text[ASSAY_LAYOUT_TEXT], const char *word, int64_t n)
{
    const size_t used = strlen(text);
    snprintf(text + used, ASSAY_LAYOUT_TEXT - used, n > 0 ? "%s%s%lld" : "%s%s", used > 0 ? "," : "", word,
             (long long)n);
}

static void draw_layout(draws *d, bool experts, char text[ASSAY_LAYOUT_TEXT])
{
    const int64_t tp = ONE_OF(d, 1, 1, 2, 2, 2, 3, 4), cp = ONE_OF(d, 1, 1, 1, 2, 2, 3),
                  pp = ONE_OF(d, 1, 1, 1, 2, 2, 3), dp = ONE_OF(d, 1, 1, 2, 2, 3, 4);
    text[0] = '\0';
    if (tp > 1) {
        add_word(text, "tp", tp);
        if (experts || chance(d, 70))
            add_word(text, "sp", 0);
    }
    if (cp > 1) {
        add_word(text, "cp", cp);
        if (chance(d, 66))
            add_word(text, WORD_OF(d, "a2a", "p2p"), 0);
    }
    if (pp > 1) {
        add_word(text, "pp", pp);
        if (chance(d, 30))
            add_word(text, "vpp", 2);
        if (chance(d, 10))
            add_word(text, WORD_OF(d, "embed", "loss"), 0);
    }
    if (experts && chance(d, 70))
        add_word(text, "ep", ONE_OF(d, 2, 2, 3, 4));
    if (experts && tp > 1 && chance(d, 25))
        add_word(text, "etp", 2);
    if (dp > 1)
        add_word(text, "dp", dp);
    if (dp * cp > 1 && chance(d, 60))
        add_word(text, "zero", ONE_OF(d, 1, 1, 2, 3));
    if (dp % 2 == 0 && chance(d, 10))
        add_word(text, "hsdp", 2);
    if (text[0] == '\0')
        snprintf(text, ASSAY_LAYOUT_TEXT, "1");
}

static bool takes(const parity_case *c, const char *layout)
{
    assay_parallel_config p;
    assay_grid grid;
    const bool good = assay_layout_parse(layout, &p) == ASSAY_OK && assay_grid_make(&p, &grid) == ASSAY_OK &&
                      grid.world <= MAX_RANKS && parity_case_layout(c, layout) == ASSAY_OK;
    assay_error_clear();
    return good;
}

/* As many as can be found; false: none. */
static bool draw_layouts(draws *d, const parity_case *c, const assay_model_config *config, json_t *out)
{
    for (int i = 0; i < LAYOUT_TRIES && json_array_size(out) < LAYOUTS; i++) {
        char text[ASSAY_LAYOUT_TEXT];
        bool known = false;
        draw_layout(d, config->num_moe_experts > 0, text);
        for (size_t k = 0; k < json_array_size(out); k++)
            known = known || parity_layout_same(json_string_value(json_array_get(out, k)), text);
        if (!known && takes(c, text))
            json_array_append_new(out, json_string(text));
    }
    return json_array_size(out) > 0;
}

/* --- the case ------------------------------------------------------------------------------------------------------- */

static json_t *draw_case(draws *d)
{
    const bool wide = chance(d, 20);
    json_t *model = json_object(), *training = json_object(), *data = json_object();
    char name[64];
    draw_model(d, wide, model, training);
    draw_training(d, model, training);
    draw_data(d, wide, training, data);
    snprintf(name, sizeof name, "random-%llu", (unsigned long long)d->number);
    return json_pack("{s:s, s:s, s:o, s:o, s:[s], s:o, s:[s], s:[s]}", "name", name, "description",
                     "Drawn by assay draw-case.", "model", model, "data", data, "layouts", "1", "training",
                     training, "precision", chance(d, 33) ? "fp32" : "bf16", "variants",
                     chance(d, 25) ? "k0" : "fastest");
}

/* Draws layouts for a case that can be read; false: it cannot, or nothing cuts it. */
static bool complete(draws *d, json_t *drawn, assay_model_config *config)
{
    parity_case c;
    json_t *layouts = json_array();
    bool good = parity_case_read(drawn, "draw-case", &c) == ASSAY_OK;
    if (good) {
        good = parity_case_config(&c, config) == ASSAY_OK && parity_case_weights(&c) == ASSAY_OK &&
               draw_layouts(d, &c, config, layouts);
        parity_case_free(&c);
    }
    assay_error_clear();
    return json_object_set_new(drawn, "layouts", layouts) == 0 && good;
}

assay_status parity_case_random(uint64_t number, json_t **out)
{
    draws d = {.number = number};
    assay_status st = ASSAY_OK;
    assay_model_config *config = malloc(sizeof *config);
    *out = NULL;
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    for (; d.attempt < ATTEMPTS; d.attempt++) {
        d.used = 0;
        json_t *drawn = draw_case(&d);
        ASSAY_CHECK_GOTO(drawn != NULL && !d.failed, ASSAY_OUT_OF_MEMORY, st, done, "a drawn case");
        if (complete(&d, drawn, config)) {
            *out = drawn;
            goto done;
        }
        json_decref(drawn);
    }
    st = ASSAY_ERROR(ASSAY_INTERNAL, "case %llu: nothing that was drawn in %d attempts can be run",
                     (unsigned long long)number, ATTEMPTS);
done:
    free(config);
    return st;
}
