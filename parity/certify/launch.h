/* What the two halves of a written launch share (launch.c, launch_slots.c).  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_LAUNCH_H
#define PARITY_CERTIFY_LAUNCH_H

#include "parity/certify/certify.h"

enum { LAUNCH_SYMBOL = 16, LAUNCH_SYMBOLS = 32 };

typedef struct launch_file {
    FILE *out;
    const assay_op *op;
    char symbol[LAUNCH_SYMBOLS][LAUNCH_SYMBOL]; /* that have a variable */
    int n_symbols;
} launch_file;

/* A slot, an attribute or a symbol as a variable: "do" is a word of the language, "stream" the call's. */
void launch_variable(const char *name, char out[64]);
/* Whether the text names the word, alone. */
bool launch_has_word(const char *text, const char *word);
/* Slots, attributes and symbols of the operation as variables, and then every extent and every attribute that is a symbol held to them:
 * an extent ("A*D") may be written in symbols that a later slot, or an attribute, gives their values.  ASSAY_UNSUPPORTED: a slot that has
 * no plain variable, an extent that nothing says. */
assay_status launch_write_variables(launch_file *s);
/* {"inc.cuh": SHA-256} of a compiler's rule of make, without the source, the file and what lies in `include` or in
 * the headers of `toolkit`, a compiler's folder ("": none). */
assay_status launch_read_includes(const char *rule, const char *source, const char *file, const char *include,
                                  const char *toolkit, json_t **out);

#endif
