"""What all tests share: the event loop, the size of the run (./scripts/test --quick | --full), Hypothesis profiles."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

import pytest
import uvloop
from hypothesis import HealthCheck, settings

SIZE = os.environ.get("OFFPATH_TEST_SIZE", "ci")

_SLOW_MACHINE = [HealthCheck.too_slow]  # two shared cores: time says nothing about the strategy
settings.register_profile(
    "quick", max_examples=20, deadline=None, derandomize=True, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=_SLOW_MACHINE)
settings.register_profile("full", max_examples=2_000, deadline=None, suppress_health_check=_SLOW_MACHINE)
settings.load_profile(SIZE)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop the daemon runs on."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the size leaves out; `-m` and `-k` still apply to the rest."""
    left_out = {"quick": {"slow", "full"}, "ci": {"full"}, "full": set()}[SIZE]
    out = [item for item in items if any(item.get_closest_marker(name) for name in left_out)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in set(out)]
