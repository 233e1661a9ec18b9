"""libdoca_common: the progress engine and its tasks (doca_pe.h)."""

from __future__ import annotations

from typing import Final

from offpath.bindings.doca._abi_types import (
    DATA,
    HANDLE,
    INT,
    OUT_HANDLE,
    OUT_INT,
    OUT_SIZE,
    STABLE,
    STATUS,
    U8,
    Function,
)

FUNCTIONS: Final = (
    Function("doca_pe_create", STATUS, (OUT_HANDLE,), STABLE, "2.5"),
    Function("doca_pe_destroy", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_pe_connect_ctx", STATUS, (HANDLE, HANDLE), STABLE, "2.5"),
    Function("doca_pe_progress", U8, (HANDLE,), STABLE, "2.5"),
    Function("doca_pe_get_notification_handle", STATUS, (HANDLE, OUT_INT), STABLE, "2.5"),
    Function("doca_pe_request_notification", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_pe_clear_notification", STATUS, (HANDLE, INT), STABLE, "2.5"),
    Function("doca_pe_get_num_inflight_tasks", STATUS, (HANDLE, OUT_SIZE), STABLE, "2.5"),
    Function("doca_task_submit", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_task_set_user_data", None, (HANDLE, DATA), STABLE, "2.5"),
    Function("doca_task_free", None, (HANDLE,), STABLE, "2.5"),
    Function("doca_task_get_status", STATUS, (HANDLE,), STABLE, "2.5"),
)
