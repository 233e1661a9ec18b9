"""`daemon`, part ``idle``: what an idle daemon and one with few requests cost, by ``datapath.spin_us``."""

from __future__ import annotations

import os
import re
import statistics
import time
from typing import Any, Final

import numpy as np

from offpath.cli.bench.measure import cpu_ns
from offpath.cli.bench.node import Node

SPINS_US: Final = (0, 150)
RATES: Final = (10, 100, 1000)
"""Requests of 4 KB per second, one after the other."""
_PAYLOAD: Final = np.zeros(4096, np.uint8)
_SETTLED_S: Final = 1.0


def idle_rows(quick: bool) -> list[dict[str, Any]]:
    """For each ``spin_us``: CPU time in % of a core and wake-ups per second of a daemon with a helper and a session but
    no request; then, by rate, the same and the p50 in µs."""
    rest_s, rate_s = (10.0, 4.0) if quick else (60.0, 20.0)
    return [row for spin_us in SPINS_US for row in of_one_daemon(spin_us, rest_s, rate_s)]


def idle_lines(rows: list[dict[str, Any]]) -> list[str]:
    """One line per row."""
    lines = ["idle, and few requests: CPU of a core, wake-ups per second, CPU per request, p50"]
    for row in rows:
        text = f"  spin {row['spin_us']:3} µs, {row['rate']:4}/s: {row['cpu_percent']:.3f} %, {row['wakeups']:.1f}/s"
        if row["rate"]:
            text += f", {row['cpu_us']:.0f} µs, {row['p50_us']:.0f} µs"
        lines.append(text)
    return lines


def of_one_daemon(spin_us: int, rest_s: float, rate_s: float) -> list[dict[str, Any]]:
    """The rows of one daemon: at rest for ``rest_s``, then each rate for ``rate_s``."""
    with Node(spin_us=spin_us) as node:
        node.latencies_us(_PAYLOAD, 200)
        return [_measured(node, spin_us, rate, rest_s if not rate else rate_s) for rate in (0, *RATES)]


def _measured(node: Node, spin_us: int, rate: int, seconds: float) -> dict[str, Any]:
    time.sleep(_SETTLED_S)
    pid = node.daemon_pid
    begun, used_ns, wakeups = time.monotonic(), cpu_ns([pid]), _wakeups(pid)
    latencies = _at_rate(node, rate, seconds) if rate else []
    if not rate:
        time.sleep(seconds)
    used_ns, wakeups, lasted_s = cpu_ns([pid]) - used_ns, _wakeups(pid) - wakeups, time.monotonic() - begun
    row = {
        "spin_us": spin_us, "rate": rate, "cpu_percent": round(100 * used_ns / 1e9 / lasted_s, 4),
        "wakeups": round(wakeups / lasted_s, 2),
    }  # fmt: skip
    if latencies:
        row["cpu_us"] = round(used_ns / 1e3 / len(latencies), 1)
        row["p50_us"] = round(statistics.median(latencies), 1)
    return row


def _at_rate(node: Node, rate: int, seconds: float) -> list[float]:
    """Latencies in µs of requests that are due at equal distances; a late one is submitted at once."""
    taken: list[float] = []
    begun = time.monotonic()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        taken += node.latencies_us(_PAYLOAD, 1)
    return taken


def _wakeups(pid: int) -> int:
    """How often the process's threads went to sleep, since each sleep ends in a wake-up."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as file:
            found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", file.read(), re.M)
        assert found is not None
        total += int(found[1])
    return total
