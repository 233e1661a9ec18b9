"""The policy `hire` for a running cluster: it takes over tasks that run already, and takes single tasks back."""

from __future__ import annotations

from dataclasses import replace

from offpath.sched.inc import flavors
from offpath.sched.inc.errors import PlacementInvalid
from offpath.sched.inc.hire import Hire
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import GroupId


class LiveHire(Hire):
    """See `Hire`."""

    def adopt(self, group_id: GroupId, node: int, now_ms: int) -> None:
        """A task that an earlier process placed. Raises: PlacementInvalid: the group is not known, or it does not fit
        any more. FlavorsContradict: another implementation runs."""
        job, group = self._known(group_id)
        if not job.waiting(group) or not self.resources.fits(group, node):
            raise PlacementInvalid(f"a task of {group_id} does not fit {self._name(node)} any more")
        if flavors.status(group.flavor, job.active) is not flavors.Status.SELECTED:
            job.choose(group, now_ms)
        self._start(job, group, node)

    def give_back(self, group_id: GroupId, node: int, now_ms: int) -> None:
        """A task is not there any more, or was refused: it waits again. Its flavor has `preempt_ms` from now to find a
        place. Raises: PlacementInvalid: none runs there."""
        job, group = self._known(group_id)
        self._stop(group, node)
        job.started[group_id] -= 1
        if group.composite in job.decided:
            job.decided[group.composite] = replace(job.decided[group.composite], since_ms=now_ms)

    def is_complete(self, name: str) -> bool:
        """Every task of the job has a place."""
        job = self.jobs[name]
        return not job.materialized() and not job.undecided()

    @property
    def is_idle(self) -> bool:
        """A round would decide nothing."""
        return all(_is_quiet(job) for job in self.jobs.values())


def _is_quiet(job: PendingJob) -> bool:
    return not job.materialized() and not job.undecided()
