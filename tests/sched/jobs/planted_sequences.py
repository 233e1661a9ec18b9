"""Bugs of sequences for `test_planted_bugs`: each with what the driver must say of it (a pattern)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from offpath.sched.jobs import admission, limits
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.limits import Limits
from offpath.sched.jobs.records import Job, JobHeap, Lease, Tenant
from offpath.sched.jobs.sequence import Sequence
from offpath.sched.jobs.sequences import Sequences
from offpath.sched.jobs.states import EndReason, JobState

Patch = Callable[[object, str, object], None]


def runs_members_on_any_lane(patch: Patch) -> None:
    lead = Sequences._lead

    def anywhere(self: Sequences, sequence: Sequence, job: Job, now_ns: int) -> None:
        lease, sequence.lease = sequence.lease, 0
        lead(self, sequence, job, now_ns)
        sequence.lease = lease

    patch(Sequences, "_lead", anywhere)


def takes_the_last_member_first(patch: Patch) -> None:
    go_on = Sequences._go_on

    def backwards(self: Sequences, sequence: Sequence, now_ns: int) -> None:
        sequence.later.reverse()
        go_on(self, sequence, now_ns)

    patch(Sequences, "_go_on", backwards)


def runs_two_members_at_once(patch: Patch) -> None:
    accepted = Sequences.accepted

    def hasty(self: Sequences, job: Job, event: Any, *others: Any) -> None:
        sequence = self._find(others[0], event)
        head = 0
        if sequence is not None and sequence.lease:
            head, sequence.head = sequence.head, 0
        accepted(self, job, event, *others)
        if sequence is not None and head:
            sequence.head = head

    patch(Sequences, "accepted", hasty)


def keeps_sequences_whose_worker_is_lost(patch: Patch) -> None:
    patch(Sequences, "lane_lost", lambda self, lease, lane, now_ns: None)


def runs_what_needs_a_lost_state(patch: Patch) -> None:
    patch(Sequences, "is_lost", lambda self, job: False)


def continues_what_was_never_started(patch: Patch) -> None:
    refuse = Sequences.refuse

    def trusting(self: Sequences, *given: Any) -> EndReason:
        refused = refuse(self, *given)
        return EndReason.NONE if refused is EndReason.SEQUENCE_UNKNOWN else refused

    patch(Sequences, "refuse", trusting)


def goes_on_without_its_start(patch: Patch) -> None:
    passed = Sequences.passed

    def careless(self: Sequences, job: Job, now_ns: int) -> None:
        was, job.is_start = job.is_start, False
        passed(self, job, now_ns)
        job.is_start = was

    patch(Sequences, "passed", careless)


def hides_jobs_of_sequences_from_the_policy(patch: Patch) -> None:
    patch(Ledger, "take_lane", lambda self, lease, lane, share, now_ns: self.pause_lane(lease, lane))


def runs_what_its_kernel_no_longer_takes(patch: Patch) -> None:
    patch(admission, "is_unlike", lambda job, ledger: False)


def leaves_states_in_workers(patch: Patch) -> None:
    drop = Sequences._drop_state
    patch(Sequences, "_drop_state", lambda self, one, now_ns, **how: drop(self, one, now_ns, is_dropped_there=True))


def waits_for_an_idle_sequence_for_ever(patch: Patch) -> None:
    patch(Sequences, "arm", lambda self, sequence: None)


def keeps_a_lease_for_its_sequences_for_ever(patch: Patch) -> None:
    patch(Limits, "_sequences_due_ns", lambda self, lease: 0)


def scrubs_a_lease_under_its_sequences(patch: Patch) -> None:
    drain = Leasing.drain

    def hard(self: Leasing, lease: Lease, now_ns: int, **how: bool) -> None:
        drain(self, lease, now_ns, **how)
        if lease.sequences and not lease.jobs:
            self._scrub(lease, now_ns)

    patch(Leasing, "drain", hard)


def forgets_that_a_cancelled_kernel_still_runs(patch: Patch) -> None:
    end, passed = Sequences.unqueued, Sequences.passed

    def at_once(self: Sequences) -> None:
        for job in list(self._ledger.leaving.values()):
            if job.sequence and job.state is JobState.CANCELLED and job.is_running:
                passed(self, job, job.answered_ns)

    def unqueued(self: Sequences, job: Job, tenant: Tenant) -> bool:
        at_once(self)
        return end(self, job, tenant)

    def turns(self: Sequences, tenant: Tenant) -> list[Job]:
        at_once(self)
        return [job for heap in tenant.turns.values() if (job := JobHeap.peek(heap)) is not None]

    patch(Sequences, "unqueued", unqueued)
    patch(Sequences, "turns", turns)


def ends_the_sequences_beside_a_lost_lane(patch: Patch) -> None:
    drain = Leasing.drain
    patch(Leasing, "drain", lambda self, lease, now_ns, **how: drain(self, lease, now_ns))


def believes_that_every_launch_ran(patch: Patch) -> None:
    patch(Sequences, "resulted", lambda self, job, reason: None)


def kills_a_worker_with_states_for_an_answered_kernel(patch: Patch) -> None:
    patch(limits, "has_others_states", lambda job, ledger: False)


BUGS: Final[dict[str, tuple[Callable[[Patch], None], str]]] = {
    plant.__name__: (plant, symptom)
    for plant, symptom in (
        (runs_members_on_any_lane, "its state is in|the policy counts|'s queue$"),
        (takes_the_last_member_first, "are in line in its sequence|SEQUENCE_LOST"),
        (runs_two_members_at_once, "are in line in its sequence|had to be answered|KeyError|not idle for so long"),
        (
            keeps_sequences_whose_worker_is_lost,
            r"bound to a lost lane|lane is lost|drains nothing|sequences \{.*\}, not|has sequences \{",
        ),
        (runs_what_needs_a_lost_state, "no worker has its state|had to be answered|await"),
        (continues_what_was_never_started, "refusal"),
        (goes_on_without_its_start, "had to be answered|launched before its start|keeps the state|drains nothing"),
        (hides_jobs_of_sequences_from_the_policy, "the policy counts"),
        (runs_what_its_kernel_no_longer_takes, "had to be answered"),
        (leaves_states_in_workers, r"keeps the state of sequence|closes under its sequences|, not \{"),
        (waits_for_an_idle_sequence_for_ever, "nobody ends"),
        (keeps_a_lease_for_its_sequences_for_ever, "had to be answered|drains nothing"),
        (
            scrubs_a_lease_under_its_sequences,
            "no worker is there|does not serve|closes under its sequences|sequences .*, not|drains",
        ),
        (ends_the_sequences_beside_a_lost_lane, "although nobody needs its room"),
        (believes_that_every_launch_ran, "had to be answered|keeps the state|drains|it starts none"),
        (kills_a_worker_with_states_for_an_answered_kernel, "nothing overran"),
        (
            forgets_that_a_cancelled_kernel_still_runs,
            r"has not left the lane|are in line|list\.remove|sequences .*, not|not idle for so long|'s queue$",
        ),
    )
}
