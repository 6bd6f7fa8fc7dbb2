/* What is written: the type of each tensor, and the configuration that says it. */
#include "parity/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BLOCK = 128, NAME_MOST = 1000 };

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Weights of layers called linear_... in the table, experts among them; embedding, head, routers and the gate of a shared expert stay,
 * as they do in DeepSeek-V3's folders and in transformers' (modules_to_not_convert). */
static bool is_linear_parameter(const assay_param_spec *p)
{
    const char *module = strrchr(p->name, '.');
    while (module != NULL && module > p->name && module[-1] != '.')
        module--;
    return p->layer >= 0 && ends_with(p->name, ".weight") && module != NULL &&
           strncmp(module, "linear_", strlen("linear_")) == 0;
}

static assay_status list_linear(parity_model *m)
{
    int64_t parts = 0;
    for (int64_t i = 0; i < m->spec->n_params; i++)
        parts += m->spec->params[i].n_parts;
    m->linear = calloc((size_t)parts + 1, sizeof *m->linear);
    ASSAY_CHECK(m->linear != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld names", m->dir, (long long)parts);
    for (int64_t i = 0; i < m->spec->n_params; i++)
        for (int k = 0; k < m->spec->params[i].n_parts && is_linear_parameter(&m->spec->params[i]); k++)
            m->linear[m->n_linear++] = m->spec->params[i].parts[k].name;
    qsort(m->linear, (size_t)m->n_linear, sizeof *m->linear, compare_names);
    return ASSAY_OK;
}

assay_status parity_model_linear(parity_model *m)
{
    return m->spec != NULL && m->spec->config.arch != ASSAY_ARCH_MEGATRON ? list_linear(m) : ASSAY_OK;
}

/* Of a class that is not read: what most of them call a linear layer. */
static bool is_linear(const parity_model *m, const assay_tensor_info *t)
{
    if (m->linear == NULL)
        return t->ndim == 2 && ends_with(t->name, "_proj.weight");
    return t->ndim == 2 &&
           bsearch(&t->name, m->linear, (size_t)m->n_linear, sizeof *m->linear, compare_names) != NULL;
}

/* What transformers keeps in single precision whichever half it is asked for (_keep_in_fp32_modules_strict, 5.24: a part of the name), or for
 * fp16 alone (_keep_in_fp32_modules): it loads and saves it so, and a router in bfloat16 chooses other experts.  Megatron-LM keeps its expert
 * bias (_maintain_float32_expert_bias). */
typedef struct kept_single {
    const char *model_type, *parts[3];
    bool fp16_alone;
} kept_single;
static const kept_single kept[] = {
    {"deepseek_v2", {"gate.weight"}, false},
    {"deepseek_v3", {"e_score_correction_bias", "gate.weight"}, false},
    {"kimi_k2", {"e_score_correction_bias", "gate.weight"}, false},
    {"megatron", {"mlp.router.expert_bias"}, false},
    /* not read by assay, but written */
    {"afmoe", {"expert_bias"}, false},
    {"deepseek_v32", {"e_score_correction_bias", "gate.weight"}, false},
    {"dots1", {"e_score_correction_bias", "gate.weight"}, false},
    {"ernie4_5_moe", {"e_score_correction_bias", "gate.weight"}, false},
    {"exaone_moe", {"e_score_correction_bias", "gate.weight"}, false},
    {"glm4_moe", {"e_score_correction_bias", "gate.weight"}, false},
    {"glm4_moe_lite", {"e_score_correction_bias", "gate.weight"}, false},
    {"glm_moe_dsa", {"e_score_correction_bias", "gate.weight"}, false},
    {"gpt_oss", {"norm"}, true},
    {"hy_v3", {"e_score_correction_bias", "gate.weight"}, false},
    {"kimi_linear", {"e_score_correction_bias", "gate.weight", "dt_bias"}, false},
    {"mimo_v2_flash", {"e_score_correction_bias", "mlp.gate.weight"}, false},
    {"nemotron_h", {"e_score_correction_bias", "gate.weight"}, false},
    {"solar_open", {"e_score_correction_bias", "gate.weight"}, false},
    {"t5", {"wo"}, true},
};

static bool is_kept_single(const parity_model *m, assay_dtype dtype, const char *name)
{
    const char *type = json_string_value(json_object_get(m->config, "model_type"));
    for (size_t i = 0; type != NULL && i < sizeof kept / sizeof *kept; i++)
        for (int k = 0; k < 3 && kept[i].parts[k] != NULL; k++)
            if (strcmp(type, kept[i].model_type) == 0 && strstr(name, kept[i].parts[k]) != NULL)
                return dtype == ASSAY_F16 || (dtype == ASSAY_BF16 && !kept[i].fp16_alone);
    return false;
}

parity_made parity_made_of(const parity_weights_options *o, const parity_model *m, const assay_tensor_info *t)
{
    parity_made made = {.name = t->name, .dtype = o->dtype, .ndim = t->ndim, .count = t->count};
    memcpy(made.shape, t->shape, sizeof made.shape);
    if (o->dtype == ASSAY_DTYPE_COUNT || (o->dtype == ASSAY_F8_E4M3 && !is_linear(m, t)))
        made.dtype = t->dtype == ASSAY_F8_E4M3 ? ASSAY_BF16 : t->dtype;
    else if (is_kept_single(m, o->dtype, t->name))
        made.dtype = ASSAY_F32;
    for (int i = 0; i < 2; i++)
        made.block[i] = o->block[i] > 0 ? o->block[i] : DEFAULT_BLOCK;
    made.scale = strcmp(o->scale_fmt, "ue8m0") == 0 ? ASSAY_F8_E8M0 : ASSAY_F32;
    return made;
}

ref_fp8_blocks parity_made_blocks(const parity_made *t)
{
    return (ref_fp8_blocks){.height = t->shape[0],
                            .width = t->shape[1],
                            .rows = t->block[0],
                            .columns = t->block[1],
                            .power_of_two = t->scale == ASSAY_F8_E8M0};
}

void parity_scale_name(const parity_made *t, char out[PARITY_TENSOR_NAME])
{
    snprintf(out, PARITY_TENSOR_NAME, "%.1024s_scale_inv", t->name);
}

/* --- configuration ------------------------------------------------------------------------------------------- */
static const char *torch_word(assay_dtype dtype)
{
    return dtype == ASSAY_BF16  ? "bfloat16"
           : dtype == ASSAY_F16 ? "float16"
           : dtype == ASSAY_F64 ? "float64"
                                : "float32";
}

/* The type of most elements that are not fp8, in which the model computes. */
static assay_dtype common_type(const parity_made *tensors, int64_t n)
{
    int64_t most = -1;
    assay_dtype type = ASSAY_F32;
    for (int d = 0; d < ASSAY_DTYPE_COUNT; d++) {
        int64_t elements = 0;
        for (int64_t i = 0; i < n && d != ASSAY_F8_E4M3; i++)
            elements += tensors[i].dtype == (assay_dtype)d ? tensors[i].count : 0;
        if (elements > most) {
            most = elements;
            type = (assay_dtype)d;
        }
    }
    return type;
}

/* Modules with a matrix that is not fp8, and the head, which is in no file where it is tied. */
static json_t *kept_modules(const parity_made *tensors, int64_t n)
{
    json_t *out = json_pack("[s]", "lm_head");
    for (int64_t i = 0; i < n; i++) {
        const parity_made *t = &tensors[i];
        const size_t length = strlen(t->name), suffix = strlen(".weight");
        if (t->ndim == 2 && t->dtype != ASSAY_F8_E4M3 && ends_with(t->name, ".weight") &&
            !ends_with(t->name, "embed_tokens.weight") && strcmp(t->name, "lm_head.weight") != 0)
            json_array_append_new(out, json_stringn(t->name, length - suffix));
    }
    return out;
}

/* NULL in *out: nothing is fp8. */
static assay_status quantization(const parity_model *m, const parity_made *tensors, int64_t n, json_t **out)
{
    const parity_made *first = NULL;
    for (int64_t i = 0; i < n && first == NULL; i++)
        first = tensors[i].dtype == ASSAY_F8_E4M3 ? &tensors[i] : NULL;
    *out = NULL;
    if (first == NULL)
        return ASSAY_OK;
    for (int64_t i = 0; i < n; i++)
        ASSAY_CHECK(strlen(tensors[i].name) < NAME_MOST, ASSAY_LIMIT, "%.60s...: the name is too long",
                    tensors[i].name);
    *out = json_pack("{s:s,s:s,s:s,s:[I,I],s:s*,s:o}", "quant_method", "fp8", "fmt", "e4m3",
                     "activation_scheme", "dynamic", "weight_block_size", (json_int_t)first->block[0],
                     (json_int_t)first->block[1], "scale_fmt", first->scale == ASSAY_F8_E8M0 ? "ue8m0" : NULL,
                     "modules_to_not_convert", kept_modules(tensors, n));
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "%s: configuration", m->dir);
    return ASSAY_OK;
}

assay_status parity_weights_options_fp8(const parity_weights_options *o)
{
    ASSAY_CHECK(o->dtype == ASSAY_F8_E4M3 || (o->block[0] == 0 && o->scale_fmt[0] == '\0'),
                ASSAY_INVALID_ARGUMENT, "--weight-block-size and --scale-fmt: of --dtype fp8 alone");
    return ASSAY_OK;
}

/* Whose config.json has no word for a type. */
static bool is_megatron(const parity_model *m)
{
    const char *type = json_string_value(json_object_get(m->config, "model_type"));
    return type != NULL && strcmp(type, assay_arch_name(ASSAY_ARCH_MEGATRON)) == 0;
}

assay_status parity_weights_config(const parity_weights_options *o, const parity_model *m,
                                   const parity_made *tensors, int64_t n, json_t **out)
{
    json_t *scales;
    ASSAY_CHECK(!is_megatron(m) || o->dtype != ASSAY_F8_E4M3, ASSAY_UNSUPPORTED,
                "--dtype fp8: %s is in Megatron-LM's form, which has no words for scales", m->dir);
    ASSAY_TRY(quantization(m, tensors, n, &scales));
    ASSAY_CHECK(scales != NULL || o->dtype != ASSAY_F8_E4M3, ASSAY_NOT_FOUND,
                "--dtype fp8: %s has no matrix of a linear layer", m->dir);
    *out = json_deep_copy(m->config);
    (void)json_object_del(*out, "quantization_config");
    (void)json_object_del(*out, "torch_dtype");
    const bool ok =
        (is_megatron(m) ||
         json_object_set_new(*out, "dtype", json_string(torch_word(common_type(tensors, n)))) == 0) &&
        (scales == NULL || json_object_set(*out, "quantization_config", scales) == 0);
    json_decref(scales);
    ASSAY_CHECK(ok, ASSAY_OUT_OF_MEMORY, "%s: configuration", m->dir);
    return ASSAY_OK;
}
