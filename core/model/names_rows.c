/* Rows of a Hugging Face class, from the parameter table.
 *
 * A weight `X.weight` made of `Y.weight` names the output `X.y` of the operation and the output `Y` of the module, cut alike.
 * What the table does not hold, the places between parameters, is one list below for all classes. */
#include "core/model/config_internal.h"
#include "core/model/names_internal.h"
#include "core/model/spec_internal.h"

#include <string.h>

/* What a linear layer reads; sole: nothing else does, so the gradient of its input is that of what it reads. */
typedef struct linear_input {
    const char *layer, *input;
    bool sole;
} linear_input;
static const linear_input linear_inputs[] = {
    {"self_attention.linear_qkv", "input_layernorm.y", false},
    {"self_attention.linear_q_proj", "input_layernorm.y", false},
    {"self_attention.linear_q_down_proj", "input_layernorm.y", false},
    {"self_attention.linear_q_up_proj", "self_attention.q_layernorm.y", true},
    {"self_attention.linear_kv_down_proj", "input_layernorm.y", false},
    {"self_attention.linear_kv_up_proj", "self_attention.kv_layernorm.y", true},
    {"self_attention.linear_proj", "self_attention.core_attention.o", true},
    {"mlp.linear_fc1", "pre_mlp_layernorm.y", false},
    {"mlp.linear_fc2", "mlp.activation.y", true},
    {"mlp.shared_experts.linear_fc1", "pre_mlp_layernorm.y", false},
    {"mlp.shared_experts.linear_fc2", "mlp.shared_experts.activation.y", true},
    {"output_layer", "decoder.final_layernorm.y", true},
    {NULL, NULL, false},
};

/* Outputs that are not called like the parameter. */
static const char *const output_of[][2] = {
    {"embedding.word_embeddings", "embedding.y"},
    {"mlp.router", "mlp.router.gating.y"},
    {"mlp.shared_experts.gate_weight", "mlp.shared_experts.gating.y"},
    {NULL, NULL},
};

/* Between parameters: of every layer. */
typedef enum {
    ALWAYS,
    TIED,
    DENSE,
    MOE,
    SHARED,
    NOT_SHARED,
    NORMED,
    PLAIN_HEADS, /* what rope rotates: q and k as they are split, behind their norms, or clipped */
    NORMED_HEADS,
    CLIPPED_HEADS,   /* behind norms in every class that clips */
    UNCLIPPED_HEADS, /* v as it is split */
    WHOLE_HEADS,     /* rotated as a whole: not those of MLA, where theirs holds the rotated part alone */
    MLA,
    MLA_Q /* q is compressed, too */
} condition;
typedef struct between {
    condition when;
    const char *theirs, *ours;
    assay_name_axes axes;
    assay_name_relation relation;
} between;
#define EQUAL ASSAY_RELATION_EQUAL
static const between of_layer[] = {
    {PLAIN_HEADS, "self_attn.rope_q.x", "self_attention.qkv_split.q", ASSAY_AXES_SAME, EQUAL},
    {PLAIN_HEADS, "self_attn.rope_k.x", "self_attention.qkv_split.k", ASSAY_AXES_SAME, EQUAL},
    {NORMED_HEADS, "self_attn.rope_q.x", "self_attention.q_layernorm.y", ASSAY_AXES_SAME, EQUAL},
    {NORMED_HEADS, "self_attn.rope_k.x", "self_attention.k_layernorm.y", ASSAY_AXES_SAME, EQUAL},
    {CLIPPED_HEADS, "self_attn.rope_q.x", "self_attention.clip_q.y", ASSAY_AXES_SAME, EQUAL},
    {CLIPPED_HEADS, "self_attn.rope_k.x", "self_attention.clip_k.y", ASSAY_AXES_SAME, EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_q.x", "self_attention.q_layernorm.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_k.x", "self_attention.k_layernorm.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_v.x", "self_attention.qkv_split.v", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_q.y", "self_attention.clip_q.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_k.y", "self_attention.clip_k.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_v.y", "self_attention.clip_v.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {NORMED, "self_attn.q_norm.input", "self_attention.qkv_split.q", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {NORMED, "self_attn.k_norm.input", "self_attention.qkv_split.k", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "self_attn.rope.cos", "rope.cos", ASSAY_AXES_SAME, EQUAL},
    {ALWAYS, "self_attn.rope.sin", "rope.sin", ASSAY_AXES_SAME, EQUAL},
    {WHOLE_HEADS, "self_attn.rope_q.y", "self_attention.rope_q.y", ASSAY_AXES_SAME, EQUAL},
    {WHOLE_HEADS, "self_attn.rope_k.y", "self_attention.rope_k.y", ASSAY_AXES_SAME, EQUAL},
    {MLA_Q, "self_attn.q_a_layernorm.input", "self_attention.linear_q_down_proj.y", ASSAY_AXES_BATCH_FIRST,
     EQUAL},
    {MLA, "self_attn.kv_a_layernorm.input", "self_attention.kv_down_split.kv_compressed",
     ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "self_attn.core_attention.q", "self_attention.rope_q.y", ASSAY_AXES_SAME, EQUAL},
    {WHOLE_HEADS, "self_attn.core_attention.k", "self_attention.rope_k.y", ASSAY_AXES_SAME, EQUAL},
    {UNCLIPPED_HEADS, "self_attn.core_attention.v", "self_attention.qkv_split.v", ASSAY_AXES_SAME, EQUAL},
    {CLIPPED_HEADS, "self_attn.core_attention.v", "self_attention.clip_v.y", ASSAY_AXES_SAME, EQUAL},
    {MLA, "self_attn.core_attention.k", "self_attention.rope_kv.k", ASSAY_AXES_SAME, EQUAL},
    {MLA, "self_attn.core_attention.v", "self_attention.rope_kv.v", ASSAY_AXES_SAME, EQUAL},
    {ALWAYS, "self_attn.core_attention.o", "self_attention.core_attention.o", ASSAY_AXES_SAME, EQUAL},
    {ALWAYS, "self_attn", "self_attention.linear_proj.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "self_attn.residual.b", "self_attention.linear_proj.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "self_attn.residual", "self_attention.residual.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {DENSE, "mlp.activation.x", "mlp.linear_fc1.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {DENSE, "mlp.activation", "mlp.activation.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {DENSE, "mlp", "mlp.linear_fc2.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {DENSE, "mlp.residual.b", "mlp.linear_fc2.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {SHARED, "mlp.shared_expert.activation.x", "mlp.shared_experts.linear_fc1.y", ASSAY_AXES_BATCH_FIRST,
     EQUAL},
    {SHARED, "mlp.shared_expert.activation", "mlp.shared_experts.activation.y", ASSAY_AXES_BATCH_FIRST,
     EQUAL},
    {SHARED, "mlp.shared_expert", "mlp.shared_experts.linear_fc2.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {SHARED, "mlp", "mlp.shared_experts.add.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {NOT_SHARED, "mlp", "mlp.unpermute.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {MOE, "mlp.experts", "mlp.unpermute.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {MOE, "mlp.gate.probs", "mlp.router.probs", ASSAY_AXES_BATCH_FIRST, ASSAY_RELATION_ROWS},
    {MOE, "mlp.gate.indices", "mlp.router.indices", ASSAY_AXES_BATCH_FIRST, ASSAY_RELATION_ROWS},
    {MOE, "mlp.gate.input", "pre_mlp_layernorm.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {MOE, "mlp.gate.1", "mlp.router.probs", ASSAY_AXES_BATCH_FIRST, ASSAY_RELATION_ROWS},
    {MOE, "mlp.gate.2", "mlp.router.indices", ASSAY_AXES_BATCH_FIRST, ASSAY_RELATION_ROWS},
    {ALWAYS, "", "mlp.residual.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
};
/* Gradients under the names of the operation that made them. */
static const between of_backward[] = {
    {ALWAYS, "input_layernorm.dx", "input_layernorm.dx", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "post_attention_layernorm.dx", "pre_mlp_layernorm.dx", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "self_attn.core_attention.do", "self_attention.core_attention.o.grad", ASSAY_AXES_SAME, EQUAL},
    {ALWAYS, "self_attn.core_attention.dq", "self_attention.rope_q.y.grad", ASSAY_AXES_SAME, EQUAL},
    {WHOLE_HEADS, "self_attn.core_attention.dk", "self_attention.rope_k.y.grad", ASSAY_AXES_SAME, EQUAL},
    {UNCLIPPED_HEADS, "self_attn.core_attention.dv", "self_attention.qkv_split.v.grad", ASSAY_AXES_SAME,
     EQUAL},
    {CLIPPED_HEADS, "self_attn.core_attention.dv", "self_attention.clip_v.y.grad", ASSAY_AXES_SAME, EQUAL},
    {MLA, "self_attn.core_attention.dk", "self_attention.rope_kv.k.grad", ASSAY_AXES_SAME, EQUAL},
    {MLA, "self_attn.core_attention.dv", "self_attention.rope_kv.v.grad", ASSAY_AXES_SAME, EQUAL},
    {MLA_Q, "self_attn.q_a_layernorm.dx", "self_attention.linear_q_down_proj.y.grad", ASSAY_AXES_BATCH_FIRST,
     EQUAL},
    {MLA, "self_attn.kv_a_layernorm.dx", "self_attention.kv_down_split.kv_compressed.grad",
     ASSAY_AXES_BATCH_FIRST, EQUAL},
    {WHOLE_HEADS, "self_attn.rope_q.dy", "self_attention.rope_q.y.grad", ASSAY_AXES_SAME, EQUAL},
    {WHOLE_HEADS, "self_attn.rope_k.dy", "self_attention.rope_k.y.grad", ASSAY_AXES_SAME, EQUAL},
    {PLAIN_HEADS, "self_attn.rope_q.dx", "self_attention.qkv_split.q.grad", ASSAY_AXES_SAME, EQUAL},
    {PLAIN_HEADS, "self_attn.rope_k.dx", "self_attention.qkv_split.k.grad", ASSAY_AXES_SAME, EQUAL},
    {NORMED_HEADS, "self_attn.rope_q.dx", "self_attention.q_layernorm.y.grad", ASSAY_AXES_SAME, EQUAL},
    {NORMED_HEADS, "self_attn.rope_k.dx", "self_attention.k_layernorm.y.grad", ASSAY_AXES_SAME, EQUAL},
    {CLIPPED_HEADS, "self_attn.rope_q.dx", "self_attention.clip_q.y.grad", ASSAY_AXES_SAME, EQUAL},
    {CLIPPED_HEADS, "self_attn.rope_k.dx", "self_attention.clip_k.y.grad", ASSAY_AXES_SAME, EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_q.dy", "self_attention.clip_q.y.grad", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_k.dy", "self_attention.clip_k.y.grad", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_v.dy", "self_attention.clip_v.y.grad", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_q.dx", "self_attention.q_layernorm.y.grad", ASSAY_AXES_BATCH_FIRST,
     EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_k.dx", "self_attention.k_layernorm.y.grad", ASSAY_AXES_BATCH_FIRST,
     EQUAL},
    {CLIPPED_HEADS, "self_attn.clip_v.dx", "self_attention.qkv_split.v.grad", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {DENSE, "mlp.activation.dy", "mlp.activation.y.grad", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {DENSE, "mlp.activation.dx", "mlp.linear_fc1.y.grad", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {MOE, "mlp.gate.dy", "mlp.router.gating.y.grad", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {MOE, "mlp.gate.dx", "mlp.router.gating.dx", ASSAY_AXES_BATCH_FIRST, EQUAL},
};
/* An addition hands its gradient on: what is added has the gradient of the sum, and ours may be recorded under that name alone. */
static const between added[] = {
    {ALWAYS, "self_attn", "self_attention.residual.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "self_attn.o_proj", "self_attention.residual.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "mlp", "mlp.residual.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "mlp.residual.b", "mlp.residual.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {DENSE, "mlp.down_proj", "mlp.residual.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {MOE, "mlp.experts", "mlp.residual.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
};
static const between of_model[] = {
    {ALWAYS, "input_ids", "input_ids", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "model.rotary_emb.cos", "rope.cos", ASSAY_AXES_SAME, EQUAL},
    {ALWAYS, "model.rotary_emb.sin", "rope.sin", ASSAY_AXES_SAME, EQUAL},
    {ALWAYS, "logits", "output_layer.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {TIED, "lm_head", "output_layer.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {TIED, "lm_head.dy", "output_layer.y.grad", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {TIED, "lm_head.input", "decoder.final_layernorm.y", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {TIED, "lm_head.dx", "decoder.final_layernorm.y.grad", ASSAY_AXES_BATCH_FIRST, EQUAL},
    {ALWAYS, "loss", "loss.loss", ASSAY_AXES_SAME, ASSAY_RELATION_MEAN},
    {ALWAYS, "loss_function", "loss.loss", ASSAY_AXES_SAME, ASSAY_RELATION_MEAN},
};

/* The row of a tensor and, unless it has none, that of its gradient. */
static assay_status add_pair(assay_names *n, const char *theirs, const char *ours, const assay_name_row *like,
                             bool gradient)
{
    assay_name_row row = *like;
    for (int k = 0; k < (gradient ? 2 : 1); k++) {
        const char *suffix = k == 0 ? "" : ".grad";
        row.phase = row.their_phase = k == 0 ? ASSAY_PHASE_FORWARD : ASSAY_PHASE_BACKWARD;
        ASSAY_CHECK(
            snprintf(row.theirs, sizeof row.theirs, "%.*s%s", ASSAY_NAME - 8, theirs, suffix) < ASSAY_NAME &&
                snprintf(row.ours, sizeof row.ours, "%.*s%s", ASSAY_NAME - 8, ours, suffix) < ASSAY_NAME,
            ASSAY_LIMIT, "%s: name too long", theirs);
        ASSAY_TRY(assay_names_add(n, &row));
    }
    return ASSAY_OK;
}

static assay_status add_backward(assay_names *n, const char *theirs, const char *ours,
                                 const assay_name_row *like)
{
    assay_name_row row = *like;
    row.phase = row.their_phase = ASSAY_PHASE_BACKWARD;
    snprintf(row.theirs, sizeof row.theirs, "%s", theirs);
    snprintf(row.ours, sizeof row.ours, "%s", ours);
    return assay_names_add(n, &row);
}

/* "Y.weight" -> "Y"; false for what names no output: a bias, an expert's part. */
static bool module_of(const char *parameter, char *out, size_t capacity)
{
    static const char word[] = ".weight";
    const size_t length = strlen(parameter), suffix = sizeof word - 1;
    if (length <= suffix || length - suffix >= capacity || strcmp(parameter + length - suffix, word) != 0)
        return false;
    memcpy(out, parameter, length - suffix);
    out[length - suffix] = '\0';
    return true;
}

/* Name of a parameter or module without "decoder.layers.N.". */
static const char *in_layer(const assay_param_spec *p, const char *name)
{
    char prefix[40];
    const int length = snprintf(prefix, sizeof prefix, "decoder.layers.%lld.", (long long)p->layer);
    return p->layer >= 0 && strncmp(name, prefix, (size_t)length) == 0 ? name + length : name;
}

static void full_name(const assay_param_spec *p, const char *rest, char out[ASSAY_NAME])
{
    if (p->layer >= 0)
        snprintf(out, ASSAY_NAME, "decoder.layers.%lld.%s", (long long)p->layer, rest);
    else
        snprintf(out, ASSAY_NAME, "%s", rest);
}

static void output_name(const assay_param_spec *p, const char *module, char out[ASSAY_NAME])
{
    const char *rest = in_layer(p, module);
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "%.*s.y", ASSAY_NAME - 3, rest);
    for (int i = 0; output_of[i][0] != NULL; i++)
        if (strcmp(rest, output_of[i][0]) == 0)
            snprintf(name, sizeof name, "%s", output_of[i][1]);
    full_name(p, name, out);
}

static void pieces_of(const assay_param_spec *p, const assay_hf_part *part, assay_name_row *row)
{
    if (p->n_parts < 2)
        return;
    row->n_pieces = part->n_pieces;
    row->pieces = part->pieces;
    row->their_extent = assay_hf_part_rows(part);
    row->extent = 1;
    for (int d = 0; d < p->ndim - (p->ndim > 1); d++)
        row->extent *= p->shape[d];
}

static assay_status add_inputs(assay_names *n, const assay_param_spec *p, const char *module,
                               const char *theirs, const char *output, const assay_name_row *like)
{
    char their[ASSAY_NAME], ours[ASSAY_NAME];
    const assay_name_row whole = {.axes = ASSAY_AXES_BATCH_FIRST};
    snprintf(their, sizeof their, "%.*s.dy", ASSAY_NAME - 8, theirs);
    snprintf(ours, sizeof ours, "%.*s.grad", ASSAY_NAME - 8, output);
    ASSAY_TRY(add_backward(n, their, ours, like));
    for (int i = 0; linear_inputs[i].layer != NULL; i++) {
        if (strcmp(in_layer(p, module), linear_inputs[i].layer) != 0)
            continue;
        char input[ASSAY_NAME];
        full_name(p, linear_inputs[i].input, input);
        snprintf(their, sizeof their, "%.*s.input", ASSAY_NAME - 8, theirs);
        ASSAY_TRY(add_pair(n, their, input, &whole, false));
        if (!linear_inputs[i].sole)
            continue;
        snprintf(their, sizeof their, "%.*s.dx", ASSAY_NAME - 8, theirs);
        snprintf(ours, sizeof ours, "%.*s.grad", ASSAY_NAME - 8, input);
        ASSAY_TRY(add_backward(n, their, ours, &whole));
    }
    return ASSAY_OK;
}

/* The parameter itself and the output that carries its name. */
static assay_status add_parameter(assay_names *n, const assay_param_spec *p)
{
    for (int i = 0; i < p->n_parts; i++) {
        const assay_hf_part *part = &p->parts[i];
        assay_name_row row = {.parameter = true};
        char ours[ASSAY_NAME], theirs[ASSAY_NAME], output[ASSAY_NAME];
        snprintf(row.theirs, sizeof row.theirs, "%s", part->name);
        snprintf(row.ours, sizeof row.ours, "%s", p->name);
        pieces_of(p, part, &row);
        ASSAY_TRY(assay_names_add(n, &row));
        if (p->is_expert || !module_of(part->name, theirs, sizeof theirs))
            continue;
        if (!module_of(p->name, ours, sizeof ours))
            snprintf(ours, sizeof ours, "%s", p->name);
        output_name(p, ours, output);
        row.parameter = false;
        row.axes = ASSAY_AXES_BATCH_FIRST;
        ASSAY_TRY(add_pair(n, theirs, output, &row, true));
        ASSAY_TRY(add_inputs(n, p, ours, theirs, output, &row));
    }
    return ASSAY_OK;
}

static bool holds(condition when, const assay_model_config *c, int64_t layer)
{
    const bool moe = layer >= 0 && c->mlp[layer] == ASSAY_MLP_MOE;
    const bool shared = moe && c->moe_shared_expert_intermediate_size > 0;
    switch (when) {
    case ALWAYS:
        return true;
    case TIED: /* the head has no parameter of its own that would name it */
        return c->tie_word_embeddings;
    case DENSE:
        return !moe;
    case MOE:
        return moe;
    case SHARED:
        return shared;
    case NOT_SHARED:
        return moe && !shared;
    case NORMED:
        return c->qk_layernorm;
    case PLAIN_HEADS:
        return !assay_config_is_mla(c) && !c->qk_layernorm && !(c->clip_qkv > 0.0);
    case NORMED_HEADS:
        return c->qk_layernorm && !(c->clip_qkv > 0.0);
    case CLIPPED_HEADS:
        return c->clip_qkv > 0.0;
    case UNCLIPPED_HEADS:
        return !assay_config_is_mla(c) && !(c->clip_qkv > 0.0);
    case WHOLE_HEADS:
        return !assay_config_is_mla(c);
    case MLA:
        return assay_config_is_mla(c);
    case MLA_Q:
        return assay_config_is_mla(c) && c->q_lora_rank > 0;
    }
    return false;
}

static assay_status add_added(assay_names *n, int64_t layer)
{
    for (size_t i = 0; i < sizeof added / sizeof *added; i++) {
        static const char *const suffixes[] = {".grad", ".dy"};
        const assay_name_row row = {.axes = added[i].axes};
        char ours[ASSAY_NAME];
        if (!holds(added[i].when, &n->spec->config, layer))
            continue;
        snprintf(ours, sizeof ours, "decoder.layers.%lld.%s.grad", (long long)layer, added[i].ours);
        for (int k = 0; k < 2; k++) {
            char theirs[ASSAY_NAME];
            snprintf(theirs, sizeof theirs, "model.layers.%lld.%s%s", (long long)layer, added[i].theirs,
                     suffixes[k]);
            ASSAY_TRY(add_backward(n, theirs, ours, &row));
        }
    }
    return ASSAY_OK;
}

/* The module of the shared expert is called as its class says. */
static void their_name(const assay_names *n, int64_t layer, const char *name, char out[ASSAY_NAME])
{
    static const char word[] = "mlp.shared_expert";
    const bool shared = strncmp(name, word, sizeof word - 1) == 0;
    snprintf(out, ASSAY_NAME, "model.layers.%lld%s%s%s", (long long)layer, name[0] != '\0' ? "." : "",
             shared ? assay_hf_class_of(n->spec->config.arch)->moe.shared : "",
             shared ? name + sizeof word - 1 : name);
}

static assay_status add_between(assay_names *n, int64_t layer)
{
    for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++) {
        const between *b = &of_layer[i];
        char theirs[ASSAY_NAME], ours[ASSAY_NAME];
        if (!holds(b->when, &n->spec->config, layer))
            continue;
        their_name(n, layer, b->theirs, theirs);
        const bool shared = strncmp(b->ours, "rope.", 5) == 0; /* one table for all layers */
        if (shared)
            snprintf(ours, sizeof ours, "%s", b->ours);
        else
            snprintf(ours, sizeof ours, "decoder.layers.%lld.%s", (long long)layer, b->ours);
        const assay_name_row row = {.axes = b->axes, .relation = b->relation};
        ASSAY_TRY(add_pair(n, theirs, ours, &row, b->relation == EQUAL && !shared));
    }
    for (size_t i = 0; i < sizeof of_backward / sizeof *of_backward; i++) {
        const between *b = &of_backward[i];
        const assay_name_row row = {.axes = b->axes};
        char theirs[ASSAY_NAME], ours[ASSAY_NAME];
        if (!holds(b->when, &n->spec->config, layer))
            continue;
        snprintf(theirs, sizeof theirs, "model.layers.%lld.%s", (long long)layer, b->theirs);
        snprintf(ours, sizeof ours, "decoder.layers.%lld.%s", (long long)layer, b->ours);
        ASSAY_TRY(add_backward(n, theirs, ours, &row));
    }
    return add_added(n, layer);
}

/* transformers 5 keeps all experts of a layer in two tensors, and calls the module `mlp` whatever the files say. */
static assay_status add_stacked_experts(assay_names *n, const assay_param_spec *p)
{
    static const char *const words[][2] = {
        {"mlp.experts.linear_fc1.weight", "mlp.experts.gate_up_proj"},
        {"mlp.experts.linear_fc2.weight", "mlp.experts.down_proj"},
        {"mlp.router.weight", "mlp.gate.weight"},
    };
    const bool other = strcmp(assay_hf_class_of(n->spec->config.arch)->moe.block, "mlp") != 0;
    assay_name_row row = {.parameter = true};
    for (int i = 0; i < 3; i++) {
        if (strcmp(in_layer(p, p->name), words[i][0]) != 0 || (i == 2 && !other))
            continue;
        snprintf(row.theirs, sizeof row.theirs, "model.layers.%lld.%s", (long long)p->layer, words[i][1]);
        snprintf(row.ours, sizeof row.ours, "%s", p->name);
        ASSAY_TRY(assay_names_add(n, &row));
        if (i == 2) {
            char output[ASSAY_NAME];
            const assay_name_row whole = {.axes = ASSAY_AXES_BATCH_FIRST};
            row.theirs[strlen(row.theirs) - strlen(".weight")] = '\0';
            full_name(p, "mlp.router.gating.y", output);
            ASSAY_TRY(add_pair(n, row.theirs, output, &whole, true));
        }
    }
    return ASSAY_OK;
}

assay_status assay_names_fill(assay_names *n)
{
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model; i++) {
        const between *b = &of_model[i];
        const assay_name_row row = {.axes = b->axes, .relation = b->relation};
        if (!holds(b->when, &n->spec->config, -1))
            continue;
        const bool backward = strstr(b->theirs, ".dy") != NULL || strstr(b->theirs, ".dx") != NULL;
        ASSAY_TRY(backward ? add_backward(n, b->theirs, b->ours, &row)
                           : add_pair(n, b->theirs, b->ours, &row, strcmp(b->ours, "output_layer.y") == 0));
    }
    for (int64_t i = 0; i < n->spec->n_params; i++) {
        const assay_param_spec *p = &n->spec->params[i];
        ASSAY_TRY(add_parameter(n, p));
        if (p->layer >= 0 && n->spec->config.mlp[p->layer] == ASSAY_MLP_MOE)
            ASSAY_TRY(add_stacked_experts(n, p));
    }
    for (int64_t l = 0; l < n->spec->config.num_layers; l++)
        ASSAY_TRY(add_between(n, l));
    return assay_names_sort_heads(n);
}
