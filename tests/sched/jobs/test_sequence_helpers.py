"""Several helpers offer one kernel, and not all of them take sequences: each request goes where it can run, or ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Command, OpenLease
from offpath.sched.jobs.states import EndReason, JobState

from ..gpus import a100
from .book_harness import ADA, BOB, BookHarness
from .test_sequences import answers, copies

SUM = 11
TAKES = events.Kernel(SUM, 14, "sum", sequences=True)
PLAIN = replace(TAKES, sequences=False)
REFUSED = JobState.REJECTED, EndReason.BAD_SEQUENCE
WITHDRAWN = JobState.CANCELLED, EndReason.BAD_SEQUENCE


def join(number: int, name: str, kernel: events.Kernel) -> events.HelperJoined:
    return events.HelperJoined(number, (a100(f"{name}/gpu"),), (kernel,), f"process {number}", name)


class Rig(BookHarness):
    def __init__(self, *joins: events.HelperJoined) -> None:
        super().__init__(is_joined=False)
        for each in joins:
            self.send(0, each)

    def ask(self, at_ms: float, job: int, session: int = ADA, *, start: bool = False) -> tuple[Command, ...]:
        self.ids[session] = self.ids.get(session, 0) + 1
        submitted = events.JobSubmitted(job, session, self.ids[session], SUM, 0, 0, 0, 100, False)
        return self.send(at_ms, events.SequenceSubmitted(submitted, 7, start, False))

    def run_first(self, lease: int = 1) -> None:
        """The first request of ada's sequence runs on a lease that opens for it."""
        self.ask(1, 1, start=True)
        self.warm(2, lease)
        self.send(3, events.CopyDone(1, 0))
        self.result(4, 1, lease)


def opened(out: tuple[Command, ...]) -> list[str]:
    return [each.gpu for each in out if isinstance(each, OpenLease)]


@pytest.mark.parametrize(
    "joins", [(join(1, "a", TAKES), join(2, "b", PLAIN)), (join(1, "b", PLAIN), join(2, "a", TAKES))]
)
def test_requests_go_to_the_helpers_that_take_sequences_if_any_does(joins: tuple[events.HelperJoined, ...]) -> None:
    rig = Rig(*joins)
    assert opened(rig.ask(1, 1, start=True)) == ["a/gpu"]
    assert opened(rig.ask(1, 2, BOB, start=True)) == ["a/gpu"]
    assert answers(rig.submit(2, 3, ADA, SUM)) == [(3, *REFUSED)]


def test_a_sequence_goes_on_when_a_helper_joins_that_takes_none() -> None:
    rig = Rig(join(1, "a", TAKES))
    rig.run_first()
    assert rig.send(5, join(2, "b", PLAIN)) == ()
    assert [each[:2] for each in copies(rig.ask(6, 2))] == [(2, 1)]
    assert answers(rig.submit(7, 3, ADA, SUM)) == [(3, *REFUSED)]


def test_queued_requests_that_the_reloaded_kernel_does_not_take_end() -> None:
    rig = Rig(join(1, "a", PLAIN))
    rig.submit(1, 1, ADA, SUM)
    assert answers(rig.send(2, events.KernelsReloaded(1, (TAKES,), 1))) == [(1, *WITHDRAWN)]
    rig.ask(3, 2, start=True)
    rig.ask(3, 3)
    out = answers(rig.send(4, events.KernelsReloaded(1, (PLAIN,), 2)))
    assert sorted(out) == [(2, *WITHDRAWN), (3, JobState.CANCELLED, EndReason.SEQUENCE_LOST)]
    assert not rig.book.ledger.sequences


def test_queued_plain_requests_end_when_a_helper_joins_that_takes_sequences_and_what_is_on_a_lane_finishes() -> None:
    rig = Rig(join(1, "b", PLAIN))
    rig.submit(1, 1, ADA, SUM)
    rig.warm(2, 1)
    rig.submit(3, 2, ADA, SUM)
    rig.submit(3, 3, ADA, SUM)
    assert answers(rig.send(4, join(2, "a", TAKES))) == [(3, *WITHDRAWN)]
    rig.send(5, events.CopyDone(1, 0))
    assert answers(rig.result(6, 1, 1)) == [(1, JobState.COMPLETED, EndReason.NONE)]
    assert answers(rig.send(7, events.WorkerLost(1, 0, 1)) + rig.send(7, events.WorkerLost(1, 1, 1))) == [
        (2, *WITHDRAWN)
    ]


def test_without_the_helper_that_takes_sequences_the_other_one_serves_plain_requests() -> None:
    rig = Rig(join(1, "a", TAKES), join(2, "b", PLAIN))
    rig.run_first()
    rig.ask(5, 2, BOB, start=True)
    assert answers(rig.send(6, events.HelperLost(1))) == [(2, *WITHDRAWN)]
    assert answers(rig.ask(7, 3, BOB, start=True)) == [(3, *REFUSED)]
    assert opened(rig.submit(8, 4, ADA, SUM)) == ["b/gpu"]
    assert not rig.book.ledger.sequences


def test_while_no_helper_is_connected_the_one_that_left_last_counts() -> None:
    rig = Rig(join(1, "b", PLAIN), join(2, "a", TAKES))
    rig.send(1, events.HelperLost(1))
    rig.send(1, events.HelperLost(2))
    assert rig.ask(2, 1, start=True) == ()
    assert answers(rig.submit(2, 2, ADA, SUM)) == [(2, *REFUSED)]
    rig = Rig(join(1, "b", PLAIN), join(2, "a", TAKES))
    rig.send(1, events.HelperLost(2))
    rig.submit(2, 1, ADA, SUM)
    assert rig.send(3, events.HelperLost(1)) == (), "the helper restarts: what waits for it goes on waiting"
    assert answers(rig.ask(4, 2, start=True)) == [(2, *REFUSED)]
