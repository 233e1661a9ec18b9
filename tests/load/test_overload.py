"""Ten times more work than the node can do (open loop): what is admitted is served as fast as ever, the rest is told
early, memory stays where the configuration puts it, and who keeps to his share notices nothing.

Sixteen tenants hold one instance of two lanes each; a kernel sleeps 20 ms, so that lanes bind and not the two cores.
The daemon has a core of its own; the load, the helper and its workers have the other.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.memory.slots import slot_stride
from offpath.dpu_daemon.requests.request_stats import ENDED_KEPT

from ..sizes import sized
from ..support.cluster import Cluster
from ..support.crowd_main import SIZES
from ..support.evidence import keep
from ..support.processes import Process

TENANTS = [f"t{n:02}" for n in range(16)]
FLOODER = TENANTS[0]
SLOTS, MAX_JOBS, LANES = 16, 2, 2
LANE_BYTES = 64 << 10
ROUNDS = sized(quick=1, fast=1, slow=3, full=3)
MOST_ROUNDS = 4 * ROUNDS
"""Other work on the machine spoils some rounds, a fault spoils all: ``ROUNDS`` in a row within the bars are enough."""
BARS: dict[str, tuple[float, float]] = {
    "goodput_over_peak": (0.9, math.inf), "p99_over_unloaded": (0, 3), "victims_kept": (0.9, math.inf)
}  # fmt: skip
BLOCK_S = sized(quick=1.0, fast=1.0, slow=1.5, full=5.0)
BUDGET_PER_REQUEST = 4096
BUDGET_PER_ENDED = 1024
BUDGET_FIXED = 2 << 20
"""Of the daemon's own memory (RssAnon) while it is overloaded: so much for each request that the configuration lets it
know of at once (every slot of every session), for each ended job that it remembers for `offpath request show` (930
bytes, measured), and so much for the allocator."""


@pytest.fixture
def crowd() -> Iterator[tuple[Cluster, Process]]:
    """The node, warm, and the tenants' process."""
    pins = [{"tenant": name, "gpu": n // 7, "profile": "1g.5gb", "start": n % 7} for n, name in enumerate(TENANTS)]
    table = {"max_jobs": MAX_JOBS, "max_slots": SLOTS, "max_sessions": 1, "max_share": 14}
    leasing = {"lanes": LANES, "landing_bytes": LANE_BYTES, "result_bytes": LANE_BYTES}
    cluster = Cluster({name: dict(table) for name in TENANTS}, lease=pins, leasing=leasing)
    ours = os.sched_getaffinity(0)
    cores = sorted(ours)
    try:
        if len(cores) > 1:
            os.sched_setaffinity(cluster.daemon.pid, cores[:1])
            os.sched_setaffinity(0, cores[1:])  # what is started from here on inherits it
        cluster.start_helper(emulate=["A100-40GB"] * 3)
        process = cluster.start("crowd", "crowd_main.py", cluster.address, str(cluster.folder), str(SLOTS), *TENANTS)
        assert process.hear() == "ready"
        ask(process, seconds=1.0, closed=1)
        yield cluster, process
        process._stdin.close()
        assert process.ended() == 0
        cluster.close()
    finally:
        os.sched_setaffinity(0, ours)
        cluster.kill()


def ask(process: Process, **wish: Any) -> dict[str, Any]:
    answer: dict[str, Any] = process.ask(json.dumps(wish))
    assert answer["unanswered"] == 0, answer["counted"]
    return answer


def goodput(answer: dict[str, Any], names: list[str]) -> float:
    return sum(answer["per_s"][name] for name in names)


def p99_ms(answer: dict[str, Any]) -> float:
    every = sorted(each for latencies in answer["latencies"].values() for each in latencies)
    return every[min(len(every) - 1, len(every) * 99 // 100)] * 1e3


def shared_bytes(pid: int) -> int:
    found = re.search(r"^RssShmem:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def test_overload_ten_times_over_costs_only_who_overloads(
    crowd: tuple[Cluster, Process], capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks of one round, and what they are for:

    Latencies are the requesters': from the doorbell to the answer taken, of requests that were COMPLETED.

    - *unloaded*: each tenant one request every ten kernels, evenly spaced, so that none meets another of its own;
    - *peak*: each tenant always has its ``max_jobs`` in flight;
    - *tenfold*: arrivals at random (Poisson), ten times the peak's rate in all; tenants wait when told to;
    - *alone*, *beside*: fifteen tenants at 80 % of the peak, evenly spaced; beside them the sixteenth at ten times
      its peak, deaf to what it is told.
    """
    cluster, process = crowd
    victims = [name for name in TENANTS if name != FLOODER]
    daemon = cluster.daemon
    known = len(TENANTS) * SLOTS
    regions = known * (slot_stride(SIZES["payload_bytes"]) + slot_stride(SIZES["result_bytes"]))
    lanes = len(TENANTS) * LANES * 2 * LANE_BYTES
    own = known * BUDGET_PER_REQUEST + ENDED_KEPT * BUDGET_PER_ENDED + BUDGET_FIXED
    start = daemon.rss_anon()
    rows: list[dict[str, float]] = []
    counted: Counter[str] = Counter()
    while len(rows) < MOST_ROUNDS and not is_met(rows):
        unloaded = ask(process, seconds=BLOCK_S, rates=dict.fromkeys(TENANTS, 5.0), even=True)
        peak = ask(process, seconds=BLOCK_S, closed=MAX_JOBS)
        each = goodput(peak, TENANTS) / len(TENANTS)
        tenfold = ask(process, seconds=BLOCK_S, rates=dict.fromkeys(TENANTS, 10 * each))
        share = dict.fromkeys(victims, 0.8 * each)
        alone = ask(process, seconds=BLOCK_S, rates=share, even=True)
        beside = ask(process, seconds=BLOCK_S, rates={**share, FLOODER: 10 * each}, even=True, rude=[FLOODER])
        for of_tenant in tenfold["counted"].values():
            counted.update(of_tenant)
        rows.append(
            {
                "peak_per_s": goodput(peak, TENANTS),
                "tenfold_per_s": goodput(tenfold, TENANTS),
                "goodput_over_peak": goodput(tenfold, TENANTS) / goodput(peak, TENANTS),
                "unloaded_p99_ms": p99_ms(unloaded),
                "admitted_p99_ms": p99_ms(tenfold),
                "p99_over_unloaded": p99_ms(tenfold) / p99_ms(unloaded),
                "victims_kept": goodput(beside, victims) / goodput(alone, victims),
                "worst_victim_kept": min(beside["per_s"][name] / alone["per_s"][name] for name in victims),
                "own_mib": (daemon.rss_anon() - start) / (1 << 20),
            }
        )
    median = medians(rows)
    text = table(rows[-ROUNDS:], median, counted, own, daemon.rss_anon(), regions, lanes, shared_bytes(daemon.pid))
    with capsys.disabled():
        keep("overload.txt", "\n" + text)
    assert counted["refused"] > 0
    assert daemon.rss_anon() - start <= own
    assert shared_bytes(daemon.pid) <= regions + lanes
    assert is_met(rows), (len(rows), median)


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Of the last rounds."""
    last = rows[-ROUNDS:]
    return {key: statistics.median(row[key] for row in last) for key in last[0]}


def is_met(rows: list[dict[str, float]]) -> bool:
    if len(rows) < ROUNDS:
        return False
    median = medians(rows)
    return all(least <= median[key] <= most for key, (least, most) in BARS.items())


def table(
    rows: list[dict[str, float]], median: dict[str, float], counted: Counter[str], own: int, anon: int, regions: int,
    lanes: int, shared: int,
) -> str:  # fmt: skip
    """For people."""
    bars = {"goodput_over_peak": "≥ 0.9", "p99_over_unloaded": "≤ 3", "victims_kept": "≥ 0.9"}
    lines = [
        f"overload: {len(TENANTS)} tenants, {len(rows)} rounds of {BLOCK_S:g} s blocks, {time.strftime('%Y-%m-%d')}"
    ]
    for key in median:
        values = ", ".join(f"{row[key]:.4g}" for row in rows)
        lines.append(f"  {key}: median {median[key]:.4g} [{values}] {bars.get(key, '')}".rstrip())
    arrived = counted["arrived"]
    lines.append("  tenfold: " + ", ".join(f"{key} {count} ({count / arrived:.1%})" for key, count in counted.items()))
    lines.append(
        f"  memory: own (RssAnon) {anon / (1 << 20):.1f} MiB, may grow by {own / (1 << 20):.1f}; regions and lanes "
        f"(RssShmem) {shared / (1 << 20):.1f} of {(regions + lanes) / (1 << 20):.1f} MiB"
    )
    return "\n".join(lines) + "\n"
