/* The one thing that is changed in a record: mistakes of training code, made independently of what looks for them. */
#ifndef TESTS_SUPPORT_SUSPECT_PLANTS_H
#define TESTS_SUPPORT_SUSPECT_PLANTS_H

#include "tests/support/suspect.h"

static inline void scale_values(ref_value *v, double factor)
{
    for (int64_t i = 0; i < v->count; i++)
        v->value[i] *= factor;
}

static inline void shift_integers(ref_value *v, int64_t by)
{
    for (int64_t i = 0; i < v->count; i++)
        v->ivalue[i] += by;
}

static inline void gamma_one(call *c)
{
    scale_values(slot_of(c, "gamma"), 0.0);
    for (int64_t i = 0; i < slot_of(c, "gamma")->count; i++)
        slot_of(c, "gamma")->value[i] = 1.0;
}

static inline void gamma_plus_one(call *c)
{
    for (int64_t i = 0; i < slot_of(c, "gamma")->count; i++)
        slot_of(c, "gamma")->value[i] += 1.0;
}

static inline void no_mean(call *c)
{
    ref_value *x = slot_of(c, "x");
    const int64_t h = slot_of(c, "gamma")->count;
    for (int64_t i = 0; i < x->count; i += h) {
        double sum = 0.0;
        for (int64_t k = 0; k < h; k++)
            sum += x->value[i + k];
        for (int64_t k = 0; k < h; k++)
            x->value[i + k] -= sum / (double)h;
    }
}

static inline void other_sign(call *c)
{
    scale_values(slot_of(c, "sin"), -1.0);
}

static inline void not_turned(call *c)
{
    scale_values(slot_of(c, "sin"), 0.0);
    for (int64_t i = 0; i < slot_of(c, "cos")->count; i++)
        slot_of(c, "cos")->value[i] = 1.0;
}

static inline void next_position(call *c)
{
    shift_integers(slot_of(c, "position"), 1);
}

static inline void last_position(call *c)
{
    shift_integers(slot_of(c, "position"), -1);
}

/* The last 2 half columns of rows of `width`: as neighbours, or as halves. */
static inline void reorder(ref_value *v, int64_t width, int64_t half, bool neighbours)
{
    double row[64];
    for (int64_t i = 0; i < v->count; i += width) {
        double *x = v->value + i + width - 2 * half;
        memcpy(row, x, (size_t)(2 * half) * sizeof *row);
        for (int64_t k = 0; k < half; k++) {
            x[neighbours ? 2 * k : k] = row[neighbours ? k : 2 * k];
            x[neighbours ? 2 * k + 1 : half + k] = row[neighbours ? half + k : 2 * k + 1];
        }
    }
}

static inline int64_t half_of(call *c)
{
    return slot_of(c, "cos")->shape[1];
}

static inline void to_halves(call *c)
{
    reorder(slot_of(c, "x"), 2 * half_of(c), half_of(c), false);
}

static inline void to_neighbours(call *c)
{
    reorder(slot_of(c, "x"), 2 * half_of(c), half_of(c), true);
}

static inline void results_neighbours(call *c)
{
    reorder(slot_of(c, "y"), 2 * half_of(c), half_of(c), true);
}

static inline void results_halves(call *c)
{
    reorder(slot_of(c, "y"), 2 * half_of(c), half_of(c), false);
}

/* rotate_half of neighbours, and cos and sin of halves. */
static inline void mixed_pairs(call *c)
{
    ref_value *x = slot_of(c, "x"), *y = slot_of(c, "y");
    const ref_value *cosines = slot_of(c, "cos"), *sines = slot_of(c, "sin"),
                    *position = slot_of(c, "position");
    const int64_t half = half_of(c), d = 2 * half, heads = x->count / d / position->count;
    for (int64_t i = 0; i < x->count; i++) {
        const int64_t k = i % d, at = position->ivalue[i / d / heads] * half + k % half;
        const double other = k % 2 == 0 ? -x->value[i + 1] : x->value[i - 1];
        const float a = (float)(x->value[i] * cosines->value[at]), b = (float)(other * sines->value[at]);
        y->value[i] = (double)(a + b);
    }
}

static inline void q_halves(call *c)
{
    reorder(slot_of(c, "q"), 12, half_of(c), true);
}

static inline void q_neighbours(call *c)
{
    reorder(slot_of(c, "y"), 12, half_of(c), true);
}

static inline void k_halves(call *c)
{
    reorder(slot_of(c, "k_pos_emb"), 2 * half_of(c), half_of(c), true);
}

static inline void k_neighbours(call *c)
{
    reorder(slot_of(c, "k"), 12, half_of(c), true);
}

/* Query head h reads group h mod 2: what the reference makes of heads in the order 0 2 1 3, put back. */
static inline void deal(ref_value *v, int64_t d)
{
    for (int64_t i = 0; i < v->count; i += 4 * d)
        for (int64_t k = 0; k < d; k++) {
            const double kept = v->value[i + d + k];
            v->value[i + d + k] = v->value[i + 2 * d + k];
            v->value[i + 2 * d + k] = kept;
        }
}

static inline void dealt_queries(call *c)
{
    deal(slot_of(c, "q"), 8);
}

static inline void dealt_results(call *c)
{
    deal(slot_of(c, "o"), 8);
}

static inline void sees_less(call *c)
{
    ref_value *q = slot_of(c, "q_position");
    for (int64_t i = 0; i < q->count; i++)
        q->ivalue[i] -= q->ivalue[i] > 0;
}

static inline void sees_more(call *c)
{
    ref_value *q = slot_of(c, "q_position");
    for (int64_t i = 0; i < q->count; i++)
        q->ivalue[i] += q->ivalue[i] < 8;
}

static inline void sees_all(call *c)
{
    ref_value *q = slot_of(c, "q_position");
    for (int64_t i = 0; i < q->count; i++)
        q->ivalue[i] = 8;
}

static inline void sum_of(call *c, double a, double b)
{
    scale_values(slot_of(c, "a"), a);
    scale_values(slot_of(c, "b"), b);
}

static inline void only_b(call *c)
{
    sum_of(c, 0.0, 1.0);
}

static inline void only_a(call *c)
{
    sum_of(c, 1.0, 0.0);
}

static inline void twice_a(call *c)
{
    sum_of(c, 2.0, 1.0);
}

static inline void twice_b(call *c)
{
    sum_of(c, 1.0, 2.0);
}

static inline void minus_b(call *c)
{
    sum_of(c, 1.0, -1.0);
}

static inline void half_b(call *c)
{
    sum_of(c, 1.0, 0.5);
}

/* As PyTorch: 1/(1-p) and the product are rounded. */
static inline void drop(call *c, double p)
{
    const ref_value *a = slot_of(c, "a"), *b = slot_of(c, "b");
    ref_value *y = slot_of(c, "y");
    const double kept = ref_round(1.0 / (1.0 - p), b->dtype);
    for (int64_t i = 0; i < y->count; i++) {
        const double part = noise_at(7 * i + 5) < p ? 0.0 : ref_round(b->value[i] * kept, b->dtype);
        y->value[i] = ref_round(a->value[i] + part, y->dtype);
    }
}

static inline void drop_10(call *c)
{
    drop(c, 0.1);
}

static inline void drop_20(call *c)
{
    drop(c, 0.2);
}

static inline void drop_25(call *c)
{
    drop(c, 0.25);
}

static inline void drop_50(call *c)
{
    drop(c, 0.5);
}

/* Of a share p far more is lost: no dropout of p. */
static inline void drop_more(call *c)
{
    drop(c, 0.5);
    ref_value *y = slot_of(c, "y");
    const ref_value *a = slot_of(c, "a"), *b = slot_of(c, "b");
    for (int64_t i = 0; i < y->count; i++)
        if (y->value[i] != a->value[i])
            y->value[i] = ref_round(a->value[i] + b->value[i] / 0.9, y->dtype);
}

static inline void no_bias(call *c)
{
    scale_values(slot_of(c, "bias"), 0.0);
}

static inline void twice_bias(call *c)
{
    scale_values(slot_of(c, "bias"), 2.0);
}

static inline void transposed(call *c)
{
    ref_value *w = slot_of(c, "weight");
    double kept[64];
    memcpy(kept, w->value, sizeof kept);
    for (int i = 0; i < 64; i++)
        w->value[i] = kept[i % 8 * 8 + i / 8];
}

static inline void other_weight(call *c)
{
    fill_other_weight(slot_of(c, "weight"));
}

static inline void autocast(call *c)
{
    ref_value *both[] = {slot_of(c, "x"), slot_of(c, "weight")};
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < both[k]->count; i++)
            both[k]->value[i] = ref_round(both[k]->value[i], ASSAY_BF16);
}

static inline void exchanged(call *c)
{
    ref_value *x = slot_of(c, "x");
    for (int64_t i = 0; i < x->count; i += 16)
        for (int64_t k = 0; k < 8; k++) {
            const double kept = x->value[i + k];
            x->value[i + k] = x->value[i + 8 + k];
            x->value[i + 8 + k] = kept;
        }
}

/* A hundredth of each value, up or down: no mistake with a name. */
static inline void noise(call *c)
{
    ref_value *y = &c->out.outputs[0];
    for (int64_t i = 0; i < y->count; i++)
        y->value[i] = ref_round(y->value[i] * (0.99 + 0.02 * noise_at(3 * i + 1)), y->dtype);
}

#endif
