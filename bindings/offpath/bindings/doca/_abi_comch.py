"""libdoca_comch: messages between the DPU and its host (doca_comch.h). 2.5 has no such library."""

from __future__ import annotations

import ctypes
from typing import Final

from offpath.bindings.doca._abi_types import (
    ADDRESS,
    DATA,
    HANDLE,
    OUT_HANDLE,
    OUT_U32,
    STABLE,
    STATUS,
    TEXT,
    U8,
    U32,
    Function,
)

SENT: Final = ctypes.CFUNCTYPE(None, HANDLE, DATA, DATA)
"""Task, the task's user data, the context's."""
RECEIVED: Final = ctypes.CFUNCTYPE(None, HANDLE, ADDRESS, U32, HANDLE)
"""Event, message, its length, connection."""
CONNECTION_CHANGED: Final = ctypes.CFUNCTYPE(None, HANDLE, HANDLE, U8)
"""Event, connection, whether the change succeeded."""
_REGISTERED = (HANDLE, CONNECTION_CHANGED, CONNECTION_CHANGED)

FUNCTIONS: Final = (
    Function("doca_comch_cap_client_is_supported", STATUS, (HANDLE,), STABLE, "2.7"),
    Function("doca_comch_cap_server_is_supported", STATUS, (HANDLE,), STABLE, "2.7"),
    Function("doca_comch_cap_get_max_msg_size", STATUS, (HANDLE, OUT_U32), STABLE, "2.7"),
    Function("doca_comch_cap_get_max_name_len", STATUS, (HANDLE, OUT_U32), STABLE, "2.7"),
    Function("doca_comch_cap_get_max_recv_queue_size", STATUS, (HANDLE, OUT_U32), STABLE, "2.7"),
    Function("doca_comch_cap_get_max_send_tasks", STATUS, (HANDLE, OUT_U32), STABLE, "2.7"),
    Function("doca_comch_server_create", STATUS, (HANDLE, HANDLE, TEXT, OUT_HANDLE), STABLE, "2.7"),
    Function("doca_comch_server_destroy", STATUS, (HANDLE,), STABLE, "2.7"),
    Function("doca_comch_server_as_ctx", HANDLE, (HANDLE,), STABLE, "2.7"),
    Function("doca_comch_server_set_max_msg_size", STATUS, (HANDLE, U32), STABLE, "2.7"),
    Function("doca_comch_server_set_recv_queue_size", STATUS, (HANDLE, U32), STABLE, "2.7"),
    Function("doca_comch_server_task_send_set_conf", STATUS, (HANDLE, SENT, SENT, U32), STABLE, "2.7"),
    Function(
        "doca_comch_server_task_send_alloc_init", STATUS, (HANDLE, HANDLE, ADDRESS, U32, OUT_HANDLE), STABLE, "2.7"
    ),
    Function("doca_comch_server_event_msg_recv_register", STATUS, (HANDLE, RECEIVED), STABLE, "2.7"),
    Function("doca_comch_server_event_connection_status_changed_register", STATUS, _REGISTERED, STABLE, "2.7"),
    Function("doca_comch_server_disconnect", STATUS, (HANDLE, HANDLE), STABLE, "2.7"),
    Function("doca_comch_client_create", STATUS, (HANDLE, TEXT, OUT_HANDLE), STABLE, "2.7"),
    Function("doca_comch_client_destroy", STATUS, (HANDLE,), STABLE, "2.7"),
    Function("doca_comch_client_as_ctx", HANDLE, (HANDLE,), STABLE, "2.7"),
    Function("doca_comch_client_set_max_msg_size", STATUS, (HANDLE, U32), STABLE, "2.7"),
    Function("doca_comch_client_set_recv_queue_size", STATUS, (HANDLE, U32), STABLE, "2.7"),
    Function("doca_comch_client_task_send_set_conf", STATUS, (HANDLE, SENT, SENT, U32), STABLE, "2.7"),
    Function(
        "doca_comch_client_task_send_alloc_init", STATUS, (HANDLE, HANDLE, ADDRESS, U32, OUT_HANDLE), STABLE, "2.7"
    ),
    Function("doca_comch_client_event_msg_recv_register", STATUS, (HANDLE, RECEIVED), STABLE, "2.7"),
    Function("doca_comch_client_get_connection", STATUS, (HANDLE, OUT_HANDLE), STABLE, "2.7"),
    Function("doca_comch_connection_set_user_data", STATUS, (HANDLE, DATA), STABLE, "2.7"),
    Function("doca_comch_connection_get_user_data", DATA, (HANDLE,), STABLE, "2.7"),
    Function("doca_comch_task_send_as_task", HANDLE, (HANDLE,), STABLE, "2.7"),
)
