/* What of the engine ran, for its certificate: variants and arithmetic differ from call to call, by dtype, sizes and alignment, and
 * every call is judged by what it declared itself. */
#include "parity/certify/engine.h"

#include <stdlib.h>
#include <string.h>

/* The object of the list with these members, one more call of it. */
static assay_status count(json_t *list, json_t *row)
{
    size_t i;
    json_t *one;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(list != NULL && row != NULL, ASSAY_OUT_OF_MEMORY, st, done, "what ran");
    json_array_foreach(list, i, one)
    {
        json_t *calls = json_object_get(one, "calls");
        (void)json_object_set(row, "calls", calls);
        if (!json_equal(one, row))
            continue;
        (void)json_integer_set(calls, json_integer_value(calls) + 1);
        goto done;
    }
    ASSAY_CHECK_GOTO(json_object_set_new(row, "calls", json_integer(1)) == 0 &&
                         json_array_append(list, row) == 0,
                     ASSAY_OUT_OF_MEMORY, st, done, "what ran");
done:
    json_decref(row);
    return st;
}

static assay_status add_record(const engine_trial *t, const assay_trace_op *op, json_t *subject)
{
    json_t *declared = json_object_get(json_object_get(subject, "description"), "declared");
    char variant[16];
    snprintf(variant, sizeof variant, "k%d", op->variant);
    for (int k = 0; k < op->n_outputs; k++)
        ASSAY_TRY(count(
            declared, json_pack("{s:s, s:s, s:s, s:o}", "activations", t->act, "variant", variant, "output",
                                op->outputs[k].slot, "arithmetic",
                                assay_arith_to_json(assay_declaration_of(&op->arith, op->outputs[k].slot)))));
    return count(json_object_get(subject, "ran"),
                 json_pack("{s:s, s:s}", "activations", t->act, "variant", variant));
}

assay_status engine_note_ran(const engine_trial *t, const assay_trace *answer)
{
    for (int64_t i = 0; i < assay_trace_n_ops(answer, 0); i++) {
        const assay_trace_op *op = assay_trace_op_at(answer, 0, i);
        const certify_result *r = engine_result_of(t, op->op);
        if (r != NULL)
            ASSAY_TRY(add_record(t, op, r->subject));
    }
    return ASSAY_OK;
}

assay_status engine_check_variant(const engine_trial *t)
{
    const char *asked = t->o->variant;
    int top = 0;
    char *end = NULL;
    ASSAY_TRY(parity_engine_check_variant(t->e, strcmp(asked, CERTIFY_FASTEST) == 0 ? "" : asked));
    const long number = asked[0] == 'k' ? strtol(asked + 1, &end, 10) : -1;
    if (end == NULL || end == asked + 1 || *end != '\0')
        return ASSAY_OK; /* of families */
    for (int i = 0; i < t->n; i++) {
        const int n = (int)json_array_size(engine_variants_of(t, t->results[i].op->name));
        top = n - 1 > top ? n - 1 : top;
    }
    ASSAY_CHECK(number <= top, ASSAY_INVALID_ARGUMENT, "--variant %s: %s has k0 to k%d", asked,
                t->n == 1 ? t->results[0].op->name : "the engine", top);
    return ASSAY_OK;
}

json_t *engine_where(const parity_engine *e)
{
    json_t *where = certify_machine(e->name);
    static const char *const members[][2] = {{"device", "device"},
                                             {"capability", "compute_capability"},
                                             {"driver", "driver_version"},
                                             {"toolkit", "runtime_version"},
                                             {"cublaslt", "cublaslt_version"}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *value = json_object_get(e->doctor, members[i][1]);
        char text[160];
        if (json_is_true(json_object_get(e->doctor, "simulated")) || value == NULL)
            continue;
        if (json_is_string(value))
            snprintf(text, sizeof text, "%s", json_string_value(value));
        else
            snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
        (void)json_object_set_new(where, members[i][0], json_string(text));
    }
    return where;
}
