/* Mutants as files, and whether one was found where it was planted. */
#include "parity/run/mutant.h"

#include <stdlib.h>
#include <string.h>

static const char *const kind_words[] = {"trace", "engine", "bitwise", "exact", "checkpoint"};

static assay_status read_kind(const json_t *root, const char *what, parity_mutant *out)
{
    char word[32];
    ASSAY_TRY(assay_json_get_string(root, "kind", true, what, word, sizeof word));
    for (int i = 0; i < 5; i++) {
        if (strcmp(word, kind_words[i]) == 0) {
            out->kind = (parity_mutant_kind)i;
            return ASSAY_OK;
        }
    }
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT,
               "%s: kind: expected trace, engine, bitwise, exact or checkpoint, found '%s'", what, word);
}

static assay_status read_check(const json_t *root, const char *what, parity_mutant *out)
{
    char word[32];
    ASSAY_TRY(assay_json_get_string(root, "expected_check", true, what, word, sizeof word));
    for (int k = 0; k < PARITY_CHECK_COUNT; k++) {
        if (strcmp(word, parity_check_name((parity_check)k)) == 0) {
            out->expected_check = (parity_check)k;
            return ASSAY_OK;
        }
    }
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "%s: expected_check: no check is called '%s'", what, word);
}

static assay_status read_precision(const json_t *root, const char *what, parity_mutant *out)
{
    char word[8] = "fp32";
    ASSAY_TRY(assay_json_get_string(root, "precision", false, what, word, sizeof word));
    const bool both = strcmp(word, "both") == 0;
    out->fp32 = both || strcmp(word, "fp32") == 0;
    out->bf16 = both || strcmp(word, "bf16") == 0;
    ASSAY_CHECK(out->fp32 || out->bf16, ASSAY_INVALID_ARGUMENT,
                "%s: precision: expected fp32, bf16 or both, found '%s'", what, word);
    return ASSAY_OK;
}

static assay_status read_place(const json_t *root, const char *what, parity_mutation *m)
{
    int64_t rank = 0;
    m->step = m->microbatch = -1;
    ASSAY_TRY(assay_json_get_string(root, "fault", true, what, m->kind, sizeof m->kind));
    ASSAY_TRY(assay_json_get_string(root, "op", false, what, m->op, sizeof m->op));
    ASSAY_TRY(assay_json_get_string(root, "instance", false, what, m->instance, sizeof m->instance));
    ASSAY_TRY(assay_json_get_string(root, "slot", false, what, m->slot, sizeof m->slot));
    ASSAY_TRY(assay_json_get_string(root, "value", false, what, m->value, sizeof m->value));
    ASSAY_TRY(assay_json_get_i64(root, "microbatch", false, -1, INT32_MAX, what, &m->microbatch));
    ASSAY_TRY(assay_json_get_bool(root, "input", false, what, &m->input));
    ASSAY_TRY(assay_json_get_i64(root, "rank", false, 0, ASSAY_MAX_WORLD - 1, what, &rank));
    ASSAY_TRY(assay_json_get_i64(root, "step", false, -1, INT32_MAX, what, &m->step));
    m->rank = (int)rank;
    return ASSAY_OK;
}

static assay_status read_mutant(const json_t *root, const char *what, parity_mutant *out)
{
    static const char *const allowed[] = {
        "name",  "kind",       "layout",      "expected_check", "expected_instance",
        "fault", "op",         "instance",    "slot",           "rank",
        "input", "step",       "expected_op", "diagnosis",      "planted",
        "value", "microbatch", "precision",   "expected_item",  "case",
        NULL};
    ASSAY_TRY(assay_json_only(root, allowed, what));
    ASSAY_TRY(assay_json_get_string(root, "name", true, what, out->name, sizeof out->name));
    ASSAY_TRY(assay_json_get_string(root, "planted", true, what, out->planted, sizeof out->planted));
    ASSAY_TRY(assay_json_get_string(root, "case", false, what, out->case_name, sizeof out->case_name));
    ASSAY_TRY(assay_json_get_string(root, "layout", true, what, out->layout, sizeof out->layout));
    ASSAY_TRY(assay_json_get_string(root, "expected_instance", true, what, out->expected_instance,
                                    sizeof out->expected_instance));
    ASSAY_TRY(
        assay_json_get_string(root, "expected_op", false, what, out->expected_op, sizeof out->expected_op));
    ASSAY_TRY(assay_json_get_string(root, "diagnosis", false, what, out->diagnosis, sizeof out->diagnosis));
    ASSAY_TRY(assay_json_get_string(root, "expected_item", false, what, out->expected_item,
                                    sizeof out->expected_item));
    ASSAY_TRY(read_precision(root, what, out));
    ASSAY_TRY(read_kind(root, what, out));
    ASSAY_TRY(read_check(root, what, out));
    ASSAY_TRY(read_place(root, what, &out->mutation));
    const bool changes = out->kind == PARITY_MUTANT_TRACE || out->kind == PARITY_MUTANT_BITWISE ||
                         out->kind == PARITY_MUTANT_EXACT;
    ASSAY_CHECK(!changes || parity_mutation_is_known(out->mutation.kind), ASSAY_INVALID_ARGUMENT,
                "%s: fault: no way to change a trace is called '%s'", what, out->mutation.kind);
    return ASSAY_OK;
}

assay_status parity_mutant_load(const char *path, parity_mutant *out)
{
    json_t *root = NULL;
    memset(out, 0, sizeof *out);
    ASSAY_TRY(assay_json_load(&root, path));
    const assay_status st = json_is_object(root) ? read_mutant(root, path, out)
                                                 : ASSAY_ERROR(ASSAY_FORMAT, "%s: expected an object", path);
    json_decref(root);
    return st;
}

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

void parity_mutant_judge(const parity_mutant *m, const parity_report *r, parity_kill *out)
{
    memset(out, 0, sizeof *out);
    parity_claim_init(&out->by);
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *x = parity_report_at(r, i);
        if (x->verdict != PARITY_FAIL || x->check != m->expected_check)
            continue;
        const bool first = out->n_failed++ == 0;
        const bool place =
            starts_with(x->instance, m->expected_instance) || starts_with(x->tensor, m->expected_instance);
        const bool item = m->expected_item[0] == '\0' || strcmp(x->tensor, m->expected_item) == 0;
        const bool op = m->expected_op[0] == '\0' || strcmp(x->op, m->expected_op) == 0;
        const bool word = m->diagnosis[0] == '\0' || strstr(x->diagnosis, m->diagnosis) != NULL;
        /* Whole tensors downstream of a fault all differ: one of them must be the expected one. */
        const bool counts =
            first || (m->expected_check == PARITY_CHECK_WHOLE && !out->named && place && op && item && word);
        if (!counts)
            continue;
        out->caught = true;
        out->named = place && op && item && word;
        out->by = *x;
    }
}
