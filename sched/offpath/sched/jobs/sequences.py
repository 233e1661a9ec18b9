"""Sequence affinity: requests of a stateful kernel run on the worker that holds their sequence's state, one at a time
and in the order of their submission.

The first request of a sequence is placed like any other. The lane that it gets is the sequence's from then on; other
requests run on that lane in between. Of each sequence one job at most, the head, is in a queue or on a lane. The head
of a bound sequence waits for its lane in the tenant's ``turns``, the head of any other one in a queue.

The state is lost with the worker, and when a request that starts the sequence ends without having run. Then the jobs
that need the state end with SEQUENCE_LOST; a job that starts the sequence anew is placed like the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from offpath.sched.gpu.policy import Placement
from offpath.sched.jobs import events
from offpath.sched.jobs.commands import EndSequence
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.placing import free_lanes, may_join
from offpath.sched.jobs.records import Job, JobHeap, Lease, Session, Tenant
from offpath.sched.jobs.sequence import Sequence
from offpath.sched.jobs.states import FIRST_TERMINAL, EndReason, JobState, LeaseState

End = Callable[[Job, JobState, EndReason, int], None]
_NOT_RUN: Final = (EndReason.PAYLOAD_CHECKSUM, EndReason.STREAM_MISMATCH)
"""Reasons of results without a run of the kernel."""
_NO_PART: Final = (EndReason.DUPLICATE_ID, EndReason.BAD_SEQUENCE)
"""Reasons of refusals that tell nothing of the sequence: the request repeats another one, or may be of none."""
_UNUSABLE: Final = (LeaseState.SCRUBBING, LeaseState.FREE)


class Sequences:
    """Follows the sequences of the ledger. The callbacks are the book's."""

    def __init__(self, ledger: Ledger, leasing: Leasing, end: End, enqueue: Callable[[Job, Tenant, int], None]) -> None:
        """``enqueue`` puts a job into its tenant's queue."""
        self._ledger = ledger
        self._leasing = leasing
        self._end = end
        self._enqueue = enqueue
        self.moved: dict[str, Tenant] = {}
        """Tenants that got a head since the book last placed their jobs; it does so before the event is over."""

    # -- submission -----------------------------------------------------------------------------------------------
    def refuse(self, event: events.SequenceSubmitted, session: Session, tenant: Tenant) -> EndReason:
        """Return why the request, which is otherwise acceptable, has no place in a sequence, or NONE."""
        known = self._find(session, event)
        if known is not None and (event.is_start or not known.is_over):
            return EndReason.NONE
        if not event.is_start:
            return EndReason.SEQUENCE_UNKNOWN
        is_full = len(self._ledger.sequences) >= self._ledger.settings.max_sequences
        if known is None and (is_full or tenant.sequences >= tenant.spec.max_sequences):
            return EndReason.TOO_MANY_SEQUENCES
        return EndReason.NONE

    def accepted(
        self, job: Job, event: events.SequenceSubmitted, session: Session, tenant: Tenant, now_ns: int
    ) -> None:
        """Put an accepted job behind the others of its sequence, or at its head."""
        sequence = self._find(session, event)
        if sequence is None:
            sequence = Sequence(job.job, event.sequence_id, tenant.spec.name, session.session, job.kernel)
            self._ledger.sequences[sequence.number] = sequence
            session.sequences[job.kernel, event.sequence_id] = sequence.number
            tenant.sequences += 1
        job.sequence, job.is_start, job.is_end = sequence.number, event.is_start, event.is_end
        job.is_idempotent = False  # a second run would find another state
        sequence.is_over = event.is_end
        if sequence.head:
            job.state = JobState.QUEUED
            job.is_held = True
            tenant.awaiting += 1
            sequence.later.append(job.job)
        else:
            self._lead(sequence, job, now_ns)

    def refused(self, event: events.SequenceSubmitted, session: Session, reason: EndReason, now_ns: int) -> None:
        """A request that starts a sequence anew, or ends it, was refused: no later one may find the former state."""
        known = self._find(session, event)
        if known is None or not (event.is_start or event.is_end) or reason in _NO_PART:
            return
        known.is_over = True
        if not known.head:
            self._go_on(known, now_ns)

    def _find(self, session: Session, event: events.SequenceSubmitted) -> Sequence | None:
        number = session.sequences.get((event.submitted.kernel, event.sequence_id), 0)
        return self._ledger.sequences.get(number)

    # -- waiting --------------------------------------------------------------------------------------------------
    def _lead(self, sequence: Sequence, job: Job, now_ns: int) -> None:
        """The job is the head: it waits for the sequence's lane, or as any other job."""
        tenant = self._ledger.tenants[sequence.tenant]
        sequence.head, sequence.idle_since_ns = job.job, 0
        if job.is_start:
            self._end_state(sequence)
            sequence.state = job.job
        job.sequence_state = sequence.state
        self.moved[sequence.tenant] = tenant
        if not sequence.lease:
            job.demand = replace(job.demand, helpers=self._ledger.helpers.only_on.get(job.kernel, ()))
            self._enqueue(job, tenant, now_ns)
            return
        job.state = JobState.QUEUED
        job.turn = sequence.lease, sequence.lane
        tenant.turns.setdefault(job.turn, JobHeap()).push(job)
        tenant.awaiting += 1

    def unqueued(self, job: Job, tenant: Tenant) -> bool:
        """A job was answered while it waited. False: it was in a queue."""
        if job.is_held:
            job.is_held = False
            tenant.awaiting -= 1
            return True
        if job.turn is None:
            return False
        heap = tenant.turns[job.turn]
        heap.removed(job)
        if not len(heap):
            del tenant.turns[job.turn]
        job.turn = None
        tenant.awaiting -= 1
        return True

    def turns(self, tenant: Tenant) -> list[Job]:
        """The heads whose lane is free, and who wait for no stream there: the first one for each lane."""
        found = []
        for (number, lane), heap in tenant.turns.items():
            lease, job = self._ledger.leases[number], heap.peek()
            if job is None or any(
                held.placement is not None and held.placement.lane == lane for held in lease.jobs.values()
            ):
                continue
            if may_join(lease, job, self._ledger.sequences[job.sequence].share, tenant):
                found.append(job)
        return found

    def seat(self, job: Job, tenant: Tenant) -> Placement:
        """Take the lane of the head's sequence, which is free. The policy is told that the lane takes no job; it does
        not count the share."""
        assert job.turn is not None
        number, lane = job.turn
        placement, heap = Placement(number, lane, False), tenant.turns[job.turn]
        heap.pop()
        if not len(heap):
            del tenant.turns[job.turn]
        job.turn = None
        tenant.awaiting -= 1
        self._ledger.take_lane(self._ledger.leases[number], lane)
        job.is_seated = True
        return placement

    def placed(self, job: Job, lease: Lease, now_ns: int) -> Placement:
        """The head is placed. The lane of a sequence that has none is the sequence's from now on: of the free lanes of
        the lease the one with the fewest sequences. R of a sequence is that of the request that was placed first."""
        sequence, placement = self._ledger.sequences[job.sequence], job.placement
        assert placement is not None
        if job.is_seated:
            job.demand = replace(job.demand, share=sequence.share, models=())
            return placement
        lane = self._emptiest(lease, placement.lane)
        if lane != placement.lane:
            self._ledger.take_lane(lease, lane)
            self._ledger.free_lane(lease, placement, 0, now_ns)
            placement = Placement(placement.lease, lane, placement.is_prefetch)
        sequence.lease, sequence.lane, sequence.share = placement.lease, lane, job.demand.share_on(lease.view.model)
        lease.sequences[lane] = lease.sequences.get(lane, 0) + 1
        return placement

    @staticmethod
    def _emptiest(lease: Lease, placed: int) -> int:
        return min([*free_lanes(lease), placed], key=lambda lane: (lease.sequences.get(lane, 0), lane != placed, lane))

    def launched(self, job: Job) -> None:
        """The head was launched: its worker may hold the sequence's state, if the sequence is still bound."""
        sequence = self._ledger.sequences.get(job.sequence)
        if sequence is not None and sequence.lease:
            sequence.has_state = True

    def resulted(self, job: Job, reason: EndReason) -> None:
        """The head's launch has ended. If the kernel did not run for a request that starts the sequence, there is no
        state."""
        sequence = self._ledger.sequences.get(job.sequence)
        if sequence is not None and job.is_start and reason in _NOT_RUN:
            sequence.is_ending = True

    # -- going on -------------------------------------------------------------------------------------------------
    def passed(self, job: Job, now_ns: int) -> None:
        """A job was answered and has left its lane or queue: the next one is the head."""
        sequence = self._ledger.sequences.get(job.sequence)
        if sequence is None:
            return
        if sequence.head == job.job:
            sequence.head = 0
            if job.is_end or sequence.is_ending or (job.is_start and not job.launches):
                self._drop_state(sequence, now_ns, is_dropped_there=job.is_end and job.launches > 0)
            self._go_on(sequence, now_ns)
        elif job.job in sequence.later:
            at = sequence.later.index(job.job)
            del sequence.later[at]
            if job.is_start:
                self._cut(sequence, at, now_ns)

    def _go_on(self, sequence: Sequence, now_ns: int) -> None:
        """Without a head: lead the next job, or wait for one that may follow, as long as the worker holds the state."""
        if not sequence.has_state:
            self._cut(sequence, 0, now_ns)
        if sequence.later:
            job = self._ledger.jobs[sequence.later.pop(0)]
            job.is_held = False
            self._ledger.tenants[sequence.tenant].awaiting -= 1
            self._lead(sequence, job, now_ns)
        elif sequence.has_state and not sequence.is_over:
            sequence.idle_since_ns = now_ns
            self.arm(sequence)
        else:
            self._drop_state(sequence, now_ns)
            self._forget(sequence)

    def _cut(self, sequence: Sequence, at: int, now_ns: int) -> None:
        """End the jobs from ``at`` on that need a state which is lost, up to one that starts the sequence anew."""
        later, jobs = sequence.later, self._ledger.jobs
        while at < len(later) and not jobs[later[at]].is_start:
            self._end(jobs[later.pop(at)], JobState.CANCELLED, EndReason.SEQUENCE_LOST, now_ns)
        if at == len(later):
            sequence.is_over = True

    def is_lost(self, job: Job) -> bool:
        """True if a job whose lane is gone may not run on another one: it needs a state that no worker holds."""
        sequence = self._ledger.sequences.get(job.sequence)
        return sequence is None or not (job.is_start or sequence.has_state)

    # -- ends -----------------------------------------------------------------------------------------------------
    def arm(self, sequence: Sequence) -> None:
        """Arm the timer of an idle sequence."""
        if sequence.idle_since_ns:
            due_ns = sequence.idle_since_ns + self._ledger.settings.sequence_idle_ns
            self._ledger.timers.arm(due_ns, ("sequence", sequence.number))

    def timer(self, number: int, now_ns: int) -> None:
        """End a sequence that was idle for too long."""
        sequence = self._ledger.sequences.get(number)
        if sequence is not None and 0 < self._ledger.sequence_due_ns(sequence) <= now_ns:
            self._drop_state(sequence, now_ns)
            self._forget(sequence)

    def lane_lost(self, lease: Lease, lane: int, now_ns: int) -> None:
        """The state of the lane's sequences is gone. The caller then ends or requeues what is on the lane."""
        for sequence in self._on(lease):
            if sequence.lane == lane:
                self._lose_state(sequence, now_ns, is_alive=False)

    def lease_lost(self, lease: Lease, now_ns: int) -> None:
        """As `lane_lost`, for all lanes of a lease that is gone."""
        for sequence in self._on(lease):
            self._lose_state(sequence, now_ns, is_alive=False)

    def lease_ends(self, lease: Lease, now_ns: int) -> None:
        """Sequences may not stay on the lease: what is on its lanes finishes there, and the state is dropped."""
        lease.is_forsaken = lease.state is LeaseState.DRAINING
        for sequence in self._on(lease):
            self._lose_state(sequence, now_ns, is_alive=True)

    def tenant_left(self, tenant: str, now_ns: int) -> None:
        """The tenant was removed; its queued jobs are ended."""
        for sequence in [each for each in self._ledger.sequences.values() if each.tenant == tenant]:
            self._lose_state(sequence, now_ns, is_alive=True)

    def session_closes(self, session: Session) -> None:
        """All jobs of the session are about to be ended: none of them shall become a head."""
        for number in session.sequences.values():
            self._ledger.sequences[number].later.clear()

    def session_closed(self, session: Session, now_ns: int) -> None:
        """All jobs of the session are ended: so are its sequences."""
        for number in session.sequences.values():
            sequence = self._ledger.sequences.get(number)
            if sequence is not None:  # else the end of its last job was its end
                self._drop_state(sequence, now_ns)
                self._forget(sequence)

    def _on(self, lease: Lease) -> list[Sequence]:
        if not lease.sequences:
            return []
        return [each for each in self._ledger.sequences.values() if each.lease == lease.view.lease]

    def _lose_state(self, sequence: Sequence, now_ns: int, *, is_alive: bool) -> None:
        """``is_alive``: the worker is there, and a job that is on the lane finishes with its state."""
        head = self._ledger.jobs.get(sequence.head) or self._ledger.leaving.get(sequence.head)
        if is_alive and head is not None and head.placement is not None:
            sequence.is_ending = True
            self._cut(sequence, 0, now_ns)
            return
        self._drop_state(sequence, now_ns, is_dropped_there=not is_alive)
        if head is not None and head.is_start and not head.launches and head.state < FIRST_TERMINAL:
            if head.turn:  # it needs no state, and so not that lane
                self.unqueued(head, self._ledger.tenants[sequence.tenant])
                self._lead(sequence, head, now_ns)
            return
        self._cut(sequence, 0, now_ns)
        if head is None:
            self._go_on(sequence, now_ns)
        elif head.turn:
            self._end(head, JobState.CANCELLED, EndReason.SEQUENCE_LOST, now_ns)

    def _drop_state(self, sequence: Sequence, now_ns: int, *, is_dropped_there: bool = False) -> None:
        """The sequence is bound to no lane any more. ``is_dropped_there``: its worker needs no order for it."""
        lease = self._ledger.leases.get(sequence.lease)
        if lease is not None:
            self._unbind(sequence, lease)
        self._end_state(sequence, is_dropped_there=is_dropped_there)
        sequence.lease = sequence.lane = sequence.share = 0
        sequence.is_ending = False
        if lease is not None and not lease.jobs and not lease.sequences:
            self._leasing.went_idle(lease, now_ns)

    def _end_state(self, sequence: Sequence, *, is_dropped_there: bool = False) -> None:
        """No request will need the state. The next one has another number, so the order may arrive late."""
        lease = self._ledger.leases.get(sequence.lease)
        has_state, sequence.has_state = sequence.has_state, False
        if lease is None or not has_state or is_dropped_there:
            return
        if sequence.lane not in lease.lost and lease.state not in _UNUSABLE:
            self._ledger.out.append(EndSequence(sequence.lease, sequence.lane, lease.generation, sequence.state))

    @staticmethod
    def _unbind(sequence: Sequence, lease: Lease) -> None:
        lease.sequences[sequence.lane] -= 1
        if not lease.sequences[sequence.lane]:
            del lease.sequences[sequence.lane]

    def _forget(self, sequence: Sequence) -> None:
        del self._ledger.sequences[sequence.number]
        self._ledger.tenants[sequence.tenant].sequences -= 1
        session = self._ledger.sessions.get(sequence.session)
        if session is not None:
            session.sequences.pop((sequence.kernel, sequence.sequence_id), None)
