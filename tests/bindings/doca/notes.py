"""Prototypes of DOCA as the notes have them, and what they come to in ctypes' types. The bindings are not asked."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROTOTYPES = HERE / "prototypes.txt"
NOTES = HERE.parents[2].parent / "shared" / "notes" / "doca-api.md"
_ROW = re.compile(r"\| `([^`]*\bdoca_\w+\([^`]*\))` \|(.*)\|")
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


@dataclass(frozen=True)
class Row:
    """``stability``: S, E or inline. ``in_25``: same, absent or different."""

    name: str
    prototype: str
    stability: str
    in_25: str

    def __str__(self) -> str:
        return f"{self.stability:7}{self.in_25:10}{self.prototype}"

    def types(self) -> tuple[Any, list[Any]]:
        """restype and argtypes."""
        returned, arguments = re.fullmatch(r"(.*?)\b\w+\((.*)\)", self.prototype.strip()).groups()  # type: ignore[union-attr]
        given = [] if arguments == "void" else [re.sub(r"\b\w+$", "", each.strip()) for each in arguments.split(",")]
        return (None if returned.strip() == "void" else _ctype(returned)), [_ctype(each) for each in given]


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


def of_notes(text: str) -> Iterator[Row]:
    """Rows of the tables of section 2, each function once."""
    seen = set()
    for line in text.splitlines():
        if found := _ROW.match(line):
            prototype, cells = found[1], [cell.strip() for cell in found[2].split("|")]
            name = re.search(r"(doca_\w+)\(", prototype)[1]  # type: ignore[index]
            if name in seen:
                continue
            seen.add(name)
            is_table = cells[0] in ("S", "E", "inline")  # GPUNetIO's has no such columns: all experimental, not in 2.5
            in_25 = cells[1].split(" ")[0].lower() if is_table else "absent"
            yield Row(name, prototype, cells[0] if is_table else "E", in_25)


def of_file() -> dict[str, Row]:
    """Rows of prototypes.txt, by name."""
    found = {}
    for line in PROTOTYPES.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            stability, in_25, prototype = line.split(None, 2)
            name = re.search(r"(doca_\w+)\(", prototype)[1]  # type: ignore[index]
            found[name] = Row(name, prototype, stability, in_25)
    return found
