/* libcuda: device memory, pinned host memory, and attributes of pointers. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_internal.h"

enum { SMALL_PAGE = 64 << 10, LARGE_FROM = 1 << 20 };

/* -- addresses ------------------------------------------------------------------------------------------------------ */

static uint64_t address(const struct cuda_context *context, uint64_t at)
{
    return (uint64_t)(uintptr_t)context->window + at;
}

struct cuda_allocation *cuda_allocation_at(struct cuda_context *context, CUdeviceptr ptr)
{
    for (struct cuda_allocation *one = context->allocations; one != NULL; one = one->next)
        if (ptr >= address(context, one->at) && ptr < address(context, one->at) + one->len)
            return one;
    return NULL;
}

uint8_t *cuda_bytes(struct cuda_context *context, CUdeviceptr ptr, uint64_t len)
{
    const struct cuda_allocation *one = cuda_allocation_at(context, ptr);
    if (one == NULL || len > one->len - (ptr - address(context, one->at)))
        return NULL;
    return context->view + (ptr - address(context, 0));
}

void *cuda_emulator_host_address(CUdeviceptr ptr)
{
    struct cuda_context *context;
    if (cuda_enter_context(&context) != CUDA_SUCCESS)
        return NULL;
    void *bytes = cuda_bytes(context, ptr, 0);
    cuda_leave(CUDA_SUCCESS);
    return bytes;
}

/* -- allocation ----------------------------------------------------------------------------------------------------- */

/* The first gap of `len` bytes in the place's memory; under the machine's lock. Memory keeps
 * the bytes of its former owner. */
static bool find_gap(const struct cuda_context *context, uint64_t len, uint64_t page, uint64_t *at)
{
    const struct emu_state *state = emu_state();
    uint64_t begin = context->base, end = context->base + context->bytes;
    for (bool moved = true; moved && begin + len <= end;) {
        moved = false;
        for (uint32_t i = 0; i < EMU_ALLOCATIONS; i++) {
            const struct emu_allocation *other = &state->allocations[i];
            if (other->len == 0 || other->gpu != context->place.gpu)
                continue;
            if (begin < other->at + other->len && other->at < begin + len) {
                begin = (other->at + other->len + page - 1) / page * page;
                moved = true;
            }
        }
    }
    *at = begin;
    return begin + len <= end;
}

static uint64_t used_by(uint32_t client)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < EMU_ALLOCATIONS; i++)
        if (emu_state()->allocations[i].len != 0 && emu_state()->allocations[i].client == client)
            used += emu_state()->allocations[i].len;
    return used;
}

/* A row of the machine's table. Under its lock. */
static bool take(const struct cuda_context *context, uint64_t len, uint64_t page, uint32_t *slot, uint64_t *at)
{
    struct emu_state *state = emu_state();
    if (context->limit != 0 && used_by(context->client) + len > context->limit)
        return false;
    if (!find_gap(context, len, page, at))
        return false;
    for (uint32_t i = 0; i < EMU_ALLOCATIONS; i++) {
        if (state->allocations[i].len != 0)
            continue;
        state->allocations[i] = (struct emu_allocation){*at, 0, context->client, context->place.gpu};
        EMU_VALIDATE(state->allocations[i].len, len);
        *slot = i;
        return true;
    }
    return false;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t len)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    if (ptr == NULL || len == 0)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t page = len >= LARGE_FROM ? EMU_PAGE : SMALL_PAGE, at = 0;
    struct cuda_allocation *one = len <= context->bytes ? calloc(1, sizeof *one) : NULL;
    if (one == NULL)
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    emu_lock();
    emu_reap();
    bool is_taken = take(context, (len + page - 1) / page * page, page, &one->slot, &at);
    emu_unlock();
    if (!is_taken) {
        free(one);
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    one->at = at - context->base;
    one->len = len;
    one->next = context->allocations;
    context->allocations = one;
    *ptr = address(context, one->at);
    return cuda_leave(CUDA_SUCCESS);
}

static void release(struct cuda_context *context, struct cuda_allocation *one)
{
    cuda_drop_exports(context, one->at, one->len);
    emu_lock();
    emu_state()->allocations[one->slot].len = 0;
    emu_unlock();
    free(one);
}

/* Waits for all work, as the real call does in effect. */
CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    if (ptr == 0)
        return cuda_leave(CUDA_SUCCESS);
    struct cuda_allocation **at = &context->allocations;
    while (*at != NULL && address(context, (*at)->at) != ptr)
        at = &(*at)->next;
    if (*at == NULL)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    cuda_run_all(context);
    struct cuda_allocation *one = *at;
    *at = one->next;
    release(context, one);
    return cuda_leave(context->sticky);
}

/* The machine's rows are freed with the client, which knows whether the driver scrubs. */
void cuda_free_all(struct cuda_context *context)
{
    while (context->allocations != NULL) {
        struct cuda_allocation *one = context->allocations;
        context->allocations = one->next;
        cuda_drop_exports(context, one->at, one->len);
        free(one);
    }
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    if (free_bytes == NULL || total == NULL)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    emu_lock();
    emu_reap();
    uint64_t used = emu_used(context->place.gpu, context->place.instance);
    emu_unlock();
    *total = context->bytes;
    *free_bytes = context->bytes - used;
    return cuda_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *len, CUdeviceptr ptr)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    const struct cuda_allocation *one = cuda_allocation_at(context, ptr);
    if (one != NULL && base != NULL)
        *base = address(context, one->at);
    if (one != NULL && len != NULL)
        *len = one->len;
    return cuda_leave(one != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

/* -- pinned host memory --------------------------------------------------------------------------------------------- */

struct pinned {
    struct pinned *next;
    uintptr_t at;
    size_t len;
    bool is_allocated;
};
static struct pinned *pinned;

static bool overlaps(uintptr_t at, size_t len)
{
    for (const struct pinned *one = pinned; one != NULL; one = one->next)
        if (at < one->at + one->len && one->at < at + len)
            return true;
    return false;
}

bool cuda_is_pinned(const void *bytes, size_t len)
{
    for (const struct pinned *one = pinned; one != NULL; one = one->next)
        if ((uintptr_t)bytes >= one->at && (uintptr_t)bytes + len <= one->at + one->len)
            return true;
    return false;
}

static CUresult pin(void *bytes, size_t len, bool is_allocated)
{
    struct pinned *one = malloc(sizeof *one);
    NEEDS(one != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    *one = (struct pinned){pinned, (uintptr_t)bytes, len, is_allocated};
    pinned = one;
    return CUDA_SUCCESS;
}

static struct pinned *unpin(const void *bytes, bool is_allocated)
{
    struct pinned **at = &pinned;
    while (*at != NULL && !((*at)->at == (uintptr_t)bytes && (*at)->is_allocated == is_allocated))
        at = &(*at)->next;
    struct pinned *one = *at;
    if (one != NULL)
        *at = one->next;
    return one;
}

CUresult cuMemAllocHost_v2(void **bytes, size_t len)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    if (bytes == NULL || len == 0)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    void *made = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *bytes = made;
    return cuda_leave(pin(made, len, true));
}

CUresult cuMemFreeHost(void *bytes)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    cuda_run_all(context);
    struct pinned *one = unpin(bytes, true);
    if (one == NULL)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    munmap(bytes, one->len);
    free(one);
    return cuda_leave(context->sticky);
}

/* Whether the mapping that begins at or before `at` may be written. */
static bool is_writable(uintptr_t at)
{
    enum { WRITE = 1 };
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return true;
    char *line = NULL, access[8] = "";
    size_t room = 0;
    bool found = false;
    uintptr_t first, end;
    while (!found && getline(&line, &room, maps) > 0)
        found = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &first, &end, access) == 3 && first <= at && at < end;
    free(line);
    fclose(maps);
    return found && access[WRITE] == 'w';
}

/* Memory that is mapped read-only needs the flag, and a device that supports it. */
CUresult cuMemHostRegister_v2(void *bytes, size_t len, unsigned flags)
{
    enum { PORTABLE = 1, DEVICE_MAP = 2, IO_MEMORY = 4, READ_ONLY = 8 };
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    uintptr_t at = (uintptr_t)bytes;
    if (bytes == NULL || len == 0 || at + len < at || (flags & ~(unsigned)(PORTABLE | DEVICE_MAP | READ_ONLY)) != 0)
        return cuda_leave((flags & IO_MEMORY) != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE);
    if ((flags & READ_ONLY) != 0 && emu_state()->settings.read_only_pins == 0)
        return cuda_leave(CUDA_ERROR_NOT_SUPPORTED);
    if (overlaps(at, len))
        return cuda_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    unsigned char mapped;
    uintptr_t page = at / (uintptr_t)sysconf(_SC_PAGESIZE) * (uintptr_t)sysconf(_SC_PAGESIZE);
    if (mincore((void *)page, 1, &mapped) != 0 || ((flags & READ_ONLY) == 0 && !is_writable(at)))
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    return cuda_leave(pin(bytes, len, false));
}

static bool uses(const struct cuda_stream *stream, const struct pinned *memory)
{
    for (const struct cuda_work *work = stream->first; work != NULL; work = work->next) {
        uintptr_t from = (uintptr_t)work->from, to = (uintptr_t)work->to;
        if (work->kind == CUDA_COPY && (from - memory->at < memory->len || to - memory->at < memory->len))
            return true;
    }
    return false;
}

/* NVIDIA promises no wait for copies that use the memory, so a caller that has not waited is wrong. */
static void refuse_if_used(const struct cuda_context *context, const void *bytes)
{
    for (const struct pinned *one = pinned; one != NULL; one = one->next) {
        bool is_used = uses(&context->standard, one);
        for (const struct cuda_stream *stream = context->streams; stream != NULL; stream = stream->next)
            is_used = is_used || uses(stream, one);
        if (one->at == (uintptr_t)bytes && is_used)
            emu_strict("cuMemHostUnregister", "a copy that was not waited for uses the memory");
    }
}

CUresult cuMemHostUnregister(void *bytes)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    refuse_if_used(context, bytes);
    cuda_run_all(context);
    struct pinned *one = unpin(bytes, false);
    free(one);
    return cuda_leave(one != NULL ? context->sticky : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* -- attributes of pointers ----------------------------------------------------------------------------------------- */

enum pointer_attribute { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, SYNC_MEMOPS = 6, BUFFER_ID = 7,
    DEVICE_ORDINAL = 9, RANGE_START = 11, RANGE_SIZE = 12 };

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr ptr)
{
    enum { ON_DEVICE = 2 };
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    const struct cuda_allocation *one = cuda_allocation_at(context, ptr);
    if (value == NULL || one == NULL)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult result = CUDA_SUCCESS;
    switch (attribute) {
    case CONTEXT:
        memcpy(value, &context, sizeof context);
        break;
    case MEMORY_TYPE:
        *(unsigned *)value = ON_DEVICE;
        break;
    case DEVICE_POINTER:
        *(uint64_t *)value = ptr;
        break;
    case SYNC_MEMOPS:
        *(bool *)value = one->is_synchronous;
        break;
    case BUFFER_ID:
        *(uint64_t *)value = one->slot + 1ULL;
        break;
    case DEVICE_ORDINAL:
        *(int *)value = (int)(context - cuda.contexts);
        break;
    case RANGE_START:
        *(uint64_t *)value = address(context, one->at);
        break;
    case RANGE_SIZE:
        *(size_t *)value = one->len;
        break;
    default:
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    return cuda_leave(result);
}

CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr ptr)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    struct cuda_allocation *one = cuda_allocation_at(context, ptr);
    if (value == NULL || one == NULL || attribute != SYNC_MEMOPS)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    one->is_synchronous = *(const unsigned char *)value != 0;
    return cuda_leave(CUDA_SUCCESS);
}
