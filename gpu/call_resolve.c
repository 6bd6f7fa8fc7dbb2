/* The arguments of a call become inputs, outputs and attributes of its row. */
#include "gpu/call_internal.h"

#include "core/base/text.h"
#include "gpu/check.h"
#include <string.h>

static assay_status bad_name(const gpu_resolved *c, const char *name)
{
    ASSAY_FAIL(ASSAY_INTERNAL, "%s %s: no slot or attribute is called %s", c->o.op->name, c->args->at, name);
}

/* A name of at most 20 letters, and "" or "_in". */
static void put_slot(char out[ASSAY_SLOT_NAME], const char *slot, const char *suffix)
{
    const size_t n = assay_copy_text(out, 21, slot);
    assay_copy_text(out + n, ASSAY_SLOT_NAME - n, suffix);
}

static assay_status add(gpu_call_operand *list, int *n, const char *slot, const char *suffix, gpu_value *v)
{
    ASSAY_CHECK(*n < GPU_CALL_ARGS, ASSAY_LIMIT, "%s: more than %d slots", slot, GPU_CALL_ARGS);
    put_slot(list[*n].slot, slot, suffix);
    list[(*n)++].value = v;
    return ASSAY_OK;
}

static const gpu_arg *find_arg(const gpu_call_args *args, const char *name, const char *suffix)
{
    const size_t n = strlen(name);
    for (int i = 0; i < GPU_CALL_ARGS && args->arg[i].name; i++)
        if (strncmp(args->arg[i].name, name, n) == 0 && strcmp(args->arg[i].name + n, suffix) == 0)
            return &args->arg[i];
    return NULL;
}

/* Sorts the arguments into inputs, outputs and attributes. */
assay_status gpu_call_look_up(gpu_run *run, const gpu_call_args *args, gpu_resolved *c)
{
    const assay_op *op = assay_op_find(args->op);
    ASSAY_CHECK(op, ASSAY_INTERNAL, "%s: not in the table of operations", args->op);
    c->args = args;
    c->group = args->group;
    c->counts = args->counts;
    c->recv_counts = args->recv_counts;
    gpu_operands_init(&c->o, op);
    if (run->trace || run->fault || run->substitute || run->rules || run->observer)
        gpu_instance(run, args->at, c->instance);
    for (int i = 0; i < GPU_CALL_ARGS && args->arg[i].name; i++) {
        const gpu_arg *a = &args->arg[i];
        const assay_op_slot *in = assay_op_slot_find(op, a->name, false),
                            *out = assay_op_slot_find(op, a->name, true);
        if (assay_op_attr_find(op, a->name)) {
            c->o.attr[c->o.n_attrs++] = (gpu_attr){a->name, a->number, a->integer, a->word};
            continue;
        }
        if (!in && !out)
            return bad_name(c, a->name);
        if (a->value == NULL)
            continue;
        if (in && in->role == ASSAY_SLOT_INOUT)
            continue; /* "x_in" comes with its "x" */
        if (in)
            ASSAY_TRY(add(c->in, &c->n_in, a->name, "", a->value));
        if (out && out->role == ASSAY_SLOT_INOUT) {
            const gpu_arg *before = find_arg(args, a->name, "_in");
            ASSAY_TRY(add(c->in, &c->n_in, a->name, "_in", before ? before->value : a->value));
        }
        if (out)
            ASSAY_TRY(add(c->out, &c->n_out, a->name, "", a->value));
    }
    return ASSAY_OK;
}

gpu_value *gpu_call_value_in(const gpu_call_operand *list, int n, const char *slot)
{
    const size_t length = strlen(slot);
    for (int i = 0; i < n; i++)
        if (strncmp(list[i].slot, slot, length) == 0 &&
            (list[i].slot[length] == '\0' || list[i].slot[length] == '.'))
            return list[i].value;
    return NULL;
}

/* The dtype that the table gives an output. */
static assay_status output_dtype(const gpu_run *run, const gpu_resolved *c, const assay_op_slot *s,
                                 assay_dtype *out)
{
    const gpu_value *like = s->like ? gpu_call_value_in(c->in, c->n_in, s->like) : NULL;
    const gpu_attr *a = s->like ? gpu_operand_attr(&c->o, s->like) : NULL;
    const bool backward = run->phase == ASSAY_PHASE_BACKWARD;
    *out = assay_op_dtype(c->o.op, run->recipe, s->dtype, backward);
    switch (s->dtype) {
    case ASSAY_CLASS_F64:
        *out = ASSAY_F64;
        return ASSAY_OK;
    case ASSAY_CLASS_I64:
        *out = ASSAY_I64;
        return ASSAY_OK;
    case ASSAY_CLASS_ATTR:
        return a ? assay_dtype_from_name(a->word, out) : ASSAY_OK;
    case ASSAY_CLASS_SAME:
    case ASSAY_CLASS_ANY:
        *out = like ? like->t.dtype : *out;
        return ASSAY_OK;
    case ASSAY_CLASS_F32:
    case ASSAY_CLASS_ACT:
    case ASSAY_CLASS_PAR:
    case ASSAY_CLASS_FLOAT:
        break;
    }
    return ASSAY_OK;
}

/* What the in-out slot was before, where that is another value. */
static const gpu_value *before_of(const gpu_resolved *c, const gpu_call_operand *out)
{
    char in[ASSAY_SLOT_NAME];
    put_slot(in, out->slot, "_in");
    const gpu_value *v = gpu_call_value_in(c->in, c->n_in, in);
    return v == out->value ? NULL : v;
}

void gpu_call_stay_in_place(gpu_resolved *c)
{
    for (int i = 0; i < c->n_out; i++) {
        const gpu_value *before = before_of(c, &c->out[i]);
        if (before)
            c->out[i].value->t = before->t;
    }
    gpu_call_fill_operands(c);
}

/* Memory, name and phase for what is only described; an updated value belongs to the present phase from now on. */
assay_status gpu_call_make_outputs(gpu_run *run, bool apart, gpu_resolved *c)
{
    for (int i = 0; i < c->n_out; i++) {
        gpu_value *v = c->out[i].value;
        const assay_op_slot *s = assay_op_slot_find(c->o.op, c->out[i].slot, true);
        assay_dtype dtype;
        if (v->arena == NULL)
            continue;
        const gpu_value *before = apart ? NULL : before_of(c, &c->out[i]);
        ASSAY_TRY(output_dtype(run, c, s, &dtype));
        if (before)
            gpu_value_place(v, dtype, before->t.data);
        else
            ASSAY_TRY(gpu_value_make(v, dtype));
        if (v->name[0] == '\0')
            gpu_value_name(run, v, c->args->at, s->name);
        else
            gpu_value_touch(run, v);
    }
    return ASSAY_OK;
}

void gpu_call_fill_operands(gpu_resolved *c)
{
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < (k ? c->n_out : c->n_in); i++) {
            const gpu_call_operand *v = k ? &c->out[i] : &c->in[i];
            const int index = gpu_operands_index(&c->o, v->slot);
            if (index < 0) /* "x_in", and pieces "send.1": the launch of the list knows them */
                continue;
            c->o.slot[index] = v->value->t;
            c->o.host[index] = v->value->host;
        }
}
