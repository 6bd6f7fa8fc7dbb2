/* Any layout to any layout: 13 layouts of the engine and 3 of the reference save a mixture of experts with a bias, tied heads, an odd
 * vocabulary and shared key heads; every one is loaded by every layout and saved again, and all tensors are those that were
 * saved, by the manifest's hashes.  Then the run goes on in another layout as the reference that was never interrupted, and in
 * the same one bit for bit. */
#include "tests/support/cli.h"
#include "tests/support/engine.h"
#include <jansson.h>

TestSuite(checkpoint_layouts, .init = cli_setup, .fini = cli_teardown, .timeout = 1200);

static const char *const layouts[] = {"1",
                                      "tp2,sp,ep2,dp2",
                                      "tp4,sp,dp2,zero1",
                                      "pp3,first1,last1",
                                      "pp2,vpp2,dp2,zero1",
                                      "cp2,dp2",
                                      "ep4,dp4",
                                      "tp2,etp2,ep2,dp2",
                                      "dp4,zero1,hsdp2",
                                      "tp2,sp,dp2,zero2",
                                      "ep2,dp4,zero3",
                                      "pp2,dp2,zero3",
                                      "tp2,cp2,pp2"};
enum { LAYOUTS = sizeof layouts / sizeof *layouts, REFERENCES = 3, ALL = LAYOUTS + REFERENCES };
/* Of the reference: layouts too, in the same format. */
static const char *const ref_layouts[REFERENCES] = {"1", "tp2,sp,ep2,dp2,zero1", "pp2,dp2,zero3"};

static const char model_config[] =
    "{\"model_type\":\"megatron\",\"num_layers\":4,\"hidden_size\":16,\"ffn_hidden_size\":12,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":6,\"vocab_size\":29,"
    "\"max_position_embeddings\":32,\"layernorm_epsilon\":1e-5,\"rotary_base\":10000.0,"
    "\"add_qkv_bias\":true,\"add_proj_bias\":true,\"qk_layernorm\":true,\"tie_word_embeddings\":true,"
    "\"init_method_std\":0.2,\"layer_is_moe\":[false,true,false,true],\"num_moe_experts\":4,"
    "\"moe_router_topk\":2,\"moe_ffn_hidden_size\":10,\"moe_router_score_function\":\"sigmoid\","
    "\"moe_router_enable_expert_bias\":true}";

static char model[CLI_PATH], batch[CLI_PATH];

static void make_inputs(void)
{
    const int64_t shape[4] = {5, 4, 2, 8};
    snprintf(model, sizeof model, "%s", cli_file("model"));
    snprintf(batch, sizeof batch, "%s", cli_file("train"));
    engine_write_config(model, model_config);
    engine_write_batch(batch, shape, 4, 29, 3);
}

/* Entry i: a layout of the engine, or behind them of the reference. */
static const char *engine_of(int i)
{
    return i < LAYOUTS ? "sim" : "ref";
}
static const char *layout_of(int i)
{
    return i < LAYOUTS ? layouts[i] : ref_layouts[i - LAYOUTS];
}

static void run(int i, const char *precision, const char *more)
{
    cli_result r = cli_run("step --engine %s --layout %s --precision %s --model %s --batch %s " DRAWN
                           "--lr-decay-style cosine --lr-decay-iters 9 --adam-eps 1e-2 --weight-decay 0.1 "
                           "--moe-router-bias-update-rate 0.001 --moe-aux-loss-coeff 0.01 --out %s %s",
                           engine_of(i), layout_of(i), precision, model, batch, cli_file("out"), more);
    cli_expect_success(&r, layout_of(i));
    cli_free(&r);
}

static json_t *tensors_of(const char *dir)
{
    char path[CLI_PATH + 20];
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    json_t *manifest = json_load_file(path, 0, NULL);
    cr_assert_not_null(manifest, "%s", path);
    json_t *tensors = json_incref(json_object_get(manifest, "tensors"));
    json_decref(manifest);
    cr_assert_gt(json_object_size(json_object_get(tensors, "model")), 20);
    return tensors;
}

static void folder_of(int i, const char *what, char out[CLI_PATH])
{
    snprintf(out, CLI_PATH, "%s/%s%d", cli_folder, what, i);
}

static void save_all(const char *precision)
{
    for (int i = 0; i < ALL; i++) {
        char dir[CLI_PATH], more[CLI_PATH + 60];
        folder_of(i, precision, dir);
        /* Odd ones in many files. */
        snprintf(more, sizeof more, "--save-after 2 --train-iters 2 --save %s --max-shard-size %d", dir,
                 i % 2 ? 3000 : 0);
        run(i, precision, more);
    }
}

static void every_pair(const char *precision)
{
    char from[CLI_PATH], to[CLI_PATH], more[2 * CLI_PATH + 60];
    make_inputs();
    save_all(precision);
    for (int a = 0; a < ALL; a++) {
        folder_of(a, precision, from);
        json_t *saved = tensors_of(from);
        for (int b = 0; b < ALL; b++) {
            snprintf(to, sizeof to, "%s", cli_file("moved"));
            snprintf(more, sizeof more, "--train-iters 2 --load %s --save %s", from, to);
            run(b, precision, more);
            json_t *moved = tensors_of(to);
            cr_expect(json_equal(saved, moved), "%s: %s %s -> %s %s: the tensors differ", precision,
                      engine_of(a), layout_of(a), engine_of(b), layout_of(b));
            json_decref(moved);
            cr_assert_eq(assay_remove_tree(to, cli_folder), ASSAY_OK);
        }
        json_decref(saved);
    }
}

Test(checkpoint_layouts, every_pair_bf16)
{
    every_pair("bf16");
}

/* Three more steps.  With itself: the bits of the run that never stopped.  With a layout further on in the list: the loss and
 * the weights of the reference that never stopped, within what fp32 allows. */
Test(checkpoint_layouts, three_steps_further)
{
    char dir[CLI_PATH], more[2 * CLI_PATH + 60];
    make_inputs();
    save_all("fp32");
    run(LAYOUTS, "fp32", "--train-iters 5"); /* the reference on one rank */
    cr_assert_eq(rename(cli_file("out"), cli_file("straight")), 0);
    for (int i = 0; i < ALL; i++) {
        char whole[CLI_PATH];
        folder_of(i, "fp32", dir);
        snprintf(whole, sizeof whole, "%s", cli_file("whole"));
        snprintf(more, sizeof more, "--train-iters 5 --save %s", whole);
        run(i, "fp32", more);
        snprintf(more, sizeof more, "--train-iters 5 --load %s --save %s", dir, cli_file("resumed"));
        run(i, "fp32", more);
        json_t *straight = tensors_of(whole), *resumed = tensors_of(cli_file("resumed"));
        cr_expect(json_equal(straight, resumed), "%s %s: resumed in the same layout: the tensors differ",
                  engine_of(i), layout_of(i));
        json_decref(straight);
        json_decref(resumed);
        cr_assert_eq(assay_remove_tree(whole, cli_folder), ASSAY_OK);
        cr_assert_eq(assay_remove_tree(cli_file("resumed"), cli_folder), ASSAY_OK);
        for (int k = 1; k <= 5; k += 4) {
            const int b = (i + k) % ALL;
            assay_tensorfile *found, *expected;
            snprintf(more, sizeof more, "--train-iters 5 --load %s", dir);
            run(b, "fp32", more);
            cr_assert_eq(assay_tensorfile_open(&found, cli_file("out")), ASSAY_OK);
            cr_assert_eq(assay_tensorfile_open(&expected, cli_file("straight")), ASSAY_OK);
            double worst = 0.0;
            int64_t n = 0;
            for (int64_t t = 0; t < assay_tensorfile_count(expected); t++) {
                const assay_tensor_info *e = assay_tensorfile_at(expected, t);
                const assay_tensor_info *f = assay_tensorfile_find(found, e->name);
                if (strncmp(e->name, "weight.", 7) != 0 && strncmp(e->name, "exp_avg", 7) != 0)
                    continue;
                cr_assert_not_null(f, "%s", e->name);
                n++;
                worst = worse_of(worst, tensor_difference(f, e));
            }
            cr_expect(n > 60 && worst <= 2e-4, "%s %s -> %s %s: %lld tensors, the worst off by %g",
                      engine_of(i), layout_of(i), engine_of(b), layout_of(b), (long long)n, worst);
            assay_tensorfile_close(expected);
            assay_tensorfile_close(found);
        }
    }
}
