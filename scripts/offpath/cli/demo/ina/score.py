"""Computes scores and their intervals from timed steps, and the greatest score that any schedule could reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Final

NONE: Final = "none"
ALL: Final = "all"
MODES: Final = (NONE, ALL, "exclusive", "alternate", "trylock", "shared")
_DRAWS: Final = 2_000
_TAIL: Final = 0.05
_GRID: Final = 2_000


@dataclass(frozen=True, slots=True)
class Block:
    """Steps of one mode in one block: seconds per step [steps], by job; ``ina_s``: how long the operations of a step
    held the tree, on average, by job; ``with_ina``, ``refused``, ``plain``: operations, by job."""

    steps_s: tuple[tuple[float, ...], ...]
    ina_s: tuple[float, ...]
    with_ina: tuple[int, ...]
    refused: tuple[int, ...]
    plain: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A mode over all blocks of a setting. ``jct_s``: of all measured steps; by job, as the scores are."""

    mode: str
    jct_s: tuple[float, ...]
    jct_s_ci90: tuple[tuple[float, float], ...]
    efficiency_score: tuple[float, ...]
    efficiency_score_ci90: tuple[tuple[float, float], ...]
    mean_score: float
    mean_score_ci90: tuple[float, float]


def runs(blocks: Sequence[Mapping[str, Block]], seed: int = 0) -> list[Run]:
    """Each mode against ``none`` and ``all`` of the same blocks. Intervals of 90 %: blocks drawn with replacement, the
    same ones for all modes, because a disturbance affects a whole block.
    """
    random = Random(seed)
    whole = range(len(blocks))
    draws = [[random.choice(whole) for _ in whole] for _ in range(_DRAWS)]
    return [_run(blocks, mode, whole, draws) for mode in blocks[0]]


def _run(blocks: Sequence[Mapping[str, Block]], mode: str, whole: Sequence[int], draws: Sequence[Sequence[int]]) -> Run:
    jobs = range(len(blocks[0][mode].steps_s))
    means = {name: [[fmean(each[name].steps_s[job]) for each in blocks] for job in jobs] for name in (NONE, ALL, mode)}

    def score(job: int, chosen: Sequence[int]) -> float:
        none, best, ours = (fmean(means[name][job][n] for n in chosen) for name in (NONE, ALL, mode))
        return (none - ours) / (none - best) if none > best else 0.0

    def jct(job: int, chosen: Sequence[int]) -> float:
        return sum(sum(blocks[n][mode].steps_s[job]) for n in chosen)

    scores = [score(job, whole) for job in jobs]
    drawn = [[score(job, chosen) for chosen in draws] for job in jobs]
    return Run(
        mode,
        tuple(jct(job, whole) for job in jobs),
        tuple(interval([jct(job, chosen) for chosen in draws]) for job in jobs),
        tuple(scores),
        tuple(interval(each) for each in drawn),
        fmean(scores),
        interval([fmean(each) for each in zip(*drawn, strict=True)]),
    )


def interval(drawn: Sequence[float]) -> tuple[float, float]:
    """Of 90 %."""
    ordered = sorted(drawn)
    return ordered[int(_TAIL * len(ordered))], ordered[int((1 - _TAIL) * len(ordered)) - 1]


def bound(none_s: tuple[float, float], all_s: tuple[float, float], ina_s: tuple[float, float]) -> tuple[float, float]:
    """The greatest scores of two jobs on a tree that carries one operation at a time, for an ideal schedule.

    A job that gets the share x of INA's saving takes none − x (none − all) per step, and holds the tree x times as
    long as with INA for all. Together they can hold it at most all the time. Of the feasible shares, the result has
    the greatest mean (of equals, the most alike). No schedule of whole operations does better.
    """

    def held(job: int, share: float) -> float:
        return share * ina_s[job] / (none_s[job] - share * (none_s[job] - all_s[job]))

    def most(job: int, room: float) -> float:
        need = ina_s[job] + room * (none_s[job] - all_s[job])
        return min(1.0, max(0.0, room) * none_s[job] / need) if need > 0 else 1.0

    pairs = ((n / _GRID, most(1, 1.0 - held(0, n / _GRID))) for n in range(_GRID + 1) if held(0, n / _GRID) <= 1.0)
    return max(pairs, key=lambda pair: (round(pair[0] + pair[1], 4), -abs(pair[0] - pair[1])))


def demand(all_s: Sequence[float], ina_s: Sequence[float]) -> float:
    """The part of the time that all jobs would hold the tree if each had INA for all; above 1: more than available."""
    return sum(held / step for held, step in zip(ina_s, all_s, strict=True))
