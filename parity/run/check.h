/* Parts of `assay check`: a recorded run against a model folder.  Private to parity/run/check*.c. */
#ifndef PARITY_CHECK_H
#define PARITY_CHECK_H

#include "parity/run/diff.h"

/* Where a mistake is looked for, in order: what comes first explains what comes after. */
typedef enum {
    CHECK_CONFIGURATION, /* the run's own configuration against the folder's */
    CHECK_WEIGHTS,       /* the recorded parameters against the folder's */
    CHECK_ATTRIBUTES,    /* what operations were called with */
    CHECK_CONTINUITY,    /* what one step left against what the next one found */
    CHECK_OPERATIONS,    /* every recorded operation computed again */
    CHECK_WHOLE,         /* the run against the reference's on the recorded batch */
    CHECK_PARTS
} check_part;

enum { CHECK_TEXT = 2 * PARITY_TEXT, CHECK_NOTES = 32, CHECK_OTHERS = 10 };

typedef struct check_state {
    const char *folder;
    const assay_trace *trace;
    parity_index *index;
    parity_aligner *names;
    parity_reference *reference; /* NULL: cannot run */
    int64_t passed[CHECK_PARTS], failed[CHECK_PARTS], skipped[CHECK_PARTS];
    char first[CHECK_PARTS][CHECK_TEXT]; /* the first mistake of each part; "" none */
    char unchecked[CHECK_PARTS][PARITY_TEXT];
    json_t *others;     /* texts of the mistakes after the first of their part, CHECK_OTHERS at the most */
    json_t *notes;      /* texts, CHECK_NOTES at the most ... */
    int64_t more_notes; /* ... and how many more there were */
    json_t *not_judged; /* texts: what the recorder could not record as an operation */
} check_state;

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
/* Counts a failure; the first of its part is kept. */
void check_fail(check_state *c, check_part part, const char *fmt, ...);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void check_note(check_state *c, const char *fmt, ...);

assay_status check_configuration(check_state *c);
assay_status check_attributes(check_state *c);
/* Puts weights that were trained since into the reference's. */
assay_status check_weights(check_state *c);
/* check_continuity.c: no reference is asked: weights, masters, moments and step numbers of consecutive recorded steps. */
assay_status check_continuity(check_state *c);
assay_status check_operations(check_state *c);
assay_status check_whole(check_state *c);
/* That backwards left gradients of parameters, and that what an optimizer read is them: all, times one factor. */
assay_status check_gradients(check_state *c);
/* What a loss that is wrong looks like: other shifts of the labels, a factor; "": nothing known. */
assay_status check_explain_loss(const check_state *c, int64_t microbatch, char text[PARITY_TEXT]);
/* check_router.c: the same of the probabilities of chosen experts. */
void check_explain_probs(const check_state *c, const double *found, int64_t count, int64_t tokens,
                         char text[PARITY_TEXT]);

#endif
