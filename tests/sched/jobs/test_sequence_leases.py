"""How long a worker and a lease are kept for the sequences whose states they hold. Times in ms."""

from __future__ import annotations

from dataclasses import replace

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import KillLane
from offpath.sched.jobs.explain import explain
from offpath.sched.jobs.records import MS

from .book_harness import ADA, SETTINGS
from .test_sequences import PLAIN, Rig, copies

OTHER = 9
"""Another session of ada's."""
LINGERS = replace(SETTINGS, linger_ns=20 * MS, kernel_ns=500 * MS)


def lingering(*, seqs: int = 2) -> tuple[Rig, int]:
    """A kernel of ada's sequence 1 runs since ms 2 and is cancelled at ms 3; on its lane are the states of ``seqs``
    sequences, the others of another session. Returns the lane too."""
    rig = Rig(LINGERS)
    rig.send(0, events.SessionOpened(OTHER, "ada", 64))
    lane = rig.start(1, 1, seq=1).lane
    job, found = 10, 1
    while found < seqs:
        (copy,) = copies(rig.ask(1, job, seq=job, start=True, session=OTHER))
        rig.done(1, job)
        found += copy[2] == lane
        job += 1
    rig.ask(2, 2, seq=1)
    rig.copied(2, 2)
    rig.send(3, events.CancelRequested(2))
    return rig, lane


def test_an_answered_kernel_costs_no_worker_that_has_the_states_of_other_sequences() -> None:
    rig, lane = lingering()
    assert rig.tick(100) == ()
    there = [each.sequence_id for each in rig.book.ledger.sequences.values() if each.lane == lane]
    assert len(there) == 2
    rig.result(120, 2, 1)
    assert copies(rig.ask(121, 50, seq=there[1], session=OTHER)) == [(50, 1, lane)]


def test_it_is_killed_at_the_limit_on_kernels() -> None:
    rig, lane = lingering()
    assert rig.tick(501) == ()
    assert rig.tick(502)[0] == KillLane(1, lane, 1, 1)


def test_an_answered_kernel_that_holds_only_its_own_sequence_is_killed_soon() -> None:
    rig, lane = lingering(seqs=1)
    assert rig.tick(22) == ()
    assert rig.tick(23)[0] == KillLane(1, lane, 1, 1)


def test_it_is_killed_when_the_last_other_sequence_of_its_lane_has_ended() -> None:
    rig, lane = lingering()
    assert rig.tick(100) == ()
    rig.send(150, events.SessionClosed(OTHER))
    assert rig.tick(150)[0] == KillLane(1, lane, 1, 1)


def test_a_plain_kernel_that_was_answered_costs_no_worker_with_states_either() -> None:
    rig = Rig(LINGERS)
    for job in (1, 2):
        rig.start(1, job, seq=job)  # one on each lane
    rig.run(2, 5, ADA, PLAIN)
    rig.send(3, events.CancelRequested(5))
    assert rig.tick(100) == ()


def test_the_explanation_of_a_running_request_states_when_its_worker_is_killed() -> None:
    rig, texts = Rig(LINGERS), []
    lanes = [rig.start(1, job, seq=job).lane for job in (1, 2, 3)]
    alone = next(seq for seq, lane in enumerate(lanes, start=1) if lanes.count(lane) == 1)
    for seq in (alone, 3):
        job = 10 + seq
        rig.ask(2, job, seq=seq, by_ms=5)
        rig.copied(2, job)
        found = explain(rig.book.ledger.jobs[job], rig.book.ledger, tuple(rig.book.leasing.gpus), 4 * MS)
        texts.append(found.holds[-1].text)
        rig.result(4, job, 1)
    assert "after 20.0 ms its worker is killed" in texts[0]
    assert "has run for 500.0 ms in all (other sequences have their states there" in texts[1]
