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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.bindings.memory.region import PAGE, Region
from offpath.bindings.ports import CopyCompletion, HostConnection
from offpath.bindings.wire import control
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.dpu_daemon.durability.notify import Notifier
from offpath.dpu_daemon.listening.accepting import is_exhaustion

if TYPE_CHECKING:
    from offpath.dpu_daemon.daemon import Daemon
    from offpath.dpu_daemon.ingress.negotiation import Negotiator

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
_OTHERS: Final = 2  # besides the check's own connection at least one more


class SelfCheckFailed(OffpathError):
    """A part of the daemon does not do what it is for."""


class Exhausted(SelfCheckFailed):
    """The check could not be made, or a listener refused it, because descriptors or memory ran out. The loop turns, and
    to start the process again would not give it more: this is no hang."""


class SelfCheck:
    """Asks the parts of one daemon. Owns two pages of memory until `close`."""

    def __init__(self, daemon: Daemon, negotiator: Negotiator) -> None:
        self._daemon = daemon
        self._negotiator = negotiator
        self._source = Region.create("offpath-check-source", PAGE)
        self._target = Region.create("offpath-check-target", PAGE)
        self._rounds = 0
        self._copy: asyncio.Future[CopyCompletion] | None = None
        """In flight, perhaps since a former round: its pages are the engine's until it has ended."""

    async def run(self) -> None:
        """Ask each part once; ends within twice `ANSWER_TIMEOUT_S`, and `FLOOD_PAUSE_S` for each listener.

        Raises: SelfCheckFailed: what does not work. Exhausted: nothing more than descriptors or memory is missing.
        """
        self._deadlines()
        before = self._daemon.counters["descriptors_exhausted"]
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._page()
        except TimeoutError:
            raise SelfCheckFailed(f"copy engine: a page has not arrived for {ANSWER_TIMEOUT_S:g} s") from None
        try:
            await self._listeners()
        except Exhausted:
            raise
        except SelfCheckFailed as fault:
            if self._daemon.counters["descriptors_exhausted"] == before:
                raise
            raise Exhausted(f"{fault}; meanwhile connections were refused for want of descriptors") from None

    async def _listeners(self) -> None:
        """One that lets others in during the check is at work, though the check may wait behind them all the time."""
        pending = self._daemon.host.pending
        parts: list[tuple[str, Callable[[], Awaitable[None]], Callable[[], int]]] = [
            (self._negotiator.endpoints.negotiate, self._negotiation, lambda: self._negotiator.accepted),
            *(
                (path, partial(self._hangs_up, "fabric", path), lambda: self._negotiator.fabric_accepted)
                for path in self._negotiator.fabric_paths()
            ),
            (self._daemon.host.listener.address, self._host_channel, lambda: pending.acceptor.taken),
        ]
        for path, query, accepted in parts:
            before = accepted()
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S / len(parts)):
                    await self._at(path, query)
            except Exhausted:
                raise
            except (TimeoutError, SelfCheckFailed) as fault:
                await asyncio.sleep(FLOOD_PAUSE_S)
                if accepted() >= before + _OTHERS:
                    continue
                if isinstance(fault, SelfCheckFailed):
                    raise
                waited_s = ANSWER_TIMEOUT_S / len(parts)
                raise SelfCheckFailed(f"a listener has not answered for {waited_s:.2g} s") from None

    async def _at(self, path: str, query: Callable[[], Awaitable[None]]) -> None:
        """``ask``, once more if the socket's file was removed meanwhile. A file that cannot be made anew is no fault
        that another start would mend; `places` has logged it, and connections that stand are served."""
        places = self._daemon.places
        places.look()
        if path in places.lost:
            return
        try:
            await query()
        except Exhausted:
            raise
        except SelfCheckFailed:
            if not places.look():
                raise
            if path not in places.lost:
                await query()

    async def _page(self) -> None:
        """A page's worth through the engine, different each time; one at a time."""
        if self._copy is not None:
            await asyncio.shield(self._copy)
        self._rounds += 1
        mark = self._rounds.to_bytes(8, "little")
        self._source.view[:8] = mark
        copy: asyncio.Future[CopyCompletion] = asyncio.get_running_loop().create_future()
        try:
            done = self._daemon.requests.copies.post(self._source, 0, self._target, 0, PAGE, self._copied, copy)
        except OffpathError as fault:
            raise SelfCheckFailed(f"copy engine: {fault}") from None
        if done is not None:
            self._copied(copy, done)
        else:
            self._copy = copy
        if not self._daemon.requests.engine.is_working():
            raise SelfCheckFailed("copy engine: its thread has ended, or its device is lost")
        ended = await asyncio.shield(copy)
        if ended.error is not None or self._target.view[:8] != mark:
            raise SelfCheckFailed("copy engine: a page did not arrive")

    def _copied(self, copy: asyncio.Future[CopyCompletion], done: CopyCompletion) -> None:
        self._copy = None
        self._daemon.requests.copies.own_bytes += PAGE if done.error is None else 0
        copy.set_result(done)

    def _deadlines(self) -> None:
        next_ns = self._daemon.requests.book.next_deadline_ns()
        late_ns = self._daemon.requests.now_ns() - next_ns if next_ns is not None else 0
        if late_ns > OVERDUE_NS:
            raise SelfCheckFailed(f"job book: a deadline has stood for {late_ns // 1_000_000} ms")

    async def _negotiation(self) -> None:
        """A stranger's hello must be refused; in a flood it is enough that others are let in."""
        try:
            said = await _exchange(self._negotiator.endpoints.negotiate, socket.SOCK_STREAM, _HELLO)
            body = next(iter(FrameReader().feed(said)), b"")
            answer = control.decode(control.TO_REQUESTER, body)
        except (OSError, OffpathError) as fault:
            _raise_if_exhausted("negotiation", fault)
            raise SelfCheckFailed(f"negotiation: {fault}") from None
        if not isinstance(answer, control.Refused):
            raise SelfCheckFailed(f"negotiation: {answer.kind} for a stranger's hello")

    async def _hangs_up(self, name: str, path: str) -> None:
        """A peer that connects and says nothing more must be let in and hung up on; a flood only makes it wait."""
        for _ in range(FLOOD_TRIES):
            try:
                await _exchange(path, socket.SOCK_SEQPACKET, b"")
                return
            except OSError as fault:
                if fault.errno == errno.ECONNRESET:
                    return  # let in, and hung up on at once
                _raise_if_exhausted(name, fault)
                if fault.errno != errno.EAGAIN:
                    raise SelfCheckFailed(f"{name}: {fault}") from None
            await asyncio.sleep(FLOOD_PAUSE_S)
        raise SelfCheckFailed(f"{name}: its queue stays full")

    async def _host_channel(self) -> None:
        """As `_hangs_up`, through whatever carries it."""
        for _ in range(FLOOD_TRIES):
            try:
                with contextlib.closing(self._daemon.host.listener.self_connect()) as self_probe:
                    await _hung_up(self_probe)
                return
            except OSError as fault:
                _raise_if_exhausted("host channel", fault)
                if fault.errno != errno.EAGAIN:
                    raise SelfCheckFailed(f"host channel: {fault}") from None
            except OffpathError as fault:
                raise SelfCheckFailed(f"host channel: {fault}") from None
            await asyncio.sleep(FLOOD_PAUSE_S)
        raise SelfCheckFailed("host channel: its queue stays full")

    def close(self) -> None:
        """Give the memory back; with a copy in flight when the engine has ended, with the daemon."""
        if self._copy is not None:
            self._daemon.closers += [self._source.close, self._target.close]
            return
        self._source.close()
        self._target.close()


def _raise_if_exhausted(name: str, fault: BaseException) -> None:
    """Raises: Exhausted: that is what the fault is."""
    if isinstance(fault, OSError) and is_exhaustion(fault):
        raise Exhausted(f"{name}: {fault}") from None


async def _exchange(path: str, kind: socket.SocketKind, message: bytes) -> bytes:
    """Connect, say it and nothing more; the first answer, empty for a hang-up. Raises: OSError."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
        sock.connect(path)  # a Unix socket connects at once or not at all
        if message:
            sock.send(message)
        else:
            sock.shutdown(socket.SHUT_WR)
        return await loop.sock_recv(sock, 4096)


async def _hung_up(self_probe: HostConnection) -> None:
    """Read what is said until the other end hangs up."""
    loop = asyncio.get_running_loop()
    news = asyncio.Event()
    loop.add_reader(self_probe.fileno(), news.set)
    try:
        while True:
            await news.wait()
            news.clear()
            try:
                self_probe.receive()
            except PeerGone:
                return
    finally:
        loop.remove_reader(self_probe.fileno())


async def feed_watchdog(notifier: Notifier, interval_s: float, check: SelfCheck) -> None:
    """WATCHDOG=1 at least each three quarters of ``interval_s``, as long as the last check that ended found no fault;
    until cancelled, or for ever silent.

    A check begins each half interval, if none is under way. It is waited for a quarter; one that takes longer (what a
    flood delays is no hang, and a check has a bound) leaves the word to the one before, or at first to READY=1.
    """
    loop = asyncio.get_running_loop()
    is_well = True
    checking: asyncio.Future[bool] | None = None
    with contextlib.closing(check):
        try:
            while True:
                next_s = loop.time() + interval_s / 2
                checking = checking or asyncio.ensure_future(_verdict(check))
                await asyncio.wait({checking}, timeout=interval_s / 4)
                if checking.done():
                    is_well, checking = checking.result(), None
                if is_well:
                    notifier.watchdog()
                await asyncio.sleep(next_s - loop.time())
        finally:
            if checking is not None:
                checking.cancel()


async def _verdict(check: SelfCheck) -> bool:
    """Whether the watchdog is to be fed."""
    try:
        await check.run()
    except Exhausted as fault:
        logger.warning(
            "self-check ran out of resources, which is no hang: %s",
            fault,
            extra={"code": "selfcheck_exhausted"},
        )
    except SelfCheckFailed as fault:
        logger.error("self-check failed, not feeding the watchdog: %s", fault, extra={"code": "selfcheck_failed"})
        return False
    return True
