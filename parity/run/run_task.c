/* One task of `assay run`: engine runs of one case, precision and layout, then the checks. */
#include "parity/run/run_task.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/files/dataset.h"
#include "core/run/inputs.h"
#include "parity/dry/dry_svg.h"
#include "ref/fast/blas_memory.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What passed since the last call is time of this check: its engine runs and its judging. */
static void lap(parity_task_state *s, parity_check check)
{
    const char *name = parity_check_name(check);
    json_t *all = json_object_get(s->facts, "check_s");
    const double now = assay_monotonic_s(), before = json_number_value(json_object_get(all, name));
    if (all == NULL) {
        all = json_object();
        json_object_set_new(s->facts, "check_s", all);
    }
    json_object_set_new(all, name, json_real(before + now - s->since));
    s->since = now;
}

assay_status parity_task_path(const parity_task *t, const char *name, char out[ASSAY_PATH])
{
    const int n = snprintf(out, ASSAY_PATH, "%s/%s", t->dir, name);
    ASSAY_CHECK(n > 0 && n < ASSAY_PATH, ASSAY_LIMIT, "%s/%s: path too long", t->dir, name);
    return ASSAY_OK;
}

static assay_status model_config_of(const parity_case *c, const char *case_dir, assay_model_config *config)
{
    (void)c;
    char dir[ASSAY_PATH];
    ASSAY_CHECK(snprintf(dir, sizeof dir, "%s/model", case_dir) < ASSAY_PATH, ASSAY_LIMIT, "path too long");
    return assay_config_load(c->model_dir[0] != 0 ? c->model_dir : dir, config);
}

/* Text of the case, NULL when it names none; freed by the caller with assay_dataset_close. */
static assay_status open_data(const parity_case *c, assay_dataset **data, int64_t *vocab)
{
    const char *paths[PARITY_MAX_DATA_PATHS];
    assay_status st = ASSAY_OK;
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    ASSAY_TRY_GOTO(parity_case_config(c, config), st, done);
    *vocab = config->vocab_size;
    if (c->n_data_paths == 0) /* tokens of no text: the whole vocabulary */
        goto done;
    for (int i = 0; i < c->n_data_paths; i++)
        paths[i] = c->data_paths[i];
    if ((st = assay_dataset_open(data, paths, c->n_data_paths)) != ASSAY_OK) {
        assay_context(st, "%s: data: paths", c->file);
        goto done;
    }
    ASSAY_CHECK_GOTO(assay_dataset_vocab(*data) <= config->vocab_size, ASSAY_INVALID_ARGUMENT, st, done,
                     "%s: the data needs a vocabulary of %lld, the model has %lld", c->file,
                     (long long)assay_dataset_vocab(*data), (long long)config->vocab_size);
    ASSAY_CHECK_GOTO(assay_dataset_n_tokens(*data) >= c->seq_length, ASSAY_INVALID_ARGUMENT, st, done,
                     "%s: the data has %lld tokens, fewer than seq_length %lld", c->file,
                     (long long)assay_dataset_n_tokens(*data), (long long)c->seq_length);
done:
    free(config);
    return st;
}

assay_status parity_check_case(const parity_case *c)
{
    assay_dataset *data = NULL;
    int64_t vocab = 0;
    const assay_status st = open_data(c, &data, &vocab);
    assay_dataset_close(data);
    return st;
}

assay_status parity_prepare_case(const parity_case *c, const char *case_dir)
{
    char path[ASSAY_PATH + 32];
    assay_status st = ASSAY_OK;
    assay_dataset *data = NULL;
    int64_t vocab = 0;
    ASSAY_TRY_GOTO(open_data(c, &data, &vocab), st, done);
    if (c->model != NULL) {
        snprintf(path, sizeof path, "%s/model", case_dir);
        ASSAY_TRY_GOTO(assay_mkdir_p(path), st, done);
        snprintf(path, sizeof path, "%s/model/config.json", case_dir);
        ASSAY_TRY_GOTO(assay_json_save(c->model, path), st, done);
    }
    snprintf(path, sizeof path, "%s/batch.safetensors", case_dir);
    st = c->batch_file[0] != 0 ? parity_case_copy_batches(c, vocab, path)
                               : parity_case_write_batches(c, data, vocab, path);
done:
    assay_dataset_close(data);
    return st;
}

parity_result parity_task_failure(parity_check check, const char *claim)
{
    parity_result r;
    parity_result_init(&r);
    r.check = check;
    r.verdict = PARITY_FAIL;
    r.ratio = HUGE_VAL;
    r.n_bad = 1;
    snprintf(r.op, sizeof r.op, "%s", claim);
    return r;
}

assay_status parity_task_engine(parity_task_state *s, const char *name, const assay_train_options *o)
{
    char log[ASSAY_PATH], file[64];
    double wall = 0;
    snprintf(file, sizeof file, "%s.log", name);
    ASSAY_TRY(parity_task_path(s->t, file, log));
    const assay_status st = parity_engine_run(s->e, "step", o, NULL, log, true, s->o->timeout_s, &wall);
    s->engine_s += wall;
    if (st != ASSAY_OK)
        return assay_context(st, "run \"%s\" (log %s)", name, log);
    return ASSAY_OK;
}

static const char *act_of(const parity_task *t)
{
    return t->precision == ASSAY_PRECISION_BF16 ? "BF16" : "F32";
}

static bool wants(const parity_task_state *s, parity_check k)
{
    if (k == PARITY_CHECK_CHECKPOINT && s->t->c->steps == 0)
        return false; /* a batch [b,s] has no optimizer and leaves no checkpoint */
    if (s->o->check[0] != 0)
        return strcmp(s->o->check, parity_check_name(k)) == 0;
    return s->t->c->checks[k];
}

/* A check that could not run is a skip with a name: the exit code becomes 2. */
static assay_status add_skip(parity_task_state *s, parity_check k)
{
    parity_result r;
    parity_result_init(&r);
    r.check = k;
    r.verdict = PARITY_SKIP;
    snprintf(r.message, sizeof r.message, "could not be checked: %.480s", assay_error_message());
    assay_error_clear();
    return parity_report_add(s->report, &r);
}

/* What a check came to that was asked for when the report had `before` claims: one that says nothing has not looked at anything. */
static assay_status close_check(parity_task_state *s, parity_check k, int64_t before, assay_status st)
{
    if (st == ASSAY_OK && parity_report_count(s->report) > before)
        return ASSAY_OK;
    if (st == ASSAY_OK)
        (void)ASSAY_ERROR(ASSAY_NOT_FOUND, "the check made no claim");
    return add_skip(s, k);
}

static bool has_experts(const assay_model_config *c)
{
    bool any = false;
    for (int64_t l = 0; l < c->num_layers && c->num_moe_experts > 0; l++)
        any = any || c->mlp[l] == ASSAY_MLP_MOE;
    return any;
}

/* No verdict holds on weights that are not finite: each such tensor is a failure with its name, before what follows from it. */
static assay_status add_not_finite(void *user, const char *tensor, const char *text)
{
    parity_task_state *s = user;
    parity_result r;
    parity_result_init(&r);
    r.check = PARITY_CHECK_PLAN; /* the first in causal order: the report shows it before what follows */
    r.verdict = PARITY_FAIL;
    r.ratio = HUGE_VAL;
    snprintf(r.tensor, sizeof r.tensor, "%s", tensor);
    snprintf(r.message, sizeof r.message, "the weights in %.300s: %s", s->train.model, text);
    return parity_report_add(s->report, &r);
}

static assay_status judge_weights(parity_task_state *s, const assay_model_spec *spec)
{
    double **weights = NULL;
    if (s->t->c->model_dir[0] == '\0' || s->train.draw_weights >= 0)
        return ASSAY_OK; /* drawn */
    ASSAY_TRY(ref_weights_load(spec, s->train.model, NULL, s->train.draw_weights, &weights));
    const assay_status st = ref_weights_not_finite(spec, weights, add_not_finite, s);
    ref_weights_free(spec, weights);
    return st;
}

static assay_status load_weights_and_judge(parity_task_state *s, const assay_trace *trace,
                                           const assay_model_spec *spec, const assay_batches *batches)
{
    double **weights = NULL;
    parity_whole_cache *cache = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(ref_weights_load(spec, s->train.model, NULL, s->train.draw_weights, &weights));
    ASSAY_TRY_GOTO(parity_whole_cache_create(&cache, spec, &s->train, batches, weights), st, done);
    ASSAY_TRY_GOTO(parity_whole_cache_share(cache, s->t->case_dir), st, done);
    ASSAY_TRY_GOTO(parity_check_whole(cache, trace, s->report), st, done);
done:
    parity_whole_cache_destroy(cache);
    ref_weights_free(spec, weights);
    return st;
}

/* Whether some run of the task saves after all but the last step. */
static bool leaves_half(const parity_task_state *s)
{
    return s->t->c->steps > 1 && (wants(s, PARITY_CHECK_BITWISE) || strcmp(s->t->variant, "fastest") == 0);
}

/* Checkpoints and result file of the traced run against its trace; the half-way checkpoint is another run's, with the same bits. */
static assay_status judge_saved(parity_task_state *s, const assay_trace *trace, const assay_model_spec *spec,
                                const assay_batches *batches, const char *save, const char *out)
{
    char half[ASSAY_PATH], rest[ASSAY_PATH];
    int64_t before = parity_report_count(s->report);
    if (wants(s, PARITY_CHECK_CHECKPOINT))
        ASSAY_TRY(close_check(s, PARITY_CHECK_CHECKPOINT, before,
                              parity_check_saved(trace, save, NULL, spec, &s->train, batches, s->report)));
    ASSAY_TRY(parity_task_path(s->t, "half", half));
    before = parity_report_count(s->report);
    if (wants(s, PARITY_CHECK_CHECKPOINT) && leaves_half(s))
        ASSAY_TRY(close_check(
            s, PARITY_CHECK_CHECKPOINT, before,
            parity_check_saved_after(trace, half, "half", s->t->c->steps - 1, spec, &s->train, s->report)));
    before = parity_report_count(s->report);
    if (wants(s, PARITY_CHECK_BITWISE))
        ASSAY_TRY(close_check(s, PARITY_CHECK_BITWISE, before,
                              parity_check_saved(trace, NULL, out, spec, &s->train, batches, s->report)));
    ASSAY_TRY(parity_task_path(s->t, "rest.safetensors", rest));
    before = parity_report_count(s->report);
    if (wants(s, PARITY_CHECK_BITWISE) && s->t->c->steps > 1 &&
        access(rest, F_OK) == 0) /* none: that is a failure already */
        ASSAY_TRY(close_check(
            s, PARITY_CHECK_BITWISE, before,
            parity_check_resumed_gradients(trace, rest, s->t->c->steps - 1, spec, &s->train, s->report)));
    return ASSAY_OK;
}

/* One check of the trace, where it is wanted. */
static assay_status judge_one(parity_task_state *s, parity_check k, const assay_trace *trace,
                              const assay_model_spec *spec)
{
    const int64_t before = parity_report_count(s->report);
    assay_status st = ASSAY_OK;
    if (!wants(s, k) || (k == PARITY_CHECK_ROUTING && !has_experts(&spec->config)))
        return ASSAY_OK;
    if (k == PARITY_CHECK_ASSEMBLE)
        st = parity_check_assemble(trace, s->report);
    else if (k == PARITY_CHECK_FLOW)
        st = parity_check_flow(trace, spec, s->report);
    else if (k == PARITY_CHECK_BITWISE)
        st = parity_check_recompute(trace, s->report);
    else if (k == PARITY_CHECK_LOCAL)
        st = parity_check_local(trace, s->report);
    else
        st = parity_check_routing(trace, s->report);
    /* nothing has to run again where everything is kept */
    if (st != ASSAY_OK || k != PARITY_CHECK_BITWISE)
        ASSAY_TRY(close_check(s, k, before, st));
    lap(s, k);
    return ASSAY_OK;
}

/* Everything that is read from one trace, and from what its run left behind. */
static assay_status judge_trace(parity_task_state *s, const char *dir, const char *save, const char *out)
{
    static const parity_check order[] = {PARITY_CHECK_ASSEMBLE, PARITY_CHECK_FLOW, PARITY_CHECK_BITWISE,
                                         PARITY_CHECK_LOCAL, PARITY_CHECK_ROUTING};
    assay_trace *trace = NULL;
    assay_model_spec *spec = NULL;
    assay_batches batches = {0};
    assay_parallel_config p;
    assay_grid grid;
    assay_status st = ASSAY_OK;
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    ASSAY_TRY_GOTO(model_config_of(s->t->c, s->t->case_dir, config), st, done);
    ASSAY_TRY_GOTO(assay_inputs_spec(&s->train, config, &spec), st, done);
    ASSAY_TRY_GOTO(assay_layout_parse(s->t->layout, &p), st, done);
    ASSAY_TRY_GOTO(assay_grid_make(&p, &grid), st, done);
    ASSAY_TRY_GOTO(assay_grid_check_model(&grid, config), st, done);
    json_object_set_new(s->facts, "held", dry_held_json(config, spec, &grid, s->t->precision));
    ASSAY_TRY_GOTO(assay_batches_open(&batches, s->train.batch, config->vocab_size), st, done);
    ASSAY_TRY_GOTO(assay_trace_open(&trace, dir, true), st, done);
    ASSAY_TRY_GOTO(judge_weights(s, spec), st, done);
    ASSAY_TRY_GOTO(parity_check_substituted(trace, s->report), st, done);
    ASSAY_TRY_GOTO(parity_check_aborted(trace, s->report), st, done);
    s->since = assay_monotonic_s();
    if (wants(s, PARITY_CHECK_PLAN))
        ASSAY_TRY_GOTO(parity_check_kernels(trace, &s->e->ladder, s->train.variant, act_of(s->t), s->report),
                       st, done);
    /* What was not done as planned explains every number that follows. */
    int64_t before = parity_report_count(s->report);
    if (wants(s, PARITY_CHECK_PLAN))
        ASSAY_TRY_GOTO(close_check(s, PARITY_CHECK_PLAN, before,
                                   parity_check_plan(trace, spec, &grid, &s->train, &batches, s->report)),
                       st, done);
    lap(s, PARITY_CHECK_PLAN);
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        ASSAY_TRY_GOTO(judge_one(s, order[i], trace, spec), st, done);
    ASSAY_TRY_GOTO(judge_saved(s, trace, spec, &batches, save, out), st, done);
    lap(s, PARITY_CHECK_CHECKPOINT);
    before = parity_report_count(s->report);
    if (wants(s, PARITY_CHECK_WHOLE))
        ASSAY_TRY_GOTO(
            close_check(s, PARITY_CHECK_WHOLE, before, load_weights_and_judge(s, trace, spec, &batches)), st,
            done);
    lap(s, PARITY_CHECK_WHOLE);
done:
    assay_trace_close(trace);
    assay_batches_close(&batches);
    assay_spec_destroy(spec);
    free(config);
    return st;
}

static assay_status run_training(parity_task_state *s)
{
    char trace[ASSAY_PATH];
    assay_train_options o = s->train;
    parity_check running = PARITY_CHECK_BITWISE;
    const double t0 = assay_monotonic_s();
    ASSAY_TRY(parity_task_path(s->t, "trace", trace));
    ASSAY_TRY(parity_task_path(s->t, "out.safetensors", o.out));
    if (s->t->c->steps > 0)
        ASSAY_TRY(parity_task_path(s->t, "save", o.save));
    snprintf(o.trace, sizeof o.trace, "%s", trace);
    ASSAY_TRY(parity_task_engine(s, "train", &o));
    json_object_set_new(s->facts, "train_s", json_real(s->engine_s));
    json_object_set_new(s->facts, "seed", json_integer(s->train.draw_weights));
    s->since = assay_monotonic_s();
    int64_t before = parity_report_count(s->report);
    if (wants(s, PARITY_CHECK_BITWISE))
        ASSAY_TRY(close_check(s, PARITY_CHECK_BITWISE, before, parity_task_bits(s, o.out)));
    lap(s, PARITY_CHECK_BITWISE);
    const bool bits = wants(s, PARITY_CHECK_BITWISE), moves = wants(s, PARITY_CHECK_CHECKPOINT);
    if ((bits || moves) && s->t->c->steps > 1 &&
        parity_task_restart(s, &o, bits, moves, &running) != ASSAY_OK)
        ASSAY_TRY(add_skip(s, running));
    lap(s, running);
    json_object_set_new(s->facts, "engine_s", json_real(s->engine_s));
    const double t1 = assay_monotonic_s();
    ASSAY_TRY(judge_trace(s, trace, o.save, o.out));
    json_object_set_new(s->facts, "judge_s", json_real(assay_monotonic_s() - t1));
    json_object_set_new(s->facts, "task_s", json_real(assay_monotonic_s() - t0));
    return ASSAY_OK;
}

/* Each word of a selection is what ran. */
static assay_status judge_selection(parity_task_state *s, const char *answer, parity_report *report)
{
    assay_trace *t = NULL;
    ASSAY_TRY(assay_trace_open(&t, answer, false));
    const assay_status st = parity_check_kernels(t, &s->e->ladder, s->train.variant, act_of(s->t), report);
    assay_trace_close(t);
    return st;
}

/* Results of the check that was asked for; all when none was. */
static assay_status judge_operations(parity_task_state *s, const char *request, const char *answer,
                                     bool every)
{
    parity_report *all = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(parity_report_create(&all), st, done);
    ASSAY_TRY_GOTO(parity_check_exact(request, answer, every, all), st, done);
    if (every)
        ASSAY_TRY_GOTO(parity_check_rungs(request, answer, &s->e->ladder, act_of(s->t), all), st, done);
    else
        ASSAY_TRY_GOTO(judge_selection(s, answer, all), st, done);
    for (int64_t i = 0; i < parity_report_count(all); i++) {
        const parity_claim *c = parity_report_at(all, i);
        const parity_drawn drawn = parity_report_drawn(all, c);
        if (s->o->check[0] == 0 || strcmp(s->o->check, parity_check_name(c->check)) == 0)
            ASSAY_TRY_GOTO(parity_report_add_claim(s->report, c, &drawn), st, done);
    }
done:
    parity_report_destroy(all);
    return st;
}

static assay_status run_exact(parity_task_state *s)
{
    char request[ASSAY_PATH], answer[ASSAY_PATH], log[ASSAY_PATH];
    char request_option[ASSAY_PATH + 16], out_option[ASSAY_PATH + 16];
    const double t0 = s->since = assay_monotonic_s();
    ASSAY_TRY(parity_task_path(s->t, "answer", answer));
    ASSAY_TRY(parity_task_path(s->t, "ops.log", log));
    ASSAY_TRY(parity_task_request(s->t, request));
    snprintf(request_option, sizeof request_option, "--request=%s", request);
    snprintf(out_option, sizeof out_option, "--out=%s", answer);
    const bool every = strcmp(s->t->variant, PARITY_EVERY_RUNG) == 0;
    const char *extra[] = {request_option, out_option, every ? "--every-rung" : NULL, NULL};
    ASSAY_TRY(parity_engine_run(s->e, "ops", &s->train, extra, log, true, s->o->timeout_s, &s->engine_s));
    ASSAY_TRY(judge_operations(s, request, answer, every));
    lap(s, PARITY_CHECK_EXACT);
    json_object_set_new(s->facts, "engine_s", json_real(s->engine_s));
    json_object_set_new(s->facts, "task_s", json_real(assay_monotonic_s() - t0));
    return ASSAY_OK;
}

assay_status parity_run_task(const parity_run_options *o, const parity_engine *e, const parity_task *t,
                             parity_report *report, json_t *facts)
{
    parity_task_state s = {.o = o, .e = e, .t = t, .report = report, .facts = facts};
    parity_result context;
    parity_result_init(&context);
    snprintf(context.case_name, sizeof context.case_name, "%s", parity_task_name(t));
    snprintf(context.engine, sizeof context.engine, "%s", e->name);
    snprintf(context.tier, sizeof context.tier, "%s", e->name);
    snprintf(context.layout, sizeof context.layout, "%s", t->layout);
    snprintf(context.precision, sizeof context.precision, "%s", assay_precision_name(t->precision));
    snprintf(context.variants, sizeof context.variants, "%s", t->variant);
    parity_run_reproduce(o, e->name, t, context.reproduce);
    parity_report_set_context(report, &context);
    ASSAY_CHECK(t->cannot[0] == '\0', ASSAY_INVALID_ARGUMENT, "%s", t->cannot);
    ASSAY_TRY(ref_blas_reserve(omp_get_max_threads()));
    ASSAY_TRY(assay_mkdir_p(t->dir));
    if (t->c != NULL)
        s.train = t->c->options;
    else
        assay_train_options_default(&s.train);
    s.train.collective_timeout = o->collective_timeout;
    s.train.save_differing_replicas =
        true; /* the trace is judged, and the checkpoint says what is wrong with it */
    s.train.precision = t->precision;
    const bool no_word = strcmp(t->variant, "fastest") == 0 || strcmp(t->variant, PARITY_EVERY_RUNG) == 0;
    snprintf(s.train.variant, sizeof s.train.variant, "%s", no_word ? "" : t->variant);
    snprintf(s.train.layout, sizeof s.train.layout, "%s", t->layout);
    if (t->c == NULL)
        return run_exact(&s);
    ASSAY_CHECK(snprintf(s.train.batch, sizeof s.train.batch, "%s/batch.safetensors", t->case_dir) <
                    ASSAY_PATH,
                ASSAY_LIMIT, "path too long");
    if (t->c->model_dir[0] != 0)
        snprintf(s.train.model, sizeof s.train.model, "%s", t->c->model_dir);
    else
        ASSAY_CHECK(snprintf(s.train.model, sizeof s.train.model, "%s/model", t->case_dir) < ASSAY_PATH,
                    ASSAY_LIMIT, "path too long");
    return run_training(&s);
}
