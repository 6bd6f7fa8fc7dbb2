/* A few lines of what a failing claim saw, expected beside found: operations around one that is not as planned, tokens that went
 * to the wrong experts, the elements whose bits differ.  Written by the check, at the place of the failure, from what it
 * already holds; of bounded size.  results.jsonl carries it (docs/ARCHITECTURE.md). */
#ifndef PARITY_EXCERPT_H
#define PARITY_EXCERPT_H

#include <stdbool.h>
#include <stddef.h>

enum { PARITY_EXCERPT_ROWS = 14, PARITY_EXCERPT_COLUMNS = 6, PARITY_EXCERPT_CELL = 128 };

#define PARITY_ROW_MAP(X)                                                                                    \
    X(SAME, "same")       /* as expected: context */                                                         \
    X(WRONG, "wrong")     /* expected and found differ */                                                    \
    X(MISSING, "missing") /* expected, not found */                                                          \
    X(EXTRA, "extra")     /* found, not expected */
typedef enum {
#define PARITY_ROW_ENUM(name, text) PARITY_ROW_##name,
    PARITY_ROW_MAP(PARITY_ROW_ENUM)
#undef PARITY_ROW_ENUM
        PARITY_ROW_MARKS
} parity_row_mark;
const char *parity_row_mark_name(parity_row_mark m);

typedef struct parity_excerpt_row {
    parity_row_mark mark;
    char cells[PARITY_EXCERPT_COLUMNS][PARITY_EXCERPT_CELL];
} parity_excerpt_row;
typedef struct parity_excerpt {
    char title[192];
    int n_columns, n_rows;
    char heads[PARITY_EXCERPT_COLUMNS][48];
    parity_excerpt_row rows[PARITY_EXCERPT_ROWS];
} parity_excerpt;

/* heads ends with NULL. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void parity_excerpt_begin(parity_excerpt *e, const char *const *heads, const char *title, ...);
/* Makes a row the last one; false when there is no room for it. */
bool parity_excerpt_add(parity_excerpt *e, parity_row_mark mark);
/* A cell of the last row; what is too long ends with "...". */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void parity_excerpt_cell(parity_excerpt *e, int column, const char *fmt, ...);
/* Whether the members fit each other, as those of a file may not. */
bool parity_excerpt_valid(const parity_excerpt *e);

#endif
