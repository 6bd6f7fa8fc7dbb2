/* Hypotheses about each operation: the mistakes that are made in training code again and again. */
#include "parity/judge/suspect.h"

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

#define SAY(...) snprintf(text, PARITY_TEXT, __VA_ARGS__)

static bool set_real(suspect_trial *t, const char *key, double x)
{
    return json_object_set_new(t->attrs, key, json_real(x)) == 0;
}

static double attr(const suspect_trial *t, const char *key)
{
    return json_number_value(json_object_get(t->attrs, key));
}

/* The number with few digits nearest to x within what a fit may be off. */
static double round_number(double x)
{
    const double unit = pow(10.0, floor(log10(fabs(x))));
    const double one = nearbyint(x / unit) * unit;
    return fabs(one - x) <= 0.2 * fabs(x) ? one : x;
}

static void scale_all(ref_value *v, double factor)
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
    const double declared = attr(t, "eps"), fit = number < 2 ? fit_eps(t) : 0.0;
    const double eps = number == 0 ? round_number(fit) : number == 1 ? fit : usual[number - 2];
    if (!isfinite(eps) || eps == declared)
        return false;
    SAY("the norm adds eps %.3g where %.3g is expected", eps, declared);
    return set_real(t, "eps", eps);
}

static bool other_gamma(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *g = suspect_input(t, "gamma");
    for (int64_t i = 0; g != NULL && i < g->count; i++)
        g->value[i] = number == 0 ? 1.0 : 1.0 + g->value[i];
    SAY(number == 0 ? "the norm does not multiply by its weight" : "the norm multiplies by 1 + weight");
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
    SAY("the norm subtracts the mean of a row: a LayerNorm in place of an RMSNorm");
    return true;
}

/* --- rotary embedding --------------------------------------------------------------------------------------- */

/* From the angle of frequency 1 at position 1: base^(-2/dim). */
static double fit_base(suspect_trial *t)
{
    const ref_value *c = suspect_output(t, "cos"), *s = suspect_output(t, "sin");
    const double dim = attr(t, "rotary_dim");
    const int64_t half = (int64_t)(dim / 2.0);
    if (c == NULL || s == NULL || half < 2 || c->count < 2 * half || s->count != c->count)
        return (double)NAN;
    const double angle = atan2(s->value[half + 1], c->value[half + 1]);
    return angle > 0.0 ? pow(angle, -dim / 2.0) : (double)NAN;
}

static bool other_base(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    static const double usual[] = {1e4, 5e5, 1e6, 1e5, 5e4, 8e4, 2.5e5, 5e6, 1e7};
    const double declared = attr(t, "rotary_base"), fit = number < 2 ? fit_base(t) : 0.0;
    const double base = number == 0 ? round_number(fit) : number == 1 ? fit : usual[number - 2];
    if (!isfinite(base) || base <= 1.0 || base == declared)
        return false;
    SAY("rope's theta is %.6g where %.6g is expected", base, declared);
    return set_real(t, "rotary_base", base);
}

static bool other_rope_type(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const char *type = json_string_value(json_object_get(t->attrs, "rope_type"));
    (void)number;
    if (type == NULL || strcmp(type, "default") == 0)
        return false;
    SAY("rope is not scaled, where rope_type %s is expected", type);
    static const char *const keys[] = {"factor", "low_freq_factor", "high_freq_factor",
                                       "original_max_position_embeddings"};
    for (int i = 0; i < 4; i++)
        json_object_del(t->attrs, keys[i]);
    return json_object_set_new(t->attrs, "rope_type", json_string("default")) == 0;
}

static bool other_rotation(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *c = suspect_input(t, "cos"), *s = suspect_input(t, "sin"), *p = suspect_input(t, "position");
    if (c == NULL || s == NULL || p == NULL || p->ivalue == NULL || c->ndim != 2)
        return false;
    if (number == 0) {
        scale_all(s, -1.0);
        SAY("the rotation turns the other way: the sign of sin");
    } else if (number == 1) {
        for (int64_t i = 0; i < c->count; i++)
            c->value[i] = 1.0;
        scale_all(s, 0.0);
        SAY("the rotation is not applied");
    } else {
        const int64_t off = number == 2 ? 1 : -1;
        for (int64_t i = 0; i < p->count; i++) {
            p->ivalue[i] += off;
            if (p->ivalue[i] < 0 || p->ivalue[i] >= c->shape[0])
                return false;
        }
        SAY("positions are off by %+d", (int)off);
    }
    return true;
}

/* --- attention ---------------------------------------------------------------------------------------------- */

/* Query heads in the order in which a repeat in place of a repeat_interleave deals them to key groups. */
static bool deal_heads(ref_value *v, int64_t heads, int64_t groups, int64_t d)
{
    double *row = malloc((size_t)(heads * d) * sizeof *row + 8);
    if (row == NULL)
        return false;
    for (int64_t i = 0; i + heads * d <= v->count; i += heads * d) {
        memcpy(row, v->value + i, (size_t)(heads * d) * sizeof *row);
        for (int64_t h = 0; h < heads; h++)
            memcpy(v->value + i + ((h % groups) * (heads / groups) + h / groups) * d, row + h * d,
                   (size_t)d * sizeof *row);
    }
    free(row);
    return true;
}

static bool other_groups(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const int64_t heads = (int64_t)attr(t, "heads"), groups = (int64_t)attr(t, "groups"),
                  d = (int64_t)attr(t, "head_dim"), dv = (int64_t)attr(t, "head_dim_v");
    ref_value *q = suspect_input(t, "q"), *o = suspect_output(t, "o");
    (void)number;
    if (q == NULL || o == NULL || heads <= 0 || groups <= 1 || groups >= heads || heads % groups != 0 ||
        d <= 0 || heads > q->count || d > q->count || dv > o->count)
        return false;
    SAY("query head h reads key group h mod %lld where h / %lld is expected: GQA heads are repeated in "
        "another "
        "order (repeat in place of repeat_interleave)",
        (long long)groups, (long long)(heads / groups));
    return deal_heads(q, heads, groups, d) && deal_heads(o, heads, groups, dv > 0 ? dv : d);
}

static bool other_mask(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *q = suspect_input(t, "q_position"), *k = suspect_input(t, "k_position");
    int64_t last = 0;
    if (q == NULL || k == NULL || q->ivalue == NULL || k->ivalue == NULL)
        return false;
    if (q == k || number > 2)
        return false;
    for (int64_t i = 0; i < k->count; i++)
        last = k->ivalue[i] > last ? k->ivalue[i] : last;
    for (int64_t i = 0; i < q->count; i++) {
        int64_t *x = &q->ivalue[i];
        *x = number == 0 ? (*x > 0 ? *x - 1 : 0) : number == 1 ? (*x < last ? *x + 1 : last) : last;
    }
    SAY("%s", number == 0   ? "the causal mask is off by one: a query does not see its own key"
              : number == 1 ? "the causal mask is off by one: a query sees the key behind it"
                            : "there is no causal mask: every query sees every key");
    return true;
}

static bool other_scale(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const double s = attr(t, "scale"), d = attr(t, "head_dim");
    const double heads = attr(t, "heads"),
                 tries[] = {s * s, 1.0, 1.0 / d, 1.0 / sqrt(d * heads), 1.0 / sqrt(d)};
    static const char *const words[] = {"scores are scaled twice", "scores are not scaled",
                                        "scores are divided by the head dimension, not its root",
                                        "scores are divided by the root of the hidden size",
                                        "scores are divided by the root of the head dimension"};
    if (!(tries[number] > 0.0) || tries[number] == s)
        return false;
    SAY("%s: scale %.6g where %.6g is expected", words[number], tries[number], s);
    return set_real(t, "scale", tries[number]);
}

static bool other_window(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const int64_t w = (int64_t)attr(t, "window");
    const int64_t other = number == 0 ? 0 : number == 1 ? w + 1 : w - 1;
    if (w <= 0 || other == w || (number > 0 && other <= 0))
        return false;
    if (other == 0)
        SAY("the sliding window of %lld is not applied", (long long)w);
    else
        SAY("the sliding window is %lld where %lld is expected: off by one", (long long)other, (long long)w);
    return json_object_set_new(t->attrs, "window", json_integer(other)) == 0;
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
    scale_all(a, tries[number].a);
    scale_all(b, tries[number].b);
    SAY("%s", tries[number].text);
    return true;
}

/* Dropout on the second term: every element of it is lost or 1/(1-p) of itself, one p for all. */
static bool dropout(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *a = suspect_input(t, "a"), *b = suspect_input(t, "b");
    const ref_value *y = suspect_output(t, "y");
    double xy = 0.0, xx = 0.0;
    int64_t lost = 0, n = 0;
    (void)number;
    if (a == NULL || b == NULL || y == NULL || a->count != y->count || b->count != y->count)
        return false;
    for (int64_t i = 0; i < y->count; i++) {
        const double part = y->value[i] - a->value[i];
        const bool zero = fabs(part) < 0.05 * fabs(b->value[i]);
        lost += zero && b->value[i] != 0.0;
        n += b->value[i] != 0.0;
        xy += zero ? 0.0 : part * b->value[i];
        xx += zero ? 0.0 : b->value[i] * b->value[i];
    }
    const double factor = xx > 0.0 ? xy / xx : 0.0, p = 1.0 - 1.0 / factor;
    if (lost == 0 || lost == n || !(factor > 1.0) || !(p < 0.99))
        return false;
    const double kept = 1.0 / (1.0 - round_number(p));
    for (int64_t i = 0; i < y->count; i++) {
        const bool zero = fabs(y->value[i] - a->value[i]) < 0.05 * fabs(b->value[i]);
        b->value[i] *= zero ? 0.0 : kept;
    }
    SAY("dropout is on (p %.3g): %lld of %lld elements of the block are lost, the others %.3g times "
        "themselves",
        round_number(p), (long long)lost, (long long)n, kept);
    return true;
}

/* --- linear layers ------------------------------------------------------------------------------------------ */

static bool other_linear(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *x = suspect_input(t, "x"), *w = suspect_input(t, "weight"), *bias = suspect_input(t, "bias");
    if (x == NULL || w == NULL || (number < 2 && bias == NULL))
        return false;
    if (number == 0) {
        scale_all(bias, 0.0);
        SAY("the bias is not added");
    } else if (number == 1) {
        scale_all(bias, 2.0);
        SAY("the bias is added twice");
    } else if (number == 2) {
        if (w->ndim != 2 || w->shape[0] != w->shape[1])
            return false;
        for (int64_t i = 0; i < w->shape[0]; i++)
            for (int64_t k = 0; k < i; k++) {
                const double kept = w->value[i * w->shape[0] + k];
                w->value[i * w->shape[0] + k] = w->value[k * w->shape[0] + i];
                w->value[k * w->shape[0] + i] = kept;
            }
        SAY("the weight is transposed");
    } else {
        if (x->dtype == ASSAY_BF16)
            return false;
        ref_value *both[] = {x, w};
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < both[k]->count; i++)
                both[k]->value[i] = ref_round(both[k]->value[i], ASSAY_BF16);
        SAY("the operands are rounded to BF16 (autocast)");
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
            r->shard.local_shape[1] != w->shape[1] || seen++ != number)
            continue;
        if (parity_value_of("weight", r, &other) != ASSAY_OK) {
            assay_error_clear();
            return false;
        }
        memcpy(w->value, other.value, (size_t)w->count * sizeof *w->value);
        parity_value_free(&other);
        SAY("the product is with another weight: %.120s", r->name);
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
    SAY("gate and up are exchanged");
    return true;
}

static bool other_router(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const char *key = number == 0 ? "norm_topk_prob" : "pre_softmax";
    const bool on = json_is_true(json_object_get(t->attrs, key));
    SAY(number == 0
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
    const double s = attr(t, "scale");
    SAY("the gradient of the loss is scaled by %.6g where %.6g is expected", s * tries[number], s);
    return set_real(t, "scale", s * tries[number]);
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
              {ASSAY_ROUND_STATISTICS, "statistics"}};
enum { N_POINTS = sizeof points / sizeof *points };

unsigned suspect_roundings(const char *op)
{
    static const struct {
        const char *op;
        unsigned bits;
    } rows[] = {{"rmsnorm_fwd", ASSAY_ROUND_BEFORE_GAMMA},
                {"rmsnorm_bwd", ASSAY_ROUND_BEFORE_GAMMA},
                {"swiglu_fwd", ASSAY_ROUND_BEFORE_UP},
                {"swiglu_bwd", ASSAY_ROUND_BEFORE_UP},
                {"rope_fwd", ASSAY_ROUND_PRODUCTS},
                {"rope_bwd", ASSAY_ROUND_PRODUCTS},
                {"attention_fwd", ASSAY_ROUND_SCORES},
                {"attention_bwd", ASSAY_ROUND_SCORES | ASSAY_ROUND_HEADS},
                {"rope_table", ASSAY_ROUND_ANGLES},
                {"embedding_bwd", ASSAY_ROUND_PARTIAL_SUMS},
                {"weighted_combine", ASSAY_ROUND_PARTIAL_SUMS},
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
    SAY("it rounds an intermediate result where it does not say so; declared as \"rounding\": [\"%s\"] it is "
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
    {"rope_table", 1, other_rope_type},
    {"rope_table", 11, other_base},
    {"rope_fwd", N_POINTS, undeclared_rounding},
    {"rope_fwd", 4, other_rotation},
    {"attention_fwd", N_POINTS, undeclared_rounding},
    {"attention_fwd", 1, other_groups},
    {"attention_fwd", 3, other_mask},
    {"attention_fwd", 5, other_scale},
    {"attention_fwd", 3, other_window},
    {"add", 6, other_sum},
    {"add", 1, dropout},
    {"linear_fwd", 4, other_linear},
    {"linear_fwd", 64, other_weight},
    {"swiglu_fwd", N_POINTS, undeclared_rounding},
    {"swiglu_fwd", 1, swapped_halves},
    {"router", 2, other_router},
    {"router_fwd", 2, other_router},
    {"cross_entropy_bwd", 2, other_loss},
    {"rmsnorm_bwd", N_POINTS, undeclared_rounding},
    {"swiglu_bwd", N_POINTS, undeclared_rounding},
    {"rope_bwd", N_POINTS, undeclared_rounding},
    {"attention_bwd", N_POINTS, undeclared_rounding},
    {"embedding_bwd", N_POINTS, undeclared_rounding},
    {"weighted_combine", N_POINTS, undeclared_rounding},
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
