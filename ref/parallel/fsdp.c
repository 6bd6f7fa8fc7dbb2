/* Gathering weights and scattering gradients, unit by unit. */
#include "ref/parallel/fsdp.h"

#include "ref/parallel/collectives.h"
#include "ref/parallel/sharding.h"

#include <stdlib.h>
#include <string.h>

static bool is_sharded(const ref_pass *p, int64_t unit, int64_t i)
{
    const ref_engine *e = p->e;
    const bool output = i == e->final_layernorm || i == e->output;
    if (e->grid.p.zero_stage < 2 || !assay_param_needs_grad(&e->spec->params[i]))
        return false;
    return unit == REF_UNIT_EMBEDDING ? i == e->embedding
           : unit == REF_UNIT_OUTPUT  ? output
                                      : e->spec->params[i].layer == unit;
}

/* A tied embedding on one stage gets its last gradient of a microbatch from the embedding. */
static bool is_complete(const ref_pass *p, int64_t unit, int64_t i)
{
    const bool one_stage = p->e->grid.p.pipeline_model_parallel_size == 1;
    return !(unit == REF_UNIT_OUTPUT && i == p->e->embedding && one_stage);
}

static assay_status new_array(const ref_pass *p, double **out, int64_t n, int64_t i)
{
    *out = calloc((size_t)n + 1, sizeof **out);
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "%s: out of memory: %lld elements", p->e->spec->params[i].name,
                (long long)n);
    return ASSAY_OK;
}

/* --- weights ------------------------------------------------------------------------------------------------ */

static assay_status gather(ref_pass *p, int r, int64_t i)
{
    ref_param *w = ref_pass_param(p, r, i);
    if (p->e->grid.p.zero_stage < 3 || w->held++ > 0)
        return ASSAY_OK;
    ASSAY_TRY(new_array(p, &w->weight, w->count, i));
    const assay_group_shape g = ref_param_owners(p->e, i, p->ranks[r].rank);
    for (int j = 0; j < g.size; j++) {
        const ref_param *from = &p->e->ranks[assay_group_member(&g, j)].params[i];
        ref_send_recv(w->weight + from->own_first, from->own_weight, from->own_count);
    }
    p->ranks[r].held += w->count;
    if (p->ranks[r].held > p->ranks[r].most_held)
        p->ranks[r].most_held = p->ranks[r].held;
    return ASSAY_OK;
}

static void let_go(ref_pass *p, int r, int64_t i)
{
    ref_param *w = ref_pass_param(p, r, i);
    if (p->e->grid.p.zero_stage < 3 || --w->held > 0)
        return;
    p->ranks[r].held -= w->count;
    free(w->weight);
    w->weight = NULL; /* whoever reads it now faults */
}

/* The backward of the embedding reads no weight. */
static bool reads(const ref_pass *p, int64_t unit)
{
    return unit != REF_UNIT_EMBEDDING || p->phase == ASSAY_PHASE_FORWARD;
}

assay_status ref_unit_acquire(ref_pass *p, int64_t unit)
{
    for (int64_t i = 0; i < p->e->spec->n_params; i++)
        for (int r = 0; is_sharded(p, unit, i) && r < p->n; r++) {
            ref_param *w = ref_pass_param(p, r, i);
            if (reads(p, unit))
                ASSAY_TRY(gather(p, r, i));
            if (p->phase == ASSAY_PHASE_BACKWARD && w->grad == NULL)
                ASSAY_TRY(new_array(p, &w->grad, w->count, i));
        }
    return ASSAY_OK;
}

/* --- gradients of one microbatch ------------------------------------------------------------------------------ */

static void store(const ref_pass *p, int64_t i, double *x, int64_t n)
{
    char name[ASSAY_NAME + 16];
    snprintf(name, sizeof name, "%s.main_grad", p->e->spec->params[i].name);
    ref_policy_store(&p->e->run->policy, REF_STORE_STATE, false, name, p->step, p->microbatch, x, n);
}

/* Elements `from` on. */
static void sum_over(ref_pass *p, assay_group kind, int64_t i, int64_t from)
{
    double **grads = p->e->send;
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g = ref_pass_group(p, kind, r);
        for (int j = 0; j < g.size; j++)
            grads[j] = ref_pass_param(p, assay_group_member(&g, j), i)->grad + from;
        if (g.size == 0)
            continue;
        ref_all_reduce(grads, g.size, ref_pass_param(p, r, i)->count - from);
        for (int j = 0; j < g.size; j++)
            store(p, i, grads[j], ref_pass_param(p, r, i)->count - from);
    }
}

/* own_grad += this rank's range of the sum over the ranks that share its copy. */
static assay_status reduce_scatter(ref_pass *p, int64_t i)
{
    double **send = p->e->send, **recv = p->e->recv;
    for (int r = 0; r < p->n; r++) {
        const assay_group_shape g =
            ref_pass_group(p, assay_param_shard_group(&p->e->spec->params[i], &p->e->grid), r);
        double *sums;
        if (g.size == 0)
            continue;
        ASSAY_TRY(new_array(p, &sums, ref_pass_param(p, r, i)->count, i));
        for (int j = 0; j < g.size; j++) {
            const ref_param *w = ref_pass_param(p, assay_group_member(&g, j), i);
            send[j] = w->grad;
            recv[j] = sums + w->own_first;
            p->e->counts[j] = w->own_count;
        }
        ref_reduce_scatter(recv, send, p->e->counts, g.size);
        for (int j = 0; j < g.size; j++) {
            const ref_param *w = ref_pass_param(p, assay_group_member(&g, j), i);
            store(p, i, recv[j], w->own_count);
            ref_add(w->own_grad, w->own_grad, recv[j], w->own_count);
            store(p, i, w->own_grad, w->own_count);
        }
        free(sums);
    }
    return ASSAY_OK;
}

static assay_status scatter(ref_pass *p, int64_t i)
{
    const assay_param_spec *spec = &p->e->spec->params[i];
    const int64_t count = ref_pass_param(p, 0, i)->count;
    const int64_t shared = assay_param_shared_from(spec, &p->e->grid, count);
    if (assay_param_sum_over_tp(spec, &p->e->grid))
        sum_over(p, ASSAY_GROUP_TP, i, 0);
    if (shared < count)
        sum_over(p, ASSAY_GROUP_KV, i, shared);
    ASSAY_TRY(reduce_scatter(p, i));
    for (int r = 0; r < p->n; r++) {
        ref_param *w = ref_pass_param(p, r, i);
        free(w->grad);
        w->grad = NULL;
    }
    return ASSAY_OK;
}

assay_status ref_unit_release(ref_pass *p, int64_t unit)
{
    for (int64_t i = 0; i < p->e->spec->n_params; i++) {
        if (!is_sharded(p, unit, i))
            continue;
        for (int r = 0; reads(p, unit) && r < p->n; r++)
            let_go(p, r, i);
        if (p->phase == ASSAY_PHASE_BACKWARD && is_complete(p, unit, i))
            ASSAY_TRY(scatter(p, i));
    }
    return ASSAY_OK;
}
