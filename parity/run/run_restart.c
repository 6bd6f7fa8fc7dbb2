/* Checkpoints of a task: a run that goes on from one, and one that another layout loads and saves again. */
#include "parity/run/run_task.h"

#include "core/run/inputs.h"
#include <stdlib.h>
#include <string.h>

/* The tensors of a checkpoint may be right and its header send the next run elsewhere.  o: of the run that wrote it. */
static assay_status check_header(const parity_task_state *s, const char *dir, const char *claim,
                                 const assay_train_options *o, int64_t step)
{
    assay_batches batches = {0};
    assay_model_spec *spec = NULL;
    assay_status st = ASSAY_OK;
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    ASSAY_TRY_GOTO(parity_case_config(s->t->c, config), st, done);
    ASSAY_TRY_GOTO(assay_batches_open(&batches, s->train.batch, config->vocab_size), st, done);
    ASSAY_TRY_GOTO(assay_inputs_spec(o, config, &spec), st, done);
    const parity_header wanted = {
        .options = o, .batches = &batches, .spec = spec, .layout = o->layout, .step = step};
    st = parity_check_header(dir, claim, &wanted, s->report);
done:
    assay_spec_destroy(spec);
    assay_batches_close(&batches);
    free(config);
    return st;
}

assay_status parity_task_restart(parity_task_state *s, const char *first_save, bool bitwise, bool checkpoint,
                                 parity_check *running)
{
    char half[ASSAY_PATH], rest[ASSAY_PATH], moved[ASSAY_PATH];
    assay_train_options o = s->train;
    /* Kernels have no part in where a checkpoint's pieces lie: another layout loads those of the fastest. */
    const bool moves = checkpoint && strcmp(s->t->variant, "fastest") == 0;
    const int64_t before_last = s->t->c->steps - 1;
    if (!moves && !bitwise)
        return ASSAY_OK;
    *running = bitwise ? PARITY_CHECK_BITWISE : PARITY_CHECK_CHECKPOINT;
    ASSAY_TRY(parity_task_path(s->t, "half", half));
    ASSAY_TRY(parity_task_path(s->t, "rest", rest));
    ASSAY_TRY(parity_task_path(s->t, "moved", moved));
    o.lr_decay_iters = s->train.lr_decay_iters != 0 ? s->train.lr_decay_iters : s->t->c->steps;
    if (!bitwise) {
        o.train_iters = before_last;
        snprintf(o.save, sizeof o.save, "%s", half);
        ASSAY_TRY(parity_task_engine(s, "half", &o));
    }
    o.train_iters = s->t->c->steps;
    snprintf(o.load, sizeof o.load, "%s", half);
    snprintf(o.save, sizeof o.save, "%s", rest);
    if (bitwise) {
        ASSAY_TRY(parity_task_engine(s, "rest", &o));
        ASSAY_TRY(parity_check_checkpoints(first_save, rest, "restart", s->report));
        ASSAY_TRY(check_header(s, rest, "restart", &o, o.train_iters));
    }
    ASSAY_TRY(check_header(s, half, "half", &o, before_last));
    if (moves) {
        char claim[ASSAY_LAYOUT_TEXT * 2 + 32];
        *running = PARITY_CHECK_CHECKPOINT;
        o.train_iters = before_last;
        snprintf(o.save, sizeof o.save, "%s", moved);
        snprintf(o.layout, sizeof o.layout, "%s", s->t->next_layout);
        o.overlap_param_gather = o.moe_alltoall_halves =
            false; /* no step runs, and not every layout takes them */
        ASSAY_TRY(parity_task_engine(s, "moved", &o));
        snprintf(claim, sizeof claim, "%s -> %s", s->t->layout, s->t->next_layout);
        ASSAY_TRY(parity_check_checkpoints(half, moved, claim, s->report));
        ASSAY_TRY(check_header(s, moved, claim, &o, before_last));
    }
    return ASSAY_OK;
}
