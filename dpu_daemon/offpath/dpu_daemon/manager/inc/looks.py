"""What a look at the engine or at a switch may decide: nothing about a task that they were asked about meanwhile, of
which it may show the state before or after."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from offpath.bindings.engines.port import EngineJob, NodeInfo


@dataclass(slots=True, eq=False)
class Look:
    """``stale``: tasks of which it decides nothing."""

    stale: set[str]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the engine reported in a look, jobs by identity."""

    look: Look
    nodes: Collection[NodeInfo]
    jobs: Mapping[str, EngineJob]


class Looks:
    """The looks that are open, and the tasks of which engine or switch are asked something now."""

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self._open: list[Look] = []

    def begin(self) -> Look:
        """A look that is open until `end`."""
        look = Look(set(self.busy))
        self._open.append(look)
        return look

    def end(self, look: Look) -> None:
        """It was carried out, or is not needed. Idempotent."""
        if look in self._open:
            self._open.remove(look)

    def asking(self, identity: str) -> None:
        """Engine or switch are asked about the task from now on."""
        self.busy.add(identity)
        for look in self._open:
            look.stale.add(identity)

    def answered(self, identity: str) -> None:
        """They are not any more. Looks that began meanwhile have it as stale already."""
        self.busy.discard(identity)
