"""Kernels whose server is lost: their jobs run nowhere else, hold up nobody, and end when nobody came back in time."""

from __future__ import annotations

from dataclasses import replace

from offpath.bindings.wire.control import MAX_KERNELS
from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Copy
from offpath.sched.jobs.kernels import MOST_KERNELS
from offpath.sched.jobs.records import MS
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState

from ..gpus import a100
from .desk import ADA, KERNELS, SETTINGS, SMALL, Desk, ended

LIMITED = replace(SETTINGS, kernel_gone_ns=1_000 * MS)
OTHER = events.Kernel(4, 14, "other")


def served_by(helper: int, *kernels: events.Kernel) -> events.HelperJoined:
    return events.HelperJoined(helper, (a100(),), kernels)


def test_a_queued_job_is_not_placed_where_its_kernel_is_not_served_and_holds_up_nobody() -> None:
    desk = Desk(settings=LIMITED)
    desk.submit(1, 1)
    desk.say(2, events.HelperLost(1))
    desk.say(3, served_by(2, OTHER))
    desk.submit(4, 2, kernel=OTHER.kernel)
    copies = [command for command in desk.warm(5, 2) if isinstance(command, Copy)]
    assert [copy.job for copy in copies] == [2]


def test_a_job_whose_kernel_comes_back_in_time_takes_its_old_turn() -> None:
    desk = Desk(settings=LIMITED)
    desk.submit(1, 1)
    desk.say(2, events.HelperLost(1))
    desk.say(3, served_by(2, OTHER))
    desk.submit(4, 2, kernel=OTHER.kernel)
    desk.say(5, events.HelperLost(2))
    desk.say(6, served_by(3, *KERNELS, OTHER))
    copies = [command for command in desk.warm(7, 3) if isinstance(command, Copy)]
    assert [copy.job for copy in copies] == [1, 2]
    assert desk.tick(1_500) == ()


def test_a_job_whose_kernel_nobody_serves_ends_when_the_limit_is_over_and_the_name_is_forgotten() -> None:
    desk = Desk(settings=LIMITED)
    desk.submit(1, 1)
    desk.say(2, events.HelperLost(1))
    desk.say(3, served_by(2, OTHER))
    assert desk.tick(1_001.9) == ()
    assert desk.tick(1_002) == (ended(1, JobState.CANCELLED, EndReason.KERNEL_GONE, 1_001),)
    assert list(desk.book.ledger.known) == [OTHER.kernel]
    assert desk.submit(1_003, 2) == (ended(2, JobState.REJECTED, EndReason.UNKNOWN_KERNEL, 0),)


def test_the_limit_counts_also_while_no_helper_is_there() -> None:
    desk = Desk(settings=LIMITED)
    desk.say(1, events.HelperLost(1))
    desk.submit(2, 1)
    assert desk.book.next_deadline_ns() is not None
    assert desk.tick(1_001) == (ended(1, JobState.CANCELLED, EndReason.KERNEL_GONE, 999),)


def test_without_a_limit_a_job_waits_for_its_kernel() -> None:
    desk = Desk()
    desk.submit(1, 1)
    desk.say(2, events.HelperLost(1))
    desk.say(3, served_by(2, OTHER))
    assert desk.tick(10_000_000) == ()
    assert desk.book.ledger.tenants["ada"].backlog == 1


def test_a_shorter_limit_holds_for_kernels_that_are_gone_already() -> None:
    desk = Desk(settings=LIMITED)
    desk.submit(1, 1)
    desk.say(2, events.HelperLost(1))
    specs = tuple(tenant.spec for tenant in desk.book.ledger.tenants.values())
    desk.say(3, events.ConfigChanged(specs, replace(LIMITED, kernel_gone_ns=10 * MS), ()))
    assert desk.book.next_deadline_ns() == 12 * MS
    assert desk.tick(12) == (ended(1, JobState.CANCELLED, EndReason.KERNEL_GONE, 11),)


def test_what_is_cancelled_while_its_kernel_is_gone_is_answered_once() -> None:
    desk = Desk(settings=LIMITED)
    desk.submit(1, 1)
    desk.say(2, events.HelperLost(1))
    desk.say(3, served_by(2, OTHER))
    assert desk.say(4, events.CancelRequested(1)) == (
        ended(1, JobState.CANCELLED, EndReason.CANCELLED_BY_REQUESTER, 3),
    )
    assert desk.tick(2_000) == ()
    assert desk.book.ledger.tenants["ada"].backlog == 0


def test_names_without_end_fill_no_table_and_the_largest_number_is_never_forgotten() -> None:
    """Beyond the bound the names that were gone for longest are forgotten; a snapshot keeps the largest number."""
    assert MOST_KERNELS == MAX_KERNELS, "the wire's bound for a welcome"
    desk = Desk(settings=SETTINGS)
    desk.submit(1, 1, ADA, SMALL)
    last = 3
    for helper in range(2, 40):
        desk.say(helper, events.HelperLost(helper - 1))
        kernels = tuple(events.Kernel(last + n, 14, f"k{last + n}") for n in range(1, 33))
        last += 32
        out = desk.say(helper, served_by(helper, *kernels))
        assert len(desk.book.ledger.known) <= MOST_KERNELS
        if (ends := [command for command in out if getattr(command, "job", 0) == 1]) and helper < 40:
            assert ends == [ended(1, JobState.CANCELLED, EndReason.KERNEL_GONE, helper - 1)]
            assert last > MOST_KERNELS
    assert desk.book.ledger.last_kernel == last > 4 * MOST_KERNELS
    desk.say(50, events.HelperLost(39))
    desk.say(51, served_by(40, OTHER))
    assert restore(snapshot(desk.book)).ledger.last_kernel == last
    assert desk.book.ledger.tenants["ada"].backlog == 0
