/* Memory maps: one range each, set once, changed only while stopped. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "memory.h"

enum { ALL_FLAGS = 127, ALIGNMENT = 64 };

struct doca_mmap *emu_map_new(void)
{
    struct doca_mmap *made = priv_doca_new(sizeof *made, PRIV_MMAP);
    if (made == NULL)
        return NULL;
    made->max_devices = 1;
    made->permissions = DOCA_ACCESS_FLAG_LOCAL_READ_WRITE;
    made->fd = made->pidfd = -1;
    pthread_mutex_init(&made->moving, NULL);
    return made;
}

doca_error_t doca_mmap_create(struct doca_mmap **mmap)
{
    FAULT();
    NEEDS(mmap != NULL, DOCA_ERROR_INVALID_VALUE);
    *mmap = emu_map_new();
    return *mmap != NULL ? DOCA_SUCCESS : DOCA_ERROR_NO_MEMORY;
}

void emu_map_let_go(struct doca_mmap *mmap)
{
    emu_exports_revoke(mmap);
    emu_import_close(mmap);
    if (mmap->is_dmabuf)
        munmap((void *)(uintptr_t)mmap->backing, mmap->len);
    for (uint32_t i = 0; i < mmap->device_count; i++)
        atomic_fetch_sub(&mmap->devices[i]->users, 1);
    if (mmap->free_cb != NULL)
        mmap->free_cb((void *)(uintptr_t)mmap->addr, mmap->len, mmap->free_cookie);
    pthread_mutex_destroy(&mmap->moving);
    priv_doca_retire(mmap);
}

doca_error_t doca_mmap_destroy(struct doca_mmap *mmap)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    if (atomic_load(&mmap->bufs) > 0) {
        NEEDS(mmap->is_thread_safe, DOCA_ERROR_NOT_PERMITTED);
        emu_exports_revoke(mmap);
        mmap->is_dying = true; /* freed with its last buffer */
        return DOCA_SUCCESS;
    }
    emu_map_let_go(mmap);
    return DOCA_SUCCESS;
}

void emu_map_buf_gone(struct doca_mmap *mmap)
{
    if (atomic_fetch_sub(&mmap->bufs, 1) == 1 && mmap->is_dying)
        emu_map_let_go(mmap);
}

doca_error_t doca_mmap_start(struct doca_mmap *mmap)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    NEEDS(mmap->state == EMU_FRESH || mmap->state == EMU_STOPPED, DOCA_ERROR_NOT_PERMITTED);
    NEEDS(mmap->len > 0 && mmap->device_count > 0, DOCA_ERROR_INVALID_VALUE);
    if (!mmap->is_dmabuf && emu_gpu_range_find(mmap->addr, mmap->len, &mmap->backing)) {
        if (priv_doca_setting("DOCA_EMULATOR_PEERMEM", 1, 0, 1) == 0) {
            priv_doca_log(DOCA_LOG_LEVEL_ERROR, "memory of a GPU, no dmabuf and no peermem");
            return DOCA_ERROR_DRIVER;
        }
    }
    if (mmap->addr % ALIGNMENT != 0)
        priv_doca_log(DOCA_LOG_LEVEL_WARNING, "memory range is not aligned to %d bytes: slower", ALIGNMENT);
    mmap->state = EMU_STARTED;
    mmap->was_started = true;
    return DOCA_SUCCESS;
}

doca_error_t doca_mmap_stop(struct doca_mmap *mmap)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    NEEDS(atomic_load(&mmap->bufs) == 0, DOCA_ERROR_NOT_PERMITTED);
    if (mmap->state == EMU_STARTED) {
        emu_exports_revoke(mmap);
        mmap->state = EMU_STOPPED;
    } else if (mmap->state == EMU_IMPORTED) {
        emu_import_close(mmap);
    }
    return DOCA_SUCCESS;
}

static bool is_stopped(const struct doca_mmap *mmap)
{
    return mmap->state == EMU_FRESH || mmap->state == EMU_STOPPED;
}

doca_error_t doca_mmap_add_dev(struct doca_mmap *mmap, struct doca_dev *dev)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    VALID(dev, PRIV_DEV);
    NEEDS(is_stopped(mmap), DOCA_ERROR_NOT_PERMITTED);
    for (uint32_t i = 0; i < mmap->device_count; i++)
        NEEDS(mmap->devices[i] != dev, DOCA_ERROR_ALREADY_EXIST);
    NEEDS(mmap->device_count < mmap->max_devices, DOCA_ERROR_NO_MEMORY);
    mmap->devices[mmap->device_count++] = dev;
    atomic_fetch_add(&dev->users, 1);
    return DOCA_SUCCESS;
}

doca_error_t doca_mmap_rm_dev(struct doca_mmap *mmap, struct doca_dev *dev)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    VALID(dev, PRIV_DEV);
    NEEDS(is_stopped(mmap), DOCA_ERROR_NOT_PERMITTED);
    for (uint32_t i = 0; i < mmap->device_count; i++) {
        if (mmap->devices[i] == dev) {
            mmap->devices[i] = mmap->devices[--mmap->device_count];
            atomic_fetch_sub(&dev->users, 1);
            return DOCA_SUCCESS;
        }
    }
    return DOCA_ERROR_NOT_FOUND;
}

/* Checks common to both kinds of range, in the order of the errors' precedence. */
static doca_error_t may_set_range(const struct doca_mmap *mmap, uint64_t addr, size_t len)
{
    NEEDS(addr != 0 && len > 0 && addr + len > addr, DOCA_ERROR_INVALID_VALUE);
    NEEDS(mmap->state == EMU_FRESH, mmap->state == EMU_IMPORTED ? DOCA_ERROR_NOT_PERMITTED : DOCA_ERROR_BAD_STATE);
    NEEDS(mmap->len == 0, DOCA_ERROR_NOT_PERMITTED);
    return DOCA_SUCCESS;
}

doca_error_t doca_mmap_set_memrange(struct doca_mmap *mmap, void *addr, size_t len)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    doca_error_t refused = may_set_range(mmap, (uintptr_t)addr, len);
    NEEDS(refused == DOCA_SUCCESS, refused);
    mmap->addr = mmap->backing = (uintptr_t)addr;
    mmap->len = len;
    return DOCA_SUCCESS;
}

/* The descriptor may be closed once this returns: the mapping keeps the memory. */
doca_error_t doca_mmap_set_dmabuf_memrange(struct doca_mmap *mmap, int dmabuf_fd, void *addr, size_t dmabuf_offset,
    size_t len)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    NEEDS(priv_doca_setting("DOCA_EMULATOR_DMABUF", 1, 0, 1) == 1, DOCA_ERROR_NOT_SUPPORTED);
    doca_error_t refused = may_set_range(mmap, (uintptr_t)addr, len);
    NEEDS(refused == DOCA_SUCCESS, refused);
    struct stat found;
    NEEDS(fstat(dmabuf_fd, &found) == 0 && S_ISREG(found.st_mode), DOCA_ERROR_INVALID_VALUE);
    size_t size = (size_t)found.st_size;
    NEEDS(dmabuf_offset % 4096 == 0 && dmabuf_offset <= size && len <= size - dmabuf_offset, DOCA_ERROR_INVALID_VALUE);
    void *bytes = emu_map_file(dmabuf_fd, dmabuf_offset, len, true);
    NEEDS(bytes != NULL, DOCA_ERROR_INVALID_VALUE);
    mmap->addr = (uintptr_t)addr;
    mmap->len = len;
    mmap->backing = (uintptr_t)bytes;
    mmap->is_dmabuf = true;
    return DOCA_SUCCESS;
}

doca_error_t doca_mmap_get_memrange(const struct doca_mmap *mmap, void **addr, size_t *len)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    NEEDS(addr != NULL && len != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(mmap->len > 0, DOCA_ERROR_BAD_STATE);
    *addr = (void *)(uintptr_t)mmap->addr;
    *len = mmap->len;
    return DOCA_SUCCESS;
}

/* No document lists the legal combinations; contradictory ones are refused. */
doca_error_t doca_mmap_set_permissions(struct doca_mmap *mmap, uint32_t access_mask)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    uint32_t both = DOCA_ACCESS_FLAG_PCI_READ_ONLY | DOCA_ACCESS_FLAG_PCI_READ_WRITE;
    NEEDS((access_mask & ~(uint32_t)ALL_FLAGS) == 0 && (access_mask & both) != both, DOCA_ERROR_INVALID_VALUE);
    NEEDS(is_stopped(mmap), DOCA_ERROR_BAD_STATE);
    mmap->permissions = access_mask;
    return DOCA_SUCCESS;
}

doca_error_t doca_mmap_set_max_num_devices(struct doca_mmap *mmap, uint32_t max_num_devices)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    NEEDS(max_num_devices > 0 && max_num_devices <= EMU_MAX_DEVICES && max_num_devices >= mmap->device_count,
        DOCA_ERROR_INVALID_VALUE);
    NEEDS(!mmap->was_started && mmap->state == EMU_FRESH, DOCA_ERROR_NOT_PERMITTED);
    mmap->max_devices = max_num_devices;
    return DOCA_SUCCESS;
}

doca_error_t doca_mmap_set_user_data(struct doca_mmap *mmap, union doca_data user_data)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    NEEDS(is_stopped(mmap), DOCA_ERROR_BAD_STATE);
    mmap->user_data = user_data;
    return DOCA_SUCCESS;
}

doca_error_t doca_mmap_set_free_cb(struct doca_mmap *mmap, doca_mmap_memrange_free_cb_t *free_cb, void *opaque)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    NEEDS(free_cb != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(is_stopped(mmap), DOCA_ERROR_BAD_STATE);
    mmap->free_cb = free_cb;
    mmap->free_cookie = opaque;
    return DOCA_SUCCESS;
}

doca_error_t doca_mmap_get_num_bufs(const struct doca_mmap *mmap, uint32_t *num_bufs)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    NEEDS(num_bufs != NULL, DOCA_ERROR_INVALID_VALUE);
    *num_bufs = atomic_load(&mmap->bufs);
    return DOCA_SUCCESS;
}

#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_mmap_enable_thread_safety(struct doca_mmap *mmap)
{
    FAULT();
    VALID(mmap, PRIV_MMAP);
    NEEDS(mmap->state == EMU_FRESH, DOCA_ERROR_NOT_PERMITTED);
    mmap->is_thread_safe = true;
    return DOCA_SUCCESS;
}
#endif

/* The host exports and the DPU imports: the direction of all samples. */
doca_error_t doca_mmap_cap_is_export_pci_supported(const struct doca_devinfo *devinfo, uint8_t *mmap_export)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(mmap_export != NULL, DOCA_ERROR_INVALID_VALUE);
    *mmap_export = !devinfo->function.on_dpu;
    return DOCA_SUCCESS;
}

doca_error_t doca_mmap_cap_is_create_from_export_pci_supported(const struct doca_devinfo *devinfo,
    uint8_t *from_export)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(from_export != NULL, DOCA_ERROR_INVALID_VALUE);
    *from_export = devinfo->function.on_dpu;
    return DOCA_SUCCESS;
}

bool emu_map_holds(const struct doca_mmap *mmap, uint64_t addr, size_t len)
{
    return addr >= mmap->addr && addr - mmap->addr <= mmap->len && len <= mmap->len - (addr - mmap->addr);
}

doca_error_t priv_doca_may_move(struct doca_mmap *mmap, const struct doca_dev *dev, bool writes)
{
    LIVE(mmap, PRIV_MMAP);
    bool has_device = false;
    for (uint32_t i = 0; i < mmap->device_count; i++)
        has_device |= mmap->devices[i] == dev;
    uint32_t wanted = writes ? DOCA_ACCESS_FLAG_LOCAL_READ_WRITE : 0;
    if (mmap->state == EMU_IMPORTED) {
        wanted = DOCA_ACCESS_FLAG_PCI_READ_WRITE | (writes ? 0U : (uint32_t)DOCA_ACCESS_FLAG_PCI_READ_ONLY);
        NEEDS(mmap->file != NULL && mmap->file->kind == EMU_PCI, DOCA_ERROR_NOT_PERMITTED);
    } else {
        /* Memory that its owner may write for the card is memory that the card may write for its owner. */
        wanted |= writes ? (uint32_t)DOCA_ACCESS_FLAG_PCI_READ_WRITE : 0U;
        NEEDS(mmap->state == EMU_STARTED, DOCA_ERROR_NOT_PERMITTED);
    }
    return has_device && (wanted == 0 || (mmap->permissions & wanted) != 0) ? DOCA_SUCCESS : DOCA_ERROR_NOT_PERMITTED;
}
