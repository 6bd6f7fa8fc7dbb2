/* A regular file mapped read-only.  A file that somebody shortens while it is mapped is out of scope: reading
 * the lost part ends in SIGBUS. */
#ifndef ASSAY_CORE_MAPPED_H
#define ASSAY_CORE_MAPPED_H

#include "core/base/status.h"
#include <stddef.h>

ASSAY_BEGIN_DECLS

typedef struct assay_mapped {
    const void *base; /* NULL when the file is empty */
    size_t bytes;
} assay_mapped;

/* Messages name the path.  ASSAY_NOT_FOUND: there is no such file; ASSAY_INVALID_ARGUMENT: not a regular file
 * (a folder, a pipe, a device). */
assay_status assay_mapped_open(assay_mapped *out, const char *path);
/* Safe on a zeroed object and twice. */
void assay_mapped_close(assay_mapped *m);

ASSAY_END_DECLS

#endif
