/* Rules of --substitute: what they change, what is refused; rounding of the values. */
#include "gpu/substitute.h"
#include "tests/support/engine.h"

TestSuite(engine_substitute, .init = engine_setup, .fini = engine_teardown, .timeout = 300);

#define STEP                                                                                                 \
    "step --model " GOLDEN "llama --batch " GOLDEN                                                           \
    "llama/batch.safetensors --layout tp2,sp --out %s --trace %s --substitute %s"

static const char *rules(const char *text)
{
    const char *path = engine_file("rules");
    cr_assert_eq(assay_write_file(path, text, strlen(text)), ASSAY_OK, "%s", assay_error_message());
    return path;
}

Test(engine_substitute, a_rule_chooses_the_variant_of_one_operation)
{
    const char *path = rules("k0:decoder.layers.1.mlp.linear_fc1,op=linear_fwd,phase=forward\n");
    ENGINE_RUN(2, STEP, engine_file("out"), engine_file("trace"), path);
    assay_trace *t;
    int64_t plain = 0, others = 0;
    cr_assert_eq(assay_trace_open(&t, engine_file("trace"), true), ASSAY_OK, "%s", assay_error_message());
    for (int rank = 0; rank < 2; rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(t, rank, i);
            const bool named = strcmp(op->op, "linear_fwd") == 0 &&
                               strcmp(op->instance, "decoder.layers.1.mlp.linear_fc1") == 0;
            cr_expect(!named || op->variant == 0);
            plain += named;
            others += !named && strcmp(op->op, "linear_fwd") == 0 && op->variant > 0;
        }
    cr_expect_eq(plain, 2);
    cr_expect_gt(others, 0, "other products run what they ran");
    assay_trace_close(t);
}

Test(engine_substitute, what_is_no_rule_or_changes_nothing_is_refused)
{
    static const struct {
        const char *text, *words;
    } list[] = {
        {"\n", "expected a rule, found none"},
        {"best:loss\n", "line 1: expected kN:INSTANCE or values:INSTANCE[:SLOT], found 'best'"},
        {"k0:loss\nk0:\n", "line 2: expected an instance"},
        {"k0:loss:y\n", "k0 takes no slot 'y'"},
        {"k0:loss,op=nothing\n", "no operation is called nothing"},
        {"k0:loss,when=1\n", "expected op=, phase=, step=N or microbatch=N"},
        {"k0:decoder.layers.7.input_layernorm\n", "line 1: the rule changed nothing"},
        {"k0:decoder.layers.0.self_attention.reduce\n", "line 1: the rule changed nothing"},
        {"values:*\n", "rules for values need --substitute-values DIR"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char trace[32], line[3000];
        snprintf(trace, sizeof trace, "trace%zu", i);
        snprintf(line, sizeof line, STEP, engine_file("out"), engine_file(trace), rules(list[i].text));
        engine_must_fail(2, list[i].words, line);
    }
}

Test(engine_substitute, a_fault_of_one_kernel_goes_with_it)
{
    engine_must_fail(1, "variant= has a meaning for negate, scale and spoil alone",
                     "step --model " GOLDEN "llama --batch " GOLDEN
                     "llama/batch.safetensors --fault skip:loss,variant=k1");
    engine_must_fail(1, "this run never met it",
                     "step --model " GOLDEN "llama --batch " GOLDEN
                     "llama/batch.safetensors --fault scale:decoder.final_layernorm:y=2,variant=k9");
}

/* Once, to nearest even: also where a float in between would lie exactly between two bfloat16. */
Test(engine_substitute, values_are_rounded_once)
{
    cr_expect_eq(gpu_round_bf16(1.0), 0x3F80);
    cr_expect_eq(gpu_round_bf16(1.0 + 0x1p-8), 0x3F80, "a tie goes to even");
    cr_expect_eq(gpu_round_bf16(1.0 + 0x1p-8 + 0x1p-40), 0x3F81, "a float in between would be the tie");
    cr_expect_eq(gpu_round_bf16(1.0 + 0x3p-8), 0x3F82, "a tie goes to even");
    cr_expect_eq(gpu_round_bf16(1.0 + 0x3p-8 - 0x1p-40), 0x3F81);
    cr_expect_eq(gpu_round_bf16(-1.0 - 0x1p-8 - 0x1p-40), 0xBF81);
    cr_expect_eq(gpu_round_bf16(0x1p-150), 0x0000);
    cr_expect_eq(gpu_round_bf16(-0.0), 0x8000);
    cr_expect_eq(gpu_round_bf16(1e300), 0x7F80);
    cr_expect_eq(gpu_round_bf16((double)INFINITY), 0x7F80);
    cr_expect_eq(gpu_round_bf16((double)-INFINITY), 0xFF80);
    cr_expect_eq(gpu_round_bf16((double)NAN) & 0x7FC0, 0x7FC0);
}
