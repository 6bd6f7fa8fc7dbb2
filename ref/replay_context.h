/* Inside ref_replay: finding slots and attributes, checking shapes, allocating outputs.  Not a public
 * interface.
 *
 * Everything that arrives here was read from a trace and is hostile: a slot is used only after its element
 * count was checked against every size that will index it. */
#ifndef REF_REPLAY_CONTEXT_H
#define REF_REPLAY_CONTEXT_H

#include "ref/bounds/bounds.h"
#include "ref/replay.h"

typedef struct replay {
    const char *op;
    const json_t *attrs;
    const assay_arith *arith;
    ref_declared d;
    const ref_value *inputs;
    int n_inputs;
    const ref_value *candidate;
    int n_candidate;
    ref_replay_result *result;
} replay;

/* Required input slots; count < 0: any.  NULL-able ones return *out = NULL when absent. */
assay_status replay_real(const replay *r, const char *slot, int64_t count, const ref_value **out);
assay_status replay_integer(const replay *r, const char *slot, int64_t count, const ref_value **out);
assay_status replay_real_optional(const replay *r, const char *slot, int64_t count, const ref_value **out);
assay_status replay_integer_optional(const replay *r, const char *slot, int64_t count, const ref_value **out);
/* The candidate's output of that slot, or NULL. */
const ref_value *replay_candidate(const replay *r, const char *slot);

assay_status replay_attr_i64(const replay *r, const char *key, int64_t min, int64_t max, int64_t *out);
/* p under the name `key`, seed, stream, draw. */
assay_status replay_dropout(const replay *r, const char *key, ref_dropout *d);
assay_status replay_attr_double(const replay *r, const char *key, double *out);
assay_status replay_attr_bool(const replay *r, const char *key, bool *out);
assay_status replay_attr_string(const replay *r, const char *key, char *out, size_t capacity);
bool replay_has_attr(const replay *r, const char *key);

/* Allocates the next output: its shape is the candidate's when the counts agree (they must, when the
 * candidate has the slot), else flat.  `fallback` is the dtype when the candidate lacks it. */
assay_status replay_out_real(const replay *r, const char *slot, int64_t count, assay_dtype fallback,
                             const char *dominant, ref_pair *out);
/* values to be equal as numbers; the caller fills *out [count] */
assay_status replay_out_exact(const replay *r, const char *slot, int64_t count, assay_dtype fallback,
                              double **out);
assay_status replay_out_integer(const replay *r, const char *slot, int64_t count, ref_value_kind kind,
                                int64_t **out);

/* Last extent (1 for a scalar), product of the others. */
int64_t replay_columns(const ref_value *v);
int64_t replay_rows(const ref_value *v);
/* rows = count / width, checked to divide; a width of 0 takes the leading extents. */
assay_status replay_divide(const replay *r, const ref_value *v, int64_t width, int64_t *rows);
/* a*b*c as a count; ASSAY_LIMIT on overflow. */
assay_status replay_product(const replay *r, int64_t a, int64_t b, int64_t c, int64_t *out);
/* Every element of v in [min, max]; the message names slot, index and value. */
assay_status replay_range(const replay *r, const ref_value *v, int64_t min, int64_t max);

typedef assay_status (*replay_fn)(const replay *r);
typedef struct replay_row {
    const char *op;
    replay_fn fn;
} replay_row;
/* Tables that end with a NULL op, one for each file replay_*.c. */
extern const replay_row replay_dense_table[], replay_norm_table[], replay_attention_table[],
    replay_qkv_table[], replay_mla_table[], replay_moe_table[], replay_loss_table[], replay_foreign_table[];

#endif
