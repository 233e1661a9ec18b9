#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static const char ptx[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    "// offpath's own\n"
    ".visible .entry offpath_empty() { ret; }\n"
    ".visible .entry offpath_zero_check(.param .u64 a, .param .u64 n, .param .u64 c) { ret; }\n"
    ".visible .entry offpath_fill(.param .u64 a, .param .u64 n, .param .u32 v) { ret; }\n"
    ".visible .entry offpath_saxpy(.param .u64 n, .param .f32 a, .param .u64 x, .param .u64 y) { ret; }\n"
    ".visible .entry offpath_spin(.param .u64 n) { ret; }\n"
    "/* the last */ .visible .entry offpath_fault() { ret; }\n";

void check(bool holds, const char *claim, const char *file, int line)
{
    if (holds)
        return;
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, claim);
    exit(1);
}

void expect(int got, int wanted, const char *call, const char *file, int line)
{
    if (got == wanted)
        return;
    fprintf(stderr, "%s:%d: %d instead of %d: %s\n", file, line, got, wanted, call);
    exit(1);
}

static pid_t forked(void)
{
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return pid;
}

void dies(void (*wrong)(void), int number, const char *text)
{
    int output[2], status;
    char text_read[8192];
    size_t len = 0;
    CHECK(pipe(output) == 0);
    pid_t pid = forked();
    if (pid == 0) {
        dup2(output[1], STDERR_FILENO);
        close(output[0]);
        close(output[1]);
        signal(number, SIG_DFL); /* a sanitizer would report it and exit */
        wrong();
        _exit(0);
    }
    close(output[1]);
    for (ssize_t got; (got = read(output[0], text_read + len, sizeof text_read - 1 - len)) > 0;)
        len += (size_t)got;
    text_read[len] = '\0';
    close(output[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != number || strstr(text_read, text) == NULL) {
        fprintf(stderr, "status %x instead of signal %d and \"%s\"; output: %s\n", (unsigned)status, number, text, text_read);
        exit(1);
    }
}

int in_child(int (*body)(void))
{
    int status;
    pid_t pid = forked();
    if (pid == 0)
        exit(body());
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void setting(const char *name, const char *value)
{
    char whole[64];
    snprintf(whole, sizeof whole, "OFFPATH_GPU_EMULATOR_%s", name);
    CHECK(setenv(whole, value, 1) == 0);
}

nvmlDevice_t open_nvml(void)
{
    nvmlDevice_t gpu;
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetHandleByIndex_v2(0, &gpu));
    return gpu;
}

struct cut cut(nvmlDevice_t gpu, unsigned profile_id, unsigned compute_profile, unsigned start, unsigned size)
{
    nvmlGpuInstancePlacement_t place = {start, size};
    nvmlComputeInstanceInfo_t info;
    nvmlGpuInstanceInfo_t instance;
    struct cut made;
    unsigned most, id;
    OK(nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile_id, &place, &made.instance));
    OK(nvmlGpuInstanceCreateComputeInstance(made.instance, compute_profile, &made.compute));
    OK(nvmlComputeInstanceGetInfo_v2(made.compute, &info));
    OK(nvmlGpuInstanceGetInfo(made.instance, &instance));
    OK(nvmlDeviceGetMaxMigDeviceCount(gpu, &most));
    bool is_found = false;
    for (unsigned i = 0; i < most && !is_found; i++)
        is_found = nvmlDeviceGetMigDeviceHandleByIndex(gpu, i, &made.device) == NVML_SUCCESS &&
                   nvmlDeviceGetGpuInstanceId(made.device, &id) == NVML_SUCCESS && id == instance.id;
    CHECK(is_found && info.gpuInstance == made.instance);
    OK(nvmlDeviceGetUUID(made.device, made.uuid, sizeof made.uuid));
    return made;
}

void destroy(struct cut cut)
{
    OK(nvmlComputeInstanceDestroy(cut.compute));
    OK(nvmlGpuInstanceDestroy(cut.instance));
}

CUcontext begin(const char *visible)
{
    CUcontext context;
    CHECK(setenv("CUDA_VISIBLE_DEVICES", visible, 1) == 0);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

void use_whole_gpu(void)
{
    setting("MIG", "off");
    begin("0");
}

CUdeviceptr memory(size_t len)
{
    CUdeviceptr ptr;
    OK(cuMemAlloc_v2(&ptr, len));
    return ptr;
}

CUfunction kernel(const char *name)
{
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadDataEx(&module, ptx, 0, NULL, NULL));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

CUresult launch(CUfunction function, CUstream stream, void **arguments)
{
    return cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, stream, arguments, NULL);
}
