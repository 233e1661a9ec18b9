/* Tests of the GPU emulator in C: what needs no Python, and what only the sanitizers see. Each test is a process. */
#ifndef OFFPATH_GPU_EMULATOR_TEST_HARNESS_H
#define OFFPATH_GPU_EMULATOR_TEST_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../cuda.h"
#include "../nvml.h"

void check(bool holds, const char *claim, const char *file, int line);
void expect(int got, int wanted, const char *call, const char *file, int line);
#define CHECK(claim) check((claim), #claim, __FILE__, __LINE__)
#define EXPECT(call, code) expect((int)(call), (int)(code), #call, __FILE__, __LINE__)
#define OK(call) EXPECT(call, 0)

/* Runs `wrong` in a child, which must end by this signal with this text on stderr. */
void dies(void (*wrong)(void), int signal, const char *text);
/* Runs `body` in a child that must end well; what it returns. */
int in_child(int (*body)(void));

void setting(const char *name, const char *value); /* OFFPATH_GPU_EMULATOR_name */
nvmlDevice_t open_nvml(void);                      /* NVML, and its first GPU */

/* An instance with one compute instance of its whole size. */
struct cut {
    nvmlGpuInstance_t instance;
    nvmlComputeInstance_t compute;
    nvmlDevice_t device;
    char uuid[NVML_UUID_SIZE];
};
struct cut cut(nvmlDevice_t gpu, unsigned profile_id, unsigned compute_profile, unsigned start, unsigned size);
void destroy(struct cut cut);
CUcontext begin(const char *visible); /* CUDA on these devices, and the first one's primary context */
void use_whole_gpu(void);             /* the same with MIG off */
CUdeviceptr memory(size_t len);
CUfunction kernel(const char *name);
CUresult launch(CUfunction function, CUstream stream, void **arguments);

typedef void test_body(void);
struct test {
    const char *name;
    test_body *body;
};
extern const struct test nvml_tests[], cuda_tests[], share_tests[];

#endif
