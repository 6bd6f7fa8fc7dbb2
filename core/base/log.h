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
/* Files and folders: core/base/file.c.
 * mkdir -p: the last component must not be a symbolic link.  Removing: the tree must lie strictly below
 * `root_must_contain` (both resolved) and not be a link itself; links inside are unlinked, never followed; an
 * absent tree is ASSAY_OK. */
assay_status assay_mkdir_p(const char *path);
assay_status assay_remove_tree(const char *path, const char *root_must_contain);
/* Writes bytes beside, fsyncs, renames, fsyncs the folder. */
assay_status assay_write_file(const char *path, const void *data, uint64_t bytes);
/* Reads a whole regular file; refuses more than `limit` bytes.  *out is NUL-terminated and freed by the
 * caller. */
assay_status assay_read_file(const char *path, uint64_t limit, char **out, uint64_t *bytes);

ASSAY_END_DECLS

#endif
