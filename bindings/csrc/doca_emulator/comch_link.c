/* One link of Comch: a SEQPACKET socket, credits for the receive queue, and the handling of a lost peer. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "comch.h"

/* The folder's own path may exceed the length of a socket address. */
bool comch_address(uint32_t card, const char *name, const char *suffix, int *folder, struct sockaddr_un *address)
{
    uint64_t hash = 0xcbf29ce484222325U ^ card; /* FNV-1a; the greeting contains the name itself */
    for (const char *at = name; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * 0x100000001b3U;
    *folder = priv_doca_folder();
    if (*folder < 0)
        return false;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/comch-%u-%016llx.%s", *folder, card,
        (unsigned long long)hash, suffix);
    return true;
}

struct doca_comch_connection *comch_connection_new(struct comch_end *end, int fd, enum comch_link_state state)
{
    struct doca_comch_connection *made = priv_doca_new(sizeof *made, PRIV_COMCH_CONNECTION);
    if (made == NULL)
        return NULL;
    made->end = end;
    made->fd = fd;
    made->state = state;
    made->next = end->connections;
    end->connections = made;
    return made;
}

void comch_connection_lost(struct doca_comch_connection *connection)
{
    if (connection->fd >= 0)
        close(connection->fd);
    connection->fd = -1;
    if (connection->state != COMCH_GONE)
        connection->state = COMCH_LOST;
}

void comch_connection_free(struct doca_comch_connection *connection)
{
    struct comch_end *end = connection->end;
    comch_connection_lost(connection);
    struct doca_comch_connection **at = &end->connections;
    while (*at != connection)
        at = &(*at)->next;
    *at = connection->next;
    for (uint32_t i = 0; end->tasks != NULL && i < end->task_count; i++)
        if (end->tasks[i].peer == connection)
            end->tasks[i].peer = NULL;
    priv_doca_retire(connection);
}

/* -- frames -------------------------------------------------------------------------------------------------------- */

/* 1: sent. 0: no room now. -1: the link is lost, and marked so. */
static int put(struct doca_comch_connection *connection, const struct comch_frame *frame, size_t frame_len,
    const void *msg, size_t len)
{
    struct iovec parts[] = {{(void *)(uintptr_t)frame, frame_len}, {(void *)(uintptr_t)msg, len}};
    struct msghdr packet = {.msg_iov = parts, .msg_iovlen = len > 0 ? 2 : 1};
    if (connection->fd < 0)
        return -1;
    if (sendmsg(connection->fd, &packet, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return 1;
    if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS)
        return 0;
    /* The peer receives no more, but its earlier frames are still to be read. */
    return -1;
}

/* Bytes of the next packet; 0: none now. Marks a lost link. */
static size_t get(struct doca_comch_connection *connection, struct comch_frame *frame, size_t frame_len, void *msg,
    size_t len)
{
    struct iovec parts[] = {{frame, frame_len}, {msg, len}};
    struct msghdr packet = {.msg_iov = parts, .msg_iovlen = len > 0 ? 2 : 1};
    if (connection->fd < 0)
        return 0;
    ssize_t got = recvmsg(connection->fd, &packet, MSG_DONTWAIT);
    if (got < 0 && errno == ECONNRESET) /* reported once, if the peer left packets unread; its own follow */
        got = recvmsg(connection->fd, &packet, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    bool is_whole = got >= (ssize_t)sizeof *frame && (packet.msg_flags & MSG_TRUNC) == 0;
    if (!is_whole) {
        comch_connection_lost(connection);
        return 0;
    }
    return (size_t)got;
}

bool comch_greet(struct doca_comch_connection *connection, enum comch_frame_type type)
{
    const struct comch_end *end = connection->end;
    struct comch_hello hello = {.frame = {type, 0}, .version = COMCH_VERSION, .card = end->dev->info.function.card,
        .max_msg = end->max_msg, .recv_queue = end->recv_queue};
    memcpy(hello.name, end->name, sizeof hello.name);
    return put(connection, &hello.frame, sizeof hello, NULL, 0) == 1;
}

uint32_t comch_greeting(struct doca_comch_connection *connection, struct comch_hello *hello)
{
    size_t got = get(connection, &hello->frame, sizeof *hello, NULL, 0);
    if (got == 0)
        return 0;
    const struct comch_end *end = connection->end;
    bool is_valid = got == sizeof *hello && hello->version == COMCH_VERSION && hello->max_msg > 0 &&
                    hello->card == end->dev->info.function.card && memcmp(hello->name, end->name, COMCH_NAME) == 0;
    if (!is_valid) {
        comch_connection_lost(connection);
        return 0;
    }
    connection->peer_max_msg = hello->max_msg;
    connection->credits = hello->recv_queue;
    return hello->frame.type;
}

/* -- messages ------------------------------------------------------------------------------------------------------ */

static void count(struct doca_comch_connection *connection, enum doca_comch_counter messages, uint32_t len)
{
    connection->counted[messages]++;
    connection->counted[messages + 1] += len; /* the bytes follow their messages in both directions */
    if (priv_doca_link_is_cut())
        comch_connection_lost(connection);
}

static void hand_over(struct doca_comch_connection *connection, uint32_t len)
{
    struct comch_end *end = connection->end;
    struct doca_comch_event_msg_recv event = {end};
    connection->owed++;
    count(connection, DOCA_COMCH_COUNTER_RECV_MESSAGES, len);
    priv_doca_callback(true);
    end->received(&event, end->buffer, len, connection);
    priv_doca_callback(false);
    if (end->buffer != NULL)
        memset(end->buffer, 0xdd, end->max_msg); /* exposes callers that kept the pointer instead of the bytes */
}

static void pay(struct doca_comch_connection *connection)
{
    struct comch_frame credit = {COMCH_CREDIT, connection->owed};
    if (connection->owed > 0 && put(connection, &credit, sizeof credit, NULL, 0) == 1)
        connection->owed = 0;
}

bool comch_take_in(struct doca_comch_connection *connection)
{
    struct comch_end *end = connection->end;
    struct comch_frame frame;
    for (size_t got; pay(connection), (got = get(connection, &frame, sizeof frame, end->buffer, end->max_msg)) > 0;) {
        if (frame.type == COMCH_CREDIT && got == sizeof frame) {
            connection->credits += frame.len;
        } else if (frame.type == COMCH_MESSAGE && got == sizeof frame + frame.len && frame.len > 0) {
            if (end->ctx.state != DOCA_CTX_STATE_RUNNING)
                continue; /* a stopping end drops messages */
            hand_over(connection, frame.len);
            return true;
        } else {
            comch_connection_lost(connection);
        }
    }
    return false;
}

/* -- send tasks ---------------------------------------------------------------------------------------------------- */

static struct doca_comch_task_send *of_task(struct doca_task *task)
{
    return CONTAINER(task, struct doca_comch_task_send, task);
}

static struct comch_end *of_ctx(struct doca_ctx *ctx)
{
    return CONTAINER(ctx, struct comch_end, ctx);
}

doca_error_t comch_validate(struct doca_task *task)
{
    struct doca_comch_task_send *send = of_task(task);
    return send->msg != NULL && send->len > 0 ? DOCA_SUCCESS : DOCA_ERROR_INVALID_VALUE;
}

doca_error_t comch_submitted(struct doca_task *task)
{
    struct doca_comch_connection *peer = of_task(task)->peer;
    NEEDS(peer != NULL && peer->state == COMCH_UP, DOCA_ERROR_NOT_CONNECTED);
    peer->in_flight++;
    return DOCA_SUCCESS;
}

enum priv_attempt comch_attempt(struct doca_task *task, doca_error_t *status)
{
    struct doca_comch_task_send *send = of_task(task);
    struct doca_comch_connection *peer = send->peer;
    bool is_server = peer->end->is_server, is_stopping = task->ctx->state == DOCA_CTX_STATE_STOPPING;
    if (peer->state != COMCH_UP) {
        *status = DOCA_ERROR_CONNECTION_RESET;
        return is_server ? PRIV_DONE : PRIV_FATAL; /* a server has other clients */
    }
    if (peer->waiting != NULL && peer->waiting != task)
        return PRIV_LATER;
    struct comch_frame frame = {COMCH_MESSAGE, send->len};
    int sent = peer->credits > 0 && !peer->gave_up ? put(peer, &frame, sizeof frame, send->msg, send->len) : 0;
    if (sent == 0 && !is_stopping) {
        peer->waiting = task;
        return PRIV_LATER;
    }
    peer->waiting = NULL;
    if (sent < 1) { /* broken; or stopping, and the peer may never make room */
        peer->gave_up = true;
        *status = sent < 0 ? DOCA_ERROR_CONNECTION_RESET : DOCA_ERROR_CONNECTION_ABORTED;
        return PRIV_DONE; /* the context detects the loss when the last packet is read */
    }
    peer->credits--;
    count(peer, DOCA_COMCH_COUNTER_SENT_MESSAGES, send->len);
    return PRIV_DONE;
}

void comch_finished(struct doca_task *task)
{
    struct doca_comch_connection *peer = of_task(task)->peer;
    peer->in_flight--;
    if (peer->waiting == task)
        peer->waiting = NULL;
}

void comch_complete(struct doca_task *task)
{
    struct comch_end *end = of_ctx(task->ctx);
    doca_comch_task_send_completion_cb_t call = task->status == DOCA_SUCCESS ? end->sent : end->failed;
    call(of_task(task), task->user_data, end->ctx.user_data);
}

doca_error_t comch_alloc_send(struct comch_end *end, struct doca_comch_connection *peer, const void *msg, uint32_t len,
    struct doca_comch_task_send **task)
{
    VALID(peer, PRIV_COMCH_CONNECTION);
    NEEDS(task != NULL && msg != NULL && len > 0, DOCA_ERROR_INVALID_VALUE);
    NEEDS(end->ctx.state == DOCA_CTX_STATE_RUNNING, DOCA_ERROR_BAD_STATE);
    NEEDS(peer->end == end && len <= end->max_msg && len <= peer->peer_max_msg, DOCA_ERROR_INVALID_VALUE);
    struct doca_task *taken = priv_doca_task_take(&end->ctx);
    NEEDS(taken != NULL, DOCA_ERROR_NO_MEMORY);
    struct doca_comch_task_send *send = of_task(taken);
    send->peer = peer;
    send->msg = msg;
    send->len = len;
    *task = send;
    return DOCA_SUCCESS;
}

struct doca_task *doca_comch_task_send_as_task(struct doca_comch_task_send *task)
{
    priv_doca_live(__func__, task != NULL ? &task->task.magic : NULL, PRIV_TASK);
    return &task->task;
}
