"""Baselines of HIRE §6.1 on the same oracle: K8++, Yarn++ and Sparrow++.

None of them knows flavors: a job with alternatives is two variants (`variants`). They ignore topology and sharing
(`Resources(is_shared=False)`); which node fits the oracle says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Final

from offpath.sched.inc import cost
from offpath.sched.inc.decisions import Decision, Placed, Postponed, Reason, Why
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import GroupId, TaskGroup
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.units import plus
from offpath.sched.inc.variants import Fallback, Mode, Variants, is_on_switches


class Baseline(Variants):
    """A policy that decides task by task."""

    name: str

    @abstractmethod
    def _pick(self, job: PendingJob, group: TaskGroup, now_ms: int) -> int | None:
        """A node that fits, or None for now."""

    def _order(self, jobs: Iterable[PendingJob]) -> list[PendingJob]:
        """In which jobs are served: by their submission."""
        return list(jobs)

    def round(self, now_ms: int) -> list[Decision]:
        """Decide on all that waits. Several tasks may start on a node."""
        decisions: list[Decision] = []
        jobs = self._order(self.jobs.values())
        for job in jobs:
            if self._gives_up(job, now_ms):
                decisions += self._to_servers(job, now_ms)
            for group in self._candidates(job, now_ms):
                decisions += self._place_group(job, group, now_ms)
        for job in jobs:
            for group in (*job.materialized(), *job.undecided()):
                decisions.append(Postponed(group.id, job.waiting(group), self._no_room(group)))
        return decisions

    def _place_group(self, job: PendingJob, group: TaskGroup, now_ms: int) -> Iterator[Decision]:
        for _ in range(job.waiting(group)):
            if group not in job.materialized() and group not in job.undecided():
                return  # its variant was withdrawn
            node = self._pick(job, group, now_ms)
            if node is None:
                return
            if group in job.undecided():
                yield from self._decide(job, is_on_switches(job, group), now_ms)
            self._start(job, group, node)
            yield Placed(group.id, node, 1, Reason(Why.RULE, f"{group.id[1]} on {self._name(node)}: by {self.name}"))


class K8s(Baseline):
    """K8++: looks round-robin at nodes until a tenth of them fit, takes the least and most evenly used of these.

    A group without a place waits 1 s, then twice as long each time, at most 10 s (the defaults of Kubernetes).
    """

    name = "k8++"
    SAMPLE_PERCENT: Final = 10
    BACKOFF_MS: Final = 1_000
    MOST_BACKOFF_MS: Final = 10_000

    def __init__(self, resources: Resources, mode: Mode = Mode.CONCURRENT, *, fallback_ms: Fallback = 60_000) -> None:
        super().__init__(resources, mode, fallback_ms=fallback_ms)
        self._next = {True: 0, False: 0}
        self._backoff: dict[GroupId, tuple[int, int]] = {}

    def forgotten(self, job: PendingJob) -> None:
        """No group of it backs off."""
        for each in job.request.groups:
            self._backoff.pop(each.id, None)

    def _pick(self, job: PendingJob, group: TaskGroup, now_ms: int) -> int | None:
        until, delay = self._backoff.get(group.id, (0, self.BACKOFF_MS))
        if now_ms < until:
            return None
        nodes = self._nodes(group)
        wanted = max(1, len(nodes) * self.SAMPLE_PERCENT // 100)
        found: list[int] = []
        looked = 0
        while looked < len(nodes) and len(found) < wanted:
            node = nodes[(self._next[group.is_inc] + looked) % len(nodes)]
            looked += 1
            if self.resources.fits(group, node):
                found.append(node)
        if nodes:
            self._next[group.is_inc] = (self._next[group.is_inc] + looked) % len(nodes)
        if not found:
            self._backoff[group.id] = now_ms + delay, min(2 * delay, self.MOST_BACKOFF_MS)
            return None
        self._backoff.pop(group.id, None)
        return min(found, key=lambda node: (self._score(group, node), node))

    def _score(self, group: TaskGroup, node: int) -> int:
        """The default scores, as costs: how full the node would be, and how unevenly."""
        used = plus(self.resources.used(node), self.resources.needed(group, node))
        load = cost.utilization(used, self.resources.capacity(node))
        return cost.average(load) + cost.deviation(load)


class Yarn(Baseline):
    """Yarn++: two queues, service before batch, each in the order of submission; the first node that fits, for 100 ms
    only in a rack where the job runs already. In `Mode.CONCURRENT` a variant on switches that is not served within a
    minute is taken back."""

    name = "yarn++"
    RACK_MS: Final = 100
    REVERT_MS: Final = 60_000
    BATCH: Final = 50
    """Priorities from here on are batch jobs."""

    def _order(self, jobs: Iterable[PendingJob]) -> list[PendingJob]:
        return sorted(jobs, key=lambda each: (each.request.priority >= self.BATCH, each.number))

    def _gives_up(self, job: PendingJob, now_ms: int) -> bool:
        if self.mode is Mode.CONCURRENT:
            return any(now_ms - each.since_ms > self.REVERT_MS for each in job.decided.values())
        return super()._gives_up(job, now_ms)

    def _pick(self, job: PendingJob, group: TaskGroup, now_ms: int) -> int | None:
        fitting = (node for node in self._nodes(group) if self.resources.fits(group, node))
        racks = set() if group.is_inc else {self._rack(node) for node in self._running(job)}
        if not racks:
            return next(fitting, None)
        found = list(fitting)
        near = next((node for node in found if self._rack(node) in racks), None)
        if near is not None or job.wait_ms(now_ms) < self.RACK_MS:
            return near
        return next(iter(found), None)

    def _running(self, job: PendingJob) -> Iterator[int]:
        hosts = self.resources.topology.hosts
        for group in job.request.groups:
            yield from (node for node in self.resources.nodes_of(group.id) if node < hosts)

    def _rack(self, node: int) -> int:
        return next((parent for parent, _ in self.resources.topology.up[node]), node)


class Sparrow(Baseline):
    """Sparrow++: for m waiting tasks 2 m nodes are drawn; a task starts on the first of them that has room (late
    binding). If fewer than half of the draws are left after 200 ms, or all of them are busy, nodes are drawn again.

    ``seed``: of the draws.
    """

    name = "sparrow++"
    RECHECK_MS: Final = 200

    def __init__(
        self, resources: Resources, mode: Mode = Mode.CONCURRENT, *, fallback_ms: Fallback = 60_000, seed: int = 1
    ) -> None:
        super().__init__(resources, mode, fallback_ms=fallback_ms)
        self._draw = Random(seed)
        self._samples: dict[GroupId, list[int]] = {}
        self._drawn_ms: dict[GroupId, int] = {}

    def forgotten(self, job: PendingJob) -> None:
        """Its tasks leave the nodes' queues."""
        for each in job.request.groups:
            self._samples.pop(each.id, None)
            self._drawn_ms.pop(each.id, None)

    def _pick(self, job: PendingJob, group: TaskGroup, now_ms: int) -> int | None:
        samples = self._samples.setdefault(group.id, [])
        last = self._drawn_ms.get(group.id)
        waiting = job.waiting(group)
        if last is None or (now_ms - last >= self.RECHECK_MS and len(samples) < waiting):
            samples += self._drawn(group, 2 * waiting)
            self._drawn_ms[group.id] = now_ms
        for at, node in enumerate(samples):
            if self.resources.fits(group, node):
                del samples[at]
                return node
        if last is not None and now_ms - last >= self.RECHECK_MS:  # all of them are busy: others may not be
            samples[:] = self._drawn(group, 2 * waiting)
            self._drawn_ms[group.id] = now_ms
        return None

    def _drawn(self, group: TaskGroup, count: int) -> Sequence[int]:
        """Of the nodes that could run it: the oracle gives no others, as in the paper."""
        able = [node for node in self._nodes(group) if self.resources.could_host(group, node)]
        return [self._draw.choice(able) for _ in range(min(count, 2 * len(able)))] if able else []
