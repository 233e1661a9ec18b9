"""A host's agent: delivers epochs to its ranks and reports the contents of their state files. No I/O.

The agent has no state that must survive it. What its ranks hold and have applied is in their state files, and the
controller repeats an epoch until the ranks have it. A restarted agent therefore needs no recovery, and a job without an
agent continues with its current epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from offpath.sched.ina.protocol.records import EpochRecord, RankState


@dataclass(frozen=True, slots=True)
class Handed:
    """Write this epoch to the state files of its job's ranks on this host."""

    epoch: EpochRecord


@dataclass(frozen=True, slots=True)
class Report:
    """Report to the controller. ``term``: the greatest term that this agent has received, with its ``proof``;
    ``is_whole``: the report covers all ranks on this host."""

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
        """Proof of ``term``, as its controller sent it: the first one if two controllers send the same term."""
        self._states: dict[tuple[str, int, int], RankState] = {}
        """By job, incarnation, rank."""

    def epoch(self, record: EpochRecord) -> Handed | None:
        """Handle an epoch from the controller. None: its controller is outdated, or no rank here can use it."""
        if record.term < self.term:
            return None
        self._listen(record.term, record.proof)
        ours = [state for key, state in self._states.items() if key[:2] == (record.job, record.incarnation)]
        if all(state.is_gone or state.held >= record.stamp for state in ours):
            return None
        return Handed(record)

    def on_state(self, state: RankState) -> Report | None:
        """Handle a change of a rank's state file, or the end of its process. None: nothing new (a change of the index
        alone is not reported)."""
        key = state.job, state.incarnation, state.rank
        known = self._states.get(key)
        self._states[key] = state
        if known is not None and replace(known, index=state.index) == state:
            return None
        return Report(self.host, self.term, (state,), proof=self.proof)

    def removed(self, job: str, incarnation: int, rank: int) -> None:
        """The state file of an ended rank was removed: omit the rank from further reports."""
        self._states.pop((job, incarnation, rank), None)

    def on_query(self, term: int, proof: str = "") -> Report | None:
        """Handle a controller's query; None: the controller is outdated."""
        if term < self.term:
            return None
        self._listen(term, proof)
        return Report(self.host, term, tuple(self._states.values()), is_whole=True, proof=self.proof)

    def greater(self) -> Report:
        """Answer to an outdated controller: the term that this agent follows, and its proof."""
        return Report(self.host, self.term, (), proof=self.proof)

    def _listen(self, term: int, proof: str) -> None:
        if term > self.term:
            self.term, self.proof = term, proof
