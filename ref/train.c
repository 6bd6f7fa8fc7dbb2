/* The training loop: forward and backward of every microbatch, reduction, norm, clip, AdamW. */
#include "core/files/checkpoint_async.h"
#include "core/run/inputs.h"
#include "core/run/stop.h"
#include "ref/checkpoint.h"
#include "ref/fast/blas_memory.h"
#include "ref/parallel/pipeline.h"
#include "ref/parallel/sharding.h"

#include <cblas.h>
#include <malloc.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* --- result ------------------------------------------------------------------------------------------------- */

static assay_status add_tensor(ref_run_result *result, const char *kind, const char *name, int64_t step,
                               const int64_t *shape, int ndim, ref_named_tensor **out)
{
    int64_t count;
    ASSAY_CHECK(assay_shape_count(shape, ndim, &count), ASSAY_LIMIT, "%s: too many elements", name);
    ref_named_tensor *grown =
        realloc(result->tensors, (size_t)(result->n_tensors + 1) * sizeof *result->tensors);
    ASSAY_CHECK(grown, ASSAY_OUT_OF_MEMORY, "out of memory: %lld tensors", (long long)result->n_tensors);
    result->tensors = grown;
    ref_named_tensor *t = &grown[result->n_tensors];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->kind, sizeof t->kind, "%s", kind);
    t->step = step;
    t->ndim = ndim;
    memcpy(t->shape, shape, (size_t)ndim * sizeof *shape);
    t->data = calloc((size_t)count + 1, sizeof *t->data);
    ASSAY_CHECK(t->data, ASSAY_OUT_OF_MEMORY, "%s: out of memory: %lld elements", name, (long long)count);
    result->n_tensors++;
    *out = t;
    return ASSAY_OK;
}

/* Which parameters have a tensor of a kind: all weights, those with a gradient, buffers. */
typedef enum { OF_WEIGHTS, OF_GRADIENTS, OF_BUFFERS } state_of;

static bool has_state(const assay_param_spec *p, state_of of)
{
    return of == OF_WEIGHTS ? p->trained : of == OF_GRADIENTS ? assay_param_needs_grad(p) : !p->trained;
}

static assay_status add_states(ref_engine *e, ref_run_result *result, const char *kind, int what, state_of of,
                               int64_t step)
{
    for (int64_t i = 0; i < e->spec->n_params; i++) {
        const assay_param_spec *p = &e->spec->params[i];
        ref_named_tensor *t;
        if (!has_state(p, of))
            continue;
        ASSAY_TRY(add_tensor(result, kind, p->name, step, p->shape, p->ndim, &t));
        ASSAY_TRY(ref_assemble(e, i, what, t->data));
    }
    return ASSAY_OK;
}

static assay_status add_final(ref_engine *e, ref_run_result *result)
{
    const int64_t last = result->steps - 1;
    if (e->logits) {
        const int64_t shape[3] = {e->run->batches->b, e->seq, e->config->vocab_size};
        ref_named_tensor *t;
        ASSAY_TRY(add_tensor(result, "logits", "logits", 0, shape, 3, &t));
        memcpy(t->data, e->logits, (size_t)(shape[0] * shape[1] * shape[2]) * sizeof(double));
    }
    if (!e->run->want_states)
        return ASSAY_OK;
    ASSAY_TRY(add_states(e, result, "weight", REF_STATE_MAIN, OF_WEIGHTS, last));
    for (int k = 0; k < e->n_states; k++)
        ASSAY_TRY(add_states(e, result, e->state_names[k], REF_STATE_OPTIMIZER + k, OF_GRADIENTS, last));
    return add_states(e, result, "expert_bias", REF_STATE_MAIN, OF_BUFFERS, last);
}

const ref_named_tensor *ref_result_find(const ref_run_result *r, const char *kind, const char *name,
                                        int64_t step)
{
    for (int64_t i = 0; i < r->n_tensors; i++)
        if (strcmp(r->tensors[i].kind, kind) == 0 && strcmp(r->tensors[i].name, name) == 0 &&
            r->tensors[i].step == step)
            return &r->tensors[i];
    return NULL;
}

void ref_run_result_free(ref_run_result *r)
{
    for (int64_t i = 0; i < r->n_tensors; i++)
        free(r->tensors[i].data);
    free(r->tensors);
    free(r->loss);
    free(r->grad_norm);
    free(r->num_zeros_in_grad);
    free(r->aux_loss);
    free(r->z_loss);
    free(r->seq_aux_loss);
    free(r->global_aux_loss);
    free(r->layer_losses);
    *r = (ref_run_result){0};
}

/* --- step --------------------------------------------------------------------------------------------------- */

static void begin_step(ref_engine *e)
{
    for (int r = 0; r < e->grid.world; r++)
        for (int64_t i = 0; i < e->spec->n_params; i++) {
            const ref_param *p = &e->ranks[r].params[i];
            if (p->grad)
                memset(p->grad, 0, (size_t)p->count * sizeof(double));
            else if (p->own_grad)
                memset(p->own_grad, 0, (size_t)p->own_count * sizeof(double));
        }
}

int64_t ref_step_targets(const assay_batches *b, int64_t step)
{
    int64_t n = 0;
    for (int64_t m = 0; m < b->microbatches; m++)
        n += ref_microbatch_targets(b, step, m);
    return n;
}

int64_t ref_microbatch_targets(const assay_batches *b, int64_t step, int64_t microbatch)
{
    const int64_t *label = assay_batches_labels(b, step, microbatch);
    int64_t n = 0;
    for (int64_t t = 0; t < b->b; t++)
        for (int64_t s = b->shifted ? 0 : 1; s < b->s; s++)
            n += label[t * b->s + s] != ASSAY_IGNORE_INDEX;
    return n;
}

/* One number for the whole step, all microbatches and dp ranks: the token-mean contract. */
static assay_status count_targets(ref_engine *e, int64_t step)
{
    const int64_t n = ref_step_targets(e->run->batches, step);
    ASSAY_CHECK(n > 0, ASSAY_INVALID_ARGUMENT,
                "labels: step %lld: expected at least one label that is not -100 behind the first position "
                "(Megatron-LM's form: anywhere), "
                "found none",
                (long long)step);
    e->targets = n;
    return ASSAY_OK;
}

/* One number for each layer: the sum of all ranks' parts over coefficient and microbatches, Megatron-LM's log. */
static void report_layers(const ref_engine *e, ref_run_result *result, int64_t step)
{
    const double per_microbatch = 1.0 / (double)e->run->batches->microbatches;
    const int64_t layers = e->config->num_layers, n = layers * REF_LOSSES;
    for (int64_t i = 0; i < n; i++) {
        const double coeff = assay_router_loss_coeff(&e->options, (int)(i % REF_LOSSES));
        double sum = 0.0;
        for (int r = 0; r < e->grid.world; r++)
            for (int64_t m = 0; m < e->microbatches; m++)
                sum += e->ranks[r].aux_losses[m * n + i];
        result->layer_losses[step * n + i] = coeff > 0.0 ? sum / coeff * per_microbatch : 0.0;
    }
}

static void report_losses(const ref_engine *e, ref_run_result *result, int64_t step)
{
    const int last_stage = e->grid.p.pipeline_model_parallel_size - 1;
    double loss = 0.0, router[REF_LOSSES] = {0.0};
    for (int r = 0; r < e->grid.world; r++) {
        const ref_rank *rank = &e->ranks[r];
        double sum = 0.0, parts[REF_LOSSES] = {0.0};
        for (int64_t m = 0; m < e->microbatches; m++)
            sum += rank->loss_sums[m];
        for (int64_t i = 0; i < e->microbatches * e->config->num_layers * REF_LOSSES; i++)
            parts[i % REF_LOSSES] += rank->aux_losses[i];
        if (rank->at.pp == last_stage && rank->at.tp == 0)
            loss += sum; /* equal on all tp ranks */
        for (int k = 0; k < REF_LOSSES; k++)
            router[k] += parts[k];
    }
    const double per_microbatch = 1.0 / (double)e->run->batches->microbatches;
    result->loss[step] = loss / (double)e->targets;
    result->aux_loss[step] = router[REF_LOSS_AUX] * per_microbatch;
    result->z_loss[step] = router[REF_LOSS_Z] * per_microbatch;
    result->seq_aux_loss[step] = router[REF_LOSS_SEQ_AUX] * per_microbatch;
    result->global_aux_loss[step] = router[REF_LOSS_GLOBAL_AUX] * per_microbatch;
}

/* On one rank the owned range is all of it. */
static const double *whole_weight(const ref_param *p)
{
    return p->own_weight ? p->own_weight : p->weight;
}

static assay_status trace_states(const ref_engine *e, int64_t step)
{
    char name[ASSAY_NAME + 16];
    for (int64_t i = 0; i < e->spec->n_params; i++) {
        const assay_param_spec *spec = &e->spec->params[i];
        const ref_param *p = &e->ranks[0].params[i];
        /* master, states, weight */
        for (int j = 0; j < e->n_states + 2; j++) {
            const bool master = j == 0, weight = j == e->n_states + 1;
            const double *x = master ? p->main_param : weight ? whole_weight(p) : p->states[j - 1];
            if (!x)
                continue;
            snprintf(name, sizeof name, "%s%s%s", spec->name, weight ? "" : ".",
                     weight   ? ""
                     : master ? "main_param"
                              : e->state_names[j - 1]);
            ASSAY_TRY(ref_trace_tensor(e, name, ASSAY_PHASE_OPTIMIZER, step, -1, spec->shape, spec->ndim, x,
                                       false));
        }
    }
    return ASSAY_OK;
}

static assay_status trace_step(const ref_engine *e, const ref_run_result *result, int64_t step, bool training)
{
    const int64_t one = 1;
    if (!e->run->trace)
        return ASSAY_OK;
    ASSAY_TRY(
        ref_trace_tensor(e, "loss", ASSAY_PHASE_OPTIMIZER, step, -1, &one, 1, result->loss + step, false));
    ASSAY_TRY(ref_trace_tensor(e, "grad_norm", ASSAY_PHASE_OPTIMIZER, step, -1, &one, 1,
                               result->grad_norm + step, false));
    if (training)
        ASSAY_TRY(trace_states(e, step));
    return assay_trace_end_step(e->run->trace);
}

/* Its own masters are kept in the result, the next step has those of somebody else. */
static assay_status go_on_from_masters(ref_engine *e, ref_run_result *result, int64_t step)
{
    if (e->run->want_states)
        ASSAY_TRY(add_states(e, result, "weight", REF_STATE_MAIN, OF_WEIGHTS, step));
    ref_replay_masters(e, step);
    return ASSAY_OK;
}

static assay_status run_step(ref_engine *e, ref_run_result *result, int64_t step)
{
    const bool training = e->run->batches->training;
    begin_step(e);
    ASSAY_TRY(count_targets(e, step));
    ASSAY_TRY(ref_pipeline_step(e, step));
    ASSAY_TRY(ref_reduce_gradients(e, step));
    report_losses(e, result, step);
    report_layers(e, result, step);
    result->grad_norm[step] = ref_gradient_norm(e);
    result->num_zeros_in_grad[step] = ref_gradient_zeros(e);
    if (e->run->want_grads || (e->run->want_first_grads && step == e->run->first_step))
        ASSAY_TRY(add_states(e, result, "grad", REF_STATE_GRAD, OF_GRADIENTS, step));
    if (training) {
        const double clip = ref_clip_scale(result->grad_norm[step], e->options.clip_grad);
        ref_update_params(e, step, ref_learning_rate(&e->options, step), clip);
        ASSAY_TRY(ref_update_expert_bias(e, step));
        if (e->run->master && step + 1 < result->steps)
            ASSAY_TRY(go_on_from_masters(e, result, step));
    }
    return trace_step(e, result, step, training);
}

/* --- run ---------------------------------------------------------------------------------------------------- */

static assay_status check_run(const ref_run_config *c)
{
    ASSAY_TRY(assay_recipe_check_plain(assay_recipe_of(c->policy.precision), "the reference"));
    ASSAY_CHECK(c->grid.world == 1 || !c->trace, ASSAY_UNSUPPORTED,
                "the reference traces whole tensors of an unsharded run, found a layout of %d ranks",
                c->grid.world);
    ASSAY_CHECK(c->grid.world == 1 || (!c->clip && !c->master), ASSAY_UNSUPPORTED,
                "clips and masters are replayed in an unsharded run, found a layout of %d ranks",
                c->grid.world);
    ASSAY_CHECK(c->grid.world == 1 || c->policy.perturb == 0.0, ASSAY_UNSUPPORTED,
                "perturbed runs are unsharded (replicas would differ), found a layout of %d ranks",
                c->grid.world);
    ASSAY_CHECK(c->policy.perturb >= 0.0 && isfinite(c->policy.perturb), ASSAY_INVALID_ARGUMENT,
                "perturb: expected a number >= 0, found %g", c->policy.perturb);
    ASSAY_TRY(assay_inputs_documents(c->options, c->batches->position_ids != NULL,
                                     c->grid.p.context_parallel_size));
    return assay_inputs_steps(c->options, c->batches->training, c->batches->steps);
}

/* A run that is watched says its step, and ends behind it when a signal asked for that. */
static assay_status watch_step(ref_engine *e, const ref_run_result *result, int64_t step)
{
    assay_metrics *m = e->run->metrics;
    const bool asked = m != NULL && assay_stop_asked() != 0;
    const bool saves = ref_checkpoint_due(e, asked ? result->steps : step + 1, result->steps);
    if (m != NULL)
        ASSAY_TRY(assay_metrics_step(m, step, result->loss[step], result->grad_norm[step],
                                     ref_learning_rate(&e->options, step)));
    ASSAY_TRY(assay_async_save_poll(&e->saving));
    if (saves)
        ASSAY_TRY(ref_checkpoint_save(e, step + 1, result->loss[step]));
    if (asked)
        ASSAY_TRY(assay_async_save_wait(&e->saving));
    ASSAY_CHECK(!asked || step + 1 == result->steps, ASSAY_STOPPED,
                "stopped after iteration %lld of %lld; %s%s%s%s", (long long)step + 1,
                (long long)result->steps, saves ? "its checkpoint lies in " : "nothing was to be saved",
                saves ? e->run->save : "", m->file != NULL ? ": what is on disk is " : "",
                m->file != NULL ? e->options.metrics : "");
    return ASSAY_OK;
}

/* Nothing left to train: load and save is how a checkpoint is written again. */
static assay_status save_unchanged(ref_engine *e, int64_t steps)
{
    return e->run->first_step >= steps && e->options.save_interval == 0 && ref_checkpoint_due(e, steps, steps)
               ? ref_checkpoint_save(e, steps, 0.0)
               : ASSAY_OK;
}

static assay_status alloc_result(ref_run_result *result, int64_t steps, int64_t layers)
{
    *result = (ref_run_result){.steps = steps, .layers = layers};
    result->layer_losses = calloc((size_t)(steps * layers) * REF_LOSSES + 1, sizeof(double));
    ASSAY_CHECK(result->layer_losses, ASSAY_OUT_OF_MEMORY, "out of memory: losses of %lld layers",
                (long long)layers);
    result->num_zeros_in_grad = calloc((size_t)steps, sizeof *result->num_zeros_in_grad);
    ASSAY_CHECK(result->num_zeros_in_grad, ASSAY_OUT_OF_MEMORY, "out of memory: %lld steps",
                (long long)steps);
    double **const arrays[] = {&result->loss,   &result->grad_norm,    &result->aux_loss,
                               &result->z_loss, &result->seq_aux_loss, &result->global_aux_loss};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        *arrays[i] = calloc((size_t)steps, sizeof(double));
        ASSAY_CHECK(*arrays[i], ASSAY_OUT_OF_MEMORY, "out of memory: %lld steps", (long long)steps);
    }
    return ASSAY_OK;
}

/* The blocks of one pass serve the next: glibc would hand them back to the kernel in between. */
static void keep_freed_memory(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

assay_status ref_run(const ref_run_config *config, double *const *weights, ref_run_result *result)
{
    assay_status st = ASSAY_OK;
    ref_engine e = {0};
    *result = (ref_run_result){0};
    ASSAY_TRY(check_run(config));
    ASSAY_TRY(ref_blas_reserve(omp_get_max_threads()));
    const int64_t wanted = config->batches->training ? config->options->train_iters : 0;
    const int64_t steps = wanted > 0 ? wanted : config->batches->steps;
    /* One thread in OpenBLAS: bits must not depend on the number of threads (ref/ops/linear.c). */
    const int blas_threads = openblas_get_num_threads();
    openblas_set_num_threads(1);
    keep_freed_memory();
    ASSAY_TRY_GOTO(ref_engine_make(&e, config, weights), st, done);
    ASSAY_TRY_GOTO(ref_layers_create(&e), st, done);
    e.options.train_iters = steps;
    ASSAY_TRY_GOTO(alloc_result(result, steps, e.config->num_layers), st, done);
    result->first_step = config->first_step;
    ASSAY_CHECK_GOTO(config->first_step <= steps, ASSAY_INVALID_ARGUMENT, st, done,
                     "checkpoint: is at step %lld, train_iters is %lld", (long long)config->first_step,
                     (long long)steps);
    if (config->load != NULL)
        ASSAY_TRY_GOTO(ref_checkpoint_load(&e), st, done);
    for (int64_t step = config->first_step; step < steps; step++) {
        ASSAY_TRY_GOTO(run_step(&e, result, step), st, done);
        ASSAY_TRY_GOTO(watch_step(&e, result, step), st, done);
    }
    ASSAY_TRY_GOTO(save_unchanged(&e, steps), st, done);
    ASSAY_TRY_GOTO(assay_async_save_wait(&e.saving), st, done);
    ASSAY_TRY_GOTO(add_final(&e, result), st, done);
    for (int r = 0; r < e.grid.world; r++)
        if (e.ranks[r].most_held > result->most_held)
            result->most_held = e.ranks[r].most_held;
done:
    openblas_set_num_threads(blas_threads);
    assay_async_save_leave(&e.saving);
    ref_engine_free(&e);
    if (st != ASSAY_OK)
        ref_run_result_free(result);
    return st;
}
