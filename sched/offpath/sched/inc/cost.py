"""HIRE's cost model (appendix A, Tables 4 and 5), term by term.

Every term is a whole number of hundredths, 0 … 100; an edge costs the average of its terms, rounded down, plus a
penalty. Where the text has several readings, `readings` says which are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, exp, floor, isqrt, pi, tanh
from typing import Final

from offpath.sched.inc.readings import Distance, Gain, Preference, Reading

ONE: Final = 100
"""1.0 in hundredths: the precision of the authors' simulator."""
SELECTOR: Final = 1 * ONE
"""S → F."""
PREFERENCE: Final = 3
"""Φ_pref's greatest value."""
LOWER_MS: Final = 500
UPPER_MS: Final = 2_000
"""Φ_pref's thresholds (§6.2). The upper one is also the time after which a flavor decision is preempted."""
FLAVOR_DELAY_MS: Final = 500
"""Φ_w's threshold (§6.2)."""


@dataclass(frozen=True, slots=True)
class EdgeCost:
    """``terms``: of σ, by name. ``penalty``: what is added after flattening."""

    terms: tuple[tuple[str, int], ...]
    penalty: int = 0

    @property
    def total(self) -> int:
        """The average of the terms, rounded down, and the penalty."""
        return sum(value for _, value in self.terms) // len(self.terms) + self.penalty if self.terms else self.penalty


def decisive(chosen: Sequence[EdgeCost], other: Sequence[EdgeCost]) -> tuple[tuple[str, int], ...]:
    """Why the path ``chosen`` is cheaper than ``other``: by how many hundredths each term's share of its edge favours
    it, greatest first; only terms that favour it. Empty if nothing does: then the choice was a tie."""
    gains: dict[str, int] = {}
    for sign, path in ((-1, chosen), (1, other)):
        for edge in path:
            for name, value in edge.terms:
                gains[name] = gains.get(name, 0) + sign * value * ONE // len(edge.terms)
            gains["penalty"] = gains.get("penalty", 0) + sign * edge.penalty * ONE
    found = [(name, gain // ONE) for name, gain in gains.items() if gain >= ONE]
    return tuple(sorted(found, key=lambda each: (-each[1], each[0])))


# -- averages ------------------------------------------------------------------------------------------------------


def average(values: Sequence[int]) -> int:
    """Rounded down; 0 of nothing."""
    return sum(values) // len(values) if values else 0


def deviation(values: Sequence[int]) -> int:
    """Of the population, rounded down: ⌊√(n Σv² − (Σv)²) / n⌋; 0 of nothing. At most 50 for values of 0 … 100."""
    count = len(values)
    return isqrt(count * sum(each * each for each in values) - sum(values) ** 2) // count if count else 0


def utilization(used: Sequence[int], capacity: Sequence[int]) -> list[int]:
    """u: by dimension, in hundredths. A dimension that the node does not have is left out."""
    return [ONE * one // all_ for one, all_ in zip(used, capacity, strict=True) if all_]


def portions(demand: Sequence[int], rest: Sequence[int], reading: Reading) -> list[int]:
    """d ⊘ r: by dimension, at most 100. With nothing left, what is demanded is 100; what is not demanded is left out,
    or 0 where the reading keeps it."""
    found = []
    for need, left in zip(demand, rest, strict=True):
        if left > 0:
            found.append(min(ONE, ONE * need // left))
        elif need or not reading.is_nothing_left_out:
            found.append(ONE if need else 0)
    return found


# -- M → K ---------------------------------------------------------------------------------------------------------


def server_sink(used: Sequence[int], capacity: Sequence[int], reading: Reading) -> EdgeCost:
    """M^s → K: how full the server is, and how evenly."""
    return EdgeCost(_load(used, capacity, reading))


def switch_sink(
    used: Sequence[int], capacity: Sequence[int], level: int, top: int, active: int, most: int, reading: Reading
) -> EdgeCost:
    """M^n → K. ``level``: hops to the nearest server, at most ``top``. ``active``: services, at most ``most``."""
    return EdgeCost((
        *_load(used, capacity, reading),
        ("distance", tor(level, top, reading)),
        ("active services", ONE * active // most if most else ONE),
    ))  # fmt: skip


def _load(used: Sequence[int], capacity: Sequence[int], reading: Reading) -> tuple[tuple[str, int], ...]:
    load = utilization(used, capacity)
    spread = deviation(load)
    return ("utilization", average(load)), ("balance", spread if reading.is_balance_rewarded else ONE - spread)


def tor(level: int, top: int, reading: Reading) -> int:
    """Φ_ToR."""
    if reading.distance is Distance.INVERSE:
        return ONE // level
    if top <= 1:
        return 0
    far = ONE * (level - 1) // (top - 1)
    return far if reading.distance is Distance.FAR_IS_DEAR else ONE * (top - level) // (top - 1)


# -- G → N, G → M --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def fit(demand: tuple[int, ...], rest: tuple[int, ...], reading: Reading) -> tuple[int, int]:
    """avg(d ⊘ r) and stddv(d ⊘ r). Nodes with the same rest are many, so results are kept."""
    parts = portions(demand, rest, reading)
    return average(parts), deviation(parts)


def shortcut(fitted: tuple[int, int], loc: int, interference: int, priority: int) -> EdgeCost:
    """G → N or G → M. ``fitted``: of `fit`; ``loc``: Φ_loc; ``interference``: Φ_new on switches, else the reading's
    constant; ``priority``: Φ_prio, 0 (highest) … 100."""
    return EdgeCost((
        ("utilization", fitted[0]), ("fit", fitted[1]), ("locality", loc), ("interference", interference),
        ("priority", priority),
    ))  # fmt: skip


def shortcut_total(fitted: tuple[int, int], loc: int, interference: int, priority: int) -> int:
    """`shortcut`'s total, for the many places that are only compared."""
    return (fitted[0] + fitted[1] + loc + interference + priority) // 5


def new(is_active: bool, active: int, most: int) -> int:
    """Φ_new: 0 if the service runs there already, else 1 / (δ + 1), δ the share of active services."""
    return 0 if is_active else ONE * most // (active + most) if most else ONE


def gain(value: int, greatest: int, reading: Reading) -> int:
    """Γ's part of Φ_loc. ``greatest``: Γ's maximum over the switches; 0: the group runs nowhere."""
    if reading.gain is Gain.PRINTED:
        return ONE * value // greatest if greatest else 0
    if not value or not greatest:
        return ONE
    if reading.gain is Gain.LOWERS:
        return ONE - ONE * value // greatest
    return _floor(ONE * exp(value / greatest - 1))


def locality(parts: Sequence[tuple[int, int]]) -> int:
    """Φ_loc: ``parts`` are weights (running tasks) and costs, of the group and of those that it is connected to. 100
    if none of them runs: then nothing is near."""
    weight = sum(each for each, _ in parts)
    return sum(each * cost for each, cost in parts) // weight if weight else ONE


# -- G → P, F → P, F → G -------------------------------------------------------------------------------------------


def postpone(wait_ms: int, longest_ms: int, scheduled: int, tasks: int, reading: Reading) -> EdgeCost:
    """G → P: Φ_delay = w e^(scheduled / |G|) / (max w · e), and the penalty."""
    delay = _floor(ONE * wait_ms * exp(scheduled / tasks - 1) / longest_ms) if longest_ms > 0 else 0
    return EdgeCost((("delay", min(ONE, delay)),), reading.postpone)


def flavor_postpone(wait_ms: int, reading: Reading) -> EdgeCost:
    """F → P: Φ_w = ½ cos((w / threshold − 1) π) + ½, 1 above the threshold, and the penalty."""
    if not reading.has_flavor_delay:
        return EdgeCost((), reading.flavor_postpone)
    ratio = min(1.0, wait_ms / FLAVOR_DELAY_MS)
    return EdgeCost((("delay", _floor(ONE * (0.5 * cos((ratio - 1) * pi) + 0.5))),), reading.flavor_postpone)


def preference(wait_ms: int, is_inc: bool, reading: Reading) -> int:
    """Φ_pref, in hundredths.

    As printed the ratio is the inverse waiting time: 1 at the lower threshold, 0 at the upper; so the term is 1 below,
    0 at the lower threshold, rises to 3 and ends at 0. Falling, the ratio is the waiting time.
    """
    if reading.is_preference_on_servers_only and is_inc:
        return 0
    if wait_ms > UPPER_MS:
        return 0
    if wait_ms < LOWER_MS:
        return ONE if reading.preference is Preference.PRINTED else PREFERENCE * ONE
    ratio = (wait_ms - LOWER_MS) / (UPPER_MS - LOWER_MS)
    if reading.preference is Preference.PRINTED:
        ratio = 1 - ratio
    return _floor(PREFERENCE * ONE * -tanh(3 * ratio - 3))


def flavor(estimate: int, least: int, most: int, wait_ms: int, is_inc: bool, reading: Reading) -> EdgeCost:
    """F → G: Φ_x, the estimated cost of the whole flavor against that of the job's others (``least`` … ``most``), and
    Φ_pref. Rescaled it is ½ … 1, ½ if all are equal; the simulator also weighs by pending tasks, which is left out."""
    if not reading.is_flavor_cost_rescaled:
        part = ONE * estimate // most if most else 0
    else:
        part = ONE // 2 + (ONE // 2 * (estimate - least) // (most - least) if most > least else 0)
    return EdgeCost((("flavor", part),), preference(wait_ms, is_inc, reading))


def _floor(value: float) -> int:
    """Rounded down, but for what a whole number misses by the error of a float."""
    return floor(value + 1e-9)
