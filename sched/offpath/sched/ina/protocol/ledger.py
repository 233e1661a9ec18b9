"""Who may be using which switch: never less than what is true. No I/O.

An entry is made when a permission is sent, or found at a switch; it ends when nothing can come of it any more: the
switch has confirmed a fence, or the switch that knew of it is no more. That all ranks of a job have applied a newer
epoch lets the job have another tree, and is why it is fenced; it frees the place for nobody else, since a host may lie.
What a switch is thought to carry may be too much, never too little.
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
    """The switch has confirmed it."""
    fenced_by: tuple[int, int] | None = None
    """Its fence, (incarnation, stamp), was sent, and is not confirmed."""
    fenced_ns: int = 0
    is_left: bool = False
    """All ranks say that they have left it: it does not keep the job itself from another tree."""
    left_ns: int | None = None
    """When it was seen first that its job is to use it no more."""

    @property
    def slot(self) -> str:
        """What takes the place: a group counts once."""
        return self.permission.group or f"{self.permission.job}/{self.permission.incarnation}"


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        self._holds: dict[tuple[str, str, int, int], Hold] = {}
        """By switch, job, incarnation, stamp."""

    def holds(self, job: str | None = None) -> tuple[Hold, ...]:
        """Of all jobs or of one; the older first."""
        return tuple(hold for hold in self._holds.values() if job in (None, hold.permission.job))

    def add(self, switch: str, boot: int, permission: Permission, now_ns: int, is_allowed: bool) -> Hold:
        """A permission is being sent, or was found."""
        key = switch, permission.job, permission.incarnation, permission.stamp
        hold = self._holds.setdefault(key, Hold(switch, boot, permission, now_ns))
        hold.is_allowed |= is_allowed
        return hold

    def slots(self, switch: str) -> frozenset[str]:
        """What takes a place at ``switch``."""
        return frozenset(hold.slot for hold in self._holds.values() if hold.switch == switch)

    def fits(self, slot: str, switch: str, capacity: int) -> bool:
        """There is a place at ``switch``, or ``slot`` has one."""
        return len(self.slots(switch) | {slot}) <= capacity

    def allowed(self, switch: str, boot: int, job: str, incarnation: int, stamp: int) -> Hold | None:
        """The switch confirms. None: of what is not (or no longer) asked for."""
        hold = self._holds.get((switch, job, incarnation, stamp))
        if hold is None or hold.boot != boot:
            return None
        hold.is_allowed = True
        return hold

    def drained(self, job: str, incarnation: int, applied: int) -> tuple[Hold, ...]:
        """All ranks of the job say that they have applied ``applied`` or more; the entries that are left by that."""
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
        """The switch lives a new life: its earlier one and all that it allowed are no more."""
        return self._end(hold for hold in self.holds() if hold.switch == switch and hold.boot != boot)

    def _end(self, holds: Iterable[Hold]) -> tuple[Hold, ...]:
        ended = tuple(holds)
        for hold in ended:
            permission = hold.permission
            del self._holds[hold.switch, permission.job, permission.incarnation, permission.stamp]
        return ended
