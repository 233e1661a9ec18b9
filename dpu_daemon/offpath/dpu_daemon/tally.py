"""What is counted per answer, and what is kept of ended jobs. On the request path: about a microsecond in all.

Nothing is aggregated here that can be added up when somebody looks (`metrics`, `admin`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from offpath.bindings.wire.codes import Reason, Status
from offpath.sched.jobs.commands import Answer
from offpath.sched.jobs.states import JobState

if TYPE_CHECKING:
    from offpath.dpu_daemon.sessions import JobRef

ENDED_KEPT: Final = 4096
STAGES: Final = ("queued", "copy", "launch", "kernel", "back")
_US: Final = 1_000
BOUNDS_NS: Final = tuple(
    digit * 10**power * _US for power in range(1, 8) for digit in (1, 2, 5) if digit * 10**power <= 60_000_000
)
"""Upper bounds of the buckets: 10 µs to 50 s, three per decade."""


@dataclass(slots=True)
class Histogram:
    """Counts per bucket (the last one is beyond every bound) and the sum, in ns."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_NS) + 1))
    sum_ns: int = 0

    def add(self, ns: int) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS_NS, ns)] += 1
        self.sum_ns += ns

    def quantile_ns(self, q: float) -> float:
        """By linear interpolation inside the bucket; 0 while empty, the largest bound beyond it."""
        total = sum(self.counts)
        wanted, below = q * total, 0
        for n, count in enumerate(self.counts):
            if count and below + count >= wanted:
                low = BOUNDS_NS[n - 1] if n else 0
                high = BOUNDS_NS[min(n, len(BOUNDS_NS) - 1)]
                return float(low + (high - low) * (wanted - below) / count)
            below += count
        return 0.0


class Tally:
    """Ends by tenant, status and reason; latency by tenant and by stage; the last `ENDED_KEPT` ended jobs."""

    def __init__(self) -> None:
        self.ends: Counter[tuple[str, Status, Reason]] = Counter()
        self.latency: dict[str, Histogram] = {}
        self.stages = tuple(Histogram() for _ in STAGES)
        self.ended: deque[tuple[JobRef, Answer, int]] = deque(maxlen=ENDED_KEPT)

    def answered(self, ref: JobRef, answer: Answer, status: Status, reason: Reason, now_ns: int) -> None:
        """A job has its one terminal answer. Latency counts those that completed."""
        tenant = ref.session.tenant
        self.ends[tenant, status, reason] += 1
        self.ended.append((ref, answer, now_ns))
        if answer.state is JobState.COMPLETED:
            latency = self.latency.get(tenant)
            if latency is None:
                latency = self.latency[tenant] = Histogram()
            stages = answer.stages
            latency.add(stages[5])
            for histogram, ns in zip(self.stages, stages, strict=False):  # the sixth is the total
                histogram.add(ns)

    def find(self, *, job: int = 0, session: int = 0, request_id: int = 0) -> tuple[JobRef, Answer, int] | None:
        """The newest ended job of that number, or of that session and request id, while it is kept."""
        for kept in reversed(self.ended):
            ref = kept[0]
            if ref.job == job if job else (ref.session.number, ref.header.request_id) == (session, request_id):
                return kept
        return None
