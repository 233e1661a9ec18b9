"""The port of policies for federated jobs: which waiting job a device that checks in gets.

A policy follows what changes, one job at a time, and answers a check-in with the jobs that may get the device, first to
last. Other packages offer theirs as entry points in the group `GROUP`: a callable from `Draw` to `CollabPolicy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from offpath.sched.collab.fairness import Standing

GROUP: Final = "offpath.collab"
"""Group of entry points."""
Draw = Callable[[int], int]
"""A uniform number from 0 to below its argument."""


class Waiting(NamedTuple):
    """A request that still needs devices. ``rank``: random, drawn once for the round, for policies that draw lots.

    A named tuple: one is made for each device that gets a job.
    """

    job: str
    bit: int
    remaining: int
    """Devices that this round still needs; of all rounds, where their number is known."""
    arrived_ns: int
    """Of the job."""
    rank: int
    standing: Standing
    demand: int = 0
    """As `remaining`, when the request came; 0: the same."""


class CollabPolicy(Protocol):
    """Deterministic: equal calls and draws, equal answers. No method blocks or fails."""

    name: str
    has_tiers: bool
    """Requests may be restricted to devices of one speed class (§4.3)."""

    is_steady: bool
    """Until one of the calls below tells it of a change, an atom has the same candidates."""

    def opened(self, job: str, bit: int) -> None:
        """A job has come; it waits for nothing yet."""

    def closed(self, job: str) -> None:
        """A job has gone. It does not wait."""

    def waits(self, waiting: Waiting) -> None:
        """A request has come, or something of it has changed."""

    def left(self, job: str) -> None:
        """The job waits no more. It may not have waited."""

    def supplied(self, supply: Mapping[int, int]) -> None:
        """``supply``: atom → check-ins of a day. A device may have an atom that is not in it."""

    def candidates(self, atom: int) -> Iterable[str]:
        """The jobs that may get a device of the atom, first to last. The caller takes the first one that needs it."""
