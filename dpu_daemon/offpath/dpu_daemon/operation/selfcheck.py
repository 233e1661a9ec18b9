"""Checks the daemon's real data path before each WATCHDOG=1, so that health does not depend on a timer alone.

The check runs on the event loop. It verifies that the copy engine copies, that each listener accepts and answers a
connection, and that the job book's earliest deadline is not overdue. It takes well under 1 ms of the loop and counts no
violation.
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
from offpath.bindings.wire import control, negotiating
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
"""A book deadline overdue for this long was forgotten, not delayed by a busy loop."""
_HELLO: Final = frame(
    control.encode(
        # No tenant can have this name: the hello is processed until "denied" and counts as no tenant's failed attempt.
        negotiating.Hello(client="self-check", tenant="Self:Check", slots=1, payload_bytes=0, result_bytes=0)
    )
)
_OTHERS: Final = 2  # the check's own connection and at least one more


class SelfCheckFailed(OffpathError):
    """A part of the daemon does not work."""


class Exhausted(SelfCheckFailed):
    """Descriptors or memory ran out, so the check could not be made or a listener refused it. This is not a hang: the
    loop runs, and a restart would not free resources."""


class SelfCheck:
    """Checks the parts of one daemon. Owns two pages of memory until `close`."""

    def __init__(self, daemon: Daemon, negotiator: Negotiator) -> None:
        self._daemon = daemon
        self._negotiator = negotiator
        self._source = Region.create("offpath-check-source", PAGE)
        self._target = Region.create("offpath-check-target", PAGE)
        self._rounds = 0
        self._copy: asyncio.Future[CopyCompletion] | None = None

    """The copy in flight, possibly from an earlier round. The engine uses both pages until it ends."""

    async def run(self) -> None:
        """Check each part once. Ends within twice `ANSWER_TIMEOUT_S` plus `FLOOD_PAUSE_S` per listener.

        Raises: SelfCheckFailed: names the part that fails. Exhausted: only descriptors or memory are missing.
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
            raise Exhausted(f"{fault}; meanwhile connections were refused because descriptors ran out") from None

    async def _listeners(self) -> None:
        """Check every listener. One that accepts other connections meanwhile passes, even if this check must queue."""
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
        """Runs ``query``, and once more if the socket file was removed meanwhile. A file that cannot be created again
        is not a failure: a restart would not help, `places` has logged it, and open connections are served."""
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
        """Copies one page through the engine, with new contents each time; one copy at a time."""
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
            raise SelfCheckFailed(f"job book: a deadline is overdue by {late_ns // 1_000_000} ms")

    async def _negotiation(self) -> None:
        """The hello of an unknown tenant must be refused. In a flood it is enough that other peers are accepted."""
        try:
            received = await _exchange(self._negotiator.endpoints.negotiate, socket.SOCK_STREAM, _HELLO)
            body = next(iter(FrameReader().feed(received)), b"")
            answer = control.decode(negotiating.TO_REQUESTER, body)
        except (OSError, OffpathError) as fault:
            _raise_if_exhausted("negotiation", fault)
            raise SelfCheckFailed(f"negotiation: {fault}") from None
        if not isinstance(answer, negotiating.Refused):
            raise SelfCheckFailed(f"negotiation: unexpected answer {answer.kind} to the hello of an unknown tenant")

    async def _hangs_up(self, name: str, path: str) -> None:
        """A peer that connects and sends nothing must be accepted and disconnected; in a flood it only waits longer."""
        for _ in range(FLOOD_TRIES):
            try:
                await _exchange(path, socket.SOCK_SEQPACKET, b"")
                return
            except OSError as fault:
                if fault.errno == errno.ECONNRESET:
                    return  # accepted, and closed at once
                _raise_if_exhausted(name, fault)
                if fault.errno != errno.EAGAIN:
                    raise SelfCheckFailed(f"{name}: {fault}") from None
            await asyncio.sleep(FLOOD_PAUSE_S)
        raise SelfCheckFailed(f"{name}: its queue stays full")

    async def _host_channel(self) -> None:
        """As `_hangs_up`, over any transport of the host channel."""
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
        """Release the memory. With a copy in flight, it is released when the daemon closes and the engine has ended."""
        if self._copy is not None:
            self._daemon.closers += [self._source.close, self._target.close]
            return
        self._source.close()
        self._target.close()


def _raise_if_exhausted(name: str, fault: BaseException) -> None:
    """Raises: Exhausted: if the fault is resource exhaustion."""
    if isinstance(fault, OSError) and is_exhaustion(fault):
        raise Exhausted(f"{name}: {fault}") from None


async def _exchange(path: str, kind: socket.SocketKind, message: bytes) -> bytes:
    """Connect, send ``message`` only and return the first reply; empty if the peer closes. Raises: OSError."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
        sock.connect(path)  # a Unix socket connects at once or not at all
        if message:
            sock.send(message)
        else:
            sock.shutdown(socket.SHUT_WR)
        return await loop.sock_recv(sock, 4096)


async def _hung_up(self_probe: HostConnection) -> None:
    """Read until the peer closes the connection."""
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
    """Sends WATCHDOG=1 at least every three quarters of ``interval_s`` while the last completed check found no fault.
    Runs until cancelled, and sends nothing while checks fail.

    A check starts every half interval unless one is running. The loop waits a quarter interval for it. A slower check
    is not a hang (a flood delays it, and its time is bounded); until it ends, the result of the previous check applies,
    at first that of READY=1.
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
    """Whether to send WATCHDOG=1."""
    try:
        await check.run()
    except Exhausted as fault:
        logger.warning(
            "self-check ran out of resources (not a hang): %s",
            fault,
            extra={"code": "selfcheck_exhausted"},
        )
    except SelfCheckFailed as fault:
        logger.error("self-check failed, not feeding the watchdog: %s", fault, extra={"code": "selfcheck_failed"})
        return False
    return True
