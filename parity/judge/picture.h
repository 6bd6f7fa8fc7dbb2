/* What a claim keeps for the eye beside its numbers: where a tensor is wrong, and a number over the steps.  Of bounded size,
 * whatever the tensor; results.jsonl carries them, so that joined parts of a run have them, too. */
#ifndef PARITY_PICTURE_H
#define PARITY_PICTURE_H

#include "core/base/status.h"
#include "core/model/shard.h"
#include "parity/judge/excerpt.h"

/* Error over bound in bins: [0] none; [k], k = 1 ... 8: at most 2^(k-8), so that the first nine are within; [k], k = 9 ... 18:
 * at most 2^(k-8); [19] more; [20] not a finite number.  Where bits must be equal there is no bound, and bins are distances in
 * units of the last place (of integers: in ones): [0] equal; [k], k = 1 ... 18: at most 2^(k-1); [19] more; [20] not a number. */
enum { PARITY_PICTURE_CELLS = 64, PARITY_BINS = 21, PARITY_BINS_WITHIN = 9 };

/* One comparison of a failing claim.  Dimensions before the last are rows, the last is columns; `rows` x `columns` cells, at
 * most 64 x 64, each with the elements (of a distance: slices) that are outside. */
typedef struct parity_picture {
    int ndim, rows, columns;
    bool ulps; /* bins are distances in units of the last place */
    int64_t shape[ASSAY_MAX_DIMS];
    int64_t bins[PARITY_BINS];
    uint32_t bad[PARITY_PICTURE_CELLS * PARITY_PICTURE_CELLS];
} parity_picture;

void parity_picture_init(parity_picture *p, const int64_t *shape, int ndim);
/* ratio: as in results; NaN counts as not a finite number. */
void parity_picture_add(parity_picture *p, int64_t flat, double ratio, bool pass);
/* An element that is equal or not (same), this far off in units of the last place; NaN or infinity: not to be said. */
void parity_picture_add_ulps(parity_picture *p, int64_t flat, double ulps, bool same);
/* Number of all elements; of a cell: how many it stands for. */
int64_t parity_picture_count(const parity_picture *p);
int64_t parity_picture_cell_count(const parity_picture *p, int row, int column);
/* Whether the members fit each other, as those of a file may not. */
bool parity_picture_valid(const parity_picture *p);
/* Upper edge of a bin 1 ... 18, of error over bound or in units of the last place. */
double parity_bin_edge(int bin, bool ulps);

/* A number over steps: at most 512 points, of a longer run the worst of every `stride` steps. */
enum { PARITY_CURVE_POINTS = 512 };
typedef struct parity_curve_point {
    int64_t step;
    double found, expected, allowance;
} parity_curve_point;
typedef struct parity_curve {
    int64_t n, stride;
    parity_curve_point *points;
} parity_curve;
assay_status parity_curve_add(parity_curve *c, const parity_curve_point *point);

/* What is drawn of a result; NULL: nothing. */
typedef struct parity_drawn {
    const parity_picture *picture;
    const parity_excerpt *excerpt;
    const parity_curve *curve;
} parity_drawn;

/* Owns pictures, excerpts and curves; results name them by number from 1, 0: none. */
typedef struct parity_gallery {
    int64_t n_pictures, n_excerpts, n_curves;
    parity_picture **pictures;
    parity_excerpt **excerpts;
    parity_curve *curves;
} parity_gallery;
void parity_gallery_free(parity_gallery *g);
/* Of one check: as many pictures as a table of results may draw; *out NULL: the gallery is full, *number 0. */
enum { PARITY_GALLERY_PICTURES = 1024 };
assay_status parity_gallery_draw(parity_gallery *g, const int64_t *shape, int ndim, parity_picture **out,
                                 int *number);
assay_status parity_gallery_excerpt(parity_gallery *g, parity_excerpt **out, int *number);
assay_status parity_gallery_curve(parity_gallery *g, int *number);
/* Copies a picture and an excerpt; their numbers, 0: there is none, or no room for it. */
assay_status parity_gallery_take(parity_gallery *g, const parity_drawn *drawn, int *picture, int *excerpt);
/* NULL: none of this number. */
const parity_picture *parity_gallery_picture_at(const parity_gallery *g, int number);
const parity_excerpt *parity_gallery_excerpt_at(const parity_gallery *g, int number);
parity_curve *parity_gallery_curve_at(const parity_gallery *g, int number);

#endif
