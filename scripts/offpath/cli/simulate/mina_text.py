"""What `offpath simulate mina` prints: the paper's value, ours with the least and greatest, and whether it is met."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

TABLE_1: Final = {
    (False, False, False): (0.263, 0.080), (True, False, False): (0.483, 0.129), (True, True, False): (0.900, 0.223),
    (True, True, True): (0.982, 0.224), (False, True, True): (0.947, 0.199), (True, False, True): (0.979, 0.123),
}  # fmt: skip
BAR: Final = 0.02


def text(data: dict[str, Any]) -> str:
    """All parts that were run."""
    parts = (
        ("table1", _table_1), ("figure_2", _figure_2), ("figure_4", _figure_4), ("figure_5", _figure_5),
        ("figure_11", _figure_11), ("figure_12", _figure_12), ("figure_13", _figure_13), ("figure_14", _figure_14),
        ("beyond", _beyond), ("where", _where),
    )  # fmt: skip
    return "\n\n".join("\n".join(told(data[name])) for name, told in parts if name in data)


def within(paper: float, values: Sequence[float]) -> bool:
    """The paper's value is within the bar of our mean, or between our least and greatest."""
    return abs(statistics.fmean(values) - paper) <= BAR or min(values) <= paper <= max(values)


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean [least, greatest]."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def _by(rows: Iterable[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def _of(rows: Iterable[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows]


def _jct(rows: Sequence[dict[str, Any]]) -> str:
    jct, none, best = (statistics.fmean(_of(rows, f"avg_jct{which}_s")) for which in ("", "_no_ina", "_all_ina"))
    return f"JCT {jct:.4f} s (none {none:.4f}, all {best:.4f}: {1 - best / none:.2%} to gain)"


def _table_1(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["Table I: JP TB RS, efficiency score and utilisation: paper, ours [least, greatest]"]
    for (variant, jp, tb, rs), cells in _by(rows, "variant", "jp", "tb", "rs").items():
        score, used = TABLE_1[jp, tb, rs]
        scores = _of(cells, "efficiency_score")
        mark = "" if variant != "figures" else "  met" if within(score, scores) else "  NOT met"
        lines.append(
            f"  {variant:8} {'-+'[jp]} {'-+'[tb]} {'-+'[rs]}  {score:.3f}  {spread(scores)}   {used:.3f} "
            f" {spread(_of(cells, 'utilisation'))}   {_jct(cells)}{mark}"
        )
    return lines


def _figure_2(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["Figure 2: fragments per job and share of jobs whose trees meet, over jobs served"]
    for row in rows:
        points = row["points"]
        lines.append(
            f"  seed {row['seed']}: correlation {_correlation(points):.2f}; first quarter / last quarter: "
            + ", ".join(
                f"{name} {_quarter(points, name, 0):.2f} / {_quarter(points, name, 3):.2f}"
                for name in ("fragments", "conflict")
            )
        )
    return lines


def _quarter(points: list[dict[str, Any]], name: str, which: int) -> float:
    size = max(1, len(points) // 4)
    return statistics.fmean(_of(points[which * size : (which + 1) * size], name))


def _correlation(points: list[dict[str, Any]]) -> float:
    return statistics.correlation(_of(points, "fragments"), _of(points, "conflict"))


def _figure_4(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"Figures 3 and 4: a step of {rows[0]['model']}"]
    for name, each in rows[0]["rows"].items():
        lines.append(
            f"  INA for {name:6} ({each['with_ina']:2} operations, {each['ina_s'] * 1e3:6.2f} ms): step"
            f" {each['step_s'] * 1e3:.2f} ms, communication {each['communication_s'] * 1e3:.2f} ms, gaps in it"
            f" {each['gaps_s'] * 1e3:.2f} ms"
        )
    return lines


def _figure_5(rows: list[dict[str, Any]]) -> list[str]:
    return [f"Figure 5: turning point of {rows[0]['model']} at {rows[0]['turning_point'] / 1e9:.2f} GB/s"]


def _figure_11(rows: list[dict[str, Any]]) -> list[str]:
    cells = _by(rows, "which", "seed")
    seeds = sorted({row["seed"] for row in rows})
    mina, baseline = ([cells[which, seed] for seed in seeds] for which in ("mina", "baseline"))
    means = [statistics.fmean(_of(each, "efficiency_score")) for each in mina]
    lows = [statistics.fmean(_of(each, "efficiency_score")) for each in baseline]
    times = [
        statistics.fmean(a["utilisation"] / b["utilisation"] for a, b in zip(one, other, strict=True))
        for one, other in zip(mina, baseline, strict=True)
    ]
    return [
        "Figure 11, ten lists of hosts: paper, ours [least, greatest] over seeds",
        f"  MINA, mean score      0.968   {spread(means)}   {'met' if within(0.968, means) else 'NOT met'}",
        f"  baseline, mean score  0.399   {spread(lows)}   {'met' if within(0.399, lows) else 'NOT met'}",
        f"  utilisation, times    2.32    {spread(times, 2)}",
        f"  MINA: {_jct([row for each in mina for row in each])}",
    ]


def _figure_12(rows: list[dict[str, Any]]) -> list[str]:
    return ["Figure 12, 49 pairs: mean score, pairs above 0.95 (paper: 0.939, 33 that round to it)"] + [
        f"  {row['rule']:14} {row['mean']:.4f}  {row['above_0.95']} above, {row['round_to_0.95']} round to it"
        f"   {row['all_reduces_per_s']:,} all-reduces/s, all contended"
        for row in rows
    ]


_FIGURE_13_ENDS: Final = {
    "8:1": {"random": 0.034, "first-n": 0.234, "fragments": 0.369},
    "8:8": {"random": 0.376, "first-n": 0.806, "fragments": 0.900},
}
"""The paper's, by links down : up."""


def _figure_13(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["Figure 13: score by oversubscription (random, first-n, fragments)"]
    gains = []
    for (up,), cells in _by(rows, "oversubscription").items():
        by = {jp: _of(each, "efficiency_score") for (jp,), each in _by(cells, "placement").items()}
        gains.append(statistics.fmean(by["fragments"]) - statistics.fmean(by["first-n"]))
        lines.append(f"  {up}  " + "  ".join(f"{name} {spread(values)}" for name, values in by.items()))
        lines.append("       " + _jct([cell for cell in cells if cell["placement"] == "fragments"]) + ", fragments")
        for name, paper in _FIGURE_13_ENDS.get(up, {}).items():
            if name in by:
                lines.append(f"       {name}, paper {paper:.3f}: {'met' if within(paper, by[name]) else 'NOT met'}")
    lines.append(
        f"  fragments over first-n: mean {statistics.fmean(gains):+.3f} (paper +0.131), most {max(gains):+.3f} (+0.173)"
    )
    return lines


def _figure_14(rows: list[dict[str, Any]]) -> list[str]:
    return ["Figure 14: score and time of a plan by candidates k"] + [
        f"  k {k:2}  {spread(_of(cells, 'efficiency_score'))}  {spread(_of(cells, 'plan_ms'), 1)} ms  {_jct(cells)}"
        for (k,), cells in _by(rows, "k").items()
    ]


def _beyond(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["Beyond: score of trees and rule; difference of the last to each on the same jobs, 95 % interval"]
    for (setting,), cells in _by(rows, "setting").items():
        by = _by(cells, "trees", "rule")
        *others, best = by
        for name, each in by.items():
            lines.append(f"  {setting:7} {' + '.join(name):30} {spread(_of(each, 'efficiency_score'))}   {_jct(each)}")
        for name in others:
            pairs = zip(_of(by[best], "efficiency_score"), _of(by[name], "efficiency_score"), strict=True)
            lines.append(f"          {' + '.join(best)} over {' + '.join(name)}: {interval([a - b for a, b in pairs])}")
    return lines


_STUDENT: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}


def interval(differences: Sequence[float]) -> str:
    """Mean and Student's 95 % interval of paired differences."""
    mean = statistics.fmean(differences)
    count = len(differences)
    if count < 2:
        return f"{mean:+.4f} (one seed, no interval)"
    half = _STUDENT.get(count, 1.96 + 2.8 / count) * statistics.stdev(differences) / math.sqrt(count)
    return f"{mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}], {count} seeds"


WORLD: Final = ("arrivals", "contention", "batch", "gpu_speedup", "oversubscription", "bandwidth")
"""What a row of `where` is told by."""


def gains(rows: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, list[float]]]:
    """By `WORLD`, then by trees and rule, per seed: which part of the mean JCT without INA is saved. "all": if nobody
    were in INA's way. With contention of links the JCT without INA is another run's."""
    found: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for world, cells in _by(rows, *WORLD).items():
        plain = {row["seed"]: row["avg_jct_s"] for row in cells if row["rule"] == "none"}
        saved = found.setdefault(world, {})
        for row in cells:
            none = plain.get(row["seed"], row["avg_jct_no_ina_s"])
            if row["rule"] != "none":
                saved.setdefault(f"{row['placement']} + {row['trees']} + {row['rule']}", []).append(
                    1 - row["avg_jct_s"] / none
                )
        firsts = {row["seed"]: row for row in cells}.values()
        saved["all"] = [1 - r["avg_jct_all_ina_s"] / plain.get(r["seed"], r["avg_jct_no_ina_s"]) for r in firsts]
    return found


def _where(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["Where sharing matters: part of the mean JCT without INA that is saved; all: if nobody were in INA's way"]
    for (arrivals, contention, batch, speed, up, bandwidth), saved in gains(rows).items():
        lines.append(
            f"  {arrivals:6} {'contended' if contention else '':9} batch {batch:2} GPU x{speed:g} links {up} "
            f"{bandwidth / 1e9:5.2f} GB/s:  "
            + "  ".join(f"{name} {statistics.fmean(each):.2%}" for name, each in saved.items())
        )
    return lines
