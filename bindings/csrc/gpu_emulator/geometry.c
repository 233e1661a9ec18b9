/* Which instances a GPU can be cut into, where they lie and what they are called. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "internal.h"

static const uint32_t compute_slices[] = {1, 2, 3, 4, 7, 8, 6}; /* of the numbers 0 to 6 */

const struct emu_model *emu_model_of(uint32_t gpu)
{
    return emu_model(emu_state()->gpus[gpu].model);
}

const struct emu_profile *emu_profile_numbered(const struct emu_model *model, uint32_t number)
{
    for (uint32_t i = 0; i < model->profile_count; i++)
        if (model->profiles[i].number == number)
            return &model->profiles[i];
    return NULL;
}

const struct emu_profile *emu_profile_with_id(const struct emu_model *model, uint32_t id)
{
    for (uint32_t i = 0; i < model->profile_count; i++)
        if (model->profiles[i].id == id)
            return &model->profiles[i];
    return NULL;
}

/* -- memory --------------------------------------------------------------------------------------------------------- */

uint64_t emu_slice_bytes(uint32_t gpu)
{
    uint64_t set = emu_state()->settings.slice_bytes;
    const struct emu_model *model = emu_model_of(gpu);
    return set != 0 ? set : (uint64_t)model->memory_mib * EMU_MIB / model->memory_slices / EMU_PAGE * EMU_PAGE;
}

uint64_t emu_gpu_bytes(uint32_t gpu)
{
    return emu_slice_bytes(gpu) * emu_model_of(gpu)->memory_slices;
}

uint64_t emu_profile_bytes(uint32_t gpu, const struct emu_profile *profile)
{
    uint64_t room = profile->size * emu_slice_bytes(gpu), real = (uint64_t)profile->memory_mib * EMU_MIB;
    return emu_state()->settings.slice_bytes != 0 || room < real ? room : real / EMU_PAGE * EMU_PAGE;
}

/* -- GPU instances -------------------------------------------------------------------------------------------------- */

/* A tree by memory slices: 0 is the whole, 1 and 2 are its halves, 3 to 6 its quarters, 7 to 14 its eighths. */
static uint32_t instance_id(const struct emu_model *model, const struct emu_profile *profile, uint32_t start)
{
    return model->memory_slices / profile->size - 1 + start / profile->size;
}

static bool is_free(uint32_t gpu, uint32_t start, uint32_t size)
{
    const struct emu_model *model = emu_model_of(gpu);
    for (uint32_t i = 0; i < EMU_INSTANCES; i++) {
        const struct emu_instance *other = &emu_state()->gpus[gpu].instances[i];
        if (other->generation == 0)
            continue;
        uint32_t end = other->start + model->profiles[other->profile].size;
        if (start < end && other->start < start + size)
            return false;
    }
    return true;
}

/* Compute slices and, for profiles that exist a limited number of times, instances. */
static bool has_room(uint32_t gpu, const struct emu_profile *profile)
{
    const struct emu_model *model = emu_model_of(gpu);
    uint32_t slices = profile->slices, same = 1;
    bool has_media = strstr(profile->name, "+me") != NULL;
    for (uint32_t i = 0; i < EMU_INSTANCES; i++) {
        const struct emu_instance *other = &emu_state()->gpus[gpu].instances[i];
        if (other->generation == 0)
            continue;
        const struct emu_profile *cut = &model->profiles[other->profile];
        slices += cut->slices;
        same += cut == profile || (has_media && strstr(cut->name, "+me") != NULL);
    }
    return slices <= model->slices && same <= profile->most;
}

static bool is_possible(const struct emu_profile *profile, uint32_t start)
{
    for (uint32_t i = 0; i < profile->start_count; i++)
        if (profile->starts[i] == start)
            return true;
    return false;
}

enum emu_cut emu_cut(uint32_t gpu, const struct emu_profile *profile, uint32_t start, struct emu_instance **made)
{
    const struct emu_model *model = emu_model_of(gpu);
    for (uint32_t i = 0; start == EMU_NONE && i < profile->start_count; i++)
        if (is_free(gpu, profile->starts[i], profile->size))
            start = profile->starts[i];
    if (start == EMU_NONE)
        return EMU_TAKEN;
    if (!is_possible(profile, start))
        return EMU_IMPOSSIBLE;
    if (!is_free(gpu, start, profile->size) || !has_room(gpu, profile))
        return EMU_TAKEN;
    uint32_t id = instance_id(model, profile, start);
    struct emu_instance *instance = &emu_state()->gpus[gpu].instances[id];
    memset(instance, 0, sizeof *instance);
    instance->id = id;
    instance->profile = (uint32_t)(profile - model->profiles);
    instance->start = start;
    EMU_VALIDATE(instance->generation, emu_generation());
    *made = instance;
    return EMU_CUT;
}

/* Starts of one profile never overlap partly, so taking each free one gives the most. */
uint32_t emu_remaining(uint32_t gpu, const struct emu_profile *profile)
{
    const struct emu_model *model = emu_model_of(gpu);
    uint32_t slices = 0, same = 0, count = 0;
    for (uint32_t i = 0; i < EMU_INSTANCES; i++) {
        const struct emu_instance *other = &emu_state()->gpus[gpu].instances[i];
        if (other->generation == 0)
            continue;
        slices += model->profiles[other->profile].slices;
        same += &model->profiles[other->profile] == profile;
    }
    for (uint32_t i = 0; i < profile->start_count; i++)
        count += is_free(gpu, profile->starts[i], profile->size);
    uint32_t by_slices = (model->slices - slices) / profile->slices, by_count = profile->most - same;
    count = count < by_slices ? count : by_slices;
    return count < by_count ? count : by_count;
}

/* -- compute instances ---------------------------------------------------------------------------------------------- */

uint32_t emu_compute_slices(uint32_t profile)
{
    return profile < sizeof compute_slices / sizeof *compute_slices ? compute_slices[profile] : 0;
}

bool emu_compute_fits(const struct emu_profile *of, uint32_t profile)
{
    uint32_t slices = emu_compute_slices(profile);
    return slices != 0 && slices <= of->slices && !(slices == 3 && of->slices == 4);
}

/* The lowest number that no MIG device of the GPU has. */
static uint32_t free_index(uint32_t gpu)
{
    bool taken[EMU_INSTANCES * EMU_COMPUTE] = {false};
    for (uint32_t i = 0; i < EMU_INSTANCES * EMU_COMPUTE; i++) {
        const struct emu_instance *instance = &emu_state()->gpus[gpu].instances[i / EMU_COMPUTE];
        const struct emu_compute *compute = &instance->compute[i % EMU_COMPUTE];
        if (instance->generation != 0 && compute->generation != 0)
            taken[compute->index] = true;
    }
    uint32_t index = 0;
    while (taken[index])
        index++;
    return index;
}

static bool is_compute_free(const struct emu_instance *instance, uint32_t start, uint32_t size)
{
    for (uint32_t i = 0; i < EMU_COMPUTE; i++) {
        const struct emu_compute *other = &instance->compute[i];
        if (other->generation != 0 && start < other->start + other->size && other->start < start + size)
            return false;
    }
    return true;
}

enum emu_cut emu_cut_compute(uint32_t gpu, struct emu_instance *instance, uint32_t profile, struct emu_compute **made)
{
    uint32_t slices = emu_compute_slices(profile), start = 0, id = 0;
    uint32_t all = emu_model_of(gpu)->profiles[instance->profile].slices;
    while (start + slices <= all && !is_compute_free(instance, start, slices))
        start++;
    if (start + slices > all)
        return EMU_TAKEN;
    while (instance->compute[id].generation != 0)
        id++;
    uint32_t index = free_index(gpu);
    instance->compute[id] = (struct emu_compute){0, id, profile, start, slices, index};
    EMU_VALIDATE(instance->compute[id].generation, emu_generation());
    *made = &instance->compute[id];
    return EMU_CUT;
}
