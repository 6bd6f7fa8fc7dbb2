/* What the trace gets of a call. */
#include "gpu/call_internal.h"

#include "core/base/text.h"
#include "gpu/check.h"
#include "gpu/fault.h"
#include "gpu/ladder.h"
#include <stdlib.h>
#include <string.h>

/* later: those that do not exist yet, or NULL. */
static assay_status write_slots(gpu_run *run, const gpu_call_operand *list, int n, const bool *later,
                                assay_trace_slot *slots, int *n_slots)
{
    for (int i = 0; i < n; i++) {
        ASSAY_CHECK(*n_slots < ASSAY_MAX_SLOTS, ASSAY_INTERNAL, "trace: more than %d slots", ASSAY_MAX_SLOTS);
        assay_trace_slot *s = &slots[*n_slots];
        assay_copy_text(s->slot, sizeof s->slot, list[i].slot);
        if (later == NULL || !later[i])
            ASSAY_TRY(gpu_trace_write(run, list[i].value, &s->tensor));
        (*n_slots)++;
    }
    return ASSAY_OK;
}

assay_status gpu_call_record_begin(gpu_run *run, gpu_resolved *c)
{
    memset(&c->record, 0, sizeof c->record);
    if (!c->recorded)
        return ASSAY_OK;
    assay_copy_text(c->record.op, sizeof c->record.op, c->o.op->name);
    assay_copy_text(c->record.instance, sizeof c->record.instance, c->instance);
    c->record.phase = run->phase;
    c->record.step = run->step;
    c->record.microbatch = run->microbatch;
    c->record.recompute = run->recompute;
    if (c->whole) {
        assay_copy_text(c->record.fused, sizeof c->record.fused, c->whole->o.op->name);
        c->record.fused_part = c->part;
    }
    return write_slots(run, c->in, c->n_in, c->made, c->record.inputs, &c->record.n_inputs);
}

static json_t *count_list(const int64_t *counts, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(counts[i]));
    return list;
}

static bool is_even(const int64_t *counts, int n)
{
    for (int i = 1; i < n; i++)
        if (counts[i] != counts[0])
            return false;
    return true;
}

/* A dtype that was not given is that of the tensor it is about. */
static const char *dtype_word(const gpu_resolved *c, const assay_op_attr *row)
{
    const gpu_value *v = strcmp(row->otherwise ? row->otherwise : "", "act") == 0
                             ? gpu_call_value_in(c->out, c->n_out, "y")
                             : gpu_call_value_in(c->in, c->n_in, "send");
    if (v == NULL)
        v = c->n_out > 0 ? c->out[0].value : NULL;
    return v ? assay_dtype_name(v->t.dtype) : NULL;
}

/* The attributes of the row that were given or that the kernel declares, in its order. */
static json_t *attributes(const gpu_run *run, const gpu_resolved *c, const gpu_declared *declared)
{
    const int ranks = c->o.op->collective ? run->comm.group[c->group].size : 0;
    const bool token_rows = strcmp(c->o.op->name, "all_to_all") == 0 || c->group == ASSAY_GROUP_ETP;
    json_t *attrs = json_object();
    for (int i = 0; i < assay_op_n_attrs(c->o.op); i++) {
        const assay_op_attr *row = &c->o.op->attrs[i];
        const gpu_attr *a = gpu_operand_attr(&c->o, row->name);
        const int64_t *list = strcmp(row->name, "counts") == 0 ? c->counts : c->recv_counts;
        json_t *v = NULL;
        if (row->type == ASSAY_ATTR_INTS && list && (token_rows || !is_even(list, ranks)))
            v = count_list(list, ranks);
        else if (row->type == ASSAY_ATTR_DTYPE && !a && strcmp(row->name, "dtype") == 0 && dtype_word(c, row))
            v = json_string(dtype_word(c, row));
        else if (!a && strcmp(row->name, "p_dtype") == 0 && declared->p_dtype)
            v = json_string(declared->p_dtype);
        else if (a && (row->type == ASSAY_ATTR_WORD || row->type == ASSAY_ATTR_DTYPE))
            v = json_string(a->word);
        else if (a && row->type == ASSAY_ATTR_DOUBLE)
            v = json_real(a->number);
        else if (a && row->type == ASSAY_ATTR_INT)
            v = json_integer(a->integer);
        else if (a && row->type == ASSAY_ATTR_BOOL)
            v = json_boolean(a->integer != 0);
        if (v)
            json_object_set_new(attrs, row->name, v);
    }
    if (json_object_size(attrs) > 0)
        return attrs;
    json_decref(attrs);
    return NULL;
}

/* What the fused kernel declares of this part's outputs.  That an input is stored before it is read is said by its record. */
static assay_status declare_part(const gpu_run *run, const gpu_resolved *c, gpu_declared *out)
{
    const gpu_operands *whole = &c->whole->o;
    assay_declaration part = {.n = 0};
    ASSAY_TRY(gpu_ladder_declare(&run->ctx, whole, c->whole->variant, out));
    for (int i = 0; i < c->n_out; i++) {
        assay_arith a =
            *assay_declaration_of(&out->arith, assay_op_part_slot(whole->op, c->part, c->out[i].slot));
        a.rounding &= ~(unsigned)(ASSAY_ROUND_RESIDUAL | ASSAY_ROUND_NORM);
        if (i == 0)
            part = assay_declaration_make(a);
        else
            ASSAY_TRY(assay_declaration_set(&part, c->out[i].slot, a));
    }
    out->arith = part;
    return ASSAY_OK;
}

static assay_status declare(const gpu_run *run, const gpu_resolved *c, gpu_declared *out)
{
    if (c->whole)
        return declare_part(run, c, out);
    if (c->o.op->collective)
        *out = gpu_call_collective_arith(run, c);
    else if (c->skipped)
        *out = (gpu_declared){.variant_name = "skipped", .arith.all = assay_arith_elementwise()};
    else
        return gpu_ladder_declare(&run->ctx, &c->o, c->variant, out);
    return ASSAY_OK;
}

assay_status gpu_call_record_end(gpu_run *run, gpu_resolved *c)
{
    if (!c->recorded)
        return ASSAY_OK;
    assay_trace_op *r = &c->record;
    gpu_declared declared;
    ASSAY_TRY(declare(run, c, &declared));
    r->variant = declared.variant;
    r->arith = declared.arith;
    assay_copy_text(r->variant_name, sizeof r->variant_name, declared.variant_name);
    if (c->o.op->collective) {
        const gpu_comm_group *g = &run->comm.group[c->group];
        assay_copy_text(r->group, sizeof r->group, assay_group_name(c->group));
        r->n_group_ranks = g->size;
        r->group_ranks = g->ranks;
    }
    for (int i = 0; i < c->n_in; i++)
        if (c->made[i])
            ASSAY_TRY(gpu_trace_write(run, c->in[i].value, &r->inputs[i].tensor));
    ASSAY_TRY(write_slots(run, c->out, c->n_out, NULL, r->outputs, &r->n_outputs));
    for (int i = 0; i < c->n_out; i++)
        r->substituted[i] = c->replaced[i];
    r->attrs = attributes(run, c, &declared);
    const assay_status st = assay_trace_write_op(run->trace, r);
    json_decref(r->attrs);
    return st;
}
