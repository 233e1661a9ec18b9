"""Intersection Resource Scheduling (Venn §4.2, algorithm 1): which group of jobs owns which atoms.

Jobs with the same requirement are a group. Lines 6 to 9: the group with the scarcest devices takes all of its atoms, the
next one takes what is left, and so on. Lines 10 to 23: a group with more devices takes intersections from scarcer ones
where its queue is longer for its share. Every atom has at most one owner.

Where the text leaves a choice or has a slip, `Reading` says which one is taken:

- Line 15 divides by |S_k|, the text by |S'_k|: the text's is right (a group that gave all away would keep a finite ratio).
- Line 16 adds S_j ∩ S_k, also atoms that a third group owns, which then have two owners: S_j ∩ S'_k.
- The order in which a group asks the scarcer ones is open: by |S_k|, descending, as the last sentence of §4.2.2 wants.
- m' grows by m'_k with each intersection taken (the text), or stays the group's own queue.
- A group whose share is empty has nothing to take with (line 12). One without supply is served last, not divided by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Reading:
    """``accumulates``: m'_j grows by m'_k. ``breaks``: line 19, the first group that keeps its share ends the search."""

    accumulates: bool = True
    breaks: bool = True


PAPER: Final = Reading()
JOB: Final = 1_000_000
"""A queue of one job."""


@dataclass(frozen=True, slots=True)
class Group:
    """``bit``: its requirement's. ``queue``: jobs that wait, above 0, in `JOB` of a job: fairness weighs them (§4.4)."""

    bit: int
    queue: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``owner``: atom → bit of the group that owns it. ``order``: bits of all groups, the scarcest first: who else gets a
    device that its owner does not need."""

    owner: Mapping[int, int]
    order: tuple[int, ...]


def plan(groups: Sequence[Group], supply: Mapping[int, int], reading: Reading = PAPER) -> Plan:
    """``supply``: atom → check-ins, at least 0. Deterministic: ties by bit.

    O(n·a + n²) for n groups and a atoms, and a further O(n + a) for each intersection that changes its owner.
    """
    atoms = sorted(supply)
    weights = np.array([supply[atom] for atom in atoms], np.int64)
    members = np.array([[atom >> group.bit & 1 for atom in atoms] for group in groups], bool).reshape(
        len(groups), len(atoms)
    )
    return _Shares(groups, atoms, weights, members).merged(reading)


class _Shares:
    """``owner``: shape [a], the number of the group that owns the atom; n: nobody. ``inside``: shape [n, n + 1], the
    supply of what group k owns and group j could use."""

    def __init__(
        self, groups: Sequence[Group], atoms: Sequence[int], weights: NDArray[np.int64], members: NDArray[np.bool_]
    ) -> None:
        self._groups, self._atoms, self._weights, self._members = groups, atoms, weights, members
        self._sizes: list[int] = (members @ weights).tolist() if len(groups) else []
        self._scarcest = sorted(range(len(groups)), key=lambda each: (self._sizes[each], groups[each].bit))
        count = len(groups)
        self._owner = np.full(len(atoms), count)
        for number in reversed(self._scarcest):  # the scarcest one last: it overwrites
            self._owner[members[number]] = number
        owned = np.zeros((len(atoms), count + 1), np.int64)
        owned[np.arange(len(atoms)), self._owner] = weights
        self._inside = members.astype(np.int64) @ owned

    def merged(self, reading: Reading) -> Plan:
        """Lines 10 to 24."""
        queues = [group.queue for group in self._groups]
        abundant = self._scarcest[::-1]
        for place, taker in enumerate(abundant):
            queue = queues[taker]
            if not self._inside[taker, taker]:
                continue
            for giver in abundant[place + 1 :]:
                if self._sizes[giver] == self._sizes[taker] or not self._inside[taker, giver]:
                    continue  # not scarcer, or nothing of its share can be used
                if queue * int(self._inside[giver, giver]) > queues[giver] * int(self._inside[taker, taker]):
                    self._move(giver, taker)
                    queue += queues[giver] if reading.accumulates else 0
                elif reading.breaks:
                    break
            queues[taker] = queue
        groups, atoms = self._groups, self._atoms
        owners = {
            atom: groups[number].bit for atom, number in zip(atoms, self._owner.tolist(), strict=True) if number < len(groups)
        }  # fmt: skip
        return Plan(owners, tuple(groups[each].bit for each in self._scarcest))

    def _move(self, giver: int, taker: int) -> None:
        """Line 16 and 17."""
        moved = (self._owner == giver) & self._members[taker]
        supply = self._members[:, moved].astype(np.int64) @ self._weights[moved]
        self._inside[:, giver] -= supply
        self._inside[:, taker] += supply
        self._owner[moved] = taker
