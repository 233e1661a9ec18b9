"""What `offpath demo venn` does: the same three jobs twice, with random matching and with Venn, on the same nodes.

Each job is a run of a real Flower: a ServerApp with federated averaging, real digits, another model. Nodes are of four
classes. How long a node works is EMULATED; it computes for a part of that time. So is the day in which a device works
once: it has `PERIOD_S` seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from offpath.bindings.errors import EngineUnavailable
from offpath.cli.demo.samples import DATA
from offpath.cli.local.collab_controller import CollabController
from offpath.cli.local.flower_cluster import FlowerCluster
from offpath.host_helper.collab.attributes import kept
from offpath.host_helper.collab.borrower import Borrower, JobWish
from offpath.host_helper.collab.controller import LocalController
from offpath.host_helper.collab.settings import read

APP: Final = Path(__file__).parent / "app"
CLASSES: Final = {
    "general": {"cpu_f": 6, "fp16": 500}, "compute": {"cpu_f": 8, "fp16": 500}, "memory": {"cpu_f": 6, "fp16": 1_200},
    "high": {"cpu_f": 8, "fp16": 1_200},
}  # fmt: skip
"""Four classes of nodes as in figure 8a: the points of two benchmarks."""
NODES_OF_A_CLASS: Final = 3
POLICIES: Final = ("random", "venn")
PERIOD_S: Final = 30
"""A node works for one job in each, as a device does in a day (§5.1)."""
_BEFORE_S: Final = 6
_START_S: Final = 120.0
_ROUND_S: Final = 300.0
_LOOK_S: Final = 2.0


class JobPlan(NamedTuple):
    """``least``: what a node must have."""

    job: str
    model: str
    demand: int
    least: Mapping[str, int]


JOBS: Final = (
    JobPlan("keyboard", "softmax", 6, {}),
    JobPlan("speech", "hidden", 3, {"cpu_f": 7}),
    JobPlan("vision", "features", 3, {"cpu_f": 7, "fp16": 1_000}),
)
WARM_UP: Final = JobPlan("warm-up", "softmax", len(CLASSES) * NODES_OF_A_CLASS, {})


@dataclass(slots=True)
class JobObserved:
    """``accuracy``: on ``held`` digits that nobody trained on. ``jct_s``: of the ServerApp. ``served``: answers by
    node."""

    job: str
    accuracy: float
    held: int
    jct_s: float
    served: dict[str, int]


class Work(NamedTuple):
    """A node's work for a job, by the node's own clock."""

    node: int
    job: str
    began: float
    ended: float


@dataclass(slots=True)
class Observed:
    """Of one policy."""

    policy: str
    jobs: list[JobObserved] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    assigned: int = 0


def nodes() -> list[dict[str, int | str]]:
    """Each node's configuration: its class, its part of the digits."""
    count = len(CLASSES) * NODES_OF_A_CLASS
    kinds = [(name, numbers) for name, numbers in CLASSES.items() for _ in range(NODES_OF_A_CLASS)]
    return [
        {"kind": name, **numbers, "part": part, "parts": count} for part, (name, numbers) in enumerate(kinds)
    ]  # fmt: skip


def play(folder: Path, rounds: int, work_ms: int, seed: int, say: Callable[[str], None]) -> list[Observed]:
    """Raises: EngineMissing, EngineUnavailable, EngineAnswerInvalid, PeerGone."""
    place = folder / "controller"
    place.mkdir()
    controller = CollabController(place, {"name": POLICIES[0], "period_s": PERIOD_S, "lease_s": int(_ROUND_S)})
    settings = controller.settings(poll_s=0.5, attributes=str(folder / "attributes.json"), prefix="demo")
    flower = FlowerCluster(folder, nodes(), {"OFFPATH_COLLAB": str(settings)})
    try:
        say(f"a SuperLink and {len(CLASSES) * NODES_OF_A_CLASS} SuperNodes start")
        flower.open()
        say("a round on all nodes that is not measured: they report their attributes and load the app")
        _Phase(flower, controller, folder, "first", seed).run([WARM_UP], 1, 0)
        found = []
        for policy in POLICIES:
            say(f"{policy}: {len(JOBS)} jobs, {rounds} rounds each")
            found.append(_Phase(flower, controller, folder, policy, seed).run(JOBS, rounds, work_ms, _spend))
        return found
    finally:
        controller.close()
        flower.close()


class _Phase:
    """Jobs on a new controller. ``name``: of its files, and of the policy if it is one of `POLICIES`."""

    def __init__(
        self, flower: FlowerCluster, controller: CollabController, folder: Path, name: str, seed: int
    ) -> None:  # fmt: skip
        self._flower, self._controller, self._seed = flower, controller, seed
        self._name = name
        self._folder = folder / name
        self._folder.mkdir()
        (self._folder / "trace").mkdir()

    def run(
        self, jobs: Sequence[JobPlan], rounds: int, work_ms: int, before: Callable[[Path], int] = lambda settings: 0
    ) -> Observed:
        """The jobs begin together, when the processes of all have started and ``before`` was called with the settings'
        file; it returns how many leases it has used."""
        self._controller.forget()
        self._controller.start(self._name if self._name in POLICIES else "")
        results = {plan.job: self._folder / f"{plan.job}.json" for plan in jobs}
        with ThreadPoolExecutor(len(jobs)) as threads:
            numbers = list(threads.map(lambda plan: self._submit(plan, results[plan.job], rounds, work_ms), jobs))
        runs = dict(zip(results, numbers, strict=True))
        self._await(runs, {name: path.with_suffix(".ready") for name, path in results.items()}, _START_S)
        used = before(self._controller.folder / "settings.toml")
        (self._folder / "start").touch()
        self._await(runs, results, rounds * len(jobs) * _ROUND_S)
        found = Observed(self._name, [_job(name, path) for name, path in results.items()],
                         list(_work(self._folder / "trace")), self._controller.summary().assigned - used)  # fmt: skip
        self._controller.close()
        return found

    def _submit(self, plan: JobPlan, result: Path, rounds: int, work_ms: int) -> int:
        return self._flower.run(APP, {
            "job": plan.job, "model": plan.model, "rounds": rounds, "demand": plan.demand, "deadline-s": _ROUND_S,
            "least": " ".join(f"{name}={number}" for name, number in plan.least.items()), "data": str(DATA),
            "result": str(result), "seed": self._seed, "trace": str(self._folder / "trace"), "work-ms": work_ms,
            "start": str(self._folder / "start"),
        })  # fmt: skip

    def _await(self, runs: Mapping[str, int], files: Mapping[str, Path], within_s: float) -> None:
        """Raises: EngineUnavailable: a run failed, or the time is over."""
        ends = time.monotonic() + within_s
        while missing := [name for name, path in files.items() if not path.exists()]:
            for name in missing:
                state = self._flower.state(runs[name])
                if state.is_over and not files[name].exists():
                    raise EngineUnavailable(f"job {name}: {state.status}: {state.detail}"[:600])
            if time.monotonic() > ends:
                raise EngineUnavailable(f"jobs {', '.join(missing)}: no {self._name} result within {within_s:g} s")
            time.sleep(_LOOK_S)


def _spend(path: Path) -> int:
    """Near the end of a period every node works for another job for a moment, so that none is free before the next
    period begins: then all three jobs wait. Otherwise the one whose request comes first would choose alone."""
    settings = read(str(path))
    time.sleep((PERIOD_S - _BEFORE_S - time.time()) % PERIOD_S)
    with kept(settings.attributes) as table:
        nodes = {int(node): attributes for node, attributes in table.items()}
    borrower = Borrower(LocalController(settings), JobWish("other", len(nodes), _ROUND_S), settings.keys()[2],
                        settings.prefix, settings.poll_s)  # fmt: skip
    lent = borrower.borrow(lambda: nodes, settings.patience_s)
    borrower.report(dict.fromkeys(lent, True))
    borrower.close()
    return len(lent)


def _job(name: str, path: Path) -> JobObserved:
    found: dict[str, Any] = json.loads(path.read_text())
    return JobObserved(name, found["accuracy"], found["held"], found["ended"] - found["began"], found["served"])


def _work(trace: Path) -> Iterator[Work]:
    for path in sorted(trace.iterdir()):
        for line in path.read_text().splitlines():
            job, began, ended = line.split()
            yield Work(int(path.name), job, float(began), float(ended))


def overlaps(work: Sequence[Work]) -> list[tuple[Work, Work]]:
    """A node's work for two jobs at the same time."""
    found = []
    for node in {each.node for each in work}:
        mine = sorted((each for each in work if each.node == node), key=lambda each: each.began)
        found += [(one, other) for one, other in pairwise(mine) if other.began < one.ended]
    return found
