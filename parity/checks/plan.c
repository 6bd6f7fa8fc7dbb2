/* The plan of a step: docs/OPS.md section 9 as a list. */
#include "parity/checks/plan.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { ITEM_KEY = ASSAY_NAME + 96, PLAN_MAX = 100000 /* numbers from a file never decide a loop */ };

typedef struct item {
    char op[48];
    char instance[ASSAY_NAME];
    assay_phase phase;
    int64_t wanted, found;
    int spare; /* legal beyond what is wanted */
} item;

/* Items of one rank, step and microbatch. */
typedef struct list {
    parity_map *map;
    int64_t n, capacity;
    item *items;
    assay_status st; /* of the first failure */
} list;

typedef struct plan {
    const assay_model_config *c;
    const assay_grid *g;
    const assay_train_options *o;
    assay_coords at;
    int tp, ep;
    bool sp, first, last, rows_split;
    list *l;
    char layer[48]; /* "decoder.layers.3." */
} plan;

/* --- list --------------------------------------------------------------------------------------------------- */

static void item_key(char out[ITEM_KEY], const char *op, const char *instance, assay_phase phase)
{
    snprintf(out, ITEM_KEY, "%s|%s|%d", op, instance, (int)phase);
}

static assay_status list_item(list *l, const char *op, const char *instance, assay_phase phase, item **out)
{
    char key[ITEM_KEY];
    item_key(key, op, instance, phase);
    int64_t at = parity_map_get(l->map, key);
    if (at < 0) {
        if (l->n == l->capacity) {
            const int64_t capacity = l->capacity ? 2 * l->capacity : 256;
            item *items = realloc(l->items, (size_t)capacity * sizeof *items);
            ASSAY_CHECK(items, ASSAY_OUT_OF_MEMORY, "plan of %lld operations", (long long)capacity);
            l->items = items;
            l->capacity = capacity;
        }
        at = l->n;
        ASSAY_TRY(parity_map_put(l->map, key, at));
        l->items[l->n] = (item){.phase = phase};
        snprintf(l->items[l->n].op, sizeof l->items[l->n].op, "%s", op);
        snprintf(l->items[l->n].instance, sizeof l->items[l->n].instance, "%s", instance);
        l->n++;
    }
    *out = &l->items[at];
    return ASSAY_OK;
}

static void want_op(plan *p, const char *op, const char *instance, assay_phase phase, int spare)
{
    item *it;
    if (p->l->st != ASSAY_OK)
        return;
    p->l->st = list_item(p->l, op, instance, phase, &it);
    if (p->l->st != ASSAY_OK)
        return;
    it->wanted += spare == 0;
    it->spare = spare > it->spare ? spare : it->spare;
}

static void instance_name(const plan *p, const char *name, char out[ASSAY_NAME])
{
    snprintf(out, ASSAY_NAME, "%s%s", p->layer, name);
}

static void forward(plan *p, const char *op, const char *name)
{
    char instance[ASSAY_NAME];
    instance_name(p, name, instance);
    want_op(p, op, instance, ASSAY_PHASE_FORWARD, false);
}

static void backward(plan *p, const char *op, const char *name)
{
    char instance[ASSAY_NAME];
    instance_name(p, name, instance);
    want_op(p, op, instance, ASSAY_PHASE_BACKWARD, false);
}

/* Forward and backward of a matrix product. */
static void linear(plan *p, const char *name, bool bias)
{
    forward(p, "linear_fwd", name);
    backward(p, "linear_bwd_input", name);
    backward(p, "linear_bwd_weight", name);
    if (bias)
        backward(p, "linear_bwd_bias", name);
}

static void grouped_linear(plan *p, const char *name)
{
    forward(p, "grouped_linear_fwd", name);
    backward(p, "grouped_linear_bwd_input", name);
    backward(p, "grouped_linear_bwd_weight", name);
}

static void both(plan *p, const char *fwd, const char *bwd, const char *name)
{
    forward(p, fwd, name);
    backward(p, bwd, name);
}

/* --- the model ---------------------------------------------------------------------------------------------- */

/* Input side of a column-parallel linear: all_gather and its reduce_scatter, or the all_reduce of the
 * gradient. */
static void column_input(plan *p, const char *gather, const char *reduce_grad)
{
    if (p->tp == 1)
        return;
    if (p->sp)
        both(p, "all_gather", "reduce_scatter", gather);
    else
        backward(p, "all_reduce", reduce_grad);
}

/* Output side of a row-parallel linear. */
static void row_output(plan *p, const char *reduce)
{
    if (p->tp == 1)
        return;
    if (p->sp)
        both(p, "reduce_scatter", "all_gather", reduce);
    else
        forward(p, "all_reduce", reduce);
}

static void attention(plan *p)
{
    both(p, "rmsnorm_fwd", "rmsnorm_bwd", "input_layernorm");
    column_input(p, "self_attention.gather", "self_attention.reduce_grad");
    linear(p, "self_attention.linear_qkv", p->c->add_qkv_bias);
    both(p, "qkv_split_fwd", "qkv_split_bwd", "self_attention.qkv_split");
    if (p->c->qk_layernorm) {
        both(p, "rmsnorm_fwd", "rmsnorm_bwd", "self_attention.q_layernorm");
        both(p, "rmsnorm_fwd", "rmsnorm_bwd", "self_attention.k_layernorm");
    }
    both(p, "rope_fwd", "rope_bwd", "self_attention.rope_q");
    both(p, "rope_fwd", "rope_bwd", "self_attention.rope_k");
    both(p, "attention_fwd", "attention_bwd", "self_attention.core_attention");
    linear(p, "self_attention.linear_proj", p->c->add_proj_bias);
    row_output(p, "self_attention.reduce");
    forward(p, "add", "self_attention.residual");
    backward(p, "add", "self_attention.residual_grad");
}

static void dense_mlp(plan *p)
{
    column_input(p, "mlp.gather", "mlp.reduce_grad");
    linear(p, "mlp.linear_fc1", p->c->add_mlp_bias);
    both(p, "swiglu_fwd", "swiglu_bwd", "mlp.activation");
    linear(p, "mlp.linear_fc2", p->c->add_mlp_bias);
    row_output(p, "mlp.reduce");
}

static void router(plan *p)
{
    linear(p, "mlp.router.gating", false);
    both(p, "router_fwd", "router_bwd", "mlp.router");
    if (p->o->moe_aux_loss_coeff == 0.0 && p->o->moe_z_loss_coeff == 0.0)
        return;
    forward(p, "router_aux_fwd", "mlp.router.aux");
    forward(p, "router_aux_loss", "mlp.router.aux_loss");
    backward(p, "router_aux_bwd", "mlp.router.aux");
    if (p->tp > 1 || (p->rows_split && p->g->p.data_parallel_size > 1))
        forward(p, "all_reduce", "mlp.router.aux_counts");
}

static void dispatch(plan *p)
{
    forward(p, "permute_plan", "mlp.permute_plan");
    both(p, "gather_rows", "combine_rows", "mlp.permute");
    both(p, "gather_rows", "gather_rows", "mlp.permute_probs");
    if (p->ep > 1) {
        char counts[ASSAY_NAME];
        instance_name(p, "mlp.dispatch_counts", counts); /* an engine may learn the counts another way */
        want_op(p, "all_gather", counts, ASSAY_PHASE_FORWARD, true);
        both(p, "all_to_all", "all_to_all", "mlp.dispatch");
        both(p, "all_to_all", "all_to_all", "mlp.dispatch_probs");
        both(p, "gather_rows", "gather_rows", "mlp.sort");
        both(p, "gather_rows", "gather_rows", "mlp.sort_probs");
    }
    grouped_linear(p, "mlp.experts.linear_fc1");
    both(p, "swiglu_fwd", "swiglu_bwd", "mlp.experts.activation");
    grouped_linear(p, "mlp.experts.linear_fc2");
    if (p->ep > 1) {
        both(p, "gather_rows", "gather_rows", "mlp.unsort");
        both(p, "all_to_all", "all_to_all", "mlp.combine");
    }
    both(p, "combine_rows", "gather_rows", "mlp.unpermute");
}

static void shared_experts(plan *p)
{
    if (p->tp > 1) {
        both(p, "all_gather", "reduce_scatter", "mlp.shared_experts.gather");
        both(p, "reduce_scatter", "all_gather", "mlp.shared_experts.reduce");
    }
    linear(p, "mlp.shared_experts.linear_fc1", false);
    both(p, "swiglu_fwd", "swiglu_bwd", "mlp.shared_experts.activation");
    linear(p, "mlp.shared_experts.linear_fc2", false);
    if (p->c->moe_shared_expert_gate) {
        linear(p, "mlp.shared_experts.gating", false);
        both(p, "sigmoid_gate_fwd", "sigmoid_gate_bwd", "mlp.shared_experts.gate");
    }
    forward(p, "add", "mlp.shared_experts.add");
}

static void moe_mlp(plan *p)
{
    if (p->tp > 1 && !p->sp) {
        both(p, "slice_rows", "all_gather", "mlp.scatter");
        both(p, "all_gather", "slice_rows", "mlp.gather_tokens");
    }
    router(p);
    dispatch(p);
    if (p->c->moe_shared_expert_intermediate_size > 0)
        shared_experts(p);
}

static void decoder_layer(plan *p, int64_t number)
{
    snprintf(p->layer, sizeof p->layer, "decoder.layers.%lld.", (long long)number);
    attention(p);
    both(p, "rmsnorm_fwd", "rmsnorm_bwd", "pre_mlp_layernorm");
    if (p->c->mlp[number] == ASSAY_MLP_MOE)
        moe_mlp(p);
    else
        dense_mlp(p);
    forward(p, "add", "mlp.residual");
    backward(p, "add", "mlp.residual_grad");
    p->layer[0] = '\0';
}

static void output_side(plan *p)
{
    both(p, "rmsnorm_fwd", "rmsnorm_bwd", "decoder.final_layernorm");
    column_input(p, "decoder.gather", "output_layer.reduce_grad");
    linear(p, "output_layer", false);
    forward(p, "cross_entropy_stats", "loss.stats");
    if (p->tp > 1)
        forward(p, "all_gather", "loss.gather");
    forward(p, "cross_entropy_loss", "loss");
    forward(p, "sum", "loss.sum");
    backward(p, "cross_entropy_bwd", "loss");
}

static assay_status plan_microbatch(plan *p)
{
    int64_t first, count;
    assay_grid_stage_layers(p->g, p->c, p->at.pp, 0, &first, &count);
    if (p->first) {
        both(p, "embedding_fwd", "embedding_bwd", "embedding");
        row_output(p, "embedding.reduce");
    } else {
        want_op(p, "recv", "*", ASSAY_PHASE_FORWARD, false);
        want_op(p, "send", "*", ASSAY_PHASE_BACKWARD, false);
    }
    for (int64_t l = first; l < first + count; l++)
        decoder_layer(p, l);
    if (p->last) {
        output_side(p);
    } else {
        want_op(p, "send", "*", ASSAY_PHASE_FORWARD, false);
        want_op(p, "recv", "*", ASSAY_PHASE_BACKWARD, false);
    }
    return p->l->st;
}

/* Sums and updates of the parameters; collectives of this phase depend on the buffers' form and are judged as
 * operations. */
static assay_status plan_optimizer(plan *p, const assay_model_spec *spec, int rank)
{
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *s = &spec->params[i];
        if (!assay_param_on_rank(s, p->g, p->c, rank))
            continue;
        /* A distributed optimizer holds a flat range of a parameter as up to three rectangles; that they tile
         * it is the assembling check's claim. */
        const int pieces = p->g->p.zero_stage > 0 ? 3 : 0;
        want_op(p, "adamw", s->name, ASSAY_PHASE_OPTIMIZER, pieces > 0 ? pieces : !s->trained);
        want_op(p, "sumsq", s->name, ASSAY_PHASE_OPTIMIZER,
                pieces > 0 ? pieces : !assay_param_counts_in_norm(s, p->g, p->c, rank));
    }
    return p->l->st;
}

/* --- comparing ---------------------------------------------------------------------------------------------- */

static assay_status list_create(list *l)
{
    memset(l, 0, sizeof *l);
    return parity_map_create(&l->map);
}

static void list_destroy(list *l)
{
    parity_map_destroy(l->map);
    free(l->items);
}

/* Operations that the plan of a microbatch does not speak of. */
static bool is_free(const assay_trace_op *op, int64_t microbatch)
{
    if (strcmp(op->op, "cast") == 0 || strcmp(op->op, "rope_table") == 0)
        return true;
    if (microbatch >= 0) /* gradients that meet inside an MoE layer; views */
        return op->phase == ASSAY_PHASE_BACKWARD && strcmp(op->op, "add") == 0 &&
               strstr(op->instance, "residual_grad") == NULL;
    return strcmp(op->op, "adamw") != 0 && strcmp(op->op, "sumsq") != 0;
}

static assay_status count_found(const assay_trace *t, int rank, int64_t step, int64_t microbatch, list *l)
{
    for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, rank, i);
        if (op->step != step || op->microbatch != microbatch || is_free(op, microbatch))
            continue;
        const bool pair = strcmp(op->op, "send") == 0 || strcmp(op->op, "recv") == 0;
        item *it;
        ASSAY_TRY(list_item(l, op->op, pair ? "*" : op->instance, op->phase, &it));
        it->found++;
    }
    return ASSAY_OK;
}

static assay_status judge_list(const list *l, const parity_result *base, int rank, int64_t step,
                               int64_t microbatch, parity_table *table)
{
    for (int64_t i = 0; i < l->n; i++) {
        const item *it = &l->items[i];
        parity_result r = *base;
        r.verdict = PARITY_PASS;
        r.phase = it->phase;
        r.step = step;
        r.microbatch = microbatch;
        r.rank = rank;
        r.count = it->found;
        snprintf(r.op, sizeof r.op, "%s", it->op);
        snprintf(r.instance, sizeof r.instance, "%s", it->instance);
        if (it->found >= it->wanted && it->found <= it->wanted + it->spare) {
            ASSAY_TRY(parity_table_merge(table, &r));
            continue;
        }
        parity_result_fail(
            &r,
            "%s operation: %s %s (%s) in step %lld, microbatch %lld on rank %d: expected %lld, "
            "found %lld",
            it->found < it->wanted ? "missing" : "extra", it->op, it->instance, assay_phase_name(it->phase),
            (long long)step, (long long)microbatch, rank, (long long)it->wanted, (long long)it->found);
        r.found = (double)it->found;
        r.expected = (double)it->wanted;
        ASSAY_TRY(parity_table_merge(table, &r));
    }
    return ASSAY_OK;
}

/* Which microbatches a rank ran in a step: flags [n], n = 1 + the largest number seen anywhere. */
static void seen_microbatches(const assay_trace *t, int rank, int64_t step, bool *seen, int64_t n)
{
    memset(seen, 0, (size_t)n * sizeof *seen);
    for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, rank, i);
        if (op->step == step && op->microbatch >= 0 && op->microbatch < n)
            seen[op->microbatch] = true;
    }
}

typedef struct extent {
    int64_t steps_first, steps_last, microbatches;
} extent;

static extent extent_of(const assay_trace *t)
{
    extent e = {INT64_MAX, -1, 0};
    for (int rank = 0; rank < assay_trace_world(t); rank++) {
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(t, rank, i);
            e.steps_first = op->step < e.steps_first ? op->step : e.steps_first;
            e.steps_last = op->step > e.steps_last ? op->step : e.steps_last;
            if (op->microbatch >= e.microbatches)
                e.microbatches = op->microbatch < INT64_MAX ? op->microbatch + 1 : INT64_MAX;
        }
    }
    return e;
}

/* Whether dp ranks share each microbatch's rows: rank 0's and another dp rank's microbatches are the same. */
static bool splits_rows(const assay_trace *t, const assay_grid *g, int64_t step, int64_t microbatches)
{
    const int other = g->p.data_parallel_size > 1 ? assay_grid_rank(g, 0, 0, 1, 0) : 0;
    bool result = false;
    for (int64_t i = 0; other > 0 && i < assay_trace_n_ops(t, other) && !result; i++) {
        const assay_trace_op *op = assay_trace_op_at(t, other, i);
        result = op->step == step && op->microbatch == 0;
    }
    return result && microbatches > 0;
}

static void plan_start(plan *p, const assay_grid *grid, int rank, list *l)
{
    p->l = l;
    p->g = grid;
    assay_grid_coords(grid, rank, &p->at);
    p->tp = grid->p.tensor_model_parallel_size;
    p->ep = grid->p.expert_model_parallel_size;
    p->sp = grid->p.sequence_parallel;
    p->first = p->at.pp == 0;
    p->last = p->at.pp == grid->p.pipeline_model_parallel_size - 1;
    p->layer[0] = '\0';
}

/* microbatch -1: the optimizer's part of the step. */
static assay_status compare_place(const assay_trace *t, plan *p, const assay_model_spec *spec, int rank,
                                  int64_t step, int64_t microbatch, const parity_result *base,
                                  parity_table *table)
{
    list l;
    ASSAY_TRY(list_create(&l));
    plan_start(p, p->g, rank, &l);
    assay_status st = microbatch >= 0 ? plan_microbatch(p) : plan_optimizer(p, spec, rank);
    if (st == ASSAY_OK)
        st = count_found(t, rank, step, microbatch, &l);
    if (st == ASSAY_OK)
        st = judge_list(&l, base, rank, step, microbatch, table);
    list_destroy(&l);
    return st;
}

static assay_status compare_step(const assay_trace *t, plan *p, const assay_model_spec *spec, int64_t step,
                                 int64_t microbatches, const parity_result *base, parity_table *table)
{
    bool *seen = calloc((size_t)microbatches + 1, sizeof *seen);
    bool *anywhere = calloc((size_t)microbatches + 1, sizeof *anywhere);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(seen && anywhere, ASSAY_OUT_OF_MEMORY, st, done, "microbatches");
    p->rows_split = splits_rows(t, p->g, step, microbatches);
    for (int rank = 0; rank < assay_trace_world(t) && st == ASSAY_OK; rank++) {
        seen_microbatches(t, rank, step, seen, microbatches);
        for (int64_t m = 0; m < microbatches && st == ASSAY_OK; m++) {
            anywhere[m] = anywhere[m] || seen[m];
            if (seen[m])
                st = compare_place(t, p, spec, rank, step, m, base, table);
        }
    }
    for (int64_t m = 0; m < microbatches && st == ASSAY_OK; m++) {
        parity_result r = *base;
        r.step = step;
        r.microbatch = m;
        r.verdict = PARITY_PASS;
        r.count = 1;
        snprintf(r.instance, sizeof r.instance, "microbatches");
        if (!anywhere[m])
            parity_result_fail(&r, "no rank ran microbatch %lld of step %lld", (long long)m, (long long)step);
        st = parity_table_merge(table, &r);
    }
done:
    free(anywhere);
    free(seen);
    return st;
}

static bool step_trains(const assay_trace *t, int64_t step)
{
    for (int rank = 0; rank < assay_trace_world(t); rank++) {
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(t, rank, i);
            if (op->step == step && strcmp(op->op, "adamw") == 0)
                return true;
        }
    }
    return false;
}

assay_status parity_plan_compare(const assay_trace *t, const assay_model_spec *spec, const assay_grid *grid,
                                 const assay_train_options *options, const parity_result *base,
                                 parity_table *table)
{
    plan p = {.c = &spec->config, .g = grid, .o = options};
    parity_result r = *base;
    const extent e = extent_of(t);
    if (grid->world != assay_trace_world(t) || e.microbatches == 0) {
        snprintf(r.instance, sizeof r.instance, "plan");
        parity_result_fail(&r, "the layout has %d ranks and at least one microbatch, the trace %d and %lld",
                           grid->world, assay_trace_world(t), (long long)e.microbatches);
        return parity_table_merge(table, &r);
    }
    if (e.microbatches > PLAN_MAX || e.steps_last - e.steps_first >= PLAN_MAX) {
        snprintf(r.instance, sizeof r.instance, "plan");
        parity_result_fail(&r, "more than %d steps or microbatches", (int)PLAN_MAX);
        return parity_table_merge(table, &r);
    }
    for (int64_t step = e.steps_first; step <= e.steps_last; step++) {
        ASSAY_TRY(compare_step(t, &p, spec, step, e.microbatches, base, table));
        if (!step_trains(t, step))
            continue;
        for (int rank = 0; rank < grid->world; rank++)
            ASSAY_TRY(compare_place(t, &p, spec, rank, step, -1, base, table));
    }
    return ASSAY_OK;
}
