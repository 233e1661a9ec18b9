/* What processes hold on the machine, and what becomes of it when they die. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { MOST_STAT = 1024, START_TIME_FIELD = 22, NAME = 64 };

/* The text of /proc/PID/stat; false: there is none, or it is hidden from this process. */
static bool read_stat(uint32_t pid, char text[MOST_STAT])
{
    char path[NAME];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, MOST_STAT - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

uint64_t emu_started(uint32_t pid)
{
    char text[MOST_STAT];
    if (!read_stat(pid, text))
        return 0;
    char *field = strrchr(text, ')'); /* the name of the process may contain anything */
    if (field == NULL || field[1] != ' ' || field[2] == 'Z' || field[2] == 'X')
        return 0;
    for (int i = 2; i < START_TIME_FIELD && field != NULL; i++)
        field = strchr(field + 1, ' ');
    return field != NULL ? strtoull(field + 1, NULL, 10) : 0;
}

/* A process whose /proc entry is hidden lives as long as it can be signalled. */
static bool is_alive(const struct emu_client *client)
{
    char text[MOST_STAT];
    if (!read_stat(client->pid, text))
        return kill((pid_t)client->pid, 0) == 0 || errno != ESRCH;
    return emu_started(client->pid) == client->started;
}

void emu_place_name(char *name, size_t len, const struct emu_place *place)
{
    if (place->compute == 0)
        snprintf(name, len, "gpu-%u", place->gpu);
    else
        snprintf(name, len, "compute-%llu", (unsigned long long)place->compute);
}

void emu_export_name(char *name, size_t len, uint64_t number)
{
    snprintf(name, len, "export-%llu", (unsigned long long)number);
}

int emu_hold(const char *name)
{
    int fd = emu_file(name, O_RDWR | O_CREAT);
    if (fd >= 0 && flock(fd, LOCK_SH) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

bool emu_is_held(const char *name)
{
    int fd = emu_file(name, O_RDWR);
    if (fd < 0)
        return false;
    bool is_held = flock(fd, LOCK_EX | LOCK_NB) != 0;
    close(fd);
    return is_held;
}

/* -- memory of dead processes --------------------------------------------------------------------------------------- */

static void copy_between(int from, uint64_t from_at, int to, uint64_t to_at, uint64_t len)
{
    static char piece[256 << 10]; /* under the lock */
    while (len > 0) {
        size_t now = len < sizeof piece ? (size_t)len : sizeof piece;
        ssize_t got = pread(from, piece, now, (off_t)from_at);
        if (got <= 0 || pwrite(to, piece, (size_t)got, (off_t)to_at) != got)
            return;
        from_at += (uint64_t)got;
        to_at += (uint64_t)got;
        len -= (uint64_t)got;
    }
}

static int memory_file(uint32_t gpu)
{
    char name[NAME];
    snprintf(name, sizeof name, "memory-%u", gpu);
    return emu_file(name, O_RDWR);
}

/* Where peers' writes reach the device at once, the exported file is the memory; else it never was. */
void emu_export_into_memory(const struct emu_export *export)
{
    char name[NAME];
    if (export->is_separate)
        return;
    emu_export_name(name, sizeof name, export->number);
    int from = emu_file(name, O_RDWR), to = memory_file(export->gpu);
    if (from >= 0 && to >= 0)
        copy_between(from, 0, to, export->at, export->len);
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
}

static void scrub(const struct emu_allocation *allocation)
{
    int fd = memory_file(allocation->gpu);
    if (fd < 0)
        return;
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)allocation->at, (off_t)allocation->len);
    close(fd);
}

void emu_release_client(uint32_t client)
{
    struct emu_state *state = emu_state();
    struct emu_client *gone = &state->clients[client];
    for (uint32_t i = 0; i < EMU_EXPORTS; i++) {
        struct emu_export *export = &state->exports[i];
        if (export->number != 0 && export->client == client) {
            emu_export_into_memory(export);
            export->client = EMU_NONE; /* the descriptor may live on in another process */
        }
    }
    for (uint32_t i = 0; i < EMU_ALLOCATIONS; i++) {
        struct emu_allocation *allocation = &state->allocations[i];
        if (allocation->len == 0 || allocation->client != client)
            continue;
        if (gone->scrubs)
            scrub(allocation);
        allocation->len = 0;
    }
    if (gone->server != 0 && gone->queued)
        for (uint32_t i = 0; i < EMU_SERVERS; i++)
            if (state->servers[i].number == gone->server)
                state->servers[i].state = EMU_SERVER_UNDEFINED;
    memset(gone, 0, sizeof *gone);
}

static void drop_closed_exports(void)
{
    struct emu_state *state = emu_state();
    char name[NAME];
    for (uint32_t i = 0; i < EMU_EXPORTS; i++) {
        struct emu_export *export = &state->exports[i];
        if (export->number == 0 || export->client != EMU_NONE)
            continue;
        emu_export_name(name, sizeof name, export->number);
        if (emu_is_held(name))
            continue;
        emu_remove(name);
        memset(export, 0, sizeof *export);
    }
}

void emu_reap(void)
{
    struct emu_state *state = emu_state();
    for (uint32_t i = 0; i < EMU_CLIENTS; i++) {
        struct emu_client *client = &state->clients[i];
        if (client->pid != 0 && !is_alive(client))
            emu_release_client(i);
    }
    drop_closed_exports();
}

/* -- questions ------------------------------------------------------------------------------------------------------ */

uint64_t emu_used(uint32_t gpu, uint64_t instance)
{
    struct emu_state *state = emu_state();
    uint64_t used = 0;
    for (uint32_t i = 0; i < EMU_ALLOCATIONS; i++) {
        const struct emu_allocation *allocation = &state->allocations[i];
        if (allocation->len == 0 || allocation->gpu != gpu)
            continue;
        if (instance == 0 || state->clients[allocation->client].place.instance == instance)
            used += allocation->len;
    }
    return used;
}

bool emu_is_exported(uint32_t gpu, uint64_t instance)
{
    struct emu_state *state = emu_state();
    char name[NAME];
    for (uint32_t i = 0; i < EMU_EXPORTS; i++) {
        const struct emu_export *export = &state->exports[i];
        if (export->number == 0 || export->gpu != gpu || export->instance != instance)
            continue;
        emu_export_name(name, sizeof name, export->number);
        if (emu_is_held(name))
            return true;
    }
    return false;
}
