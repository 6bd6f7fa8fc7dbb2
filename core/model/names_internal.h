/* Shared by the names*.c files only. */
#ifndef ASSAY_CORE_NAMES_INTERNAL_H
#define ASSAY_CORE_NAMES_INTERNAL_H

#include "core/model/names.h"

ASSAY_BEGIN_DECLS

struct assay_names {
    const assay_model_spec *spec;
    int64_t n, capacity, n_of_user;
    assay_name_row *rows;
    int64_t *order; /* of rows by theirs, then by number: NULL while rows are added */
    int64_t n_owned;
    assay_hf_piece **owned; /* pieces that no spec holds */
};

/* A copy of the row at the end. */
assay_status assay_names_add(assay_names *n, const assay_name_row *row);
/* `count` pieces, all 0, which go with the names. */
assay_status assay_names_own(assay_names *n, int64_t count, assay_hf_piece **out);
/* The columns of rotated heads where a class orders them otherwise (names_heads.c). */
assay_status assay_names_sort_heads(assay_names *n);
/* Sorts for assay_names_find; rows [0, n_of_user) are a user's. */
assay_status assay_names_sort(assay_names *n);
/* The rows of the model's class (names_rows.c). */
assay_status assay_names_fill(assay_names *n);

ASSAY_END_DECLS

#endif
