/* Making and freeing the state of a run; names, groups and the trace of a pass. */
#include "ref/engine.h"

#include "ref/parallel/sharding.h"
#include "ref/yarn.h"

#include <stdlib.h>
#include <string.h>

/* --- the parameter table as indices ------------------------------------------------------------------------- */

static int64_t find_row(const assay_model_spec *spec, const char *name)
{
    const assay_param_spec *p = assay_spec_find(spec, name);
    return p ? (int64_t)(p - spec->params) : -1;
}

static assay_status find_params(ref_engine *e)
{
    e->embedding = find_row(e->spec, "embedding.word_embeddings.weight");
    e->final_layernorm = find_row(e->spec, "decoder.final_layernorm.weight");
    e->output = e->config->tie_word_embeddings ? e->embedding : find_row(e->spec, "output_layer.weight");
    ASSAY_CHECK(e->embedding >= 0 && e->final_layernorm >= 0 && e->output >= 0, ASSAY_INTERNAL,
                "the model spec has no embedding, final norm or output layer");
    return ASSAY_OK;
}

/* --- ranks -------------------------------------------------------------------------------------------------- */

/* Token t = s*B + b of the region is at the position of its local row s. */
static assay_status make_positions(ref_rank *rank)
{
    const int64_t batch = rank->share.n_rows, tokens = rank->sequence.region.length * batch;
    rank->position = calloc((size_t)tokens + 1, sizeof *rank->position);
    ASSAY_CHECK(rank->position, ASSAY_OUT_OF_MEMORY, "out of memory: %lld positions", (long long)tokens);
    for (int64_t t = 0; t < tokens; t++)
        rank->position[t] = assay_sequence_position(&rank->sequence.region, t / batch);
    return ASSAY_OK;
}

/* A rank's layers and microbatches write their places in every step; those of other stages stay zero. */
static assay_status make_step_sums(const ref_engine *e, ref_rank *rank)
{
    const size_t n = (size_t)rank->share.n_microbatches, layers = (size_t)e->config->num_layers;
    rank->tokens_per_expert =
        calloc(n * layers * (size_t)e->config->num_moe_experts + 1, sizeof *rank->tokens_per_expert);
    rank->loss_sums = calloc(n + 1, sizeof *rank->loss_sums);
    rank->aux_losses = calloc(REF_LOSSES * n * layers + 1, sizeof *rank->aux_losses);
    rank->global_counts =
        calloc(n * layers * (size_t)e->config->num_moe_experts + 1, sizeof *rank->global_counts);
    ASSAY_CHECK(rank->tokens_per_expert && rank->loss_sums && rank->aux_losses && rank->global_counts,
                ASSAY_OUT_OF_MEMORY, "out of memory: sums of %lld microbatches", (long long)n);
    return ASSAY_OK;
}

static assay_status make_ranks(ref_engine *e)
{
    const assay_batches *b = e->run->batches;
    const int dp = e->grid.p.data_parallel_size;
    e->ranks = calloc((size_t)e->grid.world, sizeof *e->ranks);
    ASSAY_CHECK(e->ranks, ASSAY_OUT_OF_MEMORY, "out of memory: %d ranks", e->grid.world);
    for (int r = 0; r < e->grid.world; r++) {
        ref_rank *rank = &e->ranks[r];
        rank->rank = r;
        assay_grid_coords(&e->grid, r, &rank->at);
        ASSAY_TRY(assay_batch_share_make(assay_needs_all_rows(&e->options), b->microbatches, b->b, dp,
                                         rank->at.dp, &rank->share));
        ASSAY_TRY(assay_sequence_map_make(&e->grid, r, b->s, &rank->sequence));
        ASSAY_TRY(make_positions(rank));
        rank->params = calloc((size_t)e->spec->n_params, sizeof *rank->params);
        ASSAY_CHECK(rank->params, ASSAY_OUT_OF_MEMORY, "out of memory: rank %d: %lld parameters", r,
                    (long long)e->spec->n_params);
        ASSAY_TRY(make_step_sums(e, rank));
    }
    e->seq = b->s;
    e->batch = e->ranks[0].share.n_rows;
    e->microbatches = e->ranks[0].share.n_microbatches;
    e->stage_ranks = e->grid.world / e->grid.p.pipeline_model_parallel_size;
    e->send = calloc((size_t)e->grid.world, sizeof *e->send);
    e->recv = calloc((size_t)e->grid.world, sizeof *e->recv);
    e->counts = calloc((size_t)e->grid.world, sizeof *e->counts);
    e->integers = calloc((size_t)e->grid.world, sizeof *e->integers);
    ASSAY_CHECK(e->send && e->recv && e->counts && e->integers, ASSAY_OUT_OF_MEMORY,
                "out of memory: %d ranks", e->grid.world);
    return ASSAY_OK;
}

static assay_status make_rope(ref_engine *e)
{
    const assay_model_config *c = e->config;
    const ref_rope_desc d = {.type = c->rope_type,
                             .rotary_dim = assay_config_rotary_dim(c),
                             .base = c->rotary_base,
                             .factor = c->rope_factor,
                             .low_freq_factor = c->rope_low_freq_factor,
                             .high_freq_factor = c->rope_high_freq_factor,
                             .original_max_position_embeddings = c->rope_original_max_position_embeddings,
                             .beta_fast = c->rope_beta_fast,
                             .beta_slow = c->rope_beta_slow,
                             .attention_factor = ref_yarn_attention_factor(c),
                             .truncate = c->rope_truncate};
    const int64_t n = e->seq * (d.rotary_dim / 2);
    ref_policy unperturbed = e->run->policy; /* the table is data, the same in every run */
    unperturbed.perturb = 0.0;
    e->n_positions = e->seq;
    e->rope_cos = calloc((size_t)n + 1, sizeof(double));
    e->rope_sin = calloc((size_t)n + 1, sizeof(double));
    ASSAY_CHECK(e->rope_cos && e->rope_sin, ASSAY_OUT_OF_MEMORY, "out of memory: %lld positions",
                (long long)e->seq);
    ref_rope_table(e->rope_cos, e->rope_sin, &d, e->n_positions);
    ref_policy_store(&unperturbed, REF_STORE_STATISTIC, false, "rope.cos", 0, -1, e->rope_cos, n);
    ref_policy_store(&unperturbed, REF_STORE_STATISTIC, false, "rope.sin", 0, -1, e->rope_sin, n);
    return ASSAY_OK;
}

assay_status ref_engine_make(ref_engine *e, const ref_run_config *run, double *const *weights)
{
    *e = (ref_engine){.run = run,
                      .spec = run->spec,
                      .config = &run->spec->config,
                      .options = *run->options,
                      .grid = run->grid};
    ASSAY_TRY(assay_grid_check_model(&e->grid, e->config));
    e->n_states = assay_optimizer_states(e->options.optimizer, &e->state_names);
    ASSAY_TRY(find_params(e));
    ASSAY_TRY(make_ranks(e));
    ASSAY_TRY(make_rope(e));
    ASSAY_TRY(ref_shard_params(e, weights));
    if (run->want_logits && !run->batches->training) {
        const int64_t n = run->batches->b * run->batches->s * e->config->vocab_size;
        e->logits = calloc((size_t)n, sizeof *e->logits);
        ASSAY_CHECK(e->logits, ASSAY_OUT_OF_MEMORY, "out of memory: %lld logits", (long long)n);
    }
    return ASSAY_OK;
}

void ref_engine_free(ref_engine *e)
{
    ref_free_params(e);
    for (int r = 0; e->ranks && r < e->grid.world; r++) {
        free(e->ranks[r].tokens_per_expert);
        free(e->ranks[r].loss_sums);
        free(e->ranks[r].aux_losses);
        free(e->ranks[r].global_counts);
        free(e->ranks[r].position);
    }
    free(e->ranks);
    free(e->layer);
    free(e->rope_cos);
    free(e->rope_sin);
    free(e->logits);
    free(e->send);
    free(e->recv);
    free(e->counts);
    free(e->integers);
    *e = (ref_engine){0};
}

/* --- pass --------------------------------------------------------------------------------------------------- */

int64_t ref_pass_place(const ref_pass *p)
{
    return p->microbatch * p->e->config->num_layers + p->layer;
}

int64_t ref_pass_microbatch(const ref_pass *p, int r)
{
    return p->ranks[r].share.first_microbatch + p->microbatch;
}

void ref_pass_name(const ref_pass *p, const char *instance, const char *slot, char out[ASSAY_NAME])
{
    snprintf(out, ASSAY_NAME, "%s%s.%s", p->prefix, instance, slot);
}

assay_group_shape ref_pass_group(const ref_pass *p, assay_group kind, int r)
{
    assay_group_shape g = assay_grid_group_shape(&p->e->grid, kind, p->ranks[r].rank);
    if (g.start != p->ranks[r].rank)
        return (assay_group_shape){.start = -1};
    g.start = r;
    return g;
}

int64_t ref_pass_region_tokens(const ref_pass *p, int r)
{
    return p->ranks[r].sequence.region.length * p->e->batch;
}

int64_t ref_pass_shard_tokens(const ref_pass *p, int r)
{
    return p->ranks[r].sequence.shard.length * p->e->batch;
}

ref_param *ref_pass_param(const ref_pass *p, int r, int64_t param)
{
    return &p->ranks[r].params[param];
}

/* --- trace -------------------------------------------------------------------------------------------------- */

static assay_status trace_record(const ref_engine *e, const char *name, assay_phase phase, int64_t step,
                                 int64_t microbatch, const int64_t *shape, int ndim, const void *x,
                                 bool local, assay_dtype dtype)
{
    assay_trace_tensor t = {.phase = phase,
                            .step = step,
                            .microbatch = microbatch,
                            .dtype = dtype,
                            .kind = local ? ASSAY_PIECE_LOCAL : ASSAY_PIECE_SHARD,
                            .rows_id = -1};
    snprintf(t.name, sizeof t.name, "%s", name);
    assay_shard_whole(&t.shard, shape, ndim);
    t.bytes = (size_t)assay_shard_count(&t.shard) * 8;
    return assay_trace_write_tensor(e->run->trace, &t, x);
}

assay_status ref_trace_tensor(const ref_engine *e, const char *name, assay_phase phase, int64_t step,
                              int64_t microbatch, const int64_t *shape, int ndim, const double *x, bool local)
{
    if (!e->run->trace || e->again)
        return ASSAY_OK;
    return trace_record(e, name, phase, step, microbatch, shape, ndim, x, local, ASSAY_F64);
}

assay_status ref_trace_ints(const ref_engine *e, const char *name, assay_phase phase, int64_t step,
                            int64_t microbatch, const int64_t *shape, int ndim, const int64_t *x, bool local)
{
    if (!e->run->trace || e->again)
        return ASSAY_OK;
    return trace_record(e, name, phase, step, microbatch, shape, ndim, x, local, ASSAY_I64);
}
