/* The recorded configuration, and the attributes that operations were called with, against the folder's. */
#include "parity/run/check.h"

#include "ref/yarn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Members that a run is free in: how weights are drawn, how long a row may be. */
static const char *const free_members[] = {"initializer_range", "init_constant_std",
                                           "max_position_embeddings", NULL};

static bool is_free(const char *key)
{
    if (assay_config_is_kept(key))
        return true;
    for (int i = 0; free_members[i] != NULL; i++)
        if (strcmp(free_members[i], key) == 0)
            return true;
    return false;
}

static void compare_members(check_state *c, json_t *run, json_t *folder, const char *where)
{
    const char *key;
    json_t *expected, *more;
    json_object_foreach(folder, key, expected)
    {
        json_t *found = json_object_get(run, key);
        if (is_free(key))
            continue;
        if (json_is_object(expected) && json_is_object(found)) {
            char inner[128];
            snprintf(inner, sizeof inner, "%.60s%.60s.", where, key);
            compare_members(c, found, expected, inner);
            continue;
        }
        if (json_equal(found, expected)) {
            c->passed[CHECK_CONFIGURATION]++;
            continue;
        }
        char *x = found != NULL ? json_dumps(found, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) : NULL;
        char *y = json_dumps(expected, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        check_fail(c, CHECK_CONFIGURATION, "the run's configuration has %s%s %.100s, the folder's %.100s",
                   where, key, x != NULL ? x : "(absent)", y != NULL ? y : "?");
        free(y);
        free(x);
    }
    json_object_foreach(run, key, more) /* pad_token_id is written where a model has one */
    {
        if (is_free(key) || json_object_get(folder, key) != NULL)
            continue;
        char *x = json_dumps(more, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        check_fail(c, CHECK_CONFIGURATION, "the run's configuration has %s%s %.100s, the folder's (absent)",
                   where, key, x != NULL ? x : "?");
        free(x);
    }
}

assay_status check_configuration(check_state *c)
{
    const json_t *model = json_object_get(assay_trace_header(c->trace), "model");
    assay_model_config *config = calloc(1, sizeof *config);
    json_t *run = NULL, *folder = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "configuration");
    if (model == NULL) {
        snprintf(c->unchecked[CHECK_CONFIGURATION], PARITY_TEXT,
                 "the trace does not hold the run's configuration");
        goto done;
    }
    st = assay_config_from_json(model, "the run's configuration", config);
    if (st != ASSAY_OK && st != ASSAY_OUT_OF_MEMORY) {
        check_fail(c, CHECK_CONFIGURATION, "%.400s (the folder's configuration is another)",
                   assay_error_message());
        assay_error_clear();
        st = ASSAY_OK;
        goto done;
    }
    ASSAY_TRY_GOTO(st, st, done);
    ASSAY_TRY_GOTO(assay_config_to_json(config, &run), st, done);
    ASSAY_TRY_GOTO(assay_config_to_json(c->names->config, &folder), st, done);
    compare_members(c, run, folder, "");
done:
    json_decref(folder);
    json_decref(run);
    free(config);
    return st;
}

/* --- attributes --------------------------------------------------------------------------------------------- */

/* "model.layers.3.mlp" -> 3; -1: outside the layers. */
static int64_t layer_of(const char *instance, int64_t layers)
{
    const char *at = strstr(instance, "layers.");
    char *end = NULL;
    if (at == NULL)
        return -1;
    const int64_t layer = strtoll(at + strlen("layers."), &end, 10);
    return end != at + strlen("layers.") && layer >= 0 && layer < layers ? layer : -1;
}

static void compare_number(check_state *c, const assay_trace_op *op, const char *key, double expected)
{
    const json_t *found = json_object_get(op->attrs, key);
    if (!json_is_number(found))
        return;
    /* attributes may have been rounded to single precision */
    if (fabs(json_number_value(found) - expected) <= 1e-6 * fabs(expected)) {
        c->passed[CHECK_ATTRIBUTES]++;
        return;
    }
    check_fail(c, CHECK_ATTRIBUTES,
               "%s of %s (rank %d, step %lld) was called with %s %.9g, the model's is %.9g", op->op,
               op->instance, op->rank, (long long)op->step, key, json_number_value(found), expected);
}

static void compare_word(check_state *c, const assay_trace_op *op, const char *key, const char *expected)
{
    const char *found = json_string_value(json_object_get(op->attrs, key));
    if (found == NULL)
        return;
    if (strcmp(found, expected) == 0) {
        c->passed[CHECK_ATTRIBUTES]++;
        return;
    }
    check_fail(c, CHECK_ATTRIBUTES,
               "%s of %s (rank %d, step %lld) was called with %s %.40s, the model's is %s", op->op,
               op->instance, op->rank, (long long)op->step, key, found, expected);
}

static void compare_flag(check_state *c, const assay_trace_op *op, const char *key, bool expected)
{
    const json_t *found = json_object_get(op->attrs, key);
    if (!json_is_boolean(found) || json_is_true(found) == expected) {
        c->passed[CHECK_ATTRIBUTES] += json_is_boolean(found);
        return;
    }
    check_fail(c, CHECK_ATTRIBUTES, "%s of %s (rank %d, step %lld) was called with %s %s, the model's is %s",
               op->op, op->instance, op->rank, (long long)op->step, key,
               json_is_true(found) ? "true" : "false", expected ? "true" : "false");
}

static void compare_rope(check_state *c, const assay_trace_op *op, const assay_model_config *m)
{
    compare_word(c, op, "rope_type", assay_rope_name(m->rope_type));
    compare_number(c, op, "rotary_base", m->rotary_base);
    compare_number(c, op, "rotary_dim", (double)assay_config_rotary_dim(m));
    if (m->rope_type != ASSAY_ROPE_DEFAULT)
        compare_number(c, op, "factor", m->rope_factor);
    if (m->rope_type == ASSAY_ROPE_LLAMA3) {
        compare_number(c, op, "low_freq_factor", m->rope_low_freq_factor);
        compare_number(c, op, "high_freq_factor", m->rope_high_freq_factor);
    }
    if (m->rope_type == ASSAY_ROPE_YARN) {
        compare_number(c, op, "beta_fast", m->rope_beta_fast);
        compare_number(c, op, "beta_slow", m->rope_beta_slow);
        compare_number(c, op, "attention_factor", ref_yarn_attention_factor(m));
        compare_flag(c, op, "truncate", m->rope_truncate);
    }
    if (m->rope_type == ASSAY_ROPE_LLAMA3 || m->rope_type == ASSAY_ROPE_YARN)
        compare_number(c, op, "original_max_position_embeddings",
                       (double)m->rope_original_max_position_embeddings);
}

/* Heads of one rank are a part of the model's where tensors are cut; their ratio is not. */
static void compare_attention(check_state *c, const assay_trace_op *op, const assay_model_config *m)
{
    const int64_t layer = layer_of(op->instance, m->num_layers);
    if (assay_trace_world(c->trace) == 1) {
        compare_number(c, op, "heads", (double)m->num_attention_heads);
        compare_number(c, op, "groups", (double)m->num_query_groups);
    }
    compare_number(c, op, "head_dim", (double)m->kv_channels);
    compare_number(c, op, "scale", ref_yarn_softmax_scale(m));
    if (layer >= 0)
        compare_number(c, op, "window", (double)m->window[layer]);
}

/* The inner norms of multi-latent attention have an eps of their own. */
static double eps_of(const char *instance, const assay_model_config *m)
{
    static const char *const inner[] = {".q_a_layernorm", ".kv_a_layernorm", ".self_attention.q_layernorm",
                                        ".self_attention.kv_layernorm"};
    const size_t n = strlen(instance);
    for (size_t i = 0; i < sizeof inner / sizeof *inner && assay_config_is_mla(m); i++) {
        const size_t length = strlen(inner[i]);
        if (n >= length && strcmp(instance + n - length, inner[i]) == 0)
            return m->mla_layernorm_epsilon;
    }
    return m->layernorm_epsilon;
}

/* An eps that a module holds beside its operation's, recorded where it is another (docs/DEBUG.md): bfloat16 may not show it. */
static void compare_module_eps(check_state *c, const assay_trace_tensor *t, const assay_model_config *m)
{
    char instance[ASSAY_NAME];
    const size_t n = strlen(t->name);
    if (n <= 4 || strcmp(t->name + n - 4, ".eps") != 0 || t->phase != ASSAY_PHASE_FORWARD ||
        t->dtype != ASSAY_F64 || t->shard.ndim != 0 || t->data == NULL)
        return;
    snprintf(instance, sizeof instance, "%.*s", (int)(n - 4), t->name);
    const double found = parity_decode(t->data, 0, t->dtype), expected = eps_of(instance, m);
    if (fabs(found - expected) <= 1e-6 * fabs(expected))
        c->passed[CHECK_ATTRIBUTES]++;
    else
        check_fail(c, CHECK_ATTRIBUTES,
                   "rmsnorm_fwd of %s (rank %d, step %lld): its module holds eps %.9g, the model's is %.9g",
                   instance, t->rank, (long long)t->step, found, expected);
}

assay_status check_attributes(check_state *c)
{
    const assay_model_config *m = c->names->config;
    for (int rank = 0; rank < assay_trace_world(c->trace); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(c->trace, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(c->trace, rank, i);
            if (strncmp(op->op, "rmsnorm_", 8) == 0)
                compare_number(c, op, "eps", eps_of(op->instance, m));
            else if (strcmp(op->op, "rope_table") == 0)
                compare_rope(c, op, m);
            else if (strcmp(op->op, "embedding_bwd") == 0)
                compare_number(c, op, "padding_idx", (double)m->pad_token_id);
            else if (strncmp(op->op, "attention_", 10) == 0)
                compare_attention(c, op, m);
            else if (strncmp(op->op, "router_fwd", 10) == 0 || strcmp(op->op, "router_bwd") == 0) {
                compare_number(c, op, "topk", (double)m->moe_router_topk);
                compare_flag(c, op, "norm_topk_prob", m->norm_topk_prob);
                compare_flag(c, op, "pre_softmax", m->moe_router_pre_softmax);
            }
        }
    for (int rank = 0; rank < assay_trace_world(c->trace); rank++)
        for (int64_t i = 0; i < assay_trace_n_tensors(c->trace, rank); i++)
            compare_module_eps(c, assay_trace_tensor_at(c->trace, rank, i), m);
    return ASSAY_OK;
}
