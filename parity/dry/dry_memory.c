/* Dry run: memory of a rank, by formula (docs/LAYOUTS.md 9).  Counts of parameters are exact, of every rank; activations
 * are the tensors that a backward reads, times the microbatches in flight by the schedule. */
#include "core/model/recipe.h"
#include "core/model/sequence.h"
#include "parity/dry/dry.h"

#include <stdlib.h>

enum { NONE, SELECTIVE, FULL };

typedef struct shape {
    double region, shard, rows; /* tokens: of regions, of one tp piece, of the residual stream */
    double sequence;            /* tokens of the whole sequence */
    double act, sum;            /* bytes of an activation, of a sum */
    double tp, h;
} shape;

static assay_status shape_of(const dry *d, int rank, shape *s)
{
    assay_sequence_map map;
    int64_t start, length;
    const assay_recipe *r = assay_recipe_of(d->o.precision);
    ASSAY_TRY(assay_sequence_map_make(&d->grid, rank, d->o.seq_length, &map));
    assay_split(map.region.length, d->grid.size[ASSAY_AXIS_TP],
                assay_grid_coord(&d->grid, ASSAY_AXIS_TP, rank), &start, &length);
    const double b = (double)d->o.micro_batch_size;
    s->region = b * (double)map.region.length;
    s->shard = b * (double)length;
    s->sequence = b * (double)d->o.seq_length;
    s->rows = d->grid.p.sequence_parallel ? s->shard : s->region;
    s->act = (double)assay_dtype_bytes(r->op[ASSAY_OPS_LINEAR].act);
    s->sum = (double)assay_dtype_bytes(r->op[ASSAY_OPS_LINEAR].accumulate);
    s->tp = d->grid.size[ASSAY_AXIS_TP];
    s->h = (double)d->config.hidden_size;
    return ASSAY_OK;
}

/* Bytes that one microbatch of a layer keeps.  [0] all, [1] without what selective recomputation makes again: outputs
 * of norms, gathered inputs, rotated heads, outputs of activation functions. */
static void attention(const dry *d, const shape *s, double kept[2])
{
    const assay_model_config *c = &d->config;
    const double heads = (double)c->num_attention_heads * (double)c->kv_channels / s->tp;
    const double keys = (double)c->num_query_groups * (double)c->kv_channels / s->tp;
    const double norm_out = s->rows * s->h * s->act;
    const double gathered = d->grid.p.sequence_parallel ? s->region * s->h * s->act : 0.0;
    const double normed = c->qk_layernorm ? s->region * (heads + keys) * s->act : 0.0;
    const double rotated = s->region * (heads + keys) * s->act;
    const double lse = s->region * (double)c->num_attention_heads / s->tp * s->sum;
    const double rstd = s->rows * s->sum;
    /* keys and values of all cp ranks */
    const double gathered_keys = d->grid.size[ASSAY_AXIS_CP] > 1 ? 2.0 * s->sequence * keys * s->act : 0.0;
    kept[1] = s->rows * s->h * s->act + rstd + s->region * (heads + 2.0 * keys) * s->act +
              s->region * heads * s->act + lse + gathered_keys;
    kept[0] = kept[1] + norm_out + gathered + normed + rotated;
}

/* q and kv compressed; q, k and v of this tp rank's heads; [1] makes the norms' outputs and what is gathered again. */
static void mla(const dry *d, const shape *s, double kept[2])
{
    const assay_model_config *c = &d->config;
    const double heads = (double)c->num_attention_heads / s->tp;
    const double qk = (double)(c->qk_head_dim + c->qk_pos_emb_head_dim), v = (double)c->v_head_dim;
    const double inner = (double)(c->q_lora_rank + c->kv_lora_rank);
    const double q_read = c->q_lora_rank > 0 ? (double)c->q_lora_rank : s->h;
    const double gathered =
        d->grid.p.sequence_parallel ? s->region * (q_read + (double)c->kv_lora_rank) * s->act : 0.0;
    const double all_keys =
        d->grid.size[ASSAY_AXIS_CP] > 1 ? s->sequence * heads * (qk + v) * s->act : 0.0; /* of all cp ranks */
    const double norms = c->q_lora_rank > 0 ? 3.0 : 2.0;
    kept[1] = all_keys + s->rows * (s->h + inner) * s->act + norms * s->rows * s->sum +
              s->region * heads * (2.0 * qk + 2.0 * v) * s->act + s->region * heads * s->sum;
    kept[0] = kept[1] + s->rows * (s->h + inner) * s->act + gathered;
}

/* Gate and up, and their product, of `rows` tokens and width f of this rank. */
static void gated(const shape *s, double rows, double f, double kept[2])
{
    kept[1] += rows * 2.0 * f * s->act;
    kept[0] += rows * 3.0 * f * s->act;
}

static void mlp(const dry *d, const shape *s, bool moe, double kept[2])
{
    const assay_model_config *c = &d->config;
    const double residual = s->rows * s->h * s->act + s->rows * s->sum, norm_out = s->rows * s->h * s->act;
    kept[1] = residual;
    kept[0] = residual + norm_out;
    if (!moe) {
        kept[0] += d->grid.p.sequence_parallel ? s->region * s->h * s->act : 0.0;
        gated(s, s->region, (double)c->ffn_hidden_size / s->tp, kept);
        return;
    }
    /* logits, scores; rows of the experts: as many as this rank's tokens have choices, when they are even */
    const double etp = d->grid.size[ASSAY_AXIS_ETP];
    const double k = (double)c->moe_router_topk, rows = s->shard * k * etp, e = (double)c->num_moe_experts;
    const double router = s->shard * (2.0 * e + 2.0 * k) * s->sum;
    const bool exchange = d->grid.size[ASSAY_AXIS_EP] > 1 || etp > 1.0;
    const double exchanged = rows * (s->h * s->act + s->sum) * (exchange ? 2.0 : 1.0);
    const double returned = rows * s->h * s->act;
    kept[1] += router + exchanged + returned;
    kept[0] += router + exchanged + returned;
    gated(s, rows, (double)c->moe_ffn_hidden_size / etp, kept);
    if (c->moe_shared_expert_intermediate_size > 0) {
        kept[0] += s->tp > 1.0 ? s->region * s->h * s->act : 0.0;
        gated(s, s->region, (double)c->moe_shared_expert_intermediate_size / s->tp, kept);
    }
}

/* A chunk's layers of one microbatch; with full recomputation its layers' inputs alone. */
static void chunk_bytes(const dry *d, const shape *s, int stage, int chunk, double bytes[DRY_RECOMPUTES],
                        double *widest)
{
    int64_t first, count;
    assay_grid_stage_layers(&d->grid, &d->config, stage, chunk, &first, &count);
    for (int64_t l = first; l < first + count; l++) {
        double a[2], m[2];
        (d->config.mixer[l] == ASSAY_MIXER_MLA ? mla : attention)(d, s, a);
        mlp(d, s, d->config.mlp[l] == ASSAY_MLP_MOE, m);
        bytes[NONE] += a[0] + m[0];
        bytes[SELECTIVE] += a[1] + m[1];
        bytes[FULL] += s->rows * s->h * s->act;
        *widest = a[0] + m[0] > *widest ? a[0] + m[0] : *widest;
    }
}

/* Final norm, its output gathered, logits and their gradient. */
static double head_bytes(const dry *d, const shape *s)
{
    const double vocabulary = (double)d->config.vocab_size / s->tp;
    return s->rows * s->h * s->act * 2.0 + s->rows * s->sum +
           (d->grid.p.sequence_parallel ? s->region * s->h * s->act : 0.0) +
           s->region * vocabulary * (s->sum + s->act) + 5.0 * s->region * s->sum;
}

static assay_status activations(const dry *d, int stage, dry_memory *out)
{
    const int chunks = d->grid.p.virtual_pipeline_model_parallel_size;
    const int64_t n = 2 * d->o.num_microbatches * chunks;
    plan_pass *passes = calloc((size_t)n, sizeof *passes);
    double(*bytes)[DRY_RECOMPUTES] = calloc((size_t)chunks, sizeof *bytes);
    double now[DRY_RECOMPUTES] = {0}, widest = 0.0;
    shape s;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(passes && bytes, ASSAY_OUT_OF_MEMORY, st, done, "a schedule of %lld passes",
                     (long long)n);
    ASSAY_TRY_GOTO(shape_of(d, out->rank, &s), st, done);
    for (int c = 0; c < chunks; c++) {
        chunk_bytes(d, &s, stage, c, bytes[c], &widest);
        if (stage == d->stages - 1 && c == chunks - 1)
            for (int k = 0; k < DRY_RECOMPUTES; k++)
                bytes[c][k] += head_bytes(d, &s);
    }
    plan_schedule(d->stages, chunks, stage, d->o.num_microbatches, passes);
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < DRY_RECOMPUTES; k++) {
            now[k] += (passes[i].backward ? -1.0 : 1.0) * bytes[passes[i].chunk][k];
            out->activations[k] = now[k] > out->activations[k] ? now[k] : out->activations[k];
        }
    out->activations[FULL] += widest;
done:
    free(passes);
    free(bytes);
    return st;
}

void dry_states(const dry *d, int rank, dry_memory *m)
{
    const assay_recipe *r = assay_recipe_of(d->o.precision);
    const dry_rank *held = &d->ranks[rank];
    const char *const *names;
    const double n = (double)(held->dense + held->experts), owned = (double)held->owned;
    const double state = (double)assay_dtype_bytes(r->op[ASSAY_OPS_OPTIMIZER].weight);
    const int zero = d->grid.p.zero_stage;
    *m = (dry_memory){.rank = rank};
    m->parameters = (zero >= 3 ? owned : n) * (double)assay_dtype_bytes(r->op[ASSAY_OPS_LINEAR].weight) +
                    (double)held->buffers * state;
    m->gradients = (zero >= 2 ? owned : n) * state;
    m->masters = owned * state;
    m->moments = owned * state * assay_optimizer_states(ASSAY_OPTIMIZER_ADAM, &names);
}

double dry_memory_total(const dry_memory *m, int recompute)
{
    return m->parameters + m->gradients + m->masters + m->moments + m->activations[recompute];
}

assay_status dry_rank_memory(const dry *d, int rank, dry_memory *out)
{
    dry_states(d, rank, out);
    return activations(d, rank / d->stage_ranks, out);
}

/* Ranks of a stage run the same schedule: the one that holds most needs most. */
assay_status dry_count_memory(dry *d)
{
    for (int s = 0; s < d->stages; s++) {
        dry_memory least = {.rank = -1};
        for (int i = 0; i < d->stage_ranks; i++) {
            dry_memory one;
            dry_states(d, s * d->stage_ranks + i, &one);
            if (i == 0 || dry_memory_total(&one, NONE) > dry_memory_total(&d->memory[s], NONE))
                d->memory[s] = one;
            if (i == 0 || dry_memory_total(&one, NONE) < dry_memory_total(&least, NONE))
                least = one;
        }
        ASSAY_TRY(activations(d, s, &d->memory[s]));
        ASSAY_TRY(activations(d, s, &least));
        if (s == 0 || dry_memory_total(&least, NONE) < dry_memory_total(&d->least, NONE))
            d->least = least;
    }
    return ASSAY_OK;
}
