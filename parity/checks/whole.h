/* Runs of the reference for the whole check: the candidate's routing choices and the unperturbed and
 * perturbed runs on them.  Private to parity/whole*.c. */
#ifndef PARITY_WHOLE_H
#define PARITY_WHOLE_H

#include "parity/judge/judge.h"

/* Perturbed runs: at first, and of a second look where those find something.  A multiple of four. */
enum { PARITY_WHOLE_FIRST_RUNS = 4, PARITY_WHOLE_RUNS = 16 };

/* Runs of the reference on one set of choices. */
typedef struct parity_whole_runs {
    char key[ASSAY_HASH_HEX + ASSAY_SHA256_HEX + ASSAY_LAYOUT_TEXT + 16];
    int n; /* perturbed runs made so far */
    ref_run_result truth, perturbed[PARITY_WHOLE_RUNS];
    bool has_logits; /* of microbatch 0 of step 0 */
    ref_run_result logits_truth, logits_perturbed[PARITY_WHOLE_RUNS];
    double jump,
        jump_rate; /* of masters in the runs last asked for: largest step apart, how many such per element */
} parity_whole_runs;

struct parity_whole_cache {
    const assay_model_spec *spec;
    assay_train_options options;
    const assay_batches *batches;
    double *const *weights;
    char objective[ASSAY_LAYOUT_TEXT]; /* layout whose objective the runs have, "" = any */
    char folder[ASSAY_PATH];           /* of runs that other processes share, "" = none */
    char identity[ASSAY_SHA256_HEX];
    int64_t n;
    parity_whole_runs **all;
};

/* The choices of every step, microbatch, layer and map, the clips of every operand (whole_clips.c), and, for a second look, the masters
 * (whole_masters.c). */
typedef struct parity_whole_choices {
    const assay_model_spec *spec;
    int64_t steps, microbatches, tokens, k;
    int64_t
        *indices;  /* [steps][microbatches][layers][2][tokens][k], first entry -1: not recorded; then clips */
    int64_t clips; /* of them, the first of clips */
    int64_t count;
    char hash[ASSAY_HASH_HEX]; /* of them */
    double **masters;          /* [steps - 1][parameters], whole, NULL: not recorded; NULL: a first look */
    char masters_hash[ASSAY_SHA256_HEX];
    parity_result refused; /* the first that is recorded and cannot be read; passes: none */
} parity_whole_choices;

/* How many jumps of a master come together at the most, from the truth's gradients of all steps; 1: each for itself.
 * clusters [shape[0]], ones before: raised to those within slice i of dimension 0; returns that of the whole tensor. */
double parity_whole_clusters(const ref_run_result *truth, const char *parameter, double *clusters);
/* Bounds the number of jumps in n elements where on average `rate` n of them jump, in clusters of `cluster`. */
double parity_whole_jump_count(double n, double rate, double cluster);

/* Quantile of Student's t with `nu` degrees of freedom where the normal's is 4 (Cornish-Fisher, three terms). */
double parity_whole_kappa(double nu);
/* Degrees of freedom of one perturbed run's n errors, 1 ... n, from the products of the errors of `runs` runs (a multiple of
 * four). */
double parity_whole_freedom(double gram[PARITY_WHOLE_RUNS][PARITY_WHOLE_RUNS], int runs, int64_t n);

/* Whether num_zeros_in_grad of the step is the number of zeros in the assembled gradients; fails *r. */
assay_status parity_whole_zeros(const parity_index *x, const assay_model_spec *spec, int64_t step,
                                parity_result *r);

/* From the trace; a choice that is not recorded or malformed is left to the reference, and so is one that cannot be read, with a
 * word about it. */
assay_status parity_whole_read_choices(const parity_whole_cache *cache, const parity_index *x, int64_t steps,
                                       parity_whole_choices *c);
void parity_whole_free_choices(parity_whole_choices *c);
/* What is recorded was chosen: the reference must not put its own in the place of it without a word. */
void parity_whole_refuse(parity_whole_choices *c, const parity_entry *e, const parity_result *finding,
                         bool complete);
/* The masters behind every step but the last: read for a second look, and what the reference asks.  One that is not recorded, cannot be
 * read or is not finite is left to the reference; the check of its own step says what is wrong with it. */
assay_status parity_whole_read_masters(const parity_index *x, parity_whole_choices *c);
bool parity_whole_master(void *choices, int64_t step, int64_t param, double *master, int64_t n);
/* The same of clips: how many numbers they take, what the trace says, and what the reference asks. */
int64_t parity_whole_clip_numbers(const parity_whole_choices *c);
assay_status parity_whole_read_clips(const parity_index *x, parity_whole_choices *c);
bool parity_whole_clip(void *choices, int64_t step, int64_t microbatch, int64_t layer,
                       ref_clip_operand operand, bool *passes, int64_t n);
/* At least `runs` perturbed ones, from the cache or made now; owned by the cache. */
assay_status parity_whole_find_runs(parity_whole_cache *c, assay_precision precision,
                                    parity_whole_choices *choice, int runs, parity_whole_runs **out);

#endif
