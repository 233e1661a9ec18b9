"""The job book, sentence by sentence: what takes too long. Times in ms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpath.sched.gpu.policy import Obstacle, Refusal, Unblocker
from offpath.sched.jobs import events
from offpath.sched.jobs.commands import CloseLease, KillLane, Launch, OpenLease, ScrubLane
from offpath.sched.jobs.settings import MS, PinnedLease
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

from ..gpus import a100
from .book_harness import ADA, BOB, SETTINGS, SMALL, BookHarness, ended, opened

PIN = PinnedLease("ada", 0, "3g.20gb", 0)
SHORT = replace(SETTINGS, kernel_ns=100 * MS, linger_ns=20 * MS, open_ns=50 * MS, scrub_ns=60 * MS)


def test_a_kernel_that_runs_too_long_fails_and_its_worker_is_killed_while_the_other_lane_finishes() -> None:
    harness = BookHarness(settings=SHORT, pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.run(50, 2)
    assert harness.tick(101) == ()
    overran = ended(1, JobState.FAILED, EndReason.KERNEL_OVERRAN, 100, lease=1)
    assert harness.tick(102) == (KillLane(1, 0, 1, 1), overran)
    assert harness.state(1) is LeaseState.DRAINING
    assert harness.send(103, events.WorkerLost(1, 0, 1)) == (), "its death is no news"
    assert harness.result(103, 1, 1) == (), "nor what it said before it died"
    out = harness.result(104, 2, 1)
    assert out[1:] == (ScrubLane(1, 1, 1),)
    assert harness.send(105, events.LaneScrubbed(1, 1, 1)) == (CloseLease(1, 1, 1, scrub=True),)


STREAM = events.Kernel(4, 14, "stream", streams=True)


def streaming() -> BookHarness:
    """With a stream that has run since ms 2."""
    harness = BookHarness(settings=SHORT, pins=(PIN,), is_joined=False)
    harness.send(0, events.HelperJoined(1, (a100(),), (events.Kernel(1, 14), STREAM)))
    harness.warm(1, 1)
    harness.run(2, 1, kernel=4)
    return harness


def test_a_stream_that_runs_too_long_is_ended_and_its_lease_stays_if_the_kernel_stops() -> None:
    harness = streaming()
    assert harness.tick(102) == (ended(1, JobState.FAILED, EndReason.KERNEL_OVERRAN, 100, lease=1),)
    assert harness.result(103, 1, 1, EndReason.DAEMON_RESTARTED) == ()
    assert harness.tick(500) == ()
    assert harness.state(1) is LeaseState.WARM


def test_the_worker_of_a_stream_that_runs_too_long_and_does_not_stop_is_killed() -> None:
    harness = streaming()
    harness.tick(102)
    assert harness.tick(121) == ()
    assert harness.tick(122) == (KillLane(1, 0, 1, 1), ScrubLane(1, 1, 1))
    assert harness.state(1) is LeaseState.SCRUBBING


def test_an_idempotent_kernel_that_overran_is_not_tried_again() -> None:
    harness = BookHarness(settings=SHORT, pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1, idempotent=True)
    assert harness.tick(102)[1] == ended(1, JobState.FAILED, EndReason.KERNEL_OVERRAN, 100, lease=1)


def test_two_endless_kernels_delay_nothing_of_each_others_end() -> None:
    harness = BookHarness(settings=SHORT, pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.run(90, 2)
    harness.tick(102)
    assert harness.tick(190) == (
        KillLane(1, 1, 1, 1),
        ended(2, JobState.FAILED, EndReason.KERNEL_OVERRAN, 100, lease=1),
        CloseLease(1, 1, 1, scrub=True),
    )


@pytest.mark.parametrize("how", ["cancelled", "expired", "session closed"])
def test_a_kernel_that_runs_on_after_its_job_was_answered_is_killed_soon(how: str) -> None:
    harness = BookHarness(settings=SHORT, pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1, by_ms=10 if how == "expired" else 0)
    if how == "cancelled":
        harness.send(10, events.CancelRequested(1))
    elif how == "session closed":
        harness.send(10, events.SessionClosed(ADA))
    else:
        harness.tick(10)
    assert harness.tick(29) == ()
    assert harness.tick(30) == (KillLane(1, 0, 1, 1), ScrubLane(1, 1, 1))


def test_a_kernel_of_an_expired_job_may_finish_where_that_is_configured_but_no_longer_than_a_kernel_may() -> None:
    harness = BookHarness(settings=replace(SHORT, kills_expired=False), pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1, by_ms=10)
    assert harness.tick(10) == (ended(1, JobState.EXPIRED, EndReason.DEADLINE_PASSED, 8, lease=1),)
    assert harness.tick(101) == ()
    assert harness.tick(102) == (KillLane(1, 0, 1, 1), ScrubLane(1, 1, 1))
    harness = BookHarness(settings=replace(SHORT, kills_expired=False), pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1, by_ms=10)
    harness.tick(10)
    assert harness.result(90, 1, 1) == ()
    assert harness.tick(500) == ()
    assert harness.state(1) is LeaseState.WARM


def test_a_cancelled_kernel_is_killed_soon_also_where_expired_ones_may_finish() -> None:
    harness = BookHarness(settings=replace(SHORT, kills_expired=False), pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1, by_ms=60)
    harness.send(10, events.CancelRequested(1))
    assert harness.tick(30) == (KillLane(1, 0, 1, 1), ScrubLane(1, 1, 1))


@pytest.mark.parametrize("lost", [events.WorkerLost(1, 1, 1), events.HelperLost(1)])
def test_nothing_is_launched_on_a_lane_whose_loss_is_being_told(lost: events.Event) -> None:
    """Before the loss its time is taken in: a kernel has overrun, and its share would go to who waits on the lane."""
    harness = BookHarness(settings=SHORT, pins=(PIN,))
    harness.warm(1, 1)
    assert Launch(1, 0, 1, 0, 1, SMALL, 42) in harness.run(2, 1, share=42)
    assert not any(isinstance(command, Launch) for command in harness.run(2, 2, share=42))
    assert harness.book.ledger.jobs[2].placement is not None
    told = harness.send(500, lost)
    assert not any(isinstance(command, Launch) for command in told)
    assert harness.book.ledger.jobs[2].state is JobState.QUEUED
    assert harness.book.ledger.jobs[2].launches == 0


def test_a_kernel_that_ends_in_time_after_its_job_was_cancelled_costs_nobody_a_worker() -> None:
    harness = BookHarness(settings=SHORT, pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.send(10, events.CancelRequested(1))
    assert harness.result(29, 1, 1) == ()
    assert harness.tick(500) == ()
    assert harness.state(1) is LeaseState.WARM


def test_without_limits_nothing_is_killed_and_nothing_is_watched() -> None:
    harness = BookHarness(settings=replace(SHORT, kernel_ns=0, linger_ns=0, open_ns=0), pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.send(10, events.CancelRequested(1))
    assert harness.tick(10**9) == ()


def test_a_limit_that_is_cut_counts_for_what_runs_already() -> None:
    harness = BookHarness(settings=SETTINGS, pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1)
    tenants = tuple(tenant.spec for tenant in harness.book.ledger.tenants.values())
    harness.send(50, events.ConfigChanged(tenants, SHORT, (PIN,)))
    assert harness.tick(102)[0] == KillLane(1, 0, 1, 1)


def test_one_timer_watches_a_lease_however_many_kernels_it_runs() -> None:
    harness = BookHarness(settings=SHORT, pins=(PIN,))
    harness.warm(1, 1)
    before = len(harness.book.ledger.timers)
    for job in range(1, 200):
        assert Launch(job, 0, 1, 0, 1, SMALL, 14) in harness.run(2, job)
        harness.result(2, job, 1)
        harness.send(2, events.CreditReturned(job))
    assert len(harness.book.ledger.timers) == before == 1


def test_a_lease_that_does_not_open_in_time_is_closed_scrubbed_and_tried_again_after_the_pause() -> None:
    harness = BookHarness(settings=SHORT)
    harness.submit(1, 1)
    harness.send(2, events.LaneReady(1, 0, 1))
    assert harness.tick(50) == ()
    assert harness.tick(51) == (CloseLease(1, 1, 1, scrub=True),)
    assert harness.send(52, events.LaneReady(1, 1, 1)) == ()
    assert harness.send(53, events.InstanceClosed(1, 1)) == ()
    assert harness.tick(550) == ()
    assert harness.tick(551) == (opened(2, "ada", "1g.5gb", 0),)


def test_lanes_that_are_not_scrubbed_in_time_are_left_to_the_helper() -> None:
    harness = BookHarness(settings=SHORT)
    harness.submit(0, 1)
    harness.warm(1, 1)
    harness.send(2, events.CopyDone(1, 0))
    harness.result(10, 1, 1)
    harness.tick(1_010)
    harness.send(1_011, events.LaneScrubbed(1, 0, 1))
    assert harness.tick(1_069) == ()
    assert harness.tick(1_070) == (CloseLease(1, 1, 1, scrub=True),)
    assert harness.send(1_071, events.LaneScrubbed(1, 1, 1)) == ()
    assert harness.tick(5_000) == (), "the closing is the helper's, and its silence another matter"


def failing(harness: BookHarness, at_ms: float) -> tuple[float, OpenLease]:
    """When the next try comes, and the try."""
    while True:
        next_ns = harness.book.next_deadline_ns()
        assert next_ns is not None
        at_ms = max(at_ms, next_ns / MS)
        opens = [command for command in harness.tick(at_ms) if isinstance(command, OpenLease)]
        if opens:
            return at_ms, opens[0]


def test_an_instance_whose_workers_die_at_birth_is_tried_again_ever_more_rarely_and_who_waits_is_told() -> None:
    harness = BookHarness(settings=replace(SETTINGS, retry_limit_ns=6_000 * MS))
    harness.submit(0, 1)
    at_ms, lease, pauses = 1.0, 1, []
    for number in range(1, 11):
        refusal = harness.book.ledger.jobs[1].refusal
        assert (refusal is not None and Obstacle.OPENING_FAILED in refusal.obstacles) == (number > 8), number
        harness.send(at_ms, events.WorkerLost(lease, 0, lease))
        harness.send(at_ms, events.InstanceClosed(lease, lease))
        failed_ms = at_ms
        at_ms, opens = failing(harness, at_ms)
        lease = opens.lease
        pauses.append(round(at_ms - failed_ms))
    assert pauses == [500, 1_000, 2_000, 4_000, *[6_000] * 6]
    told = Refusal((Obstacle.OPENING_FAILED,), (Unblocker.LEASE_OPENS, Unblocker.HELPER_JOINS))
    assert harness.book.ledger.jobs[1].refusal == told
    harness.warm(at_ms, lease)
    assert harness.book.ledger.tenants["ada"].failures == 0


def test_one_tenants_failures_hold_up_nobody_elses_pins() -> None:
    pins = (PinnedLease("ada", 0, "1g.5gb", 0), PinnedLease("bob", 0, "1g.5gb", 1))
    harness = BookHarness(settings=SETTINGS, pins=pins)
    harness.send(1, events.WorkerLost(1, 0, 1))
    harness.send(1, events.InstanceFailed(2, 2))
    assert harness.send(2, events.InstanceClosed(1, 1)) == ()
    harness.book.ledger.tenants["bob"].retry_open_ns = 0
    assert harness.submit(3, 1, BOB) == (opened(3, "bob", "1g.5gb", 1, dirty=True),)
    assert harness.tick(502)[0] == opened(4, "ada", "1g.5gb", 0)


def test_the_limit_on_loading_replaces_that_on_opening_when_all_lanes_are_reserved() -> None:
    harness = BookHarness(settings=replace(SHORT, load_ns=200 * MS), pins=(PIN,))
    for at_ms, lane in ((10, 0), (20, 0), (40, 1), (45, 7)):
        assert harness.send(at_ms, events.LaneLoading(1, lane, 1)) == ()
    assert harness.tick(239) == ()
    (closed,) = harness.tick(240)
    assert isinstance(closed, CloseLease)


def test_one_lane_that_is_not_reserved_keeps_the_limit_on_opening() -> None:
    harness = BookHarness(settings=replace(SHORT, load_ns=200 * MS), pins=(PIN,))
    harness.send(10, events.LaneLoading(1, 0, 1))
    harness.send(10, events.LaneLoading(1, 1, 9))
    (closed,) = harness.tick(50)
    assert isinstance(closed, CloseLease)


def test_without_a_limit_on_loading_a_lease_may_load_for_ever() -> None:
    harness = BookHarness(settings=replace(SHORT, load_ns=0), pins=(PIN,))
    for lane in range(2):
        harness.send(10, events.LaneLoading(1, lane, 1))
    assert harness.tick(10**6) == ()
    harness.warm(10**6, 1)
    assert harness.state(1) is LeaseState.WARM
