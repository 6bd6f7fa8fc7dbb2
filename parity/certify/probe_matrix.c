/* How a matrix unit adds, from sums that tell: Fasi, Higham, Mikaitis & Pranesh 2021, Khattak & Mikaitis 2025 (arXiv 2512.07004).
 *
 * The largest product is 1; a second one lies below the accumulator's last bit; a third, -1, leaves what of it was kept.  With 1.5 x 1.5,
 * whose exponent is one more than those of its factors together, in place of 1 the same tells which of the two counts. */
#include "parity/certify/probe.h"

#include "core/base/philox.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Questions in the order in which they are asked. */
enum {
    AT_PRODUCT = 0,                                   /* (1 + 2^-7)^2 */
    AT_GUARD = 1,                                     /* 1 + 2^-(23+j) - 1, j = 0 ... */
    AT_ALIGN = AT_GUARD + PROBE_EXACT_BITS + 1,       /* 1 + 1.75 2^-(23+j) - 1 */
    AT_ALIGN_MINUS = AT_ALIGN + PROBE_EXACT_BITS + 1, /* 1 - 1.75 2^-(23+j) - 1 */
    AT_RESULT = AT_ALIGN_MINUS + PROBE_EXACT_BITS + 1,
    AT_RESULT_MINUS = AT_RESULT + 1,
    AT_INSIDE = AT_RESULT_MINUS + 1,      /* c = 1: is it aligned with the products? */
    AT_TERMS = AT_INSIDE + 1,             /* 1, 2^-24 and -1 at place j */
    AT_BY = AT_TERMS + ASSAY_PROBE_TERMS, /* 2.25 + 2^-(23+j) - 2.25 */
    AT_RANDOM = AT_BY + PROBE_EXACT_BITS + 1,
    QUESTIONS = AT_RANDOM + PROBE_RANDOM
};

int64_t probe_products(void)
{
    return QUESTIONS;
}

static uint16_t bf16(double x)
{
    const float f = (float)ref_round(x, ASSAY_BF16);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static double real(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static void put(assay_probe_product *q, int place, double a, double b)
{
    q->a[place] = bf16(a);
    q->b[place] = bf16(b);
}

static void ask_random(assay_probe_product *q, int number)
{
    for (int k = 0; k < ASSAY_PROBE_TERMS; k++) {
        const uint64_t at = (uint64_t)(number * ASSAY_PROBE_TERMS + k);
        const double a = (double)assay_philox_below(11, 1, at, 512) / 128.0 - 2.0,
                     b = (double)assay_philox_below(11, 2, at, 512) / 128.0 - 2.0;
        put(q, k, a, b * ldexp(1.0, -(int)assay_philox_below(11, 3, at, (uint64_t)(1 + number % 24))));
    }
    q->c = number % 2 == 0 ? 0.0f
                           : (float)((double)assay_philox_below(11, 4, (uint64_t)number, 1 << 24) * 0x1p-22);
}

static void ask(assay_probe_product *q, int i)
{
    memset(q, 0, sizeof *q);
    if (i >= AT_RANDOM) {
        ask_random(q, i - AT_RANDOM);
    } else if (i >= AT_BY) {
        put(q, 0, 1.5, 1.5);
        put(q, 1, ldexp(1.0, -23 - (i - AT_BY)), 1.0);
        put(q, 2, -1.5, 1.5);
    } else if (i >= AT_TERMS) {
        const int j = i - AT_TERMS;
        put(q, 0, 1.0, 1.0);
        put(q, 1, 0x1p-24, 1.0);
        if (j > 1)
            put(q, j, -1.0, 1.0);
    } else if (i == AT_INSIDE) {
        q->c = 1.0f;
        put(q, 0, 0x1p-24, 1.0);
        put(q, 1, -1.0, 1.0);
    } else if (i == AT_RESULT || i == AT_RESULT_MINUS) {
        const double sign = i == AT_RESULT ? 1.0 : -1.0;
        put(q, 0, sign, 1.0);
        put(q, 1, sign * 0.75 * 0x1p-23, 1.0);
    } else if (i >= AT_GUARD) {
        const int j = (i - AT_GUARD) % (PROBE_EXACT_BITS + 1);
        const double size = i < AT_ALIGN ? 1.0 : i < AT_ALIGN_MINUS ? 1.75 : -1.75;
        put(q, 0, 1.0, 1.0);
        put(q, 1, size * ldexp(1.0, -23 - j), 1.0);
        put(q, 2, -1.0, 1.0);
    } else {
        put(q, 0, 1.0 + 0x1p-7, 1.0 + 0x1p-7);
    }
}

assay_status probe_questions(bool products, const assay_probe_arguments *x, int n_functions, char **bytes,
                             size_t *n)
{
    assay_probe_header h = {.products = products ? QUESTIONS : 0, .functions = n_functions};
    snprintf(h.magic, sizeof h.magic, "%s", ASSAY_PROBE_MAGIC);
    *n = sizeof h + (size_t)h.products * sizeof(assay_probe_product) + (size_t)n_functions * sizeof *x;
    char *p = malloc(*n);
    *bytes = p;
    ASSAY_CHECK(p != NULL, ASSAY_OUT_OF_MEMORY, "probe");
    memcpy(p, &h, sizeof h);
    p += sizeof h;
    for (int i = 0; i < h.products; i++, p += sizeof(assay_probe_product)) {
        assay_probe_product q;
        ask(&q, i);
        memcpy(p, &q, sizeof q);
    }
    if (n_functions > 0)
        memcpy(p, x, (size_t)n_functions * sizeof *x);
    return ASSAY_OK;
}

/* --- answers ------------------------------------------------------------------------------------------------ */
static double of(const float *results, int i)
{
    return (double)results[(size_t)i * ASSAY_PROBE_TILE];
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static const char *rounding_of(double up, double down, double quantum)
{
    if (up == quantum && down == -quantum)
        return "truncated";
    if (up == 2.0 * quantum && down == -2.0 * quantum)
        return "nearest";
    return up == quantum && down == -2.0 * quantum ? "down" : "unknown";
}

static double cut(double x, double grid, const char *how)
{
    return (strcmp(how, "nearest") == 0 ? rint(x / grid)
            : strcmp(how, "down") == 0  ? floor(x / grid)
                                        : trunc(x / grid)) *
           grid;
}

/* The exponent of a product that is not 0. */
static int exponent(const certify_matrix *m, double a, double b)
{
    return strcmp(m->by, "factors") == 0 ? ilogb(a) + ilogb(b) : ilogb(a * b);
}

/* A sum as the description has it. */
static double predict(const certify_matrix *m, const assay_probe_product *q)
{
    double c = (double)q->c;
    for (int s = 0; s < ASSAY_PROBE_TERMS; s += m->terms) {
        double sum = 0.0;
        int largest = c != 0.0 ? ilogb(c) : INT_MIN;
        for (int k = s; k < s + m->terms && k < ASSAY_PROBE_TERMS; k++)
            if (real(q->a[k]) * real(q->b[k]) != 0.0 && exponent(m, real(q->a[k]), real(q->b[k])) > largest)
                largest = exponent(m, real(q->a[k]), real(q->b[k]));
        if (largest == INT_MIN)
            continue;
        const double grid = ldexp(1.0, largest - 23 - m->guard_bits);
        const bool exact = m->guard_bits >= PROBE_EXACT_BITS;
        sum = exact ? c : cut(c, grid, m->alignment);
        for (int k = s; k < s + m->terms && k < ASSAY_PROBE_TERMS; k++) {
            const double p = real(q->a[k]) * real(q->b[k]);
            sum += exact ? p : cut(p, grid, m->alignment);
        }
        c = sum == 0.0 ? 0.0 : cut(sum, ldexp(1.0, ilogb(sum) - 23), m->result);
    }
    return c;
}

static int count_terms(const float *results)
{
    int n = 2;
    while (n < ASSAY_PROBE_TERMS && of(results, AT_TERMS + n) == 0x1p-24)
        n++;
    for (int j = n; j < ASSAY_PROBE_TERMS; j++)
        if (of(results, AT_TERMS + j) == 0x1p-24)
            return 0; /* no neighbours: nothing here has a bound for that */
    return n > 2 ? n : 0;
}

/* Bits below 2^-22 that a sum keeps, less one: of the questions from `first` on. */
static int count_kept(const float *results, int first)
{
    int kept = -1;
    while (kept < PROBE_EXACT_BITS && of(results, first + kept + 1) == ldexp(0x1p-23, -(kept + 1)))
        kept++;
    return kept;
}

void probe_judge_matrix(const float *results, certify_matrix *out)
{
    const double unit = 0x1p-23;
    memset(out, 0, sizeof *out);
    out->products_exact = of(results, AT_PRODUCT) == (1.0 + 0x1p-7) * (1.0 + 0x1p-7);
    out->uniform = true;
    for (int64_t i = 0; i < QUESTIONS; i++)
        for (int k = 1; k < ASSAY_PROBE_TILE; k++)
            out->uniform = out->uniform && bits_of(results[i * ASSAY_PROBE_TILE + k]) ==
                                               bits_of(results[i * ASSAY_PROBE_TILE]);
    const int kept = count_kept(results, AT_GUARD), beside = count_kept(results, AT_BY);
    out->guard_bits = kept;
    const bool exact = kept >= PROBE_EXACT_BITS;
    snprintf(out->by, sizeof out->by, "%s",
             exact && beside >= PROBE_EXACT_BITS - 1 ? "exact" /* 2.25 takes a bit of the double */
             : !exact && beside == kept              ? "factors"
             : !exact && beside == kept - 1          ? "value"
                                                     : "unknown");
    snprintf(out->alignment, sizeof out->alignment, "%s",
             exact      ? "exact"
             : kept < 0 ? "unknown"
                        : rounding_of(of(results, AT_ALIGN + kept), of(results, AT_ALIGN_MINUS + kept),
                                      ldexp(unit, -kept)));
    const double up = of(results, AT_RESULT), down = of(results, AT_RESULT_MINUS);
    snprintf(out->result, sizeof out->result, "%s",
             up == 1.0 && down == -1.0                   ? "truncated"
             : up == 1.0 + unit && down == -(1.0 + unit) ? "nearest"
             : up == 1.0 && down == -(1.0 + unit)        ? "down"
                                                         : "unknown");
    out->accumulator_inside = of(results, AT_INSIDE) == 0x1p-24;
    out->terms = count_terms(results);
    for (int i = 0; i < PROBE_RANDOM && out->terms > 0; i++) {
        assay_probe_product q;
        ask(&q, AT_RANDOM + i);
        out->predicted += predict(out, &q) == of(results, AT_RANDOM + i);
    }
}
