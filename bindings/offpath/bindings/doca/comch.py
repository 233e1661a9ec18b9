"""Comch: messages between a server on the DPU and clients on its host, as contexts that their owner polls.

Comch has no notifications and is not thread-safe: one thread calls `poll`. A client's connection attempt may never end,
so the caller needs its own time-out.
"""

from __future__ import annotations

import ctypes
from collections import Counter, deque
from ctypes import byref
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

from offpath.bindings.doca._abi_comch import CONNECTION_CHANGED, RECEIVED, SENT
from offpath.bindings.doca._abi_ctx import State
from offpath.bindings.doca._abi_errors import Status
from offpath.bindings.doca._abi_types import HANDLE
from offpath.bindings.doca._check import failure
from offpath.bindings.doca.context import Context
from offpath.bindings.doca.device import Device, Representor
from offpath.bindings.doca.engine import Engine
from offpath.bindings.doca.handles import Handle
from offpath.bindings.errors import DeviceError, DocaError, PeerGone

SENDS: Final = 64
"""Messages in flight at once, if the device allows as many."""
RECEIVES: Final = 64
"""Messages that wait for `poll`, if the device allows as many."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A client connected. Connection numbers are never reused."""

    connection: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """It left or was disconnected; its number is invalid."""

    connection: int


@dataclass(frozen=True, slots=True)
class Received:
    """A whole message."""

    connection: int
    message: bytes


@dataclass(frozen=True, slots=True)
class SendFailed:
    """An accepted message was not delivered."""

    connection: int
    fault: DeviceError


Event = Connected | Disconnected | Received | SendFailed


@dataclass(frozen=True, slots=True)
class _Sending:
    connection: int
    content: Any
    """DOCA reads it until the task has ended."""


class _Limits(NamedTuple):
    message_bytes: int
    sends: int
    receives: int

    @classmethod
    def of(cls, device: Device, name: str, message_bytes: int) -> _Limits:
        """Raises: DocaError: the name is too long, or the device reports no limits."""
        most = device.limit("doca_comch_cap_get_max_name_len")
        if not 0 < len(name.encode()) < most:
            raise DocaError("Comch", f"a name of 1 to {most - 1} bytes, not {name!r:.60}")
        return cls(
            min(message_bytes, device.limit("doca_comch_cap_get_max_msg_size")),
            min(SENDS, device.limit("doca_comch_cap_get_max_send_tasks")),
            min(RECEIVES, device.limit("doca_comch_cap_get_max_recv_queue_size")),
        )


class _End(Context):
    """Common part of server and client. ``_role``: as in DOCA's function names."""

    _role = ""

    def __init__(self, device: Device, engine: Engine, pointer: int | None, limits: _Limits, *parents: Handle) -> None:
        name = f"doca_comch_{self._role}"
        super().__init__(
            engine, f"Comch {self._role}", pointer, f"{name}_destroy", f"{name}_as_ctx", device, *parents
        )  # fmt: skip
        self._limits = limits
        self._events: deque[Event] = deque()
        self._ended: deque[tuple[int, int, bool]] = deque()
        self._sending: dict[int, _Sending] = {}
        self._under_way: Counter[int] = Counter()
        self._serials = count(1)
        self._connections: dict[int, int] = {}
        self._numbers = count(1)

    @property
    def message_bytes(self) -> int:
        """The longest message, in both directions."""
        return self._limits.message_bytes

    def _open(self) -> None:
        """Configure, connect to the engine, start. Raises: DocaError, DeviceGone."""
        name, call = f"doca_comch_{self._role}", self.doca.call
        call(f"{name}_set_max_msg_size", self.pointer, self._limits.message_bytes)
        call(f"{name}_set_recv_queue_size", self.pointer, self._limits.receives)
        self._connect()
        good, bad = (self.keep(SENT(self._engine.guarded(each))) for each in (self._sent, self._not_sent))
        call(f"{name}_task_send_set_conf", self.pointer, good, bad, self._limits.sends)
        received = self.keep(RECEIVED(self._engine.guarded(self._received)))
        call(f"{name}_event_msg_recv_register", self.pointer, received)
        self._register_connections()
        self.start()

    def _register_connections(self) -> None:
        """A client has one connection, and the context's state reports it."""

    # -- messages -----------------------------------------------------------------------------------------------------
    def send(self, connection: int, message: bytes) -> bool:
        """Send the whole message. False: too many are in flight, poll first. Does not block.

        Raises: PeerGone: the number is not connected. DocaError, DeviceGone.
        """
        peer = self._connections.get(connection)
        if peer is None:
            raise PeerGone("the Comch connection is gone")
        content, made, serial = ctypes.create_string_buffer(message, len(message)), HANDLE(), next(self._serials)
        status = self.doca.call(
            f"doca_comch_{self._role}_task_send_alloc_init", self.pointer, peer, content, len(message), byref(made),
            expect=(Status.NO_MEMORY,),
        )  # fmt: skip
        if status:
            return False
        task: int = self.doca.value("doca_comch_task_send_as_task", made)
        self.doca.value("doca_task_set_user_data", task, serial)
        try:
            status = self.doca.call("doca_task_submit", task, expect=(Status.AGAIN,))
        except BaseException:
            self.doca.value("doca_task_free", task)
            raise
        if status:
            self.doca.value("doca_task_free", task)
            return False
        self._sending[serial] = _Sending(connection, content)
        self._under_way[connection] += 1
        return True

    def under_way(self, connection: int) -> int:
        """Messages to it that have not been delivered, as of the last poll."""
        return self._under_way.get(connection, 0)

    def poll(self) -> list[Event]:
        """Make progress, and return the events. Does not block. Raises: DocaError, DeviceGone."""
        self._engine.drain()
        self._give_back()
        events = list(self._events)
        self._events.clear()
        return events

    # -- within -------------------------------------------------------------------------------------------------------
    def _give_back(self) -> None:
        while self._ended:
            task, serial, is_good = self._ended.popleft()
            sending = self._sending.pop(serial, None)
            if sending is not None:
                self._under_way[sending.connection] -= 1
                if not self._under_way[sending.connection]:
                    del self._under_way[sending.connection]
            if sending is not None and not is_good:
                status = self.doca.value("doca_task_get_status", task) or Status.UNKNOWN
                fault = failure(status, "send by Comch", *self.doca.describe(status))
                self._events.append(SendFailed(sending.connection, fault))
            self.doca.value("doca_task_free", task)

    def _sent(self, message: int, serial: int, _data: int) -> None:
        self._ended.append((self.doca.value("doca_comch_task_send_as_task", message), serial, True))

    def _not_sent(self, message: int, serial: int, _data: int) -> None:
        self._ended.append((self.doca.value("doca_comch_task_send_as_task", message), serial, False))

    def _received(self, _event: int, content: int | None, nbytes: int, peer: int) -> None:
        """DOCA reuses the bytes after this returns."""
        number = self.doca.value("doca_comch_connection_get_user_data", peer)
        message = ctypes.string_at(content, nbytes) if content and nbytes else b""
        self._events.append(Received(number or self._number(peer), message))

    def _number(self, peer: int) -> int:
        """Number a new connection. DOCA reuses pointers, so they do not identify connections."""
        number = next(self._numbers)
        self.doca.call("doca_comch_connection_set_user_data", peer, number)
        self._connections[number] = peer
        return number


class ComchServer(_End):
    """On the DPU, for the clients of one function of the host."""

    _role = "server"

    def __init__(self, device: Device, representor: Representor, engine: Engine, name: str, message_bytes: int) -> None:
        """Listen. Raises: DocaError, DeviceGone."""
        made = HANDLE()
        limits = _Limits.of(device, name, message_bytes)
        device.doca.call(
            "doca_comch_server_create", device.pointer, representor.pointer, name.encode(), byref(made)
        )  # fmt: skip
        super().__init__(device, engine, made.value, limits, representor)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def disconnect(self, connection: int) -> bool:
        """Disconnect a client; `Disconnected` follows. False: not now, try again. Harmless if it is gone already.

        Raises: DocaError.
        """
        peer = self._connections.get(connection)
        if peer is None:
            return True
        gone = (Status.AGAIN, Status.INVALID_VALUE)  # the latter while it disconnects by itself
        return self.doca.call("doca_comch_server_disconnect", self.pointer, peer, expect=gone) != Status.AGAIN

    def _register_connections(self) -> None:
        came, left = (self.keep(CONNECTION_CHANGED(self._engine.guarded(each))) for each in (self._came, self._left))
        self.doca.call("doca_comch_server_event_connection_status_changed_register", self.pointer, came, left)

    def _came(self, _event: int, peer: int, is_good: int) -> None:
        if is_good:
            self._events.append(Connected(self._number(peer)))

    def _left(self, _event: int, peer: int, _is_good: int) -> None:
        number = self.doca.value("doca_comch_connection_get_user_data", peer)
        if self._connections.pop(number, None) is not None:
            self._events.append(Disconnected(number))


class ComchClient(_End):
    """On the host. Starts connecting when it is made; `connection` returns the state."""

    _role = "client"

    def __init__(self, device: Device, engine: Engine, name: str, message_bytes: int) -> None:
        """Raises: DocaError, DeviceGone."""
        made = HANDLE()
        limits = _Limits.of(device, name, message_bytes)
        device.doca.call("doca_comch_client_create", device.pointer, name.encode(), byref(made))
        super().__init__(device, engine, made.value, limits)
        self._mine = 0
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def connection(self) -> int:
        """The number to send by; 0: not connected yet, poll and call again. Raises: PeerGone: the connection failed or
        is lost."""
        if self.state is State.RUNNING:
            if not self._mine:
                made = HANDLE()
                self.doca.call("doca_comch_client_get_connection", self.pointer, byref(made))
                known = self.doca.value("doca_comch_connection_get_user_data", made)
                self._mine = known or self._number(made.value or 0)
            return self._mine
        if self.state is State.STARTING:
            return 0
        self._connections.clear()
        raise PeerGone("the Comch server is gone" if self._mine else "no Comch server of this name answers")
