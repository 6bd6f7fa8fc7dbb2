/* Deep pipelines and chunks against one rank: every number, checkpoints, and what is refused. */
#include "tests/support/engine.h"

static const double layout_tolerance = 2e-5;

TestSuite(engine_pipeline, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

/* Six layers, dense and of experts in turn. */
static const char deep[] =
    "{\"model_type\":\"megatron\",\"num_layers\":6,\"hidden_size\":16,\"ffn_hidden_size\":12,"
    "\"num_attention_heads\":2,\"num_query_groups\":2,\"kv_channels\":8,\"vocab_size\":29,"
    "\"tie_word_embeddings\":true,\"init_method_std\":0.2,\"num_moe_experts\":4,\"moe_router_topk\":2,"
    "\"moe_ffn_hidden_size\":6,\"moe_router_enable_expert_bias\":true,\"moe_router_score_function\":"
    "\"sigmoid\","
    "\"layer_is_moe\":[false,true,false,true,false,true],\"window\":[0,3,0,0,2,0]}";
#define TRAIN                                                                                                \
    "--moe-aux-loss-coeff 0.02 --moe-router-bias-update-rate 0.01 --adam-eps 1e-2 --lr-decay-style cosine "  \
    "--lr-decay-iters 9 "

static void write_deep(void)
{
    const int64_t forward[2] = {2, 5}, train[4] = {3, 6, 2, 5};
    char model[ENGINE_PATH];
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_config(model, deep);
    engine_write_batch(engine_file("fb"), forward, 2, 29, 5);
    engine_write_batch(engine_file("train"), train, 4, 29, 3);
}

#define STEP "step --model %s/model --batch %s --layout %s " DRAWN TRAIN

static void agrees(const char *layout, int world)
{
    write_deep();
    for (int form = 0; form < 2; form++) {
        const char *batch = form == 0 ? "fb" : "train";
        ENGINE_RUN(1, STEP "--out %s", engine_folder, engine_file(batch), "1", engine_file("one"));
        ENGINE_RUN(world, STEP "--out %s", engine_folder, engine_file(batch), layout, engine_file("out"));
        engine_compare(engine_file("out"), engine_file("one"), layout_tolerance, "");
    }
}

Test(engine_pipeline, pp3)
{
    agrees("pp3", 3);
}
Test(engine_pipeline, pp6)
{
    agrees("pp6", 6);
}
Test(engine_pipeline, pp2_vpp3)
{
    agrees("pp2,vpp3", 2);
}
Test(engine_pipeline, pp3_vpp2)
{
    agrees("pp3,vpp2", 3);
}
Test(engine_pipeline, tp2_sp_pp2_vpp3_ep2)
{
    agrees("tp2,sp,pp2,vpp3,ep2", 4);
}
Test(engine_pipeline, pp3_vpp2_ep2_dp2_zero1)
{
    agrees("pp3,vpp2,ep2,dp2,zero1", 6);
}

/* Layers that the stages do not divide, stages without any, embedding and loss alone. */
Test(engine_pipeline, pp4_of_six_layers)
{
    agrees("pp4", 4);
}
Test(engine_pipeline, pp3_first_and_last)
{
    agrees("tp2,sp,pp3,first1,last4", 6);
}
Test(engine_pipeline, pp2_vpp2_embedding_and_loss_count)
{
    agrees("pp2,vpp2,embed,loss", 2);
}
Test(engine_pipeline, stages_without_layers)
{
    agrees("tp2,pp4,stages=E|t*4|t*2|L", 8);
}
Test(engine_pipeline, chunks_without_layers)
{
    agrees("pp3,stages=E|t*3||t*2|t|L,ep2,dp2,zero1", 6);
}

/* The order in which stages run their passes changes no bit: backwards of a chunk come in the order of microbatches. */
Test(engine_pipeline, chunks_change_no_bit)
{
    write_deep();
    ENGINE_RUN(3, STEP "--out %s", engine_folder, engine_file("train"), "pp3", engine_file("one"));
    ENGINE_RUN(3, STEP "--out %s", engine_folder, engine_file("train"), "pp3,vpp2", engine_file("out"));
    engine_compare(engine_file("out"), engine_file("one"), 0.0, "weight.");
}

static void resume(const char *layout, int world, const char *other, int other_world, double tolerance)
{
    write_deep();
    ENGINE_RUN(world, STEP "--out %s", engine_folder, engine_file("train"), layout, engine_file("straight"));
    ENGINE_RUN(world, STEP "--save %s --save-after 2", engine_folder, engine_file("train"), layout,
               engine_file("ck"));
    ENGINE_RUN(other_world, STEP "--load %s --out %s", engine_folder, engine_file("train"), other,
               engine_file("ck"), engine_file("out"));
    engine_compare(engine_file("out"), engine_file("straight"), tolerance, "weight.");
}

Test(engine_pipeline, restart_is_no_restart_with_chunks)
{
    resume("pp2,vpp3", 2, "pp2,vpp3", 2, 0.0);
}
Test(engine_pipeline, chunks_continue_as_stages)
{
    resume("pp2,vpp3", 2, "pp3", 3, 1e-4);
}
Test(engine_pipeline, uneven_stages_continue_as_others)
{
    resume("pp3,first1,last4", 3, "pp2,stages=E|t|t*5|L", 2, 1e-4);
}
Test(engine_pipeline, one_rank_continues_with_chunks)
{
    resume("1", 1, "pp3,vpp2", 3, 1e-4);
}

Test(engine_pipeline, microbatches_must_fill_the_groups)
{
    char line[2048];
    write_deep();
    snprintf(line, sizeof line, STEP "--out %s", engine_folder, engine_file("train"), "pp2,vpp3,dp2",
             engine_file("out"));
    engine_must_fail(4, "multiple of pp2 or at most that, found 3", line);
}

/* Megatron-LM's long options are words of the layout. */
Test(engine_pipeline, long_options_are_words_of_the_layout)
{
    write_deep();
    ENGINE_RUN(3, STEP "--out %s", engine_folder, engine_file("fb"), "pp3,first1,last4", engine_file("one"));
    ENGINE_RUN(3,
               STEP "--num-layers-in-first-pipeline-stage 1 --num-layers-in-last-pipeline-stage 4 --out %s",
               engine_folder, engine_file("fb"), "pp3", engine_file("out"));
    engine_compare(engine_file("out"), engine_file("one"), 0.0, "");
    ENGINE_RUN(3, STEP "--pipeline-model-parallel-layout Et,|t,|t*4,L --out %s", engine_folder,
               engine_file("fb"), "pp3", engine_file("out"));
    engine_compare(engine_file("out"), engine_file("one"), 0.0, "");
    ENGINE_RUN(4,
               STEP "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split --out %s",
               engine_folder, engine_file("fb"), "pp4", engine_file("out"));
    engine_compare(engine_file("out"), engine_file("one"), layout_tolerance, "");
}
