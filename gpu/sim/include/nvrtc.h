/* NVRTC's types; its functions are declared and refused by name when they are called: kernels are not compiled at run time. */
#ifndef ASSAY_SIM_NVRTC_H
#define ASSAY_SIM_NVRTC_H

#include "assay_sim.h"

typedef struct _nvrtcProgram *nvrtcProgram;
typedef enum {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_INVALID_OPTION = 5,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
    NVRTC_ERROR_INTERNAL_ERROR = 11
} nvrtcResult;

#define ASSAY_SIM_NVRTC(name, parameters)                                                                    \
    static inline nvrtcResult name parameters                                                                \
    {                                                                                                        \
        assay_sim_refuse(#name);                                                                             \
        return NVRTC_ERROR_INTERNAL_ERROR;                                                                   \
    }
ASSAY_SIM_NVRTC(nvrtcVersion, (int *, int *))
ASSAY_SIM_NVRTC(nvrtcGetNumSupportedArchs, (int *))
ASSAY_SIM_NVRTC(nvrtcGetSupportedArchs, (int *))
ASSAY_SIM_NVRTC(nvrtcCreateProgram,
                (nvrtcProgram *, const char *, const char *, int, const char *const *, const char *const *))
ASSAY_SIM_NVRTC(nvrtcDestroyProgram, (nvrtcProgram *))
ASSAY_SIM_NVRTC(nvrtcCompileProgram, (nvrtcProgram, int, const char *const *))
ASSAY_SIM_NVRTC(nvrtcGetPTXSize, (nvrtcProgram, size_t *))
ASSAY_SIM_NVRTC(nvrtcGetPTX, (nvrtcProgram, char *))
ASSAY_SIM_NVRTC(nvrtcGetCUBINSize, (nvrtcProgram, size_t *))
ASSAY_SIM_NVRTC(nvrtcGetCUBIN, (nvrtcProgram, char *))
ASSAY_SIM_NVRTC(nvrtcGetProgramLogSize, (nvrtcProgram, size_t *))
ASSAY_SIM_NVRTC(nvrtcGetProgramLog, (nvrtcProgram, char *))
ASSAY_SIM_NVRTC(nvrtcAddNameExpression, (nvrtcProgram, const char *))
ASSAY_SIM_NVRTC(nvrtcGetLoweredName, (nvrtcProgram, const char *, const char **))
#undef ASSAY_SIM_NVRTC

static inline const char *nvrtcGetErrorString(nvrtcResult result)
{
    return result == NVRTC_SUCCESS ? "NVRTC_SUCCESS" : "NVRTC is not modelled by the simulator";
}

#endif
