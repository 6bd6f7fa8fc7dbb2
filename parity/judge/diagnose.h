/* What the diagnoses share.  Private to parity/judge/diagnose*.c.
 *
 * A diagnosis is a hypothesis: found[i] should be factor * expected[source].  It competes with the null
 * hypothesis, "the right values, somewhat off", under the same allowance, and is said only when
 *   1. nearly all (49 of 50) of the elements it speaks of lie within the allowance of what it predicts,
 *   2. at most half of the wrong ones lie as close to what was expected, and
 *   3. its matches are a surprise: log2(distance to the expected value / allowance), summed over the wrong
 *      elements, exceeds by EVIDENCE_BITS what its free choices (a fitted factor, the row it names) cost.
 *      A value that many elements share is found by chance, and counts for no more than its rarity. */
#ifndef PARITY_DIAGNOSE_H
#define PARITY_DIAGNOSE_H

#include "parity/judge/judge.h"

enum { EVIDENCE_BITS = 10 };

typedef struct comparison {
    const double *found, *expected, *allowance; /* allowance NULL: none */
    const int64_t *shape;
    int ndim;
    int64_t count, n_bad;
    const unsigned char *bad; /* [count] */
    assay_dtype stored;
    const parity_scales *scales;
    double scale; /* largest finite |expected| */
} comparison;

typedef struct trial {
    int64_t elements, explained; /* what the hypothesis speaks of */
    int64_t wrong, usual;        /* wrong ones, and those of them that the null hypothesis explains as well */
    double bits, largest;        /* surprise in all, and of the most surprising element */
} trial;

/* How far a value that was made from expected[source] may honestly lie from factor * expected[source]. */
double parity_trial_slack(const comparison *v, int64_t source, double factor);
/* Element i is predicted to be factor * expected[source]; rarity: bits that a match is worth at most. */
void parity_trial_add(trial *t, const comparison *v, int64_t i, int64_t source, double factor, double rarity);
/* More than one element in 50 of `elements` is unexplained already: it will not hold. */
bool parity_trial_lost(const trial *t, int64_t elements);
/* cost: bits of the hypothesis' free choices. */
bool parity_trial_holds(const trial *t, double cost);

/* diagnose_rows.c: transposed, shifted or permuted rows. */
bool parity_say_rows(const comparison *v, char *out, size_t capacity);
/* diagnose_ratio.c: a factor common to all, then to most wrong values. */
bool parity_say_ratio(const comparison *v, char *out, size_t capacity);
bool parity_say_usual_ratio(const comparison *v, char *out, size_t capacity);

#endif
