/* libdoca_dma: copies. Every failed copy is fatal to its context, as on the card. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

enum { MAX_TASKS = 8192, MAX_COPY = 2 << 20 };

struct doca_dma_task_memcpy {
    struct doca_buf *src, *dst;
    /* as of the submission */
    struct doca_buf *from, *to;
    uint64_t from_addr;
    size_t len;
    struct doca_task task;
};

struct doca_dma {
    enum priv_kind magic;
    struct doca_dev *dev;
    doca_dma_task_memcpy_completion_cb_t completed, failed;
    uint32_t task_count;
    struct doca_dma_task_memcpy *tasks;
    struct doca_ctx ctx;
};

static struct doca_dma *of_ctx(struct doca_ctx *ctx)
{
    return CONTAINER(ctx, struct doca_dma, ctx);
}

static struct doca_dma_task_memcpy *of_task(const struct doca_task *task)
{
    return CONTAINER(task, struct doca_dma_task_memcpy, task);
}

static uint64_t max_copy(void)
{
    return priv_doca_setting("DOCA_EMULATOR_DMA_MAX", MAX_COPY, 1, UINT32_MAX);
}

/* -- the context --------------------------------------------------------------------------------------------------- */

static doca_error_t start(struct doca_ctx *ctx)
{
    struct doca_dma *dma = of_ctx(ctx);
    NEEDS(dma->completed != NULL, DOCA_ERROR_INITIALIZATION); /* doca_dma_task_memcpy_set_conf was not called */
    dma->tasks = calloc(dma->task_count, sizeof *dma->tasks);
    NEEDS(dma->tasks != NULL, DOCA_ERROR_INITIALIZATION);
    for (uint32_t i = dma->task_count; i-- > 0;)
        priv_doca_task_add(ctx, &dma->tasks[i].task);
    return DOCA_SUCCESS;
}

static void idle(struct doca_ctx *ctx)
{
    struct doca_dma *dma = of_ctx(ctx);
    priv_doca_retire(dma->tasks);
    dma->tasks = NULL;
}

/* Room behind the destination's data, where the copy is written. */
static size_t room(const struct doca_buf *dst)
{
    return (size_t)(dst->head + dst->len - (dst->data + dst->data_len));
}

static doca_error_t validate(struct doca_task *task)
{
    struct doca_dma_task_memcpy *copy = of_task(task);
    NEEDS(copy->src != NULL && copy->dst != NULL, DOCA_ERROR_INVALID_VALUE);
    LIVE(copy->src, PRIV_BUF);
    LIVE(copy->dst, PRIV_BUF);
    size_t len = copy->src->data_len;
    NEEDS(copy->src->chain == NULL && copy->dst->chain == NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(len > 0 && len <= max_copy() && len <= room(copy->dst), DOCA_ERROR_INVALID_VALUE);
    return DOCA_SUCCESS;
}

static doca_error_t submitted(struct doca_task *task)
{
    struct doca_dma_task_memcpy *copy = of_task(task);
    priv_doca_live("doca_task_submit, source", copy->src != NULL ? &copy->src->magic : NULL, PRIV_BUF);
    priv_doca_live("doca_task_submit, destination", copy->dst != NULL ? &copy->dst->magic : NULL, PRIV_BUF);
    copy->from = copy->src;
    copy->to = copy->dst;
    copy->from_addr = copy->src->data;
    copy->len = copy->src->data_len;
    copy->from->in_flight++;
    copy->to->in_flight++;
    return DOCA_SUCCESS;
}

static doca_error_t move(struct doca_dma *dma, struct doca_dma_task_memcpy *copy)
{
    bool is_list = copy->from->chain != NULL || copy->to->chain != NULL;
    bool fits = copy->len > 0 && copy->len <= max_copy() && copy->len <= room(copy->to);
    bool fails = priv_doca_copy_fails();
    NEEDS(!fails && !is_list && fits, DOCA_ERROR_IO_FAILED);
    doca_error_t refused = priv_doca_may_move(copy->from->mmap, dma->dev, false);
    NEEDS(refused == DOCA_SUCCESS, refused);
    refused = priv_doca_may_move(copy->to->mmap, dma->dev, true);
    NEEDS(refused == DOCA_SUCCESS, refused);
    doca_error_t status = priv_doca_move(copy->to->mmap, copy->to->data + copy->to->data_len, copy->from->mmap,
        copy->from_addr, copy->len);
    if (status == DOCA_SUCCESS)
        copy->to->data_len += copy->len;
    return status;
}

static enum priv_attempt attempt(struct doca_task *task, doca_error_t *status)
{
    *status = move(of_ctx(task->ctx), of_task(task));
    return *status == DOCA_SUCCESS ? PRIV_DONE : PRIV_FATAL;
}

static void finished(struct doca_task *task)
{
    of_task(task)->from->in_flight--;
    of_task(task)->to->in_flight--;
}

static void complete(struct doca_task *task)
{
    struct doca_dma *dma = of_ctx(task->ctx);
    doca_dma_task_memcpy_completion_cb_t call = task->status == DOCA_SUCCESS ? dma->completed : dma->failed;
    call(of_task(task), task->user_data, dma->ctx.user_data);
}

static const struct priv_ctx_ops ops = {.start = start, .idle = idle, .validate = validate, .submitted = submitted,
    .attempt = attempt, .finished = finished, .complete = complete, .flushed = DOCA_ERROR_IO_FAILED};

doca_error_t doca_dma_create(struct doca_dev *dev, struct doca_dma **dma)
{
    FAULT();
    VALID(dev, PRIV_DEV);
    NEEDS(dma != NULL, DOCA_ERROR_INVALID_VALUE);
    struct doca_dma *made = priv_doca_new(sizeof *made, PRIV_DMA);
    NEEDS(made != NULL, DOCA_ERROR_NO_MEMORY);
    made->dev = dev;
    atomic_fetch_add(&dev->users, 1);
    priv_doca_ctx_init(&made->ctx, &ops);
    *dma = made;
    return DOCA_SUCCESS;
}

doca_error_t doca_dma_destroy(struct doca_dma *dma)
{
    FAULT();
    LIVE(dma, PRIV_DMA);
    NEEDS(dma->ctx.state == DOCA_CTX_STATE_IDLE, DOCA_ERROR_IN_USE);
    priv_doca_ctx_gone(&dma->ctx);
    atomic_fetch_sub(&dma->dev->users, 1);
    priv_doca_retire(dma);
    return DOCA_SUCCESS;
}

struct doca_ctx *doca_dma_as_ctx(struct doca_dma *dma)
{
    LIVE(dma, PRIV_DMA);
    return &dma->ctx;
}

#if DOCA_EMULATOR_RELEASE >= 30
doca_error_t doca_dma_get_gpu_handle(struct doca_dma *dma, struct doca_gpu_dma **gpu_dma)
{
    FAULT();
    VALID(dma, PRIV_DMA);
    NEEDS(gpu_dma != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(dma->ctx.is_on_gpu && dma->ctx.state == DOCA_CTX_STATE_RUNNING, DOCA_ERROR_BAD_STATE);
    *gpu_dma = (struct doca_gpu_dma *)(void *)&dma->dev; /* only kernels could use it: opaque, never dereferenced */
    return DOCA_SUCCESS;
}
#endif

/* -- capabilities: returned as the status -------------------------------------------------------------------------- */

doca_error_t doca_dma_cap_task_memcpy_is_supported(const struct doca_devinfo *devinfo)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    return priv_doca_setting("DOCA_EMULATOR_DMA", 1, 0, 1) == 1 ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED;
}

doca_error_t doca_dma_cap_task_memcpy_get_max_buf_size(const struct doca_devinfo *devinfo, uint64_t *buf_size)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(buf_size != NULL, DOCA_ERROR_INVALID_VALUE);
    *buf_size = max_copy();
    return DOCA_SUCCESS;
}

doca_error_t doca_dma_cap_task_memcpy_get_max_buf_list_len(const struct doca_devinfo *devinfo,
    uint32_t *max_buf_list_len)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(max_buf_list_len != NULL, DOCA_ERROR_INVALID_VALUE);
    *max_buf_list_len = 1;
    return DOCA_SUCCESS;
}

doca_error_t doca_dma_cap_get_max_num_tasks(struct doca_dma *dma, uint32_t *max_num_tasks)
{
    FAULT();
    VALID(dma, PRIV_DMA);
    NEEDS(max_num_tasks != NULL, DOCA_ERROR_INVALID_VALUE);
    *max_num_tasks = MAX_TASKS;
    return DOCA_SUCCESS;
}

/* -- tasks --------------------------------------------------------------------------------------------------------- */

doca_error_t doca_dma_task_memcpy_set_conf(struct doca_dma *dma,
    doca_dma_task_memcpy_completion_cb_t task_completion_cb, doca_dma_task_memcpy_completion_cb_t task_error_cb,
    uint32_t num_memcpy_tasks)
{
    FAULT();
    VALID(dma, PRIV_DMA);
    NEEDS(task_completion_cb != NULL && task_error_cb != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(num_memcpy_tasks > 0 && num_memcpy_tasks <= MAX_TASKS, DOCA_ERROR_INVALID_VALUE);
    NEEDS(dma->ctx.state == DOCA_CTX_STATE_IDLE, DOCA_ERROR_BAD_STATE);
    dma->completed = task_completion_cb;
    dma->failed = task_error_cb;
    dma->task_count = num_memcpy_tasks;
    return DOCA_SUCCESS;
}

doca_error_t doca_dma_task_memcpy_alloc_init(struct doca_dma *dma, const struct doca_buf *src, struct doca_buf *dst,
    union doca_data user_data, struct doca_dma_task_memcpy **task)
{
    FAULT();
    LIVE(dma, PRIV_DMA);
    LIVE(src, PRIV_BUF);
    LIVE(dst, PRIV_BUF);
    NEEDS(dma->ctx.state == DOCA_CTX_STATE_RUNNING, DOCA_ERROR_BAD_STATE);
    struct doca_task *taken = priv_doca_task_take(&dma->ctx);
    NEEDS(taken != NULL, DOCA_ERROR_NO_MEMORY);
    struct doca_dma_task_memcpy *copy = of_task(taken);
    copy->src = (struct doca_buf *)src;
    copy->dst = dst;
    taken->user_data = user_data;
    *task = copy;
    return DOCA_SUCCESS;
}

static struct doca_dma_task_memcpy *alive(const char *call, const struct doca_dma_task_memcpy *task)
{
    priv_doca_live(call, task != NULL ? &task->task.magic : NULL, PRIV_TASK);
    return (struct doca_dma_task_memcpy *)task;
}

static struct doca_dma_task_memcpy *ours(const char *call, struct doca_dma_task_memcpy *task)
{
    if (alive(call, task)->task.state == PRIV_TASK_IN_FLIGHT)
        priv_doca_strict(call, "the task is in flight");
    return task;
}

struct doca_task *doca_dma_task_memcpy_as_task(struct doca_dma_task_memcpy *task)
{
    return &alive(__func__, task)->task;
}

void doca_dma_task_memcpy_set_src(struct doca_dma_task_memcpy *task, const struct doca_buf *src)
{
    LIVE(src, PRIV_BUF);
    ours(__func__, task)->src = (struct doca_buf *)src;
}

const struct doca_buf *doca_dma_task_memcpy_get_src(const struct doca_dma_task_memcpy *task)
{
    return alive(__func__, task)->src;
}

void doca_dma_task_memcpy_set_dst(struct doca_dma_task_memcpy *task, struct doca_buf *dst)
{
    LIVE(dst, PRIV_BUF);
    ours(__func__, task)->dst = dst;
}

struct doca_buf *doca_dma_task_memcpy_get_dst(const struct doca_dma_task_memcpy *task)
{
    return alive(__func__, task)->dst;
}
