/* Gathering parameters and scattering gradients, unit by unit. */
#include "gpu/parallel/fsdp.h"

#include "gpu/fault.h"
#include "gpu/ladder.h"
#include <stdlib.h>

/* One bucket of a call in progress. */
typedef struct place {
    gpu_optimizer *o;
    gpu_grad_buffer *b;
    int index;
    bool skip; /* planted fault: the sum is not made */
} place;

static gpu_grad_buffer *buffer_of(gpu_optimizer *o, const gpu_param *p)
{
    if (!assay_param_needs_grad(p->spec))
        return NULL;
    return &o->buffer[assay_param_reduce_group(p->spec) == ASSAY_GROUP_EDP];
}

static gpu_run *run_of(const place *at)
{
    return at->o->model->run;
}

static gpu_bucket *bucket_of(const place *at)
{
    return &at->b->buckets[at->index];
}

/* What follows on the communication stream waits for what the compute stream holds now. */
static assay_status after_compute(gpu_run *run)
{
    CUDA_TRY(cudaEventRecord(run->compute_done, run->ctx.stream));
    CUDA_TRY(cudaStreamWaitEvent(run->comm_stream, run->compute_done, 0));
    return ASSAY_OK;
}

/* The communication stream is done with the slot when it gets here; the compute stream waits for that before it touches
 * the slot. */
static assay_status leave_slot(const place *at, gpu_slot *s)
{
    CUDA_TRY(cudaEventRecord(s->done, run_of(at)->comm_stream));
    s->waited = false;
    return ASSAY_OK;
}

static assay_status wait_slot(const place *at, gpu_slot *s)
{
    if (s->waited)
        return ASSAY_OK;
    CUDA_TRY(cudaStreamWaitEvent(run_of(at)->ctx.stream, s->done, 0));
    s->waited = true;
    return ASSAY_OK;
}

/* --- parameters --------------------------------------------------------------------------------------------- */
static assay_status launch_gather(void *user)
{
    const place *at = user;
    gpu_grad_buffer *b = at->b;
    gpu_run *run = run_of(at);
    gpu_slot *s = &b->weights[bucket_of(at)->weight_slot];
    const bool overlap = at->o->model->options->overlap_param_gather;
    int64_t start, length;
    gpu_bucket_part(b, at->index, b->rank, &start, &length);
    const gpu_comm_call call = {.op = GPU_COMM_ALL_GATHER,
                                .group = b->group,
                                .send = b->param_data +
                                        gpu_bucket_place(b, at->index, false) * assay_dtype_bytes(b->act),
                                .recv = gpu_bucket_weights(b, at->index),
                                .count = length,
                                .dtype = b->act};
    if (overlap)
        ASSAY_TRY(after_compute(run));
    ASSAY_TRY(gpu_comm_enqueue(&run->comm, &call, overlap ? run->comm_stream : run->ctx.stream));
    if (overlap)
        ASSAY_TRY(leave_slot(at, s));
    return gpu_run_is_watched(run) ? wait_slot(at, s) : ASSAY_OK;
}

/* Whole parameters of a bucket in its slot, a record for each. */
static assay_status gather(place *at)
{
    gpu_optimizer *o = at->o;
    gpu_bucket *k = bucket_of(at);
    assay_status st = ASSAY_OK;
    if (k->gathered)
        return ASSAY_OK;
    k->gathered = true;
    gpu_call_args *calls = calloc((size_t)k->n_params, sizeof *calls);
    gpu_value *values = calloc((size_t)k->n_params * GPU_MAX_PIECES, sizeof *values);
    ASSAY_CHECK_GOTO(calls && values, ASSAY_OUT_OF_MEMORY, st, done, "a gather of %d parameters",
                     k->n_params);
    for (int i = 0; i < k->n_params; i++) {
        gpu_param *p = at->b->params[k->first_param + i];
        gpu_value *parts = values + (int64_t)i * GPU_MAX_PIECES;
        for (int n = 0; n < p->n_pieces; n++) {
            parts[n] = o->pieces[p->first_piece + n].weight;
            parts[n].phase = ASSAY_PHASE_FORWARD;
        }
        calls[i] = (gpu_call_args){.op = "all_gather", .at = p->spec->name, .group = at->b->group};
        gpu_piece_args("send", parts, p->n_pieces, calls[i].arg);
        calls[i].arg[p->n_pieces] = (gpu_arg)GPU_T("recv", &p->weight);
    }
    ASSAY_TRY_GOTO(gpu_call_list(run_of(at), calls, k->n_params, launch_gather, at), st, done);
done:
    free(calls);
    free(values);
    return st;
}

/* --- around a pass ------------------------------------------------------------------------------------------ */
/* Zeros for the gradients of one microbatch that no product begins. */
static assay_status open_grads(place *at)
{
    gpu_bucket *k = bucket_of(at);
    gpu_slot *s = &at->b->grads[k->grad_slot];
    if (k->open)
        return ASSAY_OK;
    if (s->waited || !gpu_fault_switch(run_of(at), GPU_SWITCH_REUSED_SLOT))
        ASSAY_TRY(wait_slot(at, s));
    ASSAY_TRY(gpu_grads_clear(at->b, at->o->model, k->first_param, k->n_params));
    k->open = true;
    k->n_pending = k->n_params;
    for (int i = 0; i < k->n_params; i++) {
        at->b->params[k->first_param + i]->main_grad.phase = ASSAY_PHASE_BACKWARD;
        at->b->params[k->first_param + i]->main_grad.microbatch = -1;
    }
    return ASSAY_OK;
}

/* Before the unit reads: its bucket is there, however it came. */
static assay_status ready_weights(place *at)
{
    gpu_bucket *k = bucket_of(at);
    gpu_run *run = run_of(at);
    if (k->waits && !gpu_fault_switch(run, GPU_SWITCH_UNWAITED_GATHER))
        CUDA_TRY(cudaStreamWaitEvent(run->ctx.stream, k->synced, 0));
    k->waits = false;
    if (!at->b->gathered)
        return ASSAY_OK;
    ASSAY_TRY(gather(at));
    gpu_slot *s = &at->b->weights[k->weight_slot];
    return !s->waited && gpu_fault_switch(run, GPU_SWITCH_UNWAITED_GATHER) ? ASSAY_OK : wait_slot(at, s);
}

assay_status gpu_unit_before(void *optimizer, const gpu_param_unit *unit, const gpu_param_unit *next,
                             bool reads, bool backward)
{
    gpu_optimizer *o = optimizer;
    if (o->model->run->dry)
        return ASSAY_OK;
    for (int i = 0; i < unit->n; i++) {
        place at = {.o = o, .b = buffer_of(o, unit->params[i]), .index = unit->params[i]->bucket};
        if (at.b && reads)
            ASSAY_TRY(ready_weights(&at));
        if (at.b && backward && at.b->scattered)
            ASSAY_TRY(open_grads(&at));
    }
    for (int i = 0; next && o->model->options->overlap_param_gather && i < next->n; i++) {
        place at = {.o = o, .b = buffer_of(o, next->params[i]), .index = next->params[i]->bucket};
        if (at.b && at.b->gathered)
            ASSAY_TRY(gather(&at));
    }
    return ASSAY_OK;
}

assay_status gpu_unit_after(void *optimizer, const gpu_param_unit *unit)
{
    gpu_optimizer *o = optimizer;
    gpu_run *run = o->model->run;
    for (int i = 0; !run->dry && i < unit->n; i++) {
        gpu_grad_buffer *b = buffer_of(o, unit->params[i]);
        gpu_bucket *k = b ? &b->buckets[unit->params[i]->bucket] : NULL;
        if (k == NULL || !b->gathered || !k->gathered)
            continue;
        k->gathered = false;
        if (run->ctx.simulated || run->trace)
            CUDA_TRY(cudaMemsetAsync(gpu_bucket_weights(b, unit->params[i]->bucket), GPU_POISON,
                                     (size_t)(k->length * assay_dtype_bytes(b->act)), run->ctx.stream));
    }
    return ASSAY_OK;
}

/* --- gradients of a microbatch --------------------------------------------------------------------------------- */
/* The gradient of one microbatch on this rank alone; all data-parallel ranks are in the same round. */
static gpu_value round_gradient(const gpu_optimizer *o, const gpu_param *p)
{
    const assay_group copies = gpu_replicas_of(o, p).group;
    gpu_value v = p->main_grad;
    v.phase = ASSAY_PHASE_GRAD;
    v.microbatch = o->model->round;
    v.kind = copies == ASSAY_GROUP_KV || copies == ASSAY_GROUP_EMBEDDING
                 ? ASSAY_PIECE_LOCAL /* no named group is both */
                 : ASSAY_PIECE_PARTIAL;
    v.partial = copies == ASSAY_GROUP_TP ? ASSAY_GROUP_TP_DP_CP : assay_param_reduce_group(p->spec);
    return v;
}

/* A part of this rank that is not complete, under a name of its own. */
static gpu_value partial_part(const place *at, const gpu_piece *q, const char *suffix, int64_t round)
{
    gpu_value v = q->grad;
    gpu_piece_rename(&v, q, suffix);
    v.microbatch = round;
    gpu_piece_lacks(&v, at->o, at->b, q);
    return v;
}

static gpu_value received_part(const place *at, const gpu_piece *q)
{
    gpu_value v = partial_part(at, q, ".shard", at->o->model->round);
    v.t.data = at->b->received + q->in_part;
    return v;
}

static gpu_value summed_part(const place *at, const gpu_piece *q, int64_t round)
{
    const bool last = round == at->o->model->n_microbatches - 1;
    if (last && gpu_replicas_of(at->o, q->param).group == ASSAY_GROUP_COUNT && at->b->copies == 1)
        return q->grad;
    return partial_part(at, q, ".sum", round);
}

static assay_status launch_scatter(void *user)
{
    const place *at = user;
    gpu_grad_buffer *b = at->b;
    gpu_run *run = run_of(at);
    gpu_slot *s = &b->grads[bucket_of(at)->grad_slot];
    const bool overlap = at->o->model->options->overlap_grad_reduce;
    const cudaStream_t stream = overlap ? run->comm_stream : run->ctx.stream;
    int64_t start, length;
    gpu_bucket_part(b, at->index, b->rank, &start, &length);
    const gpu_comm_call call = {.op = GPU_COMM_REDUCE_SCATTER,
                                .group = b->group,
                                .send = gpu_bucket_gradients(b, at->index),
                                .recv = b->received,
                                .count = length,
                                .dtype = ASSAY_F32};
    if (overlap && !gpu_fault_switch(run, GPU_SWITCH_UNWAITED_GRADIENTS))
        ASSAY_TRY(after_compute(run));
    if (at->skip)
        CUDA_TRY(cudaMemcpyAsync(b->received, gpu_bucket_gradients(b, at->index) + b->rank * length,
                                 (size_t)length * sizeof(float), cudaMemcpyDeviceToDevice, stream));
    else
        ASSAY_TRY(gpu_comm_enqueue(&run->comm, &call, stream));
    if (overlap)
        ASSAY_TRY(leave_slot(at, s));
    return gpu_run_is_watched(run) ? wait_slot(at, s) : ASSAY_OK;
}

/* parts += received, on the stream that received; not in a watched run. */
static assay_status add_part(const place *at)
{
    gpu_run *run = run_of(at);
    const bool overlap = at->o->model->options->overlap_grad_reduce;
    gpu_operands o;
    int variant;
    int64_t start, length;
    gpu_bucket_part(at->b, at->index, at->b->rank, &start, &length);
    const gpu_tensor sum =
        gpu_tensor_1d(at->b->data + gpu_bucket_place(at->b, at->index, true), ASSAY_F32, length);
    gpu_operands_init(&o, assay_op_find("add"));
    gpu_operands_put(&o, "a", sum);
    gpu_operands_put(&o, "b", gpu_tensor_1d(at->b->received, ASSAY_F32, length));
    gpu_operands_put(&o, "y", sum);
    return gpu_ladder_run(&run->ctx, &o, 1, overlap ? run->comm_stream : run->ctx.stream, &variant);
}

/* The same piece by piece, with records. */
static assay_status add_pieces(const place *at)
{
    gpu_optimizer *o = at->o;
    const gpu_bucket *k = bucket_of(at);
    const int64_t round = o->model->round;
    for (int i = 0; i < k->n_params; i++) {
        const gpu_param *p = at->b->params[k->first_param + i];
        for (int n = 0; n < p->n_pieces; n++) {
            const gpu_piece *q = &o->pieces[p->first_piece + n];
            gpu_value a = partial_part(at, q, ".sum", round - 1), b = received_part(at, q);
            gpu_value y = summed_part(at, q, round);
            ASSAY_TRY(
                GPU_CALL(run_of(at), "add", p->spec->name, GPU_T("a", &a), GPU_T("b", &b), GPU_T("y", &y)));
        }
    }
    return ASSAY_OK;
}

/* A record for each parameter. */
static assay_status reduce_scatter(place *at)
{
    gpu_optimizer *o = at->o;
    gpu_model *m = o->model;
    const gpu_bucket *k = bucket_of(at);
    assay_status st = ASSAY_OK;
    gpu_call_args *calls = calloc((size_t)k->n_params, sizeof *calls);
    gpu_value *send = calloc((size_t)k->n_params, sizeof *send);
    gpu_value *recv = calloc((size_t)k->n_params * GPU_MAX_PIECES, sizeof *recv);
    ASSAY_CHECK_GOTO(calls && send && recv, ASSAY_OUT_OF_MEMORY, st, done, "gradients of %d parameters",
                     k->n_params);
    for (int i = 0; i < k->n_params; i++) {
        gpu_param *p = at->b->params[k->first_param + i];
        send[i] = round_gradient(o, p);
        for (int n = 0; n < p->n_pieces; n++)
            recv[i * GPU_MAX_PIECES + n] = received_part(at, &o->pieces[p->first_piece + n]);
        calls[i] = (gpu_call_args){.op = "reduce_scatter", .at = p->spec->name, .group = at->b->group};
        gpu_piece_args("recv", recv + (int64_t)i * GPU_MAX_PIECES, p->n_pieces, calls[i].arg);
        calls[i].arg[p->n_pieces] = (gpu_arg)GPU_T("send", &send[i]);
        calls[i].arg[p->n_pieces + 1] = (gpu_arg)GPU_W("reduction", "sum");
    }
    at->skip = gpu_bucket_fault(o, at->b, at->index, "reduce_scatter");
    ASSAY_TRY_GOTO(gpu_call_list(m->run, calls, k->n_params, launch_scatter, at), st, done);
done:
    free(recv);
    free(send);
    free(calls);
    return st;
}

static assay_status scatter(place *at)
{
    ASSAY_TRY(reduce_scatter(at));
    bucket_of(at)->open = false;
    if (gpu_run_is_watched(run_of(at)))
        return add_pieces(at);
    ASSAY_TRY(add_part(at));
    return ASSAY_OK;
}

assay_status gpu_unit_reduce(void *optimizer, const gpu_param_unit *unit)
{
    gpu_optimizer *o = optimizer;
    for (int i = 0; i < unit->n_ready; i++) {
        place at = {.o = o, .b = buffer_of(o, unit->params[i]), .index = unit->params[i]->bucket};
        if (at.b && at.b->scattered && --bucket_of(&at)->n_pending == 0)
            ASSAY_TRY(scatter(&at));
        if (at.b && !at.b->scattered && o->model->round == 0 &&
            gpu_fault_switch(o->model->run, GPU_SWITCH_EARLY_REDUCTION))
            ASSAY_TRY(gpu_optimizer_grad_ready(o, unit->params[i]));
    }
    return ASSAY_OK;
}

/* --- after the last backward -------------------------------------------------------------------------------------- */
/* HSDP: this rank's parts of everything over the copies; they lie together. */
static assay_status launch_copies(void *user)
{
    const place *at = user;
    const gpu_comm_call call = {.op = GPU_COMM_ALL_REDUCE,
                                .group = at->b->replicas,
                                .send = at->b->data,
                                .recv = at->b->data,
                                .count = at->b->length / at->b->size,
                                .dtype = ASSAY_F32};
    return call.count > 0 ? gpu_comm_enqueue(&run_of(at)->comm, &call, run_of(at)->ctx.stream) : ASSAY_OK;
}

/* A record for each rectangle. */
static assay_status sum_copies(place *at)
{
    gpu_optimizer *o = at->o;
    assay_status st = ASSAY_OK;
    const int64_t last = o->model->n_microbatches - 1;
    const size_t most = (size_t)at->b->n_params * GPU_MAX_PIECES;
    gpu_call_args *calls = calloc(most + 1, sizeof *calls);
    gpu_value *send = calloc(2 * most + 1, sizeof *send), *recv = send + most;
    int64_t count = 0;
    ASSAY_CHECK_GOTO(calls && send, ASSAY_OUT_OF_MEMORY, st, done, "parts of %lld parameters",
                     (long long)at->b->n_params);
    for (int64_t i = 0; i < at->b->n_params; i++) {
        const gpu_param *p = at->b->params[i];
        for (int k = 0; k < p->n_pieces; k++, count++) {
            const gpu_piece *q = &o->pieces[p->first_piece + k];
            send[count] = partial_part(at, q, ".sum", last);
            recv[count] = gpu_piece_dp_sum(o, q);
            calls[count] = (gpu_call_args){
                .op = "all_reduce",
                .at = p->spec->name,
                .group = at->b->replicas,
                .arg = {GPU_T("send", &send[count]), GPU_W("reduction", "sum"), GPU_T("recv", &recv[count])}};
        }
    }
    ASSAY_TRY_GOTO(gpu_call_list(run_of(at), calls, count, launch_copies, at), st, done);
done:
    free(send);
    free(calls);
    return st;
}

assay_status gpu_finish_parts(gpu_optimizer *o, gpu_grad_buffer *b)
{
    place at = {.o = o, .b = b};
    ASSAY_TRY(gpu_finish_grad_sync(o->model));
    return b->copies > 1 ? sum_copies(&at) : ASSAY_OK;
}
