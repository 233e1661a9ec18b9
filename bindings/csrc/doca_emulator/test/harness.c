#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

enum { BOUND_MS = 10000 };

void check(bool holds, const char *claim, const char *file, int line)
{
    if (holds)
        return;
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, claim);
    exit(1);
}

void expect(doca_error_t got, doca_error_t wanted, const char *call, const char *file, int line)
{
    if (got == wanted)
        return;
    fprintf(stderr, "%s:%d: %s instead of %s: %s\n", file, line, doca_error_get_name(got),
        doca_error_get_name(wanted), call);
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

void aborts(void (*wrong)(void), const char *text)
{
    int said[2], status;
    char heard[4096];
    size_t len = 0;
    CHECK(pipe(said) == 0);
    pid_t pid = forked();
    if (pid == 0) {
        dup2(said[1], STDERR_FILENO);
        close(said[0]);
        close(said[1]);
        wrong();
        _exit(0);
    }
    close(said[1]);
    for (ssize_t got; (got = read(said[0], heard + len, sizeof heard - 1 - len)) > 0;)
        len += (size_t)got;
    heard[len] = '\0';
    close(said[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || strstr(heard, text) == NULL) {
        fprintf(stderr, "status %x instead of an abort that says \"%s\"; it said: %s\n", (unsigned)status, text, heard);
        exit(1);
    }
}

struct child begin(void (*body)(int fd))
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    pid_t pid = forked();
    if (pid == 0) {
        close(ends[0]);
        body(ends[1]);
        close(ends[1]);
        exit(0);
    }
    close(ends[1]);
    return (struct child){pid, ends[0]};
}

void joined(struct child child)
{
    int status;
    CHECK(waitpid(child.pid, &status, 0) == child.pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(child.fd);
}

void killed(struct child child)
{
    int status;
    CHECK(kill(child.pid, SIGKILL) == 0);
    CHECK(waitpid(child.pid, &status, 0) == child.pid);
    close(child.fd);
}

void tell(int fd, const void *bytes, size_t len)
{
    CHECK(send(fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len);
}

void hear(int fd, void *bytes, size_t len)
{
    CHECK(readable(fd, BOUND_MS));
    CHECK(recv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len);
}

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000U + (uint64_t)now.tv_nsec / 1000000U;
}

bool readable(int fd, int timeout_ms)
{
    struct pollfd wanted = {fd, POLLIN, 0};
    return poll(&wanted, 1, timeout_ms) == 1;
}

void until(struct doca_pe *pe, bool (*claim)(void *of), void *of)
{
    for (uint64_t end = now_ms() + BOUND_MS; !claim(of);) {
        CHECK(now_ms() < end);
        if (doca_pe_progress(pe) == 0)
            usleep(50);
    }
}

bool is_idle(void *ctx)
{
    return state(ctx) == DOCA_CTX_STATE_IDLE;
}

bool is_running(void *ctx)
{
    return state(ctx) == DOCA_CTX_STATE_RUNNING;
}

/* -- devices and memory -------------------------------------------------------------------------------------------- */

void side(const char *name)
{
    CHECK(setenv("DOCA_EMULATOR_SIDE", name, 1) == 0);
}

void fault(const char *text)
{
    CHECK(setenv("DOCA_EMULATOR_FAULTS", text, 1) == 0);
}

struct doca_dev *open_device(const char *pci_address)
{
    struct doca_devinfo **list;
    struct doca_dev *dev = NULL;
    uint32_t count;
    OK(doca_devinfo_create_list(&list, &count));
    for (uint32_t i = 0; i < count; i++) {
        uint8_t is_equal = 0;
        OK(doca_devinfo_is_equal_pci_addr(list[i], pci_address, &is_equal));
        if (is_equal)
            OK(doca_dev_open(list[i], &dev));
    }
    OK(doca_devinfo_destroy_list(list));
    CHECK(dev != NULL);
    return dev;
}

struct doca_dev *device(const char *name)
{
    side(name);
    return open_device(strcmp(name, "dpu") == 0 ? "0000:03:00.0" : "0000:5c:00.0");
}

struct doca_dev_rep *open_rep(struct doca_dev *dev)
{
    struct doca_devinfo_rep **list;
    struct doca_dev_rep *rep = NULL;
    uint32_t count;
    OK(doca_devinfo_rep_create_list(dev, DOCA_DEVINFO_REP_FILTER_NET, &list, &count));
    CHECK(count == 1);
    OK(doca_dev_rep_open(list[0], &rep));
    OK(doca_devinfo_rep_destroy_list(list));
    return rep;
}

struct doca_mmap *map(struct doca_dev *dev, void *addr, size_t len, uint32_t permissions)
{
    struct doca_mmap *mmap;
    OK(doca_mmap_create(&mmap));
    OK(doca_mmap_add_dev(mmap, dev));
    OK(doca_mmap_set_permissions(mmap, permissions));
    OK(doca_mmap_set_memrange(mmap, addr, len));
    OK(doca_mmap_start(mmap));
    return mmap;
}

struct doca_buf *buf(struct doca_buf_inventory *inventory, struct doca_mmap *mmap, void *addr, size_t len, size_t data)
{
    struct doca_buf *made;
    OK(doca_buf_inventory_buf_get_by_args(inventory, mmap, addr, len, addr, data, &made));
    return made;
}

struct doca_buf_inventory *inventory(size_t count)
{
    struct doca_buf_inventory *made;
    OK(doca_buf_inventory_create(count, &made));
    OK(doca_buf_inventory_start(made));
    return made;
}

enum doca_ctx_states state(struct doca_ctx *ctx)
{
    enum doca_ctx_states now;
    OK(doca_ctx_get_state(ctx, &now));
    return now;
}

/* -- a DMA context ------------------------------------------------------------------------------------------------- */

static void keep_or_free(struct rig *rig, struct doca_task *task)
{
    if (rig->keeps_tasks)
        rig->kept[rig->done_count + rig->failed_count - 1] = task;
    else
        doca_task_free(task);
}

static void completed(struct doca_dma_task_memcpy *task, union doca_data mark, union doca_data of)
{
    struct rig *rig = of.ptr;
    OK(doca_task_get_status(doca_dma_task_memcpy_as_task(task)));
    rig->done[rig->done_count++] = mark.u64;
    keep_or_free(rig, doca_dma_task_memcpy_as_task(task));
}

static void failed(struct doca_dma_task_memcpy *task, union doca_data mark, union doca_data of)
{
    struct rig *rig = of.ptr;
    rig->errors[rig->failed_count] = doca_task_get_status(doca_dma_task_memcpy_as_task(task));
    rig->failed[rig->failed_count++] = mark.u64;
    keep_or_free(rig, doca_dma_task_memcpy_as_task(task));
}

static void changed(const union doca_data of, struct doca_ctx *ctx, enum doca_ctx_states previous,
    enum doca_ctx_states next)
{
    struct rig *rig = of.ptr;
    CHECK(ctx == rig->ctx && previous != next && state(ctx) == next);
    rig->states[rig->state_count++] = next;
}

void rig_open(struct rig *rig, struct doca_dev *dev, uint32_t tasks)
{
    *rig = (struct rig){.dev = dev};
    OK(doca_dma_create(dev, &rig->dma));
    rig->ctx = doca_dma_as_ctx(rig->dma);
    OK(doca_ctx_set_state_changed_cb(rig->ctx, changed));
    OK(doca_dma_task_memcpy_set_conf(rig->dma, completed, failed, tasks));
    OK(doca_ctx_set_user_data(rig->ctx, (union doca_data){.ptr = rig}));
    rig->inventory = inventory(256);
    OK(doca_pe_create(&rig->pe));
    OK(doca_pe_connect_ctx(rig->pe, rig->ctx));
    OK(doca_ctx_start(rig->ctx));
    CHECK(rig->state_count == 1 && rig->states[0] == DOCA_CTX_STATE_RUNNING);
}

void rig_close(struct rig *rig)
{
    if (state(rig->ctx) == DOCA_CTX_STATE_RUNNING)
        (void)doca_ctx_stop(rig->ctx);
    until(rig->pe, is_idle, rig->ctx);
    OK(doca_dma_destroy(rig->dma));
    OK(doca_buf_inventory_destroy(rig->inventory));
    OK(doca_pe_destroy(rig->pe));
}

struct doca_dma_task_memcpy *copy(struct rig *rig, struct doca_buf *src, struct doca_buf *dst, uint64_t mark)
{
    struct doca_dma_task_memcpy *task;
    OK(doca_dma_task_memcpy_alloc_init(rig->dma, src, dst, (union doca_data){.u64 = mark}, &task));
    return task;
}

bool all_done(void *of)
{
    struct rig *rig = of;
    size_t in_flight;
    OK(doca_ctx_get_num_inflight_tasks(rig->ctx, &in_flight));
    return in_flight == 0;
}

doca_error_t copied(struct rig *rig, struct doca_buf *src, struct doca_buf *dst)
{
    size_t failures = rig->failed_count;
    rig->done_count = 0;
    OK(doca_task_submit(doca_dma_task_memcpy_as_task(copy(rig, src, dst, 1))));
    until(rig->pe, all_done, rig);
    OK(doca_buf_dec_refcount(src, NULL));
    OK(doca_buf_dec_refcount(dst, NULL));
    return rig->failed_count > failures ? rig->errors[failures] : DOCA_SUCCESS;
}
