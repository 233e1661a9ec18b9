/* The server of Comch: one per card and name, on the DPU, with many clients. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "comch.h"

struct doca_comch_server {
    enum priv_kind magic;
    struct doca_dev_rep *rep;
    doca_comch_event_connection_status_changed_cb_t connected, disconnected;
    int listener, lock;
    struct comch_end end;
};

static struct doca_comch_server *of_end(struct comch_end *end)
{
    return CONTAINER(end, struct doca_comch_server, end);
}

static struct doca_comch_server *of_ctx(struct doca_ctx *ctx)
{
    return of_end(CONTAINER(ctx, struct comch_end, ctx));
}

/* -- the socket ---------------------------------------------------------------------------------------------------- */

/* The lock reserves the name: a socket alone remains when its server dies. */
static bool listen_at(struct doca_comch_server *server)
{
    struct sockaddr_un address, lock;
    uint32_t card = server->end.dev->info.function.card;
    int folder, folder_too;
    if (!comch_address(card, server->end.name, "lock", &folder, &lock))
        return false;
    server->lock = open(lock.sun_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    close(folder);
    if (server->lock < 0 || flock(server->lock, LOCK_EX | LOCK_NB) != 0 ||
        !comch_address(card, server->end.name, "sock", &folder_too, &address))
        return false;
    unlink(address.sun_path);
    server->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool listens = server->listener >= 0 &&
                   bind(server->listener, (const struct sockaddr *)&address, sizeof address) == 0 &&
                   listen(server->listener, (int)comch_cap_clients()) == 0;
    close(folder_too);
    return listens;
}

static void close_listener(struct doca_comch_server *server)
{
    struct sockaddr_un address;
    int folder;
    if (server->listener >= 0) {
        if (comch_address(server->end.dev->info.function.card, server->end.name, "sock", &folder, &address)) {
            unlink(address.sun_path);
            close(folder);
        }
        close(server->listener);
    }
    if (server->lock >= 0)
        close(server->lock);
    server->listener = server->lock = -1;
}

static void accept_one(struct doca_comch_server *server)
{
    int fd = server->listener >= 0 ? accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (fd < 0)
        return;
    bool is_same_user = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
    if (!is_same_user || comch_connection_new(&server->end, fd, COMCH_GREETING) == NULL)
        close(fd);
}

/* -- the context --------------------------------------------------------------------------------------------------- */

static doca_error_t start(struct doca_ctx *ctx)
{
    struct doca_comch_server *server = of_ctx(ctx);
    NEEDS(server->connected != NULL, DOCA_ERROR_INITIALIZATION);
    doca_error_t failed = comch_end_start(&server->end);
    NEEDS(failed == DOCA_SUCCESS, failed);
    if (!listen_at(server)) {
        close_listener(server);
        comch_end_idle(&server->end);
        return DOCA_ERROR_INITIALIZATION;
    }
    return DOCA_SUCCESS;
}

static void stop(struct doca_ctx *ctx)
{
    close_listener(of_ctx(ctx));
}

static bool drained(struct doca_ctx *ctx)
{
    return of_ctx(ctx)->end.connections == NULL;
}

static void idle(struct doca_ctx *ctx)
{
    close_listener(of_ctx(ctx));
    comch_end_idle(&of_ctx(ctx)->end);
}

static void say(struct doca_comch_server *server, doca_comch_event_connection_status_changed_cb_t call,
    struct doca_comch_connection *connection, bool is_successful)
{
    struct doca_comch_event_connection_status_changed event = {&server->end};
    priv_doca_callback(true);
    call(&event, connection, is_successful);
    priv_doca_callback(false);
}

static bool greet(struct doca_comch_server *server, struct doca_comch_connection *connection)
{
    struct comch_hello hello;
    if (comch_greeting(connection, &hello) != COMCH_HELLO)
        return false;
    uint32_t others = 0;
    for (const struct doca_comch_connection *one = server->end.connections; one != NULL; one = one->next)
        others += one->state == COMCH_UP;
    bool has_room = others < comch_cap_clients();
    if (!comch_greet(connection, has_room ? COMCH_WELCOME : COMCH_REFUSED) || !has_room) {
        comch_connection_lost(connection);
        say(server, server->connected, connection, false);
        return true;
    }
    connection->state = COMCH_UP;
    connection->was_up = true;
    say(server, server->connected, connection, true);
    return true;
}

/* One event of this connection, which may be freed afterwards. */
static bool poll_one(struct doca_comch_server *server, struct doca_comch_connection *connection)
{
    bool is_stopping = server->end.ctx.state == DOCA_CTX_STATE_STOPPING;
    if (connection->state == COMCH_GREETING && !is_stopping)
        return greet(server, connection);
    if (connection->state == COMCH_UP && comch_take_in(connection))
        return true;
    if (is_stopping && connection->in_flight == 0)
        comch_connection_lost(connection);
    if (connection->state != COMCH_LOST || connection->in_flight > 0)
        return false;
    connection->state = COMCH_GONE;
    if (connection->was_up)
        say(server, server->disconnected, connection, true);
    comch_connection_free(connection);
    return true;
}

/* Moves the connection that was served to the end. */
static void rotate(struct comch_end *end, struct doca_comch_connection *served)
{
    struct doca_comch_connection **at = &end->connections;
    while (*at != NULL && *at != served)
        at = &(*at)->next;
    if (*at == NULL)
        return;
    *at = served->next;
    while (*at != NULL)
        at = &(*at)->next;
    *at = served;
    served->next = NULL;
}

static bool poll_all(struct doca_ctx *ctx)
{
    struct doca_comch_server *server = of_ctx(ctx);
    accept_one(server);
    for (struct doca_comch_connection *one = server->end.connections, *next; one != NULL; one = next) {
        next = one->next;
        if (poll_one(server, one)) {
            rotate(&server->end, one);
            return true;
        }
    }
    return false;
}

static const struct priv_ctx_ops ops = {.start = start, .stop = stop, .drained = drained, .idle = idle,
    .poll = poll_all, .validate = comch_validate, .submitted = comch_submitted, .attempt = comch_attempt,
    .finished = comch_finished, .complete = comch_complete, .flushed = DOCA_ERROR_CONNECTION_ABORTED,
    .is_ordered = true, .is_polled = true};

doca_error_t doca_comch_server_create(struct doca_dev *dev, struct doca_dev_rep *repr, const char *name,
    struct doca_comch_server **comch_server)
{
    FAULT();
    VALID(dev, PRIV_DEV);
    VALID(repr, PRIV_DEV_REP);
    NEEDS(comch_server != NULL && repr->info.dev == dev, DOCA_ERROR_INVALID_VALUE);
    struct doca_comch_server *made = priv_doca_new(sizeof *made, PRIV_COMCH_SERVER);
    NEEDS(made != NULL, DOCA_ERROR_NO_MEMORY);
    doca_error_t refused = comch_end_init(&made->end, dev, name, &ops);
    if (refused != DOCA_SUCCESS) {
        priv_doca_retire(made);
        return refused;
    }
    made->end.is_server = true;
    made->rep = repr;
    made->listener = made->lock = -1;
    atomic_fetch_add(&repr->users, 1);
    *comch_server = made;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_server_destroy(struct doca_comch_server *comch_server)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    NEEDS(comch_server->end.ctx.state == DOCA_CTX_STATE_IDLE, DOCA_ERROR_IN_USE);
    priv_doca_ctx_gone(&comch_server->end.ctx);
    atomic_fetch_sub(&comch_server->end.dev->users, 1);
    atomic_fetch_sub(&comch_server->rep->users, 1);
    priv_doca_retire(comch_server);
    return DOCA_SUCCESS;
}

struct doca_ctx *doca_comch_server_as_ctx(struct doca_comch_server *comch_server)
{
    LIVE(comch_server, PRIV_COMCH_SERVER);
    return &comch_server->end.ctx;
}

/* Fails what is in flight to this client; then the disconnect event follows, as when the client leaves. */
doca_error_t doca_comch_server_disconnect(struct doca_comch_server *comch_server,
    struct doca_comch_connection *connection)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    VALID(connection, PRIV_COMCH_CONNECTION);
    NEEDS(connection->end == &comch_server->end && connection->state == COMCH_UP, DOCA_ERROR_INVALID_VALUE);
    comch_connection_lost(connection);
    return DOCA_SUCCESS;
}

/* -- settings and events ------------------------------------------------------------------------------------------- */

static bool is_idle(const struct doca_comch_server *server)
{
    return server->end.ctx.state == DOCA_CTX_STATE_IDLE;
}

doca_error_t doca_comch_server_event_connection_status_changed_register(struct doca_comch_server *comch_server,
    doca_comch_event_connection_status_changed_cb_t connect_event_cb,
    doca_comch_event_connection_status_changed_cb_t disconnect_event_cb)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    NEEDS(connect_event_cb != NULL && disconnect_event_cb != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(is_idle(comch_server), DOCA_ERROR_BAD_STATE);
    comch_server->connected = connect_event_cb;
    comch_server->disconnected = disconnect_event_cb;
    return DOCA_SUCCESS;
}

/* This emulator has no producers and consumers, so it never calls these callbacks. */
doca_error_t doca_comch_server_event_consumer_register(struct doca_comch_server *comch_server,
    doca_comch_event_consumer_cb_t new_consumer_event_cb, doca_comch_event_consumer_cb_t expired_consumer_event_cb)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    NEEDS(new_consumer_event_cb != NULL && expired_consumer_event_cb != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(is_idle(comch_server), DOCA_ERROR_BAD_STATE);
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_server_event_msg_recv_register(struct doca_comch_server *comch_server,
    doca_comch_event_msg_recv_cb_t recv_event_cb)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    NEEDS(recv_event_cb != NULL, DOCA_ERROR_INVALID_VALUE);
    NEEDS(is_idle(comch_server), DOCA_ERROR_BAD_STATE);
    comch_server->end.received = recv_event_cb;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_server_get_device(const struct doca_comch_server *comch_server, struct doca_dev **dev)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    NEEDS(dev != NULL, DOCA_ERROR_INVALID_VALUE);
    *dev = comch_server->end.dev;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_server_get_device_rep(const struct doca_comch_server *comch_server, struct doca_dev_rep **rep)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    NEEDS(rep != NULL, DOCA_ERROR_INVALID_VALUE);
    *rep = comch_server->rep;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_server_get_max_msg_size(const struct doca_comch_server *comch_server, uint32_t *size)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    NEEDS(size != NULL, DOCA_ERROR_INVALID_VALUE);
    *size = comch_server->end.max_msg;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_server_get_recv_queue_size(const struct doca_comch_server *comch_server, uint32_t *size)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    NEEDS(size != NULL, DOCA_ERROR_INVALID_VALUE);
    *size = comch_server->end.recv_queue;
    return DOCA_SUCCESS;
}

struct doca_comch_server *doca_comch_server_get_server_ctx(const struct doca_comch_connection *connection)
{
    LIVE(connection, PRIV_COMCH_CONNECTION);
    return connection->end->is_server ? of_end(connection->end) : NULL;
}

doca_error_t doca_comch_server_set_max_msg_size(struct doca_comch_server *comch_server, uint32_t size)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    return comch_set_max_msg(&comch_server->end, size);
}

doca_error_t doca_comch_server_set_recv_queue_size(struct doca_comch_server *comch_server, uint32_t size)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    return comch_set_recv_queue(&comch_server->end, size);
}

doca_error_t doca_comch_server_task_send_alloc_init(struct doca_comch_server *comch_server,
    struct doca_comch_connection *peer, const void *msg, uint32_t len, struct doca_comch_task_send **task)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    return comch_alloc_send(&comch_server->end, peer, msg, len, task);
}

doca_error_t doca_comch_server_task_send_set_conf(struct doca_comch_server *comch_server,
    doca_comch_task_send_completion_cb_t task_completion_cb, doca_comch_task_send_completion_cb_t task_error_cb,
    uint32_t num_send_tasks)
{
    FAULT();
    VALID(comch_server, PRIV_COMCH_SERVER);
    return comch_set_tasks(&comch_server->end, task_completion_cb, task_error_cb, num_send_tasks);
}
