"""The job book, sentence by sentence: given these events, exactly these commands. A job's way, and its ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Answer, Copy, Launch, OpenLease
from offpath.sched.jobs.settings import MS, PinnedLease, TenantSpec
from offpath.sched.jobs.states import EndReason, JobState

from ..gpus import MIB, a30, a100
from . import gang_worlds
from .book_harness import ADA, BOB, CYD, KERNELS, SETTINGS, SMALL, WHOLE, BookHarness, ended, opened


# -- the way of a request -----------------------------------------------------------------------------------------
def test_a_job_opens_a_lease_is_copied_launched_and_answered() -> None:
    """The happy path, every command of it; the lease is the smallest that holds R, and generations begin at 1."""
    harness = BookHarness()
    assert harness.submit(1, 7) == (opened(1, "ada", "1g.5gb", 0),)
    assert harness.send(4, events.LaneReady(1, 0, 1)) == ()
    assert harness.send(5, events.LaneReady(1, 1, 1)) == (Copy(7, 0, 1, 0),)
    assert harness.send(6, events.CopyDone(7, 0)) == (Launch(7, 0, 1, 0, 1, SMALL, 14),)
    done = events.ResultArrived(7, 1, EndReason.NONE, 7 * MS, 9 * MS)
    stages = (4 * MS, 1 * MS, 1 * MS, 2 * MS, 3 * MS, 11 * MS)
    assert harness.send(12, done) == (Answer(7, ADA, JobState.COMPLETED, EndReason.NONE, 0, 1, 1, stages),)
    assert harness.send(13, events.CreditReturned(7)) == ()
    assert not harness.book.ledger.jobs


def test_a_job_on_a_warm_lease_is_copied_at_once() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    harness.warm(2, 1)
    assert harness.submit(3, 2) == (Copy(2, 0, 1, 1),)


def test_a_job_is_bound_late_to_the_lease_that_comes_free_first() -> None:
    """Job 5 queues behind two full leases of its tenant and goes to whichever ends a job first, here the second."""
    pins = (PinnedLease("ada", 0, "1g.5gb", 0), PinnedLease("ada", 0, "1g.5gb", 1))
    harness = BookHarness(pins=pins)
    harness.warm(1, 1, 2)
    assert [harness.run(2, job)[0] for job in (1, 2)] == [Copy(1, 0, 1, 0), Copy(2, 0, 2, 0)]
    assert [harness.submit(2, job)[0] for job in (3, 4)] == [Copy(3, 0, 1, 1), Copy(4, 0, 2, 1)]
    assert harness.submit(3, 5) == ()
    assert harness.result(4, 2, 2)[1:] == (Copy(5, 0, 2, 0),)


def test_a_prefetched_job_is_copied_while_another_runs_and_launched_when_its_share_is_free() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    assert harness.run(2, 1) == (Copy(1, 0, 1, 0), Launch(1, 0, 1, 0, 1, SMALL, 14))
    assert harness.run(3, 2) == (Copy(2, 0, 1, 1),)
    assert harness.result(4, 1, 1)[1:] == (Launch(2, 0, 1, 1, 1, SMALL, 14),)


def test_jobs_whose_shares_fit_together_run_together() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "3g.20gb", 0),))
    harness.warm(1, 1)
    assert harness.run(2, 1, share=20) == (Copy(1, 0, 1, 0), Launch(1, 0, 1, 0, 1, SMALL, 20))
    assert harness.run(2, 2, share=22) == (Copy(2, 0, 1, 1), Launch(2, 0, 1, 1, 1, SMALL, 22))


def test_a_share_of_one_percent_too_much_waits() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "3g.20gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1, share=20)
    assert harness.run(2, 2, share=23) == (Copy(2, 0, 1, 1),)


def test_what_waits_for_share_is_launched_in_the_order_of_its_copies() -> None:
    """A small job does not slip past a large one that waits on the same lease."""
    harness = BookHarness(settings=replace(SETTINGS, lanes=3), pins=(PinnedLease("ada", 0, "3g.20gb", 0),))
    harness.warm(1, 1, lanes=3)
    harness.run(2, 1, share=30)
    assert harness.run(2, 2, share=40) == (Copy(2, 0, 1, 1),)
    assert harness.run(2, 3, share=10) == (Copy(3, 0, 1, 2),)
    assert harness.result(3, 1, 1)[1:] == (Launch(2, 0, 1, 1, 1, SMALL, 40),)
    assert harness.result(4, 2, 1)[1:] == (Launch(3, 0, 1, 2, 1, SMALL, 10),)


def test_a_higher_priority_goes_first_and_equals_in_their_order() -> None:
    harness = BookHarness()
    for job, priority in ((1, 0), (2, 0), (3, 7), (4, 7), (5, 3)):
        harness.submit(job, job, priority=priority)
    assert harness.warm(10, 1) == (Copy(3, 0, 1, 0), Copy(4, 0, 1, 1))
    order = []
    for generation, job in ((1, 3), (1, 4), (1, 5)):
        harness.send(11, events.CopyDone(job, 0))
        out = harness.result(12, job, generation)
        order += [c.job for c in out if isinstance(c, Copy)]
    assert order == [5, 1, 2]


def test_a_large_job_that_waits_for_a_large_lease_does_not_hold_up_small_ones() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    assert harness.submit(2, 1, kernel=WHOLE, priority=7) == ()
    assert harness.submit(3, 2) == (Copy(2, 0, 1, 0),)


# -- refusals at the door -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"kernel": 99}, EndReason.UNKNOWN_KERNEL),
        ({"share": 101}, EndReason.BAD_DEMAND),
        ({"share": 250}, EndReason.BAD_DEMAND),
        ({"share": 200}, EndReason.GANG_UNSUPPORTED),
        ({"share": 800}, EndReason.GANG_UNSUPPORTED),
        ({"payload": MIB + 1}, EndReason.PAYLOAD_TOO_LARGE),
    ],
)
def test_a_request_nobody_could_serve_is_refused_with_its_reason(how: dict[str, int], reason: EndReason) -> None:
    harness = BookHarness()
    assert harness.submit(1, 1, **how) == (ended(1, JobState.REJECTED, reason, 0),)  # type: ignore[arg-type]
    assert harness.submit(2, 2, payload=MIB) == (opened(1, "ada", "1g.5gb", 0),)


def test_a_request_id_that_does_not_rise_is_a_duplicate_and_the_first_goes_on() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1, request=5)
    for job, request in ((2, 5), (3, 4)):
        assert harness.submit(3, job, request=request) == (ended(job, JobState.REJECTED, EndReason.DUPLICATE_ID, 0),)
    assert [c.job for c in harness.result(4, 1, 1) if isinstance(c, Answer)] == [1]


def test_no_kernel_is_known_before_the_first_helper() -> None:
    harness = BookHarness(is_joined=False)
    assert harness.submit(1, 1) == (ended(1, JobState.REJECTED, EndReason.UNKNOWN_KERNEL, 0),)


def test_a_demand_beyond_the_tenants_right_is_refused() -> None:
    harness = BookHarness((TenantSpec("ada", max_demand=50), TenantSpec("bob", max_share=56)))
    limit = EndReason.TENANT_SHARE_LIMIT
    assert harness.submit(1, 1, ADA, share=51) == (ended(1, JobState.REJECTED, limit, 0),)
    assert harness.submit(1, 2, ADA, share=50) == (opened(1, "ada", "4g.20gb", 0),)
    assert harness.submit(1, 3, BOB, share=43) == (ended(3, JobState.REJECTED, limit, 0, session=BOB),)
    assert harness.submit(1, 4, BOB, share=42) == (opened(2, "bob", "3g.20gb", 4),)


def test_a_demand_that_no_fraction_fits_under_the_quota_does_not_wait_for_ever() -> None:
    """R = 50 needs a lease of 57; who may hold 50 could never have one."""
    harness = BookHarness((TenantSpec("ada", max_share=50),))
    assert harness.submit(1, 1, share=50) == (ended(1, JobState.REJECTED, EndReason.TENANT_SHARE_LIMIT, 0),)


def test_the_fractions_are_those_of_the_gpus_that_joined() -> None:
    """On an A30 a quarter is 25: who may hold 20 can hold nothing there."""
    harness = BookHarness((TenantSpec("ada", max_share=20),), is_joined=False)
    harness.send(0, events.HelperJoined(1, (a30(),), KERNELS))
    assert harness.submit(1, 1) == (ended(1, JobState.REJECTED, EndReason.TENANT_SHARE_LIMIT, 0),)


@pytest.mark.parametrize("models", [(), (("A100-40GB", 30), ("A30-24GB", 10))])
@pytest.mark.parametrize("first", ["gpu-0", "gpu-1"])
def test_a_gpu_whose_instances_exceed_the_quota_does_not_hide_another(
    models: tuple[tuple[str, int], ...], first: str
) -> None:
    """R = 26 takes 28 of an A100, or 50 of an A30; R = 30 takes 42 of an A100. The policy prefers the first GPU."""
    kernel = events.Kernel(SMALL, 26 if not models else 10, models=models)
    gpus = [a100(first), a30({"gpu-0": "gpu-1", "gpu-1": "gpu-0"}[first])]
    harness = BookHarness((TenantSpec("ada", max_share=28),), is_joined=False)
    harness.send(0, events.HelperJoined(1, tuple(sorted(gpus, key=lambda gpu: gpu.gpu)), (kernel,)))
    (open_,) = harness.submit(1, 1)
    assert isinstance(open_, OpenLease)
    assert (open_.gpu, open_.profile) == ((gpus[1].gpu, "1g.6gb") if models else (first, "2g.10gb"))


@pytest.mark.parametrize("whole", ["gpu-0", "gpu-1"])
def test_nor_does_a_whole_gpu_hide_a_divided_one_of_its_model(whole: str) -> None:
    gpus = [replace(a100(whole), profiles=(gang_worlds.WHOLE,)), a100({"gpu-0": "gpu-1", "gpu-1": "gpu-0"}[whole])]
    harness = BookHarness((TenantSpec("ada", max_share=50),), is_joined=False)
    harness.send(0, events.HelperJoined(1, tuple(sorted(gpus, key=lambda gpu: gpu.gpu)), KERNELS))
    (open_,) = harness.submit(1, 1)
    assert isinstance(open_, OpenLease)
    assert (open_.gpu, open_.profile) == (gpus[1].gpu, "1g.5gb")


def test_a_tenants_queue_is_bounded_and_only_that_tenant_is_told_to_wait() -> None:
    harness = BookHarness((TenantSpec("ada", max_jobs=2), TenantSpec("bob")))
    harness.submit(1, 1)
    harness.submit(1, 2)
    full = EndReason.TENANT_QUEUE_FULL
    assert harness.submit(1, 3) == (ended(3, JobState.REJECTED, full, 0, retry_ms=1),)
    assert harness.submit(1, 4, BOB) == (opened(2, "bob", "1g.5gb", 1),)
    harness.send(2, events.CancelRequested(1))
    assert harness.submit(3, 5) == ()


def test_a_book_that_is_full_refuses_everybody() -> None:
    harness = BookHarness(settings=replace(SETTINGS, max_jobs=2))
    harness.submit(1, 1, ADA)
    harness.submit(1, 2, BOB)
    assert harness.submit(1, 3, CYD) == (
        ended(3, JobState.REJECTED, EndReason.DAEMON_FULL, 0, session=CYD, retry_ms=1),
    )


@pytest.mark.parametrize(("kernel_ms", "retry_ms"), [(0.1, 1), (40, 80), (1_000_000, 5_000)])
def test_retry_after_is_the_time_to_serve_half_the_queue_within_bounds(kernel_ms: float, retry_ms: int) -> None:
    """Two lanes, four jobs in the book, each of kernel_ms and of all the share: half of them take twice kernel_ms."""
    harness = BookHarness((TenantSpec("ada", max_jobs=4),), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.result(2 + kernel_ms, 1, 1)
    at_ms = 3 + kernel_ms
    for job in (2, 3, 4, 5):
        harness.submit(at_ms, job)
    (answer,) = harness.submit(at_ms, 6)
    assert isinstance(answer, Answer)
    assert (answer.reason, answer.retry_after_ms) == (EndReason.TENANT_QUEUE_FULL, retry_ms)


# -- deadlines ----------------------------------------------------------------------------------------------------
def test_a_deadline_that_has_passed_is_refused_and_one_that_is_now_expires() -> None:
    harness = BookHarness()
    late = EndReason.DEADLINE_UNREACHABLE
    assert harness.submit(5, 1, by_ms=4) == (ended(1, JobState.REJECTED, late, 0),)
    harness.submit(5, 2, by_ms=5)
    assert harness.book.next_deadline_ns() == 5 * MS
    assert harness.tick(5) == (ended(2, JobState.EXPIRED, EndReason.DEADLINE_PASSED, 0),)


def test_a_deadline_that_the_queue_makes_unreachable_is_refused_early() -> None:
    """Kernels of 10 ms that take all the share, four jobs before it: done in 50 ms; 49 are refused, 50 are not."""
    harness = BookHarness((TenantSpec("ada", max_share=14),), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.result(12, 1, 1)
    for job in (2, 3, 4, 5):
        harness.submit(20, job)
    assert harness.submit(20, 6, by_ms=69) == (ended(6, JobState.REJECTED, EndReason.DEADLINE_UNREACHABLE, 0),)
    assert harness.submit(20, 7, by_ms=70) == ()


def test_nothing_is_guessed_of_a_tenant_that_was_never_served() -> None:
    harness = BookHarness()
    assert harness.submit(5, 1, by_ms=5.001) == (opened(1, "ada", "1g.5gb", 0),)


def test_a_job_expires_in_the_queue() -> None:
    harness = BookHarness()
    harness.submit(1, 1, by_ms=10)
    assert harness.book.next_deadline_ns() == 10 * MS
    assert harness.tick(10) == (ended(1, JobState.EXPIRED, EndReason.DEADLINE_PASSED, 9),)
    assert harness.warm(11, 1) == ()


def test_a_job_that_expires_while_it_is_copied_keeps_its_lane_until_the_copy_ended() -> None:
    harness = BookHarness(settings=replace(SETTINGS, lanes=1), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1, lanes=1)
    assert harness.submit(2, 1, by_ms=10) == (Copy(1, 0, 1, 0),)
    assert harness.submit(3, 2) == ()
    assert harness.tick(10) == (ended(1, JobState.EXPIRED, EndReason.DEADLINE_PASSED, 8, lease=1),)
    assert harness.send(11, events.CopyDone(1, 0)) == (Copy(2, 0, 1, 0),)


def test_a_job_that_expires_while_it_runs_keeps_lane_and_share_until_its_result() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1, by_ms=10)
    harness.run(3, 2)
    assert harness.tick(10) == (ended(1, JobState.EXPIRED, EndReason.DEADLINE_PASSED, 8, lease=1),)
    assert harness.result(11, 1, 1) == (Launch(2, 0, 1, 1, 1, SMALL, 14),)


def test_a_shell_that_comes_late_starts_no_job_that_is_due_itself() -> None:
    """Both are due; the lane that the first frees must not be filled with the second, but with the third."""
    harness = BookHarness(settings=replace(SETTINGS, lanes=1), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1, lanes=1)
    harness.submit(2, 1, by_ms=10)
    harness.submit(2, 2, by_ms=11)
    harness.submit(2, 3)
    passed = EndReason.DEADLINE_PASSED
    assert harness.tick(12) == (ended(2, JobState.EXPIRED, passed, 10), ended(1, JobState.EXPIRED, passed, 10, lease=1))
    assert harness.send(13, events.CopyDone(1, 0)) == (Copy(3, 0, 1, 0),)


# -- stages of jobs that ended on their way -----------------------------------------------------------------------
def test_an_unfinished_job_has_the_stages_of_its_last_attempt_as_far_as_it_came() -> None:
    harness = BookHarness(settings=replace(SETTINGS, lanes=3), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1, lanes=3)
    for job in (1, 2, 3, 4):
        harness.submit(2, job)  # three are copied at once, the fourth is queued
    for job, at_ms in ((1, 5), (2, 6)):
        harness.send(at_ms, events.CopyDone(job, 0))  # the first is launched, the second waits for the lease's share

    def stages(job: int) -> tuple[int, ...]:
        (answer,) = (one for one in harness.send(12, events.CancelRequested(job)) if isinstance(one, Answer))
        return tuple(ns // MS for ns in answer.stages)

    assert stages(4) == (10, 0, 0, 0, 0, 10), "queued to its end"
    assert stages(3) == (0, 10, 0, 0, 0, 10), "its payload was on its way"
    assert stages(2) == (0, 4, 6, 0, 0, 10), "its payload was there"
    assert stages(1) == (0, 3, 0, 7, 0, 10), "its kernel ran"


# -- cancellation -------------------------------------------------------------------------------------------------
GIVEN_UP = EndReason.CANCELLED_BY_REQUESTER


def test_a_queued_job_is_cancelled_at_once() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    assert harness.send(2, events.CancelRequested(1)) == (ended(1, JobState.CANCELLED, GIVEN_UP, 1),)
    assert harness.send(3, events.CancelRequested(1)) == ()
    assert harness.warm(4, 1) == ()


def test_an_operators_cancel_is_told_from_its_requesters() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    by_operator = EndReason.CANCELLED_BY_OPERATOR
    assert harness.send(2, events.CancelRequested(1, 1000)) == (ended(1, JobState.CANCELLED, by_operator, 1),)


def test_a_job_cancelled_while_it_is_copied_leaves_when_the_copy_ended_and_is_not_launched() -> None:
    harness = BookHarness(settings=replace(SETTINGS, lanes=1), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1, lanes=1)
    harness.submit(2, 1)
    harness.submit(2, 2)
    assert harness.send(3, events.CancelRequested(1)) == (ended(1, JobState.CANCELLED, GIVEN_UP, 1, lease=1),)
    assert harness.send(4, events.CreditReturned(1)) == ()
    assert harness.send(5, events.CopyDone(1, 0)) == (Copy(2, 0, 1, 0),)


def test_a_job_cancelled_while_it_waits_for_share_leaves_at_once() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.run(2, 2)
    harness.submit(2, 3)
    cancelled = ended(2, JobState.CANCELLED, GIVEN_UP, 1, lease=1)
    assert harness.send(3, events.CancelRequested(2)) == (cancelled, Copy(3, 0, 1, 1))


def test_a_job_cancelled_while_it_runs_has_one_answer_and_its_result_only_frees_the_lane() -> None:
    harness = BookHarness(settings=replace(SETTINGS, lanes=1), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1, lanes=1)
    harness.run(2, 1)
    harness.submit(2, 2)
    assert harness.send(3, events.CancelRequested(1)) == (ended(1, JobState.CANCELLED, GIVEN_UP, 1, lease=1),)
    assert harness.result(4, 1, 1) == (Copy(2, 0, 1, 0),)


def test_a_closed_session_cancels_its_jobs_and_no_other_session_notices() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.send(0, events.SessionOpened(9, "ada", 4))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.run(3, 2)
    harness.submit(3, 3, 9)
    harness.submit(3, 4)
    gone = EndReason.SESSION_CLOSED
    assert harness.send(5, events.SessionClosed(ADA)) == (
        ended(4, JobState.CANCELLED, gone, 2),
        ended(2, JobState.CANCELLED, gone, 2, lease=1),
        Copy(3, 0, 1, 1),
        ended(1, JobState.CANCELLED, gone, 3, lease=1),
    )
    assert harness.send(6, events.CopyDone(3, 0)) == ()
    assert harness.result(7, 1, 1) == (Launch(3, 0, 1, 1, 1, SMALL, 14),)
    assert set(harness.book.ledger.jobs) == {3}
