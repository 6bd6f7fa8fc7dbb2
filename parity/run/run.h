/* `assay run`: a matrix of cases, precisions and layouts.  Internal interface of run*.c. */
#ifndef PARITY_RUN_H
#define PARITY_RUN_H

#include "parity/run/cases.h"
#include "parity/run/engine.h"
#include <sys/types.h>

enum { PARITY_MAX_SHARDS = 256 }; /* `assay report merge` joins as many */

typedef struct parity_run_options {
    char engine[8]; /* auto, gpu, sim */
    char engine_program[ASSAY_PATH];
    char report_dir[ASSAY_PATH];
    char summary[ASSAY_PATH];  /* Markdown; "-": standard output, "": none */
    int jobs;                  /* tasks side by side */
    int shard, shards;         /* i of n, from 1 */
    double timeout_s;          /* of one engine run */
    double collective_timeout; /* of a collective; 0: the engine's own */
    bool keep, quiet, fail_fast;
    int n_files, n_layouts, n_cases;
    char files[16][ASSAY_PATH];                          /* case files; none: those that come with assay */
    char cases[PARITY_MAX_CASE_NAMES][64];               /* filter by name */
    char layouts[PARITY_MAX_LAYOUTS][ASSAY_LAYOUT_TEXT]; /* instead of the case's own */
    char precision[8];                                   /* "" = the case's own */
    char variant[PARITY_VARIANT_TEXT];                   /* "" = the case's own */
    char matrix[12];                                     /* pairwise or full */
    char check[16];                                      /* "" = the case's own */
    char model[ASSAY_PATH], batch[ASSAY_PATH];           /* judge this folder; "": cases */
    char overrides[2 * ASSAY_PATH +
                   256]; /* training options given on the command line, as text for reproduction commands */
} parity_run_options;

/* One unit of work: a case in one precision and layout, or the lattice inputs of every operation. */
typedef struct parity_task {
    const parity_case *c; /* NULL: operations alone */
    bool widths;          /* ... at the widths of real models */
    assay_precision precision;
    char layout[ASSAY_LAYOUT_TEXT];
    char variant
        [PARITY_VARIANT_TEXT]; /* "fastest", "k0", "attention=k0"; of the operations alone PARITY_EVERY_RUNG, too */
    char next_layout[ASSAY_LAYOUT_TEXT]; /* the checkpoint is loaded in this one */
    char dir[ASSAY_PATH];                /* scratch folder of this task */
    char case_dir[ASSAY_PATH];           /* model and batch of the case */
    double memory;                       /* bytes that it is estimated to need (run_memory.c) */
    char cannot[256]; /* why the case cannot be cut so: it is skipped with these words; "" */
} parity_task;

/* Names of what is no case, as --case has them: every operation alone; the same at the widths of real models. */
#define PARITY_OPERATIONS "operations"
#define PARITY_EVERY_RUNG                                                                                    \
    "every" /* kernels of the operations alone: each record by every rung that takes it */
#define PARITY_WIDTHS "widths_operations"
/* Name of a task's case, or of what it has in place of one. */
const char *parity_task_name(const parity_task *t);

/* Configuration and data of a case fit each other and its sizes; writes nothing. */
assay_status parity_check_case(const parity_case *c);
/* Model folder and batch file of a case, made once before its tasks. */
assay_status parity_prepare_case(const parity_case *c, const char *case_dir);
/* Runs one task and adds its results.  *facts gets wall times. */
assay_status parity_run_task(const parity_run_options *o, const parity_engine *e, const parity_task *t,
                             parity_report *report, json_t *facts);

enum { PARITY_TIMEOUT_S = 600 }; /* of one engine run, unless --timeout says another */
enum { PARITY_MAX_CASES = 64, PARITY_MAX_TASKS = 4096, PARITY_MAX_JOBS = 16 };

/* Everything of one `assay run`. */
typedef struct parity_run_state {
    parity_run_options o;
    parity_engine engine;
    parity_origin origin;
    int argc; /* the command, for the report */
    char **argv;
    int lock; /* of the report folder; -1: not ours yet */
    parity_case *cases;
    int n_cases;
    parity_task *tasks;
    int n_tasks, n_combinations;  /* of them, before the matrix chose */
    int n_chosen;                 /* by the matrix, for all parts */
    bool finished;                /* every task has ended, and what came of it is known */
    int *order;                   /* in which tasks start; -1: has */
    int *status;                  /* of each task's child */
    int n_unasked, first_unasked; /* tasks of whose case --check judges nothing */
    int first_not_passed;         /* the task that ended the run, with fail_fast; -1: none */
    pid_t pids[PARITY_MAX_JOBS];
    int running[PARITY_MAX_JOBS]; /* task of each child, -1 = free */
    double available;             /* bytes that the machine had for us when nothing of it ran */
    parity_report *report;
    json_t *facts;
} parity_run_state;

/* reproduce.c: the command that runs this task again with every option that matters; cut off visibly when it does not
 * fit. */
void parity_run_reproduce(const parity_run_options *o, const char *engine, const parity_task *t,
                          char out[PARITY_TEXT]);
void parity_shell_word(const char *word, char *out, size_t capacity);
/* run_options.c: the list ends with a NULL name; the callback's user is a parity_run_options. */
extern const assay_extra_option parity_run_option_list[];
assay_status parity_run_option(void *user, const char *name, const char *text);
/* run_matrix.c: tasks [n] are all legal combinations; chosen [n] is set for those of the pairwise matrix. */
assay_status parity_run_choose(const parity_task *tasks, int n, bool *chosen);
/* run_name.c: which run it is in s->origin, from what is asked for and from every file that is read; chosen [n_tasks] are the tasks of all parts. */
assay_status parity_run_name(parity_run_state *s, const bool *chosen);
/* Which engine and which judge answer, in s->origin. */
assay_status parity_run_builds(parity_run_state *s);
assay_status parity_run_load_cases(parity_run_state *s);
/* Options given on the command line replace those of every case; train_iters the steps of its data. */
assay_status parity_run_apply_overrides(parity_run_state *s, const assay_train_options *given);
assay_status parity_run_make_tasks(parity_run_state *s);
/* Whether the operations alone are a part of this run. */
bool parity_run_operations(const parity_run_state *s);
/* Whether they run in this layout. */
bool parity_run_operations_layout(const parity_run_state *s, const char *layout);
/* run_layouts.c: the same sizes of all axes, however they are spelt. */
bool parity_layout_same(const char *a, const char *b);
/* Whether model and data of a case can be cut into a layout; the message names case, layout and reason. */
assay_status parity_case_layout(const parity_case *c, const char *layout);
/* Before anything starts: layouts that are given twice are merged, with a line; refused is a case whose own list holds one
 * that it cannot be cut into, and a given one that no case can be cut into. */
assay_status parity_run_check_layouts(parity_run_state *s);
/* The engine knows the kernels that the command line and the cases name. */
assay_status parity_run_check_variants(const parity_run_state *s);
/* run_order.c: fills s->order [n_tasks], in which tasks start, and the memory of each. */
assay_status parity_run_order(parity_run_state *s);
/* run_memory.c: bytes that a task of a model of this many elements of parameters needs, the engine or then the judge. */
double parity_run_memory(const parity_run_options *o, const parity_task *t, double parameters);
/* Bytes that the machine has for us now. */
double parity_run_memory_available(void);
/* Takes the first task of the order that has not started and fits beside those that run; alone, any fits.  -1: none. */
int parity_run_next(parity_run_state *s);
/* Threads of a task's judge: the processors are shared by as many tasks as its memory lets run side by side. */
int parity_run_threads(const parity_run_state *s, int index, int processors);

#endif
