/* libnvidia-ml: sessions, handles, texts. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "nvml_internal.h"

enum { MOST_HANDLES = 1 << 16 };

static struct {
    pthread_mutex_t mutex;
    unsigned users;
    uint64_t session;
    struct nvml_handle handles[MOST_HANDLES]; /* never reused: a pointer means one thing for the process's life */
    size_t count;
    struct emu_gpu seen[EMU_GPUS];
} nvml = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* -- the session ---------------------------------------------------------------------------------------------------- */

static nvmlReturn_t begin(void)
{
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&nvml.mutex);
    if (nvml.users == 0) {
        if (emu_open())
            nvml.session++;
        else
            result = NVML_ERROR_DRIVER_NOT_LOADED;
    }
    nvml.users += result == NVML_SUCCESS;
    pthread_mutex_unlock(&nvml.mutex);
    if (result == NVML_SUCCESS) {
        emu_lock();
        nvml_see();
        emu_unlock();
    }
    return result;
}

nvmlReturn_t nvmlInit_v2(void)
{
    ENTER(nvmlReturn_t);
    return begin();
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    enum { NO_GPUS = 1, NO_ATTACH = 2 };
    ENTER(nvmlReturn_t);
    NEEDS((flags & ~(unsigned)(NO_GPUS | NO_ATTACH)) == 0, NVML_ERROR_INVALID_ARGUMENT);
    return begin();
}

nvmlReturn_t nvmlShutdown(void)
{
    ENTER(nvmlReturn_t);
    pthread_mutex_lock(&nvml.mutex);
    bool was_open = nvml.users > 0;
    nvml.users -= was_open;
    pthread_mutex_unlock(&nvml.mutex);
    return was_open ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

bool nvml_is_initialized(void)
{
    pthread_mutex_lock(&nvml.mutex);
    bool is_open = nvml.users > 0;
    pthread_mutex_unlock(&nvml.mutex);
    return is_open;
}

/* -- handles -------------------------------------------------------------------------------------------------------- */

struct nvml_handle *nvml_handle(enum nvml_kind kind, uint32_t gpu, uint64_t instance, uint64_t compute)
{
    pthread_mutex_lock(&nvml.mutex);
    struct nvml_handle wanted = {kind, gpu, nvml.session, instance, compute}, *found = NULL;
    for (size_t i = 0; kind != NVML_EVENT_SET && found == NULL && i < nvml.count; i++)
        if (memcmp(&nvml.handles[i], &wanted, sizeof wanted) == 0)
            found = &nvml.handles[i];
    if (found == NULL) {
        if (nvml.count == MOST_HANDLES)
            emu_strict("handle", "this process was given %d handles, more than the emulator has", MOST_HANDLES);
        found = &nvml.handles[nvml.count++];
        *found = wanted;
    }
    pthread_mutex_unlock(&nvml.mutex);
    return found;
}

void nvml_forget(struct nvml_handle *handle)
{
    handle->kind = NVML_NO_HANDLE;
}

bool nvml_is_handle(const struct nvml_handle *handle, enum nvml_kind kind)
{
    pthread_mutex_lock(&nvml.mutex);
    uintptr_t at = (uintptr_t)handle, first = (uintptr_t)nvml.handles;
    bool is_one = at >= first && at < first + nvml.count * sizeof *handle && (at - first) % sizeof *handle == 0;
    is_one = is_one && handle->kind == kind && handle->session == nvml.session;
    pthread_mutex_unlock(&nvml.mutex);
    return is_one;
}

/* -- entering the machine ------------------------------------------------------------------------------------------- */

nvmlReturn_t nvml_enter(void)
{
    NEEDS(nvml_is_initialized(), NVML_ERROR_UNINITIALIZED);
    emu_lock();
    emu_reap();
    if (emu_setting("OFFPATH_GPU_EMULATOR_STALE", 0, 0, 1) == 0)
        nvml_see();
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_leave(nvmlReturn_t result)
{
    emu_unlock();
    return result;
}

void nvml_see(void)
{
    memcpy(nvml.seen, emu_state()->gpus, sizeof nvml.seen);
}

const struct emu_gpu *nvml_seen(uint32_t gpu)
{
    return &nvml.seen[gpu];
}

/* The instance and the compute instance of these generations, in what the machine has or a process sees. */
static bool find(struct emu_gpu *gpu, const struct nvml_handle *handle, struct nvml_target *target)
{
    for (uint32_t i = 0; i < EMU_INSTANCES; i++)
        if (gpu->instances[i].generation == handle->instance)
            target->instance = &gpu->instances[i];
    if (target->instance == NULL)
        return false;
    for (uint32_t i = 0; handle->compute != 0 && i < EMU_COMPUTE; i++)
        if (target->instance->compute[i].generation == handle->compute)
            target->compute = &target->instance->compute[i];
    return handle->compute == 0 || target->compute != NULL;
}

static nvmlReturn_t enter(const struct nvml_handle *handle, enum nvml_kind kind, struct nvml_target *target)
{
    NEEDS(nvml_is_initialized(), NVML_ERROR_UNINITIALIZED);
    NEEDS(nvml_is_handle(handle, kind), NVML_ERROR_INVALID_ARGUMENT);
    TRY(nvml_enter());
    *target = (struct nvml_target){handle->gpu, &emu_state()->gpus[handle->gpu], NULL, NULL};
    if (target->state->is_lost)
        return nvml_leave(NVML_ERROR_GPU_IS_LOST);
    struct emu_gpu *gpu = kind == NVML_MIG_DEVICE ? &nvml.seen[handle->gpu] : target->state;
    if (kind != NVML_DEVICE && !find(gpu, handle, target))
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_enter_device(const struct nvml_handle *handle, struct nvml_target *target)
{
    return enter(handle, NVML_DEVICE, target);
}

nvmlReturn_t nvml_enter_any(const struct nvml_handle *handle, struct nvml_target *target)
{
    return enter(handle, nvml_is_handle(handle, NVML_MIG_DEVICE) ? NVML_MIG_DEVICE : NVML_DEVICE, target);
}

nvmlReturn_t nvml_enter_instance(const struct nvml_handle *handle, struct nvml_target *target)
{
    return enter(handle, NVML_INSTANCE, target);
}

nvmlReturn_t nvml_enter_compute(const struct nvml_handle *handle, struct nvml_target *target)
{
    return enter(handle, NVML_COMPUTE, target);
}

/* -- texts ---------------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvml_copy_text(char *to, unsigned length, const char *text)
{
    NEEDS(to != NULL, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(strlen(text) < length, NVML_ERROR_INSUFFICIENT_SIZE);
    strcpy(to, text);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "GPU access blocked by the operating system", "Driver/library version mismatch",
        "In use by another client", "Insufficient Memory", "No data", "vGPU ECC not supported",
        "Insufficient Resources", "Frequency not supported", "Argument version mismatch", "Deprecated",
        "System is not in ready state"};
    unsigned index = (unsigned)result;
    return index < sizeof texts / sizeof *texts ? texts[index] : "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    char text[NVML_VERSION_SIZE];
    ENTER(nvmlReturn_t);
    TRY(nvml_enter());
    snprintf(text, sizeof text, "%u.0-emulated", emu_state()->settings.driver);
    return nvml_leave(nvml_copy_text(version, length, text));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    char text[NVML_VERSION_SIZE];
    ENTER(nvmlReturn_t);
    TRY(nvml_enter());
    snprintf(text, sizeof text, "12.%u.0-emulated", emu_state()->settings.driver);
    return nvml_leave(nvml_copy_text(version, length, text));
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER(nvmlReturn_t);
    NEEDS(version != NULL, NVML_ERROR_INVALID_ARGUMENT);
    TRY(nvml_enter());
    *version = emu_cuda_version();
    return nvml_leave(NVML_SUCCESS);
}

/* Beyond NVML, for tests: an Xid on a GPU; instance and compute instance EMU_NONE: the GPU's. */
void gpu_emulator_xid(unsigned gpu, unsigned instance_id, unsigned compute_id, uint64_t xid);
void gpu_emulator_xid(unsigned gpu, unsigned instance_id, unsigned compute_id, uint64_t xid)
{
    if (!nvml_is_initialized() || gpu >= emu_state()->settings.gpu_count)
        emu_strict(__func__, "NVML is not initialized, or there is no GPU %u", gpu);
    struct emu_place place = {gpu, instance_id, compute_id, 0, 0};
    emu_xid(&place, xid);
}
