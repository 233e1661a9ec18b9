"""Bugs of batches for `test_planted_bugs`: each with what the driver must say of it (a pattern)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from offpath.sched.jobs import batches, events, limits
from offpath.sched.jobs.batches import Batches
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import CopyBatch
from offpath.sched.jobs.records import Batch, Job, JobHeap, Lease, Tenant
from offpath.sched.jobs.states import JobState

Patch = Callable[[object, str, object], None]


def fills_a_batch_with_jobs_of_another_tenant(patch: Patch) -> None:
    form, copying = Batches.form, batches.copying

    def greedy(self: Batches, leader: Job, tenant: Tenant, queue: JobHeap, now_ns: int) -> None:
        form(self, leader, tenant, queue, now_ns)
        for other in self._ledger.tenants.values():
            for mates in list(other.queues.values()):
                job = mates.peek()
                if other is not tenant and job and (job.kernel, job.stack) == (leader.kernel, leader.stack):
                    mates.pop()
                    other.went(job)
                    batch = leader.batch or Batch([leader], (leader.job, leader.attempt))
                    batch.members.append(job)
                    leader.batch = job.batch = batch
                    job.placement, job.state, job.is_copying = leader.placement, JobState.COPYING, True
                    self._ledger.out[-1] = copying(batch)
                    return

    patch(Batches, "form", greedy)


def launches_a_batch_with_the_rows_of_members_that_expired(patch: Patch) -> None:
    def copied(self: Batches, batch: Batch, event: events.CopyDone, now_ns: int) -> bool:
        for job in batch.members:
            job.is_copying, job.copied_ns = False, now_ns
        leader = batch.members[0]
        assert leader.placement is not None
        self._start(leader, self._ledger.leases[leader.placement.lease], now_ns)
        return True

    patch(Batches, "copied", copied)


def leaves_the_rows_of_a_member_that_left_while_its_batch_waited(patch: Patch) -> None:
    left = Batches.left

    def as_it_was(self: Batches, job: Job, lease: Lease | None, now_ns: int) -> bool:
        batch = job.batch
        is_waiting = batch is not None and lease is not None and batch.members[0] in lease.waiting
        if batch is None or lease is None or not is_waiting:
            return left(self, job, lease, now_ns)
        lease.waiting.remove(batch.members[0])
        was, batch.is_ending = batch.is_ending, True
        stays = left(self, job, lease, now_ns)
        batch.is_ending = was
        if stays:
            lease.waiting.append(batch.members[0])
        return stays

    patch(Batches, "left", as_it_was)


def counts_the_share_of_each_member(patch: Patch) -> None:
    launch = JobBook._launch

    def dear(self: JobBook, job: Job, lease: Lease, now_ns: int) -> None:
        launch(self, job, lease, now_ns)
        lease.running_share += job.share * (len(job.members) - 1)

    patch(JobBook, "_launch", dear)


def starts_no_clock_for_a_wait(patch: Patch) -> None:
    patch(Batches, "arm", lambda self, tenant, when_ns: None)


def lays_rows_over_each_other(patch: Patch) -> None:
    copying = batches.copying

    def close(batch: Batch) -> CopyBatch:
        command = copying(batch)
        return replace(command, members=tuple((job, max(0, row - 1)) for job, row in command.members))

    patch(batches, "copying", close)


def takes_more_rows_than_the_kernel(patch: Patch) -> None:
    patch(Batches, "_most_rows", lambda self, leader, queue, now_ns: 1_000)


def lets_an_answered_member_end_the_launch_of_the_others(patch: Patch) -> None:
    def first(job: Job, ledger: object) -> int:
        return min([due for each in job.members if (due := limits._due_ns(each, ledger))], default=0)  # type: ignore[arg-type]

    patch(limits, "launch_due_ns", first)


def waits_for_nobody(patch: Patch) -> None:
    waits = Batches.waits

    def hasty(self: Batches, job: Job, tenant: Tenant, event: events.StackSubmitted, now_ns: int) -> bool:
        found = waits(self, job, tenant, event, now_ns)
        job.ripe_ns = now_ns
        return found

    patch(Batches, "waits", hasty)


def lets_a_deadline_end_the_wait_at_once(patch: Patch) -> None:
    waits = Batches.waits

    def hasty(self: Batches, job: Job, tenant: Tenant, event: events.StackSubmitted, now_ns: int) -> bool:
        found = waits(self, job, tenant, event, now_ns)
        if job.deadline_ns:
            job.ripe_ns = now_ns
        return found

    patch(Batches, "waits", hasty)


def waits_past_deadlines(patch: Patch) -> None:
    waits = Batches.waits

    def patient(self: Batches, job: Job, tenant: Tenant, event: events.StackSubmitted, now_ns: int) -> bool:
        found = waits(self, job, tenant, event, now_ns)
        kernel = self._ledger.kernels.get(job.kernel)
        if found and kernel is not None and kernel.batching is not None:
            job.ripe_ns = now_ns + kernel.batching.delay_ns
        return found

    patch(Batches, "waits", patient)


def waits_longer_than_the_delay(patch: Patch) -> None:
    waits = Batches.waits

    def slow(self: Batches, job: Job, tenant: Tenant, event: events.StackSubmitted, now_ns: int) -> bool:
        found = waits(self, job, tenant, event, now_ns)
        job.ripe_ns += (job.ripe_ns - now_ns) // 2
        return found

    patch(Batches, "waits", slow)


def takes_a_preferred_size_for_a_lower_bound(patch: Patch) -> None:
    patch(JobHeap, "forms", lambda self, batching: self.rows >= batching.sizes[0])


def takes_more_rows_than_the_preferred_size(patch: Patch) -> None:
    def all_(self: Batches, leader: Job, queue: JobHeap, now_ns: int) -> int:
        kernel = self._ledger.kernels.get(leader.kernel)
        return kernel.batching.max_rows if kernel is not None and kernel.batching is not None else 0

    patch(Batches, "_most_rows", all_)


def has_others_wait_on_behind_a_request_that_cannot_join(patch: Patch) -> None:
    patch(Batches, "part", lambda self, job, tenant, now_ns: False)


BUGS: Final[dict[str, tuple[Callable[[Patch], None], str]]] = {
    plant.__name__: (plant, symptom)
    for plant, symptom in (
        (fills_a_batch_with_jobs_of_another_tenant, "the lease is|a batch of"),
        (
            launches_a_batch_with_the_rows_of_members_that_expired,
            "rows of answered|answered or never was|before its CopyDone",
        ),
        (leaves_the_rows_of_a_member_that_left_while_its_batch_waited, "rows of answered|before its CopyDone"),
        (counts_the_share_of_each_member, "running share"),
        (starts_no_clock_for_a_wait, "nobody looks when a batch|need is not filed|next_deadline_ns is late"),
        (lays_rows_over_each_other, "rows overlap"),
        (takes_more_rows_than_the_kernel, "more rows than allowed"),
        (lets_an_answered_member_end_the_launch_of_the_others, "nothing overran"),
        (waits_for_nobody, "it should wait for others|nobody looks when a batch|needs nothing"),
        (lets_a_deadline_end_the_wait_at_once, "it should wait for others|needs nothing"),
        (waits_past_deadlines, "nobody looks when a batch|need is not filed|has a free lane for the queued"),
        (takes_a_preferred_size_for_a_lower_bound, "it should wait for others|needs nothing"),
        (takes_more_rows_than_the_preferred_size, "rows do not wait"),
        (
            has_others_wait_on_behind_a_request_that_cannot_join,
            "nobody looks|need is not filed|has a free lane|was before",
        ),
        (waits_longer_than_the_delay, "nobody looks when a batch|need is not filed|has a free lane for the queued"),
    )
}
