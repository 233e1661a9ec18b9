"""The daemon's shell as a whole: it makes the parts and connects them, and ends them in order.

The parts carry events to the job book and its commands to the ports; they decide nothing. On the request path: plain
callbacks, no task per request, no log line, counters folded at scrape.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from offpath.bindings.loopback.copy import LoopbackCopyEngine
from offpath.bindings.ports import CopyEngine, HostListener
from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.config.in_force import ConfigInForce
from offpath.dpu_daemon.durability.identity import DaemonIdentity
from offpath.dpu_daemon.durability.journal.gauges import journal_metrics
from offpath.dpu_daemon.durability.journal.log import Journal
from offpath.dpu_daemon.durability.notify import Notifier
from offpath.dpu_daemon.durability.storing import Store, store_metrics
from offpath.dpu_daemon.hosts.host import HostSide
from offpath.dpu_daemon.hosts.kernels import KernelRegistry
from offpath.dpu_daemon.hosts.lanes import Lanes
from offpath.dpu_daemon.hosts.payloads import Payloads
from offpath.dpu_daemon.hosts.reattach import Reattachment
from offpath.dpu_daemon.listening.places import Places
from offpath.dpu_daemon.policy.plugins import PluginSlot, plugin_metrics
from offpath.dpu_daemon.requests.answers import Answers
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.copies import Copies
from offpath.dpu_daemon.requests.pacing import Pacing
from offpath.dpu_daemon.requests.path import RequestPath
from offpath.dpu_daemon.requests.probe import PathProbe
from offpath.dpu_daemon.requests.session_table import SessionTable
from offpath.sched.gpu.registry import make
from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook

logger = logging.getLogger(__name__)
_LARGEST: Final = (1 << 64) - 1
"""Of a number in a message: what peers say adds up, and must not keep an operator from the other counters."""


class Daemon:
    """One running daemon: job book, copy engine, sessions, host side. Made inside a running loop."""

    def __init__(
        self,
        config: DaemonConfig,
        channel: HostListener,
        *,
        engine: CopyEngine | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        token: Callable[[], str] = lambda: secrets.token_urlsafe(32),
        journal: Journal | None = None,
        book: JobBook | None = None,
        store: Store | None = None,
    ) -> None:
        """``engine`` is the daemon's own from here on; without one it copies by loopback. ``now_ns`` and ``token`` (a
        fresh secret at each call) are arguments for the simulation, which brings its own world. ``book`` is the one
        that ``journal`` was replayed to, if it was (see `recovery`)."""
        self.settings = ConfigInForce(config)
        self.identity = DaemonIdentity(journal, token)
        self.places = Places()
        self.store = store or Store(Notifier())
        """What of the sessions' memory outlives this process."""
        self.counters: Counter[str] = Counter()
        self.counters["restarts"] = journal.restarts if journal is not None else 0
        self.closers: list[Callable[[], None]] = []
        """Called when the daemon closes, after its own parts."""
        self._loop = asyncio.get_running_loop()
        book = book or JobBook(
            config.tenant_specs(), make(config.leasing.policy), config.book_settings(), config.pins()
        )
        book_loop = BookLoop(book, now_ns, journal, self.counters)
        copies = Copies(engine or LoopbackCopyEngine())
        pacing = Pacing(now_ns)
        pacing.weigh((table.name, table.weight) for table in config.tenant)
        self.plugin = PluginSlot(book_loop, lambda: self.settings.config.leasing.policy, self.counters)
        self.metrics: dict[str, tuple[str, Callable[[], float]]] = (
            journal_metrics(book_loop) | plugin_metrics(self.plugin) | store_metrics(self.store)
        )
        """See `offpath.dpu_daemon.operation.metrics.Extra`."""
        lanes = Lanes(book_loop, copies, pacing, self.counters, self.identity.order_token, config.datapath.copy_engine)
        answers = Answers(book_loop, copies, lanes, self.counters)
        sessions = SessionTable(
            book_loop, answers.track, pacing, self.store, self.counters, lambda: self.settings.config.limits
        )
        payloads = Payloads(book_loop, copies, answers.refs, lanes)
        reattachment = Reattachment(book_loop, lanes, config.durability, payloads.in_flight, answers.give_up_unwritten)
        kernels = KernelRegistry(book.ledger)
        self.host = HostSide(
            channel, book_loop, lanes, reattachment, kernels, copies, self.counters, self.settings,
            lambda: self.is_durable,
        )  # fmt: skip
        lanes.attach(answers, reattachment, self.host)
        probe = PathProbe(book_loop, copies, self._why_not_ready)
        self.requests = RequestPath(sessions, pacing, book_loop, copies, answers, probe)
        self._loop.add_reader(copies.engine.fileno(), copies.poll)
        if journal is not None:
            journal.checkpoint(book, now_ns())

    def count(self, what: str) -> None:
        """One more in `statistics`."""
        self.counters[what] += 1

    @property
    def is_draining(self) -> bool:
        """True while nothing new is taken in."""
        return self.requests.book.ledger.is_draining

    def _why_not_ready(self) -> str:
        """Why nothing new is accepted; empty: it is."""
        if self.is_draining:
            return "draining"
        return "" if self.host.has_helper() else "no helper has joined"

    def drain(self, is_on: bool) -> None:
        """Take in nothing new and finish what is there, or take in again."""
        if is_on is not self.is_draining:
            logger.warning(
                "draining: accepting no new sessions or jobs" if is_on else "drain cancelled, accepting work again"
            )
            self.requests.book_loop.dispatch(events.Drain(is_on))

    def reconfigure(self, config: DaemonConfig) -> None:
        """Another configuration is in force from here on. What cannot change live must be as it was."""
        self.settings.replace(config)
        self.requests.pacing.weigh((table.name, table.weight) for table in config.tenant)
        self.host.limits_changed()
        self.requests.book_loop.dispatch(
            events.ConfigChanged(config.tenant_specs(), config.book_settings(), config.pins())
        )
        self.plugin.adopt()
        for notify in self.settings.on_changed:
            notify()

    def statistics(self) -> dict[str, int]:
        """Counters since the start. ``header_bytes_read`` and ``answer_bytes_written`` is all that the daemon's CPU
        touches of requests and results; ``dma_bytes`` is what the copy engine moved."""
        counters = Counter(self.counters)
        for session in self.requests.sessions.by_number.values():
            counters["header_bytes_read"] += session.fabric.header_bytes_read
            counters["answer_bytes_written"] += session.fabric.answer_bytes_written
        counters["dma_bytes"] = self.requests.copies.bytes_copied
        for state, count in self.requests.answers.ended.items():
            counters[f"ended_{state.name.lower()}"] = count
        return {name: min(count, _LARGEST) for name, count in sorted(counters.items())}

    @property
    def is_durable(self) -> bool:
        """Sessions and accepted work outlive this process."""
        return self.requests.book_loop.journal is not None and self.store.notifier.has_manager

    def close(self) -> None:
        """End at once: sessions first, then the host side. What is durable is only left alone: the next process goes
        on with it."""
        self.requests.sessions.close(is_final=not self.is_durable)
        self._loop.remove_reader(self.requests.engine.fileno())
        self.requests.engine.close()  # before the helper is let go: nothing may land where it scrubs
        self.host.close(is_final=not self.is_durable)
        self.requests.book_loop.close(is_final=not self.store.notifier.has_manager)
        self.requests.probe.close()
        self.store.close()
        self.plugin.close()
        self.requests.pacing.close()
        for closer in self.closers:
            closer()
