/* Comch in one process with both sides: call order, limits, backpressure, and which side ends what. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "talk.h"

static bool one_connected(void *of)
{
    return ((struct talk *)of)->connected >= 1;
}

static bool one_disconnected(void *of)
{
    return ((struct talk *)of)->disconnected >= 1;
}

static bool one_refused(void *of)
{
    return ((struct talk *)of)->refused >= 1;
}

static void ends(struct talk *server, struct talk *client, const char *name, uint32_t queue)
{
    serve(server, name, queue, 64);
    call(client, name, queue, 64);
    EXPECT(doca_ctx_start(client->ctx), DOCA_ERROR_IN_PROGRESS);
    CHECK(state(client->ctx) == DOCA_CTX_STATE_STARTING);
    both_until(server, client, is_running, client->ctx);
    both_until(server, client, one_connected, server);
    CHECK(client->states[0] == DOCA_CTX_STATE_STARTING && client->states[1] == DOCA_CTX_STATE_RUNNING);
}

static void names_sizes_and_states_are_checked(void)
{
    struct talk server, client, second;
    uint32_t value;
    doca_notification_handle_t handle;
    struct doca_comch_connection *connection;
    serve(&server, "checks", 10, 4);
    struct doca_devinfo *info = doca_dev_as_devinfo(server.dev);
    OK(doca_comch_cap_get_max_msg_size(info, &value));
    CHECK(value == 4080);
    OK(doca_comch_server_get_max_msg_size(server.server, &value));
    CHECK(value == 4080);
    EXPECT(doca_comch_server_set_max_msg_size(server.server, 100), DOCA_ERROR_BAD_STATE);
    EXPECT(doca_comch_server_set_recv_queue_size(server.server, 100), DOCA_ERROR_BAD_STATE);
    EXPECT(doca_pe_get_notification_handle(server.pe, &handle), DOCA_ERROR_NOT_SUPPORTED);
    EXPECT(doca_pe_request_notification(server.pe), DOCA_ERROR_NOT_SUPPORTED);
    EXPECT(doca_comch_server_destroy(server.server), DOCA_ERROR_IN_USE);
    EXPECT(doca_dev_rep_close(server.rep), DOCA_ERROR_IN_USE);

    /* One server per name. */
    struct doca_comch_server *twin;
    struct doca_pe *pe;
    OK(doca_pe_create(&pe));
    OK(doca_comch_server_create(server.dev, server.rep, "checks", &twin));
    OK(doca_pe_connect_ctx(pe, doca_comch_server_as_ctx(twin)));
    EXPECT(doca_ctx_start(doca_comch_server_as_ctx(twin)), DOCA_ERROR_INITIALIZATION); /* no setting was made */
    OK(doca_comch_server_destroy(twin));
    OK(doca_pe_destroy(pe));
    uint32_t longest;
    OK(doca_comch_cap_get_max_name_len(info, &longest));
    char *name = malloc(longest + 1);
    memset(name, 'n', longest);
    name[longest] = '\0';
    EXPECT(doca_comch_server_create(server.dev, server.rep, name, &twin), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_comch_server_create(server.dev, server.rep, "", &twin), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_comch_server_create(server.dev, NULL, "x", &twin), DOCA_ERROR_INVALID_VALUE);
    name[longest - 1] = '\0';
    OK(doca_comch_server_create(server.dev, server.rep, name, &twin));
    EXPECT(doca_comch_server_set_max_msg_size(twin, 4081), DOCA_ERROR_INVALID_VALUE);
    EXPECT(doca_comch_server_event_msg_recv_register(twin, NULL), DOCA_ERROR_INVALID_VALUE);
    OK(doca_comch_server_destroy(twin));
    free(name);

    call(&client, "checks", 10, 2);
    EXPECT(doca_comch_client_get_connection(client.client, &connection), DOCA_ERROR_BAD_STATE);
    EXPECT(doca_ctx_start(client.ctx), DOCA_ERROR_IN_PROGRESS);
    both_until(&server, &client, is_running, client.ctx);
    connection = peer(&client);
    OK(doca_comch_connection_set_user_data(connection, (union doca_data){.u64 = 77}));
    CHECK(doca_comch_connection_get_user_data(connection).u64 == 77);
    CHECK(doca_comch_server_get_server_ctx(connection) == NULL);
    EXPECT(try_send(&client, connection, "x", 0), DOCA_ERROR_INVALID_VALUE);
    EXPECT(try_send(&client, connection, "x", 4081), DOCA_ERROR_INVALID_VALUE);
    EXPECT(try_send(&client, server.connections[0], "x", 1), DOCA_ERROR_INVALID_VALUE);
    OK(try_send(&client, connection, "a", 1));
    OK(try_send(&client, connection, "b", 1));
    EXPECT(try_send(&client, connection, "c", 1), DOCA_ERROR_NO_MEMORY);

    struct doca_comch_client *on_the_dpu;
    EXPECT(doca_comch_client_create(server.dev, "checks", &on_the_dpu), DOCA_ERROR_INITIALIZATION);
    call(&second, "nobody", 10, 2);
    EXPECT(doca_ctx_start(second.ctx), DOCA_ERROR_IN_PROGRESS);
    until(second.pe, is_idle, second.ctx); /* no such server: stops by itself */
    CHECK(second.states[1] == DOCA_CTX_STATE_STOPPING && second.states[2] == DOCA_CTX_STATE_IDLE);
    hang_up(&second);
    hang_up(&client);
    both_until(&server, &server, one_disconnected, &server);
    hang_up(&server);
}

static void the_name_is_one_servers_until_it_stops(void)
{
    struct talk first, second;
    serve(&first, "mine", 10, 4);
    OK(doca_ctx_stop(first.ctx));
    serve(&second, "mine", 10, 4);
    EXPECT(doca_ctx_start(first.ctx), DOCA_ERROR_INITIALIZATION);
    hang_up(&second);
    OK(doca_ctx_start(first.ctx));
    hang_up(&first);
}

static bool took_five(void *of)
{
    return ((struct talk *)of)->received == 5;
}

static void a_full_receive_queue_holds_the_sender_back_in_order(void)
{
    struct talk server, client;
    ends(&server, &client, "queue", 2);
    static const char words[] = "12345";
    for (int i = 0; i < 5; i++)
        OK(try_send(&client, peer(&client), words + i, 1));
    for (int i = 0; i < 100; i++)
        (void)doca_pe_progress(client.pe);
    CHECK(client.sent == 2);
    size_t in_flight;
    OK(doca_ctx_get_num_inflight_tasks(client.ctx, &in_flight));
    CHECK(in_flight == 3);
    for (char i = 0; i < 5; i++) {
        while (server.received == (size_t)i)
            (void)(doca_pe_progress(server.pe) || doca_pe_progress(client.pe));
        CHECK(server.last[0] == '1' + i);
    }
    both_until(&server, &client, took_five, &server);
    CHECK(client.sent == 5);
    hang_up(&client);
    hang_up(&server);
}

static void a_message_of_the_largest_size_and_of_a_smaller_agreed_one(void)
{
    struct talk server, client;
    static char message[4080];
    serve(&server, "sizes", 10, 4);
    call(&client, "sizes", 10, 4);
    OK(doca_comch_client_set_max_msg_size(client.client, 100));
    EXPECT(doca_ctx_start(client.ctx), DOCA_ERROR_IN_PROGRESS);
    both_until(&server, &client, is_running, client.ctx);
    EXPECT(try_send(&client, peer(&client), message, 101), DOCA_ERROR_INVALID_VALUE);
    EXPECT(try_send(&server, server.connections[0], message, 101), DOCA_ERROR_INVALID_VALUE);
    OK(try_send(&server, server.connections[0], message, 100));
    until(server.pe, is_running, server.ctx);
    hang_up(&client);
    hang_up(&server);
}

static void the_server_may_disconnect_a_client(void)
{
    struct talk server, client;
    ends(&server, &client, "cut", 1);
    for (int i = 0; i < 3; i++)
        OK(try_send(&server, server.connections[0], "word", 4));
    for (int i = 0; i < 50; i++)
        (void)doca_pe_progress(server.pe);
    CHECK(server.sent == 1);
    OK(doca_comch_server_disconnect(server.server, server.connections[0]));
    EXPECT(doca_comch_server_disconnect(server.server, server.connections[0]), DOCA_ERROR_INVALID_VALUE);
    EXPECT(try_send(&server, server.connections[0], "word", 4), DOCA_ERROR_NOT_CONNECTED);
    CHECK(server.disconnected == 0);
    until(server.pe, one_disconnected, &server);
    CHECK(server.failed == 2);
    until(client.pe, is_idle, client.ctx);
    CHECK(client.received == 1); /* what had been sent before was received */
    hang_up(&client);
    hang_up(&server);
}

static bool one_sent(void *of)
{
    return ((struct talk *)of)->sent >= 1;
}

/* A message of the client is in flight to a server that no longer reads; this must not affect the other direction. */
static void what_was_sent_before_a_disconnect_arrives_also_under_crossing_messages(void)
{
    struct talk server, client;
    ends(&server, &client, "crossing", 6);
    for (int i = 0; i < 6; i++)
        OK(try_send(&server, server.connections[0], "word", 4));
    for (int i = 0; i < 50; i++)
        (void)doca_pe_progress(server.pe);
    OK(try_send(&client, peer(&client), "lost", 4));
    until(client.pe, one_sent, &client);
    CHECK(client.received < 6);
    OK(doca_comch_server_disconnect(server.server, server.connections[0]));
    until(server.pe, one_disconnected, &server);
    until(client.pe, is_idle, client.ctx);
    CHECK(client.received == 6 && server.received == 0);
    hang_up(&client);
    hang_up(&server);
}

static void a_stopping_server_lets_its_clients_go(void)
{
    struct talk server, client;
    ends(&server, &client, "closing", 4);
    OK(try_send(&server, server.connections[0], "last", 4));
    EXPECT(doca_ctx_stop(server.ctx), DOCA_ERROR_IN_PROGRESS);
    until(server.pe, is_idle, server.ctx);
    CHECK(server.sent == 1 && server.disconnected == 1);
    until(client.pe, is_idle, client.ctx);
    CHECK(client.received == 1);
    hang_up(&client);
    hang_up(&server);
}

static void one_client_too_many_is_refused(void)
{
    struct talk server, client, second;
    setenv("DOCA_EMULATOR_COMCH_CLIENTS", "1", 1);
    ends(&server, &client, "few", 4);
    call(&second, "few", 4, 4);
    EXPECT(doca_ctx_start(second.ctx), DOCA_ERROR_IN_PROGRESS);
    both_until(&server, &second, one_refused, &server);
    until(second.pe, is_idle, second.ctx);
    CHECK(server.connected == 1 && server.disconnected == 0 && is_running(client.ctx));
    hang_up(&second);
    hang_up(&client);
    hang_up(&server);
}

static uint8_t *kept;

static void keep(struct doca_comch_event_msg_recv *event, uint8_t *buffer, uint32_t len,
    struct doca_comch_connection *connection)
{
    (void)event, (void)len, (void)connection;
    CHECK(memcmp(buffer, "word", 4) == 0);
    kept = buffer;
}

static void a_kept_receive_buffer_holds_no_message(void)
{
    struct talk server, client;
    serve(&server, "keeps", 4, 4);
    call(&client, "keeps", 4, 4);
    OK(doca_comch_client_event_msg_recv_register(client.client, keep));
    EXPECT(doca_ctx_start(client.ctx), DOCA_ERROR_IN_PROGRESS);
    both_until(&server, &client, is_running, client.ctx);
    OK(try_send(&server, server.connections[0], "word", 4));
    for (int i = 0; i < 100; i++)
        (void)(doca_pe_progress(server.pe) || doca_pe_progress(client.pe));
    CHECK(kept != NULL && memcmp(kept, "word", 4) != 0);
    hang_up(&client);
    hang_up(&server);
}

const struct test link_tests[] = {
    {"names_sizes_and_states_are_checked", names_sizes_and_states_are_checked},
    {"the_name_is_one_servers_until_it_stops", the_name_is_one_servers_until_it_stops},
    {"a_full_receive_queue_holds_the_sender_back_in_order", a_full_receive_queue_holds_the_sender_back_in_order},
    {"a_message_of_the_largest_size_and_of_a_smaller_agreed_one",
        a_message_of_the_largest_size_and_of_a_smaller_agreed_one},
    {"the_server_may_disconnect_a_client", the_server_may_disconnect_a_client},
    {"what_was_sent_before_a_disconnect_arrives_also_under_crossing_messages",
        what_was_sent_before_a_disconnect_arrives_also_under_crossing_messages},
    {"a_stopping_server_lets_its_clients_go", a_stopping_server_lets_its_clients_go},
    {"one_client_too_many_is_refused", one_client_too_many_is_refused},
    {"a_kept_receive_buffer_holds_no_message", a_kept_receive_buffer_holds_no_message},
    {NULL, NULL},
};
