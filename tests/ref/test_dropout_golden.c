/* Training with dropout against Hugging Face in double, whose dropout multiplies by masks that golden/make_dropout.py draws with
 * a Philox of its own: losses, gradient norms, weights. */
#include "core/base/json.h"
#include "tests/support/ref_golden.h"

/* The options that the golden was made with. */
static void read_options(const char *folder, assay_train_options *o)
{
    char path[ASSAY_PATH], file[160];
    json_t *root;
    const char *name;
    json_t *value;
    snprintf(file, sizeof file, "%s/train_options.json", folder);
    require_ok(assay_json_load(&root, golden_path(path, file, "")), folder);
    json_object_foreach(root, name, value)
    {
        char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        require_ok(assay_train_option_set(o, name, text ? text : json_string_value(value)), name);
        free(text);
    }
    json_decref(root);
}

static void check_training(const char *model, const char *layout)
{
    char path[ASSAY_PATH], folder[120], batch[160], golden[160];
    model_case c;
    ref_run_result r;
    assay_tensorfile *f;
    double worst = 0.0;
    snprintf(folder, sizeof folder, "../dropout/%s", model);
    snprintf(batch, sizeof batch, "../%s/train_batch.safetensors", folder);
    snprintf(golden, sizeof golden, "%s/train_golden.safetensors", folder);
    open_golden(&c, model, batch);
    read_options(folder, &c.options);
    set_layout(&c, layout);
    require_ok(ref_run(&c.run, c.weights, &r), model);
    require_ok(assay_tensorfile_open(&f, golden_path(path, golden, "")), model);
    const double loss = compare_golden(f, "loss", r.loss, r.steps, 1e-10),
                 norm = compare_golden(f, "grad_norm", r.grad_norm, r.steps, 1e-10);
    if (assay_tensorfile_count(f) > 2)
        cr_expect_eq(compare_parts(&c, &r, f, "weight", r.steps - 1, 1e-9, &worst) + 2,
                     assay_tensorfile_count(f));
    if (getenv("ASSAY_TEST_VERBOSE"))
        fprintf(stderr, "%-12s %-14s loss %.1e norm %.1e weights %.1e\n", model, layout, loss, norm, worst);
    assay_tensorfile_close(f);
    ref_run_result_free(&r);
    close_case(&c);
}

Test(ref_dropout_golden, llama_hidden_and_attention)
{
    check_training("llama", "1");
    check_training("llama", "tp2,sp,cp2,p2p");
}

Test(ref_dropout_golden, seed_oss_residual_and_attention)
{
    check_training("seed_oss", "1");
    check_training("seed_oss", "pp2,dp2");
}

Test(ref_dropout_golden, qwen3_moe_attention)
{
    check_training("qwen3_moe", "1");
    check_training("qwen3_moe", "cp2,a2a");
}
