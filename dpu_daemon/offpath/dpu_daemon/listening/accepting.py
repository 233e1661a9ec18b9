"""Accepts connections from untrusted peers: bounds the unidentified ones and handles exhaustion of descriptors.

When `accept` fails with EMFILE, the connection stays in the queue; a loop that only retries spins. An `Acceptor` evicts
the peer that has waited longest, or else refuses queued connections with a reserved descriptor, and listens again after
a pause. No OSError leaves a reader callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

from offpath.bindings.sockets import peer_credentials

logger = logging.getLogger(__name__)
ACCEPTS: Final = 16
"""Most connections accepted in one loop turn: a flood of them must not delay connected peers."""
PAUSE_S: Final = 0.1
LOG_EVERY_S: Final = 1.0
_SPARES: Final = 2  # a connection of the host channel takes two: its socket and its peer's pidfd
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SHARE: Final = 16  # one listener's unidentified peers may hold this fraction of the process's descriptors
_LEAST: Final = 16
_TURNS: Final = 4  # loop turns from accepting a connection to reading its first message
_ADDRESSES: Final = 4  # one address may hold a quarter of that, not counting a burst
_BURST_S: Final = 3.0
"""A connection younger than this is evicted only at the bound for all addresses: a job of a hundred processes connects
at once, and its TLS handshakes take time."""


def is_exhaustion(fault: OSError) -> bool:
    """True if the process or the machine is out of descriptors or memory; no fault of the peer or the daemon."""
    return fault.errno in _EXHAUSTED


def cap(most: int) -> int:
    """``most``, or a sixteenth of this process's descriptor limit if that is less; at least 16."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else min(most, max(_LEAST, limit // _SHARE))


def address_of(sock: socket.socket) -> Hashable:
    """The peer's address for the bounds: the uid of a Unix peer, an IPv4 address, or an IPv6 /64 network.

    Raises: OSError: the peer has disconnected.
    """
    if sock.family == socket.AF_UNIX:
        return peer_credentials(sock)[1]
    host = str(sock.getpeername()[0]).partition("%")[0]
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return host


class Unidentified:
    """Connections of unidentified peers, oldest first. A connection above a bound evicts the oldest one: a correct peer
    sends its hello at once, so evicting the newest would lock out correct peers."""

    def __init__(
        self, most: int, count: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``most`` connections in all, see `cap`; a quarter of them from one address, not counting those of the last
        seconds. ``count`` is called for each eviction; ``clock`` returns seconds."""
        self._most = cap(most)
        self._most_of_one = max(_LEAST // 2, self._most // _ADDRESSES)
        self.accepts = max(1, min(ACCEPTS, self._most_of_one // _TURNS))
        """Connections to accept in one loop turn, so that correct peers identify themselves before eviction."""
        self._count = count
        self._clock = clock
        self._close: dict[object, tuple[Hashable, Callable[[], None], float]] = {}
        self._held: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._close)

    def __contains__(self, peer: object) -> bool:
        return peer in self._close

    def add(self, peer: object, address: Hashable, close: Callable[[], None]) -> None:
        """Add a connection; ``close`` closes it if it is evicted."""
        now_s = self._clock()
        if self._held.get(address, 0) >= self._most_of_one and now_s - self._close[self._oldest(address)][2] > _BURST_S:
            self._evict(address)
        elif len(self._close) >= self._most:
            self.evict()
        self._close[peer] = address, close, now_s
        self._held[address] = self._held.get(address, 0) + 1

    def remove(self, peer: object) -> None:
        """Remove a peer that is identified or has disconnected. Idempotent."""
        address, _, _ = self._close.pop(peer, (None, None, 0.0))
        if address is None:
            return
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]

    def evict(self) -> bool:
        """Close the oldest connection of the address that holds most. False: there is none."""
        if not self._close:
            return False
        self._evict(max(self._held, key=self._held.__getitem__))
        return True

    def _oldest(self, address: Hashable) -> object:
        return next(peer for peer, (origin, _, _) in self._close.items() if origin == address)

    def _evict(self, address: Hashable) -> None:
        peer = self._oldest(address)
        close = self._close[peer][1]
        self.remove(peer)
        self._count()
        close()


class Spare:
    """Reserve descriptors, released when no other is free, so that a connection can be accepted and closed. Any thread
    may use it."""

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._lock = threading.Lock()

    def fill(self) -> None:
        """Open the reserve descriptors, as far as any are free."""
        with self._lock, contextlib.suppress(OSError):  # none is free now: the next use tries again
            while len(self._fds) < _SPARES:
                self._fds.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))

    def use(self, refuse: Callable[[], bool]) -> None:
        """Call ``refuse``, which accepts and closes one connection, until none waits; at most 16 times."""
        self.fill()
        with self._lock:
            while self._fds:
                os.close(self._fds.pop())
        with contextlib.suppress(OSError):
            for _ in range(ACCEPTS):
                if not refuse():
                    break
        self.fill()


SPARE: Final = Spare()
"""The reserve of this process."""


class Acceptor:
    """Watches one listening descriptor in the running loop, between `open` and `close`."""

    def __init__(
        self, name: str, take: Callable[[], bool], refuse: Callable[[], bool], waiting: Unidentified,
        count: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """``take`` accepts and forwards one connection, ``refuse`` accepts and closes one; both return False if none
        waits, and may raise OSError. ``take`` adds connections to ``waiting``. ``count`` is called on exhaustion."""
        self._name = name
        self._take, self._refuse, self._waiting, self._count = take, refuse, waiting, count
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._pause: asyncio.TimerHandle | None = None
        self._logged_s = -LOG_EVERY_S
        self.taken = 0
        """Connections accepted so far."""

    def open(self, fd: int) -> None:
        """Watch ``fd`` instead of the current descriptor, if any."""
        self._stop()
        SPARE.fill()
        self._fd = fd
        self._loop.add_reader(fd, self._readable)

    def _readable(self) -> None:
        try:
            for _ in range(self._waiting.accepts):
                if not self._take():
                    return
                self.taken += 1
        except OSError as fault:
            self._failed(fault)

    def _failed(self, fault: OSError) -> None:
        if is_exhaustion(fault):
            self._count()
            if self._waiting.evict():
                self._log(fault)
                return  # its descriptor is free in the next turn, which tries again
            SPARE.use(self._refuse)
        self._log(fault)
        self._loop.remove_reader(self._fd)
        self._pause = self._loop.call_later(PAUSE_S, self._again)

    def _log(self, fault: OSError) -> None:
        if self._loop.time() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = self._loop.time()
            logger.warning(
                "%s: could not accept a connection: %s",
                self._name,
                fault.strerror or fault,
                extra={"code": "accept_failed"},
            )

    def _again(self) -> None:
        self._pause = None
        self._loop.add_reader(self._fd, self._readable)

    def _stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        elif self._fd >= 0:
            self._loop.remove_reader(self._fd)
        self._fd = -1

    def close(self) -> None:
        """Stop watching; the owner closes the descriptor. Idempotent."""
        self._stop()
