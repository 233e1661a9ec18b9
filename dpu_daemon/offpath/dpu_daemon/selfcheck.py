"""The daemon's check of itself, behind each WATCHDOG=1: health is what the real path says, not that a timer ran.

The loop turns (the check runs on it); the copy engine copies; each listener lets a connection in and answers it; the
job book's earliest deadline is not left standing. A check takes well under 1 ms of the loop and counts no violation.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from typing import TYPE_CHECKING, Final

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.bindings.loopback.region import PAGE, Region
from offpath.bindings.ports import HostConnection
from offpath.bindings.wire import control
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.dpu_daemon.notify import Notifier

if TYPE_CHECKING:
    from offpath.dpu_daemon.daemon import Daemon
    from offpath.dpu_daemon.negotiation import Negotiator

logger = logging.getLogger(__name__)
ANSWER_TIMEOUT_S: Final = 5.0
FLOOD_PAUSE_S: Final = 0.1
FLOOD_TRIES: Final = 10
OVERDUE_NS: Final = 2_000_000_000
"""A deadline of the book that stood so long was not overlooked by a busy loop but forgotten."""
_HELLO: Final = frame(
    control.encode(
        # A name that no tenant can have: it goes the whole way to "denied", and is nobody's failed attempt.
        control.Hello(client="self-check", tenant="Self:Check", slots=1, payload_bytes=0, result_bytes=0)
    )
)
_COPY_TOKEN: Final = 0  # the daemon counts from 1


class SelfCheckFailed(OffpathError):
    """A part of the daemon does not do what it is for."""


class SelfCheck:
    """Asks the parts of one daemon. Owns two pages of memory until `close`."""

    def __init__(self, daemon: Daemon, negotiator: Negotiator) -> None:
        self._daemon = daemon
        self._negotiator = negotiator
        self._source = Region.create("offpath-check-source", PAGE)
        self._target = Region.create("offpath-check-target", PAGE)
        self._rounds = 0

    async def run(self) -> None:
        """Ask each part once; ends within `ANSWER_TIMEOUT_S`. Raises: SelfCheckFailed: what does not work."""
        self._copy()
        self._deadlines()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._negotiation()
                for path in self._negotiator.fabric_paths():
                    await self._hangs_up("fabric", path)
                await self._host_channel()
        except TimeoutError:
            raise SelfCheckFailed(f"a listener has not answered for {ANSWER_TIMEOUT_S:g} s") from None

    def _copy(self) -> None:
        """A page's worth through the engine, different each time."""
        self._rounds += 1
        mark = self._rounds.to_bytes(8, "little")
        self._source.view[:8] = mark
        engine = self._daemon.engine
        try:
            done = engine.post(_COPY_TOKEN, self._source, 0, self._target, 0, PAGE)
        except OffpathError as fault:
            raise SelfCheckFailed(f"copy engine: {fault}") from None
        engine.bytes_copied -= PAGE  # it counts what was moved for requests
        if done is None or done.error is not None or self._target.view[:8] != mark:
            raise SelfCheckFailed("copy engine: a page did not arrive")
        if not engine.is_working():
            raise SelfCheckFailed("copy engine: its thread has ended, or its device is lost")

    def _deadlines(self) -> None:
        next_ns = self._daemon.book.next_deadline_ns()
        late_ns = self._daemon.now_ns() - next_ns if next_ns is not None else 0
        if late_ns > OVERDUE_NS:
            raise SelfCheckFailed(f"job book: a deadline has stood for {late_ns // 1_000_000} ms")

    async def _negotiation(self) -> None:
        """A stranger's hello must be refused; in a flood it is enough that others are let in."""
        before = self._negotiator.accepted
        try:
            said = await _asked(self._negotiator.endpoints.negotiate, socket.SOCK_STREAM, _HELLO)
            body = next(iter(FrameReader().feed(said)), b"")
            answer = control.decode(control.TO_REQUESTER, body)
        except (OSError, OffpathError) as fault:
            await asyncio.sleep(FLOOD_PAUSE_S)
            if self._negotiator.accepted > before:
                return
            raise SelfCheckFailed(f"negotiation: {fault}") from None
        if not isinstance(answer, control.Refused):
            raise SelfCheckFailed(f"negotiation: {answer.kind} for a stranger's hello")

    async def _hangs_up(self, name: str, path: str) -> None:
        """A peer that connects and says nothing more must be let in and hung up on; a flood only makes it wait."""
        for _ in range(FLOOD_TRIES):
            try:
                await _asked(path, socket.SOCK_SEQPACKET, b"")
                return
            except OSError as fault:
                if fault.errno == errno.ECONNRESET:
                    return  # let in, and hung up on at once
                if fault.errno != errno.EAGAIN:
                    raise SelfCheckFailed(f"{name}: {fault}") from None
            await asyncio.sleep(FLOOD_PAUSE_S)
        raise SelfCheckFailed(f"{name}: its queue stays full")

    async def _host_channel(self) -> None:
        """As `_hangs_up`, through whatever carries it."""
        for _ in range(FLOOD_TRIES):
            try:
                with contextlib.closing(self._daemon.host.listener.knock()) as knocking:
                    await _hung_up(knocking)
                return
            except OSError as fault:
                if fault.errno != errno.EAGAIN:
                    raise SelfCheckFailed(f"host channel: {fault}") from None
            except OffpathError as fault:
                raise SelfCheckFailed(f"host channel: {fault}") from None
            await asyncio.sleep(FLOOD_PAUSE_S)
        raise SelfCheckFailed("host channel: its queue stays full")

    def close(self) -> None:
        """Give the memory back."""
        self._source.close()
        self._target.close()


async def _asked(path: str, kind: socket.SocketKind, message: bytes) -> bytes:
    """Connect, say it and nothing more; the first answer, empty for a hang-up. Raises: OSError."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
        sock.connect(path)  # a Unix socket connects at once or not at all
        if message:
            sock.send(message)
        else:
            sock.shutdown(socket.SHUT_WR)
        return await loop.sock_recv(sock, 4096)


async def _hung_up(knocking: HostConnection) -> None:
    """Read what is said until the other end hangs up."""
    loop = asyncio.get_running_loop()
    news = asyncio.Event()
    loop.add_reader(knocking.fileno(), news.set)
    try:
        while True:
            await news.wait()
            news.clear()
            try:
                knocking.receive()
            except PeerGone:
                return
    finally:
        loop.remove_reader(knocking.fileno())


async def feed_watchdog(notifier: Notifier, interval_s: float, check: SelfCheck) -> None:
    """WATCHDOG=1 twice per ``interval_s``, each after a check without fault; until cancelled, or for ever silent."""
    with contextlib.closing(check):
        while True:
            try:
                await check.run()
            except SelfCheckFailed as fault:
                logger.error("the daemon fails its own check, and the watchdog is not fed: %s", fault)
            else:
                notifier.watchdog()
            await asyncio.sleep(interval_s / 2)
