"""The threads that poll Comch, which has no notifications and is not thread-safe.

All calls of one engine run in its thread, from opening to closing. Other threads put work into its queue, which also
wakes it; received frames are delivered whole, in mailboxes. The thread sends heartbeats, detects silent peers, and
disconnects peers that break the protocol of this layer: invalid pieces, a flood, or no session in time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Final

from offpath.bindings.channel.session import WINDOW
from offpath.bindings.doca._abi_ctx import State
from offpath.bindings.doca.comch import (
    ComchClient,
    ComchServer,
    Disconnected,
    Event,
    Received,
    SendFailed,
)
from offpath.bindings.doca.device import Ability, Device, open_device, open_representor
from offpath.bindings.doca.engine import Engine
from offpath.bindings.doca.load import load
from offpath.bindings.doca.mailbox import Mailbox
from offpath.bindings.doca.pace import SHORTEST_NS, Pace
from offpath.bindings.doca.pieces import HEARTBEAT, LEAST_BYTES, MOST_BYTES, Assembly, cut, most_pieces
from offpath.bindings.errors import DeviceError, DocaError, HostMessageError, OffpathError, PeerGone

logger = logging.getLogger(__name__)
HEARTBEAT_NS: Final = 200_000_000
LOSS_NS: Final = 3_000_000_000
"""A peer is lost after this long without a message. Its end is mostly reported at once; this detects a hung peer. It is
long because a kernel that holds the GIL delays heartbeats."""
OPEN_NS: Final = 5_000_000_000
"""Time for a client to begin a session."""
LINGER_NS: Final = 500_000_000
"""Time for a dismissed peer to leave by itself; messages to it may still be in flight."""
_LOOK_NS: Final = 50_000_000
_JOIN_S: Final = 5.0
_SHARE: Final = 16
"""Tasks of one connection at once, so that a host that receives nothing leaves some to the others."""
MOST_WAITING: Final = 4 * WINDOW
"""Frames queued per direction: a session's window, and its control frames."""


class Link:
    """One connection in its poller. Other threads call `send` and `leave` only."""

    def __init__(self, poller: Poller, number: int, now_ns: int) -> None:
        self._poller = poller
        self.number: Final = number
        self.mailbox: Mailbox[bytes] | None = None
        """Where its frames go; None: no session has begun."""
        self.assembly: Final = Assembly()
        self.out: Final[deque[bytes]] = deque()
        self.received_ns = self.sent_ns = now_ns
        self.leave_ns = now_ns + OPEN_NS
        """When it is disconnected; 0: not scheduled."""
        self.fault: PeerGone | None = None
        """A send failed: nothing more is sent to it."""
        self.cut_ns = 0
        """When it is expelled for `fault`, unless DOCA reports its end before; 0: not scheduled."""

    def send(self, frame: bytes) -> None:
        """Queue a frame after the earlier ones."""
        self._poller.do(partial(self._poller.queue, self, frame))

    def leave(self, *, at_once: bool) -> None:
        """Close after the earlier frames, or at once. Nothing more is received from it."""
        self._poller.do(partial(self._poller.dismiss, self, 0 if at_once else LINGER_NS))


class Poller:
    """A thread and its work queue. The subclasses implement server and client."""

    def __init__(self, name: str) -> None:
        self._work: deque[Callable[[], object]] = deque()
        self._nap = threading.Lock()
        """Unlocked when there may be work. (`SimpleQueue.get` sometimes misses its time-out: observed in Python
        3.11.)"""
        self._nap.acquire()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.links: dict[int, Link] = {}
        self._outgoing: set[Link] = set()
        self._is_ending = False
        self._looked_ns = 0
        self.fault: OffpathError | None = None
        """Why it ended unexpectedly."""

    # -- from other threads -------------------------------------------------------------------------------------------
    def start(self, timeout_s: float) -> None:
        """Start the thread; return when it is open. Raises: as `_open`. TimeoutError: it is still trying."""
        self._thread.start()
        try:
            self._started.result(timeout_s)
        except TimeoutError:
            self.do(self._abandon)
            raise
        except BaseException:
            self._thread.join(_JOIN_S)
            raise

    def do(self, work: Callable[[], object]) -> None:
        """Run ``work`` in the thread, soon and in order. Does not block."""
        self._work.append(work)
        with contextlib.suppress(RuntimeError):  # the thread is awake, or about to be
            self._nap.release()

    @property
    def is_alive(self) -> bool:
        """The thread is polling."""
        return self._thread.is_alive() and self.fault is None

    def stop(self) -> None:
        """Accept no more links, and end once the last has left. Does not block."""
        self.do(self._end)

    def close(self) -> None:
        """`stop`, and wait a bounded time for the end. Idempotent."""
        self.stop()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                logger.warning("%s does not end; it is inside a DOCA call", self._thread.name)

    def _end(self) -> None:
        self._is_ending = True
        for link in list(self.links.values()):
            if link.mailbox is None:
                self.dismiss(link, 0)

    def _abandon(self) -> None:
        """The thread opened after the time-out: close everything."""
        self._end()
        for link in list(self.links.values()):
            self.dismiss(link, 0)

    # -- the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        with ExitStack() as held:
            held.callback(self._lose_all)
            try:
                self._open(held)
            except BaseException as fault:
                self._started.set_exception(fault)
                return
            self._started.set_result(None)
            pace = Pace(time.monotonic_ns())
            self._looked_ns = time.monotonic_ns()
            try:
                while not (self._is_ending and not self.links):
                    moved = self._take_work(pace.nap_ns(time.monotonic_ns()))
                    moved = self._turn() or moved
                    now_ns = time.monotonic_ns()
                    if moved:
                        pace.moved(now_ns)
                    if now_ns - self._looked_ns >= _LOOK_NS:
                        self._look(now_ns)
            except OffpathError as fault:
                self.fault = fault

    def _take_work(self, nap_ns: int) -> bool:
        """Run queued work; wait at most ``nap_ns`` for it. False: there was none."""
        if nap_ns and not self._work:
            self._nap.acquire(timeout=nap_ns / 1e9)
        if not self._work:
            return False
        while self._work:
            self._work.popleft()()
        return True

    def _turn(self) -> bool:
        """Process events and send queued pieces. False: nothing moved. Raises: DeviceError."""
        now_ns = 0
        moved = False
        for event in self._poll():
            moved = True
            now_ns = now_ns or time.monotonic_ns()
            self._happened(event, now_ns)
        for link in list(self._outgoing):
            moved = self._send(link) or moved
        return moved

    def _happened(self, event: Event, now_ns: int) -> None:
        if isinstance(event, Disconnected):
            self._gone(event.connection, "disconnected")
        elif isinstance(event, SendFailed):
            if (link := self.links.get(event.connection)) is not None:
                self._cut(link, PeerGone(f"host channel: {event.fault}"))
        else:
            link = self.links.get(event.connection) or self._arrived(event.connection, now_ns)
            if isinstance(event, Received):
                self._received(link, event.message, now_ns)

    def _arrived(self, number: int, now_ns: int) -> Link:
        link = self.links[number] = Link(self, number, now_ns)
        if self._is_ending:
            self.dismiss(link, 0)
        return link

    def _received(self, link: Link, piece: bytes, now_ns: int) -> None:
        link.received_ns = now_ns
        if link.leave_ns and (link.mailbox is not None or self._is_ending):
            return  # dismissed: its frames have no receiver
        try:
            frame = link.assembly.add(piece)
            if frame is None:
                return
            if link.mailbox is None:
                self._opened(link, frame)
            elif not link.mailbox.put(frame):
                raise HostMessageError("flood", f"more than {MOST_WAITING} unread frames")
        except HostMessageError as fault:
            self.expel(link, fault)

    def _send(self, link: Link) -> bool:
        """Send queued pieces while there is capacity. False: nothing moved."""
        moved = False
        while link.out and self._under_way(link) < _SHARE:
            try:
                if not self._sent(link, link.out[0]):
                    break
            except (PeerGone, DocaError) as fault:
                self._cut(link, PeerGone(f"host channel: {fault}"))
                break
            link.out.popleft()
            link.sent_ns = time.monotonic_ns()
            moved = True
        if not link.out:
            self._outgoing.discard(link)
        return moved

    def queue(self, link: Link, frame: bytes) -> None:
        """Queue a frame for sending."""
        if link.number not in self.links or link.fault is not None:
            return
        pieces = cut(frame, self._piece_bytes())
        if len(link.out) > MOST_WAITING * most_pieces(self._piece_bytes()):
            self.expel(link, PeerGone("host channel: the peer reads nothing but causes replies"))
            return
        link.out.extend(pieces)
        self._outgoing.add(link)

    def _cut(self, link: Link, fault: PeerGone) -> None:
        """A send failed: send nothing more, because it would arrive without the message that failed.

        DOCA may report messages that a peer sent before its end only after the failed send, so receiving continues for
        `LINGER_NS`.
        """
        link.out.clear()
        if link.leave_ns:
            self.dismiss(link, 0)
        elif link.fault is None:
            link.fault = fault
            link.cut_ns = time.monotonic_ns() + LINGER_NS

    def dismiss(self, link: Link, linger_ns: int) -> None:
        """Disconnect it after ``linger_ns`` at the latest."""
        if link.number not in self.links:
            return
        link.leave_ns = time.monotonic_ns() + linger_ns
        if not linger_ns:
            link.out.clear()
            self._show_out(link)

    def expel(self, link: Link, fault: HostMessageError | PeerGone) -> None:
        """Disconnect a peer that broke the protocol or is lost."""
        if link.mailbox is not None:
            link.mailbox.lose(fault)
        self.dismiss(link, 0)

    def _gone(self, number: int, why: str) -> None:
        link = self.links.pop(number, None)
        if link is not None:
            self._outgoing.discard(link)
            if link.mailbox is not None:
                link.mailbox.lose(link.fault or PeerGone(f"host channel: {why}"))

    def _look(self, now_ns: int) -> None:
        """Periodic check for silent peers, overdue dismissals, and heartbeats to send. Raises: DeviceError."""
        asleep_ns = now_ns - self._looked_ns - _LOOK_NS
        self._looked_ns = now_ns
        self._check()
        for link in list(self.links.values()):
            link.received_ns += max(0, asleep_ns)  # this thread slept, so the silence is not the peer's
            if link.leave_ns and now_ns >= link.leave_ns + LINGER_NS:
                self._gone(link.number, "dismissed")  # DOCA did not report its end
            elif link.leave_ns and now_ns >= link.leave_ns:
                self._show_out(link)
            elif link.fault is not None and now_ns >= link.cut_ns:
                self.expel(link, link.fault)
            elif now_ns - link.received_ns > LOSS_NS:
                self.expel(link, PeerGone(f"host channel: silent for {LOSS_NS / 1e9:g} s"))
            elif (
                now_ns - link.sent_ns > HEARTBEAT_NS
                and not link.out
                and link.mailbox is not None
                and link.fault is None
            ):
                link.out.append(HEARTBEAT)
                self._outgoing.add(link)

    def _lose_all(self) -> None:
        for number in list(self.links):
            self._gone(number, str(self.fault or "its poller has ended"))

    # -- server or client ---------------------------------------------------------------------------------------------
    @abstractmethod
    def _open(self, held: ExitStack) -> None:
        """In the thread. Raises: DocaError, DeviceGone, PeerGone."""

    @abstractmethod
    def _poll(self) -> list[Event]:
        """The events since the last call. Raises: DocaError, DeviceGone."""

    @abstractmethod
    def _check(self) -> None:
        """Raises: DeviceError: it has failed."""

    @abstractmethod
    def _sent(self, link: Link, piece: bytes) -> bool:
        """Send a piece. False: no capacity. Raises: PeerGone, DocaError."""

    @abstractmethod
    def _under_way(self, link: Link) -> int:
        """Pieces that have not been delivered."""

    @abstractmethod
    def _piece_bytes(self) -> int:
        """The longest message."""

    @abstractmethod
    def _opened(self, link: Link, frame: bytes) -> None:
        """The first frame of a link. Raises: HostMessageError: it begins no session."""

    @abstractmethod
    def _show_out(self, link: Link) -> None:
        """Disconnect the link, whose time is over. May be called again."""


def _closed(device: Device, engine: Engine) -> None:
    """Close both. What DOCA refuses to close stays open until the process ends."""
    for handle in (device, engine):
        try:
            handle.close()
        except DeviceError as fault:
            logger.warning("Comch: %s", fault)


class ServerPoller(Poller):
    """The daemon's poller. Calls ``begin`` in the thread, with each link's first frame."""

    def __init__(
        self, path: str, device: str, representor: str, name: str, begin: Callable[[Link, bytes], None]
    ) -> None:
        super().__init__("comch-server")
        self._path, self._device, self._representor, self._name = path, device, representor, name
        self._begin = begin
        self.function = ""
        """The host's function that is served, once it is open."""

    def _open(self, held: ExitStack) -> None:
        doca = load(self._path)
        device = open_device(doca, Ability.SERVE, self._device)
        try:
            engine = Engine(doca)
        except BaseException:
            device.close()
            raise
        held.callback(_closed, device, engine)
        representor = open_representor(device, self._representor)
        self.function = representor.pci
        self._server = ComchServer(device, representor, engine, self._name, MOST_BYTES)
        _check_size(self._server.message_bytes)

    def _poll(self) -> list[Event]:
        return self._server.poll()

    def _check(self) -> None:
        if self._server.state is not State.RUNNING:
            raise DocaError("Comch server", f"it changed to {self._server.state.name} unexpectedly")

    def _sent(self, link: Link, piece: bytes) -> bool:
        return self._server.send(link.number, piece)

    def _under_way(self, link: Link) -> int:
        return self._server.under_way(link.number)

    def _piece_bytes(self) -> int:
        return self._server.message_bytes

    def _opened(self, link: Link, frame: bytes) -> None:
        self._begin(link, frame)

    def _show_out(self, link: Link) -> None:
        try:
            self._server.disconnect(link.number)  # `Disconnected` follows; if not, the next check retries
        except DocaError as fault:
            logger.debug("Comch: %s", fault)


class ClientPoller(Poller):
    """A host process's poller, with one link, which exists when `start` returns."""

    def __init__(self, path: str, device: str, name: str, mailbox: Mailbox[bytes], timeout_s: float) -> None:
        super().__init__("comch-client")
        self._path, self._device, self._name, self._timeout_s = path, device, name, timeout_s
        self._mailbox = mailbox

    @property
    def link(self) -> Link:
        """The only link."""
        return self._link

    def _open(self, held: ExitStack) -> None:
        until_ns = time.monotonic_ns() + int(self._timeout_s * 1e9)
        doca = load(self._path)
        device = open_device(doca, Ability.CONNECT, self._device)
        try:
            engine = Engine(doca)
        except BaseException:
            device.close()
            raise
        held.callback(_closed, device, engine)
        self._client = ComchClient(device, engine, self._name, MOST_BYTES)
        _check_size(self._client.message_bytes)
        while not (number := self._client.connection()):
            if time.monotonic_ns() > until_ns:
                raise PeerGone(f"Comch has not connected in {self._timeout_s:g} s")
            if not self._client.poll():
                time.sleep(SHORTEST_NS / 1e9)
        self._link = self.links[number] = Link(self, number, time.monotonic_ns())
        self._link.leave_ns = 0
        self._link.mailbox = self._mailbox

    def _poll(self) -> list[Event]:
        events, link = self._client.poll(), self._link
        if self._client.state is not State.RUNNING:
            events.append(Disconnected(link.number))
            self._is_ending = True
        elif link.leave_ns and not link.out and not self._under_way(link):
            self._show_out(link)
        return events

    def _check(self) -> None:
        """`_poll` checks."""

    def _sent(self, link: Link, piece: bytes) -> bool:
        return self._client.send(link.number, piece)

    def _under_way(self, link: Link) -> int:
        return self._client.under_way(link.number)

    def _piece_bytes(self) -> int:
        return self._client.message_bytes

    def _opened(self, link: Link, frame: bytes) -> None:
        """A server begins no session: its frames go to the mailbox from the first on."""

    def _show_out(self, link: Link) -> None:
        """Ending the thread closes the link."""
        self._gone(link.number, "closed")
        self._is_ending = True


def _check_size(nbytes: int) -> None:
    if nbytes < LEAST_BYTES:
        raise DocaError("Comch", f"messages of {nbytes} bytes are too short")
