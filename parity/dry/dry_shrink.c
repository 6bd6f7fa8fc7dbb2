/* Dry run: a model and a layout that a simulator can run, with the same axes greater than 1 and the same kinds of layers. */
#include "parity/dry/dry.h"

#include <string.h>

static int64_t at_most(int64_t n, int64_t limit)
{
    return n < limit ? n : limit;
}

static int two(int size)
{
    return size > 1 ? 2 : 1;
}

/* Stages that hold different numbers of layers stay so, on two stages: one layer and two. */
static void shrink_stages(assay_parallel_config *p)
{
    const bool words = p->num_layers_in_first_pipeline_stage > 0 ||
                       p->num_layers_in_last_pipeline_stage > 0 ||
                       p->pipeline_model_parallel_layout[0] != '\0';
    p->num_layers_in_first_pipeline_stage = words && p->virtual_pipeline_model_parallel_size == 1 ? 1 : 0;
    p->num_layers_in_last_pipeline_stage = 0;
    p->pipeline_model_parallel_layout[0] = '\0';
}

static void shrink_layout(const dry *d, assay_parallel_config *p)
{
    const assay_parallel_config *o = &d->grid.p;
    *p = *o;
    p->tensor_model_parallel_size = two(o->tensor_model_parallel_size);
    p->context_parallel_size = two(o->context_parallel_size);
    p->pipeline_model_parallel_size = two(o->pipeline_model_parallel_size);
    p->virtual_pipeline_model_parallel_size = two(o->virtual_pipeline_model_parallel_size);
    p->expert_model_parallel_size = two(o->expert_model_parallel_size);
    p->expert_tensor_parallel_size = two(o->expert_tensor_parallel_size);
    p->data_parallel_size = two(o->data_parallel_size);
    shrink_stages(p);
    /* Experts stay replicated where they were, and their ranks must divide those of a stage. */
    const int expert = p->expert_model_parallel_size * p->expert_tensor_parallel_size * two(d->grid.edp);
    while (p->tensor_model_parallel_size * p->context_parallel_size * p->data_parallel_size % expert != 0)
        p->data_parallel_size *= 2;
}

/* Layers of every kind that the model has: the first one and the last ones of the whole. */
static void shrink_layers(const assay_model_config *o, const assay_parallel_config *p, assay_model_config *c)
{
    const int64_t chunks = (int64_t)p->pipeline_model_parallel_size * p->virtual_pipeline_model_parallel_size;
    c->num_layers = chunks > 1 ? chunks : 2;
    if (p->num_layers_in_first_pipeline_stage > 0)
        c->num_layers++;
    /* Embedding and loss count as layers: two things for every stage. */
    if (p->account_for_embedding_in_pipeline_split || p->account_for_loss_in_pipeline_split)
        c->num_layers =
            2 * chunks - p->account_for_embedding_in_pipeline_split - p->account_for_loss_in_pipeline_split;
    c->num_layers = at_most(o->num_layers, c->num_layers);
    for (int64_t l = 0; l < c->num_layers; l++) {
        const int64_t from = l == 0 ? 0 : o->num_layers - c->num_layers + l;
        c->mixer[l] = o->mixer[from];
        c->mlp[l] = o->mlp[from];
        c->window[l] = o->window[from] > 0 ? 5 : 0;
    }
}

/* shared: several tp ranks hold the same key and value head, and still do. */
static void shrink_model(const assay_model_config *o, const assay_parallel_config *p, bool shared,
                         assay_model_config *c)
{
    const int tp = p->tensor_model_parallel_size;
    const int64_t heads_of_group = at_most(o->num_attention_heads / o->num_query_groups, 2);
    *c = *o;
    shrink_layers(o, p, c);
    c->num_query_groups = shared ? 1 : 2;
    c->num_attention_heads = c->num_query_groups * heads_of_group;
    c->kv_channels = 16;
    if (assay_config_is_mla(o)) {
        c->qk_head_dim = 10;
        c->qk_pos_emb_head_dim = c->kv_channels - c->qk_head_dim;
        c->v_head_dim = 12;
        c->q_lora_rank = at_most(o->q_lora_rank, 14);
        c->kv_lora_rank = 18;
    }
    c->hidden_size = c->qk_layernorm_full_width ? c->num_attention_heads * c->kv_channels : 40;
    c->ffn_hidden_size = 24 * tp;
    c->vocab_size = 131; /* nothing divides it */
    c->pad_token_id = c->pad_token_id >= 0 ? at_most(c->pad_token_id, 130) : -1;
    if (o->num_moe_experts == 0)
        return;
    c->num_moe_experts = 8;
    c->moe_router_topk = at_most(o->moe_router_topk, 2);
    c->moe_ffn_hidden_size = 12 * p->expert_tensor_parallel_size;
    c->moe_shared_expert_intermediate_size = o->moe_shared_expert_intermediate_size > 0 ? 12 * tp : 0;
    if (o->ffn_hidden_size == o->moe_ffn_hidden_size) /* one number of the folder's config.json (OLMoE) */
        c->ffn_hidden_size = c->moe_ffn_hidden_size;
    if (o->moe_router_num_groups > 0) {
        c->moe_router_num_groups = 2;
        c->moe_router_group_topk = 1;
    }
}

static void tell(FILE *out, const char *name, int64_t from, int64_t to)
{
    if (from != to)
        fprintf(out, "  %-38s %8lld -> %lld\n", name, (long long)from, (long long)to);
}

static void tell_all(const dry *d, FILE *out, const assay_parallel_config *p, const assay_model_config *c,
                     int world)
{
    const assay_model_config *o = &d->config;
    const assay_parallel_config *l = &d->grid.p;
    fputs("\nshrunk to what the simulator can run; every axis that is greater than 1 stays so\n", out);
    tell(out, "ranks", d->grid.world, world);
    tell(out, "tensor_model_parallel_size", l->tensor_model_parallel_size, p->tensor_model_parallel_size);
    tell(out, "context_parallel_size", l->context_parallel_size, p->context_parallel_size);
    tell(out, "pipeline_model_parallel_size", l->pipeline_model_parallel_size,
         p->pipeline_model_parallel_size);
    tell(out, "virtual_pipeline_model_parallel_size", l->virtual_pipeline_model_parallel_size,
         p->virtual_pipeline_model_parallel_size);
    tell(out, "expert_model_parallel_size", l->expert_model_parallel_size, p->expert_model_parallel_size);
    tell(out, "expert_tensor_parallel_size", l->expert_tensor_parallel_size, p->expert_tensor_parallel_size);
    tell(out, "data_parallel_size", l->data_parallel_size, p->data_parallel_size);
    tell(out, "num_layers_in_first_pipeline_stage", l->num_layers_in_first_pipeline_stage,
         p->num_layers_in_first_pipeline_stage);
    tell(out, "num_layers_in_last_pipeline_stage", l->num_layers_in_last_pipeline_stage,
         p->num_layers_in_last_pipeline_stage);
    if (l->pipeline_model_parallel_layout[0] != '\0')
        fputs("  pipeline_model_parallel_layout: replaced by num_layers_in_first_pipeline_stage\n", out);
    tell(out, "num_layers", o->num_layers, c->num_layers);
    tell(out, "hidden_size", o->hidden_size, c->hidden_size);
    tell(out, "ffn_hidden_size", o->ffn_hidden_size, c->ffn_hidden_size);
    tell(out, "num_attention_heads", o->num_attention_heads, c->num_attention_heads);
    tell(out, "num_query_groups", o->num_query_groups, c->num_query_groups);
    tell(out, "kv_channels", o->kv_channels, c->kv_channels);
    tell(out, "q_lora_rank", o->q_lora_rank, c->q_lora_rank);
    tell(out, "kv_lora_rank", o->kv_lora_rank, c->kv_lora_rank);
    tell(out, "qk_head_dim", o->qk_head_dim, c->qk_head_dim);
    tell(out, "qk_pos_emb_head_dim", o->qk_pos_emb_head_dim, c->qk_pos_emb_head_dim);
    tell(out, "v_head_dim", o->v_head_dim, c->v_head_dim);
    tell(out, "vocab_size", o->vocab_size, c->vocab_size);
    tell(out, "num_moe_experts", o->num_moe_experts, c->num_moe_experts);
    tell(out, "moe_router_topk", o->moe_router_topk, c->moe_router_topk);
    tell(out, "moe_ffn_hidden_size", o->moe_ffn_hidden_size, c->moe_ffn_hidden_size);
    tell(out, "moe_shared_expert_intermediate_size", o->moe_shared_expert_intermediate_size,
         c->moe_shared_expert_intermediate_size);
}

assay_status dry_shrink(const dry *d, FILE *out, char layout[ASSAY_LAYOUT_TEXT], json_t **case_file)
{
    enum { SEQUENCE = 21, ROWS = 2, STEPS = 2 };
    assay_parallel_config p;
    assay_model_config c;
    assay_grid grid;
    json_t *model = NULL;
    shrink_layout(d, &p);
    shrink_model(&d->config, &p, d->grid.size[ASSAY_AXIS_KV] > 1, &c);
    assay_layout_format(&p, layout);
    ASSAY_TRY(assay_grid_make(&p, &grid));
    tell_all(d, out, &p, &c, grid.world);
    tell(out, "seq_length", d->o.seq_length, SEQUENCE);
    const int64_t each = at_most(d->o.num_microbatches, 2);
    tell(out, "num_microbatches", d->o.num_microbatches, each);
    ASSAY_TRY(assay_config_to_json(&c, &model));
    *case_file = json_pack(
        "{s:s, s:s, s:o, s:{s:[], s:i, s:I, s:i, s:i, s:f}, s:[s], s:{s:i, s:f, s:f, s:f, s:f}, s:[s]}",
        "name", "dry_run", "description", "A dry run, shrunk.", "model", model, "data", "paths", "steps",
        STEPS, "microbatches", (json_int_t)(each * p.data_parallel_size), "micro_batch_size", ROWS,
        "seq_length", SEQUENCE, "mask_probability", 0.15, "layouts", layout, "training", "seed", 4321, "lr",
        2e-3, "weight_decay", 0.1, "clip_grad", 1.0, "moe_aux_loss_coeff",
        d->config.num_moe_experts > 0 ? d->o.moe_aux_loss_coeff : 0.0, "precision",
        assay_precision_name(d->o.precision));
    ASSAY_CHECK(*case_file != NULL, ASSAY_OUT_OF_MEMORY, "a case file");
    return ASSAY_OK;
}
