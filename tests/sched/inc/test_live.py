"""The book of live requests: gangs, quotas, refusals, and its promises under any sequence of events and restarts."""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from offpath.sched.gpu.exact import SolverMissing
from offpath.sched.inc import errors
from offpath.sched.inc.live.book import MOST_FAILURES, Book
from offpath.sched.inc.live.live_hire import LiveHire
from offpath.sched.inc.live.ports import Ports
from offpath.sched.inc.live.quotas import Quota
from offpath.sched.inc.live.records import (
    Command,
    Drop,
    Program,
    Request,
    RequestState,
    Save,
    Service,
    Spec,
    StartTask,
    StopTask,
    TaskState,
)
from offpath.sched.inc.request import Composite, CompReq, Connection, Servers, Tie
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.store import CompStore
from offpath.sched.topology.declared import Declared, connected

from ...sizes import SIZE

P4 = frozenset({"p4-14"})
LEAVES = 4
RUN = Program(("sleep", "60"))


def resources() -> Resources:
    """Four leaf switches with two servers each, one spine that has no P4."""
    leaves = [Declared(f"l{n}", (), (f"n{2 * n}", f"n{2 * n + 1}")) for n in range(LEAVES)]
    topology = connected([*leaves, Declared("spine", [each.name for each in leaves], ())])
    spec = {"spine": SwitchSpec(frozenset({"sharp"}))}
    switches = [spec.get(name, SwitchSpec(P4)) for name in topology.names[topology.hosts :]]
    return Resources(topology, [ServerSpec((4_000, 8_192))] * topology.hosts, switches)


def book(numbers: Iterable[int] | None = None, tenants: dict[str, Quota] | None = None) -> Book:
    ids = iter(numbers or itertools.count())
    ports = Ports({}, 20_000, 20_999)
    return Book(LiveHire(resources()), CompStore(), tenants, ports, lambda name: f"{name}.{next(ids)}")


def spec(name: str, *composites: Composite, gang_ms: int = -1, tenant: str = "a", **more: object) -> Spec:
    request = CompReq(name, composites or (composite("c"),), **more)  # type: ignore[arg-type]
    programs = {each.name: RUN for each in request.composites}
    return Spec(request, tenant, programs, repr(request), gang_ms >= 0, max(0, gang_ms))


def composite(name: str, template: str = "server", tasks: int = 2, cpu: int = 1_000, **more: object) -> Composite:
    return Composite(name, template, Servers(tasks, cpu, 512), **more)  # type: ignore[arg-type]


class Cluster:
    """Engine and switches that do what the commands say; ``saved`` is the disk."""

    def __init__(self, made: Book) -> None:
        self.book = made
        self.now_ms = 0
        self.saved: dict[str, Request] = {}
        self.running: dict[str, str] = {}
        """Identity: request."""
        self.ever: list[str] = []

    def carry(self, commands: Iterable[Command]) -> None:
        for each in list(commands):
            match each:
                case Save(name):
                    self.saved[name] = copy.deepcopy(self.book.requests[name])
                case Drop(name):
                    self.saved.pop(name, None)
                case StartTask(name, identity):
                    kept = self.saved[name]
                    assert identity in kept.tasks, "started before it was saved"
                    if kept.spec.is_gang and not any(each in self.ever for each in kept.tasks):
                        assert self.book.scheduler.is_complete(name), "a gang began before all had places"
                    if identity not in self.running:
                        assert identity not in self.ever, "an identity was used twice"
                        self.ever.append(identity)
                        self.running[identity] = name
                    self.carry(self.book.started(name, identity))
                case StopTask(name, identity, _, _):
                    self.running.pop(identity, None)
                    self.carry(self.book.ended(name, identity, True, "stopped", self.now_ms))

    def round(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ms += 500
            self.carry(self.book.take_back(self.now_ms))
            self.carry(self.book.round(self.now_ms))

    def round_without_solver(self) -> None:
        """As where OR-Tools is not installed. A round that has nothing to decide needs none."""
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SolverMissing):
            patch.setitem(sys.modules, "ortools.graph.python", None)
            self.round()

    def restart(self, made: Book) -> None:
        """The process is killed; another one reads the disk, then carries out what is open."""
        self.book = made
        kept = sorted(copy.deepcopy(list(self.saved.values())), key=lambda each: each.number)
        made.remember(kept, self.now_ms)
        self.carry(made.due())


def test_tasks_start_after_they_were_saved_and_a_cancelled_request_leaves_nothing() -> None:
    here = Cluster(book())
    idle = here.book.scheduler.resources.state()
    here.carry(here.book.submit(spec("r", composite("c", "cache", 3)), 0))
    here.round(4)
    request = here.book.get("r")
    assert request.state is RequestState.RUNNING
    assert request.chosen == {"c": request.tasks[here.ever[0]].implementation}
    assert {each.state for each in request.tasks.values()} == {TaskState.RUNNING}
    here.carry(here.book.cancel("r"))
    assert (here.running, request.tasks, request.state) == ({}, {}, RequestState.CANCELLED)
    assert here.book.scheduler.resources.state() == idle
    assert here.book.cancel("r") == []


def test_the_same_request_twice_is_one_and_another_of_its_name_is_refused() -> None:
    made = book()
    assert made.submit(spec("r"), 0) == [Save("r")]
    assert made.submit(spec("r"), 5) == []
    with pytest.raises(errors.RequestExists):
        made.submit(spec("r", composite("c", tasks=3)), 5)


def test_a_gang_starts_nothing_until_all_have_places_and_ends_at_its_deadline() -> None:
    here = Cluster(book())
    here.carry(here.book.submit(spec("filler", composite("c", tasks=31)), 0))
    here.round(8)
    here.carry(here.book.submit(spec("gang", composite("c", tasks=3), gang_ms=2_000), here.now_ms))
    here.round(3)
    gang = here.book.get("gang")
    assert len(gang.tasks) == 1, "one place was left"
    assert not any(name == "gang" for name in here.running.values())
    here.round(2)
    assert (gang.state, gang.tasks) == (RequestState.EXPIRED, {})
    assert "lack cpu_milli" in gang.history[-1]
    here.carry(here.book.cancel("filler"))
    here.carry(here.book.submit(spec("gang", composite("c", tasks=3), gang_ms=2_000), here.now_ms))
    here.round(3)
    assert len(here.running) == 3


def test_what_ends_in_a_round_is_on_the_disk_where_the_solver_is_missing() -> None:
    here = Cluster(book())
    here.carry(here.book.submit(spec("filler", composite("c", tasks=31)), 0))
    here.round(8)
    here.carry(here.book.submit(spec("gang", composite("c", tasks=3), gang_ms=2_000), here.now_ms))
    here.round(3)
    assert [each.state for each in here.saved["gang"].tasks.values()] == [TaskState.PLACED]
    here.round_without_solver()
    here.round_without_solver()
    assert here.saved["gang"].state is RequestState.EXPIRED
    judge(here)
    here.restart(book(itertools.count(100)))
    assert here.book.get("gang").state is RequestState.EXPIRED


def test_a_flavor_that_is_taken_back_is_on_the_disk_where_the_solver_is_missing() -> None:
    here = Cluster(book())
    here.carry(here.book.submit(spec("r", composite("c", "cache", 2, among=("netcache", "server"))), 0))
    here.round(4)
    gone = sorted({each.node for each in here.book.get("r").tasks.values()})[0]
    for node in (gone, *({f"l{n}" for n in range(LEAVES)} - {each.node for each in here.book.get("r").tasks.values()})):
        here.carry(here.book.node_lost(node, here.now_ms))
    for _ in range(6):
        here.round_without_solver()
        judge(here)
    request = here.saved["r"]
    assert (request.chosen, request.tasks, request.state) == ({}, {}, RequestState.WAITING)
    assert any("netcache is taken back" in line for line in request.history)
    here.round(8)
    assert here.book.get("r").chosen == {"c": "server"}


def test_a_lost_switch_takes_the_tasks_to_servers_when_no_other_has_room() -> None:
    here = Cluster(book())
    cache = composite("c", "cache", 2, among=("netcache", "server"))
    here.carry(here.book.submit(spec("r", cache), 0))
    here.round(4)
    request = here.book.get("r")
    assert request.chosen == {"c": "netcache"}
    first = {each.node for each in request.tasks.values()}
    assert len(first) == 3
    (rest,) = {f"l{n}" for n in range(LEAVES)} - first
    here.carry(here.book.node_lost(sorted(first)[0], here.now_ms))
    here.round(2)
    assert {each.node for each in request.tasks.values()} == first - {sorted(first)[0]} | {rest}
    here.carry(here.book.node_lost(rest, here.now_ms))
    here.round(8)
    assert request.chosen == {"c": "server"}
    assert {each.is_inc for each in request.tasks.values()} == {False}
    assert any("netcache is taken back" in line for line in request.history)
    here.book.node_back(rest)
    here.book.check()


def test_a_task_that_replaces_another_gets_its_slot() -> None:
    here = Cluster(book())
    here.carry(here.book.submit(spec("r", composite("c", "cache", 2, among=("netcache",))), 0))
    here.round(4)
    request = here.book.get("r")
    gone = next(each for each in request.tasks.values() if each.slot == 1)
    here.carry(here.book.lost("r", gone.identity, "killed", here.now_ms))
    here.round(2)
    assert sorted(each.slot for each in request.tasks.values()) == [0, 1, 2]


def test_tasks_that_fail_again_and_again_end_the_request() -> None:
    here = Cluster(book())
    here.carry(here.book.submit(spec("r", composite("c", tasks=1)), 0))
    for _ in range(MOST_FAILURES + 1):
        here.round()
        (identity,) = here.running
        here.running.clear()
        here.carry(here.book.ended("r", identity, False, "exit code 3", here.now_ms))
    assert here.book.get("r").state is RequestState.FAILED
    assert "exit code 3" in here.book.get("r").history[-1]


def test_a_switch_that_refuses_a_task_because_another_has_not_left_it_yet_does_not_end_the_request() -> None:
    here = Cluster(book())
    here.carry(here.book.submit(spec("one", composite("c", "cache", 2, among=("netcache",))), 0))
    here.round(2)
    leaving = {each.node for each in here.book.get("one").tasks.values()}
    stops = here.book.cancel("one")
    here.carry(each for each in stops if isinstance(each, Save))
    here.carry(here.book.submit(spec("r", composite("c", "cache", 2, among=("netcache",))), 0))
    here.round(2)
    request = here.book.get("r")

    def refuse() -> None:
        task = next(each for each in request.tasks.values() if each.node in leaving)
        here.running.pop(task.identity)
        here.carry(here.book.refused("r", task.identity, "8 lack sram_kib", here.now_ms))
        here.round()

    for _ in range(MOST_FAILURES + 1):
        refuse()
    assert request.state is RequestState.RUNNING
    here.carry(stops)
    for _ in range(MOST_FAILURES + 1):
        refuse()
    assert request.state is RequestState.FAILED


def test_a_request_whose_tasks_all_ended_has_succeeded() -> None:
    here = Cluster(book())
    here.carry(here.book.submit(spec("r", composite("c", tasks=2)), 0))
    here.round(2)
    for identity in list(here.running):
        here.carry(here.book.ended("r", identity, True, "exit code 0", here.now_ms))
    assert here.book.get("r").state is RequestState.SUCCEEDED
    here.book.check()


def test_quotas_count_the_most_that_any_flavor_could_take() -> None:
    made = book(tenants={"a": Quota((8_000, 1 << 20, 1_000, 1_000, 1 << 20), 2), "b": Quota(requests=1)})
    made.submit(spec("r", composite("c", "cache", 3, cpu=2_000)), 0)
    with pytest.raises(errors.QuotaExceeded, match="cpu_milli"):
        made.submit(spec("s", composite("c", tasks=3)), 0)
    made.submit(spec("s", composite("c", tasks=2)), 0)
    with pytest.raises(errors.QuotaExceeded, match="2 open requests"):
        made.submit(spec("t", composite("c", tasks=1)), 0)
    made.submit(spec("u", composite("c", tasks=3), tenant="b"), 0)
    with pytest.raises(errors.TenantUnknown):
        made.submit(spec("v", tenant="nobody"), 0)


HOSTILE = [
    (errors.UnknownTemplate, spec("r", composite("c", "no-such"))),
    (errors.UnknownTemplate, spec("r", composite("c", "cache", among=("no-such",)))),
    (errors.UnknownTemplate, spec("r", ties=(Tie("c", "gone", "c"),))),
    (errors.RequestCyclic, spec("r", composite("c"), composite("d"),
                                connections=(Connection("c", "d"), Connection("d", "c")))),
    (errors.FlavorsContradict, spec("r", composite("c", "cache", among=("netcache",), without=("netcache",)))),
    (errors.FlavorsContradict, spec("r", composite("c", "server", without=("server",)))),
    (errors.DemandInvalid, spec("r", composite("c", cpu=-1))),
    (errors.DemandInvalid, spec("r", composite("c", cpu=1 << 62))),
    (errors.DemandInvalid, spec("r", composite("c", tasks=0))),
    (errors.DemandInvalid, spec("r", composite("c", "cache", demand={"netcache": {"sram_kib": -5}}))),
    (errors.RequestTooLarge, spec("r", composite("c", tasks=1_000_000))),
    (errors.RequestTooLarge, spec("r", composite("c", tasks=5_000, cpu=1))),
    (errors.Unhostable, spec("r", composite("c", cpu=5_000))),
    (errors.Unhostable, spec("r", composite("c", "aggregate", 900, among=("daiet",)))),
    (errors.ProgramMissing, replace(spec("r"), programs={})),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "wrong"), HOSTILE, ids=lambda each: getattr(each, "__name__", ""))
def test_a_bad_request_is_refused_with_its_type_and_delays_nobody(kind: type[Exception], wrong: Spec) -> None:
    here = Cluster(book())
    with pytest.raises(kind):
        here.book.submit(wrong, 0)
    assert here.book.requests == {}
    here.carry(here.book.submit(spec("good"), 0))
    here.round(2)
    assert here.book.get("good").state is RequestState.RUNNING


def test_built_in_programs_get_ports_that_no_other_task_has() -> None:
    here = Cluster(book())
    wanted = spec("r", composite("c", tasks=6, cpu=100))
    here.carry(here.book.submit(replace(wanted, programs={"c": Program(service=Service.STORE)}), 0))
    here.round(3)
    addresses = [each.address for each in here.book.get("r").tasks.values()]
    assert len(set(addresses)) == len(addresses) == 6
    assert all(each.startswith("127.0.0.1:20") for each in addresses)


# -- any sequence of events -----------------------------------------------------------------------------------------


def drive(draw: Random, steps: int = 40) -> Cluster:
    numbers = itertools.count()
    here = Cluster(book(numbers))
    names = [f"r{n}" for n in range(5)]
    nodes = here.book.scheduler.resources.topology.names
    for _ in range(steps):
        match draw.randrange(10):
            case 0 | 1:
                wanted = spec(
                    draw.choice(names),
                    composite("c", draw.choice(("server", "cache", "coordinator", "aggregate")), draw.randrange(1, 5)),
                    composite("d", draw.choice(("server", "cache")), draw.randrange(1, 4)),
                    connections=(Connection("c", "d"),), gang_ms=draw.choice((-1, 0, 3_000)),
                )  # fmt: skip
                with contextlib.suppress(errors.RequestExists):
                    here.carry(here.book.submit(wanted, here.now_ms))
            case 2 | 3 | 4:
                here.round(draw.randrange(1, 4))
            case 5:
                if here.book.requests:
                    here.carry(here.book.cancel(draw.choice(sorted(here.book.requests))))
            case 6:
                if here.running:
                    identity = draw.choice(sorted(here.running))
                    name = here.running.pop(identity)
                    how = draw.randrange(3)
                    if how == 0:
                        here.carry(here.book.lost(name, identity, "killed", here.now_ms))
                    elif how == 1:
                        here.carry(here.book.refused(name, identity, "full", here.now_ms))
                    else:
                        here.carry(here.book.ended(name, identity, draw.random() < 0.5, "end", here.now_ms))
            case 7:
                node = draw.choice(nodes)
                here.carry(here.book.node_lost(node, here.now_ms))
                if draw.random() < 0.7:
                    here.book.node_back(node)
            case 8:
                for _ in range(draw.randrange(1, 8)):
                    here.round_without_solver()
            case 9:
                before = {name: set(each.tasks) for name, each in here.book.requests.items()}
                here.restart(book(numbers))
                after = {name: set(each.tasks) for name, each in here.book.requests.items()}
                assert after == before, "a restart lost or doubled a task"
        judge(here)
    return here


def drive_many(count: int) -> None:
    for seed in range(count):
        drive(Random(seed))


def judge(here: Cluster) -> None:
    here.book.check()
    known = {identity for each in here.book.requests.values() for identity in each.tasks}
    assert set(here.running) <= known, "a task runs that nobody knows"
    for name, request in here.book.requests.items():
        kept = here.saved[name]
        assert (kept.state, kept.tasks) == (request.state, request.tasks), "the disk is behind"


@pytest.mark.parametrize("seed", range({"full": 300}.get(SIZE, 14)))
def test_under_any_events_and_kills_nothing_is_lost_doubled_or_forgotten(seed: int) -> None:
    here = drive(Random(seed))
    for name in list(here.book.requests):
        here.carry(here.book.cancel(name))
    assert here.running == {}
    nodes = here.book.scheduler.resources.topology.nodes
    assert all(not any(here.book.scheduler.resources.used(node)) for node in range(nodes))


@pytest.mark.parametrize("bug", ["save", "give_back", "slot", "expire", "take_back"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "save":
        monkeypatch.setattr(Book, "_apply", lambda self, decisions, old=Book._apply: [
            each for each in old(self, decisions) if not isinstance(each, Save)])  # fmt: skip
    elif bug == "give_back":
        monkeypatch.setattr(LiveHire, "give_back", lambda *_: None)
    elif bug == "expire":
        monkeypatch.setattr(Book, "take_back", lambda *_: [])
        monkeypatch.setattr(Book, "round", lambda self, now_ms, old=Book.round: [
            *self._expire(now_ms), *old(self, now_ms)])  # fmt: skip
    elif bug == "take_back":
        monkeypatch.setattr(Book, "take_back", lambda self, now_ms: self._expire(now_ms))
    else:
        monkeypatch.setattr(Request, "note", lambda self, line: [setattr(each, "slot", 0) for each in
                                                                 self.tasks.values()])  # fmt: skip
    with pytest.raises((AssertionError, KeyError)):
        drive_many(40)
