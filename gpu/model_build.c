/* Which parameters, layers and sizes this rank has, and the memory that they need. */
#include "gpu/beside.h"
#include "gpu/call.h"
#include "gpu/fault.h"
#include "gpu/ladder.h"
#include "gpu/layer.h"
#include "gpu/parallel/halves.h"
#include "gpu/side.h"
#include "gpu/stage.h"
#include "gpu/yarn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- parameters --------------------------------------------------------------------------------------------- */
static assay_status param_create(gpu_model *m, const assay_param_spec *spec, gpu_param *p)
{
    p->spec = spec;
    ASSAY_TRY(assay_param_shard(spec, m->grid, m->run->comm.rank, &p->shard));
    p->count = assay_shard_count(&p->shard);
    const assay_op_recipe *op = m->run->recipe->op;
    const assay_dtype dtype = spec->trained ? op[ASSAY_OPS_LINEAR].weight : op[ASSAY_OPS_OPTIMIZER].weight;
    p->weight = (gpu_value){.phase = ASSAY_PHASE_FORWARD,
                            .microbatch = -1,
                            .kind = ASSAY_PIECE_SHARD,
                            .shard = &p->shard,
                            .t = gpu_tensor_make(NULL, dtype, spec->ndim, p->shard.local_shape)};
    p->main_grad = p->weight;
    p->main_grad.kind = ASSAY_PIECE_LOCAL;
    p->main_grad.phase = ASSAY_PHASE_BACKWARD;
    p->main_grad.t.dtype = op[ASSAY_OPS_OPTIMIZER].grad;
    snprintf(p->weight.name, sizeof p->weight.name, "%s", spec->name);
    snprintf(p->main_grad.name, sizeof p->main_grad.name, "%.*s.main_grad", ASSAY_NAME - 12, spec->name);
    return ASSAY_OK;
}

static assay_status params_create(gpu_model *m)
{
    m->params = calloc((size_t)m->spec->n_params, sizeof *m->params);
    ASSAY_CHECK(m->params, ASSAY_OUT_OF_MEMORY, "model: %lld parameters", (long long)m->spec->n_params);
    for (int64_t i = 0; i < m->spec->n_params; i++) {
        const assay_param_spec *spec = &m->spec->params[i];
        if (assay_param_on_rank(spec, m->grid, m->config, m->run->comm.rank))
            ASSAY_TRY(param_create(m, spec, &m->params[m->n_params++]));
    }
    return ASSAY_OK;
}

gpu_param *gpu_model_find(gpu_model *m, const char *name)
{
    for (int64_t i = 0; i < m->n_params; i++)
        if (strcmp(m->params[i].spec->name, name) == 0)
            return &m->params[i];
    return NULL;
}

/* --- layers ------------------------------------------------------------------------------------------------- */
static assay_status chunk_create(gpu_model *m, int index)
{
    gpu_chunk *chunk = &m->chunks[index];
    int64_t first, count;
    assay_grid_stage_layers(m->grid, m->config, m->at.pp, index, &first, &count);
    chunk->index = index;
    chunk->has_embedding = m->at.pp == 0 && index == 0;
    chunk->has_output = m->at.pp == m->grid->p.pipeline_model_parallel_size - 1 && index == m->n_chunks - 1;
    chunk->first_layer = first;
    chunk->layers = calloc((size_t)count + 1, sizeof *chunk->layers);
    ASSAY_CHECK(chunk->layers, ASSAY_OUT_OF_MEMORY, "model: %lld layers", (long long)count);
    chunk->n_layers = count;
    for (int64_t i = 0; i < count; i++) {
        gpu_layer *l = &chunk->layers[i];
        ASSAY_TRY(gpu_layer_create(m, l, first + i));
        for (int64_t p = 0; p < m->n_params; p++)
            if (m->params[p].spec->layer == l->number)
                ASSAY_TRY(gpu_param_unit_add(&l->unit, &m->params[p]));
    }
    return ASSAY_OK;
}

/* A tied embedding on one stage gets its last gradient from the embedding. */
static assay_status end_units_create(gpu_model *m)
{
    if (m->chunks[0].has_embedding)
        ASSAY_TRY(gpu_param_unit_add(&m->embedding_unit, m->word_embeddings));
    if (!m->chunks[m->n_chunks - 1].has_output)
        return ASSAY_OK;
    ASSAY_TRY(gpu_param_unit_add(&m->output_unit, m->final_layernorm));
    ASSAY_TRY(gpu_param_unit_add(&m->output_unit, m->output_layer));
    if (m->output_layer == m->word_embeddings && m->chunks[0].has_embedding)
        m->output_unit.n_ready--;
    return ASSAY_OK;
}

static assay_status chunks_create(gpu_model *m)
{
    const int n = m->grid->p.virtual_pipeline_model_parallel_size;
    m->chunks = calloc((size_t)n, sizeof *m->chunks);
    ASSAY_CHECK(m->chunks, ASSAY_OUT_OF_MEMORY, "model: %d chunks", n);
    m->n_chunks = n;
    for (int i = 0; i < n; i++)
        ASSAY_TRY(chunk_create(m, i));
    m->word_embeddings = gpu_model_find(m, "embedding.word_embeddings.weight");
    m->final_layernorm = gpu_model_find(m, "decoder.final_layernorm.weight");
    m->output_layer =
        m->config->tie_word_embeddings ? m->word_embeddings : gpu_model_find(m, "output_layer.weight");
    ASSAY_CHECK((!m->chunks[0].has_embedding || m->word_embeddings) &&
                    (!m->chunks[n - 1].has_output || (m->final_layernorm && m->output_layer)),
                ASSAY_INTERNAL, "model: the parameter table lacks the embedding or the output layer");
    return end_units_create(m);
}

/* Columns of the qkv of a rank that shares its key and value head: the rows of linear_qkv that it holds. */
static void qkv_columns(gpu_model *m)
{
    const int64_t D = m->config->kv_channels, A = m->config->num_attention_heads;
    const int64_t queries = A / m->config->num_query_groups * D, own = m->heads * D;
    const int64_t base = assay_grid_coord(m->grid, ASSAY_AXIS_KV_HEAD, m->run->comm.rank) * (queries + 2 * D);
    const int64_t first = assay_grid_coord(m->grid, ASSAY_AXIS_KV, m->run->comm.rank) * own;
    m->qkv_columns = (assay_sequence){
        .n_segments = 2,
        .length = own + 2 * D,
        .segments = {{.start = base + first, .length = own}, {.start = base + queries, .length = 2 * D}}};
}

assay_status gpu_model_create(gpu_model *m, gpu_run *run, const assay_model_config *config,
                              const assay_grid *grid, const assay_train_options *options)
{
    memset(m, 0, sizeof *m);
    m->run = run;
    m->config = config;
    m->grid = grid;
    m->options = options;
    m->tp = grid->p.tensor_model_parallel_size;
    m->cp = grid->p.context_parallel_size;
    m->ep = grid->p.expert_model_parallel_size;
    m->etp = grid->p.expert_tensor_parallel_size;
    m->sp = grid->p.sequence_parallel;
    const bool hidden = gpu_fault_switch(run, GPU_SWITCH_HIDDEN_BF16);
    run->recipe = assay_recipe_of(hidden ? ASSAY_PRECISION_BF16 : options->precision);
    ASSAY_TRY(assay_recipe_check_plain(run->recipe, "the gpu engine"));
    m->act = run->recipe->op[ASSAY_OPS_ELEMENTWISE].act;
    assay_grid_coords(grid, run->comm.rank, &m->at);
    m->eps = (double)(float)config->layernorm_epsilon;
    ASSAY_TRY(assay_recompute_from_options(&m->recompute, options));
    m->sequence_rows = calloc((size_t)m->tp, sizeof *m->sequence_rows);
    m->split_rows = calloc((size_t)m->tp, sizeof *m->split_rows);
    m->region_rows = calloc((size_t)m->cp, sizeof *m->region_rows);
    m->one_each = calloc((size_t)m->cp, sizeof *m->one_each);
    m->ring = calloc((size_t)m->cp, sizeof *m->ring);
    m->ring_position = calloc((size_t)m->cp, sizeof *m->ring_position);
    ASSAY_CHECK(m->sequence_rows && m->split_rows && m->region_rows && m->one_each && m->ring &&
                    m->ring_position,
                ASSAY_OUT_OF_MEMORY, "model: rows of %d tp, %d cp ranks", m->tp, m->cp);
    m->heads = config->num_attention_heads / m->tp;
    m->kv_shared = grid->size[ASSAY_AXIS_KV] > 1;
    m->groups = config->num_query_groups / grid->size[ASSAY_AXIS_KV_HEAD];
    if (m->kv_shared)
        qkv_columns(m);
    m->local_experts = config->num_moe_experts / m->ep;
    ASSAY_TRY(assay_inputs_spec(m->options, config, &m->spec));
    ASSAY_TRY(params_create(m));
    return chunks_create(m);
}

/* --- microbatches in flight --------------------------------------------------------------------------------- */
/* Which positions of this rank every piece of the loss has. */
static assay_status loss_parts_create(gpu_model *m)
{
    const int64_t length = m->options->loss_subbatch_sequence_length;
    free(m->loss_positions);
    m->loss_positions = NULL;
    m->loss_parts = assay_loss_parts(m->options, m->sequence.region.length);
    if (m->loss_parts == 0)
        return ASSAY_OK;
    m->loss_positions = calloc((size_t)m->loss_parts, sizeof *m->loss_positions);
    ASSAY_CHECK(m->loss_positions, ASSAY_OUT_OF_MEMORY, "model: %lld pieces of the loss",
                (long long)m->loss_parts);
    for (int64_t i = 0; i < m->loss_parts; i++)
        assay_sequence_cut(&m->sequence.region, i * length, length, &m->loss_positions[i]);
    return ASSAY_OK;
}

assay_status gpu_model_set_batch(gpu_model *m, const assay_batches *batches, const assay_batch_share *share)
{
    m->S = batches->s;
    m->B = share->n_rows;
    m->B_global = batches->b;
    m->row0 = share->first_row;
    m->rows_split = share->rows_split;
    m->packed = batches->position_ids != NULL;
    ASSAY_TRY(assay_sequence_map_make(m->grid, m->run->comm.rank, m->S, &m->sequence));
    m->s0 = m->sequence.shard_first;
    m->sl = m->sequence.shard.length;
    for (int r = 0; r < m->tp; r++) {
        int64_t start;
        assay_split(m->sequence.region.length, m->tp, r, &start, &m->sequence_rows[r]);
    }
    ASSAY_TRY(assay_sequence_gathered(m->grid, m->S, &m->gathered));
    for (int r = 0; r < m->cp; r++) {
        assay_sequence_map before;
        const int rank =
            assay_grid_rank(m->grid, m->at.tp, (m->at.cp + m->cp - r) % m->cp, m->at.dp, m->at.pp);
        ASSAY_TRY(assay_sequence_map_make(m->grid, rank, m->S, &before));
        m->ring[r] = before.region;
        m->region_rows[r] = assay_sequence_region_length(m->grid, m->S, r);
        m->one_each[r] = 1;
    }
    m->step_microbatches = batches->microbatches;
    m->n_microbatches = share->n_microbatches;
    return loss_parts_create(m);
}

static assay_status microbatches_create(gpu_model *m)
{
    for (int c = 0; c < m->n_chunks; c++) {
        gpu_chunk *chunk = &m->chunks[c];
        chunk->in_flight = calloc((size_t)chunk->n_in_flight, sizeof *chunk->in_flight);
        ASSAY_CHECK(chunk->in_flight, ASSAY_OUT_OF_MEMORY, "model: %d microbatches in flight",
                    chunk->n_in_flight);
        for (int i = 0; i < chunk->n_in_flight; i++) {
            gpu_microbatch_state *mb = &chunk->in_flight[i];
            mb->layers = calloc((size_t)chunk->n_layers + 1, sizeof *mb->layers);
            ASSAY_CHECK(mb->layers, ASSAY_OUT_OF_MEMORY, "model: %lld layers of a microbatch",
                        (long long)chunk->n_layers);
        }
    }
    return ASSAY_OK;
}

/* Hidden gradients between layers lie at the bottom of the scratch arena. */
static assay_status gradients_alloc(gpu_model *m)
{
    for (int i = 0; i < 2; i++) {
        gpu_value *v = &m->gradient[i];
        gpu_model_hidden(m, v);
        v->arena = &m->scratch;
        ASSAY_TRY(gpu_value_make(v, m->run->recipe->op[ASSAY_OPS_ELEMENTWISE].grad));
    }
    return ASSAY_OK;
}

/* What a microbatch on a chunk needs: device memory and pinned staging. */
typedef struct chunk_bytes {
    size_t device, host;
} chunk_bytes;

/* One microbatch forward and backward through every chunk, counting. */
static assay_status dry_run(gpu_model *m, chunk_bytes *bytes, size_t *scratch_bytes)
{
    m->run->dry = true;
    m->scratch = m->dropped = (gpu_arena){.counting = true};
    ASSAY_TRY(gradients_alloc(m));
    for (int c = 0; c < m->n_chunks; c++) {
        gpu_chunk *chunk = &m->chunks[c];
        gpu_microbatch_state *mb = &chunk->in_flight[0];
        gpu_value *output, *dinput;
        mb->arena = mb->host = (gpu_arena){.counting = true};
        ASSAY_TRY(gpu_stage_load_batch(m, chunk, mb, &(gpu_batch_rows){0}));
        if (!chunk->has_embedding) {
            gpu_model_hidden(m, &mb->input);
            mb->input.arena = &mb->arena;
            ASSAY_TRY(gpu_value_make(&mb->input, m->act));
        }
        ASSAY_TRY(gpu_stage_fwd(m, chunk, mb, 0, &output));
        ASSAY_TRY(gpu_stage_bwd(m, chunk, mb, &m->gradient[0], &dinput));
        bytes[c] = (chunk_bytes){.device = mb->arena.peak, .host = mb->host.peak};
    }
    *scratch_bytes = m->scratch.peak;
    m->run->dry = false;
    return ASSAY_OK;
}

/* Places of all chunks, then scratch and what is dropped, in one allocation. */
static assay_status carve_step(gpu_model *m, const chunk_bytes *bytes, size_t scratch_bytes)
{
    const size_t dropped_bytes = m->dropped.peak;
    size_t total = scratch_bytes + dropped_bytes, at = 0;
    for (int c = 0; c < m->n_chunks; c++)
        total += (size_t)m->chunks[c].n_in_flight * bytes[c].device;
    ASSAY_TRY(gpu_arena_create(&m->step, total));
    for (int c = 0; c < m->n_chunks; c++)
        for (int i = 0; i < m->chunks[c].n_in_flight; i++) {
            gpu_microbatch_state *mb = &m->chunks[c].in_flight[i];
            mb->arena = (gpu_arena){.base = m->step.base + at, .capacity = bytes[c].device};
            mb->host = (gpu_arena){.capacity = bytes[c].host};
            at += bytes[c].device;
            CUDA_TRY(cudaEventCreateWithFlags(&mb->staged, cudaEventDisableTiming));
            if (bytes[c].host > 0)
                CUDA_TRY(cudaMallocHost((void **)&mb->host.base, bytes[c].host));
        }
    m->scratch = (gpu_arena){.base = m->step.base + at, .capacity = scratch_bytes};
    m->dropped = (gpu_arena){.base = m->step.base + at + scratch_bytes, .capacity = dropped_bytes};
    return gradients_alloc(m);
}

static assay_status call_arena(gpu_model *m)
{
    gpu_ctx *ctx = &m->run->ctx;
    static const char *const of_gradients[] = {"sumsq", "count_zeros"}; /* whatever their sizes */
    for (int i = 0; i < 2; i++) {
        gpu_operands sums;
        gpu_operands_init(&sums, assay_op_find(of_gradients[i]));
        const size_t bytes = gpu_ladder_workspace(ctx, &sums);
        if (bytes > m->run->workspace_needed)
            m->run->workspace_needed = bytes;
    }
    if (m->run->workspace_needed > ctx->workspace_bytes) {
        if (ctx->workspace)
            CUDA_TRY(cudaFree(ctx->workspace));
        ctx->workspace = NULL;
        ctx->workspace_bytes = 0;
        CUDA_TRY(cudaMalloc(&ctx->workspace, m->run->workspace_needed));
        ctx->workspace_bytes = m->run->workspace_needed;
    }
    const bool beside = m->options->moe_shared_expert_overlap && !gpu_run_is_watched(m->run) &&
                        m->config->moe_shared_expert_intermediate_size > 0;
    if (beside)
        ASSAY_TRY(gpu_side_create(m->run));
    const bool sums = (m->options->async_tensor_model_parallel_allreduce || m->options->tp_comm_overlap) &&
                      m->tp > 1 && !gpu_run_is_watched(m->run);
    return sums || gpu_has_halves(m) ? gpu_beside_create(m->run) : ASSAY_OK;
}

int64_t gpu_model_layers(const gpu_model *m)
{
    int64_t n = 0;
    for (int c = 0; c < m->n_chunks; c++)
        n += m->chunks[c].n_layers;
    return n;
}

/* Counts of a step: every microbatch's forward writes its row, so nothing needs to be cleared but the rows of layers without experts. */
static assay_status expert_counts_create(gpu_model *m)
{
    const int64_t rows = m->n_microbatches * m->config->num_moe_experts;
    int64_t n = gpu_model_layers(m);
    if (rows == 0)
        return ASSAY_OK;
    const bool global = assay_balancing_coeff(m->options, ASSAY_BALANCING_GLOBAL_AUX) > 0.0;
    const int64_t all = n * rows;
    CUDA_TRY(
        cudaMalloc((void **)&m->expert_counts, (size_t)(global ? 2 * all : all) * sizeof *m->expert_counts));
    CUDA_TRY(
        cudaMemsetAsync(m->expert_counts, 0, (size_t)all * sizeof *m->expert_counts, m->run->ctx.stream));
    const size_t losses = (size_t)(n * m->n_microbatches) * GPU_LOSSES * sizeof *m->aux_losses;
    CUDA_TRY(cudaMalloc((void **)&m->aux_losses, losses > 0 ? losses : 1));
    CUDA_TRY(cudaMemsetAsync(m->aux_losses, 0, losses, m->run->ctx.stream)); /* layers without experts */
    n = 0;
    for (int c = 0; c < m->n_chunks; c++)
        for (int64_t l = 0; l < m->chunks[c].n_layers; l++, n++) {
            m->chunks[c].layers[l].tokens_per_expert = m->expert_counts + n * rows;
            m->chunks[c].layers[l].global_counts = global ? m->expert_counts + all + n * rows : NULL;
            m->chunks[c].layers[l].aux_losses = m->aux_losses + n * m->n_microbatches * GPU_LOSSES;
        }
    return ASSAY_OK;
}

int64_t gpu_model_plain_position(const gpu_model *m, int64_t row)
{
    for (int r = 0; r < m->at.cp; r++)
        row += m->region_rows[r];
    return row;
}

/* Position in its row of every token of a sequence, each row of the batch the same. */
static assay_status positions_create(gpu_model *m, gpu_value *v, const char *name, gpu_dim sequence)
{
    gpu_run *run = m->run;
    const int64_t tokens = sequence.length * m->B;
    v->ndim = 2;
    v->dim[0] = sequence;
    v->dim[1] = gpu_dim_batch(m);
    gpu_value_rename(run, v, name);
    v->t = gpu_tensor_1d(NULL, ASSAY_I64, tokens);
    CUDA_TRY(cudaMalloc(&v->t.data, gpu_tensor_bytes(v->t) + 1));
    int64_t *positions = malloc((size_t)(tokens + 1) * sizeof *positions);
    ASSAY_CHECK(positions, ASSAY_OUT_OF_MEMORY, "positions of %lld tokens", (long long)tokens);
    const char *fault = gpu_fault_leaf(run, name);
    const int64_t shift = fault && strcmp(fault, "shift") == 0 ? 1 : 0;
    const bool plain = fault && strcmp(fault, "order") == 0, all = sequence.sequence != &m->sequence.region;
    if (shift != 0 || plain)
        gpu_fault_leaf_met(run);
    for (int64_t t = 0; t < tokens; t++)
        positions[t] = plain
                           ? all ? t / m->B : gpu_model_plain_position(m, t / m->B)
                           : assay_sequence_position(sequence.sequence, (t / m->B + shift) % sequence.length);
    const assay_status st =
        gpu_run_upload(run, v->t.data, positions, (size_t)tokens * sizeof *positions, "positions");
    free(positions);
    return st;
}

/* Positions of the keys that come from other cp ranks: all at once, or a block at a time around the ring. */
static assay_status key_positions_create(gpu_model *m)
{
    m->ring_position[0] = m->position;
    if (m->cp == 1)
        return ASSAY_OK;
    if (m->grid->p.cp_comm_type != ASSAY_CP_P2P)
        return positions_create(m, &m->key_position, "key_position_ids", gpu_dim_gathered(m));
    for (int r = 1; r < m->cp; r++) {
        char name[40];
        snprintf(name, sizeof name, "key_position_ids.%d", r);
        ASSAY_TRY(positions_create(m, &m->ring_position[r], name, gpu_dim_positions(m->S, &m->ring[r])));
    }
    return ASSAY_OK;
}

/* The numbers s * b + b' of the tokens of the sequence piece, by which masks of hidden states are drawn. */
static assay_status dropout_tokens_create(gpu_model *m)
{
    gpu_value *v = &m->dropout_token;
    if (assay_branch_dropout(m->options) == 0.0)
        return ASSAY_OK;
    const gpu_dim sequence = gpu_dim_sequence(m, m->sp);
    const int64_t tokens = sequence.length * m->B;
    v->ndim = 2;
    v->dim[0] = sequence;
    v->dim[1] = gpu_dim_batch(m);
    gpu_value_rename(m->run, v, "dropout_token_ids");
    v->t = gpu_tensor_1d(NULL, ASSAY_I64, tokens);
    CUDA_TRY(cudaMalloc(&v->t.data, gpu_tensor_bytes(v->t) + 1));
    int64_t *number = malloc((size_t)(tokens + 1) * sizeof *number);
    ASSAY_CHECK(number, ASSAY_OUT_OF_MEMORY, "numbers of %lld tokens", (long long)tokens);
    const char *fault = gpu_fault_leaf(m->run, v->name);
    const bool alone = fault && strcmp(fault, "row") == 0; /* as if the rank had all */
    bool changed = false;
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t own =
            assay_sequence_position(sequence.sequence, t / m->B) * m->B_global + m->row0 + t % m->B;
        number[t] = alone ? t : own;
        changed = changed || number[t] != own;
    }
    if (changed)
        gpu_fault_leaf_met(m->run);
    const assay_status st =
        gpu_run_upload(m->run, v->t.data, number, (size_t)tokens * sizeof *number, "numbers of tokens");
    free(number);
    return st;
}

/* cos, sin, positions and loss sums: life of the engine. */
static assay_status tables_create(gpu_model *m)
{
    const assay_model_config *c = m->config;
    const int64_t half = assay_config_rotary_dim(c) / 2;
    const int64_t shape[2] = {m->S, half};
    gpu_run *run = m->run;
    gpu_value *tables[2] = {&m->cos_table, &m->sin_table};
    for (int i = 0; i < 2; i++) {
        gpu_value *v = tables[i];
        v->ndim = 2;
        v->dim[0] = gpu_dim_whole(m->S);
        v->dim[1] = gpu_dim_whole(half);
        gpu_value_name(run, v, "rope", i == 0 ? "cos" : "sin");
        v->t = gpu_tensor_make(NULL, ASSAY_F32, 2, shape);
        CUDA_TRY(cudaMalloc(&v->t.data, gpu_tensor_bytes(v->t) + 1));
    }
    CUDA_TRY(cudaMalloc((void **)&m->loss_sums, (size_t)m->n_microbatches * sizeof(double)));
    CUDA_TRY(cudaMemsetAsync(m->loss_sums, 0, (size_t)m->n_microbatches * sizeof(double), run->ctx.stream));
    ASSAY_TRY(positions_create(m, &m->position, m->packed ? "query_position_ids" : "position_ids",
                               gpu_dim_sequence(m, false)));
    ASSAY_TRY(dropout_tokens_create(m));
    return key_positions_create(m);
}

assay_status gpu_model_rope_tables(gpu_model *m)
{
    const assay_model_config *c = m->config;
    return GPU_CALL(m->run, "rope_table", "rope", GPU_W("rope_type", assay_rope_name(c->rope_type)),
                    GPU_I("rotary_dim", assay_config_rotary_dim(c)), GPU_F("rotary_base", c->rotary_base),
                    GPU_F("factor", c->rope_factor), GPU_F("low_freq_factor", c->rope_low_freq_factor),
                    GPU_F("high_freq_factor", c->rope_high_freq_factor),
                    GPU_I("original_max_position_embeddings", c->rope_original_max_position_embeddings),
                    GPU_F("beta_fast", c->rope_beta_fast), GPU_F("beta_slow", c->rope_beta_slow),
                    GPU_I("truncate", c->rope_truncate),
                    GPU_F("attention_factor", gpu_yarn_attention_factor(c)), GPU_I("positions", m->S),
                    GPU_T("cos", &m->cos_table), GPU_T("sin", &m->sin_table));
}

assay_status gpu_model_allocate(gpu_model *m)
{
    size_t scratch_bytes = 0;
    assay_status st = ASSAY_OK;
    m->run->layer = -1;
    m->run->microbatch = -1;
    m->run->phase = ASSAY_PHASE_FORWARD;
    chunk_bytes *bytes = calloc((size_t)m->n_chunks, sizeof *bytes);
    ASSAY_CHECK(bytes, ASSAY_OUT_OF_MEMORY, "model: %d chunks", m->n_chunks);
    ASSAY_TRY_GOTO(microbatches_create(m), st, done);
    ASSAY_TRY_GOTO(tables_create(m), st, done);
    ASSAY_TRY_GOTO(expert_counts_create(m), st, done);
    ASSAY_TRY_GOTO(dry_run(m, bytes, &scratch_bytes), st, done);
    ASSAY_TRY_GOTO(carve_step(m, bytes, scratch_bytes), st, done);
    ASSAY_TRY_GOTO(call_arena(m), st, done);
    m->run->layer = -1;
    m->run->microbatch = -1;
    m->run->phase = ASSAY_PHASE_FORWARD;
    ASSAY_TRY_GOTO(gpu_model_rope_tables(m), st, done);
done:
    free(bytes);
    return st;
}

static void chunk_destroy(gpu_chunk *chunk)
{
    for (int i = 0; chunk->in_flight && i < chunk->n_in_flight; i++) {
        gpu_microbatch_state *mb = &chunk->in_flight[i];
        free(mb->layers);
        if (mb->staged)
            (void)cudaEventDestroy(mb->staged);
        if (mb->host.base)
            (void)cudaFreeHost(mb->host.base);
    }
    free(chunk->in_flight);
    free(chunk->layers);
}

void gpu_model_destroy(gpu_model *m)
{
    if (m == NULL)
        return;
    for (int c = 0; c < m->n_chunks; c++)
        chunk_destroy(&m->chunks[c]);
    free(m->chunks);
    free(m->params);
    free(m->sequence_rows);
    free(m->split_rows);
    free(m->region_rows);
    free(m->one_each);
    free(m->ring);
    free(m->loss_positions);
    for (int r = 1; m->ring_position && r < m->cp; r++)
        if (m->ring_position[r].t.data)
            (void)cudaFree(m->ring_position[r].t.data);
    free(m->ring_position);
    assay_spec_destroy(m->spec);
    void *device[] = {
        m->cos_table.t.data,     m->sin_table.t.data, m->position.t.data, m->key_position.t.data,
        m->dropout_token.t.data, m->loss_sums,        m->expert_counts,   m->aux_losses};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        if (device[i])
            (void)cudaFree(device[i]);
    gpu_arena_destroy(&m->step);
    gpu_arena_destroy(&m->state);
    memset(m, 0, sizeof *m);
}
