/* "did you mean": the known word that is nearest to a mistyped one. */
#ifndef ASSAY_CORE_SUGGEST_H
#define ASSAY_CORE_SUGGEST_H

#include "core/base/status.h"
#include <stddef.h>

ASSAY_BEGIN_DECLS

enum { ASSAY_SUGGEST_WORD = 48 };

typedef struct assay_suggestion {
    char word[ASSAY_SUGGEST_WORD], best[ASSAY_SUGGEST_WORD];
    int distance;
    char text[ASSAY_SUGGEST_WORD + 24];
} assay_suggestion;

/* What was typed: the first `length` bytes. */
void assay_suggest_begin(assay_suggestion *s, const char *word, size_t length);
/* A word that would have been right. */
void assay_suggest_add(assay_suggestion *s, const char *known);
/* "; did you mean PREFIXbest?", or "" when none is within a third of its letters (insertions, deletions, changes and swaps
 * of neighbours; '-' and '_' are one).  Lives in *s. */
const char *assay_suggest_end(assay_suggestion *s, const char *prefix);

ASSAY_END_DECLS

#endif
