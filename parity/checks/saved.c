/* What a run leaves behind is what its trace says: the families of a checkpoint are the last masters, moments
 * and expert biases, the numbers of a result file the losses, norms, weights or gradients.  A save that mixes
 * up two families is caught here even when the load mixes them up the same way. */
#include "parity/checks/saved.h"
#include "core/files/checkpoint.h"

#include <stdlib.h>
#include <string.h>

void saved_start(const saved *s, parity_check check, const char *claim, const char *instance,
                 const char *tensor, parity_result *r)
{
    parity_result_init(r);
    parity_result_from_trace(r, s->trace);
    r->check = check;
    r->verdict = PARITY_PASS;
    r->phase = ASSAY_PHASE_CHECKPOINT;
    r->step = s->steps - 1;
    snprintf(r->op, sizeof r->op, "%s", claim);
    snprintf(r->instance, sizeof r->instance, "%s", instance);
    snprintf(r->tensor, sizeof r->tensor, "%s", tensor);
}

assay_status saved_from_trace(const saved *s, const char *name, assay_phase phase, int64_t step,
                              int64_t microbatch, parity_global *g, parity_result *r)
{
    const parity_entry *e = parity_index_find(s->x, name, phase, step, microbatch);
    parity_result finding;
    parity_result_init(&finding);
    memset(g, 0, sizeof *g);
    if (e == NULL) {
        parity_result_fail(r, "the trace has no %s in phase %s of step %lld", name, assay_phase_name(phase),
                           (long long)step);
        return ASSAY_OK;
    }
    ASSAY_TRY(parity_entry_assemble(s->x, e, g, &finding));
    if (!g->complete)
        parity_result_fail(r, "%s of the trace cannot be assembled: %.300s", name, finding.message);
    return ASSAY_OK;
}

/* --- checkpoint --------------------------------------------------------------------------------------------- */

/* Parameter `name` of a family against the trace's P.<family>, or P itself (suffixed false): behind the last step, or (a frozen
 * weight, which no step writes) what the last step read. */
static assay_status check_state(const saved *s, const assay_checkpoint *c, const char *family,
                                const char *name, assay_phase phase, bool suffixed)
{
    char traced[ASSAY_NAME + 16];
    parity_result r;
    parity_global g;
    parity_gallery gallery = {0};
    assay_status st = ASSAY_OK;
    void *data = NULL;
    saved_start(s, PARITY_CHECK_CHECKPOINT, s->claim, family, name, &r);
    snprintf(traced, sizeof traced, "%s%s%s", name, suffixed ? "." : "", suffixed ? family : "");
    ASSAY_TRY(saved_from_trace(s, traced, phase, s->steps - 1, -1, &g, &r));
    if (r.verdict == PARITY_PASS) {
        assay_shard whole;
        assay_shard_whole(&whole, g.shape, g.ndim);
        data = calloc((size_t)g.count + 1, (size_t)assay_dtype_bytes(g.dtype));
        ASSAY_CHECK_GOTO(data, ASSAY_OUT_OF_MEMORY, st, done, "%s/%s", family, name);
        const assay_status read = assay_checkpoint_read(c, family, name, g.dtype, &whole, data);
        if (read != ASSAY_OK) {
            parity_result_fail(&r, "the checkpoint: %.400s", assay_error_message());
            assay_error_clear();
        } else {
            ASSAY_TRY_GOTO(parity_compare_bits(data, g.data, g.shape, g.ndim, g.count, g.dtype, &gallery, &r),
                           st, done);
        }
    }
    st = parity_report_add_from(s->report, &gallery, &r);
done:
    parity_gallery_free(&gallery);
    free(data);
    parity_global_free(&g);
    return st;
}

static assay_status check_header(const saved *s, const char *dir, const json_t *header)
{
    assay_grid grid;
    char layout[ASSAY_LAYOUT_TEXT] = "(none)";
    parity_result base;
    if (parity_grid_from_trace(s->trace, &grid))
        assay_layout_format(&grid.p, layout);
    saved_start(s, PARITY_CHECK_CHECKPOINT, s->claim, "", "", &base);
    const parity_header wanted = {.options = s->options,
                                  .batches = s->batches,
                                  .spec = s->spec,
                                  .layout = layout,
                                  .dir = dir,
                                  .step = s->steps};
    return parity_header_judge(header, &wanted, &base, s->report);
}

static assay_status check_tensors(const saved *s, const assay_checkpoint *c)
{
    const char *const *states;
    const int n_states = assay_optimizer_states(s->options->optimizer, &states);
    int64_t wanted = 0;
    parity_result r;
    for (int64_t i = 0; i < s->spec->n_params; i++) {
        const assay_param_spec *p = &s->spec->params[i];
        const bool trains = assay_param_needs_grad(p), frozen = p->trained && !trains;
        for (int k = -1; k < n_states && trains; k++)
            ASSAY_TRY(
                check_state(s, c, k < 0 ? "main_param" : states[k], p->name, ASSAY_PHASE_OPTIMIZER, true));
        ASSAY_TRY(check_state(s, c, p->trained ? "weight" : "expert_bias", p->name,
                              frozen ? ASSAY_PHASE_FORWARD : ASSAY_PHASE_OPTIMIZER, false));
        wanted += trains ? 2 + n_states : 1;
    }
    saved_start(s, PARITY_CHECK_CHECKPOINT, s->claim, "tensors", "", &r);
    r.count = wanted;
    if (assay_checkpoint_count(c) != wanted)
        parity_result_fail(&r, "the checkpoint: expected %lld tensors, found %lld", (long long)wanted,
                           (long long)assay_checkpoint_count(c));
    return parity_report_add(s->report, &r);
}

assay_status parity_check_saved(const assay_trace *t, const char *checkpoint, const char *out,
                                const assay_model_spec *spec, const assay_train_options *options,
                                const assay_batches *batches, parity_report *report)
{
    assay_status st = ASSAY_OK;
    parity_index *x = NULL;
    assay_checkpoint *c = NULL;
    assay_tensorfile *f = NULL;
    const int64_t wanted = batches->training ? options->train_iters : 0;
    saved s = {.trace = t,
               .spec = spec,
               .options = options,
               .batches = batches,
               .steps = wanted > 0 ? wanted : batches->steps,
               .claim = "save",
               .result = "out",
               .report = report};
    ASSAY_TRY_GOTO(parity_index_create(&x, t), st, done);
    s.x = x;
    if (checkpoint != NULL) {
        ASSAY_TRY_GOTO(assay_checkpoint_open(&c, checkpoint), st, done);
        ASSAY_TRY_GOTO(check_header(&s, checkpoint, assay_checkpoint_header(c)), st, done);
        ASSAY_TRY_GOTO(check_tensors(&s, c), st, done);
    }
    if (out != NULL) {
        ASSAY_TRY_GOTO(assay_tensorfile_open(&f, out), st, done);
        ASSAY_TRY_GOTO(saved_check_out(&s, f), st, done);
    }
done:
    assay_tensorfile_close(f);
    assay_checkpoint_close(c);
    parity_index_destroy(x);
    return st;
}

assay_status parity_check_resumed_gradients(const assay_trace *t, const char *rest, int64_t step,
                                            const assay_model_spec *spec, const assay_train_options *options,
                                            parity_report *report)
{
    assay_status st = ASSAY_OK;
    parity_index *x = NULL;
    assay_tensorfile *f = NULL;
    saved s = {.trace = t,
               .spec = spec,
               .options = options,
               .steps = step + 1,
               .result = "restart",
               .report = report};
    ASSAY_TRY_GOTO(parity_index_create(&x, t), st, done);
    s.x = x;
    ASSAY_TRY_GOTO(assay_tensorfile_open(&f, rest), st, done);
    st = saved_check_gradients(&s, f, step);
done:
    assay_tensorfile_close(f);
    parity_index_destroy(x);
    return st;
}

assay_status parity_check_saved_after(const assay_trace *t, const char *checkpoint, const char *claim,
                                      int64_t steps, const assay_model_spec *spec,
                                      const assay_train_options *options, parity_report *report)
{
    assay_status st = ASSAY_OK;
    parity_index *x = NULL;
    assay_checkpoint *c = NULL;
    saved s = {
        .trace = t, .spec = spec, .options = options, .steps = steps, .claim = claim, .report = report};
    ASSAY_TRY_GOTO(parity_index_create(&x, t), st, done);
    s.x = x;
    ASSAY_TRY_GOTO(assay_checkpoint_open(&c, checkpoint), st, done);
    st = check_tensors(&s, c);
done:
    assay_checkpoint_close(c);
    parity_index_destroy(x);
    return st;
}
