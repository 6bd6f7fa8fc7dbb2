/* `assay check` of honest runs beside the folders they train (golden/make_checked.py), and of the same runs beside others. */
#include "tests/support/cli.h"

TestSuite(checked, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

#define CHECKED ASSAY_SOURCE_DIR "/golden/checked/"

static cli_result check(const char *trace, const char *model)
{
    return cli_run("check --trace " CHECKED "%s --model " CHECKED "models/%s", trace, model);
}

Test(checked, honest_runs_are_right)
{
    static const struct {
        const char *name, *tensors;
    } rows[] = {{"olmoe", "98 tensors beside the reference's: right"},
                {"olmoe_noclip", "86 tensors beside the reference's: right"},
                {"qwen2_moe", "tensors beside the reference's: right"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cli_result r = check(rows[i].name, rows[i].name);
        cli_expect_success(&r, rows[i].name);
        cr_expect(strstr(r.out, rows[i].tensors) != NULL && strstr(r.out, "\nRIGHT: ") != NULL, "%s: %s",
                  rows[i].name, r.out);
        cli_free(&r);
    }
}

/* q, k and v that were clipped beside a model that does not clip, and the reverse. */
Test(checked, another_model_s_run_is_wrong)
{
    static const char *const names[] = {"olmoe", "olmoe_noclip"};
    for (int i = 0; i < 2; i++) {
        cli_result r = check(names[i], names[1 - i]);
        cr_expect_eq(r.code, 1, "%s: %d\n%s%s", names[i], r.code, r.out, r.err);
        cr_expect(strstr(r.out, "WRONG: ") != NULL && strstr(r.out, "clip_qkv") != NULL, "%s: %s", names[i],
                  r.out);
        cli_free(&r);
    }
}

/* A fifth more than the gradient of a gate: what its rounded sigmoid explains is less. */
Test(checked, a_wrong_gradient_of_a_gate_is_wrong)
{
    cli_result r = check("qwen2_moe_gate", "qwen2_moe");
    cr_expect_eq(r.code, 1, "%d\n%s%s", r.code, r.out, r.err);
    cr_expect(strstr(r.out, "WRONG: ") != NULL &&
                  strstr(r.out, "differs from the reference is model.layers.0.mlp.shared_expert_gate.dy") !=
                      NULL,
              "%s", r.out);
    cli_free(&r);
}
