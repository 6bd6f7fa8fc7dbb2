/* C++ source as a list of tokens: words, numbers, strings (raw ones too), characters, single punctuation marks and whole
 * preprocessor lines.  Comments and white space lie between tokens.  What the file is called and which line a token stands in
 * follows line markers (`# 12 "file.cu" 3`, `#line 12 "file.cu"`), so that preprocessed text speaks of its sources. */
#ifndef ASSAY_SIM_TRANSLATE_TOKENS_H
#define ASSAY_SIM_TRANSLATE_TOKENS_H

#include "text.h"

typedef enum token_kind {
    TOKEN_WORD,
    TOKEN_NUMBER,
    TOKEN_STRING,
    TOKEN_CHARACTER,
    TOKEN_MARK,
    TOKEN_DIRECTIVE,
    TOKEN_END
} token_kind;

typedef struct token {
    unsigned char kind, system; /* system: of a header that the compiler calls its own */
    char mark;                  /* of TOKEN_MARK */
    int line, file;             /* file: index into names */
    size_t at, bytes;
    size_t match;  /* of a bracket: the other one */
    size_t within; /* the bracket that encloses it, or the list's end */
} token;

typedef struct tokens {
    const char *source;
    size_t source_bytes;
    token *at;
    size_t count; /* the last one is TOKEN_END */
    size_t room;
    char **names;
    size_t names_count, names_room;
} tokens;

typedef struct complaint { /* where, and what */
    char file[256];
    int line;
    char text[400];
} complaint;

/* false: the complaint says which comment, string or bracket does not end.  The list refers to the source. */
bool tokens_read(tokens *list, const char *source, size_t bytes, const char *name, complaint *why);
void tokens_free(tokens *list);

bool token_is(const tokens *list, size_t i, const char *word);
/* Is token i this mark, and do `run` of one kind follow each other?  With gaps too: nvcc reads `<< <` as a launch. */
bool token_mark(const tokens *list, size_t i, char mark);
bool token_run(const tokens *list, size_t i, char mark, size_t run);
/* The neighbours that are no preprocessor lines; `before` of the first is the list's end. */
size_t token_after(const tokens *list, size_t i);
size_t token_before(const tokens *list, size_t i);
bool complain(complaint *why, const tokens *list, size_t i, const char *format, ...)
    __attribute__((format(printf, 4, 5))); /* false */

#endif
