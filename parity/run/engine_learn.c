/* Which kernels the engine says that it has, and on which device: what ran is held to it. */
#include "parity/run/engine.h"
#include <stdlib.h>
#include <string.h>

/* Highest kernel of a family among the operations; -1: none has it. */
static int highest_listed(const json_t *operations, const char *family)
{
    size_t i, k;
    const json_t *op, *rung;
    int highest = -1;
    json_array_foreach(operations, i, op)
    {
        const char *own = json_string_value(json_object_get(op, "family"));
        if (own == NULL || strcmp(own, family) != 0)
            continue;
        json_array_foreach(json_object_get(op, "variants"), k, rung)
        {
            const char *name = json_string_value(json_object_get(rung, "name"));
            const int number = name != NULL && name[0] == 'k' ? (int)strtol(name + 1, NULL, 10) : -1;
            highest = number > highest ? number : highest;
        }
    }
    return highest;
}

/* What --variant may ask for is what the list of operations has. */
static assay_status check_variants(const parity_engine *e)
{
    const char *family;
    const json_t *number;
    json_object_foreach(json_object_get(e->doctor, "variants"), family, number)
    {
        const int listed = highest_listed(e->ladder.operations, family);
        ASSAY_CHECK(json_integer_value(number) == listed, ASSAY_MISMATCH,
                    "%s doctor: variants: %s: expected k%d, the highest that an operation lists, found k%lld",
                    e->program, family, listed, (long long)json_integer_value(number));
    }
    return ASSAY_OK;
}

assay_status parity_engine_learn(parity_engine *e)
{
    char capability[32] = "0.0", *dot = capability, *end = capability;
    const assay_status st = parity_engine_operations(e, &e->ladder.operations);
    if (st != ASSAY_OK && json_object_get(e->doctor, "variants") == NULL) {
        json_decref(e->ladder.operations);
        e->ladder.operations = NULL;
        assay_error_clear();
        return ASSAY_OK;
    }
    ASSAY_TRY(st);
    ASSAY_TRY(assay_json_get_string(e->doctor, "compute_capability", true, "doctor", capability,
                                    sizeof capability));
    const long major = strtol(capability, &dot, 10), minor = *dot == '.' ? strtol(dot + 1, &end, 10) : -1;
    ASSAY_CHECK(dot > capability && major >= 0 && major < 1000 && minor >= 0 && minor < 10 && end > dot + 1 &&
                    *end == '\0',
                ASSAY_FORMAT, "%s doctor: compute_capability: expected MAJOR.MINOR, found %s", e->program,
                capability);
    e->ladder.capability = (int)(10 * major + minor);
    return check_variants(e);
}
