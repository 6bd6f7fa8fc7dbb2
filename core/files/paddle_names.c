/* What PaddleNLP calls the tensors of a model, and how they lie there. */
#include "core/files/paddle_internal.h"

#include <stdlib.h>
#include <string.h>

const char *const assay_paddle_words[ASSAY_PADDLE_FILES_COUNT] = {"model", "optimizer", "master_weights"};
const char *const assay_paddle_suffixes[ASSAY_PADDLE_ROLES] = {
    NULL, NULL, "moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0"};

const char *assay_paddle_role_name(assay_paddle_role role)
{
    static const char *const names[ASSAY_PADDLE_ROLES] = {"weight",     "main_param",      "exp_avg",
                                                          "exp_avg_sq", "beta1_pow_acc_0", "beta2_pow_acc_0"};
    return names[role];
}

/* The word in front of every name but the head's. */
static assay_status prefix_of(assay_arch arch, const char **out)
{
    switch (arch) {
    case ASSAY_ARCH_LLAMA:
    case ASSAY_ARCH_QWEN2:
    case ASSAY_ARCH_QWEN2_MOE:
    case ASSAY_ARCH_MISTRAL:
    case ASSAY_ARCH_MIXTRAL:
        *out = assay_arch_name(arch);
        return ASSAY_OK;
    default:
        ASSAY_FAIL(
            ASSAY_UNSUPPORTED,
            "%s: PaddleNLP 3.0 has no such model that is read or written here: llama, qwen2, qwen2_moe, "
            "mistral, mixtral",
            assay_arch_name(arch));
    }
}

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), m = strlen(with);
    return n >= m && strcmp(name + n - m, with) == 0;
}

static void set_shape(assay_paddle_slot *s, int64_t rows, int64_t columns, bool matrix)
{
    s->transposed = matrix && strcmp(s->name + strlen(s->name) - strlen("weight"), "weight") == 0;
    s->ndim = matrix ? 2 : 1;
    s->shape[0] = s->transposed ? columns : rows;
    s->shape[1] = matrix ? (s->transposed ? rows : columns) : 0;
}

/* "model.layers.0..." -> "llama.layers.0..." */
static void rename_part(char out[ASSAY_NAME], const char *name, const char *prefix)
{
    if (strncmp(name, "model.", 6) == 0)
        snprintf(out, ASSAY_NAME, "%s.%s", prefix, name + 6);
    else
        snprintf(out, ASSAY_NAME, "%s", name);
}

static void add_part(assay_paddle_slots *s, const assay_model_spec *spec, int64_t i, int k,
                     const char *prefix)
{
    const assay_hf_part *part = &spec->params[i].parts[k];
    assay_paddle_slot *slot = &s->slots[s->n++];
    *slot = (assay_paddle_slot){.param = i, .part = k, .blocks = 1};
    rename_part(slot->name, part->name, prefix);
    set_shape(slot, part->shape[0], part->ndim > 1 ? part->shape[1] : 0, part->ndim > 1);
    if (ends(slot->name, ".embed_tokens.weight")) {
        slot->transposed = false;
        slot->shape[0] = part->shape[0];
        slot->shape[1] = part->shape[1];
        if (spec->config.tie_word_embeddings)
            snprintf(slot->alias, sizeof slot->alias, "lm_head.weight");
    }
}

/* q, k and v in one, by groups, or gate and up: the canonical parameter as it is. */
static void add_fused(assay_paddle_slots *s, const assay_param_spec *p, int64_t i, bool qkv,
                      const char *prefix)
{
    assay_paddle_slot *slot = &s->slots[s->n++];
    *slot = (assay_paddle_slot){.param = i, .part = -1, .blocks = qkv ? 1 : 2};
    const char *rest = ends(p->name, ".bias") ? "bias" : "weight";
    snprintf(slot->name, sizeof slot->name, "%s.layers.%lld.%s.%s", prefix, (long long)p->layer,
             qkv                                     ? "self_attn.qkv_proj"
             : strstr(p->name, "shared_exp") == NULL ? "mlp.gate_up_fused_proj"
                                                     : "mlp.shared_expert.gate_up_fused_proj",
             rest);
    set_shape(slot, p->shape[0], p->ndim > 1 ? p->shape[1] : 0, p->ndim > 1);
}

static int compare(const void *pa, const void *pb)
{
    const struct assay_paddle_name *a = pa, *b = pb;
    return strcmp(a->name, b->name);
}

assay_status assay_paddle_slots_make(assay_paddle_slots *s, const assay_model_spec *spec, bool fused_qkv,
                                     bool fused_ffn)
{
    const char *prefix;
    int64_t most = 0;
    *s = (assay_paddle_slots){.n = 0};
    ASSAY_TRY(prefix_of(spec->config.arch, &prefix));
    for (int64_t i = 0; i < spec->n_params; i++)
        most += spec->params[i].n_parts;
    s->slots = calloc((size_t)most + 1, sizeof *s->slots);
    s->by_name = calloc((size_t)most * 2 + 1, sizeof *s->by_name);
    if (s->slots == NULL || s->by_name == NULL) {
        assay_paddle_slots_free(s);
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%lld tensors", (long long)most);
    }
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *p = &spec->params[i];
        const bool qkv = strstr(p->name, ".linear_qkv.") != NULL;
        const bool ffn = strstr(p->name, ".linear_fc1.") != NULL && !p->is_expert;
        if ((qkv && fused_qkv) || (ffn && fused_ffn))
            add_fused(s, p, i, qkv, prefix);
        else
            for (int k = 0; k < p->n_parts; k++)
                add_part(s, spec, i, k, prefix);
    }
    for (int64_t i = 0; i < s->n; i++) {
        s->by_name[s->n_names++] = (struct assay_paddle_name){s->slots[i].name, i};
        if (s->slots[i].alias[0] != '\0')
            s->by_name[s->n_names++] = (struct assay_paddle_name){s->slots[i].alias, i};
    }
    qsort(s->by_name, (size_t)s->n_names, sizeof *s->by_name, compare);
    return ASSAY_OK;
}

void assay_paddle_slots_free(assay_paddle_slots *s)
{
    free(s->slots);
    free(s->by_name);
    *s = (assay_paddle_slots){.n = 0};
}

int64_t assay_paddle_slot_find(const assay_paddle_slots *s, const char *name, bool *alias)
{
    const struct assay_paddle_name key = {.name = name};
    const struct assay_paddle_name *found =
        s->n_names > 0 ? bsearch(&key, s->by_name, (size_t)s->n_names, sizeof key, compare) : NULL;
    if (found == NULL)
        return -1;
    *alias = found->name == s->slots[found->slot].alias;
    return found->slot;
}

/* --- config.json -------------------------------------------------------------------------------------------- */
/* Fields whose other values change the arithmetic in a way nobody here computes. */
static assay_status refuse_unsupported(const json_t *root, const char *what)
{
    bool alibi = false;
    ASSAY_TRY(assay_json_get_bool(root, "alibi", false, what, &alibi));
    ASSAY_CHECK(!alibi, ASSAY_UNSUPPORTED, "%s: alibi: expected false", what);
    const json_t *type = json_object_get(root, "rope_scaling_type");
    ASSAY_CHECK(type == NULL || json_is_null(type), ASSAY_UNSUPPORTED,
                "%s: rope_scaling_type: expected null, found '%.40s'", what,
                json_is_string(type) ? json_string_value(type) : "something else");
    const json_t *strategy = json_object_get(root, "use_long_sequence_strategies");
    ASSAY_CHECK(!json_is_true(strategy), ASSAY_UNSUPPORTED,
                "%s: use_long_sequence_strategies: expected false", what);
    return ASSAY_OK;
}

/* Of its classes Mistral's alone has a window, and Llama's alone scales rope, by llama3: the others take such words and compute without. */
static assay_status refuse_ignored(const assay_model_config *c, const char *what)
{
    for (int64_t l = 0; l < c->num_layers && c->arch != ASSAY_ARCH_MISTRAL; l++)
        ASSAY_CHECK(
            c->window[l] == 0, ASSAY_UNSUPPORTED,
            "%s: a sliding window of %lld in layer %lld: PaddleNLP's class of this model computes without",
            what, (long long)c->window[l], (long long)l);
    ASSAY_CHECK(c->rope_type == ASSAY_ROPE_DEFAULT ||
                    (c->rope_type == ASSAY_ROPE_LLAMA3 && c->arch == ASSAY_ARCH_LLAMA),
                ASSAY_UNSUPPORTED, "%s: rope_scaling: PaddleNLP's class of this model computes without",
                what);
    return ASSAY_OK;
}

/* A pipeline's class is the model's with a suffix; false is PaddleNLP's "no window"; a field that is absent has the value of
 * PaddleNLP's base class. */
static assay_status adapt(json_t *root, const char *what)
{
    json_t *list = json_object_get(root, "architectures");
    const char *class_name = json_string_value(json_array_get(list, 0));
    if (class_name != NULL && ends(class_name, "Pipe")) {
        char name[128];
        ASSAY_CHECK(strlen(class_name) < sizeof name, ASSAY_FORMAT, "%s: architectures: %.40s...", what,
                    class_name);
        snprintf(name, sizeof name, "%.*s", (int)(strlen(class_name) - strlen("Pipe")), class_name);
        json_array_set_new(list, 0, json_string(name));
    }
    if (json_is_false(json_object_get(root, "sliding_window")))
        json_object_set_new(root, "sliding_window", json_null());
    (void)json_object_del(root, "pad_token_id"); /* its embeddings have no padding_idx */
    if (json_object_get(root, "tie_word_embeddings") == NULL)
        json_object_set_new(root, "tie_word_embeddings", json_true());
    return ASSAY_OK;
}

assay_status assay_paddle_config(const json_t *root, const char *what, assay_model_config *out)
{
    ASSAY_CHECK(json_is_object(root), ASSAY_FORMAT, "%s: expected an object", what);
    json_t *copy = json_deep_copy(root);
    ASSAY_CHECK(copy != NULL, ASSAY_OUT_OF_MEMORY, "%s", what);
    assay_status st = refuse_unsupported(copy, what);
    if (st == ASSAY_OK)
        st = adapt(copy, what);
    if (st == ASSAY_OK)
        st = assay_config_from_json(copy, what, out);
    if (st == ASSAY_OK)
        st = refuse_ignored(out, what);
    json_decref(copy);
    return st;
}

assay_status assay_paddle_config_to_json(const assay_model_config *c, assay_dtype weight, json_t **out)
{
    const char *prefix;
    json_t *root = NULL;
    *out = NULL;
    ASSAY_TRY(prefix_of(c->arch, &prefix));
    const bool qwen = c->arch == ASSAY_ARCH_QWEN2 || c->arch == ASSAY_ARCH_QWEN2_MOE;
    ASSAY_CHECK(c->add_qkv_bias == qwen && !c->add_proj_bias && !c->add_mlp_bias, ASSAY_UNSUPPORTED,
                "%s: PaddleNLP's class has %s", prefix,
                qwen ? "biases of q, k and v, and no other" : "no biases");
    ASSAY_CHECK(c->kv_channels * c->num_attention_heads == c->hidden_size, ASSAY_UNSUPPORTED,
                "head_dim %lld: PaddleNLP's classes have hidden_size / num_attention_heads",
                (long long)c->kv_channels);
    ASSAY_CHECK(c->rope_type == ASSAY_ROPE_DEFAULT, ASSAY_UNSUPPORTED,
                "rope_scaling: PaddleNLP's words for it are not written");
    ASSAY_TRY(refuse_ignored(c, prefix));
    ASSAY_TRY(assay_config_to_json(c, &root));
    json_object_del(root, "rope_parameters");
    json_object_del(root, "rope_scaling");
    json_object_del(root, "head_dim");
    json_object_del(root, "torch_dtype");
    int failed =
        json_object_set_new(root, "dtype", json_string(weight == ASSAY_BF16 ? "bfloat16" : "float32"));
    failed |= json_object_set_new(root, "rope_theta", json_real(c->rotary_base));
    /* says whose orientation and names the folder has: without it square matrices would pass for transformers' */
    failed |= json_object_set_new(root, "paddlenlp_version", json_string("3.0.0b4"));
    failed |= json_object_set_new(root, "seq_length", json_integer(c->max_position_embeddings));
    if (failed != 0) {
        json_decref(root);
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "config.json");
    }
    *out = root;
    return ASSAY_OK;
}
