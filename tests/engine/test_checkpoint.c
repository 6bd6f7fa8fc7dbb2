/* Restart = no restart, in the same layout bitwise, in another one within rounding; other models are refused.
 */
#include "tests/support/engine.h"

TestSuite(engine_checkpoint, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

#define TRAIN                                                                                                \
    "step --model " GOLDEN "qwen3_moe --batch " GOLDEN                                                       \
    "qwen3_moe/train_batch.safetensors --weight-decay 0.1 "                                                  \
    "--lr-decay-style cosine --lr-decay-iters 9 --adam-eps 1e-4 "

static void resume(const char *layout, int world, const char *other, int other_world, double tolerance)
{
    ENGINE_RUN(world, TRAIN "--layout %s --out %s", layout, engine_file("straight"));
    ENGINE_RUN(world, TRAIN "--layout %s --save %s --save-after 2", layout, engine_file("ck"));
    ENGINE_RUN(other_world, TRAIN "--layout %s --load %s --out %s", other, engine_file("ck"),
               engine_file("out"));
    engine_compare(engine_file("out"), engine_file("straight"), tolerance, "weight.");
}

Test(engine_checkpoint, restart_is_no_restart_one_rank)
{
    resume("1", 1, "1", 1, 0.0);
}
Test(engine_checkpoint, restart_is_no_restart_tp2_sp_ep2_dp2)
{
    resume("tp2,sp,ep2,dp2", 4, "tp2,sp,ep2,dp2", 4, 0.0);
}
Test(engine_checkpoint, restart_is_no_restart_zero1)
{
    resume("dp2,ep2,zero1", 2, "dp2,ep2,zero1", 2, 0.0);
}
Test(engine_checkpoint, restart_is_no_restart_tp2_etp2_zero1)
{
    resume("tp2,etp2,dp2,zero1", 4, "tp2,etp2,dp2,zero1", 4, 0.0);
}
Test(engine_checkpoint, etp2_continues_as_etp1)
{
    resume("tp2,etp2", 2, "tp2,sp,ep2", 2, 1e-4);
}
Test(engine_checkpoint, etp1_continues_as_etp2)
{
    resume("dp2,ep2,zero1", 2, "tp2,sp,etp2", 2, 1e-4);
}

Test(engine_checkpoint, zero1_continues_as_tp2_sp_ep2)
{
    resume("dp2,ep2,zero1", 2, "tp2,sp,ep2", 2, 1e-4);
}
Test(engine_checkpoint, restart_is_no_restart_zero2)
{
    resume("dp2,ep2,zero2", 2, "dp2,ep2,zero2", 2, 0.0);
}
Test(engine_checkpoint, restart_is_no_restart_zero3)
{
    resume("dp2,zero3", 2, "dp2,zero3", 2, 0.0);
}
Test(engine_checkpoint, zero3_continues_as_one_rank)
{
    resume("dp2,zero3", 2, "1", 1, 1e-4);
}
Test(engine_checkpoint, zero1_continues_as_tp2_zero3)
{
    resume("dp2,ep2,zero1", 2, "tp2,sp,dp2,zero3", 4, 1e-4);
}
Test(engine_checkpoint, tp2_continues_as_pp2)
{
    resume("tp2", 2, "pp2", 2, 1e-4);
}

/* Ranks that share a key and value head: the checkpoint is that of one rank. */
static const char shared_heads[] =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":16,\"ffn_hidden_size\":12,"
    "\"num_attention_heads\":4,\"num_query_groups\":2,\"kv_channels\":6,\"vocab_size\":29,"
    "\"add_qkv_bias\":true,\"qk_layernorm\":true,\"tie_word_embeddings\":true,\"init_method_std\":0.2}";
#define SHARED                                                                                               \
    "step --model %s/model --batch %s --layout %s " DRAWN "--adam-eps 1e-2 --lr-decay-style cosine "         \
    "--lr-decay-iters 9 "

static void resume_shared(const char *layout, int world, const char *other, int other_world, double tolerance)
{
    const int64_t train[4] = {3, 2, 2, 5};
    char model[ENGINE_PATH];
    snprintf(model, sizeof model, "%s/model", engine_folder);
    engine_write_config(model, shared_heads);
    engine_write_batch(engine_file("train"), train, 4, 29, 3);
    ENGINE_RUN(world, SHARED "--out %s", engine_folder, engine_file("train"), layout,
               engine_file("straight"));
    ENGINE_RUN(world, SHARED "--save %s --save-after 2", engine_folder, engine_file("train"), layout,
               engine_file("ck"));
    ENGINE_RUN(other_world, SHARED "--load %s --out %s", engine_folder, engine_file("train"), other,
               engine_file("ck"), engine_file("out"));
    engine_compare(engine_file("out"), engine_file("straight"), tolerance, "weight.");
}

Test(engine_checkpoint, shared_heads_restart_is_no_restart)
{
    resume_shared("tp4,sp,dp2,zero1", 8, "tp4,sp,dp2,zero1", 8, 0.0);
}
Test(engine_checkpoint, shared_heads_continue_on_one_rank)
{
    resume_shared("tp4,dp2,zero1", 8, "1", 1, 1e-4);
}
Test(engine_checkpoint, one_rank_continues_with_shared_heads)
{
    resume_shared("1", 1, "tp4,sp", 4, 1e-4);
}

Test(engine_checkpoint, another_model_is_refused)
{
    char line[2048];
    ENGINE_RUN(1, TRAIN "--save %s", engine_file("ck"));
    snprintf(line, sizeof line,
             "step --model %sllama --batch %sllama/train_batch.safetensors --load %s --out %s", GOLDEN,
             GOLDEN, engine_file("ck"), engine_file("out"));
    engine_must_fail(1, "of another model", line);
}

Test(engine_checkpoint, other_training_options_are_refused_or_said)
{
    static const struct {
        const char *option, *message;
    } rows[] = {
        {"--lr 5e-4", "lr: 0.001 there, 0.0005 here"},
        {"--precision bf16", "precision: \"fp32\" there, \"bf16\" here"},
        {"--adam-beta2 0.5", "adam_beta2: 0.999 there, 0.5 here"},
    };
    char line[2048];
    ENGINE_RUN(1, TRAIN "--train-iters 1 --save %s", engine_file("ck"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(line, sizeof line, TRAIN "--load %s --out %s %s", engine_file("ck"), engine_file("out"),
                 rows[i].option);
        engine_must_fail(1, rows[i].message, line);
        ENGINE_RUN(2, TRAIN "--layout dp2 --load %s --override-checkpoint-args %s", engine_file("ck"),
                   rows[i].option);
        char *log = engine_log();
        int said = 0; /* once, by rank 0 */
        for (const char *at = log; (at = strstr(at, "WARNING: checkpoint ")) != NULL; at++)
            said++;
        cr_expect_eq(said, 1, "%s", log);
        free(log);
    }
}

Test(engine_checkpoint, an_existing_folder_is_not_overwritten)
{
    char line[2048];
    ENGINE_RUN(1, TRAIN "--train-iters 1 --save %s", engine_file("ck"));
    snprintf(line, sizeof line, TRAIN "--train-iters 1 --save %s --out %s", engine_file("ck"),
             engine_file("out"));
    engine_must_fail(1, "exists", line);
}
