/* Claims: what a report keeps of results, and whose texts they are. */
#define _GNU_SOURCE
#include "core/base/file.h"
#include "parity/judge/judge.h"
#include "parity/report/report_files.h"
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MANY = 5000 };

static parity_report *fresh(void)
{
    parity_report *r;
    cr_assert_eq(parity_report_create(&r), ASSAY_OK);
    return r;
}

static parity_result passing(void)
{
    parity_result r;
    parity_result_init(&r);
    r.check = PARITY_CHECK_LOCAL;
    r.verdict = PARITY_PASS;
    return r;
}

static void add(parity_report *to, const parity_result *r)
{
    cr_assert_eq(parity_report_add(to, r), ASSAY_OK, "%s", assay_error_message());
}

static parity_report *many(void)
{
    parity_report *report = fresh();
    parity_result r = passing();
    snprintf(r.case_name, sizeof r.case_name, "llama");
    for (int i = 0; i < MANY; i++) {
        snprintf(r.instance, sizeof r.instance, "decoder.layers.%d", i);
        snprintf(r.op, sizeof r.op, "op%d", i % 7);
        r.count = i;
        add(report, &r);
    }
    return report;
}

static void expect_many(const parity_report *report)
{
    char text[64];
    cr_assert_eq(parity_report_count(report), MANY);
    for (int i = 0; i < MANY; i++) {
        const parity_claim *c = parity_report_at(report, i);
        snprintf(text, sizeof text, "decoder.layers.%d", i);
        cr_assert_str_eq(c->instance, text);
        snprintf(text, sizeof text, "op%d", i % 7);
        cr_assert_str_eq(c->op, text);
        cr_assert_str_eq(c->case_name, "llama");
        cr_assert_eq(c->count, i);
    }
}

Test(parity_claims, equal_texts_are_one_pointer)
{
    parity_report *report = many();
    expect_many(report);
    for (int i = 7; i < MANY; i++) {
        const parity_claim *c = parity_report_at(report, i);
        cr_assert_eq(c->op, parity_report_at(report, i % 7)->op, "the same text, with others between");
        cr_assert_eq(c->case_name, parity_report_at(report, 0)->case_name);
        cr_assert_neq(c->instance, parity_report_at(report, i - 1)->instance);
    }
    parity_report_destroy(report);
}

Test(parity_claims, empty_texts_are_texts)
{
    parity_report *report = fresh();
    parity_claim blank;
    const parity_result r = passing();
    add(report, &r);
    const parity_claim *c = parity_report_at(report, 0);
    for (int k = 0; k < PARITY_TEXTS; k++) {
        cr_expect_str_eq(c->text[k], "");
        cr_expect_eq(c->text[k], c->text[0]);
    }
    parity_claim_init(&blank);
    for (int k = 0; k < PARITY_TEXTS; k++)
        cr_expect_str_eq(blank.text[k], "");
    cr_expect_eq(parity_report_add_claim(report, &blank, NULL), ASSAY_INTERNAL, "of no check");
    cr_expect_eq(parity_report_count(report), 1);
    cr_expect_null(parity_report_at(report, 1));
    parity_report_destroy(report);
}

/* Every text of a result arrives under its own name, and all of its bytes. */
Test(parity_claims, a_claim_has_the_texts_and_numbers_of_its_result)
{
    parity_result r = passing();
    char *const texts[PARITY_TEXTS] = {r.case_name, r.precision, r.layout,    r.variants,
                                       r.op,        r.instance,  r.tensor,    r.engine,
                                       r.tier,      r.message,   r.diagnosis, r.reproduce};
    for (int k = 0; k < PARITY_TEXTS; k++) {
        const size_t n = parity_claim_text_bytes(k) - 1;
        memset(texts[k], 'a' + k, n);
        texts[k][n] = '\0';
    }
    r.phase = ASSAY_PHASE_BACKWARD;
    r.step = 1, r.microbatch = 2, r.rank = 3, r.ratio = 0.5, r.share = 0.25, r.count = 4;
    r.n_bad = 5, r.n_ambiguous = 6, r.index_ndim = ASSAY_MAX_DIMS;
    for (int d = 0; d < ASSAY_MAX_DIMS; d++)
        r.index[d] = 10 + d;
    r.found = 7, r.expected = 8, r.allowance = 9, r.is_distance = true, r.variant = 11;
    parity_report *report = fresh();
    add(report, &r);
    memset(texts[5], 'z', 3); /* the report has its own */
    const parity_claim *c = parity_report_at(report, 0);
    for (int k = 0; k < PARITY_TEXTS; k++) {
        cr_expect_eq(strlen(c->text[k]), parity_claim_text_bytes(k) - 1);
        cr_expect_eq(strspn(c->text[k], (const char[]){(char)('a' + k), '\0'}),
                     parity_claim_text_bytes(k) - 1);
    }
    cr_expect(c->phase == r.phase && c->step == 1 && c->microbatch == 2 && c->rank == 3 && c->count == 4);
    cr_expect(c->n_bad == 5 && c->n_ambiguous == 6 && c->index_ndim == ASSAY_MAX_DIMS && c->is_distance);
    cr_expect(c->ratio == 0.5 && c->share == 0.25 && c->found == 7 && c->expected == 8 && c->allowance == 9);
    cr_expect(c->variant == 11 && c->check == PARITY_CHECK_LOCAL && c->verdict == PARITY_PASS);
    cr_expect_arr_eq(c->index, r.index, sizeof r.index);
    parity_report_destroy(report);
}

Test(parity_claims, what_is_empty_is_inherited)
{
    parity_report *report = fresh();
    parity_result context, r = passing();
    parity_result_init(&context);
    snprintf(context.case_name, sizeof context.case_name, "qwen3");
    snprintf(context.layout, sizeof context.layout, "ep2");
    snprintf(context.engine, sizeof context.engine, "sim");
    snprintf(context.reproduce, sizeof context.reproduce, "assay run");
    snprintf(context.message, sizeof context.message, "not for others");
    parity_report_set_context(report, &context);
    context.case_name[0] = '\0'; /* copied */
    add(report, &r);
    snprintf(r.case_name, sizeof r.case_name, "own");
    snprintf(r.layout, sizeof r.layout, "dp2,ep2");
    add(report, &r);
    parity_report_set_context(report, NULL);
    add(report, &r);
    const parity_claim *a = parity_report_at(report, 0), *b = parity_report_at(report, 1),
                       *c = parity_report_at(report, 2);
    cr_expect_str_eq(a->case_name, "qwen3");
    cr_expect_str_eq(a->message, "");
    cr_expect_str_eq(b->case_name, "own");
    cr_expect_str_eq(a->layout, "ep2");
    cr_expect_eq(b->layout, a->layout, "the user's word");
    cr_expect_eq(b->engine, a->engine);
    cr_expect_str_eq(b->reproduce, "assay run");
    cr_expect_str_eq(c->layout, "dp2,ep2");
    cr_expect_str_eq(c->engine, "");
    cr_expect_eq(c->case_name, b->case_name);
    parity_report_destroy(report);
}

Test(parity_claims, moved_ones_live_on)
{
    parity_report *from = many(), *to = fresh();
    for (int64_t i = 0; i < parity_report_count(from); i++)
        cr_assert_eq(parity_report_add_claim(to, parity_report_at(from, i), NULL), ASSAY_OK);
    parity_report_destroy(from);
    expect_many(to);
    parity_report_destroy(to);
}

Test(parity_claims, a_failure_takes_its_picture_along)
{
    static parity_picture picture;
    const int64_t shape[] = {2, 3};
    parity_report *from = fresh(), *to = fresh();
    parity_result r = passing();
    const parity_drawn drawn = {.picture = &picture};
    r.verdict = PARITY_FAIL;
    parity_picture_init(&picture, shape, 2);
    parity_picture_add(&picture, 4, 2.0, false);
    cr_assert_eq(parity_report_add_drawn(from, &r, &drawn), ASSAY_OK);
    const parity_claim *c = parity_report_at(from, 0);
    const parity_drawn found = parity_report_drawn(from, c);
    cr_assert_eq(parity_report_add_claim(to, c, &found), ASSAY_OK);
    cr_assert_eq(parity_report_add_claim(to, c, NULL), ASSAY_OK);
    parity_report_destroy(from);
    const parity_drawn moved = parity_report_drawn(to, parity_report_at(to, 0));
    cr_assert_not_null(moved.picture);
    cr_expect_arr_eq(moved.picture, &picture, sizeof picture);
    cr_expect_null(parity_report_drawn(to, parity_report_at(to, 1)).picture, "not asked for");
    parity_report_destroy(to);
}

/* A claim of the report itself moves when the report grows. */
Test(parity_claims, a_report_takes_its_own)
{
    parity_report *report = fresh();
    parity_result r = passing();
    snprintf(r.instance, sizeof r.instance, "again");
    add(report, &r);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(parity_report_add_claim(report, parity_report_at(report, i), NULL), ASSAY_OK);
    for (int i = 0; i <= 1000; i++)
        cr_assert_eq(parity_report_at(report, i)->instance, parity_report_at(report, 0)->instance);
    cr_expect_str_eq(parity_report_at(report, 1000)->instance, "again");
    parity_report_destroy(report);
}

Test(parity_claims, texts_are_cleaned_and_then_equal)
{
    static const char *const hostile[] = {"a\033b", "a?b", "a\tb", "plain", "a\033b"};
    parity_report *report = fresh();
    for (int i = 0; i < 5; i++) {
        parity_result r = passing();
        snprintf(r.message, sizeof r.message, "%s", hostile[i]);
        add(report, &r);
    }
    for (int i = 0; i < 5; i++)
        cr_expect_str_eq(parity_report_at(report, i)->message, i == 3 ? "plain" : "a?b");
    for (int i = 0; i < 5; i++)
        cr_expect(i == 3 || parity_report_at(report, i)->message == parity_report_at(report, 0)->message);
    parity_report_destroy(report);
}

/* The words are those of the worst observation, whatever became of the result that brought them. */
Test(parity_claims, a_table_keeps_the_words_of_the_worst)
{
    parity_table *table;
    parity_report *report = fresh();
    cr_assert_eq(parity_table_create(&table, PARITY_CHECK_FLOW), ASSAY_OK);
    for (int i = 0; i < 200; i++) {
        parity_result r = passing();
        snprintf(r.instance, sizeof r.instance, "instance %d", i % 100);
        r.verdict = PARITY_FAIL;
        r.ratio = i % 3 + 2.0;
        snprintf(r.message, sizeof r.message, "observation %d of %d", i / 100, i % 100);
        cr_assert_eq(parity_table_merge(table, &r), ASSAY_OK);
    }
    cr_assert_eq(parity_table_flush(table, report), ASSAY_OK);
    parity_table_destroy(table);
    cr_assert_eq(parity_report_count(report), 100);
    for (int i = 0; i < 100; i++) {
        char text[64];
        const parity_claim *c = parity_report_at(report, i);
        snprintf(text, sizeof text, "observation %d of %d", (i + 100) % 3 > i % 3, i);
        cr_expect_str_eq(c->message, text);
        cr_expect_eq(c->check, PARITY_CHECK_FLOW);
    }
    parity_report_destroy(report);
}

static assay_status load(const char *path, parity_report **report)
{
    *report = fresh();
    return parity_report_load_part(*report, path);
}

Test(parity_claims, a_part_says_a_text_once_and_reads_it_for_all)
{
    char path[] = "/tmp/assay-claims-XXXXXX", *text = NULL;
    uint64_t bytes = 0;
    parity_report *report = many(), *back;
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    cr_assert_eq(parity_report_save_part(report, path), ASSAY_OK);
    cr_assert_eq(load(path, &back), ASSAY_OK, "%s", assay_error_message());
    expect_many(back);
    parity_report_destroy(back);
    parity_report_destroy(report);
    cr_assert_eq(assay_read_file(path, 1 << 24, &text, &bytes), ASSAY_OK);
    const char *name = memmem(text, bytes, "llama", 6);
    cr_assert_not_null(name);
    cr_expect_null(memmem(name + 6, (size_t)(text + bytes - name - 6), "llama", 6));
    text[sizeof(int64_t) + 2] = 1; /* the first result: a bit that is no text's */
    cr_assert_eq(assay_write_file(path, text, bytes), ASSAY_OK);
    cr_expect_eq(load(path, &back), ASSAY_FORMAT);
    cr_expect_not_null(strstr(assay_error_message(), path));
    parity_report_destroy(back);
    free(text);
    unlink(path);
}

/* Limits are those of results. */
Test(parity_claims, a_text_of_a_part_that_is_too_long_is_refused)
{
    char path[] = "/tmp/assay-claims-XXXXXX", text[ASSAY_NAME + 1];
    parity_report *report = fresh(), *back;
    parity_result r = passing();
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    add(report, &r);
    for (size_t n = ASSAY_NAME - 1; n <= ASSAY_NAME; n++) {
        parity_claim c = *parity_report_at(report, 0);
        parity_report *one = fresh();
        memset(text, 'x', n);
        text[n] = '\0';
        c.tensor = text;
        cr_assert_eq(parity_report_add_claim(one, &c, NULL), ASSAY_OK);
        cr_assert_eq(parity_report_save_part(one, path), ASSAY_OK);
        cr_expect_eq(load(path, &back), n < ASSAY_NAME ? ASSAY_OK : ASSAY_FORMAT, "%zu bytes", n);
        parity_report_destroy(back);
        parity_report_destroy(one);
    }
    parity_report_destroy(report);
    unlink(path);
}
