"""Stores descriptors with the service manager: queued, sent when there is room, acknowledged by a barrier.

The manager's socket takes ten messages by kernel default, and none while the manager is stalled. Therefore each stored
name has a request that is repeated until the manager acknowledges it: ``BARRIER=1`` carries a pipe that the manager
closes after it has handled every earlier message (sd_notify(3)). Nothing here blocks the loop. There is one request per
name, so the queue is bounded by the open sessions and those that the manager still holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from offpath.bindings.sockets import send_with_fds
from offpath.dpu_daemon.durability.notify import Notifier

logger = logging.getLogger(__name__)
RETRY_S: Final = 0.1
"""Delay before another attempt when the manager is unreachable or descriptors for a barrier are missing."""
ACKNOWLEDGE_S: Final = 5.0
"""Requests not acknowledged within this time are sent again: the manager may have been replaced."""
NAMES: Final = {
    "offpath_store_pending": "Descriptors' stores and removals that the service manager has not acknowledged.",
    "offpath_store_retries_total": "Stores and removals that were sent to the service manager again.",
}


@dataclass(slots=True, eq=False)
class _Request:
    """``fds``: descriptors to store under the name; None: remove what is stored. The owner closes them, but only after
    `Store.forget`."""

    fds: tuple[int, ...] | None
    is_sent: bool = False
    may_be_held: bool = False
    """An earlier request of that name may have reached the manager."""
    when_sent: list[Callable[[], None]] = field(default_factory=list)
    when_held: list[Callable[[], None]] = field(default_factory=list)


def store_metrics(store: Store) -> dict[str, tuple[str, Callable[[], float]]]:
    """See `offpath.dpu_daemon.operation.metrics.Extra`."""
    give: dict[str, Callable[[], float]] = {
        "offpath_store_pending": lambda: store.pending,
        "offpath_store_retries_total": lambda: store.retries,
    }
    return {name: (text, give[name]) for name, text in NAMES.items()}


class Store:
    """The daemon's side. Without a manager `keep` and `forget` do nothing."""

    def __init__(self, notifier: Notifier) -> None:
        self.notifier = notifier
        self._requests: dict[str, _Request] = {}
        self._held: set[str] = set()
        self._sock: socket.socket | None = None
        self._is_waiting_for_room = False
        self._timer: asyncio.TimerHandle | None = None
        self._barrier = -1
        self._behind: list[tuple[str, _Request]] = []
        """Requests that the pending barrier acknowledges."""
        self._is_closed = False
        self.retries = 0

    @property
    def pending(self) -> int:
        """Number of requests that are not acknowledged."""
        return len(self._requests)

    def is_held(self, name: str) -> bool:
        """Whether the manager has acknowledged it."""
        return name in self._held

    def adopt(self, name: str) -> None:
        """Record that the manager passed it to this process and still holds it."""
        self._held.add(name)

    def keep(
        self, name: str, fds: Sequence[int], when_sent: Callable[[], None] = lambda: None,
        when_held: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Store ``fds`` under ``name``. ``when_sent``: the message is in the manager's queue, and is handled even if
        this process is killed now; called within this call if there is room. ``when_held``: acknowledged, later."""
        if not self.notifier.has_manager:
            when_sent()
            return
        self._requests[name] = _Request(tuple(fds), when_sent=[when_sent], when_held=[when_held])
        self._send()

    def forget(self, name: str) -> None:
        """Drop what is stored under ``name``; the descriptors may be closed after this call."""
        if not self.notifier.has_manager:
            return
        before = self._requests.pop(name, None)
        if name in self._held or before is None or before.is_sent or before.may_be_held:
            self._held.discard(name)
            self._requests[name] = _Request(None, may_be_held=True)
            self._send()

    # -- sending --------------------------------------------------------------------------------------------------
    def _send(self) -> None:
        """Send as much as there is room for, oldest first, then a barrier."""
        if self._is_closed or self._is_waiting_for_room:
            return
        for name, request in list(self._requests.items()):
            if request.is_sent:
                continue
            if not self._submit(name, request):
                return
            request.is_sent = True
            for callback in request.when_sent:
                callback()
            request.when_sent.clear()
        if self._requests and self._barrier < 0:
            self._raise_barrier()

    def _submit(self, name: str, request: _Request) -> bool:
        if request.fds is None:
            return self._put(f"FDSTOREREMOVE=1\nFDNAME={name}")
        return self._put(f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}", request.fds)

    def _put(self, message: str, fds: Sequence[int] = ()) -> bool:
        """False: it could not be sent now and will be retried."""
        try:
            if self._sock is None:
                self._sock = self.notifier.connected()
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            if fds:
                send_with_fds(self._sock, message.encode(), fds, flags)
            else:
                self._sock.send(message.encode(), flags)
        except BlockingIOError:
            assert self._sock is not None
            self._is_waiting_for_room = True
            asyncio.get_running_loop().add_writer(self._sock.fileno(), self._has_room)
            return False
        except OSError as fault:
            logger.warning(
                "cannot notify the service manager: %s", fault.strerror or fault, extra={"code": "notify_failed"}
            )
            self._hang_up()
            self._later(RETRY_S)
            return False
        return True

    def _has_room(self) -> None:
        assert self._sock is not None
        asyncio.get_running_loop().remove_writer(self._sock.fileno())
        self._is_waiting_for_room = False
        self._send()

    def _later(self, delay_s: float) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._again)

    def _again(self) -> None:
        """Resend everything: not acknowledged in time, or no manager, so sent messages may be lost."""
        self._timer = None
        self._drop_barrier()
        for request in self._requests.values():
            self.retries += request.is_sent
            request.may_be_held = request.may_be_held or request.is_sent
            request.is_sent = False
        self._hang_up()  # reconnect by path: the manager may have been replaced
        self._send()

    # -- the barrier ----------------------------------------------------------------------------------------------
    def _raise_barrier(self) -> None:
        try:
            read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            self._later(RETRY_S)
            return
        try:
            if not self._put("BARRIER=1", [write_end]):
                os.close(read_end)
                return  # retried when there is room or a manager
        finally:
            os.close(write_end)
        self._barrier = read_end
        self._behind = [(name, request) for name, request in self._requests.items() if request.is_sent]
        asyncio.get_running_loop().add_reader(read_end, self._acknowledged)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._later(ACKNOWLEDGE_S)

    def _acknowledged(self) -> None:
        if not self._is_there():  # the pipe closed because the manager exited: nothing is acknowledged
            self._drop_barrier()
            self._hang_up()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._later(RETRY_S)
            return
        behind = self._behind
        self._drop_barrier()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for name, request in behind:
            if self._requests.get(name) is not request:
                continue  # replaced by a newer request
            del self._requests[name]
            if request.fds is not None:
                self._held.add(name)
                for callback in request.when_held:
                    callback()
        self._send()

    def _is_there(self) -> bool:
        """Whether the manager that received the barrier still listens."""
        if self._sock is None:
            return False
        try:
            self._sock.send(b"X_OFFPATH_STORED=1", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _drop_barrier(self) -> None:
        if self._barrier >= 0:
            asyncio.get_running_loop().remove_reader(self._barrier)
            os.close(self._barrier)
            self._barrier = -1
        self._behind = []

    # -- shutdown -------------------------------------------------------------------------------------------------
    def _hang_up(self) -> None:
        if self._sock is None:
            return
        if self._is_waiting_for_room:
            asyncio.get_running_loop().remove_writer(self._sock.fileno())
            self._is_waiting_for_room = False
        self._sock.close()
        self._sock = None

    def flush(self, timeout_s: float) -> bool:
        """At process exit: send pending requests within ``timeout_s``. Blocks. True: everything was sent."""
        waiting = [(name, request) for name, request in self._requests.items() if not request.is_sent]
        if not waiting:
            return True
        until_s = time.monotonic() + timeout_s
        with contextlib.suppress(OSError), self.notifier.connected() as sock:
            for name, request in waiting:
                if (left_s := until_s - time.monotonic()) <= 0:
                    break
                sock.settimeout(left_s)
                if request.fds is None:
                    sock.send(f"FDSTOREREMOVE=1\nFDNAME={name}".encode())
                else:
                    send_with_fds(sock, f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}".encode(), request.fds)
                request.is_sent = True
        return all(request.is_sent for _, request in waiting)

    def close(self) -> None:
        """Send nothing more. Idempotent."""
        if self._is_closed:
            return
        self._drop_barrier()
        self._hang_up()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_closed = True
