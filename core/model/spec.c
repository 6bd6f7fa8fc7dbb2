/* The parameter table.  An architecture is a set of flags in assay_model_config; the table below them is one.
 * Source of names and order: Megatron-LM GPTModel; of the cuts: docs/LAYOUTS.md. */
#include "core/model/spec.h"

#include "core/model/spec_internal.h"
#include <stdlib.h>
#include <string.h>

/* Rows of one decoder layer at most: norms 2; attention: qkv 2, q/k norm 2, proj 2; MoE: router 2, experts 2,
 * shared 3. */
enum { MAX_ROWS_PER_LAYER = 16, ROWS_OUTSIDE = 3 };

/* Dimensions after the first are 0 where there are none. */
assay_param_spec *assay_spec_add(assay_spec_builder *b, assay_param_kind kind, const char *name, int64_t n0,
                                 int64_t n1, int64_t n2)
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
void assay_spec_set_partial(assay_param_spec *p, bool sequence_parallel_only)
{
    p->partial_over_tp = true;
    p->sequence_parallel_only = sequence_parallel_only;
}

void assay_spec_add_norm(assay_spec_builder *b, assay_param_kind kind, const char *name, int64_t n,
                         bool per_head)
{
    assay_param_spec *p = assay_spec_add(b, kind, name, n, 0, 0);
    p->init = ASSAY_INIT_ONE;
    assay_spec_set_partial(p, !per_head);
}

/* A bias; `cut` like the rows of a column-parallel weight, else that of a row-parallel one: replicated, and
 * as the gradient of a row-parallel output is whole on every tp rank, so is the bias gradient (docs/OPS.md).
 */
assay_param_spec *assay_spec_add_bias(assay_spec_builder *b, assay_param_kind kind, const char *name,
                                      int64_t n, bool cut, int blocks)
{
    assay_param_spec *p = assay_spec_add(b, kind, name, n, 0, 0);
    p->init = ASSAY_INIT_ZERO;
    if (cut) {
        p->axis[0] = ASSAY_AXIS_TP;
        p->blocks[0] = blocks;
    }
    return p;
}

/* Parameters of every kind of mixer and MLP. */
static void (*const mixers[ASSAY_MIXER_COUNT])(assay_spec_builder *b) = {
    [ASSAY_MIXER_ATTENTION] = assay_spec_add_attention, [ASSAY_MIXER_MLA] = assay_spec_add_mla};
static void (*const mlps[ASSAY_MLP_COUNT])(assay_spec_builder *b) = {
    [ASSAY_MLP_DENSE] = assay_spec_add_mlp, [ASSAY_MLP_MOE] = assay_spec_add_moe};

static void add_all(assay_spec_builder *b)
{
    const assay_model_config *c = b->c;
    b->layer = -1;
    assay_param_spec *p = assay_spec_add(b, ASSAY_KIND_EMBEDDING, "embedding.word_embeddings.weight",
                                         c->vocab_size, c->hidden_size, 0);
    p->axis[0] = ASSAY_AXIS_TP;
    p->on_first_stage = true;
    p->on_last_stage = c->tie_word_embeddings;
    for (b->layer = 0; b->layer < c->num_layers; b->layer++) {
        assay_spec_add_norm(b, ASSAY_KIND_INPUT_NORM, "input_layernorm.weight", c->hidden_size, false);
        mixers[c->mixer[b->layer]](b);
        assay_spec_add_norm(b, ASSAY_KIND_PRE_MLP_NORM, "pre_mlp_layernorm.weight", c->hidden_size, false);
        mlps[c->mlp[b->layer]](b);
    }
    b->layer = -1;
    p = assay_spec_add(b, ASSAY_KIND_FINAL_NORM, "decoder.final_layernorm.weight", c->hidden_size, 0, 0);
    p->init = ASSAY_INIT_ONE;
    assay_spec_set_partial(p, true);
    p->on_last_stage = true;
    if (!c->tie_word_embeddings) {
        p = assay_spec_add(b, ASSAY_KIND_OUTPUT, "output_layer.weight", c->vocab_size, c->hidden_size, 0);
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
    assay_spec_builder b = {.c = &spec->config, .spec = spec, .layer = -1, .status = ASSAY_OK};
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
