"""Exports a lane to the loopback copy engine: a descriptor of the lane's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offpath.bindings.ports import Lane, MemoryExport


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
