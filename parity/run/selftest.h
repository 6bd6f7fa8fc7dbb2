/* `assay selftest`, private parts. */
#ifndef PARITY_SELFTEST_H
#define PARITY_SELFTEST_H

#include "parity/run/mutant.h"
#include "parity/run/run.h"

enum { MAX_TRACES = 64, MAX_CASES = 8, STEPS = 2 };

typedef struct selftest_options {
    char engine[8], engine_program[ASSAY_PATH], mutants[ASSAY_PATH], case_file[ASSAY_PATH], only[64],
        report[ASSAY_PATH];
    bool keep;
} selftest_options;

/* A clean run in one layout and precision. */
typedef struct clean_run {
    char layout[ASSAY_LAYOUT_TEXT];
    assay_precision precision;
    char dir[ASSAY_PATH], save[ASSAY_PATH];
    assay_trace *trace;
} clean_run;

typedef struct selftest {
    const selftest_options *o;
    char dir[ASSAY_PATH]; /* scratch */
    parity_engine engine;
    parity_case c;
    assay_train_options train;
    assay_model_config *config;
    assay_model_spec *spec;
    assay_batches batches;
    double **weights;
    parity_whole_cache *cache[2]; /* fp32, bf16 */
    int n_clean;
    clean_run clean[MAX_TRACES];
    int n_runs; /* engine runs so far: names of folders */
    int64_t passed, failed, skipped;
    int64_t tried, caught; /* faults */
    parity_report *told;   /* what the judge said of them; NULL: nobody asks */
} selftest;

/* --- selftest_plant.c --------------------------------------------------------------------------------------- */
/* One check of a trace. */
assay_status selftest_judge(selftest *s, const assay_trace *t, const char *layout, parity_check check,
                            parity_report *report);
/* Plants a fault, in a copy of what a clean run recorded or in the engine, and lets the check that must find it judge. */
assay_status selftest_plant(selftest *s, const parity_mutant *m, parity_report *report);

#endif
