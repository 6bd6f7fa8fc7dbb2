/* The few facts that a plan takes from the record. */
#include "parity/checks/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct fact {
    const assay_trace_op *op;
    double value;
    int64_t n;
} fact;
struct plan_recorded {
    const assay_trace *trace;
    parity_map *map;
    int64_t n, capacity;
    fact *facts;
};

enum { KEY = ASSAY_NAME + 128 };

static void key_of(char out[KEY], const char *what, int rank, int64_t step, int64_t microbatch,
                   const char *instance)
{
    parity_key k = parity_key_begin(out, KEY);
    parity_key_text(&k, what);
    parity_key_number(&k, rank);
    parity_key_number(&k, step);
    parity_key_number(&k, microbatch);
    parity_key_text(&k, instance);
}

/* The fact of that key, a new one when there is none; NULL: out of memory. */
static fact *fact_at(plan_recorded *r, const char *key)
{
    int64_t at = parity_map_get(r->map, key);
    if (at >= 0)
        return &r->facts[at];
    if (r->n == r->capacity) {
        const int64_t capacity = r->capacity > 0 ? 2 * r->capacity : 256;
        fact *facts = realloc(r->facts, (size_t)capacity * sizeof *facts);
        if (facts == NULL)
            return NULL;
        r->facts = facts;
        r->capacity = capacity;
    }
    at = r->n;
    if (parity_map_put(r->map, key, at) != ASSAY_OK)
        return NULL;
    r->facts[r->n++] = (fact){0};
    return &r->facts[at];
}

static const fact *find(const plan_recorded *r, const char *key)
{
    const int64_t at = parity_map_get(r->map, key);
    return at >= 0 ? &r->facts[at] : NULL;
}

static bool is_number(const assay_trace_tensor *t)
{
    return t != NULL && t->data != NULL && (t->dtype == ASSAY_F64 || t->dtype == ASSAY_I64) &&
           assay_shard_count(&t->shard) == 1;
}

/* A count is far below 2^53. */
static double number_of(const assay_trace_tensor *t)
{
    return t->dtype == ASSAY_I64 ? (double)parity_decode_integer(t->data, 0, ASSAY_I64)
                                 : parity_decode(t->data, 0, ASSAY_F64);
}

static assay_status note_op(plan_recorded *r, const assay_trace_op *op)
{
    static const char *const whole[] = {"router_fwd", "router_aux_fwd", "router_drop", "reduce_scatter"};
    static const char *const sums[] = {"sum", "sumsq", "count_zeros"};
    char key[KEY];
    for (int i = 0; i < 4; i++) {
        const bool scatter = i == 3;
        if (strcmp(op->op, whole[i]) != 0 || (op->phase == ASSAY_PHASE_BACKWARD && !scatter))
            continue;
        key_of(key, whole[i], op->rank, op->step, scatter ? -1 : op->microbatch, op->instance);
        fact *f = fact_at(r, key);
        ASSAY_CHECK(f, ASSAY_OUT_OF_MEMORY, "recorded facts");
        if (!scatter || f->op == NULL) /* the cut is that of the first microbatch */
            f->op = op;
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(op->op, sums[i]) != 0)
            continue;
        key_of(key, sums[i], op->rank, op->step, -1, op->instance);
        fact *times = fact_at(r, key);
        ASSAY_CHECK(times, ASSAY_OUT_OF_MEMORY, "recorded facts");
        key_of(key, sums[i], op->rank, op->step, times->n++, op->instance);
        fact *f = fact_at(r, key);
        ASSAY_CHECK(f, ASSAY_OUT_OF_MEMORY, "recorded facts");
        f->op = op;
    }
    return ASSAY_OK;
}

static assay_status note_number(plan_recorded *r, const assay_trace_tensor *t)
{
    static const char *const names[] = {"loss",
                                        "grad_norm",
                                        "num_zeros_in_grad",
                                        "loss.total.y",
                                        "grad_norm.total.y",
                                        "num_zeros_in_grad.total.y",
                                        "loss.reduce.recv",
                                        "grad_norm.reduce.recv",
                                        "num_zeros_in_grad.reduce.recv"};
    for (int i = 0; i < 9 && t->phase == ASSAY_PHASE_OPTIMIZER && is_number(t); i++) {
        char key[KEY];
        if (strcmp(t->name, names[i]) != 0)
            continue;
        key_of(key, "number", t->rank, t->step, -1, t->name);
        fact *f = fact_at(r, key);
        ASSAY_CHECK(f, ASSAY_OUT_OF_MEMORY, "recorded facts");
        f->value = number_of(t);
        f->n++;
    }
    return ASSAY_OK;
}

static assay_status note_rank(plan_recorded *r, int rank)
{
    for (int64_t i = 0; i < assay_trace_n_ops(r->trace, rank); i++)
        ASSAY_TRY(note_op(r, assay_trace_op_at(r->trace, rank, i)));
    for (int64_t i = 0; i < assay_trace_n_tensors(r->trace, rank); i++)
        ASSAY_TRY(note_number(r, assay_trace_tensor_at(r->trace, rank, i)));
    return ASSAY_OK;
}

assay_status plan_recorded_create(plan_recorded **out, const assay_trace *t)
{
    assay_status st = ASSAY_OK;
    plan_recorded *r = calloc(1, sizeof *r);
    *out = NULL;
    ASSAY_CHECK(r, ASSAY_OUT_OF_MEMORY, "recorded facts");
    r->trace = t;
    ASSAY_TRY_GOTO(parity_map_create(&r->map), st, fail);
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        ASSAY_TRY_GOTO(note_rank(r, rank), st, fail);
    *out = r;
    return ASSAY_OK;
fail:
    plan_recorded_destroy(r);
    return st;
}

void plan_recorded_destroy(plan_recorded *r)
{
    if (r == NULL)
        return;
    parity_map_destroy(r->map);
    free(r->facts);
    free(r);
}

const assay_trace *plan_recorded_trace(const plan_recorded *r)
{
    return r->trace;
}

const assay_trace_tensor *plan_recorded_choice(const plan_recorded *r, int rank, int64_t step,
                                               int64_t microbatch, const char *instance, plan_map map)
{
    static const struct {
        const char *op, *slot;
    } rows[] = {[PLAN_CHOSEN] = {"router_fwd", "indices"},
                [PLAN_AUX] = {"router_aux_fwd", "aux_indices"},
                [PLAN_ROUTED] = {"router_drop", "routed"}};
    char key[KEY];
    key_of(key, rows[map].op, rank, step, microbatch, instance);
    const fact *f = find(r, key);
    return f ? assay_trace_op_tensor(r->trace, f->op, rows[map].slot) : NULL;
}

const assay_trace_op *plan_recorded_scatter(const plan_recorded *r, int rank, int64_t step, const char *param)
{
    char key[KEY];
    key_of(key, "reduce_scatter", rank, step, -1, param);
    const fact *f = find(r, key);
    return f ? f->op : NULL;
}

const assay_trace_tensor *plan_recorded_y(const plan_recorded *r, int rank, int64_t step, const char *op,
                                          const char *instance, int64_t index)
{
    char key[KEY];
    key_of(key, op, rank, step, index, instance);
    const fact *f = find(r, key);
    return f ? assay_trace_op_tensor(r->trace, f->op, "y") : NULL;
}

int64_t plan_recorded_number(const plan_recorded *r, int rank, int64_t step, const char *name, double *out)
{
    char key[KEY];
    key_of(key, "number", rank, step, -1, name);
    const fact *f = find(r, key);
    *out = f ? f->value : 0.0;
    return f != NULL ? f->n : 0;
}
