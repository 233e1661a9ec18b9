"""The root of trees: who may use it, which operation is admitted, and when its place is free again. No I/O.

All safety of capacity that an operation needs is here, in one place: nothing is admitted that was not allowed (a switch
that restarts knows no permission, so it admits nothing until it is told again), a verdict is given once, at the first
header, and sticks; a place is held from admission until each rank has the result or is known to get nothing more.
What the tree itself does with data is the switch's affair.

A place is not free because an operation was aborted: a switch below may still be handing its result out. Whoever drives
this machine says `gone` for a rank when nothing more of that epoch will go to it (its connection is closed, or the
switch below said so); that frees.

An operation that finds its group's place taken by the last operation of another job's step waits for it where that is
shorter than to run plain: that job computes next and wants nothing. Whoever drives this machine bounds the wait
(`give_up`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from offpath.sched.ina.protocol.records import Operation, Permission

_Key = tuple[str, int, int]
"""Job, incarnation, stamp."""


class Reason(StrEnum):
    """Why an operation is refused, or an epoch aborted."""

    FULL = "full"
    """As many operations as fit are in the tree, or one of its group is."""
    NOT_ALLOWED = "not_allowed"
    NOT_ATTACHED = "not_attached"
    """Not all ranks of the job are."""
    MISMATCH = "mismatch"
    """Ranks speak of one operation in different words. To be reported."""
    PAST = "past"
    """The header of an operation that was refused came after its successor's."""
    ABORTED = "aborted"
    FENCED = "fenced"
    GONE = "gone"
    """A rank, or what it was reached by, is."""


@dataclass(frozen=True, slots=True)
class Abort:
    """To be told to ``ranks``: nothing more comes under this epoch. What was in flight is dropped."""

    job: str
    incarnation: int
    stamp: int
    ranks: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one operation, for all ranks. ``is_first``: to be told to them all, if it is no; later ones repeat it.
    ``waits``: the job's last operation is still being delivered, or a place is about to be free; the verdict comes by
    `Root.decided`. ``abort``: what its ranks said of it can never come together."""

    operation: Operation
    is_admitted: bool
    reason: Reason | None = None
    is_first: bool = False
    waits: bool = False
    abort: Abort | None = None


@dataclass(slots=True)
class _Tree:
    permission: Permission
    attached: set[int] = field(default_factory=set)
    is_aborted: bool = False
    last: Verdict | None = None
    missing: set[int] = field(default_factory=set)
    """Ranks that may still get something of the operation in flight; none: nothing is."""
    waiting: Operation | None = None
    """For the end of its own job's last one, or for a place: `Root._for_place`."""
    is_last: bool = False
    """Of ``waiting``, or of ``last``: no other of its step comes after it."""


class Root:
    """What of a switch decides: it is the root for the permissions that name no parent, a passage for the others.

    ``left``: the bytes of an operation in flight whose result is still to come; None: nobody waits for a place.
    """

    def __init__(self, capacity: int = 1, left: Callable[[Operation], int] | None = None) -> None:
        if capacity < 1:
            raise ValueError("a capacity of 1 or more")
        self._left = left
        self._for_place: dict[_Key, Operation] = {}
        """Trees whose ``waiting`` waits for a place, and whose operation has it."""
        self._slow: set[Operation] = set()
        """In flight, and waited for in vain."""
        self.capacity = capacity
        """May be set anew; what is in flight stays."""
        self.term = 0
        self.mismatches = 0
        self._trees: dict[_Key, _Tree] = {}
        self._fences: dict[str, tuple[int, int]] = {}
        """Job → the greatest (incarnation, stamp) that is fenced, with all below it."""
        self._decided: list[Verdict] = []

    @property
    def in_flight(self) -> int:
        """Operations that hold a place."""
        return sum(bool(tree.missing) for tree in self._trees.values())

    def permissions(self) -> tuple[Permission, ...]:
        """What is allowed here: what a new controller's ledger begins with."""
        return tuple(tree.permission for tree in self._trees.values())

    # -- the controller's words -----------------------------------------------------------------------------------
    def led_by(self, term: int) -> bool:
        """A controller begins to speak; False: an older one, not to be listened to any more."""
        if term < self.term:
            return False
        self.term = term
        return True

    def allow(self, permission: Permission) -> bool:
        """False: refused. Repeating it is harmless: what was aborted stays so."""
        key = permission.job, permission.incarnation, permission.stamp
        if not self.led_by(permission.term) or self._is_fenced(key):
            return False
        known = self._trees.setdefault(key, _Tree(permission))
        return known.permission == permission

    def fence(self, term: int, job: str, incarnation: int, stamp: int) -> tuple[Abort, ...] | None:
        """Nothing of the job up to (incarnation, stamp) is admitted any more, for good. None: an old term.

        It is done when `is_clear` says so, not before: until then something may still be delivered.
        """
        if not self.led_by(term):
            return None
        self._fences[job] = max(self._fences.get(job, (0, 0)), (incarnation, stamp))
        aborts = [
            self._abort(key, Reason.FENCED) for key in self._trees if key[0] == job and self._is_fenced(key)
        ]  # fmt: skip
        self._forget()
        return tuple(abort for abort in aborts if abort)

    def is_clear(self, job: str, incarnation: int, stamp: int) -> bool:
        """Nothing of the job up to (incarnation, stamp) holds a place or is attached."""
        return not any(
            key[0] == job and key[1:] <= (incarnation, stamp) and (tree.missing or tree.attached)
            for key, tree in self._trees.items()
        )

    # -- ranks ----------------------------------------------------------------------------------------------------
    def attach(self, job: str, incarnation: int, stamp: int, rank: int, token: str) -> bool:
        """A rank joins; False: it may not."""
        tree = self._trees.get((job, incarnation, stamp))
        if tree is None or tree.is_aborted or self._is_fenced((job, incarnation, stamp)):
            return False
        if token != tree.permission.token or not 0 <= rank < tree.permission.ranks or rank in tree.attached:
            return False
        tree.attached.add(rank)
        return True

    def request(self, operation: Operation, rank: int, *, is_last: bool = False) -> Verdict:
        """A header came, from ``rank`` or from the first rank of a switch below. ``is_last``: of its step."""
        tree = self._trees.get((operation.job, operation.incarnation, operation.stamp))
        if tree is None:
            return Verdict(operation, False, Reason.NOT_ALLOWED)
        if tree.is_aborted:
            return Verdict(operation, False, Reason.ABORTED)
        if rank not in tree.attached:
            return Verdict(operation, False, Reason.NOT_ATTACHED)
        if tree.waiting is not None:
            if operation == tree.waiting:
                return Verdict(operation, False, waits=True)
            return self._odd(tree, operation, operation.index < tree.waiting.index)
        last = tree.last
        if last is not None and operation.index <= last.operation.index:
            if operation == last.operation:
                return Verdict(operation, last.is_admitted, last.reason)
            return self._odd(tree, operation, operation.index < last.operation.index)
        tree.is_last = is_last
        if self._is_busy(operation.job, operation.incarnation):
            tree.waiting = operation
            return Verdict(operation, False, waits=True)
        return self._decide(tree, operation)

    def delivered(self, operation: Operation, rank: int) -> None:
        """``rank`` has its result. Repeating it is harmless."""
        tree = self._trees.get((operation.job, operation.incarnation, operation.stamp))
        if tree is not None and tree.last is not None and tree.last.operation == operation:
            self._miss_less(tree, rank)

    def gone(self, job: str, incarnation: int, stamp: int, rank: int) -> tuple[Abort, ...]:
        """Nothing more goes to ``rank`` under this epoch: the others are told so. Repeating it is harmless."""
        key = job, incarnation, stamp
        tree = self._trees.get(key)
        if tree is None or rank not in tree.attached:
            return ()
        tree.attached.discard(rank)
        abort = self._abort(key, Reason.GONE)
        self._miss_less(tree, rank)
        self._forget()
        return (abort,) if abort else ()

    def lost(self, job: str, incarnation: int, stamp: int) -> None:
        """The tree is lost for this epoch: nothing of it is admitted any more. Its place is free as `gone` says."""
        if (job, incarnation, stamp) in self._trees:
            self._abort((job, incarnation, stamp), Reason.GONE)

    def holds(self, job: str, incarnation: int, stamp: int) -> bool:
        """Whether an operation of this epoch has a place."""
        tree = self._trees.get((job, incarnation, stamp))
        return tree is not None and bool(tree.missing)

    def decided(self) -> tuple[Verdict, ...]:
        """Verdicts on operations that had to wait; to be asked for after `delivered`, `gone`, `fence`, `give_up`."""
        out, self._decided = tuple(self._decided), []
        return out

    def awaited(self) -> dict[Operation, Operation]:
        """Operations that wait for a place, and whose."""
        waiting = {key: self._trees[key].waiting for key in self._for_place}
        return {each: self._for_place[key] for key, each in waiting.items() if each is not None}

    def give_up(self, operation: Operation) -> None:
        """It has waited for a place long enough: it is refused, and nobody waits for that place again. Harmless for one
        that does not wait."""
        key = operation.job, operation.incarnation, operation.stamp
        if key not in self._for_place or self._trees[key].waiting != operation:
            return
        self._slow.add(self._for_place.pop(key))
        tree = self._trees[key]
        tree.waiting = None
        tree.last = Verdict(operation, False, Reason.FULL)
        self._decided.append(Verdict(operation, False, Reason.FULL, is_first=True))

    # -- inside ---------------------------------------------------------------------------------------------------
    def _is_fenced(self, key: _Key) -> bool:
        return key[1:] <= self._fences.get(key[0], (-1, -1))

    def _is_busy(self, job: str, incarnation: int) -> bool:
        """The job's last operation is still being delivered to some ranks, while others are at the next one."""
        return any(tree.missing for key, tree in self._trees.items() if key[:2] == (job, incarnation))

    def _odd(self, tree: _Tree, operation: Operation, is_past: bool) -> Verdict:
        if is_past:
            return Verdict(operation, False, Reason.PAST)
        self.mismatches += 1
        abort = None
        if tree.waiting is not None or tree.missing:  # who named it first waits for one who will not come
            abort = self._abort((operation.job, operation.incarnation, operation.stamp), Reason.MISMATCH)
        return Verdict(operation, False, Reason.MISMATCH, abort=abort)

    def _decide(self, tree: _Tree, operation: Operation) -> Verdict:
        reason = None
        if len(tree.attached) < tree.permission.ranks:
            reason = Reason.NOT_ATTACHED
        elif self.in_flight >= self.capacity or self._is_group_busy(tree.permission.group):
            holder = self._worth_waiting(tree, operation)
            if holder is not None:
                tree.waiting = operation
                self._for_place[operation.job, operation.incarnation, operation.stamp] = holder
                return Verdict(operation, False, waits=True)
            reason = Reason.FULL
        else:
            tree.missing = set(range(tree.permission.ranks))
        tree.last = Verdict(operation, reason is None, reason)
        return Verdict(operation, reason is None, reason, is_first=True)

    def _is_group_busy(self, group: str) -> bool:
        return bool(group) and any(tree.missing and tree.permission.group == group for tree in self._trees.values())

    def _worth_waiting(self, tree: _Tree, operation: Operation) -> Operation | None:
        """Whose place is free soon, for ``operation`` to have it.

        Of a group's jobs one is in the tree. If what its last operation has still to bring is no more than what a ring
        of our ranks would move beyond a tree, 2(n-1)/n - 1 of our bytes, waiting is shorter. One waits at a time.
        """
        group, ranks = tree.permission.group, tree.permission.ranks
        if self._left is None or not group or self.in_flight > self.capacity:
            return None
        if any(self._trees[key].permission.group == group for key in self._for_place):
            return None
        for each in self._trees.values():
            if each.missing and each.permission.group == group and each.is_last and each.waiting is None:
                assert each.last is not None
                holder = each.last.operation
                if holder not in self._slow and self._left(holder) * ranks <= (ranks - 2) * operation.nbytes:
                    return holder
        return None

    def _miss_less(self, tree: _Tree, rank: int) -> None:
        if rank not in tree.missing:
            return
        tree.missing.discard(rank)
        if tree.missing:
            return
        assert tree.last is not None
        over = tree.last.operation
        self._slow.discard(over)
        for key in [key for key, holder in self._for_place.items() if holder == over]:
            del self._for_place[key]  # whoever waited for the place comes before the job's own next operation
            self._decide_waiting(self._trees[key])
        for key, each in self._trees.items():
            if key[:2] == (over.job, over.incarnation) and key not in self._for_place:
                self._decide_waiting(each)

    def _decide_waiting(self, tree: _Tree) -> None:
        if tree.waiting is None or self._is_busy(tree.permission.job, tree.permission.incarnation):
            return
        operation, tree.waiting = tree.waiting, None
        verdict = self._decide(tree, operation)
        if not verdict.waits:
            self._decided.append(verdict)

    def _abort(self, key: _Key, reason: Reason) -> Abort | None:
        tree = self._trees[key]
        if tree.is_aborted:
            return None
        tree.is_aborted, tree.waiting = True, None
        self._for_place.pop(key, None)
        return Abort(*key, tuple(sorted(tree.attached)), reason)

    def _forget(self) -> None:
        """A fenced tree in which nobody is: the fence alone is remembered."""
        for key in [key for key in self._trees if self._is_fenced(key)]:
            tree = self._trees[key]
            if not tree.missing and not tree.attached:
                del self._trees[key]
