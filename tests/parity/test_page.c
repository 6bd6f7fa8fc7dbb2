/* index.html: what is on the page, that nothing from outside becomes markup, sizes, contrast. */
#include "tests/support/page.h"

TestSuite(parity_page, .init = make_root, .fini = drop_root);

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
    static const char *const cells[] = {
        "<td>=", "<td>0", "<td class=hw>.300", "<td class=hn>.900", "<td class=hv><a href", "<td class=hs>?"};
    for (size_t k = 0; k < sizeof cells / sizeof *cells; k++)
        cr_expect_geq(occurrences(text, cells[k]), 2, "%s: in the map by layer and in the table", cells[k]);
    expect(text, "exact rounding: every element is correctly rounded");
    expect(text, "<tr\n><td>layer 1<td>=<td>0<td class=hw>.300<td class=hn>.900<td><td>");
    expect(text, "<tr\n><td>layer 3<td><td><td><td><td class=hv>");
    free(text);
    parity_report_destroy(r);
}

Test(parity_page, pictures_and_curves_are_drawn_from_results)
{
    parity_report *r = mixed();
    json_t *told = facts();
    char *text = page_of(r, told);
    expect(text, "In this comparison 7 of 24 elements are outside, of [4, 6], in 7 of 4 x 6 cells.");
    expect(text, "<path class=all-l transform=translate(0,.5) d=\"M0 0h6M0 1h1\"/>");
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

/* --- what a check saw --------------------------------------------------------------------------------------- */

/* Expected beside found, every row with its mark, in the card of the failure. */
Test(parity_page, excerpts_stand_in_the_card_of_their_failure)
{
    parity_report *r = mixed();
    char *text = page_of(r, NULL);
    const char *card = strstr(text, "message of all_reduce"), *title = strstr(text, "The plan of rank 1"),
               *end = strstr(text, "assay run --layout dp2");
    cr_assert(card && title && end, "%s", text);
    cr_expect(card < title && title < end);
    expect(text, "<tr class=dim><td class=hr aria-label=same>=<td class=l>4<td class=l>add before<td "
                 "class=l>done, as 4");
    expect(text, "<tr><td class=hv aria-label=missing>&minus;<td class=l>5<td class=l>all_reduce place<td "
                 "class=l>missing");
    expect(text, "<tr><td class=hn aria-label=extra>+<td class=l><td class=l>nothing<td class=l>sum behind");
    cr_expect_eq(occurrences(text, "<figure class=x>"), 1, "a failure without an excerpt has none");
    free(text);
    parity_report_destroy(r);
}

/* Where bits must be equal there is no bound: the histogram is of units of the last place. */
Test(parity_page, bits_are_drawn_in_units_of_the_last_place)
{
    parity_report *r;
    parity_picture p;
    const int64_t shape[1] = {8};
    parity_picture_init(&p, shape, 1);
    for (int i = 0; i < 8; i++)
        parity_picture_add_ulps(&p, i,
                                i == 3   ? 1.0
                                : i == 5 ? 6.0
                                : i == 6 ? (double)NAN
                                         : 0.0,
                                i < 3 || i == 4 || i == 7);
    cr_assert_eq(parity_report_create(&r), ASSAY_OK);
    parity_result x =
        result(PARITY_CHECK_BITWISE, "tp2", "", "repeat", PARITY_FAIL, (double)INFINITY, (double)INFINITY);
    add_drawn(r, &x, (parity_drawn){.picture = &p});
    char *text = page_of(r, NULL);
    expect(text, "In this comparison 3 of 8 elements differ, of [8]");
    expect(text, "Distance in units of the last place, of integers in ones: 5 of 8 elements are equal");
    expect(text, "<title>equal: 5 elements</title>");
    expect(text, "<title>at most 1 ulp: 1 elements</title>");
    expect(text, "<title>at most 8 ulp: 1 elements</title>");
    expect(text, "<title>not finite: 1 elements</title>");
    cr_expect_null(strstr(text, "Error over bound"));
    free(text);
    parity_report_destroy(r);
}

/* --- every check has a heat map ----------------------------------------------------------------------------- */

static void add_whole(parity_report *r, const char *precision, const char *tensor, double share)
{
    parity_result x =
        result(PARITY_CHECK_WHOLE, "tp2", "", "", share > 1.0 ? PARITY_FAIL : PARITY_PASS, share, share);
    snprintf(x.precision, sizeof x.precision, "%s", precision);
    snprintf(x.tensor, sizeof x.tensor, "%s", tensor);
    add(r, &x);
}

Test(parity_page, every_check_has_a_map_of_layers)
{
    parity_report *r = mixed();
    add_whole(r, "bf16", "decoder.layers.1.mlp.linear_fc1.weight.main_grad", 0.25);
    add_whole(r, "bf16", "decoder.layers.1.mlp.linear_fc1.weight.exp_avg_sq", 0.5);
    add_whole(r, "bf16", "decoder.layers.0.mlp.linear_fc1.weight.exp_avg", 7.5);
    add_whole(r, "fp32", "decoder.layers.0.mlp.linear_fc1.weight.main_param", 0.0);
    parity_result x = result(PARITY_CHECK_ROUTING, "tp2", "decoder.layers.2.mlp.router", "router_fwd",
                             PARITY_SKIP, 0.0, 0.0);
    add(r, &x);
    char *text = page_of(r, NULL);
    /* Columns by precision and layer, whatever the order of the results; states of a parameter are one row. */
    expect(text, "<span>other, bf16</span><th><span>layer 0, bf16</span><th><span>layer 1, "
                 "bf16</span><th><span>layer 0, "
                 "fp32</span><tbody>");
    expect(text,
           "<tr\n><td>mlp.linear_fc1.weight<td><td class=hv><a href=#f10>7.5</a><td class=hw>.500<td>=");
    expect(text, "<details open><summary>whole: <b class=bad>2 of 5 claims fail</b>");
    expect(text, "<details open><summary>plan: <b class=bad>1 of 1 claims fail</b>");
    expect(text, "<tr\n><td>all_reduce<td class=hv><a href=#f7>&infin;</a>");
    expect(text, "<details><summary>routing: 1 claim, none fails, <b class=skip>1 not checked</b>");
    expect(text, "<tr\n><td>router_fwd y<td class=hs>?");
    cr_expect_null(strstr(text, "<summary>flow: "), "what was not asked has none");
    free(text);
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
    static const char *const heads[] = {hostile, NULL};
    const parity_picture p = picture();
    parity_excerpt e;
    parity_excerpt_begin(&e, heads, "%s", hostile);
    parity_excerpt_add(&e, PARITY_ROW_WRONG);
    parity_excerpt_cell(&e, 0, "%s", hostile);
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
        add_drawn(r, &x,
                  (parity_drawn){.picture = k == 0 ? &p : NULL,
                                 .excerpt = k == 0 ? &e : NULL,
                                 .curve = k == 1 ? &curve : NULL});
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
    parity_excerpt e = excerpt();
    while (parity_excerpt_add(&e, PARITY_ROW_WRONG))
        for (int c = 0; c < 3; c++)
            parity_excerpt_cell(&e, c, "%0*d", PARITY_EXCERPT_CELL - 1, c);
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
        add_drawn(r, &x, (parity_drawn){.picture = &p, .excerpt = &e});
    }
    char *text = page_of(r, NULL);
    cr_expect_eq(occurrences(text, "<div class=\"card\""), 60, "every combination's first failure");
    cr_expect_eq(occurrences(text, "<li id=f"), 60 + 59 * 4);
    expect(text, "95 more are in results.jsonl");
    free(text);
    free(read_whole("index.html", &bytes));
    cr_expect_lt(bytes, 1500000, "%llu bytes", (unsigned long long)bytes);
    int64_t pictures = 0, excerpts = 0;
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        pictures += parity_report_drawn(r, parity_report_at(r, i)).picture != NULL;
        excerpts += parity_report_drawn(r, parity_report_at(r, i)).excerpt != NULL;
    }
    cr_expect_eq(pictures, PARITY_PICTURES);
    cr_expect_eq(excerpts, PARITY_EXCERPTS);
    parity_report_destroy(r);
}
