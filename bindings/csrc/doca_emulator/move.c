/* Copies bytes: within this process by memcpy, to and from another by process_vm_readv and _writev. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "memory.h"

enum { BOUNCE = 1 << 18, MAX_RANGES = 256 };

/* -- memory of emulated GPUs --------------------------------------------------------------------------------------- */

static struct gpu_range {
    uint64_t addr, len, backing;
} ranges[MAX_RANGES];

void priv_doca_gpu_range_add(uint64_t addr, size_t len, uint64_t backing)
{
    priv_doca_lock();
    struct gpu_range *free_one = NULL;
    for (int i = 0; i < MAX_RANGES && free_one == NULL; i++)
        if (ranges[i].len == 0)
            free_one = &ranges[i];
    if (free_one == NULL)
        priv_doca_strict("doca_gpu_mem_alloc", "more than %d allocations", MAX_RANGES);
    *free_one = (struct gpu_range){addr, len, backing};
    priv_doca_unlock();
}

void priv_doca_gpu_range_remove(uint64_t addr)
{
    priv_doca_lock();
    for (int i = 0; i < MAX_RANGES; i++)
        if (ranges[i].len > 0 && ranges[i].addr == addr)
            ranges[i].len = 0;
    priv_doca_unlock();
}

bool emu_gpu_range_find(uint64_t addr, size_t len, uint64_t *backing)
{
    bool found = false;
    priv_doca_lock();
    for (int i = 0; i < MAX_RANGES && !found; i++) {
        const struct gpu_range *range = &ranges[i];
        if (addr >= range->addr && addr - range->addr < range->len && len <= range->len - (addr - range->addr)) {
            *backing = range->backing + (addr - range->addr);
            found = true;
        }
    }
    priv_doca_unlock();
    return found;
}

/* -- one export's memory ------------------------------------------------------------------------------------------- */

static void *local(uint64_t addr)
{
    return (void *)(uintptr_t)addr;
}

static doca_error_t failed_move(const char *call)
{
    if (errno == EPERM)
        fprintf(stderr, "doca-emulator: %s: the system keeps processes from each other's memory\n", call);
    return DOCA_ERROR_IO_FAILED;
}

/* `addr` is the exporter's address of the range, not of its backing. */
doca_error_t emu_remote_write(const struct emu_export_file *file, uint64_t addr, const void *bytes, size_t len)
{
    uint64_t at = file->backing + (addr - file->addr);
    if (file->pid == getpid()) {
        memcpy(local(at), bytes, len);
        return DOCA_SUCCESS;
    }
    struct iovec from = {(void *)(uintptr_t)bytes, len}, to = {local(at), len};
    return process_vm_writev(file->pid, &from, 1, &to, 1, 0) == (ssize_t)len ? DOCA_SUCCESS
                                                                             : failed_move("process_vm_writev");
}

static doca_error_t remote_read(const struct emu_export_file *file, uint64_t addr, void *bytes, size_t len)
{
    uint64_t at = file->backing + (addr - file->addr);
    if (file->pid == getpid()) {
        memcpy(bytes, local(at), len);
        return DOCA_SUCCESS;
    }
    struct iovec to = {bytes, len}, from = {local(at), len};
    return process_vm_readv(file->pid, &to, 1, &from, 1, 0) == (ssize_t)len ? DOCA_SUCCESS
                                                                            : failed_move("process_vm_readv");
}

/* -- held writes: invisible to the exporter until it acquires, or until a read flushes them ------------------------ */

struct held {
    uint64_t addr, len;
};

/* Locked, and accessible to its user only; -1: none. */
static int open_held(const struct emu_export_file *file, int flags)
{
    char name[EMU_NAME];
    emu_export_name(file->id, ".held", name);
    int folder = priv_doca_folder();
    if (folder < 0)
        return -1;
    int fd = openat(folder, name, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
    close(folder);
    if (fd >= 0)
        while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
            ;
    return fd;
}

doca_error_t emu_held_add(const struct emu_export_file *file, uint64_t addr, const void *bytes, size_t len)
{
    int fd = open_held(file, O_WRONLY | O_CREAT | O_APPEND);
    NEEDS(fd >= 0, DOCA_ERROR_IO_FAILED);
    struct held head = {addr, len};
    bool written = write(fd, &head, sizeof head) == (ssize_t)sizeof head && write(fd, bytes, len) == (ssize_t)len;
    close(fd);
    return written ? DOCA_SUCCESS : DOCA_ERROR_IO_FAILED;
}

/* Applies, in order, the writes that overlap the range; the rest stays held. */
void emu_held_apply(const struct emu_export_file *file, uint64_t addr, size_t len)
{
    int fd = open_held(file, O_RDWR);
    struct stat found;
    if (fd < 0)
        return;
    if (fstat(fd, &found) == 0 && found.st_size > 0) {
        size_t size = (size_t)found.st_size, kept = 0;
        char *all = malloc(size);
        if (all != NULL && pread(fd, all, size, 0) == (ssize_t)size) {
            for (size_t at = 0; at < size;) {
                struct held head;
                memcpy(&head, all + at, sizeof head);
                size_t whole = sizeof head + head.len;
                if (head.addr < addr + len && addr < head.addr + head.len)
                    emu_remote_write(file, head.addr, all + at + sizeof head, head.len);
                else {
                    memmove(all + kept, all + at, whole);
                    kept += whole;
                }
                at += whole;
            }
            if (pwrite(fd, all, kept, 0) != (ssize_t)kept || ftruncate(fd, (off_t)kept) != 0)
                priv_doca_strict("visibility", "the held writes cannot be kept: %s", strerror(errno));
        }
        free(all);
    }
    close(fd);
}

static void acquire(struct emu_export *one, uint64_t addr, size_t len)
{
    emu_held_apply(one->file, addr, len);
}

/* Corresponds to a flush of peer writes on a device: afterwards this process sees them. Not part of DOCA. */
doca_error_t doca_emulator_acquire(const void *addr, size_t len);
doca_error_t doca_emulator_acquire(const void *addr, size_t len)
{
    NEEDS(addr != NULL && len > 0, DOCA_ERROR_INVALID_VALUE);
    emu_exports_touching((uintptr_t)addr, len, acquire);
    return DOCA_SUCCESS;
}

/* -- a move -------------------------------------------------------------------------------------------------------- */

/* Begins to use an imported map: the exporter cannot release it before `leave`. */
static bool enter(struct doca_mmap *mmap)
{
    if (mmap->file == NULL)
        return mmap->state != EMU_IMPORTED;
    pthread_mutex_lock(&mmap->moving);
    while (flock(mmap->fd, LOCK_SH) != 0 && errno == EINTR)
        ;
    struct pollfd death = {mmap->pidfd, POLLIN, 0};
    return atomic_load(&mmap->file->word) == EMU_WORD_VALID && poll(&death, 1, 0) == 0;
}

static void leave(struct doca_mmap *mmap)
{
    if (mmap->file == NULL)
        return;
    flock(mmap->fd, LOCK_UN);
    pthread_mutex_unlock(&mmap->moving);
}

static doca_error_t put(struct doca_mmap *to, uint64_t addr, const void *bytes, size_t len)
{
    if (to->file == NULL) {
        memmove(local(to->backing + (addr - to->addr)), bytes, len);
        return DOCA_SUCCESS;
    }
    if (to->file->holds_writes || priv_doca_writes_are_held())
        return emu_held_add(to->file, addr, bytes, len);
    return emu_remote_write(to->file, addr, bytes, len);
}

static doca_error_t from_remote(struct doca_mmap *to, uint64_t to_addr, struct doca_mmap *from, uint64_t from_addr,
    size_t len)
{
    emu_held_apply(from->file, from->addr, from->len); /* a read flushes the writes before it */
    if (to->file == NULL)
        return remote_read(from->file, from_addr, local(to->backing + (to_addr - to->addr)), len);
    char *bounce = malloc(BOUNCE);
    doca_error_t status = bounce != NULL ? DOCA_SUCCESS : DOCA_ERROR_NO_MEMORY;
    for (size_t at = 0; at < len && status == DOCA_SUCCESS; at += BOUNCE) {
        size_t step = len - at < BOUNCE ? len - at : BOUNCE;
        status = remote_read(from->file, from_addr + at, bounce, step);
        if (status == DOCA_SUCCESS)
            status = put(to, to_addr + at, bounce, step);
    }
    free(bounce);
    return status;
}

doca_error_t priv_doca_move(struct doca_mmap *to, uint64_t to_addr, struct doca_mmap *from, uint64_t from_addr,
    size_t len)
{
    /* Two threads that move in opposite directions take their locks in one order. */
    struct doca_mmap *first = from < to ? from : to, *second = from < to ? to : from;
    bool both = to != from, live = enter(first);
    if (both)
        live = enter(second) && live;
    doca_error_t status = DOCA_ERROR_IO_FAILED;
    if (live) {
        if (from->file == NULL)
            status = put(to, to_addr, local(from->backing + (from_addr - from->addr)), len);
        else
            status = from_remote(to, to_addr, from, from_addr, len);
    }
    if (both)
        leave(second);
    leave(first);
    return status;
}
