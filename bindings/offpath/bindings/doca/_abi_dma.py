"""libdoca_dma: copies (doca_dma.h)."""

from __future__ import annotations

import ctypes
from typing import Final

from offpath.bindings.doca._abi_types import (
    DATA,
    HANDLE,
    OUT_HANDLE,
    OUT_U32,
    OUT_U64,
    STABLE,
    STATUS,
    U32,
    Function,
)

COMPLETED: Final = ctypes.CFUNCTYPE(None, HANDLE, DATA, DATA)
"""Task, the task's user data, the context's."""

FUNCTIONS: Final = (
    Function("doca_dma_create", STATUS, (HANDLE, OUT_HANDLE), STABLE, "2.5"),
    Function("doca_dma_destroy", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_dma_as_ctx", HANDLE, (HANDLE,), STABLE, "2.5"),
    Function("doca_dma_cap_task_memcpy_is_supported", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_dma_cap_task_memcpy_get_max_buf_size", STATUS, (HANDLE, OUT_U64), STABLE, "2.5"),
    Function("doca_dma_cap_get_max_num_tasks", STATUS, (HANDLE, OUT_U32), STABLE, "2.5"),
    Function("doca_dma_task_memcpy_set_conf", STATUS, (HANDLE, COMPLETED, COMPLETED, U32), STABLE, "2.5"),
    Function("doca_dma_task_memcpy_alloc_init", STATUS, (HANDLE, HANDLE, HANDLE, DATA, OUT_HANDLE), STABLE, "2.5"),
    Function("doca_dma_task_memcpy_as_task", HANDLE, (HANDLE,), STABLE, "2.5"),
)
