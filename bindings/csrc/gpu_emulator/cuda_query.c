/* libcuda: entry points by name, and the texts of codes. */
#define _GNU_SOURCE
#include <string.h>

#include "cuda_internal.h"

/* A base name, the version of CUDA that its interface is from, the function. Newer interfaces follow older ones, which
 * may be the same: then both versions take the same arguments. */
struct entry {
    const char *name;
    int since;
    void (*function)(void);
};
#define ENTRY(name, since, function) {name, since, (void (*)(void))(function)}

static const struct entry entries[] = {
    ENTRY("cuInit", 2000, cuInit),
    ENTRY("cuDriverGetVersion", 2020, cuDriverGetVersion),
    ENTRY("cuGetProcAddress", 12000, cuGetProcAddress_v2),
    ENTRY("cuGetErrorName", 6000, cuGetErrorName),
    ENTRY("cuGetErrorString", 6000, cuGetErrorString),
    ENTRY("cuGetExportTable", 3000, cuGetExportTable),
    ENTRY("cuDeviceGetCount", 2000, cuDeviceGetCount),
    ENTRY("cuDeviceGet", 2000, cuDeviceGet),
    ENTRY("cuDeviceGetName", 2000, cuDeviceGetName),
    ENTRY("cuDeviceGetAttribute", 2000, cuDeviceGetAttribute),
    ENTRY("cuDeviceGetUuid", 9020, cuDeviceGetUuid),
    ENTRY("cuDeviceGetUuid", 11040, cuDeviceGetUuid_v2),
    ENTRY("cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2),
    ENTRY("cuDeviceGetPCIBusId", 4010, cuDeviceGetPCIBusId),
    ENTRY("cuDeviceGetP2PAttribute", 8000, cuDeviceGetP2PAttribute),
    ENTRY("cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain),
    ENTRY("cuDevicePrimaryCtxRelease", 7000, cuDevicePrimaryCtxRelease_v2),
    ENTRY("cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2),
    ENTRY("cuDevicePrimaryCtxReset", 7000, cuDevicePrimaryCtxReset_v2),
    ENTRY("cuDevicePrimaryCtxReset", 11000, cuDevicePrimaryCtxReset_v2),
    ENTRY("cuDevicePrimaryCtxSetFlags", 7000, cuDevicePrimaryCtxSetFlags_v2),
    ENTRY("cuDevicePrimaryCtxSetFlags", 11000, cuDevicePrimaryCtxSetFlags_v2),
    ENTRY("cuDevicePrimaryCtxGetState", 7000, cuDevicePrimaryCtxGetState),
    ENTRY("cuCtxSetCurrent", 4000, cuCtxSetCurrent),
    ENTRY("cuCtxGetCurrent", 4000, cuCtxGetCurrent),
    ENTRY("cuCtxGetDevice", 2000, cuCtxGetDevice),
    ENTRY("cuCtxGetDevice", 13000, cuCtxGetDevice_v2),
    ENTRY("cuCtxSynchronize", 2000, cuCtxSynchronize),
    ENTRY("cuCtxSynchronize", 13000, cuCtxSynchronize_v2),
    ENTRY("cuMemGetInfo", 3020, cuMemGetInfo_v2),
    ENTRY("cuMemAlloc", 3020, cuMemAlloc_v2),
    ENTRY("cuMemFree", 3020, cuMemFree_v2),
    ENTRY("cuMemGetAddressRange", 3020, cuMemGetAddressRange_v2),
    ENTRY("cuMemAllocHost", 3020, cuMemAllocHost_v2),
    ENTRY("cuMemFreeHost", 2000, cuMemFreeHost),
    ENTRY("cuMemHostRegister", 6050, cuMemHostRegister_v2),
    ENTRY("cuMemHostUnregister", 4000, cuMemHostUnregister),
    ENTRY("cuPointerGetAttribute", 4000, cuPointerGetAttribute),
    ENTRY("cuPointerSetAttribute", 6000, cuPointerSetAttribute),
    ENTRY("cuMemGetHandleForAddressRange", 11070, cuMemGetHandleForAddressRange),
    ENTRY("cuFlushGPUDirectRDMAWrites", 11030, cuFlushGPUDirectRDMAWrites),
    ENTRY("cuMemcpyHtoD", 3020, cuMemcpyHtoD_v2),
    ENTRY("cuMemcpyDtoH", 3020, cuMemcpyDtoH_v2),
    ENTRY("cuMemcpyDtoD", 3020, cuMemcpyDtoD_v2),
    ENTRY("cuMemcpyHtoDAsync", 3020, cuMemcpyHtoDAsync_v2),
    ENTRY("cuMemcpyDtoHAsync", 3020, cuMemcpyDtoHAsync_v2),
    ENTRY("cuMemcpyDtoDAsync", 3020, cuMemcpyDtoDAsync_v2),
    ENTRY("cuMemsetD8", 3020, cuMemsetD8_v2),
    ENTRY("cuMemsetD8Async", 3020, cuMemsetD8Async),
    ENTRY("cuMemsetD32Async", 3020, cuMemsetD32Async),
    ENTRY("cuStreamCreate", 2000, cuStreamCreate),
    ENTRY("cuStreamDestroy", 4000, cuStreamDestroy_v2),
    ENTRY("cuStreamSynchronize", 2000, cuStreamSynchronize),
    ENTRY("cuStreamQuery", 2000, cuStreamQuery),
    ENTRY("cuStreamWaitEvent", 3020, cuStreamWaitEvent),
    ENTRY("cuEventCreate", 2000, cuEventCreate),
    ENTRY("cuEventDestroy", 4000, cuEventDestroy_v2),
    ENTRY("cuEventRecord", 2000, cuEventRecord),
    ENTRY("cuEventQuery", 2000, cuEventQuery),
    ENTRY("cuEventSynchronize", 2000, cuEventSynchronize),
    ENTRY("cuEventElapsedTime", 2000, cuEventElapsedTime),
    ENTRY("cuEventElapsedTime", 12080, cuEventElapsedTime_v2),
    ENTRY("cuModuleLoadData", 2000, cuModuleLoadData),
    ENTRY("cuModuleLoadDataEx", 2010, cuModuleLoadDataEx),
    ENTRY("cuModuleUnload", 2000, cuModuleUnload),
    ENTRY("cuModuleGetFunction", 2000, cuModuleGetFunction),
    ENTRY("cuLaunchKernel", 4000, cuLaunchKernel),
    ENTRY("cuLaunchHostFunc", 10000, cuLaunchHostFunc),
    ENTRY("cuLaunchHostFunc", 13010, cuLaunchHostFunc_v2),
};

/* Returns success for unknown names. For a version above the driver's it returns the newest function that the driver
 * has, without an error. */
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status)
{
    enum { FOUND = 0, NAME_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2, MOST_FLAGS = 2 };
    ENTER(CUresult);
    NEEDS(symbol != NULL && pfn != NULL && flags <= MOST_FLAGS, CUDA_ERROR_INVALID_VALUE);
    NEEDS(cuda.is_initialized || emu_open(), CUDA_ERROR_NO_DEVICE);
    int result = NAME_NOT_FOUND, driver = emu_cuda_version();
    *pfn = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (strcmp(entries[i].name, symbol) != 0 || entries[i].since > driver)
            continue;
        if (entries[i].since <= version) {
            memcpy(pfn, &entries[i].function, sizeof *pfn);
            result = FOUND;
        } else if (result == NAME_NOT_FOUND) {
            result = VERSION_NOT_SUFFICIENT;
        }
    }
    if (status != NULL)
        *status = result;
    return CUDA_SUCCESS;
}

/* What the CUDA runtime needs of the driver is not public, so the runtime does not work on this library. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    ENTER(CUresult);
    NEEDS(table != NULL && id != NULL, CUDA_ERROR_INVALID_VALUE);
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

uint64_t cuda_emulator_calls(const char *name)
{
    return emu_calls(name);
}

/* -- codes ---------------------------------------------------------------------------------------------------------- */

static const struct {
    int code;
    const char *name, *text;
} codes[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled"},
    {226, "CUDA_ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server"},
    {806, "CUDA_ERROR_MPS_RPC_FAILURE", "the remote procedural call between the MPS server and the MPS client failed"},
    {807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS server is not ready to accept new MPS client requests"},
    {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "the MPS client has been terminated by the server"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

CUresult cuGetErrorName(CUresult error, const char **text)
{
    ENTER(CUresult);
    NEEDS(text != NULL, CUDA_ERROR_INVALID_VALUE);
    *text = NULL;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == (int)error)
            *text = codes[i].name;
    return *text != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    ENTER(CUresult);
    NEEDS(text != NULL, CUDA_ERROR_INVALID_VALUE);
    *text = NULL;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == (int)error)
            *text = codes[i].text;
    return *text != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
