"""A job's ranks as a runtime would drive them, with modelled collectives: matched by their order, done when joined."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from offpath.sched.ina.protocol.rank import Give, Rank, Receive, RunPlain
from offpath.sched.ina.protocol.records import EpochRecord, Operation, RankState, Wants

from .judge import Violation

if TYPE_CHECKING:
    from .switches import Conn, SimSwitch
    from .world import World

Handle = tuple[str, int]


class Collectives:
    """Of one incarnation: three groups, each a sequence of calls that must be the same on all ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._calls: dict[str, list[tuple[Any, dict[int, Any]]]] = {"boundary": [], "plain": [], "recovery": []}
        self._next: dict[tuple[str, int], int] = {}

    def join(self, group: str, rank: int, kind: Any, payload: Any) -> Handle:
        calls = self._calls[group]
        place = self._next.get((group, rank), 0)
        self._next[group, rank] = place + 1
        if place == len(calls):
            calls.append((kind, {}))
        if calls[place][0] != kind:
            raise Violation(f"collective {place} of {group} is {kind} at rank {rank}, {calls[place][0]} elsewhere")
        calls[place][1][rank] = payload
        return group, place

    def is_done(self, handle: Handle) -> bool:
        return len(self._calls[handle[0]][handle[1]][1]) == self.ranks

    def of(self, handle: Handle) -> dict[int, Any]:
        return self._calls[handle[0]][handle[1]][1]


class Page:
    """What a rank and its agent share; it outlives both."""

    def __init__(self, state: RankState) -> None:
        self.state = state
        self.epoch: EpochRecord | None = None


class SimRank:
    """A process of a job."""

    def __init__(
        self, world: World, job: str, incarnation: int, rank: int, host: str, group: Collectives, steps: int, ops: int
    ) -> None:
        self.world, self.job, self.incarnation, self.rank, self.host = world, job, incarnation, rank, host
        self.ranks, self.group, self.steps, self.ops = group.ranks, group, steps, ops
        self.machine = Rank(job, incarnation, rank, group.ranks)
        self.state_file = Page(self.machine.state())
        self.conns: dict[int, Conn] = {}
        self.cut: set[int] = set()
        """Stamps whose connection this rank has closed."""
        self.is_alive = True
        self.is_done = False
        self._program = self._run()
        self._until: Callable[[], bool] = lambda: True
        self._operation: Operation | None = None
        self._index = -1
        self._is_open = False
        self._plain: Handle | None = None
        self._receiving: tuple[int, int, Handle] | None = None
        self._gather: tuple[int, Handle] | None = None
        self._kept: tuple[int, Any] = (-1, None)
        self._waited = 0
        self._polls = (
            self._poll_page, self._poll_gather, self._poll_plain, self._poll_trees, self._go_on, self._tire,
        )  # fmt: skip
        self.patience = world.random.choice((60, 200, 600))

    def __str__(self) -> str:
        return f"job {self.job}.{self.incarnation} rank {self.rank}"

    # -- the program ----------------------------------------------------------------------------------------------
    def _run(self) -> Generator[Callable[[], bool], None, None]:
        previous: Handle | None = None
        for step in range(self.steps):
            result = None
            if previous is not None:
                yield lambda handle=previous: self.group.is_done(handle)
                values = self.group.of(previous).values()
                result = min(each[0] for each in values), min(each[1] for each in values)
            before = self.machine.state().applied
            self.machine.agreed(result)
            self.world.judge.applied(self, step, self.machine.state().applied, before)
            previous = self.group.join("boundary", self.rank, "min", self.machine.boundary())
            for n in range(self.ops):
                yield lambda: not self.machine.waits
                self._begin(n)
                yield lambda: not self._is_open
        self.machine.close()
        yield lambda: self.machine.is_settled and self._receiving is None
        self.is_done = True

    def _begin(self, n: int) -> None:
        epoch = self.machine.epoch
        wants = epoch is not None and (epoch.wants is Wants.ALWAYS or (n + len(self.job)) % 2 == 0)
        operation = self.machine.issue(100 + n, "float32", wants)
        self._index += 1
        self._is_open, self._plain, self._operation, self._waited = True, None, operation, 0
        if operation is None:
            self._run_plain()
            return
        self.world.judge.issued(self, operation)
        conn = self.conns.get(operation.stamp)
        if conn is None or not conn.up(("OP", operation, self.rank, {self.rank: self._index})):
            self._lose(operation.stamp)

    def _run_plain(self) -> None:
        self._plain = self.group.join("plain", self.rank, self._index, self._index)

    def _finish(self, value: Any) -> None:
        self.machine.complete(self._index)
        self._is_open = False
        self._kept = self._index, value
        self.world.judge.completed(self, self._index, value)

    # -- one action -----------------------------------------------------------------------------------------------
    def act(self) -> bool:
        """Poll one thing, or go on with the program; False: nothing to do."""
        if not self.is_alive or self.is_done:
            return False
        first = int(self.world.random.random() * len(self._polls))
        acted = any(poll() for poll in (*self._polls[first:], *self._polls[:first]))
        if acted:
            self._after()
        return acted

    def _go_on(self) -> bool:
        if not self._until():
            return False
        try:
            self._until = next(self._program)
        except StopIteration:
            self._close_all()
        return True

    def _poll_page(self) -> bool:
        return self.state_file.epoch is not None and self.machine.hold(self.state_file.epoch)

    def _poll_plain(self) -> bool:
        if self._plain is None or not self._is_open or not self.group.is_done(self._plain):
            return False
        parts = self.group.of(self._plain)
        self._finish(("plain", tuple(sorted(parts.items()))))
        return True

    def _poll_gather(self) -> bool:
        if self._receiving is not None:
            index, source, handle = self._receiving
            if source not in self.group.of(handle):
                return False
            self._receiving = None
            if index >= 0:
                if self.group.of(handle)[source][0] != index:
                    raise Violation(f"{self}: {source} gives {self.group.of(handle)[source]}, not {index}")
                self._finish(self.group.of(handle)[source][1])
            return True
        if self._gather is None or not self.group.is_done(self._gather[1]):
            return False
        (stamp, handle), self._gather = self._gather, None
        values = self.group.of(handle)
        for redo in self.machine.gathered(stamp, [values[rank] for rank in range(self.ranks)]):
            match redo:
                case Give(index, source):
                    if self._kept[0] != index:
                        raise Violation(f"{self}: {index} is to be given, {self._kept[0]} is kept")
                    self.group.join("recovery", self.rank, ("broadcast", index, source), self._kept)
                    self.world.judge.counts["given"] += 1
                case Receive(index, source, is_needed=is_needed):
                    call = self.group.join("recovery", self.rank, ("broadcast", index, source), None)
                    self._receiving = index if is_needed else -1, source, call
                case RunPlain():
                    self.world.judge.counts["redone"] += 1
                    self._run_plain()
        return True

    def _poll_trees(self) -> bool:
        for stamp, conn in list(self.conns.items()):
            frame = conn.read_down()
            if frame is None:
                continue
            match frame:
                case ("ATTACHED", *_):
                    self.machine.ready(stamp)
                case ("VERDICT", Operation(index=index)):
                    if self.machine.refused(index):
                        self._run_plain()
                case ("RESULT", Operation() as operation, value):
                    self.world.judge.received(operation, self.rank)
                    if operation == self._operation and self._is_open:
                        self._finish(("tree", tuple(sorted(value.items()))))
                    conn.up(("DELIVERED", operation, self.rank))
                case ("ABORT", *_) | ("REFUSED", *_) | ("CLOSED",):
                    self._lose(stamp)
            return True
        return False

    def _tire(self) -> bool:
        """An operation under a grant takes too long: the tree counts as lost."""
        epoch = self.machine.epoch
        if not self._is_open or epoch is None or epoch.grant is None:
            return False
        self._waited += 1
        if self._waited < self.patience:
            return False
        return self._lose(epoch.stamp)

    def _lose(self, stamp: int) -> bool:
        is_news = self.machine.lost(stamp)
        self._cut(stamp)
        return is_news

    def _cut(self, stamp: int) -> None:
        conn = self.conns.pop(stamp, None)
        if conn is not None:
            conn.is_down_closed = True
            self.cut.add(stamp)

    def _after(self) -> None:
        statement = self.machine.statement() if self._receiving is None else None
        if statement is not None:
            call = self.group.join("recovery", self.rank, ("gather", statement.stamp), statement.value)
            self._gather = statement.stamp, call
        wanted = {} if self.is_done else {epoch.stamp: epoch for epoch in self.machine.trees()}
        for stamp in [stamp for stamp in self.conns if stamp not in wanted]:
            self._cut(stamp)
        for stamp, epoch in wanted.items():
            if stamp not in self.conns and epoch.grant is not None:
                self._attach(stamp, epoch.grant.attach[self.rank], epoch.grant.token)
        self.state_file.state = self.machine.state()

    def _attach(self, stamp: int, address: str, token: str) -> None:
        conn = self.world.switches[address].connect()
        if conn is None:
            self.machine.lost(stamp)
            return
        self.conns[stamp] = conn
        conn.up(("ATTACH", (self.job, self.incarnation, stamp), self.rank, token))

    def _close_all(self) -> None:
        for stamp in list(self.conns):
            self._cut(stamp)

    # -- what others see ------------------------------------------------------------------------------------------
    def is_cut(self, stamp: int) -> bool:
        """Nothing of the epoch can reach it any more."""
        return not self.is_alive or stamp in self.cut

    def leaf(self, stamp: int) -> SimSwitch | None:
        """The switch that hands it results, if that life of it goes on."""
        conn = self.conns.get(stamp)
        return conn.switch if conn is not None and not conn.is_up_closed else None

    def drop(self) -> None:
        """One of its connections breaks."""
        if self.conns:
            self._lose(self.world.random.choice(list(self.conns)))
            self._after()

    def kill(self) -> None:
        self.is_alive = False
        self._close_all()
