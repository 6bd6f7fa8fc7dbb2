/* Costs of calls: the formulas of the rows with the symbols of the call. */
#include "core/model/ops_cost.h"
#include "core/model/ops_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- symbols ------------------------------------------------------------------------------------------------ */
/* The value of an attribute, or what the row says for an absent one: a number, or another attribute's value. */
static bool attribute(const assay_op *op, const assay_op_given *given, int n, const char *name, int64_t *out)
{
    const assay_op_attr *row = assay_op_attr_find(op, name);
    for (int i = 0; i < n; i++)
        if (strcmp(given[i].name, name) == 0) {
            *out = given[i].value;
            return true;
        }
    if (row == NULL || row->otherwise == NULL)
        return false;
    if (assay_op_attr_find(op, row->otherwise))
        return attribute(op, given, n, row->otherwise, out);
    *out = strtoll(row->otherwise, NULL, 10);
    return true;
}

static assay_status bind_attributes(const assay_op *op, const assay_op_given *given, int n,
                                    assay_op_binding *b)
{
    for (int i = 0; i < assay_op_n_attrs(op); i++) {
        const assay_op_attr *row = &op->attrs[i];
        int64_t value;
        if (row->symbol == NULL)
            continue;
        ASSAY_CHECK(attribute(op, given, n, row->name, &value) && assay_op_bind(b, row->symbol, value),
                    ASSAY_INVALID_ARGUMENT, "%s: attribute %s: expected a value of %s, found none", op->name,
                    row->name, row->symbol);
    }
    return ASSAY_OK;
}

static const assay_op_operand *operand_of(const assay_op_operand *list, int n, const char *slot)
{
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].slot, slot) == 0)
            return &list[i];
    return NULL;
}

static bool match(const assay_op_slot *s, const assay_op_operand *v, bool one_row, assay_op_binding *b)
{
    const assay_op_binding before = *b;
    if (assay_op_match(b, s, v->shape, v->ndim))
        return true;
    if (!one_row || v->ndim != 1)
        return false;
    const int64_t row[] = {1, v->shape[0]};
    *b = before;
    return assay_op_match(b, s, row, 2);
}

/* Every slot that is there gives its symbols; false: one does not fit, whose name is in *slot.  one_row: a vector is a matrix of one
 * row, as a microbatch's counts [E] are where a row of the table has "B,E". */
static bool bind_slots(const assay_op *op, const assay_op_operand *list, int n, bool one_row,
                       assay_op_binding *b, const char **slot)
{
    for (int i = 0; i < assay_op_n_slots(op); i++) {
        const assay_op_operand *v = operand_of(list, n, op->slots[i].name);
        *slot = op->slots[i].name;
        if (v != NULL && !match(&op->slots[i], v, one_row, b))
            return false;
    }
    return true;
}

/* With the bracketed dimensions, else without: they have extent 1 then. */
static assay_status bind(const assay_op *op, const assay_op_given *given, int n_given,
                         const assay_op_operand *list, int n, assay_op_binding *b)
{
    const char *slot = "";
    *b = (assay_op_binding){.act = ASSAY_DTYPE_COUNT, .par = ASSAY_DTYPE_COUNT, .brackets = true};
    ASSAY_TRY(bind_attributes(op, given, n_given, b));
    const assay_op_binding before = *b;
    if (bind_slots(op, list, n, false, b, &slot))
        return ASSAY_OK;
    *b = before;
    b->brackets = false;
    if (!bind_slots(op, list, n, false, b, &slot)) {
        *b = before;
        b->brackets = false;
        ASSAY_CHECK(bind_slots(op, list, n, true, b, &slot), ASSAY_INVALID_ARGUMENT,
                    "%s: slot %s: the shape does not fit the row", op->name, slot);
    }
    int64_t known;
    if (!assay_op_symbol(b, "H", &known))
        (void)assay_op_bind(b, "H", 1);
    return ASSAY_OK;
}

/* --- pairs -------------------------------------------------------------------------------------------------- */
/* n*(n+1)/2 without leaving 64 bits on the way. */
static bool triangle(int64_t n, int64_t *out)
{
    return n % 2 == 0 ? assay_mul_i64(n / 2, n + 1, out) : assay_mul_i64(n, n / 2 + 1, out);
}

int64_t assay_op_causal_pairs(int64_t batch, int64_t seq, int64_t window)
{
    const int64_t growing = window > 0 && window < seq ? window : seq;
    int64_t pairs, rest;
    const bool ok = batch >= 0 && seq >= 0 && seq < INT64_MAX && triangle(growing, &pairs) &&
                    assay_mul_i64(seq - growing, growing, &rest) && assay_add_i64(pairs, rest, &pairs) &&
                    assay_mul_i64(pairs, batch, &pairs);
    return ok ? pairs : -1;
}

static assay_status bind_pairs(const assay_op *op, const assay_op_given *given, int n_given,
                               const assay_op_operand *list, int n, int64_t pairs, assay_op_binding *b)
{
    int64_t seq_q, seq_k, batch, window = 0;
    if (strstr(op->flops, "pairs") == NULL)
        return ASSAY_OK;
    const bool known = assay_op_symbol(b, "Sq", &seq_q) && assay_op_symbol(b, "Sk", &seq_k) &&
                       assay_op_symbol(b, "B", &batch) && attribute(op, given, n_given, "window", &window);
    ASSAY_CHECK(known, ASSAY_INVALID_ARGUMENT, "%s: nothing says the sizes of its mask", op->name);
    if (pairs < 0) {
        ASSAY_CHECK(seq_q == seq_k && operand_of(list, n, "first_key") == NULL, ASSAY_UNSUPPORTED,
                    "%s: pairs of a mask with documents or a part of the sequence (%" PRId64
                    " queries, %" PRId64 " keys) must be given",
                    op->name, seq_q, seq_k);
        pairs = assay_op_causal_pairs(batch, seq_q, window);
    }
    ASSAY_CHECK(pairs >= 0 && assay_op_bind(b, "pairs", pairs), ASSAY_INVALID_ARGUMENT,
                "%s: its pairs go beyond 64 bits", op->name);
    return ASSAY_OK;
}

/* --- bytes -------------------------------------------------------------------------------------------------- */
static assay_status evaluate(const assay_op *op, const assay_op_binding *b, const char *formula, int64_t *out)
{
    ASSAY_CHECK(assay_op_evaluate(b, formula, out), ASSAY_INVALID_ARGUMENT,
                "%s: %s: a symbol without value, or beyond 64 bits", op->name, formula);
    return ASSAY_OK;
}

/* Elements of a slot that a call touches: "weight: T*H" in the row, else all of them. */
static assay_status touched(const assay_op *op, const assay_op_binding *b, const assay_op_operand *v,
                            int64_t *elements)
{
    const size_t n = strlen(v->slot);
    const char *rule = op->touches;
    if (rule != NULL && strncmp(rule, v->slot, n) == 0 && strncmp(rule + n, ": ", 2) == 0)
        return evaluate(op, b, rule + n + 2, elements);
    ASSAY_CHECK(assay_shape_count(v->shape, v->ndim, elements), ASSAY_INVALID_ARGUMENT,
                "%s: slot %s: beyond 64 bits", op->name, v->slot);
    return ASSAY_OK;
}

static assay_status add_bytes(const assay_op *op, const assay_op_binding *b, const assay_op_operand *v,
                              int64_t *bytes)
{
    int64_t elements, moved;
    const assay_op_slot *out = assay_op_slot_find(op, v->slot, true);
    const int64_t times = out != NULL && out->role == ASSAY_SLOT_INOUT ? 2 : 1;
    ASSAY_CHECK(v->dtype < ASSAY_DTYPE_COUNT, ASSAY_INVALID_ARGUMENT, "%s: slot %s: no dtype", op->name,
                v->slot);
    ASSAY_TRY(touched(op, b, v, &elements));
    ASSAY_CHECK(assay_mul_i64(elements, times * assay_dtype_bytes(v->dtype), &moved) &&
                    assay_add_i64(*bytes, moved, bytes),
                ASSAY_INVALID_ARGUMENT, "%s: slot %s: beyond 64 bits", op->name, v->slot);
    return ASSAY_OK;
}

assay_status assay_op_cost_of(const assay_op *op, const assay_op_given *attrs, int n_attrs,
                              const assay_op_operand *operands, int n_operands, int64_t pairs,
                              assay_op_cost *out)
{
    assay_op_binding b;
    *out = (assay_op_cost){0};
    ASSAY_CHECK(op->flops != NULL, ASSAY_UNSUPPORTED, "%s: its row has no formula of its FLOPs", op->name);
    /* Pieces of collectives have names of their own and what they move is one number: the shapes say nothing more. */
    if (op->collective)
        b = (assay_op_binding){.act = ASSAY_DTYPE_COUNT, .par = ASSAY_DTYPE_COUNT};
    else
        ASSAY_TRY(bind(op, attrs, n_attrs, operands, n_operands, &b));
    ASSAY_TRY(bind_pairs(op, attrs, n_attrs, operands, n_operands, pairs, &b));
    ASSAY_TRY(evaluate(op, &b, op->flops, &out->flops));
    if (op->model_flops != NULL)
        ASSAY_TRY(evaluate(op, &b, op->model_flops, &out->model_flops));
    for (int i = 0; i < n_operands; i++)
        ASSAY_TRY(add_bytes(op, &b, &operands[i], &out->bytes));
    return ASSAY_OK;
}
