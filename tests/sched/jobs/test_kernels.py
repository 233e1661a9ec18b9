"""Kernels whose server is lost: their jobs run nowhere else, hold up nobody, and end when nobody came back in time."""

from __future__ import annotations

from dataclasses import replace

from offpath.bindings.wire.fields import MAX_KERNELS
from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Copy
from offpath.sched.jobs.kernels import MOST_KERNELS
from offpath.sched.jobs.settings import MS
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState

from ..gpus import a100
from .book_harness import ADA, KERNELS, SETTINGS, SMALL, BookHarness, ended

LIMITED = replace(SETTINGS, kernel_gone_ns=1_000 * MS)
OTHER = events.Kernel(4, 14, "other")


def served_by(helper: int, *kernels: events.Kernel) -> events.HelperJoined:
    return events.HelperJoined(helper, (a100(),), kernels)


def test_a_queued_job_is_not_placed_where_its_kernel_is_not_served_and_holds_up_nobody() -> None:
    harness = BookHarness(settings=LIMITED)
    harness.submit(1, 1)
    harness.send(2, events.HelperLost(1))
    harness.send(3, served_by(2, OTHER))
    harness.submit(4, 2, kernel=OTHER.kernel)
    copies = [command for command in harness.warm(5, 2) if isinstance(command, Copy)]
    assert [copy.job for copy in copies] == [2]


def test_a_job_whose_kernel_comes_back_in_time_takes_its_old_turn() -> None:
    harness = BookHarness(settings=LIMITED)
    harness.submit(1, 1)
    harness.send(2, events.HelperLost(1))
    harness.send(3, served_by(2, OTHER))
    harness.submit(4, 2, kernel=OTHER.kernel)
    harness.send(5, events.HelperLost(2))
    harness.send(6, served_by(3, *KERNELS, OTHER))
    copies = [command for command in harness.warm(7, 3) if isinstance(command, Copy)]
    assert [copy.job for copy in copies] == [1, 2]
    assert harness.tick(1_500) == ()


def test_a_job_whose_kernel_nobody_serves_ends_when_the_limit_is_over_and_the_name_is_forgotten() -> None:
    harness = BookHarness(settings=LIMITED)
    harness.submit(1, 1)
    harness.send(2, events.HelperLost(1))
    harness.send(3, served_by(2, OTHER))
    assert harness.tick(1_001.9) == ()
    assert harness.tick(1_002) == (ended(1, JobState.CANCELLED, EndReason.KERNEL_GONE, 1_001),)
    assert list(harness.book.ledger.known) == [OTHER.kernel]
    assert harness.submit(1_003, 2) == (ended(2, JobState.REJECTED, EndReason.UNKNOWN_KERNEL, 0),)


def test_the_limit_counts_also_while_no_helper_is_there() -> None:
    harness = BookHarness(settings=LIMITED)
    harness.send(1, events.HelperLost(1))
    harness.submit(2, 1)
    assert harness.book.next_deadline_ns() is not None
    assert harness.tick(1_001) == (ended(1, JobState.CANCELLED, EndReason.KERNEL_GONE, 999),)


def test_without_a_limit_a_job_waits_for_its_kernel() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    harness.send(2, events.HelperLost(1))
    harness.send(3, served_by(2, OTHER))
    assert harness.tick(10_000_000) == ()
    assert harness.book.ledger.tenants["ada"].backlog == 1


def test_a_shorter_limit_holds_for_kernels_that_are_gone_already() -> None:
    harness = BookHarness(settings=LIMITED)
    harness.submit(1, 1)
    harness.send(2, events.HelperLost(1))
    specs = tuple(tenant.spec for tenant in harness.book.ledger.tenants.values())
    harness.send(3, events.ConfigChanged(specs, replace(LIMITED, kernel_gone_ns=10 * MS), ()))
    assert harness.book.next_deadline_ns() == 12 * MS
    assert harness.tick(12) == (ended(1, JobState.CANCELLED, EndReason.KERNEL_GONE, 11),)


def test_what_is_cancelled_while_its_kernel_is_gone_is_answered_once() -> None:
    harness = BookHarness(settings=LIMITED)
    harness.submit(1, 1)
    harness.send(2, events.HelperLost(1))
    harness.send(3, served_by(2, OTHER))
    assert harness.send(4, events.CancelRequested(1)) == (
        ended(1, JobState.CANCELLED, EndReason.CANCELLED_BY_REQUESTER, 3),
    )
    assert harness.tick(2_000) == ()
    assert harness.book.ledger.tenants["ada"].backlog == 0


def test_names_without_end_fill_no_table_and_the_largest_number_is_never_forgotten() -> None:
    """Beyond the bound the names that were gone for longest are forgotten; a snapshot keeps the largest number."""
    assert MOST_KERNELS == MAX_KERNELS, "the wire's bound for a welcome"
    harness = BookHarness(settings=SETTINGS)
    harness.submit(1, 1, ADA, SMALL)
    last = 3
    for helper in range(2, 40):
        harness.send(helper, events.HelperLost(helper - 1))
        kernels = tuple(events.Kernel(last + n, 14, f"k{last + n}") for n in range(1, 33))
        last += 32
        out = harness.send(helper, served_by(helper, *kernels))
        assert len(harness.book.ledger.known) <= MOST_KERNELS
        if (ends := [command for command in out if getattr(command, "job", 0) == 1]) and helper < 40:
            assert ends == [ended(1, JobState.CANCELLED, EndReason.KERNEL_GONE, helper - 1)]
            assert last > MOST_KERNELS
    assert harness.book.ledger.last_kernel == last > 4 * MOST_KERNELS
    harness.send(50, events.HelperLost(39))
    harness.send(51, served_by(40, OTHER))
    assert restore(snapshot(harness.book)).ledger.last_kernel == last
    assert harness.book.ledger.tenants["ada"].backlog == 0
