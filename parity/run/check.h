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
    int64_t n_misshapen;                 /* recorded parameters that are not of the folder's shapes */
    char first[CHECK_PARTS][CHECK_TEXT]; /* the first mistake of each part; "" none */
    char unchecked[CHECK_PARTS][PARITY_TEXT];
    json_t *others; /* texts of the mistakes after the first of their part, CHECK_OTHERS at the most */
    bool scaled;    /* the loss is, and that was said */
    bool
        optimizer_gradients; /* those of parameters are recorded as the optimizer took them, and nowhere else */
    bool clip_noted, labels_noted;
    bool no_gradients;  /* the reference has no objective like the run's */
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
/* check_replicas.c: ranks that hold the same piece of a parameter step it alike. */
assay_status check_replicas(check_state *c);
/* check_missing.c: parameters without a gradient, where others have one, and gradients that no optimizer takes. */
assay_status check_missing(check_state *c);
assay_status check_operations(check_state *c);
assay_status check_whole(check_state *c);
/* check_gradients.c: what an optimizer read is what the backwards left: all, times one factor. */
assay_status check_gradients(check_state *c);

/* check_loss.c: values of a tensor; *out NULL: not recorded. */
assay_status check_values(const parity_index *x, const char *name, assay_phase phase, int64_t step,
                          int64_t microbatch, double **out, int64_t *count);
/* What a recorded loss is multiplied by to be the mean over its microbatch's targets; 0: it is none of one number. */
assay_status check_loss_factor(const check_state *c, const parity_entry *e, double *factor);
/* Which mean the run's gradients are of, which the reference takes; a run of neither fails. */
assay_status check_loss_scale(check_state *c);
/* What a GradScaler multiplied the losses of a step by, as the recorder saw it (`grad_scaler.scale`); 1: none did. */
assay_status check_scaler(const check_state *c, int64_t step, double *scale);
/* check_targets.c: whether targets stand where the model is asked for them. */
void check_targets(check_state *c);
/* What a loss that is wrong looks like: other shifts of the labels, a factor; "": nothing known. */
assay_status check_explain_loss(const check_state *c, int64_t microbatch, char text[PARITY_TEXT]);
/* check_clip.c: an entry in the reference's only step; of the optimizer's only a gradient that nobody else has, as that gradient. */
bool check_as_gradient(const check_state *c, const parity_entry *e, parity_entry *out);
/* What the optimizer's gradients are of the reference's: 1, or what a clip of the norm left. */
assay_status check_clip(check_state *c, double *clip);
/* check_router.c: the same of the probabilities of chosen experts. */
void check_explain_probs(const check_state *c, const double *found, int64_t count, int64_t tokens,
                         char text[PARITY_TEXT]);

#endif
