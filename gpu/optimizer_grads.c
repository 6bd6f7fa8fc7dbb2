/* Reduction of gradients over tp, the embedding group and data-parallel ranks, with a record for each
 * parameter. */
#include "gpu/optimizer.h"

#include "gpu/call.h"
#include "gpu/fault.h"
#include "gpu/parallel/fsdp.h"
#include "gpu/parallel/tensor.h"
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

/* Which sums the gradient of a parameter still lacks. */
typedef struct lacks {
    bool tp, kv, embedding, data;
    int64_t shared;    /* kv: the first element that the kv group shares */
    assay_group group; /* of the data-parallel sum */
} lacks;

static lacks what_lacks(const gpu_optimizer *o, const gpu_param *p)
{
    const gpu_model *m = o->model;
    const assay_group group = assay_param_reduce_group(p->spec);
    const int64_t shared = assay_param_shared_from(p->spec, m->grid, p->count);
    return (lacks){.tp = assay_param_sum_over_tp(p->spec, m->grid),
                   .kv = shared < p->count,
                   .shared = shared,
                   .embedding = m->config->tie_word_embeddings && p == m->word_embeddings &&
                                m->run->comm.group[ASSAY_GROUP_EMBEDDING].size > 1,
                   .data = m->run->comm.group[group].size > 1,
                   .group = group};
}

/* The local gradient as a value of phase grad: a partial sum over the ranks that still have to be added. */
static gpu_value local_gradient(const gpu_optimizer *o, gpu_param *p)
{
    const lacks l = what_lacks(o, p);
    gpu_value v = p->main_grad;
    v.phase = ASSAY_PHASE_GRAD;
    v.microbatch = -1;
    v.kind = l.tp || l.embedding || l.data ? ASSAY_PIECE_PARTIAL : ASSAY_PIECE_SHARD;
    v.partial = l.data && l.tp ? ASSAY_GROUP_TP_DP_CP
                : l.data       ? l.group
                : l.tp         ? ASSAY_GROUP_TP
                               : ASSAY_GROUP_EMBEDDING;
    if (l.kv || (l.embedding && l.data)) /* a part of it lacks a sum; no named group is both */
        v.kind = ASSAY_PIECE_LOCAL;
    return v;
}

/* The gradient after one sum: the reduced one when nothing is lacking any more, else a value of its own that
 * data-parallel ranks still have to add. */
static gpu_value summed(const gpu_value *v, bool last, assay_group data, const char *suffix)
{
    gpu_value out = *v;
    out.kind = last ? ASSAY_PIECE_SHARD : ASSAY_PIECE_PARTIAL;
    out.partial = data;
    out.phase = last ? ASSAY_PHASE_REDUCED_GRAD : ASSAY_PHASE_GRAD;
    if (!last)
        snprintf(out.name, sizeof out.name, "%.*s%s", ASSAY_NAME - 16, v->name, suffix);
    return out;
}

/* Sums over tp and the embedding group; what is left for the data-parallel sum is returned in *v. */
static assay_status sum_replicas(gpu_optimizer *o, gpu_param *p, gpu_value *v)
{
    gpu_model *m = o->model;
    const lacks l = what_lacks(o, p);
    *v = local_gradient(o, p);
    if (l.tp) {
        gpu_value out = summed(v, !l.embedding && !l.data, l.group, ".tp_sum");
        ASSAY_TRY(gpu_all_reduce(m, p->spec->name, ASSAY_GROUP_TP, &out, v));
        *v = out;
    }
    if (l.kv) {
        gpu_value out = summed(v, !l.data, l.group, ".kv_sum");
        ASSAY_TRY(gpu_all_reduce_from(m, p->spec->name, ASSAY_GROUP_KV, &out, v, l.shared));
        *v = out;
    }
    if (l.embedding) {
        gpu_value out = summed(v, !l.data, l.group, ".embedding_sum");
        ASSAY_TRY(gpu_all_reduce(m, p->spec->name, ASSAY_GROUP_EMBEDDING, &out, v));
        *v = out;
    }
    if (!l.tp && !l.kv && !l.embedding && !l.data)
        *v = summed(v, true, l.group, "");
    return ASSAY_OK;
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

static bool is_cut(const gpu_optimizer *o, const gpu_grad_buffer *b)
{
    return o->sharded && b->size > 1;
}

static assay_status launch_sync(void *user)
{
    const bucket_sync *s = user;
    gpu_model *m = s->o->model;
    const bool cut = is_cut(s->o, s->b);
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

/* HSDP: the sum over one copy's ranks, which is not complete yet. */
static gpu_value one_copy(const gpu_grad_buffer *b, const gpu_piece *q)
{
    gpu_value v = q->grad;
    if (b->copies == 1)
        return v;
    snprintf(v.name, sizeof v.name, "%.*s.main_grad.shard", ASSAY_NAME - 32, q->param->spec->name);
    v.kind = ASSAY_PIECE_PARTIAL;
    v.partial = b->replicas;
    return v;
}

/* Over the ranks of a copy, or of all data-parallel ranks where nothing is cut. */
static assay_status sum_bucket(gpu_optimizer *o, gpu_grad_buffer *b, int index, gpu_value *local)
{
    const gpu_bucket *k = &b->buckets[index];
    const bool cut = is_cut(o, b);
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
            parts[piece] = one_copy(b, &o->pieces[p->first_piece + piece]);
        if (!cut)
            parts[0] = summed(&p->main_grad, true, b->whole, "");
        parts[0].microbatch = -1;
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
            send[n] = one_copy(b, q);
            recv[n] = q->grad;
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

/* A complete bucket: sums over tp and the embedding group, then over data-parallel ranks. */
static assay_status reduce_bucket(gpu_optimizer *o, gpu_grad_buffer *b, int index)
{
    gpu_run *run = o->model->run;
    gpu_bucket *k = &b->buckets[index];
    assay_status st = ASSAY_OK;
    gpu_value *local = calloc((size_t)k->n_params, sizeof *local);
    ASSAY_CHECK(local, ASSAY_OUT_OF_MEMORY, "gradients: a list of %d parameters", k->n_params);
    k->reduced = true;
    for (int i = 0; i < k->n_params; i++) {
        gpu_param *p = b->params[k->first_param + i];
        const gpu_value v = local_gradient(o, p);
        run->phase = ASSAY_PHASE_GRAD;
        ASSAY_TRY_GOTO(gpu_trace_value(run, &v), st, done);
        run->phase = ASSAY_PHASE_REDUCED_GRAD;
        ASSAY_TRY_GOTO(sum_replicas(o, p, &local[i]), st, done);
        if (b->size * b->copies == 1 && local[i].phase == ASSAY_PHASE_REDUCED_GRAD)
            ASSAY_TRY_GOTO(gpu_trace_value(run, &local[i]), st, done);
    }
    if (b->size * b->copies > 1)
        ASSAY_TRY_GOTO(sum_bucket(o, b, index, local), st, done);
    if (is_cut(o, b) && b->copies > 1)
        ASSAY_TRY_GOTO(sum_copies(o, b, index), st, done);
done:
    free(local);
    return st;
}

/* The sum over the first and the last stage waits for the end of both stages' schedules. */
static bool waits_for_stages(const gpu_optimizer *o, const gpu_grad_buffer *b, int index)
{
    const gpu_bucket *k = &b->buckets[index];
    for (int64_t i = k->first_param; i < k->first_param + k->n_params; i++)
        if (what_lacks(o, b->params[i]).embedding)
            return true;
    return false;
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
    if (b->n_ready == before || !o->model->options->overlap_grad_reduce || waits_for_stages(o, b, p->bucket))
        return ASSAY_OK;
    return reduce_early(o, b, p->bucket);
}

/* Buckets in the order in which the backward passes completed them, the same on every rank of the group. */
static assay_status reduce_buffer(gpu_optimizer *o, gpu_grad_buffer *b)
{
    if (b->scattered)
        return gpu_finish_parts(o, b);
    ASSAY_CHECK(b->n_ready == b->n_buckets, ASSAY_INTERNAL, "gradients: %d of %d buckets are ready",
                b->n_ready, b->n_buckets);
    for (int i = 0; i < b->n_ready; i++)
        if (!b->buckets[b->ready[i]].reduced)
            ASSAY_TRY(reduce_bucket(o, b, b->ready[i]));
    return gpu_finish_grad_sync(o->model);
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
