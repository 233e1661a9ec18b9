"""Manages the daemon's sessions from opening to end, and passes their requests to the job book."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from offpath.bindings.ports import FabricSession
from offpath.bindings.wire.header import (
    FLAG_IDEMPOTENT,
    FLAG_SEQUENCE_END,
    FLAG_SEQUENCE_START,
    FLAG_STREAM,
    RequestHeader,
)
from offpath.dpu_daemon.config import LimitsTable
from offpath.dpu_daemon.durability.storing import Store
from offpath.dpu_daemon.requests.answers import Answers
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.inflight import JobRef
from offpath.dpu_daemon.requests.pacing import Pacing
from offpath.dpu_daemon.requests.sessions import Session, memory_name
from offpath.dpu_daemon.requests.stacking import stack_of
from offpath.sched.jobs import commands, events

logger = logging.getLogger(__name__)
_FLUSH_S: Final = 1.0  # at the end: a service manager that does not read for so long stores nothing more
_MS: Final = 1_000_000
_RUNS_AGAIN: Final = FLAG_IDEMPOTENT | FLAG_STREAM
"""Flags that say whether a job may run again after a loss: not a stream, whose answers may have been taken."""


class SessionTable:
    """Implements `offpath.dpu_daemon.requests.sessions.Ingress`. Handles `EndSession` and `TenantGone`.

    Counts ``requests``, ``violations`` and, of sessions that have ended, ``header_bytes_read`` and
    ``answer_bytes_written``.
    """

    def __init__(
        self,
        book_loop: BookLoop,
        answers: Answers,
        pacing: Pacing,
        store: Store,
        counters: Counter[str],
        limits: Callable[[], LimitsTable],
    ) -> None:
        """``answers`` receives each new job before the book does. ``limits`` returns the limits in force."""
        self.by_number: dict[int, Session] = {}
        self.on_ended: list[Callable[[Session, str, str], None]] = []
        self.on_lost: list[Callable[[Session], None]] = []
        self.on_tenant_gone: list[Callable[[str], None]] = []
        self._book_loop = book_loop
        self._track = answers.track
        self._streams = answers.streams
        self._pacing = pacing
        self._store = store
        self._counters = counters
        self._limits = limits
        self._kernels = book_loop.book.ledger.kernels
        self._next_job = book_loop.book.ledger.last_job + 1
        book_loop.on(commands.EndSession, self._end)
        book_loop.on(commands.TenantGone, self._tenant_gone)

    # -- from opening to end --------------------------------------------------------------------------------------
    def opened(self, number: int, tenant: str, fabric: FabricSession, origin: str = "") -> Session:
        """Open a session after its ticket was redeemed. ``origin``: the session data that a restart needs."""
        session = self.restored(number, tenant, fabric)
        self._book_loop.dispatch(events.SessionOpened(number, tenant, fabric.slot_count, origin))
        return session

    def restored(self, number: int, tenant: str, fabric: FabricSession) -> Session:
        """Add a session that the book knows already."""
        session = Session(self, number, tenant, fabric, self._pacing.of(tenant))
        self.by_number[number] = session
        return session

    def lost(self, session: Session, detail: str) -> None:
        """The peer's connection broke. The session waits for the peer if it has a reason to reconnect."""
        is_kept = session.fabric.fails_alone or session.refs()
        if session.number in self.by_number and is_kept and self.on_lost:
            logger.info(
                "session %d of tenant %s lost its peer: %s",
                session.number,
                session.tenant,
                detail,
                extra={"code": "session_lost"},
            )
            session.detach()
            for callback in self.on_lost:
                callback(session)
        else:
            self.ended(session, "peer_gone", detail)

    def ended(self, session: Session, code: str, detail: str) -> None:
        """The peer left or was disconnected. Its jobs end first, while its memory is still mapped."""
        if self.by_number.pop(session.number, None) is None:
            return
        if code != "peer_gone":
            logger.warning(
                "session %d of tenant %s closed: %s %s",
                session.number,
                session.tenant,
                code,
                detail,
                extra={"code": "session_closed"},
            )
        self._book_loop.dispatch(events.SessionClosed(session.number))
        self._streams.session_ends(session.refs())
        self._counters["header_bytes_read"] += session.fabric.header_bytes_read
        self._counters["answer_bytes_written"] += session.fabric.answer_bytes_written
        for callback in self.on_ended:  # before its doorbells close: the peer then has the reason already
            callback(session, code, detail)
        self._store.forget(memory_name(session.number))  # before its descriptors close: they may be queued
        session.close()

    def _end(self, command: commands.EndSession) -> None:
        """End the session once the peer was notified of its last answers."""
        session = self.by_number.get(command.session)
        if session is not None:
            end = partial(self.ended, session, "tenant_removed", "the tenant was taken out of the configuration")
            session.when_answered(end, self._limits().drain_ms / 1e3)

    def _tenant_gone(self, command: commands.TenantGone) -> None:
        logger.info("tenant %s removed", command.tenant, extra={"code": "tenant_gone"})
        self._pacing.tenant_gone(command.tenant)
        for callback in self.on_tenant_gone:
            callback(command.tenant)

    def close(self, *, is_final: bool) -> None:
        """Close every session. Unless ``is_final``, the next process resumes them, so the book is not notified."""
        if is_final:
            for session in list(self.by_number.values()):
                self.ended(session, "daemon_ends", "the daemon is shutting down")
        else:
            self._store.flush(_FLUSH_S)
            for session in self.by_number.values():
                session.close()

    # -- requests -------------------------------------------------------------------------------------------------
    def submit(
        self, session: Session, slot: int, header: RequestHeader, header_crc: int, former: JobRef | None
    ) -> JobRef | None:
        """Submit a request with a valid header; its event also returns the credit of ``former``. After a restart,
        ``header_crc`` is compared with the slot. None: the journal failed and requests are no longer accepted."""
        if self._book_loop.is_read_only:
            return None
        job = self._next_job
        self._next_job = job + 1
        ref = JobRef(job, session, slot, header)
        self._track(ref)
        deadline_ns = self._book_loop.now_ns() + header.budget_ms * _MS if header.budget_ms else 0
        self._counters["requests"] += 1
        submitted = events.JobSubmitted(
            job, session.number, header.request_id, header.kernel_id, header.demand, header.priority, deadline_ns,
            header.payload_bytes, header.flags & _RUNS_AGAIN == FLAG_IDEMPOTENT, slot << 32 | header_crc,
            former.job if former is not None else 0,
        )  # fmt: skip
        if header.sequence_id:
            is_start, is_end = bool(header.flags & FLAG_SEQUENCE_START), bool(header.flags & FLAG_SEQUENCE_END)
            self._book_loop.dispatch(events.SequenceSubmitted(submitted, header.sequence_id, is_start, is_end))
            return ref
        kernel = self._kernels.get(header.kernel_id)
        if kernel is not None and kernel.batching is not None:
            rows, stack = stack_of(header)
            if rows:
                self._book_loop.dispatch(events.StackSubmitted(submitted, rows, stack))
                return ref
        self._book_loop.dispatch(submitted)
        return ref

    def credit(self, ref: JobRef) -> None:
        """The requester has read the answer."""
        self._book_loop.dispatch(events.CreditReturned(ref.job))

    def took(self, ref: JobRef, number: int) -> None:
        """The requester has read an answer of a stream. Raises: DoorbellError: it is not the one in the slot."""
        self._streams.took(ref, number)

    def came_back(self, ref: JobRef, taken: int) -> None:
        """The requester resumes, and has read so many answers of the job's stream."""
        self._streams.resumed(ref, taken)

    def cancel(self, ref: JobRef, operator_uid: int | None = None) -> None:
        """Cancel a job for its requester or for an operator."""
        if operator_uid is not None:
            ref.operator_uid = operator_uid
            logger.info(
                "job %d of tenant %s cancelled by uid %d",
                ref.job,
                ref.session.tenant,
                operator_uid,
                extra={"code": "job_cancelled"},
            )
        self._book_loop.dispatch(events.CancelRequested(ref.job, operator_uid))

    def violated(self) -> None:
        """Count a doorbell or header that violates the protocol."""
        self._counters["violations"] += 1
