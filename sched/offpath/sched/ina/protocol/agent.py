"""A host's agent: hands epochs to its ranks, reports what their pages say. No I/O.

It holds nothing that must outlive it: what its ranks hold and have applied stands on their pages, what the controller
wants comes again until the ranks have it. An agent that dies and comes back therefore owes nobody a word, and a job
whose agent stays away goes on with the epoch it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from offpath.sched.ina.protocol.records import EpochRecord, RankState


@dataclass(frozen=True, slots=True)
class Handed:
    """Put this epoch on the pages of its job's ranks on this host."""

    epoch: EpochRecord


@dataclass(frozen=True, slots=True)
class Report:
    """To the controller. ``term``: the greatest this agent has heard of, with the ``proof`` that came with it;
    ``is_whole``: these are all ranks here."""

    host: str
    term: int
    states: tuple[RankState, ...]
    is_whole: bool = False
    proof: str = ""


class Agent:
    """See the module."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.term = 0
        self.proof = ""
        """Of ``term``, as its controller gave it: the first, where two give the same term."""
        self._states: dict[tuple[str, int, int], RankState] = {}
        """By job, incarnation, rank."""

    def epoch(self, record: EpochRecord) -> Handed | None:
        """The controller sent an epoch. None: an old controller did, or no rank here can use it (any more)."""
        if record.term < self.term:
            return None
        self._listen(record.term, record.proof)
        ours = [state for key, state in self._states.items() if key[:2] == (record.job, record.incarnation)]
        if all(state.is_gone or state.held >= record.stamp for state in ours):
            return None
        return Handed(record)

    def on_state(self, state: RankState) -> Report | None:
        """What a rank's page says now, or that its process is gone. None: no news (the index alone is none)."""
        key = state.job, state.incarnation, state.rank
        known = self._states.get(key)
        self._states[key] = state
        if known is not None and replace(known, index=state.index) == state:
            return None
        return Report(self.host, self.term, (state,), proof=self.proof)

    def removed(self, job: str, incarnation: int, rank: int) -> None:
        """The page of a rank that is gone was removed: it is in no further report."""
        self._states.pop((job, incarnation, rank), None)

    def on_query(self, term: int, proof: str = "") -> Report | None:
        """A controller asks what is here; None: an old one."""
        if term < self.term:
            return None
        self._listen(term, proof)
        return Report(self.host, term, tuple(self._states.values()), is_whole=True, proof=self.proof)

    def greater(self) -> Report:
        """For an old controller: the term that this agent listens to, and its proof."""
        return Report(self.host, self.term, (), proof=self.proof)

    def _listen(self, term: int, proof: str) -> None:
        if term > self.term:
            self.term, self.proof = term, proof
