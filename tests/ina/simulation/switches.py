"""Switches that carry sums: every one drives the protocol's `Root`, for what it is the root of and for what passes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from offpath.sched.ina.protocol.events import Allow, Allowed, Fence, Fenced
from offpath.sched.ina.protocol.records import Operation, Permission
from offpath.sched.ina.protocol.root import Abort, Root, Verdict

if TYPE_CHECKING:
    from .world import World

_GIVES_UP = 0.03
"""How likely a switch gives up an operation that waits for a place, whenever it acts."""
Frame = tuple[Any, ...]
Key = tuple[str, int, int]


class Conn:
    """A stream in both directions, in order; each end may close it, and reads what came before it learns so."""

    def __init__(self, switch: SimSwitch) -> None:
        self.switch = switch
        self.to_switch: deque[Frame] = deque()
        self.from_switch: deque[Frame] = deque()
        self.is_up_closed = False
        self.is_down_closed = False

    def up(self, frame: Frame) -> bool:
        if not self.is_up_closed:
            self.to_switch.append(frame)
        return not self.is_up_closed

    def down(self, frame: Frame) -> None:
        if not self.is_down_closed and not self.is_up_closed:
            self.from_switch.append(frame)

    def has_result(self) -> bool:
        return any(frame[0] == "RESULT" for frame in self.from_switch)

    def read_down(self) -> Frame | None:
        if self.from_switch:
            return self.from_switch.popleft()
        return ("CLOSED",) if self.is_up_closed else None


class SimSwitch:
    """One switch through its lives."""

    def __init__(self, world: World, name: str, capacity: int) -> None:
        self.world, self.name, self.capacity = world, name, capacity
        self.boot = 0
        self.is_alive = False
        self.is_frozen = False
        self.start()

    def start(self) -> None:
        self.boot += 1
        self.is_alive, self.is_frozen = True, False
        self.root = Root(self.capacity, self._left)
        self.waited: set[Operation] = set()
        self.conns: list[Conn] = []
        self.parents: dict[str, Conn] = {}
        self.members: dict[Key, dict[int, Conn]] = {}
        self.sums: dict[Operation, dict[int, int]] = {}
        self.headed: dict[Key, int] = {}
        self.dropped: set[Key] = set()
        """Of these nothing more is handed on."""
        self.fences: list[tuple[Any, Fence]] = []

    def kill(self) -> None:
        self.is_alive = False
        for conn in self.conns:
            conn.is_up_closed = True
        for conn in self.parents.values():
            conn.is_down_closed = True
        self.world.break_sessions(self)

    def connect(self) -> Conn | None:
        if not self.is_alive:
            return None
        self.conns.append(conn := Conn(self))
        return conn

    # -- one action -----------------------------------------------------------------------------------------------
    def act(self) -> bool:
        if not self.is_alive or self.is_frozen:
            return False
        if self._gives_up():
            return True
        ready = [conn for conn in self.conns if conn.to_switch or conn.is_down_closed]
        above = [(name, conn) for name, conn in self.parents.items() if conn.from_switch or conn.is_up_closed]
        if not ready and not above:
            return bool(self.root.awaited())
        n = int(self.world.random.random() * (len(ready) + len(above)))
        if n < len(ready):
            conn = ready[n]
            if conn.to_switch:
                self._from_below(conn, conn.to_switch.popleft())
            else:
                self._closed(conn)
        else:
            name, conn = above[n - len(ready)]
            self._from_above(name, conn.read_down())
        self._tell(*self.root.decided())
        self._confirm()
        return True

    def _left(self, operation: Operation) -> int:
        """Bytes: little or much."""
        return self.world.random.choice((0, 0, 1 << 40))

    def _gives_up(self) -> bool:
        """Sooner or later a job that waits for a place is refused."""
        awaited = self.root.awaited()
        self.waited.update(awaited)
        if not awaited or self.world.random.random() > _GIVES_UP:
            return False
        self.root.give_up(next(iter(awaited)))
        self._tell(*self.root.decided())
        return True

    def control(self, session: Any, command: Allow | Fence) -> None:
        """A controller's word, by a session with this life."""
        match command:
            case Allow(permission=permission):
                is_allowed = self.root.allow(permission)
                if is_allowed:
                    self.world.judge.allowed(self, permission)
                self.world.answer(session, Allowed(
                    self.name, self.boot, permission.job, permission.incarnation, permission.stamp, is_allowed
                ))  # fmt: skip
            case Fence(term=term, job=job, incarnation=incarnation, stamp=stamp):
                aborts = self.root.fence(term, job, incarnation, stamp)
                if aborts is not None:
                    self.world.judge.counts["fenced"] += 1
                    self.fences.append((session, command))
                    for abort in aborts:
                        self._aborted(abort)
                    self._tell(*self.root.decided())
                    self._confirm()

    def _confirm(self) -> None:
        for each in list(self.fences):
            session, fence = each
            if self.root.is_clear(fence.job, fence.incarnation, fence.stamp):
                self.fences.remove(each)
                self.world.answer(session, Fenced(self.name, self.boot, fence.job, fence.incarnation, fence.stamp))

    # -- frames ---------------------------------------------------------------------------------------------------
    def _permission(self, key: Key) -> Permission | None:
        for each in self.root.permissions():
            if (each.job, each.incarnation, each.stamp) == key:
                return each
        return None

    def _up(self, key: Key, frame: Frame) -> bool:
        """To the switch above; False: this one is the root, or there is none above."""
        permission = self._permission(key)
        if permission is None or not permission.parent:
            return False
        if permission.parent not in self.parents:
            conn = self.world.switches[permission.parent].connect()
            if conn is None:
                self._drop(key)
                return True
            self.parents[permission.parent] = conn
        self.parents[permission.parent].up(frame)
        return True

    def _from_below(self, conn: Conn, frame: Frame) -> None:
        match frame:
            case ("ATTACH", key, rank, token):
                if key in self.dropped or not self.root.attach(*key, rank, token):
                    conn.down(("REFUSED", key, rank))
                    return
                self.members.setdefault(key, {})[rank] = conn
                if not self._up(key, frame):
                    conn.down(("ATTACHED", key, rank))
            case ("OP", operation, rank, parts):
                self._operation(conn, operation, rank, parts)
            case ("DELIVERED", operation, rank):
                self.root.delivered(operation, rank)
                self._up(_key(operation), frame)
            case ("GONE", key, rank):
                self._gone(key, rank)

    def _operation(self, conn: Conn, operation: Operation, rank: int, parts: dict[int, int]) -> None:
        key = _key(operation)
        permission = self._permission(key)
        if key in self.dropped or permission is None:
            conn.down(("ABORT", key))
            return
        if permission.parent:
            self._pass(permission, operation, rank, parts)
            return
        verdict = self.root.request(operation, rank, is_last=operation.index % 2 == 1)
        if parts:
            self.sums.setdefault(operation, {}).update(parts)
        self._tell(verdict)
        if verdict.is_admitted and not verdict.is_first:
            self._sum(operation)

    def _pass(self, permission: Permission, operation: Operation, rank: int, parts: dict[int, int]) -> None:
        key = _key(operation)
        if self.headed.get(key, -1) < operation.index:
            self.headed[key] = operation.index
            self._up(key, ("OP", operation, rank, {}))
        sums = self.sums.setdefault(operation, {})
        sums.update(parts)
        under = {*permission.local, *(each for _, below in permission.below for each in below)}
        if set(sums) == under:
            self._up(key, ("OP", operation, rank, self.sums.pop(operation)))

    def _tell(self, *verdicts: Verdict) -> None:
        for verdict in verdicts:
            operation = verdict.operation
            if verdict.abort:
                self._aborted(verdict.abort)
            if verdict.is_first and operation in self.waited:
                self.waited.discard(operation)
                self.world.judge.counts["waited" if verdict.is_admitted else "waited_in_vain"] += 1
            if verdict.is_first and verdict.is_admitted:
                self.world.judge.admitted(operation, self)
                self._sum(operation)
            elif verdict.is_first:
                self.world.judge.counts["refused"] += 1
                self.sums.pop(operation, None)
                self._down(_key(operation), ("VERDICT", operation))

    def _sum(self, operation: Operation) -> None:
        members = self.members.get(_key(operation), {})
        sums = self.sums.get(operation, {})
        if members and set(sums) == set(range(len(members))):
            del self.sums[operation]
            self._down(_key(operation), ("RESULT", operation, sums))

    def _down(self, key: Key, frame: Frame) -> None:
        for conn in dict.fromkeys(self.members.get(key, {}).values()):
            conn.down(frame)

    def _from_above(self, name: str, frame: Frame | None) -> None:
        match frame:
            case ("ATTACHED", key, rank):
                if rank in self.members.get(key, {}):
                    self.members[key][rank].down(frame)
            case ("REFUSED" | "ABORT", key, *_):
                self._drop(key)
            case ("VERDICT" | "RESULT", operation, *_):
                self.sums.pop(operation, None)
                self._down(_key(operation), frame)
            case ("CLOSED",):
                del self.parents[name]
                for permission in self.root.permissions():
                    if permission.parent == name:
                        self._drop((permission.job, permission.incarnation, permission.stamp))

    # -- losses ---------------------------------------------------------------------------------------------------
    def _drop(self, key: Key) -> None:
        """Hand nothing on any more; tell those below, and above that it is so."""
        self.dropped.add(key)
        self.sums = {operation: parts for operation, parts in self.sums.items() if _key(operation) != key}
        members = self.members.pop(key, {})
        for conn in dict.fromkeys(members.values()):
            conn.down(("ABORT", key))
        for rank in members:
            self._up_if_linked(key, ("GONE", key, rank))
            self.root.gone(*key, rank)

    def _up_if_linked(self, key: Key, frame: Frame) -> None:
        permission = self._permission(key)
        if permission is not None and permission.parent in self.parents:
            self.parents[permission.parent].up(frame)

    def _gone(self, key: Key, rank: int) -> None:
        members = self.members.get(key, {})
        conn = members.pop(rank, None)
        permission = self._permission(key)
        if permission is not None and permission.parent:
            if conn is not None:  # one of a job is gone: nothing can become of any
                members[rank] = conn
                self._drop(key)
            return
        for abort in self.root.gone(*key, rank):
            self._aborted(abort)

    def _aborted(self, abort: Abort) -> None:
        """The root's: those attached here get nothing more at once, those below when their switch says so."""
        key = abort.job, abort.incarnation, abort.stamp
        permission = self._permission(key)
        if permission is None or permission.parent:
            self._drop(key)
            return
        self.dropped.add(key)
        self._down(key, ("ABORT", key))
        for rank in permission.local:
            self.members.get(key, {}).pop(rank, None)
            self.root.gone(*key, rank)

    def _closed(self, conn: Conn) -> None:
        conn.is_up_closed = True
        self.conns.remove(conn)
        for key in list(self.members):
            for rank in [rank for rank, each in self.members.get(key, {}).items() if each is conn]:
                self._gone(key, rank)


def _key(operation: Operation) -> Key:
    return operation.job, operation.incarnation, operation.stamp
