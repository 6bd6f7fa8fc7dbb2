/* Pictures, excerpts and curves: how they are made, and that results.jsonl and parts keep them. */
#include "tests/support/page.h"

TestSuite(parity_page_drawn, .init = make_root, .fini = drop_root);

/* --- what parts keep ---------------------------------------------------------------------------------------- */

static void expect_same_drawings(const parity_report *a, const parity_report *b, const char *what)
{
    cr_assert_eq(parity_report_count(a), parity_report_count(b));
    int drawn = 0;
    for (int64_t i = 0; i < parity_report_count(a); i++) {
        const parity_drawn x = parity_report_drawn(a, parity_report_at(a, i)),
                           y = parity_report_drawn(b, parity_report_at(b, i));
        const parity_picture *p = x.picture, *q = y.picture;
        const parity_curve *c = x.curve, *d = y.curve;
        cr_expect_eq(x.excerpt == NULL, y.excerpt == NULL, "%s: result %lld", what, (long long)i);
        if (x.excerpt != NULL && y.excerpt != NULL)
            cr_expect_eq(memcmp(x.excerpt, y.excerpt, sizeof *x.excerpt), 0, "%s", what);
        drawn += x.excerpt != NULL;
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
    cr_expect_geq(drawn, 3);
}

Test(parity_page_drawn, drawings_travel_with_results)
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
Test(parity_page_drawn, malformed_drawings_are_named)
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
        "\"picture\":{\"shape\":[2],\"rows\":1,\"columns\":2,\"unit\":\"mile\",\"bins\":[2,0,0,0,0,0,0,0,0,0,"
        "0,"
        "0,0,0,0,0,0,0,0,0,0],\"bad\":[0,0]}",
        "\"excerpt\":{}",
        "\"excerpt\":{\"title\":\"t\",\"columns\":[],\"rows\":[]}",
        "\"excerpt\":{\"title\":\"t\",\"columns\":[\"a\"],\"rows\":[[\"same\"]]}",
        "\"excerpt\":{\"title\":\"t\",\"columns\":[\"a\"],\"rows\":[[\"bad\",\"x\"]]}",
        "\"excerpt\":{\"title\":\"t\",\"columns\":[\"a\"],\"rows\":[[\"same\",1]]}",
        "\"excerpt\":{\"title\":\"t\",\"columns\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\"],\"rows\":[]}",
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
Test(parity_page_drawn, cells_stand_for_every_element_once)
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
Test(parity_page_drawn, a_long_curve_keeps_the_worst_steps)
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
Test(parity_page_drawn, a_failing_comparison_is_drawn)
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

/* Elements that must be equal: the first that differ with their bits, all of them in the picture. */
Test(parity_page_drawn, bits_that_differ_are_drawn)
{
    float expected[20], found[20];
    for (int i = 0; i < 20; i++)
        expected[i] = found[i] = 1.0f + (float)i;
    found[7] = nextafterf(found[7], 100.0f);
    found[13] = -found[13];
    found[19] = NAN;
    parity_gallery g = {0};
    parity_result r;
    const int64_t shape[2] = {4, 5};
    parity_result_init(&r);
    cr_assert_eq(parity_compare_bits(found, expected, shape, 2, 20, ASSAY_F32, &g, &r), ASSAY_OK);
    cr_expect_eq(r.verdict, PARITY_FAIL);
    const parity_picture *p = parity_gallery_picture_at(&g, r.picture);
    const parity_excerpt *e = parity_gallery_excerpt_at(&g, r.excerpt);
    cr_assert(p != NULL && e != NULL);
    cr_expect(p->ulps);
    cr_expect_eq(p->bins[0], 17);
    cr_expect_eq(p->bins[1], 1, "one unit");
    cr_expect_eq(p->bins[19], 1, "another sign");
    cr_expect_eq(p->bins[20], 1, "no number");
    for (int i = 0; i < 20; i++)
        cr_expect_eq(p->bad[i], i == 7 || i == 13 || i == 19);
    cr_assert_eq(e->n_rows, 3);
    cr_expect_str_eq(e->title, "The 3 elements that differ, F32; expected they are equal");
    const char *const first[] = {"[1, 2]", "8", "8.00000095", "1 ulp", "41000000", "41000001"};
    for (int c = 0; c < 6; c++)
        cr_expect_str_eq(e->rows[0].cells[c], first[c]);
    cr_expect_str_eq(e->rows[2].cells[3], "not finite");
    parity_result_init(&r);
    cr_assert_eq(parity_compare_bits(expected, expected, shape, 2, 20, ASSAY_F32, &g, &r), ASSAY_OK);
    cr_expect(r.verdict == PARITY_PASS && r.picture == 0 && r.excerpt == 0);
    parity_gallery_free(&g);
}

/* What is too long ends with dots, what is too many is refused. */
Test(parity_page_drawn, an_excerpt_is_bounded)
{
    static const char *const heads[] = {"a", NULL};
    parity_excerpt e;
    char text[300];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    parity_excerpt_begin(&e, heads, "%s", text);
    for (int i = 0; i < PARITY_EXCERPT_ROWS; i++)
        cr_expect(parity_excerpt_add(&e, PARITY_ROW_SAME));
    parity_excerpt_cell(&e, 0, "%s", text);
    cr_expect_eq(strlen(e.rows[e.n_rows - 1].cells[0]), PARITY_EXCERPT_CELL - 1);
    cr_expect_str_eq(e.rows[e.n_rows - 1].cells[0] + PARITY_EXCERPT_CELL - 4, "...");
    cr_expect_not(parity_excerpt_add(&e, PARITY_ROW_SAME));
    cr_expect(parity_excerpt_valid(&e));
    e.rows[2].mark = PARITY_ROW_MARKS;
    cr_expect_not(parity_excerpt_valid(&e));
}
