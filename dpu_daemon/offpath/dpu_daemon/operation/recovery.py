"""Restores a daemon's state from the replayed book, the session memory kept by the service manager, and the reports of
the reconnecting helper and workers.

The book is exact to the last event. Work in flight must be determined. Copies died with the process and are posted
again. Whether a launch was received is reported by its worker. An answer is complete in the requester's memory or is
written again. A payload whose header differs from the accepted one ends as RETRY_SAFE.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import orjson

from offpath.bindings import faults
from offpath.bindings.errors import HeaderError, RegionError
from offpath.bindings.ports import CopyCompletion, FabricSession, Memory
from offpath.bindings.wire.header import FIXED_BYTES, RequestHeader, parse_answer, parse_request
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.durability.notify import close_all
from offpath.dpu_daemon.hosts.batches import lane_batch, parts_of
from offpath.dpu_daemon.ingress.admission import Admission
from offpath.dpu_daemon.requests.inflight import JobRef, LaneConnection
from offpath.dpu_daemon.requests.sessions import Session, memory_name
from offpath.dpu_daemon.requests.stacking import Part
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.batches import copying
from offpath.sched.jobs.records import Batch, Job
from offpath.sched.jobs.states import FIRST_TERMINAL, EndReason, JobState

if TYPE_CHECKING:
    from offpath.sched.jobs import records

logger = logging.getLogger(__name__)
_WITH_RESULT: Final = (JobState.COMPLETED, JobState.FAILED)
_MASK: Final = 0xFFFF_FFFF


class _NobodysSession:
    """Session placeholder for a job that continues although its requester is gone. Implements
    `offpath.dpu_daemon.requests.inflight.SessionEnd`."""

    fabric: FabricSession
    is_closed = True

    def __init__(self, job: Job) -> None:
        self.number = job.session
        self.tenant = job.demand.tenant

    def ring(self, slot: int) -> None:
        """Does nothing: no requester is connected."""

    def on_wait(self, wait_ms: int) -> None:
        """Does nothing: no requester is connected."""


def _nobodys(job: Job) -> JobRef:
    """The shell's record of a job without a requester."""
    return JobRef(job.job, _NobodysSession(job), 0, _bare(job))


class Recovery:
    """Runs once, before any socket listens. ``stored``: descriptors kept by the service manager, by name; each is
    adopted or closed. ``make_fabric``: as `offpath.bindings.memory.slots.SlotMemory`."""

    def __init__(
        self,
        daemon: Daemon,
        admission: Admission,
        stored: dict[str, list[int]],
        make_fabric: Callable[[int, int, int, tuple[int, int]], FabricSession],
    ) -> None:
        self._daemon = daemon
        self._admission = admission
        self._stored = stored
        self._make_fabric = make_fabric

    def run(self) -> None:
        """Restores sessions, then jobs, then the host side; then reports all losses to the book."""
        daemon = self._daemon
        ledger = daemon.requests.book.ledger
        sessions = {session.session: self._session(session) for session in ledger.sessions.values()}
        self._close_pending()
        daemon.host.restore()
        daemon.host.reattachment.on_lane_back = self._lane_back
        lost: list[int] = []
        for job in list(ledger.jobs.values()):  # one per slot: a request that reuses a slot returned its job's credit
            self._job(job, sessions.get(job.session), lost)
        for job in ledger.leaving.values():
            if job.job not in daemon.requests.answers.leaving:
                daemon.requests.answers.leaving[job.job] = ref = _nobodys(job)
                ref.is_answered = True
        # The book gets events only from here on: time has passed, so an event may make it answer any job at once.
        daemon.plugin.adopt()
        self._end_copies()
        self._reconfigure()
        if daemon.is_draining:  # a drain only applied to the previous process; it is not reported to the operator
            daemon.requests.book_loop.dispatch(events.Drain(False))
        for number in lost:
            daemon.requests.book_loop.dispatch(events.SlotLost(number))
        for number, session in sessions.items():
            if session is None:
                daemon.requests.book_loop.dispatch(events.SessionClosed(number))
        daemon.requests.book_loop.dispatch(events.Tick())  # the book may wait for a deadline only, not for an event
        logger.info(
            "recovered %d sessions, %d jobs and %d leases",
            len(daemon.requests.sessions.by_number), len(daemon.requests.answers.refs), len(ledger.leases),
            extra={"code": "recovered"},
        )  # fmt: skip
        if faults.armed:
            faults.hit("daemon.recovered")

    def _reconfigure(self) -> None:
        """Apply the current configuration if it changed while no daemon ran."""
        daemon = self._daemon
        ledger, config = daemon.requests.book.ledger, daemon.settings.config
        known = tuple(tenant.spec for tenant in ledger.tenants.values()), ledger.settings, ledger.pins
        if known != (config.tenant_specs(), config.book_settings(), config.pins()):
            logger.info("the configuration has changed since")
            daemon.reconfigure(config)

    # -- sessions -------------------------------------------------------------------------------------------------
    def _session(self, known: records.Session) -> Session | None:
        """Restores a session from its stored memory. None: the memory is gone and the requester cannot be reached."""
        daemon = self._daemon
        fds = self._stored.pop(memory_name(known.session), [])
        try:
            slots, payload_bytes, result_bytes, _ = orjson.loads(known.origin)
            if len(fds) != 2:
                raise RegionError("its memory was not stored")
            if not self._admission.knows(known.tenant):
                raise RegionError("its tenant was removed")
            fabric = self._make_fabric(slots, payload_bytes, result_bytes, (fds.pop(), fds.pop()))
        except (RegionError, ValueError) as fault:
            logger.warning(
                "could not restore session %d of tenant %s: %s",
                known.session,
                known.tenant,
                fault,
                extra={"code": "session_not_recovered"},
            )
            close_all(fds)
            daemon.store.forget(memory_name(known.session))
            return None
        session = daemon.requests.sessions.restored(known.session, known.tenant, fabric)
        daemon.store.adopt(memory_name(known.session))
        self._admission.restored(session, known.origin)
        return session

    def _close_pending(self) -> None:
        """Close descriptors stored for sessions that the book has ended or never knew."""
        while self._stored:
            name, fds = self._stored.popitem()
            close_all(fds)
            self._daemon.store.forget(name)

    # -- jobs -----------------------------------------------------------------------------------------------------
    def _job(self, job: Job, session: Session | None, lost: list[int]) -> None:
        """Locate the job's payload and answer."""
        daemon = self._daemon
        if session is None:
            ref = _nobodys(job)
            ref.is_spoilt = True
        else:
            slot = job.origin >> 32
            header = _header_in(session, slot, job)
            ref = JobRef(job.job, session, slot, header or _bare(job))
            ref.is_spoilt = header is None
            session.restore(ref)
            restore_stream(session, ref)
        if job.state < FIRST_TERMINAL:
            daemon.requests.answers.refs[job.job] = ref
            if ref.is_spoilt and not job.is_running:
                lost.append(job.job)
            return
        ref.is_answered = session is None or _has_answer(session, ref.slot, job)
        if job.job in daemon.requests.book.ledger.leaving:
            daemon.requests.answers.leaving[job.job] = ref
        if not ref.is_answered:
            self._answer_again(job, ref)

    def _answer_again(self, job: Job, ref: JobRef) -> None:
        """The answer was decided but not written. An answer with a result waits for the worker that still has it."""
        daemon = self._daemon
        daemon.requests.answers.refs[job.job] = ref
        total = (0, 0, 0, 0, 0, max(0, daemon.requests.now_ns() - job.accepted_ns))
        answer = commands.Answer(job.job, job.session, job.state, job.reason, 0, 0, 0, total)
        daemon.requests.answers.unwritten[job.job] = answer
        is_empty = ref.stream is not None and job.state is JobState.COMPLETED
        is_empty |= job.reason is EndReason.KERNEL_OVERRAN
        if job.state not in _WITH_RESULT or not job.launches or is_empty:
            del daemon.requests.answers.unwritten[job.job]
            daemon.requests.answers.write(answer)

    def _end_copies(self) -> None:
        """End the copies of answered jobs and lost lanes: they died with the process that made them."""
        daemon = self._daemon
        ledger = daemon.requests.book.ledger
        ended = [(job.job, job.attempt) for job in ledger.leaving.values() if job.is_copying]
        for lease in ledger.leases.values():
            ended += sorted(lease.orphaned_copies)
        for job, attempt in ended:
            daemon.requests.book_loop.dispatch(events.CopyDone(job, attempt, error=True))

    # -- lanes ----------------------------------------------------------------------------------------------------
    def _lane_back(self, link: LaneConnection) -> None:
        """A worker reconnected: send it again what it may not have received."""
        daemon = self._daemon
        lease = daemon.requests.book.ledger.lease_of(link.lease, link.generation)
        if lease is None:
            return
        # An event may give the lane to another job at once, so nothing of the former one follows it.
        on_lane = (job for job in lease.occupants if job.placement is not None and job.placement.lane == link.lane)
        leader = next(on_lane, None)
        if leader is not None and leader.batch is not None:
            self._batch_back(leader.batch, link)
        elif leader is not None:
            self._job_back(leader, link)
        daemon.host.reattachment.scrub_again(link)

    def _job_back(self, job: Job, link: LaneConnection) -> None:
        """The lane holds a job of its own."""
        daemon = self._daemon
        if job.is_copying and job.state >= FIRST_TERMINAL:  # answered since: the copy is not needed
            daemon.requests.book_loop.dispatch(events.CopyDone(job.job, job.attempt, error=True))
            return
        ref = daemon.requests.answers.refs.get(job.job) or daemon.requests.answers.leaving.get(job.job)
        if ref is None:
            return
        if link.last_job == job.job or not job.is_running:
            link.ref = ref
        if job.is_copying:
            daemon.requests.book_loop.repeat(commands.Copy(job.job, job.attempt, link.lease, link.lane))
        elif not job.is_running:
            self._copy_again(_part_of(ref), link)
        elif link.last_job != job.job:
            self._never_launched(job, ref, link)

    def _batch_back(self, batch: Batch, link: LaneConnection) -> None:
        """The lane holds a batch. Members that were answered since keep their rows until its launch or copy ends."""
        daemon = self._daemon
        loop, answers = daemon.requests.book_loop, daemon.requests.answers
        leader, command = batch.members[0], copying(batch)
        live = [job for job in batch.members if job.state < FIRST_TERMINAL]
        if leader.is_copying:
            if live:
                loop.repeat(command)
            else:
                loop.dispatch(events.CopyDone(*batch.copy, error=True))
            return
        in_lane = lane_batch(command.members, command.rows, answers.refs)
        is_lost = leader.is_running and link.last_job != leader.job
        spoilt = [job for job in live if answers.refs[job.job].is_spoilt]
        if is_lost and not live:
            loop.dispatch(events.ResultArrived(leader.job, link.generation, EndReason.DAEMON_RESTARTED, 0, 0))
        elif is_lost and (spoilt or in_lane is None or not in_lane.can_launch):  # its launch cannot be built again
            for job in spoilt:
                loop.dispatch(events.SlotLost(job.job))
            if batch.members:
                loop.dispatch(events.LaunchFailed(batch.members[0].job, batch.members[0].attempt))
        elif in_lane is None:
            daemon.host.lanes.worker_gone(link, "its batch is not known: the tensors of its members do not stack")
        else:
            link.ref = answers.refs.get(leader.job) or answers.leaving.get(leader.job)
            link.batch = in_lane
            if is_lost or not leader.is_running:
                self._copy_again(parts_of(in_lane), link)
            if is_lost:
                loop.repeat(
                    commands.Launch(
                        leader.job, leader.attempt, link.lease, link.lane, link.generation, leader.kernel, leader.share
                    )
                )

    def _copy_again(self, parts: Iterable[tuple[Memory, Part]], link: LaneConnection) -> None:
        """Have the worker copy what its launch follows. An engine that keeps orders back counts a copy as done when it
        is ordered, and the order may have died with the former process."""
        copies = self._daemon.requests.copies
        if not copies.engine.keeps_back or link.memory is None:
            return
        for source, part in parts:
            copies.post(source, part.source, link.memory, part.target, part.nbytes, _ignored, None, link.lease)
        self._daemon.host.lanes.flush_soon()

    def _never_launched(self, job: Job, ref: JobRef, link: LaneConnection) -> None:
        """The job's launch was journalled but not received by the worker."""
        daemon = self._daemon
        if job.state >= FIRST_TERMINAL:  # answered meanwhile: it need not run
            daemon.requests.book_loop.dispatch(events.NeverLaunched(job.job, job.attempt))
        elif ref.is_spoilt:
            daemon.requests.book_loop.dispatch(events.SlotLost(job.job))
        else:
            link.ref = ref
            self._copy_again(_part_of(ref), link)
            daemon.requests.book_loop.repeat(
                commands.Launch(job.job, job.attempt, link.lease, link.lane, link.generation, job.kernel, job.share)
            )


def _part_of(ref: JobRef) -> Iterator[tuple[Memory, Part]]:
    """The copy of a job without a batch, as `parts_of`."""
    if not ref.is_spoilt:
        fabric = ref.session.fabric
        yield fabric.slots, Part(fabric.payload_offset(ref.slot), 0, ref.header.payload_bytes)


def _ignored(context: None, done: CopyCompletion) -> None:
    """A copy that cannot be ordered: the worker is lost, which its connection reports."""


def _bare(job: Job) -> RequestHeader:
    """The header fields that the book knows, for a header that cannot be read again."""
    return RequestHeader(0, job.request_id, job.kernel, job.demand.share, job.priority, 0, 0, 0, 0, b"")


def _header_in(session: Session, slot: int, job: Job) -> RequestHeader | None:
    """The slot's header, or None if it is not the accepted one."""
    if slot >= session.fabric.slot_count:
        return None
    copied = session.fabric.read_header(slot)
    try:
        header = parse_request(copied, session.fabric.payload_bytes)
    except HeaderError:
        return None
    checksum = int.from_bytes(copied[FIXED_BYTES - 4 : FIXED_BYTES], "little")
    accepted = (job.request_id, job.demand.payload_bytes, job.origin & _MASK)
    return header if (header.request_id, header.payload_bytes, checksum) == accepted else None


def _has_answer(session: Session, slot: int, job: Job) -> bool:
    """Whether the slot contains the complete answer of this request, the last one of a stream."""
    try:
        answer = parse_answer(session.fabric.read_answer(slot), session.fabric.result_bytes)
    except HeaderError:
        return False
    return answer.request_id == job.request_id and not answer.has_more


def restore_stream(session: Session, ref: JobRef) -> None:
    """Find the last answer of a stream in its slot. Only the requester knows whether it was taken."""
    stream = ref.stream
    if stream is None:
        return
    stream.is_restored = True
    copied = session.fabric.read_answer(ref.slot)
    try:
        answer = parse_answer(copied, session.fabric.result_bytes)
    except HeaderError:
        stream.written = None if any(copied) else 0  # the process ended while it wrote this header
        return
    if answer.request_id == ref.header.request_id and answer.has_more:
        stream.written, stream.is_taken = answer.number, False
