"""The tests of a health page: they run in the event loop, and a test without a result in time has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

ANSWER_S: Final = 1.0
"""A path that does not answer in this time is unhealthy."""


class Checkup:
    """The results so far of ``tests``. Readable from any thread."""

    def __init__(self, tests: Iterable[str], when_done: Callable[[], None] | None = None) -> None:
        self.checks = dict.fromkeys(tests, f"no answer within {ANSWER_S:g} s")
        self.is_accepting = False
        self.why_not_ready = "the loop did not answer"
        self._when_done = when_done
        self._done = threading.Event()

    @property
    def is_healthy(self) -> bool:
        """True when every test returned ok."""
        return all(result == "ok" for result in self.checks.values())

    def wait(self) -> None:
        """Wait for all tests, at most `ANSWER_S` s. Do not call this from the loop's thread."""
        self._done.wait(ANSWER_S)

    def finish(self) -> None:
        """All tests have reported."""
        self._done.set()
        if self._when_done is not None:
            self._when_done()
