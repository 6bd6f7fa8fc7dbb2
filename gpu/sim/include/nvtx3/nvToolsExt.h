/* NVTX: names of ranges for a profiler.  Nothing is recorded. */
#ifndef ASSAY_SIM_NVTX3_NVTOOLSEXT_H
#define ASSAY_SIM_NVTX3_NVTOOLSEXT_H

#include <stddef.h>
#include <stdint.h>

#define NVTX_VERSION 3
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE sizeof(nvtxEventAttributes_t)

typedef uint64_t nvtxRangeId_t;
typedef struct nvtxDomainRegistration_st *nvtxDomainHandle_t;
typedef enum nvtxColorType_t { NVTX_COLOR_UNKNOWN = 0, NVTX_COLOR_ARGB = 1 } nvtxColorType_t;
typedef enum nvtxMessageType_t { NVTX_MESSAGE_UNKNOWN = 0, NVTX_MESSAGE_TYPE_ASCII = 1 } nvtxMessageType_t;
typedef enum nvtxPayloadType_t {
    NVTX_PAYLOAD_UNKNOWN = 0,
    NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 = 1,
    NVTX_PAYLOAD_TYPE_INT64 = 2,
    NVTX_PAYLOAD_TYPE_DOUBLE = 3
} nvtxPayloadType_t;
typedef struct nvtxEventAttributes_v2 {
    uint16_t version, size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved0;
    union {
        uint64_t ullValue;
        int64_t llValue;
        double dValue;
    } payload;
    int32_t messageType;
    union {
        const char *ascii;
    } message;
} nvtxEventAttributes_t;

static inline int nvtxRangePushA(const char *message)
{
    (void)message;
    return 0;
}
static inline int nvtxRangePushEx(const nvtxEventAttributes_t *attributes)
{
    (void)attributes;
    return 0;
}
static inline int nvtxRangePop(void)
{
    return 0;
}
static inline void nvtxMarkA(const char *message)
{
    (void)message;
}
static inline nvtxRangeId_t nvtxRangeStartA(const char *message)
{
    (void)message;
    return 0;
}
static inline void nvtxRangeEnd(nvtxRangeId_t id)
{
    (void)id;
}
static inline void nvtxNameOsThreadA(uint32_t thread, const char *name)
{
    (void)thread;
    (void)name;
}
#define nvtxRangePush nvtxRangePushA
#define nvtxRangeStart nvtxRangeStartA
#define nvtxMark nvtxMarkA
#define nvtxNameOsThread nvtxNameOsThreadA

#endif
