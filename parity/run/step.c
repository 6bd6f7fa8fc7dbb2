/* `assay step`: the simplest way in, and a stable contract (README.md, docs/ARCHITECTURE.md). */
#include "parity/run/step.h"
#include "core/base/log.h"
#include "core/files/batches.h"
#include "core/run/outputs.h"
#include "parity/run/engine.h"
#include "parity/run/step_summary.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const assay_extra_option EXTRA[] = {PARITY_STEP_OPTION_ROWS, {NULL, NULL, NULL}};

assay_status parity_step_option(void *user, const char *name, const char *text)
{
    parity_step_options *o = user;
    ASSAY_CHECK(name != NULL, ASSAY_INVALID_ARGUMENT, "unexpected argument \"%s\"", text);
    if (strcmp(name, "timeout") == 0) {
        char *end = NULL;
        o->timeout_s = strtod(text, &end);
        ASSAY_CHECK(end != text && *end == 0 && o->timeout_s >= 0 && o->timeout_s <= 1e7,
                    ASSAY_INVALID_ARGUMENT, "--timeout: expected seconds, found %s", text);
        return ASSAY_OK;
    }
    char *out = o->engine_program;
    size_t capacity = sizeof o->engine_program;
    if (strcmp(name, "engine") == 0) {
        out = o->engine;
        capacity = sizeof o->engine;
    } else if (strcmp(name, "precision") == 0) {
        assay_train_options checked;
        ASSAY_TRY(assay_train_option_set(&checked, "precision", text));
        out = o->precision;
        capacity = sizeof o->precision;
    }
    ASSAY_CHECK(strlen(text) < capacity, ASSAY_INVALID_ARGUMENT, "--%s: unexpected value %s", name, text);
    snprintf(out, capacity, "%s", text);
    return ASSAY_OK;
}

/* What belongs to optimizer steps has no meaning where the batch file asks for none: it would be ignored. */
static assay_status check_given_options(const assay_train_options *o)
{
    static const char *const names[] = {"save",
                                        "save_after",
                                        "async_save",
                                        "no_save_optim",
                                        "skip_save_model_weight",
                                        "finetune",
                                        "no_load_optim",
                                        "no_load_rng",
                                        "round_checkpoint",
                                        "ignore_missing_keys",
                                        "ignore_unexpected_keys",
                                        "ignore_mismatched_keys",
                                        "load",
                                        "override_checkpoint_args"};
    assay_batches batches = {0};
    assay_model_config *config = malloc(sizeof *config);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    ASSAY_TRY_GOTO(assay_config_load(o->model, config), st, done);
    ASSAY_TRY_GOTO(parity_check_expert_options(o, config), st, done);
    ASSAY_TRY_GOTO(assay_batches_open(&batches, o->batch, config->vocab_size), st, done);
    if (!batches.training)
        ASSAY_TRY_GOTO(parity_check_optimizer_options(o, o->batch), st, done);
    for (size_t i = 0; i < sizeof names / sizeof *names && !batches.training; i++)
        ASSAY_CHECK_GOTO(!assay_train_option_given(o, names[i]), ASSAY_INVALID_ARGUMENT, st, done,
                         "--%s: has no meaning here: %s holds one batch [b,s] without an optimizer step "
                         "(steps are [steps,microbatches,b,s])",
                         names[i], o->batch);
done:
    assay_batches_close(&batches);
    free(config);
    return st;
}

/* Which file lies at a path: an engine writes beside and renames, so a new result is another file. */
typedef struct file_mark {
    bool exists;
    ino_t inode;
    struct timespec changed;
} file_mark;

static file_mark mark(const char *path)
{
    struct stat sb;
    const bool exists = stat(path, &sb) == 0;
    return (file_mark){exists, exists ? sb.st_ino : 0, exists ? sb.st_ctim : (struct timespec){0}};
}

/* An engine that ends well and leaves nothing, or what lay there before, has not done its work. */
static assay_status check_written(const parity_engine *e, const char *option, const char *path,
                                  file_mark before)
{
    if (path[0] == '\0')
        return ASSAY_OK;
    const file_mark now = mark(path);
    ASSAY_CHECK(now.exists, ASSAY_CHILD, "%s step: exit code 0, but it wrote no --%s %s", e->program, option,
                path);
    ASSAY_CHECK(!before.exists || now.inode != before.inode || now.changed.tv_sec != before.changed.tv_sec ||
                    now.changed.tv_nsec != before.changed.tv_nsec,
                ASSAY_CHILD, "%s step: exit code 0, but --%s %s is what lay there before", e->program, option,
                path);
    return ASSAY_OK;
}

/* What chooses among kernels or programs has no meaning where neither is run. */
static assay_status check_reference_options(const parity_step_options *s, const assay_train_options *o)
{
    const char *option = s->engine_program[0] != '\0'               ? "engine-program"
                         : o->variant[0] != '\0'                    ? "variant"
                         : o->enable_cuda_graph                     ? "enable-cuda-graph"
                         : o->moe_expert_rank_capacity_factor > 0.0 ? "moe-expert-rank-capacity-factor"
                         : s->timeout_s > 0.0                       ? "timeout"
                         : o->collective_timeout > 0                ? "collective-timeout"
                                                                    : NULL;
    ASSAY_CHECK(option == NULL, ASSAY_INVALID_ARGUMENT, "--%s has no meaning with --engine ref", option);
    return ASSAY_OK;
}

assay_status parity_step_run(const parity_step_options *s, const assay_train_options *o, const char *program)
{
    parity_engine e = {0};
    ASSAY_CHECK(o->model[0] != 0, ASSAY_INVALID_ARGUMENT,
                "--model: expected a Hugging Face folder, found nothing");
    ASSAY_CHECK(o->batch[0] != 0, ASSAY_INVALID_ARGUMENT,
                "--batch: expected a safetensors file, found nothing");
    ASSAY_CHECK(o->out[0] != 0, ASSAY_INVALID_ARGUMENT, "--out: expected the file to write, found nothing");
    ASSAY_TRY(assay_train_options_check(o));
    ASSAY_TRY(assay_outputs_check(o));
    const bool ref = strcmp(s->engine, "ref") == 0;
    ASSAY_CHECK(ref || strcmp(s->engine, "gpu") == 0 || strcmp(s->engine, "sim") == 0 ||
                    strcmp(s->engine, "auto") == 0,
                ASSAY_INVALID_ARGUMENT, "--engine: expected ref, gpu, sim or auto, found %s", s->engine);
    if (ref)
        ASSAY_TRY(check_reference_options(s, o));
    ASSAY_TRY(check_given_options(o));
    const file_mark out = mark(o->out), trace = mark(o->trace), save = mark(o->save);
    assay_status st = ASSAY_OK;
    if (ref) {
        snprintf(e.program, sizeof e.program, "the reference's");
        st = parity_warn_idle_options(program, o);
        if (st == ASSAY_OK)
            st = ref_step(o);
    } else {
        ASSAY_TRY(parity_engine_find(s->engine, s->engine_program, &e));
        fprintf(stderr, "%s: engine %s (%s)\n", program, e.name, e.reason);
        st = parity_engine_check_inputs(&e, o);
        if (st == ASSAY_OK)
            st = parity_warn_idle_options(program, o);
    }
    if (st == ASSAY_OK && !ref)
        st = parity_engine_run(&e, "step", o, NULL, NULL, false, s->timeout_s, NULL);
    if (st == ASSAY_OK)
        st = check_written(&e, "out", o->out, out);
    if (st == ASSAY_OK)
        st = check_written(&e, "trace", o->trace, trace);
    if (st == ASSAY_OK)
        st = o->save_interval == 0 ? check_written(&e, "save", o->save, save) : ASSAY_OK;
    parity_engine_free(&e);
    return st;
}

assay_status parity_step_precision(const parity_step_options *s, assay_train_options *o)
{
    return assay_train_option_set(o, "precision",
                                  s->precision[0] != 0            ? s->precision
                                  : strcmp(s->engine, "ref") == 0 ? "fp64"
                                                                  : "fp32");
}

int parity_main_step(int argc, char **argv)
{
    parity_step_options s = {.engine = "auto"};
    assay_train_options o;
    assay_train_options_default(&o);
    assay_status st = assay_options_parse(
        argc, argv,
        "One forward and backward pass ([b,s] batches) or optimizer steps ([steps,microbatches,b,s] "
        "batches) of a model folder; results go to one safetensors file.  --model, --batch and --out are "
        "required.\vExamples:\n"
        "  assay step --engine ref --model DIR --batch FILE --out ref.safetensors\n"
        "  assay step --model DIR --batch FILE --out out.safetensors --layout tp2,sp \\\n"
        "             --trace trace\n"
        "  # STEPS: a batch file of optimizer steps, as assay batch makes it\n"
        "  assay step --model DIR --batch STEPS --out out.safetensors --lr 1e-3 \\\n"
        "             --save checkpoint\n",
        "", &o, ASSAY_FOR_STEP, EXTRA, parity_step_option, &s);
    if (st == ASSAY_OK)
        st = parity_step_precision(&s, &o);
    if (st == ASSAY_OK)
        st = parity_step_run(&s, &o, "assay step");
    if (st == ASSAY_OK)
        st = parity_step_summary(&o, stdout);
    if (st != ASSAY_OK) {
        assay_error_print(stderr, "assay step", 0);
        return 2;
    }
    return 0;
}
