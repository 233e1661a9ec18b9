/* Copies: host to DPU to host across two processes, and the causes of failed copies. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { LEN = 600000, MIB = 1 << 20 };

/* What the host sends to the DPU, by any channel. */
struct described {
    uint64_t addr, len;
    size_t desc_len;
    unsigned char desc[512];
};

static struct described describe(struct doca_mmap *mmap, struct doca_dev *dev, const void *addr, size_t len)
{
    struct described told = {.addr = (uintptr_t)addr, .len = len};
    const void *desc;
    OK(doca_mmap_export_pci(mmap, dev, &desc, &told.desc_len));
    CHECK(told.desc_len > 0 && told.desc_len < sizeof told.desc);
    memcpy(told.desc, desc, told.desc_len);
    return told;
}

static struct doca_mmap *import(struct doca_dev *dev, const struct described *told)
{
    struct doca_mmap *mmap;
    OK(doca_mmap_create_from_export(NULL, told->desc, told->desc_len, dev, &mmap));
    void *addr;
    size_t len;
    OK(doca_mmap_get_memrange(mmap, &addr, &len));
    CHECK((uintptr_t)addr == told->addr && len == told->len);
    return mmap;
}

static void *at(const struct described *told, size_t offset)
{
    return (void *)(uintptr_t)(told->addr + offset);
}

/* The host: a read-only source and a destination; then it reports what it found. */
static void host_of_a_round_trip(int fd)
{
    struct doca_dev *dev = device("host");
    unsigned char *bytes = malloc(LEN), *back = calloc(1, LEN);
    for (size_t i = 0; i < LEN; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 251);
    struct doca_mmap *source = map(dev, bytes, LEN, DOCA_ACCESS_FLAG_PCI_READ_ONLY);
    struct doca_mmap *destination = map(dev, back, LEN, DOCA_ACCESS_FLAG_PCI_READ_WRITE);
    struct described told[] = {describe(source, dev, bytes, LEN), describe(destination, dev, back, LEN)};
    tell(fd, told, sizeof told);
    char word;
    hear(fd, &word, 1);
    CHECK(memcmp(bytes, back, LEN) == 0);
    OK(doca_mmap_destroy(source));
    OK(doca_mmap_destroy(destination));
    OK(doca_dev_close(dev));
    tell(fd, "", 1);
    hear(fd, &word, 1);
    free(bytes);
    free(back);
}

static void bytes_go_from_host_to_dpu_and_back(void)
{
    struct child host = begin(host_of_a_round_trip);
    struct doca_dev *dev = device("dpu");
    struct described told[2];
    hear(host.fd, told, sizeof told);
    struct rig rig;
    rig_open(&rig, dev, 4);
    unsigned char *staging = calloc(1, LEN);
    struct doca_mmap *local = map(dev, staging, LEN, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    struct doca_mmap *source = import(dev, &told[0]), *destination = import(dev, &told[1]);
    struct doca_buf *to = buf(rig.inventory, local, staging, LEN, 0), *again;
    size_t data_len;
    OK(doca_buf_inc_refcount(to, NULL));
    OK(copied(&rig, buf(rig.inventory, source, at(&told[0], 0), LEN, LEN), to));
    OK(doca_buf_get_data_len(to, &data_len));
    CHECK(data_len == LEN && staging[8] == 56);
    OK(doca_buf_inventory_buf_get_by_data(rig.inventory, local, staging, LEN, &again));
    OK(doca_buf_dec_refcount(to, NULL));
    OK(copied(&rig, again, buf(rig.inventory, destination, at(&told[1], 0), LEN, 0)));
    char word;
    tell(host.fd, "", 1);
    hear(host.fd, &word, 1);

    /* The exporter has released both: an earlier import reads nothing more. */
    to = buf(rig.inventory, local, staging, LEN, 0);
    EXPECT(copied(&rig, buf(rig.inventory, source, at(&told[0], 0), LEN, LEN), to), DOCA_ERROR_IO_FAILED);
    struct doca_mmap *late;
    EXPECT(doca_mmap_create_from_export(NULL, told[0].desc, told[0].desc_len, dev, &late), DOCA_ERROR_INVALID_VALUE);
    tell(host.fd, "", 1);
    joined(host);
    OK(doca_mmap_destroy(source));
    OK(doca_mmap_destroy(destination));
    OK(doca_mmap_destroy(local));
    rig_close(&rig);
    OK(doca_dev_close(dev));
    free(staging);
}

static void host_that_dies(int fd)
{
    static unsigned char bytes[4096];
    struct doca_dev *dev = device("host");
    struct doca_mmap *mmap = map(dev, bytes, sizeof bytes, DOCA_ACCESS_FLAG_PCI_READ_WRITE);
    struct described told = describe(mmap, dev, bytes, sizeof bytes);
    tell(fd, &told, sizeof told);
    hear(fd, bytes, 1);
}

static void a_dead_exporters_memory_fails_the_copy(void)
{
    struct child host = begin(host_that_dies);
    struct doca_dev *dev = device("dpu");
    struct described told;
    hear(host.fd, &told, sizeof told);
    struct rig rig;
    rig_open(&rig, dev, 4);
    unsigned char staging[4096] = {0};
    struct doca_mmap *local = map(dev, staging, sizeof staging, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE), *late;
    struct doca_mmap *remote = import(dev, &told);
    struct doca_buf *from = buf(rig.inventory, local, staging, 4096, 4096);
    OK(doca_buf_inc_refcount(from, NULL));
    OK(copied(&rig, from, buf(rig.inventory, remote, at(&told, 0), 4096, 0)));
    killed(host);
    EXPECT(copied(&rig, from, buf(rig.inventory, remote, at(&told, 0), 4096, 0)), DOCA_ERROR_IO_FAILED);
    CHECK(state(rig.ctx) == DOCA_CTX_STATE_STOPPING);
    EXPECT(doca_mmap_create_from_export(NULL, told.desc, told.desc_len, dev, &late), DOCA_ERROR_INVALID_VALUE);
    OK(doca_mmap_destroy(remote));
    OK(doca_mmap_destroy(local));
    rig_close(&rig);
    OK(doca_dev_close(dev));
}

static void a_blob_is_refused_unless_it_is_whole_and_of_this_card(void)
{
    static unsigned char bytes[4096];
    setenv("DOCA_EMULATOR_DEVICES", "2", 1);
    struct doca_dev *host = device("host");
    struct doca_mmap *mmap = map(host, bytes, sizeof bytes, DOCA_ACCESS_FLAG_PCI_READ_WRITE), *made;
    struct described told = describe(mmap, host, bytes, sizeof bytes);
    side("dpu");
    struct doca_dev *dpu = open_device("03:00.0"), *other = open_device("04:00.0");
    for (size_t len = 0; len < told.desc_len; len++)
        EXPECT(doca_mmap_create_from_export(NULL, told.desc, len, dpu, &made), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_mmap_create_from_export(NULL, told.desc, told.desc_len + 1, dpu, &made), DOCA_ERROR_INVALID_VALUE);
    for (size_t bit = 0; bit < 8 * told.desc_len; bit++) {
        told.desc[bit / 8] ^= (unsigned char)(1U << bit % 8);
        CHECK(doca_mmap_create_from_export(NULL, told.desc, told.desc_len, dpu, &made) != DOCA_SUCCESS);
        told.desc[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
    EXPECT(doca_mmap_create_from_export(NULL, told.desc, told.desc_len, other, &made), DOCA_ERROR_NOT_PERMITTED);
    EXPECT(doca_mmap_create_from_export(NULL, told.desc, told.desc_len, host, &made), DOCA_ERROR_NOT_SUPPORTED);
    union doca_data mine = {.u64 = 5};
    OK(doca_mmap_create_from_export(&mine, told.desc, told.desc_len, dpu, &made));
    OK(doca_mmap_destroy(made));
    OK(doca_mmap_destroy(mmap));
    OK(doca_dev_close(other));
    OK(doca_dev_close(dpu));
    OK(doca_dev_close(host));
}

static void one_exported_range_may_be_copied_to_another(void)
{
    static unsigned char one[LEN], two[LEN];
    struct doca_dev *host = device("host"), *dpu = device("dpu");
    struct doca_mmap *from = map(host, one, LEN, DOCA_ACCESS_FLAG_PCI_READ_ONLY);
    struct doca_mmap *to = map(host, two, LEN, DOCA_ACCESS_FLAG_PCI_READ_WRITE);
    struct described told[] = {describe(from, host, one, LEN), describe(to, host, two, LEN)};
    struct doca_mmap *source = import(dpu, &told[0]), *destination = import(dpu, &told[1]);
    for (size_t i = 0; i < LEN; i++)
        one[i] = (unsigned char)(i % 253);
    struct rig rig;
    rig_open(&rig, dpu, 1);
    OK(copied(&rig, buf(rig.inventory, source, one, LEN, LEN), buf(rig.inventory, destination, two, LEN, 0)));
    CHECK(memcmp(one, two, LEN) == 0);
    OK(doca_mmap_destroy(source));
    OK(doca_mmap_destroy(destination));
    OK(doca_mmap_destroy(from));
    OK(doca_mmap_destroy(to));
    rig_close(&rig);
    OK(doca_dev_close(host));
    OK(doca_dev_close(dpu));
}

/* One process with both sides: what one copy may do, each in a fresh context, because each failure is fatal. */
static void permissions_lengths_and_devices_decide_over_a_copy(void)
{
    static unsigned char theirs[4096], ours[4096];
    struct doca_dev *host = device("host"), *dpu = device("dpu");
    static const struct {
        uint32_t theirs, ours;
        bool writes_theirs;
        size_t len, room;
        doca_error_t wanted;
    } cases[] = {
        {DOCA_ACCESS_FLAG_PCI_READ_ONLY, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE, false, 64, 64, DOCA_SUCCESS},
        {DOCA_ACCESS_FLAG_PCI_READ_WRITE, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE, false, 64, 64, DOCA_SUCCESS},
        {DOCA_ACCESS_FLAG_PCI_READ_WRITE, DOCA_ACCESS_FLAG_LOCAL_READ_ONLY, true, 64, 64, DOCA_SUCCESS},
        {DOCA_ACCESS_FLAG_PCI_READ_ONLY, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE, true, 64, 64, DOCA_ERROR_NOT_PERMITTED},
        {DOCA_ACCESS_FLAG_PCI_READ_ONLY, DOCA_ACCESS_FLAG_LOCAL_READ_ONLY, false, 64, 64, DOCA_ERROR_NOT_PERMITTED},
        {DOCA_ACCESS_FLAG_PCI_READ_WRITE, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE, true, 0, 64, DOCA_ERROR_IO_FAILED},
        {DOCA_ACCESS_FLAG_PCI_READ_WRITE, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE, true, 65, 64, DOCA_ERROR_IO_FAILED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct doca_mmap *exported = map(host, theirs, sizeof theirs, cases[i].theirs);
        struct doca_mmap *local = map(dpu, ours, sizeof ours, cases[i].ours);
        struct described told = describe(exported, host, theirs, sizeof theirs);
        struct doca_mmap *imported = import(dpu, &told);
        struct rig rig;
        rig_open(&rig, dpu, 2);
        bool writes = cases[i].writes_theirs;
        struct doca_buf *src = buf(rig.inventory, writes ? local : imported, writes ? ours : theirs, 128, cases[i].len);
        struct doca_buf *dst = buf(rig.inventory, writes ? imported : local, writes ? theirs : ours, cases[i].room, 0);
        EXPECT(copied(&rig, src, dst), cases[i].wanted);
        CHECK(state(rig.ctx) == (cases[i].wanted == DOCA_SUCCESS ? DOCA_CTX_STATE_RUNNING : DOCA_CTX_STATE_STOPPING));
        EXPECT(doca_mmap_start(imported), DOCA_ERROR_NOT_PERMITTED);
        EXPECT(doca_mmap_set_permissions(imported, 1), DOCA_ERROR_BAD_STATE);
        const void *desc;
        size_t desc_len;
        EXPECT(doca_mmap_export_pci(imported, dpu, &desc, &desc_len), DOCA_ERROR_NOT_PERMITTED);
        OK(doca_mmap_destroy(imported));
        OK(doca_mmap_destroy(local));
        OK(doca_mmap_destroy(exported));
        rig_close(&rig);
    }
    OK(doca_dev_close(host));
    OK(doca_dev_close(dpu));
}

static void the_length_is_the_sources_and_the_data_goes_behind_the_destinations(void)
{
    static char bytes[256] = "abcdefghij";
    struct doca_dev *dpu = device("dpu");
    struct rig rig;
    rig_open(&rig, dpu, 2);
    struct doca_mmap *mmap = map(dpu, bytes, sizeof bytes, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    struct doca_buf *dst = buf(rig.inventory, mmap, bytes + 128, 64, 0);
    size_t data_len;
    for (size_t round = 1; round <= 3; round++) {
        OK(doca_buf_inc_refcount(dst, NULL));
        OK(copied(&rig, buf(rig.inventory, mmap, bytes, 100, 5), dst));
        OK(doca_buf_get_data_len(dst, &data_len));
        CHECK(data_len == 5 * round);
    }
    CHECK(strcmp(bytes + 128, "abcdeabcdeabcde") == 0);
    OK(doca_buf_reset_data_len(dst));
    OK(copied(&rig, buf(rig.inventory, mmap, bytes, 100, 2), dst));
    CHECK(strcmp(bytes + 128, "abcdeabcdeabcde") == 0);
    OK(doca_mmap_destroy(mmap));
    rig_close(&rig);
    OK(doca_dev_close(dpu));
}

static void an_oversized_copy_is_taken_and_fails_at_its_completion(void)
{
    struct doca_dev *dpu = device("dpu");
    unsigned char *bytes = calloc(1, 6 * MIB);
    uint64_t most;
    OK(doca_dma_cap_task_memcpy_get_max_buf_size(doca_dev_as_devinfo(dpu), &most));
    CHECK(most == 2 * MIB);
    struct doca_mmap *mmap = map(dpu, bytes, 6 * MIB, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    struct rig rig;
    rig_open(&rig, dpu, 2);
    OK(copied(&rig, buf(rig.inventory, mmap, bytes, most, most), buf(rig.inventory, mmap, bytes + 3 * MIB, most, 0)));
    struct doca_buf *src = buf(rig.inventory, mmap, bytes, most + 1, most + 1);
    struct doca_buf *dst = buf(rig.inventory, mmap, bytes + 3 * MIB, most + 1, 0);
    struct doca_dma_task_memcpy *task = copy(&rig, src, dst, 1);
    EXPECT(doca_task_try_submit(doca_dma_task_memcpy_as_task(task)), DOCA_ERROR_INVALID_VALUE);
    doca_task_free(doca_dma_task_memcpy_as_task(task));
    EXPECT(copied(&rig, src, dst), DOCA_ERROR_IO_FAILED);
    CHECK(state(rig.ctx) == DOCA_CTX_STATE_STOPPING);
    OK(doca_mmap_destroy(mmap));
    rig_close(&rig);
    setenv("DOCA_EMULATOR_DMA_MAX", "4096", 1);
    OK(doca_dma_cap_task_memcpy_get_max_buf_size(doca_dev_as_devinfo(dpu), &most));
    CHECK(most == 4096);
    OK(doca_dev_close(dpu));
    free(bytes);
}

const struct test dma_tests[] = {
    {"bytes_go_from_host_to_dpu_and_back", bytes_go_from_host_to_dpu_and_back},
    {"a_dead_exporters_memory_fails_the_copy", a_dead_exporters_memory_fails_the_copy},
    {"a_blob_is_refused_unless_it_is_whole_and_of_this_card", a_blob_is_refused_unless_it_is_whole_and_of_this_card},
    {"one_exported_range_may_be_copied_to_another", one_exported_range_may_be_copied_to_another},
    {"permissions_lengths_and_devices_decide_over_a_copy", permissions_lengths_and_devices_decide_over_a_copy},
    {"the_length_is_the_sources_and_the_data_goes_behind_the_destinations",
        the_length_is_the_sources_and_the_data_goes_behind_the_destinations},
    {"an_oversized_copy_is_taken_and_fails_at_its_completion", an_oversized_copy_is_taken_and_fails_at_its_completion},
    {NULL, NULL},
};
