"""The policy `hire` for a running cluster: it takes over tasks that run already, and takes single tasks back."""

from __future__ import annotations

from dataclasses import replace

from offpath.sched.inc import flavors
from offpath.sched.inc.decisions import Decision
from offpath.sched.inc.errors import PlacementInvalid
from offpath.sched.inc.hire import Hire
from offpath.sched.inc.live.records import Request
from offpath.sched.inc.poly import GroupId, PolyReq


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
        return not self.jobs[name].is_open

    @property
    def is_idle(self) -> bool:
        """A round would decide nothing."""
        return not any(job.is_open for job in self.jobs.values())

    @property
    def most_new(self) -> int:
        """Places that `take_back` and a round give at most, and names of trees."""
        moving = [job for name, job in self.jobs.items() if job.is_open or self.has_tree(name)]
        return sum(job.size(each) for job in moving for each in job.request.groups)

    # -- trees: see `TreeHire` ---------------------------------------------------------------------------------------
    def prepared(self, request: PolyReq) -> PolyReq:
        """The request as it is submitted. Raises: IncRefused."""
        return request

    def recall(self, request: Request) -> None:
        """An earlier process saved the request; called first, also if it has ended. Without an INA controller nobody
        can release its trees."""
        if request.trees:
            names = ", ".join(each.name for each in request.trees.values())
            request.note(f"no INA controller is configured; cancel these jobs there: {names}")
            request.trees.clear()

    def begun(self, request: Request) -> None:
        """Called when all tasks of a recalled request are adopted."""

    def expect(self, request: Request) -> None:
        """Called before the tasks of a recalled request are adopted."""

    def has_tree(self, name: str) -> bool:
        """A composite of the job may run as a tree of switches over the servers of others."""
        return False

    def is_tree(self, group_id: GroupId) -> bool:
        """The group is such a tree."""
        return False

    def is_over(self, name: str) -> bool:
        """All tasks of the job have ended but those of trees, which never end by themselves."""
        return False

    def refuse(self, group_id: GroupId, why: str, now_ms: int) -> list[Decision]:
        """The controller does not take the tree: its places are given back."""
        return []
