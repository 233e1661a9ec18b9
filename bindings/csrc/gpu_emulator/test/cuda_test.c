/* CUDA: every call with its refusals, and the ways in which the library is strict. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"

enum { MIB = 1 << 20, SLICE = 4 << 20 };

/* -- sessions and contexts ------------------------------------------------------------------------------------------ */

static int use_after_fork(void)
{
    int count;
    CUcontext context;
    EXPECT(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
    return 7;
}

static void contexts_follow_their_rules(void)
{
    int count, version, active;
    unsigned flags;
    CUdevice device;
    CUcontext context, same;
    size_t bytes;
    setting("MIG", "off");
    EXPECT(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    EXPECT(cuInit(0), CUDA_ERROR_NO_DEVICE);
    unsetenv("CUDA_VISIBLE_DEVICES");
    OK(cuInit(0));
    OK(cuInit(0));
    OK(cuDriverGetVersion(&version));
    EXPECT(cuDriverGetVersion(NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceGetCount(&count));
    CHECK(count == 1 && version == 13000);
    OK(cuDeviceGet(&device, 0));
    EXPECT(cuDeviceGet(&device, 1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(cuMemGetInfo_v2(&bytes, &bytes), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxSetFlags_v2(0, 4));
    EXPECT(cuDevicePrimaryCtxSetFlags_v2(0, 3), CUDA_ERROR_INVALID_VALUE);
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(flags == 4 && active == 0);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuDevicePrimaryCtxRetain(&same, 0));
    CHECK(context == same);
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuCtxSetCurrent((CUcontext)&context), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxSetCurrent(context));
    OK(cuCtxGetCurrent(&same));
    CHECK(context == same);
    OK(cuCtxGetDevice(&device));
    OK(cuCtxGetDevice_v2(&device, context));
    EXPECT(cuCtxGetDevice_v2(&device, (CUcontext)&context), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxSynchronize_v2(NULL));
    OK(cuCtxSynchronize_v2(context));
    CHECK(device == 0);
    CHECK(in_child(use_after_fork) == 7);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxRelease_v2(0));
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    memory(MIB);
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxReset_v2(0));
}

static void devices_answer_what_they_are(void)
{
    char text[64];
    CUuuid uuid;
    size_t bytes;
    int value;
    use_whole_gpu();
    OK(cuDeviceGetName(text, sizeof text, 0));
    CHECK(strcmp(text, "NVIDIA A100-SXM4-40GB (emulated)") == 0);
    EXPECT(cuDeviceGetName(text, 0, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceGetUuid(&uuid, 0));
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    EXPECT(cuDeviceGetUuid_v2(&uuid, 9), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceTotalMem_v2(&bytes, 0));
    CHECK(bytes == 8 * SLICE);
    OK(cuDeviceGetPCIBusId(text, 13, 0));
    EXPECT(cuDeviceGetPCIBusId(text, 12, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceGetAttribute(&value, 16, 0));
    CHECK(value == 108);
    OK(cuDeviceGetAttribute(&value, 118, 0));
    CHECK(value == 100);
    EXPECT(cuDeviceGetAttribute(&value, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuDeviceGetAttribute(NULL, 16, 0), CUDA_ERROR_INVALID_VALUE);
}

static void native_atomics_need_nvlink(void)
{
    int value;
    setting("GPUS", "3");
    setting("MIG", "off");
    setting("NVLINKS", "0-1:2");
    begin("0,1,2");
    static const int linked[] = {0, 1, 1, 1}, by_pcie[] = {1, 1, 0, 1};
    for (int i = 0; i < 4; i++) {
        OK(cuDeviceGetP2PAttribute(&value, i + 1, 1, 0));
        CHECK(value == linked[i]);
        OK(cuDeviceGetP2PAttribute(&value, i + 1, 0, 2));
        CHECK(value == by_pcie[i]);
    }
    EXPECT(cuDeviceGetP2PAttribute(&value, 3, 0, 3), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(cuDeviceGetP2PAttribute(&value, 3, -1, 0), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(cuDeviceGetP2PAttribute(&value, 3, 1, 1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT(cuDeviceGetP2PAttribute(&value, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuDeviceGetP2PAttribute(&value, 5, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuDeviceGetP2PAttribute(NULL, 3, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

static void entry_points_have_their_names(void)
{
    void *function;
    int status;
    const char *text;
    CUuuid id = {{0}};
    OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status));
    CHECK(function == (void *)(uintptr_t)cuMemAlloc_v2 && status == 0);
    OK(cuGetProcAddress_v2("cuMemAlloc", &function, 3000, 2, &status));
    CHECK(function == NULL && status == 2);
    OK(cuGetProcAddress_v2("cuMemAlloc_v2", &function, 12000, 1, NULL));
    CHECK(function == NULL);
    EXPECT(cuGetProcAddress_v2(NULL, &function, 12000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    CHECK(strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "out of memory") == 0);
    EXPECT(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuGetErrorString((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    const void *table;
    EXPECT(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
}

/* -- memory --------------------------------------------------------------------------------------------------------- */

static CUdeviceptr touched;

static void touch(void)
{
    *(volatile char *)(uintptr_t)touched = 1;
}

static void the_processor_cannot_touch_what_is_the_gpus(void)
{
    use_whole_gpu();
    touched = memory(100);
    dies(touch, SIGSEGV, "");
    memset(cuda_emulator_host_address(touched), 7, 100);
    char back[100];
    OK(cuMemcpyDtoH_v2(back, touched, sizeof back));
    CHECK(back[99] == 7);
    CHECK(cuda_emulator_host_address(touched + 100) == NULL);
    CHECK(cuda_emulator_host_address((CUdeviceptr)(uintptr_t)back) == NULL);
}

static void memory_is_checked(void)
{
    size_t len, free_bytes, total;
    CUdeviceptr ptr, base;
    char byte = 1;
    unsigned type;
    void *pinned;
    static char host[8192];
    use_whole_gpu();
    EXPECT(cuMemAlloc_v2(&ptr, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemAlloc_v2(NULL, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemAlloc_v2(&ptr, 8 * SLICE + 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(cuMemAlloc_v2(&ptr, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    ptr = memory(8 * SLICE);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(free_bytes == 0 && total == 8 * SLICE);
    EXPECT(cuMemAlloc_v2(&base, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemGetAddressRange_v2(&base, &len, ptr + 8 * SLICE - 1));
    CHECK(base == ptr && len == 8 * SLICE);
    EXPECT(cuMemGetAddressRange_v2(&base, &len, ptr + 8 * SLICE), CUDA_ERROR_NOT_FOUND);
    OK(cuPointerGetAttribute(&type, 2, ptr));
    CHECK(type == 2);
    EXPECT(cuPointerGetAttribute(&type, 2, 16), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuPointerGetAttribute(&type, 5, ptr), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuPointerSetAttribute(&byte, 6, ptr));
    EXPECT(cuPointerSetAttribute(&byte, 7, ptr), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD8_v2(ptr, 9, 1));
    CHECK(*(char *)cuda_emulator_host_address(ptr) == 9); /* SYNC_MEMOPS */
    OK(cuMemFree_v2(ptr));
    EXPECT(cuMemFree_v2(ptr), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocHost_v2(&pinned, 100));
    EXPECT(cuMemAllocHost_v2(NULL, 100), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeHost(pinned));
    EXPECT(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostRegister_v2(host, sizeof host, 0));
    EXPECT(cuMemHostRegister_v2(host + 8191, 2, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT(cuMemHostRegister_v2(host, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemHostRegister_v2(host, 1, 64), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostUnregister(host));
    void *fixed = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fixed != MAP_FAILED);
    EXPECT(cuMemHostRegister_v2(fixed, 4096, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostRegister_v2(fixed, 4096, 8));
    OK(cuMemHostUnregister(fixed));
    munmap(fixed, 4096);
    EXPECT(cuMemHostUnregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* -- work ----------------------------------------------------------------------------------------------------------- */

static void copies_and_memsets_run_late(void)
{
    char from[64], to[64] = {0};
    CUstream stream, other;
    CUevent start, end;
    float ms;
    use_whole_gpu();
    CUdeviceptr ptr = memory(64), second = memory(64);
    memset(from, 'a', sizeof from);
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamCreate(&other, 0));
    EXPECT(cuStreamCreate(&other, 2), CUDA_ERROR_INVALID_VALUE);
    OK(cuEventCreate(&start, 0));
    OK(cuEventCreate(&end, 0));
    EXPECT(cuEventElapsedTime(&ms, start, end), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventRecord(start, stream));
    OK(cuMemcpyHtoDAsync_v2(ptr, from, sizeof from, stream));
    memset(from, 'b', sizeof from); /* pageable: it was read */
    OK(cuMemsetD8Async(ptr, 'c', 8, stream));
    OK(cuMemsetD32Async(ptr + 8, 0x64646464, 2, stream));
    OK(cuMemcpyDtoDAsync_v2(second, ptr, 64, stream));
    OK(cuEventRecord(end, stream));
    EXPECT(cuEventElapsedTime_v2(&ms, start, end), CUDA_ERROR_NOT_READY);
    CHECK(cuda_emulator_queued() == 6 && *(char *)cuda_emulator_host_address(ptr) == 0);
    OK(cuStreamWaitEvent(other, end, 0));
    EXPECT(cuStreamWaitEvent(other, end, 2), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemcpyDtoHAsync_v2(to, second, sizeof to, other));
    CHECK(memcmp(to, "ccccccccddddddddaaaa", 20) == 0 && cuda_emulator_queued() == 0);
    OK(cuEventQuery(end));
    OK(cuEventSynchronize(end));
    OK(cuEventElapsedTime(&ms, start, end));
    OK(cuMemcpyDtoD_v2(ptr, second, 64));
    EXPECT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    OK(cuStreamQuery(NULL));
    OK(cuStreamSynchronize(stream));
    OK(cuEventRecord(start, other));
    EXPECT(cuEventQuery(start), CUDA_ERROR_NOT_READY);
    OK(cuMemsetD8Async(ptr, 'x', 1, stream));
    OK(cuStreamDestroy_v2(stream));
    CHECK(*(char *)cuda_emulator_host_address(ptr) == 'x');
    EXPECT(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuStreamDestroy_v2(NULL), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventDestroy_v2(start));
    EXPECT(cuEventDestroy_v2(start), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuEventRecord(start, NULL), CUDA_ERROR_INVALID_HANDLE);
    OK(cuMemcpyHtoD_v2(ptr, from, 64));
    EXPECT(cuMemcpyHtoD_v2(ptr, from, 65), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemcpyHtoD_v2(0, from, 0));
}

static int called;

static void host_function(void *user_data)
{
    CHECK(user_data == &called);
    called = (int)cuCtxSynchronize();
}

static void kernels_run_late_and_in_order(void)
{
    float a = 0.5F, x[] = {1, 2, 3}, y[] = {10, 20, 30};
    uint64_t n = 3, len = 12, count = 0;
    unsigned value = 1;
    CUmodule module;
    CUfunction function;
    use_whole_gpu();
    CUdeviceptr on_x = memory(sizeof x), on_y = memory(sizeof y), counter = memory(sizeof count);
    OK(cuMemcpyHtoD_v2(on_x, x, sizeof x));
    OK(cuMemcpyHtoD_v2(on_y, y, sizeof y));
    OK(cuMemcpyHtoD_v2(counter, &count, sizeof count));
    OK(launch(kernel("offpath_saxpy"), NULL, (void *[]){&n, &a, &on_x, &on_y}));
    OK(launch(kernel("offpath_fill"), NULL, (void *[]){&on_x, &len, &value}));
    OK(launch(kernel("offpath_zero_check"), NULL, (void *[]){&on_x, &len, &counter}));
    OK(cuLaunchHostFunc(NULL, host_function, &called));
    EXPECT(cuLaunchHostFunc(NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuLaunchHostFunc_v2(NULL, host_function, &called, 2), CUDA_ERROR_INVALID_VALUE);
    CHECK(called == 0);
    OK(cuMemcpyDtoH_v2(y, on_y, sizeof y));
    OK(cuMemcpyDtoH_v2(&count, counter, sizeof count));
    CHECK(y[2] == 31.5F && count == 12 && called == CUDA_ERROR_NOT_PERMITTED);
    CUfunction empty = kernel("offpath_empty"), spin = kernel("offpath_spin");
    EXPECT(cuLaunchKernel(empty, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuLaunchKernel(empty, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuLaunchKernel(empty, 1, 65536, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(launch(spin, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    EXPECT(launch((CUfunction)&n, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(launch(empty, (CUstream)&n, NULL), CUDA_ERROR_INVALID_HANDLE);
    n = 1;
    OK(launch(spin, NULL, (void *[]){&n}));
    OK(cuCtxSynchronize());
    CHECK(cuda_emulator_calls("cuLaunchKernel") == 10 && cuda_emulator_calls("cuMemAlloc") == 3);
    static const char *const bad[] = {"", ".version 7.0", ".target sm_80", ".version 7.0 .target sm_80 .entry",
        ".version 7.0 .target sm_80 .entry offpath_empty(", "/* .version 7.0 .target sm_80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT(cuModuleLoadData(&module, bad[i]), CUDA_ERROR_INVALID_IMAGE);
    EXPECT(cuModuleLoadData(&module, ".version 7.0 .target sm_80 .entry other() {}"), CUDA_ERROR_NO_BINARY_FOR_GPU);
    EXPECT(cuModuleLoadData(NULL, ""), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuModuleLoadDataEx(&module, "", 1, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuModuleLoadData(&module, ".version 7.0 .target sm_80 // no entry"));
    EXPECT(cuModuleGetFunction(&function, module, "offpath_empty"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleUnload(module));
    EXPECT(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuModuleGetFunction(&function, module, "x"), CUDA_ERROR_INVALID_HANDLE);
}

static void load_with_other_parameters(void)
{
    CUmodule module;
    use_whole_gpu();
    cuModuleLoadData(&module, ".version 7.0 .target sm_80 .entry offpath_spin(.param .u32 n) {}");
}

static void ptx_with_other_parameters_ends_the_process(void)
{
    dies(load_with_other_parameters, SIGABRT, "offpath_spin has the parameters");
}

static void unregister_under_a_copy(void)
{
    static char host[4096];
    use_whole_gpu();
    CUdeviceptr ptr = memory(sizeof host);
    cuMemHostRegister_v2(host, sizeof host, 0);
    cuMemcpyHtoDAsync_v2(ptr, host, sizeof host, NULL);
    cuMemHostUnregister(host);
}

static void memory_in_use_by_a_copy_is_not_unregistered(void)
{
    dies(unregister_under_a_copy, SIGABRT, "a copy that was not waited for");
}

static void a_fault_is_sticky(void)
{
    nvmlDevice_t gpu = open_nvml();
    struct cut made = cut(gpu, 9, 2, 4, 4);
    nvmlEventSet_t set;
    nvmlEventData_t data;
    CUdeviceptr ptr;
    CUcontext context;
    OK(nvmlEventSetCreate(&set));
    OK(nvmlDeviceRegisterEvents(gpu, 8, set));
    begin(made.uuid);
    CUfunction fault = kernel("offpath_fault");
    OK(launch(fault, NULL, NULL));
    OK(launch(fault, NULL, NULL));
    EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(launch(fault, NULL, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuMemAlloc_v2(&ptr, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT(cuStreamQuery(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuda_emulator_queued() == 0);
    OK(nvmlEventSetWait_v2(set, &data, 1000));
    CHECK(data.eventData == 31 && data.gpuInstanceId == 2 && data.computeInstanceId == 0);
    EXPECT(nvmlComputeInstanceDestroy(made.compute), NVML_ERROR_IN_USE);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    EXPECT(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    destroy(made);
}

const struct test cuda_tests[] = {
    {"contexts_follow_their_rules", contexts_follow_their_rules},
    {"cuda_devices_answer_what_they_are", devices_answer_what_they_are},
    {"native_atomics_need_nvlink", native_atomics_need_nvlink},
    {"entry_points_have_their_names", entry_points_have_their_names},
    {"the_processor_cannot_touch_what_is_the_gpus", the_processor_cannot_touch_what_is_the_gpus},
    {"memory_is_checked", memory_is_checked},
    {"copies_and_memsets_run_late", copies_and_memsets_run_late},
    {"kernels_run_late_and_in_order", kernels_run_late_and_in_order},
    {"ptx_with_other_parameters_ends_the_process", ptx_with_other_parameters_ends_the_process},
    {"memory_in_use_by_a_copy_is_not_unregistered", memory_in_use_by_a_copy_is_not_unregistered},
    {"a_fault_is_sticky", a_fault_is_sticky},
    {NULL, NULL},
};
