/* Forward and backward pass of one microbatch over a chunk of this rank: embedding, layers, output. */
#include "gpu/stage.h"

#include "gpu/documents.h"
#include "gpu/dropout.h"
#include "gpu/fault.h"
#include "gpu/layer.h"
#include "gpu/output.h"
#include "gpu/parallel/tensor.h"
#include <stdio.h>
#include <string.h>

void gpu_model_hidden(const gpu_model *m, gpu_value *v)
{
    *v = gpu_tokens(m, NULL, m->sp, gpu_dim_hidden(m));
}

void gpu_hidden_name(const gpu_model *m, int64_t layer, char out[ASSAY_NAME])
{
    if (layer > 0)
        snprintf(out, ASSAY_NAME, "decoder.layers.%lld.mlp.residual.y", (long long)layer - 1);
    else
        snprintf(out, ASSAY_NAME, "%s",
                 m->options->hidden_dropout > 0.0 ? "embedding.dropout.y"
                 : m->tp > 1                      ? "embedding.reduce.recv"
                                                  : "embedding.y");
}

/* --- batch -------------------------------------------------------------------------------------------------- */
/* host: [b,s] of the microbatch; ahead: positions by which the values run ahead (targets from labels that the model
 * shifts: 1); beyond: what stands behind the last position. */
static assay_status load_tokens(gpu_model *m, gpu_microbatch_state *mb, gpu_value *v, const char *name,
                                const int64_t *host, int ahead, int64_t beyond)
{
    *v = gpu_token_rows(m, &mb->arena, false);
    gpu_value_rename(m->run, v, name);
    ASSAY_TRY(gpu_value_make(v, ASSAY_I64));
    int64_t *staged;
    ASSAY_TRY(gpu_arena_take(&mb->host, gpu_tensor_bytes(v->t), (void **)&staged));
    if (m->run->dry)
        return ASSAY_OK;
    const char *fault = gpu_fault_leaf(m->run, name);
    bool changed = false;
    const int64_t shift = ahead + (fault && strcmp(fault, "shift") == 0 ? 1 : 0);
    const int64_t row0 = fault && strcmp(fault, "rank") == 0 ? (m->row0 + m->B) % m->B_global : m->row0;
    for (int64_t i = 0; i < m->sequence.region.length; i++)
        for (int64_t b = 0; b < m->B; b++) {
            const int64_t s = assay_sequence_position(&m->sequence.region, i);
            const int64_t read = fault && strcmp(fault, "order") == 0 ? gpu_model_plain_position(m, i) : s;
            const int64_t *row = host + (row0 + b) % m->B_global * m->S, *own = host + (m->row0 + b) * m->S;
            staged[i * m->B + b] = read + shift < m->S ? row[read + shift] : beyond;
            changed = changed || staged[i * m->B + b] != (s + ahead < m->S ? own[s + ahead] : beyond);
        }
    if (fault && changed)
        gpu_fault_leaf_met(m->run);
    CUDA_TRY(cudaMemcpyAsync(v->t.data, staged, gpu_tensor_bytes(v->t), cudaMemcpyHostToDevice,
                             m->run->ctx.stream));
    return ASSAY_OK;
}

gpu_microbatch_state *gpu_stage_place(const gpu_chunk *chunk, int64_t index)
{
    return &chunk->in_flight[index % chunk->n_in_flight];
}

assay_status gpu_stage_load_batch(gpu_model *m, const gpu_chunk *chunk, gpu_microbatch_state *mb,
                                  const gpu_batch_rows *rows)
{
    if (!m->run->dry && mb->host.used > 0) /* the staging of the microbatch before may still be on its way */
        ASSAY_TRY(gpu_comm_wait_event(&m->run->comm, mb->staged, "microbatch in flight"));
    gpu_arena_reset(&mb->arena, 0);
    gpu_arena_reset(&mb->host, 0);
    if (chunk->has_embedding)
        ASSAY_TRY(load_tokens(m, mb, &mb->ids, "input_ids", rows->ids, 0, 0));
    if (chunk->has_output)
        ASSAY_TRY(load_tokens(m, mb, &mb->targets, "targets", rows->labels, rows->shifted ? 0 : 1,
                              ASSAY_IGNORE_INDEX));
    return gpu_documents_load(m, mb, rows->positions);
}

/* --- embedding ---------------------------------------------------------------------------------------------- */
static assay_status embedding_fwd(gpu_model *m, gpu_microbatch_state *mb)
{
    const double drop = m->options->hidden_dropout;
    gpu_arena *arena = m->tp > 1 || drop > 0.0 ? &m->scratch : &mb->arena;
    ASSAY_TRY(
        GPU_CALL(m->run, "embedding_fwd", "embedding", GPU_T("ids", &mb->ids),
                 GPU_T("weight", gpu_param_use(m, m->word_embeddings)),
                 GPU_I("vocab_start", gpu_dim_tp(m, m->config->vocab_size, 1).start),
                 GPU_NEW("y", &mb->embedding,
                         gpu_partial(m, gpu_tokens(m, arena, false, gpu_dim_hidden(m)), ASSAY_GROUP_TP))));
    ASSAY_TRY(gpu_row_parallel_output(m, drop > 0.0 ? &m->scratch : &mb->arena, m->sp, "embedding.reduce",
                                      &mb->embedded, &mb->embedding));
    return gpu_dropout_fwd(m, &mb->arena, "embedding.dropout", GPU_DROP_EMBEDDING, 0, drop, &mb->input,
                           &mb->embedded);
}

static assay_status embedding_bwd(gpu_model *m, gpu_microbatch_state *mb, gpu_value *dy)
{
    gpu_value whole, dropped, *dweight = gpu_param_grad(m, m->word_embeddings);
    if (dweight == NULL)
        return ASSAY_OK;
    ASSAY_TRY(gpu_dropout_bwd(m, "embedding.dropout", GPU_DROP_EMBEDDING, 0, m->options->hidden_dropout,
                              &dropped, dy, &mb->embedded));
    ASSAY_TRY(gpu_row_parallel_output_bwd(m, m->sp, "embedding.reduce", &whole, &dropped, &mb->embedding));
    return GPU_CALL(m->run, "embedding_bwd", "embedding", GPU_T("dy", &whole), GPU_T("ids", &mb->ids),
                    GPU_I("vocab_start", gpu_dim_tp(m, m->config->vocab_size, 1).start),
                    GPU_I("padding_idx", m->config->pad_token_id), GPU_T("dweight", dweight));
}

/* --- layers ------------------------------------------------------------------------------------------------- */
/* Gives back what lies above the mark of `a`. */
static void release(gpu_microbatch_state *mb, const gpu_layer_acts *a)
{
    gpu_arena_reset(&mb->arena, a->mark.arena);
    gpu_arena_reset(&mb->host, a->mark.host);
}

static void set_mark(const gpu_microbatch_state *mb, gpu_layer_acts *a)
{
    a->mark = (gpu_acts_mark){.arena = mb->arena.used, .host = mb->host.used};
}

static assay_status make_output(gpu_model *m, gpu_microbatch_state *mb, gpu_layer_acts *a)
{
    gpu_model_hidden(m, &a->output);
    a->output.arena = &mb->arena;
    return gpu_value_make(&a->output, m->act);
}

/* What a forward reads after layer l (-1: after the embedding), and a backward after layer l (n_layers: after the
 * output). */
static const gpu_param_unit *unit_behind(const gpu_model *m, const gpu_chunk *chunk, int64_t l)
{
    const bool output = chunk->has_output && m->loss_parts == 0;
    return l + 1 < chunk->n_layers ? &chunk->layers[l + 1].unit : output ? &m->output_unit : NULL;
}

static const gpu_param_unit *unit_before(const gpu_model *m, const gpu_chunk *chunk, int64_t l)
{
    int64_t first = l;
    const int64_t n = l > 0 ? assay_recompute_layers(&m->recompute, chunk->n_layers, l - 1, &first) : 0;
    const bool others = n > 1 && l == first + n; /* the group's first layer runs before it */
    return l > 0 && !others ? &chunk->layers[l - 1].unit : NULL;
}

/* Whether layer l runs the norm behind it, with its last residual.  Not where parameters are gathered before use, a part of the
 * model at a time; nor where the norm is given back apart from the output: layers that run again and others, norms that do. */
static bool runs_next_norm(const gpu_model *m, const gpu_chunk *chunk, int64_t l)
{
    int64_t first, other = 0;
    const int64_t n = assay_recompute_layers(&m->recompute, chunk->n_layers, l, &first);
    if (m->grid->p.zero_stage >= 3)
        return false;
    if (l + 1 == chunk->n_layers)
        return chunk->has_output && n == 0 &&
               m->loss_parts == 0; /* else the last norm runs in the backward */
    return (m->recompute.modules & ASSAY_RECOMPUTE_LAYERNORM) == 0 &&
           assay_recompute_layers(&m->recompute, chunk->n_layers, l + 1, &other) == n &&
           (n == 0 || other == first);
}

/* Makes the norm behind layer l, which it runs. */
static assay_status make_next_norm(gpu_model *m, const gpu_chunk *chunk, gpu_microbatch_state *mb, int64_t l,
                                   gpu_next_norm *next)
{
    const bool last = l + 1 == chunk->n_layers;
    gpu_layer_acts *a = last ? NULL : &mb->layers[l + 1];
    *next = (gpu_next_norm){.gamma = last ? m->final_layernorm : chunk->layers[l + 1].input_layernorm,
                            .y = last ? &mb->output.norm : &a->input_norm,
                            .rstd = last ? &mb->output.rstd : &a->input_rstd,
                            .unit = unit_behind(m, chunk, l),
                            .behind = last ? NULL : unit_behind(m, chunk, l + 1)};
    if (last)
        snprintf(next->at, sizeof next->at, "decoder.final_layernorm");
    else
        snprintf(next->at, sizeof next->at, "decoder.layers.%lld.input_layernorm",
                 (long long)chunk->layers[l + 1].number);
    *next->y = gpu_tokens(m, &mb->arena, m->sp, gpu_dim_hidden(m));
    *next->rstd = gpu_token_rows(m, &mb->arena, m->sp);
    ASSAY_TRY(gpu_value_make(next->y, m->act));
    return gpu_value_make(next->rstd, ASSAY_F32);
}

/* Of layers that run again together the last one's output alone stays, below the mark of the first. */
static assay_status layer_fwd(gpu_model *m, const gpu_chunk *chunk, gpu_microbatch_state *mb, int64_t l,
                              bool entered, bool runs_next)
{
    int64_t first;
    gpu_next_norm next;
    const int64_t n = assay_recompute_layers(&m->recompute, chunk->n_layers, l, &first);
    const bool last = n > 0 && l == first + n - 1;
    if (n == 0 || (l > first && !last))
        ASSAY_TRY(make_output(m, mb, &mb->layers[l]));
    if (n > 0 && l == first) {
        ASSAY_TRY(make_output(m, mb, &mb->layers[first + n - 1]));
        set_mark(mb, &mb->layers[first]);
        if (!last)
            ASSAY_TRY(make_output(m, mb, &mb->layers[l]));
    }
    if (runs_next)
        ASSAY_TRY(make_next_norm(m, chunk, mb, l, &next));
    ASSAY_TRY(gpu_layer_fwd(m, mb, &chunk->layers[l], &mb->layers[l], entered, runs_next ? &next : NULL));
    if (last)
        release(mb, &mb->layers[first]);
    return ASSAY_OK;
}

/* The second forward of the layers of a group but the last, above the mark of now and before the last one's parameters are
 * asked for its backward: never more units are there than in the first. */
static assay_status group_again(gpu_model *m, const gpu_chunk *chunk, gpu_microbatch_state *mb, int64_t l)
{
    int64_t first;
    const int64_t n = assay_recompute_layers(&m->recompute, chunk->n_layers, l, &first);
    assay_status st = ASSAY_OK;
    bool entered = false;
    gpu_next_norm next;
    if (n < 2 || l != first + n - 1)
        return ASSAY_OK;
    m->run->phase = ASSAY_PHASE_FORWARD;
    m->run->recompute = true;
    set_mark(mb, &mb->layers[first]);
    for (int64_t i = first; i < l && st == ASSAY_OK; i++) {
        gpu_layer_acts *a = &mb->layers[i];
        if (i > first)
            a->input = mb->layers[i - 1].output;
        ASSAY_TRY_GOTO(make_output(m, mb, a), st, done);
        if (!entered)
            ASSAY_TRY_GOTO(gpu_param_acquire(m, &chunk->layers[i].unit, &chunk->layers[i + 1].unit), st,
                           done);
        const bool runs_next = i + 1 < l && runs_next_norm(m, chunk, i);
        if (runs_next)
            ASSAY_TRY_GOTO(make_next_norm(m, chunk, mb, i, &next), st, done);
        ASSAY_TRY_GOTO(gpu_layer_fwd(m, mb, &chunk->layers[i], a, entered, runs_next ? &next : NULL), st,
                       done);
        ASSAY_TRY_GOTO(gpu_param_release(m, &chunk->layers[i].unit), st, done);
        entered = runs_next;
    }
    mb->layers[l].input = mb->layers[l - 1].output;
done:
    m->run->recompute = false;
    m->run->phase = ASSAY_PHASE_BACKWARD;
    return st;
}

/* What the backward of layer l reads and was not kept; the last of a group writes its output, which stayed, once more. */
static assay_status run_again(gpu_model *m, const gpu_chunk *chunk, gpu_microbatch_state *mb, int64_t l,
                              int64_t first, int64_t n)
{
    assay_status st = ASSAY_OK;
    m->run->phase = ASSAY_PHASE_FORWARD;
    m->run->recompute = true;
    if (n > 0 && l == first + n - 1) {
        if (n == 1)
            set_mark(mb, &mb->layers[l]);
        st = gpu_layer_fwd(m, mb, &chunk->layers[l], &mb->layers[l], false, NULL);
    } else if (n == 0 && m->recompute.modules != 0) {
        set_mark(mb, &mb->layers[l]);
        st = gpu_layer_again(m, mb, &chunk->layers[l], &mb->layers[l]);
    }
    m->run->recompute = false;
    m->run->phase = ASSAY_PHASE_BACKWARD;
    return st;
}

static assay_status layer_bwd(gpu_model *m, const gpu_chunk *chunk, gpu_microbatch_state *mb, int64_t l,
                              gpu_value *dx, gpu_value *dy)
{
    int64_t first;
    const int64_t n = assay_recompute_layers(&m->recompute, chunk->n_layers, l, &first);
    ASSAY_TRY(run_again(m, chunk, mb, l, first, n));
    ASSAY_TRY(gpu_layer_bwd(m, &chunk->layers[l], &mb->layers[l], dx, dy));
    if (n > 0 ? l == first : m->recompute.modules != 0)
        release(mb, &mb->layers[l]);
    return ASSAY_OK;
}

/* --- parts -------------------------------------------------------------------------------------------------- */
static bool is_first_layer(const gpu_param_unit *u)
{
    return u->n > 0 && u->params[0]->spec->layer == 0;
}

/* Behind the backward of a part: the gradients of this microbatch are complete, behind the last one those of the step. */
static assay_status finish_grads(gpu_model *m, const gpu_microbatch_state *mb, const gpu_param_unit *u)
{
    if (m->run->dry)
        return ASSAY_OK;
    ASSAY_TRY(gpu_grads_reduce(m, u));
    if (mb->index != m->n_microbatches - 1 ||
        (is_first_layer(u) && gpu_fault_switch(m->run, GPU_SWITCH_UNREADY_GRADIENTS)))
        return ASSAY_OK;
    return gpu_grads_ready(m, u);
}

static assay_status leave_bwd(gpu_model *m, const gpu_microbatch_state *mb, const gpu_param_unit *u)
{
    if (!is_first_layer(u) || m->run->dry || !gpu_fault_switch(m->run, GPU_SWITCH_KEPT_PARAMETERS))
        ASSAY_TRY(gpu_param_release(m, u));
    return finish_grads(m, mb, u);
}

/* --- passes ------------------------------------------------------------------------------------------------- */
assay_status gpu_stage_fwd(gpu_model *m, gpu_chunk *chunk, gpu_microbatch_state *mb, int64_t index,
                           gpu_value **output)
{
    const size_t mark = m->scratch.used;
    mb->index = index;
    m->run->phase = ASSAY_PHASE_FORWARD;
    m->run->layer = -1;
    if (chunk->has_embedding) {
        ASSAY_TRY(gpu_param_acquire(m, &m->embedding_unit, unit_behind(m, chunk, -1)));
        ASSAY_TRY(embedding_fwd(m, mb));
        ASSAY_TRY(gpu_param_release(m, &m->embedding_unit));
    }
    gpu_value *hidden = &mb->input;
    bool entered = false; /* the first norm has run, and the parameters are held */
    for (int64_t l = 0; l < chunk->n_layers; l++) {
        const bool runs_next = runs_next_norm(m, chunk, l);
        mb->layers[l].input = *hidden;
        if (!entered)
            ASSAY_TRY(gpu_param_acquire(m, &chunk->layers[l].unit, unit_behind(m, chunk, l)));
        ASSAY_TRY(layer_fwd(m, chunk, mb, l, entered, runs_next));
        ASSAY_TRY(gpu_param_release(m, &chunk->layers[l].unit));
        hidden = &mb->layers[l].output;
        entered = runs_next;
    }
    if (chunk->has_output && m->loss_parts == 0) {
        if (!entered)
            ASSAY_TRY(gpu_param_acquire(m, &m->output_unit, NULL));
        ASSAY_TRY(gpu_output_fwd(m, mb, hidden, entered));
        ASSAY_TRY(gpu_param_release(m, &m->output_unit));
    }
    gpu_arena_reset(&m->scratch, mark);
    *output = hidden;
    return ASSAY_OK;
}

assay_status gpu_stage_bwd(gpu_model *m, gpu_chunk *chunk, gpu_microbatch_state *mb, gpu_value *doutput,
                           gpu_value **dinput)
{
    const size_t mark = m->scratch.used;
    gpu_value *dy = &m->gradient[0], *dx = &m->gradient[1];
    m->run->phase = ASSAY_PHASE_BACKWARD;
    m->run->layer = -1;
    m->round = mb->index;
    if (chunk->has_output) {
        ASSAY_TRY(gpu_param_acquire(m, &m->output_unit, unit_before(m, chunk, chunk->n_layers)));
        gpu_value *hidden = chunk->n_layers > 0 ? &mb->layers[chunk->n_layers - 1].output : &mb->input;
        ASSAY_TRY(m->loss_parts > 0 ? gpu_output_parts(m, mb, hidden, dy)
                                    : gpu_output_bwd(m, mb, hidden, dy));
        gpu_arena_reset(&m->scratch, mark);
        ASSAY_TRY(leave_bwd(m, mb, &m->output_unit));
    } else if (doutput == dx) {
        dx = dy;
        dy = doutput;
    }
    for (int64_t l = chunk->n_layers - 1; l >= 0; l--) {
        ASSAY_TRY(group_again(m, chunk, mb, l));
        ASSAY_TRY(gpu_param_acquire(m, &chunk->layers[l].unit, unit_before(m, chunk, l)));
        ASSAY_TRY(layer_bwd(m, chunk, mb, l, dx, dy));
        ASSAY_TRY(leave_bwd(m, mb, &chunk->layers[l].unit));
        gpu_value *next = dx;
        dx = dy;
        dy = next;
    }
    if (chunk->has_embedding) {
        ASSAY_TRY(gpu_grads_open(m, &m->embedding_unit));
        ASSAY_TRY(embedding_bwd(m, mb, dy));
        ASSAY_TRY(finish_grads(m, mb, &m->embedding_unit));
    }
    gpu_arena_reset(&m->scratch, mark);
    *dinput = dy;
    return ASSAY_OK;
}
