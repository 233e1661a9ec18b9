"""Text of `offpath simulate mina`: the paper's value, that of the authors' program if known, offpath's with the
least and greatest, and whether it is met.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

from offpath.cli.simulate import mina_reference as reference
from offpath.cli.simulate.mina_reference import Spread

BAR: Final = 0.02
_FEW: Final = 5
"""With fewer seeds a mean is unreliable: rows differ by up to 0.1 between seeds."""


def text(data: dict[str, Any]) -> str:
    """All parts that were run."""
    parts = (
        ("table1", _table_1), ("figure_2", _figure_2), ("figure_4", _figure_4), ("figure_5", _figure_5),
        ("figure_11", _figure_11), ("figure_12", _figure_12), ("figure_13", _figure_13), ("figure_14", _figure_14),
        ("beyond", _beyond), ("where", _where),
    )  # fmt: skip
    return "\n\n".join("\n".join(labels(data[name])) for name, labels in parts if name in data)


def within(paper: float, values: Sequence[float]) -> bool:
    """Whether the paper's value is within the tolerance of the mean of ``values``, or between their least and
    greatest.
    """
    return abs(statistics.fmean(values) - paper) <= BAR or min(values) <= paper <= max(values)


def verdict(authors: Spread, values: Sequence[float]) -> str:
    """Whether the mean of ``values`` is within the tolerance of the authors' program's; for few seeds, whether all are
    within its range.
    """
    if len(values) < _FEW:
        inside = authors.least <= min(values) and max(values) <= authors.greatest
        return "in the authors' range" if inside else "NOT in the authors' range"
    return "met" if round(abs(statistics.fmean(values) - authors.mean), 6) <= BAR else "NOT met"


def same_digits(authors: float, ours: float) -> str:
    """For one draw that both programs made."""
    equal = f"{authors:.3f}" == f"{ours:.3f}"
    return f"{ours:.6f}, {'equal to three digits' if equal else f'differs by {ours - authors:+.6f}'}"


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
    lines = [
        "Table I: JP TB RS, score: paper (one seed) | authors' program (ten seeds) | offpath; utilisation: paper |"
        " offpath"
    ]
    for (variant, jp, tb, rs), cells in _by(rows, "variant", "jp", "tb", "rs").items():
        (score, used), authors = reference.PAPER[jp, tb, rs], reference.AUTHORS[jp, tb, rs]
        scores = _of(cells, "efficiency_score")
        mark = "another baseline and other trees"
        if variant == "figures":
            mark = verdict(authors, scores) if cells[0]["draws"] == "own" else ""
        lines.append(
            f"  {variant:8} {'-+'[jp]} {'-+'[tb]} {'-+'[rs]}  {score:.3f} | {authors.mean:.3f} [{authors.least:.3f},"
            f" {authors.greatest:.3f}] | {spread(scores)}  {mark}   {used:.3f} | {spread(_of(cells, 'utilisation'))}"
            f"   {_jct(cells)}"
        )
        lines += [f"           {each}" for each in (*_one_draw(cells, jp, tb, rs), *_moves(cells, jp, tb, rs))]
    return lines


def _one_draw(cells: list[dict[str, Any]], jp: bool, tb: bool, rs: bool) -> list[str]:
    return [
        f"seed {each['seed']}, authors' draws: authors {authors:.6f},"
        f" offpath {same_digits(authors, each['efficiency_score'])}"
        for each in cells
        if each["draws"] == "llvm" and each["seed"] == reference.SEED
        for authors in (reference.AUTHORS_42[jp, tb, rs],)
    ]


def _moves(cells: list[dict[str, Any]], jp: bool, tb: bool, rs: bool) -> list[str]:
    """For planned trees: how often a job's tree changes, and how often the paper's simulator would count it."""
    if not tb:
        return []
    everything, counted = reference.TABLE_1_MIGRATIONS.get((jp, tb, rs), (None, None))
    theirs = f"; authors' program, seed 42: {everything}, {counted}" if everything is not None else ""
    return [
        f"migrations per job: {spread(_of(cells, 'migrations'), 2)}, of operations in flight"
        f" {spread(_of(cells, 'migrations_in_flight'), 2)}{theirs if cells[0]['variant'] == 'figures' else ''}"
    ]


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
    paper, authors = reference.FIGURE_11_BASELINE
    by_list = [
        f"{theirs:.3f} / {statistics.fmean(_of(cells, 'efficiency_score')):.3f}"
        for theirs, (_, cells) in zip(
            reference.FIGURE_11_BASELINE_BY_LIST,
            sorted(_by((row for each in baseline for row in each), "histogram").items()),
            strict=False,
        )
    ]
    near = len(seeds) < _FEW or abs(statistics.fmean(lows) - authors) <= BAR
    return [
        "Figure 11, ten lists of hosts: paper (one seed) | authors' program (seeds 0 to 2) | offpath over seeds",
        f"  MINA, mean score      {reference.FIGURE_11_MINA} | not known | {spread(means)}"
        f"   {'met' if within(reference.FIGURE_11_MINA, means) else 'NOT met'}",
        f"  baseline, mean score  {paper} | {authors} | {spread(lows)}"
        f"   {'few seeds' if len(seeds) < _FEW else 'met' if near else 'NOT met'}",
        f"  baseline by list, authors' program / offpath: {', '.join(by_list)}",
        f"  utilisation, times    {reference.FIGURE_11_UTILISATION} | not known | {spread(times, 2)}",
        *_moves_by_list([row for each in mina for row in each]),
        f"  MINA: {_jct([row for each in mina for row in each])}",
    ]


def _moves_by_list(rows: list[dict[str, Any]]) -> list[str]:
    """Migrations of operations in flight, beside the authors' of one seed."""
    found = [
        f"{theirs} / {statistics.fmean(_of(cells, 'migrations_in_flight')):.2f}"
        for theirs, (_, cells) in zip(
            reference.FIGURE_11_MIGRATIONS, sorted(_by(rows, "histogram").items()), strict=False
        )
    ]
    return [
        f"  MINA, migrations of operations in flight by list, authors' program (seed 42) / offpath: {', '.join(found)}"
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
    lines = [
        "Figure 14: score and time of a plan by candidates k; migrations per job: all, of operations in flight, the"
        " latter of the authors' program (seed 42)"
    ]
    for (k,), cells in _by(rows, "k").items():
        moves = " ".join(spread(_of(cells, name), 2) for name in ("migrations", "migrations_in_flight"))
        lines.append(
            f"  k {k:2}  {spread(_of(cells, 'efficiency_score'))}  {spread(_of(cells, 'plan_ms'), 1)} ms"
            f"  migrations {moves} ({reference.FIGURE_14_MIGRATIONS[k - 1]})  {_jct(cells)}"
        )
    return [*lines, f"  the paper's {reference.MIGRATIONS} migrations per job are of k = 8"]


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
"""The keys of a row of `where`."""


def gains(rows: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, list[float]]]:
    """By `WORLD`, then by trees and rule, per seed: the saved part of the mean JCT without INA. "all": without
    competition for INA. With contention of links, the JCT without INA is from another run.
    """
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
    lines = ["Where sharing matters: part of the mean JCT without INA that is saved; all: without competition for INA"]
    for (arrivals, contention, batch, speed, up, bandwidth), saved in gains(rows).items():
        lines.append(
            f"  {arrivals:6} {'contended' if contention else '':9} batch {batch:2} GPU x{speed:g} links {up} "
            f"{bandwidth / 1e9:5.2f} GB/s:  "
            + "  ".join(f"{name} {statistics.fmean(each):.2%}" for name, each in saved.items())
        )
    return lines
