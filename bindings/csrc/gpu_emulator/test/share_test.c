/* CUDA: memory that peers reach, that other processes had, and faults. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"

enum { MIB = 1 << 20, SLICE = 4 << 20, DMA_BUF_FD = 1 };

/* -- exports -------------------------------------------------------------------------------------------------------- */

static void peers_write_through_a_descriptor(bool is_ordered)
{
    char back[8] = {0};
    int fd, again;
    nvmlDevice_t gpu = open_nvml();
    struct cut made = cut(gpu, 19, 0, 3, 1);
    begin(made.uuid);
    CUdeviceptr ptr = memory(2 * MIB);
    OK(cuMemsetD8_v2(ptr, 'd', 16384));
    OK(cuCtxSynchronize());
    EXPECT(cuMemGetHandleForAddressRange(&fd, ptr + 1, 4096, DMA_BUF_FD, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemGetHandleForAddressRange(&fd, ptr, 4096, 2, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemGetHandleForAddressRange(NULL, ptr, 4096, DMA_BUF_FD, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemGetHandleForAddressRange(&fd, ptr, 4 * MIB, DMA_BUF_FD, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemGetHandleForAddressRange(&fd, ptr, 4096, DMA_BUF_FD, 1), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemGetHandleForAddressRange(&fd, ptr + 4096, 8192, DMA_BUF_FD, 0));
    OK(cuMemGetHandleForAddressRange(&again, ptr + 4096, 8192, DMA_BUF_FD, 0));
    EXPECT(cuMemGetHandleForAddressRange(&again, ptr, 8192, DMA_BUF_FD, 0), CUDA_ERROR_NOT_SUPPORTED);
    CHECK(pwrite(fd, "peer", 4, 4096) == 4);
    OK(cuMemcpyDtoH_v2(back, ptr + 8192, 6));
    CHECK(memcmp(back, is_ordered ? "peerdd" : "dddddd", 6) == 0);
    EXPECT(cuFlushGPUDirectRDMAWrites(1, 100), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuFlushGPUDirectRDMAWrites(0, 50), CUDA_ERROR_INVALID_VALUE);
    OK(cuFlushGPUDirectRDMAWrites(0, 100));
    OK(cuMemcpyDtoH_v2(back, ptr + 8192, 6));
    CHECK(memcmp(back, "peerdd", 6) == 0);
    OK(cuMemcpyHtoD_v2(ptr + 8194, "GPU", 3));
    CHECK(pread(again, back, 6, 4096) == 6 && memcmp(back, "peGPUd", 6) == 0);
    OK(cuMemFree_v2(ptr));
    ptr = memory(2 * MIB);
    OK(cuMemcpyDtoH_v2(back, ptr + 8192, 6));
    CHECK(memcmp(back, "peGPUd", 6) == 0); /* as it was left */
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(nvmlComputeInstanceDestroy(made.compute));
    void *mapped = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
    close(again);
    EXPECT(nvmlGpuInstanceDestroy(made.instance), NVML_ERROR_IN_USE);
    close(fd);
    EXPECT(nvmlGpuInstanceDestroy(made.instance), NVML_ERROR_IN_USE); /* a mapping, as of a registered region */
    munmap(mapped, 8192);
    OK(nvmlGpuInstanceDestroy(made.instance));
}

static void ordered_writes_reach_the_device_at_once(void)
{
    peers_write_through_a_descriptor(true);
}

static void other_writes_need_a_flush(void)
{
    setting("ORDERING", "0");
    peers_write_through_a_descriptor(false);
}

/* -- another process ------------------------------------------------------------------------------------------------ */

static char uuid_of_instance[NVML_UUID_SIZE];

static int leave_a_pattern(void)
{
    begin(uuid_of_instance);
    CUdeviceptr ptr = memory(SLICE);
    OK(cuMemsetD8_v2(ptr, 0xab, SLICE));
    OK(cuCtxSynchronize());
    _exit(3); /* no cleanup */
}

static void what_a_process_leaves_is_found_by_the_next(void)
{
    unsigned char back = 0;
    unsigned count = 1;
    nvmlProcessInfo_t info;
    struct cut made = cut(open_nvml(), 19, 0, 3, 1);
    strcpy(uuid_of_instance, made.uuid);
    CHECK(in_child(leave_a_pattern) == 3);
    OK(nvmlDeviceGetComputeRunningProcesses_v3(made.device, &count, &info));
    CHECK(count == 0);
    begin(made.uuid);
    CUdeviceptr ptr = memory(SLICE);
    OK(cuMemcpyDtoH_v2(&back, ptr + SLICE - 1, 1));
    CHECK(back == 0xab);
    count = 0;
    EXPECT(nvmlDeviceGetComputeRunningProcesses_v3(made.device, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    OK(nvmlDeviceGetComputeRunningProcesses_v3(made.device, &count, &info));
    CHECK(count == 1 && info.pid == (uint32_t)getpid() && info.usedGpuMemory == SLICE);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    destroy(made);
}

static void faults_come_at_their_turn(void)
{
    CUdeviceptr ptr;
    use_whole_gpu();
    CUfunction empty = kernel("offpath_empty");
    setting("FAULTS", "cuMemAlloc:2=2,sticky=719@2,slow=cuMemAlloc:1");
    memory(1);
    EXPECT(cuMemAlloc_v2(&ptr, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(launch(empty, NULL, NULL));
    OK(cuCtxSynchronize());
    OK(launch(empty, NULL, NULL));
    EXPECT(cuCtxSynchronize(), 719);
}

const struct test share_tests[] = {
    {"ordered_writes_reach_the_device_at_once", ordered_writes_reach_the_device_at_once},
    {"other_writes_need_a_flush", other_writes_need_a_flush},
    {"what_a_process_leaves_is_found_by_the_next", what_a_process_leaves_is_found_by_the_next},
    {"faults_come_at_their_turn", faults_come_at_their_turn},
    {NULL, NULL},
};
