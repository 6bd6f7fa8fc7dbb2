/* Pipelines in lockstep: stages take turns; a stage does the next action of its schedule as soon as its input is
 * there.  Virtual stage number v = chunk * stages + stage feeds number v + 1. */
#include "ref/parallel/pipeline.h"

#include "ref/objective.h"
#include "ref/parallel/collectives.h"
#include "ref/parallel/schedule.h"

#include <stdlib.h>

/* A microbatch on a virtual stage. */
typedef struct work {
    ref_pass pass;
    ref_stage_acts acts;
    ref_tensor dinput;
    bool forward_done, backward_done;
} work;

typedef struct pipeline {
    ref_engine *e;
    int stages, chunks;
    int64_t microbatches;
    work *works;           /* [stages * chunks, microbatches] */
    ref_action **schedule; /* [stages][2 * chunks * microbatches] */
    int64_t *next;         /* [stages] number of the next action */
} pipeline;

static work *work_at(const pipeline *q, int virtual_stage, int64_t microbatch)
{
    return &q->works[virtual_stage * q->microbatches + microbatch];
}

/* The neighbour's piece of every rank, copied into this pass: send and recv between equal places of two
 * stages. */
static assay_status receive(ref_pass *p, ref_tensor *to, const ref_tensor *from)
{
    ASSAY_TRY(ref_tensor_new(&p->arena, to, p->n, from->name));
    for (int r = 0; r < p->n; r++) {
        const ref_piece *sent = &from->at[r];
        ASSAY_TRY(ref_piece_new(&p->arena, &to->at[r], sent->rows, sent->cols));
        ref_send_recv(to->at[r].x, sent->x, sent->rows * sent->cols);
    }
    return ASSAY_OK;
}

static assay_status forward(const pipeline *q, int v, int64_t microbatch)
{
    work *w = work_at(q, v, microbatch);
    ref_tensor input = {0};
    if (v > 0)
        ASSAY_TRY(receive(&w->pass, &input, &work_at(q, v - 1, microbatch)->acts.output));
    ASSAY_TRY(ref_stage_fwd(&w->pass, &w->acts, &input));
    w->forward_done = true;
    return ASSAY_OK;
}

static assay_status backward(const pipeline *q, int v, int64_t microbatch)
{
    work *w = work_at(q, v, microbatch);
    ref_tensor doutput = {0};
    if (v + 1 < q->stages * q->chunks) {
        work *behind = work_at(q, v + 1, microbatch);
        ASSAY_TRY(receive(&w->pass, &doutput, &behind->dinput));
        ref_arena_free(&behind->pass.arena);
    }
    ASSAY_TRY(ref_stage_bwd(&w->pass, &w->acts, &doutput, &w->dinput));
    w->backward_done = true;
    if (v == 0)
        ref_arena_free(&w->pass.arena);
    return ASSAY_OK;
}

/* Does the stage's next action when its input has arrived. */
static assay_status advance(pipeline *q, int stage, bool *moved)
{
    const int last = q->stages * q->chunks - 1;
    if (q->next[stage] == 2 * q->chunks * q->microbatches)
        return ASSAY_OK;
    const ref_action a = q->schedule[stage][q->next[stage]];
    const int v = a.chunk * q->stages + stage;
    const bool ready = a.forward ? v == 0 || work_at(q, v - 1, a.microbatch)->forward_done
                                 : v == last || work_at(q, v + 1, a.microbatch)->backward_done;
    if (!ready)
        return ASSAY_OK;
    ASSAY_TRY(a.forward ? forward(q, v, a.microbatch) : backward(q, v, a.microbatch));
    q->next[stage]++;
    *moved = true;
    return ASSAY_OK;
}

static assay_status run_all(pipeline *q)
{
    const int64_t actions = 2 * q->chunks * q->microbatches;
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < q->stages; stage++)
            ASSAY_TRY(advance(q, stage, &moved));
    }
    for (int stage = 0; stage < q->stages; stage++)
        ASSAY_CHECK(q->next[stage] == actions, ASSAY_INTERNAL,
                    "the pipeline schedule stopped: stage %d did %lld of %lld actions", stage,
                    (long long)q->next[stage], (long long)actions);
    return ASSAY_OK;
}

/* All forwards, then all backwards: what a backward needs of the microbatches behind its own has been counted. */
static void forwards_first(ref_action *actions, int64_t microbatches)
{
    for (int64_t i = 0; i < 2 * microbatches; i++)
        actions[i] = (ref_action){.forward = i < microbatches, .microbatch = i % microbatches};
}

static assay_status make_schedules(pipeline *q)
{
    for (int stage = 0; stage < q->stages; stage++)
        ASSAY_TRY(ref_pipeline_schedule(q->stages, q->chunks, stage, q->microbatches, &q->schedule[stage]));
    if (!ref_objective_looks_ahead(q->e))
        return ASSAY_OK;
    ASSAY_CHECK(q->schedule[0] != NULL, ASSAY_INTERNAL, "an uncut run without a stage");
    forwards_first(q->schedule[0], q->microbatches);
    return ASSAY_OK;
}

assay_status ref_pipeline_step(ref_engine *e, int64_t step)
{
    assay_status st = ASSAY_OK;
    pipeline q = {.e = e,
                  .stages = e->grid.p.pipeline_model_parallel_size,
                  .chunks = e->grid.p.virtual_pipeline_model_parallel_size,
                  .microbatches = e->microbatches};
    const int64_t n = q.stages * q.chunks * q.microbatches;
    q.works = calloc((size_t)n, sizeof *q.works);
    q.schedule = calloc((size_t)q.stages, sizeof *q.schedule);
    q.next = calloc((size_t)q.stages, sizeof *q.next);
    ASSAY_CHECK_GOTO(q.works && q.schedule && q.next, ASSAY_OUT_OF_MEMORY, st, done,
                     "out of memory: %lld microbatches", (long long)n);
    ASSAY_TRY_GOTO(make_schedules(&q), st, done);
    for (int64_t i = 0; i < n; i++) {
        const int v = (int)(i / q.microbatches), stage = v % q.stages;
        q.works[i].pass = (ref_pass){.e = e,
                                     .stage = stage,
                                     .chunk = v / q.stages,
                                     .microbatch = i % q.microbatches,
                                     .n = e->stage_ranks,
                                     .ranks = e->ranks + (int64_t)stage * e->stage_ranks,
                                     .step = step,
                                     .layer = -1};
    }
    ASSAY_TRY_GOTO(run_all(&q), st, done);
done:
    for (int64_t i = 0; q.works && i < n; i++)
        ref_arena_free(&q.works[i].pass.arena);
    for (int stage = 0; q.schedule && stage < q.stages; stage++)
        free(q.schedule[stage]);
    free(q.works);
    free(q.schedule);
    free(q.next);
    return st;
}
