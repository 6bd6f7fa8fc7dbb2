/* After the microbatches: sums of gradients, loss, norm, updates, gathers, expert bias. */
#include "parity/checks/plan.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* --- sums of gradients -------------------------------------------------------------------------------------- */

static void sum_whole(plan *p, const assay_param_spec *s, assay_group group, plan_tensor send,
                      plan_tensor recv)
{
    plan_add_collective(p, "all_reduce", s->name, group, send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
}

/* zero1: to the ranks of a copy, then over the copies (HSDP). */
static void scatter_param(plan *p, const assay_param_spec *s)
{
    const plan_pieces owned = plan_pieces_of(p, s);
    const assay_group replicas = assay_param_replica_group(s);
    const bool copies = plan_group_size(p, replicas) > 1,
               more = plan_replicas_group(p, s) != ASSAY_GROUP_COUNT;
    plan_add_collective(p, "reduce_scatter", s->name, assay_param_shard_group(s, p->job->grid),
                        p->accumulated);
    plan_in(p, "send", plan_param_tensor(p, s, ".main_grad", ASSAY_PHASE_GRAD, p->accumulated));
    for (int i = 0; i < owned.n; i++)
        plan_out(p, plan_numbered(p, "recv", i, owned.n),
                 plan_param_tensor(p, s, copies || more ? ".main_grad.shard" : ".main_grad",
                                   ASSAY_PHASE_REDUCED_GRAD, p->accumulated));
    for (int i = 0; copies && i < owned.n; i++) {
        plan_add_collective(p, "all_reduce", s->name, replicas, p->accumulated);
        plan_in(p, "send", plan_part(p, s, ".main_grad.shard", -1, owned.shard[i]));
        plan_out(p, "recv", plan_part(p, s, more ? ".main_grad.dp_sum" : ".main_grad", -1, owned.shard[i]));
    }
}

/* Over data-parallel ranks. */
static void sum_data(plan *p, const assay_param_spec *s)
{
    const bool more = plan_replicas_group(p, s) != ASSAY_GROUP_COUNT;
    if (plan_group_size(p, assay_param_reduce_group(s)) == 1)
        return;
    if (plan_is_cut(p, s))
        scatter_param(p, s);
    else
        sum_whole(p, s, assay_param_reduce_group(s),
                  plan_param_tensor(p, s, ".main_grad", ASSAY_PHASE_GRAD, p->accumulated),
                  plan_param_tensor(p, s, more ? ".main_grad.dp_sum" : ".main_grad", ASSAY_PHASE_REDUCED_GRAD,
                                    p->accumulated));
}

/* Last of all: what makes copies. */
static void sum_replicas(plan *p, const assay_param_spec *s)
{
    const assay_group group = plan_replicas_group(p, s);
    const bool data = plan_group_size(p, assay_param_reduce_group(s)) > 1;
    const bool copies = plan_group_size(p, assay_param_replica_group(s)) > 1;
    const bool scattered = p->job->grid->p.zero_stage >= 2;
    if (group == ASSAY_GROUP_COUNT)
        return;
    if (!plan_is_cut(p, s)) {
        sum_whole(p, s, group,
                  plan_param_tensor(p, s, data ? ".main_grad.dp_sum" : ".main_grad",
                                    data ? ASSAY_PHASE_REDUCED_GRAD : ASSAY_PHASE_GRAD, p->accumulated),
                  plan_param_tensor(p, s, ".main_grad", ASSAY_PHASE_REDUCED_GRAD, p->accumulated));
        if (group == ASSAY_GROUP_KV)
            plan_int(p, "start", plan_shared_from(p, s));
        return;
    }
    const plan_pieces owned = plan_pieces_of(p, s);
    for (int i = 0; i < owned.n; i++) {
        const plan_tensor send =
            plan_part(p, s,
                      copies      ? ".main_grad.dp_sum"
                      : scattered ? ".main_grad.sum"
                                  : ".main_grad.shard",
                      !copies && scattered ? p->share.n_microbatches - 1 : -1, owned.shard[i]);
        plan_add_collective(p, "all_reduce", s->name, group, p->accumulated);
        plan_in(p, "send", send);
        plan_out(p, "recv", plan_part(p, s, ".main_grad", -1, owned.shard[i]));
        if (group == ASSAY_GROUP_KV && owned.shard[i] != NULL)
            plan_int(p, "start",
                     plan_is_kv_shared(p, s, owned.shard[i]) ? 0 : assay_shard_count(owned.shard[i]));
    }
}

/* The sums of a parameter; with overlap those over data-parallel ranks may begin behind the last accumulation into its gradient. */
static void reduce_or_finish(plan *p, const assay_param_spec *s, void *user)
{
    (void)user;
    const int64_t first = p->n;
    if (plan_is_cut(p, s) && p->job->grid->p.zero_stage >= 2) {
        plan_finish_parts(p, s);
    } else {
        sum_data(p, s);
        const int64_t written = p->st == ASSAY_OK ? parity_map_get(p->written, s->name) : -1;
        for (int64_t i = first; p->job->options->overlap_grad_reduce && i < p->n; i++)
            p->ops[i].after = written;
    }
    sum_replicas(p, s);
}

/* Dense parameters, then experts, each in the order of the parameter table. */
static void each_param(plan *p, void (*visit)(plan *p, const assay_param_spec *s, void *user), void *user)
{
    const assay_model_spec *spec = p->job->spec;
    for (int experts = 0; experts < 2; experts++) {
        for (int64_t i = 0; i < spec->n_params; i++) {
            const assay_param_spec *s = &spec->params[i];
            const bool turn = (assay_param_reduce_group(s) == ASSAY_GROUP_EDP) == (experts == 1);
            if (assay_param_needs_grad(s) && turn &&
                assay_param_on_rank(s, p->job->grid, p->job->config, p->rank))
                visit(p, s, user);
        }
    }
}

void plan_reductions(plan *p)
{
    p->block++;
    p->part = 2;
    p->phase = ASSAY_PHASE_REDUCED_GRAD;
    each_param(p, reduce_or_finish, NULL);
}

/* --- norm and update ---------------------------------------------------------------------------------------- */

/* One rank of every set of replicas; a part is there once along the ranks of its copy. */
static bool counts_in_norm(plan *p, const assay_param_spec *s)
{
    const assay_grid *g = p->job->grid;
    const assay_group group = assay_param_shard_group(s, g);
    const int n = plan_group_size(p, group);
    if (!plan_is_cut(p, s))
        return assay_param_counts_in_norm(s, g, p->job->config, p->rank);
    int *ranks = plan_alloc(p, (size_t)n * sizeof *ranks);
    bool any = false;
    if (ranks != NULL)
        (void)assay_grid_group(g, group, p->rank, ranks, NULL);
    for (int i = 0; ranks != NULL && i < n && !any; i++)
        any = assay_param_counts_in_norm(s, g, p->job->config, ranks[i]);
    return any;
}

/* Numbers that one operation each has written, in the order of the plan: what is added up. */
typedef struct numbers {
    const char *op;
    int64_t n, capacity;
    double *reals;
    int64_t *integers;
    bool known; /* every one is recorded */
} numbers;

static numbers numbers_for(plan *p, const char *op, int64_t capacity)
{
    return (numbers){.op = op,
                     .capacity = capacity,
                     .reals = plan_alloc(p, (size_t)capacity * sizeof(double) + 1),
                     .integers = plan_integers(p, capacity + 1),
                     .known = p->job->recorded != NULL};
}

/* What the operation of that instance has written the `index`-th time; one that did not is missing by itself. */
static void note(plan *p, numbers *l, const char *instance, int64_t index)
{
    if (p->st != ASSAY_OK || l->n == l->capacity)
        return;
    const assay_trace_tensor *y =
        l->known ? plan_recorded_y(p->job->recorded, p->rank, p->step, l->op, instance, index) : NULL;
    l->known = y != NULL && y->data != NULL && assay_shard_count(&y->shard) == 1;
    if (l->known && y->dtype == ASSAY_I64)
        l->integers[l->n] = parity_decode_integer(y->data, 0, ASSAY_I64);
    else if (l->known)
        l->reals[l->n] = parity_decode(y->data, 0, y->dtype);
    l->n++;
}

/* The list together, then over the world; what comes of it. */
static plan_tensor world_total(plan *p, const char *at, assay_dtype dtype, const numbers *l)
{
    const char *total = plan_text(p, "%s.total", at), *sum = plan_text(p, "%s.reduce", at);
    plan_tensor x = plan_value(p, total, "x", dtype), y = plan_value(p, total, "y", dtype), recv;
    if (l->known && dtype == ASSAY_I64)
        x = plan_with_integers(x, l->integers, l->n);
    else if (l->known)
        x.reals = l->reals, x.count = l->n;
    plan_add(p, "total", total);
    plan_in(p, "x", x);
    plan_out(p, "y", y);
    if (p->job->grid->world == 1)
        return y;
    recv = plan_value(p, sum, "recv", dtype);
    plan_add_collective(p, "all_reduce", sum, ASSAY_GROUP_WORLD, dtype);
    plan_in(p, "send", y);
    plan_out(p, "recv", recv);
    return recv;
}

/* `op` of every rectangle that the rank counts. */
static void over_counted(plan *p, const assay_param_spec *s, numbers *l, const char *suffix,
                         assay_dtype dtype)
{
    int64_t counted = 0;
    if (!counts_in_norm(p, s))
        return;
    const plan_pieces owned = plan_pieces_of(p, s);
    for (int i = 0; i < owned.n; i++) {
        if (plan_is_kv_shared(p, s, owned.shard[i]) &&
            assay_grid_coord(p->job->grid, ASSAY_AXIS_KV, p->rank) != 0)
            continue;
        plan_tensor x = plan_param_tensor(p, s, ".main_grad", ASSAY_PHASE_REDUCED_GRAD, p->accumulated);
        x.shard = plan_piece_or_whole(p, s, owned.shard[i]);
        plan_add(p, l->op, s->name);
        plan_in(p, "x", x);
        plan_out(p, "y", plan_param_tensor(p, s, suffix, ASSAY_PHASE_OPTIMIZER, dtype));
        note(p, l, s->name, counted++);
    }
}

static void sumsq(plan *p, const assay_param_spec *s, void *list)
{
    over_counted(p, s, list, ".sumsq", ASSAY_F64);
}

static void count_zeros(plan *p, const assay_param_spec *s, void *list)
{
    over_counted(p, s, list, ".num_zeros", ASSAY_I64);
}

static plan_tensor on_piece(plan_tensor t, const assay_shard *shard)
{
    t.shard = shard;
    return t;
}

/* Norm of the gradients and what they are clipped by, which adamw reads where it was left. */
static plan_tensor norm_and_clip(plan *p, plan_tensor sum)
{
    plan_tensor norm = plan_value(p, "grad_norm", "norm", ASSAY_F64);
    const plan_tensor scale = plan_value(p, "grad_norm", "scale", ASSAY_F64);
    norm.name = "grad_norm";
    plan_add(p, "clip_coefficient", "grad_norm");
    plan_in(p, "sumsq", sum);
    plan_out(p, "norm", norm);
    plan_out(p, "scale", scale);
    plan_real(p, "clip_grad", p->job->options->clip_grad, 0.0);
    return scale;
}

static void adamw(plan *p, const assay_param_spec *s, void *grad_scale)
{
    const assay_train_options *o = p->job->options;
    const char *const *states, *updated[1 + ASSAY_MAX_OPTIMIZER_STATES] = {"main_param"};
    const int n = 1 + assay_optimizer_states(o->optimizer, &states);
    for (int k = 1; k < n; k++)
        updated[k] = states[k - 1];
    const plan_pieces owned = plan_pieces_of(p, s);
    /* At most six roundings of numbers no larger than the largest rate. */
    const double slack =
        4.0 * DBL_EPSILON * fmax(fabs(o->lr), fmax(fabs(o->min_lr), fabs(o->lr_warmup_init)));
    for (int i = 0; i < owned.n; i++) {
        const assay_shard *at = plan_piece_or_whole(p, s, owned.shard[i]);
        plan_add(p, "adamw", s->name);
        for (int k = 0; k < n; k++)
            plan_in(p, plan_text(p, "%s_in", updated[k]),
                    on_piece(plan_param_tensor(p, s, plan_text(p, ".%s", updated[k]), ASSAY_PHASE_FORWARD,
                                               p->accumulated),
                             at));
        plan_in(
            p, "grad",
            on_piece(plan_param_tensor(p, s, ".main_grad", ASSAY_PHASE_REDUCED_GRAD, p->accumulated), at));
        plan_in(p, "grad_scale", *(const plan_tensor *)grad_scale);
        for (int k = 0; k < n; k++)
            plan_out(p, updated[k],
                     on_piece(plan_param_tensor(p, s, plan_text(p, ".%s", updated[k]), ASSAY_PHASE_OPTIMIZER,
                                                p->accumulated),
                              at));
        plan_out(p, "param", on_piece(plan_param_tensor(p, s, "", ASSAY_PHASE_OPTIMIZER, p->act), at));
        plan_real(p, "lr", plan_learning_rate(o, p->job->steps, p->step), slack);
        plan_real(p, "beta1", o->adam_beta1, 0.0);
        plan_real(p, "beta2", o->adam_beta2, 0.0);
        plan_real(p, "eps", o->adam_eps, 0.0);
        plan_real(p, "weight_decay", s->no_weight_decay ? 0.0 : o->weight_decay, 0.0);
        plan_int(p, "step", p->step + 1);
    }
}

static void gather_param(plan *p, const assay_param_spec *s, void *user)
{
    (void)user;
    if (!plan_is_cut(p, s) || p->job->grid->p.zero_stage > 2)
        return;
    const plan_pieces owned = plan_pieces_of(p, s);
    plan_add_collective(p, "all_gather", s->name, assay_param_shard_group(s, p->job->grid), p->act);
    for (int i = 0; i < owned.n; i++)
        plan_in(p, plan_numbered(p, "send", i, owned.n),
                on_piece(plan_param_tensor(p, s, "", ASSAY_PHASE_OPTIMIZER, p->act), owned.shard[i]));
    plan_out(p, "recv", plan_param_tensor(p, s, "", ASSAY_PHASE_OPTIMIZER, p->act));
}

/* --- expert bias -------------------------------------------------------------------------------------------- */

/* Tokens of the step by expert that a rank routed in a layer. */
static bool step_counts(plan *p, int rank, int64_t layer, int64_t *counts)
{
    const int64_t experts = p->job->config->num_moe_experts;
    int64_t *one = plan_integers(p, experts);
    assay_coords at;
    assay_batch_share share;
    assay_grid_coords(p->job->grid, rank, &at);
    if (one == NULL)
        return false;
    p->st = assay_batch_share_make(assay_needs_all_rows(p->job->options), p->job->batches->microbatches,
                                   p->job->batches->b, p->job->grid->p.data_parallel_size, at.dp, &share);
    bool known = p->st == ASSAY_OK;
    for (int64_t m = 0; known && m < share.n_microbatches; m++) {
        known = plan_choice_counts(p, rank, share.first_microbatch + m, layer, plan_row_map(p), one);
        for (int64_t e = 0; e < experts; e++)
            counts[e] += one[e];
    }
    return known;
}

static void expert_bias(plan *p)
{
    const int64_t experts = p->job->config->num_moe_experts;
    const assay_group group = ASSAY_GROUP_TP_DP_CP;
    const int n = plan_group_size(p, group);
    int64_t *mine = plan_integers(p, experts), *all = plan_integers(p, experts);
    int *ranks = plan_alloc(p, (size_t)n * sizeof *ranks);
    if (p->st != ASSAY_OK)
        return;
    bool known = true;
    (void)assay_grid_group(p->job->grid, group, p->rank, ranks, NULL);
    for (int i = 0; i < n; i++)
        known = step_counts(p, ranks[i], p->layer, all) && known;
    plan_tensor counts = plan_value(p, "mlp.router", "step_tokens_per_expert", ASSAY_I64);
    if (step_counts(p, p->rank, p->layer, mine) && known)
        counts = plan_with_integers(counts, mine, experts);
    if (n > 1) {
        plan_tensor total = plan_value(p, "mlp.router.expert_counts", "recv", ASSAY_I64);
        if (known)
            total = plan_with_integers(total, all, experts);
        plan_add_collective(p, "all_reduce", "mlp.router.expert_counts", group, ASSAY_I64);
        plan_in(p, "send", counts);
        plan_out(p, "recv", total);
        counts = total;
    }
    plan_tensor before = plan_param(p, "mlp.router.expert_bias"), after;
    before.dtype = p->accumulated;
    after = before;
    after.phase = ASSAY_PHASE_OPTIMIZER;
    plan_add(p, "expert_bias_update", "mlp.router.expert_bias");
    plan_in(p, "bias_in", before);
    plan_in(p, "tokens_per_expert", counts);
    plan_out(p, "bias", after);
    plan_f32(p, "rate", p->job->options->moe_router_bias_update_rate);
}

static void expert_biases(plan *p)
{
    const assay_model_config *c = p->job->config;
    for (int chunk = 0; chunk < p->job->grid->p.virtual_pipeline_model_parallel_size; chunk++) {
        int64_t first, count;
        assay_grid_stage_layers(p->job->grid, c, p->at.pp, chunk, &first, &count);
        for (int64_t l = first; l < first + count && p->st == ASSAY_OK; l++) {
            if (c->mlp[l] != ASSAY_MLP_MOE || !c->moe_router_enable_expert_bias)
                continue;
            p->layer = l;
            expert_bias(p);
        }
    }
    p->layer = -1;
}

/* --- the phase ---------------------------------------------------------------------------------------------- */

/* The losses of the rank's microbatches; a tp rank beside the first has copies. */
static void loss_sum(plan *p)
{
    const bool holds = p->last_stage && p->at.tp == 0;
    numbers l = numbers_for(p, "sum", holds ? p->share.n_microbatches : 0);
    for (int64_t i = 0; holds && i < p->share.n_microbatches; i++)
        note(p, &l, "loss.sum", i);
    (void)world_total(p, "loss", ASSAY_F64, &l);
}

void plan_optimizer(plan *p)
{
    const int64_t most = p->job->spec->n_params * PLAN_PIECES;
    p->block++;
    p->part = 3;
    p->phase = ASSAY_PHASE_OPTIMIZER;
    loss_sum(p);
    if (!p->job->batches->training)
        return;
    numbers squares = numbers_for(p, "sumsq", most), zeros = numbers_for(p, "count_zeros", most);
    each_param(p, sumsq, &squares);
    plan_tensor scale = norm_and_clip(p, world_total(p, "grad_norm", ASSAY_F64, &squares));
    if (p->job->options->log_num_zeros_in_grad) {
        each_param(p, count_zeros, &zeros);
        (void)world_total(p, "num_zeros_in_grad", ASSAY_I64, &zeros);
    }
    each_param(p, adamw, &scale);
    each_param(p, gather_param, NULL);
    expert_biases(p);
}
