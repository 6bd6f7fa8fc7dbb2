/* assay probe: known answers of the simulator's matrix units, planted faults of units and functions, and no certificate where the declared bound
 * does not hold on the device. */
#include "parity/certify/probe.h"
#include "tests/support/certify.h"

#include <math.h>

TestSuite(certify_probe, .init = certify_setup, .fini = cli_teardown, .timeout = 300);

static void model(const char *terms, const char *guard_bits)
{
    setenv("ASSAY_SIM_MATRIX_TRUNCATES", "1", 1);
    setenv("ASSAY_SIM_MATRIX_TERMS", terms, 1);
    setenv("ASSAY_SIM_MATRIX_GUARD_BITS", guard_bits, 1);
}

/* The unit of the simulator is known; the probe has to find it. */
Test(certify_probe, known_answers)
{
    static const char *const rows[][2] = {{"16", "2"}, {"16", "1"}, {"16", "7"}, {"8", "2"}, {"4", "3"}};
    char words[128];
    cli_result r = cli_run("probe --engine sim --stride 1000003");
    cli_expect_success(&r, "probe");
    cr_expect(strstr(r.out, "16 products enter one sum, guard bits at least 29, aligned exact by exact, "
                            "result nearest; 64 of 64") != NULL,
              "%s", r.out);
    cli_free(&r);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        model(rows[i][0], rows[i][1]);
        snprintf(words, sizeof words,
                 "%s products enter one sum, guard bits %s, aligned truncated by value, result truncated; 64 "
                 "of 64",
                 rows[i][0], rows[i][1]);
        r = cli_run("probe --engine sim --stride 1000003 --json found.json");
        cli_expect_success(&r, words);
        cr_expect(strstr(r.out, words) != NULL, "%s in\n%s", words, r.out);
        cli_free(&r);
    }
    model("16", "2");
    setenv("ASSAY_SIM_MATRIX_BY", "factors", 1);
    r = cli_run("probe --engine sim --stride 1000003 --json found.json");
    cli_expect_success(&r, "aligned by factors");
    cr_expect(strstr(r.out, "16 products enter one sum, guard bits 2, aligned truncated by factors, result "
                            "truncated; 64 of 64"),
              "%s", r.out);
    cli_free(&r);
    setenv("ASSAY_SIM_MATRIX_BY", "both", 1);
    r = cli_run("probe --engine sim --stride 1000003");
    cr_expect(r.code != 0 &&
                  (strstr(r.err, "expected value or factors") || strstr(r.out, "expected value or factors")),
              "%s%s", r.out, r.err);
    cli_free(&r);
    unsetenv("ASSAY_SIM_MATRIX_BY");
    model("4", "3");
    r = cli_run("probe --engine sim --stride 1000003 --json found.json");
    cli_expect_success(&r, "the last of the rows again");
    cli_free(&r);
    char *json = cli_read(cli_file("found.json"));
    cr_expect(strstr(json, "\"guard_bits\": 3") != NULL, "%s", json);
    free(json);
    model("16", "0");
    r = cli_run("probe --engine sim --stride 1000003");
    cr_expect(r.code == 1 && strstr(r.out, "without guard bits") != NULL, "%s", r.out);
    cli_free(&r);
}

/* A class is covered by units of as many terms and no fewer guard bits. */
Test(certify_probe, classes)
{
    const certify_probe p = {.matrix = {.terms = 16, .guard_bits = 2}};
    const struct {
        int k_step, guard_bits;
        bool covered;
    } rows[] = {{16, 2, true}, {16, 1, true}, {16, 3, false}, {8, 2, false}, {32, 2, false}};
    char why[2 * PROBE_TEXT];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_arith a = assay_arith_elementwise();
        cr_expect(probe_covers(&p, &a, why, sizeof why));
        a.order = ASSAY_ORDER_TENSOR_CORE;
        a.k_step = rows[i].k_step;
        a.guard_bits = rows[i].guard_bits;
        cr_expect_eq(probe_covers(&p, &a, why, sizeof why), rows[i].covered, "%zu", i);
    }
}

/* Units that are not those of the declared class: nothing is certified, whatever the numbers say. */
Test(certify_probe, certificate)
{
    cli_result r = cli_run("keygen");
    cli_expect_success(&r, "keygen");
    cli_free(&r);
    model("8", "2");
    r = cli_run("certify --seeds 1 --engine sim --operation grouped_linear_fwd --out certs");
    cr_expect(r.code == 1 && certify_failed(&r, "probe") &&
                  strstr(r.out, "have 8 terms and guard bits 2") != NULL,
              "%s%s", r.out, r.err);
    cr_expect(!cli_exists(cli_file("certs/grouped_linear_fwd-grouped_linear_fwd-sim.json")));
    cli_free(&r);
    model("16", "2");
    r = cli_run("certify --seeds 1 --engine sim --operation grouped_linear_fwd --out certs");
    cli_expect_success(&r, "the declared class");
    cr_expect(certify_passed(&r, "probe"), "%s", r.out);
    cli_free(&r);
    char *text = cli_read(cli_file("certs/grouped_linear_fwd-grouped_linear_fwd-sim.json"));
    cr_expect(strstr(text, "\"matrix\":{\"alignment\":\"truncated\",\"by\":\"value\",\"guard_bits\":2") !=
                  NULL,
              "%s", text);
    free(text);
}

/* --- planted faults ------------------------------------------------------------------------------------------------ */

/* Values of a function as a good device has them. */
static float good_value(assay_probe_function f, float x)
{
    switch (f) {
    case ASSAY_PROBE_EXP:
        return expf(x);
    case ASSAY_PROBE_LOG:
        return logf(x);
    case ASSAY_PROBE_TANH:
        return tanhf(x);
    default:
        return erff(x);
    }
}

typedef enum { NOTHING, THREE_UNITS, NAN_SWALLOWED, NO_INFINITY, NO_NAN, FLUSHED } fault;

/* How many of some arguments are outside with the fault planted. */
static int64_t outside(assay_probe_function which, fault what)
{
    static float y[1 << 16];
    certify_probe p;
    const uint32_t stride = 65537;
    probe_begin(&p, stride);
    for (uint32_t i = 0; i < 1u << 16; i++) {
        const uint32_t bits = stride * i;
        float x;
        memcpy(&x, &bits, sizeof x);
        y[i] = good_value(which, x);
        if (what == THREE_UNITS && i == 16130) /* near 0.5 */
            y[i] = nextafterf(nextafterf(nextafterf(y[i], INFINITY), INFINITY), INFINITY);
        if (what == NAN_SWALLOWED && isnan(x))
            y[i] = 0.0f;
        if (what == NO_INFINITY && isinf(y[i]))
            y[i] = copysignf(0x1.fffffep127f, y[i]);
        if (what == NO_NAN && isnan(y[i]) && !isnan(x))
            y[i] = 0.0f;
        if (what == FLUSHED && fabsf(y[i]) < 0x1p-126f)
            y[i] = 0.0f;
    }
    probe_judge_values(&p.function[which], which, 0, stride, y, 1 << 16);
    cr_expect(p.function[which].outside == 0 || strlen(p.function[which].first) > 20);
    return p.function[which].outside;
}

Test(certify_probe, functions)
{
    const assay_probe_function all[] = {ASSAY_PROBE_EXP, ASSAY_PROBE_LOG, ASSAY_PROBE_TANH, ASSAY_PROBE_ERF};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cr_expect_eq(outside(all[i], NOTHING), 0);
        cr_expect_eq(outside(all[i], THREE_UNITS), 1, "%zu", i);
        cr_expect_gt(outside(all[i], NAN_SWALLOWED), 0);
    }
    cr_expect_gt(outside(ASSAY_PROBE_EXP, NO_INFINITY), 0);
    cr_expect_gt(outside(ASSAY_PROBE_LOG, NO_NAN), 0);
    cr_expect_eq(outside(ASSAY_PROBE_EXP, FLUSHED), 0);
    cr_expect_gt(outside(ASSAY_PROBE_ERF, FLUSHED), 0);
}

/* x without what lies below 2^last. */
static double above(double x, int last)
{
    return ldexp(trunc(ldexp(x, -last)), last);
}

/* A unit of 16 terms and 2 guard bits that truncates.  of_factors: aligned to the largest sum of exponents of factors; else to the largest
 * product's. */
static float truncating_sum(const assay_probe_product *q, bool of_factors)
{
    double c = (double)q->c;
    for (int s = 0; s < ASSAY_PROBE_TERMS; s += 16) {
        double product[16], sum;
        int largest = c != 0.0 ? ilogb(c) : -2000;
        for (int k = 0; k < 16; k++) {
            float a, b;
            const uint32_t x = (uint32_t)q->a[s + k] << 16, y = (uint32_t)q->b[s + k] << 16;
            memcpy(&a, &x, 4);
            memcpy(&b, &y, 4);
            product[k] = (double)a * (double)b;
            if (product[k] != 0.0) {
                const int e = of_factors ? ilogbf(a) + ilogbf(b) : ilogb(product[k]);
                largest = e > largest ? e : largest;
            }
        }
        sum = above(c, largest - 25);
        for (int k = 0; k < 16; k++)
            sum += above(product[k], largest - 25);
        c = sum != 0.0 ? above(sum, ilogb(sum) - 23) : 0.0;
    }
    return (float)c;
}

enum unit { EXACT, BY_VALUE, BY_FACTORS };

/* Results of a unit; EXACT adds everything exactly and rounds once at the end of 32 terms. */
static void unit_results(float *results, enum unit unit)
{
    char *bytes;
    size_t n;
    cr_assert_eq(probe_questions(true, NULL, 0, &bytes, &n), ASSAY_OK);
    const char *at = bytes + sizeof(assay_probe_header);
    for (int64_t i = 0; i < probe_products(); i++, at += sizeof(assay_probe_product)) {
        assay_probe_product q;
        memcpy(&q, at, sizeof q);
        double sum = (double)q.c;
        for (int k = 0; k < ASSAY_PROBE_TERMS; k++) {
            float a, b;
            const uint32_t x = (uint32_t)q.a[k] << 16, y = (uint32_t)q.b[k] << 16;
            memcpy(&a, &x, 4);
            memcpy(&b, &y, 4);
            sum += (double)a * (double)b;
        }
        const float found = unit == EXACT ? (float)sum : truncating_sum(&q, unit == BY_FACTORS);
        for (int k = 0; k < ASSAY_PROBE_TILE; k++)
            results[i * ASSAY_PROBE_TILE + k] = found;
    }
    free(bytes);
}

static void exact_unit(float *results)
{
    unit_results(results, EXACT);
}

/* Which exponent counts is found out, and one description does not pass for the other: of the random sums 62 are those of both, as an
 * H200 has answered before it was asked. */
Test(certify_probe, aligned_by)
{
    const size_t n = (size_t)probe_products() * ASSAY_PROBE_TILE;
    float *results = malloc(n * sizeof *results), *other = malloc(n * sizeof *other);
    certify_matrix m;
    certify_probe p;
    char why[2 * PROBE_TEXT];
    cr_assert(results != NULL && other != NULL);
    probe_begin(&p, 65537);
    unit_results(results, BY_VALUE);
    unit_results(other, BY_FACTORS);
    probe_judge_matrix(results, &p.matrix);
    cr_expect(probe_good(&p, why, sizeof why), "%s", why);
    cr_expect_str_eq(p.matrix.by, "value");
    probe_judge_matrix(other, &m);
    cr_expect_str_eq(m.by, "factors");
    cr_expect(m.terms == 16 && m.guard_bits == 2 && m.predicted == PROBE_RANDOM, "%d", m.predicted);
    const size_t random = n - (size_t)PROBE_RANDOM * ASSAY_PROBE_TILE;
    memcpy(results + random, other + random, (n - random) * sizeof *results);
    probe_judge_matrix(results, &p.matrix);
    cr_expect(!probe_good(&p, why, sizeof why) && strstr(why, "62 of 64 random sums") != NULL, "%s", why);
    free(results);
    free(other);
}

Test(certify_probe, units)
{
    const size_t n = (size_t)probe_products() * ASSAY_PROBE_TILE;
    float *results = malloc(n * sizeof *results);
    certify_probe p;
    char why[2 * PROBE_TEXT];
    cr_assert(results != NULL);
    exact_unit(results);
    probe_begin(&p, 65537);
    probe_judge_matrix(results, &p.matrix);
    cr_expect(probe_good(&p, why, sizeof why), "%s", why);
    cr_expect_eq(p.matrix.terms, 32);
    /* one lane of one tile */
    results[n - 3] = nextafterf(results[n - 3], INFINITY);
    probe_judge_matrix(results, &p.matrix);
    cr_expect(!probe_good(&p, why, sizeof why) && strstr(why, "differ over a tile") != NULL, "%s", why);
    /* the last random sum */
    exact_unit(results);
    for (size_t k = n - ASSAY_PROBE_TILE; k < n; k++)
        results[k] = nextafterf(results[k], INFINITY);
    probe_judge_matrix(results, &p.matrix);
    cr_expect(!probe_good(&p, why, sizeof why) && strstr(why, "63 of 64 random sums") != NULL, "%s", why);
    /* products rounded to bf16 */
    exact_unit(results);
    for (size_t k = 0; k < ASSAY_PROBE_TILE; k++)
        results[k] = 1.015625f;
    probe_judge_matrix(results, &p.matrix);
    cr_expect(!probe_good(&p, why, sizeof why) && strstr(why, "products") != NULL, "%s", why);
    free(results);
}
