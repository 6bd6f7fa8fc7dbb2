/* Communication beside compute changes no bit; a missing event does, in the simulator, whose streams run as late as they
 * may. */
#include "tests/support/engine.h"

TestSuite(engine_overlap, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

/* Tied embeddings, experts, an odd number of layers. */
static const char model_text[] =
    "{\"model_type\":\"megatron\",\"num_layers\":3,\"hidden_size\":24,\"ffn_hidden_size\":20,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,\"qk_layernorm\":"
    "true,\"tie_word_embeddings\":true,\"init_method_std\":0.2,\"num_moe_experts\":4,\"moe_router_topk\":2,"
    "\"moe_ffn_hidden_size\":12,\"moe_router_enable_expert_bias\":true,\"moe_router_score_function\":"
    "\"sigmoid\","
    "\"layer_is_moe\":[true,false,true]}";
#define BOTH "--overlap-grad-reduce --overlap-param-gather"
#define OPTIONS DRAWN "--moe-aux-loss-coeff 0.02 --moe-router-bias-update-rate 0.01 --adam-eps 1e-2"

static const char *write_inputs(void)
{
    static char model[ENGINE_PATH];
    const int64_t train[4] = {3, 4, 2, 7};
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_config(model, model_text);
    engine_write_batch(engine_file("train"), train, 4, 37, 3);
    return model;
}

static void same_bits(const char *layout, int world, const char *precision, const char *options)
{
    const char *model = write_inputs();
    ENGINE_RUN(world, "step --model %s --batch %s --layout %s --precision %s --out %s " OPTIONS, model,
               engine_file("train"), layout, precision, engine_file("off"));
    for (int seed = 0; seed < 3; seed++) {
        engine_set_stream_seed(seed);
        ENGINE_RUN(world, "step --model %s --batch %s --layout %s --precision %s --out %s %s " OPTIONS, model,
                   engine_file("train"), layout, precision, engine_file("on"), options);
        engine_compare(engine_file("on"), engine_file("off"), 0.0, "");
    }
}

Test(engine_overlap, dp2)
{
    same_bits("dp2", 2, "fp32", "--overlap-grad-reduce");
}
Test(engine_overlap, dp2_zero1_small_buckets)
{
    same_bits("dp2,zero1 --ddp-bucket-size 700", 2, "fp32", BOTH);
}
Test(engine_overlap, dp2_zero2_small_buckets)
{
    same_bits("dp2,zero2 --ddp-bucket-size 300", 2, "fp32", BOTH);
}
Test(engine_overlap, tp2_dp4_zero3_small_buckets)
{
    same_bits("tp2,dp4,zero3 --ddp-bucket-size 300", 8, "bf16", BOTH);
}
Test(engine_overlap, dp2_zero2)
{
    same_bits("dp2,zero2", 2, "fp32", BOTH);
}
Test(engine_overlap, dp2_zero3)
{
    same_bits("dp2,zero3", 2, "fp32", BOTH);
}
Test(engine_overlap, dp2_zero3_bf16)
{
    same_bits("dp2,zero3", 2, "bf16", BOTH);
}
Test(engine_overlap, ep2_dp4_zero3_hsdp2)
{
    same_bits("ep2,dp4,zero3,hsdp2", 4, "fp32", BOTH);
}
Test(engine_overlap, tp2_sp_dp2_zero2)
{
    same_bits("tp2,sp,dp2,zero2", 4, "bf16", BOTH);
}
Test(engine_overlap, pp3_dp2_zero1)
{
    same_bits("pp3,dp2,zero1", 6, "fp32", BOTH);
}
Test(engine_overlap, pp3_dp2_zero3)
{
    same_bits("pp3,dp2,zero3", 6, "fp32", BOTH);
}

/* Each fault takes one event away: in some order of the streams the result is another one. */
static void must_show(const char *layout, const char *fault)
{
    char line[4 * ENGINE_PATH];
    const char *model = write_inputs();
    int64_t differ = 0;
    ENGINE_RUN(2, "step --model %s --batch %s --layout %s --out %s " OPTIONS, model, engine_file("train"),
               layout, engine_file("off"));
    for (int seed = 0; seed < 8 && differ == 0; seed++) {
        engine_set_stream_seed(seed);
        snprintf(line, sizeof line,
                 "step --model %s --batch %s --layout %s --out %s " BOTH " --fault %s " OPTIONS, model,
                 engine_file("train"), layout, engine_file("on"), fault);
        engine_must_run(engine_run(2, "%s", line), line);
        differ = engine_n_different(engine_file("on"), engine_file("off"));
    }
    cr_expect_gt(differ, 0, "%s with %s: the same bits", layout, fault);
}

Test(engine_overlap, a_gather_that_nobody_waits_for_shows_zero1)
{
    must_show("dp2,zero1", "unwaited_gather");
}
Test(engine_overlap, a_gather_that_nobody_waits_for_shows_zero3)
{
    must_show("dp2,zero3", "unwaited_gather");
}
Test(engine_overlap, a_reduction_that_does_not_wait_shows)
{
    must_show("dp2,zero1", "unwaited_gradients");
}
Test(engine_overlap, a_scatter_that_does_not_wait_shows)
{
    must_show("dp2,zero2", "unwaited_gradients");
}
Test(engine_overlap, a_slot_that_is_used_too_early_shows)
{
    must_show("dp2,zero2", "reused_slot");
}
Test(engine_overlap, a_reduction_before_the_last_microbatch_shows)
{
    must_show("dp2,zero1", "early_reduction");
}

/* What makes no sense is refused by name. */
Test(engine_overlap, refusals)
{
    char line[4 * ENGINE_PATH];
    const char *model = write_inputs();
    static const char *const rows[][2] = {
        {"dp2 --overlap-param-gather", "overlap_param_gather: with zero0 no parameter is gathered"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(line, sizeof line, "step --model %s --batch %s --out %s --layout %s " OPTIONS, model,
                 engine_file("train"), engine_file("out"), rows[i][0]);
        engine_must_fail(2, rows[i][1], line);
    }
}
