"""Builds the daemon's components, connects them, and closes them in order.

The components pass events to the job book and its commands to the ports; they make no decisions. The request path uses
plain callbacks: no task per request, no log line; counters are summed at scrape time.
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
from offpath.dpu_daemon.hosts.ended_sequences import EndedSequences
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
"""Largest number in a message. Counters are capped to it: peer-driven sums must not make the others unreadable."""


class Daemon:
    """One running daemon: job book, copy engine, sessions, host side. Create it inside a running loop."""

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
        """Takes ownership of ``engine``; without one, the loopback engine copies. The simulation replaces ``now_ns``
        and ``token`` (a fresh secret at each call). ``book``: the result of replaying ``journal``, if it was replayed
        (see `recovery`)."""
        self.settings = ConfigInForce(config)
        self.identity = DaemonIdentity(journal, token)
        self.places = Places()
        self.store = store or Store(Notifier())
        """Session memory that outlives this process."""
        self.counters: Counter[str] = Counter()
        self.counters["restarts"] = journal.restarts if journal is not None else 0
        self.closers: list[Callable[[], None]] = []
        """Called when the daemon closes, after its own parts are closed."""
        self._loop = asyncio.get_running_loop()
        book = book or JobBook(
            config.tenant_specs(), make(config.leasing.policy), config.book_settings(), config.pins()
        )
        book_loop = BookLoop(book, now_ns, journal, self.counters)
        book_loop.spinner.limit(config.datapath.spin_us)
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
            book_loop, answers, pacing, self.store, self.counters, lambda: self.settings.config.limits
        )
        ended = EndedSequences(book_loop, lanes, self._loop.call_later)
        payloads = Payloads(book_loop, copies, answers.refs, lanes, ended)
        reattachment = Reattachment(
            book_loop, lanes, ended, config.durability, payloads.in_flight, answers.give_up_unwritten
        )
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
        """Increment a counter of `statistics`."""
        self.counters[what] += 1

    @property
    def is_draining(self) -> bool:
        """True while new sessions and jobs are refused."""
        return self.requests.book.ledger.is_draining

    def _why_not_ready(self) -> str:
        """The reason why new work is refused; empty: it is accepted."""
        if self.is_draining:
            return "draining"
        return "" if self.host.has_helper() else "no helper has joined"

    def drain(self, is_on: bool) -> None:
        """Refuse new sessions and jobs and finish the accepted ones, or accept new ones again."""
        if is_on is not self.is_draining:
            logger.warning(
                "draining: accepting no new sessions or jobs" if is_on else "drain cancelled, accepting work again"
            )
            self.requests.book_loop.dispatch(events.Drain(is_on))

    def reconfigure(self, config: DaemonConfig) -> None:
        """Apply another configuration. Settings that cannot change live must be unchanged in it."""
        self.settings.replace(config)
        self.requests.pacing.weigh((table.name, table.weight) for table in config.tenant)
        self.host.limits_changed()
        self.requests.book_loop.spinner.limit(config.datapath.spin_us)
        self.requests.book_loop.dispatch(
            events.ConfigChanged(config.tenant_specs(), config.book_settings(), config.pins())
        )
        self.plugin.adopt()
        for notify in self.settings.on_changed:
            notify()

    def statistics(self) -> dict[str, int]:
        """Counters since the start. ``header_bytes_read`` and ``answer_bytes_written`` are the only bytes of requests
        and results that the daemon's CPU touches; ``dma_bytes`` are moved by the copy engine;
        of these, ``cpu_copied_bytes`` by the daemon's CPU."""
        counters = Counter(self.counters)
        for session in self.requests.sessions.by_number.values():
            counters["header_bytes_read"] += session.fabric.header_bytes_read
            counters["answer_bytes_written"] += session.fabric.answer_bytes_written
        counters["dma_bytes"] = self.requests.copies.bytes_copied
        counters["cpu_copied_bytes"] = self.requests.copies.bytes_by_cpu
        counters["spins"] = self.requests.book_loop.spinner.spins
        counters["spin_hits"] = self.requests.book_loop.spinner.hits
        for state, count in self.requests.answers.ended.items():
            counters[f"ended_{state.name.lower()}"] = count
        return {name: min(count, _LARGEST) for name, count in sorted(counters.items())}

    @property
    def is_durable(self) -> bool:
        """True if sessions and accepted jobs outlive this process."""
        return self.requests.book_loop.journal is not None and self.store.notifier.has_manager

    def close(self) -> None:
        """Stop at once: sessions first, then the host side. Durable state is left in place for the next process."""
        self.requests.sessions.close(is_final=not self.is_durable)
        self._loop.remove_reader(self.requests.engine.fileno())
        self.requests.engine.close()  # before the helper is disconnected: no copy may land in memory that it scrubs
        self.host.close(is_final=not self.is_durable)
        self.requests.book_loop.close(is_final=not self.store.notifier.has_manager)
        self.requests.probe.close()
        self.store.close()
        self.plugin.close()
        self.requests.pacing.close()
        for closer in self.closers:
            closer()
