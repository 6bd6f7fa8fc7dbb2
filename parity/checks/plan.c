/* The check `plan`: did every rank do what configuration, layout, options and batch demand? */
#include "parity/checks/plan.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The operations of a rank by step, in order of execution; those of no planned step are last. */
typedef struct steps {
    const assay_trace_op **ops;
    int64_t *begin; /* [steps + 2] */
} steps;

typedef struct check {
    const assay_trace *t;
    plan_job job;
    plan_findings *f;
    steps *ranks; /* [world] */
} check;

static int64_t step_of(const check *c, const assay_trace_op *op)
{
    return op->step >= 0 && op->step < c->job.steps ? op->step : c->job.steps;
}

static assay_status sort_rank(const check *c, int rank, steps *s)
{
    const int64_t n = assay_trace_n_ops(c->t, rank);
    s->ops = malloc(((size_t)n + 1) * sizeof *s->ops);
    s->begin = calloc((size_t)c->job.steps + 2, sizeof *s->begin);
    ASSAY_CHECK(s->ops && s->begin, ASSAY_OUT_OF_MEMORY, "operations of rank %d", rank);
    for (int64_t i = 0; i < n; i++)
        s->begin[step_of(c, assay_trace_op_at(c->t, rank, i)) + 1]++;
    for (int64_t k = 0; k <= c->job.steps; k++)
        s->begin[k + 1] += s->begin[k];
    for (int64_t i = n - 1; i >= 0; i--) { /* from the back: a start moves down to its place */
        const assay_trace_op *op = assay_trace_op_at(c->t, rank, i);
        s->ops[--s->begin[step_of(c, op) + 1]] = op;
    }
    for (int64_t k = 0; k <= c->job.steps; k++)
        s->begin[k] = s->begin[k + 1];
    s->begin[c->job.steps + 1] = n;
    return ASSAY_OK;
}

/* --- claims that belong to no operation --------------------------------------------------------------------- */

static assay_status claim_text(const check *c, const char *item, const char *wanted)
{
    const plan_place at = {.op = "", .instance = "trace", .rank = -1, .step = -1, .microbatch = -1};
    const char *found = json_string_value(json_object_get(assay_trace_header(c->t), item));
    if (found != NULL && strcmp(found, wanted) == 0)
        return plan_holds(c->f, &at);
    return plan_fails(c->f, &at, item, "the trace's header, %s: expected %s, found %s", item, wanted,
                      found ? found : "none");
}

static assay_status check_header(const check *c)
{
    char layout[ASSAY_LAYOUT_TEXT];
    const plan_place at = {.op = "", .instance = "trace", .rank = -1, .step = -1, .microbatch = -1};
    assay_layout_format(&c->job.grid->p, layout);
    ASSAY_TRY(claim_text(c, "precision", assay_precision_name(c->job.options->precision)));
    ASSAY_TRY(claim_text(c, "layout", layout));
    if (assay_trace_world(c->t) == c->job.grid->world)
        return plan_holds(c->f, &at);
    return plan_fails(c->f, &at, "world_size", "the trace's world: expected %d ranks, found %d",
                      c->job.grid->world, assay_trace_world(c->t));
}

static assay_status claim_number(const check *c, int rank, int64_t step, const char *name, bool known,
                                 double wanted, double slack)
{
    const plan_place at = {.op = "",
                           .instance = name,
                           .phase = ASSAY_PHASE_OPTIMIZER,
                           .rank = rank,
                           .step = step,
                           .microbatch = -1,
                           .order = {.part = 3}};
    double found = 0.0;
    const int64_t n = plan_recorded_number(c->job.recorded, rank, step, name, &found);
    if (n != 1)
        return plan_fails(c->f, &at, name, "%s: expected one number in phase optimizer, found %s", name,
                          n == 0 ? "none" : "several");
    /* a run that diverges is honest of it */
    const bool same = found == wanted || (isnan(found) && isnan(wanted));
    if (known && (same || fabs(found - wanted) <= slack))
        return plan_holds(c->f, &at);
    return plan_fails(c->f, &at, name, "%s: expected %.17g from the recorded sums, found %.17g", name,
                      known ? wanted : (double)NAN, found);
}

/* What the operations left of a sum over the rank and the world; false: nothing. */
static bool recorded_total(const check *c, const plan *p, const char *name, double *sum)
{
    char text[64];
    snprintf(text, sizeof text, "%s%s", name, c->job.grid->world == 1 ? ".total.y" : ".reduce.recv");
    return plan_recorded_number(c->job.recorded, p->rank, p->step, text, sum) > 0;
}

/* loss, grad_norm and num_zeros_in_grad of the step from what was summed for them. */
static assay_status check_numbers(const check *c, const plan *p)
{
    double sum;
    bool known = recorded_total(c, p, "loss", &sum);
    const double loss = sum / (double)p->n_targets;
    ASSAY_TRY(claim_number(c, p->rank, p->step, "loss", known, loss, fabs(loss) * 2.0 * DBL_EPSILON));
    if (!c->job.batches->training)
        return ASSAY_OK;
    known = recorded_total(c, p, "grad_norm", &sum);
    const double norm = sqrt(sum);
    ASSAY_TRY(claim_number(c, p->rank, p->step, "grad_norm", known, norm, norm * 2.0 * DBL_EPSILON));
    if (!c->job.options->log_num_zeros_in_grad)
        return ASSAY_OK;
    known = recorded_total(c, p, "num_zeros_in_grad", &sum);
    return claim_number(c, p->rank, p->step, "num_zeros_in_grad", known, sum, 0.0);
}

/* Operations of a step that nobody asked for. */
static assay_status check_outside(const check *c, int rank)
{
    const steps *s = &c->ranks[rank];
    for (int64_t i = s->begin[c->job.steps]; i < s->begin[c->job.steps + 1]; i++) {
        const assay_trace_op *op = s->ops[i];
        const plan_place at = {.op = op->op,
                               .instance = op->instance,
                               .phase = op->phase,
                               .rank = rank,
                               .step = op->step,
                               .microbatch = op->microbatch};
        ASSAY_TRY(plan_fails(c->f, &at, "operation", "extra operation: %s %.160s: expected %lld steps",
                             op->op, op->instance, (long long)c->job.steps));
    }
    return ASSAY_OK;
}

/* --- the check ---------------------------------------------------------------------------------------------- */

static assay_status check_rank(const check *c, int rank, int64_t step)
{
    const steps *s = &c->ranks[rank];
    plan p;
    assay_status st = plan_make(&p, &c->job, rank, step);
    if (st == ASSAY_OK)
        st = plan_compare(c->f, &p, c->t, s->ops + s->begin[step], s->begin[step + 1] - s->begin[step]);
    if (st == ASSAY_OK)
        st = check_numbers(c, &p);
    plan_destroy(&p);
    return st;
}

static assay_status check_all(check *c)
{
    const int world = c->job.grid->world;
    ASSAY_TRY(check_header(c));
    if (assay_trace_world(c->t) != world)
        return ASSAY_OK;
    c->ranks = calloc((size_t)world, sizeof *c->ranks);
    ASSAY_CHECK(c->ranks, ASSAY_OUT_OF_MEMORY, "plan of %d ranks", world);
    for (int rank = 0; rank < world; rank++)
        ASSAY_TRY(sort_rank(c, rank, &c->ranks[rank]));
    for (int64_t step = 0; step < c->job.steps; step++) {
        for (int rank = 0; rank < world; rank++)
            ASSAY_TRY(check_rank(c, rank, step));
        ASSAY_TRY(plan_compare_parts(c->f, &c->job, step));
    }
    for (int rank = 0; rank < world; rank++)
        ASSAY_TRY(check_outside(c, rank));
    return ASSAY_OK;
}

static void job_of(plan_job *job, const assay_model_spec *spec, const assay_grid *grid,
                   const assay_train_options *options, const assay_batches *batches)
{
    const int64_t wanted = batches->training ? options->train_iters : 0;
    *job = (plan_job){.spec = spec,
                      .config = &spec->config,
                      .grid = grid,
                      .options = options,
                      .batches = batches,
                      .steps = wanted > 0 ? wanted : batches->steps};
}

assay_status parity_check_plan(const assay_trace *t, const assay_model_spec *spec, const assay_grid *grid,
                               const assay_train_options *options, const assay_batches *batches,
                               parity_report *report)
{
    check c = {.t = t};
    plan_recorded *recorded = NULL;
    parity_result base;
    assay_status st = ASSAY_OK;
    parity_result_init(&base);
    base.check = PARITY_CHECK_PLAN;
    parity_result_from_trace(&base, t);
    job_of(&c.job, spec, grid, options, batches);
    ASSAY_CHECK(c.job.steps <= batches->steps, ASSAY_INVALID_ARGUMENT,
                "plan: %lld steps asked for, the batch file holds %lld", (long long)c.job.steps,
                (long long)batches->steps);
    ASSAY_TRY_GOTO(assay_hash_init(), st, done);
    ASSAY_TRY_GOTO(plan_recorded_create(&recorded, t), st, done);
    c.job.recorded = recorded;
    ASSAY_TRY_GOTO(plan_findings_create(&c.f, &base), st, done);
    ASSAY_TRY_GOTO(check_all(&c), st, done);
    ASSAY_TRY_GOTO(plan_findings_flush(c.f, report), st, done);
done:
    for (int rank = 0; c.ranks != NULL && rank < grid->world; rank++) {
        free((void *)c.ranks[rank].ops);
        free(c.ranks[rank].begin);
    }
    free(c.ranks);
    plan_findings_destroy(c.f);
    plan_recorded_destroy(recorded);
    return st;
}

/* --- order of tensors --------------------------------------------------------------------------------------- */

struct parity_plan_tensors {
    parity_map *map;
};

/* Numbers that the host makes of what an operation wrote stand where that was written. */
static assay_status note_outputs(parity_plan_tensors *t, const plan *p, const plan_op *op)
{
    if (op->recompute) /* it has its place since the forward pass */
        return ASSAY_OK;
    for (int64_t i = op->first_slot; i < op->first_slot + op->n_slots; i++) {
        const plan_slot *s = &p->slots[i];
        if (s->output)
            ASSAY_TRY(parity_map_put(t->map, s->tensor.name, i));
        if (strcmp(op->op, "sum") == 0)
            ASSAY_TRY(parity_map_put(t->map, "loss", i));
        if (strcmp(op->op, "count_zeros") == 0)
            ASSAY_TRY(parity_map_put(t->map, "num_zeros_in_grad", i));
    }
    return ASSAY_OK;
}

assay_status parity_plan_tensors_create(parity_plan_tensors **out, const assay_model_spec *spec,
                                        const assay_train_options *options, const assay_batches *batches)
{
    assay_parallel_config one;
    assay_grid grid;
    plan_job job;
    plan p = {0};
    assay_status st = ASSAY_OK;
    *out = NULL;
    parity_plan_tensors *t = calloc(1, sizeof *t);
    ASSAY_CHECK(t, ASSAY_OUT_OF_MEMORY, "order of tensors");
    ASSAY_TRY_GOTO(parity_map_create(&t->map), st, fail);
    ASSAY_TRY_GOTO(assay_layout_parse("1", &one), st, fail);
    ASSAY_TRY_GOTO(assay_grid_make(&one, &grid), st, fail);
    job_of(&job, spec, &grid, options, batches);
    ASSAY_TRY_GOTO(plan_make(&p, &job, 0, 0), st, fail);
    for (int64_t i = 0; i < p.n; i++)
        ASSAY_TRY_GOTO(note_outputs(t, &p, &p.ops[i]), st, fail);
    plan_destroy(&p);
    *out = t;
    return ASSAY_OK;
fail:
    plan_destroy(&p);
    parity_plan_tensors_destroy(t);
    return st;
}

void parity_plan_tensors_destroy(parity_plan_tensors *t)
{
    if (t == NULL)
        return;
    parity_map_destroy(t->map);
    free(t);
}

int64_t parity_plan_tensors_order(const parity_plan_tensors *t, const char *name)
{
    const int64_t at = parity_map_get(t->map, name);
    return at >= 0 ? at : INT64_MAX;
}
