/* JSON as text, member after member, without building a tree first: what is written a hundred thousand times in a run
 * (records of a trace, results of a report).  The text is Jansson's JSON_COMPACT | JSON_REAL_PRECISION(17), byte for
 * byte.  Nothing here can fail at once: a text that is not UTF-8, a number that JSON has not and memory that ran out are
 * remembered, and assay_json_text_end tells. */
#ifndef ASSAY_CORE_JSON_TEXT_H
#define ASSAY_CORE_JSON_TEXT_H

#include "core/base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

typedef struct assay_json_text {
    char *text; /* not terminated before assay_json_text_end */
    size_t n, capacity;
    bool comma; /* a value stands before: the next member or element needs a comma */
    bool no_memory, not_json;
} assay_json_text;

/* Empties the text and keeps its memory; a zeroed struct is empty. */
void assay_json_text_begin(assay_json_text *t);
/* ASSAY_INVALID_ARGUMENT: a text is not UTF-8 or a number is not finite; ASSAY_OUT_OF_MEMORY.  Terminates the text. */
assay_status assay_json_text_end(assay_json_text *t, const char *what);
void assay_json_text_free(assay_json_text *t);

/* { } [ ]: `bracket` opens or closes. */
void assay_json_text_open(assay_json_text *t, char bracket);
void assay_json_text_close(assay_json_text *t, char bracket);
/* "key": */
void assay_json_text_key(assay_json_text *t, const char *key);
void assay_json_text_string(assay_json_text *t, const char *value);
void assay_json_text_integer(assay_json_text *t, int64_t value);
void assay_json_text_real(assay_json_text *t, double value);
/* [value,...] */
void assay_json_text_integers(assay_json_text *t, const int64_t *values, int n);
/* "key":value */
void assay_json_text_put_string(assay_json_text *t, const char *key, const char *value);
void assay_json_text_put_integer(assay_json_text *t, const char *key, int64_t value);
/* A Jansson tree at this place; NULL means that there was no memory for it. */
void assay_json_text_value(assay_json_text *t, const json_t *value);

ASSAY_END_DECLS

#endif
