"""Peers that speak the protocol by hand, so that they can also misspeak it."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import struct
from types import TracebackType
from typing import Any

import orjson

from offpath.bindings.memory.slots import slot_stride
from offpath.bindings.sockets import receive_with_fds
from offpath.bindings.wire import control, fields, negotiating
from offpath.bindings.wire.frames import FrameReader
from offpath.bindings.wire.header import HEADER_COPY_BYTES, HEADER_PART_BYTES, AnswerHeader, parse_answer

from .cluster import Cluster
from .processes import BOUND_S, until


class Peer:
    """A negotiation connection."""

    def __init__(self, address: str | socket.socket) -> None:
        if isinstance(address, str):
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(BOUND_S)
            path = address.removeprefix("unix:")
            try:
                until(lambda: self.sock.connect_ex(path) != errno.EAGAIN)  # the backlog is full when we are fast
                self.sock.getpeername()
            except BaseException:
                self.sock.close()
                raise
        else:
            self.sock = address
            self.sock.settimeout(BOUND_S)
        self._frames = FrameReader()
        self._held: list[bytes] = []

    def send(self, data: bytes) -> None:
        """Raw bytes; a daemon that has hung up is no fault here."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.sock.sendall(data)

    def send_message(self, **message: Any) -> None:
        body = orjson.dumps(message)
        self.send(struct.pack("<I", len(body)) + body)

    def hear(self) -> Any:
        """The next message, or None when the daemon hung up. Raises: TimeoutError: it did neither."""
        while not self._held:
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._held += self._frames.feed(data)
        return control.decode(negotiating.TO_REQUESTER, self._held.pop(0))

    def hear_the_end(self) -> str:
        """The code with which the daemon refused or closed, "" if it only hung up."""
        while (message := self.hear()) is not None:
            if isinstance(message, negotiating.Refused | control.Closing):
                assert self.hear() is None
                return message.code
        return ""

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def hello(tenant: str, **changes: Any) -> dict[str, Any]:
    asked = {"slots": 4, "payload_bytes": 8192, "result_bytes": 8192}
    return {
        "kind": "hello",
        "version": fields.PROTOCOL_VERSION,
        "tenant": tenant,
        "token": Cluster.token(tenant),
        **asked,
        **changes,
    }


def refusal(cluster: Cluster, whose: str, **changes: Any) -> negotiating.Refused:
    """What the daemon answers to this tenant's hello with changes, which must be a refusal."""
    with Peer(cluster.address) as peer:
        peer.send_message(**{**hello(whose), **changes})
        refused = peer.hear()
        assert isinstance(refused, negotiating.Refused), refused
        assert peer.hear() is None
        return refused


class RawSession:
    """A session in the hands of somebody who does as he likes: raw descriptors and the slots' bytes."""

    def __init__(self, cluster: Cluster, tenant: str, **changes: Any) -> None:
        self.peer = Peer(cluster.address)
        self.bell: socket.socket | None = None
        self.slots = self.answers = -1
        self.view = self.answer_view = None
        try:
            self.peer.send_message(**hello(tenant, **changes))
            welcome = self.peer.hear()
            assert isinstance(welcome, negotiating.Welcome), welcome
            self.welcome = welcome
            fds = redeem(welcome.fabric.address, welcome.ticket.encode())
            assert fds is not None
        except BaseException:
            self.peer.close()
            raise
        self.slots, self.answers, bell = fds
        self.bell = socket.socket(fileno=bell)
        self.bell.settimeout(BOUND_S)
        self.stride = slot_stride(welcome.payload_bytes)
        self.view = mmap.mmap(self.slots, welcome.slots * self.stride)
        self.answer_stride = slot_stride(welcome.result_bytes)
        self.answer_view = mmap.mmap(self.answers, welcome.slots * self.answer_stride)

    def write(self, slot: int, header: bytes, payload: bytes = b"") -> None:
        assert self.view is not None
        at = slot * self.stride
        self.view[at : at + len(header)] = header
        self.view[at + HEADER_PART_BYTES : at + HEADER_PART_BYTES + len(payload)] = payload

    def ring(self, imm: int) -> bool:
        """False when the daemon has hung up."""
        assert self.bell is not None
        try:
            self.bell.send(imm.to_bytes(4, "little"))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def rung(self) -> int | None:
        """The next doorbell of the daemon, None when it has hung up."""
        assert self.bell is not None
        try:
            return int.from_bytes(got, "little") if (got := self.bell.recv(8)) else None
        except ConnectionResetError:
            return None

    def answer(self, slot: int) -> AnswerHeader:
        assert self.answer_view is not None
        at = slot * self.answer_stride
        return parse_answer(self.answer_view[at : at + HEADER_COPY_BYTES], self.welcome.result_bytes)

    def kernel_id(self, name: str) -> int:
        return next(kernel.kernel_id for kernel in self.welcome.kernels if kernel.name == name)

    def end(self) -> str:
        """The code the daemon closed the session with."""
        try:
            return self.peer.hear_the_end()
        finally:
            self.close()

    def close(self) -> None:
        self.peer.close()
        if self.bell is not None:
            self.bell.close()
        for fd in (self.slots, self.answers):
            if fd >= 0:
                os.close(fd)
        self.slots = self.answers = -1
        for view in (self.view, self.answer_view):
            if view is not None:
                view.close()

    def __enter__(self) -> RawSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def redeem(path: str, ticket: bytes) -> list[int] | None:
    """Show a ticket: slots, answers and doorbell as descriptors, or None when it was not taken."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(BOUND_S)
        sock.connect(path)
        try:
            sock.send(ticket)
            message, fds, _ = receive_with_fds(sock, 64, 3)
        except (BrokenPipeError, ConnectionResetError):
            return None
    return fds if message.startswith(b"taken") else None
