/* --async-save: the same files as a plain save, by either engine; errors of a writer end the run; killed at every seventh call of
 * every kind (all of them: ci/kill_saves.sh by hand). */
#include "tests/support/cli.h"
#include "tests/support/engine.h"
#include <jansson.h>
#include <sys/stat.h>

TestSuite(checkpoint_async, .init = cli_setup, .fini = cli_teardown, .timeout = 600);

static const char model_config[] =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":16,\"ffn_hidden_size\":12,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":6,\"vocab_size\":29,"
    "\"max_position_embeddings\":32,\"layernorm_epsilon\":1e-5,\"rotary_base\":10000.0,"
    "\"add_qkv_bias\":true,\"add_proj_bias\":true,\"qk_layernorm\":true,\"tie_word_embeddings\":true,"
    "\"init_method_std\":0.2,\"layer_is_moe\":[false,true],\"num_moe_experts\":4,"
    "\"moe_router_topk\":2,\"moe_ffn_hidden_size\":10,\"moe_router_score_function\":\"sigmoid\","
    "\"moe_router_enable_expert_bias\":true}";

static char model[CLI_PATH], batch[CLI_PATH];

static void make_inputs(void)
{
    const int64_t shape[4] = {4, 4, 2, 8};
    snprintf(model, sizeof model, "%s", cli_file("model"));
    snprintf(batch, sizeof batch, "%s", cli_file("train"));
    engine_write_config(model, model_config);
    engine_write_batch(batch, shape, 4, 29, 3);
}

static cli_result train(const char *engine, const char *layout, const char *precision, const char *more)
{
    return cli_run("step --engine %s --layout %s --precision %s --model %s --batch %s " DRAWN
                   "--lr-decay-iters 9 --out %s --max-shard-size 3000 %s",
                   engine, layout, precision, model, batch, cli_file("out"), more);
}

static json_t *member(const char *dir, const char *file, const char *key)
{
    char path[CLI_PATH + 40];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    json_t *all = json_load_file(path, 0, NULL);
    cr_assert_not_null(all, "%s", path);
    json_t *value = json_incref(json_object_get(all, key));
    cr_assert_not_null(value, "%s: %s", path, key);
    json_decref(all);
    return value;
}

static void expect_same(const char *a, const char *b, const char *file, const char *key, const char *what)
{
    json_t *x = member(a, file, key), *y = member(b, file, key);
    cr_expect(json_equal(x, y), "%s: %s: %s differs", what, file, key);
    json_decref(x);
    json_decref(y);
}

static bool is_there(const char *folder, const char *name)
{
    char path[2 * CLI_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return cli_exists(path);
}

static void both_ways(const char *engine, const char *layout, const char *precision)
{
    static const char *const ways[] = {"plain", "async"};
    char more[2 * CLI_PATH], a[CLI_PATH], b[CLI_PATH], what[100];
    snprintf(what, sizeof what, "%s %s %s", engine, layout, precision);
    for (int i = 0; i < 2; i++) {
        snprintf(more, sizeof more, "--save %s --save-interval 1 --save-total-limit 2 %s", cli_file(ways[i]),
                 i ? "--async-save" : "");
        cli_result r = train(engine, layout, precision, more);
        cli_expect_success(&r, what);
        cli_free(&r);
    }
    snprintf(a, sizeof a, "%s/iter_0000004", cli_file("plain"));
    snprintf(b, sizeof b, "%s/iter_0000004", cli_file("async"));
    expect_same(a, b, "manifest.json", "tensors", what);
    static const char *const keys[] = {"content",   "data", "layout",   "model",     "random",
                                       "scheduler", "step", "training", "world_size"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        expect_same(a, b, "state.json", keys[k], what);
    expect_same(cli_file("plain"), cli_file("async"), "latest", "checkpoint", what);
    expect_same(cli_file("plain"), cli_file("async"), "best", "checkpoint", what);
    cr_expect(is_there(cli_file("async"), "iter_0000003"));
    cli_result r = cli_run("ckpt verify %s", cli_file("async"));
    cli_expect_success(&r, what);
    cli_free(&r);
    cr_assert_eq(assay_remove_tree(cli_file("plain"), cli_folder), ASSAY_OK);
    cr_assert_eq(assay_remove_tree(cli_file("async"), cli_folder), ASSAY_OK);
}

Test(checkpoint_async, the_files_of_a_plain_save)
{
    make_inputs();
    both_ways("ref", "1", "fp64");
    both_ways("ref", "tp2,pp2", "bf16");
    both_ways("sim", "1", "fp32");
    both_ways("sim", "tp2,sp,ep2,dp2,zero1", "bf16");
    both_ways("sim", "pp2,dp2,zero3", "fp32");
}

/* The pointer cannot be written: the checkpoint is there, and still the run does not end well. */
Test(checkpoint_async, an_error_of_the_writer_ends_the_run)
{
    static const char *const engines[] = {"ref", "sim"};
    make_inputs();
    for (int i = 0; i < 2; i++) {
        char more[2 * CLI_PATH], path[2 * CLI_PATH];
        const char *run = cli_file(engines[i]);
        snprintf(path, sizeof path, "%s/latest", run);
        cr_assert_eq(assay_mkdir_p(path), ASSAY_OK);
        snprintf(more, sizeof more, "--save %s --save-interval 2 --async-save", run);
        cli_result r = train(engines[i], i ? "dp2" : "1", "fp32", more);
        cr_expect_neq(r.code, 0, "%s", engines[i]);
        cr_expect_not_null(strstr(r.err, "asynchronous save of"), "%s", r.err);
        cr_expect_not_null(strstr(r.err, "latest"), "%s", r.err);
        cr_expect(is_there(run, "iter_0000002"), "%s", engines[i]);
        cr_expect_not(is_there(run, "iter_0000004"), "%s: went on behind the error", engines[i]);
        cli_free(&r);
    }
}

Test(checkpoint_async, without_save_it_is_refused)
{
    make_inputs();
    cli_result r = train("ref", "1", "fp32", "--async-save");
    cli_expect_refusal(&r, "no save", (const char *const[]){"async_save without save", NULL});
    cli_free(&r);
}

/* ci/kill_saves.sh, every 41st point. */
Test(checkpoint_async, killed_at_a_few_points)
{
    static const char *const who[] = {"all", "async", "writer", "trainers"};
    for (int i = 0; i < 4; i++) {
        char command[3 * CLI_PATH];
        snprintf(command, sizeof command,
                 "bash %s/ci/kill_saves.sh --build %s/.. --every 41 --who %s > %s 2>&1", ASSAY_SOURCE_DIR,
                 ASSAY_BIN_DIR, who[i], cli_file("said"));
        const int code = system(command);
        char *said = cli_read(cli_file("said"));
        cr_expect_eq(code, 0, "%s: %s", who[i], said);
        cr_expect_not_null(strstr(said, "lost: 0"), "%s", said);
        free(said);
    }
}
