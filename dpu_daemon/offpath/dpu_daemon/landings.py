"""Copies that go on beside the loop, by lease, and what must not happen before they have landed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set


class Landings:
    """A lane's memory is not its lease's alone while a copy into or out of it is in flight."""

    def __init__(self) -> None:
        self._flying: Counter[int] = Counter()
        self._waiting: list[tuple[set[int], Callable[[], None]]] = []

    def started(self, lease: int) -> None:
        """A copy into or out of one of its lanes is in flight."""
        self._flying[lease] += 1

    def ended(self, lease: int) -> None:
        """It landed, or failed; what waited for the last one happens now."""
        self._flying[lease] -= 1
        if self._flying[lease]:
            return
        del self._flying[lease]
        for leases, _ in self._waiting:
            leases.discard(lease)
        ready = [then for leases, then in self._waiting if not leases]
        self._waiting = [entry for entry in self._waiting if entry[0]]
        for then in ready:
            then()

    def leases(self) -> Set[int]:
        """Those with a copy in flight."""
        return self._flying.keys()

    def when_landed(self, leases: Set[int], then: Callable[[], None]) -> None:
        """Call ``then`` when no copy is in flight that is now, for any of these leases; at once if there is none."""
        flying = set(leases & self._flying.keys())
        if flying:
            self._waiting.append((flying, then))
        else:
            then()
