/* Reduction of gradients over tp, the embedding group and data-parallel ranks, with a record for each
 * parameter. */
#include "gpu/optimizer.h"

#include "gpu/call.h"
#include "gpu/fault.h"
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

assay_status gpu_optimizer_grad_ready(void *optimizer, gpu_param *p)
{
    gpu_optimizer *o = optimizer;
    for (int k = 0; k < 2; k++)
        if (o->buffer[k].group == assay_param_reduce_group(p->spec))
            return gpu_grad_buffer_ready(&o->buffer[k], p);
    ASSAY_FAIL(ASSAY_INTERNAL, "%s: no gradient buffer is reduced over its group", p->spec->name);
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
typedef struct grad_sync {
    gpu_optimizer *o;
    gpu_grad_buffer *b;
} grad_sync;

/* Planted fault `skip` on one of its parameters: the bucket is not reduced. */
static bool skip_bucket(const grad_sync *s, int index)
{
    const gpu_grad_buffer *b = s->b;
    bool skip = false;
    for (int64_t i = 0; i < b->n_params; i++) {
        const bool inside = b->offsets[i] >= b->buckets[index].start &&
                            b->offsets[i] < b->buckets[index].start + b->buckets[index].length;
        gpu_fault_plan *p =
            inside ? gpu_fault_at(s->o->model->run, GPU_FAULT_SKIP,
                                  s->o->sharded ? "reduce_scatter" : "all_reduce", b->params[i]->spec->name)
                   : NULL;
        skip = skip || p;
        if (p)
            p->met++;
    }
    return skip;
}

/* Buckets in the order in which the backward passes completed them, the same on every rank of the group. */
static assay_status sync_grads(void *user)
{
    const grad_sync *s = user;
    ASSAY_CHECK(s->b->n_ready == s->b->n_buckets, ASSAY_INTERNAL, "gradients: %d of %d buckets are ready",
                s->b->n_ready, s->b->n_buckets);
    for (int i = 0; i < s->b->n_ready; i++)
        if (!skip_bucket(s, s->b->ready[i]))
            ASSAY_TRY(gpu_start_grad_sync(s->b, s->o->model, s->b->ready[i], s->o->sharded));
    return gpu_finish_grad_sync(s->o->model);
}

int gpu_piece_args(gpu_optimizer *o, const gpu_param *p, const char *slot, gpu_arg *args)
{
    static const char *const send[GPU_MAX_PIECES] = {"send.0", "send.1", "send.2", "send.3",
                                                     "send.4", "send.5", "send.6", "send.7"};
    static const char *const recv[GPU_MAX_PIECES] = {"recv.0", "recv.1", "recv.2", "recv.3",
                                                     "recv.4", "recv.5", "recv.6", "recv.7"};
    const bool sends = strcmp(slot, "send") == 0;
    int n = 0;
    for (int64_t i = 0; i < o->n_pieces && n < GPU_MAX_PIECES; i++)
        if (o->pieces[i].param == p) {
            args[n] =
                (gpu_arg)GPU_T(sends ? send[n] : recv[n], sends ? &o->pieces[i].weight : &o->pieces[i].grad);
            n++;
        }
    if (n == 1)
        args[0].name = sends ? "send" : "recv";
    return n;
}

static assay_status reduce_buffer(gpu_optimizer *o, gpu_grad_buffer *b)
{
    gpu_run *run = o->model->run;
    grad_sync sync = {o, b};
    gpu_call_args *calls = calloc((size_t)b->n_params + 1, sizeof *calls);
    gpu_value *local = calloc(2 * (size_t)b->n_params + 1, sizeof *local), *whole = local + b->n_params;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(calls && local, ASSAY_OUT_OF_MEMORY, st, done, "gradients: a list of %lld parameters",
                     (long long)b->n_params);
    for (int64_t i = 0; i < b->n_params; i++) {
        ASSAY_TRY_GOTO(sum_replicas(o, b->params[i], &local[i]), st, done);
        if (b->size == 1 && local[i].phase == ASSAY_PHASE_REDUCED_GRAD)
            ASSAY_TRY_GOTO(gpu_trace_value(run, &local[i]), st, done);
        whole[i] = b->params[i]->main_grad;
        whole[i].kind = ASSAY_PIECE_SHARD;
        whole[i].phase = ASSAY_PHASE_REDUCED_GRAD;
        whole[i].microbatch = -1;
        calls[i] = (gpu_call_args){.op = o->sharded ? "reduce_scatter" : "all_reduce",
                                   .at = b->params[i]->spec->name,
                                   .group = b->group};
        int n = o->sharded ? gpu_piece_args(o, b->params[i], "recv", calls[i].arg) : 0;
        if (!o->sharded)
            calls[i].arg[n++] = (gpu_arg)GPU_T("recv", &whole[i]);
        calls[i].arg[n++] = (gpu_arg)GPU_T("send", &local[i]);
        calls[i].arg[n] = (gpu_arg)GPU_W("reduction", "sum");
    }
    if (b->size > 1)
        ASSAY_TRY_GOTO(gpu_call_list(run, calls, b->n_params, sync_grads, &sync), st, done);
done:
    free(calls);
    free(local);
    return st;
}

assay_status gpu_finalize_model_grads(gpu_optimizer *o)
{
    gpu_run *run = o->model->run;
    ASSAY_TRY(gpu_params_check_step(o->model));
    run->layer = -1;
    run->microbatch = -1;
    run->phase = ASSAY_PHASE_GRAD;
    for (int64_t i = 0; run->trace && i < o->model->n_params; i++) {
        gpu_param *p = &o->model->params[i];
        if (!assay_param_needs_grad(p->spec))
            continue;
        const gpu_value v = local_gradient(o, p);
        ASSAY_TRY(gpu_trace_value(run, &v));
    }
    run->phase = ASSAY_PHASE_REDUCED_GRAD;
    ASSAY_TRY(reduce_buffer(o, &o->buffer[0]));
    return reduce_buffer(o, &o->buffer[1]);
}
