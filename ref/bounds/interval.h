/* A value together with a bound on how far a computed one may lie from it, and the elementary operations on
 * such pairs.
 *
 * v is the double-precision value, b >= |computed - v| for any computation that rounds to nearest with unit
 * roundoff u.  Every rule keeps the second-order part (the error of an operand is fed back into the size of
 * the rounding), so composed bounds need no safety factor.  A fused multiply-add only removes a rounding: the
 * bounds hold with and without. */
#ifndef REF_BOUNDS_INTERVAL_H
#define REF_BOUNDS_INTERVAL_H

#include "core/base/arith.h"
#include "ref/fast/vector.h"
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* The accumulate format of a declared arithmetic. */
typedef struct ref_num {
    double u;    /* half-ulp relative error, widened by the reference's own rounding */
    double eta;  /* smallest subnormal: absolute error of an underflowing product */
    double tiny; /* smallest normal: absolute error of a math function whose inner exp over- or underflows */
    double f;    /* relative error of exp, log, rsqrt, sin, cos */
} ref_num;

typedef struct ref_iv {
    double v, b;
} ref_iv;

static inline ref_num ref_num_of(const assay_arith *a)
{
    const bool wide = a->accumulate == ASSAY_F64;
    const double u = wide ? 0x1p-52 : 0x1p-24 * (1.0 + 0x1p-20);
    return (ref_num){u, wide ? 0x1p-1074 : 0x1p-149, wide ? 0x1p-1022 : 0x1p-126,
                     2.0 * u * (a->math_ulp > 1 ? (double)a->math_ulp : 1.0)};
}

static inline ref_iv iv_exact(double v)
{
    return (ref_iv){v, 0.0};
}

/* A constant that the kernel holds in the accumulate format. */
static inline ref_iv iv_constant(const ref_num *n, double v)
{
    return (ref_iv){v, n->u * fabs(v)};
}

/* One more rounding of x. */
static inline ref_iv iv_rounded(const ref_num *n, ref_iv x)
{
    return (ref_iv){x.v, x.b + n->u * (fabs(x.v) + x.b)};
}

static inline ref_iv iv_neg(ref_iv x)
{
    return (ref_iv){-x.v, x.b};
}

static inline ref_iv iv_add(const ref_num *n, ref_iv x, ref_iv y)
{
    return iv_rounded(n, (ref_iv){x.v + y.v, x.b + y.b});
}

static inline ref_iv iv_sub(const ref_num *n, ref_iv x, ref_iv y)
{
    return iv_add(n, x, iv_neg(y));
}

static inline ref_iv iv_mul(const ref_num *n, ref_iv x, ref_iv y)
{
    ref_iv z = iv_rounded(n, (ref_iv){x.v * y.v, fabs(x.v) * y.b + fabs(y.v) * x.b + x.b * y.b});
    z.b += n->eta;
    return z;
}

/* Infinite bound when the divisor may be zero. */
static inline ref_iv iv_div(const ref_num *n, ref_iv x, ref_iv y)
{
    const double q = x.v / y.v, room = fabs(y.v) - y.b;
    const double b = room > 0.0 ? (x.b + fabs(q) * y.b) / room : HUGE_VAL;
    ref_iv z = iv_rounded(n, (ref_iv){q, b});
    z.b += n->eta;
    return z;
}

/* A divisor that many numbers have in common: division becomes a product, one rounding of the reference's own more. */
typedef struct ref_divisor {
    double inverse, b, room; /* 1 / v, bound of v, 1 / (|v| - b), or infinity where the divisor may be zero */
} ref_divisor;

static inline ref_divisor iv_divisor(ref_iv y)
{
    const double room = fabs(y.v) - y.b;
    return (ref_divisor){1.0 / y.v, y.b, room > 0.0 ? 1.0 / room : HUGE_VAL};
}

static inline ref_iv iv_div_by(const ref_num *n, ref_iv x, ref_divisor y)
{
    const double q = x.v * y.inverse;
    ref_iv z = iv_rounded(n, (ref_iv){q, (x.b + fabs(q) * y.b) * y.room});
    z.b += n->eta;
    return z;
}

/* exp is that of ref/fast/vector.h, right to one ulp as libm's: what it is off by is within the widening of u in F32 and
 * within the doubled f in F64. */
static inline ref_iv iv_exp(const ref_num *n, ref_iv x)
{
    const double v = ref_fast_exp(x.v), b = v * ref_fast_expm1(x.b);
    return (ref_iv){v, b + n->f * (v + b) + n->tiny};
}

static inline ref_iv iv_log(const ref_num *n, ref_iv x)
{
    const double v = log(x.v), b = x.b < x.v ? -log1p(-x.b / x.v) : HUGE_VAL;
    return (ref_iv){v, b + n->f * (fabs(v) + b)};
}

static inline ref_iv iv_sqrt(const ref_num *n, ref_iv x)
{
    const double v = sqrt(x.v), low = x.v - x.b;
    /* sqrt(v) - sqrt(low), without the cancellation */
    const double b = low > 0.0 ? x.b / (v + sqrt(low)) : sqrt(x.v + x.b);
    return iv_rounded(n, (ref_iv){v, b});
}

static inline ref_iv iv_rsqrt(const ref_num *n, ref_iv x)
{
    const double low = x.v - x.b, v = 1.0 / sqrt(x.v);
    const double b = low > 0.0 ? v * x.b / (sqrt(low) * (sqrt(x.v) + sqrt(low))) : HUGE_VAL;
    return (ref_iv){v, b + n->f * (v + b)};
}

/* 1/(1 + exp(-x)) of an exact x: the error of exp, one addition, one division; an exp that overflows gives 0.
 */
static inline ref_iv iv_sigmoid(const ref_num *n, double x)
{
    const double e = ref_fast_exp(-fabs(x)), v = (x >= 0.0 ? 1.0 : e) / (1.0 + e);
    return (ref_iv){v, (n->f + 2.0 * n->u) * v + n->tiny};
}

static inline double iv_above_one(double x)
{
    return fabs(x) > 1.0 ? fabs(x) : 1.0;
}

/* What underflow adds to a product whose association nobody declares: each of its `products` partial products may be off by
 * eta/2, which those factors multiply that are left, at most the product of all that are above 1.  The other half of eta pays
 * for the roundings behind. */
static inline ref_iv iv_any_association(const ref_num *n, ref_iv x, int products, double above_one)
{
    return (ref_iv){x.v, x.b + n->eta * products * above_one};
}

#endif
