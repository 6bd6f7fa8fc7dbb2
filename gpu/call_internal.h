/* A call with its names looked up, and the steps that gpu/call.c makes of it.  Private to gpu/call*.c. */
#ifndef GPU_CALL_INTERNAL_H
#define GPU_CALL_INTERNAL_H

#include "gpu/call.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_call_operand {
    char slot[ASSAY_SLOT_NAME];
    gpu_value *value;
    void *held; /* fault hold: what it gets back */
} gpu_call_operand;

typedef struct gpu_resolved {
    const gpu_call_args *args;
    gpu_operands o;
    char instance[ASSAY_NAME]; /* formatted only when somebody reads it */
    int n_in, n_out;
    gpu_call_operand in[GPU_CALL_ARGS], out[GPU_CALL_ARGS];
    const struct gpu_resolved *whole; /* it is a part of this fused operation; NULL: it runs by itself */
    int part;
    bool made[GPU_CALL_ARGS]; /* inputs that the fused launch itself makes: recorded behind it */
    assay_group group;
    const int64_t *counts, *recv_counts;
    bool recorded;
    assay_trace_op record;
    int wish;    /* the variant that a rule of --substitute names; -1: none */
    int variant; /* that ran */
    bool skipped;
    bool replaced[GPU_CALL_ARGS]; /* outputs that the substitute made */
} gpu_resolved;

/* --- call.c: the steps of a call */
assay_status gpu_call_prepare(gpu_run *run, const gpu_call_args *args, gpu_resolved *c);
/* apart: what an in-out slot becomes has memory of its own beside what it was: a launch makes both. */
assay_status gpu_call_prepare_part(gpu_run *run, const gpu_call_args *args, bool apart, gpu_resolved *c);
/* A prepared call: in dry mode notes its workspace, else runs with its records and faults. */
assay_status gpu_call_run(gpu_run *run, gpu_resolved *c);
void gpu_call_need(gpu_run *run, const gpu_resolved *c);
/* Around the launch of n calls, of which c is the first. */
assay_status gpu_call_observe(gpu_run *run, const gpu_resolved *c, int64_t n, bool end);
/* Results after a launch: faults, then what the substitute says. */
assay_status gpu_call_finish_outputs(gpu_run *run, gpu_resolved *c);

/* --- call_resolve.c: sorts the arguments into inputs, outputs and attributes; makes the outputs that are only described; puts all into
 * c->o for the launch */
assay_status gpu_call_look_up(gpu_run *run, const gpu_call_args *args, gpu_resolved *c);
assay_status gpu_call_make_outputs(gpu_run *run, bool apart, gpu_resolved *c);
/* In-out slots lie where what they were before lies. */
void gpu_call_stay_in_place(gpu_resolved *c);
void gpu_call_fill_operands(gpu_resolved *c);
/* Of the slot, or NULL. */
gpu_value *gpu_call_value_in(const gpu_call_operand *list, int n, const char *slot);

/* --- call_collective.c */
assay_status gpu_call_launch_collective(gpu_run *run, gpu_resolved *c);
gpu_declared gpu_call_collective_arith(const gpu_run *run, const gpu_resolved *c);
/* Rows of the first n ranks; elements of one row of t, whose rows are those of n ranks. */
int64_t gpu_call_rows(const int64_t *counts, int n);
int64_t gpu_call_row_elements(gpu_tensor t, const int64_t *counts, int n);

/* --- call_record.c: what the trace gets, inputs before the launch and the rest after it */
assay_status gpu_call_record_begin(gpu_run *run, gpu_resolved *c);
assay_status gpu_call_record_end(gpu_run *run, gpu_resolved *c);

ASSAY_END_DECLS

#endif
