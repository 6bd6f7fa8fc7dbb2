/* What `assay step` and `assay train` share: who computes, and one run of it.  Private to parity/run/. */
#ifndef PARITY_STEP_H
#define PARITY_STEP_H

#include "core/run/options.h"

typedef struct parity_step_options {
    char engine[8];
    char engine_program[ASSAY_PATH];
    double timeout_s;
    char precision[8]; /* "": fp64 for the reference, fp32 for the engine */
} parity_step_options;

#define PARITY_STEP_OPTION_ROWS                                                                              \
    {"engine", "ref|gpu|sim|auto",                                                                           \
     "who computes (default auto: the GPU where one answers, else the simulator)"},                          \
        {"engine_program", "PATH", "use this engine program"},                                               \
        {"precision", "fp64|fp32|bf16", "default: fp64 for the reference, fp32 for the engine"},             \
    {                                                                                                        \
        "timeout", "SECONDS", "time limit of the run (default none)"                                         \
    }

/* Takes one of the rows above; a parity_step_options. */
assay_status parity_step_option(void *user, const char *name, const char *text);
/* The precision into the training options: the default where none was given. */
assay_status parity_step_precision(const parity_step_options *s, assay_train_options *o);
/* Runs it; o->out is written.  `program`: for messages. */
assay_status parity_step_run(const parity_step_options *s, const assay_train_options *o, const char *program);

#endif
