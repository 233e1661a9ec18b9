"""A helper reloads its kernels: its leases stay, lane by lane other workers take over, no job meets the former code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpath.sched.gpu.baselines import BestFit, FirstFitPolicy
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.policy import Policy
from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Answer, CloseLease, Command, Copy, KillLane, Launch, OpenLease, RenewLane
from offpath.sched.jobs.explain import explain
from offpath.sched.jobs.settings import MS, PinnedLease
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

from ..gpus import a100
from .book_harness import KERNELS, SETTINGS, BookHarness, ended

NEW = events.Kernel(4, 14)
LIMITS = replace(SETTINGS, open_ns=100 * MS, load_ns=300 * MS, kernel_gone_ns=1_000 * MS)


def reloaded(*kernels: events.Kernel, revision: int = 1) -> events.KernelsReloaded:
    return events.KernelsReloaded(1, kernels or KERNELS, revision)


def renew(lane: int, renewal: int = 1, lease: int = 1) -> RenewLane:
    return RenewLane(lease, lane, lease, 1, renewal)


def warm(settings: object = None, **how: object) -> BookHarness:
    """Ada's lease 1 is warm, its lanes are idle."""
    harness = BookHarness(settings=settings or SETTINGS, **how)  # type: ignore[arg-type]
    harness.submit(0, 1)
    harness.warm(1, 1)
    harness.send(1, events.CopyDone(1, 0))
    harness.result(2, 1, 1)
    return harness


def kept(harness: BookHarness) -> list[tuple[int, int, LeaseState]]:
    return [(number, lease.generation, lease.state) for number, lease in harness.book.ledger.leases.items()]


def test_idle_lanes_are_renewed_at_once_and_take_jobs_when_their_new_workers_are_ready() -> None:
    harness = warm()
    assert harness.send(3, reloaded()) == (renew(0), renew(1))
    assert harness.submit(4, 2) == (), "no lane runs the new code yet"
    (copy,) = harness.send(5, events.LaneReady(1, 1, 1))
    assert copy == Copy(2, 0, 1, 1)
    assert kept(harness) == [(1, 1, LeaseState.WARM)]


def test_an_explanation_names_the_lanes_that_are_renewed() -> None:
    harness = warm()
    harness.send(3, reloaded())
    harness.submit(4, 2)
    book = harness.book
    (full, _) = explain(book.ledger.jobs[2], book.ledger, tuple(book.leasing.gpus), 5 * MS).holds
    assert full.text.endswith("are taken, 0 run; 2 get a new worker, because their helper has reloaded its kernels")
    harness.send(6, events.LaneReady(1, 1, 1))
    harness.submit(7, 3)
    (full, _) = explain(book.ledger.jobs[3], book.ledger, tuple(book.leasing.gpus), 8 * MS).holds
    assert "; 1 get a new worker" in full.text


def test_what_is_on_a_lane_ends_there_and_the_lane_is_renewed_then() -> None:
    """One runs, one was copied ahead: both end with the former code."""
    harness = warm()
    ran = harness.run(3, 2)
    harness.run(3, 3)
    assert harness.submit(3, 4) == ()
    assert harness.send(4, reloaded()) == ()
    lane = next(each.lane for each in ran if isinstance(each, Launch))
    answer, order, launch = harness.result(6, 2, 1)
    assert (answer, order) == (ended(2, JobState.COMPLETED, EndReason.NONE, 3, lease=1), renew(lane))
    assert isinstance(launch, Launch)
    assert (launch.job, launch.lane) == (3, 1 - lane)
    assert [type(each) for each in harness.result(7, 3, 1)] == [Answer, RenewLane]
    assert harness.send(8, events.LaneReady(1, 0, 1)) == (Copy(4, 0, 1, 0),)


def test_a_lane_whose_copy_failed_or_whose_job_was_cancelled_is_renewed_too() -> None:
    harness = warm()
    harness.run(3, 3)
    harness.submit(3, 2)
    harness.send(4, reloaded())
    assert [type(each) for each in harness.send(5, events.CopyDone(2, 0, error=True))] == [Answer, RenewLane]
    assert [type(each) for each in harness.send(6, events.CancelRequested(3))] == [Answer]
    assert [type(each) for each in harness.result(7, 3, 1)] == [RenewLane]


def test_a_reload_before_the_last_one_has_ended_renews_the_lane_once_more() -> None:
    harness = warm()
    harness.send(3, reloaded())
    assert harness.send(4, reloaded(revision=2)) == ()
    harness.submit(4, 2)
    assert harness.send(5, events.LaneReady(1, 0, 1)) == (renew(0, 2),)
    assert harness.send(6, events.LaneReady(1, 0, 1)) == (Copy(2, 0, 1, 0),)
    assert harness.send(7, events.LaneReady(1, 0, 1)) == (), "it is not awaited"


def test_a_lease_that_opens_meanwhile_renews_its_lanes_before_any_job() -> None:
    """Its workers may have been started with the former code."""
    harness = BookHarness()
    harness.submit(0, 1)
    assert harness.send(1, reloaded()) == ()
    assert harness.warm(2, 1) == (renew(0), renew(1))
    assert harness.send(3, events.LaneReady(1, 0, 1)) == (Copy(1, 0, 1, 0),)


def test_jobs_of_a_removed_kernel_wait_until_it_is_forgotten_and_new_ones_are_refused() -> None:
    harness = warm(LIMITS)
    harness.run(3, 2)
    harness.run(3, 3)
    harness.submit(3, 4)
    harness.send(4, reloaded(NEW))
    assert harness.submit(5, 5) == (ended(5, JobState.REJECTED, EndReason.UNKNOWN_KERNEL, 0),)
    assert [type(each) for each in harness.result(6, 2, 1)] == [Answer, RenewLane, Launch], "both run to their ends"
    gone = harness.tick(1_004)
    assert ended(4, JobState.CANCELLED, EndReason.KERNEL_GONE, 1_001) in gone


def test_jobs_of_a_removed_kernel_run_when_it_comes_back_in_time() -> None:
    harness = warm(LIMITS)
    harness.run(3, 2)
    harness.run(3, 3)
    harness.submit(3, 4)
    harness.send(4, reloaded(NEW))
    harness.result(5, 2, 1)
    harness.result(5, 3, 1)
    for lane in (0, 1):
        harness.send(6, events.LaneReady(1, lane, 1))
    assert [type(each) for each in harness.send(7, reloaded(revision=2))] == [RenewLane, RenewLane]
    assert harness.send(8, events.LaneReady(1, 0, 1)) == (Copy(4, 0, 1, 0),)


def test_an_added_kernel_is_accepted_from_then_on() -> None:
    harness = warm()
    assert harness.submit(3, 2, kernel=4) == (ended(2, JobState.REJECTED, EndReason.UNKNOWN_KERNEL, 0),)
    harness.send(4, reloaded(*KERNELS, NEW))
    assert harness.submit(5, 3, kernel=4) == ()
    assert harness.send(6, events.LaneReady(1, 0, 1)) == (Copy(3, 0, 1, 0),)


def test_the_reload_of_one_helper_leaves_the_lanes_of_another_alone() -> None:
    harness = BookHarness(is_joined=False)
    harness.send(0, events.HelperJoined(1, (a100("a/gpu"),), KERNELS, "", "a"))
    harness.send(0, events.HelperJoined(2, (a100("b/gpu"),), KERNELS[:1], "", "b"))
    harness.submit(0, 1)
    harness.warm(1, 1)
    assert harness.send(2, events.KernelsReloaded(2, KERNELS, 1)) == ()
    assert [each.lane for each in harness.send(3, reloaded()) if isinstance(each, RenewLane)] == [1]
    assert harness.send(4, events.KernelsReloaded(9, KERNELS, 1)) == (), "nobody has this number"


def test_a_backlog_opens_no_further_lease_while_lanes_are_renewed() -> None:
    harness = warm()
    harness.send(3, reloaded())
    harness.submit(3, 2)
    assert not [each for at_ms in range(4, 400, 7) for each in harness.tick(at_ms) if isinstance(each, OpenLease)]


def test_a_lease_whose_lanes_are_renewed_is_not_idle_until_they_are_ready() -> None:
    harness = warm()
    harness.send(3, reloaded())
    assert harness.tick(5_000) == ()
    harness.send(5_001, events.LaneReady(1, 0, 1))
    assert harness.tick(7_000) == (), "the other one is renewed still"
    harness.send(7_001, events.LaneReady(1, 1, 1))
    assert harness.state(1) is LeaseState.WARM
    harness.tick(8_002)
    assert harness.state(1) is LeaseState.SCRUBBING


def test_a_lease_with_renewed_lanes_is_scrubbed_whole() -> None:
    """The former workers scrubbed nothing."""
    harness = warm()
    harness.send(3, reloaded())
    for lane in (0, 1):
        harness.send(4, events.LaneReady(1, lane, 1))
    harness.tick(1_005)
    harness.send(1_006, events.LaneScrubbed(1, 0, 1))
    assert harness.send(1_006, events.LaneScrubbed(1, 1, 1)) == (CloseLease(1, 1, 1, scrub=True),)


@pytest.mark.parametrize(("is_loading", "due_ms"), [(False, 103), (True, 350)], ids=["starting", "loading"])
def test_a_new_worker_that_takes_too_long_is_killed_and_its_lane_lost(is_loading: bool, due_ms: int) -> None:
    """`limits.open_ms` counts until it loads, then `limits.load_ms`."""
    harness = warm(LIMITS)
    harness.send(3, reloaded())
    harness.send(4, events.LaneReady(1, 1, 1))
    if is_loading:
        assert harness.send(50, events.LaneLoading(1, 0, 1)) == ()
    assert harness.tick(due_ms - 1) == ()
    assert KillLane(1, 0, 1, 1) in harness.tick(due_ms)
    assert harness.state(1) is LeaseState.SCRUBBING


def test_a_new_worker_that_dies_is_a_lost_one() -> None:
    harness = warm()
    harness.send(3, reloaded())
    harness.send(4, events.LaneReady(1, 1, 1))
    harness.run(5, 2)
    harness.send(6, events.WorkerLost(1, 0, 1))
    assert harness.state(1) is LeaseState.DRAINING
    assert isinstance(harness.result(7, 2, 1)[0], Answer)
    assert harness.send(8, events.LaneReady(1, 0, 1)) == ()


def test_a_draining_lease_gets_no_new_workers() -> None:
    harness = warm()
    harness.run(3, 2)
    harness.send(4, events.ConfigChanged((replace(harness.book.ledger.tenants["bob"].spec),), SETTINGS, ()))
    assert harness.state(1) is LeaseState.DRAINING
    harness.send(5, reloaded())
    assert not any(isinstance(each, RenewLane) for each in harness.result(6, 2, 1))


def test_a_pinned_lease_is_renewed_and_stays_pinned() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    assert harness.send(2, reloaded()) == (renew(0), renew(1))
    assert harness.book.ledger.leases[1].is_pinned


def test_a_book_in_the_middle_of_a_reload_is_restored_as_it_was() -> None:
    harness = warm(LIMITS)
    harness.run(3, 2)
    harness.send(4, reloaded(*KERNELS, NEW))
    again = restore(snapshot(harness.book), lambda name: type(harness.book.ledger.policy)())
    assert snapshot(again) == snapshot(harness.book)
    for at_ms, event in (
        (5.0, events.ResultArrived(2, 1, EndReason.NONE, 5, 5)), (6.0, events.LaneReady(1, 0, 1)),
        (7.0, events.LaneReady(1, 1, 1)), (500.0, events.Tick()),
    ):  # fmt: skip
        assert again.handle(event, int(at_ms * MS)) == harness.send(at_ms, event)


@pytest.mark.parametrize("make", [OldestGpuFirst, FirstFitPolicy, BestFit], ids=lambda make: make.__name__)
def test_every_policy_places_nothing_on_a_paused_lane(make: type[Policy]) -> None:
    harness = BookHarness(is_joined=False)
    harness.book.ledger.decide_by(make())
    harness.send(0, events.HelperJoined(1, (a100(),), KERNELS))
    harness.submit(0, 1)
    harness.warm(1, 1)
    assert harness.send(2, reloaded()) == (renew(1),)
    harness.send(2, events.CopyDone(1, 0))
    assert harness.result(3, 1, 1)[-1] == renew(0)
    assert harness.submit(4, 2) == ()
    copies: list[Command] = [*harness.send(5, events.LaneReady(1, 1, 1))]
    assert copies == [Copy(2, 0, 1, 1)]
