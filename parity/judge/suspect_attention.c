/* Hypotheses about rotary embedding and attention. */
#include "parity/judge/suspect_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- rotary embedding --------------------------------------------------------------------------------------- */

/* From the angle of frequency 1 at position 1: base^(-2/dim). */
static double fit_base(suspect_trial *t)
{
    const ref_value *c = suspect_output(t, "cos"), *s = suspect_output(t, "sin");
    const double dim = suspect_attr(t, "rotary_dim");
    const int64_t half = (int64_t)(dim / 2.0);
    if (c == NULL || s == NULL || half < 2 || c->count < 2 * half || s->count != c->count)
        return (double)NAN;
    const double angle = atan2(s->value[half + 1], c->value[half + 1]);
    return angle > 0.0 ? pow(angle, -dim / 2.0) : (double)NAN;
}

bool suspect_other_base(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    static const double usual[] = {1e4, 5e5, 1e6, 1e5, 5e4, 8e4, 2.5e5, 5e6, 1e7};
    const double declared = suspect_attr(t, "rotary_base"), fit = number < 2 ? fit_base(t) : 0.0;
    const double base = number == 0 ? suspect_round_number(fit) : number == 1 ? fit : usual[number - 2];
    if (!isfinite(base) || base <= 1.0 || base == declared)
        return false;
    SUSPECT_SAY("rope's theta is %.6g where %.6g is expected", base, declared);
    return suspect_set_real(t, "rotary_base", base);
}

bool suspect_other_rope_type(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const char *type = json_string_value(json_object_get(t->attrs, "rope_type"));
    (void)number;
    if (type == NULL || strcmp(type, "default") == 0)
        return false;
    SUSPECT_SAY("rope is not scaled, where rope_type %s is expected", type);
    static const char *const keys[] = {"factor", "low_freq_factor", "high_freq_factor",
                                       "original_max_position_embeddings"};
    for (int i = 0; i < 4; i++)
        json_object_del(t->attrs, keys[i]);
    return json_object_set_new(t->attrs, "rope_type", json_string("default")) == 0;
}

bool suspect_other_rotation(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *c = suspect_input(t, "cos"), *s = suspect_input(t, "sin"), *p = suspect_input(t, "position");
    if (c == NULL || s == NULL || p == NULL || p->ivalue == NULL || c->ndim != 2)
        return false;
    if (number == 0) {
        suspect_scale_all(s, -1.0);
        SUSPECT_SAY("the rotation turns the other way: the sign of sin");
    } else if (number == 1) {
        for (int64_t i = 0; i < c->count; i++)
            c->value[i] = 1.0;
        suspect_scale_all(s, 0.0);
        SUSPECT_SAY("the rotation is not applied");
    } else {
        const int64_t off = number == 2 ? 1 : -1;
        for (int64_t i = 0; i < p->count; i++) {
            p->ivalue[i] += off;
            if (p->ivalue[i] < 0 || p->ivalue[i] >= c->shape[0])
                return false;
        }
        SUSPECT_SAY("positions are off by %+d", (int)off);
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

bool suspect_other_groups(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const int64_t heads = (int64_t)suspect_attr(t, "heads"), groups = (int64_t)suspect_attr(t, "groups"),
                  d = (int64_t)suspect_attr(t, "head_dim"), dv = (int64_t)suspect_attr(t, "head_dim_v");
    ref_value *q = suspect_input(t, "q"), *o = suspect_output(t, "o");
    (void)number;
    if (q == NULL || o == NULL || heads <= 0 || groups <= 1 || groups >= heads || heads % groups != 0 ||
        d <= 0 || heads > q->count || d > q->count || dv > o->count)
        return false;
    SUSPECT_SAY(
        "query head h reads key group h mod %lld where h / %lld is expected: GQA heads are repeated in "
        "another "
        "order (repeat in place of repeat_interleave)",
        (long long)groups, (long long)(heads / groups));
    return deal_heads(q, heads, groups, d) && deal_heads(o, heads, groups, dv > 0 ? dv : d);
}

bool suspect_other_mask(suspect_trial *t, int number, char text[PARITY_TEXT])
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
    SUSPECT_SAY("%s", number == 0   ? "the causal mask is off by one: a query does not see its own key"
                      : number == 1 ? "the causal mask is off by one: a query sees the key behind it"
                                    : "there is no causal mask: every query sees every key");
    return true;
}

bool suspect_other_scale(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const double s = suspect_attr(t, "scale"), d = suspect_attr(t, "head_dim");
    const double heads = suspect_attr(t, "heads"),
                 tries[] = {s * s, 1.0, 1.0 / d, 1.0 / sqrt(d * heads), 1.0 / sqrt(d)};
    static const char *const words[] = {"scores are scaled twice", "scores are not scaled",
                                        "scores are divided by the head dimension, not its root",
                                        "scores are divided by the root of the hidden size",
                                        "scores are divided by the root of the head dimension"};
    if (!(tries[number] > 0.0) || tries[number] == s)
        return false;
    SUSPECT_SAY("%s: scale %.6g where %.6g is expected", words[number], tries[number], s);
    return suspect_set_real(t, "scale", tries[number]);
}

bool suspect_other_window(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const int64_t w = (int64_t)suspect_attr(t, "window");
    const int64_t other = number == 0 ? 0 : number == 1 ? w + 1 : w - 1;
    if (w <= 0 || other == w || (number > 0 && other <= 0))
        return false;
    if (other == 0)
        SUSPECT_SAY("the sliding window of %lld is not applied", (long long)w);
    else
        SUSPECT_SAY("the sliding window is %lld where %lld is expected: off by one", (long long)other,
                    (long long)w);
    return json_object_set_new(t->attrs, "window", json_integer(other)) == 0;
}
