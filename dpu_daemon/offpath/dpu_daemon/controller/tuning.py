"""What each job of a group should expect of INA, found beside the loop: the answer comes at a later plan.

The group is run in virtual time (`sched.ina.tuning`), which takes up to some seconds.
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
"""Operations in the steps of a group: to lay out more takes longer than to run them."""
_MOST_OPERATIONS: Final = 200_000
"""That are run for one group: about two seconds of a core, by the interpreter."""
_MOST_KEPT_ROWS: Final = 64 * 1024
"""Of all groups whose answer is kept; some 8 MiB."""

Group = tuple[Timed, ...]


class Tuner:
    """``executor``: where the work is done; None: a thread of its own. Used by one thread, beside that."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor or ThreadPoolExecutor(1, "tuning")
        self._known: dict[Group, tuple[Fraction, ...]] = {}
        self._waiting: dict[Group, Future[tuple[Fraction, ...]]] = {}
        self.found = 0
        """Groups whose answer has come so far: whoever plans with another number than the last time may learn more."""

    def trusts(self, groups: Iterable[Sequence[Timed]]) -> list[tuple[Fraction, ...] | None]:
        """`decision.Epoch.trust` of each job of each group of the plan that is being made; None: not known yet.

        What is no group of this plan is not begun any more.
        """
        keys = [tuple(replace(each, name="") for each in group) for group in groups]
        for key, work in list(self._waiting.items()):  # a copy: the other thread takes out what it has done
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
        """In the thread that did the work, or cancelled it."""
        self._waiting.pop(key, None)
        if done.cancelled():
            return
        if (fault := done.exception()) is not None:  # patterns are ranks' words: a step may last longer than time goes
            logger.warning("could not tune a group of %d jobs: %s", len(key), fault, extra={"code": "group_not_run"})
        self._known[key] = (DEFAULT,) * len(key) if fault is not None else done.result()
        while sum(map(_rows, self._known)) > _MOST_KEPT_ROWS:
            del self._known[next(iter(self._known))]
        self.found += 1

    def close(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _rows(group: Group) -> int:
    return sum(len(each.starts) for each in group)
