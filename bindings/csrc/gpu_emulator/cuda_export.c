/* libcuda: memory that peers reach. An exported part of an allocation becomes a file of its own. While its descriptor
 * is open or mapped in any process, a lock on it keeps the instance in use, as a dma-buf does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_internal.h"

enum { NAME = 64, ORDERED_FROM = 100, PAGE = 4096 };

/* -- two memories --------------------------------------------------------------------------------------------------- */

/* Moves to `to` what `from` has other than when both were equal. */
static void carry(uint8_t *to, const uint8_t *from, uint8_t *synced, uint64_t len)
{
    for (uint64_t page = 0; page < len; page += PAGE) {
        uint64_t end = page + PAGE < len ? page + PAGE : len;
        if (memcmp(from + page, synced + page, end - page) == 0)
            continue;
        for (uint64_t i = page; i < end; i++)
            if (from[i] != synced[i])
                to[i] = synced[i] = from[i];
    }
}

void cuda_show_peers(struct cuda_context *context)
{
    for (struct cuda_export *one = context->exports; one != NULL; one = one->next)
        if (one->peer != NULL)
            carry(one->peer, context->view + one->at, one->synced, one->len);
}

CUresult cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    enum { CURRENT_CONTEXT = 0, OWNER = 100, ALL_DEVICES = 200 };
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    if (target != CURRENT_CONTEXT || (scope != OWNER && scope != ALL_DEVICES))
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    for (struct cuda_export *one = context->exports; one != NULL; one = one->next)
        if (one->peer != NULL)
            carry(context->view + one->at, one->peer, one->synced, one->len);
    return cuda_leave(CUDA_SUCCESS);
}

/* -- exporting ------------------------------------------------------------------------------------------------------ */

static struct emu_export *row(const struct cuda_export *one)
{
    return &emu_state()->exports[one->slot];
}

/* Under the machine's lock: a row of its table, or false. */
static bool take_row(struct cuda_context *context, struct cuda_export *one, bool is_separate)
{
    for (uint32_t i = 0; i < EMU_EXPORTS; i++) {
        struct emu_export *export = &emu_state()->exports[i];
        if (export->number != 0)
            continue;
        *export = (struct emu_export){0, context->base + one->at, one->len, context->place.instance, context->client,
            context->place.gpu, is_separate};
        EMU_VALIDATE(export->number, emu_generation());
        one->slot = i;
        return true;
    }
    return false;
}

/* A descriptor of its own of the export's file, which a shared lock keeps in use. */
static int open_file(const struct cuda_export *one)
{
    char name[NAME];
    emu_export_name(name, sizeof name, row(one)->number);
    return emu_hold(name);
}

/* The file gets the device's bytes. Then both are one memory or, without ordered writes, two. */
static bool join(struct cuda_context *context, struct cuda_export *one, int fd)
{
    uint8_t *bytes = context->view + one->at;
    if (ftruncate(fd, (off_t)one->len) != 0)
        return false;
    bool is_separate = row(one)->is_separate;
    void *peer = mmap(NULL, one->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (peer == MAP_FAILED)
        return false;
    memcpy(peer, bytes, one->len);
    if (!is_separate) {
        munmap(peer, one->len);
        return mmap(bytes, one->len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
    }
    one->peer = peer;
    one->synced = malloc(one->len);
    if (one->synced != NULL)
        memcpy(one->synced, bytes, one->len);
    return one->synced != NULL;
}

/* Opens the file a second time for what maps it here: a mapping keeps the lock of the descriptor that it came from. */
static int unlocked(const struct cuda_export *one)
{
    char name[NAME];
    emu_export_name(name, sizeof name, row(one)->number);
    return emu_file(name, O_RDWR | O_CREAT);
}

static int export(struct cuda_context *context, uint64_t at, uint64_t len, CUresult *result)
{
    struct cuda_export *one = calloc(1, sizeof *one);
    bool is_separate = emu_state()->settings.ordering < ORDERED_FROM;
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (one == NULL)
        return -1;
    one->at = at;
    one->len = len;
    emu_lock();
    emu_reap();
    bool is_taken = take_row(context, one, is_separate);
    emu_unlock();
    int mapped = is_taken ? unlocked(one) : -1;
    bool is_joined = mapped >= 0 && join(context, one, mapped);
    if (mapped >= 0)
        close(mapped);
    int fd = is_joined ? open_file(one) : -1;
    if (fd < 0) {
        if (is_taken)
            row(one)->client = EMU_NONE; /* dropped with the next look at the table */
        free(one->synced);
        free(one);
        return -1;
    }
    one->next = context->exports;
    context->exports = one;
    *result = CUDA_SUCCESS;
    return fd;
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t len, int type, uint64_t flags)
{
    enum { DMA_BUF_FD = 1, BY_PCIE = 1 };
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint8_t *bytes = cuda_bytes(context, ptr, len);
    if (emu_state()->settings.dma_buf == 0 || flags == BY_PCIE)
        return cuda_leave(CUDA_ERROR_NOT_SUPPORTED);
    if (handle == NULL || type != DMA_BUF_FD || flags != 0 || len == 0 || ptr % page != 0 || len % page != 0 || !bytes)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t at = (uint64_t)(bytes - context->view);
    CUresult result = CUDA_SUCCESS;
    int fd = -1;
    for (struct cuda_export *one = context->exports; one != NULL && fd < 0; one = one->next) {
        if (one->at == at && one->len == len)
            fd = open_file(one);
        else if (one->at < at + len && at < one->at + one->len)
            return cuda_leave(CUDA_ERROR_NOT_SUPPORTED); /* parts that overlap are not emulated */
    }
    if (fd < 0)
        fd = export(context, at, len, &result);
    if (fd >= 0)
        *(int *)handle = fd;
    return cuda_leave(result);
}

/* -- the end of an export ------------------------------------------------------------------------------------------- */

/* The device's bytes stay in the memory. The peers keep the file, which is detached from the memory. */
static void drop(struct cuda_context *context, struct cuda_export *one)
{
    emu_lock();
    emu_export_into_memory(row(one));
    row(one)->client = EMU_NONE;
    emu_unlock();
    if (one->peer != NULL)
        munmap(one->peer, one->len);
    else {
        char name[NAME];
        snprintf(name, sizeof name, "memory-%u", context->place.gpu);
        int fd = emu_file(name, O_RDWR);
        off_t at = (off_t)(context->base + one->at);
        int flags = MAP_SHARED | MAP_FIXED;
        if (fd < 0 || mmap(context->view + one->at, one->len, PROT_READ | PROT_WRITE, flags, fd, at) == MAP_FAILED)
            emu_strict("cuMemFree", "the memory of the GPU cannot be mapped again");
        close(fd);
    }
    free(one->synced);
    free(one);
}

void cuda_drop_exports(struct cuda_context *context, uint64_t at, uint64_t len)
{
    struct cuda_export **next = &context->exports;
    while (*next != NULL) {
        struct cuda_export *one = *next;
        if (one->at < at || one->at >= at + len) {
            next = &one->next;
            continue;
        }
        *next = one->next;
        drop(context, one);
    }
}
