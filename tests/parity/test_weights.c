/* Where weights come from: a folder, a seed that was named, a checkpoint; and what is said of them. */
#include "tests/support/cli.h"

static void setup(void)
{
    cli_setup();
    cr_assert_eq(assay_mkdir_p(cli_file("bare")), ASSAY_OK);
    cli_copy(MODELS "llama/config.json", cli_file("bare/config.json"));
}

TestSuite(weights, .init = setup, .fini = cli_teardown, .timeout = 200);

#define BATCH " --batch " MODELS "llama/batch.safetensors "
#define TRAIN_BATCH " --batch " MODELS "llama/train_batch.safetensors "
static const char *const engines[] = {"ref", "sim"};

Test(weights, a_configuration_alone_needs_a_seed)
{
    for (int e = 0; e < 2; e++) {
        cli_result r = cli_run("step --engine %s --model bare" BATCH "--out out", engines[e]);
        cli_expect_refusal(&r, engines[e],
                           (const char *const[]){"bare: expected weights", "found a configuration alone",
                                                 "--draw-weights SEED", NULL});
        cli_free(&r);
        cr_expect_not(cli_exists(cli_file("out")));
    }
}

/* The engine program alone, as torchrun starts it. */
Test(weights, a_configuration_alone_needs_a_seed_of_a_rank_too)
{
    cli_result r = cli_wait(cli_start(ASSAY_BIN_DIR "/assay-sim step --model bare" BATCH "--out out"));
    cr_expect_eq(r.code, 2);
    cr_expect(strstr(r.err, "--draw-weights SEED") != NULL, "%s", r.err);
    cli_free(&r);
    r = cli_wait(cli_start(ASSAY_BIN_DIR "/assay-sim step --draw-weights 7 --model " MODELS "llama" BATCH
                                         "--out out"));
    cr_expect_eq(r.code, 2);
    cr_expect(strstr(r.err, "llama holds weights") != NULL, "%s", r.err);
    cli_free(&r);
    cr_expect_not(cli_exists(cli_file("out")));
}

Test(weights, drawn_weights_are_said_and_follow_their_seed)
{
    for (int e = 0; e < 2; e++) {
        char *bytes[3];
        for (int k = 0; k < 3; k++) {
            cli_result r = cli_run("step --engine %s --draw-weights %d --model bare" BATCH "--out out",
                                   engines[e], k == 2 ? 8 : 7);
            cli_expect_success(&r, engines[e]);
            cr_expect(strstr(r.err, k == 2 ? "weights: drawn from seed 8; bare holds a configuration alone"
                                           : "weights: drawn from seed 7; bare holds a configuration alone"),
                      "%s", r.err);
            bytes[k] = strdup(r.out);
            cli_free(&r);
        }
        cr_expect_str_eq(bytes[0], bytes[1], "the same seed, the same loss");
        cr_expect_str_neq(bytes[0], bytes[2], "another seed, another loss");
        for (int k = 0; k < 3; k++)
            free(bytes[k]);
    }
}

Test(weights, stored_weights_and_a_seed_contradict_each_other)
{
    for (int e = 0; e < 2; e++) {
        cli_result r = cli_run("step --engine %s --draw-weights 0 --model " MODELS "llama" BATCH "--out out",
                               engines[e]);
        cli_expect_refusal(&r, engines[e],
                           (const char *const[]){"--draw-weights 0: expected a folder that holds a "
                                                 "configuration alone, but",
                                                 "llama holds weights", NULL});
        cli_free(&r);
        cr_expect_not(cli_exists(cli_file("out")));
    }
}

/* The batch file holds the data: nothing is left for a seed. */
Test(weights, a_step_has_no_seed)
{
    cli_result r = cli_run("step --engine ref --seed 3 --model " MODELS "llama" BATCH "--out out");
    cli_expect_refusal(&r, "--seed", (const char *const[]){"the option has no meaning here", NULL});
    cli_free(&r);
}

/* A checkpoint holds every weight: a folder without any goes on from it, to the same bits. */
Test(weights, a_checkpoint_takes_the_place_of_weights)
{
    cli_result r = cli_run("step --engine sim --model bare --draw-weights 5" TRAIN_BATCH
                           "--out whole --save half --save-after 1");
    cli_expect_success(&r, "whole");
    cli_free(&r);
    r = cli_run("step --engine sim --model bare" TRAIN_BATCH "--out rest --load half");
    cli_expect_success(&r, "rest");
    cr_expect(strstr(r.err, "drawn") == NULL, "%s", r.err);
    cli_free(&r);
    assay_tensorfile *whole, *rest;
    cr_assert_eq(assay_tensorfile_open(&whole, cli_file("whole")), ASSAY_OK);
    cr_assert_eq(assay_tensorfile_open(&rest, cli_file("rest")), ASSAY_OK);
    int compared = 0;
    for (int64_t i = 0; i < assay_tensorfile_count(whole); i++) {
        const assay_tensor_info *a = assay_tensorfile_at(whole, i), *b = assay_tensorfile_find(rest, a->name);
        if (strncmp(a->name, "weight.", 7) != 0)
            continue;
        cr_assert_not_null(b, "%s", a->name);
        cr_expect(a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0, "%s", a->name);
        compared++;
    }
    cr_expect_gt(compared, 10);
    assay_tensorfile_close(whole);
    assay_tensorfile_close(rest);
}

Test(weights, run_needs_a_seed_for_a_folder_without_weights)
{
    cli_result r = cli_run("run --engine sim --quiet --report rep --layout 1 --precision fp32 --model bare");
    cli_expect_refusal(
        &r, "run", (const char *const[]){"case bare: bare: expected weights", "--draw-weights SEED", NULL});
    cli_free(&r);
    cr_expect_not(cli_exists(cli_file("rep")));
    r = cli_run(
        "run --engine sim --quiet --report rep --layout 1 --precision fp32 --variant fastest --check plan "
        "--model bare --draw-weights 5");
    cli_expect_success(&r, "run");
    cr_expect(strstr(r.out, "weights: drawn from seed 5; bare holds a configuration alone"), "%s", r.out);
    cli_free(&r);
    char *html = cli_read(cli_file("rep/index.html"));
    cr_expect(strstr(html, "bare 5"), "the report says which weights were drawn");
    free(html);
    r = cli_run("run --engine sim --quiet --report rep --draw-weights 5 --model " MODELS "llama");
    cli_expect_refusal(&r, "run",
                       (const char *const[]){"case llama: --draw-weights 5", "llama holds weights", NULL});
    cli_free(&r);
}
