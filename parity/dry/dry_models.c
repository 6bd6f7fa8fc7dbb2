/* Dry run: public configurations by name.  Numbers: the config.json of the model's public repository on the Hugging Face hub;
 * members that say nothing about shapes (token numbers, generation, dtype) are left out. */
#include "parity/dry/dry.h"

#include <strings.h>

static const struct {
    const char *name;
    double billions; /* published */
    const char *config;
} models[] = {
    /* meta-llama/Llama-3.1-405B */
    {"llama-3.1-405b", 405.9,
     "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":16384,"
     "\"intermediate_size\":53248,\"num_hidden_layers\":126,\"num_attention_heads\":128,"
     "\"num_key_value_heads\":8,\"vocab_size\":128256,\"max_position_embeddings\":131072,"
     "\"rms_norm_eps\":1e-5,\"initializer_range\":0.02,\"rope_theta\":500000.0,\"hidden_act\":\"silu\","
     "\"attention_bias\":false,\"mlp_bias\":false,\"tie_word_embeddings\":false,\"rope_scaling\":{"
     "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
     "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}}"},
    /* Qwen/Qwen3-235B-A22B */
    {"qwen3-235b-a22b", 235.1,
     "{\"model_type\":\"qwen3_moe\",\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_size\":4096,"
     "\"intermediate_size\":12288,\"num_hidden_layers\":94,\"num_attention_heads\":64,"
     "\"num_key_value_heads\":4,\"head_dim\":128,\"vocab_size\":151936,\"max_position_embeddings\":40960,"
     "\"rms_norm_eps\":1e-6,\"initializer_range\":0.02,\"rope_theta\":1000000.0,\"hidden_act\":\"silu\","
     "\"attention_bias\":false,\"tie_word_embeddings\":false,\"use_sliding_window\":false,"
     "\"num_experts\":128,\"num_experts_per_tok\":8,\"moe_intermediate_size\":1536,"
     "\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[]}"},
    /* deepseek-ai/DeepSeek-V3 without what says nothing about shapes and is not computed: the FP8
     * quantization of the stored weights, num_nextn_predict_layers (a 62nd layer that predicts a second token; the published
     * 671.0 billion are without it) */
    {"deepseek-v3", 671.0,
     "{\"model_type\":\"deepseek_v3\",\"architectures\":[\"DeepseekV3ForCausalLM\"],\"hidden_size\":7168,"
     "\"intermediate_size\":18432,\"num_hidden_layers\":61,\"num_attention_heads\":128,"
     "\"num_key_value_heads\":128,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,"
     "\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"vocab_size\":129280,\"max_position_embeddings\":163840,"
     "\"rms_norm_eps\":1e-6,\"initializer_range\":0.02,\"rope_theta\":10000,\"hidden_act\":\"silu\","
     "\"attention_bias\":false,\"attention_dropout\":0.0,\"tie_word_embeddings\":false,"
     "\"first_k_dense_replace\":3,\"moe_layer_freq\":1,\"n_routed_experts\":256,\"n_shared_experts\":1,"
     "\"num_experts_per_tok\":8,\"moe_intermediate_size\":2048,\"n_group\":8,\"topk_group\":4,"
     "\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\","
     "\"topk_method\":\"noaux_tc\",\"aux_loss_alpha\":0.001,\"seq_aux\":true,\"ep_size\":1,"
     "\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
     "\"original_max_position_embeddings\":4096,\"type\":\"yarn\"}}"},
};

enum { N_MODELS = sizeof models / sizeof *models };

int dry_model_count(void)
{
    return N_MODELS;
}

const char *dry_model_at(int i, double *billions)
{
    *billions = models[i].billions;
    return models[i].name;
}

void dry_model_names(char *out, size_t capacity)
{
    size_t used = 0;
    double ignored;
    out[0] = '\0';
    for (int i = 0; i < dry_model_count() && used < capacity; i++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%s", i > 0 ? ", " : "",
                                 dry_model_at(i, &ignored));
}

assay_status dry_model_load(const char *model, assay_model_config *out)
{
    for (int i = 0; i < N_MODELS; i++) {
        json_t *root = NULL;
        if (strcasecmp(model, models[i].name) != 0)
            continue;
        ASSAY_TRY(assay_json_parse(&root, models[i].config, strlen(models[i].config), models[i].name));
        const assay_status st = assay_config_from_json(root, models[i].name, out);
        json_decref(root);
        return st;
    }
    const assay_status st = assay_config_load(model, out);
    if (st != ASSAY_NOT_FOUND)
        return st;
    char names[256];
    dry_model_names(names, sizeof names);
    assay_error_clear();
    ASSAY_FAIL(ASSAY_NOT_FOUND, "--model %s: expected a folder that holds config.json, or one of %s", model,
               names);
}
