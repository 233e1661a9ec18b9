"""libdoca_common: contexts and their states (doca_ctx.h)."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Final

from offpath.bindings.doca._abi_types import DATA, ENUM, HANDLE, OUT_ENUM, STABLE, STATUS, Function


class State(IntEnum):
    """enum doca_ctx_states."""

    IDLE = 0
    STARTING = 1
    RUNNING = 2
    STOPPING = 3


STATE_CHANGED: Final = ctypes.CFUNCTYPE(None, DATA, HANDLE, ENUM, ENUM)

FUNCTIONS: Final = (
    Function("doca_ctx_start", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_ctx_stop", STATUS, (HANDLE,), STABLE, "2.5"),
    Function("doca_ctx_get_state", STATUS, (HANDLE, OUT_ENUM), STABLE, "2.5"),
    Function("doca_ctx_set_state_changed_cb", STATUS, (HANDLE, STATE_CHANGED), STABLE, "2.5"),
)
