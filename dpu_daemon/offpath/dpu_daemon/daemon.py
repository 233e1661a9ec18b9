"""The daemon's shell as a whole: it makes the parts and connects them, and ends them in order.

The parts carry events to the job book and its commands to the ports; they decide nothing. On the request path: plain
callbacks, no task per request, no log line, counters folded at scrape.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from offpath.bindings.loopback.copy import LoopbackCopyEngine
from offpath.bindings.ports import CopyEngine, HostListener
from offpath.dpu_daemon.config import DaemonConfig
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
        notifier: Notifier | None = None,
        store: Store | None = None,
    ) -> None:
        """``engine`` is the daemon's own from here on; without one it copies by loopback. ``now_ns`` and ``token`` (a
        fresh secret at each call) are arguments for the simulation, which brings its own world. ``book`` is the one
        that ``journal`` was replayed to, if it was (see `recovery`)."""
        self.config = config
        self.now_ns = now_ns
        self.token = token
        self.notifier = notifier or Notifier()
        self.places = Places()
        self.store = store or Store(self.notifier)
        """What of the sessions' memory outlives this process."""
        self.lineage = journal.identity.lineage if journal is not None else secrets.token_hex(8)
        self._secret = journal.identity.secret if journal is not None else secrets.token_bytes(32)
        self.counters: Counter[str] = Counter()
        self.counters["restarts"] = journal.restarts if journal is not None else 0
        self.book = book or JobBook(
            config.tenant_specs(), make(config.leasing.policy), config.book_settings(), config.pins()
        )
        self.book_loop = BookLoop(self.book, now_ns, journal, self.counters)
        self.engine: CopyEngine = engine or LoopbackCopyEngine()
        self.copies = Copies(self.engine)
        self.kernels = KernelRegistry(self.book.ledger)
        self.pacing = Pacing(now_ns)
        self.pacing.weigh((table.name, table.weight) for table in config.tenant)
        self.config_generation = 1
        self.is_last_good = False
        """At this start the sources were refused, and none was taken in since."""
        self.extra_metrics: dict[str, tuple[str, Callable[[], float]]] = journal_metrics(self.book_loop)
        """See `offpath.dpu_daemon.operation.metrics.Extra`."""
        self.on_reconfigured: list[Callable[[], None]] = []
        self.on_closed: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        self.plugin = PluginSlot(self.book_loop, lambda: self.config.leasing.policy, self.counters)
        self.extra_metrics |= plugin_metrics(self.plugin)
        self.extra_metrics |= store_metrics(self.store)
        self.lanes = Lanes(
            self.book_loop, self.copies, self.pacing, self.counters, self.order_token, config.datapath.copy_engine
        )
        self.answers = Answers(self.book_loop, self.copies, self.lanes, self.counters)
        self.sessions = SessionTable(
            self.book_loop, self.answers.track, self.pacing, self.store, self.counters, lambda: self.config.limits
        )
        self.payloads = Payloads(self.book_loop, self.copies, self.answers.refs, self.lanes)
        self.reattachment = Reattachment(
            self.book_loop, self.lanes, config.durability, self.payloads.in_flight, self.answers.give_up_unwritten
        )
        self.host = HostSide(
            channel, self.book_loop, self.lanes, self.reattachment, self.kernels, self.copies, self.counters, self
        )
        self.lanes.attach(self.answers, self.reattachment, self.host)
        self.probe = PathProbe(self.book_loop, self.copies, self._why_not_ready)
        self._loop.add_reader(self.engine.fileno(), self.copies.poll)
        if journal is not None:
            journal.checkpoint(self.book, self.now_ns())

    def order_token(self, lease: int, generation: int) -> str:
        """What the workers of a lease prove themselves with; the same after a restart."""
        return hmac.new(self._secret, f"{lease}:{generation}".encode(), hashlib.sha256).hexdigest()

    def count(self, what: str) -> None:
        """One more in `statistics`."""
        self.counters[what] += 1

    @property
    def is_draining(self) -> bool:
        """True while nothing new is taken in."""
        return self.book.ledger.is_draining

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
            self.book_loop.dispatch(events.Drain(is_on))

    def reconfigure(self, config: DaemonConfig) -> None:
        """Another configuration is in force from here on. What cannot change live must be as it was."""
        self.config = config
        self.config_generation += 1
        self.is_last_good = False
        self.pacing.weigh((table.name, table.weight) for table in config.tenant)
        self.host.limits_changed()
        self.book_loop.dispatch(events.ConfigChanged(config.tenant_specs(), config.book_settings(), config.pins()))
        self.plugin.adopt()
        for tell in self.on_reconfigured:
            tell()

    def statistics(self) -> dict[str, int]:
        """Counters since the start. ``header_bytes_read`` and ``answer_bytes_written`` is all that the daemon's CPU
        touches of requests and results; ``dma_bytes`` is what the copy engine moved."""
        counters = Counter(self.counters)
        for session in self.sessions.by_number.values():
            counters["header_bytes_read"] += session.fabric.header_bytes_read
            counters["answer_bytes_written"] += session.fabric.answer_bytes_written
        counters["dma_bytes"] = self.copies.bytes_copied
        for state, count in self.answers.ended.items():
            counters[f"ended_{state.name.lower()}"] = count
        return {name: min(count, _LARGEST) for name, count in sorted(counters.items())}

    @property
    def is_durable(self) -> bool:
        """Sessions and accepted work outlive this process."""
        return self.book_loop.journal is not None and self.notifier.has_manager

    def close(self) -> None:
        """End at once: sessions first, then the host side. What is durable is only left alone: the next process goes
        on with it."""
        self.sessions.close(is_final=not self.is_durable)
        self._loop.remove_reader(self.engine.fileno())
        self.engine.close()  # before the helper is let go: nothing may land where it scrubs
        self.host.close(is_final=not self.is_durable)
        self.book_loop.close(is_final=not self.notifier.has_manager)
        self.probe.close()
        self.store.close()
        self.plugin.close()
        self.pacing.close()
        for told in self.on_closed:
            told()
