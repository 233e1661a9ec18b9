"""Computes how much each job of a group should rely on INA, beside the loop; a later plan uses the result.

The group is simulated in virtual time (`sched.ina.tuning`), which takes up to a few seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Final

from offpath.sched.ina.patterns import Timed
from offpath.sched.ina.tuning import DEFAULT, MOST, tuned

logger = logging.getLogger(__name__)
_MOST_ROWS: Final = 4096
"""Limit of operations in a group's steps: laying out more takes longer than running them."""
_MOST_OPERATIONS: Final = 200_000
"""Limit of simulated operations per group: about two seconds of a core, by the interpreter."""
_MOST_KEPT_ROWS: Final = 64 * 1024
"""Limit for all groups whose result is kept; about 8 MiB."""

Group = tuple[Timed, ...]


class Tuner:
    """``executor`` does the work; None: its own thread. Used by one thread besides the executor's."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor or ThreadPoolExecutor(1, "tuning")
        self._known: dict[Group, tuple[Fraction, ...]] = {}
        self._waiting: dict[Group, Future[tuple[Fraction, ...]]] = {}
        self.found = 0
        """Number of groups with a result. A planner may get new results when it differs from the last time."""

    def trusts(self, groups: Iterable[Sequence[Timed]]) -> list[tuple[Fraction, ...] | None]:
        """`decision.Epoch.trust` of each job of each group of the current plan; None: not known yet.

        Work on groups that are not in this plan is cancelled if it has not started.
        """
        keys = [tuple(replace(each, name="") for each in group) for group in groups]
        for key, work in list(self._waiting.items()):  # a copy: the other thread removes finished work
            if key not in keys:
                work.cancel()
        return [self._trusts(key) for key in keys]

    def _trusts(self, key: Group) -> tuple[Fraction, ...] | None:
        if (known := self._known.get(key)) is not None:
            return known
        if not 1 < len(key) <= MOST or _rows(key) > _MOST_ROWS:
            return (DEFAULT,) * len(key)
        if key not in self._waiting:
            work = self._waiting[key] = self._executor.submit(tuned, key, False, _MOST_OPERATIONS)
            work.add_done_callback(lambda done: self._came(key, done))
        return None

    def _came(self, key: Group, done: Future[tuple[Fraction, ...]]) -> None:
        """Called in the thread that finished or cancelled the work."""
        self._waiting.pop(key, None)
        if done.cancelled():
            return
        if (fault := done.exception()) is not None:  # ranks report the patterns: a step may exceed the time range
            logger.warning("could not tune a group of %d jobs: %s", len(key), fault, extra={"code": "group_not_run"})
        self._known[key] = (DEFAULT,) * len(key) if fault is not None else done.result()
        while sum(map(_rows, self._known)) > _MOST_KEPT_ROWS:
            del self._known[next(iter(self._known))]
        self.found += 1

    def close(self) -> None:
        """Start no more work."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _rows(group: Group) -> int:
    return sum(len(each.starts) for each in group)
