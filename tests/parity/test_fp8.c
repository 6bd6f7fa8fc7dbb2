/* Folders with fp8 weights and scales: every weight has the bits that torch gives it (golden/make_fp8.py), and both engines compute the model. */
#include "core/base/hash.h"
#include "core/base/json.h"
#include "tests/support/cli.h"
#include "tests/support/engine.h"

#include <unistd.h>

TestSuite(fp8, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

#define FP8 ASSAY_SOURCE_DIR "/golden/fp8/"
static const char *const cases[] = {"block128", "block_bf16", "block_e8m0", "tensor", "static", "moe"};
enum { CASES = sizeof cases / sizeof *cases };

static assay_tensorfile *open_file(const char *path)
{
    assay_tensorfile *f;
    cr_assert_eq(assay_tensorfile_open(&f, path), ASSAY_OK, "%s", assay_error_message());
    return f;
}

Test(fp8, converted_weights_are_torch_s)
{
    static const char *const types[] = {"fp64", "fp32", "bf16"};
    json_t *expected = NULL;
    cr_assert_eq(assay_hash_init(), ASSAY_OK);
    cr_assert_eq(assay_json_load(&expected, FP8 "expected.json"), ASSAY_OK);
    for (int c = 0; c < CASES; c++)
        for (int t = 0; t < 3; t++) {
            char out[CLI_PATH];
            snprintf(out, sizeof out, "%s/%s_%s", cli_folder, cases[c], types[t]);
            cli_result r = cli_run("ckpt convert " FP8 "%s %s --dtype %s --max-shard-size %d", cases[c], out,
                                   types[t], t == 1 ? 20000 : 1 << 30);
            cli_expect_success(&r, out);
            cli_free(&r);
            const json_t *weights = json_object_get(expected, cases[c]);
            assay_tensorfile *f = open_file(out);
            cr_expect_eq((size_t)assay_tensorfile_count(f), json_object_size(weights),
                         "%s: scales are no weights", out);
            for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
                const assay_tensor_info *w = assay_tensorfile_at(f, i);
                char found[ASSAY_SHA256_HEX];
                assay_sha256_bytes(w->data, w->bytes, found);
                const char *want =
                    json_string_value(json_object_get(json_object_get(weights, w->name), types[t]));
                cr_expect(want != NULL && strcmp(found, want) == 0, "%s: %s", out, w->name);
            }
            assay_tensorfile_close(f);
        }
    json_decref(expected);
}

/* --dtype fp8: codes and scales are those that the golden found by looking for the nearest number; all else is as it was. */
Test(fp8, written_blocks_are_the_nearest)
{
    json_t *expected = NULL;
    const char *options;
    json_t *weights;
    cr_assert_eq(assay_hash_init(), ASSAY_OK);
    cr_assert_eq(assay_json_load(&expected, FP8 "written.json"), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(json_object_size(expected), 5);
    assay_tensorfile *from = open_file(FP8 "plain");
    json_object_foreach(expected, options, weights)
    {
        char out[CLI_PATH], remove[CLI_LINE];
        snprintf(out, sizeof out, "%s/written", cli_folder);
        snprintf(remove, sizeof remove, "rm -rf %s", out);
        cr_assert_eq(system(remove), 0);
        cli_result r =
            cli_run("ckpt convert " FP8 "plain %s --dtype fp8 %s --max-shard-size 20000", out, options);
        cli_expect_success(&r, options);
        cli_free(&r);
        assay_tensorfile *f = open_file(out);
        cr_expect_eq((size_t)assay_tensorfile_count(f),
                     (size_t)assay_tensorfile_count(from) + json_object_size(weights));
        for (int64_t i = 0; i < assay_tensorfile_count(from); i++) {
            const assay_tensor_info *plain = assay_tensorfile_at(from, i);
            const assay_tensor_info *t = assay_tensorfile_find(f, plain->name);
            const json_t *want = json_object_get(weights, plain->name);
            char scale[512], found[ASSAY_SHA256_HEX];
            snprintf(scale, sizeof scale, "%s_scale_inv", plain->name);
            const assay_tensor_info *s = assay_tensorfile_find(f, scale);
            cr_assert(t != NULL && (want != NULL) == (s != NULL), "%s: %s", options, plain->name);
            if (want == NULL) {
                cr_expect(t->dtype == plain->dtype && t->bytes == plain->bytes &&
                              memcmp(t->data, plain->data, t->bytes) == 0,
                          "%s", plain->name);
                continue;
            }
            assay_sha256_bytes(t->data, t->bytes, found);
            cr_expect_str_eq(found, json_string_value(json_object_get(want, "codes")), "%s: %s", options,
                             plain->name);
            assay_sha256_bytes(s->data, s->bytes, found);
            cr_expect_str_eq(found, json_string_value(json_object_get(want, "scales")), "%s: %s", options,
                             scale);
        }
        assay_tensorfile_close(f);
    }
    assay_tensorfile_close(from);
    json_decref(expected);
}

/* The configuration says what was written, both engines run it, and what makes no sense is refused before anything is made. */
Test(fp8, written_folders_are_models)
{
    cli_result r = cli_run("ckpt convert " FP8 "block128 %s --dtype fp8 --scale-fmt ue8m0", cli_file("b"));
    cli_expect_success(&r, "convert");
    cli_free(&r);
    json_t *config = NULL;
    char path[CLI_PATH];
    snprintf(path, sizeof path, "%s/config.json", cli_file("b"));
    cr_assert_eq(assay_json_load(&config, path), ASSAY_OK);
    const json_t *q = json_object_get(config, "quantization_config");
    char *text = json_dumps(q, JSON_COMPACT | JSON_SORT_KEYS);
    cr_expect_str_eq(text, "{\"activation_scheme\":\"dynamic\",\"fmt\":\"e4m3\",\"modules_to_not_convert\":["
                           "\"lm_head\"],\"quant_method\":\"fp8\",\"scale_fmt\":\"ue8m0\","
                           "\"weight_block_size\":[128,128]}");
    cr_expect_str_eq(json_string_value(json_object_get(config, "dtype")), "bfloat16");
    free(text);
    json_decref(config);
    for (int e = 0; e < 2; e++) {
        r = cli_run("step --engine %s --model %s --batch " FP8 "batch.safetensors --out %s",
                    e == 0 ? "ref" : "sim --layout tp1", cli_file("b"), cli_file("out"));
        cli_expect_success(&r, "step");
        cli_free(&r);
    }
    static const struct {
        const char *arguments, *words;
    } refused[] = {
        {"convert " FP8 "plain %s --weight-block-size 16,16", "of --dtype fp8 alone"},
        {"convert " FP8 "plain %s --dtype bf16 --scale-fmt float", "of --dtype fp8 alone"},
        {"reshard " FP8 "plain %s --scale-fmt float", "reshard does not use it"},
        {"convert " FP8 "plain %s --dtype fp8 --weight-block-size 16", "expected rows,columns"},
        {"convert " FP8 "plain %s --dtype fp8 --weight-block-size 16,0", "--weight-block-size"},
        {"convert " FP8 "plain %s --dtype fp8 --scale-fmt e8m0", "expected one of float, ue8m0"},
        {"convert " FP8 "plain %s --dtype fp8 --include *norm*", "no matrix of a linear layer"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char line[CLI_LINE];
        snprintf(line, sizeof line, "ckpt %s", refused[i].arguments);
        const char *out = cli_file("never");
        char full[CLI_LINE];
        char *at = strstr(line, "%s");
        snprintf(full, sizeof full, "%.*s%s%s", (int)(at - line), line, out, at + 2);
        r = cli_run("%s", full);
        cr_expect(r.code == 2 && strstr(r.err, refused[i].words) != NULL && access(out, F_OK) != 0,
                  "%s: expected '%s' in %s", full, refused[i].words, r.err);
        cli_free(&r);
    }
}

/* The folder itself as --model: the reference in double against transformers', the engine in fp32 against the reference. */
Test(fp8, models_are_run_from_the_folder)
{
    assay_tensorfile *golden = open_file(FP8 "logits.safetensors");
    for (int c = 0; c < CASES; c++) {
        static const struct {
            const char *words;
            double tolerance;
        } engines[] = {{"--engine ref --precision fp64", 1e-12},
                       {"--engine sim --layout tp1 --precision fp32", 1e-5}};
        for (int e = 0; e < 2; e++) {
            cli_result r = cli_run("step %s --model " FP8 "%s --batch " FP8 "batch.safetensors --out %s",
                                   engines[e].words, cases[c], cli_file("out"));
            cli_expect_success(&r, cases[c]);
            cli_free(&r);
            assay_tensorfile *f = open_file(cli_file("out"));
            const assay_tensor_info *found = assay_tensorfile_find(f, "logits");
            const assay_tensor_info *want = assay_tensorfile_find(golden, cases[c]);
            cr_assert(found != NULL && want != NULL && found->count == want->count);
            const double worst = tensor_difference(found, want);
            cr_expect(worst <= engines[e].tolerance, "%s %s: off by %g of the largest logit", cases[c],
                      engines[e].words, worst);
            assay_tensorfile_close(f);
        }
    }
    assay_tensorfile_close(golden);
}

/* A change of one file of a case, and what is said of it. */
Test(fp8, what_does_not_fit_is_refused)
{
    static const struct {
        const char *of, *file, *from, *to, *words;
    } rows[] = {
        {"block128", "config.json", "128,", "64,",
         "expected [3,2] scales of a [136,136] weight in blocks of 64 x 128"},
        {"block128", "config.json", "\"fp8\"", "\"compressed-tensors\"",
         "quant_method: expected fp8, found compressed-tensors"},
        {"block128", "config.json", "\"quantization_config\"", "\"quantization_of\"",
         "no quantization_config"},
        {"block128", "model.safetensors", "down_proj.weight_scale_inv", "down_proj.weight_scale_abc",
         "no tensor '"},
        {"block128", "model.safetensors", "down_proj.weight_scale_inv", "down_proj.weight_scale    ",
         "no tensor '"},
        {"tensor", "model.safetensors", "\"shape\":\\[41,32\\]", "\"shape\":[32,41]", "gate_proj.weight"},
        {"block_e8m0", "model.safetensors", "F8_E8M0", "F8_E5M2",
         "expected F32, BF16 or F8_E8M0, found F8_E5M2"},
        {"static", "config.json", "\"static\"", "\"dynamic\"", "input_scale' has no place"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char command[CLI_LINE];
        snprintf(command, sizeof command, "rm -rf %s && cp -r " FP8 "%s %s && sed -i 's|%s|%s|' %s/%s",
                 cli_file("x"), rows[i].of, cli_file("x"), rows[i].from, rows[i].to, cli_file("x"),
                 rows[i].file);
        cr_assert_eq(system(command), 0);
        for (int e = 0; e < 2; e++) {
            cli_result r = cli_run("step --engine %s --model %s --batch " FP8 "batch.safetensors --out %s",
                                   e == 0 ? "ref" : "sim", cli_file("x"), cli_file("out"));
            cr_expect(r.code == 2 && strstr(r.err, rows[i].words) != NULL, "row %zu: expected '%s' in %s", i,
                      rows[i].words, r.err);
            cli_free(&r);
        }
    }
}

/* The linear layers of the parameter table, whatever their names: DeepSeek-V3's kv_a_proj_with_mqa, Mixtral's w1. */
Test(fp8, every_linear_layer_is_written)
{
    static const struct {
        const char *model, *linear, *kept;
    } rows[] = {{"deepseek_v3", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
                 "model.layers.1.mlp.gate.weight"},
                {"deepseek_v3", "model.layers.1.self_attn.q_a_proj.weight", "lm_head.weight"},
                {"mixtral", "model.layers.0.block_sparse_moe.experts.0.w1.weight",
                 "model.layers.0.block_sparse_moe.gate.weight"},
                {"qwen2_moe", "model.layers.0.mlp.shared_expert.down_proj.weight",
                 "model.layers.0.mlp.shared_expert_gate.weight"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[CLI_PATH];
        snprintf(out, sizeof out, "%s/linear_%zu", cli_folder, i);
        cli_result r = cli_run("ckpt convert " MODELS "%s %s --dtype fp8", rows[i].model, out);
        cli_expect_success(&r, out);
        cli_free(&r);
        assay_tensorfile *f = open_file(out);
        const assay_tensor_info *linear = assay_tensorfile_find(f, rows[i].linear),
                                *kept = assay_tensorfile_find(f, rows[i].kept);
        cr_expect(linear != NULL && linear->dtype == ASSAY_F8_E4M3, "%s", rows[i].linear);
        cr_expect(kept != NULL && kept->dtype == ASSAY_F32, "%s", rows[i].kept);
        assay_tensorfile_close(f);
        r = cli_run("step --engine ref --model %s --batch " MODELS "%s/batch.safetensors --out %s", out,
                    rows[i].model, cli_file("out"));
        cli_expect_success(&r, "read again");
        cli_free(&r);
    }
}
