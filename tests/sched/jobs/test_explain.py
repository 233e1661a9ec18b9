"""What the book says of a job that waits, and of one that ended: who holds what it needs, and what would lift that."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from offpath.sched.gpu.policy import Unblocker
from offpath.sched.jobs import events, view
from offpath.sched.jobs.commands import Answer
from offpath.sched.jobs.explain import Ended, Explanation, explain, explain_end
from offpath.sched.jobs.obstacles import Cause
from offpath.sched.jobs.settings import MS, PinnedLease, TenantSpec
from offpath.sched.jobs.states import EndReason, JobState

from ..gpus import MIB, a30
from .book_harness import ADA, BOB, HALF, KERNELS, SETTINGS, SMALL, WHOLE, BookHarness
from .world import World


def told(harness: BookHarness, job: int, at_ms: float, *, names_others: bool = True) -> Explanation:
    ledger = harness.book.ledger
    return explain(ledger.jobs[job], ledger, harness.book.leasing.gpus, int(at_ms * MS), names_others=names_others)


def helperless() -> BookHarness:
    """Its kernels are known, its GPUs are gone."""
    harness = BookHarness()
    harness.send(0, events.HelperLost(1))
    return harness


def causes(explanation: Explanation) -> list[Cause]:
    return [hold.cause for hold in explanation.holds]


def test_a_job_behind_another_tenants_gpu_names_the_lease_and_its_tenant() -> None:
    harness = BookHarness(pins=(PinnedLease("bob", 0, "7g.40gb", 0),))
    harness.warm(1, 1)
    harness.submit(2, 1, ADA, SMALL)
    (hold,) = told(harness, 1, 3).holds
    assert hold.cause is Cause.TENANT_CLASH
    assert [(each.lease, each.tenant) for each in hold.holders] == [(1, "bob")]
    assert "lease 1 of tenant bob has 7g.40gb at 0 of gpu-0" in hold.text
    assert Unblocker.LEASE_CLOSES in hold.unblocked_by


def test_a_tenant_is_not_told_who_the_others_are() -> None:
    harness = BookHarness(pins=(PinnedLease("bob", 0, "7g.40gb", 0),))
    harness.submit(2, 1, ADA, SMALL)
    (hold,) = told(harness, 1, 3, names_others=False).holds
    assert "bob" not in hold.text
    assert [each.tenant for each in hold.holders] == [""]


def test_a_job_without_a_legal_start_says_which_starts_are_blocked_by_what() -> None:
    """Two small leases of its own, at 0 and 4: six slices are free and 3g.20gb, 4g.20gb and 7g.40gb start nowhere."""
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0), PinnedLease("ada", 0, "1g.5gb", 4)))
    harness.warm(1, 1, 2)
    harness.submit(2, 1, ADA, HALF, share=42)
    explanation = told(harness, 1, 3)
    assert causes(explanation) == [Cause.DEMAND, Cause.GEOMETRY]
    starts = {(each.profile, each.start): each.leases for each in explanation.holds[1].starts}
    assert starts == {
        ("3g.20gb", 0): (1,), ("3g.20gb", 4): (2,), ("4g.20gb", 0): (1,), ("7g.40gb", 0): (1, 2),
    }  # fmt: skip
    assert "3g.20gb at 0 is blocked by lease 1" in explanation.holds[1].text


def test_lanes_too_large_for_any_instance_are_a_matter_of_memory() -> None:
    harness = BookHarness(settings=replace(SETTINGS, landing_bytes=30_000 * MIB))
    (answer,) = harness.submit(2, 1, ADA, SMALL)
    assert isinstance(answer, Answer)
    assert (answer.state, answer.reason) == (JobState.REJECTED, EndReason.NO_INSTANCE_FITS)
    ended = replace(ENDED, reason=answer.reason)
    (hold,) = explain_end(ended, harness.book.leasing, 5 * MS).holds
    assert (hold.cause, Unblocker.CONFIGURATION in hold.unblocked_by) == (Cause.MEMORY, True)
    assert "7g.40gb of A100-40GB" in hold.text


def test_a_job_that_waits_ends_when_a_helper_comes_whose_gpus_hold_no_lease_for_it() -> None:
    harness = BookHarness(settings=replace(SETTINGS, landing_bytes=15_000 * MIB))
    harness.submit(1, 1)
    harness.send(2, events.HelperLost(1))
    out = harness.send(3, events.HelperJoined(2, (a30(),), KERNELS))
    (answer,) = (command for command in out if isinstance(command, Answer))
    assert (answer.job, answer.state, answer.reason) == (1, JobState.CANCELLED, EndReason.NO_INSTANCE_FITS)
    (hold,) = explain_end(replace(ENDED, reason=answer.reason), harness.book.leasing, 5 * MS).holds
    assert "4g.24gb of A30-24GB" in hold.text


def test_a_tenant_at_its_share_waits_for_its_own_jobs() -> None:
    harness = BookHarness((TenantSpec("ada", max_share=14),))
    for job in (1, 2, 3):
        harness.submit(2, job)
    harness.warm(3, 1)
    assert causes(told(harness, 3, 4)) == [Cause.LANES, Cause.QUOTA]
    assert "holds 14 % and may hold 14 %" in told(harness, 3, 4).holds[1].text


def test_without_a_helper_only_a_helper_helps() -> None:
    harness = helperless()
    harness.submit(1, 1)
    (hold,) = told(harness, 1, 2).holds
    assert (hold.cause, hold.unblocked_by) == (Cause.HELPER, (Unblocker.HELPER_JOINS,))


def test_a_lease_in_the_making_is_named() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    assert causes(told(harness, 1, 2)) == [Cause.OPENING]


def test_a_failed_lease_says_when_the_next_try_is() -> None:
    harness = BookHarness()
    harness.submit(1, 1)
    harness.send(2, events.InstanceFailed(1, 1))
    (hold,) = told(harness, 1, 102).holds
    assert (hold.cause, "400 ms" in hold.text) == (Cause.PAUSE, True)


def test_a_job_that_waits_for_share_counts_who_is_ahead_on_its_lease() -> None:
    harness = BookHarness(settings=replace(SETTINGS, lanes=3), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1, lanes=3)
    for job in (1, 2, 3):
        harness.run(2, job)
    explanation = told(harness, 3, 4)
    assert (causes(explanation), explanation.ahead) == ([Cause.SHARE], 1)
    assert "in use by job 1" in explanation.holds[0].text


def test_who_is_ahead_counts_priority_before_age() -> None:
    harness = helperless()
    harness.submit(1, 1, priority=1)
    harness.submit(2, 2, priority=5)
    harness.submit(3, 3, priority=1)
    assert [told(harness, job, 4).ahead for job in (1, 2, 3)] == [1, 0, 2]


def test_an_estimate_is_given_once_a_job_has_finished() -> None:
    harness = BookHarness((TenantSpec("ada", max_share=14),))
    harness.submit(1, 1)
    harness.warm(2, 1)
    assert told(harness, 1, 2).estimate_ns is None
    harness.send(2, events.CopyDone(1, 0))
    harness.result(12, 1, 1)
    for job in (2, 3, 4):
        harness.submit(12, job)
    assert told(harness, 4, 13).estimate_ns == 30 * MS, "10 ms a job, two before it, and each takes all of the share"


def test_a_deadline_that_will_be_missed_is_a_cause() -> None:
    harness = helperless()
    harness.submit(1, 1, by_ms=50)
    assert causes(told(harness, 1, 2)) == [Cause.HELPER, Cause.DEADLINE]
    assert "in 48.0 ms" in told(harness, 1, 2).holds[1].text


@pytest.mark.parametrize(
    ("settings", "kept", "killed"),
    [
        (
            {"linger_ns": 20 * MS},
            "until it ends; after 20.0 ms its worker is killed",
            "; its worker is killed in 15.0 ms",
        ),
        (
            {"linger_ns": 20 * MS, "kernel_ns": 100 * MS, "kills_expired": False},
            "until it ends or has run for 100.0 ms in all",
            "; its worker is killed in 77.0 ms",
        ),
        ({"linger_ns": 20 * MS, "kills_expired": False}, "until it ends (limits.on_expiry)", ""),
    ],
)
def test_a_budget_that_ends_during_a_kernel_is_said_to_keep_the_lane(
    settings: dict[str, Any], kept: str, killed: str
) -> None:
    harness = BookHarness(settings=replace(SETTINGS, lanes=1, **settings), pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1, lanes=1)
    harness.run(2, 1, by_ms=20)
    (hold,) = told(harness, 1, 5).holds
    assert hold.cause is Cause.DEADLINE
    assert "its deadline is in 15.0 ms" in hold.text
    assert f"at its deadline it ends EXPIRED, and its kernel keeps the lane {kept}" in hold.text
    harness.submit(6, 2)
    assert "1 run" in told(harness, 2, 7).holds[0].text
    harness.tick(20)
    assert "1 of these for requests that have expired or were cancelled" in told(harness, 2, 21).holds[0].text
    expired = replace(ENDED, state=JobState.EXPIRED, reason=EndReason.DEADLINE_PASSED, lease=1)
    (hold,) = explain_end(expired, harness.book.leasing, 25 * MS).holds
    assert hold.text == (
        f"its budget of 50 ms passed on lease 1; its kernel still runs and keeps lane 0 until it ends{killed}"
    )
    harness.result(30, 1, 1)
    (hold,) = explain_end(expired, harness.book.leasing, 31 * MS).holds
    assert hold.text == "its budget of 50 ms passed on lease 1"


ENDED = Ended(1, "ada", 14, 100, 50, JobState.REJECTED, EndReason.NONE, 0, 0, (0, 0, 0, 0, 0, 5 * MS), SMALL, 0)


@pytest.mark.parametrize("reason", [reason for reason in EndReason if reason is not EndReason.NONE])
def test_every_end_has_a_cause_and_something_that_would_change_it(reason: EndReason) -> None:
    harness = BookHarness()
    (hold,) = explain_end(replace(ENDED, reason=reason), harness.book.leasing, 5 * MS).holds
    assert hold.text
    assert hold.unblocked_by


def test_a_payload_that_is_too_large_is_told_both_sizes() -> None:
    ended = replace(ENDED, payload_bytes=2 * MIB, reason=EndReason.PAYLOAD_TOO_LARGE)
    (hold,) = explain_end(ended, BookHarness().book.leasing, 5 * MS).holds
    assert (hold.cause, str(2 * MIB) in hold.text, str(MIB) in hold.text) == (Cause.MEMORY, True, True)


def test_a_completed_job_was_held_back_by_nothing() -> None:
    assert explain_end(replace(ENDED, state=JobState.COMPLETED), BookHarness().book.leasing, 5 * MS).holds == ()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_every_job_can_be_explained_and_nothing_is_disturbed(seed: int) -> None:
    """A world is driven; each step's jobs are explained, and the run is replayed without: the same commands."""
    world = World(seed)
    plain = world.step

    def step(event: events.Event) -> object:
        commands = plain(event)
        ledger, gpus = world.book.ledger, world.book.leasing.gpus
        before = len(ledger.timers), ledger.generation, len(ledger.backlogged)
        for record in view.jobs(ledger, world.now_ns):
            job = ledger.jobs[record.job]
            if job.state < JobState.COMPLETED:
                explanation = explain(job, ledger, gpus, world.now_ns)
                assert explanation.holds or job.state is not JobState.QUEUED, job
        assert view.leases(ledger, world.now_ns) is not None
        assert before == (len(ledger.timers), ledger.generation, len(ledger.backlogged))
        return commands

    world.step = step  # type: ignore[method-assign, assignment]
    world.run(120)


def test_reading_the_book_gives_the_records_of_its_tables() -> None:
    harness = BookHarness(pins=(PinnedLease("bob", 0, "2g.10gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1, BOB)
    harness.submit(2, 2, BOB, WHOLE)
    before = copy.deepcopy(view.tenants(harness.book.ledger))
    jobs = view.jobs(harness.book.ledger, 5 * MS)
    assert [(each.job, each.tenant, each.state, each.age_ns) for each in jobs] == [
        (1, "bob", JobState.LAUNCHED, 3 * MS), (2, "bob", JobState.QUEUED, 3 * MS),
    ]  # fmt: skip
    (lease,) = view.leases(harness.book.ledger, 5 * MS)
    assert (lease.tenant, lease.running_share, lease.alpha, lease.jobs, lease.running) == ("bob", 14, 28, 1, 1)
    assert view.leases(harness.book.ledger, 5 * MS, after=lease.lease) == []
    assert view.leases(harness.book.ledger, 5 * MS, after=lease.lease - 1, limit=1) == [lease]
    assert view.leases(harness.book.ledger, 5 * MS, limit=0) == []
    assert [each.jobs for each in view.sessions(harness.book.ledger)] == [0, 2, 0]
    found = view.find_job(harness.book.ledger, BOB, 2)
    assert found is not None
    assert found.job == 2
    assert view.find_job(harness.book.ledger, BOB, 9) is None
    assert view.tenants(harness.book.ledger) == before
    assert view.jobs(harness.book.ledger, 5 * MS, tenant="ada") == []
    assert [each.job for each in view.jobs(harness.book.ledger, 5 * MS, after=1)] == [2]


# -- draining -----------------------------------------------------------------------------------------------------
def test_a_book_that_drains_finishes_what_it_has_and_turns_the_rest_away_with_a_hint() -> None:
    harness = BookHarness(pins=(PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1)
    assert harness.send(3, events.Drain(True)) == ()
    (answer,) = harness.submit(4, 2)
    assert isinstance(answer, Answer)
    assert (answer.state, answer.reason, answer.retry_after_ms) == (JobState.REJECTED, EndReason.DRAINING, 1000)
    (answer,) = harness.result(5, 1, 1)
    assert isinstance(answer, Answer)
    assert answer.state is JobState.COMPLETED
    assert harness.send(6, events.Drain(False)) == ()
    assert len(harness.run(7, 3)) == 2


def test_a_bad_request_is_told_so_also_while_draining() -> None:
    harness = BookHarness()
    harness.send(1, events.Drain(True))
    (answer,) = harness.submit(2, 1, kernel=99)
    assert isinstance(answer, Answer)
    assert answer.reason is EndReason.UNKNOWN_KERNEL
    assert KERNELS[0].kernel == SMALL
