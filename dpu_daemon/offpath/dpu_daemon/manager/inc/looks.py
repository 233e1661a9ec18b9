"""What a look at the engine or at a switch may decide: nothing about a task with a call in flight meanwhile. Of such a
task it may show the state before or after the call."""

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
    """The looks that are open. ``busy``: tasks with a call to the engine or a switch in flight."""

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

    def call_began(self, identity: str) -> None:
        """A call about the task is in flight from now on. All open looks take the task as stale."""
        self.busy.add(identity)
        for look in self._open:
            look.stale.add(identity)

    def call_ended(self, identity: str) -> None:
        """The call has returned or failed. Looks that began meanwhile have the task as stale already."""
        self.busy.discard(identity)
