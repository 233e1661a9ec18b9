"""Workers of pytest-xdist: a file of tests is a unit, which one worker runs in order; the longest files come first, so
that all workers end together.

`./scripts/test` starts a worker for each core when no tests are named. Without workers all of this does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from . import durations

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

UNKNOWN_S = 5.0
"""What a file without a recorded time is taken for."""


LAST = "tests/test_stale_suites.py"
"""Slow suites come when the fast tier is through: some of them measure."""


def unit_of(nodeid: str) -> str:
    """What a test is scheduled with: its file."""
    return nodeid.split("::", 1)[0]


def order(items: list[pytest.Item]) -> None:
    """The longest file first, `LAST` last. The order within a file stays."""
    seconds = durations.kept().files

    def rank(item: pytest.Item) -> tuple[bool, float]:
        file = unit_of(item.nodeid)
        return file == LAST, -seconds.get(file, UNKNOWN_S)

    items.sort(key=rank)


def scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Hands out whole files, in the order of `order`."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        """See `unit_of`."""

        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return ByFile(config, log)
