"""State machine of one job under one epoch at a switch: the switch's part of the job's tree. No I/O, no clock.

Everything from a member or the parent switch is an event; output goes to a `Peer`. The switch whose permission names no
parent gets the verdicts from `protocol.root.Root`; the others forward headers up and verdicts down. A part ends as a
whole: at the first loss everyone gets an ABORT, and the part is removed once all have disconnected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from offpath.bindings import faults
from offpath.bindings.errors import InaFrameError
from offpath.bindings.ina import frames
from offpath.bindings.ina.frames import CHUNK_BYTES, Reason
from offpath.dpu_daemon.switch.summing import add
from offpath.sched.ina.protocol.records import Operation, Permission
from offpath.sched.ina.protocol.root import Root, Verdict

WINDOW_BYTES: Final = 1 << 20
"""Limit of chunks buffered for a member ahead of the others; then it is not read."""
MOST_OPERATION_BYTES: Final = 1 << 30
"""A larger all-reduce is refused and runs without INA."""
Key = tuple[str, int, int]
"""Job, incarnation, stamp."""


class Peer(Protocol):
    """A connection as `JobAtSwitch` uses it."""

    def send(self, data: bytes, sent: Callable[[], None] | None = None) -> None:
        """Queue ``data``; ``sent`` is called once the kernel has all of it. Does not block or raise."""

    def finish(self) -> None:
        """Close once the queue is sent."""


@dataclass(slots=True)
class Counters:
    """Counts of a switch since its start; operations are counted at their root."""

    admitted: int = 0
    refused: int = 0
    completed: int = 0
    aborts: int = 0
    peak: int = 0
    """Most operations that held a place concurrently."""
    bytes_in: int = 0
    """Bytes of chunks from members and from the parent switch."""
    bytes_out: int = 0


@dataclass(slots=True, eq=False)
class _Running:
    """An operation at this switch."""

    index: int
    nbytes: int
    dtype: str
    order: list[int] = field(default_factory=list)
    """Slots whose header has arrived, in order of arrival."""
    held: list[deque[bytes]] = field(default_factory=list)
    """Chunks not summed yet, by slot."""
    is_admitted: bool = False
    is_refused: bool = False
    summed: int = 0
    """Bytes summed."""
    sent_down: int = 0
    """Bytes of the result sent down."""
    missing: set[int] = field(default_factory=set)
    """Ranks of this part without a DELIVERED."""


@dataclass(slots=True, eq=False)
class Slot:
    """A member: a rank that attaches here, or a child switch with the ranks of its part."""

    number: int
    ranks: frozenset[int]
    is_switch: bool
    peer: Peer | None = None
    joined: set[int] = field(default_factory=set)
    current: _Running | None = None
    sent: int = 0
    """Bytes of the current operation received from it."""


class JobAtSwitch:
    """One job at one switch. ``above`` opens the connection to the parent switch when the first rank attaches (None: it
    cannot). ``observe`` gets the operations' events at the root."""

    def __init__(
        self, permission: Permission, root: Root, counters: Counters, above: Callable[[JobAtSwitch], Peer | None],
        observe: Callable[[str, dict[str, Any]], None], by_rank: bool = True,
    ) -> None:  # fmt: skip
        self.permission = permission
        self.key: Key = (permission.job, permission.incarnation, permission.stamp)
        self.is_root = not permission.parent
        members = [(frozenset((rank,)), False) for rank in permission.local]
        members += [(frozenset(ranks), True) for _, ranks in permission.below]
        members.sort(key=lambda member: min(member[0]))
        self.slots: Final = [Slot(number, *member) for number, member in enumerate(members)]
        self.ranks: Final = frozenset[int]().union(*(slot.ranks for slot in self.slots))
        self.up: Peer | None = None
        self.is_over = False
        self._root, self._counters, self._observe = root, counters, observe
        self._open_up = above
        self._by_rank = by_rank
        self._running: dict[int, _Running] = {}
        self._newest = -1
        self.progress = 0
        """Increases with every step of an operation."""

    # -- queries ------------------------------------------------------------------------------------------------------
    def slot_of(self, rank: int) -> Slot | None:
        """The rank's member; None: the rank is not in this part."""
        return next((slot for slot in self.slots if rank in slot.ranks), None)

    def is_full(self, slot: Slot) -> bool:
        """Whether the member is ahead of the others by a window, so it must not be read now."""
        run = slot.current
        return run is not None and not run.is_refused and slot.sent - run.summed > WINDOW_BYTES

    @property
    def is_busy(self) -> bool:
        """Whether an operation is in progress."""
        return any(not run.is_refused for run in self._running.values())

    def left(self, operation: Operation) -> int:
        """Bytes of the operation's result not sent down yet."""
        run = self._running.get(operation.index)
        return run.nbytes - run.sent_down if run is not None else 0

    @property
    def is_empty(self) -> bool:
        """Whether no member is connected."""
        return all(slot.peer is None for slot in self.slots)

    # -- attaching ----------------------------------------------------------------------------------------------------
    def attach(self, slot: Slot, peer: Peer, message: frames.Attach) -> Reason | None:
        """Attach a rank of this switch or of a child switch. Returns the reason if it is refused."""
        if slot.peer is not None and slot.peer is not peer:
            return Reason.TAKEN
        if self.is_over:
            return Reason.LOST
        if message.ranks != self.permission.ranks or message.rank not in slot.ranks or message.rank in slot.joined:
            return Reason.UNKNOWN
        if not self._root.attach(*self.key, message.rank, message.token):
            return Reason.UNKNOWN
        slot.peer = peer
        slot.joined.add(message.rank)
        if self.is_root:
            peer.send(frames.pack(frames.Attached(message.rank)))
            return None
        if self.up is None:
            self.up = self._open_up(self)
        if self.up is None:
            self.lose(Reason.UNREACHABLE)
        else:
            self.up.send(frames.pack(message))
        return None

    # -- from members -------------------------------------------------------------------------------------------------
    def on_frame(self, slot: Slot, frame: frames.Frame) -> None:
        """Handle a frame of an attached member. Raises: InaFrameError: it violates the protocol."""
        if self.is_over:
            return
        match frame:
            case frames.Data():
                self._data(slot, frame)
            case frames.Operation():
                self._operation(slot, frame)
            case frames.Delivered():
                self._delivered(slot, frame)
            case frames.Abort() if slot.is_switch:
                self.lose(frame.reason)
            case _:
                raise InaFrameError("out_of_turn", type(frame).__name__)

    def _operation(self, slot: Slot, message: frames.Operation) -> None:
        last = slot.current
        if message.rank not in slot.joined or message.stamp != self.permission.stamp:
            raise InaFrameError("out_of_turn", "an operation of another rank, or under another epoch")
        run = self._running.get(message.index)
        if run is not None and (run.nbytes, run.dtype) != (message.nbytes, message.dtype) and not run.is_refused:
            self._request(message)  # the root detects the mismatch and aborts
            if not self.is_root and self.up is not None:
                self.up.send(frames.pack(message))
            slot.current = _Running(message.index, message.nbytes, message.dtype, is_refused=True)
            return
        if last is not None and (last.index >= message.index or not (last.is_refused or last.sent_down == last.nbytes)):
            raise InaFrameError("out_of_turn", f"operation {message.index} before the end of {last.index}")
        if faults.armed:
            faults.hit("switch.operation")
        if run is None and message.index <= self._newest:  # a refused operation: all its data is dropped
            run = _Running(message.index, message.nbytes, message.dtype, is_refused=True)
        is_first = run is None
        if run is None:
            run = self._begin(message.index, message.nbytes, message.dtype)
        slot.current, slot.sent = run, 0
        if run.is_refused:
            return
        run.order.append(slot.number)
        if is_first and self.is_root:
            self._request(message)
        elif is_first and self.up is not None:
            self.up.send(frames.pack(message))

    def _begin(self, index: int, nbytes: int, dtype: str) -> _Running:
        """Start an operation. Removes older refused operations, which are not needed any more."""
        for old in [each.index for each in self._running.values() if each.is_refused]:
            del self._running[old]
        run = _Running(index, nbytes, dtype, [], [deque() for _ in self.slots], missing=set(self.ranks))
        self._running[index] = run
        self._newest = index
        self.progress += 1
        return run

    def _request(self, message: frames.Operation) -> None:
        """At the root only: get the verdict and act on it."""
        if not self.is_root:
            return
        operation = self._named(message.index, message.nbytes, message.dtype)
        if message.nbytes > MOST_OPERATION_BYTES:
            self._refuse(message.index)
            self._counters.refused += 1
            self._emit("refused", operation, "too_large")
            return
        verdict = self._root.request(operation, message.rank, is_last=message.is_last)
        if verdict.abort is not None:
            self._emit("aborted", operation, "mismatch")
            self.lose(Reason.MISMATCH)
        elif not verdict.waits:
            self.decide(verdict)

    def decide(self, verdict: Verdict) -> None:
        """Apply the root's verdict on an operation of this part, immediate or delayed."""
        run = self._running.get(verdict.operation.index)
        if run is None or not verdict.is_first or self.is_over:
            return
        reason = str(verdict.reason) if verdict.reason is not None else ""
        if not verdict.is_admitted:
            self._counters.refused += 1
            self._emit("refused", verdict.operation, reason)
            self._refuse(run.index)
            return
        run.is_admitted = True
        self._counters.admitted += 1
        self._counters.peak = max(self._counters.peak, self._root.in_flight)
        self._emit("admitted", verdict.operation, reason)
        if faults.armed:
            faults.hit("switch.admitted")
        self._sum(run)

    def _data(self, slot: Slot, chunk: frames.Data) -> None:
        run = slot.current
        if run is None or run.index != chunk.index:
            raise InaFrameError("out_of_turn", f"a chunk of {chunk.index}")
        if run.is_refused:
            return
        due = min(CHUNK_BYTES, run.nbytes - slot.sent)
        if chunk.offset != slot.sent or len(chunk.payload) != due or chunk.rank not in slot.ranks:
            raise InaFrameError("out_of_turn", f"a chunk at {chunk.offset}, not of {due} bytes at {slot.sent}")
        slot.sent += due
        self._counters.bytes_in += due
        run.held[slot.number].append(chunk.payload)
        self._sum(run)

    def _sum(self, run: _Running) -> None:
        """Sum what all members have sent and pass it on: up, or down as the result."""
        while run.held and all(run.held) and not run.is_refused and (run.is_admitted or not self.is_root):
            order = range(len(self.slots)) if self._by_rank else run.order
            total = add(run.dtype, [run.held[number].popleft() for number in order])
            offset, run.summed = run.summed, run.summed + len(total)
            self.progress += 1
            if faults.armed and _is_dropped():
                return
            if self.is_root:
                self._give(run, offset, total)
            elif self.up is not None:
                self._counters.bytes_out += len(total)
                self.up.send(frames.pack(frames.Data(min(self.ranks), run.index, offset, total)))

    def _delivered(self, slot: Slot, message: frames.Delivered) -> None:
        run = self._running.get(message.index)
        if (
            run is None
            or message.rank not in slot.joined
            or message.rank not in run.missing
            or run.sent_down < run.nbytes
        ):
            raise InaFrameError("out_of_turn", f"operation {message.index} was not sent to rank {message.rank}")
        run.missing.discard(message.rank)
        self.progress += 1
        if self.is_root:
            operation = self._named(run.index, run.nbytes, run.dtype)
            self._root.delivered(operation, message.rank)
            if not run.missing:
                self._counters.completed += 1
                self._emit("completed", operation, "")
        elif self.up is not None:
            self.up.send(frames.pack(message))
        if not run.missing:
            del self._running[run.index]

    # -- from the parent switch ---------------------------------------------------------------------------------------
    def on_frame_above(self, frame: frames.Frame) -> None:
        """Handle a frame of the parent switch. Raises: InaFrameError: it violates the protocol."""
        if self.is_over:
            return
        match frame:
            case frames.Result():
                run = self._running.get(frame.index)
                end = frame.offset + len(frame.payload)
                if run is None or run.is_refused or frame.offset != run.sent_down or end > run.summed:
                    raise InaFrameError("out_of_turn", f"a result of {frame.index} at {frame.offset}")
                self._counters.bytes_in += len(frame.payload)
                self._give(run, frame.offset, frame.payload)
            case frames.Refused():
                self._refuse(frame.index)
            case frames.Attached():
                slot = self.slot_of(frame.rank)
                if slot is None or slot.peer is None or frame.rank not in slot.joined:
                    raise InaFrameError("out_of_turn", f"rank {frame.rank} has not sent an ATTACH")
                slot.peer.send(frames.pack(frame))
            case frames.AttachRefused() | frames.Abort():
                self.lose(frame.reason)
            case _:
                raise InaFrameError("out_of_turn", type(frame).__name__)

    def lost_above(self, reason: Reason = Reason.LOST) -> None:
        """The parent switch is lost or unreachable."""
        self.up = None
        self.lose(reason)

    # -- downwards ----------------------------------------------------------------------------------------------------
    def _give(self, run: _Running, offset: int, payload: bytes) -> None:
        """Send a chunk of the result to all members."""
        data = frames.pack(frames.Result(run.index, offset, payload))
        run.sent_down = offset + len(payload)
        self.progress += 1
        is_last = run.sent_down == run.nbytes
        for slot in self.slots:
            if slot.peer is not None:
                self._counters.bytes_out += len(payload)
                slot.peer.send(data, _after_delivery if faults.armed and is_last else None)

    def _refuse(self, index: int) -> None:
        """Notify all members of a refusal, including those that have not issued the operation yet."""
        run = self._running.get(index)
        if run is None:
            if index <= self._newest:
                return
            run = self._begin(index, 0, "")
        elif run.sent_down:
            raise InaFrameError("out_of_turn", f"{index} is refused after its result began")
        run.is_refused = True
        run.held = []
        self.progress += 1
        for slot in self.slots:
            if slot.peer is not None:
                slot.peer.send(frames.pack(frames.Refused(index)))

    # -- loss ---------------------------------------------------------------------------------------------------------
    def lose(self, reason: Reason) -> None:
        """The tree is lost for this epoch: send ABORT to all. Idempotent.

        Ranks are disconnected. A child switch disconnects itself once its own members are gone: until then it may still
        send results to them.
        """
        if self.is_over:
            return
        self.is_over = True
        if self.is_root:
            self._root.lost(*self.key)
        self._counters.aborts += 1
        self._running.clear()
        abort = frames.pack(frames.Abort(self.permission.stamp, reason))
        for slot in self.slots:
            slot.current = None
            if slot.peer is not None:
                slot.peer.send(abort)
                if not slot.is_switch:
                    slot.peer.finish()
        if self.up is not None:
            self.up.send(abort)
        self._leave_if_empty()

    def hung_up(self, slot: Slot, reason: Reason = Reason.LOST) -> None:
        """A member's connection has closed, so its ranks get nothing more."""
        if slot.peer is None:
            return
        slot.peer = None
        self.lose(reason)
        held = self._root.holds(*self.key)
        for rank in sorted(slot.joined):
            self._root.gone(*self.key, rank)
        slot.joined.clear()
        if held and not self._root.holds(*self.key):
            self._observe("freed", self._line())
        self._leave_if_empty()

    def _leave_if_empty(self) -> None:
        if self.is_over and self.is_empty and self.up is not None:
            self.up.finish()
            self.up = None

    # -- names --------------------------------------------------------------------------------------------------------
    def _named(self, index: int, nbytes: int, dtype: str) -> Operation:
        return Operation(*self.key, index, nbytes, dtype)

    def _emit(self, event: str, operation: Operation, reason: str) -> None:
        line = self._line() | {"index": operation.index, "nbytes": operation.nbytes, "dtype": operation.dtype}
        self._observe(event, line | ({"reason": reason} if reason else {}))

    def _line(self) -> dict[str, Any]:
        job, incarnation, stamp = self.key
        return {"job": job, "incarnation": incarnation, "stamp": stamp, "in_flight": self._root.in_flight}


def _is_dropped() -> bool:
    try:
        faults.hit("switch.chunk")
    except OSError:
        return True
    return False


def _after_delivery() -> None:
    faults.hit("switch.delivered")
