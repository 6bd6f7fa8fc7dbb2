/* safetensors: streaming writer.  It writes beside, syncs and renames: a reader never sees half a file.
 * docs/CHECKPOINT.md. */
#ifndef ASSAY_CORE_TENSORWRITER_H
#define ASSAY_CORE_TENSORWRITER_H

#include "core/base/dtype.h"

ASSAY_BEGIN_DECLS

/* create, add_ref / add_copy / add_spooled for each tensor in any order, finish, destroy.  Data handed to add_ref
 * must stay valid until finish.  create opens the temporary file beside the target, so that an unwritable
 * place is known at once; a name that was added twice is reported by finish. */
typedef struct assay_tensorwriter assay_tensorwriter;
assay_status assay_tensorwriter_create(assay_tensorwriter **out, const char *path);
assay_status assay_tensorwriter_metadata(assay_tensorwriter *w, const char *key, const char *value);
assay_status assay_tensorwriter_add_ref(assay_tensorwriter *w, const char *name, assay_dtype dtype,
                                        const int64_t *shape, int ndim, const void *data);
assay_status assay_tensorwriter_add_copy(assay_tensorwriter *w, const char *name, assay_dtype dtype,
                                         const int64_t *shape, int ndim, const void *data);
/* Like add_copy, but copies of more than a MiB in all wait in a nameless file beside the target: memory is not held. */
assay_status assay_tensorwriter_add_spooled(assay_tensorwriter *w, const char *name, assay_dtype dtype,
                                            const int64_t *shape, int ndim, const void *data);
/* The file need not survive that the machine stops, since who reads it finds out: finish waits for no disk. */
void assay_tensorwriter_unsynced(assay_tensorwriter *w);
/* Sorts (alignment of dtype descending, then name), writes a temporary file beside, fsyncs, renames, fsyncs
 * the folder. */
assay_status assay_tensorwriter_finish(assay_tensorwriter *w);
/* Also removes the temporary file when finish was not reached.  NULL is legal. */
void assay_tensorwriter_destroy(assay_tensorwriter *w);

ASSAY_END_DECLS

#endif
