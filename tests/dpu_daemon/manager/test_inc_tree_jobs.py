"""The job manager's side of SHArP's jobs, against a controller's own rules for jobs behind its socket."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from offpath.bindings.runtime import CONTROLLER_SOCKET
from offpath.bindings.wire import control, ina_admin
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.controller.jobs import JobRefused, Jobs
from offpath.dpu_daemon.controller.store import Store
from offpath.dpu_daemon.listening.places import Places
from offpath.dpu_daemon.manager.inc.links import LinkAway
from offpath.dpu_daemon.manager.inc.tree_jobs import DOWN_LOOKS, MISSES, TreeJobs
from offpath.dpu_daemon.operation.admin_socket import AdminHandlers, AdminSocket
from offpath.sched.inc.live.records import Command, Request, RequestState, Task
from offpath.sched.placement.baselines import FirstN
from offpath.sched.topology.fattree import leaf_spine
from offpath.sched.topology.graph import Topology

from ...sched.inc.test_tree_hire import TreeWorld, where


class Controller:
    """Admits jobs as a controller does; the test says which switches it reaches, and which places jobs hold."""

    def __init__(self, topology: Topology) -> None:
        self.jobs = Jobs(topology, FirstN(), Store("", lambda term, proof: True), 4)
        self.switches = dict.fromkeys(topology.names[topology.hosts :], True)
        self.holds: list[tuple[str, str]] = []
        self.submissions = 0

    async def answer(self, request: ina_admin.Request, uid: int) -> ina_admin.Reply:
        try:
            match request:
                case ina_admin.StatusRequest():
                    return ina_admin.ControllerStatus(
                        term=1, pid=1, uptime_ms=0, mode="shared", capacity=1, agents=[], silent=[], quarantined={},
                        memory="", switches=self.switches, jobs=0, holds=0, migrations=0, downtime_ms=[], counters={},
                    )  # fmt: skip
                case ina_admin.JobsRequest():
                    lines = [self.line(each.name) for each in self.jobs.known()]
                    return ina_admin.InaJobs(jobs=lines, next="")
                case ina_admin.SubmitRequest():
                    self.submissions += 1
                    self.jobs.submit(request.job, 0, request.on, request.ranks_per_host, 0, request.switches)
                    return ina_admin.InaJob(job=self.line(request.job), ranks=[], reasons=[])
                case ina_admin.CancelRequest():
                    line = self.line(request.job)
                    self.jobs.cancel(request.job)
                    return ina_admin.InaJob(job=line, ranks=[], reasons=[])
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

    def line(self, name: str) -> ina_admin.InaJobLine:
        job = self.jobs.get(name)
        return ina_admin.InaJobLine(
            job=name, state=job.state, hosts=list(job.hosts), ranks_per_host=job.ranks_per_host, ranks=0,
            incarnation=0, stamp=0, tree="", root="", age_ms=0.0,
            environment={"OFFPATH_INA_JOB": name, "OFFPATH_INA_DIRECTORY": "/ina"},
            switches=None if job.switches is None else list(job.switches),
        )  # fmt: skip


class Rig:
    """A controller behind its socket, and the book of a job manager."""

    def __init__(self, folder: Path) -> None:
        self.world = TreeWorld(leaf_spine(3, 2, 2))
        self.world.hire.fault = "not asked"
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

    async def running(self, **more: object) -> Request:
        """A request whose tree the controller has."""
        await self.trees.step()
        request = self.world.submit(**more)  # type: ignore[arg-type]
        self.world.round()
        await self.trees.step()
        return request

    def rank(self, request: Request) -> Task:
        return next(each for each in request.tasks.values() if not each.is_inc)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    await made.socket.start()
    yield made
    await made.socket.close()


async def test_a_rank_starts_when_the_controller_has_its_job_on_the_booked_switches(rig: Rig) -> None:
    await rig.trees.step()
    assert (rig.world.hire.fault, rig.world.hire.usable) == ("", rig.world.usable)
    request = rig.world.submit()
    rig.world.round()
    with pytest.raises(LinkAway, match="not at the INA controller yet"):
        await rig.trees.environment(request, rig.rank(request))
    await rig.trees.step()
    (job,) = rig.controller.jobs.known()
    assert job.name == request.trees["sum"].name
    assert sorted(job.hosts) == where(request, "ranks.server")
    assert sorted(job.switches or ()) == where(request, "sum.sharp")
    expected = {"OFFPATH_INA_JOB": job.name, "OFFPATH_INA_DIRECTORY": "/ina"}
    assert (await rig.trees.environment(request, rig.rank(request))) == expected
    assert rig.world.saved["r"].trees["sum"].environment == expected
    await rig.trees.step()
    assert rig.controller.submissions == 1


async def test_another_job_manager_finds_the_job_and_a_controller_that_forgot_it_gets_it_again(rig: Rig) -> None:
    request = await rig.running()
    rig.world.again()
    rig.begin()
    await rig.trees.step()
    rig.world.round()
    await rig.trees.step()
    assert rig.controller.submissions == 1
    name = request.trees["sum"].name
    rig.controller.jobs.cancel(name)
    await rig.trees.step()
    assert rig.controller.jobs.get(name).switches == tuple(where(rig.world.book.get("r"), "sum.sharp"))


async def test_a_switch_is_released_when_neither_the_job_nor_the_ledger_has_it(rig: Rig) -> None:
    request = await rig.running(among=("sharp",))
    name, task = request.trees["sum"].name, next(each for each in request.tasks.values() if each.is_inc)
    with pytest.raises(LinkAway, match="may still use"):
        await rig.trees.before_stop(request, task)
    rig.controller.holds = [("other", task.node), (name, "other"), (name, task.node)]
    rig.world.carry(rig.world.book.cancel("r"))
    await rig.trees.step()
    assert not rig.controller.jobs.knows(name), "it never ran"
    with pytest.raises(LinkAway, match="still has a place"):
        await rig.trees.before_stop(request, task)
    rig.controller.holds.pop()
    await rig.trees.before_stop(request, task)
    await rig.trees.step()
    assert request.trees == {}


async def test_a_lost_switch_leaves_the_job_without_switches_until_another_tree_is_booked(rig: Rig) -> None:
    request = await rig.running(among=("sharp",))
    topology = rig.world.topology
    leaf = next(each for each in where(request, "sum.sharp") if topology.level[topology.names.index(each)] == 1)
    hosts = rig.controller.jobs.get(request.trees["sum"].name).hosts
    rig.world.carry(rig.world.book.node_lost(leaf, 0))
    rig.world.round()
    await rig.trees.step()
    job = rig.controller.jobs.get(request.trees["sum"].name)
    assert (job.switches, job.hosts) == ((), hosts)
    rig.world.book.node_back(leaf)
    rig.world.round()
    await rig.trees.step()
    assert leaf in (job.switches or ())


async def test_a_tree_that_the_controller_refuses_falls_back_and_leaves_nothing(rig: Rig) -> None:
    for number in range(4):  # its hosts are full with other jobs
        rig.controller.jobs.submit(f"full{number}", 0, rig.world.topology.names[:6], 1, 0)
    request = await rig.running(among=("sharp", "server"))
    rig.world.round(6)
    assert request.chosen["sum"] == "server"
    assert "no sharp: the INA controller refuses it: no_room" in request.reasons["sum"]
    assert (await rig.trees.environment(request, rig.rank(request))) == {}
    rig.world.carry(rig.world.book.cancel("r"))
    await rig.trees.step()
    assert request.trees == {}


async def test_a_controller_that_is_away_makes_no_tree_and_keeps_no_rank_waiting(rig: Rig) -> None:
    request = await rig.running(among=("sharp", "server"))
    await rig.socket.close()
    for _ in range(MISSES - 1):
        await rig.trees.step()
        assert rig.world.hire.fault == ""
    await rig.trees.step()
    assert "INA controller at" in rig.world.hire.fault
    rig.world.round()
    assert request.chosen["sum"] == "sharp", "the tree stays"
    assert await rig.trees.environment(request, rig.rank(request))
    other = rig.world.submit("other", 2, ("sharp", "server"))
    rig.world.round(6)
    assert (other.state, "sharp" in other.chosen.values()) == (RequestState.RUNNING, False)


async def test_a_tree_that_was_never_confirmed_is_given_back_when_the_controller_is_away(rig: Rig) -> None:
    await rig.trees.step()
    request = rig.world.submit(among=("sharp", "server"))
    rig.world.round()
    await rig.socket.close()
    for _ in range(MISSES):
        await rig.trees.step()
    rig.world.round(6)
    assert (request.state, request.chosen["sum"]) == (RequestState.RUNNING, "server")


async def test_a_switch_in_use_is_down_only_if_the_controller_says_so_for_a_while(rig: Rig) -> None:
    request = await rig.running()
    down = where(request, "sum.sharp")[0]
    rig.controller.switches[down] = False
    for _ in range(DOWN_LOOKS - 1):
        await rig.trees.step()
    rig.world.round()
    assert down in where(request, "sum.sharp")
    await rig.trees.step()
    rig.world.round()
    assert down not in where(request, "sum.sharp")
