"""Fabric `loopback`: sealed regions that the daemon makes, and a SEQPACKET pair per session as the two doorbells.

Descriptors are passed once, against a ticket. Each side owns its end of the pair. The peer's flags, reads and writes on
its end cannot make this end block: O_NONBLOCK belongs to the open file, not to the pair.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from typing import Any, Final

from offpath.bindings.errors import DoorbellError, PeerGone, RegionError, TicketRefused
from offpath.bindings.memory.region import Region
from offpath.bindings.memory.slots import SlotMemory, slot_stride
from offpath.bindings.native import end_of, receive, ring, wait
from offpath.bindings.sockets import (
    GONE,
    SocketFile,
    listening_socket,
    peer_credentials,
    receive_with_fds,
    send_with_fds,
)
from offpath.bindings.tickets import Offer, TicketBook
from offpath.bindings.trust import connect_daemon
from offpath.bindings.twins import HUNG_UP
from offpath.bindings.wire.header import HEADER_PART_BYTES, copied_answer

_TICKET_BYTES: Final = 256
_GEOMETRY = struct.Struct("<IQQ")
_TAKEN: Final = b"taken"
_REFUSED: Final = b"refused"
_MAX_PENDING: Final = 64


class LoopbackFabricSession(SlotMemory):
    """The daemon's end; implements `offpath.bindings.ports.FabricSession`. It has a doorbell from `hand_over` to
    `hang_up`."""

    fails_alone: Final = False
    room_is_polled: Final = False

    def __init__(
        self, slots: int, payload_bytes: int, result_bytes: int, memory: tuple[int, int] | None = None
    ) -> None:
        """As `SlotMemory`."""
        super().__init__(slots, payload_bytes, result_bytes, memory)
        self._bell: socket.socket | None = None
        self._end: Any = None
        """The doorbell as `offpath.bindings.native` takes it."""

    def hand_over(self, sock: socket.socket) -> None:
        """Make a new pair of doorbells and send the peer its three descriptors. Raises: OSError."""
        message = _TAKEN + _GEOMETRY.pack(self.slot_count, self.payload_bytes, self.result_bytes)
        ours, theirs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        theirs.setblocking(True)
        try:
            send_with_fds(sock, message, [self.slots.fd, self.answers.fd, theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.hang_up()
        self._bell, self._end = ours, end_of(ours)

    def hang_up(self) -> None:
        """See `FabricSession.hang_up`."""
        if self._bell is not None:
            self._bell.close()
            self._bell = self._end = None

    def ring(self, imm: int) -> bool:
        """See `FabricSession.ring`."""
        if self._bell is None:
            raise PeerGone("the other doorbell has no owner")
        try:
            return ring(self._end, imm)
        except OSError as fault:
            if fault.errno in GONE:
                raise PeerGone(f"doorbell: {fault.strerror}") from None
            raise

    def has_arrived(self) -> bool:
        """See `FabricSession.has_arrived`: memory and doorbells belong to the kernel and survive this process."""
        return True

    def fileno(self) -> int:
        """Readable when doorbells wait or the peer is gone. -1 without a doorbell."""
        return self._bell.fileno() if self._bell is not None else -1

    def poll(self) -> int | None:
        """See `FabricSession.poll`."""
        if self._bell is None:
            raise PeerGone("the other doorbell has no owner")
        try:
            imm = receive(self._end)
        except OSError as fault:
            if fault.errno in GONE:
                raise PeerGone(f"doorbell: {fault.strerror}") from None
            raise
        if imm is None or imm >= 0:
            return imm
        if imm == HUNG_UP:
            raise PeerGone("doorbell closed")
        raise DoorbellError("immediate_length", str(HUNG_UP - imm))

    def close(self) -> None:
        """Unmap and hang up."""
        self.hang_up()
        self.close_memory()


class LoopbackFabricListener:
    """The Unix socket on which peers exchange tickets for descriptors.

    The shell watches `fileno` and calls `accept`. It watches each accepted peer until the ticket arrives; `take_ticket`
    then returns the offer, and the shell builds the session in a thread, because that blocks. The shell's timer calls
    `drop` for peers that send nothing. ``inherited``: a socket that already listens at ``path``. Its maker owns the
    file, so the file stays.
    """

    paces_connections: Final = False

    def __init__(self, path: str, inherited: socket.socket | None = None) -> None:
        self.path = path
        self.tickets = TicketBook()
        self._sock = inherited or listening_socket(path, socket.SOCK_SEQPACKET)
        self.file = SocketFile(path, is_own=inherited is None)
        self.pending: set[socket.socket] = set()

    def fileno(self) -> int:
        """Readable when a connection waits."""
        return self._sock.fileno()

    def replace(self, sock: socket.socket) -> None:
        """Listen on ``sock`` instead, which takes over the path. Accepted peers stay."""
        self._sock.close()
        self._sock = sock

    def offer(self, ticket: str, slots: int, payload_bytes: int, result_bytes: int, expires_ns: int) -> None:
        """See `FabricListener.offer`."""
        self.tickets.offer(ticket, slots, payload_bytes, result_bytes, expires_ns)

    def withdraw(self, ticket: str) -> None:
        """See `FabricListener.withdraw`."""
        self.tickets.withdraw(ticket)

    def accept(self) -> socket.socket | None:
        """The next peer, or None. Above 64 peers without a ticket, new ones are closed at once."""
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        sock.setblocking(False)
        if len(self.pending) >= _MAX_PENDING:
            sock.close()
            return None
        self.pending.add(sock)
        return sock

    @staticmethod
    def address_of(sock: socket.socket) -> int:
        """The uid of the process that connected. Raises: OSError: ``sock`` is closed, or the kernel has none."""
        return peer_credentials(sock)[1]

    def take_ticket(self, sock: socket.socket, now_ns: int) -> tuple[bytes, Offer]:
        """Read the peer's ticket and consume it. A peer with an invalid ticket is notified.

        Returns: the ticket's bytes, which identify its negotiation, and the offer.
        Raises: TicketRefused, PeerGone: ``sock`` is then closed.
        """
        self.pending.discard(sock)
        try:
            ticket = sock.recv(_TICKET_BYTES)
            if not ticket:
                raise PeerGone("no ticket was received")
            return ticket, self.tickets.redeem(ticket, now_ns)
        except TicketRefused:
            with contextlib.suppress(OSError):  # the peer may be gone
                sock.send(_REFUSED)
            sock.close()
            raise
        except OSError as fault:
            sock.close()
            raise PeerGone(str(fault)) from None
        except PeerGone:
            sock.close()
            raise

    def drop(self, sock: socket.socket) -> None:
        """Close a peer that sent no ticket in time. Idempotent."""
        self.pending.discard(sock)
        sock.close()

    def close(self) -> None:
        """Stop listening, drop pending peers, remove the socket file."""
        if self._sock.fileno() < 0:
            return
        self.file.remove()
        self._sock.close()
        for sock in list(self.pending):
            self.drop(sock)


class LoopbackRequesterSession:
    """The requester's end; implements `offpath.bindings.ports.RequesterSession`."""

    def __init__(self, fds: list[int], slots: int, payload_bytes: int, result_bytes: int) -> None:
        """Map both regions. Owns ``fds`` (slots, answers, doorbell), also on failure. Raises: RegionError."""
        self.slot_count = slots
        self.payload_bytes = payload_bytes
        self.result_bytes = result_bytes
        self._slot_stride = slot_stride(payload_bytes)
        self._answer_stride = slot_stride(result_bytes)
        try:
            self._bell = socket.socket(fileno=fds[2])
        except OSError as fault:
            for fd in fds:
                os.close(fd)
            raise RegionError(f"the doorbell is not a socket: {fault.strerror}") from None
        self._end = end_of(self._bell)
        self._bell.setblocking(True)  # only `wait` blocks on this end: all other calls pass MSG_DONTWAIT
        try:
            self._slots = Region(fds[0], 0, slots * self._slot_stride)
        except RegionError:
            os.close(fds[1])
            self._bell.close()
            raise
        try:
            self._answers = Region(fds[1], 0, slots * self._answer_stride)
        except RegionError:
            self._slots.close()
            self._bell.close()
            raise
        self._slots.prefault()
        self._answers.prefault()

    def payload_view(self, slot: int) -> memoryview:
        """See `RequesterSession.payload_view`."""
        at = slot * self._slot_stride + HEADER_PART_BYTES
        return self._slots.view[at : at + self.payload_bytes]

    def write_header(self, slot: int, header: bytes, nbytes: int) -> None:
        """See `RequesterSession.write_header`."""
        at = slot * self._slot_stride
        self._slots.view[at : at + len(header)] = header

    def answer_header(self, slot: int) -> bytes:
        """See `RequesterSession.answer_header`."""
        return copied_answer(self._answers.view, slot * self._answer_stride)

    def result_view(self, slot: int, nbytes: int) -> memoryview:
        """See `RequesterSession.result_view`."""
        at = slot * self._answer_stride + HEADER_PART_BYTES
        return self._answers.view[at : at + nbytes]

    def ring(self, imm: int) -> None:
        """See `RequesterSession.ring`."""
        deadline: float | None = None
        while True:
            try:
                if ring(self._end, imm):
                    return
            except OSError as fault:
                raise PeerGone(f"doorbell: {fault.strerror}") from None
            now = time.monotonic()
            deadline = deadline or now + 5.0
            if now >= deadline or not wait(self._bell.fileno(), select.POLLOUT, deadline - now):
                raise PeerGone("the daemon has read no doorbell for 5 s")

    def fileno(self) -> int:
        """See `RequesterSession.fileno`."""
        return self._bell.fileno()

    def poll(self) -> list[int]:
        """See `RequesterSession.poll`."""
        imms: list[int] = []
        while True:
            try:
                imm = receive(self._end)
            except OSError as fault:
                if imms:
                    return imms
                raise PeerGone(f"doorbell: {fault.strerror}") from None
            if imm is None or (imm == HUNG_UP and imms):
                return imms
            if imm < 0:
                why = "closed the session" if imm == HUNG_UP else f"rang with {HUNG_UP - imm} bytes"
                raise PeerGone(f"the daemon {why}")
            imms.append(imm)

    def wait(self, timeout_s: float | None) -> list[int]:
        """See `RequesterSession.wait`."""
        if timeout_s is None:
            try:
                message = self._bell.recv(8)
            except OSError as fault:
                raise PeerGone(f"doorbell: {fault.strerror}") from None
            if not message:
                raise PeerGone("the daemon closed the session")
            return [int.from_bytes(message, "little")]
        if timeout_s > 0 and not wait(self._bell.fileno(), select.POLLIN, timeout_s):
            return []
        return self.poll()

    def close(self) -> None:
        """Unmap and hang up."""
        self._bell.close()
        self._end = end_of(self._bell)
        self._slots.close()
        self._answers.close()


def redeem_ticket(path: str, ticket: str, timeout_s: float = 5.0) -> LoopbackRequesterSession:
    """Redeem the ticket for the regions and the doorbell, as the requester.

    Raises: TicketRefused: unknown, used or late. PeerGone: no daemon listens, or no descriptor is left. RegionError:
        the received descriptors are unusable. DaemonNotTrusted: an untrusted user listens there; the ticket was not
        sent.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as sock:
            connect_daemon(sock, path, timeout_s)
            sock.settimeout(timeout_s)
            sock.send(ticket.encode())
            message, fds, _ = receive_with_fds(sock, 64, 3)
    except OSError as fault:
        raise PeerGone(f"fabric at {path}: {fault}") from None
    try:
        slots, payload_bytes, result_bytes = parse_taken(message, len(fds))
    except TicketRefused:
        for fd in fds:
            os.close(fd)
        raise
    return LoopbackRequesterSession(fds, slots, payload_bytes, result_bytes)


def parse_taken(message: bytes, descriptors: int) -> tuple[int, int, int]:
    """Parse the daemon's reply to a ticket, received with ``descriptors`` descriptors: (slots, payload bytes, result
    bytes).

    Raises: TicketRefused: a refusal, a hang-up, or an invalid reply.
    """
    if message[: len(_TAKEN)] != _TAKEN or descriptors != 3 or len(message) != len(_TAKEN) + _GEOMETRY.size:
        raise TicketRefused("the daemon refused the ticket" if message else "the daemon hung up")
    slots, payload_bytes, result_bytes = _GEOMETRY.unpack_from(message, len(_TAKEN))
    return slots, payload_bytes, result_bytes
