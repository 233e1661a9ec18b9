/* libnvidia-ml: compute instances, and events. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "nvml_internal.h"

enum { PROFILE_NUMBERS = 9, NAME = 64, XID_EVENTS = 8, EVENT_SETS = 32 };

static const struct emu_profile *profile_of(const struct nvml_target *target)
{
    return &emu_model_of(target->gpu)->profiles[target->instance->profile];
}

static nvmlReturn_t check_profile(const struct nvml_target *target, unsigned profile)
{
    NEEDS(profile < PROFILE_NUMBERS, NVML_ERROR_INVALID_ARGUMENT);
    return emu_compute_fits(profile_of(target), profile) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static void name_profile(char *name, size_t len, const struct emu_profile *of, uint32_t slices)
{
    if (slices == of->slices)
        snprintf(name, len, "MIG %s", of->name);
    else
        snprintf(name, len, "MIG %uc.%s", slices, of->name);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gpuInstance, unsigned profile,
    unsigned engProfile, nvmlComputeInstanceProfileInfo_v2_t *info)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_instance(gpuInstance, &target));
    nvmlReturn_t result = info == NULL || engProfile != 0 ? NVML_ERROR_INVALID_ARGUMENT : check_profile(&target, profile);
    if (result != NVML_SUCCESS)
        return nvml_leave(result);
    const struct emu_profile *of = profile_of(&target);
    uint32_t slices = emu_compute_slices(profile), version = info->version;
    bool is_v3 = version == NVML_VERSION_WORD(nvmlComputeInstanceProfileInfo_v3_t, 3U);
    if (!is_v3 && version != NVML_VERSION_WORD(nvmlComputeInstanceProfileInfo_v2_t, 2U))
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    struct nvml_engines engines = {
        of->sms * slices / of->slices, of->slices, of->media, 0, of->media, of->media};
    *info = (nvmlComputeInstanceProfileInfo_v2_t){version, profile, slices, of->slices / slices, engines, ""};
    name_profile(info->name, sizeof info->name, of, slices);
    if (is_v3)
        ((nvmlComputeInstanceProfileInfo_v3_t *)(void *)info)->capabilities = 0;
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance, unsigned profileId,
    nvmlComputeInstance_t *computeInstance)
{
    struct nvml_target target;
    struct emu_compute *made;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_instance(gpuInstance, &target));
    nvmlReturn_t result = computeInstance == NULL ? NVML_ERROR_INVALID_ARGUMENT : check_profile(&target, profileId);
    if (result == NVML_SUCCESS && !emu_may_cut())
        result = NVML_ERROR_NO_PERMISSION;
    if (result == NVML_SUCCESS)
        result = (nvmlReturn_t)emu_cut_compute(target.gpu, target.instance, profileId, &made);
    if (result != NVML_SUCCESS)
        return nvml_leave(result);
    nvml_see();
    *computeInstance = nvml_handle(NVML_COMPUTE, target.gpu, target.instance->generation, made->generation);
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance, unsigned profileId,
    nvmlComputeInstance_t *computeInstances, unsigned *count)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_instance(gpuInstance, &target));
    nvmlReturn_t result = check_profile(&target, profileId);
    if (computeInstances == NULL || count == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return nvml_leave(result);
    *count = 0;
    for (uint32_t i = 0; i < EMU_COMPUTE; i++) {
        const struct emu_compute *one = &target.instance->compute[i];
        if (one->generation != 0 && one->profile == profileId)
            computeInstances[(*count)++] =
                nvml_handle(NVML_COMPUTE, target.gpu, target.instance->generation, one->generation);
    }
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned id,
    nvmlComputeInstance_t *computeInstance)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_instance(gpuInstance, &target));
    if (computeInstance == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (id >= EMU_COMPUTE || target.instance->compute[id].generation == 0)
        return nvml_leave(NVML_ERROR_NOT_FOUND);
    uint64_t generation = target.instance->compute[id].generation;
    *computeInstance = nvml_handle(NVML_COMPUTE, target.gpu, target.instance->generation, generation);
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_compute(computeInstance, &target));
    if (info == NULL)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    *info = (nvmlComputeInstanceInfo_t){nvml_handle(NVML_DEVICE, target.gpu, 0, 0),
        nvml_handle(NVML_INSTANCE, target.gpu, target.instance->generation, 0), target.compute->id,
        target.compute->profile, {target.compute->start, target.compute->size}};
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance)
{
    struct nvml_target target;
    char name[NAME];
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_compute(computeInstance, &target));
    if (!emu_may_cut())
        return nvml_leave(NVML_ERROR_NO_PERMISSION);
    struct emu_place place = {target.gpu, 0, 0, target.instance->generation, target.compute->generation};
    emu_place_name(name, sizeof name, &place);
    if (emu_is_held(name) || emu_refuses_to_destroy())
        return nvml_leave(NVML_ERROR_IN_USE);
    emu_remove(name);
    memset(target.compute, 0, sizeof *target.compute);
    nvml_see();
    return nvml_leave(NVML_SUCCESS);
}

/* -- events --------------------------------------------------------------------------------------------------------- */

/* The registered GPUs of a set, and the first event that it has not delivered. */
struct event_set {
    struct nvml_handle *handle; /* NULL: free */
    uint32_t gpus, next;
};
static struct event_set sets[EVENT_SETS];
static pthread_mutex_t sets_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Under the mutex. */
static struct event_set *set_of(const struct nvml_handle *handle)
{
    for (int i = 0; i < EVENT_SETS; i++)
        if (sets[i].handle == handle)
            return &sets[i];
    return NULL;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER(nvmlReturn_t);
    NEEDS(nvml_is_initialized(), NVML_ERROR_UNINITIALIZED);
    NEEDS(set != NULL, NVML_ERROR_INVALID_ARGUMENT);
    pthread_mutex_lock(&sets_mutex);
    struct event_set *made = set_of(NULL);
    if (made != NULL) {
        *made = (struct event_set){nvml_handle(NVML_EVENT_SET, 0, 0, 0), 0, atomic_load(&emu_state()->event_count)};
        *set = made->handle;
    }
    pthread_mutex_unlock(&sets_mutex);
    return made != NULL ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, uint64_t *types)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(device, &target));
    if (types != NULL)
        *types = target.compute == NULL ? XID_EVENTS : 0;
    return nvml_leave(types != NULL ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, uint64_t eventTypes, nvmlEventSet_t set)
{
    struct nvml_target target;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_any(device, &target));
    nvml_leave(NVML_SUCCESS);
    NEEDS(nvml_is_handle(set, NVML_EVENT_SET), NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(target.compute == NULL && (eventTypes & ~(uint64_t)XID_EVENTS) == 0, NVML_ERROR_NOT_SUPPORTED);
    pthread_mutex_lock(&sets_mutex);
    set_of(set)->gpus |= eventTypes != 0 ? 1U << target.gpu : 0;
    pthread_mutex_unlock(&sets_mutex);
    return NVML_SUCCESS;
}

/* The next event of a GPU of the set; whether there is one. Events that were overwritten before delivery are skipped. */
static bool take_event(struct event_set *set, struct emu_event *event)
{
    bool found = false;
    emu_lock();
    uint32_t count = atomic_load(&emu_state()->event_count);
    if (count - set->next > EMU_EVENTS)
        set->next = count - EMU_EVENTS;
    while (!found && set->next != count) {
        *event = emu_state()->events[set->next++ % EMU_EVENTS];
        found = (set->gpus & 1U << event->gpu) != 0;
    }
    emu_unlock();
    return found;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000U + (uint64_t)now.tv_nsec / 1000000U;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeoutms)
{
    struct emu_event event;
    ENTER(nvmlReturn_t);
    NEEDS(nvml_is_initialized(), NVML_ERROR_UNINITIALIZED);
    NEEDS(data != NULL && nvml_is_handle(set, NVML_EVENT_SET), NVML_ERROR_INVALID_ARGUMENT);
    uint64_t end = now_ms() + timeoutms;
    for (;;) {
        uint32_t seen = atomic_load(&emu_state()->event_count);
        pthread_mutex_lock(&sets_mutex);
        struct event_set *own = set_of(set);
        bool found = own != NULL && take_event(own, &event);
        pthread_mutex_unlock(&sets_mutex);
        NEEDS(own != NULL, NVML_ERROR_INVALID_ARGUMENT);
        if (found)
            break;
        uint64_t now = now_ms();
        NEEDS(now < end, NVML_ERROR_TIMEOUT);
        emu_await_event(seen, (uint32_t)(end - now));
    }
    *data = (nvmlEventData_t){nvml_handle(NVML_DEVICE, event.gpu, 0, 0), XID_EVENTS, event.xid, event.instance_id,
        event.compute_id};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER(nvmlReturn_t);
    NEEDS(nvml_is_initialized(), NVML_ERROR_UNINITIALIZED);
    NEEDS(nvml_is_handle(set, NVML_EVENT_SET), NVML_ERROR_INVALID_ARGUMENT);
    pthread_mutex_lock(&sets_mutex);
    memset(set_of(set), 0, sizeof(struct event_set));
    nvml_forget(set);
    pthread_mutex_unlock(&sets_mutex);
    return NVML_SUCCESS;
}
