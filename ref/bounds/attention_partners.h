/* What one query or one key of attention meets: the visible partners in runs of neighbours, and the scratch of their numbers.
 * ref/bounds/attention.c has the formulas. */
#ifndef REF_BOUNDS_ATTENTION_PARTNERS_H
#define REF_BOUNDS_ATTENTION_PARTNERS_H

#include "ref/bounds/bounds.h"

/* A tensor [sequence, batch, heads, width] head by head: as rows [batch, heads, sequence, width] and as
 * columns [batch, heads, width, stride], which are readable REF_PANEL beyond the sequence. */
typedef struct packed {
    double *rows, *columns;
    int64_t sequence, batch, heads, width, stride;
} packed;

bool packed_init(packed *p, const double *x, int64_t sequence, int64_t batch, int64_t heads, int64_t width);
void packed_free(packed *x);

/* Who sees whom, batch row by batch row: query i sees the keys whose position lies in from[i] ... to[i]. */
typedef struct sight {
    int64_t *from, *to; /* [batch, seq_q] */
    int64_t *key;       /* [batch, seq_k] positions */
    int64_t seq_q, seq_k;
} sight;

bool sight_init(sight *x, const ref_attention_desc *d);
void sight_free(sight *x);

/* Partners that are neighbours: of head `head`, sequence places start ... start+n-1. */
typedef struct run {
    int64_t head, start, n;
} run;

/* n visible partners.  Arrays hold `capacity` partners and a panel more. */
typedef struct partners {
    int64_t n, n_runs, batch_row;
    run *runs;
    ref_rows *pieces;
    double *s, *es;   /* dot products q k, later scaled scores, and their bounds */
    double *dp, *edp; /* dot products dO v */
    double *p, *ep;   /* probabilities: absolute error ep */
    double *ds, *eds; /* gradient of the scores */
    double *lse, *delta, *edelta;
    double *factor;        /* 0 or 1/(1-p), where there is dropout */
    double *passed;        /* rescale steps of the online softmax before the partner */
    double *gathered;      /* [capacity, max(D, Dv)] rows of several pieces */
    double *own, *rounded; /* [max(D, Dv)] */
} partners;

bool partners_init(partners *x, int64_t capacity, int64_t width);
void partners_free(partners *x);

/* The keys, all of head g, that query i of batch row b sees. */
void partners_keys(partners *z, const sight *x, int64_t b, int64_t i, int64_t g);
/* The queries of heads first ... first+heads-1 that see key j of batch row b. */
void partners_queries(partners *z, const sight *x, int64_t b, int64_t j, int64_t first, int64_t heads);

/* y, bound [n] = x [width] . partner.  A run is summed in whole panels: what they hold beyond it is overwritten by the next
 * run, or ignored. */
void partners_dots(double *y, double *bound, const partners *z, const double *x, const packed *other,
                   const ref_order *order);
/* The partners' rows in pieces of neighbours, of which the first n_runs are set. */
const ref_rows *partners_rows(const partners *z, const packed *other);

#endif
