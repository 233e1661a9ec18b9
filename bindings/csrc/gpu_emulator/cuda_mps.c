/* libcuda: a client of MPS. It is one where the control daemon of CUDA_MPS_PIPE_DIRECTORY answers, and silently runs
 * without MPS where none does. The messages between both are the emulator's own. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cuda_internal.h"

enum { MOST_TEXT = 256, ALL_PERCENT = 100 };
#define DEFAULT_PIPES "/tmp/nvidia-mps"

struct cuda_mps cuda_mps = {.link = -1};

/* -- joining -------------------------------------------------------------------------------------------------------- */

static int connect_to_daemon(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int wrote = snprintf(to.sun_path, sizeof to.sun_path, "%s/control", pipes && *pipes ? pipes : DEFAULT_PIPES);
    if (wrote < 0 || (size_t)wrote >= sizeof to.sun_path || emu_mps_is_gone())
        return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* A client may lower the daemon's percentage for itself, never raise it. */
static uint32_t own_percentage(double of_daemon)
{
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    char *end = NULL;
    double own = text != NULL ? strtod(text, &end) : 0;
    bool is_one = text != NULL && end != text && *end == '\0' && own > 0 && own <= ALL_PERCENT;
    double least = is_one && own < of_daemon ? own : of_daemon;
    return (uint32_t)(least + 0.5);
}

static uint64_t bytes_of(const char *text)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    return *end == 'G' ? value << 30 : *end == 'M' ? value << 20 : *end == 'K' ? value << 10 : value;
}

/* The limit of device 0, which is a worker's only one: of "0=1G", or of a bare "1G". */
static uint64_t own_limit(uint64_t of_daemon)
{
    const char *text = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    if (text == NULL || *text == '\0')
        return of_daemon;
    uint64_t own = bytes_of(strncmp(text, "0=", 2) == 0 ? text + 2 : text);
    return own != 0 && (of_daemon == 0 || own < of_daemon) ? own : of_daemon;
}

/* -- the server, a row of the machine's table ----------------------------------------------------------------------- */

static bool has_clients(uint64_t number)
{
    for (uint32_t i = 0; i < EMU_CLIENTS; i++)
        if (emu_state()->clients[i].pid != 0 && emu_state()->clients[i].server == number)
            return true;
    return false;
}

/* The server's row, else an unused one, else that of a server without clients. */
static struct emu_server *row(uint64_t number)
{
    struct emu_server *unused = NULL, *idle = NULL;
    for (uint32_t i = 0; i < EMU_SERVERS; i++) {
        struct emu_server *server = &emu_state()->servers[i];
        if (server->number == number)
            return server;
        if (server->number == 0 && unused == NULL)
            unused = server;
        if (idle == NULL && !has_clients(server->number))
            idle = server;
    }
    return unused != NULL ? unused : idle;
}

/* A server in FAULT accepts no client until its last one has exited. A server that lost a client with work outstanding
 * stays unusable. */
static CUresult join(uint64_t number)
{
    CUresult result = CUDA_SUCCESS;
    emu_lock();
    emu_reap();
    struct emu_server *server = row(number);
    if (server == NULL)
        emu_strict("MPS", "more than %d servers", EMU_SERVERS);
    if (server->number != number)
        *server = (struct emu_server){number, EMU_SERVER_ACTIVE};
    if (server->state == EMU_SERVER_FAULT && !has_clients(number))
        server->state = EMU_SERVER_ACTIVE;
    if (server->state == EMU_SERVER_FAULT)
        result = CUDA_ERROR_MPS_SERVER_NOT_READY;
    else if (server->state == EMU_SERVER_UNDEFINED)
        result = CUDA_ERROR_MPS_RPC_FAILURE;
    emu_unlock();
    return result;
}

CUresult cuda_mps_connect(void)
{
    char text[MOST_TEXT];
    unsigned long long server = 0, limit = 0;
    double percentage = 0;
    int fd = connect_to_daemon();
    if (fd < 0)
        return CUDA_SUCCESS;
    int len = snprintf(text, sizeof text, "register %d %u", (int)getpid(), (unsigned)geteuid());
    ssize_t got = send(fd, text, (size_t)len, MSG_NOSIGNAL) == len ? recv(fd, text, sizeof text - 1, 0) : -1;
    text[got > 0 ? got : 0] = '\0';
    if (sscanf(text, "server %llu %lf %llu", &server, &percentage, &limit) != 3 || server == 0) {
        close(fd);
        return CUDA_ERROR_MPS_SERVER_NOT_READY;
    }
    CUresult result = join(server);
    if (result != CUDA_SUCCESS) {
        close(fd);
        return result;
    }
    cuda_mps = (struct cuda_mps){fd, server, own_limit(limit), own_percentage(percentage)};
    return CUDA_SUCCESS;
}

/* -- while it runs -------------------------------------------------------------------------------------------------- */

CUresult cuda_mps_check(void)
{
    char text[MOST_TEXT];
    if (cuda_mps.link < 0)
        return CUDA_SUCCESS;
    ssize_t got = recv(cuda_mps.link, text, sizeof text - 1, MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN ? CUDA_SUCCESS : CUDA_ERROR_MPS_RPC_FAILURE;
    return got == 0 ? CUDA_ERROR_MPS_RPC_FAILURE : CUDA_ERROR_MPS_CLIENT_TERMINATED;
}

/* A fault of one client reaches all clients of its server. */
void cuda_mps_tell_fault(struct cuda_context *context, CUresult code)
{
    bool is_own = code != CUDA_ERROR_MPS_RPC_FAILURE && code != CUDA_ERROR_MPS_CLIENT_TERMINATED;
    if (cuda_mps.link < 0 || !is_own || emu_state()->clients[context->client].fault != 0)
        return;
    emu_lock();
    for (uint32_t i = 0; i < EMU_CLIENTS; i++)
        if (emu_state()->clients[i].pid != 0 && emu_state()->clients[i].server == cuda_mps.server)
            emu_state()->clients[i].fault = (uint32_t)code;
    struct emu_server *server = row(cuda_mps.server);
    if (server != NULL && server->number == cuda_mps.server && server->state == EMU_SERVER_ACTIVE)
        server->state = EMU_SERVER_FAULT;
    emu_unlock();
}
