/* Every fault that the environment can request, and invalid requests. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "talk.h"

static char bytes[4096];

static void the_nth_call_fails_as_it_was_told_to(void)
{
    struct doca_mmap *mmap;
    fault("doca_mmap_create:2=NO_MEMORY,doca_mmap_start:1=DOCA_ERROR_DRIVER,doca_mmap_create:4=IN_USE");
    OK(doca_mmap_create(&mmap));
    EXPECT(doca_mmap_start(mmap), DOCA_ERROR_DRIVER);
    EXPECT(doca_mmap_start(mmap), DOCA_ERROR_INVALID_VALUE);
    OK(doca_mmap_destroy(mmap));
    EXPECT(doca_mmap_create(&mmap), DOCA_ERROR_NO_MEMORY);
    OK(doca_mmap_create(&mmap));
    OK(doca_mmap_destroy(mmap));
    EXPECT(doca_mmap_create(&mmap), DOCA_ERROR_IN_USE);
    fault("doca_mmap_create:1=NO_MEMORY"); /* a new text restarts the count */
    EXPECT(doca_mmap_create(&mmap), DOCA_ERROR_NO_MEMORY);
    fault("");
    OK(doca_mmap_create(&mmap));
    OK(doca_mmap_destroy(mmap));
}

/* Six copies of one byte each; the order of their completions. */
static void order_of_six(uint64_t order[6])
{
    struct rig rig;
    rig_open(&rig, device("dpu"), 6);
    struct doca_mmap *mmap = map(rig.dev, bytes, sizeof bytes, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    struct doca_buf *src[6], *dst[6];
    for (uint64_t i = 0; i < 6; i++) {
        src[i] = buf(rig.inventory, mmap, bytes + i, 1, 1);
        dst[i] = buf(rig.inventory, mmap, bytes + 64 + i, 1, 0);
        bytes[i] = (char)('a' + i);
        OK(doca_task_submit(doca_dma_task_memcpy_as_task(copy(&rig, src[i], dst[i], i))));
    }
    until(rig.pe, all_done, &rig);
    CHECK(memcmp(bytes + 64, "abcdef", 6) == 0 && rig.done_count == 6);
    memcpy(order, rig.done, 6 * sizeof *order);
    for (uint64_t i = 0; i < 6; i++) {
        OK(doca_buf_dec_refcount(src[i], NULL));
        OK(doca_buf_dec_refcount(dst[i], NULL));
    }
    OK(doca_mmap_destroy(mmap));
    struct doca_dev *dev = rig.dev;
    rig_close(&rig);
    OK(doca_dev_close(dev));
}

static void completions_are_reordered_by_a_seed(void)
{
    static const uint64_t straight[6] = {0, 1, 2, 3, 4, 5};
    uint64_t one[6], again[6], other[6];
    order_of_six(one);
    CHECK(memcmp(one, straight, sizeof one) == 0);
    fault("reorder=7");
    order_of_six(one);
    CHECK(memcmp(one, straight, sizeof one) != 0);
    fault("");
    order_of_six(other);
    fault("reorder=7");
    order_of_six(again);
    CHECK(memcmp(one, again, sizeof one) == 0);
    fault("reorder=8");
    order_of_six(other);
    CHECK(memcmp(one, other, sizeof one) != 0);
}

static void completions_are_delayed(void)
{
    uint64_t order[6], begun = now_ms();
    fault("delay=30");
    order_of_six(order);
    CHECK(now_ms() - begun >= 29);
}

static void the_nth_copy_fails(void)
{
    struct rig rig;
    fault("dma_error=2");
    rig_open(&rig, device("dpu"), 6);
    struct doca_mmap *mmap = map(rig.dev, bytes, sizeof bytes, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    for (int round = 1; round <= 3; round++) {
        doca_error_t wanted = round == 2 ? DOCA_ERROR_IO_FAILED : DOCA_SUCCESS;
        EXPECT(copied(&rig, buf(rig.inventory, mmap, bytes, 1, 1), buf(rig.inventory, mmap, bytes + 1, 1, 0)), wanted);
        if (round == 2) {
            CHECK(state(rig.ctx) == DOCA_CTX_STATE_STOPPING);
            until(rig.pe, is_idle, rig.ctx);
            OK(doca_ctx_start(rig.ctx));
        }
    }
    OK(doca_mmap_destroy(mmap));
    struct doca_dev *dev = rig.dev;
    rig_close(&rig);
    OK(doca_dev_close(dev));
}

static bool is_down(void *ctx)
{
    return is_idle(ctx);
}

static bool one_disconnected(void *of)
{
    return ((struct talk *)of)->disconnected >= 1;
}

/* One process has both ends, so each message counts twice: sent and received. */
static void the_link_is_cut_after_n_messages(void)
{
    struct talk server, client;
    serve(&server, "thin", 10, 16);
    call(&client, "thin", 10, 16);
    EXPECT(doca_ctx_start(client.ctx), DOCA_ERROR_IN_PROGRESS);
    both_until(&server, &client, is_running, client.ctx);
    fault("lost_peer=6");
    for (int i = 0; i < 8; i++)
        OK(try_send(&client, peer(&client), "word", 4));
    both_until(&server, &client, is_down, client.ctx);
    both_until(&server, &client, one_disconnected, &server);
    CHECK(client.sent + client.failed == 8 && client.failed > 0 && server.received >= 3);
    CHECK(client.sent + server.received >= 6);
    hang_up(&client);
    hang_up(&server);
}

/* -- visibility ---------------------------------------------------------------------------------------------------- */

typedef doca_error_t acquire_call(const void *addr, size_t len);

static void host_that_looks(int fd)
{
    static char landing[8192];
    fault("visibility");
    struct doca_dev *dev = device("host");
    struct doca_mmap *mmap = map(dev, landing, sizeof landing, DOCA_ACCESS_FLAG_PCI_READ_WRITE);
    acquire_call *acquire;
    *(void **)&acquire = dlsym(RTLD_DEFAULT, "doca_emulator_acquire");
    CHECK(acquire != NULL);
    const void *desc;
    size_t len;
    char word;
    OK(doca_mmap_export_pci(mmap, dev, &desc, &len));
    uint64_t head[2] = {(uintptr_t)landing, len};
    tell(fd, head, sizeof head);
    tell(fd, desc, len);
    hear(fd, &word, 1);
    CHECK(landing[0] == 0 && landing[4096] == 0); /* written, but not visible */
    OK(acquire(landing, 1));
    CHECK(memcmp(landing, "word", 4) == 0 && landing[4096] == 0); /* the rest is still held */
    OK(acquire(landing, sizeof landing));
    CHECK(memcmp(landing + 4096, "word", 4) == 0);
    tell(fd, "", 1);
    hear(fd, &word, 1);
    CHECK(memcmp(landing + 100, "word", 4) == 0); /* a read flushed it */
    OK(doca_mmap_destroy(mmap));
    OK(doca_dev_close(dev));
}

static void writes_are_seen_only_after_an_acquire_or_a_read(void)
{
    struct child host = begin(host_that_looks);
    uint64_t head[2];
    char desc[512], word;
    hear(host.fd, head, sizeof head);
    hear(host.fd, desc, head[1]);
    struct rig rig;
    struct doca_mmap *remote;
    rig_open(&rig, device("dpu"), 2);
    OK(doca_mmap_create_from_export(NULL, desc, head[1], rig.dev, &remote));
    struct doca_mmap *local = map(rig.dev, bytes, sizeof bytes, DOCA_ACCESS_FLAG_LOCAL_READ_WRITE);
    char *there = (char *)(uintptr_t)head[0];
    strcpy(bytes, "word");
    OK(copied(&rig, buf(rig.inventory, local, bytes, 4, 4), buf(rig.inventory, remote, there, 4, 0)));
    OK(copied(&rig, buf(rig.inventory, local, bytes, 4, 4), buf(rig.inventory, remote, there + 4096, 4, 0)));
    tell(host.fd, "", 1);
    hear(host.fd, &word, 1);
    OK(copied(&rig, buf(rig.inventory, local, bytes, 4, 4), buf(rig.inventory, remote, there + 100, 4, 0)));
    OK(copied(&rig, buf(rig.inventory, remote, there + 8191, 1, 1), buf(rig.inventory, local, bytes + 64, 1, 0)));
    tell(host.fd, "", 1);
    joined(host);
    OK(doca_mmap_destroy(remote));
    OK(doca_mmap_destroy(local));
    struct doca_dev *dev = rig.dev;
    rig_close(&rig);
    OK(doca_dev_close(dev));
}

/* -- mistakes in the text ------------------------------------------------------------------------------------------ */

static const char *mistake;

static void has_a_mistake(void)
{
    struct doca_mmap *mmap;
    fault(mistake);
    (void)doca_mmap_create(&mmap);
}

static void a_fault_that_cannot_be_meant_ends_the_process(void)
{
    static const char *const mistakes[][2] = {
        {"doca_mmap_creat:1=NO_MEMORY", "no call that returns a status is called \"doca_mmap_creat\""},
        {"doca_pe_progress:1=NO_MEMORY", "no call that returns a status is called \"doca_pe_progress\""},
        {"doca_mmap_create:0=NO_MEMORY", "\"0\" is no number"},
        {"doca_mmap_create:x=NO_MEMORY", "\"x\" is no number"},
        {"doca_mmap_create:1=OUT_OF_LUCK", "no error is called \"OUT_OF_LUCK\""},
        {"doca_mmap_create=NO_MEMORY", "neither a known fault nor CALL:N=ERROR"},
        {"delay=", "\"\" is no number"},
        {"delay=-1", "\"-1\" is no number"},
        {"visible", "\"visible\" is no fault"},
        {"visibility,,delay=1", "\"\" is no fault"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        mistake = mistakes[i][0];
        aborts(has_a_mistake, mistakes[i][1]);
    }
}

const struct test fault_tests[] = {
    {"the_nth_call_fails_as_it_was_told_to", the_nth_call_fails_as_it_was_told_to},
    {"completions_are_reordered_by_a_seed", completions_are_reordered_by_a_seed},
    {"completions_are_delayed", completions_are_delayed},
    {"the_nth_copy_fails", the_nth_copy_fails},
    {"the_link_is_cut_after_n_messages", the_link_is_cut_after_n_messages},
    {"writes_are_seen_only_after_an_acquire_or_a_read", writes_are_seen_only_after_an_acquire_or_a_read},
    {"a_fault_that_cannot_be_meant_ends_the_process", a_fault_that_cannot_be_meant_ends_the_process},
    {NULL, NULL},
};
