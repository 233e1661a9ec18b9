"""The job book, sentence by sentence: another configuration while everything runs. Times in ms."""

from __future__ import annotations

from dataclasses import replace

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import (
    Answer,
    CloseLease,
    Command,
    Copy,
    EndSession,
    KillLane,
    Launch,
    OpenLease,
    ScrubLane,
    TenantGone,
)
from offpath.sched.jobs.settings import MS, BookSettings, PinnedLease, TenantSpec
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

from ..gpus import a100
from .book_harness import ADA, BOB, HALF, KERNELS, SETTINGS, SMALL, TENANTS, WHOLE, BookHarness, ended, opened

PIN = PinnedLease("ada", 0, "1g.5gb", 0)
WITHOUT_ADA = TENANTS[1:]


def change(
    harness: BookHarness,
    at_ms: float,
    tenants: tuple[TenantSpec, ...] = TENANTS,
    pins: tuple[PinnedLease, ...] = (),
    settings: BookSettings = SETTINGS,
) -> tuple[Command, ...]:
    return harness.send(at_ms, events.ConfigChanged(tenants, settings, pins))


def kinds(out: tuple[Command, ...]) -> list[type]:
    return [type(command) for command in out]


def busy_desk(**options: object) -> BookHarness:
    """Ada runs job 1, has copied job 2, and job 3 waits."""
    harness = BookHarness(pins=(PIN,), **options)  # type: ignore[arg-type]
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.run(2, 2)
    harness.submit(2, 3)
    return harness


# -- removal ------------------------------------------------------------------------------------------------------
def test_a_removed_tenants_queue_ends_what_has_a_lane_may_finish_and_then_all_of_it_goes() -> None:
    harness = busy_desk()
    assert change(harness, 3, WITHOUT_ADA) == (ended(3, JobState.CANCELLED, EndReason.TENANT_REMOVED, 1),)
    assert harness.state(1) is LeaseState.DRAINING
    answer, launch = harness.result(4, 1, 1)
    assert isinstance(answer, Answer)
    assert launch == Launch(2, 0, 1, 1, 1, SMALL, 14)
    out = harness.result(5, 2, 1)
    assert kinds(out) == [Answer, ScrubLane, ScrubLane, EndSession]
    assert harness.send(6, events.SessionClosed(ADA)) == ()
    assert [harness.send(7, events.LaneScrubbed(1, lane, 1)) for lane in (0, 1)] == [(), (CloseLease(1, 1, 1, False),)]
    assert harness.send(8, events.InstanceClosed(1, 1)) == (TenantGone("ada"),)
    assert set(harness.book.ledger.tenants) == {"bob", "cyd"}
    assert not harness.book.ledger.departing


def test_a_removed_tenants_session_is_refused_everything_and_ends_when_its_answers_are_out() -> None:
    harness = busy_desk()
    change(harness, 3, WITHOUT_ADA)
    assert harness.submit(4, 4) == (ended(4, JobState.REJECTED, EndReason.TENANT_REMOVED, 0),)
    assert harness.submit(4, 5, request=1) == (ended(5, JobState.REJECTED, EndReason.TENANT_REMOVED, 0),)
    harness.send(5, events.CancelRequested(1))
    assert harness.send(5, events.CancelRequested(2))[-1] == EndSession(ADA)
    assert harness.submit(6, 6) == (ended(6, JobState.REJECTED, EndReason.TENANT_REMOVED, 0),), "and is told but once"


def test_an_idle_tenant_goes_at_once() -> None:
    harness = BookHarness()
    assert change(harness, 1, WITHOUT_ADA) == (EndSession(ADA),)
    assert harness.send(2, events.SessionClosed(ADA)) == (TenantGone("ada"),)
    assert change(harness, 3, TENANTS[2:]) == (EndSession(BOB),)
    assert harness.send(4, events.SessionOpened(9, "bob", 4)) == (EndSession(9),), "its ticket was redeemed too late"


def test_a_lease_that_is_being_opened_for_a_removed_tenant_is_given_up() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    out = change(harness, 2, WITHOUT_ADA)
    assert kinds(out) == [CloseLease, Answer, EndSession]
    harness.send(3, events.LaneReady(1, 0, 1))
    harness.send(3, events.SessionClosed(ADA))
    assert harness.send(4, events.InstanceClosed(1, 1)) == (TenantGone("ada"),)


def test_at_the_drain_limit_what_runs_is_lost_with_its_worker_and_what_did_not_start_is_cancelled() -> None:
    settings = replace(SETTINGS, drain_ns=100 * MS)
    harness = busy_desk(settings=settings)
    harness.run(2, 7, BOB, SMALL)
    change(harness, 3, WITHOUT_ADA, settings=settings)
    assert harness.tick(102) == ()
    out = harness.tick(103)
    assert out == (
        KillLane(1, 1, 1, 1),
        ended(2, JobState.CANCELLED, EndReason.TENANT_REMOVED, 101),
        KillLane(1, 0, 1, 1),
        ended(1, JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST, 101, lease=1),
        CloseLease(1, 1, 1, scrub=True),
        EndSession(ADA),
    )


def test_a_removed_tenants_idempotent_job_is_not_tried_again() -> None:
    harness = BookHarness(pins=(PIN,))
    harness.warm(1, 1)
    harness.run(2, 1, idempotent=True)
    change(harness, 3, WITHOUT_ADA)
    out = harness.send(4, events.WorkerLost(1, 0, 1))
    assert out[0] == ended(1, JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST, 2, lease=1)


def test_a_tenant_that_is_added_again_while_it_goes_starts_fresh_and_its_old_session_still_goes() -> None:
    settings = replace(SETTINGS, drain_ns=100 * MS)
    harness = busy_desk(settings=settings)
    change(harness, 3, WITHOUT_ADA, settings=settings)
    change(harness, 4, TENANTS, settings=settings)
    harness.send(5, events.SessionOpened(4, "ada", 8))
    assert harness.submit(6, 8, 4) == ()
    assert harness.tick(26) == (opened(2, "ada", "1g.5gb", 1),)
    assert harness.warm(27, 2) == (Copy(8, 0, 2, 0),)
    assert harness.submit(28, 9, ADA)[0].reason is EndReason.TENANT_REMOVED  # type: ignore[union-attr]
    out = harness.tick(103)
    assert kinds(out) == [KillLane, Answer, KillLane, Answer, CloseLease, EndSession]
    assert harness.send(104, events.SessionClosed(ADA)) == ()
    assert not harness.book.ledger.departing
    assert harness.send(105, events.CopyDone(8, 0)) == (Launch(8, 0, 2, 0, 2, SMALL, 14),)


def test_a_removed_tenant_without_a_helper_holds_nothing() -> None:
    harness = busy_desk()
    harness.send(3, events.HelperLost(1))
    change(harness, 4, WITHOUT_ADA)
    assert harness.send(5, events.SessionClosed(ADA)) == (TenantGone("ada"),)


# -- rights -------------------------------------------------------------------------------------------------------
def test_a_job_that_new_rights_would_never_place_ends() -> None:
    harness = BookHarness()
    harness.submit(1, 1, kernel=WHOLE)
    harness.submit(1, 2, kernel=SMALL)
    out = change(harness, 2, (TenantSpec("ada", max_share=50), *TENANTS[1:]))
    assert ended(1, JobState.CANCELLED, EndReason.TENANT_SHARE_LIMIT, 1) in out
    assert harness.book.ledger.jobs[2].state is JobState.QUEUED


def test_a_tenant_whose_share_is_cut_gives_up_idle_leases_first_and_pinned_ones_never() -> None:
    pins = (PIN, PinnedLease("ada", 0, "2g.10gb", 2), PinnedLease("ada", 0, "2g.10gb", 4))
    harness = BookHarness(pins=pins)
    harness.warm(1, 1, 2, 3)
    harness.run(2, 1, kernel=SMALL, share=28)
    out = change(harness, 3, (TenantSpec("ada", max_share=50), *TENANTS[1:]), (PIN,))
    assert out == (ScrubLane(3, 0, 3), ScrubLane(3, 1, 3))
    assert [harness.state(lease) for lease in (1, 2, 3)] == [LeaseState.WARM, LeaseState.WARM, LeaseState.SCRUBBING]


def test_a_new_weight_counts_in_the_next_round() -> None:
    harness = BookHarness()
    change(harness, 1, (TenantSpec("ada", weight=7), *TENANTS[1:]))
    assert harness.book.ledger.tenants["ada"].spec.weight == 7


# -- pins and pauses ----------------------------------------------------------------------------------------------
def test_a_new_pin_opens_and_one_that_is_gone_closes_like_any_idle_lease() -> None:
    harness = BookHarness()
    assert change(harness, 1, pins=(PIN,)) == (opened(1, "ada", "1g.5gb", 0),)
    harness.warm(2, 1)
    assert harness.tick(5_000) == ()
    assert change(harness, 5_001) == ()
    assert harness.tick(5_002) == (ScrubLane(1, 0, 1), ScrubLane(1, 1, 1)), "it was idle for longer than keep_warm"


def test_a_lease_that_is_there_already_becomes_the_pinned_one() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    harness.warm(2, 1)
    harness.send(3, events.CopyDone(1, 0))
    harness.result(4, 1, 1)
    assert change(harness, 5, pins=(PIN,)) == ()
    assert harness.tick(100_000) == ()
    assert harness.state(1) is LeaseState.WARM


def test_a_shorter_keep_warm_counts_for_leases_that_are_idle_already() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    harness.warm(2, 1)
    harness.send(3, events.CopyDone(1, 0))
    harness.result(10, 1, 1)
    change(harness, 20, settings=replace(SETTINGS, keep_warm_ns=50 * MS))
    assert harness.tick(59) == ()
    assert harness.tick(60) == (ScrubLane(1, 0, 1), ScrubLane(1, 1, 1))


def test_a_hundred_reloads_leave_no_timers_behind() -> None:
    harness = busy_desk()
    harness.submit(3, 10, BOB, HALF)
    before = len(harness.book.ledger.timers)
    for number in range(100):
        change(harness, 3 + number / 100, pins=(PIN,))
    assert len(harness.book.ledger.timers) <= before + 1


def test_the_same_configuration_again_changes_nothing() -> None:
    harness = busy_desk()
    assert change(harness, 3, pins=(PIN,)) == ()
    assert harness.state(1) is LeaseState.WARM
    assert isinstance(harness.submit(4, 11, BOB)[0], OpenLease)


def test_a_helper_without_gpus_ends_nothing_that_waits_whatever_changes() -> None:
    """It proves nothing: the next one may have the GPUs again."""
    harness = BookHarness()
    harness.submit(0, 1)
    harness.send(1, events.HelperLost(1))
    assert harness.send(2, events.HelperJoined(2, (), KERNELS)) == ()
    assert change(harness, 3, TENANTS) == ()
    (order,) = harness.send(4, events.HelperJoined(3, (a100(),), KERNELS))
    assert isinstance(order, OpenLease)
