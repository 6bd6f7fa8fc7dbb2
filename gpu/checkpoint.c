/* Checkpoints of the engine on core/files/checkpoint.h: families main_param and the optimizer's states (this
 * rank's pieces) and expert_bias.  A checkpoint is loaded in any layout: every rank asks for its own pieces. */
#include "core/files/checkpoint.h"
#include "core/run/training.h"
#include "gpu/fault.h"
#include "gpu/train.h"

#include <stdlib.h>

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
    *out = malloc((size_t)(most * assay_dtype_bytes(ASSAY_F32)));
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "checkpoint: %lld elements", (long long)most);
    return ASSAY_OK;
}

/* --- save --------------------------------------------------------------------------------------------------- */
static assay_status add_all(gpu_engine *e, assay_checkpoint_writer *w, char *host)
{
    for (int64_t i = 0; i < e->optimizer.n_pieces; i++) {
        gpu_piece *p = &e->optimizer.pieces[i];
        for (int k = 0; k < n_families(e); k++) {
            const gpu_value *v = value_of(p, k);
            ASSAY_TRY(gpu_run_download(&e->run, host, v->t.data, gpu_tensor_bytes(v->t), "checkpoint"));
            ASSAY_TRY(assay_checkpoint_add(w, name_in_file(e, k), p->param->spec->name, ASSAY_F32, &p->shard,
                                           host));
        }
    }
    for (int64_t i = 0; i < e->model.n_params; i++) {
        const gpu_param *p = &e->model.params[i];
        if (p->spec->trained)
            continue;
        ASSAY_TRY(
            gpu_run_download(&e->run, host, p->weight.t.data, gpu_tensor_bytes(p->weight.t), "checkpoint"));
        ASSAY_TRY(assay_checkpoint_add(w, "expert_bias", p->spec->name, ASSAY_F32, &p->shard, host));
    }
    return ASSAY_OK;
}

static assay_status header(const gpu_engine *e, int64_t step, json_t **out)
{
    char layout[ASSAY_LAYOUT_TEXT];
    json_t *model = NULL;
    ASSAY_TRY(assay_config_to_json(&e->config, &model));
    assay_layout_format(&e->grid.p, layout);
    *out = json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:s}", "layout", layout, "precision",
                     assay_precision_name(e->options.precision), "options",
                     assay_train_options_to_json(&e->options, ASSAY_FOR_STEP), "training",
                     assay_training_to_json(&e->options), "data", assay_consumed_to_json(&e->batches, step),
                     "model", model, "engine", e->run.ctx.simulated ? "sim" : "gpu");
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "checkpoint: header");
    if (e->run_id[0] != '\0')
        json_object_set_new(*out, "run", json_string(e->run_id));
    return ASSAY_OK;
}

/* All ranks stage in a folder that no other job has: rank 0 draws the job's number and makes the folder first. */
static assay_status open_writer(gpu_engine *e, const char *dir, int64_t step, assay_checkpoint_writer **w)
{
    gpu_run *run = &e->run;
    double job = e->env.rank == 0 ? (double)assay_checkpoint_job() : 0.0; /* 53 bits: exact */
    if (e->env.rank == 0)
        ASSAY_TRY(assay_checkpoint_writer_open(w, dir, (uint64_t)job, step, 0, e->env.world));
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
        ASSAY_TRY(assay_checkpoint_writer_open(w, dir, (uint64_t)job, step, e->env.rank, e->env.world));
    return ASSAY_OK;
}

assay_status gpu_checkpoint_save(gpu_engine *e, const char *dir, int64_t step)
{
    assay_status st = ASSAY_OK;
    assay_checkpoint_writer *w = NULL;
    json_t *head = NULL;
    char *host = NULL;
    ASSAY_TRY_GOTO(host_piece(e, &host), st, done);
    ASSAY_TRY_GOTO(open_writer(e, dir, step, &w), st, done);
    ASSAY_TRY_GOTO(add_all(e, w, host), st, done);
    ASSAY_TRY_GOTO(assay_checkpoint_writer_finish(w), st, done);
    ASSAY_TRY_GOTO(gpu_comm_barrier(&e->run.comm, e->optimizer.scalar, e->run.ctx.stream), st, done);
    if (e->env.rank == 0) {
        ASSAY_TRY_GOTO(header(e, step, &head), st, done);
        ASSAY_TRY_GOTO(assay_checkpoint_publish(w, head), st, done);
    }
    ASSAY_TRY_GOTO(gpu_comm_barrier(&e->run.comm, e->optimizer.scalar, e->run.ctx.stream), st, done);
done:
    assay_checkpoint_writer_destroy(w);
    json_decref(head);
    free(host);
    return st;
}

/* --- load --------------------------------------------------------------------------------------------------- */
static assay_status check_header(const gpu_engine *e, const char *dir, const json_t *head, int64_t *step)
{
    json_t *mine = NULL;
    ASSAY_TRY(assay_json_get_i64(head, "step", true, 0, INT64_MAX, dir, step));
    ASSAY_TRY(assay_config_to_json(&e->config, &mine));
    const json_t *theirs = json_object_get(head, "model");
    const char *different = NULL;
    const char *key;
    json_t *value;
    json_object_foreach(mine, key,
                        value) if (different == NULL && !json_equal(value, json_object_get(theirs, key)))
        different = key;
    assay_status st = ASSAY_OK;
    if (theirs == NULL || different != NULL || !json_equal(mine, theirs)) {
        char *here = different ? json_dumps(json_object_get(mine, different), JSON_ENCODE_ANY) : NULL;
        char *there =
            different && theirs ? json_dumps(json_object_get(theirs, different), JSON_ENCODE_ANY) : NULL;
        st = ASSAY_ERROR(ASSAY_MISMATCH,
                         "checkpoint %s: of another model than %s: %s is %.80s there and %.80s here", dir,
                         e->options.model, different ? different : "model", there ? there : "absent",
                         here ? here : "present");
        free(here);
        free(there);
    }
    json_decref(mine);
    return st;
}

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

static assay_status read_all(gpu_engine *e, const assay_checkpoint *c, const char *dir, char *host)
{
    for (int64_t i = 0; i < e->optimizer.n_pieces; i++) {
        gpu_piece *p = &e->optimizer.pieces[i];
        for (int k = 0; k < n_families(e); k++) {
            const gpu_value *v = value_of(p, k);
            ASSAY_TRY(assay_checkpoint_read(c, name_in_file(e, k), p->param->spec->name, ASSAY_F32, &p->shard,
                                            host));
            if (p->in_norm) /* one of every set of replicas */
                warn_not_finite(dir, name_in_file(e, k), p->param->spec->name, &p->shard, host);
            ASSAY_TRY(gpu_run_upload(&e->run, v->t.data, host, gpu_tensor_bytes(v->t), "checkpoint"));
        }
    }
    for (int64_t i = 0; i < e->model.n_params; i++) {
        gpu_param *p = &e->model.params[i];
        if (p->spec->trained)
            continue;
        ASSAY_TRY(assay_checkpoint_read(c, "expert_bias", p->spec->name, ASSAY_F32, &p->shard, host));
        if (gpu_param_speaks(&e->model, p->spec))
            warn_not_finite(dir, "expert_bias", p->spec->name, &p->shard, host);
        ASSAY_TRY(
            gpu_run_upload(&e->run, p->weight.t.data, host, gpu_tensor_bytes(p->weight.t), "checkpoint"));
    }
    return gpu_optimizer_refresh_weights(&e->optimizer);
}

/* The samples that a resumed run has consumed, and its name in the metrics file. */
static assay_status check_run(gpu_engine *e, const char *dir, const json_t *header, int64_t step)
{
    ASSAY_TRY(
        assay_consumed_check(dir, header, &e->batches, &e->options, step, e->env.rank == 0 ? stderr : NULL));
    return assay_json_get_string(header, "run", false, dir, e->run_id, sizeof e->run_id);
}

assay_status gpu_checkpoint_load(gpu_engine *e, const char *dir, int64_t *step)
{
    assay_status st = ASSAY_OK;
    assay_checkpoint *c = NULL;
    char *host = NULL;
    ASSAY_TRY_GOTO(assay_checkpoint_open(&c, dir), st, done);
    ASSAY_TRY_GOTO(check_header(e, dir, assay_checkpoint_header(c), step), st, done);
    ASSAY_TRY_GOTO(
        assay_training_check(dir, assay_checkpoint_header(c), &e->options, e->env.rank == 0 ? stderr : NULL),
        st, done);
    if (assay_metrics_wanted(&e->options))
        ASSAY_TRY_GOTO(check_run(e, dir, assay_checkpoint_header(c), *step), st, done);
    ASSAY_TRY_GOTO(host_piece(e, &host), st, done);
    ASSAY_TRY_GOTO(read_all(e, c, dir, host), st, done);
done:
    assay_checkpoint_close(c);
    free(host);
    return st;
}
