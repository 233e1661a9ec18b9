"""The cheapest places of groups, by rows of costs. Groups with equal costs share a row and differ only in the order of
what is equally cheap: each has a node from which it counts on, so that groups do not all want the same places.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpath.sched.inc.cost_columns import Costs
from offpath.sched.inc.layers import Ints


class Turns(NamedTuple):
    """Groups and the order of what is equally cheap for them. ``rows``: shape [groups], where their costs are.
    ``starts``: shape [groups, 1], the node that comes first."""

    rows: Ints
    starts: NDArray[np.int32]


class Cheapest(NamedTuple):
    """The cheapest columns of each row of costs.

    ``limits``: by row, what the dearest of them costs. ``sure``: shape [rows, most], those that cost less, with their
    costs in ``values``; rows are filled with what costs ``dearest``. ``ties``: those that cost as much as the limit, as
    row times ``width`` plus column, rising; row ``n`` has ``counts[n]`` of them, from ``begins[n]`` on, of which
    ``wanted[n]`` are among the cheapest."""

    sure: NDArray[np.int32]
    values: NDArray[np.int32]
    ties: Ints
    begins: Ints
    counts: Ints
    limits: NDArray[np.int32]
    wanted: Ints
    width: int
    dearest: int

    def keys(self, turns: Turns, first: int, nodes: int) -> NDArray[np.int32]:
        """By group, sorted: cost times ``nodes`` plus how many nodes after its start it comes; shape [groups, most].
        Column 0 is node ``first``."""
        rows, starts = turns
        sure = self.sure[rows] + np.int32(first)
        values = self.values[rows]
        counts = self.counts[rows]
        if counts.any():
            # Of the ties those from the start on, and then those before it.
            begins = np.searchsorted(self.ties, rows * self.width + np.clip(starts[:, 0] - first, 0, self.width))
            begins -= self.begins[rows]
            numbers = np.arange(sure.shape[1])
            is_tie = numbers < np.minimum(self.wanted[rows], counts)[:, None]
            at = begins[:, None] + numbers
            at -= np.where(at >= counts[:, None], counts[:, None], 0)
            at += self.begins[rows][:, None]
            tied = (self.ties % self.width + first)[np.where(is_tie, at, 0)]
            sure = np.concatenate((sure, tied.astype(np.int32)), axis=1)
            values = np.concatenate((values, np.where(is_tie, self.limits[rows][:, None], self.dearest)), axis=1)
        sure -= starts
        sure += np.int32(nodes) * (sure < 0)
        sure += values * np.int32(nodes)
        sure.sort(axis=1)
        return sure[:, : self.sure.shape[1]]


def cheapest(costs: Costs, most: int, dearest: int) -> Cheapest:
    """Of each row the ``most`` cheapest columns, however equally cheap ones are ordered. What costs ``dearest`` or more
    is no place. ``costs``: shape [rows, columns], 0 or more."""
    height, width = costs.shape
    limits = np.full(height, dearest, np.int32)
    if width > most:
        limits = np.minimum(limits, np.partition(costs.astype(np.int32), most - 1, axis=1)[:, most - 1])
    flat, bounds = costs.reshape(-1), limits.astype(np.int16)[:, None]
    less = np.flatnonzero(costs < bounds)
    rows = less // width
    counts = np.bincount(rows, minlength=height)
    size = min(most, width)
    sure, values = np.zeros((height, size), np.int32), np.full((height, size), dearest, np.int32)
    places = rows, np.arange(len(less)) - np.repeat(np.cumsum(counts) - counts, counts)
    sure[places], values[places] = less - rows * width, flat[less]
    ties = np.flatnonzero(costs == np.where(bounds < dearest, bounds, np.int16(-1)))
    tied = np.bincount(ties // width, minlength=height)
    return Cheapest(sure, values, ties, np.cumsum(tied) - tied, tied, limits, size - counts, width, dearest)
