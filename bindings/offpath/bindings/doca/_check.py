"""Converts a DOCA status into an exception, with DOCA's text and a hint what to check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offpath.bindings.doca._abi_errors import PREFIX
from offpath.bindings.errors import DeviceGone, DocaError

_FATAL: Final = "DEVICE_FATAL_ERROR"
_CHECKS: Final = {
    "NOT_PERMITTED": "the order of calls, or the memory's permissions: the export must permit the copy",
    "IN_USE": "an object made from it is still open",
    "NOT_SUPPORTED": "the device and its firmware: `doca_caps` lists what it can do; the BlueField must be in DPU mode",
    "AGAIN": "its queue is full: try again when something has completed",
    "INVALID_VALUE": "addresses, lengths and names: do they lie in the memory, are both of one BlueField?",
    "NO_MEMORY": "its pool is exhausted; or the machine's memory, or RLIMIT_MEMLOCK",
    "INITIALIZATION": "may this user open the device? is DOCA's service loaded?",
    "NOT_CONNECTED": "the device's driver, and the progress engine of the context",
    "NOT_FOUND": "does `doca_caps --list-devs` show a device?",
    "IO_FAILED": "the exporter may have ended; or the task was larger than the device takes at once",
    "BAD_STATE": "the context's state: it stops by itself after a task failed",
    "DRIVER": "the driver: see the kernel's log",
    "OPERATING_SYSTEM": "the kernel's log; may this user open the device?",
    "TOO_BIG": "the limit that the device reports",
    _FATAL: "the device was lost: see the kernel's log",
}
_CHECKS_OF: Final = {
    ("doca_mmap_set_dmabuf_memrange", "NOT_SUPPORTED"): "no dma-buf here: its pointer needs nvidia-peermem",
    ("doca_mmap_start", "NO_MEMORY"): "can the memory be pinned? RLIMIT_MEMLOCK; a GPU's needs nvidia-peermem",
    (
        "doca_mmap_create_from_export",
        "NOT_SUPPORTED",
    ): "this device imports nothing: is it the DPU, in DPU mode?",
    ("doca_mmap_create_from_export", "INVALID_VALUE"): "no export of this BlueField, or its exporter has ended",
    ("doca_devinfo_rep_create_list", "NOT_SUPPORTED"): "representors are visible on the DPU only",
    ("doca_mmap_export_pci", "NOT_SUPPORTED"): "this device exports nothing: is it the host's side?",
}


def check(status: int, call: str, describe: Callable[[int], tuple[str, str]]) -> None:
    """Return if ``status`` is 0. ``describe`` returns DOCA's name and description of a status: only DOCA knows those of
    later releases.

    Raises: DeviceGone: the device was lost. DocaError.
    """
    if status:
        name, text = describe(status)
        raise failure(status, call, name, text)


def failure(status: int, call: str, name: str, text: str) -> DocaError | DeviceGone:
    """The exception for a nonzero status."""
    short = name.removeprefix(PREFIX)
    where = _CHECKS_OF.get((call, short)) or _CHECKS.get(short, "")
    if short == _FATAL:
        return DeviceGone(f"{call}: {name}: {text} ({where})")
    return DocaError(call, text, status, name, where)
