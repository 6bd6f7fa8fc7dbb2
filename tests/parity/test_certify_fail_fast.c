/* assay certify --fail-fast: where it stops, what it says of what it did not try, and that nothing is certified by half a trial. */
#include "tests/support/certify.h"

#include <unistd.h>

TestSuite(certify_fail_fast, .init = certify_setup, .fini = cli_teardown, .timeout = 300);

#define STOPPED "what comes behind the first failure: --fail-fast"

static bool untried(const cli_result *r, const char *trial)
{
    char line[48];
    snprintf(line, sizeof line, "-    %s ", trial);
    return strstr(r->out, line) != NULL;
}

/* "984 calls asked for, 5898 runs of the kernel" */
static void read_counts(const cli_result *r, long long *calls, long long *runs)
{
    const char *at = strstr(r->out, " calls asked for, ");
    cr_assert_not_null(at, "%s", r->out);
    *runs = strtoll(at + strlen(" calls asked for, "), NULL, 10);
    while (at > r->out && at[-1] != '\n')
        at--;
    *calls = strtoll(at, NULL, 10);
}

typedef struct row {
    const char *symbol, *trial;
    int runs; /* of every call; 0: of the first call alone */
    const char *passed, *never;
} row;

Test(certify_fail_fast, stops_where_a_fault_is_seen)
{
    static const row rows[] = {
        {"wrong_eps", "local", 1, "guards", "repeat"}, /* judged before anything runs twice */
        {"swallows_nan", "special", 1, "guards", "repeat"},
        {"writes_behind", "guards", 0, NULL, "local"},
        {"exits", "crash", 0, NULL, "repeat"}, /* the process of the calls is gone */
        {"result_of_an_address", "repeat", 1, "local", "arguments"},
        {"not_in_place", "in_place", 1, "exact", "arguments"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *b = &rows[i];
        long long calls, runs;
        cli_result r =
            cli_run("certify --seeds 1 --fail-fast --so " ASSAY_KERNELS "/broken_rmsnorm.so:%s", b->symbol);
        cr_expect_eq(r.code, 1, "%s: exit code %d\n%s%s", b->symbol, r.code, r.out, r.err);
        cr_expect(certify_failed(&r, b->trial) && untried(&r, b->never) &&
                      (b->passed == NULL || certify_passed(&r, b->passed)),
                  "%s:\n%s", b->symbol, r.out);
        cr_expect_not_null(strstr(r.out, "not tried\n  - " STOPPED "\n\n"), "%s:\n%s", b->symbol, r.out);
        read_counts(&r, &calls, &runs);
        cr_expect(b->runs * calls <= runs && runs < b->runs * calls + 100, "%s: %lld runs of %lld calls",
                  b->symbol, runs, calls);
        cli_free(&r);
    }
}

/* The first calls of every number of ranks see it. */
Test(certify_fail_fast, ranks_of_a_collective)
{
    cli_result r = cli_run("certify --seeds 1 --fail-fast --so " ASSAY_KERNELS
                           "/collectives_of_tests.so:sum_from_the_start");
    cr_expect_eq(r.code, 1, "exit code %d\n%s%s", r.code, r.out, r.err);
    cr_expect(certify_failed(&r, "exact") && certify_passed(&r, "messages") && untried(&r, "repeat"), "%s",
              r.out);
    cli_free(&r);
}

/* What is stopped for nothing is a whole trial: its trials, and its certificate. */
Test(certify_fail_fast, an_honest_kernel_is_tried_to_the_end)
{
    long long calls, runs, all;
    cli_result r = cli_run("keygen");
    cli_expect_success(&r, "keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/broken_rmsnorm.so:honest");
    cli_expect_success(&r, "without --fail-fast");
    const char *trials = strstr(r.out, "  trial ");
    cr_assert_not_null(trials, "%s", r.out);
    char *expected = strndup(trials, strcspn(trials, "\f"));
    read_counts(&r, &calls, &all);
    cli_free(&r);
    r = cli_run("certify --seeds 1 --fail-fast --out certs --so " ASSAY_KERNELS "/broken_rmsnorm.so:honest");
    cli_expect_success(&r, "--fail-fast");
    read_counts(&r, &calls, &runs);
    cr_expect_eq(runs, all, "%lld runs are counted, %lld without --fail-fast", runs, all);
    cr_expect_not_null(strstr(r.out, expected), "expected\n%sfound\n%s", expected, r.out);
    cr_expect_eq(access(cli_file("certs/rmsnorm_fwd-broken_rmsnorm.so-honest-host.json"), F_OK), 0,
                 "no certificate\n%s", r.out);
    free(expected);
    cli_free(&r);
}

static cli_result try_engine(const char *plant, const char *arguments)
{
    setenv("ENGINE", ASSAY_BIN_DIR "/assay-sim", 1);
    setenv("PLANT", plant, 1);
    return cli_run("certify --engine sim --program " ASSAY_SOURCE_DIR "/tests/certify/planted_engine.sh "
                   "--fail-fast %s",
                   arguments);
}

Test(certify_fail_fast, an_engine)
{
    cli_result r = try_engine("batch", "--seeds 1 --operation rmsnorm_fwd");
    cr_expect_eq(r.code, 1, "exit code %d\n%s%s", r.code, r.out, r.err);
    cr_expect(certify_failed(&r, "batch") && certify_passed(&r, "repeat") && untried(&r, "arguments"), "%s",
              r.out);
    cr_expect_not_null(strstr(r.out, STOPPED), "%s", r.out);
    cli_free(&r);
    r = try_engine("nothing", "--seeds 1 --operation rmsnorm_fwd");
    cli_expect_success(&r, "nothing planted");
    cr_expect(certify_passed(&r, "arguments") && strstr(r.out, STOPPED) == NULL, "%s", r.out);
    cli_free(&r);
}

/* What was not tried to its end has not passed, and an older certificate of it stands. */
Test(certify_fail_fast, other_operations_of_an_engine_are_skipped)
{
    cli_result r = cli_run("keygen");
    cli_free(&r);
    r = try_engine("few", "--seeds 1 --operation all --out certs");
    cr_expect_eq(r.code, 1, "exit code %d\n%s%s", r.code, r.out, r.err);
    cr_expect_not_null(strstr(r.out, "skip add "), "%s", r.out);
    cr_expect_not_null(strstr(r.out, "\n0 passed, "), "%s", r.out);
    cr_expect_not_null(strstr(r.out, " failed, 1 skipped\n"), "%s", r.out);
    cr_expect_null(strstr(r.out, "\ncertificate: "), "%s", r.out);
    cli_free(&r);
}

/* From some of the answers a declaration would be too tight. */
Test(certify_fail_fast, suggests_nothing)
{
    cli_result r = cli_run("certify --engine sim --operation add --fail-fast --suggest");
    cr_expect_eq(r.code, 2, "exit code %d\n%s", r.code, r.out);
    cr_expect_not_null(strstr(r.err, "--suggest: not with --fail-fast"), "%s", r.err);
    cli_free(&r);
}

Test(certify_fail_fast, a_campaign_ends_behind_the_seed)
{
    cli_result r = try_engine("eps", "--operation rmsnorm_fwd --campaign 1-9");
    cr_expect_eq(r.code, 1, "exit code %d\n%s%s", r.code, r.out, r.err);
    cr_expect_not_null(strstr(r.out, "seed 1: k1"), "%s", r.out);
    cr_expect_null(strstr(r.out, "seed 2: "), "%s", r.out);
    cr_expect_not_null(strstr(r.out, "\n1 seeds, "), "%s", r.out);
    cli_free(&r);
}
