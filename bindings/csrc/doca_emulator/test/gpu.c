/* Memory of an emulated GPU: allocated, exported by dmabuf or by its address, written by the DPU. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

enum { PAGE = 64 << 10 };

static void allocations_are_checked(void)
{
    struct doca_gpu *gpu;
    void *on_gpu, *on_cpu;
    int fd;
    EXPECT(doca_gpu_create("0000:99:00.0", &gpu), DOCA_ERROR_NOT_FOUND);
    EXPECT(doca_gpu_create(NULL, &gpu), DOCA_ERROR_INVALID_VALUE);
    OK(doca_gpu_create("3b:00.0", &gpu));
    EXPECT(doca_gpu_mem_alloc(gpu, 0, 0, DOCA_GPU_MEM_TYPE_GPU, &on_gpu, NULL), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_gpu_mem_alloc(gpu, 10, 3, DOCA_GPU_MEM_TYPE_GPU, &on_gpu, NULL), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_gpu_mem_alloc(gpu, 10, 0, DOCA_GPU_MEM_TYPE_GPU_CPU, &on_gpu, NULL), DOCA_ERROR_INVALID_VALUE);
    OK(doca_gpu_mem_alloc(gpu, 10, 1 << 20, DOCA_GPU_MEM_TYPE_GPU, &on_gpu, NULL));
    CHECK((uintptr_t)on_gpu % (1 << 20) == 0);
    EXPECT(doca_gpu_destroy(gpu), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_gpu_dmabuf_fd(gpu, (char *)on_gpu + 1, 1, &fd), DOCA_ERROR_INVALID_VALUE);
    setenv("DOCA_EMULATOR_DMABUF", "0", 1);
    EXPECT(doca_gpu_dmabuf_fd(gpu, on_gpu, 10, &fd), DOCA_ERROR_NOT_SUPPORTED);
    OK(doca_gpu_mem_free(gpu, on_gpu));
    EXPECT(doca_gpu_mem_free(gpu, on_gpu), DOCA_ERROR_INVALID_VALUE);
    OK(doca_gpu_mem_alloc(gpu, 10, 0, DOCA_GPU_MEM_TYPE_CPU_GPU, &on_gpu, &on_cpu));
    *(char *)on_cpu = 1;
    OK(doca_gpu_mem_free(gpu, on_gpu));
    OK(doca_gpu_destroy(gpu));
}

static void the_processor_cannot_touch_what_is_the_gpus(void)
{
    struct doca_gpu *gpu;
    void *on_gpu;
    int ends[2];
    OK(doca_gpu_create("0000:3b:00.0", &gpu));
    OK(doca_gpu_mem_alloc(gpu, PAGE, 0, DOCA_GPU_MEM_TYPE_GPU, &on_gpu, NULL));
    CHECK(pipe(ends) == 0);
    CHECK(write(ends[1], on_gpu, 1) < 0); /* the kernel cannot access it there either */
    close(ends[0]);
    close(ends[1]);
    OK(doca_gpu_mem_free(gpu, on_gpu));
    OK(doca_gpu_destroy(gpu));
}

/* The DPU writes into the GPU's memory; the host sees it through the second mapping. */
static void lands(bool by_dmabuf)
{
    struct doca_gpu *gpu;
    void *on_gpu, *on_cpu;
    struct doca_dev *host = device("host"), *dpu = device("dpu");
    struct doca_mmap *mmap, *remote;
    OK(doca_gpu_create("0000:3b:00.0", &gpu));
    OK(doca_gpu_mem_alloc(gpu, 2 * PAGE, PAGE, DOCA_GPU_MEM_TYPE_GPU_CPU, &on_gpu, &on_cpu));
    OK(doca_mmap_create(&mmap));
    OK(doca_mmap_add_dev(mmap, host));
    OK(doca_mmap_set_permissions(mmap, DOCA_ACCESS_FLAG_PCI_READ_WRITE));
    if (by_dmabuf) {
        int fd;
        OK(doca_gpu_dmabuf_fd(gpu, on_gpu, 2 * PAGE, &fd));
        EXPECT(doca_mmap_set_dmabuf_memrange(mmap, -1, on_gpu, 0, PAGE), DOCA_ERROR_INVALID_VALUE);
        EXPECT(doca_mmap_set_dmabuf_memrange(mmap, fd, on_gpu, 0, 3 * PAGE), DOCA_ERROR_INVALID_VALUE);
        OK(doca_mmap_set_dmabuf_memrange(mmap, fd, on_gpu, 0, 2 * PAGE));
        close(fd);
    } else {
        OK(doca_mmap_set_memrange(mmap, on_gpu, 2 * PAGE));
        setenv("DOCA_EMULATOR_PEERMEM", "0", 1);
        EXPECT(doca_mmap_start(mmap), DOCA_ERROR_DRIVER);
        setenv("DOCA_EMULATOR_PEERMEM", "1", 1);
    }
    OK(doca_mmap_start(mmap));
    const void *desc;
    size_t len;
    OK(doca_mmap_export_pci(mmap, host, &desc, &len));
    OK(doca_mmap_create_from_export(NULL, desc, len, dpu, &remote));
    struct rig rig;
    static char word[] = "from the DPU";
    rig_open(&rig, dpu, 2);
    struct doca_mmap *local = map(dpu, word, sizeof word, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    struct doca_buf *from = buf(rig.inventory, local, word, sizeof word, sizeof word);
    OK(copied(&rig, from, buf(rig.inventory, remote, (char *)on_gpu + PAGE, PAGE, 0)));
    CHECK(strcmp((char *)on_cpu + PAGE, word) == 0);
    OK(doca_mmap_destroy(remote));
    OK(doca_mmap_destroy(local));
    OK(doca_mmap_destroy(mmap));
    rig_close(&rig);
    OK(doca_gpu_mem_free(gpu, on_gpu));
    OK(doca_gpu_destroy(gpu));
    OK(doca_dev_close(dpu));
    OK(doca_dev_close(host));
}

static void bytes_land_in_a_gpus_memory_by_dmabuf(void)
{
    lands(true);
}

static void bytes_land_in_a_gpus_memory_by_its_address(void)
{
    lands(false);
}

static void ignore(struct doca_dma_task_memcpy *task, union doca_data mark, union doca_data of)
{
    (void)task, (void)mark, (void)of;
}

static void a_context_on_the_gpu_needs_no_engine(void)
{
    struct doca_gpu *gpu;
    struct doca_dma *dma;
    struct doca_gpu_dma *handle;
    struct doca_dev *dev = device("dpu");
    OK(doca_gpu_create("0000:3b:00.0", &gpu));
    OK(doca_dma_create(dev, &dma));
    OK(doca_dma_task_memcpy_set_conf(dma, ignore, ignore, 1));
    EXPECT(doca_dma_get_gpu_handle(dma, &handle), DOCA_ERROR_BAD_STATE);
    OK(doca_ctx_set_datapath_on_gpu(doca_dma_as_ctx(dma), gpu));
    OK(doca_ctx_start(doca_dma_as_ctx(dma)));
    OK(doca_dma_get_gpu_handle(dma, &handle));
    EXPECT(doca_ctx_set_datapath_on_gpu(doca_dma_as_ctx(dma), gpu), DOCA_ERROR_BAD_STATE);
    OK(doca_ctx_stop(doca_dma_as_ctx(dma)));
    OK(doca_dma_destroy(dma));
    OK(doca_gpu_destroy(gpu));
    OK(doca_dev_close(dev));
}

const struct test gpu_tests[] = {
    {"allocations_are_checked", allocations_are_checked},
    {"the_processor_cannot_touch_what_is_the_gpus", the_processor_cannot_touch_what_is_the_gpus},
    {"bytes_land_in_a_gpus_memory_by_dmabuf", bytes_land_in_a_gpus_memory_by_dmabuf},
    {"bytes_land_in_a_gpus_memory_by_its_address", bytes_land_in_a_gpus_memory_by_its_address},
    {"a_context_on_the_gpu_needs_no_engine", a_context_on_the_gpu_needs_no_engine},
    {NULL, NULL},
};
