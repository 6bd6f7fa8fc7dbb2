/* padding_idx in `assay check`: an honest run of Hugging Face is right, one that trains the row, or another, is not (golden/padding). */
#include "tests/support/cli.h"
#include "tests/support/parity.h"

TestSuite(padding, .init = cli_setup, .fini = cli_teardown, .timeout = 100);

#define PADDING ASSAY_SOURCE_DIR "/golden/padding/"

static void expect_check(const char *trace, const char *model, int code, const char *words)
{
    cli_result r = cli_run("check --trace %s --model %s", trace, model);
    cr_expect_eq(r.code, code, "%s: %s%s", trace, r.out, r.err);
    cr_expect(strstr(r.out, words) != NULL, "%s: '%s' in\n%s", trace, words, r.out);
    cli_free(&r);
}

Test(padding, an_honest_run_is_right_and_one_that_trains_the_row_is_not)
{
    expect_check(PADDING "trace/honest", PADDING "untied", 0, "RIGHT");
    expect_check(PADDING "trace/trained", PADDING "untied", 1, "only slice 2 of 29");
}

Test(padding, another_id_is_named)
{
    char dir[256];
    copy_altered(dir, PADDING "trace", "honest", "rank-00000.jsonl", "\"padding_idx\": 2",
                 "\"padding_idx\": 3");
    expect_check(dir, PADDING "untied", 1, "was called with padding_idx 3, the model's is 2");
    parity_report *r = judge_local(dir);
    const parity_claim *first = first_failure(r);
    cr_assert_not_null(first);
    cr_expect_str_eq(first->op, "embedding_bwd");
    parity_report_destroy(r);
}

/* The run's configuration and the folder's, in both directions. */
Test(padding, configurations_that_differ_are_told)
{
    char dir[256], command[CLI_LINE];
    copy_altered(dir, PADDING "trace", "honest", "index.json", "\"pad_token_id\": 2", "\"pad_token_id\":10");
    expect_check(dir, PADDING "untied", 1, "pad_token_id 10, the folder's 2");
    snprintf(command, sizeof command, "cp -r " PADDING "untied %s && sed -i /pad_token_id/d %s",
             cli_file("none"), cli_file("none/config.json"));
    cr_assert_eq(system(command), 0);
    expect_check(PADDING "trace/honest", cli_file("none"), 1, "pad_token_id 2, the folder's (absent)");
}
