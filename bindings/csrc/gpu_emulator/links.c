/* NVLinks between GPUs: between two of them, or from each to the switches. */
#define _GNU_SOURCE
#include "internal.h"

uint32_t emu_link_count(uint32_t gpu)
{
    const struct emu_settings *settings = &emu_state()->settings;
    uint32_t count = (uint32_t)settings->switch_links;
    for (uint32_t other = 0; other < EMU_GPUS; other++)
        count += settings->links[gpu][other];
    return count;
}

/* GPUs in MIG mode reach no other GPU. */
static bool is_linkable(uint32_t gpu)
{
    return !emu_state()->gpus[gpu].mig && !emu_state()->gpus[gpu].is_lost;
}

bool emu_link(uint32_t gpu, uint32_t number, uint32_t *end)
{
    const struct emu_settings *settings = &emu_state()->settings;
    *end = EMU_NONE;
    if (number >= emu_link_count(gpu) || !is_linkable(gpu))
        return false;
    for (uint32_t other = 0; number >= settings->switch_links && other < EMU_GPUS; other++) {
        if (number < settings->links[gpu][other]) {
            *end = other;
            return is_linkable(other);
        }
        number -= settings->links[gpu][other];
    }
    return true;
}

bool emu_are_linked(uint32_t gpu, uint32_t other)
{
    const struct emu_settings *settings = &emu_state()->settings;
    bool has_links = settings->switch_links > 0 || settings->links[gpu][other] > 0;
    return gpu != other && has_links && is_linkable(gpu) && is_linkable(other);
}
