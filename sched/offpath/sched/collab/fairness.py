"""Starvation prevention (Venn §4.4): the order within a group, and how long a group's queue counts.

A job's fair latency is T = M·sd: the number of jobs times what it would need alone. The paper scales demands by
(t/T)^ε and queues by (ΣT/Σt)^ε, with t "the time usage of the job". With t as time that has passed, the job that has waited
longest would come last. It is right with t as *service*: the devices it was given, as the time that they would have
taken without contention. Then, as ε grows, the job furthest below its fair share comes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from offpath.sched.collab.irs import JOB

_LEAST: Final = 1e-6
"""For a job that was given nothing yet: its share is small, not zero, so that demand still decides among such jobs."""
_MOST_QUEUE: Final = 10**9 * JOB


@dataclass(frozen=True, slots=True)
class Standing:
    """``alone_s``: what the job would need alone, estimated, above 0. ``served_s``: service that it has received."""

    alone_s: float
    served_s: float

    def share(self, jobs: int) -> float:
        """t / T: below 1, it has less than its fair share. ``jobs``: M, at least 1."""
        return max(self.served_s / (jobs * self.alone_s), _LEAST)


def demand(remaining: int, standing: Standing, jobs: int, epsilon: float) -> float:
    """d' of §4.4: what a job is sorted by within its group. With ε = 0 the remaining demand itself."""
    if epsilon == 0:
        return float(remaining)
    return float(remaining * standing.share(jobs) ** epsilon)


def queue(standings: Iterable[Standing], jobs: int, epsilon: float) -> int:
    """q' of §4.4, in `JOB` of a job, at least 1. With ε = 0 the number of jobs."""
    each = list(standings)
    if epsilon == 0 or not each:
        return len(each) * JOB
    fair = sum(one.alone_s for one in each) * jobs
    served = max(sum(one.served_s for one in each), _LEAST * fair)
    return max(1, min(_MOST_QUEUE, round(len(each) * JOB * (fair / served) ** epsilon)))
