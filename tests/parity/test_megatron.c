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

static double element(const assay_tensor_info *t, int64_t i)
{
    if (t->dtype == ASSAY_F64) {
        double x;
        memcpy(&x, (const char *)t->data + i * 8, sizeof x);
        return x;
    }
    float x;
    memcpy(&x, (const char *)t->data + i * 4, sizeof x);
    return (double)x;
}

/* The worst element of every tensor of the result, relative to the largest of the golden one. */
static void compare(const char *folder, const char *file, double tolerance, const char *what)
{
    char path[CLI_PATH];
    assay_tensorfile *out = NULL, *golden = NULL;
    snprintf(path, sizeof path, GOLDEN "%s/%s", folder, file);
    cr_assert_eq(assay_tensorfile_open(&out, cli_file("out")), ASSAY_OK);
    cr_assert_eq(assay_tensorfile_open(&golden, path), ASSAY_OK);
    cr_expect_gt(assay_tensorfile_count(out), 10);
    for (int64_t k = 0; k < assay_tensorfile_count(out); k++) {
        const assay_tensor_info *mine = assay_tensorfile_at(out, k);
        const assay_tensor_info *theirs = assay_tensorfile_find(golden, mine->name);
        double worst = 0.0, largest = 0.0;
        if (theirs == NULL && training_more(mine->name))
            continue;
        cr_assert(theirs != NULL && theirs->count == mine->count, "%s: %s", what, mine->name);
        for (int64_t i = 0; i < mine->count; i++) {
            const double d = fabs(element(mine, i) - element(theirs, i));
            worst = d <= worst ? worst : d;
            largest = fmax(largest, fabs(element(theirs, i)));
        }
        cr_expect(worst <= tolerance * largest, "%s: %s: %g of %g", what, mine->name, worst, largest);
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
    cr_expect_neq(r.code, 0, "a target of every microbatch with the same weight");
    cli_free(&r);
}
