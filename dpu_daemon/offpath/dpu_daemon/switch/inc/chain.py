"""NetChain: keys and values, replicated along a chain of switches (or servers). No I/O, no clock.

Writes enter at the head, which numbers them by key, and are acknowledged by the tail; reads are the tail's. So an
acknowledged write is at every member. The members change only while all are closed: see `manager.inc.services`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from offpath.dpu_daemon.switch.inc.packets import Address, Kind, Packet, Status
from offpath.dpu_daemon.switch.inc.store import Sent

_MOST_DONE: Final = 65_536


class Chain:
    """One member. ``most_keys``: what its memory holds."""

    def __init__(self, most_keys: int, here: Address) -> None:
        self._most, self._here = most_keys, here
        self.members: Sequence[Address] = ()
        self.is_open = False
        self.table: dict[bytes, tuple[int, bytes]] = {}
        self.counters = {"reads": 0, "writes": 0}
        self._done: OrderedDict[int, int] = OrderedDict()
        """Versions by request, at the head: a repeated write keeps its number."""

    def handle(self, packet: Packet, source: Address, now_ns: int) -> list[Sent]:
        """The packets to send."""
        match packet.kind:
            case Kind.READ | Kind.WRITE if not self.is_open or self._here not in self.members:
                return [(source, packet.reply(Status.BUSY))]
            case Kind.READ if self._at == len(self.members) - 1:
                self.counters["reads"] += 1
                version, value = self.table.get(packet.key, (0, b""))
                return [(source, packet.reply(Status.OK if version else Status.MISSING, value, version))]
            case Kind.WRITE if self._at == 0:
                return self._write(packet, source)
            case Kind.READ | Kind.WRITE:
                return [(source, packet.reply(Status.WRONG))]
            case Kind.CHAIN if self.is_open and self._here in self.members and self._at > 0:
                if source == self.members[self._at - 1] and self._take(packet.key, packet.version, packet.value):
                    return [self._next(packet)]
        return []

    def tick(self, now_ns: int) -> list[Sent]:
        """Nothing: clients repeat, and the head sends the write along the chain again."""
        return []

    @property
    def _at(self) -> int:
        return self.members.index(self._here)

    def _write(self, packet: Packet, source: Address) -> list[Sent]:
        version = self._done.get(packet.request)
        if version is None:
            version = self.table.get(packet.key, (0, b""))[0] + 1
            if not self._take(packet.key, version, packet.value):
                return [(source, packet.reply(Status.FULL))]
            self.counters["writes"] += 1
            self._done[packet.request] = version
            if len(self._done) > _MOST_DONE:
                self._done.popitem(last=False)
        return [self._next(Packet(Kind.CHAIN, packet.request, packet.key, packet.value, version, origin=source))]

    def _next(self, packet: Packet) -> Sent:
        """To the next member, or from the tail to the client."""
        if self._at < len(self.members) - 1:
            return self.members[self._at + 1], packet
        return packet.origin, packet.reply(Status.OK, version=packet.version)

    def _take(self, key: bytes, version: int, value: bytes) -> bool:
        """False: the memory is used up. An older version is one that a newer write has replaced."""
        if key not in self.table and len(self.table) >= self._most:
            return False
        if version > self.table.get(key, (0, b""))[0]:
            self.table[key] = (version, value)
        return True

    def load(self, entries: Iterable[tuple[bytes, int, bytes]]) -> bool:
        """Entries of another member. False: they do not fit."""
        return all(self._take(key, version, value) for key, version, value in list(entries))
