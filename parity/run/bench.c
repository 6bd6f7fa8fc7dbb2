/* `assay bench`: times of a training step and of its operations, beside what the device can do.  docs/BENCH.md. */
#include "parity/run/bench.h"
#include "parity/run/report_folder.h"
#include "parity/run/run.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BESIDE = 8, MOST = 1000000, DRAWN_STEPS = 2, DRAWN_LENGTH = 4096, DRAWN_LENGTH_SIM = 64 };

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
    {"warmup", "N", "steps before the measured ones, at least 1 (default 2)"},
    {"steps", "N", "steps measured without events, and as many with (default 10)"},
    {"microbatches", "N", "of data that is drawn: microbatches of a step (default 1)"},
    {"micro_batch_size", "N", "of data that is drawn: sequences of a microbatch (default 1)"},
    {"seq_length", "N",
     "of data that is drawn: tokens of a sequence (default 4096, in the simulator 64, at most the model's)"},
    {"seed", "N", "of data that is drawn and of a case (default 1234, or the case's own)"},
    {"instances", NULL, "a line for each instance of an operation"},
    {"beside", "FILE...",
     "print this result beside (golden/bench_torch.py writes PyTorch's); may be repeated"},
    {"report", "DIR", "where bench.json, batch.safetensors and logs go (default bench)"},
    {"timeout", "SECONDS", "time limit of the run (default none)"},
    {NULL, NULL, NULL}};

static assay_status on_option(void *user, const char *name, const char *text)
{
    bench_options *b = user;
    if (name == NULL) {
        ASSAY_CHECK(b->case_file[0] == '\0', ASSAY_INVALID_ARGUMENT,
                    "expected one case file, found another: %s", text);
        return assay_option_text("case file", text, b->case_file, sizeof b->case_file);
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
            return assay_option_count(name, text, counts[i].least, MOST, counts[i].out);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(texts[i].name, name) == 0)
            return assay_option_text(name, text, texts[i].out, texts[i].capacity);
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
        ASSAY_TRY(assay_option_count(name, text, 1, MOST, &seconds));
        b->timeout_s = (double)seconds;
        return ASSAY_OK;
    }
    ASSAY_CHECK(b->n_beside < MAX_BESIDE, ASSAY_LIMIT, "--beside: at most %d", MAX_BESIDE);
    return assay_option_text(name, text, b->beside[b->n_beside++], ASSAY_PATH);
}

/* --- what is measured --------------------------------------------------------------------------------------- */
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
    c->masked_microbatch = -1;
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

/* The case that is measured, or none (no name): model folder and batch file are there already. */
static assay_status choose_case(const bench_options *b, bool simulated, const assay_train_options *given,
                                parity_case *c)
{
    if (given->model[0] != '\0' && given->batch[0] != '\0')
        return ASSAY_OK;
    assay_train_options_default(&c->options);
    if (b->case_name[0] != '\0')
        ASSAY_TRY(parity_case_named(b->case_name, c));
    else if (b->case_file[0] != '\0')
        ASSAY_TRY(parity_case_load(b->case_file, c));
    else
        ASSAY_TRY(drawn_case(b, given, simulated, c));
    assay_train_options_merge(&c->options, given, NULL);
    if (b->seeded)
        c->options.seed = b->seed;
    return parity_case_weights(c);
}

/* The case is written into the report folder; *o gets model folder, batch file and options of the ranks. */
static assay_status write_case(const bench_options *b, parity_case *c, assay_train_options *o)
{
    ASSAY_TRY(parity_prepare_case(c, b->report_dir));
    *o = c->options;
    const char *dir = b->report_dir;
    const int m = c->model_dir[0] != '\0' ? snprintf(o->model, sizeof o->model, "%s", c->model_dir)
                                          : snprintf(o->model, sizeof o->model, "%s/model", dir);
    const int n = snprintf(o->batch, sizeof o->batch, "%s/batch.safetensors", dir);
    ASSAY_CHECK(m < ASSAY_PATH && n < ASSAY_PATH, ASSAY_LIMIT, "--report: path too long");
    return ASSAY_OK;
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

static assay_status bench(const bench_options *b, const assay_train_options *given)
{
    parity_engine e = {0};
    json_t *result = NULL;
    assay_train_options o = *given;
    int lock = -1;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(check_choice(b, given));
    ASSAY_TRY(parity_engine_find(b->engine, b->engine_program, &e));
    printf("assay bench: engine %s (%s)\n", e.name, e.reason);
    fflush(stdout);
    const char *layout = given->layout[0] != '\0' ? given->layout : "1";
    parity_case *c = calloc(1, sizeof *c);
    ASSAY_CHECK_GOTO(c != NULL, ASSAY_OUT_OF_MEMORY, st, done, "bench: a case");
    ASSAY_TRY_GOTO(choose_case(b, e.n_devices == 0, given, c), st, done);
    const bool is_case = c->name[0] != '\0';
    if (is_case)
        ASSAY_TRY_GOTO(parity_case_layout(c, layout), st, done);
    else
        ASSAY_TRY_GOTO(parity_engine_check_inputs(&e, &o), st, done);
    ASSAY_TRY_GOTO(parity_engine_check_variant(&e, given->variant), st, done);
    ASSAY_TRY_GOTO(parity_report_folder_open(b->report_dir, &lock), st, done);
    ASSAY_TRY_GOTO(parity_report_folder_work(b->report_dir), st, done);
    if (is_case)
        ASSAY_TRY_GOTO(write_case(b, c, &o), st, done);
    o.precision = given->precision;
    snprintf(o.layout, sizeof o.layout, "%s", layout);
    if (is_case)
        ASSAY_TRY_GOTO(parity_engine_check_inputs(&e, &o), st, done);
    ASSAY_TRY_GOTO(parity_warn_idle_options("assay bench", &o), st, done);
    ASSAY_TRY_GOTO(run_ranks(b, &e, &o, &result), st, done);
    st = finish(b, &e, &o, result);
done:
    if (lock >= 0)
        close(lock);
    json_decref(result);
    if (c != NULL)
        parity_case_free(c);
    free(c);
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
                            "  assay bench --model DIR  # tokens are drawn\n"
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
