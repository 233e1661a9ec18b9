"""Rows of `offpath simulate hire`: means and deviations over seeds, the paper's numbers and claims beside them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from offpath.cli.hire.cells import FALLBACK, base_name, mode_of
from offpath.cli.simulate import hire_reference as paper
from offpath.cli.simulate.netpack_rows import spread

Finished = tuple[dict[str, Any], dict[str, Any]]
"""The arguments of a piece, and its result."""
Row = dict[str, Any]
SETTING: Final = ("part", "trace", "servers", "switches", "offered", "heterogeneous", "mu")
BASELINES: Final = ("k8++", "yarn++", "sparrow++", "coco++")
BEYOND_FROM: Final = 0.5
"""From this μ on `hire` must beat `hire-paper`."""
_LOADS: Final = ("cpu_milli", "recirculation", "stages", "sram_kib")
MEANS: Final[dict[str, tuple[str, ...]]] = {
    **{name: (name,) for name in ("inc_satisfied", "inc_groups_satisfied", "detours", "placed", "below_1_s")},
    **{f"load_{name}": ("load", name) for name in _LOADS},
    **{f"{name}_s": ("latency_s", name) for name in ("p50", "p90", "p99")},
}
"""Of a row of means: where a run's row has the value."""


def run_rows(finished: Iterable[Finished]) -> list[Row]:
    """A row for each run."""
    rows = []
    for words, result in finished:
        world = words["world"]
        policy = world["policy"]
        rows.append({
            "part": words["part"], "policy": base_name(policy), "mode": mode_of(policy), "name": policy,
            "mu": world["mu"], "heterogeneous": world["heterogeneous"], "seed": world["seed"],
            "offered": world["load"], "fallback": world["fallback"] or FALLBACK.get(policy),
            "placing_ms": world["placing_ms"],
            **{key: value for key, value in result.items() if key != "solve_ms"},
            "paper": paper.paper_of(policy, world["mu"], world["heterogeneous"]),
        })  # fmt: skip
    return rows


def mean_rows(rows: Sequence[Row]) -> list[Row]:
    """A row for each setting and policy: means over seeds, and their deviations (``…_sd``)."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((*(row[each] for each in SETTING), row["name"], row["fallback"]), []).append(row)
    means = []
    for key, some in found.items():
        mean: Row = {**dict(zip(SETTING, key, strict=False)), "name": key[-2], "fallback": key[-1],
                     "seeds": len(some), "inc_jobs": sum(row["inc_jobs"] for row in some),
                     "paper": some[0]["paper"]}  # fmt: skip
        for name, path in MEANS.items():
            values = [value for value in (_at(row, path) for row in some) if value is not None]
            average, deviation = spread(values) if values else (None, None)
            mean[name] = None if average is None else round(average, 4)
            mean[f"{name}_sd"] = None if deviation is None else round(deviation, 4)
        means.append(mean)
    return means


def _at(row: Row, path: Sequence[str]) -> float | None:
    found: Any = row
    for key in path:
        found = found[key]
    return None if found is None else float(found)


def speed_rows(finished: Iterable[Finished]) -> list[Row]:
    """Figure 7: the solver's processor time by μ, for each network."""
    by_mu: dict[float, list[float]] = {}
    for words, result in finished:
        by_mu.setdefault(words["world"]["mu"], []).extend(result["solve_ms"])
    rows = []
    for mu, took in sorted(by_mu.items()):
        took.sort()
        rows.append({"mu": mu, "networks": len(took), "p50_ms": round(statistics.median(took), 3) if took else None,
                     "p99_ms": round(took[int(0.99 * (len(took) - 1))], 3) if took else None})  # fmt: skip
    return rows


def tuned(means: Sequence[Row]) -> list[Row]:
    """For each baseline with a timeout: satisfied jobs (mean of both kinds of switches) and tail by its timeout, on
    seeds that no other part uses."""
    found: dict[tuple[str, float], list[Row]] = {}
    for row in means:
        if row["part"] == "tuning":
            found.setdefault((row["name"], row["fallback"]), []).append(row)
    return [
        {
            "name": name, "fallback": part,
            "inc_satisfied": round(statistics.fmean(row["inc_satisfied"] for row in some), 4),
            "p99_s": round(statistics.fmean(row["p99_s"] for row in some), 3), "chosen": FALLBACK.get(name) == part,
        }
        for (name, part), some in sorted(found.items())
    ]  # fmt: skip


def beyond(rows: Sequence[Row], ours: str) -> list[Row]:
    """``ours`` against `hire-paper` on the same seeds: satisfied jobs, detours, and detours on the jobs that both
    serve on switches."""
    found: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = {}
    for row in rows:
        if row["name"] in (ours, "hire-paper") and row["mu"] >= BEYOND_FROM and row["part"] != "load":
            setting = tuple(row[each] for each in SETTING)
            found.setdefault(setting, {}).setdefault(row["name"], {})[row["seed"]] = row
    differences = []
    for setting, by_name in found.items():
        seeds = sorted(set(by_name.get(ours, {})) & set(by_name.get("hire-paper", {})))
        if not seeds:
            continue
        pairs = [(by_name[ours][seed], by_name["hire-paper"][seed]) for seed in seeds]
        row = {**dict(zip(SETTING, setting, strict=True)), "name": ours, "seeds": len(seeds)}
        for name in ("inc_satisfied", "detours"):
            values = [(mine[name], theirs[name]) for mine, theirs in pairs if None not in (mine[name], theirs[name])]
            row[name] = round(statistics.fmean(mine for mine, _ in values), 4) if values else None
            row[f"{name}_paper"] = round(statistics.fmean(theirs for _, theirs in values), 4) if values else None
        maps = [(mine["detours_by_job"], theirs["detours_by_job"]) for mine, theirs in pairs]
        both = [(mine[job], theirs[job]) for mine, theirs in maps for job in mine if job in theirs]
        row["common_jobs"] = len(both)
        row["detours_common"] = round(statistics.fmean(mine for mine, _ in both), 4) if both else None
        row["detours_common_paper"] = round(statistics.fmean(theirs for _, theirs in both), 4) if both else None
        row["met"] = bool(values) and row["inc_satisfied"] > row["inc_satisfied_paper"] and (
            row["detours"] < row["detours_paper"]
        )  # fmt: skip
        differences.append(row)
    return differences


def claim_rows(means: Sequence[Row]) -> list[Row]:
    """The paper's claims against the rows of figure 8."""
    claims = []
    for is_heterogeneous in (False, True):
        at = {row["name"]: row for row in means
              if row["part"] == "8" and row["mu"] == 1 and row["heterogeneous"] == is_heterogeneous}  # fmt: skip
        claims += list(_claims(at, is_heterogeneous))
        few = {row["name"]: row for row in means
               if row["part"] == "8" and row["mu"] == 0.05 and row["heterogeneous"] == is_heterogeneous}  # fmt: skip
        best = _best(few, "inc_satisfied", max)
        if best and few.get("hire", {}).get("inc_satisfied") is not None and not is_heterogeneous:
            ahead = few["hire"]["inc_satisfied"] - best["inc_satisfied"]
            claims.append(_claim("μ = 0.05: ahead of the best baseline", False, f"≥ {paper.AHEAD_AT_5_PERCENT:.2f}",
                                 ahead, ahead >= paper.AHEAD_AT_5_PERCENT, best["name"]))  # fmt: skip
    return claims


def _claims(at: dict[str, Row], is_heterogeneous: bool) -> Iterable[Row]:
    mine = at.get("hire")
    best = _best(at, "inc_satisfied", max)
    if mine is None or best is None:
        return
    expected = paper.SATISFIED[is_heterogeneous] - paper.BEST_BASELINE[is_heterogeneous]
    ahead = mine["inc_satisfied"] - best["inc_satisfied"]
    yield _claim("μ = 1: satisfied jobs ahead of the best baseline", is_heterogeneous, f"{expected:.2f}", ahead,
                 ahead >= expected, best["name"])  # fmt: skip
    if "hire-one-flavor" in at:
        less = mine["inc_satisfied"] - at["hire-one-flavor"]["inc_satisfied"]
        most = paper.ONE_DECISION_LESS[is_heterogeneous]
        met = less >= most - 0.02 if is_heterogeneous else 0 < less <= most
        yield _claim("μ = 1: one decision for each job is behind by", is_heterogeneous,
                     f"{most:.2f}" if is_heterogeneous else f"≤ {most:.2f}", less, met, "hire-one-flavor")  # fmt: skip
    fewest = _best(at, "detours", min)
    if fewest is not None and mine["detours"] is not None and not is_heterogeneous:
        yield _claim("μ = 1: detours", False, f"< {paper.DETOURS}", mine["detours"], mine["detours"] < paper.DETOURS)
        saved = 1 - mine["detours"] / fewest["detours"] if fewest["detours"] else 0.0
        yield _claim("μ = 1: detours saved of the best baseline's", False, f"≥ {paper.DETOURS_SAVED:.2f}", saved,
                     saved >= paper.DETOURS_SAVED, fewest["name"])  # fmt: skip
    quickest = _best(at, "p99_s", min)
    if quickest is not None:
        saved = 1 - mine["p99_s"] / quickest["p99_s"]
        yield _claim("μ = 1: p99 latency saved of the best baseline's", is_heterogeneous, "0.50 to 0.60", saved,
                     saved >= paper.TAIL_SAVED[0], quickest["name"])  # fmt: skip
    yield _claim("μ = 1: allocations below 1 s", is_heterogeneous, f"{paper.BELOW_1_S:.2f}", mine["below_1_s"],
                 mine["below_1_s"] >= paper.BELOW_1_S)  # fmt: skip


def _best(at: dict[str, Row], name: str, of: Callable[..., Row]) -> Row | None:
    some = [row for row in at.values() if base_name(row["name"]) in BASELINES and row[name] is not None]
    return of(some, key=lambda row: row[name]) if some else None


def _claim(what: str, is_heterogeneous: bool, printed: str, value: float, met: bool, against: str = "") -> Row:
    return {"claim": what, "heterogeneous": is_heterogeneous, "paper": printed, "offpath": round(value, 4),
            "against": against, "met": met}  # fmt: skip
