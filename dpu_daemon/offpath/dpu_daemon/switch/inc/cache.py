"""NetCache: a cache in front of stores. On a hit it answers; writes go through to the store. No I/O, no clock.

An entry is used until its lease ends, counted from when the request for it was sent. Assumed, because an emulated
switch has no heavy-hitter detector: a key is kept from its first miss on, and the least recently used one makes room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from offpath.dpu_daemon.switch.inc.packets import Address, Flag, Kind, Packet, Status, slot_of
from offpath.dpu_daemon.switch.inc.store import LEASE_NS, Sent

_MOST_PENDING: Final = 4_096


@dataclass(slots=True)
class _Pending:
    """A request that was passed on. ``is_stale``: its answer must not be kept."""

    packet: Packet
    client: Address
    sent_ns: int
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    value: bytes
    ends_ns: int


class Cache:
    """``most_keys``: entries that its memory holds. ``stores``: by slot; empty: not configured yet."""

    def __init__(self, most_keys: int) -> None:
        self._most = most_keys
        self.stores: Sequence[Address] = ()
        self.counters = {"reads": 0, "hits": 0, "writes": 0}
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._pending: OrderedDict[int, _Pending] = OrderedDict()

    @property
    def keys(self) -> int:
        """Entries that are held."""
        return len(self._entries)

    def handle(self, packet: Packet, source: Address, now_ns: int) -> list[Sent]:
        """The packets to send."""
        is_store = source in self.stores
        match packet.kind:
            case Kind.READ | Kind.WRITE if not self.stores or not all(port for _, port in self.stores):
                return [(source, packet.reply(Status.BUSY))]
            case Kind.READ:
                return self._read(packet, source, now_ns)
            case Kind.WRITE:
                self.counters["writes"] += 1
                self._forget(packet.key)
                return [self._pass_on(packet, source, now_ns)]
            case Kind.REPLY if is_store:
                return self._answered(packet)
            case Kind.INVALIDATE if is_store:
                self._forget(packet.key)
                return [(source, Packet(Kind.INVALIDATED, packet.request, packet.key))]
        return []

    def tick(self, now_ns: int) -> list[Sent]:
        """Nothing: clients repeat."""
        return []

    def _read(self, packet: Packet, source: Address, now_ns: int) -> list[Sent]:
        self.counters["reads"] += 1
        entry = self._entries.get(packet.key)
        if entry is None or entry.ends_ns <= now_ns:
            return [self._pass_on(packet, source, now_ns)]
        self.counters["hits"] += 1
        self._entries.move_to_end(packet.key)
        return [(source, packet.reply(Status.OK, entry.value, entry.version, Flag.HIT))]

    def _pass_on(self, packet: Packet, source: Address, now_ns: int) -> Sent:
        self._pending[packet.request] = _Pending(packet, source, now_ns)
        self._pending.move_to_end(packet.request)
        if len(self._pending) > _MOST_PENDING:
            self._pending.popitem(last=False)
        store = self.stores[slot_of(packet.key, len(self.stores))]
        return store, Packet(packet.kind, packet.request, packet.key, packet.value, flags=Flag.LEASE)

    def _answered(self, reply: Packet) -> list[Sent]:
        pending = self._pending.pop(reply.request, None)
        if pending is None or pending.packet.key != reply.key:
            return []
        packet = pending.packet
        if packet.kind is Kind.WRITE:
            self._forget(packet.key)
        if reply.status is Status.OK and reply.flags & Flag.LEASE and not pending.is_stale:
            value = packet.value if packet.kind is Kind.WRITE else reply.value
            self._entries[packet.key] = _Entry(reply.version, value, pending.sent_ns + LEASE_NS)
            self._entries.move_to_end(packet.key)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        return [(pending.client, packet.reply(reply.status, reply.value, reply.version))]

    def _forget(self, key: bytes) -> None:
        """The key's value changes: what is held, and what is on its way, is old."""
        self._entries.pop(key, None)
        for pending in self._pending.values():
            if pending.packet.key == key:
                pending.is_stale = True
