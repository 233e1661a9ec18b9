"""Descriptors that the service manager holds: queued, sent when there is room, acknowledged by a barrier.

The manager's socket takes ten messages on kernels that nobody tuned, and a manager that stands still takes none. What
is to be held is therefore a wish by name, repeated until the manager has acknowledged it: ``BARRIER=1`` brings a pipe
whose end the manager closes when it has handled every message before (sd_notify(3)). Nothing here blocks the loop.
There is one wish a name, so the queue is bounded by the sessions that are open and those that the manager still holds.
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
"""Between two attempts to reach a manager that is not there, or while descriptors for a barrier are missing."""
ACKNOWLEDGE_S: Final = 5.0
"""What was not acknowledged by then is sent again: the manager may have been replaced."""
NAMES: Final = {
    "offpath_store_pending": "Descriptors' stores and removals that the service manager has not acknowledged.",
    "offpath_store_retries_total": "Stores and removals that were sent to the service manager again.",
}


@dataclass(slots=True, eq=False)
class _Request:
    """``fds``: to be held under the name; None: to be dropped. They stay their owner's, who calls `Store.forget` before
    closing them."""

    fds: tuple[int, ...] | None
    is_sent: bool = False
    may_be_held: bool = False
    """An earlier wish of that name may have reached the manager."""
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
    """The daemon's end. Without a manager `keep` and `forget` do nothing."""

    def __init__(self, notifier: Notifier) -> None:
        self.notifier = notifier
        self._requests: dict[str, _Request] = {}
        self._held: set[str] = set()
        self._sock: socket.socket | None = None
        self._is_waiting_for_room = False
        self._timer: asyncio.TimerHandle | None = None
        self._barrier = -1
        self._behind: list[tuple[str, _Request]] = []
        """What the barrier under way acknowledges."""
        self._is_closed = False
        self.retries = 0

    @property
    def pending(self) -> int:
        """Wishes that are not acknowledged."""
        return len(self._requests)

    def is_held(self, name: str) -> bool:
        """The manager has acknowledged it."""
        return name in self._held

    def adopt(self, name: str) -> None:
        """The manager handed it to this process, and still holds it."""
        self._held.add(name)

    def keep(
        self, name: str, fds: Sequence[int], when_sent: Callable[[], None] = lambda: None,
        when_held: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Have ``fds`` held under ``name``. ``when_sent``: the message is in the manager's queue, and is read even if
        this process is killed now; in this call, if there is room. ``when_held``: acknowledged, later."""
        if not self.notifier.has_manager:
            when_sent()
            return
        self._requests[name] = _Request(tuple(fds), when_sent=[when_sent], when_held=[when_held])
        self._send()

    def forget(self, name: str) -> None:
        """Have what is held under ``name`` dropped; the descriptors may be closed after this call."""
        if not self.notifier.has_manager:
            return
        before = self._requests.pop(name, None)
        if name in self._held or before is None or before.is_sent or before.may_be_held:
            self._held.discard(name)
            self._requests[name] = _Request(None, may_be_held=True)
            self._send()

    # -- sending --------------------------------------------------------------------------------------------------
    def _send(self) -> None:
        """Everything that there is room for, oldest first, then a barrier."""
        if self._is_closed or self._is_waiting_for_room:
            return
        for name, wish in list(self._requests.items()):
            if wish.is_sent:
                continue
            if not self._submit(name, wish):
                return
            wish.is_sent = True
            for told in wish.when_sent:
                told()
            wish.when_sent.clear()
        if self._requests and self._barrier < 0:
            self._raise_barrier()

    def _submit(self, name: str, wish: _Request) -> bool:
        if wish.fds is None:
            return self._put(f"FDSTOREREMOVE=1\nFDNAME={name}")
        return self._put(f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}", wish.fds)

    def _put(self, message: str, fds: Sequence[int] = ()) -> bool:
        """False: it could not be sent now, and will be tried again."""
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
        """Not acknowledged in time, or the manager was not there: what was sent may never have arrived."""
        self._timer = None
        self._drop_barrier()
        for wish in self._requests.values():
            self.retries += wish.is_sent
            wish.may_be_held = wish.may_be_held or wish.is_sent
            wish.is_sent = False
        self._hang_up()  # the manager may have been replaced: its socket's file is looked up anew
        self._send()

    # -- the barrier ----------------------------------------------------------------------------------------------
    def _raise_barrier(self) -> None:
        try:
            ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            self._later(RETRY_S)
            return
        try:
            if not self._put("BARRIER=1", [theirs]):
                os.close(ours)
                return  # room for it, or a manager, will come
        finally:
            os.close(theirs)
        self._barrier = ours
        self._behind = [(name, wish) for name, wish in self._requests.items() if wish.is_sent]
        asyncio.get_running_loop().add_reader(ours, self._acknowledged)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._later(ACKNOWLEDGE_S)

    def _acknowledged(self) -> None:
        if not self._is_there():  # the pipe closed with the manager, which acknowledged nothing
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
        for name, wish in behind:
            if self._requests.get(name) is not wish:
                continue  # another wish took its place
            del self._requests[name]
            if wish.fds is not None:
                self._held.add(name)
                for told in wish.when_held:
                    told()
        self._send()

    def _is_there(self) -> bool:
        """Whether the manager that was sent the barrier still listens."""
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

    # -- the end --------------------------------------------------------------------------------------------------
    def _hang_up(self) -> None:
        if self._sock is None:
            return
        if self._is_waiting_for_room:
            asyncio.get_running_loop().remove_writer(self._sock.fileno())
            self._is_waiting_for_room = False
        self._sock.close()
        self._sock = None

    def flush(self, timeout_s: float) -> bool:
        """At the end of the process: send what waits, for ``timeout_s`` at most. Blocks. True: everything is sent."""
        waiting = [(name, wish) for name, wish in self._requests.items() if not wish.is_sent]
        if not waiting:
            return True
        until_s = time.monotonic() + timeout_s
        with contextlib.suppress(OSError), self.notifier.connected() as sock:
            for name, wish in waiting:
                if (left_s := until_s - time.monotonic()) <= 0:
                    break
                sock.settimeout(left_s)
                if wish.fds is None:
                    sock.send(f"FDSTOREREMOVE=1\nFDNAME={name}".encode())
                else:
                    send_with_fds(sock, f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}".encode(), wish.fds)
                wish.is_sent = True
        return all(wish.is_sent for _, wish in waiting)

    def close(self) -> None:
        """Say no more. Repeating it is harmless."""
        if self._is_closed:
            return
        self._drop_barrier()
        self._hang_up()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_closed = True
