/* Reduction of gradients over data-parallel ranks, with a record for each parameter. */
#include "gpu/optimizer.h"

#include "gpu/call.h"
#include "gpu/fault.h"
#include "gpu/parallel/fsdp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- gradients ---------------------------------------------------------------------------------------------- */
assay_status gpu_optimizer_zero_grad(gpu_optimizer *o)
{
    gpu_params_begin_step(o->model);
    ASSAY_TRY(gpu_grad_buffer_zero(&o->buffer[0], o->model));
    return gpu_grad_buffer_zero(&o->buffer[1], o->model);
}

/* --- data-parallel sums: a bucket at a time, a record for each parameter -------------------------------------- */
typedef struct bucket_sync {
    gpu_optimizer *o;
    gpu_grad_buffer *b;
    int index;
} bucket_sync;

bool gpu_bucket_fault(gpu_optimizer *o, const gpu_grad_buffer *b, int index, const char *op)
{
    const gpu_bucket *k = &b->buckets[index];
    bool skip = false;
    for (int64_t i = k->first_param; i < k->first_param + k->n_params; i++) {
        gpu_fault_plan *p = gpu_fault_at(o->model->run, GPU_FAULT_SKIP, op, b->params[i]->spec->name);
        skip = skip || p;
        if (p)
            p->met++;
    }
    return skip;
}

void gpu_piece_args(const char *slot, gpu_value *pieces, int n, gpu_arg *args)
{
    static const char *const send[GPU_MAX_PIECES] = {"send.0", "send.1", "send.2", "send.3",
                                                     "send.4", "send.5", "send.6", "send.7"};
    static const char *const recv[GPU_MAX_PIECES] = {"recv.0", "recv.1", "recv.2", "recv.3",
                                                     "recv.4", "recv.5", "recv.6", "recv.7"};
    const bool sends = strcmp(slot, "send") == 0;
    for (int i = 0; i < n; i++)
        args[i] = (gpu_arg)GPU_T(sends ? send[i] : recv[i], &pieces[i]);
    if (n == 1)
        args[0].name = sends ? "send" : "recv";
}

static assay_status launch_sync(void *user)
{
    const bucket_sync *s = user;
    gpu_model *m = s->o->model;
    const bool cut = gpu_buffer_is_cut(s->o, s->b);
    if (!gpu_bucket_fault(s->o, s->b, s->index, cut ? "reduce_scatter" : "all_reduce"))
        ASSAY_TRY(gpu_start_grad_sync(s->b, m, s->index, cut));
    return gpu_run_is_watched(m->run) ? gpu_finish_grad_sync(m) : ASSAY_OK;
}

static assay_status launch_copies(void *user)
{
    const bucket_sync *s = user;
    gpu_model *m = s->o->model;
    ASSAY_TRY(gpu_start_copies_sync(s->b, m, s->index));
    return gpu_run_is_watched(m->run) ? gpu_finish_grad_sync(m) : ASSAY_OK;
}

/* A rectangle after the sum over one copy's ranks; that over the copies (HSDP) and the one that makes copies may follow. */
static gpu_value one_copy(const gpu_optimizer *o, const gpu_grad_buffer *b, const gpu_piece *q)
{
    gpu_value v = q->grad;
    if (b->copies == 1 && gpu_replicas_of(o, q->param).group == ASSAY_GROUP_COUNT)
        return v;
    gpu_piece_rename(&v, q, ".shard");
    gpu_piece_lacks(&v, o, b, q);
    return v;
}

/* Over the ranks of a copy, or of all data-parallel ranks where nothing is cut. */
static assay_status sum_bucket(gpu_optimizer *o, gpu_grad_buffer *b, int index, gpu_value *local)
{
    const gpu_bucket *k = &b->buckets[index];
    const bool cut = gpu_buffer_is_cut(o, b);
    bucket_sync sync = {o, b, index};
    assay_status st = ASSAY_OK;
    gpu_call_args *calls = calloc((size_t)k->n_params, sizeof *calls);
    gpu_value *recv = calloc((size_t)k->n_params * GPU_MAX_PIECES, sizeof *recv);
    ASSAY_CHECK_GOTO(calls && recv, ASSAY_OUT_OF_MEMORY, st, done, "gradients: a list of %d parameters",
                     k->n_params);
    for (int i = 0; i < k->n_params; i++) {
        const gpu_param *p = b->params[k->first_param + i];
        gpu_value *parts = recv + (int64_t)i * GPU_MAX_PIECES;
        const int n = cut ? p->n_pieces : 1;
        for (int piece = 0; cut && piece < n; piece++)
            parts[piece] = one_copy(o, b, &o->pieces[p->first_piece + piece]);
        if (!cut)
            parts[0] = gpu_summed_gradient(o, p);
        calls[i] = (gpu_call_args){.op = cut ? "reduce_scatter" : "all_reduce",
                                   .at = p->spec->name,
                                   .group = cut ? b->group : b->whole};
        gpu_piece_args("recv", parts, n, calls[i].arg);
        calls[i].arg[n] = (gpu_arg)GPU_T("send", &local[i]);
        calls[i].arg[n + 1] = (gpu_arg)GPU_W("reduction", "sum");
    }
    ASSAY_TRY_GOTO(gpu_call_list(o->model->run, calls, k->n_params, launch_sync, &sync), st, done);
done:
    free(calls);
    free(recv);
    return st;
}

/* HSDP: this rank's part of a bucket over the copies. */
static assay_status sum_copies(gpu_optimizer *o, gpu_grad_buffer *b, int index)
{
    const gpu_bucket *k = &b->buckets[index];
    bucket_sync sync = {o, b, index};
    assay_status st = ASSAY_OK;
    const size_t most = (size_t)k->n_params * GPU_MAX_PIECES;
    gpu_call_args *calls = calloc(most, sizeof *calls);
    gpu_value *send = calloc(2 * most, sizeof *send), *recv = send + most;
    int64_t n = 0;
    ASSAY_CHECK_GOTO(calls && send, ASSAY_OUT_OF_MEMORY, st, done, "gradients: parts of %d parameters",
                     k->n_params);
    for (int i = 0; i < k->n_params; i++) {
        const gpu_param *p = b->params[k->first_param + i];
        for (int piece = 0; piece < p->n_pieces; piece++, n++) {
            const gpu_piece *q = &o->pieces[p->first_piece + piece];
            send[n] = one_copy(o, b, q);
            recv[n] = gpu_piece_dp_sum(o, q);
            calls[n] = (gpu_call_args){
                .op = "all_reduce",
                .at = p->spec->name,
                .group = b->replicas,
                .arg = {GPU_T("send", &send[n]), GPU_W("reduction", "sum"), GPU_T("recv", &recv[n])}};
        }
    }
    ASSAY_TRY_GOTO(gpu_call_list(o->model->run, calls, n, launch_copies, &sync), st, done);
done:
    free(send);
    free(calls);
    return st;
}

/* A complete bucket: its sums over data-parallel ranks. */
static assay_status reduce_bucket(gpu_optimizer *o, gpu_grad_buffer *b, int index)
{
    gpu_run *run = o->model->run;
    gpu_bucket *k = &b->buckets[index];
    assay_status st = ASSAY_OK;
    gpu_value *local = calloc((size_t)k->n_params, sizeof *local);
    ASSAY_CHECK(local, ASSAY_OUT_OF_MEMORY, "gradients: a list of %d parameters", k->n_params);
    k->reduced = true;
    for (int i = 0; i < k->n_params; i++) {
        const gpu_param *p = b->params[k->first_param + i];
        local[i] = gpu_local_gradient(o, b, p);
        run->phase = ASSAY_PHASE_GRAD;
        ASSAY_TRY_GOTO(gpu_trace_value(run, &local[i]), st, done);
        run->phase = ASSAY_PHASE_REDUCED_GRAD;
        if (!gpu_buffer_needs_data_sum(b) && local[i].kind == ASSAY_PIECE_SHARD) { /* complete as it is */
            const gpu_value whole = gpu_summed_gradient(o, p);
            ASSAY_TRY_GOTO(gpu_trace_value(run, &whole), st, done);
        }
    }
    if (gpu_buffer_needs_data_sum(b))
        ASSAY_TRY_GOTO(sum_bucket(o, b, index, local), st, done);
    if (gpu_buffer_is_cut(o, b) && b->copies > 1)
        ASSAY_TRY_GOTO(sum_copies(o, b, index), st, done);
done:
    free(local);
    return st;
}

/* In the middle of a backward pass: the place in the schedule is as it was. */
static assay_status reduce_early(gpu_optimizer *o, gpu_grad_buffer *b, int index)
{
    gpu_run *run = o->model->run;
    const assay_phase phase = run->phase;
    const int64_t microbatch = run->microbatch;
    run->microbatch = -1;
    ASSAY_TRY(reduce_bucket(o, b, index));
    run->phase = phase;
    run->microbatch = microbatch;
    return ASSAY_OK;
}

assay_status gpu_optimizer_grad_ready(void *optimizer, gpu_param *p)
{
    gpu_optimizer *o = optimizer;
    gpu_grad_buffer *b = &o->buffer[assay_param_reduce_group(p->spec) == ASSAY_GROUP_EDP];
    const int before = b->n_ready;
    if (b->scattered || (o->model->round > 0 && gpu_fault_switch(o->model->run, GPU_SWITCH_EARLY_REDUCTION)))
        return ASSAY_OK;
    ASSAY_TRY(gpu_grad_buffer_ready(b, p));
    if (b->n_ready == before || !o->model->options->overlap_grad_reduce)
        return ASSAY_OK;
    return reduce_early(o, b, p->bucket);
}

/* Buckets in the order in which the backward passes completed them, the same on every rank of the group. */
static assay_status reduce_buffer(gpu_optimizer *o, gpu_grad_buffer *b)
{
    if (b->scattered) {
        ASSAY_TRY(gpu_finish_parts(o, b));
        return gpu_sum_replicas(o, b);
    }
    ASSAY_CHECK(b->n_ready == b->n_buckets, ASSAY_INTERNAL, "gradients: %d of %d buckets are ready",
                b->n_ready, b->n_buckets);
    for (int i = 0; i < b->n_ready; i++)
        if (!b->buckets[b->ready[i]].reduced)
            ASSAY_TRY(reduce_bucket(o, b, b->ready[i]));
    ASSAY_TRY(gpu_finish_grad_sync(o->model));
    return gpu_sum_replicas(o, b);
}

assay_status gpu_finalize_model_grads(gpu_optimizer *o)
{
    gpu_run *run = o->model->run;
    ASSAY_TRY(gpu_params_check_step(o->model));
    run->layer = -1;
    run->microbatch = -1;
    run->phase = ASSAY_PHASE_REDUCED_GRAD;
    ASSAY_TRY(reduce_buffer(o, &o->buffer[0]));
    return reduce_buffer(o, &o->buffer[1]);
}
