"""Measures the time that migrating jobs spend without a tree, from epochs and ranks' reports. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from offpath.sched.ina.protocol.records import EpochRecord, RankState

_KEPT: Final = 1000


@dataclass(slots=True)
class _Job:
    epoch: EpochRecord
    at_ns: int
    tree: str = ""
    """The last tree."""
    left_ns: int | None = None
    """Time at which the job had to leave ``tree``."""


class Tracking:
    """A migration counts once all ranks have applied the grant of another tree; its downtime starts when the epoch to
    leave the former tree was published."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self.downtime_ns: deque[int] = deque(maxlen=_KEPT)
        """Of the last migrations."""

    def published(self, epoch: EpochRecord, now_ns: int) -> bool:
        """An epoch is sent to one of its hosts. True: for the first time."""
        job = self._jobs.get(epoch.job)
        if job is None or job.epoch.incarnation != epoch.incarnation:
            job = self._jobs[epoch.job] = _Job(epoch, now_ns)
        elif job.epoch.stamp == epoch.stamp:
            return False
        former = job.epoch
        job.epoch, job.at_ns = epoch, now_ns
        if former.grant is not None and (epoch.grant is None or epoch.grant.tree != former.grant.tree):
            job.tree, job.left_ns = former.grant.tree, now_ns
        return True

    def since_ns(self, job: str) -> int | None:
        """Time at which the job's newest epoch was first sent."""
        found = self._jobs.get(job)
        return None if found is None else found.at_ns

    def moved(self, name: str, states: Sequence[RankState], now_ns: int) -> int | None:
        """Update with the current states of the ranks; returns the downtime in ns if this ends a migration."""
        job = self._jobs.get(name)
        if job is None or job.left_ns is None or job.epoch.grant is None:
            return None
        if not states or any(state.applied < job.epoch.stamp for state in states):
            return None
        left_ns, job.left_ns = job.left_ns, None
        if job.epoch.grant.tree == job.tree:
            return None
        self.downtime_ns.append(now_ns - left_ns)
        return now_ns - left_ns

    def forget(self, job: str) -> None:
        """The job has ended."""
        self._jobs.pop(job, None)
