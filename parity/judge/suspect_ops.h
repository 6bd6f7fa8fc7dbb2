/* Hypotheses, private parts: what they share, and those of suspect_attention.c. */
#ifndef PARITY_SUSPECT_OPS_H
#define PARITY_SUSPECT_OPS_H

#include "parity/judge/suspect.h"

#define SUSPECT_SAY(...) snprintf(text, PARITY_TEXT, __VA_ARGS__)

/* Attributes of the trial. */
bool suspect_set_real(suspect_trial *t, const char *key, double x);
double suspect_attr(const suspect_trial *t, const char *key);
/* The number with few digits nearest to x within what a fit may be off. */
double suspect_round_number(double x);
void suspect_scale_all(ref_value *v, double factor);

/* Change the trial; false: does not apply.  `number` counts the variants of one hypothesis. */
bool suspect_other_base(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_rope_type(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_rotation(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_groups(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_mask(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_scale(suspect_trial *t, int number, char text[PARITY_TEXT]);
bool suspect_other_window(suspect_trial *t, int number, char text[PARITY_TEXT]);

#endif
