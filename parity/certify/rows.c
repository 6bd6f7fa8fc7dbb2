/* What the table of operations says of rows: whether those of a call can be computed without the others. */
#include "parity/certify/certify.h"

#include <string.h>

bool certify_has_rows(const assay_op *op, int slot)
{
    const char *shape = op->slots[slot].shape;
    return shape[0] == 'T' && (shape[1] == ',' || shape[1] == '\0');
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

bool certify_cuts_into_rows(const assay_op *op)
{
    static const char *const of_all_rows[] = {"router_aux_fwd", "router_aux_bwd", "router_drop",
                                              "permute_plan", "router_seq_aux_fwd"};
    for (size_t i = 0; i < sizeof of_all_rows / sizeof *of_all_rows; i++)
        if (strcmp(op->name, of_all_rows[i]) == 0)
            return false;
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        if (op->attrs[i].symbol != NULL && strcmp(op->attrs[i].symbol, "T") == 0)
            return false;
    for (int i = 0; i < assay_op_n_slots(op); i++)
        if (!certify_has_rows(op, i) && mentions(op->slots[i].shape, 'T'))
            return false;
    return true;
}
