/* The exact check, private parts. */
#ifndef PARITY_EXACT_H
#define PARITY_EXACT_H

#include "parity/judge/judge.h"

/* Whether element i of an output depends on a function (square root, exponential) whose last bits are free:
 * such an element is judged within its bound, all others bit for bit. */
bool parity_exact_is_free(const char *op, const char *slot, int64_t i, int64_t count);

#endif
