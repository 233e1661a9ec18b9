"""Streams of jobs: trace rows, thinning and scaling, assigned tenants, and the synthetic stream.

All random draws come from a generator that the caller seeds.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from random import Random
from typing import Final

from offpath.sched.gpu.policy import ModelShares

SECOND_NS: Final = 10**9
HOUR_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A row: ``share`` is R in percent of a GPU; above 100 it is a gang of that many whole GPUs. ``model``: the only
    GPU model it runs on, if restricted. ``models``: the GPU models it runs on, each with its R, in the place of
    ``share``. ``memory_bytes``: of the device, that its worker needs besides the lane's buffers."""

    submit_ns: int
    duration_ns: int
    tenant: str
    share: int
    model: str = ""
    models: ModelShares = ()
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """Jobs in order of submission; results cover the window from ``begin_ns`` to ``end_ns``. ``kind``: "reproduction"
    (synthetic, from published marginals) or "real"."""

    name: str
    kind: str
    begin_ns: int
    end_ns: int
    jobs: tuple[TraceJob, ...]

    @property
    def load_gpus(self) -> float:
        """Mean demand over the window in GPUs, if no job waits: ∫ Σ R dt / length."""
        begin, end = self.begin_ns, self.end_ns
        demand = sum(
            job.share * max(0, min(end, job.submit_ns + job.duration_ns) - max(begin, job.submit_ns))
            for job in self.jobs
        )
        return demand / 100 / (end - begin)

    def peak_gpus(self) -> int:
        """Peak number of jobs alive, a gang counted by its GPUs: this many GPUs always suffice."""
        steps = []
        for job in self.jobs:
            pieces = max(1, job.share // 100)
            steps += [(job.submit_ns, pieces), (job.submit_ns + job.duration_ns, -pieces)]
        steps.sort()
        return max(accumulate(step for _, step in steps), default=0)


def zipf(tenants: int, exponent: float = 1.0) -> list[float]:
    """Shares of tenants 1 … ``tenants``: proportional to rank to the power of -``exponent``; they sum to 1."""
    weights = [rank**-exponent for rank in range(1, tenants + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


class _Drawn:
    """Draws an index with given probabilities."""

    def __init__(self, shares: Iterable[float]) -> None:
        self._sums = list(accumulate(shares))

    def draw(self, random: Random) -> int:
        return min(bisect.bisect(self._sums, random.random() * self._sums[-1]), len(self._sums) - 1)


def with_tenants(stream: Stream, tenants: int, random: Random, exponent: float = 1.0) -> Stream:
    """Assign each job to one of ``tenants`` tenants, Zipf-distributed: a choice of the simulation, not of the trace."""
    drawn = _Drawn(zipf(tenants, exponent))
    jobs = tuple(replace(job, tenant=f"t{drawn.draw(random) + 1}") for job in stream.jobs)
    return replace(stream, jobs=jobs)


def thinned(stream: Stream, load_gpus: float, random: Random) -> Stream:
    """Keep a random part of the jobs, so that the mean load is about ``load_gpus``. Times are unchanged.

    Raises: ValueError: the stream's load is lower.
    """
    part = load_gpus / stream.load_gpus
    if part > 1:
        raise ValueError(f"{stream.name} has a load of {stream.load_gpus:.1f} GPUs, not {load_gpus:g}")
    jobs = tuple(job for job in stream.jobs if random.random() < part)
    return replace(stream, name=f"{stream.name}@{load_gpus:g}", jobs=jobs)


def cut_window(stream: Stream, begin_ns: int, end_ns: int) -> Stream:
    """The part of the stream that is alive in the window."""
    jobs = tuple(j for j in stream.jobs if j.submit_ns < end_ns and j.submit_ns + j.duration_ns > begin_ns)
    return replace(stream, begin_ns=begin_ns, end_ns=end_ns, jobs=jobs)


@dataclass(frozen=True, slots=True)
class Marginals:
    """Published properties of a trace: R in percent with its weight, and quantiles (probability, seconds) of durations,
    from probability 0 to 1."""

    shares: tuple[tuple[int, float], ...]
    durations: tuple[tuple[float, float], ...]

    def mean_share(self) -> float:
        """E[R] in GPUs."""
        return sum(share * weight for share, weight in self.shares) / 100 / sum(weight for _, weight in self.shares)

    def mean_duration_s(self, longest_s: float) -> float:
        """E[min(duration, longest)]: between two quantiles a duration's logarithm is uniform."""
        total = 0.0
        for (p, low), (q, high) in zip(self.durations, self.durations[1:], strict=False):
            if longest_s <= low:
                total += (q - p) * longest_s
            elif low == high:
                total += (q - p) * low
            else:
                top = min(high, longest_s)
                below = math.log(top / low) / math.log(high / low)
                total += (q - p) * (below * (top - low) / math.log(top / low) + (1 - below) * longest_s)
        return total

    def draw_duration_s(self, random: Random, longest_s: float) -> float:
        """One duration, ``longest_s`` at most."""
        p = random.random()
        at = bisect.bisect(self.durations, (p, math.inf)) - 1
        (below, low), (above, high) = self.durations[at], self.durations[min(at + 1, len(self.durations) - 1)]
        part = (p - below) / (above - below) if above > below else 0.0
        return min(longest_s, low * math.pow(high / low, part))


def synthetic(
    name: str, marginals: Marginals, *, load_gpus: float, hours: float, tenants: int, random: Random
) -> Stream:
    """Poisson arrivals of jobs with these marginals, drawn independently, at the rate that gives the mean load.

    Jobs run at most ``hours`` (the window's length). Arrivals start that long before the window, so that it starts in
    the steady state.
    """
    longest_s = hours * HOUR_S
    rate = load_gpus / (marginals.mean_share() * marginals.mean_duration_s(longest_s))
    shares, tenant = _Drawn(weight for _, weight in marginals.shares), _Drawn(zipf(tenants))
    jobs = []
    now_s = random.expovariate(rate)
    while now_s < 2 * longest_s:
        share = marginals.shares[shares.draw(random)][0]
        duration_s = marginals.draw_duration_s(random, longest_s)
        who = f"t{tenant.draw(random) + 1}"
        jobs.append(TraceJob(round(now_s * SECOND_NS), round(duration_s * SECOND_NS), who, share))
        now_s += random.expovariate(rate)
    begin = round(longest_s * SECOND_NS)
    return cut_window(Stream(name, "reproduction", begin, 2 * begin, tuple(jobs)), begin, 2 * begin)


Span = tuple[int, int]
"""Start and end in ns; the end is excluded."""


def live_spans(stream: Stream, most: int) -> list[Span]:
    """Spans of the window in which 1 to ``most`` jobs are alive, if no job waits; a gang counts as its GPUs. Adjacent
    spans are merged."""
    begin, end = stream.begin_ns, stream.end_ns
    steps = [(begin, 0), (end, 0)]
    for job in stream.jobs:
        pieces = max(1, job.share // 100)
        steps += [(max(begin, job.submit_ns), pieces), (max(begin, job.submit_ns + job.duration_ns), -pieces)]
    steps.sort()
    spans: list[Span] = []
    live = 0
    for (at, step), (then, _) in pairwise(steps):
        live += step
        if not 1 <= live <= most or at == then or at >= end:
            continue
        if spans and spans[-1][1] == at:
            at = spans.pop()[0]
        spans.append((at, min(then, end)))
    return spans


def evenly(spans: Sequence[Span], count: int) -> list[int]:
    """``count`` times, evenly spaced over the spans' total time, with half the spacing at either end; fewer if there
    are not enough ns."""
    total = sum(end - begin for begin, end in spans)
    found = set()
    for part in {(2 * n + 1) * total // (2 * count) for n in range(count)} if total else ():
        for begin, end in spans:
            if part < end - begin:
                found.add(begin + part)
                break
            part -= end - begin
    return sorted(found)


def tenants_of(jobs: Sequence[TraceJob]) -> list[str]:
    """Each tenant once, in the order of its first job."""
    return list(dict.fromkeys(job.tenant for job in jobs))
