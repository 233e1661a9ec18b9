"""The daemon's shell: carries events to the job book and its commands to the ports. It decides nothing.

On the request path: plain callbacks, no task per request, no log line, counters folded at scrape, one timer for the
book's earliest deadline.
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
from functools import partial
from typing import Final

from offpath.bindings import faults
from offpath.bindings.loopback.copy import LoopbackCopyEngine
from offpath.bindings.ports import CopyCompletion, CopyEngine, FabricSession, HostListener
from offpath.bindings.wire import host
from offpath.bindings.wire.header import FLAG_IDEMPOTENT, RequestHeader, pack_answer
from offpath.dpu_daemon.book_loop import BookLoop
from offpath.dpu_daemon.codes import REASON, STATUS
from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.copies import Copies
from offpath.dpu_daemon.host import HostSide
from offpath.dpu_daemon.journal.gauges import journal_metrics
from offpath.dpu_daemon.journal.log import Journal
from offpath.dpu_daemon.kernels import KernelRegistry
from offpath.dpu_daemon.links import LaneLink
from offpath.dpu_daemon.notify import Notifier
from offpath.dpu_daemon.pacing import Pacing
from offpath.dpu_daemon.places import Places
from offpath.dpu_daemon.plugins import PluginSeat, plugin_metrics
from offpath.dpu_daemon.probe import PathProbe
from offpath.dpu_daemon.results import Results
from offpath.dpu_daemon.sessions import JobRef, Session, memory_name
from offpath.dpu_daemon.storing import Store, store_metrics
from offpath.dpu_daemon.tally import Tally
from offpath.sched.gpu.plugin import Advice
from offpath.sched.gpu.registry import make
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.states import EndReason, JobState

logger = logging.getLogger(__name__)
_FLUSH_S: Final = 1.0  # at the end: a manager that takes nothing for so long holds nothing more of ours
_MS: Final = 1_000_000
_LARGEST: Final = (1 << 64) - 1
"""Of a number in a message: what peers say adds up, and must not keep an operator from the other counters."""
_WITH_RESULT: Final = (JobState.COMPLETED, JobState.FAILED)
_WITHOUT_RESULT: Final = (EndReason.KERNEL_OVERRAN, EndReason.COPY_FAILED)
"""A job may expire, or its time be over, at the very moment its result comes: that answer must not carry it."""


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
        self.sessions: dict[int, Session] = {}
        self.pacing = Pacing(now_ns)
        self.pacing.weigh((table.name, table.weight) for table in config.tenant)
        self.config_generation = 1
        self.is_last_good = False
        """At this start the sources were refused, and none was taken in since."""
        self.ended: Counter[JobState] = Counter()
        self.tally = Tally()
        self.extra_metrics: dict[str, tuple[str, Callable[[], float]]] = journal_metrics(self.book_loop)
        """See `offpath.dpu_daemon.metrics.Extra`."""
        self.on_kernels_changed: list[Callable[[], None]] = []
        self.on_session_ended: list[Callable[[Session, str, str], None]] = []
        self.on_tenant_gone: list[Callable[[str], None]] = []
        self.on_session_lost: list[Callable[[Session], None]] = []
        self.on_reconfigured: list[Callable[[], None]] = []
        self.on_closed: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        self._next_job = self.book.ledger.last_job + 1
        self.refs: dict[int, JobRef] = {}
        """Jobs without an answer."""
        self.leaving: dict[int, JobRef] = {}
        """After a restart: answered jobs that still run."""
        self.results = Results(self)
        self.plugin = PluginSeat(self)
        self.extra_metrics |= plugin_metrics(self)
        self.extra_metrics |= store_metrics(self.store)
        on = self.book_loop.on
        on(commands.Copy, self._copy)
        on(commands.Launch, self._launch)
        on(commands.Answer, self._answer)
        on(commands.OpenLease, self._open_lease)
        on(commands.ScrubLane, self._scrub_lane)
        on(commands.CloseLease, self._close_lease)
        on(commands.KillLane, self._kill_lane)
        on(commands.EndSession, self._end_session)
        on(commands.TenantGone, self._tenant_gone)
        on(Advice, self.plugin.heard)
        self.host = HostSide(self, channel)
        self.probe = PathProbe(self)
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

    def drain(self, is_on: bool) -> None:
        """Take in nothing new and finish what is there, or take in again."""
        if is_on is not self.is_draining:
            logger.warning("draining: no new session, no new job" if is_on else "draining no more")
            self.book_loop.dispatch(events.Drain(is_on))

    def kept_job(self, job: int) -> JobRef | None:
        """The shell's side of a job that is not answered yet."""
        return self.refs.get(job)

    # -- sessions -------------------------------------------------------------------------------------------------
    def session_opened(self, number: int, tenant: str, fabric: FabricSession, origin: str = "") -> Session:
        """A ticket was redeemed. ``origin`` is what a restart needs to know of the session."""
        session = Session(self, number, tenant, fabric)
        self.sessions[number] = session
        self.book_loop.dispatch(events.SessionOpened(number, tenant, fabric.slot_count, origin))
        return session

    def session_lost(self, session: Session, detail: str) -> None:
        """The peer's connection broke. If it has anything to come back for, its session waits for it."""
        is_kept = session.fabric.fails_alone or session.refs()
        if session.number in self.sessions and is_kept and self.on_session_lost:
            logger.info("session %d of %s lost its peer: %s", session.number, session.tenant, detail)
            session.detach()
            for told in self.on_session_lost:
                told(session)
        else:
            self.session_ended(session, "peer_gone", detail)

    def session_ended(self, session: Session, code: str, detail: str) -> None:
        """The peer went or was thrown out. Its jobs end first, while its memory is still mapped."""
        if self.sessions.pop(session.number, None) is None:
            return
        if code != "peer_gone":
            logger.warning("session %d of %s closed: %s %s", session.number, session.tenant, code, detail)
        self.book_loop.dispatch(events.SessionClosed(session.number))
        self._fold(session)
        for told in self.on_session_ended:  # before its doorbells close: a peer that asks why then knows it already
            told(session, code, detail)
        self.store.forget(memory_name(session.number))  # before its descriptors close: it may still wait to be sent
        session.close()

    def _fold(self, session: Session) -> None:
        self.counters["header_bytes_read"] += session.fabric.header_bytes_read
        self.counters["answer_bytes_written"] += session.fabric.answer_bytes_written

    def submit(self, session: Session, slot: int, header: RequestHeader, header_crc: int = 0) -> JobRef:
        """A doorbell with a valid header, whose checksum a restart holds the slot against."""
        job = self._next_job
        self._next_job = job + 1
        ref = JobRef(job, session, slot, header)
        self.refs[job] = ref
        deadline_ns = self.now_ns() + header.budget_ms * _MS if header.budget_ms else 0
        self.counters["requests"] += 1
        self.book_loop.dispatch(
            events.JobSubmitted(
                job, session.number, header.request_id, header.kernel_id, header.demand, header.priority, deadline_ns,
                header.payload_bytes, bool(header.flags & FLAG_IDEMPOTENT), slot << 32 | header_crc,
            )
        )  # fmt: skip
        return ref

    def credit(self, ref: JobRef) -> None:
        """The requester took the answer."""
        self.book_loop.dispatch(events.CreditReturned(ref.job))

    def cancel(self, ref: JobRef, operator_uid: int | None = None) -> None:
        """The requester gives the job up, or an operator does."""
        if operator_uid is not None:
            ref.operator_uid = operator_uid
            logger.info("job %d of %s is cancelled by uid %d", ref.job, ref.session.tenant, operator_uid)
        self.book_loop.dispatch(events.CancelRequested(ref.job, operator_uid))

    # -- commands -------------------------------------------------------------------------------------------------
    def _copy(self, command: commands.Copy) -> None:
        ref = self.refs[command.job]
        link = self.host.lanes.get((command.lease, command.lane))
        if (command.lease, command.lane) in self.host.reunion.awaited:
            return  # posted when its worker is back and has said what it had
        if link is None or link.memory is None:  # every Copy must end in a CopyDone, or the lease never drains
            self.book_loop.defer(events.CopyDone(command.job, command.attempt, error=True))
            return
        link.ref = ref
        fabric = ref.session.fabric
        token = self.copies.take_token()
        done = self.engine.post(
            token, fabric.slots, fabric.payload_offset(ref.slot), link.memory, 0, ref.header.payload_bytes
        )
        if done is None:
            self.copies.started(token, link.lease, self._payload_landed, (ref, command.attempt, link))
        else:
            self.book_loop.defer(events.CopyDone(command.job, command.attempt, done.error is not None))

    def copies_in_flight(self) -> set[tuple[int, int]]:
        """Payloads on their way: job, attempt."""
        return {(ref.job, attempt) for ref, attempt, _ in self.copies.contexts(self._payload_landed)}

    def _payload_landed(self, copied: tuple[JobRef, int, LaneLink], done: CopyCompletion) -> None:
        ref, attempt, link = copied
        if done.error is not None:  # a lane that cannot be copied to any more is lost before its copy is
            self.host.copy_failed(link, done.error)
        self.book_loop.dispatch(events.CopyDone(ref.job, attempt, done.error is not None))

    def _launch(self, command: commands.Launch) -> None:
        header = self.refs[command.job].header
        message = host.pack_launch(
            command.job, command.generation, command.kernel, command.share, header.flags, header.payload_crc,
            header.payload_bytes, header.tensors,
        )  # fmt: skip
        if (command.lease, command.lane) in self.host.reunion.awaited:
            return  # sent when its worker is back and says that it never had it
        link = self.host.lanes.get((command.lease, command.lane))
        if faults.armed:
            faults.hit("daemon.launch")
        if link is None or not self.host.launch(link, message):
            self.book_loop.defer(events.LaunchFailed(command.job, command.attempt))
        if faults.armed:
            faults.hit("daemon.launched")

    def _answer(self, command: commands.Answer) -> None:
        """Write the answer where the requester reads it, and ring. A result still on its way out goes first."""
        ref = self.refs[command.job]
        if ref.fetching is not None:
            self.results.held[command.job] = command
            return
        if faults.armed:
            faults.hit("daemon.answer")
        del self.refs[command.job]  # a second answer for the job would fail here, loudly
        if self.host.reunion.awaited and command.job in self.book.ledger.leaving:
            self.leaving[command.job] = ref
        ref.is_answered = True
        session = ref.session
        result = ref.result
        ref.result = None
        self.ended[command.state] += 1
        if command.state is JobState.EXPIRED and self.book.ledger.is_still_running(command.job):
            self.counters["expired_running"] += 1
        status, reason = STATUS[command.state], REASON[command.reason]
        self.tally.answered(ref, command, status, reason, self.now_ns())
        if not session.is_closed:
            tensors, inline, nbytes = b"", b"", 0
            if result is not None and command.state in _WITH_RESULT and command.reason not in _WITHOUT_RESULT:
                tensors, inline, nbytes = result.tensors, result.inline, result.result_bytes
            gpu = self.host.gpu_index(command.lease)
            answer = pack_answer(
                request_id=ref.header.request_id, status=status, reason=reason,
                retry_after_ms=command.retry_after_ms, lease=command.lease, gpu=gpu, generation=command.generation,
                result_bytes=nbytes, stages=command.stages, tensors=tensors,
            )  # fmt: skip
            session.fabric.write_answer(ref.slot, answer, inline, nbytes)
            if faults.armed:
                faults.hit("daemon.written")
            session.ring(ref.slot)
            if command.retry_after_ms:
                session.told_to_wait(command.retry_after_ms)

    def _open_lease(self, command: commands.OpenLease) -> None:
        self.counters["leases_opened"] += 1
        logger.info(
            "lease %d: %s gets %s at %d of %s", command.lease, command.tenant, command.profile, command.start,
            command.gpu,
        )  # fmt: skip
        self.host.open_lease(command)

    def _scrub_lane(self, command: commands.ScrubLane) -> None:
        self.host.scrub_lane(command)

    def _close_lease(self, command: commands.CloseLease) -> None:
        self.counters["leases_closed"] += 1
        logger.info("lease %d closes", command.lease)
        self.host.close_lease(command)

    def _kill_lane(self, command: commands.KillLane) -> None:
        self.host.kill_lane(command)

    def _end_session(self, command: commands.EndSession) -> None:
        """Its answers are written; the peer still has to be told of the last ones."""
        session = self.sessions.get(command.session)
        if session is not None:
            end = partial(
                self.session_ended, session, "tenant_removed", "the tenant was taken out of the configuration"
            )
            session.when_told(end, self.config.limits.drain_ms / 1e3)

    def _tenant_gone(self, command: commands.TenantGone) -> None:
        logger.info("tenant %s is gone", command.tenant)
        self.pacing.tenant_gone(command.tenant)
        for told in self.on_tenant_gone:
            told(command.tenant)

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

    # -- after a restart ------------------------------------------------------------------------------------------
    def write_answer(self, answer: commands.Answer) -> None:
        """An answer that was decided, and is not in its slot."""
        self._answer(answer)

    def statistics(self) -> dict[str, int]:
        """Counters since the start. ``header_bytes_read`` and ``answer_bytes_written`` is all that the daemon's CPU
        touches of requests and results; ``dma_bytes`` is what the copy engine moved."""
        counters = Counter(self.counters)
        for session in self.sessions.values():
            counters["header_bytes_read"] += session.fabric.header_bytes_read
            counters["answer_bytes_written"] += session.fabric.answer_bytes_written
        counters["dma_bytes"] = self.copies.bytes_copied
        for state, count in self.ended.items():
            counters[f"ended_{state.name.lower()}"] = count
        return {name: min(count, _LARGEST) for name, count in sorted(counters.items())}

    def kernels_changed(self) -> None:
        """Tell every session's negotiation."""
        for told in self.on_kernels_changed:
            told()

    @property
    def is_durable(self) -> bool:
        """Sessions and accepted work outlive this process."""
        return self.book_loop.journal is not None and self.notifier.has_manager

    def close(self) -> None:
        """End at once: sessions first, then the host side. What is durable is only left alone: the next process goes
        on with it."""
        if self.is_durable:
            self.store.flush(_FLUSH_S)
            for session in self.sessions.values():
                session.close()
        else:
            for session in list(self.sessions.values()):
                self.session_ended(session, "daemon_ends", "the daemon ends")
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
