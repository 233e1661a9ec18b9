"""The parser of statistical INA's packets: how it is called, and what must hold of what it accepts."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from offpath.bindings.ina import packets

from .mutate import Numbers

CODES: Final = frozenset((
    "packet_length", "version", "kind", "reserved", "workers", "flags", "bitmap", "psn", "reason", "payload", "name"
))  # fmt: skip


def run(module: ModuleType, data: bytes, numbers: Numbers) -> Any:
    """The reader and what it returned."""
    reader, got, at = module.PacketReader(), [], 0
    for size in numbers:
        got += reader.feed(data[at : at + size])
        at += size
    return reader, got + reader.feed(data[at:])


def check(data: bytes, numbers: Numbers, got: Any) -> None:
    """Raises: AssertionError."""
    reader, taken = got
    packed = b"".join(packets.pack(packet) for packet in taken)
    assert data.startswith(packed), "packing it again gives other bytes"
    assert reader.held == len(data) - len(packed) < 4 + packets.MOST_PACKET_BYTES
    for packet in taken:
        assert 0 < packet.workers <= packets.MOST_WORKERS
        assert not packet.bitmap >> packet.workers
        assert packet.psn <= packets.MOST_PSN
        assert len(packet.payload) <= packets.MOST_PAYLOAD_BYTES
        if packet.kind in (packets.PacketKind.DATA, packets.PacketKind.RESULT):
            assert packet.bitmap
            assert packet.payload
            assert not len(packet.payload) % packets.ELEMENT_BYTES
        elif packet.kind is packets.PacketKind.ATTACH:
            assert packet.payload.decode().isprintable()
            assert packet.bitmap.bit_count() < 2
        else:
            assert not packet.payload
        if packet.kind is packets.PacketKind.DETACHED:
            assert packet.bitmap.bit_count() == 1
        if packet.kind is packets.PacketKind.REFUSED:
            assert packet.psn in set(packets.Refusal)
        if packet.kind not in (packets.PacketKind.DATA, packets.PacketKind.RESULT):
            assert not packet.flags
