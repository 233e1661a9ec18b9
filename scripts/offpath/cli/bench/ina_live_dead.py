"""The cost of a dead controller for a training job: the gaps between consecutive all-reduces, with a live and
a killed controller, in alternating blocks of one run over real trainings (`demo.ina.cluster`).
"""

from __future__ import annotations

import os
import statistics
import tempfile
from itertools import pairwise
from typing import Any, Final

from offpath.bindings.ina.rate_limiter import write_rate
from offpath.cli.demo.ina import log, orders
from offpath.cli.demo.ina.cluster import Cluster

_JOBS: Final = {"left": 31, "right": 32}
_PADDING_S: Final = 0.03
_RATE: Final = 30_000_000
_READY_S: Final = 120.0


def measure(blocks: int, steps: int) -> dict[str, Any]:
    """``blocks`` of ``steps`` each way. ms; ``ratio``: of the 99th percentiles, over all blocks of each way.

    Raises: ClusterFailed: it cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        return _measure(directory, blocks, steps)


def _measure(directory: str, blocks: int, steps: int) -> dict[str, Any]:
    with Cluster(directory, mode="shared") as cluster:
        cluster.start()
        write_rate(cluster.link, _RATE)
        for job, seed in _JOBS.items():
            cluster.submit(job)
            cluster.train(job, seed, orders.Order(0, _PADDING_S))
        logs = {job: log.Reader(os.path.join(cluster.folder(job), "steps.0.jsonl")) for job in _JOBS}
        windows: dict[str, list[dict[str, tuple[int, int]]]] = {"alive": [], "dead": []}
        _await(cluster, logs, 5)
        for _ in range(blocks):
            cluster.wait(lambda: all(map(cluster.has_tree, _JOBS)), "granted trees", _READY_S)
            windows["alive"].append(_await(cluster, logs, steps))
            cluster.kill("controller")
            windows["dead"].append(_await(cluster, logs, steps))
            cluster.revive("controller")
        for job in _JOBS:
            orders.write(os.path.join(cluster.folder(job), "wanted.json"), orders.Order(1, 0.0, True))
        ends = [os.path.join(cluster.folder(job), "end.json") for job in _JOBS]
        cluster.wait(lambda: all(map(os.path.exists, ends)), "at their ends", _READY_S)
        ops = {job: log.operations(os.path.join(cluster.folder(job), "operations.0.jsonl")) for job in _JOBS}
    gaps = {name: [gap for window in found for gap in _gaps(ops, window)] for name, found in windows.items()}
    result: dict[str, Any] = {name: _percentiles(found) for name, found in gaps.items()}
    result["with_ina"] = {name: _with_ina(ops, found) for name, found in windows.items()}
    return {**result, "ratio": round(result["dead"]["p99_ms"] / result["alive"]["p99_ms"], 3)}


def _await(cluster: Cluster, logs: dict[str, log.Reader], more: int) -> dict[str, tuple[int, int]]:
    """Wait until each job has made ``more`` steps: their begin and end, ns, by job."""
    for each in logs.values():
        each.more()
    begin = {job: len(each.steps) for job, each in logs.items()}

    def is_so() -> bool:
        for each in logs.values():
            each.more()
        return all(len(each.steps) >= begin[job] + more for job, each in logs.items())

    cluster.wait(is_so, f"{more} steps further", _READY_S + more)
    return {
        job: (each.steps[begin[job]].began_ns, each.steps[begin[job] + more - 1].ended_ns) for job, each in logs.items()
    }


def _gaps(ops: dict[str, list[log.Did]], window: dict[str, tuple[int, int]]) -> list[float]:
    """In ms."""
    found = []
    for job, (begin, end) in window.items():
        ended = [each.ended_ns for each in ops[job] if begin <= each.ended_ns <= end]
        found += [(after - before) / 1e6 for before, after in pairwise(ended)]
    return found


def _with_ina(ops: dict[str, list[log.Did]], windows: list[dict[str, tuple[int, int]]]) -> float:
    """The part of the operations that used INA: a dead controller revokes nothing."""
    hows = [
        each.how
        for window in windows
        for job, (begin, end) in window.items()
        for each in ops[job]
        if begin <= each.ended_ns <= end
    ]
    return round(hows.count(log.INA) / max(1, len(hows)), 3)


def _percentiles(gaps: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(gaps, n=100)
    return {"n": len(gaps), "p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2), "max_ms": round(max(gaps), 2)}
