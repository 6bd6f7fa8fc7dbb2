/* Text from outside: UTF-8, and what may be shown of it. */
#ifndef ASSAY_CORE_TEXT_H
#define ASSAY_CORE_TEXT_H

#include "core/base/status.h"
#include <stddef.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

/* Bytes of the UTF-8 sequence at `text`, which ends with a NUL, and its code point; 0: none, cut off, an overlong form, a
 * surrogate, or beyond U+10FFFF. */
size_t assay_utf8_next(const char *text, uint32_t *point);

/* What is no UTF-8 (a text cut inside a character, too), control characters, noncharacters and changes of writing direction
 * become '?'.  In place; never longer. */
void assay_clean_text(char *text);

/* Copies a text, cut where `capacity` bytes with the NUL end, and returns the length of the copy.  What snprintf does with "%s", where
 * that is done hundreds of thousands of times. */
size_t assay_copy_text(char *out, size_t capacity, const char *text);

ASSAY_END_DECLS

#endif
