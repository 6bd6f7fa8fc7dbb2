/* Hypotheses about each operation: the mistakes that are made in training code again and again. */
#include "parity/judge/suspect_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Changes the trial; false: does not apply.  `number` counts the variants of one hypothesis. */
typedef bool (*change)(suspect_trial *t, int number, char text[PARITY_TEXT]);
typedef struct hypothesis {
    const char *op;
    int variants;
    change make;
} hypothesis;

bool suspect_set_real(suspect_trial *t, const char *key, double x)
{
    return json_object_set_new(t->attrs, key, json_real(x)) == 0;
}

double suspect_attr(const suspect_trial *t, const char *key)
{
    return json_number_value(json_object_get(t->attrs, key));
}

int64_t suspect_size(const suspect_trial *t, const char *key)
{
    const json_t *x = json_object_get(t->attrs, key);
    const int64_t n = json_is_integer(x) ? (int64_t)json_integer_value(x) : 0;
    return n >= 0 && n <= (int64_t)1 << 30 ? n : 0;
}

/* The number with few digits nearest to x within what a fit may be off. */
double suspect_round_number(double x)
{
    const double unit = pow(10.0, floor(log10(fabs(x))));
    const double one = nearbyint(x / unit) * unit;
    return fabs(one - x) <= 0.2 * fabs(x) ? one : x;
}

double suspect_short_number(double x, double share)
{
    for (int digits = 1; digits <= 6; digits++) {
        char word[32];
        snprintf(word, sizeof word, "%.*e", digits - 1, x);
        const double y = strtod(word, NULL);
        if (fabs(y - x) <= share * fabs(x))
            return y;
    }
    return x;
}

void suspect_scale_all(ref_value *v, double factor)
{
    for (int64_t i = 0; i < v->count; i++)
        v->value[i] *= factor;
}

/* --- norms -------------------------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median over rows of the epsilon that makes each row as long as it was found; NaN: none. */
static double fit_eps(suspect_trial *t)
{
    const ref_value *x = suspect_input(t, "x"), *g = suspect_input(t, "gamma"), *y = suspect_output(t, "y");
    if (x == NULL || g == NULL || y == NULL || g->count == 0 || x->count != y->count ||
        x->count % g->count != 0)
        return (double)NAN;
    const int64_t h = g->count, rows = x->count / h;
    double *fits = malloc(((size_t)rows + 1) * sizeof *fits), median = (double)NAN;
    int64_t n = 0;
    const bool centred = strcmp(t->op->op, "layernorm_fwd") == 0;
    const ref_value *beta = suspect_input(t, "beta");
    if (beta != NULL && beta->count != h) {
        free(fits);
        return (double)NAN;
    }
    for (int64_t i = 0; fits != NULL && i < rows; i++) {
        double xy = 0.0, xx = 0.0, square = 0.0, mean = 0.0;
        for (int64_t k = 0; k < h && centred; k++)
            mean += x->value[i * h + k] / (double)h;
        for (int64_t k = 0; k < h; k++) {
            const double v = x->value[i * h + k] - mean, w = v * g->value[k];
            xy += w * (y->value[i * h + k] - (beta != NULL ? beta->value[k] : 0.0));
            xx += w * w;
            square += v * v;
        }
        const double rstd = xx > 0.0 ? xy / xx : 0.0, eps = 1.0 / (rstd * rstd) - square / (double)h;
        if (rstd > 0.0 && eps > 0.0)
            fits[n++] = eps;
    }
    if (n > 0) {
        qsort(fits, (size_t)n, sizeof *fits, compare_doubles);
        median = fits[n / 2];
    }
    free(fits);
    return median;
}

static bool other_eps(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    static const double usual[] = {1e-5, 1e-6, 1e-8, 1e-12, 1e-3, 1e-2};
    const double declared = suspect_attr(t, "eps"), fit = number < 2 ? fit_eps(t) : 0.0;
    const double eps = number == 0 ? suspect_round_number(fit) : number == 1 ? fit : usual[number - 2];
    if (!isfinite(eps) || eps == declared)
        return false;
    SUSPECT_SAY("the norm adds eps %.3g where %.3g is expected", eps, declared);
    return suspect_set_real(t, "eps", eps);
}

static bool other_gamma(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *g = suspect_input(t, "gamma");
    for (int64_t i = 0; g != NULL && i < g->count; i++)
        g->value[i] = number == 0 ? 1.0 : 1.0 + g->value[i];
    SUSPECT_SAY(number == 0 ? "the norm does not multiply by its weight"
                            : "the norm multiplies by 1 + weight");
    return g != NULL;
}

static bool subtracts_mean(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *x = suspect_input(t, "x");
    const ref_value *g = suspect_input(t, "gamma");
    (void)number;
    if (x == NULL || g == NULL || g->count == 0)
        return false;
    for (int64_t i = 0; i + g->count <= x->count; i += g->count) {
        double mean = 0.0;
        for (int64_t k = 0; k < g->count; k++)
            mean += x->value[i + k] / (double)g->count;
        for (int64_t k = 0; k < g->count; k++)
            x->value[i + k] -= mean;
    }
    SUSPECT_SAY("the norm subtracts the mean of a row: a LayerNorm in place of an RMSNorm");
    return true;
}

/* --- additions ---------------------------------------------------------------------------------------------- */

static bool other_sum(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    static const struct {
        double a, b;
        const char *text;
    } tries[] = {
        {0.0, 1.0, "the residual is not added: the sum is its second term alone"},
        {1.0, 0.0, "the sum is its first term alone: what the block computed is lost"},
        {2.0, 1.0, "the residual is added twice"},
        {1.0, 2.0, "what the block computed is added twice"},
        {1.0, -1.0, "what the block computed is subtracted"},
        {1.0, 0.5, "what the block computed is halved"},
    };
    ref_value *a = suspect_input(t, "a"), *b = suspect_input(t, "b");
    if (a == NULL || b == NULL || a->value == NULL || b->value == NULL)
        return false;
    suspect_scale_all(a, tries[number].a);
    suspect_scale_all(b, tries[number].b);
    SUSPECT_SAY("%s", tries[number].text);
    return true;
}

/* --- linear layers ------------------------------------------------------------------------------------------ */

static bool other_linear(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *x = suspect_input(t, "x"), *w = suspect_input(t, "weight"), *bias = suspect_input(t, "bias");
    if (x == NULL || w == NULL || (number < 2 && bias == NULL))
        return false;
    if (number == 0) {
        suspect_scale_all(bias, 0.0);
        SUSPECT_SAY("the bias is not added");
    } else if (number == 1) {
        suspect_scale_all(bias, 2.0);
        SUSPECT_SAY("the bias is added twice");
    } else if (number == 2) {
        if (w->ndim != 2 || w->shape[0] != w->shape[1])
            return false;
        for (int64_t i = 0; i < w->shape[0]; i++)
            for (int64_t k = 0; k < i; k++) {
                const double kept = w->value[i * w->shape[0] + k];
                w->value[i * w->shape[0] + k] = w->value[k * w->shape[0] + i];
                w->value[k * w->shape[0] + i] = kept;
            }
        SUSPECT_SAY("the weight is transposed");
    } else {
        if (x->dtype == ASSAY_BF16)
            return false;
        ref_value *both[] = {x, w};
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < both[k]->count; i++)
                both[k]->value[i] = ref_round(both[k]->value[i], ASSAY_BF16);
        SUSPECT_SAY("the operands are rounded to BF16 (autocast)");
    }
    return true;
}

/* Another recorded weight of the same shape. */
static bool other_weight(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *w = suspect_input(t, "weight");
    int seen = 0;
    for (int64_t i = 0; w != NULL && i < assay_trace_n_tensors(t->trace, t->op->rank); i++) {
        const assay_trace_tensor *r = assay_trace_tensor_at(t->trace, t->op->rank, i);
        const size_t length = strlen(r->name);
        ref_value other;
        if (length < 7 || strcmp(r->name + length - 7, ".weight") != 0 || r->shard.ndim != w->ndim ||
            r->shard.ndim != 2 || r->shard.local_shape[0] != w->shape[0] || r->data == NULL ||
            !assay_dtype_is_float(r->dtype) || r->shard.local_shape[1] != w->shape[1] || seen++ != number)
            continue;
        if (parity_value_of("weight", r, &other) != ASSAY_OK) {
            assay_error_clear();
            return false;
        }
        memcpy(w->value, other.value, (size_t)w->count * sizeof *w->value);
        parity_value_free(&other);
        SUSPECT_SAY("the product is with another weight: %.120s", r->name);
        return true;
    }
    return false;
}

static bool swapped_halves(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *x = suspect_input(t, "x");
    (void)number;
    if (x == NULL || x->ndim < 1 || x->shape[x->ndim - 1] % 2 != 0)
        return false;
    const int64_t width = x->shape[x->ndim - 1], half = width / 2;
    for (int64_t i = 0; i + width <= x->count; i += width)
        for (int64_t k = 0; k < half; k++) {
            const double kept = x->value[i + k];
            x->value[i + k] = x->value[i + half + k];
            x->value[i + half + k] = kept;
        }
    SUSPECT_SAY("gate and up are exchanged");
    return true;
}

static bool other_router(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const char *key = number == 0 ? "norm_topk_prob" : "pre_softmax";
    const bool on = json_is_true(json_object_get(t->attrs, key));
    SUSPECT_SAY(
        number == 0
            ? "norm_topk_prob is %s where %s is expected: the chosen probabilities are %sdivided by their sum"
            : "pre_softmax is %s where %s is expected%s",
        on ? "false" : "true", on ? "true" : "false", number == 0 && on ? "not " : "");
    return json_object_set_new(t->attrs, key, json_boolean(!on)) == 0;
}

static bool other_loss(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    static const double tries[] = {2.0, 0.5};
    if (json_object_get(t->attrs, "scale") == NULL)
        return false;
    const double s = suspect_attr(t, "scale");
    SUSPECT_SAY("the gradient of the loss is scaled by %.6g where %.6g is expected", s * tries[number], s);
    return suspect_set_real(t, "scale", s * tries[number]);
}

/* --- places of rounding ------------------------------------------------------------------------------------- */

static const struct {
    unsigned bit;
    const char *word;
} points[] = {{ASSAY_ROUND_BEFORE_GAMMA, "before_gamma"},
              {ASSAY_ROUND_BEFORE_UP, "before_up"},
              {ASSAY_ROUND_PRODUCTS, "products"},
              {ASSAY_ROUND_SCORES, "scores"},
              {ASSAY_ROUND_ANGLES, "angles"},
              {ASSAY_ROUND_HEADS, "heads"},
              {ASSAY_ROUND_PARTIAL_SUMS, "partial_sums"},
              {ASSAY_ROUND_EVERY, "every"},
              {ASSAY_ROUND_STATISTICS, "statistics"},
              {ASSAY_ROUND_RESIDUAL, "residual"},
              {ASSAY_ROUND_NORM, "norm"},
              {ASSAY_ROUND_PROBS, "probs"}};
enum { N_POINTS = sizeof points / sizeof *points };

unsigned suspect_roundings(const char *op)
{
    static const struct {
        const char *op;
        unsigned bits;
    } rows[] = {{"rmsnorm_fwd", ASSAY_ROUND_BEFORE_GAMMA},
                {"rmsnorm_bwd", ASSAY_ROUND_BEFORE_GAMMA},
                {"add_rmsnorm_fwd", ASSAY_ROUND_BEFORE_GAMMA | ASSAY_ROUND_RESIDUAL},
                {"qkv_rope_fwd", ASSAY_ROUND_PRODUCTS},
                {"qkv_norm_rope_fwd", ASSAY_ROUND_BEFORE_GAMMA | ASSAY_ROUND_PRODUCTS | ASSAY_ROUND_NORM},
                {"qkv_rope_bwd", ASSAY_ROUND_PRODUCTS},
                {"qkv_norm_rope_bwd", ASSAY_ROUND_PRODUCTS | ASSAY_ROUND_NORM},
                {"rmsnorm_bwd_add", ASSAY_ROUND_RESIDUAL},
                {"swiglu_fwd", ASSAY_ROUND_BEFORE_UP},
                {"swiglu_bwd", ASSAY_ROUND_BEFORE_UP},
                {"rope_fwd", ASSAY_ROUND_PRODUCTS},
                {"rope_bwd", ASSAY_ROUND_PRODUCTS},
                {"mla_rope_q_fwd", ASSAY_ROUND_PRODUCTS},
                {"mla_rope_q_bwd", ASSAY_ROUND_PRODUCTS},
                {"mla_rope_kv_fwd", ASSAY_ROUND_PRODUCTS},
                {"mla_rope_kv_bwd", ASSAY_ROUND_PRODUCTS},
                {"attention_fwd", ASSAY_ROUND_SCORES | ASSAY_ROUND_PROBS},
                {"attention_bwd", ASSAY_ROUND_SCORES | ASSAY_ROUND_HEADS | ASSAY_ROUND_PROBS},
                {"load_balancing_fwd", ASSAY_ROUND_SCORES},
                {"load_balancing_bwd", ASSAY_ROUND_SCORES},
                {"rope_table", ASSAY_ROUND_ANGLES},
                {"embedding_bwd", ASSAY_ROUND_PARTIAL_SUMS},
                {"weighted_combine_fwd", ASSAY_ROUND_PRODUCTS | ASSAY_ROUND_PARTIAL_SUMS},
                {"weighted_combine_bwd", ASSAY_ROUND_PRODUCTS},
                {"router_fwd", ASSAY_ROUND_TIES},
                {"adamw", ASSAY_ROUND_EVERY},
                {"layernorm_bwd", ASSAY_ROUND_STATISTICS | ASSAY_ROUND_PARTIAL_SUMS}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].op, op) == 0)
            return rows[i].bits;
    return 0;
}

static bool undeclared_rounding(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    if (number >= N_POINTS || (t->declared.all.rounding & points[number].bit) ||
        !(suspect_roundings(t->op->op) & points[number].bit))
        return false;
    t->declared.all.rounding |= points[number].bit;
    for (int i = 0; i < t->declared.n; i++)
        t->declared.output[i].arith.rounding |= points[number].bit;
    SUSPECT_SAY(
        "it rounds an intermediate result where it does not say so; declared as \"rounding\": [\"%s\"] it is "
        "within "
        "its bound (no error, once declared)",
        points[number].word);
    return true;
}

static const hypothesis hypotheses[] = {
    {"rmsnorm_fwd", N_POINTS, undeclared_rounding},
    {"rmsnorm_fwd", 8, other_eps},
    {"rmsnorm_fwd", 2, other_gamma},
    {"rmsnorm_fwd", 1, subtracts_mean},
    {"layernorm_fwd", 8, other_eps},
    {"layernorm_bwd", N_POINTS, undeclared_rounding},
    {"layernorm_bwd", 8, other_eps},
    {"rope_table", N_POINTS, undeclared_rounding},
    {"rope_table", 4, suspect_other_rope_type},
    {"rope_table", 12, suspect_other_base},
    {"rope_fwd", N_POINTS, undeclared_rounding},
    {"rope_fwd", 4, suspect_other_rotation},
    {"rope_fwd", 5, suspect_other_pairs},
    {"mla_rope_q_fwd", N_POINTS, undeclared_rounding},
    {"mla_rope_q_fwd", 4, suspect_other_rotation},
    {"mla_rope_q_fwd", 2, suspect_other_pairs_mla},
    {"mla_rope_kv_fwd", N_POINTS, undeclared_rounding},
    {"mla_rope_kv_fwd", 4, suspect_other_rotation},
    {"mla_rope_kv_fwd", 2, suspect_other_pairs_mla},
    {"attention_fwd", N_POINTS, undeclared_rounding},
    {"attention_fwd", 1, suspect_other_groups},
    {"attention_fwd", 3, suspect_other_mask},
    {"attention_fwd", 5, suspect_other_scale},
    {"attention_fwd", 3, suspect_other_window},
    {"attention_fwd", 3, suspect_fitted_scale},
    {"attention_fwd", 1, suspect_attention_dropout},
    {"add", 6, other_sum},
    {"add", 1, suspect_dropout},
    {"linear_fwd", 4, other_linear},
    {"linear_fwd", 64, other_weight},
    {"swiglu_fwd", N_POINTS, undeclared_rounding},
    {"swiglu_fwd", 1, swapped_halves},
    {"router_fwd", 2, other_router},
    {"cross_entropy_bwd", 2, other_loss},
    {"rmsnorm_bwd", N_POINTS, undeclared_rounding},
    {"swiglu_bwd", N_POINTS, undeclared_rounding},
    {"rope_bwd", N_POINTS, undeclared_rounding},
    {"mla_rope_q_bwd", N_POINTS, undeclared_rounding},
    {"mla_rope_kv_bwd", N_POINTS, undeclared_rounding},
    {"attention_bwd", N_POINTS, undeclared_rounding},
    {"embedding_bwd", N_POINTS, undeclared_rounding},
    {"weighted_combine_fwd", N_POINTS, undeclared_rounding},
    {"weighted_combine_bwd", N_POINTS, undeclared_rounding},
    {"adamw", N_POINTS, undeclared_rounding},
};

bool suspect_change(suspect_trial *t, int number, bool *applies, char text[PARITY_TEXT])
{
    text[0] = '\0';
    *applies = false;
    for (size_t i = 0; i < sizeof hypotheses / sizeof *hypotheses; i++) {
        const hypothesis *h = &hypotheses[i];
        if (strcmp(h->op, t->op->op) != 0)
            continue;
        if (number < h->variants) {
            *applies = h->make(t, number, text);
            return true;
        }
        number -= h->variants;
    }
    return false;
}
