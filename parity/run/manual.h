/* Manual page and completion of `assay`, made from what its verbs parse: an option that a verb takes is in both, and nobody
 * writes it a second time. */
#ifndef PARITY_RUN_MANUAL_H
#define PARITY_RUN_MANUAL_H

#include "core/run/options.h"

typedef struct parity_verb {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *help;
} parity_verb;

/* The verbs of the program; before parity_main_help and parity_main_completion. */
void parity_verbs_set(const parity_verb *verbs, int n);
const parity_verb *parity_verbs(int *n);
/* What `assay` alone prints. */
void parity_usage(FILE *out);
/* Calls `describe` with what a verb parses, in a process of its own; user is the verb.  ASSAY_CHILD: the verb did not get as
 * far as its options. */
assay_status parity_verb_describe(const parity_verb *verb, assay_describe describe);

/* manual_page.c: a page for man(1), section 1. */
assay_status parity_manual_page(FILE *out);
/* completion.c: a script for bash. */
assay_status parity_completion_bash(FILE *out);

#endif
