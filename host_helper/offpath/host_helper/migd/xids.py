"""What an Xid event means for a GPU's leases (NVIDIA, *Xid Errors*, catalog for Ampere and newer; *GPU Memory Error
Management* for 94 and 95)."""

from __future__ import annotations

from typing import Final

_NAMES: Final = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "work removed after an earlier error",
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    62: "internal micro-controller halted",
    63: "memory row to be remapped",
    64: "memory row not remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "timeout of the GPU System Processor",
    120: "error of the GPU System Processor",
    140: "unrecovered ECC error",
}
GPU_LOST: Final = frozenset({46, 62, 79, 95, 119, 120, 140})
"""After these nothing on the GPU can be trusted before a reset. The others end at most the process that met them, whose
worker reports it."""


def name_of(xid: int) -> str:
    """The event's number and NVIDIA's name for it, as far as it is known here."""
    return f"Xid {xid} ({_NAMES[xid]})" if xid in _NAMES else f"Xid {xid}"
