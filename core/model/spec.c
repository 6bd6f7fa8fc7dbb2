/* The parameter table.  An architecture is a set of flags in assay_model_config; the table below them is one.
 * Source of names and order: Megatron-LM GPTModel; of the cuts: docs/LAYOUTS.md. */
#include "core/model/spec.h"

#include "core/model/spec_internal.h"
#include <stdlib.h>
#include <string.h>

/* Rows of one decoder layer at most: norms 2, qkv 2, q/k norm 2, proj 2, router 2, experts 2, shared 3. */
enum { MAX_ROWS_PER_LAYER = 16, ROWS_OUTSIDE = 3 };

typedef struct builder {
    const assay_model_config *c;
    assay_model_spec *spec;
    int64_t layer;
    assay_status status;      /* first failure; later rows are not added ... */
    assay_param_spec ignored; /* ... but written here */
} builder;

/* Dimensions after the first are 0 where there are none. */
static assay_param_spec *add(builder *b, assay_param_kind kind, const char *name, int64_t n0, int64_t n1,
                             int64_t n2)
{
    if (b->status != ASSAY_OK)
        return &b->ignored;
    assay_param_spec *p = &b->spec->params[b->spec->n_params++];
    const int64_t shape[3] = {n0, n1, n2};
    memset(p, 0, sizeof *p);
    p->layer = b->layer;
    if (b->layer >= 0)
        snprintf(p->name, sizeof p->name, "decoder.layers.%lld.%s", (long long)b->layer, name);
    else
        snprintf(p->name, sizeof p->name, "%s", name);
    p->ndim = n2 > 0 ? 3 : n1 > 0 ? 2 : 1;
    for (int d = 0; d < p->ndim; d++)
        p->shape[d] = shape[d];
    for (int d = 0; d < ASSAY_MAX_DIMS; d++)
        p->blocks[d] = 1;
    p->trained = true;
    p->no_weight_decay = p->ndim == 1;
    p->init = ASSAY_INIT_NORMAL;
    b->status = assay_spec_parts_build(p, kind, b->c);
    return p;
}

/* Replicated over tp, but its gradient is not: see assay_param_spec. */
static void set_partial(assay_param_spec *p, bool sequence_parallel_only)
{
    p->partial_over_tp = true;
    p->sequence_parallel_only = sequence_parallel_only;
}

static void add_norm(builder *b, assay_param_kind kind, const char *name, int64_t n, bool per_head)
{
    assay_param_spec *p = add(b, kind, name, n, 0, 0);
    p->init = ASSAY_INIT_ONE;
    set_partial(p, !per_head);
}

/* A bias; `cut` like the rows of a column-parallel weight, else that of a row-parallel one: replicated, and
 * as the gradient of a row-parallel output is whole on every tp rank, so is the bias gradient (docs/OPS.md).
 */
static void add_bias(builder *b, assay_param_kind kind, const char *name, int64_t n, bool cut, int blocks)
{
    assay_param_spec *p = add(b, kind, name, n, 0, 0);
    p->init = ASSAY_INIT_ZERO;
    if (cut) {
        p->axis[0] = ASSAY_AXIS_TP;
        p->blocks[0] = blocks;
    }
}

static void add_attention(builder *b)
{
    const assay_model_config *c = b->c;
    const int64_t h = c->hidden_size, d = c->kv_channels;
    const int64_t rows = (c->num_attention_heads + 2 * c->num_query_groups) * d;
    add_norm(b, ASSAY_KIND_INPUT_NORM, "input_layernorm.weight", h, false);
    assay_param_spec *p = add(b, ASSAY_KIND_QKV_WEIGHT, "self_attention.linear_qkv.weight", rows, h, 0);
    p->axis[0] = ASSAY_AXIS_TP;
    if (c->add_qkv_bias)
        add_bias(b, ASSAY_KIND_QKV_BIAS, "self_attention.linear_qkv.bias", rows, true, 1);
    if (c->qk_layernorm) {
        add_norm(b, ASSAY_KIND_Q_NORM, "self_attention.q_layernorm.weight", d, true);
        add_norm(b, ASSAY_KIND_K_NORM, "self_attention.k_layernorm.weight", d, true);
    }
    p = add(b, ASSAY_KIND_PROJ_WEIGHT, "self_attention.linear_proj.weight", h, c->num_attention_heads * d, 0);
    p->axis[1] = ASSAY_AXIS_TP;
    p->init = ASSAY_INIT_OUTPUT_NORMAL; /* it writes into the residual stream */
    if (c->add_proj_bias)
        add_bias(b, ASSAY_KIND_PROJ_BIAS, "self_attention.linear_proj.bias", h, false, 1);
}

static void add_dense_mlp(builder *b)
{
    const assay_model_config *c = b->c;
    const int64_t h = c->hidden_size, f = c->ffn_hidden_size;
    assay_param_spec *p = add(b, ASSAY_KIND_FC1_WEIGHT, "mlp.linear_fc1.weight", 2 * f, h, 0);
    p->axis[0] = ASSAY_AXIS_TP;
    p->blocks[0] = 2;
    if (c->add_mlp_bias)
        add_bias(b, ASSAY_KIND_FC1_BIAS, "mlp.linear_fc1.bias", 2 * f, true, 2);
    p = add(b, ASSAY_KIND_FC2_WEIGHT, "mlp.linear_fc2.weight", h, f, 0);
    p->axis[1] = ASSAY_AXIS_TP;
    p->init = ASSAY_INIT_OUTPUT_NORMAL; /* it writes into the residual stream */
    if (c->add_mlp_bias)
        add_bias(b, ASSAY_KIND_FC2_BIAS, "mlp.linear_fc2.bias", h, false, 1);
}

static void add_shared_expert(builder *b)
{
    const assay_model_config *c = b->c;
    const int64_t h = c->hidden_size, f = c->moe_shared_expert_intermediate_size;
    assay_param_spec *p = add(b, ASSAY_KIND_SHARED_FC1, "mlp.shared_experts.linear_fc1.weight", 2 * f, h, 0);
    p->axis[0] = ASSAY_AXIS_TP;
    p->blocks[0] = 2;
    p = add(b, ASSAY_KIND_SHARED_FC2, "mlp.shared_experts.linear_fc2.weight", h, f, 0);
    p->axis[1] = ASSAY_AXIS_TP;
    p->init = ASSAY_INIT_OUTPUT_NORMAL; /* it writes into the residual stream */
    if (c->moe_shared_expert_gate)
        set_partial(add(b, ASSAY_KIND_SHARED_GATE, "mlp.shared_experts.gate_weight", 1, h, 0), false);
}

static void add_moe(builder *b)
{
    const assay_model_config *c = b->c;
    const int64_t e = c->num_moe_experts, h = c->hidden_size, f = c->moe_ffn_hidden_size;
    set_partial(add(b, ASSAY_KIND_ROUTER_WEIGHT, "mlp.router.weight", e, h, 0), false);
    if (c->moe_router_enable_expert_bias) {
        assay_param_spec *bias = add(b, ASSAY_KIND_EXPERT_BIAS, "mlp.router.expert_bias", e, 0, 0);
        bias->init = ASSAY_INIT_ZERO;
        bias->trained = false;
    }
    assay_param_spec *p = add(b, ASSAY_KIND_EXPERTS_FC1, "mlp.experts.linear_fc1.weight", e, 2 * f, h);
    p->axis[0] = ASSAY_AXIS_EP;
    p->is_expert = true;
    p = add(b, ASSAY_KIND_EXPERTS_FC2, "mlp.experts.linear_fc2.weight", e, h, f);
    p->axis[0] = ASSAY_AXIS_EP;
    p->is_expert = true;
    p->init = ASSAY_INIT_OUTPUT_NORMAL; /* it writes into the residual stream */
    if (c->moe_shared_expert_intermediate_size > 0)
        add_shared_expert(b);
}

static void add_all(builder *b)
{
    const assay_model_config *c = b->c;
    b->layer = -1;
    assay_param_spec *p =
        add(b, ASSAY_KIND_EMBEDDING, "embedding.word_embeddings.weight", c->vocab_size, c->hidden_size, 0);
    p->axis[0] = ASSAY_AXIS_TP;
    p->on_first_stage = true;
    p->on_last_stage = c->tie_word_embeddings;
    for (b->layer = 0; b->layer < c->num_layers; b->layer++) {
        add_attention(b);
        add_norm(b, ASSAY_KIND_PRE_MLP_NORM, "pre_mlp_layernorm.weight", c->hidden_size, false);
        if (c->layer_is_moe[b->layer])
            add_moe(b);
        else
            add_dense_mlp(b);
    }
    b->layer = -1;
    p = add(b, ASSAY_KIND_FINAL_NORM, "decoder.final_layernorm.weight", c->hidden_size, 0, 0);
    p->init = ASSAY_INIT_ONE;
    set_partial(p, true);
    p->on_last_stage = true;
    if (!c->tie_word_embeddings) {
        p = add(b, ASSAY_KIND_OUTPUT, "output_layer.weight", c->vocab_size, c->hidden_size, 0);
        p->axis[0] = ASSAY_AXIS_TP;
        p->on_last_stage = true;
    }
}

assay_status assay_spec_build(const assay_model_config *c, assay_model_spec **out)
{
    *out = NULL;
    ASSAY_TRY(assay_config_check(c, "model config"));
    assay_status st = ASSAY_OK;
    const size_t rows = (size_t)c->num_layers * MAX_ROWS_PER_LAYER + ROWS_OUTSIDE;
    assay_model_spec *spec = calloc(1, sizeof *spec);
    ASSAY_CHECK(spec != NULL, ASSAY_OUT_OF_MEMORY, "model spec: %zu bytes", sizeof *spec);
    spec->config = *c;
    spec->params = calloc(rows, sizeof *spec->params);
    ASSAY_CHECK_GOTO(spec->params != NULL, ASSAY_OUT_OF_MEMORY, st, fail, "model spec: %zu parameters", rows);
    builder b = {
        .c = &spec->config,
        .spec = spec,
        .layer = -1,
        .status = ASSAY_OK,
    };
    add_all(&b);
    ASSAY_TRY_GOTO(b.status, st, fail);
    *out = spec;
    return ASSAY_OK;
fail:
    assay_spec_destroy(spec);
    return st;
}

void assay_spec_destroy(assay_model_spec *spec)
{
    if (spec == NULL)
        return;
    for (int64_t i = 0; i < spec->n_params; i++)
        assay_spec_parts_free(&spec->params[i]);
    free(spec->params);
    free(spec);
}

const assay_param_spec *assay_spec_find(const assay_model_spec *spec, const char *name)
{
    for (int64_t i = 0; i < spec->n_params; i++) {
        if (strcmp(spec->params[i].name, name) == 0)
            return &spec->params[i];
    }
    return NULL;
}
