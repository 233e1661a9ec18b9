"""Jobs in order of a key that changes: a sorted list for each requirement."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

Entry = tuple[float, int, str]
"""Key, arrival, name: no two are equal."""


class Line:
    """The jobs of one group, smallest key first. A change costs O(log n) comparisons and moves n pointers."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @property
    def first(self) -> Entry:
        """Raises: IndexError: there is none."""
        return self._entries[0]

    def add(self, entry: Entry) -> None:
        """It is not in the line."""
        insort(self._entries, entry)

    def remove(self, entry: Entry) -> None:
        """It is in the line."""
        del self._entries[bisect_left(self._entries, entry)]

    def replace(self, old: Entry, new: Entry) -> None:
        """``old`` is in the line. A job at its head that needs less stays there."""
        entries = self._entries
        if new <= old and entries[0] is old:
            entries[0] = new
            return
        self.remove(old)
        self.add(new)
