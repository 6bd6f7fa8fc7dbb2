/* After the microbatches: sums of gradients, loss, norm, updates, gathers, expert bias. */
#include "parity/checks/plan.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* --- sums of gradients -------------------------------------------------------------------------------------- */

/* Adds one reduction; what goes in comes back summed: under its last name when nothing is lacking any more. */
static plan_tensor reduce(plan *p, const assay_param_spec *s, assay_group group, plan_tensor send, bool last,
                          const char *suffix)
{
    plan_tensor recv = send;
    if (last) {
        recv.name = plan_text(p, "%s.main_grad", s->name);
        recv.phase = ASSAY_PHASE_REDUCED_GRAD;
    } else {
        recv.name = plan_joined(p, send.name, suffix, "");
    }
    plan_add_collective(p, "all_reduce", s->name, group, send.dtype);
    plan_in(p, "send", send);
    plan_out(p, "recv", recv);
    return recv;
}

/* HSDP: every rectangle over the ranks that hold it in other copies. */
static void sum_copies(plan *p, const assay_param_spec *s, const plan_pieces *owned)
{
    for (int i = 0; i < owned->n; i++) {
        plan_tensor part =
            plan_param_tensor(p, s, ".main_grad.shard", ASSAY_PHASE_REDUCED_GRAD, p->accumulated);
        part.shard = owned->shard[i];
        plan_add_collective(p, "all_reduce", s->name, assay_param_replica_group(s), p->accumulated);
        plan_in(p, "send", part);
        part.name = plan_text(p, "%s.main_grad", s->name);
        plan_out(p, "recv", part);
    }
}

static void scatter_param(plan *p, const assay_param_spec *s, plan_tensor g)
{
    const plan_pieces owned = plan_pieces_of(p, s);
    const bool copies = plan_group_size(p, assay_param_replica_group(s)) > 1;
    plan_add_collective(p, "reduce_scatter", s->name, assay_param_shard_group(s, p->job->grid), g.dtype);
    plan_in(p, "send", g);
    for (int i = 0; i < owned.n; i++)
        plan_out(p, plan_numbered(p, "recv", i, owned.n),
                 plan_param_tensor(p, s, copies ? ".main_grad.shard" : ".main_grad", ASSAY_PHASE_REDUCED_GRAD,
                                   p->accumulated));
    if (copies)
        sum_copies(p, s, &owned);
}

static void reduce_param(plan *p, const assay_param_spec *s)
{
    const assay_group group = assay_param_reduce_group(s);
    const bool tp = assay_param_sum_over_tp(s, p->job->grid) && p->tp > 1;
    const bool tied = plan_lacks_embedding(p, s);
    const bool data = plan_group_size(p, group) > 1;
    const int64_t shared = plan_shared_from(p, s);
    plan_tensor g = plan_param_tensor(p, s, ".main_grad", ASSAY_PHASE_GRAD, p->accumulated);
    if (tp)
        g = reduce(p, s, ASSAY_GROUP_TP, g, !tied && !data, ".tp_sum");
    if (shared >= 0) {
        g = reduce(p, s, ASSAY_GROUP_KV, g, !data, ".kv_sum");
        plan_int(p, "start", shared);
    }
    if (tied)
        g = reduce(p, s, ASSAY_GROUP_EMBEDDING, g, !data, ".embedding_sum");
    if (data && plan_is_cut(p, s))
        scatter_param(p, s, g);
    else if (data)
        (void)reduce(p, s, group, g, true, "");
}

/* The sums of a parameter; with overlap they may begin behind the last accumulation into its gradient. */
static void reduce_or_finish(plan *p, const assay_param_spec *s, void *user)
{
    (void)user;
    const int64_t first = p->n;
    if (plan_is_cut(p, s) && p->job->grid->p.zero_stage >= 2) {
        plan_finish_parts(p, s);
        return;
    }
    reduce_param(p, s);
    const int64_t written = p->st == ASSAY_OK ? parity_map_get(p->written, s->name) : -1;
    if (p->job->options->overlap_grad_reduce && !plan_lacks_embedding(p, s))
        for (int64_t i = first; i < p->n; i++)
            p->ops[i].after = written;
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

/* Whether the kv group shares the rectangle: its first row is one of the key and value head. */
static bool is_shared(const plan *p, const assay_param_spec *s, const assay_shard *part)
{
    const int64_t block = s->query_groups > 0 ? s->shape[0] / s->query_groups : 0;
    if (p->job->grid->size[ASSAY_AXIS_KV] == 1)
        return false;
    if (part == NULL || s->query_groups == 0)
        return s->axis[0] == ASSAY_AXIS_KV_HEAD;
    return part->n_segments[0] > 0 && part->segments[0][0].start % block >= block - s->kv_rows;
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
        if (is_shared(p, s, owned.shard[i]) && assay_grid_coord(p->job->grid, ASSAY_AXIS_KV, p->rank) != 0)
            continue;
        plan_tensor x = plan_param_tensor(p, s, ".main_grad", ASSAY_PHASE_REDUCED_GRAD, p->accumulated);
        x.shard = owned.shard[i];
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
        const assay_shard *at = owned.shard[i];
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
