"""Streams of jobs for NetPack's evaluation (§6.1): Philly's arrivals and sizes, and sizes of two distributions.

How a row of the Philly trace becomes a job:

- only rows of more than one GPU count, as in the GPU lists of the authors' program; ``real-all`` has all rows;
- a duration is cut at a day, because a few jobs of weeks would otherwise be most of the work and run alone at the end;
- it is the time that the job takes with an idle network: of an iteration, compute time and, if no server has room for
  the job, d / C; so the number of iterations is known, and each policy's own rates give the time that they take;
- arrival times are scaled so that the jobs use `LOAD` of all GPUs on average, if the network is idle; order, bursts and
  gaps remain;
- the model is drawn, as in the paper, because the trace names none;
- on servers with fewer than four GPUs a job wants as many fewer, and at most what the cluster has.

``normal`` and ``poisson`` replace the sizes only, with the mean of the rows' sizes (§6.1: "the jobs' GPU requirements
follow a Poisson / normal distribution"); a normal size has half its mean as standard deviation.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Any, Final

from offpath.cli.demo.samples import DATA as SHIPPED
from offpath.cli.files.traces import TraceError, whole_gpus
from offpath.sched.placement.batch_port import JobRequest
from offpath.sched.placement.models import MODELS
from offpath.sched.sim.batches import BatchJob
from offpath.sched.sim.workload import SECOND_NS, TraceJob

FILE: Final = "philly_jobs.csv.gz"
SAMPLE: Final = "philly_gangs.csv"
"""Shipped: consecutive rows of more than one GPU."""
AUTHORS_FILE: Final = os.path.join("netpack", "netpack_traces.json")
LONGEST_S: Final = 86_400.0
LOAD: Final = 0.9
LINK_GBPS: Final = 100.0
"""Of the paper's servers."""
USUAL_GPUS: Final = 4
"""GPUs of a server in the paper's simulator."""
KINDS: Final = ("real", "normal", "poisson", "real-all", "authors")
_AUTHORS_LISTS: Final = {USUAL_GPUS: (0,), 2: (1, 2)}
"""Lists of the authors' program that hold real sizes, by the GPUs of a server."""
_MOST_LISTED: Final = 10_000
Row = tuple[float, float, int]
"""Arrival and duration in s, GPUs."""


@lru_cache(maxsize=4)
def rows(path: str, least_gpus: int) -> tuple[TraceJob, ...]:
    """The trace's jobs of ``least_gpus`` GPUs or more that run at all, by arrival. Raises: TraceError."""
    stream = whole_gpus(path, tenant="vc", name=path, hours=None)
    found = tuple(each for each in stream.jobs if each.share >= 100 * least_gpus and each.duration_ns > 0)
    if not found:
        raise TraceError(f"{path}: no job of {least_gpus} GPUs or more")
    return found


def stream(
    folder: str | None, kind: str, seed: int, count: int, servers: int, gpus: int, *, load: float = LOAD,
    gpu_speedup: float = 1.0,
) -> list[BatchJob]:  # fmt: skip
    """``count`` jobs of a workload of `KINDS` for ``servers`` of ``gpus`` GPUs each.

    ``folder``: of the traces; None: the shipped sample, for which ``real-all`` and ``authors`` are not known. Another
    ``seed`` gives another stretch of the trace and other models. ``gpu_speedup``: over the GPUs of the paper's testbed.

    Raises: TraceError: a file is missing, invalid or too short for ``count``.
    """
    random = Random(f"netpack {kind} {seed}")
    found = _authors(folder, random, count, gpus) if kind == "authors" else _stretch(folder, kind, seed, count)
    size = _sizes(kind, [wanted for _, _, wanted in found], random)
    scale = gpus / USUAL_GPUS if kind != "authors" else 1.0
    models = list(MODELS.values())
    drawn = []
    for at, lasts, wanted in found:
        drawn.append((at, min(lasts, LONGEST_S), _scaled(size(wanted), scale, servers * gpus), random.choice(models)))
    work = sum(lasts * wanted for _, lasts, wanted, _ in drawn)
    span = drawn[-1][0] or 1.0
    pace = work / (load * servers * gpus) / span
    jobs = []
    for n, (at, lasts, wanted, model) in enumerate(drawn):
        compute_s = model.compute_s / gpu_speedup
        idle_s = compute_s + (model.data_gbit / LINK_GBPS if wanted > gpus else 0.0)
        request = JobRequest(f"job-{n}", wanted, model.data_gbit, compute_s, arrival_s=at * pace)
        jobs.append(BatchJob(request, max(1.0, lasts) * compute_s / idle_s))
    return jobs


def _stretch(folder: str | None, kind: str, seed: int, count: int) -> list[Row]:
    if folder is None and kind == "real-all":
        raise TraceError(f"{kind} needs the whole trace: no --quick, and its folder in --data")
    path = str(SHIPPED / SAMPLE) if folder is None else os.path.join(folder, FILE)
    known = rows(path, 1 if kind == "real-all" else 2)
    if len(known) < count:
        raise TraceError(f"{path}: {len(known)} jobs that can be used, {count} are needed")
    first = seed * count % (len(known) - count + 1)
    begin = known[first].submit_ns
    return [
        ((each.submit_ns - begin) / SECOND_NS, each.duration_ns / SECOND_NS, each.share // 100)
        for each in known[first : first + count]
    ]


def _sizes(kind: str, real: list[int], random: Random) -> Callable[[int], int]:
    """From a row's GPUs to the job's."""
    mean = sum(real) / len(real)
    if kind == "normal":
        return lambda wanted: max(1, round(random.gauss(mean, mean / 2)))
    if kind == "poisson":
        return lambda wanted: max(1, poisson(random, mean))
    return lambda wanted: wanted


def poisson(random: Random, mean: float) -> int:
    """A draw by Knuth's product of uniform numbers; ``mean`` below some hundreds."""
    least, product, count = math.exp(-mean), random.random(), 0
    while product > least:
        product *= random.random()
        count += 1
    return count


def _scaled(wanted: int, scale: float, most: int) -> int:
    return min(most, max(1, math.ceil(wanted * scale)))


def _authors(folder: str | None, random: Random, count: int, gpus: int) -> list[Row]:
    """Sizes and durations of the authors' program, drawn apart; it has no arrivals, so gaps are exponential."""
    if folder is None:
        raise TraceError("authors needs the lists of the authors' program: no --quick, and their folder in --data")
    lists, lasting = authors(os.path.join(folder, AUTHORS_FILE))
    sizes = [each for n in _AUTHORS_LISTS.get(gpus, (0,)) for each in lists[n]]
    at = 0.0
    found = []
    for _ in range(count):
        found.append((at, random.choice(lasting), random.choice(sizes)))
        at += random.expovariate(1.0)
    return found


@lru_cache(maxsize=2)
def authors(path: str) -> tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]:
    """The authors' lists of GPU counts (without the zeros in them) and durations in s. Raises: TraceError."""
    try:
        with open(path, encoding="utf-8") as file:
            data: Any = json.load(file)
        lists = tuple(tuple(whole(each) for each in some if each != 0) for some in data["job_gpus"])
        lasting = tuple(float(each) for each in data["period_s"])
    except OSError as fault:
        raise TraceError(f"{path}: {fault.strerror}") from None
    except (KeyError, TypeError, ValueError, RecursionError) as fault:
        raise TraceError(f"{path}: not the lists of the authors' program: {type(fault).__name__}: {fault}") from None
    if len(lists) < 3 or not all(lists) or not lasting:
        raise TraceError(f"{path}: three lists of GPU counts or more are needed, and durations")
    if any(len(some) > _MOST_LISTED for some in (*lists, lasting)) or not all(0 < each < 1e9 for each in lasting):
        raise TraceError(f"{path}: a list is too long, or a duration is not in 0 to 1e9 s")
    return lists, lasting


def whole(value: Any) -> int:
    """A count of GPUs. Raises: ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_024:
        raise ValueError(f"{value!r:.40} GPUs")
    return value
