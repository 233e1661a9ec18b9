"""Several helpers: each has its GPUs and kernels, jobs go where their kernels are, a loss ends what was there only."""

from __future__ import annotations

from dataclasses import replace

from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Answer, Copy, OpenLease
from offpath.sched.jobs.explain import explain
from offpath.sched.jobs.helpers import MOST_FORMER
from offpath.sched.jobs.kernels import MOST_KERNELS
from offpath.sched.jobs.obstacles import Cause
from offpath.sched.jobs.settings import MS, PinnedLease
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState

from ..gpus import a30, a100
from .book_harness import ADA, BOB, SETTINGS, BookHarness, ended

BOTH, LEFT, RIGHT = (events.Kernel(number, 14, name) for number, name in ((1, "both"), (2, "left"), (3, "right")))


def join(number: int, name: str, *kernels: events.Kernel, gpu: str = "") -> events.HelperJoined:
    return events.HelperJoined(number, (a100(gpu or f"{name}/gpu"),), kernels, f"process {number}", name)


def two(pins: tuple[PinnedLease, ...] = ()) -> BookHarness:
    harness = BookHarness(is_joined=False, pins=pins, settings=replace(SETTINGS, kernel_gone_ns=1_000 * MS))
    harness.send(0, join(1, "a", BOTH, LEFT))
    harness.send(0, join(2, "b", BOTH, RIGHT))
    return harness


def orders(harness: BookHarness, at_ms: float, job: int, session: int, kernel: int) -> list[tuple[int, str]]:
    """Submit; what is ordered then, as (helper, GPU)."""
    out = harness.submit(at_ms, job, session, kernel)
    return [(command.helper, command.gpu) for command in out if isinstance(command, OpenLease)]


def test_a_lease_opens_on_a_gpu_of_a_helper_that_serves_the_jobs_kernel() -> None:
    harness = two()
    assert orders(harness, 1, 1, ADA, RIGHT.kernel) == [(2, "b/gpu")]
    assert orders(harness, 1, 2, BOB, LEFT.kernel) == [(1, "a/gpu")]


def test_a_job_never_takes_a_lane_of_a_helper_without_its_kernel_and_is_held_up_by_none() -> None:
    """Ada's lease on "b" is idle; her job for "a" opens another, and her next one for both takes the first."""
    harness = two()
    orders(harness, 1, 1, ADA, RIGHT.kernel)
    harness.warm(2, 1)
    harness.send(3, events.CopyDone(1, 0))
    harness.result(4, 1, 1)
    assert harness.submit(5, 2, ADA, LEFT.kernel) == ()
    (copy,) = harness.submit(5, 3, ADA, BOTH.kernel)
    assert (copy.job, copy.lease) == (3, 1)
    (opening,) = [command for command in harness.tick(30) if isinstance(command, OpenLease)]
    assert (opening.helper, opening.gpu) == (1, "a/gpu")
    assert [each.job for each in harness.warm(31, opening.lease) if isinstance(each, Copy)] == [2]


def test_the_loss_of_one_helper_ends_what_it_ran_and_nothing_of_the_other() -> None:
    harness = two()
    orders(harness, 1, 1, ADA, LEFT.kernel)
    orders(harness, 1, 2, BOB, RIGHT.kernel)
    harness.warm(2, 1)
    harness.warm(2, 2)
    harness.send(3, events.CopyDone(1, 0))
    harness.send(3, events.CopyDone(2, 0))
    (unknown,) = harness.send(4, events.HelperLost(1))
    assert isinstance(unknown, Answer)
    assert (unknown.job, unknown.state, unknown.reason) == (1, JobState.OUTCOME_UNKNOWN, EndReason.HELPER_LOST)
    assert list(harness.book.ledger.leases) == [2]
    assert [gpu.gpu for gpu in harness.book.leasing.gpus] == ["b/gpu"]
    assert harness.result(5, 2, 2) == (ended(2, JobState.COMPLETED, EndReason.NONE, 4, session=BOB, lease=2),)


def test_jobs_of_a_lost_helper_wait_for_it_and_those_that_the_other_serves_go_there() -> None:
    harness = two()
    orders(harness, 1, 1, ADA, LEFT.kernel)
    assert harness.submit(1, 2, ADA, BOTH.kernel) == ()
    moved = [each.gpu for each in harness.send(2, events.HelperLost(1)) if isinstance(each, OpenLease)]
    moved += [each.gpu for each in harness.tick(40) if isinstance(each, OpenLease)]
    assert moved == ["b/gpu"]
    assert [each.job for each in harness.warm(41, 2) if isinstance(each, Copy)] == [2]
    assert harness.submit(42, 3, BOB, LEFT.kernel) == (), "its helper may return: accepted"
    (opening, *_) = [each for each in harness.send(50, join(3, "a", BOTH, LEFT)) if isinstance(each, OpenLease)]
    assert (opening.helper, opening.gpu, opening.scrub_first) == (3, "a/gpu", True)


def test_a_job_that_waits_for_a_lost_helper_says_so_and_ends_when_its_kernel_is_forgotten() -> None:
    harness = two()
    harness.send(1, events.HelperLost(1))
    harness.submit(2, 1, ADA, LEFT.kernel)
    ledger = harness.book.ledger
    (hold,) = explain(ledger.jobs[1], ledger, tuple(harness.book.leasing.gpus), 2 * MS).holds
    assert (hold.cause, "awaited: a" in hold.text) == (Cause.KERNEL, True)
    assert harness.tick(1_001) == (ended(1, JobState.CANCELLED, EndReason.KERNEL_GONE, 999),)
    assert harness.submit(1_002, 2, ADA, LEFT.kernel) == (ended(2, JobState.REJECTED, EndReason.UNKNOWN_KERNEL, 0),)
    assert list(ledger.helpers.by_name) == ["a", "b"] or list(ledger.helpers.by_name) == ["b", "a"]
    assert ledger.helpers.by_name["a"].kernels == (BOTH,), "of both: the other serves it"


def test_what_no_gpu_of_the_kernels_helpers_holds_is_refused() -> None:
    """The largest instance of "small" has half of its GPU free of MIG's rules: none has R = 100 with this memory."""
    harness = BookHarness(is_joined=False)
    half = replace(a30("small/gpu"), profiles=a30("small/gpu").profiles[:1])
    harness.send(0, join(1, "large", BOTH, LEFT))
    harness.send(0, events.HelperJoined(2, (half,), (RIGHT,), "", "small"))
    assert harness.submit(1, 1, ADA, RIGHT.kernel, share=100) == (
        ended(1, JobState.REJECTED, EndReason.NO_INSTANCE_FITS, 0),
    )
    assert orders(harness, 1, 2, ADA, LEFT.kernel) == [(1, "large/gpu")]


def test_a_kernel_of_two_helpers_counts_with_the_larger_demand() -> None:
    harness = BookHarness(is_joined=False)
    harness.send(0, join(1, "a", replace(BOTH, share=40)))
    harness.send(0, join(2, "b", replace(BOTH, share=20)))
    assert harness.book.ledger.kernels[BOTH.kernel].share == 40
    harness.send(1, events.HelperLost(1))
    assert harness.book.ledger.kernels[BOTH.kernel].share == 20


def test_a_pinned_lease_opens_on_its_own_helper() -> None:
    harness = two((PinnedLease("ada", 0, "1g.5gb", 0, "b"), PinnedLease("bob", 0, "1g.5gb", 0, "nobody")))
    assert [lease.view.gpu for lease in harness.book.ledger.leases.values()] == ["b/gpu"]


def test_a_book_with_two_helpers_is_restored_as_it_was() -> None:
    harness = two()
    harness.submit(1, 1, ADA, LEFT.kernel)
    harness.send(2, events.HelperLost(1))
    again = restore(snapshot(harness.book), lambda name: type(harness.book.ledger.policy)())
    assert snapshot(again) == snapshot(harness.book)
    event = join(3, "a", BOTH, LEFT)
    assert again.handle(event, 3 * MS) == harness.send(3, event)


def test_helpers_with_a_new_name_each_fill_no_table() -> None:
    harness = BookHarness(is_joined=False)
    for number in range(1, MOST_FORMER + 40):
        harness.send(number, join(number, f"h{number}", replace(BOTH, kernel=number, name=f"k{number}")))
        harness.send(number, events.HelperLost(number))
    assert len(harness.book.ledger.helpers.by_name) == MOST_FORMER
    assert len(harness.book.ledger.known) <= MOST_KERNELS


def test_a_policy_forgets_the_kinds_of_a_gpu_that_left_while_others_stay() -> None:
    """Else a restored policy would refuse for another reason than the one that ran."""
    ran = OldestGpuFirst()
    ran.gpu_added(replace(a100("a/gpu"), helper="a"))
    for number in range(200):
        ran.gpu_added(replace(a30(f"b{number}/gpu"), helper=f"b{number}"))
        ran.gpu_removed(f"b{number}/gpu")
    again = OldestGpuFirst()
    again.restore(ran.state())
    assert ran._kinds.keys() == again._kinds.keys()
    assert (len(ran._tables), max(ran._kinds.values())) == (1, max(again._kinds.values()))


def test_a_lost_gpu_ends_what_ran_there_and_its_helper_serves_on_with_the_others() -> None:
    harness = BookHarness(is_joined=False)
    harness.send(0, events.HelperJoined(1, (a100("gpu-0"), a100("gpu-1")), (events.Kernel(1, 50),)))
    (first,) = harness.submit(1, 1, ADA, 1)
    (second,) = harness.submit(1, 2, BOB, 1)
    assert isinstance(first, OpenLease)
    assert isinstance(second, OpenLease)
    assert (first.gpu, second.gpu) == ("gpu-0", "gpu-1")
    harness.warm(2, 1)
    harness.warm(2, 2)
    harness.send(3, events.CopyDone(1, 0))
    harness.send(3, events.CopyDone(2, 0))
    (unknown,) = harness.send(4, events.GpuLost(1, "gpu-0"))
    assert isinstance(unknown, Answer)
    assert (unknown.job, unknown.state, unknown.reason) == (1, JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST)
    assert list(harness.book.ledger.leases) == [2]
    assert harness.result(5, 2, 2) == (ended(2, JobState.COMPLETED, EndReason.NONE, 4, session=BOB, lease=2),)
    assert harness.send(6, events.GpuLost(1, "gpu-0")) == (), "a repetition changes nothing"
    assert harness.send(6, events.GpuLost(7, "gpu-1")) == (), "nor does a helper that is none"
    assert [gpu.gpu for gpu in harness.book.leasing.gpus] == ["gpu-1"]


def test_jobs_that_only_a_lost_gpu_could_hold_are_refused_until_its_helper_joins_anew() -> None:
    harness = BookHarness(is_joined=False)
    gpus, kernels = (a100("gpu-0"), a30("gpu-1")), (events.Kernel(1, 60, models=(("A100-40GB", 60),)),)
    harness.send(0, events.HelperJoined(1, gpus, kernels))
    harness.submit(1, 1, ADA, 1)
    (cancelled,) = harness.send(2, events.GpuLost(1, "gpu-0"))
    assert isinstance(cancelled, Answer)
    assert (cancelled.job, cancelled.state, cancelled.reason) == (1, JobState.CANCELLED, EndReason.NO_GPU_MODEL)
    (refused,) = harness.submit(3, 2, ADA, 1)
    assert isinstance(refused, Answer)
    assert (refused.state, refused.reason) == (JobState.REJECTED, EndReason.NO_GPU_MODEL)
    book = restore(snapshot(harness.book))
    assert [gpu.gpu for gpu in book.leasing.gpus] == ["gpu-1"]
    harness.send(4, events.HelperLost(1))
    assert harness.submit(5, 3, ADA, 1) == (), "it waits for the helper"
    (opening,) = harness.send(6, events.HelperJoined(2, gpus, kernels))
    assert isinstance(opening, OpenLease)
    assert (opening.gpu, opening.scrub_first) == ("gpu-0", True)


def test_a_pin_on_a_lost_gpu_waits_and_other_pins_keep_their_gpus() -> None:
    pins = (PinnedLease("ada", 0, "1g.5gb", 0), PinnedLease("bob", 1, "1g.5gb", 0))
    harness = BookHarness(is_joined=False, pins=pins)
    joined = events.HelperJoined(1, (a100("gpu-0"), a100("gpu-1")), (events.Kernel(1, 14),))
    opened = harness.send(0, joined)
    assert [(each.tenant, each.gpu) for each in opened if isinstance(each, OpenLease)] == [
        ("ada", "gpu-0"), ("bob", "gpu-1"),
    ]  # fmt: skip
    assert harness.send(1, events.GpuLost(1, "gpu-0")) == ()
    assert harness.tick(60_000) == ()
    assert [lease.view.gpu for lease in harness.book.ledger.leases.values()] == ["gpu-1"]
