/* The pipeline schedule as a list, and the loop that runs it.  Source: Megatron-LM schedules.py, without
 * interleaving. */
#include "gpu/parallel/pipeline.h"

#include "gpu/call.h"
#include "gpu/stage.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct schedule {
    gpu_model *m;
    const assay_batches *batches;
    const assay_batch_share *share;
    int64_t step;
    int rank, size; /* pipeline stage */
} schedule;

int gpu_pipeline_in_flight(const assay_grid *grid, int pp_rank, int64_t n_microbatches)
{
    const int64_t most = grid->p.pipeline_model_parallel_size - pp_rank;
    return (int)(most < n_microbatches ? most : n_microbatches);
}

static int place_of(const schedule *s, int64_t index)
{
    return (int)(index % s->m->n_in_flight);
}

static void enter(const schedule *s, int64_t index, assay_phase phase)
{
    s->m->run->microbatch = s->share->first_microbatch + index;
    s->m->run->phase = phase;
    s->m->run->layer = -1;
}

/* --- between stages ----------------------------------------------------------------------------------------- */
/* One send, one receive or both at once.  A value of NULL is a direction that nothing takes. */
typedef struct exchange {
    gpu_value *send, *recv;
    int send_to, recv_from;
    const char *send_at, *recv_at;
    int64_t send_index, recv_index; /* microbatches of this rank */
    assay_phase send_phase, recv_phase;
} exchange;

static assay_status exchange_values(const schedule *s, const exchange *x)
{
    const int64_t first = s->share->first_microbatch;
    const gpu_call_args give = {.op = "send",
                                .at = x->send_at,
                                .group = ASSAY_GROUP_PP,
                                .arg = {GPU_T("send", x->send), GPU_I("peer", x->send_to)}};
    const gpu_call_args take = {.op = "recv",
                                .at = x->recv_at,
                                .group = ASSAY_GROUP_PP,
                                .arg = {GPU_T("recv", x->recv), GPU_I("peer", x->recv_from)}};
    const gpu_transfer sent = {&give, x->send_phase, first + x->send_index},
                       received = {&take, x->recv_phase, first + x->recv_index};
    s->m->run->layer = -1;
    return gpu_call_exchange(s->m->run, x->send ? &sent : NULL, x->recv ? &received : NULL);
}

/* Readies the place of microbatch `index`; *input gets room for what the stage before will send. */
static assay_status open_microbatch(const schedule *s, int64_t index, gpu_value *input)
{
    gpu_model *m = s->m;
    const int64_t microbatch = s->share->first_microbatch + index;
    enter(s, index, ASSAY_PHASE_FORWARD);
    ASSAY_TRY(gpu_stage_load_batch(m, place_of(s, index), assay_batches_ids(s->batches, s->step, microbatch),
                                   assay_batches_labels(s->batches, s->step, microbatch)));
    if (s->rank == 0)
        return ASSAY_OK;
    gpu_model_hidden(m, input);
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "decoder.layers.%lld.mlp.residual.y",
             (long long)m->chunks[0].layers[0].number - 1);
    gpu_value_rename(m->run, input, name);
    input->arena = &m->in_flight[place_of(s, index)].arena;
    return gpu_value_make(input, m->act);
}

static void take_forward(const schedule *s, exchange *x, int64_t index, gpu_value *input)
{
    if (s->rank == 0)
        return;
    x->recv = input;
    x->recv_from = s->rank - 1;
    x->recv_at = "pipeline.recv_forward";
    x->recv_index = index;
    x->recv_phase = ASSAY_PHASE_FORWARD;
}

static void give_forward(const schedule *s, exchange *x, int64_t index, gpu_value *output)
{
    if (s->rank == s->size - 1)
        return;
    x->send = output;
    x->send_to = s->rank + 1;
    x->send_at = "pipeline.send_forward";
    x->send_index = index;
    x->send_phase = ASSAY_PHASE_FORWARD;
}

static void take_backward(const schedule *s, exchange *x, int64_t index)
{
    gpu_model *m = s->m;
    if (s->rank == s->size - 1)
        return;
    enter(s, index, ASSAY_PHASE_BACKWARD);
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "decoder.layers.%lld.mlp.residual.y.grad",
             (long long)(m->chunks[0].layers[0].number + m->chunks[0].n_layers - 1));
    gpu_value_rename(m->run, &m->gradient[0], name);
    x->recv = &m->gradient[0];
    x->recv_from = s->rank + 1;
    x->recv_at = "pipeline.recv_backward";
    x->recv_index = index;
    x->recv_phase = ASSAY_PHASE_BACKWARD;
}

static void give_backward(const schedule *s, exchange *x, int64_t index, gpu_value *dinput)
{
    if (s->rank == 0)
        return;
    x->send = dinput;
    x->send_to = s->rank - 1;
    x->send_at = "pipeline.send_backward";
    x->send_index = index;
    x->send_phase = ASSAY_PHASE_BACKWARD;
}

static assay_status run_exchange(const schedule *s, const exchange *x)
{
    return x->send || x->recv ? exchange_values(s, x) : ASSAY_OK;
}

/* --- schedules ---------------------------------------------------------------------------------------------- */
static assay_status forward(const schedule *s, int64_t index, gpu_value *input, gpu_value **output)
{
    enter(s, index, ASSAY_PHASE_FORWARD);
    return gpu_stage_fwd(s->m, place_of(s, index), index, input, output);
}

static assay_status backward(const schedule *s, int64_t index, gpu_value **dinput)
{
    enter(s, index, ASSAY_PHASE_BACKWARD);
    return gpu_stage_bwd(s->m, place_of(s, index), &s->m->gradient[0], dinput);
}

assay_status gpu_pipeline_schedule(int stages, int stage, int64_t microbatches, gpu_action **actions)
{
    const int64_t ahead = stages - stage - 1, warmup = ahead < microbatches ? ahead : microbatches;
    gpu_action *list = calloc((size_t)(2 * microbatches) + 1, sizeof *list);
    int64_t n = 0;
    *actions = list;
    ASSAY_CHECK(list, ASSAY_OUT_OF_MEMORY, "a schedule of %lld microbatches", (long long)microbatches);
    for (int64_t i = 0; i < microbatches + warmup; i++) {
        if (i < microbatches)
            list[n++] = (gpu_action){.forward = true, .microbatch = i};
        if (i >= warmup)
            list[n++] = (gpu_action){.forward = false, .microbatch = i - warmup};
    }
    return ASSAY_OK;
}

/* One loop over the list.  What an action sends and what the next one needs travel together when one is a forward
 * and the other a backward (Megatron-LM's steady state), else one after the other. */
static assay_status run_schedule(const schedule *s, const gpu_action *list)
{
    gpu_value input, *output, *dinput;
    exchange between = {0};
    for (int64_t k = 0; k < 2 * s->share->n_microbatches; k++) {
        const gpu_action *a = &list[k];
        if (k > 0 && list[k - 1].forward == a->forward) {
            ASSAY_TRY(run_exchange(s, &between));
            between = (exchange){0};
        }
        if (a->forward) {
            ASSAY_TRY(open_microbatch(s, a->microbatch, &input));
            take_forward(s, &between, a->microbatch, &input);
        } else {
            take_backward(s, &between, a->microbatch);
        }
        ASSAY_TRY(run_exchange(s, &between));
        between = (exchange){0};
        if (a->forward) {
            ASSAY_TRY(forward(s, a->microbatch, s->rank == 0 ? NULL : &input, &output));
            give_forward(s, &between, a->microbatch, output);
        } else {
            ASSAY_TRY(backward(s, a->microbatch, &dinput));
            give_backward(s, &between, a->microbatch, dinput);
        }
    }
    return run_exchange(s, &between);
}

assay_status gpu_forward_backward(gpu_model *m, const assay_batches *batches, const assay_batch_share *share,
                                  int64_t step)
{
    const schedule s = {.m = m,
                        .batches = batches,
                        .share = share,
                        .step = step,
                        .rank = m->at.pp,
                        .size = m->grid->p.pipeline_model_parallel_size};
    gpu_action *list = NULL;
    ASSAY_TRY(gpu_pipeline_schedule(s.size, s.rank, share->n_microbatches, &list));
    const assay_status st = run_schedule(&s, list);
    free(list);
    return st;
}
