"""A job with alternatives as two variants, for schedulers that know no flavors (HIRE §6.1).

One variant uses switches wherever it can, the other is on servers. *Concurrent*: both are candidates until the first
task that does not fit both is placed; then the other is withdrawn. *Timeout*: the variant on switches, and the one on
servers if the first is not served in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

from offpath.sched.inc.decisions import Decision, FlavorChosen, Preempted, Reason, Why
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import TaskGroup
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.scheduler import Scheduler

Fallback = int | Callable[[str], int]
"""For how many milliseconds switches are tried: of all jobs, or by a job's name."""


class Mode(StrEnum):
    """How alternatives are submitted."""

    CONCURRENT = "concurrent"
    TIMEOUT = "timeout"


class Variants(Scheduler):
    """``fallback_ms``: in `Mode.TIMEOUT`, how long switches are tried (the paper: a tenth of the job's duration)."""

    def __init__(self, resources: Resources, mode: Mode = Mode.CONCURRENT, *, fallback_ms: Fallback = 60_000) -> None:
        super().__init__(resources)
        self.mode, self.fallback_ms = mode, fallback_ms

    def _gives_up(self, job: PendingJob, now_ms: int) -> bool:
        """True if the variant on switches has had its time."""
        fallback = self.fallback_ms
        limit_ms = fallback if isinstance(fallback, int) else fallback(job.request.job)
        return self.mode is Mode.TIMEOUT and job.wait_ms(now_ms) > limit_ms

    def _candidates(self, job: PendingJob, now_ms: int) -> list[TaskGroup]:
        """What may start: what both variants need, then switches, then servers."""
        variants = [True, False] if self.mode is Mode.CONCURRENT else [not self._gives_up(job, now_ms)]
        wanted = {each for is_inc in variants for each in self._variant(job, is_inc).items()}
        open_ = [each for each in job.undecided() if (each.composite, each.implementation) in wanted]
        return job.materialized() + sorted(open_, key=lambda each: not is_on_switches(job, each))

    def _variant(self, job: PendingJob, is_inc: bool) -> dict[str, str]:
        """By composite with a choice: the first implementation of that kind, else the first of the other."""
        found: dict[str, str] = {}
        undecided = job.undecided()
        for kind in (is_inc, not is_inc):
            for group in undecided:
                if is_on_switches(job, group) == kind:
                    found.setdefault(group.composite, group.implementation)
        return found

    def _decide(self, job: PendingJob, is_inc: bool, now_ms: int) -> Iterator[FlavorChosen]:
        """For the whole job: its other variant is withdrawn."""
        reason = Reason(Why.RULE, "the first task of this variant was placed")
        for composite, implementation in self._variant(job, is_inc).items():
            job.choose(job.request.implementation(composite, implementation)[0], now_ms)
            yield FlavorChosen(job.request.job, composite, implementation, reason)

    def _to_servers(self, job: PendingJob, now_ms: int) -> Iterator[Decision]:
        """Take back what was chosen on switches and is not served, if there is an implementation on servers."""
        reason = Reason(Why.TIMED_OUT, "its tasks on switches had no place in time")
        for composite, decided in list(job.decided.items()):
            groups = job.request.implementation(composite, decided.implementation)
            others = {each.implementation: each for each in job.request.groups if each.composite == composite}
            has_servers = any(not is_on_switches(job, each) for each in others.values())
            if is_on_switches(job, groups[0]) and has_servers and any(job.waiting(each) for each in groups):
                yield from self._stop_all(groups, reason)
                for each in job.take_back(composite, now_ms):
                    job.started.pop(each.id, None)
                    job.ended.pop(each.id, None)
                yield Preempted(job.request.job, composite, decided.implementation, reason)

    def _nodes(self, group: TaskGroup) -> range:
        """Of the group's kind."""
        hosts = self.resources.topology.hosts
        return range(hosts, self.resources.topology.nodes) if group.is_inc else range(hosts)


def is_on_switches(job: PendingJob, group: TaskGroup) -> bool:
    """True if the group's implementation uses switches; its servers beside them count as such."""
    return any(each.is_inc for each in job.request.implementation(group.composite, group.implementation))
