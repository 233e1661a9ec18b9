"""The connections of gRPC's listener, of which grpcio tells nothing and closes none.

grpcio bounds their number, before a handshake, and closes those beyond it: the newest. So clients without a token could
hold all of them. Here the sockets are found among the process's descriptors, ten times a second. Of those without a
call of a tenant, and of those of a tenant, the oldest are closed while there are too many: by shutdown(2), which is an
end of file for grpcio.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final, TypeVar
from urllib.parse import unquote

from offpath.host_helper.gateway.anonymous import one_spelling
from offpath.host_helper.gateway.config import GatewayFile

SPARE: Final = 64
"""Connections that grpcio takes beyond the bounds: room for those that come between two looks."""
LOOK_S: Final = 0.1
_STEP: Final = 32
"""Sockets of one step of a look: the loop serves others between two steps."""
_STEP_S: Final = 0.003
_LISTED: Final = 256
"""Descriptors of one step: half a millisecond."""
Peer = tuple[str, int]
_T = TypeVar("_T")


@dataclass(slots=True)
class _Socket:
    inode: int
    descriptor: int
    peer: Peer
    has_end: bool = False
    """It is shut down, and grpcio has not closed it yet."""


class GrpcConnections:
    """Looks at the connections from `start` to `close`."""

    def __init__(self, config: GatewayFile) -> None:
        self._most, self._unidentified = config.grpc_connections, config.unidentified
        self._most_of_one = 0
        self.divide(len(config.tenant))
        self._port = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sockets: dict[int, _Socket] = {}
        """By inode."""
        self._others: set[int] = set()
        """Inodes of sockets that are none of them."""
        self._tenants: dict[Peer, str] = {}
        """Whose call came last; the peer that was used last is at the end."""
        self._calls = Counter[Peer]()
        self._recent: set[Peer] = set()
        """Those with a call since the look began: their sockets may be new."""
        self._steps = self._looking()

    def divide(self, tenants: int) -> None:
        """So many tenants share them from now on."""
        self._most_of_one = max(self._most // 2, 1) if tenants > 1 else self._most

    def start(self, port: int) -> None:
        """Look from now on at those with this local port."""
        self._port = port
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._again)

    def close(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._steps.close()

    @contextlib.contextmanager
    def used(self, peer: str, tenant: str) -> Iterator[None]:
        """A call of the tenant over the connection of ``peer``, as grpcio writes it."""
        key = peer_of(peer)
        self._tenants.pop(key, None)
        self._tenants[key] = tenant
        self._recent.add(key)
        self._calls[key] += 1
        try:
            yield
        finally:
            self._calls[key] -= 1
            if not self._calls[key]:
                del self._calls[key]

    def _again(self) -> None:
        """The next step."""
        is_over = next(self._steps, None) is None
        if is_over:
            self._steps = self._looking()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S if is_over else _STEP_S, self._again)

    def _looking(self) -> Generator[bool, None, None]:
        """Learn which sockets there are, and close what is too much, in steps."""
        self._recent.clear()
        present: dict[int, int] = {}
        """Descriptors by inode. Those that change hands meanwhile are noticed where they are used."""
        with os.scandir("/proc/self/fd") as entries:
            while some := [int(each.name) for each in islice(entries, _LISTED)]:
                present.update(_sockets(some))
                yield True
        for gone in self._sockets.keys() - present.keys():
            del self._sockets[gone]
        self._others &= present.keys()
        new = [inode for inode in present if inode not in self._sockets and inode not in self._others]
        for inodes in _in_steps(new):
            for inode in inodes:
                self._learn(inode, present[inode])
            yield True
        self._forget()
        for is_known, leaving in ((False, self._unknown()), (True, self._too_many())):
            for each in _in_steps(leaving):
                for one in each:
                    if is_known or one.peer not in self._tenants:
                        self._end(one)
                yield True

    def _learn(self, inode: int, descriptor: int) -> None:
        """An inode is looked at once."""
        with _duplicate(descriptor, inode) as sock:
            peer = None
            with contextlib.suppress(OSError, IndexError):  # it has no peer, or is none of the internet's
                if sock is not None and sock.getsockname()[1] == self._port:
                    host, port = sock.getpeername()[:2]
                    peer = host.partition("%")[0].removeprefix("::ffff:"), port
        if peer is None:
            self._others.add(inode)
        else:
            self._sockets[inode] = _Socket(inode, descriptor, peer)

    def _forget(self) -> None:
        """The tenants of peers that have left."""
        peers = {each.peer for each in self._sockets.values()} | self._recent
        for peer in [each for each in self._tenants if each not in peers and each not in self._calls]:
            del self._tenants[peer]

    def _unknown(self) -> list[_Socket]:
        """Connections without a call of a tenant that are too many, the oldest."""
        found = [each for each in self._sockets.values() if each.peer not in self._tenants and not each.has_end]
        return found[: max(len(found) - self._unidentified, 0)]

    def _too_many(self) -> list[_Socket]:
        """Connections of the tenants with most: those without a call first, the one that was used least recently."""
        own: dict[str, list[_Socket]] = {}
        by_peer = {each.peer: each for each in self._sockets.values() if not each.has_end}
        for is_busy in (False, True):
            for peer, tenant in self._tenants.items():
                if peer in by_peer and (peer in self._calls) == is_busy:
                    own.setdefault(tenant, []).append(by_peer[peer])
        numbers = {tenant: len(some) for tenant, some in own.items()}
        over = sum(numbers.values()) - self._most
        chosen: list[_Socket] = []
        while numbers and (len(chosen) < over or max(numbers.values()) > self._most_of_one):
            tenant = max(numbers, key=numbers.__getitem__)
            numbers[tenant] -= 1
            chosen.append(own[tenant][len(own[tenant]) - numbers[tenant] - 1])
        return chosen

    def _end(self, one: _Socket) -> None:
        with _duplicate(one.descriptor, one.inode) as sock:
            if sock is not None:
                one.has_end = True
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


@lru_cache(4096)
def peer_of(text: str) -> Peer:
    """The address in ``ipv4:HOST:PORT`` or ``ipv6:%5BHOST%5D:PORT``. Another text is an address of nobody."""
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    try:
        return _address(host.strip("[]"), int(port))
    except ValueError:
        return text, 0


def _in_steps(some: list[_T]) -> Iterator[list[_T]]:
    return (some[at : at + _STEP] for at in range(0, len(some), _STEP))


def _address(host: str, port: int) -> Peer:
    """In one spelling. Raises: ValueError: it is no address."""
    return one_spelling(host), port


def _sockets(descriptors: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Inode and descriptor of each that is a socket."""
    for descriptor in descriptors:
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue  # it was closed meanwhile
        if stat.S_ISSOCK(status.st_mode):
            yield status.st_ino, descriptor


@contextlib.contextmanager
def _duplicate(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """Another descriptor of the socket, which stays the same one meanwhile. None: it is gone, and the number may be
    another one's."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        yield None
        return
    if os.fstat(copy).st_ino != inode:
        os.close(copy)
        yield None
        return
    with socket.socket(fileno=copy) as sock:
        yield sock
