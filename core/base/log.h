/* Progress and messages: a live line on a terminal (done, rate, time left), plain lines elsewhere. */
#ifndef ASSAY_CORE_LOG_H
#define ASSAY_CORE_LOG_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

typedef struct assay_progress assay_progress;
/* `out` is usually stderr.  total 0: unknown. */
assay_status assay_progress_create(assay_progress **p, FILE *out, const char *title, int64_t total);
/* One item done; `label` says what runs now. */
void assay_progress_update(assay_progress *p, int64_t done, const char *label);
/* Prints a line of its own without disturbing the live line. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void assay_progress_print(assay_progress *p, const char *fmt, ...);
void assay_progress_destroy(assay_progress *p);

double assay_monotonic_s(void);
ASSAY_END_DECLS

#endif
