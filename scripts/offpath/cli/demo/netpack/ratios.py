"""Figure 14: which part of a job's traffic the switch aggregates, over the part of its window that memory holds.

As in §6.4, a job has two workers and a PS on three servers, and a fixed throughput: its window is fixed and the links
are wide. PAT ratio 1 is memory for one such window. Two jobs share the memory; the paper's model is y = x for one and
y = x / 2 for each of two. The switch's counters over the steady steps give y.
"""

from __future__ import annotations

import json
import os
import subprocess
from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import Any, Final

from offpath.bindings.errors import OffpathError
from offpath.cli.demo.netpack.reference import fingerprints
from offpath.cli.demo.netpack.training import Training
from offpath.cli.local.child import ONE_THREAD, start
from offpath.cli.local.statistical_switch import Rate, StatisticalSwitch
from offpath.host_helper.ina.statistical.endpoint import job_number

WINDOW: Final = 36
"""Packets in flight of each worker."""
_PAYLOAD: Final = 1024
_DATA_BYTES: Final = 180_000
_RATE: Final = Rate(link_mbps=60.0, rtt_ms=60.0, mark_packets=1_000.0)
_WARM: Final = 0.4
"""Part of the steps before the senders have settled."""
_SECONDS: Final = 60.0
_PROCESS: Final = "demo.netpack.process"


@dataclass(frozen=True, slots=True)
class Ratio:
    """A measured point. ``model``: the paper's. ``hash``: ``rehash`` (ATP's) or ``plain``."""

    jobs: int
    job: str
    pat_ratio: float
    ratio: float
    is_exact: bool
    """The weights equal a run without a network, to the bit."""
    model: float
    hash: str


def measure(directory: str, pat_ratio: float, jobs: int, steps: int, *, is_plain: bool = False) -> list[Ratio]:
    """One run; a point for each job. Raises: OffpathError: a process failed. PeerGone."""
    names = [f"job{number}" for number in range(jobs)]
    servers = [f"{name}-{place}" for name in names for place in ("a", "b", "ps")]
    with StatisticalSwitch(directory, servers, round(pat_ratio * WINDOW), _RATE) as switch:
        processes = [
            _start(switch, name, place, steps, number, is_plain=is_plain)
            for number, name in enumerate(names)
            for place in ("a", "b", "ps")
        ]
        try:
            ended = [process.wait(_SECONDS) for process in processes]
        except subprocess.TimeoutExpired:
            ended = [1]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(ended):
            raise OffpathError(f"a training process of figure 14 failed: see {directory}")
    events = switch.events()
    right = fingerprints([Training(number, (1, 1), _DATA_BYTES, steps) for number in range(jobs)])
    hashed = "plain" if is_plain else "rehash"
    return [
        Ratio(
            jobs, name, pat_ratio, *_measured(events, directory, name, steps, right[number]),
            round(pat_ratio / jobs, 4), hashed,
        )
        for number, name in enumerate(names)
    ]  # fmt: skip


def _start(
    switch: StatisticalSwitch, name: str, place: str, steps: int, seed: int, *, is_plain: bool
) -> subprocess.Popen[bytes]:
    node = f"{name}-{place}"
    environment = {
        **ONE_THREAD, "OFFPATH_JOB": name, "OFFPATH_NODE": node, "OFFPATH_WORKERS": f"{name}-a:1,{name}-b:1",
        "OFFPATH_PS_NODE": f"{name}-ps", "OFFPATH_INA": "1", "OFFPATH_SWITCHES": json.dumps({node: switch.address}),
    }  # fmt: skip
    words = [
        switch.directory, "--steps", str(steps), "--seed", str(seed), "--data-bytes", str(_DATA_BYTES), "--window",
        f"{WINDOW}:{WINDOW}:{WINDOW}", "--payload-bytes", str(_PAYLOAD), *(["--plain-hash"] if is_plain else []),
    ]  # fmt: skip
    return start(_PROCESS, *words, more=environment)


def _measured(events: list[dict[str, Any]], directory: str, name: str, steps: int, right: str) -> tuple[float, bool]:
    """The aggregated part over the steady steps, and whether the weights are ``right``."""
    with open(os.path.join(directory, f"{name}-a.json"), encoding="ascii") as file:
        found = json.load(file)
    times = [event["t_ns"] for event in events]
    begin_ns, end_ns = found["steps_ns"][int(_WARM * steps)][0], found["steps_ns"][-1][1]
    begin, end = (events[min(len(events) - 1, bisect_left(times, at))] for at in (begin_ns, end_ns))
    counts = [each["jobs"].get(f"{job_number(name):016x}", {}) for each in (begin, end)]
    data, aggregated = (counts[1].get(what, 0) - counts[0].get(what, 0) for what in ("data", "aggregated"))
    return round(aggregated / data, 4) if data else 0.0, found["weights"] == right


def plain(points: list[Ratio]) -> list[dict[str, Any]]:
    """As JSON has them."""
    return [asdict(point) for point in points]
