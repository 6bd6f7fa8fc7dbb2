/* What a campaign knows (campaign.c), and what it says of it (campaign_report.c). */
#ifndef PARITY_CERTIFY_CAMPAIGN_INTERNAL_H
#define PARITY_CERTIFY_CAMPAIGN_INTERNAL_H

#include "parity/certify/campaign.h"

#include "parity/certify/engine.h"
#include "parity/checks/request.h"
#include <stdio.h>

enum { ACTS = 2, RUNGS = 10 };
extern const char *const campaign_acts[ACTS];

/* How the rungs of a round run.  Beside the simulator only the place is there. */
typedef struct machine {
    const char *name,
        *order;     /* order: of threads and blocks; "random": drawn by the seed, streams likewise */
    bool truncates; /* matrix units: the truncating model (docs/SIMULATOR.md) */
    int place;      /* gpu_place of the engine: aligned, other addresses, aligned to an element */
} machine;

/* The worst error of an output. */
typedef struct worst {
    char op[48], slot[32];
    int act;
    double share;
    char where[64]; /* mode and seed */
} worst;

typedef struct cells {
    int32_t calls[RUNGS][ACTS][PARITY_MODE_COUNT];
} cells;

typedef struct shape_row {
    const char *op;
    char text[320];
    unsigned modes; /* that have a meaning */
} shape_row;

typedef struct campaign {
    const certify_options *o;
    const parity_engine *e;
    const json_t *operations;
    const char *work;
    int rungs; /* of the engine's highest ladder */
    shape_row *shapes;
    cells *cells; /* [n_shapes] */
    int64_t n_shapes, room;
    worst *worst;
    int n_worst;
    int64_t calls, elements, violations, broken;
    /* of the request that runs */
    const machine *machine;
    int64_t seed;
    int rung, act;
    int64_t *asked; /* shape of each record */
    unsigned char *mode;
    int64_t n_asked;
} campaign;

/* The one operation that was asked for; NULL: all. */
const char *campaign_only(const campaign *c);

void campaign_print_worst(campaign *c);
/* One line for each rung; *open counts what a whole round should have covered and did not. */
void campaign_print_coverage(const campaign *c, int64_t *open);
/* operation, rung, dtype, data mode, shape, calls: a line for each cell that was asked.  Closes f; `path` is its name in errors. */
assay_status campaign_write_cells(const campaign *c, FILE *f, const char *path);

#endif
