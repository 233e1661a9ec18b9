"""A client of migd: blocking calls that survive a restart of migd.

Every request may be sent twice: instances are named by a handle that the client chose. After migd restarted, the client
connects again, holds its leases again, and repeats the request once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Final, TypeVar

from offpath.bindings.errors import (
    DeviceError,
    DeviceGone,
    DriverMismatch,
    DriverMissing,
    InstanceInUse,
    MigModeUnusable,
    NvmlDenied,
    NvmlMissing,
    OffpathError,
    PlacementTaken,
    ProtocolError,
    ResourceClosed,
)
from offpath.bindings.sockets import connect_within
from offpath.bindings.trust import connect_daemon
from offpath.bindings.wire.control import decode, encode
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.errors import MigdRefused, MigdUnreachable

CONNECT_S: Final = 5.0
REPLY_S: Final = 60.0
"""Longer than migd repeats the destruction of an instance in use."""
_R = TypeVar("_R", bound=protocol.Message)
_NVML: Final[dict[str, Callable[[str], OffpathError]]] = {
    "placement_taken": PlacementTaken,
    "mig_off": MigModeUnusable,
    "mig_on": MigModeUnusable,
    "mig_unsupported": MigModeUnusable,
    "mode_pending": MigModeUnusable,
    "driver_missing": DriverMissing,
    "driver_mismatch": DriverMismatch,
    "gpu_gone": DeviceGone,
    "library_missing": lambda text: NvmlMissing("offpath-migd", text),
    "no_right": lambda text: NvmlDenied("offpath-migd", text),
    "node": DeviceError,
    "ledger": DeviceError,
    "device": DeviceError,
}


def new_handle() -> str:
    """A handle that nobody can guess."""
    return secrets.token_hex(16)


class MigdClient:
    """One connection, made at the first call. Not for several threads. A forked child must not use it."""

    def __init__(self, path: str, *, connect: Callable[[socket.socket, str, float], None] = connect_daemon) -> None:
        """``path``: migd's socket. ``connect`` checks who listens there."""
        self._path = path
        self._connect = connect
        self._sock: socket.socket | None = None
        self._pid = os.getpid()
        self.connection = 0
        """Counts the connections that were made."""
        self.on_close: Callable[[int], None] = lambda fd: None
        """Called before a connection's descriptor is closed, but not in forked children."""
        self.held: set[str] = set()
        """Handles of the leases that this client holds."""

    def gpus(self) -> protocol.Gpus:
        """The GPUs that migd manages. Raises: as `call`."""
        return self.call(protocol.List(), protocol.Gpus)

    def describe(self, gpu: str) -> protocol.Gpu:
        """One GPU's profiles and instances. Raises: as `call`."""
        return self.call(protocol.Describe(gpu=gpu), protocol.Gpu)

    def create(self, gpu: str, profile: str, start: int, handle: str = "") -> protocol.Created:
        """Cut an instance and hold it. Raises: PlacementTaken, MigModeUnusable; as `call`."""
        handle = handle or new_handle()
        made = self.call(protocol.Create(handle=handle, gpu=gpu, profile=profile, start=start), protocol.Created)
        self.held.add(handle)
        return made

    def destroy(self, handle: str) -> None:
        """Give an instance back. Idempotent. Raises: InstanceInUse: it is quarantined; as `call`."""
        try:
            self.call(protocol.Destroy(handle=handle), protocol.Done)
        except MigdRefused as fault:
            if fault.code != "unknown_handle":
                raise
        self.held.discard(handle)

    def nodes(self, handle: str, uid: int) -> list[str]:
        """Make the device nodes of an instance for ``uid``; their paths. Raises: as `call`."""
        return self.call(protocol.Nodes(handle=handle, uid=uid), protocol.NodesMade).paths

    def hold(self, handles: list[str]) -> list[str]:
        """Hold leases of an earlier connection; those that exist. Raises: MigdRefused: another connection holds one."""
        held = self.call(protocol.Hold(handles=handles), protocol.Held).handles
        self.held |= set(held)
        return held

    def call(self, request: protocol.Message, wanted: type[_R]) -> _R:
        """Send a request and wait for its reply.

        Raises: MigdUnreachable: no migd answers. DaemonNotTrusted: another user's process listens. MigdRefused; for
            the driver's errors DeviceError and its subclasses. ResourceClosed: in a forked child.
        """
        if os.getpid() != self._pid:
            raise ResourceClosed("a forked process must not use its parent's connection to migd")
        body = encode(request)
        try:
            reply = self._exchange(body)
        except MigdUnreachable:
            self.close()
            reply = self._exchange(body)
        if isinstance(reply, protocol.Failed):
            raise as_error(reply)
        if not isinstance(reply, wanted):
            raise MigdUnreachable(f"migd answered {type(reply).__name__}, not {wanted.__name__}")
        return reply

    def fileno(self) -> int:
        """Readable between calls once migd hung up. -1: there is no connection."""
        return -1 if self._sock is None else self._sock.fileno()

    def has_hung_up(self) -> bool:
        """Whether migd ended the connection since the last call, or there is none. Not during a call."""
        if self._sock is None:
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))  # between calls migd sends nothing but its end

    def restore(self) -> None:
        """Connect again, if migd hung up, and hold all leases again before they expire. Raises: as `call`."""
        if self.has_hung_up():
            self.close()
            self.gpus()

    def watch(self) -> XidStream:
        """The Xid events of migd's GPUs. Raises: MigdUnreachable, MigdRefused, DaemonNotTrusted."""
        return XidStream(self._path, connect=self._connect)

    def close(self) -> None:
        """Hang up: leases are unheld from now on. In a forked child: close its copy of the connection. Idempotent."""
        if self._sock is not None:
            if os.getpid() == self._pid:
                self.on_close(self._sock.fileno())
                with contextlib.suppress(OSError):  # migd went first
                    self._sock.shutdown(socket.SHUT_RDWR)  # forked children may hold copies of it
            self._sock.close()
            self._sock = None

    def __enter__(self) -> MigdClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, body: bytes) -> protocol.Reply:
        if self._sock is None:
            self._sock = open_socket(self._path, self._connect)
            self.connection += 1
            try:
                self._hold_again(self._sock)
            except OffpathError:
                self.close()  # the next call tries again: leases that nobody holds expire
                raise
        return _ask(self._sock, body)

    def _hold_again(self, sock: socket.socket) -> None:
        handles = sorted(self.held)
        found: set[str] = set()
        for at in range(0, len(handles), protocol.MAX_HANDLES):
            reply = _ask(sock, encode(protocol.Hold(handles=handles[at : at + protocol.MAX_HANDLES])))
            if isinstance(reply, protocol.Failed):
                raise as_error(reply)
            if isinstance(reply, protocol.Held):
                found |= set(reply.handles)
        self.held = found


def open_socket(
    path: str, connect: Callable[[socket.socket, str, float], None] = connect_within
) -> socket.socket:  # fmt: skip
    """A connection to migd. Raises: MigdUnreachable, DaemonNotTrusted."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connect(sock, path, CONNECT_S)
        sock.settimeout(REPLY_S)
    except OSError as fault:
        sock.close()
        raise MigdUnreachable(f"no migd answers at {path}: {fault.strerror or fault}") from None
    except BaseException:
        sock.close()
        raise
    return sock


def _ask(sock: socket.socket, body: bytes) -> protocol.Reply:
    try:
        sock.send(body)
        reply = sock.recv(protocol.MAX_REPLY_BYTES)
    except OSError as fault:
        try:  # migd sends the reason before it hangs up, also while this end was still sending
            sock.setblocking(False)
            reply = sock.recv(protocol.MAX_REPLY_BYTES)
        except OSError:
            reply = b""
        if not reply:
            raise MigdUnreachable(f"migd hung up: {fault.strerror or fault}") from None
    if not reply:
        raise MigdUnreachable("migd hung up")
    return parse(reply)


def parse(body: bytes) -> protocol.Reply:
    """A message of migd's. Raises: MigdUnreachable: it is none."""
    try:
        return decode(protocol.REPLIES, body)
    except ProtocolError as fault:
        raise MigdUnreachable(f"migd sent no message of this protocol: {fault}") from None


def as_error(reply: protocol.Failed) -> OffpathError:
    """A refusal as an exception."""
    if reply.code == "in_use":
        return InstanceInUse("offpath-migd", reply.detail, pids=tuple(reply.pids))
    make = _NVML.get(reply.code)
    return make(f"offpath-migd: {reply.detail}") if make else MigdRefused(reply.code, reply.detail)


class XidStream:
    """The Xid events of migd's GPUs, on a connection of their own."""

    def __init__(self, path: str, *, connect: Callable[[socket.socket, str, float], None] = connect_daemon) -> None:
        """Raises: MigdUnreachable, MigdRefused, DaemonNotTrusted."""
        self._sock = open_socket(path, connect)
        try:
            reply = _ask(self._sock, encode(protocol.Watch()))
            if isinstance(reply, protocol.Failed):
                raise as_error(reply)
            self._sock.setblocking(False)
        except BaseException:
            self._sock.close()
            raise

    def fileno(self) -> int:
        """Readable when an event waits or migd hung up."""
        return self._sock.fileno()

    def poll(self) -> protocol.Xid | None:
        """The next event, or None. Does not block. Raises: MigdUnreachable: migd hung up."""
        try:
            body = self._sock.recv(protocol.MAX_REPLY_BYTES)
        except BlockingIOError:
            return None
        except OSError as fault:
            raise MigdUnreachable(f"migd hung up: {fault.strerror or fault}") from None
        if not body:
            raise MigdUnreachable("migd hung up")
        message = parse(body)
        return message if isinstance(message, protocol.Xid) else None

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._sock.close()
