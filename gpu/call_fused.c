/* Several operations in one launch: the call of the whole, the records of the parts. */
#include "gpu/call_internal.h"

#include "gpu/check.h"
#include "gpu/fault.h"
#include "gpu/ladder.h"
#include "gpu/rules.h"
#include <stdlib.h>
#include <string.h>

/* Somebody looks at one part, or changes it: it has to be a call of its own. */
static bool watched(const gpu_run *run, const gpu_call_args *parts, int n)
{
    bool found = run->substitute != NULL && run->rules == NULL;
    for (int i = 0; i < n && !found; i++) {
        char instance[ASSAY_NAME];
        if (run->fault == NULL && run->rules == NULL)
            break;
        gpu_instance(run, parts[i].at, instance);
        found = gpu_fault_meets(run, parts[i].op, instance) || gpu_rules_meet(run, parts[i].op, instance);
    }
    return found;
}

/* Attributes of the whole, under its names; those of one name in two parts are one. */
static assay_status join_attrs(gpu_resolved *whole, const gpu_resolved *part, int k)
{
    for (int i = 0; i < part->o.n_attrs; i++) {
        gpu_attr own = part->o.attr[i], *a = &own;
        own.name = assay_op_part_attr(whole->o.op, k, own.name);
        ASSAY_CHECK(own.name, ASSAY_INTERNAL, "%s: no attribute for %s of %s", whole->o.op->name,
                    part->o.attr[i].name, part->o.op->name);
        const gpu_attr *before = gpu_operand_attr(&whole->o, a->name);
        ASSAY_CHECK(before == NULL || (before->number == a->number && before->integer == a->integer),
                    ASSAY_INTERNAL, "%s: %s: expected one value for all parts, found another for %s",
                    whole->o.op->name, a->name, part->o.op->name);
        if (before == NULL)
            whole->o.attr[whole->o.n_attrs++] = *a;
    }
    return ASSAY_OK;
}

/* Somebody looks at what one part makes for another. */
static bool looked_at(const gpu_run *run)
{
    return run->trace || run->fault || run->substitute;
}

/* An output that the whole need not have, a later part reads and nobody else looks at: the launch keeps it to itself. */
static bool stays_inside(const gpu_run *run, const assay_op *op, const gpu_resolved *parts, int n,
                         const char *slot)
{
    const assay_op_slot *row = assay_op_slot_find(op, slot, true);
    bool read = false;
    if (row == NULL || row->role != ASSAY_SLOT_OUT || !row->optional || looked_at(run))
        return false;
    for (int k = 1; k < n; k++)
        for (int i = 0; i < parts[k].n_in; i++)
            read = read || strcmp(assay_op_part_slot(op, k, parts[k].in[i].slot), slot) == 0;
    return read;
}

/* Operands of the whole from those of its parts; which inputs of a part the launch makes. */
static assay_status join(const gpu_run *run, gpu_resolved *whole, gpu_resolved *parts, int n)
{
    const assay_op *op = whole->o.op;
    for (int k = 0; k < n; k++) {
        gpu_resolved *c = &parts[k];
        const char *output;
        ASSAY_CHECK(assay_op_part_of(op, k) == c->o.op, ASSAY_INTERNAL, "%s: part %d: found %s", op->name, k,
                    c->o.op->name);
        for (int i = 0; i < c->n_in + c->n_out; i++) {
            const gpu_call_operand *v = i < c->n_in ? &c->in[i] : &c->out[i - c->n_in];
            const char *slot = assay_op_part_slot(op, k, v->slot);
            ASSAY_CHECK(slot, ASSAY_INTERNAL, "%s: no slot for %s of %s", op->name, v->slot, c->o.op->name);
            if (!stays_inside(run, op, parts, n, slot))
                gpu_operands_put(&whole->o, slot, v->value->t);
            if (i < c->n_in)
                c->made[i] = assay_op_part_source(op, k, v->slot, &output) >= 0;
        }
        ASSAY_TRY(join_attrs(whole, c, k));
        c->whole = whole;
        c->part = k;
    }
    whole->wish = -1;
    memcpy(whole->instance, parts->instance, sizeof whole->instance);
    return ASSAY_OK;
}

/* Whether the whole has a kernel for the call, and the parts would run those whose bits it has. */
static bool pays(const gpu_run *run, const gpu_resolved *whole, const gpu_resolved *parts, int n)
{
    bool all = gpu_ladder_choose(gpu_ladder(whole->o.op->name), &run->ctx, &whole->o, 1) > 0;
    for (int k = 0; k < n && all; k++) {
        const gpu_rung *rungs = gpu_ladder(parts[k].o.op->name);
        all = rungs[1 + gpu_ladder_choose(rungs, &run->ctx, &parts[k].o, 1)].run == NULL;
    }
    return all;
}

static assay_status run_apart(gpu_run *run, gpu_resolved *parts, int n)
{
    for (int k = 0; k < n; k++) {
        parts[k].whole = NULL;
        memset(parts[k].made, 0, sizeof parts[k].made);
        gpu_call_stay_in_place(&parts[k]);
        ASSAY_TRY(gpu_call_run(run, &parts[k]));
    }
    return ASSAY_OK;
}

/* Faults of the whole: the kernel gets another attribute than the parts' records say, or makes another output. */
static assay_status spoil(gpu_run *run, gpu_resolved *whole, const gpu_resolved *parts, int n)
{
    run->ran = whole->variant;
    for (int k = 0; k < n && run->fault; k++)
        for (int i = 0; i < parts[k].n_out; i++)
            ASSAY_TRY(gpu_fault_output(run, &whole->o, whole->instance,
                                       assay_op_part_slot(whole->o.op, k, parts[k].out[i].slot),
                                       parts[k].out[i].value, NULL, 1));
    run->ran = -1;
    return ASSAY_OK;
}

static assay_status run_together(gpu_run *run, gpu_resolved *whole, gpu_resolved *parts, int n)
{
    for (int k = 0; k < n; k++)
        ASSAY_TRY(gpu_call_record_begin(run, &parts[k]));
    if (run->fault)
        ASSAY_TRY(gpu_fault_attrs(run, &whole->o, whole->instance));
    ASSAY_TRY(gpu_call_observe(run, whole, 1, false));
    ASSAY_TRY(gpu_ladder_run(&run->ctx, &whole->o, 1, run->ctx.stream, &whole->variant));
    ASSAY_TRY(gpu_call_observe(run, whole, 1, true));
    ASSAY_TRY(spoil(run, whole, parts, n));
    for (int k = 0; k < n; k++) {
        parts[k].variant = whole->variant;
        ASSAY_TRY(gpu_call_finish_outputs(run, &parts[k]));
        ASSAY_TRY(gpu_call_record_end(run, &parts[k]));
    }
    return ASSAY_OK;
}

assay_status gpu_call_fused(gpu_run *run, const char *op, const gpu_call_args *parts, int n)
{
    const assay_op *row = assay_op_find(op);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(row && n == assay_op_n_parts(row), ASSAY_INTERNAL, "%s: %d parts", op, n);
    if (watched(run, parts, n)) {
        for (int k = 0; k < n; k++)
            ASSAY_TRY(gpu_call(run, &parts[k]));
        return ASSAY_OK;
    }
    gpu_resolved *c = calloc((size_t)n + 1, sizeof *c), *whole = c + n;
    ASSAY_CHECK(c, ASSAY_OUT_OF_MEMORY, "%s: %d parts", op, n);
    gpu_operands_init(&whole->o, row);
    for (int k = 0; k < n; k++)
        ASSAY_TRY_GOTO(gpu_call_prepare_part(run, &parts[k], looked_at(run), &c[k]), st, done);
    ASSAY_TRY_GOTO(join(run, whole, c, n), st, done);
    if (run->dry)
        gpu_call_need(run, whole);
    if (run->dry || !pays(run, whole, c, n))
        st = run_apart(run, c, n);
    else
        st = run_together(run, whole, c, n);
done:
    free(c);
    return st;
}
