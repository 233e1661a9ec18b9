"""The request path's mechanics in Python: what `offpath.bindings._path` does in C, function by function.

They run where the C module is absent or switched off (`offpath.bindings.native`), and the C functions call them for
whatever is not valid, so each error is raised here. An ``end`` is a connected socket; the C functions take its
descriptor instead.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Final

from offpath.bindings.wire import header, host
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import (
    FIXED_BYTES,
    HEADER_COPY_BYTES,
    AnswerHeader,
    RequestHeader,
    Stages,
    copied_request,
    pack_answer,
    pack_request,
    parse_answer,
    parse_request,
    unpack_tensors,
)
from offpath.bindings.wire.host import (
    MAX_MESSAGE_BYTES,
    Launch,
    Result,
    parse_launch,
    parse_result,
)

__all__ = [
    "HUNG_UP", "LAYOUT", "REASONS", "STATUSES", "AnswerHeader", "Launch", "RequestHeader", "Result", "Stages",
    "check_request", "copy", "end_of", "pack_answer", "pack_request", "parse_answer", "parse_launch", "parse_result",
    "receive", "receive_message", "ring", "spin", "take_request", "unpack_tensors", "wait",
]  # fmt: skip

LAYOUT: Final = (
    f"{header.FORMATS} {host.FORMATS} {header.VERSION} {header.REQUEST_MAGIC} {header.ANSWER_MAGIC}"
    f" {header.FLAG_IDEMPOTENT} {header.FLAG_PAYLOAD_CRC} {header.FLAG_STREAM} {header.FLAG_SEQUENCE_START}"
    f" {header.FLAG_SEQUENCE_END} {header.FLAG_PARAMETERS} {header.FLAG_MORE} {HEADER_COPY_BYTES}"
    f" {header.HEADER_PART_BYTES} {header.MAX_TENSORS} {header.MAX_DIMS} {MAX_MESSAGE_BYTES}"
    f" {host.INLINE_RESULT_BYTES} {host.KIND_LAUNCH} {host.KIND_RESULT} {host.RESULT_MORE}"
    f" {host.LAST_RESULT} {host.MAX_MEMBERS}"
)
"""What the C module was written for; see PATH_LAYOUT in bindings/csrc/path/path.h."""
STATUSES: Final = tuple(Status)
REASONS: Final = tuple(Reason)
HUNG_UP: Final = -1
"""See `receive`."""
_CRC_AT: Final = FIXED_BYTES - 4


# -- headers -------------------------------------------------------------------------------------------------------
def take_request(memory: memoryview, at: int, max_payload_bytes: int) -> tuple[RequestHeader, int]:
    """Read a request's header at offset ``at`` of the slots, once, and validate that copy: (header, its checksum).

    Raises: HeaderError: as `parse_request`.
    """
    return check_request(copied_request(memory, at), max_payload_bytes)


def check_request(copied: bytes, max_payload_bytes: int) -> tuple[RequestHeader, int]:
    """The second half of `take_request`: of a private copy. Raises: HeaderError."""
    parsed = parse_request(copied, max_payload_bytes)
    return parsed, int.from_bytes(copied[_CRC_AT:FIXED_BYTES], "little")


# -- sockets -------------------------------------------------------------------------------------------------------
def end_of(sock: socket.socket) -> socket.socket:
    """What the functions below take for this socket."""
    return sock


def ring(end: socket.socket, imm: int) -> bool:
    """Send an immediate. False: the peer's queue is full. Does not block. Raises: OSError."""
    try:
        end.send(imm.to_bytes(4, "little"), socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True


def receive(end: socket.socket) -> int | None:
    """The oldest immediate, or None. Does not block. ``HUNG_UP - n``: a message of n bytes instead of four, of which at
    most eight are counted. Raises: OSError."""
    try:
        message = end.recv(8, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    return int.from_bytes(message, "little") if len(message) == 4 else HUNG_UP - len(message)


def receive_message(end: socket.socket) -> bytes | None:
    """The next message, or None; of one that is too long, one byte more than the limit. Empty: a hang-up. Does not
    block. Raises: OSError."""
    try:
        return end.recv(MAX_MESSAGE_BYTES + 1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None


def wait(fd: int, events: int, timeout_s: float | None) -> bool:
    """Block until a descriptor is ready for ``events`` (of poll(2)) or has failed, at most ``timeout_s``; None: without
    limit. Raises: OSError."""
    poller = select.poll()
    poller.register(fd, events)
    return bool(poller.poll(None if timeout_s is None else max(0.0, timeout_s * 1e3)))


def spin(fd: int, spin_ns: int) -> bool:
    """Poll a descriptor, without sleeping, until it is readable or ``spin_ns`` is over. True: it is readable, or has
    failed. Other threads run meanwhile. Raises: OSError."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    until = time.monotonic_ns() + spin_ns
    while not poller.poll(0):
        if time.monotonic_ns() >= until:
            return False
    return True


# -- memory --------------------------------------------------------------------------------------------------------
def copy(source: memoryview, source_offset: int, target: memoryview, target_offset: int, nbytes: int) -> bool:
    """Copy a range from one memory to another. False: it leaves one of them, or one is released; nothing is copied."""
    try:
        room = min(len(source) - source_offset, len(target) - target_offset)
        if min(source_offset, target_offset, nbytes) < 0 or nbytes > room:
            return False
        target[target_offset : target_offset + nbytes] = source[source_offset : source_offset + nbytes]
    except ValueError:
        return False
    return True
