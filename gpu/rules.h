/* Rules of --substitute: for which calls another variant runs, and whose results something else replaces.  A line each:
 *
 *   kN:INSTANCE              variant N runs, or the highest below it that takes the call
 *   values:INSTANCE[:SLOT]   outputs (one of them) get the values of the trace of --substitute-values
 *
 * INSTANCE is a full instance name and may hold the wildcards of fnmatch.  Conditions follow behind commas, as those of a fault
 * (gpu/fault.h): op=NAME, phase=NAME, step=N, microbatch=N.  Of several rules for a variant the last one counts.  docs/DEBUG.md. */
#ifndef GPU_RULES_H
#define GPU_RULES_H

#include "core/model/ops.h"
#include "core/run/options.h"
#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_rule {
    int variant;                                              /* -1: values */
    char instance[ASSAY_NAME], slot[ASSAY_SLOT_NAME], op[48]; /* "": any slot, any operation */
    bool wild;                                                /* the instance is a pattern */
    int phase;                                                /* -1: any */
    int64_t step, microbatch;                                 /* -1: any */
    int64_t met; /* calls or outputs that it changed on this rank */
    int line;
} gpu_rule;

typedef struct gpu_rules {
    char file[ASSAY_PATH];
    int64_t n;
    bool values; /* one of them asks for values */
    gpu_rule *list;
} gpu_rules;

/* ASSAY_INVALID_ARGUMENT with the line, what was expected and what was found. */
assay_status gpu_rules_read(const char *file, gpu_rules **out);
void gpu_rules_destroy(gpu_rules *r);
/* Variant for the call that the run is about to make; -1: no rule says one. */
int gpu_rules_variant(const gpu_run *run, const assay_op *op, const char *instance);
/* Whether a rule is about this call; counts nothing. */
bool gpu_rules_meet(const gpu_run *run, const char *op, const char *instance);
/* The rule that replaces the output; NULL: none.  The caller counts `met` when it was replaced. */
gpu_rule *gpu_rules_values(const gpu_run *run, const char *op, const char *instance, const char *slot);
/* Refuses a rule that changed nothing on any rank.  Talks to every rank. */
assay_status gpu_rules_check_met(gpu_run *run);

ASSAY_END_DECLS

#endif
