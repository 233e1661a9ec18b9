"""Batches by hand: when one is formed, of whom, and what becomes of it. `shadow_batches` judges them in every world."""

from __future__ import annotations

import pytest

from offpath.sched.jobs import events
from offpath.sched.jobs.admission import retry_after_ms
from offpath.sched.jobs.batches import PADDING_BYTES
from offpath.sched.jobs.commands import Answer, Command, Copy, CopyBatch, KillLane, Launch
from offpath.sched.jobs.explain import explain
from offpath.sched.jobs.forecast import ends_in_ns
from offpath.sched.jobs.records import Job, JobHeap
from offpath.sched.jobs.settings import MS, BookSettings
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState

from ..gpus import MIB, a100
from .book_harness import ADA, BOB, SETTINGS, BookHarness, ended

BATCHED = events.Kernel(4, 14, "batched", batching=events.Batching(8, 5 * MS))
PREFERRED = events.Kernel(5, 14, "preferred", batching=events.Batching(8, 5 * MS, (2, 4)))
PLAIN = events.Kernel(1, 14, "plain")
STACK = 7


class Harness(BookHarness):
    """With a warm lease 1 of two lanes for ada, whose share is enough for one of these kernels."""

    def __init__(self, settings: BookSettings = SETTINGS, *kernels: events.Kernel) -> None:
        super().__init__(settings=settings, is_joined=False)
        self.send(0, events.HelperJoined(1, (a100(),), kernels or (PLAIN, BATCHED, PREFERRED)))
        self.run(0, 901)
        self.warm(0, 1)
        self.send(0, events.CopyDone(901, 0))
        self.result(0, 901, 1)

    def stack(
        self,
        at_ms: float,
        job: int,
        rows: int = 1,
        stack: int = STACK,
        session: int = ADA,
        kernel: int = 4,
        *,
        by_ms: float = 0,
        priority: int = 0,
        payload: int = 100,
        idempotent: bool = False,
    ) -> tuple[Command, ...]:
        self.ids[session] = self.ids.get(session, 0) + 1
        submitted = events.JobSubmitted(
            job, session, self.ids[session], kernel, 0, priority, int(by_ms * MS), payload, idempotent
        )
        return self.send(at_ms, events.StackSubmitted(submitted, rows, stack))

    def launched(self, *rows: int) -> None:
        """A batch of jobs 1, 2, … with these rows runs in lane 1 of lease 1."""
        for number, each in enumerate(rows, start=1):
            self.stack(10, number, each)
        (copy,) = self.tick(15)
        assert isinstance(copy, CopyBatch)
        self.send(15, events.CopyDone(copy.job, copy.attempt))


def copy_batch(lane: int, *members: tuple[int, int], rows: int, attempt: int = 0) -> CopyBatch:
    return CopyBatch(members[0][0], attempt, 1, lane, rows, members)


def launch(job: int, lane: int, attempt: int = 0, kernel: int = 4) -> Launch:
    return Launch(job, attempt, 1, lane, 1, kernel, 14)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_jobs_wait_for_others_for_the_delay_of_their_kernel_and_are_then_copied_and_launched_as_one(
    harness: Harness,
) -> None:
    assert harness.stack(10, 1, rows=2) == ()
    assert harness.stack(12, 2, rows=3) == ()
    assert harness.book.next_deadline_ns() == 15 * MS
    assert harness.tick(14.9) == ()
    assert harness.tick(15) == (copy_batch(0, (1, 0), (2, 2), rows=5),)
    assert harness.send(16, events.CopyDone(1, 0)) == (launch(1, 0),)
    assert harness.book.ledger.leases[1].running_share == 14
    assert harness.result(18, 1, 1) == (
        ended(1, JobState.COMPLETED, EndReason.NONE, 8, lease=1),
        ended(2, JobState.COMPLETED, EndReason.NONE, 6, lease=1),
    )
    assert harness.book.ledger.leases[1].running_share == 0
    assert not harness.book.ledger.leases[1].jobs


def test_enough_rows_end_the_wait_at_once(harness: Harness) -> None:
    assert harness.stack(10, 1, rows=5) == ()
    assert harness.stack(10, 2, rows=3) == (copy_batch(0, (1, 0), (2, 5), rows=8),)


def test_a_preferred_size_ends_the_wait(harness: Harness) -> None:
    assert harness.stack(10, 1, kernel=5) == ()
    assert harness.stack(10, 2, kernel=5) == (copy_batch(0, (1, 0), (2, 1), rows=2),)


def test_more_rows_than_a_preferred_size_wait_for_the_next_one(harness: Harness) -> None:
    assert harness.stack(10, 1, kernel=5, rows=1) == ()
    assert harness.stack(10, 2, kernel=5, rows=2) == ()
    assert harness.stack(11, 3, kernel=5, rows=1) == (copy_batch(0, (1, 0), (2, 1), (3, 3), rows=4),)
    assert harness.stack(12, 4, kernel=5, rows=3) == ()
    assert harness.tick(16.9) == ()
    assert harness.tick(17) == (Copy(4, 0, 1, 1),)


def test_a_job_that_exceeds_all_preferred_sizes_sends_those_before_it(harness: Harness) -> None:
    """As Triton 2.51 does: three rows wait, and go alone when two more come, which are a preferred size."""
    assert harness.stack(10, 1, kernel=5, rows=3) == ()
    assert harness.stack(10, 2, kernel=5, rows=2) == (Copy(1, 0, 1, 0), Copy(2, 0, 1, 1))


def test_without_a_delay_a_preferred_size_goes_before_the_rest() -> None:
    at_once = events.Kernel(4, 14, "batched", batching=events.Batching(8, 0, (2,)))
    harness = Harness(SETTINGS, PLAIN, at_once)
    harness.run(1, 902)
    harness.run(1, 903)
    for job in (1, 2, 3):
        assert harness.stack(10, job) == ()
    assert copy_batch(0, (1, 0), (2, 1), rows=2) in harness.result(11, 902, 1)
    assert Copy(3, 0, 1, 1) in harness.result(12, 903, 1)


@pytest.mark.parametrize("other", ["shape", "too large", "no stack", "R"])
def test_a_request_that_cannot_join_ends_the_wait_of_those_of_its_kernel(harness: Harness, other: str) -> None:
    harness.stack(10, 1)
    harness.stack(10, 2)
    if other == "no stack":
        out = harness.submit(11, 3, kernel=4)
    elif other == "R":
        out = harness.submit(11, 3, kernel=4, share=20)
    else:
        out = harness.stack(11, 3, stack=8 if other == "shape" else STACK, rows=8 if other == "too large" else 1)
    assert out[0] == copy_batch(0, (1, 0), (2, 1), rows=2)
    assert out[1:] == (() if other == "shape" else (Copy(3, 0, 1, 1),) if other != "R" else out[1:])
    if other == "shape":
        assert harness.tick(15.9) == ()
        assert harness.tick(16) == (Copy(3, 0, 1, 1),)


def test_requests_of_other_kernels_and_tenants_leave_a_wait_as_it_is(harness: Harness) -> None:
    harness.stack(10, 1)
    harness.stack(11, 2, kernel=5, stack=8)
    harness.stack(11, 3, stack=8, session=BOB)
    queues = harness.book.ledger.tenants["ada"].queues.values()
    assert [job.job for queue in queues for job in queue.waiting()] == [1, 2]


def test_a_job_that_comes_first_may_leave_those_behind_it_without_a_size() -> None:
    """Two rows were enough and needed a lane; behind three of a higher priority they wait again, and need none."""
    harness = Harness(SETTINGS, PLAIN, events.Kernel(4, 14, "batched", batching=events.Batching(8, 5 * MS, (2, 8))))
    harness.run(1, 902)
    harness.run(1, 903)
    backlogged = harness.book.ledger.backlogged
    harness.stack(10, 1)
    assert "ada" not in backlogged
    harness.stack(10, 2)
    assert "ada" in backlogged
    harness.stack(11, 3, rows=3, priority=1)
    assert "ada" not in backlogged
    harness.send(12, events.CancelRequested(3))
    assert "ada" in backlogged
    assert copy_batch(0, (1, 0), (2, 1), rows=2) in harness.result(13, 902, 1)


def test_a_job_that_leaves_may_leave_a_preferred_size_behind() -> None:
    harness = Harness(SETTINGS, PLAIN, events.Kernel(4, 14, "batched", batching=events.Batching(8, 5 * MS, (2, 8))))
    for job, rows in ((1, 3), (2, 1), (3, 1)):
        assert harness.stack(10, job, rows=rows) == ()
    assert harness.send(11, events.CancelRequested(1))[1:] == (copy_batch(0, (2, 0), (3, 1), rows=2),)


def test_a_batch_grows_while_no_lane_is_free_and_takes_the_largest_preferred_size(harness: Harness) -> None:
    harness.run(1, 902)
    harness.run(1, 903)
    for job in range(1, 6):
        assert harness.stack(10, job, kernel=5) == ()
    out = harness.result(11, 902, 1)
    assert copy_batch(0, (1, 0), (2, 1), (3, 2), (4, 3), rows=4) in out
    assert harness.result(12, 903, 1)[1:] == ()  # one is left, and waits for others
    assert harness.tick(15) == (Copy(5, 0, 1, 1),)


def test_a_delay_of_zero_waits_for_nobody_but_for_a_lane(harness: Harness) -> None:
    at_once = events.Kernel(4, 14, "batched", batching=events.Batching(8))
    harness = Harness(SETTINGS, PLAIN, at_once)
    assert harness.stack(10, 1) == (Copy(1, 0, 1, 0),)
    assert harness.stack(10, 2) == (Copy(2, 0, 1, 1),)
    assert (harness.stack(10, 3), harness.stack(10, 4)) == ((), ())
    harness.send(10, events.CopyDone(1, 0))
    assert copy_batch(0, (3, 0), (4, 1), rows=2) in harness.result(11, 1, 1)


def test_only_jobs_of_one_stack_and_one_tenant_share_a_batch(harness: Harness) -> None:
    assert harness.stack(10, 1) == ()
    assert harness.stack(10, 2, stack=8) == (Copy(1, 0, 1, 0),)
    harness.stack(10, 3, session=BOB)
    assert harness.tick(15)[:1] == (Copy(2, 0, 1, 1),)


@pytest.mark.parametrize(
    ("rows", "stack", "kernel"), [(0, STACK, 4), (8, STACK, 4), (9, STACK, 4), (1, 0, 4), (1, 7, 1)]
)
def test_what_cannot_share_a_launch_or_fills_one_does_not_wait(
    harness: Harness, rows: int, stack: int, kernel: int
) -> None:
    assert harness.stack(10, 1, rows, stack, kernel=kernel) == (Copy(1, 0, 1, 0),)


def test_a_deadline_that_comes_near_ends_the_wait(harness: Harness) -> None:
    harness.stack(10, 1)
    harness.stack(10, 2, by_ms=17)
    assert harness.tick(11.9) == ()
    assert harness.tick(12) == (copy_batch(0, (1, 0), (2, 1), rows=2),)


def test_members_are_taken_by_priority_then_by_age(harness: Harness) -> None:
    harness.stack(10, 1)
    harness.stack(10, 2, priority=1)
    harness.stack(10, 3)
    assert harness.tick(15) == (copy_batch(0, (2, 0), (1, 1), (3, 2), rows=3),)


def test_a_batch_has_no_more_bytes_than_a_lane(harness: Harness) -> None:
    half = (MIB - PADDING_BYTES) // 2
    harness.stack(10, 1, payload=half)
    harness.stack(10, 2, payload=half)
    harness.stack(10, 3, payload=half)
    assert harness.tick(15) == (copy_batch(0, (1, 0), (2, 1), rows=2), Copy(3, 0, 1, 1))


def test_what_waits_for_others_opens_no_further_lease(harness: Harness) -> None:
    for at_ms in range(10, 200, 3):
        harness.stack(at_ms, at_ms)
        for copy in harness.tick(at_ms + 2.9):
            if isinstance(copy, Copy | CopyBatch):
                harness.send(at_ms + 2.9, events.CopyDone(copy.job, copy.attempt))
                harness.result(at_ms + 2.95, copy.job, 1)
    assert list(harness.book.ledger.leases) == [1]


def test_a_member_cancelled_during_the_copy_is_left_out_and_the_others_are_copied_again(harness: Harness) -> None:
    for job in (1, 2, 3):
        harness.stack(10, job, rows=2)
    assert harness.tick(15) == (copy_batch(0, (1, 0), (2, 2), (3, 4), rows=6),)
    cancelled = ended(1, JobState.CANCELLED, EndReason.CANCELLED_BY_REQUESTER, 6, lease=1)
    assert harness.send(16, events.CancelRequested(1)) == (cancelled,)
    assert harness.send(17, events.CopyDone(1, 0)) == (copy_batch(0, (2, 0), (3, 2), rows=4, attempt=1),)
    assert harness.send(18, events.CopyDone(2, 1)) == (launch(2, 0, attempt=1),)


def test_members_that_leave_during_the_copy_are_closed_up_once(harness: Harness) -> None:
    for job in (1, 2, 3, 4):
        harness.stack(10, job)
    assert harness.tick(15) == (copy_batch(0, (1, 0), (2, 1), (3, 2), (4, 3), rows=4),)
    for job in (1, 3):
        assert [type(each) for each in harness.send(16, events.CancelRequested(job))] == [Answer]
    assert harness.send(17, events.CopyDone(1, 0)) == (copy_batch(0, (2, 0), (4, 1), rows=2, attempt=1),)
    assert harness.send(18, events.CopyDone(2, 1)) == (launch(2, 0, attempt=1),)


def test_the_last_member_of_a_batch_goes_on_as_a_job_of_its_own(harness: Harness) -> None:
    harness.stack(10, 1)
    harness.stack(10, 2)
    harness.tick(15)
    harness.send(16, events.CancelRequested(1))
    assert harness.send(17, events.CopyDone(1, 0)) == (Copy(2, 1, 1, 0),)
    assert harness.send(18, events.CopyDone(2, 1)) == (launch(2, 0, attempt=1),)
    assert harness.result(19, 2, 1) == (ended(2, JobState.COMPLETED, EndReason.NONE, 9, lease=1),)


def test_a_member_that_expires_while_the_batch_waits_for_share_is_never_launched() -> None:
    half = events.Kernel(2, 14, "half")
    harness = Harness(SETTINGS, PLAIN, half, BATCHED)
    harness.run(1, 902, kernel=2)  # its lease has 14 %: the batch is copied, and waits
    harness.stack(10, 1)
    harness.stack(10, 2, by_ms=30)
    assert harness.tick(15) == (copy_batch(1, (1, 0), (2, 1), rows=2),)
    assert harness.send(16, events.CopyDone(1, 0)) == ()
    expired = ended(2, JobState.EXPIRED, EndReason.DEADLINE_PASSED, 20, lease=1)
    assert harness.tick(30) == (expired, Copy(1, 1, 1, 1))
    assert harness.send(31, events.CopyDone(1, 1)) == ()
    assert launch(1, 1, attempt=1) in harness.result(32, 902, 1)


def test_members_that_leave_while_the_batch_waits_for_share_are_closed_up_with_two_copies() -> None:
    """The first that leaves begins a copy. Those that leave in the same event are closed up when it has ended."""
    half = events.Kernel(2, 14, "half")
    harness = Harness(SETTINGS, PLAIN, half, BATCHED)
    harness.run(1, 902, kernel=2)
    for job in (1, 2, 3, 4, 5):
        harness.stack(10, job, by_ms=30 if job < 4 else 0)
    harness.tick(15)
    harness.send(16, events.CopyDone(1, 0))
    (copy,) = [each for each in harness.tick(30) if not isinstance(each, Answer)]
    assert isinstance(copy, CopyBatch)
    assert harness.send(31, events.CopyDone(copy.job, copy.attempt)) == (
        copy_batch(1, (4, 0), (5, 1), rows=2, attempt=1),
    )


def test_a_copy_that_closes_up_counts_as_copy_also_if_it_fails() -> None:
    harness = Harness(SETTINGS, PLAIN, events.Kernel(2, 14, "half"), BATCHED)
    harness.run(1, 902, kernel=2)
    for job in (1, 2, 3):
        harness.stack(10, job, by_ms=30 if job == 1 else 0)
    harness.tick(15)
    harness.send(16, events.CopyDone(1, 0))
    (copy,) = [each for each in harness.tick(30) if isinstance(each, CopyBatch)]
    answers = [each for each in harness.send(31, events.CopyDone(copy.job, copy.attempt, True)) if type(each) is Answer]
    assert [(each.job, each.stages) for each in answers] == [
        (job, (5 * MS, 16 * MS, 0, 0, 0, 21 * MS)) for job in (2, 3)
    ]


def test_a_member_cancelled_after_the_launch_is_answered_and_the_others_complete(harness: Harness) -> None:
    harness.launched(1, 1)
    assert harness.send(16, events.CancelRequested(1)) == (
        ended(1, JobState.CANCELLED, EndReason.CANCELLED_BY_REQUESTER, 6, lease=1),
    )
    assert harness.result(17, 1, 1) == (ended(2, JobState.COMPLETED, EndReason.NONE, 7, lease=1),)
    assert not harness.book.ledger.leaving
    assert harness.book.ledger.leases[1].running_share == 0


def test_members_may_have_other_reasons_than_the_rest(harness: Harness) -> None:
    harness.launched(1, 1, 1)
    result = events.BatchResult(1, 1, EndReason.NONE, 0, 0, ((2, EndReason.RESULT_TOO_LARGE),))
    assert harness.send(17, result) == (
        ended(1, JobState.COMPLETED, EndReason.NONE, 7, lease=1),
        ended(2, JobState.FAILED, EndReason.RESULT_TOO_LARGE, 7, lease=1),
        ended(3, JobState.COMPLETED, EndReason.NONE, 7, lease=1),
    )


def test_a_failed_copy_fails_all_members(harness: Harness) -> None:
    harness.stack(10, 1)
    harness.stack(10, 2)
    harness.tick(15)
    out = harness.send(16, events.CopyDone(1, 0, error=True))
    assert [(c.job, c.reason) for c in out if isinstance(c, Answer)] == [
        (1, EndReason.COPY_FAILED), (2, EndReason.COPY_FAILED),
    ]  # fmt: skip


def test_of_a_lost_launch_those_that_may_run_again_do_and_the_others_have_an_unknown_outcome(harness: Harness) -> None:
    harness.stack(10, 1, idempotent=True)
    harness.stack(10, 2)
    harness.stack(10, 3, idempotent=True)
    harness.tick(15)
    harness.send(15, events.CopyDone(1, 0))
    out = harness.send(16, events.WorkerLost(1, 0, 1))
    assert ended(2, JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST, 6, lease=1) in out
    queued = [job.job for queue in harness.book.ledger.tenants["ada"].queues.values() for job in queue.waiting()]
    assert queued == [1, 3]


def test_a_launch_that_was_not_sent_queues_all_members_again(harness: Harness) -> None:
    harness.launched(1, 1)
    harness.send(16, events.LaunchFailed(1, 0))
    jobs = harness.book.ledger.jobs
    assert [(jobs[number].state, jobs[number].launches) for number in (1, 2)] == [(JobState.QUEUED, 0)] * 2
    assert harness.book.ledger.leases[1].running_share == 0


def test_an_overrun_batch_fails_all_its_members_and_kills_one_worker() -> None:
    harness = Harness(BookSettings(lanes=2, landing_bytes=MIB, result_bytes=MIB, kernel_ns=20 * MS, linger_ns=MS))
    harness.launched(1, 1)
    harness.send(16, events.CancelRequested(1))
    assert harness.tick(20) == ()  # the answered member lingers, and the other still runs
    assert harness.tick(35)[:2] == (
        KillLane(1, 0, 1, 1), ended(2, JobState.FAILED, EndReason.KERNEL_OVERRAN, 25, lease=1),
    )  # fmt: skip


def test_a_kernel_that_batches_no_longer_launches_what_waits_alone(harness: Harness) -> None:
    harness.stack(10, 1)
    harness.stack(10, 2)
    out = harness.send(11, events.KernelsReloaded(1, (PLAIN, events.Kernel(4, 14, "batched")), 1))
    assert not [each for each in out if isinstance(each, CopyBatch)]  # its lanes run the former code
    assert [c for c in harness.send(12, events.LaneReady(1, 0, 1)) if isinstance(c, Copy)] == [Copy(1, 0, 1, 0)]


def test_a_book_restored_from_a_snapshot_goes_on_with_its_batches(harness: Harness) -> None:
    harness.launched(1, 2)
    harness.stack(16, 3)
    harness.stack(16, 4)
    book = restore(snapshot(harness.book))
    assert snapshot(book) == snapshot(harness.book)
    for event, at_ns in (
        (events.CancelRequested(2), 17 * MS),
        (events.Tick(), 21 * MS),
        (events.CopyDone(3, 0), 22 * MS),
        (events.ResultArrived(1, 1, EndReason.NONE, 0, 0), 23 * MS),
    ):
        assert book.handle(event, at_ns) == harness.book.handle(event, at_ns)


def test_a_slot_lost_at_a_restart_leaves_the_batch(harness: Harness) -> None:
    for job in (1, 2, 3):
        harness.stack(10, job)
    harness.tick(15)
    lost, again = harness.send(16, events.SlotLost(1))
    assert isinstance(lost, Answer)
    assert lost.state is JobState.RETRY_SAFE
    assert again == copy_batch(0, (2, 0), (3, 1), rows=2, attempt=1)


def test_a_slot_lost_at_a_restart_takes_along_members_that_were_answered_during_the_copy(harness: Harness) -> None:
    for job in (1, 2, 3):
        harness.stack(10, job)
    harness.tick(15)
    harness.send(16, events.CancelRequested(2))
    assert harness.send(17, events.SlotLost(1))[1:] == (Copy(3, 1, 1, 0),)
    assert not harness.book.ledger.leaving
    assert harness.send(18, events.SlotLost(3))[1:] == ()
    assert not harness.book.ledger.leases[1].jobs


def test_explain_shows_the_batch_its_rows_and_what_it_waits_for(harness: Harness) -> None:
    def of(number: int, at_ms: int) -> str:
        ledger = harness.book.ledger
        shown = explain(ledger.jobs[number], ledger, tuple(harness.book.leasing.gpus), at_ms * MS)
        return "; ".join([shown.where, *[hold.text for hold in shown.holds]])

    harness.stack(10, 1, rows=2)
    harness.stack(10, 2)
    waits = "jobs 1, 2 of its kernel have 3 rows, 8 are enough; they wait for 3.0 ms at most"
    assert waits in of(1, 12)
    harness.tick(15)
    assert "with 1 of the 3 rows of a batch of jobs 1, 2" in of(2, 16)


def test_a_submit_behind_a_queue_that_has_waited_long_enough_examines_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    examined = 0
    waiting = JobHeap.waiting

    def counted(queue: JobHeap) -> list[Job]:
        nonlocal examined
        jobs = waiting(queue)
        examined += len(jobs)
        return jobs

    at_once = events.Kernel(4, 14, "batched", batching=events.Batching(64))
    harness = Harness(SETTINGS, PLAIN, at_once)
    harness.run(1, 902)
    harness.run(1, 903)
    for job in range(1, 31):
        harness.stack(10, job)
    monkeypatch.setattr(JobHeap, "waiting", counted)
    for job in range(31, 51):
        harness.stack(11, job)
    assert examined == 0
    harness.send(12, events.CancelRequested(1))
    harness.stack(13, 51)
    assert examined == 49, "once, since the first job has left"
    harness.stack(14, 52)
    assert examined == 49


def test_queues_stay_sound_when_all_jobs_move_to_others() -> None:
    """With so many jobs a heap discards entries of jobs that left, in the middle of the move."""
    harness = BookHarness(is_joined=False)
    harness.send(0, events.HelperJoined(1, (a100(),), (PLAIN,)))
    for job in range(1, 60):
        harness.submit(1, job)
    other = events.Kernel(1, 14, "plain", models=((a100().model, 20),))
    harness.send(2, events.KernelsReloaded(1, (other,), 1))
    tenant = harness.book.ledger.tenants["ada"]
    assert [(len(queue), len(queue.waiting())) for queue in tenant.queues.values()] == [(59, 59)]
    for job in range(1, 60):
        harness.send(3, events.CancelRequested(job))
    assert not tenant.queues


def test_a_forecast_counts_the_launches_of_batches_and_not_their_members() -> None:
    """Two jobs have lanes, and 66 of one row wait; launches run one after another, have 32 rows and take 10 ms."""
    harness = Harness(SETTINGS, PLAIN, events.Kernel(4, 14, "batched", batching=events.Batching(32)))
    for job in range(1, 6):
        harness.stack(20 * job, job)
        harness.send(20 * job, events.CopyDone(job, 0))
        harness.result(20 * job + 10, job, 1)
    for job in range(101, 169):
        harness.stack(200, job)
    ledger = harness.book.ledger
    tenant = ledger.tenants["ada"]
    assert tenant.queued == 66
    assert retry_after_ms(tenant, ledger, EndReason.TENANT_QUEUE_FULL, 200 * MS) == (30 + 20) // 2
    ends = [ends_in_ns(ledger.jobs[job], tenant, ledger.kernels, 200 * MS) for job in (103, 134, 135, 168)]
    assert ends == [30 * MS, 30 * MS, 40 * MS, 50 * MS]


def test_jobs_that_do_not_batch_have_the_commands_and_the_queue_that_they_had() -> None:
    plain, batching = Harness(SETTINGS, PLAIN), Harness(SETTINGS, PLAIN, BATCHED)
    for at_ms, job in ((10, 1), (10, 2), (11, 3)):
        assert plain.submit(at_ms, job) == batching.submit(at_ms, job)
    kinds = [list(each.book.ledger.tenants["ada"].queues) for each in (plain, batching)]
    assert kinds[0] == kinds[1] == [(14, 0, (), ())]
