/* Hypotheses, private parts: what they share, and those of suspect_rope.c, suspect_attention.c and suspect_dropout.c. */
#ifndef PARITY_SUSPECT_OPS_H
#define PARITY_SUSPECT_OPS_H

#include "parity/judge/suspect.h"

#define SUSPECT_SAY(...) snprintf(text, PARITY_TEXT, __VA_ARGS__)

/* Attributes of the trial. */
bool suspect_set_real(suspect_trial *t, const char *key, double x);
double suspect_attr(const suspect_trial *t, const char *key);
/* A whole number up to 2^30; 0: none. */
int64_t suspect_size(const suspect_trial *t, const char *key);
/* The number with few digits nearest to x within what a fit may be off. */
double suspect_round_number(double x);
/* The number with the fewest digits within `share` of x; x itself where that is more than six. */
double suspect_short_number(double x, double share);
void suspect_scale_all(ref_value *v, double factor);

/* Attention as a trial has it: rows of queries and what each of them sees. */
typedef struct suspect_rows {
    int64_t batch, queries, keys, heads, groups, d, dv, window; /* queries, keys: rows, batch times length */
    double scale;
    const ref_value *q, *k, *v, *o;
    const int64_t *q_position, *k_position, *first_key; /* first_key: NULL where it is not restricted */
} suspect_rows;
bool suspect_rows_open(suspect_trial *t, suspect_rows *r);
/* Keys that a query of a head sees, with q.k, the scores before they are scaled; their number.  key, dot: [keys / batch]. */
int64_t suspect_rows_seen(const suspect_rows *r, int64_t query, int64_t head, int64_t *key, double *dot);
/* Probabilities of n scores; false: not finite. */
bool suspect_softmax(const double *dot, int64_t n, double scale, double *p);

/* Change the trial; false: does not apply.  `number` counts the variants of one hypothesis. */
bool suspect_other_base(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_rope_type(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_rotation(suspect_trial *t, int number, char text[PARITY_TEXT]);
/* Pairs of a head that turn together: neighbours or halves. */
bool suspect_other_pairs(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_pairs_mla(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_groups(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_mask(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_scale(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_window(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_fitted_scale(suspect_trial *t, int number, char text[PARITY_TEXT]);
/* Dropout of the second term of an addition; of the probabilities of attention. */
bool suspect_dropout(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_attention_dropout(suspect_trial *t, int number, char text[PARITY_TEXT]);

#endif
