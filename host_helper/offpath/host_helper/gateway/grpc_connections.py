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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from offpath.host_helper.gateway.anonymous import one_spelling
from offpath.host_helper.gateway.config import GatewayFile

SPARE: Final = 64
"""Connections that grpcio takes beyond the bounds: room for those that come between two looks."""
LOOK_S: Final = 0.1
Peer = tuple[str, int]


@dataclass(slots=True)
class _Socket:
    descriptor: int
    peer: Peer


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

    @contextlib.contextmanager
    def used(self, peer: str, tenant: str) -> Iterator[None]:
        """A call of the tenant over the connection of ``peer``, as grpcio writes it."""
        key = peer_of(peer)
        self._tenants.pop(key, None)
        self._tenants[key] = tenant
        self._calls[key] += 1
        try:
            yield
        finally:
            self._calls[key] -= 1
            if not self._calls[key]:
                del self._calls[key]

    def _again(self) -> None:
        self.look()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._again)

    def look(self) -> None:
        """Close what is too much."""
        self._find()
        unidentified = [each for each in self._sockets.values() if each.peer not in self._tenants]
        for each in unidentified[: max(len(unidentified) - self._unidentified, 0)]:
            self._end(each)
        for each in self._too_many():
            self._end(each)

    def _find(self) -> None:
        """Learn which sockets there are. An inode is looked at once."""
        present = dict(_sockets())
        for gone in self._sockets.keys() - present.keys():
            del self._sockets[gone]
        self._others &= present.keys()
        for inode, descriptor in present.items():
            if inode in self._sockets or inode in self._others:
                continue
            peer = self._peer(descriptor)
            if peer is None:
                self._others.add(inode)
            else:
                self._sockets[inode] = _Socket(descriptor, peer)
        peers = {each.peer for each in self._sockets.values()}
        for peer in [each for each in self._tenants if each not in peers and each not in self._calls]:
            del self._tenants[peer]

    def _peer(self, descriptor: int) -> Peer | None:
        """Who is at the other end, if it is a connection of the listener."""
        with _duplicate(descriptor) as sock:
            try:
                if sock is not None and sock.getsockname()[1] == self._port:
                    return _address(*sock.getpeername()[:2])
            except (OSError, IndexError, ValueError):
                pass
        return None

    def _too_many(self) -> list[_Socket]:
        """Connections of the tenants with most: those without a call first, the one that was used least recently."""
        own: dict[str, list[_Socket]] = {}
        by_peer = {each.peer: each for each in self._sockets.values()}
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
        """The descriptor may be another socket's by now."""
        with _duplicate(one.descriptor) as sock:
            if sock is not None and self._sockets.get(os.fstat(sock.fileno()).st_ino) is one:
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


def _address(host: str, port: int) -> Peer:
    """In one spelling. Raises: ValueError: it is no address."""
    return one_spelling(host), port


def _sockets() -> Iterator[tuple[int, int]]:
    """Inode and descriptor of each socket of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:
            continue  # it was closed meanwhile
        if stat.S_ISSOCK(status.st_mode):
            yield status.st_ino, int(name)


@contextlib.contextmanager
def _duplicate(descriptor: int) -> Iterator[socket.socket | None]:
    """Another descriptor of the socket, which stays the same one meanwhile. None: it is gone."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        yield None
        return
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        yield None
        return
    with sock:
        yield sock
