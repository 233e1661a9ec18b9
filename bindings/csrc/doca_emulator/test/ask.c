/* Queries and setters that no other test needs. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "talk.h"

static void consumer(struct doca_comch_event_consumer *event, struct doca_comch_connection *connection, uint32_t id)
{
    (void)event, (void)connection, (void)id;
    CHECK(!"nobody makes a consumer");
}

static void a_device_tells_what_it_can(void)
{
    struct doca_dev *dpu = device("dpu"), *host = device("host");
    struct doca_devinfo *info = doca_dev_as_devinfo(dpu);
    struct doca_dev_rep *rep = open_rep(dpu);
    uint16_t id, other;
    uint8_t flag;
    uint32_t most;
    enum doca_pci_func_type type = DOCA_PCI_FUNC_TYPE_SF;
    OK(doca_devinfo_get_vhca_id(info, &id));
    OK(doca_devinfo_get_vhca_id(doca_dev_as_devinfo(host), &other));
    CHECK(id != other);
    OK(doca_devinfo_rep_cap_is_filter_all_supported(info, &flag));
    CHECK(flag == 1);
    OK(doca_devinfo_rep_get_pci_func_type(doca_dev_rep_as_devinfo(rep), &type));
    CHECK(type == DOCA_PCI_FUNC_TYPE_PF);
    OK(doca_dma_cap_task_memcpy_is_supported(info));
    EXPECT(doca_dma_cap_task_memcpy_is_supported(NULL), DOCA_ERROR_INVALID_VALUE);
    setenv("DOCA_EMULATOR_DMA", "0", 1);
    EXPECT(doca_dma_cap_task_memcpy_is_supported(info), DOCA_ERROR_NOT_SUPPORTED);
    OK(doca_dma_cap_task_memcpy_get_max_buf_list_len(info, &most));
    CHECK(most == 1);
    OK(doca_comch_cap_get_max_clients(info, &most));
    CHECK(most > 1);
    OK(doca_comch_cap_get_max_recv_queue_size(info, &most));
    CHECK(most >= 10);
    OK(doca_comch_cap_get_max_send_tasks(info, &most));
    CHECK(most >= 1024);
    OK(doca_dev_rep_close(rep));
    OK(doca_dev_close(dpu));
    OK(doca_dev_close(host));
}

static void both_ends_of_comch_tell_how_they_were_made(void)
{
    struct talk server, client;
    struct doca_dev *dev;
    struct doca_dev_rep *rep;
    uint32_t size;
    serve(&server, "told", 12, 4);
    EXPECT(doca_comch_server_event_consumer_register(server.server, consumer, consumer), DOCA_ERROR_BAD_STATE);
    OK(doca_comch_server_get_device(server.server, &dev));
    CHECK(dev == server.dev);
    OK(doca_comch_server_get_device_rep(server.server, &rep));
    CHECK(rep == server.rep);
    OK(doca_comch_server_get_recv_queue_size(server.server, &size));
    CHECK(size == 12);
    call(&client, "told", 13, 4);
    EXPECT(doca_comch_client_event_consumer_register(client.client, consumer, NULL), DOCA_ERROR_INVALID_VALUE);
    OK(doca_comch_client_event_consumer_register(client.client, consumer, consumer));
    OK(doca_comch_client_get_device(client.client, &dev));
    CHECK(dev == client.dev);
    OK(doca_comch_client_get_max_msg_size(client.client, &size));
    CHECK(size == 4080);
    OK(doca_comch_client_get_recv_queue_size(client.client, &size));
    CHECK(size == 13);
    hang_up(&client);
    hang_up(&server);
}

static void a_task_may_change_its_buffers_between_submissions(void)
{
    static char bytes[64] = "ab";
    struct rig rig;
    rig_open(&rig, device("dpu"), 1);
    OK(doca_pe_set_event_mode(rig.pe, DOCA_PE_EVENT_MODE_PROGRESS_ALL));
    EXPECT(doca_pe_set_event_mode(rig.pe, (enum doca_pe_event_mode)2), DOCA_ERROR_INVALID_VALUE);
    struct doca_mmap *mmap;
    OK(doca_mmap_create(&mmap));
    OK(doca_mmap_set_user_data(mmap, (union doca_data){.u64 = 3}));
    OK(doca_mmap_add_dev(mmap, rig.dev));
    OK(doca_mmap_set_memrange(mmap, bytes, sizeof bytes));
    OK(doca_mmap_start(mmap)); /* without permissions it is locally writable */
    EXPECT(doca_mmap_set_user_data(mmap, (union doca_data){.u64 = 3}), DOCA_ERROR_BAD_STATE);
    struct doca_buf *all[4];
    for (int i = 0; i < 4; i++)
        all[i] = buf(rig.inventory, mmap, bytes + 16 * (i / 2) + i % 2, 1, i < 2 ? 1 : 0);
    rig.keeps_tasks = true;
    struct doca_dma_task_memcpy *task = copy(&rig, all[0], all[2], 0);
    OK(doca_task_submit(doca_dma_task_memcpy_as_task(task)));
    until(rig.pe, all_done, &rig);
    doca_dma_task_memcpy_set_src(task, all[1]);
    doca_dma_task_memcpy_set_dst(task, all[3]);
    OK(doca_task_try_submit(doca_dma_task_memcpy_as_task(task)));
    until(rig.pe, all_done, &rig);
    CHECK(strcmp(bytes + 16, "ab") == 0 && rig.done_count == 2);
    doca_task_free(doca_dma_task_memcpy_as_task(task));
    uint16_t references;
    for (int i = 0; i < 4; i++) {
        OK(doca_buf_get_refcount(all[i], &references));
        CHECK(references == 1);
        OK(doca_buf_dec_refcount(all[i], NULL));
    }
    OK(doca_mmap_destroy(mmap));
    struct doca_dev *dev = rig.dev;
    rig_close(&rig);
    OK(doca_dev_close(dev));
}

const struct test ask_tests[] = {
    {"a_device_tells_what_it_can", a_device_tells_what_it_can},
    {"both_ends_of_comch_tell_how_they_were_made", both_ends_of_comch_tell_how_they_were_made},
    {"a_task_may_change_its_buffers_between_submissions", a_task_may_change_its_buffers_between_submissions},
    {NULL, NULL},
};
