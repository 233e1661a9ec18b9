"""What each job of a group should expect of INA, found beside the loop: the answer comes at a later plan.

The group is run in virtual time (`sched.sim.ina.tuning`), which takes up to some seconds: until it is known, and where
that would take too long, every job expects half.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Final

from offpath.sched.ina.patterns import Timed
from offpath.sched.sim.ina.tuning import DEFAULT, MOST, trusts

logger = logging.getLogger(__name__)
_MOST_ROWS: Final = 4096
"""Operations in the steps of a group: to lay out more takes longer than to run them."""
_MOST_OPERATIONS: Final = 200_000
"""That are run for one group: about two seconds of a core, by the interpreter."""
_MOST_KEPT: Final = 1024
_MOST_WAITING: Final = 64

Group = tuple[Timed, ...]


class Tuner:
    """Asked at every plan. ``executor``: where the work is done; None: a thread of its own."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor or ThreadPoolExecutor(1, "tuning")
        self._known: dict[Group, Sequence[Fraction]] = {}
        self._waiting: set[Group] = set()
        self.found = 0
        """Groups whose answer has come so far: whoever plans with another number than the last time may learn more."""

    def trusts(self, group: Sequence[Timed]) -> Sequence[Fraction]:
        """`decision.Epoch.trust` of each job, as far as it is known now."""
        key = tuple(replace(each, name="") for each in group)
        if (known := self._known.get(key)) is not None:
            return known
        can_be = 1 < len(key) <= MOST and sum(len(each.starts) for each in key) <= _MOST_ROWS
        if can_be and key not in self._waiting and len(self._waiting) < _MOST_WAITING:
            self._waiting.add(key)
            work = self._executor.submit(trusts, key, False, _MOST_OPERATIONS)
            work.add_done_callback(lambda done: self._came(key, done))
        return (DEFAULT,) * len(key)

    def _came(self, key: Group, done: Future[tuple[Fraction, ...]]) -> None:
        """In the thread that did the work."""
        self._waiting.discard(key)
        if done.cancelled():
            return
        if (fault := done.exception()) is not None:  # patterns are ranks' words: a step may last longer than time goes
            logger.warning("a group of %d jobs could not be run: %s", len(key), fault)
        while len(self._known) >= _MOST_KEPT:
            del self._known[next(iter(self._known))]
        self._known[key] = (DEFAULT,) * len(key) if fault is not None else done.result()
        self.found += 1

    def close(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
