"""Streams of jobs that arrive as in real clusters: Microsoft's Philly (2017) and ITP (2021).

How a row becomes a job of MINA's simulator:

- only jobs of more than one GPU count: the others send nothing, and are most of the rows (that they would fragment the
  hosts of the others is lost);
- a GPU is a host, as in the paper, where each server has one: a job of n GPUs needs n hosts; - a duration is cut at a
day, because a few jobs of weeks would otherwise be most of the work and run alone at the end; it
  is divided by `PACE`, so that jobs have tens to thousands of steps, including the paper's 10 to 100; the number of
  steps is what fits into it without INA;
- arrival times are scaled so that the jobs need `LOAD` of all hosts on average; their order, bursts and gaps remain;
- the model is drawn, as in the paper, because the trace names none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Final

from offpath.cli.files.traces import TraceError, whole_gpus
from offpath.sched.sim.ina.cluster import Job
from offpath.sched.sim.workload import SECOND_NS, TraceJob

TRACES: Final = {"philly": ("philly_jobs.csv.gz", "vc"), "itp": ("microsoft_itp2021_jobs.csv.gz", "cluster")}
"""By name: the file in ``--data``, and its column that names the tenant."""
PACE: Final = 1_000
LONGEST_NS: Final = 86_400 * SECOND_NS
LOAD: Final = 0.9


@lru_cache(maxsize=2)
def rows(path: str, tenant: str) -> tuple[TraceJob, ...]:
    """The jobs of more than one GPU, by arrival. Raises: TraceError: not a trace, or without such jobs."""
    found = tuple(each for each in whole_gpus(path, tenant=tenant, name=path, hours=None).jobs if each.share > 100)
    if not found:
        raise TraceError(f"{path}: no job of more than one GPU")
    return found


def arriving(
    folder: str | None, trace: str, seed: int, count: int, hosts: int, models: int, step_ns: Callable[[int, int], int]
) -> list[Job]:
    """``count`` consecutive jobs, from a position that depends on ``seed``, for a cluster of ``hosts``. ``step_ns``: of
    a model on this many hosts, without INA.

    Raises: TraceError: no folder, no such trace in it, or too few jobs.
    """
    if folder is None:
        raise TraceError(f"arrivals of {trace} need its file: no --quick, and its folder in --data")
    file, tenant = TRACES[trace]
    path = os.path.join(folder, file)
    known = rows(path, tenant)
    if len(known) < count:
        raise TraceError(f"{path}: {len(known)} jobs of more than one GPU, {count} are needed")
    first = seed * count % (len(known) - count + 1)
    random = Random(f"arrivals {trace} {seed}")
    jobs = []
    demand = 0
    for row in known[first : first + count]:
        model, wanted = random.randrange(models), min(row.share // 100, hosts)
        step = step_ns(model, wanted)
        steps = max(1, round(min(row.duration_ns, LONGEST_NS) / PACE / step))
        demand += wanted * steps * step
        jobs.append((row.submit_ns - known[first].submit_ns, model, wanted, steps))
    span = jobs[-1][0] or 1
    scale = demand / (LOAD * hosts) / span
    return [Job(model, wanted, steps, round(at * scale)) for at, model, wanted, steps in jobs]
