#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "talk.h"

static struct talk *of_ctx(struct doca_ctx *ctx)
{
    union doca_data data;
    OK(doca_ctx_get_user_data(ctx, &data));
    return data.ptr;
}

static struct talk *of_connection(struct doca_comch_connection *connection)
{
    struct doca_comch_server *server = doca_comch_server_get_server_ctx(connection);
    struct doca_comch_client *client = doca_comch_client_get_client_ctx(connection);
    CHECK((server == NULL) != (client == NULL));
    return of_ctx(server != NULL ? doca_comch_server_as_ctx(server) : doca_comch_client_as_ctx(client));
}

static void changed(const union doca_data of, struct doca_ctx *ctx, enum doca_ctx_states previous,
    enum doca_ctx_states next)
{
    struct talk *talk = of.ptr;
    CHECK(talk == of_ctx(ctx) && previous != next);
    talk->states[talk->state_count++ % 16] = next;
}

static void sent(struct doca_comch_task_send *task, union doca_data mark, union doca_data of)
{
    (void)mark;
    struct talk *talk = of.ptr;
    talk->sent++;
    doca_task_free(doca_comch_task_send_as_task(task));
}

static void failed(struct doca_comch_task_send *task, union doca_data mark, union doca_data of)
{
    (void)mark;
    struct talk *talk = of.ptr;
    talk->errors[talk->failed++ % 64] = doca_task_get_status(doca_comch_task_send_as_task(task));
    doca_task_free(doca_comch_task_send_as_task(task));
}

static void received(struct doca_comch_event_msg_recv *event, uint8_t *buffer, uint32_t len,
    struct doca_comch_connection *connection)
{
    struct talk *talk = of_connection(connection);
    CHECK(event != NULL && len <= TALK_MAX);
    memcpy(talk->last, buffer, len);
    talk->last_len = len;
    talk->from = connection;
    talk->received++;
    if (talk->echoes) { /* a message stays in place until its callback */
        uint8_t *answer = talk->answers[talk->received % 64];
        memcpy(answer, buffer, len);
        OK(try_send(talk, connection, answer, len));
    }
}

static void connected(struct doca_comch_event_connection_status_changed *event,
    struct doca_comch_connection *connection, uint8_t change_successful)
{
    struct talk *talk = of_connection(connection);
    CHECK(event != NULL);
    if (change_successful)
        talk->connections[talk->connected++ % 64] = connection;
    else
        talk->refused++;
}

static void disconnected(struct doca_comch_event_connection_status_changed *event,
    struct doca_comch_connection *connection, uint8_t change_successful)
{
    CHECK(event != NULL && change_successful);
    of_connection(connection)->disconnected++;
}

void serve(struct talk *talk, const char *name, uint32_t queue, uint32_t tasks)
{
    *talk = (struct talk){.dev = device("dpu")};
    talk->rep = open_rep(talk->dev);
    OK(doca_pe_create(&talk->pe));
    OK(doca_comch_server_create(talk->dev, talk->rep, name, &talk->server));
    talk->ctx = doca_comch_server_as_ctx(talk->server);
    OK(doca_comch_server_set_recv_queue_size(talk->server, queue));
    OK(doca_pe_connect_ctx(talk->pe, talk->ctx));
    OK(doca_ctx_set_state_changed_cb(talk->ctx, changed));
    OK(doca_comch_server_task_send_set_conf(talk->server, sent, failed, tasks));
    OK(doca_comch_server_event_msg_recv_register(talk->server, received));
    OK(doca_comch_server_event_connection_status_changed_register(talk->server, connected, disconnected));
    OK(doca_ctx_set_user_data(talk->ctx, (union doca_data){.ptr = talk}));
    OK(doca_ctx_start(talk->ctx));
}

void call(struct talk *talk, const char *name, uint32_t queue, uint32_t tasks)
{
    *talk = (struct talk){.dev = device("host")};
    OK(doca_pe_create(&talk->pe));
    OK(doca_comch_client_create(talk->dev, name, &talk->client));
    talk->ctx = doca_comch_client_as_ctx(talk->client);
    OK(doca_pe_connect_ctx(talk->pe, talk->ctx));
    OK(doca_ctx_set_state_changed_cb(talk->ctx, changed));
    OK(doca_comch_client_set_recv_queue_size(talk->client, queue));
    OK(doca_comch_client_task_send_set_conf(talk->client, sent, failed, tasks));
    OK(doca_comch_client_event_msg_recv_register(talk->client, received));
    OK(doca_ctx_set_user_data(talk->ctx, (union doca_data){.ptr = talk}));
}

void call_and_wait(struct talk *talk, const char *name, uint32_t queue, uint32_t tasks)
{
    call(talk, name, queue, tasks);
    EXPECT(doca_ctx_start(talk->ctx), DOCA_ERROR_IN_PROGRESS);
    until(talk->pe, is_running, talk->ctx);
}

struct doca_comch_connection *peer(struct talk *talk)
{
    struct doca_comch_connection *connection;
    OK(doca_comch_client_get_connection(talk->client, &connection));
    return connection;
}

doca_error_t try_send(struct talk *talk, struct doca_comch_connection *to, const void *msg, uint32_t len)
{
    struct doca_comch_task_send *task;
    doca_error_t refused = talk->server != NULL
                               ? doca_comch_server_task_send_alloc_init(talk->server, to, msg, len, &task)
                               : doca_comch_client_task_send_alloc_init(talk->client, to, msg, len, &task);
    if (refused != DOCA_SUCCESS)
        return refused;
    refused = doca_task_submit(doca_comch_task_send_as_task(task));
    if (refused != DOCA_SUCCESS)
        doca_task_free(doca_comch_task_send_as_task(task));
    return refused;
}

void hang_up(struct talk *talk)
{
    if (!is_idle(talk->ctx))
        (void)doca_ctx_stop(talk->ctx);
    until(talk->pe, is_idle, talk->ctx);
    if (talk->server != NULL) {
        OK(doca_comch_server_destroy(talk->server));
        OK(doca_dev_rep_close(talk->rep));
    } else {
        OK(doca_comch_client_destroy(talk->client));
    }
    OK(doca_pe_destroy(talk->pe));
    OK(doca_dev_close(talk->dev));
}

void both_until(struct talk *one, struct talk *other, bool (*claim)(void *of), void *of)
{
    for (uint64_t end = now_ms() + 10000; !claim(of);) {
        CHECK(now_ms() < end);
        if ((doca_pe_progress(one->pe) | doca_pe_progress(other->pe)) == 0)
            usleep(50);
    }
}
