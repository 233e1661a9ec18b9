/* Comch between processes: both directions, many clients, and the death of either side. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "talk.h"

enum { MESSAGES = 200, CLIENTS = 4 };

static bool one_received(void *of)
{
    return ((struct talk *)of)->received >= 1;
}

static bool one_disconnected(void *of)
{
    return ((struct talk *)of)->disconnected >= 1;
}

static void client_that_asks(int fd)
{
    struct talk talk;
    char id, message[TALK_MAX];
    hear(fd, &id, 1);
    call_and_wait(&talk, "echo", 10, 32);
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint32_t len = 8 + i * 20 % (4080 - 8);
        memset(message, id + (char)i, len);
        snprintf(message, sizeof message, "%d/%u", id, i);
        talk.received = 0;
        OK(try_send(&talk, peer(&talk), message, len));
        until(talk.pe, one_received, &talk);
        CHECK(talk.last_len == len && memcmp(talk.last, message, len) == 0);
    }
    uint64_t count;
    OK(doca_comch_connection_get_counter(peer(&talk), DOCA_COMCH_COUNTER_SENT_MESSAGES, &count));
    CHECK(count == 0); /* not requested yet */
    OK(doca_comch_connection_update_info(peer(&talk)));
    OK(doca_comch_connection_get_counter(peer(&talk), DOCA_COMCH_COUNTER_SENT_MESSAGES, &count));
    CHECK(count == MESSAGES);
    OK(doca_comch_connection_get_counter(peer(&talk), DOCA_COMCH_COUNTER_RECV_MESSAGES, &count));
    CHECK(count == MESSAGES);
    hang_up(&talk);
}

static bool all_gone(void *of)
{
    return ((struct talk *)of)->disconnected == CLIENTS;
}

static void messages_go_both_ways_between_processes_with_several_clients(void)
{
    struct child clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = begin(client_that_asks);
    struct talk talk;
    serve(&talk, "echo", 10, 64);
    talk.echoes = true;
    for (char i = 0; i < CLIENTS; i++)
        tell(clients[(int)i].fd, &i, 1);
    until(talk.pe, all_gone, &talk);
    CHECK(talk.connected == CLIENTS && talk.received == CLIENTS * MESSAGES && talk.sent == CLIENTS * MESSAGES);
    CHECK(talk.failed == 0);
    for (int i = 0; i < CLIENTS; i++)
        joined(clients[i]);
    hang_up(&talk);
}

enum { STREAM = 20000, WINDOW = 256 };

static void client_that_streams(int fd)
{
    struct talk talk;
    static uint32_t messages[WINDOW][1000];
    char word;
    hear(fd, &word, 1);
    call_and_wait(&talk, "stream", 10, WINDOW);
    for (uint32_t i = 0; i < STREAM;) {
        /* Large and small in turn. A place is free again once its message was sent, and they are sent in order. */
        bool has_room = i < talk.sent + WINDOW;
        if (has_room)
            messages[i % WINDOW][0] = i;
        if (has_room && try_send(&talk, peer(&talk), messages[i % WINDOW], i % 2 ? 4 : 4000) == DOCA_SUCCESS)
            i++;
        else
            (void)doca_pe_progress(talk.pe);
    }
    EXPECT(doca_ctx_stop(talk.ctx), DOCA_ERROR_IN_PROGRESS);
    while (talk.sent + talk.failed < STREAM)
        (void)doca_pe_progress(talk.pe);
    hang_up(&talk);
}

static void a_stream_keeps_its_order_whatever_the_sizes(void)
{
    struct child client = begin(client_that_streams);
    struct talk talk;
    uint32_t at;
    serve(&talk, "stream", 1024, 8);
    tell(client.fd, "", 1);
    for (size_t seen = 0; talk.disconnected == 0;) {
        (void)doca_pe_progress(talk.pe);
        if (talk.received > seen) {
            memcpy(&at, talk.last, sizeof at);
            CHECK(talk.received == seen + 1 && at == seen);
            seen++;
        }
    }
    CHECK(talk.received > STREAM - WINDOW); /* what could not be sent at the stop has failed */
    joined(client);
    hang_up(&talk);
}

static void client_that_waits(int fd)
{
    struct talk talk;
    char word;
    hear(fd, &word, 1);
    call_and_wait(&talk, "fate", 2, 4);
    OK(try_send(&talk, peer(&talk), "here", 4));
    tell(fd, "", 1);
    until(talk.pe, one_received, &talk); /* nothing arrives */
}

static void a_dead_client_is_a_disconnect_event_and_fails_what_was_meant_for_it(void)
{
    struct child client = begin(client_that_waits);
    struct talk talk;
    char word;
    serve(&talk, "fate", 10, 8);
    tell(client.fd, "", 1);
    until(talk.pe, one_received, &talk);
    hear(client.fd, &word, 1);
    kill(client.pid, SIGSTOP);
    /* Two fit its queue; it receives none of them. */
    for (int i = 0; i < 5; i++)
        OK(try_send(&talk, talk.from, "more", 4));
    for (int i = 0; i < 1000; i++)
        (void)doca_pe_progress(talk.pe);
    CHECK(talk.sent == 2 && talk.failed == 0);
    killed(client);
    until(talk.pe, one_disconnected, &talk);
    CHECK(talk.sent == 2 && talk.failed == 3);
    for (int i = 0; i < 3; i++)
        CHECK(talk.errors[i] == DOCA_ERROR_CONNECTION_RESET);
    CHECK(is_running(talk.ctx)); /* a server has other clients */
    hang_up(&talk);
}

static void server_that_waits(int fd)
{
    struct talk talk;
    serve(&talk, "mortal", 2, 8);
    tell(fd, "", 1);
    until(talk.pe, one_received, &talk);
    tell(fd, "", 1);
    until(talk.pe, one_disconnected, &talk);
}

static void a_dead_server_takes_the_clients_context_down(void)
{
    struct child server = begin(server_that_waits);
    struct talk talk;
    char word;
    hear(server.fd, &word, 1);
    call_and_wait(&talk, "mortal", 10, 8);
    OK(try_send(&talk, peer(&talk), "here", 4));
    CHECK(doca_pe_progress(talk.pe) == 1);
    hear(server.fd, &word, 1);
    killed(server);
    struct doca_comch_task_send *kept;
    OK(doca_comch_client_task_send_alloc_init(talk.client, peer(&talk), "late", 4, &kept));
    for (uint64_t end = now_ms() + 10000; is_running(talk.ctx);) {
        CHECK(now_ms() < end);
        (void)doca_pe_progress(talk.pe);
    }
    CHECK(state(talk.ctx) == DOCA_CTX_STATE_STOPPING);
    struct doca_comch_connection *connection;
    EXPECT(doca_comch_client_get_connection(talk.client, &connection), DOCA_ERROR_BAD_STATE);
    CHECK(doca_pe_progress(talk.pe) == 0); /* a task is in use */
    doca_task_free(doca_comch_task_send_as_task(kept));
    until(talk.pe, is_idle, talk.ctx);

    /* The name is free again, and the client may restart. */
    struct talk again;
    serve(&again, "mortal", 2, 8);
    EXPECT(doca_ctx_start(talk.ctx), DOCA_ERROR_IN_PROGRESS);
    both_until(&again, &talk, is_running, talk.ctx);
    hang_up(&talk);
    until(again.pe, one_disconnected, &again);
    hang_up(&again);
}

const struct test comch_tests[] = {
    {"messages_go_both_ways_between_processes_with_several_clients",
        messages_go_both_ways_between_processes_with_several_clients},
    {"a_stream_keeps_its_order_whatever_the_sizes", a_stream_keeps_its_order_whatever_the_sizes},
    {"a_dead_client_is_a_disconnect_event_and_fails_what_was_meant_for_it",
        a_dead_client_is_a_disconnect_event_and_fails_what_was_meant_for_it},
    {"a_dead_server_takes_the_clients_context_down", a_dead_server_takes_the_clients_context_down},
    {NULL, NULL},
};
