/* index.html: what is on the page, that nothing from outside becomes markup, sizes, contrast, and what parts keep. */
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

static void make_root(void)
{
    snprintf(root, sizeof root, "/tmp/assay-page-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void drop_root(void)
{
    assay_remove_tree(root, "/tmp/");
}

TestSuite(parity_page, .init = make_root, .fini = drop_root);

static char *read_whole(const char *name, uint64_t *bytes)
{
    char path[256], *text = NULL;
    snprintf(path, sizeof path, "%s/%s", root, name);
    cr_assert_eq(assay_read_file(path, 1 << 26, &text, bytes), ASSAY_OK, "%s", assay_error_message());
    return text;
}

static char *page_of(const parity_report *r, const json_t *facts)
{
    char path[256];
    uint64_t n;
    snprintf(path, sizeof path, "%s/index.html", root);
    cr_assert_eq(parity_report_html(r, path, "assay run", facts), ASSAY_OK, "%s", assay_error_message());
    return read_whole("index.html", &n);
}

static int occurrences(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        n++;
    return n;
}

static void expect(const char *text, const char *words)
{
    cr_expect_not_null(strstr(text, words), "expected: %s", words);
}

static parity_result result(parity_check check, const char *layout, const char *instance, const char *op,
                            parity_verdict v, double ratio, double share)
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

static parity_picture picture(void)
{
    parity_picture p;
    const int64_t shape[2] = {4, 6};
    parity_picture_init(&p, shape, 2);
    for (int i = 0; i < 24; i++)
        parity_picture_add(&p, i, i < 7 ? 3.0 : 0.25, i >= 7);
    return p;
}

static void add(parity_report *r, const parity_result *x)
{
    cr_assert_eq(parity_report_add(r, x), ASSAY_OK, "%s", assay_error_message());
}

/* A whole failure, then a local one, then one of the plan in another layout; curves; cells of every look. */
static parity_report *mixed(void)
{
    parity_report *r;
    const parity_picture p = picture();
    parity_curve_point points[3] = {{0, 5.5, 5.5, 1e-3}, {1, 5.25, 5.25, 1e-3}, {2, 5.5, 5.0, 1e-3}};
    const parity_curve curve = {.n = 3, .stride = 1, .points = points};
    parity_result x;
    cr_assert_eq(parity_report_create(&r), ASSAY_OK);
    x = result(PARITY_CHECK_WHOLE, "tp2", "", "", PARITY_FAIL, 500.0, 500.0);
    snprintf(x.tensor, sizeof x.tensor, "loss");
    cr_assert_eq(parity_report_add_drawn(r, &x, NULL, &curve), ASSAY_OK);
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
    cr_assert_eq(parity_report_add_drawn(r, &x, &p, NULL), ASSAY_OK);
    x = result(PARITY_CHECK_LOCAL, "tp2", "embedding", "embedding_fwd", PARITY_SKIP, 0.0, 0.0);
    add(r, &x);
    x = result(PARITY_CHECK_PLAN, "dp2", "decoder.layers.0.mlp.reduce", "all_reduce", PARITY_FAIL,
               (double)INFINITY, (double)INFINITY);
    add(r, &x);
    return r;
}

static json_t *facts(void)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:{s:{s:f,s:f,s:{s:f},s:{s:[s],s:[[f,f,f,f],[f,f,f,f]]}}}}", "date",
                     "2026-01-01", "commit", "0123456789ab", "host", "n<1>", "command",
                     "assay run --layout tp2", "times", "llama bf16 tp2 k0", "train_s", 1.5, "task_s", 4.0,
                     "check_s", "local", 2.25, "held", "stages", "embedding, layers 0-3", "ranks", 100.0,
                     200.0, 300.0, 400.0, 100.0, 200.0, 300.0, 400.0);
}

/* What explains others comes first, wherever it stands; what follows is folded behind the first of its combination. */
Test(parity_page, the_first_failure_stands_on_top)
{
    parity_report *r = mixed();
    char *text = page_of(r, NULL);
    const char *first = strstr(text, "The first failure"), *plan = strstr(text, "message of all_reduce"),
               *others = strstr(text, "1 other combination of case"),
               *local = strstr(text, "message of linear_fwd"),
               *chain = strstr(text, "1 more claim of this combination fails"),
               *whole = strstr(text, "<li id=f0>whole"), *skips = strstr(text, "What was not checked");
    cr_assert(first && plan && others && local && chain && whole && skips, "%s", text);
    cr_expect(first < plan && plan < others && others < local && local < chain && chain < whole &&
              whole < skips);
    free(text);
    parity_report_destroy(r);
}

/* Every link leads to a place of the page. */
Test(parity_page, cells_lead_to_failures)
{
    parity_report *r = mixed();
    char *text = page_of(r, NULL), place[64];
    expect(text, "<td class=hv><a href=#f5>3</a>");
    cr_expect_geq(occurrences(text, "href=#f"), 4,
                  "cells of the matrix, of the map by layer and of the table");
    for (const char *at = strstr(text, "href=#"); at != NULL; at = strstr(at + 1, "href=#")) {
        snprintf(place, sizeof place, " id=%.*s", (int)strcspn(at + 6, " >"), at + 6);
        cr_expect_not_null(strstr(text, place), "%s", place);
    }
    free(text);
    parity_report_destroy(r);
}

Test(parity_page, every_look_of_a_cell_is_told_apart)
{
    parity_report *r = mixed();
    char *text = page_of(r, NULL);
    static const char *const cells[] = {"<td class=he>=",     "<td class=hr>0",       "<td class=hw>0.300",
                                        "<td class=hn>0.900", "<td class=hv><a href", "<td class=hs>?"};
    for (size_t k = 0; k < sizeof cells / sizeof *cells; k++)
        cr_expect_eq(occurrences(text, cells[k]), 2, "%s: in the map by layer and in the table", cells[k]);
    expect(text, "exact rounding: every element is correctly rounded");
    expect(text, "<tr><td>layer 1<td class=he>=<td class=hr>0<td class=hw>0.300<td class=hn>0.900<td><td>");
    expect(text, "<tr><td>layer 3<td><td><td><td><td class=hv>");
    free(text);
    parity_report_destroy(r);
}

Test(parity_page, pictures_and_curves_are_drawn_from_results)
{
    parity_report *r = mixed();
    json_t *told = facts();
    char *text = page_of(r, told);
    expect(text, "In this comparison 7 of 24 elements are outside, of [4, 6], in 7 of 4 x 6 cells.");
    expect(text, "<path class=all d=\"M0 0h6v1h-6M0 1h1v1h-1\"/>");
    expect(text, "Error over bound: 17 of 24 elements are within 1");
    expect(text, "<title>at most 0.25: 17 elements</title>");
    expect(text, "<title>at most 4: 7 elements</title>");
    expect(text, "llama bf16, loss, 1 run: <b class=bad>1 point outside</b>");
    cr_expect_eq(occurrences(text, "<circle class=out"), 1);
    expect(text, "<dt>commit</dt><dd>0123456789ab</dd>");
    expect(text, "<dd>n&lt;1&gt;</dd>");
    expect(text, "engine, traced run<td>1.50");
    expect(text, "local<td>2.25");
    /* The layout of the failure, with its rank; and among the layouts. */
    expect(text, ">failed</text>");
    expect(text, "data-rank=\"0\" data-parameters=\"100\" data-gradients=\"200\" data-masters=\"300\" "
                 "data-moments=\"400\"");
    expect(text, "embedding, layers 0-3");
    free(text);
    json_decref(told);
    parity_report_destroy(r);
}

/* --- colours ------------------------------------------------------------------------------------------------ */

static double linear(int byte)
{
    const double c = byte / 255.0;
    return c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4);
}

static double luminance(const char *hex)
{
    unsigned r, g, b;
    cr_assert_eq(sscanf(hex, "#%2x%2x%2x", &r, &g, &b), 3, "%s", hex);
    return 0.2126 * linear((int)r) + 0.7152 * linear((int)g) + 0.0722 * linear((int)b);
}

static double contrast(const char *a, const char *b)
{
    const double x = luminance(a), y = luminance(b);
    return ((x > y ? x : y) + 0.05) / ((x > y ? y : x) + 0.05);
}

/* WCAG 2.2 AA: 4.5 for text, 3 for shapes; the style sheet has no colour beside the table's. */
Test(parity_page, every_colour_has_contrast)
{
    int n = 0;
    const parity_colour *c = parity_page_colours(&n);
    cr_expect_float_eq(contrast("#000000", "#ffffff"), 21.0, 1e-9);
    cr_expect_float_eq(contrast("#777777", "#ffffff"), 4.48, 0.005, "the check can fail");
    for (int i = 0; i < n; i++) {
        const double least = c[i].mark ? 3.0 : 4.5;
        cr_expect_geq(contrast(c[i].light[0], c[i].light[1]), least, "%s, light: %.2f", c[i].name,
                      contrast(c[i].light[0], c[i].light[1]));
        cr_expect_geq(contrast(c[i].dark[0], c[i].dark[1]), least, "%s, dark: %.2f", c[i].name,
                      contrast(c[i].dark[0], c[i].dark[1]));
    }
    parity_report *r = mixed();
    char *text = page_of(r, NULL);
    const char *end = strstr(text, "</style>");
    int colours = 0;
    cr_assert_not_null(end);
    for (const char *at = text; at < end; at++)
        colours += *at == '#';
    cr_expect_eq(colours, 4 * n, "%d colours in the style sheet, %d in the table", colours, 4 * n);
    cr_expect_null(strstr(text, "rgb"));
    expect(text, "prefers-color-scheme:dark");
    /* A class of a text names its background, too; a class that the table has not is no colour. */
    expect(text, ".hn{color:var(--hn);background:var(--hn-b)}");
    for (const char *at = strstr(text, "var(--"); at != NULL; at = strstr(at + 1, "var(--")) {
        const int length = (int)strcspn(at + 6, ")");
        bool known = false;
        for (int i = 0; i < n; i++) {
            const int m = (int)strlen(c[i].name);
            known = known || (strncmp(at + 6, c[i].name, (size_t)m) == 0 &&
                              (length == m || (length == m + 2 && strncmp(at + 6 + m, "-b", 2) == 0)));
        }
        cr_expect(known, "%.*s", length, at + 6);
    }
    free(text);
    parity_report_destroy(r);
}

/* --- text from outside -------------------------------------------------------------------------------------- */

Test(parity_page, hostile_names_stay_text)
{
    static const char hostile[] = "<script>alert(1)</script>\"'><img src=x onerror=y>&</svg></style>";
    parity_report *r;
    const parity_picture p = picture();
    parity_curve_point points[2] = {{0, (double)NAN, (double)INFINITY, 0.0}, {1, 1.0, 2.0, 0.5}};
    const parity_curve curve = {.n = 2, .stride = 1, .points = points};
    cr_assert_eq(parity_report_create(&r), ASSAY_OK);
    for (int k = 0; k < 3; k++) {
        parity_result x = result(k == 0 ? PARITY_CHECK_LOCAL : PARITY_CHECK_WHOLE, hostile, hostile, "op",
                                 k == 2 ? PARITY_SKIP : PARITY_FAIL, 2.0, 2.0);
        char *const texts[] = {x.case_name, x.precision, x.variants, x.op,
                               x.message,   x.diagnosis, x.reproduce};
        const size_t sizes[] = {sizeof x.case_name, sizeof x.precision, sizeof x.variants, sizeof x.op,
                                sizeof x.message,   sizeof x.diagnosis, sizeof x.reproduce};
        for (int i = 0; i < 7; i++)
            snprintf(texts[i], sizes[i], "%s", hostile);
        snprintf(x.tensor, sizeof x.tensor, "%s", k == 1 ? "loss" : hostile);
        cr_assert_eq(parity_report_add_drawn(r, &x, k == 0 ? &p : NULL, k == 1 ? &curve : NULL), ASSAY_OK);
    }
    json_t *told = json_pack("{s:s,s:{s:{s:{s:[s],s:[]}}}}", hostile, hostile, "times", hostile, "held",
                             "stages", hostile, "ranks");
    char *text = page_of(r, told);
    cr_expect_eq(occurrences(text, "<script"), 1, "the page's own");
    cr_expect_eq(occurrences(text, "</style"), 1);
    cr_expect_null(strstr(text, "<img"));
    cr_expect_null(strstr(text, "\"'>"));
    cr_expect_eq(occurrences(text, "<svg"), occurrences(text, "</svg"));
    free(text);
    json_decref(told);
    parity_report_destroy(r);
}

/* No network, no file beside it: opens from disk. */
Test(parity_page, nothing_is_fetched)
{
    parity_report *r = mixed();
    json_t *told = facts();
    char *text = page_of(r, told);
    static const char *const words[] = {"http",    "src=",  "@import", "url(", "<link",
                                        "<iframe", "fetch", "XMLHttp", "eval", "innerHTML"};
    for (size_t k = 0; k < sizeof words / sizeof *words; k++)
        cr_expect_null(strstr(text, words[k]), "%s", words[k]);
    free(text);
    json_decref(told);
    parity_report_destroy(r);
}

/* --- sizes -------------------------------------------------------------------------------------------------- */

/* The largest picture: every other cell of 64 x 64, of a tensor of any size. */
static parity_picture checkered(void)
{
    parity_picture p;
    const int64_t shape[3] = {100, 100, 1000};
    parity_picture_init(&p, shape, 3);
    for (int i = 0; i < PARITY_PICTURE_CELLS * PARITY_PICTURE_CELLS; i++)
        p.bad[i] =
            (uint32_t)((i / PARITY_PICTURE_CELLS + i) % 2 *
                       parity_picture_cell_count(&p, i / PARITY_PICTURE_CELLS, i % PARITY_PICTURE_CELLS));
    for (int k = 0; k < PARITY_BINS; k++)
        p.bins[k] = 400000 + k;
    return p;
}

Test(parity_page, the_page_stays_small_when_everything_fails)
{
    parity_report *r;
    char layout[32], op[40];
    const parity_picture p = checkered();
    uint64_t bytes = 0;
    cr_assert(parity_picture_valid(&p));
    cr_assert_eq(parity_report_create(&r), ASSAY_OK);
    for (int i = 0; i < 6000; i++) {
        snprintf(layout, sizeof layout, "dp%d", 1 + i / 100);
        snprintf(op, sizeof op, "op%d", i % 100);
        parity_result x =
            result(PARITY_CHECK_LOCAL, layout, "decoder.layers.0.mlp.x", op, PARITY_FAIL, 9.0, 9.0);
        memset(x.message, 'm', sizeof x.message - 1);
        memset(x.diagnosis, 'd', sizeof x.diagnosis - 1);
        memset(x.reproduce, 'r', sizeof x.reproduce - 1);
        cr_assert_eq(parity_report_add_drawn(r, &x, &p, NULL), ASSAY_OK);
    }
    char *text = page_of(r, NULL);
    cr_expect_eq(occurrences(text, "<div class=\"card\""), 60, "every combination's first failure");
    cr_expect_eq(occurrences(text, "<li id=f"), 60 + 59 * 4);
    expect(text, "95 more are in results.jsonl");
    free(text);
    free(read_whole("index.html", &bytes));
    cr_expect_lt(bytes, 1500000, "%llu bytes", (unsigned long long)bytes);
    int64_t pictures = 0;
    for (int64_t i = 0; i < parity_report_count(r); i++)
        pictures += parity_report_picture(r, parity_report_at(r, i)) != NULL;
    cr_expect_eq(pictures, PARITY_PICTURES);
    parity_report_destroy(r);
}

/* --- what parts keep ---------------------------------------------------------------------------------------- */

static void expect_same_drawings(const parity_report *a, const parity_report *b, const char *what)
{
    cr_assert_eq(parity_report_count(a), parity_report_count(b));
    int drawn = 0;
    for (int64_t i = 0; i < parity_report_count(a); i++) {
        const parity_picture *p = parity_report_picture(a, parity_report_at(a, i)),
                             *q = parity_report_picture(b, parity_report_at(b, i));
        const parity_curve *c = parity_report_curve(a, parity_report_at(a, i)),
                           *d = parity_report_curve(b, parity_report_at(b, i));
        cr_expect_eq(p == NULL, q == NULL, "%s: result %lld", what, (long long)i);
        cr_expect_eq(c == NULL, d == NULL, "%s: result %lld", what, (long long)i);
        drawn += (p != NULL) + (c != NULL);
        if (p != NULL && q != NULL)
            cr_expect_eq(memcmp(p, q, sizeof *p), 0, "%s", what);
        if (c == NULL || d == NULL)
            continue;
        cr_assert_eq(c->n, d->n);
        cr_expect_eq(c->stride, d->stride);
        for (int64_t k = 0; k < c->n; k++)
            cr_expect(c->points[k].step == d->points[k].step && c->points[k].found == d->points[k].found &&
                      c->points[k].expected == d->points[k].expected &&
                      c->points[k].allowance == d->points[k].allowance);
    }
    cr_expect_geq(drawn, 2);
}

Test(parity_page, drawings_travel_with_results)
{
    parity_report *r = mixed(), *lines, *part;
    char path[256];
    snprintf(path, sizeof path, "%s/results.jsonl", root);
    cr_assert_eq(parity_report_jsonl(r, path), ASSAY_OK);
    cr_assert_eq(parity_report_create(&lines), ASSAY_OK);
    cr_assert_eq(parity_report_load_jsonl(lines, path, NULL), ASSAY_OK, "%s", assay_error_message());
    expect_same_drawings(r, lines, "results.jsonl");
    snprintf(path, sizeof path, "%s/part", root);
    cr_assert_eq(parity_report_save_part(r, path), ASSAY_OK);
    cr_assert_eq(parity_report_create(&part), ASSAY_OK);
    cr_assert_eq(parity_report_load_part(part, path), ASSAY_OK, "%s", assay_error_message());
    expect_same_drawings(r, part, "part");
    uint64_t bytes = 0;
    char *whole = read_whole("part", &bytes);
    for (uint64_t cut = 0; cut<bytes; cut += bytes - cut> 600 ? 211 : 1) {
        parity_report *back;
        cr_assert_eq(assay_write_file(path, whole, cut), ASSAY_OK);
        cr_assert_eq(parity_report_create(&back), ASSAY_OK);
        cr_expect_eq(parity_report_load_part(back, path), ASSAY_FORMAT, "%llu bytes",
                     (unsigned long long)cut);
        parity_report_destroy(back);
    }
    free(whole);
    parity_report_destroy(part);
    parity_report_destroy(lines);
    parity_report_destroy(r);
}

/* A picture or curve that is none is refused with its line. */
Test(parity_page, malformed_drawings_are_named)
{
    static const char *const rows[] = {
        "\"picture\":{}",
        "\"picture\":{\"shape\":[2],\"rows\":1,\"columns\":2,\"bins\":[0],\"bad\":[0,0]}",
        "\"picture\":{\"shape\":[2],\"rows\":1,\"columns\":2,\"bins\":[2,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
        "0,0],\"bad\":[0]}",
        "\"picture\":{\"shape\":[2],\"rows\":1,\"columns\":2,\"bins\":[2,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
        "0,0],\"bad\":[0,2]}",
        "\"picture\":{\"shape\":[2],\"rows\":1,\"columns\":2,\"bins\":[3,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
        "0,0],\"bad\":[0,1]}",
        "\"picture\":{\"shape\":[-2],\"rows\":1,\"columns\":0,\"bins\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
        "0,0,0],\"bad\":[]}",
        "\"picture\":{\"shape\":[99999999,99999999,99999999],\"rows\":64,\"columns\":64,\"bins\":[],\"bad\":["
        "]}",
        "\"curve\":{}",
        "\"curve\":{\"stride\":1,\"step\":[0,0],\"found\":[1,1],\"expected\":[1,1],\"allowance\":[1,1]}",
        "\"curve\":{\"stride\":1,\"step\":[0],\"found\":[\"much\"],\"expected\":[1],\"allowance\":[1]}",
        "\"curve\":{\"stride\":0,\"step\":[0],\"found\":[1],\"expected\":[1],\"allowance\":[1]}",
        "\"curve\":{\"stride\":1,\"step\":[0],\"found\":[1,2],\"expected\":[1],\"allowance\":[1]}",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[256], line[1024];
        parity_report *back;
        snprintf(path, sizeof path, "%s/bad.jsonl", root);
        snprintf(line, sizeof line, "{\"check\":\"local\",\"verdict\":\"FAIL\",\"ratio\":2.0,%s}\n", rows[i]);
        cr_assert_eq(assay_write_file(path, line, strlen(line)), ASSAY_OK);
        cr_assert_eq(parity_report_create(&back), ASSAY_OK);
        cr_expect_eq(parity_report_load_jsonl(back, path, NULL), ASSAY_FORMAT, "%s", rows[i]);
        expect(assay_error_message(), "bad.jsonl:1: ");
        parity_report_destroy(back);
    }
}

/* --- how they are made -------------------------------------------------------------------------------------- */

/* Each element lands in the cell that says it stands for it; nothing is lost. */
Test(parity_page, cells_stand_for_every_element_once)
{
    static const int64_t shapes[][3] = {{1, 1, 1},   {1, 1, 130}, {3, 5, 7},
                                        {1, 64, 64}, {2, 65, 63}, {1, 1000, 3}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        parity_picture p;
        parity_picture_init(&p, shapes[s], 3);
        const int64_t n = shapes[s][0] * shapes[s][1] * shapes[s][2];
        cr_expect_eq(parity_picture_count(&p), n);
        for (int64_t i = 0; i < n; i++)
            parity_picture_add(&p, i, 2.0, false);
        for (int row = 0; row < p.rows; row++)
            for (int column = 0; column < p.columns; column++)
                cr_expect_eq(p.bad[row * p.columns + column], parity_picture_cell_count(&p, row, column),
                             "shape %zu, cell %d %d", s, row, column);
        cr_expect_eq(p.bins[PARITY_BINS_WITHIN], n);
        cr_expect(parity_picture_valid(&p));
        p.bad[0]++;
        cr_expect_not(parity_picture_valid(&p));
    }
    parity_picture p;
    parity_picture_init(&p, (int64_t[]){9}, 1);
    const double ratios[] = {0.0, 1e-9, 1.0, 1.0000001, 1024.0, 1e9, (double)INFINITY, (double)NAN, -1.0};
    const int bins[] = {0, 1, 8, 9, 18, 19, 20, 20, 0};
    for (int i = 0; i < 9; i++) {
        const int64_t before = p.bins[bins[i]];
        parity_picture_add(&p, i, ratios[i], false);
        cr_expect_eq(p.bins[bins[i]], before + 1, "ratio %g", ratios[i]);
    }
}

/* However long the run: few points, and the worst step is one of them. */
Test(parity_page, a_long_curve_keeps_the_worst_steps)
{
    parity_curve c = {0};
    for (int64_t step = 0; step < 100000; step++) {
        const parity_curve_point q = {step, step == 77777 ? 1.0 : step == 5 ? (double)NAN : 0.5, 0.5, 0.1};
        cr_assert_eq(parity_curve_add(&c, &q), ASSAY_OK);
    }
    bool worst = false, nan = false;
    cr_expect_leq(c.n, PARITY_CURVE_POINTS);
    for (int64_t i = 0; i < c.n; i++) {
        worst = worst || c.points[i].step == 77777;
        nan = nan || c.points[i].step == 5;
        cr_expect(i == 0 || c.points[i].step > c.points[i - 1].step);
    }
    cr_expect(worst && nan);
    free(c.points);
}

/* A failing comparison of one operation is drawn, elements and bins; one that holds is not. */
Test(parity_page, a_failing_comparison_is_drawn)
{
    double truth[12], bound[12], found[12];
    parity_gallery g = {0};
    const parity_scales scales = {1, 1, 1, 1, 1, 1, 1, 1};
    for (int i = 0; i < 12; i++)
        truth[i] = 1.0 + i, bound[i] = 0.25, found[i] = truth[i] + (i % 4 == 3 ? 1.0 : 0.0);
    ref_value a = {.slot = "y",
                   .kind = REF_VALUE_REAL,
                   .count = 12,
                   .value = truth,
                   .bound = bound,
                   .dtype = ASSAY_F32},
              b = {.slot = "y", .kind = REF_VALUE_REAL, .count = 12, .value = found, .dtype = ASSAY_F32};
    a.ndim = b.ndim = 2;
    a.shape[0] = b.shape[0] = 3;
    a.shape[1] = b.shape[1] = 4;
    parity_result r;
    parity_result_init(&r);
    r.verdict = PARITY_PASS;
    cr_assert_eq(parity_compare_value(&a, &b, &scales, &g, &r), ASSAY_OK);
    cr_expect_eq(r.verdict, PARITY_FAIL);
    const parity_picture *p = parity_gallery_picture_at(&g, r.picture);
    cr_assert_not_null(p);
    for (int i = 0; i < 12; i++)
        cr_expect_eq(p->bad[i], i % 4 == 3);
    cr_expect_eq(p->bins[0], 9);
    cr_expect_eq(p->bins[PARITY_BINS_WITHIN + 1], 3, "4 times its bound, less the rounding of the output");
    parity_result_init(&r);
    r.verdict = PARITY_PASS;
    cr_assert_eq(parity_compare_value(&a, &a, &scales, &g, &r), ASSAY_OK);
    cr_expect_eq(r.picture, 0);
    cr_expect_eq(g.n_pictures, 1);
    parity_gallery_free(&g);
}
