/* Set-up, steps and tear-down of one rank. */
#include "gpu/train.h"

#include "core/files/checkpoint_folder.h"
#include "core/run/inputs.h"
#include "core/run/outputs.h"
#include "core/run/stop.h"
#include "gpu/beside.h"
#include "gpu/fault.h"
#include "gpu/graph.h"
#include "gpu/rules.h"
#include "gpu/side.h"
#include "gpu/substitute.h"
#include "gpu/targets.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- set-up ------------------------------------------------------------------------------------------------- */
static assay_status check_options(const assay_train_options *o)
{
    ASSAY_TRY(assay_train_options_check(o));
    ASSAY_CHECK(o->precision != ASSAY_PRECISION_FP64, ASSAY_UNSUPPORTED,
                "precision fp64: the gpu engine computes in fp32 or bf16; the reference computes in fp64");
    ASSAY_CHECK(o->model[0] != '\0', ASSAY_INVALID_ARGUMENT, "--model: a Hugging Face folder is needed");
    ASSAY_CHECK(o->batch[0] != '\0', ASSAY_INVALID_ARGUMENT, "--batch: a batch file is needed");
    return ASSAY_OK;
}

/* A result of random weights must not pass for one of a trained model: rank 0 says it. */
static assay_status check_weights(const gpu_engine *e)
{
    const assay_train_options *o = &e->options;
    assay_weights_source source;
    ASSAY_TRY(assay_inputs_weights(o->model, assay_inputs_load(o), o->draw_weights, &source));
    if (source == ASSAY_WEIGHTS_DRAWN && e->env.rank == 0)
        fprintf(stderr, "weights: drawn from seed %lld; %s holds a configuration alone\n",
                (long long)o->draw_weights, o->model);
    return ASSAY_OK;
}

/* What the sharded forms do not do, by name. */
static assay_status check_sharding(const assay_train_options *o, const assay_grid *g)
{
    const assay_parallel_config *p = &g->p;
    ASSAY_CHECK(!o->overlap_param_gather || p->zero_stage >= 1, ASSAY_INVALID_ARGUMENT,
                "overlap_param_gather: with zero0 no parameter is gathered");
    return ASSAY_OK;
}

static assay_status read_inputs(gpu_engine *e)
{
    const assay_train_options *o = &e->options;
    assay_parallel_config layout;
    ASSAY_TRY(assay_config_load(o->model, &e->config));
    ASSAY_TRY(assay_inputs_take_config(&e->options, &e->config));
    ASSAY_TRY(check_weights(e));
    ASSAY_TRY(assay_layout_parse(o->layout[0] ? o->layout : "1", &layout));
    ASSAY_TRY(assay_grid_make(&layout, &e->grid));
    ASSAY_TRY(assay_grid_check_model(&e->grid, &e->config));
    ASSAY_TRY(check_sharding(o, &e->grid));
    if (o->moe_alltoall_halves)
        ASSAY_TRY(assay_inputs_halves(o, &e->config, &e->grid.p));
    ASSAY_CHECK(e->grid.world == e->env.world, ASSAY_MISMATCH,
                "layout %s needs %d ranks, %d were started (by %s)", o->layout, e->grid.world, e->env.world,
                e->env.launcher);
    ASSAY_TRY(assay_batches_open(&e->batches, o->batch, e->config.vocab_size));
    ASSAY_TRY(assay_inputs_documents(o, e->batches.position_ids != NULL, e->grid.p.context_parallel_size));
    assay_coords at;
    assay_grid_coords(&e->grid, e->env.rank, &at);
    ASSAY_TRY(assay_batch_share_make(assay_needs_all_rows(&e->options), e->batches.microbatches, e->batches.b,
                                     e->grid.p.data_parallel_size, at.dp, &e->share));
    ASSAY_TRY(assay_inputs_rows(o, &e->config, e->share.rows_split));
    if (o->enable_cuda_graph)
        ASSAY_TRY(assay_inputs_cuda_graph(o, &e->config, &e->grid.p, e->share.rows_split));
    const int64_t held = e->batches.steps;
    if (!e->repeat || o->train_iters <= held)
        ASSAY_TRY(assay_inputs_steps(o, e->batches.training, held));
    ASSAY_CHECK(e->batches.training || (o->load[0] == '\0' && o->save[0] == '\0'), ASSAY_INVALID_ARGUMENT,
                "--load and --save need a training batch [steps,microbatches,b,s], %s holds [b,s]", o->batch);
    e->last_step = o->train_iters > 0 ? o->train_iters : held;
    e->options.train_iters = e->last_step;
    return ASSAY_OK;
}

/* The fault that --fault asks for, refused where it could never bite. */
static assay_status plant_fault(gpu_engine *e)
{
    const assay_parallel_config *p = &e->grid.p;
    gpu_fault_place place = {.tp = p->tensor_model_parallel_size,
                             .cp = p->context_parallel_size,
                             .dp = p->data_parallel_size,
                             .ep = p->expert_model_parallel_size,
                             .pp = p->pipeline_model_parallel_size,
                             .training = e->batches.training,
                             .scattered = p->zero_stage >= 2,
                             .packed = e->batches.position_ids != NULL,
                             .steps = e->last_step,
                             .step_microbatches = e->batches.microbatches,
                             .first_moe_layer = -1,
                             .experts = e->config.num_moe_experts,
                             .topk = e->config.moe_router_topk};
    for (int64_t l = e->config.num_layers - 1; l >= 0; l--)
        if (e->config.mlp[l] == ASSAY_MLP_MOE)
            place.first_moe_layer = l;
    ASSAY_TRY(gpu_fault_parse(e->options.fault, &place, &e->run.fault));
    if (e->run.fault && e->env.rank == 0)
        fprintf(stderr, "WARNING: fault '%s' is planted: the results of this run are wrong on purpose\n",
                e->options.fault);
    return ASSAY_OK;
}

/* Planted fault: the schedule has the same actions in another order, which the stages can run all the same. */
static void forwards_first(gpu_schedule *s)
{
    for (int64_t i = 0, n = 0; i < s->n; i++) {
        const gpu_action a = s->list[i];
        s->list[i].joined = false;
        if (!a.forward)
            continue;
        for (int64_t k = i; k > n; k--)
            s->list[k] = s->list[k - 1];
        s->list[n++] = a;
    }
}

static assay_status make_schedule(gpu_engine *e)
{
    const assay_parallel_config *p = &e->grid.p;
    ASSAY_TRY(gpu_pipeline_schedule(p->pipeline_model_parallel_size, p->virtual_pipeline_model_parallel_size,
                                    assay_grid_coord(&e->grid, ASSAY_AXIS_PP, e->env.rank),
                                    e->share.n_microbatches, &e->schedule));
    if (gpu_fault_switch(&e->run, GPU_SWITCH_FORWARDS_FIRST))
        forwards_first(&e->schedule);
    return ASSAY_OK;
}

static assay_status open_device(gpu_engine *e)
{
    gpu_run *run = &e->run;
    int devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    ASSAY_CHECK(found == cudaSuccess && devices > 0, ASSAY_CUDA, "no CUDA device answers: %s",
                cudaGetErrorString(found));
    ASSAY_TRY(gpu_ctx_init(&run->ctx, e->env.local_rank % devices, 0));
    e->ctx_ready = true;
    ASSAY_TRY(gpu_ctx_set_variants(&run->ctx, e->options.variant));
    CUDA_TRY(cudaStreamCreateWithFlags(&run->comm_stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&run->compute_done, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&run->comm_done, cudaEventDisableTiming));
    e->comm_ready = true;
    ASSAY_TRY(gpu_comm_create(&run->comm, &e->env, &e->grid, false));
    gpu_comm_limit(&run->comm, e->options.collective_timeout);
    return ASSAY_OK;
}

static assay_status trace_header(const gpu_engine *e, json_t **out)
{
    const gpu_run *run = &e->run;
    json_t *model = NULL;
    ASSAY_TRY(assay_config_to_json(&e->config, &model));
    char layout[ASSAY_LAYOUT_TEXT];
    assay_layout_format(&e->grid.p, layout);
    *out = json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:{s:b, s:I, s:I, s:I, s:I}}", "engine",
                     run->ctx.simulated ? "sim" : "gpu", "tier", run->ctx.simulated ? "sim" : "gpu", "device",
                     run->ctx.device_name, "precision", assay_precision_name(e->options.precision), "layout",
                     layout, "options", assay_train_options_to_json(&e->options, ASSAY_FOR_STEP), "model",
                     model, "batch", "training", e->batches.training, "steps", (json_int_t)e->batches.steps,
                     "microbatches", (json_int_t)e->batches.microbatches, "b", (json_int_t)e->batches.b, "s",
                     (json_int_t)e->batches.s);
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "trace: header");
    return ASSAY_OK;
}

static assay_status open_trace(gpu_engine *e)
{
    json_t *header = NULL;
    if (e->options.trace[0] == '\0')
        return ASSAY_OK;
    ASSAY_TRY(trace_header(e, &header));
    const assay_status st = assay_trace_writer_open(&e->run.trace, e->options.trace, e->env.rank,
                                                    e->env.world, header, e->options.trace_hash_only);
    json_decref(header);
    return st;
}

/* Sizes first, then one allocation. */
static assay_status allocate_state(gpu_engine *e)
{
    gpu_model *m = &e->model;
    gpu_optimizer *o = &e->optimizer;
    m->state = (gpu_arena){.counting = true};
    ASSAY_TRY(gpu_optimizer_alloc(o));
    const size_t bytes = m->state.peak;
    m->state = (gpu_arena){0};
    ASSAY_TRY(gpu_arena_create(&m->state, bytes));
    ASSAY_TRY(gpu_optimizer_alloc(o));
    ASSAY_TRY(gpu_grad_buffer_clear(&o->buffer[0], m));
    return gpu_grad_buffer_clear(&o->buffer[1], m);
}

static assay_status build(gpu_engine *e)
{
    gpu_model *m = &e->model;
    ASSAY_TRY(gpu_model_create(m, &e->run, &e->config, &e->grid, &e->options));
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    m->host_threads = (int)(processors / (e->env.local_world > 0 ? e->env.local_world : 1));
    ASSAY_TRY(gpu_model_set_batch(m, &e->batches, &e->share));
    for (int c = 0; c < m->n_chunks; c++)
        m->chunks[c].n_in_flight = gpu_pipeline_in_flight(&e->schedule, c);
    ASSAY_TRY(gpu_optimizer_create(&e->optimizer, m, e->batches.training));
    ASSAY_TRY(allocate_state(e));
    ASSAY_TRY(gpu_model_weights(m, e->options.model, gpu_optimizer_set_weight, &e->optimizer));
    if (e->options.load[0] != '\0')
        ASSAY_TRY(gpu_checkpoint_load(e, e->options.load, &e->first_step));
    ASSAY_CHECK(e->first_step <= e->last_step, ASSAY_INVALID_ARGUMENT,
                "checkpoint %s is at step %lld, train_iters is %lld", e->options.load,
                (long long)e->first_step, (long long)e->last_step);
    ASSAY_TRY(open_trace(e));
    ASSAY_TRY(gpu_substitute_open(m, &e->options, e->env.rank == 0));
    e->run.step = e->first_step;
    e->loss = calloc((size_t)e->last_step, sizeof *e->loss);
    e->grad_norm = calloc((size_t)e->last_step, sizeof *e->grad_norm);
    e->num_zeros = calloc((size_t)e->last_step, sizeof *e->num_zeros);
    ASSAY_CHECK(e->loss && e->grad_norm && e->num_zeros, ASSAY_OUT_OF_MEMORY, "results of %lld steps",
                (long long)e->last_step);
    ASSAY_TRY(gpu_model_allocate(m));
    e->run.graphs = e->options.enable_cuda_graph;
    return e->options.enable_cuda_graph ? gpu_graphs_create(m, &m->graphs) : ASSAY_OK;
}

/* --- steps -------------------------------------------------------------------------------------------------- */
/* What the host learns of a step, all of which is enqueued: one wait. */
static assay_status read_numbers(gpu_engine *e, int64_t step, int64_t targets)
{
    gpu_run *run = &e->run;
    const int64_t one = 1;
    assay_shard scalar;
    gpu_numbers n;
    ASSAY_TRY(gpu_optimizer_numbers(&e->optimizer, &n));
    e->loss[step] = n.loss / (double)targets;
    assay_shard_whole(&scalar, &one, 1);
    ASSAY_TRY(gpu_trace_host(run, "loss", ASSAY_PHASE_OPTIMIZER, ASSAY_F64, &scalar, &e->loss[step]));
    if (!e->batches.training)
        return ASSAY_OK;
    e->grad_norm[step] = n.grad_norm;
    if (!e->options.log_num_zeros_in_grad)
        return ASSAY_OK;
    e->num_zeros[step] = n.num_zeros;
    return gpu_trace_host(run, "num_zeros_in_grad", ASSAY_PHASE_OPTIMIZER, ASSAY_I64, &scalar, &n.num_zeros);
}

assay_status gpu_engine_step(gpu_engine *e, int64_t step)
{
    gpu_model *m = &e->model;
    gpu_run *run = &e->run;
    const int64_t data = e->repeat ? step % e->batches.steps : step;
    run->step = step;
    run->comm.waits = run->layer_waits = 0;
    run->layer = run->microbatch = -1;
    run->phase = ASSAY_PHASE_FORWARD;
    if (run->trace && step > e->first_step)
        ASSAY_TRY(gpu_model_rope_tables(m));
    const int64_t targets = gpu_step_targets(&e->batches, data);
    m->targets = targets;
    ASSAY_TRY(gpu_optimizer_zero_grad(&e->optimizer));
    ASSAY_TRY(gpu_forward_backward(m, &e->batches, &e->share, &e->schedule, data));
    ASSAY_TRY(gpu_finalize_model_grads(&e->optimizer));
    ASSAY_TRY(gpu_loss_sum(&e->optimizer));
    if (e->batches.training && e->export && step == e->first_step)
        ASSAY_TRY(gpu_export_gradients(e));
    if (e->batches.training)
        ASSAY_TRY(gpu_optimizer_step(&e->optimizer, step));
    ASSAY_TRY(read_numbers(e, step, targets));
    if (e->batches.training && e->export)
        ASSAY_TRY(gpu_export_step(e, step));
    if (run->trace)
        ASSAY_TRY(assay_trace_end_step(run->trace));
    return ASSAY_OK;
}

/* Whether a checkpoint is due behind `done` steps. */
static bool saves_at(const gpu_engine *e, int64_t done)
{
    const assay_train_options *o = &e->options;
    if (o->save[0] == '\0')
        return false;
    if (o->save_after > 0)
        return done == o->save_after;
    return done == e->last_step || (o->save_interval > 0 && done % o->save_interval == 0);
}

/* A step of a run that is watched: its line, and whether any rank was asked to stop, which all must know behind the same step. */
static assay_status watch_step(gpu_engine *e, int64_t step)
{
    const assay_train_options *o = &e->options;
    double asked = assay_stop_asked() > 0 ? 1.0 : 0.0;
    if (!assay_metrics_wanted(o))
        return ASSAY_OK;
    if (e->env.rank == 0)
        ASSAY_TRY(assay_metrics_step(&e->metrics, step, e->loss[step], e->grad_norm[step],
                                     gpu_learning_rate(o, o->train_iters, step)));
    ASSAY_TRY(gpu_world_sum(&e->optimizer, "stop.reduce", &asked));
    e->stopped = asked > 0.0 && step + 1 < e->last_step;
    if (e->stopped)
        e->last_step = step + 1;
    return ASSAY_OK;
}

static assay_status begin_watch(gpu_engine *e)
{
    if (!assay_metrics_wanted(&e->options))
        return ASSAY_OK;
    ASSAY_CHECK(e->batches.training, ASSAY_INVALID_ARGUMENT,
                "log_interval and metrics need a training batch [steps,microbatches,b,s], %s holds [b,s]",
                e->options.batch);
    assay_stop_catch();
    if (e->env.rank > 0)
        return ASSAY_OK;
    if (e->run_id[0] == '\0')
        assay_metrics_new_run(e->run_id);
    return assay_metrics_open(&e->metrics, &e->options, e->run_id, e->first_step, e->last_step, &e->batches);
}

static assay_status train_steps(gpu_engine *e)
{
    const assay_train_options *o = &e->options;
    ASSAY_TRY(begin_watch(e));
    for (int64_t step = e->first_step; step < e->last_step; step++) {
        ASSAY_TRY(gpu_engine_step(e, step));
        ASSAY_TRY(watch_step(e, step));
        ASSAY_TRY(assay_async_save_poll(&e->saving));
        if (saves_at(e, step + 1))
            ASSAY_TRY(gpu_checkpoint_save(e, step + 1));
    }
    if (e->stopped && e->env.rank == 0)
        fprintf(stderr, "stopped after iteration %lld of %lld; %s%s\n", (long long)e->last_step,
                (long long)o->train_iters,
                o->save[0] != '\0' ? "its checkpoint lies in " : "nothing was to be saved", o->save);
    /* Nothing left to train: load and save is how a checkpoint moves to another layout. */
    if (o->save[0] != '\0' && o->save_interval == 0 && e->first_step >= e->last_step && e->batches.training)
        ASSAY_TRY(gpu_checkpoint_save(e, e->first_step));
    return assay_async_save_wait(&e->saving);
}

/* --- the verb ----------------------------------------------------------------------------------------------- */
void gpu_engine_close(gpu_engine *e, bool failed)
{
    if (e == NULL)
        return;
    assay_async_save_leave(&e->saving);
    assay_metrics_close(&e->metrics);
    assay_trace_writer_destroy(e->run.trace);
    gpu_export_destroy(e);
    if (!failed && e->ctx_ready)
        (void)cudaStreamSynchronize(e->run.ctx.stream);
    if (e->comm_ready)
        gpu_comm_destroy(&e->run.comm, failed);
    gpu_optimizer_destroy(&e->optimizer);
    if (e->ctx_ready)
        gpu_graphs_destroy(e->model.graphs, &e->model);
    gpu_model_destroy(&e->model);
    if (e->run.compute_done)
        (void)cudaEventDestroy(e->run.compute_done);
    if (e->run.comm_done)
        (void)cudaEventDestroy(e->run.comm_done);
    gpu_beside_destroy(&e->run); /* begun inside the side, where both are open */
    gpu_side_destroy(&e->run);
    if (e->run.comm_stream)
        (void)cudaStreamDestroy(e->run.comm_stream);
    if (e->ctx_ready)
        gpu_ctx_destroy(&e->run.ctx);
    assay_batches_close(&e->batches);
    gpu_pipeline_schedule_free(&e->schedule);
    gpu_substitute_close(&e->run);
    gpu_fault_destroy(e->run.fault);
    free(e->run.host);
    free(e->loss);
    free(e->grad_norm);
    free(e->num_zeros);
    free(e);
}

/* How the passes of rank 0's microbatches ran. */
static void tell_graphs(const gpu_engine *e)
{
    if (e->model.graphs == NULL || e->env.rank > 0)
        return;
    const gpu_graph_counts n = gpu_graphs_counts(e->model.graphs);
    fprintf(stderr, "graphs: %lld passes captured, %lld launched again, %lld one by one\n",
            (long long)n.captured, (long long)n.launched, (long long)n.one_by_one);
}

/* Planted fault: --out will have twice the loss. */
static void double_losses(gpu_engine *e)
{
    const double factor = gpu_fault_switch(&e->run, GPU_SWITCH_DOUBLED_LOSS) ? 2.0 : 1.0;
    for (int64_t i = e->first_step; i < e->last_step; i++)
        e->loss[i] *= factor;
}

assay_status gpu_engine_open(const assay_train_options *options, bool repeat, gpu_engine **out)
{
    assay_status st = ASSAY_OK;
    gpu_engine *e = calloc(1, sizeof *e);
    *out = NULL;
    ASSAY_CHECK(e, ASSAY_OUT_OF_MEMORY, "engine: %zu bytes", sizeof *e);
    e->options = *options;
    e->repeat = repeat;
    ASSAY_TRY_GOTO(check_options(options), st, fail);
    ASSAY_TRY_GOTO(assay_rank_env_read(&e->env), st, fail);
    ASSAY_TRY_GOTO(assay_outputs_check(options), st, fail);
    ASSAY_TRY_GOTO(read_inputs(e), st, fail);
    ASSAY_TRY_GOTO(plant_fault(e), st, fail);
    ASSAY_TRY_GOTO(make_schedule(e), st, fail);
    ASSAY_TRY_GOTO(open_device(e), st, fail);
    ASSAY_TRY_GOTO(build(e), st, fail);
    *out = e;
    return ASSAY_OK;
fail:
    gpu_engine_close(e, true);
    return st;
}

assay_status gpu_train(const assay_train_options *options)
{
    assay_status st = ASSAY_OK;
    gpu_engine *e;
    ASSAY_TRY(gpu_engine_open(options, false, &e));
    if (e->options.out[0] != '\0')
        ASSAY_TRY_GOTO(gpu_export_open(e), st, done);
    ASSAY_TRY_GOTO(train_steps(e), st, done);
    for (int k = 0; k < 2; k++) /* the last step's gathers have no forward that waits for them */
        ASSAY_TRY_GOTO(gpu_finish_param_sync(&e->optimizer.buffer[k], &e->model), st, done);
    double_losses(e);
    tell_graphs(e);
    if (!e->stopped && e->run.rules == NULL) /* a rule may take the fault's kernel away */
        ASSAY_TRY_GOTO(gpu_fault_check_met(&e->run), st, done);
    if (!e->stopped)
        ASSAY_TRY_GOTO(gpu_rules_check_met(&e->run), st, done);
    if (e->export && !e->stopped)
        ASSAY_TRY_GOTO(gpu_export_finish(e), st, done);
    if (e->run.trace)
        ASSAY_TRY_GOTO(assay_trace_writer_close(e->run.trace), st, done);
done:
    gpu_engine_close(e, st != ASSAY_OK);
    return st;
}
