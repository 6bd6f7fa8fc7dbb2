/* What a folder of PaddleNLP's holds, and what is wrong with it: the names, files and shapes (core/files/paddle.h), and here what
 * their values must be to each other. */
#include "parity/run/ckpt_paddle.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- findings ----------------------------------------------------------------------------------------------- */
typedef struct findings {
    int64_t wrong, notes;
    bool quiet;
    char first[1024]; /* that is wrong */
} findings;

static void on_finding(void *user, bool wrong, const char *text)
{
    findings *f = user;
    if (wrong && f->wrong == 0)
        snprintf(f->first, sizeof f->first, "%s", text);
    f->wrong += wrong;
    f->notes += !wrong;
    if (!f->quiet)
        printf("%s: %s\n", wrong ? "wrong" : "note", text);
}

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static void
say(findings *f, bool wrong, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    on_finding(f, wrong, text);
}

/* --- values ------------------------------------------------------------------------------------------------- */
static assay_status count_of(const assay_param_spec *p, int64_t *count)
{
    ASSAY_CHECK(assay_shape_count(p->shape, p->ndim, count), ASSAY_LIMIT, "%s: too large", p->name);
    return ASSAY_OK;
}

static assay_status read_role(const assay_paddle *p, assay_paddle_role role, int64_t i, void **out,
                              int64_t *count)
{
    const assay_param_spec *spec = &assay_paddle_spec(p)->params[i];
    *out = NULL;
    ASSAY_TRY(count_of(spec, count));
    const int64_t width = assay_dtype_bytes(assay_paddle_has(p, role, i));
    *out = malloc((size_t)(*count * width) + 1);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "%s", spec->name);
    return assay_paddle_read(p, role, i, *out);
}

static int64_t differing(const void *weight, assay_dtype dtype, const uint32_t *master, int64_t count,
                         int64_t *first)
{
    int64_t n = 0;
    for (int64_t k = 0; k < count; k++) {
        const bool same = dtype == ASSAY_F32
                              ? ((const uint32_t *)weight)[k] == master[k]
                              : ((const uint16_t *)weight)[k] == parity_paddle_rounded(master[k]);
        if (!same && n++ == 0)
            *first = k;
    }
    return n;
}

/* A weight is its master, rounded: else one of them is of another save. */
static assay_status check_master(const assay_paddle *p, int64_t i, findings *f)
{
    void *weight = NULL, *master = NULL;
    int64_t count = 0, first = 0;
    assay_status st = ASSAY_OK;
    const assay_dtype dtype = assay_paddle_has(p, ASSAY_PADDLE_WEIGHT, i);
    if (assay_paddle_facts_of(p)->masters_as_weights ||
        assay_paddle_has(p, ASSAY_PADDLE_MASTER, i) != ASSAY_F32 || dtype == ASSAY_DTYPE_COUNT ||
        dtype == ASSAY_F16)
        return ASSAY_OK;
    ASSAY_TRY_GOTO(read_role(p, ASSAY_PADDLE_WEIGHT, i, &weight, &count), st, done);
    ASSAY_TRY_GOTO(read_role(p, ASSAY_PADDLE_MASTER, i, &master, &count), st, done);
    const int64_t n = differing(weight, dtype, master, count, &first);
    if (n > 0)
        say(f, true,
            "%s: %lld of %lld weights are not their masters, rounded (the first at %lld): one of them is of "
            "another save, or changed",
            assay_paddle_spec(p)->params[i].name, (long long)n, (long long)count, (long long)first);
done:
    free(weight);
    free(master);
    return st;
}

/* A value of a state that no training leaves: NaN, infinity, a negative second moment. */
static assay_status check_moments(const assay_paddle *p, int64_t i, findings *f)
{
    for (int r = ASSAY_PADDLE_MOMENT1; r <= ASSAY_PADDLE_MOMENT2; r++) {
        void *data = NULL;
        int64_t count = 0, bad = 0;
        if (assay_paddle_has(p, (assay_paddle_role)r, i) != ASSAY_F32)
            continue;
        const assay_status st = read_role(p, (assay_paddle_role)r, i, &data, &count);
        const float *x = data;
        for (int64_t k = 0; k < count && st == ASSAY_OK; k++)
            bad += !isfinite(x[k]) || (r == ASSAY_PADDLE_MOMENT2 && x[k] < 0.0f);
        free(data);
        ASSAY_TRY(st);
        if (bad > 0)
            say(f, true, "%s/%s: %lld elements that no training leaves: NaN, infinite%s",
                assay_paddle_spec(p)->params[i].name, assay_paddle_role_name((assay_paddle_role)r),
                (long long)bad, r == ASSAY_PADDLE_MOMENT2 ? " or negative" : "");
    }
    return ASSAY_OK;
}

/* The decay rate, of at most four decimals, whose power step + 1 this is; 0: there is none; -1: the power has run out of digits. */
static double rate_of(float power, int64_t step)
{
    const double n = (double)step + 1.0, x = (double)power;
    if (!(x > 1e-30 && x < 1.0))
        return x == 0.0 || (x > 0.0 && x < 1.0) ? -1.0 : 0.0;
    const double nearest = rint(pow(x, 1.0 / n) * 1e4) / 1e4;
    const double relative = fabs(pow(nearest, n) / x - 1.0);
    return relative <= 1.2e-7 * n + 1e-6 ? nearest : 0.0;
}

typedef struct powers {
    float of[2];
    bool has;
} powers;

static bool same_bits(float a, float b)
{
    uint32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y;
}

static assay_status check_powers(const assay_paddle *p, findings *f, powers *out)
{
    static const char *const names[2] = {"beta1_pow_acc_0", "beta2_pow_acc_0"};
    float values[4096];
    for (int b = 0; b < 2; b++) {
        bool first = true;
        for (int64_t i = 0; i < assay_paddle_spec(p)->n_params; i++) {
            int64_t n = 0;
            if (assay_paddle_powers(p, b == 0 ? ASSAY_PADDLE_POW1 : ASSAY_PADDLE_POW2, i, values, 4096, &n) !=
                ASSAY_OK) {
                assay_error_clear(); /* missing: said already where that is wrong */
                continue;
            }
            for (int64_t k = 0; k < n; k++) {
                if (!first && !same_bits(values[k], out->of[b])) {
                    say(f, true, "%s/%s: %.9g, another parameter's is %.9g: states of different steps",
                        assay_paddle_spec(p)->params[i].name, names[b], (double)values[k],
                        (double)out->of[b]);
                    break;
                }
                out->of[b] = values[k];
                first = false;
            }
        }
        out->has = out->has || !first;
        const int64_t step = assay_paddle_facts_of(p)->step;
        if (!first && step >= 0 && rate_of(out->of[b], step) == 0.0)
            say(f, true,
                "%s: %.9g is no rate to the power of %lld: states are not of step %lld, as "
                "trainer_state.json says",
                names[b], (double)out->of[b], (long long)step + 1, (long long)step);
    }
    return ASSAY_OK;
}

static assay_status check_values(const assay_paddle *p, findings *f, powers *pw)
{
    for (int64_t i = 0; i < assay_paddle_spec(p)->n_params; i++) {
        ASSAY_TRY(check_master(p, i, f));
        ASSAY_TRY(check_moments(p, i, f));
    }
    return check_powers(p, f, pw);
}

static assay_status open_checked(assay_paddle **out, const char *dir, findings *f)
{
    powers pw = {.has = false};
    ASSAY_TRY(assay_paddle_open(out, dir, on_finding, f));
    const assay_status st = check_values(*out, f, &pw);
    if (st != ASSAY_OK) {
        assay_paddle_close(*out);
        *out = NULL;
    }
    return st;
}

/* --- the verbs ---------------------------------------------------------------------------------------------- */
assay_status parity_paddle_open_whole(assay_paddle **out, const char *dir)
{
    findings f = {.quiet = true};
    ASSAY_TRY(open_checked(out, dir, &f));
    if (f.wrong == 0)
        return ASSAY_OK;
    assay_paddle_close(*out);
    *out = NULL;
    ASSAY_FAIL(ASSAY_MISMATCH, "%s: %s%s", dir, f.first,
               f.wrong > 1 ? " (there is more: assay ckpt verify)" : "");
}

assay_status parity_paddle_verify(const char *dir, int *code)
{
    findings f = {.wrong = 0};
    assay_paddle *p;
    ASSAY_TRY(open_checked(&p, dir, &f));
    const assay_paddle_facts *facts = assay_paddle_facts_of(p);
    const long long tensors = (long long)(facts->tensors[0] + facts->tensors[1] + facts->tensors[2]);
    if (f.wrong == 0)
        printf("%s: PaddleNLP's, whole: %lld tensors of %zu bytes, %lld notes\n", dir, tensors,
               facts->bytes[0] + facts->bytes[1] + facts->bytes[2], (long long)f.notes);
    else
        printf("%s: %lld findings\n", dir, (long long)f.wrong);
    *code = f.wrong > 0 ? 1 : 0;
    assay_paddle_close(p);
    return ASSAY_OK;
}

static const char *words(const assay_paddle_facts *f, int kind)
{
    if (kind == 0)
        return f->masters_as_weights ? ", the masters (skip_save_model_weight)" : "";
    return kind == 1 && f->quantized ? ", quantized"
           : kind > 0 && f->unmerged ? ", not merged (ignore_merge_optimizer)"
                                     : "";
}

assay_status parity_paddle_inspect(const char *dir, bool tensors)
{
    static const char *const kinds[] = {"model", "optimizer", "master_weights"};
    findings f = {.quiet = true};
    assay_paddle *p;
    ASSAY_TRY(assay_paddle_open(&p, dir, on_finding, &f));
    const assay_paddle_facts *facts = assay_paddle_facts_of(p);
    const assay_model_spec *spec = assay_paddle_spec(p);
    printf("saved by       PaddleNLP %s, unified checkpoint\n",
           facts->version[0] != '\0' ? facts->version : "of unknown version");
    printf("step           %lld, %lld samples read\n", (long long)facts->step,
           (long long)facts->consumed_samples);
    printf("model          %s, weights %s\n", assay_arch_name(spec->config.arch),
           assay_dtype_name(facts->weight));
    if (facts->last_epoch >= 0)
        printf("next step      learning rate %.9g\n", facts->learning_rate);
    for (int k = 0; k < 3; k++)
        printf("%-14s %lld tensors, %zu bytes, %d files%s\n", kinds[k], (long long)facts->tensors[k],
               facts->bytes[k], facts->files[k], facts->files[k] > 0 ? words(facts, k) : "");
    printf("findings       %lld wrong, %lld notes (assay ckpt verify)\n", (long long)f.wrong,
           (long long)f.notes);
    for (int64_t i = 0; i < spec->n_params && tensors; i++)
        for (int r = 0; r <= ASSAY_PADDLE_MOMENT2; r++) {
            const assay_dtype dtype = assay_paddle_has(p, (assay_paddle_role)r, i);
            if (dtype != ASSAY_DTYPE_COUNT)
                printf("%-14s %-5s %s\n", assay_paddle_role_name((assay_paddle_role)r),
                       assay_dtype_name(dtype), spec->params[i].name);
        }
    assay_paddle_close(p);
    return ASSAY_OK;
}
