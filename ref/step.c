/* The body of `assay step --engine ref`. */
#include "ref/ref.h"

#include "core/files/tensorwriter.h"
#include "core/run/inputs.h"
#include "core/run/outputs.h"
#include "core/run/recompute.h"
#include "core/run/state.h"
#include <stdlib.h>
#include <string.h>

/* Everything that one run needs, loaded from the paths of the options. */
typedef struct step_inputs {
    assay_model_config *config;
    assay_model_spec *spec;
    assay_batches batches;
    assay_train_options options; /* with what the model's folder says */
    double **weights;
    assay_trace_writer *trace;
    ref_run_config run;
    assay_metrics metrics;
    assay_checkpoint *checkpoint; /* of load */
} step_inputs;

static assay_status open_trace(step_inputs *in, const assay_train_options *o)
{
    assay_status st = ASSAY_OK;
    json_t *model = NULL, *header = NULL;
    char layout[ASSAY_LAYOUT_TEXT];
    if (!o->trace[0])
        return ASSAY_OK;
    ASSAY_CHECK(in->run.grid.world == 1, ASSAY_UNSUPPORTED,
                "trace: the reference traces whole tensors of an unsharded run, found a layout of %d ranks",
                in->run.grid.world);
    assay_layout_format(&in->run.grid.p, layout);
    ASSAY_TRY(assay_config_to_json(in->config, &model));
    header = json_pack("{s:s, s:s, s:s, s:o}", "engine", "ref", "precision",
                       assay_precision_name(o->precision), "layout", layout, "model", model);
    ASSAY_CHECK(header, ASSAY_OUT_OF_MEMORY, "out of memory");
    if (o->draw_weights >= 0)
        json_object_set_new(header, "draw_weights", json_integer(o->draw_weights));
    st = assay_trace_writer_open(&in->trace, o->trace, 0, 1, header, o->trace_hash_only);
    json_decref(header);
    in->run.trace = in->trace;
    return st;
}

static assay_status open_metrics(step_inputs *in)
{
    const assay_train_options *o = &in->options;
    char run[ASSAY_RUN_ID];
    if (!assay_metrics_wanted(o))
        return ASSAY_OK;
    ASSAY_CHECK(in->batches.training, ASSAY_INVALID_ARGUMENT,
                "log_interval and metrics need a training batch [steps,microbatches,b,s], %s holds [b,s]",
                o->batch);
    assay_metrics_new_run(run);
    if (in->checkpoint != NULL && !o->finetune) /* the run goes on under its name */
        ASSAY_TRY(assay_json_get_string(assay_checkpoint_header(in->checkpoint), "run", false, o->load, run,
                                        sizeof run));
    in->run.metrics = &in->metrics;
    return assay_metrics_open(&in->metrics, o, run, in->run.first_step,
                              o->train_iters > 0 ? o->train_iters : in->batches.steps, &in->batches);
}

static assay_status warn(void *user, const char *tensor, const char *text)
{
    const assay_train_options *o = user;
    fprintf(stderr, "WARNING: %s: %s: %s\n", o->model, tensor, text);
    return ASSAY_OK;
}

/* Opens the checkpoint and holds the run to what it says. */
static assay_status open_checkpoint(step_inputs *in, const assay_train_options *o)
{
    if (!o->load[0])
        return ASSAY_OK;
    ASSAY_CHECK(in->batches.training, ASSAY_INVALID_ARGUMENT,
                "load: expected a training batch [steps,microbatches,b,s], %s holds [b,s]", o->batch);
    assay_train_options asked = in->options;
    asked.train_iters = o->train_iters > 0 ? o->train_iters : in->batches.steps;
    ASSAY_TRY(assay_state_load(&asked, in->spec, &in->batches, 0, 1, &in->checkpoint, &in->run.first_step));
    in->run.load = in->checkpoint;
    return ASSAY_OK;
}

static assay_status load(step_inputs *in, const assay_train_options *o)
{
    assay_parallel_config layout;
    assay_recompute recompute;
    ASSAY_CHECK(!o->fault[0], ASSAY_UNSUPPORTED, "fault: the reference has no planted faults, found '%s'",
                o->fault);
    ASSAY_CHECK(!o->substitute[0] && !o->substitute_values[0], ASSAY_UNSUPPORTED,
                "substitute: the reference's results are what others are replaced by");
    ASSAY_TRY(assay_train_options_check(o));
    ASSAY_TRY(assay_outputs_check(o));
    in->config = calloc(1, sizeof *in->config);
    ASSAY_CHECK(in->config, ASSAY_OUT_OF_MEMORY, "out of memory");
    ASSAY_TRY(assay_config_load(o->model, in->config));
    in->options = *o;
    ASSAY_TRY(assay_inputs_take_config(&in->options, in->config));
    ASSAY_TRY(assay_inputs_spec(&in->options, in->config, &in->spec));
    ASSAY_TRY(assay_layout_parse(o->layout[0] ? o->layout : "1", &layout));
    ASSAY_TRY(
        assay_recompute_from_options(&recompute, o)); /* of the engines; nonsense is refused here, too */
    in->run = (ref_run_config){.spec = in->spec,
                               .options = &in->options,
                               .batches = &in->batches,
                               .policy = {.precision = o->precision},
                               .want_logits = true};
    ASSAY_TRY(assay_grid_make(&layout, &in->run.grid));
    ASSAY_TRY(assay_grid_check_model(&in->run.grid, in->config));
    ASSAY_TRY(assay_batches_open(&in->batches, o->batch, in->config->vocab_size));
    ASSAY_TRY(assay_inputs_layout(o->layout[0] ? o->layout : "1", &in->options, in->config,
                                  in->batches.microbatches, in->batches.b));
    ASSAY_TRY(ref_weights_load(in->spec, o->model, assay_inputs_load(o), o->draw_weights, &in->weights));
    ASSAY_TRY(ref_weights_not_finite(in->spec, in->weights, warn, (void *)(uintptr_t)o));
    if (o->draw_weights >= 0)
        fprintf(stderr, "weights: drawn from seed %lld; %s holds a configuration alone\n",
                (long long)o->draw_weights, o->model);
    in->run.save = o->save;
    ASSAY_CHECK(!o->save[0] || in->batches.training, ASSAY_INVALID_ARGUMENT,
                "save: expected a training batch [steps,microbatches,b,s], %s holds [b,s]", o->batch);
    ASSAY_TRY(open_checkpoint(in, o));
    in->run.want_grads = !in->batches.training;
    in->run.want_states = in->run.want_first_grads = in->batches.training;
    ASSAY_TRY(open_metrics(in));
    return open_trace(in, o);
}

static void unload(step_inputs *in)
{
    assay_metrics_close(&in->metrics);
    assay_checkpoint_close(in->checkpoint);
    assay_trace_writer_destroy(in->trace);
    if (in->spec)
        ref_weights_free(in->spec, in->weights);
    assay_batches_close(&in->batches);
    assay_spec_destroy(in->spec);
    free(in->config);
}

/* One canonical tensor as the Hugging Face tensors of the folder: PREFIX.<name on disk>. */
static assay_status write_parts(assay_tensorwriter *w, const assay_param_spec *p, const double *canonical,
                                const char *prefix)
{
    for (int i = 0; i < p->n_parts; i++) {
        const assay_hf_part *h = &p->parts[i];
        char name[ASSAY_NAME + 16];
        int64_t count;
        ASSAY_CHECK(assay_shape_count(h->shape, h->ndim, &count), ASSAY_LIMIT, "%s: too many elements",
                    h->name);
        double *part = malloc(((size_t)count + 1) * sizeof *part);
        ASSAY_CHECK(part, ASSAY_OUT_OF_MEMORY, "%s: out of memory", h->name);
        ref_hf_extract(p, i, canonical, part);
        snprintf(name, sizeof name, "%s.%s", prefix, h->name);
        const assay_status st = assay_tensorwriter_add_copy(w, name, ASSAY_F64, h->shape, h->ndim, part);
        free(part);
        ASSAY_TRY(st);
    }
    return ASSAY_OK;
}

/* One of the losses of routers, [steps, layers]. */
static assay_status write_layer_losses(assay_tensorwriter *w, const ref_run_result *r, int k)
{
    const int64_t shape[2] = {r->steps - r->first_step, r->layers}, n = shape[0] * shape[1];
    const double *first = r->layer_losses + r->first_step * r->layers * ASSAY_ROUTER_LOSSES;
    double *one = calloc((size_t)n + 1, sizeof *one);
    ASSAY_CHECK(one, ASSAY_OUT_OF_MEMORY, "out of memory: losses of %lld layers", (long long)n);
    for (int64_t i = 0; i < n; i++)
        one[i] = first[i * ASSAY_ROUTER_LOSSES + k];
    const assay_status st =
        assay_tensorwriter_add_copy(w, assay_router_loss_name(k), ASSAY_F64, shape, 2, one);
    free(one);
    return st;
}

/* What a training run reports of its steps. */
static assay_status write_series(assay_tensorwriter *w, const step_inputs *in, const ref_run_result *r)
{
    const assay_train_options *o = in->run.options;
    assay_train_options ran = *o;
    ran.train_iters = r->steps;
    const int64_t n = r->steps - r->first_step;
    double *rates = calloc((size_t)n + 1, sizeof *rates);
    ASSAY_CHECK(rates, ASSAY_OUT_OF_MEMORY, "out of memory: %lld steps", (long long)n);
    for (int64_t i = 0; i < n; i++)
        rates[i] = ref_learning_rate(&ran, r->first_step + i);
    const assay_status st = assay_tensorwriter_add_copy(w, "learning_rate", ASSAY_F64, &n, 1, rates);
    free(rates);
    ASSAY_TRY(st);
    ASSAY_TRY(assay_tensorwriter_add_ref(w, "grad_norm", ASSAY_F64, &n, 1, r->grad_norm + r->first_step));
    if (o->log_num_zeros_in_grad)
        ASSAY_TRY(assay_tensorwriter_add_ref(w, "num_zeros_in_grad", ASSAY_I64, &n, 1,
                                             r->num_zeros_in_grad + r->first_step));
    for (int k = 0; k < ASSAY_ROUTER_LOSSES && in->config->num_moe_experts > 0; k++)
        if (assay_router_loss_coeff(o, k) > 0.0)
            ASSAY_TRY(write_layer_losses(w, r, k));
    return ASSAY_OK;
}

static assay_status write_result(const step_inputs *in, const ref_run_result *r, const char *path)
{
    assay_status st = ASSAY_OK;
    assay_tensorwriter *w = NULL;
    const int64_t n = r->steps - r->first_step;
    ASSAY_TRY(assay_tensorwriter_create(&w, path));
    ASSAY_TRY_GOTO(assay_tensorwriter_metadata(w, "engine", "ref"), st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "loss", ASSAY_F64, &n, 1, r->loss + r->first_step), st,
                   done);
    if (in->batches.training)
        ASSAY_TRY_GOTO(write_series(w, in, r), st, done);
    for (int64_t i = 0; i < r->n_tensors; i++) {
        const ref_named_tensor *t = &r->tensors[i];
        const assay_param_spec *p = assay_spec_find(in->spec, t->name);
        if (strcmp(t->kind, "logits") == 0)
            ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, "logits", ASSAY_F64, t->shape, t->ndim, t->data), st,
                           done);
        else if (p) /* gradients, masters, moments */
            ASSAY_TRY_GOTO(
                write_parts(w, p, t->data, strcmp(t->kind, "expert_bias") == 0 ? "weight" : t->kind), st,
                done);
    }
    ASSAY_TRY_GOTO(assay_tensorwriter_finish(w), st, done);
done:
    assay_tensorwriter_destroy(w);
    return st;
}

assay_status ref_step(const assay_train_options *options)
{
    assay_status st = ASSAY_OK;
    step_inputs in = {0};
    ref_run_result result = {0};
    ASSAY_CHECK(options->out[0], ASSAY_INVALID_ARGUMENT, "out: expected the path of the result, found none");
    ASSAY_TRY_GOTO(load(&in, options), st, done);
    ASSAY_TRY_GOTO(ref_run(&in.run, in.weights, &result), st, done);
    if (in.trace)
        ASSAY_TRY_GOTO(assay_trace_writer_close(in.trace), st, done);
    ASSAY_TRY_GOTO(write_result(&in, &result, options->out), st, done);
done:
    ref_run_result_free(&result);
    unload(&in);
    return st;
}
