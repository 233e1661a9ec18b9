"""The ports' simulated adapters: memory, copy engine, fabric. Each keeps the rules of its loopback twin."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offpath.bindings import native
from offpath.bindings.errors import DoorbellError, PeerGone, RegionError, TicketRefused
from offpath.bindings.ports import IMM_SLOT_MASK, IMM_SUBMIT, CopyCompletion, MemoryExport
from offpath.bindings.tickets import TicketBook
from offpath.bindings.wire.header import HEADER_COPY_BYTES, RequestHeader

from .channels import SOCKET_MESSAGES
from .promises import promise

if TYPE_CHECKING:
    from .world import World

HEADER_ROOM = 704


class Memory:
    """Bytes ``base`` to ``base + nbytes`` of ``store``; ``owner`` is whose they are, for the judge."""

    __slots__ = ("base", "closed", "fd", "nbytes", "owner", "store")

    def __init__(self, store: bytearray, base: int, nbytes: int, owner: Any, fd: int = -1) -> None:
        self.fd = fd
        self.store = store
        self.base = base
        self.nbytes = nbytes
        self.owner = owner
        self.closed = False

    @property
    def view(self) -> memoryview:
        return memoryview(self.store)[self.base : self.base + self.nbytes]

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
    """Copies at once, or later in any order; some fail, with half of their bytes written, and of these half with the
    way to their lane."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._fd = world.loop.open_fd()
        self._done: deque[CopyCompletion] = deque()
        self.flights: dict[int, Flight] = {}
        self.lost: set[Memory] = set()
        """Lanes whose way there has failed for good."""
        self.bytes_copied = self.bytes_by_cpu = 0
        self.ends_in_use = None

    def invite(self) -> None:
        return None

    def attach(self, memory: Memory, connection: Any, landing_bytes: int) -> None:
        """The engine copies by itself."""

    keeps_back = False

    def flush(self) -> None:
        """Nothing is kept back."""

    def reaches(self, memory: Memory) -> bool:
        return memory not in self.lost

    def has_lost(self, lane: Any) -> bool:
        """No copy reaches this lane of the host's any more."""
        return any(memory.base == lane.at and memory.owner is lane.tenancy for memory in self.lost)

    def import_memory(self, export: MemoryExport, invitation: None = None) -> Memory:
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
        world.may_be_killed("before a copy")
        self.bytes_copied += nbytes
        note = world.judge.copy_posted(source, source_offset, target, target_offset)
        flight = Flight(
            token, source, source.base + source_offset, target, target.base + target_offset, nbytes, note
        )  # fmt: skip
        if world.random.random() < world.setup.inline_copies:
            return self._land(flight)
        self.flights[token] = flight
        is_result = isinstance(target.owner, SessionMemory)
        world.loop.after(world.copy_ns(is_result=is_result), ("copy", token), lambda: self._landed(token))
        return None

    def _landed(self, token: int) -> None:
        flight = self.flights.pop(token, None)
        if flight is not None:
            self._done.append(self._land(flight))
            self._world.loop.flag(self._fd, True)

    def _land(self, flight: Flight) -> CopyCompletion:
        world = self._world
        lane = flight.source if isinstance(flight.target.owner, SessionMemory) else flight.target
        is_lost = lane in self.lost or world.happens("copy_fails")
        if is_lost and world.random.random() < 0.5:
            self.lost.add(lane)
        world.judge.copy_lands(flight)
        nbytes = flight.nbytes // 2 if is_lost else flight.nbytes
        source, at = flight.source.store, flight.source_at
        flight.target.store[flight.target_at : flight.target_at + nbytes] = source[at : at + nbytes]
        world.log("copy %s lands%s", flight.token, " with an error" if is_lost else "")
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


# -- fabric ---------------------------------------------------------------------------------------------------------
class SessionMemory:
    """A session's slots and answers: they outlive doorbells, and with a service manager the daemon's process. The judge
    identifies a session by them."""

    def __init__(self, slots: int, payload_bytes: int, result_bytes: int) -> None:
        self.slot_count = slots
        self.payload_bytes = payload_bytes
        self.result_bytes = result_bytes
        self.slot_stride = HEADER_ROOM + payload_bytes
        self.answer_stride = HEADER_ROOM + result_bytes
        self.slots = bytearray(slots * self.slot_stride)
        self.answers = bytearray(slots * self.answer_stride)
        self.has_peer = True
        """The requester has not left it for good."""

    def slot_at(self, offset: int, *, of_answers: bool) -> int:
        """The slot whose bytes lie at ``offset``."""
        return offset // (self.answer_stride if of_answers else self.slot_stride)


class Bell:
    """A pair of doorbells."""

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self._owned = world.owned
        self._owned[self] = None
        self.fd = world.loop.open_fd()
        self.room = world.setup.bell_room
        self.to_daemon: deque[bytes] = deque()
        self.to_requester: deque[int] = deque()
        self.peer_is_open = True
        self.is_open = True
        self.is_reset = False
        self.notify: Callable[[], None] = _nothing

    def flag(self) -> None:
        """Tell the loop what the daemon's end is ready for."""
        if self.is_open:
            self._loop.flag(self.fd, bool(self.to_daemon) or not self.peer_is_open)
            self._loop.flag(self.fd, len(self.to_requester) < self.room or not self.peer_is_open, writable=True)

    def close(self) -> None:
        """The daemon's end."""
        self.is_open = False
        del self._owned[self]
        self._loop.close_fd(self.fd)
        self.notify()

    def leave(self) -> None:
        """The requester's end."""
        if self.peer_is_open:
            self.peer_is_open = False
            self.is_reset = bool(self.to_requester)
            self.flag()


class SimFabricSession:
    """The daemon's end; implements `FabricSession`."""

    def __init__(self, world: World, memory: SessionMemory) -> None:
        self._world = world
        self.memory = memory
        self.slot_count = memory.slot_count
        self.payload_bytes = memory.payload_bytes
        self.result_bytes = memory.result_bytes
        self.answer_stride = memory.answer_stride
        self.slots = Memory(memory.slots, 0, len(memory.slots), memory, world.keep(memory))
        self.answers = Memory(memory.answers, 0, len(memory.answers), memory, world.keep(memory))
        self._bell: Bell | None = None
        self.fails_alone = self.room_is_polled = False
        self.header_bytes_read = 0
        self.answer_bytes_written = 0

    def hand_over(self, sock: SimSocket) -> None:
        if not sock.peer_is_open:
            raise BrokenPipeError(32, "Broken pipe")
        self.hang_up()
        self._bell = Bell(self._world)
        sock.taken(self.memory, self._bell)
        self._bell.flag()

    def hang_up(self) -> None:
        if self._bell is not None:
            self._bell.close()
            self._bell = None

    def read_header(self, slot: int) -> bytes:
        promise(not self.slots.closed, "a header is read from closed memory")
        at = slot * self.memory.slot_stride
        self.header_bytes_read += HEADER_COPY_BYTES
        return bytes(self.memory.slots[at : at + HEADER_COPY_BYTES])

    def take_request(self, slot: int) -> tuple[RequestHeader, int]:
        promise(not self.slots.closed, "a header is read from closed memory")
        self.header_bytes_read += HEADER_COPY_BYTES
        view = memoryview(self.memory.slots)
        return native.take_request(view, slot * self.memory.slot_stride, self.payload_bytes)

    def read_answer(self, slot: int) -> bytes:
        at = slot * self.memory.answer_stride
        return bytes(self.memory.answers[at : at + HEADER_COPY_BYTES])

    def payload_offset(self, slot: int) -> int:
        return slot * self.memory.slot_stride + HEADER_ROOM

    def result_offset(self, slot: int) -> int:
        return slot * self.memory.answer_stride + HEADER_ROOM

    def write_answer(self, slot: int, header: bytes, inline: bytes, nbytes: int) -> None:
        promise(not self.answers.closed, "an answer is written to closed memory")
        promise(len(inline) <= self.result_bytes, "an answer's inline bytes run into the next slot")
        self._world.may_be_killed("before an answer")
        self._world.judge.answer_written(self.memory, slot, header, inline)
        at = slot * self.memory.answer_stride
        store = self.memory.answers
        if inline:
            store[at + HEADER_ROOM : at + HEADER_ROOM + len(inline)] = inline
        store[at : at + len(header)] = header
        self.answer_bytes_written += len(header) + len(inline)
        self._world.may_be_killed("after an answer")

    def ring(self, imm: int) -> bool:
        bell = self._bell
        promise(bell is not None, "the daemon rings a session that has no peer")
        assert bell is not None
        if not bell.peer_is_open:
            raise PeerGone("doorbell: Broken pipe")
        if len(bell.to_requester) >= bell.room:
            return False
        bell.to_requester.append(imm)
        bell.flag()
        bell.notify()
        return True

    def has_arrived(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._bell.fd if self._bell is not None else -1

    def poll(self) -> int | None:
        bell = self._bell
        if bell is None:
            raise PeerGone("the other doorbell has no owner")
        if bell.is_reset:
            bell.is_reset = False
            raise PeerGone("doorbell: Connection reset by peer")
        if not bell.to_daemon:
            if not bell.peer_is_open:
                raise PeerGone("doorbell closed")
            return None
        message = bell.to_daemon.popleft()
        bell.flag()
        bell.notify()
        if len(message) != 4:
            raise DoorbellError("immediate_length", str(len(message)))
        imm = int.from_bytes(message, "little")
        if imm >> 24 == IMM_SUBMIT:
            self._world.judge.submit_read(self.memory, imm & IMM_SLOT_MASK)
        return imm

    def close(self) -> None:
        self.hang_up()
        self.slots.close()
        self.answers.close()


class RequesterEnd:
    """The requester's end: the slot table's session, whatever doorbell it has now."""

    def __init__(self, memory: SessionMemory, bell: Bell) -> None:
        self.memory = memory
        self.bell = bell
        self.slot_count = memory.slot_count
        self.payload_bytes = memory.payload_bytes
        self.result_bytes = memory.result_bytes
        self.last_header = b""

    def payload_view(self, slot: int) -> memoryview:
        at = slot * self.memory.slot_stride + HEADER_ROOM
        return memoryview(self.memory.slots)[at : at + self.payload_bytes]

    def write_header(self, slot: int, header: bytes, nbytes: int) -> None:
        at = slot * self.memory.slot_stride
        self.memory.slots[at : at + len(header)] = header
        self.last_header = header

    def answer_header(self, slot: int) -> bytes:
        at = slot * self.memory.answer_stride
        return bytes(self.memory.answers[at : at + HEADER_COPY_BYTES])

    def result_view(self, slot: int, nbytes: int) -> memoryview:
        at = slot * self.memory.answer_stride + HEADER_ROOM
        return memoryview(self.memory.answers)[at : at + nbytes]

    def has_room(self) -> bool:
        """True when the requester's doorbell takes another."""
        return len(self.bell.to_daemon) < SOCKET_MESSAGES

    def ring(self, message: bytes) -> None:
        """Raises: PeerGone."""
        if not self.bell.is_open:
            raise PeerGone("doorbell: Broken pipe")
        self.bell.to_daemon.append(message)
        self.bell.flag()

    def is_rung(self) -> bool:
        return bool(self.bell.to_requester)

    def take(self) -> int | None:
        """The next doorbell; None: none now. Raises: PeerGone."""
        if self.bell.to_requester:
            slot = self.bell.to_requester.popleft()
            self.bell.flag()
            return slot
        if not self.bell.is_open:
            raise PeerGone("the daemon closed the session")
        return None

    def leave(self) -> None:
        """For good."""
        self.memory.has_peer = False
        self.bell.leave()


def _nothing() -> None:
    """Nobody listens yet."""


class SimSocket:
    """The daemon's end of a connection on which a ticket is shown."""

    def __init__(self, world: World, notify: Callable[[SessionMemory | None, Bell | None], None]) -> None:
        self._loop = world.loop
        self._fd = world.loop.open_fd()
        self._notify = notify
        self._owned = world.owned
        self._owned[self] = None
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

    def taken(self, memory: SessionMemory, bell: Bell) -> None:
        self._notify(memory, bell)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            del self._owned[self]
            self._loop.close_fd(self._fd)
            self._notify(None, None)


class SimFabricListener:
    """Implements `FabricListener`, with the real ticket book; the door is the daemon's own."""

    paces_connections = False

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

    @staticmethod
    def address_of(sock: SimSocket) -> int:
        return 0  # all of one machine's user

    def take_ticket(self, sock: SimSocket, now_ns: int) -> tuple[bytes, Any]:
        self.pending.pop(sock, None)
        if not sock.ticket:
            sock.close()
            raise PeerGone("no ticket was received")
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
