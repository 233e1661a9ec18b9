"""The root of trees: decides who may use it, which operation is admitted, and when its place is free again. No I/O.

All capacity checks of an operation are here. Nothing is admitted without permission; a restarted switch has no
permissions, so it admits nothing until the controller sends them again. A verdict is given once, at the first header,
and is final. A place is held from admission until each rank has the result or is known to get nothing more. The switch
handles the data itself.

Aborting an operation does not free its place: a switch below may still be delivering its result. The caller reports
`gone` for a rank when nothing more of that epoch will go to it (its connection is closed, or the switch below reported
so); that frees the place.

An operation may wait for its group's place while the last operation of another job's step holds it, if that is shorter
than to run plain: the other job computes next and requests nothing. The caller bounds the wait (`give_up`).
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
    """The tree holds as many operations as fit, or one of its group."""
    NOT_ALLOWED = "not_allowed"
    NOT_ATTACHED = "not_attached"
    """Not all ranks of the job are attached."""
    MISMATCH = "mismatch"
    """Ranks describe one operation differently. Must be reported."""
    PAST = "past"
    """The header of a refused operation came after its successor's."""
    ABORTED = "aborted"
    FENCED = "fenced"
    GONE = "gone"
    """A rank, or its connection, is gone."""


@dataclass(frozen=True, slots=True)
class Abort:
    """To be sent to ``ranks``: nothing more comes under this epoch. Operations in flight are dropped."""

    job: str
    incarnation: int
    stamp: int
    ranks: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one operation, for all ranks. ``is_first``: a refusal must be sent to all of them; later verdicts
    repeat it. ``waits``: the job's last operation is still being delivered, or a place will soon be free;
    `Root.decided` returns the verdict. ``abort``: the ranks' headers can never match."""

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
    """Ranks that may still get a part of the operation in flight; empty: none is in flight."""
    waiting: Operation | None = None
    """Waits for the end of its own job's last operation, or for a place: `Root._for_place`."""
    is_last: bool = False
    """True if ``waiting``, or else ``last``, is the last operation of its step."""


class Root:
    """The decision logic of a switch: root for permissions without a parent, pass-through for the others.

    ``left``: remaining result bytes of an operation in flight; None: operations do not wait for a place.
    """

    def __init__(self, capacity: int = 1, left: Callable[[Operation], int] | None = None) -> None:
        if capacity < 1:
            raise ValueError("the capacity must be 1 or more")
        self._left = left
        self._for_place: dict[_Key, Operation] = {}
        """Trees with a ``waiting`` that waits for a place, and the operation that holds the place."""
        self._slow: set[Operation] = set()
        """In flight, and not done when a wait for them was given up."""
        self.capacity = capacity
        """May be changed; operations in flight stay."""
        self.term = 0
        self.mismatches = 0
        self._trees: dict[_Key, _Tree] = {}
        self._fences: dict[str, tuple[int, int]] = {}
        """Job → the greatest fenced (incarnation, stamp), which includes all below it."""
        self._decided: list[Verdict] = []

    @property
    def in_flight(self) -> int:
        """Number of operations that hold a place."""
        return sum(bool(tree.missing) for tree in self._trees.values())

    def permissions(self) -> tuple[Permission, ...]:
        """The permissions here: the initial ledger of a new controller."""
        return tuple(tree.permission for tree in self._trees.values())

    # -- messages of the controller -------------------------------------------------------------------------------
    def led_by(self, term: int) -> bool:
        """Handle the term of a controller; False: it is outdated and must be ignored."""
        if term < self.term:
            return False
        self.term = term
        return True

    def allow(self, permission: Permission) -> bool:
        """Add a permission. False: refused. Idempotent; aborted stays aborted."""
        key = permission.job, permission.incarnation, permission.stamp
        if not self.led_by(permission.term) or self._is_fenced(key):
            return False
        known = self._trees.setdefault(key, _Tree(permission))
        return known.permission == permission

    def fence(self, term: int, job: str, incarnation: int, stamp: int) -> tuple[Abort, ...] | None:
        """Admit nothing of the job up to (incarnation, stamp), permanently. None: an old term.

        The fence is complete only when `is_clear` returns True: until then results may still be delivered.
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
        """True if nothing of the job up to (incarnation, stamp) holds a place or is attached."""
        return not any(
            key[0] == job and key[1:] <= (incarnation, stamp) and (tree.missing or tree.attached)
            for key, tree in self._trees.items()
        )

    # -- ranks ----------------------------------------------------------------------------------------------------
    def attach(self, job: str, incarnation: int, stamp: int, rank: int, token: str) -> bool:
        """Attach a rank; False: not permitted."""
        tree = self._trees.get((job, incarnation, stamp))
        if tree is None or tree.is_aborted or self._is_fenced((job, incarnation, stamp)):
            return False
        if token != tree.permission.token or not 0 <= rank < tree.permission.ranks or rank in tree.attached:
            return False
        tree.attached.add(rank)
        return True

    def request(self, operation: Operation, rank: int, *, is_last: bool = False) -> Verdict:
        """Handle a header from ``rank`` or from the first rank of a switch below. ``is_last``: the last one of its
        step."""
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
        """``rank`` has the result of the operation. Idempotent."""
        tree = self._trees.get((operation.job, operation.incarnation, operation.stamp))
        if tree is not None and tree.last is not None and tree.last.operation == operation:
            self._miss_less(tree, rank)

    def gone(self, job: str, incarnation: int, stamp: int, rank: int) -> tuple[Abort, ...]:
        """Nothing more goes to ``rank`` under this epoch; returns the notice to the others. Idempotent."""
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
        """The tree is lost for this epoch: admit nothing more of it. `gone` frees its place."""
        if (job, incarnation, stamp) in self._trees:
            self._abort((job, incarnation, stamp), Reason.GONE)

    def holds(self, job: str, incarnation: int, stamp: int) -> bool:
        """True if an operation of this epoch has a place."""
        tree = self._trees.get((job, incarnation, stamp))
        return tree is not None and bool(tree.missing)

    def decided(self) -> tuple[Verdict, ...]:
        """Verdicts on operations that had to wait; call after `delivered`, `gone`, `fence`, `give_up`."""
        out, self._decided = tuple(self._decided), []
        return out

    def awaited(self) -> dict[Operation, Operation]:
        """Operations that wait for a place, with the operation that holds it."""
        waiting = {key: self._trees[key].waiting for key in self._for_place}
        return {each: self._for_place[key] for key, each in waiting.items() if each is not None}

    def give_up(self, operation: Operation) -> None:
        """Refuse an operation that has waited too long; no operation waits for that place again. No effect if it does
        not wait."""
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
        """True while the job's last operation is still being delivered to some ranks and others are at the next one."""
        return any(tree.missing for key, tree in self._trees.items() if key[:2] == (job, incarnation))

    def _odd(self, tree: _Tree, operation: Operation, is_past: bool) -> Verdict:
        if is_past:
            return Verdict(operation, False, Reason.PAST)
        self.mismatches += 1
        abort = None
        if tree.waiting is not None or tree.missing:  # the ranks that named it first would wait forever
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
        """The operation with a place that will soon be free for ``operation``, or None.

        One job of a group is in the tree. Waiting is shorter if the remaining bytes of that job's last operation do not
        exceed what a ring of the ranks moves beyond a tree: 2(n-1)/n - 1 times the bytes of ``operation``. One
        operation waits at a time.
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
            del self._for_place[key]  # a waiting operation precedes the same job's next one
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
        """Forget fenced trees without attached ranks; only the fence is kept."""
        for key in [key for key in self._trees if self._is_fenced(key)]:
            tree = self._trees[key]
            if not tree.missing and not tree.attached:
                del self._trees[key]
