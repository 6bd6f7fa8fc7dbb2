/* safetensors: strict reader (mmap, single files and sharded folders with an index).  Every
 * validation rule of the format is checked before anything is allocated by a file's say-so; duplicate names
 * are refused.  core/files/tensorwriter.h writes.  docs/CHECKPOINT.md. */
#ifndef ASSAY_CORE_TENSORFILE_H
#define ASSAY_CORE_TENSORFILE_H

#include "core/base/dtype.h"
#include <stddef.h>

ASSAY_BEGIN_DECLS

enum { ASSAY_TENSOR_MAX_DIMS = 8 };

typedef struct assay_tensor_info {
    const char *name; /* owned by the file object */
    assay_dtype dtype;
    int ndim;
    int64_t shape[ASSAY_TENSOR_MAX_DIMS];
    int64_t count; /* elements */
    size_t bytes;
    const void *data; /* mapped, little endian, C order; any alignment: copy before typed access */
} assay_tensor_info;

typedef struct assay_tensorfile assay_tensorfile;

/* Opens one .safetensors file, an index (a path that ends in .index.json, shards beside it), or a folder:
 * model.safetensors, else model.safetensors.index.json.  Messages carry the error names of the reference
 * parser (HeaderTooSmall, HeaderTooLarge, InvalidHeaderLength, InvalidHeader, InvalidHeaderDeserialization,
 * InvalidOffset, ValidationOverflow, MisalignedSlice, TensorInvalidInfo, MetadataIncompleteBuffer). */
assay_status assay_tensorfile_open(assay_tensorfile **out, const char *path);
void assay_tensorfile_close(assay_tensorfile *f);
int64_t assay_tensorfile_count(const assay_tensorfile *f);
/* In name order. */
const assay_tensor_info *assay_tensorfile_at(const assay_tensorfile *f, int64_t index);
/* NULL when absent. */
const assay_tensor_info *assay_tensorfile_find(const assay_tensorfile *f, const char *name);
/* Finds and checks dtype (ASSAY_DTYPE_COUNT: any) and shape (ndim < 0: any; an extent of -1: any). */
assay_status assay_tensorfile_get(const assay_tensorfile *f, const char *name, assay_dtype dtype,
                                  const int64_t *shape, int ndim, const assay_tensor_info **out);
/* __metadata__ value, or NULL. */
const char *assay_tensorfile_metadata(const assay_tensorfile *f, const char *key);
const char *assay_tensorfile_path(const assay_tensorfile *f);
/* The file of a folder or of an index that holds t. */
const char *assay_tensorfile_path_of(const assay_tensorfile *f, const assay_tensor_info *t);

/* Whether a Hugging Face folder has weights: model.safetensors or its index, also as a link that leads nowhere (opening it then
 * says so).  ASSAY_UNSUPPORTED: it has weights in a form or under a name that is not read (pytorch_model.bin,
 * consolidated.safetensors, shards without an index, GGUF, adapters, ...): one is named, and no others are drawn in their place.  Batch files
 * and the .bin of an indexed dataset are no weights. */
assay_status assay_tensorfile_in_folder(const char *folder, bool *stored);
/* Whether a file of this name holds weights, or says where they are, for one of the programs that write models; a batch file's does, too. */
bool assay_is_weights_name(const char *name);

ASSAY_END_DECLS

#endif
