/* Shared by tensorfile.c and tensorfolder.c only: the object behind assay_tensorfile. */
#ifndef ASSAY_CORE_TENSORFILE_INTERNAL_H
#define ASSAY_CORE_TENSORFILE_INTERNAL_H

#include "core/base/json.h"
#include "core/base/mapped.h"
#include "core/files/tensorfile.h"

/* One mapped file.  `metadata` is its __metadata__ object or NULL. */
typedef struct assay_mapping {
    char *path;
    assay_mapped file;
    json_t *metadata;
} assay_mapping;

struct assay_tensorfile {
    char *path;
    int64_t n_mappings;
    assay_mapping *mappings;
    int64_t n;
    assay_tensor_info *infos; /* names are owned */
};

/* A header before its layout is checked: the tensors and where their bytes lie. */
typedef struct assay_tensor_entry {
    assay_tensor_info info; /* its name is owned */
    int64_t begin, end;
} assay_tensor_entry;
typedef struct assay_tensor_header {
    assay_tensor_entry *entries;
    int64_t n;
    json_t *metadata; /* NULL: none */
} assay_tensor_header;
void assay_tensor_header_free(assay_tensor_header *h);
/* tensorfile_text.c: true where the text is as our own writer puts it; false leaves *h empty and sets no error. */
bool assay_tensor_header_from_text(const char *text, size_t bytes, assay_tensor_header *h);

/* Maps and validates one file; appends its tensors to f->infos (unsorted). */
assay_status assay_tensorfile_map(assay_tensorfile *f, const char *path);
/* Adds all shards that the index file `index_path` names; they lie beside it.  Keys must match both ways. */
assay_status assay_tensorfile_add_index(assay_tensorfile *f, const char *index_path);
/* Adds model.safetensors, or else the shards of model.safetensors.index.json, of a folder. */
assay_status assay_tensorfile_add_folder(assay_tensorfile *f, const char *folder);

#endif
