/* A planted fault and who must find it: parity/mutants/NAME.json.  Private to parity/.
 *
 *   name, planted        what and in words where
 *   kind                 trace: a changed copy of a recorded trace; engine: the engine runs with --fault WORD;
 *                        bitwise: the recorded trace against its changed copy; exact: a changed answer to the
 *                        lattice request; checkpoint: a checkpoint against a changed copy
 *   case                 of the run, among those that come with assay; absent: the one that selftest trains
 *   layout               of the run
 *   precision            fp32 (default), bf16 or both
 *   fault                trace, bitwise, exact: a word of trace_mutate.h; engine: its word; checkpoint: a family
 *   op, instance, slot, value, input, rank, step, microbatch
 *                        where and what (trace_mutate.h; an instance that ends in * is a prefix)
 *   expected_check, expected_instance (a prefix of the instance or tensor), expected_op, expected_item (the
 *   tensor, slot or attribute), diagnosis (a word of it) */
#ifndef PARITY_MUTANT_H
#define PARITY_MUTANT_H

#include "parity/run/trace_mutate.h"

typedef enum {
    PARITY_MUTANT_TRACE,
    PARITY_MUTANT_ENGINE,
    PARITY_MUTANT_BITWISE,
    PARITY_MUTANT_EXACT,
    PARITY_MUTANT_CHECKPOINT
} parity_mutant_kind;

typedef struct parity_mutant {
    char name[64], planted[160];
    parity_mutant_kind kind;
    char case_name[64]; /* "": none is named */
    char layout[ASSAY_LAYOUT_TEXT];
    bool fp32, bf16; /* in which the fault is planted */
    parity_mutation mutation;
    parity_check expected_check;
    char expected_instance[ASSAY_NAME], expected_op[48], expected_item[64], diagnosis[64];
} parity_mutant;

assay_status parity_mutant_load(const char *path, parity_mutant *out);

/* How a mutant was judged. */
typedef struct parity_kill {
    bool caught;      /* the expected check failed */
    bool named;       /* ... and its first failure names the right place with the right word */
    parity_claim by;  /* that failure; its texts are the report's */
    int64_t n_failed; /* failures of the expected check */
} parity_kill;
/* The first failure of the expected check decides; of the whole check, any. */
void parity_mutant_judge(const parity_mutant *m, const parity_report *r, parity_kill *out);

#endif
