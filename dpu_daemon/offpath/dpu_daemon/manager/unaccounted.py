"""GPUs that the engine counts as given and that no job has: what stands for many looks at the engine is reported.

A killed engine can lose count (docs/engines.md), and gives nobody what it counts as given. A single look proves
nothing, because a job may end while the engine is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from offpath.bindings.engines.port import NodeInfo

LOOKS: Final = 30
"""For so many looks in a row a node must have such GPUs."""


class Unaccounted:
    """Counts looks, not time: an engine that does not answer proves nothing."""

    def __init__(self) -> None:
        self.reported: dict[str, int] = {}
        """Node → GPUs that have stood for `LOOKS` looks."""
        self._window: dict[str, deque[int]] = {}
        """Of each node that had such GPUs in its last look: their numbers in the last looks."""

    def see(self, nodes: Iterable[NodeInfo]) -> dict[str, int]:
        """Take in a look at the engine's inventory. Returns what changed in `reported`; 0: no longer reported."""
        before, windows = self.reported, self._window
        self.reported, self._window = {}, {}
        for node in nodes:
            if node.unaccounted > 0:
                window = windows.get(node.name) or deque(maxlen=LOOKS)
                window.append(node.unaccounted)
                self._window[node.name] = window
                if len(window) == LOOKS:
                    self.reported[node.name] = min(window)
        return {
            name: self.reported.get(name, 0)
            for name in sorted(before.keys() | self.reported.keys())
            if before.get(name, 0) != self.reported.get(name, 0)
        }
