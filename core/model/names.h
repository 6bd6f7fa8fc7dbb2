/* Names and axes of another framework's tensors against ours: Hugging Face's modules and parameters beside the canonical
 * (Megatron-LM) names of docs/OPS.md.
 *
 * The rows are made from the parameter table: the output of a linear layer is named after its weight, and the rows of a weight
 * that a Hugging Face tensor holds are the features of the output that it makes.  Words and index geometry, no element values. */
#ifndef ASSAY_CORE_NAMES_H
#define ASSAY_CORE_NAMES_H

#include "core/files/trace.h"
#include "core/model/spec.h"

ASSAY_BEGIN_DECLS

/* Order of axes of theirs; ours is [s,b,...]. */
typedef enum {
    ASSAY_AXES_SAME,
    ASSAY_AXES_BATCH_FIRST, /* [b,s,...] or [b*s,...] */
    ASSAY_AXES_HEADS_FIRST, /* [b,heads,s,d] against [s,b,heads,d] */
    ASSAY_AXES_COUNT
} assay_name_axes;

typedef enum {
    ASSAY_RELATION_EQUAL, /* theirs is ours, or the pieces of ours that the row names */
    ASSAY_RELATION_ROWS, /* the same after the last dimension is sorted: choices of experts, whose order is free */
    ASSAY_RELATION_MEAN, /* theirs is one number: the mean of the elements of ours that are not zero (losses of tokens); a sum of them is
                          * divided first (parity/run/diff_loss.c) */
    ASSAY_RELATION_COUNT
} assay_name_relation;

typedef struct assay_name_row {
    char theirs[ASSAY_NAME], ours[ASSAY_NAME];
    bool
        parameter; /* dimension 0 is cut, leading dimensions folded; names get the suffixes of assay_name_states */
    assay_phase phase, their_phase; /* not of a parameter */
    assay_name_axes axes;
    assay_name_relation relation;
    /* Rows of a parameter, or features (last dimension) of another tensor: ours [dst, dst+rows) is theirs [src, src+rows).  0:
     * all of it. */
    int n_pieces;
    const assay_hf_piece *pieces;
    int64_t extent, their_extent; /* with pieces: of the dimension that is cut */
} assay_name_row;

/* What is recorded of a parameter: its name and a suffix in a phase. */
typedef struct assay_name_state {
    const char *theirs, *ours;
    assay_phase their_phase, phase;
} assay_name_state;
/* Ended by one without a name. */
const assay_name_state *assay_name_states(void);

typedef struct assay_names assay_names;
/* Rows of the model's class.  The spec is borrowed.  ASSAY_UNSUPPORTED: a folder in Megatron-LM's form, whose names are ours. */
assay_status assay_names_build(const assay_model_spec *spec, assay_names **out);
void assay_names_destroy(assay_names *n);
/* Rows of a user's map file (docs/DEBUG.md), which go before the others. */
assay_status assay_names_add_file(assay_names *n, const char *path);
int64_t assay_names_count(const assay_names *n);
const assay_name_row *assay_names_at(const assay_names *n, int64_t i);

enum { ASSAY_NAME_MATCHES = 4 };
typedef struct assay_name_match {
    const assay_name_row *row;
    char ours[ASSAY_NAME + 24];
    assay_phase phase;
} assay_name_match;
/* What theirs may be called by us, likeliest first: an operation that adds nothing keeps one name for what goes in and out. */
int assay_names_find(const assay_names *n, const char *theirs, assay_phase their_phase,
                     assay_name_match out[ASSAY_NAME_MATCHES]);

/* "same", "batch_first", "heads_first"; "equal", "sorted_rows", "mean". */
const char *assay_name_axes_word(assay_name_axes axes);
const char *assay_name_relation_word(assay_name_relation relation);

ASSAY_END_DECLS

#endif
