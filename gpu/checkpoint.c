/* Checkpoints of the engine on core/files/checkpoint.h: weights, masters and the optimizer's states (this rank's pieces) and
 * expert biases.  A checkpoint is loaded in any layout: every rank asks for its own pieces; weights are its masters, rounded. */
#include "core/files/checkpoint_async.h"
#include "core/files/checkpoint_folder.h"
#include "core/run/state.h"
#include "gpu/fault.h"
#include "gpu/train.h"

#include <stdlib.h>
#include <string.h>

/* Family 0 is the master, family k the optimizer's state k - 1. */
static int n_families(const gpu_engine *e)
{
    return 1 + e->optimizer.n_states;
}

static gpu_value *value_of(gpu_piece *p, int family)
{
    return family == 0 ? &p->main_param : &p->state[family - 1];
}

/* Planted fault: the moments change places in the file. */
static const char *name_in_file(const gpu_engine *e, int k)
{
    const bool swap = k > 0 && gpu_fault_switch(&e->run, GPU_SWITCH_SWAPPED_MOMENTS);
    if (k == 0)
        return "main_param";
    return e->optimizer.state_names[swap ? e->optimizer.n_states - k : k - 1];
}

/* Host room for the largest piece. */
static assay_status host_piece(const gpu_engine *e, char **out)
{
    int64_t most = 1;
    for (int64_t i = 0; i < e->model.n_params; i++)
        most = e->model.params[i].count > most ? e->model.params[i].count : most;
    *out = malloc((size_t)(most * assay_dtype_bytes(ASSAY_F64))); /* a checkpoint of the reference */
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "checkpoint: %lld elements", (long long)most);
    return ASSAY_OK;
}

double gpu_file_bytes(const gpu_engine *e)
{
    double elements = 0.0;
    for (int64_t i = 0; i < e->model.spec->n_params; i++)
        elements += (double)assay_param_elements(&e->model.spec->params[i]);
    return elements * 4.0 * (double)sizeof(float);
}

/* --- save --------------------------------------------------------------------------------------------------- */
/* Of every set of replicas one writes, and all are held to what it wrote. */
static assay_status add_piece(gpu_engine *e, assay_checkpoint_writer *w, const gpu_piece *p,
                              const char *family, const gpu_value *v, char *host)
{
    ASSAY_TRY(gpu_run_download(&e->run, host, v->t.data, gpu_tensor_bytes(v->t), "checkpoint"));
    return assay_checkpoint_add(w, family, p->param->spec->name, v->t.dtype, &p->shard, host, p->in_norm);
}

/* Elements as this engine keeps masters, states and buffers: F32.  In place, from the end where they become wider. */
static void to_f32(char *host, int64_t count, assay_dtype from)
{
    double wide;
    uint16_t high;
    float f;
    for (int64_t i = 0; i < count && from == ASSAY_F64; i++) { /* rounded to nearest even */
        memcpy(&wide, host + i * 8, sizeof wide);
        f = (float)wide;
        memcpy(host + i * 4, &f, sizeof f);
    }
    for (int64_t i = count - 1; i >= 0 && from == ASSAY_BF16; i--) {
        memcpy(&high, host + i * 2, sizeof high);
        const uint32_t bits = (uint32_t)high << 16;
        memcpy(host + i * 4, &bits, sizeof bits);
    }
}

/* Whole on every rank that has a part in it: a buffer, which the model keeps in F32, and a frozen weight, which is there in the
 * type of the products and has no master: where masters take the place of weights it is widened. */
static assay_status add_untrained(gpu_engine *e, assay_checkpoint_writer *w, const gpu_param *p, char *host)
{
    const assay_param_spec *spec = p->spec;
    assay_dtype dtype = p->weight.t.dtype;
    ASSAY_TRY(gpu_run_download(&e->run, host, p->weight.t.data, gpu_tensor_bytes(p->weight.t), "checkpoint"));
    if (!spec->trained)
        return assay_checkpoint_add(w, "expert_bias", spec->name, ASSAY_F32, &p->shard, host,
                                    gpu_param_speaks(&e->model, spec));
    if (e->options.skip_save_model_weight) {
        to_f32(host, p->count, dtype);
        dtype = ASSAY_F32;
    }
    return assay_checkpoint_add(w, "weight", spec->name, dtype, &p->shard, host,
                                assay_param_is_first_replica(spec, &e->grid, &e->config, e->env.rank));
}

static assay_status add_all(gpu_engine *e, assay_checkpoint_writer *w, char *host)
{
    const assay_train_options *o = &e->options;
    for (int64_t i = 0; i < e->optimizer.n_pieces; i++) {
        gpu_piece *p = &e->optimizer.pieces[i];
        const bool masters =
            !o->no_save_optim || o->skip_save_model_weight || p->weight.t.dtype == p->main_param.t.dtype;
        if (!o->skip_save_model_weight)
            ASSAY_TRY(add_piece(e, w, p, "weight", &p->weight, host));
        for (int k = masters ? 0 : 1; k < (o->no_save_optim ? 1 : n_families(e)); k++)
            ASSAY_TRY(add_piece(e, w, p, name_in_file(e, k), value_of(p, k), host));
    }
    for (int64_t i = 0; i < e->model.n_params; i++) {
        const gpu_param *p = &e->model.params[i];
        if (!assay_param_needs_grad(p->spec))
            ASSAY_TRY(add_untrained(e, w, p, host));
    }
    return ASSAY_OK;
}

static assay_status state(const gpu_engine *e, int64_t step, json_t **out)
{
    const assay_state s = {.options = &e->options,
                           .layout = &e->grid.p,
                           .batches = &e->batches,
                           .engine = e->run.ctx.simulated ? "sim" : "gpu",
                           .run = e->run_id,
                           .step = step,
                           .learning_rate = gpu_learning_rate(&e->options, e->options.train_iters, step)};
    *out = assay_state_to_json(&s);
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "checkpoint: state");
    return ASSAY_OK;
}

/* All ranks stage in a folder that no other job has: rank 0 draws the job's number and makes the folder first. */
static assay_status open_writer(gpu_engine *e, const char *dir, int64_t step, assay_checkpoint_writer **w)
{
    gpu_run *run = &e->run;
    assay_checkpoint_content content;
    ASSAY_TRY(assay_state_content(e->model.spec, &e->options, &content));
    double job = e->env.rank == 0 ? (double)assay_checkpoint_job() : 0.0; /* 53 bits: exact */
    if (e->env.rank == 0)
        ASSAY_TRY(assay_checkpoint_writer_open(w, dir, (uint64_t)job, step, 0, e->env.world, &content));
    if (e->env.world == 1)
        return ASSAY_OK;
    const gpu_comm_call broadcast = {.op = GPU_COMM_BROADCAST,
                                     .group = ASSAY_GROUP_WORLD,
                                     .send = e->optimizer.scalar,
                                     .recv = e->optimizer.scalar,
                                     .count = 1,
                                     .dtype = ASSAY_F64,
                                     .root = 0};
    ASSAY_TRY(gpu_run_upload(run, e->optimizer.scalar, &job, sizeof job, "checkpoint"));
    ASSAY_TRY(gpu_comm_enqueue(&run->comm, &broadcast, run->ctx.stream));
    ASSAY_TRY(gpu_comm_wait(&run->comm, run->ctx.stream, "checkpoint"));
    ASSAY_TRY(gpu_run_download(run, &job, e->optimizer.scalar, sizeof job, "checkpoint"));
    if (e->env.rank > 0)
        ASSAY_TRY(
            assay_checkpoint_writer_open(w, dir, (uint64_t)job, step, e->env.rank, e->env.world, &content));
    return ASSAY_OK;
}

/* Behind this every rank's pieces are in its hands, or in its writer's. */
static assay_status barrier(gpu_engine *e)
{
    return gpu_comm_barrier(&e->run.comm, e->optimizer.scalar, e->run.ctx.stream);
}

static assay_status publish(gpu_engine *e, assay_checkpoint_writer *w, json_t *head,
                            const assay_async_folder *folder, int64_t step)
{
    ASSAY_TRY(assay_checkpoint_writer_finish(w));
    ASSAY_TRY(barrier(e));
    ASSAY_TRY(assay_checkpoint_seal(w));
    ASSAY_TRY(barrier(e));
    if (e->env.rank == 0)
        ASSAY_TRY(assay_checkpoint_publish(w, head));
    ASSAY_TRY(barrier(e));
    return e->env.rank == 0 && folder->run != NULL
               ? assay_checkpoint_folder_add(folder->run, step, folder->loss, folder->keep)
               : ASSAY_OK;
}

static assay_status hand_over(gpu_engine *e, const assay_checkpoint_writer *w, const json_t *head,
                              const assay_async_folder *folder)
{
    ASSAY_TRY(assay_async_save_start(&e->saving, w, head, folder));
    ASSAY_TRY(barrier(e));
    return assay_async_save_commit(e->saving);
}

static assay_status save_in(gpu_engine *e, const char *dir, const assay_async_folder *folder, int64_t step)
{
    const bool later = e->options.async_save;
    assay_status st = ASSAY_OK;
    assay_checkpoint_writer *w = NULL;
    json_t *head = NULL;
    char *host = NULL;
    gpu_comm_allow_files(&e->run.comm, gpu_file_bytes(e)); /* a rank may write what others only wait for */
    ASSAY_TRY_GOTO(assay_async_save_wait(&e->saving), st, done); /* one at a time */
    ASSAY_TRY_GOTO(host_piece(e, &host), st, done);
    ASSAY_TRY_GOTO(open_writer(e, dir, step, &w), st, done);
    if (later)
        ASSAY_TRY_GOTO(assay_checkpoint_defer(w), st, done);
    ASSAY_TRY_GOTO(add_all(e, w, host), st, done);
    if (e->env.rank == 0)
        ASSAY_TRY_GOTO(state(e, step, &head), st, done);
    st = later ? hand_over(e, w, head, folder) : publish(e, w, head, folder, step);
done:
    assay_checkpoint_writer_destroy(w);
    gpu_comm_allow_files(&e->run.comm, 0.0);
    json_decref(head);
    free(host);
    return st;
}

assay_status gpu_checkpoint_save(gpu_engine *e, int64_t step)
{
    char dir[ASSAY_PATH + 32];
    const assay_train_options *o = &e->options;
    const assay_async_folder none = {.run = NULL};
    if (o->save_interval == 0)
        return save_in(e, o->save, &none, step);
    assay_checkpoint_folder_name(o->save, step, dir, sizeof dir);
    const assay_async_folder folder = {
        .run = o->save, .loss = e->loss[step - 1], .keep = o->save_total_limit};
    return save_in(e, dir, &folder, step);
}

/* --- load --------------------------------------------------------------------------------------------------- */
/* As for weights of a folder: said, not refused. */
static void warn_not_finite(const char *dir, const char *family, const char *name, const assay_shard *shard,
                            const char *host)
{
    assay_not_finite f = {.first = -1};
    char text[256];
    gpu_count_not_finite((const float *)(const void *)host, assay_shard_count(shard), 0, &f);
    if (f.first < 0)
        return;
    int64_t place = f.first;
    int64_t index[ASSAY_MAX_DIMS];
    for (int d = shard->ndim - 1; d >= 0; d--) { /* from the piece to the tensor */
        index[d] = assay_shard_global_index(shard, d, place % shard->local_shape[d]);
        place /= shard->local_shape[d];
    }
    f.first = 0;
    for (int d = 0; d < shard->ndim; d++)
        f.first = f.first * shard->global_shape[d] + index[d];
    assay_not_finite_text(&f, shard->global_shape, shard->ndim, text, sizeof text);
    fprintf(stderr, "WARNING: checkpoint %s: %s of %s: %s\n", dir, family, name, text);
}

/* *there false: the key is ignored, and the value stays what the run began with. */
static assay_status read_piece(const gpu_engine *e, const assay_checkpoint *c, const char *family,
                               const assay_param_spec *p, const assay_shard *shard, char *host, bool *there)
{
    assay_dtype dtype;
    *there = assay_checkpoint_has(c, family, p);
    if (!*there)
        return ASSAY_OK;
    ASSAY_TRY(assay_state_dtype(&e->options, c, family, p->name, ASSAY_F32, &dtype));
    ASSAY_TRY(assay_checkpoint_read(c, family, p->name, dtype, shard, host));
    to_f32(host, assay_shard_count(shard), dtype);
    return ASSAY_OK;
}

static assay_status read_all(gpu_engine *e, const assay_checkpoint *c, const char *dir, char *host)
{
    bool there;
    for (int64_t i = 0; i < e->optimizer.n_pieces; i++) {
        gpu_piece *p = &e->optimizer.pieces[i];
        for (int k = 0; k < (e->options.finetune ? 1 : n_families(e)); k++) {
            const gpu_value *v = value_of(p, k);
            const char *family = k == 0 ? assay_state_masters(c, p->param->spec) : name_in_file(e, k);
            ASSAY_TRY(read_piece(e, c, family, p->param->spec, &p->shard, host, &there));
            if (!there)
                continue;
            if (p->in_norm) /* one of every set of replicas */
                warn_not_finite(dir, family, p->param->spec->name, &p->shard, host);
            ASSAY_TRY(gpu_run_upload(&e->run, v->t.data, host, gpu_tensor_bytes(v->t), "checkpoint"));
        }
    }
    for (int64_t i = 0; i < e->model.n_params; i++) {
        gpu_param *p = &e->model.params[i];
        if (assay_param_needs_grad(p->spec))
            continue;
        const char *family = p->spec->trained ? assay_state_masters(c, p->spec) : "expert_bias";
        ASSAY_TRY(read_piece(e, c, family, p->spec, &p->shard, host, &there));
        if (!there)
            continue;
        if (assay_param_is_first_replica(p->spec, &e->grid, &e->config, e->env.rank))
            warn_not_finite(dir, family, p->spec->name, &p->shard, host);
        ASSAY_TRY(gpu_upload_rounded(&e->run, p->weight.t, (const float *)(const void *)host));
    }
    return gpu_optimizer_refresh_weights(&e->optimizer);
}

assay_status gpu_checkpoint_load(gpu_engine *e, const char *dir, int64_t *step)
{
    assay_status st = ASSAY_OK;
    assay_checkpoint *c = NULL;
    char *host = NULL;
    ASSAY_TRY_GOTO(
        assay_state_load(&e->options, e->model.spec, &e->batches, e->env.rank, e->env.world, &c, step), st,
        done);
    ASSAY_TRY_GOTO(barrier(e), st, done);                          /* every file was somebody's to hash */
    if (assay_metrics_wanted(&e->options) && !e->options.finetune) /* it goes on under its name */
        ASSAY_TRY_GOTO(
            assay_json_get_string(assay_checkpoint_header(c), "run", false, dir, e->run_id, sizeof e->run_id),
            st, done);
    ASSAY_TRY_GOTO(host_piece(e, &host), st, done);
    ASSAY_TRY_GOTO(read_all(e, c, dir, host), st, done);
done:
    assay_checkpoint_close(c);
    free(host);
    return st;
}
