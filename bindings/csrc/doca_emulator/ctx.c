/* Contexts and tasks: their states and ownership. */
#define _GNU_SOURCE
#include "pe.h"

void priv_doca_ctx_init(struct doca_ctx *ctx, const struct priv_ctx_ops *ops)
{
    *ctx = (struct doca_ctx){.magic = PRIV_CTX, .ops = ops, .state = DOCA_CTX_STATE_IDLE};
}

void priv_doca_ctx_gone(struct doca_ctx *ctx)
{
    if (ctx->pe != NULL) {
        struct doca_ctx **at = &ctx->pe->contexts;
        while (*at != ctx)
            at = &(*at)->next;
        *at = ctx->next;
    }
    ctx->magic = PRIV_DEAD;
}

void priv_doca_ctx_becomes(struct doca_ctx *ctx, enum doca_ctx_states next)
{
    enum doca_ctx_states previous = ctx->state;
    ctx->state = next;
    if (ctx->state_changed != NULL && previous != next) {
        priv_doca_callback(true);
        ctx->state_changed(ctx->user_data, ctx, previous, next);
        priv_doca_callback(false);
    }
}

void emu_ctx_ends(struct doca_ctx *ctx)
{
    ctx->free_tasks = NULL;
    ctx->has_failed = false;
    if (ctx->ops->idle != NULL)
        ctx->ops->idle(ctx);
    priv_doca_ctx_becomes(ctx, DOCA_CTX_STATE_IDLE);
}

doca_error_t doca_ctx_start(struct doca_ctx *ctx)
{
    FAULT();
    VALID(ctx, PRIV_CTX);
    NEEDS(ctx->state == DOCA_CTX_STATE_IDLE, DOCA_ERROR_BAD_STATE);
    NEEDS(ctx->pe != NULL || ctx->is_on_gpu, DOCA_ERROR_NOT_CONNECTED);
    doca_error_t status = ctx->ops->start(ctx);
    if (status == DOCA_SUCCESS)
        priv_doca_ctx_becomes(ctx, DOCA_CTX_STATE_RUNNING);
    else if (status == DOCA_ERROR_IN_PROGRESS)
        priv_doca_ctx_becomes(ctx, DOCA_CTX_STATE_STARTING);
    return status;
}

doca_error_t doca_ctx_stop(struct doca_ctx *ctx)
{
    FAULT();
    VALID(ctx, PRIV_CTX);
    NEEDS(ctx->state != DOCA_CTX_STATE_IDLE, DOCA_ERROR_BAD_STATE);
    NEEDS(ctx->state != DOCA_CTX_STATE_STOPPING, DOCA_ERROR_IN_PROGRESS);
    if (ctx->ops->stop != NULL)
        ctx->ops->stop(ctx);
    if (ctx->taken == 0 && (ctx->ops->drained == NULL || ctx->ops->drained(ctx))) {
        emu_ctx_ends(ctx);
        return DOCA_SUCCESS;
    }
    priv_doca_ctx_becomes(ctx, DOCA_CTX_STATE_STOPPING);
    return DOCA_ERROR_IN_PROGRESS;
}

doca_error_t doca_ctx_get_state(const struct doca_ctx *ctx, enum doca_ctx_states *state)
{
    FAULT();
    VALID(ctx, PRIV_CTX);
    NEEDS(state != NULL, DOCA_ERROR_INVALID_VALUE);
    *state = ctx->state;
    return DOCA_SUCCESS;
}

doca_error_t doca_ctx_set_state_changed_cb(struct doca_ctx *ctx, doca_ctx_state_changed_callback_t cb)
{
    FAULT();
    VALID(ctx, PRIV_CTX);
    NEEDS(cb != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(ctx->state == DOCA_CTX_STATE_IDLE, DOCA_ERROR_BAD_STATE);
    ctx->state_changed = cb;
    return DOCA_SUCCESS;
}

doca_error_t doca_ctx_set_user_data(struct doca_ctx *ctx, union doca_data user_data)
{
    FAULT();
    VALID(ctx, PRIV_CTX);
    ctx->user_data = user_data;
    return DOCA_SUCCESS;
}

doca_error_t doca_ctx_get_user_data(const struct doca_ctx *ctx, union doca_data *user_data)
{
    FAULT();
    VALID(ctx, PRIV_CTX);
    NEEDS(user_data != NULL, DOCA_ERROR_INVALID_VALUE);
    *user_data = ctx->user_data;
    return DOCA_SUCCESS;
}

doca_error_t doca_ctx_get_num_inflight_tasks(const struct doca_ctx *ctx, size_t *num_inflight_tasks)
{
    FAULT();
    VALID(ctx, PRIV_CTX);
    NEEDS(num_inflight_tasks != NULL, DOCA_ERROR_INVALID_VALUE);
    *num_inflight_tasks = ctx->in_flight;
    return DOCA_SUCCESS;
}

doca_error_t doca_ctx_set_datapath_on_gpu(struct doca_ctx *ctx, struct doca_gpu *gpu_dev)
{
    FAULT();
    VALID(ctx, PRIV_CTX);
    NEEDS(gpu_dev != NULL, DOCA_ERROR_INVALID_VALUE);
    priv_doca_live(__func__, (const enum priv_kind *)(const void *)gpu_dev, PRIV_GPU);
    NEEDS(ctx->state == DOCA_CTX_STATE_IDLE, DOCA_ERROR_BAD_STATE);
    ctx->is_on_gpu = true;
    return DOCA_SUCCESS;
}

/* -- tasks --------------------------------------------------------------------------------------------------------- */

void priv_doca_task_add(struct doca_ctx *ctx, struct doca_task *task)
{
    *task = (struct doca_task){.magic = PRIV_DEAD, .ctx = ctx, .next = ctx->free_tasks};
    ctx->free_tasks = task;
}

struct doca_task *priv_doca_task_take(struct doca_ctx *ctx)
{
    struct doca_task *task = ctx->free_tasks;
    if (task == NULL)
        return NULL;
    ctx->free_tasks = task->next;
    ctx->taken++;
    *task = (struct doca_task){.magic = PRIV_TASK, .state = PRIV_TASK_OURS, .ctx = ctx};
    return task;
}

/* On failure the caller keeps the task. */
static doca_error_t submit(const char *call, struct doca_task *task, bool validates)
{
    priv_doca_live(call, task != NULL ? &task->magic : NULL, PRIV_TASK);
    struct doca_ctx *ctx = task->ctx;
    if (task->state == PRIV_TASK_IN_FLIGHT)
        priv_doca_strict(call, "the task is in flight already");
    NEEDS(ctx->state == DOCA_CTX_STATE_RUNNING, DOCA_ERROR_BAD_STATE);
    NEEDS(ctx->pe != NULL, DOCA_ERROR_NOT_CONNECTED);
    if (validates && ctx->ops->validate != NULL) {
        doca_error_t refused = ctx->ops->validate(task);
        NEEDS(refused == DOCA_SUCCESS, refused);
    }
    doca_error_t refused = ctx->ops->submitted(task);
    NEEDS(refused == DOCA_SUCCESS, refused);
    uint64_t delay_ns = priv_doca_delay_ns();
    task->ready_ns = delay_ns > 0 ? priv_doca_now_ns() + delay_ns : 0;
    task->state = PRIV_TASK_IN_FLIGHT;
    task->next = NULL;
    *ctx->pe->last = task;
    ctx->pe->last = &task->next;
    ctx->in_flight++;
    emu_pe_notify(ctx->pe);
    return DOCA_SUCCESS;
}

doca_error_t doca_task_submit(struct doca_task *task)
{
    FAULT();
    return submit(__func__, task, false);
}

#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_task_submit_ex(struct doca_task *task, uint32_t flags)
{
    FAULT();
    NEEDS((flags & ~(uint32_t)(DOCA_TASK_SUBMIT_FLAG_FLUSH | DOCA_TASK_SUBMIT_FLAG_OPTIMIZE_REPORTS)) == 0,
        DOCA_ERROR_INVALID_VALUE);
    return submit(__func__, task, false);
}
#endif

doca_error_t doca_task_try_submit(struct doca_task *task)
{
    FAULT();
    return submit(__func__, task, true);
}

void doca_task_free(struct doca_task *task)
{
    LIVE(task, PRIV_TASK);
    if (task->state == PRIV_TASK_IN_FLIGHT)
        priv_doca_strict(__func__, "the task is in flight");
    struct doca_ctx *ctx = task->ctx;
    ctx->taken--;
    priv_doca_task_add(ctx, task);
    if (ctx->pe != NULL)
        emu_pe_notify(ctx->pe); /* the last one lets a stopping context end */
}

doca_error_t doca_task_get_status(const struct doca_task *task)
{
    LIVE(task, PRIV_TASK);
    if (task->state == PRIV_TASK_IN_FLIGHT)
        priv_doca_strict(__func__, "the task is in flight: it has no status yet");
    return task->status;
}

void doca_task_set_user_data(struct doca_task *task, union doca_data user_data)
{
    LIVE(task, PRIV_TASK);
    task->user_data = user_data;
}

union doca_data doca_task_get_user_data(const struct doca_task *task)
{
    LIVE(task, PRIV_TASK);
    return task->user_data;
}

struct doca_ctx *doca_task_get_ctx(const struct doca_task *task)
{
    LIVE(task, PRIV_TASK);
    return task->ctx;
}
