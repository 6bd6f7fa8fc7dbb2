/* The functions of the CUDA runtime that a library under trial uses, and what its device says of itself. */
#include "parity/certify/device.h"

#include <dlfcn.h>
#include <string.h>

enum { NON_BLOCKING = 1, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, PROPERTIES = 16384 };

static void *find(void *library, void *runtime, const char *name)
{
    void *symbol = dlsym(library, name);
    return symbol == NULL && runtime != NULL ? dlsym(runtime, name) : symbol;
}

static assay_status find_functions(certify_device *d, void *library, void *runtime)
{
    void *symbol;
#define DEVICE_FIND(member, function, parameters)                                                            \
    symbol = find(library, runtime, function);                                                               \
    ASSAY_CHECK(                                                                                             \
        symbol != NULL, ASSAY_UNSUPPORTED,                                                                   \
        "memory: device: neither the library nor what it was linked with has " function                      \
        ": link the CUDA runtime dynamically (-cudart shared) or name one with --cuda-runtime FILE");        \
    memcpy(&d->member, &symbol, sizeof symbol);
    DEVICE_FUNCTION_MAP(DEVICE_FIND)
    DEVICE_FIND(error_name, "cudaGetErrorName", )
#undef DEVICE_FIND
    return ASSAY_OK;
}

void device_watch(certify_device *d, void *library)
{
    void *reports = dlsym(library, "assay_sim_reports"), *last = dlsym(library, "assay_sim_last_report");
    void *set_private = dlsym(library, "assay_sim_set_device_private");
    memset(d, 0, sizeof *d);
    if (reports == NULL || last == NULL)
        return;
    d->checks_races = dlsym(library, "__tsan_read4") != NULL; /* which that simulator alone defines */
    memcpy(&d->set_private, &set_private, sizeof set_private);
    memcpy(&d->reports, &reports, sizeof reports);
    memcpy(&d->last_report, &last, sizeof last);
}

assay_status device_open(certify_device *d, void *library, const char *runtime)
{
    void *file = NULL;
    device_watch(d, library);
    if (runtime[0] != '\0') {
        file = dlopen(runtime, RTLD_NOW | RTLD_LOCAL);
        ASSAY_CHECK(file != NULL, ASSAY_NOT_FOUND, "--cuda-runtime: %s", dlerror());
    }
    ASSAY_TRY(find_functions(d, library, file));
    int error = d->stream_create(&d->stream, NON_BLOCKING);
    if (error == 0)
        error = d->stream_create(&d->other, NON_BLOCKING);
    ASSAY_CHECK(error == 0, ASSAY_UNSUPPORTED,
                "memory: device: no device answers: cudaStreamCreateWithFlags: %s", d->error_name(error));
    return ASSAY_OK;
}

assay_status device_json(const certify_device *d, json_t **out)
{
    static char properties[PROPERTIES]; /* larger than any version's */
    int major = 0, minor = 0, driver = 0, runtime = 0;
    char capability[32], driver_text[32], runtime_text[32];
    const bool known = d->properties(properties, 0) == 0 && d->attribute(&major, CAPABILITY_MAJOR, 0) == 0 &&
                       d->attribute(&minor, CAPABILITY_MINOR, 0) == 0 && d->driver_version(&driver) == 0 &&
                       d->runtime_version(&runtime) == 0;
    ASSAY_CHECK(known, ASSAY_UNSUPPORTED, "memory: device: the device does not say what it is");
    snprintf(capability, sizeof capability, "%d.%d", major, minor);
    snprintf(driver_text, sizeof driver_text, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    snprintf(runtime_text, sizeof runtime_text, "CUDA %d.%d", runtime / 1000, runtime % 1000 / 10);
    properties[255] = '\0';
    *out = json_pack("{s:s, s:s, s:s, s:s}", "device", properties, "capability", capability, "driver",
                     driver_text, "toolkit", runtime_text);
    ASSAY_CHECK(*out != NULL, ASSAY_UNSUPPORTED, "memory: device: its name is not UTF-8");
    return ASSAY_OK;
}

bool device_reported(const certify_device *d, int64_t before, char *text, size_t capacity)
{
    if (d->reports == NULL || d->reports() == before)
        return false;
    d->last_report(text, capacity);
    return true;
}
