/* A run that goes on with another number of data-parallel ranks reads the samples that it would have read: the recorded ids of every
 * microbatch beside those of the run that never stopped.  A checkpoint that says otherwise is refused. */
#include "core/base/hash.h"
#include "core/base/sha256.h"
#include "core/files/checkpoint_internal.h"
#include "core/files/trace.h"
#include "tests/support/cli.h"
#include "tests/support/engine.h"
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <sys/stat.h>

TestSuite(checkpoint_order, .init = cli_setup, .fini = cli_teardown, .timeout = 600);

#define CONFIG(vocab)                                                                                        \
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_act\":\"silu\","            \
    "\"num_hidden_layers\":1,\"hidden_size\":8,\"intermediate_size\":6,\"num_attention_heads\":2,"           \
    "\"num_key_value_heads\":1,\"head_dim\":4,\"vocab_size\":" vocab                                         \
    ",\"max_position_embeddings\":32,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"                          \
    "\"tie_word_embeddings\":false,\"attention_bias\":false}"

enum { STEPS = 4, STOP = 2, MICROBATCHES = 4 };
static const char *const engines[] = {"ref", "sim"};

/* What the microbatches of steps STOP.. read, as hashes. */
typedef struct samples {
    char hash[STEPS][MICROBATCHES][ASSAY_HASH_HEX];
    int found;
} samples;

__attribute__((format(printf, 4, 5))) static void step(const char *engine, const char *layout,
                                                       const char *batch, const char *more, ...)
{
    char line[CLI_LINE / 2];
    va_list a;
    va_start(a, more);
    vsnprintf(line, sizeof line, more, a);
    va_end(a);
    cli_result r = cli_run("step --precision fp32 --engine %s --layout %s --model %s --batch %s " DRAWN
                           "--lr-decay-iters 9 --out %s %s",
                           engine, layout, cli_file("model"), cli_file(batch), cli_file("out"), line);
    cli_expect_success(&r, line);
    cli_free(&r);
}

static void read_samples(const char *folder, samples *out)
{
    assay_trace *t = NULL;
    *out = (samples){.found = 0};
    cr_assert_eq(assay_trace_open(&t, cli_file(folder), true), ASSAY_OK, "%s", assay_error_message());
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        for (int64_t i = 0; i < assay_trace_n_tensors(t, rank); i++) {
            const assay_trace_tensor *x = assay_trace_tensor_at(t, rank, i);
            if (strcmp(x->name, "input_ids") != 0 || x->step < STOP)
                continue;
            cr_assert(x->microbatch >= 0 && x->microbatch < MICROBATCHES && x->step < STEPS);
            char *hash =
                out->hash[x->step][x->microbatch]; /* once more on other tp ranks, and by the backward */
            cr_expect(hash[0] == '\0' || strcmp(hash, x->hash) == 0, "%s: step %d, microbatch %d twice",
                      folder, (int)x->step, (int)x->microbatch);
            out->found += hash[0] == '\0';
            snprintf(hash, ASSAY_HASH_HEX, "%s", x->hash);
        }
    assay_trace_close(t);
}

static int different(const samples *a, const samples *b)
{
    int n = 0;
    for (int s = STOP; s < STEPS; s++)
        for (int m = 0; m < MICROBATCHES; m++)
            n += strcmp(a->hash[s][m], b->hash[s][m]) != 0;
    return n;
}

/* "train", and "turned": the same with its steps in another order. */
static void make_inputs(void)
{
    const int64_t shape[4] = {STEPS, MICROBATCHES, 2, 8};
    engine_write_config(cli_file("model"), CONFIG("61"));
    engine_write_batch(cli_file("train"), shape, 4, 61, 3);
    assay_tensorfile *f = NULL;
    assay_tensorwriter *w = NULL;
    cr_assert_eq(assay_tensorfile_open(&f, cli_file("train")), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_tensorwriter_create(&w, cli_file("turned")), ASSAY_OK);
    static const char *const names[] = {"input_ids", "labels"};
    const int64_t n = MICROBATCHES * 2 * 8;
    for (int k = 0; k < 2; k++) {
        const assay_tensor_info *info = assay_tensorfile_find(f, names[k]);
        int64_t turned[STEPS * MICROBATCHES * 2 * 8];
        for (int s = 0; s < STEPS; s++)
            memcpy(turned + s * n, (const int64_t *)info->data + (s + 1) % STEPS * n,
                   (size_t)n * sizeof *turned);
        cr_assert_eq(assay_tensorwriter_add_copy(w, names[k], ASSAY_I64, shape, 4, turned), ASSAY_OK);
    }
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK);
    assay_tensorwriter_destroy(w);
    assay_tensorfile_close(f);
}

Test(checkpoint_order, another_number_of_data_parallel_ranks_reads_on)
{
    static const char *const layouts[] = {"1", "dp2", "dp4", "dp4,zero3", "tp2,dp2"};
    samples whole, resumed, turned;
    make_inputs();
    step("sim", "dp2", "train", "--train-iters %d --trace %s", STEPS, cli_file("whole"));
    read_samples("whole", &whole);
    cr_assert_eq(whole.found, (STEPS - STOP) * MICROBATCHES);
    step("sim", "dp2", "train", "--train-iters %d --save %s", STOP, cli_file("c"));
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        step("sim", layouts[l], "train", "--train-iters %d --load %s --trace %s", STEPS, cli_file("c"),
             cli_file("resumed"));
        read_samples("resumed", &resumed);
        cr_expect_eq(resumed.found, (STEPS - STOP) * MICROBATCHES, "%s", layouts[l]);
        cr_expect_eq(different(&whole, &resumed), 0, "%s", layouts[l]);
        cr_assert_eq(assay_remove_tree(cli_file("resumed"), cli_folder), ASSAY_OK);
    }
    /* it would be seen: a run whose data are turned by a step reads other samples */
    step("sim", "dp4", "turned", "--train-iters %d --load %s --trace %s", STEPS, cli_file("c"),
         cli_file("other"));
    read_samples("other", &turned);
    cr_expect_eq(different(&whole, &turned), (STEPS - STOP) * MICROBATCHES);
}

static double last_loss(const char *layout, const char *batch, const char *more)
{
    assay_tensorfile *f = NULL;
    double loss;
    step("ref", layout, batch, "--train-iters %d %s", STEPS, more);
    cr_assert_eq(assay_tensorfile_open(&f, cli_file("out")), ASSAY_OK, "%s", assay_error_message());
    const assay_tensor_info *info = assay_tensorfile_find(f, "loss");
    cr_assert(info != NULL && info->dtype == ASSAY_F64 && info->bytes >= sizeof loss);
    memcpy(&loss, (const char *)info->data + info->bytes - sizeof loss, sizeof loss);
    assay_tensorfile_close(f);
    return loss;
}

/* The reference traces unsharded runs alone: its losses say what it read. */
Test(checkpoint_order, the_reference_reads_on_in_any_layout)
{
    static const char *const layouts[] = {"1", "dp2", "dp4", "dp4,zero3", "tp2,dp2"};
    char load[CLI_PATH + 16];
    make_inputs();
    step("ref", "dp2", "train", "--train-iters %d --save %s", STOP, cli_file("c"));
    snprintf(load, sizeof load, "--load %s", cli_file("c"));
    const double whole = last_loss("1", "train", ""), turned = last_loss("dp4", "turned", load);
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
        cr_expect_lt(fabs(last_loss(layouts[l], "train", load) - whole), 1e-5, "%s", layouts[l]);
    cr_expect_gt(fabs(turned - whole), 1e-3, "other samples have another loss");
}

/* Writes `value` to `key` of `group` in a checkpoint's state.json, and makes its manifest right again. */
static void change_state(const char *checkpoint, const char *group, const char *key, json_t *value)
{
    char path[CLI_PATH + 64], hash[ASSAY_SHA256_HEX];
    snprintf(path, sizeof path, "%s/state.json", checkpoint);
    json_t *state = json_load_file(path, 0, NULL);
    cr_assert(json_object_get(json_object_get(state, group), key) != NULL, "%s.%s", group, key);
    json_object_set_new(json_object_get(state, group), key, value);
    cr_assert_eq(json_dump_file(state, path, JSON_INDENT(4) | JSON_REAL_PRECISION(17)), 0);
    json_decref(state);
    cr_assert_eq(assay_sha256_file(path, hash), ASSAY_OK);
    struct stat sb;
    cr_assert_eq(stat(path, &sb), 0);
    snprintf(path, sizeof path, "%s/manifest.json", checkpoint);
    json_t *manifest = json_load_file(path, 0, NULL), *file;
    size_t i;
    json_array_foreach(json_object_get(manifest, "files"), i, file)
    {
        if (strcmp(json_string_value(json_object_get(file, "name")), "state.json") != 0)
            continue;
        json_object_set_new(file, "sha256", json_string(hash));
        json_object_set_new(file, "bytes", json_integer((json_int_t)sb.st_size));
    }
    cr_assert_eq(assay_checkpoint_manifest_hash(manifest, hash), ASSAY_OK);
    json_object_set_new(manifest, "sha256", json_string(hash));
    cr_assert_eq(json_dump_file(manifest, path, JSON_INDENT(4)), 0);
    json_decref(manifest);
}

#define TRAIN                                                                                                \
    "train --precision fp32 --engine %s --layout %s --config %s --data %s --seq-length 8 "                   \
    "--global-batch-size 4 "                                                                                 \
    "--micro-batch-size 1 "

/* Stored, not recomputed: whoever changes the count is told, in either engine and layout. */
Test(checkpoint_order, another_count_of_consumed_samples_is_refused)
{
    char text[4096], saved[CLI_PATH + 32];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + (i * i + i / 7) % 23);
    make_inputs();
    FILE *f = fopen(cli_file("text"), "w");
    cr_assert(f != NULL && fwrite(text, sizeof text, 1, f) == 1 && fclose(f) == 0);
    engine_write_config(cli_file("bytes"), CONFIG("257"));
    cli_result r = cli_run(TRAIN "--train-iters 2 --save %s", "sim", "dp2", cli_file("bytes/config.json"),
                           cli_file("text"), cli_file("s"));
    cli_expect_success(&r, "save");
    cli_free(&r);
    snprintf(saved, sizeof saved, "%s/iter_0000002", cli_file("s"));
    for (int planted = 0; planted < 2; planted++) {
        if (planted)
            change_state(saved, "data", "consumed_samples", json_integer(4)); /* 8 */
        for (int e = 0; e < 2; e++) {
            r = cli_run(TRAIN "%s --load %s", engines[e], e ? "dp4" : "1", cli_file("bytes/config.json"),
                        cli_file("text"), "--train-iters 3", cli_file("s"));
            cr_expect_eq(r.code, planted ? 2 : 0, "%s:\n%s", engines[e], r.err);
            cr_expect(!planted ||
                          strstr(r.err, "its 2 steps read 4 samples, which are not the first") != NULL,
                      "%s", r.err);
            cli_free(&r);
        }
    }
}

Test(checkpoint_order, random_streams_of_another_generator_are_left_only_when_told)
{
    make_inputs();
    step("sim", "dp2", "train", "--train-iters %d --save %s", STOP, cli_file("c"));
    change_state(cli_file("c"), "random", "generator", json_string("mt19937"));
    for (int e = 0; e < 2; e++)
        for (int told = 0; told < 2; told++) {
            cli_result r =
                cli_run("step --precision fp32 --engine %s --layout dp4 --model %s --batch %s " DRAWN
                        "--lr-decay-iters 9 --out %s --train-iters 3 --load %s%s",
                        engines[e], cli_file("model"), cli_file("train"), cli_file("out"), cli_file("c"),
                        told ? " --no-load-rng" : "");
            cr_expect_eq(r.code, told ? 0 : 2, "%s:\n%s", engines[e], r.err);
            cr_expect(strstr(r.err, told ? "random streams do not go on, this run's begin"
                                         : "its random streams are of generator mt19937, expected philox"),
                      "%s", r.err);
            cli_free(&r);
        }
}
