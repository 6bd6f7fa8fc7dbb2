/* A case drawn from a number: a model, training options, data and layouts that nobody thought of together.  The number says all of it, in
 * this version; what the configuration, the options or a layout refuse is drawn again. */
#include "core/run/inputs.h"
#include "parity/run/cases.h"
#include "parity/run/random_draw.h"
#include "parity/run/run.h"
#include <stdlib.h>
#include <string.h>

enum { ATTEMPTS = 200, LAYOUTS = 4, LAYOUT_TRIES = 100, MAX_RANKS = 12 };

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
    draws_model(d, wide, model, training);
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
