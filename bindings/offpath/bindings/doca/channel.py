"""Host channel `comch`: a server on the DPU, a client in each process of the host, with the sessions of
`offpath.bindings.channel.session`.

Comch reports connects and disconnects, and keeps messages whole and in order. The session adds what Comch lacks: a
window as flow control, an explicit end, and a nonce that assigns each message to one session. Comch does not identify
its clients: any process that may open the host's function behind the representor can connect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from offpath.bindings.channel.session import (
    BYE,
    CREDIT,
    DATA,
    END,
    OPEN,
    OPENED,
    SESSION_BYTES,
    Frame,
    Session,
    check_message,
    parse,
)
from offpath.bindings.doca.mailbox import Mailbox
from offpath.bindings.doca.poller import MOST_WAITING, ClientPoller, Link, ServerPoller
from offpath.bindings.errors import ComchUnusable, DeviceError, HostMessageError, PeerGone

SERVER: Final = "offpath"
"""The server's default name; both sides may be configured with another."""
_MOST_ARRIVED: Final = 256
"""Connections that wait for `accept`."""
_START_S: Final = 10.0
_GRACE_S: Final = 1.0


class FrameSink(Protocol):
    """Where a connection sends its frames."""

    def send(self, frame: bytes) -> None:
        """Send a frame after the earlier ones. Does not block."""

    def leave(self, *, at_once: bool) -> None:
        """Close after the earlier frames, or at once."""


class ComchConnection:
    """Implements `offpath.bindings.ports.HostEnd`. The daemon uses it too."""

    peer_pid = 0

    def __init__(
        self, sink: FrameSink, mailbox: Mailbox[bytes], session: Session, peer: str, on_close: Callable[[], None],
        *, is_self_probe: bool = False,
    ) -> None:  # fmt: skip
        self._sink = sink
        self._mailbox = mailbox
        self._session = session
        self._on_close = on_close
        self._is_broken = False
        self.peer = peer
        self.is_self_probe = is_self_probe
        self._is_opened = False

    # -- out ----------------------------------------------------------------------------------------------------------
    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> bool:
        """See `HostConnection.send`. Descriptors raise HostMessageError."""
        check_message(message, fds)
        if self._is_closed or self._session.is_over:
            raise PeerGone("host channel closed")
        if not self._session.has_room or self._mailbox.is_lost:
            self._pump()  # may receive credits, or the end
        if self._session.is_over:
            raise PeerGone("host channel: its connection is lost")
        if not self._session.has_room:
            return False
        self._send_frame(DATA, message)
        return True

    def _send_frame(self, kind: int, body: bytes = b"") -> None:
        self._sink.send(self._session.frame(kind, body))
        self._session.on_sent(kind)

    def finish(self) -> None:
        """See `HostConnection.finish`."""
        if not self._is_closed and not self._session.is_over:
            self._send_frame(END)

    # -- in -----------------------------------------------------------------------------------------------------------
    def _pump(self) -> None:
        """Process received frames. If more arrive meanwhile, the descriptor stays readable."""
        is_lost = self._mailbox.is_lost  # first: all frames before the loss are then in the mailbox
        while (raw := self._mailbox.take()) is not None:
            try:
                self._on_frame(parse(raw))
            except HostMessageError as fault:
                self._session.broke(fault)
                self._is_broken = True
        if is_lost:
            if isinstance(self._mailbox.fault, HostMessageError):
                self._session.broke(self._mailbox.fault)
            self._session.is_over = True
        self._mailbox.settle(is_readable=self._session.is_readable)

    def _on_frame(self, frame: Frame) -> None:
        self._is_opened = self._is_opened or frame.kind == OPENED
        self._session.on_received(frame)

    def receive(self) -> tuple[bytes, tuple[int, ...]] | None:
        """See `HostConnection.receive`."""
        message = self.receive_message()
        return None if message is None else (message, ())

    def receive_message(self) -> bytes | None:
        """See `HostConnection.receive_message`."""
        if self._is_closed:
            raise PeerGone("host channel closed")
        if not self._session.is_readable:
            self._pump()
        try:
            return self._session.take()
        except PeerGone:
            raise self._mailbox.fault or PeerGone("host channel closed") from None
        finally:
            if self._session.owes_credit:
                self._send_frame(CREDIT)
            if not self._session.is_readable:
                self._pump()

    def wait_message(self) -> bytes:
        """See `HostEnd.wait_message`."""
        while (message := self.receive_message()) is None:
            self._wait(None)
        return message

    def open(self, timeout_s: float) -> None:
        """On a host's end: begin the session, and block until the daemon has accepted it. Raises: PeerGone."""
        self._send_frame(OPEN)
        until_s = time.monotonic() + timeout_s
        while not self._is_opened:
            if self._session.is_over:
                raise PeerGone("the daemon hung up")
            if (left_s := until_s - time.monotonic()) <= 0:
                raise PeerGone(f"no answer in {timeout_s:g} s")
            self._wait(left_s)
            self._pump()

    def _wait(self, timeout_s: float | None) -> None:
        poll = select.poll()
        poll.register(self._mailbox.fileno(), select.POLLIN)
        poll.poll(None if timeout_s is None else timeout_s * 1e3)

    def fileno(self) -> int:
        """Readable when a message waits or the peer hung up."""
        return self._mailbox.fileno()

    def death_fileno(self) -> int:
        """Unknown: the process is on the other side of the bus."""
        return -1

    def has_ended(self) -> bool:
        """See `HostConnection.has_ended`."""
        if not self._is_closed and not self._session.is_readable:
            self._pump()
        return self._session.is_over and not self._session.inbox

    @property
    def _is_closed(self) -> bool:
        return self._mailbox.fileno() < 0

    def close(self) -> None:
        """Hang up. Idempotent."""
        if self._is_closed:
            return
        if not self._session.is_over:
            self._send_frame(BYE)
        self._session.is_over = True
        self._sink.leave(at_once=self._is_broken)
        self._mailbox.close()
        self._on_close()

    def discard(self) -> None:
        """Hang up at once, for a connection that was never accepted."""
        self._mailbox.close()
        self._sink.leave(at_once=True)


class _Wire:
    """One direction between two ends in this process: writes to the other's mailbox through the poller, which must be
    alive."""

    def __init__(self, poller: ServerPoller, far: Mailbox[bytes]) -> None:
        self._poller = poller
        self._far = far

    def send(self, frame: bytes) -> None:
        """See `FrameSink.send`."""
        self._poller.do(partial(self._far.put, frame))

    def leave(self, *, at_once: bool) -> None:
        """See `FrameSink.leave`."""
        self._poller.do(partial(self._far.lose, PeerGone("host channel closed")))


class ComchListener:
    """Implements `offpath.bindings.ports.HostListener`: server ``name`` for the host's function behind ``representor``.

    Raises: ComchUnusable: DOCA, a capable device or the representor is missing, or the name is taken.
    """

    def __init__(self, path: str = "", device: str = "", representor: str = "", name: str = SERVER) -> None:
        self._arrived: Mailbox[ComchConnection] = Mailbox(_MOST_ARRIVED)
        self._count = 0
        """Connections that were accepted and are open."""
        self._is_listening = True
        self._poller = ServerPoller(path, device, representor, name, self._begin)
        try:
            self._poller.start(_START_S)
        except (DeviceError, TimeoutError) as fault:
            self._arrived.close()
            why = str(fault) or "DOCA does not answer"
            raise ComchUnusable(f"no Comch server {name!r}: {why}") from None
        self.address = f"comch:{name}@{self._poller.function}"

    def fileno(self) -> int:
        """Readable when a connection waits. Messages on a connection wake its own descriptor."""
        return self._arrived.fileno()

    def accept(self) -> ComchConnection | None:
        """See `HostListener.accept`."""
        connection = self._arrived.take()
        self._arrived.settle(is_readable=False)
        if connection is not None:
            self._count += 1
        return connection

    def self_connect(self) -> ComchConnection:
        """See `HostListener.self_connect`. No client can connect on the DPU's side, so this tests the poller and
        everything behind it; of DOCA only that it does not block the poller. Raises: ComchUnusable: the poller has
        ended."""
        if not self._poller.is_alive:
            raise ComchUnusable(f"the Comch poller has stopped: {self._poller.fault or 'its thread has ended'}")
        if len(self._arrived) >= _MOST_ARRIVED:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        nonce = secrets.token_bytes(SESSION_BYTES)
        ours: Mailbox[bytes] = Mailbox(MOST_WAITING)
        theirs: Mailbox[bytes] = Mailbox(MOST_WAITING)
        peer = "ourselves"
        self_probe = ComchConnection(
            _Wire(self._poller, theirs), ours, Session(nonce), peer, _nothing, is_self_probe=True
        )
        accepted = ComchConnection(
            _Wire(self._poller, ours), theirs, Session(nonce), peer, self._forget, is_self_probe=True
        )  # fmt: skip
        self._poller.do(partial(self._hand_over, accepted))
        self_probe.finish()
        return self_probe

    def _begin(self, link: Link, raw: bytes) -> None:
        """In the poller's thread: a link's first frame. Raises: HostMessageError: it opens no session."""
        frame = parse(raw)
        if frame.kind != OPEN:
            raise HostMessageError("frame", f"kind {frame.kind} before a session")
        try:
            mailbox: Mailbox[bytes] = Mailbox(MOST_WAITING)
        except OSError as fault:
            raise HostMessageError("frame", f"no file descriptor is left: {fault.strerror}") from None
        session = Session(frame.session)
        connection = ComchConnection(
            link, mailbox, session, f"function {self._poller.function}", self._forget
        )  # fmt: skip
        link.mailbox, link.leave_ns = mailbox, 0
        link.send(session.frame(OPENED))
        self._hand_over(connection)

    def _hand_over(self, connection: ComchConnection) -> None:
        """In the poller's thread."""
        if not self._arrived.put(connection):
            connection.discard()

    def _forget(self) -> None:
        self._count -= 1
        self._end_if_alone()

    def _end_if_alone(self) -> None:
        if not self._is_listening and not self._count:
            self._poller.close()

    def close(self) -> None:
        """See `HostListener.close`. The last connection's close, or this call if none is open, waits a bounded time for
        the poller's end. Idempotent."""
        if not self._is_listening:
            return
        self._poller.stop()
        while (connection := self.accept()) is not None:
            connection.close()
        self._arrived.close()
        self._is_listening = False
        self._end_if_alone()


def _nothing() -> None:
    """The self-probe's end is not counted."""


@dataclass(frozen=True, slots=True)
class ComchConnector:
    """Implements `offpath.bindings.ports.HostConnector`: plain data; DOCA is loaded at `connect`."""

    path: str = ""
    device: str = ""
    name: str = SERVER
    starts_threads = True

    def connect(self, timeout_s: float = 5.0) -> ComchConnection:
        """See `HostConnector.connect`. Raises: PeerGone, ComchUnusable."""
        mailbox: Mailbox[bytes] = Mailbox(MOST_WAITING)
        poller = ClientPoller(self.path, self.device, self.name, mailbox, timeout_s)
        until_s = time.monotonic() + timeout_s
        with contextlib.ExitStack() as undo:
            undo.callback(mailbox.close)
            try:
                poller.start(timeout_s + _GRACE_S)
            except TimeoutError:
                raise PeerGone(f"no daemon at comch:{self.name}: DOCA does not answer") from None
            except PeerGone as gone:
                raise PeerGone(f"no daemon at comch:{self.name}: {gone}") from None
            except DeviceError as fault:
                raise ComchUnusable(f"cannot use comch:{self.name}: {fault}") from None
            session = Session(secrets.token_bytes(SESSION_BYTES))
            connection = ComchConnection(poller.link, mailbox, session, "the daemon", poller.close)
            undo.pop_all()
        try:
            connection.open(max(0.0, until_s - time.monotonic()))
        except PeerGone as gone:
            connection.close()
            raise PeerGone(f"no daemon at comch:{self.name}: {gone}") from None
        except BaseException:
            connection.close()
            raise
        return connection
