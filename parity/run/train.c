/* `assay train`: text to batches, steps by either engine, checkpoints, a folder of weights.  The steps are those of `assay step`;
 * here is what lies around them (docs/TRAIN.md). */
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/files/checkpoint_folder.h"
#include "core/model/config.h"
#include "core/run/stop.h"
#include "parity/parity.h"
#include "parity/run/data.h"
#include "parity/run/step.h"
#include "parity/run/train_export.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEFAULT_LOG_INTERVAL = 10 };

typedef struct train {
    parity_step_options step;
    parity_data_options data;
    assay_train_options options; /* as given, then as the run needs them */
    char config[ASSAY_PATH], export[ASSAY_PATH];
    char work[ASSAY_PATH];  /* the folder of what only this run needs */
    char found[ASSAY_PATH]; /* the checkpoint that --load means */
    bool keep;              /* work: it holds the only copy of the trained weights */
} train;

static assay_status on_option(void *user, const char *name, const char *text)
{
    train *t = user;
    bool mine;
    ASSAY_CHECK(name != NULL, ASSAY_INVALID_ARGUMENT, "unexpected argument \"%s\"", text);
    ASSAY_TRY(parity_data_option(&t->data, name, text, &mine));
    if (mine)
        return ASSAY_OK;
    if (strcmp(name, "config") == 0)
        return assay_option_text(name, text, t->config, sizeof t->config);
    if (strcmp(name, "export") == 0)
        return assay_option_folder(name, text, t->export, sizeof t->export);
    return parity_step_option(&t->step, name, text);
}

static assay_status set_path(char out[ASSAY_PATH], const char *folder, const char *name)
{
    const int n = snprintf(out, ASSAY_PATH, "%s/%s", folder, name);
    ASSAY_CHECK(n > 0 && n < ASSAY_PATH, ASSAY_LIMIT, "%s/%s: longer than %d bytes", folder, name,
                ASSAY_PATH - 1);
    return ASSAY_OK;
}

static bool exists(const char *path)
{
    struct stat sb;
    return lstat(path, &sb) == 0;
}

/* --- what the run begins with ------------------------------------------------------------------------------- */

/* --config FILE: a folder of this run with the configuration alone; its weights are drawn. */
static assay_status take_config(train *t)
{
    assay_train_options *o = &t->options;
    char *text = NULL, path[ASSAY_PATH];
    uint64_t n = 0;
    ASSAY_CHECK((o->model[0] != '\0') != (t->config[0] != '\0'), ASSAY_INVALID_ARGUMENT,
                "expected one of --model DIR and --config FILE, found %s",
                o->model[0] != '\0' ? "both" : "neither");
    if (t->config[0] == '\0')
        return ASSAY_OK;
    ASSAY_TRY(set_path(o->model, t->work, "model"));
    ASSAY_TRY(assay_mkdir_p(o->model));
    ASSAY_TRY(assay_read_file(t->config, ASSAY_JSON_MAX_BYTES, &text, &n));
    assay_status st = set_path(path, o->model, "config.json");
    if (st == ASSAY_OK)
        st = assay_write_file(path, text, n);
    free(text);
    if (o->draw_weights < 0 && o->load[0] == '\0')
        o->draw_weights = (int64_t)(o->seed & INT64_MAX);
    return st;
}

static bool is_batch_file(const char *path)
{
    const size_t n = strlen(path);
    return n > 12 && strcmp(path + n - 12, ".safetensors") == 0;
}

static assay_status take_data(train *t)
{
    assay_train_options *o = &t->options;
    parity_data_made made;
    ASSAY_CHECK(t->data.n_data > 0, ASSAY_INVALID_ARGUMENT,
                "--data: expected text, a folder, an indexed dataset or a batch file, found nothing");
    if (is_batch_file(t->data.data[0])) {
        ASSAY_CHECK(t->data.n_data == 1 && t->data.given == 1, ASSAY_INVALID_ARGUMENT,
                    "--data %s is a batch file: it has its rows, --tokenizer, --seq-length and the like have "
                    "no meaning",
                    t->data.data[0]);
        /* With --load, too: what goes on is the command that began, with --load behind it. */
        const bool draws = t->config[0] != '\0' && !assay_train_option_given(o, "draw_weights");
        ASSAY_CHECK(draws || !assay_train_option_given(o, "seed"), ASSAY_INVALID_ARGUMENT,
                    "--seed: has no meaning for data that is there already");
        return assay_option_text("data", t->data.data[0], o->batch, sizeof o->batch);
    }
    ASSAY_CHECK(o->train_iters >= 1, ASSAY_INVALID_ARGUMENT,
                "--train-iters: expected at least 1 step, found %lld", (long long)o->train_iters);
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    const assay_status st = assay_config_load(o->model, config);
    const int64_t vocab = config->vocab_size;
    free(config);
    ASSAY_TRY(st);
    ASSAY_TRY(set_path(o->batch, t->work, "batch.safetensors"));
    ASSAY_TRY(parity_data_write(&t->data, o->seed, o->train_iters, vocab, o->batch, &made));
    parity_data_say(&t->data, &made, stdout);
    return ASSAY_OK;
}

/* --load DIR: a checkpoint, a folder of them, of which the last is meant, or its latest or best. */
static assay_status find_checkpoint(train *t)
{
    const assay_train_options *o = &t->options;
    return o->load[0] == '\0'
               ? ASSAY_OK
               : assay_context(assay_checkpoint_folder_find(o->load, t->found, sizeof t->found), "--load");
}

static bool same_folder(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* --export DIR: whether it can be made is known before anything is trained. */
static assay_status check_export(const char *dir)
{
    char parent[ASSAY_PATH];
    const char *slash = strrchr(dir, '/');
    if (dir[0] == '\0')
        return ASSAY_OK;
    ASSAY_CHECK(!exists(dir), ASSAY_INVALID_ARGUMENT, "--export %s: exists; nothing is overwritten", dir);
    ASSAY_TRY(assay_checkpoint_outside("--export ", dir));
    snprintf(parent, sizeof parent, "%.*s",
             slash == dir    ? 1
             : slash != NULL ? (int)(slash - dir)
                             : 1,
             slash != NULL ? dir : ".");
    ASSAY_TRY(assay_context(assay_mkdir_above(dir), "--export %s", dir));
    ASSAY_CHECK(access(parent, W_OK | X_OK) == 0, ASSAY_IO, "--export %s: cannot write into %s: %s", dir,
                parent, strerror(errno));
    return ASSAY_OK;
}

/* Nothing is written over: --save is new, or the folder that the run goes on from. */
static assay_status check_outputs(train *t)
{
    assay_train_options *o = &t->options;
    ASSAY_TRY(check_export(t->export));
    if (o->save[0] == '\0') {
        ASSAY_CHECK(o->save_interval == 0, ASSAY_INVALID_ARGUMENT, "--save-interval without --save");
        return ASSAY_OK;
    }
    ASSAY_CHECK(
        !exists(o->save) || (o->load[0] != '\0' && same_folder(o->save, o->load)), ASSAY_INVALID_ARGUMENT,
        "--save %s: exists; expected a new folder, or that of --load, where the run goes on", o->save);
    ASSAY_CHECK(t->found[0] == '\0' || !same_folder(o->save, t->found), ASSAY_INVALID_ARGUMENT,
                "--save %s: is the checkpoint itself; expected the folder in which it lies", o->save);
    ASSAY_TRY(assay_checkpoint_outside("--save ", o->save));
    if (o->save_interval == 0)
        o->save_interval = o->train_iters > 0 ? o->train_iters : INT32_MAX;
    if (o->metrics[0] == '\0')
        return set_path(o->metrics, o->save, "metrics.jsonl");
    return ASSAY_OK;
}

/* --- the run ------------------------------------------------------------------------------------------------ */

static assay_status say_end(const train *t, double seconds)
{
    const assay_train_options *o = &t->options;
    printf("trained in %.1f s", seconds);
    if (o->save[0] != '\0')
        printf("; checkpoints: %s", o->save);
    if (o->metrics[0] != '\0')
        printf("; metrics: %s", o->metrics);
    if (t->export[0] != '\0')
        printf("; weights: %s", t->export);
    fputc('\n', stdout);
    return ASSAY_OK;
}

static assay_status run(train *t)
{
    assay_train_options *o = &t->options;
    const bool ref = strcmp(t->step.engine, "ref") == 0;
    ASSAY_CHECK(!assay_train_option_given(o, "log_interval") || o->log_interval > 0, ASSAY_INVALID_ARGUMENT,
                "--log-interval: expected at least 1 step");
    ASSAY_CHECK(!assay_train_option_given(o, "train_iters") || o->train_iters > 0, ASSAY_INVALID_ARGUMENT,
                "--train-iters: expected at least 1 step, found 0");
    ASSAY_TRY(find_checkpoint(t));
    ASSAY_TRY(check_outputs(t));
    ASSAY_TRY(take_config(t));
    ASSAY_TRY(take_data(t));
    ASSAY_TRY(set_path(o->out, t->work, "out.safetensors"));
    if (t->found[0] != '\0') {
        memcpy(o->load, t->found, sizeof o->load);
        printf("goes on from %s\n", o->load);
    }
    if (o->log_interval == 0)
        o->log_interval = DEFAULT_LOG_INTERVAL;
    ASSAY_TRY(parity_step_precision(&t->step, o));
    ASSAY_TRY(assay_train_options_check(o));
    const bool fresh = o->save[0] != '\0' && !exists(o->save);
    if (fresh) /* else the folder of --load, which may be a link */
        ASSAY_TRY(assay_mkdir_p(o->save));
    if (ref)
        assay_stop_catch();
    const double begin = assay_monotonic_s();
    const assay_status ran = parity_step_run(&t->step, o, "assay train");
    if (ran != ASSAY_OK && fresh)
        (void)rmdir(o->save); /* as the refused run found it; one that trained has left something in it */
    ASSAY_TRY(ran);
    const double seconds = assay_monotonic_s() - begin;
    if (t->export[0] != '\0') {
        const assay_status st = parity_train_export(t->export, o->out, o->model, t->data.tokenizer);
        t->keep = st != ASSAY_OK;
        ASSAY_TRY(assay_context(st, "the trained weights are kept in %s (weight.*)", o->out));
    }
    return say_end(t, seconds);
}

/* With a folder for what only this run needs, which is gone behind it. */
static assay_status run_in_folder(train *t)
{
    ASSAY_TRY(assay_scratch_make("train", t->work, sizeof t->work));
    const assay_status st = run(t);
    if (!t->keep)
        assay_scratch_remove(t->work);
    return st;
}

int parity_main_train(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        PARITY_STEP_OPTION_ROWS,
        PARITY_DATA_OPTION_ROWS,
        {"config", "FILE",
         "a config.json in place of --model: the weights are drawn (--draw-weights, else --seed)"},
        {"export", "DIR", "folder of the trained weights for Hugging Face transformers; it must not exist"},
        {NULL, NULL, NULL}};
    train *t = calloc(1, sizeof *t);
    assay_status st = ASSAY_OUT_OF_MEMORY;
    if (t != NULL) {
        snprintf(t->step.engine, sizeof t->step.engine, "auto");
        parity_data_default(&t->data);
        assay_train_options_default(&t->options);
        st = assay_options_parse(
            argc, argv,
            "Trains a model on text or a batch file, by either engine.\vExamples:\n"
            "  assay train --config config.json --data TEXTS --seq-length 64 \\\n"
            "              --global-batch-size 8 --train-iters 200 --save RUN\n"
            "  assay train --model DIR --data TEXTS --tokenizer tokenizer.json \\\n"
            "              --seq-length 128 --train-iters 1000 --layout tp2,dp2 \\\n"
            "              --save RUN --save-interval 100 --export TRAINED\n"
            "  # the first again, behind its last checkpoint, up to step 400\n"
            "  assay train --config config.json --data TEXTS --seq-length 64 \\\n"
            "              --global-batch-size 8 --train-iters 400 --save RUN --load RUN\n",
            "", &t->options, ASSAY_FOR_TRAIN, extra, on_option, t);
        if (st == ASSAY_OK)
            st = run_in_folder(t);
    }
    free(t);
    if (st != ASSAY_OK) {
        assay_error_print(stderr, "assay train", 0);
        return 2;
    }
    return 0;
}
