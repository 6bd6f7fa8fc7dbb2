/* Norm, clip, AdamW, expert bias, learning rate. */
#include "gpu/optimizer.h"

#include "gpu/parallel/tensor.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- norm --------------------------------------------------------------------------------------------------- */
/* Sum of squares of every piece that counts, one launch; a record for each. */
static assay_status sums_of_squares(gpu_optimizer *o, double *total)
{
    gpu_run *run = o->model->run;
    assay_status st = ASSAY_OK;
    gpu_record *records = run->trace ? calloc((size_t)o->n_norm + 1, sizeof *records) : NULL;
    double *host = calloc((size_t)o->n_norm + 1, sizeof *host);
    int64_t n = 0;
    ASSAY_CHECK_GOTO(host && (records || !run->trace), ASSAY_OUT_OF_MEMORY, st, done, "norm: %lld sums",
                     (long long)o->n_norm);
    for (int64_t i = 0; i < o->n_pieces; i++) {
        gpu_piece *p = &o->pieces[i];
        const gpu_operand in[] = {{"x", &p->grad}};
        if (!p->in_norm)
            continue;
        if (records)
            ASSAY_TRY_GOTO(gpu_trace_begin(run, &records[n], "sumsq", p->param->spec->name, in, 1), st, done);
        o->list[n++] = p->grad.t;
    }
    if (n > 0)
        ASSAY_TRY_GOTO(
            gpu_sumsq(&run->ctx, gpu_tensor_1d(o->sums, ASSAY_F64, n), o->list, n, run->ctx.stream), st,
            done);
    const gpu_declared declared = run->ctx.declared;
    n = 0;
    for (int64_t i = 0; i < o->n_pieces && records; i++) {
        if (!o->pieces[i].in_norm)
            continue;
        gpu_value y = {.kind = ASSAY_PIECE_LOCAL, .ndim = 1, .dim = {gpu_dim_whole(1)}};
        char name[ASSAY_NAME];
        snprintf(name, sizeof name, "%.*s.sumsq", ASSAY_NAME - 8, o->pieces[i].param->spec->name);
        gpu_value_rename(run, &y, name);
        y.t = gpu_tensor_1d(o->sums + n, ASSAY_F64, 1);
        const gpu_operand out[] = {{"y", &y}};
        run->ctx.declared = declared;
        ASSAY_TRY_GOTO(gpu_trace_end(run, &records[n++], out, 1, NULL), st, done);
    }
    ASSAY_TRY_GOTO(gpu_run_download(run, host, o->sums, (size_t)o->n_norm * sizeof *host, "sums of squares"),
                   st, done);
    *total = 0.0;
    for (int64_t i = 0; i < o->n_norm; i++)
        *total += host[i];
done:
    free(records);
    free(host);
    return st;
}

assay_status gpu_world_sum(gpu_optimizer *o, const char *at, double *value)
{
    gpu_model *m = o->model;
    gpu_run *run = m->run;
    if (run->comm.world == 1)
        return ASSAY_OK;
    ASSAY_TRY(gpu_run_upload(run, o->scalar, value, sizeof *value, at));
    gpu_value send = {.ndim = 1, .dim = {gpu_dim_whole(1)}}, recv = send;
    send.t = recv.t = gpu_tensor_1d(o->scalar, ASSAY_F64, 1);
    gpu_value_name(run, &send, at, "send");
    gpu_value_name(run, &recv, at, "recv");
    gpu_value_partial(m, &send, ASSAY_GROUP_WORLD);
    ASSAY_TRY(gpu_all_reduce(m, at, ASSAY_GROUP_WORLD, &recv, &send, false));
    return gpu_run_download(run, value, o->scalar, sizeof *value, at);
}

/* --- AdamW -------------------------------------------------------------------------------------------------- */
static json_t *adamw_attrs(const gpu_run *run, const gpu_adamw_desc *d)
{
    return GPU_ATTRS(run, "{s:f, s:f, s:f, s:f, s:f, s:I, s:f}", "lr", d->lr, "beta1", d->beta1, "beta2",
                     d->beta2, "eps", d->eps, "weight_decay", d->weight_decay, "step", (json_int_t)d->step,
                     "grad_scale", d->grad_scale);
}

/* States before the step, under their names in phase forward: what the step began with. */
static gpu_value before(const gpu_value *v)
{
    gpu_value b = *v;
    b.phase = ASSAY_PHASE_FORWARD;
    return b;
}

static assay_status trace_adamw_begin(gpu_optimizer *o, gpu_record *records)
{
    gpu_run *run = o->model->run;
    for (int64_t i = 0; i < o->n_pieces; i++) {
        gpu_piece *p = &o->pieces[i];
        gpu_value main_param = before(&p->main_param), m = before(&p->exp_avg), v = before(&p->exp_avg_sq);
        const gpu_operand in[] = {
            {"main_param_in", &main_param}, {"exp_avg_in", &m}, {"exp_avg_sq_in", &v}, {"grad", &p->grad}};
        ASSAY_TRY(gpu_trace_begin(run, &records[i], "adamw", p->param->spec->name, in, 4));
    }
    return ASSAY_OK;
}

static assay_status trace_adamw_end(gpu_optimizer *o, gpu_record *records)
{
    gpu_run *run = o->model->run;
    const gpu_declared declared = run->ctx.declared;
    for (int64_t i = 0; i < o->n_pieces; i++) {
        gpu_piece *p = &o->pieces[i];
        const gpu_operand out[] = {{"main_param", &p->main_param},
                                   {"exp_avg", &p->exp_avg},
                                   {"exp_avg_sq", &p->exp_avg_sq},
                                   {"param", &p->weight}};
        run->ctx.declared = declared;
        ASSAY_TRY(gpu_trace_end(run, &records[i], out, 4, adamw_attrs(run, &o->descs[i])));
    }
    return ASSAY_OK;
}

static assay_status adamw(gpu_optimizer *o, const gpu_adamw_desc *common)
{
    gpu_run *run = o->model->run;
    const int64_t n = o->n_pieces;
    if (n == 0)
        return ASSAY_OK;
    assay_status st = ASSAY_OK;
    gpu_record *records = run->trace ? calloc((size_t)n, sizeof *records) : NULL;
    ASSAY_CHECK(!run->trace || records, ASSAY_OUT_OF_MEMORY, "trace: records of %lld pieces", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const gpu_piece *p = &o->pieces[i];
        o->descs[i] = *common;
        if (p->param->spec->no_weight_decay)
            o->descs[i].weight_decay = 0.0;
        o->list[i] = p->main_param.t;
        o->list[n + i] = p->exp_avg.t;
        o->list[2 * n + i] = p->exp_avg_sq.t;
        o->list[3 * n + i] = p->weight.t;
        o->list[4 * n + i] = p->grad.t;
    }
    if (records)
        ASSAY_TRY_GOTO(trace_adamw_begin(o, records), st, done);
    ASSAY_TRY_GOTO(gpu_adamw(&run->ctx, n, o->list, o->list + n, o->list + 2 * n, o->list + 3 * n,
                             o->list + 4 * n, o->descs, run->ctx.stream),
                   st, done);
    if (records)
        ASSAY_TRY_GOTO(trace_adamw_end(o, records), st, done);
done:
    free(records);
    return st;
}

/* ZeRO-1: whole parameters again, with a record for each. */
static assay_status gather_params(gpu_optimizer *o)
{
    gpu_model *m = o->model;
    gpu_run *run = m->run;
    for (int k = 0; k < 2; k++) {
        gpu_grad_buffer *b = &o->buffer[k];
        ASSAY_TRY(gpu_param_sync(b, m, false));
        for (int64_t i = 0; run->trace && b->size > 1 && i < b->n_params; i++) {
            gpu_value whole = b->params[i]->weight;
            gpu_operand in[GPU_MAX_PIECES];
            static const char *const slots[GPU_MAX_PIECES] = {"send.0", "send.1", "send.2", "send.3",
                                                              "send.4", "send.5", "send.6", "send.7"};
            int n = 0;
            for (int64_t q = 0; q < o->n_pieces && n < GPU_MAX_PIECES; q++)
                if (o->pieces[q].param == b->params[i]) {
                    in[n] = (gpu_operand){slots[n], &o->pieces[q].weight};
                    n++;
                }
            if (n == 1)
                in[0].slot = "send";
            whole.phase = ASSAY_PHASE_OPTIMIZER;
            const gpu_operand out[] = {{"recv", &whole}};
            gpu_record r;
            ASSAY_TRY(gpu_trace_begin(run, &r, "all_gather", b->params[i]->spec->name, in, n));
            ASSAY_TRY(
                gpu_trace_end_collective(run, &r, b->group, out, 1,
                                         GPU_ATTRS(run, "{s:s}", "dtype", assay_dtype_name(whole.t.dtype))));
        }
    }
    return ASSAY_OK;
}

/* --- expert bias -------------------------------------------------------------------------------------------- */
static assay_status update_expert_bias(gpu_optimizer *o, gpu_layer *l)
{
    gpu_model *m = o->model;
    gpu_run *run = m->run;
    const int64_t E = m->config->num_moe_experts;
    gpu_value counts = {.ndim = 1, .dim = {gpu_dim_whole(E)}}, total = counts;
    gpu_value bias_in = l->expert_bias->weight, bias = bias_in;
    counts.t = total.t = gpu_tensor_1d(o->counts, ASSAY_I64, E);
    run->layer = l->number;
    gpu_value_name(run, &counts, "mlp.router", "step_tokens_per_expert");
    gpu_value_partial(m, &counts, ASSAY_GROUP_TP_DP_CP);
    total = counts;
    ASSAY_TRY(gpu_run_upload(run, o->counts, l->tokens_per_expert, (size_t)E * sizeof(int64_t), "counts"));
    if (run->comm.group[ASSAY_GROUP_TP_DP_CP].size > 1) {
        total.kind = ASSAY_PIECE_SHARD;
        gpu_value_name(run, &total, "mlp.router.expert_counts", "recv");
        ASSAY_TRY(
            gpu_all_reduce(m, "mlp.router.expert_counts", ASSAY_GROUP_TP_DP_CP, &total, &counts, false));
    } else {
        ASSAY_TRY(gpu_trace_value(run, &counts));
    }
    bias.phase = ASSAY_PHASE_OPTIMIZER;
    ASSAY_TRY(gpu_run_expert_bias_update(run, "mlp.router.expert_bias", &bias, &bias_in, &total,
                                         m->options->moe_router_bias_update_rate));
    run->layer = -1;
    return ASSAY_OK;
}

static assay_status update_expert_biases(gpu_optimizer *o)
{
    gpu_model *m = o->model;
    const size_t bytes = (size_t)m->config->num_moe_experts * sizeof(int64_t);
    for (int c = 0; c < m->n_chunks; c++)
        for (int64_t i = 0; i < m->chunks[c].n_layers; i++) {
            gpu_layer *l = &m->chunks[c].layers[i];
            if (!l->moe)
                continue;
            if (l->expert_bias)
                ASSAY_TRY(update_expert_bias(o, l));
            memset(l->tokens_per_expert, 0, bytes);
        }
    return ASSAY_OK;
}

/* --- step --------------------------------------------------------------------------------------------------- */
/* Planted fault: after the first step one parameter keeps the value that it had before. */
static assay_status hold_weight(gpu_optimizer *o, int64_t step, bool restore)
{
    gpu_model *m = o->model;
    gpu_param *p = m->fault == GPU_FAULT_STALE_WEIGHT && step == 0 && m->chunks[0].n_layers > 0 &&
                           m->chunks[0].layers[0].number == 0
                       ? m->chunks[0].layers[0].linear_qkv
                       : NULL;
    if (p == NULL || p->count == 0)
        return ASSAY_OK;
    void *to = restore ? p->weight.t.data : o->stale;
    const void *from = restore ? (void *)o->stale : p->weight.t.data;
    CUDA_TRY(cudaMemcpyAsync(to, from, gpu_tensor_bytes(p->weight.t), cudaMemcpyDeviceToDevice,
                             m->run->ctx.stream));
    return ASSAY_OK;
}

assay_status gpu_optimizer_step(gpu_optimizer *o, int64_t step, double *grad_norm)
{
    gpu_model *m = o->model;
    gpu_run *run = m->run;
    const assay_train_options *t = m->options;
    double total;
    run->phase = ASSAY_PHASE_OPTIMIZER;
    run->layer = -1;
    run->microbatch = -1;
    ASSAY_TRY(sums_of_squares(o, &total));
    ASSAY_TRY(gpu_world_sum(o, "grad_norm.reduce", &total));
    *grad_norm = sqrt(total);
    const double c = t->clip_grad > 0.0 ? t->clip_grad / (*grad_norm + 1e-6) : 1.0;
    const gpu_adamw_desc d = {.lr = gpu_learning_rate(t, t->train_iters, step),
                              .beta1 = t->adam_beta1,
                              .beta2 = t->adam_beta2,
                              .eps = t->adam_eps,
                              .weight_decay = t->weight_decay,
                              .grad_scale = c < 1.0 ? c : 1.0,
                              .step = step + 1};
    ASSAY_TRY(hold_weight(o, step, false));
    ASSAY_TRY(adamw(o, &d));
    if (o->sharded)
        ASSAY_TRY(gather_params(o));
    ASSAY_TRY(hold_weight(o, step, true));
    ASSAY_TRY(update_expert_biases(o));
    const int64_t one = 1;
    assay_shard scalar;
    assay_shard_whole(&scalar, &one, 1);
    return gpu_trace_host(run, "grad_norm", ASSAY_PHASE_OPTIMIZER, ASSAY_F64, &scalar, grad_norm);
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
