/* Whole tensors on rank 0: every piece travels once through NCCL, from one rank of every set of replicas. */
#include "core/files/checkpoint.h"
#include "core/files/tensorwriter.h"
#include "gpu/ladder.h"
#include "gpu/layer.h"
#include "gpu/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file in progress.  Rank 0 has device staging for one piece, host memory for one piece and one whole tensor, and the
 * writer, where tensors wait on disk: never the model. */
struct gpu_export {
    gpu_engine *e;
    assay_tensorwriter *writer; /* rank 0 */
    void *staging, *wide;       /* device, only while tensors are collected; wide: a frozen weight in F32 */
    char *piece, *whole;        /* host */
    size_t piece_bytes, whole_bytes;
    int gathered[2];    /* scattered buffers: the bucket whose parts came together last, -1: none */
    double *layer_loss; /* [steps, layers, GPU_LOSSES]: this rank's parts of what Megatron-LM logs */
};
typedef struct gpu_export export_state;

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
        return assay_param_is_first_replica(spec, &e->grid, &e->config, r);
    for (int before = 0; before < r; before++) /* a buffer: the lowest rank that holds it */
        if (assay_param_on_rank(spec, &e->grid, &e->config, before))
            return false;
    return assay_param_on_rank(spec, &e->grid, &e->config, r);
}

/* Where gradients are scattered, the parts of the parameter's bucket come together first; neighbours share a bucket. */
static assay_status gather_parts(export_state *x, const gpu_param *p)
{
    const int k = assay_param_reduce_group(p->spec) == ASSAY_GROUP_EDP;
    gpu_grad_buffer *b = &x->e->optimizer.buffer[k];
    if (!assay_param_needs_grad(p->spec) || !b->scattered || x->gathered[k] == p->bucket)
        return ASSAY_OK;
    x->gathered[k] = p->bucket;
    return gpu_grad_gather(b, &x->e->model, p->bucket);
}

/* Where this rank's piece of a parameter lies in F32: in the main_grad buffer; a buffer and a frozen weight are the weight. */
static assay_status piece_of(export_state *x, gpu_param *p, const void **data)
{
    gpu_run *run = &x->e->run;
    *data = assay_param_needs_grad(p->spec) ? p->main_grad.t.data : p->weight.t.data;
    if (assay_param_needs_grad(p->spec) || p->weight.t.dtype == ASSAY_F32)
        return ASSAY_OK;
    gpu_operands o;
    int variant;
    gpu_tensor wide = p->weight.t;
    wide.dtype = ASSAY_F32;
    wide.data = x->wide;
    gpu_operands_init(&o, assay_op_find("cast"));
    gpu_operands_put(&o, "y", wide);
    gpu_operands_put(&o, "x", p->weight.t);
    *data = x->wide;
    return p->count > 0 ? gpu_ladder_run(&run->ctx, &o, 1, run->ctx.stream, &variant) : ASSAY_OK;
}

/* The canonical tensor into x->whole on rank 0. */
static assay_status collect(export_state *x, const assay_param_spec *spec)
{
    gpu_engine *e = x->e;
    gpu_param *mine = gpu_model_find(&e->model, spec->name);
    const void *data = NULL;
    if (mine) {
        ASSAY_TRY(gather_parts(x, mine));
        ASSAY_TRY(piece_of(x, mine, &data));
    }
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
            ASSAY_TRY(assay_param_first_shard(spec, &e->grid, &e->config, r, &piece));
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
        ASSAY_TRY(
            assay_tensorwriter_add_spooled(x->writer, name, ASSAY_F32, part->shape, part->ndim, x->piece));
    }
    return ASSAY_OK;
}

/* Of every parameter that has a gradient what lies where that is summed, and (weights) the others themselves. */
static assay_status export_params(export_state *x, const char *prefix, bool weights)
{
    const assay_model_spec *spec = x->e->model.spec;
    x->gathered[0] = x->gathered[1] = -1;
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *p = &spec->params[i];
        if (!assay_param_needs_grad(p) && !weights)
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

/* The master (family 0) or a state (family k: the optimizer's k-1) of every parameter. */
static assay_status export_family(export_state *x, int family)
{
    const gpu_optimizer *o = &x->e->optimizer;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%s.", family == 0 ? "weight" : o->state_names[family - 1]);
    ASSAY_TRY(gpu_optimizer_gather_family(&x->e->optimizer, family));
    return export_params(x, prefix, family == 0);
}

static assay_status export_rates(export_state *x)
{
    gpu_engine *e = x->e;
    const int64_t ran = e->last_step - e->first_step;
    double *rates = calloc((size_t)(ran > 0 ? ran : 1), sizeof *rates);
    ASSAY_CHECK(rates, ASSAY_OUT_OF_MEMORY, "export: %lld learning rates", (long long)ran);
    for (int64_t i = 0; i < ran; i++)
        rates[i] = gpu_learning_rate(&e->options, e->options.train_iters, e->first_step + i);
    const assay_status st = export_series(x, "learning_rate", rates, ran);
    free(rates);
    return st;
}

/* --- losses of layers --------------------------------------------------------------------------------------- */
static bool has_layer_losses(const gpu_engine *e)
{
    bool any = false;
    for (int k = 0; k < GPU_LOSSES; k++)
        any = any || assay_router_loss_coeff(&e->options, k) > 0.0;
    return any && e->config.num_moe_experts > 0;
}

static int64_t n_layer_losses(const gpu_engine *e)
{
    return (e->last_step - e->first_step) * e->config.num_layers * GPU_LOSSES;
}

assay_status gpu_export_step(gpu_engine *e, int64_t step)
{
    gpu_model *m = &e->model;
    double *row = e->export->layer_loss + (step - e->first_step) * e->config.num_layers * GPU_LOSSES;
    for (int c = 0; has_layer_losses(e) && c < m->n_chunks; c++)
        for (int64_t i = 0; i < m->chunks[c].n_layers; i++) {
            double sum[GPU_LOSSES];
            const gpu_layer *l = &m->chunks[c].layers[i];
            ASSAY_TRY(gpu_step_aux_losses(m, l, sum));
            for (int k = 0; k < GPU_LOSSES; k++) {
                const double coeff = assay_router_loss_coeff(&e->options, k);
                if (coeff > 0.0) /* Megatron-LM takes it out again before it logs */
                    row[l->number * GPU_LOSSES + k] = sum[k] / coeff / (double)m->step_microbatches;
            }
        }
    return ASSAY_OK;
}

/* Sum over the world of numbers of the host; nothing is recorded. */
static assay_status sum_numbers(export_state *x, double *values, int64_t n)
{
    gpu_run *run = &x->e->run;
    void *device = NULL;
    const size_t bytes = (size_t)n * sizeof *values;
    if (x->e->env.world == 1 || n == 0)
        return ASSAY_OK;
    CUDA_TRY(cudaMalloc(&device, bytes));
    const gpu_comm_call call = {.op = GPU_COMM_ALL_REDUCE,
                                .group = ASSAY_GROUP_WORLD,
                                .send = device,
                                .recv = device,
                                .count = n,
                                .dtype = ASSAY_F64};
    assay_status st = gpu_run_upload(run, device, values, bytes, "export");
    if (st == ASSAY_OK)
        st = gpu_comm_enqueue(&run->comm, &call, run->ctx.stream);
    if (st == ASSAY_OK)
        st = gpu_comm_wait(&run->comm, run->ctx.stream, "export");
    if (st == ASSAY_OK)
        st = gpu_run_download(run, values, device, bytes, "export");
    if (st == ASSAY_OK)
        CUDA_TRY(cudaFree(device));
    return st;
}

static assay_status export_layer_losses(export_state *x)
{
    gpu_engine *e = x->e;
    const int64_t shape[2] = {e->last_step - e->first_step, e->config.num_layers}, n = shape[0] * shape[1];
    if (!has_layer_losses(e))
        return ASSAY_OK;
    ASSAY_TRY(sum_numbers(x, x->layer_loss, n_layer_losses(e)));
    float *narrow = malloc((size_t)(n + 1) * sizeof *narrow);
    ASSAY_CHECK(narrow, ASSAY_OUT_OF_MEMORY, "export: losses of %lld layers", (long long)n);
    assay_status st = ASSAY_OK;
    for (int k = 0; k < GPU_LOSSES && x->writer && st == ASSAY_OK; k++) {
        for (int64_t i = 0; i < n; i++)
            narrow[i] = (float)x->layer_loss[GPU_LOSSES * i + k];
        if (assay_router_loss_coeff(&e->options, k) > 0.0)
            st = assay_tensorwriter_add_copy(x->writer, assay_router_loss_name(k), ASSAY_F32, shape, 2,
                                             narrow);
    }
    free(narrow);
    return st;
}

static assay_status export_end(export_state *x)
{
    gpu_engine *e = x->e;
    const int64_t ran = e->last_step - e->first_step;
    ASSAY_TRY(export_series(x, "loss", e->loss + e->first_step, ran));
    if (!e->batches.training) {
        ASSAY_TRY(export_logits(x));
        return export_params(x, "grad.", false);
    }
    ASSAY_TRY(export_series(x, "grad_norm", e->grad_norm + e->first_step, ran));
    if (e->options.log_num_zeros_in_grad && x->writer)
        ASSAY_TRY(assay_tensorwriter_add_copy(x->writer, "num_zeros_in_grad", ASSAY_I64, &ran, 1,
                                              e->num_zeros + e->first_step));
    ASSAY_TRY(export_rates(x));
    ASSAY_TRY(export_layer_losses(x));
    for (int k = 0; k <= e->optimizer.n_states; k++)
        ASSAY_TRY(export_family(x, k));
    return ASSAY_OK;
}

static assay_status staging_bytes(const gpu_engine *e, size_t *bytes)
{
    int64_t most = e->batches.training ? 0 : e->batches.s * e->batches.b * e->config.vocab_size;
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

/* Runs one of the exports with staging that lives no longer. */
static assay_status with_staging(export_state *x, assay_status (*what)(export_state *))
{
    gpu_engine *e = x->e;
    const bool receives = e->env.rank == 0 && e->env.world > 1, widens = e->options.freeze[0] != '\0';
    size_t bytes = 0;
    if (receives || widens)
        ASSAY_TRY(staging_bytes(e, &bytes));
    if (receives)
        CUDA_TRY(cudaMalloc(&x->staging, bytes));
    if (widens)
        CUDA_TRY(cudaMalloc(&x->wide, bytes));
    gpu_comm_allow_files(&e->run.comm, gpu_file_bytes(e)); /* later stages wait while rank 0 writes */
    const assay_status st = what(x);
    gpu_comm_allow_files(&e->run.comm, 0.0);
    if (st != ASSAY_OK)
        gpu_comm_destroy(&e->run.comm, true); /* cudaFree would wait for a collective that never ends */
    if (x->staging)
        (void)cudaFree(x->staging);
    if (x->wide)
        (void)cudaFree(x->wide);
    x->staging = x->wide = NULL;
    return st;
}

assay_status gpu_export_open(gpu_engine *e)
{
    export_state *x = calloc(1, sizeof *x);
    ASSAY_CHECK(x, ASSAY_OUT_OF_MEMORY, "export: %zu bytes", sizeof *x);
    e->export = x;
    x->e = e;
    x->layer_loss = calloc((size_t)n_layer_losses(e) + 1, sizeof *x->layer_loss);
    ASSAY_CHECK(x->layer_loss, ASSAY_OUT_OF_MEMORY, "export: losses of layers");
    return e->env.rank == 0 ? assay_tensorwriter_create(&x->writer, e->options.out) : ASSAY_OK;
}

static assay_status export_first_gradients(export_state *x)
{
    gpu_engine *e = x->e;
    ASSAY_TRY(gpu_finish_grad_sync(&e->model));
    ASSAY_TRY(gpu_optimizer_gather_grads(&e->optimizer));
    ASSAY_TRY(export_params(x, "grad.", false));
    return gpu_comm_wait(&e->run.comm, e->run.ctx.stream, "export of gradients");
}

assay_status gpu_export_gradients(gpu_engine *e)
{
    return with_staging(e->export, export_first_gradients);
}

assay_status gpu_export_finish(gpu_engine *e)
{
    ASSAY_TRY(with_staging(e->export, export_end));
    return e->export->writer ? assay_tensorwriter_finish(e->export->writer) : ASSAY_OK;
}

void gpu_export_destroy(gpu_engine *e)
{
    if (e->export == NULL)
        return;
    assay_tensorwriter_destroy(e->export->writer);
    free(e->export->piece);
    free(e->export->whole);
    free(e->export->layer_loss);
    free(e->export);
    e->export = NULL;
}
