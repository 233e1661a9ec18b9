"""`daemon`: start-up time, memory and CPU at rest, recovery time after kill -9, and the cost of the journal.

Budgets (docs/design.md, Budgets) are printed beside the figures. They are absolute times, which a busy machine can miss
without a fault, so the exit code does not depend on them.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from offpath.bindings.errors import OffpathError
from offpath.cli.bench.command import Report
from offpath.cli.bench.daemon_idle import idle_lines, idle_rows
from offpath.cli.bench.measure import machine, ratio
from offpath.cli.bench.node import Node
from offpath.dpu_daemon.durability.journal import codec
from offpath.dpu_daemon.durability.journal.log import Journal, journal_bytes, new_identity
from offpath.dpu_daemon.durability.journal.ring import MappedFile, ReadOnlyFile, Ring
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import EndReason, JobState

DESCRIPTION: Final = "start-up, memory and CPU at rest, kill -9 to the first answer, and the journal's cost"
READY_S, REST_MIB, BACK_S, IDLE_PERCENT = 0.5, 60.0, 1.0, 0.1
_MIB: Final = 1 << 20
_PAYLOAD: Final = np.zeros(4096, np.uint8)
_LIFE_S: Final = 1.2
"""A daemon that has run for a second is restarted at once; after shorter runs the service manager backs off."""
_PARTS: Final = ("start", "memory", "idle", "kill", "journal", "fullness")


@dataclass(slots=True)
class _Findings:
    """Data and text of the report, in order."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def add(self, key: str, value: Any, line: str) -> None:
        self.data[key] = value
        self.lines.append(line)

    def budget(self, key: str, value: float, bound: float, line: str) -> None:
        """Add ``value``, which must stay below ``bound``."""
        word = "met" if value < bound else "MISSED"
        self.add(key, round(value, 4), f"{line}; budget < {bound:g}: {word}")


def run(arguments: argparse.Namespace) -> Report:
    """All parts, or those of ``--only``."""
    begun = time.monotonic()
    found = _Findings()
    parts: dict[str, Callable[[_Findings, bool], None]] = {
        "start": _start, "memory": _memory, "idle": _idle, "kill": _kill, "journal": _journal,
        "fullness": _fullness,
    }  # fmt: skip
    for name in arguments.only or _PARTS:
        print(f"{name} …", file=sys.stderr)
        parts[name](found, arguments.quick)
    load = os.getloadavg()[0]
    found.lines.append(f"load average at the end: {load:.1f} on {len(os.sched_getaffinity(0))} cores")
    data = {
        "benchmark": "daemon", "quick": arguments.quick, "machine": machine(), "load_average": round(load, 2),
        **found.data, "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip
    return Report(data, "\n".join(found.lines))


def _start(found: _Findings, quick: bool) -> None:
    """From the spawn of `offpath daemon run` to its ready line."""
    times = []
    for _ in range(10 if quick else 30):
        with Node(has_helper=False) as node:
            times.append(node.ready_s)
    text = f"{statistics.median(times):.3f} s median, {min(times):.3f} least, {max(times):.3f} greatest of {len(times)}"
    found.add("start_s", {"median": statistics.median(times), "min": min(times), "max": max(times)}, f"start: {text}")
    found.budget("start_median_s", statistics.median(times), READY_S, "  median start to ready, s")


def _memory(found: _Findings, quick: bool) -> None:
    """RssAnon + RssFile: the daemon's own memory and mapped files, without memory that it shares with requesters."""
    with Node(has_helper=False) as node:
        time.sleep(0.5)
        rest = _resident_mib(node.daemon_pid)
    with Node() as node:
        node.submit_many(_PAYLOAD, 1000)
        time.sleep(0.5)
        after = _resident_mib(node.daemon_pid)
    found.budget("rest_mib", rest, REST_MIB, f"memory: {rest:.1f} MiB at rest after ready")
    found.budget("rest_after_1000_mib", after, REST_MIB, f"  {after:.1f} MiB after 1000 requests of 4 KB")


def _idle(found: _Findings, quick: bool) -> None:
    rows = idle_rows(quick)
    found.add("idle", rows, "\n".join(idle_lines(rows)))
    for row in rows:
        if not row["rate"]:
            key = f"idle_percent_spin_{row['spin_us']}"
            found.budget(key, row["cpu_percent"], IDLE_PERCENT, f"  CPU at rest, spin {row['spin_us']}, %")


def _resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        kib = re.findall(r"^Rss(?:Anon|File):\s+(\d+) kB$", file.read(), re.M)
    return sum(map(int, kib)) / 1024


def _kill(found: _Findings, quick: bool) -> None:
    """kill -9 under the service manager; a request is submitted at once. Times until it is accepted (by the next
    daemon's journal) and until it is answered.
    """
    accepted, answered = [], []
    with Node(is_kept=True, journal_mib=4) as node:
        for _ in range(30 if quick else 60):
            killed_s, answer_s = node.kill_and_submit(_PAYLOAD)
            answered.append(answer_s)
            accepted.append(_first_submitted_s(node.journal, killed_s) - killed_s)
            time.sleep(_LIFE_S)
    (p50, p99), (answered_p50, answered_p99) = _percentiles(accepted), _percentiles(answered)
    found.add("back_p50_s", round(p50, 4), f"kill -9 to the first accepted request: {p50:.3f} s p50 of {len(accepted)}")
    found.budget("back_p99_s", p99, BACK_S, f"  p99 {p99:.3f} s")
    found.add("answered_s", [answered_p50, answered_p99], f"  answered: {answered_p50:.3f} p50, {answered_p99:.3f} p99")


def _percentiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def _first_submitted_s(path: str, after_s: float) -> float:
    """When the first request after ``after_s`` was accepted; the daemon and this process share the clock."""
    ring = Ring.opened(ReadOnlyFile(path))
    for entry in ring.entries(ring.oldest_checkpoint()):
        if entry.kind == codec.KIND_CHECKPOINT or entry.time_ns <= after_s * 1e9:
            continue
        submitted = events.JobSubmitted | events.StackSubmitted | events.SequenceSubmitted
        if any(isinstance(value, submitted) for value in codec.values(entry)):
            return entry.time_ns / 1e9
    raise OffpathError("the journal lacks the request")


def _journal(found: _Findings, quick: bool) -> None:
    """Nanoseconds for each frequent entry, then requests with and without a journal in alternating blocks."""
    costs = _entry_costs(5_000 if quick else 20_000)
    total = sum(costs.values())
    parts = ", ".join(f"{name} {ns:.0f}" for name, ns in costs.items())
    found.add("entry_ns", {name: round(ns) for name, ns in costs.items()}, f"journal entries, ns: {parts}")
    found.add("request_entries_ns", round(total), f"  those of one request: {total / 1e3:.1f} µs")
    blocks, count = (10, 200) if quick else (20, 500)
    p50: dict[str, list[float]] = {"with": [], "without": []}
    with Node() as journalled, Node(journal_mib=0) as bare:
        sides = {"with": journalled, "without": bare}
        for node in sides.values():
            node.latencies_us(_PAYLOAD, count)
        for number in range(blocks):
            for name in list(sides) if number % 2 else reversed(list(sides)):
                p50[name].append(statistics.median(sides[name].latencies_us(_PAYLOAD, count)))
    over = ratio(p50["with"], p50["without"])
    us = {name: round(statistics.median(each), 1) for name, each in p50.items()}
    found.add("p50_us", us, f"p50 of 4 KB requests: {us['with']} µs with the journal, {us['without']} µs without")
    found.add(
        "p50_with_over_without", over,
        f"  ratio {over['median']:.3f} [{over['min']:.3f}, {over['max']:.3f}] of {blocks} blocks each",
    )  # fmt: skip


def _entry_costs(count: int) -> dict[str, float]:
    """Median of 9 blocks, entry by entry, into a file like the daemon's."""
    stages = (1000, 2000, 3000, 4000, 5000, 15000)
    entries: dict[str, tuple[events.Event, tuple[commands.Command, ...]]] = {
        "JobSubmitted + Copy": (
            events.JobSubmitted(7, 1, 7, 3, 14, 0, 0, 4096, False, 1 << 32, 3), (commands.Copy(7, 1, 3, 0),)
        ),
        "CopyDone + Launch": (events.CopyDone(7, 1, False), (commands.Launch(7, 1, 3, 0, 1, 3, 14),)),
        "ResultArrived + Answer": (
            events.ResultArrived(7, 1, EndReason.NONE, 1000, 2000),
            (commands.Answer(7, 1, JobState.COMPLETED, EndReason.NONE, 0, 3, 1, stages),),
        ),
    }  # fmt: skip
    costs = {}
    with tempfile.TemporaryDirectory(prefix="offpath-bench-") as directory:
        storage = MappedFile(os.path.join(directory, "journal"), journal_bytes(8))
        journal = Journal(Ring.fresh(storage, new_identity("0" * 36)))
        for name, (event, decided) in entries.items():
            blocks = [_block_ns(journal, event, decided, count) for _ in range(9)]
            costs[name] = statistics.median(blocks)
        journal.close()
    return costs


def _block_ns(journal: Journal, event: events.Event, decided: tuple[commands.Command, ...], count: int) -> float:
    begun = time.perf_counter_ns()
    for now_ns in range(count):
        journal.record(event, decided, now_ns)
    return (time.perf_counter_ns() - begun) / count


def _fullness(found: _Findings, quick: bool) -> None:
    """The same kill after increasing numbers of requests since the last checkpoint, which a start must replay."""
    rows = []
    with Node(is_kept=True) as node:
        for requests in (0, 200, 400, 600):
            times: deque[float] = deque()
            replayed = 0
            for _ in range(3 if quick else 5):
                node.submit_many(_PAYLOAD, requests)
                replayed = max(replayed, _since_checkpoint(node.journal))
                times.append(node.kill_and_submit(_PAYLOAD)[1])
                time.sleep(_LIFE_S)
            rows.append({"records": replayed, "median_s": round(statistics.median(times), 4)})
    text = ", ".join(f"{row['records']} → {row['median_s']:.3f} s" for row in rows)
    found.add("back_by_records", rows, f"kill -9 to the first answer, by records to replay: {text}")


def _since_checkpoint(path: str) -> int:
    ring = Ring.opened(ReadOnlyFile(path))
    return ring.newest_number() - ring.newest_checkpoint()
