"""Sessions of requesters: from the redeemed ticket to the end, and the credits of their answers."""

from __future__ import annotations

from offpath.sched.jobs import events
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.limits import End
from offpath.sched.jobs.records import Session
from offpath.sched.jobs.reload import Reload
from offpath.sched.jobs.sequences import Sequences
from offpath.sched.jobs.states import FIRST_TERMINAL, EndReason, JobState


class Sessions:
    """Handles the events of sessions; ``end`` is the book's."""

    def __init__(self, ledger: Ledger, reload: Reload, sequences: Sequences, end: End) -> None:
        self._ledger = ledger
        self._reload = reload
        self._sequences = sequences
        self._end = end

    def opened(self, event: events.SessionOpened, now_ns: int) -> None:
        """A requester may submit jobs."""
        self._ledger.last_session = max(self._ledger.last_session, event.session)
        tenant = self._ledger.tenants[event.tenant]
        tenant.sessions += 1
        self._ledger.sessions[event.session] = session = Session(
            event.session, event.tenant, event.credits, origin=event.origin
        )
        if tenant.is_leaving:
            self._reload.came_late(tenant, session)

    def closed(self, event: events.SessionClosed, now_ns: int) -> None:
        """A requester is gone: its jobs end."""
        session = self._ledger.sessions.pop(event.session, None)
        if session is None:
            return
        tenant = self._ledger.tenants[session.tenant]
        tenant.sessions -= 1
        tenant.outgoing.pop(session.session, None)
        self._sequences.session_closes(session)
        # Queued jobs first, then the last copied. Otherwise freed lanes go to jobs that are about to be cancelled.
        for job in sorted(session.jobs.values(), key=lambda job: (job.state is not JobState.QUEUED, -job.copied_ns)):
            if job.state < FIRST_TERMINAL:
                self._end(job, JobState.CANCELLED, EndReason.SESSION_CLOSED, now_ns)
            del self._ledger.jobs[job.job]
        session.jobs.clear()
        self._sequences.session_closed(session, now_ns)

    def credit_returned(self, event: events.CreditReturned, now_ns: int) -> None:
        """A requester has taken an answer."""
        self.delivered(event.job)

    def delivered(self, number: int) -> None:
        """Forget a job whose answer was taken."""
        job = self._ledger.jobs.get(number)
        if job is not None and job.state >= FIRST_TERMINAL:
            del self._ledger.jobs[job.job]
            del self._ledger.sessions[job.session].jobs[job.job]
