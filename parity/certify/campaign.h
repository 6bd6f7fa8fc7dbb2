/* `assay certify --engine E --campaign SEEDS`: many seeds over all data modes, shapes, rungs and ways of running.  Private to
 * parity/certify/. */
#ifndef PARITY_CERTIFY_CAMPAIGN_H
#define PARITY_CERTIFY_CAMPAIGN_H

#include "parity/certify/certify.h"

/* "216": seeds 0 to 215; "36-71": these.  ASSAY_INVALID_ARGUMENT: anything else. */
assay_status certify_campaign_seeds(const char *text, int64_t *first, int64_t *last);
/* Prints a line for each seed and each violation, then the worst ratios and what was covered.  *code: 0; 1: a violation, an engine that
 * did not come to its end, or, with a whole round of seeds, a rung that did not run on all data.
 * ASSAY_NOT_FOUND: no call was asked; ASSAY_IO: the file of --cells is there already, or cannot be made. */
assay_status certify_campaign(const certify_options *o, const char *work, int *code);

#endif
