/* The client of Comch, on the host. It starts asynchronously, and the loss of the server stops its context. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "comch.h"

struct doca_comch_client {
    enum priv_kind magic;
    struct comch_end end;
};

static struct doca_comch_client *of_end(struct comch_end *end)
{
    return CONTAINER(end, struct doca_comch_client, end);
}

static struct comch_end *end_of(struct doca_ctx *ctx)
{
    return CONTAINER(ctx, struct comch_end, ctx);
}

/* -- the context --------------------------------------------------------------------------------------------------- */

/* Connects at the first progress, which also detects a missing server. */
static doca_error_t start(struct doca_ctx *ctx)
{
    struct comch_end *end = end_of(ctx);
    doca_error_t failed = comch_end_start(end);
    NEEDS(failed == DOCA_SUCCESS, failed);
    if (comch_connection_new(end, -1, COMCH_CONNECTING) == NULL) {
        comch_end_idle(end);
        return DOCA_ERROR_INITIALIZATION;
    }
    return DOCA_ERROR_IN_PROGRESS;
}

static bool drained(struct doca_ctx *ctx)
{
    return end_of(ctx)->connections->state >= COMCH_LOST;
}

static void idle(struct doca_ctx *ctx)
{
    comch_end_idle(end_of(ctx));
}

/* If the server listens and is busy: tries again later. If there is none: fails. */
static void connect_now(struct doca_comch_connection *connection)
{
    struct comch_end *end = connection->end;
    struct sockaddr_un address;
    int folder;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool has_address = fd >= 0 && comch_address(end->dev->info.function.card, end->name, "sock", &folder, &address);
    bool connects = has_address && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    bool is_busy = has_address && !connects && (errno == EAGAIN || errno == EINTR);
    if (has_address)
        close(folder);
    if (connects) {
        connection->fd = fd;
        connection->state = COMCH_GREETING;
        if (!comch_greet(connection, COMCH_HELLO))
            comch_connection_lost(connection);
        return;
    }
    if (fd >= 0)
        close(fd);
    if (!is_busy)
        comch_connection_lost(connection);
}

static bool goes_down(struct doca_ctx *ctx)
{
    ctx->has_failed = true; /* tasks in flight are returned */
    priv_doca_ctx_becomes(ctx, DOCA_CTX_STATE_STOPPING);
    return true;
}

static bool poll_link(struct doca_ctx *ctx)
{
    struct doca_comch_connection *connection = end_of(ctx)->connections;
    struct comch_hello hello;
    if (ctx->state == DOCA_CTX_STATE_STOPPING) {
        if (connection->state == COMCH_UP)
            comch_take_in(connection); /* credits for messages still to be sent */
        if (connection->in_flight == 0)
            comch_connection_lost(connection);
        return false; /* the engine ends the context */
    }
    if (connection->state == COMCH_CONNECTING)
        connect_now(connection);
    if (connection->state == COMCH_GREETING) {
        uint32_t said = comch_greeting(connection, &hello);
        if (said == COMCH_WELCOME) {
            connection->state = COMCH_UP;
            priv_doca_ctx_becomes(ctx, DOCA_CTX_STATE_RUNNING);
            return true;
        }
        if (said != 0)
            comch_connection_lost(connection);
    }
    if (connection->state == COMCH_UP && comch_take_in(connection))
        return true;
    return connection->state == COMCH_LOST && goes_down(ctx);
}

static const struct priv_ctx_ops ops = {.start = start, .drained = drained, .idle = idle, .poll = poll_link,
    .validate = comch_validate, .submitted = comch_submitted, .attempt = comch_attempt, .finished = comch_finished,
    .complete = comch_complete, .flushed = DOCA_ERROR_CONNECTION_ABORTED, .is_ordered = true, .is_polled = true};

doca_error_t doca_comch_client_create(struct doca_dev *dev, const char *name, struct doca_comch_client **comch_client)
{
    FAULT();
    VALID(dev, PRIV_DEV);
    NEEDS(comch_client != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(!dev->info.function.on_dpu, DOCA_ERROR_INITIALIZATION);
    struct doca_comch_client *made = priv_doca_new(sizeof *made, PRIV_COMCH_CLIENT);
    NEEDS(made != NULL, DOCA_ERROR_NO_MEMORY);
    doca_error_t refused = comch_end_init(&made->end, dev, name, &ops);
    if (refused != DOCA_SUCCESS) {
        priv_doca_retire(made);
        return refused;
    }
    *comch_client = made;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_client_destroy(struct doca_comch_client *comch_client)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    NEEDS(comch_client->end.ctx.state == DOCA_CTX_STATE_IDLE, DOCA_ERROR_IN_USE);
    priv_doca_ctx_gone(&comch_client->end.ctx);
    atomic_fetch_sub(&comch_client->end.dev->users, 1);
    priv_doca_retire(comch_client);
    return DOCA_SUCCESS;
}

struct doca_ctx *doca_comch_client_as_ctx(struct doca_comch_client *comch_client)
{
    LIVE(comch_client, PRIV_COMCH_CLIENT);
    return &comch_client->end.ctx;
}

/* -- settings and events ------------------------------------------------------------------------------------------- */

static bool is_idle(const struct doca_comch_client *client)
{
    return client->end.ctx.state == DOCA_CTX_STATE_IDLE;
}

/* This emulator has no producers and consumers, so it never calls these callbacks. */
doca_error_t doca_comch_client_event_consumer_register(struct doca_comch_client *comch_client,
    doca_comch_event_consumer_cb_t new_consumer_event_cb, doca_comch_event_consumer_cb_t expired_consumer_event_cb)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    NEEDS(new_consumer_event_cb != NULL && expired_consumer_event_cb != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(is_idle(comch_client), DOCA_ERROR_BAD_STATE);
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_client_event_msg_recv_register(struct doca_comch_client *comch_client,
    doca_comch_event_msg_recv_cb_t recv_event_cb)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    NEEDS(recv_event_cb != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(is_idle(comch_client), DOCA_ERROR_BAD_STATE);
    comch_client->end.received = recv_event_cb;
    return DOCA_SUCCESS;
}

struct doca_comch_client *doca_comch_client_get_client_ctx(const struct doca_comch_connection *connection)
{
    LIVE(connection, PRIV_COMCH_CONNECTION);
    return connection->end->is_server ? NULL : of_end(connection->end);
}

doca_error_t doca_comch_client_get_connection(const struct doca_comch_client *comch_client,
    struct doca_comch_connection **connection)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    NEEDS(connection != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(comch_client->end.ctx.state == DOCA_CTX_STATE_RUNNING, DOCA_ERROR_BAD_STATE);
    *connection = comch_client->end.connections;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_client_get_device(const struct doca_comch_client *comch_client, struct doca_dev **dev)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    NEEDS(dev != NULL, DOCA_ERROR_INVALID_VALUE);
    *dev = comch_client->end.dev;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_client_get_max_msg_size(const struct doca_comch_client *comch_client, uint32_t *size)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    NEEDS(size != NULL, DOCA_ERROR_INVALID_VALUE);
    *size = comch_client->end.max_msg;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_client_get_recv_queue_size(const struct doca_comch_client *comch_client, uint32_t *size)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    NEEDS(size != NULL, DOCA_ERROR_INVALID_VALUE);
    *size = comch_client->end.recv_queue;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_client_set_max_msg_size(struct doca_comch_client *comch_client, uint32_t size)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    return comch_set_max_msg(&comch_client->end, size);
}

doca_error_t doca_comch_client_set_recv_queue_size(struct doca_comch_client *comch_client, uint32_t size)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    return comch_set_recv_queue(&comch_client->end, size);
}

doca_error_t doca_comch_client_task_send_alloc_init(struct doca_comch_client *comch_client,
    struct doca_comch_connection *peer, const void *msg, uint32_t len, struct doca_comch_task_send **task)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    return comch_alloc_send(&comch_client->end, peer, msg, len, task);
}

doca_error_t doca_comch_client_task_send_set_conf(struct doca_comch_client *comch_client,
    doca_comch_task_send_completion_cb_t task_completion_cb, doca_comch_task_send_completion_cb_t task_error_cb,
    uint32_t num_send_tasks)
{
    FAULT();
    VALID(comch_client, PRIV_COMCH_CLIENT);
    return comch_set_tasks(&comch_client->end, task_completion_cb, task_error_cb, num_send_tasks);
}
