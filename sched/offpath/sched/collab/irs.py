"""Intersection Resource Scheduling (Venn §4.2, algorithm 1): which group of jobs owns which atoms.

Jobs with the same requirement are a group. Lines 6 to 9: the group with the scarcest devices takes all of its atoms,
the next one takes what is left, and so on. Lines 10 to 23: a group with more devices takes intersections from scarcer
ones where its queue is longer for its share. Every atom has at most one owner.

Where the text leaves a choice or has a slip, `Reading` says which one is taken:

- Line 15 divides by |S_k|, the text by |S'_k|: the text's is right (a group that gave all away would keep a ratio).
- Line 16 adds S_j ∩ S_k, also atoms that a third group owns, which then have two owners: S_j ∩ S'_k.
- The order in which a group asks the scarcer ones is open: by |S_k|, descending, as the last sentence of §4.2.2 wants.
- m' grows by m'_k with each intersection taken (the text), or stays the group's own queue.
- A group whose share is empty has nothing to take with (line 12). One without supply is served last, not divided by.

A plan is changed, not made anew, when queues change. While a group asks, it changes atoms of its own and of scarcer
groups only, and no queue that another group reads. So a step of line 11 has the same result as before if the owners
before it are the same, and neither its own queue nor one that it read has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.sched.collab.requirements import MOST_REQUIREMENTS


@dataclass(frozen=True, slots=True)
class Reading:
    """``accumulates``: m'_j grows by m'_k. ``breaks``: line 19, the first group that keeps its share ends the turn."""

    accumulates: bool = True
    breaks: bool = True


PAPER: Final = Reading()
JOB: Final = 1_000_000
"""A queue of one job."""
_BYTES: Final = MOST_REQUIREMENTS // 8


@dataclass(frozen=True, slots=True)
class Group:
    """``bit``: its requirement's. ``queue``: jobs that wait, in `JOB` of a job, above 0; fairness weighs it (§4.4)."""

    bit: int
    queue: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``owner``: atom → bit of the group that owns it. ``order``: bits of all groups, the scarcest first."""

    owner: Mapping[int, int]
    order: tuple[int, ...]


def plan(groups: Sequence[Group], supply: Mapping[int, int], reading: Reading = PAPER) -> Plan:
    """The plan from scratch. ``supply``: atom → check-ins, at least 0. Deterministic: ties by bit."""
    made = Irs(reading)
    made.supplied(supply)
    for group in groups:
        made.queued(group.bit, group.queue)
    made.refresh()
    owners = {atom: owner for atom in sorted(supply) if (owner := made.owner(atom)) is not None}
    return Plan(owners, made.order)


@dataclass(slots=True)
class _Step:
    """One group's turn in line 11. Groups are numbers, the scarcest is 0.

    ``owner``: before it, shape [a], n: nobody. ``shares``: before it, |S'| by group. ``inside``: supply of the atoms
    that it can use, by owner. ``read``: a bit for each group whose queue it read. It took from ``taken``.
    """

    owner: NDArray[np.int16]
    shares: list[int]
    inside: list[int]
    read: int
    taken: tuple[int, ...]


class Irs:
    """The plan for queues and supply that change.

    A supply or a set of groups that is new costs O(n·a + n²) for n groups and a atoms. A queue that has changed costs
    O(n) for each group that reads it, and O(a + n) for each group before whose turn other owners are found.
    """

    def __init__(self, reading: Reading = PAPER) -> None:
        self.order: tuple[int, ...] = ()
        """Bits of the groups with a queue, the scarcest first."""
        self.turns = 0
        """Groups whose turn was computed, ever: what planning costs."""
        self.reading = reading
        self._queues: dict[int, int] = {}
        self._place: dict[int, int] = {}
        self._weights = np.zeros(0)
        self._members = np.zeros((0, MOST_REQUIREMENTS), bool)
        self._of_bit: list[int] = [0] * MOST_REQUIREMENTS
        self._columns: dict[int, NDArray[np.intp]] = {}
        self._others: dict[int, int | None] = {}
        self._changed: set[int] = set()
        self._is_new = True
        self._steps: list[_Step] = []
        self._owner = np.zeros(0, np.int16)
        self._sizes: list[int] = []

    def supplied(self, supply: Mapping[int, int]) -> None:
        """``supply``: atom → check-ins. Other atoms have none."""
        atoms = sorted(supply)
        self._place = {atom: place for place, atom in enumerate(atoms)}
        self._weights = np.array([supply[atom] for atom in atoms], np.float64)  # exact below 2**53
        raw = np.frombuffer(b"".join(atom.to_bytes(_BYTES, "little") for atom in atoms), np.uint8)
        bits = np.unpackbits(raw.reshape(len(atoms), _BYTES), axis=1, bitorder="little")
        self._members = bits.astype(bool)
        self._of_bit = (self._weights @ bits).astype(np.int64).tolist()
        self._columns = {}
        self._is_new = True

    def queued(self, bit: int, queue: int) -> None:
        """The group's queue, in `JOB` of a job; 0: none of its jobs waits, it takes no part."""
        old = self._queues.get(bit, 0)
        if queue == old:
            return
        if queue:
            self._queues[bit] = queue
        else:
            del self._queues[bit]
        if old and queue:
            self._changed.add(bit)
        else:
            self._is_new = True

    def owner(self, atom: int) -> int | None:
        """The bit of the group that owns the atom, of present queues and supply."""
        if self._is_new or self._changed:
            self.refresh()
        place = self._place.get(atom)
        if place is None:
            return self._owner_of_other(atom)
        number = self._owner.item(place)
        return self.order[number] if number < len(self.order) else None

    def refresh(self) -> None:
        """Plan again, if something has changed since the last plan."""
        if self._is_new:
            self._begin()
            self._take_turns(0, known=False)
        elif self._changed:
            self._take_turns(sum(1 << n for n, bit in enumerate(self.order) if bit in self._changed), known=True)
        self._changed.clear()
        self._is_new = False
        self._others.clear()

    # -- inside ---------------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        """Lines 5 to 9."""
        sizes = self._of_bit
        self.order = tuple(sorted(self._queues, key=lambda bit: (sizes[bit], bit)))
        self._sizes = [sizes[bit] for bit in self.order]
        count = len(self.order)
        able = np.ones((len(self._weights), count + 1), bool)
        able[:, :count] = self._members[:, list(self.order)]
        owner = able.argmax(axis=1).astype(np.int16)
        shares = np.bincount(owner, self._weights, count + 1).astype(np.int64).tolist()
        for bit in self.order:
            if bit not in self._columns:
                self._columns[bit] = np.flatnonzero(self._members[:, bit])
        self._steps = [_Step(owner, shares, [], 0, ()) for _ in range(count)]
        self._owner = owner

    def _take_turns(self, changed: int, *, known: bool) -> None:
        """Lines 10 to 23. ``changed``: a bit for each group with another queue. ``known``: the steps are of a plan that
        differs in nothing else."""
        found: tuple[NDArray[np.int16], list[int]] | None = None  # owners and shares; None: those of the step
        for number in range(len(self._steps) - 1, -1, -1):
            step = self._steps[number]
            if known and found is not None and np.array_equal(found[0], step.owner):
                found = None
            if known and found is None:
                if not step.read & changed:
                    continue
                self.turns += 1
                step.read, taken = self._asked(number, step.inside, step.shares)
                if taken == step.taken:
                    continue
                step.taken = taken
            else:
                self.turns += 1
                step = self._steps[number] = self._turn(number, *(found or (step.owner, step.shares)))
            found = self._moved(number, step)
        if found is not None:
            self._owner = found[0]

    def _turn(self, number: int, owner: NDArray[np.int16], shares: list[int]) -> _Step:
        inside: list[int] = []
        if shares[number]:
            column = self._columns[self.order[number]]
            found = np.bincount(owner[column], self._weights[column], len(shares))
            inside = found.astype(np.int64).tolist()
        return _Step(owner, shares, inside, *self._asked(number, inside, shares))

    def _asked(self, number: int, inside: Sequence[int], shares: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Lines 12 to 21: whose queues were read, and who loses what the group can use."""
        share, size, order, sizes = shares[number], self._sizes[number], self.order, self._sizes
        if not share:
            return 0, ()
        queues = self._queues
        queue, taken, read = queues[order[number]], [], 1 << number
        for giver in range(number - 1, -1, -1):
            both = inside[giver]
            if not both or sizes[giver] == size:
                continue  # nothing of its share can be used, or it is not scarcer
            its = queues[order[giver]]
            read |= 1 << giver
            if queue * shares[giver] > its * share:
                taken.append(giver)
                share += both
                queue += its if self.reading.accumulates else 0
            elif self.reading.breaks:
                break
        return read, tuple(taken)

    def _moved(self, number: int, step: _Step) -> tuple[NDArray[np.int16], list[int]]:
        """Lines 16 and 17, for all that the group takes."""
        if not step.taken:
            return step.owner, step.shares
        shares = list(step.shares)
        loses = np.zeros(len(shares), bool)
        for giver in step.taken:
            loses[giver] = True
            shares[giver] -= step.inside[giver]
            shares[number] += step.inside[giver]
        owner, column = step.owner.copy(), self._columns[self.order[number]]
        owner[column[loses[owner[column]]]] = number
        return owner, shares

    def _owner_of_other(self, atom: int) -> int | None:
        """Of an atom without supply: it goes where those with supply go."""
        if atom not in self._others:
            able = [number for number, bit in enumerate(self.order) if atom >> bit & 1]
            owner = able[0] if able else None
            for number in reversed(able):
                if owner in self._steps[number].taken:
                    owner = number
            self._others[atom] = None if owner is None else self.order[owner]
        return self._others[atom]
