/* Reduction of gradients over tp, the embedding group and data-parallel ranks, with a record for each
 * parameter. */
#include "gpu/optimizer.h"

#include "gpu/parallel/tensor.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- gradients ---------------------------------------------------------------------------------------------- */
assay_status gpu_optimizer_zero_grad(gpu_optimizer *o)
{
    ASSAY_TRY(gpu_grad_buffer_zero(&o->buffer[0], o->model));
    return gpu_grad_buffer_zero(&o->buffer[1], o->model);
}

/* Which sums the gradient of a parameter still lacks. */
typedef struct lacks {
    bool tp, embedding, data;
    assay_group group; /* of the data-parallel sum */
} lacks;

static lacks what_lacks(const gpu_optimizer *o, const gpu_param *p)
{
    const gpu_model *m = o->model;
    const assay_group group = assay_param_reduce_group(p->spec);
    return (lacks){.tp = assay_param_sum_over_tp(p->spec, m->grid),
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
    if (l.embedding && l.data) /* no named group is both */
        v.kind = ASSAY_PIECE_LOCAL;
    return v;
}

/* The gradient after one sum: the reduced one when nothing is lacking any more, else a local value of its
 * own. */
static gpu_value summed(const gpu_value *v, bool last, const char *suffix)
{
    gpu_value out = *v;
    out.kind = last ? ASSAY_PIECE_SHARD : ASSAY_PIECE_LOCAL;
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
        gpu_value out = summed(v, !l.embedding && !l.data, ".tp_sum");
        ASSAY_TRY(gpu_all_reduce(m, p->spec->name, ASSAY_GROUP_TP, &out, v, false));
        *v = out;
    }
    if (l.embedding) {
        gpu_value out = summed(v, !l.data, ".embedding_sum");
        ASSAY_TRY(gpu_all_reduce(m, p->spec->name, ASSAY_GROUP_EMBEDDING, &out, v, false));
        *v = out;
    }
    if (!l.tp && !l.embedding && !l.data)
        *v = summed(v, true, "");
    return ASSAY_OK;
}

/* Planted fault: the bucket that holds layer 0's first parameter is not reduced when there is no tp. */
static bool skip_bucket(const gpu_optimizer *o, const gpu_grad_buffer *b, int index)
{
    if (o->model->fault != GPU_FAULT_SKIP_ALL_REDUCE || o->model->tp > 1)
        return false;
    for (int64_t i = 0; i < b->n_params; i++)
        if (strcmp(b->params[i]->spec->name, "decoder.layers.0.input_layernorm.weight") == 0)
            return b->offsets[i] >= b->buckets[index].start &&
                   b->offsets[i] < b->buckets[index].start + b->buckets[index].length;
    return false;
}

/* Writes the records of one parameter's reduction: `recv` is whole, or the pieces of this rank. */
static assay_status record_reduction(gpu_optimizer *o, const gpu_grad_buffer *b, gpu_param *p, gpu_record *r)
{
    static const char *const slots[GPU_MAX_PIECES] = {"recv.0", "recv.1", "recv.2", "recv.3",
                                                      "recv.4", "recv.5", "recv.6", "recv.7"};
    gpu_run *run = o->model->run;
    gpu_operand out[GPU_MAX_PIECES];
    gpu_value whole = p->main_grad;
    int n = 0;
    for (int64_t i = 0; o->sharded && i < o->n_pieces && n < GPU_MAX_PIECES; i++)
        if (o->pieces[i].param == p) {
            out[n] = (gpu_operand){slots[n], &o->pieces[i].grad};
            n++;
        }
    if (n == 1)
        out[0].slot = "recv";
    if (!o->sharded) {
        whole.kind = ASSAY_PIECE_SHARD;
        whole.phase = ASSAY_PHASE_REDUCED_GRAD;
        whole.microbatch = -1;
        out[0] = (gpu_operand){"recv", &whole};
        n = 1;
    }
    return gpu_trace_end_collective(run, r, b->group, out, n,
                                    GPU_ATTRS(run, "{s:s, s:s}", "reduction", "sum", "dtype", "F32"));
}

static assay_status reduce_buffer(gpu_optimizer *o, gpu_grad_buffer *b)
{
    gpu_model *m = o->model;
    gpu_run *run = m->run;
    assay_status st = ASSAY_OK;
    gpu_record *records = run->trace ? calloc((size_t)m->n_params, sizeof *records) : NULL;
    ASSAY_CHECK(!run->trace || records, ASSAY_OUT_OF_MEMORY, "trace: records of %lld parameters",
                (long long)m->n_params);
    for (int64_t i = 0; i < b->n_params; i++) {
        gpu_value v;
        ASSAY_TRY_GOTO(sum_replicas(o, b->params[i], &v), st, done);
        const gpu_operand in[] = {{"send", &v}};
        if (records && b->size > 1)
            ASSAY_TRY_GOTO(gpu_trace_begin(run, &records[i], o->sharded ? "reduce_scatter" : "all_reduce",
                                           b->params[i]->spec->name, in, 1),
                           st, done);
        else if (records && v.phase == ASSAY_PHASE_REDUCED_GRAD)
            ASSAY_TRY_GOTO(gpu_trace_value(run, &v), st, done);
    }
    if (b->size == 1)
        goto done;
    for (int i = 0; i < b->n_buckets; i++)
        if (!skip_bucket(o, b, i))
            ASSAY_TRY_GOTO(gpu_start_grad_sync(b, m, i, o->sharded), st, done);
    ASSAY_TRY_GOTO(gpu_finish_grad_sync(m), st, done);
    for (int64_t i = 0; records && i < b->n_params; i++)
        ASSAY_TRY_GOTO(record_reduction(o, b, b->params[i], &records[i]), st, done);
done:
    free(records);
    return st;
}

assay_status gpu_finalize_model_grads(gpu_optimizer *o)
{
    gpu_run *run = o->model->run;
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
