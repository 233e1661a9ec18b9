/* What GPUs and MIG devices are called: names, addresses on the bus, UUIDs; and the versions of the software. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "internal.h"

enum { FIRST_BUS = 0x17, BUS_STEP = 0x10 };

int emu_cuda_version(void)
{
    switch (emu_state()->settings.driver) {
    case 535:
        return 12020;
    case 570:
        return 12080;
    case 580:
        return 13000;
    default:
        return 13050;
    }
}

uint32_t emu_bus(uint32_t gpu)
{
    return (FIRST_BUS + BUS_STEP * gpu) & 0xff;
}

void emu_bus_text(char *text, size_t len, uint32_t bus)
{
    snprintf(text, len, "%08X:%02X:00.0", 0U, bus);
}

void emu_bus_id(char *text, size_t len, uint32_t gpu)
{
    emu_bus_text(text, len, emu_bus(gpu));
}

void emu_device_name(char *text, size_t len, uint32_t gpu, const struct emu_instance *instance,
    const struct emu_compute *compute)
{
    const struct emu_model *model = emu_model_of(gpu);
    if (instance == NULL) {
        snprintf(text, len, "%s (emulated)", model->name);
        return;
    }
    const struct emu_profile *profile = &model->profiles[instance->profile];
    if (compute == NULL || compute->size == profile->slices)
        snprintf(text, len, "%s MIG %s (emulated)", model->name, profile->name);
    else
        snprintf(text, len, "%s MIG %uc.%s (emulated)", model->name, compute->size, profile->name);
}

/* -- UUIDs ---------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

/* The same place has the same UUID whenever it is cut, as on a real GPU. */
static void uuid_of(uint32_t gpu, uint64_t place, uint8_t version, uint8_t uuid[16])
{
    uint64_t word = mix(emu_state()->settings.serial + 0x9e3779b97f4a7c15U * (emu_state()->gpus[gpu].model + 1));
    word = mix(word + 0x9e3779b97f4a7c15U * (gpu + 1));
    for (int half = 0; half < 2; half++) {
        word = mix(word + 0x9e3779b97f4a7c15U * (place + 1));
        memcpy(uuid + 8 * half, &word, sizeof word);
    }
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | version << 4);
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

void emu_gpu_uuid(uint32_t gpu, uint8_t uuid[16])
{
    uuid_of(gpu, 0, 4, uuid);
}

void emu_mig_uuid(uint32_t gpu, uint32_t instance, uint32_t compute, uint8_t uuid[16])
{
    uuid_of(gpu, 1 + (uint64_t)instance * EMU_COMPUTE + compute, 5, uuid);
}

void emu_uuid_text(char *text, size_t len, const char *prefix, const uint8_t u[16])
{
    snprintf(text, len, "%s%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix, u[0], u[1],
        u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}
