/* Structures of NVML's interface that the emulator has. Sizes and offsets are asserted: they are the interface. */
#ifndef OFFPATH_GPU_EMULATOR_NVML_TYPES_H
#define OFFPATH_GPU_EMULATOR_NVML_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvml_handle *nvmlDevice_t, *nvmlGpuInstance_t, *nvmlComputeInstance_t, *nvmlEventSet_t;

enum { NVML_UUID_SIZE = 96, NVML_NAME_SIZE = 96, NVML_VERSION_SIZE = 80, NVML_BUS_ID_SIZE = 32 };

typedef struct {
    uint32_t start, size;
} nvmlGpuInstancePlacement_t, nvmlComputeInstancePlacement_t;

/* The counts that all versions of both profile structures carry, in one order. */
struct nvml_engines {
    uint32_t sms, copy, decoder, encoder, jpeg, ofa;
};

typedef struct {
    uint32_t id, isP2pSupported, sliceCount, instanceCount;
    struct nvml_engines engines;
    uint64_t memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    uint32_t version, id, isP2pSupported, sliceCount, instanceCount;
    struct nvml_engines engines;
    uint64_t memorySizeMB;
    char name[NVML_NAME_SIZE];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    uint32_t version, id, sliceCount, instanceCount;
    struct nvml_engines engines;
    uint64_t memorySizeMB;
    char name[NVML_NAME_SIZE];
    uint32_t capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;

typedef struct {
    nvmlDevice_t device;
    uint32_t id, profileId;
    nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    uint32_t version, id, sliceCount, instanceCount;
    struct nvml_engines engines;
    char name[NVML_NAME_SIZE];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
    uint32_t version, id, sliceCount, instanceCount;
    struct nvml_engines engines;
    char name[NVML_NAME_SIZE];
    uint32_t capabilities;
} nvmlComputeInstanceProfileInfo_v3_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    uint32_t id, profileId;
    nvmlComputeInstancePlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    struct nvml_engines engines;
    uint32_t gpuInstanceSliceCount, computeInstanceSliceCount;
    uint64_t memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    nvmlDevice_t device;
    uint64_t eventType, eventData;
    uint32_t gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    uint32_t pid;
    uint64_t usedGpuMemory;
    uint32_t gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    char busIdLegacy[16];
    uint32_t domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[NVML_BUS_ID_SIZE];
} nvmlPciInfo_t;

typedef struct {
    uint64_t total, free, used;
} nvmlMemory_t;

typedef struct {
    uint32_t version;
    uint64_t total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    uint64_t bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

#define NVML_VERSION_WORD(type, version) ((uint32_t)(sizeof(type) | (version) << 24U))

_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_t) == 48, "ABI");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 152, "ABI");
_Static_assert(offsetof(nvmlGpuInstanceProfileInfo_v2_t, name) == 56, "ABI");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v3_t) == 152, "ABI");
_Static_assert(offsetof(nvmlGpuInstanceProfileInfo_v3_t, name) == 48, "ABI");
_Static_assert(offsetof(nvmlGpuInstanceProfileInfo_v3_t, capabilities) == 144, "ABI");
_Static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24, "ABI");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 136, "ABI");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_v3_t) == 140, "ABI");
_Static_assert(sizeof(nvmlComputeInstanceInfo_t) == 32, "ABI");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "ABI");
_Static_assert(sizeof(nvmlEventData_t) == 32, "ABI");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "ABI");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "ABI");
_Static_assert(sizeof(nvmlMemory_t) == 24, "ABI");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "ABI");

#endif
