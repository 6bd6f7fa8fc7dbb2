/* assay certify on collectives: honest libraries pass, and each broken one is caught by the trial in its row, in the words there. */
#include "tests/support/certify.h"

TestSuite(certify_collectives, .init = certify_setup, .fini = cli_teardown, .timeout = 500);

typedef struct broken {
    const char *symbol, *trial, *word;
} broken;

static const broken copies[] = {
    {"gather_begins_with_its_own", "exact", NULL},
    {"gather_without_last_element", "written", "the first is element"},
    {"gather_past_the_end", "guards", "1 bytes past the end of recv"},
    {"gather_ignores_counts", "guards", "past the end of send of rank 1"},
    {"gather_waits_in_a_circle", "messages",
     "rank 0 for a message of rank 1, rank 1 for a message of rank 0"},
    {"gather_sends_twice", "messages", "never received"},
    {"gather_sends_half", "messages", "expects"},
    {"gather_not_of_one_rank", "written", "rank 0 of 1"},
    {"gather_checks_no_counts", "guards", "counts that are not those of the tensors"},
    {"broadcast_of_any_root", "arguments", "root beyond the ranks"},
    {"exchange_transposed", "exact", NULL},
    {"broadcast_from_rank_0", "exact", NULL},
    {"message_of_whole_pieces", "written", "recv"},
    {"message_to_the_other_end", "messages", NULL},
};
static const broken sums[] = {
    {"mean_without_division", "local", "recv"},
    {"scatter_without_barrier", "exact", NULL},
    {"scatter_not_in_rank_order", "local", NULL},
    {"scatter_of_narrow_sums", "local", NULL},
    {"scatter_overwrites_in_place", "in_place", "other bits"},
    {"scatter_changes_send", "inputs", "send of rank"},
    {"scatter_by_arrival", "repeat", "from the last rank to the first"},
    {"scatter_forgets_a_rank", "exact", NULL},
    {"ranks_that_drift_apart", "ranks", "other bits on rank"},
    {"maximum_without_nan", "special", "nan"},
    {"sum_from_the_start", "exact", "before `start`"},
};

static void expect_caught(const broken *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char arguments[CLI_LINE];
        snprintf(arguments, sizeof arguments,
                 "--call-limit 2 --so " ASSAY_KERNELS "/collectives_of_tests.so:%s", rows[i].symbol);
        cli_result r = certify_caught(rows[i].trial, rows[i].word, arguments);
        cr_expect(r.code == 1 && certify_failed(&r, rows[i].trial),
                  "%s: expected trial %s to fail, exit code %d\n%s%s", rows[i].symbol, rows[i].trial, r.code,
                  r.out, r.err);
        cr_expect(rows[i].word == NULL || strstr(r.out, rows[i].word) != NULL, "%s: '%s' in\n%s",
                  rows[i].symbol, rows[i].word, r.out);
        cli_free(&r);
    }
}

Test(certify_collectives, broken_copies)
{
    expect_caught(copies, sizeof copies / sizeof *copies);
}

Test(certify_collectives, broken_sums)
{
    expect_caught(sums, sizeof sums / sizeof *sums);
}

Test(certify_collectives, honest)
{
    static const char *const clean[] = {
        "collectives_of_tests.so:gather_by_messages",   "collectives_of_tests.so:scatter_in_rank_order",
        "collectives_of_tests.so:sum_in_rank_order",    "collectives_of_tests.so:sum_of_integers",
        "collectives_of_tests.so:exchange_by_messages", "collectives_of_tests.so:broadcast_by_messages",
        "collectives_of_tests.so:message_in_pieces",    "collectives.so:example_all_reduce",
        "collectives.so:example_reduce_scatter"};
    for (size_t i = 0; i < sizeof clean / sizeof *clean; i++) {
        cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/%s", clean[i]);
        cli_expect_success(&r, clean[i]);
        cr_expect(certify_passed(&r, "messages") && certify_passed(&r, "exact") &&
                      certify_passed(&r, "arguments"),
                  "%s\n%s", clean[i], r.out);
        cli_free(&r);
    }
    cli_result r =
        cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/wrong_all_reduce.so:example_wrong_all_reduce");
    cr_expect_eq(r.code, 1);
    cr_expect(certify_failed(&r, "ranks") && certify_passed(&r, "local") && certify_passed(&r, "messages"),
              "%s", r.out);
    cli_free(&r);
}

/* The sizes of a collective that the table's row does not say can be conditions, too: what is outside is refused, the rest is judged. */
Test(certify_collectives, declared_shapes)
{
    cli_result r =
        cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/collectives_of_tests.so:gather_of_few_elements");
    cli_expect_success(&r, "shapes of a collective");
    cr_expect(certify_passed(&r, "exact") && certify_passed(&r, "local") &&
                  strstr(r.out, "calls outside the declared shapes") != NULL,
              "%s", r.out);
    cli_free(&r);
    r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS
                "/collectives_of_tests.so:gather_of_what_is_not_tried");
    cr_expect(r.code == 1 && certify_failed(&r, "accepts") && strstr(r.out, "nothing was judged") != NULL,
              "%s%s", r.out, r.err);
    cli_free(&r);
}

/* A certificate says which ranks, and the gate knows collectives. */
Test(certify_collectives, certificate)
{
    cli_result r = cli_run("keygen");
    cli_expect_success(&r, "keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --out certs --so " ASSAY_KERNELS
                "/collectives_of_tests.so:message_in_pieces");
    cli_expect_success(&r, "certify --out");
    cli_free(&r);
    char *text = cli_read(cli_file("certs/send-collectives_of_tests.so-message_in_pieces-host.json"));
    cr_expect(strstr(text, "\"ranks\":[1,2,3,4,5,8]") != NULL, "%s", text);
    free(text);
    r = cli_run("verify certs/send-collectives_of_tests.so-message_in_pieces-host.json");
    cli_expect_success(&r, "verify");
    cli_free(&r);
    r = cli_run("gate --require send,recv certs");
    cli_expect_success(&r, "gate");
    cli_free(&r);
    r = cli_run("gate --require nccl certs");
    cr_expect(r.code == 1 && strstr(r.out, "MISSING  all_reduce") != NULL, "%s%s", r.out, r.err);
    cli_free(&r);
}
