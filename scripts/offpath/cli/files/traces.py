"""Reads trace files as streams of jobs. Every row is checked; an error names the first invalid line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, TextIO

from offpath.bindings.errors import OffpathError
from offpath.sched.sim.workload import SECOND_NS, Marginals, Stream, TraceJob

_MOST_ROWS: Final = 2_000_000
_MOST_GPUS: Final = 1_024


class TraceError(OffpathError):
    """A trace cannot be read; the message names the file and the line."""


def _opened(path: str) -> TextIO:
    try:
        if path.endswith(".gz"):
            return io.TextIOWrapper(gzip.open(path), encoding="utf-8", newline="")
        return open(path, encoding="utf-8", newline="")
    except OSError as fault:
        raise TraceError(f"{path}: {fault.strerror}") from None


def rows(path: str, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV file, which may be gzipped, with their lines. Raises: TraceError: not CSV, or a column is
    missing.
    """
    with _opened(path) as file:
        reader = csv.DictReader(file)
        try:
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}: no column {', '.join(missing)}")
            for row in reader:
                if reader.line_num > _MOST_ROWS:
                    raise TraceError(f"{path}: more than {_MOST_ROWS} rows")
                yield reader.line_num, row
        except (OSError, EOFError, UnicodeDecodeError, csv.Error) as fault:
            raise TraceError(f"{path}:{reader.line_num}: {fault}") from None


def number(path: str, line: int, row: dict[str, str], name: str, least: float, most: float) -> float:
    """Column ``name`` as a number. Raises: TraceError: not a number, or not in ``least`` to ``most``."""
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        raise TraceError(f"{path}:{line}: {name} is {row[name]!r}, not a number") from None
    if not math.isfinite(value) or not least <= value <= most:
        raise TraceError(f"{path}:{line}: {name} is {value:g}, not in {least:g} to {most:g}")
    return value


def whole(path: str, line: int, row: dict[str, str], name: str, least: int, most: int) -> int:
    """Column ``name`` as a count, also ``2.0``. Raises: TraceError: a fraction, or see `number`."""
    value = number(path, line, row, name, least, most)
    if not value.is_integer():
        raise TraceError(f"{path}:{line}: {name} is {value:g}, not a whole number")
    return int(value)


def _stream(
    path: str, name: str, columns: tuple[str, ...], job: Callable[[int, dict[str, str]], TraceJob], hours: float | None
) -> Stream:
    jobs = [job(line, row) for line, row in rows(path, columns)]
    if not jobs:
        raise TraceError(f"{path}: contains no job")
    jobs.sort(key=lambda each: each.submit_ns)
    begin = jobs[0].submit_ns
    end = begin + round(hours * 3_600 * SECOND_NS) if hours is not None else jobs[-1].submit_ns + 1
    return Stream(name, "real", begin, end, tuple(j for j in jobs if j.submit_ns < end))


_SECONDS: Final = 1e9
_QUANTILES: Final = (
    ("min", 0.0), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p95", 0.95), ("p99", 0.99), ("max", 1.0),
)  # fmt: skip


def openb(path: str, *, hours: float | None = 60.0, name: str = "openb", time: str = "submit_time_s") -> Stream:
    """Alibaba's v2023 pods: R is the requested fraction of a GPU; several whole GPUs are a gang. ``time``:
    "submit_time_s", or "orig_creation_time_s" for the times before compression.

    Raises: TraceError.
    """
    columns = (time, "duration_s", "gpu_request_fraction", "num_gpu")

    def job(line: int, row: dict[str, str]) -> TraceJob:
        at = number(path, line, row, time, 0, _SECONDS)
        lasts = number(path, line, row, "duration_s", 0, _SECONDS)
        fraction = number(path, line, row, "gpu_request_fraction", 0.001, _MOST_GPUS)
        if fraction > 1:  # several GPUs, and only a single one is shared
            share = 100 * whole(path, line, row, "gpu_request_fraction", 1, _MOST_GPUS)
        else:
            share = max(1, round(100 * fraction))
        return TraceJob(round(at * SECOND_NS), round(lasts * SECOND_NS), "", share)

    return _stream(path, name, columns, job, hours)


def whole_gpus(path: str, *, tenant: str, name: str, hours: float | None = 60.0) -> Stream:
    """Philly's and ITP's jobs, which use whole GPUs; ``tenant`` is the column that names the tenant.

    Raises: TraceError.
    """

    def job(line: int, row: dict[str, str]) -> TraceJob:
        at = number(path, line, row, "submit_time_s", 0, _SECONDS)
        lasts = number(path, line, row, "duration_s", 0, _SECONDS)
        gpus = whole(path, line, row, "num_gpus", 1, _MOST_GPUS)
        if not row[tenant]:
            raise TraceError(f"{path}:{line}: {tenant} is {row[tenant]!r}")
        return TraceJob(round(at * SECOND_NS), round(lasts * SECOND_NS), row[tenant], 100 * gpus)

    return _stream(path, name, ("submit_time_s", "duration_s", "num_gpus", tenant), job, hours)


def pai_marginals(path: str) -> Marginals:
    """The published marginals of Alibaba's 2020 trace: GPU shares up to a whole GPU (the paper's formulation has no
    gangs) and quantiles of durations. Raises: TraceError.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data: Any = json.load(file)
        counts = data["task_table_full"]["plan_gpu_percent_counts"]
        lasts = data["simulator_sample_100K"]["duration_s"]
        shares = tuple((int(share), float(counts[share])) for share in ("10", "25", "50", "100"))
        quantiles = (
            ("min", 0.0),
            ("p25", 0.25),
            ("p50", 0.5),
            ("p75", 0.75),
            ("p95", 0.95),
            ("p99", 0.99),
            ("max", 1.0),
        )
        durations = tuple((p, float(lasts[name])) for name, p in quantiles)
    except OSError as fault:
        raise TraceError(f"{path}: {fault.strerror}") from None
    except (KeyError, TypeError, ValueError) as fault:
        raise TraceError(f"{path}: not the marginals: {type(fault).__name__}: {fault}") from None
    rising = all(0 < low <= high for (_, low), (_, high) in pairwise(durations))
    if not rising or any(weight <= 0 for _, weight in shares):
        raise TraceError(f"{path}: quantiles must rise, weights must be positive")
    return Marginals(shares, durations)


def found(folder: str, names: tuple[str, ...]) -> dict[str, str]:
    """Paths of the files in ``folder``. Raises: TraceError: names the missing ones."""
    paths = {name: os.path.join(folder, name) for name in names}
    missing = [name for name, path in paths.items() if not os.path.exists(path)]
    if missing:
        raise TraceError(f"{folder} lacks {', '.join(missing)}: set their folder with --data")
    return paths
