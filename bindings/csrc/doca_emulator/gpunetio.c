/* libdoca_gpunetio: memory of an emulated GPU. GPU-only memory is not mapped for the CPU. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define BUS_ID "0000:3b:00.0"
enum { GPU_PAGE = 64 << 10 };

struct allocation {
    struct allocation *next;
    void *gpu, *bytes; /* the GPU's view, inaccessible to the CPU; the same bytes for the CPU */
    size_t len;
    int fd;
    bool is_on_gpu;
};

struct doca_gpu {
    enum priv_kind magic;
    struct allocation *allocations;
};

doca_error_t doca_gpu_create(const char *gpu_bus_id, struct doca_gpu **gpu_dev)
{
    FAULT();
    NEEDS(gpu_bus_id != NULL && gpu_dev != NULL, DOCA_ERROR_INVALID_VALUE);
    const char *known = getenv("DOCA_EMULATOR_GPU");
    known = known != NULL && *known != '\0' ? known : BUS_ID;
    bool is_known = strcasecmp(gpu_bus_id, known) == 0 || (strlen(known) > 5 && strcasecmp(gpu_bus_id, known + 5) == 0);
    NEEDS(is_known, DOCA_ERROR_NOT_FOUND);
    *gpu_dev = priv_doca_new(sizeof **gpu_dev, PRIV_GPU);
    return *gpu_dev != NULL ? DOCA_SUCCESS : DOCA_ERROR_NO_MEMORY;
}

doca_error_t doca_gpu_destroy(struct doca_gpu *gpu_dev)
{
    FAULT();
    VALID(gpu_dev, PRIV_GPU);
    NEEDS(gpu_dev->allocations == NULL, DOCA_ERROR_INVALID_VALUE);
    priv_doca_retire(gpu_dev);
    return DOCA_SUCCESS;
}

/* Reserves address space for `len` bytes at a multiple of `alignment`, and returns the excess. */
static char *reserve(size_t len, size_t alignment)
{
    char *all = mmap(NULL, len + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    size_t before = (alignment - (uintptr_t)all % alignment) % alignment;
    if (before > 0)
        munmap(all, before);
    if (alignment > before)
        munmap(all + before + len, alignment - before);
    return all + before;
}

static void release(struct allocation *one)
{
    if (one->bytes != NULL && one->bytes != one->gpu)
        munmap(one->bytes, one->len);
    if (one->gpu != NULL)
        munmap(one->gpu, one->len);
    if (one->fd >= 0)
        close(one->fd);
    free(one);
}

static struct allocation *allocate(size_t size, size_t alignment, bool is_on_gpu)
{
    struct allocation *one = calloc(1, sizeof *one);
    if (one == NULL)
        return NULL;
    one->len = (size + GPU_PAGE - 1) / GPU_PAGE * GPU_PAGE;
    one->is_on_gpu = is_on_gpu;
    one->fd = memfd_create("doca-emulator-gpu", MFD_CLOEXEC);
    bool made = one->fd >= 0 && ftruncate(one->fd, (off_t)one->len) == 0 &&
                (one->gpu = reserve(one->len, alignment)) != NULL;
    int access = is_on_gpu ? PROT_NONE : PROT_READ | PROT_WRITE;
    made = made && mmap(one->gpu, one->len, access, MAP_SHARED | MAP_FIXED, one->fd, 0) != MAP_FAILED;
    if (made && is_on_gpu) {
        void *bytes = mmap(NULL, one->len, PROT_READ | PROT_WRITE, MAP_SHARED, one->fd, 0);
        made = bytes != MAP_FAILED;
        one->bytes = made ? bytes : NULL;
    } else {
        one->bytes = one->gpu;
    }
    if (made)
        return one;
    release(one);
    return NULL;
}

doca_error_t doca_gpu_mem_alloc(struct doca_gpu *gpu_dev, size_t size, size_t alignment,
    enum doca_gpu_mem_type mtype, void **memptr_gpu, void **memptr_cpu)
{
    FAULT();
    VALID(gpu_dev, PRIV_GPU);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bool is_seen = mtype == DOCA_GPU_MEM_TYPE_GPU_CPU || mtype == DOCA_GPU_MEM_TYPE_CPU_GPU;
    NEEDS(size > 0 && size <= SIZE_MAX / 2 && (alignment & (alignment - 1)) == 0, DOCA_ERROR_INVALID_VALUE);
    NEEDS(memptr_gpu != NULL && (is_seen ? memptr_cpu != NULL : mtype == DOCA_GPU_MEM_TYPE_GPU),
        DOCA_ERROR_INVALID_VALUE);
    alignment = alignment < page ? page : alignment;
    if (mtype == DOCA_GPU_MEM_TYPE_GPU_CPU && alignment < GPU_PAGE)
        alignment = GPU_PAGE;
    struct allocation *one = allocate(size, alignment, mtype != DOCA_GPU_MEM_TYPE_CPU_GPU);
    NEEDS(one != NULL, DOCA_ERROR_NO_MEMORY);
    one->next = gpu_dev->allocations;
    gpu_dev->allocations = one;
    if (one->is_on_gpu)
        priv_doca_gpu_range_add((uintptr_t)one->gpu, one->len, (uintptr_t)one->bytes);
    *memptr_gpu = one->gpu;
    if (is_seen)
        *memptr_cpu = one->bytes;
    return DOCA_SUCCESS;
}

static struct allocation **find(struct doca_gpu *gpu, const void *memptr)
{
    struct allocation **at = &gpu->allocations;
    while (*at != NULL && (*at)->gpu != memptr)
        at = &(*at)->next;
    return at;
}

doca_error_t doca_gpu_mem_free(struct doca_gpu *gpu, void *memptr_gpu)
{
    FAULT();
    VALID(gpu, PRIV_GPU);
    struct allocation **at = find(gpu, memptr_gpu), *one = *at;
    NEEDS(one != NULL, DOCA_ERROR_INVALID_VALUE);
    *at = one->next;
    if (one->is_on_gpu)
        priv_doca_gpu_range_remove((uintptr_t)one->gpu);
    release(one);
    return DOCA_SUCCESS;
}

/* The caller closes the descriptor when no memory map needs it. */
doca_error_t doca_gpu_dmabuf_fd(struct doca_gpu *gpu_dev, void *memptr_gpu, size_t size, int *dmabuf_fd)
{
    FAULT();
    VALID(gpu_dev, PRIV_GPU);
    struct allocation *one = *find(gpu_dev, memptr_gpu);
    NEEDS(one != NULL && dmabuf_fd != NULL && size > 0 && size <= one->len, DOCA_ERROR_INVALID_VALUE);
    NEEDS(one->is_on_gpu && priv_doca_setting("DOCA_EMULATOR_DMABUF", 1, 0, 1) == 1, DOCA_ERROR_NOT_SUPPORTED);
    int fd = fcntl(one->fd, F_DUPFD_CLOEXEC, 0);
    NEEDS(fd >= 0, DOCA_ERROR_NOT_SUPPORTED);
    *dmabuf_fd = fd;
    return DOCA_SUCCESS;
}
