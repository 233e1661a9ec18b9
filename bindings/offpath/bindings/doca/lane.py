"""Exports a lane's memory from its worker, at the host's device, to the copy engine `doca`.

The DPU may read and write the landing buffer (DOCA has no write-only permission) and read the result half. Run on the
emulator, with host memory. Never run with GPU memory: neither by dma-buf, which DOCA does not document as exportable,
nor by its pointer, which needs nvidia-peermem.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from offpath.bindings.doca.device import Ability, Device, open_device
from offpath.bindings.doca.ends import MOST_EXPORT_BYTES, Half, describe
from offpath.bindings.doca.load import load
from offpath.bindings.doca.memory import Mmap
from offpath.bindings.errors import DeviceError, DocaError
from offpath.bindings.ports import Lane, MemoryExport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostDevice:
    """The device to export at, by PCI address or name, and DOCA's folder; empty: see `open_device` and `load`."""

    name: str = ""
    path: str = ""


class DocaLaneExporter:
    """Implements `offpath.bindings.ports.LaneExporter`. Loads DOCA and opens the device at the first export, after the
    fork."""

    needs_invitation: Final = False

    def __init__(self, choice: HostDevice, lane: Lane) -> None:
        self._choice = choice
        self._lane = lane
        self._device: Device | None = None
        self._maps: list[Mmap] = []

    def export(self, invitation: Mapping[str, int | str] | None = None) -> MemoryExport:
        """Export to the DPU, and revoke the earlier export. Valid until the next export or `close`.

        Blocks for milliseconds: it opens a device and pins memory. Raises: DocaError, DeviceGone.
        """
        if self._device is None:
            self._device = open_device(load(self._choice.path), Ability.EXPORT, self._choice.name)
        self._withdraw()
        landing, room = self._lane.landing_bytes, self._lane.result_bytes
        with ExitStack() as undo:
            undo.callback(self._withdraw)
            halves = self._half(0, landing, is_written=True), self._half(landing, room, is_written=False)
            undo.pop_all()
        return MemoryExport(describe(*halves))

    def close(self) -> None:
        """Revoke the export, then close the device. The lane keeps the memory. Idempotent. Raises: DocaError."""
        self._withdraw()
        if self._device is not None:
            self._device.close()
            self._device = None

    def _withdraw(self) -> None:
        while self._maps:
            self._maps[-1].close()
            self._maps.pop()

    def _half(self, at: int, nbytes: int, *, is_written: bool) -> Half:
        if not nbytes:
            return Half(0, 0, b"")
        shared = self._lane.dmabuf()
        if shared is not None:
            fd, offset = shared
            try:
                return self._shared(at, nbytes, is_written, (fd, offset + at))
            except DeviceError as fault:
                logger.info("the lane's memory is exported by its pointer: %s", fault)
        return self._shared(at, nbytes, is_written, None)

    def _shared(self, at: int, nbytes: int, is_written: bool, dmabuf: tuple[int, int] | None) -> Half:
        assert self._device is not None
        address = self._lane.peer_pointer + at
        mmap = Mmap.shared(self._device, address, nbytes, is_written=is_written, dmabuf=dmabuf)
        self._maps.append(mmap)
        export = mmap.export()
        if len(export) > MOST_EXPORT_BYTES:
            raise DocaError("export a lane", f"{len(export)} bytes exceed the message limit of {MOST_EXPORT_BYTES}")
        return Half(address, nbytes, export)
