/* Parameters in use: held around each part of the model, and the mark that a gradient is complete.
 *
 * Acquire and release count, and tell the hooks, which gather and throw away sharded parameters (parallel/fsdp.c).  What
 * breaks the order is an error that names it. */
#include "gpu/model.h"

#include <stdio.h>

/* --- holding ------------------------------------------------------------------------------------------------ */
/* The first wrong use is kept until the next release: what uses a parameter has no status of its own. */
static void misused(gpu_model *m, const gpu_param *p, const char *how)
{
    if (m->misuse[0] == '\0')
        snprintf(m->misuse, sizeof m->misuse, "%.*s: %s", ASSAY_NAME - 1, p->spec->name, how);
}

gpu_value *gpu_param_use(gpu_model *m, gpu_param *p)
{
    if (p == NULL)
        return NULL;
    if (p->acquired == 0)
        misused(m, p, "used while nobody holds it");
    return &p->weight;
}

gpu_value *gpu_param_grad(gpu_model *m, gpu_param *p)
{
    if (!assay_param_needs_grad(p->spec))
        return NULL;
    if (p->grad_ready)
        misused(m, p, "its gradient is written after it was marked ready");
    return &p->main_grad;
}

static bool is_backward(const gpu_model *m)
{
    return m->run->phase == ASSAY_PHASE_BACKWARD;
}

assay_status gpu_param_acquire(gpu_model *m, const gpu_param_unit *u, const gpu_param_unit *next)
{
    for (int i = 0; i < u->n; i++)
        u->params[i]->acquired++;
    return m->hooks->before(m->hooks_user, u, next, true, is_backward(m));
}

assay_status gpu_grads_open(gpu_model *m, const gpu_param_unit *u)
{
    return m->hooks->before(m->hooks_user, u, NULL, false, is_backward(m));
}

assay_status gpu_param_release(gpu_model *m, const gpu_param_unit *u)
{
    ASSAY_CHECK(m->misuse[0] == '\0', ASSAY_INTERNAL, "%s", m->misuse);
    for (int i = 0; i < u->n; i++) {
        gpu_param *p = u->params[i];
        ASSAY_CHECK(p->acquired > 0, ASSAY_INTERNAL, "%s: released more often than acquired", p->spec->name);
        p->acquired--;
    }
    return m->hooks->after(m->hooks_user, u);
}

assay_status gpu_param_unit_add(gpu_param_unit *u, gpu_param *p)
{
    ASSAY_CHECK(u->n < GPU_UNIT_PARAMS, ASSAY_LIMIT, "%s: more than %d parameters are held together",
                p->spec->name, GPU_UNIT_PARAMS);
    u->params[u->n++] = p;
    u->n_ready = u->n;
    return ASSAY_OK;
}

/* --- gradients ---------------------------------------------------------------------------------------------- */
assay_status gpu_grads_reduce(gpu_model *m, const gpu_param_unit *u)
{
    return m->hooks->reduce(m->hooks_user, u);
}

assay_status gpu_grads_ready(gpu_model *m, const gpu_param_unit *u)
{
    for (int i = 0; i < u->n_ready; i++) {
        gpu_param *p = u->params[i];
        if (!assay_param_needs_grad(p->spec))
            continue;
        ASSAY_CHECK(!p->grad_ready, ASSAY_INTERNAL, "%s: its gradient is marked ready twice in a step",
                    p->spec->name);
        p->grad_ready = true;
        ASSAY_TRY(m->hooks->grad_ready(m->hooks_user, p));
    }
    return ASSAY_OK;
}

void gpu_params_begin_step(gpu_model *m)
{
    for (int64_t i = 0; i < m->n_params; i++)
        m->params[i].grad_ready = false;
}

assay_status gpu_params_check_step(const gpu_model *m)
{
    ASSAY_CHECK(m->misuse[0] == '\0', ASSAY_INTERNAL, "%s", m->misuse);
    for (int64_t i = 0; i < m->n_params; i++) {
        const gpu_param *p = &m->params[i];
        ASSAY_CHECK(p->acquired == 0, ASSAY_INTERNAL, "%s: acquired %d times more than released in a step",
                    p->spec->name, p->acquired);
        ASSAY_CHECK(p->grad_ready || !assay_param_needs_grad(p->spec), ASSAY_INTERNAL,
                    "%s: its gradient was not marked ready in a step", p->spec->name);
    }
    return ASSAY_OK;
}
