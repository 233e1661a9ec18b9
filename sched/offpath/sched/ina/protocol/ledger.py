"""Tracks which jobs may be using which switch. Never underestimates. No I/O.

An entry is created when a permission is sent or found at a switch. It ends when the permission can have no effect: the
switch confirmed a fence, or the switch restarted. When all ranks of a job have applied a newer epoch, the job may get
another tree, and the old entry is fenced. This alone frees the place for no other job, because a host may report
falsely. The load of a switch may be overestimated, never underestimated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from offpath.sched.ina.protocol.records import Permission


@dataclass(slots=True)
class Hold:
    """One permission at one switch."""

    switch: str
    boot: int
    permission: Permission
    since_ns: int
    is_allowed: bool = False
    """True if the switch has confirmed it."""
    fenced_by: tuple[int, int] | None = None
    """(incarnation, stamp) of a fence that was sent and is not confirmed."""
    fenced_ns: int = 0
    is_left: bool = False
    """True if all ranks report that they left it: the job itself may then get another tree."""
    left_ns: int | None = None
    """Time at which it was first seen that the job must no longer use it."""

    @property
    def slot(self) -> str:
        """Key of the place; a group counts once."""
        return self.permission.group or f"{self.permission.job}/{self.permission.incarnation}"


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        self._holds: dict[tuple[str, str, int, int], Hold] = {}
        """By switch, job, incarnation, stamp."""

    def holds(self, job: str | None = None) -> tuple[Hold, ...]:
        """Entries of all jobs or of one, oldest first."""
        return tuple(hold for hold in self._holds.values() if job in (None, hold.permission.job))

    def add(self, switch: str, boot: int, permission: Permission, now_ns: int, is_allowed: bool) -> Hold:
        """Record a permission that is being sent or was found."""
        key = switch, permission.job, permission.incarnation, permission.stamp
        hold = self._holds.setdefault(key, Hold(switch, boot, permission, now_ns))
        hold.is_allowed |= is_allowed
        return hold

    def slots(self, switch: str) -> frozenset[str]:
        """Keys of the places in use at ``switch``."""
        return frozenset(hold.slot for hold in self._holds.values() if hold.switch == switch)

    def fits(self, slot: str, switch: str, capacity: int) -> bool:
        """True if ``switch`` has a free place, or ``slot`` already has one."""
        return len(self.slots(switch) | {slot}) <= capacity

    def allowed(self, switch: str, boot: int, job: str, incarnation: int, stamp: int) -> Hold | None:
        """Handle a switch's confirmation. None if the permission is unknown or no longer wanted."""
        hold = self._holds.get((switch, job, incarnation, stamp))
        if hold is None or hold.boot != boot:
            return None
        hold.is_allowed = True
        return hold

    def drained(self, job: str, incarnation: int, applied: int) -> tuple[Hold, ...]:
        """All ranks of the job report that they have applied ``applied`` or more; returns the entries thus left."""
        left = tuple(
            hold for hold in self.holds(job)
            if hold.permission.incarnation == incarnation and hold.permission.stamp < applied and not hold.is_left
        )  # fmt: skip
        for hold in left:
            hold.is_left = True
        return left

    def fenced(self, switch: str, boot: int, job: str, incarnation: int, stamp: int) -> tuple[Hold, ...]:
        """The switch has nothing left of the job up to (incarnation, stamp)."""
        return self._end(
            hold for hold in self.holds(job)
            if hold.switch == switch and hold.boot == boot
            and (hold.permission.incarnation, hold.permission.stamp) <= (incarnation, stamp)
        )  # fmt: skip

    def reborn(self, switch: str, boot: int) -> tuple[Hold, ...]:
        """The switch restarted: end the entries of its earlier boot."""
        return self._end(hold for hold in self.holds() if hold.switch == switch and hold.boot != boot)

    def _end(self, holds: Iterable[Hold]) -> tuple[Hold, ...]:
        ended = tuple(holds)
        for hold in ended:
            permission = hold.permission
            del self._holds[hold.switch, permission.job, permission.incarnation, permission.stamp]
        return ended
