/* What a fused operation does: its parts, and how their slots are called in the whole. */
#include "core/model/ops.h"

#include <string.h>

int assay_op_n_parts(const assay_op *op)
{
    int n = 0;
    while (n < ASSAY_OP_PARTS && op->parts[n].op)
        n++;
    return n;
}

const assay_op *assay_op_part_of(const assay_op *op, int part)
{
    return part >= 0 && part < assay_op_n_parts(op) ? assay_op_find(op->parts[part].op) : NULL;
}

/* "y=residual z=w": what stands behind "y="; its length in *n.  NULL: y is not listed. */
static const char *listed(const char *names, const char *name, size_t *n)
{
    const size_t length = strlen(name);
    for (const char *at = names; at && *at; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, name, length) == 0 && at[length] == '=') {
            *n = strcspn(at + length + 1, " ");
            return at + length + 1;
        }
    return NULL;
}

/* The name in the whole. */
static const char *renamed(const assay_op *op, int part, const char *own, size_t *n)
{
    const char *name = listed(op->parts[part].names, own, n);
    if (name == NULL)
        *n = strlen(own);
    return name ? name : own;
}

const char *assay_op_part_slot(const assay_op *op, int part, const char *recorded)
{
    const assay_op_slot *row = assay_op_slot_find(assay_op_part_of(op, part), recorded, false);
    size_t n;
    if (row && row->role == ASSAY_SLOT_INOUT && listed(op->parts[part].names, recorded, &n) == NULL)
        recorded = row->name; /* "dgamma_in" */
    const char *name = renamed(op, part, recorded, &n);
    for (int i = 0; i < ASSAY_OP_SLOTS && op->slots[i].name; i++)
        if (strncmp(op->slots[i].name, name, n) == 0 && op->slots[i].name[n] == '\0')
            return op->slots[i].name;
    return NULL;
}

const char *assay_op_part_attr(const assay_op *op, int part, const char *own)
{
    size_t n;
    const char *name = renamed(op, part, own, &n);
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        if (strlen(op->attrs[i].name) == n && strncmp(op->attrs[i].name, name, n) == 0)
            return op->attrs[i].name;
    return NULL;
}

int assay_op_part_source(const assay_op *op, int part, const char *input, const char **output)
{
    const char *whole = assay_op_part_slot(op, part, input);
    for (int k = part - 1; whole && k >= 0; k--) {
        const assay_op *before = assay_op_part_of(op, k);
        for (int i = 0; i < ASSAY_OP_SLOTS && before->slots[i].name; i++) {
            const char *own = before->slots[i].role != ASSAY_SLOT_IN
                                  ? assay_op_part_slot(op, k, before->slots[i].name)
                                  : NULL;
            if (own && strcmp(own, whole) == 0) {
                *output = before->slots[i].name;
                return k;
            }
        }
    }
    return -1;
}
