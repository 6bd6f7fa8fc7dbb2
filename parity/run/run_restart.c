/* Checkpoints of a task: a run that goes on from one, and one that another layout loads and saves again. */
#include "parity/run/run_task.h"

#include "core/base/file.h"
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

/* The checkpoint's weights hold, so a run that loads is given none: a folder with the configuration alone and no seed.  An engine
 * that does not look at --load cannot begin.  Folders in Megatron-LM's form say by their files how they are read, and lists of keys to
 * ignore may need the folder's weights. */
static assay_status without_weights(const parity_task_state *s, assay_train_options *o)
{
    char bare[ASSAY_PATH], path[ASSAY_PATH + 16], *text = NULL;
    uint64_t bytes = 0;
    assay_status st = ASSAY_OK;
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    st = parity_case_config(s->t->c, config);
    const bool megatron = st == ASSAY_OK && config->arch == ASSAY_ARCH_MEGATRON;
    free(config);
    ASSAY_TRY(st);
    if (assay_inputs_load(o)[0] == '\0' || (megatron && o->draw_weights < 0))
        return ASSAY_OK;
    if (o->draw_weights >= 0) { /* its folder holds none */
        o->draw_weights = -1;
        return ASSAY_OK;
    }
    ASSAY_TRY(parity_task_path(s->t, "bare", bare));
    ASSAY_TRY(assay_mkdir_p(bare));
    snprintf(path, sizeof path, "%s/config.json", o->model);
    ASSAY_TRY(assay_read_file(path, 64 << 20, &text, &bytes));
    snprintf(path, sizeof path, "%s/config.json", bare);
    st = assay_write_file(path, text, (size_t)bytes);
    free(text);
    snprintf(o->model, sizeof o->model, "%s", bare);
    return st;
}

static assay_status add_failure(const parity_task_state *s, parity_check check, const char *claim)
{
    parity_result r = parity_task_failure(check, claim);
    snprintf(r.message, sizeof r.message, "does not go on from a checkpoint, given no other weights: %.420s",
             assay_error_message());
    assay_error_clear();
    return parity_report_add(s->report, &r);
}

/* One run that loads; *ended: false where the engine died of it, which is a failure: it has run with these options before. */
static assay_status run_loading(parity_task_state *s, const char *name, parity_check check, const char *claim,
                                const assay_train_options *o, bool *ended)
{
    const assay_status st = parity_task_engine(s, name, o);
    *ended = st == ASSAY_OK;
    return st == ASSAY_CHILD ? add_failure(s, check, claim) : st;
}

/* After all but one step, to the end. */
static assay_status restart(parity_task_state *s, const assay_train_options *first,
                            const assay_train_options *loads)
{
    assay_train_options o = *loads;
    bool ended;
    ASSAY_TRY(parity_task_path(s->t, "rest", o.save));
    ASSAY_TRY(parity_task_path(s->t, "rest.safetensors", o.out));
    o.train_iters = s->t->c->steps;
    ASSAY_TRY(run_loading(s, "rest", PARITY_CHECK_BITWISE, "restart", &o, &ended));
    if (!ended)
        return ASSAY_OK;
    ASSAY_TRY(parity_check_resumed(first->out, o.out, 1, s->report));
    ASSAY_TRY(parity_check_checkpoints(first->save, o.save, "restart", s->report));
    return check_header(s, o.save, "restart", &o, o.train_iters);
}

/* Loaded by another layout and saved again. */
static assay_status move(parity_task_state *s, const assay_train_options *loads)
{
    char claim[ASSAY_LAYOUT_TEXT * 2 + 32];
    assay_train_options o = *loads;
    bool ended;
    o.train_iters = s->t->c->steps - 1;
    ASSAY_TRY(parity_task_path(s->t, "moved", o.save));
    snprintf(o.layout, sizeof o.layout, "%s", s->t->next_layout);
    o.overlap_param_gather = o.moe_alltoall_halves =
        false; /* no step runs, and not every layout takes them */
    snprintf(claim, sizeof claim, "%s -> %s", s->t->layout, s->t->next_layout);
    ASSAY_TRY(run_loading(s, "moved", PARITY_CHECK_CHECKPOINT, claim, &o, &ended));
    if (!ended)
        return ASSAY_OK;
    ASSAY_TRY(parity_check_checkpoints(o.load, o.save, claim, s->report));
    return check_header(s, o.save, claim, &o, o.train_iters);
}

assay_status parity_task_restart(parity_task_state *s, const assay_train_options *first, bool bitwise,
                                 bool checkpoint, parity_check *running)
{
    char half[ASSAY_PATH];
    assay_train_options o = s->train, loads;
    /* Kernels have no part in where a checkpoint's pieces lie: another layout loads those of the fastest. */
    const bool moves = checkpoint && strcmp(s->t->variant, "fastest") == 0;
    const int64_t before_last = s->t->c->steps - 1;
    if (!moves && !bitwise)
        return ASSAY_OK;
    *running = bitwise ? PARITY_CHECK_BITWISE : PARITY_CHECK_CHECKPOINT;
    ASSAY_TRY(parity_task_path(s->t, "half", half));
    o.lr_decay_iters = s->train.lr_decay_iters != 0 ? s->train.lr_decay_iters : s->t->c->steps;
    if (!bitwise) {
        o.train_iters = before_last;
        snprintf(o.save, sizeof o.save, "%s", half);
        ASSAY_TRY(parity_task_engine(s, "half", &o));
    }
    loads = o;
    snprintf(loads.load, sizeof loads.load, "%s", half);
    ASSAY_TRY(without_weights(s, &loads));
    if (bitwise)
        ASSAY_TRY(restart(s, first, &loads));
    o.train_iters = s->t->c->steps;
    ASSAY_TRY(check_header(s, half, "half", &o, before_last));
    *running = moves ? PARITY_CHECK_CHECKPOINT : *running;
    return moves ? move(s, &loads) : ASSAY_OK;
}
