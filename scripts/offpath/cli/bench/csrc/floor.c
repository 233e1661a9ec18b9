/* The floor of the request path in C: requester -> middle, which copies -> worker -> middle -> requester.
 *
 * Usage: floor MIDDLE_CORE REQUESTER_CORE WORKER_CORE SPINS SLOT_BYTES LARGEST_BYTES
 *   A core of -1 does not pin. SPINS is a sum of 1 (the middle busy-polls), 2 (the worker), 4 (the requester).
 *
 * This process is the requester; it forks the other two. It writes their pids to stdout, then serves blocks from stdin:
 * a block is four u64 (bytes, requests, in flight, kernel ms), its answer the wall time and the requester's CPU time in
 * ns, then one latency in ns for each request, all u64. It ends with its stdin. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_MIDDLE = 1, SPIN_WORKER = 2, SPIN_REQUESTER = 4, MOST_IN_FLIGHT = 16 };

struct bell {
    uint32_t slot;
    uint32_t kernel_ms;
    uint64_t nbytes;
};

struct block {
    uint64_t nbytes, count, in_flight, kernel_ms;
};

static unsigned char *slots, *lanes;
static size_t slot_bytes;
/* Set during a block: a process that busy-polls between blocks would take the core from the other settings. */
static atomic_int *is_active;
static volatile unsigned char sink;

static void die(const char *what)
{
    perror(what);
    _exit(1);
}

static uint64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pin(int core)
{
    cpu_set_t set;
    if (core < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
}

static void *shared(size_t nbytes)
{
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED)
        die("mmap");
    return at;
}

/* One message, blocking, or busy-polling while a block runs. */
static void receive(int fd, void *message, size_t nbytes, int spins)
{
    for (;;) {
        int flags = spins && atomic_load_explicit(is_active, memory_order_relaxed) ? MSG_DONTWAIT : 0;
        ssize_t got = recv(fd, message, nbytes, flags);
        if (got == (ssize_t)nbytes)
            return;
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        _exit(0); /* the peer closed */
    }
}

static void transmit(int fd, const void *message, size_t nbytes)
{
    if (send(fd, message, nbytes, MSG_NOSIGNAL) != (ssize_t)nbytes)
        _exit(0);
}

/* Take one message of the requester (a request) or of the worker (an answer), if there is one, and pass it on. */
static void relay_one(int from, int requester, int worker, int flags)
{
    struct bell bell;
    uint32_t slot;
    void *message = from == requester ? (void *)&bell : (void *)&slot;
    size_t nbytes = from == requester ? sizeof bell : sizeof slot;
    ssize_t got = recv(from, message, nbytes, flags);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got != (ssize_t)nbytes)
        _exit(0);
    if (from == worker) {
        transmit(requester, &slot, sizeof slot);
        return;
    }
    memcpy(lanes + bell.slot * slot_bytes, slots + bell.slot * slot_bytes, bell.nbytes);
    transmit(worker, &bell, sizeof bell);
}

static void relay(int requester, int worker, int spins)
{
    struct epoll_event ready[2], wanted = {.events = EPOLLIN};
    int poller = epoll_create1(0);
    wanted.data.fd = requester;
    epoll_ctl(poller, EPOLL_CTL_ADD, requester, &wanted);
    wanted.data.fd = worker;
    epoll_ctl(poller, EPOLL_CTL_ADD, worker, &wanted);
    for (;;) {
        while (spins && atomic_load_explicit(is_active, memory_order_relaxed)) {
            relay_one(requester, requester, worker, MSG_DONTWAIT);
            relay_one(worker, requester, worker, MSG_DONTWAIT);
        }
        int count = epoll_wait(poller, ready, 2, -1);
        for (int i = 0; i < count; i++)
            relay_one(ready[i].data.fd, requester, worker, 0);
    }
}

static void work(int bell_fd, int spins)
{
    for (;;) {
        struct bell bell;
        receive(bell_fd, &bell, sizeof bell, spins);
        sink = lanes[bell.slot * slot_bytes];
        if (bell.kernel_ms) {
            struct timespec t = {bell.kernel_ms / 1000, (long)(bell.kernel_ms % 1000) * 1000000};
            nanosleep(&t, NULL);
        }
        transmit(bell_fd, &bell.slot, sizeof bell.slot);
    }
}

static void submit(int bell_fd, const unsigned char *payload, const struct block *wanted, uint32_t slot)
{
    struct bell bell = {slot, (uint32_t)wanted->kernel_ms, wanted->nbytes};
    memcpy(slots + slot * slot_bytes, payload, wanted->nbytes);
    transmit(bell_fd, &bell, sizeof bell);
}

static void serve(int bell_fd, const unsigned char *payload, const struct block *wanted, int spins)
{
    uint64_t started[MOST_IN_FLIGHT], done = 0, sent = 0;
    uint64_t *answer = malloc((wanted->count + 2) * sizeof *answer);
    if (!answer || wanted->in_flight > MOST_IN_FLIGHT || wanted->in_flight > wanted->count)
        die("a block of this size");
    atomic_store(is_active, 1);
    uint64_t cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID), begin = now_ns(CLOCK_MONOTONIC);
    for (; sent < wanted->in_flight; sent++) {
        started[sent] = now_ns(CLOCK_MONOTONIC);
        submit(bell_fd, payload, wanted, (uint32_t)sent);
    }
    while (done < wanted->count) {
        uint32_t slot;
        receive(bell_fd, &slot, sizeof slot, spins);
        uint64_t now = now_ns(CLOCK_MONOTONIC);
        answer[2 + done++] = now - started[slot];
        if (sent < wanted->count) {
            sent++;
            started[slot] = now_ns(CLOCK_MONOTONIC);
            submit(bell_fd, payload, wanted, slot);
        }
    }
    answer[0] = now_ns(CLOCK_MONOTONIC) - begin;
    answer[1] = now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    atomic_store(is_active, 0);
    if (fwrite(answer, sizeof *answer, wanted->count + 2, stdout) != wanted->count + 2 || fflush(stdout))
        _exit(0);
    free(answer);
}

static pid_t forked(int core)
{
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(core);
    }
    return pid;
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: floor MIDDLE_CORE REQUESTER_CORE WORKER_CORE SPINS SLOT_BYTES LARGEST_BYTES\n");
        return 64;
    }
    int spins = atoi(argv[4]), front[2], back[2];
    size_t largest = strtoull(argv[6], NULL, 10);
    slot_bytes = strtoull(argv[5], NULL, 10);
    if (largest < MOST_IN_FLIGHT * slot_bytes)
        largest = MOST_IN_FLIGHT * slot_bytes;
    slots = shared(largest);
    lanes = shared(largest);
    is_active = shared(sizeof *is_active);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, front) || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, back))
        die("socketpair");

    uint64_t pids[2];
    if (!(pids[0] = (uint64_t)forked(atoi(argv[1]))))
        relay(front[1], back[0], spins & SPIN_MIDDLE);
    if (!(pids[1] = (uint64_t)forked(atoi(argv[3]))))
        work(back[1], spins & SPIN_WORKER);
    pin(atoi(argv[2]));
    close(front[1]);
    close(back[0]);
    close(back[1]);

    unsigned char *payload = malloc(largest);
    if (!payload)
        die("malloc");
    for (size_t i = 0; i < largest; i++)
        payload[i] = (unsigned char)(i * 2654435761u >> 24);
    fwrite(pids, sizeof *pids, 2, stdout);
    fflush(stdout);
    struct block wanted;
    while (fread(&wanted, sizeof wanted, 1, stdin) == 1)
        serve(front[0], payload, &wanted, spins & SPIN_REQUESTER);
    return 0;
}
