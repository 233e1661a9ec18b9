"""What `demo netpack` reports, and its verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from offpath.cli.demo.netpack.ratios import Ratio
from offpath.cli.demo.netpack.ratios import plain as plain_ratios
from offpath.cli.demo.netpack.workload import RATE, RTT_S, Live, Ran

BAR: Final = 0.95
PAPER_R: Final = 0.98
LEAST_JOBS: Final = 8
"""Fewer decide nothing: r of the five jobs of ``--quick`` is chance."""
MOST_BUSY: Final = 0.85
"""Of the cores while the jobs ran: above, other work shaped their times, and the bar decides nothing."""


def correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Pearson's r; NaN: fewer than three pairs, or no spread.

    >>> correlation([(1, 2), (2, 4), (3, 6)])
    1.0
    """
    n = len(pairs)
    if n < 3:
        return math.nan
    mean_x, mean_y = (sum(pair[side] for pair in pairs) / n for side in (0, 1))
    xx, yy = (sum((pair[side] - mean) ** 2 for pair in pairs) for side, mean in ((0, mean_x), (1, mean_y)))
    if not xx or not yy:
        return math.nan
    return round(sum((x - mean_x) * (y - mean_y) for x, y in pairs) / math.sqrt(xx * yy), 4)


def cores() -> tuple[int, int]:
    """Ticks of all cores since the machine's start: in all, and idle."""
    ticks = [int(word) for word in Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def busy_part(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Part of the cores' time between the two that was not idle."""
    return 1 - (after[1] - before[1]) / max(1, after[0] - before[0])


def build(engine: str, live: Live, points: list[Ratio], busy: float) -> dict[str, Any]:
    """The whole report as plain data."""
    ran, switch = live.ran, live.switch
    rates = [(est, got) for each in ran for est, got, _ in each.points]
    times = [(each.simulated_s, each.jct_s) for each in ran]
    corr: dict[str, dict[str, Any]] = {
        "figure_6": {"r": correlation(times), "points": len(times), "bar": BAR, "paper": PAPER_R},
        "figure_15": {
            "r": correlation(rates), "points": len(rates),
            "mean_measured_over_estimated": round(sum(got / est for est, got in rates) / len(rates), 4)
            if rates else None,
        },
    }  # fmt: skip
    is_quiet = busy <= MOST_BUSY
    is_judged = is_quiet and len(times) >= LEAST_JOBS
    faults = [f"job {each.job.name}: its weights differ from a run without a network" for each in ran
              if not each.is_exact]  # fmt: skip
    faults += [f"figure 14, {each.job}: weights differ from a run without a network" for each in points
               if not each.is_exact]  # fmt: skip
    r = corr["figure_6"]["r"]
    if is_judged and not r >= BAR:
        faults.append(f"figure 6: r = {r} between simulated and live times, bar {BAR}")
    return {
        "engine": engine, "jobs": [_job(each) for each in ran], "agg_ratio": plain_ratios(points), "corr": corr,
        "switch": {name: switch[name] for name in ("aggregators", "dropped", "malformed", "unread", "links")},
        "assumptions": {
            "link_mbps": RATE.link_mbps, "rtt_ms": RATE.rtt_ms, "rtt_with_ecn_threshold_ms": round(RTT_S * 1e3, 1),
            "engine_start_s": [round(each, 2) for each in live.start_s.values()],
            "delay": "emulated between switch and PS", "hash": "rehash after a collision, as ATP",
        },
        "busy_part": round(busy, 3), "is_quiet": is_quiet, "is_judged": is_judged, "faults": faults, "ok": not faults,
    }  # fmt: skip


def _job(each: Ran) -> dict[str, Any]:
    return {
        "job": each.job.name, "gpus": each.job.gpus, "servers": each.servers, "ps": each.ps,
        "rate_est": round(each.rate_est), "rate_measured": round(each.rate_measured), "jct_s": round(each.jct_s, 3),
        "simulated_jct_s": round(each.simulated_s, 3), "is_exact": each.is_exact,
        "accuracy": round(each.accuracy, 4), "rtt_ms": round(each.rtt_ms, 1), "window": round(each.window, 1),
        "points": [(round(est), round(got), steps) for est, got, steps in each.points],
    }  # fmt: skip


def render(made: dict[str, Any]) -> str:
    """For people."""
    lines = [f"engine {made['engine']}, {made['seconds']} s, cores busy {made['busy_part']:.0%}", ""]
    lines.append("job      GPUs  servers (PS)                 rate est / measured, Mbit/s   JCT simulated / live, s")
    for job in made["jobs"]:
        where = f"{'+'.join(job['servers'])} ({job['ps'] or '-'})"
        rate = f"{job['rate_est'] / 1e6:.1f} / {job['rate_measured'] / 1e6:.1f}" if job["rate_est"] else "no traffic"
        times = f"{job['simulated_jct_s']:.1f} / {job['jct_s']:.1f}"
        lines.append(f"{job['job']:8} {job['gpus']:4}  {where:28} {rate:>28}   {times:>23}")
    lines += ["", "aggregated part of the traffic (figure 14)", "PAT ratio  jobs  hash    measured  paper's model"]
    lines += [
        f"{each['pat_ratio']:9g}  {each['jobs']:4}  {each['hash']:6}  {each['ratio']:8.3f}  {each['model']:13.3f}"
        for each in made["agg_ratio"]
    ]
    six, fifteen = made["corr"]["figure_6"], made["corr"]["figure_15"]
    lines += [
        "", f"figure 6: r = {six['r']} (paper {six['paper']}, bar {six['bar']}; {six['points']} jobs)"
        + ("" if made["is_judged"] else ": not judged, the machine is busy or the jobs are few"),
        f"figure 15: r = {fifteen['r']} ({fifteen['points']} points); measured / estimated "
        f"{fifteen['mean_measured_over_estimated']}",
        "weights equal a run without a network: " + ("yes" if all(j["is_exact"] for j in made["jobs"]) else "NO"),
    ]  # fmt: skip
    return "\n".join(lines)
