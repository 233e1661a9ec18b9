"""What must hold, whatever happens, judged from the ground: at the ranks, and in what switches really carry.

- ranks alike: at each boundary the same epoch, at each index the same way and the same value, and that value complete
- capacity: at each switch, operations from admission to the last delivery; groups from the permission on
- an old incarnation is admitted nowhere once a newer one was
- stamps of a rank and terms of a switch never go back; one stamp is one epoch
- a controller ends for a later controller only, whatever hosts say of terms
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offpath.sched.ina.protocol.records import EpochRecord, Operation, Permission

if TYPE_CHECKING:
    from .ranks import SimRank
    from .switches import SimSwitch
    from .world import World


_COUNTED = (
    "admitted", "refused", "waited", "waited_in_vain", "given", "redone", "plain", "changes", "fenced",
)  # fmt: skip


class Violation(AssertionError):
    """A promise was broken."""


class Judge:
    """Raises `Violation` at the first broken promise."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._applied: dict[tuple[str, int, int], int] = {}
        self._results: dict[tuple[str, int, int], Any] = {}
        self._asked: dict[tuple[str, int, int], int] = {}
        self._epochs: dict[tuple[str, int, int], EpochRecord] = {}
        self._carried: dict[Operation, tuple[SimSwitch, int, set[int]]] = {}
        """Admitted: the root, its boot, the ranks that have the result."""
        self._newest: dict[str, int] = {}
        self.counts = dict.fromkeys(_COUNTED, 0)

    # -- ranks ----------------------------------------------------------------------------------------------------
    def applied(self, rank: SimRank, boundary: int, stamp: int, before: int) -> None:
        if stamp < before:
            raise Violation(f"{rank}: from epoch {before} back to {stamp}")
        self.counts["changes"] += stamp > before
        key = rank.job, rank.incarnation, boundary
        if self._applied.setdefault(key, stamp) != stamp:
            raise Violation(f"{rank}: epoch {stamp} at boundary {boundary}, another rank {self._applied[key]}")

    def published(self, epoch: EpochRecord) -> None:
        key = epoch.job, epoch.incarnation, epoch.stamp
        if self._epochs.setdefault(key, epoch) != epoch:
            raise Violation(f"two epochs with stamp {epoch.stamp}")

    def deposed(self, term: int) -> None:
        if self._world.newest_term <= term:
            raise Violation(f"the controller of term {term} ended, and no later one began")

    def issued(self, rank: SimRank, operation: Operation) -> None:
        key = rank.job, rank.incarnation, operation.index
        if self._asked.setdefault(key, operation.stamp) != operation.stamp:
            raise Violation(f"{rank}: operation {operation.index} under two epochs")

    def completed(self, rank: SimRank, index: int, value: Any) -> None:
        key = rank.job, rank.incarnation, index
        if self._results.setdefault(key, value) != value:
            raise Violation(f"{rank}: operation {index} is {value}, at another rank {self._results[key]}")
        way, parts = value
        if sorted(parts) != [(n, index) for n in range(rank.ranks)]:
            raise Violation(f"{rank}: operation {index} by {way} is the sum of {parts}")
        self.counts["plain"] += way == "plain"

    # -- switches -------------------------------------------------------------------------------------------------
    def admitted(self, operation: Operation, root: SimSwitch) -> None:
        self.counts["admitted"] += 1
        newest = self._newest[operation.job] = max(self._newest.get(operation.job, 0), operation.incarnation)
        if operation.incarnation < newest:
            raise Violation(f"{operation} was admitted after incarnation {newest}")
        self._carried[operation] = root, root.boot, set()
        for carried in [each for each in self._carried if not self._where(each)]:
            del self._carried[carried]
        busy: dict[str, list[Operation]] = {}
        for each in self._carried:
            for name in self._where(each):
                busy.setdefault(name, []).append(each)
        for name, there in busy.items():
            if len(there) > self._world.switches[name].capacity:
                raise Violation(f"switch {name} carries {there}")

    def received(self, operation: Operation, rank: int) -> None:
        if operation in self._carried:
            self._carried[operation][2].add(rank)

    def _where(self, operation: Operation) -> set[str]:
        """The switches that may still have to hand something of it on."""
        root, boot, have = self._carried[operation]
        key = operation.job, operation.incarnation, operation.stamp
        out: set[str] = set()
        for rank in self._world.ranks_of(operation.job, operation.incarnation):
            if rank.rank in have or rank.is_cut(operation.stamp):
                continue
            leaf = rank.leaf(operation.stamp)
            if leaf is not None and key not in leaf.dropped:
                out.add(leaf.name)
                if root.is_alive and root.boot == boot:
                    out.add(root.name)
        return out

    def allowed(self, switch: SimSwitch, permission: Permission) -> None:
        """A permission was taken in: do the groups that can use the switch fit?"""
        groups = {each.group for each in switch.root.permissions() if self._can_use(each)}
        if len(groups) > switch.capacity and self._can_use(permission):
            raise Violation(f"switch {switch.name} is open to {sorted(groups)}")

    def _can_use(self, permission: Permission) -> bool:
        ranks = self._world.ranks_of(permission.job, permission.incarnation)
        return any(rank.is_alive and rank.machine.state().applied <= permission.stamp for rank in ranks)
