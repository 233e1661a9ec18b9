"""What the book may put into a lane together, and when, from the same facts; `shadow` asks it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import Copy, CopyBatch
from offpath.sched.jobs.states import JobState

from .shadow_admission import is_permitted
from .shadow_records import Occupant, ShadowJob, ShadowLease, promise

if TYPE_CHECKING:
    from .shadow import Shadow

PADDING = 1024
MOST_MEMBERS = 256


def stacked(shadow: Shadow, job: ShadowJob, event: events.StackSubmitted) -> None:
    """The job may share a launch, if its kernel batches and it does not fill a batch alone."""
    batching = shadow.offered_kernels.batching.get(job.event.kernel)
    if batching is not None and event.stack and 0 < event.rows < batching.max_rows:
        job.stack, job.rows = event.stack, event.rows
        job.ripe_by_ns = job.ripe_from_ns = shadow.now_ns + batching.delay_ns
        if job.event.deadline_ns:  # the usual run time is at most the longest
            latest_ns = job.event.deadline_ns - batching.delay_ns
            job.ripe_from_ns = max(shadow.now_ns, min(job.ripe_by_ns, latest_ns - shadow.longest_run_ns))
            job.ripe_by_ns = max(shadow.now_ns, min(job.ripe_by_ns, latest_ns))


def group_of(shadow: Shadow, job: ShadowJob) -> list[ShadowJob]:
    """The queued jobs with which it could share a launch, in their order; of a job that does not batch itself."""
    if not job.stack:
        return [job]
    key = job.tenant, job.event.kernel, job.stack, job.needs
    mates = [
        other
        for other in shadow.live.values()
        if other.phase == "queued" and (other.tenant, other.event.kernel, other.stack, other.needs) == key
    ]
    return sorted(mates, key=lambda other: other.rank(shadow.settings.priority_step_ns))


def parted(shadow: Shadow, job: ShadowJob) -> list[ShadowJob]:
    """A job was accepted: those of its tenant that wait for others to share a launch of its kernel, and that cannot
    share one with it. They need wait no longer, and with the event's last command they must not."""
    if job.follows is not None or job.event.kernel not in shadow.kernels:
        return []
    found = [
        other
        for other in shadow.live.values()
        if other.phase == "queued" and other.stack and other.event.kernel == job.event.kernel
        and other.tenant == job.tenant and (other.stack, other.needs) != (job.stack, job.needs)
    ]  # fmt: skip
    for other in found:
        shadow.seen["batch parted"] += other.ripe_from_ns > shadow.now_ns
        other.ripe_from_ns = min(other.ripe_from_ns, shadow.now_ns)
    return found


def formed(group: Sequence[ShadowJob], batching: events.Batching) -> int:
    """Rows of the batch that does not wait; 0: it waits. Of the numbers of rows that the first jobs have: the largest
    one that is a size; else, if they go beyond all sizes or are as many jobs as may be, the last one that does not."""
    sizes = batching.preferred or (batching.max_rows,)
    rows = list(accumulate(job.rows for job in group[:MOST_MEMBERS]))
    within = [each for each in rows if each <= sizes[-1]]
    exact = [each for each in within if each in sizes]
    if exact:
        return exact[-1]
    is_full = len(within) < len(rows) or len(rows) == MOST_MEMBERS
    return (within or rows)[-1 if within else 0] if is_full else 0


def _is_late(job: ShadowJob, now_ns: int) -> bool:
    return job.ripe_by_ns <= now_ns


def is_surely_ripe(shadow: Shadow, job: ShadowJob) -> bool:
    """Nothing may keep it waiting for others."""
    batching = shadow.offered_kernels.batching.get(job.event.kernel)
    if not job.stack or batching is None:
        return True
    group = group_of(shadow, job)
    return formed(group, batching) > 0 or any(_is_late(mate, shadow.now_ns) for mate in group)


def is_maybe_ripe(shadow: Shadow, job: ShadowJob) -> bool:
    """A deadline may end the wait before the delay does; when, depends on run times that nobody else estimates."""
    soonest_ns = min(mate.ripe_from_ns for mate in group_of(shadow, job))
    return is_surely_ripe(shadow, job) or soonest_ns <= shadow.now_ns


def judge_copy(shadow: Shadow, command: Copy | CopyBatch) -> None:
    """A copy to a lane: of jobs that were queued, or again of those that stay in a batch."""
    members = command.members if isinstance(command, CopyBatch) else ((command.job, 0),)
    numbers = [number for number, _ in members]
    lease, leader = shadow.lane_of(command, command.job)
    jobs = [shadow.lane_of(command, number)[1] for number in numbers]
    promise(numbers[0] == command.job and len(set(numbers)) == len(numbers), f"{command}: members twice, or no leader")
    if isinstance(command, CopyBatch):
        rows = [job.rows for job in jobs]
        promise([row for _, row in members] == [0, *accumulate(rows)][:-1], f"{command}: rows overlap, or leave a gap")
        promise(command.rows == sum(rows), f"{command}: it has {sum(rows)} rows")
        alike = {(job.tenant, job.event.kernel, job.stack, job.needs) for job in jobs}
        promise(len(jobs) > 1 and len(alike) == 1, f"{command}: a batch of {alike}")
    promise(command.attempt > leader.attempt, f"{command}: the attempt is not new")
    occupant = lease.lanes.get(command.lane)
    if occupant is not None and occupant.phase == "closing":
        promise(jobs == occupant.members, f"{command}: {[job.event.job for job in occupant.members]} stay")
        for job in jobs:
            job.phase = "copying"
            del job.way[2:]
        shadow.seen["batch closed up"] += 1
    else:
        share = _judge_placement(shadow, command, lease, jobs)
        lease.lanes[command.lane] = occupant = Occupant(jobs, command.attempt, share)
        for job in jobs:
            job.goes_on("copying", shadow.now_ns)
            job.attempt = max(job.attempt, 0)
        if lease.running_share + share > lease.alpha:
            shadow.seen["prefetch"] += 1
    occupant.phase = "copying"
    occupant.attempt = leader.attempt = command.attempt
    lease.flying.add((command.job, command.attempt))


def _judge_placement(shadow: Shadow, command: Copy | CopyBatch, lease: ShadowLease, jobs: list[ShadowJob]) -> int:
    promise(command.lane not in lease.lanes, f"{command}: its previous job has not left the lane")
    is_bound = jobs[0].sequence is not None and jobs[0].sequence.place is not None
    promise(not lease.lost or is_bound, f"{command}: the lease drains")
    has_present_code = command.lane not in lease.stale and command.lane not in lease.renewing
    promise(has_present_code, f"{command}: the lane's worker runs the code from before the reload")
    for job in jobs:
        if job.follows is not None:
            assert isinstance(command, Copy)
            shadow.sequences.judge_placement(command, job)
        promise(job.phase == "queued", f"{command}: the job is {job.phase}")
        promise(job.event.kernel in shadow.kernels, f"{command}: nobody serves its kernel")
        promise(is_permitted(shadow, job), f"{command}: its tenant may not call its kernel")
        promise(
            is_bound or lease.share_of(job) > 0, f"{command}: {job.needs} does not fit {lease.opened} on {lease.model}"
        )
        shadow.seen["memory stated"] += job.needs.memory_bytes > 0
        shadow.seen["R by model"] += bool(job.needs.models)
    leader = jobs[0]
    place = (command.lease, command.lane) if is_bound else None
    first = min(
        (
            other
            for other in shadow.live.values()
            if (is_bound or other.is_queued_like(leader))
            and _waits_alike(shadow, other, place)
            and other.event.kernel in shadow.kernels
            and (other is leader or is_surely_ripe(shadow, other))
        ),
        key=lambda other: other.rank(shadow.settings.priority_step_ns),
    )
    promise(first is leader, f"{command}: job {first.event.job} was before it")
    if leader.stack:
        _judge_size(shadow, command, lease, jobs)
    if leader.sequence is not None:
        if not is_bound:
            leader.sequence.share = lease.share_of(leader)
            leader.sequence.place = command.lease, command.lane
        return int(leader.sequence.share)
    return lease.share_of(leader)


def _waits_alike(shadow: Shadow, job: ShadowJob, place: tuple[int, int] | None) -> bool:
    """It waits for any lane, or if ``place`` is given, as the first of its sequence for that one."""
    if place is None:
        return not shadow.sequences.awaits(job)
    sequence = job.sequence
    return job.phase == "queued" and sequence is not None and sequence.place == place and sequence.line[0] is job


def _judge_size(shadow: Shadow, command: Copy | CopyBatch, lease: ShadowLease, jobs: list[ShadowJob]) -> None:
    """As many as were enough, or as fit; nobody is left out."""
    promise(is_maybe_ripe(shadow, jobs[0]), f"{command}: it should wait for others")
    group, batching = group_of(shadow, jobs[0]), shadow.offered_kernels.batching.get(jobs[0].event.kernel)
    promise(group[: len(jobs)] == jobs, f"{command}: {[job.event.job for job in group]} is their order")
    rows, nbytes = sum(job.rows for job in jobs), sum(job.event.payload_bytes for job in jobs)
    room = lease.opened.landing_bytes - PADDING
    promise(
        len(jobs) == 1 or (batching is not None and rows <= batching.max_rows), f"{command}: more rows than allowed"
    )
    promise(len(jobs) == 1 or nbytes <= room, f"{command}: the lane does not hold {nbytes} bytes")
    if batching is None:
        return
    size, is_late = formed(group, batching), any(_is_late(job, shadow.now_ns) for job in group)
    may_be_late = is_late or any(job.ripe_from_ns <= shadow.now_ns for job in group)
    shadow.seen["batch"] += len(jobs) > 1
    shadow.seen["batch by size"] += len(jobs) > 1 and not may_be_late
    shadow.seen["batch of a preferred size"] += not may_be_late and rows in batching.preferred
    shadow.seen["batch by delay"] += len(jobs) > 1 and is_late and not size
    shadow.seen["batch of several sessions"] += len({job.event.session for job in jobs}) > 1
    left = group[len(jobs) :]
    most = batching.max_rows if is_late and batching.delay_ns else size or batching.max_rows
    if any(job.attempt >= 0 for job in left):
        return  # perhaps one came back only after this placement
    is_sure = is_late or not may_be_late
    promise(not is_sure or len(jobs) == 1 or rows <= most, f"{command}: {most} rows do not wait")
    if left and is_sure:
        fits = rows + left[0].rows <= most and nbytes + left[0].event.payload_bytes <= room
        is_due = 0 < left[0].event.deadline_ns <= shadow.now_ns
        is_full = not fits or is_due or len(jobs) == MOST_MEMBERS
        promise(is_full, f"{command}: job {left[0].event.job} fits too")


def copied(shadow: Shadow, lease: ShadowLease, lane: int, event: events.CopyDone) -> None:
    """The copies to a lane have ended."""
    occupant = lease.lanes[lane]
    staying = [job for job in occupant.members if job.phase != "answered"]
    if not staying:
        shadow.free(lease, lane)
    elif len(staying) < len(occupant.members):
        occupant.members, occupant.phase = staying, "closing"
    elif event.error:
        shadow.free(lease, lane)
        for job in staying:
            shadow.expect(job, JobState.FAILED)
    else:
        occupant.goes_on("waiting", shadow.now_ns)
        lease.waiting.append(occupant)


def answered(shadow: Shadow, job: ShadowJob) -> None:
    """A job that waits in a lane has its answer: it leaves; the rows of the others must be closed up at once."""
    for lease in shadow.leases.values():
        for lane, occupant in list(lease.lanes.items()):
            if job in occupant.members and len(occupant.members) > 1:
                shadow.seen[f"{job.answer.state.name if job.answer else ''} in a batch"] += 1
            if job in occupant.members and occupant.phase == "waiting":
                if len(occupant.members) == 1:
                    shadow.free(lease, lane)
                else:
                    occupant.members.remove(job)
                    occupant.phase = "closing"
                    lease.waiting.remove(occupant)
            elif job in occupant.members and occupant.phase == "closing":
                promise(False, f"job {job.event.job} is answered before its batch is copied again")


def after_batches(shadow: Shadow, book: JobBook) -> None:
    """Every batch was copied again that had to; somebody looks before a wait for others is over."""
    for lease in shadow.leases.values():
        for lane, occupant in lease.lanes.items():
            promise(occupant.phase != "closing", f"lane {lane} of {lease.opened}: rows of answered jobs are left")
    queued = [
        job
        for job in shadow.live.values()
        if job.phase == "queued" and job.event.kernel in shadow.kernels and not shadow.sequences.awaits(job)
    ]
    waits = [job.ripe_by_ns for job in queued if job.stack and not is_maybe_ripe(shadow, job)]
    next_ns = book.next_deadline_ns()
    promise(not waits or (next_ns is not None and next_ns <= min(waits)), "nobody looks when a batch has waited")
    for name, tenant in book.ledger.tenants.items():
        mine = [job for job in queued if job.tenant == name]
        stacks = sum(job.stack > 0 for job in mine)
        promise(tenant.stacked == stacks, f"{name} has {stacks} queued jobs that batch, not {tenant.stacked}")
        rows = sum(queue.rows for queue in tenant.queues.values())
        promise(rows == sum(job.rows for job in mine), f"{name}'s queues count {rows} rows")
        is_backlogged = name in book.ledger.backlogged
        promise(is_backlogged or not any(is_surely_ripe(shadow, job) for job in mine), f"{name}'s need is not filed")
        promise(not is_backlogged or any(is_maybe_ripe(shadow, job) for job in mine), f"{name} needs nothing")
