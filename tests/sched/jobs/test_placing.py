"""Where jobs are routed while a stream runs: not behind it, because it may wait for them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Command, Copy, Launch, OpenLease
from offpath.sched.jobs.explain import explain
from offpath.sched.jobs.placing import free_lanes
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

from ..gpus import a100
from .book_harness import ADA, SETTINGS, BookHarness

PLAIN = events.Kernel(1, 14, "plain")
STREAM = events.Kernel(2, 14, "stream", streams=True)


class Harness(BookHarness):
    """With a warm lease 1 of two lanes for ada, whose share is enough for one job."""

    def __init__(self) -> None:
        super().__init__(settings=SETTINGS, is_joined=False)
        self.send(0, events.HelperJoined(1, (a100(),), (PLAIN, STREAM)))
        self.run(0, 901)
        self.warm(0, 1)
        self.send(0, events.CopyDone(901, 0))
        self.result(0, 901, 1)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def copies(commands: tuple[Command, ...]) -> list[int]:
    return [command.job for command in commands if isinstance(command, Copy)]


def test_a_job_is_copied_behind_one_that_gives_one_answer(harness: Harness) -> None:
    harness.run(1, 1, kernel=1)
    assert copies(harness.submit(2, 2, kernel=1)) == [2]


def test_a_job_is_not_copied_behind_a_stream_and_a_lease_opens_for_it(harness: Harness) -> None:
    harness.run(1, 1, kernel=2)
    assert copies(harness.submit(2, 2, kernel=1)) == []
    assert harness.book.ledger.jobs[2].state is JobState.QUEUED
    (opens,) = [command for command in harness.tick(40) if isinstance(command, OpenLease)]
    assert copies(harness.warm(41, opens.lease)) == [2]
    assert harness.book.ledger.jobs[1].state is JobState.LAUNCHED


def test_a_job_is_not_copied_behind_a_stream_that_is_only_copied_yet(harness: Harness) -> None:
    harness.submit(1, 1, kernel=2)
    assert copies(harness.submit(2, 2, kernel=1)) == []


def test_a_stream_is_not_copied_behind_a_job_and_is_placed_when_that_ends(harness: Harness) -> None:
    harness.run(1, 1, kernel=1)
    assert copies(harness.submit(2, 2, kernel=2)) == []
    assert copies(harness.result(3, 1, 1)) == [2]


def test_a_job_with_a_long_copy_does_not_wait_for_a_stream_that_is_copied_sooner(harness: Harness) -> None:
    harness.submit(1, 1, kernel=1)
    assert copies(harness.submit(2, 2, kernel=2)) == []
    launched = [command.job for command in harness.send(3, events.CopyDone(1, 0)) if isinstance(command, Launch)]
    assert launched == [1]


def test_a_stream_stays_one_when_its_kernel_is_gone_after_a_reload(harness: Harness) -> None:
    harness.run(1, 1, kernel=2)
    harness.send(2, events.KernelsReloaded(1, (PLAIN, events.Kernel(3, 14, "other")), 1))
    for lane in range(2):
        harness.send(3, events.LaneReady(1, lane, 1))
    for book in (harness.book, restore(snapshot(harness.book))):
        book.handle(events.JobSubmitted(2, ADA, 3, 1, 0, 0, 0, 100, False), 4_000_000)
        assert book.ledger.jobs[2].state is JobState.QUEUED


def test_a_job_is_copied_behind_a_plain_one_although_another_lease_has_a_stream(harness: Harness) -> None:
    for job in (1, 2, 3):
        harness.submit(1, job, kernel=1)
    harness.tick(40)
    harness.warm(41, 2)
    for job in (1, 2, 3):
        harness.send(42, events.CopyDone(job, 0))
    for job, lease in ((1, 1), (2, 1), (3, 2)):
        harness.result(43, job, lease)
    harness.run(46, 4, kernel=2)
    harness.run(46, 5, kernel=1)
    leases = {job.job: job.placement.lease for job in harness.book.ledger.jobs.values() if job.placement}
    assert copies(harness.submit(47, 6, kernel=1)) == [6]
    placed = harness.book.ledger.jobs[6].placement
    assert placed is not None
    assert (placed.lease, placed.is_prefetch) == (leases[5], True)
    harness.send(47, events.CopyDone(6, 0))
    harness.result(48, 5, leases[5])
    harness.result(49, 6, leases[5])
    state = harness.book.ledger.policy.state()
    assert {(warm.view.lease, len(warm.free_lanes)) for warm in state.leases} == {(leases[4], 1), (leases[5], 2)}


def test_a_waiting_job_gets_the_lane_when_the_stream_ends(harness: Harness) -> None:
    harness.run(1, 1, kernel=2)
    harness.submit(2, 2, kernel=1)
    assert copies(harness.result(3, 1, 1)) == [2]


def test_what_was_given_back_is_free_again_also_after_a_restart(harness: Harness) -> None:
    harness.run(1, 1, kernel=2)
    for job in range(2, 10):
        harness.submit(2, job, kernel=1)
    book = restore(snapshot(harness.book))
    for each in (harness.book, book):
        out = each.handle(events.CancelRequested(1), 3_000_000) + each.handle(
            events.ResultArrived(1, 1, EndReason.NONE, 1, 1), 4_000_000
        )
        assert copies(out) == [2, 3], "the share's job, and one copied behind it"


class Wide(BookHarness):
    """With a warm lease 1 of four lanes, and share for three small jobs: kernels 1 and 2 take a third each, 3 and 4
    all, and 5 streams with sequences. The even ones stream."""

    def __init__(self) -> None:
        super().__init__(settings=replace(SETTINGS, lanes=4, sequence_idle_ns=10**9, max_lanes=4), is_joined=False)
        kernels = (PLAIN, STREAM, events.Kernel(3, 42, "all"), events.Kernel(4, 42, "all, stream", streams=True),
                   events.Kernel(5, 14, "states", streams=True, sequences=True))  # fmt: skip
        self.send(0, events.HelperJoined(1, (a100(),), kernels))
        self.run(0, 901, kernel=3)
        self.warm(0, 1, lanes=4)
        self.send(0, events.CopyDone(901, 0))
        self.result(0, 901, 1)


def launched(commands: tuple[Command, ...]) -> list[int]:
    return [command.job for command in commands if isinstance(command, Launch)]


def test_jobs_do_not_take_the_share_that_a_stream_before_them_waits_for() -> None:
    harness = Wide()
    for job in (1, 2, 3):
        harness.run(1, job, kernel=1)
    assert copies(harness.submit(2, 4, kernel=4)) == []
    assert copies(harness.submit(3, 6, kernel=1, priority=1)) == [6], "it precedes the stream"
    assert copies(harness.submit(3, 5, kernel=1)) == []
    for job in (1, 2, 3):
        assert copies(harness.result(4, job, 1)) == []
    harness.send(4, events.CopyDone(6, 0))
    assert copies(harness.result(5, 6, 1)) == [4]


def test_what_waits_behind_a_stream_without_a_lane_goes_on_when_that_is_cancelled() -> None:
    harness = Wide()
    harness.run(1, 1, kernel=1)
    harness.submit(2, 2, kernel=4)
    assert copies(harness.submit(3, 3, kernel=1)) == []
    assert copies(harness.send(4, events.CancelRequested(2))) == [3]


@pytest.mark.parametrize("seed", range(40))
def test_nothing_waits_on_a_lease_that_has_a_stream_and_everything_ends(seed: int) -> None:
    chance, harness = Random(seed), Wide()
    book, copying, running, at = harness.book, set[int](), set[int](), 1.0
    begun = set[int]()

    def follow(commands: tuple[Command, ...]) -> None:
        for command in commands:
            if isinstance(command, Copy):
                copying.add(command.job)
            elif isinstance(command, Launch):
                running.add(command.job)
            elif isinstance(command, OpenLease):
                follow(harness.warm(at, command.lease, lanes=command.lanes))
        free = {warm.view.lease: sorted(warm.free_lanes) for warm in book.ledger.policy.state().leases}
        for lease in book.ledger.leases.values():
            assert lease.state is not LeaseState.WARM or free[lease.view.lease] == free_lanes(lease)
            assert not (lease.waiting and any(job.streams for job in lease.jobs.values()))

    def step() -> None:
        if copying and (not running or chance.random() < 0.5):
            copying.remove(job := chance.choice(sorted(copying)))
            follow(harness.send(at, events.CopyDone(job, 0)))
        elif running:
            running.remove(job := chance.choice(sorted(running)))
            known = book.ledger.jobs.get(job) or book.ledger.leaving[job]
            assert known.placement is not None
            lease = book.ledger.leases[known.placement.lease]
            follow(harness.result(at, job, lease.generation))
        else:
            follow(harness.tick(at))

    for number in range(1, 80):
        at += 1
        kernel = chance.choice((1, 1, 1, 2, 3, 4, 5, 5))
        event = events.JobSubmitted(number, ADA, number + 1, kernel, 0, chance.choice((0, 0, 1)), 0, 100, False)
        if kernel == 5:
            sequence = chance.choice((1, 2))
            follow(harness.send(at, events.SequenceSubmitted(event, sequence, sequence not in begun, False)))
            begun.add(sequence)
        else:
            follow(harness.send(at, event))
        if chance.random() < 0.1:
            follow(harness.send(at, events.CancelRequested(chance.randint(1, number))))
        for _ in range(chance.randint(0, 4)):
            at += 1
            step()
    for _ in range(1_000):
        at += 1
        step()
    assert not book.ledger.unanswered
    assert not [lease for lease in book.ledger.leases.values() if lease.jobs]


def test_a_kernel_that_streams_on_one_helper_streams_for_all(harness: Harness) -> None:
    harness.send(
        1, events.HelperJoined(2, (a100(gpu="gpu-1"),), (events.Kernel(1, 14, "plain", streams=True),), name="b")
    )
    assert harness.book.ledger.kernels[1].streams
    harness.run(2, 1, kernel=1, session=ADA)
    assert copies(harness.submit(3, 2, kernel=1)) == []


def test_the_time_that_a_reader_takes_refuses_no_later_deadline(harness: Harness) -> None:
    harness.run(1, 1, kernel=2)
    harness.result(290_000, 1, 1)
    ledger = harness.book.ledger
    assert ledger.jobs[1].state is JobState.COMPLETED
    assert ledger.tenants["ada"].service.keys() == {1}, "of the plain kernel only"


def test_explain_says_what_a_job_with_a_free_lane_waits_for(harness: Harness) -> None:
    def text(job: int) -> str:
        explained = explain(harness.book.ledger.jobs[job], harness.book.ledger, (a100(),), 4_000_000)
        return explained.holds[0].text

    harness.run(1, 1, kernel=2)
    harness.submit(2, 2, kernel=1)
    assert "1 of 2 lanes of" in text(2)
    assert text(2).endswith("1 run; in the others it would wait for the share of stream 1")
    harness = Harness()
    harness.run(1, 1, kernel=1)
    harness.submit(2, 2, kernel=2)
    assert text(2).endswith("a stream takes a lane only if the share for it is free")
