/* Comch: common part of server and client. Private to libdoca_comch. */
#ifndef OFFPATH_DOCA_EMULATOR_COMCH_H
#define OFFPATH_DOCA_EMULATOR_COMCH_H

#include "internal.h"

enum {
    COMCH_NAME = 120, /* including the NUL */
    COMCH_MAX_MSG = 4080,
    COMCH_MAX_TASKS = 8192,
    COMCH_MAX_QUEUE = 8192,
    COMCH_MAX_CLIENTS = 64,
    COMCH_QUEUE = 10,
    COMCH_VERSION = 1,
};

/* One frame per packet on the socket. MESSAGE is followed by its bytes, the two greetings by a struct comch_hello. */
enum comch_frame_type { COMCH_HELLO = 1, COMCH_WELCOME, COMCH_REFUSED, COMCH_MESSAGE, COMCH_CREDIT };

struct comch_frame {
    uint32_t type, len; /* of CREDIT: how many more messages the peer may send */
};

struct comch_hello {
    struct comch_frame frame;
    uint32_t version, card, max_msg, recv_queue;
    char name[COMCH_NAME];
};

/* CONNECTING: the server has not accepted the client. LOST: no more bytes arrive; the end is not reported yet. */
enum comch_link_state { COMCH_CONNECTING, COMCH_GREETING, COMCH_UP, COMCH_LOST, COMCH_GONE };

struct comch_end;

struct doca_comch_connection {
    enum priv_kind magic;
    enum comch_link_state state;
    bool was_up;
    bool gave_up; /* at a stop one message found no room: those behind it are not sent */
    int fd;
    struct comch_end *end;
    struct doca_comch_connection *next;
    uint32_t peer_max_msg;
    uint32_t credits; /* messages the peer has room for */
    uint32_t owed;    /* messages received whose credits were not returned */
    size_t in_flight;
    struct doca_task *waiting; /* the first that found no room: later ones wait behind it */
    uint64_t counted[5], shown[5]; /* by enum doca_comch_counter; shown: as of the last update */
    union doca_data user_data;
};

struct doca_comch_task_send {
    struct doca_comch_connection *peer; /* NULL: closed */
    const void *msg;
    uint32_t len;
    struct doca_task task;
};

struct doca_comch_event_msg_recv {
    struct comch_end *end;
};
struct doca_comch_event_connection_status_changed {
    struct comch_end *end;
};

struct comch_end {
    bool is_server;
    struct doca_dev *dev;
    char name[COMCH_NAME];
    uint32_t max_msg, recv_queue;
    doca_comch_task_send_completion_cb_t sent, failed;
    uint32_t task_count;
    struct doca_comch_task_send *tasks;
    doca_comch_event_msg_recv_cb_t received;
    uint8_t *buffer;
    struct doca_comch_connection *connections; /* a client has at most one */
    struct doca_ctx ctx;
};

uint32_t comch_cap_max_msg(void);
uint32_t comch_cap_clients(void);

doca_error_t comch_end_init(struct comch_end *end, struct doca_dev *dev, const char *name,
    const struct priv_ctx_ops *ops);
doca_error_t comch_end_start(struct comch_end *end);
void comch_end_idle(struct comch_end *end);
doca_error_t comch_set_max_msg(struct comch_end *end, uint32_t size);
doca_error_t comch_set_recv_queue(struct comch_end *end, uint32_t size);
doca_error_t comch_set_tasks(struct comch_end *end, doca_comch_task_send_completion_cb_t sent,
    doca_comch_task_send_completion_cb_t failed, uint32_t count);
doca_error_t comch_alloc_send(struct comch_end *end, struct doca_comch_connection *peer, const void *msg, uint32_t len,
    struct doca_comch_task_send **task);

/* Members of struct priv_ctx_ops. */
doca_error_t comch_validate(struct doca_task *task);
doca_error_t comch_submitted(struct doca_task *task);
enum priv_attempt comch_attempt(struct doca_task *task, doca_error_t *status);
void comch_finished(struct doca_task *task);
void comch_complete(struct doca_task *task);

/* Address of the socket, by the folder's descriptor, so that the folder's path length does not count. False: no folder.
 * */
struct sockaddr_un;
bool comch_address(uint32_t card, const char *name, const char *suffix, int *folder, struct sockaddr_un *address);
struct doca_comch_connection *comch_connection_new(struct comch_end *end, int fd, enum comch_link_state state);
void comch_connection_lost(struct doca_comch_connection *connection); /* no more bytes; the object stays */
void comch_connection_free(struct doca_comch_connection *connection);
bool comch_greet(struct doca_comch_connection *connection, enum comch_frame_type type);
/* The type of the peer's greeting, or 0 if none was received; marks a lost link. */
uint32_t comch_greeting(struct doca_comch_connection *connection, struct comch_hello *hello);
/* Processes received frames: passes at most one message to the callback, then returns true. */
bool comch_take_in(struct doca_comch_connection *connection);

#endif
