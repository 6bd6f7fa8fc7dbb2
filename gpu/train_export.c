/* Whole tensors on rank 0: every piece travels once through NCCL, from one rank of every set of replicas. */
#include "core/files/checkpoint.h"
#include "core/files/tensorwriter.h"
#include "gpu/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A transfer in progress: device staging on rank 0, host memory for one piece and one whole tensor. */
typedef struct export_state {
    gpu_engine *e;
    assay_tensorwriter *writer; /* rank 0 */
    void *staging;              /* device */
    char *piece, *whole;        /* host */
    size_t piece_bytes, whole_bytes;
} export_state;

static assay_status grow(char **buffer, size_t *have, size_t need)
{
    if (need <= *have)
        return ASSAY_OK;
    char *grown = realloc(*buffer, need);
    ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "export: %zu bytes of host memory", need);
    *buffer = grown;
    *have = need;
    return ASSAY_OK;
}

/* Brings `count` F32 elements that lie at `data` on rank `from` into x->piece on rank 0. */
static assay_status bring(export_state *x, int from, const void *data, int64_t count)
{
    gpu_run *run = &x->e->run;
    const size_t bytes = (size_t)count * sizeof(float);
    const bool here = run->comm.rank == 0;
    gpu_comm_call call = {.group = ASSAY_GROUP_WORLD, .count = count, .dtype = ASSAY_F32};
    if (count == 0 || (!here && run->comm.rank != from))
        return ASSAY_OK;
    if (!here) {
        call.op = GPU_COMM_SEND;
        call.send = data;
        ASSAY_TRY(gpu_comm_enqueue(&run->comm, &call, run->ctx.stream));
        return gpu_comm_wait(&run->comm, run->ctx.stream, "export");
    }
    ASSAY_TRY(grow(&x->piece, &x->piece_bytes, bytes));
    if (from == 0)
        return gpu_run_download(run, x->piece, data, bytes, "export");
    call.op = GPU_COMM_RECV;
    call.recv = x->staging;
    call.root = from;
    ASSAY_TRY(gpu_comm_enqueue(&run->comm, &call, run->ctx.stream));
    return gpu_run_download(run, x->piece, x->staging, bytes, "export");
}

/* Whether rank r sends its piece of the parameter. */
static bool exports(const gpu_engine *e, const assay_param_spec *spec, int r)
{
    if (spec->trained)
        return assay_param_counts_in_norm(spec, &e->grid, &e->config, r);
    for (int before = 0; before < r; before++) /* a buffer: the lowest rank that holds it */
        if (assay_param_on_rank(spec, &e->grid, &e->config, before))
            return false;
    return assay_param_on_rank(spec, &e->grid, &e->config, r);
}

/* Where gradients are scattered, the parts of the parameter's bucket come together first. */
static assay_status gather_parts(gpu_engine *e, const gpu_param *p)
{
    gpu_grad_buffer *b = &e->optimizer.buffer[assay_param_reduce_group(p->spec) == ASSAY_GROUP_EDP];
    if (!assay_param_needs_grad(p->spec) || !b->scattered)
        return ASSAY_OK;
    return gpu_grad_gather(b, &e->model, p->bucket);
}

/* The canonical tensor into x->whole on rank 0.  It lies in the main_grad buffer (buffers: in the weight). */
static assay_status collect(export_state *x, const assay_param_spec *spec)
{
    gpu_engine *e = x->e;
    const gpu_param *mine = gpu_model_find(&e->model, spec->name);
    if (mine)
        ASSAY_TRY(gather_parts(e, mine));
    const void *data = mine == NULL ? NULL : spec->trained ? mine->main_grad.t.data : mine->weight.t.data;
    assay_shard all, piece;
    assay_shard_whole(&all, spec->shape, spec->ndim);
    if (e->env.rank == 0)
        ASSAY_TRY(grow(&x->whole, &x->whole_bytes, (size_t)assay_shard_count(&all) * sizeof(float)));
    int64_t copied = 0;
    for (int r = 0; r < e->env.world; r++) {
        if (!exports(e, spec, r))
            continue;
        ASSAY_TRY(assay_param_shard(spec, &e->grid, r, &piece));
        if (spec->trained) /* of what a kv group shares the first rank brings it */
            ASSAY_TRY(assay_param_counted_shard(spec, &e->grid, &e->config, r, &piece));
        ASSAY_TRY(bring(x, r, data, assay_shard_count(&piece)));
        if (e->env.rank == 0)
            copied +=
                assay_shard_copy(x->whole, &all, x->piece, &piece, (int64_t)sizeof(float), NULL, false, NULL);
    }
    ASSAY_CHECK(e->env.rank != 0 || copied == assay_shard_count(&all), ASSAY_INTERNAL,
                "export: %s: the pieces hold %lld of %lld elements", spec->name, (long long)copied,
                (long long)assay_shard_count(&all));
    return ASSAY_OK;
}

/* Writes a canonical tensor under its Hugging Face names. */
static assay_status add_parts(export_state *x, const assay_param_spec *spec, const char *prefix)
{
    const float *whole = (const float *)(const void *)x->whole;
    for (int i = 0; i < spec->n_parts; i++) {
        const assay_hf_part *part = &spec->parts[i];
        const int64_t row = assay_hf_part_row_length(part);
        ASSAY_TRY(grow(&x->piece, &x->piece_bytes, (size_t)(assay_hf_part_rows(part) * row) * sizeof(float)));
        for (int k = 0; k < part->n_pieces; k++)
            memcpy(x->piece + (size_t)(part->pieces[k].src * row) * sizeof(float),
                   whole + part->pieces[k].dst * row, (size_t)(part->pieces[k].rows * row) * sizeof(float));
        char name[ASSAY_NAME + 16];
        snprintf(name, sizeof name, "%s%s", prefix, part->name);
        ASSAY_TRY(assay_tensorwriter_add_copy(x->writer, name, ASSAY_F32, part->shape, part->ndim, x->piece));
    }
    return ASSAY_OK;
}

static assay_status export_params(export_state *x, const char *prefix, bool buffers)
{
    const assay_model_spec *spec = x->e->model.spec;
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *p = &spec->params[i];
        if (!p->trained && !buffers)
            continue;
        ASSAY_TRY(collect(x, p));
        if (x->writer)
            ASSAY_TRY(add_parts(x, p, prefix));
    }
    return ASSAY_OK;
}

/* --- logits ------------------------------------------------------------------------------------------------- */
/* A rank's piece [its positions, rows, length] of the vocabulary and of the rows, into [b, s, v]. */
static void place_logits(const gpu_engine *e, float *whole, const float *piece,
                         const assay_sequence *positions, const assay_batch_share *share, int64_t v0,
                         int64_t length)
{
    const int64_t S = e->batches.s, V = e->config.vocab_size;
    for (int64_t i = 0; i < positions->length; i++)
        for (int64_t b = 0; b < share->n_rows; b++)
            memcpy(whole + ((share->first_row + b) * S + assay_sequence_position(positions, i)) * V + v0,
                   piece + (i * share->n_rows + b) * length, (size_t)length * sizeof *whole);
}

/* Those of the rank at (tp, cp, dp) of the last stage. */
static assay_status bring_logits(export_state *x, const void *mine, float *whole, int tp, int cp, int dp)
{
    const gpu_engine *e = x->e;
    const assay_grid *g = &e->grid;
    const int rank = assay_grid_rank(g, tp, cp, dp, g->p.pipeline_model_parallel_size - 1);
    assay_batch_share share;
    assay_sequence_map map;
    int64_t v0, length;
    ASSAY_TRY(assay_batch_share_make(false, 1, e->batches.b, g->p.data_parallel_size, dp, &share));
    ASSAY_TRY(assay_sequence_map_make(g, rank, e->batches.s, &map));
    assay_split(e->config.vocab_size, g->p.tensor_model_parallel_size, tp, &v0, &length);
    ASSAY_TRY(bring(x, rank, mine, map.region.length * share.n_rows * length));
    if (whole && length > 0)
        place_logits(e, whole, (const float *)(const void *)x->piece, &map.region, &share, v0, length);
    return ASSAY_OK;
}

static assay_status export_logits(export_state *x)
{
    gpu_engine *e = x->e;
    const assay_grid *g = &e->grid;
    const int64_t shape[3] = {e->batches.b, e->batches.s, e->config.vocab_size};
    const gpu_model *m = &e->model;
    const gpu_chunk *end = &m->chunks[m->n_chunks - 1];
    const void *mine = end->has_output ? end->in_flight[0].output.logits.t.data : NULL;
    float *whole = NULL;
    assay_status st = ASSAY_OK;
    if (e->env.rank == 0) {
        whole = calloc((size_t)(shape[0] * shape[1] * shape[2]), sizeof *whole);
        ASSAY_CHECK(whole, ASSAY_OUT_OF_MEMORY, "export: logits");
    }
    for (int dp = 0; dp < g->p.data_parallel_size; dp++)
        for (int cp = 0; cp < g->p.context_parallel_size; cp++)
            for (int tp = 0; tp < g->p.tensor_model_parallel_size; tp++)
                ASSAY_TRY_GOTO(bring_logits(x, mine, whole, tp, cp, dp), st, done);
    if (x->writer)
        ASSAY_TRY_GOTO(assay_tensorwriter_add_copy(x->writer, "logits", ASSAY_F32, shape, 3, whole), st,
                       done);
done:
    free(whole);
    return st;
}

/* --- the file ----------------------------------------------------------------------------------------------- */
static assay_status export_series(export_state *x, const char *name, const double *values, int64_t n)
{
    if (x->writer == NULL)
        return ASSAY_OK;
    float *narrow = malloc((size_t)(n > 0 ? n : 1) * sizeof *narrow);
    ASSAY_CHECK(narrow, ASSAY_OUT_OF_MEMORY, "export: %s", name);
    for (int64_t i = 0; i < n; i++)
        narrow[i] = (float)values[i];
    const assay_status st = assay_tensorwriter_add_copy(x->writer, name, ASSAY_F32, &n, 1, narrow);
    free(narrow);
    return st;
}

static assay_status export_all(export_state *x)
{
    gpu_engine *e = x->e;
    const int64_t ran = e->last_step - e->first_step;
    ASSAY_TRY(export_series(x, "loss", e->loss + e->first_step, ran));
    if (!e->batches.training) {
        ASSAY_TRY(export_logits(x));
        return export_params(x, "grad.", false);
    }
    ASSAY_TRY(export_series(x, "grad_norm", e->grad_norm + e->first_step, ran));
    ASSAY_TRY(gpu_optimizer_gather_masters(&e->optimizer));
    return export_params(x, "weight.", true);
}

static assay_status staging_bytes(const gpu_engine *e, size_t *bytes)
{
    int64_t most = e->batches.s * e->batches.b * e->config.vocab_size;
    assay_shard piece;
    for (int64_t i = 0; i < e->model.spec->n_params; i++) {
        for (int r = 0; r < e->env.world; r++) {
            ASSAY_TRY(assay_param_shard(&e->model.spec->params[i], &e->grid, r, &piece));
            most = assay_shard_count(&piece) > most ? assay_shard_count(&piece) : most;
        }
    }
    *bytes = (size_t)most * sizeof(float);
    return ASSAY_OK;
}

assay_status gpu_export(gpu_engine *e)
{
    assay_status st = ASSAY_OK;
    export_state x = {.e = e};
    size_t bytes = 0;
    if (e->env.rank == 0) {
        ASSAY_TRY_GOTO(staging_bytes(e, &bytes), st, done);
        if (e->env.world > 1)
            CUDA_TRY(cudaMalloc(&x.staging, bytes));
        ASSAY_TRY_GOTO(assay_tensorwriter_create(&x.writer, e->options.out), st, done);
    }
    ASSAY_TRY_GOTO(export_all(&x), st, done);
    if (x.writer)
        ASSAY_TRY_GOTO(assay_tensorwriter_finish(x.writer), st, done);
done:
    assay_tensorwriter_destroy(x.writer);
    if (st != ASSAY_OK)
        gpu_comm_destroy(&e->run.comm, true); /* cudaFree would wait for a collective that never ends */
    if (x.staging)
        (void)cudaFree(x.staging);
    free(x.piece);
    free(x.whole);
    return st;
}
