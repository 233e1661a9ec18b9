"""The design's guarantees over many random worlds (`world`), judged after every step (`shadow`).

A failure names its seed: ``drive(seed)`` has it again, event by event.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.jobs.states import FIRST_TERMINAL, JobState

from ...sizes import SIZE, sized
from .shadow_records import Violation
from .world import STEPS, drive

RUNS = sized(quick=40, fast=75, slow=300, full=2_500)
LEAST_RUNS = sized(quick=40, fast=75, slow=300, full=2_000)

REACHED = {
    *(state.name for state in JobState if state >= FIRST_TERMINAL and state is not JobState.RETRY_SAFE),
    *(f"CANCELLED while {phase}" for phase in ("queued", "copying", "waiting", "running")),
    *(f"EXPIRED while {phase}" for phase in ("queued", "copying", "waiting", "running")),
    *(f"FAILED while {phase}" for phase in ("copying", "running")),
    *(f"lease {state}" for state in ("creating", "warm", "draining", "scrubbing", "free", "lost")),
    "idle close", "reclaim idle", "reclaim busy", "close", "close with scrub", "scrub first",
    "prefetch", "requeued", "launched again", "helper_lost", "worker_lost", "session_closed",
    "unknown_kernel", "bad_demand", "payload_too_large", "duplicate_id", "gang_unsupported", "tenant_queue_full",
    "tenant removed", "tenant gone", "tenant added while it leaves", "session told", "tenant_removed",
    "kill an overrun", "kill a lingerer", "kill at the drain limit", "kernel_overran",
    "kernel_gone", "stranded", "gpu lost", "gang",
    "memory stated", "R by model", "needs renewed", "fewer lanes for memory", "no_gpu_model", "no_instance_memory",
    "kernel_not_permitted",
    "batch", "batch by size", "batch of a preferred size", "batch by delay", "batch parted",
    "batch of several sessions", "batch partly failed", "batch closed up",
    "CANCELLED in a batch", "EXPIRED in a batch", "batch launched again",
    "sequence member launched", "sequence idle", "sequence lost its lane", "sequence ends behind its head",
    "sequence on a lease that drains", "lane of several sequences", "sequence member answered out of turn",
    "answered kernel beside states", "lease kept for its sequences",
    "sequence goes on with two leases", "queued for a kernel of the other kind",
    "bad_sequence", "sequence_unknown", "too_many_sequences", "sequence_lost",
    "kernels reloaded", "lane renewed", "renewed again", "kill a renewal", "lost while renewed",
    "no_instance_fits", "daemon_full", "deadline_unreachable", "tenant_share_limit", "copy_failed", "kernel_raised",
}  # fmt: skip
"""RETRY_SAFE is not among them: the book itself never loses a payload; only replay after a crash may say it."""
RARE = {"no_instance_fits", "launched again", "helper_lost", "worker_lost", "EXPIRED while waiting",
        "CANCELLED while waiting", "kill at the drain limit", "batch partly failed", "batch closed up",
        "CANCELLED in a batch", "EXPIRED in a batch", "batch launched again", "batch by size",
        "batch of a preferred size",
        "sequence_unknown", "sequence ends behind its head", "answered kernel beside states"}  # fmt: skip


@dataclass(slots=True)
class Sweep:
    """What was done and what was met."""

    runs: int = 0
    steps: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    """Every seed once, for all tests of this module."""
    done = Sweep()
    for seed in range(RUNS):
        try:
            world = drive(seed)
        except Violation as violation:
            done.broken.append(str(violation))
            continue
        done.runs += 1
        done.steps += len(world.log)
        done.seen.update(world.shadow.seen)
    return done


def test_no_world_makes_the_book_break_a_promise(sweep: Sweep) -> None:
    assert not sweep.broken, f"{len(sweep.broken)} of {RUNS} seeds; the first:\n{sweep.broken[0]}"


def test_the_sample_is_as_large_as_it_says(sweep: Sweep) -> None:
    assert sweep.runs >= LEAST_RUNS
    assert sweep.steps >= LEAST_RUNS * STEPS


def test_every_end_of_a_job_and_every_state_of_a_lease_was_reached(sweep: Sweep) -> None:
    wanted = REACHED - RARE if SIZE in ("quick", "fast") else REACHED
    assert {name for name in wanted if not sweep.seen[name]} == set()


def test_the_book_never_says_retry_safe_by_itself(sweep: Sweep) -> None:
    assert sweep.seen[JobState.RETRY_SAFE.name] == 0


@given(seed=st.integers(min_value=1 << 20, max_value=1 << 40))
def test_seeds_that_nobody_chose_break_no_promise_either(seed: int) -> None:
    drive(seed)


def test_one_seed_is_one_run() -> None:
    first, second = drive(11), drive(11)
    assert first.log == second.log
    assert first.setup == second.setup
