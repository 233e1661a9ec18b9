/* libnvidia-ml: devices, whole GPUs and MIG devices. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml_internal.h"

enum { MOST_PROCESSES = EMU_CLIENTS, TEXT = 96 };

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(nvmlReturn_t);
    NEEDS(nvml_is_initialized(), NVML_ERROR_UNINITIALIZED);
    NEEDS(count != NULL, NVML_ERROR_INVALID_ARGUMENT);
    TRY(nvml_enter());
    *count = emu_state()->settings.gpu_count;
    return nvml_leave(NVML_SUCCESS);
}

/* -- handles -------------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    ENTER(nvmlReturn_t);
    NEEDS(nvml_is_initialized(), NVML_ERROR_UNINITIALIZED);
    NEEDS(device != NULL && index < emu_state()->settings.gpu_count, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(!emu_state()->gpus[index].is_lost, NVML_ERROR_GPU_IS_LOST);
    *device = nvml_handle(NVML_DEVICE, index, 0, 0);
    return NVML_SUCCESS;
}

static bool has_uuid(const char *text, const char *prefix, const uint8_t uuid[16])
{
    char own[TEXT];
    emu_uuid_text(own, sizeof own, prefix, uuid);
    return strcmp(own, text) == 0;
}

/* Under the lock. */
static nvmlDevice_t mig_device_with(uint32_t gpu, const char *text)
{
    uint8_t uuid[16];
    for (uint32_t i = 0; i < EMU_INSTANCES * EMU_COMPUTE; i++) {
        const struct emu_instance *instance = &nvml_seen(gpu)->instances[i / EMU_COMPUTE];
        const struct emu_compute *compute = &instance->compute[i % EMU_COMPUTE];
        if (instance->generation == 0 || compute->generation == 0)
            continue;
        emu_mig_uuid(gpu, instance->id, compute->id, uuid);
        if (has_uuid(text, "MIG-", uuid))
            return nvml_handle(NVML_MIG_DEVICE, gpu, instance->generation, compute->generation);
    }
    return NULL;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    uint8_t own[16];
    ENTER(nvmlReturn_t);
    NEEDS(nvml_is_initialized(), NVML_ERROR_UNINITIALIZED);
    NEEDS(uuid != NULL && device != NULL, NVML_ERROR_INVALID_ARGUMENT);
    TRY(nvml_enter());
    nvmlDevice_t found = NULL;
    for (uint32_t gpu = 0; found == NULL && gpu < emu_state()->settings.gpu_count; gpu++) {
        emu_gpu_uuid(gpu, own);
        found = has_uuid(uuid, "GPU-", own) ? nvml_handle(NVML_DEVICE, gpu, 0, 0) : mig_device_with(gpu, uuid);
    }
    if (found != NULL)
        *device = found;
    return nvml_leave(found != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *busId, nvmlDevice_t *device)
{
    char own[TEXT];
    ENTER(nvmlReturn_t);
    NEEDS(nvml_is_initialized(), NVML_ERROR_UNINITIALIZED);
    NEEDS(busId != NULL && device != NULL, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t gpu = 0; gpu < emu_state()->settings.gpu_count; gpu++) {
        emu_bus_id(own, sizeof own, gpu);
        /* 00000000:17:00.0, with a domain of four digits, or without one */
        if (strcasecmp(busId, own) == 0 || strcasecmp(busId, own + 4) == 0 || strcasecmp(busId, own + 9) == 0) {
            *device = nvml_handle(NVML_DEVICE, gpu, 0, 0);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* -- what a device is ----------------------------------------------------------------------------------------------- */

static const struct emu_profile *profile_of(const struct nvml_target *target)
{
    return &emu_model_of(target->gpu)->profiles[target->instance->profile];
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    struct nvml_target target;
    uint8_t bytes[16];
    char text[TEXT];
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(device, &target));
    if (target.compute != NULL)
        emu_mig_uuid(target.gpu, target.instance->id, target.compute->id, bytes);
    else
        emu_gpu_uuid(target.gpu, bytes);
    emu_uuid_text(text, sizeof text, target.compute != NULL ? "MIG-" : "GPU-", bytes);
    return nvml_leave(nvml_copy_text(uuid, length, text));
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    struct nvml_target target;
    char text[NVML_NAME_SIZE];
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(device, &target));
    emu_device_name(text, sizeof text, target.gpu, target.instance, target.compute);
    return nvml_leave(nvml_copy_text(name, length, text));
}

void nvml_pci_info(nvmlPciInfo_t *pci, uint32_t bus, uint32_t id)
{
    memset(pci, 0, sizeof *pci);
    emu_bus_text(pci->busId, sizeof pci->busId, bus);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%.12s", pci->busId + 4);
    pci->bus = bus;
    pci->pciDeviceId = pci->pciSubSystemId = id;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(device, &target));
    if (pci == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    nvml_pci_info(pci, emu_bus(target.gpu), emu_model_of(target.gpu)->pci_id);
    return nvml_leave(NVML_SUCCESS);
}

/* Not the index, as on real machines: the last GPU has minor 0. */
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_device(device, &target));
    if (minor != NULL)
        *minor = emu_state()->settings.gpu_count - 1 - target.gpu;
    return nvml_leave(minor != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(device, &target));
    if (index != NULL)
        *index = target.compute != NULL ? target.compute->index : target.gpu;
    return nvml_leave(index != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(device, &target));
    if (major == NULL || minor == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    *major = emu_model_of(target.gpu)->major;
    *minor = emu_model_of(target.gpu)->minor;
    return nvml_leave(NVML_SUCCESS);
}

static nvmlReturn_t answer(nvmlDevice_t device, unsigned *into, unsigned value)
{
    struct nvml_target target;
    TRY(nvml_enter_device(device, &target));
    if (into != NULL)
        *into = value;
    return nvml_leave(into != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
    ENTER(nvmlReturn_t);
    return answer(device, mode, 1);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    ENTER(nvmlReturn_t);
    return answer(device, mode, 0);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER(nvmlReturn_t);
    TRY(answer(device, current, 1));
    return answer(device, pending, 1);
}

/* -- memory --------------------------------------------------------------------------------------------------------- */

static nvmlReturn_t memory_of(nvmlDevice_t device, uint64_t *total, uint64_t *used)
{
    struct nvml_target target;
    TRY(nvml_enter_any(device, &target));
    bool is_mig = target.instance != NULL;
    *total = is_mig ? emu_profile_bytes(target.gpu, profile_of(&target)) : emu_gpu_bytes(target.gpu);
    *used = emu_used(target.gpu, is_mig ? target.instance->generation : 0);
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    uint64_t total, used;
    ENTER(nvmlReturn_t);
    TRY(memory_of(device, &total, &used));
    NEEDS(memory != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *memory = (nvmlMemory_t){total, total - used, used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    uint64_t total, used;
    ENTER(nvmlReturn_t);
    TRY(memory_of(device, &total, &used));
    NEEDS(memory != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(memory->version == NVML_VERSION_WORD(nvmlMemory_v2_t, 2U), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    *memory = (nvmlMemory_v2_t){memory->version, total, 0, total - used, used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    uint64_t total, used;
    ENTER(nvmlReturn_t);
    TRY(memory_of(device, &total, &used));
    NEEDS(memory != NULL, NVML_ERROR_INVALID_ARGUMENT);
    *memory = (nvmlBAR1Memory_t){total, total, 0};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(device, &target));
    if (attributes == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (target.compute == NULL)
        return nvml_leave(NVML_ERROR_NOT_SUPPORTED);
    const struct emu_profile *profile = profile_of(&target);
    uint32_t sms = profile->sms * target.compute->size / profile->slices;
    *attributes = (nvmlDeviceAttributes_t){{sms, profile->slices, profile->media, 0, profile->media, profile->media},
        profile->slices, target.compute->size, emu_profile_bytes(target.gpu, profile) / EMU_MIB};
    return nvml_leave(NVML_SUCCESS);
}

/* -- processes ------------------------------------------------------------------------------------------------------ */

static uint64_t used_by(uint32_t client)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < EMU_ALLOCATIONS; i++)
        if (emu_state()->allocations[i].len != 0 && emu_state()->allocations[i].client == client)
            used += emu_state()->allocations[i].len;
    return used;
}

/* With MIG on, only privileged callers see the processes of a whole GPU. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    struct nvml_target target;
    unsigned found = 0;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(device, &target));
    if (count == NULL || (infos == NULL && *count > 0))
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (target.state->mig && target.compute == NULL && !emu_may_cut())
        return nvml_leave(NVML_ERROR_NO_PERMISSION);
    for (uint32_t i = 0; i < EMU_CLIENTS; i++) {
        const struct emu_client *client = &emu_state()->clients[i];
        bool is_here = client->pid != 0 && client->place.gpu == target.gpu;
        if (!is_here || (target.compute != NULL && client->place.compute != target.compute->generation))
            continue;
        if (found < *count)
            infos[found] = (nvmlProcessInfo_t){
                client->pid, used_by(i), client->place.instance_id, client->place.compute_id};
        found++;
    }
    bool is_enough = found <= *count;
    *count = found;
    return nvml_leave(is_enough ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}
