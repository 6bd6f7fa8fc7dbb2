/* Megatron-LM's form of a model folder: words that are read, checked, or refused by name, and names of tensors. */
#include "core/files/tensorwriter.h"
#include "core/model/spec.h"
#include "core/run/inputs.h"
#include "tests/support/core_files.h"

TestSuite(config_megatron);

static const char base[] =
    "{\"model_type\":\"megatron\",\"num_layers\":4,\"hidden_size\":8,\"ffn_hidden_size\":12,"
    "\"num_attention_heads\":2,\"vocab_size\":16,\"normalization\":\"RMSNorm\",\"gated_linear_unit\":true,"
    "\"activation_func\":\"silu\",\"position_embedding_type\":\"rope\",\"hidden_dropout\":0.0,"
    "\"attention_dropout\":0.0,\"add_bias_linear\":false,\"untie_embeddings_and_output_weights\":true}";

/* The base text with members changed; null removes one. */
static json_t *edited(const char *change)
{
    json_t *root = json_loads(base, 0, NULL), *members = json_loads(change, 0, NULL), *value;
    const char *key;
    cr_assert(root != NULL && members != NULL, "%s", change);
    json_object_update(root, members);
    json_object_foreach(members, key, value) if (json_is_null(value)) json_object_del(root, key);
    json_decref(members);
    return root;
}

static void read_into(const char *change, assay_model_config *c)
{
    json_t *root = edited(change);
    TEST_OK(assay_config_from_json(root, "config.json", c));
    json_decref(root);
}

#define MOE "\"num_moe_experts\":4,\"moe_router_topk\":2"

Test(config_megatron, words_mean_what_megatron_means)
{
    assay_model_config *c = malloc(sizeof *c);
    assay_train_options o;
    read_into("{}", c);
    cr_expect(!c->tie_word_embeddings && !c->add_qkv_bias && c->training.given);
    cr_expect_not(c->training.calculate_per_token_loss, "Megatron-LM's default");
    read_into("{\"untie_embeddings_and_output_weights\":false,\"add_bias_linear\":true}", c);
    cr_expect(c->tie_word_embeddings && c->add_qkv_bias && c->add_proj_bias && c->add_mlp_bias);
    read_into("{\"add_qkv_bias\":true}", c);
    cr_expect(c->add_qkv_bias && !c->add_proj_bias && !c->add_mlp_bias);
    read_into("{" MOE ",\"moe_layer_freq\":3,\"moe_router_topk_scaling_factor\":0.0}", c);
    cr_expect(c->mlp[0] == ASSAY_MLP_MOE && c->mlp[1] == ASSAY_MLP_DENSE && c->mlp[2] == ASSAY_MLP_DENSE &&
              c->mlp[3] == ASSAY_MLP_MOE);
    cr_expect_eq(c->moe_router_topk_scaling_factor, 1.0, "0 means none");
    read_into("{" MOE ",\"moe_layer_freq\":[0,1,1,0]}", c);
    cr_expect(c->mlp[0] == ASSAY_MLP_DENSE && c->mlp[1] == ASSAY_MLP_MOE && c->mlp[3] == ASSAY_MLP_DENSE);
    read_into("{\"hidden_dropout\":0.5,\"attention_dropout\":0.25}", c);
    assay_train_options_default(&o);
    TEST_OK(assay_inputs_take_config(&o, c));
    cr_expect(o.hidden_dropout == 0.5 && o.attention_dropout == 0.25 && o.residual_dropout == 0.0);
    o.residual_dropout = 0.5;
    memset(o.given, 0xff, sizeof o.given);
    TEST_FAILS(assay_inputs_take_config(&o, c), ASSAY_INVALID_ARGUMENT, "expected one of them to be 0");
    assay_train_options_default(&o);
    o.semantics = ASSAY_SEMANTICS_MEGATRON;
    TEST_FAILS(assay_inputs_take_config(&o, c), ASSAY_UNSUPPORTED, "semantics megatron: dropout");
    read_into(
        "{" MOE ",\"moe_router_load_balancing_type\":[\"none\",\"aux_loss\",\"global_aux_loss\"],"
        "\"moe_aux_loss_coeff\":[0.5,0.25,0.75],\"moe_z_loss_coeff\":0.125,\"calculate_per_token_loss\":true,"
        "\"moe_router_bias_update_rate\":0.5}",
        c);
    assay_train_options_default(&o);
    TEST_OK(assay_inputs_take_config(&o, c));
    cr_expect_eq(assay_balancing_coeff(&o, ASSAY_BALANCING_NONE), 0.0);
    cr_expect_eq(assay_balancing_coeff(&o, ASSAY_BALANCING_AUX), 0.25);
    cr_expect_eq(assay_balancing_coeff(&o, ASSAY_BALANCING_SEQ_AUX), 0.0);
    cr_expect_eq(assay_balancing_coeff(&o, ASSAY_BALANCING_GLOBAL_AUX), 0.75);
    cr_expect(assay_needs_all_rows(&o));
    o.semantics = ASSAY_SEMANTICS_MEGATRON;
    cr_expect_not(assay_needs_all_rows(&o));
    cr_expect_eq(c->training.moe_z_loss_coeff, 0.125);
    cr_expect_eq(c->training.moe_router_bias_update_rate, 0.5);
    cr_expect(c->training.calculate_per_token_loss);
    read_into("{" MOE ",\"moe_expert_capacity_factor\":1.5,\"moe_token_drop_policy\":\"position\","
              "\"moe_pad_expert_input_to_capacity\":true,\"moe_router_padding_for_fp8\":true}",
              c);
    cr_expect_eq(c->training.moe_expert_capacity_factor, 1.5);
    cr_expect(c->training.drops_by_position && c->training.moe_pad_expert_input_to_capacity &&
              c->training.pads_rows_for_fp8);
    read_into("{" MOE ",\"moe_expert_capacity_factor\":-1.0}", c);
    cr_expect_eq(c->training.moe_expert_capacity_factor, 0.0, "a negative factor is none");
    read_into("{" MOE ",\"moe_router_load_balancing_type\":\"none\",\"moe_aux_loss_coeff\":0.5}", c);
    assay_train_options_default(&o);
    TEST_OK(assay_inputs_take_config(&o, c));
    cr_expect_eq(assay_balancing_coeff(&o, ASSAY_BALANCING_AUX), 0.0);
    free(c);
}

/* null is Megatron-LM's None and says so; a file that does not speak of it is F32. */
Test(config_megatron, moe_router_dtype)
{
    static const struct {
        const char *value; /* JSON text */
        assay_router_dtype dtype;
    } rows[] = {{NULL, ASSAY_ROUTER_FP32},
                {"\"fp32\"", ASSAY_ROUTER_FP32},
                {"\"model\"", ASSAY_ROUTER_MODEL},
                {"null", ASSAY_ROUTER_MODEL}};
    assay_model_config *c = malloc(sizeof *c);
    assay_train_options o;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *root = edited("{" MOE "}");
        if (rows[i].value)
            json_object_set_new(root, "moe_router_dtype", json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        TEST_OK(assay_config_from_json(root, "config.json", c));
        json_decref(root);
        assay_train_options_default(&o);
        TEST_OK(assay_inputs_take_config(&o, c));
        cr_expect_eq(o.moe_router_dtype, rows[i].dtype, "%s", rows[i].value ? rows[i].value : "absent");
        TEST_OK(assay_train_option_set(&o, "moe-router-dtype", "fp32"));
        TEST_OK(assay_inputs_take_config(&o, c));
        cr_expect_eq(o.moe_router_dtype, ASSAY_ROUTER_FP32, "an option goes before the file");
    }
    TEST_OK(assay_train_option_set(&o, "moe-router-dtype", "fp64"));
    TEST_FAILS(assay_inputs_take_config(&o, c), ASSAY_UNSUPPORTED, "moe_router_dtype: fp64 is not supported");
    free(c);
}

/* Options that contradict each other are refused for a folder of Hugging Face's, too, whose configuration says nothing of training. */
Test(config_megatron, contradictions_do_not_depend_on_whose_configuration_it_is)
{
    static const char theirs[] =
        "{\"model_type\":\"mixtral\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
        "\"vocab_size\":131,\"intermediate_size\":56,\"num_local_experts\":4}";
    static const struct {
        const char *option, *value, *semantics, *words;
    } rows[] = {
        {"moe-pad-expert-input-to-capacity", "true", "default", "without moe_expert_capacity_factor"},
        {"moe-router-force-load-balancing", "true", "megatron", "semantics megatron: moe_router_force"},
        {"moe-input-jitter-eps", "0.1", "megatron", "semantics megatron: moe_input_jitter_eps"},
    };
    assay_model_config *c = malloc(sizeof *c);
    for (size_t i = 0; i < 2 * (sizeof rows / sizeof *rows); i++) {
        assay_train_options o;
        json_t *root = i % 2 == 0 ? json_loads(theirs, 0, NULL) : edited("{" MOE "}");
        TEST_OK(assay_config_from_json(root, "config.json", c));
        cr_expect_eq(c->training.given, i % 2 == 1);
        json_decref(root);
        assay_train_options_default(&o);
        TEST_OK(assay_train_option_set(&o, rows[i / 2].option, rows[i / 2].value));
        TEST_OK(assay_train_option_set(&o, "semantics", rows[i / 2].semantics));
        cr_expect_neq(assay_inputs_take_config(&o, c), ASSAY_OK, "%s, %s", rows[i / 2].option,
                      i % 2 == 0 ? "Hugging Face" : "Megatron-LM");
        cr_expect(strstr(assay_error_message(), rows[i / 2].words) != NULL, "%s", assay_error_message());
    }
    free(c);
}

Test(config_megatron, an_option_goes_before_the_file)
{
    assay_model_config *c = malloc(sizeof *c);
    assay_train_options o;
    read_into("{" MOE ",\"moe_aux_loss_coeff\":0.25,\"moe_z_loss_coeff\":0.125}", c);
    assay_train_options_default(&o);
    TEST_OK(assay_train_option_set(&o, "moe-aux-loss-coeff", "0"));
    TEST_OK(assay_inputs_take_config(&o, c));
    cr_expect_eq(assay_balancing_coeff(&o, ASSAY_BALANCING_AUX), 0.0, "given, though it is the default");
    cr_expect_eq(o.moe_z_loss_coeff, 0.125);
    cr_expect_not(o.calculate_per_token_loss);
    /* coefficients and types are one thing in two lists */
    TEST_OK(assay_train_option_set(&o, "moe-aux-loss-coeff", "0.5,0.25"));
    TEST_FAILS(assay_inputs_take_config(&o, c), ASSAY_MISMATCH, "expected 1 coefficients");
    TEST_OK(assay_train_option_set(&o, "moe-router-load-balancing-type", "seq_aux_loss,none"));
    TEST_OK(assay_inputs_take_config(&o, c));
    cr_expect_eq(assay_balancing_coeff(&o, ASSAY_BALANCING_SEQ_AUX), 0.5);
    TEST_OK(assay_train_option_set(&o, "moe-router-load-balancing-type", "seq_aux_loss,seq_aux_loss"));
    TEST_FAILS(assay_inputs_take_config(&o, c), ASSAY_INVALID_ARGUMENT, "seq_aux_loss twice");
    TEST_FAILS(assay_train_option_set(&o, "moe-router-load-balancing-type", "sinkhorn"),
               ASSAY_INVALID_ARGUMENT, "expected one of none, aux_loss, seq_aux_loss, global_aux_loss");
    free(c);
}

Test(config_megatron, what_is_not_there_is_refused_by_name)
{
    static const struct {
        const char *change;
        assay_status st;
        const char *message;
    } rows[] = {
        {"{\"normalization\":\"LayerNorm\"}", ASSAY_UNSUPPORTED,
         "normalization: a normalization other than RMSNorm is not supported yet"},
        {"{\"normalization\":null}", ASSAY_FORMAT, "normalization: missing; Megatron-LM's default"},
        {"{\"hidden_dropout\":null}", ASSAY_FORMAT, "hidden_dropout: missing"},
        {"{\"attention_dropout\":null}", ASSAY_FORMAT, "attention_dropout: missing"},
        {"{\"attention_dropout\":1.0}", ASSAY_LIMIT, "attention_dropout: expected 0 or more and less than 1"},
        {"{\"hidden_dropout\":\"0.1\"}", ASSAY_FORMAT, "hidden_dropout: expected a number"},
        {"{\"add_bias_linear\":null}", ASSAY_FORMAT, "add_bias_linear: missing"},
        {"{\"untie_embeddings_and_output_weights\":null}", ASSAY_FORMAT,
         "untie_embeddings_and_output_weights: missing"},
        {"{\"tie_word_embeddings\":true}", ASSAY_MISMATCH, "contradict each other"},
        {"{\"add_bias_linear\":true," MOE "}", ASSAY_UNSUPPORTED, "biases of router and experts"},
        {"{\"multi_latent_attention\":true}", ASSAY_UNSUPPORTED,
         "qk_layernorm: missing: multi-latent attention without its inner norms is not supported yet"},
        {"{\"mtp_num_layers\":1}", ASSAY_UNSUPPORTED, "multi-token prediction is not supported yet"},
        {"{\"moe_router_dtype\":\"fp64\"," MOE "}", ASSAY_UNSUPPORTED,
         "moe_router_dtype: fp64 is not supported yet, expected fp32, or model"},
        {"{\"moe_router_dtype\":\"bf16\"," MOE "}", ASSAY_FORMAT, "expected fp32, model or null, found bf16"},
        {"{\"moe_router_dtype\":true," MOE "}", ASSAY_FORMAT,
         "expected fp32, model or null, found no string"},
        {"{\"moe_expert_capacity_factor\":0," MOE "}", ASSAY_UNSUPPORTED, "experts that take nothing"},
        {"{\"moe_expert_capacity_factor\":\"1\"," MOE "}", ASSAY_FORMAT, "expected a number or null"},
        {"{\"moe_token_drop_policy\":\"prob\"," MOE "}", ASSAY_FORMAT, "expected probs or position"},
        {"{\"moe_pad_expert_input_to_capacity\":true," MOE "}", ASSAY_MISMATCH,
         "moe_pad_expert_input_to_capacity without moe_expert_capacity_factor"},
        {"{" MOE ",\"moe_router_load_balancing_type\":\"sinkhorn\"}", ASSAY_UNSUPPORTED,
         "sinkhorn is not supported yet"},
        {"{" MOE ",\"moe_router_load_balancing_type\":[\"aux_loss\"],\"moe_aux_loss_coeff\":0.1}",
         ASSAY_FORMAT, "expected a list where"},
        {"{" MOE ",\"moe_router_load_balancing_type\":[\"aux_loss\",\"none\"],\"moe_aux_loss_coeff\":[0.1]}",
         ASSAY_MISMATCH, "expected 2 coefficients"},
        {"{" MOE ",\"moe_layer_freq\":0}", ASSAY_FORMAT, "moe_layer_freq: expected a number of at least 1"},
        {"{" MOE ",\"moe_layer_freq\":[0,1,2,1]}", ASSAY_FORMAT, "moe_layer_freq[2]: expected 0 or 1"},
        {"{" MOE ",\"moe_layer_freq\":[0,1]}", ASSAY_MISMATCH, "moe_layer_freq: expected 4 entries"},
        {"{\"tensor_model_parallel_size\":2}", ASSAY_UNSUPPORTED, "say --layout"},
        {"{\"hidden_sise\":8}", ASSAY_FORMAT, "hidden_sise: unknown member"},
    };
    assay_model_config *c = malloc(sizeof *c);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *root = edited(rows[i].change);
        TEST_FAILS(assay_config_from_json(root, "config.json", c), rows[i].st, rows[i].message);
        json_decref(root);
    }
    free(c);
}

/* --- names of tensors ----------------------------------------------------------------------------------------- */

static void expect_parts(const char *folder, const char *parameter, int n, const char *first, int ndim)
{
    assay_model_config *c = malloc(sizeof *c);
    assay_model_spec *spec = NULL;
    TEST_OK(assay_config_load(folder, c));
    TEST_OK(assay_spec_build(c, &spec));
    const assay_param_spec *p = assay_spec_find(spec, parameter);
    cr_assert_not_null(p);
    cr_expect_eq(p->n_parts, n);
    cr_expect_str_eq(p->parts[0].name, first);
    cr_expect_eq(p->parts[0].ndim, ndim);
    assay_spec_destroy(spec);
    free(c);
}

/* The form of a folder is found in the names and dimensions of its tensors. */
Test(config_megatron, experts_and_norms_by_their_names_on_disk)
{
    static const struct {
        const char *tensor;
        int64_t shape[3];
        int ndim;
        const char *parameter;
        int n;
        const char *part;
        int part_ndim;
    } rows[] = {
        {"decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight",
         {24, 8},
         2,
         "decoder.layers.0.mlp.experts.linear_fc1.weight",
         4,
         "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight",
         2},
        {"decoder.layers.0.mlp.experts.linear_fc1.weight",
         {4, 24, 8},
         3,
         "decoder.layers.0.mlp.experts.linear_fc2.weight",
         1,
         "decoder.layers.0.mlp.experts.linear_fc2.weight",
         3},
        {"decoder.layers.0.mlp.experts.linear_fc1.weight",
         {96, 8},
         2,
         "decoder.layers.0.mlp.experts.linear_fc1.weight",
         1,
         "decoder.layers.0.mlp.experts.linear_fc1.weight",
         2},
        {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
         {8},
         1,
         "decoder.layers.1.input_layernorm.weight",
         1,
         "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight",
         1},
        {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
         {8},
         1,
         "decoder.layers.0.pre_mlp_layernorm.weight",
         1,
         "decoder.layers.0.pre_mlp_layernorm.weight",
         1},
        {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
         {8},
         1,
         "decoder.layers.1.pre_mlp_layernorm.weight",
         1,
         "decoder.layers.1.mlp.linear_fc1.layer_norm_weight",
         1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char folder[TEST_PATH], path[TEST_PATH];
        assay_tensorwriter *w = NULL;
        static const float zeros[4 * 24 * 8] = {0};
        test_folder_make(folder);
        test_path(path, folder, "config.json");
        json_t *root = edited("{" MOE ",\"moe_layer_freq\":2}");
        TEST_OK(assay_json_save(root, path));
        json_decref(root);
        test_path(path, folder, "model.safetensors");
        TEST_OK(assay_tensorwriter_create(&w, path));
        TEST_OK(
            assay_tensorwriter_add_copy(w, rows[i].tensor, ASSAY_F32, rows[i].shape, rows[i].ndim, zeros));
        TEST_OK(assay_tensorwriter_finish(w));
        assay_tensorwriter_destroy(w);
        expect_parts(folder, rows[i].parameter, rows[i].n, rows[i].part, rows[i].part_ndim);
        test_folder_remove(folder);
    }
}
