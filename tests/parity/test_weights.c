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

/* By any program that writes models: none are drawn beside them, and a configuration beside them is not said to be alone. */
Test(weights, weights_that_are_not_read_are_named)
{
    static const char *const names[] = {"consolidated.safetensors",
                                        "model.fp16.safetensors",
                                        "__0_0.distcp",
                                        "model_optim_rng.pt",
                                        "consolidated.00.pth",
                                        "pytorch_model.bin",
                                        "diffusion_pytorch_model.bin.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "model.q4.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[CLI_PATH], says[CLI_PATH];
        snprintf(path, sizeof path, "%s/bare/%s", cli_folder, names[i]);
        snprintf(says, sizeof says, "bare: holds %s, which is not read", names[i]);
        if (i == 0)
            cli_copy(MODELS "llama/model.safetensors", path);
        else
            cli_write_text(path, "weights");
        for (int drawn = 0; drawn < 2; drawn++) {
            cli_result r = cli_run("step --engine ref --model bare" BATCH "--out out %s",
                                   drawn ? "--draw-weights 7" : "");
            cli_expect_refusal(&r, names[i], (const char *const[]){says, NULL});
            cli_free(&r);
        }
        unlink(path);
    }
    cr_expect_not(cli_exists(cli_file("out")));
}

/* Beside a configuration there may be data. */
Test(weights, data_beside_a_configuration_is_no_weights)
{
    cli_copy(MODELS "llama/batch.safetensors", cli_file("bare/batch.safetensors"));
    cli_write_text(cli_file("bare/text_document.bin"), "tokens");
    cli_write_text(cli_file("bare/text_document.idx"), "index");
    cli_result r =
        cli_run("step --engine ref --model bare --batch bare/batch.safetensors --out out --draw-weights 7");
    cli_expect_success(&r, "data");
    cli_free(&r);
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

Test(weights, bench_draws_those_of_a_case_and_needs_a_seed_for_a_folder)
{
    cli_result r = cli_run("bench --engine sim --report b --steps 1 --warmup 1 --case llama");
    cli_expect_success(&r, "--case");
    cli_free(&r);
    r = cli_run("bench --engine sim --report b --steps 1 --warmup 1 --seq-length 16 --model bare");
    cli_expect_refusal(&r, "bench",
                       (const char *const[]){"bare: expected weights", "--draw-weights SEED", NULL});
    cli_free(&r);
    r = cli_run(
        "bench --engine sim --report b --steps 1 --warmup 1 --seq-length 16 --model bare --draw-weights 3 "
        "--variant linaer=k0");
    cli_expect_refusal(&r, "bench", (const char *const[]){"did you mean linear?", NULL});
    cr_expect(strstr(r.err, "rank 0 exited") == NULL, "before a rank is started: %s", r.err);
    cli_free(&r);
}

/* --- weights that are not finite ----------------------------------------------------------------------------- */

/* llama with a NaN and an infinity in one tensor, and a NaN in a tensor of the last layer. */
static void poison(void)
{
    static const struct {
        const char *tensor;
        int64_t at;
        uint32_t bits;
    } rows[] = {{"model.layers.0.mlp.up_proj.weight", 70, 0x7FC00000},
                {"model.layers.0.mlp.up_proj.weight", 69, 0xFF800000},
                {"model.norm.weight", 5, 0x7F800001}};
    assay_tensorfile *f;
    char *bytes = NULL;
    uint64_t n = 0;
    cr_assert_eq(assay_tensorfile_open(&f, MODELS "llama"), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_read_file(MODELS "llama/model.safetensors", 1 << 26, &bytes, &n), ASSAY_OK);
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const assay_tensor_info *t = assay_tensorfile_find(f, rows[i].tensor), *first = t;
        cr_assert(t != NULL && t->dtype == ASSAY_F32 && t->count > rows[i].at, "%s", rows[i].tensor);
        for (int64_t k = 0; k < assay_tensorfile_count(f); k++)
            if ((const char *)assay_tensorfile_at(f, k)->data < (const char *)first->data)
                first = assay_tensorfile_at(f, k);
        const size_t offset = (size_t)((const char *)t->data - (const char *)first->data);
        memcpy(bytes + 8 + header + offset + 4 * rows[i].at, &rows[i].bits, 4);
    }
    cli_write(cli_file("bare/model.safetensors"), bytes, n);
    assay_tensorfile_close(f);
    free(bytes);
}

Test(weights, what_is_not_finite_is_said_once_and_not_refused)
{
    static const char *const runs[] = {"ref", "sim", "sim --layout tp2,dp2", "sim --layout pp2"};
    poison();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        cli_result r = cli_run("step --model bare" BATCH "--out out --engine %s", runs[i]);
        cli_expect_success(&r, runs[i]);
        cr_expect(strstr(r.err, "WARNING: bare: model.layers.0.mlp.up_proj.weight: 2 of ") != NULL &&
                      strstr(r.err, " elements are not finite (1 NaN, 1 infinite), the first at [1,5]") !=
                          NULL,
                  "%s: %s", runs[i], r.err);
        cr_expect(strstr(r.err, "WARNING: bare: model.norm.weight: 1 of 64 elements are not finite (1 NaN, 0 "
                                "infinite), the first at [5]") != NULL,
                  "%s: %s", runs[i], r.err);
        cr_expect_eq(cli_count(r.err, "elements are not finite"), 2, "%s: %s", runs[i], r.err);
        cli_free(&r);
    }
    cli_result r = cli_run("step --model " MODELS "llama" BATCH "--out out --engine ref");
    cr_expect_eq(cli_count(r.err, "not finite"), 0, "%s", r.err);
    cli_free(&r);
}

Test(weights, what_is_not_finite_fails_a_run_by_name)
{
    poison();
    cli_result r =
        cli_run("run --engine sim --quiet --report rep --layout 1 --precision fp32 --variant fastest "
                "--check plan --model bare");
    cr_expect_eq(r.code, 1, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "model.norm.weight") &&
                  strstr(r.out, "the weights in bare: 1 of 64 elements are not finite"),
              "%s", r.out);
    /* what follows from it (loss and norm are NaN, as the recorded sums are) is no second finding */
    cr_expect_eq(cli_count(r.out, "again with: "), 2, "the cause alone: %s", r.out);
    cr_expect(strstr(r.out, " 2 failed, 0 skipped"), "the cause alone: %s", r.out);
    cli_free(&r);
}

/* One step from weights with a NaN makes all of them NaN: the checkpoint of it says so, for each piece once. */
Test(weights, what_is_not_finite_in_a_checkpoint_is_said)
{
    poison();
    cli_result r = cli_run("step --engine sim --model bare" TRAIN_BATCH "--out out --save ck --save-after 1");
    cli_expect_success(&r, "save");
    cli_free(&r);
    r = cli_run("step --engine sim --layout dp2 --model " MODELS "llama" TRAIN_BATCH "--out out --load ck");
    cli_expect_success(&r, "load");
    cr_expect_eq(
        cli_count(r.err,
                  "ck: main_param of decoder.final_layernorm.weight: 64 of 64 elements are not finite (64 "
                  "NaN, 0 infinite), the first at [0]"),
        1, "%s", r.err);
    cr_expect_eq(cli_count(r.err, "ck: exp_avg of decoder.final_layernorm.weight: "), 1, "%s", r.err);
    cli_free(&r);
}

/* A folder without a tensor of its model: transformers would draw it, so nothing is made of it, whatever the tool. */
Test(weights, what_is_missing_is_named_by_the_tools)
{
    static const char *const tools[] = {"convert cut out", "merge cut cut out",
                                        "merge " MODELS "llama out --method task_arithmetic --base cut",
                                        "lora-merge cut " ASSAY_SOURCE_DIR "/golden/adapters/llama out"};
    char command[CLI_LINE];
    snprintf(command, sizeof command,
             "cp -r " MODELS "llama %s/cut && sed -i 's|layers.1.mlp.up_proj|layers.9.mlp.up_proj|; "
             "s|model.norm.w|model.Norm.w|' %s/cut/model.safetensors",
             cli_folder, cli_folder);
    cr_assert_eq(system(command), 0);
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++) {
        cli_result r = cli_run("ckpt %s", tools[i]);
        if (i == 2) /* one of two: already no family */
            cli_expect_refusal(&r, tools[i], (const char *const[]){"is in", "but not in", NULL});
        else
            cli_expect_refusal(&r, tools[i],
                               (const char *const[]){"cut: there is no tensor",
                                                     "model.layers.1.mlp.up_proj.weight", "model.norm.weight",
                                                     "2 of the 20 tensors", NULL});
        cli_free(&r);
        cr_expect_not(cli_exists(cli_file("out")));
    }
    /* What is left out need not be there; of another class nothing is known. */
    cli_result r = cli_run("ckpt convert cut left --exclude *up_proj* --exclude *orm.weight");
    cli_expect_success(&r, "left out");
    cli_free(&r);
    snprintf(command, sizeof command, "sed -i 's|\"llama\"|\"lxama\"|' %s/cut/config.json", cli_folder);
    cr_assert_eq(system(command), 0);
    r = cli_run("ckpt convert cut out");
    cli_expect_success(&r, "another class");
    cli_free(&r);
}
