"""A controller's own rules for jobs behind its socket, and the book of a job manager that uses it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from offpath.bindings.runtime import CONTROLLER_SOCKET
from offpath.bindings.wire import control, ina_admin
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.controller.jobs import Job, JobRefused, Jobs
from offpath.dpu_daemon.controller.store import Store
from offpath.dpu_daemon.listening.places import Places
from offpath.dpu_daemon.manager.inc.tree_jobs import TreeJobs
from offpath.dpu_daemon.operation.admin_socket import AdminHandlers, AdminSocket
from offpath.sched.ina.protocol.records import RankState
from offpath.sched.inc.live.records import Command, Request, Task
from offpath.sched.placement.baselines import FirstN
from offpath.sched.topology.graph import Topology

from ...sched.inc.tree_world import TreeWorld


class Controller:
    """Admits jobs as a controller does; the test sets which switches it reaches, and which places jobs hold."""

    def __init__(self, topology: Topology) -> None:
        self.jobs = Jobs(topology, FirstN(), Store("", lambda term, proof: True), 4)
        self.switches = dict.fromkeys(topology.names[topology.hosts :], True)
        self.topology = topology
        self.holds: list[tuple[str, str]] = []
        self.submissions = 0
        self.has_submission, self.gate = asyncio.Event(), asyncio.Event()
        """Submissions wait for the gate."""
        self.gate.set()
        self.is_cut = False
        """A submission is carried out, and its reply is lost: another one comes."""
        self.next = ""
        """After each page of jobs."""

    async def answer(self, request: ina_admin.Request, uid: int) -> ina_admin.Reply:
        try:
            match request:
                case ina_admin.StatusRequest():
                    return ina_admin.ControllerStatus(
                        term=1, pid=1, uptime_ms=0, mode="shared", capacity=1, agents=[], silent=[], quarantined={},
                        memory="", switches=self.switches, jobs=0, holds=0, migrations=0, downtime_ms=[], counters={},
                    )  # fmt: skip
                case ina_admin.JobsRequest():
                    lines = [self.line(each) for each in self.jobs.known()]
                    return ina_admin.InaJobs(jobs=lines, next=self.next)
                case ina_admin.SubmitRequest():
                    self.submissions += 1
                    self.has_submission.set()
                    await self.gate.wait()
                    job = self.jobs.submit(request.job, 0, request.on, request.ranks_per_host, 0, request.switches)
                    if self.is_cut:
                        return ina_admin.InaJobs(jobs=[], next="")
                    return ina_admin.InaJob(job=self.line(job), ranks=[], reasons=[])
                case ina_admin.CancelRequest():
                    return ina_admin.InaJob(job=self.line(self.jobs.cancel(request.job)), ranks=[], reasons=[])
                case ina_admin.HoldsRequest():
                    lines_ = [
                        ina_admin.HoldLine(switch=switch, job=job, incarnation=1, stamp=1, slot="", since_ms=0.0,
                                           is_allowed=True, why="")
                        for job, switch in self.holds
                    ]  # fmt: skip
                    after = (request.after + 1) % (len(lines_) or 1)
                    return ina_admin.Holds(holds=lines_[request.after :][:1], next=after)
        except JobRefused as refused:
            return Fault(code=refused.code, detail=refused.detail)
        return Fault(code="unanswerable", detail="")

    def report(self, job: str, hosts: Sequence[str], incarnation: int = 7) -> None:
        """A rank on each host runs."""
        for rank, host in enumerate(hosts):
            self.jobs.seen(host, [RankState(job, incarnation, rank, len(hosts))], hosts, 0)

    def line(self, job: Job) -> ina_admin.InaJobLine:
        return ina_admin.InaJobLine(
            job=job.name, state=job.state, hosts=list(job.hosts), ranks_per_host=job.ranks_per_host, ranks=0,
            incarnation=0, stamp=0, tree="", root="", age_ms=0.0,
            environment={"OFFPATH_INA_JOB": job.name, "OFFPATH_INA_DIRECTORY": "/ina"},
            switches=None if job.switches is None else list(job.switches),
        )  # fmt: skip


class Rig:
    """A controller behind its socket, and the book of a job manager."""

    def __init__(self, folder: Path, topology: Topology) -> None:
        self.world = TreeWorld(topology)
        self.world.hire.fault = "no query yet"
        self.world.is_confirming = False
        self.controller = Controller(self.world.topology)
        handlers = AdminHandlers(
            lambda body: control.decode(ina_admin.TO_CONTROLLER_ADMIN, body), self.controller.answer, tuple
        )
        self.folder = folder
        self.socket = AdminSocket(handlers, str(folder / CONTROLLER_SOCKET), places=Places())
        self.begin()

    def begin(self) -> None:
        """A job manager that has just started."""
        self.trees = TreeJobs(
            str(self.folder), self.world.book, self.world.hire, asyncio.Lock(), self.carry,
            lambda: self.world.now_ms, Counter(),
        )  # fmt: skip

    async def carry(self, commands: Iterable[Command]) -> None:
        self.world.carry(commands)

    async def running(self, among: tuple[str, ...] = ()) -> Request:
        """A request whose tree the controller has."""
        await self.trees.step()
        request = self.world.submit(among=among)
        self.world.round()
        await self.trees.step()
        return request

    def rank(self, request: Request) -> Task:
        return next(each for each in request.tasks.values() if not each.is_inc)


@asynccontextmanager
async def rig_on(folder: Path, topology: Topology) -> AsyncIterator[Rig]:
    made = Rig(folder, topology)
    await made.socket.start()
    yield made
    await made.socket.close()
