"""Jobs of task groups for HIRE's evaluation, from two kinds of files.

``synthetic``: made in the form of Alibaba's 2018 trace, which cannot be had; CPU in percent of a core and memory in
percent of a server, times the factors by which the authors' simulator enlarges them. ``pods``: real pods of Alibaba's
2023 trace. A pod is one task, so consecutive pods of one class of QoS make a job, those of equal demand a task group;
durations and gaps are cut and compressed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from offpath.cli.files.traces import TraceError, number, rows, whole

MOST_JOBS: Final = 20_000
SYNTHETIC_SERVER: Final = (96_000, 524_288)
"""cpu_milli and memory_mib of a server of Alibaba's 2018 trace; its memory is known in percent only."""
CPU_FACTOR: Final = 4.5
MEMORY_FACTOR: Final = 3.0
"""Of the authors' simulator."""
POD_SERVER: Final = (128_000, 1_048_576)
"""No pod wants more."""
PODS_OF_JOB: Final = 16
LONGEST_S: Final = 3_600.0
"""A pod's duration is cut there."""
COMPRESSION: Final = 60.0
"""Of pods' durations, so that an hour is a minute."""
LONGEST_GAP: Final = 3.0
"""Gaps between jobs of pods are cut at so many times their mean: a few days hold most of the trace."""
_MOST_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Group:
    """Equal tasks. ``next``: numbers of the groups of the job that it sends to."""

    tasks: int
    cpu_milli: int
    memory_mib: int
    lasts_s: float
    next: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A job. ``is_service``: of the two classes of priority, the higher."""

    at_s: float
    is_service: bool
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """``rows`` by arrival. ``kind``: ``synthetic`` or ``pods``. ``server``: what a server has, cpu_milli and MiB."""

    kind: str
    rows: tuple[Row, ...]
    server: tuple[int, int]


@lru_cache(maxsize=4)
def read(path: str) -> Trace:
    """The trace of that file; its columns say which kind it is. Raises: TraceError."""
    if "name" in _columns(path):
        return Trace("pods", _pods(path), POD_SERVER)
    return Trace("synthetic", _synthetic(path), SYNTHETIC_SERVER)


def _columns(path: str) -> tuple[str, ...]:
    first = next(rows(path, ()), None)
    if first is None:
        raise TraceError(f"{path}: contains no job")
    return tuple(str(each) for each in first[1])


# -- synthetic -----------------------------------------------------------------------------------------------------


def _synthetic(path: str) -> tuple[Row, ...]:
    needed = ("job", "type", "submit", "duration", "task_group", "instances", "mem", "cpu", "connections")
    jobs: dict[str, tuple[float, bool, dict[int, Group]]] = {}
    for line, row in rows(path, needed):
        at_s = number(path, line, row, "submit", 0, _MOST_S)
        job = jobs.setdefault(row["job"], (at_s, row["type"] == "container", {}))
        name = whole(path, line, row, "task_group", 1, 1_000)
        if name in job[2] or len(jobs) > MOST_JOBS:
            raise TraceError(f"{path}:{line}: task group {name} of {row['job']!r:.40} again, or too many jobs")
        share = number(path, line, row, "mem", 0, 100) * MEMORY_FACTOR / 100
        job[2][name] = Group(
            whole(path, line, row, "instances", 1, 10_000),
            min(SYNTHETIC_SERVER[0], round(number(path, line, row, "cpu", 0, 9_600) * 10 * CPU_FACTOR)),
            min(SYNTHETIC_SERVER[1], round(share * SYNTHETIC_SERVER[1])),
            max(1.0, number(path, line, row, "duration", 0, _MOST_S)),
            _next(path, line, row["connections"]),
        )
    found = []
    for at_s, is_service, groups in jobs.values():
        order = {name: at for at, name in enumerate(sorted(groups))}
        linked = tuple(
            Group(each.tasks, each.cpu_milli, each.memory_mib, each.lasts_s,
                  tuple(order[other] for other in each.next if other in order and order[other] > order[name]))
            for name, each in sorted(groups.items())
        )  # fmt: skip
        found.append(Row(at_s, is_service, linked))
    return tuple(sorted(found, key=lambda each: each.at_s))


def _next(path: str, line: int, text: str | None) -> tuple[int, ...]:
    words = (text or "").replace(";", " ").split()
    if len(words) > 64 or not all(word.isascii() and word.isdigit() and len(word) < 5 for word in words):
        raise TraceError(f"{path}:{line}: connections are {text!r:.40}: numbers of task groups are needed")
    return tuple(int(word) for word in words)


# -- pods ----------------------------------------------------------------------------------------------------------


def _pods(path: str) -> tuple[Row, ...]:
    needed = ("creation_time_s", "run_duration_s", "cpu_milli", "memory_mib", "qos")
    pods: list[tuple[float, float, int, int, str]] = []
    for line, row in rows(path, needed):
        if not row["run_duration_s"]:
            continue  # it never ran
        lasts_s = number(path, line, row, "run_duration_s", 0, _MOST_S)
        if lasts_s > 0:
            pods.append((
                number(path, line, row, "creation_time_s", 0, _MOST_S), lasts_s,
                whole(path, line, row, "cpu_milli", 0, POD_SERVER[0]),
                whole(path, line, row, "memory_mib", 0, POD_SERVER[1]), row["qos"],
            ))  # fmt: skip
    found = sorted(_jobs_of_pods(sorted(pods)), key=lambda each: each.at_s)
    if not found:
        raise TraceError(f"{path}: fewer than {PODS_OF_JOB} pods that ran")
    gaps = [after.at_s - before.at_s for before, after in pairwise(found)]
    most = LONGEST_GAP * statistics.fmean(gaps) if gaps else 0.0
    at_s, cut = 0.0, [found[0]]
    for row_, gap in zip(found[1:], gaps, strict=True):
        at_s += min(gap, most)
        cut.append(Row(at_s, row_.is_service, row_.groups))
    return (Row(0.0, found[0].is_service, found[0].groups), *cut[1:])


def _jobs_of_pods(pods: list[tuple[float, float, int, int, str]]) -> Iterator[Row]:
    waiting: dict[bool, list[tuple[float, float, int, int, str]]] = {True: [], False: []}
    for pod in pods:
        mine = waiting[pod[4] in ("LS", "Guaranteed")]
        mine.append(pod)
        if len(mine) == PODS_OF_JOB:
            yield _job_of(mine, pod[4] in ("LS", "Guaranteed"))
            mine.clear()


def _job_of(pods: list[tuple[float, float, int, int, str]], is_service: bool) -> Row:
    equal: dict[tuple[int, int], list[float]] = {}
    for _, lasts_s, cpu, memory, _ in pods:
        equal.setdefault((cpu, memory), []).append(min(lasts_s, LONGEST_S) / COMPRESSION)
    groups = tuple(
        Group(len(lasting), cpu, memory, max(1.0, statistics.median(lasting)), (at + 1,) if at + 1 < len(equal) else ())
        for at, ((cpu, memory), lasting) in enumerate(equal.items())
    )
    return Row(pods[0][0], is_service, groups)
