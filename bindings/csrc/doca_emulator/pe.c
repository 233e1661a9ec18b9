/* The progress engine: completions happen only in doca_pe_progress, at most one per call. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "pe.h"

static _Thread_local unsigned callbacks; /* nested: a stop called in one runs its own */

void priv_doca_callback(bool begins)
{
    callbacks += begins ? 1U : ~0U;
}

doca_error_t doca_pe_create(struct doca_pe **pe)
{
    FAULT();
    NEEDS(pe != NULL, DOCA_ERROR_INVALID_VALUE);
    struct doca_pe *made = priv_doca_new(sizeof *made, PRIV_PE);
    NEEDS(made != NULL, DOCA_ERROR_NO_MEMORY);
    made->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    made->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    made->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    made->last = &made->first;
    struct epoll_event wanted = {.events = EPOLLIN};
    if (made->epoll_fd < 0 || made->event_fd < 0 || made->timer_fd < 0 ||
        epoll_ctl(made->epoll_fd, EPOLL_CTL_ADD, made->event_fd, &wanted) != 0 ||
        epoll_ctl(made->epoll_fd, EPOLL_CTL_ADD, made->timer_fd, &wanted) != 0) {
        emu_pe_close(made);
        return DOCA_ERROR_NO_MEMORY;
    }
    *pe = made;
    return DOCA_SUCCESS;
}

void emu_pe_close(struct doca_pe *pe)
{
    const int fds[] = {pe->epoll_fd, pe->event_fd, pe->timer_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    priv_doca_retire(pe);
}

doca_error_t doca_pe_destroy(struct doca_pe *pe)
{
    FAULT();
    VALID(pe, PRIV_PE);
    NEEDS(pe->contexts == NULL, DOCA_ERROR_IN_USE);
    emu_pe_close(pe);
    return DOCA_SUCCESS;
}

doca_error_t doca_pe_connect_ctx(struct doca_pe *pe, struct doca_ctx *ctx)
{
    FAULT();
    VALID(pe, PRIV_PE);
    VALID(ctx, PRIV_CTX);
    NEEDS(ctx->state == DOCA_CTX_STATE_IDLE, DOCA_ERROR_BAD_STATE);
    NEEDS(ctx->pe == NULL, DOCA_ERROR_NOT_PERMITTED);
    ctx->pe = pe;
    ctx->next = pe->contexts;
    pe->contexts = ctx;
    return DOCA_SUCCESS;
}

doca_error_t doca_pe_get_num_inflight_tasks(const struct doca_pe *pe, size_t *num_inflight_tasks)
{
    FAULT();
    VALID(pe, PRIV_PE);
    NEEDS(num_inflight_tasks != NULL, DOCA_ERROR_INVALID_VALUE);
    *num_inflight_tasks = 0;
    for (const struct doca_ctx *ctx = pe->contexts; ctx != NULL; ctx = ctx->next)
        *num_inflight_tasks += ctx->in_flight;
    return DOCA_SUCCESS;
}

#if DOCA_EMULATOR_RELEASE >= 30
/* Both modes are equal here: a request wakes for all contexts of the engine. */
doca_error_t doca_pe_set_event_mode(struct doca_pe *pe, enum doca_pe_event_mode event_mode)
{
    FAULT();
    VALID(pe, PRIV_PE);
    NEEDS(event_mode == DOCA_PE_EVENT_MODE_PROGRESS_SELECTIVE || event_mode == DOCA_PE_EVENT_MODE_PROGRESS_ALL,
        DOCA_ERROR_INVALID_VALUE);
    return DOCA_SUCCESS;
}
#endif

/* -- progress ------------------------------------------------------------------------------------------------------ */

static void unlink_task(struct doca_pe *pe, struct doca_task *task)
{
    struct doca_task **at = &pe->first;
    while (*at != task)
        at = &(*at)->next;
    *at = task->next;
    if (pe->last == &task->next)
        pe->last = at;
    task->next = NULL;
}

static void complete(struct doca_pe *pe, struct doca_task *task, doca_error_t status, bool is_fatal)
{
    struct doca_ctx *ctx = task->ctx;
    unlink_task(pe, task);
    ctx->in_flight--;
    task->status = status;
    task->state = PRIV_TASK_COMPLETED;
    if (ctx->ops->finished != NULL)
        ctx->ops->finished(task);
    if (is_fatal) {
        ctx->has_failed = true;
        if (ctx->state == DOCA_CTX_STATE_RUNNING)
            priv_doca_ctx_becomes(ctx, DOCA_CTX_STATE_STOPPING);
    }
    priv_doca_callback(true);
    ctx->ops->complete(task); /* may free the task and, if the context is idle, all else: touch nothing afterwards */
    priv_doca_callback(false);
}

static bool is_ready(const struct doca_task *task, uint64_t now_ns)
{
    return task->ctx->has_failed || task->ready_ns <= now_ns;
}

static bool try_task(struct doca_pe *pe, struct doca_task *task)
{
    if (task->ctx->has_failed) {
        complete(pe, task, task->ctx->ops->flushed, false);
        return true;
    }
    doca_error_t status = DOCA_SUCCESS;
    enum priv_attempt attempt = task->ctx->ops->attempt(task, &status);
    if (attempt == PRIV_LATER)
        return false;
    complete(pe, task, status, attempt == PRIV_FATAL);
    return true;
}

/* The task that the seed of the fault "reorder" selects; NULL: by the order of submission. */
static struct doca_task *picked(struct doca_pe *pe, uint64_t now_ns)
{
    uint64_t random = 0, count = 0;
    for (struct doca_task *task = pe->first; task != NULL; task = task->next)
        count += !task->ctx->ops->is_ordered && is_ready(task, now_ns);
    if (count < 2 || !priv_doca_reorder(&random))
        return NULL;
    uint64_t wanted = random % count;
    for (struct doca_task *task = pe->first; task != NULL; task = task->next)
        if (!task->ctx->ops->is_ordered && is_ready(task, now_ns) && wanted-- == 0)
            return task;
    return NULL;
}

static bool progress_tasks(struct doca_pe *pe)
{
    if (pe->first == NULL)
        return false;
    uint64_t now_ns = priv_doca_now_ns();
    struct doca_task *pick = picked(pe, now_ns);
    if (pick != NULL && try_task(pe, pick))
        return true;
    for (struct doca_task *task = pe->first; task != NULL; task = task->next)
        if (is_ready(task, now_ns) && try_task(pe, task))
            return true;
    return false;
}

static bool progress_events(struct doca_pe *pe)
{
    for (struct doca_ctx *ctx = pe->contexts; ctx != NULL; ctx = ctx->next)
        if (ctx->ops->poll != NULL && ctx->state != DOCA_CTX_STATE_IDLE && ctx->ops->poll(ctx))
            return true;
    return false;
}

static bool can_end(const struct doca_ctx *ctx)
{
    return ctx->state == DOCA_CTX_STATE_STOPPING && ctx->in_flight == 0 && ctx->taken == 0 &&
           (ctx->ops->drained == NULL || ctx->ops->drained((struct doca_ctx *)ctx));
}

static bool progress_endings(struct doca_pe *pe)
{
    for (struct doca_ctx *ctx = pe->contexts; ctx != NULL; ctx = ctx->next) {
        if (can_end(ctx)) {
            emu_ctx_ends(ctx);
            return true;
        }
    }
    return false;
}

uint8_t doca_pe_progress(struct doca_pe *pe)
{
    LIVE(pe, PRIV_PE);
    if (callbacks > 0)
        priv_doca_strict(__func__, "called inside a callback");
    if (atomic_exchange(&pe->is_busy, true))
        priv_doca_strict(__func__, "two threads progress one engine");
    pe->turn = !pe->turn; /* so that neither tasks nor events starve */
    bool did = pe->turn ? progress_tasks(pe) || progress_events(pe) : progress_events(pe) || progress_tasks(pe);
    did = did || progress_endings(pe);
    atomic_store(&pe->is_busy, false);
    return did;
}

/* -- notification: armed by a request, once ------------------------------------------------------------------------ */

static bool has_polled_ctx(const struct doca_pe *pe)
{
    for (const struct doca_ctx *ctx = pe->contexts; ctx != NULL; ctx = ctx->next)
        if (ctx->ops->is_polled)
            return true;
    return false;
}

/* Makes the handle readable now, or when the first delayed completion is due. If nothing is due, later submissions call
 * this again. */
void emu_pe_notify(struct doca_pe *pe)
{
    if (!pe->is_armed)
        return;
    uint64_t now_ns = priv_doca_now_ns(), due_ns = UINT64_MAX;
    for (const struct doca_task *task = pe->first; task != NULL; task = task->next) {
        uint64_t ready_ns = is_ready(task, now_ns) ? 0 : task->ready_ns;
        due_ns = ready_ns < due_ns ? ready_ns : due_ns;
    }
    for (const struct doca_ctx *ctx = pe->contexts; ctx != NULL; ctx = ctx->next)
        due_ns = can_end(ctx) ? 0 : due_ns;
    if (due_ns == UINT64_MAX)
        return;
    if (due_ns == 0) {
        uint64_t one = 1;
        if (write(pe->event_fd, &one, sizeof one) < 0 && errno != EAGAIN)
            priv_doca_strict(__func__, "eventfd: %s", strerror(errno));
        return;
    }
    struct itimerspec when = {
        .it_value = {.tv_sec = (time_t)(due_ns / 1000000000U), .tv_nsec = (long)(due_ns % 1000000000U)}};
    timerfd_settime(pe->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

doca_error_t doca_pe_get_notification_handle(const struct doca_pe *pe, doca_notification_handle_t *handle)
{
    FAULT();
    LIVE(pe, PRIV_PE);
    NEEDS(handle != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(!has_polled_ctx(pe), DOCA_ERROR_NOT_SUPPORTED);
    *handle = pe->epoll_fd;
    return DOCA_SUCCESS;
}

doca_error_t doca_pe_request_notification(struct doca_pe *pe)
{
    FAULT();
    LIVE(pe, PRIV_PE);
    NEEDS(!has_polled_ctx(pe), DOCA_ERROR_NOT_SUPPORTED);
    pe->is_armed = true;
    emu_pe_notify(pe);
    return DOCA_SUCCESS;
}

doca_error_t doca_pe_clear_notification(struct doca_pe *pe, doca_notification_handle_t handle)
{
    FAULT();
    LIVE(pe, PRIV_PE);
    NEEDS(handle == pe->epoll_fd, DOCA_ERROR_INVALID_VALUE);
    uint64_t ignored;
    struct itimerspec never = {0};
    timerfd_settime(pe->timer_fd, 0, &never, NULL);
    while (read(pe->event_fd, &ignored, sizeof ignored) > 0 || read(pe->timer_fd, &ignored, sizeof ignored) > 0)
        ;
    pe->is_armed = false;
    return DOCA_SUCCESS;
}
