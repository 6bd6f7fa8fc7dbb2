/* Functions of a device against their documented error, and what the probe says to a certificate. */
#include "parity/certify/probe.h"

#include "core/base/file.h"
#include "parity/run/engine.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROBE_NAME(name, text) text,
static const char *const names[] = {ASSAY_PROBE_FUNCTION_MAP(PROBE_NAME)};
/* CUDA C++ Programming Guide, mathematical functions, single precision; sigmoid as 1/(1 + exp(-x)) composed of them. */
static const double documented[] = {2.0, 1.0, 2.0, 6.0, 2.0, 2.0, 2.0, 2.0};
enum { AT_ONCE = 1 << 16 };

void probe_begin(certify_probe *p, uint32_t stride)
{
    memset(p, 0, sizeof *p);
    p->stride = stride;
    for (int f = 0; f < ASSAY_PROBE_FUNCTIONS; f++) {
        p->function[f].name = names[f];
        p->function[f].documented = documented[f];
    }
}

static double truth_of(assay_probe_function f, double x)
{
    switch (f) {
    case ASSAY_PROBE_EXP:
        return exp(x);
    case ASSAY_PROBE_LOG:
        return log(x);
    case ASSAY_PROBE_RSQRT:
        return 1.0 / sqrt(x);
    case ASSAY_PROBE_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case ASSAY_PROBE_SIN:
        return sin(x);
    case ASSAY_PROBE_COS:
        return cos(x);
    case ASSAY_PROBE_TANH:
        return tanh(x);
    default:
        return erf(x);
    }
}

/* Error in units of F32's last place at the truth.  Below the smallest normal number a result may be flushed: one such number is
 * the unit there, of exp and sigmoid alone. */
static double error_of(assay_probe_function f, double found, double truth)
{
    const double least = 0x1p-126, most = 0x1.fffffep127;
    if (isnan(truth) || isnan(found))
        return isnan(truth) && isnan(found) ? 0.0 : (double)INFINITY;
    const bool flushed = (f == ASSAY_PROBE_EXP || f == ASSAY_PROBE_SIGMOID) && fabs(truth) < least;
    const double unit = flushed ? least
                                : ref_ulp(truth < -most  ? -most
                                          : truth > most ? most
                                                         : truth,
                                          ASSAY_F32);
    if (isinf(found) && isinf(truth))
        return found == truth ? 0.0 : (double)INFINITY;
    if (isinf(found)) /* what rounds there, and what lies as near to the end as an error reaches */
        return found * truth > 0.0 && fabs(truth) > most - 2.0 * unit ? 1.0 : (double)INFINITY;
    return fabs(found - truth) / unit;
}

void probe_judge_values(certify_function *f, assay_probe_function which, uint32_t first, uint32_t stride,
                        const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = first + stride * (uint32_t)i;
        float x;
        memcpy(&x, &bits, sizeof x);
        const double truth = truth_of(which, (double)x), error = error_of(which, (double)y[i], truth);
        f->tried++;
        if (error > f->largest || (f->tried == 1 && error == 0.0)) {
            f->largest = error;
            f->at = bits;
        }
        if (error <= f->documented || f->outside++ > 0)
            continue;
        snprintf(f->first, sizeof f->first, "%s(%.9g) is %.9g, expected %.9g (%.3g units, documented %g)",
                 f->name, (double)x, (double)y[i], truth, error, f->documented);
    }
}

static assay_status read_answers(FILE *f, const char *path, bool products, const assay_probe_arguments *x,
                                 int n, certify_probe *out)
{
    const size_t tiles = (size_t)probe_products() * ASSAY_PROBE_TILE;
    float *results = malloc((tiles > AT_ONCE ? tiles : AT_ONCE) * sizeof *results);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(results != NULL, ASSAY_OUT_OF_MEMORY, "probe");
    ASSAY_CHECK_GOTO(!products || fread(results, sizeof *results, tiles, f) == tiles, ASSAY_FORMAT, st, done,
                     "%s: expected %zu results", path, tiles);
    if (products)
        probe_judge_matrix(results, &out->matrix);
    for (int k = 0; k < n; k++)
        for (int64_t at = 0; at < x[k].count; at += AT_ONCE) {
            const int64_t part = x[k].count - at < AT_ONCE ? x[k].count - at : AT_ONCE;
            ASSAY_CHECK_GOTO(fread(results, sizeof *results, (size_t)part, f) == (size_t)part, ASSAY_FORMAT,
                             st, done, "%s: expected %lld values of %s", path, (long long)x[k].count,
                             names[x[k].function]);
            probe_judge_values(&out->function[x[k].function], (assay_probe_function)x[k].function,
                               x[k].first + x[k].stride * (uint32_t)at, x[k].stride, results, part);
        }
    ASSAY_CHECK_GOTO(fgetc(f) == EOF, ASSAY_FORMAT, st, done, "%s: more than was asked for", path);
done:
    free(results);
    return st;
}

/* One run of the engine. */
static assay_status ask_engine(const parity_engine *e, double limit, const char *work, bool products,
                               const assay_probe_arguments *x, int n, certify_probe *out)
{
    char request[ASSAY_PATH], answer[ASSAY_PATH], log[ASSAY_PATH], request_option[ASSAY_PATH + 16],
        out_option[ASSAY_PATH + 16], *bytes = NULL;
    const char *extra[] = {request_option, out_option, NULL};
    size_t size = 0;
    double wall;
    assay_train_options train;
    snprintf(request, sizeof request, "%.900s/probe.request", work);
    snprintf(answer, sizeof answer, "%.900s/probe.answer", work);
    snprintf(log, sizeof log, "%.900s/probe.log", work);
    snprintf(request_option, sizeof request_option, "--request=%s", request);
    snprintf(out_option, sizeof out_option, "--out=%s", answer);
    ASSAY_TRY(probe_questions(products, x, n, &bytes, &size));
    const assay_status written = assay_write_file(request, bytes, size);
    free(bytes);
    ASSAY_TRY(written);
    assay_train_options_default(&train);
    ASSAY_TRY(parity_engine_run(e, "probe", &train, extra, log, true, limit, &wall));
    FILE *f = fopen(answer, "rbe");
    ASSAY_CHECK(f != NULL, ASSAY_IO, "%s: cannot be read", answer);
    const assay_status st = read_answers(f, answer, products, x, n, out);
    (void)fclose(f);
    (void)unlink(answer);
    return st;
}

/* Many arguments in slices of 2^26, each a file of 256 MB. */
static assay_status ask_slices(const parity_engine *e, double limit, const char *work, int64_t count,
                               certify_probe *out)
{
    const int64_t slice = (int64_t)1 << 26;
    for (int f = 0; f < ASSAY_PROBE_FUNCTIONS; f++)
        for (int64_t at = 0; at < count; at += slice) {
            const assay_probe_arguments x = {.function = f,
                                             .first = out->stride * (uint32_t)at,
                                             .stride = out->stride,
                                             .count = count - at < slice ? count - at : slice};
            ASSAY_TRY(ask_engine(e, limit, work, false, &x, 1, out));
        }
    return ASSAY_OK;
}

assay_status probe_run(const certify_options *o, const char *work, uint32_t stride, certify_probe *out)
{
    assay_probe_arguments all[ASSAY_PROBE_FUNCTIONS];
    const int64_t count = (int64_t)((((uint64_t)1 << 32) + stride - 1) / stride), at_once = (int64_t)1 << 23;
    parity_engine e;
    probe_begin(out, stride);
    for (int f = 0; f < ASSAY_PROBE_FUNCTIONS; f++)
        all[f] = (assay_probe_arguments){.function = f, .stride = stride, .count = count};
    ASSAY_TRY(parity_engine_find(o->engine, o->program[0] != '\0' ? o->program : NULL, &e));
    assay_status st =
        ask_engine(&e, o->limit, work, true, all, count <= at_once ? ASSAY_PROBE_FUNCTIONS : 0, out);
    if (st == ASSAY_OK && count > at_once)
        st = ask_slices(&e, o->limit, work, count, out);
    parity_engine_free(&e);
    return st;
}

/* --- verdicts ------------------------------------------------------------------------------------------------ */
bool probe_good(const certify_probe *p, char *why, size_t capacity)
{
    const certify_matrix *m = &p->matrix;
    for (int k = 0; k < ASSAY_PROBE_FUNCTIONS; k++)
        if (p->function[k].outside > 0) {
            snprintf(why, capacity, "%s, and %lld more of %lld", p->function[k].first,
                     (long long)(p->function[k].outside - 1), (long long)p->function[k].tried);
            return false;
        }
    const char *what = !m->products_exact              ? "products of bf16 numbers are not exact"
                       : !m->uniform                   ? "equal sums differ over a tile"
                       : m->guard_bits < 1             ? "without guard bits nothing more can be told"
                       : !m->accumulator_inside        ? "the accumulator is not aligned with the products"
                       : m->terms == 0                 ? "which products enter one sum cannot be told"
                       : strcmp(m->by, "unknown") == 0 ? "what products are aligned by cannot be told"
                       : m->predicted < PROBE_RANDOM   ? "random sums are not those of what was measured"
                                                       : NULL;
    if (what != NULL)
        snprintf(why, capacity,
                 "the matrix units: %s (%d terms, guard bits %d, %s by %s, result %s; %d of %d random sums)",
                 what, m->terms, m->guard_bits, m->alignment, m->by, m->result, m->predicted, PROBE_RANDOM);
    return what == NULL;
}

bool probe_covers(const certify_probe *p, const assay_arith *a, char *why, size_t capacity)
{
    const certify_matrix *m = &p->matrix;
    if (a->order != ASSAY_ORDER_TENSOR_CORE || (m->terms == a->k_step && m->guard_bits >= a->guard_bits))
        return true;
    snprintf(why, capacity,
             "declared are k_step %d and guard bits %d, the matrix units have %d terms and guard bits %d",
             a->k_step, a->guard_bits, m->terms, m->guard_bits);
    return false;
}

void probe_hold(const certify_probe *p, const assay_trace *trace, certify_result *r)
{
    char why[2 * PROBE_TEXT];
    r->board.trial[CERTIFY_PROBE].calls++;
    if (!probe_good(p, why, sizeof why)) {
        certify_bad(&r->board, CERTIFY_PROBE, "%s", why);
        return;
    }
    for (int64_t i = 0; i < assay_trace_n_ops(trace, 0); i++) {
        const assay_trace_op *t = assay_trace_op_at(trace, 0, i);
        for (int k = 0; k < t->n_outputs && strcmp(t->op, r->op->name) == 0; k++)
            if (!probe_covers(p, assay_declaration_of(&t->arith, t->outputs[k].slot), why, sizeof why)) {
                certify_bad(&r->board, CERTIFY_PROBE, "%s of %.100s: %s", t->outputs[k].slot, t->instance,
                            why);
                return;
            }
    }
}

json_t *probe_json(const certify_probe *p)
{
    const certify_matrix *m = &p->matrix;
    json_t *functions = json_object();
    for (int k = 0; k < ASSAY_PROBE_FUNCTIONS; k++) {
        const certify_function *f = &p->function[k];
        json_t *largest = isfinite(f->largest) ? json_real(f->largest) : json_string("infinite");
        json_object_set_new(functions, f->name,
                            json_pack("{s:f, s:o, s:I, s:I}", "documented_ulp", f->documented, "largest_ulp",
                                      largest, "tried", (json_int_t)f->tried, "outside",
                                      (json_int_t)f->outside));
    }
    return json_pack("{s:{s:i, s:i, s:s, s:s, s:s, s:i}, s:o, s:I}", "matrix", "terms", m->terms,
                     "guard_bits", m->guard_bits, "alignment", m->alignment, "by", m->by, "result", m->result,
                     "predicted", m->predicted, "functions", functions, "stride", (json_int_t)p->stride);
}

void probe_print(const certify_probe *p, FILE *out)
{
    const certify_matrix *m = &p->matrix;
    char why[2 * PROBE_TEXT] = "", bits[32];
    snprintf(bits, sizeof bits, m->guard_bits >= PROBE_EXACT_BITS ? "at least %d" : "%d", m->guard_bits);
    fprintf(
        out,
        "matrix units, bf16: %d products enter one sum, guard bits %s, aligned %s by %s, result %s; %d of %d "
        "random sums "
        "are so\n\n",
        m->terms, bits, m->alignment, m->by, m->result, m->predicted, PROBE_RANDOM);
    fprintf(out, "  %-8s %12s %10s %10s  worst at\n", "function", "arguments", "largest", "documented");
    for (int k = 0; k < ASSAY_PROBE_FUNCTIONS; k++) {
        const certify_function *f = &p->function[k];
        float x;
        memcpy(&x, &f->at, sizeof x);
        fprintf(out, "%s %-8s %10lld %10.4f %10g  %.9g\n", f->outside > 0 ? "FAIL" : "pass", f->name,
                (long long)f->tried, f->largest, f->documented, (double)x);
    }
    if (!probe_good(p, why, sizeof why))
        fprintf(out, "\nFAIL %s\n", why);
}
