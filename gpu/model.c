/* Forward and backward pass of one microbatch over this rank's chunk: embedding, layers, head and loss. */
#include "gpu/model.h"

#include "gpu/layer.h"
#include "gpu/parallel/expert.h"
#include "gpu/parallel/tensor.h"
#include <string.h>

void gpu_model_hidden(const gpu_model *m, gpu_value *v)
{
    memset(v, 0, sizeof *v);
    v->ndim = 3;
    v->dim[0] = gpu_dim_sequence(m, m->sp);
    v->dim[1] = gpu_dim_batch(m);
    v->dim[2] = gpu_dim_whole(m->config->hidden_size);
}

/* Rows of the vocabulary that this tp rank holds. */
static gpu_dim vocabulary(const gpu_model *m)
{
    return gpu_dim_split(m->config->vocab_size, 1, m->tp, m->at.tp);
}

/* --- batch -------------------------------------------------------------------------------------------------- */
static assay_status load_tokens(gpu_model *m, gpu_slot_state *slot, gpu_value *v, const char *name,
                                const int64_t *host, bool shift)
{
    memset(v, 0, sizeof *v);
    v->ndim = 2;
    v->dim[0] = gpu_dim_sequence(m, false);
    v->dim[1] = gpu_dim_batch(m);
    gpu_value_rename(m->run, v, name);
    ASSAY_TRY(gpu_value_alloc(&slot->arena, v, ASSAY_I64, 0));
    int64_t *staged;
    ASSAY_TRY(gpu_slot_host(m, slot, gpu_tensor_bytes(v->t), (void **)&staged));
    if (m->run->dry)
        return ASSAY_OK;
    for (int64_t s = 0; s < m->S; s++)
        for (int64_t b = 0; b < m->B; b++) {
            const int64_t *row = host + (m->row0 + b) * m->S;
            if (!shift)
                staged[s * m->B + b] = row[s];
            else
                staged[s * m->B + b] = s + 1 < m->S ? row[s + 1] : ASSAY_IGNORE_INDEX;
        }
    CUDA_TRY(cudaMemcpyAsync(v->t.data, staged, gpu_tensor_bytes(v->t), cudaMemcpyHostToDevice,
                             m->run->ctx.stream));
    return ASSAY_OK;
}

assay_status gpu_model_load_batch(gpu_model *m, int slot_index, const int64_t *ids, const int64_t *labels)
{
    gpu_slot_state *slot = &m->slots[slot_index];
    if (!m->run->dry &&
        slot->host_used > 0) /* the staging of the microbatch before may still be on its way */
        ASSAY_TRY(gpu_comm_wait_event(&m->run->comm, slot->staged, "microbatch slot"));
    gpu_arena_reset(&slot->arena, 0);
    slot->host_used = 0;
    ASSAY_TRY(load_tokens(m, slot, &slot->ids, "input_ids", ids, false));
    return load_tokens(m, slot, &slot->targets, "targets", labels, true);
}

/* --- embedding ---------------------------------------------------------------------------------------------- */
static assay_status embedding_forward(gpu_model *m, gpu_slot_state *slot)
{
    gpu_run *run = m->run;
    const gpu_dim H = gpu_dim_whole(m->config->hidden_size);
    gpu_arena *arena = m->tp > 1 ? &m->scratch : &slot->arena;
    ASSAY_TRY(gpu_token_value(m, arena, &slot->embedding, "embedding", "y", false, H, m->act));
    gpu_value_partial(m, &slot->embedding, ASSAY_GROUP_TP);
    ASSAY_TRY(gpu_run_embedding_fwd(run, "embedding", &slot->embedding, &slot->ids,
                                    gpu_param_use(m, m->word_embeddings), vocabulary(m).start));
    slot->input = slot->embedding;
    if (m->tp == 1)
        return ASSAY_OK;
    ASSAY_TRY(gpu_token_value(m, &slot->arena, &slot->input, "embedding.reduce", "recv", m->sp, H, m->act));
    if (m->sp)
        return gpu_reduce_scatter_to_sequence_parallel_region(m, "embedding.reduce", &slot->input,
                                                              &slot->embedding, false);
    return gpu_all_reduce(m, "embedding.reduce", ASSAY_GROUP_TP, &slot->input, &slot->embedding, false);
}

static assay_status embedding_backward(gpu_model *m, gpu_slot_state *slot, gpu_value *dy)
{
    gpu_value whole;
    ASSAY_TRY(gpu_gather_output_grad(m, "embedding.reduce", &whole, dy, &slot->embedding));
    return gpu_run_embedding_bwd(m->run, "embedding", gpu_param_grad(m, m->word_embeddings), &whole,
                                 &slot->ids, vocabulary(m).start);
}

/* --- head and loss ------------------------------------------------------------------------------------------ */
static assay_status stats_value(gpu_model *m, gpu_value *v, const char *at, const char *slot, int64_t pieces)
{
    memset(v, 0, sizeof *v);
    v->kind = ASSAY_PIECE_LOCAL;
    const int lead = pieces > 0 ? 1 : 0;
    v->ndim = 3 + lead;
    v->dim[0] = gpu_dim_whole(pieces);
    v->dim[lead] = gpu_dim_whole(3);
    v->dim[lead + 1] = gpu_dim_sequence(m, false);
    v->dim[lead + 2] = gpu_dim_batch(m);
    gpu_value_name(m->run, v, at, slot);
    return gpu_value_alloc(&m->scratch, v, ASSAY_F32, 1 + lead);
}

static assay_status loss_forward(gpu_model *m, gpu_slot_state *slot, int64_t index)
{
    gpu_run *run = m->run;
    gpu_output_saved *s = &slot->output;
    gpu_value stats, gathered, loss, sum = {0};
    ASSAY_TRY(stats_value(m, &stats, "loss.stats", "stats", 0));
    ASSAY_TRY(gpu_run_cross_entropy_stats(run, "loss.stats", &stats, &s->logits, &slot->targets,
                                          vocabulary(m).start));
    gpu_value *all = &stats;
    if (m->tp > 1) {
        all = &gathered;
        ASSAY_TRY(stats_value(m, all, "loss.gather", "recv", m->tp));
        ASSAY_TRY(gpu_all_gather(m, "loss.gather", ASSAY_GROUP_TP, all, &stats));
    }
    ASSAY_TRY(gpu_token_vector(m, &slot->arena, &s->lse, "loss", "lse", false, ASSAY_F32));
    ASSAY_TRY(gpu_token_vector(m, &m->scratch, &loss, "loss", "loss", false, ASSAY_F32));
    ASSAY_TRY(gpu_run_cross_entropy_loss(run, "loss", &s->lse, &loss, all, &slot->targets));
    sum.ndim = 1;
    sum.dim[0] = gpu_dim_whole(1);
    sum.t = gpu_tensor_1d(m->loss_sums + index, ASSAY_F64, 1);
    gpu_value_name(run, &sum, "loss.sum", "y");
    if (m->rows_split)
        gpu_value_partial(m, &sum, ASSAY_GROUP_DP_CP);
    return gpu_run_sum(run, "loss.sum", &sum, &loss);
}

static assay_status output_forward(gpu_model *m, gpu_slot_state *slot, int64_t index, gpu_value *hidden)
{
    gpu_run *run = m->run;
    gpu_output_saved *s = &slot->output;
    gpu_arena *keep = &slot->arena;
    const gpu_dim H = gpu_dim_whole(m->config->hidden_size);
    ASSAY_TRY(gpu_token_value(m, keep, &s->norm, "decoder.final_layernorm", "y", m->sp, H, m->act));
    ASSAY_TRY(gpu_token_vector(m, keep, &s->rstd, "decoder.final_layernorm", "rstd", m->sp, ASSAY_F32));
    ASSAY_TRY(gpu_run_rmsnorm_fwd(run, "decoder.final_layernorm", &s->norm, &s->rstd, hidden,
                                  gpu_param_use(m, m->final_layernorm), m->config->layernorm_epsilon));
    gpu_value *x = &s->norm;
    if (m->sp) {
        x = &s->gathered;
        ASSAY_TRY(gpu_token_value(m, keep, x, "decoder.gather", "recv", false, H, m->act));
        ASSAY_TRY(gpu_gather_from_sequence_parallel_region(m, "decoder.gather", x, &s->norm));
    }
    ASSAY_TRY(gpu_token_value(m, keep, &s->logits, "output_layer", "y", false, vocabulary(m), ASSAY_F32));
    ASSAY_TRY(
        gpu_run_linear_fwd(run, "output_layer", &s->logits, x, gpu_param_use(m, m->output_layer), NULL));
    return loss_forward(m, slot, index);
}

/* Scale of the loss; planted fault: divided by the number of microbatches once too often. */
static double loss_scale(const gpu_model *m)
{
    if (m->fault != GPU_FAULT_WRONG_SCALE)
        return m->loss_scale;
    return m->loss_scale / (double)(m->step_microbatches > 1 ? m->step_microbatches : 2);
}

static assay_status output_backward(gpu_model *m, gpu_slot_state *slot, gpu_value *hidden, gpu_value *dhidden)
{
    gpu_run *run = m->run;
    gpu_output_saved *s = &slot->output;
    gpu_value dlogits, dx, dnorm;
    ASSAY_TRY(gpu_grad_value(m, &m->scratch, &dlogits, &s->logits, m->act));
    ASSAY_TRY(gpu_run_cross_entropy_bwd(run, "loss", &dlogits, &s->logits, &s->lse, &slot->targets,
                                        vocabulary(m).start, loss_scale(m)));
    gpu_value *x = m->sp ? &s->gathered : &s->norm;
    ASSAY_TRY(gpu_run_linear_bwd_weight(run, "output_layer", gpu_param_grad(m, m->output_layer), &dlogits, x,
                                        false));
    ASSAY_TRY(gpu_grad_value(m, &m->scratch, &dx, x, m->act));
    gpu_value_partial(m, &dx, ASSAY_GROUP_TP);
    ASSAY_TRY(
        gpu_run_linear_bwd_input(run, "output_layer", &dx, &dlogits, gpu_param_use(m, m->output_layer)));
    ASSAY_TRY(gpu_reduce_input_grad(m, "output_layer.reduce_grad", "decoder.gather", &dnorm, &dx, &s->norm));
    gpu_value_grad(run, dhidden, hidden);
    return gpu_run_rmsnorm_bwd(run, "decoder.final_layernorm", dhidden, gpu_param_grad(m, m->final_layernorm),
                               &dnorm, hidden, gpu_param_use(m, m->final_layernorm), &s->rstd,
                               m->config->layernorm_epsilon, false);
}

/* --- passes ------------------------------------------------------------------------------------------------- */
assay_status gpu_model_forward(gpu_model *m, int slot_index, int64_t index, gpu_value *input,
                               gpu_value **output)
{
    gpu_slot_state *slot = &m->slots[slot_index];
    const gpu_chunk *chunk = &m->chunks[0];
    const size_t mark = m->scratch.used;
    m->run->phase = ASSAY_PHASE_FORWARD;
    m->run->layer = -1;
    if (chunk->has_embedding)
        ASSAY_TRY(embedding_forward(m, slot));
    else
        slot->input = *input;
    gpu_value *hidden = &slot->input;
    for (int64_t l = 0; l < chunk->n_layers; l++) {
        slot->layers[l].input = *hidden;
        ASSAY_TRY(gpu_layer_forward(m, slot, &chunk->layers[l], &slot->layers[l]));
        hidden = &slot->layers[l].output;
    }
    if (chunk->has_output)
        ASSAY_TRY(output_forward(m, slot, index, hidden));
    gpu_arena_reset(&m->scratch, mark);
    if (!m->run->dry)
        CUDA_TRY(cudaEventRecord(slot->staged, m->run->ctx.stream));
    *output = hidden;
    return ASSAY_OK;
}

assay_status gpu_model_backward(gpu_model *m, int slot_index, gpu_value *doutput, gpu_value **dinput)
{
    gpu_slot_state *slot = &m->slots[slot_index];
    const gpu_chunk *chunk = &m->chunks[0];
    const size_t mark = m->scratch.used;
    gpu_value *dy = &m->gradient[0], *dx = &m->gradient[1];
    m->run->phase = ASSAY_PHASE_BACKWARD;
    m->run->layer = -1;
    if (chunk->has_output) {
        ASSAY_TRY(output_backward(m, slot, &slot->layers[chunk->n_layers - 1].output, dy));
    } else if (doutput == dx) {
        dx = dy;
        dy = doutput;
    }
    for (int64_t l = chunk->n_layers - 1; l >= 0; l--) {
        ASSAY_TRY(gpu_layer_backward(m, slot, &chunk->layers[l], &slot->layers[l], dy, dx));
        gpu_value *next = dx;
        dx = dy;
        dy = next;
    }
    if (chunk->has_embedding)
        ASSAY_TRY(embedding_backward(m, slot, dy));
    gpu_arena_reset(&m->scratch, mark);
    *dinput = dy;
    return ASSAY_OK;
}
