"""The parts of MINA's experiments: inputs, the named variants, and one cell of each kind, which runs in its own
process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import accumulate
from random import Random
from typing import Any, Final

from offpath.cli.demo import samples
from offpath.cli.files.traces import TraceError
from offpath.cli.mina.traces import arriving
from offpath.sched.ina.conflicts import NDR
from offpath.sched.ina.engine import RULES, Engine
from offpath.sched.ina.patterns import FINE_TICKS_PER_S, NS_PER_S, Network, Pattern, PatternError, parse, timed
from offpath.sched.ina.trees import Draws
from offpath.sched.ina.tuning import trusts
from offpath.sched.placement.registry import make
from offpath.sched.sim.ina.cluster import MIGRATION_NS, Job, Simulation, World
from offpath.sched.sim.ina.llvm import Minstd
from offpath.sched.sim.ina.merging import Merge
from offpath.sched.sim.ina.metrics import measure
from offpath.sched.sim.ina.planners import Code, Drawn, First, Mina, Planner
from offpath.sched.topology.fattree import fat_tree

MODELS: Final = ("bert-base", "bert-large", "opt-125m", "opt-350m", "opt-1.3b", "vit-base", "vit-large")
STEPS: Final = tuple(range(10, 101, 10))
TREES: Final[dict[str, Callable[[Draws, int], Planner]]] = {
    "mina": lambda random, k: Mina(NDR, random, k),
    "mina-code": lambda random, k: Code(NDR, random, k),
    "mina-gainers": lambda random, k: Mina(NDR, random, k, gainers=True),
    "mina-merge": lambda random, k: Merge(NDR, random, k),
    "first": lambda random, k: First(NDR, among_assigned=True),
    "first-in-transmission": lambda random, k: First(NDR, among_assigned=False),
}
AUTHORS_MODELS: Final = ("opt-125m", "opt-350m", "opt-1.3b", "bert-base", "bert-large", "vit-base", "vit-large")
"""In the order in which the authors' simulator draws them."""
DRAWS: Final = ("own", "llvm")
"""The source of random numbers: Python's generator, or the authors' (`llvm`), in their order."""
VARIANTS: Final = {
    "figures": ("first-in-transmission", "mina-code"),
    "paper": ("first", "mina"),
}
"""Baseline and MINA's trees: as used for the paper's figures, and as described in its text."""


def inputs(folder: str | None) -> dict[str, Any]:
    """Patterns by name and the lists of hosts per job: from a folder ``mina``, or the shipped ones.

    Raises: TraceError: a file is missing or not JSON; PatternError: it is not a pattern.
    """
    if folder is None:
        data = _json(str(samples.DATA / "mina.json"))
        return {"patterns": data["patterns"], "host_counts": data["host_counts"]}
    where = os.path.join(folder, "mina")
    try:
        names = sorted(name[:-5] for name in os.listdir(where) if name.endswith("-4.json") or name.endswith("-16.json"))
    except OSError as fault:
        raise TraceError(f"{where}: {fault.strerror} (set another folder with --data)") from None
    missing = [f"{model}-4" for model in MODELS if f"{model}-4" not in names]
    if missing:
        raise TraceError(f"{where}: no {', '.join(missing)}.json (set another folder with --data)")
    patterns = {name: _json(os.path.join(where, f"{name}.json")) for name in names}
    return {"patterns": patterns, "host_counts": _json(os.path.join(where, "mina_host_count_weights.json"))}


def _json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as fault:
        raise TraceError(f"{path}: {fault.strerror}") from None
    except ValueError as fault:
        raise TraceError(f"{path}: {fault}") from None


def patterns(data: dict[str, Any], batch: int, ticks_per_s: int = NS_PER_S) -> list[Pattern]:
    """Patterns of the models that exist in this batch size, in the order of `MODELS`. Raises: TraceError."""
    known = data["patterns"]
    names = [name for model in MODELS if (name := f"{model}-{batch}") in known]
    try:
        return [parse(name, known[name], ticks_per_s=ticks_per_s) for name in names]
    except PatternError as fault:
        raise TraceError(str(fault)) from None


def hosts_drawn(data: dict[str, Any], histogram: int, random: Random) -> Callable[[], int]:
    """Draws a job's hosts from the list. Raises: TraceError: not a list."""
    hosts, weights = _weighed(data, histogram)
    cumulative = list(accumulate(weights))
    return lambda: random.choices(hosts, cum_weights=cumulative)[0]


def _weighed(data: dict[str, Any], histogram: int) -> tuple[list[int], list[float]]:
    try:
        pairs = [(int(hosts), float(weight)) for hosts, weight in data["host_counts"][histogram]]
    except (TypeError, ValueError, IndexError):
        raise TraceError(f"list {histogram} of hosts per job is invalid") from None
    if not pairs or min(hosts for hosts, _ in pairs) < 1 or min(weight for _, weight in pairs) < 0:
        raise TraceError(f"list {histogram} of hosts per job is invalid")
    return [hosts for hosts, _ in pairs], [weight for _, weight in pairs]


def jobs(data: dict[str, Any], histogram: int, count: int, models: int, seed: int) -> list[Job]:
    """The paper's jobs: all arrive at time 0; models and steps uniform, hosts by the list."""
    random = Random(f"jobs {seed}")
    hosts = hosts_drawn(data, histogram, random)
    return [Job(random.randrange(models), hosts(), random.choice(STEPS)) for _ in range(count)]


def authors_jobs(data: dict[str, Any], histogram: int, count: int, seed: int) -> list[Job]:
    """The same jobs, drawn as by the authors' simulator: model, hosts and steps of one job after the other. Raises:
    TraceError: the list of hosts is invalid.
    """
    drawn = Minstd(seed)
    hosts, weights = _weighed(data, histogram)
    place = drawn.by_weight(weights)
    found = []
    for _ in range(count):
        model = AUTHORS_MODELS[drawn.integer(0, len(AUTHORS_MODELS) - 1)]
        found.append(Job(MODELS.index(model), hosts[place()], STEPS[drawn.integer(0, len(STEPS) - 1)]))
    return found


def cell(
    folder: str | None, seed: int, jp: str, trees: str, rule: str, *, count: int = 2_000, histogram: int = 0, k: int =
    5, up: int = 8, bandwidth: float = 12.5e9, ratio: float = 2.0, gpu_speedup: float = 1.0, batch: int = 4,
    migration: bool = False, arrivals: str = "", contention: bool = False, published: bool = False,
    draws: str = "own", labels: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One run of a cluster. ``arrivals``: a trace's name; "": all at time 0, as in the paper. ``published``: also model
    what else the simulator of the paper's figures does (docs/reproduction/mina.md), without arrivals (in ns).
    ``draws``: one of `DRAWS`. ``labels`` is copied into the row.

    Raises: TraceError: inputs are missing or wrong; ValueError: options that exclude each other.
    """
    if arrivals and (published or draws != "own"):
        raise ValueError("a trace's arrivals with the authors' times or draws")
    data = inputs(folder)
    known = patterns(data, batch, FINE_TICKS_PER_S if published else NS_PER_S)
    random = Random(f"cluster {seed}")
    planner = TREES[trees](Minstd(seed) if draws == "llvm" else random, k)
    network = Network(bandwidth, ratio)
    world = World(
        fat_tree(16, up, planes_first=published), known, network, make(jp, random), planner, RULES[rule], gpu_speedup,
        MIGRATION_NS if migration else 0, contention=contention, ends_one_by_one=published,
        single_hosts_use_ina=published,
    )  # fmt: skip
    if draws == "llvm":
        queue = authors_jobs(data, histogram, count, seed)
    elif arrivals:
        steps = [[timed(p, network, hosts=n, gpu_speedup=gpu_speedup).none_ns for n in (1, 2)] for p in known]
        queue = arriving(
            folder, arrivals, seed, count, world.topology.hosts, len(known), lambda model, n: steps[model][n > 1]
        )
    else:
        queue = jobs(data, histogram, count, len(known), seed)
    run = Simulation(world, queue, clock=time.thread_time_ns)
    begun = time.thread_time()  # of this thread: excludes other load on the machine
    run.run()
    took = time.thread_time() - begun
    row = {name: round(value, 8) if isinstance(value, float) else value for name, value in measured(run).items()}
    return {
        **(labels or {}), "placement": jp, "trees": trees, "rule": rule, "seed": seed, "histogram": histogram, "k": k,
        "oversubscription": f"8:{up}", "bandwidth": bandwidth, "ratio": ratio, "gpu_speedup": gpu_speedup,
        "batch": batch, "migration_s": world.migration_ns / 1e9, "arrivals": arrivals or "at 0",
        "contention": contention, "published": published, "draws": draws, **row, "all_reduces": run.engine.operations,
        "plans": run.plans, "plan_ms": round(run.plan_ns / run.plans / 1e6, 3), "cpu_s": round(took, 2),
        "all_reduces_per_s": round(run.engine.operations / took),
    }  # fmt: skip


def measured(run: Simulation) -> dict[str, Any]:
    """The metrics of a run as plain data."""
    return asdict(measure(run.outcomes, run.world.topology.hosts, run.ticks_per_s))


def pairs(
    folder: str | None, rule: str, *, seconds: int = 1_000, bandwidth: float = 12.5e9, ratio: float = 1.5,
    gpu_speedup: float = 1.5, batch: int = 4, labels: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Figure 12: every two models share one tree for ``seconds``; scores [model, model] over the completed steps."""
    known = patterns(inputs(folder), batch)
    kinds = [timed(each, Network(bandwidth, ratio), gpu_speedup=gpu_speedup) for each in known]
    begun = time.thread_time()
    operations, scores = 0, []
    for one in range(len(kinds)):
        for other in range(len(kinds)):
            both = kinds[one], kinds[other]
            engine = Engine(both, 2, RULES[rule], trusts=trusts(both) if RULES[rule].tuned else None)
            steps = 10**8  # more than the run can complete
            for job in (0, 1):
                engine.add(job, job, steps)
            engine.share([], [], [[0, 1]], {0: [1], 1: [0]})
            engine.run(seconds * 10**9)
            saved = could = 0
            for job, kind in enumerate(both):
                progress = engine.progress(job)
                done = steps - progress.steps_left
                operations += done * len(kind.starts)
                saved += done * kind.none_ns - progress.step_began_ns
                could += done * (kind.none_ns - kind.all_ns)
            scores.append(round(saved / could, 6) if could else 1.0)
    took = time.thread_time() - begun
    return {
        **(labels or {}), "rule": rule, "models": [each.name for each in known], "scores": scores,
        "mean": round(sum(scores) / len(scores), 6), "above_0.95": sum(each > 0.95 for each in scores),
        "round_to_0.95": sum(each >= 0.945 for each in scores), "seconds_simulated": seconds,
        "all_reduces": operations, "seconds": round(took, 2), "all_reduces_per_s": round(operations / took),
    }  # fmt: skip


def fragments_and_conflicts(folder: str | None, seed: int, count: int, labels: dict[str, Any]) -> dict[str, Any]:
    """Figure 2: jobs of 1 to 16 hosts come and go on the first free hosts. Every 25 jobs: fragments of the
    hosts of a running job, and the share of running jobs whose tree intersects another's.
    """
    random = Random(f"figure 2, {seed}")
    known = [each for each in patterns(inputs(folder), 16) if each.name == "opt-350m-16"]
    drawn = [Job(0, random.randint(1, 16), random.choice(STEPS)) for _ in range(count)]
    world = World(
        fat_tree(16), known, Network(2e9, 1.0), make("first-n", random), Drawn(random), RULES["none"], samples=25
    )
    run = Simulation(world, drawn)
    run.run()
    points = [
        {
            "jobs": 25 * n,
            "fragments": round(each.fragments / each.running, 4),
            "free_fragments": each.free_fragments,
            "conflict": round(each.sharing / each.running, 4),
        }
        for n, each in enumerate(run.samples)
    ]
    return {**labels, "seed": seed, "points": points}
