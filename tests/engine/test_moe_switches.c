/* Switches of a mixture of experts that change no bit: rows of zeros beside those of tokens. */
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
