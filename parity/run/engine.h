/* The engine as a program: which one, what it says about itself, one run of it. */
#ifndef PARITY_ENGINE_H
#define PARITY_ENGINE_H

#include "core/run/options.h"
#include "parity/parity.h"

typedef struct parity_engine {
    char program[ASSAY_PATH];
    char name[16];            /* "gpu" or "sim" */
    int n_devices;            /* 0 for the simulator */
    char reason[PARITY_TEXT]; /* why this one: "one NVIDIA H200 answers" / "no device answers (...)" */
    json_t *doctor;           /* what `PROGRAM doctor` printed */
    parity_ladder ladder;     /* its kernels, when parity_engine_learn asked */
} parity_engine;

/* `wish`: "auto" (assay-gpu where a device answers, else assay-sim), "gpu", "sim".  `program`: NULL, or the
 * path of an engine program to use whatever its name. */
assay_status parity_engine_find(const char *wish, const char *program, parity_engine *out);
void parity_engine_free(parity_engine *e);
/* What `PROGRAM doctor --ops` says: [{op, family, sums, variants: [{name, buys, least_capability, most_capability, act, outputs: [{outputs, arith, how}]}]}].
 * *out is the caller's.  ASSAY_FORMAT when the program says something else. */
assay_status parity_engine_operations(const parity_engine *e, json_t **out);

/* Fills e->ladder (engine_learn.c).  An engine whose doctor names no variants need not say its kernels, either. */
assay_status parity_engine_learn(parity_engine *e);

/* Starts `PROGRAM VERB --option value ...` with one process per rank of o->layout; output goes to log_path
 * (and to our stderr unless quiet).  Only options that differ from the defaults are passed.  A failure
 * carries the last error line of the log in its message. */
assay_status parity_engine_run(const parity_engine *e, const char *verb, const assay_train_options *o,
                               const char *const *extra, const char *log_path, bool quiet, double timeout_s,
                               double *wall_s);
/* An option of the table as the command line takes it: "--clip-grad=1" from "clip_grad" and 1.0. */
void parity_option_argument(const char *name, const json_t *value, char *out, size_t capacity);
/* Highest number of a kernel variant in any family; 0 when the engine does not say. */
int parity_engine_highest_variant(const parity_engine *e);
/* Whether the engine knows every word of a kernel selection ("", "fastest", "k0", "attention=k0,rmsnorm=k1"), as its doctor
 * says; messages name the word, what it may be and the nearest known one. */
assay_status parity_engine_check_variant(const parity_engine *e, const char *text);
/* Model, weights, batch file, layout, precision, kernels and steps fit each other and the engine (engine_inputs.c); the message is that of
 * the first that does not. */
assay_status parity_engine_check_inputs(const parity_engine *e, const assay_train_options *o);
/* Options of experts say nothing to a model that has none, and a policy nothing where no row is dropped: refused where they are given. */
assay_status parity_check_expert_options(const assay_train_options *o, const assay_model_config *config);
/* The first half alone, where `what` ("no case has") has none. */
assay_status parity_check_no_experts(const assay_train_options *o, const char *what);
/* The same of options of optimizer steps, where `what` (a file, a case) has none. */
assay_status parity_check_optimizer_options(const assay_train_options *o, const char *what);
/* Says on standard error which of the given options change nothing in this run: overlap where there is no communication, a learning rate's
 * decay with a constant one.  Megatron-LM takes them without a word, and scripts leave them in. */
assay_status parity_warn_idle_options(const char *program, const assay_train_options *o);
/* World size of a layout. */
assay_status parity_layout_world(const char *layout, int *world);

#endif
