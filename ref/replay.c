/* Dispatch of ref_replay and its view of hostile inputs. */
#include "ref/replay.h"

#include "ref/replay_context.h"
#include <stdlib.h>
#include <string.h>

static const replay_row *find_op(const char *op)
{
    const replay_row *const tables[] = {replay_dense_table, replay_norm_table,   replay_attention_table,
                                        replay_qkv_table,   replay_mla_table,    replay_moe_table,
                                        replay_loss_table,  replay_foreign_table};
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (const replay_row *row = tables[t]; row->op; row++)
            if (strcmp(row->op, op) == 0)
                return row;
    return NULL;
}

bool ref_replay_knows(const char *op)
{
    return op && find_op(op);
}

/* Shape, count and storage of one value agree. */
static assay_status check_value(const char *op, const ref_value *v)
{
    int64_t count;
    ASSAY_CHECK(memchr(v->slot, 0, sizeof v->slot), ASSAY_INVALID_ARGUMENT,
                "%s: a slot name is not terminated", op);
    ASSAY_CHECK(v->ndim >= 0 && v->ndim <= ASSAY_MAX_DIMS, ASSAY_INVALID_ARGUMENT,
                "%s: slot %s: expected 0 to %d dimensions, found %d", op, v->slot, ASSAY_MAX_DIMS, v->ndim);
    ASSAY_CHECK(assay_shape_count(v->shape, v->ndim, &count), ASSAY_INVALID_ARGUMENT,
                "%s: slot %s: a negative extent or too many elements", op, v->slot);
    ASSAY_CHECK(count == v->count, ASSAY_INVALID_ARGUMENT,
                "%s: slot %s: the shape has %lld elements, %lld are there", op, v->slot, (long long)count,
                (long long)v->count);
    ASSAY_CHECK(count == 0 || (assay_dtype_is_float(v->dtype) ? v->value != NULL : v->ivalue != NULL),
                ASSAY_INVALID_ARGUMENT, "%s: slot %s (%s): no data", op, v->slot, assay_dtype_name(v->dtype));
    return ASSAY_OK;
}

/* The dtype in which the operation stores real numbers: that of its first real output, or input. */
static assay_dtype stored_dtype(const replay *r)
{
    for (int i = 0; i < r->n_candidate; i++)
        if (assay_dtype_is_float(r->candidate[i].dtype))
            return r->candidate[i].dtype;
    for (int i = 0; i < r->n_inputs; i++)
        if (assay_dtype_is_float(r->inputs[i].dtype))
            return r->inputs[i].dtype;
    return ASSAY_F64;
}

/* All outputs with the bounds of one arithmetic. */
static assay_status replay_with(replay r, replay_fn fn, const assay_arith *arith, ref_replay_result *result)
{
    *result = (ref_replay_result){.first_inadmissible = -1};
    r.arith = arith;
    r.result = result;
    ASSAY_TRY(ref_declared_of(&r.d, arith, r.op));
    ref_declared_store(&r.d, arith, stored_dtype(&r));
    const assay_status st = fn(&r);
    if (st != ASSAY_OK) {
        ref_replay_free(result);
        return assay_hop(st, __FILE__, __LINE__, __func__);
    }
    return ASSAY_OK;
}

/* Takes from `other` the outputs that declare its arithmetic; what they had before goes there. */
static void take_outputs(ref_replay_result *result, ref_replay_result *other,
                         const assay_declaration *declared, const assay_arith *arith)
{
    int choice = 0;
    for (int i = 0; i < result->n_outputs; i++) {
        ref_value *mine = &result->outputs[i], kept = *mine;
        const int own = choice;
        choice += mine->kind == REF_VALUE_CHOICE;
        if (!assay_arith_equal(assay_declaration_of(declared, mine->slot), arith))
            continue;
        *mine = other->outputs[i];
        other->outputs[i] = kept;
        if (mine->kind == REF_VALUE_CHOICE)
            result->choices[own] = other->choices[own];
    }
}

/* One account of all choices. */
static void sum_choices(ref_replay_result *result)
{
    for (int i = 0; i < result->n_choices; i++) {
        const ref_choices *c = &result->choices[i];
        result->n_decisions += c->n_decisions;
        result->n_ambiguous += c->n_ambiguous;
        if (i == 0 || (result->n_inadmissible == 0 && c->n_inadmissible > 0)) {
            result->first_inadmissible = c->first_inadmissible;
            result->decision_gap = c->decision_gap;
            result->n_experts = c->n_experts;
            result->n_shown = c->n_shown;
            memcpy(result->shown, c->shown, sizeof c->shown);
        }
        result->n_inadmissible += c->n_inadmissible;
    }
}

static bool declared_before(const assay_declaration *d, int k)
{
    bool before = assay_arith_equal(&d->output[k].arith, &d->all);
    for (int i = 0; i < k; i++)
        before = before || assay_arith_equal(&d->output[k].arith, &d->output[i].arith);
    return before;
}

assay_status ref_replay(const char *op, const json_t *attrs, const assay_declaration *declared,
                        const ref_value *inputs, int n_inputs, const ref_value *candidate, int n_candidate,
                        ref_replay_result *result)
{
    *result = (ref_replay_result){.first_inadmissible = -1};
    ASSAY_CHECK(op && declared && n_inputs >= 0 && n_candidate >= 0, ASSAY_INVALID_ARGUMENT,
                "ref_replay: no operation or no declared arithmetic");
    const replay_row *row = find_op(op);
    ASSAY_CHECK(row, ASSAY_NOT_FOUND, "no reference for operation '%s'", op);
    replay r = {.op = op,
                .attrs = attrs,
                .inputs = inputs,
                .n_inputs = n_inputs,
                .candidate = candidate,
                .n_candidate = n_candidate};
    for (int i = 0; i < n_inputs; i++)
        ASSAY_TRY(check_value(op, &inputs[i]));
    for (int i = 0; i < n_candidate; i++)
        ASSAY_TRY(check_value(op, &candidate[i]));
    ASSAY_TRY(replay_with(r, row->fn, &declared->all, result));
    for (int k = 0; k < declared->n; k++) {
        ref_replay_result other;
        if (declared_before(declared, k))
            continue;
        const assay_status st = replay_with(r, row->fn, &declared->output[k].arith, &other);
        if (st != ASSAY_OK) {
            ref_replay_free(result);
            return st;
        }
        take_outputs(result, &other, declared, &declared->output[k].arith);
        ref_replay_free(&other);
    }
    sum_choices(result);
    return ASSAY_OK;
}

void ref_replay_free(ref_replay_result *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_outputs; i++) {
        free(r->outputs[i].value);
        free(r->outputs[i].bound);
        free(r->outputs[i].ivalue);
    }
    *r = (ref_replay_result){.first_inadmissible = -1};
}
