/* What a save leaves out and what a load does not take: weights alone, masters in their place, --finetune, keys that are ignored, a
 * checkpoint of fp64 in other precisions.  Every row by both engines. */
#include "tests/support/cli.h"
#include "tests/support/engine.h"
#include <jansson.h>

TestSuite(checkpoint_choices, .init = cli_setup, .fini = cli_teardown, .timeout = 600);

#define CONFIG(layers, vocab)                                                                                \
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_act\":\"silu\","            \
    "\"num_hidden_layers\":" layers ",\"hidden_size\":16,\"intermediate_size\":10,"                          \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":4,\"vocab_size\":" vocab               \
    ",\"max_position_embeddings\":32,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"                          \
    "\"tie_word_embeddings\":false,\"attention_bias\":false}"

static const char *const engines[] = {"ref", "sim"};
static const char *const layouts[] = {"1", "tp2,dp2,zero1"};

static void make_inputs(void)
{
    const int64_t shape[4] = {4, 4, 2, 8};
    engine_write_config(cli_file("two"), CONFIG("2", "29"));
    engine_write_config(cli_file("three"), CONFIG("3", "29"));
    engine_write_config(cli_file("wide"), CONFIG("2", "31"));
    engine_write_batch(cli_file("train"), shape, 4, 29, 3);
}

static cli_result step(int engine, const char *model, const char *precision, const char *more)
{
    return cli_run("step --engine %s --layout %s --precision %s --model %s --batch %s " DRAWN
                   "--lr-decay-iters 9 --out %s %s",
                   engines[engine], layouts[engine], precision, cli_file(model), cli_file("train"),
                   cli_file("out"), more);
}

static void run(int engine, const char *model, const char *precision, const char *more)
{
    cli_result r = step(engine, model, precision, more);
    cli_expect_success(&r, more);
    cli_free(&r);
}

static void refused(int engine, const char *model, const char *precision, const char *more, const char *word)
{
    cli_result r = step(engine, model, precision, more);
    cr_expect(r.code == 2 && strstr(r.err, word) != NULL, "%s %s: expected '%s', exit code %d:\n%s",
              engines[engine], more, word, r.code, r.err);
    cli_free(&r);
}

__attribute__((format(printf, 1, 2))) static char *text(const char *format, ...)
{
    static char texts[4][3 * CLI_PATH];
    static int turn;
    va_list a;
    turn = (turn + 1) % 4;
    va_start(a, format);
    vsnprintf(texts[turn], sizeof texts[turn], format, a);
    va_end(a);
    return texts[turn];
}

static void drop(const char *name)
{
    cr_assert_eq(assay_remove_tree(cli_file(name), cli_folder), ASSAY_OK);
}

/* SHA-256 of a tensor; "" where there is none. */
static void hash_of(const char *dir, const char *kind, const char *name, char out[65])
{
    json_t *manifest = json_load_file(text("%s/manifest.json", cli_file(dir)), 0, NULL);
    cr_assert_not_null(manifest, "%s", dir);
    const char *hash =
        json_string_value(json_object_get(json_object_get(json_object_get(manifest, "tensors"), kind), name));
    snprintf(out, 65, "%s", hash != NULL ? hash : "");
    json_decref(manifest);
}

static void expect_hash(const char *a, const char *kind_a, const char *b, const char *kind_b,
                        const char *name, bool equal)
{
    char x[65], y[65];
    hash_of(a, kind_a, name, x);
    hash_of(b, kind_b, name, y);
    cr_assert(x[0] != '\0' && y[0] != '\0', "%s of %s and %s", name, a, b);
    cr_expect_eq(strcmp(x, y) == 0, equal, "%s: %s %s and %s %s", name, a, kind_a, b, kind_b);
}

static long long count(const char *dir, const char *kind)
{
    json_t *manifest = json_load_file(text("%s/manifest.json", cli_file(dir)), 0, NULL);
    const size_t n = json_object_size(json_object_get(json_object_get(manifest, "tensors"), kind));
    json_decref(manifest);
    return (long long)n;
}

static const char norm[] = "model.norm.weight", head[] = "lm_head.weight";

Test(checkpoint_choices, weights_alone)
{
    make_inputs();
    for (int e = 0; e < 2; e++) {
        run(e, "two", "bf16", text("--train-iters 2 --save %s", cli_file("full")));
        run(e, "two", "bf16", text("--train-iters 2 --save %s --no-save-optim", cli_file("weights")));
        cr_expect_eq(count("weights", "model"), count("full", "model"));
        cr_expect_eq(count("weights", "optimizer") + count("weights", "master_weights"), 0);
        expect_hash("weights", "model", "full", "model", head, true);
        refused(e, "two", "bf16", text("--train-iters 3 --load %s", cli_file("weights")),
                "holds weights alone");
        /* A step of 0 length shows what a run begins with: the weights, at step 0. */
        for (int from = 0; from < 2; from++) {
            run(!e, "two", "bf16",
                text("--train-iters 1 --lr 0 --weight-decay 0 --finetune --load %s --save %s",
                     cli_file(from ? "full" : "weights"), cli_file("begun")));
            expect_hash("begun", "model", "full", "model", head, true);
            /* with masters their bits, without the rounded weights */
            expect_hash("begun", "master_weights", "full", "master_weights", head, from == 1);
            drop("begun");
        }
        drop("full");
        drop("weights");
    }
}

Test(checkpoint_choices, finetune_begins_at_step_0_with_states_of_0)
{
    make_inputs();
    for (int e = 0; e < 2;
         e++) { /* two steps from another run's checkpoint, and from drawn weights at lr 0 */
        run(e, "two", "fp32", text("--train-iters 2 --lr 0 --weight-decay 0 --save %s", cli_file("drawn")));
        run(e, "two", "fp32", text("--train-iters 2 --save %s", cli_file("fresh")));
        run(e, "two", "fp32",
            text("--train-iters 2 --finetune --no-load-optim --load %s --save %s", cli_file("drawn"),
                 cli_file("tuned")));
        cli_result r = cli_run("ckpt diff %s %s", cli_file("fresh"), cli_file("tuned"));
        cli_expect_success(&r, "the steps of a run that began with the same weights");
        cli_free(&r);
        refused(e, "two", "fp32", text("--train-iters 3 --no-load-optim --load %s", cli_file("drawn")),
                "no_load_optim without finetune");
        refused(e, "two", "fp32", "--train-iters 2 --finetune", "finetune without load");
        drop("drawn");
        drop("fresh");
        drop("tuned");
    }
}

Test(checkpoint_choices, masters_in_the_weights_place)
{
    make_inputs();
    for (int e = 0; e < 2; e++) {
        run(e, "two", "bf16", text("--train-iters 2 --save %s", cli_file("full")));
        run(e, "two", "bf16",
            text("--train-iters 2 --save %s --skip-save-model-weight", cli_file("masters")));
        expect_hash("masters", "model", "full", "master_weights", head, true);
        cr_expect_eq(count("masters", "master_weights"), 0);
        run(!e, "two", "bf16",
            text("--train-iters 2 --load %s --save %s", cli_file("masters"), cli_file("back")));
        cli_result r = cli_run("ckpt diff %s %s", cli_file("full"), cli_file("back"));
        cli_expect_success(&r, "nothing is lost");
        cli_free(&r);
        run(e, "two", "bf16",
            text("--train-iters 2 --save %s --skip-save-model-weight --no-save-optim --async-save",
                 cli_file("alone")));
        expect_hash("alone", "model", "full", "master_weights", head, true);
        cr_expect_eq(count("alone", "optimizer"), 0);
        drop("full");
        drop("masters");
        drop("back");
        drop("alone");
    }
}

/* Loaded into a model of one layer more, one layer less, and another vocabulary. */
Test(checkpoint_choices, keys_that_are_ignored)
{
    static const char last[] = "model.layers.2.mlp.down_proj.weight";
    make_inputs();
    for (int e = 0; e < 2; e++) {
        run(e, "two", "fp32", text("--train-iters 2 --save %s", cli_file("c2")));
        run(e, "three", "fp32", text("--train-iters 2 --save %s", cli_file("c3")));
        run(e, "three", "fp32", text("--train-iters 2 --lr 0 --weight-decay 0 --save %s", cli_file("drawn")));
        /* missing */
        refused(e, "three", "fp32", text("--train-iters 2 --load %s", cli_file("c2")), "of another model");
        refused(e, "three", "fp32",
                text("--train-iters 2 --load %s --ignore-missing-keys model.norm.*", cli_file("c2")),
                "the model has it, the checkpoint has not");
        cli_result r = step(e, "three", "fp32",
                            text("--train-iters 2 --load %s --save %s --ignore-missing-keys model.layers.2.*",
                                 cli_file("c2"), cli_file("more")));
        cli_expect_success(&r, "missing");
        cr_expect_not_null(strstr(r.err, "ignored: missing model.layers.2.mlp.down_proj.weight"), "%s",
                           r.err);
        cli_free(&r);
        r = cli_run("step --engine %s --precision fp32 --model %s --batch %s --lr-decay-iters 9 --out %s "
                    "--train-iters 2 --load %s --ignore-missing-keys model.layers.2.*",
                    engines[e], cli_file("three"), cli_file("train"), cli_file("out"), cli_file("c2"));
        cli_expect_refusal(&r, "a model that has no values to keep",
                           (const char *const[]){"found a configuration alone", NULL});
        cli_free(&r);
        expect_hash("more", "model", "drawn", "model", last, true);
        expect_hash("more", "model", "c2", "model", head, true);
        expect_hash("more", "model", "c3", "model", last, false);
        expect_hash("more", "optimizer", "c2", "optimizer", "lm_head.weight/exp_avg_sq", true);
        /* unexpected */
        refused(e, "two", "fp32", text("--train-iters 2 --load %s --ignore-missing-keys *", cli_file("c3")),
                "the checkpoint has it, the model has not");
        run(e, "two", "fp32",
            text("--train-iters 2 --load %s --save %s --ignore-unexpected-keys model.layers.2.*,x",
                 cli_file("c3"), cli_file("less")));
        expect_hash("less", "model", "c3", "model", norm, true);
        /* mismatched */
        refused(e, "wide", "fp32",
                text("--train-iters 2 --load %s --ignore-mismatched-keys lm_head.*", cli_file("c2")),
                "in different shapes");
        run(e, "wide", "fp32",
            text("--train-iters 2 --load %s --save %s --ignore-mismatched-keys lm_head.*,*embed_tokens*",
                 cli_file("c2"), cli_file("widened")));
        expect_hash("widened", "model", "c2", "model", norm, true);
        drop("c2");
        drop("c3");
        drop("drawn");
        drop("more");
        drop("less");
        drop("widened");
    }
}

/* Another rope: the member and both values, not the beginning of two objects that are alike. */
Test(checkpoint_choices, another_rope_is_named)
{
    static const char *const ropes[] = {
        "\"factor\":4.0,\"original_max_position_embeddings\":8,\"beta_fast\":2",
        "\"factor\":4.0,\"original_max_position_embeddings\":8,\"beta_fast\":3",
        "\"factor\":4.0000000000001,\"original_max_position_embeddings\":8,\"beta_fast\":2"};
    static const char *const words[] = {NULL, "rope_parameters.beta_fast is 2.0 there and 3.0 here",
                                        "rope_parameters.factor is 4.0 there and 4.0000000000001004 here"};
    char config[1000];
    make_inputs();
    for (int i = 0; i < 3; i++) {
        snprintf(config, sizeof config, "%.*s,\"rope_scaling\":{\"type\":\"yarn\",%s}}",
                 (int)strlen(CONFIG("2", "29")) - 1, CONFIG("2", "29"), ropes[i]);
        engine_write_config(cli_file("two"), config);
        if (i == 0)
            run(0, "two", "fp32", text("--train-iters 2 --save %s", cli_file("c2")));
        else
            refused(0, "two", "fp32", text("--train-iters 4 --load %s", cli_file("c2")), words[i]);
    }
}

/* The reference's fp64 in both engines, and fp32 in fp64, which is exact. */
Test(checkpoint_choices, a_checkpoint_of_fp64)
{
    static const char *const precisions[] = {"fp32", "bf16"};
    make_inputs();
    run(0, "two", "fp64", text("--train-iters 2 --save %s", cli_file("double")));
    for (int p = 0; p < 2; p++) {
        for (int e = 0; e < 2; e++) {
            refused(e, "two", precisions[p],
                    text("--train-iters 2 --load %s --override-checkpoint-args", cli_file("double")),
                    "--round-checkpoint");
            run(e, "two", precisions[p],
                text("--train-iters 2 --load %s --save %s --override-checkpoint-args --round-checkpoint",
                     cli_file("double"), cli_file(engines[e])));
        }
        cli_result r = cli_run("ckpt diff %s %s", cli_file("ref"), cli_file("sim"));
        cli_expect_success(&r, "both engines round alike");
        cli_free(&r);
        run(0, "two", "fp64",
            text("--train-iters 2 --load %s --save %s --override-checkpoint-args", cli_file("sim"),
                 cli_file("wider")));
        run(1, "two", precisions[p],
            text("--train-iters 2 --load %s --save %s --override-checkpoint-args --round-checkpoint",
                 cli_file("wider"), cli_file("narrow")));
        r = cli_run("ckpt diff %s %s", cli_file("sim"), cli_file("narrow"));
        cli_expect_success(&r, "wider and back");
        cli_free(&r);
        drop("ref");
        drop("sim");
        drop("wider");
        drop("narrow");
    }
}
