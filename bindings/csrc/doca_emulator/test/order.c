/* Errors for a wrong order or state, table by table of the notes, and misuse that aborts. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static void devices_and_representors(void)
{
    static const struct {
        const char *name, *address, *short_address;
    } sides[] = {{"dpu", "0000:03:00.0", "03:00.0"}, {"host", "0000:5c:00.0", "5c:00.0"}};
    for (int i = 0; i < 2; i++) {
        side(sides[i].name);
        bool on_dpu = i == 0;
        struct doca_devinfo **list;
        struct doca_dev *dev, *again;
        uint32_t count;
        char text[256];
        uint8_t flag;
        EXPECT(doca_devinfo_create_list(NULL, &count), DOCA_ERROR_INVALID_VALUE);
        OK(doca_devinfo_create_list(&list, &count));
        CHECK(count == 1);
        OK(doca_devinfo_get_pci_addr_str(list[0], text));
        CHECK(strcmp(text, sides[i].address) == 0);
        OK(doca_devinfo_is_equal_pci_addr(list[0], sides[i].short_address, &flag));
        CHECK(flag == 1);
        OK(doca_devinfo_is_equal_pci_addr(list[0], "0000:99:00.0", &flag));
        CHECK(flag == 0);
        EXPECT(doca_devinfo_get_ibdev_name(list[0], text, 3), DOCA_ERROR_INVALID_VALUE);
        OK(doca_devinfo_get_ibdev_name(list[0], text, DOCA_DEVINFO_IBDEV_NAME_SIZE));
        CHECK(strcmp(text, "mlx5_0") == 0);
        OK(doca_devinfo_get_iface_name(list[0], text, DOCA_DEVINFO_IFACE_NAME_SIZE));
        OK(doca_dev_open(list[0], &dev));
        OK(doca_dev_open(list[0], &again));
        CHECK(dev == again);
        OK(doca_devinfo_destroy_list(list));
        OK(doca_mmap_cap_is_export_pci_supported(doca_dev_as_devinfo(dev), &flag));
        CHECK(flag == !on_dpu);
        OK(doca_mmap_cap_is_create_from_export_pci_supported(doca_dev_as_devinfo(dev), &flag));
        CHECK(flag == on_dpu);
        OK(doca_devinfo_rep_cap_is_filter_net_supported(doca_dev_as_devinfo(dev), &flag));
        CHECK(flag == on_dpu);
        EXPECT(doca_comch_cap_server_is_supported(doca_dev_as_devinfo(dev)),
            on_dpu ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED);
        EXPECT(doca_comch_cap_client_is_supported(doca_dev_as_devinfo(dev)),
            on_dpu ? DOCA_ERROR_NOT_SUPPORTED : DOCA_SUCCESS);
        struct doca_devinfo_rep **reps;
        EXPECT(doca_devinfo_rep_create_list(dev, DOCA_DEVINFO_REP_FILTER_NET, &reps, &count),
            on_dpu ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED);
        if (on_dpu) {
            struct doca_dev_rep *rep;
            CHECK(count == 1);
            OK(doca_devinfo_rep_is_equal_pci_addr(reps[0], "0000:5c:00.0", &flag));
            CHECK(flag == 1);
            OK(doca_dev_rep_open(reps[0], &rep));
            OK(doca_devinfo_rep_destroy_list(reps));
            OK(doca_devinfo_rep_get_pci_addr_str(doca_dev_rep_as_devinfo(rep), text));
            OK(doca_devinfo_rep_get_vuid(doca_dev_rep_as_devinfo(rep), text, DOCA_DEVINFO_REP_VUID_SIZE));
            OK(doca_dev_close(again));
            EXPECT(doca_dev_close(dev), DOCA_ERROR_IN_USE);
            OK(doca_dev_rep_close(rep));
        } else {
            OK(doca_dev_close(again));
        }
        OK(doca_dev_close(dev));
    }
}

static void freed(void *addr, size_t len, void *cookie)
{
    CHECK(len == 4096 && addr != NULL);
    ++*(int *)cookie;
}

static void memory_maps(void)
{
    static char bytes[4096];
    int frees = 0;
    setenv("DOCA_EMULATOR_DEVICES", "2", 1);
    struct doca_dev *host = device("host"), *second = open_device("5d:00.0");
    struct doca_mmap *mmap;
    struct doca_buf *taken;
    const void *desc;
    size_t len;
    void *addr;
    EXPECT(doca_mmap_create(NULL), DOCA_ERROR_INVALID_VALUE);
    OK(doca_mmap_create(&mmap));
    EXPECT(doca_mmap_start(mmap), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_mmap_get_memrange(mmap, &addr, &len), DOCA_ERROR_BAD_STATE);
    EXPECT(doca_mmap_set_memrange(mmap, NULL, 10), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_mmap_set_memrange(mmap, bytes, 0), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_mmap_set_memrange(mmap, bytes, SIZE_MAX), DOCA_ERROR_INVALID_VALUE);
    OK(doca_mmap_set_memrange(mmap, bytes, sizeof bytes));
    EXPECT(doca_mmap_set_memrange(mmap, bytes, sizeof bytes), DOCA_ERROR_NOT_PERMITTED);
    EXPECT(doca_mmap_set_permissions(mmap, 128), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_mmap_set_permissions(mmap, 16 | 32), DOCA_ERROR_INVALID_VALUE);
    OK(doca_mmap_add_dev(mmap, host));
    EXPECT(doca_mmap_add_dev(mmap, host), DOCA_ERROR_ALREADY_EXIST);
    EXPECT(doca_mmap_add_dev(mmap, second), DOCA_ERROR_NO_MEMORY);
    OK(doca_mmap_set_max_num_devices(mmap, 2));
    OK(doca_mmap_add_dev(mmap, second));
    OK(doca_mmap_rm_dev(mmap, second));
    EXPECT(doca_mmap_rm_dev(mmap, second), DOCA_ERROR_NOT_FOUND);
    EXPECT(doca_dev_close(host), DOCA_ERROR_IN_USE);
    EXPECT(doca_mmap_export_pci(mmap, host, &desc, &len), DOCA_ERROR_NOT_PERMITTED);
    OK(doca_mmap_set_free_cb(mmap, freed, &frees));
    OK(doca_mmap_start(mmap));
    EXPECT(doca_mmap_start(mmap), DOCA_ERROR_NOT_PERMITTED);
    EXPECT(doca_mmap_export_pci(mmap, host, &desc, &len), DOCA_ERROR_NOT_PERMITTED); /* no PCI permission */
    EXPECT(doca_mmap_set_permissions(mmap, DOCA_ACCESS_FLAG_PCI_READ_ONLY), DOCA_ERROR_BAD_STATE);
    EXPECT(doca_mmap_set_memrange(mmap, bytes, sizeof bytes), DOCA_ERROR_BAD_STATE);
    EXPECT(doca_mmap_set_max_num_devices(mmap, 2), DOCA_ERROR_NOT_PERMITTED);
    EXPECT(doca_mmap_add_dev(mmap, second), DOCA_ERROR_NOT_PERMITTED);
    struct doca_buf_inventory *all = inventory(1);
    taken = buf(all, mmap, bytes, 100, 0);
    EXPECT(doca_mmap_stop(mmap), DOCA_ERROR_NOT_PERMITTED);
    EXPECT(doca_mmap_destroy(mmap), DOCA_ERROR_NOT_PERMITTED);
    OK(doca_buf_dec_refcount(taken, NULL));
    OK(doca_mmap_stop(mmap));
    OK(doca_mmap_set_permissions(mmap, DOCA_ACCESS_FLAG_PCI_READ_ONLY));
    OK(doca_mmap_start(mmap));
    EXPECT(doca_mmap_export_pci(mmap, second, &desc, &len), DOCA_ERROR_NOT_FOUND);
    OK(doca_mmap_export_pci(mmap, host, &desc, &len));
    EXPECT(doca_mmap_export_rdma(mmap, host, &desc, &len), DOCA_ERROR_NOT_PERMITTED);
    OK(doca_mmap_destroy(mmap));
    CHECK(frees == 1);

    /* With thread safety a map outlives its destruction until its last buffer is released. */
    OK(doca_mmap_create(&mmap));
    OK(doca_mmap_enable_thread_safety(mmap));
    OK(doca_mmap_add_dev(mmap, host));
    OK(doca_mmap_set_memrange(mmap, bytes, sizeof bytes));
    OK(doca_mmap_set_free_cb(mmap, freed, &frees));
    OK(doca_mmap_start(mmap));
    taken = buf(all, mmap, bytes, 100, 0);
    OK(doca_mmap_destroy(mmap));
    CHECK(frees == 1);
    OK(doca_buf_dec_refcount(taken, NULL));
    CHECK(frees == 2);
    OK(doca_buf_inventory_destroy(all));
    OK(doca_dev_close(second));
    OK(doca_dev_close(host));
}

static void buffers(void)
{
    static char bytes[4096];
    struct doca_dev *dpu = device("dpu");
    struct doca_mmap *mmap = map(dpu, bytes, sizeof bytes, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    struct doca_buf_inventory *all;
    struct doca_buf *one, *two, *three;
    uint32_t count;
    uint16_t references;
    size_t len;
    void *data;
    EXPECT(doca_buf_inventory_create(0, &all), DOCA_ERROR_INVALID_VALUE);
    OK(doca_buf_inventory_create(2, &all));
    EXPECT(doca_buf_inventory_buf_get_by_addr(all, mmap, bytes, 10, &one), DOCA_ERROR_INVALID_VALUE); /* not started */
    OK(doca_buf_inventory_start(all));
    EXPECT(doca_buf_inventory_buf_get_by_addr(all, mmap, bytes + 4090, 10, &one), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_buf_inventory_buf_get_by_args(all, mmap, bytes, 10, bytes + 5, 6, &one), DOCA_ERROR_INVALID_VALUE);
    OK(doca_buf_inventory_buf_get_by_addr(all, mmap, bytes, 10, &one));
    OK(doca_buf_inventory_buf_get_by_data(all, mmap, bytes + 16, 20, &two));
    EXPECT(doca_buf_inventory_buf_get_by_data(all, mmap, bytes, 20, &three), DOCA_ERROR_NO_MEMORY);
    OK(doca_buf_inventory_get_num_elements(all, &count));
    CHECK(count == 2);
    OK(doca_buf_inventory_get_num_free_elements(all, &count));
    CHECK(count == 0);
    OK(doca_mmap_get_num_bufs(mmap, &count));
    CHECK(count == 2);
    OK(doca_buf_get_data_len(one, &len));
    CHECK(len == 0);
    OK(doca_buf_get_data_len(two, &len));
    CHECK(len == 20);
    OK(doca_buf_set_data(two, bytes + 18, 3));
    OK(doca_buf_get_data(two, &data));
    CHECK(data == bytes + 18);
    OK(doca_buf_get_head(two, &data));
    CHECK(data == bytes + 16);
    OK(doca_buf_set_data_len(two, 4));
    OK(doca_buf_get_len(two, &len));
    CHECK(len == 20);
    EXPECT(doca_buf_inventory_destroy(all), DOCA_ERROR_IN_USE);
    OK(doca_buf_inc_refcount(one, &references));
    CHECK(references == 1);
    OK(doca_buf_dec_refcount(one, &references));
    CHECK(references == 2);
    OK(doca_buf_dec_refcount(one, &references));
    CHECK(references == 1);
    EXPECT(doca_buf_dec_refcount(one, &references), DOCA_ERROR_BAD_STATE);
    OK(doca_buf_inventory_buf_dup(all, two, &three));
    OK(doca_buf_get_data(three, &data));
    CHECK(data == bytes + 18);
    OK(doca_buf_chain_list(two, three));
    EXPECT(doca_buf_dec_refcount(three, NULL), DOCA_ERROR_NOT_PERMITTED);
    EXPECT(doca_buf_chain_list(three, two), DOCA_ERROR_NOT_PERMITTED);
    OK(doca_buf_dec_refcount(two, NULL));
    OK(doca_buf_inventory_get_num_free_elements(all, &count));
    CHECK(count == 2);
    OK(doca_buf_inventory_stop(all));
    OK(doca_buf_inventory_destroy(all));
    OK(doca_mmap_destroy(mmap));
    OK(doca_dev_close(dpu));
}

static void errors_have_names_and_a_version_is_said(void)
{
    CHECK(strcmp(doca_error_get_name(DOCA_SUCCESS), "DOCA_SUCCESS") == 0);
    CHECK(strcmp(doca_error_get_name(DOCA_ERROR_IO_FAILED), "DOCA_ERROR_IO_FAILED") == 0);
    CHECK(strcmp(doca_error_get_name(DOCA_ERROR_SKIPPED), "DOCA_ERROR_SKIPPED") == 0);
    CHECK(strstr(doca_error_get_descr((doca_error_t)31), "unrecognized") != NULL);
    CHECK(strcmp(doca_version_runtime(), "3.0.0-emulated") == 0);
    struct doca_log_backend *backend;
    EXPECT(doca_log_backend_create_with_fd_sdk(-1, &backend), DOCA_ERROR_INVALID_VALUE);
    OK(doca_log_backend_create_with_fd_sdk(2, &backend));
    OK(doca_log_backend_set_sdk_level(backend, DOCA_LOG_LEVEL_ERROR));
    EXPECT(doca_log_backend_set_sdk_level(backend, 5), DOCA_ERROR_INVALID_VALUE);
    OK(doca_log_backend_create_standard());
}

/* -- misuse -------------------------------------------------------------------------------------------------------- */

static void closes_a_device_twice(void)
{
    struct doca_dev *dev = device("dpu");
    OK(doca_dev_close(dev));
    (void)doca_dev_close(dev);
}

static void uses_a_list_after_its_end(void)
{
    side("dpu");
    struct doca_devinfo **list, *kept;
    uint32_t count;
    OK(doca_devinfo_create_list(&list, &count));
    kept = list[0];
    OK(doca_devinfo_destroy_list(list));
    struct doca_dev *dev;
    (void)doca_dev_open(kept, &dev);
}

static void destroys_a_map_twice(void)
{
    struct doca_mmap *mmap;
    OK(doca_mmap_create(&mmap));
    OK(doca_mmap_destroy(mmap));
    (void)doca_mmap_destroy(mmap);
}

static void gives_null_where_no_error_is_named(void)
{
    doca_task_free(NULL);
}

static void takes_one_handle_for_another(void)
{
    struct doca_mmap *mmap;
    OK(doca_mmap_create(&mmap));
    (void)doca_pe_progress((struct doca_pe *)(void *)mmap);
}

static void moves_data_out_of_its_buffer(void)
{
    static char bytes[4096];
    struct doca_buf_inventory *all = inventory(1);
    struct doca_mmap *mmap = map(device("dpu"), bytes, sizeof bytes, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    (void)doca_buf_set_data(buf(all, mmap, bytes, 10, 0), bytes + 8, 3);
}

static void is_on_no_side(void)
{
    side("elsewhere");
    struct doca_devinfo **list;
    uint32_t count;
    (void)doca_devinfo_create_list(&list, &count);
}

static void in_flight(void (*wrong)(struct rig *, struct doca_task *, struct doca_buf *))
{
    static char bytes[4096];
    struct rig *rig = calloc(1, sizeof *rig);
    rig_open(rig, device("dpu"), 2);
    struct doca_mmap *mmap = map(rig->dev, bytes, sizeof bytes, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    struct doca_buf *src = buf(rig->inventory, mmap, bytes, 10, 10);
    struct doca_buf *dst = buf(rig->inventory, mmap, bytes + 10, 10, 0);
    struct doca_task *task = doca_dma_task_memcpy_as_task(copy(rig, src, dst, 1));
    OK(doca_task_submit(task));
    wrong(rig, task, src);
}

static void free_it(struct rig *rig, struct doca_task *task, struct doca_buf *src)
{
    (void)rig, (void)src;
    doca_task_free(task);
}

static void submit_it(struct rig *rig, struct doca_task *task, struct doca_buf *src)
{
    (void)rig, (void)src;
    (void)doca_task_submit(task);
}

static void give_its_buffer_back(struct rig *rig, struct doca_task *task, struct doca_buf *src)
{
    (void)rig, (void)task;
    (void)doca_buf_dec_refcount(src, NULL);
}

static void ask_for_its_status(struct rig *rig, struct doca_task *task, struct doca_buf *src)
{
    (void)rig, (void)src;
    (void)doca_task_get_status(task);
}

static void frees_a_task_in_flight(void)
{
    in_flight(free_it);
}

static void submits_a_task_twice(void)
{
    in_flight(submit_it);
}

static void gives_back_a_buffer_in_flight(void)
{
    in_flight(give_its_buffer_back);
}

static void asks_for_a_status_in_flight(void)
{
    in_flight(ask_for_its_status);
}

static void misuse_ends_the_process_and_says_why(void)
{
    aborts(closes_a_device_twice, "doca_dev_close: a dev is needed, got a destroyed object");
    aborts(uses_a_list_after_its_end, "doca_dev_open: a devinfo is needed, got a destroyed object");
    aborts(destroys_a_map_twice, "doca_mmap_destroy: a mmap is needed, got a destroyed object");
    aborts(gives_null_where_no_error_is_named, "doca_task_free: NULL where a task is needed");
    aborts(takes_one_handle_for_another, "doca_pe_progress: a pe is needed, got a mmap");
    aborts(moves_data_out_of_its_buffer, "doca_buf_set_data: the data leaves the buffer");
    aborts(is_on_no_side, "DOCA_EMULATOR_SIDE: has to be \"dpu\" or \"host\", is \"elsewhere\"");
    aborts(frees_a_task_in_flight, "doca_task_free: the task is in flight");
    aborts(submits_a_task_twice, "doca_task_submit: the task is in flight already");
    aborts(gives_back_a_buffer_in_flight, "doca_buf_dec_refcount: the last reference");
    aborts(asks_for_a_status_in_flight, "doca_task_get_status: the task is in flight");
}

const struct test order_tests[] = {
    {"devices_and_representors", devices_and_representors},
    {"memory_maps", memory_maps},
    {"buffers", buffers},
    {"errors_have_names_and_a_version_is_said", errors_have_names_and_a_version_is_said},
    {"misuse_ends_the_process_and_says_why", misuse_ends_the_process_and_says_why},
    {NULL, NULL},
};
