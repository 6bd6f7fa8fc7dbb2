/* Which kernels the engine says that it has, and on which device: what ran is held to it. */
#include "parity/run/engine.h"
#include <stdio.h>

assay_status parity_engine_learn(parity_engine *e)
{
    char capability[32] = "0.0";
    int major = 0, minor = 0;
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
    ASSAY_CHECK(sscanf(capability, "%d.%d", &major, &minor) == 2, ASSAY_FORMAT,
                "%s doctor: compute_capability: expected MAJOR.MINOR, found %s", e->program, capability);
    e->ladder.capability = 10 * major + minor;
    return ASSAY_OK;
}
