"""The daemon's shell: carries events to the job book and its commands to the ports. It decides nothing.

On the request path: plain callbacks, no task per request, no log line, counters folded at scrape, one timer for the
book's earliest deadline.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from offpath.bindings.errors import HostMessageError
from offpath.bindings.loopback.channel import LoopbackChannelListener
from offpath.bindings.loopback.copy import LoopbackCopyEngine
from offpath.bindings.loopback.fabric import LoopbackFabricSession
from offpath.bindings.ports import CopyCompletion, CopyEngine
from offpath.bindings.wire import host
from offpath.bindings.wire.header import FLAG_IDEMPOTENT, RequestHeader, pack_answer
from offpath.dpu_daemon.codes import REASON, RESULT_REASON, STATUS
from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.host import HostSide, LaneLink
from offpath.dpu_daemon.kernels import KernelRegistry
from offpath.dpu_daemon.sessions import JobRef, Session
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.states import EndReason, JobState

logger = logging.getLogger(__name__)
_MS: Final = 1_000_000
_WITH_RESULT: Final = (JobState.COMPLETED, JobState.FAILED)
"""A job may expire at the very moment its result comes: that answer must not carry it."""


class Daemon:
    """One running daemon: job book, copy engine, sessions, host side. Made inside a running loop."""

    def __init__(
        self,
        config: DaemonConfig,
        channel: LoopbackChannelListener,
        *,
        engine: CopyEngine | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        token: Callable[[], str] = lambda: secrets.token_urlsafe(32),
    ) -> None:
        """``engine``, ``now_ns`` and ``token`` (a fresh secret at each call) are arguments for the simulation, which
        brings its own world."""
        self.config = config
        self.now_ns = now_ns
        self.token = token
        self.lineage = secrets.token_hex(8)
        self.book = JobBook(config.tenant_specs(), GreedyFirstFit(), config.book_settings(), config.pins())
        self.engine: CopyEngine = engine or LoopbackCopyEngine()
        self.kernels = KernelRegistry()
        self.sessions: dict[int, Session] = {}
        self.counters: Counter[str] = Counter()
        self.ended: Counter[JobState] = Counter()
        self.on_kernels_changed: list[Callable[[], None]] = []
        self.on_session_ended: list[Callable[[Session, str, str], None]] = []
        self._loop = asyncio.get_running_loop()
        self._next_job = 1
        self._refs: dict[int, JobRef] = {}
        self._copies: dict[int, tuple[JobRef, int, LaneLink]] = {}
        self._result_copies: dict[int, tuple[JobRef, LaneLink, host.Result]] = {}
        self._held_answers: dict[int, commands.Answer] = {}
        self._next_token = 1
        self._events: deque[events.Event] = deque()
        self._is_dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._carry: dict[type, Callable[[Any], None]] = {
            commands.Copy: self._copy,
            commands.Launch: self._launch,
            commands.Answer: self._answer,
            commands.OpenLease: self._open_lease,
            commands.ScrubLane: self._scrub_lane,
            commands.CloseLease: self._close_lease,
        }
        self.host = HostSide(self, channel)
        self._loop.add_reader(self.engine.fileno(), self._copies_done)

    # -- events in, commands out ----------------------------------------------------------------------------------
    def dispatch(self, event: events.Event) -> None:
        """Give an event to the book and carry out what it says, until neither has anything left.

        Events that arise while commands are carried out (a copy done in place) wait their turn, in order.
        """
        waiting, handle, carry, now_ns = self._events, self.book.handle, self._carry, self.now_ns
        waiting.append(event)
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            while waiting:
                for command in handle(waiting.popleft(), now_ns()):
                    carry[type(command)](command)
        finally:
            self._is_dispatching = False
        next_ns = self.book.next_deadline_ns()
        if next_ns is not None and (self._timer is None or next_ns < self._timer_ns):
            self._arm_timer(next_ns)

    def _arm_timer(self, next_ns: int) -> None:
        """One timer for the book's earliest deadline; it is moved only to come earlier."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = next_ns
        wait_s = max(0.0, (next_ns - self.now_ns()) / 1e9)
        self._timer = self._loop.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.dispatch(events.Tick())

    # -- sessions -------------------------------------------------------------------------------------------------
    def session_opened(self, number: int, tenant: str, fabric: LoopbackFabricSession) -> Session:
        """A ticket was redeemed."""
        session = Session(self, number, tenant, fabric)
        self.sessions[number] = session
        self.dispatch(events.SessionOpened(number, tenant, fabric.slot_count))
        return session

    def session_ended(self, session: Session, code: str, detail: str) -> None:
        """The peer went or was thrown out. Its jobs end first, while its memory is still mapped."""
        if self.sessions.pop(session.number, None) is None:
            return
        if code != "peer_gone":
            logger.warning("session %d of %s closed: %s %s", session.number, session.tenant, code, detail)
        self.dispatch(events.SessionClosed(session.number))
        self._fold(session)
        session.close()
        for told in self.on_session_ended:
            told(session, code, detail)

    def _fold(self, session: Session) -> None:
        self.counters["header_bytes_read"] += session.fabric.header_bytes_read
        self.counters["answer_bytes_written"] += session.fabric.answer_bytes_written

    def submit(self, session: Session, slot: int, header: RequestHeader) -> JobRef:
        """A doorbell with a valid header."""
        job = self._next_job
        self._next_job = job + 1
        ref = JobRef(job, session, slot, header)
        self._refs[job] = ref
        deadline_ns = self.now_ns() + header.budget_ms * _MS if header.budget_ms else 0
        self.counters["requests"] += 1
        self.dispatch(
            events.JobSubmitted(
                job, session.number, header.request_id, header.kernel_id, header.demand, header.priority, deadline_ns,
                header.payload_bytes, bool(header.flags & FLAG_IDEMPOTENT),
            )
        )  # fmt: skip
        return ref

    def credit(self, ref: JobRef) -> None:
        """The requester took the answer."""
        self.dispatch(events.CreditReturned(ref.job))

    def cancel(self, ref: JobRef) -> None:
        """The requester gives the job up."""
        self.dispatch(events.CancelRequested(ref.job))

    # -- commands -------------------------------------------------------------------------------------------------
    def _copy(self, command: commands.Copy) -> None:
        ref = self._refs[command.job]
        link = self.host.lanes.get((command.lease, command.lane))
        if link is None or link.memory is None:  # every Copy must end in a CopyDone, or the lease never drains
            self._events.append(events.CopyDone(command.job, command.attempt, error=True))
            return
        link.ref = ref
        fabric = ref.session.fabric
        token = self._next_token
        self._next_token = token + 1
        done = self.engine.post(
            token, fabric.slots, fabric.payload_offset(ref.slot), link.memory, 0, ref.header.payload_bytes
        )
        if done is None:
            self._copies[token] = (ref, command.attempt, link)
            self.host.copy_started(link)
        else:
            self._events.append(events.CopyDone(command.job, command.attempt, done.error is not None))

    def _copies_done(self) -> None:
        for done in self.engine.poll():
            copied = self._copies.pop(done.token, None)
            if copied is not None:
                ref, attempt, link = copied
                self.host.copy_ended(link)
                self.dispatch(events.CopyDone(ref.job, attempt, done.error is not None))
            else:
                self.host.copy_ended(self._result_copies[done.token][1])
                self._result_copied(done)

    def _launch(self, command: commands.Launch) -> None:
        header = self._refs[command.job].header
        message = host.pack_launch(
            command.job, command.generation, command.kernel, command.share, header.flags, header.payload_crc,
            header.payload_bytes, header.tensors,
        )  # fmt: skip
        link = self.host.lanes.get((command.lease, command.lane))
        if link is None or not self.host.launch(link, message):
            self._events.append(events.LaunchFailed(command.job, command.attempt))

    def _answer(self, command: commands.Answer) -> None:
        """Write the answer where the requester reads it, and ring. A result still on its way out goes first."""
        ref = self._refs[command.job]
        if ref.fetching is not None:
            self._held_answers[command.job] = command
            return
        del self._refs[command.job]  # a second answer for the job would fail here, loudly
        ref.is_answered = True
        session = ref.session
        result = ref.result
        ref.result = None
        self.ended[command.state] += 1
        if not session.is_closed:
            tensors, inline, nbytes = b"", b"", 0
            if result is not None and command.state in _WITH_RESULT and command.reason is not EndReason.COPY_FAILED:
                tensors, inline, nbytes = result.tensors, result.inline, result.result_bytes
            gpu = self.host.gpu_index(command.lease)
            status, reason = STATUS[command.state], REASON[command.reason]
            answer = pack_answer(
                request_id=ref.header.request_id, status=status, reason=reason,
                retry_after_ms=command.retry_after_ms, lease=command.lease, gpu=gpu, generation=command.generation,
                result_bytes=nbytes, stages=command.stages, tensors=tensors,
            )  # fmt: skip
            session.fabric.write_answer(ref.slot, answer, inline)
            session.ring(ref.slot)
            if command.retry_after_ms:
                session.pause(command.retry_after_ms)

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

    # -- results --------------------------------------------------------------------------------------------------
    def result(self, link: LaneLink, result: host.Result) -> None:
        """A worker's report. One that speaks of a job its lane does not hold is a fault of the worker.

        Raises: HostMessageError: the result makes no sense for its job; the worker is then dropped.
        """
        ref = link.ref
        if ref is None or ref.job != result.job or result.generation != link.generation:
            raise HostMessageError("foreign_job", str(result.job))
        if ref.fetching is link or (ref.waiting is not None and ref.waiting[0] is link):
            raise HostMessageError("second_result", str(result.job))
        if result.finished_ns < result.started_ns:
            raise HostMessageError("times", f"started {result.started_ns}, finished {result.finished_ns}")
        if ref.is_answered or ref.session.is_closed:
            self._finished(ref, result, RESULT_REASON[result.status])
            return
        fabric = ref.session.fabric
        if result.result_bytes > fabric.result_bytes:
            status, text = result.status, result.inline
            if status == host.RESULT_OK:
                status = host.RESULT_TOO_LARGE
                text = f"a result of {result.result_bytes} bytes; the session asked for {fabric.result_bytes}".encode()
            text = text[: fabric.result_bytes]  # what follows in memory is the next slot's answer
            result = host.Result(
                result.job, result.generation, status, result.started_ns, result.finished_ns, len(text), True, b"",
                text,
            )  # fmt: skip
        elif not result.is_inline and result.result_bytes > link.result_bytes:
            raise HostMessageError("result_bytes", f"{result.result_bytes} > {link.result_bytes}")
        if ref.fetching is not None:  # an attempt whose worker died: its result still travels into the same slot
            ref.waiting = link, result
        else:
            self._take(ref, link, result)

    def _take(self, ref: JobRef, link: LaneLink, result: host.Result) -> None:
        if result.is_inline:
            ref.result = result
            self._finished(ref, result, RESULT_REASON[result.status])
        else:
            self._fetch(ref, link, result)

    def _fetch(self, ref: JobRef, link: LaneLink, result: host.Result) -> None:
        """Bring a large result from the lane to the requester's memory before the lane is given back."""
        assert link.memory is not None
        fabric = ref.session.fabric
        ref.fetching = link
        token = self._next_token
        self._next_token = token + 1
        self._result_copies[token] = (ref, link, result)
        done = self.engine.post(
            token, link.memory, link.landing_bytes, fabric.answers, fabric.result_offset(ref.slot),
            result.result_bytes,
        )  # fmt: skip
        if done is None:
            self.host.copy_started(link)
        else:
            self._result_copied(done)

    def _result_copied(self, done: CopyCompletion) -> None:
        ref, link, result = self._result_copies.pop(done.token)
        ref.fetching = None
        waiting, ref.waiting = ref.waiting, None
        held = self._held_answers.pop(ref.job, None)
        if held is not None:
            self._answer(held)  # cancelled or expired while its result travelled
        if done.error is not None:  # what lies in the requester's memory is no result
            self._ended(ref, link, result, EndReason.COPY_FAILED)
        else:
            self._ended(ref, link, result, RESULT_REASON[result.status])
        if waiting is not None and self.host.holds(waiting[0]):
            if ref.is_answered or ref.session.is_closed:
                self._finished(ref, waiting[1], RESULT_REASON[waiting[1].status])
            else:
                self._take(ref, *waiting)

    def _ended(self, ref: JobRef, link: LaneLink, result: host.Result, reason: EndReason) -> None:
        """The lane's part is done. If its worker died meanwhile, the book knows: the result is nobody's."""
        if self.host.holds(link):
            ref.result = result
            self._finished(ref, result, reason)

    def _finished(self, ref: JobRef, result: host.Result, reason: EndReason) -> None:
        if ref.is_answered or ref.session.is_closed:
            ref.result = None
        self.dispatch(
            events.ResultArrived(result.job, result.generation, reason, result.started_ns, result.finished_ns)
        )

    def statistics(self) -> dict[str, int]:
        """Counters since the start. ``header_bytes_read`` and ``answer_bytes_written`` is all that the daemon's CPU
        touches of requests and results; ``dma_bytes`` is what the copy engine moved."""
        counters = Counter(self.counters)
        for session in self.sessions.values():
            counters["header_bytes_read"] += session.fabric.header_bytes_read
            counters["answer_bytes_written"] += session.fabric.answer_bytes_written
        counters["dma_bytes"] = self.engine.bytes_copied
        for state, count in self.ended.items():
            counters[f"ended_{state.name.lower()}"] = count
        return dict(sorted(counters.items()))

    def kernels_changed(self) -> None:
        """Tell every session's negotiation."""
        for told in self.on_kernels_changed:
            told()

    def close(self) -> None:
        """End at once: sessions first, then the host side."""
        for session in list(self.sessions.values()):
            self.session_ended(session, "daemon_ends", "the daemon ends")
        if self._timer is not None:
            self._timer.cancel()
        self.host.close()
        self._loop.remove_reader(self.engine.fileno())
        self.engine.close()
