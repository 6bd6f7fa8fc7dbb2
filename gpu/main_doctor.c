/* What the engine runs on, as one JSON object. */
#include "gpu/ladder.h"
#include "gpu/main.h"

#include <stdlib.h>

assay_status gpu_doctor_verb(bool operations)
{
    gpu_ctx ctx;
    int driver = 0, runtime = 0, nccl = 0, devices = 0;
    ASSAY_TRY(gpu_ctx_init(&ctx, -1, 0));
    (void)cudaGetDeviceCount(&devices);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)ncclGetVersion(&nccl);
    char capability[32];
    snprintf(capability, sizeof capability, "%d.%d", ctx.sm_major, ctx.sm_minor);
    json_t *report = json_pack("{s:s, s:b, s:i, s:s, s:i, s:i, s:i, s:i, s:I, s:o}", "device",
                               ctx.device_name, "simulated", ctx.simulated, "devices", devices,
                               "compute_capability", capability, "sm_count", ctx.sm_count, "driver_version",
                               driver, "runtime_version", runtime, "nccl_version", nccl, "cublaslt_version",
                               (json_int_t)cublasLtGetVersion(), "variants", gpu_variants());
    if (report && ctx.simulated)
        json_object_set_new(report, "device_code", json_string(gpu_ladder_target()));
    if (report && operations)
        json_object_set_new(report, "operations", gpu_ladder_json());
    char *text = report ? json_dumps(report, JSON_INDENT(2)) : NULL;
    json_decref(report);
    gpu_ctx_destroy(&ctx);
    ASSAY_CHECK(text, ASSAY_OUT_OF_MEMORY, "doctor: report");
    puts(text);
    free(text);
    return ASSAY_OK;
}
