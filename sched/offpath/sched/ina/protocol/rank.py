"""One rank of a job: which epoch holds, how each all-reduce runs, and what is done when the tree is lost. No I/O.

Why all ranks are alike. At every boundary each rank gives the newest epoch it could use to a MIN all-reduce of (s, -s),
and applies at this boundary what the *previous* boundary's gave, and only if least and greatest are the same epoch. It
is one result of one collective, so that all ranks apply the same epoch at the same place, and none that one of them
lacks. Nobody waits for controller, agent or switch: what is missing is not applied.

Why the loss of a tree leaves them alike. For every granted epoch that was applied, each rank gathers exactly one
statement with all others, on the job's own processes: when it loses the tree, or when it leaves the epoch. After its
statement a rank uses that tree no more. An operation is complete at a rank only when all ranks joined it, and a rank
joins the next one only when this one is complete at it: so ranks are at most one operation apart, and at most one
operation can be complete at some and not at others. Who has it gives its result to all (not a second sum: that could
differ in the last bit); if nobody has it, it runs plain.

What drives this machine keeps four rules.

- Statements are gathered one at a time, each with its broadcast before the next (`statement` gives none before): the
  collectives of a group must come in one order on all ranks.
- Whatever the rank waits for, it goes on polling its trees and the gathering under way: another may wait for its word
  or for its result. It starts no operation while `waits`.
- An operation under a granted epoch, plain or not, that does not end in time counts as a loss of the tree: a switch
  that neither works nor hangs up may have told one rank and not the other.
- It is attached to `trees`, no less: who has left an epoch stays attached until all have.
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
    """What a boundary brought: the epoch that holds from here on, if it is a new one."""

    epoch: EpochRecord | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """To be gathered with all other ranks' (one int64 each, in the order of ranks)."""

    stamp: int
    value: int
    """Twice the lowest incomplete index; one more if that operation is under way here and known to run plain."""


@dataclass(frozen=True, slots=True)
class Give:
    """Broadcast the result of ``index`` to all; ``source`` is this rank."""

    index: int
    source: int
    nbytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Receive:
    """Take part in the broadcast of ``source``. Where ``is_needed`` it is the result of what is under way here, to be
    completed with it; else this rank has it, and throws it away."""

    index: int
    source: int
    nbytes: int
    dtype: str
    is_needed: bool


@dataclass(frozen=True, slots=True)
class RunPlain:
    """The operation under way runs plain, from the input that was kept."""

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
    """See the module. Raises: InvalidTransition: what is called does not fit what was called before."""

    def __init__(self, job: str, incarnation: int, rank: int, ranks: int) -> None:
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} of {ranks}")
        self.job, self.incarnation, self.rank, self.ranks = job, incarnation, rank, ranks
        self._epochs: dict[int, EpochRecord] = {}
        """By stamp: those that are applied, offered, or the newest (ready)."""
        self._ready: set[int] = set()
        self._lost: set[int] = set()
        self._most_lost = 0
        self._held = 0
        self._applied = 0
        self._offered: int | None = None
        """What went into the boundary that is under way."""
        self._index = 0
        self._running: _Running | None = None
        self._last: _Running | None = None
        """The operation completed last; its result is what others may need."""
        self._refused: set[int] = set()
        self._stated = 0
        """The greatest stamp whose statement is due or was given: they come in the order of stamps."""
        self._due: deque[Statement] = deque()
        self._sizes: dict[int, dict[int, tuple[int, str]]] = {}
        """By stamp whose statement is not in, by index: bytes and type of what may be shared. When the statements are
        in, a rank that needs nothing may be further already."""
        self._gathering: Statement | None = None
        self._must_settle: set[int] = set()
        """Stamps of trees lost while they were in use, whose statements are not in."""
        self._is_closed = False

    # -- epochs ---------------------------------------------------------------------------------------------------
    def hold(self, epoch: EpochRecord) -> bool:
        """An epoch came, in any order, any number of times; False where it is ignored."""
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
        """This rank is attached to the epoch's tree; False where nobody asks for that any more."""
        if stamp not in self._epochs or stamp in self._lost:
            return False
        self._ready.add(stamp)
        self._forget()
        return True

    def trees(self) -> tuple[EpochRecord, ...]:
        """The granted epochs whose trees this rank is to be attached to, or to stay attached to; the older first."""
        wanted = {stamp for stamp in (self._held, self._offered, self._usable()) if stamp and stamp > self._applied}
        wanted |= self._unsettled()
        if self._applied > self._stated:
            wanted.add(self._applied)
        kept = sorted(wanted - self._lost)
        return tuple(self._epochs[stamp] for stamp in kept if self._epochs[stamp].grant)

    def boundary(self) -> tuple[int, int]:
        """What goes into this boundary's MIN all-reduce of two int64. After `agreed`."""
        if self._offered is not None:
            raise InvalidTransition("a boundary before the last one's result", self._story())
        self._offered = max(self._applied, self._usable())
        return self._offered, -self._offered

    def agreed(self, previous: tuple[int, int] | None) -> Applied:
        """The previous boundary's result, at this boundary; None at the first one."""
        if self._running:
            raise InvalidTransition("a boundary with an operation under way", self._story())
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
        """What holds; None: the beginning, without INA."""
        return self._epochs.get(self._applied)

    # -- operations -----------------------------------------------------------------------------------------------
    @property
    def waits(self) -> bool:
        """No operation may begin: a tree was lost and not all have said how far they are."""
        return bool(self._must_settle)

    def issue(self, nbytes: int, dtype: str, wants: bool) -> Operation | None:
        """The next operation, in the order of the program. None: it runs plain."""
        if self._running or self.waits or self._is_closed:
            raise InvalidTransition("an operation that may not begin", self._story())
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
        """The root's word, which all ranks hear or lose the tree. True: what is under way runs plain now. It may come
        before the operation: then that begins plain."""
        if index >= self._index:
            self._refused.add(index)
            return False
        if not self._running or self._running.index != index or self._running.way is not _Way.TREE:
            return False
        self._running.way = _Way.PLAIN
        return True

    def complete(self, index: int) -> None:
        """The result is here, whole. It is to be kept until the next operation is complete."""
        if not self._running or self._running.index != index or self._running.way is _Way.DOUBT:
            raise InvalidTransition(f"operation {index} complete", self._story())
        self._last, self._running = self._running, None

    # -- the loss of a tree ---------------------------------------------------------------------------------------
    def lost(self, stamp: int) -> bool:
        """The connection is gone, or ABORT came, or it took too long. False where that is no news."""
        if stamp not in self._epochs or stamp in self._lost:
            return False
        self._lost.add(stamp)
        self._most_lost = max(self._most_lost, stamp)
        if stamp == self._applied and stamp > self._stated:
            self._state_loss(stamp)
        self._forget()
        return True

    def statement(self) -> Statement | None:
        """The next to be gathered; None: none is due, or one is under way. Ask after every call of this machine."""
        if self._gathering or not self._due:
            return None
        self._gathering = self._due.popleft()
        return self._gathering

    def gathered(self, stamp: int, values: Sequence[int]) -> tuple[Redo, ...]:
        """All ranks' statements, in the order of ranks; what this rank does now, in this order."""
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
        # Plain is what all ranks know it to be, or can still make it: nobody has a result that others cannot get.
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
        """After the last operation: no more begin. What is due is still to be gathered, and waited for (`is_settled`):
        another rank may need this one's last result."""
        if self._running:
            raise InvalidTransition("closed with an operation under way", self._story())
        self._leave()
        self._is_closed = True

    @property
    def is_settled(self) -> bool:
        """No statement is due or under way."""
        return not self._due and self._gathering is None

    def state(self) -> RankState:
        """What the agent is told."""
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
        """The applied epoch is left, with all its operations complete."""
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
        """Keep the epochs that can still matter: what a controller sends must not fill a rank's memory."""
        kept = {self._held, self._applied, self._offered, self._usable(), *self._unsettled()}
        self._epochs = {stamp: epoch for stamp, epoch in self._epochs.items() if stamp in kept}
        self._ready = {stamp for stamp in self._ready if stamp in self._epochs}
        self._lost = {stamp for stamp in self._lost if stamp in self._epochs}

    def _story(self) -> tuple[str, ...]:
        return (
            f"job {self.job} rank {self.rank}", f"applied {self._applied}", f"offered {self._offered}",
            f"running {self._running}", f"gathering {self._gathering}", f"due {list(self._due)}",
        )  # fmt: skip
