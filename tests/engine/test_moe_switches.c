/* Switches of a mixture of experts that change no bit: rows of zeros beside those of tokens, and the shared expert beside
 * the dispatch; a missing event of it does, in the simulator, whose streams run as late as they may. */
#include "tests/support/engine.h"

TestSuite(engine_moe_switches, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

static const char experts[] =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":24,\"ffn_hidden_size\":20,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,"
    "\"init_method_std\":0.2,\"num_moe_experts\":6,\"moe_router_topk\":2,\"moe_ffn_hidden_size\":12,"
    "\"moe_router_score_function\":\"sigmoid\",\"moe_router_enable_expert_bias\":true,"
    "\"moe_shared_expert_intermediate_size\":12,\"moe_shared_expert_gate\":true,"
    "\"layer_is_moe\":[true,false]}";
#define MOE                                                                                                  \
    DRAWN "--moe-aux-loss-coeff 0.02 --moe-z-loss-coeff 0.01 --moe-router-bias-update-rate 0.01 --adam-eps " \
          "1e-2"
enum { VOCAB = 37, STEPS = 2, MICROBATCHES = 2, ROWS = 2, TOKENS = 7 };

/* Gradients of one pass, and weights with expert biases after two steps, with and without `words`. */
static void same_bits(const char *layout, int world, const char *always, const char *words)
{
    static const char *const batches[2] = {"grads", "train"};
    const int64_t forward[2] = {ROWS, TOKENS}, train[4] = {STEPS, MICROBATCHES, ROWS, TOKENS};
    char model[ENGINE_PATH];
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_config(model, experts);
    engine_write_batch(engine_file("grads"), forward, 2, VOCAB, 5);
    engine_write_batch(engine_file("train"), train, 4, VOCAB, 3);
    for (int i = 0; i < 2; i++) {
        ENGINE_RUN(world, "step --model %s --batch %s --layout %s %s --out %s " MOE, model,
                   engine_file(batches[i]), layout, always, engine_file("off"));
        ENGINE_RUN(world, "step --model %s --batch %s --layout %s %s %s --out %s " MOE, model,
                   engine_file(batches[i]), layout, always, words, engine_file("on"));
        engine_compare(engine_file("on"), engine_file("off"), 0.0, "");
    }
}

#define PLAIN "--variant linear=k0"

/* A plain product adds a row's terms, and a gradient's rows, one after the other: zeros in between change nothing. */
Test(engine_moe_switches, padding_to_capacity_changes_no_bit)
{
    same_bits("dp2,ep2", 2, PLAIN " --precision fp32 --moe-expert-capacity-factor 0.7",
              "--moe-pad-expert-input-to-capacity");
    same_bits("tp2,sp,etp2", 2, PLAIN " --precision bf16 --moe-expert-capacity-factor 0.7",
              "--moe-pad-expert-input-to-capacity");
}

Test(engine_moe_switches, padding_to_a_multiple_changes_no_bit)
{
    same_bits("tp2", 2, PLAIN " --precision fp32", "--moe-router-padding-for-quantization mxfp8");
    same_bits("dp2,ep2", 2, PLAIN " --precision bf16 --moe-token-dispatcher-type allgather",
              "--moe-router-padding-for-quantization fp8");
}

/* --- the shared expert beside the dispatch ------------------------------------------------------------------- */

#define BESIDE "--moe-shared-expert-overlap"

Test(engine_moe_switches, beside_the_dispatch_on_one_rank)
{
    for (int seed = 0; seed < 4; seed++) {
        engine_set_stream_seed(seed);
        same_bits("1", 1, "--precision fp32", BESIDE);
    }
}
/* Collectives of the shared expert over tp beside those of the router and the dispatch, on the same ranks. */
Test(engine_moe_switches, beside_the_dispatch_tp2_ep2)
{
    for (int seed = 0; seed < 6; seed++) {
        engine_set_stream_seed(seed);
        same_bits(seed % 2 ? "tp2,ep2" : "tp2,sp,etp2", 2, "--precision bf16", BESIDE);
    }
}
Test(engine_moe_switches, beside_the_dispatch_tp2_sp_etp2_dp2)
{
    same_bits("tp2,sp,etp2,dp2,zero1", 4, "--precision fp32 --moe-token-dispatcher-type allgather",
              BESIDE " --overlap-grad-reduce");
}
Test(engine_moe_switches, beside_the_dispatch_pp2_zero3)
{
    same_bits("dp2,ep2,zero3", 2, "--precision bf16", BESIDE " --overlap-grad-reduce --overlap-param-gather");
}

/* Each fault takes one event away: in some order of the streams the result is another one. */
static void must_show(const char *layout, const char *fault)
{
    char line[4 * ENGINE_PATH];
    int64_t differ = 0;
    same_bits(layout, 2, "--precision fp32", BESIDE);
    for (int seed = 0; seed < 8 && differ == 0; seed++) {
        engine_set_stream_seed(seed);
        snprintf(line, sizeof line,
                 "step --model %s/model --batch %s --layout %s --precision fp32 --out %s " BESIDE
                 " --fault %s " MOE,
                 engine_folder, engine_file("train"), layout, engine_file("on"), fault);
        engine_must_run(engine_run(2, "%s", line), line);
        differ = engine_n_different(engine_file("on"), engine_file("off"));
    }
    cr_expect_gt(differ, 0, "%s with %s: the same bits", layout, fault);
}

Test(engine_moe_switches, a_shared_expert_that_does_not_wait_shows)
{
    must_show("tp2,sp", "unwaited_tokens");
}
Test(engine_moe_switches, a_shared_expert_that_nobody_waits_for_shows)
{
    must_show("dp2,ep2", "unwaited_shared_expert");
    /* its collectives share a communicator with those that do not wait */
    must_show("tp2,sp", "unwaited_shared_expert");
}
