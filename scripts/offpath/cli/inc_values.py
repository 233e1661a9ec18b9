"""A client of the built-in key-value services of a request: it finds the tasks, and finds them again when they move."""

from __future__ import annotations

import secrets
import socket
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.cli import inc_client
from offpath.cli.exits import DaemonUnreachable
from offpath.dpu_daemon.switch.inc.packets import (
    MOST_VALUE,
    DatagramInvalid,
    Flag,
    Kind,
    Packet,
    Status,
    address_of,
    key_of,
    pack,
    slot_of,
    unpack,
)

ANSWER_S: Final = 0.25
"""Wait for one datagram; then the request is repeated."""
_PAUSE_S: Final = 0.05
_AGAIN_S: Final = 0.5
"""So often a client that uses a store in a cache's place asks whether the cache is back."""


@dataclass(slots=True)
class Counts:
    """Of a client. ``hits``: reads that a cache answered. ``repeated``: datagrams sent again."""

    reads: int = 0
    writes: int = 0
    hits: int = 0
    repeated: int = 0


@dataclass(slots=True)
class _Where:
    """Addresses of the running tasks by slot, of ``of``; ``stores``: of those behind a cache, by slot."""

    flavor: str = ""
    service: str = ""
    of: int = 0
    tasks: dict[int, str] = field(default_factory=dict)
    stores: list[str] = field(default_factory=list)


class Values:
    """Reads and writes through a composite of a request: `cache` or `coordinator`. A context manager."""

    def __init__(self, request: str, composite: str, runtime_dir: str | None = None, within_s: float = 30.0) -> None:
        self._request, self._composite, self._runtime_dir = request, composite, runtime_dir
        self._within_s = within_s
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._sock.settimeout(ANSWER_S)
        self._where = _Where()
        self._look_at = 0.0
        self.counts = Counts()

    def __enter__(self) -> Values:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()

    @property
    def flavor(self) -> str:
        """The implementation that answered last."""
        return self._where.flavor

    def get(self, key: str) -> tuple[bytes, int] | None:
        """Value and version; None: no such key. Raises: DatagramInvalid: the key is none. PeerGone: no
        answer in time."""
        reply = self._asked(Kind.READ, key_of(key), b"")
        self.counts.reads += 1
        self.counts.hits += bool(reply.flags & Flag.HIT)
        return (reply.value, reply.version) if reply.status is Status.OK else None

    def put(self, key: str, value: bytes) -> int:
        """Returns the version. Raises: DatagramInvalid: key or value are too long. PeerGone: no answer in time; it may
        have been written. OffpathError: the memory is full."""
        if len(value) > MOST_VALUE:
            raise DatagramInvalid(f"a value of {len(value)} bytes: at most {MOST_VALUE}")
        reply = self._asked(Kind.WRITE, key_of(key), value)
        if reply.status is not Status.OK:
            raise OffpathError(f"{self._request}/{self._composite}: {reply.status.name.lower()}")
        self.counts.writes += 1
        return reply.version

    def _asked(self, kind: Kind, key: bytes, value: bytes) -> Packet:
        packet = Packet(kind, secrets.randbits(64), key, value)
        until = time.monotonic() + self._within_s
        is_first = True
        while time.monotonic() < until:
            target = self._target(kind, key)
            if target in self._where.stores and time.monotonic() > self._look_at:
                self._look()  # perhaps there is a cache again
                target = self._target(kind, key)
            self.counts.repeated += not is_first
            is_first = False
            if target:
                self._sock.sendto(pack(packet), address_of(target))
                reply = self._reply(packet.request)
                if reply is not None and reply.status not in (Status.WRONG, Status.BUSY):
                    return reply
                if reply is not None:
                    time.sleep(_PAUSE_S)
            else:
                time.sleep(_PAUSE_S)
            self._look()
        raise PeerGone(f"{self._request}/{self._composite}: no answer within {self._within_s:g} s")

    def _reply(self, request: int) -> Packet | None:
        """To this request; None: not in time. Late answers to others are dropped."""
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            try:
                packet = unpack(self._sock.recv(4096))
            except (TimeoutError, ConnectionError, DatagramInvalid):
                continue
            if packet.kind is Kind.REPLY and packet.request == request:
                return packet
        return None

    def _target(self, kind: Kind, key: bytes) -> str:
        """Where to send it; empty: nowhere now."""
        where = self._where
        if where.service == "chain":
            return where.tasks[min(where.tasks)] if kind is Kind.WRITE else where.tasks[max(where.tasks)]
        found = where.tasks.get(slot_of(key, where.of)) if where.of else None
        if found is None and where.stores:  # while a cache is replaced; the store keeps the others coherent
            return where.stores[slot_of(key, len(where.stores))]
        return found or ""

    def _look(self) -> None:
        """Find the tasks. Raises: Refused: there is no such request."""
        try:
            shown = inc_client.shown(self._request, self._runtime_dir)
        except DaemonUnreachable:
            return  # the job manager restarts; the services go on
        here = [each for each in shown.tasks if (each.composite, each.state) == (self._composite, "running")
                and each.service in ("cache", "chain", "store")]  # fmt: skip
        here = [each for each in here if each.is_inc == any(one.is_inc for one in here)]
        self._look_at = time.monotonic() + _AGAIN_S
        self._where = _Where(stores=shown.stores.get(self._composite, []))
        if here:
            tasks = {each.slot: each.address for each in here}
            self._where = _Where(here[0].flavor, here[0].service, here[0].of, tasks, self._where.stores)
