/* Operands by name. */
#include "gpu/operands.h"

#include <stdlib.h>
#include <string.h>

void gpu_operands_init(gpu_operands *o, const assay_op *op)
{
    memset(o, 0, sizeof *o);
    o->op = op;
}

int gpu_operands_index(const gpu_operands *o, const char *slot)
{
    for (int i = 0; i < ASSAY_OP_SLOTS && o->op->slots[i].name; i++)
        if (strcmp(o->op->slots[i].name, slot) == 0)
            return i;
    return -1;
}

void gpu_operands_put(gpu_operands *o, const char *slot, gpu_tensor t)
{
    const int i = gpu_operands_index(o, slot);
    if (i >= 0)
        o->slot[i] = t;
}

gpu_tensor gpu_operand(const gpu_operands *o, const char *slot)
{
    const int i = gpu_operands_index(o, slot);
    return i < 0 ? gpu_tensor_none() : o->slot[i];
}

const int64_t *gpu_operand_host(const gpu_operands *o, const char *slot)
{
    const int i = gpu_operands_index(o, slot);
    return i < 0 ? NULL : o->host[i];
}

const gpu_attr *gpu_operand_attr(const gpu_operands *o, const char *name)
{
    for (int i = 0; i < o->n_attrs; i++)
        if (strcmp(o->attr[i].name, name) == 0)
            return &o->attr[i];
    return NULL;
}

/* What the row says for an attribute that was not given; "" when the row demands it (the call was checked). */
static const char *otherwise(const gpu_operands *o, const char *name)
{
    const assay_op_attr *row = assay_op_attr_find(o->op, name);
    return row && row->otherwise ? row->otherwise : "";
}

double gpu_operand_double(const gpu_operands *o, const char *name)
{
    const gpu_attr *a = gpu_operand_attr(o, name);
    return a ? a->number : strtod(otherwise(o, name), NULL);
}

int64_t gpu_operand_int(const gpu_operands *o, const char *name)
{
    const gpu_attr *a = gpu_operand_attr(o, name);
    const char *other = otherwise(o, name);
    if (a == NULL && assay_op_attr_find(o->op, other))
        return gpu_operand_int(o, other);
    return a ? a->integer : strtoll(other, NULL, 10);
}

bool gpu_operand_bool(const gpu_operands *o, const char *name)
{
    const gpu_attr *a = gpu_operand_attr(o, name);
    return a ? a->integer != 0 : strcmp(otherwise(o, name), "true") == 0;
}

int gpu_operand_word(const gpu_operands *o, const char *name)
{
    const gpu_attr *a = gpu_operand_attr(o, name);
    const assay_op_attr *row = assay_op_attr_find(o->op, name);
    const char *word = a ? a->word : otherwise(o, name);
    int index = 0;
    for (const char *c = row ? row->words : ""; *c; index++) {
        const size_t n = strcspn(c, "|");
        if (strlen(word) == n && strncmp(c, word, n) == 0)
            return index;
        c += n + (c[n] == '|' ? 1 : 0);
    }
    return -1;
}

assay_status gpu_operands_from_json(gpu_operands *o, const json_t *attrs)
{
    for (int i = 0; i < assay_op_n_attrs(o->op); i++) {
        const assay_op_attr *row = &o->op->attrs[i];
        gpu_attr *a = &o->attr[o->n_attrs];
        const json_t *v = json_object_get(attrs, row->name);
        int index;
        if (v == NULL || json_is_null(v))
            continue;
        memset(a, 0, sizeof *a);
        a->name = row->name;
        a->number = json_number_value(v);
        a->integer = json_is_boolean(v) ? json_is_true(v) : (int64_t)json_integer_value(v);
        a->word = json_string_value(v);
        if (row->type == ASSAY_ATTR_WORD || row->type == ASSAY_ATTR_DTYPE) {
            ASSAY_TRY(assay_op_attr_word(o->op, attrs, row->name, &index));
            a->integer = index;
        }
        o->n_attrs++;
    }
    return ASSAY_OK;
}
