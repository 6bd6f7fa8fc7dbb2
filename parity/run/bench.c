/* `assay bench`: times of a training step and of its operations, beside what the device can do.  docs/BENCH.md. */
#include "parity/run/bench.h"
#include "core/base/suggest.h"
#include "parity/run/report_folder.h"
#include "parity/run/run.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BESIDE = 8, DRAWN_STEPS = 2, DRAWN_LENGTH = 4096, DRAWN_LENGTH_SIM = 64 };

typedef struct bench_options {
    char engine[8], engine_program[ASSAY_PATH], report_dir[ASSAY_PATH], case_name[64];
    char case_file[ASSAY_PATH];
    int64_t warmup, steps, microbatches, micro_batch_size, seq_length; /* data: 0 = not given */
    double timeout_s;
    bool instances, seeded;
    uint64_t seed; /* of tokens that are drawn; of a case, of its weights, too */
    int n_beside;
    char beside[MAX_BESIDE][ASSAY_PATH];
} bench_options;

static const assay_extra_option EXTRA[] = {
    {"engine", "auto|gpu|sim", "which engine (auto: the GPU where one answers, else the simulator)"},
    {"engine_program", "PATH", "use this engine program"},
    {"case", "NAME", "model, data and training options of this case"},
    {"warmup", "N", "steps before the measured ones (default 2)"},
    {"steps", "N", "steps measured without events, and as many with (default 10)"},
    {"microbatches", "N", "of data that is drawn: microbatches of a step (default 1)"},
    {"micro_batch_size", "N", "of data that is drawn: sequences of a microbatch (default 1)"},
    {"seq_length", "N",
     "of data that is drawn: tokens of a sequence (default 4096, in the simulator 64, at most the model's)"},
    {"seed", "N", "of data that is drawn and of a case (default 1234, or the case's own)"},
    {"instances", NULL, "a line for each instance of an operation"},
    {"beside", "FILE", "print this result beside (golden/bench_torch.py writes PyTorch's); may be repeated"},
    {"report", "DIR", "where bench.json, batch.safetensors and logs go (default bench)"},
    {"timeout", "SECONDS", "time limit of the run (default none)"},
    {NULL, NULL, NULL}};

static assay_status take_count(const char *name, const char *text, int64_t least, int64_t *out)
{
    char *end = NULL;
    errno = 0;
    const long long n = strtoll(text, &end, 10);
    ASSAY_CHECK(errno == 0 && end != text && *end == '\0' && n >= least && n <= 1000000,
                ASSAY_INVALID_ARGUMENT, "--%s: expected an integer from %lld to 1000000, found %s", name,
                (long long)least, text);
    *out = n;
    return ASSAY_OK;
}

static assay_status take_text(const char *name, const char *text, char *out, size_t capacity)
{
    ASSAY_CHECK(strlen(text) < capacity, ASSAY_LIMIT, "--%s: longer than %zu bytes", name, capacity - 1);
    snprintf(out, capacity, "%s", text);
    return ASSAY_OK;
}

static assay_status on_option(void *user, const char *name, const char *text)
{
    bench_options *b = user;
    if (name == NULL) {
        ASSAY_CHECK(b->case_file[0] == '\0', ASSAY_INVALID_ARGUMENT,
                    "expected one case file, found another: %s", text);
        return take_text("case file", text, b->case_file, sizeof b->case_file);
    }
    const struct {
        const char *name;
        int64_t least, *out;
    } counts[] = {{"warmup", 1, &b->warmup},
                  {"steps", 1, &b->steps},
                  {"microbatches", 1, &b->microbatches},
                  {"micro_batch_size", 1, &b->micro_batch_size},
                  {"seq_length", 2, &b->seq_length}};
    const struct {
        const char *name;
        char *out;
        size_t capacity;
    } texts[] = {{"engine", b->engine, sizeof b->engine},
                 {"engine_program", b->engine_program, sizeof b->engine_program},
                 {"case", b->case_name, sizeof b->case_name},
                 {"report", b->report_dir, sizeof b->report_dir}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (strcmp(counts[i].name, name) == 0)
            return take_count(name, text, counts[i].least, counts[i].out);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(texts[i].name, name) == 0)
            return take_text(name, text, texts[i].out, texts[i].capacity);
    if (strcmp(name, "instances") == 0) {
        b->instances = true;
        return ASSAY_OK;
    }
    if (strcmp(name, "seed") == 0) {
        assay_train_options read;
        assay_train_options_default(&read);
        ASSAY_TRY(assay_train_option_set(&read, "seed", text));
        b->seed = read.seed;
        b->seeded = true;
        return ASSAY_OK;
    }
    if (strcmp(name, "timeout") == 0) {
        int64_t seconds;
        ASSAY_TRY(take_count(name, text, 1, &seconds));
        b->timeout_s = (double)seconds;
        return ASSAY_OK;
    }
    ASSAY_CHECK(b->n_beside < MAX_BESIDE, ASSAY_LIMIT, "--beside: at most %d", MAX_BESIDE);
    return take_text(name, text, b->beside[b->n_beside++], ASSAY_PATH);
}

/* --- what is measured --------------------------------------------------------------------------------------- */
static assay_status find_case(const char *name, parity_case *c)
{
    char dir[ASSAY_PATH];
    char **paths = NULL;
    int n = 0;
    bool found = false;
    assay_suggestion near;
    assay_status st = ASSAY_OK;
    assay_suggest_begin(&near, name, strlen(name));
    ASSAY_TRY(parity_cases_dir(dir, sizeof dir));
    ASSAY_TRY(parity_cases_list(dir, &paths, &n));
    for (int i = 0; i < n && !found && st == ASSAY_OK; i++) {
        st = parity_case_load(paths[i], c);
        found = st == ASSAY_OK && strcmp(c->name, name) == 0;
        if (st == ASSAY_OK)
            assay_suggest_add(&near, c->name);
        if (!found)
            parity_case_free(c);
    }
    for (int i = 0; i < n; i++)
        free(paths[i]);
    free(paths);
    ASSAY_TRY(st);
    ASSAY_CHECK(found, ASSAY_NOT_FOUND, "--case %s: no case in %s has this name%s", name, dir,
                assay_suggest_end(&near, ""));
    return ASSAY_OK;
}

/* What was given on the command line replaces the case's. */
static assay_status merge_options(const assay_train_options *given, assay_train_options *o)
{
    const assay_option_row *table = assay_train_option_table();
    json_t *have = assay_train_options_to_json(given, ASSAY_FOR_BENCH), *changed = json_object();
    assay_status st =
        have != NULL && changed != NULL ? ASSAY_OK : ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "bench: options");
    for (int i = 0; st == ASSAY_OK && table[i].name != NULL; i++)
        if (given->given >> i & 1)
            json_object_set(changed, table[i].name, json_object_get(have, table[i].name));
    if (st == ASSAY_OK)
        st = assay_train_options_from_json(o, changed, ASSAY_FOR_BENCH, "command line");
    json_decref(have);
    json_decref(changed);
    return st;
}

/* A case of the model folder with tokens drawn over the whole vocabulary. */
static assay_status drawn_case(const bench_options *b, const assay_train_options *o, bool simulated,
                               parity_case *c)
{
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    const assay_status st = assay_config_load(o->model, config);
    const int64_t wish = simulated ? DRAWN_LENGTH_SIM : DRAWN_LENGTH,
                  most = st == ASSAY_OK ? config->max_position_embeddings : 0;
    free(config);
    ASSAY_TRY(st);
    c->is_folder = true;
    snprintf(c->name, sizeof c->name, "of --model");
    snprintf(c->file, sizeof c->file, "%s", o->model);
    snprintf(c->model_dir, sizeof c->model_dir, "%s", o->model);
    c->steps = DRAWN_STEPS;
    c->microbatches = b->microbatches > 0 ? b->microbatches : 1;
    c->micro_batch_size = b->micro_batch_size > 0 ? b->micro_batch_size : 1;
    c->seq_length = b->seq_length > 0 ? b->seq_length : wish < most ? wish : most;
    return ASSAY_OK;
}

static assay_status check_choice(const bench_options *b, const assay_train_options *given)
{
    const bool named = b->case_name[0] != '\0' || b->case_file[0] != '\0', model = given->model[0] != '\0';
    const bool there = given->batch[0] != '\0';
    const bool sizes = b->microbatches > 0 || b->micro_batch_size > 0 || b->seq_length > 0;
    ASSAY_CHECK(named != model, ASSAY_INVALID_ARGUMENT,
                "expected --model DIR, --case NAME or a case file, found %s", named ? "two of them" : "none");
    ASSAY_CHECK(b->case_name[0] == '\0' || b->case_file[0] == '\0', ASSAY_INVALID_ARGUMENT,
                "--case %s: no case file beside it", b->case_name);
    ASSAY_CHECK(!named || given->batch[0] == '\0', ASSAY_INVALID_ARGUMENT,
                "--batch %s: a case has its own data", given->batch);
    ASSAY_CHECK(
        !sizes || (!named && given->batch[0] == '\0'), ASSAY_INVALID_ARGUMENT,
        "--microbatches, --micro-batch-size, --seq-length: have no meaning for data that is there already");
    ASSAY_CHECK(!b->seeded || !there, ASSAY_INVALID_ARGUMENT,
                "--seed: has no meaning for data that is there already");
    ASSAY_CHECK(given->precision != ASSAY_PRECISION_FP64, ASSAY_UNSUPPORTED,
                "precision fp64: the engine computes in fp32 or bf16");
    return ASSAY_OK;
}

/* Model folder, batch file and options: from the command line, or from a case that is written into the report folder. */
static assay_status prepare(const bench_options *b, bool simulated, assay_train_options *given,
                            assay_train_options *o)
{
    parity_case *c = calloc(1, sizeof *c);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(c != NULL, ASSAY_OUT_OF_MEMORY, "bench: a case");
    *o = *given;
    if (given->model[0] != '\0' && given->batch[0] != '\0')
        goto done;
    assay_train_options_default(&c->options);
    if (b->case_name[0] != '\0')
        ASSAY_TRY_GOTO(find_case(b->case_name, c), st, done);
    else if (b->case_file[0] != '\0')
        ASSAY_TRY_GOTO(parity_case_load(b->case_file, c), st, done);
    else
        ASSAY_TRY_GOTO(drawn_case(b, given, simulated, c), st, done);
    ASSAY_TRY_GOTO(merge_options(given, &c->options), st, done);
    if (b->seeded)
        c->options.seed = b->seed;
    ASSAY_TRY_GOTO(parity_case_weights(c), st, done);
    ASSAY_TRY_GOTO(parity_prepare_case(c, b->report_dir), st, done);
    *o = c->options;
    if (c->model_dir[0] != '\0')
        snprintf(o->model, sizeof o->model, "%s", c->model_dir);
    else
        ASSAY_CHECK_GOTO(snprintf(o->model, sizeof o->model, "%s/model", b->report_dir) < ASSAY_PATH,
                         ASSAY_LIMIT, st, done, "--report: path too long");
    ASSAY_CHECK_GOTO(snprintf(o->batch, sizeof o->batch, "%s/batch.safetensors", b->report_dir) < ASSAY_PATH,
                     ASSAY_LIMIT, st, done, "--report: path too long");
done:
    parity_case_free(c);
    free(c);
    return st;
}

/* --- one run ------------------------------------------------------------------------------------------------ */
static assay_status run_ranks(const bench_options *b, const parity_engine *e, const assay_train_options *o,
                              json_t **result)
{
    char ranks[ASSAY_PATH + 32], out[ASSAY_PATH + 64], log[ASSAY_PATH + 32], warmup[40], steps[40];
    const char *extra[] = {out, warmup, steps, b->instances ? "--instances" : NULL, NULL};
    int world;
    ASSAY_TRY(parity_layout_world(o->layout, &world));
    snprintf(ranks, sizeof ranks, "%s/work/ranks", b->report_dir);
    snprintf(out, sizeof out, "--out=%s", ranks);
    snprintf(log, sizeof log, "%s/work/bench.log", b->report_dir);
    snprintf(warmup, sizeof warmup, "--warmup=%lld", (long long)b->warmup);
    snprintf(steps, sizeof steps, "--steps=%lld", (long long)b->steps);
    ASSAY_TRY(parity_engine_run(e, "bench", o, extra, log, true, b->timeout_s, NULL));
    return parity_bench_gather(ranks, world, e->n_devices > 0 && e->n_devices < world ? e->n_devices : world,
                               result);
}

/* A number that is none means that other work was timed than a training step's. */
static void warn_of_losses(const json_t *result)
{
    size_t i;
    const json_t *loss;
    json_array_foreach(json_object_get(result, "loss"), i, loss) if (!json_is_number(loss))
    {
        fprintf(stderr, "assay bench: warning: step %zu: the loss is not a finite number\n", i);
        return;
    }
}

static assay_status finish(const bench_options *b, const parity_engine *e, const assay_train_options *o,
                           json_t *result)
{
    char path[ASSAY_PATH + 32], program[64];
    snprintf(program, sizeof program, "assay %s (%s)", parity_version(), e->name);
    json_object_set_new(result, "program", json_string(program));
    json_object_set_new(result, "engine", json_string(e->name));
    json_object_set_new(result, "model", json_string(o->model));
    json_object_set_new(result, "batch", json_string(o->batch));
    for (int i = 0; i < b->n_beside; i++)
        ASSAY_TRY(parity_bench_add_beside(result, b->beside[i]));
    snprintf(path, sizeof path, "%s/bench.json", b->report_dir);
    ASSAY_TRY(assay_json_save(result, path));
    printf("model %s, batch %s\n", o->model, o->batch);
    parity_bench_print(result, stdout);
    warn_of_losses(result);
    printf("\nwrote %s\n", path);
    return ASSAY_OK;
}

static assay_status bench(const bench_options *b, assay_train_options *given)
{
    parity_engine e = {0};
    json_t *result = NULL;
    assay_train_options o;
    int lock = -1;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(check_choice(b, given));
    ASSAY_TRY(parity_engine_find(b->engine, b->engine_program, &e));
    printf("assay bench: engine %s (%s)\n", e.name, e.reason);
    fflush(stdout);
    ASSAY_TRY_GOTO(parity_report_folder_open(b->report_dir, &lock), st, done);
    ASSAY_TRY_GOTO(parity_report_folder_work(b->report_dir), st, done);
    ASSAY_TRY_GOTO(prepare(b, e.n_devices == 0, given, &o), st, done);
    ASSAY_TRY_GOTO(parity_engine_check_variant(&e, o.variant), st, done);
    if (o.layout[0] == '\0')
        snprintf(o.layout, sizeof o.layout, "1");
    o.precision = given->precision;
    ASSAY_TRY_GOTO(run_ranks(b, &e, &o, &result), st, done);
    st = finish(b, &e, &o, result);
done:
    if (lock >= 0)
        close(lock);
    json_decref(result);
    parity_engine_free(&e);
    return st;
}

int parity_main_bench(int argc, char **argv)
{
    bench_options b = {.engine = "auto", .report_dir = "bench", .warmup = 2, .steps = 10};
    assay_train_options given;
    assay_train_options_default(&given);
    given.precision = ASSAY_PRECISION_BF16;
    assay_status st =
        assay_options_parse(argc, argv,
                            "Times of a training step and of every operation in it, beside a large product "
                            "and a copy measured in the same "
                            "process.  Precision is bf16 unless --precision says fp32.\vExamples:\n"
                            "  assay bench --model DIR                     tokens are drawn\n"
                            "  assay bench --model DIR --batch FILE --layout tp2,sp --variant attention=k0\n"
                            "  assay bench --case qwen3_moe --layout ep2,dp2 --instances\n"
                            "  assay bench --model DIR --batch FILE --beside torch-compiled.json\n",
                            "[CASE.json]", &given, ASSAY_FOR_BENCH, EXTRA, on_option, &b);
    if (st == ASSAY_OK)
        st = bench(&b, &given);
    if (st == ASSAY_OK)
        return 0;
    assay_error_print(stderr, "assay bench", 0);
    return 2;
}
