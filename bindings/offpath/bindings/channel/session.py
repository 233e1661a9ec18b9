"""Sessions for host-channel carriers without their own: the fields of a frame, and the state of one end. No I/O.

Such a carrier may report neither connects nor disconnects, may not bound a peer's messages once they are read, and may
deliver messages of an earlier connection. So each frame has a 16-byte header: kind, version, how many messages its
sender has taken so far, and the session, a nonce of the connecting side.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

from offpath.bindings.errors import HostMessageError, PeerGone
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES

OPEN: Final = 1
"""Host → daemon: begins a session, with its nonce."""
OPENED: Final = 2
"""Daemon → host: the session is accepted."""
DATA: Final = 3
CREDIT: Final = 4
"""Only the count of messages taken. One from the daemon without a new count is a probe: the host replies with its
own."""
END: Final = 5
"""The sender sends no more, but still reads."""
BYE: Final = 6
"""The sender hung up."""
_KINDS: Final = range(OPEN, BYE + 1)
VERSION: Final = 1
SESSION_BYTES: Final = 8
WINDOW: Final = 64
"""Messages in flight to a peer that it has not confirmed as taken: about the capacity of a Unix socket."""
_WRAP: Final = 1 << 32
_HEAD = struct.Struct("<BBHI8s")
HEAD_BYTES: Final = _HEAD.size


class Frame(NamedTuple):
    """One received frame; ``taken`` counts modulo 2³²."""

    kind: int
    taken: int
    session: bytes
    body: bytes


def parse(raw: bytes) -> Frame:
    """Raises: HostMessageError: no frame of this version, or a body that is too large or not allowed."""
    if len(raw) < HEAD_BYTES:
        raise HostMessageError("short", str(len(raw)))
    kind, version, zero, taken, session = _HEAD.unpack_from(raw)
    if kind not in _KINDS or version != VERSION or zero:
        raise HostMessageError("frame", f"kind {kind} version {version}")
    body = raw[HEAD_BYTES:]
    if len(body) > MAX_MESSAGE_BYTES:
        raise HostMessageError("too_long", str(len(body)))
    if bool(body) is not (kind == DATA):
        raise HostMessageError("empty" if kind == DATA else "frame", f"kind {kind} with {len(body)} bytes")
    return Frame(kind, taken, session, body)


def check_message(message: bytes, fds: tuple[int, ...]) -> None:
    """Raises: HostMessageError: the carrier cannot carry it."""
    if not message:
        raise HostMessageError("empty", "an empty message is not allowed")
    if len(message) > MAX_MESSAGE_BYTES:
        raise HostMessageError("too_long", str(len(message)))
    if fds:
        raise HostMessageError("descriptors", "this host channel carries no descriptors")


class Session:
    """One end: the received messages, and the credits for sending."""

    __slots__ = ("_fault", "_is_ended", "_said", "_sent", "_taken", "_theirs", "inbox", "is_over", "is_probed", "nonce")

    def __init__(self, nonce: bytes) -> None:
        self.nonce = nonce
        self.inbox: deque[bytes] = deque()
        self.is_over = False
        """The peer hung up, was lost or broke the protocol: nothing more is sent or received."""
        self.is_probed = False
        """The peer wants a frame of any kind."""
        self._is_ended = False
        self._fault: HostMessageError | None = None
        self._sent = self._theirs = 0
        """Local messages: sent, and taken by the peer."""
        self._taken = self._said = 0
        """The peer's messages: taken, and reported as taken."""

    @property
    def is_readable(self) -> bool:
        """`take` has a message or reports the end."""
        return bool(self.inbox) or self._is_ended or self.is_over

    @property
    def has_room(self) -> bool:
        """A message may be sent."""
        return self._sent - self._theirs < WINDOW

    def frame(self, kind: int, body: bytes = b"") -> bytes:
        """Encode a frame. Call `on_sent` after it was sent."""
        return _HEAD.pack(kind, VERSION, 0, self._taken % _WRAP, self.nonce) + body

    def on_sent(self, kind: int) -> None:
        """A frame of this kind, made just before, was sent."""
        self._said = self._taken
        self.is_probed = False
        self._sent += kind == DATA

    @property
    def owes_credit(self) -> bool:
        """The peer may soon have to wait for credits."""
        return self._taken - self._said >= WINDOW // 2 and not self.is_over

    def on_received(self, frame: Frame) -> None:
        """Process a frame of the peer. Raises: HostMessageError: it breaks the protocol; the session is then over."""
        try:
            self._on_frame(frame)
        except HostMessageError as fault:
            self.broke(fault)
            raise

    def _on_frame(self, frame: Frame) -> None:
        if self.is_over:
            return
        if frame.session != self.nonce:
            raise HostMessageError("session", "a frame of another session")
        taken = (frame.taken - self._theirs) % _WRAP
        if taken > self._sent - self._theirs:
            raise HostMessageError("credit", "the peer confirmed more messages than were sent")
        self._theirs += taken
        if frame.kind == DATA:
            if self._is_ended:
                raise HostMessageError("frame", "a message after END")
            if self._taken + len(self.inbox) - self._said >= WINDOW:
                raise HostMessageError("flood", f"more than {WINDOW} unconfirmed messages")
            self.inbox.append(frame.body)
        elif frame.kind == END:
            self._is_ended = True
        elif frame.kind == BYE:
            self.is_over = True
        elif frame.kind == CREDIT:
            self.is_probed = self.is_probed or not taken
        elif frame.kind == OPEN:
            raise HostMessageError("frame", "opened twice")

    def broke(self, fault: HostMessageError) -> None:
        """The peer broke the protocol. `take` raises the error after the messages received before."""
        self._fault = self._fault or fault
        self.is_over = True

    def take(self) -> bytes | None:
        """The next message, or None. Raises: PeerGone, HostMessageError."""
        if self.inbox:
            self._taken += 1
            return self.inbox.popleft()
        if self._fault is not None:
            raise self._fault
        if self.is_over or self._is_ended:
            raise PeerGone("host channel closed")
        return None
