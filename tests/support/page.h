/* Pages of reports: a report with failures of several checks, and what stands on its page. */
#ifndef TESTS_SUPPORT_PAGE_H
#define TESTS_SUPPORT_PAGE_H

#define _GNU_SOURCE
#include "core/base/file.h"
#include "core/base/text.h"
#include "parity/judge/judge.h"
#include "parity/report/page.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[64];

static inline void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/assay-page-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static inline void drop_root(void)
{
    cr_assert_eq(assay_remove_tree(root, "/tmp"), ASSAY_OK, "%s", assay_error_message());
}

static inline char *read_whole(const char *name, uint64_t *bytes)
{
    char path[256], *text = NULL;
    snprintf(path, sizeof path, "%s/%s", root, name);
    cr_assert_eq(assay_read_file(path, 1 << 26, &text, bytes), ASSAY_OK, "%s", assay_error_message());
    return text;
}

static inline char *page_of(const parity_report *r, const json_t *facts)
{
    char path[256];
    uint64_t n;
    snprintf(path, sizeof path, "%s/index.html", root);
    cr_assert_eq(parity_report_html(r, path, "assay run", facts), ASSAY_OK, "%s", assay_error_message());
    return read_whole("index.html", &n);
}

static inline int occurrences(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        n++;
    return n;
}

static inline void expect(const char *text, const char *words)
{
    cr_expect_not_null(strstr(text, words), "expected: %s", words);
}

static inline parity_result result(parity_check check, const char *layout, const char *instance,
                                   const char *op, parity_verdict v, double ratio, double share)
{
    parity_result r;
    parity_result_init(&r);
    snprintf(r.case_name, sizeof r.case_name, "llama");
    snprintf(r.precision, sizeof r.precision, "bf16");
    snprintf(r.variants, sizeof r.variants, "k0");
    snprintf(r.layout, sizeof r.layout, "%s", layout);
    snprintf(r.instance, sizeof r.instance, "%s", instance);
    snprintf(r.op, sizeof r.op, "%s", op);
    snprintf(r.tensor, sizeof r.tensor, "y");
    snprintf(r.message, sizeof r.message, "message of %s", op);
    snprintf(r.reproduce, sizeof r.reproduce, "assay run --layout %s", layout);
    r.check = check;
    r.verdict = v;
    r.ratio = ratio;
    r.share = share;
    r.rank = 1;
    r.count = 24;
    r.n_bad = v == PARITY_FAIL ? 7 : 0;
    r.index_ndim = 2;
    return r;
}

static inline parity_picture picture(void)
{
    parity_picture p;
    const int64_t shape[2] = {4, 6};
    parity_picture_init(&p, shape, 2);
    for (int i = 0; i < 24; i++)
        parity_picture_add(&p, i, i < 7 ? 3.0 : 0.25, i >= 7);
    return p;
}

static inline void add(parity_report *r, const parity_result *x)
{
    cr_assert_eq(parity_report_add(r, x), ASSAY_OK, "%s", assay_error_message());
}

static inline void add_drawn(parity_report *r, const parity_result *x, parity_drawn drawn)
{
    cr_assert_eq(parity_report_add_drawn(r, x, &drawn), ASSAY_OK, "%s", assay_error_message());
}

/* The only failure of a plan: a missing operation between two that were done. */
static inline parity_excerpt excerpt(void)
{
    static const char *const heads[] = {"", "expected", "found", NULL};
    static const char *const rows[3][3] = {{"4", "add before", "done, as 4"},
                                           {"5", "all_reduce place", "missing"},
                                           {"", "nothing", "sum behind"}};
    parity_excerpt e;
    parity_excerpt_begin(&e, heads, "The plan of rank %d", 1);
    for (int i = 0; i < 3; i++) {
        parity_excerpt_add(&e, i == 0 ? PARITY_ROW_SAME : i == 1 ? PARITY_ROW_MISSING : PARITY_ROW_EXTRA);
        for (int c = 0; c < 3; c++)
            parity_excerpt_cell(&e, c, "%s", rows[i][c]);
    }
    return e;
}

/* A whole failure, then a local one, then one of the plan in another layout; curves; cells of every look. */
static inline parity_report *mixed(void)
{
    parity_report *r;
    const parity_picture p = picture();
    parity_curve_point points[3] = {{0, 5.5, 5.5, 1e-3}, {1, 5.25, 5.25, 1e-3}, {2, 5.5, 5.0, 1e-3}};
    const parity_curve curve = {.n = 3, .stride = 1, .points = points};
    parity_result x;
    cr_assert_eq(parity_report_create(&r), ASSAY_OK);
    x = result(PARITY_CHECK_WHOLE, "tp2", "", "", PARITY_FAIL, 500.0, 500.0);
    snprintf(x.tensor, sizeof x.tensor, "loss");
    add_drawn(r, &x, (parity_drawn){.curve = &curve});
    static const struct {
        const char *op;
        double ratio, share;
    } holds[] = {{"add", 0.0, 0.0}, {"swiglu_fwd", 0.4, 0.0}, {"rope_fwd", 0.6, 0.3}, {"sum", 0.95, 0.9}};
    for (int k = 0; k < 4; k++) {
        x = result(PARITY_CHECK_LOCAL, "tp2", "decoder.layers.1.mlp.x", holds[k].op, PARITY_PASS,
                   holds[k].ratio, holds[k].share);
        add(r, &x);
    }
    x = result(PARITY_CHECK_LOCAL, "tp2", "decoder.layers.3.mlp.linear_fc1", "linear_fwd", PARITY_FAIL, 3.0,
               3.0);
    add_drawn(r, &x, (parity_drawn){.picture = &p});
    x = result(PARITY_CHECK_LOCAL, "tp2", "embedding", "embedding_fwd", PARITY_SKIP, 0.0, 0.0);
    add(r, &x);
    x = result(PARITY_CHECK_PLAN, "dp2", "decoder.layers.0.mlp.reduce", "all_reduce", PARITY_FAIL,
               (double)INFINITY, (double)INFINITY);
    const parity_excerpt e = excerpt();
    add_drawn(r, &x, (parity_drawn){.excerpt = &e});
    return r;
}

static inline json_t *facts(void)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:{s:{s:f,s:f,s:{s:f},s:{s:[s],s:[[f,f,f,f],[f,f,f,f]]}}}}", "date",
                     "2026-01-01", "commit", "0123456789ab", "host", "n<1>", "command",
                     "assay run --layout tp2", "times", "llama bf16 tp2 k0", "train_s", 1.5, "task_s", 4.0,
                     "check_s", "local", 2.25, "held", "stages", "embedding, layers 0-3", "ranks", 100.0,
                     200.0, 300.0, 400.0, 100.0, 200.0, 300.0, 400.0);
}

#endif
