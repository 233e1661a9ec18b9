"""Dynamic batching: jobs of one tenant and kernel whose tensors stack wait for each other, and share a launch.

They wait in a queue of their own, by kernel and stack. It is *ripe*, and may be placed, when its first jobs have a
preferred size, or when one of its jobs has waited as long as it may. As in Triton, they wait no longer once the tenant
submits a job of the kernel that cannot join them. A batch is formed when its lane is known, so it grows while all lanes
are in use. Its share counts once. Members that end before the launch leave the batch, and the rows of the others are
copied again, close to each other. Members that end later keep their rows until the launch has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offpath.sched.jobs import events
from offpath.sched.jobs.batch_size import MOST_MEMBERS
from offpath.sched.jobs.commands import Copy, CopyBatch
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Batch, Job, JobHeap, Lease, Tenant
from offpath.sched.jobs.ripeness import has_need
from offpath.sched.jobs.service import typical_ns
from offpath.sched.jobs.states import FIRST_TERMINAL, EndReason, JobState

PADDING_BYTES: Final = 1024
"""What aligning the tensors of a batch in its lane may take: 64 bytes for each of 16."""
End = Callable[[Job, JobState, EndReason, int, int, int], None]
Then = Callable[[Job, Lease, int], None]


class Batches:
    """Forms batches from queues and follows them until their last member has left. The callbacks are the book's."""

    def __init__(
        self,
        ledger: Ledger,
        leasing: Leasing,
        end: End,
        leave_lane: Callable[[Job, int], None],
        start: Then,
        start_waiting: Callable[[Lease, int], None],
        route: Callable[[Tenant, int], None],
    ) -> None:
        """``start`` launches a job whose copy has ended, or has it wait for share; ``start_waiting`` launches those
        that wait on a lease and now fit; ``route`` places the queued jobs that can be placed."""
        self._ledger = ledger
        self._leasing = leasing
        self._route = route
        self._end = end
        self._leave_lane = leave_lane
        self._start = start
        self._start_waiting = start_waiting

    # -- waiting for others ---------------------------------------------------------------------------------------
    def waits(self, job: Job, tenant: Tenant, event: events.StackSubmitted, now_ns: int) -> bool:
        """Decide for an accepted job whether it may share a launch, and how long it waits for others: for its kernel's
        delay, and less if its deadline would be close by then."""
        kernel = self._ledger.kernels.get(job.kernel)
        batching = kernel.batching if kernel is not None else None
        if batching is None or not event.stack or not 0 < event.rows < batching.max_rows:
            return False
        job.stack, job.rows = event.stack, event.rows
        job.ripe_ns = now_ns + batching.delay_ns
        if job.deadline_ns:
            spare_ns = typical_ns(tenant.service, job.kernel, now_ns) + batching.delay_ns
            job.ripe_ns = max(now_ns, min(job.ripe_ns, job.deadline_ns - spare_ns))
        return True

    def part(self, job: Job, tenant: Tenant, now_ns: int) -> bool:
        """An accepted job, not queued yet, cannot share a launch with those of its tenant that wait for others in
        another queue of its kernel: they wait no longer. True: some did."""
        if not tenant.stacked:
            return False
        kind, parted = job.queue_kind, False
        for other, queue in tenant.queues.items():
            head = queue.peek() if other != kind else None
            if head is not None and head.stack and head.kernel == job.kernel and queue.hurry(now_ns):
                parted = True
        return parted

    def came(self, job: Job, tenant: Tenant, now_ns: int) -> None:
        """A job that may wait for others is in its queue."""
        self.arm(tenant, job.ripe_ns)
        if tenant.spec.name in self._ledger.backlogged and not has_need(tenant, self._ledger, now_ns):
            self._leasing.need_met(tenant)  # it came before others, which form no batch behind it

    def arm(self, tenant: Tenant, when_ns: int) -> None:
        """Look at the tenant's queues at ``when_ns`` at the latest."""
        if not tenant.ripe_timer_ns or when_ns < tenant.ripe_timer_ns:
            tenant.ripe_timer_ns = when_ns
            self._ledger.timers.arm(when_ns, ("ripe", tenant.spec.name))

    def timer(self, name: str, now_ns: int) -> None:
        """Jobs of the tenant may have waited long enough: place them."""
        tenant = self._ledger.tenants.get(name)
        if tenant is None or not 0 < tenant.ripe_timer_ns <= now_ns:
            return  # the timer was moved
        tenant.ripe_timer_ns = 0
        self._arm_again(tenant, now_ns)
        self._route(tenant, now_ns)

    def kernels_changed(self, now_ns: int) -> None:
        """Other kernels are served, or batch otherwise: what waits for others may be ripe now, or not any more."""
        for tenant in self._ledger.tenants.values():
            if tenant.stacked:
                self._arm_again(tenant, now_ns)
                self._route(tenant, now_ns)
                if not has_need(tenant, self._ledger, now_ns):
                    self._leasing.need_met(tenant)

    def _arm_again(self, tenant: Tenant, now_ns: int) -> None:
        """Arm the timer for the first of the queued jobs that still wait for others."""
        jobs = [job for queue in tenant.queues.values() for job in queue.waiting() if job.stack]
        later = [job.ripe_ns for job in jobs if job.ripe_ns > now_ns]
        if later:
            self.arm(tenant, min(later))

    # -- on a lane ------------------------------------------------------------------------------------------------
    def form(self, leader: Job, tenant: Tenant, queue: JobHeap, now_ns: int) -> None:
        """The head of a ripe queue has a lane, and its copy is ordered: take along those behind it that fit."""
        assert leader.placement is not None
        lease = self._ledger.leases[leader.placement.lease]
        queue.pop()
        tenant.went(leader)
        most_rows, most_bytes = self._most_rows(leader, queue, now_ns), lease.view.landing_bytes - PADDING_BYTES
        rows, nbytes, members = leader.rows, leader.demand.payload_bytes, [leader]
        while (job := queue.peek()) is not None and len(members) < MOST_MEMBERS:
            rows, nbytes = rows + job.rows, nbytes + job.demand.payload_bytes
            if rows > most_rows or nbytes > most_bytes or job.is_due(now_ns):
                break
            queue.pop()
            tenant.went(job)
            members.append(job)
        if len(members) == 1:
            return
        self._ledger.out.pop()  # the copy of the leader alone
        batch = Batch(members, (leader.job, leader.attempt))
        for job in members:
            job.batch = batch
            job.placement, job.refusal = leader.placement, None
            job.state = JobState.COPYING
            job.is_copying = True
            job.placed_ns = now_ns
            job.share = leader.share
            lease.jobs[job.job] = job
        self._ledger.out.append(copying(batch))

    def _most_rows(self, leader: Job, queue: JobHeap, now_ns: int) -> int:
        """Rows of the next batch: a size that does not wait, or as many as the kernel takes if there is none, or if one
        of the jobs has waited for the delay. ``queue``: without the leader."""
        kernel = self._ledger.kernels.get(leader.kernel)
        batching = kernel.batching if kernel is not None else None
        if batching is None:
            return 0
        if batching.delay_ns and (leader.ripe_ns <= now_ns or queue.is_aged(now_ns)):
            return batching.max_rows
        return queue.formed_behind(leader, batching) or batching.max_rows

    def copied(self, batch: Batch, event: events.CopyDone, now_ns: int) -> bool:
        """All copies of the batch have ended. False: this is another copy."""
        if batch.copy != (event.job, event.attempt) or not batch.members[0].is_copying:
            return False
        answered = [job for job in batch.members if job.state >= FIRST_TERMINAL]
        staying = [job for job in batch.members if job.state < FIRST_TERMINAL]
        for job in batch.members:
            job.is_copying = False
        batch.is_ending = event.error and not answered
        leader = batch.members[0]
        assert leader.placement is not None
        lease = self._ledger.leases[leader.placement.lease]
        if answered:  # rows of theirs may have been overwritten meanwhile, and a copy from there may have failed
            self._part(batch, answered, now_ns)
        elif event.error:
            for job in staying:
                self._end(job, JobState.FAILED, EndReason.COPY_FAILED, now_ns, 0, 0)
        else:
            for job in staying:
                job.copied_ns = now_ns
            self._start(leader, lease, now_ns)
        return True

    def _part(self, batch: Batch, answered: list[Job], now_ns: int) -> None:
        """Answered members leave after a copy; the rows of the others, if there are any, are closed up once."""
        batch.is_ending = True
        for job in answered:
            job.is_copying = False
            self._leave_lane(job, now_ns)
        if batch.members:
            batch.is_ending = False
            self._close_up(batch)

    def left(self, job: Job, lease: Lease | None, now_ns: int) -> bool:
        """A member leaves its lane, of which nothing uses its rows any more. True: others keep the lane."""
        batch, placement = job.batch, job.placement
        assert batch is not None
        assert placement is not None
        leader = batch.members[0]
        batch.members.remove(job)
        job.batch = None
        if not batch.members:
            if job.is_copying and lease is not None:
                lease.orphaned_copies.add(batch.copy)
            job.is_copying = False
            return False
        job.is_copying = False
        job.placement = None
        if lease is None:
            return True
        del lease.jobs[job.job]
        if leader in lease.waiting:
            lease.waiting.remove(leader)
        if not (batch.is_ending or batch.members[0].is_running or placement.lane in lease.lost):
            # Only after a restart that ended the copy can further members be answered.
            self._part(batch, [other for other in batch.members if other.state >= FIRST_TERMINAL], now_ns)
            self._start_waiting(lease, now_ns)
        return True

    def _close_up(self, batch: Batch) -> None:
        """Copy the rows of the members again, without those of members that left."""
        leader = batch.members[0]
        assert leader.placement is not None
        leader.attempt += 1
        for job in batch.members:
            job.is_copying, job.copied_ns = True, 0
        if len(batch.members) > 1:
            batch.copy = leader.job, leader.attempt
            self._ledger.out.append(copying(batch))
        else:
            leader.batch = None
            self._ledger.out.append(Copy(leader.job, leader.attempt, leader.placement.lease, leader.placement.lane))

    def ended(self, batch: Batch, event: events.ResultArrived | events.BatchResult, now_ns: int) -> None:
        """The launch has ended: every member gets its rows, or its own reason."""
        failed = dict(event.failed) if isinstance(event, events.BatchResult) else {}
        batch.is_ending = True
        first_row = 0
        for job in batch.members:
            job.led_by, job.first_row, job.is_running = event.job, first_row, False
            first_row += job.rows
        for job in list(batch.members):
            if job.state >= FIRST_TERMINAL:
                self._leave_lane(job, now_ns)
                continue
            reason = failed.get(job.job, event.reason)
            state = JobState.COMPLETED if reason is EndReason.NONE else JobState.FAILED
            self._end(job, state, reason, now_ns, event.started_ns, event.finished_ns)


def copying(batch: Batch) -> CopyBatch:
    """The command that copies the batch; a shell that lost it may issue it again."""
    leader = batch.members[0]
    assert leader.placement is not None
    members, row = [], 0
    for job in batch.members:
        members.append((job.job, row))
        row += job.rows
    placement = leader.placement
    return CopyBatch(*batch.copy, placement.lease, placement.lane, row, tuple(members))
