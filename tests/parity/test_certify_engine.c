/* assay certify --engine: what each trial of the engine's own kernels claims, and that it fails where an engine breaks the claim. */
#include "tests/support/certify.h"

TestSuite(certify_engine, .init = certify_setup, .fini = cli_teardown, .timeout = 300);

static cli_result try_planted(const char *plant, const char *operation)
{
    setenv("ENGINE", ASSAY_BIN_DIR "/assay-sim", 1);
    setenv("PLANT", plant, 1);
    return cli_run(
        "certify --seeds 1 --call-limit 0.5 --engine sim --operation %s --program " ASSAY_SOURCE_DIR
        "/tests/certify/planted_engine.sh",
        operation);
}

Test(certify_engine, an_engine_through_the_script_without_a_fault_passes)
{
    static const char *const trials[] = {"exact",  "local",   "special", "arguments", "probe",
                                         "repeat", "threads", "batch",   "written",   "workspace"};
    cli_result r = try_planted("nothing", "rmsnorm_fwd");
    cli_expect_success(&r, "nothing planted");
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        cr_expect(certify_passed(&r, trials[i]), "%s:\n%s", trials[i], r.out);
    cli_free(&r);
}

/* Each fault fails by its trial, and the report says what happened in which call. */
Test(certify_engine, planted_faults_are_named)
{
    static const struct {
        const char *plant, *trial, *says[2];
    } rows[] = {
        {"accepts", "arguments", {"no error code for a negative extent of x", "(F32)"}},
        {"speechless", "arguments", {"a negative extent of x", "the message does not name it: no"}},
        {"writes", "arguments", {"a negative extent of x", "wrote y although it refused"}},
        {"crashes", "crash", {"a negative extent of x", "signal 11"}},
        {"hangs", "time", {"a negative extent of x", "time"}},
        {"batch", "batch", {"half of the rows has other bits without the other rows", "rmsnorm_fwd"}},
        {"address", "repeat", {"has other bits at other addresses and on other garbage", "rmsnorm_fwd"}},
        {"order", "threads", {"has other bits when threads and blocks run in reverse order", "rmsnorm_fwd"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = try_planted(rows[i].plant, "rmsnorm_fwd");
        cr_expect_eq(r.code, 1, "%s: exit code %d\n%s%s", rows[i].plant, r.code, r.out, r.err);
        cr_expect(certify_failed(&r, rows[i].trial), "%s: trial %s\n%s", rows[i].plant, rows[i].trial, r.out);
        for (size_t k = 0; k < 2; k++)
            cr_expect(strstr(r.out, rows[i].says[k]) != NULL, "%s: '%s' in\n%s", rows[i].plant,
                      rows[i].says[k], r.out);
        cli_free(&r);
    }
}
