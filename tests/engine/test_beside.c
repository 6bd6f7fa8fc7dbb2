/* Collectives of activations beside products change no bit; a missing event does, in the simulator, whose streams run as late as
 * they may. */
#include "tests/support/engine.h"

TestSuite(engine_beside, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

/* Biases of all dense linears, a shared expert, three experts for each of two ranks, an odd number of tokens. */
static const char model_text[] =
    "{\"model_type\":\"megatron\",\"num_layers\":3,\"hidden_size\":24,\"ffn_hidden_size\":20,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":37,\"qk_layernorm\":"
    "true,\"add_qkv_bias\":true,\"add_proj_bias\":true,\"add_mlp_bias\":true,\"init_method_std\":0.2,\"num_"
    "moe_experts\":6,\"moe_router_topk\":2,"
    "\"moe_ffn_hidden_size\":12,\"moe_router_enable_expert_bias\":true,\"moe_router_score_function\":"
    "\"sigmoid\",\"moe_shared_expert_intermediate_size\":12,\"moe_shared_expert_gate\":true,"
    "\"layer_is_moe\":[true,false,true]}";
#define OPTIONS                                                                                              \
    DRAWN "--moe-aux-loss-coeff 0.02 --moe-z-loss-coeff 0.01 --moe-router-bias-update-rate 0.01 --adam-eps " \
          "1e-2"
#define SUMS "--async-tensor-model-parallel-allreduce"
enum { VOCAB = 37 };

static int64_t train[4] = {2, 4, 2, 7};

static const char *write_inputs(void)
{
    static char model[ENGINE_PATH];
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_config(model, model_text);
    engine_write_batch(engine_file("train"), train, 4, VOCAB, 3);
    return model;
}

/* In so many orders of the streams; the file "off" is of the run without `words`. */
static void same_bits_in(int orders, const char *layout, int world, const char *always, const char *words)
{
    const char *model = write_inputs();
    ENGINE_RUN(world, "step --model %s --batch %s --layout %s %s --out %s " OPTIONS, model,
               engine_file("train"), layout, always, engine_file("off"));
    for (int seed = 0; seed < orders; seed++) {
        engine_set_stream_seed(seed);
        ENGINE_RUN(world, "step --model %s --batch %s --layout %s %s %s --out %s " OPTIONS, model,
                   engine_file("train"), layout, always, words, engine_file("on"));
        engine_compare(engine_file("on"), engine_file("off"), 0.0, "");
    }
}

static void same_bits(const char *layout, int world, const char *always, const char *words)
{
    same_bits_in(3, layout, world, always, words);
}

/* The fault takes one event away: in some order of the streams the result is another one. */
static void must_show(const char *layout, const char *words, const char *fault)
{
    char line[4 * ENGINE_PATH];
    int64_t differ = 0;
    same_bits_in(1, layout, 2, "--precision fp32", words);
    for (int seed = 0; seed < 8 && differ == 0; seed++) {
        engine_set_stream_seed(seed);
        snprintf(
            line, sizeof line,
            "step --model %s/model --batch %s --layout %s --precision fp32 --out %s %s --fault %s " OPTIONS,
            engine_folder, engine_file("train"), layout, engine_file("on"), words, fault);
        engine_must_run(engine_run(2, "%s", line), line);
        differ = engine_n_different(engine_file("on"), engine_file("off"));
    }
    cr_expect_gt(differ, 0, "%s with %s: the same bits", layout, fault);
}

/* --- the sum of an input's gradient over tp ------------------------------------------------------------------ */

Test(engine_beside, sums_tp2)
{
    same_bits("tp2", 2, "--precision fp32", SUMS);
}
Test(engine_beside, sums_tp2_sp_bf16)
{
    same_bits("tp2,sp", 2, "--precision bf16", SUMS);
}
/* The shared expert has its sums on the second compute stream. */
Test(engine_beside, sums_of_a_shared_expert_beside_the_dispatch)
{
    same_bits("tp2,sp,ep2", 2, "--precision bf16", SUMS " --moe-shared-expert-overlap");
}
Test(engine_beside, sums_tp2_sp_dp2_zero2)
{
    same_bits("tp2,sp,dp2,zero2", 4, "--precision fp32",
              SUMS " --overlap-grad-reduce --overlap-param-gather");
}
Test(engine_beside, sums_tp2_pp3_full_recompute)
{
    same_bits("tp2,pp3", 6, "--precision bf16 --recompute-granularity full", SUMS);
}
Test(engine_beside, a_sum_that_does_not_wait_shows)
{
    must_show("tp2", SUMS, "unwaited_input_gradient");
    must_show("tp2,sp", SUMS, "unwaited_input_gradient");
}
Test(engine_beside, a_sum_that_nobody_waits_for_shows)
{
    must_show("tp2", SUMS, "unwaited_sum");
    must_show("tp2,sp", SUMS, "unwaited_sum");
}

/* --- linears cut over tp in splits of the rows ---------------------------------------------------------------- */
#define SPLITS "--tp-comm-overlap"

/* 28 tokens: four splits of seven rows; with sp pieces of 4 and 3 positions, whose rows four does not divide. */
Test(engine_beside, splits_tp2)
{
    same_bits("tp2", 2, "--precision fp32", SPLITS);
    same_bits("tp2", 2, "--precision bf16", SPLITS " " SUMS);
}
Test(engine_beside, splits_tp2_sp)
{
    same_bits("tp2,sp", 2, "--precision fp32", SPLITS " " SUMS);
    same_bits("tp2,sp", 2, "--precision bf16", SPLITS);
}
Test(engine_beside, splits_tp4_sp)
{
    same_bits("tp4,sp", 4, "--precision bf16", SPLITS);
}
Test(engine_beside, splits_tp2_sp_cp2)
{
    same_bits("tp2,sp,cp2", 4, "--precision fp32", SPLITS);
}
/* The shared expert has its splits on the second compute stream, the halves of the others share the communication stream. */
Test(engine_beside, splits_of_a_shared_expert_beside_the_dispatch)
{
    same_bits("tp2,sp,ep2", 2, "--precision bf16",
              SPLITS " --moe-shared-expert-overlap --moe-alltoall-halves");
    same_bits("tp2,ep2", 2, "--precision fp32", SPLITS " " SUMS " --moe-shared-expert-overlap");
}
Test(engine_beside, splits_tp2_sp_dp2_zero3)
{
    same_bits("tp2,sp,dp2,zero3", 4, "--precision bf16",
              SPLITS " --overlap-grad-reduce --overlap-param-gather");
}
Test(engine_beside, splits_tp2_pp3)
{
    same_bits("tp2,pp3", 6, "--precision bf16", SPLITS);
}
/* Fewer rows than splits: three, or pieces of two and one; of four ranks one has none. */
Test(engine_beside, splits_of_few_rows)
{
    train[2] = 1;
    train[3] = 3;
    same_bits("tp2", 2, "--precision fp32", SPLITS);
    same_bits("tp2,sp", 2, "--precision bf16", SPLITS);
    same_bits("tp4,sp", 4, "--precision fp32", SPLITS " " SUMS);
}
Test(engine_beside, splits_that_run_again)
{
    same_bits("tp2,sp", 2, "--precision bf16 --recompute-granularity full", SPLITS);
    same_bits("tp2,sp", 2,
              "--precision bf16 --recompute-granularity selective --recompute-modules "
              "core_attn,layernorm,mlp,moe_act,shared_experts",
              SPLITS " " SUMS " --moe-shared-expert-overlap");
}
Test(engine_beside, splits_unfused_frozen_and_in_parts)
{
    same_bits("tp2,sp", 2, "--precision bf16 --gradient-accumulation-fusion=false", SPLITS);
    same_bits("tp2", 2, "--precision bf16 --freeze decoder.layers.*.self_attention.linear_*.weight", SPLITS);
    same_bits("tp2,sp", 2, "--precision fp32 --loss-subbatch-sequence-length 3", SPLITS);
}
Test(engine_beside, tokens_that_are_not_made_yet_show)
{
    must_show("tp2,sp", SPLITS, "unwaited_piece");
}
Test(engine_beside, a_split_that_nobody_waits_for_shows)
{
    must_show("tp2,sp", SPLITS, "unwaited_split");
    must_show("tp2,sp", SPLITS " --recompute-granularity full", "unwaited_split");
}
Test(engine_beside, rows_that_are_summed_before_they_are_made_show)
{
    must_show("tp2", SPLITS, "unwaited_partial");
    must_show("tp2,sp", SPLITS, "unwaited_partial");
}
Test(engine_beside, sums_of_splits_that_nobody_waits_for_show)
{
    must_show("tp2", SPLITS, "unwaited_split_sum");
    must_show("tp2,sp", SPLITS " " SUMS, "unwaited_split_sum");
}

/* --- the experts' rows in halves ------------------------------------------------------------------------------ */
#define HALVES "--moe-alltoall-halves"

Test(engine_beside, halves_dp2_ep2)
{
    same_bits("dp2,ep2", 2, "--precision fp32", HALVES);
}
Test(engine_beside, halves_dp2_ep2_bf16_with_the_shared_expert_beside)
{
    same_bits("dp2,ep2", 2, "--precision bf16", HALVES " --moe-shared-expert-overlap");
}
/* Seven tokens, two of six experts for each: some halves are empty; the two ranks' sequence pieces are uneven. */
Test(engine_beside, halves_tp2_sp_ep2_dp4)
{
    same_bits("tp2,sp,ep2,dp4", 8, "--precision bf16 --calculate-per-token-loss", HALVES);
}
Test(engine_beside, halves_cp2_ep2)
{
    same_bits("cp2,ep2", 2, "--precision bf16", HALVES);
}
Test(engine_beside, halves_tp2_sp_ep2)
{
    same_bits("tp2,sp,ep2", 2, "--precision bf16", HALVES " " SUMS " --moe-shared-expert-overlap");
    same_bits("tp2,ep2", 2, "--precision fp32", HALVES " " SUMS);
}
Test(engine_beside, halves_tp2_sp_dp2_ep2_etp1_zero3)
{
    same_bits("tp2,sp,ep2,dp2,zero3", 4, "--precision bf16",
              HALVES " --overlap-grad-reduce --overlap-param-gather");
}
Test(engine_beside, halves_pp3_dp2_ep2)
{
    same_bits("pp3,dp2,ep2", 6, "--precision fp32", HALVES);
}
Test(engine_beside, halves_with_capacity)
{
    same_bits("dp2,ep2", 2, "--precision fp32 --moe-expert-capacity-factor 0.6", HALVES);
}
Test(engine_beside, halves_with_padding)
{
    same_bits("dp2,ep2", 2,
              "--precision bf16 --moe-expert-capacity-factor 0.9 --moe-pad-expert-input-to-capacity", HALVES);
    same_bits("dp2,ep2", 2, "--precision fp32 --moe-router-padding-for-quantization mxfp8", HALVES);
}
/* Frozen and stored weight gradients. */
Test(engine_beside, halves_unfused_and_frozen)
{
    same_bits("dp2,ep2", 2, "--precision bf16 --gradient-accumulation-fusion=false", HALVES);
    same_bits("dp2,ep2", 2, "--precision bf16 --freeze decoder.layers.*.mlp.experts.linear_fc1.weight",
              HALVES);
}
/* Layers, and activations alone, that run again; the shared expert beside the dispatch again, too. */
Test(engine_beside, halves_that_run_again)
{
    same_bits("dp2,ep2", 2, "--precision bf16 --recompute-granularity full",
              HALVES " --moe-shared-expert-overlap");
    same_bits("tp2,sp,ep2", 2,
              "--precision bf16 --recompute-granularity selective --recompute-modules "
              "core_attn,layernorm,mlp,moe_act,shared_experts",
              HALVES " " SUMS " --moe-shared-expert-overlap");
    same_bits("dp2,ep2", 2, "--precision fp32 --recompute-granularity selective --recompute-modules moe",
              HALVES " --moe-shared-expert-overlap");
}
/* What has no halves is refused by name. */
Test(engine_beside, refusals)
{
    char line[4 * ENGINE_PATH];
    const char *model = write_inputs();
    static const char *const rows[][2] = {
        {"dp2", "moe_alltoall_halves: without ep no row of an expert travels"},
        {"tp2,sp,etp2,dp2,ep2", "moe_alltoall_halves: rows that are gathered over etp travel whole"},
        {"dp2,ep2 --moe-token-dispatcher-type allgather",
         "moe_alltoall_halves: the all-gather dispatcher sends tokens, not the rows of experts"},
        {"cp3,dp2,ep6", "moe_alltoall_halves: a rank has one expert, which has no halves"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(line, sizeof line, "step --model %s --batch %s --out %s --layout %s " HALVES " " OPTIONS,
                 model, engine_file("train"), engine_file("out"), rows[i][0]);
        engine_must_fail(2, rows[i][1], line);
    }
}
Test(engine_beside, rows_that_are_not_made_yet_show)
{
    must_show("dp2,ep2", HALVES, "unwaited_rows");
}
Test(engine_beside, a_half_that_nobody_waits_for_shows)
{
    must_show("dp2,ep2", HALVES, "unwaited_half");
    must_show("tp2,sp,ep2", HALVES, "unwaited_half");
    must_show("dp2,ep2", HALVES " --recompute-granularity full", "unwaited_half");
}
Test(engine_beside, rows_that_nobody_waits_for_on_the_way_back_show)
{
    must_show("dp2,ep2", HALVES, "unwaited_return");
}
