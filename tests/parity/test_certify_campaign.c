/* assay certify --engine --campaign: what it says of an engine without a fault, of one with a fault, and what it refuses. */
#include "tests/support/certify.h"

#include "parity/certify/campaign.h"

TestSuite(certify_campaign, .init = certify_setup, .fini = cli_teardown, .timeout = 300);

static cli_result try_planted(const char *plant, const char *seeds)
{
    setenv("ENGINE", ASSAY_BIN_DIR "/assay-sim", 1);
    setenv("PLANT", plant, 1);
    return cli_run("certify --engine sim --operation rmsnorm_fwd --campaign %s --program " ASSAY_SOURCE_DIR
                   "/tests/certify/planted_engine.sh",
                   seeds);
}

static void expect(const cli_result *r, int code, const char *says, const char *what)
{
    cr_expect_eq(r->code, code, "%s: exit code %d\n%s%s", what, r->code, r->out, r->err);
    cr_expect(strstr(r->out, says) != NULL || strstr(r->err, says) != NULL, "%s: '%s' in\n%s%s", what, says,
              r->out, r->err);
}

Test(certify_campaign, seeds)
{
    static const struct {
        const char *text;
        int64_t first, last; /* -1: refused */
    } rows[] = {{"1", 0, 0},
                {"216", 0, 215},
                {"36-71", 36, 71},
                {"5-5", 5, 5},
                {"99999-99999", 99999, 99999},
                {"0", -1, -1},
                {"", -1, -1},
                {"-1", -1, -1},
                {"7-6", -1, -1},
                {"3-", -1, -1},
                {"3-x", -1, -1},
                {"3x", -1, -1},
                {"+3", -1, -1},
                {" 3", -1, -1},
                {"0-100000", -1, -1},
                {"99999999999999999999", -1, -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t first = -2, last = -2;
        const assay_status st = certify_campaign_seeds(rows[i].text, &first, &last);
        cr_expect_eq(st, rows[i].last < 0 ? ASSAY_INVALID_ARGUMENT : ASSAY_OK, "'%s': %d", rows[i].text,
                     (int)st);
        if (rows[i].last >= 0)
            cr_expect(first == rows[i].first && last == rows[i].last, "'%s': %lld to %lld", rows[i].text,
                      (long long)first, (long long)last);
    }
}

/* A whole round says that all was covered, and how often. */
Test(certify_campaign, a_round_without_a_fault)
{
    cli_result r = cli_run("certify --engine sim --operation count_zeros --campaign 36 --cells %s/cells.tsv",
                           cli_folder);
    cli_expect_success(&r, "a round");
    cr_expect(strstr(r.out, "every rung ran on every data mode at every shape that it takes") != NULL, "%s",
              r.out);
    cli_free(&r);
    r = cli_run("certify --engine sim --operation count_zeros --campaign 0-0 --cells %s/cells.tsv",
                cli_folder);
    expect(&r, 2, "cells.tsv: expected a file that can be made and is not there yet", "over what is there");
    cli_free(&r);
}

/* A rung that takes nothing on this device is not missing. */
Test(certify_campaign, a_rung_of_a_newer_device)
{
    setenv("ENGINE", ASSAY_BIN_DIR "/assay-sim", 1);
    setenv("PLANT", "older", 1);
    cli_result r = cli_run("certify --engine sim --operation add_rmsnorm_fwd --campaign 72 "
                           "--program " ASSAY_SOURCE_DIR "/tests/certify/planted_engine.sh");
    cli_expect_success(&r, "a round");
    expect(&r, 0, "add_rmsnorm_fwd            k1   takes nothing on this device", "k1");
    expect(&r, 0, "every rung ran on every data mode at every shape that it takes", "the round");
    cli_free(&r);
}

/* Each fault is a finding, with the command that asks again. */
Test(certify_campaign, planted_faults)
{
    static const struct {
        const char *plant, *seeds, *says;
        int code;
    } rows[] = {
        {"nothing", "0-1", ": 0 violations, 0 runs that did not end well; less than a round", 0},
        {"eps", "1-1", "VIOLATION: seed 1, F32, k1, exact units, in order, aligned: y of local.", 1},
        {"eps", "1-1",
         "again: assay certify --engine sim --program " ASSAY_SOURCE_DIR
         "/tests/certify/planted_engine.sh --operation rmsnorm_fwd --campaign 1-1 --keep DIR",
         1},
        {"dies", "3-3", "BROKEN: seed 3, F32, k3", 1},
        {"lowest", "36", "0 violations, 0 runs that did not end well; rungs above that did not run", 1},
        {"narrow", "36", "never in BF16", 1},
        {"narrow_and_says_so", "36", "every rung ran on every data mode at every shape that it takes", 0},
        {"unlisted", "36", "the engine lists no rung of it", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = try_planted(rows[i].plant, rows[i].seeds);
        expect(&r, rows[i].code, rows[i].says, rows[i].plant);
        cli_free(&r);
    }
}

/* No option is taken and passed over. */
Test(certify_campaign, options_that_are_not_its_own)
{
    static const char *const rows[] = {"--engine sim --campaign 1 --variant k0",
                                       "--engine sim --campaign 1 --seeds 3",
                                       "--engine sim --campaign 1 --call-limit 2",
                                       "--engine sim --campaign 1 --suggest",
                                       "--engine sim --cells x.tsv",
                                       "--so x:y --campaign 1",
                                       "--engine sim --campaign 1 --operation nccl",
                                       "--engine sim --campaign 1 --operation all_reduce",
                                       "--engine sim --campaign none"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("certify %s", rows[i]);
        cr_expect_eq(r.code, 2, "%s: exit code %d\n%s", rows[i], r.code, r.out);
        cr_expect(r.err[0] != '\0', "%s: says nothing", rows[i]);
        cli_free(&r);
    }
}
