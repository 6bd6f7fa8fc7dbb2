/* Folders in Megatron-LM's form through the program: the engine in fp32 and the reference against what the real Megatron
 * core wrote (golden/megatron), and the judge on them. */
#include "core/files/tensorfile.h"
#include "tests/support/cli.h"
#include <math.h>

TestSuite(megatron, .init = cli_setup, .fini = cli_teardown, .timeout = 300);

#define GOLDEN ASSAY_SOURCE_DIR "/golden/megatron/"
/* golden/megatron/options.json */
#define TRAINING                                                                                             \
    "--lr 0.01 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --clip-grad 1.0"

/* What Megatron-LM logs of its own: tests/ref/test_megatron.c compares it. */
static bool of_its_log(const char *name)
{
    static const char *const names[] = {"zeros", "load_balancing_loss", "seq_load_balancing_loss",
                                        "global_load_balancing_loss"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Both files hold the same tensors, but for what each has alone.  The worst element of each, relative to the largest of the golden one. */
static void compare(const char *folder, const char *file, double tolerance, const char *what)
{
    char path[CLI_PATH];
    assay_tensorfile *out = NULL, *golden = NULL;
    snprintf(path, sizeof path, GOLDEN "%s/%s", folder, file);
    cr_assert_eq(assay_tensorfile_open(&out, cli_file("out")), ASSAY_OK);
    cr_assert_eq(assay_tensorfile_open(&golden, path), ASSAY_OK);
    cr_expect_gt(assay_tensorfile_count(golden), 30);
    for (int64_t k = 0; k < assay_tensorfile_count(out); k++) {
        const char *name = assay_tensorfile_at(out, k)->name;
        cr_expect(training_more(name) || assay_tensorfile_find(golden, name) != NULL,
                  "%s: %s is not in the golden file", what, name);
    }
    for (int64_t k = 0; k < assay_tensorfile_count(golden); k++) {
        const assay_tensor_info *theirs = assay_tensorfile_at(golden, k);
        const assay_tensor_info *mine = assay_tensorfile_find(out, theirs->name);
        double worst = 0.0, largest = 0.0;
        if (of_its_log(theirs->name))
            continue;
        cr_assert_not_null(mine, "%s: %s is not in the result", what, theirs->name);
        cr_assert(mine->ndim == theirs->ndim &&
                      memcmp(mine->shape, theirs->shape, (size_t)mine->ndim * sizeof *mine->shape) == 0,
                  "%s: %s: shapes differ", what, theirs->name);
        for (int64_t i = 0; i < mine->count; i++) {
            const double y = tensor_element(theirs, i);
            worst = worse_of(worst, fabs(tensor_element(mine, i) - y));
            largest = fmax(largest, fabs(y));
        }
        cr_expect(worst <= tolerance * largest, "%s: %s: %g of %g", what, theirs->name, worst, largest);
    }
    assay_tensorfile_close(out);
    assay_tensorfile_close(golden);
}

static void step(const char *engine, const char *folder, const char *layout, const char *more,
                 const char *file, double tolerance)
{
    char what[200];
    snprintf(what, sizeof what, "%s %s %s %s", engine, folder, layout, more);
    cli_result r = cli_run("step --engine %s --model " GOLDEN "%s --batch " GOLDEN
                           "%s/batch.safetensors --out out --layout %s " TRAINING " %s",
                           engine, folder, folder, layout, more);
    cli_expect_success(&r, what);
    compare(folder, file, tolerance, what);
    (void)unlink(cli_file("out"));
    cli_free(&r);
}

/* What is left of two AdamW steps in F32 where a gradient is near 0 and its sign makes the step: 2 lr of weights of 0.5. */
#define SINGLE 2e-3

Test(megatron, engine_in_layouts)
{
    static const char *const dense[] = {"1", "tp2,sp", "dp2,zero1", "tp2,pp2", NULL};
    static const char *const experts[] = {"1", "ep2", "tp2,sp,ep2", "dp2", NULL};
    for (int i = 0; dense[i] != NULL; i++)
        step("sim", "bias", dense[i], "", "golden.safetensors", SINGLE);
    for (int i = 0; experts[i] != NULL; i++)
        step("sim", "groups", experts[i], "", "golden.safetensors", SINGLE);
    for (int i = 0; experts[i] != NULL; i++)
        step("sim", "aux_means", experts[i], "", "golden.safetensors", SINGLE);
    for (int i = 0; experts[i] != NULL; i++) /* every kind of balancing loss at once */
        step("sim", "many_aux", experts[i], "", "golden.safetensors", SINGLE);
}

/* The unsharded run of Megatron-LM weighs auxiliary losses by tokens. */
Test(megatron, semantics_megatron)
{
    step("ref", "aux", "1", "--semantics megatron", "golden.safetensors", 1e-9);
    step("sim", "aux", "1", "--semantics megatron", "golden.safetensors", SINGLE);
    step("sim", "aux", "dp2", "--semantics megatron", "golden.safetensors", SINGLE);
    step("sim", "seq_aux", "1", "--semantics megatron", "golden.safetensors", SINGLE);
    step("sim", "global_aux", "1", "--semantics megatron", "golden.safetensors", SINGLE);
}

#define PLAN_FAILS                                                                                           \
    "FAIL  dense_means fp32 1 fastest, plan: loss cross_entropy_bwd scale, step 0, microbatch 0,"

/* An honest run holds the plan under every meaning; the same engine under another one does not. */
Test(megatron, judge)
{
    cli_result r =
        cli_run("run --model " GOLDEN "aux --batch " GOLDEN
                "aux/batch.safetensors --layout tp2,sp --precision fp32 --semantics megatron --report r");
    cli_expect_success(&r, "run --semantics megatron");
    cli_free(&r);
    r = cli_run("run --model " GOLDEN "dense_means --batch " GOLDEN
                "dense_means/batch.safetensors --layout dp2 --precision fp32 --report means");
    cli_expect_success(&r, "run of the mean of means");
    cli_free(&r);
    r = cli_run("run --model " GOLDEN "dense_means --batch " GOLDEN
                "dense_means/batch.safetensors --layout 1 --precision fp32 --fault attr:loss:scale=0.0625 "
                "--report bad");
    const char *first = strstr(r.out, "\nFAIL  ");
    cr_expect(r.code == 1 && first != NULL && strncmp(first + 1, PLAN_FAILS, sizeof PLAN_FAILS - 1) == 0,
              "a target of every microbatch with the same weight: exit %d\n%s%s", r.code, r.out, r.err);
    cli_free(&r);
}
