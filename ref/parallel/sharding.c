/* Weights, gradients and optimizer states over ranks. */
#include "ref/parallel/sharding.h"

#include "core/files/checkpoint.h"
#include "ref/parallel/collectives.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ref_param *param_of(const ref_engine *e, int rank, int64_t i)
{
    return &e->ranks[rank].params[i];
}

static assay_status new_array(double **out, int64_t n, const char *name)
{
    *out = calloc((size_t)n + 1, sizeof **out);
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "%s: out of memory: %lld elements", name, (long long)n);
    return ASSAY_OK;
}

/* Stores an array of a parameter as the recipe says; `suffix` is ".main_grad" and so on. */
static void store(const ref_engine *e, int64_t i, const char *suffix, ref_store_class class, int64_t step,
                  double *x, int64_t n)
{
    char name[ASSAY_NAME + 16];
    snprintf(name, sizeof name, "%s%s", e->spec->params[i].name, suffix);
    ref_policy_store(&e->run->policy, class, false, name, step, -1, x, n);
}

/* --- cutting ------------------------------------------------------------------------------------------------ */

static assay_status cut_param(ref_engine *e, int rank, int64_t i, const double *whole)
{
    const assay_param_spec *spec = &e->spec->params[i];
    ref_param *p = param_of(e, rank, i);
    assay_shard all;
    assay_shard_whole(&all, spec->shape, spec->ndim);
    ASSAY_TRY(assay_param_shard(spec, &e->grid, rank, &p->shard));
    p->count = assay_shard_count(&p->shard);
    p->here = true;
    ASSAY_TRY(new_array(&p->weight, p->count, spec->name));
    assay_shard_copy(p->weight, &p->shard, whole, &all, sizeof(double), NULL, false, NULL);
    ref_policy unperturbed = e->run->policy;
    unperturbed.perturb = 0.0;
    ref_policy_store(&unperturbed, REF_STORE_STATE, false, spec->name, 0, -1, p->weight, p->count);
    if (!assay_param_needs_grad(spec)) {
        if (spec->trained) /* not a buffer: the products read it */
            ref_policy_store(&unperturbed, REF_STORE_PAR, false, spec->name, 0, -1, p->weight, p->count);
        return ASSAY_OK;
    }
    p->own_count = p->count;
    if (e->grid.p.zero_stage >= 1) {
        int index;
        const int n = assay_grid_group(&e->grid, assay_param_shard_group(spec, &e->grid), rank, NULL, &index);
        assay_param_owned_range(spec, i, p->count, n, index, &p->own_first, &p->own_count);
    }
    if (e->grid.p.zero_stage >= 2) {
        ASSAY_TRY(new_array(&p->own_grad, p->own_count, spec->name));
    } else {
        ASSAY_TRY(new_array(&p->grad, p->count, spec->name));
        p->own_grad = p->grad + p->own_first;
    }
    ASSAY_TRY(new_array(&p->main_param, p->own_count, spec->name));
    for (int k = 0; k < e->n_states; k++)
        ASSAY_TRY(new_array(&p->states[k], p->own_count, spec->name));
    memcpy(p->main_param, p->weight + p->own_first, (size_t)p->own_count * sizeof(double));
    ref_policy_store(&unperturbed, REF_STORE_PAR, false, spec->name, 0, -1, p->weight, p->count);
    if (e->grid.p.zero_stage < 3)
        return ASSAY_OK;
    ASSAY_TRY(new_array(&p->own_weight, p->own_count, spec->name));
    memcpy(p->own_weight, p->weight + p->own_first, (size_t)p->own_count * sizeof(double));
    free(p->weight);
    p->weight = NULL;
    return ASSAY_OK;
}

assay_status ref_shard_params(ref_engine *e, double *const *weights)
{
    for (int rank = 0; rank < e->grid.world; rank++)
        for (int64_t i = 0; i < e->spec->n_params; i++)
            if (assay_param_on_rank(&e->spec->params[i], &e->grid, e->config, rank))
                ASSAY_TRY(cut_param(e, rank, i, weights[i]));
    return ASSAY_OK;
}

void ref_free_params(ref_engine *e)
{
    for (int rank = 0; e->ranks && rank < e->grid.world; rank++) {
        for (int64_t i = 0; e->ranks[rank].params && i < e->spec->n_params; i++) {
            ref_param *p = param_of(e, rank, i);
            free(p->weight);
            free(p->own_weight);
            free(e->grid.p.zero_stage >= 2 ? p->own_grad : NULL);
            free(p->grad);
            free(p->main_param);
            for (int k = 0; k < ASSAY_MAX_OPTIMIZER_STATES; k++)
                free(p->states[k]);
        }
        free(e->ranks[rank].params);
        e->ranks[rank].params = NULL;
    }
}

/* --- gradients ---------------------------------------------------------------------------------------------- */

/* The group whose first member is `rank`; of size 0 for the others. */
static assay_group_shape group_from(const ref_engine *e, assay_group kind, int rank)
{
    const assay_group_shape g = assay_grid_group_shape(&e->grid, kind, rank);
    return g.start == rank ? g : (assay_group_shape){.start = -1};
}

/* Sums what the members of a group hold of a parameter: elements `from` on, or (own) the range that each keeps. */
static void sum_over(ref_engine *e, assay_group kind, int64_t i, int64_t step, bool own, int64_t from)
{
    double **grads = e->recv;
    for (int rank = 0; rank < e->grid.world; rank++) {
        const assay_group_shape g = group_from(e, kind, rank);
        const ref_param *first = param_of(e, rank, i);
        const int64_t n = own ? first->own_count : first->count - from;
        if (g.size <= 1 || !first->own_grad)
            continue;
        for (int j = 0; j < g.size; j++) {
            const ref_param *p = param_of(e, assay_group_member(&g, j), i);
            grads[j] = own ? p->own_grad : p->grad + from;
        }
        ref_all_reduce(grads, g.size, n);
        for (int j = 0; j < g.size; j++)
            store(e, i, ".main_grad", REF_STORE_STATE, step, grads[j], n);
    }
}

/* ZeRO-1: every member keeps the sum over its own flat range. */
static assay_status reduce_scatter_over(ref_engine *e, assay_group kind, int64_t i, int64_t step)
{
    double **send = e->send, **recv = e->recv;
    for (int rank = 0; rank < e->grid.world; rank++) {
        const assay_group_shape g = group_from(e, kind, rank);
        if (g.size <= 1 || !param_of(e, rank, i)->grad)
            continue;
        double *sums;
        ASSAY_TRY(new_array(&sums, param_of(e, rank, i)->count, e->spec->params[i].name));
        for (int j = 0; j < g.size; j++) {
            const ref_param *p = param_of(e, assay_group_member(&g, j), i);
            send[j] = p->grad;
            recv[j] = sums + p->own_first;
            e->counts[j] = p->own_count;
        }
        ref_reduce_scatter(recv, send, e->counts, g.size);
        for (int j = 0; j < g.size; j++) {
            const ref_param *p = param_of(e, assay_group_member(&g, j), i);
            memcpy(p->own_grad, recv[j], (size_t)p->own_count * sizeof(double));
            store(e, i, ".main_grad", REF_STORE_STATE, step, p->own_grad, p->own_count);
        }
        free(sums);
    }
    return ASSAY_OK;
}

static assay_status trace_grad(const ref_engine *e, int64_t i, assay_phase phase, int64_t step)
{
    const assay_param_spec *spec = &e->spec->params[i];
    char name[ASSAY_NAME + 16];
    snprintf(name, sizeof name, "%s.main_grad", spec->name);
    return ref_trace_tensor(e, name, phase, step, -1, spec->shape, spec->ndim, param_of(e, 0, i)->own_grad,
                            false);
}

/* A key and a value head on several ranks: each has seen its own query heads. */
static void sum_shared(ref_engine *e, int64_t i, int64_t step)
{
    for (int rank = 0; rank < e->grid.world; rank++) {
        const ref_param *p = param_of(e, rank, i);
        const int64_t from = assay_param_shared_from(&e->spec->params[i], &e->grid, p->count);
        if (!p->own_grad)
            continue;
        if (from < p->count) /* pieces are of one size on all ranks */
            sum_over(e, ASSAY_GROUP_KV, i, step, false, from);
        return;
    }
}

/* Gradients are whole on every rank until the last microbatch is done. */
static assay_status sum_whole(ref_engine *e, int64_t i, int64_t step)
{
    const assay_param_spec *spec = &e->spec->params[i];
    if (assay_param_sum_over_tp(spec, &e->grid))
        sum_over(e, ASSAY_GROUP_TP, i, step, false, 0);
    sum_shared(e, i, step);
    if (spec->on_first_stage && spec->on_last_stage)
        sum_over(e, ASSAY_GROUP_EMBEDDING, i, step, false, 0);
    if (e->grid.p.zero_stage == 0) {
        sum_over(e, assay_param_reduce_group(spec), i, step, false, 0);
        return ASSAY_OK;
    }
    ASSAY_TRY(reduce_scatter_over(e, assay_param_shard_group(spec, &e->grid), i, step));
    sum_over(e, assay_param_replica_group(spec), i, step, true, 0);
    return ASSAY_OK;
}

/* ZeRO-2: sums over tp and over the ranks that share a copy were made behind each backward (fsdp.c). */
static assay_status sum_parts(ref_engine *e, int64_t i, int64_t step)
{
    const assay_param_spec *spec = &e->spec->params[i];
    if (spec->on_first_stage && spec->on_last_stage)
        sum_over(e, ASSAY_GROUP_EMBEDDING, i, step, true, 0);
    sum_over(e, assay_param_replica_group(spec), i, step, true, 0);
    return ASSAY_OK;
}

assay_status ref_reduce_gradients(ref_engine *e, int64_t step)
{
    const int stage = e->grid.p.zero_stage;
    for (int64_t i = 0; i < e->spec->n_params; i++) {
        const assay_param_spec *spec = &e->spec->params[i];
        if (!assay_param_needs_grad(spec))
            continue;
        ASSAY_TRY(trace_grad(e, i, ASSAY_PHASE_GRAD, step));
        ASSAY_TRY(stage >= 2 ? sum_parts(e, i, step) : sum_whole(e, i, step));
        ASSAY_TRY(trace_grad(e, i, ASSAY_PHASE_REDUCED_GRAD, step));
    }
    return ASSAY_OK;
}

assay_group_shape ref_param_owners(const ref_engine *e, int64_t i, int rank)
{
    const assay_param_spec *p = &e->spec->params[i];
    if (e->grid.p.zero_stage >= 1 && assay_param_needs_grad(p))
        return assay_grid_group_shape(&e->grid, assay_param_shard_group(p, &e->grid), rank);
    return (assay_group_shape){.start = rank, .size = 1};
}

/* Every trained element once: sum of squares of gradients, and how many are zero. */
static void over_gradients(const ref_engine *e, double *squares, int64_t *zeros)
{
    for (int64_t i = 0; i < e->spec->n_params; i++)
        for (int rank = 0; rank < e->grid.world; rank++) {
            if (!assay_param_counts_in_norm(&e->spec->params[i], &e->grid, e->config, rank))
                continue;
            const assay_group_shape g = ref_param_owners(e, i, rank);
            for (int j = 0; j < g.size; j++) {
                const ref_param *p = param_of(e, assay_group_member(&g, j), i);
                const int64_t counted =
                    assay_param_counted(&e->spec->params[i], &e->grid, e->config, rank, p->count) -
                    p->own_first;
                const int64_t n = counted < p->own_count ? counted : p->own_count;
                if (n > 0 && squares)
                    *squares += ref_sumsq(p->own_grad, n);
                if (n > 0 && zeros)
                    *zeros += ref_count_zeros(p->own_grad, n);
            }
        }
}

double ref_gradient_norm(const ref_engine *e)
{
    double sum = 0.0;
    over_gradients(e, &sum, NULL);
    return sqrt(sum);
}

int64_t ref_gradient_zeros(const ref_engine *e)
{
    int64_t zeros = 0;
    over_gradients(e, NULL, &zeros);
    return zeros;
}

/* --- update ------------------------------------------------------------------------------------------------- */

/* The weight is the master, rounded: one value, one storing. */
static void weight_from_master(const ref_engine *e, ref_param *p, int64_t step)
{
    double *weight = p->own_weight ? p->own_weight : p->weight + p->own_first;
    ref_policy unperturbed = e->run->policy;
    unperturbed.perturb = 0.0;
    memcpy(weight, p->main_param, (size_t)p->own_count * sizeof(double));
    ref_policy_store(&unperturbed, REF_STORE_PAR, false, "", step, -1, weight, p->own_count);
}

static void update_rank(ref_engine *e, int rank, int64_t i, const ref_adamw_desc *d)
{
    ref_param *p = param_of(e, rank, i);
    const int64_t n = p->own_count, step = d->step - 1;
    ref_adamw(p->main_param, p->states[0], p->states[1], p->own_grad, d, n);
    store(e, i, ".main_param", REF_STORE_STATE, step, p->main_param, n);
    for (int k = 0; k < e->n_states; k++) {
        char suffix[32];
        snprintf(suffix, sizeof suffix, ".%s", e->state_names[k]);
        store(e, i, suffix, REF_STORE_STATE, step, p->states[k], n);
    }
    weight_from_master(e, p, step);
}

/* ZeRO-1 and 2: every rank gets the ranges that the others updated. */
static void gather_weights(ref_engine *e, int64_t i)
{
    for (int rank = 0; rank < e->grid.world; rank++) {
        const ref_param *p = param_of(e, rank, i);
        const assay_group_shape g = ref_param_owners(e, i, rank);
        for (int j = 0; p->here && j < g.size; j++) {
            const int owner = assay_group_member(&g, j);
            const ref_param *from = param_of(e, owner, i);
            if (owner != rank)
                ref_send_recv(p->weight + from->own_first, from->weight + from->own_first, from->own_count);
        }
    }
}

void ref_update_params(ref_engine *e, int64_t step, double lr, double grad_scale)
{
    const assay_train_options *o = &e->options;
    for (int64_t i = 0; i < e->spec->n_params; i++) {
        const assay_param_spec *spec = &e->spec->params[i];
        if (!assay_param_needs_grad(spec))
            continue;
        const ref_adamw_desc d = {.lr = lr,
                                  .beta1 = o->adam_beta1,
                                  .beta2 = o->adam_beta2,
                                  .eps = o->adam_eps,
                                  .weight_decay = spec->no_weight_decay ? 0.0 : o->weight_decay,
                                  .grad_scale = grad_scale,
                                  .step = step + 1};
        for (int rank = 0; rank < e->grid.world; rank++)
            if (param_of(e, rank, i)->here)
                update_rank(e, rank, i, &d);
        if (e->grid.p.zero_stage == 1 || e->grid.p.zero_stage == 2)
            gather_weights(e, i);
    }
}

void ref_replay_masters(ref_engine *e, int64_t step)
{
    const ref_run_config *run = e->run;
    for (int64_t i = 0; i < e->spec->n_params; i++) {
        ref_param *p = param_of(e, 0, i);
        if (assay_param_needs_grad(&e->spec->params[i]) &&
            run->master(run->routing_user, step, i, p->main_param, p->own_count))
            weight_from_master(e, p, step);
    }
}

/* total [E] = the layer's counts of the step on this rank, its microbatches added up. */
static void step_tokens_per_expert(const ref_engine *e, int rank, int64_t layer, int64_t *total)
{
    const int64_t n = e->config->num_moe_experts, layers = e->config->num_layers;
    memset(total, 0, (size_t)n * sizeof *total);
    for (int64_t m = 0; m < e->microbatches; m++)
        for (int64_t i = 0; i < n; i++)
            total[i] += e->ranks[rank].tokens_per_expert[(m * layers + layer) * n + i];
}

assay_status ref_update_expert_bias(ref_engine *e, int64_t step)
{
    const int64_t n_experts = e->config->num_moe_experts;
    int64_t **counts = e->integers;
    if (e->options.moe_router_bias_update_rate == 0.0 || n_experts == 0)
        return ASSAY_OK;
    int64_t *totals = calloc((size_t)(e->grid.world * n_experts), sizeof *totals);
    ASSAY_CHECK(totals, ASSAY_OUT_OF_MEMORY, "out of memory: counts of %lld experts", (long long)n_experts);
    for (int rank = 0; rank < e->grid.world; rank++) {
        const assay_group_shape g = group_from(e, ASSAY_GROUP_TP_DP_CP, rank);
        for (int64_t l = 0; g.size > 0 && l < e->config->num_layers; l++) {
            const int64_t i = e->layer[l].moe.expert_bias;
            if (i < 0 || !param_of(e, rank, i)->weight)
                continue;
            for (int j = 0; j < g.size; j++) {
                counts[j] = totals + j * n_experts;
                step_tokens_per_expert(e, assay_group_member(&g, j), l, counts[j]);
            }
            ref_all_reduce_i64(counts, g.size, n_experts);
            for (int j = 0; j < g.size; j++) {
                double *bias = param_of(e, assay_group_member(&g, j), i)->weight;
                ref_expert_bias_update(bias, counts[j], e->options.moe_router_bias_update_rate, n_experts);
                store(e, i, "", REF_STORE_STATE, step, bias, n_experts);
            }
        }
    }
    free(totals);
    return ASSAY_OK;
}

/* --- assembling --------------------------------------------------------------------------------------------- */

/* A buffer and a frozen weight are whole on every rank; of the rest a rank has the range that it owns. */
static const double *owned_range(const ref_param *p, int kind, bool needs_grad)
{
    if (!needs_grad)
        return p->weight;
    if (kind == REF_STATE_GRAD)
        return p->own_grad;
    return kind == REF_STATE_MAIN ? p->main_param : p->states[kind - REF_STATE_OPTIMIZER];
}

/* The piece of parameter i that `rank` holds, put together from the ranges of its owners. */
static assay_status local_piece(const ref_engine *e, int64_t i, int rank, int kind, double **piece)
{
    const bool needs_grad = assay_param_needs_grad(&e->spec->params[i]);
    ASSAY_TRY(new_array(piece, param_of(e, rank, i)->count, e->spec->params[i].name));
    const assay_group_shape g = ref_param_owners(e, i, rank);
    for (int j = 0; j < g.size; j++) {
        const ref_param *from = param_of(e, assay_group_member(&g, j), i);
        memcpy(*piece + from->own_first, owned_range(from, kind, needs_grad),
               (size_t)(needs_grad ? from->own_count : from->count) * sizeof(double));
    }
    return ASSAY_OK;
}

/* Copies the pieces into the whole tensor; a replica that differs from the copy before it is a bug. */
static assay_status place(const ref_engine *e, int64_t i, int rank, const double *piece, double *whole,
                          unsigned char *covered)
{
    const assay_param_spec *spec = &e->spec->params[i];
    int64_t differs;
    assay_shard all;
    assay_shard_whole(&all, spec->shape, spec->ndim);
    assay_shard_copy(whole, &all, piece, &param_of(e, rank, i)->shard, sizeof(double), covered, true,
                     &differs);
    ASSAY_CHECK(differs < 0, ASSAY_INTERNAL, "%s: element %lld on rank %d differs from its replica",
                spec->name, (long long)differs, rank);
    return ASSAY_OK;
}

assay_status ref_assemble(const ref_engine *e, int64_t i, int kind, double *whole)
{
    const assay_param_spec *spec = &e->spec->params[i];
    assay_status st = ASSAY_OK;
    int64_t count;
    ASSAY_CHECK(assay_shape_count(spec->shape, spec->ndim, &count), ASSAY_LIMIT, "%s: too many elements",
                spec->name);
    unsigned char *covered = calloc((size_t)count + 1, 1);
    ASSAY_CHECK(covered, ASSAY_OUT_OF_MEMORY, "%s: out of memory: %lld bytes", spec->name, (long long)count);
    for (int rank = 0; rank < e->grid.world && st == ASSAY_OK; rank++) {
        double *piece = NULL;
        if (!param_of(e, rank, i)->here)
            continue;
        st = local_piece(e, i, rank, kind, &piece);
        if (st == ASSAY_OK)
            st = place(e, i, rank, piece, whole, covered);
        free(piece);
    }
    for (int64_t j = 0; j < count && st == ASSAY_OK; j++)
        if (!covered[j])
            st = ASSAY_ERROR(ASSAY_INTERNAL, "%s: no rank holds element %lld", spec->name, (long long)j);
    free(covered);
    return st;
}
