/* Excerpts of failing claims. */
#include "parity/judge/excerpt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *parity_row_mark_name(parity_row_mark m)
{
    static const char *const names[] = {
#define PARITY_ROW_TEXT(name, text) text,
        PARITY_ROW_MAP(PARITY_ROW_TEXT)
#undef PARITY_ROW_TEXT
    };
    return (int)m >= 0 && m < PARITY_ROW_MARKS ? names[m] : "?";
}

void parity_excerpt_begin(parity_excerpt *e, const char *const *heads, const char *title, ...)
{
    va_list args;
    memset(e, 0, sizeof *e);
    va_start(args, title);
    vsnprintf(e->title, sizeof e->title, title, args);
    va_end(args);
    for (; heads[e->n_columns] != NULL && e->n_columns < PARITY_EXCERPT_COLUMNS; e->n_columns++)
        snprintf(e->heads[e->n_columns], sizeof e->heads[0], "%s", heads[e->n_columns]);
}

bool parity_excerpt_add(parity_excerpt *e, parity_row_mark mark)
{
    if (e->n_rows == PARITY_EXCERPT_ROWS)
        return false;
    memset(&e->rows[e->n_rows], 0, sizeof e->rows[0]);
    e->rows[e->n_rows++].mark = mark;
    return true;
}

void parity_excerpt_cell(parity_excerpt *e, int column, const char *fmt, ...)
{
    char *cell = e->rows[e->n_rows - 1].cells[column];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(cell, PARITY_EXCERPT_CELL, fmt, args);
    va_end(args);
    if (n >= PARITY_EXCERPT_CELL)
        memcpy(cell + PARITY_EXCERPT_CELL - 4, "...", 4);
}

bool parity_excerpt_valid(const parity_excerpt *e)
{
    bool good = e->n_columns > 0 && e->n_columns <= PARITY_EXCERPT_COLUMNS && e->n_rows >= 0 &&
                e->n_rows <= PARITY_EXCERPT_ROWS && memchr(e->title, 0, sizeof e->title) != NULL;
    for (int c = 0; good && c < PARITY_EXCERPT_COLUMNS; c++)
        good = memchr(e->heads[c], 0, sizeof e->heads[c]) != NULL;
    for (int i = 0; good && i < e->n_rows; i++) {
        good = (int)e->rows[i].mark >= 0 && e->rows[i].mark < PARITY_ROW_MARKS;
        for (int c = 0; good && c < PARITY_EXCERPT_COLUMNS; c++)
            good = memchr(e->rows[i].cells[c], 0, PARITY_EXCERPT_CELL) != NULL;
    }
    return good;
}
