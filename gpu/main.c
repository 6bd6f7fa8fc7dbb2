/* assay-gpu (CUDA, cuBLASLt, NCCL) and assay-sim (the same sources on gpu/sim): the engine as a program.  A
 * rank is a process. */
#include "gpu/main.h"
#include "core/base/suggest.h"
#include "core/files/checkpoint_async.h"
#include "core/run/options.h"
#include "gpu/bench.h"
#include "gpu/illegal.h"
#include "gpu/train.h"

#include <stdlib.h>
#include <string.h>

#if ASSAY_SIM
static const char program[] = "assay-sim";
#else
static const char program[] = "assay-gpu";
#endif
enum { EXIT_NOT_CHECKED = 2 };

static void usage(FILE *out)
{
    fprintf(out,
            "%s: the engine of assay; `assay` starts it, one process for each rank\n"
            "  %s step --model DIR --batch FILE --out FILE [options]   (%s step --help)\n"
            "  %s ops --request DIR --out DIR [--variant LIST]         run the operations of a trace\n"
            "  %s bench --model DIR --batch FILE --out DIR [options]  times of a step and its operations\n"
            "  %s doctor [--ops]                                       what it runs on (and every variant), "
            "as JSON\n"
            "  %s probe --request FILE --out FILE                      how its units add, for assay probe\n",
            program, program, program, program, program, program, program);
}

static assay_status no_arguments(void *user, const char *name, const char *text)
{
    (void)user;
    (void)name;
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "step: unexpected argument '%.64s'", text ? text : "");
}

static assay_status step_verb(int argc, char **argv)
{
    assay_train_options o;
    assay_train_options_default(&o);
    ASSAY_TRY(assay_options_parse(argc, argv, "Trains a model folder on a batch file.", "", &o,
                                  ASSAY_FOR_STEP, NULL, no_arguments, NULL));
    return gpu_train(&o);
}

typedef struct ops_arguments {
    char request[ASSAY_PATH], out[ASSAY_PATH], illegal[ASSAY_PATH];
    int64_t place, times;
    bool every_rung;
} ops_arguments;

static assay_status take_ops_argument(void *user, const char *name, const char *text)
{
    ops_arguments *a = user;
    ASSAY_CHECK(name, ASSAY_INVALID_ARGUMENT, "ops: unexpected argument '%.64s'", text ? text : "");
    if (strcmp(name, "place") == 0)
        return assay_option_count(name, text, 0, GPU_PLACES - 1, &a->place);
    if (strcmp(name, "time") == 0)
        return assay_option_count(name, text, 1, 100000, &a->times);
    if (strcmp(name, "every_rung") == 0) {
        a->every_rung = true;
        return ASSAY_OK;
    }
    if (strcmp(name, "illegal") == 0)
        return assay_option_text(name, text, a->illegal, ASSAY_PATH);
    return assay_option_text(name, text, strcmp(name, "out") == 0 ? a->out : a->request, ASSAY_PATH);
}

static assay_status ops_verb(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"request", "DIR", "trace with the inputs of operations"},
        {"out", "DIR", "trace with their outputs, too"},
        {"place", "0|1|2",
         "0: as allocated; 1: other addresses and garbage; 2: aligned "
         "to an element alone"},
        {"every_rung", NULL, "each on every rung that takes it, without --variant"},
        {"illegal", "FILE",
         "list of ways to break them: each has to be refused; out is "
         "a file of what was said"},
        {"time", "N",
         "run each N times and time them by events; out is a JSON "
         "file of seconds and of what the device can do"},
        {NULL, NULL, NULL}};
    assay_train_options o;
    ops_arguments a = {.place = 0};
    assay_train_options_default(&o);
    ASSAY_TRY(assay_options_parse(argc, argv, "Runs the operations of a trace.", "", &o, ASSAY_FOR_OPS, extra,
                                  take_ops_argument, &a));
    ASSAY_CHECK(a.request[0] && a.out[0], ASSAY_INVALID_ARGUMENT,
                "ops: --request DIR and --out DIR are needed");
    ASSAY_CHECK((a.times > 0) + (a.place > 0) + (a.illegal[0] != '\0') <= 1, ASSAY_INVALID_ARGUMENT,
                "ops: expected one of --place, --illegal and --time");
    ASSAY_CHECK(!a.every_rung || (a.times == 0 && a.illegal[0] == '\0' && o.variant[0] == '\0'),
                ASSAY_INVALID_ARGUMENT,
                "ops: --every-rung takes no --variant, --illegal or --time beside it");
    if (a.illegal[0] != '\0')
        return gpu_ops_illegal_verb(a.request, a.illegal, a.out, o.variant);
    if (a.times > 0)
        return gpu_ops_time_verb(a.request, a.out, o.variant, a.times);
    const gpu_ops_form form = {o.variant, (int)a.place, a.every_rung, o.collective_timeout};
    return gpu_ops_verb(a.request, a.out, &form);
}

static assay_status probe_verb(int argc, char **argv)
{
    static const assay_extra_option extra[] = {{"request", "FILE", "questions of assay probe"},
                                               {"out", "FILE", "their answers"},
                                               {NULL, NULL, NULL}};
    assay_train_options o;
    ops_arguments a = {.place = 0};
    assay_train_options_default(&o);
    ASSAY_TRY(assay_options_parse(argc, argv, "Answers questions about the device.", "", &o, ASSAY_FOR_OPS,
                                  extra, take_ops_argument, &a));
    ASSAY_CHECK(a.request[0] && a.out[0], ASSAY_INVALID_ARGUMENT,
                "probe: --request FILE and --out FILE are needed");
    return gpu_probe_verb(a.request, a.out);
}

static assay_status take_doctor_argument(void *user, const char *name, const char *text)
{
    ASSAY_CHECK(name, ASSAY_INVALID_ARGUMENT, "doctor: unexpected argument '%.64s'", text ? text : "");
    *(bool *)user = true;
    return ASSAY_OK;
}

static assay_status doctor_verb(int argc, char **argv)
{
    static const assay_extra_option extra[] = {{"ops", NULL, "every operation's kernels, too"},
                                               {NULL, NULL, NULL}};
    bool operations = false;
    ASSAY_TRY(assay_options_parse(argc, argv, "What the engine runs on, as JSON.", "", NULL, 0, extra,
                                  take_doctor_argument, &operations));
    return gpu_doctor_verb(operations);
}

static assay_status take_bench_argument(void *user, const char *name, const char *text)
{
    gpu_bench_options *b = user;
    ASSAY_CHECK(name, ASSAY_INVALID_ARGUMENT, "bench: unexpected argument '%.64s'", text ? text : "");
    if (strcmp(name, "warmup") == 0)
        return assay_option_count(name, text, 0, 1000000, &b->warmup);
    if (strcmp(name, "steps") == 0)
        return assay_option_count(name, text, 0, 1000000, &b->steps);
    if (strcmp(name, "instances") == 0) {
        b->instances = true;
        return ASSAY_OK;
    }
    return assay_option_text(name, text, b->out, sizeof b->out);
}

static assay_status bench_verb(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"out", "DIR", "folder that takes a file of each rank"},
        {"warmup", "N", "steps before the measured ones (default 2)"},
        {"steps", "N", "steps measured without events, and as many with (default 10)"},
        {"instances", NULL, "a line for each instance of an operation"},
        {NULL, NULL, NULL}};
    assay_train_options o;
    gpu_bench_options b = {.warmup = 2, .steps = 10};
    assay_train_options_default(&o);
    ASSAY_TRY(assay_options_parse(argc, argv, "Times of a training step and its operations.", "", &o,
                                  ASSAY_FOR_BENCH, extra, take_bench_argument, &b));
    return gpu_bench_verb(&o, &b);
}

typedef struct verb {
    const char *name;
    assay_status (*run)(int argc, char **argv);
} verb;

int main(int argc, char **argv)
{
    static const verb verbs[] = {{"step", step_verb},     {"ops", ops_verb},     {"bench", bench_verb},
                                 {"doctor", doctor_verb}, {"probe", probe_verb}, {NULL, NULL}};
    const char *word = argc > 1 ? argv[1] : "";
    const verb *v = verbs;
    assay_suggestion near;
    int code;
    if (assay_async_writer(argc, argv, &code))
        return code;
#if ASSAY_SIM
    /* Its kernels are held to this by the tests; here it would cost every rank an addr2line or two. */
    setenv("ASSAY_SIM_CALLERS", "0", 0);
#endif
    if (strcmp(word, "--help") == 0 || strcmp(word, "help") == 0) {
        usage(stdout);
        return EXIT_SUCCESS;
    }
    assay_suggest_begin(&near, word, strlen(word));
    while (v->name && strcmp(v->name, word) != 0)
        assay_suggest_add(&near, (v++)->name);
    if (!v->name) {
        if (word[0] != '\0')
            fprintf(stderr, "%s: error: unknown verb '%.64s'%s\n", program, word,
                    assay_suggest_end(&near, ""));
        usage(stderr);
        return EXIT_NOT_CHECKED;
    }
    if (v->run(argc - 1, argv + 1) == ASSAY_OK)
        return EXIT_SUCCESS;
    assay_error_print(stderr, program, getenv("ASSAY_DEBUG") != NULL);
    return EXIT_NOT_CHECKED;
}
