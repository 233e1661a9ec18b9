"""Rows of `offpath simulate venn`: means over seeds with 95 % intervals, the paper's numbers beside them, and text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

from offpath.cli.simulate import venn_reference as paper
from offpath.cli.venn.workloads import CATEGORIES

Finished = tuple[dict[str, Any], dict[str, Any]]
"""The arguments of a piece, and its result."""
Row = dict[str, Any]
RANDOM: Final = "random"
QUARTERS: Final = (25, 50, 75)
_MEANS: Final = ("avg_jct_s", "sched_delay_s", "response_s", "waste", "aborted_rounds", "fair_share")


def seed_rows(finished: Iterable[Finished]) -> list[Row]:
    """A row for each run, with its speed-up over random matching of the same world."""
    some = [(words["part"], words["world"], result) for words, result in finished if words["kind"] == "cell"]
    base = {
        _setting(part, world): result
        for part, world, result in some if world["policy"] == RANDOM and not result["unended_jobs"]
    }  # fmt: skip
    rows = []
    for part, world, result in some:
        against = base.get(_setting(part, world))
        rows.append({
            "part": part, **world, **result,
            "speedup": None if against is None else round(against["avg_jct_s"] / result["avg_jct_s"], 4),
            "by_demand": None if against is None else by_demand(result, against),
            "by_category": None if against is None else by_category(result, against),
        })  # fmt: skip
    return rows


def _setting(part: str, world: dict[str, Any]) -> tuple[Any, ...]:
    """What a run shares with the run of random matching that it is compared with: ε and V are the policy's."""
    return (part, *(value for key, value in world.items() if key not in ("policy", "epsilon", "tiers")))


def by_demand(mine: Row, random: Row) -> list[float | None]:
    """Table 2: the mean speed-up of the jobs with the lowest total demands."""
    order = sorted(range(len(mine["demand"])), key=lambda job: (mine["demand"][job], job))
    return [_ratio(mine, random, order[: max(1, len(order) * part // 100)]) for part in QUARTERS]


def by_category(mine: Row, random: Row) -> list[float | None]:
    """Table 3."""
    return [
        _ratio(mine, random, [job for job, each in enumerate(mine["category"]) if each == category])
        for category in CATEGORIES
    ]


def _ratio(mine: Row, random: Row, jobs: Sequence[int]) -> float | None:
    if not jobs:
        return None
    ratio: float = sum(random["jct_s"][job] for job in jobs) / sum(mine["jct_s"][job] for job in jobs)
    return round(ratio, 4)


def mean_rows(rows: Sequence[Row]) -> list[Row]:
    """A row for each world and policy, over the seeds with which all jobs ended. ``unended_seeds``: the others."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(value for name, value in row.items() if name in _WORLD)
        found.setdefault((row["part"], *key), []).append(row)
    return [_mean(some) for some in found.values()]


_WORLD: Final = (
    "policy", "workload", "jobs", "share", "shorter", "tiers", "epsilon", "supply",
    "sessions_per_device", "diurnal", "session_sigma", "network_sigma",
)  # fmt: skip


def _mean(runs: Sequence[Row]) -> Row:
    some = [row for row in runs if not row["unended_jobs"]] or runs
    first = some[0]
    speedups = [row["speedup"] for row in some if row["speedup"] is not None]
    return {
        "part": first["part"], **{name: first[name] for name in _WORLD},
        "seeds": len(some), "unended_seeds": sum(row["unended_jobs"] > 0 for row in runs),
        **{name: round(statistics.fmean(row[name] for row in some), 4) for name in _MEANS},
        "speedup": round(statistics.fmean(speedups), 4) if speedups else None,
        "speedup_interval": interval(speedups),
        "by_demand": _columns([row["by_demand"] for row in some]),
        "by_category": _columns([row["by_category"] for row in some]),
        "checkins_per_s": round(statistics.fmean(row["checkins_per_s"] for row in some)),
        "paper": paper.paper_of(first["policy"], first["workload"]) if first["part"] == "tables" else None,
    }  # fmt: skip


_T: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t, 97.5 %, by degrees of freedom from 1; beyond them about the normal distribution's."""


def interval(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean; None: fewer than two values."""
    if len(values) < 2:
        return None
    t = _T[len(values) - 2] if len(values) - 2 < len(_T) else 2.0
    return round(t * statistics.stdev(values) / math.sqrt(len(values)), 4)


def _columns(some: Sequence[list[float | None] | None]) -> list[float | None] | None:
    lists = [each for each in some if each is not None]
    if not lists:
        return None
    columns = [[value for value in column if value is not None] for column in zip(*lists, strict=True)]
    return [round(statistics.fmean(column), 3) if column else None for column in columns]


def text(data: dict[str, Any]) -> str:
    """All rows, by part."""
    lines = []
    for part in dict.fromkeys(row["part"] for row in data["rows"]):
        lines.append(part)
        lines += [_line(row) for row in data["rows"] if row["part"] == part]
    for name, row in data["optimality"].get("policies", {}).items():
        lines.append(
            f"  {name:14} {row['gap']:6.1%} above the optimum of {row['cases']} small cases (worst {row['worst']:.0%},"
            f" the optimum in {row['optimal']:.0%})"
        )
    return "\n".join(lines)


def _line(row: Row) -> str:
    speedup = "" if row["speedup"] is None else f"{row['speedup']:.2f}×"
    around = "" if row["speedup_interval"] is None else f" ± {row['speedup_interval']:.2f}"
    printed = "" if row["paper"] is None else f" (paper {row['paper']:.2f}×)"
    unended = f", with {row['unended_seeds']} more seeds not all jobs ended" if row["unended_seeds"] else ""
    return (
        f"  {row['workload']:14} {row['policy']:14} jobs {row['jobs']:3} V {row['tiers']} ε {row['epsilon']:g}:"
        f" JCT {row['avg_jct_s']:10.0f} s, {speedup}{around}{printed}, delay {row['sched_delay_s']:.0f} s, response"
        f" {row['response_s']:.0f} s, waste {row['waste']:.1%}, aborted {row['aborted_rounds']:.0f}, fair share"
        f" {row['fair_share']:.0%}{unended}"
    )
