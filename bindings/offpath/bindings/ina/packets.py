"""Packets of statistical INA between workers, a switch and a parameter server (PS), over a byte stream.

Sans-IO. u32 little-endian length, a head of 32 bytes, then the payload. A real network carries each in one datagram;
here the emulated switch decides which are lost, and the stream below loses none.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

from offpath.bindings.errors import PacketError

VERSION: Final = 1
MOST_WORKERS: Final = 32
"""Servers with workers of one job: bits of ``bitmap``."""
MOST_PAYLOAD_BYTES: Final = 8192
MOST_PSN: Final = (1 << 63) - 1
_LONGEST_NAME: Final = 255
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<BBHHHQQII")
HEAD_BYTES: Final = _HEAD.size
MOST_PACKET_BYTES: Final = HEAD_BYTES + MOST_PAYLOAD_BYTES
"""Without the length prefix."""
ELEMENT_BYTES: Final = 4
"""Payloads are int32: their sum does not depend on the order."""
_MASK64: Final = (1 << 64) - 1


class PacketKind(IntEnum):
    """The kind of a packet."""

    ATTACH = 1
    """To the switch: a process of a job on a server; payload: the server's name. Bitmap 0: the job's PS."""
    READY = 2
    """From the switch: all workers and the PS of the job are attached."""
    REFUSED = 3
    """From the switch, in answer to an ATTACH; ``psn``: the reason."""
    DETACHED = 4
    """From the switch to the PS: this worker has disconnected."""
    DATA = 5
    """Towards the PS: gradients of the workers in ``bitmap``, summed."""
    RESULT = 6
    """From the PS to the workers in ``bitmap``: the sum over all workers. It releases the aggregator of its PSN."""
    FLUSH = 7
    """From the PS to the switch: send on what the aggregator of this PSN holds."""


class Flag(IntFlag):
    """Marks of a packet."""

    RETRANSMITTED = 1
    """DATA: sent again; it takes no aggregator, and flushes that of its PSN."""
    CONGESTED = 2
    """DATA, RESULT: a link's queue was above its threshold (ECN)."""
    COLLIDED = 4
    """DATA, RESULT: its aggregator was another packet's."""
    UNAGGREGATED = 8
    """DATA: switches must not aggregate it."""


class Refusal(IntEnum):
    """Why a switch refuses an ATTACH."""

    SERVER = 1
    """It has no such server."""
    TAKEN = 2
    """The job has this worker, or a PS, already."""
    MISMATCH = 3
    """The job's other processes name another number of workers."""
    LIMITS = 4
    """It serves as many jobs as it can."""


@dataclass(frozen=True, slots=True)
class Packet:
    """``job``: number of the job; ``psn``: number of the packet in it; ``workers``: of the job. ``hash``: from
    `aggregator_hash`; the switch takes it modulo the number of its aggregators."""

    kind: PacketKind
    job: int
    psn: int = 0
    workers: int = 1
    bitmap: int = 0
    flags: int = 0
    hash: int = 0
    payload: bytes = b""


def aggregator_hash(job: int, psn: int, salt: int = 0) -> int:
    """32 bits of a job and a PSN that look random (the finaliser of SplitMix64, twice).

    ``salt``: other values give other aggregators.
    """
    return _mixed(_mixed(job) ^ (psn * 0x9E3779B97F4A7C15 + salt * 0xD1B54A32D192ED03) & _MASK64) >> 32


def _mixed(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK64
    return value ^ value >> 31


def pack(packet: Packet) -> bytes:
    """With the length prefix. The caller keeps the limits."""
    head = _HEAD.pack(
        packet.kind, VERSION, packet.flags, packet.workers, 0, packet.job, packet.psn, packet.bitmap, packet.hash
    )
    return _LENGTH.pack(HEAD_BYTES + len(packet.payload)) + head + packet.payload


_KINDS: Final = {int(kind): kind for kind in PacketKind}
_ANSWERS: Final = {int(reason) for reason in Refusal}
_FLAGS: Final = {
    PacketKind.DATA: int(Flag.RETRANSMITTED | Flag.CONGESTED | Flag.COLLIDED | Flag.UNAGGREGATED),
    PacketKind.RESULT: int(Flag.CONGESTED | Flag.COLLIDED),
}
_HASHED: Final = frozenset((PacketKind.DATA, PacketKind.RESULT, PacketKind.FLUSH))


def parse(body: bytes) -> Packet:
    """One packet without its length prefix. Raises: PacketError."""
    if len(body) < HEAD_BYTES:
        raise PacketError("packet_length", str(len(body)))
    number, version, flags, workers, zero, job, psn, bitmap, hashed = _HEAD.unpack_from(body)
    if version != VERSION:
        raise PacketError("version", str(version))
    kind = _KINDS.get(number)
    if kind is None:
        raise PacketError("kind", str(number))
    if zero:
        raise PacketError("reserved", str(zero))
    if not 0 < workers <= MOST_WORKERS:
        raise PacketError("workers", str(workers))
    if flags & ~_FLAGS.get(kind, 0):
        raise PacketError("flags", str(flags))
    _check_numbers(kind, psn, workers, bitmap, hashed)
    payload = bytes(body[HEAD_BYTES:])
    _check_payload(kind, payload)
    return Packet(kind, job, psn, workers, bitmap, flags, hashed, payload)


def _check_numbers(kind: PacketKind, psn: int, workers: int, bitmap: int, hashed: int) -> None:
    if bitmap >> workers:
        raise PacketError("bitmap", f"{bitmap:#x} of {workers} workers")
    if kind is PacketKind.DATA or kind is PacketKind.RESULT:
        is_possible = bitmap != 0
    elif kind is PacketKind.ATTACH:
        is_possible = bitmap & (bitmap - 1) == 0
    elif kind is PacketKind.DETACHED:
        is_possible = bitmap != 0 and bitmap & (bitmap - 1) == 0
    else:
        is_possible = bitmap == 0
    if not is_possible:
        raise PacketError("bitmap", f"{bitmap:#x} of a {kind.name}")
    if kind is PacketKind.REFUSED:
        if psn not in _ANSWERS:
            raise PacketError("reason", str(psn))
    elif psn > (MOST_PSN if kind in _HASHED else 0):
        raise PacketError("psn", str(psn))
    if hashed and kind not in _HASHED:
        raise PacketError("reserved", str(hashed))


def _check_payload(kind: PacketKind, payload: bytes) -> None:
    if kind is PacketKind.DATA or kind is PacketKind.RESULT:
        if not 0 < len(payload) <= MOST_PAYLOAD_BYTES or len(payload) % ELEMENT_BYTES:
            raise PacketError("payload", str(len(payload)))
    elif kind is PacketKind.ATTACH:
        _check_name(payload)
    elif payload:
        raise PacketError("payload", f"{len(payload)} of a {kind.name}")


def _check_name(payload: bytes) -> None:
    try:
        name = payload.decode("utf-8")
    except UnicodeDecodeError:
        raise PacketError("name", "not UTF-8") from None
    if not 0 < len(payload) <= _LONGEST_NAME or not name.isprintable():
        raise PacketError("name", f"{name!r:.80}")


class PacketReader:
    """Splits a byte stream into packets. Holds less than one between calls."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Packet]:
        """Add received bytes; return the packets that are now complete.

        Raises: PacketError: the stream is then unusable.
        """
        buffer = self._buffer
        buffer += data
        found, at, end = [], 0, len(buffer)
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if not HEAD_BYTES <= length <= MOST_PACKET_BYTES:
                raise PacketError("packet_length", str(length))
            begin = at + _LENGTH.size
            if end - begin < length:
                break
            at = begin + length
            found.append(parse(bytes(buffer[begin:at])))
        del buffer[:at]
        return found

    @property
    def held(self) -> int:
        """Bytes of an incomplete packet."""
        return len(self._buffer)
