"""Jobs and their running tasks: what all policies of `sched.inc` do with events from outside. No clock, no I/O."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from offpath.sched.inc.decisions import Decision, Reason, Stopped, Why
from offpath.sched.inc.errors import PlacementInvalid
from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import GroupId, PolyReq, TaskGroup
from offpath.sched.inc.resources import Resources
from offpath.sched.inc.scarcity import check_hostable, scarcity
from offpath.sched.inc.transform import Earlier

_CANCELLED: Final = Reason(Why.CANCELLED, "the request was cancelled")


class Scheduler:
    """A cluster and its jobs. ``resources`` belongs to it: change it only through the events below.

    ``is_counting_lacks``: False leaves out of the reasons how many nodes lack what, which asks every node.
    ``repeated``: task groups of each further pass of the last round; a policy that looks once has none.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.is_counting_lacks = True
        self.repeated: list[int] = []
        self.jobs: dict[str, PendingJob] = {}
        self._numbers = 0

    def changed(self, node: int, group: TaskGroup | None = None, sign: int = 0) -> None:
        """Called after each change of a node: a start (``sign`` 1) or stop (−1) of a task, a loss, a return. A policy
        that keeps what it computed overrides it."""

    def forgotten(self, job: PendingJob) -> None:
        """Called when a job is gone."""

    @abstractmethod
    def round(self, now_ms: int) -> list[Decision]:
        """Decide on all that waits."""

    # -- events ----------------------------------------------------------------------------------------------------
    def submit(self, request: PolyReq, now_ms: int) -> None:
        """Raises: Unhostable. PlacementInvalid: a job of that name is there."""
        if request.job in self.jobs:
            raise PlacementInvalid(f"job {request.job} is there")
        check_hostable(self.resources, request)
        self.jobs[request.job] = PendingJob(request, self._numbers, now_ms)
        self._numbers += 1

    def ended(self, group_id: GroupId, node: int) -> None:
        """A task ended by itself. A job whose tasks have all ended is gone. Raises: PlacementInvalid: none ran."""
        job, group = self._known(group_id)
        self._stop(group, node)
        job.ended[group_id] = job.ended.get(group_id, 0) + 1
        job.holding_since_ms = None  # it runs already
        if job.is_done:
            self._forget(job)

    def cancel(self, name: str) -> list[Decision]:
        """The job and its tasks end. Raises: PlacementInvalid: no such job."""
        job = self.jobs.get(name)
        if job is None:
            raise PlacementInvalid(f"no job {name}")
        decisions: list[Decision] = list(self._stop_all(job.request.groups, _CANCELLED))
        self._forget(job)
        return decisions

    def lose(self, node: int, now_ms: int) -> list[Decision]:
        """The node is gone; its tasks end and wait again. Their flavors have `preempt_ms` from now to find others."""
        self.resources.lose(node)
        self.changed(node)
        reason = Reason(Why.NODE_LOST, f"{self._name(node)} was lost")
        decisions: list[Decision] = []
        for group_id, tasks in sorted(self.resources.running(node).items()):
            job, group = self._known(group_id)
            for _ in range(tasks):
                self._stop(group, node)
            job.started[group_id] -= tasks
            if group.composite in job.decided:
                job.decided[group.composite] = replace(job.decided[group.composite], since_ms=now_ms)
            decisions.append(Stopped(group_id, node, tasks, reason))
        return decisions

    def restore(self, node: int) -> None:
        """The node takes tasks again."""
        self.resources.restore(node)
        self.changed(node)

    def earlier(self) -> Mapping[str, Earlier]:
        """What later requests may be tied to."""
        return {name: Earlier(each.request, each.active) for name, each in self.jobs.items()}

    # -- for policies ----------------------------------------------------------------------------------------------
    def _start(self, job: PendingJob, group: TaskGroup, node: int) -> None:
        self.resources.start(group, node)
        self.changed(node, group, 1)
        job.started[group.id] = job.started.get(group.id, 0) + 1
        job.holding_since_ms = None

    def _no_room(self, group: TaskGroup) -> Reason:
        """Why a group waits that fits nowhere now."""
        text = scarcity(self.resources, group) if self.is_counting_lacks else "no node has room"
        return Reason(Why.NO_ROOM, text)

    def _stop_all(self, groups: Sequence[TaskGroup], reason: Reason) -> Iterator[Stopped]:
        for group in groups:
            for node, tasks in sorted(self.resources.nodes_of(group.id).items()):
                for _ in range(tasks):
                    self._stop(group, node)
                yield Stopped(group.id, node, tasks, reason)

    def _stop(self, group: TaskGroup, node: int) -> None:
        self.resources.stop(group, node)
        self.changed(node, group, -1)

    def _forget(self, job: PendingJob) -> None:
        del self.jobs[job.request.job]
        self.forgotten(job)

    def _known(self, group_id: GroupId) -> tuple[PendingJob, TaskGroup]:
        job = self.jobs.get(group_id[0])
        group = job.request.by_id.get(group_id) if job is not None else None
        if job is None or group is None:
            raise PlacementInvalid(f"no task group {group_id}")
        return job, group

    def _name(self, node: int) -> str:
        return self.resources.topology.names[node]
