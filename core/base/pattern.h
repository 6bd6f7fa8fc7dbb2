/* Python's regular expressions as far as POSIX has them: groups, choices, classes, repetitions without numbers.  Lookaround, back
 * references, possessive and counted repetitions are refused; so is what would cost without bound: a repetition of what may be empty,
 * repetitions nested deeper than 3 or more than 128 of them. */
#ifndef ASSAY_CORE_PATTERN_H
#define ASSAY_CORE_PATTERN_H

#include "core/base/status.h"
#include <stdbool.h>

ASSAY_BEGIN_DECLS

/* *matches: whether the pattern matches the whole text (re.fullmatch).  `what` names the pattern in messages. */
assay_status assay_pattern_match(const char *pattern, const char *text, const char *what, bool *matches);

ASSAY_END_DECLS

#endif
