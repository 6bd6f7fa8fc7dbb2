/* Laws of the table of random requests: what certify and the local check ask is every operation with every attribute. */
#include "parity/checks/request.h"
#include "tests/support/parity.h"

enum { VALUES = 8, OPERATIONS = 256 };

/* What the requests hold of one operation. */
typedef struct seen {
    const assay_op *op;
    char values[ASSAY_OP_ATTRS][VALUES][40]; /* of an attribute, the first that differ */
    int n_values[ASSAY_OP_ATTRS];
    bool present[ASSAY_OP_SLOTS], absent[ASSAY_OP_SLOTS]; /* inputs */
} seen;

static seen all[OPERATIONS];
static int n_all;

static seen *of(const char *name)
{
    for (int i = 0; i < n_all; i++)
        if (strcmp(all[i].op->name, name) == 0)
            return &all[i];
    cr_assert_lt(n_all, OPERATIONS);
    all[n_all].op = assay_op_find(name);
    cr_assert_not_null(all[n_all].op, "%s", name);
    return &all[n_all++];
}

static void note_value(seen *s, int a, const assay_trace_op *asked)
{
    const assay_op_attr *row = &s->op->attrs[a];
    const json_t *value = json_object_get(asked->attrs, row->name);
    char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) : NULL;
    const char *now = text != NULL ? text : row->otherwise;
    char plain[40] = "";
    if (now != NULL && now[0] == '"')
        snprintf(plain, sizeof plain, "%.*s", (int)strlen(now) - 2, now + 1);
    else if (now != NULL)
        snprintf(plain, sizeof plain, "%s", now);
    int k = 0;
    while (k < s->n_values[a] && strcmp(s->values[a][k], plain) != 0)
        k++;
    if (k == s->n_values[a] && k < VALUES)
        snprintf(s->values[a][s->n_values[a]++], sizeof plain, "%s", plain);
    free(text);
}

static void note_inputs(seen *s, const assay_trace_op *asked)
{
    bool here[ASSAY_OP_SLOTS] = {false};
    for (int i = 0; i < asked->n_inputs; i++)
        here[assay_op_slot_find(s->op, asked->inputs[i].slot, false) - s->op->slots] = true;
    for (int i = 0; i < assay_op_n_slots(s->op); i++) {
        s->present[i] = s->present[i] || here[i];
        s->absent[i] = s->absent[i] || !here[i];
    }
}

static void look(void)
{
    char dir[256];
    int rank = 0;
    parity_ask q = {.act = ASSAY_F32, .world = 1, .ranks = &rank};
    json_t *header = json_pack("{s:s, s:s}", "engine", "request", "precision", "fp32");
    must(assay_trace_writer_open(&q.w, fresh_path(dir, "table"), 0, 1, header, false));
    json_decref(header);
    q.tier = "exact";
    parity_ask_lattice(&q);
    parity_ask_random(&q, PARITY_ZERO_MEAN);
    parity_ask_sweep(&q, PARITY_ZERO_MEAN);
    must(q.st);
    must(assay_trace_end_step(q.w));
    must(assay_trace_writer_close(q.w));
    assay_trace_writer_destroy(q.w);
    json_decref(q.attrs);
    assay_trace *t = open_trace(dir);
    for (int64_t i = 0; i < assay_trace_n_ops(t, 0); i++) {
        const assay_trace_op *asked = assay_trace_op_at(t, 0, i);
        seen *s = of(asked->op);
        for (int a = 0; a < assay_op_n_attrs(s->op); a++)
            if (s->op->attrs[a].type != ASSAY_ATTR_DOUBLE || !parity_asked_on_lattice(asked))
                note_value(s, a, asked);
        note_inputs(s, asked);
    }
    assay_trace_close(t);
    remove_path(dir);
}

/* What an engine declares in its answer, and nobody asks. */
static bool is_declared(const assay_op_attr *row)
{
    return strcmp(row->name, "p_dtype") == 0;
}

/* A kernel that takes an attribute for a constant is found by its second value alone.  Real numbers of lattice inputs do not count: they are
 * powers of two, and 0 where something else would not be exact. */
Test(random_table, every_attribute_has_two_values_and_every_word)
{
    look();
    cr_assert_gt(n_all, 70);
    for (int i = 0; i < n_all; i++)
        for (int a = 0; a < assay_op_n_attrs(all[i].op); a++) {
            const assay_op_attr *row = &all[i].op->attrs[a];
            const int n = all[i].n_values[a];
            if (is_declared(row))
                continue;
            cr_expect_geq(n, 2, "%s: %s is always '%s'", all[i].op->name, row->name, all[i].values[a][0]);
            for (const char *w = row->words; w != NULL && *w != '\0'; w += strcspn(w, "|"), w += *w == '|') {
                bool any = false;
                for (int k = 0; k < n; k++)
                    any = any || (strncmp(all[i].values[a][k], w, strcspn(w, "|")) == 0 &&
                                  strlen(all[i].values[a][k]) == strcspn(w, "|"));
                cr_expect(any, "%s: %s is never '%.*s'", all[i].op->name, row->name, (int)strcspn(w, "|"), w);
            }
        }
}

Test(random_table, every_optional_input_is_there_and_is_not)
{
    look();
    for (int i = 0; i < n_all; i++)
        for (int k = 0; k < assay_op_n_slots(all[i].op); k++) {
            const assay_op_slot *row = &all[i].op->slots[k];
            if (row->role == ASSAY_SLOT_OUT)
                continue;
            cr_expect(all[i].present[k], "%s: input %s is never there", all[i].op->name, row->name);
            cr_expect(!row->optional || all[i].absent[k], "%s: optional input %s is always there",
                      all[i].op->name, row->name);
        }
}
