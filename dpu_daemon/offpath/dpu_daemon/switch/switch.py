"""Runs a switch: accepts connections, enforces time limits, executes the controller's commands."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import secrets
import socket
import time
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from offpath.bindings.errors import FabricAddressError, InaFrameError, PlaceUnusable
from offpath.bindings.ina import frames
from offpath.bindings.ina.address import begin_connecting, parse_address
from offpath.bindings.ina.frames import Frame, Reason
from offpath.bindings.sockets import listening_socket
from offpath.dpu_daemon.listening.accepting import Acceptor, Unidentified, address_of
from offpath.dpu_daemon.switch.job_at_switch import Counters, JobAtSwitch, Key, Slot
from offpath.dpu_daemon.switch.stream import HIGH_BYTES, Stream
from offpath.sched.ina.protocol.records import Operation, Permission
from offpath.sched.ina.protocol.root import Root

logger = logging.getLogger(__name__)
MOST_CONNECTIONS: Final = 4096
MOST_PENDING: Final = 256
"""Connections without an ATTACH. The oldest is closed to make room."""
SLOW_S: Final = 5.0
"""Time limit for a member to read queued bytes, a new peer to send a frame, a child switch to disconnect."""
SLOW_SWITCH_S: Final = SLOW_S + 2.0
"""Time limit for a child switch to read. It pauses for a slow member of its own, which it must detect first."""
STALL_S: Final = 10.0
"""Time limit for an operation without progress. Ranks give up after 5 s; members that do not are misbehaving."""
WAIT_LOOK_S: Final = 0.05
"""Interval in which an operation that others wait for must make progress."""
WAIT_MOST_S: Final = 1.0
"""Longest wait for a place; then the operation runs without INA."""
_TICK_S: Final = 0.25
_BACKLOG: Final = 256
_SPARE_FDS: Final = 64


def listen(address: str) -> tuple[socket.socket, str]:
    """A listening socket and its actual address (port 0 is replaced).

    Raises: FabricAddressError; PlaceUnusable: it cannot be created.
    """
    family, target = parse_address(address)
    try:
        if family == socket.AF_UNIX:
            sock = listening_socket(str(target), socket.SOCK_STREAM)
            sock.listen(_BACKLOG)
            return sock, address
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(target)
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
    except OSError as fault:
        raise PlaceUnusable(f"{address}: {fault.strerror or fault}") from None
    host, port = sock.getsockname()[:2]
    return sock, f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


@dataclass(slots=True, eq=False)
class _Member:
    """The peer of a stream: not attached yet, a member of a part, or the part's parent switch."""

    part: JobAtSwitch | None = None
    slot: Slot | None = None
    """None: the parent switch."""


@dataclass(slots=True)
class _Watch:
    """Progress and timestamps of a part, for the time limits."""

    progress: int = -1
    since: float = 0.0
    over_since: float | None = None
    streams: set[Stream] = field(default_factory=set)


@dataclass(slots=True)
class _Awaited:
    """A waiting operation. It waits for the end of ``holder``, which had ``left`` bytes left at the last check."""

    holder: Operation
    since: float
    left: int
    timer: asyncio.TimerHandle


class Switch:
    """One emulated switch. ``by_rank``: members are summed in rank order, so results are reproducible; else in order of
    arrival. ``events``: a file that gets one JSON line per event of an operation at its root."""

    def __init__(self, name: str, capacity: int = 1, *, by_rank: bool = True, events: str | None = None) -> None:
        self.name = name
        self.root = Root(capacity, self._left)
        self.counters = Counters()
        self.life: Final = secrets.token_hex(8)
        """New at each start: earlier permissions are void."""
        self.changed = asyncio.Event()
        """Set when a member disconnects; used to wait until a fence is clear."""
        self._by_rank = by_rank
        self._parts: dict[Key, JobAtSwitch] = {}
        self._members: dict[Stream, _Member] = {}
        self._watches: dict[JobAtSwitch, _Watch] = {}
        self._awaited: dict[Operation, _Awaited] = {}
        """Operations waiting for a place at this root."""
        self._most_connections = min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FDS)
        self._listening: socket.socket | None = None
        self._acceptor: Acceptor | None = None
        self._pending = Unidentified(4 * MOST_PENDING)  # a quarter of them for one address
        self._address = ""
        self._ticking: asyncio.TimerHandle | None = None
        self._events = open(events, "a", buffering=1, encoding="ascii") if events is not None else None  # noqa: SIM115

    # -- start and end ------------------------------------------------------------------------------------------------
    def start(self, address: str) -> str:
        """Listen; returns the address to connect to. Raises: FabricAddressError, PlaceUnusable."""
        self._listening, self._address = listen(address)
        self._acceptor = Acceptor("switch", self._accept, self._refuse, self._pending)
        self._acceptor.open(self._listening.fileno())
        self._tick()
        return self._address

    async def close(self) -> None:
        """Notify all peers, give the queues one second to drain, close."""
        if self._listening is not None:
            if self._acceptor is not None:
                self._acceptor.close()
            family, target = parse_address(self._address)
            if family == socket.AF_UNIX and os.path.exists(str(target)):
                os.unlink(str(target))  # no other process can have replaced it while this one listens
            self._listening.close()
            self._listening = None
        for part in list(self._parts.values()):
            part.lose(Reason.ENDING)
        until = time.monotonic() + 1.0
        while any(stream.queued for stream in self._members) and time.monotonic() < until:
            await asyncio.sleep(0.01)
        for stream in list(self._members):
            stream.close(Reason.ENDING, "the switch is shutting down")
        for waiting in self._awaited.values():
            waiting.timer.cancel()
        self._awaited.clear()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._events is not None:
            self._events.close()

    # -- the controller's commands ------------------------------------------------------------------------------------
    def allow(self, permission: Permission) -> bool:
        """See `Root.allow`."""
        if permission.parent:
            try:
                parse_address(permission.parent)
            except FabricAddressError:
                return False
        return self.root.allow(permission)

    def fence(self, term: int, job: str, incarnation: int, stamp: int) -> bool:
        """See `Root.fence`. False: an old term. The fence is complete once `Root.is_clear` is true."""
        if self.root.fence(term, job, incarnation, stamp) is None:
            return False
        for part in list(self._parts.values()):
            if part.key[0] == job and part.key[1:] <= (incarnation, stamp):
                part.lose(Reason.FENCED)
        self._settle()
        return True

    def statistics(self) -> dict[str, Any]:
        """Counters and parts as plain data."""
        parts = [
            {
                "job": part.key[0], "incarnation": part.key[1], "stamp": part.key[2], "is_root": part.is_root,
                "attached": sum(len(slot.joined) for slot in part.slots), "ranks": len(part.ranks),
            }
            for part in self._parts.values()
        ]  # fmt: skip
        return {
            "name": self.name, "life": self.life, "term": self.root.term, "capacity": self.root.capacity,
            "in_flight": self.root.in_flight, "mismatches": self.root.mismatches,
            "permissions": len(self.root.permissions()), **asdict(self.counters), "parts": parts[:256],
        }  # fmt: skip

    # -- connections --------------------------------------------------------------------------------------------------
    def _next(self) -> socket.socket | None:
        assert self._listening is not None
        try:
            return self._listening.accept()[0]
        except (BlockingIOError, ConnectionAbortedError):
            return None

    def _accept(self) -> bool:
        if (sock := self._next()) is None:
            return False
        try:
            if len(self._members) >= self._most_connections:
                sock.close()
            else:
                self._let_in(sock, address_of(sock))
        except OSError:  # it has disconnected already
            sock.close()
        return True

    def _refuse(self) -> bool:
        if (sock := self._next()) is None:
            return False
        sock.close()
        return True

    def _let_in(self, sock: socket.socket, address: Hashable) -> None:
        stream = Stream(sock, self._on_frame, self._closed, self._drained)
        self._pending.add(stream, address, lambda: stream.close(Reason.LIMITS, "evicted to make room"))
        self._members[stream] = _Member()

    def _open_above(self, part: JobAtSwitch) -> Stream | None:
        """Connect to the parent switch. Later failures are reported to the part."""
        try:
            sock = begin_connecting(part.permission.parent)
        except OSError as fault:
            logger.warning(
                "tree of %s stamp %d lost: %s: %s",
                part.key[0],
                part.key[2],
                "the switch above",
                fault,
                extra={"code": "tree_lost"},
            )
            return None
        stream = Stream(sock, self._on_frame, self._closed, self._drained, is_connecting=True)
        self._members[stream] = _Member(part)
        self._watches[part].streams.add(stream)
        return stream

    def _on_frame(self, stream: Stream, frame: Frame) -> None:
        member = self._members[stream]
        part, slot = member.part, member.slot
        if part is None or isinstance(frame, frames.Attach):
            self._attach(stream, member, frame)
        elif slot is None:
            part.on_frame_above(frame)
        else:
            part.on_frame(slot, frame)
        self._settle()
        if member.part is not None:
            self._pace(member.part)

    def _attach(self, stream: Stream, member: _Member, frame: Frame) -> None:
        if not isinstance(frame, frames.Attach) or (member.part is not None and member.slot is None):
            raise InaFrameError("out_of_turn", f"{type(frame).__name__} before an ATTACH, or from the parent switch")
        key = frame.job, frame.incarnation, frame.stamp
        part = self._parts.get(key) or self._new_part(key)
        slot = part.slot_of(frame.rank) if part is not None else None
        why = Reason.UNKNOWN
        if part is not None and slot is not None and member.slot in (None, slot):
            refused = part.attach(slot, stream, frame)
            if refused is None:
                member.part, member.slot = part, slot
                self._pending.remove(stream)
                self._watches[part].streams.add(stream)
                return
            why = refused
        if part is not None and not self._watches[part].streams:
            self._forget(part)
        logger.warning(
            "rank %d of %s refused: %s", frame.rank, frame.job, why.name.lower(), extra={"code": "rank_refused"}
        )
        stream.send(frames.pack(frames.AttachRefused(frame.rank, why)))
        if member.part is None:
            stream.finish()

    def _forget(self, part: JobAtSwitch) -> None:
        del self._watches[part], self._parts[part.key]

    def _new_part(self, key: Key) -> JobAtSwitch | None:
        found = [each for each in self.root.permissions() if (each.job, each.incarnation, each.stamp) == key]
        if not found:
            return None
        part = JobAtSwitch(found[0], self.root, self.counters, self._open_above, self._observe, self._by_rank)
        self._parts[key] = part
        self._watches[part] = _Watch(since=time.monotonic())
        return part

    def _closed(self, stream: Stream, reason: Reason, why: str) -> None:
        self._pending.remove(stream)
        member = self._members.pop(stream)
        part, slot = member.part, member.slot
        if part is None:
            return
        if not part.is_over:
            who = "the switch above" if slot is None else f"ranks {sorted(slot.joined)[:8]}"
            logger.warning(
                "tree of %s stamp %d lost: %s: %s", part.key[0], part.key[2], who, why, extra={"code": "tree_lost"}
            )
        if slot is None:
            if part.up is stream:
                part.lost_above(reason)
        elif slot.peer is stream:
            part.hung_up(slot, reason)
        watch = self._watches.get(part)
        if watch is not None:
            watch.streams.discard(stream)
            if not watch.streams:
                self._forget(part)
        self._pace(part)
        self._settle()
        self.changed.set()

    def _drained(self, stream: Stream) -> None:
        part = self._members[stream].part
        if part is not None:
            self._pace(part)

    def _left(self, operation: Operation) -> int:
        part = self._parts.get((operation.job, operation.incarnation, operation.stamp))
        return part.left(operation) if part is not None else 0

    def _settle(self) -> None:
        """Deliver delayed verdicts to their parts and watch operations that wait for a place."""
        if self._awaited or self.root.awaited():
            self._watch_waiting()
        for verdict in self.root.decided():
            operation = verdict.operation
            part = self._parts.get((operation.job, operation.incarnation, operation.stamp))
            if part is not None:
                part.decide(verdict)
                self._pace(part)

    def _watch_waiting(self) -> None:
        awaited = self.root.awaited()
        for operation in [each for each in self._awaited if each not in awaited]:
            self._awaited.pop(operation).timer.cancel()
        now = time.monotonic()
        for operation, holder in awaited.items():
            if operation not in self._awaited:
                timer = asyncio.get_running_loop().call_later(WAIT_LOOK_S, self._look_at_waiting, operation)
                self._awaited[operation] = _Awaited(holder, now, self._left(holder), timer)

    def _look_at_waiting(self, operation: Operation) -> None:
        """Keep waiting while the holder makes progress, up to `WAIT_MOST_S`; the operation can also run without INA."""
        waiting = self._awaited[operation]
        left = self._left(waiting.holder)
        if left < waiting.left and time.monotonic() - waiting.since < WAIT_MOST_S:
            waiting.left = left
            waiting.timer = asyncio.get_running_loop().call_later(WAIT_LOOK_S, self._look_at_waiting, operation)
            return
        del self._awaited[operation]
        self.root.give_up(operation)
        self._settle()

    def _pace(self, part: JobAtSwitch) -> None:
        """Select the streams to read. A full queue to the parent (at the root: to a member) pauses the members; a full
        queue to a member pauses the parent; a member ahead of the others is paused itself. No switch pauses both
        directions for one queue, else two switches could wait for each other."""
        up = part.up if isinstance(part.up, Stream) else None
        below = [slot.peer for slot in part.slots if isinstance(slot.peer, Stream)]
        is_down_full = any(peer.queued > HIGH_BYTES for peer in below)
        if up is not None:
            up.read(part.is_over or not is_down_full)
        is_up_full = is_down_full if part.is_root else up is not None and up.queued > HIGH_BYTES
        for slot in part.slots:
            if isinstance(slot.peer, Stream):
                slot.peer.read(part.is_over or not (is_up_full or part.is_full(slot)))

    # -- time limits --------------------------------------------------------------------------------------------------
    def _tick(self) -> None:
        now = time.monotonic()
        for stream in list(self._members):
            member = self._members.get(stream)
            if member is None:
                continue
            is_rank = member.slot is None or not member.slot.is_switch
            if stream.queued and now - stream.moved_at > (SLOW_S if is_rank else SLOW_SWITCH_S):
                stream.close(Reason.SLOW, "it does not read")
            elif member.part is None and now - stream.made_at > SLOW_S:
                stream.close(Reason.LIMITS, "it sent no ATTACH in time")
            elif member.slot is not None and not stream.is_reading and stream.is_hung_up():
                stream.close(
                    Reason.LOST, "it closed the connection"
                )  # not the parent: results it sent before must still be read
        for part, watch in list(self._watches.items()):
            self._look_at(part, watch, now)
        self._ticking = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _look_at(self, part: JobAtSwitch, watch: _Watch, now: float) -> None:
        if part.is_over:
            watch.over_since = now if watch.over_since is None else watch.over_since
            if now - watch.over_since > SLOW_S:
                for stream in list(watch.streams):
                    stream.close(Reason.SLOW, "it does not disconnect")
        elif not part.is_busy or part.progress != watch.progress:
            watch.progress, watch.since = part.progress, now
        elif now - watch.since > STALL_S:
            job, _, stamp = part.key
            logger.warning(
                "tree of %s stamp %d lost: %s: %s",
                job,
                stamp,
                "an operation",
                "no progress",
                extra={"code": "tree_lost"},
            )
            part.lose(Reason.LIMITS)
            self._settle()

    def _observe(self, event: str, line: dict[str, Any]) -> None:
        if self._events is not None:
            record = {"t_ns": time.monotonic_ns(), "switch": self.name, "event": event, **line}
            self._events.write(json.dumps(record) + "\n")
