"""The ports' simulated adapters: memory, copy engine, host channel, fabric. Each keeps the rules of its loopback twin.

What a Unix socket does when its peer ends is kept too: what the peer sent before can still be read, unless the peer
left something unread itself, for then the first read fails with ECONNRESET (seen).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offpath.bindings.errors import DoorbellError, HostMessageError, PeerGone, RegionError, TicketRefused
from offpath.bindings.loopback.fabric import TicketBook
from offpath.bindings.ports import IMM_SLOT_MASK, IMM_SUBMIT, CopyCompletion, MemoryExport
from offpath.bindings.wire.header import HEADER_COPY_BYTES
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from .world import World

HEADER_ROOM = 704
SOCKET_MESSAGES = 278
"""What one end of a Unix socket pair queues of small messages by default (seen)."""


class Violation(AssertionError):
    """A promise was broken."""


def promise(is_kept: bool, *said: object) -> None:
    """Raises: Violation: with ``said``, when it is not kept."""
    if not is_kept:
        raise Violation(" ".join(map(str, said)))


class Memory:
    """Bytes ``base`` to ``base + nbytes`` of ``store``; ``owner`` is whose they are, for the judge."""

    __slots__ = ("base", "closed", "nbytes", "owner", "store")

    def __init__(self, store: bytearray, base: int, nbytes: int, owner: Any) -> None:
        self.store = store
        self.base = base
        self.nbytes = nbytes
        self.owner = owner
        self.closed = False

    def close(self) -> None:
        self.closed = True


# -- copies ---------------------------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class Flight:
    """A copy that was posted and has not landed."""

    token: int
    source: Memory
    source_at: int
    target: Memory
    target_at: int
    nbytes: int
    note: Any


class SimEngine:
    """Copies at once, or later in any order; some fail, with half of their bytes written."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._fd = world.loop.open_fd()
        self._done: deque[CopyCompletion] = deque()
        self.flights: dict[int, Flight] = {}
        self.bytes_copied = 0

    def import_memory(self, export: MemoryExport) -> Memory:
        memory = self._world.exports.get(export.descriptor["region"])
        if memory is None:
            raise RegionError("no such export")
        return Memory(memory.store, memory.base, memory.nbytes, memory.owner)

    def post(
        self, token: int, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> CopyCompletion | None:
        inside = 0 <= source_offset <= source.nbytes - nbytes and 0 <= target_offset <= target.nbytes - nbytes
        if nbytes < 0 or not inside:
            raise RegionError(f"copy of {nbytes} bytes leaves a region")
        if source.closed or target.closed:
            raise RegionError("copy with a closed region")
        world = self._world
        self.bytes_copied += nbytes
        note = world.judge.copy_posted(source, source_offset, target, target_offset)
        flight = Flight(
            token, source, source.base + source_offset, target, target.base + target_offset, nbytes, note
        )  # fmt: skip
        if world.random.random() < world.setup.inline_copies:
            return self._land(flight)
        self.flights[token] = flight
        is_result = isinstance(target.owner, SimFabricSession)
        world.loop.after(world.copy_ns(is_result=is_result), ("copy", token), lambda: self._landed(token))
        return None

    def _landed(self, token: int) -> None:
        flight = self.flights.pop(token, None)
        if flight is not None:
            self._done.append(self._land(flight))
            self._world.loop.flag(self._fd, True)

    def _land(self, flight: Flight) -> CopyCompletion:
        world = self._world
        is_lost = world.happens("copy_fails")
        world.judge.copy_lands(flight)
        nbytes = flight.nbytes // 2 if is_lost else flight.nbytes
        source, at = flight.source.store, flight.source_at
        flight.target.store[flight.target_at : flight.target_at + nbytes] = source[at : at + nbytes]
        world.say("copy %s lands%s", flight.token, " with an error" if is_lost else "")
        return CopyCompletion(flight.token, "injected" if is_lost else None)

    def fileno(self) -> int:
        return self._fd

    def poll(self) -> list[CopyCompletion]:
        self._world.loop.flag(self._fd, False)
        done = list(self._done)
        self._done.clear()
        return done

    def close(self) -> None:
        for token in list(self.flights):
            self._landed(token)
        self._world.loop.close_fd(self._fd)


# -- host channel ---------------------------------------------------------------------------------------------------
class SimConnection:
    """The daemon's end of a host channel."""

    def __init__(self, host: HostEnd) -> None:
        loop = host.world.loop
        self._host = host
        self._loop = loop
        self._fd = loop.open_fd()
        self._death = loop.open_fd()
        loop.certain.add(self._death)
        self.inbox: deque[bytes] = deque()
        self.is_open = True
        self.is_reset = False
        self.peer_pid = host.pid
        self.peer_uid = host.world.uid

    def arrived(self) -> None:
        """Something to read, or the end."""
        if self.is_open:
            self._loop.flag(self._fd, bool(self.inbox) or not self._host.is_open)
            self._loop.flag(self._death, self._host.is_dead)

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> bool:
        promise(self.is_open, "the daemon sends on a connection that it closed")
        promise(0 < len(message) <= MAX_MESSAGE_BYTES, "a message of", len(message), "bytes")
        host = self._host
        if not host.is_open:
            raise PeerGone("host channel: Broken pipe")
        if host.is_full or len(host.inbox) >= SOCKET_MESSAGES or host.world.happens("channel_full"):
            return False
        host.inbox.append(message)
        host.wake()
        return True

    def receive_message(self) -> bytes | None:
        promise(self.is_open, "the daemon reads from a connection that it closed")
        if self.is_reset:
            self.is_reset = False
            raise PeerGone("host channel: Connection reset by peer")
        if self.inbox:
            message = self.inbox.popleft()
            self.arrived()
            if len(message) > MAX_MESSAGE_BYTES:
                raise HostMessageError("too_long", str(len(message)))
            return message
        if not self._host.is_open:
            raise PeerGone("host channel closed")
        return None

    def receive(self) -> tuple[bytes, tuple[int, ...]] | None:
        message = self.receive_message()
        return None if message is None else (message, ())

    def fileno(self) -> int:
        return self._fd

    def death_fileno(self) -> int:
        return self._death

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loop.close_fd(self._fd)
        self._loop.close_fd(self._death)
        self._host.daemon_hung_up()


class HostEnd:
    """A host process's end; ``notify`` is called when there is something to read, or the daemon hung up."""

    def __init__(self, world: World, pid: int, notify: Callable[[], None]) -> None:
        self.world = world
        self.pid = pid
        self.inbox: deque[bytes] = deque()
        self.is_open = True
        self.is_dead = False
        self.is_full = False
        self.daemon_gone = False
        self.wake = notify
        self.daemon_end = SimConnection(self)

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> bool:
        """As a host process sends. Raises: PeerGone."""
        if self.daemon_gone:
            raise PeerGone("host channel: Broken pipe")
        self.daemon_end.inbox.append(message)
        self.daemon_end.arrived()
        return True

    def next_message(self) -> bytes | None:
        """Raises: PeerGone: nothing is left, and the daemon hung up."""
        if self.inbox:
            return self.inbox.popleft()
        if self.daemon_gone:
            raise PeerGone("host channel closed")
        return None

    def daemon_hung_up(self) -> None:
        self.daemon_gone = True
        if self.is_open:
            self.wake()

    def close(self, *, is_death: bool = False) -> None:
        """Hang up; ``is_death``: the process ended."""
        self.is_dead = self.is_dead or is_death
        if self.is_open:
            self.is_open = False
            self.daemon_end.is_reset = bool(self.inbox)
            self.inbox.clear()
        self.daemon_end.arrived()


class SimChannelListener:
    """Where host processes connect."""

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self._fd = world.loop.open_fd()
        self._waiting: deque[SimConnection] = deque()
        self.is_open = True

    def connect(self, end: HostEnd) -> None:
        self._waiting.append(end.daemon_end)
        self._loop.flag(self._fd, True)

    def accept(self) -> SimConnection | None:
        connection = self._waiting.popleft() if self._waiting else None
        self._loop.flag(self._fd, bool(self._waiting))
        if connection is not None:
            connection.arrived()
        return connection

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        self.is_open = False
        self._loop.close_fd(self._fd)
        while self._waiting:
            self._waiting.popleft().close()


# -- fabric ---------------------------------------------------------------------------------------------------------
class SimFabricSession:
    """Both ends of a fabric session: `FabricSession` for the daemon, and below it what a requester does."""

    def __init__(self, world: World, slots: int, payload_bytes: int, result_bytes: int) -> None:
        self.world = world
        self.slot_count = slots
        self.payload_bytes = payload_bytes
        self.result_bytes = result_bytes
        self._slot_stride = HEADER_ROOM + payload_bytes
        self._answer_stride = HEADER_ROOM + result_bytes
        self.slots = Memory(bytearray(slots * self._slot_stride), 0, slots * self._slot_stride, self)
        self.answers = Memory(bytearray(slots * self._answer_stride), 0, slots * self._answer_stride, self)
        self._fd = world.loop.open_fd()
        self.to_daemon: deque[bytes] = deque()
        self.to_requester: deque[int] = deque()
        self.bell_room = world.setup.bell_room
        self.peer_is_open = True
        self.is_open = True
        self.is_reset = False
        self.notify: Callable[[], None] = _nothing
        self.header_bytes_read = 0
        self.answer_bytes_written = 0
        self.last_header = b""

    # -- the daemon's end
    def hand_over(self, sock: SimSocket) -> None:
        if not sock.peer_is_open:
            raise BrokenPipeError(32, "Broken pipe")
        sock.taken(self)
        self._flag()

    def read_header(self, slot: int) -> bytes:
        promise(not self.slots.closed, "a header is read from closed memory")
        at = slot * self._slot_stride
        self.header_bytes_read += HEADER_COPY_BYTES
        return bytes(self.slots.store[at : at + HEADER_COPY_BYTES])

    def payload_offset(self, slot: int) -> int:
        return slot * self._slot_stride + HEADER_ROOM

    def result_offset(self, slot: int) -> int:
        return slot * self._answer_stride + HEADER_ROOM

    def slot_at(self, offset: int, *, of_answers: bool) -> int:
        """The slot whose bytes lie at ``offset``."""
        return offset // (self._answer_stride if of_answers else self._slot_stride)

    def write_answer(self, slot: int, header: bytes, inline: bytes) -> None:
        promise(not self.answers.closed, "an answer is written to closed memory")
        promise(len(inline) <= self.result_bytes, "an answer's inline bytes run into the next slot")
        self.world.judge.answer_written(self, slot, header, inline)
        at = slot * self._answer_stride
        store = self.answers.store
        if inline:
            store[at + HEADER_ROOM : at + HEADER_ROOM + len(inline)] = inline
        store[at : at + len(header)] = header
        self.answer_bytes_written += len(header) + len(inline)

    def ring(self, imm: int) -> bool:
        promise(self.is_open, "the daemon rings a session that it closed")
        if not self.peer_is_open:
            raise PeerGone("doorbell: Broken pipe")
        if len(self.to_requester) >= self.bell_room:
            return False
        self.to_requester.append(imm)
        self._flag()
        self.notify()
        return True

    def fileno(self) -> int:
        return self._fd

    def poll(self) -> int | None:
        if self.is_reset:
            self.is_reset = False
            raise PeerGone("doorbell: Connection reset by peer")
        if not self.to_daemon:
            if not self.peer_is_open:
                raise PeerGone("doorbell closed")
            return None
        message = self.to_daemon.popleft()
        self._flag()
        self.notify()
        if len(message) != 4:
            raise DoorbellError("immediate_length", str(len(message)))
        imm = int.from_bytes(message, "little")
        if imm >> 24 == IMM_SUBMIT:
            self.world.judge.submit_read(self, imm & IMM_SLOT_MASK)
        return imm

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self.slots.close()
        self.answers.close()
        self.world.loop.close_fd(self._fd)
        self.notify()

    def _flag(self) -> None:
        if self.is_open:
            flag = self.world.loop.flag
            flag(self._fd, bool(self.to_daemon) or not self.peer_is_open)
            flag(self._fd, len(self.to_requester) < self.bell_room or not self.peer_is_open, writable=True)

    # -- the requester's end
    def payload_view(self, slot: int) -> memoryview:
        at = slot * self._slot_stride + HEADER_ROOM
        return memoryview(self.slots.store)[at : at + self.payload_bytes]

    def write_header(self, slot: int, header: bytes) -> None:
        at = slot * self._slot_stride
        self.slots.store[at : at + len(header)] = header
        self.last_header = header

    def answer_header(self, slot: int) -> bytes:
        at = slot * self._answer_stride
        return bytes(self.answers.store[at : at + HEADER_COPY_BYTES])

    def result_view(self, slot: int, nbytes: int) -> memoryview:
        at = slot * self._answer_stride + HEADER_ROOM
        return memoryview(self.answers.store)[at : at + nbytes]

    def has_room(self) -> bool:
        """True when the requester's doorbell takes another."""
        return len(self.to_daemon) < SOCKET_MESSAGES

    def ring_daemon(self, message: bytes) -> None:
        """Raises: PeerGone."""
        if not self.is_open:
            raise PeerGone("doorbell: Broken pipe")
        self.to_daemon.append(message)
        self._flag()

    def take_answer(self) -> int | None:
        """The next doorbell; None: none now. Raises: PeerGone."""
        if self.to_requester:
            slot = self.to_requester.popleft()
            self._flag()
            return slot
        if not self.is_open:
            raise PeerGone("the daemon closed the session")
        return None

    def leave(self) -> None:
        """The requester hangs up, or died."""
        if self.peer_is_open:
            self.peer_is_open = False
            self.is_reset = bool(self.to_requester)
            self._flag()


def _nothing() -> None:
    """Nobody listens yet."""


class SimSocket:
    """The daemon's end of a connection on which a ticket is shown."""

    def __init__(self, world: World, notify: Callable[[SimFabricSession | None], None]) -> None:
        self._loop = world.loop
        self._fd = world.loop.open_fd()
        self._notify = notify
        self.ticket = b""
        self.peer_is_open = True
        self.is_open = True

    def show(self, ticket: bytes) -> None:
        self.ticket = ticket
        self._loop.flag(self._fd, True)

    def hang_up(self) -> None:
        self.peer_is_open = False
        if self.is_open:
            self._loop.flag(self._fd, True)

    def taken(self, session: SimFabricSession) -> None:
        self._notify(session)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.close_fd(self._fd)
            self._notify(None)


class SimFabricListener:
    """Implements `FabricListener`, with the real ticket book; the door is the daemon's own."""

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self._fd = world.loop.open_fd()
        self.tickets = TicketBook()
        self._waiting: deque[SimSocket] = deque()
        self.pending: dict[SimSocket, None] = {}

    def connect(self, sock: SimSocket) -> None:
        self._waiting.append(sock)
        self._loop.flag(self._fd, True)

    def offer(self, ticket: str, slots: int, payload_bytes: int, result_bytes: int, expires_ns: int) -> None:
        self.tickets.offer(ticket, slots, payload_bytes, result_bytes, expires_ns)

    def withdraw(self, ticket: str) -> None:
        self.tickets.withdraw(ticket)

    def fileno(self) -> int:
        return self._fd

    def accept(self) -> SimSocket | None:
        sock = self._waiting.popleft() if self._waiting else None
        self._loop.flag(self._fd, bool(self._waiting))
        if sock is not None:
            self.pending[sock] = None
        return sock

    def take_ticket(self, sock: SimSocket, now_ns: int) -> tuple[bytes, Any]:
        self.pending.pop(sock, None)
        if not sock.ticket:
            sock.close()
            raise PeerGone("no ticket came")
        try:
            return sock.ticket, self.tickets.redeem(sock.ticket, now_ns)
        except TicketRefused:
            sock.close()
            raise

    def drop(self, sock: SimSocket) -> None:
        self.pending.pop(sock, None)
        sock.close()

    def close(self) -> None:
        self._loop.close_fd(self._fd)
        while self._waiting:
            self._waiting.popleft().close()
        for sock in list(self.pending):
            self.drop(sock)
