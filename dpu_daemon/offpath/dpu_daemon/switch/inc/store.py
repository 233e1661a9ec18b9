"""A store of keys and values that keeps the caches before it coherent, by leases. No I/O, no clock.

A cache may answer a key until its lease ends. A write of a key that other caches hold is acknowledged when each of them
has forgotten the key or its lease has ended, so that no read after an acknowledged write gets the old value, whatever
is lost on the way. NetCache's server agent blocks writes in the same place; the lease bounds the wait when a switch is
gone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from offpath.dpu_daemon.switch.inc.packets import NOWHERE, Address, Flag, Kind, Packet, Status

LEASE_NS: Final = 500_000_000
_AGAIN_NS: Final = 50_000_000
_MOST_DONE: Final = 65_536
_MOST_WAITING: Final = 65_536
Sent = tuple[Address, Packet]


@dataclass(slots=True)
class _Write:
    """A write that waits for caches: ``holders``, with the ends of their leases."""

    packet: Packet
    source: Address
    holders: dict[Address, int] = field(default_factory=dict)
    again_ns: int = 0


class Store:
    """``most_keys``: further keys are refused."""

    def __init__(self, most_keys: int) -> None:
        self._most = most_keys
        self.table: dict[bytes, tuple[int, bytes]] = {}
        self.counters = {"reads": 0, "writes": 0, "invalidations": 0}
        self._leases: dict[bytes, dict[Address, int]] = {}
        self._writes: dict[bytes, deque[_Write]] = {}
        self._waiting = 0
        self._done: OrderedDict[int, int] = OrderedDict()
        """Versions by request: a repeated write is done once."""

    def handle(self, packet: Packet, source: Address, now_ns: int) -> list[Sent]:
        """The packets to send."""
        match packet.kind:
            case Kind.READ:
                return [(source, self._read(packet, source, now_ns))]
            case Kind.WRITE:
                return list(self._write(packet, source, now_ns))
            case Kind.INVALIDATED:
                for write in list(self._writes.get(packet.key, ()))[:1]:
                    if write.packet.request == packet.request:
                        write.holders.pop(source, None)
                self._leases.get(packet.key, {}).pop(source, None)
                return list(self._go_on(packet.key, now_ns))
        return []

    def tick(self, now_ns: int) -> list[Sent]:
        """Repeat what was not answered; let writes pass whose leases have ended."""
        return [sent for key in list(self._writes) for sent in self._go_on(key, now_ns)]

    def _read(self, packet: Packet, source: Address, now_ns: int) -> Packet:
        self.counters["reads"] += 1
        version, value = self.table.get(packet.key, (0, b""))
        if not version:
            return packet.reply(Status.MISSING)
        flags = Flag(0)
        if packet.flags & Flag.LEASE and packet.key not in self._writes:
            self._leases.setdefault(packet.key, {})[source] = now_ns + LEASE_NS
            flags = Flag.LEASE
        return packet.reply(Status.OK, value, version, flags)

    def _write(self, packet: Packet, source: Address, now_ns: int) -> Iterator[Sent]:
        if packet.request in self._done:
            yield source, packet.reply(Status.OK, version=self._done[packet.request])
            return
        if (packet.key not in self.table and len(self.table) >= self._most) or self._waiting >= _MOST_WAITING:
            yield source, packet.reply(Status.FULL)
            return
        waiting = self._writes.setdefault(packet.key, deque())
        if not any(each.packet.request == packet.request for each in waiting):
            waiting.append(_Write(packet, source))
            self._waiting += 1
        yield from self._go_on(packet.key, now_ns)

    def _go_on(self, key: bytes, now_ns: int) -> Iterator[Sent]:
        """Of the writes of a key, one after the other."""
        waiting = self._writes.get(key)
        while waiting:
            write = waiting[0]
            if not write.again_ns:
                leases = self._leases.pop(key, {})
                write.holders = {each: ends for each, ends in leases.items() if each != write.source}
            write.holders = {each: ends for each, ends in write.holders.items() if ends > now_ns}
            if write.holders:
                if now_ns >= write.again_ns:
                    write.again_ns = now_ns + _AGAIN_NS
                    self.counters["invalidations"] += len(write.holders)
                    for each in write.holders:
                        yield each, Packet(Kind.INVALIDATE, write.packet.request, key)
                return
            waiting.popleft()
            self._waiting -= 1
            yield write.source, self._apply(write, now_ns, is_last=not waiting)
        self._writes.pop(key, None)

    def _apply(self, write: _Write, now_ns: int, *, is_last: bool) -> Packet:
        self.counters["writes"] += 1
        packet = write.packet
        version = self.table.get(packet.key, (0, b""))[0] + 1
        self.table[packet.key] = (version, packet.value)
        self._done[packet.request] = version
        if len(self._done) > _MOST_DONE:
            self._done.popitem(last=False)
        flags = Flag(0)
        if packet.flags & Flag.LEASE and is_last and write.source != NOWHERE:
            self._leases.setdefault(packet.key, {})[write.source] = now_ns + LEASE_NS
            flags = Flag.LEASE
        return packet.reply(Status.OK, version=version, flags=flags)
