/* The pipeline schedule as a list, and the loop that runs it.  Source: Megatron-LM schedules.py,
 * forward_backward_pipelining_with(out)_interleaving. */
#include "gpu/parallel/pipeline.h"

#include "gpu/call.h"
#include "gpu/graph.h"
#include "gpu/stage.h"
#include "gpu/targets.h"
#include <stdio.h>
#include <stdlib.h>

/* --- the list ----------------------------------------------------------------------------------------------- */
/* Number `index` of all forwards of a stage, or of all backwards, which take the chunks the other way round. */
static gpu_action action_at(int stages, int chunks, int64_t microbatches, int64_t index, bool forward)
{
    const int64_t group = index / ((int64_t)stages * chunks) * stages; /* its first microbatch */
    const int64_t left = microbatches - group, members = left < stages ? left : stages;
    const int64_t at = index - group * chunks;
    const int chunk = (int)(at / members);
    return (gpu_action){.forward = forward,
                        .microbatch = group + at % members,
                        .chunk = forward ? chunk : chunks - 1 - chunk};
}

assay_status gpu_pipeline_schedule(int stages, int chunks, int stage, int64_t microbatches, gpu_schedule *out)
{
    const int64_t total = microbatches * chunks, behind = stages - stage - 1;
    const int64_t ahead = chunks == 1 ? behind : 2 * behind + (int64_t)(chunks - 1) * stages;
    const int64_t warmup = ahead < total ? ahead : total;
    *out = (gpu_schedule){0};
    ASSAY_CHECK(
        chunks == 1 || microbatches <= stages || microbatches % stages == 0, ASSAY_INVALID_ARGUMENT,
        "vpp%d: expected a number of microbatches of a data-parallel rank that is a multiple of pp%d or at "
        "most that, found %lld",
        chunks, stages, (long long)microbatches);
    out->list = calloc((size_t)(2 * total) + 1, sizeof *out->list);
    ASSAY_CHECK(out->list, ASSAY_OUT_OF_MEMORY, "a schedule of %lld microbatches", (long long)microbatches);
    for (int64_t i = 0; i < total + warmup; i++) {
        if (i < total)
            out->list[out->n++] = action_at(stages, chunks, microbatches, i, true);
        if (i < warmup)
            continue;
        gpu_action *a = &out->list[out->n++];
        *a = action_at(stages, chunks, microbatches, i - warmup, false);
        a->joined = chunks > 1 && i < total;
    }
    return ASSAY_OK;
}

void gpu_pipeline_schedule_free(gpu_schedule *s)
{
    free(s->list);
    *s = (gpu_schedule){0};
}

int gpu_pipeline_in_flight(const gpu_schedule *s, int chunk)
{
    int now = 0, most = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (s->list[i].chunk != chunk)
            continue;
        now += s->list[i].forward ? 1 : -1;
        most = now > most ? now : most;
    }
    return most;
}

/* --- between stages ----------------------------------------------------------------------------------------- */
typedef struct pipeline {
    gpu_model *m;
    const assay_batches *batches;
    const assay_batch_share *share;
    int64_t step;
    int stage, stages;
    gpu_value *leaving; /* gradient that waits to be sent; NULL */
    gpu_value *arrived; /* gradient for the next backward */
    int n;              /* what waits to travel */
    gpu_transfer transfer[GPU_EXCHANGE_TRANSFERS];
} pipeline;

static gpu_chunk *chunk_of(const pipeline *p, const gpu_action *a)
{
    return &p->m->chunks[a->chunk];
}

static void enter(const pipeline *p, const gpu_action *a)
{
    p->m->run->microbatch = p->share->first_microbatch + a->microbatch;
    p->m->run->phase = a->forward ? ASSAY_PHASE_FORWARD : ASSAY_PHASE_BACKWARD;
    p->m->run->layer = -1;
}

/* The stages are a ring: behind the last one comes the first with its next chunk. */
static int peer_of(const pipeline *p, bool ahead)
{
    return (p->stage + (ahead ? 1 : p->stages - 1)) % p->stages;
}

/* Hidden states go ahead and gradients back. */
static void add_transfer(pipeline *p, const gpu_action *a, bool send, gpu_value *v)
{
    static const char *const at[2][2] = {{"pipeline.recv_backward", "pipeline.recv_forward"},
                                         {"pipeline.send_backward", "pipeline.send_forward"}};
    p->transfer[p->n++] = (gpu_transfer){
        .args = {.op = send ? "send" : "recv",
                 .at = at[send][a->forward],
                 .group = ASSAY_GROUP_PP,
                 .arg = {GPU_T(send ? "send" : "recv", v), GPU_I("peer", peer_of(p, a->forward == send))}},
        .phase = a->forward ? ASSAY_PHASE_FORWARD : ASSAY_PHASE_BACKWARD,
        .microbatch = p->share->first_microbatch + a->microbatch};
}

static assay_status travel(pipeline *p)
{
    const int n = p->n;
    p->n = 0;
    p->leaving = NULL;
    p->m->run->layer = -1;
    return n > 0 ? gpu_call_exchange(p->m->run, p->transfer, n) : ASSAY_OK;
}

/* --- one action --------------------------------------------------------------------------------------------- */
/* Targets of a microbatch on the positions of this rank. */
static int64_t local_targets(const pipeline *p, int64_t microbatch)
{
    const gpu_model *m = p->m;
    const int64_t *labels = assay_batches_labels(p->batches, p->step, microbatch);
    int64_t n = 0;
    for (int64_t s = 0; s < m->sequence.region.length; s++) {
        const int64_t at = assay_sequence_position(&m->sequence.region, s) + (p->batches->shifted ? 0 : 1);
        for (int64_t b = 0; b < m->B && at < m->S; b++)
            n += labels[(m->row0 + b) * m->S + at] != ASSAY_IGNORE_INDEX;
    }
    return n;
}

/* The weight of a target of the microbatch in the objective.  Megatron-LM takes the mean over the positions of a
 * context-parallel rank, and the mean of these means: of those of dp, too, where they share a microbatch. */
static double loss_scale(const pipeline *p, int64_t microbatch)
{
    const gpu_model *m = p->m;
    if (m->options->calculate_per_token_loss)
        return 1.0 / (double)m->targets;
    const int ranks = m->cp * (m->rows_split ? m->grid->p.data_parallel_size : 1);
    const bool local = m->options->semantics == ASSAY_SEMANTICS_MEGATRON && ranks > 1;
    const int64_t n =
        local ? local_targets(p, microbatch) : gpu_microbatch_targets(p->batches, p->step, microbatch);
    return 1.0 / ((double)m->step_microbatches * (double)(local ? ranks : 1) * (double)(n > 0 ? n : 1));
}

/* Readies the place of the microbatch, with room for what the virtual stage before sends. */
static assay_status open_forward(pipeline *p, const gpu_action *a)
{
    gpu_model *m = p->m;
    gpu_chunk *chunk = chunk_of(p, a);
    gpu_microbatch_state *mb = gpu_stage_place(chunk, a->microbatch);
    const int64_t microbatch = p->share->first_microbatch + a->microbatch;
    char name[ASSAY_NAME];
    enter(p, a);
    ASSAY_TRY(gpu_stage_load_batch(
        m, chunk, mb,
        &(gpu_batch_rows){.ids = assay_batches_ids(p->batches, p->step, microbatch),
                          .labels = assay_batches_labels(p->batches, p->step, microbatch),
                          .positions = assay_batches_positions(p->batches, p->step, microbatch),
                          .shifted = p->batches->shifted}));
    mb->loss_scale = loss_scale(p, microbatch);
    if (chunk->has_embedding)
        return ASSAY_OK;
    gpu_model_hidden(m, &mb->input);
    gpu_hidden_name(m, chunk->first_layer, name);
    gpu_value_rename(m->run, &mb->input, name);
    mb->input.arena = &mb->arena;
    ASSAY_TRY(gpu_value_make(&mb->input, m->act));
    add_transfer(p, a, false, &mb->input);
    return ASSAY_OK;
}

static void open_backward(pipeline *p, const gpu_action *a)
{
    const gpu_chunk *chunk = chunk_of(p, a);
    char name[ASSAY_NAME], grad[ASSAY_NAME + 8];
    p->arrived = &p->m->gradient[p->leaving == &p->m->gradient[0]];
    if (chunk->has_output)
        return;
    enter(p, a);
    gpu_hidden_name(p->m, chunk->first_layer + chunk->n_layers, name);
    snprintf(grad, sizeof grad, "%s.grad", name);
    gpu_value_rename(p->m->run, p->arrived, grad);
    add_transfer(p, a, false, p->arrived);
}

static assay_status run_action(pipeline *p, const gpu_action *a)
{
    gpu_chunk *chunk = chunk_of(p, a);
    gpu_microbatch_state *mb = gpu_stage_place(chunk, a->microbatch);
    gpu_value *out = NULL; /* with graphs a stage is the only one */
    enter(p, a);
    if (p->m->graphs)
        ASSAY_TRY(gpu_graphs_run(p->m->graphs, p->m, chunk, a->forward, a->microbatch));
    else if (a->forward)
        ASSAY_TRY(gpu_stage_fwd(p->m, chunk, mb, a->microbatch, &out));
    else
        ASSAY_TRY(gpu_stage_bwd(p->m, chunk, mb, p->arrived, &out));
    if (a->forward)
        CUDA_TRY(cudaEventRecord(mb->staged, p->m->run->ctx.stream));
    if (a->forward ? chunk->has_output : chunk->has_embedding)
        return ASSAY_OK;
    if (!a->forward)
        p->leaving = out;
    add_transfer(p, a, true, out);
    return ASSAY_OK;
}

/* --- the loop ----------------------------------------------------------------------------------------------- */
/* Round by round: what the round before made and what this one needs travel together. */
static assay_status run_schedule(pipeline *p, const gpu_schedule *s)
{
    for (int64_t first = 0, end; first < s->n; first = end) {
        for (end = first + 1; end < s->n && s->list[end].joined; end++)
            continue;
        for (int64_t i = first; i < end; i++)
            if (s->list[i].forward)
                ASSAY_TRY(open_forward(p, &s->list[i]));
            else
                open_backward(p, &s->list[i]);
        ASSAY_TRY(travel(p));
        for (int64_t i = first; i < end; i++)
            ASSAY_TRY(run_action(p, &s->list[i]));
    }
    return travel(p);
}

assay_status gpu_forward_backward(gpu_model *m, const assay_batches *batches, const assay_batch_share *share,
                                  const gpu_schedule *schedule, int64_t step)
{
    pipeline p = {.m = m,
                  .batches = batches,
                  .share = share,
                  .step = step,
                  .stage = m->at.pp,
                  .stages = m->grid->p.pipeline_model_parallel_size};
    return run_schedule(&p, schedule);
}
