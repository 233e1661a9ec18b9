"""Accepting connections when anybody may connect: bounds for peers that have not identified themselves, and what
happens when the process runs out of descriptors.

`accept` fails with EMFILE and leaves the connection in the queue, so a listener that is only tried again turns the loop
into a hot one. An `Acceptor` evicts the peer that has waited longest, or else refuses what waits with a descriptor kept
in reserve, and listens again after a pause. No OSError leaves a reader callback.
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
"""At most in one turn of the loop: a flood of connections must not delay the peers that are connected."""
PAUSE_S: Final = 0.1
LOG_EVERY_S: Final = 1.0
_SPARES: Final = 2  # a connection of the host channel takes two: its socket and its peer's pidfd
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SHARE: Final = 16  # of the process's descriptors that one listener's unidentified peers may hold
_LEAST: Final = 16
_TURNS: Final = 4  # of the loop, from accepting a connection to reading what it said
_ADDRESSES: Final = 4  # one address holds a quarter of that at most, beside a burst
_BURST_S: Final = 3.0
"""A connection this young is evicted only where the bound of all addresses is reached: a job of a hundred processes
connects at once, and its TLS handshakes take a while."""


def is_exhaustion(fault: OSError) -> bool:
    """The process or the machine is out of descriptors or memory; neither the peer nor the daemon is at fault."""
    return fault.errno in _EXHAUSTED


def cap(most: int) -> int:
    """``most``, or a sixteenth of this process's limit of descriptors where that is less; 16 at least."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit == resource.RLIM_INFINITY else min(most, max(_LEAST, limit // _SHARE))


def address_of(sock: socket.socket) -> Hashable:
    """What counts as one address: the uid of a Unix peer, an IPv4 address, an IPv6 network of 64 bits.

    Raises: OSError: the peer has left.
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
    """Connections that have not said who they are, oldest first. Who comes above a bound makes the oldest leave: an
    honest peer speaks at once, and turning away the newest would lock all of them out."""

    def __init__(
        self, most: int, count: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``most`` in all, see `cap`; a quarter of them of one address, beside those of the last seconds. ``count`` is
        called for each eviction; ``clock`` gives seconds."""
        self._most = cap(most)
        self._most_of_one = max(_LEAST // 2, self._most // _ADDRESSES)
        self.accepts = max(1, min(ACCEPTS, self._most_of_one // _TURNS))
        """In one turn of the loop, so that honest peers have spoken before it is their turn to leave."""
        self._count = count
        self._clock = clock
        self._close: dict[object, tuple[Hashable, Callable[[], None], float]] = {}
        self._held: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._close)

    def __contains__(self, who: object) -> bool:
        return who in self._close

    def add(self, who: object, address: Hashable, close: Callable[[], None]) -> None:
        """One more; ``close`` hangs up on it, should it have to leave."""
        now_s = self._clock()
        if self._held.get(address, 0) >= self._most_of_one and now_s - self._close[self._oldest(address)][2] > _BURST_S:
            self._evict(address)
        elif len(self._close) >= self._most:
            self.evict()
        self._close[who] = address, close, now_s
        self._held[address] = self._held.get(address, 0) + 1

    def remove(self, who: object) -> None:
        """It is known now, or has left. Repeating it is harmless."""
        address, _, _ = self._close.pop(who, (None, None, 0.0))
        if address is None:
            return
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]

    def evict(self) -> bool:
        """Hang up on the oldest connection of the address that holds most. False: there is none."""
        if not self._close:
            return False
        self._evict(max(self._held, key=self._held.__getitem__))
        return True

    def _oldest(self, address: Hashable) -> object:
        return next(who for who, (whose, _, _) in self._close.items() if whose == address)

    def _evict(self, address: Hashable) -> None:
        who = self._oldest(address)
        close = self._close[who][1]
        self.remove(who)
        self._count()
        close()


class Spare:
    """Descriptors of the process that are given up when there are no others, so that a connection can be accepted and
    closed. Any thread may use it."""

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._lock = threading.Lock()

    def fill(self) -> None:
        """Have them, as far as there are any."""
        with self._lock, contextlib.suppress(OSError):  # none is free now: the next use tries again
            while len(self._fds) < _SPARES:
                self._fds.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))

    def use(self, refuse: Callable[[], bool]) -> None:
        """Call ``refuse``, which takes a connection and closes it, until none waits; 16 times at most."""
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
"""The one of this process."""


class Acceptor:
    """Watches one listening descriptor in the running loop, between `open` and `close`."""

    def __init__(
        self, name: str, take: Callable[[], bool], refuse: Callable[[], bool], waiting: Unidentified,
        count: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """``take`` accepts one connection and hands it on, ``refuse`` accepts one and closes it; False: none waits;
        both may raise OSError. ``waiting``: where ``take`` puts them. ``count`` is called when resources ran out."""
        self._name = name
        self._take, self._refuse, self._waiting, self._count = take, refuse, waiting, count
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._pause: asyncio.TimerHandle | None = None
        self._logged_s = -LOG_EVERY_S
        self.taken = 0
        """Connections that were let in, so far."""

    def open(self, fd: int) -> None:
        """Watch ``fd``, instead of another one if there was one."""
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
        """Watch no longer; the descriptor stays its owner's. Repeating it is harmless."""
        self._stop()
