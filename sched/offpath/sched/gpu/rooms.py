"""A tenant's leases by the room they offer. A few are scanned where they are; many are indexed."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.gpu.firstfit import FirstFit
from offpath.sched.gpu.policy import LeaseView

MOST_SCANNED: Final = 8
"""With more leases than this the index costs less than a scan."""
FEWEST_INDEXED: Final = 4


@dataclass(slots=True)
class Warm:
    """A lease: its free lanes (a stack), the share placed on it, its position."""

    view: LeaseView
    position: int
    free_lanes: list[int] = field(default_factory=list)
    placed_share: int = 0
    is_open: bool = False

    def room(self) -> int:
        """The room it offers in percent of its GPU; -1 without a free lane."""
        return max(0, self.view.alpha - self.placed_share) if self.is_open and self.free_lanes else -1


class Rooms:
    """The leases of one tenant, each at a position of its own. `changed` must follow each change of a lease's room."""

    __slots__ = ("_index", "_leases")

    def __init__(self) -> None:
        self._leases: list[Warm] = []
        """By position."""
        self._index: FirstFit | None = None

    def add(self, warm: Warm) -> None:
        """Add a lease."""
        self._leases.insert(self._place(warm), warm)
        if self._index is not None:
            self.changed(warm)
        elif len(self._leases) > MOST_SCANNED:
            self._index = FirstFit()
            for each in self._leases:
                self.changed(each)

    def remove(self, warm: Warm) -> None:
        """Remove a lease."""
        del self._leases[self._place(warm)]
        if self._index is not None:
            self._index.put(warm.position, 0)
            if len(self._leases) < FEWEST_INDEXED:
                self._index = None

    def changed(self, warm: Warm) -> None:
        """The lease's room changed."""
        if self._index is not None:
            room = warm.room()
            self._index.put(warm.position, 1 << room if room >= 0 else 0)

    def first(self, mask: int, start: int = 0) -> int | None:
        """The lowest position from ``start`` on whose room (in percent) is a bit of ``mask``, or None."""
        if self._index is not None:
            return self._index.first(mask, start)
        for warm in self._leases:
            if warm.position >= start and warm.is_open and warm.free_lanes:
                room = warm.view.alpha - warm.placed_share  # `Warm.room`, inlined: a call costs as much as the rest
                if mask >> (room if room > 0 else 0) & 1:
                    return warm.position
        return None

    def _place(self, warm: Warm) -> int:
        return bisect_left(self._leases, warm.position, key=_position)


def _position(warm: Warm) -> int:
    return warm.position
