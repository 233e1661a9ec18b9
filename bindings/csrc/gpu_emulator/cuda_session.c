/* libcuda: initialisation, primary contexts, and the current context of each thread. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_internal.h"

enum { NAME = 64 };

struct cuda_library cuda = {.mutex = PTHREAD_MUTEX_INITIALIZER};
_Thread_local bool cuda_in_host_function;
static _Thread_local struct cuda_context *current;

/* -- entering and leaving ------------------------------------------------------------------------------------------- */

/* CUDA does not survive a fork: neither its threads nor its descriptors are the child's. */
static void forked(void)
{
    cuda.is_forked = cuda.is_initialized;
}

CUresult cuda_enter(void)
{
    NEEDS(!cuda_in_host_function, CUDA_ERROR_NOT_PERMITTED);
    NEEDS(cuda.is_initialized && !cuda.is_forked, CUDA_ERROR_NOT_INITIALIZED);
    pthread_mutex_lock(&cuda.mutex);
    return CUDA_SUCCESS;
}

CUresult cuda_leave(CUresult result)
{
    pthread_mutex_unlock(&cuda.mutex);
    return result;
}

CUresult cuda_enter_device(CUdevice device, struct cuda_context **context)
{
    TRY(cuda_enter());
    if (device < 0 || device >= cuda.count)
        return cuda_leave(CUDA_ERROR_INVALID_DEVICE);
    *context = &cuda.contexts[device];
    return CUDA_SUCCESS;
}

/* Whether a context can be used: nothing of its own, of the GPU or of MPS has ended it. Unlocks if not. */
static CUresult check_context(struct cuda_context *context)
{
    if (context->sticky == CUDA_SUCCESS && emu_state()->gpus[context->place.gpu].is_lost)
        cuda_fail(context, CUDA_ERROR_UNKNOWN, 0);
    if (context->sticky == CUDA_SUCCESS && emu_state()->clients[context->client].fault != 0)
        cuda_fail(context, (CUresult)emu_state()->clients[context->client].fault, 0);
    if (context->sticky == CUDA_SUCCESS)
        cuda_fail(context, cuda_mps_check(), 0);
    return context->sticky == CUDA_SUCCESS ? CUDA_SUCCESS : cuda_leave(context->sticky);
}

CUresult cuda_enter_context(struct cuda_context **context)
{
    TRY(cuda_enter());
    if (current == NULL || current->users == 0)
        return cuda_leave(CUDA_ERROR_INVALID_CONTEXT);
    *context = current;
    return check_context(current);
}

CUresult cuda_fail(struct cuda_context *context, CUresult code, uint64_t xid)
{
    if (code == CUDA_SUCCESS || context->sticky != CUDA_SUCCESS)
        return context->sticky;
    context->sticky = code;
    if (xid != 0)
        emu_xid(&context->place, xid);
    cuda_mps_tell_fault(context, code);
    cuda_drop_work(context);
    return code;
}

/* -- the library ---------------------------------------------------------------------------------------------------- */

static void release_places(void)
{
    for (int i = 0; i < cuda.count; i++)
        if (cuda.contexts[i].hold >= 0)
            close(cuda.contexts[i].hold);
    cuda.count = 0;
}

/* Under the mutex. A process holds what it sees from here on. */
static CUresult initialize(void)
{
    NEEDS(emu_open(), CUDA_ERROR_NO_DEVICE);
    emu_lock();
    emu_reap();
    CUresult result = cuda_enumerate();
    char name[NAME];
    for (int i = 0; result == CUDA_SUCCESS && i < cuda.count; i++) {
        emu_place_name(name, sizeof name, &cuda.contexts[i].place);
        cuda.contexts[i].hold = emu_hold(name);
        if (cuda.contexts[i].hold < 0)
            result = CUDA_ERROR_OPERATING_SYSTEM;
    }
    emu_unlock();
    if (result == CUDA_SUCCESS)
        result = cuda_mps_connect();
    if (result == CUDA_SUCCESS)
        result = cuda_start_thread();
    if (result != CUDA_SUCCESS) {
        release_places();
        return result;
    }
    emu_here = cuda.contexts[0].place;
    cuda.is_initialized = true;
    pthread_atfork(NULL, NULL, forked);
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags)
{
    ENTER(CUresult);
    NEEDS(flags == 0, CUDA_ERROR_INVALID_VALUE);
    NEEDS(!cuda.is_forked, CUDA_ERROR_NOT_INITIALIZED);
    pthread_mutex_lock(&cuda.mutex);
    return cuda_leave(cuda.is_initialized ? CUDA_SUCCESS : initialize());
}

CUresult cuDriverGetVersion(int *version)
{
    ENTER(CUresult);
    NEEDS(version != NULL, CUDA_ERROR_INVALID_VALUE);
    NEEDS(cuda.is_initialized || emu_open(), CUDA_ERROR_NO_DEVICE);
    *version = emu_cuda_version();
    return CUDA_SUCCESS;
}

/* -- primary contexts ----------------------------------------------------------------------------------------------- */

static bool is_cut(const struct emu_place *place)
{
    if (place->instance == 0)
        return !emu_state()->gpus[place->gpu].mig;
    const struct emu_instance *instance = &emu_state()->gpus[place->gpu].instances[place->instance_id];
    return instance->generation == place->instance &&
           instance->compute[place->compute_id].generation == place->compute;
}

/* A row of the machine's table for this process. */
static CUresult register_client(struct cuda_context *context)
{
    struct emu_state *state = emu_state();
    for (uint32_t i = 0; i < EMU_CLIENTS; i++) {
        if (state->clients[i].pid != 0)
            continue;
        uint32_t pid = (uint32_t)getpid(), scrubs = state->settings.scrubs && !emu_leaves_residue();
        state->clients[i] =
            (struct emu_client){0, scrubs, emu_started(pid), context->place, cuda_mps.server, 0, 0, 0};
        EMU_VALIDATE(state->clients[i].pid, pid);
        context->client = i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult map_memory(struct cuda_context *context)
{
    char name[NAME];
    snprintf(name, sizeof name, "memory-%u", context->place.gpu);
    int fd = emu_file(name, O_RDWR | O_CREAT);
    NEEDS(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    struct stat found;
    off_t whole = (off_t)emu_gpu_bytes(context->place.gpu);
    bool is_made = fstat(fd, &found) == 0 && (found.st_size == whole || ftruncate(fd, whole) == 0);
    void *view = is_made ? mmap(NULL, context->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)context->base)
                         : MAP_FAILED;
    close(fd);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *window = view != MAP_FAILED ? mmap(NULL, context->bytes + EMU_PAGE, PROT_NONE, flags, -1, 0) : MAP_FAILED;
    if (window == MAP_FAILED) {
        if (view != MAP_FAILED)
            munmap(view, context->bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->view = view;
    context->reserved = window;
    context->window = (uint8_t *)(((uintptr_t)window + EMU_PAGE - 1) / EMU_PAGE * EMU_PAGE);
    return CUDA_SUCCESS;
}

/* Under the machine's lock. */
static CUresult take_place(struct cuda_context *context)
{
    char name[NAME];
    NEEDS(is_cut(&context->place), CUDA_ERROR_DEVICE_UNAVAILABLE);
    if (context->hold < 0) {
        emu_place_name(name, sizeof name, &context->place);
        context->hold = emu_hold(name);
        NEEDS(context->hold >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    }
    context->base = cuda_place_base(&context->place);
    context->bytes = cuda_place_bytes(&context->place);
    TRY(map_memory(context));
    return register_client(context);
}

/* A context that failed stays so: only the process's end helps. */
static CUresult open_context(struct cuda_context *context)
{
    TRY(context->sticky);
    emu_lock();
    emu_reap();
    CUresult result = take_place(context);
    emu_unlock();
    TRY(result);
    context->limit = cuda_mps.limit;
    context->standard = (struct cuda_stream){NULL, context, NULL, &context->standard.first, true};
    return CUDA_SUCCESS;
}

static void close_context(struct cuda_context *context)
{
    cuda_drop_work(context);
    cuda_free_streams(context);
    cuda_free_modules(context);
    cuda_free_all(context);
    emu_lock();
    emu_release_client(context->client);
    emu_unlock();
    munmap(context->view, context->bytes);
    munmap(context->reserved, context->bytes + EMU_PAGE);
    close(context->hold);
    context->hold = -1;
    context->users = 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    struct cuda_context *own;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &own));
    if (context == NULL)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult result = own->users == 0 ? open_context(own) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        own->users++;
        *context = own;
    }
    return cuda_leave(result);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    struct cuda_context *own;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &own));
    if (own->users == 0)
        return cuda_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (own->users > 1)
        own->users--;
    else
        close_context(own);
    return cuda_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    struct cuda_context *own;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &own));
    if (own->users > 0)
        close_context(own);
    return cuda_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    enum { SCHEDULES = 7, KNOWN = 0xff };
    struct cuda_context *own;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &own));
    unsigned schedule = flags & SCHEDULES;
    bool is_one = schedule == 0 || (schedule & (schedule - 1)) == 0;
    if (!is_one || (flags & ~(unsigned)KNOWN) != 0)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    own->flags = flags;
    return cuda_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    struct cuda_context *own;
    ENTER(CUresult);
    TRY(cuda_enter_device(device, &own));
    if (flags == NULL || active == NULL)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = own->flags;
    *active = own->users > 0;
    return cuda_leave(CUDA_SUCCESS);
}

/* -- the current context -------------------------------------------------------------------------------------------- */

static bool is_context(const struct cuda_context *context)
{
    for (int i = 0; i < cuda.count; i++)
        if (context == &cuda.contexts[i] && context->users > 0)
            return true;
    return false;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER(CUresult);
    TRY(cuda_enter());
    bool is_one = context == NULL || is_context(context);
    if (is_one)
        current = context;
    return cuda_leave(is_one ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER(CUresult);
    TRY(cuda_enter());
    if (context != NULL)
        *context = current;
    return cuda_leave(context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* Enters a call on a context that is given, or on the current one. */
static CUresult enter_given(CUcontext given, struct cuda_context **context)
{
    NEEDS(given != NULL, cuda_enter_context(context));
    TRY(cuda_enter());
    if (!is_context(given))
        return cuda_leave(CUDA_ERROR_INVALID_CONTEXT);
    *context = given;
    return check_context(given);
}

static CUresult device_of(CUcontext given, CUdevice *device)
{
    struct cuda_context *context;
    TRY(enter_given(given, &context));
    if (device != NULL)
        *device = (CUdevice)(context - cuda.contexts);
    return cuda_leave(device != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER(CUresult);
    return device_of(NULL, device);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    ENTER(CUresult);
    return device_of(context, device);
}

static CUresult synchronize(CUcontext given)
{
    struct cuda_context *context;
    TRY(enter_given(given, &context));
    cuda_run_all(context);
    return cuda_leave(context->sticky);
}

CUresult cuCtxSynchronize(void)
{
    ENTER(CUresult);
    return synchronize(NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    ENTER(CUresult);
    return synchronize(context);
}
