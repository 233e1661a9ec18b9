/* libnvidia-ml: NVLinks, and which GPUs reach each other. */
#define _GNU_SOURCE
#include "nvml_internal.h"

enum { SWITCH_ID = 0x22a310de, FIRST_SWITCH_BUS = 0x0a, SWITCHES = 4 }; /* on buses that no GPU is on */

/* Enters for one link of a whole GPU. */
static nvmlReturn_t enter_link(nvmlDevice_t device, unsigned link, const void *into, struct nvml_target *target)
{
    TRY(nvml_enter_device(device, target));
    if (into == NULL || link >= EMU_LINKS)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    return emu_link_count(target->gpu) > 0 ? NVML_SUCCESS : nvml_leave(NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *isActive)
{
    struct nvml_target target;
    uint32_t end;
    ENTER(nvmlReturn_t);
    TRY(enter_link(device, link, isActive, &target));
    *isActive = emu_link(target.gpu, link, &end);
    return nvml_leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    struct nvml_target target;
    uint32_t end;
    ENTER(nvmlReturn_t);
    TRY(enter_link(device, link, pci, &target));
    if (!emu_link(target.gpu, link, &end))
        return nvml_leave(NVML_ERROR_NOT_SUPPORTED);
    if (end == EMU_NONE)
        nvml_pci_info(pci, FIRST_SWITCH_BUS + link % SWITCHES, SWITCH_ID);
    else
        nvml_pci_info(pci, emu_bus(end), emu_model_of(end)->pci_id);
    return nvml_leave(NVML_SUCCESS);
}

/* Over PCIe, GPUs that are not in MIG mode read and write each other's memory; atomics are NVLink's. */
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2, unsigned p2pIndex, unsigned *p2pStatus)
{
    enum { READ, WRITE, NVLINK, ATOMICS, PCIE, INDICES, IS_SUPPORTED = 0, NOT_SUPPORTED = 5 };
    struct nvml_target one, other;
    ENTER(nvmlReturn_t);
    TRY(nvml_enter_device(device1, &one));
    nvml_leave(NVML_SUCCESS);
    TRY(nvml_enter_device(device2, &other));
    if (p2pStatus == NULL || p2pIndex >= INDICES || one.gpu == other.gpu)
        return nvml_leave(NVML_ERROR_INVALID_ARGUMENT);
    bool is_of_nvlink = p2pIndex == NVLINK || p2pIndex == ATOMICS;
    bool is_there = is_of_nvlink ? emu_are_linked(one.gpu, other.gpu) : !one.state->mig && !other.state->mig;
    *p2pStatus = is_there ? IS_SUPPORTED : NOT_SUPPORTED;
    return nvml_leave(NVML_SUCCESS);
}
