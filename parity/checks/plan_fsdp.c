/* What data-parallel ranks share out: pieces, gathers of parameters, scatters of gradients, unit by unit. */
#include "parity/checks/plan.h"

#include <string.h>

int plan_group_size(const plan *p, assay_group group)
{
    return assay_grid_group(p->job->grid, group, p->rank, NULL, NULL);
}

bool plan_is_cut(const plan *p, const assay_param_spec *s)
{
    const int stage = p->job->grid->p.zero_stage;
    return assay_param_needs_grad(s) && (stage >= 2 || (stage == 1 && p->job->batches->training)) &&
           plan_group_size(p, assay_param_shard_group(s, p->job->grid)) > 1;
}

bool plan_lacks_embedding(const plan *p, const assay_param_spec *s)
{
    return p->job->config->tie_word_embeddings && strcmp(s->name, "embedding.word_embeddings.weight") == 0 &&
           plan_group_size(p, ASSAY_GROUP_EMBEDDING) > 1;
}

plan_tensor plan_param_tensor(plan *p, const assay_param_spec *s, const char *suffix, assay_phase phase,
                              assay_dtype dtype)
{
    return (plan_tensor){
        .name = plan_joined(p, s->name, suffix, ""), .phase = phase, .microbatch = -1, .dtype = dtype};
}

plan_tensor plan_part(plan *p, const assay_param_spec *s, const char *suffix, int64_t microbatch,
                      const assay_shard *shard)
{
    plan_tensor t = plan_param_tensor(p, s, suffix, ASSAY_PHASE_REDUCED_GRAD, p->accumulated);
    t.microbatch = microbatch;
    t.shard = shard;
    return t;
}

const char *plan_numbered(plan *p, const char *slot, int i, int n)
{
    return n == 1 ? slot : plan_text(p, "%s.%d", slot, i);
}

int64_t plan_shared_from(plan *p, const assay_param_spec *s)
{
    assay_shard piece;
    if (p->st == ASSAY_OK)
        p->st = assay_param_shard(s, p->job->grid, p->rank, &piece);
    if (p->st != ASSAY_OK)
        return -1;
    const int64_t count = assay_shard_count(&piece), from = assay_param_shared_from(s, p->job->grid, count);
    return from < count ? from : -1;
}

/* Whether the kv group shares the rectangle: its first row is one of the key and value head. */
bool plan_is_kv_shared(const plan *p, const assay_param_spec *s, const assay_shard *part)
{
    const int64_t block = s->query_groups > 0 ? s->shape[0] / s->query_groups : 0;
    if (p->job->grid->size[ASSAY_AXIS_KV] == 1)
        return false;
    if (part == NULL || s->query_groups == 0)
        return s->axis[0] == ASSAY_AXIS_KV_HEAD;
    return part->n_segments[0] > 0 && part->segments[0][0].start % block >= block - s->kv_rows;
}

assay_group plan_replicas_group(plan *p, const assay_param_spec *s)
{
    if (p->tp > 1 && assay_param_sum_over_tp(s, p->job->grid))
        return ASSAY_GROUP_TP;
    if (plan_shared_from(p, s) >= 0)
        return ASSAY_GROUP_KV;
    return plan_lacks_embedding(p, s) ? ASSAY_GROUP_EMBEDDING : ASSAY_GROUP_COUNT;
}

/* Where ranks share a key and value head: the rows of linear_qkv that the rank has alone, and those that it shares. */
static plan_pieces halves_of(plan *p, const assay_param_spec *s)
{
    plan_pieces out = {.n = 1};
    const int64_t from = plan_shared_from(p, s);
    if (from <= 0)
        return out;
    assay_shard *own = plan_alloc(p, sizeof *own), *shared = plan_alloc(p, sizeof *shared);
    if (own == NULL || shared == NULL)
        return out;
    p->st = assay_param_shard(s, p->job->grid, p->rank, own);
    const int64_t rows = own->local_shape[0], first = from / (assay_shard_count(own) / rows);
    *shared = *own;
    if (p->st == ASSAY_OK)
        p->st = assay_shard_narrow(own, 0, 0, first);
    if (p->st == ASSAY_OK)
        p->st = assay_shard_narrow(shared, 0, first, rows - first);
    return (plan_pieces){.n = 2, .shard = {own, shared}};
}

const assay_shard *plan_piece_or_whole(plan *p, const assay_param_spec *s, const assay_shard *piece)
{
    if (piece != NULL)
        return piece;
    assay_shard *whole = plan_alloc(p, sizeof *whole);
    if (whole != NULL)
        p->st = assay_param_shard(s, p->job->grid, p->rank, whole);
    return whole;
}

/* Without a record of the cut the rank owns nothing that could be expected: the missing reduction is named. */
plan_pieces plan_pieces_of(plan *p, const assay_param_spec *s)
{
    plan_pieces out = {.n = 0};
    if (!plan_is_cut(p, s))
        return halves_of(p, s);
    /* A plan of no record (a dry run): one part, wherever it lies. */
    if (p->job->recorded == NULL)
        return (plan_pieces){.n = 1};
    const assay_trace_op *op = plan_recorded_scatter(p->job->recorded, p->rank, p->step, s->name);
    for (int i = 0; op != NULL && i < op->n_outputs && out.n < PLAN_PIECES; i++) {
        const assay_trace_tensor *t =
            assay_trace_tensor_by_id(plan_recorded_trace(p->job->recorded), p->rank, op->outputs[i].tensor);
        if (t != NULL)
            out.shard[out.n++] = &t->shard;
    }
    return out;
}

/* --- units -------------------------------------------------------------------------------------------------- */

static bool is_embedding(const assay_param_spec *s)
{
    return s->layer < 0 && s->on_first_stage;
}

static bool in_unit(const plan *p, const assay_param_spec *s, int64_t unit)
{
    const bool tied = p->job->config->tie_word_embeddings;
    if (unit == PLAN_UNIT_EMBEDDING)
        return is_embedding(s);
    if (unit == PLAN_UNIT_OUTPUT)
        return s->layer < 0 && (!is_embedding(s) || tied);
    return s->layer == unit;
}

typedef void (*param_visit)(plan *p, const assay_param_spec *s);

/* The cut parameters of a unit: dense, then experts; a tied embedding behind the final norm. */
static void each_of(plan *p, int64_t unit, bool embedding, bool experts, param_visit visit)
{
    const assay_model_spec *spec = p->job->spec;
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *s = &spec->params[i];
        if (in_unit(p, s, unit) && is_embedding(s) == embedding && s->is_expert == experts &&
            plan_is_cut(p, s))
            visit(p, s);
    }
}

static void gather_param(plan *p, const assay_param_spec *s)
{
    const plan_pieces owned = plan_pieces_of(p, s);
    plan_add_collective(p, "all_gather", s->name, assay_param_shard_group(s, p->job->grid), p->act);
    for (int i = 0; i < owned.n; i++) {
        plan_tensor part = plan_param_tensor(p, s, "", ASSAY_PHASE_FORWARD, p->act);
        part.shard = owned.shard[i];
        plan_in(p, plan_numbered(p, "send", i, owned.n), part);
    }
    plan_out(p, "recv", plan_param_tensor(p, s, "", ASSAY_PHASE_FORWARD, p->act));
}

static void gather_unit(plan *p, int64_t unit)
{
    each_of(p, unit, false, false, gather_param);
    each_of(p, unit, true, false, gather_param);
    each_of(p, unit, false, true, gather_param);
}

/* Its accumulations of the microbatch begin with zeros. */
static void begin_grad(plan *p, const assay_param_spec *s)
{
    if (p->st == ASSAY_OK)
        p->st = parity_map_put(p->touched, s->name, 0);
}

static bool one_stage(const plan *p)
{
    return p->job->grid->p.pipeline_model_parallel_size == 1;
}

void plan_unit_before(plan *p, int64_t unit, int64_t next)
{
    const int stage = p->job->grid->p.zero_stage;
    const bool backward = p->phase == ASSAY_PHASE_BACKWARD;
    const bool tied = p->job->config->tie_word_embeddings;
    if (stage >= 3 && !p->ahead && !(backward && unit == PLAN_UNIT_EMBEDDING))
        gather_unit(p, unit);
    p->ahead = stage >= 3 && p->job->options->overlap_param_gather && next != PLAN_UNIT_NONE;
    if (p->ahead)
        gather_unit(p, next);
    if (stage < 2 || !backward)
        return;
    each_of(p, unit, false, false, begin_grad);
    each_of(p, unit, false, true, begin_grad);
    if (!(unit == PLAN_UNIT_EMBEDDING && tied && one_stage(p))) /* the output began it */
        each_of(p, unit, true, false, begin_grad);
}

/* --- gradients of a microbatch ------------------------------------------------------------------------------ */

static int64_t round_of(const plan *p)
{
    return p->pass / 2;
}

static void scatter(plan *p, const assay_param_spec *s)
{
    const plan_pieces owned = plan_pieces_of(p, s);
    plan_add_collective(p, "reduce_scatter", s->name, assay_param_shard_group(s, p->job->grid),
                        p->accumulated);
    plan_tensor local = plan_param_tensor(p, s, ".main_grad", ASSAY_PHASE_GRAD, p->accumulated);
    local.microbatch = round_of(p);
    plan_in(p, "send", local);
    for (int i = 0; i < owned.n; i++)
        plan_out(p, plan_numbered(p, "recv", i, owned.n),
                 plan_part(p, s, ".main_grad.shard", round_of(p), owned.shard[i]));
}

static void accumulate(plan *p, const assay_param_spec *s)
{
    const plan_pieces owned = plan_pieces_of(p, s);
    const int64_t round = round_of(p);
    const bool last = round == p->share.n_microbatches - 1,
               more = plan_group_size(p, assay_param_replica_group(s)) > 1 ||
                      plan_replicas_group(p, s) != ASSAY_GROUP_COUNT,
               complete = last && !more;
    for (int i = 0; i < owned.n; i++) {
        plan_add(p, "add", s->name);
        plan_in(p, "a", plan_part(p, s, ".main_grad.sum", round - 1, owned.shard[i]));
        plan_in(p, "b", plan_part(p, s, ".main_grad.shard", round, owned.shard[i]));
        plan_out(p, "y",
                 plan_part(p, s, complete ? ".main_grad" : ".main_grad.sum", complete ? -1 : round,
                           owned.shard[i]));
    }
}

/* What is scattered together. */
static void reduce_bucket(plan *p, int64_t unit, bool embedding, bool experts)
{
    each_of(p, unit, embedding, experts, scatter);
    each_of(p, unit, embedding, experts, accumulate);
}

void plan_unit_reduce(plan *p, int64_t unit)
{
    if (p->job->grid->p.zero_stage < 2)
        return;
    reduce_bucket(p, unit, false, false);
    if (!(unit == PLAN_UNIT_OUTPUT && one_stage(p))) /* a tied one gets more from the embedding */
        reduce_bucket(p, unit, true, false);
    reduce_bucket(p, unit, false, true);
}

/* After the last microbatch: over the copies. */
void plan_finish_parts(plan *p, const assay_param_spec *s)
{
    const plan_pieces owned = plan_pieces_of(p, s);
    const assay_group copies = assay_param_replica_group(s);
    const bool more = plan_replicas_group(p, s) != ASSAY_GROUP_COUNT;
    for (int i = 0; plan_group_size(p, copies) > 1 && i < owned.n; i++) {
        plan_add_collective(p, "all_reduce", s->name, copies, p->accumulated);
        plan_in(p, "send", plan_part(p, s, ".main_grad.sum", p->share.n_microbatches - 1, owned.shard[i]));
        plan_out(p, "recv", plan_part(p, s, more ? ".main_grad.dp_sum" : ".main_grad", -1, owned.shard[i]));
    }
}
