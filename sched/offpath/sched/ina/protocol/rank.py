"""One rank of a job: decides which epoch applies, how each all-reduce runs, and how to recover from a lost tree. No
I/O.

How all ranks apply the same epoch. At every boundary each rank contributes the newest epoch it could use to a MIN
all-reduce of (s, -s). It applies at this boundary the result of the *previous* boundary, and only if minimum and
maximum are the same epoch. Because this is one result of one collective, all ranks apply the same epoch at the same
place, and never an epoch that one of them lacks. No rank waits for controller, agent or switch: a missing epoch is not
applied.

How all ranks stay consistent when a tree is lost. For every granted epoch that was applied, each rank gathers exactly
one statement with all others, over the job's own processes: when it loses the tree, or when it leaves the epoch. After
its statement a rank does not use that tree. An operation is complete at a rank only when all ranks joined it, and a
rank joins the next one only when this one is complete at it. So ranks are at most one operation apart, and at most one
operation can be complete at some ranks and not at others. A rank that has the result sends it to all (a second sum
could differ in the last bit); if no rank has it, the operation runs plain.

The caller of this machine must follow four rules.

- Statements are gathered one at a time, each with its broadcast before the next (`statement` returns none before): the
  collectives of a group must run in the same order on all ranks.
- While it waits for anything, the rank keeps polling its trees and the current gathering: another rank may wait for its
  statement or its result. It starts no operation while `waits`.
- An operation under a granted epoch, plain or not, that exceeds its time limit counts as a loss of the tree: a switch
  that neither works nor disconnects may have notified one rank and not another.
- The rank is attached to all of `trees`: a rank that has left an epoch stays attached until all have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from offpath.sched.errors import InvalidTransition
from offpath.sched.ina.protocol.records import EpochRecord, Operation, RankState


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of a boundary: the epoch that applies from here on, if it is a new one."""

    epoch: EpochRecord | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """To be gathered with those of all other ranks (one int64 each, in rank order)."""

    stamp: int
    value: int
    """Twice the lowest incomplete index, plus one if that operation is in progress here and known to run plain."""


@dataclass(frozen=True, slots=True)
class Give:
    """Broadcast the result of ``index`` to all; ``source`` is this rank."""

    index: int
    source: int
    nbytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Receive:
    """Take part in the broadcast of ``source``. If ``is_needed``, it is the result of the operation in progress here
    and completes it; otherwise this rank has the result already and discards it."""

    index: int
    source: int
    nbytes: int
    dtype: str
    is_needed: bool


@dataclass(frozen=True, slots=True)
class RunPlain:
    """Run the operation in progress plain, from the saved input."""

    index: int


Redo = Give | Receive | RunPlain


class _Way(Enum):
    TREE = auto()
    PLAIN = auto()
    DOUBT = auto()
    """It ran in a tree that was lost; the statements decide."""


@dataclass(slots=True)
class _Running:
    index: int
    nbytes: int
    dtype: str
    way: _Way


class Rank:
    """See the module. Raises: InvalidTransition: a call that does not fit the calls before it."""

    def __init__(self, job: str, incarnation: int, rank: int, ranks: int) -> None:
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} of {ranks}")
        self.job, self.incarnation, self.rank, self.ranks = job, incarnation, rank, ranks
        self._epochs: dict[int, EpochRecord] = {}
        """By stamp: applied and offered epochs, and the newest (ready) one."""
        self._ready: set[int] = set()
        self._lost: set[int] = set()
        self._most_lost = 0
        self._held = 0
        self._applied = 0
        self._offered: int | None = None
        """The contribution to the boundary in progress."""
        self._index = 0
        self._running: _Running | None = None
        self._last: _Running | None = None
        """The last completed operation; other ranks may need its result."""
        self._refused: set[int] = set()
        self._stated = 0
        """The greatest stamp with a statement due or given: statements follow the order of stamps."""
        self._due: deque[Statement] = deque()
        self._sizes: dict[int, dict[int, tuple[int, str]]] = {}
        """By stamp without gathered statements, by index: size and type of results that may be broadcast. When the
        statements arrive, a rank that needs nothing may have advanced."""
        self._gathering: Statement | None = None
        self._must_settle: set[int] = set()
        """Stamps of trees lost during use, without gathered statements."""
        self._is_closed = False

    # -- epochs ---------------------------------------------------------------------------------------------------
    def hold(self, epoch: EpochRecord) -> bool:
        """Handle an epoch, in any order, any number of times; False if ignored."""
        is_ours = epoch.job == self.job and epoch.incarnation == self.incarnation
        if not is_ours or epoch.stamp <= self._held:
            return False
        if epoch.grant and len(epoch.grant.attach) != self.ranks:
            return False
        self._held = epoch.stamp
        self._epochs[epoch.stamp] = epoch
        if not epoch.grant:
            self._ready.add(epoch.stamp)
        self._forget()
        return True

    def ready(self, stamp: int) -> bool:
        """This rank is attached to the epoch's tree; False if that is no longer wanted."""
        if stamp not in self._epochs or stamp in self._lost:
            return False
        self._ready.add(stamp)
        self._forget()
        return True

    def trees(self) -> tuple[EpochRecord, ...]:
        """Granted epochs with trees that this rank must attach to or stay attached to, oldest first."""
        wanted = {stamp for stamp in (self._held, self._offered, self._usable()) if stamp and stamp > self._applied}
        wanted |= self._unsettled()
        if self._applied > self._stated:
            wanted.add(self._applied)
        kept = sorted(wanted - self._lost)
        return tuple(self._epochs[stamp] for stamp in kept if self._epochs[stamp].grant)

    def boundary(self) -> tuple[int, int]:
        """Contribution to this boundary's MIN all-reduce of two int64. Call after `agreed`."""
        if self._offered is not None:
            raise InvalidTransition("a boundary before the last one's result", self._story())
        self._offered = max(self._applied, self._usable())
        return self._offered, -self._offered

    def agreed(self, previous: tuple[int, int] | None) -> Applied:
        """Apply the previous boundary's result at this boundary; None at the first one."""
        if self._running:
            raise InvalidTransition("a boundary with an operation in progress", self._story())
        if (previous is None) != (self._offered is None):
            raise InvalidTransition("a result without a boundary, or the reverse", self._story())
        offered, self._offered = self._offered, None
        if previous is None or previous[0] != -previous[1] or previous[0] <= self._applied:
            self._forget()
            return Applied()
        if previous[0] != offered:
            raise InvalidTransition(f"all offered {previous[0]}, this rank {offered}", self._story())
        self._leave()
        self._applied = offered
        epoch = self._epochs[offered]
        if offered in self._lost:
            self._state_loss(offered)
        self._forget()
        return Applied(epoch)

    @property
    def epoch(self) -> EpochRecord | None:
        """The applied epoch; None: the initial state, without INA."""
        return self._epochs.get(self._applied)

    # -- operations -----------------------------------------------------------------------------------------------
    @property
    def waits(self) -> bool:
        """True if no operation may start: a tree was lost, and not all statements are gathered."""
        return bool(self._must_settle)

    def issue(self, nbytes: int, dtype: str, wants: bool) -> Operation | None:
        """Start the next operation, in program order. None: it runs plain."""
        if self._running or self.waits or self._is_closed:
            raise InvalidTransition("an operation that must not start", self._story())
        index, self._index = self._index, self._index + 1
        epoch = self.epoch
        uses_tree = (
            wants and epoch is not None and epoch.grant is not None
            and self._applied not in self._lost and index not in self._refused
        )  # fmt: skip
        self._running = _Running(index, nbytes, dtype, _Way.TREE if uses_tree else _Way.PLAIN)
        self._refused = {each for each in self._refused if each > index}
        if not uses_tree:
            return None
        return Operation(self.job, self.incarnation, self._applied, index, nbytes, dtype)

    def refused(self, index: int) -> bool:
        """Handle the root's refusal, which each rank receives unless it loses the tree. True: the operation in progress
        now runs plain. A refusal may arrive before the operation, which then starts plain."""
        if index >= self._index:
            self._refused.add(index)
            return False
        if not self._running or self._running.index != index or self._running.way is not _Way.TREE:
            return False
        self._running.way = _Way.PLAIN
        return True

    def complete(self, index: int) -> None:
        """The whole result has arrived. Keep it until the next operation is complete."""
        if not self._running or self._running.index != index or self._running.way is _Way.DOUBT:
            raise InvalidTransition(f"operation {index} complete", self._story())
        self._last, self._running = self._running, None

    # -- the loss of a tree ---------------------------------------------------------------------------------------
    def lost(self, stamp: int) -> bool:
        """The connection is lost, ABORT arrived, or a time limit passed. False if already known."""
        if stamp not in self._epochs or stamp in self._lost:
            return False
        self._lost.add(stamp)
        self._most_lost = max(self._most_lost, stamp)
        if stamp == self._applied and stamp > self._stated:
            self._state_loss(stamp)
        self._forget()
        return True

    def statement(self) -> Statement | None:
        """The next statement to gather; None if none is due or one is in progress. Call after every call of this
        machine."""
        if self._gathering or not self._due:
            return None
        self._gathering = self._due.popleft()
        return self._gathering

    def gathered(self, stamp: int, values: Sequence[int]) -> tuple[Redo, ...]:
        """Handle the statements of all ranks, in rank order; returns this rank's actions, in order."""
        own = self._gathering
        if own is None or own.stamp != stamp or len(values) != self.ranks or values[self.rank] != own.value:
            raise InvalidTransition(f"statements {list(values)} of {stamp}", self._story())
        reached = [value >> 1 for value in values]
        first = min(reached)
        if max(reached) > first + 1:
            raise InvalidTransition(f"ranks more than one operation apart: {reached}", self._story())
        self._gathering = None
        self._must_settle.discard(stamp)
        sizes = self._sizes.pop(stamp)
        # It is plain if all ranks know that it is, or can still make it so: no rank has a result that others cannot
        # get.
        is_plain = any(value == first << 1 | 1 for value in values)
        out: list[Redo] = []
        if max(reached) > first and not is_plain:
            out.append(self._share(first, reached.index(first + 1), reached[self.rank], sizes))
        running = self._running
        if running and running.way is _Way.DOUBT and not self.waits:
            running.way = _Way.PLAIN
            if not (out and running.index == first):
                out.append(RunPlain(running.index))
        self._forget()
        return tuple(out)

    def close(self) -> None:
        """No more operations start. Statements that are due must still be gathered and waited for (`is_settled`):
        another rank may need this one's last result."""
        if self._running:
            raise InvalidTransition("closed with an operation in progress", self._story())
        self._leave()
        self._is_closed = True

    @property
    def is_settled(self) -> bool:
        """True if no statement is due or in progress."""
        return not self._due and self._gathering is None

    def state(self) -> RankState:
        """State to report to the agent."""
        held = self._epochs.get(self._held)
        return RankState(
            self.job, self.incarnation, self.rank, self.ranks, self._held, self._applied, self._most_lost, self._index,
            proof=held.proof if held else "",
        )  # fmt: skip

    # -- inside ---------------------------------------------------------------------------------------------------
    def _share(self, index: int, source: int, reached: int, sizes: dict[int, tuple[int, str]]) -> Redo:
        """``reached``: this rank's lowest incomplete index."""
        if index not in sizes:
            raise InvalidTransition(f"the result of {index} is shared, which never was here", self._story())
        if self.rank == source:
            return Give(index, source, *sizes[index])
        return Receive(index, source, *sizes[index], is_needed=reached == index)

    def _state_loss(self, stamp: int) -> None:
        if self._running and self._running.way is _Way.TREE:
            self._running.way = _Way.DOUBT
        self._must_settle.add(stamp)
        self._state(stamp)

    def _leave(self) -> None:
        """Leave the applied epoch, with all its operations complete."""
        epoch = self.epoch
        if epoch and epoch.grant and self._applied > self._stated:
            self._state(self._applied)

    def _state(self, stamp: int) -> None:
        self._stated = stamp
        running = self._running
        index = running.index if running else self._index
        is_plain = running is not None and running.way is _Way.PLAIN
        self._due.append(Statement(stamp, index << 1 | is_plain))
        recent = (each for each in (self._last, running) if each)
        self._sizes[stamp] = {each.index: (each.nbytes, each.dtype) for each in recent}

    def _usable(self) -> int:
        return max(self._ready - self._lost, default=0)

    def _unsettled(self) -> set[int]:
        return {each.stamp for each in (*self._due, *([self._gathering] if self._gathering else []))}

    def _forget(self) -> None:
        """Keep only epochs that can still matter, so that a controller cannot fill a rank's memory."""
        kept = {self._held, self._applied, self._offered, self._usable(), *self._unsettled()}
        self._epochs = {stamp: epoch for stamp, epoch in self._epochs.items() if stamp in kept}
        self._ready = {stamp for stamp in self._ready if stamp in self._epochs}
        self._lost = {stamp for stamp in self._lost if stamp in self._epochs}

    def _story(self) -> tuple[str, ...]:
        return (
            f"job {self.job} rank {self.rank}", f"applied {self._applied}", f"offered {self._offered}",
            f"running {self._running}", f"gathering {self._gathering}", f"due {list(self._due)}",
        )  # fmt: skip
