/* Handles of libnvidia-ml. */
#ifndef OFFPATH_GPU_EMULATOR_NVML_INTERNAL_H
#define OFFPATH_GPU_EMULATOR_NVML_INTERNAL_H

#include "internal.h"
#include "nvml.h"

enum nvml_kind { NVML_NO_HANDLE, NVML_DEVICE, NVML_MIG_DEVICE, NVML_INSTANCE, NVML_COMPUTE, NVML_EVENT_SET };

/* Names something of one session: a handle of an earlier session, or of something destroyed, is invalid. */
struct nvml_handle {
    enum nvml_kind kind;
    uint32_t gpu;
    uint64_t session, instance, compute; /* generations */
};

/* What a handle stands for. instance and compute are NULL where the kind has none. */
struct nvml_target {
    uint32_t gpu;
    struct emu_gpu *state;
    struct emu_instance *instance;
    struct emu_compute *compute;
};

struct nvml_handle *nvml_handle(enum nvml_kind kind, uint32_t gpu, uint64_t instance, uint64_t compute);
void nvml_forget(struct nvml_handle *handle);
bool nvml_is_handle(const struct nvml_handle *handle, enum nvml_kind kind);
bool nvml_is_initialized(void);

/* Takes the machine's lock, drops what dead processes had, and resolves a handle. On an error nothing is locked. */
nvmlReturn_t nvml_enter(void);
nvmlReturn_t nvml_enter_device(const struct nvml_handle *handle, struct nvml_target *target); /* a whole GPU */
nvmlReturn_t nvml_enter_any(const struct nvml_handle *handle, struct nvml_target *target);    /* or a MIG device */
nvmlReturn_t nvml_enter_instance(const struct nvml_handle *handle, struct nvml_target *target);
nvmlReturn_t nvml_enter_compute(const struct nvml_handle *handle, struct nvml_target *target);
nvmlReturn_t nvml_leave(nvmlReturn_t result); /* unlocks */
nvmlReturn_t nvml_copy_text(char *to, unsigned length, const char *text);

void nvml_pci_info(nvmlPciInfo_t *pci, uint32_t bus, uint32_t id); /* of a device with this number of its bus */

/* The MIG devices that this process sees: those of the machine or, with OFFPATH_GPU_EMULATOR_STALE=1, those at the time
 * when this process last opened NVML or changed an instance. */
const struct emu_gpu *nvml_seen(uint32_t gpu);
void nvml_see(void);

#define TRY(expression) \
    do { \
        nvmlReturn_t tried_ = (expression); \
        if (tried_ != NVML_SUCCESS) \
            return tried_; \
    } while (0)

#endif
