/* The child of a trial: what its files share.  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_TRIAL_H
#define PARITY_CERTIFY_TRIAL_H

#include "parity/certify/device.h"

typedef struct trial {
    certify_kernel kernel;
    certify_device device;
    assay_kernel storage;
    certify_board *board;
    guard_arena arena, shadows;
    double limit; /* seconds of one call */
    bool deterministic;
    bool once;           /* one run of every record, in no other form */
    const char *answers; /* name of their files: "answer", of such runs "plain" and "threads" */
    bool fail_fast;      /* stops at the first call that leaves a finding */
    bool exact;          /* of lattice records alone, without answers */
    bool races;          /* of one record for each size, without answers */
    assay_trace_writer *answer, *second, *shadow, *late;
    comm_world *world; /* collectives: the ranks of the records that are tried now */
    bool takes_part[COMM_RANKS];
    int64_t legal; /* records of this dtype tried with illegal arguments so far */
} trial;

enum { FILL_ONES = 0xFF, FILL_ODD = 0x5A, FILL_ZERO = 0x00 };

/* Whether nothing further is tried. */
bool trial_stops(const trial *t);
/* Says on the board what runs, so that a fault can name it. */
void trial_now(trial *t, const call_record *r, const char *what);
/* Prepares, runs under the limit, looks around.  *code: what run() returned. */
assay_status trial_call(trial *t, const call_record *r, call_form form, call_ready *c, int32_t *code);
/* Outputs of `c` against the first run's: the trial fails where bits differ. */
void trial_compare(trial *t, const call_record *r, const call_ready *c, certify_trial which);
/* An answer of outputs, or of shadows. */
assay_status trial_write(assay_trace_writer *w, const assay_trace *request, const call_record *r,
                         const call_ready *c, bool shadow);

/* Elements that hold the garbage of both runs: nobody wrote them. */
void trial_written(trial *t, const call_record *r, const call_ready *c);
/* The workspace asked for does not depend on data. */
void trial_workspace(trial *t, const call_record *r, const call_ready *c);
assay_status trial_open(assay_trace_writer **w, const char *dir, const char *name, const char *act, int rank,
                        int ranks);
assay_status trial_close(assay_trace_writer **w);

/* A call of one rank without the others. */
int32_t trial_alone(trial *t, const call_record *r, const call_ready *c);
/* collective.c: all calls of one dtype, over all numbers of ranks */
assay_status trial_collective(trial *t, const char *dir, assay_dtype dtype);
/* variations.c: other forms of a call that succeeded */
assay_status trial_variations(trial *t, const assay_trace *request, const call_record *r);
/* device_time.c: times.json of the requests time.F32 and time.BF16 in the folder.  ASSAY_UNSUPPORTED: no device, or the simulator's. */
assay_status device_time(trial *t, const char *dir);
/* illegal.c */
assay_status trial_illegal(trial *t, const call_record *r);

#endif
