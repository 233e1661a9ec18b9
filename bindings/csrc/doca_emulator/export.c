/* Exports: a file in the rendezvous folder maps an opaque blob to memory of a process. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory.h"

static struct emu_export *exports; /* of this process */

void emu_export_name(const uint8_t id[EMU_ID], const char *suffix, char name[EMU_NAME])
{
    for (int i = 0; i < EMU_ID; i++)
        snprintf(name + 2 * i, 3, "%02x", id[i]);
    snprintf(name + 2 * EMU_ID, EMU_NAME - 2 * EMU_ID, "%s", suffix);
}

void *emu_map_file(int fd, size_t offset, size_t len, bool writes)
{
    void *bytes = mmap(NULL, len, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, fd, (off_t)offset);
    return bytes != MAP_FAILED ? bytes : NULL;
}

static void remove_files(int folder, const uint8_t id[EMU_ID])
{
    char name[EMU_NAME];
    emu_export_name(id, ".mem", name);
    unlinkat(folder, name, 0);
    emu_export_name(id, ".held", name);
    unlinkat(folder, name, 0);
}

static bool lives(const struct emu_export_file *file)
{
    return atomic_load(&file->word) == EMU_WORD_VALID && priv_doca_start_time(file->pid) == file->start_time;
}

/* Removes the exports of dead processes. */
static void sweep(int folder)
{
    int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = own >= 0 ? fdopendir(own) : NULL;
    if (listing == NULL) {
        if (own >= 0)
            close(own);
        return;
    }
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        size_t length = strlen(entry->d_name);
        if (length != 2 * EMU_ID + 4 || strcmp(entry->d_name + 2 * EMU_ID, ".mem") != 0)
            continue;
        int fd = openat(folder, entry->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        struct emu_export_file file;
        if (fd >= 0 && read(fd, &file, sizeof file) == (ssize_t)sizeof file && !lives(&file))
            remove_files(folder, file.id);
        if (fd >= 0)
            close(fd);
    }
    closedir(listing);
}

/* -- the exporter -------------------------------------------------------------------------------------------------- */

static struct emu_export *find(const struct doca_mmap *mmap, uint32_t card, uint32_t kind)
{
    struct emu_export *at = exports;
    while (at != NULL && (at->mmap != mmap || at->blob.card != card || at->blob.kind != kind))
        at = at->next;
    return at;
}

static bool write_file(struct emu_export *made, const struct emu_export_file *file)
{
    int folder = priv_doca_folder();
    if (folder < 0)
        return false;
    char name[EMU_NAME], fresh[EMU_NAME];
    emu_export_name(file->id, ".new", fresh);
    emu_export_name(file->id, ".mem", name);
    sweep(folder);
    made->fd = openat(folder, fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool written = made->fd >= 0 && write(made->fd, file, sizeof *file) == (ssize_t)sizeof *file;
    void *mapped = written ? emu_map_file(made->fd, 0, sizeof *file, true) : NULL;
    /* Gets its name only when complete, because other processes sweep what they can read. */
    if (mapped != NULL && renameat(folder, fresh, folder, name) == 0) {
        made->file = mapped;
    } else {
        fprintf(stderr, "doca-emulator: the export cannot be registered: %s\n", strerror(errno));
        if (mapped != NULL)
            munmap(mapped, sizeof *file);
        unlinkat(folder, fresh, 0);
    }
    close(folder);
    return made->file != NULL;
}

static doca_error_t export(struct doca_mmap *mmap, const struct doca_dev *dev, uint32_t kind, const void **desc,
    size_t *desc_len)
{
    VALID(mmap, PRIV_MMAP);
    VALID(dev, PRIV_DEV);
    NEEDS(desc != NULL && desc_len != NULL, DOCA_ERROR_INVALID_VALUE);
    uint32_t pci = DOCA_ACCESS_FLAG_PCI_READ_ONLY | DOCA_ACCESS_FLAG_PCI_READ_WRITE;
    uint32_t rdma = DOCA_ACCESS_FLAG_RDMA_READ | DOCA_ACCESS_FLAG_RDMA_WRITE | DOCA_ACCESS_FLAG_RDMA_ATOMIC;
    NEEDS(mmap->state == EMU_STARTED && (mmap->permissions & (kind == EMU_PCI ? pci : rdma)) != 0,
        DOCA_ERROR_NOT_PERMITTED);
    bool has_device = false;
    for (uint32_t i = 0; i < mmap->device_count; i++)
        has_device |= mmap->devices[i] == dev;
    NEEDS(has_device, DOCA_ERROR_NOT_FOUND);
    NEEDS(kind == EMU_RDMA || !dev->info.function.on_dpu, DOCA_ERROR_NOT_SUPPORTED);

    uint32_t card = dev->info.function.card;
    priv_doca_lock();
    struct emu_export *made = find(mmap, card, kind);
    priv_doca_unlock();
    if (made == NULL) {
        NEEDS((made = calloc(1, sizeof *made)) != NULL, DOCA_ERROR_NO_MEMORY);
        struct emu_export_file file = {.word = EMU_WORD_VALID, .start_time = priv_doca_start_time(getpid()),
            .addr = mmap->addr, .backing = mmap->backing, .len = mmap->len, .pid = getpid(), .card = card,
            .permissions = mmap->permissions, .kind = kind, .holds_writes = priv_doca_writes_are_held()};
        made->fd = -1;
        if (getrandom(file.id, EMU_ID, 0) != EMU_ID || getrandom(file.key, EMU_ID, 0) != EMU_ID ||
            !write_file(made, &file)) {
            if (made->fd >= 0)
                close(made->fd);
            free(made);
            return DOCA_ERROR_DRIVER;
        }
        /* Where Yama restricts ptrace, the importer needs permission. */
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        made->mmap = mmap;
        made->owner = getpid();
        made->blob = (struct emu_blob){.magic = EMU_BLOB_MAGIC, .addr = file.addr, .len = file.len, .card = card,
            .permissions = file.permissions, .kind = kind};
        memcpy(made->blob.id, file.id, EMU_ID);
        memcpy(made->blob.key, file.key, EMU_ID);
        priv_doca_lock();
        made->next = exports;
        exports = made;
        priv_doca_unlock();
    }
    *desc = &made->blob;
    *desc_len = sizeof made->blob;
    return DOCA_SUCCESS;
}

doca_error_t doca_mmap_export_pci(struct doca_mmap *mmap, const struct doca_dev *dev, const void **export_desc,
    size_t *export_desc_len)
{
    FAULT();
    return export(mmap, dev, EMU_PCI, export_desc, export_desc_len);
}

doca_error_t doca_mmap_export_rdma(struct doca_mmap *mmap, const struct doca_dev *dev, const void **export_desc,
    size_t *export_desc_len)
{
    FAULT();
    return export(mmap, dev, EMU_RDMA, export_desc, export_desc_len);
}

void emu_exports_revoke(struct doca_mmap *mmap)
{
    struct emu_export *revoked = NULL;
    priv_doca_lock();
    for (struct emu_export **at = &exports; *at != NULL;) {
        struct emu_export *one = *at;
        if (one->mmap == mmap) {
            *at = one->next;
            one->next = revoked;
            revoked = one;
        } else {
            at = &one->next;
        }
    }
    priv_doca_unlock();
    while (revoked != NULL) {
        struct emu_export *one = revoked;
        revoked = one->next;
        if (one->owner == getpid()) {
            atomic_store(&one->file->word, 0);
            while (flock(one->fd, LOCK_EX) != 0 && errno == EINTR) /* copies in progress finish first */
                ;
            int folder = priv_doca_folder();
            if (folder >= 0) {
                remove_files(folder, one->file->id);
                close(folder);
            }
        }
        munmap(one->file, sizeof *one->file);
        close(one->fd);
        memset(&one->blob, 0xdd, sizeof one->blob); /* exposes callers that kept the pointer instead of the bytes */
        free(one);
    }
}

void emu_exports_touching(uint64_t addr, size_t len, void (*each)(struct emu_export *, uint64_t, size_t))
{
    priv_doca_lock();
    for (struct emu_export *one = exports; one != NULL; one = one->next)
        if (addr < one->blob.addr + one->blob.len && one->blob.addr < addr + len)
            each(one, addr, len);
    priv_doca_unlock();
}

/* -- the importer -------------------------------------------------------------------------------------------------- */

/* The file that the blob names, opened and mapped, if every word of the blob matches it. */
static doca_error_t open_file(struct doca_mmap *made, const struct emu_blob *blob)
{
    int folder = priv_doca_folder();
    NEEDS(folder >= 0, DOCA_ERROR_DRIVER);
    char name[EMU_NAME];
    emu_export_name(blob->id, ".mem", name);
    made->fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    close(folder);
    struct stat found;
    NEEDS(made->fd >= 0, DOCA_ERROR_INVALID_VALUE);
    NEEDS(fstat(made->fd, &found) == 0 && found.st_size == (off_t)sizeof *made->file, DOCA_ERROR_INVALID_VALUE);
    void *mapped = emu_map_file(made->fd, 0, sizeof *made->file, false);
    NEEDS(mapped != NULL, DOCA_ERROR_NO_MEMORY);
    made->file = mapped;
    const struct emu_export_file *file = mapped;
    NEEDS(memcmp(blob->id, file->id, EMU_ID) == 0 && memcmp(blob->key, file->key, EMU_ID) == 0 &&
              blob->addr == file->addr && blob->len == file->len && blob->card == file->card &&
              blob->permissions == file->permissions && blob->kind == file->kind && blob->zero == 0,
        DOCA_ERROR_INVALID_VALUE);
    made->pidfd = (int)syscall(SYS_pidfd_open, file->pid, 0);
    /* Checked after the descriptor is open: it then refers to this process, not to a later one with its number. */
    NEEDS(made->pidfd >= 0 && lives(file), DOCA_ERROR_INVALID_VALUE);
    return DOCA_SUCCESS;
}

void emu_import_close(struct doca_mmap *mmap)
{
    if (mmap->state != EMU_IMPORTED)
        return;
    if (mmap->file != NULL)
        munmap(mmap->file, sizeof *mmap->file);
    mmap->file = NULL;
    if (mmap->fd >= 0)
        close(mmap->fd);
    if (mmap->pidfd >= 0)
        close(mmap->pidfd);
    mmap->fd = mmap->pidfd = -1;
}

doca_error_t doca_mmap_create_from_export(const union doca_data *user_data, const void *export_desc,
    size_t export_desc_len, struct doca_dev *dev, struct doca_mmap **mmap)
{
    FAULT();
    NEEDS(export_desc != NULL && export_desc_len > 0 && mmap != NULL, DOCA_ERROR_INVALID_VALUE);
    VALID(dev, PRIV_DEV);
    struct emu_blob blob;
    NEEDS(export_desc_len == sizeof blob, DOCA_ERROR_INVALID_VALUE);
    memcpy(&blob, export_desc, sizeof blob);
    NEEDS(blob.magic == EMU_BLOB_MAGIC, DOCA_ERROR_INVALID_VALUE);
    NEEDS(blob.kind == EMU_RDMA || dev->info.function.on_dpu, DOCA_ERROR_NOT_SUPPORTED);
    struct doca_mmap *made = emu_map_new();
    NEEDS(made != NULL, DOCA_ERROR_NO_MEMORY);
    made->state = EMU_IMPORTED;
    doca_error_t failed = open_file(made, &blob);
    if (failed == DOCA_SUCCESS && blob.card != dev->info.function.card)
        failed = DOCA_ERROR_NOT_PERMITTED; /* the memory behind another card's function */
    if (failed != DOCA_SUCCESS) {
        emu_map_let_go(made);
        return failed;
    }
    made->addr = blob.addr;
    made->len = blob.len;
    made->backing = made->file->backing;
    made->permissions = blob.permissions;
    if (user_data != NULL)
        made->user_data = *user_data;
    made->devices[made->device_count++] = dev;
    atomic_fetch_add(&dev->users, 1);
    *mmap = made;
    return DOCA_SUCCESS;
}
