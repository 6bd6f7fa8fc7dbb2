/* The judge: verdicts, results, and the checks that make them.
 *
 * A check reads files (traces, checkpoints, result files) and adds results to a report; it never calls the
 * engine's code. One result is one claim about one tensor or decision of one operation in one case and
 * layout, aggregated over steps, microbatches and ranks; the worst place is named.  A verdict is `pass =
 * (error <= bound)`: NaN fails. */
#ifndef PARITY_PARITY_H
#define PARITY_PARITY_H

#include "core/base/hash.h"
#include "core/files/trace.h"
#include "parity/judge/picture.h"
#include "ref/ref.h"
#include "ref/replay.h"

typedef enum { PARITY_PASS, PARITY_FAIL, PARITY_SKIP } parity_verdict;

#define PARITY_CHECK_MAP(X)                                                                                  \
    X(PLAN, "plan")             /* every rank did what configuration, layout, options and batch demand */    \
    X(EXACT, "exact")           /* lattice inputs, bitwise */                                                \
    X(LOCAL, "local")           /* every operation within its bound of the truth */                          \
    X(FLOW, "flow")             /* every operation read what its producer wrote */                           \
    X(WHOLE, "whole")           /* sharded run against the unsharded double-precision run */                 \
    X(ROUTING, "routing")       /* discrete decisions admissible */                                          \
    X(BITWISE, "bitwise")       /* repeat, restart: equality of bits */                                      \
    X(CHECKPOINT, "checkpoint") /* save in layout A, load in layout B */                                     \
    X(ASSEMBLE, "assemble")     /* shards tile the global tensor; replicas are equal */
typedef enum {
#define PARITY_CHECK_ENUM(name, text) PARITY_CHECK_##name,
    PARITY_CHECK_MAP(PARITY_CHECK_ENUM)
#undef PARITY_CHECK_ENUM
        PARITY_CHECK_COUNT
} parity_check;
const char *parity_check_name(parity_check c);
const char *parity_verdict_name(parity_verdict v); /* "pass", "FAIL", "skip" */

enum { PARITY_TEXT = 512 };

typedef struct parity_result {
    char case_name[64];
    char engine[16]; /* gpu, sim, ref, or a foreign trace's own word */
    char tier[16];
    char layout[ASSAY_LAYOUT_TEXT];
    char precision[8];
    char variants[64]; /* kernel variants asked for: "fastest", "k0", "attention=k0"; empty: not known */
    parity_check check;
    char tensor[ASSAY_NAME];   /* canonical name, may be empty */
    char op[48];               /* operation kind, may be empty */
    char instance[ASSAY_NAME]; /* operation instance */
    assay_phase phase;
    int64_t step, microbatch; /* of the worst place; -1 = not applicable */
    int rank;
    parity_verdict verdict;
    double ratio;  /* worst error / allowance; infinity when not comparable */
    double share;  /* the same beyond the rounding of the output itself (parity_share): what tables show */
    int64_t count; /* elements compared */
    int64_t n_bad;
    int64_t n_ambiguous;           /* routing */
    int64_t index[ASSAY_MAX_DIMS]; /* of the worst element in `tensor` (global where assembled) */
    int index_ndim;
    double found, expected, allowance;
    bool is_distance; /* found is how far a whole slice lies from the reference, expected is 0, not a value */
    int variant;
    int picture, excerpt,
        curve; /* numbers in the gallery of the table or report that holds the result; 0: none */
    char diagnosis[PARITY_TEXT]; /* what kind of mistake it looks like; empty when unknown or passed */
    char message[PARITY_TEXT];   /* one sentence: expected, found, where */
    char reproduce[PARITY_TEXT]; /* command line */
} parity_result;

/* Zeroed, with verdict SKIP, no check (PARITY_CHECK_COUNT: no report takes it), phase -1 free, step/microbatch/rank
 * -1: a check that never filled it is not a pass. */
void parity_result_init(parity_result *r);

/* A result as reports and tables keep it, a tenth of its size: the same numbers, and the same texts as pointers, never NULL, empty
 * ones too.  Whose the texts are is said where a claim is handed out; of one report equal texts are one pointer. */
enum { PARITY_TEXTS = 12 };
typedef struct parity_claim {
    /* What walks over all claims of a run ask for stands in front. */
    parity_check check;
    parity_verdict verdict;
    double ratio, share;
    int64_t n_ambiguous;
    int picture, excerpt, curve;
    int rank, variant, index_ndim;
    assay_phase phase;
    bool is_distance;
    int64_t step, microbatch, count, n_bad;
    double found, expected, allowance;
    int64_t index[ASSAY_MAX_DIMS];
    union {
        struct {
            const char *case_name, *precision, *layout, *variants; /* of one column */
            const char *op, *instance, *tensor, *engine, *tier, *message, *diagnosis, *reproduce;
        };
        const char *text[PARITY_TEXTS];
    };
} parity_claim;

/* --- report: collects results (report/report.c) ------------------------------------------------------------- */
typedef struct parity_report parity_report;
assay_status parity_report_create(parity_report **out);
void parity_report_destroy(parity_report *r);
/* Case, engine, layout ... that following results inherit where they leave them empty; copied. */
void parity_report_set_context(parity_report *r, const parity_result *context);
/* ASSAY_INTERNAL for a result whose check was never set. */
assay_status parity_report_add(parity_report *r, const parity_result *result);
/* The same of a claim, of another report or made by hand: its texts are copied, and inherited where they are empty.  drawn:
 * what is drawn of it, as below; NULL: nothing. */
assay_status parity_report_add_claim(parity_report *r, const parity_claim *claim, const parity_drawn *drawn);
/* The same with what is drawn of it, copied.  Of failures a report takes the first four pictures and excerpts of
 * each case, precision, layout and kernels, 16 and 40 in all. */
enum {
    PARITY_PICTURES_OF_COLUMN = 4,
    PARITY_PICTURES = 16,
    PARITY_EXCERPTS_OF_COLUMN = 4,
    PARITY_EXCERPTS = 40
};
assay_status parity_report_add_drawn(parity_report *r, const parity_result *result,
                                     const parity_drawn *drawn);
/* What is drawn of a claim of this report. */
parity_drawn parity_report_drawn(const parity_report *r, const parity_claim *claim);
int64_t parity_report_count(const parity_report *r);
/* Valid until something is added; its texts are the report's.  NULL: there is none. */
const parity_claim *parity_report_at(const parity_report *r, int64_t i);
/* Which part of which run the results are: part `shard` of `shards`; run: what it was asked for, in short ("" : no run of
 * `assay run`).  Parts of one run come from one engine and one judge. */
typedef struct parity_origin {
    char run[ASSAY_HASH_HEX];
    int shard, shards;
    char engine[ASSAY_SHA256_HEX]; /* SHA-256 of the engine's program */
    char judge[ASSAY_SHA256_HEX];  /* of the judge's sources */
} parity_origin;
void parity_report_set_origin(parity_report *r, const parity_origin *origin);
const parity_origin *parity_report_origin(const parity_report *r);
void parity_report_totals(const parity_report *r, int64_t *passed, int64_t *failed, int64_t *skipped);

/* --- checks ------------------------------------------------------------------------------------------------- */
/* Each returns a status only when it could not run (unreadable files ...); findings are results. */

/* assemble.c: global tensor (name, phase, step, microbatch) from all ranks' records, as bytes of its stored
 * dtype.  Adds ASSEMBLE failures (gap, overlap, differing replicas, missing shard) to `report` when it is not
 * NULL. */
typedef struct parity_global {
    assay_dtype dtype;
    int ndim;
    int64_t shape[ASSAY_MAX_DIMS];
    int64_t count;
    void *data; /* owned, C order */
    bool complete;
} parity_global;
assay_status parity_assemble(const assay_trace *t, const char *name, assay_phase phase, int64_t step,
                             int64_t microbatch, parity_global *out, parity_report *report);
void parity_global_free(parity_global *g);
/* Assembles every (name, phase, step, microbatch) of the trace once: the ASSEMBLE check. */
assay_status parity_check_assemble(const assay_trace *t, parity_report *report);

/* local.c: every operation recomputed by ref_replay from what the candidate recorded */
assay_status parity_check_local(const assay_trace *t, parity_report *report);
/* exact.c: writes the lattice request trace for a world of `world` ranks; judges the engine's answer, every_rung: of each rung that takes a
 * record (`ops --every-rung`).  ASSAY_MISMATCH: the answer is of the other kind. */
assay_status parity_exact_request(const char *dir, int world, const char *act_dtype);
/* The same with single operations at the widths of real models, for one rank (random_widths.c) */
assay_status parity_widths_request(const char *dir, const char *act_dtype);
assay_status parity_check_exact(const char *request_dir, const char *answer_dir, bool every_rung,
                                parity_report *report);
/* The same where some records need no answer: those that `taken` denies are not judged.  theirs: by a library or a Python function, for
 * which the caller made the tensors; an engine, of whatever name, is held to the operations' rows. */
typedef bool (*parity_exact_taken)(const void *user, const assay_trace *request, const assay_trace_op *asked);
assay_status parity_check_exact_taken(const char *request_dir, const char *answer_dir, bool theirs,
                                      parity_exact_taken taken, const void *user, parity_report *report);
/* plan.c: every operation of every rank, step and microbatch with its inputs, attributes, integer tensors and
 * partners (docs/OPS.md section 9), expected from what the run was asked for: the trace is only compared.
 * Failures come first, in causal order. */
assay_status parity_check_plan(const assay_trace *t, const assay_model_spec *spec, const assay_grid *grid,
                               const assay_train_options *options, const assay_batches *batches,
                               parity_report *report);
/* flow.c; the spec tells parameters from other tensors */
assay_status parity_check_flow(const assay_trace *t, const assay_model_spec *spec, parity_report *report);
/* substituted.c: a skip (check plan) that names what something put in place of results (--substitute): whatever passes beside it, the
 * run is not certified.  Nothing where there is none. */
assay_status parity_check_substituted(const assay_trace *t, parity_report *report);
/* aborted.c: a failure for each rank whose end marker says that its run was aborted. */
assay_status parity_check_aborted(const assay_trace *t, parity_report *report);
/* kernels.c: what an engine's doctor says of its kernels (`doctor --ops`), and the device's 10 * major + minor. */
typedef struct parity_ladder {
    json_t *operations; /* NULL: it does not say */
    int capability;
} parity_ladder;
enum { PARITY_LADDER_WORD = 64 };
/* Whether this kernel of the operation takes calls of activations in this dtype ("F32", "BF16") on the device. */
bool parity_ladder_takes(const parity_ladder *l, const char *op, int variant, const char *act);
/* Whether each FAMILY=kN of a selection is a kernel of some operation of the family for this dtype; else the first that is none. */
bool parity_ladder_answers(const parity_ladder *l, const char *selection, const char *act,
                           char missing[PARITY_LADDER_WORD]);
/* A claim (check plan) for each word of the selection: no record is of a higher kernel than was asked for, and for FAMILY=kN at least
 * one of the family is of that one.  A skip where no recorded operation has such a kernel. */
assay_status parity_check_kernels(const assay_trace *t, const parity_ladder *ladder, const char *selection,
                                  const char *act, parity_report *report);
/* A claim for each requested operation and kind of its inputs (lattice: check exact; random: check local), which every rung was to
 * answer: each that the doctor lists for this dtype and device has, and no other. */
assay_status parity_check_rungs(const char *request_dir, const char *answer_dir, const parity_ladder *ladder,
                                const char *act, parity_report *report);
/* recompute.c: what ran again for the backward pass read and wrote the bits of its first run (check bitwise) */
assay_status parity_check_recompute(const assay_trace *t, parity_report *report);
/* whole.c: runs the reference unsharded in double on the same weights and batches with the candidate's
 * routing, and r perturbed runs for thresholds; the reference runs are cached in *cache across layouts of a
 * case. */
typedef struct parity_whole_cache parity_whole_cache;
assay_status parity_whole_cache_create(parity_whole_cache **out, const assay_model_spec *spec,
                                       const assay_train_options *options, const assay_batches *batches,
                                       double *const *weights);
/* Runs of the reference are kept in this folder, where other processes find them: each is made once. */
assay_status parity_whole_cache_share(parity_whole_cache *c, const char *folder);
void parity_whole_cache_destroy(parity_whole_cache *c);
assay_status parity_check_whole(parity_whole_cache *cache, const assay_trace *t, parity_report *report);
/* The same against another run in place of the reference: an unsharded trace of canonical names in double.  The reference's runs
 * say what rounding can do; widen: how much more of it lies between two runs than between one and the truth.  What the other
 * run does not hold is not compared. */
assay_status parity_check_whole_against(parity_whole_cache *cache, const assay_trace *t,
                                        const assay_trace *other, double widen, parity_report *report);
/* routing.c */
assay_status parity_check_routing(const assay_trace *t, parity_report *report);
/* bitwise.c: two traces (or two result files) must be equal bit for bit; `claim` is "repeat" or "restart" */
assay_status parity_check_bitwise_traces(const assay_trace *a, const assay_trace *b, const char *claim,
                                         int64_t first_step_of_b, parity_report *report);
assay_status parity_check_bitwise_files(const char *a, const char *b, const char *claim,
                                        parity_report *report);
/* checkpoint.c (the judge's): every global tensor of two checkpoints equal bit for bit */
assay_status parity_check_checkpoints(const char *a, const char *b, const char *claim, parity_report *report);
/* checkpoint_header.c: what the header of a checkpoint must say.  options: of the run that wrote it. */
typedef struct parity_header {
    const assay_train_options *options;
    const assay_batches *batches; /* that it trained on */
    const assay_model_spec *spec; /* that it trained, with what was frozen */
    const char *layout;
    const char *dir; /* of the checkpoint, for config.json */
    int64_t step;
} parity_header;
/* Steps done, schedule, precision, training, data, streams, content, model and layout of that folder, and its config.json, a
 * result each, of operation `claim`; wanted->dir is `dir`. */
assay_status parity_check_header(const char *dir, const char *claim, const parity_header *wanted,
                                 parity_report *report);
/* The same of a header at hand, each result as `base`; the layout as headers spell it. */
assay_status parity_header_judge(const json_t *header, const parity_header *wanted, const parity_result *base,
                                 parity_report *report);
/* checkpoint_resumed.c: the result file of a run that went on for its last `left` steps against that of the run without
 * interruption (BITWISE, "restart"); one that cannot be read is a failure. */
assay_status parity_check_resumed(const char *whole, const char *rest, int64_t left, parity_report *report);
/* saved.c: gradients of the resumed run's result file, those of its first step, against the trace of the run without interruption
 * (BITWISE, "restart"). */
assay_status parity_check_resumed_gradients(const assay_trace *t, const char *rest, int64_t step,
                                            const assay_model_spec *spec, const assay_train_options *options,
                                            parity_report *report);
/* saved.c: what the traced run left behind is what its trace says.  checkpoint (NULL: none): every master,
 * moment and expert bias of the last step, step, precision and layout of the header (results of CHECKPOINT,
 * operation "save"); out (NULL: none): losses, norms, weights, or logits and gradients (BITWISE, "out"). */
assay_status parity_check_saved(const assay_trace *t, const char *checkpoint, const char *out,
                                const assay_model_spec *spec, const assay_train_options *options,
                                const assay_batches *batches, parity_report *report);
/* The tensors of a checkpoint of that trace's run after its first `steps` steps (CHECKPOINT, operation `claim`); its header is
 * parity_check_header's. */
assay_status parity_check_saved_after(const assay_trace *t, const char *checkpoint, const char *claim,
                                      int64_t steps, const assay_model_spec *spec,
                                      const assay_train_options *options, parity_report *report);

/* A line for every rank whose run ended before it was done. */
bool parity_say_aborted(const assay_trace *t, FILE *out);
typedef enum { PARITY_NOISE_NONE, PARITY_NOISE_AUTO, PARITY_NOISE_FP32, PARITY_NOISE_BF16 } parity_noise_mode;
typedef struct parity_diff_options {
    double tolerance;        /* < 0: bitwise; else relative to the largest magnitude of the tensor */
    parity_noise_mode noise; /* in place of a tolerance: what rounding explains (parity/checks/noise.h) */
    const char *model;       /* folder, for names and for runs of the reference; NULL: none */
    const char *map;         /* a user's map file; NULL: none */
    bool json;
} parity_diff_options;
/* diff.c: two traces by assembled global tensors, and between alike runs by those of one rank, in order of execution: the first
 * difference is named. */
assay_status parity_diff_traces(const char *dir_a, const char *dir_b, const parity_diff_options *o, FILE *out,
                                int *exit_code);
/* suggest.c: per kind of operation the tightest declared arithmetic under which every recorded element passes.  Exit code 1: one
 * has none. */
assay_status parity_suggest(const char *dir, FILE *out, int *exit_code);
/* check.c: a recorded run of another framework against a model folder; map: NULL or a user's map file */
assay_status parity_check_run(const char *trace, const char *model, const char *map, bool json, FILE *out,
                              int *exit_code);
/* The same of two result files. */
assay_status parity_diff_files(const char *path_a, const char *path_b, double tolerance, FILE *out,
                               int *exit_code);

/* diagnose.c: explains a difference; writes one sentence or "" (docs/ARCHITECTURE.md lists the kinds).
 * known_* describe group sizes for constant ratios. */
typedef struct parity_scales {
    int tp, dp, ep, pp, cp;
    int64_t microbatches, topk, world;
} parity_scales;
void parity_diagnose(const double *found, const double *expected, const double *allowance,
                     const int64_t *shape, int ndim, assay_dtype stored, const parity_scales *scales,
                     char out[PARITY_TEXT]);

/* --- reports (report/): all write beside and rename --------------------------------------------------------- */
/* One object for each result, and a last one with their counts and origin. */
assay_status parity_report_jsonl(const parity_report *r, const char *path);
/* facts: what the run tells about itself, seconds and seeds of its tasks among them (facts.json); NULL: nothing. */
assay_status parity_report_junit(const parity_report *r, const char *path, const json_t *facts);
/* A short page in Markdown, for the pages of CI. */
assay_status parity_report_summary(const parity_report *r, const json_t *facts, FILE *f);
assay_status parity_report_html(const parity_report *r, const char *path, const char *title,
                                const json_t *facts);
/* Matrix of cases x layouts with counts, verdict, worst share per check; failing lines with their commands.  results: the
 * file that holds all of them, NULL: none was written. */
void parity_report_table(const parity_report *r, FILE *out, const char *results);

/* --- commands (each returns the exit code 0, 1, 2) ---------------------------------------------------------- */
int parity_main_run(int argc, char **argv);
int parity_main_step(int argc, char **argv);
int parity_main_bisect(int argc, char **argv);
int parity_main_batch(int argc, char **argv);
int parity_main_ckpt(int argc, char **argv);
int parity_main_train(int argc, char **argv);
int parity_main_diff(int argc, char **argv);
int parity_main_replay(int argc, char **argv);
int parity_main_check(int argc, char **argv);
int parity_main_map(int argc, char **argv);
int parity_main_sanitize(int argc, char **argv);
int parity_main_layout(int argc, char **argv);
int parity_main_selftest(int argc, char **argv);
int parity_main_doctor(int argc, char **argv);
int parity_main_report(int argc, char **argv);
int parity_main_bench(int argc, char **argv);
int parity_main_certify(int argc, char **argv);
int parity_main_probe(int argc, char **argv);
int parity_main_keygen(int argc, char **argv);
int parity_main_draw_case(int argc, char **argv);
int parity_main_verify(int argc, char **argv);
int parity_main_gate(int argc, char **argv);
int parity_main_help(int argc, char **argv);
int parity_main_completion(int argc, char **argv);
/* "0.1.0" */
const char *parity_version(void);
/* "1782025f8a59", with "-dirty" where the sources were changed; "unknown" where they were built outside of git.  The program
 * tells: the library knows no commit. */
void parity_set_commit(const char *text);
const char *parity_commit(void);

#endif
