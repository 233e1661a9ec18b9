"""Rows of `offpath simulate netpack`: means and deviations over seeds, the paper's numbers beside them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from offpath.cli.simulate.netpack_reference import paper_of

Finished = tuple[dict[str, Any], dict[str, Any]]
"""The arguments of a piece, and its result."""
REFERENCE: Final = "netpack"
BAR_SAVED: Final = 0.05
"""Of `netpack` over `netpack-paper` from `BAR_FROM`:1 up."""
BAR_FROM: Final = 10.0
BAR_LOST: Final = 0.01
"""At most lost anywhere."""
_T_95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t for 95 %, by degrees of freedom from 1."""


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; 0 for one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean's 95 % interval of paired differences; without bounds for one value."""
    mean, deviation = spread(values)
    if len(values) < 2:
        return -math.inf, math.inf
    half = _T_95[min(len(values) - 2, len(_T_95) - 1)] * deviation / math.sqrt(len(values))
    return mean - half, mean + half


def _groups(finished: Sequence[Finished], kind: str) -> dict[tuple[str, str], list[Finished]]:
    groups: dict[tuple[str, str], list[Finished]] = {}
    for words, result in finished:
        if words["kind"] == kind:
            setting = words["world"]["setting"] if kind == "cell" else words["labels"]["setting"]
            groups.setdefault((words["labels"]["figure"], setting), []).append((words, result))
    return groups


def figure_rows(finished: Sequence[Finished]) -> list[dict[str, Any]]:
    """A row per figure, setting and policy."""
    rows = []
    for (figure, setting), some in _groups(finished, "cell").items():
        if figure != "beyond":
            runs = [result["runs"] for _, result in some]
            rows += [_row(figure, setting, some[0][0], policy, runs) for policy in runs[0]]
    for (figure, setting), some in _groups(finished, "time").items():
        words = some[0][0]
        for policy in words["policies"]:
            mean, deviation = spread([result["runs"][policy]["place_s"] for _, result in some])
            rows.append({
                **_labels(figure, setting, words, policy, len(some)), "avg_jct_s": None, "avg_queue_s": None,
                "norm_jct": None, "de": None, "place_s": round(mean, 4), "place_sd_s": round(deviation, 4),
                "per_job_ms": round(mean / words["jobs"] * 1e3, 4),
            })  # fmt: skip
    return rows


def _labels(figure: str, setting: str, words: dict[str, Any], policy: str, seeds: int) -> dict[str, Any]:
    return {
        "figure": figure, "setting": setting, "x": words["labels"]["x"], "policy": policy, "seeds": seeds,
        "paper": paper_of(figure, setting, words["labels"]["x"]),
    }  # fmt: skip


def _row(figure: str, setting: str, words: dict[str, Any], policy: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """``norm_jct``: over that of `netpack` on the same seed. ``saved``: what `netpack` saves of this policy's."""
    row = _labels(figure, setting, words, policy, len(runs))
    row["jobs"] = words["world"]["count"]
    for name, key in (("jct", "jct_s"), ("queue", "queue_s"), ("run", "run_s")):
        mean, deviation = spread([each[policy][key] for each in runs])
        row[f"avg_{name}_s"], row[f"{name}_sd_s"] = round(mean, 1), round(deviation, 1)
    for name, key in (("jct", "jct_s"), ("run", "run_s")):
        mean, deviation = spread([each[policy][key] / each[REFERENCE][key] for each in runs])
        row[f"norm_{name}"], row[f"norm_{name}_sd"] = round(mean, 4), round(deviation, 4)
        saved = statistics.fmean(1 - each[REFERENCE][key] / each[policy][key] for each in runs)
        row["saved" if name == "jct" else "saved_run"] = round(saved, 4)
    mean, deviation = spread([each[policy]["de"] for each in runs])
    row["de"], row["de_sd"] = round(mean, 4), round(deviation, 4)
    row["de_gain"] = round(statistics.fmean(each[REFERENCE]["de"] / each[policy]["de"] - 1 for each in runs), 4)
    row["spanning"] = round(statistics.fmean(each[policy]["spanning"] for each in runs), 3)
    return row


def beyond_rows(finished: Sequence[Finished]) -> list[dict[str, Any]]:
    """`netpack` against `netpack-paper` on the same seeds: what it saves, with the mean's 95 % interval."""
    rows = []
    for (figure, setting), some in _groups(finished, "cell").items():
        if figure != "beyond":
            continue
        world = some[0][0]["world"]
        row: dict[str, Any] = {"setting": setting, "oversubscription": world["oversubscription"], "seeds": len(some)}
        for name, key in (("saved", "jct_s"), ("saved_run", "run_s")):
            values = [1 - r["runs"]["netpack"][key] / r["runs"]["netpack-paper"][key] for _, r in some]
            low, high = interval(values)
            row[name] = round(statistics.fmean(values), 4)
            row[f"{name}_low"], row[f"{name}_high"] = (
                round(each, 4) if math.isfinite(each) else None for each in (low, high)
            )
        row["bar"] = BAR_SAVED if world["oversubscription"] >= BAR_FROM else -BAR_LOST
        row["met"] = row["saved"] >= row["bar"]
        rows.append(row)
    return rows


def starved_rows(finished: Sequence[Finished]) -> list[dict[str, Any]]:
    """The stream on which ageing starves a large job, by policy."""
    by_policy: dict[str, list[dict[str, Any]]] = {}
    for words, result in finished:
        if words["kind"] == "starved":
            by_policy.setdefault(words["policy"], []).append(result)
    return [
        {
            "policy": policy, "seeds": len(some),
            "started": sum(each["started_while_small_arrive"] for each in some),
            "queue_s": round(statistics.fmean(each["queue_s"] for each in some), 1),
            "longest_queue_s": round(max(each["queue_s"] for each in some), 1),
            "window_s": round(statistics.fmean(each["last_arrival_s"] - each["arrived_s"] for each in some), 1),
            "bound_s": round(max(each["bound_s"] for each in some), 1),
            "within_bound": all(each["queue_s"] <= each["bound_s"] for each in some),
            "avg_jct_s": round(statistics.fmean(each["avg_jct_s"] for each in some), 1),
        }
        for policy, some in by_policy.items()
    ]  # fmt: skip


def exact_rows(finished: Sequence[Finished]) -> list[dict[str, Any]]:
    """By policy: the gap of its sum of d/v to the optimum of the corrected Table 3."""
    gaps: dict[str, list[float]] = {}
    for words, result in finished:
        if words["kind"] == "exact":
            for policy, some in result["gaps"].items():
                gaps.setdefault(policy, []).extend(some)
    return [
        {
            "policy": policy, "cases": len(some), "mean_gap": round(statistics.fmean(some), 4),
            "worst_gap": round(max(some), 4), "optimal": sum(each <= 1e-9 for each in some),
        }
        for policy, some in gaps.items()
    ]  # fmt: skip
