"""Datagrams of the key-value services on switches: what must hold of what their parsers accept."""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from offpath.dpu_daemon.switch.inc import messages, packets
from offpath.dpu_daemon.switch.inc.cache import Cache
from offpath.dpu_daemon.switch.inc.chain import Chain
from offpath.dpu_daemon.switch.inc.store import Store

from .mutate import Numbers

PACKET_CODES: Final = frozenset((
    "too short for a packet", "no packet of a key-value service", "version out of range", "unknown kind or status"
))  # fmt: skip
CONTROL_CODES: Final = frozenset(("no control datagram",))
ADDRESS_CODES: Final = frozenset(("no address HOST", "no IPv4 address"))
"""What stands before the first colon of the text."""
_HERE: Final = ("127.0.0.1", 21_000)
_PEER: Final = ("127.0.0.1", 21_001)


def check_packet(data: bytes, numbers: Numbers, got: packets.Packet) -> None:
    """Raises: AssertionError, or what a service raised that was given the packet."""
    assert packets.pack(got) == data, "packing it again gives other bytes"
    assert len(got.value) <= packets.MOST_VALUE
    assert 0 <= got.flags <= packets.Flag.LEASE | packets.Flag.HIT
    assert got.version <= packets.MOST_VERSION
    cache, chain = Cache(4), Chain(4, _HERE)
    cache.stores = [_PEER]
    chain.members, chain.is_open = [_PEER, _HERE], True
    for service in (Store(4), cache, chain):
        for _ in range(2):
            for _, packet in service.handle(got, _PEER, 1):
                packets.pack(packet)


def check_controlled(data: bytes, numbers: Numbers, got: tuple[bytes, int, bytes]) -> None:
    """Raises: AssertionError."""
    token, number, body = got
    assert packets.control(token, number, body) == data
    assert len(body) <= packets.MOST_BODY


def check_address(data: bytes, numbers: Numbers, got: packets.Address) -> None:
    """Raises: AssertionError."""
    host, port = got
    assert f"{host}:{port}".encode() == data, "two texts for one address"
    assert ipaddress.IPv4Address(host)
    assert 0 < port < 65_536


def check_entries(message: Any) -> None:
    """Entries of a chain in an accepted message can be used. Raises: ValueError, AssertionError."""
    if message.kind in ("load", "entries"):
        assert len(message.entries) <= messages.MOST_ENTRIES
        for entry in message.entries:
            assert len(bytes.fromhex(entry.key)) == packets.KEY_BYTES
            assert len(bytes.fromhex(entry.value)) <= packets.MOST_VALUE
