"""What a prototype of the table comes to in ctypes' types. The bindings are not asked."""

from __future__ import annotations

import ctypes
import re
from ctypes import CFUNCTYPE, POINTER
from typing import Any

_SCALARS: dict[str, Any] = {
    "doca_error_t": ctypes.c_int, "int": ctypes.c_int, "doca_notification_handle_t": ctypes.c_int,
    "uint8_t": ctypes.c_uint8, "uint16_t": ctypes.c_uint16, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t, "union doca_data": ctypes.c_uint64,
}  # fmt: skip
_P, _U64, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
# Section 1.2 of the notes.
_CALLBACKS: dict[str, Any] = {
    "doca_ctx_state_changed_callback_t": CFUNCTYPE(None, _U64, _P, _INT, _INT),
    "doca_dma_task_memcpy_completion_cb_t": CFUNCTYPE(None, _P, _U64, _U64),
    "doca_comch_task_send_completion_cb_t": CFUNCTYPE(None, _P, _U64, _U64),
    "doca_comch_event_msg_recv_cb_t": CFUNCTYPE(None, _P, _P, ctypes.c_uint32, _P),
    "doca_comch_event_connection_status_changed_cb_t": CFUNCTYPE(None, _P, _P, ctypes.c_uint8),
}
_PROTOTYPE = re.compile(r"(.*?)\b\w+\((.*)\)")


def types_of(prototype: str) -> tuple[Any, list[Any]]:
    """restype and argtypes."""
    parts = _PROTOTYPE.fullmatch(prototype)
    assert parts is not None, prototype
    returned, arguments = parts[1].strip(), parts[2]
    given = [] if arguments == "void" else [re.sub(r"\b\w+$", "", each.strip()) for each in arguments.split(",")]
    return (None if returned == "void" else _ctype(returned)), [_ctype(each) for each in given]


def _ctype(declared: str) -> Any:
    text = " ".join(declared.replace("const", " ").replace("*", " * ").split())
    base, stars = text.replace("*", "").strip(), text.count("*")
    if base in _CALLBACKS:
        return _CALLBACKS[base]
    if base == "char":
        return ctypes.c_char_p
    if base == "void" or (base.startswith("struct ") and stars):
        made: Any = ctypes.c_void_p
        stars -= 1
    elif base.startswith("enum "):
        made = ctypes.c_int
    else:
        made = _SCALARS[base]
    for _ in range(stars):
        made = POINTER(made)
    return made
