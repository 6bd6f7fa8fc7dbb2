/* A row of the table of operations as a line of docs/OPS.md. */
#include "core/model/ops.h"

#include <stdio.h>

static const char *const class_words[] = {
    [ASSAY_CLASS_ACT] = "act", [ASSAY_CLASS_PAR] = "par",     [ASSAY_CLASS_F32] = "F32",
    [ASSAY_CLASS_F64] = "F64", [ASSAY_CLASS_I64] = "I64",     [ASSAY_CLASS_SAME] = "as",
    [ASSAY_CLASS_ATTR] = "=",  [ASSAY_CLASS_FLOAT] = "float", [ASSAY_CLASS_ANY] = "any",
};

typedef struct text {
    char *data;
    size_t used, capacity;
} text;

static void append(text *t, const char *piece)
{
    if (t->used < t->capacity)
        t->used += (size_t)snprintf(t->data + t->used, t->capacity - t->used, "%s", piece);
}

static void append_slots(text *t, const assay_op *op, assay_slot_role role)
{
    bool first = true;
    append(t, " ");
    for (int i = 0; i < assay_op_n_slots(op); i++) {
        const assay_op_slot *s = &op->slots[i];
        char piece[96];
        if (s->role != role)
            continue;
        const bool names_other = s->dtype == ASSAY_CLASS_SAME || s->dtype == ASSAY_CLASS_ATTR;
        snprintf(piece, sizeof piece, "%s%s%s %s%s%s [%s]", first ? "" : ", ", s->name,
                 s->optional ? "?" : "", class_words[s->dtype], s->dtype == ASSAY_CLASS_SAME ? " " : "",
                 names_other ? s->like : "", s->shape);
        append(t, piece);
        first = false;
    }
    append(t, first ? "|" : " |");
}

void assay_op_describe(const assay_op *op, char *out, size_t capacity)
{
    text t = {.data = out, .capacity = capacity};
    append(&t, "| `");
    append(&t, op->name);
    append(&t, "` |");
    append_slots(&t, op, ASSAY_SLOT_IN);
    append_slots(&t, op, ASSAY_SLOT_INOUT);
    append_slots(&t, op, ASSAY_SLOT_OUT);
    append(&t, " ");
    for (int i = 0; i < assay_op_n_attrs(op); i++) {
        const assay_op_attr *a = &op->attrs[i];
        append(&t, i ? ", " : "");
        append(&t, a->name);
        if (a->symbol) {
            append(&t, " (");
            append(&t, a->symbol);
            append(&t, ")");
        }
        if (a->words) {
            char words[64];
            snprintf(words, sizeof words, "%s", a->words);
            for (char *c = words; *c; c++)
                if (*c == '|')
                    *c = '/'; /* a bar would end the table's cell */
            append(&t, " ");
            append(&t, words);
        }
        if (a->otherwise) {
            append(&t, " = ");
            append(&t, a->otherwise);
        }
    }
    append(&t, op->attrs[0].name ? " |" : "|");
}
