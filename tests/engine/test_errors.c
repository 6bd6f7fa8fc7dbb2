/* Bad input: one clear message, exit code 2, nothing written. */
#include "tests/support/engine.h"

TestSuite(engine_errors, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

__attribute__((format(printf, 3, 4))) static void refuse(int world, const char *text, const char *format, ...)
{
    char line[3072];
    va_list args;
    va_start(args, format);
    int n = snprintf(line, sizeof line, "step --out %s ", engine_file("out"));
    vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    engine_must_fail(world, text, line);
}
#define LLAMA "--model " GOLDEN "llama --batch " GOLDEN "llama/batch.safetensors "

Test(engine_errors, fp64_is_refused_by_name)
{
    refuse(1, "precision fp64", LLAMA "--precision fp64");
}
Test(engine_errors, world_must_fit_the_layout)
{
    refuse(1, "layout tp2 needs 2 ranks, 1 were started", LLAMA "--layout tp2");
}
Test(engine_errors, layout_must_divide_the_model)
{
    refuse(3, "tp3 does not divide 4 attention heads", LLAMA "--layout tp3");
}
Test(engine_errors, unknown_layout_word)
{
    refuse(1, "unknown word 'xp2'", LLAMA "--layout xp2");
}
Test(engine_errors, unknown_variant)
{
    refuse(1, "unknown family 'conv'", LLAMA "--variant conv=k1");
    refuse(1, "did you mean attention?", LLAMA "--variant atention=k1");
    refuse(1, "attention is named twice", LLAMA "--variant attention=k1,linear=k0,attention=k0");
    refuse(1, "comes first, in front of attention=k1", LLAMA "--variant attention=k1,k0");
}
/* Every verb of the program has its own options and takes no others. */
Test(engine_errors, what_a_verb_does_not_know_is_refused)
{
    static const struct {
        const char *arguments, *words;
    } rows[] = {
        {"ops --request r --out o --lr 1", "'--lr': the option has no meaning here"},
        {"ops --request r --out o --model m", "'--model': the option has no meaning here"},
        {"ops --request r --out o more", "ops: unexpected argument 'more'"},
        {"doctor --opps", "did you mean --ops"},
        {"doctor more", "doctor: unexpected argument 'more'"},
        {"doctr", "unknown verb 'doctr'; did you mean doctor?"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_neq(engine_run(1, "%s", rows[i].arguments), ASSAY_OK, "%s", rows[i].arguments);
        char *log = engine_log();
        cr_expect(strstr(log, rows[i].words), "%s: expected %s in\n%s", rows[i].arguments, rows[i].words,
                  log);
        free(log);
    }
}

Test(engine_errors, rows_must_divide_over_dp)
{
    refuse(3, "data_parallel_size 3", LLAMA "--layout dp3");
}
Test(engine_errors, output_folder_must_exist)
{
    engine_must_fail(1, "cannot write into folder /nonexistent", "step " LLAMA "--out /nonexistent/file");
}
Test(engine_errors, missing_model)
{
    refuse(1, "/nonexistent: model folder", "--model /nonexistent --batch " GOLDEN "llama/batch.safetensors");
}
Test(engine_errors, token_outside_the_vocabulary)
{
    const int64_t shape[2] = {1, 4};
    engine_write_batch(engine_file("batch"), shape, 2, 100000, 0);
    refuse(1, "outside the vocabulary", "--model " GOLDEN "llama --batch %s", engine_file("batch"));
}
Test(engine_errors, all_labels_masked)
{
    const int64_t shape[2] = {1, 4};
    engine_write_batch(engine_file("batch"), shape, 2, 50, 1);
    refuse(1, "all labels are masked", "--model " GOLDEN "llama --batch %s", engine_file("batch"));
}
Test(engine_errors, more_steps_than_the_batch_holds)
{
    refuse(1, "holds 3 steps",
           "--model " GOLDEN "llama --batch " GOLDEN "llama/train_batch.safetensors --train-iters 9");
}

/* The steps are the file's: a schedule must fit into them also where --train-iters is not given. */
Test(engine_errors, a_schedule_longer_than_the_batch)
{
    refuse(1, "lr_warmup_iters 3 must be less than lr_decay_iters 3",
           "--model " GOLDEN "llama --batch " GOLDEN "llama/train_batch.safetensors --lr-warmup-iters 3");
    refuse(1, "lr_wsd_decay_iters 4 must be at most lr_decay_iters 3",
           "--model " GOLDEN "llama --batch " GOLDEN "llama/train_batch.safetensors --lr-decay-style WSD "
           "--lr-wsd-decay-iters 4");
}

/* A folder with llama's config, and of its weights none or all; and one of zeros. */
static void model_with(const char *folder, bool all, const char *tensor, const int64_t *shape, int ndim)
{
    char *config, path[ENGINE_PATH + 32];
    uint64_t bytes;
    float zeros[64] = {0};
    assay_tensorwriter *w;
    cr_assert_eq(assay_read_file(GOLDEN "llama/config.json", 1 << 20, &config, &bytes), ASSAY_OK);
    engine_write_config(folder, config);
    free(config);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assay_tensorfile *own;
    cr_assert_eq(assay_tensorfile_open(&own, GOLDEN "llama"), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_create(&w, path), ASSAY_OK);
    for (int64_t i = 0; all && i < assay_tensorfile_count(own); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(own, i);
        cr_assert_eq(assay_tensorwriter_add_copy(w, t->name, t->dtype, t->shape, t->ndim, t->data), ASSAY_OK);
    }
    cr_assert_eq(assay_tensorwriter_add_copy(w, tensor, ASSAY_F32, shape, ndim, zeros), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK);
    assay_tensorwriter_destroy(w);
    assay_tensorfile_close(own);
}

Test(engine_errors, tensor_without_a_place)
{
    const int64_t shape[1] = {8};
    char model[ENGINE_PATH];
    snprintf(model, sizeof model, "%s/model", engine_folder);
    model_with(model, true, "model.layers.0.surprise", shape, 1);
    refuse(1, "'model.layers.0.surprise' has no place",
           "--model %s --batch " GOLDEN "llama/batch.safetensors", model);
}
Test(engine_errors, misshaped_and_missing_tensors)
{
    const int64_t shape[1] = {8};
    char model[ENGINE_PATH];
    snprintf(model, sizeof model, "%s/model", engine_folder);
    model_with(model, false, "model.norm.weight", shape, 1);
    refuse(1, "model.embed_tokens.weight", "--model %s --batch " GOLDEN "llama/batch.safetensors", model);
}

/* A rank that never comes ends the run of the others with a name. */
Test(engine_errors, a_rank_that_never_comes)
{
    setenv("ASSAY_SIM_NCCL_TIMEOUT_S", "2", 1);
    setenv("ASSAY_COLLECTIVE_TIMEOUT_S", "20", 1);
    const char *const argv[] = {"/bin/sh",
                                "-c",
                                "if [ $ASSAY_RANK = 1 ]; then sleep 30; else exec \"$0\" \"$@\"; fi",
                                ASSAY_BIN_DIR "/assay-sim",
                                "step",
                                "--model",
                                GOLDEN "llama",
                                "--batch",
                                GOLDEN "llama/batch.safetensors",
                                "--layout",
                                "tp2",
                                "--out",
                                engine_file("out"),
                                NULL};
    const assay_launch_options o = {
        .world = 2, .timeout_s = 60, .prefix_output = true, .log_path = engine_file("log"), .quiet = true};
    assay_launch_result r;
    cr_expect_eq(assay_launch(argv, &o, &r), ASSAY_CHILD, "%s", assay_error_message());
    cr_expect_eq(r.failed_rank, 0);
    cr_expect_eq(r.exit_code, 2);
    char *log = engine_log();
    cr_expect(strstr(log, "NCCL error"), "%s", log);
    free(log);
}
