"""Starvation prevention (Venn §4.4): the order within a group, and how long a group's queue counts.

A job's fair latency is T = M·sd: the number of jobs times what it would need alone. The paper scales demands by
(t/T)^ε and queues by (ΣT/Σt)^ε, with t "the time usage of the job". With t as time that has passed, the job that has
waited longest would come last. It is right with t as *service*: the devices it was given, as the time that they would
have taken without contention. Then, as ε grows, the job furthest below its fair share comes first.

M is the same for all jobs at any time. It scales all demands and all queues alike and changes no order, so it is left
out: a job that comes changes the keys of no other one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from offpath.sched.collab.irs import JOB

_LEAST: Final = 1e-6
"""For a job that was given nothing yet: its share is small, not zero, so that demand still decides among such jobs."""
_MOST_EXPONENT: Final = 600.0
"""A queue is an integer of any size; a float ends at e**709."""


@dataclass(frozen=True, slots=True)
class Standing:
    """``alone_ns``: what the job would need alone, estimated, above 0. ``served_ns``: service that it has received: the
    time of its devices, divided by the devices of a round."""

    alone_ns: int
    served_ns: int

    @property
    def share(self) -> float:
        """t / sd, at least `_LEAST`. Of two jobs the one with less is further below its fair share."""
        return max(self.served_ns / self.alone_ns, _LEAST)


def demand(remaining: int, standing: Standing, epsilon: float) -> float:
    """What a job is sorted by within its group: with ε = 0 the remaining demand itself, else the logarithm of d', which
    has the same order and stays a number for any ε. ``remaining``: 1 or more."""
    if epsilon == 0:
        return float(remaining)
    return math.log(remaining) + epsilon * math.log(standing.share)


def queue(jobs: int, alone_ns: int, served_ns: int, epsilon: float) -> int:
    """q' of §4.4 for a group of ``jobs``, in `JOB` of a job; the times are sums. With ε = 0 the number of jobs."""
    if epsilon == 0 or not jobs:
        return jobs * JOB
    exponent = -epsilon * math.log(Standing(alone_ns, served_ns).share)
    return max(1, round(jobs * JOB * math.exp(min(exponent, _MOST_EXPONENT))))
