/* libcuda: which devices a process sees, and what they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_internal.h"

enum { FIRST_DRIVER_WITH_ALL_INSTANCES = 570, MOST_TEXT = 4096, UUID_TEXT = 64, LAST_ATTRIBUTE = 200 };

/* -- what CUDA_VISIBLE_DEVICES selects; under the machine's lock ---------------------------------------------------- */

/* Whether this user may read the nodes of the capabilities of an instance and of its compute instance. They are
 * numbered by the GPU's minor number: 3 + 135 minor + 9 instance, and from there 1 + compute instance. */
static bool may_use(uint32_t gpu, const struct emu_instance *instance, const struct emu_compute *compute)
{
    enum { FIRST = 3, OF_GPU = 135, OF_INSTANCE = 9 };
    const char *folder = getenv("OFFPATH_GPU_EMULATOR_NODES");
    char path[MOST_TEXT];
    if (folder == NULL || *folder == '\0')
        return true;
    uint32_t minor = emu_state()->settings.gpu_count - 1 - gpu;
    uint32_t node = FIRST + OF_GPU * minor + OF_INSTANCE * instance->id;
    snprintf(path, sizeof path, "%s/nvidia-cap%u", folder, node);
    bool is_readable = faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) == 0;
    snprintf(path, sizeof path, "%s/nvidia-cap%u", folder, node + 1 + compute->id);
    return is_readable && faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) == 0;
}

static void see(uint32_t gpu, const struct emu_instance *instance, const struct emu_compute *compute)
{
    if (cuda.count == CUDA_DEVICES || (instance != NULL && !may_use(gpu, instance, compute)))
        return;
    struct emu_place place = {gpu, EMU_NONE, EMU_NONE, 0, 0};
    if (instance != NULL)
        place = (struct emu_place){gpu, instance->id, compute->id, instance->generation, compute->generation};
    memset(&cuda.contexts[cuda.count], 0, sizeof cuda.contexts[0]);
    cuda.contexts[cuda.count].hold = -1;
    cuda.contexts[cuda.count++].place = place;
}

static const struct emu_compute *first_compute(const struct emu_instance *instance)
{
    for (int i = 0; instance->generation != 0 && i < EMU_COMPUTE; i++)
        if (instance->compute[i].generation != 0)
            return &instance->compute[i];
    return NULL;
}

/* A whole GPU, or up to `most` of its instances, one compute instance of each. */
static void see_gpu(uint32_t gpu, uint32_t most)
{
    const struct emu_gpu *state = &emu_state()->gpus[gpu];
    if (!state->mig) {
        see(gpu, NULL, NULL);
        return;
    }
    for (uint32_t i = 0; i < EMU_INSTANCES && most > 0; i++) {
        const struct emu_compute *compute = first_compute(&state->instances[i]);
        if (compute != NULL) {
            see(gpu, &state->instances[i], compute);
            most--;
        }
    }
}

static bool see_mig(uint32_t gpu, const char *text)
{
    char own[UUID_TEXT];
    uint8_t uuid[16];
    for (uint32_t i = 0; i < EMU_INSTANCES * EMU_COMPUTE; i++) {
        const struct emu_instance *instance = &emu_state()->gpus[gpu].instances[i / EMU_COMPUTE];
        const struct emu_compute *compute = &instance->compute[i % EMU_COMPUTE];
        if (instance->generation == 0 || compute->generation == 0)
            continue;
        emu_mig_uuid(gpu, instance->id, compute->id, uuid);
        emu_uuid_text(own, sizeof own, "MIG-", uuid);
        if (strcmp(own, text) == 0) {
            see(gpu, instance, compute);
            return true;
        }
    }
    return false;
}

/* A GPU's UUID may be shortened. */
static bool see_uuid(uint32_t gpu, const char *text)
{
    char own[UUID_TEXT];
    uint8_t uuid[16];
    emu_gpu_uuid(gpu, uuid);
    emu_uuid_text(own, sizeof own, "GPU-", uuid);
    if (strlen(text) <= strlen("GPU-") || strncmp(own, text, strlen(text)) != 0)
        return false;
    see_gpu(gpu, 1);
    return true;
}

static bool see_named(const char *text)
{
    uint32_t gpus = emu_state()->settings.gpu_count;
    if (text[0] >= '0' && text[0] <= '9') {
        char *end;
        unsigned long index = strtoul(text, &end, 10);
        if (*end != '\0' || index >= gpus)
            return false;
        see_gpu((uint32_t)index, 1);
        return true;
    }
    for (uint32_t gpu = 0; gpu < gpus; gpu++)
        if (strncmp(text, "MIG-", 4) == 0 ? see_mig(gpu, text) : see_uuid(gpu, text))
            return true;
    return false;
}

/* Without the variable: all there is since driver 570; before, whole GPUs or, where there is none, one instance. */
static void see_all(void)
{
    uint32_t gpus = emu_state()->settings.gpu_count;
    bool sees_instances = emu_state()->settings.driver >= FIRST_DRIVER_WITH_ALL_INSTANCES;
    for (uint32_t gpu = 0; gpu < gpus; gpu++)
        if (sees_instances || !emu_state()->gpus[gpu].mig)
            see_gpu(gpu, EMU_NONE);
    for (uint32_t gpu = 0; gpu < gpus && cuda.count == 0; gpu++)
        see_gpu(gpu, 1);
}

CUresult cuda_enumerate(void)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    char copy[MOST_TEXT], *rest = copy, *one;
    cuda.count = 0;
    if (text == NULL) {
        see_all();
    } else {
        NEEDS(strlen(text) < sizeof copy, CUDA_ERROR_NO_DEVICE);
        strcpy(copy, text);
        while ((one = strsep(&rest, ",")) != NULL && see_named(one)) /* what follows an unknown name is not seen */
            continue;
    }
    if (cuda.count > 1 && cuda.contexts[0].place.compute != 0 &&
        emu_state()->settings.driver < FIRST_DRIVER_WITH_ALL_INSTANCES)
        cuda.count = 1;
    return cuda.count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* -- places --------------------------------------------------------------------------------------------------------- */

static const struct emu_profile *profile_of(const struct emu_place *place)
{
    const struct emu_instance *instance = &emu_state()->gpus[place->gpu].instances[place->instance_id];
    return &emu_model_of(place->gpu)->profiles[instance->profile];
}

uint64_t cuda_place_bytes(const struct emu_place *place)
{
    return place->instance == 0 ? emu_gpu_bytes(place->gpu) : emu_profile_bytes(place->gpu, profile_of(place));
}

uint64_t cuda_place_base(const struct emu_place *place)
{
    if (place->instance == 0)
        return 0;
    return emu_state()->gpus[place->gpu].instances[place->instance_id].start * emu_slice_bytes(place->gpu);
}

/* Under MPS a share, rounded up to pairs, of which a real GPU enables its multiprocessors. */
uint32_t cuda_place_sms(const struct emu_place *place)
{
    const struct emu_model *model = emu_model_of(place->gpu);
    uint32_t sms = model->sms;
    if (place->instance != 0) {
        const struct emu_instance *instance = &emu_state()->gpus[place->gpu].instances[place->instance_id];
        const struct emu_profile *profile = profile_of(place);
        sms = profile->sms * instance->compute[place->compute_id].size / profile->slices;
    }
    if (cuda_mps.link < 0)
        return sms;
    uint32_t share = (sms * cuda_mps.percentage + 199) / 200 * 2;
    return share < sms ? share : sms;
}

/* -- questions ------------------------------------------------------------------------------------------------------ */

CUresult cuDeviceGetCount(int *count)
{
    ENTER(CUresult);
    TRY(cuda_enter());
    if (count != NULL)
        *count = cuda.count;
    return cuda_leave(count != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_device(ordinal, &context));
    if (device != NULL)
        *device = ordinal;
    return cuda_leave(device != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &context));
    if (name == NULL || len <= 0)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    const struct emu_place *place = &context->place;
    const struct emu_instance *instance = NULL;
    const struct emu_compute *compute = NULL;
    if (place->instance != 0) {
        instance = &emu_state()->gpus[place->gpu].instances[place->instance_id];
        compute = &instance->compute[place->compute_id];
    }
    emu_device_name(name, (size_t)len, place->gpu, instance, compute);
    return cuda_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &context));
    if (uuid == NULL)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    if (context->place.instance != 0)
        emu_mig_uuid(context->place.gpu, context->place.instance_id, context->place.compute_id, uuid->bytes);
    else
        emu_gpu_uuid(context->place.gpu, uuid->bytes);
    return cuda_leave(CUDA_SUCCESS);
}

/* Version 1 returns the GPU's UUID for an instance too. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &context));
    if (uuid != NULL)
        emu_gpu_uuid(context->place.gpu, uuid->bytes);
    return cuda_leave(uuid != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &context));
    if (bytes != NULL)
        *bytes = cuda_place_bytes(&context->place);
    return cuda_leave(bytes != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice device)
{
    enum { DIGITS_LEFT_OUT = 4, LENGTH = 13 };
    char text[32];
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &context));
    if (id == NULL || len < LENGTH)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    emu_bus_id(text, sizeof text, context->place.gpu);
    strcpy(id, text + DIGITS_LEFT_OUT);
    return cuda_leave(CUDA_SUCCESS);
}

/* Attributes that do not depend on the machine; all others are 0. */
static int constant(int attribute)
{
    static const struct {
        int attribute, value;
    } constants[] = {{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152},
        {10, 32}, {12, 65536}, {13, 1410000}, {15, 1}, {19, 1}, {31, 1}, {32, 1}, {36, 1215000}, {40, 3}, {41, 1},
        {98, 1}, {116, 1}, {117, 1}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (constants[i].attribute == attribute)
            return constants[i].value;
    return 0;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    enum { SMS = 16, BUS = 33, MAJOR = 75, MINOR = 76, ORDERING = 118, READ_ONLY_PINS = 113, DMA_BUF = 124, MPS = 133 };
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &context));
    if (value == NULL || attribute < 1 || attribute > LAST_ATTRIBUTE)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    const struct emu_place *place = &context->place;
    const struct emu_settings *settings = &emu_state()->settings;
    switch (attribute) {
    case SMS:
        *value = (int)cuda_place_sms(place);
        break;
    case BUS:
        *value = (int)emu_bus(place->gpu);
        break;
    case MAJOR:
        *value = emu_model_of(place->gpu)->major;
        break;
    case MINOR:
        *value = emu_model_of(place->gpu)->minor;
        break;
    case ORDERING:
        *value = (int)settings->ordering;
        break;
    case DMA_BUF:
        *value = (int)settings->dma_buf;
        break;
    case READ_ONLY_PINS:
        *value = (int)settings->read_only_pins;
        break;
    case MPS:
        *value = cuda_mps.link >= 0;
        break;
    default:
        *value = constant(attribute);
    }
    return cuda_leave(CUDA_SUCCESS);
}

/* Whole GPUs access each other's memory over PCIe too; native atomics need NVLink. Instances reach no other device. */
CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice source, CUdevice destination)
{
    enum { RANK = 1, ACCESS, NATIVE_ATOMICS, ARRAY_ACCESS };
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_device(source, &context));
    if (destination < 0 || destination >= cuda.count || destination == source)
        return cuda_leave(CUDA_ERROR_INVALID_DEVICE);
    if (value == NULL || attribute < RANK || attribute > ARRAY_ACCESS)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    const struct emu_place *from = &context->place, *to = &cuda.contexts[destination].place;
    bool is_whole = from->instance == 0 && to->instance == 0;
    bool is_linked = is_whole && emu_are_linked(from->gpu, to->gpu);
    *value = attribute == RANK ? !is_linked : attribute == NATIVE_ATOMICS ? is_linked : is_whole;
    return cuda_leave(CUDA_SUCCESS);
}
