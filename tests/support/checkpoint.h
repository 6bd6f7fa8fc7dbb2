/* A small model and checkpoints of it, written by any number of ranks. */
#ifndef TESTS_SUPPORT_CHECKPOINT_H
#define TESTS_SUPPORT_CHECKPOINT_H

#include "core/base/file.h"
#include "core/files/checkpoint.h"
#include "core/model/grid.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* One dense layer and one of experts with a bias in Megatron-LM's form, or one dense layer of Qwen3: q, k, v and gate, up are
 * tensors of their own there. */
static const char megatron_small[] =
    "{\"model_type\":\"megatron\",\"activation_func\":\"silu\",\"add_bias_linear\":false,\"gated_linear_"
    "unit\":true,"
    "\"attention_dropout\":0.0,\"hidden_dropout\":0.0,\"normalization\":\"RMSNorm\",\"layernorm_epsilon\":1e-"
    "5,"
    "\"position_embedding_type\":\"rope\",\"rotary_base\":10000,\"rotary_percent\":1.0,\"init_method_std\":0."
    "02,"
    "\"max_position_embeddings\":32,\"untie_embeddings_and_output_weights\":false,\"calculate_per_token_"
    "loss\":true,"
    "\"num_layers\":2,\"hidden_size\":6,\"ffn_hidden_size\":10,\"num_attention_heads\":2,\"num_query_"
    "groups\":1,"
    "\"kv_channels\":4,\"vocab_size\":11,\"moe_layer_freq\":[0,1],\"num_moe_experts\":3,\"moe_router_topk\":"
    "2,"
    "\"moe_ffn_hidden_size\":4,\"moe_router_score_function\":\"sigmoid\",\"moe_router_enable_expert_bias\":"
    "true,"
    "\"moe_router_bias_update_rate\":0.001,\"moe_router_load_balancing_type\":\"none\","
    "\"moe_token_dispatcher_type\":\"alltoall\",\"moe_router_pre_softmax\":false}";
static const char qwen3_small[] =
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_act\":\"silu\","
    "\"num_hidden_layers\":1,\"hidden_size\":6,\"intermediate_size\":5,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":4,\"vocab_size\":11,\"max_position_embeddings\":32,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,\"attention_bias\":false}";

static inline assay_model_spec *checkpoint_spec(const char *config)
{
    json_t *json = NULL;
    assay_model_spec *spec = NULL;
    assay_model_config *c = calloc(1, sizeof *c);
    cr_assert_eq(assay_json_parse(&json, config, strlen(config), "config"), ASSAY_OK);
    cr_assert_eq(assay_config_from_json(json, "config", c), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_spec_build(c, &spec), ASSAY_OK, "%s", assay_error_message());
    json_decref(json);
    free(c);
    return spec;
}

static const char *const checkpoint_states[] = {"exp_avg", "exp_avg_sq"};

static inline assay_checkpoint_content checkpoint_content(const assay_model_spec *spec, assay_dtype weight)
{
    return (assay_checkpoint_content){
        .spec = spec, .weight = weight, .state = ASSAY_F32, .n_states = 2, .state_names = checkpoint_states};
}

/* How many families a caller speaks of, their words, and whether the parameter is in one. */
enum { CHECKPOINT_FAMILIES = 4 };
static inline const char *checkpoint_family(int f, const assay_param_spec *p)
{
    static const char *const words[CHECKPOINT_FAMILIES] = {"weight", "main_param", "exp_avg", "exp_avg_sq"};
    if (p->frozen && f > 0)
        return NULL;
    return p->trained ? words[f] : f == 0 ? "expert_bias" : NULL;
}

static inline assay_dtype checkpoint_dtype(const assay_checkpoint_content *c, int f,
                                           const assay_param_spec *p)
{
    return f == 0 && p->trained ? c->weight : c->state;
}

/* Bits of element `at` of the whole tensor: different everywhere; masters of the weights' type are the weights. */
static inline void checkpoint_element(const assay_checkpoint_content *c, int f, int64_t param, int64_t at,
                                      char *out, int64_t width)
{
    const uint64_t family = f == 1 && c->weight == c->state ? 0 : (uint64_t)f;
    uint64_t h =
        0x9e3779b97f4a7c15u * (1 + family + 8 * (uint64_t)param) + 0xbf58476d1ce4e5b9u * (uint64_t)at;
    h ^= h >> 31;
    h *= 0x94d049bb133111ebu;
    h ^= h >> 29;
    memcpy(out, &h, (size_t)width);
}

static inline void checkpoint_fill(const assay_checkpoint_content *c, int f, int64_t param,
                                   const assay_shard *s, char *out)
{
    const int64_t width = assay_dtype_bytes(checkpoint_dtype(c, f, &c->spec->params[param]));
    for (int64_t i = 0; i < assay_shard_count(s); i++) {
        int64_t rest = i, at = 0, index[ASSAY_MAX_DIMS];
        for (int d = s->ndim - 1; d >= 0; d--) {
            index[d] = assay_shard_global_index(s, d, rest % s->local_shape[d]);
            rest /= s->local_shape[d];
        }
        for (int d = 0; d < s->ndim; d++)
            at = at * s->global_shape[d] + index[d];
        checkpoint_element(c, f, param, at, out + i * width, width);
    }
}

/* Rank `index` of `parts`: the last dimension of matrices whose name ends so is cut, others in rows, [gate; up] in two blocks;
 * norms and expert biases are whole on every rank. */
static inline assay_shard checkpoint_piece(const assay_param_spec *p, int parts, int index)
{
    assay_shard s;
    assay_segment cut[2];
    int n = 0;
    assay_shard_whole(&s, p->shape, p->ndim);
    if (p->ndim == 1)
        return s;
    const int dim = strstr(p->name, "linear_proj") || strstr(p->name, "linear_fc2") ? p->ndim - 1 : 0;
    const int64_t blocks = strstr(p->name, "mlp.linear_fc1") ? 2 : 1;
    s.local_shape[dim] = 0;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t start, length;
        assay_split(p->shape[dim] / blocks, parts, index, &start, &length);
        if (length > 0)
            cut[n++] = (assay_segment){b * (p->shape[dim] / blocks) + start, length};
        s.local_shape[dim] += length;
    }
    assay_shard_set(&s, dim, cut, n);
    return s;
}

/* What a writer gets wrong: rank `skip` leaves the pieces of one parameter out, rank `spoil` changes a bit of a replica. */
typedef struct checkpoint_wrong {
    int skip, spoil;
    const char *param, *family;
} checkpoint_wrong;

static inline void checkpoint_add_all(assay_checkpoint_writer *w, const assay_checkpoint_content *c, int rank,
                                      int parts, const checkpoint_wrong *wrong)
{
    char data[4096];
    for (int64_t i = 0; i < c->spec->n_params; i++)
        for (int f = 0; f < 2 + c->n_states; f++) {
            const assay_param_spec *p = &c->spec->params[i];
            const char *family = checkpoint_family(f, p);
            if (family == NULL)
                continue;
            const bool here =
                wrong != NULL && strcmp(p->name, wrong->param) == 0 && strcmp(family, wrong->family) == 0;
            const assay_shard s = checkpoint_piece(p, parts, rank);
            checkpoint_fill(c, f, i, &s, data);
            if (here && wrong->spoil == rank)
                data[0] ^= 1;
            if (!here || wrong->skip != rank)
                cr_assert_eq(assay_checkpoint_add(w, family, p->name, checkpoint_dtype(c, f, p), &s, data,
                                                  p->ndim > 1 || rank == 0),
                             ASSAY_OK, "%s", assay_error_message());
        }
}

/* All ranks up to the seals; the first status that is not OK. */
static inline assay_status checkpoint_seal_all(assay_checkpoint_writer **w, const char *dir, uint64_t job,
                                               int64_t step, const assay_checkpoint_content *c, int parts,
                                               const checkpoint_wrong *wrong)
{
    assay_status st = ASSAY_OK;
    for (int r = 0; r < parts; r++) {
        cr_assert_eq(assay_checkpoint_writer_open(&w[r], dir, job, step, r, parts, c), ASSAY_OK, "%s",
                     assay_error_message());
        checkpoint_add_all(w[r], c, r, parts, wrong);
        cr_assert_eq(assay_checkpoint_writer_finish(w[r]), ASSAY_OK, "%s", assay_error_message());
    }
    for (int r = 0; r < parts && st == ASSAY_OK; r++)
        st = assay_checkpoint_seal(w[r]);
    return st;
}

static inline void checkpoint_destroy_all(assay_checkpoint_writer **w, int parts)
{
    for (int r = 0; r < parts; r++)
        assay_checkpoint_writer_destroy(w[r]);
}

static inline void checkpoint_write(const char *dir, const assay_checkpoint_content *c, int parts)
{
    assay_checkpoint_writer *w[8] = {NULL};
    json_t *state = json_pack("{s:s}", "layout", "1");
    cr_assert_eq(checkpoint_seal_all(w, dir, assay_checkpoint_job(), 3, c, parts, NULL), ASSAY_OK, "%s",
                 assay_error_message());
    cr_assert_eq(assay_checkpoint_publish(w[0], state), ASSAY_OK, "%s", assay_error_message());
    json_decref(state);
    checkpoint_destroy_all(w, parts);
}

#endif
