/* Dry run: a plan of any size is checked without running it (`assay layout --world N --model NAME --layout L`).
 *
 * Groups, pieces and owners are asked of core for every rank, one at a time; nothing holds a table of ranks times
 * parameters.  Calls between ranks come from the judge's plan (parity/checks/plan.h), derived for one rank of every
 * class and not for all (docs/LAYOUTS.md 9 says what a class is and which law of the tests stands behind it).
 * Bytes and memory are formulas.  Private to parity/. */
#ifndef PARITY_DRY_H
#define PARITY_DRY_H

#include "parity/checks/plan.h"
#include <stdio.h>

enum { DRY_MAX_FINDINGS = 32, DRY_TEXT = 512, DRY_EXACT_WORLD = 64, DRY_RECOMPUTES = 3 };

typedef struct dry_options {
    char model[ASSAY_PATH]; /* folder, config.json-like file or the name of a public configuration */
    char layout[ASSAY_LAYOUT_TEXT];
    char out[ASSAY_PATH]; /* JSON; "" none */
    char svg[ASSAY_PATH]; /* drawing; "-": standard output, alone; "" none */
    char fault[96];       /* planted: owner:PARAM, group:KIND, swap:RANK, lost:RANK; "" none */
    int64_t world;        /* 0: the layout's own */
    int64_t micro_batch_size, num_microbatches,
        seq_length; /* num_microbatches: of a data-parallel rank; 0: 2 pp */
    double moe_aux_loss_coeff;
    assay_precision precision;
    bool numeric;
    bool classes; /* one rank of every class also where all could be asked */
} dry_options;

/* What one rank holds, in elements. */
typedef struct dry_rank {
    int64_t dense, experts; /* trained parameters by reduce group */
    int64_t buffers;        /* not trained */
    int64_t owned;          /* elements whose master and moments it keeps */
} dry_rank;

/* One call between ranks. */
typedef enum {
    DRY_ALL_REDUCE,
    DRY_ALL_GATHER,
    DRY_REDUCE_SCATTER,
    DRY_ALL_TO_ALL,
    DRY_SEND,
    DRY_RECV,
    DRY_OPS
} dry_op;
typedef struct dry_call {
    dry_op op;
    assay_phase phase;
    assay_group group;
    assay_dtype dtype;
    int name; /* number of the instance */
    int peer; /* send, recv: position in the pp group; over cp how far ahead in the ring, the same on every rank */
    int64_t microbatch; /* of the rank's own, from 0; -1 none */
    int64_t block; /* place in the schedule (plan_op): transfers of neighbouring blocks travel together */
} dry_call;
typedef struct dry_list {
    int64_t n, capacity;
    dry_call *calls;
} dry_list;

typedef struct dry_names {
    parity_map *map;
    int n, capacity;
    char **text;
} dry_names;

typedef struct dry_finding {
    const char *check; /* groups, owners, data, calls */
    char text[DRY_TEXT];
} dry_finding;

/* Bytes of one rank, by formula: docs/LAYOUTS.md 9. */
typedef struct dry_memory {
    int rank;
    double parameters, gradients, masters, moments;
    double activations[DRY_RECOMPUTES]; /* none, selective, full */
} dry_memory;

/* What one rank sends in a step, by kind of group. */
typedef struct dry_wire {
    int rank;
    int64_t calls[ASSAY_GROUP_COUNT];
    double bytes[ASSAY_GROUP_COUNT];
    double total;
} dry_wire;

typedef struct dry {
    dry_options o;
    char canonical[ASSAY_LAYOUT_TEXT];
    assay_model_config config;
    assay_model_spec *spec;
    assay_grid grid;
    int stages, stage_ranks; /* pipeline stages; ranks of one */
    int64_t n_parameters;    /* elements of the whole model, without buffers */
    dry_rank *ranks;         /* [world] */
    dry_names names;
    dry_list *lists;     /* [stages]: calls of the first rank of a stage */
    bool exact;          /* every rank has been asked for its calls */
    int64_t n_asked;     /* ranks that were */
    dry_memory *memory;  /* [stages]: of the rank of the stage that needs most */
    dry_memory least;    /* of the whole world */
    dry_wire *wire;      /* [stages] */
    int64_t n_claims[4]; /* groups, owners, data, calls */
    int64_t n_failed;
    int n_findings;
    dry_finding findings[DRY_MAX_FINDINGS];
} dry;

/* dry_check.c: everything below in its order.  The plan that cannot be made at all is an error; a claim that does not
 * hold is a finding. */
assay_status dry_make(dry *d, const dry_options *o);
void dry_free(dry *d);
typedef enum { DRY_GROUPS, DRY_OWNERS, DRY_DATA, DRY_CALLS } dry_kind;
void dry_holds(dry *d, dry_kind kind, int64_t n);
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void
dry_fails(dry *d, dry_kind kind, const char *fmt, ...);
/* Text after WORD: of the planted fault, NULL when it is another. */
const char *dry_fault(const dry *d, const char *word);

/* dry_models.c: NAME (llama-3.1-405b, ...) or a folder. */
assay_status dry_model_load(const char *model, assay_model_config *out);
void dry_model_names(char *out, size_t capacity);
/* Number of the public configurations; name and published number of parameters in billions. */
int dry_model_count(void);
const char *dry_model_at(int i, double *billions);

assay_status dry_check_groups(dry *d);
assay_status dry_check_owners(dry *d);
assay_status dry_check_data(dry *d);

/* dry_calls.c: the calls of one rank by the judge's plan.  microbatches: of a data-parallel rank. */
assay_status dry_calls(dry *d, int rank, int64_t microbatches, dry_list *out);
const char *dry_op_name(dry_op op);
assay_status dry_check_calls(dry *d);
/* dry_match.c: whether n actors, each the rank ranks[i] with its calls, come to their end.  Actors are ranks of the world
 * (n = world, in order) or stages (n = stages): then a call within a stage waits for nobody. */
assay_status dry_match(dry *d, int n, const int *ranks, const dry_list *const *lists);
/* "all_reduce decoder.layers.0.mlp.reduce (tp, forward, microbatch 2)" */
void dry_call_text(const dry *d, const dry_call *c, char out[DRY_TEXT / 2]);

/* dry_bytes.c: elements of a call as its rank sees it (of an all_gather what arrives, of a reduce_scatter what is summed).
 * ASSAY_UNSUPPORTED: an instance whose size this page does not know. */
assay_status dry_elements(const dry *d, int rank, const dry_call *c, double *out);
assay_status dry_count_wire(dry *d);
/* dry_memory.c */
assay_status dry_count_memory(dry *d);
/* Parameters, gradients and states of a rank; the same with its activations. */
void dry_states(const dry *d, int rank, dry_memory *m);
assay_status dry_rank_memory(const dry *d, int rank, dry_memory *out);
double dry_memory_total(const dry_memory *m, int recompute);

/* dry_report.c, dry_numeric.c, dry_shrink.c */
void dry_print(const dry *d, FILE *out);
assay_status dry_save(const dry *d, double seconds);
/* The same axes at size 2 and a small model of the same kinds of layers; tells what was shrunk. */
assay_status dry_shrink(const dry *d, FILE *out, char layout[ASSAY_LAYOUT_TEXT], json_t **case_file);
int dry_numeric(const dry *d, FILE *out);

#endif
