"""New identities for tasks, from numbers that the job manager's file has reserved."""

from __future__ import annotations

from typing import Final

from offpath.dpu_daemon.manager.store import JobsFile, identity_of

RESERVE: Final = 1_024
"""Numbers at a time, at least: each reservation is a write to the disk."""


class Identities:
    """New identities from numbers that the file has reserved."""

    def __init__(self, store: JobsFile) -> None:
        self._store = store
        self._lineage, self._next, self._left = "", 0, 0

    def reserve(self, count: int) -> None:
        """Let `next` work so often. Raises: PlaceUnusable."""
        if self._left < count:
            wanted = max(2 * count, RESERVE)
            self._lineage, self._next = self._store.reserve(wanted)
            self._left = wanted

    def next(self, name: str) -> str:
        """For a task of the request."""
        return identity_of(name, self._lineage, self.number())

    def number(self) -> int:
        """One that was never given before."""
        self._left -= 1
        self._next += 1
        return self._next - 1
