/* Planted faults change the result, say so loudly, and are refused where they would never bite. */
#include "tests/support/engine.h"

TestSuite(engine_faults, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

#define TRAIN                                                                                                \
    "step --model " GOLDEN "qwen3_moe --batch " GOLDEN                                                       \
    "qwen3_moe/train_batch.safetensors --weight-decay 0.1 "                                                  \
    "--adam-beta2 0.95 --clip-grad 5.0 "

static void plant(const char *fault, const char *layout, int world)
{
    ENGINE_RUN(world, TRAIN "--layout %s --fault %s --out %s", layout, fault, engine_file("out"));
    char *log = engine_log();
    cr_expect(strstr(log, "WARNING") && strstr(log, fault), "%s", log);
    free(log);
    const double worst = engine_worst(engine_file("out"), GOLDEN "qwen3_moe/train_golden.safetensors");
    cr_expect_gt(worst, 1e-3, "%s: %g", fault, worst);
}

Test(engine_faults, skip_all_reduce_tp)
{
    plant("skip_all_reduce", "tp2", 2);
}
Test(engine_faults, skip_all_reduce_sp)
{
    plant("skip_all_reduce", "tp2,sp", 2);
}
Test(engine_faults, skip_all_reduce_dp)
{
    plant("skip_all_reduce", "dp2", 2);
}
Test(engine_faults, stale_weight)
{
    plant("stale_weight", "1", 1);
}
Test(engine_faults, double_microbatch)
{
    plant("double_microbatch", "1", 1);
}
Test(engine_faults, wrong_expert)
{
    plant("wrong_expert", "1", 1);
}
Test(engine_faults, flipped_sign)
{
    plant("flipped_sign", "1", 1);
}
Test(engine_faults, wrong_scale)
{
    plant("wrong_scale", "1", 1);
}
Test(engine_faults, missing_ep_chunk)
{
    plant("missing_ep_chunk", "ep2", 2);
}

Test(engine_faults, unknown_word_is_refused)
{
    engine_must_fail(1, "unknown, expected one of skip_all_reduce", TRAIN "--fault gremlin");
}
Test(engine_faults, a_fault_that_cannot_bite_is_refused)
{
    engine_must_fail(1, "'missing_ep_chunk' needs ep of at least 2", TRAIN "--fault missing_ep_chunk");
}
