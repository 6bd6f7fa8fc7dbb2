/* The whole model against Hugging Face in double: logits, loss, every gradient of every folder. */
#include "tests/support/ref_golden.h"

static void check_model(const char *model)
{
    char path[ASSAY_PATH];
    model_case c;
    ref_run_result r;
    assay_tensorfile *f;
    double worst = 0.0;
    open_golden(&c, model, "batch.safetensors");
    require_ok(ref_run(&c.run, c.weights, &r), model);
    require_ok(assay_tensorfile_open(&f, golden_path(path, model, "golden.safetensors")), model);
    const ref_named_tensor *logits = ref_result_find(&r, "logits", "logits", 0);
    cr_assert_not_null(logits);
    const double el = compare_golden(f, "logits", logits->data, named_count(logits), 1e-10);
    const double eloss = compare_golden(f, "loss", r.loss, 1, 1e-10);
    const int64_t grads = compare_parts(&c, &r, f, "grad", 0, 1e-10, &worst);
    cr_expect_eq(grads + 2, assay_tensorfile_count(f),
                 "%s: %ld gradients compared, the file holds %ld tensors", model, (long)grads,
                 (long)assay_tensorfile_count(f));
    if (getenv("ASSAY_TEST_VERBOSE"))
        fprintf(stderr, "%-20s logits %.1e loss %.1e gradients %.1e\n", model, el, eloss, worst);
    assay_tensorfile_close(f);
    ref_run_result_free(&r);
    close_case(&c);
}

Test(ref_model, golden_llama)
{
    check_model("llama");
}
Test(ref_model, golden_llama_bias)
{
    check_model("llama_bias");
}
Test(ref_model, golden_qwen2)
{
    check_model("qwen2");
}
Test(ref_model, golden_qwen3)
{
    check_model("qwen3");
}
Test(ref_model, golden_qwen3_moe)
{
    check_model("qwen3_moe");
}
Test(ref_model, golden_qwen3_moe_sparse2)
{
    check_model("qwen3_moe_sparse2");
}
Test(ref_model, golden_mixtral)
{
    check_model("mixtral");
}

Test(ref_model, golden_mistral)
{
    check_model("mistral");
}

/* A group's score is its best expert's; what is chosen is not divided by its sum; yarn and whole queries. */
Test(ref_model, golden_deepseek_v2)
{
    check_model("deepseek_v2");
}
Test(ref_model, golden_deepseek_v2_lite)
{
    check_model("deepseek_v2_lite");
}

/* A window on two of four layers, by layer_types. */
Test(ref_model, golden_ministral)
{
    check_model("ministral");
}

Test(ref_model, golden_qwen2_moe)
{
    check_model("qwen2_moe");
}
Test(ref_model, golden_qwen2_moe_window)
{
    check_model("qwen2_moe_window");
}

Test(ref_model, golden_seed_oss)
{
    check_model("seed_oss");
}

Test(ref_model, golden_olmoe)
{
    check_model("olmoe");
}
Test(ref_model, golden_olmoe_noclip)
{
    check_model("olmoe_noclip");
}
/* rms_norm_eps is not the eps of the inner norms. */
Test(ref_model, golden_deepseek_v3)
{
    check_model("deepseek_v3");
}
Test(ref_model, golden_deepseek_v3_q)
{
    check_model("deepseek_v3_q");
}

Test(ref_model, golden_llama_yarn)
{
    check_model("llama_yarn");
}
Test(ref_model, golden_deepseek_v3_yarn)
{
    check_model("deepseek_v3_yarn");
}

/* The row of padding_idx: untied, tied (an id from the end), Seed-OSS's own where the file has none. */
Test(ref_model, golden_padding)
{
    check_model("../padding/untied");
    check_model("../padding/tied");
    check_model("../padding/class_default");
}

static void check_training(const char *model)
{
    char path[ASSAY_PATH];
    model_case c;
    ref_run_result r;
    assay_tensorfile *f;
    json_t *options = NULL;
    double worst = 0.0;
    open_golden(&c, model, "train_batch.safetensors");
    require_ok(assay_json_load(&options, golden_path(path, model, "train_options.json")), model);
    json_object_del(options, "optimizer");
    require_ok(assay_train_options_from_json(&c.options, options, ASSAY_FOR_STEP, path), model);
    json_decref(options);
    require_ok(ref_run(&c.run, c.weights, &r), model);
    require_ok(assay_tensorfile_open(&f, golden_path(path, model, "train_golden.safetensors")), model);
    const double eloss = compare_golden(f, "loss", r.loss, 3, 1e-10);
    const double enorm = compare_golden(f, "grad_norm", r.grad_norm, 3, 1e-10);
    compare_parts(&c, &r, f, "weight", 2, 1e-10, &worst);
    if (getenv("ASSAY_TEST_VERBOSE"))
        fprintf(stderr, "%-20s loss %.1e norm %.1e weights %.1e\n", model, eloss, enorm, worst);
    assay_tensorfile_close(f);
    ref_run_result_free(&r);
    close_case(&c);
}

Test(ref_model, golden_training_padding)
{
    check_training("../padding/untied");
    check_training("../padding/tied");
}

Test(ref_model, golden_training_llama)
{
    check_training("llama");
}
Test(ref_model, golden_training_qwen3_moe)
{
    check_training("qwen3_moe");
}
Test(ref_model, golden_training_qwen2_moe)
{
    check_training("qwen2_moe");
}
Test(ref_model, golden_training_olmoe)
{
    check_training("olmoe");
}
Test(ref_model, golden_training_deepseek_v3)
{
    check_training("deepseek_v3");
}
