/* 1F1B in lockstep: stages take turns; a stage does its next action as soon as its input is there. */
#include "ref/parallel/pipeline.h"

#include "ref/parallel/collectives.h"

#include <stdlib.h>

ref_pipeline_action ref_pipeline_1f1b(int stages, int stage, int64_t slots, int64_t index)
{
    const int64_t behind = stages - stage - 1, warmup = behind < slots ? behind : slots;
    const int64_t steady = 2 * (slots - warmup), at = index - warmup;
    if (at < 0)
        return (ref_pipeline_action){.forward = true, .slot = index};
    if (at < steady)
        return (ref_pipeline_action){.forward = at % 2 == 0, .slot = at % 2 == 0 ? warmup + at / 2 : at / 2};
    return (ref_pipeline_action){.forward = false, .slot = slots - warmup + (at - steady)};
}

/* A microbatch on a stage. */
typedef struct work {
    ref_pass pass;
    ref_stage_acts acts;
    ref_tensor dinput;
    bool forward_done, backward_done;
} work;

typedef struct pipeline {
    ref_engine *e;
    int stages;
    int64_t slots;
    work *works;   /* [stages, slots] */
    int64_t *next; /* [stages] number of the next action */
} pipeline;

static work *work_at(const pipeline *q, int stage, int64_t slot)
{
    return &q->works[stage * q->slots + slot];
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

static assay_status forward(const pipeline *q, int stage, int64_t slot)
{
    work *w = work_at(q, stage, slot);
    ref_tensor input = {0};
    if (stage > 0)
        ASSAY_TRY(receive(&w->pass, &input, &work_at(q, stage - 1, slot)->acts.output));
    ASSAY_TRY(ref_stage_fwd(&w->pass, &w->acts, &input));
    w->forward_done = true;
    return ASSAY_OK;
}

static assay_status backward(const pipeline *q, int stage, int64_t slot)
{
    work *w = work_at(q, stage, slot);
    ref_tensor doutput = {0};
    if (stage + 1 < q->stages) {
        work *behind = work_at(q, stage + 1, slot);
        ASSAY_TRY(receive(&w->pass, &doutput, &behind->dinput));
        ref_arena_free(&behind->pass.arena);
    }
    ASSAY_TRY(ref_stage_bwd(&w->pass, &w->acts, &doutput, &w->dinput));
    w->backward_done = true;
    if (stage == 0)
        ref_arena_free(&w->pass.arena);
    return ASSAY_OK;
}

/* Does the stage's next action when its input has arrived. */
static assay_status advance(pipeline *q, int stage, bool *moved)
{
    if (q->next[stage] == 2 * q->slots)
        return ASSAY_OK;
    const ref_pipeline_action a = ref_pipeline_1f1b(q->stages, stage, q->slots, q->next[stage]);
    const bool ready = a.forward ? stage == 0 || work_at(q, stage - 1, a.slot)->forward_done
                                 : stage + 1 == q->stages || work_at(q, stage + 1, a.slot)->backward_done;
    if (!ready)
        return ASSAY_OK;
    ASSAY_TRY(a.forward ? forward(q, stage, a.slot) : backward(q, stage, a.slot));
    q->next[stage]++;
    *moved = true;
    return ASSAY_OK;
}

static assay_status run_all(pipeline *q)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < q->stages; stage++)
            ASSAY_TRY(advance(q, stage, &moved));
    }
    for (int stage = 0; stage < q->stages; stage++)
        ASSAY_CHECK(q->next[stage] == 2 * q->slots, ASSAY_INTERNAL,
                    "the pipeline schedule stopped: stage %d did %lld of %lld actions", stage,
                    (long long)q->next[stage], (long long)(2 * q->slots));
    return ASSAY_OK;
}

assay_status ref_pipeline_step(ref_engine *e, int64_t step)
{
    assay_status st = ASSAY_OK;
    pipeline q = {.e = e, .stages = e->grid.p.pipeline_model_parallel_size, .slots = e->slots};
    const int64_t n = q.stages * q.slots;
    q.works = calloc((size_t)n, sizeof *q.works);
    q.next = calloc((size_t)q.stages, sizeof *q.next);
    ASSAY_CHECK_GOTO(q.works && q.next, ASSAY_OUT_OF_MEMORY, st, done, "out of memory: %lld microbatches",
                     (long long)n);
    for (int64_t i = 0; i < n; i++)
        q.works[i].pass = (ref_pass){.e = e,
                                     .stage = (int)(i / q.slots),
                                     .slot = i % q.slots,
                                     .n = e->stage_ranks,
                                     .ranks = e->ranks + i / q.slots * e->stage_ranks,
                                     .step = step,
                                     .layer = -1};
    ASSAY_TRY_GOTO(run_all(&q), st, done);
done:
    for (int64_t i = 0; q.works && i < n; i++)
        ref_arena_free(&q.works[i].pass.arena);
    free(q.works);
    free(q.next);
    return st;
}
