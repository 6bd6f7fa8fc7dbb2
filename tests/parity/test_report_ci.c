/* What CI reads: junit.xml by its schema, grouped; the summary in Markdown. */
#define _GNU_SOURCE
#include "core/base/file.h"
#include "parity/parity.h"
#include "parity/run/report_write.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64];

static void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/assay-report-ci-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void drop_root(void)
{
    cr_assert_eq(assay_remove_tree(root, "/tmp"), ASSAY_OK, "%s", assay_error_message());
}

static void add(parity_report *r, const char *layout, parity_check check, const char *op, parity_verdict v,
                const char *message)
{
    parity_result x;
    parity_result_init(&x);
    snprintf(x.case_name, sizeof x.case_name, "llama");
    snprintf(x.layout, sizeof x.layout, "%s", layout);
    snprintf(x.precision, sizeof x.precision, "bf16");
    snprintf(x.variants, sizeof x.variants, "k0");
    snprintf(x.engine, sizeof x.engine, "sim");
    snprintf(x.instance, sizeof x.instance, "decoder.layers.0.mlp");
    snprintf(x.op, sizeof x.op, "%s", op);
    snprintf(x.message, sizeof x.message, "%s", message);
    snprintf(x.reproduce, sizeof x.reproduce, "assay run --layout %s", layout);
    x.check = check;
    x.verdict = v;
    x.ratio = x.share = v == PARITY_PASS ? 0.25 : v == PARITY_FAIL ? 7.5 : 0;
    x.n_bad = v == PARITY_FAIL;
    cr_assert_eq(parity_report_add(r, &x), ASSAY_OK);
}

/* Two layouts: one holds; in the other five of seven linear_fwd fail, add was not checked, flow holds. */
static parity_report *mixed(void)
{
    parity_report *r;
    cr_assert_eq(parity_report_create(&r), ASSAY_OK);
    for (int i = 0; i < 3; i++)
        add(r, "1", PARITY_CHECK_LOCAL, i < 2 ? "linear_fwd" : "add", PARITY_PASS, "");
    for (int i = 0; i < 7; i++) {
        char message[64];
        snprintf(message, sizeof message, "claim %d <&\"'> ]]> |`x`| @all", i);
        add(r, "tp2", PARITY_CHECK_LOCAL, "linear_fwd", i == 0 || i == 4 ? PARITY_PASS : PARITY_FAIL,
            message);
    }
    add(r, "tp2", PARITY_CHECK_LOCAL, "add", PARITY_SKIP, "no <bound>");
    add(r, "tp2", PARITY_CHECK_LOCAL, "add", PARITY_PASS, "");
    add(r, "tp2", PARITY_CHECK_LOCAL, "swiglu_fwd", PARITY_PASS, "");
    add(r, "tp2", PARITY_CHECK_FLOW, "linear_fwd", PARITY_PASS, "");
    return r;
}

static json_t *facts(void)
{
    return json_pack("{s:f,s:s,s:{s:{s:i,s:f,s:f,s:f,s:{s:f,s:f}}}}", "wall time, s", 12.5, "version", "9.9",
                     "times", "llama bf16 tp2 k0", "seed", 77, "train_s", 0.5, "engine_s", 1.5, "task_s",
                     3.25, "check_s", "local", 0.75, "flow", 0.125);
}

static char *junit(const parity_report *r, const json_t *told)
{
    char path[256], *text = NULL;
    uint64_t n = 0;
    snprintf(path, sizeof path, "%s/junit.xml", root);
    cr_assert_eq(parity_report_junit(r, path, told), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_read_file(path, 1 << 22, &text, &n), ASSAY_OK);
    return text;
}

/* Exit status of xmllint with the schema: 0 valid, 1 no XML, 3 invalid; 127: not installed, and that is no pass. */
static int lint(void)
{
    char command[512];
    snprintf(command, sizeof command,
             "xmllint --noout --schema " ASSAY_SOURCE_DIR
             "/tests/parity/junit.xsd %s/junit.xml >%s/lint 2>&1",
             root, root);
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *text, const char *part)
{
    cr_expect(strstr(text, part) != NULL, "expected %s\nin %s", part, text);
}

TestSuite(parity_report_ci, .init = make_root, .fini = drop_root);

Test(parity_report_ci, junit_is_grouped_and_follows_its_schema)
{
    parity_report *r = mixed();
    json_t *told = facts();
    char *text = junit(r, told);
    cr_expect_eq(lint(), 0, "xmllint (package libxml2-utils): %d", lint());
    expect(text, "<testsuites name=\"assay\" tests=\"5\" failures=\"1\" errors=\"0\" time=\"12.500\">");
    expect(text,
           "<testsuite name=\"llama.bf16.1.k0\" tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"0\">");
    expect(text, "<system-out>3 claims hold: linear_fwd 2, add 1</system-out>");
    expect(text,
           "<testsuite name=\"llama.bf16.tp2.k0\" tests=\"4\" failures=\"1\" errors=\"0\" skipped=\"1\" "
           "time=\"3.250\">");
    expect(text, "<property name=\"seed\" value=\"77\"/>");
    expect(text, "<property name=\"version\" value=\"9.9\"/>");
    expect(text, "<property name=\"seconds\" value=\"train 0.500, engine 1.500\"/>");
    expect(text, "<property name=\"claims\" value=\"5 passed, 5 failed, 1 skipped\"/>");
    expect(text, "<property name=\"reproduce\" value=\"assay run --layout tp2\"/>");
    /* The seconds of a check are told once. */
    expect(text, "<testcase classname=\"llama.bf16.tp2.k0\" name=\"local linear_fwd\" time=\"0.750\">");
    expect(text, "<testcase classname=\"llama.bf16.tp2.k0\" name=\"local add\">");
    expect(
        text,
        "<testcase classname=\"llama.bf16.tp2.k0\" name=\"local\">\n<system-out>1 claims hold: swiglu_fwd 1");
    expect(text, "name=\"flow\" time=\"0.125\">");
    expect(text, "message=\"5 of 7 claims fail: claim 1 &lt;&amp;&quot;'&gt; ]]&gt; |`x`| @all\"");
    expect(text, "claim 3 ");
    cr_expect_null(strstr(text, "claim 5 "), "three are shown");
    expect(text, "and 2 more: results.jsonl has them\nagain with: assay run --layout tp2\n</failure>");
    expect(text, "<skipped message=\"1 claims were not checked, 1 hold: no &lt;bound&gt;\"/>");
    free(text);
    text = junit(r, NULL);
    cr_expect_eq(lint(), 0);
    cr_expect_null(strstr(text, "time="), "what was not measured is not told");
    free(text);
    json_decref(told);
    parity_report_destroy(r);
}

/* An engine that died, hung or was stopped is an error, what cannot be asked is skipped. */
Test(parity_report_ci, what_could_not_be_checked_is_an_error)
{
    static const char *const wrong[] = {"did not run: rank 1 died of signal 9",
                                        "did not run to its end: assay run was stopped by signal 15",
                                        "could not be checked: the time limit of 3 s is over",
                                        "the judge died of signal 11 (x)", "the judge left no result: x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        parity_report *r;
        char part[200];
        cr_assert_eq(parity_report_create(&r), ASSAY_OK);
        add(r, "1", PARITY_CHECK_LOCAL, "add", PARITY_SKIP, "left out: a layout of two ranks");
        add(r, "tp2", PARITY_CHECK_WHOLE, "", PARITY_SKIP, "left out: x");
        add(r, "tp2", PARITY_CHECK_WHOLE, "", PARITY_SKIP, wrong[i]);
        char *text = junit(r, NULL);
        cr_expect_eq(lint(), 0);
        expect(text, "<testsuites name=\"assay\" tests=\"2\" failures=\"0\" errors=\"1\">");
        expect(text, "tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"1\">");
        expect(text, "tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\">");
        snprintf(part, sizeof part, "<error type=\"whole\" message=\"2 claims were not checked: %s\"/>",
                 wrong[i]);
        expect(text, part);
        free(text);
        parity_report_destroy(r);
    }
}

/* The schema refuses what readers would lose: two test cases of one name, a failure without a message. */
Test(parity_report_ci, the_schema_can_fail)
{
    static const char head[] = "<testsuites name=\"assay\" tests=\"2\" failures=\"0\" errors=\"0\">"
                               "<testsuite name=\"a\" tests=\"2\" failures=\"0\" errors=\"0\" skipped=\"0\">"
                               "<properties><property name=\"n\" value=\"v\"/></properties>",
                      tail[] = "</testsuite></testsuites>",
                      good[] = "<testcase classname=\"a\" name=\"x\"><system-out>1</system-out></testcase>",
                      silent[] = "<testcase classname=\"a\" name=\"y\"><failure>z</failure></testcase>";
    const int wanted[] = {0, 3, 3};
    for (int i = 0; i < 3; i++) {
        char path[256], text[2048];
        snprintf(text, sizeof text, "%s%s%s%s", head, i == 2 ? silent : good, i == 1 ? good : "", tail);
        snprintf(path, sizeof path, "%s/junit.xml", root);
        cr_assert_eq(assay_write_file(path, text, strlen(text)), ASSAY_OK);
        cr_expect_eq(lint(), wanted[i], "row %d", i);
    }
}

/* Every byte a trace may bring, in every text. */
Test(parity_report_ci, hostile_text_stays_text)
{
    parity_report *r;
    char all[256];
    for (int i = 0; i < 255; i++)
        all[i] = (char)(i + 1);
    all[255] = 0;
    cr_assert_eq(parity_report_create(&r), ASSAY_OK);
    add(r, "<tp2>&\"", PARITY_CHECK_LOCAL, "a<b>&\"\x01\xff", PARITY_FAIL, all);
    add(r, "<tp2>&\"", PARITY_CHECK_FLOW, "]]><script>", PARITY_SKIP, all);
    add(r, "<tp2>&\"", PARITY_CHECK_PLAN, "--><!--", PARITY_PASS, all);
    free(junit(r, NULL));
    cr_expect_eq(lint(), 0);
    parity_report_destroy(r);
}

/* However much fails: words for the first, numbers for all. */
Test(parity_report_ci, junit_stays_small_when_everything_fails)
{
    parity_report *r;
    char op[32], message[400];
    memset(message, 'm', sizeof message - 1);
    message[sizeof message - 1] = 0;
    cr_assert_eq(parity_report_create(&r), ASSAY_OK);
    for (int i = 0; i < 3000; i++) {
        snprintf(op, sizeof op, "op%d", i);
        add(r, "1", PARITY_CHECK_LOCAL, op, PARITY_FAIL, message);
    }
    char *text = junit(r, NULL);
    cr_expect_lt(strlen(text), 800000);
    cr_expect_eq(lint(), 0);
    expect(text, "name=\"local op2999\">\n<failure type=\"local\" message=\"1 of 1 claims fail; "
                 "results.jsonl has them\"/>");
    free(text);
    parity_report_destroy(r);
}

Test(parity_report_ci, the_summary_tells_verdict_checks_and_commands)
{
    parity_report *r = mixed();
    json_t *told = facts();
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    cr_assert_eq(parity_report_summary(r, told, f), ASSAY_OK);
    fclose(f);
    expect(text, "## assay: FAIL\n\n8 claims passed, 5 failed, 1 skipped; of 2 combinations of case, "
                 "precision, layout "
                 "and kernels 1 pass, 1 fail, 0 were not checked whole; 12.5 s.");
    expect(text, "\n| check | bf16 | worst share of bound |\n|---|---|--:|\n| local | 7 passed, **5 "
                 "failed**, *1 skipped* "
                 "| **7.5** |\n| flow | 1 passed | |\n");
    expect(text, "### First failures\n\n**FAIL** llama bf16 tp2 k0, local: ");
    expect(
        text,
        "claim 1 &lt;&amp;\"'\\> \\]\\]\\> \\|\\`x\\`\\| &#64;all\n\n```sh\nassay run --layout tp2\n```\n");
    expect(text, "4 more are in results.jsonl.");
    expect(text, "### First that was not checked");
    expect(text, "| version | 9.9 |");
    free(text);
    json_decref(told);
    parity_report_destroy(r);
}

Test(parity_report_ci, the_command_is_ready_for_a_shell)
{
    char long_word[PARITY_TEXT + 10];
    memset(long_word, 'x', sizeof long_word - 1);
    long_word[sizeof long_word - 1] = 0;
    char *const short_line[] = {"assay run", "--case", "two words"}, *const cut[] = {"assay run", "--keep",
                                                                                     long_word};
    json_t *told = json_object();
    parity_report_facts(told, 3, short_line);
    cr_expect_str_eq(json_string_value(json_object_get(told, "command")), "assay run --case 'two words'");
    cr_expect_eq(strlen(json_string_value(json_object_get(told, "date"))), strlen("2026-01-01T00:00:00Z"));
    parity_report_facts(told, 3, cut);
    cr_expect_str_eq(json_string_value(json_object_get(told, "command")), "assay run --keep ...");
    json_decref(told);
}

Test(parity_report_ci, facts_of_parts_are_joined)
{
    json_t *all = json_object(),
           *a = json_pack("{s:s,s:i,s:f,s:{s:i}}", "host", "n1", "tasks", 2, "wall time, s", 1.5, "times",
                          "x", 1),
           *b = json_pack("{s:s,s:i,s:f,s:{s:i}}", "host", "n11", "tasks", 3, "wall time, s", 2.0, "times",
                          "y", 2);
    cr_assert_eq(parity_report_join_facts(all, a), ASSAY_OK);
    cr_assert_eq(parity_report_join_facts(all, b), ASSAY_OK);
    json_object_set_new(a, "tasks", json_integer(0));
    cr_assert_eq(parity_report_join_facts(all, a), ASSAY_OK);
    cr_expect_str_eq(json_string_value(json_object_get(all, "host")), "n1; n11");
    cr_expect_eq(json_integer_value(json_object_get(all, "tasks")), 5);
    cr_expect_float_eq(json_real_value(json_object_get(all, "wall time, s")), 5.0, 1e-12);
    cr_expect_eq(json_object_size(json_object_get(all, "times")), 2);
    json_decref(all);
    json_decref(a);
    json_decref(b);
}
