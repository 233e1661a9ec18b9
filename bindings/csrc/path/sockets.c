/* Doorbells and messages over SOCK_SEQPACKET sockets, given as descriptors, and waiting for one by polling.
 *
 * What does not block keeps the GIL: releasing it costs more than these calls, and another thread could keep it. */
#include "path.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

enum { BELL_BYTES = 4, BELL_ROOM = 8 };
static const int64_t MOST_NS = (int64_t)1 << 61; /* waits are bounded, so that a deadline fits 64 bits */

static int descriptor(PyObject *arg, int *fd)
{
    long value = PyLong_AsLong(arg);
    if (value == -1 && PyErr_Occurred())
        return 0;
    *fd = value < 0 || value > INT32_MAX ? -1 : (int)value; /* -1: a closed end, which gives EBADF */
    return 1;
}

static PyObject *failed(void)
{
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* True: interrupted, and no signal handler raised. */
static int is_again(void)
{
    return errno == EINTR && PyErr_CheckSignals() == 0;
}

/* end, immediate -> bool */
PyObject *path_ring(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    int fd;
    uint64_t immediate;
    unsigned char message[BELL_BYTES];
    if (!path_count("ring", 2, 2, count) || !descriptor(args[0], &fd))
        return NULL;
    if (!path_uint(args[1], UINT32_MAX, &immediate)) {
        PyErr_SetString(PyExc_OverflowError, "an immediate has 32 bits");
        return NULL;
    }
    store(message, BELL_BYTES, immediate);
    ssize_t done;
    do
        done = send(fd, message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (done < 0 && is_again());
    if (done >= 0)
        Py_RETURN_TRUE;
    if (PyErr_Occurred())
        return NULL;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        Py_RETURN_FALSE;
    return failed();
}

/* end -> the immediate; None: there is none; -1 - n: a message of n bytes instead of four, 0 for a hang-up */
PyObject *path_receive(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    int fd;
    unsigned char message[BELL_ROOM];
    if (!path_count("receive", 1, 1, count) || !descriptor(args[0], &fd))
        return NULL;
    ssize_t got;
    do
        got = recv(fd, message, sizeof message, MSG_DONTWAIT);
    while (got < 0 && is_again());
    if (got == BELL_BYTES)
        return PyLong_FromUnsignedLongLong(load(message, BELL_BYTES));
    if (got >= 0)
        return PyLong_FromSsize_t(-1 - got);
    if (PyErr_Occurred())
        return NULL;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        Py_RETURN_NONE;
    return failed();
}

/* end -> the message, of at most one byte more than the limit; None: there is none */
PyObject *path_receive_message(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    int fd;
    char message[MESSAGE_BYTES + 1];
    if (!path_count("receive_message", 1, 1, count) || !descriptor(args[0], &fd))
        return NULL;
    ssize_t got;
    do
        got = recv(fd, message, sizeof message, MSG_DONTWAIT);
    while (got < 0 && is_again());
    if (got >= 0)
        return PyBytes_FromStringAndSize(message, got);
    if (PyErr_Occurred())
        return NULL;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        Py_RETURN_NONE;
    return failed();
}

/* -- waiting ------------------------------------------------------------------------------------------------------- */
static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Rounded up: never early. */
static int left_ms(int64_t until)
{
    int64_t left = (until - now_ns() + 999999) / 1000000;
    return left <= 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

/* For waiting a closed end is an error: poll(2) would ignore it. */
static int open_descriptor(PyObject *arg, int *fd)
{
    if (!descriptor(arg, fd))
        return 0;
    if (*fd < 0)
        PyErr_SetString(PyExc_ValueError, "a file descriptor is not negative");
    return *fd >= 0;
}

/* Gives the core's resources to the thread beside it for about 0.1 us. */
static void relax(void)
{
    for (int n = 0; n < 8; n++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb" ::: "memory");
#endif
    }
}

/* fd, spin_ns -> whether it became readable (or broke) within spin_ns, without sleeping */
PyObject *path_spin(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    struct pollfd waiting = {.events = POLLIN};
    if (!path_count("spin", 2, 2, count) || !open_descriptor(args[0], &waiting.fd))
        return NULL;
    long long spin_ns = PyLong_AsLongLong(args[1]);
    if (spin_ns == -1 && PyErr_Occurred())
        return NULL;
    int ready;
    Py_BEGIN_ALLOW_THREADS
    int64_t until = now_ns() + (spin_ns < MOST_NS ? spin_ns : MOST_NS);
    while ((ready = poll(&waiting, 1, 0)) == 0 && now_ns() < until)
        relax();
    Py_END_ALLOW_THREADS
    return ready < 0 ? failed() : PyBool_FromLong(ready);
}

/* fd, events, timeout_s or None -> whether it is ready (or broke) within that time; None: no limit */
PyObject *path_wait(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    struct pollfd waiting = {0};
    if (!path_count("wait", 3, 3, count) || !open_descriptor(args[0], &waiting.fd))
        return NULL;
    long events = PyLong_AsLong(args[1]);
    double timeout_s = Py_IsNone(args[2]) ? 0 : PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred())
        return NULL;
    waiting.events = (short)events;
    double most_s = (double)MOST_NS / 1e9;
    int64_t until = now_ns() + (int64_t)((timeout_s > most_s ? most_s : timeout_s > 0 ? timeout_s : 0) * 1e9);
    int ready;
    do {
        int timeout_ms = Py_IsNone(args[2]) ? -1 : left_ms(until);
        Py_BEGIN_ALLOW_THREADS
        ready = poll(&waiting, 1, timeout_ms);
        Py_END_ALLOW_THREADS
    } while (ready < 0 && is_again());
    if (ready >= 0)
        return PyBool_FromLong(ready);
    return PyErr_Occurred() ? NULL : failed();
}
