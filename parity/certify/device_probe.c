/* The probe of a library's own device: the engine of the same tier is asked what the device's units and functions do, and the declared
 * arithmetic is held to it. */
#include "parity/certify/probe.h"
#include "parity/certify/ranks.h"

#include "parity/run/engine.h"
#include <string.h>

/* The engine has to answer from the device that the library runs on. */
static assay_status same_device(const certify_options *o, const char *device)
{
    char found[256] = "";
    parity_engine e;
    ASSAY_TRY(parity_engine_find(o->engine, o->program[0] != '\0' ? o->program : NULL, &e));
    assay_status st = assay_json_get_string(e.doctor, "device", true, "doctor", found, sizeof found);
    if (st == ASSAY_OK && (strcmp(e.name, o->engine) != 0 || strncmp(found, device, strlen(device)) != 0))
        st = ASSAY_ERROR(ASSAY_MISMATCH, "%s answers from %s (%s), the library runs on %s (%s)", e.program,
                         found, e.name, device, o->engine);
    parity_engine_free(&e);
    return st;
}

/* The arithmetic of the answers of one dtype in a folder. */
static assay_status hold(const char *folder, const char *act, const certify_probe *p, certify_result *r)
{
    char path[ASSAY_PATH];
    assay_trace *trace = NULL;
    snprintf(path, sizeof path, "%.900s/answer.%s", folder, act);
    ASSAY_TRY(assay_trace_open(&trace, path, false));
    probe_hold(p, trace, r);
    assay_trace_close(trace);
    return ASSAY_OK;
}

/* A collective has a folder for each number of ranks. */
static assay_status hold_all(const char *work, const char *act, const certify_probe *p, certify_result *r)
{
    char folder[ASSAY_PATH];
    if (!r->op->collective)
        return hold(work, act, p, r);
    for (const int *n = certify_ranks; *n > 0; n++) {
        certify_ranks_path(folder, work, *n);
        if (*n > 1 || strcmp(r->op->name, "send") != 0)
            ASSAY_TRY(hold(folder, act, p, r));
    }
    return ASSAY_OK;
}

assay_status certify_probe_device(const certify_options *o, const char *work, const char *tier,
                                  const char *device, certify_result *r)
{
    certify_options asked = *o;
    certify_probe probe;
    snprintf(asked.engine, sizeof asked.engine, "%s", tier);
    assay_status st = same_device(&asked, device);
    if (st == ASSAY_OK)
        st = probe_run(&asked, work, PROBE_STRIDE, &probe);
    if (st != ASSAY_OK) {
        r->board.trial[CERTIFY_PROBE].calls++;
        certify_bad(&r->board, CERTIFY_PROBE,
                    "the device was not probed: no engine of tier %s answers: %.300s", tier,
                    assay_error_message());
        assay_error_clear();
        return ASSAY_OK;
    }
    json_object_set_new(r->where, "probe", probe_json(&probe));
    const json_t *dtypes = json_object_get(json_object_get(r->subject, "description"), "dtypes");
    for (size_t i = 0; i < json_array_size(dtypes); i++)
        ASSAY_TRY(hold_all(work, json_string_value(json_array_get(dtypes, i)), &probe, r));
    return ASSAY_OK;
}
