/* index.html: its parts, in the order of the page.  Everything from outside is escaped, every list is bounded, no script is
 * needed to read it. */
#ifndef PARITY_PAGE_H
#define PARITY_PAGE_H

#include "parity/report/report_files.h"

/* page_style.c: every text with its background, every mark with what it lies on, in both modes; the style sheet names no other
 * colour.  Texts have a contrast of at least 4.5, marks of 3 (WCAG 2.2 AA). */
typedef struct parity_colour {
    const char *name;               /* class, and the variables --NAME and --NAME-b */
    bool mark;                      /* a shape, not a text */
    const char *light[2], *dark[2]; /* itself, what it stands on; "#rrggbb" */
} parity_colour;
const parity_colour *parity_page_colours(int *n);
void parity_put_style(FILE *f);
/* The colours alone, as variables of :root and classes: for a drawing that stands by itself. */
void parity_put_colours(FILE *f);

/* How a cell of a heat map looks. */
typedef enum {
    PARITY_HEAT_NONE,     /* nothing to check */
    PARITY_HEAT_EQUAL,    /* every element is the rounded truth, bit by bit */
    PARITY_HEAT_ROUNDING, /* every element is correctly rounded: nothing beyond the rounding of the output */
    PARITY_HEAT_WITHIN,   /* up to 3/4 of the bound beyond that */
    PARITY_HEAT_NEAR,     /* up to the bound */
    PARITY_HEAT_VIOLATED,
    PARITY_HEAT_SKIPPED, /* not checked */
    PARITY_HEATS
} parity_heat;

typedef struct parity_page {
    FILE *f;
    const parity_report *r;
    const json_t *facts; /* NULL: none */
    const parity_column *columns;
    int64_t n;          /* columns */
    int64_t *column_of; /* of each result */
    bool *shown;        /* result i has a place #f<i> on the page */
} parity_page;

/* Place of a check among those that explain others: 0 explains most. */
int parity_check_rank(parity_check c);

/* page_head.c: what ran, in which words, with which totals. */
void parity_page_head(const parity_page *p, const char *title);
void parity_page_script(const parity_page *p);
/* page_failures.c: marks what it shows. */
assay_status parity_page_failures(parity_page *p);
/* page_picture.c: two figures */
void parity_put_picture(FILE *f, const parity_picture *p, bool slices);
/* page_excerpt.c */
void parity_put_excerpt(FILE *f, const parity_excerpt *e);
/* page_curves.c */
assay_status parity_page_curves(const parity_page *p);
/* page_layouts.c: the drawing of a column's layout, with a rank that failed (-1: none); nothing where its name is no layout. */
void parity_put_column_layout(const parity_page *p, const parity_column *c, int marked);
void parity_page_layouts(const parity_page *p);
/* page_times.c */
void parity_page_times(const parity_page *p);
/* heat_cells.c */
typedef struct parity_heat_cell {
    double ratio, share; /* worst */
    int64_t claims, skipped,
        worst; /* worst: result of the largest share, a failure before what holds; -1: none */
    bool failed;
} parity_heat_cell;
void parity_heat_count(parity_heat_cell *c, const parity_claim *x, int64_t i);
/* NULL or nothing counted: an empty cell.  A failure links to where the page shows it. */
void parity_put_heat_cell(const parity_page *p, const parity_heat_cell *c);
void parity_put_heat(FILE *f, parity_heat heat, double share, int64_t link);
parity_heat parity_heat_of(double ratio, double share);
void parity_put_heat_legend(FILE *f);
/* "layer 3" of decoder.layers.3.mlp.linear_fc1, else what stands before the first dot; of the decoder, before the second. */
void parity_layer_of(const char *instance, char out[ASSAY_NAME]);
/* heatmap.c: check local; heat_checks.c: the others */
assay_status parity_page_heatmaps(const parity_page *p);
assay_status parity_page_heat_checks(const parity_page *p);

/* layout_svg.c: ranks in a grid, a column for each pipeline stage. */
typedef struct parity_rank_bytes {
    double parameters, gradients, masters, moments, activations;
} parity_rank_bytes;
typedef struct parity_layout_drawing {
    const assay_grid *grid;
    const char *name;
    const char *const *stages;      /* words of each pipeline stage; NULL: none */
    const parity_rank_bytes *ranks; /* of each rank; NULL: not known */
    bool activations;               /* of the ranks are known */
    int marked;                     /* -1: none */
    bool alone;                     /* a file of its own, with its own colours */
} parity_layout_drawing;
void parity_put_layout_svg(FILE *f, const parity_layout_drawing *d);

#endif
