/* forward_backward_no_pipelining and 1F1B.  Source: Megatron-LM schedules.py, without interleaving. */
#include "gpu/parallel/pipeline.h"

#include "gpu/call.h"
#include <stdio.h>

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
    ASSAY_TRY(gpu_model_load_batch(m, place_of(s, index), assay_batches_ids(s->batches, s->step, microbatch),
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
    return gpu_model_fwd(s->m, place_of(s, index), index, input, output);
}

static assay_status backward(const schedule *s, int64_t index, gpu_value **dinput)
{
    enter(s, index, ASSAY_PHASE_BACKWARD);
    return gpu_model_bwd(s->m, place_of(s, index), &s->m->gradient[0], dinput);
}

static assay_status no_pipelining(const schedule *s)
{
    gpu_value input, *output, *dinput;
    for (int64_t i = 0; i < s->share->n_microbatches; i++) {
        ASSAY_TRY(open_microbatch(s, i, &input));
        ASSAY_TRY(forward(s, i, NULL, &output));
        ASSAY_TRY(backward(s, i, &dinput));
    }
    return ASSAY_OK;
}

static assay_status receive_forward(const schedule *s, int64_t index, gpu_value *input)
{
    exchange x = {0};
    ASSAY_TRY(open_microbatch(s, index, input));
    take_forward(s, &x, index, input);
    return run_exchange(s, &x);
}

static assay_status one_forward_one_backward(const schedule *s)
{
    const int64_t n = s->share->n_microbatches, ahead = s->size - s->rank - 1;
    const int64_t warmup = ahead < n ? ahead : n;
    gpu_value input, *output, *dinput;
    for (int64_t i = 0; i < warmup; i++) {
        exchange x = {0};
        ASSAY_TRY(receive_forward(s, i, &input));
        ASSAY_TRY(forward(s, i, &input, &output));
        give_forward(s, &x, i, output);
        ASSAY_TRY(run_exchange(s, &x));
    }
    if (warmup < n)
        ASSAY_TRY(receive_forward(s, warmup, &input));
    for (int64_t i = 0; i < n - warmup; i++) {
        exchange x = {0}, y = {0};
        ASSAY_TRY(forward(s, i + warmup, &input, &output));
        give_forward(s, &x, i + warmup, output);
        take_backward(s, &x, i);
        ASSAY_TRY(run_exchange(s, &x));
        ASSAY_TRY(backward(s, i, &dinput));
        give_backward(s, &y, i, dinput);
        if (i + warmup + 1 < n) {
            ASSAY_TRY(open_microbatch(s, i + warmup + 1, &input));
            take_forward(s, &y, i + warmup + 1, &input);
        }
        ASSAY_TRY(run_exchange(s, &y));
    }
    for (int64_t i = n - warmup; i < n; i++) {
        exchange x = {0}, y = {0};
        take_backward(s, &x, i);
        ASSAY_TRY(run_exchange(s, &x));
        ASSAY_TRY(backward(s, i, &dinput));
        give_backward(s, &y, i, dinput);
        ASSAY_TRY(run_exchange(s, &y));
    }
    return ASSAY_OK;
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
    return s.size == 1 ? no_pipelining(&s) : one_forward_one_backward(&s);
}
