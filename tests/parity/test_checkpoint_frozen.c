/* Frozen parameters (docs/OPS.md 9.15) in checkpoints: layouts of both engines save, load each other's and go on; no frozen weight
 * has a master or a state, and none moves. */
#include "tests/support/cli.h"
#include "tests/support/engine.h"
#include <jansson.h>

TestSuite(checkpoint_frozen, .init = cli_setup, .fini = cli_teardown, .timeout = 600);

#define FROZEN                                                                                               \
    "embedding.*,decoder.layers.2.*,decoder.layers.0.self_attention.linear_qkv.*,"                           \
    "decoder.layers.1.mlp.experts.linear_fc1.weight,decoder.layers.1.mlp.router.weight,*.q_layernorm.weight"

typedef struct place {
    const char *engine, *layout;
} place;
/* tp4: ranks share a key head; of stage 3 of pp3 nothing but a norm trains */
static const place places[] = {{"sim", "1"},
                               {"sim", "tp4,sp"},
                               {"sim", "tp2,pp2,dp2,zero1"},
                               {"sim", "ep2,dp4,zero3"},
                               {"sim", "pp3,dp2,zero2"},
                               {"ref", "1"},
                               {"ref", "tp2,pp2,dp2,zero3"}};
enum { PLACES = sizeof places / sizeof *places };

static const char config[] =
    "{\"model_type\":\"megatron\",\"num_layers\":3,\"hidden_size\":16,\"ffn_hidden_size\":12,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":6,\"vocab_size\":29,"
    "\"max_position_embeddings\":32,\"layernorm_epsilon\":1e-5,\"rotary_base\":10000.0,"
    "\"add_qkv_bias\":true,\"qk_layernorm\":true,\"tie_word_embeddings\":true,\"init_method_std\":0.2,"
    "\"layer_is_moe\":[false,true,false],\"num_moe_experts\":4,\"moe_router_topk\":2,"
    "\"moe_ffn_hidden_size\":10,\"moe_router_score_function\":\"sigmoid\","
    "\"moe_router_enable_expert_bias\":true}";

static void make_inputs(void)
{
    const int64_t shape[4] = {4, 4, 2, 8};
    engine_write_config(cli_file("model"), config);
    engine_write_batch(cli_file("train"), shape, 4, 29, 3);
}

static cli_result step(int i, const char *precision, const char *freeze, const char *more)
{
    return cli_run(
        "step --engine %s --layout %s --precision %s --model %s --batch %s " DRAWN
        "--freeze=%s --weight-decay 0.1 --moe-router-bias-update-rate 0.001 --moe-aux-loss-coeff 0.01 "
        "--lr-decay-iters 9 --out %s %s",
        places[i].engine, places[i].layout, precision, cli_file("model"), cli_file("train"), freeze,
        cli_file("out"), more);
}

static void run(int i, const char *precision, const char *freeze, const char *more)
{
    cli_result r = step(i, precision, freeze, more);
    cli_expect_success(&r, places[i].layout);
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

static json_t *tensors_of(const char *dir)
{
    json_t *manifest = json_load_file(text("%s/manifest.json", dir), 0, NULL);
    cr_assert_not_null(manifest, "%s", dir);
    json_t *tensors = json_incref(json_object_get(manifest, "tensors"));
    json_decref(manifest);
    return tensors;
}

static bool has(const json_t *tensors, const char *kind, const char *name)
{
    return json_object_get(json_object_get(tensors, kind), name) != NULL;
}

/* What is stored of a frozen weight, and of a trained one of the same layer. */
static void expect_kinds(const json_t *t, const char *at)
{
    static const char frozen[] = "decoder.layers.2.mlp.linear_fc2.weight",
                      trained[] = "decoder.layers.1.mlp.experts.linear_fc2.weight";
    cr_expect(has(t, "model", frozen) && has(t, "model", trained), "%s", at);
    cr_expect(!has(t, "master_weights", frozen) && has(t, "master_weights", trained), "%s", at);
    cr_expect(!has(t, "optimizer", text("%s/exp_avg", frozen)), "%s", at);
    cr_expect(has(t, "optimizer", text("%s/exp_avg", trained)), "%s", at);
    cr_expect(has(t, "model", "decoder.layers.1.mlp.router.expert_bias"), "%s", at);
}

/* Every pair, in bf16: all tensors are those that were saved, and `ckpt verify` finds nothing. */
Test(checkpoint_frozen, every_pair_bf16)
{
    make_inputs();
    for (int a = 0; a < PLACES; a++) {
        run(a, "bf16", FROZEN, text("--train-iters 2 --save %s", cli_file("checkpoint-2")));
        json_t *saved = tensors_of(cli_file("checkpoint-2"));
        expect_kinds(saved, places[a].layout);
        cli_result r = cli_run("ckpt verify %s", cli_file("checkpoint-2"));
        cli_expect_success(&r, "verify");
        cli_free(&r);
        for (int b = 0; b < PLACES; b++) {
            run(b, "bf16", FROZEN,
                text("--train-iters 2 --load %s --save %s", cli_file("checkpoint-2"), cli_file("moved")));
            json_t *moved = tensors_of(cli_file("moved"));
            cr_expect(json_equal(saved, moved), "%s %s -> %s %s: the tensors differ", places[a].engine,
                      places[a].layout, places[b].engine, places[b].layout);
            json_decref(moved);
            cr_assert_eq(assay_remove_tree(cli_file("moved"), cli_folder), ASSAY_OK);
        }
        json_decref(saved);
        cr_assert_eq(assay_remove_tree(cli_file("checkpoint-2"), cli_folder), ASSAY_OK);
    }
}

static const assay_tensor_info *tensor(assay_tensorfile **f, const char *file, const char *name)
{
    cr_assert_eq(assay_tensorfile_open(f, cli_file(file)), ASSAY_OK, "%s", assay_error_message());
    const assay_tensor_info *t = assay_tensorfile_find(*f, name);
    cr_assert_not_null(t, "%s", name);
    return t;
}

/* Whether weight `name` of two result files has the same bits. */
static bool same_weight(const char *a, const char *b, const char *name)
{
    assay_tensorfile *x, *y;
    const assay_tensor_info *s = tensor(&x, a, name), *t = tensor(&y, b, name);
    const bool same = s->bytes == t->bytes && memcmp(s->data, t->data, s->bytes) == 0;
    assay_tensorfile_close(x);
    assay_tensorfile_close(y);
    return same;
}

/* Stopped behind two steps and resumed: the bits of the run that went on, in the same layout; nothing frozen moves in four steps,
 * what is beside it does. */
Test(checkpoint_frozen, resumed_in_its_layout_and_nothing_frozen_moves)
{
    static const char *const precisions[] = {"bf16", "fp32"};
    make_inputs();
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < PLACES; i++) {
            run(i, precisions[k], FROZEN, "--train-iters 1 --lr 0 --weight-decay 0");
            cr_assert_eq(rename(cli_file("out"), cli_file("drawn")), 0);
            run(i, precisions[k], FROZEN, text("--train-iters 4 --save %s", cli_file("straight")));
            cr_expect(same_weight("out", "drawn", "weight.decoder.layers.2.mlp.linear_fc2.weight"));
            cr_expect(same_weight("out", "drawn", "weight.embedding.word_embeddings.weight"));
            cr_expect(
                same_weight("out", "drawn", "weight.decoder.layers.0.self_attention.linear_qkv.weight"));
            cr_expect(!same_weight("out", "drawn", "weight.decoder.layers.1.mlp.experts.linear_fc2.weight"));
            run(i, precisions[k], FROZEN, text("--train-iters 4 --save-after 2 --save %s", cli_file("half")));
            run(i, precisions[k], FROZEN,
                text("--train-iters 4 --load %s --save %s", cli_file("half"), cli_file("resumed")));
            json_t *straight = tensors_of(cli_file("straight")), *resumed = tensors_of(cli_file("resumed"));
            cr_expect(json_equal(straight, resumed), "%s %s %s: the tensors differ", places[i].engine,
                      places[i].layout, precisions[k]);
            json_decref(straight);
            json_decref(resumed);
            static const char *const made[] = {"straight", "half", "resumed"};
            for (int f = 0; f < 3; f++)
                cr_assert_eq(assay_remove_tree(cli_file(made[f]), cli_folder), ASSAY_OK);
        }
}

static void refused(int i, const char *freeze, const char *more, const char *word)
{
    cli_result r = step(i, "bf16", freeze, more);
    cr_expect(r.code == 2 && strstr(r.err, word) != NULL,
              "%s --freeze %s %s: expected '%s', exit code %d:\n%s", places[i].engine, freeze, more, word,
              r.code, r.err);
    cli_free(&r);
}

/* Other weights frozen than before: refused; more of them when the user says so; fewer only from the weights alone. */
Test(checkpoint_frozen, other_weights_frozen)
{
    static const int both[] = {0, 5};
    make_inputs();
    for (int k = 0; k < 2; k++) {
        const int i = both[k];
        run(i, "bf16", "embedding.*", text("--train-iters 2 --save %s", cli_file("some")));
        refused(i, "", text("--train-iters 3 --load %s", cli_file("some")),
                "freeze: \"embedding.*\" there, absent here");
        refused(i, "", text("--train-iters 3 --override-checkpoint-args --load %s", cli_file("some")),
                "embedding.word_embeddings.weight: is frozen there and trained here");
        run(i, "bf16", "", text("--train-iters 1 --finetune --load %s", cli_file("some")));
        run(i, "bf16", "embedding.*,decoder.layers.0.*",
            text("--train-iters 3 --override-checkpoint-args --load %s --save %s", cli_file("some"),
                 cli_file("more")));
        json_t *t = tensors_of(cli_file("more")), *s = tensors_of(cli_file("some"));
        cr_expect(!has(t, "master_weights", "decoder.layers.0.mlp.linear_fc2.weight"));
        cr_expect(json_equal(
            json_object_get(json_object_get(s, "model"), "decoder.layers.0.mlp.linear_fc2.weight"),
            json_object_get(json_object_get(t, "model"), "decoder.layers.0.mlp.linear_fc2.weight")));
        json_decref(t);
        json_decref(s);
        refused(i, "decoder.layers.7.*", "--train-iters 1", "names no weight of the model");
        refused(i, "*", "--train-iters 1", "leaves no weight to train");
        cr_assert_eq(assay_remove_tree(cli_file("some"), cli_folder), ASSAY_OK);
        cr_assert_eq(assay_remove_tree(cli_file("more"), cli_folder), ASSAY_OK);
    }
}

/* --skip-save-model-weight: a frozen weight is among the masters, widened; the run goes on with the same bits. */
Test(checkpoint_frozen, masters_in_the_place_of_weights)
{
    make_inputs();
    for (int i = 2; i < PLACES; i += 4) {
        run(i, "bf16", FROZEN, text("--train-iters 2 --save %s", cli_file("full")));
        run(i, "bf16", FROZEN,
            text("--train-iters 2 --skip-save-model-weight --save %s", cli_file("masters")));
        run(i, "bf16", FROZEN,
            text("--train-iters 2 --load %s --save %s", cli_file("masters"), cli_file("again")));
        json_t *full = tensors_of(cli_file("full")), *again = tensors_of(cli_file("again"));
        cr_expect(json_equal(full, again), "%s %s", places[i].engine, places[i].layout);
        json_decref(full);
        json_decref(again);
        static const char *const made[] = {"full", "masters", "again"};
        for (int f = 0; f < 3; f++)
            cr_assert_eq(assay_remove_tree(cli_file(made[f]), cli_folder), ASSAY_OK);
    }
}
