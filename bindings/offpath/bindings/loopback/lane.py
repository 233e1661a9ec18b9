"""Exports a lane to a copy engine that maps host memory: a descriptor of the lane's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offpath.bindings.ports import Lane, MemoryExport
from offpath.bindings.wire.regions import READ_SLOTS, WRITE_SLOTS


class LoopbackLaneExporter:
    """Implements `offpath.bindings.ports.LaneExporter`. Earlier exports stay valid: an engine keeps its mapping."""

    needs_invitation: Final = False

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def export(self, invitation: Mapping[str, int | str] | None = None) -> MemoryExport:
        """See `Lane.export`."""
        return self._lane.export()

    def close(self) -> None:
        """Nothing to release: the lane owns the memory."""


class ResultExporter(LoopbackLaneExporter):
    """As `LoopbackLaneExporter`, for the copy engine `cuda`: the result half alone. ``slots`` in the descriptor says
    how the worker must map the requesters' memory to pin it: ``read`` or ``write``."""

    def export(self, invitation: Mapping[str, int | str] | None = None) -> MemoryExport:
        """See `Lane.export_results`."""
        exported = self._lane.export_results()
        slots = READ_SLOTS if self._lane.pins_read_only else WRITE_SLOTS
        return MemoryExport({**exported.descriptor, "slots": slots}, exported.fds)
