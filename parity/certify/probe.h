/* The probe: what a device's matrix units and functions do, and whether the bounds of certificates may rest on it.  Private to
 * parity/certify/. */
#ifndef PARITY_CERTIFY_PROBE_H
#define PARITY_CERTIFY_PROBE_H

#include "core/run/probe.h"
#include "parity/certify/certify.h"

enum {
    PROBE_EXACT_BITS = 29 /* a double has no more */,
    PROBE_RANDOM = 64,
    PROBE_TEXT = 256,
    PROBE_STRIDE = 65537 /* of certificates */
};

/* How a matrix unit adds. */
typedef struct certify_matrix {
    int terms; /* products that enter one sum; 0: cannot be told */
    int guard_bits; /* bits beyond the accumulator's that a sum keeps; PROBE_EXACT_BITS: more than were asked for */
    char alignment[12], result[12]; /* "truncated", "nearest", "down", "unknown" */
    char by
        [12]; /* the largest exponent, that all are aligned to: "value", of a product as a number, or "factors", the sum of
                    those of its factors, one less where their mantissas' product is 2 or more; "exact", "unknown" */
    bool products_exact, accumulator_inside, uniform;
    int predicted; /* of PROBE_RANDOM random sums, those that this description gives bit for bit */
} certify_matrix;

typedef struct certify_function {
    const char *name;
    double documented, largest; /* units in the last place */
    uint32_t at;                /* bits of the argument */
    int64_t tried, outside;     /* how many are worse than documented, or of another class */
    char first[PROBE_TEXT];     /* of those */
} certify_function;

typedef struct certify_probe {
    certify_matrix matrix;
    certify_function function[ASSAY_PROBE_FUNCTIONS];
    uint32_t stride;
} certify_probe;

/* The questions of matrix units, or none, and of functions; *bytes is the caller's. */
assay_status probe_questions(bool products, const assay_probe_arguments *x, int n_functions, char **bytes,
                             size_t *n);
int64_t probe_products(void);
/* The parts of an answer: results [probe_products()][256], and one function's values. */
void probe_judge_matrix(const float *results, certify_matrix *out);
void probe_judge_values(certify_function *f, assay_probe_function which, uint32_t first, uint32_t stride,
                        const float *y, int64_t n);
void probe_begin(certify_probe *p, uint32_t stride);

/* Runs an engine program. */
assay_status probe_run(const certify_options *o, const char *work, uint32_t stride, certify_probe *out);
/* Whether the declared arithmetic's bound holds on such a device; else `why` says what disagrees. */
bool probe_covers(const certify_probe *p, const assay_arith *a, char *why, size_t capacity);
/* Whether units and functions are as documented, whatever is declared. */
bool probe_good(const certify_probe *p, char *why, size_t capacity);
/* Every declared sum of an answer's records against what the units were seen to do: trial `probe`. */
void probe_hold(const certify_probe *p, const assay_trace *trace, certify_result *r);
json_t *probe_json(const certify_probe *p);
void probe_print(const certify_probe *p, FILE *out);

#endif
