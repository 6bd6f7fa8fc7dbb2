/* Reports: what goes in comes out, and nothing that was not checked looks like a pass. */
#define _GNU_SOURCE
#include "core/base/file.h"
#include "core/base/text.h"
#include "parity/judge/judge.h"
#include "parity/report/report_files.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[64];

static void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/assay-report-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void drop_root(void)
{
    cr_assert_eq(assay_remove_tree(root, "/tmp"), ASSAY_OK, "%s", assay_error_message());
}

static char *slurp(const char *name)
{
    char path[256];
    char *text = NULL;
    uint64_t n = 0;
    snprintf(path, sizeof path, "%s/%s", root, name);
    cr_assert_eq(assay_read_file(path, 1 << 20, &text, &n), ASSAY_OK, "%s", assay_error_message());
    return text;
}

static parity_result sample(parity_verdict v, double ratio)
{
    parity_result r;
    parity_result_init(&r);
    snprintf(r.case_name, sizeof r.case_name, "llama");
    snprintf(r.layout, sizeof r.layout, "tp2,sp");
    snprintf(r.precision, sizeof r.precision, "bf16");
    snprintf(r.engine, sizeof r.engine, "sim");
    snprintf(r.instance, sizeof r.instance, "decoder.layers.0.mlp.linear_fc1");
    snprintf(r.op, sizeof r.op, "linear_fwd");
    snprintf(r.tensor, sizeof r.tensor, "y");
    snprintf(r.message, sizeof r.message, "expected <1> & found \"2\"");
    snprintf(r.reproduce, sizeof r.reproduce, "assay run --case llama --layout tp2,sp");
    r.check = PARITY_CHECK_LOCAL;
    r.phase = ASSAY_PHASE_FORWARD;
    r.step = 1;
    r.rank = 2;
    r.index_ndim = 2;
    r.index[0] = 3;
    r.index[1] = 5;
    r.verdict = v;
    r.ratio = ratio;
    r.share = ratio;
    r.count = 99;
    r.n_bad = v == PARITY_FAIL ? 1 : 0;
    r.found = ratio;
    return r;
}

static parity_report *three(void)
{
    parity_report *report;
    const parity_result a = sample(PARITY_PASS, 0.25), b = sample(PARITY_FAIL, (double)NAN),
                        c = sample(PARITY_SKIP, 0);
    cr_assert_eq(parity_report_create(&report), ASSAY_OK);
    cr_assert_eq(parity_report_add(report, &a), ASSAY_OK);
    cr_assert_eq(parity_report_add(report, &b), ASSAY_OK);
    cr_assert_eq(parity_report_add(report, &c), ASSAY_OK);
    return report;
}

TestSuite(parity_report, .init = make_root, .fini = drop_root);

Test(parity_report, a_result_never_filled_is_not_a_pass)
{
    parity_result r;
    parity_result_init(&r);
    cr_expect_eq(r.verdict, PARITY_SKIP);
}

/* What a table shows beside a count: nothing for correct rounding, the whole of it at the edge of the verdict. */
Test(parity_report, the_share_leaves_the_rounding_of_the_output_out)
{
    const double half = 0x1p-9;
    cr_expect_eq(parity_share(1.0, 1.0 + 0.9 * half, 1e-9, ASSAY_BF16, true), 0.0);
    cr_expect_float_eq(parity_share(1.0 + 2 * half, 1.0 + half - 1e-6, 2e-6, ASSAY_BF16, true), 0.0, 0.51);
    const struct {
        double found, y, bound;
    } rows[] = {{1.0 + 0x1p-7, 1.0, 0x1p-8},
                {1.0 + 0x1p-7, 1.0 + 1e-9, 0x1p-8},
                {1.0 + 0x1p-7, 1.0 - 1e-9, 0x1p-8},
                {1.0, 1.25, 0.0},
                {1.0, 1.0, 0.0},
                {3.0, 1.0, 0.5},
                {(double)NAN, 1.0, 1.0},
                {(double)INFINITY, 1.0, 1.0},
                {1.0, (double)NAN, 1.0},
                {1.0, 1.0, (double)NAN},
                {1.0, 1.0, (double)INFINITY},
                {(double)INFINITY, 1e39, 1.0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double ratio;
        const bool pass = ref_admissible(rows[i].found, rows[i].y, rows[i].bound, ASSAY_BF16, &ratio);
        const double share = parity_share(rows[i].found, rows[i].y, rows[i].bound, ASSAY_BF16, pass);
        cr_expect_eq(share <= 1.0, pass, "row %zu: %.17g", i, share);
    }
}

/* A row says its verdict, and the table what its cells mean. */
Test(parity_report, the_matrix_says_verdicts_and_has_a_legend)
{
    char path[256];
    parity_report *report = three();
    snprintf(path, sizeof path, "%s/table.txt", root);
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    parity_report_table(report, f, NULL);
    fclose(f);
    char *text = slurp("table.txt");
    cr_expect(strstr(text, "\nFAIL llama"), "%s", text);
    cr_expect(strstr(text, "a cell: claims that hold") && strstr(text, "beyond the rounding of the output"),
              "%s", text);
    cr_expect_not(strchr(text, '\033'), "color in a file");
    free(text);
    snprintf(path, sizeof path, "%s/index.html", root);
    cr_assert_eq(parity_report_html(report, path, "x", NULL), ASSAY_OK);
    text = slurp("index.html");
    cr_expect(strstr(text, "<th class=l>verdict</th>") && strstr(text, "<td class=bad>FAIL</td>"));
    free(text);
    parity_report_destroy(report);
}

/* People at a terminal see FAIL in red, unless they said NO_COLOR. */
Test(parity_report, fail_is_red_on_a_terminal_only)
{
    for (int no_color = 0; no_color < 2; no_color++) {
        char text[8192] = "";
        int master = posix_openpt(O_RDWR | O_NOCTTY);
        cr_assert(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
        const int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
        cr_assert(slave >= 0);
        setenv("TERM", "xterm", 1);
        setenv("NO_COLOR", no_color ? "1" : "", 1);
        parity_report *report = three();
        FILE *f = fdopen(slave, "w");
        parity_report_table(report, f, NULL);
        fflush(f);
        const ssize_t n = read(master, text, sizeof text - 1);
        cr_assert(n > 0);
        for (ssize_t got = n; got < (ssize_t)sizeof text - 1 && !strstr(text, "again with");) {
            const ssize_t more = read(master, text + got, sizeof text - 1 - (size_t)got);
            cr_assert(more > 0);
            got += more;
        }
        cr_expect_eq(strstr(text, "\033[1;31mFAIL\033[0m") != NULL, !no_color, "%s", text);
        fclose(f);
        close(master);
        parity_report_destroy(report);
    }
}

/* 0 is the name of a check: an unset one must not be taken for it. */
Test(parity_report, a_result_of_no_check_is_refused)
{
    parity_report *report;
    parity_result r;
    parity_result_init(&r);
    cr_assert_eq(parity_report_create(&report), ASSAY_OK);
    cr_expect_eq(parity_report_add(report, &r), ASSAY_INTERNAL);
    cr_expect_eq(parity_report_count(report), 0);
    parity_report_destroy(report);
}

/* The worse of two observations takes the row, and keeps the table's check. */
Test(parity_report, a_merged_row_keeps_its_check)
{
    parity_table *table;
    parity_report *report;
    parity_result pass, fail;
    parity_result_init(&pass);
    pass.verdict = PARITY_PASS;
    fail = pass;
    parity_result_fail(&fail, "replicas differ");
    cr_assert_eq(parity_report_create(&report), ASSAY_OK);
    cr_assert_eq(parity_table_create(&table, PARITY_CHECK_ASSEMBLE), ASSAY_OK);
    cr_assert_eq(parity_table_merge(table, &pass), ASSAY_OK);
    cr_assert_eq(parity_table_merge(table, &fail), ASSAY_OK);
    cr_assert_eq(parity_table_flush(table, report), ASSAY_OK);
    cr_assert_eq(parity_report_count(report), 1);
    cr_expect_eq(parity_report_at(report, 0)->verdict, PARITY_FAIL);
    cr_expect_eq(parity_report_at(report, 0)->check, PARITY_CHECK_ASSEMBLE);
    parity_table_destroy(table);
    parity_report_destroy(report);
}

static int64_t backward_last(void *user, const parity_claim *r)
{
    (void)user;
    return strcmp(r->instance, "bwd") == 0;
}

/* What fails first stands first, though what fails on it later is worse and ran earlier in its step, or in an order of the caller's own. */
Test(parity_report, failures_come_by_their_first_step)
{
    static const struct {
        const char *instance;
        int64_t step;
        bool fails;
        double ratio;
    } seen[] = {{"fwd", 0, false, 0.5}, {"mid", 0, false, 0.5}, {"bwd", 0, true, 2.0},
                {"fwd", 1, true, 9.0},  {"mid", 1, false, 0.5}, {"bwd", 1, true, 8.0}};
    static const char *const order[] = {"bwd", "fwd", "mid"};
    parity_table *table;
    parity_report *report;
    cr_assert_eq(parity_report_create(&report), ASSAY_OK);
    cr_assert_eq(parity_table_create(&table, PARITY_CHECK_LOCAL), ASSAY_OK);
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        parity_result r;
        parity_result_init(&r);
        snprintf(r.instance, sizeof r.instance, "%s", seen[i].instance);
        r.step = seen[i].step;
        r.verdict = seen[i].fails ? PARITY_FAIL : PARITY_PASS;
        r.ratio = r.share = seen[i].ratio;
        r.count = 10, r.n_bad = seen[i].fails ? 3 : 0;
        cr_assert_eq(parity_table_merge(table, &r), ASSAY_OK);
    }
    cr_assert_eq(parity_table_flush_ordered(table, NULL, NULL, report), ASSAY_OK);
    cr_assert_eq(parity_table_flush_ordered(table, backward_last, NULL, report), ASSAY_OK);
    cr_assert_eq(parity_report_count(report), 6);
    for (int64_t i = 0; i < 6; i++)
        cr_expect_str_eq(parity_report_at(report, i)->instance, order[i % 3]);
    const parity_claim *bwd = parity_report_at(report, 0), *fwd = parity_report_at(report, 1),
                       *mid = parity_report_at(report, 2);
    cr_expect(bwd->step == 0 && bwd->ratio == 2.0, "step %lld: the first place is told",
              (long long)bwd->step);
    cr_expect(bwd->count == 10 && bwd->n_bad == 3, "%lld of %lld: the counts of that place",
              (long long)bwd->n_bad, (long long)bwd->count);
    cr_expect(bwd->share == 8.0, "the largest share of all");
    cr_expect(fwd->step == 1 && fwd->count == 10 && fwd->n_bad == 3);
    cr_expect(mid->count == 20 && mid->n_bad == 0, "what passes counts every observation");
    parity_table_destroy(table);
    parity_report_destroy(report);
}

/* Ranks are walked one after the other: a later one may hold the earlier step, or microbatch. */
Test(parity_report, the_first_failure_is_named_whatever_rank_has_it)
{
    static const struct {
        int64_t step, microbatch;
        int rank;
    } seen[] = {{1, 0, 0}, {0, 1, 1}, {0, 1, 2}, {0, 0, 3}, {0, 0, 4}, {1, 0, 4}};
    for (int check = 0; check < 3; check++) {
        static const parity_check of[] = {PARITY_CHECK_LOCAL, PARITY_CHECK_ROUTING, PARITY_CHECK_FLOW};
        parity_table *table;
        parity_report *report;
        cr_assert_eq(parity_report_create(&report), ASSAY_OK);
        cr_assert_eq(parity_table_create(&table, of[check]), ASSAY_OK);
        for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
            parity_result r;
            parity_result_init(&r);
            r.check = of[check];
            r.verdict = PARITY_FAIL;
            r.step = seen[i].step, r.microbatch = seen[i].microbatch, r.rank = seen[i].rank;
            r.ratio = (double)(i + 2);
            cr_assert_eq(parity_table_merge(table, &r), ASSAY_OK);
        }
        cr_assert_eq(parity_table_flush_ordered(table, NULL, NULL, report), ASSAY_OK);
        cr_expect_eq(parity_report_at(report, 0)->rank, check < 2 ? 3 : 4, "check %d: rank %d", check,
                     parity_report_at(report, 0)->rank);
        parity_table_destroy(table);
        parity_report_destroy(report);
    }
}

Test(parity_report, jsonl_reads_back_what_was_written)
{
    parity_report *report = three(), *back;
    char path[256];
    snprintf(path, sizeof path, "%s/results.jsonl", root);
    cr_assert_eq(parity_report_jsonl(report, path), ASSAY_OK);
    cr_assert_eq(parity_report_create(&back), ASSAY_OK);
    cr_assert_eq(parity_report_load_jsonl(back, path, NULL), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(parity_report_count(back), 3);
    for (int64_t i = 0; i < 3; i++) {
        const parity_claim *x = parity_report_at(report, i), *y = parity_report_at(back, i);
        cr_expect_eq(x->verdict, y->verdict);
        cr_expect_eq(x->check, y->check);
        cr_expect_eq(x->phase, y->phase);
        cr_expect_eq(x->step, y->step);
        cr_expect_eq(x->rank, y->rank);
        cr_expect_eq(x->count, y->count);
        cr_expect_eq(x->index[1], y->index[1]);
        cr_expect(x->ratio == y->ratio || (isnan(x->ratio) && isnan(y->ratio)));
        cr_expect_str_eq(x->instance, y->instance);
        cr_expect_str_eq(x->layout, y->layout);
        cr_expect_str_eq(x->reproduce, y->reproduce);
    }
    parity_report_destroy(report);
    parity_report_destroy(back);
}

Test(parity_report, a_part_reads_back_whole_or_is_refused)
{
    parity_report *report = three(), *back;
    char path[256], *text = NULL;
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "%s/part", root);
    cr_assert_eq(parity_report_save_part(report, path), ASSAY_OK);
    cr_assert_eq(parity_report_create(&back), ASSAY_OK);
    cr_assert_eq(parity_report_load_part(back, path), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(parity_report_count(back), 3);
    for (int64_t i = 0; i < 3; i++) {
        const parity_claim *x = parity_report_at(report, i), *y = parity_report_at(back, i);
        for (int k = 0; k < PARITY_TEXTS; k++)
            cr_expect_str_eq(x->text[k], y->text[k]);
        cr_expect_arr_eq(x, y,
                         offsetof(parity_claim, text)); /* numbers, a NaN and the padding too, bit by bit */
    }
    parity_report_destroy(back);
    cr_assert_eq(assay_read_file(path, 1 << 20, &text, &bytes), ASSAY_OK);
    for (uint64_t cut = 0; cut<bytes; cut += bytes - cut> 64 ? 37 : 1) {
        cr_assert_eq(assay_write_file(path, text, cut), ASSAY_OK);
        cr_assert_eq(parity_report_create(&back), ASSAY_OK);
        cr_expect_eq(parity_report_load_part(back, path), ASSAY_FORMAT, "%llu bytes",
                     (unsigned long long)cut);
        parity_report_destroy(back);
    }
    free(text);
    parity_report_destroy(report);
}

/* How far a slice lies from the reference is no value that was expected to be 0. */
Test(parity_report, a_distance_is_called_one)
{
    char path[256];
    parity_report *report, *back;
    parity_result r = sample(PARITY_FAIL, 2.2);
    r.check = PARITY_CHECK_WHOLE;
    r.is_distance = true;
    r.found = 0.0625;
    r.allowance = 0.03125;
    cr_assert_eq(parity_report_create(&report), ASSAY_OK);
    cr_assert_eq(parity_report_create(&back), ASSAY_OK);
    cr_assert_eq(parity_report_add(report, &r), ASSAY_OK);
    snprintf(path, sizeof path, "%s/index.html", root);
    cr_assert_eq(parity_report_html(report, path, "x", NULL), ASSAY_OK);
    char *html = slurp("index.html");
    cr_expect(strstr(html, "distance 0.0625, at most 0.0312 allowed: 2.2 times"));
    cr_expect_not(strstr(html, "expected 0,"));
    free(html);
    snprintf(path, sizeof path, "%s/results.jsonl", root);
    cr_assert_eq(parity_report_jsonl(report, path), ASSAY_OK);
    cr_assert_eq(parity_report_load_jsonl(back, path, NULL), ASSAY_OK, "%s", assay_error_message());
    char *lines = slurp("results.jsonl");
    cr_expect(strstr(lines, "\"distance\":0.0625"));
    cr_expect_not(strstr(lines, "\"expected\":"));
    cr_expect(parity_report_at(back, 0)->is_distance);
    free(lines);
    parity_report_destroy(back);
    parity_report_destroy(report);
}

#define PASS "{\"check\":\"local\",\"verdict\":\"pass\",\"ratio\":0.5}\n"
#define END(passed, failed)                                                                                  \
    "{\"end\":true,\"run\":\"\",\"shard\":1,\"shards\":1,\"engine_program\":\"\",\"judge_sources\":\"\","    \
    "\"passed\":" #passed ",\"failed\":" #failed ",\"skipped\":0}\n"

/* A FAIL behind a NUL byte must not vanish with everything after it. */
Test(parity_report, a_nul_byte_hides_nothing)
{
    static const char text[] = PASS "\0{\"check\":\"local\",\"verdict\":\"FAIL\",\"ratio\":2.0}\n" END(1, 0);
    parity_report *report;
    char path[256];
    snprintf(path, sizeof path, "%s/results.jsonl", root);
    cr_assert_eq(assay_write_file(path, text, sizeof text - 1), ASSAY_OK);
    cr_assert_eq(parity_report_create(&report), ASSAY_OK);
    cr_expect_neq(parity_report_load_jsonl(report, path, NULL), ASSAY_OK);
    cr_expect_not_null(strstr(assay_error_message(), "results.jsonl:2: byte 0 is NUL"), "%s",
                       assay_error_message());
    parity_report_destroy(report);
}

Test(parity_report, text_from_outside_is_cleaned)
{
    static const struct {
        const char *in, *out;
    } rows[] = {{"a\033[31mred", "a?[31mred"},
                {"two\nlines\t", "two?lines?"},
                {"ok \xc3\xa9 \xe2\x82\xac", "ok \xc3\xa9 \xe2\x82\xac"},
                {"cut \xe2\x82", "cut ??"},
                {"\xef\xbf\xbe\xef\xbf\xbf", "??"},
                {"\xc2\x9b"
                 "31m",
                 "?31m"},
                {"\xc0\xaf", "??"},
                {"\xed\xa0\x80", "???"},
                {"\xe2\x80\xae"
                 "evil",
                 "?evil"},
                {"\xf0\x9f\x99\x82", "\xf0\x9f\x99\x82"},
                {"\xf4\x90\x80\x80", "????"},
                {"\x7f", "?"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", rows[i].in);
        assay_clean_text(text);
        cr_expect_str_eq(text, rows[i].out);
    }
}

/* junit.xml of a hostile trace is still XML 1.0 in UTF-8: no byte below 0x20 but the writer's own newlines, no sequence cut. */
Test(parity_report, hostile_names_reach_no_report)
{
    parity_report *report;
    parity_result r;
    parity_result_init(&r);
    r.check = PARITY_CHECK_LOCAL;
    r.verdict = PARITY_FAIL;
    snprintf(r.instance, sizeof r.instance, "a\033[2J\xef\xbf\xbf");
    for (int i = 0; i < PARITY_TEXT - 2; i++)
        r.message[i] = i % 2 ? '\xa9' : '\xc3';
    r.message[PARITY_TEXT - 2] = '\xc3'; /* cut inside a character */
    cr_assert_eq(parity_report_create(&report), ASSAY_OK);
    cr_assert_eq(parity_report_add(report, &r), ASSAY_OK);
    const parity_claim *kept = parity_report_at(report, 0);
    cr_expect_str_eq(kept->instance, "a?[2J?");
    cr_expect_eq(kept->message[PARITY_TEXT - 2], '?');
    parity_report_destroy(report);
}

Test(parity_report, a_malformed_line_is_named)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"{\"check\":\"local\"}\n",
         "results.jsonl:1: expected a known check and verdict, found local and nothing"},
        {"{\"check\":\"local\",\"verdict\":\"perfect\"}\n", "found local and perfect"},
        {"[1]\n", "results.jsonl:1: expected an object"},
        {PASS "{\n", "results.jsonl:2"},
        {PASS, "expected a last line with the counts"},
        {"", "expected a last line with the counts"},
        {PASS END(2, 0), "results.jsonl:2: passed: expected 2 results, found 1"},
        {PASS END(1, 1), "results.jsonl:2: failed: expected 1 results, found 0"},
        {PASS END(1, 0) PASS, "results.jsonl:3: expected nothing after the line of counts"},
        {"{\"check\":\"local\",\"verdict\":\"pass\",\"ratio\":\"inf\"}\n" END(1, 0),
         "at most 1 and no bad element"},
        {"{\"check\":\"local\",\"verdict\":\"pass\",\"ratio\":\"small\"}\n" END(1, 0),
         "at most 1 and no bad element"},
        {"{\"check\":\"local\",\"verdict\":\"pass\",\"ratio\":1.5}\n" END(1, 0), "found ratio 1.5"},
        {"{\"check\":\"local\",\"verdict\":\"pass\",\"ratio\":0.5,\"bad\":3}\n" END(1, 0), "and 3 bad"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        parity_report *report;
        char path[256];
        snprintf(path, sizeof path, "%s/results.jsonl", root);
        cr_assert_eq(assay_write_file(path, rows[i].text, strlen(rows[i].text)), ASSAY_OK);
        cr_assert_eq(parity_report_create(&report), ASSAY_OK);
        cr_expect_neq(parity_report_load_jsonl(report, path, NULL), ASSAY_OK, "%s", rows[i].text);
        cr_expect_not_null(strstr(assay_error_message(), rows[i].message), "%s", assay_error_message());
        parity_report_destroy(report);
    }
}

Test(parity_report, html_is_self_contained_and_shows_the_failure)
{
    parity_report *report = three();
    char path[256];
    snprintf(path, sizeof path, "%s/index.html", root);
    cr_assert_eq(parity_report_html(report, path, "t <x>", NULL), ASSAY_OK);
    char *text = slurp("index.html");
    cr_expect_null(strstr(text, "http"));
    cr_expect_null(strstr(text, "src="));
    cr_expect_not_null(strstr(text, "t &lt;x&gt;"));
    cr_expect_not_null(strstr(text, "1 failed"));
    cr_expect_not_null(strstr(text, "assay run --case llama --layout tp2,sp"));
    free(text);
    parity_report_destroy(report);
}

Test(parity_report, a_nan_is_the_worst_ratio_of_its_column)
{
    parity_report *report = three();
    parity_column *columns;
    int64_t n;
    cr_assert_eq(parity_report_columns(report, &columns, &n), ASSAY_OK);
    cr_assert_eq(n, 1);
    cr_expect(isnan(columns[0].worst[PARITY_CHECK_LOCAL]));
    cr_expect_eq(columns[0].failed[PARITY_CHECK_LOCAL], 1);
    free(columns);
    parity_report_destroy(report);
}

/* tp2,sp with a NaN, and a second cell on tp2,dp2,zero1: each counts in every axis that it uses. */
Test(parity_report, the_worst_of_an_axis_is_that_of_its_cells)
{
    const parity_column columns[] = {
        {.layout = "tp2,sp",
         .passed = {[PARITY_CHECK_LOCAL] = 1},
         .worst = {[PARITY_CHECK_LOCAL] = (double)NAN}},
        {.layout = "tp2,dp2,zero1",
         .passed = {[PARITY_CHECK_LOCAL] = 1},
         .worst = {[PARITY_CHECK_LOCAL] = 0.5}},
        {.layout = "dp2",
         .passed = {[PARITY_CHECK_LOCAL] = 1, [PARITY_CHECK_WHOLE] = 1},
         .worst = {[PARITY_CHECK_LOCAL] = 0.25, [PARITY_CHECK_WHOLE] = 0.75}},
        {.layout = "3 ranks"},
    };
    static const struct {
        const char *name;
        int64_t cells;
        double local;
        bool whole;
    } wanted[] = {{"tp", 2, (double)NAN, false},
                  {"sp", 1, (double)NAN, false},
                  {"dp", 2, 0.5, true},
                  {"zero1", 1, 0.5, false}};
    parity_axis_row rows[PARITY_MAX_AXES];
    cr_assert_eq(parity_report_axes(columns, 4, rows), 4);
    for (int i = 0; i < 4; i++) {
        cr_expect_str_eq(rows[i].name, wanted[i].name);
        cr_expect_eq(rows[i].cells, wanted[i].cells, "%s", rows[i].name);
        cr_expect(rows[i].asked[0] && rows[i].asked[1] == wanted[i].whole, "%s", rows[i].name);
        cr_expect(isnan(wanted[i].local) ? isnan(rows[i].worst[0]) : rows[i].worst[0] == wanted[i].local,
                  "%s", rows[i].name);
    }
}

/* One observation that was not made is seen in the row, and one row that was not judged in the cell. */
Test(parity_report, a_skip_never_hides_under_a_pass)
{
    static const parity_verdict orders[][3] = {{PARITY_PASS, PARITY_SKIP, PARITY_PASS},
                                               {PARITY_SKIP, PARITY_PASS, PARITY_PASS},
                                               {PARITY_SKIP, PARITY_FAIL, PARITY_PASS}};
    parity_report *report;
    parity_table *table;
    char *text = NULL;
    size_t bytes = 0;
    cr_assert_eq(parity_report_create(&report), ASSAY_OK);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(parity_table_create(&table, PARITY_CHECK_FLOW), ASSAY_OK);
        for (int k = 0; k < 3; k++) {
            parity_result r;
            parity_result_init(&r);
            r.verdict = orders[i][k];
            snprintf(r.layout, sizeof r.layout, "%d", i < 2 ? 0 : 1);
            cr_assert_eq(parity_table_merge(table, &r), ASSAY_OK);
        }
        cr_assert_eq(parity_table_flush(table, report), ASSAY_OK);
        cr_expect_eq(parity_report_at(report, i)->verdict, i < 2 ? PARITY_SKIP : PARITY_FAIL, "order %d", i);
        parity_table_destroy(table);
    }
    parity_claim c = *parity_report_at(report, 0);
    c.verdict = PARITY_PASS;
    cr_assert_eq(parity_report_add_claim(report, &c, NULL), ASSAY_OK);
    FILE *f = open_memstream(&text, &bytes);
    parity_report_table(report, f, NULL);
    fclose(f);
    cr_expect_not_null(strstr(text, "skip 2/3"), "%s", text);
    cr_expect_not_null(strstr(text, "FAIL 1"), "%s", text);
    free(text);
    parity_report_destroy(report);
}
