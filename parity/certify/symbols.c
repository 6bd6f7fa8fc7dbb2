/* Symbols in the table's texts. */
#include "parity/certify/symbols.h"

#include <stdio.h>
#include <string.h>

void certify_symbol_of(const assay_op_slot *row, int d, char out[8])
{
    const char *p = row->shape;
    out[0] = '\0';
    if (strpbrk(p, "[(") != NULL)
        return;
    for (; d > 0 && *p != '\0'; d--) {
        p += strcspn(p, ",");
        p += *p == ',';
    }
    const size_t n = strcspn(p, ",");
    if (n > 0 && n < 8 && strcspn(p, "*+/") >= n) {
        memcpy(out, p, n);
        out[n] = '\0';
    }
}

bool certify_is_number(const assay_op_slot *row, int d)
{
    char symbol[8];
    certify_symbol_of(row, d, symbol);
    return symbol[0] != '\0' && strspn(symbol, "0123456789") == strlen(symbol);
}

bool certify_slot_has_symbol(const assay_op_slot *row, const char *symbol)
{
    const size_t n = strlen(symbol);
    for (const char *p = row->shape; *p != '\0'; p += strcspn(p, ","), p += *p == ',')
        if (strncmp(p, symbol, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return true;
    return false;
}

bool certify_symbol_is_shared(const assay_op *op, int slot, const char *symbol)
{
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        if (op->attrs[i].symbol != NULL && strcmp(op->attrs[i].symbol, symbol) == 0)
            return true;
    for (int i = 0; i < assay_op_n_slots(op); i++)
        if (i != slot && certify_slot_has_symbol(&op->slots[i], symbol))
            return true;
    return false;
}

/* Whether the symbol stands in a text of symbols ("T,H" or "H"). */
static bool mentions(const char *text, char symbol)
{
    for (const char *p = text; *p != '\0'; p++) {
        const bool begins = p == text || strchr(",; :*+([/", p[-1]) != NULL;
        if (*p == symbol && begins && (p[1] == '\0' || strchr(",; )]*+/", p[1]) != NULL))
            return true;
    }
    return false;
}

bool certify_slot_has_rows(const assay_op_slot *row)
{
    return row->shape[0] == 'T' && (row->shape[1] == ',' || row->shape[1] == '\0');
}

bool certify_sums_rows(const assay_op *op, const char *slot)
{
    const size_t n = strlen(slot);
    for (const char *p = op->sums; *p != '\0'; p += strcspn(p, ";"), p += strspn(p, "; "))
        if (strncmp(p, slot, n) == 0 && p[n] == ':') {
            char sums[64] = "";
            snprintf(sums, sizeof sums, "%.*s", (int)strcspn(p + n + 1, ";"), p + n + 1);
            return mentions(sums, 'T');
        }
    return false;
}

bool certify_has_own_rows(const assay_op *op)
{
    static const char *const of_all_rows[] = {"router_aux_fwd",     "router_aux_bwd",
                                              "router_drop",        "permute_plan",
                                              "router_seq_aux_fwd", "router_balanced_seq_fwd"};
    bool any = false;
    for (size_t i = 0; i < sizeof of_all_rows / sizeof *of_all_rows; i++)
        if (strcmp(op->name, of_all_rows[i]) == 0)
            return false;
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        if (op->attrs[i].symbol != NULL && strcmp(op->attrs[i].symbol, "T") == 0)
            return false;
    for (int i = 0; i < assay_op_n_slots(op); i++) {
        const assay_op_slot *s = &op->slots[i];
        if (!certify_slot_has_rows(s) && mentions(s->shape, 'T'))
            return false;
        any =
            any || (s->role != ASSAY_SLOT_IN && certify_slot_has_rows(s) && !certify_sums_rows(op, s->name));
    }
    return any;
}

/* The symbol of the sequences whose counts the slot has; "": it has none. */
static void sequences_of(const assay_op_slot *row, char out[8])
{
    out[0] = '\0';
    if (row->role == ASSAY_SLOT_IN && row->dtype == ASSAY_CLASS_I64 && !certify_slot_has_rows(row) &&
        strchr(row->shape, ',') != NULL)
        certify_symbol_of(row, 0, out);
}

bool certify_rows_are_interleaved(const assay_op *op)
{
    char symbol[8] = "";
    for (int i = 0; i < assay_op_n_slots(op) && symbol[0] == '\0'; i++)
        sequences_of(&op->slots[i], symbol);
    return symbol[0] != '\0';
}

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y != 0) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

int64_t certify_cut(const assay_op *op, const assay_op_binding *binding, int64_t rows)
{
    int64_t unit = 1;
    for (int i = 0; i < assay_op_n_slots(op); i++) {
        char symbol[8];
        int64_t n;
        sequences_of(&op->slots[i], symbol);
        if (symbol[0] != '\0' && assay_op_symbol(binding, symbol, &n) && n > 0)
            unit = common_multiple(unit, n);
    }
    return rows / 2 / unit * unit;
}
