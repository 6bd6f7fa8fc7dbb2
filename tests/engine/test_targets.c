/* The engine in the simulator holds its device code for several CPUs: which runs is chosen at the start, and changes no bit. */
#include "gpu/ladder.h"
#include "gpu/ops.h"
#include "tests/support/engine.h"
#include <assay_sim.h>

TestSuite(engine_targets, .init = engine_setup, .fini = engine_teardown, .timeout = 200);

static bool built_for_both(void)
{
    return ASSAY_SIM_TARGETS > 1;
}

/* With one set the tests below compare it with itself, which is right where cmake/AssayTargets.cmake asks for no second one. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) &&              \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
Test(engine_targets, an_optimized_build_has_both)
{
    cr_expect(built_for_both(), "cmake/AssayTargets.cmake: no objcopy, or a linker that it does not know?");
}
#endif

/* The records of a trace with the hash of every tensor that a run of three steps makes; freed by the caller. */
static char *records_of(const char *target, const char *model, const char *options)
{
    char name[64], *text = NULL;
    uint64_t bytes;
    snprintf(name, sizeof name, "trace-%s-%s", model, target);
    const char *trace = engine_file(name);
    setenv("ASSAY_SIM_TARGET", target, 1);
    cr_assert_eq(assay_remove_tree(trace, engine_folder), ASSAY_OK, "%s", assay_error_message());
    ENGINE_RUN(1, "step --model %s%s --batch %s%s/train_batch.safetensors --trace %s --out %s %s", GOLDEN,
               model, GOLDEN, model, trace, engine_file("out"), options);
    snprintf(name + strlen(name), sizeof name - strlen(name), "/rank-00000.jsonl");
    cr_assert_eq(assay_read_file(engine_file(name), 1 << 26, &text, &bytes), ASSAY_OK, "%s",
                 assay_error_message());
    cr_assert_gt(bytes, 100000);
    return text;
}

Test(engine_targets, both_give_the_same_bits)
{
    static const char *const models[] = {"qwen3_moe", "llama"};
    static const char *const options[] = {"--precision fp32", "--precision bf16",
                                          "--precision fp32 --variant k0", "--precision bf16 --variant k0"};
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < 4; i++) {
            char *least = records_of("baseline", models[m], options[i]),
                 *best = records_of(built_for_both() && __builtin_cpu_supports("avx2") ? "avx2" : "",
                                    models[m], options[i]);
            cr_expect_str_eq(least, best, "%s %s", models[m], options[i]);
            free(least);
            free(best);
        }
}

/* Not one program under two names. */
Test(engine_targets, each_has_kernels_of_its_own)
{
    const bool both = built_for_both() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    cr_expect_eq(assay_sim_target(), both ? 1 : 0);
    cr_expect_str_eq(gpu_ladder_target(), both ? "avx2" : "baseline");
    const gpu_rung *chosen = gpu_ladder("rmsnorm_fwd");
    cr_expect_eq(chosen == gpu_rmsnorm_fwd_ladder, !both);
    cr_expect_eq(chosen[0].run == gpu_rmsnorm_fwd_ladder[0].run, !both);
    cr_expect_str_eq(chosen[1].buys, gpu_rmsnorm_fwd_ladder[1].buys);
}

Test(engine_targets, doctor_says_which)
{
    const char *best = built_for_both() && __builtin_cpu_supports("avx2") ? "avx2" : "baseline";
    for (int forced = 0; forced < 2; forced++) {
        char expected[64];
        setenv("ASSAY_SIM_TARGET", forced ? "baseline" : "", 1);
        ENGINE_RUN(1, "doctor");
        char *log = engine_log();
        snprintf(expected, sizeof expected, "\"device_code\": \"%s\"", forced ? "baseline" : best);
        cr_expect(strstr(log, expected), "expected %s in\n%s", expected, log);
        free(log);
    }
}

Test(engine_targets, what_is_not_there_is_refused)
{
    static const char *const words[] = {"avx512", "Baseline", "avx2 ", "1"};
    for (size_t i = 0; i <= sizeof words / sizeof words[0]; i++) {
        const bool last = i == sizeof words / sizeof words[0];
        if (last && built_for_both())
            break; /* there it is legal */
        setenv("ASSAY_SIM_TARGET", last ? "avx2" : words[i], 1);
        cr_expect_neq(engine_run(1, "doctor"), ASSAY_OK);
        char *log = engine_log();
        cr_expect(strstr(log, "ASSAY_SIM_TARGET=") && strstr(log, ": expected baseline"), "%s", log);
        free(log);
    }
}
