/* Where the first wrong tensor comes from: the operations of the failing run that feed it, and which of all were not as planned.
 *
 * A tensor is fed by the operations that wrote it, by those that wrote what these read, and so on within its step, up to gradients and
 * parameters, which are compared themselves.  Collectives that belong to no tensor of the unsharded reference (sums of squares, of
 * losses) have no value that could replace them; the plan (docs/OPS.md 9) says what they had to be. */
#include "parity/run/bisect.h"

#include "core/run/inputs.h"
#include <stdlib.h>
#include <string.h>

static bool is_compared(const char *name)
{
    static const char *const ends[] = {".main_grad", ".main_param"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

/* X, or X.what */
static bool is_of(const char *name, const char *x)
{
    const size_t n = strlen(x);
    return n > 0 && strncmp(name, x, n) == 0 && (name[n] == '\0' || name[n] == '.');
}

static bool is_fed(const assay_trace *t, const assay_trace_op *op, const parity_map *wanted,
                   const char *tensor)
{
    if (is_of(op->instance, tensor))
        return true;
    for (int k = 0; k < op->n_outputs; k++) {
        const assay_trace_tensor *x = assay_trace_tensor_by_id(t, op->rank, op->outputs[k].tensor);
        if (x != NULL && (strcmp(x->name, tensor) == 0 || parity_map_get(wanted, x->name) >= 0))
            return true;
    }
    return false;
}

static bisect_element *element_of(bisect *b, const char *op, const char *instance, assay_phase phase)
{
    for (int64_t i = 0; i < b->n; i++)
        if (b->elements[i].phase == phase && strcmp(b->elements[i].op, op) == 0 &&
            strcmp(b->elements[i].instance, instance) == 0)
            return &b->elements[i];
    return NULL;
}

/* From the last operation of the step back. */
static assay_status mark_feeds_of_rank(bisect *b, const assay_trace *t, int rank)
{
    parity_map *wanted = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_map_create(&wanted));
    for (int64_t i = assay_trace_n_ops(t, rank) - 1; i >= 0; i--) {
        const assay_trace_op *op = assay_trace_op_at(t, rank, i);
        if (op->step != b->first_step || !is_fed(t, op, wanted, b->first_tensor))
            continue;
        bisect_element *e = element_of(b, op->op, op->instance, op->phase);
        if (e != NULL)
            e->feeds = true;
        for (int k = 0; k < op->n_inputs; k++) {
            const assay_trace_tensor *x = assay_trace_tensor_by_id(t, rank, op->inputs[k].tensor);
            if (x != NULL && !is_compared(x->name))
                ASSAY_TRY_GOTO(parity_map_put(wanted, x->name, 1), st, done);
        }
    }
done:
    parity_map_destroy(wanted);
    return st;
}

/* What cannot be planned accuses nobody. */
static assay_status mark_unplanned(bisect *b, const assay_trace *t)
{
    parity_report *report = NULL;
    assay_train_options o = b->options;
    assay_parallel_config p;
    assay_grid grid;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_inputs_take_config(&o, b->config));
    ASSAY_TRY(assay_layout_parse(o.layout[0] != '\0' ? o.layout : "1", &p));
    ASSAY_TRY(assay_grid_make(&p, &grid));
    ASSAY_TRY(parity_report_create(&report));
    if (parity_check_plan(t, b->spec, &grid, &o, &b->batches, report) != ASSAY_OK) {
        assay_error_clear();
        goto done;
    }
    for (int64_t i = 0; i < parity_report_count(report); i++) {
        const parity_claim *r = parity_report_at(report, i);
        bisect_element *e = r->verdict == PARITY_FAIL ? element_of(b, r->op, r->instance, r->phase) : NULL;
        if (e == NULL || e->unplanned[0] != '\0')
            continue;
        snprintf(e->unplanned, sizeof e->unplanned, "%.*s", (int)sizeof e->unplanned - 1, r->message);
    }
done:
    parity_report_destroy(report);
    return st;
}

assay_status bisect_mark_feeds(bisect *b, const assay_trace *t)
{
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        ASSAY_TRY(mark_feeds_of_rank(b, t, rank));
    return mark_unplanned(b, t);
}

bool bisect_is_unplanned_feed(const bisect_element *e)
{
    return e->feeds && e->unplanned[0] != '\0' && !e->replaceable[BISECT_VALUES];
}
