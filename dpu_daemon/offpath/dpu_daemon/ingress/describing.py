"""Answers a requester's questions about kernels, within a rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from offpath.bindings.errors import ControlError
from offpath.bindings.wire.fields import MAX_KERNELS
from offpath.bindings.wire.negotiating import Describe, Described

BURST: Final = 4 * MAX_KERNELS
"""Questions that one connection may ask at once: all kernels, also after three changes in a row."""
PER_SECOND: Final = 64
"""Those that it may ask in the long run: 0.5 % of a core."""


class Describing:
    """The questions of one connection. ``describe`` finds a kernel by its name."""

    def __init__(self, describe: Callable[[str], Described], clock: Callable[[], float] = time.monotonic) -> None:
        self._describe = describe
        self._clock = clock
        self._left = float(BURST)
        self._counted_s = clock()

    def answer(self, question: Describe) -> Described:
        """Raises: ControlError: ``describe_rate``: too many questions."""
        now_s = self._clock()
        self._left = min(float(BURST), self._left + PER_SECOND * (now_s - self._counted_s)) - 1
        self._counted_s = now_s
        if self._left < 0:
            raise ControlError("describe_rate", f"more than {BURST} questions at once, or {PER_SECOND} a second")
        return self._describe(question.name)
