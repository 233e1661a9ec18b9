"""The job book, sentence by sentence: lost workers and helpers, and the life of leases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.gpu.policy import Obstacle, Refusal, Unblocker
from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import Answer, CloseLease, Copy, Launch, OpenLease, ScrubLane
from offpath.sched.jobs.leasing import LARGEST_LEASE
from offpath.sched.jobs.settings import MS, PinnedLease, TenantSpec
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

from ..gpus import MIB, a100
from .book_harness import ADA, BOB, CYD, KERNELS, SETTINGS, SMALL, TENANTS, BookHarness, ended, opened


# -- failures -----------------------------------------------------------------------------------------------------
def test_a_failed_copy_fails_the_job_and_launches_nothing() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.submit(2, 1)
    failed = ended(1, JobState.FAILED, EndReason.COPY_FAILED, 1, lease=1)
    assert harness.send(3, events.CopyDone(1, 0, error=True)) == (failed,)


@pytest.mark.parametrize("reason", [EndReason.KERNEL_RAISED, EndReason.RESULT_TOO_LARGE, EndReason.PAYLOAD_CHECKSUM])
def test_a_failed_kernel_fails_the_job_and_frees_its_lane_also_when_it_tells_no_times(reason: EndReason) -> None:
    """A worker that refuses before it starts reports no times; the lane is free all the same."""
    harness = BookHarness(settings=replace(SETTINGS, lanes=1), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1, lanes=1)
    harness.run(2, 1)
    harness.submit(2, 2)
    out = harness.send(3, events.ResultArrived(1, 1, reason, 0, 0))
    assert out == (ended(1, JobState.FAILED, reason, 1, lease=1), Copy(2, 0, 1, 0))


def test_what_a_lost_worker_ran_has_an_unknown_outcome() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "3g.20gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1)
    unknown = ended(1, JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST, 1, lease=1)
    assert harness.send(3, events.WorkerLost(1, 0, 1)) == (unknown, ScrubLane(1, 1, 1))
    assert harness.result(4, 1, 1) == ()


def test_what_waited_on_a_lost_workers_lane_is_queued_again_in_its_old_turn() -> None:
    """The second lane finishes its job first; then the lease drains, the helper scrubs, the pin opens anew."""
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.run(3, 2)
    harness.submit(4, 3)
    assert harness.send(5, events.WorkerLost(1, 1, 1)) == ()
    assert harness.state(1) is LeaseState.DRAINING
    (answer, scrub) = harness.result(6, 1, 1)
    assert (answer.job, scrub) == (1, ScrubLane(1, 0, 1))  # type: ignore[union-attr]
    assert harness.send(7, events.LaneScrubbed(1, 0, 1)) == (CloseLease(1, 1, 1, scrub=True),)
    assert harness.send(8, events.InstanceClosed(1, 1)) == (opened(2, "ada", "1g.5gb", 0),)
    assert harness.warm(9, 2) == (Copy(2, 1, 2, 0), Copy(3, 0, 2, 1))


def test_what_is_queued_again_goes_to_another_warm_lease_at_once() -> None:
    pins = (PinnedLease("ada", 0, "1g.5gb", 0), PinnedLease("ada", 0, "2g.10gb", 2))
    harness = BookHarness(pins=pins)
    harness.warm(1, 1, 2)
    assert harness.submit(2, 1) == (Copy(1, 0, 1, 0),)
    assert harness.send(3, events.WorkerLost(1, 0, 1)) == (Copy(1, 1, 2, 0),)


def test_a_lease_is_not_scrubbed_while_a_copy_still_writes_into_a_lost_lane() -> None:
    """The engine writes on after the worker died; only its CopyDone, of the old attempt, lets the scrub begin."""
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.submit(2, 1)
    assert harness.send(3, events.WorkerLost(1, 0, 1)) == ()
    assert harness.send(4, events.CopyDone(1, 0)) == (ScrubLane(1, 1, 1),)
    assert harness.send(5, events.LaneScrubbed(1, 1, 1)) == (CloseLease(1, 1, 1, scrub=True),)


def test_an_idempotent_job_runs_again_at_most_three_times_in_all() -> None:
    harness = BookHarness(settings=replace(SETTINGS, lanes=1), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1, lanes=1)
    harness.submit(2, 1, idempotent=True)
    for attempt, lease in enumerate((1, 2, 3)):
        launch = Launch(1, attempt, lease, 0, lease, SMALL, 14)
        assert harness.send(3, events.CopyDone(1, attempt)) == (launch,)
        lost = harness.send(4, events.WorkerLost(lease, 0, lease))
        if attempt < 2:
            assert lost == (CloseLease(lease, lease, 1, scrub=True),)
            harness.send(5, events.InstanceClosed(lease, lease))
            assert harness.warm(6, lease + 1, lanes=1) == (Copy(1, attempt + 1, lease + 1, 0),)
    unknown = ended(1, JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST, 2, lease=3)
    assert lost == (unknown, CloseLease(3, 3, 1, scrub=True))


def test_a_launch_that_never_left_counts_as_none_and_costs_the_worker() -> None:
    harness = BookHarness(settings=replace(SETTINGS, lanes=1), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1, lanes=1)
    harness.run(2, 1)
    assert harness.send(3, events.LaunchFailed(1, 0)) == (CloseLease(1, 1, 1, scrub=True),)
    assert harness.send(4, events.InstanceClosed(1, 1)) == (
        OpenLease(2, 2, 1, "ada", "gpu-0", "1g.5gb", 0, 1, MIB, MIB, False),
    )
    assert harness.warm(5, 2, lanes=1) == (Copy(1, 1, 2, 0),)
    assert harness.send(6, events.CopyDone(1, 1)) == (Launch(1, 1, 2, 0, 2, SMALL, 14),)


def test_an_instance_that_cannot_be_made_is_tried_again_after_a_pause_and_scrubbed_first() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    assert harness.send(2, events.InstanceFailed(1, 1)) == ()
    assert harness.tick(40) == ()
    assert harness.tick(502) == (opened(2, "ada", "1g.5gb", 0, dirty=True),)


def test_workers_that_die_before_they_are_ready_are_not_forked_again_at_once() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    assert harness.send(2, events.WorkerLost(1, 0, 1)) == (CloseLease(1, 1, 1, scrub=True),)
    assert harness.send(3, events.InstanceClosed(1, 1)) == ()
    assert harness.tick(400) == ()
    assert harness.tick(502) == (opened(2, "ada", "1g.5gb", 0),)


# -- the helper comes and goes ------------------------------------------------------------------------------------
def test_a_lost_helper_ends_what_ran_and_queues_the_rest_for_the_next_one() -> None:
    """Generations rise over the loss; what the old leases left is scrubbed before anything else."""
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.run(2, 2)
    harness.submit(3, 3)
    unknown = Answer(1, ADA, JobState.OUTCOME_UNKNOWN, EndReason.HELPER_LOST, 0, 1, 0, (0, 0, 0, 3 * MS, 0, 3 * MS))
    assert harness.send(5, events.HelperLost(1)) == (unknown,)
    assert harness.send(6, events.HelperLost(1)) == ()
    joined = harness.send(7, events.HelperJoined(2, (a100(),), KERNELS))
    assert joined == (opened(2, "ada", "1g.5gb", 0, helper=2, dirty=True),)
    assert harness.warm(8, 2) == (Copy(2, 1, 2, 0), Copy(3, 0, 2, 1))
    assert harness.send(9, events.CopyDone(2, 0)) == ()
    assert harness.send(9, events.CopyDone(2, 1)) == (Launch(2, 1, 2, 0, 2, SMALL, 14),)


def test_what_a_lost_helper_still_says_changes_nothing() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.submit(2, 2)
    harness.send(3, events.CancelRequested(1))
    harness.send(3, events.CancelRequested(2))
    harness.send(4, events.HelperLost(1))
    assert harness.result(5, 1, 1) == ()
    assert harness.send(5, events.CopyDone(2, 0)) == ()
    assert harness.send(5, events.LaunchFailed(1, 0)) == ()
    assert harness.send(5, events.LaneReady(1, 0, 1)) == ()
    assert not harness.book.ledger.leaving


def test_jobs_wait_for_a_helper_to_come_back_but_not_beyond_their_deadline() -> None:
    harness = BookHarness()
    harness.send(1, events.HelperLost(1))
    assert harness.submit(2, 1, by_ms=50) == ()
    assert harness.submit(2, 2) == ()
    assert harness.tick(50) == (ended(1, JobState.EXPIRED, EndReason.DEADLINE_PASSED, 48),)
    assert harness.send(60, events.HelperJoined(2, (a100(),), KERNELS)) == (opened(1, "ada", "1g.5gb", 0, helper=2),)


def test_the_generation_of_an_earlier_life_is_never_used_again() -> None:
    book = JobBook(TENANTS, GreedyFirstFit(), SETTINGS, (PinnedLease("ada", 0, "1g.5gb", 0),), first_generation=41)
    (command,) = book.handle(events.HelperJoined(1, (a100(),), KERNELS), 0)
    assert isinstance(command, OpenLease)
    assert command.generation == 42


# -- leases -------------------------------------------------------------------------------------------------------
def test_an_idle_lease_is_scrubbed_and_closed_after_keep_warm_and_its_slices_are_free_only_then() -> None:
    harness = BookHarness()
    harness.submit(0, 1)
    harness.warm(1, 1)
    harness.send(2, events.CopyDone(1, 0))
    harness.result(10, 1, 1)
    assert harness.tick(1_009) == ()
    assert harness.tick(1_010) == (ScrubLane(1, 0, 1), ScrubLane(1, 1, 1))
    assert harness.submit(1_011, 2, BOB) == (opened(2, "bob", "1g.5gb", 1),)
    assert harness.send(1_012, events.LaneScrubbed(1, 1, 1)) == ()
    assert harness.send(1_012, events.LaneScrubbed(1, 1, 1)) == ()
    assert harness.send(1_012, events.InstanceClosed(1, 1)) == ()
    assert harness.send(1_013, events.LaneScrubbed(1, 0, 1)) == (CloseLease(1, 1, 1, scrub=False),)
    assert harness.submit(1_014, 3, CYD) == (opened(3, "cyd", "1g.5gb", 2),)
    assert harness.send(1_015, events.InstanceClosed(1, 1)) == ()
    assert set(harness.book.ledger.leases) == {2, 3}


def test_a_job_within_keep_warm_starts_its_time_anew() -> None:
    harness = BookHarness()
    harness.submit(0, 1)
    harness.warm(1, 1)
    harness.send(2, events.CopyDone(1, 0))
    harness.result(10, 1, 1)
    harness.run(900, 2)
    harness.result(910, 2, 1)
    assert harness.tick(1_010) == ()
    assert harness.book.next_deadline_ns() == 1_910 * MS
    assert harness.tick(1_910) == (ScrubLane(1, 0, 1), ScrubLane(1, 1, 1))


def test_a_pinned_lease_opens_with_the_helper_and_stays() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "2g.10gb", 4),))
    assert harness.joined == (opened(1, "ada", "2g.10gb", 4),)
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.result(3, 1, 1)
    assert harness.tick(3_600_000) == ()
    assert harness.state(1) is LeaseState.WARM


def test_what_a_dead_worker_left_is_scrubbed_before_the_slices_change_hands() -> None:
    """The helper is told to scrub the whole instance, because the lane's own worker cannot confirm any more."""
    harness = BookHarness()
    harness.submit(0, 1)
    harness.warm(1, 1)
    harness.send(2, events.CopyDone(1, 0))
    harness.result(10, 1, 1)
    harness.tick(1_010)
    harness.send(1_011, events.LaneScrubbed(1, 0, 1))
    assert harness.send(1_012, events.WorkerLost(1, 1, 1)) == (CloseLease(1, 1, 1, scrub=True),)


def test_a_worker_lost_before_its_lease_was_warm_closes_it() -> None:
    harness = BookHarness()
    harness.submit(0, 1)
    harness.send(1, events.LaneReady(1, 0, 1))
    assert harness.send(2, events.WorkerLost(1, 1, 1)) == (CloseLease(1, 1, 1, scrub=True),)
    assert harness.send(3, events.LaneReady(1, 1, 1)) == ()
    assert harness.send(4, events.InstanceClosed(1, 1)) == ()
    assert harness.tick(502) == (opened(2, "ada", "1g.5gb", 0),)


def fill(harness: BookHarness, *, busy: tuple[int, ...]) -> None:
    """Ada holds the seven slices, each a lease of its own; those in ``busy`` run a job."""
    harness.warm(1, 1, 2, 3, 4, 5, 6, 7)
    for job in range(1, 8):
        harness.run(2, job)
    for job in range(1, 8):
        if job not in busy:
            harness.result(3, job, job)


SEVEN = tuple(PinnedLease("ada", 0, "1g.5gb", start) for start in range(7))


def unpin(harness: BookHarness) -> None:
    for lease in harness.book.ledger.leases.values():
        lease.is_pinned = False


@pytest.mark.parametrize(
    ("share", "taken"), [(14, {2}), (28, {1, 2}), (42, {1, 2, 3, 4}), (100, {1, 2, 3, 4, 5, 6, 7})]
)
def test_a_reclaim_takes_as_few_leases_as_let_the_demand_in(share: int, taken: set[int]) -> None:
    """Lease 2 is idle for longest, then the others by number; R = 28 needs slices 0 and 1 together."""
    harness = BookHarness(pins=SEVEN)
    fill(harness, busy=(1, 3, 4, 5, 6, 7))
    for job in (1, 3, 4, 5, 6, 7):
        harness.result(10, job, job)
    unpin(harness)
    harness.submit(50, 20, BOB, share=share)
    out = harness.tick(70)
    assert {c.lease for c in out if isinstance(c, ScrubLane)} == taken
    assert {lease for lease in range(1, 8) if harness.state(lease) is LeaseState.SCRUBBING} == taken


def test_busy_leases_are_taken_only_after_reclaim_after_and_finish_their_jobs() -> None:
    harness = BookHarness(pins=SEVEN)
    fill(harness, busy=(1, 2, 3, 4, 5, 6, 7))
    unpin(harness)
    harness.submit(300, 20, BOB)
    for at_ms in (320, 340, 360, 380, 399):
        assert harness.tick(at_ms) == ()
    assert harness.tick(400) == ()
    assert [lease for lease in range(1, 8) if harness.state(lease) is LeaseState.DRAINING] == [1]
    out = harness.result(401, 1, 1)
    assert out[1:] == (ScrubLane(1, 0, 1), ScrubLane(1, 1, 1))


def test_a_lease_is_safe_from_reclaim_for_min_hold() -> None:
    harness = BookHarness(pins=SEVEN)
    fill(harness, busy=(1, 2, 3, 4, 5, 6, 7))
    unpin(harness)
    harness.submit(50, 20, BOB)
    for at_ms in range(60, 201, 10):
        harness.tick(at_ms)
    assert all(harness.state(lease) is LeaseState.WARM for lease in range(1, 8))
    for at_ms in range(201, 250):
        harness.tick(at_ms)
    assert [lease for lease in range(1, 8) if harness.state(lease) is LeaseState.DRAINING] == [1]


def test_pinned_leases_are_never_reclaimed_and_the_refusal_says_why() -> None:
    harness = BookHarness(pins=SEVEN)
    fill(harness, busy=())
    harness.submit(50, 20, BOB)
    for at_ms in range(60, 3_000, 10):
        assert harness.tick(at_ms) == ()
    assert harness.book.ledger.jobs[20].refusal == Refusal(
        (Obstacle.GEOMETRY, Obstacle.TENANT_CLASH), (Unblocker.LEASE_CLOSES, Unblocker.HELPER_JOINS)
    )


def test_a_tenant_that_holds_its_whole_share_is_told_so() -> None:
    harness = BookHarness((TenantSpec("ada", max_share=14),), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    for job in (1, 2, 3):
        harness.submit(2, job)
    assert harness.tick(30) == ()
    assert harness.book.ledger.jobs[3].refusal == Refusal(
        (Obstacle.QUOTA,), (Unblocker.LEASE_CLOSES, Unblocker.CONFIGURATION)
    )


def test_a_pin_does_not_lift_its_tenant_above_its_quota() -> None:
    """The pin's first instance failed; meanwhile the tenant's jobs took its share elsewhere."""
    harness = BookHarness((TenantSpec("ada", max_share=28),), pins=(PinnedLease("ada", 0, "2g.10gb", 4),))
    harness.send(1, events.InstanceFailed(1, 1))
    assert harness.submit(502, 1) == (opened(2, "ada", "2g.10gb", 4, dirty=True),)


def test_the_first_need_of_all_may_come_at_time_zero() -> None:
    """Simulators begin at 0: that need must age, be looked at again and be forgotten like any other."""
    harness = BookHarness(pins=SEVEN)
    harness.submit(0, 20, BOB)
    fill(harness, busy=())
    unpin(harness)
    assert harness.book.next_deadline_ns() == 20 * MS
    out = [command for at_ms in (20, 40) for command in harness.tick(at_ms)]
    assert {c.lease for c in out if isinstance(c, ScrubLane)} == {1}


def test_a_need_is_old_enough_by_its_own_age_although_an_older_needs_timer_still_runs() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    for job in (1, 2):
        harness.run(2, job)
    harness.submit(3, 3)  # its need would be looked at at 23
    harness.result(5, 1, 1)
    assert not harness.book.ledger.backlogged
    harness.submit(15, 4)
    for at_ms in (23, 34.9):
        assert harness.tick(at_ms) == ()
    assert harness.book.next_deadline_ns() == 35 * MS
    assert harness.tick(35) == (opened(2, "ada", "1g.5gb", 1),)


def test_a_book_without_hysteresis_does_not_ask_to_be_called_each_nanosecond() -> None:
    harness = BookHarness(settings=replace(SETTINGS, grow_after_ns=0), pins=(PinnedLease("bob", 0, "7g.40gb", 0),))
    harness.submit(1, 1)
    harness.tick(1)
    assert harness.book.next_deadline_ns() == 2 * MS


def test_many_far_deadlines_do_not_fill_the_timers() -> None:
    harness = BookHarness()
    for job in range(1, 5_001):
        harness.submit(1, job, by_ms=10**9)
        harness.send(1, events.CancelRequested(job))
        harness.send(1, events.CreditReturned(job))
    assert len(harness.book.ledger.timers) <= 257
    assert not harness.book.ledger.jobs
    assert not harness.book.ledger.tenants["ada"].queues


def test_after_the_largest_number_leases_are_numbered_anew_and_no_live_one_twice() -> None:
    """An answer's header has 32 bits for the number."""
    harness = BookHarness(pins=(PinnedLease("bob", 0, "1g.5gb", 0),))
    harness.book.leasing.next_lease = LARGEST_LEASE
    harness.submit(1, 1, ADA, SMALL)
    harness.submit(2, 2, CYD, SMALL)
    assert sorted(harness.book.ledger.leases) == [1, 2, LARGEST_LEASE]
    generations = [lease.generation for lease in harness.book.ledger.leases.values()]
    assert len(set(generations)) == 3
