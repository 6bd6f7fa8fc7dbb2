/* Hypotheses about rotary embedding: its table, and how it turns. */
#include "parity/judge/suspect_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the table ---------------------------------------------------------------------------------------------- */

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
    const double declared = suspect_attr(t, "rotary_base"), fit = number < 3 ? fit_base(t) : 0.0;
    const double base = number == 0   ? suspect_round_number(fit)
                        : number == 1 ? suspect_short_number(fit, 1e-5)
                        : number == 2 ? fit
                                      : usual[number - 3];
    if (!isfinite(base) || base <= 1.0 || base == declared)
        return false;
    SUSPECT_SAY("rope's theta is %.6g where %.6g is expected", base, declared);
    return suspect_set_real(t, "rotary_base", base);
}

/* The table of no scaling; the frequencies of yarn alone; its factor alone; another factor. */
bool suspect_other_rope_type(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    static const char *const keys[] = {
        "factor",    "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
        "beta_fast", "beta_slow",       "truncate",         "attention_factor"};
    const char *type = json_string_value(json_object_get(t->attrs, "rope_type"));
    const ref_value *c = suspect_output(t, "cos");
    const double declared = suspect_attr(t, "attention_factor");
    if (type == NULL || strcmp(type, "default") == 0)
        return false;
    if (number == 0) {
        SUSPECT_SAY("rope is not scaled, where rope_type %s is expected", type);
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            json_object_del(t->attrs, keys[i]);
        return json_object_set_new(t->attrs, "rope_type", json_string("default")) == 0;
    }
    if (strcmp(type, "yarn") != 0 || !(declared > 0.0) || c == NULL || c->count == 0)
        return false;
    if (number == 2) {
        SUSPECT_SAY(
            "only attention_factor is applied: rope's frequencies are not scaled, where rope_type yarn is "
            "expected");
        return declared != 1.0 && suspect_set_real(t, "factor", 1.0);
    }
    /* the cosine of position 0 is the factor */
    const double found = number == 1 ? 1.0 : suspect_short_number(c->value[0], 1e-6);
    if (found == declared || !(found > 0.0) || !isfinite(found))
        return false;
    if (number == 1)
        SUSPECT_SAY("attention_factor is missing: yarn's cos and sin are not multiplied by %.6g", declared);
    else
        SUSPECT_SAY("attention_factor is %.6g where %.6g is expected", found, declared);
    return suspect_set_real(t, "attention_factor", found);
}

/* --- the rotation ------------------------------------------------------------------------------------------- */

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

/* Columns [first, first + 2 half) of rows of `width`: halves become neighbours (2i, 2i + 1), or neighbours halves (i, i + half). */
static bool rearrange(ref_value *v, int64_t width, int64_t first, int64_t half, bool to_neighbours)
{
    double *row = malloc((size_t)(2 * half) * sizeof *row + 8);
    if (row == NULL)
        return false;
    for (int64_t at = first; at - first + width <= v->count; at += width) {
        double *x = v->value + at;
        memcpy(row, x, (size_t)(2 * half) * sizeof *row);
        for (int64_t i = 0; i < half; i++) {
            x[to_neighbours ? 2 * i : i] = row[to_neighbours ? i : 2 * i];
            x[to_neighbours ? 2 * i + 1 : half + i] = row[to_neighbours ? half + i : 2 * i + 1];
        }
    }
    free(row);
    return true;
}

typedef struct turned {
    ref_value *x, *y;
    const ref_value *c, *s, *position;
    int64_t width, half, heads;
} turned;

/* Slots of rope_fwd whose sizes fit; the columns that do not turn stand behind the others. */
static bool open_turned(suspect_trial *t, turned *r)
{
    *r = (turned){.x = suspect_input(t, "x"),
                  .y = suspect_output(t, "y"),
                  .c = suspect_input(t, "cos"),
                  .s = suspect_input(t, "sin"),
                  .position = suspect_input(t, "position")};
    if (r->x == NULL || r->y == NULL || r->c == NULL || r->s == NULL || r->position == NULL ||
        r->x->ndim < 1 || r->c->ndim != 2 || r->c->count != r->s->count || r->x->count != r->y->count ||
        r->x->value == NULL || r->y->value == NULL || r->c->value == NULL || r->s->value == NULL ||
        r->position->ivalue == NULL)
        return false;
    r->width = r->x->shape[r->x->ndim - 1];
    r->half = r->c->shape[1];
    const int64_t rows = r->position->count;
    if (r->half < 2 || 2 * r->half > r->width || rows == 0 || r->x->count % (rows * r->width) != 0)
        return false;
    r->heads = r->x->count / (rows * r->width);
    for (int64_t i = 0; i < rows; i++)
        if (r->position->ivalue[i] < 0 || r->position->ivalue[i] >= r->c->shape[0])
            return false;
    return true;
}

/* Neighbours turned by a table that was made for halves, (f0, f1 ..., f0, f1 ...): the two of a pair by different angles. */
static int64_t count_mixed(const turned *r)
{
    const double unit = 0.505 * ref_ulp(1.0, r->y->dtype);
    int64_t bad = 0;
    for (int64_t i = 0; i * r->width < r->x->count; i++) {
        const double *x = r->x->value + i * r->width, *y = r->y->value + i * r->width;
        const int64_t at = r->position->ivalue[i / r->heads] * r->half;
        for (int64_t k = 0; k < r->width; k++) {
            const bool turns = k < 2 * r->half;
            const double one = turns ? x[k] * r->c->value[at + k % r->half] : x[k];
            const double other =
                turns ? (k % 2 == 0 ? -x[k + 1] : x[k - 1]) * r->s->value[at + k % r->half] : 0.0;
            double ratio;
            bad += !ref_admissible(y[k], one + other, turns ? unit * (fabs(one) + fabs(other)) : 0.0,
                                   r->y->dtype, &ratio);
        }
    }
    return bad;
}

bool suspect_other_pairs(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    static const char neighbours[] = "neighbours (2i, 2i + 1)";
    static const char *const words[] = {
        "", " by angles that are made for halves: rotate_half and the table do not belong together",
        ", left as halves", " (rope_interleave), left as halves", " (rope_interleave)"};
    char halves[64];
    turned r;
    if (!open_turned(t, &r) || (r.half == 2 && number > 2))
        return false;
    snprintf(halves, sizeof halves, "halves (i, i + %lld)", (long long)r.half);
    SUSPECT_SAY("rope turns %s where %s are expected%s%s", number > 2 ? halves : neighbours,
                number > 2 ? neighbours : halves, words[number],
                r.half == 2 && number != 1 ? "; or the other way round (of four columns both are one)" : "");
    if (number == 1) {
        t->counted = true;
        t->bad = count_mixed(&r);
        return true;
    }
    const bool results = number == 0 || number == 4;
    return rearrange(r.x, r.width, 0, r.half, number > 2) &&
           (!results || rearrange(r.y, r.width, 0, r.half, number > 2));
}

/* Of multi-latent attention: neighbours turn, and lie in halves then. */
bool suspect_other_pairs_mla(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const bool of_q = suspect_input(t, "q") != NULL;
    ref_value *x = suspect_input(t, of_q ? "q" : "k_pos_emb"), *y = suspect_output(t, of_q ? "y" : "k");
    const ref_value *c = suspect_input(t, "cos");
    if (x == NULL || y == NULL || c == NULL || c->ndim != 2 || x->value == NULL || y->value == NULL)
        return false;
    const int64_t half = c->shape[1], nope = suspect_size(t, of_q ? "head_dim" : "qk_head_dim");
    const int64_t of_y = of_q ? nope : nope + 2 * half, of_x = of_q ? of_y : 2 * half;
    if (half < 2 || nope < 0 || of_x < 2 * half || of_x > x->count || of_y < 2 * half || of_y > y->count)
        return false;
    SUSPECT_SAY(number == 0
                    ? "rope turns halves (i, i + %lld) where neighbours (2i, 2i + 1) are expected "
                      "(rope_interleave)"
                    : "rope leaves what it turned as neighbours where halves (i, i + %lld) are expected",
                (long long)half);
    return number == 0 ? rearrange(x, of_x, of_x - 2 * half, half, true)
                       : rearrange(y, of_y, of_y - 2 * half, half, false);
}
