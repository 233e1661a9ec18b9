/* The progress engine's own state. Private to libdoca_common. */
#ifndef OFFPATH_DOCA_EMULATOR_PE_H
#define OFFPATH_DOCA_EMULATOR_PE_H

#include "internal.h"

struct doca_pe {
    enum priv_kind magic;
    int epoll_fd, event_fd, timer_fd; /* the first is the handle; the other two make it readable */
    bool is_armed, turn;
    atomic_bool is_busy;
    struct doca_ctx *contexts;
    struct doca_task *first, **last; /* in flight, in the order of submission */
};

void emu_pe_close(struct doca_pe *pe);
void emu_pe_notify(struct doca_pe *pe);
void emu_ctx_ends(struct doca_ctx *ctx);

#endif
