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
from offpath.sched.jobs.records import MS, BookSettings, PinnedLease, TenantSpec
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

from ..gpus import a100
from .desk import ADA, BOB, HALF, KERNELS, SETTINGS, SMALL, TENANTS, WHOLE, Desk, ended, opened

PIN = PinnedLease("ada", 0, "1g.5gb", 0)
WITHOUT_ADA = TENANTS[1:]


def change(
    desk: Desk,
    at_ms: float,
    tenants: tuple[TenantSpec, ...] = TENANTS,
    pins: tuple[PinnedLease, ...] = (),
    settings: BookSettings = SETTINGS,
) -> tuple[Command, ...]:
    return desk.say(at_ms, events.ConfigChanged(tenants, settings, pins))


def kinds(out: tuple[Command, ...]) -> list[type]:
    return [type(command) for command in out]


def busy_desk(**options: object) -> Desk:
    """Ada runs job 1, has copied job 2, and job 3 waits."""
    desk = Desk(pins=(PIN,), **options)  # type: ignore[arg-type]
    desk.warm(1, 1)
    desk.run(2, 1)
    desk.run(2, 2)
    desk.submit(2, 3)
    return desk


# -- removal ------------------------------------------------------------------------------------------------------
def test_a_removed_tenants_queue_ends_what_has_a_lane_may_finish_and_then_all_of_it_goes() -> None:
    desk = busy_desk()
    assert change(desk, 3, WITHOUT_ADA) == (ended(3, JobState.CANCELLED, EndReason.TENANT_REMOVED, 1),)
    assert desk.state(1) is LeaseState.DRAINING
    answer, launch = desk.result(4, 1, 1)
    assert isinstance(answer, Answer)
    assert launch == Launch(2, 0, 1, 1, 1, SMALL, 14)
    out = desk.result(5, 2, 1)
    assert kinds(out) == [Answer, ScrubLane, ScrubLane, EndSession]
    assert desk.say(6, events.SessionClosed(ADA)) == ()
    assert [desk.say(7, events.LaneScrubbed(1, lane, 1)) for lane in (0, 1)] == [(), (CloseLease(1, 1, 1, False),)]
    assert desk.say(8, events.InstanceClosed(1, 1)) == (TenantGone("ada"),)
    assert set(desk.book.ledger.tenants) == {"bob", "cyd"}
    assert not desk.book.ledger.departing


def test_a_removed_tenants_session_is_refused_everything_and_ends_when_its_answers_are_out() -> None:
    desk = busy_desk()
    change(desk, 3, WITHOUT_ADA)
    assert desk.submit(4, 4) == (ended(4, JobState.REJECTED, EndReason.TENANT_REMOVED, 0),)
    assert desk.submit(4, 5, request=1) == (ended(5, JobState.REJECTED, EndReason.TENANT_REMOVED, 0),)
    desk.say(5, events.CancelRequested(1))
    assert desk.say(5, events.CancelRequested(2))[-1] == EndSession(ADA)
    assert desk.submit(6, 6) == (ended(6, JobState.REJECTED, EndReason.TENANT_REMOVED, 0),), "and is told but once"


def test_an_idle_tenant_goes_at_once() -> None:
    desk = Desk()
    assert change(desk, 1, WITHOUT_ADA) == (EndSession(ADA),)
    assert desk.say(2, events.SessionClosed(ADA)) == (TenantGone("ada"),)
    assert change(desk, 3, TENANTS[2:]) == (EndSession(BOB),)
    assert desk.say(4, events.SessionOpened(9, "bob", 4)) == (EndSession(9),), "its ticket was redeemed too late"


def test_a_lease_that_is_being_opened_for_a_removed_tenant_is_given_up() -> None:
    desk = Desk()
    desk.submit(1, 1)
    out = change(desk, 2, WITHOUT_ADA)
    assert kinds(out) == [CloseLease, Answer, EndSession]
    desk.say(3, events.LaneReady(1, 0, 1))
    desk.say(3, events.SessionClosed(ADA))
    assert desk.say(4, events.InstanceClosed(1, 1)) == (TenantGone("ada"),)


def test_at_the_drain_limit_what_runs_is_lost_with_its_worker_and_what_did_not_start_is_cancelled() -> None:
    settings = replace(SETTINGS, drain_ns=100 * MS)
    desk = busy_desk(settings=settings)
    desk.run(2, 7, BOB, SMALL)
    change(desk, 3, WITHOUT_ADA, settings=settings)
    assert desk.tick(102) == ()
    out = desk.tick(103)
    assert out == (
        KillLane(1, 1, 1, 1),
        ended(2, JobState.CANCELLED, EndReason.TENANT_REMOVED, 101),
        KillLane(1, 0, 1, 1),
        ended(1, JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST, 101, lease=1),
        CloseLease(1, 1, 1, scrub=True),
        EndSession(ADA),
    )


def test_a_removed_tenants_idempotent_job_is_not_tried_again() -> None:
    desk = Desk(pins=(PIN,))
    desk.warm(1, 1)
    desk.run(2, 1, idempotent=True)
    change(desk, 3, WITHOUT_ADA)
    out = desk.say(4, events.WorkerLost(1, 0, 1))
    assert out[0] == ended(1, JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST, 2, lease=1)


def test_a_tenant_that_is_added_again_while_it_goes_starts_fresh_and_its_old_session_still_goes() -> None:
    settings = replace(SETTINGS, drain_ns=100 * MS)
    desk = busy_desk(settings=settings)
    change(desk, 3, WITHOUT_ADA, settings=settings)
    change(desk, 4, TENANTS, settings=settings)
    desk.say(5, events.SessionOpened(4, "ada", 8))
    assert desk.submit(6, 8, 4) == ()
    assert desk.tick(26) == (opened(2, "ada", "1g.5gb", 1),)
    assert desk.warm(27, 2) == (Copy(8, 0, 2, 0),)
    assert desk.submit(28, 9, ADA)[0].reason is EndReason.TENANT_REMOVED  # type: ignore[union-attr]
    out = desk.tick(103)
    assert kinds(out) == [KillLane, Answer, KillLane, Answer, CloseLease, EndSession]
    assert desk.say(104, events.SessionClosed(ADA)) == ()
    assert not desk.book.ledger.departing
    assert desk.say(105, events.CopyDone(8, 0)) == (Launch(8, 0, 2, 0, 2, SMALL, 14),)


def test_a_removed_tenant_without_a_helper_holds_nothing() -> None:
    desk = busy_desk()
    desk.say(3, events.HelperLost(1))
    change(desk, 4, WITHOUT_ADA)
    assert desk.say(5, events.SessionClosed(ADA)) == (TenantGone("ada"),)


# -- rights -------------------------------------------------------------------------------------------------------
def test_a_job_that_new_rights_would_never_place_ends() -> None:
    desk = Desk()
    desk.submit(1, 1, kernel=WHOLE)
    desk.submit(1, 2, kernel=SMALL)
    out = change(desk, 2, (TenantSpec("ada", max_share=50), *TENANTS[1:]))
    assert ended(1, JobState.CANCELLED, EndReason.TENANT_SHARE_LIMIT, 1) in out
    assert desk.book.ledger.jobs[2].state is JobState.QUEUED


def test_a_tenant_whose_share_is_cut_gives_up_idle_leases_first_and_pinned_ones_never() -> None:
    pins = (PIN, PinnedLease("ada", 0, "2g.10gb", 2), PinnedLease("ada", 0, "2g.10gb", 4))
    desk = Desk(pins=pins)
    desk.warm(1, 1, 2, 3)
    desk.run(2, 1, kernel=SMALL, share=28)
    out = change(desk, 3, (TenantSpec("ada", max_share=50), *TENANTS[1:]), (PIN,))
    assert out == (ScrubLane(3, 0, 3), ScrubLane(3, 1, 3))
    assert [desk.state(lease) for lease in (1, 2, 3)] == [LeaseState.WARM, LeaseState.WARM, LeaseState.SCRUBBING]


def test_a_new_weight_counts_in_the_next_round() -> None:
    desk = Desk()
    change(desk, 1, (TenantSpec("ada", weight=7), *TENANTS[1:]))
    assert desk.book.ledger.tenants["ada"].spec.weight == 7


# -- pins and pauses ----------------------------------------------------------------------------------------------
def test_a_new_pin_opens_and_one_that_is_gone_closes_like_any_idle_lease() -> None:
    desk = Desk()
    assert change(desk, 1, pins=(PIN,)) == (opened(1, "ada", "1g.5gb", 0),)
    desk.warm(2, 1)
    assert desk.tick(5_000) == ()
    assert change(desk, 5_001) == ()
    assert desk.tick(5_002) == (ScrubLane(1, 0, 1), ScrubLane(1, 1, 1)), "it was idle for longer than keep_warm"


def test_a_lease_that_is_there_already_becomes_the_pinned_one() -> None:
    desk = Desk()
    desk.submit(1, 1)
    desk.warm(2, 1)
    desk.say(3, events.CopyDone(1, 0))
    desk.result(4, 1, 1)
    assert change(desk, 5, pins=(PIN,)) == ()
    assert desk.tick(100_000) == ()
    assert desk.state(1) is LeaseState.WARM


def test_a_shorter_keep_warm_counts_for_leases_that_are_idle_already() -> None:
    desk = Desk()
    desk.submit(1, 1)
    desk.warm(2, 1)
    desk.say(3, events.CopyDone(1, 0))
    desk.result(10, 1, 1)
    change(desk, 20, settings=replace(SETTINGS, keep_warm_ns=50 * MS))
    assert desk.tick(59) == ()
    assert desk.tick(60) == (ScrubLane(1, 0, 1), ScrubLane(1, 1, 1))


def test_a_hundred_reloads_leave_no_timers_behind() -> None:
    desk = busy_desk()
    desk.submit(3, 10, BOB, HALF)
    before = len(desk.book.ledger.timers)
    for number in range(100):
        change(desk, 3 + number / 100, pins=(PIN,))
    assert len(desk.book.ledger.timers) <= before + 1


def test_the_same_configuration_again_changes_nothing() -> None:
    desk = busy_desk()
    assert change(desk, 3, pins=(PIN,)) == ()
    assert desk.state(1) is LeaseState.WARM
    assert isinstance(desk.submit(4, 11, BOB)[0], OpenLease)


def test_a_helper_without_gpus_ends_nothing_that_waits_whatever_changes() -> None:
    """It proves nothing: the next one may have the GPUs again."""
    desk = Desk()
    desk.submit(0, 1)
    desk.say(1, events.HelperLost(1))
    assert desk.say(2, events.HelperJoined(2, (), KERNELS)) == ()
    assert change(desk, 3, TENANTS) == ()
    (order,) = desk.say(4, events.HelperJoined(3, (a100(),), KERNELS))
    assert isinstance(order, OpenLease)
