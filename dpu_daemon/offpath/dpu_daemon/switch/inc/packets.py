"""Packets of the built-in key-value services: NetCache's and NetChain's sizes, 16 bytes of key and 128 of value.

One UDP datagram each, over IPv4. A control datagram carries the task's token and a JSON body (`messages`).
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

from offpath.bindings.errors import OffpathError

MAGIC: Final = b"OPK1"
CONTROL: Final = b"OPKC"
CONTROLLED: Final = b"OPKR"
KEY_BYTES: Final = 16
MOST_VALUE: Final = 128
TOKEN_BYTES: Final = 16
MOST_BODY: Final = 32_768
MOST_VERSION: Final = (1 << 63) - 1
"""So that the next one can be packed too."""
_HEAD: Final = struct.Struct("!4sBBBBQQ16s4sHH")
_CONTROL: Final = struct.Struct("!4s16sI")
_ADDRESS: Final = re.compile(r"([0-9.]{7,15}):([1-9][0-9]{0,4})")
Address = tuple[str, int]
NOWHERE: Final[Address] = ("0.0.0.0", 0)


class DatagramInvalid(OffpathError):
    """A datagram, key or address breaks the rules of the key-value services."""


class Kind(IntEnum):
    """What a packet is."""

    READ = 1
    WRITE = 2
    REPLY = 3
    CHAIN = 4
    """A write on its way from the head of a chain to its tail; ``origin`` is the client."""
    INVALIDATE = 5
    """A store to a cache: forget the key, then answer."""
    INVALIDATED = 6


class Status(IntEnum):
    """Of a reply."""

    OK = 0
    MISSING = 1
    """No such key."""
    WRONG = 2
    """Another task serves this; ask for the addresses again."""
    BUSY = 3
    """The service changes its tasks; try again."""
    FULL = 4
    """The memory is used up."""


class Flag(IntFlag):
    """``LEASE``: in a read or write, a cache wants to keep the value; in its reply, it may. ``HIT``: a cache
    answered."""

    LEASE = 1
    HIT = 2


_NO_FLAGS: Final = Flag(0)


@dataclass(frozen=True, slots=True)
class Packet:
    """``request``: chosen by the client at random, the same when it repeats. ``version``: of the key; 0: none."""

    kind: Kind
    request: int
    key: bytes
    value: bytes = b""
    version: int = 0
    status: Status = Status.OK
    flags: Flag = _NO_FLAGS
    origin: Address = NOWHERE

    def reply(self, status: Status, value: bytes = b"", version: int = 0, flags: Flag = _NO_FLAGS) -> Packet:
        """To this request."""
        return Packet(Kind.REPLY, self.request, self.key, value, version, status, flags)


def pack(packet: Packet) -> bytes:
    """As a datagram."""
    host, port = packet.origin
    head = _HEAD.pack(
        MAGIC, packet.kind, packet.status, packet.flags, 0, packet.request, packet.version, packet.key,
        socket.inet_aton(host), port, len(packet.value),
    )  # fmt: skip
    return head + packet.value


def unpack(data: bytes) -> Packet:
    """Raises: DatagramInvalid: it is none."""
    if len(data) < _HEAD.size:
        raise DatagramInvalid(f"too short for a packet: {len(data)} bytes")
    magic, kind, status, flags, zero, request, version, key, host, port, length = _HEAD.unpack_from(data)
    value = data[_HEAD.size :]
    if magic != MAGIC or zero or length != len(value) or length > MOST_VALUE or flags > Flag.LEASE | Flag.HIT:
        raise DatagramInvalid("no packet of a key-value service")
    if version > MOST_VERSION:
        raise DatagramInvalid(f"version out of range: {version}")
    try:
        return Packet(
            Kind(kind), request, key, value, version, Status(status), Flag(flags), (socket.inet_ntoa(host), port)
        )
    except ValueError:
        raise DatagramInvalid(f"unknown kind or status: {kind}, {status}") from None


def control(token: bytes, number: int, body: bytes) -> bytes:
    """A control datagram. ``number``: of the answer that is waited for."""
    return _CONTROL.pack(CONTROL, token, number) + body


def controlled(data: bytes, magic: bytes = CONTROL) -> tuple[bytes, int, bytes]:
    """Token, number and body of a control datagram, or of its answer. Raises: DatagramInvalid."""
    if not _CONTROL.size <= len(data) <= _CONTROL.size + MOST_BODY or data[:4] != magic:
        raise DatagramInvalid("no control datagram")
    _, token, number = _CONTROL.unpack_from(data)
    return token, number, data[_CONTROL.size :]


def answer(token: bytes, number: int, body: bytes) -> bytes:
    """The answer to a control datagram."""
    return _CONTROL.pack(CONTROLLED, token, number) + body


def key_of(text: str) -> bytes:
    """A key of at most 16 bytes, padded. Raises: DatagramInvalid."""
    data = text.encode()
    if not 0 < len(data) <= KEY_BYTES:
        raise DatagramInvalid(f"a key has 1 to {KEY_BYTES} bytes: {text!r:.40}")
    return data.ljust(KEY_BYTES, b"\0")


def address_of(text: str) -> Address:
    """HOST:PORT, of IPv4. Raises: DatagramInvalid."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[2]) < 65_536:
        raise DatagramInvalid(f"no address HOST:PORT: {text!r:.60}")
    try:
        return str(ipaddress.IPv4Address(found[1])), int(found[2])
    except ipaddress.AddressValueError:
        raise DatagramInvalid(f"no IPv4 address: {text!r:.60}") from None


def slot_of(key: bytes, slots: int) -> int:
    """Which of the tasks of a service has the key."""
    return int.from_bytes(key, "little") % 2_147_483_647 % slots
