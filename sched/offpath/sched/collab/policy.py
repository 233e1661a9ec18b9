"""The port of policies for federated jobs, and the policies by name: which waiting job a device that checks in gets.

A policy decides at two times. `CollabPolicy.replan` runs when requests come or end: it orders the jobs within each group
and says for each atom which groups are tried, in which order. A check-in then takes the first job of the first group
that still needs a device; it computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from offpath.sched.collab import irs
from offpath.sched.collab.fairness import Standing, demand, queue
from offpath.sched.errors import SchedError

GROUP: Final = "offpath.collab"
"""Group of entry points: a callable without arguments that makes a `CollabPolicy`."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that still needs devices. ``rank``: random, drawn once for the round, for policies that draw lots."""

    job: str
    bit: int
    remaining: int
    """Devices that this round still needs; of all rounds, where `rounds` is known."""
    arrived_ns: int
    """Of the job."""
    rank: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class Ranking:
    """``jobs``: bit → names, first to last. ``tries``: atom → bits, first to last."""

    jobs: Mapping[int, tuple[str, ...]]
    tries: Mapping[int, tuple[int, ...]]


class CollabPolicy(Protocol):
    """Deterministic: equal arguments, equal answer."""

    name: str

    def replan(self, waiting: Sequence[Waiting], supply: Mapping[int, int]) -> Ranking:
        """``supply``: atom → check-ins of a day; every atom that a device may have is in it."""


def _by_bit(waiting: Sequence[Waiting], key: Callable[[Waiting], tuple[float, int, str]]) -> dict[int, list[Waiting]]:
    found: dict[int, list[Waiting]] = {}
    for each in sorted(waiting, key=key):
        found.setdefault(each.bit, []).append(each)
    return found


def _names(groups: Mapping[int, Sequence[Waiting]]) -> dict[int, tuple[str, ...]]:
    return {bit: tuple(each.job for each in jobs) for bit, jobs in groups.items()}


class Venn:
    """Algorithm 1 across groups, remaining demand within a group. ``epsilon``: fairness (§4.4); 0: none."""

    name = "venn-paper"

    def __init__(self, epsilon: float = 0.0, reading: irs.Reading = irs.PAPER) -> None:
        self._epsilon, self._reading = epsilon, reading

    def replan(self, waiting: Sequence[Waiting], supply: Mapping[int, int]) -> Ranking:
        """See `CollabPolicy.replan`. A device that its owner does not need goes to the scarcest group that can use it."""
        count = len(waiting)

        def key(each: Waiting) -> tuple[float, int, str]:
            return demand(each.remaining, each.standing, count, self._epsilon), each.arrived_ns, each.job

        groups = _by_bit(waiting, key)
        queues = [
            irs.Group(bit, queue((each.standing for each in jobs), count, self._epsilon))
            for bit, jobs in sorted(groups.items())
        ]
        plan = irs.plan(queues, supply, self._reading)
        tries = {}
        for atom in supply:
            able = tuple(bit for bit in plan.order if atom >> bit & 1)
            owner = plan.owner.get(atom)
            tries[atom] = able if owner is None else (owner, *(bit for bit in able if bit != owner))
        return Ranking(_names(groups), tries)


class Ordered:
    """One order of all jobs: a device gets the first one that it can run."""

    def __init__(self, name: str, key: Callable[[Waiting], float]) -> None:
        self.name, self._key = name, key

    def replan(self, waiting: Sequence[Waiting], supply: Mapping[int, int]) -> Ranking:
        """See `CollabPolicy.replan`. Groups are tried in the order of their first jobs."""

        def key(each: Waiting) -> tuple[float, int, str]:
            return self._key(each), each.arrived_ns, each.job

        groups = _by_bit(waiting, key)
        order = sorted(groups, key=lambda bit: key(groups[bit][0]))
        return Ranking(_names(groups), {atom: tuple(bit for bit in order if atom >> bit & 1) for atom in supply})


POLICIES: Final[dict[str, Callable[[], CollabPolicy]]] = {
    "venn-paper": Venn,
    "fifo": lambda: Ordered("fifo", lambda each: each.arrived_ns),
    "srsf": lambda: Ordered("srsf", lambda each: each.remaining),
    "random": lambda: Ordered("random", lambda each: each.rank),
}


def make(name: str) -> CollabPolicy:
    """Raises: SchedError: unknown name."""
    if name not in POLICIES:
        raise SchedError(f"unknown policy {name!r}; known policies: {', '.join(POLICIES)}")
    return POLICIES[name]()
