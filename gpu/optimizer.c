/* Norm, clip, AdamW, expert bias, learning rate. */
#include "gpu/optimizer.h"

#include "gpu/call.h"
#include "gpu/fault.h"
#include "gpu/layer.h"
#include "gpu/parallel/tensor.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- sums of a step ----------------------------------------------------------------------------------------- */
/* A number of every piece that counts, one list of *count: `op` makes y of x. */
static assay_status over_pieces(gpu_optimizer *o, const char *op, const char *suffix, assay_dtype dtype,
                                void *list, int64_t *count)
{
    gpu_run *run = o->model->run;
    assay_status st = ASSAY_OK;
    gpu_call_args *calls = calloc((size_t)o->n_norm + 1, sizeof *calls);
    gpu_value *y = calloc((size_t)o->n_norm + 1, sizeof *y);
    const size_t width = (size_t)assay_dtype_bytes(dtype);
    int64_t n = 0;
    ASSAY_CHECK_GOTO(calls && y, ASSAY_OUT_OF_MEMORY, st, done, "%s: %lld pieces", op, (long long)o->n_norm);
    for (int64_t i = 0; i < o->n_pieces; i++) {
        gpu_piece *p = &o->pieces[i];
        const gpu_dim one = gpu_dim_whole(1);
        char name[ASSAY_NAME];
        if (!p->in_norm)
            continue;
        snprintf(name, sizeof name, "%.*s.%s", ASSAY_NAME - 16, p->param->spec->name, suffix);
        y[n] = gpu_value_describe(NULL, 1, &one, -1);
        y[n].kind = ASSAY_PIECE_LOCAL;
        y[n].t = gpu_tensor_1d((char *)list + (size_t)n * width, dtype, 1);
        gpu_value_rename(run, &y[n], name);
        calls[n] = (gpu_call_args){
            .op = op, .at = p->param->spec->name, .arg = {GPU_T("x", &p->grad), GPU_T("y", &y[n])}};
        n++;
    }
    *count = n;
    ASSAY_TRY_GOTO(gpu_call_list(run, calls, n, NULL, NULL), st, done);
done:
    free(calls);
    free(y);
    return st;
}

/* One number, written at `place` on the device. */
static gpu_value number_at(const gpu_run *run, const char *at, const char *slot, assay_dtype dtype,
                           void *place)
{
    gpu_value v = {.ndim = 1, .dim = {gpu_dim_whole(1)}, .merge = -1};
    v.t = gpu_tensor_1d(place, dtype, 1);
    gpu_value_name(run, &v, at, slot);
    return v;
}

/* The n numbers of the list together (`<at>.total`), then in place over the world (`<at>.reduce`). */
static assay_status world_total(gpu_optimizer *o, const char *at, assay_dtype dtype, void *list, int64_t n,
                                void *place, gpu_value *sum)
{
    gpu_run *run = o->model->run;
    const gpu_dim dim = gpu_dim_whole(n);
    char total[64], reduce[64];
    snprintf(total, sizeof total, "%s.total", at);
    snprintf(reduce, sizeof reduce, "%s.reduce", at);
    gpu_value x = gpu_value_describe(NULL, 1, &dim, -1);
    x.kind = ASSAY_PIECE_LOCAL;
    x.t = gpu_tensor_1d(list, dtype, n);
    gpu_value_name(run, &x, total, "x");
    *sum = number_at(run, total, "y", dtype, place);
    if (run->comm.world > 1) {
        sum->kind = ASSAY_PIECE_PARTIAL;
        sum->partial = ASSAY_GROUP_WORLD;
    }
    ASSAY_TRY(GPU_CALL(run, "total", total, GPU_T("x", &x), GPU_T("y", sum)));
    if (run->comm.world == 1)
        return ASSAY_OK;
    gpu_value send = *sum;
    *sum = number_at(run, reduce, "recv", dtype, place);
    return gpu_all_reduce(o->model, reduce, ASSAY_GROUP_WORLD, sum, &send);
}

assay_status gpu_loss_sum(gpu_optimizer *o)
{
    gpu_model *m = o->model;
    const bool holds = m->chunks[m->n_chunks - 1].has_output && m->at.tp == 0; /* tp ranks hold copies */
    gpu_value sum;
    m->run->phase = ASSAY_PHASE_OPTIMIZER;
    return world_total(o, "loss", ASSAY_F64, m->loss_sums, holds ? m->n_microbatches : 0, &o->numbers->loss,
                       &sum);
}

/* Norm of the gradients and what they are clipped by, which *scale is then: the host reads neither. */
static assay_status norm_and_clip(gpu_optimizer *o, gpu_value *scale)
{
    gpu_run *run = o->model->run;
    gpu_numbers *at = o->numbers;
    gpu_value sum, norm;
    int64_t n;
    ASSAY_TRY(over_pieces(o, "sumsq", "sumsq", ASSAY_F64, o->sums, &n));
    ASSAY_TRY(world_total(o, "grad_norm", ASSAY_F64, o->sums, n, &at->sumsq, &sum));
    norm = number_at(run, "grad_norm", "norm", ASSAY_F64, &at->grad_norm);
    gpu_value_rename(run, &norm, "grad_norm");
    *scale = number_at(run, "grad_norm", "scale", ASSAY_F64, &at->grad_scale);
    return GPU_CALL(run, "clip_coefficient", "grad_norm", GPU_T("sumsq", &sum), GPU_T("norm", &norm),
                    GPU_T("scale", scale), GPU_F("clip_grad", o->model->options->clip_grad));
}

static assay_status count_zeros(gpu_optimizer *o)
{
    gpu_value sum;
    int64_t n;
    ASSAY_TRY(over_pieces(o, "count_zeros", "num_zeros", ASSAY_I64, o->zeros, &n));
    return world_total(o, "num_zeros_in_grad", ASSAY_I64, o->zeros, n, &o->numbers->num_zeros, &sum);
}

assay_status gpu_optimizer_numbers(gpu_optimizer *o, gpu_numbers *out)
{
    return gpu_run_download(o->model->run, out, o->numbers, sizeof *out, "step");
}

assay_status gpu_world_sum(gpu_optimizer *o, const char *at, double *value)
{
    gpu_model *m = o->model;
    gpu_run *run = m->run;
    if (run->comm.world == 1)
        return ASSAY_OK;
    ASSAY_TRY(gpu_run_upload(run, o->scalar, value, sizeof *value, at));
    gpu_value send = number_at(run, at, "send", ASSAY_F64, o->scalar),
              recv = number_at(run, at, "recv", ASSAY_F64, o->scalar);
    send.kind = ASSAY_PIECE_PARTIAL;
    send.partial = ASSAY_GROUP_WORLD;
    ASSAY_TRY(gpu_all_reduce(m, at, ASSAY_GROUP_WORLD, &recv, &send));
    return gpu_run_download(run, value, o->scalar, sizeof *value, at);
}

/* --- AdamW -------------------------------------------------------------------------------------------------- */
static assay_status adamw(gpu_optimizer *o, int64_t step, gpu_value *grad_scale)
{
    gpu_run *run = o->model->run;
    const assay_train_options *t = o->model->options;
    const double lr = gpu_learning_rate(t, t->train_iters, step);
    gpu_call_args *calls = calloc((size_t)o->n_pieces + 1, sizeof *calls);
    ASSAY_CHECK(calls, ASSAY_OUT_OF_MEMORY, "optimizer: a list of %lld pieces", (long long)o->n_pieces);
    for (int64_t i = 0; i < o->n_pieces; i++) {
        gpu_piece *p = &o->pieces[i];
        /* What the step begins with is of phase forward; the call makes it the optimizer's. */
        p->main_param.phase = ASSAY_PHASE_FORWARD;
        for (int k = 0; k < o->n_states; k++)
            p->state[k].phase = ASSAY_PHASE_FORWARD;
        calls[i] = (gpu_call_args){
            .op = "adamw",
            .at = p->param->spec->name,
            .arg = {GPU_T("grad", &p->grad), GPU_T("grad_scale", grad_scale),
                    GPU_T("main_param", &p->main_param), GPU_T("exp_avg", &p->state[0]),
                    GPU_T("exp_avg_sq", &p->state[1]), GPU_T("param", &p->weight), GPU_F("lr", lr),
                    GPU_F("beta1", t->adam_beta1), GPU_F("beta2", t->adam_beta2), GPU_F("eps", t->adam_eps),
                    GPU_F("weight_decay", p->param->spec->no_weight_decay ? 0.0 : t->weight_decay),
                    GPU_I("step", step + 1)}};
    }
    const assay_status st = gpu_call_list(run, calls, o->n_pieces, NULL, NULL);
    free(calls);
    return st;
}

typedef struct param_sync {
    gpu_grad_buffer *buffer;
    gpu_model *model;
} param_sync;

static assay_status sync_params(void *user)
{
    const param_sync *s = user;
    if (!s->model->options->overlap_param_gather)
        return gpu_param_sync(s->buffer, s->model, false);
    ASSAY_TRY(gpu_start_param_sync(s->buffer, s->model));
    return gpu_run_is_watched(s->model->run) ? gpu_finish_param_sync(s->buffer, s->model) : ASSAY_OK;
}

/* ZeRO-1, 2: whole parameters again, bucket by bucket; a record for each parameter. */
static assay_status gather_params(gpu_optimizer *o, gpu_grad_buffer *b)
{
    gpu_model *m = o->model;
    param_sync sync = {b, m};
    if (b->size == 1 || b->gathered)
        return ASSAY_OK;
    gpu_call_args *calls = calloc((size_t)b->n_params + 1, sizeof *calls);
    gpu_value *whole = calloc((size_t)b->n_params + 1, sizeof *whole);
    gpu_value *send = calloc((size_t)b->n_params * GPU_MAX_PIECES + 1, sizeof *send);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(calls && whole && send, ASSAY_OUT_OF_MEMORY, st, done,
                     "optimizer: a list of %lld parameters", (long long)b->n_params);
    for (int64_t i = 0; i < b->n_params; i++) {
        whole[i] = b->params[i]->weight;
        whole[i].phase = ASSAY_PHASE_OPTIMIZER;
        calls[i] = (gpu_call_args){.op = "all_gather", .at = b->params[i]->spec->name, .group = b->group};
        const gpu_param *p = b->params[i];
        for (int n = 0; n < p->n_pieces; n++)
            send[i * GPU_MAX_PIECES + n] = o->pieces[p->first_piece + n].weight;
        gpu_piece_args("send", send + i * GPU_MAX_PIECES, p->n_pieces, calls[i].arg);
        calls[i].arg[p->n_pieces] = (gpu_arg)GPU_T("recv", &whole[i]);
    }
    ASSAY_TRY_GOTO(gpu_call_list(m->run, calls, b->n_params, sync_params, &sync), st, done);
done:
    free(calls);
    free(whole);
    free(send);
    return st;
}

/* --- expert bias -------------------------------------------------------------------------------------------- */
/* counts: this rank's, of the step. */
static assay_status update_expert_bias(gpu_optimizer *o, gpu_layer *l, int64_t *step_counts)
{
    gpu_model *m = o->model;
    gpu_run *run = m->run;
    const int64_t E = m->config->num_moe_experts;
    const gpu_dim dim = gpu_dim_whole(E);
    const assay_group group = ASSAY_GROUP_TP_DP_CP;
    gpu_value counts = gpu_value_describe(NULL, 1, &dim, -1), total, bias = l->moe.expert_bias->weight;
    counts.t = gpu_tensor_1d(step_counts, ASSAY_I64, E);
    run->layer = l->number;
    gpu_value_name(run, &counts, "mlp.router", "step_tokens_per_expert");
    total = counts;
    if (run->comm.group[group].size > 1) {
        counts.kind = ASSAY_PIECE_PARTIAL;
        counts.partial = group;
        gpu_value_name(run, &total, "mlp.router.expert_counts", "recv");
        ASSAY_TRY(gpu_all_reduce(m, "mlp.router.expert_counts", group, &total, &counts));
    } else {
        ASSAY_TRY(gpu_trace_value(run, &counts));
    }
    ASSAY_TRY(GPU_CALL(run, "expert_bias_update", "mlp.router.expert_bias",
                       GPU_T("tokens_per_expert", &total), GPU_T("bias_in", &l->moe.expert_bias->weight),
                       GPU_F("rate", (double)(float)m->options->moe_router_bias_update_rate),
                       GPU_T("bias", &bias)));
    run->layer = -1;
    return ASSAY_OK;
}

static assay_status update_expert_biases(gpu_optimizer *o)
{
    gpu_model *m = o->model;
    int64_t n = 0;
    if (m->config->moe_router_enable_expert_bias)
        ASSAY_TRY(gpu_step_tokens_per_expert(m, o->counts));
    for (int c = 0; c < m->n_chunks; c++)
        for (int64_t i = 0; i < m->chunks[c].n_layers; i++, n++) {
            gpu_layer *l = &m->chunks[c].layers[i];
            if (l->moe.expert_bias)
                ASSAY_TRY(update_expert_bias(o, l, o->counts + n * m->config->num_moe_experts));
        }
    return ASSAY_OK;
}

/* --- step --------------------------------------------------------------------------------------------------- */
assay_status gpu_optimizer_step(gpu_optimizer *o, int64_t step)
{
    gpu_run *run = o->model->run;
    gpu_value grad_scale;
    run->phase = ASSAY_PHASE_OPTIMIZER;
    run->layer = -1;
    run->microbatch = -1;
    ASSAY_TRY(norm_and_clip(o, &grad_scale));
    if (o->model->options->log_num_zeros_in_grad)
        ASSAY_TRY(count_zeros(o));
    ASSAY_TRY(adamw(o, step, &grad_scale));
    for (int k = 0; o->sharded && k < 2; k++)
        ASSAY_TRY(gather_params(o, &o->buffer[k]));
    return update_expert_biases(o);
}

/* --- schedule ----------------------------------------------------------------------------------------------- */
static double wsd_share(assay_wsd_decay_style style, double u)
{
    const double pi = 0x1.921fb54442d18p1;
    switch (style) {
    case ASSAY_WSD_COSINE:
        return 0.5 * (cos(pi * u) + 1.0);
    case ASSAY_WSD_EXPONENTIAL:
        return 2.0 * pow(0.5, u) - 1.0;
    case ASSAY_WSD_MINUS_SQRT:
        return 1.0 - sqrt(u);
    case ASSAY_WSD_LINEAR:
        break;
    }
    return 1.0 - u;
}

double gpu_learning_rate(const assay_train_options *o, int64_t train_iters, int64_t done)
{
    const double pi = 0x1.921fb54442d18p1;
    const int64_t warmup = o->lr_warmup_iters;
    const int64_t decay = o->lr_decay_iters > 0 ? o->lr_decay_iters : train_iters;
    if (warmup > 0 && done <= warmup)
        return o->lr_warmup_init + (o->lr - o->lr_warmup_init) * (double)done / (double)warmup;
    if (o->lr_decay_style == ASSAY_LR_CONSTANT)
        return o->lr;
    if (done > decay || decay <= warmup)
        return o->min_lr;
    const double r = (double)(done - warmup) / (double)(decay - warmup);
    double share = 1.0 - r;
    if (o->lr_decay_style == ASSAY_LR_COSINE)
        share = 0.5 * (cos(pi * r) + 1.0);
    if (o->lr_decay_style == ASSAY_LR_WSD) {
        const int64_t start = decay - o->lr_wsd_decay_iters;
        share =
            done <= start || o->lr_wsd_decay_iters <= 0
                ? 1.0
                : wsd_share(o->lr_wsd_decay_style, (double)(done - start) / (double)o->lr_wsd_decay_iters);
    }
    return o->min_lr + share * (o->lr - o->min_lr);
}
