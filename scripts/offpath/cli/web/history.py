"""Which lease occupied which slices, when: the data of the page's chart. Bounded in number and in time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MOST_SPANS: Final = 8192
WINDOW_MS: Final = 600_000.0


@dataclass(frozen=True, slots=True)
class Held:
    """Slices that a lease occupies now. ``held_ms``: for how long."""

    lease: int
    generation: int
    gpu: str
    start: int
    slices: int
    profile: str
    tenant: str
    held_ms: float


@dataclass(frozen=True, slots=True)
class Span:
    """A rectangle of the chart. ``end_ms`` is None while the lease lasts. ``change``: `History.change` when the span
    began or ended."""

    number: int
    change: int
    held: Held
    begin_ms: float
    end_ms: float | None = None


_Key = tuple[int, int, str, int]


class History:
    """Spans in the order of their last change. A span begins when its lease did; its end is as exact as the polls."""

    def __init__(self, most: int = MOST_SPANS, window_ms: float = WINDOW_MS) -> None:
        self._most, self._window_ms = most, window_ms
        self._spans: OrderedDict[int, Span] = OrderedDict()
        self._open: dict[_Key, int] = {}
        self._numbers = 0
        self.change = 0

    def __len__(self) -> int:
        return len(self._spans)

    def observe(self, now_ms: float, held: Iterable[Held]) -> None:
        """What all leases occupy now. Spans of leases that are missing end; those beyond the bounds are dropped."""
        self.change += 1
        present: dict[_Key, Held] = {(each.lease, each.generation, each.gpu, each.start): each for each in held}
        for key in [key for key in self._open if key not in present]:
            self._end(self._open.pop(key), now_ms)
        for key, each in present.items():
            if key not in self._open:
                self._numbers += 1
                begin_ms = now_ms - min(each.held_ms, self._window_ms)
                self._spans[self._numbers] = Span(self._numbers, self.change, each, begin_ms)
                self._open[key] = self._numbers
        self._drop(now_ms)

    def since(self, change: int) -> list[Span]:
        """Spans that changed after ``change``, oldest change first; after 0: all."""
        found: list[Span] = []
        for number in reversed(self._spans):
            if self._spans[number].change <= change:
                break
            found.append(self._spans[number])
        return found[::-1]

    def _end(self, number: int, now_ms: float) -> None:
        span = self._spans.pop(number, None)
        if span is not None:  # None: dropped
            self._spans[number] = Span(number, self.change, span.held, span.begin_ms, now_ms)

    def _drop(self, now_ms: float) -> None:
        """Ended spans that are too old; then, beyond the number, the oldest ended ones, then any."""
        oldest = now_ms - self._window_ms
        ended = [number for number, span in self._spans.items() if span.end_ms is not None]
        over = len(self._spans) - self._most
        for n, number in enumerate(ended):
            end_ms = self._spans[number].end_ms
            if n < over or (end_ms is not None and end_ms < oldest):
                del self._spans[number]
        while len(self._spans) > self._most:
            self._spans.popitem(last=False)
