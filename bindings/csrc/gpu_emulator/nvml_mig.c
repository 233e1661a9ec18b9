/* libnvidia-ml: MIG mode and GPU instances. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "nvml_internal.h"

enum { PROFILE_NUMBERS = 18, NAME = 64 };

/* -- mode ----------------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_device(device, &target));
    if (current == NULL || pending == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    *current = target.state->mig;
    *pending = target.state->pending;
    return nvml_leave(NVML_SUCCESS);
}

/* By a process, by an instance, or by an exported part of its memory. */
static bool is_in_use(const struct nvml_target *target)
{
    struct emu_place whole = {target->gpu, EMU_NONE, EMU_NONE, 0, 0};
    char name[NAME];
    emu_place_name(name, sizeof name, &whole);
    bool is_used = emu_is_held(name) || emu_is_exported(target->gpu, 0);
    for (uint32_t i = 0; i < EMU_INSTANCES; i++)
        is_used |= target->state->instances[i].generation != 0;
    return is_used;
}

/* The mode of a GPU that is in use changes only by a reset, which the emulator has not: it stays pending. */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_device(device, &target));
    if (mode > 1 || activation == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!emu_may_cut())
        return nvml_leave(NVML_ERROR_NO_PERMISSION);
    target.state->pending = mode;
    *activation = NVML_SUCCESS;
    if (mode != target.state->mig && is_in_use(&target))
        *activation = NVML_ERROR_IN_USE;
    else
        target.state->mig = mode;
    nvml_see();
    return nvml_leave(NVML_SUCCESS);
}

/* -- MIG devices ---------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *isMigDevice)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(device, &target));
    if (isMigDevice != NULL)
        *isMigDevice = target.compute != NULL;
    return nvml_leave(isMigDevice != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_device(device, &target));
    if (count != NULL)
        *count = emu_model_of(target.gpu)->slices;
    return nvml_leave(count != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *migDevice)
{
    struct nvml_target target;
    nvmlDevice_t found = NULL;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_device(device, &target));
    if (migDevice == NULL || index >= emu_model_of(target.gpu)->slices)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < EMU_INSTANCES * EMU_COMPUTE; i++) {
        const struct emu_instance *instance = &nvml_seen(target.gpu)->instances[i / EMU_COMPUTE];
        const struct emu_compute *compute = &instance->compute[i % EMU_COMPUTE];
        if (instance->generation != 0 && compute->generation != 0 && compute->index == index)
            found = nvml_handle(NVML_MIG_DEVICE, target.gpu, instance->generation, compute->generation);
    }
    if (found != NULL)
        *migDevice = found;
    return nvml_leave(found != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(migDevice, &target));
    if (device == NULL || target.compute == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    *device = nvml_handle(NVML_DEVICE, target.gpu, 0, 0);
    return nvml_leave(NVML_SUCCESS);
}

static nvmlReturn_t id_of(nvmlDevice_t device, bool is_compute, unsigned *id)
{
    struct nvml_target target;
    TRY(nvml_enter_any(device, &target));
    if (id == NULL || target.compute == NULL)
        return nvml_leave(id == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED);
    *id = is_compute ? target.compute->id : target.instance->id;
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    ENTER(nvmlReturn_t);
    return id_of(device, false, id);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    ENTER(nvmlReturn_t);
    return id_of(device, true, id);
}

/* -- profiles ------------------------------------------------------------------------------------------------------- */

static struct nvml_engines engines_of(const struct emu_profile *profile)
{
    return (struct nvml_engines){profile->sms, profile->slices, profile->media, 0, profile->media, profile->media};
}

static nvmlReturn_t profile_with(uint32_t gpu, unsigned number, const struct emu_profile **profile)
{
    NEEDS(number < PROFILE_NUMBERS, NVML_ERROR_INVALID_ARGUMENT);
    *profile = emu_profile_numbered(emu_model_of(gpu), number);
    return *profile != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned profile,
    nvmlGpuInstanceProfileInfo_t *info)
{
    struct nvml_target target;
    const struct emu_profile *found;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_device(device, &target));
    nvmlReturn_t result = info != NULL ? profile_with(target.gpu, profile, &found) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return nvml_leave(result);
    *info = (nvmlGpuInstanceProfileInfo_t){found->id, 0, found->slices, found->most, engines_of(found),
        emu_profile_bytes(target.gpu, found) / EMU_MIB};
    return nvml_leave(NVML_SUCCESS);
}

/* Versions 2 and 3 are equally large, but their fields lie differently: the version decides. */
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned profile,
    nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct nvml_target target;
    const struct emu_profile *found;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_device(device, &target));
    nvmlReturn_t result = info != NULL ? profile_with(target.gpu, profile, &found) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && !target.state->mig)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result != NVML_SUCCESS)
        return nvml_leave(result);
    uint64_t memory_mib = emu_profile_bytes(target.gpu, found) / EMU_MIB;
    if (info->version == NVML_VERSION_WORD(nvmlGpuInstanceProfileInfo_v2_t, 2U)) {
        *info = (nvmlGpuInstanceProfileInfo_v2_t){
            info->version, found->id, 0, found->slices, found->most, engines_of(found), memory_mib, ""};
        snprintf(info->name, sizeof info->name, "MIG %s", found->name);
    } else if (info->version == NVML_VERSION_WORD(nvmlGpuInstanceProfileInfo_v3_t, 3U)) {
        nvmlGpuInstanceProfileInfo_v3_t v3 = {
            info->version, found->id, found->slices, found->most, engines_of(found), memory_mib, "", 0};
        snprintf(v3.name, sizeof v3.name, "MIG %s", found->name);
        memcpy(info, &v3, sizeof v3);
    } else {
        result = NVML_ERROR_INVALID_ARGUMENT;
    }
    return nvml_leave(result);
}

/* Enters a device for a privileged question about the profile with this id. On an error nothing is locked. */
static nvmlReturn_t enter_profile(nvmlDevice_t device, unsigned id, struct nvml_target *target,
    const struct emu_profile **profile)
{
    TRY(nvml_enter_device(device, target));
    *profile = emu_profile_with_id(emu_model_of(target->gpu), id);
    if (*profile == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    return emu_may_cut() ? NVML_SUCCESS : nvml_leave(NVML_ERROR_NO_PERMISSION);
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned profileId,
    nvmlGpuInstancePlacement_t *placements, unsigned *count)
{
    struct nvml_target target;
    const struct emu_profile *profile;
    ENTER(nvmlReturn_t);
    TRY(enter_profile(device, profileId, &target, &profile));
    if (count == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (placements != NULL && *count < profile->start_count)
        return nvml_leave(NVML_ERROR_INSUFFICIENT_SIZE);
    for (uint32_t i = 0; placements != NULL && i < profile->start_count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){profile->starts[i], profile->size};
    *count = profile->start_count;
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned profileId, unsigned *count)
{
    struct nvml_target target;
    const struct emu_profile *profile;
    ENTER(nvmlReturn_t);
    TRY(enter_profile(device, profileId, &target, &profile));
    if (count == NULL || !target.state->mig)
        return nvml_leave(count == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED);
    *count = emu_remaining(target.gpu, profile);
    return nvml_leave(NVML_SUCCESS);
}

/* -- GPU instances -------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static nvmlReturn_t cut(const struct nvml_target *target, const struct emu_profile *profile, uint32_t start,
    nvmlGpuInstance_t *into)
{
    struct emu_instance *made;
    NEEDS(into != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(target->state->mig, NVML_ERROR_NOT_SUPPORTED);
    enum emu_cut result = emu_cut(target->gpu, profile, start, &made);
    NEEDS(result == EMU_CUT, (nvmlReturn_t)result);
    nvml_see();
    *into = nvml_handle(NVML_INSTANCE, target->gpu, made->generation, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned profileId, nvmlGpuInstance_t *gpuInstance)
{
    struct nvml_target target;
    const struct emu_profile *profile;
    ENTER(nvmlReturn_t);
    TRY(enter_profile(device, profileId, &target, &profile));
    return nvml_leave(cut(&target, profile, EMU_NONE, gpuInstance));
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned profileId,
    const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *gpuInstance)
{
    struct nvml_target target;
    const struct emu_profile *profile;
    ENTER(nvmlReturn_t);
    TRY(enter_profile(device, profileId, &target, &profile));
    if (placement == NULL || placement->start == EMU_NONE || placement->size != profile->size)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    return nvml_leave(cut(&target, profile, placement->start, gpuInstance));
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profileId, nvmlGpuInstance_t *gpuInstances,
    unsigned *count)
{
    struct nvml_target target;
    const struct emu_profile *profile;
    ENTER(nvmlReturn_t);
    TRY(enter_profile(device, profileId, &target, &profile));
    if (gpuInstances == NULL || count == NULL || !target.state->mig)
        return nvml_leave(target.state->mig ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED);
    *count = 0;
    for (uint32_t i = 0; i < EMU_INSTANCES; i++) {
        const struct emu_instance *one = &target.state->instances[i];
        if (one->generation != 0 && &emu_model_of(target.gpu)->profiles[one->profile] == profile)
            gpuInstances[(*count)++] = nvml_handle(NVML_INSTANCE, target.gpu, one->generation, 0);
    }
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *gpuInstance)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_device(device, &target));
    nvmlReturn_t result = NVML_SUCCESS;
    if (gpuInstance == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    else if (!target.state->mig)
        result = NVML_ERROR_NOT_SUPPORTED;
    else if (!emu_may_cut())
        result = NVML_ERROR_NO_PERMISSION;
    else if (id >= EMU_INSTANCES || target.state->instances[id].generation == 0)
        result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS)
        *gpuInstance = nvml_handle(NVML_INSTANCE, target.gpu, target.state->instances[id].generation, 0);
    return nvml_leave(result);
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_instance(gpuInstance, &target));
    if (info == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    const struct emu_profile *profile = &emu_model_of(target.gpu)->profiles[target.instance->profile];
    *info = (nvmlGpuInstanceInfo_t){nvml_handle(NVML_DEVICE, target.gpu, 0, 0), target.instance->id, profile->id,
        {target.instance->start, profile->size}};
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_instance(gpuInstance, &target));
    if (!emu_may_cut())
        return nvml_leave(NVML_ERROR_NO_PERMISSION);
    bool is_used = emu_is_exported(target.gpu, target.instance->generation) || emu_refuses_to_destroy();
    for (uint32_t i = 0; i < EMU_COMPUTE; i++)
        is_used |= target.instance->compute[i].generation != 0;
    if (is_used)
        return nvml_leave(NVML_ERROR_IN_USE);
    memset(target.instance, 0, sizeof *target.instance);
    nvml_see();
    return nvml_leave(NVML_SUCCESS);
}
