"""Where jobs are routed while a stream runs: not behind it, because it may wait for them."""

from __future__ import annotations

import pytest

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Command, Copy, Launch, OpenLease
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState

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


def test_a_stream_is_copied_behind_a_job_and_the_next_job_not_behind_the_stream(harness: Harness) -> None:
    harness.run(1, 1, kernel=1)
    assert copies(harness.run(2, 2, kernel=2)) == [2]
    launched = [command.job for command in harness.result(3, 1, 1) if isinstance(command, Launch)]
    assert launched == [2]
    assert copies(harness.submit(4, 3, kernel=1)) == [], "a lane is free, and a stream has its share"


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


def test_a_kernel_that_streams_on_one_helper_streams_for_all(harness: Harness) -> None:
    harness.send(
        1, events.HelperJoined(2, (a100(gpu="gpu-1"),), (events.Kernel(1, 14, "plain", streams=True),), name="b")
    )
    assert harness.book.ledger.kernels[1].streams
    harness.run(2, 1, kernel=1, session=ADA)
    assert copies(harness.submit(3, 2, kernel=1)) == []
