/* The contract of `assay step`: which tensors, which shapes, which numbers, whatever the layout. */
#include "tests/support/cli.h"

TestSuite(step, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

/* One forward and backward pass of a golden model in each layout. */
static void once(const char *engine, const char *model, assay_dtype dtype, double tolerance,
                 const char *const *layouts)
{
    for (; *layouts != NULL; layouts++) {
        char what[200];
        snprintf(what, sizeof what, "%s %s %s", engine, model, *layouts);
        cli_result r = cli_run("step --engine %s --precision %s --model " MODELS "%s --batch " MODELS
                               "%s/batch.safetensors --out out --layout %s",
                               engine, dtype == ASSAY_F64 ? "fp64" : "fp32", model, model, *layouts);
        cli_expect_success(&r, what);
        char golden[CLI_PATH];
        snprintf(golden, sizeof golden, MODELS "%s/golden.safetensors", model);
        cli_compare(cli_file("out"), golden, dtype, tolerance, what);
        (void)unlink(cli_file("out"));
        cli_free(&r);
    }
}

/* Three optimizer steps with the options of train_options.json, which the models share but for clip_grad. */
static void train(const char *engine, const char *model, assay_dtype dtype, double tolerance,
                  const char *const *layouts)
{
    for (; *layouts != NULL; layouts++) {
        char what[200], golden[CLI_PATH];
        snprintf(what, sizeof what, "training %s %s %s", engine, model, *layouts);
        cli_result r =
            cli_run("step --engine %s --precision %s --model " MODELS "%s --batch " MODELS
                    "%s/train_batch.safetensors --out out --layout %s --lr 1e-3 --lr-decay-style constant "
                    "--adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --weight-decay 0.1 --clip-grad %s",
                    engine, dtype == ASSAY_F64 ? "fp64" : "fp32", model, model, *layouts,
                    strcmp(model, "llama") == 0 ? "1.0" : "5.0");
        cli_expect_success(&r, what);
        snprintf(golden, sizeof golden, MODELS "%s/train_golden.safetensors", model);
        cli_compare(cli_file("out"), golden, dtype, tolerance, what);
        (void)unlink(cli_file("out"));
        cli_free(&r);
    }
}

static const char *const dense[] = {"1", "tp2,sp", "pp2", "tp2,sp,dp2", NULL};
static const char *const moe[] = {"1", "tp2,sp", "pp2", "ep2", "tp2,sp,ep2,dp2", NULL};

Test(step, reference_llama_equals_golden)
{
    once("ref", "llama", ASSAY_F64, 1e-10, dense);
}
Test(step, reference_qwen3_moe_equals_golden)
{
    once("ref", "qwen3_moe", ASSAY_F64, 1e-10, moe);
}
Test(step, engine_llama_agrees_with_golden)
{
    once("sim", "llama", ASSAY_F32, 1e-4, dense);
}
Test(step, engine_qwen3_moe_agrees_with_golden)
{
    once("sim", "qwen3_moe", ASSAY_F32, 1e-4, moe);
}
Test(step, reference_trains_llama_as_golden)
{
    train("ref", "llama", ASSAY_F64, 1e-10, (const char *const[]){"1", "tp2,sp,dp2", NULL});
}
Test(step, reference_trains_qwen3_moe_as_golden)
{
    train("ref", "qwen3_moe", ASSAY_F64, 1e-10, (const char *const[]){"1", "tp2,sp,ep2,dp2", NULL});
}
Test(step, engine_trains_llama_as_golden)
{
    train("sim", "llama", ASSAY_F32, 1e-4, (const char *const[]){"1", "tp2,sp,dp2", NULL});
}
Test(step, engine_trains_qwen3_moe_as_golden)
{
    train("sim", "qwen3_moe", ASSAY_F32, 1e-4, (const char *const[]){"1", "tp2,sp,ep2,dp2", NULL});
}

/* The reference is the truth unless it is asked to be less. */
Test(step, reference_computes_in_double_by_default)
{
    cli_result r = cli_run("step --engine ref --model " MODELS "qwen2 --batch " MODELS
                           "qwen2/batch.safetensors --out out");
    cli_expect_success(&r, "qwen2");
    cli_compare(cli_file("out"), MODELS "qwen2/golden.safetensors", ASSAY_F64, 1e-10, "qwen2");
    cli_free(&r);
}

/* Coarser than fp32, and not the same numbers: a precision that was ignored would be found. */
static void bf16(const char *engine, assay_dtype dtype)
{
    cli_result r = cli_run("step --engine %s --precision bf16 --model " MODELS "llama --batch " MODELS
                           "llama/batch.safetensors --out out",
                           engine);
    cli_expect_success(&r, engine);
    const double worst = cli_compare(cli_file("out"), MODELS "llama/golden.safetensors", dtype, 0.1, engine);
    cr_expect(worst > 1e-4, "%s: bf16 differs from the golden values by only %g", engine, worst);
    cli_free(&r);
}
Test(step, reference_runs_in_bf16)
{
    bf16("ref", ASSAY_F64);
}
Test(step, engine_runs_in_bf16)
{
    bf16("sim", ASSAY_F32);
}

/* Names of the folder on disk, whole tensors. */
Test(step, pipeline_with_a_tied_embedding_gives_the_names_on_disk)
{
    assay_tensorfile *f;
    const assay_tensor_info *t;
    cli_result r = cli_run("step --engine sim --model " MODELS "llama --batch " MODELS
                           "llama/batch.safetensors --out out --layout pp2");
    cli_expect_success(&r, "pp2");
    cr_assert_eq(assay_tensorfile_open(&f, cli_file("out")), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(assay_tensorfile_get(f, "grad.model.embed_tokens.weight", ASSAY_F32,
                                      (const int64_t[]){131, 64}, 2, &t),
                 ASSAY_OK, "%s", assay_error_message());
    cr_expect_null(assay_tensorfile_find(f, "grad.lm_head.weight"));
    assay_tensorfile_close(f);
    cli_free(&r);
}

/* A run with a fixed device list says which engine was chosen and why. */
Test(step, auto_says_which_engine_and_why)
{
    cli_result r = cli_run("step --model " MODELS "llama --batch " MODELS
                           "llama/batch.safetensors --out out --engine auto");
    cli_expect_success(&r, "auto");
    const bool gpu = strstr(r.err, "engine gpu (") != NULL;
    cr_expect(gpu || (strstr(r.err, "engine sim (the simulator, because assay-gpu cannot be used") != NULL),
              "%s", r.err);
    cr_expect(strncmp(r.out, "loss ", 5) == 0 && strstr(r.out, "wrote out (") != NULL, "%s", r.out);
    cli_free(&r);
}

/* Repeating a run gives the same bytes, and replaces an older result. */
Test(step, a_repeated_run_writes_the_same_bytes)
{
    static const char *const engines[] = {"ref", "sim"};
    cli_write_text(cli_file("out"), "an older result");
    for (int e = 0; e < 2; e++) {
        char *text[2];
        uint64_t bytes[2];
        for (int i = 0; i < 2; i++) {
            cli_result r = cli_run("step --engine %s --model " MODELS "llama --batch " MODELS
                                   "llama/batch.safetensors --out out --layout tp2",
                                   engines[e]);
            cli_expect_success(&r, engines[e]);
            cr_assert_eq(assay_read_file(cli_file("out"), 1 << 24, &text[i], &bytes[i]), ASSAY_OK);
            cli_free(&r);
        }
        cr_expect(bytes[0] == bytes[1] && memcmp(text[0], text[1], bytes[0]) == 0, "%s: bytes differ",
                  engines[e]);
        free(text[0]);
        free(text[1]);
    }
}

/* A name of a trace is one tensor: of a layer with a shared expert, what its MLP reads has one gradient. */
Test(step, a_trace_of_the_reference_holds_every_name_once)
{
    static const char *const models[] = {"qwen2_moe", "deepseek_v3", "deepseek_v3_q"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        cli_result r = cli_run("step --engine ref --model " MODELS "%s --batch " MODELS
                               "%s/batch.safetensors --out out%zu --trace trace%zu",
                               models[i], models[i], i, i);
        cli_expect_success(&r, models[i]);
        cli_free(&r);
        r = cli_run("diff trace%zu trace%zu", i, i);
        cli_expect_success(&r, models[i]);
        cli_free(&r);
    }
}

/* Nobody wants to open a file to see a loss. */
Test(step, says_loss_gradient_norm_and_what_it_wrote)
{
    cli_result r = cli_run("step --engine ref --model " MODELS "llama --batch " MODELS
                           "llama/batch.safetensors --out out");
    cli_expect_success(&r, "once");
    double loss = 0.0, norm = 0.0;
    cr_assert_eq(sscanf(r.out, "loss %lf  gradient norm %lf\n", &loss, &norm), 2, "%s", r.out);
    cr_expect(loss > 1.0 && loss < 20.0 && norm > 0.0 && norm < 1e3, "%s", r.out);
    cr_expect(strstr(r.out, "\nwrote out (") != NULL && strstr(r.out, " tensors)\n") != NULL, "%s", r.out);
    cli_free(&r);
    r = cli_run("step --engine sim --model " MODELS "llama --batch " MODELS
                "llama/train_batch.safetensors --out out2 --trace trace --save saved --lr 1e-3");
    cli_expect_success(&r, "training");
    cr_expect(strstr(r.out, "step 0: loss ") != NULL && strstr(r.out, "step 2: loss ") != NULL &&
                  strstr(r.out, "  gradient norm ") != NULL,
              "%s", r.out);
    cr_expect(strstr(r.out, ", trace trace, checkpoint saved\n") != NULL, "%s", r.out);
    cli_free(&r);
}
