/* `assay run`: in which order tasks start, and the memory that each needs.  Results are reported in the order of the matrix, whatever this one is.
 *
 * The long ones first, so that none is left alone at the end.  Tasks of one case share reference runs, of which some belong to one
 * precision, and tasks of the operations a request; the first task to need one makes it and the others wait.  So the first task of
 * every case comes first, then the first of every case in its other precision, then the rest. */
#include "parity/run/run.h"
#include <stdlib.h>
#include <string.h>

typedef struct place {
    int task, turn;
    double cost;
} place;

/* Elements of all parameters, each of which takes part in every step; 0 for a model that cannot be read, which is an error
 * where the case is prepared. */
static double parameters_of(const parity_case *c)
{
    double n = 0.0;
    assay_model_spec *spec = NULL;
    assay_model_config *config = malloc(sizeof *config);
    if (config != NULL && parity_case_config(c, config) == ASSAY_OK &&
        assay_spec_build(config, &spec) == ASSAY_OK)
        for (int64_t i = 0; i < spec->n_params; i++)
            n += (double)assay_param_elements(&spec->params[i]);
    else
        assay_error_clear();
    assay_spec_destroy(spec);
    free(config);
    return n;
}

/* In no unit: by the measured times of the default run (2 cores), a token costs about as much as 400 elements of parameters do
 * in a step, and a rank more adds a seventh.  Operations alone take as long as the largest of its cases, and on every rung five times as long. */
static double cost_of(const parity_task *t, double parameters)
{
    int world = 1;
    if (t->c == NULL)
        return strcmp(t->variant, PARITY_EVERY_RUNG) == 0 ? 2e6 : 4e5;
    if (parity_layout_world(t->layout, &world) != ASSAY_OK)
        assay_error_clear();
    const double steps = t->c->steps > 0 ? (double)t->c->steps : 1.0,
                 microbatches = t->c->microbatches > 0 ? (double)t->c->microbatches : 1.0,
                 tokens = microbatches * (double)t->c->micro_batch_size * (double)t->c->seq_length;
    return steps * (parameters + 400.0 * tokens) * (1.0 + (world - 1) / 7.0);
}

static int before(const void *left, const void *right)
{
    const place *a = left, *b = right;
    if (a->turn != b->turn)
        return a->turn < b->turn ? -1 : 1;
    if (a->cost != b->cost)
        return a->cost > b->cost ? -1 : 1;
    return a->task < b->task ? -1 : a->task > b->task;
}

/* 0: the first of its case (or of the operations) among places [0,n), 1: the first of its case and precision, 2: neither. */
static int turn_of(const parity_run_state *s, const place *places, int n, const parity_task *t)
{
    int turn = 0;
    for (int i = 0; i < n; i++) {
        const parity_task *other = &s->tasks[places[i].task];
        if (other->c == t->c && other->widths == t->widths)
            turn = other->precision == t->precision || turn == 2 ? 2 : 1;
    }
    return turn;
}

assay_status parity_run_order(parity_run_state *s)
{
    place *places = calloc((size_t)s->n_tasks + 1, sizeof *places);
    ASSAY_CHECK(places != NULL, ASSAY_OUT_OF_MEMORY, "order of %d tasks", s->n_tasks);
    const parity_case *last = NULL;
    double parameters = 0.0;
    for (int i = 0; i < s->n_tasks; i++) {
        parity_task *t = &s->tasks[i];
        if (t->c != NULL && t->c != last)
            parameters = parameters_of(t->c);
        last = t->c != NULL ? t->c : last;
        t->memory = parity_run_memory(&s->o, t, t->c != NULL ? parameters : 0.0);
        places[i] = (place){.task = i, .cost = cost_of(t, parameters)};
    }
    qsort(places, (size_t)s->n_tasks, sizeof *places, before); /* all in turn 0: by cost alone */
    for (int i = 0; i < s->n_tasks; i++)
        places[i].turn = turn_of(s, places, i, &s->tasks[places[i].task]);
    qsort(places, (size_t)s->n_tasks, sizeof *places, before);
    for (int i = 0; i < s->n_tasks; i++)
        s->order[i] = places[i].task;
    free(places);
    return ASSAY_OK;
}
