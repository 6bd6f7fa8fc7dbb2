/* The sum that makes the copies of a gradient, last of all its sums. */
#include "gpu/optimizer.h"

#include "gpu/call.h"
#include "gpu/fault.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gpu_replicas gpu_replicas_of(const gpu_optimizer *o, const gpu_param *p)
{
    const gpu_model *m = o->model;
    const int64_t shared = assay_param_shared_from(p->spec, m->grid, p->count);
    if (assay_param_sum_over_tp(p->spec, m->grid))
        return (gpu_replicas){.group = ASSAY_GROUP_TP};
    if (shared < p->count)
        return (gpu_replicas){.group = ASSAY_GROUP_KV, .from = shared};
    if (m->config->tie_word_embeddings && p == m->word_embeddings &&
        m->run->comm.group[ASSAY_GROUP_EMBEDDING].size > 1)
        return (gpu_replicas){.group = ASSAY_GROUP_EMBEDDING};
    return (gpu_replicas){.group = ASSAY_GROUP_COUNT};
}

void gpu_piece_lacks(gpu_value *v, const gpu_optimizer *o, const gpu_grad_buffer *b, const gpu_piece *q)
{
    const assay_group group = gpu_replicas_of(o, q->param).group;
    const bool copies = b && b->copies > 1;
    v->kind = group != ASSAY_GROUP_COUNT || copies ? ASSAY_PIECE_PARTIAL : ASSAY_PIECE_SHARD;
    v->partial = !copies                      ? group
                 : group == ASSAY_GROUP_COUNT ? b->replicas
                                              : ASSAY_GROUP_WORLD; /* those that hold the same part */
}

void gpu_piece_rename(gpu_value *v, const gpu_piece *q, const char *suffix)
{
    snprintf(v->name, sizeof v->name, "%.*s.main_grad%s", ASSAY_NAME - 32, q->param->spec->name, suffix);
}

bool gpu_buffer_is_cut(const gpu_optimizer *o, const gpu_grad_buffer *b)
{
    return o->sharded && b->size > 1;
}

bool gpu_buffer_needs_data_sum(const gpu_grad_buffer *b)
{
    return b->size * b->copies > 1;
}

gpu_value gpu_local_gradient(const gpu_optimizer *o, const gpu_grad_buffer *b, const gpu_param *p)
{
    const gpu_replicas r = gpu_replicas_of(o, p);
    const bool copies = r.group != ASSAY_GROUP_COUNT, data = gpu_buffer_needs_data_sum(b);
    gpu_value v = p->main_grad;
    v.phase = ASSAY_PHASE_GRAD;
    v.microbatch = -1;
    v.kind = copies || data ? ASSAY_PIECE_PARTIAL : ASSAY_PIECE_SHARD;
    v.partial = !data ? r.group : r.group == ASSAY_GROUP_TP ? ASSAY_GROUP_TP_DP_CP : b->whole;
    if (r.group == ASSAY_GROUP_KV || (r.group == ASSAY_GROUP_EMBEDDING && data))
        v.kind = ASSAY_PIECE_LOCAL; /* a part of it lacks a sum; no named group is both */
    return v;
}

gpu_value gpu_summed_gradient(const gpu_optimizer *o, const gpu_param *p)
{
    const gpu_replicas r = gpu_replicas_of(o, p);
    gpu_value out = p->main_grad;
    out.kind = ASSAY_PIECE_SHARD;
    out.phase = ASSAY_PHASE_REDUCED_GRAD;
    out.microbatch = -1;
    if (r.group == ASSAY_GROUP_COUNT)
        return out;
    out.kind = r.group == ASSAY_GROUP_KV ? ASSAY_PIECE_LOCAL : ASSAY_PIECE_PARTIAL;
    out.partial = r.group;
    snprintf(out.name, sizeof out.name, "%.*s.dp_sum", ASSAY_NAME - 16, p->main_grad.name);
    return out;
}

gpu_value gpu_piece_dp_sum(const gpu_optimizer *o, const gpu_piece *q)
{
    gpu_value v = q->grad;
    if (gpu_replicas_of(o, q->param).group == ASSAY_GROUP_COUNT)
        return v;
    gpu_piece_rename(&v, q, ".dp_sum");
    gpu_piece_lacks(&v, o, NULL, q);
    return v;
}

/* What lies in memory together: a gradient's elements that are summed. */
typedef struct stretch {
    const gpu_param *param;
    float *data;
    int64_t count;
} stretch;

typedef struct replica_sum {
    gpu_optimizer *o;
    gpu_grad_buffer *b;
    assay_group group;
    int64_t n_stretches, n_calls;
    stretch *stretches;   /* [b->n_params] */
    gpu_call_args *calls; /* [b->n_params * GPU_MAX_PIECES] */
    gpu_value *send, *recv;
} replica_sum;

static void add_call(replica_sum *s, const gpu_param *p, const gpu_value *send, const gpu_value *recv)
{
    const int64_t i = s->n_calls++;
    s->send[i] = *send;
    s->recv[i] = *recv;
    s->calls[i] = (gpu_call_args){
        .op = "all_reduce",
        .at = p->spec->name,
        .group = s->group,
        .arg = {GPU_T("send", &s->send[i]), GPU_W("reduction", "sum"), GPU_T("recv", &s->recv[i])}};
}

/* Nothing is cut: the parameter's whole piece, of which kv shares the last rows. */
static void add_whole(replica_sum *s, gpu_param *p, int64_t from)
{
    const gpu_value send =
        gpu_buffer_needs_data_sum(s->b) ? gpu_summed_gradient(s->o, p) : gpu_local_gradient(s->o, s->b, p);
    gpu_value recv = p->main_grad;
    recv.microbatch = -1;
    recv.kind = ASSAY_PIECE_SHARD;
    recv.phase = ASSAY_PHASE_REDUCED_GRAD;
    add_call(s, p, &send, &recv);
    if (s->group == ASSAY_GROUP_KV)
        s->calls[s->n_calls - 1].arg[3] = (gpu_arg)GPU_I("start", from);
    s->stretches[s->n_stretches++] =
        (stretch){.param = p, .data = (float *)p->main_grad.t.data + from, .count = p->count - from};
}

/* This rank's parts, which the other ranks of the group hold, too: a buffer is cut alike on all of them.  Of a rectangle in front
 * of what kv shares nothing is summed. */
static void add_parts(replica_sum *s, gpu_param *p, int64_t from)
{
    stretch *t = &s->stretches[s->n_stretches];
    *t = (stretch){.param = p};
    for (int i = 0; i < p->n_pieces; i++) {
        const gpu_piece *q = &s->o->pieces[p->first_piece + i];
        const bool shared = q->start >= from;
        gpu_value send = gpu_piece_dp_sum(s->o, q);
        if (s->b->copies == 1) {
            gpu_piece_rename(&send, q, s->b->scattered ? ".sum" : ".shard");
            send.microbatch = s->b->scattered ? s->o->model->n_microbatches - 1 : -1;
        }
        add_call(s, p, &send, &q->grad);
        if (s->group == ASSAY_GROUP_KV)
            s->calls[s->n_calls - 1].arg[3] = (gpu_arg)GPU_I("start", shared ? 0 : q->count);
        if (shared && t->data == NULL)
            t->data = q->grad.t.data;
        t->count += shared ? q->count : 0;
    }
    s->n_stretches += t->count > 0;
}

/* One launch for all of them. */
static assay_status launch_sums(void *user)
{
    const replica_sum *s = user;
    gpu_run *run = s->o->model->run;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(gpu_comm_group_start(&run->comm));
    for (int64_t i = 0; i < s->n_stretches && st == ASSAY_OK; i++) {
        const stretch *t = &s->stretches[i];
        const gpu_comm_call call = {.op = GPU_COMM_ALL_REDUCE,
                                    .group = s->group,
                                    .send = t->data,
                                    .recv = t->data,
                                    .count = t->count,
                                    .dtype = ASSAY_F32};
        gpu_fault_plan *fault = gpu_fault_at(run, GPU_FAULT_SKIP, "all_reduce", t->param->spec->name);
        if (fault)
            fault->met++;
        else if (t->count > 0)
            st = gpu_comm_enqueue(&run->comm, &call, run->ctx.stream);
    }
    const assay_status end = gpu_comm_group_end(&run->comm);
    return st != ASSAY_OK ? st : end;
}

static assay_status sum_over(gpu_optimizer *o, gpu_grad_buffer *b, assay_group group)
{
    const size_t most = (size_t)b->n_params * GPU_MAX_PIECES;
    replica_sum s = {.o = o, .b = b, .group = group};
    assay_status st = ASSAY_OK;
    bool any = false;
    for (int64_t i = 0; i < b->n_params; i++)
        any = any || gpu_replicas_of(o, b->params[i]).group == group;
    if (!any)
        return ASSAY_OK;
    s.stretches = calloc((size_t)b->n_params, sizeof *s.stretches);
    s.calls = calloc(most, sizeof *s.calls);
    s.send = calloc(2 * most, sizeof *s.send);
    s.recv = s.send + most;
    ASSAY_CHECK_GOTO(s.stretches && s.calls && s.send, ASSAY_OUT_OF_MEMORY, st, done,
                     "gradients: copies of %lld parameters", (long long)b->n_params);
    for (int64_t i = 0; i < b->n_params; i++) {
        const gpu_replicas r = gpu_replicas_of(o, b->params[i]);
        if (r.group == group)
            (gpu_buffer_is_cut(o, b) ? add_parts : add_whole)(&s, b->params[i], r.from);
    }
    if (s.n_calls > 0)
        st = gpu_call_list(o->model->run, s.calls, s.n_calls, launch_sums, &s);
done:
    free(s.stretches);
    free(s.calls);
    free(s.send);
    return st;
}

assay_status gpu_sum_replicas(gpu_optimizer *o, gpu_grad_buffer *b)
{
    static const assay_group groups[] = {ASSAY_GROUP_TP, ASSAY_GROUP_KV, ASSAY_GROUP_EMBEDDING};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        ASSAY_TRY(sum_over(o, b, groups[i]));
    return ASSAY_OK;
}
