/* Xid events: a ring that all processes read. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

void emu_xid(const struct emu_place *place, uint64_t xid)
{
    struct emu_state *state = emu_state();
    emu_lock();
    unsigned count = atomic_load(&state->event_count);
    state->events[count % EMU_EVENTS] = (struct emu_event){xid, place->gpu, place->instance_id, place->compute_id};
    atomic_store(&state->event_count, count + 1);
    emu_unlock();
    syscall(SYS_futex, &state->event_count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void emu_await_event(uint32_t seen, uint32_t timeout_ms)
{
    struct timespec left = {(time_t)(timeout_ms / 1000U), (long)(timeout_ms % 1000U) * 1000000L};
    syscall(SYS_futex, &emu_state()->event_count, FUTEX_WAIT, seen, &left, NULL, 0);
}
