"""A restart finds that the slot of an accepted job holds another header: what the job becomes, at each stage of it."""

from __future__ import annotations

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Copy, Launch
from offpath.sched.jobs.settings import MS
from offpath.sched.jobs.states import EndReason, JobState

from .book_harness import BookHarness, ended

LOST = EndReason.DAEMON_RESTARTED


def test_a_queued_job_whose_slot_is_lost_surely_did_not_start() -> None:
    harness = BookHarness()
    harness.submit(0, 1)
    assert harness.send(3, events.SlotLost(1)) == (ended(1, JobState.RETRY_SAFE, LOST, 3),)
    assert not any(isinstance(command, Copy) for command in harness.warm(4, 1)), "nobody waits for its lane"


def test_a_job_whose_slot_is_lost_while_it_is_copied_gives_its_lane_back_at_once() -> None:
    """The copy was the former process's: it ended with it, and no CopyDone will come."""
    harness = BookHarness()
    harness.submit(0, 1)
    harness.warm(1, 1)
    for job in (2, 3):
        harness.submit(2, job)
    assert harness.book.ledger.leases[1].jobs.keys() == {1, 2}
    answer, copy = harness.send(3, events.SlotLost(1))
    assert (answer.job, answer.state, answer.reason) == (1, JobState.RETRY_SAFE, LOST)  # type: ignore[union-attr]
    assert (type(copy), copy.job) == (Copy, 3)  # type: ignore[union-attr]


def test_a_launch_that_never_arrived_and_whose_slot_is_lost_may_be_tried_again() -> None:
    harness = BookHarness()
    harness.submit(0, 1)
    harness.warm(1, 1)
    (launch,) = harness.send(2, events.CopyDone(1, 0))
    assert isinstance(launch, Launch)
    (answer,) = harness.send(3, events.SlotLost(1))
    assert (answer.state, answer.reason) == (JobState.RETRY_SAFE, LOST)  # type: ignore[union-attr]
    lease = harness.book.ledger.leases[1]
    assert (lease.jobs, lease.running_share) == ({}, 0), "its share is free"


def test_the_outcome_is_unknown_if_an_earlier_attempt_may_have_run() -> None:
    """Its first worker died in the kernel; the second launch surely did not arrive, but that proves nothing."""
    harness = BookHarness()
    harness.submit(0, 1, idempotent=True)
    harness.warm(1, 1)
    harness.send(2, events.CopyDone(1, 0))
    harness.send(3, events.WorkerLost(1, 0, 1))
    harness.send(3, events.LaneScrubbed(1, 1, 1))
    harness.send(3, events.InstanceClosed(1, 1))
    (copy,) = harness.warm(4, 2)
    assert (type(copy), copy.job, copy.attempt) == (Copy, 1, 1)  # type: ignore[union-attr]
    (launch,) = harness.send(4, events.CopyDone(1, 1))
    assert isinstance(launch, Launch)
    (answer,) = [c for c in harness.send(5, events.SlotLost(1)) if getattr(c, "job", 0) == 1]
    assert (answer.state, answer.reason) == (JobState.OUTCOME_UNKNOWN, LOST)  # type: ignore[union-attr]


def test_a_lost_slot_of_a_job_that_has_ended_is_news_to_nobody() -> None:
    harness = BookHarness()
    harness.submit(0, 1, by_ms=2)
    assert [c.job for c in harness.send(2, events.Tick())] == [1]  # type: ignore[union-attr]
    assert harness.send(3, events.SlotLost(1)) == ()
    assert harness.send(3, events.SlotLost(99)) == ()
    assert harness.book.next_deadline_ns() is None or harness.book.next_deadline_ns() > 3 * MS  # type: ignore[operator]
