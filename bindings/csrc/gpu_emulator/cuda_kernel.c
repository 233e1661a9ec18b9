/* libcuda: modules and kernels. A module is the PTX text that a real GPU gets. The emulator reads its entries, checks
 * their parameters, and runs functions of the host in their place. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_internal.h"

enum { MOST_ENTRIES = 16, MOST_THREADS = 1024, MOST_Z = 64, MOST_SHARED = 49152 };

/* -- the host functions --------------------------------------------------------------------------------------------- */

static CUresult run_empty(struct cuda_context *context, const uint64_t *arguments)
{
    (void)context;
    (void)arguments;
    return CUDA_SUCCESS;
}

/* (address, bytes, counter): adds to the 64-bit counter how many of the bytes are not 0. */
static CUresult run_zero_check(struct cuda_context *context, const uint64_t *arguments)
{
    const uint8_t *bytes = cuda_bytes(context, arguments[0], arguments[1]);
    uint8_t *counter = cuda_bytes(context, arguments[2], sizeof(uint64_t));
    NEEDS((bytes != NULL || arguments[1] == 0) && counter != NULL, CUDA_ERROR_ILLEGAL_ADDRESS);
    uint64_t count;
    memcpy(&count, counter, sizeof count);
    for (uint64_t i = 0; i < arguments[1]; i++)
        count += bytes[i] != 0;
    memcpy(counter, &count, sizeof count);
    return CUDA_SUCCESS;
}

/* (address, bytes, value): every byte gets the value. */
static CUresult run_fill(struct cuda_context *context, const uint64_t *arguments)
{
    uint8_t *bytes = cuda_bytes(context, arguments[0], arguments[1]);
    NEEDS(bytes != NULL, CUDA_ERROR_ILLEGAL_ADDRESS);
    memset(bytes, (int)arguments[2], arguments[1]);
    return CUDA_SUCCESS;
}

/* (n, a, x, y): y = a x + y of n floats. */
static CUresult run_saxpy(struct cuda_context *context, const uint64_t *arguments)
{
    float a, x, y;
    uint64_t count = arguments[0];
    NEEDS(count <= UINT64_MAX / sizeof x, CUDA_ERROR_ILLEGAL_ADDRESS);
    const uint8_t *from = cuda_bytes(context, arguments[2], count * sizeof x);
    uint8_t *to = cuda_bytes(context, arguments[3], count * sizeof y);
    NEEDS(from != NULL && to != NULL, CUDA_ERROR_ILLEGAL_ADDRESS);
    memcpy(&a, &arguments[1], sizeof a);
    for (uint64_t i = 0; i < count; i++) {
        memcpy(&x, from + i * sizeof x, sizeof x);
        memcpy(&y, to + i * sizeof y, sizeof y);
        y += a * x;
        memcpy(to + i * sizeof y, &y, sizeof y);
    }
    return CUDA_SUCCESS;
}

/* (nanoseconds): takes that long. */
static CUresult run_spin(struct cuda_context *context, const uint64_t *arguments)
{
    (void)context;
    struct timespec left = {(time_t)(arguments[0] / 1000000000U), (long)(arguments[0] % 1000000000U)};
    nanosleep(&left, NULL);
    return CUDA_SUCCESS;
}

/* Writes to address 0. */
static CUresult run_fault(struct cuda_context *context, const uint64_t *arguments)
{
    (void)context;
    (void)arguments;
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static const struct cuda_kernel kernels[] = {{"offpath_empty", "", run_empty},
    {"offpath_zero_check", "QQQ", run_zero_check}, {"offpath_fill", "QQI", run_fill},
    {"offpath_saxpy", "QFQQ", run_saxpy}, {"offpath_spin", "Q", run_spin}, {"offpath_fault", "", run_fault}};

static const struct cuda_kernel *kernel_named(const char *name)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    return NULL;
}

/* -- PTX ------------------------------------------------------------------------------------------------------------ */

/* A copy without comments; the caller frees it. */
static char *without_comments(const char *text)
{
    char *copy = malloc(strlen(text) + 1), *to = copy;
    while (copy != NULL && *text != '\0') {
        bool is_line = strncmp(text, "//", 2) == 0, is_block = strncmp(text, "/*", 2) == 0;
        if (!is_line && !is_block) {
            *to++ = *text++;
            continue;
        }
        const char *end = is_line ? strchr(text, '\n') : strstr(text + 2, "*/");
        if (end == NULL)
            break;
        text = is_line ? end : end + 2;
    }
    if (copy != NULL)
        *to = '\0';
    return copy;
}

static const char *skip_space(const char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

static const char *read_name(const char *text, char name[CUDA_MAX_NAME])
{
    size_t len = 0;
    text = skip_space(text);
    while (isalnum((unsigned char)text[len]) || text[len] == '_' || text[len] == '$')
        len++;
    if (len == 0 || len >= CUDA_MAX_NAME)
        return NULL;
    memcpy(name, text, len);
    name[len] = '\0';
    return text + len;
}

/* The types of the parameters in brackets, as letters; without brackets there are none. */
static bool read_types(const char *text, char types[CUDA_MAX_PARAMETERS + 1])
{
    size_t count = 0;
    text = skip_space(text);
    const char *end = *text == '(' ? strchr(text, ')') : text;
    while (end != NULL && (text = strstr(text, ".param")) != NULL && text < end && count < CUDA_MAX_PARAMETERS) {
        text = skip_space(text + strlen(".param"));
        if (strncmp(text, ".u64", 4) == 0 || strncmp(text, ".b64", 4) == 0)
            types[count++] = 'Q';
        else if (strncmp(text, ".u32", 4) == 0 || strncmp(text, ".b32", 4) == 0 || strncmp(text, ".s32", 4) == 0)
            types[count++] = 'I';
        else
            types[count++] = strncmp(text, ".f32", 4) == 0 ? 'F' : '?';
    }
    types[count] = '\0';
    return end != NULL;
}

static CUresult read_entry(const char *text, struct cuda_module *module)
{
    char name[CUDA_MAX_NAME], types[CUDA_MAX_PARAMETERS + 1];
    text = read_name(text, name);
    NEEDS(text != NULL && read_types(text, types), CUDA_ERROR_INVALID_IMAGE);
    const struct cuda_kernel *kernel = kernel_named(name);
    NEEDS(kernel != NULL && module->count < MOST_ENTRIES, CUDA_ERROR_NO_BINARY_FOR_GPU);
    if (strcmp(types, kernel->types) != 0)
        emu_strict("cuModuleLoadData", "%s has the parameters \"%s\" in PTX, but \"%s\" here", name, types, kernel->types);
    module->functions[module->count++] = (struct cuda_function){kernel, module};
    return CUDA_SUCCESS;
}

static CUresult read_ptx(const char *image, struct cuda_module *module)
{
    char *text = without_comments(image);
    NEEDS(text != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = CUDA_SUCCESS;
    const char *at = skip_space(text);
    if (strncmp(at, ".version", 8) != 0 || strstr(at, ".target") == NULL)
        result = CUDA_ERROR_INVALID_IMAGE;
    while (result == CUDA_SUCCESS && (at = strstr(at, ".entry")) != NULL) {
        at += strlen(".entry");
        result = read_entry(at, module);
    }
    free(text);
    return result;
}

/* -- modules -------------------------------------------------------------------------------------------------------- */

static CUresult load(CUmodule *module, const void *image)
{
    struct cuda_context *context;
    TRY(cuda_enter_context(&context));
    if (module == NULL || image == NULL)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    struct cuda_module *made = calloc(1, sizeof *made);
    if (made == NULL)
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = read_ptx(image, made);
    if (result != CUDA_SUCCESS) {
        free(made);
        return cuda_leave(result);
    }
    made->context = context;
    made->next = context->modules;
    context->modules = made;
    *module = made;
    return cuda_leave(CUDA_SUCCESS);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER(CUresult);
    return load(module, image);
}

/* Options of the compiler are not read: there is none. */
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values)
{
    ENTER(CUresult);
    NEEDS(count == 0 || (options != NULL && values != NULL), CUDA_ERROR_INVALID_VALUE);
    return load(module, image);
}

static CUresult enter_module(CUmodule module, struct cuda_context **context)
{
    TRY(cuda_enter_context(context));
    for (struct cuda_module *one = (*context)->modules; one != NULL; one = one->next)
        if (one == module)
            return CUDA_SUCCESS;
    return cuda_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuModuleUnload(CUmodule module)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(enter_module(module, &context));
    cuda_run_all(context);
    struct cuda_module **at = &context->modules;
    while (*at != module)
        at = &(*at)->next;
    *at = module->next;
    free(module);
    return cuda_leave(context->sticky);
}

void cuda_free_modules(struct cuda_context *context)
{
    while (context->modules != NULL) {
        struct cuda_module *module = context->modules;
        context->modules = module->next;
        free(module);
    }
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    struct cuda_context *context;
    ENTER(CUresult);
    TRY(enter_module(module, &context));
    if (function == NULL || name == NULL)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < module->count; i++)
        if (strcmp(module->functions[i].kernel->name, name) == 0) {
            *function = &module->functions[i];
            return cuda_leave(CUDA_SUCCESS);
        }
    return cuda_leave(CUDA_ERROR_NOT_FOUND);
}

/* -- launches ------------------------------------------------------------------------------------------------------- */

static bool is_function(const struct cuda_context *context, const struct cuda_function *function)
{
    for (const struct cuda_module *one = context->modules; one != NULL; one = one->next)
        for (size_t i = 0; i < one->count; i++)
            if (&one->functions[i] == function)
                return true;
    return false;
}

static void read_arguments(const char *types, void **arguments, uint64_t *into)
{
    for (size_t i = 0; types[i] != '\0'; i++)
        memcpy(&into[i], arguments[i], types[i] == 'Q' ? sizeof(uint64_t) : sizeof(uint32_t));
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
    unsigned block_y, unsigned block_z, unsigned shared, CUstream handle, void **arguments, void **extra)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    ENTER(CUresult);
    TRY(cuda_enter_context(&context));
    if (!is_function(context, function))
        return cuda_leave(CUDA_ERROR_INVALID_HANDLE);
    CUresult result = cuda_stream(context, handle, &stream);
    bool is_grid = grid_x > 0 && grid_x <= INT32_MAX && grid_y > 0 && grid_y <= UINT16_MAX && grid_z > 0 &&
                   grid_z <= UINT16_MAX;
    bool is_block = block_x > 0 && block_y > 0 && block_z > 0 && block_z <= MOST_Z && block_x <= MOST_THREADS &&
                    block_y <= MOST_THREADS && (uint64_t)block_x * block_y * block_z <= MOST_THREADS;
    const char *types = function->kernel->types;
    if (!is_grid || !is_block || shared > MOST_SHARED || extra != NULL || (arguments == NULL && *types != '\0'))
        result = CUDA_ERROR_INVALID_VALUE;
    struct cuda_work *work = result == CUDA_SUCCESS ? cuda_submit(stream, CUDA_KERNEL) : NULL;
    if (work == NULL)
        return cuda_leave(result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY);
    work->kernel = function->kernel;
    work->fault = emu_launch_fault();
    read_arguments(types, arguments, work->arguments);
    return cuda_leave(CUDA_SUCCESS);
}

static CUresult launch_host_function(CUstream handle, CUhostFn function, void *user_data)
{
    struct cuda_context *context;
    struct cuda_stream *stream;
    TRY(cuda_enter_context(&context));
    CUresult result = function != NULL ? cuda_stream(context, handle, &stream) : CUDA_ERROR_INVALID_VALUE;
    struct cuda_work *work = result == CUDA_SUCCESS ? cuda_submit(stream, CUDA_HOST_FUNCTION) : NULL;
    if (work == NULL)
        return cuda_leave(result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY);
    work->function = function;
    work->user_data = user_data;
    return cuda_leave(CUDA_SUCCESS);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user_data)
{
    ENTER(CUresult);
    return launch_host_function(stream, function, user_data);
}

/* Blocking or spinning: no difference here. */
CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *user_data, unsigned sync_mode)
{
    enum { SPINNING = 1 };
    ENTER(CUresult);
    NEEDS(sync_mode <= SPINNING, CUDA_ERROR_INVALID_VALUE);
    return launch_host_function(stream, function, user_data);
}
