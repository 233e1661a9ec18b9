/* Error names, version, log back ends, and helpers for the operating system. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static const struct {
    const char *name, *text;
} errors[] = {
    {"DOCA_SUCCESS", "success"},
    {"DOCA_ERROR_UNKNOWN", "an error of unknown kind"},
    {"DOCA_ERROR_NOT_PERMITTED", "the operation is not permitted"},
    {"DOCA_ERROR_IN_USE", "the resource is in use"},
    {"DOCA_ERROR_NOT_SUPPORTED", "the operation is not supported"},
    {"DOCA_ERROR_AGAIN", "nothing can be done now; try again"},
    {"DOCA_ERROR_INVALID_VALUE", "an argument is not valid"},
    {"DOCA_ERROR_NO_MEMORY", "no memory, or no element, is left"},
    {"DOCA_ERROR_INITIALIZATION", "the resource could not be initialized"},
    {"DOCA_ERROR_TIME_OUT", "the time for it is over"},
    {"DOCA_ERROR_SHUTDOWN", "shut down in the middle of it"},
    {"DOCA_ERROR_CONNECTION_RESET", "the peer has reset the connection"},
    {"DOCA_ERROR_CONNECTION_ABORTED", "the connection was aborted"},
    {"DOCA_ERROR_CONNECTION_INPROGRESS", "the connection is not up yet"},
    {"DOCA_ERROR_NOT_CONNECTED", "not connected"},
    {"DOCA_ERROR_NO_LOCK", "the lock could not be had"},
    {"DOCA_ERROR_NOT_FOUND", "not found"},
    {"DOCA_ERROR_IO_FAILED", "input or output has failed"},
    {"DOCA_ERROR_BAD_STATE", "the object is in a state that does not allow it"},
    {"DOCA_ERROR_UNSUPPORTED_VERSION", "the version is not supported"},
    {"DOCA_ERROR_OPERATING_SYSTEM", "a call of the operating system has failed"},
    {"DOCA_ERROR_DRIVER", "the driver has failed"},
    {"DOCA_ERROR_UNEXPECTED", "something unexpected has happened"},
    {"DOCA_ERROR_ALREADY_EXIST", "it exists already"},
    {"DOCA_ERROR_FULL", "no more room"},
    {"DOCA_ERROR_EMPTY", "nothing there"},
    {"DOCA_ERROR_IN_PROGRESS", "begun, and not finished yet"},
    {"DOCA_ERROR_TOO_BIG", "too big"},
#if DOCA_EMULATOR_RELEASE >= 30
    {"DOCA_ERROR_AUTHENTICATION", "authentication has failed"},
    {"DOCA_ERROR_BAD_CONFIG", "the configuration does not hold together"},
    {"DOCA_ERROR_SKIPPED", "left out because of what came before"},
#endif
};
static const char unrecognized[] = "unrecognized error code";

const char *doca_error_get_name(doca_error_t error)
{
    size_t code = (size_t)error;
    return code < sizeof errors / sizeof *errors ? errors[code].name : unrecognized;
}

const char *doca_error_get_descr(doca_error_t error)
{
    size_t code = (size_t)error;
    return code < sizeof errors / sizeof *errors ? errors[code].text : unrecognized;
}

const char *doca_version_runtime(void)
{
    return DOCA_EMULATOR_RELEASE >= 30 ? "3.0.0-emulated" : "2.5.0-emulated";
}

/* -- logs: no call destroys a back end, so they last as long as the process ---------------------------------------- */

struct doca_log_backend {
    enum priv_kind magic;
    int fd;
    uint32_t level;
    struct doca_log_backend *next;
};
static struct doca_log_backend *backends;

static struct doca_log_backend *backend_on(int fd)
{
    struct doca_log_backend *backend = priv_doca_new(sizeof *backend, PRIV_LOG_BACKEND);
    if (backend != NULL) {
        backend->fd = fd;
        backend->level = DOCA_LOG_LEVEL_WARNING;
        priv_doca_lock();
        backend->next = backends;
        backends = backend;
        priv_doca_unlock();
    }
    return backend;
}

doca_error_t doca_log_backend_create_standard(void)
{
    FAULT();
    return backend_on(STDERR_FILENO) != NULL ? DOCA_SUCCESS : DOCA_ERROR_NO_MEMORY;
}

doca_error_t doca_log_backend_create_with_fd_sdk(int fd, struct doca_log_backend **backend)
{
    FAULT();
    NEEDS(backend != NULL && fcntl(fd, F_GETFD) >= 0, DOCA_ERROR_INVALID_VALUE);
    *backend = backend_on(fd);
    return *backend != NULL ? DOCA_SUCCESS : DOCA_ERROR_NO_MEMORY;
}

doca_error_t doca_log_backend_set_sdk_level(struct doca_log_backend *backend, uint32_t level)
{
    FAULT();
    VALID(backend, PRIV_LOG_BACKEND);
    NEEDS(level >= DOCA_LOG_LEVEL_DISABLE && level <= DOCA_LOG_LEVEL_TRACE, DOCA_ERROR_INVALID_VALUE);
    backend->level = level;
    return DOCA_SUCCESS;
}

void priv_doca_log(uint32_t level, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    priv_doca_lock();
    for (struct doca_log_backend *backend = backends; backend != NULL; backend = backend->next)
        if (level <= backend->level)
            dprintf(backend->fd, "doca-emulator: %s\n", text);
    priv_doca_unlock();
}

/* -- the operating system ------------------------------------------------------------------------------------------ */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void priv_doca_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void priv_doca_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* A test may fork beside a polling thread: the child needs the lock to be free. */
__attribute__((constructor)) static void survive_forks(void)
{
    pthread_atfork(priv_doca_lock, priv_doca_unlock, priv_doca_unlock);
}

uint64_t priv_doca_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

/* Field 22 of /proc/PID/stat. The name in field 2 may contain parentheses: count from the last one. */
uint64_t priv_doca_start_time(pid_t pid)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return 0;
    text[got] = '\0';
    char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at + 1, NULL, 10) : 0;
}

/* The parties access each other's memory, so the folder must belong to one user only. */
int priv_doca_folder(void)
{
    char path[4096];
    const char *set = getenv("DOCA_EMULATOR_DIR"), *runtime = getenv("XDG_RUNTIME_DIR");
    if (set != NULL && *set != '\0')
        snprintf(path, sizeof path, "%s", set);
    else if (runtime != NULL && *runtime != '\0')
        snprintf(path, sizeof path, "%s/doca-emulator", runtime);
    else
        snprintf(path, sizeof path, "/tmp/doca-emulator-%u", (unsigned)geteuid());
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        fprintf(stderr, "doca-emulator: %s: %s\n", path, strerror(errno));
        return -1;
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat found;
    if (fd < 0 || fstat(fd, &found) != 0) {
        fprintf(stderr, "doca-emulator: %s: %s\n", path, strerror(errno));
    } else if (found.st_uid != geteuid() || (found.st_mode & 077) != 0) {
        fprintf(stderr, "doca-emulator: %s: others can get in; it has to be ours, with mode 0700\n", path);
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}
