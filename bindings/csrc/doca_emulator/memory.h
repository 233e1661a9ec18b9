/* Memory maps, and the state that two processes share about an exported one. Private to libdoca_common. */
#ifndef OFFPATH_DOCA_EMULATOR_MEMORY_H
#define OFFPATH_DOCA_EMULATOR_MEMORY_H

#include <pthread.h>

#include "internal.h"

enum { EMU_MAX_DEVICES = 16, EMU_ID = 16, EMU_NAME = 2 * EMU_ID + 8 };
enum emu_export_kind { EMU_PCI = 1, EMU_RDMA };
enum emu_map_state { EMU_FRESH, EMU_STARTED, EMU_STOPPED, EMU_IMPORTED };

#define EMU_BLOB_MAGIC 0x50584541434f4445U
#define EMU_WORD_VALID 0x1f2e3d4c5b6a7988U

/* One file per export in the rendezvous folder, mapped shared by both sides: an importer sees at once that the exporter
 * has stopped. While it copies bytes, the importer holds a shared lock on the file; the exporter takes the exclusive
 * lock before it releases the memory. */
struct emu_export_file {
    _Atomic uint64_t word; /* EMU_WORD_VALID, otherwise revoked */
    uint8_t id[EMU_ID], key[EMU_ID];
    uint64_t start_time; /* of the process, because process ids are reused */
    uint64_t addr, backing, len;
    int32_t pid;
    uint32_t card, permissions, kind, holds_writes;
};

/* The blob that is sent to the importer. Opaque to callers. */
struct emu_blob {
    uint64_t magic;
    uint8_t id[EMU_ID], key[EMU_ID];
    uint64_t addr, len;
    uint32_t card, permissions, kind, zero;
};

struct emu_export {
    struct doca_mmap *mmap;
    struct emu_export_file *file;
    struct emu_blob blob;
    int fd;
    pid_t owner; /* a fork of the exporter revokes nothing */
    struct emu_export *next;
};

struct doca_mmap {
    enum priv_kind magic;
    enum emu_map_state state;
    bool was_started, is_thread_safe, is_dying, is_dmabuf;
    struct doca_dev *devices[EMU_MAX_DEVICES];
    uint32_t device_count, max_devices;
    uint64_t addr, len;
    uint64_t backing; /* address of the bytes; differs for memory of a GPU or of another process */
    uint32_t permissions;
    union doca_data user_data;
    doca_mmap_memrange_free_cb_t *free_cb;
    void *free_cookie;
    atomic_uint bufs;
    /* of an imported one */
    struct emu_export_file *file;
    int fd, pidfd;
    pthread_mutex_t moving;
};

void emu_export_name(const uint8_t id[EMU_ID], const char *suffix, char name[EMU_NAME]);
void *emu_map_file(int fd, size_t offset, size_t len, bool writes); /* shared; NULL on failure */
void emu_exports_revoke(struct doca_mmap *mmap);
void emu_import_close(struct doca_mmap *mmap);
struct doca_mmap *emu_map_new(void);
void emu_map_let_go(struct doca_mmap *mmap);
void emu_map_buf_gone(struct doca_mmap *mmap);
bool emu_map_holds(const struct doca_mmap *mmap, uint64_t addr, size_t len);
bool emu_gpu_range_find(uint64_t addr, size_t len, uint64_t *backing);
/* Calls `each` for this process's exports that overlap the range, under the lock. */
void emu_exports_touching(uint64_t addr, size_t len, void (*each)(struct emu_export *, uint64_t, size_t));

/* Bytes that an importer wrote and that are not yet visible to the exporter (fault "visibility"). */
doca_error_t emu_held_add(const struct emu_export_file *file, uint64_t addr, const void *bytes, size_t len);
void emu_held_apply(const struct emu_export_file *file, uint64_t addr, size_t len);
doca_error_t emu_remote_write(const struct emu_export_file *file, uint64_t addr, const void *bytes, size_t len);

#endif
