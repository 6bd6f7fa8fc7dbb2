/* A checkpoint is a folder for transformers: logits that transformers computed from checkpoints of the same runs
 * (golden/make_checkpoint.py), and those of the reference on the folder, in double. */
#include "tests/support/cli.h"
#include "tests/support/engine.h"

TestSuite(checkpoint_golden, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

static void expect_logits(const char *model, const char *engine, const char *precision, double tolerance)
{
    char golden[CLI_PATH], folder[CLI_PATH];
    assay_tensorfile *found, *expected;
    snprintf(golden, sizeof golden, ASSAY_SOURCE_DIR "/golden/checkpoint/%s_%s.safetensors", model,
             precision);
    snprintf(folder, sizeof folder, "%s/%s_%s_%s", cli_folder, model, engine, precision);
    cli_result r = cli_run("step --engine %s --precision %s --model " MODELS "%s --batch " MODELS
                           "%s/train_batch.safetensors --out %s --save %s",
                           engine, precision, model, model, cli_file("out"), folder);
    cli_expect_success(&r, "train");
    cli_free(&r);
    r = cli_run("step --engine ref --precision fp64 --model %s --batch " MODELS
                "%s/batch.safetensors --out %s",
                folder, model, cli_file("logits"));
    cli_expect_success(&r, "logits");
    cli_free(&r);
    cr_assert_eq(assay_tensorfile_open(&expected, golden), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_tensorfile_open(&found, cli_file("logits")), ASSAY_OK, "%s", assay_error_message());
    const assay_tensor_info *e = assay_tensorfile_find(expected, "logits"),
                            *f = assay_tensorfile_find(found, "logits");
    cr_assert(e != NULL && f != NULL && e->count == f->count && e->dtype == ASSAY_F64);
    const double worst = tensor_difference(f, e);
    cr_expect(worst <= tolerance, "%s %s %s: off by %g of the largest logit", model, engine, precision,
              worst);
    assay_tensorfile_close(found);
    assay_tensorfile_close(expected);
}

static const char *const models[] = {"llama", "olmoe", "qwen2_moe", "qwen3_moe"};

/* The same weights to the last bit, but for another BLAS in the training. */
Test(checkpoint_golden, the_reference_s)
{
    for (int i = 0; i < 4; i++) {
        expect_logits(models[i], "ref", "fp32", 1e-6);
        expect_logits(models[i], "ref", "bf16", 1e-6);
    }
}

/* Trained by the engine: what three steps in fp32 differ by. */
Test(checkpoint_golden, the_engine_s)
{
    for (int i = 0; i < 4; i++)
        expect_logits(models[i], "sim", "fp32", 1e-4);
}
