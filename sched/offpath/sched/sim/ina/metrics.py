"""Metrics of a run. Report the efficiency score together with others: it is relative to what INA can gain at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offpath.sched.ina.patterns import NS_PER_S
from offpath.sched.sim.ina.cluster import Outcome


@dataclass(frozen=True, slots=True)
class Metrics:
    """Over all jobs of a run. Times are means over jobs, in s."""

    jobs: int
    efficiency_score: float
    """(JCT without INA - JCT) / (JCT without INA - JCT with INA for every operation): the paper's, jobs weighted
    equally."""
    efficiency_score_by_hosts: float
    """The same, jobs weighted by their number of hosts."""
    utilisation: float
    """Time in operations that used INA over JCT, sums over jobs. Includes jobs of one host with
    `World.single_hosts_use_ina`."""
    avg_jct_s: float
    avg_jct_no_ina_s: float
    avg_jct_all_ina_s: float
    avg_fragments: float
    migrations: float
    """Changes of tree per job."""
    migrations_in_flight: float
    """Changes of tree per job while an operation was in flight; the paper's count."""
    downtime_s: float
    """Time per job without a tree because of that."""
    slowest: float
    """The mean over jobs of the greatest factor by which others slowed them down; 1 without link contention."""
    queued_s: float
    """From arrival to start."""
    makespan_s: float
    host_utilisation: float


def measure(outcomes: Sequence[Outcome], hosts: int, ticks_per_s: int = NS_PER_S) -> Metrics:
    """Metrics of jobs that ended, in a cluster of ``hosts``. ``ticks_per_s``: the unit of their times. Raises:
    ValueError: no job ended."""
    if not outcomes:
        raise ValueError("no job ended")
    count = len(outcomes)
    jct = sum(each.jct_ns for each in outcomes)
    none = sum(each.none_ns for each in outcomes)
    everything = sum(each.all_ns for each in outcomes)
    weighed = [sum(len(each.hosts) * time for each, time in pairs) for pairs in _times(outcomes)]
    end = max(each.ended_ns for each in outcomes)
    return Metrics(
        jobs=count,
        efficiency_score=_score(jct, none, everything),
        efficiency_score_by_hosts=_score(*weighed),
        utilisation=sum(each.ina_ns for each in outcomes) / jct,
        avg_jct_s=jct / count / ticks_per_s,
        avg_jct_no_ina_s=none / count / ticks_per_s,
        avg_jct_all_ina_s=everything / count / ticks_per_s,
        avg_fragments=sum(each.fragments for each in outcomes) / count,
        migrations=sum(each.migrations for each in outcomes) / count,
        migrations_in_flight=sum(each.migrations_in_flight for each in outcomes) / count,
        downtime_s=sum(each.blocked_ns for each in outcomes) / count / ticks_per_s,
        slowest=sum(each.slowest for each in outcomes) / count,
        queued_s=sum(each.started_ns - each.job.arrival_ns for each in outcomes) / count / ticks_per_s,
        makespan_s=end / ticks_per_s,
        host_utilisation=weighed[0] / (hosts * end),
    )


def _times(outcomes: Sequence[Outcome]) -> tuple[list[tuple[Outcome, int]], ...]:
    return (
        [(each, each.jct_ns) for each in outcomes],
        [(each, each.none_ns) for each in outcomes],
        [(each, each.all_ns) for each in outcomes],
    )


def _score(jct: int, none: int, everything: int) -> float:
    """1 if INA could gain nothing."""
    return (none - jct) / (none - everything) if none != everything else 1.0
