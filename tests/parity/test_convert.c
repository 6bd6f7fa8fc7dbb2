/* Every architecture out and in again: written in fp32, bf16 and fp16, as one file and in shards, with torch's bits, and computed from those folders
 * as transformers computes them (golden/make_convert.py). */
#include "core/base/hash.h"
#include "core/base/json.h"
#include "ref/weights_read.h"
#include "tests/support/cli.h"

TestSuite(convert, .init = cli_setup, .fini = cli_teardown, .timeout = 600);

#define CONVERT ASSAY_SOURCE_DIR "/golden/convert/"
static const char *const types[] = {"fp32", "bf16", "fp16"};

static assay_tensorfile *open_file(const char *path)
{
    assay_tensorfile *f;
    cr_assert_eq(assay_tensorfile_open(&f, path), ASSAY_OK, "%s", assay_error_message());
    return f;
}

static void convert(const char *from, const char *to, const char *type, int shard)
{
    cli_result r = cli_run("ckpt convert %s %s --dtype %s --max-shard-size %d", from, to, type, shard);
    cli_expect_success(&r, to);
    cli_free(&r);
}

static void expect_hashes(const char *folder, const json_t *want, const char *type)
{
    char found[ASSAY_SHA256_HEX];
    assay_tensorfile *f = open_file(folder);
    cr_expect_eq((size_t)assay_tensorfile_count(f), json_object_size(want), "%s", folder);
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f, i);
        const char *hash = json_string_value(json_object_get(json_object_get(want, t->name), type));
        assay_sha256_bytes(t->data, t->bytes, found);
        cr_expect(hash != NULL && strcmp(hash, found) == 0, "%s: %s", folder, t->name);
    }
    assay_tensorfile_close(f);
}

Test(convert, every_architecture_has_torch_s_bits)
{
    json_t *all = NULL, *want;
    const char *model;
    int models = 0;
    cr_assert_eq(assay_hash_init(), ASSAY_OK);
    cr_assert_eq(assay_json_load(&all, CONVERT "hashes.json"), ASSAY_OK);
    json_object_foreach(all, model, want)
    {
        char from[CLI_PATH], to[CLI_PATH], back[CLI_PATH];
        models++;
        snprintf(from, sizeof from, MODELS "%s", model);
        for (int t = 0; t < 6; t++) {
            snprintf(to, sizeof to, "%s/%s_%d", cli_folder, model, t);
            convert(from, to, types[t / 2], t % 2 == 0 ? 1 << 30 : 30000);
            expect_hashes(to, want, types[t / 2]);
            /* In again from shards: what is in a wider type are the same numbers. */
            if (t % 2 == 0)
                continue;
            snprintf(back, sizeof back, "%s/%s_%d_back", cli_folder, model, t);
            convert(to, back, "fp64", 1 << 30);
            snprintf(from, sizeof from, "%s_2", back);
            convert(back, from, types[t / 2], 1 << 30);
            expect_hashes(from, want, types[t / 2]);
            snprintf(from, sizeof from, MODELS "%s", model);
        }
    }
    cr_expect_eq(models, 21);
    json_decref(all);
}

/* Of the last position: the greatest distance from what transformers has, in units of its greatest logit. */
static double distance(const assay_tensor_info *logits, const assay_tensor_info *want)
{
    double worst = 0.0, greatest = 0.0;
    const int64_t b = want->shape[0], v = want->shape[1], s = logits->count / (b * v);
    cr_assert_eq(logits->count, b * s * v);
    for (int64_t i = 0; i < b; i++)
        for (int64_t k = 0; k < v; k++) {
            const double y = ref_stored_element(want->data, want->dtype, i * v + k);
            const double x = ref_stored_element(logits->data, logits->dtype, (i * s + s - 1) * v + k);
            greatest = fmax(greatest, fabs(y));
            worst = worse_of(worst, fabs(x - y));
        }
    return worst / greatest;
}

Test(convert, what_was_written_is_the_model_that_transformers_reads)
{
    assay_tensorfile *golden = open_file(CONVERT "logits.safetensors");
    for (int64_t i = 0; i < assay_tensorfile_count(golden); i++) {
        const assay_tensor_info *want = assay_tensorfile_at(golden, i);
        char model[CLI_PATH], from[CLI_PATH], to[CLI_PATH];
        const char *slash = strchr(want->name, '/');
        snprintf(model, sizeof model, "%.*s", (int)(slash - want->name), want->name);
        snprintf(from, sizeof from, MODELS "%s", model);
        snprintf(to, sizeof to, "%s/%lld", cli_folder, (long long)i);
        const bool half = strcmp(slash + 1, "fp16") == 0;
        convert(from, to, slash + 1, half ? 30000 : 1 << 30);
        for (int e = 0; e < (half ? 2 : 1); e++) {
            cli_result r = cli_run("step %s --model %s --batch " MODELS "%s/batch.safetensors --out %s",
                                   e == 0 ? "--engine ref --precision fp64" : "--engine sim --precision fp32",
                                   to, model, cli_file("out"));
            cli_expect_success(&r, want->name);
            cli_free(&r);
            assay_tensorfile *out = open_file(cli_file("out"));
            const assay_tensor_info *logits = assay_tensorfile_find(out, "logits");
            cr_assert_not_null(logits);
            const double worst = distance(logits, want);
            cr_expect(worst <= (e == 0 ? 1e-12 : 1e-4), "%s, engine %d: off by %g of the largest logit",
                      want->name, e, worst);
            assay_tensorfile_close(out);
        }
    }
    cr_expect_eq(assay_tensorfile_count(golden), 40);
    assay_tensorfile_close(golden);
}

/* A bias that was trained is no multiple of a bfloat16's unit: its bytes stay, and a router in bfloat16 is widened, as transformers keeps both. */
Test(convert, a_router_s_bias_stays_in_single_precision)
{
    cli_result r = cli_run("step --engine sim --precision bf16 --model " MODELS "deepseek_v3 --batch " MODELS
                           "deepseek_v3/train_batch.safetensors --train-iters 2 --out out --save a");
    cli_expect_success(&r, "step");
    cli_free(&r);
    r = cli_run("ckpt merge a b --dtype bf16");
    cli_expect_success(&r, "merge");
    cli_free(&r);
    assay_tensorfile *a = open_file(cli_file("a")), *b = open_file(cli_file("b"));
    int biases = 0, rounded = 0;
    for (int64_t i = 0; i < assay_tensorfile_count(b); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(b, i), *u = assay_tensorfile_find(a, t->name);
        const bool bias = strstr(t->name, "e_score_correction_bias") != NULL;
        const bool single = bias || strstr(t->name, ".gate.weight") != NULL;
        cr_expect_eq(t->dtype, single ? ASSAY_F32 : ASSAY_BF16, "%s", t->name);
        biases += bias;
        cr_expect(!bias || (t->bytes == u->bytes && memcmp(t->data, u->data, t->bytes) == 0), "%s", t->name);
        for (int64_t k = 0; bias && k < t->count; k++)
            rounded += (((const uint32_t *)t->data)[k] & 0xffffU) != 0;
    }
    cr_expect(biases == 2 && rounded > 0, "%d biases, %d elements that bfloat16 has not", biases, rounded);
    assay_tensorfile_close(a);
    assay_tensorfile_close(b);
}

#define MEGATRON ASSAY_SOURCE_DIR "/golden/megatron/"

/* A configuration in Megatron-LM's words has none for a type: what is written is read again. */
Test(convert, a_folder_in_megatron_s_form_is_a_model_again)
{
    static const char *const verbs[] = {"convert " MEGATRON "sigmoid m0",
                                        "convert " MEGATRON "sigmoid m1 --dtype bf16",
                                        "merge " MEGATRON "sigmoid " MEGATRON "sigmoid m2"};
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "m%d", i);
        cli_result r = cli_run("ckpt %s", verbs[i]);
        cli_expect_success(&r, verbs[i]);
        cli_free(&r);
        r = cli_run("ckpt convert %s %s_again", name, name);
        cli_expect_success(&r, "again");
        cli_free(&r);
        r = cli_run("step --engine ref --model %s --batch " MEGATRON "sigmoid/batch.safetensors --out out",
                    name);
        cli_expect_success(&r, verbs[i]);
        cli_free(&r);
    }
    cli_result r = cli_run("ckpt convert " MEGATRON "sigmoid m3 --dtype fp8");
    cli_expect_refusal(&r, "fp8", (const char *const[]){"is in Megatron-LM's form", NULL});
    cli_free(&r);
}
