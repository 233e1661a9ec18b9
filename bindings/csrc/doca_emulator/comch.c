/* Comch's capabilities, the settings of both ends, and queries of a connection. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "comch.h"

uint32_t comch_cap_max_msg(void)
{
    return (uint32_t)priv_doca_setting("DOCA_EMULATOR_COMCH_MAX", COMCH_MAX_MSG, 1, 1 << 16);
}

uint32_t comch_cap_clients(void)
{
    return (uint32_t)priv_doca_setting("DOCA_EMULATOR_COMCH_CLIENTS", COMCH_MAX_CLIENTS, 1, 1024);
}

/* -- capabilities: a server on the DPU, clients on the host -------------------------------------------------------- */

doca_error_t doca_comch_cap_client_is_supported(const struct doca_devinfo *devinfo)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    return devinfo->function.on_dpu ? DOCA_ERROR_NOT_SUPPORTED : DOCA_SUCCESS;
}

doca_error_t doca_comch_cap_server_is_supported(const struct doca_devinfo *devinfo)
{
    FAULT();
    VALID(devinfo, PRIV_DEVINFO);
    return devinfo->function.on_dpu ? DOCA_SUCCESS : DOCA_ERROR_NOT_SUPPORTED;
}

static doca_error_t tell(const struct doca_devinfo *devinfo, uint32_t *where, uint32_t value)
{
    VALID(devinfo, PRIV_DEVINFO);
    NEEDS(where != NULL, DOCA_ERROR_INVALID_VALUE);
    *where = value;
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_cap_get_max_clients(const struct doca_devinfo *devinfo, uint32_t *num_clients)
{
    FAULT();
    return tell(devinfo, num_clients, comch_cap_clients());
}

doca_error_t doca_comch_cap_get_max_msg_size(const struct doca_devinfo *devinfo, uint32_t *size)
{
    FAULT();
    return tell(devinfo, size, comch_cap_max_msg());
}

doca_error_t doca_comch_cap_get_max_name_len(const struct doca_devinfo *devinfo, uint32_t *max_name_len)
{
    FAULT();
    return tell(devinfo, max_name_len, COMCH_NAME);
}

doca_error_t doca_comch_cap_get_max_recv_queue_size(const struct doca_devinfo *devinfo, uint32_t *size)
{
    FAULT();
    return tell(devinfo, size, COMCH_MAX_QUEUE);
}

doca_error_t doca_comch_cap_get_max_send_tasks(const struct doca_devinfo *devinfo, uint32_t *max_send_tasks)
{
    FAULT();
    return tell(devinfo, max_send_tasks, COMCH_MAX_TASKS);
}

/* -- an end: server or client -------------------------------------------------------------------------------------- */

doca_error_t comch_end_init(struct comch_end *end, struct doca_dev *dev, const char *name,
    const struct priv_ctx_ops *ops)
{
    NEEDS(name != NULL && *name != '\0' && strlen(name) < COMCH_NAME, DOCA_ERROR_INVALID_VALUE);
    strcpy(end->name, name);
    end->dev = dev;
    end->max_msg = comch_cap_max_msg();
    end->recv_queue = COMCH_QUEUE;
    atomic_fetch_add(&dev->users, 1);
    priv_doca_ctx_init(&end->ctx, ops);
    return DOCA_SUCCESS;
}

doca_error_t comch_end_start(struct comch_end *end)
{
    NEEDS(end->sent != NULL && end->received != NULL, DOCA_ERROR_INITIALIZATION); /* a setting is missing */
    end->tasks = calloc(end->task_count, sizeof *end->tasks);
    end->buffer = malloc(end->max_msg);
    if (end->tasks == NULL || end->buffer == NULL) {
        comch_end_idle(end);
        return DOCA_ERROR_INITIALIZATION;
    }
    for (uint32_t i = end->task_count; i-- > 0;)
        priv_doca_task_add(&end->ctx, &end->tasks[i].task);
    return DOCA_SUCCESS;
}

void comch_end_idle(struct comch_end *end)
{
    while (end->connections != NULL)
        comch_connection_free(end->connections);
    priv_doca_retire(end->tasks);
    free(end->buffer);
    end->ctx.free_tasks = NULL;
    end->tasks = NULL;
    end->buffer = NULL;
}

static bool is_idle(const struct comch_end *end)
{
    return end->ctx.state == DOCA_CTX_STATE_IDLE;
}

doca_error_t comch_set_max_msg(struct comch_end *end, uint32_t size)
{
    NEEDS(size > 0 && size <= comch_cap_max_msg(), DOCA_ERROR_INVALID_VALUE);
    NEEDS(is_idle(end), DOCA_ERROR_BAD_STATE);
    end->max_msg = size;
    return DOCA_SUCCESS;
}

doca_error_t comch_set_recv_queue(struct comch_end *end, uint32_t size)
{
    NEEDS(size > 0 && size <= COMCH_MAX_QUEUE, DOCA_ERROR_INVALID_VALUE);
    NEEDS(is_idle(end), DOCA_ERROR_BAD_STATE);
    end->recv_queue = size;
    return DOCA_SUCCESS;
}

doca_error_t comch_set_tasks(struct comch_end *end, doca_comch_task_send_completion_cb_t sent,
    doca_comch_task_send_completion_cb_t failed, uint32_t count)
{
    NEEDS(sent != NULL && failed != NULL && count > 0 && count <= COMCH_MAX_TASKS, DOCA_ERROR_INVALID_VALUE);
    NEEDS(is_idle(end), DOCA_ERROR_BAD_STATE);
    end->sent = sent;
    end->failed = failed;
    end->task_count = count;
    return DOCA_SUCCESS;
}

/* -- a connection -------------------------------------------------------------------------------------------------- */

/* Counters are as of the last doca_comch_connection_update_info. */
doca_error_t doca_comch_connection_get_counter(const struct doca_comch_connection *comch_connection,
    enum doca_comch_counter counter_type, uint64_t *counter_value)
{
    FAULT();
    VALID(comch_connection, PRIV_COMCH_CONNECTION);
    NEEDS(counter_value != NULL && counter_type >= DOCA_COMCH_COUNTER_SENT_MESSAGES &&
              counter_type <= DOCA_COMCH_COUNTER_RECV_BYTES,
        DOCA_ERROR_INVALID_VALUE);
    *counter_value = comch_connection->shown[counter_type];
    return DOCA_SUCCESS;
}

doca_error_t doca_comch_connection_update_info(struct doca_comch_connection *comch_connection)
{
    FAULT();
    VALID(comch_connection, PRIV_COMCH_CONNECTION);
    NEEDS(comch_connection->state >= COMCH_UP, DOCA_ERROR_CONNECTION_INPROGRESS);
    NEEDS(comch_connection->state == COMCH_UP, DOCA_ERROR_CONNECTION_ABORTED);
    memcpy(comch_connection->shown, comch_connection->counted, sizeof comch_connection->shown);
    return DOCA_SUCCESS;
}

union doca_data doca_comch_connection_get_user_data(const struct doca_comch_connection *connection)
{
    LIVE(connection, PRIV_COMCH_CONNECTION);
    return connection->user_data;
}

doca_error_t doca_comch_connection_set_user_data(struct doca_comch_connection *connection, union doca_data user_data)
{
    FAULT();
    LIVE(connection, PRIV_COMCH_CONNECTION);
    connection->user_data = user_data;
    return DOCA_SUCCESS;
}
