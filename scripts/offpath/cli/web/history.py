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
        self.dropped = 0
        """The last change of any span that was dropped: who knows only earlier changes may take that span for open."""

    def __len__(self) -> int:
        return len(self._spans)

    def observe(self, now_ms: float, held: Iterable[Held]) -> None:
        """What all leases occupy now. Spans of leases that are missing end; those beyond the bounds are dropped."""
        self.change += 1
        present: dict[_Key, Held] = {(each.lease, each.generation, each.gpu, each.start): each for each in held}
        ended = [self._spans[self._open.pop(key)] for key in [key for key in self._open if key not in present]]
        begun: dict[str, list[Span]] = {}
        for key, each in present.items():
            if key not in self._open and len(self._open) < self._most:
                self._numbers += 1
                span = Span(self._numbers, self.change, each, now_ms - min(each.held_ms, self._window_ms))
                begun.setdefault(each.gpu, []).append(span)
                self._open[key] = span.number
        for span in ended:
            self._end(span, now_ms, begun.get(span.held.gpu, []))
        for each_begun in begun.values():
            self._spans |= {span.number: span for span in each_begun}
        self._drop(now_ms)

    def since(self, change: int) -> list[Span]:
        """Spans that changed after ``change``, oldest change first; after 0: all."""
        found: list[Span] = []
        for number in reversed(self._spans):
            if self._spans[number].change <= change:
                break
            found.append(self._spans[number])
        return found[::-1]

    def _end(self, span: Span, now_ms: float, heirs: list[Span]) -> None:
        """It ended since the last poll, and before its slices were given to a lease that began since then."""
        mine = range(span.held.start, span.held.start + span.held.slices)
        after = (
            heir.begin_ms
            for heir in heirs
            if heir.held.start < mine.stop and mine.start < heir.held.start + heir.held.slices
        )
        end_ms = max(span.begin_ms, min([now_ms, *after]))
        del self._spans[span.number]
        self._spans[span.number] = Span(span.number, self.change, span.held, span.begin_ms, end_ms)

    def _drop(self, now_ms: float) -> None:
        """Ended spans that are too old; beyond the number the oldest ended ones too. Leases beyond it have no span."""
        oldest = now_ms - self._window_ms
        over = len(self._spans) - self._most
        ended = [span for span in self._spans.values() if span.end_ms is not None]
        for n, span in enumerate(ended):
            if n < over or (span.end_ms is not None and span.end_ms < oldest):
                del self._spans[span.number]
                self.dropped = max(self.dropped, span.change)
