/* Which kernels the engine says that it has, and on which device: what ran is held to it. */
#include "parity/run/engine.h"
#include <stdlib.h>

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
    return ASSAY_OK;
}
