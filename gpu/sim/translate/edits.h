/* What a translation changes: pieces of the source that are replaced, and the analysis that its parts share. */
#ifndef ASSAY_SIM_TRANSLATE_EDITS_H
#define ASSAY_SIM_TRANSLATE_EDITS_H

#include "translate.h"

typedef struct edit {
    size_t at, bytes; /* of the source */
    size_t order;
    text with;
} edit;

typedef struct renaming { /* from token `from` on, this word stands for that text */
    text word, with;
    size_t from;
} renaming;

typedef struct translation {
    tokens list;
    edit *edits;
    size_t edits_count, edits_room;
    renaming *names;
    size_t names_count, names_room;
    size_t *kernels; /* the tokens that name __global__ functions */
    size_t kernels_count, kernels_room;
    int serial; /* of structures that are made up */
    translate_counts *counts;
    complaint *why;
} translation;

/* Before, behind and in place of tokens; the text is copied. */
void edit_before(translation *t, size_t at, const char *with);
void edit_behind(translation *t, size_t at, const char *with);
/* Tokens from..to (inclusive) become `with` and the newlines and line markers that stood between them. */
void edit_replace(translation *t, size_t from, size_t to, const char *with);
void edits_apply(translation *t, text *out);

/* The tokens from..to-1 in one line, without comments. */
void flat_text(const translation *t, text *out, size_t from, size_t to);
/* The same as a string literal. */
void flat_string(const translation *t, text *out, size_t from, size_t to);
/* i stands on '<' of a list of template arguments; the matching '>', or `end` where there is none before it. */
size_t angle_end(const tokens *list, size_t i, size_t end);
/* i stands on '>'; the '<', or the list's end. */
size_t angle_begin(const tokens *list, size_t i);
/* Is the word one that takes a bracketed group, which is no list of parameters? */
bool takes_group(const tokens *list, size_t i);
/* Do only namespaces and extern "C" enclose the token? */
bool at_file_scope(const tokens *list, size_t i);

/* The name of the __global__ function whose word stands at `at`; false: the complaint says why there is none. */
bool kernel_name(translation *t, size_t at, size_t *name, size_t *open);
bool translate_kernel(translation *t, size_t at); /* at `__global__` */
bool translate_launch(translation *t, size_t at); /* at the first '<' */
bool translate_shared(translation *t, size_t at); /* at `__shared__` */

#endif
