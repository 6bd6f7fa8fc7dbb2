/* Covering arrays: few rows in which every pair of values that can meet does meet. */
#ifndef PARITY_PAIRWISE_H
#define PARITY_PAIRWISE_H

#include "core/base/status.h"
#include <stdbool.h>

enum { PARITY_MAX_AXES = 8 };

/* rows [n][axes]: the legal combinations, each value in [0, values[axis]).  chosen [n]: on entry the rows that must be
 * taken, on return also the rows that the cover adds.  Law: any two values of different axes that occur together in some
 * row occur together in a chosen one.  Greedy (the row with the most pairs that are still missing; among equals the one whose pairs have been met least
 * often, then the first), so the same rows give the same choice everywhere.  ASSAY_INVALID_ARGUMENT: a value outside its axis. */
assay_status parity_pairwise(const int *rows, int n, const int *values, int axes, bool *chosen);

#endif
