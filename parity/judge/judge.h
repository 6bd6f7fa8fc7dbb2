/* What the checks share: values from bytes, a map from text to number, worst places, rows of results.
 * Private to parity/. */
#ifndef PARITY_JUDGE_H
#define PARITY_JUDGE_H

#include "parity/parity.h"

/* Intermediate results that kernels of ours store (docs/TOLERANCES.md 3); other words widen bounds, and are of other people's modules. */
enum { PARITY_OUR_ROUNDINGS = ASSAY_ROUND_RESIDUAL | ASSAY_ROUND_NORM };

/* --- values.c: bytes of any alignment to numbers ------------------------------------------------------------ */
bool parity_is_integer(assay_dtype dtype);
/* Whether parity_decode knows the type (whole-byte real and integer types). */
bool parity_can_decode(assay_dtype dtype);
/* Element `index`; integers as doubles (rounded above 2^53). */
double parity_decode(const void *data, int64_t index, assay_dtype dtype);
int64_t parity_decode_integer(const void *data, int64_t index, assay_dtype dtype);
/* Fresh array of `count` values (never NULL, also for 0 elements); ASSAY_UNSUPPORTED names the type. */
assay_status parity_decode_all(const void *data, int64_t count, assay_dtype dtype, double **out);
assay_status parity_decode_integers(const void *data, int64_t count, assay_dtype dtype, int64_t **out);
/* Row-major multi-index of element `flat`. */
void parity_unflatten(int64_t flat, const int64_t *shape, int ndim, int64_t *index);
/* "[2, 0, 7]" */
void parity_index_text(const int64_t *index, int ndim, char *out, size_t capacity);

/* --- map.c -------------------------------------------------------------------------------------------------- */
typedef struct parity_map parity_map;
assay_status parity_map_create(parity_map **out);
void parity_map_destroy(parity_map *m);
/* Value of `key`, or -1. */
int64_t parity_map_get(const parity_map *m, const char *key);
/* Inserts or replaces; value >= 0. */
assay_status parity_map_put(parity_map *m, const char *key, int64_t value);
/* The map's own copy of a key, which lives as long as the map; NULL: absent. */
const char *parity_map_kept(const parity_map *m, const char *key);
/* The same; a key that was absent is put with the value 0. */
assay_status parity_map_keep(parity_map *m, const char *key, const char **kept);
/* A key of texts and numbers, each ended by a bar: "x|0|12|".  Keys are made by the hundred thousand, and printf is slow in a
 * program that links libquadmath.  What does not fit is cut off, as snprintf does. */
typedef struct parity_key {
    char *out; /* terminated after every call */
    size_t capacity, n;
} parity_key;
parity_key parity_key_begin(char *out, size_t capacity);
void parity_key_text(parity_key *k, const char *text);
void parity_key_number(parity_key *k, int64_t number);

/* --- claim.c ------------------------------------------------------------------------------------------------ */
/* As parity_result_init, with empty texts. */
void parity_claim_init(parity_claim *c);
/* A claim whose texts are those of *r. */
parity_claim parity_claim_of(const parity_result *r);
/* Bytes that a result has for text k, its NUL among them. */
size_t parity_claim_text_bytes(int k);
/* The texts of *c become keys of a map.  like: a claim of the same map that has most of them, where none is looked up; NULL: none.  clean:
 * as assay_clean_text leaves them. */
assay_status parity_claim_keep(parity_claim *c, const parity_claim *like, parity_map *texts, bool clean);

/* --- verdict.c: comparing elements, rows of results --------------------------------------------------------- */
/* Worst place of a comparison.  A failing element beats a passing one, then the larger ratio, then the
 * earlier one: the first NaN is kept. */
typedef struct parity_worst {
    int64_t count, n_bad;
    double ratio, share; /* share: largest of all elements, wherever the worst place is */
    int64_t flat;        /* -1: nothing compared */
    double found, expected, allowance;
    parity_picture *picture;                /* drawn besides; NULL: not */
    struct parity_differences *differences; /* the same of elements that must be equal */
} parity_worst;
void parity_worst_init(parity_worst *w);
/* Of a comparison that failed: the same elements once more, into a picture of r; NULL when none is drawn, or no more. */
assay_status parity_worst_redraw(parity_worst *w, parity_gallery *g, const int64_t *shape, int ndim,
                                 parity_result *r);
/* The same of elements that must be equal (differences.c): w->differences stands when they are to be added once more. */
typedef struct parity_differences {
    parity_picture *picture;
    parity_excerpt *excerpt;
    const int64_t *shape;
    int ndim;
    assay_dtype dtype;
    const void *found, *expected; /* their bytes; NULL: not at hand */
    int64_t n;                    /* in the excerpt */
} parity_differences;
assay_status parity_worst_redraw_equal(parity_worst *w, parity_differences *d, parity_gallery *g,
                                       const int64_t *shape, int ndim, assay_dtype dtype, parity_result *r);
void parity_differences_add(parity_differences *d, int64_t flat, double found, double expected, bool same);
/* Bits of `count` elements: verdict, place and message of *r, and a failure drawn (g: NULL: not). */
assay_status parity_compare_bits(const void *found, const void *expected, const int64_t *shape, int ndim,
                                 int64_t count, assay_dtype dtype, parity_gallery *g, parity_result *r);
/* pass is (error <= bound), decided by the caller so that NaN fails. */
void parity_worst_add(parity_worst *w, int64_t flat, double found, double expected, double allowance,
                      double ratio, bool pass);
/* The same with a share of its own (parity_share); parity_worst_add takes the ratio for it. */
void parity_worst_add_share(parity_worst *w, int64_t flat, double found, double expected, double allowance,
                            double ratio, double share, bool pass);
/* How much of the bound is used beyond the rounding of the output itself: max(0, |found - y| - ulp/2) / bound, 0 for a
 * correctly rounded element, at most 1 exactly when `pass`, which is ref_admissible, holds.  Never NaN: infinity where nothing can be said. */
double parity_share(double found, double y, double bound, assay_dtype stored, bool pass);
/* The same of finite numbers, where err = |found - y| and half an ulp of |y| + bound are known. */
static inline double parity_share_of(double err, double bound, double half, bool pass)
{
    const double beyond = err - half, above = 0x1.0000000000001p0; /* the next number after 1 */
    const double share = beyond <= 0.0 ? 0.0 : bound > 0.0 ? beyond / bound : HUGE_VAL;
    /* a division rounds: the verdict decides on which side of 1 */
    return pass ? (share < 1.0 ? share : 1.0) : (share > above ? share : above);
}
/* Takes the comparison over into a result: verdict, counts, index in `shape`, message.  Nothing compared and
 * nothing to compare (count 0) passes. */
void parity_worst_to_result(const parity_worst *w, const int64_t *shape, int ndim, parity_result *r);
/* Compares bytes element by element; a difference has no allowance. */
void parity_worst_add_bits(parity_worst *w, const void *found, const void *expected, int64_t count,
                           assay_dtype dtype);
/* Engine, tier, layout and precision of the trace's header. */
void parity_result_from_trace(parity_result *r, const assay_trace *t);
void parity_result_from_op(parity_result *r, const assay_trace_op *op);
/* The same; its operation and instance are the record's texts. */
void parity_claim_from_op(parity_claim *c, const assay_trace_op *op);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void parity_result_fail(parity_result *r, const char *fmt, ...);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void parity_result_skip(parity_result *r, const char *fmt, ...);

/* --- table.c ------------------------------------------------------------------------------------------------ */
/* Rows keyed by (instance, op, tensor, phase), in order of first appearance.  Another observation of the same claim is merged: counts add up,
 * the worse place wins; of the local check and of routing a failure is the record that failed first, with its own counts. */
typedef struct parity_table parity_table;
assay_status parity_table_create(parity_table **out, parity_check check);
void parity_table_destroy(parity_table *t);
assay_status parity_table_merge(parity_table *t, const parity_result *one);
assay_status parity_table_merge_claim(parity_table *t, const parity_claim *one);
/* Where its rows have their pictures and curves: freed with it. */
parity_gallery *parity_table_gallery(parity_table *t);
/* Whether a row is a failure. */
bool parity_table_fails(const parity_table *t);
/* What a gallery has of a claim. */
parity_drawn parity_gallery_drawn(const parity_gallery *g, const parity_claim *c);
/* Adds a result to a report with what the gallery has of it. */
assay_status parity_report_add_from(parity_report *report, const parity_gallery *g, const parity_result *r);
/* Adds every row to the report. */
assay_status parity_table_flush(const parity_table *t, parity_report *report);
/* In causal order instead: failures in front, by the first step in which one was observed and then by `order` (NULL: as they first
 * appeared); after them what holds, by `order`.  What a step broke comes before what broke on it in the next, whichever is worse. */
typedef int64_t (*parity_order)(void *user, const parity_claim *r);
assay_status parity_table_flush_ordered(const parity_table *t, parity_order order, void *user,
                                        parity_report *report);

/* Group sizes of the trace's layout; 1 everywhere when the header has none. */
void parity_scales_from_trace(const assay_trace *t, parity_scales *s);
/* Grid of the trace's layout; false when the header has none or it does not fit the world. */
bool parity_grid_from_trace(const assay_trace *t, assay_grid *g);

/* --- assemble.c: index of a trace --------------------------------------------------------------------------- */
/* One (name, phase, step, microbatch) and what each rank holds of it: the last output of an operation, else
 * the last observation; several where a rank holds disjoint pieces. */
typedef struct parity_piece {
    const assay_trace_tensor *record;
    bool is_output;
    bool conflict; /* no operation explains why another observation differs */
    int64_t order; /* number of the record among the rank's records */
    /* of another framework: recorded behind the output, under its name, with another content; NULL: none */
    const assay_trace_tensor *later;
} parity_piece;
typedef struct parity_entry {
    const char *name;
    assay_phase phase;
    int64_t step, microbatch;
    int64_t n, capacity;
    parity_piece *pieces; /* ascending rank */
    struct parity_entry
        *later; /* the same with the later records: what is read in place of the output; NULL: none */
} parity_entry;
typedef struct parity_index {
    const assay_trace *trace;
    parity_map *map;
    int64_t n, capacity;
    parity_entry *entries; /* by rank and record, in order of first appearance */
    bool has_grid;
    assay_grid grid;
} parity_index;
assay_status parity_index_create(parity_index **out, const assay_trace *t);
void parity_index_destroy(parity_index *x);
/* NULL when absent. */
const parity_entry *parity_index_find(const parity_index *x, const char *name, assay_phase phase,
                                      int64_t step, int64_t microbatch);
bool parity_same_shard(const assay_shard *a, const assay_shard *b);
/* Whether the judge assembles this tensor at all (local pieces it does not). */
bool parity_entry_assembles(const parity_entry *e);
/* *finding: initialised by the caller; FAIL with a message when the pieces contradict. */
assay_status parity_entry_assemble(const parity_index *x, const parity_entry *e, parity_global *out,
                                   parity_result *finding);

/* --- compare.c: values of records --------------------------------------------------------------------------- */
/* A record as the replay wants it (arrays owned by the caller: parity_value_free).  ASSAY_UNSUPPORTED: dtype;
 * ASSAY_NOT_FOUND: no data. */
assay_status parity_value_of(const char *slot, const assay_trace_tensor *record, ref_value *out);
void parity_value_free(ref_value *v);
/* A bound under which every number passes. */
#define PARITY_ANY_NUMBER 0x1p1000
/* What a call of a request asks of an output beside its formula, by its instance: copies keep the sign of a zero ("exact.*",
 * "local.*"), and of inputs with a NaN or an infinity ("local.nan.*", "local.infinity.*") classes are asked: where the result is finite and
 * its bound is not, any number will do, but no NaN.  Of a run it changes nothing. */
void parity_value_as_asked(const char *instance, ref_value *truth);
/* Whether element i of a real output may be `found`; the one verdict of every check. */
bool parity_element_passes(const ref_value *truth, int64_t i, double found, assay_dtype stored,
                           double *ratio);
/* Compares one replayed output with the candidate's; fills verdict, place, message and diagnosis of *r, and draws a failure
 * (g: NULL: not). */
assay_status parity_compare_value(const ref_value *truth, const ref_value *candidate,
                                  const parity_scales *scales, parity_gallery *g, parity_result *r);

/* All slots of one direction of an operation, at most ASSAY_MAX_SLOTS.  A slot that cannot be read makes
 * *problem a FAIL or SKIP and ends the list. */
assay_status parity_read_slots(const assay_trace *t, const assay_trace_op *op, bool inputs, ref_value *values,
                               int *n, parity_result *problem);
void parity_free_slots(ref_value *values, int n);
/* By slot; NULL when absent. */
const ref_value *parity_find_value(const ref_value *values, int n, const char *slot);
/* choice.c: discrete decisions of a replay: fails by the number of rows whose choice no honest implementation could
 * have made.  chosen: the candidate's (NULL: not at hand); g: NULL: a failure is not drawn. */
assay_status parity_judge_choice(const ref_replay_result *result, const ref_value *chosen, parity_gallery *g,
                                 parity_result *r);
/* Numbers of experts in range, ascending, none twice; the first row that is not is named. */
assay_status parity_judge_choice_form(const ref_value *chosen, int64_t experts, parity_gallery *g,
                                      parity_result *r);

/* --- collectives.c: one call, seen from all of its ranks ---------------------------------------------------- */
bool parity_is_collective(const char *op);
typedef struct parity_calls parity_calls;
/* Matches the calls of all ranks: same group, instance, phase, step and number among equals. */
assay_status parity_calls_create(parity_calls **out, const assay_trace *t);
void parity_calls_destroy(parity_calls *c);
/* Judges the call that `op` belongs to, once: later members of the same call do nothing.  Rows are merged
 * into the table. */
assay_status parity_calls_judge(parity_calls *c, const assay_trace_op *op, const parity_result *base,
                                const parity_scales *scales, parity_table *table);

#endif
