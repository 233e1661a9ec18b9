/* The machine: one file of a folder, mapped by every process that uses it. Its mutex survives its owner's death. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "settings.h"

#define FOLDER "OFFPATH_GPU_EMULATOR_DIR"
#define MAGIC 0x6f66667067707532ULL /* changes with the layout of struct emu_state */
enum { MOST_PATH = 4096 };

static struct {
    char path[MOST_PATH];
    struct emu_state *state;
} machine;

static int open_folder(const char *path);

struct emu_place emu_here = {0, EMU_NONE, EMU_NONE, 0, 0};

struct emu_state *emu_state(void)
{
    return machine.state;
}

void emu_lock(void)
{
    if (pthread_mutex_lock(&machine.state->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&machine.state->lock);
}

void emu_unlock(void)
{
    pthread_mutex_unlock(&machine.state->lock);
}

uint64_t emu_generation(void)
{
    return ++machine.state->generation;
}

int emu_file(const char *name, int flags)
{
    int folder = open_folder(machine.path);
    int fd = folder >= 0 ? openat(folder, name, flags | O_CLOEXEC | O_NOFOLLOW, 0660) : -1;
    if (folder >= 0)
        close(folder);
    return fd;
}

void emu_remove(const char *name)
{
    int folder = open_folder(machine.path);
    if (folder < 0)
        return;
    unlinkat(folder, name, 0);
    close(folder);
}

uint32_t emu_uid(void)
{
    return (uint32_t)emu_setting("OFFPATH_GPU_EMULATOR_UID", geteuid(), 0, UINT32_MAX);
}

bool emu_may_cut(void)
{
    const struct emu_settings *settings = &machine.state->settings;
    uint32_t uid = emu_uid();
    for (uint32_t i = 0; i < settings->uid_count; i++)
        if (settings->uids[i] == uid)
            return true;
    return false;
}

/* -- opening -------------------------------------------------------------------------------------------------------- */

static bool folder_path(char *path, size_t len)
{
    const char *set = getenv(FOLDER), *runtime = getenv("XDG_RUNTIME_DIR");
    int wrote;
    if (set != NULL && *set != '\0')
        wrote = snprintf(path, len, "%s", set);
    else if (runtime != NULL && *runtime != '\0')
        wrote = snprintf(path, len, "%s/gpu-emulator", runtime);
    else
        wrote = snprintf(path, len, "/tmp/gpu-emulator-%u", (unsigned)geteuid());
    return wrote > 0 && (size_t)wrote < len;
}

/* The folder belongs to this user or to root, and only its owner and its group may write to it. */
static int open_folder(const char *path)
{
    struct stat found;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        emu_log("%s: %s", path, strerror(errno));
        return -1;
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &found) != 0) {
        emu_log("%s: %s", path, strerror(errno));
        return -1;
    }
    if ((found.st_uid != geteuid() && found.st_uid != 0) || (found.st_mode & S_IWOTH) != 0) {
        emu_log("%s: the folder must belong to this user or to root, and must not be writable by others", path);
        close(fd);
        return -1;
    }
    return fd;
}

static void make_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &how);
    pthread_mutexattr_destroy(&how);
}

static void make_machine(struct emu_state *state)
{
    memset(state, 0, sizeof *state);
    make_lock(&state->lock);
    emu_read_settings(&state->settings, NULL);
    for (uint32_t i = 0; i < state->settings.gpu_count; i++) {
        struct emu_gpu *gpu = &state->gpus[i];
        gpu->model = state->settings.models[i];
        gpu->mig = state->settings.mig;
        gpu->pending = state->settings.pending;
    }
    state->magic = MAGIC; /* last: a process that is killed in here leaves nothing to read */
}

/* Settings of this process must not differ from those of the machine, which an earlier process made. */
static void compare_settings(const struct emu_settings *made)
{
    struct emu_settings mine;
    emu_read_settings(&mine, made);
    if (memcmp(&mine, made, sizeof mine) != 0)
        emu_strict(FOLDER, "the machine in this folder was made with other settings; use another folder");
}

static struct emu_state *map_state(int fd)
{
    struct stat found;
    if (flock(fd, LOCK_EX) != 0 || fstat(fd, &found) != 0)
        return NULL;
    if ((size_t)found.st_size != sizeof(struct emu_state) && ftruncate(fd, sizeof(struct emu_state)) != 0)
        return NULL;
    void *mapped = mmap(NULL, sizeof(struct emu_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    struct emu_state *state = mapped;
    if (state->magic != MAGIC)
        make_machine(state);
    else
        compare_settings(&state->settings);
    return state;
}

bool emu_open(void)
{
    char path[MOST_PATH];
    if (!folder_path(path, sizeof path))
        emu_strict(FOLDER, "the path is too long");
    if (machine.state != NULL && strcmp(path, machine.path) == 0) {
        compare_settings(&machine.state->settings);
        return true;
    }
    int folder = open_folder(path);
    int fd = folder >= 0 ? openat(folder, "state", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0660) : -1;
    struct emu_state *state = fd >= 0 ? map_state(fd) : NULL;
    if (folder >= 0 && state == NULL)
        emu_log("%s/state: %s", path, strerror(errno));
    if (fd >= 0) {
        flock(fd, LOCK_UN); /* the mapping would keep it locked */
        close(fd);
    }
    if (folder >= 0)
        close(folder);
    if (state == NULL)
        return false;
    if (machine.state != NULL)
        munmap(machine.state, sizeof *machine.state);
    strcpy(machine.path, path);
    machine.state = state;
    return true;
}
