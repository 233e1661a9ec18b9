"""What a world draws whose kernels batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from offpath.sched.jobs import events
from offpath.sched.jobs.settings import MS
from offpath.sched.jobs.states import EndReason


def kernel(random: Random, drawn: events.Kernel) -> events.Kernel:
    """Two of three batch, as this helper states."""
    if random.random() < 0.2:
        return drawn
    most = random.choice((2, 4, 8, 16))
    preferred = tuple(sorted(random.sample(range(2, most + 1), random.choice((0, 0, 1, min(2, most - 1))))))
    return replace(
        drawn, batching=events.Batching(most, random.choice((0, 2, 20, 20, 200)) * MS // 2, preferred)
    )  # fmt: skip


def session(random: Random, open_: Sequence[int], drawn: int) -> int:
    """Most requests come from the same two sessions, or they would seldom meet."""
    return random.choice(open_[:2]) if random.random() < 0.8 else drawn


def stacked(
    random: Random, event: events.JobSubmitted, kernel: int
) -> events.JobSubmitted | events.StackSubmitted:  # fmt: skip
    """Most requests stack with others of one kernel; some in another way, some fill a batch."""
    if random.random() < 0.06:
        return event
    if random.random() < 0.8:
        event = replace(event, kernel=kernel, share=0, payload_bytes=random.choice((0, 1, 1_000)),
                        is_idempotent=random.random() < 0.6)  # fmt: skip
    rows, stack = random.choice((0, *[1] * 24, 2, 2, 3, 3, 5, 40)), random.choice((0, *[7] * 30, 8))
    return events.StackSubmitted(event, rows, stack)


def result(random: Random, event: events.ResultArrived, members: Sequence[int]) -> events.Event:
    """Some members may have another result than the others."""
    if len(members) == 1 or random.random() < 0.7:
        return event
    failed = random.sample(sorted(members), random.randrange(1, len(members) + 1))
    reasons = tuple((job, random.choice((EndReason.RESULT_TOO_LARGE, EndReason.RESULT_NOT_SPLIT))) for job in failed)
    return events.BatchResult(
        event.job, event.generation, event.reason, event.started_ns, event.finished_ns, reasons
    )  # fmt: skip
