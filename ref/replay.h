/* Recomputing one recorded operation with a running error bound for each element: the judge's view of ref/ops
 * + ref/bounds.
 *
 * The judge hands over the operation's name, attributes, declared arithmetic and the recorded inputs (values
 * exact in double); ref_replay returns for every output the double-precision result y and a bound B on how
 * far an honest implementation with the declared arithmetic may lie from y before its output is rounded.  The
 * admissible interval of an element stored in dtype t is then |yhat - y| <= B + ulp_t(|y| + B)/2
 * (ref_admissible below).  Formulas: docs/TOLERANCES.md.  Discrete outputs (router indices) are judged by
 * admissibility and then replayed. */
#ifndef REF_REPLAY_H
#define REF_REPLAY_H

#include "core/base/arith.h"
#include "core/model/spec.h"

#include <math.h>
#include <string.h>

typedef enum {
    REF_VALUE_REAL,    /* value, bound: within the interval */
    REF_VALUE_EXACT,   /* value: equal after rounding to the stored dtype (copies, lookups) */
    REF_VALUE_INTEGER, /* ivalue: equal */
    REF_VALUE_CHOICE   /* integer decisions, judged by n_inadmissible of the result */
} ref_value_kind;

/* One slot.  Real dtypes use `value`, integer dtypes (I64, I32, U8...) use `ivalue`. */
typedef struct ref_value {
    char slot[24];
    assay_dtype dtype; /* stored dtype of the candidate */
    int ndim;
    int64_t shape[ASSAY_MAX_DIMS];
    int64_t count;
    double *value;
    int64_t *ivalue;
    double *bound; /* outputs of kind REAL */
    ref_value_kind kind;
    bool signed_zeros;    /* of kind EXACT: a zero has its sign, too; else they are equal as numbers */
    const char *dominant; /* outputs: the largest term of the bound in words ("accumulation", "exp"), static
                             storage */
} ref_value;

/* An inadmissible decision: of the experts that both choices do not share, the pair that is farthest from being admissible. */
enum { REF_DECISIONS_SHOWN = 8, REF_DECISION_EXPERTS = 16 };
typedef struct ref_decision {
    int64_t row;
    int n_expected; /* at most REF_DECISION_EXPERTS of the reference's choice, ascending */
    int64_t expected[REF_DECISION_EXPERTS];
    int64_t left_out,
        taken; /* experts of the reference alone and of the candidate alone; -1: there is no such pair */
    double left_score, left_bound; /* what the selection goes by, and how far an honest one may lie off */
    double taken_score, taken_bound;
} ref_decision;

/* The choices of an output. */
typedef struct ref_choices {
    int64_t n_decisions, n_ambiguous, n_inadmissible;
    int64_t first_inadmissible; /* row, -1 */
    int64_t n_experts;          /* to choose from */
    int n_shown;
    ref_decision shown[REF_DECISIONS_SHOWN]; /* the first that are inadmissible */
    double decision_gap; /* worst (best unchosen + bound) - (worst chosen - bound) over inadmissible rows */
} ref_choices;

enum { REF_REPLAY_CHOICES = 2 };
typedef struct ref_replay_result {
    int n_outputs;
    ref_value outputs[12]; /* arrays owned by the result */
    int n_choices;
    ref_choices choices[REF_REPLAY_CHOICES]; /* of the outputs of kind CHOICE, in their order */
    /* of them all; which row and which experts: of the first that has an inadmissible one */
    int64_t n_decisions, n_ambiguous, n_inadmissible;
    int64_t first_inadmissible;
    int64_t n_experts;
    int n_shown;
    ref_decision shown[REF_DECISIONS_SHOWN];
    double decision_gap;
} ref_replay_result;

/* Whether this operation is known ("all_reduce" and the other collectives are not: parity assembles them
 * itself, with ref_bound_sum below). */
bool ref_replay_knows(const char *op);
/* Each output is computed with the bound of its own declared arithmetic.
 * `candidate`: the recorded outputs (used only to take over discrete choices and to know stored dtypes).
 * ASSAY_NOT_FOUND: unknown op; ASSAY_INVALID_ARGUMENT: missing slot or attribute, shapes that contradict
 * (each named); ASSAY_UNSUPPORTED: a declared arithmetic for which no bound is known. */
assay_status ref_replay(const char *op, const json_t *attrs, const assay_declaration *declared,
                        const ref_value *inputs, int n_inputs, const ref_value *candidate, int n_candidate,
                        ref_replay_result *result);
void ref_replay_free(ref_replay_result *r);

/* Elements-wise sum over n pieces in rank order with a bound: y [count] =, bound [count] =; pieces[r]
 * [count]. `hop` is the dtype on the wire: every partial sum is rounded to it when arith says sequential and
 * hop is narrower than F32. */
void ref_bound_sum(double *y, double *bound, const double *const *pieces, int n, int64_t count,
                   const assay_arith *arith, assay_dtype hop);

/* In place of the bound of an infinite y: as the formula's terms are grouped, a NaN is as right. */
#define REF_OR_NAN (-HUGE_VAL)
/* |yhat - y| <= B + ulp_t(|y|+B)/2, NaN fails; overflow of |y|+B admits infinities; non-finite y demands the
 * same class, or one of two (REF_OR_NAN). *ratio: |yhat - y| / (B + ulp/2), infinity when it must fail; a zero allowance with zero error
 * gives 0. */
bool ref_admissible(double yhat, double y, double bound, assay_dtype stored, double *ratio);
/* The same of finite numbers, where err = |yhat - y| and half = ulp_t(|y|+B)/2 are known. */
static inline bool ref_within(double err, double bound, double half, double *ratio)
{
    const double allowance = bound + half;
    *ratio = allowance > 0.0 ? err / allowance : (err == 0.0 ? 0.0 : HUGE_VAL);
    return err <= allowance;
}
/* ref_round into bf16 of a finite number of at least its smallest normal one: an addition to the bits and a mask. */
static inline bool ref_bf16_is_normal(double x)
{
    return fabs(x) >= 0x1p-126 && fabs(x) < HUGE_VAL;
}
static inline double ref_round_bf16_normal(double x)
{
    const uint64_t cut = 45; /* bits of a double's significand that bf16 has not */
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    u += (((uint64_t)1 << (cut - 1)) - 1) + ((u >> cut) & 1); /* to nearest, ties to even */
    u &= ~(((uint64_t)1 << cut) - 1);
    memcpy(&x, &u, sizeof x);
    return fabs(x) < 0x1p128 ? x : copysign(HUGE_VAL, x);
}
/* Rounds to nearest even into the format of dtype (F64: unchanged); overflow to infinity; subnormals kept. */
double ref_round(double x, assay_dtype dtype);
/* Distance between neighbours of the format at |x| (smallest subnormal at 0). */
double ref_ulp(double x, assay_dtype dtype);
/* A format looked up once, for loops over a tensor: ref_format_ulp(ref_format_of(t), x) is ref_ulp(x, t). */
typedef struct ref_format {
    int precision, emin; /* precision 0: not a floating-point format */
} ref_format;
ref_format ref_format_of(assay_dtype dtype);
static inline double ref_format_ulp(ref_format f, double x)
{
    const int bias = 1023, digits = 52;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> digits & 0x7ff) - bias; /* |x| in [2^exponent, 2^(exponent+1)) */
    if (exponent == bias + 1)
        return fabs(x); /* infinite or not a number */
    /* 2^e as a double, normal or subnormal */
    const int e = (exponent < f.emin ? f.emin : exponent) - f.precision + 1;
    bits = e > -bias ? (uint64_t)(e + bias) << digits : (uint64_t)1 << (e + bias + digits - 1);
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
