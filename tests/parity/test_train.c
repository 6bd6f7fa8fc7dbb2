/* `assay train` and `assay batch`: what is made, what goes on bit for bit, what is refused. */
#include "tests/support/cli.h"
#include <jansson.h>
#include <sys/stat.h>

TestSuite(train, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

#define TEXT ASSAY_SOURCE_DIR "/golden/text"
#define PADDLE ASSAY_SOURCE_DIR "/golden/paddle/one" /* of a class that is written back */
#define TOKENIZERS ASSAY_SOURCE_DIR "/golden/tokenizers/"

/* A small model without weights that has a token for every byte. */
static const char *small_config(void)
{
    json_t *config = json_load_file(MODELS "llama/config.json", 0, NULL);
    static char path[CLI_PATH]; /* beyond the eight of cli_file */
    snprintf(path, sizeof path, "%s/small.json", cli_folder);
    cr_assert_not_null(config);
    json_object_set_new(config, "vocab_size", json_integer(264));
    cr_assert_eq(json_dump_file(config, path, 0), 0);
    json_decref(config);
    return path;
}

#define OF_LENGTH(seq, global)                                                                               \
    "--data " TEXT " --seq-length " seq " --micro-batch-size 2 --global-batch-size " global                  \
    " --log-interval 1 --lr 0.002 "
#define STEPS OF_LENGTH("16", "4")

static void expect_ok(const char *arguments)
{
    cli_result r = cli_run("%s", arguments);
    cli_expect_success(&r, arguments);
    cli_free(&r);
}

static void train_ok(const char *more)
{
    char line[CLI_LINE];
    snprintf(line, sizeof line, "train --engine sim --layout dp2 --config %s " STEPS "%s", small_config(),
             more);
    expect_ok(line);
}

static void train_refused(const char *more, const char *words)
{
    char line[CLI_LINE];
    snprintf(line, sizeof line, "train %s", more);
    cli_result r = cli_run("%s", line);
    cr_expect_eq(r.code, 2, "%s: exit code %d", line, r.code);
    cr_expect(strstr(r.err, words) != NULL, "%s: expected '%s' in\n%s", line, words, r.err);
    cli_free(&r);
}

static void expect_same_file(const char *a, const char *b)
{
    char *x, *y;
    uint64_t m, n;
    cr_assert_eq(assay_read_file(a, 1 << 26, &x, &m), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_read_file(b, 1 << 26, &y, &n), ASSAY_OK, "%s", assay_error_message());
    cr_expect(m == n && memcmp(x, y, m) == 0, "%s and %s differ", a, b);
    free(x);
    free(y);
}

/* Losses of the lines of a metrics file; how many. */
static int read_losses(const char *path, double *losses, int most)
{
    char *text = cli_read(path);
    int n = 0;
    for (char *line = strtok(text, "\n"); line != NULL && n < most; line = strtok(NULL, "\n")) {
        json_t *o = json_loads(line, 0, NULL);
        cr_assert_not_null(o, "%s", line);
        cr_expect_eq(json_integer_value(json_object_get(o, "iteration")), n + 1);
        losses[n++] = json_real_value(json_object_get(o, "loss"));
        json_decref(o);
    }
    free(text);
    return n;
}

Test(train, a_run_that_goes_on_is_the_run_that_never_stopped)
{
    char line[CLI_LINE], a[CLI_PATH], b[CLI_PATH];
    double whole[8], parts[8];
    snprintf(line, sizeof line, "--train-iters 5 --save %s --save-interval 2 --export %s", cli_file("whole"),
             cli_file("new/trained"));
    train_ok(line);
    /* The same data, ended at iteration 2, and its metrics behind it: as if the run had died in iteration 4. */
    snprintf(line, sizeof line, "cp -r %s %s && rm -r %s/iter_0000004 %s/iter_0000005", cli_file("whole"),
             cli_file("parts"), cli_file("parts"), cli_file("parts"));
    cr_assert_eq(system(line), 0);
    snprintf(line, sizeof line, "--train-iters 5 --save-interval 2 --save %s --load %s", cli_file("parts"),
             cli_file("parts"));
    train_ok(line);
    for (int k = 0; k < 2; k++) {
        const char *kind = k == 0 ? "model" : "optimizer"; /* fp32: weights are their masters */
        snprintf(a, sizeof a, "%s/iter_0000005/%s-00001-of-00001.safetensors", cli_file("whole"), kind);
        snprintf(b, sizeof b, "%s/iter_0000005/%s-00001-of-00001.safetensors", cli_file("parts"), kind);
        expect_same_file(a, b);
    }
    cr_expect_eq(read_losses(cli_file("whole/metrics.jsonl"), whole, 8), 5);
    cr_expect_eq(read_losses(cli_file("parts/metrics.jsonl"), parts, 8), 5);
    for (int i = 0; i < 5; i++)
        cr_expect_eq(whole[i], parts[i], "loss of iteration %d", i + 1);
    /* The exported folder is a model. */
    snprintf(line, sizeof line, "train --engine ref --model %s " STEPS "--train-iters 1",
             cli_file("new/trained"));
    expect_ok(line);
}

/* Weights that were stored in fp8 are trained and written as F32: nobody is told to look for scales. */
/* As Megatron-LM's may; where that changes a number it is said, once. */
Test(train, a_run_goes_on_with_other_rows_in_a_microbatch)
{
    static const char said[] =
        "micro_batch_size: trained with 2, continued with 1: dropout draws by microbatch";
    static const char *const dropout[] = {"0.1", "0"};
    for (int i = 0; i < 2; i++) {
        char line[CLI_LINE];
        snprintf(line, sizeof line, "--hidden-dropout %s --train-iters 1 --save run%d", dropout[i], i);
        train_ok(line);
        cli_result r = cli_run(
            "train --engine sim --layout dp2 --config %s --data " TEXT
            " --seq-length 16 --micro-batch-size 1 --global-batch-size 4 --lr 0.002 --hidden-dropout %s "
            "--train-iters 2 --load run%d",
            small_config(), dropout[i], i);
        cli_expect_success(&r, dropout[i]);
        cr_expect_eq(cli_count(r.err, said), i == 0 ? 1 : 0, "%s", r.err);
        cli_free(&r);
    }
}

/* DIR/ is DIR: of what is made, and of what a run goes on with. */
Test(train, folders_may_end_in_slashes)
{
    train_ok("--train-iters 1 --save run/ --export trained//");
    cr_expect(cli_exists(cli_file("trained/model.safetensors")));
    train_ok("--train-iters 2 --save run/ --load run//");
    expect_ok("ckpt convert " PADDLE " states/");
    expect_ok("ckpt convert states/ paddle/ --form paddle");
    expect_ok("ckpt reshard run/iter_0000002/ again/");
    cr_expect(cli_exists(cli_file("paddle/config.json")) && cli_exists(cli_file("again/manifest.json")));
}

/* As on a cluster: runs lie in a scratch file system, to which a link leads. */
Test(train, folders_lie_where_links_lead)
{
    cr_assert_eq(mkdir(cli_file("scratch"), 0700), 0);
    cr_assert_eq(symlink("scratch", cli_file("runs")), 0);
    cr_assert_eq(symlink("scratch/r", cli_file("current")), 0);
    train_ok("--train-iters 1 --save runs/r --save-interval 1 --export runs/x");
    train_ok("--train-iters 2 --save-interval 1 --load current --save current");
    cr_expect(cli_exists(cli_file("scratch/r/iter_0000002/manifest.json")));
    expect_ok("ckpt convert runs/x runs/y");
    expect_ok("ckpt reshard current runs/z");
    expect_ok("ckpt convert " PADDLE " runs/states");
    expect_ok("ckpt convert --form paddle runs/states runs/p");
    /* What is made is no link itself, also none that leads nowhere. */
    cr_assert_eq(symlink("none", cli_file("runs/dead")), 0);
    static const char *const verbs[] = {"convert runs/x", "reshard current",
                                        "convert --form paddle runs/states"};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        cli_result r = cli_run("ckpt %s runs/dead", verbs[i]);
        cli_expect_refusal(&r, verbs[i], (const char *const[]){"exists already", NULL});
        cli_free(&r);
    }
    train_refused("--engine ref --model runs/x " STEPS "--train-iters 1 --save runs/dead", "exists");
    train_refused("--engine ref --model runs/x " STEPS "--train-iters 1 --export runs/dead", "exists");
    cr_expect_not(cli_exists(cli_file("scratch/none")));
}

/* What is kept for whoever generates text is of no meaning to a run: a checkpoint of before has none of it. */
Test(train, a_run_goes_on_with_other_words_for_others)
{
    char line[CLI_LINE];
    json_t *config = json_load_file(small_config(), 0, NULL);
    cr_assert_not_null(config);
    (void)json_object_del(config, "bos_token_id");
    (void)json_object_del(config, "use_cache");
    json_object_set_new(config, "eos_token_id", json_pack("[i,i]", 7, 9));
    json_object_set_new(config, "router_aux_loss_coef", json_real(0.5));
    cr_assert_eq(json_dump_file(config, cli_file("other.json"), 0), 0);
    json_decref(config);
    train_ok("--train-iters 1 --save run --save-interval 1");
    snprintf(line, sizeof line,
             "train --engine sim --layout dp2 --config other.json " STEPS
             "--train-iters 2 --load run --save run");
    expect_ok(line);
}

Test(train, nothing_is_made_inside_a_checkpoint)
{
    static const char words[] = "x: would be written among the files of the checkpoint";
    char line[CLI_LINE];
    train_ok("--train-iters 1 --save run --save-interval 1");
    static const char *const refused[] = {"--save", "--export", "--metrics"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(line, sizeof line, "--engine ref --config %s " STEPS "--train-iters 1 %s run/iter_0000001/x",
                 small_config(), refused[i]);
        train_refused(line, words);
    }
    static const char *const verbs[] = {"ckpt convert run",
                                        "ckpt reshard run",
                                        "ckpt convert --form paddle run",
                                        "ckpt convert " MODELS "llama",
                                        "ckpt merge run run",
                                        "batch --seq-length 16 --data " TEXT " --out"};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        cli_result r = cli_run("%s run/iter_0000001/x", verbs[i]);
        cli_expect_refusal(&r, verbs[i], (const char *const[]){words, NULL});
        cli_free(&r);
    }
    expect_ok("ckpt verify run/iter_0000001");
}

Test(train, an_exported_model_is_not_quantized)
{
    char line[CLI_LINE];
    snprintf(line, sizeof line, "--train-iters 1 --export %s", cli_file("plain"));
    train_ok(line);
    snprintf(line, sizeof line, "ckpt convert %s %s --dtype fp8", cli_file("plain"), cli_file("fp8"));
    expect_ok(line);
    snprintf(line, sizeof line, "train --engine ref --model %s " STEPS "--train-iters 1 --export %s",
             cli_file("fp8"), cli_file("trained"));
    expect_ok(line);
    char *config = cli_read(cli_file("trained/config.json"));
    cr_expect_null(strstr(config, "quantization_config"), "%s", config);
    free(config);
}

Test(train, another_run_is_not_gone_on_with)
{
    char line[CLI_LINE];
    const char *config = small_config();
    snprintf(line, sizeof line, "--train-iters 2 --save %s", cli_file("a"));
    train_ok(line);
    snprintf(line, sizeof line, "--train-iters 2 --save %s", cli_file("b"));
    train_ok(line);
    snprintf(line, sizeof line,
             "--engine sim --layout dp2 --config %s " STEPS "--train-iters 3 --seed 7 --load %s", config,
             cli_file("a"));
    train_refused(line, "which are not the first of this run's data");
    snprintf(line, sizeof line,
             "--engine sim --layout dp2 --config %s " STEPS "--train-iters 3 --load %s --metrics %s", config,
             cli_file("a"), cli_file("b/metrics.jsonl"));
    train_refused(line, "is of run ");
    snprintf(line, sizeof line, "--engine sim --layout dp2 --config %s " STEPS "--train-iters 3 --save %s",
             config, cli_file("a"));
    train_refused(line, "exists; expected a new folder");
    snprintf(line, sizeof line, "--engine sim --draw-weights 1 --model %s " STEPS "--train-iters 3 --load %s",
             MODELS "qwen3", cli_file("a"));
    train_refused(line, "error: ");
    /* what was refused leaves nothing: the command with what it asks for is not refused for that */
    for (int again = 0; again < 2; again++) {
        snprintf(line, sizeof line,
                 "--engine sim --layout dp2 --config %s " STEPS
                 "--train-iters 3 --lr 1e-4 --load %s --save %s %s",
                 config, cli_file("a"), cli_file("new"), again ? "--override-checkpoint-args" : "");
        if (again == 0)
            train_refused(line, "--override-checkpoint-args");
        cr_expect(!cli_exists(cli_file("new")));
    }
    char whole[CLI_LINE + 8];
    snprintf(whole, sizeof whole, "train %s", line);
    expect_ok(whole);
}

/* What a run needs lies in TMPDIR, however long its path is, and is gone behind it. */
Test(train, a_long_tmpdir_is_used)
{
    char tmp[300], before[300];
    snprintf(tmp, sizeof tmp, "%s/%0150d", cli_folder, 7);
    cr_assert_eq(assay_mkdir_p(tmp), ASSAY_OK);
    snprintf(before, sizeof before, "%s", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    cr_assert_eq(setenv("TMPDIR", tmp, 1), 0);
    train_ok("--train-iters 1");
    cr_assert_eq(rmdir(tmp), 0, "something stays in TMPDIR");
    train_refused("--engine ref --config x --data x", "cannot make a folder assay-train-");
    cr_assert_eq(setenv("TMPDIR", before, 1), 0);
}

Test(train, hostile_arguments_are_refused)
{
    char line[CLI_LINE];
    const struct {
        const char *arguments, *words;
    } rows[] = {
        {STEPS "--train-iters 0", "--train-iters: expected at least 1 step"},
        {STEPS, "--train-iters: expected at least 1 step"},
        {OF_LENGTH("1000000", "4") "--train-iters 2", "fewer than seq_length"},
        {OF_LENGTH("16", "5") "--train-iters 2", "expected a multiple of --micro-batch-size"},
        {STEPS "--train-iters 2 --tokenizer " TOKENIZERS "llama3.json", "the model's vocabulary has 264"},
        {STEPS "--train-iters 2 --tokenizer /nowhere.json", "/nowhere.json"},
        {STEPS "--train-iters 2 --save-interval 2", "save-interval"},
        {STEPS "--train-iters 2 --export " TEXT, "exists; nothing is overwritten"},
        {STEPS "--train-iters 2 --log-interval 0", "--log-interval"},
        {STEPS "--train-iters 2 --load /nowhere", "/nowhere"},
        {STEPS "--train-iters 2 --model " MODELS "llama", "found both"},
        {"--train-iters 2 --seq-length 16", "--data: expected"},
        {"--train-iters 2 --data " MODELS "llama/train_batch.safetensors --seq-length 8", "is a batch file"},
        {STEPS "--train-iters 2 --mask-probability 1", "--mask-probability"},
        {STEPS "--train-iters 2 --trace x", "--trace"},
    };
    const char *config = small_config();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(line, sizeof line, "--engine sim --config %s %s", config, rows[i].arguments);
        train_refused(line, rows[i].words);
    }
}

/* Of a batch file the seed orders nothing; it draws the weights of a configuration alone. */
Test(train, a_seed_that_draws_nothing_is_refused)
{
#define BATCH_FILE "--data " MODELS "llama/train_batch.safetensors --engine ref --train-iters 1 --seed 77 "
    static const struct {
        const char *more;
        bool draws;
    } rows[] = {
        {"--model " MODELS "llama", false},
        {"--config " MODELS "llama/config.json --draw-weights 5", false},
        {"--config " MODELS "llama/config.json", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[CLI_LINE];
        snprintf(line, sizeof line, "train " BATCH_FILE "%s", rows[i].more);
        if (rows[i].draws)
            expect_ok(line);
        else
            train_refused(line + strlen("train "), "--seed: has no meaning for data that is there already");
    }
}

/* The reference's run, stopped and gone on with: by itself without a trace of it, by the engine within rounding, which the
 * reference takes over in turn. */
Test(train, either_engine_goes_on_where_the_other_stopped)
{
    char line[CLI_LINE], a[CLI_PATH], b[CLI_PATH];
    double whole[8], parts[8];
    snprintf(line, sizeof line,
             "train --engine ref --precision fp32 --layout tp2 --config %s " STEPS
             "--train-iters 6 --save %s --save-interval 2",
             small_config(), cli_file("whole"));
    expect_ok(line);
    snprintf(line, sizeof line, "cp -r %s %s && cd %s && rm -r iter_0000004 iter_0000006 && cp -r . ../mixed",
             cli_file("whole"), cli_file("parts"), cli_file("parts"));
    cr_assert_eq(system(line), 0);
    snprintf(line, sizeof line,
             "train --engine ref --precision fp32 --layout tp2 --config %s " STEPS
             "--train-iters 6 --save-interval 2 --save %s --load %s",
             small_config(), cli_file("parts"), cli_file("parts"));
    expect_ok(line);
    for (int k = 0; k < 2; k++) {
        const char *kind = k == 0 ? "model" : "optimizer";
        snprintf(a, sizeof a, "%s/iter_0000006/%s-00001-of-00001.safetensors", cli_file("whole"), kind);
        snprintf(b, sizeof b, "%s/iter_0000006/%s-00001-of-00001.safetensors", cli_file("parts"), kind);
        expect_same_file(a, b);
    }
    cr_assert_eq(read_losses(cli_file("whole/metrics.jsonl"), whole, 8), 6);
    cr_assert_eq(read_losses(cli_file("parts/metrics.jsonl"), parts, 8), 6);
    for (int i = 0; i < 6; i++)
        cr_expect_eq(whole[i], parts[i], "loss of iteration %d", i + 1);
    snprintf(line, sizeof line, "--train-iters 4 --lr-decay-iters 6 --save %s --load %s", cli_file("mixed"),
             cli_file("mixed"));
    train_ok(line);
    snprintf(line, sizeof line,
             "train --engine ref --precision fp32 --config %s " STEPS "--train-iters 6 --save %s --load %s",
             small_config(), cli_file("mixed"), cli_file("mixed"));
    expect_ok(line);
    cr_assert_eq(read_losses(cli_file("mixed/metrics.jsonl"), parts, 8), 6);
    for (int i = 0; i < 6; i++)
        cr_expect_float_eq(whole[i], parts[i], 1e-4 * whole[i], "loss of iteration %d: %.9g, %.9g", i + 1,
                           whole[i], parts[i]);
}

/* Of seven checkpoints of each engine the last two and the best stay, and every one of them is gone on with. */
Test(train, old_checkpoints_go_and_the_best_stays)
{
    static const char *const engines[] = {"sim --layout dp2", "ref --precision fp32"};
    for (int i = 0; i < 2; i++) {
        char line[CLI_LINE], dir[CLI_PATH], path[CLI_PATH + 40];
        double losses[8];
        snprintf(dir, sizeof dir, "%s/run%d", cli_folder, i);
        snprintf(line, sizeof line,
                 "train --engine %s --config %s " STEPS
                 "--train-iters 7 --save %s --save-interval 1 --save-total-limit 2",
                 engines[i], small_config(), dir);
        expect_ok(line);
        snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
        cr_assert_eq(read_losses(path, losses, 8), 7);
        int best = 0;
        for (int k = 1; k < 7; k++)
            best = losses[k] < losses[best] ? k : best;
        for (int k = 0; k < 7; k++) {
            snprintf(path, sizeof path, "%s/iter_%07d", dir, k + 1);
            cr_expect_eq(access(path, F_OK) == 0, k >= 5 || k == best, "%s, the best is %d", path, best + 1);
        }
        cli_result r = cli_run("ckpt inspect %s/best", dir);
        snprintf(path, sizeof path, "step           %d,", best + 1);
        cr_expect_not_null(strstr(r.out, path), "%s%s", r.out, r.err);
        cli_free(&r);
        snprintf(line, sizeof line,
                 "train --engine %s --config %s " STEPS
                 "--train-iters 8 --lr-decay-iters 7 --load %s/latest --save %s/more",
                 engines[i], small_config(), dir, dir);
        expect_ok(line);
    }
    char line[CLI_LINE];
    snprintf(line, sizeof line,
             "step --engine ref --model " MODELS "llama --batch " MODELS
             "llama/train_batch.safetensors --out %s --save-total-limit 2",
             cli_file("out"));
    cli_result r = cli_run("%s", line);
    cr_expect_eq(r.code, 2);
    cr_expect_not_null(strstr(r.err, "without --save-interval"), "%s", r.err);
    cli_free(&r);
}

/* Both engines on the same text: fp32 drifts from double by rounding alone, and both learn. */
Test(train, the_curves_of_both_engines_are_one)
{
    char line[CLI_LINE];
    double sim[12], ref[12];
    snprintf(line, sizeof line, "--train-iters 12 --metrics %s", cli_file("sim.jsonl"));
    train_ok(line);
    snprintf(line, sizeof line, "train --engine ref --config %s " STEPS "--train-iters 12 --metrics %s",
             small_config(), cli_file("ref.jsonl"));
    expect_ok(line);
    cr_assert_eq(read_losses(cli_file("sim.jsonl"), sim, 12), 12);
    cr_assert_eq(read_losses(cli_file("ref.jsonl"), ref, 12), 12);
    for (int i = 0; i < 12; i++)
        cr_expect_float_eq(sim[i], ref[i], 1e-4 * ref[i], "iteration %d: %.9g and %.9g", i + 1, sim[i],
                           ref[i]);
    cr_expect_lt(ref[11], ref[0] - 0.3);
}

/* SIGTERM behind the first line: the step that runs is finished and saved, and the run can go on. */
Test(train, a_signal_ends_a_run_behind_a_step_with_its_checkpoint)
{
    char line[CLI_LINE], *text = NULL;
    char save[CLI_PATH];
    snprintf(save, sizeof save, "%s/stopped", cli_folder);
    snprintf(line, sizeof line,
             "%s/assay train --engine sim --layout dp2 --config %s " OF_LENGTH(
                 "2", "4") "--train-iters 100000 --save %s > %s 2> %s & echo $! > %s",
             ASSAY_BIN_DIR, small_config(), save, cli_file("out"), cli_file("err"), cli_file("pid"));
    cr_assert_eq(system(line), 0);
    for (int i = 0; i < 600; i++) {
        free(text);
        text = cli_read(cli_file("out"));
        if (strstr(text, "iteration") != NULL)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    free(text);
    text = cli_read(cli_file("pid"));
    const pid_t pid = (pid_t)atoi(text);
    free(text);
    cr_assert_gt(pid, 1);
    cr_assert_eq(kill(pid, SIGTERM), 0);
    for (int i = 0; i < 300 && kill(pid, 0) == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    text = cli_read(cli_file("err"));
    cr_expect(strstr(text, "its checkpoint lies in") != NULL, "%s", text);
    cr_expect(strstr(text, "stopped by a signal") != NULL, "%s", text);
    free(text);
    text = cli_read(cli_file("stopped/metrics.jsonl"));
    int lines = 0;
    for (const char *c = text; *c != '\0'; c++)
        lines += *c == '\n';
    free(text);
    snprintf(line, sizeof line, "%s/iter_%07d/manifest.json", save, lines);
    cr_expect_eq(access(line, R_OK), 0, "%d lines, but no %s", lines, line);
}

Test(train, a_batch_file_is_made_once_and_trains)
{
    char line[CLI_LINE];
    snprintf(line, sizeof line,
             "batch --data " TEXT " --tokenizer " TOKENIZERS
             "prefix.json --eod-token </s> --seq-length 16 --train-iters 2 --pack --out %s",
             cli_file("b.safetensors"));
    expect_ok(line);
    cli_result r = cli_run("%s", line);
    cr_expect_eq(r.code, 2);
    cr_expect(strstr(r.err, "exists; nothing is overwritten") != NULL, "%s", r.err);
    cli_free(&r);
    snprintf(line, sizeof line,
             "batch --data " TEXT " --tokenizer " TOKENIZERS
             "prefix.json --eod-token </t> --seq-length 16 --out %s",
             cli_file("c.safetensors"));
    r = cli_run("%s", line);
    cr_expect(r.code == 2 && strstr(r.err, "is no added token") != NULL, "%s", r.err);
    cli_free(&r);
    json_t *config = json_load_file(MODELS "llama/config.json", 0, NULL);
    json_object_set_new(config, "vocab_size", json_integer(520));
    cr_assert_eq(json_dump_file(config, cli_file("wide.json"), 0), 0);
    json_decref(config);
    snprintf(line, sizeof line, "train --engine sim --config %s --data %s", cli_file("wide.json"),
             cli_file("b.safetensors"));
    expect_ok(line);
}
