/* The exact check, private parts. */
#ifndef PARITY_EXACT_H
#define PARITY_EXACT_H

#include "parity/judge/judge.h"

/* Elements [begin,end) of an output that depend on a function (square root, exponential) whose last bits are free: they are
 * judged within their bounds, all others bit for bit. */
typedef struct parity_exact_freedom {
    int64_t begin, end;
} parity_exact_freedom;
parity_exact_freedom parity_exact_free_of(const char *op, const char *slot, int64_t count);

#endif
