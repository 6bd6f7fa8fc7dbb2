/* Dry run: how large a call is, and what a rank sends for it.
 *
 * Sent by one of n ranks for W bytes of the whole tensor, in a ring: all_reduce 2(n-1)/n W, all_gather and reduce_scatter
 * (n-1)/n W, all_to_all (n-1)/n of the rank's own rows (experts chosen evenly), send W.  A receive sends nothing. */
#include "core/model/sequence.h"
#include "parity/dry/dry.h"

#include <stdlib.h>
#include <string.h>

typedef struct sizes {
    double region; /* rows of the tensor-parallel regions: sequence of this cp rank times batch */
    double shard;  /* rows of one tp rank's piece */
    double hidden;
} sizes;

static assay_status sizes_of(const dry *d, int rank, sizes *out)
{
    assay_sequence_map map;
    ASSAY_TRY(assay_sequence_map_make(&d->grid, rank, d->o.seq_length, &map));
    const double b = (double)d->o.micro_batch_size;
    int64_t start, length;
    assay_split(map.region.length, d->grid.size[ASSAY_AXIS_TP],
                assay_grid_coord(&d->grid, ASSAY_AXIS_TP, rank), &start, &length);
    *out = (sizes){.region = b * (double)map.region.length,
                   .shard = b * (double)length,
                   .hidden = (double)d->config.hidden_size};
    return ASSAY_OK;
}

/* Elements of an instance, by the end of its name. */
typedef enum {
    HIDDEN_REGION,
    ONE_A_TOKEN,
    HIDDEN_ROWS,
    PROBS_ROWS,
    HIDDEN_ROWS_ETP,
    PROBS_ROWS_ETP,
    KEYS,
    VALUES,
    Q_COMPRESSED,
    KV_COMPRESSED,
    K_POSITION,
    OWN_QUERIES,
    OWN_KEYS,
    OWN_VALUES,
    OWN_OUTPUT,
    LOSS_STATS,
    EXPERTS,
    EXPERTS_SETS,
    ONE,
    BETWEEN_STAGES
} form;
static const struct {
    const char *end;
    form form;
} forms[] = {
    {"embedding.reduce", HIDDEN_REGION},
    {"self_attention.gather", HIDDEN_REGION},
    {"self_attention.reduce", HIDDEN_REGION},
    {"self_attention.reduce_grad", HIDDEN_REGION},
    {"q_layernorm.reduce", ONE_A_TOKEN},
    {"q_layernorm.reduce_grad", ONE_A_TOKEN},
    {"k_layernorm.reduce", ONE_A_TOKEN},
    {"k_layernorm.reduce_grad", ONE_A_TOKEN},
    {"mlp.gather", HIDDEN_REGION},
    {"mlp.reduce", HIDDEN_REGION},
    {"mlp.reduce_grad", HIDDEN_REGION},
    {"mlp.scatter", HIDDEN_REGION},
    {"mlp.gather_tokens", HIDDEN_REGION},
    {"shared_experts.gather", HIDDEN_REGION},
    {"shared_experts.reduce", HIDDEN_REGION},
    {"decoder.gather", HIDDEN_REGION},
    {"output_layer.reduce_grad", HIDDEN_REGION},
    {"mlp.dispatch", HIDDEN_ROWS},
    {"mlp.combine", HIDDEN_ROWS},
    {"mlp.dispatch_probs", PROBS_ROWS},
    {"mlp.dispatch_counts", EXPERTS_SETS},
    {"mlp.experts.gather", HIDDEN_ROWS_ETP},
    {"mlp.experts.reduce", HIDDEN_ROWS_ETP},
    {"mlp.experts.gather_probs", PROBS_ROWS_ETP},
    {"self_attention.gather_k", KEYS},
    {"self_attention.gather_v", VALUES},
    {"self_attention.a2a_q", OWN_QUERIES},
    {"self_attention.a2a_o", OWN_OUTPUT},
    {"self_attention.a2a_k", OWN_KEYS},
    {"self_attention.a2a_v", OWN_VALUES},
    {"send_k", OWN_KEYS},
    {"send_v", OWN_VALUES},
    {"send_dk", OWN_KEYS},
    {"send_dv", OWN_VALUES},
    {"recv_k", OWN_KEYS},
    {"recv_v", OWN_VALUES},
    {"recv_dk", OWN_KEYS},
    {"recv_dv", OWN_VALUES},
    {"router.aux_counts", EXPERTS},
    {"router.expert_counts", EXPERTS},
    {"self_attention.q_proj.gather", HIDDEN_REGION},
    {"self_attention.q_proj.reduce_grad", HIDDEN_REGION},
    {"self_attention.q_up.gather", Q_COMPRESSED},
    {"self_attention.q_up.reduce_grad", Q_COMPRESSED},
    {"self_attention.kv_up.gather", KV_COMPRESSED},
    {"self_attention.kv_up.reduce_grad", KV_COMPRESSED},
    {"self_attention.k_pos.gather", K_POSITION},
    {"self_attention.k_pos.reduce_grad", K_POSITION},
    {"loss.gather", LOSS_STATS},
    {"loss.reduce", ONE},
    {"grad_norm.reduce", ONE},
    {"pipeline.recv_forward", BETWEEN_STAGES},
    {"pipeline.send_forward", BETWEEN_STAGES},
    {"pipeline.recv_backward", BETWEEN_STAGES},
    {"pipeline.send_backward", BETWEEN_STAGES},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0 && (n == k || text[n - k - 1] == '.');
}

/* Elements of one token's queries, keys, values and attention output on a tensor-parallel rank. */
typedef struct widths {
    double q, k, v, o;
} widths;

static widths widths_of(const dry *d, const char *name)
{
    const assay_model_config *c = &d->config;
    const double tp = d->grid.size[ASSAY_AXIS_TP], heads = (double)c->num_attention_heads / tp;
    const char *const layers = "decoder.layers.";
    const bool in_layer = strncmp(name, layers, strlen(layers)) == 0;
    if (in_layer && c->mixer[strtoll(name + strlen(layers), NULL, 10)] == ASSAY_MIXER_MLA) {
        const double qk = (double)(c->qk_head_dim + c->qk_pos_emb_head_dim), v = (double)c->v_head_dim;
        return (widths){heads * qk, heads * qk, heads * v, heads * v}; /* every head has its own keys */
    }
    const double d_head = (double)c->kv_channels, groups = (double)c->num_query_groups / tp;
    return (widths){heads * d_head, groups * d_head, groups * d_head, heads * d_head};
}

static double elements(const dry *d, const sizes *s, const widths *w, form which)
{
    const assay_model_config *c = &d->config;
    switch (which) {
    case HIDDEN_REGION:
        return s->region * s->hidden;
    case ONE_A_TOKEN:
        return s->region;
    case HIDDEN_ROWS:
        return s->shard * (double)c->moe_router_topk * s->hidden;
    case PROBS_ROWS:
        return s->shard * (double)c->moe_router_topk;
    case LOSS_STATS:
        return 3.0 * s->region * d->grid.size[ASSAY_AXIS_TP];
    case EXPERTS:
        return (double)c->num_moe_experts;
    case EXPERTS_SETS:
        return (double)c->num_moe_experts * d->grid.size[ASSAY_AXIS_EP] * d->grid.size[ASSAY_AXIS_ETP];
    case HIDDEN_ROWS_ETP:
        return s->shard * (double)c->moe_router_topk * s->hidden * d->grid.size[ASSAY_AXIS_ETP];
    case PROBS_ROWS_ETP:
        return s->shard * (double)c->moe_router_topk * d->grid.size[ASSAY_AXIS_ETP];
    case KEYS:
        return (double)d->o.micro_batch_size * (double)d->o.seq_length * w->k;
    case VALUES:
        return (double)d->o.micro_batch_size * (double)d->o.seq_length * w->v;
    case OWN_QUERIES:
        return s->region * w->q;
    case OWN_KEYS:
        return s->region * w->k;
    case OWN_VALUES:
        return s->region * w->v;
    case OWN_OUTPUT:
        return s->region * w->o;
    case Q_COMPRESSED:
        return s->region * (double)c->q_lora_rank;
    case KV_COMPRESSED:
        return s->region * (double)c->kv_lora_rank;
    case K_POSITION:
        return s->region * (double)c->qk_pos_emb_head_dim;
    case ONE:
        return 1.0;
    case BETWEEN_STAGES:
        return (d->grid.p.sequence_parallel ? s->shard : s->region) * s->hidden;
    }
    return 0.0;
}

assay_status dry_elements(const dry *d, int rank, const dry_call *c, double *out)
{
    const char *name = d->names.text[c->name];
    sizes s;
    ASSAY_TRY(sizes_of(d, rank, &s));
    for (int i = 0; i < N_FORMS; i++)
        if (ends_with(name, forms[i].end)) {
            const widths w = widths_of(d, name);
            *out = elements(d, &s, &w, forms[i].form);
            return ASSAY_OK;
        }
    const assay_param_spec *p = assay_spec_find(d->spec, name);
    ASSAY_CHECK(p != NULL, ASSAY_UNSUPPORTED, "dry run: %s %s: expected an instance whose size is known",
                dry_op_name(c->op), name);
    assay_shard shard;
    ASSAY_TRY(assay_param_shard(p, &d->grid, rank, &shard));
    *out = (double)assay_shard_count(&shard);
    /* Copies of a sharded state sum their own parts; so do the ends of a tied embedding whose gradient is scattered first. */
    if (c->group == assay_param_replica_group(p) ||
        (c->group == ASSAY_GROUP_EMBEDDING && d->grid.p.zero_stage >= 2))
        *out /= assay_grid_group_shape(&d->grid, assay_param_shard_group(p, &d->grid), rank).size;
    return ASSAY_OK;
}

static double sent(dry_op op, double n, double bytes)
{
    const double others = n > 0 ? (n - 1.0) / n : 0.0;
    switch (op) {
    case DRY_ALL_REDUCE:
        return 2.0 * others * bytes;
    case DRY_ALL_GATHER:
    case DRY_REDUCE_SCATTER:
    case DRY_ALL_TO_ALL:
        return others * bytes;
    case DRY_SEND:
        return bytes;
    case DRY_RECV:
    case DRY_OPS:
        return 0.0;
    }
    return 0.0;
}

/* Elements of every instance over a kind of group once: the same names come back with every microbatch. */
static assay_status count_stage(dry *d, int stage, double *known)
{
    const int rank = stage * d->stage_ranks;
    const dry_list *list = &d->lists[stage];
    dry_wire *w = &d->wire[stage];
    w->rank = rank;
    for (int i = 0; i < d->names.n * ASSAY_GROUP_COUNT; i++)
        known[i] = -1.0;
    for (int64_t i = 0; i < list->n; i++) {
        const dry_call *c = &list->calls[i];
        double *elements_of = &known[c->name * ASSAY_GROUP_COUNT + (int)c->group];
        if (*elements_of < 0.0)
            ASSAY_TRY(dry_elements(d, rank, c, elements_of));
        const assay_group_shape group = assay_grid_group_shape(&d->grid, c->group, rank);
        const double bytes = sent(c->op, group.size, *elements_of * (double)assay_dtype_bytes(c->dtype));
        w->calls[c->group]++;
        w->bytes[c->group] += bytes;
        w->total += bytes;
    }
    return ASSAY_OK;
}

assay_status dry_count_wire(dry *d)
{
    double *known = calloc((size_t)d->names.n * ASSAY_GROUP_COUNT + 1, sizeof *known);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(known != NULL, ASSAY_OUT_OF_MEMORY, "sizes of %d instances", d->names.n);
    for (int s = 0; s < d->stages && st == ASSAY_OK; s++)
        st = count_stage(d, s, known);
    free(known);
    return st;
}
