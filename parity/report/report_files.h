/* Report formats: what they share. */
#ifndef PARITY_REPORT_FILES_H
#define PARITY_REPORT_FILES_H

#include "core/base/json_text.h"
#include "parity/parity.h"

/* part.c: results as a task's child hands them to its parent: read by the program that wrote them. */
assay_status parity_report_save_part(const parity_report *r, const char *path);
assay_status parity_report_load_part(parity_report *r, const char *path);

/* drawn.c: members "picture", "excerpt" and "curve" of a line of results.jsonl.  Read, they are as strict as results are; the
 * points of the curve are freed by the caller. */
typedef struct parity_drawing {
    bool has_picture, has_excerpt;
    parity_picture picture;
    parity_excerpt excerpt;
    parity_curve curve;
} parity_drawing;
parity_drawn parity_drawing_of(const parity_drawing *d);
void parity_drawn_to_json(assay_json_text *t, const parity_drawn *drawn);
assay_status parity_drawn_from_json(const json_t *o, const char *what, parity_drawing *d);
/* The same as bytes of a part. */
bool parity_drawn_save(FILE *f, const parity_drawn *drawn);
assay_status parity_drawn_read(const char *path, const char **at, const char *end, parity_drawing *d);
/* The next bytes of a part; ASSAY_FORMAT where there are not so many. */
assay_status parity_part_take(const char *path, const char **at, const char *end, void *out, size_t bytes);

/* Adds every result of a results.jsonl, and says which run it was part of (origin may be NULL).  An error that names file
 * and line: a malformed line, a pass whose ratio is not at most 1 or that has bad elements, results that are not as many
 * as the last line says, a file without such a line (cut short), anything after it. */
assay_status parity_report_load_jsonl(parity_report *r, const char *path, parity_origin *origin);

/* Distinct (case, precision, layout, kernels) of a report, in order of first appearance. */
typedef struct parity_column {
    const char *case_name, *precision, *layout, *variants, *engine, *tier;
    int64_t passed[PARITY_CHECK_COUNT], failed[PARITY_CHECK_COUNT], skipped[PARITY_CHECK_COUNT];
    double worst[PARITY_CHECK_COUNT]; /* largest share */
    int64_t ambiguous;
    int64_t first; /* result */
} parity_column;
/* Whether a claim belongs to a column of its report, whose equal texts are one pointer. */
bool parity_column_holds(const parity_column *c, const parity_claim *x);
/* PASS: everything was checked and holds. */
parity_verdict parity_column_verdict(const parity_column *c);
assay_status parity_report_columns(const parity_report *r, parity_column **out, int64_t *n);
/* Number of the column of each result; freed by the caller. */
assay_status parity_report_column_numbers(const parity_report *r, const parity_column *columns, int64_t n,
                                          int64_t **out);

/* groups.c: the claims of one check about one operation in one column; groups stand by column, in a column in order of
 * execution. */
enum { PARITY_GROUP_SHOWN = 3 };
typedef struct parity_group {
    int64_t column, number;
    parity_check check;
    const char *op;
    int64_t passed, failed, skipped, errors; /* errors: of those that are skipped */
    int64_t first_failed[PARITY_GROUP_SHOWN], first_skipped, first_error; /* results */
} parity_group;
typedef struct parity_groups {
    int64_t n, capacity;
    parity_group *of;
} parity_groups;
/* A claim that is skipped because something went wrong: an engine died, hung or was stopped; not: there was nothing to ask. */
bool parity_claim_is_error(const parity_claim *x);
/* column_of: of parity_report_column_numbers. */
assay_status parity_groups_make(parity_groups *g, const parity_report *r, const int64_t *column_of);
void parity_groups_free(parity_groups *g);

/* Name of a task in the member "times" of facts.json: "llama bf16 tp2,sp k0". */
enum { PARITY_TASK_LABEL = ASSAY_LAYOUT_TEXT + 256 };
void parity_task_label(const char *case_name, const char *precision, const char *layout, const char *variants,
                       char out[PARITY_TASK_LABEL]);

/* "decoder.layers.1.mlp.linear_fc1 linear_bwd_weight dweight[3,5], step 1, microbatch 0, rank 2" */
void parity_claim_place(const parity_claim *r, char *out, size_t capacity);

/* axes.c: the worst shares of the checks local [0] and whole [1] over the cells whose layout uses an axis; axes that no cell
 * uses are left out.  Returns the number of rows. */
enum { PARITY_MAX_AXES = 16 };
typedef struct parity_axis_row {
    const char *name;
    int64_t cells;
    bool asked[2];
    double worst[2];
} parity_axis_row;
int parity_report_axes(const parity_column *columns, int64_t n, parity_axis_row out[PARITY_MAX_AXES]);
void parity_put_axes(FILE *f, const parity_column *columns, int64_t n);

/* XML and HTML text: markup escaped. */
void parity_put_escaped(FILE *f, const char *s);

#endif
