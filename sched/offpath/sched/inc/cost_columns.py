"""`cost` for many nodes at once: the same whole numbers, as arrays. Only totals are computed here; the terms of the few
edges that decided something are worked out by `cost`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.sched.inc import cost
from offpath.sched.inc.columns import Columns, Flags, all_of
from offpath.sched.inc.cost import ONE
from offpath.sched.inc.layers import Ints
from offpath.sched.inc.readings import Reading

Costs = NDArray[np.int16]
UNFIT: Final = 16_000
"""Where a task does not fit. Above any sum of terms."""
_BLOCK: Final = 1 << 16
"""Values at a time: so many stay in the processor's cache."""
_NOTHING_LEFT: Final = 2.0**-20
"""Instead of 0 as a divisor: a demand of 0 has the part 0, and any other one far above 100."""


def average_and_deviation(values: Ints, counted: Flags) -> tuple[Ints, Ints]:
    """`cost.average` and `cost.deviation` of the last axis; ``counted``: which values there are."""
    count = _summed(counted)
    some = np.maximum(count, 1)
    values = np.where(counted, values, 0)
    total, squares = _summed(values), _summed(values * values)
    # The root of a whole number below 2^50 is exact after rounding down.
    root = np.sqrt((count * squares - total * total).astype(np.float64)).astype(np.int64)
    return total // some, root // some


def _summed(values: NDArray[Any]) -> Ints:
    """Over the last axis. It is short: adding its columns takes a third of the time of a sum along it."""
    found = values[..., 0].astype(np.int64)
    for at in range(1, values.shape[-1]):
        found += values[..., at]
    return found


# -- M → K ---------------------------------------------------------------------------------------------------------


SINK_TERMS: Final = ("utilization", "balance", "distance", "active services")
"""Of M → K; servers have the first two."""


def sinks(columns: Columns, top: int, reading: Reading) -> tuple[Ints, Ints]:
    """The terms of M → K, shape [nodes, 4], and their totals, shape [nodes]: `cost.server_sink` and
    `cost.switch_sink`. ``top``: the highest level."""
    terms = np.zeros((columns.hosts + columns.switches, 4), np.int64)
    on_server, on_switch = terms[: columns.hosts], terms[columns.hosts :]
    on_server[:, :2] = _load(columns.server_used, columns.server_capacity, reading)
    on_switch[:, :2] = _load(columns.switch_used, columns.switch_capacity, reading)
    far = np.array([cost.tor(level, top, reading) for level in range(1, top + 1)], np.int64)
    on_switch[:, 2] = far[columns.level - 1]
    most = columns.most_services
    on_switch[:, 3] = np.where(most > 0, ONE * columns.active // np.maximum(most, 1), ONE)
    totals = _summed(terms)
    totals[: columns.hosts] //= 2
    totals[columns.hosts :] //= 4
    return terms, totals


def _load(used: Ints, capacity: Ints, reading: Reading) -> Ints:
    average, spread = average_and_deviation(ONE * used // np.maximum(capacity, 1), capacity > 0)
    return np.stack((average, spread if reading.is_balance_rewarded else ONE - spread), 1)


# -- G → N, G → M --------------------------------------------------------------------------------------------------

EDGE_TERMS: Final = ("utilization", "fit", "locality", "interference", "priority")
"""Of `cost.shortcut`."""


def server_fits(demands: Ints, free: Ints, reading: Reading) -> Costs:
    """`cost.fit`'s average and deviation added up, or `UNFIT`, shape [demands, nodes]. ``free``: shape [nodes, 2]; a
    negative amount fits nothing.

    Of two values the average and the deviation, both rounded down, add up to the greater value, less 1 if the values
    differ by an odd number.
    """
    found = np.empty((len(demands), len(free)), np.int16)
    rows = max(1, _BLOCK // max(1, len(free)))
    for at in range(0, len(demands), rows):
        found[at : at + rows] = _server_fits(demands[at : at + rows], free, reading)
    found[:, ~all_of(free >= 0)] = UNFIT
    return found


def _server_fits(demands: Ints, free: Ints, reading: Reading) -> Costs:
    first, second = (_quotient(demands[:, at], free[:, at]) for at in (0, 1))
    exceeds = np.maximum(first, second) > ONE
    parts = [np.minimum(each, ONE, out=each).astype(np.int16) for each in (first, second)]
    found: Costs = np.maximum(*parts)
    found -= (parts[0] ^ parts[1]) & 1
    if reading.is_nothing_left_out:
        for at in (0, 1):
            _leave_out(found, parts[1 - at], demands[:, at] == 0, free[:, at] == 0)
    np.copyto(found, UNFIT, where=exceeds)
    return found


def _quotient(need: Ints, left: Ints) -> NDArray[np.float64]:
    """100 need / left, shape [needs, nodes]; above 100 where it does not fit. It is exact once it is rounded down: both
    are below 2^47, so that a quotient between two whole numbers is never rounded up to the next."""
    divisor = np.where(left > 0, left, _NOTHING_LEFT)
    return (ONE * need).astype(np.float64)[:, None] / divisor


def _leave_out(found: Costs, other: Costs, without_need: Flags, nothing_left: Flags) -> None:
    """Where nothing of a dimension is wanted and nothing is left, the other one's value is the average."""
    rows, nodes = np.nonzero(without_need)[0], np.nonzero(nothing_left)[0]
    if len(rows) and len(nodes):
        at = np.ix_(rows, nodes)
        found[at] = other[at]


def fits(needed: Ints, rest: Ints, reading: Reading) -> tuple[Ints, Ints]:
    """`cost.fit` of the last axis: average and deviation."""
    parts = np.where(rest > 0, np.minimum(ONE, ONE * needed // np.maximum(rest, 1)), np.where(needed > 0, ONE, 0))
    counted = (rest > 0) | (needed > 0) | (not reading.is_nothing_left_out)
    return average_and_deviation(parts, np.broadcast_to(counted, parts.shape))


def switch_fits(needed: Ints, rest: Ints, reading: Reading) -> Costs:
    """`cost.fit`'s average and deviation added up, or `UNFIT`. ``needed``: shape [demands, nodes, 3]; ``rest``: shape
    [nodes, 3]."""
    average, spread = fits(needed, rest, reading)
    is_fit = _summed(needed <= rest) == rest.shape[-1]
    found: Costs = np.where(is_fit, average + spread, UNFIT).astype(np.int16)
    return found


def new(is_active: Flags, active: Ints, most: Ints | int) -> Ints:
    """`cost.new` by switch."""
    some = np.maximum(most, 1)
    return np.where(is_active, 0, np.where(np.asarray(most) > 0, ONE * some // (active + some), ONE))
